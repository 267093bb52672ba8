/** Programs that call `Chat` themselves: wherever they end, their runs go on where they were when they are started again. */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Stream from "effect/Stream"
import { Chat, Journal, Session, Tool } from "heddle"
import { Durable } from "heddle/durable"
import { acting, agent, casting, holding, listing, refusing, type Turn, type Written } from "../support/nests.ts"
import type { Deed } from "../support/survivor.ts"
import { ledger } from "./support/ledger.ts"

ledger()

const parts: Readonly<Record<string, ReadonlyArray<Turn>>> = {
  go: [[["a", "inner", {}], ["p", "pay", {}]], [["q", "pay", {}]], "done"],
  inner: [[["i", "look", {}]], "inner is done"],
  after: [[["t", "pay", {}]], "after is done"]
}

const toolsOf = (world: Array<Deed>) => [agent("inner", [acting(world, "look")]), acting(world, "pay")]

/** Two runs, the second of which is given what the first came to. */
const program = (world: Array<Deed>, options: Partial<Durable.Options> = {}) =>
  Effect.gen(function*() {
    const first = yield* Chat.run("go", { requestId: "first", tools: toolsOf(world) })
    const second = yield* Chat.run("after", { requestId: "second", tools: toolsOf(world) })
    return [first, second]
  }).pipe(Effect.provide(Durable.layer({ id: "p", ...options })))

const idOf = ({ key }: Deed): string => key.split(":").at(-1) ?? ""

const recorded = (written: ReadonlyArray<Written>, tag: "CallStarted" | "CallEnded"): ReadonlySet<string> =>
  new Set(written.flatMap(({ record }) => {
    if (record._tag === "CallStarted") return tag === "CallStarted" ? [record.toolCallId] : []
    return record._tag === "CallEnded" && tag === "CallEnded" ? [record.message.toolCallId ?? ""] : []
  }))

const uncut = Effect.gen(function*() {
  const world: Array<Deed> = []
  const written: Array<Written> = []
  const asked: Array<string> = []
  const results = yield* Effect.provide(program(world), [casting(parts, asked), listing(written)])
  return { asked, results, world, written }
})

describe("Durable.layer", () => {
  it.effect("D-20: a program started again behind any record of its journals resumes its runs", () =>
    Effect.gen(function*() {
      const whole = yield* uncut
      for (let length = 0; length <= whole.written.length; length++) {
        const before = whole.written.slice(0, length)
        const where = `cut behind record ${length}, ${before.at(-1)?.record._tag} of ${before.at(-1)?.id}`
        const [world, asked]: [Array<Deed>, Array<string>] = [[], []]
        const again = Effect.gen(function*() {
          const results = yield* program(world)
          return { results, unfinished: yield* Stream.runCollect(Session.unfinished) }
        })
        const { results, unfinished } = yield* Effect.provide(again, [casting(parts, asked), holding(before)])
        assert.deepStrictEqual(unfinished, [], `${where}: a worker would take it up`)
        const ended = recorded(before, "CallEnded")
        for (const deed of world) assert.isFalse(ended.has(idOf(deed)), `${where}: ${deed.key} again`)
        const replies = before.filter(({ record }) => record._tag === "ReplyReceived").length
        assert.isAtMost(asked.length, whole.asked.length - replies, `${where}: a model was asked again`)
        const isUnknown = (id: string) => id !== "a" && !ended.has(id)
        if (!Array.from(recorded(before, "CallStarted")).some(isUnknown)) {
          assert.deepStrictEqual(results, whole.results, where)
        }
      }
      const [world, asked]: [Array<Deed>, Array<string>] = [[], []]
      yield* Effect.provide(program(world), [casting(parts, asked), holding(whole.written)])
      assert.deepStrictEqual([world, asked], [[], []], "what has ended is not done again")
    }))

  it.effect("afterCrash decides about started calls of tools without an own afterCrash", () =>
    Effect.gen(function*() {
      const { written } = yield* uncut
      const cut = written.findIndex(({ record }) => record._tag === "CallStarted" && record.toolCallId === "q") + 1
      for (const afterCrash of ["report", "retry", undefined] as const) {
        const world: Array<Deed> = []
        const options = afterCrash === undefined ? {} : { afterCrash }
        const [first] = yield* Effect.provide(program(world, options), [casting(parts), holding(written.slice(0, cut))])
        const answer = String(first?.steps[1]?.toolResults[0]?.content)
        assert.strictEqual(answer === "pay done", afterCrash === "retry", answer)
        assert.strictEqual(world.some((deed) => idOf(deed) === "q"), afterCrash === "retry")
      }
    }))

  it.effect("an id has one program at a time", () =>
    Effect.gen(function*() {
      const two = Effect.gen(function*() {
        return yield* Effect.flip(program([], { owner: "there" }))
      }).pipe(Effect.provide(Durable.layer({ id: "p", owner: "here" })))
      const error = yield* Effect.provide(two, [casting(parts), Session.Store.layerMemory])
      assert.deepInclude(error, { _tag: "SessionClaimed", reason: "held", owner: "here" })
    }))

  it.effect("a program whose run cannot be recorded dies with the error of the store", () =>
    Effect.gen(function*() {
      const { written } = yield* uncut
      for (let limit = 0; limit < written.length; limit++) {
        const [world, after]: [Array<Deed>, Array<Written>] = [[], []]
        const exit = yield* Effect.exit(Effect.provide(program(world), [casting(parts), refusing(limit, after)]))
        const died = Exit.isFailure(exit) ? Cause.squash(exit.cause) : undefined
        assert.instanceOf(died, Journal.StoreError, `limit ${limit}`)
        const started = recorded(after, "CallStarted")
        for (const deed of world) assert.isTrue(started.has(idOf(deed)), `limit ${limit}: an effect without a record`)
      }
    }))

  it.effect("two runs with the same input have a journal each, and deleting the id removes both", () =>
    Effect.gen(function*() {
      const same = Effect.gen(function*() {
        yield* Effect.all([Chat.run("same"), Chat.run("same")]).pipe(Effect.provide(Durable.layer({ id: "p" })))
        const listed = yield* Stream.runCollect(Session.list())
        yield* Session.delete("p")
        return [listed.length, (yield* Stream.runCollect(Session.list())).length]
      })
      const model = casting({ same: ["same"] })
      assert.deepStrictEqual(yield* Effect.provide(same, [model, Session.Store.layerMemory]), [2, 0])
    }))

  it.effect("a question of a nested run fails its call", () =>
    Effect.gen(function*() {
      const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which city?")) })
      const run = Chat.run("go", { tools: [agent("inner", [ask])] }).pipe(Effect.provide(Durable.layer({ id: "p" })))
      const model = casting({ go: [[["a", "inner", {}]], "done"], inner: [[["q", "ask", {}]]] })
      const result = yield* Effect.provide(run, [model, Session.Store.layerMemory])
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.match(String(result.steps[0]?.toolResults[0]?.content), /ask_user: Which city/)
    }))
})
