/**
 * The tool calls of a bridged reply. A call is completed once the reply has gone on to something else or has ended,
 * because a library hands over the call that a token limit cut like any other, right before it reports the limit. None
 * is run here; one that the provider ran itself is completed with its result.
 */
import type * as Event from "../../Event.ts"
import * as ToolCalls from "../../internal/hear/toolCalls.ts"
import type * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import * as Layout from "./layout.ts"
import type * as Part from "./part.ts"

interface Entry {
  readonly call: ToolCalls.Call
  readonly at: number
  /** Whether its fragments are those of the text that it is made with. */
  readonly isStreamed: boolean
  /** Whether the library has made it, and says no more of its arguments. */
  isMade: boolean
  options: Json.JsonObject | undefined
  result: Layout.ExecutedResult | undefined
}

type Events = Array<Event.AdapterEvent>

export class Calls {
  private readonly owner: Layout.Owner
  private readonly calls: ToolCalls.WireCalls
  private readonly entries: Array<Entry> = []
  /** By the id that the library uses, which it may use again: the latest call. */
  private readonly latest = new Map<string, Entry>()
  /** Made, and completed as soon as the reply goes on. */
  private held: ToolCalls.Call | undefined

  constructor(owner: Layout.Owner, makeId: () => string) {
    this.owner = owner
    this.calls = new ToolCalls.WireCalls(makeId, owner.key)
  }

  /** The completed calls, in the order in which they were opened. */
  get toolCalls(): ReadonlyArray<Message.ToolCall> {
    return this.calls.completed
  }

  /** Where this side's calls stand among the pieces of the reply. */
  get places(): ReadonlyArray<number> {
    return this.entries.flatMap(({ at, call }) => call.isExecuted ? [] : [at])
  }

  /** The calls that the provider ran, with their results. */
  get executed(): ReadonlyArray<Layout.Block> {
    return this.entries.flatMap(({ at, call, options, result }): ReadonlyArray<Layout.Block> => {
      if (call.completed === undefined || result === undefined) return []
      const { arguments: args, id, name } = call.completed
      return [{ kind: "executed", at, call: { id, name, arguments: args }, result, options }]
    })
  }

  /** An announcement or a fragment. Fragments of a call that is made, or was never announced, are ignored. */
  input(part: Part.Input, at: number, out: Events): void {
    const known = this.latest.get(part.id)
    const isOpen = known !== undefined && !known.isMade
    const entry = part.name === undefined || (isOpen && known.call.name === part.name)
      ? known
      : this.open(part.id, part.name, at, part.isJson, out)
    if (entry === undefined || entry.isMade || !entry.isStreamed || part.delta === "") return
    this.calls.append(entry.call, part.delta, out)
  }

  call(part: Part.Call, at: number, out: Events): void {
    const known = this.latest.get(part.id)
    const isOpen = known !== undefined && !known.isMade && known.call.name === part.name
    const entry = isOpen ? known : this.open(part.id, part.name, at, true, out)
    const { call } = entry
    if (call.text === "") this.calls.append(call, part.text, out)
    call.text = part.text
    call.isObserved = true
    call.isExecuted = part.isExecuted
    entry.isMade = true
    entry.options = Layout.merged(entry.options, part.options)
    this.mark(entry)
    if (!call.isExecuted) this.held = call
  }

  /** The result of an executed call. A later result of the same call replaces an earlier one. */
  result(part: Part.Result): void {
    const entry = this.latest.get(part.id)
    if (entry === undefined || entry.call.completed !== undefined) return
    entry.call.isExecuted = true
    entry.result = { value: part.value, isError: part.isError, options: part.options }
    this.mark(entry)
  }

  /** The reply goes on: the call that was made last is whole, unless its text shows that it is not. */
  settle(out: Events): void {
    const call = this.held
    this.held = undefined
    if (call === undefined) return
    if (call.text.trim() === "") this.calls.close(call, false, out)
    else this.calls.settle(call, out)
  }

  /**
   * The reply has ended. If the token limit ended it, the last call was cut, even when its text is whole. A call that was
   * announced without any fragment of its arguments has none, unless the reply was cut.
   */
  end(ending: ToolCalls.Ending, out: Events): void {
    this.calls.endAll(ending, out, this.calls.all.findLast((call) => !call.isExecuted))
  }

  private open(wireId: string, name: string, at: number, isStreamed: boolean, out: Events): Entry {
    const call = this.calls.open(wireId === "" ? undefined : wireId)
    const entry: Entry = { call, at, isStreamed, isMade: false, options: undefined, result: undefined }
    this.mark(entry)
    this.entries.push(entry)
    this.latest.set(wireId, entry)
    this.calls.name(call, name, out)
    return entry
  }

  private mark({ at, call, options, result }: Entry): void {
    call.metadata = Layout.mark(this.owner, at, { options, result })
  }
}
