/**
 * Reads and writes values common to all protocols: members, piecewise usage and call ids. Reading is total: a member
 * with an unexpected shape counts as absent.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Random from "effect/Random"
import type * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as ToolCalls from "../../internal/hear/toolCalls.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import * as Response from "../../Response.ts"

/** Returns a nonempty string. */
export const string = (value: unknown): string | undefined =>
  typeof value === "string" && value !== "" ? value : undefined

export const object = (value: unknown): Json.JsonObject => Json.isObject(value) ? value : {}

/** Returns the objects in a list. */
export const list = (value: unknown): ReadonlyArray<Json.JsonObject> =>
  Array.isArray(value) ? value.filter(Json.isObject) : []

export const number = (value: unknown): number | undefined => typeof value === "number" ? value : undefined

/** Drops undefined members. */
export const defined = <A extends object>(record: A): { readonly [Name in keyof A]?: Exclude<A[Name], undefined> } =>
  Object.fromEntries(Object.entries(record).filter(([, value]) => value !== undefined)) as A

/** Drops undefined and `null` members. */
export const said = (record: Json.JsonObject): Record<string, unknown> =>
  Object.fromEntries(Object.entries(record).filter(([, value]) => value !== null && value !== undefined))

/** Returns a member, or nothing if its value is empty. */
export const filled = (key: string, value: object): Json.JsonObject =>
  Object.keys(value).length === 0 ? {} : { [key]: value }

// ---------------------------------------------------------------------------------------------------------------------
// history

/** Returns a message's calls for Heddle to run, without provider-executed calls. */
export const ownCalls = ({ toolCalls = [] }: Message.Message): ReadonlyArray<Message.ToolCall> =>
  toolCalls.filter((call) => call.providerExecuted !== true)

/**
 * Returns a call's arguments. Text other than a JSON object is not sent back: servers would refuse the whole history.
 */
export const argumentsOf = ({ arguments: args, rawArguments = "" }: Message.ToolCall): string =>
  Json.wellFormedJson(
    rawArguments.trim() !== "" && ToolCalls.isWhole(ToolCalls.ofText(rawArguments))
      ? rawArguments
      : JSON.stringify(args)
  )

/**
 * Divides a text by piece lengths; a non-number counts as no characters. Returns `undefined` if the lengths do not
 * cover the whole text, which has changed in that case.
 */
export const divided = (text: string, lengths: ReadonlyArray<unknown>): ReadonlyArray<string> | undefined => {
  let end = 0
  const pieces = lengths.map((length) => text.slice(end, end += number(length) ?? 0))
  return end === text.length ? pieces : undefined
}

// ---------------------------------------------------------------------------------------------------------------------
// Makers. Values a server stored with a message or call, and ids the server made, go back to that server only.

/** Returns a server's maker name: host and port. */
export const serverOf = (baseUrl: string): string => URL.canParse(baseUrl) ? new URL(baseUrl).host : baseUrl

/**
 * Returns `true` if a server made the stored values. Values without a maker were written by a program and go to any
 * server.
 */
export const isMadeBy = (server: string, kept: Json.JsonObject): boolean => {
  const { server: maker = server } = kept
  return maker === server
}

/** Values stored under a protocol's key together with their maker. */
export interface Kept {
  readonly key: string
  /** Returns `true` if fields beside reasoning mean something to one server only, not to the entire protocol. */
  readonly isOfServer: (kept: Json.JsonObject) => boolean
}

const withMaker = (metadata: Json.JsonObject | undefined, key: string, server: string): Json.JsonObject => ({
  ...metadata,
  [key]: { ...object(metadata?.[key]), server }
})

/** Returns a test for calls made by a server, under a protocol's key. */
export const isCallOf = (key: string, server: string) => ({ metadata }: Message.ToolCall): boolean => {
  const kept = object(metadata)[key]
  return Json.isObject(kept) && isMadeBy(server, kept)
}

/**
 * Adds the maker to a reply event: beside values stored for it, and beside the id of each call for Heddle, since the
 * thread may rename the call.
 */
export const made = (event: Event.AdapterEvent, { isOfServer, key }: Kept, server: string): Event.AdapterEvent => {
  const call = <
    Call extends { readonly id: string; readonly metadata?: Json.JsonObject; readonly providerExecuted?: boolean }
  >(call: Call): Call =>
    call.providerExecuted === true ? call : { ...call, metadata: withMaker(call.metadata, key, server) }
  const part = (part: Message.Part): Message.Part =>
    part.type === "reasoning" && isOfServer(object(part.metadata?.[key]))
      ? { ...part, metadata: withMaker(part.metadata, key, server) }
      : part
  if (event._tag === "ToolCallCompleted") return call(event)
  if (event._tag !== "MessageCompleted") return event
  const { message } = event
  return {
    ...event,
    message: {
      ...message,
      ...defined({ toolCalls: message.toolCalls?.map(call), reasoning: message.reasoning?.map(part) })
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// names of tools

const longestName = 64

/**
 * Maps tool names to the form a protocol accepts: a refused name gets leading underscores, enough to differ from all
 * other tools. Everywhere else a tool keeps its own name.
 */
export class SentNames {
  private readonly sent = new Map<string, string>()
  private readonly own = new Map<string, string>()

  constructor(legal: RegExp, request: Adapter.Request) {
    const declared = request.tools.map(({ name }) => name)
    const called = request.messages.flatMap(({ name, role, toolCalls = [] }) => [
      ...toolCalls.map((call) => call.name),
      ...(role === "tool" && name !== undefined ? [name] : [])
    ])
    const names = new Set([...declared, ...called])
    for (const name of names) if (!legal.test(name)) this.rename(name, names)
  }

  private rename(name: string, taken: Set<string>): void {
    let sent = name
    do sent = `_${sent}`.slice(0, longestName)
    while (taken.has(sent) && sent !== "_".repeat(longestName))
    taken.add(sent)
    this.sent.set(name, sent)
    this.own.set(sent, name)
  }

  /** Renames tools in an outgoing request. */
  request(request: Adapter.Request): Adapter.Request {
    if (this.sent.size === 0) return request
    const { toolChoice } = request
    return {
      ...request,
      tools: request.tools.map((tool) => this.renamed(tool, this.sent)),
      messages: request.messages.map((message) => ({
        ...message,
        ...defined({
          name: message.role === "tool" ? this.sent.get(message.name ?? "") : undefined,
          toolCalls: message.toolCalls?.map((call) =>
            call.providerExecuted === true ? call : this.renamed(call, this.sent)
          )
        })
      })),
      ...(typeof toolChoice === "object" ? { toolChoice: this.renamed(toolChoice, this.sent) } : {})
    }
  }

  /** Restores the tools' own names in a reply event. */
  event(event: Event.AdapterEvent): Event.AdapterEvent {
    if (this.own.size === 0) return event
    if (event._tag === "ToolCallStarted" || event._tag === "ToolCallCompleted") return this.renamed(event, this.own)
    if (event._tag !== "MessageCompleted" || event.message.toolCalls === undefined) return event
    const toolCalls = event.message.toolCalls.map((call) => this.renamed(call, this.own))
    return { ...event, message: { ...event.message, toolCalls } }
  }

  private renamed<A extends { readonly name: string }>(named: A, names: ReadonlyMap<string, string>): A {
    const name = names.get(named.name)
    return name === undefined ? named : { ...named, name }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Usage. The latest report of each figure counts; a report with a missing or zero figure takes nothing back.

/** Merges a usage report. An unstated total becomes the sum of input and output. */
export const mergedUsage = (previous: Response.Usage | null, next: Response.Usage): Response.Usage => {
  const merged = previous === null ? next : {
    ...Response.usage({ ...next, ...figures(previous), ...known(next) }),
    toolUsage: { ...previous.toolUsage, ...next.toolUsage },
    extra: { ...previous.extra, ...next.extra }
  }
  const isTotalStated = next.totalTokens !== null && next.totalTokens !== 0
  if (isTotalStated || merged.inputTokens === null || merged.outputTokens === null) return merged
  return { ...merged, totalTokens: merged.inputTokens + merged.outputTokens }
}

const figures = (usage: Response.Usage): Readonly<Record<string, unknown>> =>
  Object.fromEntries(Object.entries(usage).filter(([, value]) => typeof value === "number"))

const known = (usage: Response.Usage): Readonly<Record<string, unknown>> =>
  Object.fromEntries(Object.entries(figures(usage)).filter(([, value]) => value !== 0))

// ---------------------------------------------------------------------------------------------------------------------
// ids of calls

const hexadecimal = (value: number, digits: number): string => value.toString(16).padStart(digits, "0")

/** Makes ids for calls lacking an id: `call_` and a version 7 UUID without hyphens. */
export const idMaker: Effect.Effect<() => string> = Effect.gen(function*() {
  const time = hexadecimal(yield* Clock.currentTimeMillis, 12)
  const high = hexadecimal(yield* Random.nextIntBetween(0x8000, 0xbfff), 4)
  const low = yield* Random.nextIntBetween(0, 2 ** 48 - 1)
  let count = 0
  return () => {
    const serial = `7${hexadecimal(count % 4096, 3)}${high}${hexadecimal((low + count) % 2 ** 48, 12)}`
    count++
    return `call_${time}${serial}`
  }
})

/** Rules a server imposes on ids it did not make. */
export interface IdRules {
  /** Characters not allowed in an id. By default all are allowed. */
  readonly illegal?: RegExp
  /** Replacement for an illegal character. */
  readonly filler?: string
  /** Maximum id length. Defaults to the length every server accepts. */
  readonly longest?: number
  /** `true` if every id has exactly the maximum length. Ids begin alike, so their ends count. */
  readonly isExact?: boolean
  /** `true` if a thread may contain an id twice. */
  readonly mayRepeat: boolean
}

/** Letters, digits, underscores and hyphens, at the length every server accepts. */
export const wordIds: IdRules = { illegal: /[^A-Za-z0-9_-]/g, filler: "_", mayRepeat: false }

/** Nine letters and digits. */
export const nineIds: IdRules = { illegal: /[^A-Za-z0-9]/g, filler: "", longest: 9, isExact: true, mayRepeat: false }

/** Returns the id the wire gave a call: its own id, unless already taken in its thread. */
export const wireIdOf = ({ id, metadata }: Pick<Message.ToolCall, "id" | "metadata">): string =>
  string(object(metadata)["duplicateOf"]) ?? id

/** Finds a message's calls by wire id, in call order. A thread may give a call another id. */
export class CallsByWireId {
  private readonly calls: Set<Message.ToolCall>
  private readonly byWireId = new Map<string, Array<Message.ToolCall>>()

  constructor(calls: ReadonlyArray<Message.ToolCall>) {
    this.calls = new Set(calls)
    for (const call of calls) {
      const others = this.byWireId.get(wireIdOf(call))
      if (others === undefined) this.byWireId.set(wireIdOf(call), [call])
      else others.push(call)
    }
  }

  /** Takes the first remaining call with an id. */
  take(wireId: string): Message.ToolCall | undefined {
    const call = this.byWireId.get(wireId)?.shift()
    if (call !== undefined) this.calls.delete(call)
    return call
  }

  get rest(): ReadonlyArray<Message.ToolCall> {
    return [...this.calls]
  }
}

/** Converts an id to a server's required form. */
const formed = ({ filler = "", illegal, isExact = false, longest = ToolCalls.longestId }: IdRules, id: string) => {
  const legal = illegal === undefined ? id.toWellFormed() : id.replaceAll(illegal, filler)
  if (isExact) return legal.slice(-longest).padStart(longest, "0")
  return ToolCalls.shortened(legal, longest) || "call"
}

/** Makes unique ids with one length: a number replaces the end of a taken id. */
class ExactIds {
  private readonly length: number
  private readonly taken = new Set<string>()
  /** Latest number per id beginning. */
  private readonly counts = new Map<string, number>()

  constructor(length: number) {
    this.length = length
  }

  reserve(id: string): void {
    this.taken.add(id)
  }

  take(wanted: string): string {
    if (!this.taken.has(wanted)) {
      this.taken.add(wanted)
      return wanted
    }
    const stem = wanted.slice(0, this.length - 5)
    let count = this.counts.get(stem) ?? 1
    let id = wanted
    do {
      const digits = String(++count)
      id = wanted.slice(0, this.length - digits.length) + digits
    } while (this.taken.has(id))
    this.counts.set(stem, count)
    this.taken.add(id)
    return id
  }
}

/** Sent ids of the calls sharing an id in the latest turn, and how many were answered. */
interface Open {
  readonly sent: Array<string>
  answered: number
}

/**
 * Maps a thread's call ids to sent ids, in thread order. An id made by the server goes back to it unchanged, repeated
 * where the server repeated it. Any other call keeps its own id, in the server's required form. A call and its answer
 * share the id, in every request of a growing thread. No other call has the same id, unless the thread repeats an id
 * and the server accepts repetition.
 */
export class SentIds {
  private readonly rules: IdRules
  private readonly isOwn: (call: Message.ToolCall) => boolean
  private readonly unique: Pick<ToolCalls.UniqueIds, "reserve" | "take">
  /** Latest calls per id in the thread. */
  private readonly latest = new Map<string, Open>()
  /** Formed ids by thread id, where ids may repeat. */
  private readonly known = new Map<string, string>()

  /** Creates the map. `isOwn` returns `true` for calls made by the server. */
  constructor(rules: IdRules, isOwn: (call: Message.ToolCall) => boolean) {
    this.rules = rules
    this.isOwn = isOwn
    this.unique = rules.isExact === true && rules.longest !== undefined
      ? new ExactIds(rules.longest)
      : new ToolCalls.UniqueIds()
  }

  /** Takes the next message's calls. Returns a function from a call to its sent id; use it once per call. */
  turn(calls: ReadonlyArray<Message.ToolCall>): (call: Message.ToolCall) => string {
    const sent = new Map<Message.ToolCall, Array<string>>()
    const open = new Map<string, Open>()
    for (const call of calls) {
      const id = this.sentOf(call, open.has(call.id))
      const ids = sent.get(call)
      if (ids === undefined) sent.set(call, [id])
      else ids.push(id)
      const known = open.get(call.id)
      if (known === undefined) open.set(call.id, { sent: [id], answered: 0 })
      else known.sent.push(id)
    }
    for (const [id, calls] of open) this.latest.set(id, calls)
    return (call) => sent.get(call)?.shift() ?? call.id
  }

  /** Returns the id for the next answer. Answers sharing a call id follow call order. */
  answered(id: string): string {
    const open = this.latest.get(id)
    return open?.sent[Math.min(open.answered++, open.sent.length - 1)] ?? formed(this.rules, id)
  }

  /** Reserves an id sent back unchanged, so no other call takes the id. */
  reserve(id: string): string {
    this.unique.reserve(id)
    return id
  }

  /**
   * Returns a call's sent id. Where a server refuses repeated ids, calls sharing an id did not come from the server: a
   * program combined them.
   */
  private sentOf(call: Message.ToolCall, isAgain: boolean): string {
    const isOwn = this.isOwn(call)
    const wireId = wireIdOf(call)
    const { mayRepeat } = this.rules
    const isCopy = !mayRepeat && (isAgain || this.latest.has(call.id))
    if (isOwn && wireId.isWellFormed()) return isCopy ? this.unique.take(wireId) : this.reserve(wireId)
    const wanted = formed(this.rules, call.id)
    if (!mayRepeat) return this.unique.take(wanted)
    const sent = this.known.get(call.id) ?? this.unique.take(wanted)
    this.known.set(call.id, sent)
    return sent
  }
}
