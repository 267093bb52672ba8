/**
 * Tools of effect/ai, both ways: Heddle's definitions as tools that a language model is offered and never runs, and the
 * tools of a toolkit as Heddle's own, run by the toolkit's handlers.
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
 * The tools of a request. One of the provider's own stands for the tool of its name. Schemas are sent as they are: what
 * providers call strict would refuse most of them, so that it has to be asked for.
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
    handle: () => Effect.die(new Error("a language model was to run a tool that it was only offered"))
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// made

export type Handlers = Toolkit.WithHandler<Record<string, AiTool.Any>>

/** The number of preliminary results that may wait to be emitted. A handler that makes more waits. */
const waitingResults = 16

export type Approve = Declared.Gate<unknown, Declared.Authorization, any>

/** The tools of a toolkit. Throws for one that Heddle cannot run. */
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

/**
 * A failure of an MCP server has its words in its reason, and in the result there once more, with all that this holds.
 */
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

/** Lets the tool's own function choose the words, images and files that a model reads. */
const modelOutput = (heddle: Tool.Any, { toModelOutput }: AiTool.Any): Tool.Any =>
  toModelOutput === undefined
    ? heddle
    : { ...heddle, encodeSuccess: (value) => Effect.sync(() => contentOf(toModelOutput(value))) }

const contentOf = (parts: ReadonlyArray<Prompt.ToolModelOutputPart>): string | Tool.Content =>
  parts.every((part) => part.type === "text")
    ? Prompt.toolModelOutputToText(parts)
    : Tool.content(parts.map((part) => part.type === "text" ? { type: "text", text: part.text } : mediaOf(part)))

/** A text that names its scheme is an address, every other is base64. */
const mediaOf = ({ data, fileName, mediaType }: Prompt.FilePart): Message.Part => {
  const text = data instanceof Uint8Array ? Base64.encode(data) : data instanceof URL ? data.href : data
  const isAddress = typeof data !== "object" && /^[a-z][a-z0-9+.-]*:/i.test(data)
  return Media.made(mediaType, data instanceof URL || isAddress ? { url: text } : { data: text }, fileName)
}

/** Asks for an approval where the tool needs one. A tool that cannot decide is not run. */
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
// results of MCP servers: effect/ai fails with what it cannot write as a text, with the whole result in the failure.
// Its types are known by their tags, since the modules of MCP are not to be loaded where there is no server

type McpReason = McpClientError.McpClientErrorReason

const mcpReasonOf = (error: unknown): McpReason | undefined =>
  Json.isObject(error) && error["_tag"] === "McpClientError" && Json.isObject(error["reason"])
    ? error["reason"] as unknown as McpReason
    : undefined

/** The parts of a result that has more than text. */
const mcpContent = (error: unknown): Tool.Content | undefined => {
  const reason = mcpReasonOf(error)
  if (reason?._tag !== "UnsupportedError" || reason.result === undefined) return undefined
  return Tool.content(mcpParts(reason.result))
}

/** The parts of a result. Texts that follow each other are one, as effect/ai joins them. */
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

/** The data of a result is bytes, or base64 as the server wrote it. */
const mcpMedia = (mediaType: string | undefined, bytes: Uint8Array | string, filename?: string): Message.Part =>
  Media.made(mediaType, { data: typeof bytes === "string" ? bytes : Base64.encode(bytes) }, filename)

/**
 * The words of a failure, once: those of a tool that failed are its result, in which media are a line each, and its
 * structured content where no text says that.
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
// Running a tool.

/** The arguments as the toolkit takes them, which decodes them itself. */
const encoded = (tool: AiTool.Any, args: unknown): Effect.Effect<unknown, never, any> =>
  AiTool.isDynamic(tool) && tool.jsonSchema !== undefined
    ? Effect.succeed(args)
    : Effect.orDie(Schema.encodeUnknownEffect(tool.parametersSchema)(args))

/** Runs the toolkit's handler. Preliminary results are progress; what it fails with, in either mode, is reported. */
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
    if (last === undefined) return yield* Effect.die(new Error(`the handler of "${tool.name}" came to no result`))
    return last.isFailure ? yield* failed(tool, last.result, last.failureOrigin ?? "result") : last.result
  }).pipe(
    Effect.catch((error) => {
      const content = mcpContent(error)
      return content === undefined ? Effect.fail(error) : Effect.succeed(content)
    }),
    Effect.updateService(Toolkit.PreliminaryBuffer, (size) => size === "unbounded" ? waitingResults : size),
    unobserved
  )

/** A toolkit marks its failures with their origin. */
const reported = (tool: AiTool.Any, cause: Cause.Cause<unknown>): Effect.Effect<never, unknown> => {
  const error = Cause.findErrorOption(cause)
  return Option.isNone(error)
    ? Effect.failCause(cause)
    : failed(tool, error.value, Context.get(Cause.annotations(cause), Toolkit.FailureOrigin))
}

/** Reports the failure of a handler as data; a result that does not fit its schema is a crash of the tool. */
const failed = (tool: AiTool.Any, error: unknown, origin: AiTool.FailureOrigin): Effect.Effect<never, unknown> => {
  if (origin === "handler") return Effect.fail(error)
  if (origin === "result") return Effect.die(error)
  const detail = AiError.isAiError(error) ? error.reason.message : String(error)
  return Effect.fail(new Tool.ToolError({ reason: "invalid_arguments", toolName: tool.name, detail }))
}

/** A toolkit writes the arguments of a call into the current span, where they do not belong: a model chose them. */
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
        // Read from the span itself, which makes some of its members at the first read.
        : Reflect.get(target, key, target)
  })
