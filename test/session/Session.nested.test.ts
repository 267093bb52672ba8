/**
 * Runs inside a run that is kept have journals of their own: wherever the process ends, they go on where they were, and what
 * they have done is not done again.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { Chat, Journal, Session, Tool } from "heddle"
import { acting, agent, casting, holding, listing, refusing, type Turn, type Written } from "../support/nests.ts"
import type { Deed } from "../support/survivor.ts"

/** Two sub-agents at once, one of which has one of its own; the model of the first speaks three times. */
const parts: Readonly<Record<string, ReadonlyArray<Turn>>> = {
  go: [[["a", "first", {}], ["b", "second", {}]], [["c", "pay", {}]], "done"],
  first: [[["f0", "look", {}]], [["f1", "pay", {}]], "first is done"],
  second: [[["s0", "third", {}], ["s1", "look", {}]], "second is done"],
  third: [[["t0", "pay", {}]], "third is done"]
}

const toolsOf = (world: Array<Deed>) => {
  const [look, pay] = [acting(world, "look"), acting(world, "pay")]
  return [agent("first", [look, pay]), agent("second", [look, agent("third", [pay])]), pay]
}

const whole = Effect.gen(function*() {
  const world: Array<Deed> = []
  const written: Array<Written> = []
  const asked: Array<string> = []
  const program = Effect.gen(function*() {
    const opened = yield* Session.open("s")
    return yield* Session.keep(
      opened,
      (session) => Session.reply(session, "go", { requestId: "run", tools: toolsOf(world) })
    )
  })
  const kept = yield* program.pipe(Effect.provide([casting(parts, asked), listing(written)]))
  return { asked, kept, world, written }
})

const resumed = (before: ReadonlyArray<Written>) => {
  const world: Array<Deed> = []
  const asked: Array<string> = []
  return Effect.gen(function*() {
    const store = yield* Session.Store
    const unfinished = yield* Stream.runCollect(store.unfinished)
    const interrupted = (yield* Session.load("s"))!
    const kept = yield* Session.resume(interrupted, { tools: toolsOf(world), takeOver: true })
    return { asked, kept, unfinished, world }
  }).pipe(Effect.provide([casting(parts, asked), holding(before)]))
}

const called = (written: ReadonlyArray<Written>, tag: "CallStarted" | "CallEnded"): ReadonlySet<string> =>
  new Set(written.flatMap(({ record }) => {
    if (record._tag === "CallStarted" && tag === "CallStarted") return [record.toolCallId]
    return record._tag === "CallEnded" && tag === "CallEnded" ? [record.message.toolCallId ?? ""] : []
  }))

const idOf = ({ key }: Deed): string => key.split(":").at(-1) ?? ""

describe("runs inside a kept run", () => {
  it.effect("D-20: an interrupted nested run continues where it was, at every record of all journals", () =>
    Effect.gen(function*() {
      const uncut = yield* whole
      assert.strictEqual(uncut.kept.value.result.outcome._tag, "Completed")
      assert.strictEqual(new Set(uncut.written.map(({ id }) => id)).size, 4)
      for (let length = 2; length < uncut.written.length; length++) {
        const before = uncut.written.slice(0, length)
        const last = before.at(-1)
        const where = `cut behind record ${length}, ${last?.record._tag} of ${last?.id}`
        const { asked, kept, unfinished, world } = yield* resumed(before)
        assert.deepStrictEqual(unfinished, ["s"], `${where}: a nested run is no work of its own`)
        const ended = called(before, "CallEnded")
        const unknown = Array.from(called(before, "CallStarted")).filter((id) =>
          !ended.has(id) && !["a", "b", "s0"].includes(id)
        )
        for (const deed of world) assert.isFalse(ended.has(idOf(deed)), `${where}: ${deed.tool} again`)
        for (const deed of world) {
          const first = uncut.world.find((other) => idOf(other) === idOf(deed))
          assert.strictEqual(deed.key, first?.key, where)
        }
        const replies = before.filter(({ record }) => record._tag === "ReplyReceived").length
        assert.isAtMost(asked.length, uncut.asked.length - replies, `${where}: a model was asked again`)
        if (unknown.length === 0) {
          assert.deepStrictEqual(kept.value.result, uncut.kept.value.result, where)
          assert.deepStrictEqual(kept.session, uncut.kept.session, where)
        }
      }
    }))

  it.effect("D-20: a nested run without a conversation has a readable journal", () =>
    Effect.gen(function*() {
      const written: Array<Written> = []
      const only = Tool.make("only", {
        parameters: {},
        idempotent: true,
        handler: () => Effect.match(Chat.run([]), { onFailure: String, onSuccess: ({ outcome }) => outcome._tag })
      })
      const model = casting({ go: [[["a", "only", {}]], "done"] })
      const options = { tools: [only] }
      const uncut = yield* Effect.provide(
        Effect.flatMap(
          Session.open("s"),
          (kept) => Session.keep(kept, (session) => Session.reply(session, "go", options))
        ),
        [model, listing(written)]
      )
      const nested = written.filter(({ id }) => id !== "s").map(({ record }) => record)
      assert.deepStrictEqual(nested.length === 0 ? [] : Journal.check(nested), [])
      const at = written.findIndex(({ id, record }) => id === "s" && record._tag === "CallEnded")
      const resumed = Effect.gen(function*() {
        const kept = (yield* Session.load("s"))!
        return yield* Session.resume(kept, { ...options, takeOver: true })
      })
      const again = yield* Effect.provide(resumed, [model, holding(written.slice(0, at))])
      assert.deepStrictEqual(again.session.thread, uncut.session.thread)
    }))

  it.effect("the whole run stops where a nested run cannot be written", () =>
    Effect.gen(function*() {
      const { written } = yield* whole
      const nested = written.filter(({ id }) => id !== "s")
      for (let limit = 0; limit < nested.length; limit++) {
        const world: Array<Deed> = []
        const after: Array<Written> = []
        const program = Effect.gen(function*() {
          const opened = yield* Session.open("s")
          return yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: toolsOf(world) }))
        })
        const failed = yield* Effect.flip(Effect.provide(program, [casting(parts), refusing(limit, after)]))
        assert.strictEqual(failed._tag, "StoreError", `limit ${limit}`)
        const started = after.flatMap(({ record }) => record._tag === "CallStarted" ? [record.idempotencyKey] : [])
        for (const { key } of world) assert.include(started, key, `limit ${limit}: an effect without a record`)
        assert.isFalse(
          after.some(({ record }) => record._tag === "RunEnded" && !("result" in record)),
          `limit ${limit}`
        )
      }
    }))

  it.effect("another attempt of a call starts its nested runs afresh", () =>
    Effect.gen(function*() {
      const world: Array<Deed> = []
      const written: Array<Written> = []
      const asked: Array<string> = []
      const failing = Tool.make("failing", {
        parameters: {},
        retry: Schedule.recurs(1),
        handler: (_, { attempt }) =>
          Effect.flatMap(
            Chat.run("first", { tools: [acting(world, "look"), acting(world, "pay")] }),
            ({ finalResponse }) => attempt === 1 ? Effect.fail("again") : Effect.succeed(finalResponse?.outputText)
          )
      })
      const program = Effect.gen(function*() {
        const opened = yield* Session.open("s")
        return yield* Session.keep(opened, (session) => Session.reply(session, "once", { tools: [failing] }))
      })
      const model = casting({ ...parts, once: [[["a", "failing", {}]], "done"] }, asked)
      const { value: { result } } = yield* Effect.provide(program, [model, listing(written)])
      assert.strictEqual(result.steps[0]?.toolResults[0]?.content, "first is done")
      assert.deepStrictEqual(asked.filter((part) => part.startsWith("first")).length, 6)
      const ids = new Set(written.map(({ id }) => id))
      assert.strictEqual(ids.size, 2, "both attempts are in one journal")
      assert.strictEqual(written.filter(({ id, record }) => id !== "s" && record._tag === "Opened").length, 2)
    }))

  it.effect("runs of one call with the same input have a journal each", () =>
    Effect.gen(function*() {
      const written: Array<Written> = []
      const twice = Tool.make("twice", {
        parameters: {},
        handler: () => Effect.as(Effect.all([Chat.run("same"), Chat.run("same")], { concurrency: 2 }), "both")
      })
      const program = Effect.gen(function*() {
        const opened = yield* Session.open("s")
        return yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: [twice] }))
      })
      const model = casting({ go: [[["a/b", "twice", {}]], "done"], same: ["same"] })
      yield* Effect.provide(program, [model, listing(written)])
      const ids = Array.from(new Set(written.map(({ id }) => id)))
      assert.strictEqual(ids.length, 3)
      for (const id of ids.slice(1)) assert.match(id, /^s\/a%2Fb@[0-9a-f]{16}(\.2)?$/)
    }))

  it.effect("a session is removed together with its nested runs, and no other session is removed", () =>
    Effect.gen(function*() {
      const { written } = yield* whole
      const others = ["s/other", "s/a/b", "s@0123456789abcdef", "t/a@0123456789abcdef"]
      const program = Effect.gen(function*() {
        for (const id of others) yield* Session.open(id)
        yield* Session.delete("s")
        return yield* Stream.runCollect(Session.list())
      })
      const left = yield* Effect.provide(program, holding(written))
      assert.sameMembers(left.map(({ id }) => id), others)
    }))

  it.effect("a snapshot removes the ended runs inside a session", () =>
    Effect.gen(function*() {
      const { written } = yield* whole
      const program = Effect.gen(function*() {
        yield* Session.snapshot((yield* Session.load("s"))!)
        return yield* Stream.runCollect(Session.list())
      })
      assert.deepStrictEqual((yield* Effect.provide(program, holding(written))).map(({ id }) => id), ["s"])
    }))
})
