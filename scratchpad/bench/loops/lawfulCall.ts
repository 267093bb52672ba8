/** One call of the floor that keeps the laws: its fiber, its answer, and how it is stopped. */
import * as Cause from "effect/Cause"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import type { Arguments, ToolSpecification, Value } from "../loop.ts"

const timeoutMillis = 30_000

const fields = { number: Schema.Finite, string: Schema.String }

export interface Tool {
  /** Whether it starts while the model still speaks. */
  readonly isEarly: boolean
  readonly decode: (input: unknown) => Effect.Effect<Arguments, unknown>
  readonly handler: (args: Arguments) => Effect.Effect<Value>
}

export const toTool = ({ body, parameters }: ToolSpecification): Tool => ({
  isEarly: body.type !== "synchronous",
  decode: Schema.decodeUnknownEffect(
    Schema.Struct(Object.fromEntries(Object.entries(parameters).map(([key, type]) => [key, fields[type]])))
  ),
  handler: body.type === "synchronous"
    ? (args) => Effect.sync(() => body.call(args))
    : (args) => promised((signal) => body.call(args, signal))
})

/** Interruption fires the signal, and waits until the promise has settled. */
const promised = <A>(run: (signal: AbortSignal) => Promise<A>): Effect.Effect<A> =>
  Effect.callback((resume) => {
    const controller = new AbortController()
    const settled = run(controller.signal).then(
      (value) => resume(Effect.succeed(value)),
      (cause: unknown) => resume(Effect.die(cause))
    )
    return Effect.suspend(() => {
      controller.abort()
      return Effect.promise(() => settled)
    })
  })

export type Result =
  | { readonly _tag: "Ok"; readonly value: Value }
  | { readonly _tag: "Error"; readonly error: unknown }

/** What a call tells. */
export type Told =
  | { readonly _tag: "ToolExecutionStarted"; readonly id: string; readonly name: string; readonly arguments: Arguments }
  | { readonly _tag: "ToolExecutionCompleted"; readonly id: string; readonly name: string; readonly result: Result }
  | { readonly _tag: "ToolResultEncoded"; readonly id: string; readonly content: string }

/** The run that owns it. */
interface Owner {
  readonly services: Context.Context<never>
  readonly offer: (event: Told) => void
  readonly started: (call: Call) => void
  readonly answered: (call: Call, result: Result) => void
  readonly ended: (call: Call) => void
}

export class Call {
  private readonly owner: Owner
  readonly index: number
  readonly id: string
  readonly name: string
  readonly args: unknown
  isAdmitted = false
  private isAnswered = false
  private fiber: Fiber.Fiber<void> | undefined
  private timer: ReturnType<typeof setTimeout> | undefined

  constructor(owner: Owner, index: number, id: string, name: string, args: unknown) {
    this.owner = owner
    this.index = index
    this.id = id
    this.name = name
    this.args = args
  }

  /** Its owner knows its fiber before any code of the tool's runs. */
  start(tool: Tool | undefined): void {
    const fiber = Effect.runForkWith(this.owner.services)(Effect.withFiber((fiber) => {
      this.fiber = fiber as Fiber.Fiber<void>
      this.owner.started(this)
      if (tool === undefined) return this.failed(`there is no tool ${this.name}`)
      return Effect.matchCauseEffect(tool.decode(this.args), {
        onSuccess: (args) => this.handled(tool, args),
        onFailure: (cause) => this.failed(Cause.squash(cause))
      })
    }))
    if (!this.isAnswered) this.timer = setTimeout(() => this.late(), timeoutMillis)
    this.watch(fiber)
  }

  /** In a function of its own: what it makes is kept for as long as the tool runs. */
  private watch(fiber: Fiber.Fiber<void>): void {
    fiber.addObserver(() => {
      this.settle({ _tag: "Error", error: "interrupted" })
      this.owner.ended(this)
    })
  }

  private handled(tool: Tool, args: Arguments): Effect.Effect<void> {
    this.owner.offer({ _tag: "ToolExecutionStarted", id: this.id, name: this.name, arguments: args })
    return Effect.matchCauseEffect(Effect.scoped(Effect.suspend(() => tool.handler(args))), {
      onSuccess: (value) => this.settled({ _tag: "Ok", value }),
      onFailure: (cause) => this.failed(Cause.squash(cause))
    })
  }

  private failed(error: unknown): Effect.Effect<void> {
    return this.settled({ _tag: "Error", error })
  }

  private settled(result: Result): Effect.Effect<void> {
    this.settle(result)
    return Effect.void
  }

  private late(): void {
    this.settle({ _tag: "Error", error: "timeout" })
    this.stop()
  }

  /** The first answer counts. */
  private settle(result: Result): void {
    if (this.isAnswered) return
    this.isAnswered = true
    clearTimeout(this.timer)
    this.owner.answered(this, result)
  }

  stop(): void {
    this.fiber?.interruptUnsafe()
  }
}
