/**
 * The time that a call may take without progress: what begins it anew, what does not count, and the answer of a call
 * whose time is up. All of it in virtual time.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import {
  Budget,
  Chat,
  Encoder,
  Limits,
  Message,
  Policy,
  Session,
  Step,
  StreamingToolExecutor,
  Tool,
  ToolRunner
} from "heddle"
import { Agent } from "heddle/server"
import { check, Script } from "heddle/testing"
import { placesOf } from "../support/edges.ts"
import { contents, elapsed, idOf, watched } from "../support/runs.ts"
import { journalOf, prefixed } from "../support/survivor.ts"

const { delay, finish, text, toolCall } = Script

const calling = (...names: ReadonlyArray<string>) => names.map((name, index) => Message.toolCall(`c${index}`, name))

const says = (answer: string) => [text(answer), finish("stop")]

const asks = (...names: ReadonlyArray<string>) => [
  ...names.map((name, index) => toolCall(`n${index}`, name)),
  finish("tool_calls")
]

const failed = (name: string, detail: string) =>
  JSON.stringify({ error: `tool error (${name}): timeout: timed out after ${detail}`, code: "timeout" })

const silent = (name: string, millis = 30) => failed(name, `${millis} ms of idle time, without progress`)

/** A tool that reports progress each so many milliseconds, so many times, and is then silent for as long. */
const moving = <const Name extends string>(name: Name, every: number, times: number, options: object = {}) =>
  Tool.make(name, {
    parameters: {},
    ...options,
    handler: (_, call) =>
      Effect.sleep(every).pipe(
        Effect.andThen(Effect.suspend(() => call.progress(every))),
        Effect.repeat({ times: times - 1 }),
        Effect.andThen(Effect.sleep(every)),
        Effect.as("moved")
      )
  })

const never = (options: object = {}) => Tool.make("never", { parameters: {}, ...options, handler: () => Effect.never })

const held = (name: string, millis: number, options: object = {}) =>
  Tool.make(name, {
    parameters: {},
    timeout: "infinity",
    ...options,
    handler: () => Effect.as(Effect.sleep(millis), name)
  })

/** A tool whose handler does something, at most 30 milliseconds of it in silence. */
const doing = (handler: (call: Tool.CallContext) => Effect.Effect<unknown, any, any>, options: object = {}) =>
  Tool.make("doing", { parameters: {}, timeout: { idle: 30 }, ...options, handler: (_, call) => handler(call) })

/** The tools of a run, whose services do not matter. */
const typed = (...tools: ReadonlyArray<Tool.Any>) => tools as unknown as []

/** The content of the call and when its run ended. */
const answered = (
  tools: ReadonlyArray<Tool.Any>,
  options: ToolRunner.Options<any, any> = {},
  calls = calling(...tools.map(({ name }) => name))
) =>
  Effect.map(
    elapsed(ToolRunner.run(calls, typed(...tools), options)),
    ({ at, value }) => [at, ...contents(value).map(([, content]) => content)]
  )

describe("G79: progress keeps a call past its idle time", () => {
  it.effect("progress keeps a call alive without limit, and with a total time up to that time", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* answered([moving("slow", 20, 99, { timeout: { idle: 30 } })]), [2_000, "moved"])
      const patient = moving("slow", 25_000, 50, { timeout: { idle: "30 seconds" } })
      assert.deepStrictEqual(yield* answered([patient]), [51 * 25_000, "moved"])
      const bounded = moving("slow", 20, 99, { timeout: { idle: 30, total: 110 } })
      assert.deepStrictEqual(yield* answered([bounded]), [110, failed("slow", "110 ms in total")])
      assert.deepStrictEqual(yield* answered([never({ timeout: { idle: 30, total: 110 } })]), [30, silent("never")])
      const total = moving("slow", 20, 99, { timeout: { total: 110 } })
      assert.deepStrictEqual(yield* answered([total]), [110, failed("slow", "110 ms")])
      const endless = never({ timeout: { idle: "infinity", total: 50 } })
      assert.deepStrictEqual(yield* answered([endless]), [50, failed("never", "50 ms")])
    }))

  it.effect("progress counts up to the last moment, and a call ends one idle time after its last progress", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* answered([moving("slow", 29, 3, { timeout: { idle: 30 } })]), [116, "moved"])
      assert.deepStrictEqual(yield* answered([moving("slow", 31, 3, { timeout: { idle: 30 } })]), [30, silent("slow")])
      const stops = doing((call) =>
        Effect.sleep(10).pipe(
          Effect.andThen(call.progress(1)),
          Effect.andThen(Effect.sleep(7)),
          Effect.andThen(call.progress(2)),
          Effect.andThen(Effect.never)
        )
      )
      assert.deepStrictEqual(yield* answered([stops]), [47, silent("doing")])
    }))

  it.effect("a further attempt is no progress, and a stopping handler's progress keeps no call alive", () =>
    Effect.gen(function*() {
      const again = doing(() => Effect.andThen(Effect.sleep(20), Effect.fail("busy")), { retry: Schedule.recurs(5) })
      assert.deepStrictEqual(yield* answered([again]), [30, silent("doing")])
      const deaf = doing((call) =>
        Effect.uninterruptible(Effect.repeat(Effect.andThen(Effect.sleep(31), call.progress(1)), { times: 9 }))
      )
      const [at, content] = yield* answered([deaf], { grace: 100 })
      assert.strictEqual(at, 130)
      assert.include(content, "timed out after 30 ms of idle time, without progress; it has not stopped")
    }))

  it.effect("unread progress counts, and costs one timer for each idle time", () =>
    Effect.gen(function*() {
      const clock = yield* Clock.Clock
      const sleeps: Array<number> = []
      const counting: Clock.Clock = Object.assign(Object.create(clock) as Clock.Clock, {
        sleep: (duration: Parameters<Clock.Clock["sleep"]>[0]) => {
          sleeps.push(Duration.toMillis(duration))
          return clock.sleep(duration)
        }
      })
      const busy = doing((call) =>
        // In one step: virtual time passes between the steps of a handler.
        Effect.sync(() => {
          for (let count = 0; count < 10_000; count++) Effect.runSync(call.progress(count))
        }).pipe(
          Effect.andThen(Effect.sleep(20)),
          Effect.repeat({ times: 4 })
        )
      )
      const running = ToolRunner.run(calling("doing"), typed(busy))
      const { at } = yield* elapsed(Effect.provideService(running, Clock.Clock, counting))
      assert.strictEqual(at, 100)
      // The handler sleeps five times, and a repetition for no time.
      assert.strictEqual(sleeps.filter((millis) => millis > 0).length - 5, 5)
    }))

  for (
    const [what, run] of Object.entries<(call: Tool.CallContext) => Effect.Effect<unknown, any, any>>({
      "the deltas of a run": () =>
        Effect.provide(
          Chat.run("go", { emitTextDeltas: false }),
          Script.layer([[...Array.from({ length: 5 }, (_, at) => [delay(20), text(`${at}`)]).flat(), finish("stop")]])
        ),
      "the turns of a run": () =>
        Effect.provide(
          Chat.run("go", { tools: [held("leaf", 20)] }),
          Script.layer([asks("leaf"), asks("leaf"), asks("leaf"), says("done")])
        ),
      "a step": () =>
        Effect.provide(Step.run("go"), Script.layer([[delay(20), text("a"), delay(20), text("b"), finish("stop")]])),
      "calls without a model": () =>
        ToolRunner.run(calling("a", "b", "c"), typed(held("a", 20), held("b", 20), held("c", 20)), {
          maxConcurrency: 1
        }),
      "an executor": () =>
        Effect.scoped(Effect.gen(function*() {
          const executor = yield* StreamingToolExecutor.make({ maxParallel: 1 })
          for (const name of ["a", "b"]) yield* executor.addTool(Message.toolCall(name, name), held(name, 20))
          yield* executor.noMoreCalls
          return yield* Stream.runCollect(executor.remainingResults)
        })),
      "the end of a call beside a silent one": () =>
        ToolRunner.run(calling("a", "b"), typed(held("a", 20), held("b", 45))),
      "a call that waits for its turn": () =>
        Effect.scoped(Effect.gen(function*() {
          const executor = yield* StreamingToolExecutor.make({ maxParallel: 1, policy: Policy.standard })
          yield* executor.addTool(Message.toolCall("a", "a"), held("a", 45))
          yield* Effect.sleep(20)
          yield* executor.addTool(Message.toolCall("b", "b"), held("b", 1))
          yield* executor.noMoreCalls
          return yield* Stream.runCollect(executor.remainingResults)
        })),
      "progress of a call in a run": () => ToolRunner.run(calling("in"), typed(moving("in", 20, 4))),
      "grouped events of a call in a run": () =>
        ToolRunner.run(calling("in"), typed(moving("in", 20, 4)), {
          policy: { ...Policy.standard, toolEvents: "grouped" }
        }),
      "a run two levels below, whose events are no one's progress": () =>
        ToolRunner.run(
          calling("doing"),
          typed(
            doing(() => ToolRunner.run(calling("in"), typed(moving("in", 20, 4))), { timeout: "infinity" })
          )
        ),
      "a run two levels below a handler with an idle time of its own": () =>
        ToolRunner.run(calling("doing"), typed(doing(() => ToolRunner.run(calling("in"), typed(moving("in", 20, 4)))))),
      "a session": () =>
        Effect.provide(
          Session.reply(Session.make(), "go", { tools: [held("leaf", 20)] }),
          Script.layer([asks("leaf"), asks("leaf"), says("done")])
        )
    })
  ) {
    it.effect(`events of a nested run are progress (${what})`, () =>
      Effect.gen(function*() {
        const { at, value } = yield* elapsed(ToolRunner.run(calling("doing"), typed(doing(run))))
        assert.isUndefined(value.messages[0]?.isError, String(value.messages[0]?.content))
        assert.isAtLeast(at, 40)
        const hangs = doing((call) => Effect.andThen(run(call), Effect.never))
        assert.deepStrictEqual((yield* answered([hangs]))[0], at + 30)
      }))
  }

  it.effect("a streaming sub-agent or agent tool stays alive, and a hanging one times out at its idle time", () =>
    Effect.gen(function*() {
      const model = Script.layer([[delay(20), text("a"), delay(20), text("b"), finish("stop")]])
      const chat = () => Stream.provide(Chat.stream("go"), model)
      const agent = Tool.fromChat("agent", { parameters: {}, chat, timeout: { idle: 30 } })
      assert.deepStrictEqual(yield* answered([agent]), [40, "ab"])
      const hanging = () => Stream.provide(Chat.stream("go"), Script.layer([[text("a"), delay(500), finish("stop")]]))
      const hung = Tool.fromChat("agent", { parameters: {}, chat: hanging, timeout: { idle: 30 } })
      assert.deepStrictEqual(yield* answered([hung]), [30, silent("agent")])
      const search = Agent.toTool(Agent.make({ name: "search", description: "Searches", run: () => ({}) }))
      const limited = { ...search, timeout: { idle: Duration.millis(30) } }
      const calls = [Message.toolCall("c0", "search", { task: "x" })]
      const searched = (script: Script.Input) => Effect.provide(answered([limited], {}, calls), Script.layer(script))
      assert.deepStrictEqual(yield* searched([[delay(20), text("a"), delay(20), ...says("b")]]), [40, "ab"])
      assert.deepStrictEqual(yield* searched([[text("a"), delay(500), ...says("b")]]), [30, silent("search")])
      // A sub-agent has no timeout of its own, whatever the run says.
      const patient = Tool.fromChat("agent", { parameters: {}, chat: hanging })
      assert.deepStrictEqual(yield* answered([patient], { toolTimeout: { idle: 30, total: 60 } }), [500, "a"])
    }))
})

describe("G80: a call without progress ends at its idle time", () => {
  it.effect("a call without progress ends at its idle time, and the calls beside it continue", () =>
    Effect.gen(function*() {
      const tools = [never(), moving("slow", 20, 4), held("quick", 10)]
      const calls = calling("never", "slow", "quick", "never")
      const { at, events, line } = yield* watched(
        ToolRunner.stream(calls, typed(...tools), { toolTimeout: { idle: 30 } })
      )
      const completed = line.flatMap(([at, tag, id]) => tag === "ToolExecutionCompleted" ? [[at, id]] : [])
      assert.deepStrictEqual(completed, [[10, "c2"], [30, "c0"], [30, "c3"], [100, "c1"]])
      assert.strictEqual(at, 100)
      const ends = events.flatMap((event) => event._tag === "ToolResultEncoded" ? [[idOf(event), event.content]] : [])
      assert.deepStrictEqual(Object.fromEntries(ends), {
        c0: silent("never"),
        c1: "moved",
        c2: "quick",
        c3: silent("never")
      })
      assert.deepStrictEqual(check(events).filter(({ law }) => law !== "frame"), [])
    }))

  it.effect("the idle time of tool, run or application applies, a plain duration is a total time, and 30 seconds the default", () =>
    Effect.gen(function*() {
      const toolTimeout = { idle: 30 } as const
      const model = Script.layer([asks("never"), says("done")])
      const tools = typed(never())
      const at = <E, R>(run: Effect.Effect<unknown, E, R>) =>
        Effect.map(elapsed(Effect.provide(run, [model, Session.Store.layerMemory])), ({ at }) => at)
      const ran = (options: ToolRunner.Options = {}) => ToolRunner.run(calling("never"), tools, options)
      assert.strictEqual(yield* at(ran({ toolTimeout })), 30)
      assert.strictEqual(yield* at(ToolRunner.run(calling("never"), typed(never({ timeout: toolTimeout })))), 30)
      assert.strictEqual(yield* at(Chat.run("go", { tools, toolTimeout })), 30)
      assert.strictEqual(yield* at(Step.run("go", { tools, toolTimeout })), 30)
      assert.strictEqual(yield* at(Session.reply(Session.make(), "go", { tools, toolTimeout })), 30)
      const kept = Effect.flatMap(
        Session.open("s"),
        (opened) => Session.keep(opened, (session) => Session.reply(session, "go", { tools, toolTimeout }))
      )
      assert.strictEqual(yield* at(kept), 30)
      const executed = Effect.scoped(Effect.gen(function*() {
        const executor = yield* StreamingToolExecutor.make({ toolTimeout })
        yield* executor.addTool(Message.toolCall("a", "never"), never())
        yield* executor.noMoreCalls
        yield* Stream.runDrain(executor.remainingResults)
      }))
      assert.strictEqual(yield* at(executed), 30)
      assert.strictEqual(yield* at(Effect.provide(ran(), Policy.layer({ toolTimeout }))), 30)
      assert.strictEqual(yield* at(Effect.provide(ran(), Layer.succeed(Policy.Defaults, { toolTimeout }))), 30)
      assert.strictEqual(yield* at(Effect.provide(ran({ toolTimeout: 70 }), Policy.layer({ toolTimeout }))), 70)
      assert.strictEqual(yield* at(Effect.provide(ran({ toolTimeout }), Policy.layer({ toolTimeout: 10 }))), 30)
      assert.strictEqual(yield* at(ran()), 30_000)
    }))

  it.effect("a stop or a deadline during the idle time cancels a call once", () =>
    Effect.gen(function*() {
      const stops = { cancel: Effect.sleep(20), toolTimeout: { idle: 30 } }
      const { events, line } = yield* watched(ToolRunner.stream(calling("never"), typed(never()), stops))
      assert.deepStrictEqual(line.filter(([, tag]) => tag === "ToolExecutionCompleted"), [
        [20, "ToolExecutionCompleted", "c0"]
      ])
      assert.deepInclude(events.find(({ _tag }) => _tag === "ToolResultEncoded"), { code: "cancelled" })
      const until = { deadline: { after: 20, reserve: 0 }, toolTimeout: { idle: 30 } }
      const [at, content] = yield* answered([never()], until)
      assert.strictEqual(at, 20)
      assert.include(content, "cancelled")
      // The idle time is up first: the stop finds an answer.
      const late = { cancel: Effect.sleep(40), toolTimeout: { idle: 30 } }
      assert.deepStrictEqual(yield* answered([never()], late), [30, silent("never")])
    }))

  it.effect("onToolError decides about an idle call, and its error names the passed limit", () =>
    Effect.gen(function*() {
      const asked: Array<unknown> = []
      const onToolError = (_: Message.ToolCall, error: unknown) =>
        Effect.sync(() => {
          asked.push(error)
          return Tool.ErrorDecision.continue("silent")
        })
      assert.deepStrictEqual(yield* answered([never()], { onToolError, toolTimeout: { idle: 30 } }), [30, "silent"])
      assert.deepInclude(asked[0], {
        reason: "timeout",
        detail: "timed out after 30 ms of idle time, without progress"
      })
    }))

  it.effect("a gate, a decoder or an encoder without progress has the shorter of both limits", () =>
    Effect.gen(function*() {
      const guarded = doing(() => Effect.void, { timeout: "infinity", authorize: () => Effect.never })
      const [at, content] = yield* answered([guarded], { toolTimeout: { idle: 30 } })
      assert.deepStrictEqual([at, String(content).includes("not allowed within 30 ms")], [30, true])
      const fields = Schema.Struct({ n: Schema.Finite })
      const decoding: Tool.Any = {
        ...never({ parameters: fields }),
        parameters: { jsonSchema: { type: "object" }, decode: () => Effect.never }
      } as never
      assert.include(
        (yield* answered([decoding], { toolTimeout: { idle: 30, total: 50 } }))[1],
        "timed out after 30 ms"
      )
      assert.include(
        (yield* answered([decoding], { toolTimeout: { idle: 50, total: 30 } }))[1],
        "timed out after 30 ms"
      )
      const encoder = Layer.succeed(Encoder.Encoder, { encode: () => Effect.never })
      const written = Effect.provide(answered([held("quick", 1, { timeout: { idle: 30 } })]), encoder)
      assert.strictEqual((yield* written)[0], 31)
    }))

  it.effect("a handler that blocks the thread past its idle time times out, and progress afterwards rescues the call", () =>
    Effect.gen(function*() {
      const clock = yield* Clock.Clock
      let blocked = 0n
      const jumping: Clock.Clock = Object.assign(Object.create(clock) as Clock.Clock, {
        monotonicTimeNanosUnsafe: () => clock.monotonicTimeNanosUnsafe() + blocked
      })
      const blocks = (millis: number, last: (call: Tool.CallContext) => Effect.Effect<unknown>) =>
        doing((call) => Effect.andThen(Effect.sync(() => void (blocked += BigInt(millis) * 1_000_000n)), last(call)))
      const ran = (tool: Tool.Any) => Effect.provideService(answered([tool]), Clock.Clock, jumping)
      assert.deepStrictEqual(yield* ran(blocks(31, () => Effect.succeed("late"))), [0, silent("doing")])
      assert.deepStrictEqual(yield* ran(blocks(29, () => Effect.succeed("in time"))), [0, "in time"])
      // Progress behind it shows that the call moves.
      const moves = blocks(31, (call) => Effect.as(call.progress(1), "moved"))
      assert.deepStrictEqual(yield* ran(moves), [0, "moved"])
    }))
})

describe("G79: the time that a nested run only waits for permits", () => {
  const one = Limits.layer({ permits: 1 })
  const account = { limits: [{ key: "account", permits: 1 }] }

  it.effect("waiting for a permit of another call does not count as idle, also two levels below", () =>
    Effect.gen(function*() {
      // While the agent's run is alive the other call has the only permit.
      const inner = (depth: number): Effect.Effect<unknown, any, any> =>
        depth === 0
          ? ToolRunner.run(calling("leaf"), typed(held("leaf", 10)))
          : ToolRunner.run(calling("doing"), typed(doing(() => inner(depth - 1))))
      for (const depth of [0, 1]) {
        const tools = [doing(() => inner(depth)), held("busy", 500)]
        assert.deepStrictEqual((yield* Effect.provide(answered(tools), one)).slice(0, 1), [510])
      }
      const { value } = yield* elapsed(
        Effect.provide(ToolRunner.run(calling("doing", "busy"), typed(doing(() => inner(1)), held("busy", 500))), one)
      )
      assert.deepStrictEqual(value.messages.map(({ isError }) => isError), [undefined, undefined])
    }))

  it.effect("waiting for a key of another run does not count as idle, and the idle time begins anew afterwards", () =>
    Effect.gen(function*() {
      const other = ToolRunner.run(calling("busy"), typed(held("busy", 500, account)))
      const ran = (leaf: number, timeout: Tool.TimeoutInput = { idle: 30 }) =>
        Effect.gen(function*() {
          yield* Effect.forkChild(other, { startImmediately: true })
          const inside = () => ToolRunner.run(calling("leaf"), typed(held("leaf", leaf, account)))
          return yield* answered([doing(inside, { timeout })])
        })
      const [at, content] = yield* ran(29)
      assert.deepStrictEqual([at, String(content).includes("timeout")], [529, false])
      assert.deepStrictEqual(yield* ran(31), [530, silent("doing")])
      // The total time counts on.
      assert.deepStrictEqual(yield* ran(29, { idle: 30, total: 100 }), [100, failed("doing", "100 ms in total")])
    }))

  it.effect("waiting for the permit that a handler lent to its own run does not count as idle", () =>
    Effect.gen(function*() {
      const inside = () => ToolRunner.run(calling("leaf"), typed(held("leaf", 10)))
      // The other call gets the permit before the run inside does, or behind it.
      const tools = [doing(inside), held("busy", 500), held("also", 500)]
      const [at, content] = yield* Effect.provide(answered(tools), one)
      assert.isAtLeast(Number(at), 1_000)
      assert.notInclude(String(content), "timeout")
    }))

  it.effect("waiting for a permit counts as idle where another call of the handler's runs is at work", () =>
    Effect.gen(function*() {
      const busy = ToolRunner.run(calling("busy"), typed(held("busy", 500, account)))
      const ran = (inside: () => Effect.Effect<unknown, any, any>) =>
        Effect.gen(function*() {
          yield* Effect.forkChild(busy, { startImmediately: true })
          return yield* answered([doing(inside)])
        })
      const waits = () => ToolRunner.run(calling("leaf"), typed(held("leaf", 1, account)))
      const hangs = () => ToolRunner.run(calling("never"), typed(never({ timeout: "infinity" })))
      assert.deepStrictEqual(yield* ran(() => Effect.all([waits(), hangs()], { concurrency: 2 })), [
        30,
        silent("doing")
      ])
      const both = () =>
        ToolRunner.run(calling("leaf", "never"), typed(held("leaf", 1, account), never({ timeout: "infinity" })))
      assert.deepStrictEqual(yield* ran(both), [30, silent("doing")])
      const early = () =>
        Effect.provide(
          Chat.run("go", { tools: [held("leaf", 1, { ...account, readOnly: true })] }),
          Script.layer([[toolCall("n0", "leaf"), delay(400), finish("tool_calls")], says("done")])
        )
      assert.deepStrictEqual(yield* ran(early), [30, silent("doing")])
      // A fork of the handler is its own code: of that nothing is known, and the wait of its run counts for it.
      const [at] = yield* ran(() => Effect.all([waits(), Effect.sleep(200)], { concurrency: 2 }))
      assert.strictEqual(at, 501)
    }))

  it.effect("waiting for a permit does not count as idle in a nested run whose cancel is an effect", () =>
    Effect.gen(function*() {
      yield* Effect.forkChild(ToolRunner.run(calling("busy"), typed(held("busy", 500, account))), {
        startImmediately: true
      })
      const inside = () => ToolRunner.run(calling("leaf"), typed(held("leaf", 1, account)), { cancel: Effect.never })
      assert.strictEqual((yield* answered([doing(inside)]))[0], 501)
    }))

  it.effect("stopping a call that waits in a nested run is progress", () =>
    Effect.gen(function*() {
      yield* Effect.forkChild(ToolRunner.run(calling("busy"), typed(held("busy", 500, account))), {
        startImmediately: true
      })
      const inside = () =>
        Effect.andThen(
          ToolRunner.run(calling("leaf"), typed(held("leaf", 1, account)), { cancel: Effect.sleep(200) }),
          Effect.never
        )
      assert.deepStrictEqual(yield* answered([doing(inside)]), [230, silent("doing")])
    }))
})

describe("G80: a call begun by an earlier process or run", () => {
  const model = Script.layer([[toolCall("c0", "work"), finish("tool_calls")], says("done")])
  const work = (options: object, handler: (call: Tool.CallContext) => Effect.Effect<unknown>) =>
    Tool.make("work", { parameters: {}, timeout: { idle: 30 }, ...options, handler: (_, call) => handler(call) })
  const moves = (call: Tool.CallContext) =>
    Effect.as(Effect.repeat(Effect.andThen(Effect.sleep(20), call.progress(1)), { times: 3 }), "moved")

  const answerOf = (session: Session.Session) =>
    String(session.thread.messages.find(({ toolCallId }) => toolCallId !== undefined)?.content)

  it.effect("an approved call has the idle time of its tool", () =>
    Effect.gen(function*() {
      for (const [handler, expected, at] of [[() => Effect.never, silent("work"), 30], [moves, "moved", 80]] as const) {
        const tools = typed(work({ approval: true }, handler))
        const run = Effect.gen(function*() {
          const waiting = yield* Session.reply(Session.make(), "go", { tools })
          const approved = yield* Session.approve(waiting.session, "c0")
          return yield* Session.continue(approved, null, { tools })
        })
        const ended = yield* elapsed(Effect.provide(run, model))
        assert.deepStrictEqual([answerOf(ended.value.session), ended.at], [expected, at])
      }
    }))

  it.effect("a call retried after a kill at any record has the idle time of its tool", () =>
    Effect.gen(function*() {
      const records = yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const tools = typed(work({ afterCrash: "retry" }, () => Effect.succeed("quick")))
        yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools }))
        return yield* journalOf("s")
      }).pipe(Effect.provide([model, Session.Store.layerMemory]))
      const ended = records.findIndex(({ _tag }) => _tag === "CallEnded")
      const replied = records.findIndex(({ _tag }) => _tag === "ReplyReceived")
      assert.isAbove(ended, replied)
      const silentTool = typed(work({ afterCrash: "retry" }, () => Effect.never))
      for (const length of placesOf(replied + 1, ended)) {
        const run = Effect.gen(function*() {
          const cut = Option.getOrThrow(Option.fromUndefinedOr(yield* Session.load("s")))
          return yield* Session.resume(cut, { takeOver: true, tools: silentTool })
        }).pipe(Effect.provide([Script.layer([says("done")]), prefixed("s", records.slice(0, length))]))
        const resumed = yield* elapsed(run)
        assert.deepStrictEqual([answerOf(resumed.value.session), resumed.at], [silent("work"), 30], `cut at ${length}`)
      }
    }))

  it.effect("a kept sub-agent has the idle time of its tool", () =>
    Effect.gen(function*() {
      const chat = (millis: number) => () =>
        Stream.provide(
          Chat.stream("child", { tools: typed(held("leaf", millis)) }),
          Script.layer([asks("leaf"), asks("leaf"), says("found")])
        )
      for (const [millis, expected] of [[20, "found"], [31, silent("work")]] as const) {
        const tools = typed(Tool.fromChat("work", { parameters: {}, timeout: { idle: 30 }, chat: chat(millis) }))
        const run = Effect.flatMap(
          Session.open("s"),
          (opened) => Session.keep(opened, (session) => Session.reply(session, "go", { tools }))
        )
        const { value } = yield* elapsed(Effect.provide(run, [model, Session.Store.layerMemory]))
        assert.strictEqual(answerOf(value.session), expected)
      }
    }))
})

describe("G79: an unusable limit", () => {
  const wrong: ReadonlyArray<readonly [limits: unknown, message: RegExp]> = [
    [
      {},
      /(timeout|toolTimeout) must be a duration above zero .* or \{ total, idle \} with one or both of them; got: an object/i
    ],
    [{ idle: undefined, total: undefined }, /(timeout|toolTimeout) must be a duration above zero/i],
    [{ idle: -1 }, /(timeout|toolTimeout)\.idle must be a duration above zero .*; got: -1/i],
    [{ idle: 0 }, /(timeout|toolTimeout)\.idle must be a duration above zero .*; got: 0/i],
    [{ idle: 30, total: "soon" }, /(timeout|toolTimeout)\.total must be a duration above zero .*; got: "soon"/i],
    [{ idle: null }, /(timeout|toolTimeout)\.idle must be a duration above zero .*; got: null/i],
    [{ idel: 30 }, /has no option "idel"; its options are total, idle/],
    [{ idle: 30, seconds: 5 }, /has no option "seconds"; its options are total, idle/],
    [{ seconds: -5 }, /(timeout|toolTimeout) must be a duration above zero/i]
  ]

  it.effect("an unusable limit of a tool, a run or an application is refused by its name", () =>
    Effect.gen(function*() {
      for (const [limits, message] of wrong) {
        const bad = limits as never
        assert.throws(() => Tool.make("t", { parameters: {}, timeout: bad }), message)
        assert.throws(() => Policy.layer({ toolTimeout: bad }), message)
        for (
          const run of [
            ToolRunner.run([], [], { toolTimeout: bad }),
            Effect.provide(ToolRunner.run([], []), Layer.succeed(Policy.Defaults, { toolTimeout: bad })),
            Effect.provide(Chat.run("go", { toolTimeout: bad }), Script.layer([says("done")])),
            Effect.scoped(Effect.suspend(() => StreamingToolExecutor.make({ toolTimeout: bad })))
          ]
        ) {
          const error = yield* Effect.flip(
            Effect.catchDefect(run as Effect.Effect<unknown>, (defect) => Effect.fail(defect))
          )
          assert.match(String((error as Error).message), message)
        }
      }
    }))
})

describe("G97: a wait for a budget", () => {
  const agentOf = (name: string, millis: number, timeout: object) =>
    Tool.fromChat(name, {
      parameters: {},
      ...timeout,
      chat: () =>
        Stream.provide(
          Chat.stream("Go"),
          Script.layer([[delay(millis), Script.usage({ inputTokens: 1, outputTokens: 1 }), ...says(name)]])
        )
    })
  const run = (idle: number, own: number, total?: number) =>
    ToolRunner.run(
      calling("first", "second"),
      [
        agentOf("first", 100, { timeout: "infinity" }),
        agentOf("second", own, { timeout: total === undefined ? { idle } : { idle, total } })
      ]
    )
  // One request at a time has its reserve.
  const budget = Budget.make({ outputTokens: 100 }, { outputReserve: 60 })

  it.effect("a sub-agent waiting for budget reserved by another run is not idle, and can be idle afterwards", () =>
    Effect.gen(function*() {
      for (const [idle, own, answer] of [[30, 20, "second"], [30, 40, silent("second")]] as const) {
        const { at, value } = yield* elapsed(Effect.provide(run(idle, own), Limits.layer({ budget })))
        assert.deepStrictEqual(contents(value).map(([, content]) => content), ["first", answer])
        assert.strictEqual(at, 100 + Math.min(idle, own), "it asks when the first reply is settled")
      }
    }))

  it.effect("the total time passes during a wait for a budget", () =>
    Effect.gen(function*() {
      const { at, value } = yield* elapsed(Effect.provide(run(30, 20, 50), Limits.layer({ budget })))
      assert.strictEqual(contents(value)[1]?.[1], failed("second", "50 ms in total"))
      assert.strictEqual(at, 100)
    }))

  it.effect("a wait in a custom budget does not count as idle", () =>
    Effect.gen(function*() {
      const slow = Budget.from({ reserve: () => Effect.as(Effect.sleep(80), true), settle: () => Effect.void })
      const { value } = yield* elapsed(
        ToolRunner.run(calling("second"), [agentOf("second", 20, { timeout: { idle: 30 } })]).pipe(
          Effect.provide(Limits.layer({ budget: slow }))
        )
      )
      assert.strictEqual(contents(value)[0]?.[1], "second")
    }))
})
