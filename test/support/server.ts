/**
 * A model server on the loopback interface that replays byte scripts, so that adapters are tried on real HTTP. It tells
 * what it was asked, and whether its answers were read to their end.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type * as http from "node:http"
import * as Loopback from "../../scratchpad/conformance/loopback.ts"

export interface Received {
  readonly method: string
  readonly path: string
  readonly headers: http.IncomingHttpHeaders
  readonly body: any
}

/** An answer: its body in the pieces in which it is written, and what follows the last piece. */
export interface Answer {
  readonly status?: number
  readonly headers?: Readonly<Record<string, string>>
  readonly pieces: ReadonlyArray<string | Uint8Array>
  /** `end` by default; `drop` destroys the socket, `open` leaves the client waiting. */
  readonly ending?: "end" | "drop" | "open"
}

export interface Server {
  readonly url: string
  readonly requests: ReadonlyArray<Received>
  /** Resolves once no answer is under way: how many there were, and how many the client left before their end. */
  readonly settled: Effect.Effect<{ readonly answered: number; readonly left: number }>
}

/** Pieces of a body of the given size each. */
export const pieces = (body: string | Uint8Array, size: number): ReadonlyArray<Uint8Array> => {
  const bytes = Buffer.from(body)
  return Array.from(
    { length: Math.ceil(bytes.length / size) },
    (_, index) => bytes.subarray(index * size, (index + 1) * size)
  )
}

/** A server that answers every request as `answer` says, given how many came before it. */
export const serve = (
  answer: (request: Received, index: number) => Answer
): Effect.Effect<Server, never, Scope.Scope> =>
  Effect.gen(function*() {
    const requests: Array<Received> = []
    const waiting = new Set<() => void>()
    let answered = 0
    let left = 0
    const url = yield* Loopback.listen((request, response) => {
      response.on("close", () => {
        answered++
        if (!response.writableFinished) left++
        for (const check of waiting) check()
      })
      void receive(request).then((received) => {
        requests.push(received)
        return write(response, answer(received, requests.length - 1))
      })
    })
    const settled = Effect.promise(() =>
      new Promise<{ answered: number; left: number }>((resolve) => {
        const check = () => {
          if (answered < requests.length) return
          waiting.delete(check)
          resolve({ answered, left })
        }
        waiting.add(check)
        check()
      })
    )
    return { url, requests, settled }
  })

/** The address of a server that is not there any more. */
export const unreachable: Effect.Effect<string> = Effect.scoped(
  Effect.map(serve(() => ({ pieces: [] })), (server) => server.url)
)

const receive = async (request: http.IncomingMessage): Promise<Received> => {
  const text = await Loopback.received(request)
  return {
    method: request.method ?? "",
    path: request.url ?? "",
    headers: request.headers,
    body: text === "" ? undefined : JSON.parse(text)
  }
}

const write = async (response: http.ServerResponse, answer: Answer): Promise<void> => {
  response.writeHead(answer.status ?? 200, answer.headers ?? { "content-type": "text/event-stream" })
  response.flushHeaders()
  for (const piece of answer.pieces) {
    if (response.destroyed) return
    await new Promise((resolve) => response.write(piece, resolve))
  }
  if (answer.ending === "drop") response.destroy()
  else if (answer.ending !== "open") response.end()
}

/** A value without the addresses of servers, which differ from one loopback server to the next. */
export const anywhere = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(anywhere)
  if (typeof value !== "object" || value === null || value instanceof Error) return value
  return Object.fromEntries(
    Object.entries(value).map(([key, member]) => [key, key === "server" ? "anywhere" : anywhere(member)])
  )
}
