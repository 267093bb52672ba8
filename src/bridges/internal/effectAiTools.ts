/**
 * Converts effect/ai tools in both directions: Heddle's definitions to tools offered but never run, and a toolkit to
 * Heddle tools run by the toolkit's handlers.
 */
import * as AiError from "effect/ai/AiError"
import type * as McpClientError from "effect/ai/McpClientError"
import type * as McpSchema from "effect/ai/McpSchema"
import * as Prompt from "effect/ai/Prompt"
import * as AiTool from "effect/ai/Tool"
import * as Toolkit from "effect/ai/Toolkit"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Base64 from "effect/encoding/Base64"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as SchemaAST from "effect/SchemaAST"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import * as Media from "../../adapters/internal/media.ts"
import type * as Declared from "../../internal/declare/tool.ts"
import * as ToolOptions from "../../internal/declare/toolOptions.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import * as Tool from "../../Tool.ts"

// ---------------------------------------------------------------------------------------------------------------------
// offered

type Offered = AiTool.Dynamic<string, {
  readonly parameters: { readonly [name: string]: unknown }
  readonly success: typeof Schema.Unknown
  readonly failure: typeof Schema.Never
  readonly failureMode: "error"
}>

/**
 * Returns the tools offered with a request. A provider tool replaces the declared tool with the same name. Schemas go
 * out unchanged: strict mode would refuse most of them, so it is opt-in.
 */
export const offered = (
  definitions: ReadonlyArray<Tool.Definition>,
  own: ReadonlyArray<AiTool.AnyProviderDefined>,
  strict: boolean
): Toolkit.WithHandler<Record<string, Offered>> => {
  const names = new Set(own.map(({ name }) => name))
  const all = [
    ...definitions.filter(({ name }) => !names.has(name)).map(({ description, name, parameters }) =>
      AiTool.dynamic(name, { parameters, ...(description === "" ? {} : { description }) }).annotate(
        AiTool.Strict,
        strict
      )
    ),
    ...own
  ]
  const { tools } = Toolkit.make(...all)
  return {
    tools: tools as unknown as Record<string, Offered>,
    handle: () => Effect.die(new Error("the language model tried to run an offered tool: Heddle runs the tools itself"))
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// made

export type Handlers = Toolkit.WithHandler<Record<string, AiTool.Any>>

/** Maximum number of preliminary results waiting to be emitted. Beyond it, the handler waits. */
const waitingResults = 16

export type Approve = Declared.Gate<unknown, Declared.Authorization, any>

/** Converts a toolkit's tools. Throws for a tool Heddle cannot run. */
export const made = (toolkit: Handlers, approve: Approve | undefined): ReadonlyArray<Tool.Any> =>
  Object.values(toolkit.tools).map((tool) => make(tool, toolkit, approve))

const make = (tool: AiTool.Any, toolkit: Handlers, approve: Approve | undefined): Tool.Any => {
  if (AiTool.isProviderDefined(tool) && !tool.requiresHandler) {
    throw new TypeError(
      `the tool "${tool.name}" is run by its provider: give it to EffectAi.layer as one of its providerTools`
    )
  }
  const readOnly = Context.get(tool.annotations, AiTool.Readonly)
  const needsApproval = tool.needsApproval !== undefined && tool.needsApproval !== false
  const heddle = Tool.make(tool.name, {
    description: AiTool.getDescription(tool) ?? "",
    parameters: parametersOf(tool),
    ...(isAnything(tool.successSchema) ? {} : { success: tool.successSchema }),
    ...(isAnything(tool.failureSchema) ? {} : { failure: tool.failureSchema }),
    readOnly,
    destructive: !readOnly && Context.get(tool.annotations, AiTool.Destructive),
    idempotent: Context.get(tool.annotations, AiTool.Idempotent),
    openWorld: Context.get(tool.annotations, AiTool.OpenWorld),
    ...(needsApproval && approve !== undefined ? { authorize: authorize(tool, approve) } : { manual: needsApproval }),
    metadata: { effectAi: notes(tool, needsApproval) },
    handler: (args: unknown, call) => handle(tool, toolkit, args, call)
  })
  return mcpFailures(modelOutput(heddle, tool))
}

/** Shortens an MCP failure: its result already contains the text of its reason. */
const mcpFailures = (heddle: Tool.Any): Tool.Any => {
  const { encodeFailure } = heddle
  return encodeFailure === undefined ? heddle : {
    ...heddle,
    encodeFailure: (error) => {
      const reason = mcpReasonOf(error)
      return reason === undefined ? encodeFailure(error) : Effect.sync(() => mcpWords(reason))
    }
  }
}

/** Lets the tool's own function choose the model's text, images and files. */
const modelOutput = (heddle: Tool.Any, { toModelOutput }: AiTool.Any): Tool.Any =>
  toModelOutput === undefined
    ? heddle
    : { ...heddle, encodeSuccess: (value) => Effect.sync(() => contentOf(toModelOutput(value))) }

const contentOf = (parts: ReadonlyArray<Prompt.ToolModelOutputPart>): string | Tool.Content =>
  parts.every((part) => part.type === "text")
    ? Prompt.toolModelOutputToText(parts)
    : Tool.content(parts.map((part) => part.type === "text" ? { type: "text", text: part.text } : mediaOf(part)))

/** Converts a file. Text with a scheme is an address, other text is base64. */
const mediaOf = ({ data, fileName, mediaType }: Prompt.FilePart): Message.Part => {
  const text = data instanceof Uint8Array ? Base64.encode(data) : data instanceof URL ? data.href : data
  const isAddress = typeof data !== "object" && /^[a-z][a-z0-9+.-]*:/i.test(data)
  return Media.made(mediaType, data instanceof URL || isAddress ? { url: text } : { data: text }, fileName)
}

/** Asks for approval where the tool requires approval. If the tool cannot decide, it does not run. */
const authorize = ({ needsApproval }: AiTool.Any, approve: Approve): Approve => (args, call) => {
  const asked = Effect.suspend(() => ToolOptions.toEffect(approve(args, call), "approve"))
  const needed = typeof needsApproval === "function"
    ? needsApproval(args, { toolCallId: call.id, messages: [] })
    : needsApproval === true
  return Effect.flatMap(
    ToolOptions.toEffect(needed, "needsApproval"),
    (isNeeded) => isNeeded ? asked : Effect.succeed(true)
  )
}

const isAnything = (schema: Schema.Constraint): boolean =>
  SchemaAST.isUnknown(schema.ast) || SchemaAST.isAny(schema.ast)

const parametersOf = (tool: AiTool.Any): Schema.Constraint | { readonly [name: string]: unknown } => {
  if (AiTool.isDynamic(tool) && tool.jsonSchema !== undefined) return tool.jsonSchema
  return isAnything(tool.parametersSchema) ? { type: "object" } : tool.parametersSchema
}

const notes = (tool: AiTool.Any, needsApproval: boolean): Readonly<Record<string, unknown>> => {
  const title = Context.getOption(tool.annotations as Context.Context<AiTool.Title>, AiTool.Title)
  const meta = Context.getOption(tool.annotations as Context.Context<AiTool.Meta>, AiTool.Meta)
  return {
    ...(Option.isNone(title) ? {} : { title: title.value }),
    ...(Option.isNone(meta) ? {} : { meta: meta.value }),
    ...(needsApproval ? { needsApproval: true } : {})
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// MCP results. For content it cannot write as text, effect/ai fails with an error holding the whole result. Tags
// identify its error types, since MCP modules must not load without a server.

type McpReason = McpClientError.McpClientErrorReason

const mcpReasonOf = (error: unknown): McpReason | undefined =>
  Json.isObject(error) && error["_tag"] === "McpClientError" && Json.isObject(error["reason"])
    ? error["reason"] as unknown as McpReason
    : undefined

/** Returns the parts of a result with more than text. */
const mcpContent = (error: unknown): Tool.Content | undefined => {
  const reason = mcpReasonOf(error)
  if (reason?._tag !== "UnsupportedError" || reason.result === undefined) return undefined
  return Tool.content(mcpParts(reason.result))
}

/** Converts result content to parts, joining consecutive texts as effect/ai does. */
const mcpParts = ({ content }: McpSchema.CallToolResult): ReadonlyArray<Message.Part> => {
  const parts: Array<Message.Part> = []
  for (const part of content.map(mcpPart)) {
    const last = parts.at(-1)
    if (part.type !== "text" || last?.type !== "text") parts.push(part)
    else parts[parts.length - 1] = { type: "text", text: `${last.text}\n${part.text}` }
  }
  return parts
}

const mcpPart = (block: McpSchema.ContentBlock): Message.Part => {
  switch (block.type) {
    case "text":
      return { type: "text", text: block.text }
    case "image":
    case "audio":
      return mcpMedia(block.mimeType, block.data)
    case "resource_link": {
      const about = block.description === undefined ? "" : `\n${block.description}`
      return { type: "text", text: `${block.title ?? block.name}: ${block.uri}${about}` }
    }
    case "resource": {
      const { resource } = block
      if ("text" in resource) return { type: "text", text: resource.text }
      const filename = /([^/?#]+)(?:[?#].*)?$/.exec(resource.uri)?.[1]
      return mcpMedia(resource.mimeType, resource.blob, filename)
    }
  }
}

/** Converts media data: bytes, or the server's base64 text. */
const mcpMedia = (mediaType: string | undefined, bytes: Uint8Array | string, filename?: string): Message.Part =>
  Media.made(mediaType, { data: typeof bytes === "string" ? bytes : Base64.encode(bytes) }, filename)

/**
 * Returns a failure's text without repetition. For a failed tool this is its result, with one line per media part, and
 * its structured content unless a text already repeats the content.
 */
const mcpWords = (reason: McpReason): string => {
  if (reason._tag !== "ToolError") return reason.message
  const parts = mcpParts(reason.result)
  const { structuredContent } = reason.result
  const isSaid = structuredContent === undefined ||
    parts.some((part) =>
      part.type === "text" && Json.isSame(Result.getOrUndefined(Json.parse(part.text)), structuredContent)
    )
  const words = [Media.textWith(parts, () => false), isSaid ? "" : Json.render(structuredContent)]
  return words.filter((text) => text !== "").join("\n") || reason.message
}

// ---------------------------------------------------------------------------------------------------------------------
// Running.

/** Encodes arguments for the toolkit, which decodes them itself. */
const encoded = (tool: AiTool.Any, args: unknown): Effect.Effect<unknown, never, any> =>
  AiTool.isDynamic(tool) && tool.jsonSchema !== undefined
    ? Effect.succeed(args)
    : Effect.orDie(Schema.encodeUnknownEffect(tool.parametersSchema)(args))

/** Runs the toolkit's handler. Preliminary results become progress; failures in either mode are reported. */
const handle = (
  tool: AiTool.Any,
  toolkit: Handlers,
  args: unknown,
  call: Tool.CallContext
): Effect.Effect<unknown, unknown, any> =>
  Effect.gen(function*() {
    let last: AiTool.HandlerResult<AiTool.Any> | undefined
    yield* toolkit.handle(tool.name, yield* encoded(tool, args), call.id).pipe(
      Effect.flatMap(Stream.runForEach((result) => {
        if (result.preliminary) return call.progress(result.encodedResult)
        last = result
        return Effect.void
      })),
      Effect.catchCause((cause) => reported(tool, cause))
    )
    if (last === undefined) return yield* Effect.die(new Error(`the handler of "${tool.name}" ended without a result`))
    return last.isFailure ? yield* failed(tool, last.result, last.failureOrigin ?? "result") : last.result
  }).pipe(
    Effect.catch((error) => {
      const content = mcpContent(error)
      return content === undefined ? Effect.fail(error) : Effect.succeed(content)
    }),
    Effect.updateService(Toolkit.PreliminaryBuffer, (size) => size === "unbounded" ? waitingResults : size),
    unobserved
  )

/** Reports a toolkit failure by its marked origin. */
const reported = (tool: AiTool.Any, cause: Cause.Cause<unknown>): Effect.Effect<never, unknown> => {
  const error = Cause.findErrorOption(cause)
  return Option.isNone(error)
    ? Effect.failCause(cause)
    : failed(tool, error.value, Context.get(Cause.annotations(cause), Toolkit.FailureOrigin))
}

/** Reports a handler's failure as data. A result violating its schema is a tool crash. */
const failed = (tool: AiTool.Any, error: unknown, origin: AiTool.FailureOrigin): Effect.Effect<never, unknown> => {
  if (origin === "handler") return Effect.fail(error)
  if (origin === "result") return Effect.die(error)
  const detail = AiError.isAiError(error) ? error.reason.message : String(error)
  return Effect.fail(new Tool.ToolError({ reason: "invalid_arguments", toolName: tool.name, detail }))
}

/** Keeps call arguments out of the current span. A toolkit would record them, although a model chose them. */
const unobserved = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.flatMap(
    Effect.serviceOption(Tracer.ParentSpan),
    (parent) =>
      Option.isSome(parent) && parent.value._tag === "Span"
        ? Effect.provideService(effect, Tracer.ParentSpan, withoutArguments(parent.value))
        : effect
  )

const withoutArguments = (span: Tracer.Span): Tracer.Span =>
  new Proxy(span, {
    get: (target, key) =>
      key === "attribute"
        ? (name: string, value: unknown) => name === "parameters" ? undefined : target.attribute(name, value)
        // Reading from the span itself matters: it creates some members at first access.
        : Reflect.get(target, key, target)
  })
