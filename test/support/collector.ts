/** A collector of OTLP/HTTP in JSON on the loopback address: what is exported to it, by signal. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as http from "node:http"
import type { AddressInfo } from "node:net"

export interface Collector {
  readonly url: string
  /** The bodies so far, by path: `/v1/traces`, `/v1/metrics`, `/v1/logs`. */
  readonly bodies: Map<string, Array<any>>
}

export const collector: Effect.Effect<Collector, never, Scope.Scope> = Effect.gen(function*() {
  const bodies = new Map<string, Array<any>>()
  const server = http.createServer((request, response) => {
    const chunks: Array<Buffer> = []
    request.on("data", (chunk) => chunks.push(chunk))
    request.on("end", () => {
      const body: unknown = JSON.parse(Buffer.concat(chunks).toString("utf8"))
      bodies.set(request.url!, [...bodies.get(request.url!) ?? [], body])
      response.end("{}")
    })
  })
  yield* Effect.acquireRelease(
    Effect.promise(() => new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))),
    () => Effect.sync(() => server.close())
  )
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, bodies }
})
