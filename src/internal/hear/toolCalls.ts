/**
 * Tool calls while they are gathered from a reply. Every call gets an id that no other call of the reply has; its
 * arguments are appended to a text and parsed when they are final; arguments that did not arrive whole are marked as
 * lost, never guessed. `WireCalls` gathers for adapters and bridges, which emit events, and `EventCalls` for the fold,
 * which reads these events. A text is only appended to and parsed at most three times, so the work is linear in the
 * fragments.
 */
import * as Result from "effect/Result"
import type * as Types from "effect/Types"
import type * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"
import * as Json from "../json.ts"

// ---------------------------------------------------------------------------------------------------------------------
// arguments

/**
 * The number of levels that arguments may nest, the object itself included: deeper ones overflow the stack of what
 * walks them.
 */
export const deepest = 256

/** The arguments of a call: none in place of those that were lost. */
export type Arguments = Pick<Message.ToolCall, "arguments" | "argumentsLost">

const lost = (reason: Message.ArgumentsLost): Arguments => ({ arguments: {}, argumentsLost: reason })

export const isWhole = ({ argumentsLost }: Arguments): boolean => argumentsLost === undefined

/** Returns `true` if no further fragment can complete a text: it can be read, or could be but for its depth. */
const isFinal = ({ argumentsLost }: Arguments): boolean => argumentsLost === undefined || argumentsLost === "too_deep"

/** The end of a reply: well, by the token limit, or by something else that cut it. */
export type Ending = "whole" | "truncated" | "broken"

/** The ending that a finish reason stands for, in a reply that has one. */
export const endingOf = (finishReason: Response.FinishReason | null): Ending => {
  if (finishReason === "length") return "truncated"
  return finishReason === "error" || finishReason === "content_filter" ? "broken" : "whole"
}

/** Arguments that were parsed elsewhere. */
export const ofValue = (value: unknown): Arguments => {
  if (!Json.isObject(value)) return lost("not_an_object")
  return Json.isDeeper(value, deepest) ? lost("too_deep") : { arguments: value }
}

/** The arguments in a text that is whole. An empty text is a call without parameters. */
export const ofText = (text: string): Arguments => {
  if (text.trim() === "") return { arguments: {} }
  const parsed = Json.parse(Json.wellFormedJson(text))
  if (Result.isFailure(parsed)) return lost("json_decode_error")
  // Every level takes two characters.
  return text.length <= 2 * deepest && Json.isObject(parsed.success)
    ? { arguments: parsed.success }
    : ofValue(parsed.success)
}

/** The text of arguments as a provider writes it: some write `null` for a call that has none. */
const written = (text: string): string => text.trim() === "null" ? "" : text

/** The end of a scan in a JSON text: how many braces are open there, and whether a string or an escape is. */
interface Scan {
  depth: number
  isInString: boolean
  isEscaped: boolean
}

/** The state of a call's arguments before they are final. */
interface Begun extends Scan {
  /** The arguments as far as they were sent. */
  text: string
  /** `true` if any fragment of them came, even an empty one. */
  isObserved: boolean
  /** The form of the text, by its first character: an object or its JSON string, or anything else. */
  form: "none" | "json" | "other"
  /** `true` once the text is whole by its braces. What follows repeats it, or contradicts it. */
  isWhole: boolean
  /** `true` once other text stands behind a whole one. */
  isSpoiled: boolean
  /** The text behind a whole one, as long as it is not whole itself. */
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
 * Returns the position behind the object or the string that ends in a piece of its text, or -1. Each piece is scanned
 * once.
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

/** The beginning of an object, or of a JSON string. */
const opening = /^\s*["{]/

const isBlank = (text: string): boolean => text.trim() === ""

/**
 * Appends a fragment, and returns the new part of it. Servers are known to repeat whole arguments behind whole ones,
 * also as a JSON string, and to begin with `{}`: equal arguments are dropped, and those behind `{}` replace it. Any
 * other text behind whole arguments makes them unreadable, because nothing tells which of the two are meant.
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

/** Reads a fragment behind whole arguments. */
const repeat = (call: Begun, fragment: string): string => {
  const rest = unrepeated(call, fragment, (whole) => isRepeated(call, whole))
  if (!isBlank(rest)) spoil(call)
  call.text += rest
  return rest
}

/** Returns the rest of a fragment, from the first text on that is no repetition, or nothing if that is still open. */
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

/** Returns `true` if whole arguments may stand behind those of a call, which they replace if these are `{}`. */
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

/** The object in a whole text, or in the text of which it is the JSON string. */
const objectIn = (text: string): Json.JsonObject | undefined => {
  const parsed = Result.getOrUndefined(Json.parse(text))
  const value = typeof parsed === "string" ? Result.getOrUndefined(Json.parse(parsed)) : parsed
  return Json.isObject(value) && !Json.isDeeper(value, deepest) ? value : undefined
}

/** Appends all that follows: the text is no JSON, whatever that is. */
const spoil = (call: Begun): void => {
  call.isSpoiled = true
  call.isWhole = false
  call.form = "other"
}

const reset = (call: Begun): void => {
  Object.assign(call, { ...begun(), isObserved: call.isObserved })
}

/** All of the arguments, with a repetition that never became whole. */
const textOf = ({ again, text }: Begun): string => text + again

/**
 * The arguments of a call that was still open when its reply ended. Without any fragment there are none, unless the
 * reply was cut.
 */
const atEnd = (text: string, isObserved: boolean, ending: Ending): Arguments => {
  if (!isObserved && ending !== "whole") return lost(ending === "truncated" ? "truncated" : "missing_fragments")
  const found = ofText(text)
  return isFinal(found) || ending !== "truncated" ? found : lost("truncated")
}

// ---------------------------------------------------------------------------------------------------------------------
// ids

/** The length of the longest id that is made here: there are servers that refuse longer ones. */
export const longestId = 40

/** The beginning of an id, which splits no surrogate pair: a server may refuse half of one. */
export const shortened = (id: string, length: number): string => {
  const last = id.length > length ? id.charCodeAt(length - 1) : 0
  return id.slice(0, last >= 0xd800 && last < 0xdc00 ? length - 1 : length)
}

/** Ids of which no two are the same. Taking one costs the same, however many wanted it before. */
export class UniqueIds {
  private readonly taken: Set<string>
  /**
   * The least number that may be free, by the first number, the digits, and the characters before them: ids that differ
   * behind these share their numbers. Created with the first number.
   */
  private free: Map<string, number> | undefined

  constructor(from?: UniqueIds) {
    this.taken = new Set(from?.taken)
    this.free = from?.free && new Map(from.free)
  }

  /** The id itself, or with the least free number from 2 on if it is taken. */
  take(wanted: string): string {
    if (this.taken.has(wanted)) return this.number(wanted, 2)
    this.taken.add(wanted)
    return wanted
  }

  /** The id with the least free number, from a first one on. */
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

  /** Takes an id that is in use elsewhere, as it is. */
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

/** The reason why a reply cannot be trusted that adds to a call which it had completed. */
export const contradiction = "the stream continues a tool call that it had completed"

/** The number of fragments that a reply had when something came. `0`: it never came. */
interface Times {
  /** The name. `0` also if it came before all fragments. */
  namedAt: number
  /** The first fragment. */
  firstAt: number
  /** The last fragment. */
  lastAt: number
  /** The fragment that made the arguments whole. */
  wholeAt: number
}

/** A call while an adapter or a bridge gathers it. */
export interface Call extends Begun, Times {
  /** Its unique id, once it has a name. Empty until then. */
  id: string
  /** The id that the wire gave it, which another call may have as well. */
  wireId: string | undefined
  /** The id that another call had taken before it. */
  duplicateOf: string | undefined
  name: string
  /** `true` if some of its arguments did not arrive, although all that did can be read. */
  isLost: boolean
  /** `true` once its start was emitted. Until then its name may still grow. */
  isStarted: boolean
  /** `true` if its text was parsed while it was open. */
  isTried: boolean
  /** `true` if it ran at the provider. */
  isExecuted: boolean
  /** Fields that the protocol keeps with it, under the protocol's key. */
  metadata: Json.JsonObject
  completed: Message.ToolCall | undefined
}

/** The events of calls. */
type CallEvent =
  | { readonly _tag: "ToolCallStarted"; readonly id: string; readonly name: string }
  | { readonly _tag: "ToolCallDelta"; readonly id: string; readonly argumentsDelta: string }
  | { readonly _tag: "ToolCallCompleted" } & Omit<Message.ToolCall, "rawArguments" | "metadata"> & {
    readonly rawArguments: string
    readonly metadata?: Json.JsonObject
  }

/** The target of the events: the array that an adapter emits. */
interface Out {
  push(event: CallEvent): unknown
}

/** The arguments that a tool was declared with, out of those that a provider's rewritten schema led to. */
export type Restore = (name: string, args: Json.JsonObject) => Json.JsonObject

const hasEntries = (record: Json.JsonObject): boolean => Object.keys(record).length > 0

/** The calls of one reply, each completed exactly once. The protocol determines the call of a fragment. */
export class WireCalls {
  /** The calls, in the order in which the wire opened them. */
  readonly all: Array<Call> = []
  private readonly makeId: () => string
  private readonly key: string
  private readonly restore: Restore
  private readonly ids = new UniqueIds()
  /** The calls that have a name and were not started, in the order in which they were named. */
  private readonly waiting = new Set<Call>()
  /** The calls that have arguments and no name. */
  private readonly strays = new Set<Call>()
  /** The fragments since the first call that has arguments and no name, and what each call had before. */
  private sinceStray:
    | { readonly before: ReadonlyMap<Call, string>; readonly fragments: Array<[Call, string]> }
    | undefined
  private fragments = 0

  /** `makeId` makes ids for calls that come without one, `key` names the protocol in the calls' metadata. */
  constructor(makeId: () => string, key: string, restore: Restore = (_name, args) => args) {
    this.makeId = makeId
    this.key = key
    this.restore = restore
  }

  /** `true` if there are arguments that found no call. */
  get hasStrays(): boolean {
    return this.strays.size > 0
  }

  /** The completed calls, in their order. */
  get completed(): ReadonlyArray<Message.ToolCall> {
    return this.all.flatMap((call) => call.completed === undefined ? [] : [call.completed])
  }

  /** A call without a name; it is emitted once it has one. */
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

  /** Names a call, or extends its name. Arguments that came before show that the name is whole. */
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
   * A fragment of a call's arguments. False if it adds to a call that is complete: no order of events can express
   * that, and the stream is malformed. What is complete may be repeated.
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

  /** Notes when a fragment came, and keeps the order of fragments as long as it is not known whose some of them are. */
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
   * The wire repeats the whole text of a call: it adds what the fragments left out, and replaces one that differs.
   * False if it contradicts a call that is complete.
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

  /** The last word on the arguments of a call, unless it contradicts whole ones. It is shown where no fragment was. */
  overwrite(call: Call, text: string, out: Out): void {
    if (call.text === "") this.append(call, text, out)
    else if (call.completed === undefined) {
      const known = call.isWhole ? call.text : ""
      reset(call)
      append(call, known + text)
    }
  }

  /** Returns `true` if a text has the arguments that a call has whole. Two calls may have none. */
  isSaidAgain(call: Call, text: string): boolean {
    return call.isWhole && isEqual(call.text, text) && !hasNone(call)
  }

  /** Adds to a complete call what the wire attaches to it later: that is part of the whole message. */
  describe(call: Call, metadata: Json.JsonObject): void {
    if (!hasEntries(metadata)) return
    call.metadata = { ...call.metadata, ...metadata }
    if (call.completed === undefined) return
    call.completed = { ...call.completed, metadata: { ...call.completed.metadata, [this.key]: call.metadata } }
  }

  /** The wire has moved on: a call whose text is whole is complete. Tells whether it is. A text is tried once. */
  settle(call: Call, out: Out): boolean {
    if (call.completed !== undefined) return true
    if (call.isTried || call.id === "" || call.again !== "" || isBlank(call.text) || this.strays.size > 0) return false
    call.isTried = true
    const found = ofText(written(call.text))
    if (!isFinal(found)) return false
    this.complete(call, found, out)
    return true
  }

  /** The wire has opened another call: the one before it is complete if its text is whole. */
  settleLast(out: Out): void {
    const last = this.all.at(-1)
    if (last !== undefined) this.settle(last, out)
  }

  /** The wire has ended a call, whole or cut off. */
  close(call: Call, isCut: boolean, out: Out): void {
    if (call.completed !== undefined || call.id === "") return
    this.complete(call, isCut ? lost("truncated") : ofText(written(textOf(call))), out)
  }

  /**
   * The reply has ended, and with it all calls. If the token limit ended it, the last call was cut, even when its text
   * parses: servers are known to mend a cut text. A call before it counts if its text is whole. Returns the reason why
   * what was read cannot be trusted, if it cannot.
   */
  endAll(ending: Ending, out: Out, last = this.all.at(-1)): string | undefined {
    const taker = this.placeStrays(out)
    const cut = last?.id === "" ? taker ?? last : last
    return this.endEach(ending, (call) => !call.isExecuted && (call === cut || isBlank(call.text)), out)
  }

  /** Ends all calls, as `endAll` does, for a protocol that knows which of them the token limit has cut. */
  endKnown(ending: Ending, isCut: (call: Call) => boolean, out: Out): string | undefined {
    this.placeStrays(out)
    return this.endEach(ending, isCut, out)
  }

  /**
   * Whole arguments behind others may be those of another call, under its number: a call without any has lost them, if
   * the reply was not cut.
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

  /** The reply has ended, and with it a call that may be open. */
  end(call: Call, ending: Ending, isCut: boolean, out: Out): void {
    if (call.completed !== undefined || call.id === "") return
    if (isCut) return this.complete(call, lost("truncated"), out)
    const found = call.isLost ? lost("missing_fragments") : atEnd(written(textOf(call)), call.isObserved, ending)
    this.complete(call, found, out)
  }

  /**
   * The reason why what was read cannot be trusted, if it cannot: the wire began other arguments of a complete call.
   */
  private get problem(): string | undefined {
    return this.all.every(({ again, text }) =>
        text.startsWith(again.trim()) || JSON.stringify(text).startsWith(again.trim())
      )
      ? undefined
      : contradiction
  }

  /**
   * The reply has ended with arguments that found no call: they came under another number, or in front of a name that
   * never came. They belong to the one call that can have them. Where several can, none of these runs. A call that was
   * open when they came and got others later may have those of another call, and so may each call behind it: none of
   * these runs either. Returns the call that has them.
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

  /** Gives a call the arguments that found none, in the order of the wire. They replace `{}`, wherever that stands. */
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
 * Returns `true` if arguments without a call may be those of a call: it is open, and has none, or grew while these
 * came. `{}` is none for a call that was open when they came.
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

/** A call while the fold gathers it. */
interface Entry extends Begun {
  readonly id: string
  /** The id in the events, which another call may have as well. */
  readonly eventId: string
  readonly index: number
  name: string
  /** Its arguments, once they are final. */
  final: Arguments | undefined
  /** The call as it was handed out to be run, and as it was run. */
  taken: Message.ToolCall | undefined
  isExecuted: boolean
  metadata: Json.JsonObject
}

/** The calls of one id in the events, and the one that the next fragment belongs to. */
interface Namesakes {
  readonly entries: Array<Entry>
  current: Entry
}

/** The fields that an adapter reports of a completed call. */
export interface Completed {
  readonly id: string
  readonly name: string
  readonly arguments?: Json.JsonObject | null
  readonly rawArguments?: string
  readonly argumentsLost?: Message.ArgumentsLost
  readonly providerExecuted?: boolean
  readonly metadata?: Json.JsonObject
}

/** An event of a call. */
interface Named {
  readonly _tag: string
  readonly id: string
  readonly metadata?: unknown
}

/** The way in which unfinished calls are read when the message has ended. */
export interface Reading {
  readonly parse: boolean
  readonly ending: Ending
}

/**
 * Returns `true` if the reported fields are valid for a call with these arguments. A field that is left out may also be
 * `null`.
 */
const isSaidOf = ({ rawArguments }: Completed, { text }: Entry): boolean => (rawArguments ?? text) === text

/**
 * The calls of one message, out of the events of any adapter: ids may repeat, headers may be missing, and a call may be
 * completed again until it is taken to be run.
 */
export class EventCalls {
  private readonly entries: Array<Entry> = []
  /** The positions of the calls that the provider ran. */
  private readonly executed: Array<number> = []
  private readonly byEventId = new Map<string, Namesakes>()
  private readonly byId = new Map<string, Entry>()
  private readonly turn: number
  private readonly idsBefore: (() => UniqueIds) | undefined
  private unique: UniqueIds | undefined
  /** The call of the latest event. */
  private latest: Entry | undefined

  /**
   * `turn` distinguishes the ids that are made here from those of other turns of the conversation. `idsBefore` returns
   * the ids that its calls have, which the ids of these calls join. It is called for the first call.
   */
  constructor(turn = 0, idsBefore?: () => UniqueIds) {
    this.turn = turn
    this.idsBefore = idsBefore
  }

  get isEmpty(): boolean {
    return this.entries.length === 0
  }

  /** `true` if there is a call with a name. */
  get hasNamed(): boolean {
    return this.entries.some(({ name }) => name !== "")
  }

  /** The ids of the calls, in the order in which they were opened. */
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

  /** Assigns further fragments of that id to this call. */
  private turnTo(eventId: string, entry: Entry): void {
    const namesakes = this.byEventId.get(eventId)
    if (namesakes !== undefined) namesakes.current = entry
  }

  /** The latest call of an id of which something is so. */
  private find(eventId: string, isSo: (entry: Entry) => boolean): Entry | undefined {
    return this.byEventId.get(eventId)?.entries.findLast(isSo)
  }

  /** The latest call of an id that may go by that name and is, or is not, completed. */
  private latestOf(eventId: string, name: string, isCompleted: boolean): Entry | undefined {
    return this.find(
      eventId,
      (entry) => (entry.final !== undefined) === isCompleted && (entry.name === name || entry.name === "")
    )
  }

  /**
   * A header. It is new, or sent again for a call that is still open; then the next fragments are that call's. Tells
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

  /** A fragment. Tells whether anything changed. */
  delta(eventId: string, fragment: string): boolean {
    const entry = this.byEventId.get(eventId)?.current ?? this.open(eventId, "")
    this.latest = entry
    if (entry.final !== undefined) return false
    append(entry, fragment)
    return true
  }

  /**
   * The call that an event with its own id has made final, to be run before the message has ended, its position, and
   * its place among the calls to be answered. Once per call.
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

  /** Returns the event that was taken in last, under the own id of its call. One that belongs to no call stays. */
  withOwnId<E extends Named>(event: E): E {
    const { latest } = this
    this.latest = undefined
    if (latest === undefined || latest.id === event.id) return event
    return event._tag === "ToolCallCompleted"
      ? { ...event, id: latest.id, metadata: metadataOf(latest, event.metadata) }
      : { ...event, id: latest.id }
  }

  /** Frees the ids of the calls of a discarded reply. */
  discard(): void {
    this.unique?.release(this.byId.keys())
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

  /** Returns the calls of a whole message under their own ids: the nth of an id is the nth that its events opened. */
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

  /** Adds to final calls what the wire attached to them later, as the whole message reports it under their own ids. */
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
 * Arguments of a call that the wire never completed. What the token limit ended was cut there. `isDoubted`: there are
 * fragments of no call that may be some of them.
 */
const unfinished = (entry: Entry, { ending, parse }: Reading, isDoubted: boolean): Arguments => {
  if (!parse) return { arguments: {} }
  if (isDoubted) return lost("missing_fragments")
  return ending === "truncated" ? lost("truncated") : atEnd(textOf(entry), entry.isObserved, ending)
}

/** Returns metadata of a call, with the id that the wire gave it where it has another one. */
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
// lost arguments: the tool, the call, the reason and the length are reported, and never the text, which may be a secret

export interface LostArguments {
  /** The id of the call. */
  readonly id: string
  /** The name of the tool. */
  readonly name: string
  /** The reason why the arguments were lost. */
  readonly reason: Message.ArgumentsLost
  /** The length of what arrived, in bytes of UTF-8. */
  readonly bytes: number
}

/** The calls to be answered here that lost their arguments. */
export const lostOf = (calls: ReadonlyArray<Message.ToolCall>): ReadonlyArray<LostArguments> =>
  calls.flatMap(({ argumentsLost, id, name, providerExecuted, rawArguments = "" }) =>
    argumentsLost === undefined || providerExecuted === true
      ? []
      : [{ id, name, reason: argumentsLost, bytes: new TextEncoder().encode(rawArguments).length }]
  )
