/**
 * What is secret stays so, in every protocol: no error, log or span shows the key or the headers of a request, even if a
 * server quotes them or a client prints what it sends.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import { Anthropic, Gemini, OpenAiChat, OpenAiResponses } from "heddle/adapters"
import * as Adapters from "../support/adapters.ts"
import * as GeminiServer from "../support/gemini.ts"
import { outcome } from "../support/openAiChat.ts"
import * as Replies from "../support/openAiResponses.ts"
import * as Secrets from "../support/secrets.ts"
import * as Server from "../support/server.ts"

type Options = Required<Pick<Adapters.Shared, "apiKey" | "headers">> & Adapters.Shared

/** A protocol with secret options. `sent` are the headers that carry them. */
interface Row {
  readonly name: string
  readonly protocol: Adapters.Protocol
  readonly make: (baseUrl: string, options: Options) => Layer.Layer<any, never, any>
  readonly options: Options
  readonly secrets: ReadonlyArray<string>
  readonly sent: Readonly<Record<string, string>>
  readonly refusal: number
  /** An error that quotes the secrets, as a body and, unless the body is one, as an event. */
  readonly quoted: (quote: string) => string
  readonly event?: (quote: string) => string
  /** Further answers that quote them. */
  readonly further?: (quote: string) => ReadonlyArray<readonly [name: string, answer: string]>
}

const openAi = {
  apiKey: Redacted.make("sk-secret-value-123"),
  headers: { "api-key": Redacted.make("azure-secret-456"), "x-token": "plain-secret-789" },
  retries: 0
}
const openAiSecrets = ["sk-secret-value-123", "azure-secret-456", "plain-secret-789"]
const invalidKey = (quote: string) => ({ message: `Incorrect API key provided: ${quote}`, code: "invalid_api_key" })

const google = {
  apiKey: Redacted.make("AIza-secret-value-123"),
  headers: { "x-goog-user-project": "project-7", "x-proxy-token": Redacted.make("proxy-secret-456") },
  retries: 0
}
const googleRow = {
  options: google,
  secrets: ["AIza-secret-value-123", "proxy-secret-456"],
  refusal: 400,
  quoted: (quote: string) =>
    JSON.stringify({ error: { code: 400, message: `API key not valid: ${quote}`, details: [{ key: quote }] } }),
  event: (quote: string) => `data: ${googleRow.quoted(quote)}\r\n\r\n`,
  further: (quote: string) => [["a bare error with the secrets", googleRow.quoted(quote)] as const]
}

const rows: ReadonlyArray<Row> = [
  {
    name: "OpenAiChat",
    protocol: Adapters.openAiChat,
    make: (baseUrl, options) => OpenAiChat.layer({ model: "m", baseUrl, ...options }),
    options: openAi,
    secrets: openAiSecrets,
    sent: { authorization: "Bearer sk-secret-value-123", "api-key": "azure-secret-456" },
    refusal: 401,
    quoted: (quote) => JSON.stringify({ error: { message: `Incorrect API key provided: ${quote}` } })
  },
  {
    name: "OpenAiResponses",
    protocol: Adapters.openAiResponses,
    make: (baseUrl, options) => OpenAiResponses.layer({ model: "m", baseUrl, ...options }),
    options: openAi,
    secrets: openAiSecrets,
    sent: { authorization: "Bearer sk-secret-value-123", "api-key": "azure-secret-456" },
    refusal: 401,
    quoted: (quote) => JSON.stringify({ error: invalidKey(quote) }),
    event: (quote) => Replies.body({ type: "error", ...invalidKey(quote) }),
    further: (quote) => [[
      "a failed event with the secrets",
      Replies.body(Replies.event("failed", { response: { error: invalidKey(quote) } }))
    ]]
  },
  {
    name: "Anthropic",
    protocol: Adapters.anthropic,
    make: (baseUrl, options) => Anthropic.layer({ model: "m", baseUrl, ...options }),
    options: {
      apiKey: Redacted.make("sk-ant-secret-123"),
      headers: { authorization: Redacted.make("Bearer secret-456"), "x-proxy-token": "plain-secret-789" },
      retries: 0
    },
    secrets: ["sk-ant-secret-123", "secret-456", "plain-secret-789"],
    sent: { "x-api-key": "sk-ant-secret-123", authorization: "Bearer secret-456" },
    refusal: 401,
    quoted: (quote) =>
      JSON.stringify({ type: "error", error: { type: "authentication_error", message: `invalid ${quote}` } })
  },
  {
    name: "Gemini, with a key",
    protocol: Adapters.gemini,
    make: (baseUrl, options) => Gemini.layer({ model: "m", baseUrl, ...options }),
    sent: { "x-goog-api-key": "AIza-secret-value-123", "x-proxy-token": "proxy-secret-456" },
    ...googleRow
  },
  {
    name: "Gemini, with an access token",
    protocol: {
      ...Adapters.gemini,
      layer: (url, options) => GeminiServer.layer(url, { ...options, sendKeyAs: "bearer" })
    },
    make: (baseUrl, options) => Gemini.layer({ model: "m", baseUrl, ...options, sendKeyAs: "bearer" }),
    sent: { authorization: "Bearer AIza-secret-value-123", "x-proxy-token": "proxy-secret-456" },
    ...googleRow
  }
]

for (const { event, further, make, name, options, protocol, quoted, refusal, secrets, sent } of rows) {
  describe(`secrets: ${name}`, () => {
    // What is quoted is the whole value of a header, of which a scheme may be a part.
    const quote = [
      Redacted.value(options.apiKey),
      ...Object.values(options.headers).map((value) => Redacted.isRedacted(value) ? Redacted.value(value) : value)
    ].join(", ")
    const refused = (body: string): Server.Answer => ({ status: refusal, headers: {}, pieces: [body] })

    const answers: ReadonlyArray<readonly [name: string, answer: string | Server.Answer]> = [
      ["a JSON error with the secrets", refused(quoted(quote))],
      ["an HTML page with the secrets", refused(`<title>${quote}</title>`)],
      ["an error event with the secrets", event?.(quote) ?? `event: error\ndata: ${quoted(quote)}\n\n`],
      ["an error event of the secrets alone", `event: error\ndata: ${quote}\n\n`],
      ["a body of the secrets alone", quote],
      ...(further?.(quote) ?? [])
    ]

    const check = (answer: string | Server.Answer, leastSpans: number, given: Adapters.Shared = options) =>
      Secrets.assertFailsUnseen(secrets, Adapters.outcomeOf(protocol, answer, given), leastSpans)

    for (const [what, answer] of answers) {
      it.effect(`R-122: no error, log or span shows a secret after ${what}`, () => check(answer, 1))
    }

    it.effect("R-122: no error, log or span shows a secret of a request to an unreachable server", () =>
      Effect.flatMap(
        Server.unreachable,
        (url) => Secrets.assertFailsUnseen(secrets, outcome(Adapters.stream(protocol, url, options)), 1)
      ))

    it.effect("R-122: no error, log or span shows a key given with a line end", () =>
      check(refused(quoted(quote)), 1, { ...options, apiKey: Redacted.make(`${secrets[0]}\n`) }))

    it.effect("R-122: the refusal of a key that no header can carry does not show the key", () =>
      check("", 0, { ...options, apiKey: Redacted.make(`${secrets[0]}\u2603`) }))

    it.effect("R-122: neither the options nor the layer print a secret", () =>
      Effect.sync(() => {
        const hidden = secrets.filter((secret) => !Object.values(options.headers).includes(secret))
        Secrets.assertUnseen(hidden, Secrets.watch(), options, make("http://model.test", options))
      }))

    it.effect("R-122: a client that prints its requests shows no secret, and the span of a reply has none", () =>
      Effect.gen(function*() {
        const { headers, logs, spans } = yield* Secrets.printed(
          secrets,
          protocol.whole,
          (baseUrl) => make(baseUrl, options)
        )
        assert.deepInclude(headers, sent)
        for (const header of Object.keys(sent)) assert.include(logs, header)
        assert.strictEqual(spans.find((span) => span.name === "POST")?.attributes.get("http.response.status_code"), 200)
      }))
  })
}
