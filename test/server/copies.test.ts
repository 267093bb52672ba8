/**
 * Copies of the fold that a process keeps of a journal: each request has one of its own, at the place where the last
 * request stopped. A copy tells what the fold of the same records tells, and no copy sees another one.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Message, type Response, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import * as SharedMessages from "../../src/internal/fold/sharedMessages.ts"
import type * as Records from "../../src/internal/session/records.ts"
import * as States from "../../src/internal/session/state.ts"
import * as Telling from "../../src/server/internal/journalEvents.ts"
import { property } from "../support/property.ts"
import { until } from "../support/until.ts"
import { type Asked, hearing } from "./support/hostile.ts"

/** What happens to a session, one after another: it is the second run that a field which is left out comes up in. */
const programs = Arbitrary.schema(
  Schema.Array(Schema.Struct({
    does: Schema.Literals(["say", "say", "answer", "answer", "retry", "stop", "leave"]),
    calls: Schema.Array(Schema.Literals(["add", "pay", "ask", "find", "owe", "careful", "nosuch"])).check(
      Schema.isMaxLength(3)
    ),
    isTwice: Schema.Boolean,
    isFailing: Schema.Boolean,
    verdict: Schema.Literals(["approve", "deny"])
  })).check(Schema.isMinLength(3), Schema.isMaxLength(7))
)

type Program = typeof programs extends Arbitrary.Arbitrary<infer A> ? A : never

/** A tool that ends where the test lets it. */
const gated = (gate: { current: Deferred.Deferred<void> }, began: () => void) =>
  Tool.make("hold", {
    parameters: {},
    handler: () => Effect.as(Effect.andThen(Effect.sync(began), Deferred.await(gate.current)), "held")
  })

const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })

const tools = [
  Tool.make("add", { parameters: {}, readOnly: true, handler: () => Effect.succeed(3) }),
  pay,
  Tool.make("owe", { parameters: {}, approval: true, handler: () => Effect.fail("no money") }),
  Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("How many?")) }),
  Tool.make("find", { parameters: {}, manual: true }),
  Tool.fromChat("careful", {
    parameters: {},
    chat: () => Chat.stream(JSON.stringify([{ id: "c0", name: "pay" }]), { tools: [pay] })
  })
]

/** The model that makes the calls which a message has, with usage, and which fails where the message says so. */
const model = Layer.effect(
  Adapter.Adapter,
  Effect.map(Adapter.Adapter, (adapter) => ({
    ...adapter,
    stream: (request: Adapter.Request) =>
      Message.text(request.messages.at(-1)!) === "fail"
        ? Stream.fail(new Adapter.AdapterError({ reason: "authentication_failed" }))
        // A call that is complete starts while the model still speaks.
        : Stream.mapEffect(adapter.stream(request), (event) =>
          Effect.as(
            Effect.promise(() => new Promise((resolve) => setImmediate(resolve))),
            event._tag === "MessageCompleted"
              ? { ...event, usage: { inputTokens: 10, outputTokens: 1 } as Response.Usage }
              : event
          ))
  }))
).pipe(Layer.provide(hearing([])))

/** Does what a program says with workers, one after another, and returns the journal. */
const journalOf = (program: Program) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const gate = { current: Deferred.makeUnsafe<void>() }
    let held = 0
    const layer = Worker.layer({
      run: () => ({ tools: [...tools, gated(gate, () => held++)] }),
      poll: "1 hour",
      drain: 0,
      maxFailures: 1
    })
    const hired = Effect.gen(function*() {
      const scope = yield* Scope.fork(yield* Effect.scope)
      const worker = Context.get(yield* Layer.buildWithScope(layer, scope), Worker.Worker)
      return { worker, leave: Scope.close(scope, Exit.void) }
    })
    let { leave, worker } = yield* hired
    const rest = Effect.gen(function*() {
      yield* worker.take("s")
      yield* until("the worker", worker.health, ({ driven }) => driven === 0)
    })
    let count = 0
    for (const { calls, does, isFailing, isTwice, verdict } of program) {
      const id = `m${count++}`
      const kept = yield* Session.open("s")
      const say = (asked: ReadonlyArray<string>) =>
        Session.submit(
          "s",
          isFailing ? "fail" : asked.length === 0 ? "Hi" : JSON.stringify(
            asked.map((name, index): Asked => ({ id: `c${index}`, name }))
          ),
          { id }
        )
      switch (does) {
        case "say":
          yield* say(calls)
          if (isTwice) yield* Session.submit("s", "And then?", { id: `${id} again` })
          yield* rest
          break
        case "answer": {
          Deferred.doneUnsafe(gate.current, Exit.void)
          for (const { id, kind } of kept.session.suspensions) {
            const current = yield* Session.open("s")
            yield* Session.keep(current, (session) =>
              kind !== "approval" && kind !== "unknown"
                ? Session.answer(session, id, "three")
                : verdict === "deny"
                ? Session.deny(session, id, "No.")
                : Session.approve(session, id))
          }
          yield* rest
          break
        }
        case "retry":
          if (kept.session.status !== "error" || kept.state.ended === undefined) break
          yield* worker.take("s", kept.state.ended.requestId)
          yield* rest
          break
        case "stop":
        case "leave": {
          if (kept.session.suspensions.length > 0) break
          gate.current = Deferred.makeUnsafe()
          const before = held
          yield* say(["hold", ...calls])
          yield* worker.take("s")
          const begun = Effect.map(worker.health, ({ driven }) => driven === 0 || held > before)
          yield* until("the call that holds", begun, (is) => is)
          if (does === "stop") {
            const { ended } = yield* Session.stop("s")
            yield* worker.take("s")
            yield* ended
          } else {
            yield* leave
            // The claim of a call that has not ended is kept for its term, as that of a process that was killed.
            const claim = yield* store.claimOf("s")
            if (claim !== undefined) yield* store.release("s", claim.owner)
            ;({ leave, worker } = yield* hired)
          }
          yield* rest
        }
      }
    }
    yield* leave
    return yield* Stream.runCollect(store.read("s"))
  }).pipe(
    Effect.scoped,
    Effect.provide(model),
    Effect.provide(Session.Store.layerMemory),
    Effect.provide(Logger.layer([]))
  )

/**
 * Everything that an object has, without the options that it was made with, and without the session that a fold has given
 * out: a field that is added is compared, too.
 */
const fieldsOf = (value: unknown): unknown => {
  if (value instanceof Map) return Array.from(value, ([key, item]) => [fieldsOf(key), fieldsOf(item)])
  if (value instanceof Set) return Array.from(value, fieldsOf)
  if (Array.isArray(value)) return value.map(fieldsOf)
  if (typeof value !== "object" || value === null) return value
  return Object.fromEntries(
    Object.entries(value).filter(([name]) => name !== "options" && name !== "given").map((
      [name, item]
    ) => [name, fieldsOf(item)])
  )
}

const viewOf = (telling: Telling.Telling): string => JSON.stringify(fieldsOf(telling))

type Entries = ReadonlyArray<{ readonly version: number; readonly record: Records.Record }>

/** What each record tells, and the fold behind each of them. */
const folded = (entries: Entries) => {
  const telling = new Telling.Telling("s", {})
  const told: Array<string> = []
  const views = [viewOf(telling)]
  for (const entry of entries) {
    told.push(JSON.stringify(telling.take(entry)))
    views.push(viewOf(telling))
  }
  return { told, views }
}

describe("a copy of a fold", () => {
  property(
    "O-58: tells what the fold of the same records tells at each cut, and neither sees the other",
    programs,
    (program) =>
      Effect.map(journalOf(program), (entries) => {
        const wrong: Array<string> = []
        const { told, views } = folded(entries)
        const compare = (telling: Telling.Telling, at: number, name: string) => {
          if (viewOf(telling) !== views[at]) wrong.push(`${name} has ${viewOf(telling)} at ${at}, not ${views[at]}`)
        }
        const goOn = (telling: Telling.Telling, cut: number, name: string) => {
          for (let at = cut; at < entries.length; at++) {
            const text = JSON.stringify(telling.take(entries[at]!))
            if (text !== told[at]) wrong.push(`${name}, cut at ${cut}, tells of record ${at} ${text}, not ${told[at]}`)
            compare(telling, at + 1, `${name}, cut at ${cut},`)
          }
        }
        for (let cut = 0; cut <= entries.length && wrong.length === 0; cut++) {
          const original = new Telling.Telling("s", {})
          for (const entry of entries.slice(0, cut)) original.take(entry)
          const [first, second] = [original.copy({}), original.copy({})]
          goOn(first, cut, "the first copy")
          compare(original, cut, "the original")
          compare(second, cut, "the second copy")
          goOn(original, cut, "the original")
          compare(second, cut, "the second copy")
          goOn(second.copy({}), cut, "the copy of a copy")
        }
        return wrong.slice(0, 3)
      }),
    100
  )
})

/** The places of the turns, and the open run, as the state of the journal has them behind each record. */
const followed = (entries: Entries) => {
  const state = States.initial("s")
  const turns = new Map<number, string>()
  const name = (runId: string, behind: 0 | 1) => {
    const { run, thread, turn } = state
    if (run === undefined) return
    const place = turn === undefined
      ? SharedMessages.findLastIndex(thread, SharedMessages.isReply)
      : SharedMessages.length(thread)
    turns.set(place, `${runId}-${run.steps.length + behind}`)
  }
  return entries.map(({ record }) => {
    States.apply(state, record)
    if (record._tag === "ReplyReceived") name(record.requestId, 1)
    if (record._tag === "StepCompleted") name(record.requestId, 0)
    return JSON.stringify([Array.from(turns), state.run?.requestId, state.run?.processName])
  })
}

describe("a fold", () => {
  property(
    "O-58: names turns by their places, and has the open run, as the state of the journal does behind each record",
    programs,
    (program) =>
      Effect.map(journalOf(program), (entries) => {
        const telling = new Telling.Telling("s", {})
        const own = entries.map((entry) => {
          telling.take(entry)
          return JSON.stringify([Array.from(telling.turns), telling.running, telling.driver])
        })
        return followed(entries).flatMap((text, at) =>
          text === own[at] ? [] : [`record ${at}: ${own[at]}, not ${text}`]
        )
      }),
    100
  )
})

/** What happens to the folds that a process keeps: each has so many bytes. */
const keepings = Arbitrary.schema(
  Schema.Array(Schema.Struct({
    does: Schema.Literals(["keep", "keep", "keep", "forget"]),
    key: Schema.Literals(["a", "b", "c", "d", "e"]),
    bytes: Schema.Literals([0, 10, 40, 60, 101])
  })).check(Schema.isMaxLength(30))
)

describe("the folds that a process keeps", () => {
  property(
    "O-58: are those that were used last, as many as a plain list has room for",
    keepings,
    (program) =>
      Effect.sync(() => {
        const [mostBytes, mostFolds] = [100, 3]
        const folds = new Telling.Folds(mostBytes, mostFolds)
        let list: ReadonlyArray<{ readonly key: string; readonly bytes: number }> = []
        for (const { bytes, does, key } of program) {
          list = list.filter((each) => each.key !== key)
          if (does === "forget") folds.forget(key)
          else {
            const telling = new Telling.Telling(key, {})
            folds.keep(key, { telling, bytes, last: { _tag: "MessagesAppended", messages: [] } })
            if (bytes <= mostBytes) list = [...list, { key, bytes }]
            while (list.length > mostFolds || list.reduce((sum, each) => sum + each.bytes, 0) > mostBytes) {
              list = list.slice(1)
            }
          }
          const kept = ["a", "b", "c", "d", "e"].filter((each) => folds.get(each) !== undefined)
          const listed = list.map((each) => each.key).sort()
          if (kept.join() !== listed.join()) {
            return [`${kept.join()} are kept, not ${listed.join()}, after ${JSON.stringify({ does, key, bytes })}`]
          }
        }
        return []
      }),
    2_000
  )
})
