/**
 * The adapter that reaches the chosen model: one for each protocol that the agent speaks, all behind the same seam, so
 * that nothing else in the agent knows which one it is.
 */
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import type * as HttpClient from "effect/http/HttpClient"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type * as Redacted from "effect/Redacted"
import type { Adapter } from "heddle"
import { Anthropic, Gemini, OpenAiChat, OpenAiResponses } from "heddle/adapters"
import * as EmbeddedServer from "./model/server.ts"
import * as Provider from "./provider.ts"
import * as Settings from "./settings.ts"

interface Options {
  readonly model: string
  readonly baseUrl: string
  readonly apiKey?: Redacted.Redacted<string>
}

type Make = (options: Options) => Layer.Layer<Adapter.Adapter, never, HttpClient.HttpClient>

/** How each provider's own servers, and those that are compatible with them, are spoken to. */
const own: Readonly<Record<Provider.Name, Make>> = {
  openai: OpenAiResponses.layer,
  anthropic: Anthropic.layer,
  gemini: Gemini.layer
}

/** The protocols of compatible servers, where these differ from the provider's: most implement only the older one. */
const compatible: Partial<Record<Provider.Name, Make>> = {
  openai: OpenAiChat.layer
}

const makerOf = ({ baseUrl, provider }: Settings.Server): Make =>
  Provider.isOwn(provider, baseUrl) ? own[provider] : compatible[provider] ?? own[provider]

const serverLayer = (model: Settings.Server) =>
  makerOf(model)({
    model: model.name,
    baseUrl: model.baseUrl,
    ...Option.match(model.key, { onNone: () => ({}), onSome: ({ secret }) => ({ apiKey: secret }) })
  })

/** The embedded model is reached like any other server. */
const embeddedLayer = Layer.unwrap(
  Effect.map(EmbeddedServer.Endpoint, ({ baseUrl }) => OpenAiChat.layer({ model: Settings.embedded, baseUrl }))
).pipe(Layer.provide(EmbeddedServer.layer({ pace: Effect.sleep("12 millis") })))

export const layer = (model: Settings.Model): Layer.Layer<Adapter.Adapter, unknown> =>
  (model._tag === "Server" ? serverLayer(model) : embeddedLayer).pipe(Layer.provide(FetchHttpClient.layer))
