/**
 * Runs and batches do the same wherever a fiber yields: the same result, the same events of each call in the same order,
 * and no tool at work behind the end. What concurrent calls do may come in another order between them. Nothing here waits
 * for time: the clock stands still.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, Message, Step, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import { property } from "../support/property.ts"
import { idOf } from "../support/runs.ts"
import { between, boundless, budgets, outcomeOf } from "../support/yields.ts"

/** The tools, by what is special about each. A call with `n` yields so often before it answers. */
const kinds = ["plain", "early", "alone", "keyed", "fails", "dies", "reports", "refuses", "nested", "forks"] as const

const among = <const A extends string>(...values: ReadonlyArray<A>) => Arbitrary.schema(Schema.Literals(values))

const calls = Arbitrary.array(
  Arbitrary.all({ kind: among(...kinds, "early", "early", "early"), yields: between(0, 12) }),
  { minLength: 1, maxLength: 6 }
)

const cases = Arbitrary.all({
  how: among(
    "Chat.run",
    "Chat.stream",
    "Step.run",
    "Step.stream",
    "ToolRunner.run",
    "ToolRunner.stream",
    "left",
    "interrupted",
    "cancelled"
  ),
  turns: Arbitrary.array(calls, { minLength: 1, maxLength: 4 }),
  /** How many pieces of text come before the calls of a turn, and how often the model yields before each event. */
  pieces: between(0, 6),
  pause: between(0, 4),
  maxConcurrency: between(1, 8),
  observer: among("none", "returns", "yields", "forks"),
  /** How often the effect of the observer yields. */
  pace: between(0, 6),
  /** After how many events the reader of a run that is left leaves, or how many turns it is stopped after. */
  taken: between(1, 40),
  budget: budgets
})

type Case = typeof cases extends Arbitrary.Arbitrary<infer A> ? A : never

/** What the tools have done: how many of them are at work, and which have run. */
interface World {
  readonly ran: Array<string>
  alive: number
}

const yieldsOf = (times: number): Effect.Effect<void> =>
  times === 0 ? Effect.void : Effect.andThen(Effect.yieldNow, Effect.suspend(() => yieldsOf(times - 1)))

const numbered = Schema.Struct({ n: Schema.Int })

const toolsOf = (world: World) => {
  const work = (call: { readonly id: string }, n: number): Effect.Effect<string> =>
    Effect.acquireUseRelease(
      Effect.sync(() => world.alive++),
      () =>
        Effect.map(yieldsOf(n), () => {
          world.ran.push(call.id)
          return `answer ${call.id}`
        }),
      () => Effect.sync(() => world.alive--)
    )
  const plain = {
    parameters: numbered,
    handler: ({ n }: { readonly n: number }, call: Tool.CallContext) => work(call, n)
  }
  return [
    Tool.make("plain", plain),
    Tool.make("early", { ...plain, readOnly: true }),
    Tool.make("alone", { ...plain, concurrency: "exclusive" }),
    Tool.make("keyed", { ...plain, limits: [{ key: "one", permits: 1 }] }),
    Tool.make("fails", { ...plain, handler: ({ n }, call) => Effect.andThen(work(call, n), Effect.fail("no")) }),
    Tool.make("dies", { ...plain, handler: ({ n }, call) => Effect.andThen(work(call, n), Effect.die("broken")) }),
    Tool.make("reports", {
      ...plain,
      handler: ({ n }, call) =>
        Effect.andThen(Effect.forEach([1, 2], (step) => call.progress(step)), Effect.suspend(() => work(call, n)))
    }),
    // The arguments do not fit.
    Tool.make("refuses", { parameters: Schema.Struct({ n: Schema.String }), handler: () => Effect.succeed("never") }),
    Tool.make("nested", {
      ...plain,
      handler: ({ n }, call) =>
        Effect.map(
          Chat.run("inner", { tools: [Tool.make("inner", plain)], requestId: `${call.id} inner` }).pipe(
            Effect.provide(Script.layer([
              [Script.toolCall(`${call.id} i`, "inner", { n }), Script.finish("tool_calls")],
              [Script.text("inner done"), Script.finish("stop")]
            ]))
          ),
          ({ finalResponse }) => finalResponse?.outputText
        )
    }),
    Tool.make("forks", {
      ...plain,
      handler: ({ n }, call) =>
        Effect.gen(function*() {
          const done = yield* Deferred.make<string>()
          yield* Effect.forkChild(Effect.flatMap(work(call, n), (answer) => Deferred.succeed(done, answer)))
          return yield* Deferred.await(done)
        })
    })
  ] as const
}

const callsOf = (turns: Case["turns"]) =>
  turns.map((turn, step) => turn.map(({ kind, yields }, index) => ({ id: `c${step}_${index}`, kind, n: yields })))

/** The model. Its text comes in pieces, and each event takes its turns. */
const modelOf = ({ pause, pieces, turns }: Case) => {
  const scripted = Script.layer([
    ...callsOf(turns).map((turn) => [
      ...Array.from({ length: pieces }, (_, piece) => Script.text(`${piece} `)),
      ...turn.map(({ id, kind, n }) => Script.toolCall(id, kind, { n })),
      Script.finish("tool_calls")
    ]),
    [Script.text("done"), Script.finish("stop")]
  ])
  const paused = Effect.map(Adapter.Adapter, (adapter) =>
    Adapter.Adapter.of({
      ...adapter,
      stream: (request) => Stream.tap(Stream.rechunk(adapter.stream(request), 1), () => yieldsOf(pause))
    }))
  return pause === 0 ? scripted : Layer.effect(Adapter.Adapter, paused).pipe(Layer.provide(scripted))
}

/**
 * The events of each call in their order, and those of no call in theirs. Whether a call waits for its turn depends on
 * how far the others have come.
 */
const byCall = (events: ReadonlyArray<Event.Event>) => {
  const groups = new Map<string, Array<Event.Event>>()
  for (const event of events.filter(({ _tag }) => _tag !== "ToolQueued")) {
    const own = event._tag === "ToolExecutionStarted" ? { ...event, waited: [] } : event
    groups.set(idOf(event), [...groups.get(idOf(event)) ?? [], own])
  }
  return Array.from(groups).sort(([one], [other]) => one < other ? -1 : 1)
}

const programOf = (played: Case): Effect.Effect<unknown, unknown> =>
  Effect.gen(function*() {
    const world: World = { ran: [], alive: 0 }
    const observed: Array<Event.Event> = []
    const tools = toolsOf(world)
    const onEvent = (event: Event.Event) => {
      observed.push(event)
      if (played.observer === "yields") return yieldsOf(played.pace)
      return played.observer === "forks" ? Effect.asVoid(Effect.forkChild(yieldsOf(played.pace))) : undefined
    }
    const options = {
      tools,
      requestId: "r",
      maxConcurrency: played.maxConcurrency,
      ...(played.observer === "none" ? {} : { onEvent })
    }
    const [batch] = callsOf(played.turns)
    const asked = batch!.map(({ id, kind, n }) => Message.toolCall(id, kind, { n }))
    const said = <E, R>(stream: Stream.Stream<Event.Event, E, R>) => Effect.map(Stream.runCollect(stream), byCall)
    const ways = {
      "Chat.run": Chat.run("go", options),
      "Chat.stream": said(Chat.stream("go", options)),
      "Step.run": Step.run("go", options),
      "Step.stream": said(Step.stream("go", options)),
      "ToolRunner.run": ToolRunner.run(asked, tools, options),
      "ToolRunner.stream": said(ToolRunner.stream(asked, tools, options)),
      left: Stream.runDrain(Stream.take(Chat.stream("go", options), played.taken)),
      cancelled: Chat.run("go", { ...options, cancel: yieldsOf(played.taken) }),
      interrupted: Effect.flatMap(
        Effect.forkChild(Chat.run("go", options)),
        (fiber) => Effect.andThen(yieldsOf(played.taken), Fiber.interrupt(fiber))
      )
    }
    const result: unknown = yield* ways[played.how]
    // A run that is stopped may have come further with one order of its events than with another.
    return ["left", "interrupted", "cancelled"].includes(played.how)
      ? [world.alive]
      : [world.alive, world.ran.sort(), byCall(observed), result]
  }).pipe(Effect.provide([modelOf(played), Logger.layer([])]))

const patience = 100_000

/** The places at which two texts begin to differ. */
const differing = (actual: string, expected: string): string => {
  const at = Array.from(actual).findIndex((letter, index) => letter !== expected[index])
  const shown = (text: string) => text.slice(Math.max(0, at - 200), at + 200)
  return `${shown(actual)}, expected ${shown(expected)}`
}

describe("yields in runs and batches", () => {
  property(
    "O-53: runs and batches come to the same, with the same events, wherever a fiber yields",
    cases,
    (played) =>
      Effect.gen(function*() {
        const expected = yield* outcomeOf(programOf(played), boundless, patience)
        const actual = yield* outcomeOf(programOf(played), played.budget, patience)
        return [
          ...(expected.startsWith("[0") ? [] : [`without a yield: ${expected}`]),
          ...(actual === expected ? [] : [`with a yield after ${played.budget}: ${differing(actual, expected)}`])
        ]
      }),
    2_000
  )
})
