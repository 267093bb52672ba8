/** `UiStream` against the three major versions of the AI SDK: their schemas of chunks, their readers, and their chats. */
import { assert, describe, it } from "@effect/vitest"
import type { UIMessage } from "ai"
import * as Arbitrary from "effect/Arbitrary"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type Event, Tool } from "heddle"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { UiStream } from "heddle/ui"
import { serve, type Site } from "../server/support/site.ts"
import { cases } from "../support/cases.ts"
import { oneOf } from "../support/dimensions/dimension.ts"
import { published } from "../support/pages.ts"
import { property } from "../support/property.ts"
import { chatOf } from "../support/scenarios.ts"
import { tools } from "../support/sessions.ts"
import { play } from "../support/worlds.ts"
import {
  chatWith,
  chunksOf,
  hasAllTexts,
  openIn,
  problemsOf,
  protocols,
  readMessage,
  refusedBy,
  settled,
  stepTexts,
  toolParts,
  withoutDiscarded
} from "./support/page.ts"

const { finish, text, toolCall } = Script

/** A run, and the options of its publication, in pairs. */
const runs = Arbitrary.all({
  any: cases,
  publish: oneOf<Event.Publish>("all", "all", "names", "none"),
  publishReasoning: oneOf(false, true),
  continues: oneOf<boolean | undefined>(undefined, true, false),
  messageId: oneOf<string | undefined>(undefined, "m1")
})

/** Leaves out what is not given. */
const given = (options: { readonly [name: string]: unknown }): UiStream.Options =>
  Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined))

/** Events that a run may have beside each other, which give every kind of chunk. */
const asked = (id: string, kind: "approval" | "question") =>
  ({
    id: `r~${id}`,
    kind,
    expiresAt: 5,
    question: "Why?",
    toolCall: { id, name: "work", arguments: {} }
  }) as const

const everyKind: ReadonlyArray<Event.PublicEvent> = [
  { _tag: "MessageStarted" },
  { _tag: "TextDelta", id: null, delta: "Wro" },
  { _tag: "ToolCallStarted", id: "lost", name: "work" },
  { _tag: "ToolCallDelta", id: "lost", argumentsDelta: "{" },
  { _tag: "StepReset", error: { code: "network_error", message: "" } },
  { _tag: "MessageStarted" },
  { _tag: "ReasoningDelta", id: null, delta: "Hm" },
  { _tag: "TextDelta", id: null, delta: "Right" },
  ...["ok", "bad", "denied", "halved", "asks", "waits", "theirs"].flatMap((id): ReadonlyArray<Event.PublicEvent> => [
    { _tag: "ToolCallStarted", id, name: "work" },
    { _tag: "ToolCallDelta", id, argumentsDelta: "{}" },
    {
      _tag: "ToolCallCompleted",
      id,
      name: "work",
      arguments: {},
      ...(id === "halved" ? { argumentsLost: { reason: "invalid_json", text: "{" } } : {}),
      ...(id === "theirs" ? { providerExecuted: true } : {})
    } as Event.PublicEvent
  ]),
  { _tag: "MessageCompleted" },
  { _tag: "ToolQueued", id: "ok", name: "work", reason: "permit", at: 1 },
  { _tag: "ToolExecutionStarted", id: "ok", name: "work", at: 2, attempt: 2 },
  { _tag: "ToolProgress", id: "ok", name: "work", progress: { half: true } },
  { _tag: "ToolProgress", id: "ok", name: "work", nested: { _tag: "MessageStarted" } },
  { _tag: "ToolResultEncoded", id: "ok", content: "{\"a\":1}" },
  { _tag: "ToolResultEncoded", id: "bad", content: "broke", isError: true, code: "handler_raised" },
  { _tag: "ToolResultEncoded", id: "denied", content: "no", isError: true, code: "denied" },
  { _tag: "ToolResultEncoded", id: "halved", content: "lost", isError: true },
  { _tag: "AskUserRequested", toolCallId: "asks", toolName: "work", suspensions: [asked("asks", "question")] },
  { _tag: "ToolApprovalRequested", toolCallId: "waits", toolName: "work", suspensions: [asked("waits", "approval")] },
  { _tag: "StepCompleted", usage: { inputTokens: 1 } } as Event.PublicEvent
]

const outcomes: ReadonlyArray<Event.PublicOutcome> = [
  ...["stop", "length", "content_filter", "tool_calls", "error", "unheard-of", undefined].map((finishReason) =>
    ({ _tag: "Completed", ...(finishReason === undefined ? {} : { finishReason }) }) as Event.PublicOutcome
  ),
  ...([
    "Cancelled",
    "AskUser",
    "ManualToolCalls",
    "ApprovalRequested",
    "ToolFailed",
    "MaxTurns",
    "HaltWhen",
    "Halted"
  ] as const)
    .map((_tag) => ({ _tag, ...(_tag === "Cancelled" ? { reason: "stop" } : {}) }) as Event.PublicOutcome),
  {
    _tag: "Failed",
    error: { code: "rate_limited", message: "The model has too many requests." }
  } as Event.PublicOutcome
]

describe("UiStream and the major versions of the AI SDK", () => {
  for (const protocol of protocols) {
    it.effect(`O-28: every chunk of every kind is a valid chunk of ai ${protocol}, whatever the outcome`, () =>
      Effect.promise(async () => {
        const suspensions = [asked("asks", "question"), asked("waits", "approval")]
        const kinds = new Set<string>()
        for (const outcome of outcomes) {
          for (const waits of [[], suspensions]) {
            const end: Event.PublicEvent = { _tag: "ChatCompleted", outcome, suspensions: waits }
            const chunks = chunksOf([...everyKind, end], { protocol, messageId: "m1" })
            assert.deepStrictEqual(await refusedBy(protocol, chunks), [])
            for (const { type } of chunks) kinds.add(type)
            const { error, message } = await readMessage(chunks, undefined, protocol)
            assert.strictEqual(error !== undefined, outcome._tag === "Failed", String(error))
            assert.deepStrictEqual(openIn(message), [])
            assert.deepStrictEqual(stepTexts(withoutDiscarded(message)).filter((said) => said !== ""), ["Right"])
          }
        }
        const all = [
          "abort",
          "data-heddle-call",
          "data-heddle-question",
          "data-heddle-subrun",
          "error",
          "finish",
          "finish-step",
          "message-metadata",
          "reasoning-delta",
          "reasoning-end",
          "reasoning-start",
          "start",
          "start-step",
          "text-delta",
          "text-end",
          "text-start",
          "tool-input-available",
          "tool-input-delta",
          "tool-input-error",
          "tool-input-start",
          "tool-output-available",
          "tool-output-error"
        ]
        const newer = protocol === 5 ? [] : ["tool-approval-request", "tool-output-denied"]
        const reset = protocol === 7 ? "reset-step" : "data-heddle-reset"
        assert.deepStrictEqual([...kinds].sort(), [...all, ...newer, reset].sort())
      }))
  }

  property(
    "O-28: each major version of the AI SDK reads any run under any two options",
    runs,
    ({ any, ...options }) =>
      Effect.gen(function*() {
        const { events } = yield* play(any, "stream")
        const end = events.at(-1)
        if (end?._tag !== "ChatCompleted") return []
        const { continues, messageId, publish, publishReasoning } = options
        const shown = published(events, { publish, publishReasoning })
        const problems: Array<string> = []
        for (const protocol of protocols) {
          const chunks = chunksOf(shown, given({ protocol, continues, messageId }))
          const refused = yield* Effect.promise(() => refusedBy(protocol, chunks))
          const read = yield* Effect.promise(() => readMessage(chunks, undefined, protocol))
          const isWhole = publish === "all"
          const found = isWhole
            ? problemsOf(read, end.result, 1, hasAllTexts(any, events), protocol)
            : [
              ...openIn(read.message),
              ...(end.result.outcome._tag === "Failed" || read.error === undefined ? [] : [String(read.error)])
            ]
          if (messageId !== undefined && read.message !== undefined && read.message.id !== messageId) {
            problems.push(`ai ${protocol}: the id is ${read.message.id}`)
          }
          const hasReasoning = read.message?.parts.some(({ type }) => type === "reasoning") === true
          if (hasReasoning && !publishReasoning) problems.push(`ai ${protocol}: reasoning is shown`)
          problems.push(...[...refused, ...found].map((problem) => `ai ${protocol}: ${problem}`))
        }
        return problems
      }),
    1500
  )

  const cuts = Arbitrary.all({
    any: cases,
    at: Arbitrary.schema(Schema.Literals(Array.from({ length: 60 }, (_, n) => n)))
  })

  property("O-29: a message that is cut anywhere and continued from the page's step is like the uncut message", cuts, ({
    any,
    at
  }) =>
    Effect.gen(function*() {
      const { events } = yield* play(any, "stream")
      const end = events.at(-1)
      if (end?._tag !== "ChatCompleted" || end.result.outcome._tag === "Failed") return []
      const shown = published(events, { publishReasoning: true })
      const problems: Array<string> = []
      for (const protocol of protocols) {
        const chunks = chunksOf(shown, { protocol, messageId: "m1" })
        const cut = (at * 7) % chunks.length
        const half = yield* Effect.promise(() => readMessage(chunks.slice(0, cut), undefined, protocol))
        const message = half.message ?? { id: "m1", role: "assistant" as const, parts: [] }
        const body = { id: "s1", messageId: "m1", trigger: "submit-message", messages: [message] }
        const [asked] = Result.getOrThrow(UiStream.read(JSON.parse(JSON.stringify(body)))).actions
        // A page that has the whole of a call which the client answers posts that.
        if (asked?._tag !== "Retry") continue
        const rest = chunksOf(shown, { protocol, messageId: "m1", known: asked.steps })
        problems.push(...yield* Effect.promise(() => refusedBy(protocol, rest)))
        const whole = yield* Effect.promise(() => readMessage(rest, message, protocol))
        // An older client cannot end what was open in the step that is discarded.
        const read = { ...whole, message: withoutDiscarded(whole.message) }
        const found = problemsOf(read, end.result, 1, hasAllTexts(any, events), protocol)
        problems.push(...found.map((problem) => `ai ${protocol}, cut at ${cut}, with ${asked.steps} steps: ${problem}`))
      }
      return problems
    }), 1000)

  for (const protocol of protocols) {
    it.effect(`O-28: ai ${protocol}: the questions of a discarded reply are asked again, whatever the reset`, () =>
      Effect.promise(async () => {
        const asking: ReadonlyArray<Event.PublicEvent> = [
          { _tag: "MessageStarted" },
          { _tag: "TextDelta", id: null, delta: "I ask." },
          ...["waits", "asks", "ok"].flatMap((id): ReadonlyArray<Event.PublicEvent> => [
            { _tag: "ToolCallStarted", id, name: "work" },
            { _tag: "ToolCallCompleted", id, name: "work", arguments: {} }
          ]),
          {
            _tag: "ToolApprovalRequested",
            toolCallId: "waits",
            toolName: "work",
            suspensions: [asked("waits", "approval")]
          },
          { _tag: "AskUserRequested", toolCallId: "asks", toolName: "work", suspensions: [asked("asks", "question")] },
          { _tag: "ToolProgress", id: "ok", name: "work", progress: 1 }
        ]
        const reset: Event.PublicEvent = { _tag: "StepReset", error: { code: "resumed", message: "" } }
        const suspensions = [asked("waits", "approval"), asked("asks", "question")]
        const ending: ReadonlyArray<Event.PublicEvent> = [
          { _tag: "ToolResultEncoded", id: "ok", content: "fine" },
          { _tag: "StepCompleted" },
          { _tag: "ChatCompleted", outcome: { _tag: "ApprovalRequested" }, suspensions }
        ]
        const shown = async (events: ReadonlyArray<Event.PublicEvent>) => {
          const chunks = chunksOf(events, { protocol })
          assert.deepStrictEqual(await refusedBy(protocol, chunks), [])
          const { error, message } = await readMessage(chunks, undefined, protocol)
          assert.isUndefined(error)
          assert.deepStrictEqual(openIn(message), [])
          const parts = withoutDiscarded(message)?.parts.filter(({ type }) => type !== "data-heddle-question")
          return parts?.map((part: any) => [part.type, part.state, part.toolCallId, part.text, part.approval?.id])
        }
        const alone = await shown([...asking, ...ending])
        assert.deepStrictEqual(await shown([...asking, reset, ...asking, ...ending]), alone)
        assert.deepStrictEqual(await shown([...asking, reset, ...asking, reset, ...asking, ...ending]), alone)
      }))
  }

  for (const protocol of protocols) {
    it.effect(`O-29: ai ${protocol}: a page counts no reset as a step`, () =>
      Effect.promise(async () => {
        const said = (delta: string): ReadonlyArray<Event.PublicEvent> => [
          { _tag: "MessageStarted" },
          { _tag: "TextDelta", id: null, delta }
        ]
        const reset: Event.PublicEvent = { _tag: "StepReset", error: { code: "network_error", message: "" } }
        const whole: Event.PublicEvent = { _tag: "StepCompleted" }
        const events: ReadonlyArray<Event.PublicEvent> = [
          ...said("Wro"),
          reset,
          ...said("First."),
          whole,
          ...said("Bad"),
          reset,
          ...said("Worse"),
          reset,
          ...said("Second."),
          whole,
          ...said("Third."),
          whole,
          { _tag: "ChatCompleted", outcome: { _tag: "Completed" } }
        ]
        const chunks = chunksOf(events, { protocol, messageId: "m1" })
        for (let cut = 1; cut < chunks.length; cut++) {
          const { message } = await readMessage(chunks.slice(0, cut), undefined, protocol)
          const last = message ?? { id: "m1", role: "assistant", parts: [] }
          const body = JSON.parse(JSON.stringify({ id: "s1", messageId: "m1", messages: [last] }))
          const [asked] = Result.getOrThrow(UiStream.read(body)).actions
          const known = asked?._tag === "Retry" ? asked.steps : -1
          const rest = chunksOf(events, { protocol, messageId: "m1", known })
          const read = await readMessage(rest, last as UIMessage, protocol)
          assert.isUndefined(read.error)
          const texts = stepTexts(withoutDiscarded(read.message)).filter((one) => one !== "")
          assert.deepStrictEqual(texts, ["First.", "Second.", "Third."], `cut at ${cut}, with ${known} steps`)
        }
      }))
  }

  it.effect("O-32: the usage of a message is the usage of its run with all inner runs, whatever the outcome", () =>
    Effect.promise(async () => {
      const usage = { inputTokens: 1, outputTokens: 2 } as Event.PublicUsage
      const totalUsage = { inputTokens: 10, outputTokens: 20 } as Event.PublicUsage
      for (const outcome of outcomes) {
        for (
          const [given, right] of [[{ usage, totalUsage }, totalUsage], [{ usage }, usage], [{}, undefined]] as const
        ) {
          const end: Event.PublicEvent = { _tag: "ChatCompleted", outcome, ...given }
          const { message } = await readMessage(chunksOf([{ _tag: "MessageStarted" }, end]))
          assert.deepStrictEqual((message?.metadata as any)?.usage, right)
          assert.deepStrictEqual((message?.metadata as any)?.outcome, outcome)
        }
      }
    }))

  it.effect("O-28: the run inside a repeated call begins anew", () =>
    Effect.promise(async () => {
      const nested = (event: Event.PublicEvent): Event.PublicEvent => ({
        _tag: "ToolProgress",
        id: "c",
        name: "work",
        nested: event
      })
      const once: ReadonlyArray<Event.PublicEvent> = [
        { _tag: "MessageStarted" },
        { _tag: "ToolCallStarted", id: "c", name: "work" },
        { _tag: "ToolCallCompleted", id: "c", name: "work", arguments: {} },
        nested({ _tag: "MessageStarted" }),
        nested({ _tag: "ToolCallCompleted", id: "inner", name: "inner", arguments: {} })
      ]
      const reset: Event.PublicEvent = { _tag: "StepReset", error: { code: "resumed", message: "" } }
      const end: ReadonlyArray<Event.PublicEvent> = [
        { _tag: "ToolResultEncoded", id: "c", content: "done" },
        { _tag: "StepCompleted" },
        { _tag: "ChatCompleted", outcome: { _tag: "Completed" } }
      ]
      const shown = async (events: ReadonlyArray<Event.PublicEvent>) => {
        const { message } = await readMessage(chunksOf(events))
        return message?.parts.flatMap((part) => part.type === "data-heddle-subrun" ? [part.data] : [])
      }
      assert.deepStrictEqual(await shown([...once, reset, ...once, ...end]), await shown([...once, ...end]))
    }))

  it("O-28: a suspension tells its deadline to each major version", () => {
    for (const protocol of protocols) {
      const chunks = chunksOf([...everyKind], { protocol })
      const question = chunks.find(({ id }) => id === "r~asks")
      assert.strictEqual((question?.["data"] as any)?.expiresAt, 5)
      const approval = chunks.find(({ approvalId, id }) => approvalId === "r~waits" || id === "r~waits")
      const { approvalDescriptor, data } = approval as any
      assert.strictEqual((protocol === 5 ? data : approvalDescriptor).expiresAt, 5)
    }
  })

  it("O-28: an unknown protocol is a defect that names the known protocols", () => {
    for (
      const use of [
        () => UiStream.make({ protocol: 4 as never }),
        () => UiStream.messages([] as never, { protocol: 8 as never })
      ]
    ) {
      assert.throws(use, /protocol must be 5, 6 or 7, the major version of the package ai; got: /)
    }
  })

  it.effect("O-28: a page of ai 5 shows a thread like its run, with approvals as questions", () =>
    Effect.gen(function*() {
      const { events, result } = yield* chatOf([[
        toolCall("p", "pay", { amount: 1 }),
        toolCall("e", "echo"),
        finish("tool_calls")
      ]], { tools })
      const read = yield* Effect.promise(() => readMessage(chunksOf(published(events), { protocol: 5 }), undefined, 5))
      assert.deepStrictEqual(problemsOf(read, result, 1, true, 5), [])
      const { suspensions = [] } = result
      const [, message] = UiStream.messages(result.thread, { runId: "run", suspensions, protocol: 5 })
      const shown = (parts: ReadonlyArray<any> = []) =>
        parts.map(({ data, state, toolCallId, type }) => JSON.stringify([type, toolCallId, state, data])).sort()
      assert.deepStrictEqual(shown(message?.parts), shown(read.message?.parts))
    }))
})

const at = "/agents/helper/sessions"

const helper = (more: ReadonlyArray<Tool.Any>) =>
  Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: more }) })

const onPage = async (site: Site, protocol: UiStream.Protocol) => {
  const { messages } = JSON.parse((await site.ask("GET", `${at}/s1`)).text)
  return chatWith(protocol, site.url + at, { messages })
}

const statesIn = ({ messages }: { readonly messages: ReadonlyArray<UIMessage> }) =>
  messages.flatMap((message) => toolParts(message).map(({ state, toolCallId }) => `${toolCallId}: ${state}`))

const questionsIn = ({ messages }: { readonly messages: ReadonlyArray<UIMessage> }): ReadonlyArray<any> =>
  messages.flatMap(({ parts }) => parts.filter(({ type }) => type === "data-heddle-question"))

describe("a page of an older major version", () => {
  for (const protocol of protocols) {
    it.live(`O-28: a page of ai ${protocol} allows, denies and is loaded again; the calls run once, and the page sends nothing twice`, () =>
      Effect.gen(function*() {
        const paid: Array<number> = []
        const pay = Tool.make("pay", {
          parameters: { amount: Schema.Finite },
          approval: true,
          handler: ({ amount }) => Effect.sync(() => `paid ${paid.push(amount)}`)
        })
        const site = yield* serve(
          [helper([pay])],
          Script.layer([
            [
              text("I ask."),
              ...[1, 2].map((amount) => toolCall(`p${amount}`, "pay", { amount })),
              finish("tool_calls")
            ],
            [text("Done."), finish("stop")],
            [text("Bye."), finish("stop")]
          ]),
          { protocol }
        )
        yield* Effect.promise(async () => {
          const first = chatWith(protocol, site.url + at)
          await first.sendMessage({ text: "Pay" })
          await settled(first)
          assert.isUndefined(first.error)
          const waiting = protocol === 5 ? "input-available" : "approval-requested"
          assert.deepStrictEqual(statesIn(first), [`p1: ${waiting}`, `p2: ${waiting}`])
          const page = await onPage(site, protocol)
          assert.deepStrictEqual(statesIn(page), statesIn(first))
          for (const { data, id } of questionsIn(page)) {
            const output = { approved: data.toolCallId === "p1", reason: "Too much." }
            assert.include(id, "~")
            await page.addToolOutput({ tool: "pay", toolCallId: data.toolCallId, output })
          }
          for (const { approval, toolCallId } of protocol === 5 ? [] : toolParts(page.messages[1])) {
            await page.addToolApprovalResponse({ id: approval!.id, approved: toolCallId === "p1", reason: "Too much." })
          }
          await settled(page)
          assert.isUndefined(page.error)
          const denied = protocol === 5 ? "output-error" : "output-denied"
          assert.deepStrictEqual(statesIn(page), ["p1: output-available", `p2: ${denied}`])
          assert.deepStrictEqual(stepTexts(page.messages[1]).filter((said) => said !== ""), ["I ask.", "Done."])
          assert.strictEqual(page.posts.length, 1)
          // A run behind another one is as one alone.
          await page.sendMessage({ text: "Thanks" })
          await settled(page)
          assert.deepStrictEqual(stepTexts(page.messages[3]).filter((said) => said !== ""), ["Bye."])
          assert.strictEqual(page.posts.length, 2)
          const again = await onPage(site, protocol)
          assert.deepStrictEqual(statesIn(again), statesIn(page))
          assert.deepStrictEqual(
            again.messages.map(({ id }: UIMessage) => id),
            page.messages.map(({ id }: UIMessage) => id)
          )
        })
        assert.deepStrictEqual(paid, [1])
      }))

    it.live(`O-28: ai ${protocol}: a run that is stopped, halts, or ends with calls ends, and the page sends nothing again`, () =>
      Effect.gen(function*() {
        const began = yield* Deferred.make<void>()
        const dig = Tool.make("dig", {
          parameters: {},
          handler: () => Effect.andThen(Deferred.succeed(began, undefined), Effect.never)
        })
        const end = Tool.make("end", { parameters: {}, handler: () => Effect.succeed(Tool.halt("done", null)) })
        const quick = Tool.make("quick", { parameters: {}, handler: () => Effect.succeed("ok") })
        const site = yield* serve(
          [Agent.make({
            name: "helper",
            description: "Helps",
            run: () => Effect.succeed({ tools: [dig, end, quick], maxTurns: 1 })
          })],
          Script.layer(["dig", "end", "quick"].map((name) => [toolCall(`c-${name}`, name), finish("tool_calls")])),
          { protocol }
        )
        yield* Effect.promise(async () => {
          const page = chatWith(protocol, site.url + at)
          void page.sendMessage({ text: "Dig" })
          await Effect.runPromise(Deferred.await(began))
          await site.ask("POST", `${at}/s1/stop`)
          await settled(page)
          const shown = ["c-dig: output-error"]
          assert.isUndefined(page.error)
          assert.deepStrictEqual(statesIn(page), shown)
          const reasons = { 5: undefined, 6: "other", 7: "interrupted" }
          assert.strictEqual(page.finishes[0].finishReason, reasons[protocol])
          for (const name of ["end", "quick"]) {
            await page.sendMessage({ text: name })
            await settled(page)
            shown.push(`c-${name}: output-available`)
            assert.isUndefined(page.error, name)
            assert.deepStrictEqual(statesIn(page), shown)
          }
          assert.strictEqual(page.posts.length, 3)
        })
      }))
  }
})
