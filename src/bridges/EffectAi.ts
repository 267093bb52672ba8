/**
 * effect/ai and Heddle: any `LanguageModel` as an adapter, any `Toolkit` as tools. The model is offered tools that it
 * cannot run, so that Heddle alone runs them, and closing the stream interrupts the model.
 *
 * @since 0.1.0
 */
import type * as AiError from "effect/ai/AiError"
import * as LanguageModel from "effect/ai/LanguageModel"
import * as Model from "effect/ai/Model"
import type * as AiTool from "effect/ai/Tool"
import type * as Toolkit from "effect/ai/Toolkit"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Adapter from "../Adapter.ts"
import * as Http from "../adapters/internal/http.ts"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import type * as Declared from "../internal/declare/tool.ts"
import * as Values from "../internal/declare/values.ts"
import type * as Tool from "../Tool.ts"
import * as EffectAiModel from "./internal/effectAiModel.ts"
import * as EffectAiTools from "./internal/effectAiTools.ts"
import * as Reply from "./internal/reply.ts"

/**
 * Options of a model besides a request.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options extends Reply.Options {
  /**
   * Returns the services that a request runs with. effect/ai has no settings that all models share: a provider's
   * package takes temperature, token limit, model and its own options from a service of its own. Without this function
   * a request that names one of them fails as `unsupported_feature`.
   */
  readonly services?: (request: Adapter.Request) => Context.Context<never>
  /**
   * `true` if arguments must follow the schemas of tools exactly. `false` by default, because providers then refuse
   * schemas that are not written for it.
   */
  readonly strict?: boolean
  /**
   * Tools that the provider defines, offered with every request; one takes the place of the tool of its name. Calls
   * that the provider runs itself are listed with their results, and never run here. None by default.
   */
  readonly providerTools?: ReadonlyArray<AiTool.AnyProviderDefined>
}

const knownOptions = {
  ...Reply.knownOptions,
  services: Values.fn,
  strict: Values.flag,
  providerTools: Values.listOf(Values.toolLike, "tools of the provider")
} satisfies NamesOf<Options>

const metadataKey = "effectAi"

const make = (options: Options, settings: Http.Settings) =>
  Effect.gen(function*() {
    const model = yield* LanguageModel.LanguageModel
    const named = yield* Effect.serviceOption(Model.ProviderName)
    const provider = options.provider ?? Option.getOrElse(named, () => "effect/ai")
    const bridge: EffectAiModel.Bridge = {
      model,
      services: options.services,
      strict: options.strict ?? false,
      providerTools: options.providerTools ?? [],
      owner: { key: metadataKey, provider },
      origin: Reply.originOf(provider, options.secrets ?? [])
    }
    const { origin, owner } = bridge
    const modelName = yield* Effect.serviceOption(Model.ModelName)
    return Adapter.Adapter.of({
      provider,
      ...(Option.isNone(modelName) ? {} : { model: modelName.value }),
      stream: (request) => {
        const attempted = Http.attempted(settings, request.attempt)
        return Reply.stream({ owner, origin, settings: attempted, open: EffectAiModel.open(bridge, request) })
      }
    })
  })

/**
 * The adapter of the language model in the context.
 *
 * **Details**
 *
 * The model never runs a tool: calls are handed on as the model made them, known or not, with arguments that are
 * checked by Heddle. One is final as soon as the reply continues or has ended; if the token limit ended it, the last
 * call is marked as `truncated`. What a provider wants back unchanged (signatures of reasoning, item ids, results of
 * tools it ran) is kept with the message's reasoning and calls. A message's own `metadata.effectAi.options` are its
 * provider options. A structured answer comes whole, in one piece of text.
 *
 * A request that fails before the model's first output is retried with growing delays if its error is retryable. After
 * the first output nothing is retried: an error in the reply, and a reply without an end, fail the stream. An invalid
 * option throws a `TypeError` that names it.
 *
 * **Example** (A model that effect/ai made)
 *
 * ```ts import.meta.vitest
 * import { Chat } from "heddle"
 * import * as EffectAi from "heddle/bridges/effect-ai"
 * import * as Effect from "effect/Effect"
 * import * as LanguageModel from "effect/ai/LanguageModel"
 * import * as Layer from "effect/Layer"
 * import * as Stream from "effect/Stream"
 *
 * const parrot = Layer.effect(
 *   LanguageModel.LanguageModel,
 *   LanguageModel.make({
 *     generateText: () => Effect.succeed([]),
 *     streamText: () =>
 *       Stream.make(
 *         { type: "text-delta", id: "0", delta: "Hello" },
 *         { type: "finish", reason: "stop", usage: { inputTokens: { total: 3 }, outputTokens: { total: 1 } } }
 *       )
 *   })
 * )
 * const adapter = EffectAi.layer().pipe(Layer.provide(parrot))
 * const result = await Effect.runPromise(Chat.run("Say hello").pipe(Effect.provide(adapter)))
 *
 * result.finalResponse?.outputText // => "Hello"
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const layer = (options: Options = {}): Layer.Layer<Adapter.Adapter, never, LanguageModel.LanguageModel> => {
  checkNames("EffectAi.layer", options, knownOptions)
  return Layer.effect(Adapter.Adapter, make(options, Http.settings("EffectAi.layer", options)))
}

/**
 * A tool of effect/ai as Heddle's own.
 *
 * @category utility types
 * @since 0.1.0
 */
export type ToolOf<T extends AiTool.Any, R = never> = Tool.Tool<
  AiTool.Name<T>,
  AiTool.Parameters<T>,
  AiTool.Success<T>,
  AiTool.Failure<T> | AiError.AiError,
  AiTool.HandlerServices<T> | AiTool.ParametersEncodingServices<T> | R
>

/**
 * The treatment of tools that need an approval.
 *
 * @category models
 * @since 0.1.0
 */
export interface ToolsOptions<R = never> {
  /**
   * Decides before such a tool is run, as its `authorize`. A tool that decides from its arguments whether it needs an
   * approval is asked first; it does not get the conversation. Without it such a tool is `manual`.
   */
  readonly approve?: Declared.Gate<unknown, Declared.Authorization, R>
}

/**
 * The tools of a toolkit, run by its handlers.
 *
 * **Details**
 *
 * Schemas and annotations are taken over: `Readonly`, `Destructive`, `Idempotent` and `OpenWorld` are Heddle's hints of
 * the same names, with effect/ai's defaults. Preliminary results are the call's progress. What a handler fails with is
 * reported in both failure modes; a result that does not fit its schema is a crash. Without `approve`, a tool that
 * needs an approval, or may need one, is `manual`: its calls are handed to the caller, who runs them with `{ ...tool,
 * manual: false }` once they are approved. A tool that the provider runs itself is refused with a `TypeError`: {@link
 * layer} takes it. A result of an MCP server (`McpClient.toolkit`) that has images, sounds or files is one of parts, as
 * of `Tool.content`; the model reads a failure there once, in its words.
 *
 * **Example** (A toolkit in a run)
 *
 * ```ts import.meta.vitest
 * import { Message, ToolRunner } from "heddle"
 * import * as EffectAi from "heddle/bridges/effect-ai"
 * import * as Effect from "effect/Effect"
 * import * as AiTool from "effect/ai/Tool"
 * import * as Toolkit from "effect/ai/Toolkit"
 * import * as Schema from "effect/Schema"
 *
 * const toolkit = Toolkit.make(
 *   AiTool.make("double", { parameters: Schema.Struct({ n: Schema.Finite }), success: Schema.Finite })
 * )
 * const program = Effect.gen(function*() {
 *   const tools = yield* EffectAi.tools(toolkit)
 *   return yield* ToolRunner.run([Message.toolCall("call_1", "double", { n: 21 })], tools)
 * })
 * const handlers = toolkit.toLayer({ double: ({ n }) => Effect.succeed(n * 2) })
 * const { messages } = await Effect.runPromise(program.pipe(Effect.provide(handlers)))
 *
 * messages[0]?.content // => "42"
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const tools = <Tools extends Record<string, AiTool.Any>, E = never, R = never, RA = never>(
  toolkit: Toolkit.WithHandler<Tools> | Effect.Effect<Toolkit.WithHandler<Tools>, E, R>,
  options: ToolsOptions<RA> = {}
): Effect.Effect<ReadonlyArray<{ readonly [Name in keyof Tools]: ToolOf<Tools[Name], RA> }[keyof Tools]>, E, R> =>
  Effect.map(
    Effect.isEffect(toolkit) ? toolkit : Effect.succeed(toolkit),
    (made) => {
      checkNames("EffectAi.tools", options, { approve: Values.fn } satisfies NamesOf<ToolsOptions>)
      return EffectAiTools.made(made as unknown as EffectAiTools.Handlers, options.approve) as any
    }
  )
