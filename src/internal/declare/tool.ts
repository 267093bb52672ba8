/**
 * The types of a tool: what a handler receives, what a tool is once it is made, and how one is declared. Public as
 * members of `Tool`, with their documentation.
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
 * The context of the call that a handler serves. `context` is the caller's, as it was when the step began. The
 * arguments and `toolCall` are copies: a handler may change them, and nothing of it shows in the thread, in events or
 * elsewhere.
 *
 * @category models
 * @since 0.1.0
 */
export interface CallContext {
  /** The id of the call. */
  readonly id: string
  /** The name of the tool. */
  readonly name: string
  /** Position of the call among the calls of its turn that are run here, from 0. */
  readonly index: number
  /** Position of the turn in its run, from 0. */
  readonly stepIndex: number
  /** 1 for the first start, one more for each retry. */
  readonly attempt: number
  /** The answer to the question of the attempt before, and the state that it left. Left out of any other attempt. */
  readonly resumed?: {
    /** The answer, as plain JSON. It fits the schema of the question. */
    readonly answer: unknown
    /** The `resume` of `Tool.askUser`, as plain JSON. */
    readonly state: unknown
  }
  /** The same for every attempt at this call, different for every other call. */
  readonly idempotencyKey: string
  /** The id of the run. */
  readonly requestId: string | null
  /** The id of the session, or the `sessionId` of the options. `null` when there is none. */
  readonly sessionId: string | null
  /** The caller's own record, as it was when the step began. */
  readonly context: Json.JsonObject
  /** The call as the model made it: a copy, like the arguments. */
  readonly toolCall: Message.ToolCall
  /** Reports to the consumer at once. It never fails. Reports that are not read in time are coalesced. */
  readonly progress: (value: unknown) => Effect.Effect<void>
  /**
   * Adds to the context of the steps that follow. Updates count when the handler succeeds, and are merged in the order
   * of the calls, not in the order in which they finish.
   */
  readonly updateContext: (values: Json.JsonObject) => Effect.Effect<void>
  /**
   * Runs a Promise API: interruption fires its signal and waits until the promise has settled, which `Effect.promise`
   * and `Effect.tryPromise` do not: what ignores their signal outlives the run, and is named nowhere. A rejection is a
   * failure that the handler reports, with what it was rejected with as its `cause`; the model reads the name and the
   * message of that.
   */
  readonly promise: <A>(run: (signal: AbortSignal) => PromiseLike<A>) => Effect.Effect<A, Cause.UnknownError>
  /**
   * Stops another call of the turn, whose siblings and run continue. It is answered as `cancelled` with the reason
   * (`"the call was stopped"` by default), which the model reads. A call that waits is withdrawn; one whose handler
   * does not stop is answered as `abandoned` after its grace period; one with `interrupt: "block"` may finish within
   * that period. Succeeds with `false` where the turn has no such call, or where it is answered or stopped already.
   */
  readonly cancelCall: (id: string, reason?: string) => Effect.Effect<boolean>
}

/**
 * The time that a call may take, from the start of its handler: a duration (a number is milliseconds), `"infinity"` for
 * no limit, or `{ total, idle }` with one or both of them. `{ idle }` alone lets a call run as long as it moves.
 *
 * @category models
 * @since 0.1.0
 */
export type TimeoutInput = Duration.Input | "infinity" | {
  /** The time that the call may take in total; a number is milliseconds. No limit by default. */
  readonly total?: Duration.Input | "infinity"
  /**
   * The time that the call may take without progress; a number is milliseconds. It begins anew with each
   * `call.progress`, such as that of a tool of an MCP server, and with each event of a run that the handler has
   * started. The time in which such a run only waits for a permit, a key or a budget does not count. No limit by
   * default.
   */
  readonly idle?: Duration.Input | "infinity"
}

/**
 * The time that a call of a tool may take, as `Tool.make` has read it. Of `total` and `idle`, those that were not
 * declared are left out.
 *
 * @category models
 * @since 0.1.0
 */
export type Timeout = Duration.Duration | {
  /** The time that the call may take in total. */
  readonly total?: Duration.Duration
  /** The time that the call may take without progress. */
  readonly idle?: Duration.Duration
}

/**
 * `"shared"` calls may overlap, an `"exclusive"` call runs alone.
 *
 * @category models
 * @since 0.1.0
 */
export type Concurrency = "shared" | "exclusive"

/**
 * The policy for failed calls: `"continue"` hands the error to the model, `"halt"` ends the run, and a function
 * `(call, error)` returns an Effect of a `Tool.ErrorDecision`. The function is asked once per failing call, outside
 * the timeout of the call, with what the handler reported (`Failure`, of all tools of the run) or a `Tool.ToolError`.
 * A tool's own `onToolError` goes before that of the run. Public as `ToolRunner.OnToolError`.
 *
 * **Gotchas**
 *
 * It also decides about calls that never ran since the model wrote them wrong: those with the reason `unknown_tool`,
 * `invalid_arguments` or `truncated_arguments`. With `"halt"`, or a function that does not look at `error.reason`, a
 * slip of the model ends your run. It does not decide about calls that were `denied` or `cancelled`.
 *
 * @category models
 * @since 0.1.0
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
 * A tool: `Params` is what its handler receives, `Success` what it produces, `Failure` what it reports, `R` the
 * services it needs, `Fatal` what its error policy may fail the run with.
 *
 * @category models
 * @since 0.1.0
 */
export interface Tool<Name extends string, Params, Success, Failure, R, Fatal = never> {
  /** The name, as the model calls it. */
  readonly name: Name
  /** The description of the tool, as the model reads it. */
  readonly description: string
  /** The JSON Schema of the arguments, and their decoder. */
  readonly parameters: Schemas.Parameters<Params, R>
  /** Encodes the result, where the tool has a `success` schema. */
  readonly encodeSuccess?: (value: unknown) => Effect.Effect<unknown, unknown, R>
  /** Encodes what the handler reports, where the tool has a `failure` schema. */
  readonly encodeFailure?: (error: unknown) => Effect.Effect<unknown, unknown, R>
  /** The code that runs. Left out of a manual tool. */
  readonly handler?: (
    args: Params,
    call: CallContext
  ) => Effect.Effect<Success | ToolOutcomes.AskUser | ToolOutcomes.Halt, Failure, R>
  /**
   * `true` if it changes nothing, or a function that tells whether a call does. `Tool.isReadOnly` asks it. Of this and
   * the other hints, those that were not declared are left out.
   */
  readonly readOnly?: boolean | ((args: Params) => boolean)
  /** `true` if it may destroy something, or a function that tells whether a call may. `Tool.isDestructive` asks it. */
  readonly destructive?: boolean | ((args: Params) => boolean)
  /** `true` if running it again with the same arguments changes nothing more. */
  readonly idempotent?: boolean
  /** `true` if it reaches what is outside of the application. */
  readonly openWorld?: boolean
  /** The policy for a call of which it is not known whether it had its effect. By the flags when it is left out. */
  readonly afterCrash?: AfterCrash
  /** Looks in the world for what such a call came to. */
  readonly lookUp?: (args: Params, call: CallContext) => Effect.Effect<Option.Option<unknown>, unknown, R>
  /** Decides from the arguments whether the call makes sense. */
  readonly validate?: Gate<Params, Validation, R>
  /** Decides from the arguments whether the call is allowed. */
  readonly authorize?: Gate<Params, Authorization, R>
  /** `"exclusive"` if it runs alone, and not beside others. The policy's when it is left out. */
  readonly concurrency?: Concurrency | ((args: Params) => Concurrency)
  /**
   * `"block"` if it may finish when it is stopped, or a function of its arguments. The policy's when it is left out.
   */
  readonly interrupt?: Interrupt | ((args: Params) => Interrupt)
  /** The number of handlers that may run at once under a key. */
  readonly limits?: ReadonlyArray<Limit<Params>>
  /** The time that a call may take. The run's `toolTimeout` when it is left out. */
  readonly timeout?: Timeout
  /** `true` if calls are handed to the caller. */
  readonly manual: boolean
  /** `true` if calls wait to be allowed. */
  readonly approval?: boolean | Approval<Params, R>
  /** The extent to which an approval may be remembered. Not at all when it is left out. */
  readonly remember?: Remember
  /** The time that an approval or a manual call waits. Without a limit when it is left out. */
  readonly answerWithin?: Duration.Duration
  /** Repeats a handler that failed. */
  readonly retry?: Schedule.Schedule<unknown, unknown, never, R>
  /** The policy of the run after a call of this tool failed. */
  readonly onToolError?: OnToolError<any, R, any>
  /** Carries a type and no value. So held, each tool is one whose `Fatal` is not known. */
  readonly "~heddle/Fatal"?: (error: Fatal) => void
  /** `true` for the tool by which a model gives a typed answer: its calls are no calls to those who read along. */
  readonly "~heddle/Output"?: true
  /** The number of characters of a result that the model reads. `Policy.resultLimit` when it is left out. */
  readonly maxResultChars?: number
  /** The one line that the model reads of a compact tool. */
  readonly summary?: string
  /** `true` if the model reads one line, and asks `tool_help` for the schema. */
  readonly compact: boolean
  /** The version of what the tool does. None when it is left out. */
  readonly version?: string
  /** The data that you attached to the tool. */
  readonly metadata: Json.JsonObject
}

/**
 * Any tool.
 *
 * @category utility types
 * @since 0.1.0
 */
export type Any = Tool<string, any, any, any, any>

/**
 * The arguments that the tool's handler receives.
 *
 * @category utility types
 * @since 0.1.0
 */
export type Params<T> = T extends Tool<any, infer P, any, any, any> ? P : never

/**
 * The value that the tool produces.
 *
 * @category utility types
 * @since 0.1.0
 */
export type Success<T> = T extends Tool<any, any, infer A, any, any> ? A : never

/**
 * The failure that the tool reports.
 *
 * @category utility types
 * @since 0.1.0
 */
export type Failure<T> = T extends Tool<any, any, any, infer E, any> ? E : never

/**
 * The services the tool needs, and so every run that offers it.
 *
 * @category utility types
 * @since 0.1.0
 */
export type Services<T> = T extends Tool<any, any, any, any, infer R> ? R : never

/**
 * The error that the tool's own `onToolError` may fail a run with. Of tools whose types were given up (`Tool.Any`) it
 * is `never`.
 *
 * @category utility types
 * @since 0.1.0
 */
export type Fatal<T> = T extends Tool<any, any, any, any, any, infer E> ? E : never

/**
 * The outcome of a call. Exactly one per call.
 *
 * @category models
 * @since 0.1.0
 */
export type Outcome<T extends Any = Any> =
  | ToolOutcomes.Ok<Success<T>>
  | ToolOutcomes.Error<Failure<T> | ToolOutcomes.ToolError>
  | ToolOutcomes.AskUser
  | ToolOutcomes.Halt

/**
 * A tool as a model reads it.
 *
 * @category models
 * @since 0.1.0
 */
export interface Definition {
  /** The name. */
  readonly name: string
  /** The description of the tool. */
  readonly description: string
  /** The JSON Schema of the arguments. */
  readonly parameters: JsonSchema.JsonSchema
}

/**
 * The decision of `validate`. Anything but `true` or `valid: true` is a denial.
 *
 * @category models
 * @since 0.1.0
 */
export type Validation = boolean | {
  /** `true` if the call may run. */
  readonly valid: boolean
  /** The reason why not, as the model reads it. */
  readonly error?: string
}

/**
 * The decision of `authorize`. Anything but `true` or `allowed: true` is a denial; `canOverride` is reported with it.
 *
 * @category models
 * @since 0.1.0
 */
export type Authorization =
  | boolean
  | {
    /** `true` if the call may run. */
    readonly allowed: boolean
    /** The reason why not, as the model reads it. */
    readonly reason?: string
    /** `true` if a person could allow it. It is reported with the denial. */
    readonly canOverride?: boolean
  }

/**
 * Decides from the arguments whether a call may run. What it fails with or throws is a denial.
 *
 * @category models
 * @since 0.1.0
 */
export type Gate<Args, Verdict, R> = (
  args: Args,
  call: CallContext
) => Verdict | Effect.Effect<Verdict, unknown, R>

/**
 * The calls for which an approval may be remembered: those of the tool, or those with the same arguments.
 *
 * @category models
 * @since 0.1.0
 */
export type Remember = "tool" | "arguments"

/**
 * Decides from the arguments whether a call waits for an approval.
 *
 * @category models
 * @since 0.1.0
 */
export type Approval<in Args, out R> = (
  args: Args,
  call: CallContext
) => boolean | Effect.Effect<boolean, unknown, R>

/**
 * A limit of handlers that run at once: at most `permits` under one key, which names a resource, a tenant or the tool
 * itself.
 *
 * @category models
 * @since 0.1.0
 */
export interface Limit<in Args> {
  /** The thing that is limited: a resource, a tenant, or the tool itself. A function takes it from the arguments. */
  readonly key: string | ((args: Args, call: CallContext) => string)
  /**
   * The number of handlers that may run at once under the key. Where two tools give one key different numbers, the
   * smaller holds.
   */
  readonly permits: number
}

/**
 * The way in which a handler is stopped with its siblings or its run: `"cancel"` interrupts it, `"block"` lets it
 * finish within the grace period.
 *
 * @category models
 * @since 0.1.0
 */
export type Interrupt = "cancel" | "block"

/**
 * The policy for a call whose handler had started when its process ended, so that nothing tells whether the call had
 * its effect, once its run is resumed: it is tried again, reported to the model as unknown, put to a person, or ends
 * the run.
 *
 * @category models
 * @since 0.1.0
 */
export type AfterCrash = "retry" | "report" | "ask" | "fail"

/**
 * Looks in the world for what a call came to of which it is not known whether it had its effect.
 *
 * @category models
 * @since 0.1.0
 */
export type LookUp<Args, A, R> = (args: Args, call: CallContext) => Effect.Effect<Option.Option<A>, unknown, R>

/** The declarations of a tool that can find out what its calls came to. */
export interface Findable<P, A, R> {
  /**
   * Looks in the world, by `call.idempotencyKey`, for what a call came to whose handler had started when its process
   * ended: `Option.some` of the result, or `Option.none()` if it did not happen, and the call then runs. One that
   * fails tells nothing, and the call is reported as unknown. It counts as the handler of the call, with its gates and
   * its timeout. In place of `afterCrash`. None by default.
   */
  readonly lookUp?: LookUp<Schemas.Type<P>, A, R>
}

/** `E`, which is not inferred from here. Unlike `NoInfer` it is nothing but `E` where it is read. */
export type Later<E> = [E][E extends unknown ? 0 : never]

/** The declarations of every tool, besides its handler. */
export interface Declarations<P, E, R, Fatal> {
  /** The description of the tool, as the model reads it. Empty by default. */
  readonly description?: string
  /**
   * The arguments that the model may send: struct fields of Effect Schemas, a Schema of an object, a Standard Schema
   * with a JSON Schema (`z.object(…)` of Zod 4 and ArkType as they are, Valibot by `toStandardJsonSchema`), or a JSON
   * Schema object; `{}` for none. Arguments that do not fit are answered as `invalid_arguments`, and the handler is
   * not called. A JSON Schema is sent as it is and not checked. Describe a field with `Schema.String.annotate({
   * description: "…" })`. A default is applied, and the model does not read it: put it into the description.
   */
  readonly parameters: P
  /**
   * Decides from the arguments whether the call makes sense. Asked first, before every start of a handler; everything
   * but `true` or `{ valid: true }`, a failure and a timeout are a denial (`denied`), about which the error policy is
   * not asked. The two gates together have the timeout of the tool, and no more than the run's `toolTimeout`. None by
   * default.
   */
  readonly validate?: Gate<Schemas.Type<P>, Validation, R>
  /**
   * Decides from the arguments whether the call is allowed. Asked second, in the same way; everything but `true` or
   * `{ allowed: true }` is a denial. None by default.
   */
  readonly authorize?: Gate<Schemas.Type<P>, Authorization, R>
  /**
   * `true` if calls wait to be allowed (`Session.approve`), or a function that returns `true` for those that do. The
   * gates are asked before, and again when an allowed call runs. A function that fails or throws counts as `true`. Not
   * together with `manual`. `false` by default.
   */
  readonly approval?: boolean | Approval<Schemas.Type<P>, R>
  /**
   * The extent to which a person may have an approval remembered for the session, by `remember` of `Session.approve`:
   * `"arguments"` for calls with the same arguments, `"tool"` for all calls of the tool, or for the same arguments. The
   * calls of a sub-agent, and of a tool that has changed since (its description, parameters, hints or `version`), are
   * asked about nevertheless. Only together with `approval`. Not at all by default.
   */
  readonly remember?: Remember
  /**
   * The time that an approval or a manual call waits; a number is milliseconds. From then on the call counts as
   * denied, or as unanswered. Without a limit by default.
   */
  readonly answerWithin?: Duration.Input | "infinity"
  /**
   * The tool changes nothing, and starts during the reply (`Policy.start`); a function decides from the arguments,
   * once they are whole and decoded. A function that throws or returns anything but `true` counts as `false`. `false`
   * by default.
   */
  readonly readOnly?: boolean | ((args: Schemas.Type<P>) => boolean)
  /**
   * A hint for a user interface, as in MCP: it may destroy something; a function decides from the arguments
   * (`Tool.isDestructive`). A function that throws or returns anything but `false` counts as `true`. `false` by
   * default.
   */
  readonly destructive?: boolean | ((args: Schemas.Type<P>) => boolean)
  /**
   * `true` as in MCP: to run it again with the same arguments changes nothing more. A call that was interrupted by the
   * end of its process is then tried again (`afterCrash`). `false` by default.
   */
  readonly idempotent?: boolean
  /** A hint, as in MCP: it reaches what is outside of the application. `false` by default. */
  readonly openWorld?: boolean
  /**
   * The policy for a call whose handler had started when its process ended, once its run is resumed: `"retry"` runs it
   * again, with the same `call.idempotencyKey` and the next `call.attempt`; `"report"` answers it as an error
   * (`unknown_effect`) that tells the model so; `"ask"` puts it to a person, whose answer becomes the result; `"fail"`
   * ends the run as `ToolFailed`. Not together with `lookUp`. `"retry"` by default for a call that is `readOnly` or
   * `idempotent`, else `"report"`.
   */
  readonly afterCrash?: AfterCrash
  /**
   * `"exclusive"` runs alone, `"shared"` beside others; a function decides from the arguments. A function that throws
   * or returns anything but `"shared"` counts as `"exclusive"`. While a handler of the run is alive that refused to
   * stop, an exclusive call waits for one grace period and is then answered as cancelled. The policy's by default,
   * which is `"shared"`.
   */
  readonly concurrency?: Concurrency | ((args: Schemas.Type<P>) => Concurrency)
  /**
   * `"block"` lets the handler finish within the grace period when the run or its siblings stop, `"cancel"` has it
   * interrupted; a function decides from the arguments. A function that throws or returns anything but `"cancel"`
   * counts as `"block"`: what it does is not cut in half. The policy's by default, which is `"cancel"`.
   */
  readonly interrupt?: Interrupt | ((args: Schemas.Type<P>) => Interrupt)
  /**
   * The time that a call may take; a number is milliseconds, `"infinity"` is no limit, and `{ total, idle }` limits the
   * time without progress as well. When it is over the handler is interrupted, its later outcome is dropped, and the
   * call is answered once it has ended: after the grace period, five seconds at most, also if it has not. The run's
   * `toolTimeout` by default.
   */
  readonly timeout?: TimeoutInput
  /**
   * Repeats a handler that failed, within the timeout of the call; `call.attempt` counts. `Schedule.while` chooses
   * which failures, by `input`. After a stop of the run no attempt starts, and the last failure is the call's. Never
   * by default.
   */
  readonly retry?: Schedule.Schedule<unknown, unknown, never, R>
  /**
   * The policy of the run after a call of this tool failed, in place of the run's own `onToolError`: `"continue"`,
   * `"halt"`, or a function `(call, error)` that returns an Effect of a `Tool.ErrorDecision`. It is also asked about
   * calls with `invalid_arguments` or `truncated_arguments`, which never ran. Write it after the handler, from which
   * the type of `error` comes; name a handler that is an `Effect.fn` in a `const` before the tool. A handler that
   * fails in several ways is one `Effect.gen`, or has their union as `failure`. The run's by default.
   */
  readonly onToolError?: OnToolError<Fatal, R, Later<E>>
  /**
   * The number of handlers that may run at once under a key, over all runs that share `Limits.Keyed`. A call waits for
   * its permits in its place among its siblings, and its timeout starts after that. None by default.
   */
  readonly limits?: ReadonlyArray<Limit<Schemas.Type<P>>>
  /**
   * The number of characters (UTF-16 code units) of a result that the model reads; `0` or `Infinity` for all of them.
   * `Policy.resultCut` says what is kept of a longer one. Errors have their own limit. `Policy.resultLimit` by
   * default.
   */
  readonly maxResultChars?: number
  /** The one line that the model reads of a `compact` tool. Its description by default. */
  readonly summary?: string
  /** `true` if the model is offered one line, and asks the `tool_help` tool for the schema. `false` by default. */
  readonly compact?: boolean
  /**
   * A text that changes with what the tool does, such as a hash. It is recorded with a run: a call that a model made,
   * or a person approved, for one version is denied where the tool has another one by then, or is gone. None by
   * default.
   */
  readonly version?: string
  /** The data that you attach to the tool. Neither Heddle nor the model reads it. `{}` by default. */
  readonly metadata?: Json.JsonObject
}

/**
 * The values that a handler may produce under a success schema. While the compiler reads a handler before it knows the
 * schema, `S` is `never`: then the handler's own value must not be held to the rest of this union.
 */
type Produced<S extends Schema.Constraint> = [S] extends [never] ? any
  : S["Type"] | ToolOutcomes.AskUser | ToolOutcomes.Content | ToolOutcomes.Halt

/**
 * The effect of a handler as it was written, to infer it from; nothing while it is being read. It forbids nothing but
 * a promise, for which the compiler shows the text.
 */
type Written<H> = [H] extends [never] ? unknown
  : [H] extends [PromiseLike<unknown>] ? "return an Effect: call.promise((signal) => …)"
  : H extends Effect.Effect<unknown, unknown, unknown> ? H | Effect.Effect<unknown, unknown, unknown>
  : Effect.Effect<unknown, unknown, unknown>

/**
 * The value that a tool produces: the type of its success schema, or without one the value that its handler returns.
 */
export type Produces<S extends Schema.Constraint, H> = unknown extends S["Type"] ?
  0 extends 1 & Returned<H> ? unknown : Exclude<Returned<H>, ToolOutcomes.AskUser | ToolOutcomes.Halt>
  : S["Type"]

/** The value that the effect of a handler succeeds with. */
type Returned<H> = H extends Effect.Effect<infer A, unknown, unknown> ? A : never

/**
 * The declaration of a tool. Public as `Tool.Options`.
 *
 * @category options
 * @since 0.1.0
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
   * Encodes the result before it is written for the model, and holds the handler to its type. Without it the tool
   * produces what its handler returns.
   */
  readonly success?: S
  /**
   * Encodes what the handler reports before it is written for the model. Without it the fields of an error are written
   * as the schema of its class says, and of any other error its tag, its name, its message and its own texts, numbers
   * and booleans: never a cause, a stack, a request or a response, and at most 8,192 characters. An error that does
   * not fit the schema is written like that, too.
   */
  readonly failure?: Schema.ConstraintCodec<E, unknown, R, R>
  /**
   * The code that runs: an Effect of the result, of `Tool.content`, `Tool.askUser` or `Tool.halt`. A `manual` tool has
   * none.
   */
  readonly handler?: (
    args: Schemas.Type<P>,
    call: CallContext
  ) => Written<H> & Effect.Effect<Produced<S>, E, R>
  /**
   * `true` if calls are handed to the caller, whose `Session.answer` gives the result, and never run. `false` by
   * default.
   */
  readonly manual?: boolean
}
