/**
 * Every stop is over within the grace period, whatever is slow: the caller's hooks, the adapter, the effect that cancels.
 * What has to be left behind is named.
 */
import { assert, describe, it } from "@effect/vitest"
import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, type Event, Message, Step, Tool } from "heddle"
import { Script } from "heddle/testing"

const grace = 100
const stopAt = 10

/** How something takes its time. */
const slow: { readonly [how: string]: Effect.Effect<never> } = {
  "never ends": Effect.never,
  "refuses interruption": Effect.uninterruptible(Effect.never)
}

const echo = Tool.make("echo", { parameters: {}, handler: () => Effect.void })
const started: Event.AdapterEvent = { _tag: "MessageStarted", message: Message.assistant("") }
const calling = [Script.toolCall("c0", "echo"), Script.finish("tool_calls")]

const adapter = (stream: Adapter.Adapter["Service"]["stream"]) => Layer.succeed(Adapter.Adapter, { stream })

interface Slow {
  readonly kind: Event.Abandoned["kind"]
  readonly name: string
  readonly options?: Chat.Options<readonly [typeof echo]>
  readonly model?: Layer.Layer<Adapter.Adapter>
}

/** A run in which one thing takes its time when it is stopped. */
const cases: { readonly [what: string]: (wait: Effect.Effect<never>) => Slow } = {
  "onEvent at the first event": (wait) => ({
    kind: "hook",
    name: "onEvent",
    options: { onEvent: (event) => event._tag === "MessageStarted" ? wait : undefined }
  }),
  "onEvent at the end of a step": (wait) => ({
    kind: "hook",
    name: "onEvent",
    options: { onEvent: (event) => event._tag === "StepCompleted" ? wait : Effect.void }
  }),
  "haltWhen": (wait) => ({ kind: "hook", name: "haltWhen", options: { haltWhen: () => wait } }),
  "an opening adapter": (wait) => ({
    kind: "adapter",
    name: "stream",
    model: adapter(() => Stream.unwrap(wait))
  }),
  "a read adapter": (wait) => ({
    kind: "adapter",
    name: "stream",
    model: adapter(() => Stream.concat(Stream.make(started), Stream.fromEffect(wait)))
  })
}

interface Stopped {
  readonly at: number
  readonly exit: Exit.Exit<Event.ChatResult, unknown> | undefined
  readonly abandoned: ReadonlyArray<Event.Abandoned>
}

/** What a run comes to that is stopped at 10 ms, and when; what it names in its result or in the log. */
const stopped = (
  run: (
    stop: { readonly cancel?: Effect.Effect<void>; readonly deadline?: number }
  ) => Effect.Effect<Event.ChatResult, unknown>,
  how: "cancel" | "deadline" | "interrupt"
): Effect.Effect<Stopped> => {
  const logged: Array<Event.Abandoned> = []
  const logger = Logger.make(({ message }) => {
    if (Array.isArray(message)) logged.push(...message.slice(1).flat() as Array<Event.Abandoned>)
  })
  return Effect.gen(function*() {
    let ended: { readonly at: number; readonly exit: Exit.Exit<Event.ChatResult, unknown> } | undefined
    const stop = how === "cancel"
      ? { cancel: Effect.sleep(stopAt) }
      : how === "deadline"
      ? { deadline: stopAt }
      : {}
    const fiber = yield* Effect.forkDetach(
      Effect.flatMap(Effect.exit(run(stop)), (exit) =>
        Effect.map(Clock.currentTimeMillis, (at) => {
          ended = { at, exit }
        })),
      { startImmediately: true }
    )
    fiber.addObserver(() => {})
    yield* TestClock.adjust(stopAt)
    if (how === "interrupt") fiber.interruptUnsafe()
    yield* TestClock.adjust(grace)
    const exit = fiber.pollUnsafe()
    const result = ended?.exit
    const named = result !== undefined && Exit.isSuccess(result) ? result.value.abandoned ?? [] : logged
    return { at: exit === undefined ? Infinity : (yield* Clock.currentTimeMillis), exit: result, abandoned: named }
  }).pipe(Effect.provideService(Logger.CurrentLoggers, new Set([logger])))
}

describe("a stop within the grace period", () => {
  for (const [what, make] of Object.entries(cases)) {
    for (const [pace, wait] of Object.entries(slow)) {
      for (const how of ["cancel", "deadline", "interrupt"] as const) {
        it.effect(`M-03: a run stopped by ${how} ends within the grace period while ${what} ${pace}`, () =>
          Effect.gen(function*() {
            const { kind, model = Script.layer([calling, [Script.finish("stop")]]), name, options } = make(wait)
            const { abandoned, at, exit } = yield* stopped(
              (stop) => Effect.provide(Chat.run("go", { tools: [echo], grace, ...options, ...stop }), model),
              how
            )
            assert.isAtMost(at, stopAt + grace)
            if (how !== "interrupt") {
              assert.isTrue(exit !== undefined && Exit.isSuccess(exit), String(exit))
              if (exit === undefined || !Exit.isSuccess(exit)) return
              assert.deepInclude(exit.value.outcome, { _tag: "Cancelled", reason: how })
            }
            const expected = pace === "refuses interruption" ? [{ kind, name }] : []
            assert.deepStrictEqual(abandoned.map(({ kind, name }) => ({ kind, name })), expected)
          }))
      }
    }
  }

  it.effect("M-03: a stopped run ends and names the adapter although the adapter's finalizer never ends", () =>
    Effect.gen(function*() {
      for (const how of ["cancel", "deadline", "interrupt"] as const) {
        const stream = () =>
          Stream.unwrap(Effect.as(
            Effect.acquireRelease(Effect.void, () => Effect.never),
            Stream.concat(Stream.make(started), Stream.never)
          ))
        const { abandoned, at } = yield* stopped(
          (stop) => Effect.provide(Chat.run("go", { grace, ...stop }), adapter(stream)),
          how
        )
        assert.isBelow(at, Infinity, how)
        assert.deepStrictEqual(abandoned.map(({ kind, name }) => ({ kind, name })), [{
          kind: "adapter",
          name: "close"
        }])
      }
    }))

  it.effect("M-03: a cancel effect that refuses interruption does not hold up a finished run", () =>
    Effect.gen(function*() {
      const model = Script.layer([[Script.text("hi"), Script.finish("stop")]])
      const cancel = Effect.uninterruptible(Effect.never)
      const fiber = yield* Effect.forkChild(Effect.provide(Chat.run("go", { cancel, grace }), model), {
        startImmediately: true
      })
      yield* TestClock.adjust(grace)
      const result = yield* Fiber.join(fiber)
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.deepStrictEqual(result.abandoned?.map(({ kind, name }) => [kind, name]), [["cancel", "cancel"]])
      const step = yield* Effect.forkChild(Effect.provide(Step.run("go", { cancel, grace }), model), {
        startImmediately: true
      })
      yield* TestClock.adjust(grace)
      assert.isTrue((yield* Fiber.join(step)).done)
    }))

  it.effect("M-03: a nested run keeps the bounds of its outer run", () =>
    Effect.gen(function*() {
      const inner = Tool.fromChat("inner", {
        parameters: {},
        chat: () =>
          Chat.stream("go", { grace: "1 hour", onEvent: () => Effect.uninterruptible(Effect.never) }).pipe(
            Stream.provide(Script.layer([[Script.text("hi"), Script.finish("stop")]]))
          )
      })
      for (const how of ["cancel", "deadline", "interrupt"] as const) {
        const model = Script.layer([[Script.toolCall("c0", "inner"), Script.finish("tool_calls")]])
        const { at } = yield* stopped(
          (stop) => Effect.provide(Chat.run("go", { tools: [inner], grace, ...stop }), model),
          how
        )
        assert.isBelow(at, Infinity, how)
      }
    }))

  for (const [pace, wait] of Object.entries(slow)) {
    it.effect(`M-03: an observer that begins after the stop and ${pace} gets the rest of the grace period`, () =>
      Effect.gen(function*() {
        const model = Script.layer([[Script.text("hi"), Script.delay("1 hour"), Script.finish("stop")]])
        let beganAt = 0
        const observing = Effect.andThen(Effect.map(Clock.currentTimeMillis, (at) => void (beganAt = at)), wait)
        const onEvent = (event: Event.Event) => event._tag === "StepCompleted" ? observing : undefined
        for (const how of ["cancel", "deadline"] as const) {
          const { abandoned, at } = yield* stopped(
            (stop) => Effect.provide(Chat.run("go", { grace, onEvent, ...stop }), model),
            how
          )
          assert.isAtLeast(beganAt, stopAt, how)
          assert.strictEqual(at, stopAt + grace, how)
          const isDeaf = wait !== slow["never ends"]
          assert.deepStrictEqual(abandoned.map(({ name }) => name), isDeaf ? ["onEvent"] : [], how)
          yield* TestClock.setTime(0)
        }
      }))
  }

  it.effect("M-03: a slow observer sees every event of a cancelled run", () =>
    Effect.gen(function*() {
      const seen: Array<string> = []
      const onEvent = (event: Event.Event) => Effect.andThen(Effect.sleep(5), Effect.sync(() => seen.push(event._tag)))
      const model = Script.layer([[Script.text("hi"), Script.delay("1 hour"), Script.finish("stop")]])
      const events: Array<string> = []
      const run = Chat.stream("go", {
        cancel: Effect.sleep(12),
        grace,
        onEvent: (event) => Effect.asVoid(onEvent(event))
      })
      const fiber = yield* Effect.forkChild(
        Stream.runForEach(run, (event) => Effect.sync(() => void events.push(event._tag))).pipe(Effect.provide(model)),
        { startImmediately: true }
      )
      yield* TestClock.adjust(grace)
      yield* Fiber.join(fiber)
      assert.deepStrictEqual(seen, events)
      assert.deepStrictEqual(events.slice(-2), ["StepCompleted", "ChatCompleted"])
    }))

  it.effect("M-03: all hooks of a run share one fiber, and the children they fork end with the run", () =>
    Effect.gen(function*() {
      const fibers = new Set<number>()
      let children = 0
      const onEvent = () =>
        Effect.gen(function*() {
          fibers.add((yield* Effect.withFiber((fiber) => Effect.succeed(fiber))).id)
          yield* Effect.forkChild(Effect.ensuring(Effect.never, Effect.sync(() => children++)), {
            startImmediately: true
          })
          yield* Effect.yieldNow
          assert.strictEqual(children, 0)
        })
      const model = Script.layer([[Script.text("hi"), Script.finish("stop")]])
      yield* Effect.provide(Chat.run("go", { onEvent }), model)
      assert.strictEqual(fibers.size, 1)
      assert.isAbove(children, 3)
    }))

  const turns = [calling, [Script.text("hi"), Script.finish("stop")]]

  const saying = (millis: number, log: Array<string>) =>
    Effect.andThen(Effect.sleep(millis), Effect.sync(() => log.push("released")))

  it.effect("M-03: a condition interrupted by a cancel gets the grace period to clean up", () =>
    Effect.gen(function*() {
      for (
        const [millis, end, named] of [[20, 220, []], [500, 200 + grace, [{
          kind: "hook",
          name: "haltWhen"
        }]]] as const
      ) {
        const log: Array<string> = []
        const seen: Array<string> = []
        const began = yield* Clock.currentTimeMillis
        const run = Chat.run("go", {
          tools: [echo],
          grace,
          cancel: Effect.sleep(200),
          haltWhen: () => Effect.onInterrupt(Effect.never, () => saying(millis, log)),
          onEvent: (event) => Effect.andThen(Effect.yieldNow, Effect.sync(() => void seen.push(event._tag)))
        })
        const timed = Effect.all([Effect.provide(run, Script.layer(turns)), Clock.currentTimeMillis])
        const fiber = yield* Effect.forkChild(timed, { startImmediately: true })
        for (let at = 0; at < 100; at++) yield* TestClock.adjust(10)
        const [{ abandoned = [], outcome }, at] = yield* Fiber.join(fiber)
        assert.strictEqual(at - began, end)
        assert.deepStrictEqual(outcome, { _tag: "Cancelled", reason: "cancel" })
        assert.deepEqual<ReadonlyArray<unknown>>(abandoned.map(({ kind, name }) => ({ kind, name })), named)
        if (named.length > 0) continue
        assert.strictEqual(seen.at(-1), "ChatCompleted")
        assert.deepStrictEqual(log, ["released"])
      }
    }))

  it.effect("M-03: fibers forked by a condition, an observer or a cancel effect are released before the run ends", () =>
    Effect.gen(function*() {
      const forking = (log: Array<string>) =>
        Effect.asVoid(Effect.forkChild(Effect.uninterruptible(saying(50, log)), { startImmediately: true }))
      const ways: { readonly [way: string]: (log: Array<string>) => Chat.Options<readonly [typeof echo]> } = {
        "haltWhen": (log) => ({ haltWhen: () => Effect.as(forking(log), false) }),
        "haltWhen, slow": (log) => ({
          haltWhen: () => Effect.as(Effect.andThen(forking(log), Effect.sleep(5)), false)
        }),
        "onEvent": (log) => ({ onEvent: (event) => event._tag === "StepCompleted" ? forking(log) : undefined }),
        "cancel": (log) => ({ cancel: Effect.andThen(Effect.sleep(5), forking(log)), haltWhen: () => Effect.never }),
        "cancel, at once": (log) => ({ cancel: forking(log) }),
        "cancel, that fails": (log) => ({ cancel: Effect.andThen(forking(log), Effect.die("no")) })
      }
      for (const [way, options] of Object.entries(ways)) {
        const log: Array<string> = []
        const run = Chat.run("go", { tools: [echo], grace, ...options(log) })
        const fiber = yield* Effect.forkChild(Effect.provide(run, Script.layer(turns)), { startImmediately: true })
        fiber.addObserver(() => log.push("ended"))
        for (let at = 0; at < 20; at++) yield* TestClock.adjust(10)
        yield* Fiber.join(fiber)
        assert.strictEqual(log.at(-1), "ended", way)
        assert.isAtLeast(log.length, 2, way)
      }
    }))

  it.effect("M-03: the run names a condition's child that refuses to stop within the grace period", () =>
    Effect.gen(function*() {
      const logged: Array<Event.Abandoned> = []
      const logger = Logger.make(({ message }) => {
        if (Array.isArray(message)) logged.push(...message.slice(1).flat() as Array<Event.Abandoned>)
      })
      const haltWhen = () =>
        Effect.as(Effect.forkChild(slow["refuses interruption"]!, { startImmediately: true }), true)
      const run = Effect.provide(Chat.run("go", { tools: [echo], grace, haltWhen }), Script.layer(turns))
      const fiber = yield* Effect.forkChild(
        Effect.provideService(run, Logger.CurrentLoggers, new Set([logger])),
        { startImmediately: true }
      )
      yield* TestClock.adjust(grace - 1)
      assert.isUndefined(fiber.pollUnsafe())
      yield* TestClock.adjust(1)
      assert.strictEqual((yield* Fiber.join(fiber)).outcome._tag, "HaltWhen")
      assert.deepStrictEqual(logged.map(({ kind, name }) => ({ kind, name })), [{ kind: "hook", name: "haltWhen" }])
    }))

  it.effect("M-03: a fiber forked by a condition or an observer keeps running during the following turns", () =>
    Effect.gen(function*() {
      const nap = Tool.make("echo", { parameters: {}, handler: () => Effect.sleep(100) })
      for (const hook of ["haltWhen", "onEvent"] as const) {
        let ticks = 0
        const ticking = Effect.forkChild(
          Effect.forever(Effect.andThen(Effect.sleep(30), Effect.sync(() => ticks++))),
          { startImmediately: true }
        )
        let hasForked = false
        const forked = Effect.suspend(() => {
          if (hasForked) return Effect.void
          hasForked = true
          return Effect.asVoid(ticking)
        })
        const run = Chat.run("go", {
          tools: [nap],
          ...(hook === "haltWhen"
            ? { haltWhen: () => Effect.as(forked, false) }
            : { onEvent: (event: Event.Event) => event._tag === "StepCompleted" ? forked : undefined })
        })
        const fiber = yield* Effect.forkChild(Effect.provide(run, Script.layer([calling, ...turns])), {
          startImmediately: true
        })
        for (let at = 0; at < 20; at++) yield* TestClock.adjust(10)
        yield* Fiber.join(fiber)
        yield* TestClock.adjust(100)
        assert.strictEqual(ticks, 3, hook)
      }
    }))

  it.effect("M-03: a reply ends when its adapter says so, although a fiber forked by the adapter refuses to stop", () =>
    Effect.gen(function*() {
      for (const end of [Cause.done(), Effect.die("broken")]) {
        const called: Arr.NonEmptyReadonlyArray<Event.AdapterEvent> = [
          started,
          { _tag: "ToolCallCompleted", id: "c0", name: "echo", arguments: {}, rawArguments: "{}" },
          { _tag: "MessageCompleted", message: Message.assistant(""), finishReason: "tool_calls" }
        ]
        let requests = 0
        const model = adapter(() => {
          const isFirst = requests++ === 0
          let reads = 0
          const forked = Effect.forkChild(slow["refuses interruption"]!, { startImmediately: true })
          return Stream.fromPull(Effect.succeed(Effect.suspend(() => {
            if (reads++ === 0) return Effect.succeed(isFirst ? called : [started])
            return isFirst ? Effect.andThen(forked, end) : Cause.done()
          })))
        })
        const seen: Array<string> = []
        const onEvent = ({ _tag }: Event.Event) => void seen.push(_tag)
        const run = Effect.provide(Chat.run("go", { tools: [echo], grace, onEvent }), model)
        const fiber = yield* Effect.forkChild(run, { startImmediately: true })
        yield* TestClock.adjust(grace - 1)
        assert.include(seen, "StepCompleted")
        assert.isUndefined(fiber.pollUnsafe())
        yield* TestClock.adjust(1)
        const { abandoned } = yield* Fiber.join(fiber)
        assert.deepStrictEqual(abandoned?.map(({ kind, name }) => ({ kind, name })), [{
          kind: "adapter",
          name: "stream"
        }])
      }
    }))

  it.effect("M-03: a finished reply is closed within the grace period even when nothing stops the run", () =>
    Effect.gen(function*() {
      const replied: Event.AdapterEvent = {
        _tag: "MessageCompleted",
        message: Message.assistant("hi"),
        finishReason: "stop"
      }
      const opened: { readonly [way: string]: readonly [string, Effect.Effect<void, never, Scope.Scope>] } = {
        "its finalizer never ends": ["close", Effect.acquireRelease(Effect.void, () => Effect.never)],
        "a child of its finalizer does not": [
          "close",
          Effect.addFinalizer(() =>
            Effect.asVoid(Effect.forkChild(slow["refuses interruption"]!, { startImmediately: true }))
          )
        ],
        "a child of what opens it does not": [
          "stream",
          Effect.asVoid(Effect.forkChild(slow["refuses interruption"]!, { startImmediately: true }))
        ]
      }
      for (const [way, [name, open]] of Object.entries(opened)) {
        const stream: Adapter.Adapter["Service"]["stream"] = () =>
          Stream.unwrap(Effect.as(open, Stream.make(started, replied)))
        const chat = Effect.map(Chat.run("go", { grace }), ({ abandoned, outcome }) => ({ abandoned, outcome }))
        const step = Effect.as(Step.run("go", { grace }), { abandoned: undefined, outcome: undefined })
        for (const run of [chat, step]) {
          const fiber = yield* Effect.forkChild(
            Effect.provide(run as typeof chat, adapter(stream)),
            { startImmediately: true }
          )
          yield* TestClock.adjust(grace)
          assert.isDefined(fiber.pollUnsafe(), way)
          const { abandoned, outcome } = yield* Fiber.join(fiber)
          if (outcome === undefined) continue
          assert.deepStrictEqual(outcome, { _tag: "Completed", finishReason: "stop" }, way)
          assert.deepStrictEqual(abandoned?.map(({ kind, name }) => [kind, name]), [["adapter", name]], way)
        }
      }
    }))

  it.effect("M-03: a run asks the model for nothing more after a deadline that passes while a handler blocks the thread", () =>
    Effect.gen(function*() {
      const clock = yield* Clock.Clock
      // The thread is blocked: the time goes on, and no timer has fired.
      let blocked = 0
      const behind = Object.create(clock, {
        currentTimeMillisUnsafe: { value: () => clock.currentTimeMillisUnsafe() + blocked },
        currentTimeMillis: { value: Effect.sync(() => clock.currentTimeMillisUnsafe() + blocked) }
      })
      for (const [millis, expected] of [[45, "Completed"], [50, "Cancelled"], [150, "Cancelled"]] as const) {
        blocked = 0
        const block = Tool.make("echo", { parameters: {}, handler: () => Effect.sync(() => void (blocked = millis)) })
        const model = yield* Script.make(turns)
        const run = Chat.run("go", { tools: [block], deadline: 50 }).pipe(Effect.provide(model.layer))
        const { outcome } = yield* Effect.provideService(run, Clock.Clock, behind)
        assert.strictEqual(outcome._tag, expected)
        if (outcome._tag === "Cancelled") assert.strictEqual(outcome.reason, "deadline")
        assert.strictEqual(yield* model.opens, expected === "Cancelled" ? 1 : 2)
      }
    }))
})
