/**
 * Gathers tool calls from a reply. Each call gets an id unique within the reply. Argument fragments are appended to a
 * text and parsed once final; arguments that did not arrive whole are marked as lost, never guessed. `WireCalls`
 * gathers for adapters and bridges, which emit events. `EventCalls` gathers from these events, for the fold. A text is
 * parsed at most three times, so the work is linear in the fragments.
 */
import * as Result from "effect/Result"
import type * as Types from "effect/Types"
import type * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"
import * as Json from "../json.ts"

// ---------------------------------------------------------------------------------------------------------------------
// arguments

/** Deepest nesting of arguments, counting the object itself. Deeper values overflow the stack of recursive readers. */
export const deepest = 256

/** Arguments of a call. Lost arguments read as an empty object. */
export type Arguments = Pick<Message.ToolCall, "arguments" | "argumentsLost">

const lost = (reason: Message.ArgumentsLost): Arguments => ({ arguments: {}, argumentsLost: reason })

export const isWhole = ({ argumentsLost }: Arguments): boolean => argumentsLost === undefined

/** Returns `true` if no further fragment can complete the text: it parses, or fails only by its depth. */
const isFinal = ({ argumentsLost }: Arguments): boolean => argumentsLost === undefined || argumentsLost === "too_deep"

/** Ending of a reply: well, at the token limit, or broken by another cause. */
export type Ending = "whole" | "truncated" | "broken"

/** Returns the ending for a finish reason, in a reply with a known end. */
export const endingOf = (finishReason: Response.FinishReason | null): Ending => {
  if (finishReason === "length") return "truncated"
  return finishReason === "error" || finishReason === "content_filter" ? "broken" : "whole"
}

/** Checks arguments parsed elsewhere. */
export const ofValue = (value: unknown): Arguments => {
  if (!Json.isObject(value)) return lost("not_an_object")
  return Json.isDeeper(value, deepest) ? lost("too_deep") : { arguments: value }
}

/** Parses the arguments in a whole text. An empty text is a call without parameters. */
export const ofText = (text: string): Arguments => {
  if (text.trim() === "") return { arguments: {} }
  const parsed = Json.parse(Json.wellFormedJson(text))
  if (Result.isFailure(parsed)) return lost("json_decode_error")
  // Every level takes two characters.
  return text.length <= 2 * deepest && Json.isObject(parsed.success)
    ? { arguments: parsed.success }
    : ofValue(parsed.success)
}

/** Normalizes a provider's argument text: some write `null` for a call without arguments. */
const written = (text: string): string => text.trim() === "null" ? "" : text

/** Scanner state at the end of a JSON text: open braces, and whether a string or an escape is open. */
interface Scan {
  depth: number
  isInString: boolean
  isEscaped: boolean
}

/** Arguments of a call before they are final. */
interface Begun extends Scan {
  /** Arguments received so far. */
  text: string
  /** `true` if any fragment came, even an empty string. */
  isObserved: boolean
  /** Text format by its first character: an object or its JSON string, or anything else. */
  form: "none" | "json" | "other"
  /** `true` once the braces are balanced. Later text repeats or contradicts the whole text. */
  isWhole: boolean
  /** `true` once other text follows whole arguments. */
  isSpoiled: boolean
  /** Text after the whole arguments, as long as it is incomplete. */
  again: string
}

const begun = (): Begun => ({
  text: "",
  isObserved: false,
  form: "none",
  isWhole: false,
  isSpoiled: false,
  again: "",
  depth: 0,
  isInString: false,
  isEscaped: false
})

const marks = /["\\{}]/g

/**
 * Returns the position after the object or string ending in a piece of its text, or -1. Each piece is scanned once.
 */
const endIn = (scan: Scan, piece: string): number => {
  if (piece === "") return -1
  marks.lastIndex = scan.isEscaped ? 1 : 0
  scan.isEscaped = false
  for (let at = marks.exec(piece); at !== null; at = marks.exec(piece)) {
    const [mark] = at
    if (mark === "\\") {
      if (at.index + 1 === piece.length) scan.isEscaped = true
      else marks.lastIndex = at.index + 2
      continue
    }
    if (mark === "\"") scan.isInString = !scan.isInString
    else if (!scan.isInString) scan.depth += mark === "{" ? 1 : -1
    if (scan.depth === 0 && !scan.isInString) return at.index + 1
  }
  return -1
}

/** Start of an object or a JSON string. */
const opening = /^\s*["{]/

const isBlank = (text: string): boolean => text.trim() === ""

/**
 * Appends a fragment and returns its new part. Some servers repeat whole arguments, also as a JSON string, or begin
 * with `{}`. Equal arguments are dropped, and `{}` gives way to later arguments. Any other text after whole arguments
 * makes both unreadable, since nothing shows which of the two are meant.
 */
const append = (call: Begun, fragment: string): string => {
  call.isObserved = true
  if (call.isWhole) return repeat(call, fragment)
  if (call.form === "other" && call.text.length < 64 && written(call.text) === "" && opening.test(fragment)) reset(call)
  if (call.form === "none" && !isBlank(fragment)) call.form = opening.test(fragment) ? "json" : "other"
  const end = call.form === "json" ? endIn(call, fragment) : -1
  if (end < 0) {
    call.text += fragment
    return fragment
  }
  const own = fragment.slice(0, end)
  call.text += own
  call.isWhole = true
  return own + repeat(call, fragment.slice(end))
}

/** Reads a fragment after whole arguments. */
const repeat = (call: Begun, fragment: string): string => {
  const rest = unrepeated(call, fragment, (whole) => isRepeated(call, whole))
  if (!isBlank(rest)) spoil(call)
  call.text += rest
  return rest
}

/**
 * Returns the rest of a fragment from the first text that is not a repetition, or `""` while a repetition is
 * incomplete.
 */
const unrepeated = (call: Begun, fragment: string, isKnown: (whole: string) => boolean): string => {
  let rest = fragment
  while (call.again !== "" || opening.test(rest)) {
    const end = endIn(call, rest)
    if (end < 0) {
      call.again += rest
      return ""
    }
    const whole = call.again + rest.slice(0, end)
    rest = rest.slice(end)
    call.again = ""
    if (!isKnown(whole)) return whole + rest
  }
  return rest
}

/** Returns `true` if whole arguments may follow those of a call. They replace `{}`. */
const isRepeated = (call: Begun, whole: string): boolean => {
  if (whole === call.text) return true
  const known = objectIn(call.text)
  const other = objectIn(whole)
  if (known === undefined || other === undefined) return false
  const isEqual = Json.isSame(known, other)
  if (!isEqual && !isEmpty(known)) return false
  if (!isEqual || isString(call.text)) call.text = isString(whole) ? JSON.stringify(other) : whole.trim()
  return true
}

/** Returns `true` if two texts have the same arguments. */
const isEqual = (one: string, other: string): boolean => {
  if (one === other) return true
  const known = objectIn(one)
  return known !== undefined && Json.isSame(known, objectIn(other))
}

const isEmpty = (value: Json.JsonObject): boolean => Object.keys(value).length === 0

const isString = (text: string): boolean => text.trimStart().startsWith("\"")

/** Returns the object in a whole text, or in the JSON string holding such a text. */
const objectIn = (text: string): Json.JsonObject | undefined => {
  const parsed = Result.getOrUndefined(Json.parse(text))
  const value = typeof parsed === "string" ? Result.getOrUndefined(Json.parse(parsed)) : parsed
  return Json.isObject(value) && !Json.isDeeper(value, deepest) ? value : undefined
}

/** Marks the text as invalid JSON. Everything further is appended unparsed. */
const spoil = (call: Begun): void => {
  call.isSpoiled = true
  call.isWhole = false
  call.form = "other"
}

const reset = (call: Begun): void => {
  Object.assign(call, { ...begun(), isObserved: call.isObserved })
}

/** Returns the full argument text, with an incomplete repetition. */
const textOf = ({ again, text }: Begun): string => text + again

/**
 * Returns the arguments for a call still open when its reply ends. A call without any fragment has no arguments,
 * unless the reply was cut.
 */
const atEnd = (text: string, isObserved: boolean, ending: Ending): Arguments => {
  if (!isObserved && ending !== "whole") return lost(ending === "truncated" ? "truncated" : "missing_fragments")
  const found = ofText(text)
  return isFinal(found) || ending !== "truncated" ? found : lost("truncated")
}

// ---------------------------------------------------------------------------------------------------------------------
// ids

/** Length limit for ids made here: some servers refuse longer ids. */
export const longestId = 40

/** Shortens an id without splitting a surrogate pair: a server may refuse half a pair. */
export const shortened = (id: string, length: number): string => {
  const last = id.length > length ? id.charCodeAt(length - 1) : 0
  return id.slice(0, last >= 0xd800 && last < 0xdc00 ? length - 1 : length)
}

/** A set of unique ids. Taking an id costs the same however often it was requested before. */
export class UniqueIds {
  private readonly taken: Set<string>
  /**
   * The lowest number that may be free, by first number, digits, and the characters before them: ids with a common stem
   * share their numbers. Created with the first number.
   */
  private free: Map<string, number> | undefined

  constructor(from?: UniqueIds) {
    this.taken = new Set(from?.taken)
    this.free = from?.free && new Map(from.free)
  }

  /** Takes the id itself, or appends the lowest free number from 2 if the id is in use. */
  take(wanted: string): string {
    if (this.taken.has(wanted)) return this.number(wanted, 2)
    this.taken.add(wanted)
    return wanted
  }

  /** Takes the id with the lowest free number, counting from `first`. */
  number(wanted: string, first: number): string {
    const free = this.free ??= new Map()
    for (let digits = 1;; digits++) {
      const stem = `${shortened(wanted, longestId - 1 - digits)}_`
      const key = `${first} ${digits} ${stem}`
      const end = 10 ** digits
      let number = free.get(key) ?? Math.max(first, end / 10)
      while (number < end && this.taken.has(`${stem}${number}`)) number++
      free.set(key, number)
      if (number < end) return this.take(`${stem}${number}`)
    }
  }

  /** Reserves an id already used elsewhere, unchanged. */
  reserve(id: string): void {
    this.taken.add(id)
  }

  /** Frees ids. */
  release(ids: Iterable<string>): void {
    for (const id of ids) this.taken.delete(id)
    this.free = undefined
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// calls from the wire

/** Reason to distrust a reply that adds to a completed call. */
export const contradiction = "the stream continues a tool call that it had completed"

/** Arrival times, counted in fragments of the reply. `0`: not arrived yet. */
interface Times {
  /** Time of the name. Also `0` if the name came before all fragments. */
  namedAt: number
  /** Time of the first fragment. */
  firstAt: number
  /** Time of the last fragment. */
  lastAt: number
  /** Time of the fragment completing the arguments. */
  wholeAt: number
}

/** A call gathered by an adapter or a bridge. */
export interface Call extends Begun, Times {
  /** Unique id, once the call has a name. Empty until then. */
  id: string
  /** Id from the wire, which another call may share. */
  wireId: string | undefined
  /** Wire id, if another call had already taken that id. */
  duplicateOf: string | undefined
  name: string
  /** `true` if some arguments did not arrive, although everything received parses. */
  isLost: boolean
  /** `true` once the start event was emitted. Until then the name may still grow. */
  isStarted: boolean
  /** `true` if the text was parsed while the call was open. */
  isTried: boolean
  /** `true` if the provider ran the call. */
  isExecuted: boolean
  /** Protocol fields kept with the call, under the protocol's key. */
  metadata: Json.JsonObject
  completed: Message.ToolCall | undefined
}

type CallEvent =
  | { readonly _tag: "ToolCallStarted"; readonly id: string; readonly name: string }
  | { readonly _tag: "ToolCallDelta"; readonly id: string; readonly argumentsDelta: string }
  | { readonly _tag: "ToolCallCompleted" } & Omit<Message.ToolCall, "rawArguments" | "metadata"> & {
    readonly rawArguments: string
    readonly metadata?: Json.JsonObject
  }

/** Event sink: the array emitted by an adapter. */
interface Out {
  push(event: CallEvent): unknown
}

/** Restores the arguments a tool was declared with from arguments under a provider's rewritten schema. */
export type Restore = (name: string, args: Json.JsonObject) => Json.JsonObject

const hasEntries = (record: Json.JsonObject): boolean => Object.keys(record).length > 0

/** The calls in one reply, each completed exactly once. The protocol decides which call a fragment belongs to. */
export class WireCalls {
  /** The calls, in wire order. */
  readonly all: Array<Call> = []
  private readonly makeId: () => string
  private readonly key: string
  private readonly restore: Restore
  private readonly ids = new UniqueIds()
  /** Named calls not started yet, in naming order. */
  private readonly waiting = new Set<Call>()
  /** Calls with arguments but no name. */
  private readonly strays = new Set<Call>()
  /** Fragments since the first nameless call with arguments, and the text each call had before. */
  private sinceStray:
    | { readonly before: ReadonlyMap<Call, string>; readonly fragments: Array<[Call, string]> }
    | undefined
  private fragments = 0

  /** `makeId` makes ids for calls without a wire id. `key` is the protocol's key in call metadata. */
  constructor(makeId: () => string, key: string, restore: Restore = (_name, args) => args) {
    this.makeId = makeId
    this.key = key
    this.restore = restore
  }

  /** `true` if some arguments found no call. */
  get hasStrays(): boolean {
    return this.strays.size > 0
  }

  /** The completed calls, in order. */
  get completed(): ReadonlyArray<Message.ToolCall> {
    return this.all.flatMap((call) => call.completed === undefined ? [] : [call.completed])
  }

  /** Opens a call without a name. The call is emitted once named. */
  open(wireId: string | undefined, metadata: Json.JsonObject = {}, isExecuted = false): Call {
    const call: Call = {
      id: "",
      wireId,
      duplicateOf: undefined,
      name: "",
      ...begun(),
      namedAt: 0,
      firstAt: 0,
      lastAt: 0,
      wholeAt: 0,
      isLost: false,
      isStarted: false,
      isTried: false,
      isExecuted,
      metadata,
      completed: undefined
    }
    this.all.push(call)
    return call
  }

  /** Names a call or extends its name. Earlier arguments show that the name is whole. */
  name(call: Call, name: string, out: Out, mayGrow = false): void {
    if (call.id === "") this.identify(call)
    call.name = name
    this.waiting.add(call)
    if (call.text !== "" || !mayGrow) this.start(out)
  }

  private identify(call: Call): void {
    const wanted = call.wireId ?? this.makeId()
    call.id = this.ids.take(wanted)
    if (call.id !== wanted) call.duplicateOf = wanted
    call.namedAt = this.fragments
    this.strays.delete(call)
    if (this.strays.size === 0) this.sinceStray = undefined
  }

  /**
   * Appends a fragment to a call's arguments. Returns `false` for an addition to a completed call: no event order can
   * express that, so the stream is malformed. Completed arguments may be repeated.
   */
  append(call: Call, text: string, out: Out): boolean {
    if (call.completed !== undefined) {
      return call.isWhole
        ? isBlank(unrepeated(call, text, (whole) => isEqual(call.text, whole)))
        : isBlank(text) || text === call.text
    }
    this.note(call, text)
    const { length } = call.text
    const added = append(call, text)
    if (call.isWhole && call.text.length !== length) call.wholeAt = this.fragments
    if (added === "") return true
    if (call.isStarted) out.push({ _tag: "ToolCallDelta", id: call.id, argumentsDelta: added })
    else if (call.id !== "") this.start(out)
    return true
  }

  /** Records a fragment's arrival, and the fragment order while some fragments have no known call. */
  private note(call: Call, text: string): void {
    if (text === "") return
    this.fragments++
    if (call.firstAt > 0 || !isBlank(text)) {
      if (call.firstAt === 0) call.firstAt = this.fragments
      call.lastAt = this.fragments
      if (call.id === "") this.strays.add(call)
    }
    if (this.strays.size === 0) return
    this.sinceStray ??= { before: new Map(this.all.map((one) => [one, textOf(one)])), fragments: [] }
    this.sinceStray.fragments.push([call, text])
  }

  private start(out: Out): void {
    for (const call of this.waiting) {
      call.isStarted = true
      out.push({ _tag: "ToolCallStarted", id: call.id, name: call.name })
    }
    for (const { id, text } of this.waiting) {
      if (text !== "") out.push({ _tag: "ToolCallDelta", id, argumentsDelta: text })
    }
    this.waiting.clear()
  }

  /**
   * Takes in the whole text of a call, repeated by the wire. It adds missing fragments and replaces a different text.
   * Returns `false` if it contradicts a completed call.
   */
  replace(call: Call, text: string, out: Out): boolean {
    if (call.completed !== undefined) {
      return isBlank(text) || call.completed.argumentsLost !== undefined || isEqual(call.text, text)
    }
    const known = textOf(call)
    if (text === "" || (text.length >= known.length && text.startsWith(known))) {
      return this.append(call, text.slice(known.length), out)
    }
    this.overwrite(call, text, out)
    return true
  }

  /**
   * Sets the final arguments of an open call. If they contradict whole arguments, both become unreadable. Emits them
   * only if no fragment came before.
   */
  overwrite(call: Call, text: string, out: Out): void {
    if (call.text === "") this.append(call, text, out)
    else if (call.completed === undefined) {
      const known = call.isWhole ? call.text : ""
      reset(call)
      append(call, known + text)
    }
  }

  /**
   * Returns `true` if a text repeats a call's whole arguments. Empty arguments never count as repeated, since two calls
   * may both be without arguments.
   */
  isSaidAgain(call: Call, text: string): boolean {
    return call.isWhole && isEqual(call.text, text) && !hasNone(call)
  }

  /** Adds metadata to a call, even after its completion: late metadata becomes part of the whole message. */
  describe(call: Call, metadata: Json.JsonObject): void {
    if (!hasEntries(metadata)) return
    call.metadata = { ...call.metadata, ...metadata }
    if (call.completed === undefined) return
    call.completed = { ...call.completed, metadata: { ...call.completed.metadata, [this.key]: call.metadata } }
  }

  /**
   * Completes a call with a whole text, since the wire has moved past the call. Returns whether the call is complete.
   * Each call is tried once.
   */
  settle(call: Call, out: Out): boolean {
    if (call.completed !== undefined) return true
    if (call.isTried || call.id === "" || call.again !== "" || isBlank(call.text) || this.strays.size > 0) return false
    call.isTried = true
    const found = ofText(written(call.text))
    if (!isFinal(found)) return false
    this.complete(call, found, out)
    return true
  }

  /** Settles the previous call when the wire opens another: it is complete if its text is whole. */
  settleLast(out: Out): void {
    const last = this.all.at(-1)
    if (last !== undefined) this.settle(last, out)
  }

  /** Ends a call at the wire's signal, whole or cut. */
  close(call: Call, isCut: boolean, out: Out): void {
    if (call.completed !== undefined || call.id === "") return
    this.complete(call, isCut ? lost("truncated") : ofText(written(textOf(call))), out)
  }

  /**
   * Ends all calls with the reply. If the token limit ended the reply, the last call was cut, even if its text parses:
   * some servers repair a cut text. Earlier calls count if their text is whole. Returns a reason to distrust the calls,
   * if any.
   */
  endAll(ending: Ending, out: Out, last = this.all.at(-1)): string | undefined {
    const taker = this.placeStrays(out)
    const cut = last?.id === "" ? taker ?? last : last
    return this.endEach(ending, (call) => !call.isExecuted && (call === cut || isBlank(call.text)), out)
  }

  /** Ends all calls as `endAll` does, for a protocol reporting which calls the token limit cut. */
  endKnown(ending: Ending, isCut: (call: Call) => boolean, out: Out): string | undefined {
    this.placeStrays(out)
    return this.endEach(ending, isCut, out)
  }

  /**
   * Ends each call. Text after whole arguments may belong to another call sent under the same number, so, unless the
   * reply was cut, a call without arguments counts as lost.
   */
  private endEach(ending: Ending, isCut: (call: Call) => boolean, out: Out): string | undefined {
    const isMixed = ending !== "truncated" &&
      this.all.some(({ completed, isSpoiled }) => isSpoiled && completed === undefined)
    for (const call of this.all) {
      call.isLost ||= isMixed && !call.isExecuted && isBlank(textOf(call))
      this.end(call, ending, ending === "truncated" && isCut(call), out)
    }
    return this.problem
  }

  /** Ends a possibly open call with the reply. */
  end(call: Call, ending: Ending, isCut: boolean, out: Out): void {
    if (call.completed !== undefined || call.id === "") return
    if (isCut) return this.complete(call, lost("truncated"), out)
    const found = call.isLost ? lost("missing_fragments") : atEnd(written(textOf(call)), call.isObserved, ending)
    this.complete(call, found, out)
  }

  /** A reason to distrust the calls, if any: the wire began other arguments for a completed call. */
  private get problem(): string | undefined {
    return this.all.every(({ again, text }) =>
        text.startsWith(again.trim()) || JSON.stringify(text).startsWith(again.trim())
      )
      ? undefined
      : contradiction
  }

  /**
   * Assigns arguments without a call at the end of the reply. They came under another number, or before a name that
   * never arrived. They belong to the only call able to take them. With several candidates, all of these count as lost.
   * A call open at that time which got other arguments later may hold another call's arguments, as may every later
   * call: all these count as lost too. Returns the call given the arguments.
   */
  private placeStrays(out: Out): Call | undefined {
    const strays = [...this.strays]
    this.strays.clear()
    if (strays.length === 0) return undefined
    const takers = this.all.filter((call) => strays.some((stray) => mayTake(call, stray)))
    const first = strays[0]?.firstAt ?? 0
    const isShifted = this.all.some((call) =>
      call.id !== "" && call.namedAt < first && call.firstAt > first && !takers.includes(call)
    )
    const doubted = isShifted ? this.all.filter(({ firstAt }) => firstAt > first) : []
    const [taker] = takers
    if (taker !== undefined && takers.length === 1 && !isShifted) {
      this.give(taker, strays, out)
      return taker
    }
    for (const call of [...takers, ...doubted]) call.isLost = true
    return undefined
  }

  /** Gives stray arguments to a call, in wire order. They replace `{}`, wherever that stands. */
  private give(call: Call, strays: ReadonlyArray<Call>, out: Out): void {
    const { before, fragments } = this.sinceStray ?? { before: new Map<Call, string>(), fragments: [] }
    const isReplaced = call.isWhole && hasNone(call)
    const parts = new Set(isReplaced ? strays : [call, ...strays])
    const text = fragments.filter(([one]) => parts.has(one)).map(([, fragment]) => fragment).join("")
    const known = isReplaced ? "" : before.get(call) ?? ""
    if (isBlank(textOf(call))) return void this.append(call, text, out)
    reset(call)
    append(call, known + text)
  }

  complete(call: Call, args: Arguments, out: Out): void {
    if (!call.isStarted) this.start(out)
    call.text = textOf(call)
    call.again = ""
    const { duplicateOf, id, isExecuted, metadata: own, name, text } = call
    const common = {
      id,
      name,
      rawArguments: text,
      ...args,
      arguments: isWhole(args) && !isExecuted ? this.restore(name, args.arguments) : args.arguments,
      ...(isExecuted ? { providerExecuted: true } : {})
    }
    const metadata = {
      ...(duplicateOf === undefined ? {} : { duplicateOf }),
      ...(hasEntries(own) ? { [this.key]: own } : {})
    }
    call.completed = { ...common, metadata }
    out.push({ _tag: "ToolCallCompleted", ...common, ...(hasEntries(metadata) ? { metadata } : {}) })
  }
}

/**
 * Returns `true` if stray arguments may belong to a call: the call is open and has no arguments, or grew while the
 * strays came. `{}` counts as no arguments for a call open at that time.
 */
const mayTake = (call: Call, stray: Call): boolean => {
  if (call.id === "" || call.isExecuted || call.completed !== undefined) return false
  const wasOpen = call.namedAt < stray.lastAt || call.wholeAt < stray.firstAt
  if (!call.isWhole || (wasOpen && hasNone(call))) return true
  return call.firstAt < call.wholeAt && stray.firstAt < call.wholeAt && stray.lastAt > call.firstAt
}

const hasNone = ({ text }: Begun): boolean => {
  const known = objectIn(text)
  return known !== undefined && isEmpty(known)
}

// ---------------------------------------------------------------------------------------------------------------------
// calls from events

/** A call gathered by the fold. */
interface Entry extends Begun {
  readonly id: string
  /** Event id, which another call may share. */
  readonly eventId: string
  readonly index: number
  name: string
  /** Final arguments, once known. */
  final: Arguments | undefined
  /** The call as handed out for running. */
  taken: Message.ToolCall | undefined
  isExecuted: boolean
  metadata: Json.JsonObject
}

/** The calls sharing one event id, and the call the next fragment belongs to. */
interface Namesakes {
  readonly entries: Array<Entry>
  current: Entry
}

/** Fields reported by an adapter for a completed call. */
export interface Completed {
  readonly id: string
  readonly name: string
  readonly arguments?: Json.JsonObject | null
  readonly rawArguments?: string
  readonly argumentsLost?: Message.ArgumentsLost
  readonly providerExecuted?: boolean
  readonly metadata?: Json.JsonObject
}

/** A call event. */
interface Named {
  readonly _tag: string
  readonly id: string
  readonly metadata?: unknown
}

/** The way to read unfinished calls at the end of a message. */
export interface Reading {
  readonly parse: boolean
  readonly ending: Ending
}

/** Returns `true` if the reported argument text matches the call. An omitted field may also be `null`. */
const isSaidOf = ({ rawArguments }: Completed, { text }: Entry): boolean => (rawArguments ?? text) === text

/**
 * The calls in one message, gathered from any adapter's events: ids may repeat, headers may be missing, and a call may
 * be completed again until taken for running.
 */
export class EventCalls {
  private readonly entries: Array<Entry> = []
  /** Positions of the provider's own calls. */
  private readonly executed: Array<number> = []
  private readonly byEventId = new Map<string, Namesakes>()
  private readonly byId = new Map<string, Entry>()
  private readonly turn: number
  private readonly idsBefore: (() => UniqueIds) | undefined
  private unique: UniqueIds | undefined
  /** The call of the latest event. */
  private latest: Entry | undefined

  /**
   * `turn` sets ids made here apart from those in other turns. `idsBefore` returns the conversation's call ids, joined
   * by the ids of these calls. It runs at the first call.
   */
  constructor(turn = 0, idsBefore?: () => UniqueIds) {
    this.turn = turn
    this.idsBefore = idsBefore
  }

  get isEmpty(): boolean {
    return this.entries.length === 0
  }

  /** `true` if any call has a name. */
  get hasNamed(): boolean {
    return this.entries.some(({ name }) => name !== "")
  }

  /** Call ids, in opening order. */
  get ids(): ReadonlyArray<string> {
    return this.entries.map((entry) => entry.id)
  }

  copy(): EventCalls {
    const copy = new EventCalls(this.turn, this.idsBefore)
    copy.unique = this.unique && new UniqueIds(this.unique)
    for (const entry of this.entries) copy.enter({ ...entry })
    copy.executed.push(...this.executed)
    for (const [eventId, { current }] of this.byEventId) {
      const twin = copy.entries[current.index]
      if (twin !== undefined) copy.turnTo(eventId, twin)
    }
    return copy
  }

  private open(eventId: string, name: string): Entry {
    const ids = this.unique ??= this.idsBefore?.() ?? new UniqueIds()
    const entry: Entry = {
      id: eventId === "" ? ids.number(`call_${this.turn}`, 1) : ids.take(eventId),
      eventId,
      index: this.entries.length,
      name,
      ...begun(),
      final: undefined,
      taken: undefined,
      isExecuted: false,
      metadata: Json.none
    }
    this.enter(entry)
    return entry
  }

  private enter(entry: Entry): void {
    this.entries.push(entry)
    this.byId.set(entry.id, entry)
    const namesakes = this.byEventId.get(entry.eventId)
    if (namesakes === undefined) this.byEventId.set(entry.eventId, { entries: [entry], current: entry })
    else {
      namesakes.entries.push(entry)
      namesakes.current = entry
    }
  }

  /** Assigns further fragments with that id to this call. */
  private turnTo(eventId: string, entry: Entry): void {
    const namesakes = this.byEventId.get(eventId)
    if (namesakes !== undefined) namesakes.current = entry
  }

  /** Finds the latest call with an id fulfilling a condition. */
  private find(eventId: string, isSo: (entry: Entry) => boolean): Entry | undefined {
    return this.byEventId.get(eventId)?.entries.findLast(isSo)
  }

  /** Finds the latest call with an id, a matching name and the given completion state. */
  private latestOf(eventId: string, name: string, isCompleted: boolean): Entry | undefined {
    return this.find(
      eventId,
      (entry) => (entry.final !== undefined) === isCompleted && (entry.name === name || entry.name === "")
    )
  }

  /**
   * Takes in a header: a new one, or a repeated one for a call still open, which then gets the next fragments. Returns
   * whether anything changed.
   */
  started(eventId: string, name: string): boolean {
    const entry = this.latestOf(eventId, name, false)
    if (entry === undefined) {
      this.latest = this.open(eventId, name)
      return true
    }
    this.latest = entry
    if (entry.name === name && entry === this.byEventId.get(eventId)?.current) return false
    entry.name = name
    this.turnTo(eventId, entry)
    return true
  }

  /** Takes in a fragment. Returns whether anything changed. */
  delta(eventId: string, fragment: string): boolean {
    const entry = this.byEventId.get(eventId)?.current ?? this.open(eventId, "")
    this.latest = entry
    if (entry.final !== undefined) return false
    append(entry, fragment)
    return true
  }

  /**
   * Takes a call, made final by an event with its own id, for running before the message ends. Returns the call, its
   * position, and its place among the calls to answer. Works once per call.
   */
  take(
    event: Completed
  ): { readonly index: number; readonly place: number; readonly call: Message.ToolCall } | undefined {
    const entry = this.byId.get(event.id)
    if (entry?.final === undefined || entry.taken !== undefined || entry.isExecuted) return undefined
    if (entry.name !== event.name || !isSaidOf(event, entry)) return undefined
    entry.taken = toToolCall(entry, entry.final)
    const { index } = entry
    return { index, place: index - this.executed.filter((other) => other < index).length, call: entry.taken }
  }

  /** Returns the latest event under its call's own id. An event without a call is returned unchanged. */
  withOwnId<E extends Named>(event: E): E {
    const { latest } = this
    this.latest = undefined
    if (latest === undefined || latest.id === event.id) return event
    return event._tag === "ToolCallCompleted"
      ? { ...event, id: latest.id, metadata: metadataOf(latest, event.metadata) }
      : { ...event, id: latest.id }
  }

  /** Frees the ids of a discarded reply. */
  discard(): void {
    this.unique?.release(this.byId.keys())
  }

  /** Takes back a call that was taken but not run. */
  giveBack(index: number): void {
    const entry = this.entries[index]
    if (entry !== undefined) entry.taken = undefined
  }

  isTaken(index: number): boolean {
    return this.entries[index]?.taken !== undefined
  }

  completed(call: Completed): void {
    const { id, name } = call
    const known = this.latestOf(id, name, false) ?? this.latestOf(id, name, true)
    this.latest = known
    if (known?.taken !== undefined && isSaidOf(call, known)) return
    const entry = known === undefined || known.taken !== undefined ? this.open(id, name) : known
    this.latest = entry
    const given = ofValue(call.arguments ?? {})
    const argumentsLost = given.argumentsLost ?? call.argumentsLost
    entry.name = name
    entry.text = call.rawArguments ?? textOf(entry)
    entry.again = ""
    entry.final = argumentsLost === undefined ? given : { arguments: given.arguments, argumentsLost }
    if (call.providerExecuted === true && !entry.isExecuted) this.executed.push(entry.index)
    entry.isExecuted = call.providerExecuted === true
    entry.metadata = Json.isObject(call.metadata) ? call.metadata : Json.none
  }

  /** Returns a whole message's calls under their own ids: the nth call with an id is the nth opened by its events. */
  named(calls: ReadonlyArray<Message.ToolCall>): ReadonlyArray<Message.ToolCall> {
    const places = new Map<Namesakes, number>()
    return calls.map((call) => {
      const namesakes = Json.isObject(call) ? this.byEventId.get(call.id) : undefined
      if (namesakes === undefined) return call
      const { entries } = namesakes
      let place = places.get(namesakes) ?? 0
      while (place < entries.length && entries[place]?.name !== call.name) place++
      const entry = entries[place]
      if (entry === undefined) return call
      places.set(namesakes, place + 1)
      return entry.id === call.id ? call : { ...call, id: entry.id, metadata: metadataOf(entry, call.metadata) }
    })
  }

  /** Adds late metadata to final calls, as reported by the whole message under their own ids. */
  describe(calls: unknown): void {
    if (!Array.isArray(calls)) return
    for (const call of calls) {
      if (!Json.isObject(call) || !Json.isObject(call["metadata"])) continue
      const entry = this.byId.get(String(call["id"]))
      if (entry === undefined || entry.name !== call["name"]) continue
      entry.metadata = { ...entry.metadata, ...call["metadata"] }
      if (entry.taken !== undefined) entry.taken = toToolCall(entry, entry.taken)
    }
  }

  toToolCalls(reading: Reading): ReadonlyArray<Message.ToolCall> {
    const strays = this.entries.filter((entry) =>
      entry.name === "" && entry.final === undefined && !isBlank(entry.text)
    )
    const isOpen = ({ final, name }: Entry) => name !== "" && final === undefined
    const takers = strays.length === 0 ? [] : this.entries.filter(isOpen)
    const taker = takers.find(({ text }) => isBlank(text))
    const taking = taker !== undefined && takers.length === 1
      ? { ...taker, text: strays.map(textOf).join(""), isObserved: true }
      : undefined
    return this.entries.map((entry) => {
      if (entry.taken !== undefined) return entry.taken
      if (entry.final !== undefined) return toToolCall(entry, entry.final)
      const read = entry === taker && taking !== undefined ? taking : entry
      return toToolCall(read, unfinished(read, reading, read === entry && takers.length > 0 && isOpen(entry)))
    })
  }
}

/**
 * Returns the arguments of a call never completed by the wire. Under the token limit they were cut. `isDoubted`: some
 * stray fragments may belong to this call.
 */
const unfinished = (entry: Entry, { ending, parse }: Reading, isDoubted: boolean): Arguments => {
  if (!parse) return { arguments: {} }
  if (isDoubted) return lost("missing_fragments")
  return ending === "truncated" ? lost("truncated") : atEnd(textOf(entry), entry.isObserved, ending)
}

/** Returns call metadata, including the wire id if it differs from the call's own. */
const metadataOf = ({ eventId, id, metadata: own }: Entry, metadata: unknown = own): Json.JsonObject => {
  const given = Json.isObject(metadata) ? metadata : Json.none
  return id === eventId || eventId === "" ? given : { duplicateOf: eventId, ...given }
}

const toToolCall = (entry: Entry, { arguments: args, argumentsLost }: Arguments): Message.ToolCall => {
  const { id, isExecuted, name } = entry
  const text = textOf(entry)
  const metadata = metadataOf(entry)
  const call: Types.Mutable<Message.ToolCall> = { id, name, arguments: args, metadata }
  if (text !== "") call.rawArguments = text
  if (argumentsLost !== undefined) call.argumentsLost = argumentsLost
  if (isExecuted) call.providerExecuted = true
  return call
}

// ---------------------------------------------------------------------------------------------------------------------
// lost arguments: reports give the tool, the call, the reason and the length, never the text, which may hold a secret

export interface LostArguments {
  /** Call id. */
  readonly id: string
  /** Tool name. */
  readonly name: string
  /** Reason for the loss. */
  readonly reason: Message.ArgumentsLost
  /** Received length, in bytes of UTF-8. */
  readonly bytes: number
}

/** Returns the calls to answer here that lost their arguments. */
export const lostOf = (calls: ReadonlyArray<Message.ToolCall>): ReadonlyArray<LostArguments> =>
  calls.flatMap(({ argumentsLost, id, name, providerExecuted, rawArguments = "" }) =>
    argumentsLost === undefined || providerExecuted === true
      ? []
      : [{ id, name, reason: argumentsLost, bytes: new TextEncoder().encode(rawArguments).length }]
  )
