/**
 * What is secret stays so: no error, log or span shows the key or the headers of a request, even if a server quotes them
 * or a client prints what it sends.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as HttpClient from "effect/http/HttpClient"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Redacted from "effect/Redacted"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import { Adapter } from "heddle"
import { OpenAiResponses } from "heddle/adapters"
import { inspect } from "node:util"
import * as Chunks from "../support/openAiChat.ts"
import * as Replies from "../support/openAiResponses.ts"
import * as Server from "../support/server.ts"

describe("secrets", () => {
  const apiKey = Redacted.make("sk-secret-value-123")
  const headers = { "api-key": Redacted.make("azure-secret-456"), "x-token": "plain-secret-789" }
  const secrets = [Redacted.value(apiKey), Redacted.value(headers["api-key"]), headers["x-token"]]
  const options: Partial<OpenAiResponses.Options> = { apiKey, headers, retries: 0 }

  const withoutBigInts = (_: string, item: unknown) => typeof item === "bigint" ? String(item) : item

  /** Everything that can be seen of a value by printing it. */
  const visible = (value: unknown): string =>
    [String(value), JSON.stringify(value, withoutBigInts), inspect(value, { depth: 20, showHidden: true })].join("\n")

  const assertClean = (text: string) => {
    for (const secret of secrets) assert.notInclude(text, secret)
  }

  /** What a program shows while it runs: everything that is logged, and every span. */
  const watching = () => {
    const logs: Array<string> = []
    const spans: Array<Tracer.NativeSpan> = []
    const tracer = Tracer.make({
      span: (given) => {
        const span = new Tracer.NativeSpan(given)
        spans.push(span)
        return span
      }
    })
    const logger = Logger.make((log) => logs.push(visible([log.message, Cause.pretty(log.cause)])))
    const watch = <A, E>(effect: Effect.Effect<A, E>) =>
      effect.pipe(Effect.withTracer(tracer), Effect.provide(Logger.layer([logger])))
    return { logs, spans, watch }
  }

  const quoted = JSON.stringify({ error: { message: `Incorrect API key provided: ${secrets.join(", ")}` } })
  const refusal = (body: string): Server.Answer => ({ status: 401, headers: {}, pieces: [body] })

  const answers: ReadonlyArray<readonly [name: string, answer: string | Server.Answer]> = [
    ["a JSON error that quotes them", refusal(quoted)],
    ["a page that quotes them", refusal(`<title>${secrets.join(" ")}</title>`)],
    ["an error event that quotes them", `event: error\ndata: ${quoted}\n\n`],
    [
      "a reply that failed with them",
      Replies.body(Replies.event("failed", { response: { error: { message: secrets.join() } } }))
    ],
    ["an error event of their text", `event: error\ndata: ${secrets.join(" ")}\n\n`],
    ["a body that is only them", secrets.join(" ")]
  ]

  const check = (outcome: Effect.Effect<Chunks.Outcome>, leastSpans: number) =>
    Effect.gen(function*() {
      const { logs, spans, watch } = watching()
      const { error } = yield* watch(Effect.tap(outcome, (found) => Effect.logError("failed", found)))
      assert.isDefined(error)
      assertClean(visible(error))
      assertClean(error!.message)
      assert.isNotEmpty(logs)
      assertClean(logs.join("\n"))
      assert.isAtLeast(spans.length, leastSpans)
      for (const span of spans) assertClean(visible([[...span.attributes.entries()], span.status]))
    })

  for (const [name, answer] of answers) {
    it.effect(`R-122: no error, log or span shows them after ${name}`, () =>
      check(Replies.outcomeOf(answer, options), 1))
  }

  it.effect("R-122: no error, log or span shows them when the server cannot be reached", () =>
    Effect.flatMap(Server.unreachable, (url) => check(Chunks.outcome(Replies.stream(url, options)), 1)))

  it.effect("R-122: a key that was given with a line end is found without it", () =>
    check(Replies.outcomeOf(refusal(quoted), { ...options, apiKey: Redacted.make(`${secrets[0]}\n`) }), 1))

  it.effect("R-122: a key that no header can carry is refused unseen", () =>
    check(Replies.outcomeOf("", { ...options, apiKey: Redacted.make(`${secrets[0]}\u2603`) }), 0))

  it.effect("R-122: a client that prints its requests prints them without, and a reply leaves none in its span", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [Replies.body(Replies.completed())] }))
      const printing = Layer.effect(
        HttpClient.HttpClient,
        Effect.map(HttpClient.HttpClient, HttpClient.tapRequest((request) => Effect.logError(request)))
      )
      const layer = OpenAiResponses.layer({ model: "m", baseUrl: server.url, ...options }).pipe(
        Layer.provide(printing),
        Layer.provide(FetchHttpClient.layer)
      )
      const { logs, spans, watch } = watching()
      const run = Stream.runDrain(Stream.unwrap(Adapter.Adapter.useSync((adapter) => adapter.stream(Chunks.request))))
      yield* watch(Effect.provide(run, layer))
      assert.strictEqual(server.requests[0]!.headers["api-key"], secrets[1])
      assert.include(logs.join("\n"), "api-key")
      assertClean(logs.join("\n"))
      assert.strictEqual(spans.find(({ name }) => name === "POST")?.attributes.get("http.response.status_code"), 200)
      for (const span of spans) assertClean(visible([[...span.attributes.entries()], span.status]))
    })))
})
