/**
 * The tool calls of one message while it streams. Fragments are appended to a text and parsed once, when the message
 * has ended. Ids are made unique: a provider that uses one id for two calls gets two calls.
 */
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import type * as Message from "../Message.ts"
import * as Json from "./json.ts"

interface Entry {
  readonly id: string
  name: string
  arguments: Json.JsonObject
  raw: string
  fragments: number
  isCompleted: boolean
  argumentsLost: Message.ArgumentsLost | undefined
  providerExecuted: boolean
  metadata: Json.JsonObject
}

/** What an adapter says of a completed call. */
export interface Completed {
  readonly id: string
  readonly name: string
  readonly arguments?: Json.JsonObject | null
  readonly rawArguments?: string
  readonly argumentsLost?: Message.ArgumentsLost
  readonly providerExecuted?: boolean
  readonly metadata?: Json.JsonObject
}

/** How unfinished calls are read when the message has ended. */
export interface Reading {
  readonly parse: boolean
  readonly isTruncated: boolean
}

export class Calls {
  /** By the id on the wire: the entry that its next fragment belongs to. */
  private readonly current = new Map<string, Entry>()
  private readonly entries: Array<Entry> = []

  get size(): number {
    return this.entries.length
  }

  /** The position of each call, by its id. */
  order(): ReadonlyMap<string, number> {
    return new Map(this.entries.map((entry, index) => [entry.id, index]))
  }

  copy(): Calls {
    const copy = new Calls()
    const copies = new Map(this.entries.map((entry) => [entry, { ...entry }]))
    copies.forEach((entry) => copy.entries.push(entry))
    this.current.forEach((entry, id) => copy.current.set(id, copies.get(entry) ?? entry))
    return copy
  }

  private open(id: string, name: string): Entry {
    const first = this.current.get(id)
    const entry: Entry = {
      id: first === undefined ? id : this.freshId(id),
      name,
      arguments: {},
      raw: "",
      fragments: 0,
      isCompleted: false,
      argumentsLost: undefined,
      providerExecuted: false,
      metadata: first === undefined ? {} : { duplicateOf: id }
    }
    this.entries.push(entry)
    this.current.set(id, entry)
    return entry
  }

  private freshId(id: string): string {
    let count = 2
    while (this.entries.some((entry) => entry.id === `${id}_${count}`)) count++
    return `${id}_${count}`
  }

  started(id: string, name: string): boolean {
    const entry = this.current.get(id)
    if (entry === undefined || entry.isCompleted || (entry.name !== "" && entry.name !== name)) this.open(id, name)
    else if (entry.name === "") entry.name = name
    else return false
    return true
  }

  delta(id: string, fragment: string): void {
    const entry = this.current.get(id) ?? this.open(id, "")
    entry.raw += fragment
    entry.fragments++
  }

  completed(call: Completed): void {
    const known = this.current.get(call.id)
    const isOther = known !== undefined && known.name !== "" && known.name !== call.name
    const entry = known === undefined || isOther ? this.open(call.id, call.name) : known
    entry.name = call.name
    entry.arguments = call.arguments ?? {}
    entry.raw = call.rawArguments ?? entry.raw
    entry.isCompleted = true
    entry.argumentsLost = call.argumentsLost
    entry.providerExecuted = call.providerExecuted ?? false
    entry.metadata = { ...entry.metadata, ...call.metadata }
  }

  toToolCalls(reading: Reading): ReadonlyArray<Message.ToolCall> {
    return this.entries.map((entry) => toToolCall(entry, reading))
  }
}

type Arguments = Pick<Message.ToolCall, "arguments" | "argumentsLost">

const lost = (reason: Message.ArgumentsLost): Arguments => ({ arguments: {}, argumentsLost: reason })

/** Arguments of a call that the wire never completed. */
const unfinished = (entry: Entry, reading: Reading): Arguments => {
  if (!reading.parse) return { arguments: entry.arguments }
  if (reading.isTruncated) return lost("truncated")
  if (entry.fragments === 0) return lost("missing_fragments")
  const parsed = Json.parseObject(entry.raw)
  if (Option.isSome(parsed)) return { arguments: parsed.value }
  return lost(Result.isSuccess(Json.parse(entry.raw)) ? "not_an_object" : "json_decode_error")
}

const toToolCall = (entry: Entry, reading: Reading): Message.ToolCall => {
  const args: Arguments = entry.isCompleted
    ? {
      arguments: entry.arguments,
      ...(entry.argumentsLost === undefined ? {} : { argumentsLost: entry.argumentsLost })
    }
    : unfinished(entry, reading)
  return {
    id: entry.id,
    name: entry.name,
    ...args,
    ...(entry.raw === "" ? {} : { rawArguments: entry.raw }),
    ...(entry.providerExecuted ? { providerExecuted: true } : {}),
    metadata: entry.metadata
  }
}
