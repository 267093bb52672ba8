/**
 * What is secret stays so: no error, log or span shows the key or the headers of a request, even if a server quotes them
 * or a client prints what it sends.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import { Gemini } from "heddle/adapters"
import * as Chunks from "../support/gemini.ts"
import * as Secrets from "../support/secrets.ts"
import * as Server from "../support/server.ts"

const apiKey = Redacted.make("AIza-secret-value-123")
const headers = { "x-goog-user-project": "project-7", "x-proxy-token": Redacted.make("proxy-secret-456") }
const secrets = [Redacted.value(apiKey), Redacted.value(headers["x-proxy-token"])]
const quote = secrets.join(", ")
const quoted = JSON.stringify({
  error: { code: 400, message: `API key not valid: ${quote}`, details: [{ key: quote }] }
})
const refusal = (body: string): Server.Answer => ({ status: 400, headers: {}, pieces: [body] })

const answers: ReadonlyArray<readonly [name: string, answer: string | Server.Answer]> = [
  ["a JSON error that quotes them", refusal(quoted)],
  ["a page that quotes them", refusal(`<title>${quote}</title>`)],
  ["an error in the stream that quotes them", `data: ${quoted}\r\n\r\n`],
  ["a bare error that quotes them", quoted],
  ["an event of their text", `event: error\ndata: ${quote}\n\n`],
  ["a body that is only them", quote]
]

/** As an API key, and as the access token of a project. */
const forms: ReadonlyArray<readonly [name: string, options: Partial<Gemini.Options>]> = [
  ["a key", { apiKey, headers, retries: 0 }],
  ["an access token", { apiKey, headers, retries: 0, sendKeyAs: "bearer" }]
]

const check = (outcome: Effect.Effect<Chunks.Outcome>, leastSpans: number) =>
  Secrets.assertFailsUnseen(secrets, outcome, leastSpans)

for (const [form, options] of forms) {
  describe(`secrets: ${form}`, () => {
    for (const [name, answer] of answers) {
      it.effect(`R-122: no error, log or span shows them after ${name}`, () =>
        check(Chunks.outcomeOf(answer, options), 1))
    }

    it.effect("R-122: no error, log or span shows them when the server cannot be reached", () =>
      Effect.flatMap(Server.unreachable, (url) => check(Chunks.outcome(Chunks.stream(url, options)), 1)))

    it.effect("R-122: a key that was given with a line end is found without it", () =>
      check(Chunks.outcomeOf(refusal(quoted), { ...options, apiKey: Redacted.make(`${secrets[0]}\n`) }), 1))

    it.effect("R-122: a key that no header can carry is refused unseen", () =>
      check(Chunks.outcomeOf("", { ...options, apiKey: Redacted.make(`${secrets[0]}\u2603`) }), 0))

    it.effect("R-122: neither the options nor the layer print them", () =>
      Effect.sync(() => {
        const full = { model: "m", ...options }
        Secrets.assertUnseen(secrets, Secrets.watch(), full, Gemini.layer(full))
      }))

    it.effect("R-122: a client that prints its requests prints them without, and a reply leaves none in its span", () =>
      Effect.gen(function*() {
        const { headers: sent, logs, spans } = yield* Secrets.printed(
          secrets,
          Chunks.body(Chunks.finish("STOP")),
          (baseUrl) => Gemini.layer({ model: "m", baseUrl, ...options })
        )
        assert.deepStrictEqual(
          [sent["x-proxy-token"], sent["x-goog-api-key"] ?? sent.authorization?.replace("Bearer ", "")],
          [secrets[1], secrets[0]]
        )
        assert.include(logs, "x-proxy-token")
        assert.isNotEmpty(spans)
      }))
  })
}
