/**
 * `heddle serve`: a module's agents over HTTP, with Studio, until Ctrl-C.
 */
import * as Console from "effect/Console"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as HttpServer from "effect/http/HttpServer"
import type * as HttpServerError from "effect/http/HttpServerError"
import * as Layer from "effect/Layer"
import * as Journal from "../../Journal.ts"
import * as Access from "../../server/internal/access.ts"
import * as StudioFiles from "../../server/internal/studio.ts"
import * as Server from "../../server/Server.ts"
import * as Definitions from "./definition.ts"
import * as Stores from "./keeping.ts"
import * as Opening from "./opening.ts"
import * as Problems from "./problem.ts"
import type { Stop } from "./stop.ts"

/** Command settings. */
export interface Settings {
  readonly module: string
  readonly port: number
  readonly host: string
  readonly store: string | undefined
  /** Claim duration, as text. If absent, the module's `term` applies. */
  readonly term: string | undefined
  /** `true` to open the browser. */
  readonly isOpened: boolean
}

/** Returns an address in URL form. */
const urlOf = (host: string, port: number): string => `http://${host.includes(":") ? `[${host}]` : host}:${port}`

const local = ["localhost", "127.0.0.1", "[::1]"]

/** Describes why a server cannot listen. */
const unable = ({ host, port }: Settings, { cause }: HttpServerError.ServeError): Problems.Problem => {
  const code = typeof cause === "object" && cause !== null && "code" in cause ? cause.code : undefined
  const where = urlOf(host, port)
  switch (code) {
    case "EADDRINUSE":
      return Problems.problem(`port ${port} is in use; give another port with --port`)
    case "EACCES":
      return Problems.problem(`this user may not use port ${port}; give another port with --port`)
    case "EADDRNOTAVAIL":
    case "ENOTFOUND":
      return Problems.problem(`--host ${host} is not an address of this machine`)
    default:
      return Problems.problem(`the server cannot listen at ${where}: ${Problems.detailOf(cause)}`)
  }
}

const unbuilt = Problems.problem("Studio is not built; build it with: npm run build")

/** Serves until a stop is requested. Succeeds with the exit code. */
export const run = (settings: Settings, stop: Stop) =>
  Effect.gen(function*() {
    const { host, port, store, term } = settings
    const loaded = yield* Definitions.load(settings.module)
    const { layer: _, ...definition } = loaded.definition
    const { authorize = Server.allowLoopback } = definition
    const isLoopback = authorize === Server.allowLoopback
    if (isLoopback && !Access.isLoopback(host)) {
      return yield* Problems.problem(
        `other machines may reach --host ${host}, and the module has no authorize: `
          + "give Server.define an authorize, or leave out --host"
      )
    }
    const hosts = definition.hosts ?? [...local, host]
    const app = Server.layer({
      studio: Server.studio(),
      ...definition,
      ...(term === undefined ? {} : { term: term as Duration.Input }),
      hosts,
      authorize
    })
    const server = Server.layerNode({ port, host })(app).pipe(
      Layer.provide([Definitions.layerOf(loaded), Stores.layer(store)]),
      Layer.catchTag("ServeError", (error) => Layer.effectDiscard(unable(settings, error)))
    )
    const built = Layer.build(server).pipe(
      Effect.catchDefect((defect) => defect instanceof StudioFiles.NotBuilt ? unbuilt : Effect.die(defect))
    )
    // The first Ctrl-C closes the scope: the server accepts nothing new, and running calls have time to end.
    return yield* Effect.gen(function*() {
      yield* Effect.acquireRelease(Effect.sync(() => stop.enterSoft()), (leave) => Effect.sync(leave))
      const context = yield* built
      const { address } = yield* Effect.provideContext(HttpServer.HttpServer, context as never) as Effect.Effect<
        HttpServer.HttpServer["Service"]
      >
      const bound = address._tag === "UnixPathAddress" ? port : address.port
      yield* Console.log(`heddle: ${Array.from(loaded.agents.keys()).join(", ")} at ${urlOf(host, bound)}`)
      if (settings.isOpened) {
        // A browser cannot reach the wildcard address for all of a machine's addresses.
        const reached = /^(0\.0\.0\.0|::)$/.test(host) ? "localhost" : host
        yield* Effect.catch(
          Opening.open(urlOf(reached, bound)),
          (problem) => Console.error(`heddle: ${problem.message}`)
        )
      }
      if (store === undefined) {
        yield* Console.log("heddle: sessions are in memory and end with this process; --store FILE keeps them")
      }
      yield* stop.requested
      yield* Console.log("heddle: stopping; running calls may finish, Ctrl-C again interrupts them")
    }).pipe(
      Effect.scoped,
      Effect.provideService(Journal.Hurry, stop.interrupted),
      Effect.as(0)
    )
  })
