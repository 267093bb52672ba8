/**
 * What an adapter sends, as it is received: a server on the loopback interface, the server that the
 * environment names, or one that is not ours to run.
 */
import type * as Config from "effect/Config"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import type * as HttpClient from "effect/http/HttpClient"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter } from "heddle"
import { request } from "./openAiChat.ts"
import * as Server from "./server.ts"

const asking = (asked: Adapter.Request) => Stream.unwrap(Adapter.Adapter.useSync((adapter) => adapter.stream(asked)))

/** The request that a server receives. */
export const received = <E>(
  answer: string,
  stream: (url: string) => Stream.Stream<unknown, E>
): Effect.Effect<Server.Received, E> =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => ({ pieces: [answer] }))
    yield* Stream.runDrain(stream(server.url))
    return server.requests[0]!
  }))

/** What a server receives from an adapter that the environment describes, or the error that describes it wrongly. */
export const fromEnvironment = (
  answer: string,
  environment: (url: string) => Record<string, string>,
  layer: Layer.Layer<Adapter.Adapter, Config.ConfigError, HttpClient.HttpClient>
): Effect.Effect<Server.Received, Config.ConfigError | Adapter.AdapterError> =>
  received(answer, (url) => {
    const provider = ConfigProvider.layer(ConfigProvider.fromEnv({ env: environment(url) }))
    return Stream.provide(asking(request), Layer.provide(layer, [FetchHttpClient.layer, provider]))
  })

export interface Sent {
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: any
}

/** The request that would have been sent to a server that is not ours to run. */
export const elsewhere = (
  answer: string,
  layer: Layer.Layer<Adapter.Adapter, never, HttpClient.HttpClient>,
  asked: Partial<Adapter.Request> = {}
): Effect.Effect<Sent, Adapter.AdapterError> =>
  Effect.suspend(() => {
    let seen: Sent | undefined
    return asking({ ...request, ...asked }).pipe(
      Stream.provide(Layer.provide(layer, FetchHttpClient.layer)),
      Stream.provideService(FetchHttpClient.Fetch, (url, init) => {
        const body = JSON.parse(new TextDecoder().decode(init?.body as Uint8Array))
        seen = { url: String(url), headers: Object.fromEntries(new Headers(init?.headers)), body }
        return Promise.resolve(new Response(answer))
      }),
      Stream.runDrain,
      Effect.map(() => seen!)
    )
  })
