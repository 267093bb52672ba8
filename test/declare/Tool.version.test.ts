/** The version of a tool, which a run records: a call is not run by another version than the one that it was made or approved for. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Journal, Message, Session, Tool } from "heddle"
import { Script } from "heddle/testing"

const payOf = (version: string, options: Partial<Parameters<typeof Tool.make>[1]> = {}) => {
  const runs: Array<string> = []
  const pay = Tool.make("pay", {
    parameters: {},
    version,
    approval: true,
    handler: (_, call) => Effect.sync(() => `paid ${runs.push(call.idempotencyKey)}`),
    ...options as {}
  })
  return { runs, tools: [pay] }
}

const model = Script.layer([
  [Script.toolCall("c0", "pay"), Script.finish("tool_calls")],
  [Script.text("So be it."), Script.finish("stop")]
])

const answerIn = ({ thread }: Session.Session) => Message.text(thread.messages[2]!)

const codeIn = (session: Session.Session) => /"code":"(\w+)"/.exec(answerIn(session))?.[1] ?? answerIn(session)

const nextTools: ReadonlyArray<
  readonly [name: string, next: ReturnType<typeof payOf> | { runs: Array<string>; tools: [] }, expected: string]
> = [
  ["the same version", payOf("1"), "paid 1"],
  ["another version", payOf("2"), "denied"],
  ["no tool", { runs: [], tools: [] }, "denied"]
]

describe("the version of a tool", () => {
  for (const [name, next, expected] of nextTools) {
    it.effect(`W-30: an approved call ends as ${expected} when its session, as data, continues with ${name}`, () =>
      Effect.gen(function*() {
        const { runs, tools } = next
        runs.length = 0
        const { session: waits } = yield* Session.reply(Session.make(), "Pay", { tools: payOf("1").tools })
        const approved = yield* Session.approve(JSON.parse(JSON.stringify(waits)) as Session.Session, "c0")
        const { session } = yield* Session.continue(approved, null, { tools })
        assert.strictEqual(codeIn(session), expected)
        assert.lengthOf(runs, expected === "denied" ? 0 : 1)
        assert.notProperty(session, "versions")
      }).pipe(Effect.provide(model)))

    it.effect(`W-30: an approved call ends as ${expected} when its kept session continues with ${name}`, () =>
      Effect.gen(function*() {
        const { runs, tools } = next
        runs.length = 0
        yield* Session.keep(
          yield* Session.open("s"),
          (session) => Session.reply(session, "Pay", { tools: payOf("1").tools })
        )
        // A program that changes its session writes it anew, with the versions.
        yield* Session.keep(
          yield* Session.open("s"),
          (session) => Session.approve({ ...session, metadata: { changed: true } }, "c0")
        )
        const { session } = yield* Session.keep(
          yield* Session.open("s"),
          (session) => Session.continue(session, null, { tools })
        )
        assert.strictEqual(codeIn(session), expected)
        assert.lengthOf(runs, expected === "denied" ? 0 : 1)
        const store = yield* Session.Store
        const records = Array.from(yield* Stream.runCollect(store.read("s")), ({ record }) => record)
        assert.deepStrictEqual(Journal.check(records), [])
      }).pipe(Effect.provide(Layer.merge(model, Session.Store.layerMemory)), Effect.scoped))
  }

  const held = payOf("1", {
    approval: false,
    handler: (_: unknown, call: Tool.CallContext) => Effect.andThen(call.progress("held"), Effect.never)
  })

  for (
    const [name, until, expected] of [
      ["had not started", "MessageCompleted", "denied"],
      ["had started", "ToolProgress", "unknown_effect"]
    ] as const
  ) {
    it.effect(`W-30: a call that ${name} is ${expected} when its run is resumed with another version`, () =>
      Effect.gen(function*() {
        const reply = Session.keepStream(
          yield* Session.open("s"),
          (session) => Session.streamReply(session, "Pay", { tools: held.tools })
        )
        yield* Stream.runDrain(Stream.takeUntil(reply, ({ _tag }) => _tag === until))
        const { runs, tools } = payOf("2", { approval: false, idempotent: true })
        const { session } = yield* Session.resume(yield* Session.claim("s"), { tools })
        assert.strictEqual(codeIn(session), expected)
        assert.lengthOf(runs, 0)
      }).pipe(Effect.provide(Layer.merge(model, Session.Store.layerMemory)), Effect.scoped))
  }

  it("the version of a tool is a string", () => {
    assert.throws(() => Tool.make("t", { parameters: {}, version: 1 as never }), /version must be a string/)
  })
})
