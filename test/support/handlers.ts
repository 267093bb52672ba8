/**
 * The tools of generated runs. A handler reads from the world it runs in what its call is to do, and notes there what it
 * did. What a call says of its tool is in the tool's name, so that a run is given the tools that its calls name.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, type Event, type Policy, Tool } from "heddle"
import { type Recorder, Script } from "heddle/testing"
import type { Call } from "./cases.ts"
import { type GateName, gatesOf } from "./dimensions/gates.ts"
import { keys, nameOfPermit } from "./dimensions/keys.ts"
import { type KindName, kinds } from "./dimensions/kinds.ts"

export const toolTimeout = 45
export const grace = 25

/** What the handlers of one run share. */
export interface World {
  readonly recorder: Recorder.Recorder
  /** Each start of a handler, by what makes it different from all others. */
  readonly starts: Array<string>
  readonly callAt: (place: string) => Call
  readonly policy: Policy.Policy
}

export const World = Context.Reference<World | undefined>("heddle/test/World", { defaultValue: () => undefined })

const worldly = <A, E, R>(use: (world: World) => Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.flatMap(World, (world) => world === undefined ? Effect.die("the handler runs in no world") : use(world))

/** A call says no more than what it is to do, so that nothing of a result depends on how long it takes. */
const args = {
  place: Schema.String,
  kind: Schema.String,
  isExclusive: Schema.Boolean,
  gate: Schema.String,
  keys: Schema.Array(Schema.String)
}

type Args = Schema.Struct<typeof args>["Type"]

export const argumentsOf = (call: Call, place: string): Readonly<Record<string, unknown>> => ({
  place: call.kind === "badArguments" ? 1 : place,
  kind: call.kind,
  isExclusive: call.isExclusive,
  gate: gateOf(call),
  keys: keys[call.keys]
})

/** A run that is a call has no timeout, and so neither have its gates. */
const gateOf = ({ gate, kind }: Call): GateName =>
  gate === "hang" && kinds[kind].inside !== undefined ? "denyLate" : gate

/** Whether a call runs alone under a policy. */
export const runsAlone = ({ isExclusive, saysHow }: Call, { concurrency }: Policy.Policy): boolean =>
  saysHow ? isExclusive : concurrency === "exclusive"

/** Who is not told to stop before its grace is over cannot take any time for it. */
const kindUnder = ({ kind, saysHow }: Call, { interrupt }: Policy.Policy): KindName =>
  kind === "slowStop" && !saysHow && interrupt === "block" ? "slowBlock" : kind

/** The name that a handler is recorded under says what is to be expected of it. */
export const nameOf = (call: Call, place: string, policy: Policy.Policy): string =>
  `${runsAlone(call, policy) ? "alone" : "shared"} ${kindUnder(call, policy)} ${place}`

const kindIn = (name: string): KindName => name.split(" ")[1] as KindName

/** Whether a handler of this name does not stop when it is told to, and whether it ends at all. */
export const refuses = (name: string): "late" | "never" | undefined => kinds[kindIn(name)].refuses

export const isExclusive = (name: string): boolean => name.startsWith("alone ")

/** Whether it is a run of its own, and whether it runs in one. */
export const isAgent = (name: string): boolean => kinds[kindIn(name)].inside !== undefined
export const isInside = (name: string): boolean => name.includes("/")

/** The place of the call at the top that this one is, or is made for. */
export const placeIn = (name: string): string => /\d+\.\d+/.exec(name)?.[0] ?? ""

const waiting = ({ kind, latency }: Call): Effect.Effect<void> =>
  kinds[kind].waits ?? (latency === 0 ? Effect.void : Effect.sleep(latency))

const doing = ({ kind }: Call, call: Tool.CallContext): Effect.Effect<unknown, unknown> =>
  Effect.suspend(() => kinds[kind].does?.(call.attempt, call) ?? Effect.succeed("ok"))

/** Notes a start, and records what a handler does under its name. */
const recorded = <R>(
  place: string,
  context: Tool.CallContext,
  does: (call: Call) => Effect.Effect<unknown, unknown, R>
): Effect.Effect<unknown, unknown, R> =>
  worldly((world) => {
    const call = world.callAt(place)
    world.starts.push(`${context.idempotencyKey} attempt ${context.attempt}`)
    return world.recorder.track(nameOf(call, place, world.policy))(does(call))
  })

const work = (place: string, context: Tool.CallContext): Effect.Effect<unknown, unknown> =>
  recorded(place, context, (call) => {
    const reports = Array.from({ length: call.progress }, (_, n) => n)
    return Effect.forEach(reports, context.progress, { discard: true }).pipe(
      Effect.andThen(waiting(call)),
      Effect.andThen(doing(call, context))
    )
  })

const handler = ({ kind, place }: Args, context: Tool.CallContext): Effect.Effect<unknown, unknown> => {
  const { returns } = kinds[kind as KindName]
  return returns === undefined ? work(place, context) : returns as Effect.Effect<unknown>
}

type AnyTool = Tool.Tool<string, any, any, any, never>

const concurrency = (given: Args): Tool.Concurrency => given.isExclusive ? "exclusive" : "shared"

const gated = {
  validate: ({ gate }: Args) => gatesOf(gate).validate ?? Effect.succeed(true),
  authorize: ({ gate }: Args) => gatesOf(gate).authorize ?? Effect.succeed(true)
}

const keyed = {
  limits: [0, 1].map((index) => ({ key: (given: Args) => nameOfPermit(given.keys[index]), permits: 1 }))
}

/** How a tool is declared whose name has these parts. */
const declared = (parts: ReadonlyArray<string>) => ({
  ...(parts.includes("plain") ? {} : { concurrency, interrupt: "cancel" as const }),
  ...(parts.includes("gated") ? gated : {}),
  ...(parts.includes("keyed") ? keyed : {})
})

/** A model that makes these calls, and then is done. Without any it cannot be reached. */
const modelOf = (place: string, calls: ReadonlyArray<Call>) =>
  Script.layer(
    calls.length === 0 ? [Script.preflightError("provider_unavailable")] : [
      [
        ...calls.map((call, index) =>
          Script.toolCall(`n${index}`, toolOf(call), argumentsOf(call, `${place}/${index}`))
        ),
        Script.finish("tool_calls")
      ],
      [Script.text("done inside"), Script.finish("stop")]
    ]
  )

/** The calls of the run that a call is. */
const callsInside = (world: World, place: string): ReadonlyArray<Call> =>
  (kinds[world.callAt(place).kind].inside ?? []).map((_, index) => world.callAt(`${place}/${index}`))

const agent = (name: string, parts: ReadonlyArray<string>): AnyTool => {
  const tool = Tool.fromChat(name, {
    parameters: args,
    ...declared(parts),
    chat: ({ place }): Stream.Stream<Event.Event, unknown> =>
      Stream.unwrap(worldly((world) => {
        const calls = callsInside(world, place)
        const tools = toolsOf(calls)
        const run = Chat.stream("inside", { tools, policy: world.policy, toolTimeout, grace, requestId: place })
        return Effect.succeed(Stream.provide(run, modelOf(place, calls)))
      }))
  })
  const inner = tool.handler as unknown as (given: Args, call: Tool.CallContext) => Effect.Effect<unknown, unknown>
  const outer = (given: Args, call: Tool.CallContext) => recorded(given.place, call, () => inner(given, call))
  return { ...tool, handler: outer } as unknown as AnyTool
}

const made = new Map<string, AnyTool>()

const make = (name: string): AnyTool => {
  const parts = name.split("_")
  const shared = { parameters: args, handler, ...declared(parts) }
  switch (parts[0]) {
    case "agent":
      return agent(name, parts)
    case "look":
      return Tool.make(name, { ...shared, readOnly: true })
    case "block":
      return Tool.make(name, { ...shared, interrupt: "block" })
    case "retry":
      return Tool.make(name, { ...shared, retry: Schedule.recurs(2) })
    default:
      return Tool.make(name, { ...shared, manual: parts[0] === "manual" })
  }
}

const toolNamed = (name: string): AnyTool => {
  const tool = made.get(name) ?? make(name)
  made.set(name, tool)
  return tool
}

const isUnknown = ({ kind }: Call): boolean => kinds[kind].becomes === "unknown_tool"

export const isReadOnly = (call: Call): boolean => kinds[call.kind].tool === undefined && call.isReadOnly

/** The tool that a call names. */
export const toolOf = (call: Call): string => {
  const base = kinds[call.kind].tool ?? (call.isReadOnly ? "look" : "work")
  if (isUnknown(call) || base === "manual") return base
  const parts = [
    ...(call.gate === "none" ? [] : ["gated"]),
    ...(call.keys === "none" ? [] : ["keyed"]),
    ...(call.saysHow ? [] : ["plain"])
  ]
  return [base, ...parts].join("_")
}

/** The tools that calls name. */
export const toolsOf = (calls: ReadonlyArray<Call>): ReadonlyArray<AnyTool> =>
  Array.from(new Set(["work", ...calls.filter((call) => !isUnknown(call)).map(toolOf)]), toolNamed)
