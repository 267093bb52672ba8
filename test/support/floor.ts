/**
 * The shop floor of a scenario: the tools it calls, each with one handler that is watched. Every start and end is noted
 * with its time, and at each of them it is checked which tools may run concurrently, so that no scenario passes with
 * an instant at which it was broken. Gates count as work.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { Tool } from "heddle"
import * as Tools from "./tools.ts"

/** What happened to a handler: it started, ended by itself, or was stopped. */
export type Mark = readonly [at: number, what: "start" | "end" | "stop", id: string]

/** A tool as a scenario declares it, which is read as falai reads it: exclusive and blocking unless it says otherwise. */
export type Declared = Partial<
  Omit<Tool.Options<typeof Tools.anything, any, any, never>, "parameters" | "handler" | "failure">
>

type Args = Readonly<Record<string, unknown>>

export type Body = (args: Args, call: Tool.CallContext) => Effect.Effect<unknown, unknown>

export type AnyTool = Tool.Tool<string, any, any, any, never>

/** One call of a scenario. Its tool is called as it is: `a` by `a`. */
export interface Work {
  readonly id: string
  readonly args?: Args
  readonly tool: AnyTool
}

/** What a concurrency-safe tool is declared as. */
export const safe = { concurrency: "shared" } as const

/** One that may be interrupted. */
export const cancelable = { concurrency: "shared", interrupt: "cancel" } as const

/** A handler at work. Two calls may share an id. */
interface Worker {
  readonly id: string
  readonly isShared: boolean
}

export class Floor {
  readonly marks: Array<Mark> = []
  /** Instants at which a handler ran beside an exclusive one, or more ran than the bound allows. */
  readonly breaches: Array<string> = []
  peak = 0
  private readonly bound: number
  private readonly working = new Set<Worker>()

  constructor(bound = 10) {
    this.bound = bound
  }

  /** The ids of the calls that are running. */
  get live(): ReadonlyArray<string> {
    return Array.from(this.working, ({ id }) => id)
  }

  /** A call of a tool of its own. */
  work(id: string, body: Body | Effect.Effect<unknown, unknown>, declared: Declared = {}): Work {
    return { id, tool: this.tool(id, body, declared) }
  }

  tool(name: string, body: Body | Effect.Effect<unknown, unknown>, declared: Declared = {}): AnyTool {
    const { authorize, validate, ...others } = declared
    const isShared = (args: Args): boolean => {
      const { concurrency } = declared
      return (typeof concurrency === "function" ? concurrency(args) : concurrency) === "shared"
    }
    const gate = (asked: typeof authorize | typeof validate) => (args: Args, call: Tool.CallContext) =>
      this.occupied(
        `gate of ${call.id}`,
        isShared(args),
        Effect.suspend((): Effect.Effect<any, unknown> => {
          const verdict: unknown = asked?.(args, call)
          return Effect.isEffect(verdict) ? verdict as Effect.Effect<unknown> : Effect.succeed(verdict)
        })
      )
    return Tool.make(name, {
      parameters: Tools.anything,
      ...others,
      ...(validate === undefined ? {} : { validate: gate(validate) }),
      ...(authorize === undefined ? {} : { authorize: gate(authorize) }),
      handler: (args, call) =>
        this.watched(call.id, isShared(args), typeof body === "function" ? body(args, call) : body)
    }) as AnyTool
  }

  private watched<A, E, R>(id: string, isShared: boolean, effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> {
    return Effect.uninterruptibleMask((restore) =>
      this.mark("start", id).pipe(
        Effect.andThen(restore(this.occupied(id, isShared, effect))),
        Effect.onExit((exit) => this.mark(Exit.isFailure(exit) && Exit.hasInterrupts(exit) ? "stop" : "end", id))
      )
    )
  }

  private mark(what: Mark[1], id: string): Effect.Effect<void> {
    return Effect.map(Clock.currentTimeMillis, (at) => {
      this.marks.push([at, what, id])
    })
  }

  private occupied<A, E, R>(id: string, isShared: boolean, effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> {
    const worker: Worker = { id, isShared }
    return Effect.acquireUseRelease(
      Effect.sync(() => {
        this.working.add(worker)
        this.sample(`${id} started`)
      }),
      () => effect,
      () =>
        Effect.sync(() => {
          this.sample(`${id} ended`)
          this.working.delete(worker)
        })
    )
  }

  private sample(when: string): void {
    const working = Array.from(this.working)
    this.peak = Math.max(this.peak, working.length)
    if (working.length > 1 && working.some(({ isShared }) => !isShared)) {
      this.breaches.push(`${when}: an exclusive one among ${this.live.join(", ")}`)
    }
    if (working.length > this.bound) this.breaches.push(`${when}: ${working.length} at once`)
  }
}

/** A handler that takes that long and yields something. */
export const takes = (millis: number, value: unknown = `after ${millis}`): Effect.Effect<unknown> =>
  Effect.as(Effect.sleep(millis), value)

/** A handler that takes that long and reports a failure. */
export const failsAfter = (millis: number, reason: unknown = "kaboom"): Effect.Effect<never, unknown> =>
  Effect.andThen(Effect.sleep(millis), Effect.fail(reason))
