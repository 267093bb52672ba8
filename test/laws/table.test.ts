/**
 * The lifetime table: every way in which a run can end, with every kind of handler alive at that moment. When the run
 * has settled nothing of it is running; a minute later nothing of it has happened since; and every finalizer ran once.
 * Only a handler that never settles may be left behind, and then the run says so within its grace period.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Logger from "effect/Logger"
import * as Stream from "effect/Stream"
import { Chat, Policy, Tool } from "heddle"
import type { Event } from "heddle"
import { Recorder, Script, Simulation } from "heddle/testing"

const stopAt = 30
const graceMillis = 100
const cleanupMillis = 60
const workMillis = 400

type AnyTool = Tool.Tool<string, any, any, any, never>

/** What a cell sees: handlers, the model, and the effects that handlers have on the world. */
interface World {
  readonly recorder: Recorder.Recorder
  readonly did: (what: string) => Effect.Effect<void>
  readonly effects: () => number
}

const working = (world: World) => Effect.andThen(Effect.sleep(workMillis), world.did("work"))

/** The handlers that are alive when the run ends. */
const kinds = {
  cooperative: (world) => () => working(world),
  "cleanup of 60 ms": (world) => () =>
    Effect.ensuring(working(world), Effect.andThen(Effect.sleep(cleanupMillis), world.did("cleanup"))),
  "never settles": (world) => (_: unknown, call: Tool.CallContext) =>
    Effect.ensuring(Effect.orDie(call.promise(() => new Promise<never>(() => {}))), world.did("late")),
  "streams progress": (world) => (_: unknown, call: Tool.CallContext) =>
    Effect.andThen(
      Effect.forEach(
        Array.from({ length: workMillis / 10 }),
        (_, index) => Effect.andThen(Effect.sleep(10), call.progress(index)),
        { discard: true }
      ),
      world.did("work")
    )
} satisfies {
  readonly [kind: string]: (
    world: World
  ) => (args: unknown, call: Tool.CallContext) => Effect.Effect<unknown, never, never>
}

type Kind = keyof typeof kinds | "sub-agent"

const kindNames = [...Object.keys(kinds), "sub-agent"] as ReadonlyArray<Kind>

const answer = (text: string): ReadonlyArray<Script.Entry> => [Script.text(text), Script.finish("stop")]

const subject = (kind: Kind, world: World, declared: { readonly readOnly?: boolean }): AnyTool => {
  if (kind !== "sub-agent") {
    const handler = world.recorder.handler(kinds[kind](world))
    return Tool.make("subject", { parameters: {}, handler, ...declared })
  }
  const inner = Tool.make("inner", { parameters: {}, handler: world.recorder.handler(() => working(world)) })
  const child = Script.layer([[Script.toolCall("i0", "inner"), Script.finish("tool_calls")], answer("inner")])
  return Tool.fromChat("subject", {
    parameters: {},
    chat: () => Stream.provide(Chat.stream("go", { tools: [inner], grace: graceMillis / 2 }), child),
    ...declared
  })
}

/** A second call that halts, breaks or reports when the run is to end. */
const other = (body: Effect.Effect<unknown, string>): AnyTool =>
  Tool.make("other", {
    parameters: {},
    readOnly: true,
    handler: (_, call) => Effect.sleep(stopAt).pipe(Effect.andThen(call.progress("now")), Effect.andThen(body))
  })

interface End {
  /** What the second call comes to. */
  readonly other?: Effect.Effect<unknown, string>
  readonly options?: Partial<Chat.Options<ReadonlyArray<AnyTool>>>
  readonly drive?: (run: Stream.Stream<Event.Event, unknown, never>) => Effect.Effect<unknown, unknown>
  readonly reply?: ReadonlyArray<Script.Entry>
  /** Model calls over the whole run, not counting those of a run inside it. */
  readonly modelCalls: number
  readonly outcome?: Event.Outcome["_tag"]
}

const calls = [Script.toolCall("s0", "subject"), Script.toolCall("o0", "other")]

/** Reads to the end, and gives the last event. */
const whole = (run: Stream.Stream<Event.Event, unknown, never>) => Stream.runLast(run)

const ends: { readonly [end: string]: End } = {
  done: { modelCalls: 2, outcome: "Completed" },
  halt: {
    other: Effect.succeed(Tool.halt("enough", null)),
    options: {
      policy: { ...Policy.standard, siblings: { ...Policy.standard.siblings, onHalt: "abortCancelable" } }
    },
    modelCalls: 1,
    outcome: "Halted"
  },
  "hard stop": {
    drive: (run) =>
      Effect.gen(function*() {
        const fiber = yield* Effect.forkChild(whole(run))
        yield* Effect.sleep(stopAt)
        yield* Fiber.interrupt(fiber)
      }),
    modelCalls: 1
  },
  "soft stop": { options: { cancel: Effect.sleep(stopAt) }, modelCalls: 1, outcome: "Cancelled" },
  "consumer left": {
    drive: (run) => Stream.runDrain(Stream.takeUntil(run, (event) => isNow(event))),
    modelCalls: 1
  },
  timeout: { options: { toolTimeout: stopAt }, modelCalls: 2, outcome: "Completed" },
  "adapter failure": {
    reply: [
      ...calls,
      Script.delay(stopAt),
      Script.streamError("network_error")
    ],
    modelCalls: 1,
    outcome: "Failed"
  },
  defect: {
    options: { onEvent: (event) => isNow(event) ? Effect.die("broken") : undefined },
    modelCalls: 1
  }
}

const isNow = (event: Event.Event): boolean =>
  event._tag === "ToolProgress" && event.name === "other" && event.progress === "now"

/** What there is to see at one moment. */
const look = (world: World, model: Script.Scripted) =>
  Effect.gen(function*() {
    const counts = yield* world.recorder.counts()
    return { ...counts, effects: world.effects(), modelCalls: yield* model.opens, closed: yield* model.cleanups }
  })

const cell = (kind: Kind, end: End) => {
  const logged: Array<unknown> = []
  return Effect.gen(function*() {
    const recorder = yield* Recorder.make
    const happened: Array<string> = []
    const world: World = {
      recorder,
      did: (what) => Effect.sync(() => void happened.push(what)),
      effects: () => happened.length
    }
    const model = yield* Script.make([end.reply ?? [...calls, Script.finish("tool_calls")], answer("done")])
    const isEarly = end.reply !== undefined
    const run = Chat.stream("go", {
      tools: [subject(kind, world, isEarly ? { readOnly: true } : {}), other(end.other ?? Effect.succeed("ok"))],
      grace: graceMillis,
      maxConcurrency: 8,
      toolTimeout: kind === "never settles" ? 200 : 1000,
      ...end.options
    }).pipe(Stream.provide(model.layer))
    const exit = yield* Effect.exit((end.drive ?? whole)(run))
    const settled = yield* look(world, model)
    yield* Effect.sleep("1 minute")
    return { exit, settled, later: yield* look(world, model), logged }
  }).pipe(Effect.provideService(Logger.CurrentLoggers, new Set([Logger.make(({ message }) => logged.push(message))])))
}

const lastOf = (exit: Exit.Exit<unknown, unknown>): Event.ChatResult | undefined => {
  if (Exit.isFailure(exit)) return undefined
  const last = exit.value as { readonly value?: Event.Event } | undefined
  return last?.value?._tag === "ChatCompleted" ? last.value.result : undefined
}

describe("the lifetime table", () => {
  for (const [name, end] of Object.entries(ends)) {
    for (const kind of kindNames) {
      it.effect(`laws 3 and 11: only a handler that never settles outlives its run: end "${name}", handler "${kind}"`, () =>
        Effect.gen(function*() {
          const report = yield* Simulation.run(cell(kind, end))
          if (report.exit === undefined || Exit.isFailure(report.exit)) {
            return assert.fail(`the cell did not end: ${String(report.exit)}`)
          }
          const { exit, later, logged, settled } = report.exit.value
          const isLeft = kind === "never settles"
          const result = lastOf(exit)
          if (end.outcome !== undefined) assert.strictEqual(result?.outcome._tag, end.outcome)
          assert.deepStrictEqual(later, settled, "nothing has happened since")
          assert.strictEqual(settled.modelCalls, end.modelCalls, "no model call after the stop")
          assert.strictEqual(settled.closed, settled.modelCalls, "every model call was closed")
          assert.strictEqual(settled.starts, 1, "the handler started once")
          assert.strictEqual(settled.live, isLeft ? 1 : 0, "running at settle")
          assert.strictEqual(settled.finalizers, isLeft ? 0 : 1, "finalizers ran exactly once")
          assert.strictEqual(logged.length, isLeft ? 1 : 0, "what was left behind is reported")
          if (isLeft && result !== undefined) {
            assert.deepStrictEqual(result.abandoned?.map(({ id, name }) => [id, name]), [["s0", "subject"]])
          }
          assert.isAtMost(report.millis - 60_000, workMillis + graceMillis + cleanupMillis)
        }))
    }
  }
})
