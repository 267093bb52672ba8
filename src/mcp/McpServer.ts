/**
 * Serves Heddle's tools, and whole agents, to Model Context Protocol clients. A call runs as in a Heddle run: with
 * gates, timeouts, permits and encoding. Its questions go to the client's user.
 */
import * as McpProtocol from "effect/ai/McpProtocol"
import * as McpSchema from "effect/ai/McpSchema"
import * as McpEffect from "effect/ai/McpServer"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as HttpRouter from "effect/http/HttpRouter"
import * as Layer from "effect/Layer"
import type * as Redacted from "effect/Redacted"
import type * as Scope from "effect/Scope"
import * as Stdio from "effect/Stdio"
import type * as Adapter from "../Adapter.ts"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as ToolOptions from "../internal/declare/toolOptions.ts"
import * as Values from "../internal/declare/values.ts"
import * as Json from "../internal/json.ts"
import type * as Journal from "../Journal.ts"
import type * as Agents from "../server/Agent.ts"
import * as Access from "../server/internal/access.ts"
import * as Bounded from "../server/internal/bounds.ts"
import * as Hosting from "../server/internal/hosting.ts"
import * as Listeners from "../server/internal/listener.ts"
import * as Paths from "../server/internal/paths.ts"
import * as Refusals from "../server/internal/refusal.ts"
import type * as Routes from "../server/internal/routes.ts"
import type * as Session from "../Session.ts"
import type * as Tool from "../Tool.ts"
import * as AgentCall from "./internal/agentCall.ts"
import * as Caller from "./internal/caller.ts"
import * as CallSpan from "./internal/callSpan.ts"
import * as Gate from "./internal/gate.ts"
import * as Hints from "./internal/hints.ts"
import * as RequestState from "./internal/requestState.ts"
import * as StdioLines from "./internal/stdioLines.ts"
import * as ToolCall from "./internal/toolCall.ts"

/** Tools, with the services their handlers need. */
type Tools<R> = ReadonlyArray<Tool.Tool<string, any, any, any, R>>

/**
 * Session limits for clients speaking a protocol revision before 2026-07-28.
 *
 * @category options
 */
export interface LegacyOptions {
  /** Maximum number of open sessions, all principals together. The server refuses further sessions. 100 by default. */
  readonly maxSessions?: number
  /** Maximum number of open sessions per principal. The server refuses further sessions. 10 by default. */
  readonly perPrincipal?: number
  /** Time after which the server ends an idle session. A number is milliseconds. 30 minutes by default. */
  readonly idle?: Duration.Input
}

/**
 * Options of every MCP server.
 *
 * @category options
 */
export interface Options<R = never> {
  /**
   * Tools, each with a unique name. Manual tools are not offered, since the server does not run their calls. None by
   * default.
   */
  readonly tools?: Tools<R>
  /** Server name shown by clients. `"heddle"` by default. */
  readonly name?: string
  /** Server version shown by clients. `"0"` by default. */
  readonly version?: string
  /** Text for the client's model, explaining the tools' purpose. None by default. */
  readonly instructions?: string
}

/**
 * Options of an MCP endpoint on an agent server.
 *
 * @category options
 */
export interface RoutesOptions<R = never> extends Options<R> {
  /**
   * Session limits for clients speaking a revision before 2026-07-28; `true` for the defaults. Without this option the
   * server refuses such clients.
   */
  readonly legacy?: LegacyOptions | true
  /**
   * Signing key for the state texts clients hold while a call waits for an answer. Processes serving the same agents
   * need the same key. By default each process has its own random key.
   */
  readonly secret?: Redacted.Redacted<string>
}

/**
 * Options of a standalone MCP server over HTTP.
 *
 * @category options
 */
export interface HttpOptions<R = never, RAuthorize = never> extends RoutesOptions<R> {
  /** Authorizes every request, with the tool name as the agent. There is no default. */
  readonly authorize: Access.Authorize<RAuthorize>
  /**
   * Server names, as sent in a request's `Host` header. If `authorize` is `Server.allowLoopback` itself, they default
   * to the local machine's names. Otherwise at least one name is required.
   */
  readonly hosts?: ReadonlyArray<string>
  /** Origins whose pages may use the server. None by default. */
  readonly origins?: ReadonlyArray<string>
  /** Limits for bodies, writes and streams. Each has its own default. */
  readonly bounds?: Bounded.Bounds
}

/**
 * Options of an MCP server over standard input and output.
 *
 * @category options
 */
export interface StdioOptions<R = never, RAgents = never> extends Options<R> {
  /** Agents, each offered as a tool. They need a store and a model. None by default. */
  readonly agents?: ReadonlyArray<Agents.Agent<RAgents>>
}

const common = {
  tools: Values.tools,
  name: Values.text,
  version: Values.text,
  instructions: Values.text
} satisfies NamesOf<Options>

const ofLegacy = {
  maxSessions: Values.countOrNone,
  perPrincipal: Values.countOrNone,
  idle: Values.plainDuration
} satisfies NamesOf<LegacyOptions>

const ofRoutes = {
  ...common,
  legacy: Values.described(
    Values.either(Values.oneOf(true), Values.options(ofLegacy)),
    "true or { maxSessions, perPrincipal, idle }"
  ),
  secret: Values.secret
} satisfies NamesOf<RoutesOptions>

const ofHttp = {
  ...ofRoutes,
  authorize: Values.fn,
  hosts: Values.texts,
  origins: Values.texts,
  bounds: Bounded.knownBounds
} satisfies NamesOf<HttpOptions>

const ofStdio = { ...common, agents: Values.agents } satisfies NamesOf<StdioOptions>

const misuse = (detail: string): never => {
  throw new TypeError(`McpServer: ${detail}`)
}

// Tools.

/** Arguments of an agent. */
const task = {
  type: "object",
  properties: { task: { type: "string", description: "The task, with everything that is needed to do it." } },
  required: ["task"],
  additionalProperties: false
} as const

/** An offered tool, and the effect serving its calls. */
interface Offered {
  readonly tool: McpSchema.Tool
  readonly hints: Json.JsonObject
  readonly serve: (
    args: Json.JsonObject,
    progress: Caller.Progress
  ) => Effect.Effect<McpSchema.CallToolResult | McpSchema.InputRequired, any, any>
}

const offeredTool = (tool: Tool.Any, calls: ToolCall.Calls, guard: Gate.Guard): Offered => ({
  tool: new McpSchema.Tool({
    name: tool.name,
    description: tool.description,
    inputSchema: ToolOptions.parametersOf(tool) as unknown as McpSchema.ToolJson
  }),
  hints: Hints.declared(tool),
  serve: (args, progress) =>
    Effect.scoped(Effect.gen(function*() {
      const { by, may } = yield* Caller.Current
      yield* guard.counters.write(by, yield* Clock.currentTimeMillis)
      yield* guard.counters.stream(by)
      const asked = Effect.delay(may({ agent: tool.name, action: "write" }), guard.bounds.authorization)
      return yield* Effect.raceFirst(ToolCall.serve(calls, tool, args, progress), Effect.forever(asked))
    }))
})

const offeredAgent = (
  { description, name }: { readonly name: string; readonly description: string },
  calls: AgentCall.Calls
): Offered => ({
  tool: new McpSchema.Tool({ name, description, inputSchema: task }),
  hints: Json.none,
  serve: (args, progress) =>
    typeof args["task"] === "string"
      ? AgentCall.serve(calls, name, args, progress)
      : Effect.succeed(ToolCall.textResult("The arguments are wrong: task must be a string.", true))
})

/**
 * Maximum number of tool calls waiting for answers in memory. Beyond it the principal with the most waiting calls loses
 * its oldest call.
 */
const mostWaiting = 1_000

/** Returns everything offered, by name. */
const offer = (
  { tools = [] }: Options<any>,
  guard: Gate.Guard,
  site: Routes.Site | undefined,
  signer: RequestState.Signer
): ReadonlyMap<string, Offered> => {
  const calls = { signer, memory: new RequestState.Memory<ToolCall.Kept>(mostWaiting) }
  const all = [
    ...tools.filter(({ manual }) => !manual).map((tool) => offeredTool(tool, calls, guard)),
    ...(site === undefined ? [] : Array.from(site.agents.values(), (agent) => offeredAgent(agent, { signer, site })))
  ]
  const named = new Map(all.map((each) => [each.tool.name, each]))
  if (named.size === 0) misuse("nothing is offered; give tools or agents")
  return named.size === all.length ? named : misuse("two tools or agents have the same name; give each its own name")
}

const listing = (offered: ReadonlyMap<string, Offered>) =>
  Hints.listed(new Map(Array.from(offered, ([name, { hints }]) => [name, hints])))

/** Hides tools the client may not list, as the agent list does. Calls are authorized separately. */
const listed = McpEffect.visibility(({ method, target }) =>
  method === "tools/list"
    ? Effect.flatMap(Caller.Current, ({ may }) => Effect.isSuccess(may({ agent: target, action: "list" })))
    : Effect.succeed(true)
)

/** Registers everything offered. The client's model reads refusals and store errors as answers. */
const registrations = (offered: ReadonlyMap<string, Offered>) =>
  Layer.effectDiscard(Effect.gen(function*() {
    const server = yield* McpEffect.McpServer
    const services = yield* Effect.context<never>()
    for (const { serve, tool } of offered.values()) {
      yield* server.addTool({
        tool,
        services,
        annotations: Context.empty(),
        handle: (given: unknown) =>
          Effect.gen(function*() {
            const context = yield* McpSchema.McpRequestContext
            const args = Json.parse(JSON.stringify(given ?? {}))
            const call = serve(
              args._tag === "Success" && Json.isObject(args.success) ? args.success : {},
              Caller.progress(server, context)
            )
            return yield* CallSpan.within(tool.name, context, call)
          }).pipe(
            Effect.catchTags({
              Refusal: ({ message }: { readonly message: string }) =>
                Effect.succeed(ToolCall.textResult(message, true)),
              StoreError: (error: Journal.StoreError) =>
                Effect.as(
                  Effect.logWarning("the store failed during a call", Json.nameOf(error)),
                  ToolCall.textResult(Refusals.ofStore(error).message, true)
                )
            })
          ) as Effect.Effect<
            McpSchema.CallToolResult | McpSchema.InputRequired,
            McpSchema.InvalidParams,
            McpSchema.McpRequestContext
          >
      })
    }
  })).pipe(Layer.provide(listed.layer))

const infoOf = ({ instructions, name = "heddle", version = "0" }: Options<any>) => ({
  name,
  version,
  ...(instructions === undefined ? {} : { instructions })
})

// Transports.

const modern = McpProtocol.v2026_07_28
const earlier = [McpProtocol.v2025_11_25, McpProtocol.v2025_06_18] as const

const legacyOf = (legacy: LegacyOptions | true | undefined): Gate.Legacy | undefined => {
  if (legacy === undefined) return undefined
  const { idle = "30 minutes", maxSessions = 100, perPrincipal = 10 } = legacy === true ? {} : legacy
  return { maxSessions, perPrincipal, idle: Duration.fromInputUnsafe(idle) }
}

/** Mounts the endpoint on a router, behind its checks. */
const mount = (
  options: RoutesOptions<any>,
  router: HttpRouter.HttpRouter,
  guard: Gate.Guard,
  site: Routes.Site | undefined
): Effect.Effect<void, never, Scope.Scope> =>
  Effect.gen(function*() {
    const legacy = legacyOf(options.legacy)
    const offered = offer(options, guard, site, yield* RequestState.signer(options.secret))
    const endpoint = yield* Layer.build(
      McpEffect.layerHttp({
        ...infoOf(options),
        path: "/mcp",
        protocols: legacy === undefined ? [modern] : [modern, ...earlier],
        allowSessionTermination: true,
        allowSubscriptions: false,
        registrations: registrations(offered)
      }).pipe(Layer.provideMerge(HttpRouter.layer), Layer.fresh) as Layer.Layer<HttpRouter.HttpRouter>
    )
    const inner = Context.get(endpoint, HttpRouter.HttpRouter)
    const gate = new Gate.Gate(guard, inner, { names: new Set(offered.keys()), listing: listing(offered) }, legacy)
    yield* Paths.add(router, "*", "/mcp", (request) => gate.handle(request))
  })

/**
 * Returns MCP routes for an agent server: `Server.layer({ agents, authorize, mcp: McpServer.routes() })`. The endpoint
 * is `/mcp`. It offers the server's agents as tools, besides the given tools.
 *
 * **Example** (An agent that is a tool of other programs)
 *
 * ```ts import.meta.vitest
 * import * as Layer from "effect/Layer"
 * import { Session } from "heddle"
 * import { McpServer } from "heddle/mcp"
 * import { Agent, Server } from "heddle/server"
 * import { Script } from "heddle/testing"
 *
 * const helper = Agent.make({ name: "helper", description: "Helps", run: () => ({}) })
 * const mcp = McpServer.routes({ name: "helpers", version: "1.0.0" })
 * const app = Server.layer({ agents: [helper], authorize: Server.allowLoopback, mcp }).pipe(
 *   Layer.provide([Script.layer([]), Session.Store.layerMemory])
 * )
 * const { dispose, handler } = Server.toWebHandler(app)
 * const { status } = await handler(new Request("http://localhost/mcp"))
 * await dispose()
 *
 * status // => 405
 * ```
 *
 * @category layers
 */
export const routes = <R = never>(options: RoutesOptions<R> = {}): Routes.Mount<R> => {
  checkNames("McpServer.routes", options, ofRoutes)
  return { mount: (router, site) => mount(options, router, site, site) }
}

/**
 * Serves tools over HTTP, at `/mcp` on the application's router. Use {@link routes} to serve agents.
 *
 * **Example** (A tool without a model)
 *
 * ```ts import.meta.vitest
 * import * as Effect from "effect/Effect"
 * import { Tool } from "heddle"
 * import { McpServer } from "heddle/mcp"
 * import { Server } from "heddle/server"
 *
 * const time = Tool.make("time", { parameters: {}, handler: () => Effect.succeed("noon") })
 * const { dispose, handler } = Server.toWebHandler(
 *   McpServer.layerHttp({ tools: [time], authorize: Server.allowLoopback })
 * )
 * const { status } = await handler(new Request("http://localhost/mcp"))
 * await dispose()
 *
 * status // => 405
 * ```
 *
 * @category layers
 */
export const layerHttp = <R = never, RAuthorize = never>(
  options: HttpOptions<R, RAuthorize>
): Layer.Layer<never, never, HttpRouter.HttpRouter | R | RAuthorize> =>
  Layer.effectDiscard(Effect.gen(function*() {
    checkNames("McpServer.layerHttp", options, ofHttp)
    yield* Listeners.last
    const { authorize, hosts = [], origins = [] } = options
    const isLoopback = (authorize as unknown) === Access.allowLoopback
    if (hosts.length === 0 && !isLoopback) {
      misuse("hosts is empty, so every request would be refused; give the server's names")
    }
    const context = yield* Effect.context<R | RAuthorize>()
    const bounds = Values.filled(Bounded.standard, options.bounds ?? {})
    const guard: Gate.Guard = {
      access: { hosts, origins, isLoopback },
      authorize: (request, question) => Effect.provideContext(authorize(request, question), context),
      bounds,
      counters: new Bounded.Counters(bounds)
    }
    yield* mount(options, yield* HttpRouter.HttpRouter, guard, undefined)
  }))

/** Limits for a server started by its only client. */
const unbounded: Bounded.Bounds = { sessions: Infinity, runs: Infinity, streams: Infinity, writes: Infinity }

const missing = "McpServer.layerStdio needs the package @effect/platform-node, and Node 22.19 or later: npm install "
  + "@effect/platform-node"

/** Console functions writing to standard output. */
const printing = ["log", "info", "debug", "dir", "dirxml", "table", "group", "groupCollapsed"] as const

/** Redirects the process console to standard error until the scope closes. */
const quietConsole = (other: Console): Effect.Effect<void, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const { console } = globalThis
      const own = Object.fromEntries(printing.map((name) => [name, console[name]]))
      for (const name of printing) console[name] = other[name]
      return own
    }),
    (own) => Effect.sync(() => Object.assign(globalThis.console, own))
  )

/**
 * Serves tools and agents over standard input and output, to the client that started this process. Logs and console
 * output go to standard error, since standard output is the wire. A message over 16 MiB, or nested deeper than 512
 * levels, gets an error. When the client closes the input, the fiber building the layer is interrupted: run it with
 * `Layer.launch`.
 *
 * **Example** (A program that a client starts)
 *
 * ```ts import.meta.vitest
 * import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import { Tool } from "heddle"
 * import { McpServer } from "heddle/mcp"
 *
 * const time = Tool.make("time", { parameters: {}, handler: () => Effect.succeed("noon") })
 * const server = McpServer.layerStdio({ tools: [time] })
 *
 * if (import.meta.main) NodeRuntime.runMain(Layer.launch(server))
 * ```
 *
 * @category layers
 */
export const layerStdio: {
  /** Serves tools. */
  <R = never>(options: Options<R>): Layer.Layer<never, never, R>
  /** Serves tools and agents. */
  <R = never, RAgents = never>(
    options: StdioOptions<R, RAgents>
  ): Layer.Layer<never, never, R | RAgents | Session.Store | Adapter.Adapter>
} = (options: StdioOptions<any, any>): Layer.Layer<never, never, any> =>
  Layer.unwrap(Effect.gen(function*() {
    checkNames("McpServer.layerStdio", options, ofStdio)
    const node = yield* Effect.promise(() =>
      Promise.all([import("node:console"), import("node:process"), import("@effect/platform-node/NodeStdio")])
        .catch(() => undefined)
    )
    if (node === undefined) return yield* Effect.die(new Error(missing))
    const [{ Console }, { stderr }, stdio] = node
    yield* quietConsole(new Console(stderr))
    const { agents = [] } = options
    const named = new Map(agents.map((agent) => [agent.name, agent]))
    if (named.size < agents.length) misuse("two agents have the same name; give each its own name")
    const authorize: Access.Authorize = () => Effect.succeed({ principal: Caller.local.by })
    const access = { hosts: [], origins: [], isLoopback: true }
    const bounds = { ...Bounded.standard, ...unbounded }
    const hosting = agents.length === 0 ? undefined : yield* Hosting.make({ authorize, bounds }, named, access)
    const guard = hosting?.site ?? { access, authorize, bounds, counters: new Bounded.Counters(bounds) }
    const offered = offer(options, guard, hosting?.site, yield* RequestState.signer(undefined))
    const guarded = Layer.effect(
      Stdio.Stdio,
      Effect.map(Stdio.Stdio, (own) => StdioLines.guarded(own, listing(offered)))
    ).pipe(Layer.provide(stdio.layer))
    return McpEffect.layerStdio({
      ...infoOf(options),
      protocols: [modern, ...earlier],
      registrations: registrations(offered)
    }).pipe(Layer.provide([guarded, hosting?.worker ?? Layer.empty]))
  })) as unknown as Layer.Layer<never, never, any>
