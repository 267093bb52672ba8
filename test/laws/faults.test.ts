/**
 * Faults that are planted in a session, each of which has to be found: the observer of the tests, `Journal.check` and the
 * suite for stores count only because of that.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Chat, Journal, Message, Session, Tool } from "heddle"
import { Conformance, Script, StoreSuite } from "heddle/testing"
import type * as States from "../../src/internal/session/state.ts"
import * as Writers from "../../src/internal/session/writer.ts"
import { taken } from "../support/observed.ts"

const work = Tool.make("work", { parameters: {}, handler: () => Effect.succeed("worked") })
const inner = Tool.fromChat("inner", {
  description: "A sub-agent",
  parameters: {},
  chat: () => Chat.stream("inside", { tools: [work] })
})

const script = [
  [Script.toolCall("c0", "work"), Script.toolCall("c1", "inner"), Script.finish("tool_calls")],
  [Script.toolCall("w0", "work"), Script.finish("tool_calls")],
  [Script.text("inside done"), Script.finish("stop")],
  [Script.text("done"), Script.finish("stop")]
]

/** Runs a session in which `fault` changes the state of a writer behind the back of its journal, once. */
const observed = (fault: (state: States.State) => boolean) =>
  Effect.gen(function*() {
    const { by } = Writers.observed
    let isPlanted = false
    Writers.observed.by = (writer) => {
      if (!isPlanted) isPlanted = fault(writer.state)
      by?.(writer)
    }
    yield* Effect.exit(Session.keep(yield* Session.open("s"), (session) =>
      Session.reply(session, "go", { tools: [work, inner], maxConcurrency: 1 })))
    return { isPlanted, found: taken() }
  }).pipe(Effect.provide([Script.layer(script), Session.Store.layerMemory]))

/** Puts a call into another state, where there is such a call in the turn of a run of the session itself. */
const changed = (
  tag: States.Call["_tag"],
  change: (call: States.Call) => States.Call | undefined
) =>
(state: States.State): boolean => {
  if (state.parent !== undefined) return false
  for (const [id, call] of state.turn?.calls ?? []) {
    if (call._tag !== tag) continue
    const next = change(call)
    if (next === undefined) state.turn?.calls.delete(id)
    else state.turn?.calls.set(id, next)
    return true
  }
  return false
}

const answered = (call: States.Call, content: string): States.Call => {
  const { attempt, idempotencyKey, toolCall } = call
  return { _tag: "Answered", attempt, idempotencyKey, toolCall, message: Message.tool(toolCall.id, content) }
}

describe("the observer of the tests", () => {
  const faults: Record<string, (state: States.State) => boolean> = {
    "a fold that forgets a call": changed("Answered", () => undefined),
    "an intent that is applied before it is durable": changed("Asked", ({ attempt, idempotencyKey, toolCall }) => ({
      _tag: "Started",
      attempt: attempt + 1,
      idempotencyKey,
      toolCall,
      hasStarted: true,
      answers: []
    })),
    "an answer that is rendered anew": changed("Answered", (call) => answered(call, "worked, in other words")),
    "the end of a sub-agent that is joined from memory": changed("Started", (call) => answered(call, "inside done"))
  }
  for (const [name, fault] of Object.entries(faults)) {
    it.effect(`Q-11: the observer finds ${name}`, () =>
      Effect.gen(function*() {
        const { found, isPlanted } = yield* observed(fault)
        assert.isTrue(isPlanted)
        assert.isNotEmpty(found)
      }))
  }

  it.effect("Q-11: the observer finds nothing where no fault is planted", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* observed(() => false), { isPlanted: false, found: [] })
    }))
})

describe("Journal.check", () => {
  const records = Effect.gen(function*() {
    yield* Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "go", { tools: [work, inner] }))
    const store = yield* Session.Store
    return Array.from(yield* Stream.runCollect(store.read("s")), ({ record }) => record)
  }).pipe(Effect.provide([Script.layer(script), Session.Store.layerMemory]))

  const faults: Record<string, (record: Journal.Record) => ReadonlyArray<Journal.Record>> = {
    "a turn that is left without an answer": (record) => record._tag === "CallEnded" ? [] : [record],
    "a call that is answered twice": (record) => record._tag === "CallEnded" ? [record, record] : [record],
    "a call that starts again behind its answer": (record) =>
      record._tag === "CallEnded"
        ? [record, {
          _tag: "CallStarted",
          requestId: record.requestId,
          toolCallId: record.message.toolCallId ?? "",
          attempt: 2,
          idempotencyKey: "k"
        }]
        : [record],
    "a stop that ends a run before it is durable": (record) =>
      record._tag === "RunEnded" ? [{ ...record, haltedReason: "cancelled", status: "stopped" }] : [record],
    "a run that begins inside another": (record) =>
      record._tag === "RunStarted" ? [record, { ...record, requestId: "other" }] : [record]
  }
  for (const [name, fault] of Object.entries(faults)) {
    it.effect(`Q-11: Journal.check finds ${name}`, () =>
      Effect.gen(function*() {
        const whole = yield* records
        assert.deepStrictEqual(Journal.check(whole), [])
        assert.isNotEmpty(Journal.check(whole.flatMap(fault)))
      }))
  }
})

describe("the suite for stores", () => {
  it.effect("Q-11: the suite finds a store that appends without a version check", () =>
    Effect.gen(function*() {
      const careless = Layer.effect(
        Session.Store,
        Effect.map(Session.Store, (store): Journal.Service => ({
          ...store,
          append: (id, _, records, options) =>
            Effect.flatMap(store.version(id), (version) => store.append(id, version, records, options))
        }))
      ).pipe(Layer.provide(Session.Store.layerMemory))
      const failures = yield* Conformance.failures(StoreSuite.all, careless).pipe(
        Effect.provideService(StoreSuite.Passing, TestClock.adjust)
      )
      assert.isAbove(failures.length, 0)
    }))
})
