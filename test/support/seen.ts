/**
 * What a scenario's calls came to and when, in one form for an executor and for a run of `Chat`, so that both can be held
 * to the same rows.
 */
import { assert } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Stream from "effect/Stream"
import { Chat, type Event, Message, Policy, StreamingToolExecutor, Thread, Tool } from "heddle"
import { Script, Simulation } from "heddle/testing"
import type { Floor, Work } from "./floor.ts"

/** The one result of a call. `error` is a part of its text, `at` the time at which it was emitted. */
export interface Seen {
  readonly id: string
  readonly at: number
  readonly success: boolean
  readonly data?: unknown
  readonly error?: string
  readonly cancelled?: true
  readonly gate?: string
}

export const ok = (id: string, at: number, data: unknown): Seen => ({ id, at, success: true, data })

export const failed = (id: string, at: number, error: string): Seen => ({ id, at, success: false, error })

export const cancelled = (id: string, at: number, error = "cancelled"): Seen => ({
  id,
  at,
  success: false,
  error,
  cancelled: true
})

export const denied = (id: string, at: number, gate: string, error: string): Seen => ({
  id,
  at,
  success: false,
  error,
  gate
})

/** What a scenario is given besides its calls. */
export interface Given {
  readonly maxParallel?: number
  readonly policy?: Partial<Policy.Policy>
  readonly siblings?: Partial<Policy.Policy["siblings"]>
  readonly context?: Readonly<Record<string, unknown>>
  /** When an `AbortSignal` that is given fires. */
  readonly abortAt?: number
}

/** What became of it: results in the order in which they were emitted, progress, and the text that the model reads. */
export interface Scene {
  readonly results: ReadonlyArray<Seen>
  readonly progress: ReadonlyArray<readonly [at: number, id: string, value: unknown]>
  readonly contents: ReadonlyArray<readonly [id: string, content: string]>
  readonly context: Readonly<Record<string, unknown>>
  readonly sleeping: number
}

const policyOf = ({ policy, siblings }: Given): Policy.Policy => ({
  ...Policy.falai,
  ...policy,
  siblings: { ...Policy.falai.siblings, ...siblings }
})

/** The value of a simulation that came to one. */
export const valueOf = <A, E>(report: Simulation.Report<A, E>): A =>
  report.exit !== undefined && Exit.isSuccess(report.exit)
    ? report.exit.value
    : assert.fail(`it came to nothing: ${JSON.stringify(report.exit)}`)

/** A signal that fires at a time of the clock. */
const signalAt = (millis: number | undefined): Effect.Effect<AbortSignal | undefined> =>
  Effect.gen(function*() {
    if (millis === undefined) return undefined
    const controller = new AbortController()
    if (millis === 0) controller.abort()
    else yield* Effect.forkDetach(Effect.andThen(Effect.sleep(millis), Effect.sync(() => controller.abort())))
    return controller.signal
  })

export const callOf = ({ args, id, tool }: Work): Message.ToolCall => Message.toolCall(id, tool.name, args ?? {})

/** An update of an executor as a result of a call, if it is one. */
export const seenOf = ({ result, toolCallId: id }: StreamingToolExecutor.Update, at: number): ReadonlyArray<Seen> =>
  result === undefined ? [] : [{
    id,
    at,
    success: result.success,
    ...(result.success ? { data: result.data } : { error: result.error ?? "" }),
    ...(result.metadata.cancelled === true ? { cancelled: true } : {}),
    ...(result.metadata.gate === undefined ? {} : { gate: result.metadata.gate })
  }]

/** Hands all calls over at once, and reads every update. */
export const byExecutor = (works: ReadonlyArray<Work>, given: Given = {}): Effect.Effect<Scene> => {
  const program = Effect.gen(function*() {
    const { abortAt, maxParallel, context } = given
    const signal = yield* signalAt(abortAt)
    const executor = yield* StreamingToolExecutor.make({
      policy: policyOf(given),
      ...(maxParallel === undefined ? {} : { maxParallel }),
      ...(context === undefined ? {} : { context }),
      ...(signal === undefined ? {} : { signal })
    })
    for (const work of works) yield* executor.addTool(callOf(work), work.tool)
    yield* executor.noMoreCalls
    const told = yield* timedUpdates(executor)
    return {
      results: told.flatMap(([at, update]) => seenOf(update, at)),
      progress: told.flatMap(([at, { progress, toolCallId }]) =>
        progress === undefined ? [] : [[at, toolCallId, progress] as const]
      ),
      contents: told.flatMap(([, { result, toolCallId }]) =>
        result === undefined ? [] : [[toolCallId, String(result.content)] as const]
      ),
      context: yield* executor.updatedContext
    }
  })
  return Effect.map(Simulation.run(Effect.scoped(program)), (report) => ({
    ...valueOf(report),
    sleeping: report.sleeping
  }))
}

/** The updates not yet read, each with its time. */
export const timedUpdates = (executor: StreamingToolExecutor.StreamingToolExecutor) =>
  Stream.runCollect(Stream.mapEffect(
    executor.remainingResults,
    (update) => Effect.map(Clock.currentTimeMillis, (at) => [at, update] as const)
  ))

/** How long the model speaks on after its calls, where tools are to start while it does. */
const replyMillis = 1_000

type Delivery = "early" | "after"

/** A model that makes the calls and then answers: it speaks on after the calls, or stops with them. */
const scriptOf = (works: ReadonlyArray<Work>, delivery: Delivery): ReadonlyArray<ReadonlyArray<Script.Entry>> => [
  [
    ...works.map(({ args, id, tool }) => Script.toolCall(id, tool.name, args ?? {})),
    ...(delivery === "early" ? [Script.delay(replyMillis), Script.text("there")] : []),
    Script.finish("tool_calls")
  ],
  [Script.text("done"), Script.finish("stop")]
]

const errorOf = (error: unknown): Pick<Seen, "error" | "cancelled" | "gate"> => {
  if (!(error instanceof Tool.ToolError)) return { error: String(error) }
  const gate = error.metadata?.["gate"]
  return {
    error: error.message,
    ...(error.reason === "cancelled" ? { cancelled: true } : {}),
    ...(typeof gate === "string" ? { gate } : {})
  }
}

const outcomeOf = ({ id, result }: Event.Of<"ToolExecutionCompleted">, at: number): Seen => ({
  id,
  at,
  success: result._tag !== "Error",
  ...(result._tag === "Error" ? errorOf(result.error) : { data: dataOf(result) })
})

const dataOf = (outcome: Exclude<Tool.Outcome, Tool.Error>): unknown => {
  if (outcome._tag === "Ok") return outcome.value
  return outcome._tag === "Halt" ? outcome.result : outcome
}

/** The tools of the works, once each. */
const toolsOf = (works: ReadonlyArray<Work>) => Array.from(new Map(works.map(({ tool }) => [tool.name, tool])).values())

/** A run of `Chat` whose model makes the calls. History holds every answer, in the order of the calls. */
export const byChat = (delivery: Delivery) => (works: ReadonlyArray<Work>, given: Given = {}): Effect.Effect<Scene> => {
  const told: Array<readonly [at: number, event: Event.Event]> = []
  const program = Effect.gen(function*() {
    const { abortAt, maxParallel, context } = given
    const cancel = yield* signalAt(abortAt)
    const events = Chat.stream("go", {
      tools: toolsOf(works),
      policy: policyOf(given),
      ...(maxParallel === undefined ? {} : { maxConcurrency: maxParallel }),
      ...(context === undefined ? {} : { context }),
      ...(cancel === undefined ? {} : { cancel })
    })
    yield* Stream.runForEach(events, (event) =>
      Effect.map(Clock.currentTimeMillis, (at) => {
        told.push([at, event])
      }))
  })
  return Effect.gen(function*() {
    const model = yield* Script.make(scriptOf(works, delivery))
    const report = yield* Simulation.run(Effect.provide(program, model.layer))
    valueOf(report)
    const last = told.at(-1)?.[1]
    const result = last?._tag === "ChatCompleted" ? last.result : assert.fail("the run did not end")
    const answers = result.thread.messages.filter(({ role }) => role === "tool")
    const ids = result.thread.messages.flatMap(({ toolCalls }) => toolCalls?.map(({ id }) => id) ?? [])
    assert.deepStrictEqual(answers.map(({ toolCallId }) => toolCallId), ids, "answers stand in the order of the calls")
    assert.deepStrictEqual(Thread.unanswered(result.thread), [])
    return {
      results: told.flatMap(([at, event]) => event._tag === "ToolExecutionCompleted" ? [outcomeOf(event, at)] : []),
      progress: told.flatMap(([at, event]) =>
        event._tag === "ToolProgress" ? [[at, event.id, event.progress] as const] : []
      ),
      contents: answers.map((message) => [message.toolCallId ?? "", Message.text(message)] as const),
      context: { ...context(given), ...result.contextUpdate },
      sleeping: report.sleeping
    }
  })
}

const context = (given: Given): Readonly<Record<string, unknown>> => given.context ?? {}

/** Compares results: an error has to hold the text that is expected of it, everything else has to be the same. */
export const assertSeen = (actual: ReadonlyArray<Seen>, expected: ReadonlyArray<Seen>): void => {
  const without = (seen: Seen) => {
    const { error: _, ...rest } = seen
    return rest
  }
  assert.deepStrictEqual(actual.map(without), expected.map(without))
  expected.forEach(({ error }, index) => {
    if (error !== undefined) assert.include(actual[index]?.error, error)
  })
}

/** A way to play a scenario. */
export type Play = (works: ReadonlyArray<Work>, given?: Given) => Effect.Effect<Scene>

/** Nothing of a scenario was against the rules, and nothing of it is left. */
export const assertClean = (floor: Floor, sleeping: number): void => {
  assert.deepStrictEqual(floor.breaches, [])
  assert.deepStrictEqual(floor.live, [])
  assert.strictEqual(sleeping, 0)
  const starts = floor.marks.filter(([, what]) => what === "start").map(([, , id]) => id)
  const ends = floor.marks.filter(([, what]) => what !== "start").map(([, , id]) => id)
  assert.deepStrictEqual(ends.toSorted(), starts.toSorted(), "every handler that started has ended once")
}
