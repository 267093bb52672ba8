/**
 * A request to a language model of effect/ai, and the parts that answer it. The model is offered tools that it cannot
 * run, and is interrupted when nobody reads its parts any more.
 */
import type * as AiError from "effect/ai/AiError"
import type * as LanguageModel from "effect/ai/LanguageModel"
import type * as Prompt from "effect/ai/Prompt"
import * as AiResponse from "effect/ai/Response"
import type * as AiTool from "effect/ai/Tool"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as JsonSchema from "effect/JsonSchema"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as SchemaRepresentation from "effect/SchemaRepresentation"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Adapter from "../../Adapter.ts"
import * as Answer from "../../adapters/internal/answer.ts"
import * as Errors from "../../adapters/internal/errors.ts"
import type * as Http from "../../adapters/internal/http.ts"
import * as EffectAiErrors from "./effectAiErrors.ts"
import * as EffectAiParts from "./effectAiParts.ts"
import * as EffectAiPrompt from "./effectAiPrompt.ts"
import * as EffectAiTools from "./effectAiTools.ts"
import type * as Layout from "./layout.ts"
import type * as Part from "./part.ts"
import * as Reply from "./reply.ts"

/** What a model is asked with, besides a request. */
export interface Bridge {
  readonly model: LanguageModel.LanguageModel
  readonly services: ((request: Adapter.Request) => Context.Context<never>) | undefined
  readonly strict: boolean
  readonly providerTools: ReadonlyArray<AiTool.AnyProviderDefined>
  readonly owner: Layout.Owner
  readonly origin: Errors.Origin
}

// ---------------------------------------------------------------------------------------------------------------------
// request

/** The first thing that a request asks for and effect/ai has no words for. */
const unsupported = ({ services }: Bridge, request: Adapter.Request): string | undefined => {
  const isStructured = request.responseFormat !== undefined && request.responseFormat.type !== "text"
  if (isStructured && request.tools.length > 0 && request.toolChoice !== "none") {
    return "effect/ai has structured output for requests without tools only: ask for it with structuredFinalize"
  }
  if (services !== undefined) return undefined
  const { maxTokens, model, options: further = {}, temperature } = request
  const asked = Object.entries({ model, temperature, maxTokens }).find(([, value]) => value !== undefined)?.[0] ??
    Object.keys(further)[0]
  return asked === undefined
    ? undefined
    : `effect/ai has no setting "${asked}" that all models share: give EffectAi.layer the services to set it with`
}

const toolChoice = (choice: Adapter.ToolChoice | undefined): LanguageModel.ToolChoice<string> =>
  choice === undefined || typeof choice === "string" ? choice ?? "auto" : { tool: choice.name }

/** The schema of a structured answer. */
const answerSchema = (format: Adapter.ResponseFormat): Result.Result<Schema.Top, string> =>
  format.type !== "json_schema"
    ? Result.succeed(Schema.Record(Schema.String, Schema.Json))
    : Result.try({
      try: () =>
        SchemaRepresentation.fromJsonSchemaDocument(JsonSchema.fromSchemaDraft2020_12(format.schema), {
          patterns: "apply"
        }),
      catch: (cause) => `the schema "${format.name}" cannot be read: ${cause instanceof Error ? cause.message : cause}`
    })

// ---------------------------------------------------------------------------------------------------------------------
// stream

/** The parts of a reply, streamed. Calls are handed on as the model made them, known or not. */
const streamed = (bridge: Bridge, request: Adapter.Request, prompt: Prompt.Prompt) =>
  bridge.model.streamText({
    prompt,
    toolkit: EffectAiTools.offered(request.tools, bridge.providerTools, bridge.strict),
    toolChoice: toolChoice(request.toolChoice),
    disableToolCallResolution: true,
    toolCallValidation: "deferred"
  })

/** The parts of a structured answer, which comes whole. Its text is the value that it was read as. */
const whole = (
  { model }: Bridge,
  format: Adapter.ResponseFormat,
  schema: Schema.Top,
  prompt: Prompt.Prompt
): Stream.Stream<AiResponse.AnyPart, AiError.AiError> =>
  Stream.fromIterableEffect(
    model.generateObject({
      prompt,
      schema: schema as Schema.Codec<unknown, Record<string, any>>,
      ...(format.type === "json_schema" ? { objectName: format.name } : {})
    }).pipe(
      Effect.map(({ content, value }) => valueAsText(content, value)),
      Effect.catchReason("AiError", "StructuredOutputError", (reason, error) =>
        reason.responseText === "" ? Effect.fail(error) : Effect.succeed(asWritten(reason)))
    )
  )

const valueAsText = (content: ReadonlyArray<AiResponse.AnyPart>, value: unknown): ReadonlyArray<AiResponse.AnyPart> => {
  const first = content.findIndex(({ type }) => type === "text")
  return content.flatMap((part, index): ReadonlyArray<AiResponse.AnyPart> => {
    if (part.type !== "text") return [part]
    return index === first ? [{ ...part, text: JSON.stringify(value) }] : []
  })
}

/** An answer that does not fit is the caller's to judge, as it is with every adapter. Little else is known of it. */
const asWritten = ({ responseText, usage }: AiError.StructuredOutputError): ReadonlyArray<AiResponse.AnyPart> => [
  AiResponse.makePart("text", { text: responseText }),
  AiResponse.makePart("finish", {
    reason: "unknown",
    usage: new AiResponse.Usage({
      inputTokens: { total: usage?.promptTokens },
      outputTokens: { total: usage?.completionTokens }
    })
  })
]

/** The parts, and their failure as an error of an adapter. */
const answered = (bridge: Bridge, request: Adapter.Request): Result.Result<
  Stream.Stream<AiResponse.AnyPart, Adapter.AdapterError>,
  Adapter.AdapterError
> =>
  Result.gen(function*() {
    const { origin, owner } = bridge
    const refuse = (reason: Errors.Reason) => (detail: string) => Errors.make(origin, reason, detail)
    const problem = unsupported(bridge, request)
    if (problem !== undefined) return yield* Result.fail(refuse("unsupported_feature")(problem))
    const prompt = yield* Result.mapError(EffectAiPrompt.write(owner, request.messages), refuse("invalid_request"))
    const { responseFormat: format } = request
    const parts: Stream.Stream<AiResponse.AnyPart, AiError.AiError> = format === undefined || format.type === "text"
      ? streamed(bridge, request, prompt)
      : whole(bridge, format, yield* Result.mapError(answerSchema(format), refuse("unsupported_feature")), prompt)
    return parts.pipe(
      Stream.catch((error) =>
        Stream.fromEffect(Effect.flatMap(
          Clock.currentTimeMillis,
          (now) => Effect.fail(EffectAiErrors.fromUnknown(origin, error, now))
        ))
      ),
      Stream.provideContext(bridge.services?.(request) ?? Context.empty())
    )
  })

/** Asks the model, at the first pull. */
export const open = (
  bridge: Bridge,
  request: Adapter.Request
): Effect.Effect<Reply.PartPull, Http.Failure, Scope.Scope> =>
  Effect.gen(function*() {
    const parts = yield* Effect.fromResult(Result.mapError(answered(bridge, request), Reply.failed))
    const pull = yield* Answer.ofOneReader(parts, yield* Effect.scope)
    let count = 0
    return Effect.flatMap(pull, (some) =>
      Effect.map(Clock.currentTimeMillis, (now): ReadonlyArray<Part.Part> =>
        some.flatMap((part) =>
          EffectAiParts.read(part, count++, (error) =>
            EffectAiErrors.fromUnknown(bridge.origin, error, now))
        )))
  })
