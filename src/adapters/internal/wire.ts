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
  /** The rules by which an id is rewritten for other servers: one that they would change is kept with its maker. */
  readonly ids: IdRules
  /** Returns `true` if fields that are kept mean something to one server alone, and not to all of the protocol. */
  readonly isOfServer: (kept: Json.JsonObject) => boolean
}

const withMaker = (metadata: Json.JsonObject | undefined, key: string, server: string): Json.JsonObject => ({
  ...metadata,
  [key]: { ...object(metadata?.[key]), server }
})

/** The events of a reply with its maker beside what is kept for it. */
export const made = (event: Event.AdapterEvent, { ids, isOfServer, key }: Kept, server: string): Event.AdapterEvent => {
  const call = <Call extends { readonly id: string; readonly metadata?: Json.JsonObject }>(call: Call): Call =>
    isOfServer(object(call.metadata?.[key])) || plain(ids, call.id) !== call.id
      ? { ...call, metadata: withMaker(call.metadata, key, server) }
      : call
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

/** The rules of a protocol for ids that its servers did not make. */
export interface IdRules {
  /** The characters that an id may hold, if not anything: the rest becomes underscores. */
  readonly letters?: "word"
  /** The length that it may have, if not as long as every server takes it. */
  readonly longest?: number
  /** `true` if a thread may hold an id twice, as it does where a provider begins anew with every turn. */
  readonly mayRepeat: boolean
}

/** An id as any server of a protocol takes it. */
const plain = ({ letters, longest = ToolCalls.longestId }: IdRules, id: string): string => {
  const legal = letters === undefined ? id.toWellFormed() : id.replaceAll(/[^A-Za-z0-9_-]/g, "_") || "call"
  return ToolCalls.shortened(legal, longest)
}

/**
 * The ids of a thread's calls as they are sent, in the order of the thread: an id of another server that this one may
 * refuse becomes another one, which is the same for a call and its answer and in every request, and no other call's.
 */
export class SentIds {
  private readonly rules: IdRules
  private readonly unique = new ToolCalls.UniqueIds()
  /** The sent id of the latest call of each id in the thread. */
  private readonly latest = new Map<string, string>()
  /** The ids that stand for others, by the id that was wanted and the one in the thread, where ids may repeat. */
  private readonly known = new Map<string, string>()

  constructor(rules: IdRules) {
    this.rules = rules
  }

  /** The id of a call. One that the server made itself goes back as it is. */
  called(id: string, isKept = false): string {
    const wanted = isKept && id.isWellFormed() ? id : plain(this.rules, id)
    const sent = this.rules.mayRepeat ? this.repeated(wanted, id) : this.unique.take(wanted)
    this.latest.set(id, sent)
    return sent
  }

  /** The id that an answer names. */
  answered(id: string): string {
    return this.latest.get(id) ?? plain(this.rules, id)
  }

  /** Keeps an id that goes back as it is from every other call. */
  reserve(id: string): string {
    this.unique.take(id)
    return id
  }

  private repeated(wanted: string, id: string): string {
    const pair = JSON.stringify([wanted, id])
    const sent = this.known.get(pair) ?? this.unique.take(wanted)
    this.known.set(pair, sent)
    return sent
  }
}
