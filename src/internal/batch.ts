/**
 * The calls of one turn while they run. Each runs in a fiber that the run owns, takes a permit while its handler is
 * alive, and is answered exactly once, by its outcome or by its timeout. The reader pulls events; nothing here waits
 * for the reader.
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import type * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import type * as Pull from "effect/Pull"
import * as Semaphore from "effect/Semaphore"
import type * as Event from "../Event.ts"
import type * as Executor from "../Executor.ts"
import type * as Message from "../Message.ts"
import type * as Policy from "../Policy.ts"
import type * as Tool from "../Tool.ts"
import * as Admission from "./admission.ts"
import * as Answer from "./answer.ts"
import { callContext } from "./callContext.ts"
import * as Emission from "./emission.ts"
import { Mailbox } from "./mailbox.ts"
import type * as Plan from "./plan.ts"
import type { Running } from "./running.ts"
import * as Telemetry from "./telemetry.ts"
import { toolError } from "./toolError.ts"

export interface Settings {
  readonly policy: Policy.Policy
  /** Milliseconds a handler may take where its tool says nothing else. */
  readonly timeoutMillis: number
  readonly bound: number
  readonly context: Readonly<Record<string, unknown>>
  readonly requestId: string
  readonly sessionId: string | null
  readonly stepIndex: number
}

/** What a batch works with. */
export interface Workshop<E> {
  readonly settings: Settings
  readonly executor: Executor.Service
  readonly desk: Answer.Desk<E, any>
  readonly running: Running
  readonly services: Context.Context<any>
}

/**
 * One call that runs. `handler`: its handler is alive and unanswered; `answering`: its own fiber writes the answer;
 * `expired`: the time was up first, and whatever its fiber still does is of no account.
 */
interface Active {
  readonly job: Plan.Run
  phase: "waiting" | "handler" | "answering" | "expired"
  hasPlace: boolean
  isForked: boolean
  timer: Fiber.Fiber<unknown, unknown> | undefined
  fiber: Fiber.Fiber<unknown, unknown> | undefined
}

export class Batch<E> {
  private readonly jobs: ReadonlyArray<Plan.Job>
  private readonly workshop: Workshop<E>
  private readonly clock: Clock.Clock
  private readonly mailbox = new Mailbox<E>()
  private readonly emission: Emission.Emission
  private readonly permits: Semaphore.Semaphore
  private readonly answered: Array<Answer.Answer | undefined>
  private readonly completed: Array<Answer.Answer> = []
  private readonly helpers = new Set<Fiber.Fiber<unknown, unknown>>()
  private readonly unsubscribe: () => void
  private admission: Admission.Admission
  private holding = 0
  private hasBegun = false
  private isClosed = false
  private isAdmitting = false
  private hasRoom = false
  private patience: Fiber.Fiber<unknown, unknown> | undefined

  constructor(jobs: ReadonlyArray<Plan.Job>, workshop: Workshop<E>, clock: Clock.Clock) {
    const { settings } = workshop
    this.jobs = jobs
    this.workshop = workshop
    this.clock = clock
    this.emission = Emission.make(settings.policy, jobs.length, (events) => this.mailbox.offer(events))
    this.permits = Semaphore.makeUnsafe(settings.bound)
    this.answered = Array.from(jobs, () => undefined)
    this.admission = Admission.make(settings.bound, jobs.filter((job) => job._tag === "Run"))
    this.unsubscribe = workshop.running.onEnd(() => this.admit())
  }

  /** The events, in the order the policy asks for; it ends when every call has been answered. */
  readonly pull: Pull.Pull<readonly [Event.Event, ...Array<Event.Event>], E> = Effect.suspend(() => {
    this.begin()
    if (this.mailbox.isEmpty && this.completed.length === this.jobs.length) return Cause.done()
    return Effect.flatMap(this.mailbox.take, (events) =>
      isNonEmpty(events) ? Effect.succeed(events) : this.pull)
  })

  /** The answers so far, in call order. */
  get answers(): ReadonlyArray<Answer.Answer> {
    return this.answered.filter((answer) => answer !== undefined)
  }

  /** The halt that decides: the first call's, or that of the call that completed first. */
  get halt(): Event.Halt | undefined {
    const order = this.workshop.settings.policy.haltPrecedence === "request" ? this.answers : this.completed
    return order.find((answer) => answer.halt !== undefined)?.halt
  }

  /** Ends timers and error policies that still run. Handlers belong to the run and are stopped with it. */
  close(): void {
    this.isClosed = true
    this.unsubscribe()
    for (const fiber of this.helpers) fiber.interruptUnsafe()
  }

  private begin(): void {
    if (this.hasBegun) return
    this.hasBegun = true
    const { desk } = this.workshop
    for (const job of this.jobs) {
      if (job._tag === "Refuse") this.respond(job, Answer.fromOutcome(desk, job, job.outcome))
      if (job._tag === "Cancel") this.respond(job, Answer.cancelled(desk, job, job.detail))
    }
    this.admit()
  }

  /** Forks work that is not a handler: it is interrupted when the batch closes, and never waited for. */
  private help<A>(effect: Effect.Effect<A, E, any>): Fiber.Fiber<A, E> {
    const fiber = Effect.runForkWith(this.workshop.services)(effect)
    if (fiber.pollUnsafe() === undefined) {
      this.helpers.add(fiber)
      fiber.addObserver(() => this.helpers.delete(fiber))
    }
    return fiber
  }

  private respond(job: Plan.Job, answer: Effect.Effect<Answer.Answer, E, any>): void {
    this.help(Effect.onExit(this.settling(job, answer), (exit) => Effect.sync(() => this.failWith(exit))))
  }

  private settling(job: Plan.Job, answer: Effect.Effect<Answer.Answer, E, any>): Effect.Effect<void, E, any> {
    return Effect.map(answer, (value) => this.settle(job, value))
  }

  private settle(job: Plan.Job, answer: Answer.Answer): void {
    this.answered[job.index] = answer
    this.completed.push(answer)
    const { id, name } = job.call
    this.emission.settled(job.index, [{ _tag: "ToolExecutionCompleted", id, name, result: answer.raw }, answer.tail])
    if (this.completed.length === this.jobs.length) this.mailbox.wake()
  }

  private failWith(exit: Exit.Exit<unknown, E>): void {
    if (Exit.isFailure(exit) && !this.isClosed) this.mailbox.fail(exit.cause)
  }

  /** Starts whoever may start. Handlers that end at once make room while this runs, so it loops and never nests. */
  private admit(): void {
    this.hasRoom = true
    if (this.isAdmitting || !this.hasBegun || this.isClosed) return
    this.isAdmitting = true
    while (this.hasRoom) {
      this.hasRoom = false
      this.admission = Admission.outsiders(this.admission, this.workshop.running.size - this.holding)
      const [tickets, next] = Admission.admit(this.admission)
      this.admission = next
      for (const ticket of tickets) this.start(this.jobs[ticket.index] as Plan.Run)
    }
    this.isAdmitting = false
    if (this.patience === undefined && Admission.stuck(this.admission) !== undefined) this.waitForOutsiders()
  }

  /** An exclusive call waits one grace period for handlers that were given up, then it is answered without a start. */
  private waitForOutsiders(): void {
    this.patience = this.help(
      Effect.map(Effect.sleep(this.workshop.running.graceMillis), () => {
        this.patience = undefined
        const ticket = Admission.stuck(this.admission)
        if (ticket !== undefined) this.refuseExclusive(this.jobs[ticket.index] as Plan.Run)
        this.admit()
      })
    )
  }

  private refuseExclusive(job: Plan.Run): void {
    this.admission = Admission.skip(this.admission)
    const detail = "not started: an earlier tool refused to stop and is still running"
    this.respond(job, Answer.cancelled(this.workshop.desk, job, detail))
  }

  private start(job: Plan.Run): void {
    const active: Active = {
      job,
      phase: "waiting",
      hasPlace: true,
      isForked: false,
      timer: undefined,
      fiber: undefined
    }
    this.holding++
    const fiber = Effect.runForkWith(this.workshop.services)(this.body(active))
    active.fiber = fiber
    active.isForked = true
    if (fiber.pollUnsafe() === undefined) this.track(active, fiber)
    if (active.phase === "handler") this.arm(active)
    fiber.addObserver((exit) => this.ended(active, exit))
  }

  private track(active: Active, fiber: Fiber.Fiber<unknown, unknown>): void {
    const { call, tool } = active.job
    this.workshop.running.add({
      id: call.id,
      name: call.name,
      startedAt: this.clock.currentTimeMillisUnsafe(),
      isBlocking: tool.interrupt === "block",
      fiber
    })
  }

  /** The whole life of a call: permit, handler, answer. A timeout takes the answer away from it. */
  private body(active: Active): Effect.Effect<void, E, any> {
    const { job } = active
    return Effect.flatMap(this.permits.take(1), () => {
      this.handlerStarts(active)
      return Effect.flatMap(this.execute(job), (outcome) => {
        if (active.phase !== "handler") return Effect.void
        this.disarm(active)
        return this.settling(job, Answer.fromOutcome(this.workshop.desk, job, outcome))
      })
    })
  }

  private handlerStarts(active: Active): void {
    const { id, name, arguments: args } = active.job.call
    active.phase = "handler"
    this.emission.started(active.job.index, { _tag: "ToolExecutionStarted", id, name, arguments: args ?? {} })
    if (active.isForked) this.arm(active)
  }

  private execute(job: Plan.Run): Effect.Effect<unknown, never, any> {
    const { tool, call, args } = job
    const context = callContext(job, this.workshop.settings, (value) => this.progress(job, value))
    const once = (attempt: number) =>
      this.workshop.executor.execute(tool, args, attempt === 1 ? context : { ...context, attempt })
    return (tool.retry === undefined ? Effect.suspend(() => once(1)) : retrying(tool.retry, once)).pipe(
      Effect.catchCause((cause) => Effect.succeed(crashed(call, cause))),
      (effect) => Telemetry.withSpan(effect, `execute_tool ${call.name}`, () => spanAttributes(job, this.workshop.settings))
    )
  }

  private progress(job: Plan.Run, value: unknown): void {
    if (this.answered[job.index] !== undefined || this.isClosed) return
    const { id, name } = job.call
    this.mailbox.offerProgress(job.index, { _tag: "ToolProgress", id, name, progress: value })
  }

  private arm(active: Active): void {
    const { tool } = active.job
    const millis = tool.timeout === undefined ? this.workshop.settings.timeoutMillis : Duration.toMillis(tool.timeout)
    if (!Number.isFinite(millis)) return
    active.timer = this.help(Effect.map(Effect.sleep(millis), () => this.expire(active)))
  }

  private disarm(active: Active): void {
    active.phase = "answering"
    active.timer?.interruptUnsafe()
  }

  /** The time is up: the call is answered now, whatever its handler does about the interruption. */
  private expire(active: Active): void {
    if (active.phase !== "handler") return
    active.phase = "expired"
    active.fiber?.interruptUnsafe()
    this.respond(active.job, Answer.failed(this.workshop.desk, active.job, toolError("timeout", active.job.call)))
    if (active.fiber?.pollUnsafe() !== undefined) return
    this.help(Effect.map(Effect.sleep(this.workshop.running.graceMillis), () => this.giveUp(active)))
  }

  /** A handler that outlived its grace period gives up its place; it still keeps exclusive calls out. */
  private giveUp(active: Active): void {
    this.vacate(active)
    this.admit()
  }

  private vacate(active: Active): void {
    if (!active.hasPlace) return
    active.hasPlace = false
    this.holding--
    this.admission = Admission.release(this.admission, active.job)
    Effect.runSync(this.permits.release(1))
  }

  private ended(active: Active, exit: Exit.Exit<unknown, E>): void {
    if (active.phase === "handler" && !this.isClosed) {
      this.disarm(active)
      const cause = Exit.isFailure(exit) ? Cause.squash(exit.cause) : undefined
      const error = toolError("handler_exit", active.job.call, { cause })
      this.respond(active.job, Answer.failed(this.workshop.desk, active.job, error))
    } else if (active.phase === "answering") {
      this.failWith(exit)
    }
    this.vacate(active)
    this.admit()
  }
}

const isNonEmpty = (events: ReadonlyArray<Event.Event>): events is readonly [Event.Event, ...Array<Event.Event>] =>
  events.length > 0

/** An executor that dies or fails against its contract costs this one call. */
const crashed = (call: Message.ToolCall, cause: Cause.Cause<unknown>): Tool.Outcome => ({
  _tag: "Error",
  error: toolError(Cause.hasInterruptsOnly(cause) ? "handler_exit" : "handler_raised", call, {
    cause: Cause.squash(cause)
  })
})

/** Repeats a failed attempt as the tool's schedule says; the last failure is the outcome. */
const retrying = (
  schedule: NonNullable<Tool.Any["retry"]>,
  once: (attempt: number) => Effect.Effect<Tool.Outcome, never, any>
): Effect.Effect<Tool.Outcome, never, any> => {
  let attempt = 0
  return Effect.suspend(() => once(++attempt)).pipe(
    Effect.flatMap((outcome) => outcome._tag === "Error" ? Effect.fail(outcome) : Effect.succeed(outcome)),
    Effect.retry(schedule),
    Effect.catch(Effect.succeed)
  )
}

const spanAttributes = (job: Plan.Run, settings: Settings): Telemetry.Attributes => ({
  "gen_ai.operation.name": "execute_tool",
  "gen_ai.tool.name": job.call.name,
  "gen_ai.tool.call.id": job.call.id,
  "heddle.request.id": settings.requestId,
  "heddle.step.index": settings.stepIndex
})
