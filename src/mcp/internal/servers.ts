/** The servers that layers have connected, in one registry for all layers that are built together. */
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Json from "../../internal/json.ts"
import type * as Backend from "./backend.ts"
import * as Connections from "./connection.ts"
import * as Declared from "./declared.ts"
import * as Offers from "./tools.ts"

/** A server that a layer has connected. */
interface Server {
  readonly name: string
  readonly settled: Effect.Effect<void>
  readonly offered: () => Offers.Offered
}

/**
 * The servers that the layers have connected.
 *
 * @category services
 * @since 0.1.0
 */
export class McpTools extends Context.Service<McpTools, {
  /** The servers, which `McpTools.tools` reads. */
  readonly servers: Set<unknown>
}>()("heddle/mcp/McpTools") {}

const registry = Layer.sync(McpTools, () => ({ servers: new Set() }))

/** The servers, once the lists that have changed are known. */
export const serversOf = Effect.flatMap(McpTools, ({ servers }) => {
  const all = Array.from(servers as Set<Server>).sort((left, right) => left.name < right.name ? -1 : 1)
  return Effect.as(Effect.forEach(all, ({ settled }) => settled, { discard: true }), all)
})

const declined = { action: "decline" } as const

/** Connects by a client of the protocol. */
export const layerOf = (
  name: string,
  connect: Backend.Connect,
  { approval = "destructive", onElicit, onSample, prefix = "", propagate = false, trust }: Declared.Options
): Layer.Layer<McpTools, Declared.McpUnavailable> =>
  Layer.effectDiscard(Effect.gen(function*() {
    const { servers } = yield* McpTools
    const scope = yield* Effect.scope
    // A server learns nothing of what broke in the program.
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
        Effect.suspend(() => onSample({ server: name, ...sampling } as Declared.Sampling))
      ))
    const services = yield* Effect.context<never>()
    const connection = new Connections.Connection(name, connect, scope, services, { elicit, sample })
    yield* Effect.mapError(
      connection.open,
      ({ message: detail }) => new Declared.McpUnavailable({ server: name, detail })
    )
    const one: Server = {
      name,
      settled: connection.settled,
      offered: () => Offers.offered(connection, { prefix, trust, approval, elicit, sample, propagate })
    }
    servers.add(one)
    yield* Effect.addFinalizer(() => Effect.sync(() => servers.delete(one)))
  })).pipe(Layer.provideMerge(registry))
