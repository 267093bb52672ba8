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
    Effect.gen(function*() {
      const watch = Secrets.watch()
      const { error } = yield* watch.run(Effect.tap(outcome, (found) => Effect.logError("failed", found)))
      assert.isDefined(error)
      assert.isNotEmpty(watch.logs)
      assert.isAtLeast(watch.spans.length, leastSpans)
      Secrets.assertUnseen(secrets, watch, error, error!.message)
    })

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
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [Replies.interleaved] }))
      const printing = Layer.effect(
        HttpClient.HttpClient,
        Effect.map(HttpClient.HttpClient, HttpClient.tapRequest((request) => Effect.logError(request)))
      )
      const layer = OpenAiResponses.layer({ model: "m", baseUrl: server.url, ...options }).pipe(
        Layer.provide(printing),
        Layer.provide(FetchHttpClient.layer)
      )
      const watch = Secrets.watch()
      const run = Stream.runDrain(Stream.unwrap(Adapter.Adapter.useSync((adapter) => adapter.stream(Chunks.request))))
      yield* watch.run(Effect.provide(run, layer))
      assert.strictEqual(server.requests[0]!.headers["api-key"], secrets[1])
      assert.include(watch.logs.join("\n"), "api-key")
      assert.isTrue(watch.spans.some(({ name }) => name === "POST"))
      Secrets.assertUnseen(secrets, watch)
    })))
})
