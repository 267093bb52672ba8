/**
 * Writes an Anthropic request: the thread as messages, its images and files, the tools, thinking, reply limit and
 * output format.
 *
 * System texts stand apart, user and assistant messages alternate, and the user message after a turn begins with all
 * its results. The writer leaves out whatever the protocol refuses: empty texts, thinking with nothing after it,
 * repeated ids, server-side calls without results. It writes a finished turn identically in every request, so a growing
 * thread starts with the text already sent, and the provider finds it in its cache.
 */
import * as Result from "effect/Result"
import type * as Adapter from "../../Adapter.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import type * as Tool from "../../Tool.ts"
import * as AnthropicReply from "./anthropicReply.ts"
import * as Media from "./media.ts"
import * as StrictSchema from "./strictSchema.ts"
import * as Wire from "./wire.ts"
import type * as WireProtocol from "./wireProtocol.ts"

type Blocks = ReadonlyArray<Json.JsonObject>

/** Request parts derived from the thread. */
export interface Written {
  readonly system: Blocks
  readonly messages: Blocks
  /** Container of the open turn. */
  readonly container: string | undefined
}

/** Writes a thread. With `isInline`, the model accepts system texts within the thread; otherwise all come first. */
export const write = (messages: ReadonlyArray<Message.Message>, isInline: boolean, server: string): Written => {
  const writer = new Writer(messages, isInline, server)
  for (const [index, message] of messages.entries()) writer.add(message, index)
  return writer.end()
}

/** Returns a text as blocks. A blank text gets no block, since the protocol refuses it. */
const textBlocks = (text: string): Blocks => text.trim() === "" ? [] : [{ type: "text", text }]

const partBlocks = (part: Message.Part): Blocks => {
  if (part.type === "text") return textBlocks(part.text)
  return part.type === "reasoning" ? [] : [mediaBlock(part)]
}

const contentBlocks = (content: Message.Content): Blocks =>
  typeof content === "string" ? textBlocks(content) : content.flatMap(partBlocks)

/** Returns the blocks of a tool result. A part without a block form becomes a line of text. */
const answerBlocks = (content: Message.Content): Blocks =>
  typeof content === "string" ?
    textBlocks(content) :
    content.flatMap((part) => Media.isMedia(part) && !isHeld(part) ? textBlocks(Media.line(part)) : partBlocks(part))

/** Divides the blocks of a tool answer: `held` stays in its result, `others` follow all results. */
const divided = (content: Message.Content, isError: boolean): { readonly held: Blocks; readonly others: Blocks } => {
  const blocks = answerBlocks(content)
  const held = blocks.filter(({ type }) => isError ? type === "text" : type !== "container_upload")
  return { held, others: blocks.filter((block) => !held.includes(block)) }
}

const isHeld = (part: Media.Media): boolean =>
  mediaProblem(part) === undefined && (!Media.isImage(part) || Media.isCommonImage(part))

const isThinking = (block: Json.JsonObject | undefined): boolean =>
  block?.["type"] === "thinking" || block?.["type"] === "redacted_thinking"

const isResult = (block: Json.JsonObject): boolean => block["type"] === "tool_result"

/** Detects a requested summary. It stands first and replaces the summarized messages. */
const isSignedSummary = ({ content, signature, type }: Json.JsonObject): boolean =>
  type === "compaction" && typeof content === "string" && typeof signature === "string"

/** Drops thinking at the end: a turn must not end with a thought. */
const withoutLastThoughts = (blocks: Blocks): Blocks =>
  blocks.slice(0, blocks.findLastIndex((block) => !isThinking(block)) + 1)

/** Returns the server code that made a call, or an empty object if the model made it. */
const callerOf = ({ metadata }: Pick<Message.ToolCall, "metadata">): Json.JsonObject =>
  Wire.object(Wire.object(metadata[AnthropicReply.key])["caller"])

/** Returns the id of a server-side call. Its result comes in this turn or in a continuation. */
const serverCallId = (block: Json.JsonObject): string | undefined =>
  String(block["type"]).endsWith("_tool_use") ? Wire.string(block["id"]) : undefined

interface Exchange {
  readonly role: "user" | "assistant" | "system"
  readonly content: Array<Json.JsonObject>
}

class Writer {
  private readonly isInline: boolean
  private readonly system: Array<Json.JsonObject> = []
  /** System texts waiting for a place: after a user message and before an assistant message. */
  private waiting: Array<Json.JsonObject> = []
  private readonly exchanges: Array<Exchange> = []
  private readonly ids: Wire.SentIds
  /** Server-side calls already written; only these may have results. */
  private readonly serverCalls = new Set<string>()
  /** Server-side calls with a result anywhere in the thread. */
  private readonly served: ReadonlySet<string>
  /** Index at which the open turn begins. */
  private readonly opening: number
  private container: string | undefined

  private readonly messages: ReadonlyArray<Message.Message>

  constructor(messages: ReadonlyArray<Message.Message>, isInline: boolean, server: string) {
    this.messages = messages
    this.isInline = isInline
    this.ids = new Wire.SentIds(Wire.wordIds, Wire.isCallOf(AnthropicReply.key, server))
    this.opening = messages.findLastIndex((message) => message.role === "user") + 1
    this.served = new Set(
      messages.filter((message) => message.role === "assistant").flatMap((message) =>
        AnthropicReply.restore(message).pieces.flatMap((piece) =>
          piece.type === "block" ? Wire.string(piece.block["tool_use_id"]) ?? [] : []
        )
      )
    )
  }

  end(): Written {
    this.instruct()
    this.system.push(...this.waiting)
    const messages = this.exchanges.map(({ content, role }) => ({
      role,
      content: [...content.filter(isResult), ...content.filter((block) => !isResult(block))]
    }))
    return { system: this.system, messages: messages.map(withoutLastSpace), container: this.container }
  }

  add(message: Message.Message, index: number): void {
    switch (message.role) {
      case "system":
        return this.hear(contentBlocks(message.content))
      case "user":
        return this.say("user", contentBlocks(message.content))
      case "tool":
        return this.say("user", this.result(message))
      case "assistant":
        return this.reply(withoutLastThoughts(this.turn(message, index)))
    }
  }

  private reply(content: Blocks): void {
    const summary = content.findLastIndex(isSignedSummary)
    if (summary >= 0) this.forget()
    if (content.length > 0) this.instruct()
    this.say("assistant", summary >= 0 ? content.slice(summary) : content)
  }

  /** Drops all messages so far except system texts. */
  private forget(): void {
    const texts = this.exchanges.splice(0).flatMap(({ content, role }) => role === "system" ? content : [])
    this.waiting.unshift(...texts)
  }

  private hear(content: Blocks): void {
    const texts = this.isInline && this.exchanges.length > 0 ? this.waiting : this.system
    texts.push(...content)
  }

  private instruct(): void {
    if (this.exchanges.at(-1)?.role !== "user") return
    this.say("system", this.waiting)
    this.waiting = []
  }

  private say(role: Exchange["role"], content: Blocks): void {
    if (content.length === 0) return
    const last = this.exchanges.at(-1)
    if (last?.role === role) last.content.push(...content)
    else this.exchanges.push({ role, content: [...content] })
  }

  /** Writes a tool result. Failures are text only, and uploads stand alone: other blocks follow all results. */
  private result({ content, isError = false, toolCallId = "" }: Message.Message): Blocks {
    const id = this.ids.answered(toolCallId)
    const { held, others } = divided(content, isError)
    const said = held.length === 0 && isError ? textBlocks("The tool failed.") : held
    return [
      {
        type: "tool_result",
        tool_use_id: id,
        ...(said.length === 0 ? {} : { content: typeof content === "string" && said === held ? content : said }),
        ...(isError ? { is_error: true } : {})
      },
      ...(others.length === 0 ? [] : [...textBlocks(`From the tool call ${id}:`), ...others])
    ]
  }

  private turn(message: Message.Message, index: number): Blocks {
    const { container, pieces } = AnthropicReply.restore(message)
    if (index >= this.opening && container !== undefined) this.container = container
    const idOf = this.ids.turn(Wire.ownCalls(message))
    return pieces.flatMap((piece) => {
      switch (piece.type) {
        case "text":
          return textBlocks(piece.text)
        case "call":
          return [this.call(piece.call, idOf(piece.call))]
        case "block":
          return this.isWhole(piece.block, index) ? [piece.block] : []
      }
    })
  }

  private call({ arguments: input, metadata, name }: Message.ToolCall, id: string): Json.JsonObject {
    const caller = callerOf({ metadata })
    const isCalledByServer = this.serverCalls.has(String(caller["tool_id"]))
    return { type: "tool_use", id, name, input, ...(isCalledByServer ? { caller } : {}) }
  }

  /**
   * Returns `true` if a block has its counterpart: a result needs its call; a call needs its result, unless that can
   * still come.
   */
  private isWhole(block: Json.JsonObject, index: number): boolean {
    const id = serverCallId(block)
    const answered = Wire.string(block["tool_use_id"])
    if (answered !== undefined) return this.serverCalls.has(answered)
    if (id === undefined) return true
    if (this.served.has(id) || this.isOpen(id, index)) this.serverCalls.add(this.ids.reserve(id))
    return this.serverCalls.has(id)
  }

  /**
   * Returns `true` if a call may still get its result: since the call, the turn has only answered requests the call
   * itself made to Heddle. A cut reply has lost its turn's results, and content after Heddle's results ends the turn.
   */
  private isOpen(id: string, index: number): boolean {
    return index >= this.opening && this.messages.slice(index + 1).every((message) => {
      if (message.role === "tool") return divided(message.content, message.isError === true).others.length === 0
      return message.role !== "assistant" || Wire.ownCalls(message).some((call) => callerOf(call)["tool_id"] === id)
    })
  }
}

/** Trims the end: a request must not end with trailing space in model text. */
const withoutLastSpace = (message: Json.JsonObject & { readonly content: Blocks }, index: number, all: Blocks) => {
  const last = message.content.at(-1)
  if (index < all.length - 1 || message["role"] !== "assistant" || typeof last?.["text"] !== "string") return message
  return { ...message, content: [...message.content.slice(0, -1), { ...last, text: last["text"].trimEnd() }] }
}

/** Returns `true` if a thread continues a model turn that starts without reasoning. */
const isThoughtless = (messages: ReadonlyArray<Message.Message>): boolean => {
  const opening = messages.findLastIndex((message) => message.role === "user") + 1
  const first = messages.slice(opening).find((message) => message.role === "assistant")
  if (first === undefined) return false
  const piece = AnthropicReply.restore(first).pieces.find((one) => one.type !== "text" || one.text.trim() !== "")
  return !(piece?.type === "block" && isThinking(piece.block))
}

/** Lists the tools called in a thread, by name, excluding server tools. */
const calledNames = (messages: ReadonlyArray<Message.Message>): ReadonlyArray<string> => [
  ...new Set(messages.flatMap(Wire.ownCalls).map(({ name }) => name))
]

// ---------------------------------------------------------------------------------------------------------------------
// caching

/**
 * Marks the ends of the last two user messages: the first mark finds the previous request, the second caches this
 * addition.
 */
export const marked = (messages: Blocks, mark: Json.JsonObject | undefined): Blocks => {
  const last = messages.flatMap((message, index) => message["role"] === "user" ? [index] : []).slice(-2)
  return messages.map((message, index) =>
    last.includes(index) ? { ...message, content: markedLast(message["content"] as Blocks, mark) } : message
  )
}

export const markedLast = (blocks: Blocks, mark: Json.JsonObject | undefined): Blocks =>
  blocks.map((block, index) =>
    mark !== undefined && index === blocks.length - 1 ? { ...block, cache_control: mark } : block
  )

export const unsupported = (messages: ReadonlyArray<Message.Message>): string | undefined =>
  Media.unsupported(messages, mediaProblem)

// ---------------------------------------------------------------------------------------------------------------------
// Media: pictures, PDFs and texts, given by data, address or upload id. Other uploads go into the container of the
// server's tools. A part's metadata holds a document's `title`, `context` and `citations` under this protocol's key.

interface Source {
  readonly mediaType: string | undefined
  readonly data?: string
  readonly text?: string
  readonly url?: string
  readonly fileId?: string
}

const dataUri = /^data:([^;,]*)(?:;[^,]*)?;base64,/i
const textUri = /^data:(?:text\/[^;,]*)?(?:;[^,]*)?,/i
const uploaded = /^file_/

const sourceOf = (part: Media.Media): Source => {
  const { data, mediaType = Media.typeOf(part), url } = part
  if (url === undefined) return { mediaType, ...Wire.defined({ data }) }
  const [prefix, type] = dataUri.exec(url) ?? []
  if (prefix !== undefined) return { mediaType: type || mediaType, data: url.slice(prefix.length) }
  const [start] = (part.type === "file" ? textUri.exec(url) : null) ?? []
  const text = start === undefined ? undefined : percentDecoded(url.slice(start.length))
  if (text !== undefined) return { mediaType: "text/plain", text }
  return { mediaType, ...(uploaded.test(url) ? { fileId: url } : { url }) }
}

const percentDecoded = (text: string): string | undefined =>
  Result.getOrUndefined(Result.try(() => decodeURIComponent(text)))

const isImage = (part: Media.Media, { mediaType }: Source): boolean =>
  part.type === "image" || Media.isImageType(mediaType)

const isText = ({ mediaType }: Source): boolean => Media.isTextual(mediaType)
const isPdf = ({ mediaType = "application/pdf" }: Source): boolean => mediaType === "application/pdf"

/** Writes a supported part as a block. */
const mediaBlock = (part: Media.Media): Json.JsonObject => {
  const source = sourceOf(part)
  if (isImage(part, source)) return { type: "image", source: wireSource(source, "image/png") }
  const { fileId } = source
  if (fileId !== undefined && !isPdf(source) && !isText(source)) return { type: "container_upload", file_id: fileId }
  const { citations, context, title = part.type === "file" ? part.filename : undefined } = Wire.object(
    part.metadata?.[AnthropicReply.key]
  )
  return {
    type: "document",
    source: wireSource(source, "application/pdf"),
    ...Wire.defined({ title, context, citations })
  }
}

const wireSource = (source: Source, fallback: string): Json.JsonObject => {
  const { data = "", fileId, mediaType = fallback, text, url } = source
  if (fileId !== undefined) return { type: "file", file_id: fileId }
  if (url !== undefined) return { type: "url", url }
  if (isText(source)) return { type: "text", media_type: "text/plain", data: text ?? Media.decode(data) }
  return { type: "base64", media_type: mediaType, data }
}

/** Returns the reason a part cannot be sent, if any. */
const mediaProblem = (part: Media.Media): string | undefined => {
  const source = sourceOf(part)
  const { fileId, mediaType, text, url } = source
  const problem = Media.empty(part)
  if (problem !== undefined) return problem
  if (url !== undefined && !/^https?:/i.test(url)) {
    return `the ${part.type} part's url must be an address, base64 data or the id of an upload`
  }
  if (isImage(part, source) || fileId !== undefined || text !== undefined) return undefined
  if (url !== undefined) {
    return isPdf(source)
      ? undefined
      : "a file other than a PDF cannot be sent by its URL: send its data"
  }
  return isText(source) || isPdf(source)
    ? undefined
    : `a file of type ${mediaType} cannot be sent: only images, PDFs and texts can`
}

// ---------------------------------------------------------------------------------------------------------------------
// settings

type Objects = ReadonlyArray<Json.JsonObject>

export interface Options extends Pick<WireProtocol.Options, "parallelToolCalls" | "strict"> {
  readonly maxTokens?: number
  readonly reasoning?: WireProtocol.Reasoning & { readonly display?: "summarized" | "omitted" }
}

/**
 * Lists the request's tools, then the provider's own. A thread with calls requires declared tools: without any, the
 * called names are declared.
 */
export const tools = ({ strict = false }: Options, { messages, tools }: Adapter.Request, hosted: Objects): Objects =>
  tools.length > 0 || hosted.length > 0
    ? [...tools.map((definition) => tool(definition, strict)), ...hosted]
    : calledNames(messages).map((name) => ({ name, input_schema: { type: "object" } }))

/** Declares a tool. A schema unfit for strict mode goes out unchanged. The root must be an object type. */
const tool = ({ description, name, parameters }: Tool.Definition, isWanted: boolean): Json.JsonObject => {
  const { isStrict, schema } = StrictSchema.written(parameters, isWanted, StrictSchema.anthropic)
  return {
    name,
    ...(description === "" ? {} : { description }),
    input_schema: { type: "object", ...schema },
    ...(isStrict ? { strict: true } : {})
  }
}

const choices = { auto: "auto", none: "none", required: "any" } as const

/**
 * Returns the tool choice, and whether only one tool may be called. If only the thread's own calls are declared, the
 * choice is `none`.
 */
export const toolChoice = (options: Options, request: Adapter.Request, hosted: Objects): Json.JsonObject => {
  const isDeclared = request.tools.length > 0 || hosted.length > 0
  if (!isDeclared && calledNames(request.messages).length === 0) return {}
  const choice = isDeclared ? request.toolChoice : "none"
  const isOne = options.parallelToolCalls === false && choice !== "none"
  if (choice === undefined && !isOne) return {}
  const chosen = typeof choice === "object" ? { type: "tool", name: choice.name } : { type: choices[choice ?? "auto"] }
  return { tool_choice: { ...chosen, ...(isOne ? { disable_parallel_tool_use: true } : {}) } }
}

/**
 * Returns the thinking setting, unless the protocol forbids thinking: with a forced tool and, with a budget, in a turn
 * that began without thinking.
 */
export const thinking = ({ reasoning }: Options, request: Adapter.Request): Json.JsonObject | undefined => {
  const { toolChoice } = request
  if (reasoning === undefined || toolChoice === "required" || typeof toolChoice === "object") return undefined
  const { display, effort, maxTokens } = reasoning
  if (effort === "none") return { type: "disabled" }
  const shown = Wire.defined({ display })
  if (maxTokens === undefined) return { type: "adaptive", ...shown }
  return isThoughtless(request.messages) ? undefined : { type: "enabled", budget_tokens: maxTokens, ...shown }
}

/** Returns the temperature. A thinking model chooses its own. */
export const temperature = (
  { temperature }: Adapter.Request,
  thinking: Json.JsonObject | undefined
): Json.JsonObject => thinking === undefined || thinking["type"] === "disabled" ? Wire.defined({ temperature }) : {}

/** Returns the effort for an answer, and its format. */
export const output = ({ reasoning }: Options, { responseFormat }: Adapter.Request): Json.JsonObject => ({
  ...Wire.defined({ effort: reasoning?.effort === "none" ? undefined : reasoning?.effort }),
  ...(responseFormat?.type === "json_schema" ? { format: format(responseFormat.schema) } : {})
})

/** Returns the requested container: a container with skills keeps the open turn's id, if any. */
export const container = (wanted: unknown, id: string | undefined): unknown =>
  Json.isObject(wanted) ? { ...Wire.defined({ id }), ...wanted } : wanted ?? id

const format = (schema: Json.JsonObject): Json.JsonObject => ({
  type: "json_schema",
  schema: StrictSchema.written(schema, true, StrictSchema.anthropic).schema
})

/** Returns the answer limit required by the protocol. */
export const maxTokens = (
  options: Options,
  request: Adapter.Request,
  model: string,
  thinking: Json.JsonObject | undefined
): number =>
  request.maxTokens ?? options.maxTokens ??
    Math.max(longestAnswer(model), Number(thinking?.["budget_tokens"] ?? 0) + 4096)

/** Returns a token limit accepted by every model in a family. */
const longestAnswer = (model: string): number => {
  if (/claude-(3-(opus|sonnet|haiku)|2|instant)/.test(model)) return 4096
  return /claude-3-5/.test(model) || !model.includes("claude") ? 8192 : 32_000
}

/**
 * Returns `true` for models known to accept system messages after the first user message: Claude Opus from 4.8 on,
 * Fable and Mythos.
 */
export const takesInlineSystem = (model: string): boolean => /claude-(opus-(4-[89]|[5-9])|fable|mythos)/.test(model)
