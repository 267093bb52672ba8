/** Random programs of what happens to a session, carried out with workers. */
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
import { Adapter, Chat, type Event, Message, type Response, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { until } from "../../support/until.ts"
import { type Asked, hearing } from "./hostile.ts"

/** What happens to a session, one after another: it is the second run that a field which is left out comes up in. */
export const programs = Arbitrary.schema(
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

export type Program = typeof programs extends Arbitrary.Arbitrary<infer A> ? A : never

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

/** Functions that hear of each run that a worker drives, and of its events. */
interface Heard {
  readonly onRun?: (kept: Session.Kept, runId: string) => Effect.Effect<void, never, Session.Store>
  readonly onEvent?: (event: Event.Event) => void
}

/** Does what a program says with workers, one after another, and returns the journal. */
export const journalOf = (program: Program, heard: Heard = {}) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const gate = { current: Deferred.makeUnsafe<void>() }
    let held = 0
    const layer = Worker.layer({
      run: (kept: Session.Kept) => {
        const requestId = kept.interrupted?.requestId ?? globalThis.crypto.randomUUID()
        const options = { requestId, replays: false, tools: [...tools, gated(gate, () => held++)] }
        return Effect.as(heard.onRun?.(kept, requestId) ?? Effect.void, options)
      },
      onEvent: (_, event) => Effect.sync(() => heard.onEvent?.(event)),
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
