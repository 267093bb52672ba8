/**
 * One call while it runs: it waits for its permits, passes its tool's gates, its handler runs against the clock, and it
 * is answered by what came of that, or by its timeout or cancellation, whichever is first. It holds its place until its
 * fiber has ended or its grace period is over, whatever it was answered with.
 */
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import type * as Tracer from "effect/Tracer"
import type * as Message from "../../Message.ts"
import type * as Tool from "../../Tool.ts"
import * as Answer from "../answer/answer.ts"
import * as ErrorFields from "../answer/errorFields.ts"
import * as ResultObject from "../answer/falaiResult.ts"
import * as Plan from "../decide/plan.ts"
import { timedOut, ToolError, toolError } from "../declare/outcome.ts"
import type * as Json from "../json.ts"
import * as Now from "../now.ts"
import type { Holding } from "../permits/heldPermits.ts"
import { Cancellation } from "../stop/cancellation.ts"
import * as Deadline from "../stop/deadline.ts"
import type { Helper, Helpers, Waiter } from "../stop/helpers.ts"
import * as Limits from "../stop/limits.ts"
import type { Owner, Task } from "../stop/ownedFibers.ts"
import * as Telemetry from "../telemetry.ts"
import type { Workshop } from "./batchEnvironment.ts"
import { callContext, type Reports } from "./callContext.ts"
import type * as Emission from "./eventOrder.ts"
import * as Execution from "./execution.ts"
import * as Gates from "./gates.ts"
import * as Direct from "./localExecutor.ts"

/** The batch a call belongs to. */
export interface Host<E> extends Answer.Desk<E, any> {
  readonly isOver: boolean
  readonly emission: Emission.Emission
  readonly helpers: Helpers
  /** The permits of the tree and of the tool's keys. */
  readonly hold: (run: Plan.Run, call: Tool.CallContext) => Holding
  readonly millisFor: (tool: Tool.Any | undefined) => number
  readonly own: (
    call: Message.ToolCall,
    fiber: Fiber.Fiber<unknown, unknown>,
    run: Plan.Run,
    owner: Owner
  ) => Task
  readonly respond: (job: Answer.Numbered, answer: Effect.Effect<Answer.Answer, E, any>) => void
  readonly settling: (job: Answer.Numbered, answer: Effect.Effect<Answer.Answer, E, any>) => Effect.Effect<void, E, any>
  readonly answerEnded: (job: Answer.Numbered, exit: Exit.Exit<unknown, E>) => void
  readonly suspend: (job: Plan.Run) => void
  readonly vacated: (handling: Handling<E>) => void
}

export class Handling<E> implements Owner, Reports, Waiter {
  readonly job: Plan.Run
  private readonly workshop: Workshop<E>
  private readonly host: Host<E>
  private readonly holding: Holding
  private readonly context: Tool.CallContext
  /**
   * `waiting`: for its permits; `gating`: its tool's gates are asked; `handler`: its handler is alive and unanswered;
   * `answering`: its own fiber writes the answer; `expired`: it was answered over its head, and whatever its fiber still
   * does is of no account.
   */
  private phase: "waiting" | "gating" | "handler" | "answering" | "expired" = "waiting"
  private hasPlace = true
  private isForked = false
  private timer: Helper | undefined
  /** When its gates were first asked, or its handler started, by the clock that only goes forward. */
  private since = 0n
  private task: Task | undefined
  private span: Tracer.Span | undefined
  /** For the runs that a handler starts which is left to its end: they are stopped softly, whatever stops this run. */
  inner: Cancellation | undefined
  private unfollow: (() => void) | undefined
  private updates: Json.JsonObject | undefined

  constructor(job: Plan.Run, workshop: Workshop<E>, host: Host<E>) {
    this.job = job
    this.workshop = workshop
    this.host = host
    this.context = callContext(job, workshop, this)
    this.holding = host.hold(job, this.context)
  }

  start(): void {
    const hasPermits = this.holding.takeNow()
    const fiber = Effect.runForkWith(this.services())(
      Effect.withFiber((fiber) => {
        this.task = this.host.own(this.job.call, fiber, this.job, this)
        return hasPermits ? this.begin() : this.inLine()
      }),
      // But for what it does in between, so that no permit is lost on its way here or back.
      { uninterruptible: !hasPermits }
    )
    this.isForked = true
    if (this.phase === "gating" || this.phase === "handler") this.arm()
    this.watch(fiber)
  }

  /** In a function of its own: what it makes is kept for as long as the handler is alive. */
  private watch(fiber: Fiber.Fiber<unknown, E>): void {
    fiber.addObserver((exit) => this.ended(exit))
  }

  private services(): Context.Context<any> {
    const { ambient: { cancellation }, found: { services } } = this.workshop
    const own = Context.add(services, Limits.CurrentHolding, this.holding)
    if (!this.job.isBlocking) return own
    const inner = new Cancellation()
    this.inner = inner
    this.unfollow = cancellation?.onRequest(() => inner.request(cancellation.reason, cancellation.cause))
    return Context.add(own, Limits.ParentCancellation, inner)
  }

  get isWaiting(): boolean {
    return this.phase === "waiting"
  }

  /** Whether it is to be left to its end. What blocks is the handler, and not what comes before it or after it. */
  get isBlocking(): boolean {
    return this.job.isBlocking && this.phase === "handler"
  }

  /** It waits for its permits, and returns them when it has come to its end. */
  private inLine(): Effect.Effect<unknown, E, any> {
    const work = Effect.interruptible(Effect.suspend(() => this.begin()))
    return Effect.flatMap(this.holding.take(work), () => this.holding.giveBack())
  }

  /**
   * It has its permits: gates, handler, answer. A timeout or a cancellation takes the answer away from it. The run may have
   * ended while it waited.
   */
  private begin(): Effect.Effect<void, E, any> {
    if (this.host.isOver) return Effect.void
    return Gates.isGated(this.job.tool) ? this.gated() : this.handled()
  }

  private gated(): Effect.Effect<void, E, any> {
    this.enter("gating")
    return Effect.flatMap(Gates.denial(this.job, this.context), (error) => {
      if (this.phase !== "gating" || this.host.isOver) return Effect.void
      if (this.isLate) return this.expire()
      if (error === undefined) return this.allowed()
      this.disarm()
      return this.answering(Answer.denied(this.host, this.job, error))
    })
  }

  /** The gates let it pass. It runs, or waits for somebody's approval without holding its place. */
  private allowed(): Effect.Effect<void, E, any> {
    const needed = Plan.needsApproval(this.job, this.context, this.workshop.settings.approved)
    return Effect.flatMap(needed, (isNeeded) => {
      if (this.phase !== "gating" || this.host.isOver) return Effect.void
      if (this.isLate) return this.expire()
      this.host.helpers.stop(this.timer)
      if (!isNeeded) return this.handled()
      this.disarm()
      this.host.suspend(this.job)
      this.answered()
      return Effect.void
    })
  }

  private handled(): Effect.Effect<void, E, any> {
    this.handlerStarts()
    const { job, workshop: { found: { executor, isTraced } } } = this
    // The default executor keeps its contract: what it comes to is taken in where it comes, without an effect in between.
    if (executor === Direct.direct && !isTraced && job.tool.retry === undefined) {
      return Direct.executeThen(job.tool, job.args, this.context, this)
    }
    return Effect.matchCauseEffect(this.execute(), {
      onSuccess: (outcome) => this.came(outcome),
      onFailure: (cause) => this.came(Execution.crashed(this.job.call, cause))
    })
  }

  /** The handler has come to its end, and is answered by it unless something else was faster. */
  came(outcome: unknown): Effect.Effect<void, E, any> {
    if (this.phase !== "handler" || this.host.isOver) return Effect.void
    if (this.isLate) return this.expire()
    this.disarm()
    const counted = this.counted(outcome)
    if (this.span !== undefined) this.endSpanBy(counted)
    const answer = Answer.answerTo(this.host, this.job, counted)
    // What failed adds nothing, also where the caller's policy puts another result in its place.
    const updates = Execution.isFailure(counted) ? undefined : this.updates
    return this.answering(updates === undefined ? answer : Now.map(answer, (value) => Answer.updating(value, updates)))
  }

  /** Its own fiber answers it, and has nothing more to do. */
  private answering(answer: Effect.Effect<Answer.Answer, E, any>): Effect.Effect<void, E, any> {
    const settled = Now.map(this.host.settling(this.job, answer), () => this.answered())
    // An error policy that fails the run does so now: the fiber ends only when all that it forked have ended.
    return Exit.isExit(settled) && Exit.isSuccess(settled) ?
      settled :
      Effect.tapError(settled, (error) =>
        Effect.sync(() => {
          this.host.answerEnded(this.job, Exit.fail(error))
          this.answered()
        }))
  }

  /**
   * From now on its fiber has one grace period, since it ends only when those that the handler has forked have stopped.
   * Nearly always it ends in this very step, so that no timer is set before that has passed.
   */
  private answered(): void {
    const since = this.host.now()
    void Promise.resolve().then(() => {
      if (this.hasPlace) this.interrupt(since)
    })
  }

  /** What an outcome counts as under the policy. One that cannot even be looked at is a failure of the handler's. */
  private counted(outcome: unknown): unknown {
    if (this.workshop.settings.policy.results === "plain") return outcome
    try {
      const { contextUpdate, outcome: counted } = ResultObject.read(outcome)
      if (contextUpdate !== undefined) this.updates = { ...this.updates, ...contextUpdate }
      return counted
    } catch (cause) {
      return { _tag: "Error", error: toolError("invalid_return", this.job.call, { cause }) }
    }
  }

  private handlerStarts(): void {
    const { id, name, arguments: args } = this.job.call
    this.enter("handler")
    this.host.emission.started(this.job.index, { _tag: "ToolExecutionStarted", id, name, arguments: args ?? {} })
  }

  /** Code of the caller's is about to run, against the clock. */
  private enter(phase: "gating" | "handler"): void {
    this.phase = phase
    this.since = this.workshop.found.clock.monotonicTimeNanosUnsafe()
    if (this.isForked) this.arm()
  }

  private execute(): Effect.Effect<unknown, never, any> {
    const { executor, isTraced } = this.workshop.found
    const execution = Execution.execute(this.job, this.context, executor, this)
    if (!isTraced) return execution
    const { call } = this.job
    return Telemetry.underSpan(
      execution,
      `execute_tool ${call.name}`,
      Execution.spanAttributes(call, this.workshop),
      (span) => {
        this.span = span
      }
    )
  }

  /** Nothing starts again after a stop, nor when the time is up. What an attempt that failed had to add does not count. */
  again(): boolean {
    if (this.phase !== "handler" || this.host.isOver || this.isLate || this.inner?.isRequested === true) return false
    this.updates = undefined
    return true
  }

  /** What a handler reports ends its span well, and a crash does not. */
  private endSpanBy(outcome: unknown): void {
    const name = Execution.outcomeName(outcome)
    const error = name === "invalid" ? toolError("invalid_return", this.job.call) : undefined
    this.endSpan(ErrorFields.spanExit(Execution.isFailure(outcome) ? outcome.error : error), name)
  }

  private endSpan(exit: Exit.Exit<unknown, unknown>, outcome: string): void {
    const error = Exit.isFailure(exit) ? Option.getOrUndefined(Cause.findErrorOption(exit.cause)) : undefined
    if (error instanceof ToolError) this.span?.attribute("error.type", error.reason)
    this.span?.attribute("heddle.tool.outcome", outcome)
    Telemetry.end(this.span, exit, this.workshop.found.clock, this.workshop.found.services)
    this.span = undefined
  }

  progress(value: unknown): void {
    if (this.phase !== "handler" || this.host.isOver) return
    const { id, name } = this.job.call
    this.host.emission.progress(this.job.index, { _tag: "ToolProgress", id, name, progress: value })
  }

  updateContext(values: Json.JsonObject): void {
    if (this.phase === "handler") this.updates = { ...this.updates, ...values }
  }

  /** The timeout of a tool is enforced from here: it runs from the start of the handler, not while the call waits. */
  private arm(): void {
    const { millis } = this
    if (Number.isFinite(millis)) this.timer = this.host.helpers.after(millis, this)
  }

  /** A tool may take all the time it likes; who asks whether it may run has no more than any other tool. */
  private get millis(): number {
    const millis = this.host.millisFor(this.job.tool)
    return this.phase === "gating" ? Math.min(millis, this.host.millisFor(undefined)) : millis
  }

  /** Whether the time is up although no timer has said so: code that blocks the thread keeps the timers from firing. */
  private get isLate(): boolean {
    const { millis } = this
    if (!Number.isFinite(millis)) return false
    return Number(this.workshop.found.clock.monotonicTimeNanosUnsafe() - this.since) / 1e6 > millis
  }

  /** What comes too late is dropped. */
  private expire(): Effect.Effect<void> {
    this.timeUp()
    return Effect.void
  }

  private disarm(): void {
    this.phase = "answering"
    this.host.helpers.stop(this.timer)
  }

  /** The time is up: the call is answered now, whatever its handler does about the interruption. */
  timeUp(): void {
    const { call } = this.job
    if (this.phase === "gating") {
      const late = Gates.late(call, this.millis)
      return this.overrule(late, () => Answer.denied(this.host, this.job, late))
    }
    const error = timedOut(call, this.millis)
    this.overrule(error, () => Answer.failed(this.host, this.job, error))
  }

  /** The call is answered as cancelled now, and its handler told to stop, unless its answer is already being written. */
  cancel(detail: string, since?: number): void {
    const answer = () => Answer.cancelled(this.host, this.job, detail)
    this.overrule(toolError("cancelled", this.job.call), answer, since)
  }

  /** It may finish, in the grace period that began then. The runs that it waits for are to come to their end. */
  spare(since: number, cause: string): void {
    if (this.task !== undefined) this.workshop.running.spare(this.task, since, cause)
  }

  /** It was given time since then, and that is over: whatever it is still doing is stopped, and nobody waits for it. */
  leave(since: number): void {
    this.interrupt(since)
    this.vacate()
  }

  private overrule(error: Tool.ToolError, answer: () => Effect.Effect<Answer.Answer, E, any>, since?: number): void {
    if (this.phase === "answering" || this.phase === "expired" || this.task === undefined) return
    this.phase = "expired"
    this.host.helpers.stop(this.timer)
    this.endSpan(ErrorFields.spanExit(error), error.reason)
    // It is answered while it still has its place, so that nobody who takes its place counts as its sibling.
    this.host.respond(this.job, answer())
    this.interrupt(since)
  }

  isLimited(until: number): void {
    this.holding.limit(until)
  }

  isSpared(cause: string | undefined): void {
    this.inner?.request(cause === undefined ? "interrupt" : Deadline.isCause(cause) ? "deadline" : "cancel", cause)
  }

  hasBeenStopped(): void {
    this.holding.stop()
  }

  isAbandoned(): void {
    this.endSpan(Exit.void, "abandoned")
    this.holding.release()
  }

  private interrupt(since = this.workshop.found.clock.currentTimeMillisUnsafe()): void {
    if (this.task !== undefined) this.workshop.running.interrupt(this.task, since, () => this.vacate())
  }

  private vacate(): void {
    if (!this.hasPlace) return
    this.hasPlace = false
    this.holding.release()
    this.host.vacated(this)
  }

  private ended(exit: Exit.Exit<unknown, E>): void {
    const { job, host } = this
    this.unfollow?.()
    if (this.phase !== "answering" && this.phase !== "expired" && !host.isOver) {
      const error = brokenOff(job.call, exit)
      this.endSpan(ErrorFields.spanExit(error), "interrupted")
      this.disarm()
      host.respond(job, Answer.failed(host, job, error))
    } else {
      this.endSpan(exit, "interrupted")
      if (this.phase === "answering") host.answerEnded(job, exit)
    }
    this.vacate()
    if (this.task !== undefined) this.workshop.running.remove(this.task)
  }
}

/** What is said of a call whose fiber has ended without an answer. */
const brokenOff = (call: Message.ToolCall, exit: Exit.Exit<unknown, unknown>): Tool.ToolError => {
  if (Exit.isSuccess(exit)) return toolError("handler_exit", call)
  const reason = Cause.hasInterruptsOnly(exit.cause) ? "handler_exit" : "handler_raised"
  return toolError(reason, call, { cause: Cause.squash(exit.cause) })
}
