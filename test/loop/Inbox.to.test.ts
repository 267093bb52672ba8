/** Messages to the runs that handlers start: one inbox reaches each of them by the path of its call. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, Inbox, type Message, Session, Tool } from "heddle"
import { everyStep, Script } from "heddle/testing"

const { finish, text, toolCall } = Script

const userTexts = (messages: ReadonlyArray<Message.Message>): ReadonlyArray<unknown> =>
  messages.flatMap(({ content, role }) => role === "user" ? [content] : [])

/** The runs of a test by their first message: the tool that each calls once, before it answers. */
const calls: Record<string, readonly [id: string, name: string]> = {
  go: ["c0", "outer"],
  middle: ["i0", "inner"],
  deep: ["d0", "look"]
}

/** A model that calls the tool of its run so often, and answers. */
const modelOf = (asked: Array<Adapter.Request> = [], looks = 1) =>
  Adapter.layer({
    stream: (request) => {
      asked.push(request)
      const turn = request.messages.filter(({ role }) => role === "assistant").length
      const [id, name] = calls[String(request.messages[0]?.content)] ?? ["x", "look"]
      const reply = turn < (name === "look" ? looks : 1)
        ? [toolCall(turn === 0 ? id : `${id}${turn}`, name, {}), finish("tool_calls")]
        : [text("Done."), finish("stop")]
      return Stream.unwrap(Effect.map(Script.make([reply]), (scripted) => scripted.stream(request)))
    }
  })

/** The tools of three runs, one inside the other. `act` runs in the innermost call. */
const toolsWith = (act: (call: Tool.CallContext) => Effect.Effect<unknown>, options: { inbox?: Inbox.Inbox } = {}) => {
  const look = Tool.make("look", { parameters: {}, handler: (_, call) => Effect.as(act(call), "seen") })
  const inner = Tool.fromChat("inner", {
    parameters: {},
    chat: () => Chat.stream("deep", { tools: [look], ...options })
  })
  const outer = Tool.fromChat("outer", { parameters: {}, chat: () => Chat.stream("middle", { tools: [inner] }) })
  return [outer] as const
}

/** The requests of the run that began with this message, by the texts of their users. */
const askedOf = (asked: ReadonlyArray<Adapter.Request>, first: string) =>
  asked.map(({ messages }) => userTexts(messages)).filter(([text]) => text === first)

describe("a message to a run inside a handler", () => {
  it.effect("G51: a message to a sub-agent's sub-agent is delivered to that run alone", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const asked: Array<Adapter.Request> = []
      const sent: Array<Inbox.Sent> = []
      const act = () => Effect.map(inbox.steer("not that", { id: "m", to: "c0/i0" }), (one) => sent.push(one))
      const events: Array<Event.Event> = []
      const result = yield* Chat.run("go", {
        tools: toolsWith(act),
        inbox,
        onEvent: (event: Event.Event) => void events.push(event)
      }).pipe(Effect.provide(modelOf(asked)))
      assert.deepStrictEqual(askedOf(asked, "deep"), [["deep"], ["deep", "not that"]])
      assert.deepStrictEqual(askedOf(asked, "middle"), [["middle"], ["middle"]])
      assert.deepStrictEqual(userTexts(result.thread.messages), ["go"])
      const fate = yield* sent[0]!.fate
      assert.deepStrictEqual(fate._tag === "Delivered" && fate.stepIndex, 1)
      assert.deepStrictEqual(yield* inbox.fate("m"), fate)
      assert.lengthOf(events.filter(({ _tag }) => _tag === "MessageDelivered" || _tag === "MessageRefused"), 0)
    }))

  it.effect("a follow to a first-level run reaches that run", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const asked: Array<Adapter.Request> = []
      const act = () => inbox.follow("and then?", { id: "m", to: "c0" })
      yield* Chat.run("go", { tools: toolsWith(act), inbox }).pipe(Effect.provide(modelOf(asked)))
      assert.deepStrictEqual(askedOf(asked, "middle"), [["middle"], ["middle"], ["middle", "and then?"]])
      assert.strictEqual((yield* inbox.fate("m"))?._tag, "Delivered")
    }))

  it.effect("a message to a path without a running run is refused as finished", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const refused = { _tag: "Refused", reason: "finished" } as const
      const paths = ["c0/i0/d0", "c0/i1", "c1", "__proto__", "c0/__proto__", "constructor", "c%2F0", "a".repeat(10_000)]
      const fates: Array<Inbox.Fate> = []
      const tellAll = Effect.forEach(
        paths,
        (to) => Effect.flatMap(inbox.steer("no", { to }), (sent) => Effect.map(sent.fate, (fate) => fates.push(fate)))
      )
      const before = yield* inbox.steer("early", { to: "c0" })
      const result = yield* Chat.run("go", { tools: toolsWith(() => tellAll), inbox }).pipe(
        Effect.provide(modelOf())
      )
      const late = yield* inbox.steer("late", { to: "c0" })
      assert.deepStrictEqual([yield* before.fate, ...fates, yield* late.fate], [
        refused,
        ...paths.map(() => refused),
        refused
      ])
      assert.strictEqual(result.outcome._tag, "Completed")
    }))

  it.effect("a path of a wrong form is a defect that names the option, and nothing is sent", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      for (const to of ["", "/", "c0/", "run~c0", "%zz", 7, {}]) {
        const exit = yield* Effect.exit(inbox.steer("no", { id: "m", to: to as never }))
        assert.match(String(exit), /to of Inbox\.steer|to.*must be.*call path/, String(to))
        assert.isUndefined(yield* inbox.fate("m"))
      }
    }))

  it.effect("the run begun last gets a message to a call with several runs", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const asked: Array<Adapter.Request> = []
      const isBegun = yield* Deferred.make<void>()
      const isSent = yield* Deferred.make<void>()
      const wait = Tool.make("look", {
        parameters: {},
        handler: () => Effect.as(Effect.andThen(Deferred.succeed(isBegun, undefined), Deferred.await(isSent)), "seen")
      })
      const send = Tool.make("look", {
        parameters: {},
        handler: () =>
          Effect.as(
            Effect.andThen(inbox.steer("you", { id: "m", to: "c0" }), Deferred.succeed(isSent, undefined)),
            "seen"
          )
      })
      const outer = Tool.make("outer", {
        parameters: {},
        handler: () =>
          Effect.gen(function*() {
            const first = yield* Effect.forkChild(Chat.run("deep", { tools: [wait] }))
            yield* Deferred.await(isBegun)
            yield* Chat.run("middle", {
              tools: [Tool.make("inner", { parameters: {}, handler: () => Effect.void }), send]
            })
            const { finalResponse } = yield* Chat.run("other", { tools: [send] })
            yield* Fiber.join(first)
            return finalResponse?.outputText
          })
      })
      yield* Chat.run("go", { tools: [outer], inbox }).pipe(Effect.provide(modelOf(asked)))
      assert.deepStrictEqual(askedOf(asked, "other"), [["other"], ["other", "you"]])
      assert.deepStrictEqual(askedOf(asked, "deep"), [["deep"], ["deep"]])
    }))

  it.effect("a withdrawn message is in no request, and a repeated message is sent once", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const asked: Array<Adapter.Request> = []
      const isWithdrawn: Array<boolean> = []
      const act = () =>
        Effect.gen(function*() {
          yield* inbox.steer("no", { id: "m1", to: "c0/i0" })
          yield* inbox.steer("yes", { id: "m2", to: "c0/i0" })
          yield* inbox.steer("yes", { id: "m2", to: "c0/i0" })
          isWithdrawn.push(yield* inbox.withdraw("m1"), yield* inbox.withdraw("m1"))
        })
      yield* Chat.run("go", { tools: toolsWith(act), inbox }).pipe(Effect.provide(modelOf(asked)))
      assert.deepStrictEqual(askedOf(asked, "deep"), [["deep"], ["deep", "yes"]])
      assert.deepStrictEqual(isWithdrawn, [true, false])
      assert.deepStrictEqual(yield* inbox.fate("m1"), { _tag: "Withdrawn" })
    }))

  it.effect("a run with its own inbox gets the messages of both inboxes, and an id names one message", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const own = Inbox.make()
      const asked: Array<Adapter.Request> = []
      const exits: Array<string> = []
      const act = () =>
        Effect.gen(function*() {
          yield* own.steer("mine", { id: "m1" })
          yield* inbox.steer("mine", { id: "m1", to: "c0/i0" })
          yield* inbox.steer("yours", { id: "m2", to: "c0/i0" })
          exits.push(String(yield* Effect.exit(inbox.steer("other", { id: "m1", to: "c0/i0" }))))
        })
      yield* Chat.run("go", { tools: toolsWith(act, { inbox: own }), inbox }).pipe(Effect.provide(modelOf(asked)))
      assert.deepStrictEqual(askedOf(asked, "deep"), [["deep"], ["deep", "mine", "yours"]])
      assert.deepStrictEqual(yield* inbox.fate("m1"), yield* own.fate("m1"))
      assert.match(exits[0]!, /another message has the id/)
    }))

  it.effect("nested runs of an unkept session and of a recorded program receive messages", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const asked: Array<Adapter.Request> = []
      const act = () => inbox.steer("not that", { id: "m", to: "c0/i0" })
      yield* Session.reply(Session.make(), "go", { tools: toolsWith(act), inbox }).pipe(Effect.provide(modelOf(asked)))
      assert.deepStrictEqual(askedOf(asked, "deep"), [["deep"], ["deep", "not that"]])

      const recorded = Inbox.make()
      const again: Array<Adapter.Request> = []
      const program = Effect.gen(function*() {
        const { claim } = yield* Session.claim("p")
        const tools = toolsWith(() => recorded.steer("not that", { id: "m", to: "c0/i0" }))
        return yield* Effect.provide(Chat.run("go", { tools, inbox: recorded }), Session.layerRuns(claim))
      })
      yield* Effect.scoped(program).pipe(Effect.provide([modelOf(again), Session.Store.layerMemory]))
      assert.deepStrictEqual(askedOf(again, "deep"), [["deep"], ["deep", "not that"]])
      assert.strictEqual((yield* recorded.fate("m"))?._tag, "Delivered")
    }))

  it.effect("G51: at every step, a message to a nested run has one fate and is in that run only if delivered", () =>
    Effect.gen(function*() {
      for (const withCancel of [false, true]) {
        const tells = new Set<string>()
        const attempts: Array<{ inbox: Inbox.Inbox; asked: Array<Adapter.Request>; isSent: boolean }> = []
        const now: { asked: Array<Adapter.Request> } = { asked: [] }
        const model = Adapter.layer({
          stream: (request) => {
            now.asked.push(request)
            const turn = request.messages.filter(({ role }) => role === "assistant").length
            const [id, name] = calls[String(request.messages[0]?.content)] ?? ["x", "look"]
            const reply = turn < 1 ? [toolCall(id, name, {}), finish("tool_calls")] : [text("Done."), finish("stop")]
            return Stream.unwrap(Effect.map(Script.make([reply]), (scripted) => scripted.stream(request)))
          }
        })
        yield* everyStep(({ cancel }) => {
          const attempt = { inbox: Inbox.make(), asked: [] as Array<Adapter.Request>, isSent: false }
          now.asked = attempt.asked
          attempts.push(attempt)
          cancel.addEventListener("abort", () => {
            attempt.isSent = true
            Effect.runSync(attempt.inbox.steer("not that", { id: "m", to: "c0/i0" }))
          })
          const { inbox } = attempt
          return Chat.stream("go", {
            tools: toolsWith(() => Effect.yieldNow),
            inbox,
            ...(withCancel ? { cancel } : {})
          })
        }, { layer: model, maxOpsBeforeYield: 24, limit: 400 })
        for (const { asked, inbox } of attempts.filter(({ isSent }) => isSent)) {
          const fate = Effect.runSync(inbox.fate("m"))
          assert.isDefined(fate)
          const requests = asked.filter(({ messages }) => userTexts(messages).includes("not that"))
          if (fate?._tag !== "Delivered") assert.lengthOf(requests, 0)
          // A stop may come between the delivery and the request.
          else if (!withCancel) assert.isAtLeast(requests.length, 1)
          for (const { messages } of requests) assert.strictEqual(messages[0]?.content, "deep")
          tells.add(fate?._tag === "Refused" ? fate.reason : fate?._tag ?? "")
        }
        assert.includeMembers([...tells], withCancel ? ["stopped", "finished"] : ["Delivered", "finished"])
      }
    }))
})
