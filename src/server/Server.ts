/**
 * An HTTP server for agents: chats for the AI SDK and AG-UI, and plain events for any other client. Runs outlive their
 * requests, a reader continues from its last event, a stop is a command with a report, and after a crash the next
 * process resumes the open runs.
 */
import * as Effect from "effect/Effect"
import * as HttpMiddleware from "effect/http/HttpMiddleware"
import * as HttpRouter from "effect/http/HttpRouter"
import * as HttpServer from "effect/http/HttpServer"
import type * as HttpServerError from "effect/http/HttpServerError"
import * as Layer from "effect/Layer"
import type * as Adapter from "../Adapter.ts"
import type * as Worker from "../durable/Worker.ts"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import type * as Session from "../Session.ts"
import type * as Agents from "./Agent.ts"
import * as Access from "./internal/access.ts"
import { knownBounds } from "./internal/bounds.ts"
import * as Hosting from "./internal/hosting.ts"
import * as Listeners from "./internal/listener.ts"
import * as Routes from "./internal/routes.ts"
import * as Spans from "./internal/spans.ts"
import * as StudioFiles from "./internal/studio.ts"

export { allowLoopback } from "./internal/access.ts"
export type { Authorize, Grant, Question } from "./internal/access.ts"
export type { Bounds } from "./internal/bounds.ts"
export type { Mount } from "./internal/routes.ts"

/**
 * Options of a server.
 *
 * @category options
 */
export interface Options<R = never, RAuthorize = never, RMcp = never> extends Hosting.Settings<RAuthorize> {
  /** Agents, with unique names. At least one. */
  readonly agents: ReadonlyArray<Agents.Agent<R>>
  /**
   * Names of this server, as in a request's `Host`: with a port, or without a port to allow any port. Requests to
   * another name are refused. Defaults to this machine's names under {@link allowLoopback} itself; otherwise at least
   * one is required.
   */
  readonly hosts?: ReadonlyArray<string>
  /** Origins of other pages permitted to use the server, such as `"https://app.example.com"`. None by default. */
  readonly origins?: ReadonlyArray<string>
  /** MCP routes, offering the agents as tools: `McpServer.routes()` of `heddle/mcp`. None by default. */
  readonly mcp?: Routes.Mount<RMcp>
  /** Studio, the browser application: {@link studio}. None by default; `heddle serve` mounts Studio at `/`. */
  readonly studio?: Routes.Mount
}

const knownOptions = {
  agents: Values.agents,
  authorize: Values.fn,
  hosts: Values.listOf(Values.name, "names"),
  origins: Values.listOf(Values.name, "origins"),
  mode: Values.oneOf("detached", "attached"),
  whileRunning: Values.oneOf("refuse", "follow", "steer"),
  bounds: knownBounds,
  drain: Values.finiteDurationOrNone,
  publish: Values.either(Values.oneOf("all", "names", "none"), Values.fn),
  publishReasoning: Values.flag,
  publishCost: Values.flag,
  allowUrl: Values.fn,
  protocol: Values.oneOf(5, 6, 7),
  joinMillis: Values.amount,
  raw: Values.flag,
  term: Values.finiteDuration,
  poll: Values.finiteDuration,
  mcp: Values.record,
  studio: Values.record
} satisfies NamesOf<Options>

const misuse = (detail: string): never => {
  throw new TypeError(`Server.layer: ${detail}`)
}

const byName = <R>(agents: ReadonlyArray<Agents.Agent<R>> = []): ReadonlyMap<string, Agents.Agent<R>> => {
  if (agents.length === 0) misuse("agents is empty; give at least one Agent.make")
  const named = new Map(agents.map((agent) => [agent.name, agent]))
  return named.size === agents.length ? named : misuse("two agents have the same name; give each agent its own name")
}

const isLocal = (authorize: unknown): boolean => authorize === Access.allowLoopback

/**
 * Adds agent routes to the application's router, and runs their sessions in this process: sessions begun by its
 * clients, and sessions abandoned by another process. It needs the session store, the model, and the agents' services.
 *
 * **Details**
 *
 * - `POST /agents/NAME/sessions` takes posts from the AI SDK's `DefaultChatTransport`, with
 *   `GET /agents/NAME/sessions/ID/stream` as its resume; `POST /agui/NAME` takes posts from AG-UI's `HttpAgent`.
 * - `POST …/sessions/ID/messages` takes `{ content }` or `{ answers }`, `GET …/events` returns the public events from
 *   an offset on, `POST …/stop` stops the run and reports on its calls, `POST …/answers` answers, approves and denies,
 *   `POST …/resume` retries a failed run.
 * - `GET …/sessions/ID/runs` returns a session's runs by pages, each with its public events.
 * - `GET /agents` lists the agents, `GET /agents/NAME` returns an agent's model and tools, `GET …/sessions` lists its
 *   sessions, `GET …/sessions/ID` reads, `PATCH` sets a title or a pin, and `DELETE` removes. `GET /health` and
 *   `/ready` are for the process supervisor.
 * - An application's own router needs `HttpRouter.RouterConfig` with a `maxParamLength` of 128 or more: session ids
 *   have up to 128 characters. {@link layerNode} and {@link toWebHandler} set it.
 *
 * **Example** (A request to a server without a port)
 *
 * ```ts import.meta.vitest
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import { Session } from "heddle"
 * import { Agent, Server } from "heddle/server"
 * import { Script } from "heddle/testing"
 *
 * const run = () => Effect.succeed({ system: "Be brief." })
 * const helper = Agent.make({ name: "helper", description: "Helps", run })
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const app = Server.layer({ agents: [helper], authorize: Server.allowLoopback }).pipe(
 *   Layer.provide([model, Session.Store.layerMemory])
 * )
 * const { dispose, handler } = Server.toWebHandler(app)
 * const response = await handler(
 *   new Request("http://localhost/agents/helper/sessions/s1/messages", {
 *     method: "POST",
 *     headers: { "content-type": "application/json" },
 *     body: JSON.stringify({ content: "Hi" })
 *   })
 * )
 * const text = await response.text()
 * await dispose()
 *
 * response.status // => 200
 * text.includes("Hello") // => true
 * ```
 *
 * @category layers
 */
export const layer = <R = never, RAuthorize = never, RMcp = never>(
  options: Options<R, RAuthorize, RMcp>
): Layer.Layer<
  Worker.Worker,
  never,
  HttpRouter.HttpRouter | Session.Store | Adapter.Adapter | R | RAuthorize | RMcp
> =>
  Layer.unwrap(Effect.gen(function*() {
    checkNames("Server.layer", options, knownOptions)
    const agents = byName(options.agents)
    const isLoopback = isLocal(options.authorize)
    const { hosts = [] } = options
    if (hosts.length === 0 && !isLoopback) {
      misuse("hosts is empty, so every request would be refused; give the server's names")
    }
    const { origins = [] } = options
    // Requests end before the store they need, and after the worker: they are answered while the worker leaves.
    yield* Listeners.last
    const { close, site, worker } = yield* Hosting.make(options, agents, { hosts, origins, isLoopback })
    // The routes are released first: then no request waits for a run ending elsewhere.
    const routes = Layer.effectDiscard(Effect.gen(function*() {
      yield* Effect.addFinalizer(() => close)
      const router = yield* HttpRouter.HttpRouter
      yield* Routes.add(router, site)
      if (options.mcp !== undefined) yield* options.mcp.mount(router, site)
      if (options.studio !== undefined) yield* options.studio.mount(router, site)
    }))
    return Layer.provideMerge(routes, worker)
  })) as unknown as Layer.Layer<
    Worker.Worker,
    never,
    HttpRouter.HttpRouter | Session.Store | Adapter.Adapter | R | RAuthorize | RMcp
  >

/**
 * Options of Studio.
 *
 * @category options
 */
export interface StudioOptions {
  /** Page path, such as `"/studio"`. `"/"` by default. */
  readonly path?: string
}

const knownStudio = { path: Values.name } satisfies NamesOf<StudioOptions>

/** Reads a file from the Studio build. */
const readStudio: StudioFiles.ReadFile = (name) =>
  Effect.tryPromise(() =>
    import("node:fs/promises").then((fs) => fs.readFile(new URL(`../../dist/studio/${name}`, import.meta.url)))
  )

/**
 * Returns the Studio routes for {@link layer}. Studio is the browser application: the chat, and a picture of every run.
 * Its static files contain no data: any client naming the server by one of its `hosts` may read the files. All data
 * comes from the agent routes, under `authorize` and `publish`. Studio asks for a bearer token if the server answers
 * 401. The routes need Node's file system, and die if the package was not built.
 *
 * **Example** (The page beside the agents)
 *
 * ```ts import.meta.vitest
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import { Session } from "heddle"
 * import { Agent, Server } from "heddle/server"
 * import { Script } from "heddle/testing"
 *
 * const helper = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })
 * const app = Server.layer({
 *   agents: [helper],
 *   authorize: Server.allowLoopback,
 *   studio: Server.studio({ path: "/studio" })
 * }).pipe(Layer.provide([Script.layer([]), Session.Store.layerMemory]))
 * const { dispose, handler } = Server.toWebHandler(app)
 * const response = await handler(new Request("http://localhost/studio/"))
 * await dispose()
 *
 * response.headers.get("content-type") // => "text/html; charset=utf-8"
 * ```
 *
 * @category constructors
 */
export const studio = (options: StudioOptions = {}): Routes.Mount => {
  checkNames("Server.studio", options, knownStudio)
  const { path = "/" } = options
  if (!/^(\/|(\/[\w-]+)+)$/.test(path)) {
    throw new TypeError(`Server.studio: path is ${JSON.stringify(path)}; give "/", or names after slashes: "/studio"`)
  }
  return StudioFiles.mount(readStudio, path === "/" ? "" : path as `/${string}`)
}

/** Session ids exceed a router's default length limit for path parameters. */
const routerConfig = { maxParamLength: 512 }

/** Switches off the spans made by Effect's server: {@link Spans.byPath} makes them instead. */
const untraced = Layer.succeed(HttpMiddleware.TracerDisabledWhen, () => true)

/** Adds a missing `Host` to a request, taken from its address. */
const addressed = (request: Request): Request => {
  if (request.headers.has("host")) return request
  const headers = new Headers(request.headers)
  headers.set("host", new URL(request.url).host)
  return new Request(request, { headers })
}

/**
 * Returns a function from requests to responses, for other frameworks' servers. `dispose` releases the application, and
 * waits for running calls. The application is built at once: call this when the server starts, not when a build merely
 * loads the module.
 *
 * A `Request` does not contain its client's address, so `Server.allowLoopback` cannot check the address: the `Host` and
 * the framework's listening port decide. It refuses requests passed on by Next.js, because they have forwarded headers.
 *
 * **Example** (The health of a server without a port)
 *
 * ```ts import.meta.vitest
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import { Session } from "heddle"
 * import { Agent, Server } from "heddle/server"
 * import { Script } from "heddle/testing"
 *
 * const helper = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })
 * const app = Server.layer({ agents: [helper], authorize: Server.allowLoopback }).pipe(
 *   Layer.provide([Script.layer([]), Session.Store.layerMemory])
 * )
 * const { dispose, handler } = Server.toWebHandler(app)
 * const { status } = await handler(new Request("http://localhost/health"))
 * await dispose()
 *
 * status // => 200
 * ```
 *
 * @category running
 */
export const toWebHandler = <A, E>(app: Layer.Layer<A, E, HttpRouter.HttpRouter>): {
  readonly handler: (request: Request) => Promise<Response>
  readonly dispose: () => Promise<void>
} => {
  const { dispose, handler } = HttpRouter.toWebHandler(Layer.merge(app, untraced), {
    disableLogger: true,
    routerConfig,
    middleware: Spans.byPath(() => false)
  })
  const handle = handler as (request: Request) => Promise<Response>
  return { dispose, handler: (request) => handle(addressed(request)) }
}

/**
 * Options of a server on Node.
 *
 * @category options
 */
export interface NodeOptions {
  /** Port. 0 for any free port. */
  readonly port: number
  /** Address to listen on. `"127.0.0.1"` by default: only this machine. */
  readonly host?: string
}

const knownNode = { port: Values.port, host: Values.name } satisfies NamesOf<NodeOptions>

const missing = "Server.layerNode needs the package @effect/platform-node, and Node 22.19 or later: npm install "
  + "@effect/platform-node"

/**
 * Serves an application over HTTP on Node. On release, the sessions end first, while requests are still answered; then
 * the server stops listening, and open responses get a second to end; then the store and the application's other
 * resources are released. A request to upgrade the connection is answered like any other.
 *
 * **Example** (An application on a free port)
 *
 * ```ts import.meta.vitest
 * import * as Effect from "effect/Effect"
 * import * as HttpServer from "effect/http/HttpServer"
 * import * as Layer from "effect/Layer"
 * import { Session } from "heddle"
 * import { Agent, Server } from "heddle/server"
 * import { Script } from "heddle/testing"
 *
 * const helper = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })
 * const app = Server.layer({ agents: [helper], authorize: Server.allowLoopback }).pipe(
 *   Layer.provide([Script.layer([]), Session.Store.layerMemory]),
 *   Server.layerNode({ port: 0 })
 * )
 * const program = HttpServer.addressFormattedWith((url) => Effect.promise(() => fetch(`${url}/ready`)))
 *
 * const response = await Effect.runPromise(Effect.provide(program, app))
 *
 * response.status // => 200
 * ```
 *
 * @category layers
 */
export const layerNode = (options: NodeOptions) =>
<A, E, R>(
  app: Layer.Layer<A, E, R>
): Layer.Layer<A | HttpServer.HttpServer, E | HttpServerError.ServeError, Exclude<R, HttpRouter.HttpRouter>> =>
  Layer.unwrap(Effect.gen(function*() {
    checkNames("Server.layerNode", options, knownNode)
    const { host = "127.0.0.1", port } = options
    const node = yield* Effect.promise(() =>
      Promise.all([import("node:http"), import("@effect/platform-node/NodeHttpServer")]).catch(() => undefined)
    )
    if (node === undefined) return yield* Effect.die(new Error(missing))
    const [http, { layer }] = node
    const server = http.createServer()
    const listening = layer(() => server, { port, host, disablePreemptiveShutdown: true })
    const router = Layer.provide(HttpRouter.layer, Layer.succeed(HttpRouter.RouterConfig, routerConfig))
    const byPath = Spans.byPath(yield* HttpMiddleware.TracerDisabledWhen)
    const listener = Layer.effect(
      Listeners.End,
      Effect.flatMap(
        HttpRouter.HttpRouter,
        (router) => Listeners.make(server, HttpServer.serveEffect(Effect.suspend(() => router.asHttpEffect()), byPath))
      )
    ).pipe(Layer.provide(untraced))
    return app.pipe(
      Layer.provide(Layer.provideMerge(listener, router)),
      Layer.provideMerge(listening)
    )
  })) as unknown as Layer.Layer<
    A | HttpServer.HttpServer,
    E | HttpServerError.ServeError,
    Exclude<R, HttpRouter.HttpRouter>
  >

/**
 * A server for the command `heddle`: the agents, and a layer with everything they need besides the store.
 *
 * @category models
 */
export interface Definition<R = never> extends Omit<Options<R, never, R>, "authorize"> {
  /** Model, and the services needed by the agents. */
  readonly layer: Layer.Layer<Adapter.Adapter | R, unknown>
  /** Decides about every request. {@link allowLoopback} by default, serving only this machine. */
  readonly authorize?: Access.Authorize
}

const knownDefinition = { ...knownOptions, layer: Values.layer } satisfies NamesOf<Definition>

/**
 * Defines a server for the command `heddle`: `export default Server.define({ agents, layer })`.
 *
 * **Example** (A module that `heddle serve` takes)
 *
 * ```ts import.meta.vitest
 * import * as Effect from "effect/Effect"
 * import { Agent, Server } from "heddle/server"
 * import { Script } from "heddle/testing"
 *
 * const helper = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })
 * const definition = Server.define({ agents: [helper], layer: Script.layer([]) })
 *
 * definition.agents.map(({ name }) => name) // => ["helper"]
 * ```
 *
 * @category constructors
 */
export const define = <R = never>(definition: Definition<R>): Definition<R> => {
  checkNames("Server.define", definition, knownDefinition)
  byName(definition.agents)
  return definition
}
