/**
 * Uses tools from MCP servers in runs. A layer starts or reaches a server, holds the connection for its own lifetime,
 * and offers the server's tools as Heddle tools: with approvals, timeouts, progress, stops and journals. It needs the
 * package `@modelcontextprotocol/client`, loaded when the first connection opens.
 *
 * **Gotchas**
 *
 * A server is foreign: Heddle believes none of its claims about its tools unless you trust them. Without `trust` a tool
 * counts as destructive, and each call waits for approval. Trust and approvals apply to an exact tool definition. After
 * a change to its title, description, parameters or hints, Heddle asks again, and denies calls made or approved before
 * the change.
 *
 * A stop sends the server a cancellation. Heddle's guarantee that nothing outlives a run ends there: a server may carry
 * on, and owns whatever it started itself.
 */
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as McpDeclared from "./internal/mcpDeclared.ts"
import * as Sdk from "./internal/sdk.ts"
import * as Servers from "./internal/servers.ts"
import type * as Offers from "./internal/tools.ts"

export { McpToolFailed, McpUnavailable } from "./internal/mcpDeclared.ts"

export type {
  Elicitation,
  Elicited,
  Facts,
  Hints,
  HttpServer,
  LeftOut,
  Options,
  Root,
  Sampled,
  Sampling,
  StdioServer
} from "./internal/mcpDeclared.ts"

export { McpTools } from "./internal/servers.ts"

export type { McpTool } from "./internal/tools.ts"

/**
 * Returns the tools of all servers for the `tools` of a run; later server changes apply from the next run on. Tool
 * names contain only characters providers allow, others become `_`. In a name conflict, a tool keeps its earlier name,
 * the other gets a suffix, and a warning names both. If a server takes longer than five seconds to list its tools
 * again, its previous tools apply.
 *
 * **Example** (A run with the tools of a server)
 *
 * ```ts import.meta.vitest
 * import { Chat } from "heddle"
 * import { McpTools } from "heddle/mcp"
 * import * as Effect from "effect/Effect"
 *
 * const server = McpTools.layer({ url: "https://mcp.example.com/mcp" }, { prefix: "news_" })
 * const program = Effect.flatMap(McpTools.tools, (tools) => Chat.run("What is new?", { tools }))
 *
 * Effect.isEffect(Effect.provide(program, server)) // => true
 * ```
 *
 * @category getters
 */
export const tools: Effect.Effect<ReadonlyArray<Offers.McpTool>, never, Servers.McpTools> = Effect.map(
  Servers.offers,
  ({ tools }) => tools
)

/**
 * Returns the tools not offered, each with the reason: for example, it runs as a task only, cannot be read, is listed
 * twice, or has no free name.
 *
 * **Example** (What a server has and a run does not)
 *
 * ```ts import.meta.vitest
 * import { McpTools } from "heddle/mcp"
 * import * as Effect from "effect/Effect"
 *
 * const server = McpTools.layer({ url: "https://mcp.example.com/mcp" })
 * const program = Effect.flatMap(McpTools.leftOut, Effect.forEach(({ name, reason }) => Effect.log(name, reason)))
 *
 * Effect.isEffect(Effect.provide(program, server)) // => true
 * ```
 *
 * @category getters
 */
export const leftOut: Effect.Effect<ReadonlyArray<McpDeclared.LeftOut>, never, Servers.McpTools> = Effect.map(
  Servers.offers,
  ({ leftOut }) => leftOut
)

/**
 * Connects to a server and offers its tools through {@link tools}. You may merge several layers, one per server. The
 * layer fails with {@link McpUnavailable} if the server cannot be started or reached, or does not list a trusted tool.
 * The next call reopens a lost connection, once for all waiting calls. Closing the layer's scope closes the connection,
 * within three seconds if a process refuses to exit.
 *
 * **Example** (A server that is a process, and believed about one tool)
 *
 * ```ts import.meta.vitest
 * import { McpTools } from "heddle/mcp"
 * import * as Layer from "effect/Layer"
 *
 * const server = McpTools.layer({ name: "sums", command: "npx", args: ["@modelcontextprotocol/server-everything"] }, {
 *   trust: { "get-sum": { readOnly: true } }
 * })
 *
 * Layer.isLayer(server) // => true
 * ```
 *
 * @category layers
 */
export const layer = (
  server: McpDeclared.StdioServer | McpDeclared.HttpServer,
  options: McpDeclared.Options = {}
): Layer.Layer<Servers.McpTools, McpDeclared.McpUnavailable> => {
  McpDeclared.check("McpTools.layer", server, options)
  const { maxMessageBytes = 16 * 1024 * 1024, onSample, roots } = options
  const name = server.name ?? ("url" in server ? new URL(server.url).host : "")
  return Servers.layerOf(
    name,
    Sdk.connect(server, { maxMessageBytes, roots, isSampling: onSample !== undefined }),
    options
  )
}
