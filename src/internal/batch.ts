/**
 * The calls of one turn while they run. Each runs in a fiber that the run owns, takes a permit while its handler is
 * alive, and is answered exactly once, by its outcome or by its timeout. The reader pulls events; nothing here waits
 * for the reader. Code of the caller's may end the run while it runs, so that every step here looks again whether the
 * batch is over.
 */
import * as Cause from "effect/Cause"
import type * as Clock from "effect/Clock"
import type * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import type * as Pull from "effect/Pull"
import * as Semaphore from "effect/Semaphore"
import type * as Tracer from "effect/Tracer"
import type * as Event from "../Event.ts"
import type * as Executor from "../Executor.ts"
import type * as Message from "../Message.ts"
import type * as Policy from "../Policy.ts"
import type * as Tool from "../Tool.ts"
import * as Admission from "./admission.ts"
import * as Answer from "./answer.ts"
import * as Emission from "./emission.ts"
import * as Execution from "./execution.ts"
import { type Helper, Helpers } from "./helpers.ts"
import { limited } from "./limit.ts"
import { Mailbox } from "./mailbox.ts"
import * as Plan from "./plan.ts"
import type { Running, Task } from "./running.ts"
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
  readonly desk: Omit<Answer.Desk<E, any>, "limit">
  readonly running: Running
  readonly services: Context.Context<any>
  readonly clock: Clock.Clock
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
  timer: Helper | undefined
  task: Task | undefined
  span: Tracer.Span | undefined
}

export class Batch<E> {
  private readonly jobs: ReadonlyArray<Plan.Job>
  private readonly workshop: Workshop<E>
  private readonly desk: Answer.Desk<E, any>
  private readonly mailbox = new Mailbox<E>()
  private readonly emission: Emission.Emission
  private readonly permits: Semaphore.Semaphore
  private readonly isTraced: boolean
  private readonly answered: Array<Answer.Answer | undefined>
  private readonly completed: Array<Answer.Answer> = []
  private readonly helpers: Helpers
  private readonly unsubscribe: () => void
  private decided: ReadonlyArray<Plan.Decided> = []
  private admission: Admission.Admission
  private holding = 0
  private hasBegun = false
  private isOver = false
  private isAdmitting = false
  private hasRoom = false
  private patience: Helper | undefined

  constructor(jobs: ReadonlyArray<Plan.Job>, workshop: Workshop<E>) {
    const { settings, running, desk, services } = workshop
    this.jobs = jobs
    this.workshop = workshop
    this.desk = { ...desk, limit: (subject, work) => this.limit(subject, work, () => this.late(subject)) }
    this.emission = Emission.make(settings.policy, jobs.length, this.mailbox)
    this.permits = Semaphore.makeUnsafe(settings.bound)
    this.helpers = new Helpers(services)
    this.isTraced = Telemetry.isTraced(services)
    this.answered = Array.from(jobs, () => undefined)
    this.admission = Admission.make(settings.bound, [])
    this.unsubscribe = running.onChange(() => this.admit())
  }

  /** The events, in the order the policy asks for; it ends when every call has been answered. */
  readonly pull: Pull.Pull<readonly [Event.Event, ...Array<Event.Event>], E> = Effect.suspend(() => {
    this.begin()
    if (this.mailbox.isEmpty && (this.isOver || this.completed.length === this.jobs.length)) return Cause.done()
    return Effect.flatMap(this.mailbox.take, (events) => isNonEmpty(events) ? Effect.succeed(events) : this.pull)
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

  /** Ends the timers; nothing starts any more. What runs belongs to the run and is stopped with it. */
  close(): void {
    this.isOver = true
    this.unsubscribe()
    this.helpers.close()
  }

  private begin(): void {
    if (this.hasBegun) return
    this.hasBegun = true
    if (this.jobs.length === 0) return
    this.helpers.when(
      Effect.forEach(this.jobs, (job) => this.decide(job), { concurrency: this.workshop.settings.bound }),
      (decided) => this.open(decided)
    )
  }

  private decide(job: Plan.Job): Effect.Effect<Plan.Decided, never, any> {
    return job._tag === "Decode"
      ? Plan.decide(job, (decode, late) => this.limit(job, decode, late))
      : Effect.succeed(job)
  }

  /** What is to be done with every call is known: those that cannot run are answered first. */
  private open(decided: ReadonlyArray<Plan.Decided>): void {
    this.decided = decided
    for (const job of decided) {
      if (job._tag === "Refuse") this.respond(job, Answer.fromOutcome(this.desk, job, job.outcome))
      if (job._tag === "Cancel") this.respond(job, Answer.cancelled(this.desk, job, job.detail))
    }
    this.admission = Admission.make(this.workshop.settings.bound, decided.filter((job) => job._tag === "Run"))
    this.admit()
  }

  /** Puts a fiber into the run's care, before it has run any code of the caller's. */
  private own(call: Message.ToolCall, fiber: Fiber.Fiber<unknown, unknown>, run?: Plan.Run): Task {
    const task: Task = {
      id: call.id,
      name: call.name,
      startedAt: this.workshop.clock.currentTimeMillisUnsafe(),
      isHandler: run !== undefined,
      isExclusive: run?.isExclusive === true,
      isBlocking: run?.tool.interrupt === "block",
      fiber
    }
    this.workshop.running.add(task)
    return task
  }

  private watch(call: Message.ToolCall, fiber: Fiber.Fiber<unknown, unknown>): void {
    const task = this.own(call, fiber)
    fiber.addObserver(() => this.workshop.running.remove(task))
  }

  private limit<A, S>(
    subject: Answer.Subject,
    work: () => Effect.Effect<A, unknown, S>,
    late: () => unknown
  ): Effect.Effect<A, unknown, S> {
    const millis = this.millisFor(subject.tool)
    return limited(work, { millis, own: (fiber) => this.watch(subject.call, fiber), late })
  }

  private late(subject: Answer.Subject): Error {
    return new Error(`writing the result took longer than ${this.millisFor(subject.tool)} ms`)
  }

  private millisFor(tool: Tool.Any | undefined): number {
    return tool?.timeout === undefined ? this.workshop.settings.timeoutMillis : Duration.toMillis(tool.timeout)
  }

  /** Answers a call in a fiber of its own. */
  private respond(
    job: Answer.Subject & { readonly index: number },
    answer: Effect.Effect<Answer.Answer, E, any>
  ): void {
    if (this.isOver) return
    const fiber = Effect.runForkWith(this.workshop.services)(
      Effect.withFiber((fiber) => {
        this.watch(job.call, fiber)
        return this.settling(job, answer)
      })
    )
    fiber.addObserver((exit) => this.answerEnded(job, exit))
  }

  private settling(
    job: Answer.Subject & { readonly index: number },
    answer: Effect.Effect<Answer.Answer, E, any>
  ): Effect.Effect<void, E, any> {
    return Effect.map(answer, (value) => this.settle(job, value))
  }

  private settle(job: Answer.Subject & { readonly index: number }, answer: Answer.Answer): void {
    this.answered[job.index] = answer
    this.completed.push(answer)
    const { id, name } = job.call
    this.emission.settled(job.index, [{ _tag: "ToolExecutionCompleted", id, name, result: answer.raw }, answer.tail])
    if (this.completed.length === this.jobs.length) this.mailbox.wake()
  }

  /** What the caller's policy failed with is the run's failure. Any other end without an answer costs this one call. */
  private answerEnded(job: Answer.Subject & { readonly index: number }, exit: Exit.Exit<unknown, E>): void {
    if (Exit.isSuccess(exit) || this.isOver || this.answered[job.index] !== undefined) return
    if (!Cause.hasFails(exit.cause)) return this.settle(job, Answer.lost(this.desk, job, exit.cause))
    this.isOver = true
    this.mailbox.fail(exit.cause)
  }

  /** Starts whoever may start. Handlers that end at once make room while this runs, so it loops and never nests. */
  private admit(): void {
    this.hasRoom = true
    if (this.isAdmitting) return
    this.isAdmitting = true
    while (this.hasRoom && !this.isOver) {
      this.hasRoom = false
      const outsiders = this.workshop.running.outsiders(this.holding, this.admission.isExclusiveRunning)
      const [tickets, next] = Admission.admit(Admission.withOutsiders(this.admission, outsiders))
      this.admission = next
      for (const ticket of tickets) this.start(this.decided[ticket.index] as Plan.Run)
    }
    this.isAdmitting = false
    if (this.patience === undefined && Admission.stuck(this.admission) !== undefined) this.waitForOutsiders()
  }

  /** A call waits one grace period for handlers that do not end, and is then answered without a start. */
  private waitForOutsiders(): void {
    this.patience = this.helpers.after(this.workshop.running.graceMillis, () => {
      this.patience = undefined
      for (let ticket = Admission.stuck(this.admission); ticket !== undefined;) {
        this.refuse(this.decided[ticket.index] as Plan.Run)
        ticket = Admission.stuck(this.admission)
      }
      this.admit()
    })
  }

  private refuse(job: Plan.Run): void {
    this.admission = Admission.skip(this.admission)
    const detail = "not started: an earlier tool refused to stop and is still running"
    this.respond(job, Answer.cancelled(this.desk, job, detail))
  }

  private start(job: Plan.Run): void {
    if (this.isOver) return
    const active: Active = {
      job,
      phase: "waiting",
      hasPlace: true,
      isForked: false,
      timer: undefined,
      task: undefined,
      span: undefined
    }
    this.holding++
    const fiber = Effect.runForkWith(this.workshop.services)(
      Effect.withFiber((fiber) => {
        active.task = this.own(job.call, fiber, job)
        return this.body(active)
      })
    )
    active.isForked = true
    if (active.phase === "handler") this.arm(active)
    fiber.addObserver((exit) => this.ended(active, exit))
  }

  /** The whole life of a call: permit, handler, answer. A timeout takes the answer away from it. */
  private body(active: Active): Effect.Effect<void, E, any> {
    const { job } = active
    return Effect.flatMap(this.permits.take(1), () => {
      this.handlerStarts(active)
      return Effect.flatMap(this.execute(active), (outcome) => {
        if (active.phase !== "handler") return Effect.void
        this.disarm(active)
        this.endSpan(active, Exit.void, Execution.outcomeName(outcome))
        return this.settling(job, Answer.fromOutcome(this.desk, job, outcome))
      })
    })
  }

  private handlerStarts(active: Active): void {
    const { id, name, arguments: args } = active.job.call
    active.phase = "handler"
    this.emission.started(active.job.index, { _tag: "ToolExecutionStarted", id, name, arguments: args ?? {} })
    if (active.isForked) this.arm(active)
  }

  private execute(active: Active): Effect.Effect<unknown, never, any> {
    const { job } = active
    const { settings, executor } = this.workshop
    const execution = Execution.execute(job, settings, executor, (value) => this.progress(job, value))
    if (!this.isTraced) return execution
    const { call } = job
    return Telemetry.underSpan(
      execution,
      `execute_tool ${call.name}`,
      Execution.spanAttributes(call, settings),
      (span) => {
        active.span = span
      }
    )
  }

  private endSpan(active: Active, exit: Exit.Exit<unknown, unknown>, outcome: string): void {
    active.span?.attribute("heddle.tool.outcome", outcome)
    Telemetry.end(active.span, exit, this.workshop.clock, this.workshop.services)
    active.span = undefined
  }

  private progress(job: Plan.Run, value: unknown): void {
    if (this.answered[job.index] !== undefined || this.isOver) return
    const { id, name } = job.call
    this.emission.progress(job.index, { _tag: "ToolProgress", id, name, progress: value })
  }

  private arm(active: Active): void {
    const millis = this.millisFor(active.job.tool)
    if (Number.isFinite(millis)) active.timer = this.helpers.after(millis, () => this.expire(active))
  }

  private disarm(active: Active): void {
    active.phase = "answering"
    active.timer?.interruptUnsafe()
  }

  /** The time is up: the call is answered now, whatever its handler does about the interruption. */
  private expire(active: Active): void {
    const { job, task } = active
    if (active.phase !== "handler" || task === undefined) return
    active.phase = "expired"
    const error = toolError("timeout", job.call)
    this.endSpan(active, Exit.fail(error), "timeout")
    const { running, clock } = this.workshop
    running.interrupt(task, clock.currentTimeMillisUnsafe(), () => this.vacate(active))
    this.respond(job, Answer.failed(this.desk, job, error))
  }

  /** A handler that ended, or that outlived its grace period, gives up its place. */
  private vacate(active: Active): void {
    if (!active.hasPlace) return
    active.hasPlace = false
    this.holding--
    this.admission = Admission.release(this.admission, active.job)
    Effect.runForkWith(this.workshop.services)(this.permits.release(1))
  }

  private ended(active: Active, exit: Exit.Exit<unknown, E>): void {
    const { job } = active
    this.endSpan(active, exit, "interrupted")
    if (active.phase === "handler" && !this.isOver) {
      this.disarm(active)
      const cause = Exit.isFailure(exit) ? Cause.squash(exit.cause) : undefined
      this.respond(job, Answer.failed(this.desk, job, toolError("handler_exit", job.call, { cause })))
    } else if (active.phase === "answering") {
      this.answerEnded(job, exit)
    }
    this.vacate(active)
    if (active.task !== undefined) this.workshop.running.remove(active.task)
  }
}

const isNonEmpty = (events: ReadonlyArray<Event.Event>): events is readonly [Event.Event, ...Array<Event.Event>] =>
  events.length > 0
