/**
 * What is sent: the request's body, its headers and its address, as the server receives them, and where the settings come
 * from.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import { type Adapter, Message, Tool } from "heddle"
import { Gemini } from "heddle/adapters"
import { body, finish, request, said, stream } from "../support/gemini.ts"
import * as Requests from "../support/requests.ts"

const answered = body(said("ok"), finish("STOP"))

/** The request that a server receives. */
const sent = (asked: Partial<Adapter.Request>, options: Partial<Gemini.Options> = {}) =>
  Requests.received(answered, (url) => stream(url, options, { ...request, ...asked }))

const bodyOf = (asked: Partial<Adapter.Request>, options: Partial<Gemini.Options> = {}) =>
  Effect.map(sent(asked, options), ({ body }) => body)

const weather: Tool.Definition = {
  name: "get_weather",
  description: "Current temperature",
  parameters: { type: "object", properties: { city: { type: "string" } } }
}

const key = Redacted.make("AIza-secret-1")

/** The request that would have been sent to a server that is not ours to run. */
const elsewhere = (options: Partial<Gemini.Options>, asked: Partial<Adapter.Request> = {}) =>
  Requests.elsewhere(answered, Gemini.layer({ model: "m", ...options }), asked)

describe("the body of a Gemini request", () => {
  it.effect("R-123: a plain request holds the contents, the system texts apart, and asks for an event stream", () =>
    Effect.gen(function*() {
      const received = yield* sent({
        messages: [Message.system("Be brief."), Message.user("Hello"), Message.system([{ type: "text", text: "Now." }])]
      })
      assert.strictEqual(received.path, "/v1beta/models/test-model:streamGenerateContent?alt=sse")
      assert.deepStrictEqual(received.body, {
        systemInstruction: { parts: [{ text: "Be brief." }, { text: "Now." }] },
        contents: [{ role: "user", parts: [{ text: "Hello" }] }]
      })
    }))

  it.effect("R-123: each setting of a request has its place in the body", () =>
    Effect.gen(function*() {
      const schema = { type: "object", properties: { kind: { const: "a" } } }
      const safetySettings = [{ category: "HARM_CATEGORY_HATE_SPEECH", threshold: "BLOCK_NONE" }]
      const body = yield* bodyOf({
        tools: [weather, { ...weather, name: "other", description: "" }],
        toolChoice: { name: "get_weather" },
        temperature: 0.5,
        maxTokens: 100,
        responseFormat: { type: "json_schema", name: "answer", schema }
      }, { safetySettings, reasoning: { maxTokens: 512 } })
      assert.deepStrictEqual(body, {
        contents: [{ role: "user", parts: [{ text: "Hello" }] }],
        tools: [{
          functionDeclarations: [
            { name: "get_weather", description: "Current temperature", parametersJsonSchema: weather.parameters },
            { name: "other", description: "", parametersJsonSchema: weather.parameters }
          ]
        }],
        toolConfig: { functionCallingConfig: { mode: "ANY", allowedFunctionNames: ["get_weather"] } },
        generationConfig: {
          temperature: 0.5,
          maxOutputTokens: 100,
          responseMimeType: "application/json",
          responseJsonSchema: { type: "object", properties: { kind: { enum: ["a"] } } },
          thinkingConfig: { thinkingBudget: 512, includeThoughts: true }
        },
        safetySettings
      })
    }))

  it.effect("R-123: each tool choice has its mode, and strict tools set the mode VALIDATED where the model may choose", () =>
    Effect.gen(function*() {
      const modeOf = (toolChoice: Adapter.ToolChoice | undefined, options: Partial<Gemini.Options> = {}) =>
        Effect.map(
          bodyOf({ tools: [weather], ...(toolChoice === undefined ? {} : { toolChoice }) }, options),
          (body) => body.toolConfig?.functionCallingConfig.mode
        )
      assert.deepStrictEqual(
        yield* Effect.all([modeOf(undefined), modeOf("auto"), modeOf("none"), modeOf("required")]),
        [undefined, undefined, "NONE", "ANY"]
      )
      assert.deepStrictEqual(
        yield* Effect.all([modeOf(undefined, { strict: true }), modeOf("auto", { strict: true })]),
        ["VALIDATED", "VALIDATED"]
      )
      assert.strictEqual(yield* modeOf("required", { strict: true }), "ANY")
      assert.notProperty(yield* bodyOf({ toolChoice: "required" }), "toolConfig")
    }))

  it.effect("R-123: a reasoning effort becomes a thinking level, or a token budget for models without levels", () =>
    Effect.gen(function*() {
      const thinkingOf = (model: string, reasoning: NonNullable<Gemini.Options["reasoning"]>) =>
        Effect.map(bodyOf({ model }, { reasoning }), (body) => body.generationConfig.thinkingConfig)
      const flash = "gemini-3-flash-preview"
      assert.deepStrictEqual(yield* thinkingOf(flash, { effort: "low" }), {
        thinkingLevel: "low",
        includeThoughts: true
      })
      assert.deepStrictEqual(yield* thinkingOf(flash, { effort: "none" }), { thinkingBudget: 0, includeThoughts: true })
      assert.deepStrictEqual(yield* thinkingOf(flash, { effort: "low", maxTokens: 9 }), {
        thinkingBudget: 9,
        includeThoughts: true
      })
      for (const [effort, thinkingBudget] of [["low", 1024], ["medium", 8192], ["high", 24_576]] as const) {
        const found = yield* thinkingOf("gemini-2.5-pro", { effort, includeThoughts: false })
        assert.deepStrictEqual(found, { thinkingBudget, includeThoughts: false })
      }
    }))

  it.effect("R-123: schemas are rewritten for servers that accept the OpenAPI subset only", () =>
    Effect.gen(function*() {
      const parameters = { type: "object", properties: { city: { type: ["string", "null"], exclusiveMinimum: 1 } } }
      const written = { type: "OBJECT", properties: { city: { type: "STRING", nullable: true } } }
      const body = yield* bodyOf(
        {
          tools: [{ ...weather, parameters }],
          responseFormat: { type: "json_schema", name: "answer", schema: parameters }
        },
        { schemas: "openApi" }
      )
      assert.deepStrictEqual(body.tools[0].functionDeclarations[0].parameters, written)
      assert.deepStrictEqual(body.generationConfig, {
        responseMimeType: "application/json",
        responseSchema: written
      })
      const json = yield* bodyOf({ responseFormat: { type: "json_object" } })
      assert.deepStrictEqual(json.generationConfig, { responseMimeType: "application/json" })
      assert.notProperty(yield* bodyOf({ responseFormat: { type: "text" } }), "generationConfig")
    }))

  it.effect("R-123: a request with cached content omits the system texts and the tools", () =>
    Effect.gen(function*() {
      const body = yield* bodyOf(
        { messages: [Message.system("Be brief."), Message.user("Hello")], tools: [weather], toolChoice: "required" },
        { cache: "cachedContents/1" }
      )
      assert.deepStrictEqual(body, {
        contents: [{ role: "user", parts: [{ text: "Hello" }] }],
        cachedContent: "cachedContents/1"
      })
    }))

  it.effect("R-123: options pass through: objects merge, tools are added, and the options of the request win", () =>
    Effect.gen(function*() {
      const body = yield* bodyOf(
        {
          tools: [weather],
          toolChoice: "required",
          temperature: 0.5,
          options: { generationConfig: { topK: 2, temperature: 1 }, labels: { b: "2" } }
        },
        {
          options: {
            tools: [{ googleSearch: {} }],
            toolConfig: { includeServerSideToolInvocations: true, functionCallingConfig: { mode: "VALIDATED" } },
            generationConfig: { topK: 1, seed: 7 },
            labels: { a: "1" }
          }
        }
      )
      assert.deepStrictEqual(Object.keys(body.tools[0]), ["functionDeclarations"])
      assert.deepStrictEqual(body.tools[1], { googleSearch: {} })
      assert.deepStrictEqual(body.toolConfig, {
        functionCallingConfig: { mode: "VALIDATED" },
        includeServerSideToolInvocations: true
      })
      assert.deepStrictEqual(body.generationConfig, { temperature: 1, topK: 2, seed: 7 })
      assert.deepStrictEqual(body.labels, { a: "1", b: "2" })
    }))

  it.effect("R-123: a tool's parameter schema goes out as declared", () =>
    Effect.gen(function*() {
      const tool = Tool.make("plan", {
        parameters: { days: Schema.Int, note: Schema.NullOr(Schema.String) },
        handler: () => Effect.succeed(null)
      })
      const body = yield* bodyOf({ tools: [Tool.definition(tool)] })
      assert.deepStrictEqual(
        body.tools[0].functionDeclarations[0].parametersJsonSchema,
        JSON.parse(JSON.stringify(Tool.definition(tool).parameters))
      )
    }))
})

describe("the settings of the Gemini adapter", () => {
  it.effect("R-123: the default base URL is the Gemini API, a model may be a path, and a query string is kept", () =>
    Effect.gen(function*() {
      const own = "https://generativelanguage.googleapis.com/v1beta"
      assert.strictEqual((yield* elsewhere({})).url, `${own}/models/m:streamGenerateContent?alt=sse`)
      const tuned = yield* elsewhere({}, { model: "tunedModels/a b" })
      assert.strictEqual(tuned.url, `${own}/tunedModels/a%20b:streamGenerateContent?alt=sse`)
      const proxied = yield* elsewhere({ baseUrl: "https://proxy.test/g/?tenant=1" }, { model: "x?y=z" })
      assert.strictEqual(proxied.url, "https://proxy.test/g/models/x%3Fy%3Dz:streamGenerateContent?alt=sse&tenant=1")
    }))

  it.effect("R-123: the key goes out in its own header, or as a bearer token to a Vertex AI project", () =>
    Effect.gen(function*() {
      const vertex =
        "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1/publishers/google"
      const headersOf = (options: Partial<Gemini.Options>) =>
        Effect.map(
          elsewhere({ apiKey: key, ...options }),
          ({ headers }) => [headers["x-goog-api-key"] ?? null, headers["authorization"] ?? null]
        )
      const secret = Redacted.value(key)
      assert.deepStrictEqual(yield* headersOf({}), [secret, null])
      assert.deepStrictEqual(yield* headersOf({ baseUrl: vertex }), [null, `Bearer ${secret}`])
      assert.deepStrictEqual(yield* headersOf({ baseUrl: vertex, sendKeyAs: "x-goog-api-key" }), [secret, null])
      assert.deepStrictEqual(yield* headersOf({ sendKeyAs: "bearer" }), [null, `Bearer ${secret}`])
      const express = "https://aiplatform.googleapis.com/v1/publishers/google"
      assert.deepStrictEqual(yield* headersOf({ baseUrl: express }), [secret, null])
      const { url } = yield* elsewhere({ baseUrl: vertex })
      assert.strictEqual(url, `${vertex}/models/m:streamGenerateContent?alt=sse`)
    }))

  const fromEnvironment = (env: Record<string, string>, defaults: Partial<Gemini.Options> = {}) =>
    Requests.fromEnvironment(
      answered,
      (url) => ({ ...env, ...(env["GEMINI_BASE_URL"] === undefined ? {} : { GEMINI_BASE_URL: `${url}/env` }) }),
      Gemini.layerConfig(defaults)
    )

  it.effect("R-122: the environment names the model, the server and the key, by either name of the key", () =>
    Effect.gen(function*() {
      const model = { GEMINI_MODEL: "env-model", GEMINI_BASE_URL: "given" }
      const first = yield* fromEnvironment({ ...model, GEMINI_API_KEY: "k1", GOOGLE_API_KEY: "k2" }, { model: "other" })
      assert.deepStrictEqual(
        [first.path, first.headers["x-goog-api-key"]],
        ["/env/models/env-model:streamGenerateContent?alt=sse", "k1"]
      )
      const second = yield* fromEnvironment({ ...model, GEMINI_API_KEY: "", GOOGLE_API_KEY: "k2" })
      assert.strictEqual(second.headers["x-goog-api-key"], "k2")
      const missing = yield* Effect.flip(fromEnvironment({ GEMINI_MODEL: "m" }))
      assert.match(missing.message, /GEMINI_API_KEY/)
      assert.match((yield* Effect.flip(fromEnvironment({ GOOGLE_API_KEY: "k" }))).message, /GEMINI_MODEL/)
    }))
})
