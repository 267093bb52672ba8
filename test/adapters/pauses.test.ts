/** Turns that a provider pauses: they go back as they came, and the run continues. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, type Event, Message, Policy, Session, Step, Thread, Tool } from "heddle"
import type { Anthropic as Wire } from "heddle/adapters"
import * as Anthropic from "../support/anthropic.ts"
import * as Gemini from "../support/gemini.ts"
import { played } from "../support/replies.ts"
import * as Server from "../support/server.ts"
import { journalOf, prefixed } from "../support/survivor.ts"

const hosted = { type: "server_tool_use", id: "s1", name: "web_search", input: { query: "x" } }

const found = { type: "web_search_tool_result", tool_use_id: "s1", content: [] }

const whole = (index: number, block: Readonly<Record<string, unknown>>) => [
  Anthropic.opened(index, block),
  Anthropic.closed(index)
]

const search = whole(0, hosted)

const compaction = [
  Anthropic.opened(0, { type: "compaction", content: "" }),
  Anthropic.delta(0, { type: "compaction_delta", content: "So far: a." }),
  Anthropic.closed(0)
]

const paused = Anthropic.reply([search], "pause_turn")

/** The turn goes on behind its search, and is paused once more. */
const pausedAgain = Anthropic.reply([
  whole(0, found),
  Anthropic.text(1, "Found. "),
  whole(2, { ...hosted, id: "s2" })
], "pause_turn")

const ended = Anthropic.reply([whole(0, { ...found, tool_use_id: "s2" }), Anthropic.text(1, "Blue.")], "end_turn")

const answered = Anthropic.reply([Anthropic.text(0, "a")], "end_turn")

const said = (text: string) => ({ type: "text", text })

/** A server that gives these answers, the last one for all further requests. */
const served = (answers: ReadonlyArray<string | Server.Answer>): Effect.Effect<Server.Server, never, Scope.Scope> =>
  Server.serve((_, index) => {
    const answer = answers[Math.min(index, answers.length - 1)]!
    return typeof answer === "string" ? { pieces: [answer] } : answer
  })

/** Such a server, and the adapter of Anthropic's that asks it. */
const serving = (answers: ReadonlyArray<string | Server.Answer>, options: Partial<Wire.Options> = {}) =>
  Effect.map(
    served(answers),
    ({ requests, url }) => ({ requests, layer: Anthropic.layer(url, { retries: 0, ...options }) })
  )

const lookOf = (ran: Array<unknown>) =>
  Tool.make("look", {
    parameters: { type: "object", properties: {} } as const,
    readOnly: true,
    handler: (args) => Effect.sync(() => void ran.push(args)).pipe(Effect.as("seen"))
  })

describe("a turn paused by the provider", () => {
  it.effect("O-15: a reply with pause_turn goes back unchanged, and the run continues", () =>
    Effect.gen(function*() {
      const found = yield* played("anthropic", Anthropic.reply([search], "pause_turn"))
      assert.deepStrictEqual([found.requests.length, found.outcome._tag], [2, "Completed"])
      assert.deepStrictEqual(found.requests[1]!.body.messages[1], { role: "assistant", content: [hosted] })
    }))

  it.effect("O-15: a reply with tool_use and a server-side call without a result continues the run", () =>
    Effect.gen(function*() {
      const found = yield* played("anthropic", Anthropic.reply([search], "tool_use"))
      assert.strictEqual(found.requests.length, 2)
    }))

  it.effect("O-15: a reply with tool_use ends the run if every server-side call has a result or lacks whole arguments", () =>
    Effect.forEach([
      [search, whole(1, found)],
      [[Anthropic.opened(0, { ...hosted, input: {} }), Anthropic.args(0, "{\"q"), Anthropic.closed(0)]]
    ], (blocks) =>
      Effect.gen(function*() {
        const found = yield* played("anthropic", Anthropic.reply(blocks, "tool_use"))
        assert.deepStrictEqual([found.requests.length, found.outcome._tag], [1, "Completed"])
      })))

  it.effect("O-68: a compaction goes back unchanged, and the run continues", () =>
    Effect.gen(function*() {
      const found = yield* played("anthropic", Anthropic.reply([compaction], "compaction"))
      assert.deepStrictEqual([found.requests.length, found.outcome._tag], [2, "Completed"])
      assert.deepStrictEqual(found.requests[1]!.body.messages[1].content[0].content, "So far: a.")
    }))

  it.effect("O-15: a paused reply is marked as paused, and each continuation is a step", () =>
    Effect.gen(function*() {
      const { layer, requests } = yield* serving([paused, pausedAgain, ended])
      const events: Array<Event.Event> = []
      const result = yield* Chat.run("go", {
        onEvent: (event) => Effect.sync(() => void events.push(event))
      }).pipe(Effect.provide(layer))
      assert.deepStrictEqual(result.steps.map(({ done, response }) => [done, response.paused]), [
        [false, true],
        [false, true],
        [true, undefined]
      ])
      const completed = events.filter((event) => event._tag === "MessageCompleted")
      assert.deepStrictEqual(completed.map((event) => event.paused), [true, true, undefined])
      assert.deepStrictEqual(requests.map(({ body }) => body.messages.slice(1)), [
        [],
        [{ role: "assistant", content: [hosted] }],
        [{ role: "assistant", content: [hosted, found, said("Found. "), { ...hosted, id: "s2" }] }]
      ])
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
      assert.strictEqual(result.usage?.inputTokens, 30)
    }))

  it.effect("O-15: the calls of a paused reply run, and their answers go back with the reply", () =>
    Effect.forEach(["pause_turn", "tool_use"], (word) =>
      Effect.gen(function*() {
        const first = Anthropic.reply([search, Anthropic.called(1, "c1", "look", "{}")], word)
        const second = Anthropic.reply([whole(0, found), Anthropic.text(1, "Blue.")], "end_turn")
        const { layer, requests } = yield* serving([first, second, answered])
        const ran: Array<unknown> = []
        const result = yield* Effect.provide(Chat.run("go", { tools: [lookOf(ran)] }), layer)
        assert.deepStrictEqual([ran.length, requests.length, result.outcome._tag], [1, 2, "Completed"])
        // The turn of a call of this side continues with its answer, as any other does.
        assert.strictEqual(result.steps[0]?.response.paused, word === "pause_turn" ? true : undefined)
        const turn = [
          { role: "assistant", content: [hosted, { type: "tool_use", id: "c1", name: "look", input: {} }] },
          { role: "user", content: [{ type: "tool_result", tool_use_id: "c1", content: "seen" }] }
        ]
        assert.deepStrictEqual(requests[1]!.body.messages.slice(1), turn)
        yield* Effect.provide(Chat.run(Thread.append(result.thread, [Message.user("on")])), layer)
        assert.deepStrictEqual(requests[2]!.body.messages.slice(1, 4), [
          ...turn,
          { role: "assistant", content: [found, said("Blue.")] }
        ])
      })))

  it.effect("O-15: the request omits a server-side call if content after the answers ends its turn", () =>
    Effect.gen(function*() {
      const first = Anthropic.reply([search, Anthropic.called(1, "c1", "load", "{}")], "tool_use")
      const { layer, requests } = yield* serving([first, answered])
      const load = Tool.make("load", {
        parameters: { type: "object", properties: {} } as const,
        handler: () => Effect.succeed(Tool.content([{ type: "file", url: "file_1", mediaType: "application/zip" }]))
      })
      yield* Effect.provide(Chat.run("go", { tools: [load] }), layer)
      const [, { content }, { content: answers }] = requests[1]!.body.messages
      assert.deepStrictEqual(content.map(({ type }: { type: string }) => type), ["tool_use"])
      assert.deepStrictEqual(answers.map(({ type }: { type: string }) => type), [
        "tool_result",
        "text",
        "container_upload"
      ])
    }))

  it.effect("O-15: a continuation names the container of the paused reply, with the skills of the run", () =>
    Effect.gen(function*() {
      const skills = [{ type: "anthropic", skill_id: "pdf", version: "latest" }]
      const held = Anthropic.body(
        Anthropic.start(),
        ...search,
        Anthropic.stopped("pause_turn", { container: { id: "container_1", expires_at: "2026-01-01T00:00:00Z" } }),
        Anthropic.stop
      )
      const containers = (options: Chat.Options["options"]) =>
        Effect.gen(function*() {
          const { layer, requests } = yield* serving([held, pausedAgain, ended, answered])
          const { thread } = yield* Chat.run("go", { options: options ?? {} }).pipe(Effect.provide(layer))
          yield* Effect.provide(Chat.run(Thread.append(thread, [Message.user("on")])), layer)
          return requests.map(({ body }) => body.container)
        })
      assert.deepStrictEqual(yield* containers({}), [undefined, "container_1", "container_1", undefined])
      assert.deepStrictEqual(yield* containers({ container: { skills } }), [
        { skills },
        { id: "container_1", skills },
        { id: "container_1", skills },
        undefined
      ])
      assert.deepStrictEqual((yield* containers({ container: "mine" })).slice(0, 3), ["mine", "mine", "mine"])
    }))

  it.effect("O-15: haltWhen and maxTurns decide after each continuation", () =>
    Effect.gen(function*() {
      const asked = (options: Chat.Options) =>
        Effect.gen(function*() {
          const { layer, requests } = yield* serving([paused])
          const { finalResponse, outcome, thread } = yield* Chat.run("go", options).pipe(Effect.provide(layer))
          assert.isTrue(finalResponse?.paused)
          return { outcome, requests: requests.length, thread }
        })
      const bounded = yield* asked({ maxTurns: 3 })
      assert.deepInclude(bounded, { requests: 3, outcome: { _tag: "MaxTurns", maxTurns: 3 } })
      const halted = yield* asked({ haltWhen: ({ response }) => response.paused === true })
      assert.deepInclude(halted, { requests: 1, outcome: { _tag: "HaltWhen", stepIndex: 0 } })
      const last = yield* asked({ maxTurns: 2, policy: { ...Policy.standard, onMaxTurns: "finalize" } })
      assert.deepInclude(last, { requests: 3, outcome: { _tag: "MaxTurns", maxTurns: 2 } })
    }))

  it.effect("O-15: a run that ends with a paused reply leaves a thread for the next message", () =>
    Effect.gen(function*() {
      const { layer, requests } = yield* serving([paused, Anthropic.reply([Anthropic.text(0, "Hm.")], "pause_turn")])
      const run = (input: Thread.Input) => Effect.provide(Chat.run(input, { maxTurns: 1 }), layer)
      const { thread } = yield* run("go")
      const next = yield* run(Thread.append(thread, [Message.user("on")]))
      // The server refuses a call of its own without a result, unless the message is the last one.
      assert.deepStrictEqual(requests[1]!.body.messages, [{ role: "user", content: [said("go"), said("on")] }])
      yield* run(next.thread)
      assert.deepStrictEqual(requests[2]!.body.messages.at(-1), { role: "assistant", content: [said("Hm.")] })
    }))

  it.effect("O-15: the deadline ends a run between two continuations", () =>
    Effect.gen(function*() {
      const { layer, requests } = yield* serving([paused])
      const result = yield* Chat.run("go", {
        deadline: "1 minute",
        onEvent: ({ _tag }) => _tag === "StepCompleted" ? TestClock.adjust("1 minute") : Effect.void
      }).pipe(Effect.provide(layer))
      assert.deepStrictEqual(result.outcome, { _tag: "Cancelled", reason: "deadline" })
      assert.deepStrictEqual([requests.length, result.steps.length], [1, 1])
    }))

  it.effect("O-15: a cancelled run ends during a continuation, and its turn can be continued later", () =>
    Effect.gen(function*() {
      const stop = yield* Deferred.make<void>()
      const begun = Anthropic.body(Anthropic.start(), ...whole(0, found), ...Anthropic.text(1, "Fo"))
      const { layer, requests } = yield* serving([paused, { pieces: [begun], ending: "open" }, ended])
      const stopped = yield* Chat.run("go", {
        cancel: Deferred.await(stop),
        onEvent: (event) => event._tag === "TextDelta" ? Deferred.succeed(stop, undefined) : Effect.void
      }).pipe(Effect.provide(layer))
      assert.deepStrictEqual(stopped.outcome, { _tag: "Cancelled", reason: "cancel" })
      assert.deepStrictEqual(stopped.steps.map(({ response }) => response.paused), [true, undefined])
      // The result of the call is lost with the reply that was cut: the server would refuse the call without it.
      yield* Effect.provide(Chat.run(stopped.thread), layer)
      yield* Effect.provide(Chat.run(Thread.append(stopped.thread, [Message.user("on")])), layer)
      const cut = { role: "assistant", content: [said("Fo")] }
      assert.deepStrictEqual(requests.slice(2).map(({ body }) => body.messages.slice(1)), [
        [cut],
        [cut, { role: "user", content: [said("on")] }]
      ])
    }))

  it.effect("O-15: a step ends with its paused reply and is not done", () =>
    Effect.gen(function*() {
      const { layer, requests } = yield* serving([paused, ended])
      const step = yield* Effect.provide(Step.run("go"), layer)
      assert.deepStrictEqual([step.done, step.response.paused, requests.length], [false, true, 1])
      const next = yield* Effect.provide(Step.run(step.thread), layer)
      assert.deepStrictEqual([next.done, requests.length], [true, 2])
    }))

  it.effect("O-15: a paused structured answer continues within maxTurns", () =>
    Effect.gen(function*() {
      const { layer, requests } = yield* serving([answered, paused, pausedAgain, ended, ended])
      const structured = (maxTurns: number) =>
        Chat.run("go", {
          maxTurns,
          structuredFinalize: true,
          finalizePrompt: "",
          responseFormat: { type: "json_schema", name: "answer", schema: { type: "object", properties: {} } }
        })
      const { finalResponse, outcome, steps } = yield* structured(8).pipe(Effect.provide(layer))
      assert.deepStrictEqual([outcome._tag, finalResponse?.outputText, steps.length], ["Completed", "Blue.", 4])
      const formats = requests.map(({ body }) => body.output_config?.format?.type)
      assert.deepStrictEqual(formats, [undefined, "json_schema", "json_schema", "json_schema"])
      const calling = yield* serving([answered, Anthropic.reply([Anthropic.called(0, "c1", "look", "{}")], "tool_use")])
      const called = yield* structured(8).pipe(Effect.provide(calling.layer))
      assert.deepStrictEqual([called.outcome._tag, calling.requests.length], ["MaxTurns", 2])
      const bounded = yield* serving([answered, paused])
      const cut = yield* structured(3).pipe(Effect.provide(bounded.layer))
      assert.deepStrictEqual([cut.outcome._tag, bounded.requests.length], ["MaxTurns", 3])
    }))

  it.effect("O-15: the classification of a paused reply ignores the pause", () =>
    Effect.gen(function*() {
      const { layer } = yield* serving([paused])
      const { diagnostics, finishReason, toolCalls, type } = yield* Effect.provide(Adapter.classify("go"), layer)
      assert.deepStrictEqual([type, finishReason, toolCalls.map(({ name }) => name), diagnostics], [
        "final_answer",
        "other",
        ["web_search"],
        []
      ])
    }))

  it.effect("O-15: a reply with an error after its pause fails the run", () =>
    Effect.gen(function*() {
      const broken = Anthropic.body(
        Anthropic.start(),
        ...search,
        Anthropic.stopped("pause_turn"),
        { type: "error", error: { type: "overloaded_error", message: "busy" } }
      )
      const { layer, requests } = yield* serving([broken])
      const { outcome } = yield* Effect.provide(Chat.run("go"), layer)
      assert.deepStrictEqual([outcome._tag, requests.length], ["Failed", 1])
    }))

  it.effect("O-15, D-03: a session cut at any record resumes with the same requests as an uncut run", () =>
    Effect.gen(function*() {
      const first = Anthropic.reply([search, Anthropic.called(1, "c1", "look", "{}")], "pause_turn")
      const replies = [first, Anthropic.reply([compaction], "compaction"), pausedAgain, ended]
      const tools = [lookOf([])]
      const uncut = yield* serving(replies)
      const { kept, records } = yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const kept = yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools, requestId: "run" }))
        return { kept, records: yield* journalOf("s") }
      }).pipe(Effect.provide([uncut.layer, Session.Store.layerMemory]))
      assert.deepStrictEqual([uncut.requests.length, kept.session.status], [4, "completed"])
      for (let length = 2; length < records.length; length++) {
        const before = records.slice(0, length)
        const where = `cut behind record ${length}, ${before.at(-1)?._tag}`
        const heard = new Set(before.flatMap((record) =>
          record._tag === "ReplyReceived" || (record._tag === "StepCompleted" && record.response !== undefined)
            ? [record.stepIndex]
            : []
        )).size
        const again = yield* serving(replies.slice(heard))
        const resumed = yield* Effect.gen(function*() {
          const cut = (yield* Session.load("s"))!
          return yield* Session.resume(cut, { tools, takeOver: true })
        }).pipe(Effect.provide([again.layer, prefixed("s", before)]))
        const bodies = (requests: ReadonlyArray<Server.Received>) =>
          requests.map(({ body }) =>
            body
          )
        assert.deepStrictEqual(bodies(again.requests), bodies(uncut.requests).slice(heard), where)
        assert.deepStrictEqual(Server.anywhere(resumed.value.result), Server.anywhere(kept.value.result), where)
        assert.deepStrictEqual(Server.anywhere(resumed.session), Server.anywhere(kept.session), where)
      }
    }))
})

describe("a reply that Gemini continues by a token", () => {
  const part = (text: string, continuationToken?: string) =>
    Gemini.chunk([{ text }], continuationToken === undefined ? {} : { continuationToken })
  const hop = (text: string, token: string) =>
    Gemini.body(part(text, "t0"), part("", token), Gemini.finish("CONTINUATION"))
  const last = Gemini.body(part("c", "t3"), Gemini.finish("STOP"))
  const user = (text: string) => ({ role: "user", parts: [{ text }] })
  const model = (...texts: ReadonlyArray<string>) => ({ role: "model", parts: texts.map((text) => ({ text })) })

  it.effect("O-15: a run repeats the same request with the continuation token until the reply is whole", () =>
    Effect.gen(function*() {
      const server = yield* served([hop("a", "t1"), hop("b", "t2"), last, last])
      const layer = Gemini.layer(server.url, { retries: 0 })
      const { outcome, steps, thread } = yield* Effect.provide(Chat.run("go"), layer)
      assert.deepStrictEqual([outcome._tag, steps.map(({ response }) => response.outputText)], ["Completed", [
        "a",
        "b",
        "c"
      ]])
      yield* Effect.provide(Chat.run(Thread.append(thread, [Message.user("on")])), layer)
      assert.deepStrictEqual(server.requests.map(({ body }) => [body.continuationToken, body.contents]), [
        [undefined, [user("go")]],
        ["t1", [user("go")]],
        ["t2", [user("go")]],
        [undefined, [user("go"), model("a", "b", "c"), user("on")]]
      ])
    }))

  it.effect("O-15: a run sends a continuation token to no other server, and not after a further message", () =>
    Effect.gen(function*() {
      const server = yield* served([hop("a", "t1"), last])
      const other = yield* served([last])
      const run = (input: Thread.Input, { url }: Server.Server) =>
        Effect.provide(Chat.run(input, { maxTurns: 1 }), Gemini.layer(url, { retries: 0 }))
      const { finalResponse, outcome, thread } = yield* run("go", server)
      assert.deepStrictEqual([finalResponse?.paused, outcome._tag], [true, "MaxTurns"])
      yield* run(Thread.append(thread, [Message.user("on")]), server)
      yield* run(thread, other)
      for (const { body } of [server.requests[1]!, other.requests[0]!]) {
        assert.notProperty(body, "continuationToken")
        assert.deepStrictEqual(body.contents.slice(0, 2), [user("go"), model("a")])
      }
    }))

  it.effect("O-15: a reply with CONTINUATION and without a token ends the run with finish reason length", () =>
    Effect.gen(function*() {
      const { outcome, requests } = yield* played("gemini", Gemini.body(part("a"), Gemini.finish("CONTINUATION")))
      assert.deepStrictEqual([outcome, requests.length], [{ _tag: "Completed", finishReason: "length" }, 1])
    }))
})

describe("a summary by the provider", () => {
  const summary = (signature: string | undefined, content: string | null = "So far: a.") => ({
    type: "compaction",
    content,
    ...(signature === undefined ? {} : { signature })
  })

  it.effect("O-68: a run does not repeat a request for a summary alone", () =>
    Effect.gen(function*() {
      const { layer, requests } = yield* serving([Anthropic.reply([whole(0, summary("sig"))], "compaction")])
      const { outcome } = yield* Chat.run("go", { options: { compaction: { type: "summarize" } } }).pipe(
        Effect.provide(layer)
      )
      assert.deepStrictEqual([outcome._tag, requests.length], ["Completed", 1])
    }))

  it.effect("O-68: a signed summary goes back first, in place of the earlier messages; any other summary goes back after them", () =>
    Effect.gen(function*() {
      const bodyBehind = (block: Readonly<Record<string, unknown>>) =>
        Effect.gen(function*() {
          const { layer, requests } = yield* serving([Anthropic.reply([whole(0, block)], "compaction"), answered], {
            inlineSystem: true
          })
          const options = { options: { compaction: { type: "summarize" } } }
          const system = Message.system("Be brief.")
          const thread = [Message.user("go"), system, Message.assistant("Hi"), Message.user("on")]
          const { thread: summed } = yield* Effect.provide(Chat.run(thread, options), layer)
          yield* Effect.provide(Chat.run(Thread.append(summed, [Message.user("next")])), layer)
          return requests[1]!.body
        })
      const signed = yield* bodyBehind(summary("sig"))
      assert.deepStrictEqual(signed.messages, [
        { role: "assistant", content: [summary("sig")] },
        { role: "user", content: [said("next")] },
        { role: "system", content: [said("Be brief.")] }
      ])
      for (const block of [summary(undefined), summary("sig", null)]) {
        const { messages } = yield* bodyBehind(block)
        assert.deepStrictEqual(messages.map(({ role }: { role: string }) => role), [
          "user",
          "system",
          "assistant",
          "user",
          "assistant",
          "user"
        ])
        assert.deepStrictEqual(messages[4].content, [block])
      }
    }))
})
