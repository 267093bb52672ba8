/** A connection to a Postgres server that can be cut off: what is sent does not arrive, and neither side learns of it. */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as net from "node:net"

export interface Proxy {
  /** The URL of the database through the proxy. */
  readonly url: string
  /** Lets so many further messages to the server through. What follows is dropped. */
  readonly cutAfter: (messages: number) => void
  /** Waits until a message was dropped, for a while: there may be no further one. */
  readonly isCut: Effect.Effect<void>
  /** Ends its connections. */
  readonly hangUp: Effect.Effect<void>
}

/** A proxy of the server of a URL, which is closed with the scope. */
export const make = (url: string): Effect.Effect<Proxy, never, Scope.Scope> =>
  Effect.gen(function*() {
    const { hostname, port } = new URL(url)
    let left = Infinity
    const cut = yield* Deferred.make<void>()
    const sockets = new Set<net.Socket>()
    const server = net.createServer((client) => {
      const target = net.connect(Number(port), hostname)
      client.on("data", (message) => {
        if (left-- > 0) target.write(message)
        else Deferred.doneUnsafe(cut, Effect.void)
      })
      target.on("data", (answer) => void client.write(answer))
      sockets.add(client)
      client.on("error", () => target.destroy()).on("close", () => target.destroy())
      target.on("error", () => client.destroy()).on("close", () => client.destroy())
    })
    yield* Effect.acquireRelease(
      Effect.promise(() => new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))),
      () => Effect.sync(() => server.close())
    )
    const through = new URL(url)
    through.port = String((server.address() as net.AddressInfo).port)
    return {
      url: through.href,
      cutAfter: (messages) => void (left = messages),
      hangUp: Effect.sync(() => sockets.forEach((socket) => socket.destroy())),
      isCut: Effect.ignore(Effect.timeout(Deferred.await(cut), 300))
    }
  })
