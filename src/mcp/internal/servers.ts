/** Servers connected by layers, in one registry for all layers built together. */
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Json from "../../internal/json.ts"
import type * as Backend from "./backend.ts"
import * as Connections from "./connection.ts"
import * as McpDeclared from "./mcpDeclared.ts"
import * as Offers from "./tools.ts"

/** A server connected by a layer. */
interface Server {
  readonly name: string
  readonly settled: Effect.Effect<void>
  readonly offered: () => Offers.Offered
}

/**
 * Servers connected by the layers.
 *
 * @category services
 */
export class McpTools extends Context.Service<McpTools, {
  /** Servers, read by `McpTools.tools`. */
  readonly servers: Set<unknown>
  /** Named tools: a tool keeps its name while its server lists it. */
  readonly named: Map<string, unknown>
}>()("heddle/mcp/McpTools") {}

const registry = Layer.sync(McpTools, () => ({ servers: new Set(), named: new Map() }))

/** Time a run waits for servers listing their tools again. After it, their previous tools apply. */
const listingMillis = 5_000

/** A server tool during naming. */
interface Candidate {
  readonly server: Server
  readonly offer: Offers.Offer
}

const isSame = (one: Candidate, other: Candidate | undefined): boolean =>
  one.server === other?.server && one.offer.own === other.offer.own

const isBefore = (one: Candidate, other: Candidate): number =>
  Number(other.offer.isExact) - Number(one.offer.isExact) || (one.offer.own < other.offer.own ? -1 : 1)

const wordsOf = ({ offer, server }: Candidate): string => `"${offer.own}" of "${server.name}"`

/**
 * Gives each tool a unique name. A name belongs to its previous tool, else to the tool whose own name it is, so that no
 * server takes over another's tool name. The others get a longer name, with a warning.
 */
const nameAll = (candidates: ReadonlyArray<Candidate>, named: Map<string, Candidate>) => {
  const before = new Map(named)
  const names = new Map<Candidate, string>()
  const warnings: Array<string> = []
  named.clear()
  const name = (candidate: Candidate, name: string | undefined) => {
    if (name === undefined) return
    named.set(name, candidate)
    names.set(candidate, name)
  }
  for (const candidate of candidates) {
    name(candidate, candidate.offer.names.find((name) => isSame(candidate, before.get(name))))
  }
  for (const candidate of candidates.filter((candidate) => !names.has(candidate)).sort(isBefore)) {
    const [wanted = ""] = candidate.offer.names
    const holder = named.get(wanted)
    const free = candidate.offer.names.find((name) => !named.has(name))
    name(candidate, free)
    if (holder === undefined || free === undefined) continue
    warnings.push(
      `the tool ${wordsOf(candidate)} is offered as "${free}", since ${wordsOf(holder)} is named "${wanted}"; give one `
        + "server a prefix"
    )
  }
  return { names, warnings }
}

/** Returns the tools of all servers under unique names, and the tools not offered. */
export const offers = Effect.gen(function*() {
  const { named, servers } = yield* McpTools
  const all = Array.from(servers as Set<Server>).sort(({ name: left }, { name: right }) =>
    left < right ? -1 : Number(left > right)
  )
  const settled = ({ settled }: Server) => Effect.timeoutOption(settled, listingMillis)
  yield* Effect.forEach(all, settled, { concurrency: "unbounded", discard: true })
  const offered = all.map((server) => ({ server, ...server.offered() }))
  const candidates = offered.flatMap(({ server, tools }) => tools.map((offer) => ({ server, offer })))
  const { names, warnings } = nameAll(candidates, named as Map<string, Candidate>)
  yield* Effect.forEach(warnings, (warning) => Effect.logWarning(warning), { discard: true })
  return {
    tools: candidates.flatMap((candidate) => {
      const { tool } = candidate.offer
      const name = names.get(candidate)
      return name === undefined ? [] : [name === tool.name ? tool : { ...tool, name }]
    }),
    leftOut: [
      ...offered.flatMap(({ leftOut, server }) => leftOut.map((left) => ({ server: server.name, ...left }))),
      ...candidates.filter((candidate) => !names.has(candidate)).map(({ offer, server }) => ({
        server: server.name,
        name: offer.own,
        reason: "other tools already have every name it could get"
      }))
    ]
  }
})

const declined = { action: "decline" } as const

/** Connects through a protocol client. */
export const layerOf = (
  name: string,
  connect: Backend.Connect,
  { approval = "destructive", onElicit, onSample, prefix = "", propagate = false, trust }: McpDeclared.Options
): Layer.Layer<McpTools, McpDeclared.McpUnavailable> =>
  Layer.effectDiscard(Effect.gen(function*() {
    const { servers } = yield* McpTools
    const scope = yield* Effect.scope
    // A server learns nothing about errors in the program.
    const answering = <A>(option: string, answer: Effect.Effect<A, unknown>): Effect.Effect<A | undefined> =>
      Effect.catchCause(answer, (cause) =>
        Cause.hasInterruptsOnly(cause)
          ? Effect.interrupt
          : Effect.logWarning(`${option} failed for the MCP server "${name}"`, Json.nameOf(Cause.squash(cause))).pipe(
            Effect.andThen(Effect.logDebug(cause)),
            Effect.as(undefined)
          ))
    const elicit = onElicit && (({ message, schema }: Backend.Elicitation): Effect.Effect<Backend.Elicited> =>
      schema === undefined
        ? Effect.succeed(declined)
        : Effect.map(
          answering("onElicit", Effect.suspend(() => onElicit({ server: name, message, schema }))),
          (elicited) => elicited ?? declined
        ))
    const sample = onSample && ((sampling: Backend.Sampling) =>
      answering(
        "onSample",
        Effect.suspend(() => onSample({ server: name, ...sampling } as McpDeclared.Sampling))
      ))
    const services = yield* Effect.context<never>()
    const connection = new Connections.Connection(name, connect, scope, services, { elicit, sample })
    const unavailable = (detail: string) => new McpDeclared.McpUnavailable({ server: name, detail })
    yield* Effect.mapError(connection.open, ({ message }) => unavailable(message))
    const unlisted = Offers.unlisted(trust, connection.current)
    if (unlisted !== undefined) return yield* unavailable(unlisted)
    const one: Server = {
      name,
      settled: connection.settled,
      offered: () => Offers.offered(connection, { prefix, trust, approval, elicit, sample, propagate })
    }
    servers.add(one)
    yield* Effect.addFinalizer(() => Effect.sync(() => servers.delete(one)))
  })).pipe(Layer.provideMerge(registry))
