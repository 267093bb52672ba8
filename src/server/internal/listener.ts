/**
 * Listens on Node, and ends every request with its socket. The application is asked to leave the network before what
 * its requests need is released.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"

type Listener = (
  request: { readonly socket: { readonly destroySoon: () => unknown } },
  response: { shouldKeepAlive: boolean; readonly once: (event: "close", listener: () => void) => unknown }
) => void

/** The parts of a server of Node that leaving the network needs. */
interface NodeServer {
  readonly on: (event: "request", listener: Listener) => unknown
  readonly prependListener: (event: "request", listener: Listener) => unknown
  readonly off: (event: "request", listener: Listener) => unknown
  readonly removeAllListeners: (event: "upgrade") => unknown
  readonly close: (onClosed: () => void) => unknown
  readonly closeAllConnections: () => void
}

/** Ends all requests: it listens no more, and returns once none is under way. */
export const End: Context.Reference<Effect.Effect<void>> = Context.Reference("heddle/server/Listener", {
  defaultValue: () => Effect.void
})

/** Ends all requests when the scope closes. What was acquired before is released after them. */
export const last: Effect.Effect<void, never, Scope.Scope> = Effect.flatMap(
  End,
  (end) => Effect.addFinalizer(() => end)
)

/** Longest time for responses that are under way. */
const patience = "1 second"

/** Lets each connection go once its response has ended, until there is none, or the time is up. */
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
 * Serves until the scope closes, or until the effect that it succeeds with has run. Node answers a request with an
 * `Upgrade` as any other as long as nothing listens for upgrades. Where something does, Node gives the socket away, and
 * does not see that the client has left.
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
