/**
 * Workers over an hour of virtual time: what fails each time ends, what a leave or a stop leaves behind does not hold the next
 * owner up, and what the model reads of it is true.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Journal, Message, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { Script, Simulation } from "heddle/testing"
import { share } from "../support/property.ts"
import { ledger } from "./support/ledger.ts"

ledger()

/** Runs a program in a simulated process. */
const simulated = <E>(program: Effect.Effect<void, E, Session.Store | Scope.Scope>) =>
  Effect.promise(async () => {
    const services = Effect.provide([Session.Store.layerMemory, Logger.layer([])])
    const { exit } = await Effect.runPromise(Simulation.run(Effect.scoped(program).pipe(services), { maxSteps: 1e7 }))
    if (exit === undefined || Exit.isFailure(exit)) throw new Error(String(exit?.cause ?? "it has no end"))
  })

const working = (options: Worker.Options<any, any, any, any, any, any>, model: Layer.Layer<Adapter.Adapter>) =>
  Effect.gen(function*() {
    const scope = yield* Scope.make()
    yield* Effect.addFinalizer((exit) => Scope.close(scope, exit))
    yield* Scope.provide(Layer.build(Layer.provide(Worker.layer(options), model)), scope)
    return { leave: Scope.close(scope, Exit.void) }
  })

const answersIn = ({ thread }: Session.Session) =>
  thread.messages.filter(({ role }) => role === "tool").map(Message.text)

const claimOf = (id: string) => Effect.map(Session.inspect(id), (found) => found?.claim)

/** Long enough for every attempt, and an hour where all of it is tried. */
const long = share < 1 ? "10 minutes" : "1 hour"

describe("a run that fails each time", () => {
  const look = Tool.make("look", { parameters: {}, readOnly: true, handler: () => Effect.succeed("seen") })
  const strict = Tool.make("strict", {
    parameters: { city: Schema.NonEmptyString },
    handler: () => Effect.succeed("seen")
  })
  const large = "x".repeat(9_000_000)
  const put = Tool.make("put", {
    parameters: {},
    idempotent: true,
    handler: (_, call) => Effect.as(call.updateContext({ page: large }), "put")
  })
  const dies = () => Effect.die(new Error("a defect"))
  const calls = (name: string) => [Script.toolCall("c0", name), Script.finish("tool_calls")]
  const fails = { onToolError: () => Effect.succeed(Tool.ErrorDecision.fail("stop here")) }
  const cases = {
    "an onToolError that fails the run over an unknown tool": [fails, calls("nope")],
    "an onToolError that fails the run over wrong arguments": [fails, calls("strict")],
    "a haltWhen that dies": [{ haltWhen: dies }, calls("look")],
    "an onEvent that dies": [{ onEvent: dies }, calls("look")],
    "options with a wrong value": [{ maxTurns: -1 }, calls("look")],
    "an option that does not exist": [{ nope: 1 }, calls("look")],
    "a context update too large to be recorded": [{}, calls("put")],
    "a reply too large to be recorded": [{}, [Script.text(large), Script.finish("stop")]]
  } as const
  for (const [what, [options, reply]] of Object.entries(cases)) {
    it.effect(`N-10, N-39: a worker gives a run up after maxFailures: ${what}`, () =>
      simulated(Effect.gen(function*() {
        const model = yield* Script.make(Array.from({ length: 100 }, () => reply))
        let givenUp = 0
        const run = () => ({ tools: [look, put, strict], ...options }) as Chat.Options
        const onGiveUp = () => Effect.sync(() => void givenUp++)
        yield* working({ run, maxFailures: 3, onGiveUp }, model.layer)
        yield* Session.submit("s", "go", { id: "m" })
        yield* Effect.sleep(long)
        const kept = yield* Session.open("s")
        assert.deepStrictEqual(
          [givenUp, Session.next(kept), kept.session.status, Session.receipt(kept, "m")?.became],
          [1, "nothing", "error", "failed"]
        )
        assert.isAtMost(yield* model.opens, 3)
        const records = yield* Stream.runCollect((yield* Session.Store).read("s"))
        assert.deepStrictEqual(Journal.check(records.map(({ record }) => record)), [])
      })))
  }

  const ends = {
    "a stop": Effect.asVoid(Session.stop("s")),
    "maxAge": Effect.sleep("8 days")
  }
  for (const [why, end] of Object.entries(ends)) {
    for (const [what, [options, reply]] of Object.entries(cases)) {
      it.effect(`N-10, Q-14: ${why} ends an interrupted run, also under a worker with ${what}`, () =>
        simulated(Effect.gen(function*() {
          const wait = Tool.make("wait", {
            parameters: {},
            onToolError: () => Effect.succeed(Tool.ErrorDecision.fail("stop here")),
            handler: () => Effect.never
          })
          const model = Script.layer([[
            Script.toolCall("c0", "wait"),
            Script.toolCall("c1", "wait"),
            Script.finish("tool_calls")
          ]])
          const tools = [wait, look]
          const first = { run: () => ({ tools, maxConcurrency: 1, grace: 1 }), drain: 1, term: "10 seconds" } as const
          yield* Session.submit("s", "go", { id: "m" })
          const { leave } = yield* working(first, model)
          yield* Effect.sleep("1 second")
          yield* leave
          yield* end
          const other = yield* Script.make(Array.from({ length: 100 }, () => reply))
          const run = () => ({ tools: [...tools, put, strict], ...options }) as Chat.Options
          yield* working({ ...first, run, maxFailures: 3 }, other.layer)
          yield* Effect.sleep(long)
          assert.strictEqual(yield* other.opens, 0)
          const kept = yield* Session.open("s")
          const became = why === "a stop" ? "stopped" : "failed"
          assert.deepStrictEqual([Session.next(kept), Session.receipt(kept, "m")?.became], ["nothing", became])
        })))
    }
  }

  it.effect("N-39: a run completes although the hooks of its worker die", () =>
    simulated(Effect.gen(function*() {
      const model = Script.layer([calls("look"), [Script.text("Done."), Script.finish("stop")]])
      const died = {
        onEvent: dies,
        onEnd: () => {
          throw new Error("a defect")
        }
      }
      yield* working({ run: () => ({ tools: [look] }), ...died }, model)
      yield* Session.submit("s", "go")
      yield* Effect.sleep("1 minute")
      assert.strictEqual((yield* Session.open("s")).session.status, "completed")
    })))
})

describe("a sub-agent of a leaving worker", () => {
  const look = Tool.make("look", {
    parameters: {},
    readOnly: true,
    handler: () => Effect.as(Effect.sleep(3500), "seen")
  })
  const agent = (interrupt: "block" | "cancel") =>
    Tool.fromChat("agent", {
      parameters: {},
      interrupt,
      chat: () => Chat.stream("inner", { tools: [look], grace: 1000 })
    })
  const model = Adapter.layer({
    stream: (request) => {
      const isInner = Message.text(request.messages[0]!) === "inner"
      const said = request.messages.at(-1)?.role === "tool"
        ? [Script.text(isInner ? "inner done" : "done"), Script.finish("stop")]
        : [Script.toolCall("c0", isInner ? "look" : "agent"), Script.finish("tool_calls")]
      return Stream.unwrap(Effect.map(Script.make([said]), (script) => script.stream(request)))
    }
  })

  for (const interrupt of ["block", "cancel"] as const) {
    const options = { run: () => ({ tools: [agent(interrupt)], grace: 1000 }), term: 6000, drain: 300 }

    it.effect(`N-05: the next owner continues a sub-agent with interrupt: "${interrupt}"`, () =>
      simulated(Effect.gen(function*() {
        yield* Session.submit("s", "go")
        const { leave } = yield* working(options, model)
        yield* Effect.sleep(500)
        yield* leave
        yield* working(options, model)
        yield* Effect.sleep("1 minute")
        const { session } = yield* Session.open("s")
        assert.deepStrictEqual([session.status, answersIn(session)], ["completed", ["inner done"]])
      })))

    it.effect(`N-09: a stopped sub-agent with interrupt: "${interrupt}" is reported as stopped and keeps no claim`, () =>
      simulated(Effect.gen(function*() {
        yield* Session.submit("s", "go")
        const { leave } = yield* working(options, model)
        yield* Effect.sleep(500)
        const { ended } = yield* Session.stop("s")
        assert.deepStrictEqual(yield* ended, { stopped: ["c0"], ended: [], refused: [], unknown: [] })
        yield* leave
        assert.isUndefined(yield* claimOf("s"))
      })))
  }
})

describe("a failed call waiting for its next attempt", () => {
  const pay = Tool.make("pay", {
    parameters: {},
    timeout: "1 minute",
    retry: Schedule.spaced("5 seconds"),
    handler: () => Effect.fail("the bank has answered with 502")
  })
  const model = Script.layer([
    [Script.toolCall("c0", "pay"), Script.finish("tool_calls")],
    [Script.text("ok"), Script.finish("stop")]
  ])
  const options = { run: () => ({ tools: [pay] }), drain: 1 }
  const ways = {
    stop: Effect.gen(function*() {
      const { ended } = yield* Session.stop("s")
      yield* working(options, model)
      assert.deepStrictEqual((yield* ended).stopped, ["c0"])
    }),
    abandon: Effect.scoped(Effect.flatMap(Session.claim("s"), Session.abandon)),
    maxAge: Effect.scoped(
      Effect.flatMap(Session.claim("s"), (kept) => Session.resume(kept, { tools: [pay], maxAge: 1 }))
    ).pipe(Effect.provide(model))
  }
  for (const [way, end] of Object.entries(ways)) {
    it.effect(`N-09: a failed call waiting for its next attempt is answered as not tried again after ${way}`, () =>
      simulated(Effect.gen(function*() {
        yield* Session.submit("s", "go")
        const { leave } = yield* working(options, model)
        yield* Effect.sleep(1000)
        yield* leave
        yield* end
        const [answer] = answersIn((yield* Session.open("s")).session)
        assert.include(answer, "cancelled: not tried again: the run was")
      })))
  }
})

describe("a reply that breaks while the start of an early call is being recorded", () => {
  const slow = Layer.effect(
    Session.Store,
    Effect.map(Session.Store, (store) =>
      Session.Store.of({
        ...store,
        append: (...args) => Effect.andThen(Effect.sleep(1), store.append(...args))
      }))
  )
  it.effect("Q-11: a reply that breaks while the start of an early call is being recorded leaves a whole journal", () =>
    simulated(
      Effect.gen(function*() {
        let starts = 0
        const look = Tool.make("look", {
          parameters: {},
          readOnly: true,
          handler: () => Effect.sync(() => ++starts)
        })
        const broken = [Script.text("I look."), Script.toolCall("c0", "look"), Script.streamError("network_error")]
        const opened = yield* Session.open("s")
        yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: [look] })).pipe(
          Effect.provide(Script.layer([broken]))
        )
        const records = (yield* Stream.runCollect((yield* Session.Store).read("s"))).map(({ record }) => record)
        assert.deepStrictEqual([starts, Journal.check(records)], [0, []])
        assert.isTrue(records.some(({ _tag }) => _tag === "CallStarted"))
      }).pipe(Effect.provide(slow))
    ))
})
