/**
 * The calls of a Gemini reply. A call normally comes whole in one part, without an id, and is complete at once; some
 * models stream its arguments as values of paths. A call of a tool that was never declared may have run at the provider,
 * which shows when its answer follows in the same reply: until then it is held back, so that nobody runs it here.
 */
import type * as Event from "../../Event.ts"
import * as CallArguments from "../../internal/hear/callArguments.ts"
import type * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import * as CallFragments from "./callFragments.ts"
import * as GeminiArguments from "./geminiArguments.ts"
import * as Wire from "./wire.ts"

type Events = Array<Event.AdapterEvent>

/** One call on its way. */
export interface Call {
  readonly name: string
  readonly wireId: string | undefined
  metadata: Json.JsonObject
  /** The arguments, once they are final. */
  text: string | undefined
  isFinal: boolean
  /** Whether pieces of its arguments came that do not come to arguments. */
  isLost: boolean
  /** Its place among the calls of this side, once it was told of. A call that ran at the provider has none. */
  place: number | undefined
}

/** A call that ran at the provider, and how many calls of this side had been told of by then. */
interface Executed {
  readonly call: Message.ToolCall
  readonly after: number
}

/** The key of all that has to go back to this protocol, and to no other. */
export const metadataKey = "gemini"

export class Calls {
  private readonly makeId: () => string
  private readonly declared: ReadonlySet<string>
  private readonly fragments: CallFragments.CallFragments
  private readonly executed: Array<Executed> = []
  private count = 0
  /** The calls that are not told of yet, in their order, all of them and those of each name. */
  private readonly held = new Set<Call>()
  private readonly heldByName = new Map<string, Set<Call>>()
  private open: { readonly call: Call; readonly args: GeminiArguments.PathArguments } | undefined

  constructor(makeId: () => string, declared: ReadonlySet<string>) {
    this.makeId = makeId
    this.declared = declared
    this.fragments = new CallFragments.CallFragments(makeId, metadataKey)
  }

  /** The calls of this side, each at its place. */
  get own(): ReadonlyArray<Message.ToolCall> {
    return this.fragments.toolCalls
  }

  /** All calls, in the order in which they were told of. */
  get toolCalls(): ReadonlyArray<Message.ToolCall> {
    const all: Array<Message.ToolCall> = []
    let next = 0
    const listExecuted = (upTo: number): void => {
      for (let item = this.executed[next]; item !== undefined && item.after <= upTo; item = this.executed[++next]) {
        all.push(item.call)
      }
    }
    for (const [place, call] of this.own.entries()) {
      listExecuted(place)
      all.push(call)
    }
    listExecuted(this.count)
    return all
  }

  /** Reads a part with a call. Gives the call if the part opens one. */
  read(value: Json.JsonObject, signature: string | undefined, out: Events): Call | undefined {
    const name = Wire.string(value["name"])
    const wireId = Wire.string(value["id"])
    const opened = this.open?.call
    const isNext = name !== undefined && !(opened?.name === name && wireId !== undefined && opened.wireId === wireId)
    if (!isNext) {
      if (signature !== undefined) this.sign(signature)
      this.proceed(value, out)
      return undefined
    }
    this.close(out)
    const metadata = { ...Wire.given("id", wireId), ...Wire.given("thoughtSignature", signature) }
    const call = { name, wireId, metadata, text: undefined, isFinal: false, isLost: false, place: undefined }
    this.hold(call)
    this.begin(call, value, out)
    return call
  }

  private sign(thoughtSignature: string): void {
    if (this.open !== undefined) this.open.call.metadata = { ...this.open.call.metadata, thoughtSignature }
  }

  private begin(call: Call, value: Json.JsonObject, out: Events): void {
    this.tell(out)
    if (value["willContinue"] === true || Array.isArray(value["partialArgs"])) {
      this.open = { call, args: new GeminiArguments.PathArguments() }
      this.proceed(value, out)
    } else this.finish(call, JSON.stringify(value["args"] ?? {}), out)
  }

  /** A part without a name goes on with the open call, and closes it unless it says that more is to come. */
  private proceed(value: Json.JsonObject, out: Events): void {
    if (this.open === undefined) return
    this.open.args.assign(value["args"])
    for (const piece of Wire.list(value["partialArgs"])) this.open.args.add(piece)
    if (value["willContinue"] !== true) this.close(out)
  }

  private close(out: Events): void {
    if (this.open === undefined) return
    const { args, call } = this.open
    this.open = undefined
    call.isLost = args.isLost
    this.finish(call, args.isLost ? undefined : args.text, out)
  }

  private finish(call: Call, text: string | undefined, out: Events): void {
    call.text = text
    call.isFinal = true
    if (call.place === undefined) this.tell(out)
    else this.complete(call, out)
  }

  private hold(call: Call): void {
    this.held.add(call)
    const named = this.heldByName.get(call.name)
    if (named === undefined) this.heldByName.set(call.name, new Set([call]))
    else named.add(call)
  }

  private letGo(call: Call): void {
    this.held.delete(call)
    this.heldByName.get(call.name)?.delete(call)
  }

  /** Tells of the calls that are known to be this side's, up to the first that may not be. */
  private tell(out: Events): void {
    for (const call of this.held) {
      if (!this.declared.has(call.name)) return
      this.release(call, out)
    }
  }

  private release(call: Call, out: Events): void {
    this.letGo(call)
    call.place = this.count++
    const { metadata, name, wireId } = call
    this.fragments.add({ index: call.place, id: wireId, name, text: undefined, metadata }, out)
    if (call.isFinal) this.complete(call, out)
  }

  private complete(call: Call, out: Events): void {
    const { isLost, metadata, place, text } = call
    this.fragments.add({ index: place, id: undefined, name: undefined, text, metadata }, out)
    if (isLost && place !== undefined) this.fragments.lose(place)
    this.fragments.closeAll(out)
  }

  /** An answer in the same reply: the first call of that name ran at the provider. */
  answered(name: string, out: Events): void {
    const [call] = this.heldByName.get(name) ?? []
    if (call === undefined || !call.isFinal) return
    this.letGo(call)
    this.execute(name, CallArguments.ofText(call.text ?? "").arguments, out)
    this.tell(out)
  }

  /** Lists what ran at the provider. */
  execute(name: string, args: Json.JsonObject, out: Events): void {
    const call = {
      id: this.makeId(),
      name,
      ...CallArguments.ofValue(args),
      rawArguments: JSON.stringify(args),
      providerExecuted: true
    }
    this.executed.push({ call: { ...call, metadata: {} }, after: this.count })
    out.push({ _tag: "ToolCallStarted", id: call.id, name }, { _tag: "ToolCallCompleted", ...call })
  }

  /**
   * The reply has ended: what is held was this side's all the time. A call that is still open is lost, unless no piece of
   * its arguments ever came.
   */
  end(ending: CallArguments.Ending, out: Events): void {
    for (const call of this.held) this.release(call, out)
    const place = this.open?.args.hasBegun === true ? this.open.call.place : undefined
    if (place !== undefined) this.fragments.lose(place)
    this.fragments.end(ending, out)
  }
}
