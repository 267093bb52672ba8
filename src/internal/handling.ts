/**
 * One call while it runs: it waits for its permit, its handler runs against the clock, and it is answered by what came
 * of that, or by its timeout or cancellation, whichever is first. It holds its place until its fiber has ended or its
 * grace period is over, whatever it was answered with.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import type * as Semaphore from "effect/Semaphore"
import type * as Tracer from "effect/Tracer"
import type * as Message from "../Message.ts"
import type * as Tool from "../Tool.ts"
import * as Answer from "./answer.ts"
import type { Workshop } from "./batch.ts"
import type * as Emission from "./emission.ts"
import * as Execution from "./execution.ts"
import type { Helper, Helpers } from "./helpers.ts"
import type * as Plan from "./plan.ts"
import type { Task } from "./running.ts"
import * as Telemetry from "./telemetry.ts"
import { toolError } from "./toolError.ts"

type Numbered = Answer.Subject & { readonly index: number }

/** The batch a call belongs to. */
export interface Host<E> {
  readonly isOver: boolean
  readonly isTraced: boolean
  readonly desk: Answer.Desk<E, any>
  readonly emission: Emission.Emission
  readonly helpers: Helpers
  readonly permits: Semaphore.Semaphore
  readonly millisFor: (tool: Tool.Any | undefined) => number
  readonly own: (call: Message.ToolCall, fiber: Fiber.Fiber<unknown, unknown>, run: Plan.Run) => Task
  readonly respond: (job: Numbered, answer: Effect.Effect<Answer.Answer, E, any>) => void
  readonly settling: (job: Numbered, answer: Effect.Effect<Answer.Answer, E, any>) => Effect.Effect<void, E, any>
  readonly answerEnded: (job: Numbered, exit: Exit.Exit<unknown, E>) => void
  readonly vacated: (handling: Handling<E>) => void
}

export class Handling<E> {
  readonly job: Plan.Run
  private readonly workshop: Workshop<E>
  private readonly host: Host<E>
  /**
   * `handler`: its handler is alive and unanswered; `answering`: its own fiber writes the answer; `expired`: it was
   * answered over its head, and whatever its fiber still does is of no account.
   */
  private phase: "waiting" | "handler" | "answering" | "expired" = "waiting"
  private hasPlace = true
  private isForked = false
  private timer: Helper | undefined
  private task: Task | undefined
  private span: Tracer.Span | undefined

  constructor(job: Plan.Run, workshop: Workshop<E>, host: Host<E>) {
    this.job = job
    this.workshop = workshop
    this.host = host
  }

  start(): void {
    const fiber = Effect.runForkWith(this.workshop.services)(
      Effect.withFiber((fiber) => {
        this.task = this.host.own(this.job.call, fiber, this.job)
        return this.body()
      })
    )
    this.isForked = true
    if (this.phase === "handler") this.arm()
    fiber.addObserver((exit) => this.ended(exit))
  }

  /** Permit, handler, answer. A timeout or a cancellation takes the answer away from it. */
  private body(): Effect.Effect<void, E, any> {
    return Effect.flatMap(this.host.permits.take(1), () => {
      this.handlerStarts()
      return Effect.flatMap(this.execute(), (outcome) => {
        if (this.phase !== "handler" || this.host.isOver) return Effect.void
        this.disarm()
        this.endSpan(Exit.void, Execution.outcomeName(outcome))
        return this.host.settling(this.job, Answer.fromOutcome(this.host.desk, this.job, outcome))
      })
    })
  }

  private handlerStarts(): void {
    const { id, name, arguments: args } = this.job.call
    this.phase = "handler"
    this.host.emission.started(this.job.index, { _tag: "ToolExecutionStarted", id, name, arguments: args ?? {} })
    if (this.isForked) this.arm()
  }

  private execute(): Effect.Effect<unknown, never, any> {
    const { settings, executor } = this.workshop
    const execution = Execution.execute(this.job, settings, executor, (value) => this.progress(value))
    if (!this.host.isTraced) return execution
    const { call } = this.job
    return Telemetry.underSpan(
      execution,
      `execute_tool ${call.name}`,
      Execution.spanAttributes(call, settings),
      (span) => {
        this.span = span
      }
    )
  }

  private endSpan(exit: Exit.Exit<unknown, unknown>, outcome: string): void {
    this.span?.attribute("heddle.tool.outcome", outcome)
    Telemetry.end(this.span, exit, this.workshop.clock, this.workshop.services)
    this.span = undefined
  }

  private progress(value: unknown): void {
    if (this.phase !== "handler" || this.host.isOver) return
    const { id, name } = this.job.call
    this.host.emission.progress(this.job.index, { _tag: "ToolProgress", id, name, progress: value })
  }

  /** The timeout of a tool is enforced from here: it runs from the start of the handler, not while the call waits. */
  private arm(): void {
    const millis = this.host.millisFor(this.job.tool)
    if (Number.isFinite(millis)) this.timer = this.host.helpers.after(millis, () => this.expire())
  }

  private disarm(): void {
    this.phase = "answering"
    this.timer?.interruptUnsafe()
  }

  /** The time is up: the call is answered now, whatever its handler does about the interruption. */
  private expire(): void {
    const error = toolError("timeout", this.job.call)
    this.overrule(error, () => Answer.failed(this.host.desk, this.job, error))
  }

  /** The call is answered as cancelled now, and its handler told to stop, unless its answer is already being written. */
  cancel(detail: string, since?: number): void {
    const answer = () => Answer.cancelled(this.host.desk, this.job, detail)
    this.overrule(toolError("cancelled", this.job.call), answer, since)
  }

  /** It was given time since then, and that is over: whatever it is still doing is stopped, and nobody waits for it. */
  leave(since: number): void {
    this.interrupt(since)
    this.vacate()
  }

  private overrule(error: Tool.ToolError, answer: () => Effect.Effect<Answer.Answer, E, any>, since?: number): void {
    if (this.phase === "answering" || this.phase === "expired" || this.task === undefined) return
    this.phase = "expired"
    this.timer?.interruptUnsafe()
    this.endSpan(Exit.fail(error), error.reason)
    this.interrupt(since)
    this.host.respond(this.job, answer())
  }

  private interrupt(since = this.workshop.clock.currentTimeMillisUnsafe()): void {
    if (this.task !== undefined) this.workshop.running.interrupt(this.task, since, () => this.vacate())
  }

  private vacate(): void {
    if (!this.hasPlace) return
    this.hasPlace = false
    this.host.vacated(this)
  }

  private ended(exit: Exit.Exit<unknown, E>): void {
    const { job, host } = this
    this.endSpan(exit, "interrupted")
    if (this.phase === "handler" && !host.isOver) {
      this.disarm()
      const cause = Exit.isFailure(exit) ? Cause.squash(exit.cause) : undefined
      host.respond(job, Answer.failed(host.desk, job, toolError("handler_exit", job.call, { cause })))
    } else if (this.phase === "answering") {
      host.answerEnded(job, exit)
    }
    this.vacate()
    if (this.task !== undefined) this.workshop.running.remove(this.task)
  }
}
