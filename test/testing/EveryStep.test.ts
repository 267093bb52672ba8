/**
 * Each thing that `everyStep` looks at, in runs that are lawful but for that, and what it says of it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, Executor, Message, Policy, Step, Thread, Tool, ToolRunner } from "heddle"
import { type EveryStep, everyStep, Script } from "heddle/testing"
import * as Broken from "../support/broken.ts"

const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.sleep("1 second") })

const done: ReadonlyArray<Script.Entry> = [Script.text("done"), Script.finish("stop")]

const model = Script.layer([
  [Script.toolCall("c0", "wait"), Script.toolCall("c1", "wait"), Script.finish("tool_calls")],
  done
])

type AnyTool = Tool.Tool<string, any, any, any, never>

/** A chat that calls a tool of the name "tool" once. */
const calling = (tool: AnyTool, options: EveryStep.Options = {}, more: Partial<Chat.Options> = {}) =>
  everyStep(({ cancel }) => Chat.stream("go", { ...more, tools: [tool], cancel } as Chat.Options<[AnyTool]>), {
    ...options,
    layer: Script.layer([[Script.toolCall("c0", "tool"), Script.finish("tool_calls")], done])
  })

const handled = (handler: (call: Tool.CallContext) => Effect.Effect<unknown, unknown>) =>
  Tool.make("tool", { parameters: {}, handler: (_args, call) => handler(call) })

/** The laws that are broken, and what is said of each. */
const told = ({ violations }: EveryStep.Report): Record<string, ReadonlyArray<string>> => {
  const byLaw: Record<string, Array<string>> = {}
  for (const { law, message } of violations) {
    const messages = byLaw[law] ??= []
    if (!messages.includes(message)) messages.push(message)
  }
  return byLaw
}

const stopsOf = ({ violations }: EveryStep.Report): ReadonlyArray<string> =>
  Array.from(new Set(violations.map(({ stop }) => stop)))

describe("everyStep: attempts", () => {
  it.effect("everyStep runs a program twice to its end, and stops it hard and softly at each point", () =>
    Effect.gen(function*() {
      const report = yield* everyStep(({ cancel }) => Chat.stream("go", { tools: [wait], cancel }), { layer: model })
      assert.deepStrictEqual(report.violations, [])
      assert.isAtLeast(report.points, 5)
      assert.strictEqual(report.attempts, 2 + 2 * report.points)
      assert.isAbove(report.handlers, 2 * report.points)
      assert.isAbove(report.requests, report.points)
    }))

  it.effect("everyStep stops a run softly only if the run reads its cancel", () =>
    Effect.gen(function*() {
      const report = yield* everyStep(() => Chat.stream("go", { tools: [wait] }), { layer: model })
      assert.deepStrictEqual(report.violations, [])
      assert.strictEqual(report.attempts, 2 + report.points)
    }))

  it.effect("everyStep takes a streamed or an awaited run, with or without its services", () =>
    Effect.gen(function*() {
      const streamed = yield* everyStep(Chat.stream("go", { tools: [wait] }), { layer: model })
      const awaited = yield* everyStep(Chat.run("go", { tools: [wait] }), { layer: model })
      const closed = yield* everyStep(Effect.provide(Chat.run("go", { tools: [wait] }), model))
      const provided = yield* everyStep(Effect.succeed(1))
      for (const report of [streamed, awaited, closed, provided]) assert.deepStrictEqual(report.violations, [])
      assert.strictEqual(streamed.requests, awaited.requests)
      assert.strictEqual(awaited.handlers, streamed.handlers)
      assert.deepStrictEqual([closed.handlers, closed.requests], [awaited.handlers, 0])
      assert.deepStrictEqual([provided.points, provided.attempts], [1, 3])
    }))

  it.effect("everyStep tries as many points as its limit allows, and finds no violation outside them", () =>
    Effect.gen(function*() {
      const orphan = { layer: Layer.merge(model, Broken.orphaning) }
      const all = yield* everyStep(Chat.stream("go", { tools: [wait] }), orphan)
      const some = yield* everyStep(Chat.stream("go", { tools: [wait] }), { ...orphan, limit: 3 })
      assert.strictEqual(some.points, all.points)
      assert.strictEqual(some.attempts, 2 + 3)
      const one = yield* everyStep(Chat.stream("go", { tools: [wait] }), { ...orphan, limit: 1 })
      assert.strictEqual(one.attempts, 2 + 1)
      const steps = new Set(all.violations.map(({ step }) => step))
      assert.isTrue(some.violations.every(({ step }) => steps.has(step)))
    }))

  it.effect("a lower maxOpsBeforeYield gives everyStep more points, and a value of 2 is refused", () =>
    Effect.gen(function*() {
      const usual = yield* everyStep(Chat.stream("go", { tools: [wait] }), { layer: model })
      const fine = yield* everyStep(Chat.stream("go", { tools: [wait] }), { layer: model, maxOpsBeforeYield: 20 })
      assert.isAbove(fine.points, 3 * usual.points)
      assert.deepStrictEqual(fine.violations, [])
      const exit = yield* Effect.exit(everyStep(Effect.void, { maxOpsBeforeYield: 2 }))
      assert.isTrue(Exit.isFailure(exit) && Cause.squash(exit.cause) instanceof TypeError)
    }))

  it.effect("everyStep leaves the services of the run to the caller, and discards its logs", () =>
    Effect.gen(function*() {
      class Word extends Context.Service<Word, string>()("test/Word") {}
      const said: Array<string> = []
      const logged: Array<unknown> = []
      const run = Word.use((word) => Effect.andThen(Effect.logWarning("heard"), Effect.sync(() => said.push(word))))
      const report = yield* everyStep(run).pipe(
        Effect.provideService(Word, "yes"),
        Effect.provideService(Logger.CurrentLoggers, new Set([Logger.make(({ message }) => logged.push(message))]))
      )
      assert.deepStrictEqual(report.violations, [])
      assert.deepStrictEqual(said, ["yes", "yes"])
      assert.deepStrictEqual(logged, [])
    }))

  it.effect("everyStep reports a run that differs when it is repeated", () =>
    Effect.gen(function*() {
      let runs = 0
      const report = yield* everyStep(Effect.suspend(() => Effect.sleep(++runs === 1 ? 10 : 0)))
      assert.deepStrictEqual(told(report), {
        repeatable: ["2 steps, 0 handlers, 0 requests and Success became 1 steps, 0 handlers, 0 requests and Success"]
      })
      const shared = yield* Script.make([done])
      const used = yield* everyStep(Chat.stream("go"), { layer: shared.layer })
      assert.deepStrictEqual(told(used), {
        repeatable: ["1 steps, 0 handlers, 1 requests and Success became 1 steps, 0 handlers, 1 requests and Failure"]
      })
    }))
})

describe("everyStep: lifetime", () => {
  it.effect("everyStep finds a remaining fiber and a remaining timer", () =>
    Effect.gen(function*() {
      const asleep = yield* everyStep(Effect.forkDetach(Effect.sleep(50), { startImmediately: true }))
      assert.deepStrictEqual(told(asleep), {
        lifetime: ["1 fibers are alive after the run", "1 timers are set after the run"]
      })
      const forever = yield* everyStep(Effect.forkDetach(Effect.never, { startImmediately: true }))
      assert.deepStrictEqual(told(forever), { lifetime: ["1 fibers are alive after the run"] })
    }))

  it.effect("everyStep finds a run that does not end, and no violation where it stops this run", () =>
    Effect.gen(function*() {
      const report = yield* everyStep(Effect.never)
      assert.deepStrictEqual(told(report), { lifetime: ["the run does not end"] })
      assert.deepStrictEqual(stopsOf(report), ["none"])
    }))

  it.effect("everyStep finds a model request that stays open", () =>
    Effect.gen(function*() {
      const leaving = Adapter.Adapter.use(({ stream }) =>
        Effect.flatMap(
          Scope.make(),
          (scope) => Scope.provide(Stream.toPull(stream({ messages: [], tools: [] })), scope)
        )
      )
      const report = yield* everyStep(Effect.flatten(leaving), { layer: Script.layer([done]) })
      assert.deepStrictEqual(told(report), { lifetime: ["1 model requests were not closed"] })
    }))

  it.effect("everyStep passes a live handler that refuses to stop and is reported, and finds an unreported handler", () =>
    Effect.gen(function*() {
      const refuse = handled(() => Effect.uninterruptible(Effect.sleep("1 minute")))
      const named = yield* calling(refuse, {}, { toolTimeout: "2 seconds" })
      assert.deepStrictEqual(named.violations, [])
      const batch = ToolRunner.run([Message.toolCall("c0", "tool")], [refuse], { toolTimeout: "2 seconds" })
      const unnamed = yield* everyStep(Effect.provideService(batch, Logger.CurrentLoggers, new Set<never>()))
      assert.sameMembers([...told(unnamed)["lifetime"] ?? []], [
        "1 fibers are alive after the run",
        "1 timers are set after the run",
        "1 of \"tool (call c0)\" are alive after the run"
      ])
    }))

  it.effect("everyStep finds a live effect tracked by the recorder of the attempt", () =>
    Effect.gen(function*() {
      const report = yield* everyStep(({ recorder }) =>
        Effect.forkDetach(recorder.track("own")(Effect.never), { startImmediately: true })
      )
      assert.include(told(report)["lifetime"] ?? [], "1 of \"own\" are alive after the run")
      const ended = yield* everyStep(({ recorder }) => recorder.track("own")(Effect.sleep(10)))
      assert.deepStrictEqual(ended.violations, [])
    }))
})

describe("everyStep: stop", () => {
  it.effect("everyStep finds a handler that starts after the stop", () =>
    Effect.gen(function*() {
      const late = Broken.changed((execution) =>
        Effect.andThen(Effect.onInterrupt(Effect.sleep(100), () => execution), execution)
      )
      const report = yield* everyStep(Chat.stream("go", { tools: [wait] }), {
        layer: Layer.merge(model, Executor.layer(late))
      })
      assert.deepStrictEqual(told(report), {
        stop: [
          "wait (call c0) was started after the run was stopped",
          "wait (call c1) was started after the run was stopped"
        ]
      })
      assert.deepStrictEqual(stopsOf(report), ["hard"])
    }))

  it.effect("everyStep finds a model request after the stop", () =>
    Effect.gen(function*() {
      const deaf = ({ cancel }: EveryStep.Attempt) =>
        Effect.andThen(Step.run("go", { tools: [wait], cancel }), Step.run("go", { tools: [wait] }))
      const report = yield* everyStep(deaf, { layer: Script.layer([[Script.delay(10), ...done], done]) })
      assert.deepStrictEqual(told(report), { stop: ["1 model requests were made after the run was stopped"] })
      assert.deepStrictEqual(stopsOf(report), ["soft"])
    }))

  it.effect("everyStep finds a run that takes longer to stop than its grace", () =>
    Effect.gen(function*() {
      const slow = Effect.onInterrupt(Effect.sleep("1 minute"), () => Effect.sleep("6 seconds"))
      const report = yield* everyStep(slow)
      assert.deepStrictEqual(told(report), { stop: ["the run took 6000 ms to stop, longer than its grace of 5000 ms"] })
      assert.deepStrictEqual((yield* everyStep(slow, { grace: "6 seconds" })).violations, [])
    }))

  it.effect("everyStep finds a run that fails because of the stop, and passes a run that always fails", () =>
    Effect.gen(function*() {
      const hard = yield* everyStep(Effect.onInterrupt(Effect.sleep(10), () => Effect.die("torn")))
      assert.strictEqual(told(hard)["stop"]?.length, 1)
      assert.match(told(hard)["stop"]?.[0] ?? "", /^the run was stopped and ends with .*torn/s)
      const soft = yield* everyStep(({ cancel }) =>
        Effect.andThen(Effect.sleep(10), Effect.suspend(() => cancel.aborted ? Effect.fail("stopped") : Effect.void))
      )
      assert.match(told(soft)["stop"]?.[0] ?? "", /^the run was stopped and ends with .*stopped/s)
      assert.deepStrictEqual((yield* everyStep(Effect.andThen(Effect.sleep(10), Effect.fail("always")))).violations, [])
    }))
})

describe("everyStep: calls", () => {
  it.effect("everyStep finds a second start of a call, also where the handler returns no Effect", () =>
    Effect.gen(function*() {
      const twice = Executor.layer(Broken.changed((execution) => Effect.andThen(execution, execution)))
      const invalid = Tool.make("tool", { parameters: {}, handler: (() => 42) as never })
      for (const tool of [handled(() => Effect.void), invalid]) {
        const report = yield* everyStep(Chat.stream("go", { tools: [tool] }), {
          layer: Layer.merge(Script.layer([[Script.toolCall("c0", "tool"), Script.finish("tool_calls")], done]), twice)
        })
        assert.deepStrictEqual(told(report), { starts: ["tool (call c0) was started twice"] })
      }
    }))

  it.effect("everyStep finds a second attempt without a first", () =>
    Effect.gen(function*() {
      const skipping: Executor.Service = {
        execute: ((tool: Tool.Any, args: unknown, call: Tool.CallContext) =>
          Executor.direct.execute(tool, args, { ...call, attempt: 2 })) as Executor.Service["execute"]
      }
      const report = yield* everyStep(Chat.stream("go", { tools: [wait] }), {
        layer: Layer.merge(model, Executor.layer(skipping))
      })
      assert.include(
        told(report)["starts"] ?? [],
        "wait (call c0, attempt 2) was started before its previous attempt"
      )
    }))

  it.effect("everyStep finds more handlers at once than the bound", () =>
    Effect.gen(function*() {
      const run = Chat.stream("go", { tools: [wait], maxConcurrency: 2 })
      assert.deepStrictEqual((yield* everyStep(run, { layer: model, bound: 2 })).violations, [])
      assert.deepStrictEqual(told(yield* everyStep(run, { layer: model, bound: 1 })), {
        concurrency: ["\"wait (call c1)\" is number 2 to run, the bound is 1"]
      })
    }))

  it.effect("everyStep gives a tool without `concurrency` the default of the policy, and treats a throwing function as exclusive", () =>
    Effect.gen(function*() {
      const lying = {
        ...wait,
        concurrency: () => {
          throw new Error("no")
        }
      } as typeof wait
      const run = (tool: typeof wait, policy: Policy.Policy) =>
        everyStep(Chat.stream("go", { tools: [tool], policy, maxConcurrency: 1 }), {
          layer: Layer.merge(model, Broken.hasty(() => true)),
          policy
        })
      const alone = { concurrency: ["exclusive \"wait (call c1)\" starts while others run"] }
      assert.deepStrictEqual(told(yield* run(wait, Policy.standard)), {})
      assert.deepStrictEqual(told(yield* run(wait, Policy.falai)), alone)
      assert.deepStrictEqual(told(yield* run(lying, Policy.standard)), alone)
    }))

  it.effect("everyStep does not count the handlers of a nested run against the handler of their sub-agent", () =>
    Effect.gen(function*() {
      const write = Tool.make("write", { parameters: {}, concurrency: "exclusive", handler: () => Effect.sleep(10) })
      const delegate = Tool.fromChat("delegate", {
        parameters: {},
        concurrency: "exclusive",
        chat: () => Chat.stream("go", { tools: [write] })
      })
      const layer = Script.layer([
        [Script.toolCall("c0", "delegate"), Script.finish("tool_calls")],
        [Script.toolCall("c0", "write"), Script.toolCall("c1", "write"), Script.finish("tool_calls")],
        done,
        done
      ])
      const report = yield* everyStep(Chat.stream("go", { tools: [delegate], maxConcurrency: 1 }), { layer, bound: 1 })
      assert.deepStrictEqual(report.violations, [])
      assert.isAbove(report.handlers, 2 * report.points)
    }))
})

describe("everyStep: events and threads", () => {
  const events = (change: (events: ReadonlyArray<Event.Event>) => ReadonlyArray<Event.Event>) =>
    everyStep(
      Stream.unwrap(
        Effect.map(Stream.runCollect(Chat.stream("go", { tools: [wait] })), (all) => Stream.fromIterable(change(all)))
      ),
      { layer: model }
    )

  it.effect("everyStep holds the events of a run to their laws", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual((yield* events((all) => all)).violations, [])
      const untold = yield* events((all) => all.filter((event) => event._tag !== "ToolResultEncoded"))
      assert.deepStrictEqual(Object.keys(told(untold)), ["answers", "fold"])
      const doubled = yield* events((all) => [...all, ...all.slice(-1)])
      assert.deepStrictEqual(told(doubled), { frame: ["1 events come after ChatCompleted"] })
    }))

  it.effect("everyStep holds the events that pass the recorder of the attempt to their laws", () =>
    Effect.gen(function*() {
      const report = yield* everyStep(({ recorder }) =>
        Stream.runDrain(recorder.tap(Stream.filter(
          Chat.stream("go", { tools: [wait] }),
          (event) => event._tag !== "ToolResultEncoded"
        ))), { layer: model })
      assert.include(Object.keys(told(report)), "answers")
    }))

  it.effect("everyStep requires no ChatCompleted of a step", () =>
    Effect.gen(function*() {
      const report = yield* everyStep(({ cancel }) => Step.stream("go", { tools: [wait], cancel }), { layer: model })
      assert.deepStrictEqual(report.violations, [])
    }))

  const unanswered = Thread.fromMessages([
    Message.user("go"),
    Message.assistant("", [Message.toolCall("c0", "wait"), Message.toolCall("c1", "wait")]),
    Message.tool("c0", "ok")
  ])

  it.effect("everyStep checks the threads in the results of runs and steps", () =>
    Effect.gen(function*() {
      const run = Effect.map(Chat.run("go", { tools: [wait] }), (result) => ({
        ...result,
        thread: unanswered,
        steps: result.steps.map((step) => ({ ...step, thread: unanswered }))
      }))
      assert.deepStrictEqual(told(yield* everyStep(run, { layer: model })), {
        history: ["call \"c1\" is not answered"]
      })
      const step = Effect.map(Step.run("go", { tools: [wait] }), (result) => ({ ...result, thread: unanswered }))
      assert.deepStrictEqual(told(yield* everyStep(step, { layer: model })), {
        history: ["call \"c1\" is not answered"]
      })
    }))

  it.effect("everyStep passes open calls that wait for the caller", () =>
    Effect.gen(function*() {
      const manual = Tool.make("wait", { parameters: {}, manual: true })
      const approved = { ...wait, approval: () => true } as typeof wait
      for (const tools of [[wait], [manual], [approved]] as const) {
        const mode = tools[0] === wait ? "manual" : "auto"
        const run = yield* everyStep(Chat.run("go", { tools, mode }), { layer: model })
        const step = yield* everyStep(Step.run("go", { tools, mode }), { layer: model })
        assert.deepStrictEqual([...run.violations, ...step.violations], [])
      }
    }))

  it.effect("everyStep checks the threads of requests, except the messages that the caller provides", () =>
    Effect.gen(function*() {
      const send = (messages: ReadonlyArray<Message.Message>) =>
        Adapter.Adapter.use(({ stream }) => Stream.runDrain(stream({ messages, tools: [] })))
      const scripts = Script.layer([done, done])
      const own = yield* everyStep(send(unanswered.messages), { layer: scripts })
      assert.deepStrictEqual(own.violations, [])
      const sent = yield* everyStep(
        Effect.andThen(send([Message.user("go")]), send(unanswered.messages)),
        { layer: scripts }
      )
      assert.deepStrictEqual(told(sent), { history: ["call \"c1\" is not answered"] })
      const other = yield* everyStep(
        Effect.andThen(send([Message.user("other")]), send(unanswered.messages)),
        { layer: scripts }
      )
      assert.deepStrictEqual(other.violations, [])
    }))
})
