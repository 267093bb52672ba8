/**
 * Connects effect/ai and Heddle: any `LanguageModel` as an adapter, any `Toolkit` as tools. The offered tools have no
 * handlers for the model, so only Heddle runs tools. Closing the stream interrupts the model.
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
 * Model options, independent of a request.
 *
 * @category models
 */
export interface Options extends Reply.Options {
  /**
   * Returns the services for a request. effect/ai has no settings common to all models: each provider package takes
   * temperature, token limit, model and further options from its own service. Without this function a request with such
   * a setting fails as `unsupported_feature`.
   */
  readonly services?: (request: Adapter.Request) => Context.Context<never>
  /**
   * `true` if arguments must follow the tool schemas exactly. `false` by default, because strict providers refuse
   * schemas not written for strictness.
   */
  readonly strict?: boolean
  /**
   * Provider-defined tools, offered with every request; each replaces the declared tool with the same name.
   * Provider-executed calls are listed with their results and never run here. None by default.
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
 * Creates the adapter layer for the language model in the context.
 *
 * **Details**
 *
 * The model never runs a tool: calls pass through as the model made them, known or not, and Heddle checks their
 * arguments. A call is final as soon as the reply continues or ends; if the token limit ended the reply, the last call
 * is marked `truncated`. Values a provider expects back unchanged (reasoning signatures, item ids, results of its own
 * tools) are stored with the message's reasoning and calls. A message's `metadata.effectAi.options` become its provider
 * options. A structured answer arrives whole, as a single text.
 *
 * The adapter retries a request with growing delays if it fails before the model's first output with a retryable error.
 * After the first output it retries nothing: an error in the reply, and a reply without an end, fail the stream. An
 * invalid option throws a `TypeError` naming the option.
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
 */
export const layer = (options: Options = {}): Layer.Layer<Adapter.Adapter, never, LanguageModel.LanguageModel> => {
  checkNames("EffectAi.layer", options, knownOptions)
  return Layer.effect(Adapter.Adapter, make(options, Http.settings("EffectAi.layer", options)))
}

/**
 * An effect/ai tool as a Heddle tool.
 *
 * @category utility types
 */
export type ToolOf<T extends AiTool.Any, R = never> = Tool.Tool<
  AiTool.Name<T>,
  AiTool.Parameters<T>,
  AiTool.Success<T>,
  AiTool.Failure<T> | AiError.AiError,
  AiTool.HandlerServices<T> | AiTool.ParametersEncodingServices<T> | R
>

/**
 * Options for tools requiring approval.
 *
 * @category models
 */
export interface ToolsOptions<R = never> {
  /**
   * Decides before such a tool runs, as its `authorize`. If the tool decides from its arguments whether it needs
   * approval, the tool is asked first, without the conversation. Without this option such a tool is `manual`.
   */
  readonly approve?: Declared.Gate<unknown, Declared.Authorization, R>
}

/**
 * Converts a toolkit to tools run by its handlers.
 *
 * **Details**
 *
 * Schemas and annotations carry over: `Readonly`, `Destructive`, `Idempotent` and `OpenWorld` become Heddle's hints
 * with the same names, with effect/ai's defaults. Preliminary results become progress. A handler's failures are
 * reported in both failure modes; a result violating its schema is a crash. Without `approve`, a tool that may need
 * approval is `manual`: the caller receives its calls and runs them with `{ ...tool, manual: false }` once approved. A
 * provider-executed tool throws a `TypeError`: {@link layer} accepts such tools. An MCP server result
 * (`McpClient.toolkit`) with images, audio or files consists of parts, as with `Tool.content`. The model reads an MCP
 * failure once, in the server's words.
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
