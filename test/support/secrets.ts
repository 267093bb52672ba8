/**
 * Looks for secrets in everything that can be seen of a program: what its values print as, what it logs, and its spans.
 */
import { assert } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as Tracer from "effect/Tracer"
import { inspect } from "node:util"

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
