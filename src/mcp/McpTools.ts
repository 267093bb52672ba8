/**
 * The tools of MCP servers in runs. A layer starts or reaches a server, holds the connection as long as it lives, and
 * offers the server's tools as Heddle's own: with their approvals, timeouts, progress, stops and journals. It needs
 * the package `@modelcontextprotocol/client`, which is loaded when the first connection opens.
 *
 * **Gotchas**
 *
 * A server is foreign: nothing of what it says about its tools is believed unless it is trusted. Without `trust` a
 * tool counts as one that may destroy something, and each of its calls waits for an approval. Trust and approvals are
 * for a tool as it is: one whose title, description, parameters or hints have changed is asked about again, and a call
 * that was made or approved before that is denied.
 *
 * A stop tells the server that the call is cancelled. That nothing outlives the run ends there: a server may carry on,
 * and what it has started itself is its own.
 *
 * @since 0.1.0
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
 * The tools of all servers as they are now, for the `tools` of a run: what a server changes later holds from the next
 * run on. Their names have what providers allow, other characters as `_`. Where two would have one name, a tool keeps
 * the one that it had, and the other gets an end of its own, with a warning that names both. A server that takes longer
 * than five seconds to list its tools again has those that it had.
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
 * @since 0.1.0
 */
export const tools: Effect.Effect<ReadonlyArray<Offers.McpTool>, never, Servers.McpTools> = Effect.map(
  Servers.offers,
  ({ tools }) => tools
)

/**
 * The tools that are not offered, each with the reason: one that runs as a task only, that cannot be read,
 * or that is listed twice.
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
 * @since 0.1.0
 */
export const leftOut: Effect.Effect<ReadonlyArray<McpDeclared.LeftOut>, never, Servers.McpTools> = Effect.map(
  Servers.offers,
  ({ leftOut }) => leftOut
)

/**
 * Connects to a server, and offers its tools by {@link tools}. Several layers, each for a server, may be merged. Fails
 * with {@link McpUnavailable} where the server cannot be started or reached. A connection that is lost later is opened
 * again by the next call, once for all that wait. It is closed with the layer's scope, which needs at most three
 * seconds where a process does not leave.
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
 * @since 0.1.0
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
