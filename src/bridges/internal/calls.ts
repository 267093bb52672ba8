/**
 * The tool calls of a bridged reply. A call is completed once the reply has gone on to something else or has ended,
 * because a library hands over the call that a token limit cut like any other, right before it tells of the limit. None
 * is run here; one that the provider ran itself is completed with what it came to.
 */
import type * as Event from "../../Event.ts"
import * as CallArguments from "../../internal/hear/callArguments.ts"
import * as CallIds from "../../internal/hear/callIds.ts"
import type * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import * as Layout from "./layout.ts"
import type * as Part from "./part.ts"

interface Call {
  readonly id: string
  readonly wireId: string
  readonly name: string
  readonly at: number
  /** Whether its fragments are those of the text that it is made with. */
  readonly isStreamed: boolean
  text: string
  /** Whether the text of its arguments was ever spoken of. */
  isObserved: boolean
  /** Whether the library has said its last word on it. */
  isMade: boolean
  isExecuted: boolean
  options: Json.JsonObject | undefined
  result: Layout.ExecutedResult | undefined
  completed: Message.ToolCall | undefined
}

type Events = Array<Event.AdapterEvent>

export class Calls {
  private readonly owner: Layout.Owner
  private readonly makeId: () => string
  private readonly calls: Array<Call> = []
  private readonly ids = new CallIds.UniqueIds()
  /** By the id that the library uses, which it may use again: the latest call. */
  private readonly latest = new Map<string, Call>()
  /** Made and whole, and completed as soon as the reply goes on. */
  private held: Call | undefined

  constructor(owner: Layout.Owner, makeId: () => string) {
    this.owner = owner
    this.makeId = makeId
  }

  /** The completed calls, in the order in which they were opened. */
  get toolCalls(): ReadonlyArray<Message.ToolCall> {
    return this.calls.flatMap((call) => call.completed === undefined ? [] : [call.completed])
  }

  /** Where this side's calls stand among the pieces of the reply. */
  get places(): ReadonlyArray<number> {
    return this.calls.flatMap((call) => call.isExecuted ? [] : [call.at])
  }

  /** The calls that the provider ran, with what they came to. */
  get executed(): ReadonlyArray<Layout.Block> {
    return this.calls.flatMap(({ at, completed, options, result }): ReadonlyArray<Layout.Block> => {
      if (completed === undefined || result === undefined) return []
      const { arguments: args, id, name } = completed
      return [{ kind: "executed", at, call: { id, name, arguments: args }, result, options }]
    })
  }

  /** An announcement or a fragment. Fragments of a call that is made, or was never announced, say nothing. */
  input(part: Part.Input, at: number, out: Events): void {
    const known = this.latest.get(part.id)
    const isOpen = known !== undefined && !known.isMade
    const call = part.name === undefined || (isOpen && known.name === part.name)
      ? known
      : this.open(part.id, part.name, at, part.isJson, out)
    if (call === undefined || call.isMade || !call.isStreamed || part.delta === "") return
    this.append(call, part.delta, out)
  }

  call(part: Part.Call, at: number, out: Events): void {
    const known = this.latest.get(part.id)
    const isOpen = known !== undefined && !known.isMade && known.name === part.name
    const call = isOpen ? known : this.open(part.id, part.name, at, true, out)
    if (call.text === "" && part.text !== "") this.append(call, part.text, out)
    call.text = part.text
    call.isObserved = true
    call.isMade = true
    call.isExecuted = part.isExecuted
    call.options = Layout.merged(call.options, part.options)
    if (!call.isExecuted && CallArguments.isFinal(read(call.text))) this.held = call
  }

  /** What an executed call came to. A later result of the same call replaces an earlier one. */
  result(part: Part.Result): void {
    const call = this.latest.get(part.id)
    if (call === undefined || call.completed !== undefined) return
    call.isExecuted = true
    call.result = { value: part.value, isError: part.isError, options: part.options }
  }

  /** The reply goes on: the call that was made last is whole. */
  settle(out: Events): void {
    const call = this.held
    this.held = undefined
    if (call !== undefined) this.complete(call, read(call.text), out)
  }

  /**
   * The reply has ended. If the token limit ended it, the last call was cut, even when its text is whole. A call that was
   * announced without any word on its arguments has none, unless the reply was cut.
   */
  end(ending: CallArguments.Ending, out: Events): void {
    const last = this.calls.findLast((call) => !call.isExecuted)
    for (const call of this.calls) {
      if (call.completed !== undefined) continue
      const isCut = ending === "truncated" && !call.isExecuted && (call === last || call.text.trim() === "")
      this.complete(call, isCut ? CallArguments.lost("truncated") : argumentsOf(call, ending), out)
    }
  }

  private open(wireId: string, name: string, at: number, isStreamed: boolean, out: Events): Call {
    const call: Call = {
      id: this.ids.take(wireId === "" ? this.makeId() : wireId),
      wireId,
      name,
      at,
      isStreamed,
      text: "",
      isObserved: false,
      isMade: false,
      isExecuted: false,
      options: undefined,
      result: undefined,
      completed: undefined
    }
    this.calls.push(call)
    this.latest.set(wireId, call)
    out.push({ _tag: "ToolCallStarted", id: call.id, name })
    return call
  }

  private append(call: Call, text: string, out: Events): void {
    call.isObserved = true
    call.text += text
    out.push({ _tag: "ToolCallDelta", id: call.id, argumentsDelta: text })
  }

  private complete(call: Call, args: CallArguments.Arguments, out: Events): void {
    const common = {
      id: call.id,
      name: call.name,
      rawArguments: call.text,
      ...args,
      ...(call.isExecuted ? { providerExecuted: true } : {}),
      metadata: {
        ...(call.wireId === "" || call.wireId === call.id ? {} : { duplicateOf: call.wireId }),
        ...Layout.mark(this.owner, call.at, { options: call.options, result: call.result })
      }
    }
    call.completed = common
    out.push({ _tag: "ToolCallCompleted", ...common })
  }
}

/** The arguments in a text. Some providers write `null` where a call has none. */
const read = (text: string): CallArguments.Arguments => CallArguments.ofText(CallArguments.nullAsNone(text))

const argumentsOf = (call: Call, ending: CallArguments.Ending): CallArguments.Arguments =>
  CallArguments.atEnd(CallArguments.nullAsNone(call.text), call.isObserved, ending)
