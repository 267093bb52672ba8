/**
 * Marks the boundaries at which `everyKill` kills a program. Run by itself, the program is never killed and writes
 * nothing.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import * as Adapter from "../Adapter.ts"
import * as Executor from "../Executor.ts"
import * as Requests from "../internal/ask/request.ts"
import type * as Journal from "../Journal.ts"
import * as Session from "../Session.ts"
import type * as Tool from "../Tool.ts"
import * as Node from "./internal/node.ts"
import * as WorldLog from "./internal/worldLog.ts"

/**
 * Call parts identifying its effect.
 *
 * @category models
 */
export interface Call extends Pick<Tool.CallContext, "attempt" | "idempotencyKey"> {
  /** Call as the model made it. Its name and arguments identify the effect. */
  readonly toolCall: Pick<Tool.CallContext["toolCall"], "name" | "arguments">
}

/** A process in an attempt: its log, and the boundary at which it dies. */
class Process {
  readonly write: (happened: WorldLog.Happened) => void
  private readonly folder: string
  private readonly plan: ReadonlyArray<number>
  /** Index of the next kill in the plan. */
  private kill = 0
  private count = 0
  /** Last logged version of each journal. */
  private readonly versions = new Map<string, number>()

  constructor(folder: string, plan: string) {
    this.folder = folder
    this.plan = plan.split(",").filter((text) => text !== "").map(Number)
    this.write = WorldLog.writer(folder)
  }

  reached(name: string): void {
    this.count++
    this.write({ _tag: "Reached", name })
    while (this.kill < this.plan.length && WorldLog.isKilled(this.folder, this.kill)) this.kill++
    if (this.plan[this.kill] === this.count && WorldLog.claimKill(this.folder, this.kill)) this.die(name)
  }

  recorded(session: string, version: number, record: Journal.Record, isOwn: boolean): void {
    const last = this.versions.get(session) ?? 0
    // Another part of the process may have read the record before its writer logs it.
    if (!isOwn && version <= last) return
    this.versions.set(session, Math.max(last, version))
    this.write({ _tag: "Recorded", session, version, isOwn, record })
  }

  private die(name: string): void {
    this.write({ _tag: "Killed", kill: this.kill, at: this.count, name })
    Node.process?.kill(Node.process.pid, "SIGKILL")
    // Blocks, so that nothing happens between the signal and its effect.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)
  }
}

let known: Process | undefined

const variable = (name: keyof typeof WorldLog.variables): string | undefined =>
  Node.process?.env[WorldLog.variables[name]]

/** Returns this code's process, if `everyKill` runs it. */
const current = (): Process | undefined => {
  const folder = variable("folder")
  if (folder === undefined) return undefined
  known ??= new Process(folder, variable("plan") ?? "")
  return known
}

/**
 * Returns the attempt's folder, shared by all its processes and by no other attempt: the place for a database. Without
 * `everyKill` it returns the working directory.
 *
 * **Example** (The place of a database)
 *
 * ```ts import.meta.vitest
 * import { KillPoint } from "heddle/testing"
 *
 * KillPoint.folder() // => "."
 * ```
 *
 * @category constructors
 */
export const folder = (): string => variable("folder") ?? "."

/**
 * Marks a boundary: the process may die here.
 *
 * **Example** (A boundary of your own)
 *
 * ```ts import.meta.vitest
 * import { KillPoint } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * Effect.runSync(KillPoint.at("before the file is renamed")) // => undefined
 * ```
 *
 * @category marks
 */
export const at = (name: string): Effect.Effect<void> => Effect.sync(() => current()?.reached(name))

/**
 * Marks a call's effect on the world, with a boundary before and after. Use it in a handler, in place of an
 * irreversible effect, or wrapped around the effect.
 *
 * **Example** (A payment)
 *
 * ```ts import.meta.vitest
 * import { Message, Tool, ToolRunner } from "heddle"
 * import { KillPoint } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const pay = Tool.make("pay", {
 *   parameters: {},
 *   handler: (_, call) => Effect.as(KillPoint.act(call), "paid")
 * })
 * const { messages } = await Effect.runPromise(ToolRunner.run([Message.toolCall("c0", "pay")], [pay]))
 *
 * messages[0]?.content // => "paid"
 * ```
 *
 * @category marks
 */
export const act = <A = void, E = never, R = never>(
  { attempt, idempotencyKey, toolCall: { arguments: args, name } }: Call,
  effect: Effect.Effect<A, E, R> = Effect.void as Effect.Effect<any>
): Effect.Effect<A, E, R> =>
  Effect.gen(function*() {
    yield* at(`before the effect of ${name}`)
    current()?.write({ _tag: "Acted", name, what: WorldLog.whatOf(name, args), key: idempotencyKey, attempt })
    const value = yield* effect
    yield* at(`after the effect of ${name}`)
    return value
  })

const write = (happened: WorldLog.Happened): Effect.Effect<void> => Effect.sync(() => current()?.write(happened))

/**
 * Marks that a call's handler has returned, outside an `Executor` watched by {@link watch}. A boundary.
 *
 * **Example** (A handler of another library)
 *
 * ```ts import.meta.vitest
 * import { KillPoint } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const call = { attempt: 1, idempotencyKey: "k", toolCall: { name: "pay", arguments: {} } }
 *
 * Effect.runSync(KillPoint.returned(call)) // => undefined
 * ```
 *
 * @category marks
 */
export const returned = ({ toolCall: { arguments: args, name } }: Call): Effect.Effect<void> =>
  Effect.andThen(write({ _tag: "Returned", what: WorldLog.whatOf(name, args) }), at(`the end of ${name}`))

/**
 * Marks a model request outside an `Adapter` watched by {@link watch}.
 *
 * **Example** (A model of another library)
 *
 * ```ts import.meta.vitest
 * import { KillPoint } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * Effect.runSync(KillPoint.asked) // => undefined
 * ```
 *
 * @category marks
 */
export const asked: Effect.Effect<void> = write({ _tag: "Asked" })

/**
 * Reports the program's result, any JSON. It is compared with the uninterrupted run's result, so leave out values that
 * are new each time, such as run ids. It does not end the process: let the program end afterwards.
 *
 * **Example** (The end of a program)
 *
 * ```ts import.meta.vitest
 * import { KillPoint } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * Effect.runSync(KillPoint.done({ text: "It is 42." })) // => undefined
 * ```
 *
 * @category marks
 */
export const done = (value: unknown): Effect.Effect<void> => write({ _tag: "Done", value })

const store = (inner: Journal.Service): Journal.Service => ({
  ...inner,
  append: (id, expected, records, options) =>
    Effect.gen(function*() {
      const tags = records.map(({ _tag }) => _tag).join(" ")
      yield* at(`before ${tags}`)
      const version = yield* inner.append(id, expected, records, options)
      const first = version - records.length + 1
      records.forEach((record, index) => current()?.recorded(id, first + index, record, true))
      yield* at(`after ${tags}`)
      return version
    }),
  read: (id, after) =>
    Stream.tap(
      inner.read(id, after),
      ({ record, version }) => Effect.sync(() => current()?.recorded(id, version, record, false))
    )
})

const adapter = (inner: Adapter.Service): Adapter.Service => ({
  ...inner,
  stream: (request) =>
    Stream.unwrap(Effect.as(asked, Stream.tap(inner.stream(request), ({ _tag }) => at(`the model's ${_tag}`))))
})

const executor = (inner: Executor.Service): Executor.Service => ({
  execute: ((tool: Tool.Any, args: unknown, call: Tool.CallContext) =>
    Effect.tap(
      inner.execute(tool, args, call) as Effect.Effect<Tool.Outcome>,
      () => returned(call)
    )) as Executor.Service["execute"]
})

const services = <A>(context: Context.Context<A>): Context.Context<A> => {
  const withExecutor = Context.add(context, Executor.Executor, executor(Context.get(context, Executor.Executor)))
  const withAdapter = Option.match(Context.getOption(withExecutor, Adapter.Adapter), {
    onNone: () => withExecutor,
    onSome: (service) => Context.add(withExecutor, Adapter.Adapter, Requests.changed(service, adapter))
  })
  return Option.match(Context.getOption(withAdapter, Session.Store), {
    onNone: () => withAdapter,
    onSome: (service) => Context.add(withAdapter, Session.Store, store(service))
  })
}

/**
 * Returns the same services with boundaries: before and after each store append, at each adapter event, and at the end
 * of each handler run by the executor. Appends and requests are logged.
 *
 * **Example** (The services of a program)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { KillPoint, Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const services = KillPoint.watch(Layer.merge(model, Session.Store.layerMemory))
 * const program = Effect.gen(function*() {
 *   const opened = yield* Session.open("s1")
 *   const { session } = yield* Session.keep(opened, (session) => Session.reply(session, "Hi"))
 *   yield* KillPoint.done(session.status)
 *   return session.status
 * })
 *
 * await Effect.runPromise(Effect.provide(program, services)) // => "completed"
 * ```
 *
 * @category constructors
 */
export const watch = <A, E, R>(layer: Layer.Layer<A, E, R>): Layer.Layer<A, E, R> =>
  Layer.flatMap(layer, (context) => Layer.succeedContext(services(context)))
