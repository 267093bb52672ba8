/**
 * Steps and chats for tests: the tools every scenario uses, and runs that are made twice, awaited and streamed, so that
 * each scenario also holds that the two agree, that every call is answered and that every result can be written as JSON.
 */
import { assert } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Chat, Collector, Event, Message, Policy, Step, Thread, Tool } from "heddle"
import { Script } from "heddle/testing"
import { differing } from "./travelled.ts"

/** Parameters that take any object. */
export const anything = { type: "object" } as const

export const echo = Tool.make("echo", { parameters: anything, handler: (args) => Effect.succeed(args) })

export const fail = Tool.make("fail", { parameters: {}, handler: () => Effect.fail(Symbol.for("not_found")) })

export const kaboom = new Error("kaboom")

export const boom = Tool.make("boom", {
  parameters: {},
  handler: (): Effect.Effect<never> => {
    throw kaboom
  }
})

export const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which city?")) })

export const askO = Tool.make("askO", {
  parameters: {},
  handler: () => Effect.succeed(Tool.askUser("Which city?", [["kind", "pick"]]))
})

export const stop1 = Tool.make("stop1", {
  parameters: {},
  handler: () => Effect.succeed(Tool.halt("done_early", { v: 1 }))
})

export const appr = Tool.make("appr", { parameters: anything, manual: true, handler: (args) => Effect.succeed(args) })

/** A tool that waits, and halts after that if it is given a reason. */
export const slow = (name: string, millis: number, haltReason?: string) =>
  Tool.make(name, {
    parameters: anything,
    handler: () => Effect.as(Effect.sleep(millis), haltReason === undefined ? "slow" : Tool.halt(haltReason, name))
  })

type AnyTool = Tool.Tool<string, any, any, any, never>
export type ChatOptions = Chat.Options<ReadonlyArray<AnyTool>, never, never>
export type StepOptions = Step.Options<ReadonlyArray<AnyTool>, never, never>

export const tags = (events: ReadonlyArray<Event.Event>): ReadonlyArray<Event.Event["_tag"]> =>
  events.map((event) => event._tag)

/** The events with a tag, typed. */
export const only = <Tag extends Event.Event["_tag"]>(
  events: ReadonlyArray<Event.Event>,
  tag: Tag
): ReadonlyArray<Event.Of<Tag>> => events.filter((event): event is Event.Of<Tag> => event._tag === tag)

/** What a scenario says of a message: role, text, and the call that a tool message answers. */
export const told = (message: Message.Message): string =>
  message.role === "tool"
    ? `TM(${message.toolCallId},${Message.text(message)})`
    : `${message.role}(${Message.text(message)})`

export const transcript = (thread: Thread.Thread): ReadonlyArray<string> => thread.messages.map(told)

/** Runs an effect to its end while an hour of virtual time goes by. */
export const overTime = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.gen(function*() {
    const fiber = yield* Effect.forkChild(effect, { startImmediately: true })
    if (fiber.pollUnsafe() === undefined) yield* TestClock.adjust("1 hour")
    return yield* Fiber.join(fiber)
  })

const encodeStep = Schema.encodeUnknownSync(Event.StepResult)
const encodeChat = Schema.encodeUnknownSync(Event.ChatResult)

/** The thread that runs of this file start from. */
export const start = Thread.fromMessages([Message.user("go")])

/** Every call of the thread has one answer, except those that are the caller's. */
const assertAnswered = (thread: Thread.Thread, pending: ReadonlyArray<Message.ToolCall>): void => {
  assert.deepStrictEqual(
    Thread.unanswered(thread).map((call) => call.id),
    pending.map((call) => call.id),
    "unanswered calls are those handed to the caller"
  )
  const answers = thread.messages.flatMap((message) =>
    message.toolCallId !== undefined && message.role === "tool" ? [message.toolCallId] : []
  )
  const calls = thread.messages.flatMap((message) => message.toolCalls?.map((call) => call.id) ?? [])
  assert.deepStrictEqual(answers.filter((id) => !calls.includes(id)), [], "every answer has its call")
}

/** A question has its answer in the thread: the text that says that it waits. */
const pendingOf = ({ suspensions = [] }: Pick<Event.StepResult, "suspensions">): ReadonlyArray<Message.ToolCall> =>
  suspensions.flatMap(({ kind, toolCall }) => kind === "question" ? [] : [toolCall])

export interface StepRun {
  readonly step: Event.StepResult
  readonly events: ReadonlyArray<Event.Event>
  readonly model: Script.Scripted
}

/** One step, awaited and streamed. */
export const stepOf = (input: Script.Input, options: StepOptions = {}): Effect.Effect<StepRun, Step.StepError> =>
  Effect.gen(function*() {
    const settings = { requestId: "request", ...options }
    const awaited = yield* Script.make(input)
    const step = yield* overTime(Effect.provide(Step.run(start, settings), awaited.layer))
    const model = yield* Script.make(input)
    const events = yield* overTime(Step.stream(start, settings).pipe(Stream.runCollect, Effect.provide(model.layer)))
    const fold = Collector.applyAll(Collector.initial({ policy: options.policy ?? Policy.standard }), events)
    assert.deepStrictEqual(encodeStep(Collector.toStepResult(fold)), encodeStep(step), "the fold is the run")
    assert.deepStrictEqual(tags(events).filter((tag) => tag === "StepCompleted").length, 1)
    assert.strictEqual(events.at(-1)?._tag, "StepCompleted")
    assertAnswered(step.thread, pendingOf(step))
    return { step, events, model }
  })

export interface ChatRun {
  readonly result: Event.ChatResult
  readonly events: ReadonlyArray<Event.Event>
  readonly model: Script.Scripted
}

const assertOrder = (events: ReadonlyArray<Event.Event>, result: Event.ChatResult): void => {
  assert.strictEqual(events.at(-1)?._tag, "ChatCompleted")
  assert.strictEqual(only(events, "ChatCompleted").length, 1)
  assert.strictEqual(only(events, "StepCompleted").length, result.steps.length)
}

/** One chat, awaited and streamed, from the message "go" or from what is given. */
export const chatOf = (
  input: Script.Input,
  options: ChatOptions = {},
  from: Thread.Input = start
): Effect.Effect<ChatRun, Chat.ChatError> =>
  Effect.gen(function*() {
    const settings = { requestId: "request", ...options }
    const awaited = yield* Script.make(input)
    const result = yield* overTime(Effect.provide(Chat.run(from, settings), awaited.layer))
    const model = yield* Script.make(input)
    const events = yield* overTime(Chat.stream(from, settings).pipe(Stream.runCollect, Effect.provide(model.layer)))
    const fold = Collector.applyAll(
      Collector.initial({ thread: start, policy: options.policy ?? Policy.standard }),
      events
    )
    assert.deepStrictEqual(encodeChat(Collector.toChatResult(fold)), encodeChat(result), "the fold is the run")
    assert.deepStrictEqual(fold.steps.map((step) => encodeStep(step)), result.steps.map((step) => encodeStep(step)))
    assert.deepStrictEqual(differing(from, events, result), [], "M-21: the fold of the wire form is the run")
    assertOrder(events, result)
    assertAnswered(result.thread, pendingOf(result))
    assert.strictEqual(yield* awaited.cleanups, yield* model.cleanups)
    return { result, events, model }
  })
