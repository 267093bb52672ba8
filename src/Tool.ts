/**
 * Tools: what a model may call, how a call is run, and its possible outcomes. A tool's handler is an Effect: its
 * services are requirements of the run, its failure is data, and its defect becomes a `ToolError`.
 *
 * @since 0.1.0
 */
import type * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as SubAgent from "./internal/answer/subAgent.ts"
import * as ToolOutcomes from "./internal/declare/outcome.ts"
import * as Schemas from "./internal/declare/schema.ts"
import type * as Declared from "./internal/declare/tool.ts"
import * as ToolOptions from "./internal/declare/toolOptions.ts"
import type * as Message from "./Message.ts"

export { ChatFailed } from "./internal/answer/subAgent.ts"

export { ErrorDecision, ToolError } from "./internal/declare/outcome.ts"

export type { AskUser, AskUserOptions, Content, Error, Halt, Ok } from "./internal/declare/outcome.ts"

export type {
  AfterCrash,
  Any,
  Approval,
  Authorization,
  CallContext,
  Concurrency,
  Definition,
  Failure,
  Fatal,
  Gate,
  Interrupt,
  Limit,
  LookUp,
  Options,
  Outcome,
  Params,
  Remember,
  Services,
  Success,
  Timeout,
  TimeoutInput,
  Tool,
  Validation
} from "./internal/declare/tool.ts"

export type { ChatOptions } from "./internal/answer/subAgent.ts"

/**
 * A tool. Throws a `TypeError` that names the option for a name, a flag, parameters or a timeout that cannot be used.
 *
 * **Example** (A tool with a typed handler)
 *
 * ```ts import.meta.vitest
 * import { Tool } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 *
 * const double = Tool.make("double", {
 *   description: "Twice a number",
 *   parameters: { n: Schema.Finite },
 *   handler: ({ n }) => Effect.succeed(n * 2)
 * })
 *
 * double.name // => "double"
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const make = <
  const Name extends string,
  const P extends Schemas.Input,
  S extends Schema.Constraint = Schema.Unknown,
  E = never,
  R = never,
  H = Effect.Effect<unknown>,
  Fatal = never
>(
  name: Name,
  options: Declared.Options<P, S, E, R, H, Fatal>
): Declared.Tool<
  Name,
  Schemas.Type<P>,
  Declared.Produces<S, H>,
  E,
  Exclude<R | S["DecodingServices"] | S["EncodingServices"], Scope.Scope> | Schemas.Services<P>,
  Fatal
> => {
  ToolOptions.check(name, options as unknown as Readonly<Record<string, unknown>>)
  const { answerWithin, failure, parameters, success, timeout, ...declared } = options
  const made = Schemas.parameters(parameters)
  return {
    description: "",
    manual: false,
    compact: false,
    metadata: {},
    ...declared,
    name,
    parameters: Result.isSuccess(made) ? made.success : ToolOptions.refuse(name, made.failure),
    ...(success === undefined ? {} : { encodeSuccess: Schemas.encoder(success) }),
    ...(failure === undefined ? {} : { encodeFailure: Schemas.encoder(failure) }),
    ...(timeout === undefined ? {} : { timeout: ToolOptions.timeout(name, timeout) }),
    ...(answerWithin === undefined ? {} : { answerWithin: ToolOptions.duration(name, "answerWithin", answerWithin) })
  } as any
}

/**
 * A tool whose handler is a run: a sub-agent. `chat` returns the run's stream, `result` the call's result: by default
 * the run's last text, or a {@link ChatFailed}. The run's events are the call's progress
 * (`ToolProgress` with the event as its `progress`), nested under the call's id; what a slow reader misses of them is
 * dropped like other progress. The run shares the permits and the deadline around it and stops with the call, softly
 * where the call blocks interruption; the call holds no permit meanwhile. A halt ends the run alone. It has no timeout.
 *
 * In a kept session the run is kept as well: after a crash the call is tried again (`afterCrash: "retry"` by default)
 * and its run continues where it was, and what the run waits for the session waits for.
 *
 * **Example** (A researcher for a writer)
 *
 * ```ts import.meta.vitest
 * import { Chat, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 *
 * const research = Tool.fromChat("research", {
 *   parameters: { topic: Schema.String },
 *   chat: ({ topic }) => Chat.stream(`Find out about ${topic}`)
 * })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "research", { topic: "looms" }), Script.finish("tool_calls")],
 *   [Script.text("A heddle lifts the warp."), Script.finish("stop")],
 *   [Script.text("Looms have heddles."), Script.finish("stop")]
 * ])
 * const result = await Effect.runPromise(Chat.run("Write", { tools: [research] }).pipe(Effect.provide(model)))
 *
 * result.steps[0]?.toolResults[0]?.content // => "A heddle lifts the warp."
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const fromChat = <
  const Name extends string,
  const P extends Schemas.Input,
  A = string,
  E = never,
  R = never,
  Fatal = never
>(
  name: Name,
  options: SubAgent.ChatOptions<P, A, E, R, Fatal>
): Declared.Tool<
  Name,
  Schemas.Type<P>,
  A,
  E | SubAgent.ChatFailed,
  Exclude<R, Scope.Scope> | Schemas.Services<P>,
  Fatal
> =>
  make(
    name,
    SubAgent.options(name, options) as unknown as Declared.Options<P, Schema.Codec<A>, E | SubAgent.ChatFailed, R>
  ) as any

/**
 * The outcome of a handler that produced a value.
 *
 * **Example** (A result of an executor)
 *
 * ```ts import.meta.vitest
 * import { Tool } from "heddle"
 *
 * Tool.ok({ celsius: 7 })._tag // => "Ok"
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const ok = <A>(value: A): ToolOutcomes.Ok<A> => ToolOutcomes.brand({ _tag: "Ok", value })

/**
 * The outcome of a handler that reports a failure.
 *
 * **Example** (A failure of an executor)
 *
 * ```ts import.meta.vitest
 * import { Tool } from "heddle"
 *
 * Tool.error("no such city").error // => "no such city"
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const error = <E>(reason: E): ToolOutcomes.Error<E> => ToolOutcomes.brand({ _tag: "Error", error: reason })

/**
 * Makes the value with which a handler succeeds when the model is to see more than a text: text, image and file parts,
 * each image and file by its `url` or its base64 `data`. The parts pass by the tool's `success` schema and the run's
 * `Encoder`, and are the `content` of the tool message and of `ToolResultEncoded`. Anthropic and OpenAI Responses have
 * images within the tool's answer; OpenAI Chat and Gemini, whose answers hold none, have them behind the answers of the
 * turn, as a user's, each led in by the id of its call. A part that a protocol does not support becomes one line with
 * its kind, type and size. The result limit is for the texts among them.
 *
 * The parts are copied, with their `metadata` as JSON: what is done to them afterwards is not seen.
 *
 * Throws a `TypeError` that names the part for one that is no text, image or file, or has neither `url` nor `data`.
 *
 * **Example** (A tool that shows a picture)
 *
 * ```ts import.meta.vitest
 * import { Chat, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const screenshot = Tool.make("screenshot", {
 *   parameters: {},
 *   handler: () =>
 *     Effect.succeed(Tool.content([
 *       { type: "text", text: "The page after the click" },
 *       { type: "image", mediaType: "image/png", data: "iVBORw0KGgo=" }
 *     ]))
 * })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "screenshot"), Script.finish("tool_calls")],
 *   [Script.text("A login form."), Script.finish("stop")]
 * ])
 * const result = await Effect.runPromise(Chat.run("Look", { tools: [screenshot] }).pipe(Effect.provide(model)))
 * const content = result.steps[0]?.toolResults[0]?.content
 *
 * Array.isArray(content) && content.map((part) => part.type) // => ["text", "image"]
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const content = (parts: ReadonlyArray<Message.Part>): ToolOutcomes.Content => ToolOutcomes.content(parts)

/**
 * Makes the value with which a handler succeeds to ask the user a question. The run ends with outcome `AskUser` once
 * the other calls of the turn have been answered or wait themselves. A list is what the user may choose from, or any
 * data that a user interface reads. `answer` is the type of the answer, which another process checks by its JSON
 * Schema: only an answer that fits is accepted. Once `expiresIn` is over no answer is accepted any more, and
 * `Session.expire` answers the question with `defaultAnswer`.
 *
 * The answer is what the model reads of the call. With `resume` it is the handler's instead: once it is there, the
 * handler is started again as a new attempt of the same call, in whatever process, with `call.resumed`, which has the
 * answer and the state that `resume` is.
 *
 * **Example** (A question with an answer of a type)
 *
 * ```ts import.meta.vitest
 * import { Chat, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 *
 * const book = Tool.make("book", {
 *   parameters: {},
 *   handler: () => Effect.succeed(Tool.askUser("How many seats?", { answer: Schema.Int, expiresIn: "1 day" }))
 * })
 * const model = Script.layer([[Script.toolCall("c0", "book"), Script.finish("tool_calls")]])
 * const result = await Effect.runPromise(Chat.run("Book", { tools: [book] }).pipe(Effect.provide(model)))
 *
 * result.pendingQuestion // => "How many seats?"
 * result.suspensions?.[0]?.answerSchema?.["type"] // => "integer"
 * ```
 *
 * **Example** (A handler that is started again with the answer)
 *
 * ```ts import.meta.vitest
 * import { Session, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const book = Tool.make("book", {
 *   parameters: {},
 *   handler: (_, { resumed }) =>
 *     Effect.succeed(
 *       resumed === undefined
 *         ? Tool.askUser("How many seats?", { resume: { show: "s7" } })
 *         : `${resumed.answer} seats, ${JSON.stringify(resumed.state)}`
 *     )
 * })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "book"), Script.finish("tool_calls")],
 *   [Script.text("Booked."), Script.finish("stop")]
 * ])
 * const booking = Effect.gen(function*() {
 *   const asked = yield* Session.reply(Session.make(), "Book", { tools: [book] })
 *   return yield* Session.reply(asked.session, "3", { tools: [book] })
 * })
 * const { session } = await Effect.runPromise(booking.pipe(Effect.provide(model)))
 *
 * session.thread.messages[2]?.content // => "3 seats, {\"show\":\"s7\"}"
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const askUser = <A = unknown>(
  question: string,
  options: ReadonlyArray<unknown> | ToolOutcomes.AskUserOptions<A> = []
): ToolOutcomes.AskUser => ToolOutcomes.brand(ToolOutcomes.question(question, options))

/**
 * Makes the value with which a handler succeeds to end the run. `reason` is the run's halt reason; those of the runtime
 * itself (`completed`, `max_turns`, …) are reserved. `result` is written for the model like any other.
 *
 * **Example** (A tool that ends the run)
 *
 * ```ts import.meta.vitest
 * import { Chat, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const finish = Tool.make("finish", {
 *   parameters: {},
 *   handler: () => Effect.succeed(Tool.halt("finished", { rows: 3 }))
 * })
 * const model = Script.layer([[Script.toolCall("c0", "finish"), Script.finish("tool_calls")]])
 * const result = await Effect.runPromise(Chat.run("go", { tools: [finish] }).pipe(Effect.provide(model)))
 *
 * result.outcome // => { _tag: "Halted", reason: "finished", haltToolCallId: "c0", haltResult: { rows: 3 } }
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const halt = <A>(reason: string, result: A): ToolOutcomes.Halt<A> =>
  ToolOutcomes.brand({ _tag: "Halt", reason, result })

/**
 * The definition of a tool: its name, description and the JSON Schema of its parameters.
 *
 * **Example** (What the model reads)
 *
 * ```ts import.meta.vitest
 * import { Tool } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 *
 * const echo = Tool.make("echo", {
 *   description: "Says it again",
 *   parameters: { text: Schema.String },
 *   handler: ({ text }) => Effect.succeed(text)
 * })
 *
 * Tool.definition(echo).description // => "Says it again"
 * Tool.definition(echo).parameters["required"] // => ["text"]
 * ```
 *
 * @category getters
 * @since 0.1.0
 */
export const definition = (tool: Declared.Any): Declared.Definition => ({
  name: tool.name,
  description: tool.description,
  parameters: tool.parameters.jsonSchema
})

/**
 * Tells whether a call with these arguments changes nothing, as its tool declares with `readOnly`. `args` are the
 * arguments as the handler receives them. Where the tool's function throws, or returns anything but `true`, the call
 * counts as one that changes something.
 *
 * **Example** (A shell that looks, and a shell that removes)
 *
 * ```ts import.meta.vitest
 * import { Tool } from "heddle"
 * import * as Schema from "effect/Schema"
 *
 * const shell = Tool.make("shell", {
 *   parameters: { command: Schema.String },
 *   readOnly: ({ command }) => command === "ls"
 * })
 *
 * Tool.isReadOnly(shell, { command: "ls" }) // => true
 * Tool.isReadOnly(shell, { command: "rm notes.md" }) // => false
 * ```
 *
 * @category getters
 * @since 0.1.0
 */
export const isReadOnly = <T extends Declared.Any>(tool: T, args: Declared.Params<T>): boolean =>
  ToolOptions.isReadOnly(tool, args)

/**
 * Tells whether a call with these arguments may destroy something, as its tool declares with `destructive`, for a user
 * interface that asks before such a call. A tool that declares nothing counts as one that does not. `args` are the
 * arguments as the handler receives them: `tool.parameters.decode` makes them of those of a `Message.ToolCall`. Where
 * the tool's function throws, or returns anything but `false`, the call counts as one that may.
 *
 * **Example** (A shell that removes)
 *
 * ```ts import.meta.vitest
 * import { Tool } from "heddle"
 * import * as Schema from "effect/Schema"
 *
 * const shell = Tool.make("shell", {
 *   parameters: { command: Schema.String },
 *   destructive: ({ command }) => command.startsWith("rm ")
 * })
 *
 * Tool.isDestructive(shell, { command: "rm notes.md" }) // => true
 * ```
 *
 * @category getters
 * @since 0.1.0
 */
export const isDestructive = <T extends Declared.Any>(tool: T, args: Declared.Params<T>): boolean =>
  ToolOptions.isDestructive(tool, args)
