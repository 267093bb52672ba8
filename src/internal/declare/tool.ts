/**
 * The types of a tool: what a handler receives, what a tool is once it is made, and how one is declared. Public as members
 * of `Tool`, with their documentation.
 */
import type * as Cause from "effect/Cause"
import type * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import type * as JsonSchema from "effect/JsonSchema"
import type * as Schedule from "effect/Schedule"
import type * as Schema from "effect/Schema"
import type * as Message from "../../Message.ts"
import type * as Json from "../json.ts"
import type * as Outcomes from "./outcome.ts"
import type * as Parameters from "./schema.ts"

/** What a handler is told. Public as `Tool.CallContext`. */
export interface CallContext {
  readonly id: string
  readonly name: string
  /** Position of the call in its turn, from 0. */
  readonly index: number
  /** Position of the turn in its run, from 0. */
  readonly stepIndex: number
  /** 1 for the first start, one more for each retry. */
  readonly attempt: number
  /** The same for every attempt at this call, different for every other call. */
  readonly idempotencyKey: string
  readonly requestId: string | null
  readonly sessionId: string | null
  /** The caller's own record, as it was when the step began. */
  readonly context: Json.JsonObject
  /** The call as the model made it: a copy, like the arguments. */
  readonly toolCall: Message.ToolCall
  /** Reports to the consumer at once. It never fails, and may be coalesced when nobody reads. */
  readonly progress: (value: unknown) => Effect.Effect<void>
  /**
   * Adds to the context of the steps that follow. Updates count when the handler succeeds, and are merged in the order
   * of the calls, whatever finished first.
   */
  readonly updateContext: (values: Json.JsonObject) => Effect.Effect<void>
  /**
   * Runs a Promise API: interruption fires its signal and waits until the promise has settled, which `Effect.promise` and
   * `Effect.tryPromise` do not: what ignores their signal outlives the run, and is named nowhere. A rejection is a failure
   * that the handler reports, with what it was rejected with as its `cause`; the model reads the name and the message of
   * that.
   */
  readonly promise: <A>(run: (signal: AbortSignal) => PromiseLike<A>) => Effect.Effect<A, Cause.UnknownError>
}

/** `"shared"` calls may overlap, an `"exclusive"` call runs alone. Public as `Tool.Concurrency`. */
export type Concurrency = "shared" | "exclusive"

/** How long: milliseconds, a text such as "30 seconds", a `Duration`, or "infinity". */
export type DurationInput = Duration.Input | "infinity"

/** What becomes of a run after a call failed, or what decides it. Public as `ToolRunner.OnToolError`. */
export type OnToolError<E, R, Failure = unknown> =
  | "continue"
  | "halt"
  | ((call: Message.ToolCall, error: Failure | Outcomes.ToolError) => Effect.Effect<
    Outcomes.ErrorDecision<E>,
    never,
    R
  >)

/**
 * A tool: `Params` is what its handler receives, `Success` what it produces, `Failure` what it reports, `R` the
 * services it needs, `Fatal` what its error policy may fail the run with.
 */
export interface Tool<Name extends string, Params, Success, Failure, R, Fatal = never> {
  readonly name: Name
  readonly description: string
  readonly parameters: Parameters.Parameters<Params, R>
  readonly encodeSuccess?: (value: unknown) => Effect.Effect<unknown, unknown, R>
  readonly encodeFailure?: (error: unknown) => Effect.Effect<unknown, unknown, R>
  readonly handler?: (
    args: Params,
    call: CallContext
  ) => Effect.Effect<Success | Outcomes.AskUser | Outcomes.Halt, Failure, R>
  readonly readOnly: boolean
  readonly destructive: boolean
  readonly idempotent: boolean
  readonly openWorld: boolean
  readonly validate?: Gate<Params, Validation, R>
  readonly authorize?: Gate<Params, Authorization, R>
  readonly concurrency?: Concurrency | ((args: Params) => Concurrency)
  readonly interrupt?: Interrupt
  readonly limits?: ReadonlyArray<Limit<Params>>
  readonly timeout?: Duration.Duration
  readonly manual: boolean
  readonly approval?: boolean | Approval<Params, R>
  readonly answerWithin?: Duration.Duration
  readonly retry?: Schedule.Schedule<unknown, unknown, never, R>
  readonly onToolError?: OnToolError<any, R, any>
  /** Carries a type and no value. So held, each tool is one whose `Fatal` is not known. */
  readonly "~heddle/Fatal"?: (error: Fatal) => void
  readonly maxResultChars?: number
  readonly summary?: string
  readonly compact: boolean
  readonly metadata: Json.JsonObject
}

/**
 * Any tool.
 */
export type Any = Tool<string, any, any, any, any>

/**
 * What the tool's handler receives.
 */
export type Params<T> = T extends Tool<any, infer P, any, any, any> ? P : never

/**
 * What the tool produces.
 */
export type Success<T> = T extends Tool<any, any, infer A, any, any> ? A : never

/**
 * What the tool reports when it fails.
 */
export type Failure<T> = T extends Tool<any, any, any, infer E, any> ? E : never

/**
 * The services the tool needs, and so every run that offers it.
 */
export type Services<T> = T extends Tool<any, any, any, any, infer R> ? R : never

/**
 * What the tool's own `onToolError` may fail a run with. Of tools whose types were given up (`Tool.Any`) it is `never`.
 */
export type Fatal<T> = T extends Tool<any, any, any, any, any, infer E> ? E : never

/** What a call of a tool came to. Exactly one per call. Public as `Tool.Outcome`. */
export type Outcome<T extends Any = Any> =
  | Outcomes.Ok<Success<T>>
  | Outcomes.Error<Failure<T> | Outcomes.ToolError>
  | Outcomes.AskUser
  | Outcomes.Halt

/** A tool as a model is told of it. Public as `Tool.Definition`. */
export interface Definition {
  readonly name: string
  readonly description: string
  readonly parameters: JsonSchema.JsonSchema
}

/** What `validate` decides. Anything but `true` or `valid: true` is a denial. */
type Validation = boolean | { readonly valid: boolean; readonly error?: string }

/** What `authorize` decides. Anything but `true` or `allowed: true` is a denial; `canOverride` is told with it. */
export type Authorization =
  | boolean
  | { readonly allowed: boolean; readonly reason?: string; readonly canOverride?: boolean }

/** Decides from the arguments whether a call may run. What it fails with or throws is a denial. */
export type Gate<Args, Verdict, R> = (
  args: Args,
  call: CallContext
) => Verdict | Effect.Effect<Verdict, unknown, R>

/** Decides from the arguments whether a call waits for somebody to allow it. */
type Approval<in Args, out R> = (
  args: Args,
  call: CallContext
) => boolean | Effect.Effect<boolean, unknown, R>

/** At most `permits` handlers run at once under one key, which names a resource, a tenant or the tool itself. */
export interface Limit<in Args> {
  readonly key: string | ((args: Args, call: CallContext) => string)
  readonly permits: number
}

/** Whether a handler is interrupted when its siblings or the run stop, or may finish within the grace period. */
type Interrupt = "cancel" | "block"

/** `E`, which is not inferred from here. Unlike `NoInfer` it is nothing but `E` where it is read. */
type Later<E> = [E][E extends unknown ? 0 : never]

/** What every tool may declare besides its handler. */
export interface Declarations<P, E, R, Fatal> {
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
  readonly answerWithin?: DurationInput
  /** It changes nothing, and starts while the model still speaks (`Policy.start`). `false` by default. */
  readonly readOnly?: boolean
  /** A hint for a user interface, as in MCP: it may destroy something. `false` by default. */
  readonly destructive?: boolean
  /** A hint, as in MCP: to run it again with the same arguments changes nothing more. `false` by default. */
  readonly idempotent?: boolean
  /** A hint, as in MCP: it reaches what is outside of the application. `false` by default. */
  readonly openWorld?: boolean
  /** `"exclusive"` runs alone, `"shared"` beside others. The policy's by default, which is `"shared"`. */
  readonly concurrency?: Concurrency | ((args: Parameters.Type<P>) => Concurrency)
  /** `"block"` lets the handler finish within the grace period when it is stopped. The policy's by default: `"cancel"`. */
  readonly interrupt?: Interrupt
  /** How long a call may take; a number is milliseconds, `"infinity"` is no limit. The run's `toolTimeout` by default. */
  readonly timeout?: DurationInput
  /** Repeats a handler that failed, within the timeout. A call is not repeated by default. */
  readonly retry?: Schedule.Schedule<unknown, unknown, never, R>
  /** What becomes of the run after a call of this tool failed: it goes before the run's own `onToolError`. */
  readonly onToolError?: OnToolError<Fatal, R, Later<E>>
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
  : S["Type"] | Outcomes.AskUser | Outcomes.Content | Outcomes.Halt

/** The effect of a handler as it was written, to infer it from; nothing while it is being read. It forbids nothing. */
type Written<H> = [H] extends [never] ? unknown : H | Effect.Effect<unknown, unknown, unknown>

/** What a tool produces: what its success schema says, and without one what its handler returns as a value. */
export type Produces<S extends Schema.Constraint, H extends Effect.Effect<unknown, unknown, unknown>> = unknown extends
  S["Type"] ? 0 extends 1 & Effect.Success<H> ? unknown : Exclude<Effect.Success<H>, Outcomes.AskUser | Outcomes.Halt>
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
    call: CallContext
  ) => Written<H> & Effect.Effect<Produced<S>, E, R>
  /** Calls are handed to the caller (`Session.submitToolResult`) and never run. `false` by default. */
  readonly manual?: boolean
}
