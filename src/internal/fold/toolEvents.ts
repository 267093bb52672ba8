/**
 * What the tool events of a turn say to the fold: the answers to its calls, the halts some of them are, and what their
 * handlers add to the context. Each is told in the order of the calls, whatever finished first.
 */
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import type * as Json from "../json.ts"
import * as Lists from "../lists.ts"

/** Something that belongs to one call. */
interface Entry<A> {
  readonly id: string
  readonly value: A
}

export class ToolEvents {
  private answers: Array<Entry<Message.Message>> | undefined
  /** Few turns have halts or updates. */
  private halts: Array<Entry<Event.Halt>> | undefined
  private updates: Array<Entry<Json.JsonObject>> | undefined
  /** What was asked, by the call, and the answers of questions that have been settled since. */
  private questions: Map<string, Event.Of<"AskUserRequested">> | undefined
  private settlements: Map<string, Message.Message> | undefined

  get isEmpty(): boolean {
    return this.answers === undefined && this.updates === undefined
  }

  copy(): ToolEvents {
    const copied = new ToolEvents()
    copied.answers = this.answers?.slice()
    copied.halts = this.halts?.slice()
    copied.updates = this.updates?.slice()
    copied.questions = this.questions && new Map(this.questions)
    copied.settlements = this.settlements && new Map(this.settlements)
    return copied
  }

  updated(event: Event.Of<"ToolExecutionCompleted">): void {
    if (event.contextUpdate === undefined) return
    this.updates ??= []
    this.updates.push({ id: event.id, value: event.contextUpdate })
  }

  ended(event: OpenCalls.Tail): void {
    const id = OpenCalls.callOf(event)
    this.answers = Lists.added(this.answers, { id, value: OpenCalls.messageOf(event) })
    const halt = OpenCalls.haltOf(event)
    if (halt === undefined) return
    this.halts ??= []
    this.halts.push({ id, value: halt })
    if (event._tag !== "AskUserRequested") return
    this.questions ??= new Map()
    this.questions.set(id, event)
  }

  /** Settles a question that was asked in these events. It halts nothing any more. Gives whether there is one. */
  settled(event: Event.Of<"ToolResultEncoded">): boolean {
    const { id } = event
    if (this.questions?.delete(id) !== true) return false
    this.settlements ??= new Map()
    this.settlements.set(id, OpenCalls.messageOf(event))
    this.halts = this.halts?.filter((halt) => halt.id !== id)
    return true
  }

  answersInOrder(ids: ReadonlyArray<string>): ReadonlyArray<Message.Message> {
    const { answers, settlements } = this
    if (settlements === undefined) return inCallOrder(ids, answers)
    return inCallOrder(ids, answers?.map(({ id, value }) => ({ id, value: settlements.get(id) ?? value })))
  }

  /** Those of the calls whose questions are open, as they wait. */
  open(calls: ReadonlyArray<Message.ToolCall>): ReadonlyArray<Event.Suspension> {
    const { questions } = this
    if (questions === undefined || questions.size === 0) return Lists.none
    return calls.flatMap((call) => {
      const asked = questions.get(call.id)
      return asked === undefined ? [] : [OpenCalls.question(call, asked)]
    })
  }

  /** The halt that decides: the first call's, or, where the order of completion counts, the first there was. */
  deciding(ids: ReadonlyArray<string>, precedence: "request" | "completion"): Event.Halt | undefined {
    return precedence === "request" ? inCallOrder(ids, this.halts)[0] : this.halts?.[0]?.value
  }

  contextUpdate(ids: ReadonlyArray<string>): ContextUpdate {
    return this.updates === undefined ? noUpdate : mergeUpdates(inCallOrder(ids, this.updates))
  }
}

interface ContextUpdate {
  readonly contextUpdate?: Json.JsonObject
}

const noUpdate: ContextUpdate = {}

/** Updates one over the other, in the given order. Without any there is no update. */
export const mergeUpdates = (updates: ReadonlyArray<Json.JsonObject | undefined>): ContextUpdate => {
  const given = updates.filter((update) => update !== undefined)
  return given.length === 0
    ? {}
    : { contextUpdate: Object.fromEntries(given.flatMap((update) => Object.entries(update))) }
}

/** By the order in which the model made the calls: what completed first must not show. */
const inCallOrder = <A>(
  ids: ReadonlyArray<string>,
  entries: ReadonlyArray<Entry<A>> = Lists.none
): ReadonlyArray<A> => {
  const first = entries[0]
  if (first === undefined || entries.length === 1) return first === undefined ? [] : [first.value]
  if (entries.every((entry, index) => entry.id === ids[index])) return entries.map((entry) => entry.value)
  const order = new Map(ids.map((id, index) => [id, index]))
  const position = (entry: Entry<A>): number => order.get(entry.id) ?? order.size
  return entries.toSorted((left, right) => position(left) - position(right)).map((entry) => entry.value)
}
