/**
 * The tools of generated runs. There is one set of them for all runs: a handler reads from the world it runs in what its
 * call is to do, and notes there what it did.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Tool } from "heddle"
import { type Recorder, Script } from "heddle/testing"
import type { Call } from "./cases.ts"
import { type GateName, gateOf } from "./dimensions/gates.ts"
import { type KindName, kinds } from "./dimensions/kinds.ts"

/** Limits are no multiples of ten, and times are, so that nothing depends on the order of events at one instant. */
export const toolTimeout = 45
export const grace = 25

/** What the handlers of one run share. */
export interface World {
  readonly recorder: Recorder.Recorder
  /** Each start of a handler, by what makes it different from all others. */
  readonly starts: Array<string>
  readonly callAt: (place: string) => Call
  /** Whether tools that say nothing about it block interruption. */
  readonly isBlocking: boolean
}

export const World = Context.Reference<World | undefined>("heddle/test/World", { defaultValue: () => undefined })

/** A call says no more than what it is to do, so that nothing of a result depends on how long it takes. */
const args = { place: Schema.String, kind: Schema.String, gate: Schema.String, isExclusive: Schema.Boolean }

type Args = Schema.Struct<typeof args>["Type"]

export const argumentsOf = (call: Call, place: string): Readonly<Record<string, unknown>> => ({
  place: call.kind === "badArguments" ? 1 : place,
  kind: call.kind,
  gate: call.gate,
  isExclusive: call.isExclusive
})

/** Whether the gates of a call deny it. */
export const isDenied = (call: Call): boolean => gateOf(call.gate).denies === true

/** What is recorded besides handlers of calls of the case: gates, and handlers of runs that are tools. */
type Other = "gate" | "leaf" | "deafLeaf"

/** The name that something is recorded under says what is to be expected of it. */
const nameOf = (isExclusive: boolean, what: KindName | Other, place: string): string =>
  `${isExclusive ? "alone" : "shared"} ${what} ${place}`

/** How a handler of this name ignores interruption: `"late"` ends later by itself, `"never"` does not end. */
export const refuses = (name: string): "late" | "never" | undefined => {
  const what = name.split(" ")[1] as KindName | Other
  if (what === "gate" || what === "leaf") return undefined
  return what === "deafLeaf" ? "never" : kinds[what].refuses
}

export const isExclusive = (name: string): boolean => name.startsWith("alone ")

const waiting = ({ kind, latency }: Call): Effect.Effect<void> =>
  kinds[kind].waits ?? (latency === 0 ? Effect.void : Effect.sleep(latency))

const doing = ({ kind }: Call, attempt: number): Effect.Effect<unknown, unknown> =>
  Effect.suspend(() => kinds[kind].does?.(attempt) ?? Effect.succeed("ok"))

const inWorld = <A, E>(use: (world: World) => Effect.Effect<A, E>): Effect.Effect<A, E> =>
  Effect.flatMap(World, (world) => world === undefined ? Effect.die("there is no world around") : use(world))

const likeness = ({ kind }: Call, { isBlocking }: World): KindName =>
  isBlocking ? kinds[kind].whenBlocking ?? kind : kind

const work = (place: string, context: Tool.CallContext): Effect.Effect<unknown, unknown> =>
  inWorld((world) => {
    const call = world.callAt(place)
    world.starts.push(`${context.idempotencyKey} attempt ${context.attempt}`)
    const reports = Array.from({ length: call.progress }, (_, n) => n)
    const track = world.recorder.track(nameOf(call.isExclusive, likeness(call, world), place))
    const { forks } = kinds[call.kind]
    const worked = Effect.forEach(reports, context.progress, { discard: true }).pipe(
      Effect.andThen(waiting(call)),
      Effect.andThen(doing(call, context.attempt))
    )
    return forks === undefined
      ? track(worked)
      : Effect.andThen(Effect.forkChild(track(forks), { startImmediately: true }), worked)
  })

const handler = ({ kind, place }: Args, context: Tool.CallContext): Effect.Effect<unknown, unknown> => {
  const { returns } = kinds[kind as KindName]
  return returns === undefined ? work(place, context) : returns as Effect.Effect<unknown>
}

const concurrency = ({ isExclusive }: Args): Tool.Concurrency => isExclusive ? "exclusive" : "shared"

/** Gates run in the place of their handler, and are recorded like one. */
const asked = (name: "validate" | "authorize") => ({ gate, isExclusive, place }: Args) =>
  inWorld(({ recorder }) =>
    Effect.map(
      recorder.track(nameOf(isExclusive, "gate", place))(gateOf(gate as GateName)[name] ?? Effect.succeed(true)),
      (verdict) => verdict as boolean
    )
  )

const plain = { parameters: args, concurrency, handler }

/** How many handlers of keyed calls may run at once. */
export const keyedPermits = 1

/** What is run here may have gates. */
const run = {
  work: plain,
  look: { ...plain, readOnly: true },
  block: { ...plain, interrupt: "block" },
  retry: { ...plain, retry: Schedule.recurs(2) },
  keyed: { ...plain, limits: [{ key: "one", permits: keyedPermits }] }
} as const

const gated = { validate: asked("validate"), authorize: asked("authorize") }

/** A handler inside the run of a handler. */
const leaf = Tool.make("leaf", {
  parameters: { place: Schema.String, latency: Schema.Finite, isDeaf: Schema.Boolean },
  handler: ({ isDeaf, latency, place }, context) =>
    inWorld(({ recorder, starts }) => {
      starts.push(`${place} ${context.idempotencyKey} attempt ${context.attempt}`)
      const work = isDeaf ? Effect.uninterruptible(Effect.never) : latency === 0 ? Effect.void : Effect.sleep(latency)
      return recorder.track(nameOf(false, isDeaf ? "deafLeaf" : "leaf", place))(work)
    })
})

/** A run of its own. While it is alive the call around it holds no permit, and is not recorded. */
const nested = ({ place }: Args, context: Tool.CallContext) =>
  Stream.unwrap(inWorld(({ callAt, starts }) => {
    starts.push(`${context.idempotencyKey} attempt ${context.attempt}`)
    const { kind, latency } = callAt(place)
    const calls = ["#0", "#1"].map((end) => {
      const isDeaf = kind === "nestedDeaf" && end === "#1"
      return Script.toolCall(end, "leaf", { place: `${place}${end}`, latency, isDeaf })
    })
    const model = Script.layer([[...calls, Script.finish("tool_calls")], [Script.text("done"), Script.finish("stop")]])
    const run = Chat.stream("go", { tools: [leaf], toolTimeout, grace, requestId: "nested" })
    return Effect.succeed(Stream.provide(run, model))
  }))

const delegated = { parameters: args, concurrency, chat: nested }

export const tools = [
  Tool.make("manual", { ...plain, manual: true }),
  Tool.fromChat("delegate", delegated),
  Tool.fromChat("gated_delegate", { ...delegated, ...gated }),
  ...Object.entries(run).flatMap(([name, options]) => [
    Tool.make(name, options),
    Tool.make(`gated_${name}`, { ...options, ...gated })
  ])
]

/** Whether a tool of this name is a run of its own. */
export const isRun = (name: string): boolean => name.endsWith("delegate")

/** Whether a call names a tool that is read-only. */
export const isLook = ({ isReadOnly, kind }: Call): boolean => kinds[kind].tool === undefined && isReadOnly

/** The tool that a call names. */
export const toolOf = (call: Call): string => {
  const name = kinds[call.kind].tool ?? (isLook(call) ? "look" : "work")
  return call.gate === "none" || !(name in run || name === "delegate") ? name : `gated_${name}`
}
