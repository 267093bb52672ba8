/** `UiStream` against the AI SDK: its reader of the stream, and its `Chat`. */
import { Chat } from "@ai-sdk/react"
import { assert, describe, it } from "@effect/vitest"
import {
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  type UIMessage,
  type UIMessageChunk
} from "ai"
import type * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { type Adapter, Event, Message, Session, Thread, Tool } from "heddle"
import { Script } from "heddle/testing"
import { type Body, UiStream } from "heddle/ui"
import { cases } from "../support/cases.ts"
import { published } from "../support/pages.ts"
import { property } from "../support/property.ts"
import { chatOf } from "../support/scenarios.ts"
import { payer, tools } from "../support/sessions.ts"
import { ask, echo, fail, slow } from "../support/tools.ts"
import { play } from "../support/worlds.ts"
import { chunksOf, hasAllTexts, problemsOf, readMessage, stepTexts, toolParts } from "./support/page.ts"

const { finish, text, toolCall } = Script

/** Requires that the reader makes of a run what its thread has. */
const holds = (events: ReadonlyArray<Event.Event>, result: Event.ChatResult, from = 1) =>
  Effect.gen(function*() {
    const read = yield* Effect.promise(() => readMessage(chunksOf(published(events))))
    assert.deepStrictEqual(problemsOf(read, result, from), [])
    return read
  })

describe("UiStream.make", () => {
  property("W-01: the AI SDK reads any run as its thread has it", cases, (any) =>
    Effect.gen(function*() {
      const { events } = yield* play(any, "stream")
      const end = events.at(-1)
      if (end?._tag !== "ChatCompleted") return []
      const read = yield* Effect.promise(() => readMessage(chunksOf(published(events))))
      return problemsOf(read, end.result, 1, hasAllTexts(any, events))
    }), 3000)

  const scripts: { readonly [name: string]: () => ReturnType<typeof chatOf> } = {
    "text only": () => chatOf([[text("Hel"), text("lo"), finish("stop")]]),
    "reasoning, text and calls": () =>
      chatOf([
        [
          Script.reasoning("hm"),
          text("I look."),
          toolCall("e1", "echo", { a: 1 }),
          toolCall("b1", "boom"),
          finish("tool_calls")
        ],
        [text("Done."), finish("stop")]
      ], { tools }),
    "all that waits": () =>
      chatOf([[
        toolCall("q", "ask"),
        toolCall("p", "pay", { amount: 1 }),
        toolCall("m", "appr"),
        toolCall("e", "echo"),
        finish("tool_calls")
      ]], { tools }),
    "a halt": () => chatOf([[toolCall("s", "stop1"), finish("tool_calls")]], { tools }),
    "a failure that ends the run": () =>
      chatOf([[toolCall("f", "fail"), finish("tool_calls")]], { tools: [fail], onToolError: "halt" }),
    // Seed 1 of the law above, value 2234: the run gives the id of a call without a name away before its name comes.
    "a call without a name whose id another one would get": () =>
      chatOf([
        [
          toolCall("d", "echo", { a: 1 }),
          Script.toolCallDelta("d_2", "{}"),
          toolCall("d", "echo", { a: 2 }),
          finish("tool_calls")
        ],
        [text("Done."), finish("stop")]
      ], { tools }),
    "a tool that does not exist": () =>
      chatOf([[toolCall("n", "none"), finish("tool_calls")], [text("Sorry."), finish("stop")]], { tools }),
    "a cancelled run": () =>
      chatOf([[toolCall("w", "slow"), finish("tool_calls")]], { tools: [slow(60_000)], cancel: Effect.sleep(10) })
  }

  for (const [name, script] of Object.entries(scripts)) {
    it.effect(`W-01: the AI SDK reads a run as its thread has it: ${name}`, () =>
      Effect.gen(function*() {
        const { events, result } = yield* script()
        yield* holds(events, result)
        for (const protocol of [5, 6, 7] as const) {
          assert.strictEqual(chunksOf(published(events), { protocol }).at(-1)?.type, "finish", `ai ${protocol}`)
        }
      }))
  }
})

describe("UiStream.chunks", () => {
  const types = (chunks: ReadonlyArray<UiStream.Chunk>) => chunks.map(({ type }) => type)
  const called: ReadonlyArray<Event.PublicEvent> = [
    { _tag: "MessageStarted" },
    { _tag: "ToolCallStarted", id: "c", name: "work" },
    { _tag: "ToolCallCompleted", id: "c", name: "work", arguments: { a: 1 } },
    { _tag: "MessageCompleted" }
  ]
  const ended: ReadonlyArray<Event.PublicEvent> = [
    { _tag: "StepCompleted" },
    { _tag: "ChatCompleted", outcome: { _tag: "Completed", finishReason: "stop" } }
  ]

  it.effect("W-01: an error with the code denied is a denial, and any other error is an error", () =>
    Effect.promise(async () => {
      const answered = (code: string): ReadonlyArray<Event.PublicEvent> => [
        ...called,
        { _tag: "ToolResultEncoded", id: "c", content: "no", isError: true, code },
        ...ended
      ]
      const states = async (code: string, options: UiStream.Options = {}) =>
        toolParts((await readMessage(chunksOf(answered(code), options))).message).map(({ state }) => state)
      assert.deepStrictEqual(await states("denied"), ["output-denied"])
      assert.deepStrictEqual(await states("timeout"), ["output-error"])
      assert.deepStrictEqual(await states("denied", { protocol: 5 }), ["output-error"])
    }))

  it.effect("W-01: a call with an unpublished result has an output", () =>
    Effect.promise(async () => {
      const { error, message } = await readMessage(
        chunksOf([...called, { _tag: "ToolResultEncoded", id: "c" }, ...ended])
      )
      assert.isUndefined(error)
      assert.deepStrictEqual(toolParts(message).map(({ output, state }) => [state, output]), [[
        "output-available",
        null
      ]])
    }))

  it.effect("W-01: arguments beyond 8 kB come as a whole after the first 8 deltas", () =>
    Effect.sync(() => {
      const delta = "x".repeat(1000)
      const chunks = chunksOf([
        { _tag: "MessageStarted" },
        { _tag: "ToolCallStarted", id: "c", name: "work" },
        ...Array.from({ length: 50 }, () => ({ _tag: "ToolCallDelta", id: "c", argumentsDelta: delta }) as const),
        { _tag: "ToolCallCompleted", id: "c", name: "work", arguments: { text: delta.repeat(50) } }
      ])
      const deltas = chunks.filter(({ type }) => type === "tool-input-delta")
      assert.strictEqual(deltas.length, 8)
      assert.deepStrictEqual(chunks.find(({ type }) => type === "tool-input-available")?.["input"], {
        text: delta.repeat(50)
      })
    }))

  it.effect("W-01: a discarded reply leaves nothing in the message", () =>
    Effect.promise(async () => {
      const events: ReadonlyArray<Event.PublicEvent> = [
        { _tag: "MessageStarted" },
        { _tag: "TextDelta", id: null, delta: "Wro" },
        { _tag: "ToolCallStarted", id: "c", name: "work" },
        { _tag: "StepReset", error: { code: "network_error", message: "" } },
        { _tag: "MessageStarted" },
        { _tag: "TextDelta", id: null, delta: "Right" },
        ...ended
      ]
      const { error, message } = await readMessage(chunksOf(events))
      assert.isUndefined(error)
      assert.deepStrictEqual(message?.parts.map(({ type }) => type), ["step-start", "text"])
      assert.deepStrictEqual(stepTexts(message), ["Right"])
      assert.notInclude(types(chunksOf(events, { protocol: 5 })), "reset-step")
    }))

  it.effect("W-01: a run inside a handler is one part of bounded size", () =>
    Effect.promise(async () => {
      const nested = (event: Event.PublicEvent): Event.PublicEvent => ({
        _tag: "ToolProgress",
        id: "c",
        name: "work",
        nested: event
      })
      const many = Array.from({ length: 100 }, (_, index): ReadonlyArray<Event.PublicEvent> => [
        nested({ _tag: "ToolCallCompleted", id: `n${index}`, name: "inner", arguments: {} }),
        nested({ _tag: "ToolResultEncoded", id: `n${index}`, content: "x".repeat(10_000) })
      ]).flat()
      const { message } = await readMessage(chunksOf([
        ...called,
        nested({ _tag: "MessageStarted" }),
        ...Array.from({ length: 100 }, () => nested({ _tag: "TextDelta", id: null, delta: "y".repeat(1000) })),
        ...many,
        nested({ _tag: "ChatCompleted", outcome: { _tag: "Completed" } }),
        { _tag: "ToolResultEncoded", id: "c", content: "done" },
        ...ended
      ]))
      const parts = message?.parts.filter((part) => part.type === "data-heddle-subrun") ?? []
      assert.strictEqual(parts.length, 1)
      const { data } = parts[0] as unknown as { readonly data: UiStream.SubRun }
      assert.deepStrictEqual([data.state, data.steps, data.text.length, data.calls.length], ["done", 1, 4000, 32])
      assert.deepStrictEqual(data.calls.at(-1), { id: "n99", name: "inner", state: "done" })
    }))

  it.effect("W-03: a continuation with nothing to do opens a step, so that the client sends nothing again", () =>
    Effect.sync(() => {
      const outcome = { _tag: "Completed", finishReason: "stop" }
      assert.deepStrictEqual(types(chunksOf([{ _tag: "ChatCompleted", outcome }], { messageId: "m" })), [
        "start",
        "start-step",
        "finish-step",
        "finish"
      ])
    }))

  it.effect("W-03: a new message omits answers to calls of earlier messages", () =>
    Effect.promise(async () => {
      const events: ReadonlyArray<Event.PublicEvent> = [
        { _tag: "ToolResultEncoded", id: "old", content: "x", settled: true },
        { _tag: "MessageStarted" },
        ...ended
      ]
      assert.isUndefined((await readMessage(chunksOf(events, { continues: false }))).error)
      assert.isDefined((await readMessage(chunksOf(events))).error)
    }))

  it.effect("W-01: progress of a waiting call is not shown as its output", () =>
    Effect.promise(async () => {
      const progress: Event.PublicEvent = { _tag: "ToolProgress", id: "c", name: "work", progress: { stage: 1 } }
      const suspension = { id: "r~c", kind: "question" as const, toolCall: { id: "c", name: "work" } }
      const { message } = await readMessage(chunksOf([
        ...called,
        progress,
        { _tag: "AskUserRequested", toolCallId: "c", toolName: "work", suspensions: [suspension] },
        { _tag: "StepCompleted" },
        { _tag: "ChatCompleted", outcome: { _tag: "AskUser" }, suspensions: [suspension] }
      ]))
      assert.deepStrictEqual(toolParts(message).map(({ input, state }) => [state, input]), [["input-available", {
        a: 1
      }]])
    }))

  it.effect("W-01: deltas are joined for 50 ms, and any other event sends them at once, in order", () =>
    Effect.gen(function*() {
      const queue = yield* Queue.unbounded<Event.PublicEvent>()
      const seen: Array<UiStream.Chunk> = []
      const said = (delta: string): Event.PublicEvent => ({ _tag: "TextDelta", id: null, delta })
      const fiber = yield* UiStream.chunks(Stream.fromQueue(queue)).pipe(
        Stream.runForEach((chunk) => Effect.sync(() => void seen.push(chunk))),
        Effect.forkChild({ startImmediately: true })
      )
      yield* Queue.offerAll(queue, [{ _tag: "MessageStarted" }, said("a"), said("b")])
      yield* TestClock.adjust(49)
      assert.deepStrictEqual(types(seen), ["start", "start-step"])
      yield* TestClock.adjust(1)
      assert.deepStrictEqual(seen.slice(2).map(({ delta = "" }) => delta), ["", "ab"])
      yield* Queue.offerAll(queue, [said("c"), said("d"), { _tag: "ToolCallStarted", id: "c1", name: "work" }])
      yield* TestClock.adjust(0)
      assert.deepStrictEqual(seen.slice(4).map(({ delta, type }) => delta ?? type), [
        "cd",
        "text-end",
        "tool-input-start"
      ])
      yield* Fiber.interrupt(fiber)
    }))

  it.effect("W-01: interleaved texts and reasoning keep their order when deltas are joined", () =>
    Effect.gen(function*() {
      const said = (delta: string): Event.PublicEvent => ({ _tag: "TextDelta", id: null, delta })
      const thought = (delta: string): Event.PublicEvent => ({ _tag: "ReasoningDelta", id: null, delta })
      const argued = (argumentsDelta: string): Event.PublicEvent => ({ _tag: "ToolCallDelta", id: "c", argumentsDelta })
      const called: Event.PublicEvent = { _tag: "ToolCallStarted", id: "c", name: "work" }
      const events = [
        thought("a"),
        thought("b"),
        said("c"),
        called,
        argued("{"),
        said("d"),
        argued("}"),
        thought("e"),
        said("f")
      ]
      const deltas = (joinMillis: number) =>
        Effect.map(
          Stream.runCollect(UiStream.chunks(Stream.fromIterable(events), { joinMillis })),
          (chunks) => chunks.flatMap(({ delta, type }) => typeof delta === "string" ? [`${type} ${delta}`] : [])
        )
      const texts = ["reasoning-delta ab", "text-delta c", "text-delta d", "reasoning-delta e", "text-delta f"]
      assert.deepStrictEqual(yield* deltas(50), texts)
      assert.deepStrictEqual(
        (yield* deltas(0)).join(""),
        ["reasoning-delta a", "reasoning-delta b", ...texts.slice(1)].join("")
      )
    }))

  it.effect("W-01: deltas from a stream that never pauses are not held longer", () =>
    Effect.gen(function*() {
      let now = 0
      const clock = Object.create(yield* Clock.Clock, {
        currentTimeMillis: { get: () => Effect.sync(() => now += 10) }
      }) as Clock.Clock
      const deltas = Array.from({ length: 100 }, (_, index): Event.PublicEvent => ({
        _tag: "TextDelta",
        id: null,
        delta: String(index % 10)
      }))
      const chunks = yield* UiStream.chunks(Stream.rechunk(Stream.fromIterable(deltas), 1)).pipe(
        Stream.runCollect,
        Effect.provideService(Clock.Clock, clock)
      )
      const texts = chunks.flatMap(({ delta }) => typeof delta === "string" ? [delta] : [])
      assert.strictEqual(texts.join(""), "0123456789".repeat(10))
      assert.isAtMost(Math.max(...texts.map((text) => text.length)), 6)
    }))

  it.effect("W-01: a body begins with a comment, has another after 15 quiet seconds, and ends with [DONE]", () =>
    Effect.gen(function*() {
      const queue = yield* Queue.unbounded<UiStream.Chunk, Cause.Done>()
      const seen: Array<string> = []
      const fiber = yield* UiStream.toSse(Stream.fromQueue(queue)).pipe(
        Stream.runForEach((text) => Effect.sync(() => void seen.push(text))),
        Effect.forkChild({ startImmediately: true })
      )
      assert.deepStrictEqual(seen, [": heddle\n\n"])
      yield* TestClock.adjust("10 seconds")
      yield* Queue.offer(queue, { type: "start-step" })
      yield* TestClock.adjust("14 seconds")
      assert.deepStrictEqual(seen.slice(1), ["data: {\"type\":\"start-step\"}\n\n"])
      yield* TestClock.adjust("1 second")
      assert.deepStrictEqual(seen.slice(2), [": quiet\n\n"])
      yield* Queue.end(queue)
      yield* Fiber.join(fiber)
      assert.deepStrictEqual(seen.slice(3), ["data: [DONE]\n\n"])
    }))

  it.effect("W-01: a failing stream ends its chunks with an error, and fails", () =>
    Effect.gen(function*() {
      const seen: Array<UiStream.Chunk> = []
      const broken = Stream.concat(Stream.fromIterable(called), Stream.fail("gone"))
      const exit = yield* UiStream.chunks(broken).pipe(
        Stream.runForEach((chunk) => Effect.sync(() => void seen.push(chunk))),
        Effect.flip
      )
      assert.strictEqual(exit, "gone")
      assert.deepStrictEqual(types(seen).slice(-3), ["finish-step", "message-metadata", "error"])
    }))
})

describe("UiStream.messages", () => {
  const shown = (message: UIMessage | undefined) =>
    (message?.parts ?? []).map((part) =>
      part.type === "dynamic-tool"
        ? [part.type, part.toolCallId, part.state, part.input, part.output, part.errorText, part.approval?.id]
        : part.type === "text" || part.type === "reasoning"
        ? [part.type, part.text]
        : [part.type, (part as { readonly data?: unknown }).data]
    )

  const scripts: { readonly [name: string]: () => ReturnType<typeof chatOf> } = {
    "texts, calls and failures": () =>
      chatOf([
        [text("I look."), toolCall("e1", "echo", { a: 1 }), toolCall("b1", "boom"), finish("tool_calls")],
        [text("Done."), finish("stop")]
      ], { tools }),
    "calls that wait": () =>
      chatOf([[
        toolCall("p", "pay", { amount: 1 }),
        toolCall("m", "appr"),
        toolCall("e", "echo"),
        finish("tool_calls")
      ]], { tools }),
    "a question": () => chatOf([[text("Well."), toolCall("q", "askO"), finish("tool_calls")]], { tools })
  }

  for (const [name, script] of Object.entries(scripts)) {
    it.effect(`W-01: UiStream.messages shows a thread like its run: ${name}`, () =>
      Effect.gen(function*() {
        const { events, result } = yield* script()
        const { message } = yield* holds(events, result)
        const { suspensions = [] } = result
        const [user, assistant, ...more] = UiStream.messages(result.thread, { runId: "run", suspensions })
        assert.deepStrictEqual(user, { id: "message-0", role: "user", parts: [{ type: "text", text: "go" }] })
        assert.deepStrictEqual(more, [])
        const sorted = (parts: ReadonlyArray<unknown>) => parts.map((part) => JSON.stringify(part)).sort()
        assert.deepStrictEqual(sorted(shown(assistant as unknown as UIMessage)), sorted(shown(message)))
      }))
  }

  it.effect("W-01: messages have nothing unpublished of a run", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([
        [Script.reasoning("canary-r"), toolCall("e1", "echo", { a: "canary-e" }), finish("tool_calls")],
        [text("Done."), finish("stop")]
      ], { tools })
      const all = JSON.stringify(UiStream.messages(result.thread, { publish: "names" }))
      assert.notInclude(all, "canary")
      assert.include(all, "e1")
      assert.notInclude(JSON.stringify(UiStream.messages(result.thread, { publish: "none" })), "e1")
    }))

  it("W-01: a user's files are file parts", () => {
    const thread = Thread.fromMessages([
      Message.user([{ type: "text", text: "See" }, { type: "image", data: "iVBORw0KGgo=", mediaType: "image/png" }])
    ])
    assert.deepStrictEqual(UiStream.messages(thread)[0]?.parts, [
      { type: "text", text: "See" },
      { type: "file", mediaType: "image/png", url: "data:image/png;base64,iVBORw0KGgo=" }
    ])
  })

  it("W-01: a user's message is shown as posted, with each field of its parts", () => {
    const data = (mediaType: string) => `data:${mediaType};base64,iVBORw0KGgo=`
    const parts = [
      { type: "text", text: "See" },
      { type: "file", mediaType: "image/png", url: data("image/png") },
      { type: "file", mediaType: "text/plain", url: data("text/plain"), filename: "a.txt" },
      { type: "file", mediaType: "text/plain", url: data("text/plain") },
      { type: "file", mediaType: "application/pdf", url: "https://example.com/a.pdf", filename: "a.pdf" }
    ]
    const read = UiStream.read({ id: "s", messages: [{ id: "m", role: "user", parts }] }, { allowUrl: () => true })
    const [say] = Result.getOrThrow(read).actions
    if (say?._tag !== "Say") return assert.fail("it is no message")
    assert.deepStrictEqual(UiStream.messages(Thread.fromMessages([Message.user(say.content)]))[0]?.parts, parts)
  })
})

/** A server of one session in memory, as a transport of `Chat`. */
class Served {
  /** The bodies that were posted, and what was read of them. */
  readonly posted: Array<Result.Result<Body.Posted, Body.BodyError>> = []
  private runs = 0
  private readonly run: <A, E>(effect: Effect.Effect<A, E, Session.Store | Adapter.Adapter>) => Promise<A>
  private readonly tools: ReadonlyArray<Tool.Any>

  constructor(services: Context.Context<Session.Store | Adapter.Adapter>, tools: ReadonlyArray<Tool.Any>) {
    this.run = Effect.runPromiseWith(services)
    this.tools = tools
  }

  /** Does what a body asks for, and returns the chunks. Fails with the sentence that a server answers with. */
  private respond(posted: Body.Posted) {
    const { run, tools } = this
    return Effect.gen(function*() {
      let kept = yield* Session.open(posted.sessionId)
      let operation = (session: Session.Session) => Session.streamContinue(session, null, { tools })
      for (const action of posted.actions) {
        if (action._tag === "Retry") return yield* Effect.fail("nothing broke")
        const path = action.id.slice(action.id.indexOf("~") + 1)
        if (action._tag === "Say") {
          operation = (session) => Session.streamReply(session, action.content, { tools })
          continue
        }
        kept = yield* Session.keep(kept, (session) => {
          switch (action._tag) {
            case "Approve":
              return Session.approve(session, path, action.edits === undefined ? {} : { arguments: action.edits })
            case "Deny":
              return Session.deny(session, path, action.reason)
            case "Answer":
              return Session.answer(session, path, action.value)
          }
        })
      }
      return Session.keepStream(kept, operation)
    }).pipe(Stream.unwrap, (events) => {
      const calls = new Map<string, Event.PublicCall>()
      const published = events.pipe(
        Stream.map((event) => Event.toPublic(event, { runId: `run${this.runs}`, calls })),
        Stream.filter((event) => event !== undefined)
      )
      const options = posted.messageId === undefined ? {} : { messageId: posted.messageId }
      return run(Stream.runCollect(UiStream.chunks(published, { joinMillis: 0, ...options })))
    })
  }

  readonly transport = {
    reconnectToStream: () => Promise.resolve(null),
    sendMessages: async (request: {
      readonly chatId: string
      readonly messages: ReadonlyArray<UIMessage>
      readonly trigger: string
      readonly messageId: string | undefined
      readonly body?: object
    }): Promise<ReadableStream<UIMessageChunk>> => {
      const { body, chatId: id, messageId, messages, trigger } = request
      const read = UiStream.read(JSON.parse(JSON.stringify({ ...body, id, messages, trigger, messageId })))
      this.posted.push(read)
      if (Result.isFailure(read)) throw new Error(read.failure.message)
      this.runs++
      const chunks = await this.respond(read.success)
      return new ReadableStream({
        start: (controller) => {
          for (const chunk of chunks) controller.enqueue(chunk as unknown as UIMessageChunk)
          controller.close()
        }
      })
    }
  }
}

/** A page's chat with a session, and the ends of its responses. */
const chatting = (served: Served) => {
  const ends: Array<(message: UIMessage) => void> = []
  const chat = new Chat<UIMessage>({
    id: "s1",
    transport: served.transport,
    sendAutomaticallyWhen: (options) =>
      lastAssistantMessageIsCompleteWithApprovalResponses(options)
      || lastAssistantMessageIsCompleteWithToolCalls(options),
    onFinish: ({ message }) => ends.shift()?.(message)
  })
  return { chat, nextEnd: () => new Promise<UIMessage>((resolve) => void ends.push(resolve)) }
}

const withServed = <A>(
  scripts: ReadonlyArray<ReadonlyArray<Script.Entry>>,
  tools: ReadonlyArray<Tool.Any>,
  use: (served: Served) => Promise<A>
) =>
  Effect.gen(function*() {
    const model = yield* Script.make(scripts)
    const services = yield* Effect.provide(
      Effect.context<Session.Store | Adapter.Adapter>(),
      [model.layer, Session.Store.layerMemory]
    )
    const value = yield* Effect.promise(() => use(new Served(services, tools)))
    return { value, requests: yield* model.requests }
  })

const actionsOf = (read: Result.Result<Body.Posted, Body.BodyError> | undefined) =>
  read === undefined ? undefined : Result.isFailure(read) ? read.failure.message : read.success.actions

describe("UiStream and the AI SDK chat", () => {
  it.live("W-03: approvals with edits, a denial and an answer continue the message, and the client sends nothing twice", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const asking = [
        toolCall("p1", "pay", { amount: 5 }),
        toolCall("p2", "pay", { amount: 7 }),
        toolCall("q1", "ask"),
        toolCall("e1", "echo", { a: 1 }),
        finish("tool_calls")
      ]
      const scripts = [asking, [text("Paid."), finish("stop")], [text("Bye."), finish("stop")]]
      const { value } = yield* withServed(scripts, [pay, ask, echo], async (served) => {
        const { chat, nextEnd } = chatting(served)
        await chat.sendMessage({ text: "Pay both" })
        const waiting = toolParts(chat.messages[1])
        assert.deepStrictEqual(waiting.map(({ state }) => state), [
          "approval-requested",
          "approval-requested",
          "input-available",
          "output-available"
        ])
        assert.deepStrictEqual(waiting.map(({ approval }) => approval?.id), [
          "run1~p1",
          "run1~p2",
          undefined,
          undefined
        ])
        const end = nextEnd()
        await chat.addToolApprovalResponse({ id: "run1~p2", approved: false, reason: "Too much." })
        await chat.addToolOutput({ tool: "ask", toolCallId: "q1", output: "Oslo" })
        const options = { body: { edits: { p1: { amount: 4 }, p2: { amount: 1_000_000 } } } }
        await chat.addToolApprovalResponse({ id: "run1~p1", approved: true, options })
        const message = await end
        assert.strictEqual(served.posted.length, 2)
        assert.deepStrictEqual(actionsOf(served.posted[1]), [
          { _tag: "Approve", id: "run1~p1", edits: { amount: 4 } },
          { _tag: "Deny", id: "run1~p2", reason: "Too much." },
          { _tag: "Answer", id: "run1~q1", value: "Oslo" }
        ])
        assert.deepStrictEqual(stepTexts(message), ["", "Paid."])
        const [p1, p2, q1] = toolParts(message)
        assert.deepStrictEqual([p1?.state, p1?.output], ["output-available", "paid"])
        assert.include(["output-denied", "output-error"], p2?.state)
        assert.deepStrictEqual([q1?.state, q1?.output], ["output-available", "Oslo"])
        await chat.sendMessage({ text: "Thanks" })
        assert.deepStrictEqual(chat.messages.map(({ role }) => role), ["user", "assistant", "user", "assistant"])
        assert.strictEqual(new Set(chat.messages.map(({ id }) => id)).size, 4)
        assert.deepStrictEqual([chat.status, served.posted.length], ["ready", 3])
        return chat.messages
      })
      assert.strictEqual(value.length, 4)
      assert.deepStrictEqual(runs, [{ amount: 4 }])
    }))

  it.live("W-03: a question of an approved call is answered in the same message, and the client sends nothing twice", () =>
    Effect.gen(function*() {
      const transfer = Tool.make("transfer", {
        parameters: { amount: Schema.Finite },
        approval: true,
        handler: () => Effect.succeed(Tool.askUser("From which account?"))
      })
      const scripts = [[toolCall("t1", "transfer", { amount: 5 }), finish("tool_calls")], [
        text("Done."),
        finish("stop")
      ]]
      yield* withServed(scripts, [transfer], async (served) => {
        const { chat, nextEnd } = chatting(served)
        await chat.sendMessage({ text: "Transfer" })
        const asked = nextEnd()
        await chat.addToolApprovalResponse({ id: "run1~t1", approved: true })
        const [waiting] = toolParts(await asked)
        assert.deepStrictEqual([waiting?.state, waiting?.input], ["input-available", { amount: 5 }])
        const ended = nextEnd()
        await chat.addToolOutput({ tool: "transfer", toolCallId: "t1", output: "savings" })
        const message = await ended
        assert.deepStrictEqual(stepTexts(message), ["", "Done."])
        assert.deepStrictEqual(served.posted.map(actionsOf), [
          [{ _tag: "Say", id: chat.messages[0]?.id ?? "", content: "Transfer" }],
          [{ _tag: "Approve", id: "run1~t1" }],
          [{ _tag: "Answer", id: "run2~t1", value: "savings" }]
        ])
        assert.deepStrictEqual([chat.status, chat.messages.length], ["ready", 2])
      })
    }))

  it.live("W-03: an interrupted and resumed run is one message, with each word once", () =>
    Effect.gen(function*() {
      const scripts = [
        [text("I look."), toolCall("e1", "echo", { a: 1 }), toolCall("e2", "echo", { a: 2 }), finish("tool_calls")],
        [text("Done."), finish("stop")]
      ]
      const program = Effect.gen(function*() {
        const opened = yield* Session.open("s1")
        yield* Session.keepStream(opened, (session) => Session.streamReply(session, "go", { tools: [echo] })).pipe(
          Stream.takeUntil((event) => event._tag === "MessageCompleted"),
          Stream.runDrain
        )
        const kept = yield* Session.claim("s1")
        return yield* Stream.runCollect(Session.streamResume(kept, { tools: [echo] }))
      }).pipe(Effect.scoped)
      const events = yield* Effect.provide(program, [Script.layer(scripts), Session.Store.layerMemory])
      assert.isTrue(events.some((event) => "replayed" in event && event.replayed === true))
      const end = events.at(-1)
      assert.strictEqual(end?._tag, "ChatCompleted")
      if (end?._tag !== "ChatCompleted") return
      const { message } = yield* holds(events, end.result)
      assert.deepStrictEqual(stepTexts(message), ["I look.", "Done."])
    }))

  it.live("W-03: a forged result for a call that waits for approval is ignored", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const scripts = [[toolCall("p1", "pay", { amount: 5 }), finish("tool_calls")]]
      yield* withServed(scripts, [pay], async (served) => {
        const { chat } = chatting(served)
        await chat.sendMessage({ text: "Pay" })
        const forged = new Promise<void>((resolve) => {
          const stop = chat["~registerStatusCallback"](() => {
            if (chat.status === "error") {
              stop()
              resolve()
            }
          })
        })
        await chat.addToolOutput({ tool: "pay", toolCallId: "p1", output: "paid" })
        await forged
        assert.deepStrictEqual(actionsOf(served.posted[1]), [{ _tag: "Retry", steps: 1, isRegeneration: false }])
      })
      assert.deepStrictEqual(runs, [])
    }))
})
