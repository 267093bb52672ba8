/** The servers that layers have connected, in one registry for all layers that are built together. */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
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

/** Connects by a client of the protocol. */
export const layerOf = (
  name: string,
  connect: Backend.Connect,
  { approval = "destructive", onElicit, prefix = "", propagate = false, trust }: Declared.Options
): Layer.Layer<McpTools, Declared.McpUnavailable> =>
  Layer.effectDiscard(Effect.gen(function*() {
    const { servers } = yield* McpTools
    const scope = yield* Effect.scope
    const elicit: Declared.Elicit | undefined = onElicit === undefined ?
      undefined :
      (server, { message, schema }) =>
        schema === undefined
          ? Effect.succeed({ action: "decline" })
          : onElicit({ server, message, schema })
    const services = yield* Effect.context<never>()
    const asked = elicit && ((elicitation: Backend.Elicitation) => elicit(name, elicitation))
    const connection = new Connections.Connection(name, connect, scope, services, asked)
    yield* Effect.mapError(
      connection.open,
      ({ message: detail }) => new Declared.McpUnavailable({ server: name, detail })
    )
    const one: Server = {
      name,
      settled: connection.settled,
      offered: () => Offers.offered(connection, { prefix, trust, approval, elicit, propagate })
    }
    servers.add(one)
    yield* Effect.addFinalizer(() => Effect.sync(() => servers.delete(one)))
  })).pipe(Layer.provideMerge(registry))
