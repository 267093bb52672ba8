/**
 * Loads the module given to a command, and its server definition.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { existsSync } from "node:fs"
import { createRequire } from "node:module"
import { join, resolve } from "node:path"
import { pathToFileURL } from "node:url"
import * as Adapter from "../../Adapter.ts"
import type * as Agents from "../../server/Agent.ts"
import type * as Server from "../../server/Server.ts"
import * as Problems from "./problem.ts"

/** A definition, with its agents by name. */
export interface Loaded {
  readonly definition: Server.Definition
  readonly agents: ReadonlyMap<string, Agents.Agent>
}

const isPath = (name: string): boolean => /^\.{0,2}[/\\]|^[A-Za-z]:[/\\]|\.[cm]?[jt]sx?$/.test(name)

/** Returns the URL of a file, or of a package as resolved by a program in this folder. */
const locate = (name: string): string => {
  const file = resolve(name)
  if (isPath(name) || existsSync(file)) return pathToFileURL(file).href
  try {
    return pathToFileURL(createRequire(join(resolve("."), "index.js")).resolve(name)).href
  } catch {
    return name
  }
}

const isAgent = (value: unknown): value is Agents.Agent =>
  typeof value === "object" && value !== null && "name" in value && typeof value.name === "string"
  && "run" in value && typeof value.run === "function"

const isDefinition = (value: unknown): value is Server.Definition =>
  typeof value === "object" && value !== null && "agents" in value && Array.isArray(value.agents)
  && value.agents.length > 0 && value.agents.every(isAgent) && "layer" in value && Layer.isLayer(value.layer)

const example = "export default Server.define({ agents, layer }), with Server from heddle/server"

/** Loads a module, given as a path or as a package name. */
export const load = (name: string): Effect.Effect<Loaded, Problems.Problem> =>
  Effect.gen(function*() {
    if (isPath(name) && !existsSync(resolve(name))) return yield* Problems.problem(`there is no file ${name}`)
    const loaded: { readonly default?: unknown } = yield* Effect.tryPromise({
      try: () => import(locate(name)),
      catch: (error) => Problems.problem(`${name} cannot be loaded: ${Problems.detailOf(error)}`)
    })
    if (loaded.default === undefined) {
      return yield* Problems.problem(`${name} has no default export; it needs: ${example}`)
    }
    const definition = loaded.default
    if (!isDefinition(definition)) {
      return yield* Problems.problem(`the default export of ${name} is not a server definition; it needs: ${example}`)
    }
    return { definition, agents: new Map(definition.agents.map((agent) => [agent.name, agent])) }
  })

/** Returns the agent with a name, or the only agent. */
export const agentOf = ({ agents }: Loaded, name: string | undefined): Effect.Effect<string, Problems.Problem> =>
  Effect.suspend(() => {
    const [first, ...others] = agents.keys()
    const names = Array.from(agents.keys()).join(", ")
    if (name === undefined) {
      return first !== undefined && others.length === 0
        ? Effect.succeed(first)
        : Problems.problem(`the module has several agents; name one with --agent: ${names}`)
    }
    return agents.has(name)
      ? Effect.succeed(name)
      : Problems.problem(`the module has no agent ${Problems.oneLine(name)}; it has: ${names}`)
  })

/** Returns a definition's layer, with its errors turned into problems. */
export const layerOf = ({ definition }: Loaded) =>
  Layer.catch(definition.layer, (error) =>
    Layer.effect(
      Adapter.Adapter,
      Problems.problem(`the module's layer cannot be built: ${Problems.detailOf(error)}`)
    ))
