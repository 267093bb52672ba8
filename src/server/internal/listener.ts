/**
 * Listens on Node, and ends every request together with its socket. The application leaves the network before its
 * requests' resources are released.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"

type Listener = (
  request: { readonly socket: { readonly destroySoon: () => unknown } },
  response: { shouldKeepAlive: boolean; readonly once: (event: "close", listener: () => void) => unknown }
) => void

/** Parts of a Node server needed for leaving the network. */
interface NodeServer {
  readonly on: (event: "request", listener: Listener) => unknown
  readonly prependListener: (event: "request", listener: Listener) => unknown
  readonly off: (event: "request", listener: Listener) => unknown
  readonly removeAllListeners: (event: "upgrade") => unknown
  readonly close: (onClosed: () => void) => unknown
  readonly closeAllConnections: () => void
}

/** Ends all requests: the server stops listening, and the effect returns once no request is left. */
export const End: Context.Reference<Effect.Effect<void>> = Context.Reference("heddle/server/Listener", {
  defaultValue: () => Effect.void
})

/** Ends all requests when the scope closes. Resources acquired earlier are released afterwards. */
export const last: Effect.Effect<void, never, Scope.Scope> = Effect.flatMap(
  End,
  (end) => Effect.addFinalizer(() => end)
)

/** Maximum time for open responses. */
const patience = "1 second"

/** Closes each connection after its response, until none is left or the time is up. */
const letGo = (server: NodeServer): Effect.Effect<void> =>
  Effect.callback<void>((resume) => {
    const answer: Listener = (_, response) => {
      response.shouldKeepAlive = false
    }
    server.prependListener("request", answer)
    server.close(() => resume(Effect.void))
    return Effect.sync(() => server.off("request", answer))
  }).pipe(
    Effect.timeoutOrElse({ duration: patience, orElse: () => Effect.void }),
    Effect.andThen(Effect.sync(() => server.closeAllConnections()))
  )

/**
 * Serves until the scope closes, or until the returned effect has run. As long as nothing listens for upgrades, Node
 * answers a request with an `Upgrade` like any other. With a listener, Node gives the socket away, and cannot notice
 * that the client has left.
 */
export const make = <E, R>(
  server: NodeServer,
  serve: Effect.Effect<void, E, R | Scope.Scope>
): Effect.Effect<Effect.Effect<void>, E, Exclude<R, Scope.Scope> | Scope.Scope> =>
  Effect.gen(function*() {
    const scope = yield* Scope.make()
    yield* Scope.provide(serve, scope)
    server.removeAllListeners("upgrade")
    let isLeaving = false
    server.on("request", ({ socket }, response) => {
      response.once("close", () => {
        if (isLeaving) socket.destroySoon()
      })
    })
    const end = yield* Effect.cached(Effect.andThen(
      Effect.suspend(() => {
        isLeaving = true
        return letGo(server)
      }),
      Scope.close(scope, Exit.void)
    ))
    yield* Effect.addFinalizer(() => end)
    return end
  })
