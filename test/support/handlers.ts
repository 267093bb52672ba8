/**
 * The tools of generated runs. There is one set of them for all runs: a handler reads from the world it runs in what its
 * call is to do, and notes there what it did.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import { Tool } from "heddle"
import type { Recorder } from "heddle/testing"
import type { Call } from "./cases.ts"
import { type KindName, kinds } from "./dimensions/kinds.ts"

/** What the handlers of one run share. */
export interface World {
  readonly recorder: Recorder.Recorder
  /** Each start of a handler, by what makes it different from all others. */
  readonly starts: Array<string>
  readonly callAt: (place: string) => Call
}

export const World = Context.Reference<World | undefined>("heddle/test/World", { defaultValue: () => undefined })

/** A call says no more than what it is to do, so that nothing of a result depends on how long it takes. */
const args = { place: Schema.String, kind: Schema.String, isExclusive: Schema.Boolean }

type Args = Schema.Struct<typeof args>["Type"]

export const argumentsOf = ({ isExclusive, kind }: Call, place: string): Readonly<Record<string, unknown>> => ({
  place: kind === "badArguments" ? 1 : place,
  kind,
  isExclusive
})

/** The name that a handler is recorded under says what is to be expected of it. */
export const nameOf = ({ isExclusive, kind }: Call, place: string): string =>
  `${isExclusive ? "alone" : "shared"} ${kind} ${place}`

const kindIn = (name: string): KindName => name.split(" ")[1] as KindName

/** Whether a handler of this name does not stop when it is told to, and whether it ends at all. */
export const refuses = (name: string): "late" | "never" | undefined => kinds[kindIn(name)].refuses

export const isExclusive = (name: string): boolean => name.startsWith("alone ")

const waiting = ({ kind, latency }: Call): Effect.Effect<void> =>
  kinds[kind].waits ?? (latency === 0 ? Effect.void : Effect.sleep(latency))

const doing = ({ kind }: Call, attempt: number): Effect.Effect<unknown, unknown> =>
  Effect.suspend(() => kinds[kind].does?.(attempt) ?? Effect.succeed("ok"))

const work = (place: string, context: Tool.CallContext): Effect.Effect<unknown, unknown> =>
  Effect.flatMap(World, (world) => {
    if (world === undefined) return Effect.die("the handler runs in no world")
    const call = world.callAt(place)
    world.starts.push(`${context.idempotencyKey} attempt ${context.attempt}`)
    const reports = Array.from({ length: call.progress }, (_, n) => n)
    return Effect.forEach(reports, context.progress, { discard: true }).pipe(
      Effect.andThen(waiting(call)),
      Effect.andThen(doing(call, context.attempt)),
      world.recorder.track(nameOf(call, place))
    )
  })

const handler = ({ kind, place }: Args, context: Tool.CallContext): Effect.Effect<unknown, unknown> => {
  const { returns } = kinds[kind as KindName]
  return returns === undefined ? work(place, context) : returns as Effect.Effect<unknown>
}

const concurrency = ({ isExclusive }: Args): Tool.Concurrency => isExclusive ? "exclusive" : "shared"

export const tools = [
  Tool.make("work", { parameters: args, concurrency, handler }),
  Tool.make("look", { parameters: args, concurrency, handler, readOnly: true }),
  Tool.make("block", { parameters: args, concurrency, handler, interrupt: "block" }),
  Tool.make("retry", { parameters: args, concurrency, handler, retry: Schedule.recurs(2) }),
  Tool.make("manual", { parameters: args, concurrency, handler, manual: true })
] as const

/** The tool that a call names. */
export const toolOf = ({ isReadOnly, kind }: Call): string => kinds[kind].tool ?? (isReadOnly ? "look" : "work")
