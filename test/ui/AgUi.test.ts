/** `AgUi` against the client of AG-UI, with its verifier. */
import { HttpAgent, type Message as AgMessage, type RunAgentParameters } from "@ag-ui/client"
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, type Event, Message, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { AgUi } from "heddle/ui"
import { cases } from "../support/cases.ts"
import { oneOf } from "../support/dimensions/dimension.ts"
import { callsOf, published, textsOf } from "../support/pages.ts"
import { property } from "../support/property.ts"
import { chatOf } from "../support/scenarios.ts"
import { tools } from "../support/sessions.ts"
import { fail, slow } from "../support/tools.ts"
import { warningsOfTests } from "../support/warnings.ts"
import { play } from "../support/worlds.ts"

const { finish, text, toolCall } = Script

const warnings = warningsOfTests()

const eventsOf = (events: ReadonlyArray<Event.PublicEvent>, options: Partial<AgUi.Options> = {}) => {
  const encoder = AgUi.make({ threadId: "s1", runId: "r1", ...options })
  return JSON.parse(JSON.stringify([...events.flatMap(encoder.push), ...encoder.end()])) as Array<AgUi.AgEvent>
}

interface Read {
  readonly messages: ReadonlyArray<AgMessage>
  readonly pending: ReadonlyArray<{ readonly id: string; readonly toolCallId?: string | undefined }>
  readonly problems: ReadonlyArray<string>
}

/** The client, whose requests are answered with the bodies. It keeps what it posts. */
class Client {
  readonly posted: Array<any> = []
  readonly agent: HttpAgent
  /** The events that its verifier let through. */
  readonly seen: Array<string> = []
  readonly errors: Array<{ readonly message: string; readonly code?: string | undefined }> = []
  body = ""

  constructor() {
    this.agent = new HttpAgent({
      url: "http://localhost/agui",
      threadId: "s1",
      initialMessages: [{ id: "u1", role: "user", content: "go" }],
      fetch: (_url, { body }) => {
        this.posted.push(JSON.parse(String(body)))
        return Promise.resolve(new Response(this.body, { headers: AgUi.headers }))
      }
    })
  }

  async run(body: string, options: RunAgentParameters = {}): Promise<Read> {
    this.body = body
    const problems: Array<string> = []
    try {
      await this.agent.runAgent({ runId: "r1", ...options }, {
        onRunFailed: ({ error }) => void problems.push(String(error)),
        onRunErrorEvent: ({ event }) => void this.errors.push(event),
        onEvent: ({ event }) => void this.seen.push(event.type)
      })
    } catch (error) {
      problems.push(String(error))
    }
    return {
      messages: this.agent.messages,
      pending: this.agent.pendingInterrupts,
      problems: [...problems, ...warnings.splice(0)]
    }
  }
}

const sseOf = (events: ReadonlyArray<AgUi.AgEvent>): Promise<string> =>
  Effect.runPromise(Stream.mkString(AgUi.toSse(Stream.fromIterable(events))))

/** The messages that the client makes of events, and what its verifier says of them. */
const readEvents = async (events: ReadonlyArray<AgUi.AgEvent>): Promise<Read> => new Client().run(await sseOf(events))

/** What is wrong with the messages of a run. */
const problemsOf = (read: Read, result: Event.ChatResult, from: number, hasTexts = true): ReadonlyArray<string> => {
  const problems = [...read.problems]
  const expect = (what: string, seen: unknown, right: unknown): void => {
    if (JSON.stringify(seen) !== JSON.stringify(right)) {
      problems.push(`${what}: ${JSON.stringify(seen)} in place of ${JSON.stringify(right)}`)
    }
  }
  const isFailed = result.outcome._tag === "Failed"
  const said = (texts: ReadonlyArray<string>) => texts.filter((one) => one !== "")
  const texts = read.messages.flatMap((message) => message.role === "assistant" ? [message.content ?? ""] : [])
  if (!isFailed && hasTexts) expect("texts", said(texts), said(textsOf(result.thread, from)))
  const waiting = new Set((result.suspensions ?? []).map((one) => one.path?.[0] ?? one.id))
  expect("interrupts", read.pending.length, isFailed ? 0 : (result.suspensions ?? []).length)
  const seen = read.messages.flatMap((message) => message.role === "assistant" ? message.toolCalls ?? [] : [])
  const answers = new Map(
    read.messages.flatMap((message) => message.role === "tool" ? [[message.toolCallId, message] as const] : [])
  )
  if (isFailed) return problems
  const all = callsOf(result.thread, from)
  // Of the calls of one id the last one waits.
  const last = new Map(all.map((call) => [call.id, call]))
  const right = all.filter((call) => call.answer !== undefined && !(waiting.has(call.id) && last.get(call.id) === call))
    .map(({ answer }) => Message.text(answer!))
  const open = new Set(read.pending.map(({ toolCallId }) => toolCallId))
  const calls = seen.filter(({ id }) => answers.has(id) && !open.has(id))
    .map(({ id }) => String(answers.get(id)?.content)).filter((content) => content !== "" || right.includes(""))
  expect("answers", [...calls].sort(), [...right].sort())
  return problems
}

describe("AgUi.make", () => {
  property("W-02: an AG-UI client reads any run as its thread has it", cases, (any) =>
    Effect.gen(function*() {
      const { events } = yield* play(any, "stream")
      const end = events.at(-1)
      if (end?._tag !== "ChatCompleted") return []
      // The text of a reply that broke or was stopped is in its deltas only, which may be hidden.
      const messages = events.filter(({ _tag }) => _tag === "MessageStarted" || _tag === "MessageCompleted")
      const hasTexts = !any.driving.hidesDeltas ||
        messages.every(({ _tag }, index) => _tag === (index % 2 === 0 ? "MessageStarted" : "MessageCompleted"))
          && messages.length % 2 === 0
      const read = yield* Effect.promise(() => readEvents(eventsOf(published(events))))
      return problemsOf(read, end.result, 1, hasTexts && !events.some(({ _tag }) => _tag === "StepReset"))
    }), 1000)

  /** Gives the calls of a run other ids, as a run behind another one of the thread has them. */
  const renamed = (value: unknown): any =>
    Array.isArray(value)
      ? value.map(renamed)
      : typeof value === "object" && value !== null
      ? Object.fromEntries(
        Object.entries(value).map((
          [name, inner]
        ) => [
          name,
          (name === "id" || name === "toolCallId") && typeof inner === "string" && inner !== ""
            ? `b-${inner}`
            : renamed(inner)
        ])
      )
      : value

  const pairs = Arbitrary.all({
    first: cases,
    second: cases,
    publish: oneOf<Event.Publish>("all", "all", "names", "none"),
    publishReasoning: oneOf(false, true),
    hasMessages: oneOf(false, true)
  })

  property(
    "W-02, O-28: a client reads a run after another run of the thread like the only run",
    pairs,
    ({ first, second, ...options }) =>
      Effect.gen(function*() {
        const { hasMessages, publish, publishReasoning } = options
        const eventsIn = (any: typeof first) =>
          Effect.map(play(any, "stream"), ({ events }) => published(events, { publish, publishReasoning }))
        const [before, after] = [
          yield* eventsIn(first),
          renamed(yield* eventsIn(second)) as ReadonlyArray<Event.PublicEvent>
        ]
        return yield* Effect.promise(async () => {
          const bodyOf = (events: ReadonlyArray<Event.PublicEvent>, runId: string, agent: HttpAgent) => {
            const messages = hasMessages
              ? { messages: agent.messages.filter(({ role }) => role !== "activity") as any }
              : {}
            return sseOf(eventsOf(events, { runId, ...messages }))
          }
          const shown = (messages: ReadonlyArray<AgMessage>) =>
            messages.map((message) => JSON.stringify(message)).sort()
          const both = new Client()
          const earlier = await both.run(await bodyOf(before, "r1", both.agent))
          if (earlier.pending.length > 0 || earlier.problems.length > 0) return earlier.problems
          const count = earlier.messages.length
          const known = shown(earlier.messages)
          const together = await both.run(await bodyOf(after, "r2", both.agent), { runId: "r2" })
          const alone = new Client()
          const single = await alone.run(await bodyOf(after, "r2", alone.agent), { runId: "r2" })
          const own = shown(single.messages.slice(1))
          const seen = shown(together.messages)
          return [
            ...together.problems,
            ...JSON.stringify(seen) === JSON.stringify([...known, ...own].sort())
              ? []
              : [
                `behind ${count} messages: ${
                  seen.filter((each) => !known.includes(each) && !own.includes(each)).join()
                }`
              ]
          ]
        })
      }),
    500
  )

  const scripts: { readonly [name: string]: () => ReturnType<typeof chatOf> } = {
    "reasoning, text and calls": () =>
      chatOf([
        [Script.reasoning("hm"), text("I look."), toolCall("e1", "echo", { a: 1 }), finish("tool_calls")],
        [text("Done."), finish("stop")]
      ], { tools }),
    "a halt": () => chatOf([[toolCall("s", "stop1"), finish("tool_calls")]], { tools }),
    "a failure that ends the run": () =>
      chatOf([[toolCall("f", "fail"), finish("tool_calls")]], { tools: [fail], onToolError: "halt" }),
    "a cancelled run": () =>
      chatOf([[toolCall("w", "slow"), finish("tool_calls")]], { tools: [slow(60_000)], cancel: Effect.sleep(10) })
  }

  for (const [name, script] of Object.entries(scripts)) {
    it.effect(`W-02: an AG-UI client reads a run as its thread has it: ${name}`, () =>
      Effect.gen(function*() {
        const { events, result } = yield* script()
        const read = yield* Effect.promise(() => readEvents(eventsOf(published(events))))
        assert.deepStrictEqual(problemsOf(read, result, 1), [])
      }))
  }

  it.effect("W-02: activities show running calls and inner runs, and their ends", () =>
    Effect.promise(async () => {
      const nested = (event: Event.PublicEvent): Event.PublicEvent => ({
        _tag: "ToolProgress",
        id: "c",
        name: "work",
        nested: event
      })
      const read = await readEvents(eventsOf([
        { _tag: "MessageStarted" },
        { _tag: "ToolCallCompleted", id: "c", name: "work", arguments: {} },
        { _tag: "ToolQueued", id: "c", name: "work", reason: "permit" },
        { _tag: "ToolExecutionStarted", id: "c", name: "work", at: 5 },
        nested({ _tag: "MessageStarted" }),
        nested({ _tag: "TextDelta", id: null, delta: "Hi" }),
        { _tag: "ToolResultEncoded", id: "c", content: "done" },
        { _tag: "StepCompleted" },
        { _tag: "ChatCompleted", outcome: { _tag: "Completed", finishReason: "stop" } }
      ]))
      assert.deepStrictEqual(read.problems, [])
      assert.deepStrictEqual(
        read.messages.flatMap((message) =>
          message.role === "activity" ? [[message.activityType, message.content]] : []
        ),
        [
          ["heddle.tool", { toolCallId: "c", name: "work", state: "done" }],
          ["heddle.subrun", { toolCallId: "c", name: "work", state: "done", steps: 1, text: "Hi", calls: [] }]
        ]
      )
    }))

  it.effect("W-02: reasoning is a message of its own, shown only if it is published", () =>
    Effect.gen(function*() {
      const { events } = yield* chatOf([[Script.reasoning("hm"), text("Yes."), finish("stop")]])
      const shown = yield* Effect.promise(() => readEvents(eventsOf(published(events, { publishReasoning: true }))))
      const hidden = yield* Effect.promise(() => readEvents(eventsOf(published(events))))
      assert.deepStrictEqual(shown.problems, [])
      assert.deepStrictEqual(shown.messages.map(({ content, role }) => [role, content]), [
        ["user", "go"],
        ["reasoning", "hm"],
        ["assistant", "Yes."]
      ])
      assert.deepStrictEqual(hidden.messages.map(({ role }) => role), ["user", "assistant"])
    }))

  it.effect("W-02: each waiting call is an interrupt, and the client continues with its answers", () =>
    Effect.gen(function*() {
      const { events } = yield* chatOf([[
        toolCall("q", "ask"),
        toolCall("p", "pay", { amount: 1 }),
        toolCall("m", "many"),
        finish("tool_calls")
      ]], { tools })
      const client = new Client()
      const body = yield* Effect.promise(() => sseOf(eventsOf(published(events))))
      const read = yield* Effect.promise(() => client.run(body))
      assert.deepStrictEqual(read.problems, [])
      assert.deepStrictEqual(
        client.agent.pendingInterrupts.map(({ id, message, reason, toolCallId }) => [
          id,
          reason,
          toolCallId,
          message
        ]),
        [
          ["run~q", "input_required", "q", "Which city?"],
          ["run~p", "tool_call", "p", "May pay run?"],
          ["run~m", "input_required", "m", "How many?"]
        ]
      )
      assert.strictEqual(client.agent.pendingInterrupts[2]?.expiresAt, "1970-01-01T00:01:00.000Z")
      const settled: ReadonlyArray<Event.PublicEvent> = [
        { _tag: "ToolResultEncoded", id: "q", content: "Oslo", settled: true },
        { _tag: "ToolResultEncoded", id: "p", content: "No.", isError: true, code: "denied", settled: true },
        { _tag: "ToolResultEncoded", id: "m", content: "3", settled: true },
        { _tag: "MessageStarted" },
        { _tag: "TextDelta", id: null, delta: "Done." },
        { _tag: "StepCompleted" },
        { _tag: "ChatCompleted", outcome: { _tag: "Completed", finishReason: "stop" } }
      ]
      const resume = [
        { interruptId: "run~q", status: "resolved" as const, payload: "Oslo" },
        { interruptId: "run~p", status: "resolved" as const, payload: { approved: false, reason: "Too much." } },
        { interruptId: "run~m", status: "cancelled" as const }
      ]
      const next = yield* Effect.promise(() => sseOf(eventsOf(settled, { runId: "r2" })))
      const after = yield* Effect.promise(() => client.run(next, { runId: "r2", resume }))
      assert.deepStrictEqual(after.problems, [])
      assert.deepStrictEqual(after.pending, [])
      assert.deepStrictEqual(after.messages.filter(({ role }) => role !== "activity").map(({ role }) => role), [
        "user",
        "assistant",
        "tool",
        "tool",
        "tool",
        "assistant"
      ])
      const actions = AgUi.read(client.posted[1])
      assert.deepStrictEqual(actions._tag === "Success" ? actions.success.actions : actions.failure, [
        { _tag: "Answer", id: "run~q", value: "Oslo" },
        { _tag: "Deny", id: "run~p", reason: "Too much." },
        { _tag: "Deny", id: "run~m", isCancelled: true }
      ])
    }))

  it.effect("W-02: a failed run and a run that breaks off end with RUN_ERROR", () =>
    Effect.gen(function*() {
      const { events } = yield* chatOf([[text("Hel"), toolCall("e", "echo"), finish("tool_calls")]], { tools })
      const client = new Client()
      const half = published(events).slice(0, 3)
      const body = yield* Effect.promise(() => sseOf(eventsOf(half)))
      const read = yield* Effect.promise(() => client.run(body))
      assert.deepStrictEqual(read.problems, [])
      assert.strictEqual(client.errors[0]?.code, "internal")
      const error = { code: "rate_limited", message: "The model has too many requests." }
      const failed: ReadonlyArray<Event.PublicEvent> = [
        ...half,
        { _tag: "Error", error },
        { _tag: "ChatCompleted", outcome: { _tag: "Failed", error } }
      ]
      const second = new Client()
      const other = yield* Effect.promise(() => sseOf(eventsOf(failed)))
      yield* Effect.promise(() => second.run(other))
      assert.strictEqual(second.errors[0]?.code, "rate_limited")
    }))

  it.effect("W-02: a discarded reply leaves nothing at a client that gets its messages anew", () =>
    Effect.gen(function*() {
      const events: ReadonlyArray<Event.PublicEvent> = [
        { _tag: "MessageStarted" },
        { _tag: "TextDelta", id: null, delta: "Wro" },
        { _tag: "ToolCallStarted", id: "c", name: "echo" },
        { _tag: "StepReset", error: { code: "network_error", message: "" } },
        { _tag: "MessageStarted" },
        { _tag: "TextDelta", id: null, delta: "Right" },
        { _tag: "StepCompleted" },
        { _tag: "ChatCompleted", outcome: { _tag: "Completed", finishReason: "stop" } }
      ]
      const messages = [{ id: "u1", role: "user" as const, content: "go" }]
      const read = yield* Effect.promise(() => readEvents(eventsOf(events, { messages })))
      assert.deepStrictEqual(read.problems, [])
      assert.deepStrictEqual(read.messages.map(({ content }) => content), ["go", "Right"])
      // A client without messages keeps it, apart from the next one.
      const apart = yield* Effect.promise(() => readEvents(eventsOf(events)))
      assert.deepStrictEqual(apart.messages.map(({ content }) => content), ["go", "Wro", "Right"])
      const told = eventsOf(events).filter(({ type }) => type === "CUSTOM")
      assert.deepStrictEqual(told, [{ type: "CUSTOM", name: "heddle.reset", value: { messageId: "r1-1" } }])
    }))

  it.effect("O-28: after one reset or two, the client has the messages of a run without resets", () =>
    Effect.promise(async () => {
      const suspension = {
        id: "run~p",
        kind: "approval",
        toolCall: { id: "p", name: "pay", arguments: {} }
      } as const
      const asking: ReadonlyArray<Event.PublicEvent> = [
        { _tag: "MessageStarted" },
        { _tag: "TextDelta", id: null, delta: "I ask." },
        ...["p", "e"].flatMap((id): ReadonlyArray<Event.PublicEvent> => [
          { _tag: "ToolCallStarted", id, name: "pay" },
          { _tag: "ToolCallCompleted", id, name: "pay", arguments: {} }
        ]),
        { _tag: "ToolExecutionStarted", id: "e", name: "pay" },
        { _tag: "ToolProgress", id: "e", name: "pay", nested: { _tag: "MessageStarted" } },
        { _tag: "ToolApprovalRequested", toolCallId: "p", toolName: "pay", suspensions: [suspension] }
      ]
      const reset: Event.PublicEvent = { _tag: "StepReset", error: { code: "resumed", message: "" } }
      const ending: ReadonlyArray<Event.PublicEvent> = [
        { _tag: "ToolResultEncoded", id: "e", content: "fine" },
        { _tag: "StepCompleted" },
        { _tag: "ChatCompleted", outcome: { _tag: "ApprovalRequested" }, suspensions: [suspension] }
      ]
      const messages = [{ id: "u1", role: "user" as const, content: "go" }]
      const shown = async (events: ReadonlyArray<Event.PublicEvent>) => {
        const read = await readEvents(eventsOf(events, { messages }))
        assert.deepStrictEqual(read.problems, [])
        const parts = read.messages.map((message) => JSON.stringify({ ...message, id: "" }))
        return [parts.sort(), read.pending.map(({ id, toolCallId }) => [id, toolCallId])]
      }
      const alone = await shown([...asking, ...ending])
      assert.deepStrictEqual(await shown([...asking, reset, ...asking, ...ending]), alone)
      assert.deepStrictEqual(await shown([...asking, reset, ...asking, reset, ...asking, ...ending]), alone)
      // A call that the next reply does not make again is shown as running no longer.
      const gone = await readEvents(eventsOf([
        ...asking,
        reset,
        { _tag: "MessageStarted" },
        { _tag: "TextDelta", id: null, delta: "No." },
        { _tag: "StepCompleted" },
        { _tag: "ChatCompleted", outcome: { _tag: "Completed" } }
      ], { messages }))
      assert.notInclude(JSON.stringify(gone.messages), "running")
    }))

  it.effect("W-02: 1,000 calls come as a list of messages at the end of their step", () =>
    Effect.gen(function*() {
      const ids = Array.from({ length: 1000 }, (_, index) => `c${index}`)
      const { events, result } = yield* chatOf([
        [...ids.map((id) => toolCall(id, "echo", { id })), finish("tool_calls")],
        [text("Done."), finish("stop")]
      ], { tools })
      const messages = [{ id: "u1", role: "user" as const, content: "go" }]
      const given = eventsOf(published(events), { messages })
      assert.isBelow(given.length, 1500)
      const read = yield* Effect.promise(() => readEvents(given))
      assert.deepStrictEqual(problemsOf(read, result, 1), [])
      const calls = read.messages.flatMap((message) => message.role === "assistant" ? message.toolCalls ?? [] : [])
      assert.deepStrictEqual(calls.map(({ id }) => id), ids)
    }))

  it.effect("W-02: a repeated call id in a run is another call", () =>
    Effect.gen(function*() {
      const again = [toolCall("c", "echo", { a: 1 }), finish("tool_calls")]
      const { events, result } = yield* chatOf([again, again, [text("Done."), finish("stop")]], { tools })
      const read = yield* Effect.promise(() => readEvents(eventsOf(published(events))))
      assert.deepStrictEqual(problemsOf(read, result, 1), [])
    }))
})

/** Tools of every end of a call, whose arguments tell their calls apart where the ids do not. */
const numbered = { n: Schema.Finite }
const inner = Tool.make("asks", {
  parameters: numbered,
  handler: () => Effect.succeed(Tool.askUser("Inside?"))
})
const kinds = {
  answers: Tool.make("answers", { parameters: numbered, handler: ({ n }) => Effect.succeed({ n }) }),
  fails: Tool.make("fails", { parameters: numbered, handler: ({ n }) => Effect.fail(`no ${n}`) }),
  asks: inner,
  approves: Tool.make("approves", { parameters: numbered, approval: true, handler: ({ n }) => Effect.succeed(n) }),
  manual: Tool.make("manual", { parameters: numbered, manual: true }),
  inside: Tool.fromChat("inside", {
    parameters: numbered,
    chat: ({ n }) => Chat.stream(`inside ${n}`, { tools: [inner] })
  })
}
type KindName = keyof typeof kinds

const called = Arbitrary.all({
  kind: oneOf<KindName>("answers", "answers", "fails", "asks", "approves", "manual", "inside"),
  id: oneOf("c", "c", "c", "c_2", "d", "")
})
const recurring = Arbitrary.all({
  /** Turns whose calls are all answered, which have the ids before. */
  before: Arbitrary.array(
    Arbitrary.array(oneOf("c", "c", "c_2", "d", "c~2"), { minLength: 1, maxLength: 3 }),
    { minLength: 0, maxLength: 3 }
  ),
  last: Arbitrary.array(called, { minLength: 1, maxLength: 4 }),
  /** How often the last reply is discarded before. */
  discarded: oneOf(0, 0, 1, 2),
  /** The number of events that the end of a discarded reply takes with it: a call may be in the middle. */
  missing: oneOf(0, 1, 2, 3),
  hasMessages: oneOf(false, true)
})

describe("calls of one id", () => {
  property(
    "W-02: each interrupt names its waiting call with that call's arguments, whichever earlier calls had the id",
    recurring,
    ({ before, discarded, hasMessages, last, missing }) =>
      Effect.gen(function*() {
        let n = 0
        const turnOf = (calls: ReadonlyArray<readonly [kind: KindName, id: string]>) => [
          text(`turn ${n}`),
          ...calls.map(([kind, id]) => toolCall(id, kind, { n: ++n })),
          finish("tool_calls")
        ]
        const scripts = [
          ...before.map((ids) => turnOf(ids.map((id) => ["answers", id] as const))),
          turnOf(last.map(({ id, kind }) => [kind, id] as const))
        ]
        const insides = last.filter(({ kind }) => kind === "inside").length
        // The runs inside use the ids of the calls around them.
        const asked = Array.from({ length: insides }, () => [toolCall("c", "asks", { n: 100 }), finish("tool_calls")])
        const ends = Array.from({ length: 2 }, () => [text("Done."), finish("stop")])
        const model = Script.layer([...scripts, ...asked, ...ends])
        // The question of a run inside waits where a session keeps it.
        const all = yield* Effect.gen(function*() {
          const opened = yield* Session.open("s1")
          const tools = Object.values(kinds)
          return yield* Stream.runCollect(
            Session.keepStream(opened, (session) => Session.streamReply(session, "go", { tools, requestId: "run" }))
          )
        }).pipe(Effect.provide([model, Session.Store.layerMemory]))
        const end = all.at(-1)
        if (end?._tag !== "ChatCompleted") return ["the run has no end"]
        const shown = published(all)
        const starts = shown.flatMap(({ _tag }, index) => _tag === "MessageStarted" ? [index] : [])
        const from = starts[before.length] ?? 0
        const whole = shown.findIndex(({ _tag }, index) => index > from && _tag === "MessageCompleted")
        const reset: Event.PublicEvent = { _tag: "StepReset", error: { code: "resumed", message: "" } }
        const events = [
          ...shown.slice(0, from),
          ...Array.from({ length: discarded }, () => [...shown.slice(from, Math.max(from + 1, whole - missing)), reset])
            .flat(),
          ...shown.slice(from)
        ]
        const messages = hasMessages ? { messages: [{ id: "u1", role: "user" as const, content: "go" }] } : {}
        const read = yield* Effect.promise(() => readEvents(eventsOf(events, messages)))
        const problems: Array<string> = [...read.problems]
        const calls = read.messages.flatMap((message) => message.role === "assistant" ? message.toolCalls ?? [] : [])
        const answered = new Set(
          read.messages.flatMap((message) => message.role === "tool" ? [message.toolCallId] : [])
        )
        const numberOf = (text: string): unknown => (JSON.parse(text) as { readonly n?: unknown }).n
        const waiting = (end.result.suspensions ?? []).map(({ id, path, toolCall }) => {
          const outer = path?.[0] ?? id
          const own = end.result.thread.messages.findLast(({ toolCalls }) =>
            toolCalls?.some((call) => call.id === outer)
          )
          const call = own?.toolCalls?.find((call) => call.id === outer)
          return { outer: call?.arguments?.["n"], inner: toolCall.arguments?.["n"] }
        })
        const named = read.pending.map((interrupt: any) => {
          const same = calls.filter(({ id }) => id === interrupt.toolCallId)
          if (same.length !== 1) problems.push(`${interrupt.toolCallId} is the id of ${same.length} calls`)
          if (answered.has(interrupt.toolCallId)) problems.push(`${interrupt.toolCallId} has an answer already`)
          return {
            outer: numberOf(same[0]?.function.arguments ?? "{}"),
            inner: interrupt.metadata["heddle.call"].arguments.n
          }
        })
        if (JSON.stringify(named) !== JSON.stringify(waiting)) {
          problems.push(`interrupts: ${JSON.stringify(named)} in place of ${JSON.stringify(waiting)}`)
        }
        // Of the calls that were not discarded each is answered, or waits.
        const numbers = calls.filter(({ id }) => answered.has(id)).map((call) => numberOf(call.function.arguments))
        const left = new Set(waiting.map(({ outer }) => outer))
        const right = Array.from({ length: n }, (_, index) => index + 1).filter((each) => !left.has(each))
        if (hasMessages && JSON.stringify(numbers.sort()) !== JSON.stringify(right.sort())) {
          problems.push(`answered: ${JSON.stringify(numbers)} in place of ${JSON.stringify(right)}`)
        }
        return problems
      }),
    500
  )
})

describe("AgUi.messages", () => {
  it.effect("W-02: AgUi.messages shows a thread like its run", () =>
    Effect.gen(function*() {
      const { events, result } = yield* chatOf([
        [text("I look."), toolCall("e1", "echo", { a: 1 }), toolCall("b1", "boom"), finish("tool_calls")],
        [text("Done."), finish("stop")]
      ], { tools })
      const read = yield* Effect.promise(() => readEvents(eventsOf(published(events))))
      const shown = (messages: ReadonlyArray<AgUi.AgMessage | AgMessage>) =>
        messages.flatMap((message) => {
          const { activityType: _, id: __, ...rest } = message as Record<string, unknown>
          return message.role === "activity" ? [] : [JSON.parse(JSON.stringify(rest))]
        })
      assert.deepStrictEqual(shown(AgUi.messages(result.thread)), shown(read.messages))
      const hidden = JSON.stringify(AgUi.messages(result.thread, { publish: "none" }))
      assert.notInclude(hidden, "e1")
    }))
})
