/**
 * Watches one attempt through the run's own services: each handler call by an executor, each request opened by an
 * adapter, and all log messages. It changes nothing about them.
 */
import * as Channel from "effect/Channel"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as Executor from "../../Executor.ts"
import * as Requests from "../../internal/ask/request.ts"
import type * as Tool from "../../Tool.ts"
import * as Recorder from "../Recorder.ts"

/** A handler start. Two starts with the same key are two starts of one attempt at one call. */
export interface Start {
  readonly at: number
  readonly key: string
  readonly name: string
  /** Group of the start: starts in one group belong to one run. A nested run has a group other than its handler's. */
  readonly group: string
  /** Name of the surrounding handler, if any. */
  readonly inside: string
  readonly call: Tool.CallContext
  readonly isExclusive: boolean
}

/** An opened request. */
interface Asked {
  readonly at: number
  readonly request: Adapter.Request
  readonly inside: string
}

/** Record of an attempt. `usual` is the concurrency of tools without the option. */
export interface Watch {
  readonly usual: Tool.Concurrency
  readonly recorder: Recorder.Recorder
  readonly starts: Array<Start>
  readonly requests: Array<Asked>
  readonly abandoned: Array<Event.Abandoned>
  closed: number
}

/** Name of the running handler; empty outside handlers. */
const Inside = Context.Reference<string>("heddle/testing/EveryStep/Inside", { defaultValue: () => "" })

export const make = (usual: Tool.Concurrency): Effect.Effect<Watch> =>
  Effect.map(
    Recorder.make,
    (recorder) => ({ usual, recorder, starts: [], requests: [], abandoned: [], closed: 0 })
  )

const describe = (call: Tool.CallContext, inside: string): string => {
  const own = `${call.name} (call ${call.id}${call.attempt > 1 ? `, attempt ${call.attempt}` : ""})`
  return inside === "" ? own : `${inside} > ${own}`
}

/** Decides as the runtime does: a throwing function makes the call exclusive. */
const isExclusive = ({ concurrency }: Tool.Any, args: unknown, usual: Tool.Concurrency): boolean => {
  if (typeof concurrency !== "function") return (concurrency ?? usual) === "exclusive"
  try {
    return concurrency(args) === "exclusive"
  } catch {
    return true
  }
}

type Handler = (args: unknown, call: Tool.CallContext) => unknown

/** Watches a handler. A non-Effect value counts as started, and is passed on for the executor to refuse. */
const watched = (watch: Watch, tool: Tool.Any, handler: Handler, inside: string, clock: Clock.Clock): Handler =>
(
  args,
  call
) => {
  const name = describe(call, inside)
  const started = () =>
    watch.starts.push({
      at: clock.currentTimeMillisUnsafe(),
      key: `${inside} ${call.idempotencyKey} ${call.attempt}`,
      name,
      group: `${inside} ${call.requestId}`,
      inside,
      call,
      isExclusive: isExclusive(tool, args, watch.usual)
    })
  const result = handler(args, call)
  if (!Effect.isEffect(result)) {
    started()
    return result
  }
  return Effect.suspend(() => {
    started()
    return Effect.provideService(result as Effect.Effect<unknown, unknown, any>, Inside, name)
  }).pipe(watch.recorder.track(name))
}

/** Watches an executor. A non-Effect value is passed on for the runtime to refuse. */
const executor = (watch: Watch, inner: Executor.Service): Executor.Service => ({
  execute: ((tool: Tool.Any, args: unknown, call: Tool.CallContext) =>
    Effect.gen(function*() {
      const { handler } = tool
      const inside = yield* Inside
      const clock = yield* Clock.Clock
      const subject = handler === undefined ? tool : { ...tool, handler: watched(watch, tool, handler, inside, clock) }
      const outcome: unknown = inner.execute(subject as Tool.Any, args, call)
      return Effect.isEffect(outcome) ? yield* outcome as Effect.Effect<unknown, unknown, any> : outcome
    })) as unknown as Executor.Service["execute"]
})

/** Watches an adapter. The first pull opens a request, and every opened request is closed once. */
const adapter = (watch: Watch, inner: Adapter.Adapter["Service"]): Adapter.Adapter["Service"] => ({
  ...inner,
  stream: (request) => {
    const asked = Effect.gen(function*() {
      watch.requests.push({ at: yield* Clock.currentTimeMillis, request, inside: yield* Inside })
    })
    const closed = Effect.sync(() => watch.closed++)
    const watched = Channel.acquireUseRelease(asked, () => Stream.toChannel(inner.stream(request)), () => closed)
    return Stream.unwrap(Effect.succeed(Stream.fromChannel(watched)))
  }
})

const isAbandoned = (value: unknown): value is Event.Abandoned =>
  typeof value === "object" && value !== null && "id" in value && "name" in value && "ageMillis" in value

/** Collects abandoned handlers from warnings: an interrupted run can name them nowhere else. */
const logger = (watch: Watch) =>
  Logger.make(({ message }) => {
    if (Array.isArray(message)) watch.abandoned.push(...message.flat().filter(isAbandoned))
  })

/** Returns the same services, watched. Log messages go no further. */
export const services = (watch: Watch) => <R>(context: Context.Context<R>): Context.Context<R> => {
  const inside = context.pipe(
    Context.add(Executor.Executor, executor(watch, Context.get(context, Executor.Executor))),
    Context.add(Logger.CurrentLoggers, new Set([logger(watch)]))
  )
  return Option.match(Context.getOption(context, Adapter.Adapter), {
    onNone: () => inside,
    onSome: (service) => Context.add(inside, Adapter.Adapter, Requests.changed(service, (one) => adapter(watch, one)))
  })
}
