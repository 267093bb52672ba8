/**
 * Contract for adapters as runnable cases: a reply's frame, the order inside, and an adapter's duties toward its
 * connections. One suite is for adapters with an answer, the other for adapters that fail.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as Adapter from "../Adapter.ts"
import * as Event from "../Event.ts"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import * as ToolCalls from "../internal/hear/toolCalls.ts"
import * as Message from "../Message.ts"
import * as Conformance from "./Conformance.ts"
import * as Cases from "./internal/cases.ts"

/**
 * Options of a suite.
 *
 * @category models
 */
export interface Options<out R = never> {
  /**
   * Request for each case. Defaults to a one-word question; for the tool call cases, pass a request leading to calls.
   */
  readonly request?: Adapter.Request
  /**
   * Number of connections opened and closed since the layer was built. Without it the suite omits the connection cases:
   * events do not reveal whether an adapter is cold.
   */
  readonly connections?: Effect.Effect<
    {
      /** Number of opened connections. */
      readonly opened: number
      /** Number of closed connections. */
      readonly closed: number
    },
    never,
    R
  >
}

const knownOptions = { request: Values.record, connections: Values.effect } satisfies NamesOf<Options>

type Events = ReadonlyArray<Event.AdapterEvent>

const question: Adapter.Request = { messages: [Message.user("Hello")], tools: [] }

const ask = (request: Adapter.Request) => Adapter.Adapter.useSync((adapter) => adapter.stream(request))

const isOf =
  <Tag extends Event.AdapterEvent["_tag"]>(tag: Tag) =>
  (event: Event.AdapterEvent): event is Extract<Event.AdapterEvent, { readonly _tag: Tag }> => event._tag === tag

const textOf = (events: Events): string => events.filter(isOf("TextDelta")).map((event) => event.delta).join("")

const frame = (events: Events) =>
  Effect.gen(function*() {
    const tags = events.map((event) => event._tag)
    yield* Conformance.equals("the first event", tags[0], "MessageStarted")
    yield* Conformance.equals("the last event", tags.at(-1), "MessageCompleted")
    yield* Conformance.equals(
      "number of MessageStarted events",
      tags.filter((tag) => tag === "MessageStarted").length,
      1
    )
    yield* Conformance.equals(
      "number of MessageCompleted events",
      tags.filter((tag) => tag === "MessageCompleted").length,
      1
    )
  })

const adapterTags: ReadonlyArray<string> = Event.AdapterEvent.discriminants

const onlyAdapterTags = (events: Events) =>
  Effect.forEach(
    events,
    (event) => Conformance.holds(`${event._tag} is an event that an adapter may emit`, adapterTags.includes(event._tag))
  )

const encodeEvent = Schema.encodeUnknownEffect(Event.AdapterEvent)
const decodeEvent = Schema.decodeUnknownEffect(Event.AdapterEvent)

const plainData = (events: Events) =>
  Effect.forEach(events, (event) =>
    Effect.gen(function*() {
      const encoded = yield* encodeEvent(event)
      const restored = yield* decodeEvent(JSON.parse(JSON.stringify(encoded)))
      yield* Conformance.equals(`${event._tag} after a journey through JSON`, yield* encodeEvent(restored), encoded)
    }))

const wholeText = (events: Events) =>
  Effect.gen(function*() {
    const texts = events.filter(isOf("TextCompleted"))
    const hasDeltas = events.some(isOf("TextDelta"))
    yield* Conformance.equals("number of TextCompleted events", texts.length, hasDeltas ? 1 : 0)
    const expected = textOf(events)
    if (hasDeltas) yield* Conformance.equals("the completed text", texts[0]?.text, expected)
    const last = events.find(isOf("MessageCompleted"))
    yield* Conformance.equals("the text of the message", last && Message.text(last.message), expected)
    const end = events.findIndex(isOf("TextCompleted"))
    yield* Conformance.holds(
      "no text follows the completed text",
      !hasDeltas || !events.slice(end).some(isOf("TextDelta"))
    )
  })

type CallEvent = Extract<Event.AdapterEvent, { readonly _tag: `ToolCall${string}` }>

const isCallEvent = (event: Event.AdapterEvent): event is CallEvent => event._tag.startsWith("ToolCall")

const byCall = (events: Events): ReadonlyMap<string, ReadonlyArray<CallEvent>> => {
  const calls = new Map<string, ReadonlyArray<CallEvent>>()
  for (const event of events.filter(isCallEvent)) calls.set(event.id, [...calls.get(event.id) ?? [], event])
  return calls
}

const ordered = (events: Events) =>
  Effect.forEach(byCall(events), ([id, ofCall]) =>
    Effect.gen(function*() {
      const tags = ofCall.map((event) => event._tag)
      yield* Conformance.equals(`the first event of call ${id}`, tags[0], "ToolCallStarted")
      yield* Conformance.equals(`the last start of call ${id}`, tags.lastIndexOf("ToolCallStarted"), 0)
      const completed = tags.indexOf("ToolCallCompleted")
      yield* Conformance.holds(
        `nothing follows the completion of call ${id}`,
        completed === -1 || completed === tags.length - 1
      )
    }))

const wholeArguments = (events: Events) =>
  Effect.forEach(byCall(events), ([id, ofCall]) =>
    Effect.gen(function*() {
      const fragments = ofCall.flatMap((event) => event._tag === "ToolCallDelta" ? [event.argumentsDelta] : [])
      const completed = ofCall.find((event) => event._tag === "ToolCallCompleted")
      if (completed === undefined || completed.argumentsLost !== undefined) return
      if (fragments.length > 0) {
        yield* Conformance.equals(`the arguments' text of call ${id}`, completed.rawArguments, fragments.join(""))
      }
      const parsed = ToolCalls.ofText(completed.rawArguments)
      yield* Conformance.equals(
        `the arguments of call ${id}`,
        completed.arguments,
        ToolCalls.isWhole(parsed) ? parsed.arguments : "lost"
      )
    }))

/** Allows lost arguments only if fragments had begun or the reply was cut. */
const nothingMissing = (events: Events) => {
  const last = events.find(isOf("MessageCompleted"))
  if (last === undefined || ToolCalls.endingOf(last.finishReason) !== "whole") return Effect.void
  return Effect.forEach(byCall(events), ([id, ofCall]) => {
    const completed = ofCall.find((event) => event._tag === "ToolCallCompleted")
    const isBare = !ofCall.some((event) => event._tag === "ToolCallDelta") && completed?.rawArguments === ""
    return isBare
      ? Conformance.equals(
        `why call ${id}, which had no fragment, lost its arguments`,
        completed.argumentsLost,
        undefined
      )
      : Effect.void
  })
}

const shallow = (events: Events) =>
  Effect.forEach(events.filter(isOf("ToolCallCompleted")), (event) =>
    Conformance.holds(
      `the arguments of call ${event.id} nest ${ToolCalls.deepest} levels at most`,
      ToolCalls.isWhole(ToolCalls.ofValue(event.arguments))
    ))

/** Cases about reply contents. */
const reply = (request: Adapter.Request): Conformance.Suite<Adapter.Adapter> => {
  const events = Effect.flatMap(ask(request), Stream.runCollect)
  const of = (name: string, check: (events: Events) => Effect.Effect<unknown, unknown>) =>
    Conformance.make(name, Effect.flatMap(events, check))
  return [
    of("frame: a reply starts with its only MessageStarted and ends with its only MessageCompleted", frame),
    of("tags: an adapter emits only adapter events", onlyAdapterTags),
    of("data: events are well formed and survive JSON", plainData),
    of("text: the completed text and the message's text equal the joined deltas", wholeText),
    of("order: each call is started, then receives fragments, then is completed", ordered),
    of("arguments: a call's arguments equal its joined fragments", wholeArguments),
    of("arguments: in a whole reply, a call without fragments has no lost arguments", nothingMissing),
    of("arguments: a call's arguments nest at most 256 levels deep", shallow)
  ]
}

/** Cases about a reply's connection. */
const connection = <R>(
  request: Adapter.Request,
  connections: NonNullable<Options<R>["connections"]>
): Conformance.Suite<Adapter.Adapter | R> => {
  const counted = (detail: string, expected: number) =>
    Effect.flatMap(connections, (actual) => Conformance.equals(detail, actual, { opened: expected, closed: expected }))
  return [
    Cases.of("cold: nothing is opened before the first pull", function*() {
      yield* Effect.scoped(Effect.flatMap(ask(request), Stream.toPull))
      yield* counted("connections of a stream that was never pulled", 0)
    }),
    Cases.of("cold: each run of the same stream opens its own connection", function*() {
      const stream = yield* ask(request)
      yield* Stream.runDrain(stream)
      yield* Stream.runDrain(stream)
      yield* counted("connections after two runs", 2)
    }),
    Conformance.make(
      "release: a drained stream has closed its connection once",
      Effect.andThen(Effect.flatMap(ask(request), Stream.runDrain), counted("connections after a drain", 1))
    ),
    Conformance.make(
      "release: a reader leaving after the first event closes the connection",
      Effect.andThen(Effect.flatMap(ask(request), Stream.runHead), counted("connections after one event", 1))
    ),
    Cases.of("release: an interrupted reader closes the connection", function*() {
      const seen = yield* Deferred.make<void>()
      const reader = Stream.runForEach(
        yield* ask(request),
        () => Effect.andThen(Deferred.succeed(seen, undefined), Effect.never)
      )
      const fiber = yield* Effect.forkChild(reader)
      yield* Deferred.await(seen)
      yield* Fiber.interrupt(fiber)
      yield* counted("connections after an interruption", 1)
    })
  ]
}

/**
 * Contract for an adapter that answers. Each case builds the layer under test anew, and sends the request once or
 * twice.
 *
 * **Example** (A scripted adapter)
 *
 * ```ts import.meta.vitest
 * import { AdapterSuite, Conformance, Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const layer = Script.layer([Script.text("Hello"), Script.finish("stop")])
 *
 * await Effect.runPromise(Conformance.failures(AdapterSuite.answering(), layer)) // => []
 * ```
 *
 * @category suites
 */
export const answering = <R = never>(options: Options<R> = {}): Conformance.Suite<Adapter.Adapter | R> => {
  checkNames("AdapterSuite.answering", options, knownOptions)
  const { connections, request = question } = options
  return connections === undefined ? reply(request) : [...reply(request), ...connection(request, connections)]
}

/**
 * Contract for an adapter that cannot answer, due to a wrong key or a missing server. Its stream fails with an
 * `AdapterError` before its first event, and leaves no connection open.
 *
 * **Example** (The names of its cases)
 *
 * ```ts import.meta.vitest
 * import { AdapterSuite } from "heddle/testing"
 *
 * AdapterSuite.failing().length > 0 // => true
 * ```
 *
 * @category suites
 */
export const failing = <R = never>(options: Options<R> = {}): Conformance.Suite<Adapter.Adapter | R> => {
  checkNames("AdapterSuite.failing", options, knownOptions)
  const { connections, request = question } = options
  const attempt = Effect.gen(function*() {
    const seen: Array<string> = []
    const stream = yield* ask(request)
    const error = yield* stream.pipe(
      Stream.runForEach((event) => Effect.sync(() => seen.push(event._tag))),
      Effect.as(undefined),
      Effect.catch((error): Effect.Effect<unknown> => Effect.succeed(error))
    )
    return { seen, error }
  })
  return [
    Cases.of("failure: the stream fails with an AdapterError, before any event", function*() {
      const { error, seen } = yield* attempt
      yield* Conformance.equals("events before the failure", seen, [])
      yield* Conformance.holds("the stream fails with an AdapterError", error instanceof Adapter.AdapterError)
    }),
    ...(connections === undefined ? [] : [Cases.of("failure: no connection stays open", function*() {
      yield* attempt
      const { closed, opened } = yield* connections
      yield* Conformance.equals("connections closed", closed, opened)
    })])
  ]
}
