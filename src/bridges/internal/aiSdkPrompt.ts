/**
 * Writes a request for the AI SDK's provider interface. Files the model does not fetch itself are downloaded first. The
 * versions differ in file form, tool result content and the type name of provider tools.
 */
import * as Effect from "effect/Effect"
import * as Base64 from "effect/encoding/Base64"
import * as Result from "effect/Result"
import type * as Adapter from "../../Adapter.ts"
import * as Errors from "../../adapters/internal/errors.ts"
import * as Media from "../../adapters/internal/media.ts"
import * as Wire from "../../adapters/internal/wire.ts"
import type * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import type { LanguageModel } from "./aiSdkModel.ts"
import * as BridgedThread from "./bridgedThread.ts"
import * as Layout from "./layout.ts"

export type Version = "v2" | "v3" | "v4"

/** Target model of a prompt. `loaded` holds the downloaded content, by address. */
export interface Writing {
  readonly owner: Layout.Owner
  readonly version: Version
  readonly loaded: ReadonlyMap<string, Pick<BridgedThread.Source, "mediaType" | "content">>
}

type Part = Json.JsonObject

/** Writes the prompt, or names the first part that cannot be written. */
export const write = (
  writing: Writing,
  messages: ReadonlyArray<Message.Message>
): Result.Result<ReadonlyArray<Json.JsonObject>, string> =>
  Result.gen(function*() {
    const prompt: Array<Json.JsonObject> = []
    for (const turn of BridgedThread.turns(writing.owner, messages)) {
      switch (turn.role) {
        case "system":
          prompt.push({ role: "system", content: Message.text(turn.message), ...options(writing, turn.message) })
          break
        case "user": {
          const content = yield* BridgedThread.userParts(turn.message.content, text, (source) => file(writing, source))
          prompt.push({ role: "user", content, ...options(writing, turn.message) })
          break
        }
        case "assistant": {
          const content: Array<Part> = []
          for (const piece of turn.pieces) {
            if (piece.kind === "media") content.push(file(writing, yield* BridgedThread.source(piece.media)))
            else content.push(...assistantParts(writing, piece, turn.idOf))
          }
          if (content.length > 0) prompt.push({ role: "assistant", content, ...options(writing, turn.message) })
          break
        }
        case "tool": {
          const content: Array<Part> = []
          for (const answer of turn.answers) content.push(yield* toolResult(writing, answer))
          prompt.push({ role: "tool", content })
          const attached: Array<Part> = []
          for (const answer of turn.answers) attached.push(...attachments(writing, answer))
          if (attached.length > 0) prompt.push({ role: "user", content: attached })
        }
      }
    }
    return prompt
  })

const options = (writing: Writing, message: Message.Message): Part =>
  Wire.defined({ providerOptions: Layout.messageOptions(writing.owner, message) })

const text = (value: string, words?: Json.JsonObject): Part => ({
  type: "text",
  text: value,
  ...Wire.defined({ providerOptions: words })
})

const assistantParts = (
  writing: Writing,
  piece: Exclude<Layout.Piece, { readonly kind: "media" }>,
  idOf: (call: Message.ToolCall) => string
): ReadonlyArray<Part> => {
  const { options: providerOptions } = piece
  switch (piece.kind) {
    case "text":
      return piece.text === "" && providerOptions === undefined ? [] : [text(piece.text, providerOptions)]
    case "reasoning":
      return [{ type: "reasoning", text: piece.text, ...Wire.defined({ providerOptions }) }]
    case "call":
      return [toolCall(piece.call, idOf(piece.call), providerOptions)]
    case "executed":
      return executed(piece)
    case "file":
      return madeFile(writing, piece)
    case "custom":
      return writing.version === "v4"
        ? [{ type: "custom", kind: piece.name, ...Wire.defined({ providerOptions }) }]
        : []
  }
}

const toolCall = ({ arguments: input, name }: Layout.ExecutedCall, id: string, words?: Json.JsonObject): Part => ({
  type: "tool-call",
  toolCallId: id,
  toolName: name,
  input,
  ...Wire.defined({ providerOptions: words })
})

const executed = (
  { call, options: words, result }: Extract<Layout.Piece, { readonly kind: "executed" }>
): ReadonlyArray<Part> => [
  { ...toolCall(call, call.id, words), providerExecuted: true },
  {
    type: "tool-result",
    toolCallId: call.id,
    toolName: call.name,
    output: executedOutput(result),
    ...Wire.defined({ providerOptions: result.options })
  }
]

const executedOutput = ({ isError, value }: Layout.ExecutedResult): Part => {
  if (isError) return { type: "error-json", value }
  return typeof value === "string" ? { type: "text", value } : { type: "json", value }
}

/** Writes file content in the version's form. */
const fileData = ({ version }: Writing, content: string | URL): unknown => {
  if (version !== "v4") return content
  return typeof content === "string" ? { type: "data", data: content } : { type: "url", url: content }
}

/** Returns the source, or its downloaded content. */
const loaded = (writing: Writing, source: BridgedThread.Source): BridgedThread.Source => {
  const found = typeof source.content === "string" ? undefined : writing.loaded.get(source.content.href)
  return found === undefined ? source : { ...source, ...found }
}

const file = (writing: Writing, source: BridgedThread.Source): Part => {
  const { content, filename, mediaType } = loaded(writing, source)
  return { type: "file", mediaType, data: fileData(writing, content), ...Wire.defined({ filename }) }
}

const madeFile = (
  writing: Writing,
  { file: { data, isReasoning, mediaType, url }, options }: Extract<Layout.Piece, { readonly kind: "file" }>
): ReadonlyArray<Part> => {
  const content = data ?? (url === undefined ? undefined : new URL(url))
  if (content === undefined || (isReasoning && writing.version !== "v4")) return []
  return [{
    type: isReasoning ? "reasoning-file" : "file",
    mediaType,
    data: fileData(writing, content),
    ...Wire.defined({ providerOptions: options })
  }]
}

// ---------------------------------------------------------------------------------------------------------------------
// answers

const toolResult = (writing: Writing, { id, message, name }: BridgedThread.Answer): Result.Result<Part, string> => {
  const problem = Media.mediaIn(message.content).map(Media.empty).find((empty) => empty !== undefined)
  return problem !== undefined ? Result.fail(problem) : Result.succeed({
    type: "tool-result",
    toolCallId: id,
    toolName: name,
    output: output(writing, message),
    ...options(writing, message)
  })
}

/**
 * Writes a tool result. A result with images or PDFs is content, which has no error flag; every other result is text.
 * Models that would write content as JSON, base64 included, also get text, and readable media follow in a user message.
 * Parts no provider accepts in a result are described, since providers drop them silently or refuse the request.
 */
const output = (writing: Writing, message: Message.Message): Part => {
  const type = message.isError === true ? "error-text" : "text"
  const { content } = message
  const isHeld = (part: Media.Media): boolean =>
    (isTextOnly(writing) ? attached(writing, part) : carried(writing, part)) !== undefined
  const tell = (part: Media.Media): string => described(writing, part)
  if (typeof content === "string" || isTextOnly(writing) || Media.held(content, isHeld).length === 0) {
    return { type, value: Media.textWith(content, isHeld, tell) }
  }
  const value = content.flatMap((part): ReadonlyArray<Part> => {
    if (part.type === "text") return [text(part.text)]
    if (!Media.isMedia(part)) return []
    const source = carried(writing, part)
    return [source === undefined ? text(tell(part)) : resultFile(writing, source)]
  })
  return { type: "content", value }
}

/** Chat Completions models write result content as JSON. Gemini models on Vertex AI only share the name pattern. */
const isTextOnly = ({ owner: { provider } }: Writing): boolean =>
  /\.(chat|completion)$/.test(provider) && !provider.startsWith("google.")

/** Returns a part's content, if known. */
const sourceOf = (writing: Writing, part: Media.Media): BridgedThread.Source | undefined => {
  const source = Result.map(BridgedThread.source(part), (found) => loaded(writing, found))
  return Result.isSuccess(source) ? source.success : undefined
}

const plainType = ({ mediaType }: BridgedThread.Source): string => mediaType.split(";")[0]?.trim().toLowerCase() ?? ""

/** Returns `true` for images all providers can read. An image given by address need not state its type. */
const isImage = (source: BridgedThread.Source): boolean =>
  /^image\/(png|jpe?g|gif|webp)$/.test(plainType(source)) ||
  (plainType(source) === "image/*" && typeof source.content !== "string")

/** Returns the media providers accept in a result: common images and PDFs. Version 2 accepts no addresses there. */
const carried = (writing: Writing, part: Media.Media): BridgedThread.Source | undefined => {
  const source = sourceOf(writing, part)
  if (source === undefined || (writing.version === "v2" && typeof source.content !== "string")) return undefined
  return isImage(source) || plainType(source) === "application/pdf" ? source : undefined
}

/**
 * Returns the media a Chat Completions model reads in a user message: images and, from version 3 on, PDFs and audio
 * with data.
 */
const attached = (writing: Writing, part: Media.Media): BridgedThread.Source | undefined => {
  const source = sourceOf(writing, part)
  if (source === undefined || isImage(source)) return source
  const isData = writing.version !== "v2" && typeof source.content === "string"
  return isData && /^(application\/pdf|audio\/(wav|mpeg|mp3))$/.test(plainType(source)) ? source : undefined
}

/** Describes a part in words: a file's text, or a line with its kind, type and size. */
const described = (writing: Writing, part: Media.Media): string => {
  const source = part.type === "file" ? sourceOf(writing, part) : undefined
  return typeof source?.content === "string" && Media.isTextual(source.mediaType)
    ? Media.decode(source.content)
    : Media.line(part)
}

const attachments = (writing: Writing, { id, message: { content } }: BridgedThread.Answer): ReadonlyArray<Part> => {
  const parts = !isTextOnly(writing) ? [] : Media.mediaIn(content).flatMap((part) => {
    const source = attached(writing, part)
    return source === undefined ? [] : [file(writing, source)]
  })
  return parts.length === 0 ? [] : [text(`From the tool call ${id}:`), ...parts]
}

const resultFile = (writing: Writing, source: BridgedThread.Source): Part => {
  const { content, filename, mediaType } = source
  if (writing.version === "v4") return file(writing, source)
  if (writing.version === "v2") return { type: "media", data: content, mediaType }
  const kind = Media.isImageType(mediaType) ? "image" : "file"
  if (typeof content !== "string") return { type: `${kind}-url`, url: content.href }
  return {
    type: `${kind}-data`,
    data: content,
    mediaType,
    ...(kind === "file" ? Wire.defined({ filename }) : {})
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// tools and settings

/**
 * A provider-executed tool, such as web search. Its calls are listed with their results and never run here.
 *
 * @category models
 */
export interface ProviderTool {
  /** Provider's tool id, such as `anthropic.web_search_20250305`. */
  readonly id: `${string}.${string}`
  /** Tool name for the model. */
  readonly name: string
  /** Tool configuration. None by default. */
  readonly args?: Readonly<Record<string, unknown>>
}

/** Writes the tools. A provider tool replaces the declared tool with the same name. */
export const tools = (
  request: Adapter.Request,
  own: ReadonlyArray<ProviderTool>,
  version: Version,
  strict: boolean | undefined
): Json.JsonObject => {
  const names = new Set(own.map(({ name }) => name))
  const all = [
    ...request.tools.filter(({ name }) => !names.has(name)).map(({ description, name, parameters }) => ({
      type: "function",
      name,
      ...(description === "" ? {} : { description }),
      inputSchema: parameters,
      ...Wire.defined({ strict })
    })),
    ...own.map(({ args = {}, id, name }) => ({
      type: version === "v2" ? "provider-defined" : "provider",
      id,
      name,
      args
    }))
  ]
  return all.length === 0 ? {} : { tools: all, ...toolChoice(request.toolChoice) }
}

const toolChoice = (choice: Adapter.ToolChoice | undefined): Json.JsonObject => {
  if (choice === undefined) return {}
  return { toolChoice: typeof choice === "string" ? { type: choice } : { type: "tool", toolName: choice.name } }
}

export const responseFormat = (format: Adapter.ResponseFormat | undefined): Json.JsonObject => {
  if (format === undefined || format.type === "text") return {}
  if (format.type === "json_object") return { responseFormat: { type: "json" } }
  return { responseFormat: { type: "json", name: format.name, schema: format.schema } }
}

// ---------------------------------------------------------------------------------------------------------------------
// Files to download: a model states which addresses it reads, and the caller's `download` loads the rest.

type Download = (
  url: URL
) => Effect.Effect<{ readonly data: Uint8Array | string; readonly mediaType?: string }, unknown>

type Supported = Readonly<Record<string, ReadonlyArray<RegExp>>>

/** Downloads the files the model does not read itself, by address. */
export const load = (
  model: LanguageModel,
  download: Download,
  messages: ReadonlyArray<Message.Message>,
  origin: Errors.Origin
): Effect.Effect<Writing["loaded"], Adapter.AdapterError> =>
  Effect.gen(function*() {
    const addressed = messages.flatMap(addresses)
    if (addressed.length === 0) return new Map()
    const supported: Supported = yield* Effect.tryPromise(() => Promise.resolve(model.supportedUrls ?? {})).pipe(
      Effect.orElseSucceed(() => ({}))
    )
    const missing = new Map(
      addressed.flatMap((source) => isRead(supported, source) ? [] : [[source.content.href, source] as const])
    )
    const loaded = yield* Effect.forEach(missing.values(), ({ content, mediaType }) =>
      Effect.map(
        Effect.mapError(
          download(content),
          () =>
            Errors.make(origin, "invalid_request", `the file at ${content.origin}${content.pathname} cannot be loaded`)
        ),
        ({ data, mediaType: given }) =>
          [content.href, {
            mediaType: given ?? mediaType,
            content: typeof data === "string" ? data : Base64.encode(data)
          }] as const
      ), { concurrency: 4 })
    return new Map(loaded)
  })

interface Addressed extends BridgedThread.Source {
  readonly content: URL
}

const addresses = ({ content }: Message.Message): ReadonlyArray<Addressed> =>
  Media.mediaIn(content).flatMap((media) => {
    const source = BridgedThread.source(media)
    return source._tag === "Success" && isAddressed(source.success) ? [source.success] : []
  })

const isAddressed = (source: BridgedThread.Source): source is Addressed =>
  source.content instanceof URL && /^https?:$/.test(source.content.protocol)

/** Returns `true` if a pattern for the media type matches. A type may be `*` or end in `/*`. */
const isRead = (supported: Supported, { content, mediaType }: Addressed): boolean =>
  Object.entries(supported).some(([kind, patterns]) =>
    (kind === "*" || kind === "*/*" || kind === mediaType ||
      (kind.endsWith("/*") && mediaType.startsWith(kind.slice(0, -1)))) &&
    patterns.some((pattern) => content.href.search(pattern) >= 0)
  )
