/**
 * Arguments that arrive as values of paths: `$.city` is `"Os"`, `$.city` goes on with `"lo"`, `$.days[0]` is 3. The work
 * is linear in the pieces. What the pieces cannot mean together is lost, never guessed: a path that is none, a list with
 * gaps, a member of what is no object.
 */
import * as CallArguments from "../../internal/hear/callArguments.ts"
import type * as Json from "../../internal/json.ts"
import * as Wire from "./wire.ts"

type Key = string | number

type Container = Record<string, unknown> | Array<unknown>

const step = /\.([^.[\]'"]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]/y

/** The keys of a path, or nothing if it is none. */
const keysOf = (path: string): ReadonlyArray<Key> | undefined => {
  if (!path.startsWith("$")) return undefined
  const keys: Array<Key> = []
  let position = 1
  while (position < path.length) {
    step.lastIndex = position
    const found = step.exec(path)
    if (found === null || keys.length === CallArguments.deepest) return undefined
    const [, name, index, single, double] = found
    keys.push(index === undefined ? name ?? (single ?? double ?? "").replaceAll(/\\(.)/g, "$1") : Number(index))
    position = step.lastIndex
  }
  return keys.length === 0 ? undefined : keys
}

const valueOf = (piece: Json.JsonObject): unknown => {
  if ("nullValue" in piece) return null
  return piece["stringValue"] ?? piece["numberValue"] ?? piece["boolValue"]
}

const isContainer = (value: unknown): value is Container => typeof value === "object" && value !== null

/** Whether a container can have a member of that key: a list has no gaps. */
const fits = (container: Container, key: Key): boolean =>
  Array.isArray(container) ? typeof key === "number" && key <= container.length : typeof key === "string"

const own = (container: Container, key: Key): unknown =>
  Object.hasOwn(container, key) ? (container as Record<Key, unknown>)[key] : undefined

export class PathArguments {
  /** Whether a piece did not fit: what is there then is not what was meant. */
  isLost = false
  /** Whether any piece has come. */
  hasBegun = false
  private readonly root: Record<string, unknown> = {}

  /** The arguments as JSON. */
  get text(): string {
    return JSON.stringify(this.root)
  }

  /** Members that came whole. */
  assign(members: unknown): void {
    for (const [name, value] of Object.entries(Wire.object(members))) this.set([name], value)
  }

  add(piece: Json.JsonObject): void {
    this.hasBegun = true
    const path = piece["jsonPath"]
    const value = valueOf(piece)
    const keys = typeof path === "string" ? keysOf(path) : undefined
    if (keys === undefined) this.isLost = true
    else if (value !== undefined) this.set(keys, value)
  }

  private set(keys: ReadonlyArray<Key>, value: unknown): void {
    this.hasBegun = true
    if (keys.includes("__proto__")) return
    let container: Container = this.root
    for (const [position, key] of keys.entries()) {
      if (!fits(container, key)) return this.lose()
      const known = own(container, key)
      const isLast = position === keys.length - 1
      const next = isLast ? joined(known, value) : known ?? (typeof keys[position + 1] === "number" ? [] : {})
      ;(container as Record<Key, unknown>)[key] = next
      if (isLast) return
      if (!isContainer(next)) return this.lose()
      container = next
    }
  }

  private lose(): void {
    this.isLost = true
  }
}

/** Pieces of one text follow each other; any other value replaces what was there. */
const joined = (known: unknown, value: unknown): unknown =>
  typeof known === "string" && typeof value === "string" ? known + value : value
