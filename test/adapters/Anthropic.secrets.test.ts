/**
 * What is secret stays so: no error, log or span shows the key or the headers of a request, even if a server quotes them
 * or a client prints what it sends.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import { Anthropic } from "heddle/adapters"
import * as Wire from "../support/anthropic.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Secrets from "../support/secrets.ts"
import * as Server from "../support/server.ts"

describe("secrets", () => {
  const apiKey = Redacted.make("sk-ant-secret-123")
  const headers = { authorization: Redacted.make("Bearer secret-456"), "x-proxy-token": "plain-secret-789" }
  const secrets = [Redacted.value(apiKey), "secret-456", headers["x-proxy-token"]]
  const options: Partial<Anthropic.Options> = { apiKey, headers, retries: 0 }

  const quote = [Redacted.value(apiKey), Redacted.value(headers.authorization), headers["x-proxy-token"]].join(", ")
  const quoted = JSON.stringify({ type: "error", error: { type: "authentication_error", message: `invalid ${quote}` } })
  const refusal = (body: string): Server.Answer => ({ status: 401, headers: {}, pieces: [body] })

  const answers: ReadonlyArray<readonly [name: string, answer: string | Server.Answer]> = [
    ["a JSON error that quotes them", refusal(quoted)],
    ["a page that quotes them", refusal(`<title>${quote}</title>`)],
    ["an error event that quotes them", `event: error\ndata: ${quoted}\n\n`],
    ["an error event of their text", `event: error\ndata: ${quote}\n\n`],
    ["a body that is only them", quote]
  ]

  const check = (outcome: Effect.Effect<Chunks.Outcome>, leastSpans: number) =>
    Secrets.assertFailsUnseen(secrets, outcome, leastSpans)

  for (const [name, answer] of answers) {
    it.effect(`R-122: no error, log or span shows them after ${name}`, () => check(Wire.outcomeOf(answer, options), 1))
  }

  it.effect("R-122: no error, log or span shows them when the server cannot be reached", () =>
    Effect.flatMap(Server.unreachable, (url) => check(Chunks.outcome(Wire.stream(url, options)), 1)))

  it.effect("R-122: a key that was given with a line end is found without it", () =>
    check(Wire.outcomeOf(refusal(quoted), { ...options, apiKey: Redacted.make(`${secrets[0]}\n`) }), 1))

  it.effect("R-122: a key that no header can carry is refused unseen", () =>
    check(Wire.outcomeOf("", { ...options, apiKey: Redacted.make(`${secrets[0]}\u2603`) }), 0))

  it.effect("R-122: neither an adapter's layer nor its options print them", () =>
    Effect.sync(() =>
      Secrets.assertUnseen([secrets[0]!], Secrets.watch(), Anthropic.layer({ model: "m", apiKey }), { apiKey })
    ))

  it.effect("R-122: a client that prints its requests prints them without, and a reply leaves none in its span", () =>
    Effect.gen(function*() {
      const { headers, logs, spans } = yield* Secrets.printed(
        secrets,
        Wire.rich,
        (baseUrl) => Anthropic.layer({ model: "m", baseUrl, ...options })
      )
      assert.strictEqual(headers["x-api-key"], secrets[0])
      assert.include(logs, "x-api-key")
      assert.isTrue(spans.some(({ name }) => name === "POST"))
    }))
})
