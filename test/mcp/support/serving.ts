/** Servers of MCP on the loopback interface. */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as HttpServer from "effect/http/HttpServer"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { Tool } from "heddle"
import { McpServer } from "heddle/mcp"
import { Server } from "heddle/server"

/** Serves tools over HTTP to clients of both eras until the scope closes, and gives the address. */
export const serve = (
  tools: ReadonlyArray<Tool.Any>,
  options: Partial<McpServer.HttpOptions> = {}
): Effect.Effect<string, never, Scope.Scope> =>
  Effect.gen(function*() {
    const app = McpServer.layerHttp({ tools, authorize: Server.allowLoopback, legacy: true, ...options })
    const context = yield* Layer.build(Server.layerNode({ port: 0 })(app) as Layer.Layer<HttpServer.HttpServer>)
    const { address } = Context.get(context, HttpServer.HttpServer)
    return `http://127.0.0.1:${(address as { readonly port: number }).port}`
  }).pipe(Effect.orDie)

/** A tool whose calls wait for an approval, and what it has paid. */
export const paying = () => {
  const paid: Array<number> = []
  const tool = Tool.make("pay", {
    parameters: { amount: Schema.Finite },
    approval: true,
    handler: ({ amount }) => Effect.sync(() => (paid.push(amount), `paid ${amount}`))
  })
  return { paid, tool }
}
