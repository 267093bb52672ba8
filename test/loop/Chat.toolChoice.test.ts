/**
 * A forced tool choice: it holds for the first turn of a run, so that the model can answer in a later one.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { type Adapter, Chat, Policy, Session, Step, Tool } from "heddle"
import { Script } from "heddle/testing"

const { finish, text, toolCall } = Script

const echo = Tool.make("echo", { parameters: { type: "object" }, handler: () => Effect.succeed(1) })
const compact = Tool.make("compact", {
  parameters: { x: Schema.Finite },
  compact: true,
  handler: () => Effect.succeed(1)
})
const tools = [echo, compact]

const calling = [toolCall("c0", "echo"), finish("tool_calls")]
const again = [toolCall("c1", "echo"), finish("tool_calls")]
const done = [text("done"), finish("stop")]

const forced = ["required", { name: "compact" }] as const

const chosen = (given: Chat.Options<typeof tools>, script = [calling, again, done]) =>
  Effect.gen(function*() {
    const options = { requestId: "r1", ...given }
    const awaited = yield* Script.make(script)
    const streamed = yield* Script.make(script)
    yield* Chat.run("go", { tools, ...options }).pipe(Effect.provide(awaited.layer))
    yield* Stream.runDrain(Chat.stream("go", { tools, ...options })).pipe(Effect.provide(streamed.layer))
    const requests = yield* awaited.requests
    assert.deepStrictEqual(yield* streamed.requests, requests)
    return requests
  })

const choices = (requests: ReadonlyArray<Adapter.Request>) => requests.map((request) => request.toolChoice)

describe("toolChoice", () => {
  for (const [name, policy] of Object.entries({ standard: Policy.standard, allm: Policy.allm, falai: Policy.falai })) {
    it.effect(`M-16: a forced choice holds for the first turn, then the model chooses (${name})`, () =>
      Effect.gen(function*() {
        for (const toolChoice of forced) {
          assert.deepStrictEqual(choices(yield* chosen({ toolChoice, policy })), [toolChoice, "auto", "auto"])
        }
      }))

    it.effect(`M-16: Policy.toolChoice "every" keeps a forced choice for every turn (${name})`, () =>
      Effect.gen(function*() {
        for (const toolChoice of forced) {
          const requests = yield* chosen({ toolChoice, policy: { ...policy, toolChoice: "every" } })
          assert.deepStrictEqual(choices(requests), [toolChoice, toolChoice, toolChoice])
        }
      }))
  }

  it.effect("M-16: a choice that forces no tool is unchanged", () =>
    Effect.gen(function*() {
      for (const toolChoice of ["auto", "none"] as const) {
        assert.deepStrictEqual(choices(yield* chosen({ toolChoice })), [toolChoice, toolChoice, toolChoice])
      }
      assert.deepStrictEqual(choices(yield* chosen({})), [undefined, undefined, undefined])
    }))

  it.effect("M-16: later turns describe the tools exactly like the first turn, so that a prompt cache holds", () =>
    Effect.gen(function*() {
      const [first, ...later] = yield* chosen({ toolChoice: { name: "compact" } })
      assert.strictEqual(later.length, 2)
      for (const request of later) assert.deepStrictEqual(request.tools, first?.tools)
    }))

  it.effect("M-16: the closing call and a structured answer are not forced", () =>
    Effect.gen(function*() {
      const closing = {
        toolChoice: "required",
        maxTurns: 1,
        policy: { ...Policy.standard, onMaxTurns: "finalize" }
      } as const
      assert.deepStrictEqual(choices(yield* chosen(closing, [calling, done])), ["required", "none"])
      const structured = {
        toolChoice: "required",
        structuredFinalize: true,
        responseFormat: { type: "json_object" }
      } as const
      const requests = yield* chosen(structured, [calling, done, [text("{}"), finish("stop")]])
      assert.deepStrictEqual(choices(requests), ["required", "auto", undefined])
    }))

  it.effect("M-16: a single step and a session send a forced choice with the first turn", () =>
    Effect.gen(function*() {
      const step = yield* Script.make([calling])
      yield* Step.run("go", { tools, toolChoice: "required" }).pipe(Effect.provide(step.layer))
      assert.deepStrictEqual(choices(yield* step.requests), ["required"])
      const session = yield* Script.make([calling, done])
      yield* Session.start("go", { tools, toolChoice: "required" }).pipe(Effect.provide(session.layer))
      assert.deepStrictEqual(choices(yield* session.requests), ["required", "auto"])
    }))

  const settling: Record<string, (waiting: Session.Session) => Effect.Effect<Session.Session, unknown>> = {
    "an approval": (waiting) => Session.approve(waiting, "p"),
    "a denial": (waiting) => Session.deny(waiting, "p"),
    "a result": (waiting) => Session.answer(waiting, "h", 1),
    "an answer": (waiting) => Session.answer(waiting, "q", "Paris")
  }

  const waiters = [
    echo,
    Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") }),
    Tool.make("hand", { parameters: {}, manual: true }),
    Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which city?")) })
  ]
  const named = { "an approval": "pay:p", "a denial": "pay:p", "a result": "hand:h", "an answer": "ask:q" }

  /** The choices of the requests of an operation, awaited and streamed, on a session in which a call has been settled. */
  const chosenAfter = (
    how: string,
    options: Chat.Options<typeof waiters>,
    go: "continue" | "reply" | "step" = "continue"
  ) =>
    Effect.gen(function*() {
      const [name, id] = (named as Record<string, string>)[how]!.split(":") as [string, string]
      const given = { tools: waiters, toolChoice: "required", requestId: "r1", ...options } as const
      const asking = Script.layer([[toolCall(id, name, {}), finish("tool_calls")]])
      const { session: waiting } = yield* Effect.provide(Session.start("go", given), asking)
      const settled = yield* settling[how]!(waiting)
      const operations = {
        continue: [Session.continue(settled, null, given), Session.streamContinue(settled, null, given)],
        reply: [Session.reply(settled, "and?", given), Session.streamReply(settled, "and?", given)],
        step: [Session.step(settled, given), Session.streamStep(settled, given)]
      } as const
      const [run, events] = operations[go]
      const awaited = yield* Script.make([again, done])
      yield* Effect.provide(run as Effect.Effect<unknown, unknown, Adapter.Adapter>, awaited.layer)
      const streamed = yield* Script.make([again, done])
      yield* Effect.provide(Stream.runDrain(events), streamed.layer)
      const requests = yield* awaited.requests
      assert.deepStrictEqual(yield* streamed.requests, requests)
      return choices(requests)
    })

  it.effect("M-16: a session operation that continues after settled calls has no first turn", () =>
    Effect.gen(function*() {
      for (const policy of [Policy.standard, Policy.allm, Policy.falai]) {
        for (const how of Object.keys(settling)) {
          assert.deepStrictEqual(yield* chosenAfter(how, { policy }), ["auto", "auto"], how)
          assert.deepStrictEqual(yield* chosenAfter(how, { policy }, "reply"), ["auto", "auto"], how)
          const every = yield* chosenAfter(how, { policy: { ...policy, toolChoice: "every" } })
          assert.deepStrictEqual(every, ["required", "required"], how)
          if (how !== "an approval") assert.deepStrictEqual(yield* chosenAfter(how, { policy }, "step"), ["auto"], how)
        }
      }
    }))

  it.effect("M-16: a reply to a question has no first turn, and the next reply starts with a first turn", () =>
    Effect.gen(function*() {
      const given = { tools: waiters, toolChoice: "required" } as const
      const model = yield* Script.make([[toolCall("q", "ask", {}), finish("tool_calls")], done, again, done])
      const { session: asked } = yield* Effect.provide(Session.start("go", given), model.layer)
      const { session: answered } = yield* Effect.provide(Session.reply(asked, "Paris", given), model.layer)
      yield* Effect.provide(Session.reply(answered, "and now?", given), model.layer)
      assert.deepStrictEqual(choices(yield* model.requests), ["required", "auto", "required", "auto"])
    }))

  it.effect("M-16: a run inside a handler has its own first turn", () =>
    Effect.gen(function*() {
      const inner = yield* Script.make([calling, done])
      const outer = Tool.make("outer", {
        parameters: {},
        approval: true,
        handler: () => Effect.orDie(Effect.provide(Chat.run("go", { tools, toolChoice: "required" }), inner.layer))
      })
      const model = Script.layer([[toolCall("o", "outer", {}), finish("tool_calls")], done])
      const options = { tools: [outer], onEvent: () => Effect.void }
      const { session } = yield* Effect.provide(Session.start("go", options), model)
      const approved = yield* Session.approve(session, "o")
      yield* Effect.provide(Session.continue(approved, null, options), Script.layer([done]))
      assert.deepStrictEqual(choices(yield* inner.requests), ["required", "auto"])
    }))
})
