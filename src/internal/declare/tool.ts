/**
 * Tool types: the handler's call context, the finished tool, and its declaration. Public and documented as members of
 * `Tool`.
 */
import type * as Cause from "effect/Cause"
import type * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import type * as JsonSchema from "effect/JsonSchema"
import type * as Option from "effect/Option"
import type * as Schedule from "effect/Schedule"
import type * as Schema from "effect/Schema"
import type * as Message from "../../Message.ts"
import type * as Json from "../json.ts"
import type * as ToolOutcomes from "./outcome.ts"
import type * as Schemas from "./schema.ts"

/**
 * Context of a handler's call. `context` belongs to the caller, as of the step's start. The arguments and `toolCall`
 * are copies: changes by the handler do not show in the thread, in events or anywhere else.
 *
 * @category models
 */
export interface CallContext {
  /** Call id. */
  readonly id: string
  /** Tool name. */
  readonly name: string
  /** Position of the call among the turn's calls run here, from 0. */
  readonly index: number
  /** Position of the turn in its run, from 0. */
  readonly stepIndex: number
  /** Attempt number: 1 for the first start, one more for each retry. */
  readonly attempt: number
  /** Answer to the previous attempt's question, with the state left by that attempt. Left out of any other attempt. */
  readonly resumed?: {
    /** Answer, as plain JSON matching the question's schema. */
    readonly answer: unknown
    /** The `resume` of `Tool.askUser`, as plain JSON. */
    readonly state: unknown
  }
  /** Key shared by all attempts of this call, and different for every other call. */
  readonly idempotencyKey: string
  /** Id of the run. */
  readonly requestId: string | null
  /** Session id, or the `sessionId` option. `null` without either. */
  readonly sessionId: string | null
  /** The caller's own record, as it was at the step's start. */
  readonly context: Json.JsonObject
  /** The call as made by the model: a copy, like the arguments. */
  readonly toolCall: Message.ToolCall
  /** Reports progress to the consumer at once. Never fails. Reports not read in time are coalesced. */
  readonly progress: (value: unknown) => Effect.Effect<void>
  /**
   * Adds to the context of later steps. Updates count if the handler succeeds, and are merged in call order, not
   * completion order.
   */
  readonly updateContext: (values: Json.JsonObject) => Effect.Effect<void>
  /**
   * Runs a Promise API: interruption fires its signal and waits for the promise to settle. `Effect.promise` and
   * `Effect.tryPromise` do not wait: a promise ignoring their signal outlives the run, unreported. A rejection becomes
   * a reported failure, with the rejected value as its `cause`; the model reads that value's name and message.
   */
  readonly promise: <A>(run: (signal: AbortSignal) => PromiseLike<A>) => Effect.Effect<A, Cause.UnknownError>
  /**
   * Stops another call of the turn; its siblings and the run continue. The call is answered as `cancelled` with the
   * reason, which the model reads (default `"the call was stopped"`). A waiting call is withdrawn. A call whose handler
   * does not stop is answered as `abandoned` after its grace period. A call with `interrupt: "block"` may finish within
   * that period. Succeeds with `false` for an unknown call, and for a call already answered or stopped.
   */
  readonly cancelCall: (id: string, reason?: string) => Effect.Effect<boolean>
}

/**
 * Time limit of a call, counted from its handler's start: a duration (a number is milliseconds), `"infinity"` for no
 * limit, or `{ total, idle }` with one or both limits. `{ idle }` alone lets a call run as long as it makes progress.
 *
 * @category models
 */
export type TimeoutInput = Duration.Input | "infinity" | {
  /** Total time of the call; a number is milliseconds. No limit by default. */
  readonly total?: Duration.Input | "infinity"
  /**
   * Time of the call without progress; a number is milliseconds. It restarts with each `call.progress`, such as from an
   * MCP server's tool, and with each event of a run started by the handler. Time such a run spends only waiting for a
   * permit, a key or a budget does not count. No limit by default.
   */
  readonly idle?: Duration.Input | "infinity"
}

/**
 * A tool's time limit, as read by `Tool.make`. An undeclared `total` or `idle` is left out.
 *
 * @category models
 */
export type Timeout = Duration.Duration | {
  /** Total time of the call. */
  readonly total?: Duration.Duration
  /** Time of the call without progress. */
  readonly idle?: Duration.Duration
}

/**
 * `"shared"` calls may overlap, an `"exclusive"` call runs alone.
 *
 * @category models
 */
export type Concurrency = "shared" | "exclusive"

/**
 * Policy for failed calls: `"continue"` hands the error to the model, `"halt"` ends the run, and a function
 * `(call, error)` returns an Effect with a `Tool.ErrorDecision`. The function runs once per failing call, outside the
 * call's timeout, with the handler's reported failure (`Failure`, from any tool in the run) or a `Tool.ToolError`. A
 * tool's own `onToolError` takes precedence over the run's. Public as `ToolRunner.OnToolError`.
 *
 * **Gotchas**
 *
 * It also decides about calls that never ran because the model wrote them wrong: those with reason `unknown_tool`,
 * `invalid_arguments` or `truncated_arguments`. With `"halt"`, or a function ignoring `error.reason`, a slip by the
 * model ends your run. It does not decide about `denied` or `cancelled` calls.
 *
 * @category models
 */
export type OnToolError<E = never, R = never, Failure = unknown> =
  | "continue"
  | "halt"
  | ((call: Message.ToolCall, error: Failure | ToolOutcomes.ToolError) => Effect.Effect<
    ToolOutcomes.ErrorDecision<E>,
    never,
    R
  >)

/**
 * A tool. `Params` is the handler's input, `Success` its result, `Failure` its reported failure, `R` its services, and
 * `Fatal` the error its policy may fail the run with.
 *
 * @category models
 */
export interface Tool<Name extends string, Params, Success, Failure, R, Fatal = never> {
  /** Name, as called by the model. */
  readonly name: Name
  /** Description, read by the model. */
  readonly description: string
  /** JSON Schema of the arguments, with their decoder. */
  readonly parameters: Schemas.Parameters<Params, R>
  /** Encodes the result, if the tool has a `success` schema. */
  readonly encodeSuccess?: (value: unknown) => Effect.Effect<unknown, unknown, R>
  /** Encodes reported failures, if the tool has a `failure` schema. */
  readonly encodeFailure?: (error: unknown) => Effect.Effect<unknown, unknown, R>
  /** Code to run. Left out of a manual tool. */
  readonly handler?: (
    args: Params,
    call: CallContext
  ) => Effect.Effect<Success | ToolOutcomes.AskUser | ToolOutcomes.Halt, Failure, R>
  /**
   * `true` if the tool changes nothing, or a function deciding per call. Read through `Tool.isReadOnly`. Undeclared
   * hints are left out.
   */
  readonly readOnly?: boolean | ((args: Params) => boolean)
  /** `true` if the tool may destroy something, or a function deciding per call. Read through `Tool.isDestructive`. */
  readonly destructive?: boolean | ((args: Params) => boolean)
  /** `true` if a repeated call with the same arguments changes nothing more. */
  readonly idempotent?: boolean
  /** `true` if the tool reaches outside the application. */
  readonly openWorld?: boolean
  /** Policy for a call with an unknown effect. Derived from the flags if left out. */
  readonly afterCrash?: AfterCrash
  /** Looks up the real outcome of such a call. */
  readonly lookUp?: (args: Params, call: CallContext) => Effect.Effect<Option.Option<unknown>, unknown, R>
  /** Decides from the arguments whether the call makes sense. */
  readonly validate?: Gate<Params, Validation, R>
  /** Decides from the arguments whether the call is allowed. */
  readonly authorize?: Gate<Params, Authorization, R>
  /** `"exclusive"` to run alone. Defaults to the policy's setting. */
  readonly concurrency?: Concurrency | ((args: Params) => Concurrency)
  /** `"block"` to let a stopped call finish, or a function of its arguments. Defaults to the policy's setting. */
  readonly interrupt?: Interrupt | ((args: Params) => Interrupt)
  /** Limits on concurrent handlers, by key. */
  readonly limits?: ReadonlyArray<Limit<Params>>
  /** Time limit of a call. Defaults to the run's `toolTimeout`. */
  readonly timeout?: Timeout
  /** `true` if calls are handed to the caller. */
  readonly manual: boolean
  /** `true` if calls wait for approval. */
  readonly approval?: boolean | Approval<Params, R>
  /** Scope in which an approval may be remembered. Not remembered if left out. */
  readonly remember?: Remember
  /** Time an approval or a manual call waits. Unlimited if left out. */
  readonly answerWithin?: Duration.Duration
  /** Repeats a failed handler. */
  readonly retry?: Schedule.Schedule<unknown, unknown, never, R>
  /** Policy of the run after a failed call of this tool. */
  readonly onToolError?: OnToolError<any, R, any>
  /** Carries a type and no value. Declared as a function, so that every tool fits a tool with an unknown `Fatal`. */
  readonly "~heddle/Fatal"?: (error: Fatal) => void
  /** `true` for the tool by which a model gives a typed answer: readers do not see its calls. */
  readonly "~heddle/Output"?: true
  /** Longest result read by the model, in characters. Defaults to `Policy.resultLimit`. */
  readonly maxResultChars?: number
  /** One-line summary of a compact tool, read by the model. */
  readonly summary?: string
  /** `true` if the model reads one line and requests the schema through `tool_help`. */
  readonly compact: boolean
  /** Version of the tool's behavior. None if left out. */
  readonly version?: string
  /** Your own data on the tool. */
  readonly metadata: Json.JsonObject
}

/**
 * Any tool.
 *
 * @category utility types
 */
export type Any = Tool<string, any, any, any, any>

/**
 * Arguments received by the tool's handler.
 *
 * @category utility types
 */
export type Params<T> = T extends Tool<any, infer P, any, any, any> ? P : never

/**
 * Value produced by the tool.
 *
 * @category utility types
 */
export type Success<T> = T extends Tool<any, any, infer A, any, any> ? A : never

/**
 * Failure reported by the tool.
 *
 * @category utility types
 */
export type Failure<T> = T extends Tool<any, any, any, infer E, any> ? E : never

/**
 * Services needed by the tool, and so by every run offering the tool.
 *
 * @category utility types
 */
export type Services<T> = T extends Tool<any, any, any, any, infer R> ? R : never

/**
 * Error the tool's own `onToolError` may fail a run with. `never` for tools with erased types (`Tool.Any`).
 *
 * @category utility types
 */
export type Fatal<T> = T extends Tool<any, any, any, any, any, infer E> ? E : never

/**
 * The outcome of a call. Exactly one per call.
 *
 * @category models
 */
export type Outcome<T extends Any = Any> =
  | ToolOutcomes.Ok<Success<T>>
  | ToolOutcomes.Error<Failure<T> | ToolOutcomes.ToolError>
  | ToolOutcomes.AskUser
  | ToolOutcomes.Halt

/**
 * A tool, as read by a model.
 *
 * @category models
 */
export interface Definition {
  /** Tool name. */
  readonly name: string
  /** Tool description. */
  readonly description: string
  /** JSON Schema of the arguments. */
  readonly parameters: JsonSchema.JsonSchema
}

/**
 * The decision of `validate`. Anything but `true` or `valid: true` is a denial.
 *
 * @category models
 */
export type Validation = boolean | {
  /** `true` if the call may run. */
  readonly valid: boolean
  /** Reason for a denial, read by the model. */
  readonly error?: string
}

/**
 * The decision of `authorize`. Anything but `true` or `allowed: true` is a denial; `canOverride` is reported with the
 * denial.
 *
 * @category models
 */
export type Authorization =
  | boolean
  | {
    /** `true` if the call may run. */
    readonly allowed: boolean
    /** Reason for a denial, read by the model. */
    readonly reason?: string
    /** `true` if a person could allow the call. Reported with the denial. */
    readonly canOverride?: boolean
  }

/**
 * Decides from the arguments whether a call may run. Failures and exceptions are denials.
 *
 * @category models
 */
export type Gate<Args, Verdict, R> = (
  args: Args,
  call: CallContext
) => Verdict | Effect.Effect<Verdict, unknown, R>

/**
 * Calls an approval may be remembered for: all calls to the tool, or calls with the same arguments.
 *
 * @category models
 */
export type Remember = "tool" | "arguments"

/**
 * Decides from the arguments whether a call waits for approval.
 *
 * @category models
 */
export type Approval<in Args, out R> = (
  args: Args,
  call: CallContext
) => boolean | Effect.Effect<boolean, unknown, R>

/**
 * A concurrency limit: at most `permits` handlers at once under one key, naming a resource, a tenant or the tool
 * itself.
 *
 * @category models
 */
export interface Limit<in Args> {
  /** Limited item: a resource, a tenant, or the tool itself. A function derives it from the arguments. */
  readonly key: string | ((args: Args, call: CallContext) => string)
  /**
   * Number of handlers running at once under the key. If two tools give one key different numbers, the smaller applies.
   */
  readonly permits: number
}

/**
 * The way a handler stops together with its siblings or its run: `"cancel"` interrupts it, `"block"` lets it finish
 * within the grace period.
 *
 * @category models
 */
export type Interrupt = "cancel" | "block"

/**
 * Policy, once a run is resumed, for a call whose handler had started when its process ended, leaving its effect
 * unknown: retry it, report it to the model as unknown, ask a person, or end the run.
 *
 * @category models
 */
export type AfterCrash = "retry" | "report" | "ask" | "fail"

/**
 * Looks up the real outcome of a call with an unknown effect.
 *
 * @category models
 */
export type LookUp<Args, A, R> = (args: Args, call: CallContext) => Effect.Effect<Option.Option<A>, unknown, R>

/** Declarations of a tool able to look up its calls' outcomes. */
export interface Findable<P, A, R> {
  /**
   * Looks up, by `call.idempotencyKey`, the real outcome of a call whose handler had started when its process ended.
   * `Option.some` gives the result; `Option.none()` means the call did not happen and now runs. A failing look-up
   * leaves the outcome open, and the call is reported as unknown. It has the handler's timeout; the gates, passed
   * before, are not asked again. Replaces `afterCrash`. None by default.
   */
  readonly lookUp?: LookUp<Schemas.Type<P>, A, R>
}

/** `E`, not inferred from this position. Unlike `NoInfer` it reads as plain `E`. */
export type Later<E> = [E][E extends unknown ? 0 : never]

/** Declarations for every tool, besides its handler. */
export interface Declarations<P, E, R, Fatal> {
  /** Description for the model. Empty by default. */
  readonly description?: string
  /**
   * Arguments of the tool: struct fields of Effect Schemas, a Schema of an object, a Standard Schema with a JSON Schema
   * (Zod 4 and ArkType as they are, Valibot through `toStandardJsonSchema`), or a JSON Schema object; `{}` for no
   * arguments. Mismatched arguments are answered as `invalid_arguments`, without calling the handler. A JSON Schema is
   * sent unchanged and not checked. Describe a field with `Schema.String.annotate({ description: "…" })`. Defaults are
   * applied but not shown to the model: mention them in the description.
   */
  readonly parameters: P
  /**
   * Decides from the arguments whether the call makes sense. Runs first, before the handler's first start; a retry, a
   * restart with an answer and a call started before a crash have passed the gates. Everything but `true` or `{ valid:
   * true }`, including a failure or a timeout, is a denial (`denied`), and the error policy is not asked. Both gates
   * together have the tool's timeout, and no more than the run's `toolTimeout`. None by default.
   */
  readonly validate?: Gate<Schemas.Type<P>, Validation, R>
  /**
   * Decides from the arguments whether the call is allowed. Runs second, in the same way. Everything but `true` or
   * `{ allowed: true }` is a denial. None by default.
   */
  readonly authorize?: Gate<Schemas.Type<P>, Authorization, R>
  /**
   * `true` if calls wait for approval (`Session.approve`), or a function returning `true` for the calls that must wait.
   * The gates run before, and again when an approved call runs. A function that fails or throws counts as `true`. Not
   * together with `manual`. Defaults to `false`.
   */
  readonly approval?: boolean | Approval<Schemas.Type<P>, R>
  /**
   * Scope in which a person may have an approval remembered for the session, through `remember` of `Session.approve`:
   * `"arguments"` for calls with the same arguments, `"tool"` for all calls to the tool, or for the same arguments.
   * Calls inside a sub-agent, and calls to a tool changed since (in description, parameters, hints or `version`), still
   * need approval. Only together with `approval`. Not remembered by default.
   */
  readonly remember?: Remember
  /**
   * Time an approval or a manual call waits; a number is milliseconds. Afterwards the call counts as denied. Unlimited
   * by default.
   */
  readonly answerWithin?: Duration.Input | "infinity"
  /**
   * `true` for a tool that changes nothing and may start during the reply (`Policy.start`); a function decides from the
   * complete, decoded arguments. A function that throws or returns anything but `true` counts as `false`. Defaults to
   * `false`.
   */
  readonly readOnly?: boolean | ((args: Schemas.Type<P>) => boolean)
  /**
   * Hint for a user interface, as in MCP: `true` if the tool may destroy something; a function decides from the
   * arguments (`Tool.isDestructive`). A function that throws or returns anything but `false` counts as `true`. Defaults
   * to `false`.
   */
  readonly destructive?: boolean | ((args: Schemas.Type<P>) => boolean)
  /**
   * `true`, as in MCP, if a repeated call with the same arguments changes nothing more. A call interrupted by the end
   * of its process is then retried (`afterCrash`). Defaults to `false`.
   */
  readonly idempotent?: boolean
  /** Hint, as in MCP: `true` if the tool reaches outside the application. Defaults to `false`. */
  readonly openWorld?: boolean
  /**
   * Policy, once a run is resumed, for a call whose handler had started when its process ended. `"retry"` runs it
   * again, with the same `call.idempotencyKey` and the next `call.attempt`. `"report"` answers it with an error telling
   * the model (`unknown_effect`). `"ask"` asks a person, whose answer becomes the result. `"fail"` ends the run as
   * `ToolFailed`. Not together with `lookUp`. Defaults to `"retry"` for a `readOnly` or `idempotent` call, otherwise to
   * `"report"`.
   */
  readonly afterCrash?: AfterCrash
  /**
   * `"exclusive"` runs alone, `"shared"` beside others; a function decides from the arguments. A function that throws
   * or returns anything but `"shared"` counts as `"exclusive"`. While a handler that refused to stop is still alive in
   * the run, an exclusive call waits for one grace period and is then answered as cancelled. Defaults to the policy's
   * setting, which is `"shared"`.
   */
  readonly concurrency?: Concurrency | ((args: Schemas.Type<P>) => Concurrency)
  /**
   * `"block"` lets the handler finish within the grace period when the run or its siblings stop; `"cancel"` interrupts
   * the handler. A function decides from the arguments. A function that throws or returns anything but `"cancel"`
   * counts as `"block"`, so that its work is not cut in half. Defaults to the policy's setting, which is `"cancel"`.
   */
  readonly interrupt?: Interrupt | ((args: Schemas.Type<P>) => Interrupt)
  /**
   * Time limit of a call; a number is milliseconds, `"infinity"` is no limit, and `{ total, idle }` also limits the
   * time without progress. At the limit the handler is interrupted, its later outcome is dropped, and the call is
   * answered once the handler has ended, or after the grace period, at most five seconds. Defaults to the run's
   * `toolTimeout`.
   */
  readonly timeout?: TimeoutInput
  /**
   * Repeats a failed handler within the call's timeout, counted in `call.attempt`. `Schedule.while` selects failures by
   * `input`. After the run is stopped no attempt starts, and the last failure is the call's. Never by default.
   */
  readonly retry?: Schedule.Schedule<unknown, unknown, never, R>
  /**
   * Policy of the run after a failed call of this tool, replacing the run's `onToolError`: `"continue"`, `"halt"`, or a
   * function `(call, error)` returning an Effect with a `Tool.ErrorDecision`. It also decides about calls with
   * `invalid_arguments` or `truncated_arguments`, which never ran. Write it after the handler, which gives `error` its
   * type; name an `Effect.fn` handler in a `const` before the tool. For a handler failing in several ways, use one
   * `Effect.gen`, or declare their union as `failure`. Defaults to the run's policy.
   */
  readonly onToolError?: OnToolError<Fatal, R, Later<E>>
  /**
   * Limits on concurrent handlers by key, across all runs sharing `Limits.Keyed`. A call waits for its permits in its
   * place among its siblings; its timeout starts afterwards. None by default.
   */
  readonly limits?: ReadonlyArray<Limit<Schemas.Type<P>>>
  /**
   * Longest result read by the model, in characters (UTF-16 code units); `0` or `Infinity` for no limit.
   * `Policy.resultCut` selects the kept part of a longer result. Errors have their own limit. Defaults to
   * `Policy.resultLimit`.
   */
  readonly maxResultChars?: number
  /** One-line summary of a `compact` tool, read by the model. Defaults to its description. */
  readonly summary?: string
  /** `true` to offer the model one line; it requests the schema through the `tool_help` tool. Defaults to `false`. */
  readonly compact?: boolean
  /**
   * Text changing with the tool's behavior, such as a hash. It is recorded with a run: a call made by a model or
   * approved by a person for one version is denied if the tool has another version by then, or is gone. None by
   * default.
   */
  readonly version?: string
  /** Your own data on the tool, ignored by Heddle and hidden from the model. Defaults to `{}`. */
  readonly metadata?: Json.JsonObject
}

/**
 * Values a handler may produce under a success schema. `S` is `never` while the compiler reads a handler before knowing
 * the schema: any value must fit then.
 */
type Produced<S extends Schema.Constraint> = [S] extends [never] ? any
  : S["Type"] | ToolOutcomes.AskUser | ToolOutcomes.Content | ToolOutcomes.Halt

/**
 * The handler's effect as written, for inference; `unknown` while the compiler still reads the handler. Rejects only
 * promises, for which the compiler shows the text.
 */
type Written<H> = [H] extends [never] ? unknown
  : [H] extends [PromiseLike<unknown>] ? "return an Effect: call.promise((signal) => …)"
  : H extends Effect.Effect<unknown, unknown, unknown> ? H | Effect.Effect<unknown, unknown, unknown>
  : Effect.Effect<unknown, unknown, unknown>

/** Value produced by a tool: the type of its success schema, or the handler's return value without a schema. */
export type Produces<S extends Schema.Constraint, H> = unknown extends S["Type"] ?
  0 extends 1 & Returned<H> ? unknown : Exclude<Returned<H>, ToolOutcomes.AskUser | ToolOutcomes.Halt>
  : S["Type"]

/** Success value of a handler's effect. */
type Returned<H> = H extends Effect.Effect<infer A, unknown, unknown> ? A : never

/**
 * Declaration of a tool. Public as `Tool.Options`.
 *
 * @category options
 */
export interface Options<
  P,
  S extends Schema.Constraint,
  E,
  R,
  H = Effect.Effect<unknown, unknown, unknown>,
  Fatal = never
> extends Declarations<P, E, R, Fatal>, Findable<P, Produced<S>, R> {
  /**
   * Encodes the result before it is written for the model, and checks the handler's type. Without a schema the tool
   * produces the handler's return value.
   */
  readonly success?: S
  /**
   * Encodes a reported failure before it is written for the model. Without a schema, error fields are written by the
   * schema of the error's class; other errors are written with their tag, name, message and own strings, numbers and
   * booleans, never with a cause, stack, request or response, and with at most 8,192 characters. An error not matching
   * the schema is written the same way.
   */
  readonly failure?: Schema.ConstraintCodec<E, unknown, R, R>
  /**
   * Code to run: an Effect with the result, `Tool.content`, `Tool.askUser` or `Tool.halt`. Left out of a `manual` tool.
   */
  readonly handler?: (
    args: Schemas.Type<P>,
    call: CallContext
  ) => Written<H> & Effect.Effect<Produced<S>, E, R>
  /**
   * `true` if calls never run here but are handed to the caller, who gives the result through `Session.answer`.
   * Defaults to `false`.
   */
  readonly manual?: boolean
}
