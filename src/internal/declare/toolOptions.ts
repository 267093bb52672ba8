/**
 * How a tool is declared, in whole. Public as `Tool.Options` and, for a tool that is a run of its own, as
 * `Tool.ChatOptions`.
 */
import type * as Effect from "effect/Effect"
import type * as Schedule from "effect/Schedule"
import type * as Schema from "effect/Schema"
import type * as Stream from "effect/Stream"
import type * as Event from "../../Event.ts"
import type * as Tool from "../../Tool.ts"
import type * as Answer from "../answer/answer.ts"
import type * as Json from "../json.ts"
import type { ChatFailed } from "./chatTool.ts"
import type * as Durations from "./durations.ts"
import type * as Parameters from "./parameters.ts"

/** What `validate` decides. Anything but `true` or `valid: true` is a denial. */
export type Validation = boolean | { readonly valid: boolean; readonly error?: string }

/** What `authorize` decides. Anything but `true` or `allowed: true` is a denial; `canOverride` is told with it. */
export type Authorization =
  | boolean
  | { readonly allowed: boolean; readonly reason?: string; readonly canOverride?: boolean }

/** Decides from the arguments whether a call may run. What it fails with or throws is a denial. */
export type Gate<Args, Verdict, R> = (
  args: Args,
  call: Tool.CallContext
) => Verdict | Effect.Effect<Verdict, unknown, R>

/** Decides from the arguments whether a call waits for somebody to allow it. */
export type Approval<in Args, out R> = (
  args: Args,
  call: Tool.CallContext
) => boolean | Effect.Effect<boolean, unknown, R>

/** At most `permits` handlers run at once under one key, which names a resource, a tenant or the tool itself. */
export interface Limit<in Args> {
  readonly key: string | ((args: Args, call: Tool.CallContext) => string)
  readonly permits: number
}

/** Whether a handler is interrupted when its siblings or the run stop, or may finish within the grace period. */
export type Interrupt = "cancel" | "block"

/** `E`, which is not inferred from here. Unlike `NoInfer` it is nothing but `E` where it is read. */
type Later<E> = [E][E extends unknown ? 0 : never]

/** What every tool may declare besides its handler. */
interface Declarations<P, E, R, Fatal> {
  /** What the tool is for, as the model reads it. Empty by default. */
  readonly description?: string
  /** What the model may send: fields of Effect Schemas, a Schema, `z.object(…)`, or a JSON Schema. `{}` for none. */
  readonly parameters: P
  /** Decides from the arguments whether the call makes sense. Asked first; all but `true` is a denial. */
  readonly validate?: Gate<Parameters.Type<P>, Validation, R>
  /** Decides from the arguments whether the call is allowed. Asked second; all but `true` is a denial. */
  readonly authorize?: Gate<Parameters.Type<P>, Authorization, R>
  /** Whether calls wait to be allowed (`Session.approve`), all or those for which it says `true`. None by default. */
  readonly approval?: boolean | Approval<Parameters.Type<P>, R>
  /** How long an approval or a manual call waits; a number is milliseconds. For ever by default. */
  readonly answerWithin?: Durations.Input
  /** It changes nothing, and starts while the model still speaks (`Policy.start`). `false` by default. */
  readonly readOnly?: boolean
  /** A hint for a user interface, as in MCP: it may destroy something. `false` by default. */
  readonly destructive?: boolean
  /** A hint, as in MCP: to run it again with the same arguments changes nothing more. `false` by default. */
  readonly idempotent?: boolean
  /** A hint, as in MCP: it reaches what is outside of the application. `false` by default. */
  readonly openWorld?: boolean
  /** `"exclusive"` runs alone, `"shared"` beside others. The policy's by default, which is `"shared"`. */
  readonly concurrency?: Tool.Concurrency | ((args: Parameters.Type<P>) => Tool.Concurrency)
  /** `"block"` lets the handler finish within the grace period when it is stopped. The policy's by default: `"cancel"`. */
  readonly interrupt?: Interrupt
  /** How long a call may take; a number is milliseconds, `"infinity"` is no limit. The run's `toolTimeout` by default. */
  readonly timeout?: Durations.Input
  /** Repeats a handler that failed, within the timeout. A call is not repeated by default. */
  readonly retry?: Schedule.Schedule<unknown, unknown, never, R>
  /** What becomes of the run after a call of this tool failed: it goes before the run's own `onToolError`. */
  readonly onToolError?: Answer.OnToolError<Fatal, R, Later<E>>
  /** How many handlers may run at once under a key, over all runs. None by default. */
  readonly limits?: ReadonlyArray<Limit<Parameters.Type<P>>>
  /** How many characters of a result the model reads. `Policy.resultLimit` by default, `0` for all. */
  readonly maxResultChars?: number
  /** The one line that the model reads of a `compact` tool. */
  readonly summary?: string
  /** The model reads one line, and asks `tool_help` for the schema. `false` by default. */
  readonly compact?: boolean
  /** What you attach to the tool. Heddle does not read it, and the model does not either. */
  readonly metadata?: Json.JsonObject
}

/**
 * What a handler may produce under a success schema. While the compiler reads a handler before it knows the schema, `S`
 * is `never`: then the handler's own value must not be held to the rest of this union.
 */
type Produced<S extends Schema.Constraint> = [S] extends [never] ? any
  : S["Type"] | Tool.AskUser | Tool.Content | Tool.Halt

/** The effect of a handler as it was written, to infer it from; nothing while it is being read. It forbids nothing. */
type Written<H> = [H] extends [never] ? unknown : H | Effect.Effect<unknown, unknown, unknown>

/** What a tool produces: what its success schema says, and without one what its handler returns as a value. */
export type Success<S extends Schema.Constraint, H extends Effect.Effect<unknown, unknown, unknown>> = unknown extends
  S["Type"] ? 0 extends 1 & Effect.Success<H> ? unknown : Exclude<Effect.Success<H>, Tool.AskUser | Tool.Halt>
  : S["Type"]

export interface Options<
  P,
  S extends Schema.Constraint,
  E,
  R,
  H extends Effect.Effect<unknown, unknown, unknown> = Effect.Effect<unknown, unknown, unknown>,
  Fatal = never
> extends Declarations<P, E, R, Fatal> {
  /** Writes the result, before it is encoded for the model, and holds the handler to its type. */
  readonly success?: S
  /** Writes what the handler reports, before it is encoded for the model. Without it the class of the error says how. */
  readonly failure?: Schema.ConstraintCodec<E, unknown, unknown, R>
  /** What runs: an Effect of the result, of `Tool.content`, `Tool.askUser` or `Tool.halt`. A `manual` tool has none. */
  readonly handler?: (
    args: Parameters.Type<P>,
    call: Tool.CallContext
  ) => Written<H> & Effect.Effect<Produced<S>, E, R>
  /** Calls are handed to the caller (`Session.submitToolResult`) and never run. `false` by default. */
  readonly manual?: boolean
}

export interface ChatOptions<P, A, E, R, Fatal = never> extends Declarations<P, E | ChatFailed, R, Fatal> {
  /** The events of the run, such as `Chat.stream` gives. */
  readonly chat: (args: Parameters.Type<P>, call: Tool.CallContext) => Stream.Stream<Event.Event, E, R>
  /** What the call comes to by the result of the run. By default its last text, or a `Tool.ChatFailed`. */
  readonly result?: (result: Event.ChatResult) => Effect.Effect<A | Tool.AskUser | Tool.Halt, E, R>
}
