/**
 * Interrupted runs, in the places where a resumption and something else meet: a stop that is appended at the same moment, an
 * attempt that had failed, calls of a lost reply, and the step in which the model had no tools.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import { type Adapter, type Chat, type Journal, Message, Policy, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { journalOf, prefixed } from "../support/survivor.ts"

const { finish, text, toolCall } = Script

const calling = [toolCall("c", "work"), finish("tool_calls")]

const done = [text("done"), finish("stop")]

type Tags = Journal.Record["_tag"]

/** A tool that says what is done for its calls. It can be interrupted by nothing but the end of its grace period. */
const working = (
  log: Array<string>,
  options: object = {},
  outcome: (attempt: number) => Effect.Effect<string, string>
) =>
  Tool.make("work", {
    parameters: {},
    interrupt: "block",
    ...options,
    handler: (_, { attempt, id }) =>
      Effect.suspend(() => {
        log.push(`${id} ${attempt}`)
        return outcome(attempt)
      })
  })

const worked = () => Effect.succeed("worked")

/** The records of a run up to the first of a kind. */
const upTo = (tag: Tags, records: ReadonlyArray<Journal.Record>): ReadonlyArray<Journal.Record> => {
  const at = records.findIndex(({ _tag }) => _tag === tag)
  assert.isAtLeast(at, 0, tag)
  return records.slice(0, at + 1)
}

/** The records of a run that nothing interrupts. */
const recorded = (model: Layer.Layer<Adapter.Adapter>, options: Chat.Options<[]>) =>
  Effect.gen(function*() {
    const opened = yield* Session.open("s")
    yield* Session.keep(opened, (session) => Session.reply(session, "go", options))
    return yield* journalOf("s")
  }).pipe(Effect.provide([model, Session.Store.layerMemory]))

const resume = (options: Session.ResumeOptions<[]>) =>
  Effect.flatMap(Session.load("s"), (cut) => Session.resume(cut!, { takeOver: true, ...options }))

/** A store in which another process requests a stop right before the first append that has a record of a kind. */
const stoppedBefore = (isIt: (record: Journal.Record) => boolean, onStopped = (_receipt: Session.StopReceipt) => {}) =>
  Layer.effect(
    Session.Store,
    Effect.map(Session.Store, (store): Journal.Service => {
      let isStopped = false
      return {
        ...store,
        append: (id, expected, records, options) => {
          const append = store.append(id, expected, records, options)
          if (isStopped || !records.some(isIt)) return append
          isStopped = true
          const stop = Effect.provideContext(Session.stop(id), Context.make(Session.Store, store))
          return Effect.andThen(Effect.map(Effect.orDie(stop), onStopped), append)
        }
      }
    })
  )

describe("a stop appended at the same moment as another record", () => {
  it.effect("Q-15: after a stop appended just before a run's resumption nothing starts, and the run ends as stopped", () =>
    Effect.gen(function*() {
      const records = upTo(
        "ReplyReceived",
        yield* recorded(Script.layer([calling, done]), {
          tools: [working([], {}, worked)] as unknown as []
        })
      )
      const log: Array<string> = []
      const tools = [working(log, {}, worked)] as unknown as []
      yield* Effect.gen(function*() {
        const error = yield* Effect.flip(resume({ tools }))
        assert.strictEqual((error as { readonly _tag: string })._tag, "SessionConflict")
        const { session, value: { result } } = yield* resume({ tools })
        assert.deepStrictEqual([session.status, result.outcome._tag], ["stopped", "Cancelled"])
        assert.deepStrictEqual(log, [])
      }).pipe(Effect.provide([
        Script.layer([done]),
        Layer.provide(
          stoppedBefore((record) => record._tag === "RunStarted" && record.resumes === true),
          prefixed("s", records)
        )
      ]))
    }))

  it.effect("Q-15: a stop appended just before another operation abandons the run has its report, and the operation continues", () =>
    Effect.gen(function*() {
      const records = upTo(
        "CallStarted",
        yield* recorded(Script.layer([calling, done]), {
          tools: [working([], {}, worked)] as unknown as []
        })
      )
      const stopped: Array<Session.StopReceipt> = []
      yield* Effect.gen(function*() {
        const cut = (yield* Session.load("s"))!
        const { session } = yield* Session.keep(cut, (session) => Session.reply(session, "and now?"))
        assert.strictEqual(session.status, "completed")
        const tags = (yield* journalOf("s")).slice(records.length).map(({ _tag }) => _tag)
        assert.deepStrictEqual(tags.slice(0, 1), ["StopRequested"])
        assert.deepStrictEqual((yield* Session.load("s"))?.session, session)
        const [report] = stopped
        assert.deepStrictEqual(yield* report!.ended, { stopped: [], ended: [], refused: [], unknown: ["c"] })
      }).pipe(Effect.provide([
        Script.layer([done]),
        Layer.provide(
          stoppedBefore(({ _tag }) => _tag === "RunStarted", (receipt) => stopped.push(receipt)),
          prefixed("s", records)
        )
      ]))
    }))

  it.effect("Q-15: a stop appended just before a call's start prevents the handler, also of a tool that blocks", () =>
    Effect.gen(function*() {
      const log: Array<string> = []
      const tools = [working(log, {}, worked)] as unknown as []
      yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const { session } = yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools }))
        assert.deepStrictEqual([session.status, log], ["stopped", []])
        assert.include(String(session.thread.messages.at(-1)?.content), "not run: the run was stopped")
      }).pipe(Effect.provide([
        Script.layer([calling, done]),
        Layer.provide(stoppedBefore(({ _tag }) => _tag === "CallStarted"), Session.Store.layerMemory)
      ]))
    }))
})

describe("an attempt that failed before its process ended", () => {
  it.effect("D-02: a resumed run follows a failed attempt with the next attempt, and does not ask the passed gates again", () =>
    Effect.gen(function*() {
      const toolsOf = (log: Array<string>) =>
        [working(
          log,
          { retry: Schedule.recurs(1), authorize: () => (log.push("gate"), true) },
          (attempt) => attempt === 1 ? Effect.fail("busy") : Effect.succeed("worked")
        )] as unknown as []
      const uncut: Array<string> = []
      const records = yield* recorded(Script.layer([calling, done]), { tools: toolsOf(uncut) })
      assert.deepStrictEqual(uncut, ["gate", "c 1", "c 2"])
      const log: Array<string> = []
      const { session } = yield* resume({ tools: toolsOf(log) }).pipe(
        Effect.provide([Script.layer([done]), prefixed("s", upTo("AttemptFailed", records))])
      )
      assert.deepStrictEqual(log, ["c 2"])
      assert.strictEqual(session.thread.messages.find(({ role }) => role === "tool")?.content, "worked")
    }))
})

describe("a call of a lost reply", () => {
  it.effect("D-06: a lost reply's call is no part of the repeated reply, which calls another tool under the same id", () =>
    Effect.gen(function*() {
      const log: Array<string> = []
      const reading = (name: string) =>
        Tool.make(name, {
          parameters: {},
          readOnly: true,
          handler: (_, { attempt }) => Effect.sync(() => (log.push(`${name} ${attempt}`), name))
        })
      const tools = [reading("look"), reading("read")] as unknown as []
      const policy = { ...Policy.standard, start: "onCallReady" } as const
      const opened = upTo("RunStarted", yield* recorded(Script.layer([done]), { requestId: "run" }))
      const early: Journal.Record = {
        _tag: "CallStarted",
        requestId: "run",
        toolCallId: "c",
        toolCall: Message.toolCall("c", "look"),
        attempt: 1,
        idempotencyKey: "run:0:0:c"
      }
      const records = [...opened, early]
      const again = Script.layer([[toolCall("c", "read"), finish("tool_calls")], done])
      const { session } = yield* resume({ tools, policy }).pipe(Effect.provide([again, prefixed("s", records)]))
      assert.deepStrictEqual(log, ["read 1"])
      assert.strictEqual(session.thread.messages.find(({ role }) => role === "tool")?.content, "read")
    }))
})

describe("the last step, in which the model has no tools", () => {
  it.effect("Q-15: a run interrupted after the reply of its last step runs no handler", () =>
    Effect.gen(function*() {
      const log: Array<string> = []
      const tools = [working(log, {}, worked)] as unknown as []
      const options = { tools, maxTurns: 1, policy: { ...Policy.standard, onMaxTurns: "finalize" } } as const
      const model = Script.layer([calling, [toolCall("d", "work"), finish("tool_calls")]])
      const records = yield* recorded(model, options)
      assert.deepStrictEqual(log, ["c 1"])
      const replies = records.flatMap(({ _tag }, index) => _tag === "ReplyReceived" ? [index] : [])
      assert.lengthOf(replies, 2)
      log.length = 0
      const { value } = yield* resume(options).pipe(
        Effect.provide([Script.layer([]), prefixed("s", records.slice(0, replies[1]! + 1))])
      )
      assert.deepStrictEqual([log, value.result.outcome._tag], [[], "MaxTurns"])
    }))
})
