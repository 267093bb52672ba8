/**
 * Metrics of runs by OpenTelemetry's conventions for generative AI, and, where they are asked for, the content of
 * messages and calls and the attributes of particular viewers. The spans themselves are made by every run that has a
 * tracer. No package of OpenTelemetry is needed.
 *
 * @since 0.1.0
 */
import * as Config from "effect/Config"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Tracer from "effect/Tracer"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import * as Json from "../internal/json.ts"
import * as Telemetry from "../internal/telemetry.ts"
import { names } from "../internal/telemetry.ts"
import * as Captures from "./internal/capture.ts"
import * as Dialects from "./internal/dialects.ts"
import * as Metrics from "./internal/metrics.ts"

export type { Dialect } from "./internal/dialects.ts"

/**
 * The places that the content of messages and calls is written to: none, attributes of spans, log records, or both.
 *
 * @category models
 * @since 0.1.0
 */
export type Capture = "none" | "spans" | "events" | "spans-and-events"

/**
 * The options of the layer.
 *
 * @category options
 * @since 0.1.0
 */
export interface Options {
  /**
   * The places that messages, instructions, tool definitions, arguments and results are written to. By default what
   * the environment says in `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` (`true` or `SPAN_ONLY`, `EVENT_ONLY`,
   * `SPAN_AND_EVENT`), else `"none"`. Events are log records at the level Info, which every logger of the program gets.
   */
  readonly capture?: Capture
  /**
   * Returns what is written of a text of the content, which it gets whole: each message, each text within arguments and
   * results, and each name of a member of these. Where it throws, or returns no text, a mark is written. Nothing is
   * redacted by default.
   */
  readonly redact?: (text: string) => string
  /**
   * The longest part of the content, in characters; a longer one is cut. 16,384 by default, `Infinity` for no limit.
   */
  readonly maxPartLength?: number
  /**
   * The viewers whose own attributes spans have as well. They add up the usage of all spans, so that the span of a run
   * has none. None by default.
   */
  readonly dialects?: ReadonlyArray<Dialects.Dialect>
  /**
   * The calls of tools that have spans: all of them, those that failed, or none. Metrics count them all. The spans that
   * the handler of a call without one makes are nested in that of its step. `"all"` by default.
   */
  readonly toolSpans?: "all" | "failed" | "none"
}

const dialect = Values.oneOf(...Dialects.dialects)

const knownOptions = {
  capture: Values.oneOf("none", "spans", "events", "spans-and-events"),
  redact: Values.described(Values.fn, "a function of a text"),
  maxPartLength: Values.amount,
  dialects: Values.listOf(dialect, dialect.right),
  toolSpans: Values.oneOf("all", "failed", "none")
} satisfies NamesOf<Options>

const variable = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

const byVariable: ReadonlyMap<string, Capture> = new Map([
  ["true", "spans"],
  ["span_only", "spans"],
  ["event_only", "events"],
  ["span_and_event", "spans-and-events"]
])

/** Returns what the environment asks for. A value that is not known captures nothing. */
const wanted: Effect.Effect<Capture> = Config.option(Config.String(variable)).pipe(
  Effect.map((value) => byVariable.get(Option.getOrElse(value, () => "").trim().toLowerCase()) ?? "none"),
  Effect.orElseSucceed(() => "none" as const)
)

const defaultMaxPartLength = 16_384

/** The attributes of a model call that the log records of its content and of its failure have. */
const ofRecords = [
  names.operation,
  names.provider,
  names.model,
  names.conversation,
  names.responseId,
  names.responseModel,
  names.finishReasons,
  names.inputTokens,
  names.outputTokens,
  names.error
]

/** Writes a log record that belongs to the span of an operation. */
const log = (
  { attributes, span, tracing: { context } }: Telemetry.Operation,
  level: "Info" | "Warn",
  event: string,
  further: Readonly<Record<string, unknown>>
): void => {
  const own = Object.fromEntries(ofRecords.flatMap((name) => name in attributes ? [[name, attributes[name]]] : []))
  const record = Effect.logWithLevel(level)(event).pipe(
    Effect.annotateLogs({ "event.name": event, ...own, ...further })
  )
  // The logger that turns records into events of spans would put the content into the span.
  const loggers = new Set(Context.get(context, Logger.CurrentLoggers))
  loggers.delete(Logger.tracerLogger)
  const logged = Effect.provideService(record, Logger.CurrentLoggers, loggers)
  Effect.runSyncWith(context)(span === undefined ? logged : Effect.provideService(logged, Tracer.ParentSpan, span))
}

const listener = (options: Options, capture: Capture): Telemetry.Listener => {
  const { dialects = [], maxPartLength = defaultMaxPartLength, redact, toolSpans = "all" } = options
  const writing: Captures.Writing = { redact, maxPartLength }
  const isOnSpans = capture === "spans" || capture === "spans-and-events"
  const isLogged = capture === "events" || capture === "spans-and-events"
  const contentOf = (operation: Telemetry.Operation): Readonly<Record<string, unknown>> => {
    const isWanted = isOnSpans || isLogged && operation.kind === "inference"
    return isWanted ? Captures.attributesOf(operation, writing) : {}
  }
  const writeContent = (operation: Telemetry.Operation): void => {
    // Content that is too long for a text is none.
    const content = Result.getOrElse(Result.try(() => contentOf(operation)), () => Json.none)
    if (isOnSpans) operation.set(content)
    if (dialects.length > 0) operation.set(Dialects.attributesOf(operation, isOnSpans ? content : {}, dialects))
    if (isLogged && operation.kind === "inference") {
      log(operation, "Info", "gen_ai.client.inference.operation.details", content)
    }
  }
  const writeFailure = (operation: Telemetry.Operation): void => {
    if (operation.kind !== "inference" || operation.code === undefined) return
    log(operation, "Warn", "gen_ai.client.operation.exception", { "exception.type": operation.code })
  }
  // A logger that throws keeps back nothing else.
  const writers = [Metrics.ended, writeContent, writeFailure]
  const ended = (operation: Telemetry.Operation) => {
    for (const write of writers) Result.try(() => write(operation))
  }
  return { toolSpans, addsUp: Dialects.addsUp(dialects), chunk: Metrics.chunk, ended }
}

/**
 * A layer for the runs of a program, beside the exporter of its traces, metrics and logs.
 *
 * **Details**
 *
 * A run under this layer counts as traced. Metrics go to Effect's registry, from which any exporter takes them. The
 * content is off unless it is asked for: spans, metrics and logs then hold no prompt, reply, argument, result or error
 * text. An option that cannot be used throws a `TypeError`.
 *
 * **Example** (The tokens of a run)
 *
 * ```ts import.meta.vitest
 * import { Chat } from "heddle"
 * import { Telemetry } from "heddle/telemetry"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Metric from "effect/Metric"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.usage({ inputTokens: 12 }), Script.finish("stop")]])
 * const program = Effect.andThen(Chat.run("Hi", { agent: { name: "greeter" } }), Metric.snapshot).pipe(
 *   Effect.provide([model, Telemetry.layer()]),
 *   Effect.provideService(Metric.MetricRegistry, new Map())
 * )
 * const metrics = await Effect.runPromise(program)
 * const tokens = metrics.find((metric) => metric.id === "gen_ai.client.token.usage")
 *
 * tokens?.type === "Histogram" && tokens.state.sum // => 12
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const layer = (options: Options = {}): Layer.Layer<never> => {
  checkNames("Telemetry.layer", options, knownOptions)
  const { capture } = options
  const captured = capture === undefined ? wanted : Effect.succeed(capture)
  return Layer.effect(Telemetry.CurrentListener, Effect.map(captured, (capture) => listener(options, capture)))
}
