/**
 * Records run metrics by OpenTelemetry's conventions for generative AI. On request it also records message and call
 * content, and adds span attributes for particular viewers. Spans need no layer: every run with a tracer has spans. No
 * OpenTelemetry package is needed.
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
 * Destinations for message and call content: none, span attributes, log records, or both.
 *
 * @category models
 */
export type Capture = "none" | "spans" | "events" | "spans-and-events"

/**
 * Options for the layer.
 *
 * @category options
 */
export interface Options {
  /**
   * Destination for messages, instructions, tool definitions, arguments and results. Defaults to the environment
   * variable `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` (`true` or `SPAN_ONLY`, `EVENT_ONLY`,
   * `SPAN_AND_EVENT`), else to `"none"`. Events are log records with level Info, sent to every logger except the one
   * turning records into span events. Only model calls have events.
   */
  readonly capture?: Capture
  /**
   * Redacts a content text before it is written. The function receives each text whole: texts, ids and files in
   * messages, tool descriptions, and each text, number and member name within arguments and results. If it throws, or
   * returns anything but a text, a mark is written. By default nothing is redacted.
   */
  readonly redact?: (text: string) => string
  /**
   * Maximum length of a content part, in characters; longer texts are cut, and longer files left out. 16,384 by
   * default, `Infinity` for no limit.
   */
  readonly maxPartLength?: number
  /**
   * Viewers whose own attributes are added to spans. These viewers add up the usage of all spans, so run spans then
   * carry no usage. None by default.
   */
  readonly dialects?: ReadonlyArray<Dialects.Dialect>
  /**
   * Tool calls with spans: all, only failed calls, or no calls. Metrics count all calls. Unless all calls have spans,
   * their handlers' spans nest in the step's span. `"all"` by default.
   */
  readonly toolSpans?: "all" | "failed" | "none"
}

const dialect = Values.oneOf(...Dialects.dialects)

const knownOptions = {
  capture: Values.oneOf("none", "spans", "events", "spans-and-events"),
  redact: Values.described(Values.fn, "a function of a string"),
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

/** Reads the capture requested by the environment. An unknown value captures nothing. */
const wanted: Effect.Effect<Capture> = Config.option(Config.String(variable)).pipe(
  Effect.map((value) => byVariable.get(Option.getOrElse(value, () => "").trim().toLowerCase()) ?? "none"),
  Effect.orElseSucceed(() => "none" as const)
)

const defaultMaxPartLength = 16_384

/** Model call attributes copied to log records about the call's content and failure. */
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

/** Writes a log record within an operation's span. */
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
  // The logger turning records into span events would put the content into the span.
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
    // Content too long for a string is dropped.
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
  // A throwing writer does not prevent the next.
  const writers = [Metrics.ended, writeContent, writeFailure]
  const ended = (operation: Telemetry.Operation) => {
    for (const write of writers) Result.try(() => write(operation))
  }
  return { toolSpans, addsUp: Dialects.addsUp(dialects), chunk: Metrics.chunk, ended }
}

/**
 * Creates a layer that observes a program's runs. Provide it beside the exporter for traces, metrics and logs.
 *
 * **Details**
 *
 * A run under this layer counts as traced. Metrics go to Effect's registry, open to any exporter. Content is
 * off by default: spans, metrics and logs then contain no prompt, reply, argument, result or error text. An invalid
 * option throws a `TypeError`.
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
 */
export const layer = (options: Options = {}): Layer.Layer<never> => {
  checkNames("Telemetry.layer", options, knownOptions)
  const { capture } = options
  const captured = capture === undefined ? wanted : Effect.succeed(capture)
  return Layer.effect(Telemetry.CurrentListener, Effect.map(captured, (capture) => listener(options, capture)))
}
