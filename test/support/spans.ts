/**
 * Spans that a test records, and a run's tree of them as text: names, kinds, parents, times, status, attributes, events
 * and links.
 */
import * as Cause from "effect/Cause"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Tracer from "effect/Tracer"
import { Adapter } from "heddle"
import { Script } from "heddle/testing"

/** The script as the model of a provider that spans can name. */
export const modelOf = (...script: ReadonlyArray<ReadonlyArray<Script.Entry>>): Layer.Layer<Adapter.Adapter> =>
  Adapter.map((adapter) => ({
    ...adapter,
    provider: "openai",
    model: "gpt-9",
    server: { address: "api.example.com", port: 8443 }
  })).pipe(Layer.provide(Script.layer(script as Script.Input)))

/** A tracer that keeps its spans, in the order in which they were started and ended. */
export const recording = () => {
  const spans: Array<Tracer.NativeSpan> = []
  const ended: Array<Tracer.NativeSpan> = []
  const tracer = Tracer.make({
    span: (options) => {
      const span = new Tracer.NativeSpan(options)
      const end = span.end.bind(span)
      span.end = (time, exit) => {
        ended.push(span)
        end(time, exit)
      }
      spans.push(span)
      return span
    }
  })
  return { tracer, spans, ended }
}

const parentOf = (span: Tracer.NativeSpan): string | undefined => Option.getOrUndefined(span.parent)?.spanId

export const secondsOf = (span: Tracer.NativeSpan): number =>
  span.status._tag === "Ended" ? Number(span.status.endTime - span.status.startTime) / 1e9 : Number.NaN

/** The status that an exporter writes: `ERROR` with its message, `UNSET` for a span that was cut, or `OK`. */
export const statusOf = ({ status }: Tracer.NativeSpan): string => {
  if (status._tag === "Started") return "OPEN"
  if (Exit.isSuccess(status.exit)) return "OK"
  return Cause.hasInterruptsOnly(status.exit.cause)
    ? "UNSET"
    : `ERROR ${Cause.prettyErrors(status.exit.cause)[0]?.message}`
}

/** A value as JSON, without the number of a fiber, which says nothing. */
const shown = (value: unknown): string =>
  JSON.stringify(value, (key, member) => key === "effect.fiberId" ? undefined : member)

const linesOf = (span: Tracer.NativeSpan, spans: ReadonlyArray<Tracer.NativeSpan>, indent: string): Array<string> => {
  const start = Number(span.status.startTime) / 1e9
  const within = spans.filter((other) => parentOf(other) === span.spanId)
  const named = (id: string) => {
    const linked = spans.find(({ spanId }) => spanId === id)
    return `${linked?.name} of ${linked?.attributes.get("heddle.request.id")}`
  }
  return [
    `${indent}${span.name} [${span.kind}] ${start}s +${secondsOf(span)}s ${statusOf(span)}`,
    ...[...span.attributes].map(([name, value]) => `${indent}    ${name} = ${shown(value)}`),
    ...span.events.map(([name, at, attributes]) => `${indent}    * ${name} ${Number(at) / 1e9}s ${shown(attributes)}`),
    ...span.links.map((link) => `${indent}    -> ${named(link.span.spanId)}`),
    ...within.flatMap((other) => linesOf(other, spans, `${indent}  `))
  ]
}

/** The tree of spans as text. */
export const treeOf = (spans: ReadonlyArray<Tracer.NativeSpan>): string => {
  const ids = new Set(spans.map(({ spanId }) => spanId))
  const roots = spans.filter((span) => !ids.has(parentOf(span) ?? ""))
  return `${roots.flatMap((span) => linesOf(span, spans, "")).join("\n")}\n`
}
