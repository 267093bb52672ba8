/**
 * Looks for secrets in everything that can be seen of a program: what its values print as, what it logs, and its spans.
 */
import { assert } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as HttpClient from "effect/http/HttpClient"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import { Adapter } from "heddle"
import { inspect } from "node:util"
import { type Outcome, request } from "./openAiChat.ts"
import * as Server from "./server.ts"

const withoutBigInts = (_: string, item: unknown) => typeof item === "bigint" ? String(item) : item

/** Everything that can be seen of a value by printing it. */
const visible = (value: unknown): string =>
  [String(value), JSON.stringify(value, withoutBigInts), inspect(value, { depth: 20, showHidden: true })].join("\n")

/** What a program shows while it runs. */
export interface Watch {
  readonly logs: Array<string>
  readonly spans: Array<Tracer.NativeSpan>
  readonly run: <A, E>(effect: Effect.Effect<A, E>) => Effect.Effect<A, E>
}

export const watch = (): Watch => {
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
  return {
    logs,
    spans,
    run: (effect) => effect.pipe(Effect.withTracer(tracer), Effect.provide(Logger.layer([logger])))
  }
}

/** Fails if one of the secrets can be seen in a value, or in what was watched. */
export const assertUnseen = (
  secrets: ReadonlyArray<string>,
  { logs, spans }: Watch,
  ...values: ReadonlyArray<unknown>
) => {
  const seen = [
    ...values.map(visible),
    ...logs,
    ...spans.map((span) => visible([span.name, [...span.attributes.entries()], span.status]))
  ].join("\n")
  for (const secret of secrets) assert.notInclude(seen, secret)
}

/** Fails if one of the secrets can be seen in what a reply fails with, or meanwhile, in at least so many spans. */
export const assertFailsUnseen = (
  secrets: ReadonlyArray<string>,
  outcome: Effect.Effect<Outcome>,
  leastSpans: number
): Effect.Effect<void> =>
  Effect.gen(function*() {
    const watched = watch()
    const { error } = yield* watched.run(Effect.tap(outcome, (found) => Effect.logError("failed", found)))
    assert.isDefined(error)
    assert.isNotEmpty(watched.logs)
    assert.isAtLeast(watched.spans.length, leastSpans)
    assertUnseen(secrets, watched, error, error!.message)
  })

/**
 * What a server is sent by a client that prints its requests, for a reply of this body, and what can be seen of it. Fails
 * if it is one of the secrets.
 */
export const printed = (
  secrets: ReadonlyArray<string>,
  body: string,
  layer: (url: string) => Layer.Layer<Adapter.Adapter, never, HttpClient.HttpClient>
) =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => ({ pieces: [body] }))
    const printing = Layer.effect(
      HttpClient.HttpClient,
      Effect.map(HttpClient.HttpClient, HttpClient.tapRequest((request) => Effect.logError(request)))
    ).pipe(Layer.provide(FetchHttpClient.layer))
    const watched = watch()
    const run = Stream.runDrain(Stream.unwrap(Adapter.Adapter.useSync((adapter) => adapter.stream(request))))
    yield* watched.run(Effect.provide(run, Layer.provide(layer(server.url), printing)))
    assertUnseen(secrets, watched)
    return { headers: server.requests[0]!.headers, logs: watched.logs.join("\n"), spans: watched.spans }
  }))
