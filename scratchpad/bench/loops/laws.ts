/**
 * The floor of a run that keeps Heddle's laws and can do nothing else, on Effect's `Stream`. One reader pulls; the model
 * is read beside tools that run; each call is a fiber that the run owns, with arguments decoded by a schema, a scope for
 * its handler, a place under a bound and a time limit; every call is answered once, a crash and a timeout too; and leaving
 * the run, in whatever way, stops all of it and waits for it. There are no policies, siblings, exclusive tools,
 * gates, approvals, retries, spans, soft stops or deadlines, no executor and no encoder to choose, and nothing is looked
 * at that an adapter says. It copies its thread for each step, so that a long run grows with the square of its turns.
 */
import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Channel from "effect/Channel"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Pull from "effect/Pull"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as AdapterEvents from "heddle/Event"
import type { Implementation, Run, Value } from "../loop.ts"
import * as Asked from "./adapter.ts"
import { Call, type Result, type Told, type Tool, toTool } from "./lawfulCall.ts"
import * as Reading from "./reading.ts"

interface Message {
  readonly role: "user" | "assistant" | "tool"
  readonly content: string
  readonly toolCallId?: string
  readonly toolCalls?: ReadonlyArray<unknown>
}

/** What a turn came to. */
interface Step {
  readonly message: Message
  readonly finishReason: string | null
  readonly results: ReadonlyArray<Result | undefined>
  readonly thread: ReadonlyArray<Message>
}

type Event =
  | AdapterEvents.AdapterEvent
  | Told
  | { readonly _tag: "StepCompleted"; readonly step: Step }
  | { readonly _tag: "ChatCompleted"; readonly steps: ReadonlyArray<Step>; readonly thread: ReadonlyArray<Message> }

type Events = Arr.NonEmptyReadonlyArray<Event>
type ModelPull = Pull.Pull<Arr.NonEmptyReadonlyArray<AdapterEvents.AdapterEvent>>

const maxConcurrency = 64
const graceMillis = 5_000

/** One run. It is driven by pulls. */
class Machine {
  private readonly tools: ReadonlyMap<string, Tool>
  private readonly run: Run
  private thread: ReadonlyArray<Message>
  private readonly steps: Array<Step> = []
  private turnsLeft: number
  private phase: "opening" | "speaking" | "working" | "over" = "opening"
  private connection: Scope.Closeable | undefined
  private pull: ModelPull = Cause.done()
  private reading: Pull.Pull<Events> | undefined
  private fiber: Fiber.Fiber<unknown, unknown> | undefined
  private read: Exit.Exit<Arr.NonEmptyReadonlyArray<Event>, Cause.Done> | undefined
  private pieces: Array<string> = []
  private finishReason: string | null = null
  private calls: Array<Call> = []
  private answers: Array<{ readonly result: Result; readonly message: Message }> = []
  private unanswered = 0
  private working = 0
  private readonly waiting: Array<Call> = []
  private readonly alive = new Set<Call>()
  private events: Array<Event> = []
  private resume: ((next: Effect.Effect<void>) => void) | undefined
  private idle: (() => void) | undefined
  services: Context.Context<never> = Context.empty()

  constructor(run: Run, tools: ReadonlyMap<string, Tool>, maxTurns: number) {
    this.run = run
    this.tools = tools
    this.turnsLeft = maxTurns
    this.thread = [{ role: "user", content: run.prompt }]
  }

  next(): Pull.Pull<Events> {
    if (this.phase === "speaking") return this.isBeside ? this.beside() : this.alone()
    if (this.phase === "working") return this.work()
    return this.phase === "opening" ? this.opening() : Cause.done()
  }

  private opening(): Pull.Pull<Events> {
    this.services = Fiber.getCurrent()?.context ?? this.services
    const connection = this.connection = Scope.makeUnsafe()
    const stream = Asked.stream(this.run.model, this.thread.length)
    return Effect.flatMap(Channel.toTransform(Stream.toChannel(stream))(Cause.done(), connection), (pull) => {
      if (this.phase === "over") return Cause.done()
      this.phase = "speaking"
      this.pull = pull
      this.reading = undefined
      return this.next()
    })
  }

  private get isBeside(): boolean {
    return this.unanswered > 0 || this.events.length > 0 || this.fiber !== undefined || this.read !== undefined
  }

  private alone(): Pull.Pull<Events> {
    return this.reading ??= Effect.matchCauseEffect(this.pull, {
      onSuccess: (events) => Effect.succeed(this.told(events)),
      onFailure: (cause) => this.spoken(cause)
    })
  }

  private beside(): Pull.Pull<Events> {
    if (this.events.length > 0) return Effect.succeed(this.taken())
    const { read } = this
    if (read !== undefined) {
      this.read = undefined
      return read._tag === "Success" ? Effect.succeed(this.told(read.value)) : this.spoken(read.cause)
    }
    if (this.fiber === undefined) this.listen()
    return Effect.flatMap(this.something(), () => this.next())
  }

  private listen(): void {
    const fiber = this.fiber = Effect.runForkWith(this.services)(this.pull)
    fiber.addObserver((exit) => {
      this.fiber = undefined
      this.read = exit
      this.wake()
    })
  }

  /** There is something to read by then. */
  private something(): Effect.Effect<void> {
    if (this.events.length > 0 || this.read !== undefined) return Effect.void
    return Effect.callback((resume) => {
      this.resume = resume
      return Effect.sync(() => {
        this.resume = undefined
      })
    })
  }

  private wake(): void {
    const { resume } = this
    this.resume = undefined
    resume?.(Effect.void)
  }

  private taken(): Events {
    const { events } = this
    this.events = []
    return events as unknown as Events
  }

  private told(events: Arr.NonEmptyReadonlyArray<Event>): Events {
    for (const event of events) this.fold(event)
    return this.events.length === 0 ? events : [...events, ...this.taken()]
  }

  private fold(event: Event): void {
    if (event._tag === "TextDelta") this.pieces.push(event.delta)
    else if (event._tag === "MessageCompleted") this.finishReason = event.finishReason
    else if (event._tag === "ToolCallCompleted") {
      const call = new Call(this, this.calls.length, event.id, event.name, event.arguments)
      this.calls.push(call)
      if (this.tools.get(event.name)?.isEarly === true) this.admit(call)
    }
  }

  private admit(call: Call): void {
    call.isAdmitted = true
    this.unanswered++
    if (this.working >= maxConcurrency) {
      this.waiting.push(call)
      return
    }
    this.working++
    call.start(this.tools.get(call.name))
  }

  started(call: Call): void {
    this.alive.add(call)
  }

  ended(call: Call): void {
    this.alive.delete(call)
    if (this.alive.size === 0) this.idle?.()
    const next = this.waiting.shift()
    if (next === undefined) this.working--
    else next.start(this.tools.get(next.name))
  }

  offer(event: Told): void {
    this.events.push(event)
  }

  answered({ id, index, name }: Call, result: Result): void {
    const content = JSON.stringify(result._tag === "Ok" ? result.value : { error: String(result.error) })
    this.answers[index] = { result, message: { role: "tool", toolCallId: id, content } }
    this.events.push(
      { _tag: "ToolExecutionCompleted", id, name, result },
      { _tag: "ToolResultEncoded", id, content }
    )
    this.unanswered--
    this.wake()
  }

  /** The connection is closed before any other tool starts. */
  private spoken(cause: Cause.Cause<Cause.Done>): Pull.Pull<Events> {
    if (!Pull.isDoneCause(cause)) return Effect.failCause(cause)
    const closing = Effect.uninterruptible(Effect.suspend(() => this.close()))
    return Effect.flatMap(closing, () => {
      if (this.phase === "over") return Cause.done()
      this.phase = "working"
      for (const call of this.calls) if (!call.isAdmitted) this.admit(call)
      return this.next()
    })
  }

  private close(): Effect.Effect<void> {
    const { connection } = this
    this.connection = undefined
    return connection === undefined ? Effect.void : Scope.close(connection, Exit.void)
  }

  private work(): Pull.Pull<Events> {
    if (this.events.length > 0) return Effect.succeed(this.taken())
    if (this.unanswered > 0) return Effect.flatMap(this.something(), () => this.next())
    const step = this.step()
    const isOver = this.calls.length === 0 || --this.turnsLeft <= 0
    this.phase = isOver ? "over" : "opening"
    this.pieces = []
    this.calls = []
    this.answers = []
    const completed: Event = { _tag: "StepCompleted", step }
    return Effect.succeed(
      isOver ? [completed, { _tag: "ChatCompleted", steps: this.steps, thread: this.thread }] : [completed]
    )
  }

  private step(): Step {
    const { answers, calls, finishReason } = this
    const toolCalls = calls.map(({ args, id, name }) => ({ id, name, arguments: args }))
    const message: Message = { role: "assistant", content: this.pieces.join(""), toolCalls }
    this.thread = this.thread.concat([message], answers.map((answer) => answer.message))
    const step = { message, finishReason, results: answers.map(({ result }) => result), thread: this.thread }
    this.steps.push(step)
    return step
  }

  /** Fibers that are alive are interrupted and awaited. A pull of another fiber goes no further. */
  readonly leave = Effect.suspend(() => {
    this.phase = "over"
    this.waiting.length = 0
    for (const call of this.alive) call.stop()
    const stopped = this.alive.size === 0 ? Effect.void : this.gone()
    const unread = this.fiber === undefined ? Effect.void : Fiber.interrupt(this.fiber)
    return Effect.andThen(stopped, Effect.andThen(unread, this.close()))
  })

  private gone(): Effect.Effect<void> {
    return Effect.callback((resume) => {
      const timer = setTimeout(() => resume(Effect.void), this.run.graceMillis ?? graceMillis)
      this.idle = () => {
        clearTimeout(timer)
        resume(Effect.void)
      }
    })
  }
}

/** Leaving a pull in the middle leaves the run, whatever scope it is read in. */
const left = (scope: Scope.Closeable, exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> | undefined =>
  exit._tag === "Success" ? undefined : Scope.close(scope, Pull.doneExitFromCause(exit.cause))

const stream = (run: Run, tools: ReadonlyMap<string, Tool>, maxTurns: number): Stream.Stream<Event> =>
  Stream.fromChannel(Channel.fromTransform((_upstream, around) =>
    Effect.suspend(() => {
      const scope = Scope.forkUnsafe(around)
      const machine = new Machine(run, tools, maxTurns)
      const pull = Effect.onExitPrimitive(
        Effect.suspend(() => scope.state._tag === "Closed" ? Cause.done() : machine.next()),
        (exit) => left(scope, exit)
      )
      return Effect.as(Scope.addFinalizer(scope, machine.leave), pull)
    })
  ))

const tell = (run: Run, event: Event): boolean => {
  if (event._tag === "TextDelta") return run.onText(event.delta)
  if (event._tag === "ToolResultEncoded") run.onResult(JSON.parse(event.content) as Value)
  else run.onEvent()
  return true
}

export const implementation: Implementation = {
  name: "bare Effect, with the laws",
  kind: "floor",
  guarantees: ["parallel", "settlesLast", "closes", "overlaps"],
  make: (specifications, maxTurns) => {
    const tools = new Map(specifications.map((tool) => [tool.name, toTool(tool)]))
    return Reading.loop((run) => stream(run, tools, maxTurns), tell)
  }
}
