/**
 * A server on the loopback interface that gives recorded answers, and a client that reads them in exactly the pieces of
 * a cut: a network may join what was written apart, so the client takes its reads apart again.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import type * as HttpClient from "effect/http/HttpClient"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import type * as http from "node:http"
import * as Cuts from "./cuts.ts"
import type * as Fixtures from "./fixtures.ts"
import * as Loopback from "./loopback.ts"

/** What a session is answered with, one after the other, and what it asked for. */
export interface Session {
  readonly url: string
  readonly requests: ReadonlyArray<string>
}

/** One answer and the lengths of its reads. */
export interface Reply {
  readonly answer: Fixtures.Answer
  readonly sizes: ReadonlyArray<number>
}

export class Server extends Context.Service<Server, {
  /** Opens a session. After its last reply it answers that there is nothing more. */
  readonly open: (replies: ReadonlyArray<Reply>) => Session
}>()("heddle-conformance/Server") {}

const write = (response: http.ServerResponse, { answer, sizes }: Reply): void => {
  response.writeHead(answer.status, answer.headers)
  for (const piece of Cuts.pieces(answer.body, sizes)) response.write(piece)
  response.end()
}

const afterLast: Reply = {
  answer: {
    status: 410,
    headers: { "content-type": "text/plain" },
    body: Buffer.from("the recording is over"),
    chunkSizes: undefined
  },
  sizes: [21]
}

interface Open {
  readonly replies: ReadonlyArray<Reply>
  readonly requests: Array<string>
}

const make: Effect.Effect<Server["Service"], never, Scope.Scope> = Effect.gen(function*() {
  const sessions: Array<Open> = []
  const url = yield* Loopback.listen((request, response) => {
    const session = sessions[Number(request.url?.split("/")[1])]
    void Loopback.received(request).then((body) => {
      if (session === undefined) return write(response, afterLast)
      session.requests.push(body)
      write(response, session.replies[session.requests.length - 1] ?? afterLast)
    })
  })
  return {
    open: (replies) => {
      const requests: Array<string> = []
      sessions.push({ replies, requests })
      return { url: `${url}/${sessions.length - 1}`, requests }
    }
  }
})

export const layer: Layer.Layer<Server> = Layer.effect(Server, make)

/** Takes reads apart so that none reaches over the end of a piece. */
const apart = (sizes: ReadonlyArray<number>): TransformStream<Uint8Array, Uint8Array> => {
  let index = 0
  let rest = sizes[0] ?? Infinity
  return new TransformStream({
    transform: (chunk, controller) => {
      let left = chunk
      while (left.length > 0) {
        const piece = left.subarray(0, rest)
        controller.enqueue(piece)
        left = left.subarray(piece.length)
        rest -= piece.length
        if (rest === 0) rest = sizes[++index] ?? Infinity
      }
    }
  })
}

/** A client whose n-th answer is read in the pieces of the n-th reply. */
export const client = (replies: ReadonlyArray<Reply>): Layer.Layer<HttpClient.HttpClient> => {
  let count = 0
  const fetch: typeof globalThis.fetch = async (input, init) => {
    const sizes = replies[count++]?.sizes ?? []
    const response = await globalThis.fetch(input, init)
    const body = response.body === null ? null : response.body.pipeThrough(apart(sizes))
    return new Response(body, response)
  }
  return FetchHttpClient.layer.pipe(Layer.provideMerge(Layer.succeed(FetchHttpClient.Fetch, fetch)))
}
