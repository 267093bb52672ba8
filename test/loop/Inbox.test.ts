import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Budget, Chat, Event, Inbox, Limits, type Message, Output, Rule, Tool } from "heddle"
import { everyStep, Script } from "heddle/testing"
import { AgUi, UiStream } from "heddle/ui"

const { finish, preflightError, streamError, text, toolCall } = Script

type Reply = ReadonlyArray<Script.Entry>

/** A model that notes its requests. `reply` gives the reply to each, and `before` what happens before its last event. */
const modelOf = (
  reply: (index: number, request: Adapter.Request) => Reply,
  before: (index: number, request: Adapter.Request) => Effect.Effect<unknown> = () => Effect.void
) => {
  const requests: Array<Adapter.Request> = []
  const service: Adapter.Service = {
    stream: (request) => {
      const index = requests.push(request) - 1
      const scripted = Effect.map(Script.make(reply(index, request)), (scripted) => scripted.stream(request))
      return Stream.tap(
        Stream.unwrap(scripted),
        ({ _tag }) => _tag === "MessageCompleted" ? before(index, request) : Effect.void
      )
    }
  }
  return { requests, service, layer: Adapter.layer(service) }
}

const used = Script.usage({ inputTokens: 10, outputTokens: 10 })
const say = (words: string): Reply => [text(words), finish("stop")]
const call = (id: string, name: string): Reply => [toolCall(id, name, {}), finish("tool_calls")]

const shown = ({ content, role }: Message.Message): string => `${role}: ${content as string}`
const userTexts = (messages: ReadonlyArray<Message.Message>): ReadonlyArray<unknown> =>
  messages.flatMap(({ content, role }) => role === "user" ? [content] : [])
const fateOf = (sent: Inbox.Sent) => sent.fate

/** Calls a tool twice, the first one while the reply still comes, and answers. */
const looking = (index: number): Reply => index < 2 ? call(`c${index}`, "look") : say("Done.")

const look = Tool.make("look", {
  parameters: {},
  readOnly: true,
  handler: () => Effect.as(Effect.yieldNow, "seen")
})

/** A run of an inbox that says what became of a message of the id `m`. */
interface Attempt {
  readonly inbox: Inbox.Inbox
  events: ReadonlyArray<Event.Event>
  result: Event.ChatResult | undefined
  isSteered: boolean
}

const told = (attempt: Attempt) => Effect.runSync(attempt.inbox.fate("m"))

/** Holds that the message is in the thread once and was told delivered, or is not in the thread and was told another fate. */
const assertOneFate = (attempt: Attempt, where: string): string => {
  const fate = told(attempt)
  const { events, result } = attempt
  const delivered = events.filter((event) => event._tag === "MessageDelivered")
  const refused = events.filter((event) => event._tag === "MessageRefused")
  if (fate?._tag === "Delivered") {
    assert.strictEqual(refused.length, 0, where)
    if (result === undefined) return "Delivered"
    assert.deepStrictEqual(delivered.map(({ id, stepIndex }) => [id, stepIndex]), [["m", fate.stepIndex]], where)
    const texts = userTexts(result.thread.messages)
    // A stop may come behind the delivery and before the reply: the step of the message is then in the thread, too.
    assert.deepStrictEqual(texts, ["go", "not that"], where)
    return "Delivered"
  }
  assert.strictEqual(fate?._tag, "Refused", where)
  assert.strictEqual(delivered.length, 0, where)
  if (result !== undefined) assert.deepStrictEqual(userTexts(result.thread.messages), ["go"], where)
  return fate?._tag === "Refused" ? fate.reason : "none"
}

/** Runs with an inbox at every step at which it can be stopped, and does something there. */
const atEveryStep = (
  act: (inbox: Inbox.Inbox) => void,
  withCancel: boolean,
  reply = looking,
  options: Chat.Options<ReadonlyArray<Tool.Any>, never, never, never, never> = {}
) =>
  Effect.gen(function*() {
    const attempts: Array<Attempt> = []
    const model = modelOf((_, { messages }) => reply(messages.filter(({ role }) => role === "assistant").length))
    const report = yield* everyStep(({ cancel }) => {
      const attempt: Attempt = { inbox: Inbox.make(), events: [], result: undefined, isSteered: false }
      attempts.push(attempt)
      cancel.addEventListener("abort", () => {
        attempt.isSteered = true
        act(attempt.inbox)
      })
      return Chat.stream("go", {
        tools: [look],
        inbox: attempt.inbox,
        ...options,
        ...(withCancel ? { cancel } : {})
      }).pipe(
        Stream.tap((event) =>
          Effect.sync(() => {
            attempt.events = [...attempt.events, event]
            if (event._tag === "ChatCompleted") attempt.result = event.result
          })
        )
      )
    }, { layer: model.layer, maxOpsBeforeYield: 6, limit: 400 })
    return { attempts, report }
  })

const steering = (inbox: Inbox.Inbox) => Effect.runSync(inbox.steer("not that", { id: "m" }))

describe("Inbox", () => {
  it.effect("G45: a steer at each boundary of a run is delivered and once in the thread, or refused and absent", () =>
    Effect.gen(function*() {
      const { attempts } = yield* atEveryStep(steering, false)
      const steered = attempts.filter(({ isSteered }) => isSteered)
      assert.isAbove(steered.length, 20)
      const fates = steered.map((attempt, index) => assertOneFate(attempt, `attempt ${index}`))
      assert.includeMembers(fates, ["Delivered", "finished"])
      const steps = attempts.flatMap((attempt) => {
        const fate = told(attempt)
        return fate?._tag === "Delivered" ? [fate.stepIndex] : []
      })
      assert.deepStrictEqual([...new Set(steps)].sort(), [1, 2, 3])
    }))

  it.effect("G46: a steer in the same tick as a stop is either refused and absent, or delivered and present", () =>
    Effect.gen(function*() {
      for (const isSteerFirst of [true, false]) {
        const { attempts } = yield* atEveryStep(
          (inbox) => isSteerFirst ? steering(inbox) : queueMicrotask(() => steering(inbox)),
          true
        )
        const steered = attempts.filter((attempt) => told(attempt) !== undefined)
        assert.isAbove(steered.length, 20)
        const fates = new Set(steered.map((attempt, index) => assertOneFate(attempt, `attempt ${index}`)))
        assert.include([...fates], "stopped")
      }
    }))

  it.effect("G47: three steers are in one request, in their order", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const model = modelOf((index) => index === 0 ? call("c0", "work") : say("Done."))
      const work = Tool.make("work", {
        parameters: {},
        handler: () => Effect.as(Effect.forEach(["one", "two", "three"], (words) => inbox.steer(words)), "worked")
      })
      const events = yield* Chat.stream("go", { tools: [work], inbox }).pipe(
        Stream.runCollect,
        Effect.provide(model.layer)
      )
      assert.deepStrictEqual(model.requests.map(({ messages }) => userTexts(messages)), [
        ["go"],
        ["go", "one", "two", "three"]
      ])
      const tags = Array.from(events, ({ _tag }) => _tag)
      const first = tags.indexOf("MessageDelivered")
      assert.deepStrictEqual(tags.slice(first - 1, first + 4), [
        "StepCompleted",
        "MessageDelivered",
        "MessageDelivered",
        "MessageDelivered",
        "MessageStarted"
      ])
    }))

  for (const onExhausted of ["halt", "finalize"] as const) {
    it.effect(`G48: a steer while the budget ends the run (${onExhausted}) is refused with the budget, unless it was delivered`, () =>
      Effect.gen(function*() {
        const inbox = Inbox.make()
        const sent: Array<Inbox.Sent> = []
        const model = modelOf((index) => index === 0 ? call("c0", "work") : [Script.delay(0), ...say("Done.")])
        const work = Tool.make("work", {
          parameters: {},
          handler: () => Effect.map(inbox.steer("early"), (one) => sent.push(one) && "worked")
        })
        const late = Rule.make("late", {
          reply: (_, { stepIndex }) =>
            stepIndex === 0
              ? Rule.keep()
              : Effect.as(Effect.map(inbox.steer("late"), (one) => sent.push(one)), Rule.keep())
        })
        const budget = Budget.make({ calls: onExhausted === "halt" ? 1 : 2 }, { onExhausted })
        const result = yield* Chat.run("go", { tools: [work], rules: [late], inbox, budget }).pipe(
          Effect.provide(model.layer)
        )
        const fates = yield* Effect.forEach(sent, fateOf)
        if (onExhausted === "halt") {
          assert.strictEqual(result.haltedReason, "budget")
          assert.deepStrictEqual(fates, [{ _tag: "Refused", reason: "budget" }])
          assert.deepStrictEqual(userTexts(result.thread.messages), ["go"])
          return
        }
        assert.strictEqual(result.finalized, "budget")
        assert.deepStrictEqual(fates.map(({ _tag }) => _tag), ["Delivered", "Refused"])
        assert.propertyVal(fates[1], "reason", "budget")
        assert.deepStrictEqual(userTexts(result.thread.messages), ["go", "early"])
      }))
  }

  it.effect("G52: a steer lets early started calls run to their end", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const sent = yield* Deferred.make<void>()
      let ran = 0
      const early = Tool.make("early", {
        parameters: {},
        readOnly: true,
        handler: () => Effect.andThen(Deferred.await(sent), Effect.sync(() => `seen ${++ran}`))
      })
      const model = modelOf(
        (index) =>
          index > 0 ? say("Done.") : [toolCall("a", "early", {}), toolCall("b", "early", {}), finish("tool_calls")],
        (index) => index > 0 ? Effect.void : Effect.andThen(inbox.steer("not that"), Deferred.succeed(sent, undefined))
      )
      const result = yield* Chat.run("go", { tools: [early], inbox }).pipe(Effect.provide(model.layer))
      assert.strictEqual(ran, 2)
      assert.deepStrictEqual(result.thread.messages.map(shown), [
        "user: go",
        "assistant: ",
        "tool: seen 1",
        "tool: seen 2",
        "user: not that",
        "assistant: Done."
      ])
    }))

  it.effect("G94: every open fate ends when the reader leaves the run", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const started = yield* Deferred.make<void>()
      const stuck = Tool.make("stuck", {
        parameters: {},
        handler: () => Effect.andThen(Deferred.succeed(started, undefined), Effect.never)
      })
      const model = modelOf(() => call("c0", "stuck"))
      const fiber = yield* Effect.forkChild(
        Chat.run("go", { tools: [stuck], inbox, grace: "1 milli" }).pipe(Effect.provide(model.layer))
      )
      yield* Deferred.await(started)
      const sent = [yield* inbox.steer("one"), yield* inbox.follow("two")]
      yield* Fiber.interrupt(fiber)
      const fates = yield* Effect.forEach(sent, fateOf)
      for (const fate of fates) assert.deepStrictEqual(fate, { _tag: "Refused", reason: "stopped" })
      const later = yield* inbox.steer("three")
      assert.deepStrictEqual(yield* later.fate, { _tag: "Refused", reason: "stopped" })
    }))

  it.effect("G94: a reader that takes a part of the events ends every open fate", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const sent = yield* inbox.follow("one")
      yield* Chat.stream("go", { inbox }).pipe(
        Stream.take(1),
        Stream.runDrain,
        Effect.provide(modelOf(() => say("Done.")).layer)
      )
      assert.deepStrictEqual(yield* sent.fate, { _tag: "Refused", reason: "stopped" })
    }))

  it.effect("G96: a run that fails before its first reply delivers no message", () =>
    Effect.gen(function*() {
      const failing: ReadonlyArray<readonly [string, Adapter.Service, Chat.Options]> = [
        ["the provider refuses", modelOf(() => [preflightError("authentication_failed")]).service, {}],
        ["the options do not fit", modelOf(() => say("Done.")).service, { toolChoice: { name: "none" } } as {}],
        [
          "a rule fails",
          modelOf(() => say("Done.")).service,
          { prepareStep: () => Effect.fail("down") } as {}
        ]
      ]
      for (const [why, service, options] of failing) {
        const inbox = Inbox.make()
        const sent = [yield* inbox.steer("one"), yield* inbox.follow("two")]
        const exit = yield* Effect.exit(
          Chat.run("go", { ...options, inbox }).pipe(Effect.provide(Adapter.layer(service)))
        )
        assert.isTrue(Exit.isFailure(exit), why)
        const fates = yield* Effect.forEach(sent, fateOf)
        for (const fate of fates) assert.deepStrictEqual(fate, { _tag: "Refused", reason: "failed" }, why)
      }
    }))

  it.effect("a follow waits for the answer, and the run continues within maxTurns", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const sent = [yield* inbox.follow("and then?"), yield* inbox.steer("shortly")]
      const model = modelOf((index) => index === 0 ? call("c0", "look") : say(`Answer ${index}.`))
      const result = yield* Chat.run("go", { tools: [look], inbox, maxTurns: 3 }).pipe(Effect.provide(model.layer))
      assert.deepStrictEqual(result.thread.messages.map(shown), [
        "user: go",
        "assistant: ",
        "tool: seen",
        "user: shortly",
        "assistant: Answer 1.",
        "user: and then?",
        "assistant: Answer 2."
      ])
      const fates = yield* Effect.forEach(sent, fateOf)
      assert.deepStrictEqual(fates.map((fate) => fate._tag === "Delivered" && fate.stepIndex), [2, 1])

      const short = Inbox.make()
      const late = yield* short.follow("and then?")
      const bounded = modelOf(() => say("Answer."))
      const events = yield* Chat.stream("go", { inbox: short, maxTurns: 1 }).pipe(
        Stream.runCollect,
        Effect.provide(bounded.layer)
      )
      assert.lengthOf(bounded.requests, 1)
      assert.deepStrictEqual(yield* late.fate, { _tag: "Refused", reason: "finished" })
      assert.deepStrictEqual(Array.from(events).slice(-2).map(({ _tag }) => _tag), ["MessageRefused", "ChatCompleted"])
    }))

  it.effect("a refusal carries the reason for which the run ended", () =>
    Effect.gen(function*() {
      const halt = Tool.make("work", { parameters: {}, handler: () => Effect.succeed(Tool.halt("enough", "done")) })
      const ask = Tool.make("work", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which?")) })
      const plain = Tool.make("work", { parameters: {}, handler: () => Effect.succeed("ok") })
      const ended = Rule.make("mine", { next: () => Rule.end({ status: "completed" }) })
      const cases: ReadonlyArray<readonly [string, Chat.Options<ReadonlyArray<Tool.Any>>]> = [
        ["halted", { tools: [halt] }],
        ["waiting", { tools: [ask] }],
        ["waiting", { tools: [plain], mode: "manual" }],
        ["halted", { tools: [plain], haltWhen: () => true }],
        ["max_turns", { tools: [plain], maxTurns: 1 }],
        ["mine", { tools: [plain], rules: [ended] }]
      ]
      for (const [reason, options] of cases) {
        const inbox = Inbox.make()
        const sent = yield* inbox.follow("later")
        yield* Chat.run("go", { ...options, inbox }).pipe(Effect.provide(modelOf(() => call("c0", "work")).layer))
        assert.deepStrictEqual(yield* sent.fate, { _tag: "Refused", reason })
      }
      const inbox = Inbox.make()
      const sent = yield* inbox.follow("later")
      const broken = modelOf((index) => index === 0 ? call("c0", "work") : [streamError("provider_unavailable")])
      yield* Chat.run("go", { tools: [plain], inbox }).pipe(Effect.provide(broken.layer))
      assert.deepStrictEqual(yield* sent.fate, { _tag: "Refused", reason: "failed" })
    }))

  it.effect("a retried reply has the messages once, and the run still continues after them", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const sent = yield* inbox.follow("and then?")
      const model = modelOf((index) => index === 1 ? [streamError("network_error")] : say(`Answer ${index}.`))
      const again = Rule.make("again", {
        reply: ({ error, mayRepeat }) => error !== undefined && mayRepeat ? Rule.askAgain() : Rule.keep()
      })
      const result = yield* Chat.run("go", { inbox, rules: [again] }).pipe(Effect.provide(model.layer))
      assert.deepStrictEqual(result.thread.messages.map(shown), [
        "user: go",
        "assistant: Answer 0.",
        "user: and then?",
        "assistant: Answer 2."
      ])
      assert.propertyVal(yield* sent.fate, "stepIndex", 1)
    }))

  it.effect("messages withdrawn while the budget waits are not sent, and no budget stays reserved", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const replied = yield* Deferred.make<void>()
      const underWay = yield* Deferred.make<void>()
      const isOther = ({ messages }: Adapter.Request) => userTexts(messages)[0] === "other"
      const model = modelOf(
        (index, request) => [used, ...index === 0 && !isOther(request) ? call("c0", "look") : say("Done.")],
        (_, request) =>
          isOther(request)
            ? Effect.andThen(Deferred.succeed(underWay, undefined), Deferred.await(replied))
            : Effect.void
      )
      const budget = Budget.make({ calls: 100, tokens: 10_000 })
      const steered = yield* Deferred.make<Inbox.Sent>()
      const work = Tool.make("look", {
        parameters: {},
        handler: () =>
          Effect.gen(function*() {
            yield* Deferred.succeed(steered, yield* inbox.steer("not that"))
            yield* Deferred.await(underWay)
            return "seen"
          })
      })
      const program = Effect.gen(function*() {
        const run = yield* Effect.forkChild(Chat.run("go", { tools: [work], inbox, maxTokens: 4_000 }))
        const sent = yield* Deferred.await(steered)
        // Holds what the next request of the run wants, until the message is withdrawn.
        const other = yield* Effect.forkChild(Chat.run("other", { maxTokens: 7_000 }))
        for (let index = 0; index < 50; index++) yield* Effect.yieldNow
        const isWithdrawn = yield* inbox.withdraw(sent.id)
        yield* Deferred.succeed(replied, undefined)
        yield* Fiber.join(other)
        const result = yield* Fiber.join(run)
        return { fate: yield* sent.fate, isWithdrawn, result, left: yield* Budget.spent }
      }).pipe(Effect.provide([model.layer, Limits.layer({ budget })]))
      const { fate, isWithdrawn, left, result } = yield* program
      assert.isTrue(isWithdrawn)
      assert.deepStrictEqual(fate, { _tag: "Withdrawn" })
      assert.deepStrictEqual(userTexts(result.thread.messages), ["go"])
      assert.deepStrictEqual([result.outcome._tag, result.spent?.calls], ["Completed", 2])
      assert.strictEqual(left?.left.calls, 97)
    }))

  it.effect("a message is withdrawn once, and a run re-opened only for that message ends without another request", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const sent = yield* inbox.follow("and then?")
      const model = modelOf(() => say("{\"celsius\":7}"))
      const withdrawing = Rule.make("withdrawing", {
        ask: (ask, { stepIndex }) => stepIndex === 0 ? ask : Effect.as(inbox.withdraw(sent.id), ask)
      })
      const { outcome, output } = yield* Chat.run("go", {
        inbox,
        rules: [withdrawing],
        output: Output.make(Schema.Struct({ celsius: Schema.Finite }), { mode: "native" })
      }).pipe(Effect.provide(Adapter.layer({ ...model.service, output: { native: "always", forced: true } })))
      assert.deepStrictEqual([outcome._tag, output], ["Completed", { celsius: 7 }])
      assert.lengthOf(model.requests, 1)
      assert.deepStrictEqual(yield* sent.fate, { _tag: "Withdrawn" })
      assert.isFalse(yield* inbox.withdraw(sent.id))
      assert.isFalse(yield* inbox.withdraw("none"))
      assert.isUndefined(yield* inbox.fate("none"))
    }))

  it.effect("a message precedes a second pass, and the answer keeps its format", () =>
    Effect.gen(function*() {
      const format = { type: "json_schema", name: "a", schema: { type: "object", properties: {} } } as const
      const inbox = Inbox.make()
      yield* inbox.follow("and then?")
      const model = modelOf((index) => say(index < 2 ? `Words ${index}.` : "{\"a\":1}"))
      const result = yield* Chat.run("go", {
        inbox,
        responseFormat: format,
        structuredFinalize: true,
        finalizePrompt: "Now."
      }).pipe(Effect.provide(model.layer))
      assert.deepStrictEqual(result.thread.messages.map(shown), [
        "user: go",
        "assistant: Words 0.",
        "user: and then?",
        "assistant: Words 1.",
        "user: Now.",
        "assistant: {\"a\":1}"
      ])
      assert.strictEqual(result.structuredFinalize?.pass1Halted, "completed")
    }))

  it.effect("the same message under one id is accepted once, and another message under that id is a defect", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const first = yield* inbox.steer("one", { id: "a" })
      const again = yield* inbox.steer("one", { id: "a" })
      assert.strictEqual(again.id, first.id)
      for (const other of [inbox.steer("two", { id: "a" }), inbox.follow("one", { id: "a" })]) {
        assert.match(String(yield* Effect.exit(other)), /another message has the id/)
      }
      const model = modelOf((index) => index === 0 ? call("c0", "look") : say("Done."))
      const result = yield* Chat.run("go", { tools: [look], inbox }).pipe(Effect.provide(model.layer))
      assert.deepStrictEqual(userTexts(result.thread.messages), ["go", "one"])
    }))

  it.effect("bad input to an inbox is a defect that names what would be right", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const untyped = (value: unknown) => value as never
      const messages = yield* Effect.forEach(
        [
          inbox.steer(untyped(7)),
          inbox.steer(untyped([{ type: "none" }])),
          inbox.steer("a", untyped({ ident: "m" })),
          inbox.follow("a", { id: "" }),
          Chat.run("go", { inbox: untyped({}) }).pipe(Effect.provide(modelOf(() => say("Done.")).layer))
        ] as ReadonlyArray<Effect.Effect<unknown, unknown>>,
        (effect) => Effect.map(Effect.exit(effect), String)
      )
      assert.match(messages[0]!, /the message for the inbox cannot be used: .*content/)
      assert.match(messages[1]!, /the message for the inbox cannot be used: /)
      assert.match(messages[2]!, /Inbox.steer has no option "ident"/)
      assert.match(messages[3]!, /Inbox.follow.*id|id.*Inbox.follow/)
      assert.match(messages[4]!, /inbox.* must be an inbox made with Inbox.make/)
    }))

  it.effect("two concurrent runs do not share an inbox, and two successive runs do", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const nested = Tool.make("nest", { parameters: {}, handler: () => Effect.map(Chat.run("in", { inbox }), String) })
      const model = modelOf((index) => index === 0 ? call("c0", "nest") : say("Done."))
      const first = yield* Chat.run("go", { tools: [nested], inbox }).pipe(Effect.provide(model.layer))
      assert.isTrue(first.steps[0]?.toolResults[0]?.isError)
      const second = yield* inbox.follow("more")
      assert.propertyVal(yield* second.fate, "reason", "finished")
      const next = yield* Chat.run("go", {
        inbox,
        rules: [Rule.make("sends", { reply: () => Effect.as(inbox.follow("late", { id: "late" }), Rule.keep()) })]
      }).pipe(Effect.provide(modelOf(() => say("Done.")).layer))
      assert.deepStrictEqual(userTexts(next.thread.messages), ["go", "late"])
    }))

  it.effect("clients receive a delivery and a refusal in every protocol", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      yield* inbox.steer([{ type: "text", text: "see" }, { type: "image", url: "https://a.b/c.png" }], { id: "m1" })
      yield* inbox.follow("later", { id: "m2" })
      const model = modelOf((index) => index === 0 ? call("c0", "look") : say("Done."))
      const events = Array.from(
        yield* Chat.stream("go", { tools: [look], inbox, maxTurns: 2 }).pipe(
          Stream.runCollect,
          Effect.provide(model.layer)
        )
      )
      const published = events.flatMap((event) => Event.toPublic(event, { calls: new Map() } as {}) ?? [])
      assert.deepStrictEqual(
        published.filter(({ _tag }) => _tag.startsWith("MessageDel") || _tag.startsWith("MessageR")),
        [
          {
            _tag: "MessageDelivered",
            id: "m1",
            stepIndex: 1,
            content: [{ type: "text", text: "see" }, { type: "image", url: "https://a.b/c.png" }]
          },
          { _tag: "MessageRefused", id: "m2", content: "later", reason: "finished" }
        ]
      )
      const parts = [
        { type: "text", text: "see" },
        { type: "file", mediaType: "image/*", url: "https://a.b/c.png" }
      ]
      const refused = { type: "data-heddle-message", id: "m2", data: { reason: "finished" } }
      for (const protocol of [5, 6, 7] as const) {
        const encoder = UiStream.make({ protocol })
        const chunks = [...published.flatMap((event) => encoder.push(event)), ...encoder.end()]
        const own = chunks.filter(({ type }) => type === "steering-message" || type === "data-heddle-message")
        assert.deepStrictEqual(own as ReadonlyArray<unknown>, [
          protocol === 7
            ? { type: "steering-message", id: "m1", parts }
            : { type: "data-heddle-message", id: "m1", data: { parts } },
          refused
        ])
      }
      const encoder = AgUi.make({ threadId: "t", runId: "r" })
      const shownEvents = [...published.flatMap((event) => encoder.push(event)), ...encoder.end()]
      const own = shownEvents.filter((event) =>
        event["messageId"] === "m1" || (event as { readonly name?: string }).name === "heddle.message"
      )
      assert.deepStrictEqual(own as ReadonlyArray<unknown>, [
        { type: "TEXT_MESSAGE_START", messageId: "m1", role: "user" },
        { type: "TEXT_MESSAGE_CONTENT", messageId: "m1", delta: "see" },
        { type: "TEXT_MESSAGE_END", messageId: "m1" },
        { type: "CUSTOM", name: "heddle.message", value: { id: "m2", reason: "finished" } }
      ])
    }))
})
