/**
 * Tool calls out of the fragments in which a reply streams them: which call a fragment belongs to, and what a call's
 * arguments come to. Texts are only appended to and parsed at most three times, so that the work is linear in the fragments.
 * Every call gets an id that no other call of the reply has, and is completed exactly once.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Random from "effect/Random"
import type * as Event from "../../Event.ts"
import * as CallArguments from "../../internal/hear/callArguments.ts"
import * as CallIds from "../../internal/hear/callIds.ts"
import type * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"

/** A piece of a call as the wire sends it; empty strings and nulls stand as `undefined`, but an empty text as `""`. */
export interface Fragment {
  /** The call's place on the wire: a key that may repeat or skip, never a position. */
  readonly index: number | string | undefined
  readonly id: string | undefined
  readonly name: string | undefined
  readonly text: string | undefined
  readonly metadata: Json.JsonObject
}

interface Call {
  id: string
  wireId: string | undefined
  name: string
  text: string
  isObserved: boolean
  /** Whether some of its arguments did not arrive, although all that did can be read. */
  isLost: boolean
  /** Whether it was told of. Before that its name may still grow. */
  isStarted: boolean
  isTried: boolean
  /** Whether it ran at the provider. */
  isExecuted: boolean
  duplicateOf: string | undefined
  metadata: Json.JsonObject
  completed: Message.ToolCall | undefined
}

type Events = Array<Event.AdapterEvent>

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

/** The arguments in a text. Some servers write `null` where a call has none. */
const read = (text: string): CallArguments.Arguments => CallArguments.ofText(CallArguments.nullAsNone(text))

/** Whether no piece of a name can follow what has come of it. */
export type IsWholeName = (name: string) => boolean

/** Whether a name is that of a tool, and the beginning of no other's. */
export const nameOf = (tools: ReadonlyArray<{ readonly name: string }>): IsWholeName => (name) =>
  tools.some((tool) => tool.name === name) &&
  !tools.some((tool) => tool.name !== name && tool.name.startsWith(name))

/** The arguments that a tool was declared with, out of those that a provider's rewritten schema led to. */
export type Restore = (name: string, args: Json.JsonObject) => Json.JsonObject

export class CallFragments {
  private readonly makeId: () => string
  private readonly metadataKey: string
  private readonly restore: Restore
  private readonly calls: Array<Call> = []
  private readonly byIndex = new Map<number | string, Call>()
  private readonly byWireId = new Map<string, Call>()
  private readonly ids = new CallIds.UniqueIds()
  /** The calls that the wire has not said to be finished. */
  private readonly unfinished = new Set<Call>()

  /** The calls whose names may still grow, in the order in which they were named. */
  private readonly unstarted = new Set<Call>()
  private readonly isWholeName: IsWholeName

  /**
   * `metadataKey` names the protocol: under it a call keeps what its fragments said besides. Names come whole, unless
   * `isWholeName` says otherwise: then a call is told of once its name is whole, or arguments have begun.
   */
  constructor(
    makeId: () => string,
    metadataKey: string,
    restore: Restore = (_name, args) => args,
    isWholeName: IsWholeName = () => true
  ) {
    this.makeId = makeId
    this.metadataKey = metadataKey
    this.restore = restore
    this.isWholeName = isWholeName
  }

  /** The completed calls, in the order in which the wire opened them. */
  get toolCalls(): ReadonlyArray<Message.ToolCall> {
    return this.calls.flatMap((call) => call.completed === undefined ? [] : [call.completed])
  }

  /** Adds a fragment. False if it goes on with a call that had been closed, which no order of events can tell. */
  add(fragment: Fragment, out: Events): boolean {
    const call = this.find(fragment, out)
    if (call === undefined) return true
    if (call.completed !== undefined) {
      if (hasEntries(fragment.metadata)) this.describe(call, call.completed, fragment.metadata)
      const text = fragment.text ?? ""
      return text.trim() === "" || text === call.text
    }
    if (hasEntries(fragment.metadata)) call.metadata = { ...call.metadata, ...fragment.metadata }
    if (fragment.name !== undefined && (call.name === "" || isPiece(call, fragment))) {
      this.name(call, call.name + fragment.name, out)
    }
    if (fragment.text !== undefined) this.append(call, fragment.text, out)
    return true
  }

  /** The wire repeats the whole text of a call: it says what the fragments left out, and outweighs them. */
  replace(index: number | string, text: string, out: Events): void {
    const call = this.byIndex.get(index)
    if (call === undefined || call.completed !== undefined) return
    if (text === "" || (text.length >= call.text.length && text.startsWith(call.text))) {
      return this.append(call, text.slice(call.text.length), out)
    }
    call.text = text
  }

  /** The wire says that a call has ended: whole, or cut off. */
  close(index: number | string, isCut: boolean, out: Events): void {
    const call = this.byIndex.get(index)
    if (call === undefined || call.completed !== undefined || call.name === "") return
    this.complete(call, isCut ? CallArguments.lost("truncated") : read(call.text), out)
  }

  /** What arrived of the arguments of a call is not what was meant. */
  lose(index: number | string): void {
    const call = this.byIndex.get(index)
    if (call !== undefined) call.isLost = true
  }

  /** A call that ran at the provider: it is listed in its place, whole at once, and nobody here runs it. */
  list(
    called: { readonly id: string | undefined; readonly name: string; readonly arguments: Json.JsonObject },
    metadata: Json.JsonObject,
    out: Events
  ): void {
    const { arguments: args, id, name } = called
    const call = this.open({ index: undefined, id, name, text: undefined, metadata }, out)
    call.isExecuted = true
    call.metadata = metadata
    this.name(call, name, out)
    this.append(call, JSON.stringify(args), out)
    this.complete(call, CallArguments.ofValue(args), out)
  }

  private append(call: Call, text: string, out: Events): void {
    call.isObserved = true
    if (text === "") return
    call.text += text
    if (call.isStarted) out.push({ _tag: "ToolCallDelta", id: call.id, argumentsDelta: text })
    else if (call.name !== "") this.start(out)
  }

  /** Arguments that came before the name show that it is whole. */
  private name(call: Call, name: string, out: Events): void {
    if (call.name === "") call.id = this.uniqueId(call)
    call.name = name
    this.unstarted.add(call)
    if (call.text !== "" || this.isWholeName(name)) this.start(out)
  }

  /** Tells of the calls that have their names. */
  private start(out: Events): void {
    for (const call of this.unstarted) {
      call.isStarted = true
      out.push({ _tag: "ToolCallStarted", id: call.id, name: call.name })
    }
    for (const { id, text } of this.unstarted) {
      if (text !== "") out.push({ _tag: "ToolCallDelta", id, argumentsDelta: text })
    }
    this.unstarted.clear()
  }

  /** What the wire attaches to a call after it was complete is told with the whole message. */
  private describe(call: Call, completed: Message.ToolCall, metadata: Json.JsonObject): void {
    call.metadata = { ...call.metadata, ...metadata }
    call.completed = { ...completed, metadata: { ...completed.metadata, [this.metadataKey]: call.metadata } }
  }

  private uniqueId(call: Call): string {
    const wanted = call.wireId ?? this.makeId()
    const id = this.ids.take(wanted)
    if (id !== wanted) call.duplicateOf = wanted
    return id
  }

  /**
   * The call of a fragment: by index if it has one, else by id, else the last one. A new id with a name on a used index
   * is another call, because servers send all their calls with index 0; so is a second whole call without any id. A
   * name that goes on on its index, or with its id, is a piece of the name.
   */
  private find(fragment: Fragment, out: Events): Call | undefined {
    const { id, index, name } = fragment
    const current = index === undefined ? this.calls.at(-1) : this.byIndex.get(index)
    if (id === undefined && name === undefined) {
      return current ?? (fragment.text === undefined || fragment.text === "" ? undefined : this.open(fragment, out))
    }
    const known = id === undefined ? undefined : this.byWireId.get(id)
    const sameId = known !== undefined && (name === undefined || name === known.name || isPiece(known, fragment))
      ? known
      : undefined
    if (index === undefined) return sameId ?? this.open(fragment, out)
    if (current === undefined) return (name === undefined ? sameId : undefined) ?? this.open(fragment, out)
    if (id === undefined || current.wireId === undefined) {
      if (this.isNext(current, fragment, out)) return this.open(fragment, out)
      return this.adopt(current, id)
    }
    if (current.wireId === id && (current.name === "" || isPiece(current, fragment))) return current
    if (current.wireId === id && (name === undefined || name === current.name)) return current
    return sameId ?? (name === undefined ? current : this.open(fragment, out))
  }

  /** An id that comes after the call was named tells later fragments apart, and stays out of the events. */
  private adopt(call: Call, id: string | undefined): Call {
    if (id !== undefined) {
      call.wireId = id
      this.byWireId.set(id, call)
    }
    return call
  }

  private isNext(current: Call, fragment: Fragment, out: Events): boolean {
    if (fragment.name === undefined || current.name === "" || isPiece(current, fragment)) return false
    if (fragment.name !== current.name) return true
    const isWhole = current.completed !== undefined || this.tryClose(current, out)
    return isWhole && fragment.text?.trimStart().startsWith("{") === true
  }

  private open(fragment: Fragment, out: Events): Call {
    this.closeLast(out)
    const call: Call = {
      id: "",
      wireId: fragment.id,
      name: "",
      text: "",
      isObserved: false,
      isLost: false,
      isStarted: false,
      isTried: false,
      isExecuted: false,
      duplicateOf: undefined,
      metadata: {},
      completed: undefined
    }
    this.calls.push(call)
    this.unfinished.add(call)
    if (fragment.index !== undefined) this.byIndex.set(fragment.index, call)
    if (fragment.id !== undefined) this.byWireId.set(fragment.id, call)
    return call
  }

  /** The wire has moved on: the call that was opened last is complete, unless its text shows that more is to come. */
  private closeLast(out: Events): void {
    const last = this.calls.at(-1)
    if (last !== undefined && last.completed === undefined) this.tryClose(last, out)
  }

  /** The wire says that the calls are made: those whose text is whole are complete. */
  closeAll(out: Events): void {
    for (const call of this.unfinished) {
      call.isTried = false
      if (call.completed === undefined) this.tryClose(call, out)
    }
    this.unfinished.clear()
  }

  private tryClose(call: Call, out: Events): boolean {
    if (call.isTried || call.name === "" || call.text.trim() === "") return false
    call.isTried = true
    const found = read(call.text)
    const isFinal = CallArguments.isFinal(found)
    if (isFinal) this.complete(call, found, out)
    return isFinal
  }

  /**
   * Completes what is open when the reply has ended. If the token limit ended it, the last call was cut, even when its
   * text parses: servers are known to mend a cut text. A call before it counts if its text is whole. A call without any
   * fragment has no arguments, unless the reply was cut.
   */
  end(ending: CallArguments.Ending, out: Events): void {
    const last = this.calls.at(-1)
    for (const call of this.calls) {
      if (call.completed !== undefined || call.name === "") continue
      const isCut = ending === "truncated" && (call === last || call.text.trim() === "")
      this.complete(call, isCut ? CallArguments.lost("truncated") : finalArguments(call, ending), out)
    }
  }

  private complete(call: Call, args: CallArguments.Arguments, out: Events): void {
    if (!call.isStarted) this.start(out)
    const isOwn = CallArguments.isWhole(args) && !call.isExecuted
    const common = {
      id: call.id,
      name: call.name,
      rawArguments: call.text,
      ...args,
      arguments: isOwn ? this.restore(call.name, args.arguments) : args.arguments,
      ...(call.isExecuted ? { providerExecuted: true } : {})
    }
    const metadata = {
      ...(call.duplicateOf === undefined ? {} : { duplicateOf: call.duplicateOf }),
      ...(hasEntries(call.metadata) ? { [this.metadataKey]: call.metadata } : {})
    }
    call.completed = { ...common, metadata }
    out.push({ _tag: "ToolCallCompleted", ...common, ...(hasEntries(metadata) ? { metadata } : {}) })
  }
}

/**
 * Whether a name in a fragment goes on with that of a call: no new id comes with it, the arguments have not begun, and it
 * is not the name so far, which servers are known to repeat in every fragment.
 */
const isPiece = (call: Call, { id, name }: Fragment): boolean =>
  name !== undefined && call.name !== "" && name !== call.name && !call.isStarted && call.text === "" &&
  (id === undefined || id === call.wireId)

const hasEntries = (record: Json.JsonObject): boolean => Object.keys(record).length > 0

const finalArguments = (call: Call, ending: CallArguments.Ending): CallArguments.Arguments =>
  call.isLost
    ? CallArguments.lost("missing_fragments")
    : CallArguments.atEnd(CallArguments.nullAsNone(call.text), call.isObserved, ending)
