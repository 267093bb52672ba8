/**
 * Reads a bridged reply part by part into Heddle's events, in order, between the message's start and end. An error
 * among the parts, or a missing end, fails the reply.
 */
import type * as Adapter from "../../Adapter.ts"
import * as Answer from "../../adapters/internal/answerBody.ts"
import * as Errors from "../../adapters/internal/errors.ts"
import * as Media from "../../adapters/internal/media.ts"
import * as Wire from "../../adapters/internal/wire.ts"
import * as ToolCalls from "../../internal/hear/toolCalls.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import * as Response from "../../Response.ts"
import * as Layout from "./layout.ts"
import * as Part from "./part.ts"

type TextBlock = Extract<Layout.Block, { readonly kind: "text" }>
type ReasoningBlock = Extract<Layout.Block, { readonly kind: "reasoning" }>

export class Reader {
  /** `true` once the reply has ended. */
  isDone = false
  failure: Adapter.AdapterError | undefined
  private readonly owner: Layout.Owner
  private readonly origin: Errors.Origin
  private readonly calls: Calls
  private readonly blocks: Array<Layout.Block> = []
  private readonly thoughts = new Map<string, ReasoningBlock>()
  private readonly notes = new Map<string, Array<unknown>>()
  private span: { readonly id: string; readonly block: TextBlock } | undefined
  private places = 0
  private text = ""
  private usage: Response.Usage | null = null
  private id: string | undefined
  private model: string | undefined

  constructor(owner: Layout.Owner, origin: Errors.Origin, makeId: () => string) {
    this.owner = owner
    this.origin = origin
    this.calls = new Calls(owner, makeId)
  }

  /** Reads a part. After the end only an error counts. */
  read(part: Part.Part, out: Answer.Out): void {
    if (this.isDone) {
      if (part.type === "error") this.failure ??= part.error
      return
    }
    if (part.type === "finish") this.usage = part.usage
    if (this.failure !== undefined) return
    if (Part.isContent(part)) return this.content(part, out)
    switch (part.type) {
      case "about":
        return this.about(part)
      case "raw":
        out.push({ _tag: "RawChunk", chunk: part.chunk })
        return
      case "finish":
        return this.finish(part, out)
      case "error":
        this.failure = part.error
    }
  }

  /** Ends the reply, with the given failure if any. A broken reply still reports its cost. */
  end(failure: Adapter.AdapterError | undefined, out: Answer.Out): void {
    if (this.isDone) return
    this.failure ??= failure ??
      Errors.make(this.origin, "network_error", "the reply ended before it was complete")
    out.push(...Answer.cost(this.usage))
  }

  private content(part: Part.Content, out: Answer.Out): void {
    if (isNews(part)) this.calls.settle(out)
    switch (part.type) {
      case "text":
      case "reasoning":
        return this.said(part, out)
      case "input":
        return this.calls.input(part, this.places++, out)
      case "call":
        return this.calls.call(part, this.places++, out)
      case "result":
        return this.calls.result(part)
      case "file": {
        const { type: _type, options, ...file } = part
        this.blocks.push({ kind: "file", at: this.places++, file, options })
        return
      }
      case "custom":
        this.blocks.push({ kind: "custom", at: this.places++, name: part.kind, options: part.options })
    }
  }

  private said(part: Part.Said, out: Answer.Out): void {
    if (part.delta === "" && part.options === undefined) return
    const block = part.type === "text" ? this.textBlock(part.id) : this.reasoningBlock(part.id)
    block.options = Layout.merged(block.options, part.options)
    if (block.kind === "reasoning") {
      block.text += part.delta
      Answer.think(part.delta, out)
    } else {
      block.length += part.delta.length
      this.text += part.delta
      Answer.say(part.delta, out)
    }
  }

  /** Returns the text block with an id. Blocks are spans of the whole text, so only the latest can grow. */
  private textBlock(id: string): TextBlock {
    if (this.span?.id === id) return this.span.block
    const block: TextBlock = { kind: "text", at: this.places++, length: 0, options: undefined }
    this.span = { id, block }
    this.blocks.push(block)
    return block
  }

  private reasoningBlock(id: string): ReasoningBlock {
    const known = this.thoughts.get(id)
    if (known !== undefined) return known
    const block: ReasoningBlock = { kind: "reasoning", at: this.places++, text: "", options: undefined }
    this.thoughts.set(id, block)
    this.blocks.push(block)
    return block
  }

  private about(part: Part.About): void {
    this.id ??= part.id
    this.model ??= part.model
    for (const [name, items] of Object.entries(part.notes ?? {})) {
      const known = this.notes.get(name) ?? []
      known.push(...items)
      this.notes.set(name, known)
    }
  }

  private finish(part: Part.Finish, out: Answer.Out): void {
    if (part.isCut) return
    Answer.endText(this.text, out)
    const contradiction = this.calls.end(ToolCalls.endingOf(part.reason), out)
    const { toolCalls } = this.calls
    const reason = part.reason === "stop" && toolCalls.some(Response.isActionable) ? "tool_calls" : part.reason
    const blocks = [...this.blocks, ...this.calls.executed].sort((left, right) => left.at - right.at)
    const reasoning = Layout.keep(this.owner, blocks, this.calls.places)
    const { id, messageContent: content, model } = this
    const { usage, word } = part
    // A provider-executed call without its result does not go back, so the reply could not continue.
    const isPaused = part.isPaused && !this.calls.isServing
    const notes = this.notesWith(part)
    const whole = { content, toolCalls, reasoning, finishReason: reason, word, isPaused, usage, id, model, notes }
    const problem = contradiction === undefined
      ? Answer.problemOf(whole)
      : ["malformed_response", contradiction] as const
    if (problem !== undefined) {
      this.failure = Errors.make(this.origin, ...problem)
      return
    }
    out.push(Answer.completed(whole))
    this.isDone = true
  }

  /** Content of the message: text and generated files. */
  private get messageContent(): Message.Content {
    return Answer.contentOf(
      this.text,
      this.blocks.flatMap((block): ReadonlyArray<Message.Part> => {
        if (block.kind !== "file" || block.file.isReasoning) return []
        const { data, mediaType, url } = block.file
        if (data !== undefined) return [Media.made(mediaType, { data })]
        return url === undefined ? [] : [Media.made(mediaType, { url })]
      })
    )
  }

  private notesWith({ options }: Part.Finish): Json.JsonObject {
    const notes = { ...Object.fromEntries(this.notes), ...(options === undefined ? {} : { options }) }
    return Object.keys(notes).length === 0 ? {} : { [this.owner.key]: Json.toJson(notes) }
  }
}

/** Returns `true` if a part continues the reply. Block ends and facts about earlier calls do not. */
const isNews = (part: Part.Content): boolean => {
  switch (part.type) {
    case "text":
    case "reasoning":
      return part.delta !== ""
    case "input":
      return part.name !== undefined
    case "result":
      return false
    default:
      return true
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Calls. A call completes once the reply continues or ends, because a library delivers a call cut by the token limit
// like any other, right before it reports the limit. Calls never run here; a provider-executed call completes with its
// result.

interface Entry {
  readonly call: ToolCalls.Call
  readonly at: number
  /** `true` if its fragments form its final text. */
  readonly isStreamed: boolean
  /** `true` once the library delivered the call, with nothing to follow. */
  isMade: boolean
  options: Json.JsonObject | undefined
  result: Layout.ExecutedResult | undefined
}

export class Calls {
  private readonly owner: Layout.Owner
  private readonly calls: ToolCalls.WireCalls
  private readonly entries: Array<Entry> = []
  /** Latest call per library id. The library may reuse ids. */
  private readonly latest = new Map<string, Entry>()
  /** The delivered call, completed as soon as the reply continues. */
  private held: ToolCalls.Call | undefined

  constructor(owner: Layout.Owner, makeId: () => string) {
    this.owner = owner
    this.calls = new ToolCalls.WireCalls(makeId, owner.key)
  }

  /** Completed calls, in the order they were opened. */
  get toolCalls(): ReadonlyArray<Message.ToolCall> {
    return this.calls.completed
  }

  /** Positions of Heddle's calls among the reply's pieces. */
  get places(): ReadonlyArray<number> {
    return this.entries.flatMap(({ at, call }) => call.isExecuted ? [] : [at])
  }

  /** Provider-executed calls, with their results. */
  get executed(): ReadonlyArray<Layout.Block> {
    return this.entries.flatMap(({ at, call, options, result }): ReadonlyArray<Layout.Block> => {
      if (call.completed === undefined || result === undefined) return []
      const { arguments: args, name } = call.completed
      const id = Wire.wireIdOf(call.completed)
      return [{ kind: "executed", at, call: { id, name, arguments: args }, result, options }]
    })
  }

  /** `true` if a provider-executed call has no result. */
  get isServing(): boolean {
    return this.entries.some(({ call, result }) => call.isExecuted && result === undefined)
  }

  /** Takes an announcement or a fragment, which may come first. Fragments of a delivered call are ignored. */
  input(part: Part.Input, at: number, out: Answer.Out): void {
    const known = this.latest.get(part.id)
    const isKnown = known !== undefined && (part.name === undefined || isOpenAs(known, part.name))
    if (!isKnown && part.name === undefined && (!part.isJson || part.delta === "")) return
    const entry = isKnown ? known : this.open(part.id, at, part.isJson)
    this.name(entry, part.name, out)
    if (entry.isMade || !entry.isStreamed || part.delta === "") return
    this.calls.append(entry.call, part.delta, out)
  }

  call(part: Part.Call, at: number, out: Answer.Out): void {
    const known = this.latest.get(part.id)
    const entry = known !== undefined && isOpenAs(known, part.name) ? known : this.open(part.id, at, true)
    this.name(entry, part.name, out)
    const { call } = entry
    this.calls.overwrite(call, part.text, out)
    call.isObserved = true
    call.isExecuted = part.isExecuted
    entry.isMade = true
    entry.options = Layout.merged(entry.options, part.options)
    this.mark(entry)
    if (!call.isExecuted) this.held = call
  }

  /** Takes a result; its call thereby counts as provider-executed. A later result replaces the previous result. */
  result(part: Part.Result): void {
    const entry = this.latest.get(part.id)
    if (entry === undefined || entry.call.completed !== undefined) return
    entry.call.isExecuted = true
    entry.result = { value: part.value, isError: part.isError, options: part.options }
    this.mark(entry)
  }

  /**
   * Completes the latest delivered call as the reply continues. The call is whole unless its text proves otherwise.
   */
  settle(out: Answer.Out): void {
    const call = this.held
    this.held = undefined
    if (call === undefined) return
    if (call.text.trim() !== "") this.calls.settle(call, out)
    else if (!this.calls.hasStrays) this.calls.close(call, false, out)
  }

  /**
   * Ends the reply. After the token limit, the last call counts as cut, even with a whole text. An announced call
   * without fragments has no arguments, unless the reply was cut.
   */
  end(ending: ToolCalls.Ending, out: Answer.Out): string | undefined {
    return this.calls.endAll(ending, out, this.calls.all.findLast((call) => !call.isExecuted))
  }

  private open(wireId: string, at: number, isStreamed: boolean): Entry {
    const call = this.calls.open(wireId === "" ? undefined : wireId)
    const entry: Entry = { call, at, isStreamed, isMade: false, options: undefined, result: undefined }
    this.mark(entry)
    this.entries.push(entry)
    this.latest.set(wireId, entry)
    return entry
  }

  private name({ call }: Entry, name: string | undefined, out: Answer.Out): void {
    if (call.name === "" && name !== undefined) this.calls.name(call, name, out)
  }

  private mark({ at, call, options, result }: Entry): void {
    call.metadata = Layout.mark(this.owner, at, { options, result })
  }
}

/** Returns `true` if a call is not yet delivered, and has the given name or no name so far. */
const isOpenAs = ({ call, isMade }: Entry, name: string): boolean => !isMade && (call.name === "" || call.name === name)
