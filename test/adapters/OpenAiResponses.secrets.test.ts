/**
 * What is secret stays so: no error, log or span shows the key or the headers of a request, even if a server quotes them
 * or a client prints what it sends.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import { OpenAiResponses } from "heddle/adapters"
import * as Chunks from "../support/openAiChat.ts"
import * as Replies from "../support/openAiResponses.ts"
import * as Secrets from "../support/secrets.ts"
import * as Server from "../support/server.ts"

describe("secrets", () => {
  const apiKey = Redacted.make("sk-secret-value-123")
  const headers = { "api-key": Redacted.make("azure-secret-456"), "x-token": "plain-secret-789" }
  const secrets = [Redacted.value(apiKey), Redacted.value(headers["api-key"]), headers["x-token"]]
  const options: Partial<OpenAiResponses.Options> = { apiKey, headers, retries: 0 }

  const error = { message: `Incorrect API key provided: ${secrets.join(", ")}`, code: "invalid_api_key" }
  const refusal = (body: string): Server.Answer => ({ status: 401, headers: {}, pieces: [body] })

  const answers: ReadonlyArray<readonly [name: string, answer: string | Server.Answer]> = [
    ["a JSON error that quotes them", refusal(JSON.stringify({ error }))],
    ["a page that quotes them", refusal(`<title>${secrets.join(" ")}</title>`)],
    ["an error event that quotes them", Replies.body({ type: "error", ...error })],
    ["a reply that failed with them", Replies.body(Replies.event("failed", { response: { error } }))],
    ["an error event of their text", `event: error\ndata: ${secrets.join(" ")}\n\n`],
    ["a body that is only them", secrets.join(" ")]
  ]

  const check = (outcome: Effect.Effect<Chunks.Outcome>, leastSpans: number) =>
    Secrets.assertFailsUnseen(secrets, outcome, leastSpans)

  for (const [name, answer] of answers) {
    it.effect(`R-122: no error, log or span shows them after ${name}`, () =>
      check(Replies.outcomeOf(answer, options), 1))
  }

  it.effect("R-122: no error, log or span shows them when the server cannot be reached", () =>
    Effect.flatMap(Server.unreachable, (url) => check(Chunks.outcome(Replies.stream(url, options)), 1)))

  it.effect("R-122: a key that was given with a line end is found without it, one that no header can carry is refused unseen", () =>
    Effect.gen(function*() {
      const quoting = refusal(JSON.stringify({ error }))
      yield* check(Replies.outcomeOf(quoting, { ...options, apiKey: Redacted.make(`${secrets[0]}\n`) }), 1)
      yield* check(Replies.outcomeOf("", { ...options, apiKey: Redacted.make(`${secrets[0]}\u2603`) }), 0)
    }))

  it.effect("R-122: a client that prints its requests prints them without, and a reply leaves none in its span", () =>
    Effect.gen(function*() {
      const { headers, logs, spans } = yield* Secrets.printed(
        secrets,
        Replies.interleaved,
        (baseUrl) => OpenAiResponses.layer({ model: "m", baseUrl, ...options })
      )
      assert.strictEqual(headers["api-key"], secrets[1])
      assert.include(logs, "api-key")
      assert.isTrue(spans.some(({ name }) => name === "POST"))
    }))
})
