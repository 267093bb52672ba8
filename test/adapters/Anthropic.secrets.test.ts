/**
 * What is secret stays so: no error, log or span shows the key or the headers of a request, even if a server quotes them
 * or a client prints what it sends.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as HttpClient from "effect/http/HttpClient"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as Stream from "effect/Stream"
import { Adapter } from "heddle"
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
    Effect.gen(function*() {
      const watch = Secrets.watch()
      const { error } = yield* watch.run(Effect.tap(outcome, (found) => Effect.logError("failed", found)))
      assert.isDefined(error)
      assert.isNotEmpty(watch.logs)
      assert.isAtLeast(watch.spans.length, leastSpans)
      Secrets.assertUnseen(secrets, watch, error, error!.message)
    })

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
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [Wire.rich] }))
      const printing = Layer.effect(
        HttpClient.HttpClient,
        Effect.map(HttpClient.HttpClient, HttpClient.tapRequest((request) => Effect.logError(request)))
      )
      const layer = Anthropic.layer({ model: "m", baseUrl: server.url, ...options }).pipe(
        Layer.provide(printing),
        Layer.provide(FetchHttpClient.layer)
      )
      const watch = Secrets.watch()
      const run = Stream.runDrain(Stream.unwrap(Adapter.Adapter.useSync((adapter) => adapter.stream(Chunks.request))))
      yield* watch.run(Effect.provide(run, layer))
      assert.strictEqual(server.requests[0]!.headers["x-api-key"], secrets[0])
      assert.include(watch.logs.join("\n"), "x-api-key")
      assert.isTrue(watch.spans.some(({ name }) => name === "POST"))
      Secrets.assertUnseen(secrets, watch)
    })))
})
