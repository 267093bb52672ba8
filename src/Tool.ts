/**
 * Tools: what a model may call, how a call runs, and its possible outcomes. A tool's handler is an Effect: its services
 * are requirements of the run, its failure is data, and its defect becomes a `ToolError`.
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
 * Makes a tool. Throws a `TypeError` naming the option for an unusable name, flag, parameters or timeout.
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
 * Makes a tool whose handler is a run: a sub-agent. `chat` returns the run's stream, `result` the call's result: by
 * default the run's typed answer as JSON, or else its last text; a run without an answer fails with a {@link
 * ChatFailed}. The run's events are the call's progress (`ToolProgress` with the event as its `progress`), nested under
 * the call's id; events missed by a slow reader are dropped like other progress.
 *
 * The run shares the permits and the deadline around it and stops with the call, softly if the call blocks
 * interruption; meanwhile the call holds no permit. A halt ends only this run. The tool has no timeout by default.
 *
 * In a kept session the run is kept as well: after a crash the call is tried again (`afterCrash: "retry"` by default),
 * and its run continues from its journal. The session waits for everything the run waits for.
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
 * Outcome of a handler producing a value.
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
 */
export const ok = <A>(value: A): ToolOutcomes.Ok<A> => ToolOutcomes.brand({ _tag: "Ok", value })

/**
 * Outcome of a handler reporting a failure.
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
 */
export const error = <E>(reason: E): ToolOutcomes.Error<E> => ToolOutcomes.brand({ _tag: "Error", error: reason })

/**
 * Makes a handler's success value for showing the model more than a text: text, image and file parts, each image and
 * file by its `url` or its base64 `data`. The parts bypass the tool's `success` schema and the run's `Encoder`, and
 * become the `content` of the tool message and of `ToolResultEncoded`.
 *
 * Anthropic and OpenAI Responses accept images inside the tool's answer. For OpenAI Chat and Gemini, whose answers
 * cannot contain images, they follow the turn's answers in a user message, each introduced by its call id or, for
 * Gemini, by its tool name and the answer's number. A part unsupported by the protocol becomes one line with its kind,
 * type and size. The result limit applies to the text parts.
 *
 * The parts are copied, with their `metadata` as JSON: later changes to them have no effect. Throws a `TypeError`
 * naming the part if it is not a text, image or file, or lacks both `url` and `data`.
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
 */
export const content = (parts: ReadonlyArray<Message.Part>): ToolOutcomes.Content => ToolOutcomes.content(parts)

/**
 * Makes a handler's success value for asking the user a question. The run ends with outcome `AskUser` once the turn's
 * other calls have been answered or also wait. A list contains the user's choices, or any data for a user interface.
 * `answer` is the answer's type, which another process checks by its JSON Schema: only a fitting answer is accepted.
 * After `expiresIn` no answer is accepted any more, and `Session.expire` answers the question with `defaultAnswer`.
 *
 * The model reads the answer as the call's result. With `resume` the handler gets the answer instead: the handler then
 * starts again, as a new attempt of the same call, in any process. Its `call.resumed` contains the answer, and the
 * value of `resume` as the state.
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
 */
export const askUser = <A = unknown>(
  question: string,
  options: ReadonlyArray<unknown> | ToolOutcomes.AskUserOptions<A> = []
): ToolOutcomes.AskUser => ToolOutcomes.brand(ToolOutcomes.question(question, options))

/**
 * Makes a handler's success value for ending the run. `reason` is the run's halt reason; the runtime's own reasons
 * (`completed`, `max_turns`, `budget`, …) are reserved. `result` is encoded for the model like any other result.
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
 */
export const halt = <A>(reason: string, result: A): ToolOutcomes.Halt<A> =>
  ToolOutcomes.brand({ _tag: "Halt", reason, result })

/**
 * Returns a tool's definition: its name, description and parameter JSON Schema.
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
 */
export const definition = (tool: Declared.Any): Declared.Definition => ({
  name: tool.name,
  description: tool.description,
  parameters: tool.parameters.jsonSchema
})

/**
 * Tells whether a call with these arguments changes nothing, as declared by the tool's `readOnly`. `args` are the
 * arguments as received by the handler. If the tool's function throws, or returns anything but `true`, the call counts
 * as changing something.
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
 */
export const isReadOnly = <T extends Declared.Any>(tool: T, args: Declared.Params<T>): boolean =>
  ToolOptions.isReadOnly(tool, args)

/**
 * Tells whether a call with these arguments may destroy something, as declared by the tool's `destructive`, for a user
 * interface asking before such calls. A tool without the declaration counts as harmless. `args` are the arguments as
 * received by the handler: `tool.parameters.decode` makes them from a `Message.ToolCall`'s. If the tool's function
 * throws, or returns anything but `false`, the call counts as destructive.
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
 */
export const isDestructive = <T extends Declared.Any>(tool: T, args: Declared.Params<T>): boolean =>
  ToolOptions.isDestructive(tool, args)
