/**
 * Reads and writes what all protocols have alike: the members of what a provider wrote, usage that is reported piece by
 * piece, and the ids of calls. Reading is total: a member of another form than expected is not there.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Random from "effect/Random"
import type * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as ToolCalls from "../../internal/hear/toolCalls.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import * as Response from "../../Response.ts"

/** A text that is not empty. */
export const string = (value: unknown): string | undefined =>
  typeof value === "string" && value !== "" ? value : undefined

export const object = (value: unknown): Json.JsonObject => Json.isObject(value) ? value : {}

/** The objects of a list. */
export const list = (value: unknown): ReadonlyArray<Json.JsonObject> =>
  Array.isArray(value) ? value.filter(Json.isObject) : []

export const number = (value: unknown): number | undefined => typeof value === "number" ? value : undefined

/** A record without the members that have no value. */
export const defined = <A extends object>(record: A): { readonly [Name in keyof A]?: Exclude<A[Name], undefined> } =>
  Object.fromEntries(Object.entries(record).filter(([, value]) => value !== undefined)) as A

/** A record without the members that a provider calls `null`, either. */
export const said = (record: Json.JsonObject): Record<string, unknown> =>
  Object.fromEntries(Object.entries(record).filter(([, value]) => value !== null && value !== undefined))

/** A member that is left out when there is nothing in it. */
export const filled = (key: string, value: object): Json.JsonObject =>
  Object.keys(value).length === 0 ? {} : { [key]: value }

// ---------------------------------------------------------------------------------------------------------------------
// history

/** The calls of a message that this side ran. */
export const ownCalls = ({ toolCalls = [] }: Message.Message): ReadonlyArray<Message.ToolCall> =>
  toolCalls.filter((call) => call.providerExecuted !== true)

/** The arguments of a call. A text that is no JSON object is not sent back: servers refuse the whole history for it. */
export const argumentsOf = ({ arguments: args, rawArguments = "" }: Message.ToolCall): string =>
  Json.wellFormedJson(
    rawArguments.trim() !== "" && ToolCalls.isWhole(ToolCalls.ofText(rawArguments))
      ? rawArguments
      : JSON.stringify(args)
  )

/**
 * The pieces of a text, by their lengths; what is no number has none. Nothing if these are not the lengths of the whole
 * text, which then was changed since.
 */
export const divided = (text: string, lengths: ReadonlyArray<unknown>): ReadonlyArray<string> | undefined => {
  let end = 0
  const pieces = lengths.map((length) => text.slice(end, end += number(length) ?? 0))
  return end === text.length ? pieces : undefined
}

// ---------------------------------------------------------------------------------------------------------------------
// makers: what a server keeps with a message or a call, and the ids that it made, go back to it, and to no other

/** Returns the name of a server as a maker: its host and its port. */
export const serverOf = (baseUrl: string): string => URL.canParse(baseUrl) ? new URL(baseUrl).host : baseUrl

/** Returns `true` if a server made what was kept. What names no maker is for any server: a program wrote it. */
export const isMadeBy = (server: string, kept: Json.JsonObject): boolean => {
  const { server: maker = server } = kept
  return maker === server
}

/** The things that are kept under a protocol's key with the server that made them. */
export interface Kept {
  /** The key of the protocol in metadata. */
  readonly key: string
  /** Returns `true` if fields beside reasoning mean something to one server alone, and not to all of the protocol. */
  readonly isOfServer: (kept: Json.JsonObject) => boolean
}

const withMaker = (metadata: Json.JsonObject | undefined, key: string, server: string): Json.JsonObject => ({
  ...metadata,
  [key]: { ...object(metadata?.[key]), server }
})

/** Returns a test of calls: whether a server made one, under a protocol's key. */
export const isCallOf = (key: string, server: string) => ({ metadata }: Message.ToolCall): boolean => {
  const kept = object(metadata)[key]
  return Json.isObject(kept) && isMadeBy(server, kept)
}

/**
 * The events of a reply with its maker beside what is kept for it, and beside the id of each call for this side, which
 * may get another name in its thread.
 */
export const made = (event: Event.AdapterEvent, { isOfServer, key }: Kept, server: string): Event.AdapterEvent => {
  const call = <
    Call extends { readonly id: string; readonly metadata?: Json.JsonObject; readonly providerExecuted?: boolean }
  >(call: Call): Call =>
    call.providerExecuted === true ? call : { ...call, metadata: withMaker(call.metadata, key, server) }
  const part = (part: Message.Part): Message.Part =>
    part.type === "reasoning" && isOfServer(object(part.metadata?.[key]))
      ? { ...part, metadata: withMaker(part.metadata, key, server) }
      : part
  if (event._tag === "ToolCallCompleted") return call(event)
  if (event._tag !== "MessageCompleted") return event
  const { message } = event
  return {
    ...event,
    message: {
      ...message,
      ...defined({ toolCalls: message.toolCalls?.map(call), reasoning: message.reasoning?.map(part) })
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// names of tools

const longestName = 64

/**
 * The names of a request's tools as a protocol takes them: one that it refuses has underscores in front, as many as no
 * other tool has. Everywhere else a tool has its own name.
 */
export class SentNames {
  private readonly sent = new Map<string, string>()
  private readonly own = new Map<string, string>()

  constructor(legal: RegExp, request: Adapter.Request) {
    const declared = request.tools.map(({ name }) => name)
    const called = request.messages.flatMap(({ name, role, toolCalls = [] }) => [
      ...toolCalls.map((call) => call.name),
      ...(role === "tool" && name !== undefined ? [name] : [])
    ])
    const names = new Set([...declared, ...called])
    for (const name of names) if (!legal.test(name)) this.rename(name, names)
  }

  private rename(name: string, taken: Set<string>): void {
    let sent = name
    do sent = `_${sent}`.slice(0, longestName)
    while (taken.has(sent) && sent !== "_".repeat(longestName))
    taken.add(sent)
    this.sent.set(name, sent)
    this.own.set(sent, name)
  }

  /** The request as it is sent. */
  request(request: Adapter.Request): Adapter.Request {
    if (this.sent.size === 0) return request
    const { toolChoice } = request
    return {
      ...request,
      tools: request.tools.map((tool) => this.renamed(tool, this.sent)),
      messages: request.messages.map((message) => ({
        ...message,
        ...defined({
          name: message.role === "tool" ? this.sent.get(message.name ?? "") : undefined,
          toolCalls: message.toolCalls?.map((call) =>
            call.providerExecuted === true ? call : this.renamed(call, this.sent)
          )
        })
      })),
      ...(typeof toolChoice === "object" ? { toolChoice: this.renamed(toolChoice, this.sent) } : {})
    }
  }

  /** An event of the reply, with the tools' own names. */
  event(event: Event.AdapterEvent): Event.AdapterEvent {
    if (this.own.size === 0) return event
    if (event._tag === "ToolCallStarted" || event._tag === "ToolCallCompleted") return this.renamed(event, this.own)
    if (event._tag !== "MessageCompleted" || event.message.toolCalls === undefined) return event
    const toolCalls = event.message.toolCalls.map((call) => this.renamed(call, this.own))
    return { ...event, message: { ...event.message, toolCalls } }
  }

  private renamed<A extends { readonly name: string }>(named: A, names: ReadonlyMap<string, string>): A {
    const name = names.get(named.name)
    return name === undefined ? named : { ...named, name }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// usage: the latest report of a figure counts, and a report that leaves a figure out or calls it zero takes nothing
// back

/** The usage after another report. A total that the report does not state is the sum of what is known. */
export const mergedUsage = (previous: Response.Usage | null, next: Response.Usage): Response.Usage => {
  const merged = previous === null ? next : {
    ...Response.usage({ ...next, ...figures(previous), ...known(next) }),
    toolUsage: { ...previous.toolUsage, ...next.toolUsage },
    extra: { ...previous.extra, ...next.extra }
  }
  const isTotalStated = next.totalTokens !== null && next.totalTokens !== 0
  if (isTotalStated || merged.inputTokens === null || merged.outputTokens === null) return merged
  return { ...merged, totalTokens: merged.inputTokens + merged.outputTokens }
}

const figures = (usage: Response.Usage): Readonly<Record<string, unknown>> =>
  Object.fromEntries(Object.entries(usage).filter(([, value]) => typeof value === "number"))

const known = (usage: Response.Usage): Readonly<Record<string, unknown>> =>
  Object.fromEntries(Object.entries(figures(usage)).filter(([, value]) => value !== 0))

// ---------------------------------------------------------------------------------------------------------------------
// ids of calls

const hexadecimal = (value: number, digits: number): string => value.toString(16).padStart(digits, "0")

/** Makes ids for calls that came without one: `call_` and a UUID of version 7, without its hyphens. */
export const idMaker: Effect.Effect<() => string> = Effect.gen(function*() {
  const time = hexadecimal(yield* Clock.currentTimeMillis, 12)
  const high = hexadecimal(yield* Random.nextIntBetween(0x8000, 0xbfff), 4)
  const low = yield* Random.nextIntBetween(0, 2 ** 48 - 1)
  let count = 0
  return () => {
    const serial = `7${hexadecimal(count % 4096, 3)}${high}${hexadecimal((low + count) % 2 ** 48, 12)}`
    count++
    return `call_${time}${serial}`
  }
})

/** The form that a server demands of the ids that it did not make. */
export interface IdRules {
  /** The characters that an id may not hold. Any character without. */
  readonly illegal?: RegExp
  /** The replacement of an illegal character. */
  readonly filler?: string
  /** The length that an id may have. That which every server takes by default. */
  readonly longest?: number
  /** `true` if each id has the longest length. Its end counts then, since ids begin alike. */
  readonly isExact?: boolean
  /** `true` if a thread may hold an id twice. */
  readonly mayRepeat: boolean
}

/** Letters, digits, underscores and hyphens, in the length that every server takes. */
export const wordIds: IdRules = { illegal: /[^A-Za-z0-9_-]/g, filler: "_", mayRepeat: false }

/** Nine letters and digits. */
export const nineIds: IdRules = { illegal: /[^A-Za-z0-9]/g, filler: "", longest: 9, isExact: true, mayRepeat: false }

/** The id that the wire gave a call: its own, unless that was taken in its thread. */
export const wireIdOf = ({ id, metadata }: Pick<Message.ToolCall, "id" | "metadata">): string =>
  string(object(metadata)["duplicateOf"]) ?? id

/** The calls of a message, found by what the wire called them, in call order. A thread may give a call another id. */
export class CallsByWireId {
  private readonly calls: Set<Message.ToolCall>
  private readonly byWireId = new Map<string, Array<Message.ToolCall>>()

  constructor(calls: ReadonlyArray<Message.ToolCall>) {
    this.calls = new Set(calls)
    for (const call of calls) {
      const others = this.byWireId.get(wireIdOf(call))
      if (others === undefined) this.byWireId.set(wireIdOf(call), [call])
      else others.push(call)
    }
  }

  /** Takes the first call of an id that was not taken. */
  take(wireId: string): Message.ToolCall | undefined {
    const call = this.byWireId.get(wireId)?.shift()
    if (call !== undefined) this.calls.delete(call)
    return call
  }

  /** The calls that were not taken. */
  get rest(): ReadonlyArray<Message.ToolCall> {
    return [...this.calls]
  }
}

/** An id in the form that a server demands. */
const formed = ({ filler = "", illegal, isExact = false, longest = ToolCalls.longestId }: IdRules, id: string) => {
  const legal = illegal === undefined ? id.toWellFormed() : id.replaceAll(illegal, filler)
  if (isExact) return legal.slice(-longest).padStart(longest, "0")
  return ToolCalls.shortened(legal, longest) || "call"
}

/** Ids of one length, no two of them the same: a number takes the place of an end. */
class ExactIds {
  private readonly length: number
  private readonly taken = new Set<string>()
  /** The latest number, by what the ids with a number begin with. */
  private readonly counts = new Map<string, number>()

  constructor(length: number) {
    this.length = length
  }

  reserve(id: string): void {
    this.taken.add(id)
  }

  take(wanted: string): string {
    if (!this.taken.has(wanted)) {
      this.taken.add(wanted)
      return wanted
    }
    const stem = wanted.slice(0, this.length - 5)
    let count = this.counts.get(stem) ?? 1
    let id = wanted
    do {
      const digits = String(++count)
      id = wanted.slice(0, this.length - digits.length) + digits
    } while (this.taken.has(id))
    this.counts.set(stem, count)
    this.taken.add(id)
    return id
  }
}

/** The ids of the calls of one id in the latest turn that has some, and the number of those that were answered. */
interface Open {
  readonly sent: Array<string>
  answered: number
}

/**
 * The ids of a thread's calls as they are sent, in the order of the thread. What a server called a call goes back to it
 * unchanged, repeated where the server repeated it. Any other call is sent under its own id, in the form that the
 * server demands. That id is the same for a call and its answer, and in every request of a growing thread; no other
 * call has it, unless the thread repeats an id and the server takes that.
 */
export class SentIds {
  private readonly rules: IdRules
  private readonly isOwn: (call: Message.ToolCall) => boolean
  private readonly unique: Pick<ToolCalls.UniqueIds, "reserve" | "take">
  /** The latest calls of each id in the thread. */
  private readonly latest = new Map<string, Open>()
  /** The formed ids, by the id in the thread, where ids may repeat. */
  private readonly known = new Map<string, string>()

  /** `isOwn` returns `true` for a call that the server made. */
  constructor(rules: IdRules, isOwn: (call: Message.ToolCall) => boolean) {
    this.rules = rules
    this.isOwn = isOwn
    this.unique = rules.isExact === true && rules.longest !== undefined
      ? new ExactIds(rules.longest)
      : new ToolCalls.UniqueIds()
  }

  /** Takes the calls of the next message. Returns a function that gives the id of each, to be asked once a call. */
  turn(calls: ReadonlyArray<Message.ToolCall>): (call: Message.ToolCall) => string {
    const sent = new Map<Message.ToolCall, Array<string>>()
    const open = new Map<string, Open>()
    for (const call of calls) {
      const id = this.sentOf(call, open.has(call.id))
      const ids = sent.get(call)
      if (ids === undefined) sent.set(call, [id])
      else ids.push(id)
      const known = open.get(call.id)
      if (known === undefined) open.set(call.id, { sent: [id], answered: 0 })
      else known.sent.push(id)
    }
    for (const [id, calls] of open) this.latest.set(id, calls)
    return (call) => sent.get(call)?.shift() ?? call.id
  }

  /** The id that the next answer names. Answers to calls of one id are in the order of these. */
  answered(id: string): string {
    const open = this.latest.get(id)
    return open?.sent[Math.min(open.answered++, open.sent.length - 1)] ?? formed(this.rules, id)
  }

  /** Keeps an id that goes back as it is from the calls of others. */
  reserve(id: string): string {
    this.unique.reserve(id)
    return id
  }

  /**
   * A server that takes no id twice did not make calls that have one id in the thread: a program put these together.
   */
  private sentOf(call: Message.ToolCall, isAgain: boolean): string {
    const isOwn = this.isOwn(call)
    const wireId = wireIdOf(call)
    const { mayRepeat } = this.rules
    const isCopy = !mayRepeat && (isAgain || this.latest.has(call.id))
    if (isOwn && wireId.isWellFormed()) return isCopy ? this.unique.take(wireId) : this.reserve(wireId)
    const wanted = formed(this.rules, call.id)
    if (!mayRepeat) return this.unique.take(wanted)
    const sent = this.known.get(call.id) ?? this.unique.take(wanted)
    this.known.set(call.id, sent)
    return sent
  }
}
