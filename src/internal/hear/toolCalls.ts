/**
 * The tool calls of one message while it streams. Fragments are appended to a text and parsed once, when the message
 * has ended. Ids are made unique: a provider that uses one id for two calls gets two calls.
 */
import type * as Types from "effect/Types"
import type * as Message from "../../Message.ts"
import { TextBuffer } from "../fold/textBuffer.ts"
import * as Json from "../json.ts"
import * as Lists from "../lists.ts"
import * as CallArguments from "./callArguments.ts"
import * as CallIds from "./callIds.ts"

interface Entry {
  readonly id: string
  /** The id on the wire, which another call may have as well. */
  readonly wireId: string
  /** The call before it that has the same id on the wire. */
  before: Entry | undefined
  /** How many have that id, up to this one. */
  shared: number
  readonly index: number
  name: string
  arguments: Json.JsonObject
  /** Its arguments, as the wire has sent them so far. */
  raw: TextBuffer
  fragments: number
  isCompleted: boolean
  /** As it was handed out to be run: what it was run with stands. */
  taken: Message.ToolCall | undefined
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
  readonly ending: CallArguments.Ending
}

/** Whether what is said may be said of a call with these arguments. What an adapter leaves out may be `null` as well. */
const isSaidOf = ({ rawArguments }: Completed, { raw }: Entry): boolean => {
  const known = raw.toString()
  return (rawArguments ?? known) === known
}

/** A call that is whole says all there is to read. */
const asItIs: Reading = { parse: false, ending: "broken" }

export class Calls {
  private entries: Array<Entry> = []
  /** The latest of each id on the wire. Most replies have few calls, and do without. */
  private latest: Map<string, Entry> | undefined
  /** The one that the next fragment of an id belongs to, where that is not the latest. */
  private current: Map<string, Entry> | undefined
  /** The ids that were made up here. */
  private madeUp: Set<string> | undefined
  private readonly turn: number

  /** `turn` tells the ids that are made up here from those of other turns of the conversation. */
  constructor(turn = 0) {
    this.turn = turn
  }

  get isEmpty(): boolean {
    return this.entries.length === 0
  }

  /** The ids of the calls, in the order in which they were opened. */
  get ids(): ReadonlyArray<string> {
    return this.entries.map((entry) => entry.id)
  }

  copy(): Calls {
    const copy = new Calls(this.turn)
    const copies = new Map<Entry, Entry>()
    for (const entry of this.entries) {
      const twin = { ...entry, raw: entry.raw.copy() }
      copies.set(entry, twin)
      copy.enter(twin)
    }
    this.current?.forEach((entry, wireId) => copy.turnTo(wireId, copies.get(entry) ?? entry))
    return copy
  }

  /** Makes equal arguments equal, however many fragments came at a time. */
  settle(): void {
    for (const { raw } of this.entries) raw.settle()
  }

  /** The latest call of an id. */
  private latestOf(wireId: string): Entry | undefined {
    if (this.latest !== undefined) return this.latest.get(wireId)
    let index = this.entries.length - 1
    while (index >= 0 && this.entries[index]?.wireId !== wireId) index--
    return this.entries[index]
  }

  /** The latest call of an id of which something is so. */
  private find(wireId: string, isSo: (entry: Entry) => boolean): Entry | undefined {
    let entry = this.latestOf(wireId)
    while (entry !== undefined && !isSo(entry)) entry = entry.before
    return entry
  }

  /** The call that the next fragment of an id belongs to. */
  private currentOf(wireId: string): Entry | undefined {
    return this.current?.get(wireId) ?? this.latestOf(wireId)
  }

  /** From now on fragments of that id are this call's. */
  private turnTo(wireId: string, entry: Entry): void {
    const current = this.current ??= new Map()
    current.set(wireId, entry)
  }

  /** Takes in a call, which the next fragments of its id are for. */
  private enter(entry: Entry): void {
    entry.before = this.latestOf(entry.wireId)
    entry.shared = (entry.before?.shared ?? 0) + 1
    this.entries = Lists.added(this.entries, entry)
    if (this.entries.length === Lists.many) this.latest = new Map(this.entries.map((one) => [one.wireId, one]))
    this.latest?.set(entry.wireId, entry)
    this.current?.delete(entry.wireId)
    if (entry.id === entry.wireId) return
    this.madeUp ??= new Set()
    this.madeUp.add(entry.id)
  }

  private open(wireId: string, name: string): Entry {
    const entry: Entry = {
      id: wireId === "" || this.isUsed(wireId) ? this.freshId(wireId) : wireId,
      wireId,
      before: undefined,
      shared: 1,
      index: this.entries.length,
      name,
      arguments: {},
      raw: new TextBuffer(),
      fragments: 0,
      isCompleted: false,
      taken: undefined,
      argumentsLost: undefined,
      providerExecuted: false,
      metadata: Json.none
    }
    this.enter(entry)
    return entry
  }

  private isUsed(id: string): boolean {
    return this.madeUp?.has(id) === true || this.find(id, (entry) => entry.id === id) !== undefined
  }

  private freshId(wireId: string): string {
    const base = wireId === "" ? `call_${this.turn}` : wireId
    const shared = this.latestOf(wireId)?.shared ?? 0
    let count = Math.max(wireId === "" ? 1 : 2, shared + 1)
    while (this.isUsed(CallIds.numbered(base, count))) count++
    return CallIds.numbered(base, count)
  }

  /** The latest call of an id that may go by that name and is, or is not, completed. */
  private named(wireId: string, name: string, isCompleted: boolean): Entry | undefined {
    let entry = this.latestOf(wireId)
    while (entry !== undefined && (entry.isCompleted !== isCompleted || (entry.name !== name && entry.name !== ""))) {
      entry = entry.before
    }
    return entry
  }

  /** A header. It is new, or sent again for a call that is still open; then the next fragments are that call's. */
  started(wireId: string, name: string): boolean {
    const entry = this.named(wireId, name, false)
    if (entry === undefined) {
      this.open(wireId, name)
      return true
    }
    if (entry.name === name && entry === this.currentOf(wireId)) return false
    entry.name = name
    this.turnTo(wireId, entry)
    return true
  }

  delta(wireId: string, fragment: string): boolean {
    const entry = this.currentOf(wireId) ?? this.open(wireId, "")
    if (entry.isCompleted) return false
    entry.raw.add(fragment)
    entry.fragments++
    return true
  }

  /** The call that an event has made final, to be run before the message has ended, and its position. Once per call. */
  take(event: Completed): { readonly index: number; readonly call: Message.ToolCall } | undefined {
    const entry = this.find(
      event.id,
      (one) =>
        one.isCompleted && one.taken === undefined && !one.providerExecuted && one.name === event.name &&
        isSaidOf(event, one)
    )
    if (entry === undefined) return undefined
    entry.taken = toToolCall(entry, asItIs)
    return { index: entry.index, call: entry.taken }
  }

  /** Gives a call back that was taken and not run. */
  giveBack(index: number): void {
    const entry = this.entries[index]
    if (entry !== undefined) entry.taken = undefined
  }

  isTaken(index: number): boolean {
    return this.entries[index]?.taken !== undefined
  }

  completed(call: Completed): void {
    const { id, name } = call
    const known = this.named(id, name, false) ?? this.named(id, name, true)
    if (known?.taken !== undefined && isSaidOf(call, known)) return
    const entry = known?.taken !== undefined || known === undefined ? this.open(id, name) : known
    const told = CallArguments.ofValue(call.arguments ?? {})
    entry.name = name
    entry.arguments = told.arguments
    if (call.rawArguments !== undefined && call.rawArguments !== null) entry.raw = new TextBuffer(call.rawArguments)
    entry.isCompleted = true
    entry.argumentsLost = told.argumentsLost ?? call.argumentsLost
    entry.providerExecuted = call.providerExecuted === true
    entry.metadata = Json.isObject(call.metadata) ? call.metadata : Json.none
  }

  /** What the wire attached to calls after they were final, as the whole message tells it. */
  describe(calls: unknown): void {
    if (!Array.isArray(calls)) return
    for (const call of calls) {
      if (!Json.isObject(call) || !Json.isObject(call["metadata"])) continue
      const entry = this.find(String(call["id"]), ({ name }) => name === call["name"])
      if (entry === undefined) continue
      entry.metadata = { ...entry.metadata, ...call["metadata"] }
      if (entry.taken !== undefined) entry.taken = toToolCall(entry, asItIs)
    }
  }

  toToolCalls(reading: Reading): ReadonlyArray<Message.ToolCall> {
    return this.entries.map((entry) => entry.taken ?? toToolCall(entry, reading))
  }
}

/** Arguments of a call that the wire never completed. What the token limit ended was cut there. */
const unfinished = (entry: Entry, raw: string, { ending, parse }: Reading): CallArguments.Arguments => {
  if (!parse) return { arguments: entry.arguments }
  if (ending === "truncated") return CallArguments.lost("truncated")
  return CallArguments.atEnd(raw, entry.fragments > 0, ending)
}

const toToolCall = (entry: Entry, reading: Reading): Message.ToolCall => {
  const { id, name, providerExecuted, wireId } = entry
  const rawArguments = entry.raw.toString()
  const { arguments: args, argumentsLost } = entry.isCompleted ? entry : unfinished(entry, rawArguments, reading)
  const metadata = id === wireId || wireId === "" ? entry.metadata : { duplicateOf: wireId, ...entry.metadata }
  // Most have both: what is added to an object afterwards is kept in another one beside it.
  const call: Types.Mutable<Message.ToolCall> = rawArguments === ""
    ? { id, name, arguments: args, metadata }
    : { id, name, arguments: args, metadata, rawArguments }
  if (argumentsLost !== undefined) call.argumentsLost = argumentsLost
  if (providerExecuted) call.providerExecuted = providerExecuted
  return call
}
