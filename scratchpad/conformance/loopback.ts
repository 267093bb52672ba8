/**
 * An HTTP server on the loopback interface, for as long as a scope is open.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as http from "node:http"
import type { AddressInfo } from "node:net"

/** Listens on a port that is free, and gives the address. What is still connected at the end is cut off. */
export const listen = (handler: http.RequestListener): Effect.Effect<string, never, Scope.Scope> =>
  Effect.suspend(() => {
    const server = http.createServer(handler)
    const listening = Effect.promise(() => new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve)))
    const closed = Effect.promise(() =>
      new Promise((resolve) => {
        server.close(resolve)
        server.closeAllConnections()
      })
    )
    return Effect.map(
      Effect.acquireRelease(listening, () => closed),
      () => `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    )
  })

/** The body of a request as text. */
export const received = async (request: http.IncomingMessage): Promise<string> => {
  const chunks: Array<Buffer> = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks).toString()
}
