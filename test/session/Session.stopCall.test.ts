/** One call of a kept run stopped through the journal: by another process, at any depth, and killed behind each record. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, type Journal, Message, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { Script } from "heddle/testing"
import * as States from "../../src/internal/session/state.ts"
import { type Append, holding, listing, stores, until as untilTimePasses } from "../support/edges.ts"
import { elapsed } from "../support/runs.ts"
import { journalOf } from "../support/survivor.ts"

const { finish, text, toolCall } = Script

const shared = { concurrency: "shared", afterCrash: "retry", timeout: "infinity" } as const

const isInner = ({ messages }: Adapter.Request) => Message.text(messages[0]!) === "Inside"

/** The parent asks for four calls at once, and its sub-agent for two. */
const replyTo = (request: Adapter.Request): ReadonlyArray<Script.Entry> => {
  if (request.messages.some(({ role }) => role === "assistant")) return [text("Done."), finish("stop")]
  return isInner(request)
    ? [toolCall("n0", "long"), toolCall("n1", "short"), finish("tool_calls")]
    : [
      toolCall("c0", "stopper"),
      toolCall("c1", "long"),
      toolCall("c2", "short"),
      toolCall("c3", "inner"),
      finish("tool_calls")
    ]
}

const model = Adapter.layer({
  stream: (request) =>
    Stream.unwrap(Effect.map(Script.make([replyTo(request)]), (scripted) => scripted.stream(request)))
})

/** The tools, which note the calls that they begin: `stops` are the paths that the stopper stops. */
const toolsOf = (stops: ReadonlyArray<string>, begun: Array<string>, told: Array<unknown> = []) => {
  const long = Tool.make("long", {
    parameters: {},
    ...shared,
    handler: (_, call) =>
      Effect.andThen(Effect.sync(() => void begun.push(call.id)), Effect.as(Effect.sleep(60_000), "long"))
  })
  const short = Tool.make("short", {
    parameters: {},
    ...shared,
    handler: () => Effect.as(Effect.sleep(200), "short")
  })
  const stopper = Tool.make("stopper", {
    parameters: {},
    ...shared,
    handler: () =>
      Effect.gen(function*() {
        yield* Effect.sleep(100)
        for (const call of stops) told.push(yield* Session.stop("s", { call, by: "ann" }))
        return "told"
      })
  })
  const inner = Tool.fromChat("inner", {
    parameters: {},
    timeout: "infinity",
    chat: () => Chat.stream("Inside", { tools: [long, short] })
  })
  return [stopper, long, short, inner] as const
}

const answersIn = ({ thread }: Event.ChatResult) =>
  new Map(
    thread.messages.flatMap(({ code, content, role, toolCallId }) =>
      role === "tool" ? [[toolCallId, code ?? content] as const] : []
    )
  )

const endsOf = (records: ReadonlyArray<Journal.Record>) =>
  records.flatMap((record) => record._tag === "CallEnded" ? [record.message.toolCallId] : [])

const stopsIn = (appends: ReadonlyArray<Append>) =>
  appends.flatMap(({ records }) => records).flatMap((record) => record._tag === "StopRequested" ? [record.call] : [])

describe("Session.stop of one call", () => {
  it.effect("G75, G76, G77: a stop of one call keeps its siblings, a repeated stop has the same id, and a stop of another path has no id", () =>
    Effect.gen(function*() {
      const told: Array<Session.StopReceipt> = []
      const paths = ["c9", "", "c1/x", "other~c1", "%", "c3/n9", "c1", "c1", "c3/n0", "c2"]
      const { at, value: { result } } = yield* elapsed(Effect.gen(function*() {
        const opened = yield* Session.open("s")
        return (yield* Session.keep(
          opened,
          (session) => Session.reply(session, "Go", { tools: toolsOf(paths, [], told) })
        )).value
      })).pipe(Effect.provide([model, Session.Store.layerMemory]))
      assert.deepStrictEqual(told.map(({ id }) => id !== undefined), [...Array(6).fill(false), true, true, true, true])
      assert.strictEqual(told[6]?.id, told[7]?.id)
      assert.deepStrictEqual(Array.from(answersIn(result)), [
        ["c0", "told"],
        ["c1", "cancelled"],
        ["c2", "cancelled"],
        ["c3", "Done."]
      ])
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.isAtMost(at, 1_000, "the run waits for no long call")
    }))

  it.effect("G75: a stop of one call in a missing session stops nothing", () =>
    Effect.gen(function*() {
      const { accepted, id } = yield* Session.stop("none", { call: "c0" })
      assert.deepStrictEqual([accepted, id], [0, undefined])
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  for (const [name, store] of Object.entries(stores)) {
    for (const [what, call, own] of [["a call", "c1", "c1"], ["a call of a sub-agent", "c3/n0", "n0"]] as const) {
      it.effect(`G98: ${what} that a stop names, killed after each record, stays stopped and is answered once (${name})`, () =>
        Effect.gen(function*() {
          const appends: Array<Append> = []
          yield* elapsed(Effect.gen(function*() {
            const opened = yield* Session.open("s")
            return yield* Session.keep(
              opened,
              (session) => Session.reply(session, "Go", { tools: toolsOf([call], []) })
            )
          })).pipe(Effect.provide([model, listing(appends, store)]))
          assert.deepStrictEqual(stopsIn(appends), [call])
          let stopped = 0
          for (let cut = 2; cut < appends.length; cut++) {
            const before = appends.slice(0, cut)
            const where = `killed behind append ${cut}, ${before.at(-1)?.records.map(({ _tag }) => _tag).join()}`
            const begun: Array<string> = []
            const after: Array<Append> = []
            const isStopped = stopsIn(before).length > 0
            const { records, result } = yield* elapsed(Effect.gen(function*() {
              const kept = (yield* Session.load("s"))!
              const resumed = yield* Session.resume(kept, { takeOver: true, tools: toolsOf([call], begun) })
              return { result: resumed.value.result, records: yield* journalOf("s") }
            })).pipe(
              Effect.map(({ value }) => value),
              Effect.provide([model, holding(before, after, store)])
            )
            assert.strictEqual(result.haltedReason, "completed", where)
            assert.deepStrictEqual(States.problemsOf(records), [], where)
            const ids = [...before, ...after].flatMap(({ id, records }) => endsOf(records).map((end) => `${id} ${end}`))
            assert.strictEqual(new Set(ids).size, ids.length, `${where}: answered once`)
            if (!isStopped) continue
            stopped++
            assert.notInclude(begun, own, `${where}: it does not begin again`)
            const answers = answersIn(result)
            assert.strictEqual(answers.get("c2"), "short", where)
            if (own === "c1") assert.include(["cancelled", "unknown_effect"], answers.get("c1"), where)
            else assert.strictEqual(answers.get("c3"), "Done.", where)
          }
          assert.isAbove(stopped, 3)
        }))
    }
  }

  it.live("G98: a stop of one call from another process reaches a worker, with the name of the sender", () =>
    Effect.gen(function*() {
      const seen: Array<unknown> = []
      yield* Layer.build(Worker.layer({
        run: () => ({ tools: toolsOf([], []) }),
        poll: 20,
        onStop: (_, stop) => Effect.sync(() => void seen.push([stop.call, stop.by])),
        onEvent: (_, event) =>
          Effect.sync(() => {
            if (event._tag === "ToolExecutionStarted") seen.push(event.id)
            if (event._tag === "ChatCompleted") seen.push(answersIn(event.result))
          })
      }))
      yield* Session.submit("s", "Go")
      yield* untilTimePasses(Effect.sync(() => seen.includes("c3")))
      yield* untilTimePasses(
        Effect.map(Session.stop("s", { call: "c3/n0", by: "ann" }), ({ id }) => id !== undefined)
      )
      const { ended } = yield* Session.stop("s", { call: "c1", by: "bob" })
      assert.deepStrictEqual(yield* ended, { stopped: ["c1"], ended: ["c0", "c2", "c3"], refused: [], unknown: [] })
      yield* untilTimePasses(Effect.sync(() => seen.some((one) => one instanceof Map)))
      assert.deepStrictEqual(seen.filter((one) => Array.isArray(one)), [["c3/n0", "ann"], ["c1", "bob"]])
      assert.deepStrictEqual(Array.from(seen.find((one) => one instanceof Map) as Map<string, unknown>), [
        ["c0", "told"],
        ["c1", "cancelled"],
        ["c2", "short"],
        ["c3", "Done."]
      ])
    }).pipe(Effect.scoped, Effect.provide([model, Session.Store.layerMemory])))
})
