/**
 * What is measured: a tool loop, behind one interface. It is given tools once and a model per run; it reads every event
 * that its own interface offers, and tells what it read. Each implementation is written as a good user of it would.
 */
import type { Model } from "./model.ts"

/** What a tool is called with. Each implementation declares it in its own schema language and lets that validate it. */
export type Arguments = Readonly<Record<string, number | string>>

/** What tells a tool to stop, from a loop that has such a thing. */
export type Signal = AbortSignal | undefined

/** What a tool answers. */
export interface Value {
  readonly value: number
}

/** A tool, in the terms of no library. `parameters` has the type of each parameter. */
export interface ToolSpecification {
  readonly name: string
  readonly description: string
  readonly parameters: Readonly<Record<string, "number" | "string">>
  readonly body:
    | { readonly type: "synchronous"; readonly call: (args: Arguments) => Value }
    | { readonly type: "asynchronous"; readonly call: (args: Arguments, signal: Signal) => Promise<Value> }
}

/**
 * One run. `signal` stops it at once. `isCancelledSoftly` says that the loop is to end in a result when the signal fires,
 * and to wait no longer than `graceMillis` for tools that go on; a loop that knows no such end takes it as any other stop.
 * `onText` returns whether to read on; `isLeftEarly` says beforehand that it may return `false`.
 */
export interface Run {
  readonly model: Model
  readonly prompt: string
  readonly signal?: AbortSignal
  readonly isCancelledSoftly?: boolean
  readonly graceMillis?: number
  readonly isLeftEarly?: boolean
  readonly onText: (delta: string) => boolean
  readonly onResult: (value: Value) => void
  readonly onEvent: () => void
}

/** How a run ended, where its loop says more than that it did. */
export interface Ending {
  /** How many tools the run settled without, if the loop tells. */
  readonly abandoned?: number
}

export interface Loop {
  readonly run: (run: Run) => Promise<Ending>
}

/**
 * What a loop promises, beyond right results. A promise that it does not keep is a wrong result.
 *
 * - `parallel`: the calls of one turn run beside each other.
 * - `settlesLast`: an aborted run settles when its tools have stopped, and starts nothing any more.
 * - `reportsAbandoned`: tools that ignore their signal are left behind after the grace period, and counted.
 * - `closes`: a run that is stopped or left closes the model's connection and reads nothing more.
 * - `overlaps`: a tool starts while the model still speaks, and its result is seen before the model has ended.
 */
export type Guarantee = "parallel" | "settlesLast" | "reportsAbandoned" | "closes" | "overlaps"

export interface Implementation {
  readonly name: string
  readonly kind: "floor" | "heddle" | "peer"
  readonly guarantees: ReadonlyArray<Guarantee>
  /** Declares the tools and prepares whatever an application would prepare once. */
  readonly make: (tools: ReadonlyArray<ToolSpecification>, maxTurns: number) => Loop
}
