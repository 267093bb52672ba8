/**
 * Generated runs that are cut behind any record of their journal: taken up, each comes to what the uncut run came to,
 * whatever its tools do, its policy says and its options ask for.
 */
import { assert, describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Cause from "effect/Cause"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as References from "effect/References"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, type Event, type Journal, Message, Policy, Response, Session, Step, Tool } from "heddle"
import { check } from "heddle/testing"
import { property } from "../support/property.ts"
import { journalOf, prefixed } from "../support/survivor.ts"
import { anything } from "../support/tools.ts"

class Refused extends Schema.TaggedError<Refused>("test/Refused")("Refused", { why: Schema.String }) {}

/** What the tools do, each by its name. All may be tried again, so that nothing is ever unknown. */
const handlers = {
  value: ({ n }, call) => Effect.as(call.updateContext({ [call.id]: n }), { n, text: "v".repeat(Number(n)) }),
  date: ({ n }) => Effect.succeed({ at: new Date(Number(n)) }),
  typed: ({ n }) => Effect.fail(new Refused({ why: `no ${n}` })),
  crash: ({ n }) => Effect.die(new Error(`broke ${n}`)),
  ask: ({ n }) => Effect.succeed(Tool.askUser(`which ${n}?`, { defaultAnswer: n, expiresIn: "1 hour" })),
  halt: ({ n }) => Effect.succeed(Tool.halt("enough", { n })),
  slow: ({ n }) => Effect.as(Effect.sleep(20), n),
  late: () => Effect.never,
  approved: ({ n }) => Effect.succeed(`allowed ${n}`),
  manual: () => Effect.die("is not run"),
  deaf: () => Effect.as(Effect.uninterruptible(Effect.sleep(40)), "deaf")
} satisfies Record<string, (args: Record<string, unknown>, call: Tool.CallContext) => Effect.Effect<unknown, unknown>>

type Name = keyof typeof handlers

const names = Object.keys(handlers) as [Name, ...Array<Name>]

/** What has become of the tools, the mode and the policy by the time a run is resumed, and what its reader does. */
const changes = Arbitrary.schema(Schema.Struct({
  manual: Schema.Array(Schema.Literals(names)).check(Schema.isMaxLength(3)),
  gone: Schema.Array(Schema.Literals(names)).check(Schema.isMaxLength(2)),
  mode: Schema.Literals(["auto", "auto", "manual"]),
  unknownTool: Schema.Literals(["answer", "failTurn"]),
  afterCrash: Schema.Literals(["retry", "report", "ask"]),
  cancel: Schema.Literals(["never", "never", "at once", "while the reply is repeated", "later"]),
  observer: Schema.Literals(["none", "slow"])
}))

type Changes = typeof changes extends Arbitrary.Arbitrary<infer A> ? A : never

const toolsOf = (ran: Array<string>, { afterCrash = "retry", gone = [], manual = [] }: Partial<Changes> = {}) =>
  names.filter((name) => !gone.includes(name)).map((name) =>
    manual.includes(name) ? Tool.make(name, { parameters: anything, manual: true }) : Tool.make(name, {
      parameters: anything,
      ...(name === "manual" ? {} : { afterCrash }),
      ...(name === "date" ? { success: Schema.Struct({ at: Schema.Date }) } : {}),
      ...(name === "late" ? { timeout: 10 } : {}),
      ...(name === "approved" ? { approval: true } : {}),
      ...(name === "slow" ? { concurrency: "exclusive" as const } : {}),
      ...(name === "value" ? { readOnly: true, maxResultChars: 40 } : {}),
      ...(name === "manual" ? { manual: true } : {
        handler: (args: Record<string, unknown>, call: Tool.CallContext) =>
          Effect.suspend(() => (ran.push(call.id), handlers[name](args, call)))
      })
    } as never) as Tool.Tool<string, any, any, any, never>
  )

interface Turn {
  readonly calls: ReadonlyArray<{ readonly name: Name; readonly n: number }>
  readonly finish: "stop" | "length" | "content_filter" | "tool_calls"
  readonly end: "whole" | "paused"
}

const literals = <const L extends ReadonlyArray<string | number | boolean>>(...values: L) =>
  Arbitrary.schema(Schema.Literals(values))

const turns = Arbitrary.schema(
  Schema.Array(Schema.Struct({
    calls: Schema.Array(Schema.Struct({ name: Schema.Literals(names), n: Schema.Literals([0, 3, 100]) })).check(
      Schema.isMaxLength(4)
    ),
    finish: Schema.Literals(["stop", "length", "content_filter", "tool_calls"]),
    end: Schema.Literals(["whole", "whole", "paused"])
  })).check(Schema.isMaxLength(4))
) as Arbitrary.Arbitrary<ReadonlyArray<Turn>>

const policies = { standard: Policy.standard, allm: Policy.allm, falai: Policy.falai } as const

const knobs = Arbitrary.all([
  turns,
  literals("standard", "allm", "falai"),
  literals("continue", "halt"),
  literals(1, 2, 8),
  literals(1, 2, 64),
  literals("none", "structured", "haltWhen", "finalize", "limit"),
  Arbitrary.schema(Schema.Literals(Array.from({ length: 100 }, (_, percent) => percent))),
  literals("offered tools", "any tools")
])

type Knobs = typeof knobs extends Arbitrary.Arbitrary<infer A> ? A : never

const replyOf = (turn: Turn | undefined, index: number): ReadonlyArray<Event.AdapterEvent> => {
  const calls = turn?.calls.map(({ n, name }, call) => Message.toolCall(`c${index}_${call}`, name, { n })) ?? []
  const finishReason = calls.length > 0 && turn?.finish === "stop" ? "tool_calls" : turn?.finish ?? "stop"
  return [
    { _tag: "MessageStarted", message: Message.assistant("") },
    { _tag: "TextCompleted", id: null, text: `turn ${index}` },
    ...calls.flatMap((call): ReadonlyArray<Event.AdapterEvent> => [
      { _tag: "ToolCallStarted", id: call.id, name: call.name },
      { _tag: "ToolCallCompleted", ...call, rawArguments: JSON.stringify(call.arguments) }
    ]),
    {
      _tag: "MessageCompleted",
      message: Message.assistant(`turn ${index}`, calls),
      finishReason,
      ...(turn?.end === "paused" ? { paused: true } : {}),
      usage: Response.usage({ inputTokens: 1, outputTokens: index + 1 })
    }
  ]
}

/**
 * A model that answers by the conversation alone, and notes what it is asked. It may call tools that a request does not
 * offer.
 */
const modelOf = ([turns, , , , , , , calls]: Knobs, asked: Array<Adapter.Request> = []) =>
  Adapter.layer({
    stream: (request) => {
      const { messages, tools } = request
      asked.push(request)
      const index = messages.filter(({ role, askUser }) => role === "assistant" && askUser !== true).length
      return Stream.fromIterable(
        replyOf(tools.length === 0 && calls === "offered tools" ? undefined : turns[index], index)
      )
    }
  })

/** Runs an effect with a clock that is moved on until the effect has ended. */
const inTime = <A, E>(effect: Effect.Effect<A, E>): Effect.Effect<A, E> =>
  Effect.gen(function*() {
    const fiber = yield* Effect.forkChild(effect)
    while (fiber.pollUnsafe() === undefined) yield* TestClock.adjust(Duration.millis(5))
    return yield* Fiber.join(fiber)
  }).pipe(Effect.provide(TestClock.layer()), Effect.provideService(References.MinimumLogLevel, "None"))

const optionsOf = ([, policy, onToolError, maxTurns, maxConcurrency, special]: Knobs, ran: Array<string>) => ({
  tools: toolsOf(ran),
  policy: {
    ...policies[policy],
    ...(special === "finalize" ? { onMaxTurns: "finalize" as const } : {}),
    ...(special === "limit" ? { resultLimit: 50 } : {})
  },
  onToolError,
  maxTurns,
  maxConcurrency,
  grace: 10,
  ...(special === "haltWhen" ? { haltWhen: (step: Event.StepResult) => step.toolResults.length > 1 } : {}),
  ...(special === "structured"
    ? { structuredFinalize: true, responseFormat: { type: "json_object" } as const }
    : {})
})

/** Times differ with when a run was cut: those of questions and approvals. */
const untimed = (value: unknown): unknown =>
  JSON.parse(JSON.stringify(value, (key, member) => key === "expiresAt" ? undefined : member))

/** What is different, or nothing. */
const difference = (what: string, actual: unknown, expected: unknown): ReadonlyArray<string> => {
  try {
    assert.deepStrictEqual(untimed(actual), untimed(expected))
    return []
  } catch (error) {
    const [left, right] = [JSON.stringify(untimed(actual)), JSON.stringify(untimed(expected))]
    return [`${what}: ${(error as Error).message}\n${left}\n${right}`]
  }
}

/** The uncut run: its journal, what it came to, and what its model was asked. */
const uncut = (knobs: Knobs) => {
  const asked: Array<Adapter.Request> = []
  return inTime(
    Effect.gen(function*() {
      const opened = yield* Session.open("s")
      const kept = yield* Session.keep(
        opened,
        (session) => Session.reply(session, "go", { ...optionsOf(knobs, []), requestId: "run" })
      )
      return { asked, kept, records: yield* journalOf("s") }
    }).pipe(Effect.provide(Layer.merge(modelOf(knobs, asked), Session.Store.layerMemory)), Effect.orDie)
  )
}

/** The records that the journal has where the run is cut, or nothing for a place behind its end. */
const cutAt = (records: ReadonlyArray<Journal.Record>, percent: number) => {
  const length = 2 + Math.floor((records.length - 2) * percent / 100)
  const before = records.slice(0, length)
  return length >= records.length ? undefined : { before, where: `cut behind record ${length}, ${before.at(-1)?._tag}` }
}

/** An operation on the session that was cut, and how it loads after it. */
const onCut = <A, E>(
  knobs: Knobs,
  before: ReadonlyArray<Journal.Record>,
  operation: (cut: Session.Kept) => Effect.Effect<A, E, Adapter.Adapter | Session.Store>
) => {
  const asked: Array<Adapter.Request> = []
  return inTime(
    Effect.gen(function*() {
      const kept = yield* operation((yield* Session.load("s"))!)
      return { asked, kept, loaded: yield* Session.load("s") }
    }).pipe(Effect.provide(Layer.merge(modelOf(knobs, asked), prefixed("s", before))), Effect.orDie)
  )
}

/** The words of an answer that says that nothing happened. */
const unrun = /not run|not started/

describe("the resumption of a cut run", () => {
  property(
    "O-44, O-45, O-71 to O-73: a run that is resumed with other tools, mode or policy, or stopped meanwhile, keeps each answer, and the session goes on",
    Arbitrary.all([knobs, changes]),
    ([knobs, changed]) =>
      Effect.gen(function*() {
        const whole = yield* uncut(knobs)
        const cut = cutAt(whole.records, knobs[6])
        if (cut === undefined) return []
        const { before } = cut
        const where = `${cut.where}, ${JSON.stringify(changed)}`
        const ran: Array<string> = []
        const usual = optionsOf(knobs, ran)
        const cancel = {
          never: undefined,
          "at once": Effect.void,
          "while the reply is repeated": Effect.sleep(3),
          later: Effect.sleep(30)
        }[changed.cancel]
        const options = {
          ...usual,
          tools: toolsOf(ran, changed),
          mode: changed.mode,
          policy: changed.unknownTool === "failTurn"
            ? { ...usual.policy, unknownTool: "failTurn" as const, start: "afterTurn" as const }
            : usual.policy,
          ...(cancel === undefined ? {} : { cancel }),
          ...(changed.observer === "none" ? {} : { onEvent: () => Effect.sleep(1) })
        }
        const answers = new Map(before.flatMap((record) =>
          record._tag === "CallEnded" ? [[record.message.toolCallId ?? "", record.message] as const] : []
        ))
        const waited = new Set(before.flatMap((record) =>
          record._tag === "CallWaits" ? [record.toolCallId] : []
        ))
        const last = before.findLastIndex(({ _tag }) => _tag === "StepCompleted" || _tag === "RunStarted")
        const started = before.slice(last).flatMap((record) => record._tag === "CallStarted" ? [record.toolCallId] : [])
        const inDoubt = started.filter((id) => !answers.has(id) && !waited.has(id))
        const { kept: { after, again, length, next }, loaded } = yield* onCut(knobs, before, (cut) =>
          Effect.gen(function*() {
            const again = yield* Effect.result(Session.resume(cut, { ...options, takeOver: true }))
            const after = (yield* Session.load("s"))!
            const { length } = yield* journalOf("s")
            if (Session.next(after) === "resume") {
              return { again, after, length, next: undefined }
            }
            const next = yield* Effect.exit(Session.keep(after, (session) =>
              Session.reply(session.status === "error" ? Session.recover(session) : session, "go on", {
                ...optionsOf(knobs, ran),
                pending: "deny"
              })))
            return { again, after, length, next }
          }))
        if (Result.isFailure(again) && again.failure instanceof Session.ResumeError) {
          const { reason, toolCallId = "" } = again.failure
          const isRight = reason === "tool_missing" && inDoubt.includes(toolCallId) && length === before.length
          return isRight ? [] : [`${where}: refused ${again.failure}`]
        }
        const isFailed = Result.isFailure(again) && again.failure instanceof Step.EngineError
        if (Result.isFailure(again) && !(isFailed && changed.gone.length > 0)) {
          return [`${where}: failed ${again.failure}`]
        }
        if (next === undefined) {
          return [`${where}: it is left to resume`]
        }
        if (Exit.isFailure(next)) {
          return [`${where}: the next reply: ${Cause.pretty(next.cause)}`]
        }
        const { session: { suspensions, thread } } = after
        const pending = suspensions.map(({ id }) =>
          id
        )
        const said = new Map(thread.messages.flatMap((message) =>
          message.role === "tool" ? [[message.toolCallId ?? "", message] as const] : []
        ))
        return [
          ...check.thread(thread, { pending }).map((problem) =>
            `${where}: ${JSON.stringify(problem)}`
          ),
          ...difference(`${where}: loaded`, loaded?.session, next.value.session),
          ...[...answers.keys()].filter((id) =>
            ran.includes(id)
          ).map((id) => `${where}: repeated ${id}`),
          ...[...answers].flatMap(([id, message]) => difference(`${where}: answer of ${id}`, said.get(id), message)),
          ...inDoubt.flatMap((id) => {
            const text = Message.text(said.get(id) ?? Message.assistant(""))
            return unrun.test(text) && !ran.includes(id) ? [`${where}: the started ${id} is answered ${text}`] : []
          })
        ]
      }),
    700
  )

  property(
    "D-03, O-01: cut behind any record, a generated run comes to the result of the uncut one, and no finished call is repeated",
    knobs,
    (knobs) =>
      Effect.gen(function*() {
        const whole = yield* uncut(knobs)
        const cut = cutAt(whole.records, knobs[6])
        if (cut === undefined) return []
        const { before, where } = cut
        const ran: Array<string> = []
        const again = yield* onCut(
          knobs,
          before,
          (cut) => Session.resume(cut, { ...optionsOf(knobs, ran), takeOver: true })
        )
        const { abandoned: _, ...result } = again.kept.value.result
        const { abandoned: __, ...expected } = whole.kept.value.result
        const ended = before.flatMap((record) => record._tag === "CallEnded" ? [record.message.toolCallId ?? ""] : [])
        return [
          ...ended.filter((id) => ran.includes(id)).map((id) => `${where}: repeated ${id}`),
          ...difference(`${where}: requests`, again.asked, whole.asked.slice(whole.asked.length - again.asked.length)),
          ...difference(`${where}: result`, result, expected),
          ...difference(`${where}: session`, again.kept.session, whole.kept.session),
          ...difference(`${where}: loaded`, again.loaded?.session, again.kept.session)
        ]
      }),
    700
  )

  property(
    "D-01: cut behind any record and not taken up, a generated run has each of its calls answered once, and repeats none",
    knobs,
    (knobs) =>
      Effect.gen(function*() {
        const { records } = yield* uncut(knobs)
        const cut = cutAt(records, knobs[6])
        if (cut === undefined) return []
        const { before, where } = cut
        const last = before.findLastIndex(({ _tag }) => _tag === "StepCompleted" || _tag === "ReplyReceived")
        // A reply that is not recorded is asked for again, with the calls that only read.
        const started = before[last]?._tag === "ReplyReceived"
          ? before.slice(last).flatMap((record) => record._tag === "CallStarted" ? [record.toolCallId] : [])
          : []
        const ran: Array<string> = []
        const { kept, loaded } = yield* onCut(knobs, before, (cut) =>
          Session.keep(cut, (session) =>
            Session.reply(session, "go on", { ...optionsOf(knobs, ran), pending: "deny" })))
        const pending = kept.session.suspensions.map(({ id }) =>
          id
        )
        return [
          ...check.thread(kept.session.thread, { pending }).map((problem) => `${where}: ${JSON.stringify(problem)}`),
          ...started.filter((id) => ran.includes(id)).map((id) => `${where}: repeated ${id}`),
          ...difference(`${where}: loaded`, loaded?.session, kept.session)
        ]
      }),
    700
  )
})
