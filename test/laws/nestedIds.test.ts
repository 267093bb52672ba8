/**
 * Laws of the ids of equal nested runs: whatever the order in which the runs begin, fail and end, no two runs under way
 * share an id, and a run takes the least id that no run has.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Journal, Message, Session, Tool } from "heddle"
import { Durable } from "heddle/durable"
import { Script } from "heddle/testing"
import * as Nested from "../../src/internal/session/nested.ts"
import { listing, type Written } from "../support/nests.ts"
import { property } from "../support/property.ts"

/** A run under way. */
interface Begun {
  readonly id: string
  readonly fail: Effect.Effect<void>
  readonly end: Effect.Effect<void>
}

/** Begins a run with an input. */
type Begin = (input: string) => Effect.Effect<Begun>

const Step = Schema.Struct({
  what: Schema.Literals(["begin", "begin", "begin", "fail", "fail", "end"]),
  input: Schema.Literals(["one", "one", "one", "other"]),
  /** Which of the runs under way fails or ends. */
  which: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 9 }))
})
type Step = typeof Step.Type

/** Three runs are under way when the first fails, and one begins. */
const prefix = (["begin", "begin", "begin", "fail", "begin"] as const).map((what): Step => (
  { what, input: "one", which: 0 }
))

const steps = Arbitrary.map(Arbitrary.schema(Schema.Array(Step)), (rest) => [...prefix, ...rest])

const numberOf = (id: string): number => Number(/\.(\d+)$/.exec(id)?.[1] ?? 1)

/** Runs the steps. Returns what differs from a table of the numbers that runs have. */
const compared = (begin: Begin, steps: ReadonlyArray<Step>) =>
  Effect.gen(function*() {
    const problems: Array<string> = []
    const taken = new Map<string, Set<number>>()
    const underWay: Array<Begun & { readonly input: string; readonly number: number }> = []
    for (const [index, { input, what, which }] of steps.entries()) {
      const numbers = taken.get(input) ?? new Set()
      taken.set(input, numbers)
      if (what === "begin") {
        let number = 1
        while (numbers.has(number)) number++
        numbers.add(number)
        const run = yield* begin(input)
        const other = underWay.find(({ id }) => id === run.id)
        if (other !== undefined) problems.push(`step ${index}: ${run.id} is under way`)
        if (numberOf(run.id) !== number) problems.push(`step ${index}: ${run.id} in place of number ${number}`)
        underWay.push({ ...run, input, number })
        continue
      }
      const [run] = underWay.splice(which % Math.max(1, underWay.length), 1)
      if (run === undefined) continue
      yield* run[what]
      if (what === "fail") taken.get(run.input)?.delete(run.number)
    }
    yield* Effect.forEach(underWay, ({ end }) => end)
    return problems
  })

/** A program that begins the runs: the handler of a kept call, or a program whose runs survive a crash. */
type Way = (go: (begin: Begin) => Effect.Effect<void>, begin: Begin) => Effect.Effect<unknown, unknown, Session.Store>

const script: ReadonlyArray<ReadonlyArray<Script.Entry>> = [
  [Script.toolCall("c", "runs"), Script.finish("tool_calls")],
  [Script.text("done"), Script.finish("stop")]
]

const inSession: Way = (go, begin) => {
  const runs = Tool.make("runs", { parameters: {}, timeout: "infinity", handler: () => Effect.as(go(begin), "over") })
  return Effect.gen(function*() {
    const opened = yield* Session.open("s")
    yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: [runs] }))
  }).pipe(Effect.provide(Script.layer(script)))
}

const inProgram: Way = (go, begin) => Effect.provide(go(begin), Durable.layer({ id: "s" }))

/** Runs the steps in one of these ways. A model replies to a run when the steps say so, or breaks. */
const through = (way: Way) => (steps: ReadonlyArray<Step>) => {
  const written: Array<Written> = []
  let problems: ReadonlyArray<string> = ["no run began"]
  return Effect.gen(function*() {
    const asked = yield* Queue.unbounded<Deferred.Deferred<void, Adapter.AdapterError>>()
    const slow: Adapter.Service = {
      stream: (request) =>
        Stream.unwrap(Effect.gen(function*() {
          const reply = yield* Deferred.make<void, Adapter.AdapterError>()
          yield* Queue.offer(asked, reply)
          yield* Deferred.await(reply)
          return (yield* Script.make([[Script.text("done"), Script.finish("stop")]])).stream(request)
        }))
    }
    const begin: Begin = (input) =>
      Effect.gen(function*() {
        const before = written.length
        const run = yield* Effect.forkChild(Effect.provideService(Chat.run(input), Adapter.Adapter, slow))
        const reply = yield* Queue.take(asked)
        const started = written.slice(before).find(({ record }) => record._tag === "RunStarted")
        const over = Effect.asVoid(Fiber.await(run))
        return {
          id: started?.id ?? "none",
          fail: Effect.andThen(Deferred.fail(reply, new Adapter.AdapterError({ reason: "network_error" })), over),
          end: Effect.andThen(Deferred.succeed(reply, undefined), over)
        }
      })
    const go = (begin: Begin) => Effect.map(compared(begin, steps), (found) => void (problems = found))
    yield* way(go, begin)
    const damaged = Array.from(new Set(written.map(({ id }) => id))).flatMap((of) =>
      Journal.check(written.flatMap(({ id, record }) => id === of ? [record] : []))
        .map((problem) => `${of}: ${JSON.stringify(problem)}`)
    )
    return [...problems, ...damaged]
  }).pipe(Effect.provide(listing(written)))
}

const title = "equal runs that begin, fail and end have ids of their own"

describe("the ids of nested runs", () => {
  for (const toolCallId of ["c", undefined]) {
    property(
      `${title}, ${toolCallId === undefined ? "of a program" : "of a call"}`,
      steps,
      (steps) => {
        const ids = new Nested.Ids("s", toolCallId)
        const begin: Begin = (input) =>
          Effect.sync(() => {
            const { giveBack, id } = ids.take({ messages: [Message.user(input)], metadata: {} })
            return { id, fail: Effect.sync(giveBack), end: Effect.void }
          })
        return compared(begin, steps)
      },
      1_000
    )
  }

  property(`${title}, in a handler of a kept session`, steps, through(inSession), 30)
  property(`${title}, in a program that survives`, steps, through(inProgram), 30)
})
