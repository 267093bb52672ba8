/**
 * Tools that run while the reply is still being read. A call starts early when the wire has called its arguments final
 * and the policy lets its tool go; if the reply then ends badly, what was started on its word is called back. Whatever
 * is to be answered without a start waits until the reply has ended.
 */
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"
import type * as Event from "../Event.ts"
import type * as Response from "../Response.ts"
import type * as Tool from "../Tool.ts"
import type { Batch } from "./batch.ts"
import * as Division from "./division.ts"
import { Duet, type Model } from "./duet.ts"
import * as Plan from "./plan.ts"
import type * as Turn from "./turn.ts"

/** A reply that is being read, over its connection. */
export interface Reply<E> {
  readonly model: Model<E>
  readonly connection: Scope.Closeable
}

/** Ends of a reply that call back what was started on its word. */
const badEndings: ReadonlyArray<Response.FinishReason | null> = ["length", "content_filter", "error"]

/** Events after which nothing more is worth starting early: what follows decides on all calls at once. */
const isEnding = (event: Event.Event): boolean => event._tag === "MessageCompleted" || event._tag === "Error"

export class Overlap<E, R> {
  private readonly run: Turn.Run<E, R>
  private reply: Reply<never> | undefined
  private duet: Duet<E> | undefined

  constructor(run: Turn.Run<E, R>) {
    this.run = run
  }

  /** The reply is being read from now on. */
  begin(reply: Reply<never>): void {
    if (this.run.settings.policy.start !== "afterTurn" && this.run.mode === "auto") this.reply = reply
  }

  /** Calls that became final with these events and may start now. They have been folded already. */
  ready(events: ReadonlyArray<Event.Event>): ReadonlyArray<Plan.Decode> {
    if (this.reply === undefined || events.some(isEnding)) return []
    return events.flatMap((event) => event._tag === "ToolCallCompleted" ? this.decodable(event) : [])
  }

  private decodable(event: Event.Of<"ToolCallCompleted">): ReadonlyArray<Plan.Decode> {
    const { tools, settings, state } = this.run
    const tool = tools.get(event.name)
    if (tool === undefined || event.providerExecuted === true || !this.mayStart(tool)) return []
    const taken = state.calls.take(event.id)
    if (taken === undefined) return []
    const job = Plan.planned(taken.index, taken.call, tools, settings.policy)
    if (job._tag === "Decode" && taken.call.argumentsLost === undefined) return [job]
    state.calls.giveBack(taken.index)
    return []
  }

  private mayStart(tool: Tool.Any): boolean {
    return !tool.manual && (this.run.settings.policy.start === "onCallReady" || tool.readOnly)
  }

  /** Starts calls. The first ones open the batch, and give the reply as it is to be read beside them. */
  start(
    jobs: ReadonlyArray<Plan.Decode>,
    openBatch: (calls: number) => Effect.Effect<Batch<E>, never, R>
  ): Effect.Effect<Reply<E> | undefined, never, R> {
    return Effect.gen({ self: this }, function*() {
      const { reply } = this
      const duet = this.duet ?? new Duet<E>(yield* openBatch(Infinity), yield* Effect.context<never>())
      duet.batch.add(jobs)
      duet.batch.begin()
      if (this.duet !== undefined || reply === undefined) return undefined
      this.duet = duet
      yield* Scope.addFinalizer(reply.connection, duet.close)
      return { model: duet.reading(reply.model), connection: reply.connection }
    })
  }

  /** The reply has ended: nothing starts early any more. */
  end(finishReason: Response.FinishReason | null): void {
    this.reply = undefined
    if (badEndings.includes(finishReason)) this.duet?.batch.cancel(Division.ending(finishReason))
  }

  /** The batch of the early calls, for the rest of the turn to join. */
  handOver(): Batch<E> | undefined {
    const batch = this.duet?.batch
    this.duet = undefined
    return batch
  }
}
