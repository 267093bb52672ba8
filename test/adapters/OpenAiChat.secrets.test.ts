/**
 * What is secret stays so: no error, log or span shows the key or the headers of a request, even if a server quotes them
 * or a client prints what it sends.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import { OpenAiChat } from "heddle/adapters"
import * as Chunks from "../support/openAiChat.ts"
import * as Secrets from "../support/secrets.ts"
import * as Server from "../support/server.ts"

describe("secrets", () => {
  const apiKey = Redacted.make("sk-secret-value-123")
  const headers = { "api-key": Redacted.make("azure-secret-456"), "x-token": "plain-secret-789" }
  const secrets = [Redacted.value(apiKey), Redacted.value(headers["api-key"]), headers["x-token"]]
  const options: Partial<OpenAiChat.Options> = { apiKey, headers, retries: 0 }

  const quoted = JSON.stringify({ error: { message: `Incorrect API key provided: ${secrets.join(", ")}` } })
  const refusal = (body: string): Server.Answer => ({ status: 401, headers: {}, pieces: [body] })

  const answers: ReadonlyArray<readonly [name: string, answer: string | Server.Answer]> = [
    ["a JSON error that quotes them", refusal(quoted)],
    ["a page that quotes them", refusal(`<title>${secrets.join(" ")}</title>`)],
    ["an error event that quotes them", `event: error\ndata: ${quoted}\n\n`],
    ["an error event of their text", `event: error\ndata: ${secrets.join(" ")}\n\n`],
    ["a body that is only them", secrets.join(" ")]
  ]

  const check = (outcome: Effect.Effect<Chunks.Outcome>, leastSpans: number) =>
    Secrets.assertFailsUnseen(secrets, outcome, leastSpans)

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

  it.effect("R-122: a client that prints its requests prints them without, and a reply leaves none in its span", () =>
    Effect.gen(function*() {
      const { headers, logs, spans } = yield* Secrets.printed(
        secrets,
        Chunks.body(Chunks.finish("stop")),
        (baseUrl) => OpenAiChat.layer({ model: "m", baseUrl, ...options })
      )
      assert.strictEqual(headers["api-key"], secrets[1])
      assert.include(logs, "api-key")
      assert.strictEqual(spans.find(({ name }) => name === "POST")?.attributes.get("http.response.status_code"), 200)
    }))
})
