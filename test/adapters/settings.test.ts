/**
 * How an adapter is set up, in every protocol: its key, its address, options that cannot be used, and what the
 * environment says.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import type * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import type * as HttpClient from "effect/http/HttpClient"
import type * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import type { Adapter } from "heddle"
import { Anthropic, Gemini, OpenAiChat, OpenAiResponses } from "heddle/adapters"
import * as Adapters from "../support/adapters.ts"
import * as Requests from "../support/requests.ts"

interface Options extends Adapters.Shared {
  readonly model?: string
  readonly baseUrl?: string
}

interface Row {
  readonly protocol: Adapters.Protocol
  readonly make: (options: Options & { readonly model: string }) => Layer.Layer<
    Adapter.Adapter,
    never,
    HttpClient.HttpClient
  >
  readonly config: (defaults: Options) => Layer.Layer<Adapter.Adapter, Config.ConfigError, HttpClient.HttpClient>
  /** The names of the model, the key and the address in the environment. */
  readonly names: readonly [model: string, key: string, baseUrl: string]
  /** Where a request for a model goes, under a base URL. */
  readonly path: (model: string) => string
  readonly ownBaseUrl: string
  readonly keyHeader: readonly [name: string, prefix: string]
  /** Which model a request is for. */
  readonly modelOf: (received: { readonly path: string; readonly body: any }) => unknown
  /** A further default, and how it shows in a request. */
  readonly default: { readonly options: object; readonly isSeen: (body: any) => boolean }
}

const openAiNames = ["OPENAI_MODEL", "OPENAI_API_KEY", "OPENAI_BASE_URL"] as const

const rows: ReadonlyArray<Row> = [
  {
    protocol: Adapters.openAiChat,
    make: OpenAiChat.layer,
    config: OpenAiChat.layerConfig,
    names: openAiNames,
    path: () => "/chat/completions",
    ownBaseUrl: "https://api.openai.com/v1",
    keyHeader: ["authorization", "Bearer "],
    modelOf: ({ body }) => body.model,
    default: { options: { includeUsage: false }, isSeen: (body) => body.stream_options === undefined }
  },
  {
    protocol: Adapters.openAiResponses,
    make: OpenAiResponses.layer,
    config: OpenAiResponses.layerConfig,
    names: openAiNames,
    path: () => "/responses",
    ownBaseUrl: "https://api.openai.com/v1",
    keyHeader: ["authorization", "Bearer "],
    modelOf: ({ body }) => body.model,
    default: { options: { store: true }, isSeen: (body) => body.store === true }
  },
  {
    protocol: Adapters.anthropic,
    make: Anthropic.layer,
    config: Anthropic.layerConfig,
    names: ["ANTHROPIC_MODEL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"],
    path: () => "/v1/messages",
    ownBaseUrl: "https://api.anthropic.com",
    keyHeader: ["x-api-key", ""],
    modelOf: ({ body }) => body.model,
    default: {
      options: { cache: true },
      isSeen: (body) => body.messages[0].content[0].cache_control.type === "ephemeral"
    }
  },
  {
    protocol: Adapters.gemini,
    make: Gemini.layer,
    config: Gemini.layerConfig,
    names: ["GEMINI_MODEL", "GEMINI_API_KEY", "GEMINI_BASE_URL"],
    path: (model) => `/models/${model}:streamGenerateContent?alt=sse`,
    ownBaseUrl: "https://generativelanguage.googleapis.com/v1beta",
    keyHeader: ["x-goog-api-key", ""],
    modelOf: ({ path }) => /models\/([^:]*):/.exec(path)?.[1],
    default: {
      options: { reasoning: { maxTokens: 7 } },
      isSeen: (body) => body.generationConfig.thinkingConfig.thinkingBudget === 7
    }
  }
]

const key = Redacted.make("sk-secret-1")

for (const row of rows) {
  const { config, keyHeader: [keyHeader, prefix], make, modelOf, names, ownBaseUrl, path, protocol } = row
  const [modelName, keyName, baseUrlName] = names

  describe(`settings: ${protocol.name}`, () => {
    const sent = (options: Options) =>
      Requests.elsewhere(protocol.whole, make({ model: "m", baseUrl: "http://model.test", ...options }))

    it.effect("R-123: the key goes out in its header, and other headers win over the adapter's own", () =>
      Effect.gen(function*() {
        const { headers } = yield* sent({ apiKey: Redacted.make(" sk-secret-1\n") })
        assert.strictEqual(headers[keyHeader], `${prefix}sk-secret-1`)
        assert.deepInclude(headers, { accept: "text/event-stream", "content-type": "application/json" })
        const others = { "api-key": key, [keyHeader]: "own", "x-title": "Heddle" }
        const other = yield* sent({ apiKey: Redacted.make("sk-secret-2"), headers: others })
        assert.deepInclude(other.headers, { "api-key": "sk-secret-1", [keyHeader]: "own", "x-title": "Heddle" })
        assert.isUndefined((yield* sent({})).headers[keyHeader])
      }))

    it.effect("R-123: the default base URL is the provider's own", () =>
      Effect.gen(function*() {
        const { url } = yield* Requests.elsewhere(protocol.whole, make({ model: "m" }))
        assert.strictEqual(url, `${ownBaseUrl}${path("m")}`)
      }))

    it("R-123: an invalid option throws a TypeError with the option name", () => {
      const made = (options: object) => () => make({ model: "m", ...options })
      const layer = `${protocol.name}.layer: `
      assert.throws(made({ model: "" }), TypeError, `${layer}model must be the name of a model`)
      assert.throws(made({ retries: -1 }), TypeError, `${layer}retries must be a whole number, 0 or more; got: -1`)
      assert.throws(made({ retries: 1.5 }), TypeError, "retries")
      assert.throws(made({ maxEventLength: 0 }), TypeError, "maxEventLength")
      assert.throws(
        made({ idleTimeout: "soon" }),
        TypeError,
        "idleTimeout must be a duration above zero (milliseconds, \"30 seconds\", \"infinity\"); got: \"soon\""
      )
      assert.throws(made({ retryDelay: "x" }), TypeError, "retryDelay")
      assert.throws(made({ connectTimeout: "x" }), TypeError, "connectTimeout must be a duration above zero")
      assert.throws(made({ firstChunkTimeout: "x" }), TypeError, "firstChunkTimeout must be a duration above zero")
    })

    it("N-26: a plain key or an invalid header throws a TypeError with the option name and without the value", () => {
      const layer = `${protocol.name}.layer: `
      const refusal = (options: object): string => {
        try {
          make({ model: "m", ...options })
          return "accepted"
        } catch (error) {
          return error instanceof TypeError ? error.message : "no TypeError"
        }
      }
      const key = `${layer}apiKey must be a Redacted string: Redacted.make(key)`
      assert.strictEqual(refusal({ apiKey: "sk-secret-1" }), key)
      assert.strictEqual(refusal({ apiKey: Redacted.make(undefined) }), key)
      assert.strictEqual(refusal({ apiKey: null }), key)
      const header = `${layer}headers must be strings, plain or Redacted; "x-token" is neither`
      assert.strictEqual(refusal({ headers: { "x-token": undefined } }), header)
      assert.strictEqual(refusal({ headers: { "x-token": Redacted.make(1) } }), header)
      assert.strictEqual(
        refusal({ apiKey: Redacted.make("sk"), headers: { a: "b", c: Redacted.make("d") } }),
        "accepted"
      )
    })

    it.effect("N-26: a plain key among the defaults of the environment fails the layer, unless the environment has a key", () =>
      Effect.gen(function*() {
        const defaults = { apiKey: "sk-secret-1" } as unknown as Options
        const environment = (url: string) => ({ [modelName]: "m", [baseUrlName]: url })
        const cause = yield* Effect.sandbox(fromEnvironment(environment, defaults)).pipe(Effect.flip)
        assert.include(String(Cause.squash(cause)), "apiKey must be a Redacted string")
        const named = yield* fromEnvironment((url) => ({ ...environment(url), [keyName]: "sk-secret-2" }), defaults)
        assert.strictEqual(named.headers[keyHeader], `${prefix}sk-secret-2`)
      }))

    const fromEnvironment = (environment: (url: string) => Record<string, string>, defaults: Options = {}) =>
      Requests.fromEnvironment(protocol.whole, environment, config(defaults))

    it.effect("R-122: the environment names the model, the key and the server, and wins over the defaults", () =>
      Effect.gen(function*() {
        const environment = (url: string) => ({
          [keyName]: "sk-secret-2",
          [baseUrlName]: `${url}/v2/`,
          [modelName]: "env-model"
        })
        const defaults = { model: "default-model", baseUrl: "http://nowhere.test", apiKey: key, ...row.default.options }
        const full = yield* fromEnvironment(environment, defaults)
        assert.deepStrictEqual(
          [full.path, modelOf(full), full.headers[keyHeader]],
          [`/v2${path("env-model")}`, "env-model", `${prefix}sk-secret-2`]
        )
        assert.isTrue(row.default.isSeen(full.body))
      }))

    it.effect("R-122: an empty environment variable is ignored", () =>
      Effect.gen(function*() {
        const environment = (url: string) => ({ [baseUrlName]: url, [modelName]: " ", [keyName]: "" })
        const sparse = yield* fromEnvironment(environment, { model: "default-model" })
        assert.deepStrictEqual([modelOf(sparse), sparse.headers[keyHeader]], ["default-model", undefined])
      }))

    it.effect("R-122: a missing model or required key fails the layer with the name of its environment variable", () =>
      Effect.gen(function*() {
        const noModel = yield* Effect.flip(fromEnvironment((url) => ({ [baseUrlName]: url })))
        assert.match(noModel.message, new RegExp(modelName))
        const noKey = yield* Effect.flip(fromEnvironment(() => ({ [modelName]: "m" })))
        assert.match(noKey.message, new RegExp(keyName))
      }))
  })
}
