/**
 * The machine behind both protocols: from public events to moves and deltas in which everything that is opened is
 * closed. A protocol writes each in its own words, and keeps no state about the order.
 */
import type * as Event from "../../Event.ts"
import * as CallPaths from "../../internal/answer/callPath.ts"
import type * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"

/** The run inside the handler of a call, folded into what a page shows of it. */
export interface SubRun {
  /** State of the run: `"running"`, `"waiting"` for answers, `"done"`, or `"failed"`. */
  readonly state: "running" | "waiting" | "done" | "failed"
  /** The number of its steps that have begun. */
  readonly steps: number
  /** The end of the text of its last step, at most 4,000 characters. */
  readonly text: string
  /** The last 32 of its calls. */
  readonly calls: ReadonlyArray<{
    /** The id of the call. */
    readonly id: string
    /** The name of the tool. */
    readonly name: string
    /** State of the call. */
    readonly state: "called" | "running" | "waiting" | "done" | "failed"
  }>
}

/** The content of an answer: a text, or parts. */
export type Content = string | ReadonlyArray<Json.JsonObject>

/** The answer to a call. */
export interface Answer {
  readonly id: string
  readonly content?: Content
  readonly isError: boolean
  readonly code?: string
  /** `true` for a call that the provider has run itself. */
  readonly isProviders: boolean
  /** `true` if the machine has seen the call. Otherwise it is a call of an earlier response. */
  readonly isKnown: boolean
}

export type Move =
  | { readonly kind: "stepStart"; readonly turn: number }
  | { readonly kind: "stepEnd"; readonly usage?: Event.PublicUsage }
  | {
    readonly kind: "stepReset"
    /** The calls of the discarded reply. */
    readonly discarded: ReadonlyArray<{ readonly id: string; readonly isDone: boolean }>
  }
  | { readonly kind: "output"; readonly value: unknown; readonly isWhole: boolean }
  | { readonly kind: "messageDelivered"; readonly id: string; readonly content: Message.Content }
  | { readonly kind: "messageRefused"; readonly id: string; readonly reason: string }
  | { readonly kind: "modelSwitched"; readonly from: string; readonly to: string; readonly code: string }
  | { readonly kind: "textStart" | "textEnd" | "reasoningStart" | "reasoningEnd"; readonly id: string }
  | { readonly kind: "callStart"; readonly id: string; readonly name: string }
  | {
    readonly kind: "callReady"
    readonly id: string
    readonly name: string
    readonly arguments: Json.JsonObject
    readonly lost?: { readonly reason: string; readonly text?: string }
    readonly isProviders: boolean
    /** The number of characters of the deltas before it. */
    readonly sent: number
  }
  | {
    readonly kind: "callState"
    readonly id: string
    readonly name: string
    readonly state: "queued" | "running"
    /** The wait of a queued call. */
    readonly waits?: Wait
    readonly attempt?: number
    readonly at?: number
  }
  | { readonly kind: "callProgress"; readonly id: string; readonly name: string; readonly progress: unknown }
  | { readonly kind: "callNested"; readonly id: string; readonly name: string; readonly run: SubRun }
  | { readonly kind: "callAnswer"; readonly answer: Answer }
  | {
    readonly kind: "callWaits"
    readonly callId: string
    readonly name: string
    readonly suspension: Event.PublicSuspension
  }
  | {
    readonly kind: "end"
    readonly outcome: Event.PublicOutcome
    readonly usage?: Event.PublicUsage
    readonly waiting: ReadonlyArray<Waiting>
  }

/**
 * The words of a protocol. Deltas, of which a run has most, are written as they come: each is a message of the
 * protocol, or nothing.
 */
export interface Words<out Out> {
  /** Writes a piece of the open text or of the open reasoning. */
  readonly said: (kind: "text" | "reasoning", id: string, delta: string) => Out | undefined
  /** Writes a piece of the arguments of a call, of which so many characters have been sent with it. */
  readonly argued?: (id: string, delta: string, sent: number) => Out | undefined
  /** Writes anything else. */
  readonly moved: (move: Move) => ReadonlyArray<Out> | undefined
}

/** A suspension, with the id by which the page knows the call that waits, or the one around its run. */
export interface Waiting {
  readonly callId: string
  readonly suspension: Event.PublicSuspension
}

/** The wait of a queued call: the fields of `ToolQueued`, which pages get as they are. */
type Wait = Pick<Of<"ToolQueued">, "reason" | "key" | "behind" | "elsewhere">

type Of<Tag extends Event.PublicEvent["_tag"]> = Extract<Event.PublicEvent, { readonly _tag: Tag }>

/** A call of this run. */
interface Call {
  readonly id: string
  readonly name: string
  sent: number
  isReady: boolean
  isProviders: boolean
  isDone: boolean
}

const longestText = 4000
const mostCalls = 32

/** Folds the events of the run inside a handler. Each event costs the same, whatever came before it. */
class Nested {
  /** The name of the tool around the run. */
  readonly name: string
  private state: SubRun["state"] = "running"
  private steps = 0
  private text = ""
  private readonly calls = new Map<string, SubRun["calls"][number]>()

  constructor(name: string) {
    this.name = name
  }

  /** Takes in an event. Returns whether it is one that is shown at once. */
  push(event: Event.PublicEvent): boolean {
    switch (event._tag) {
      case "TextDelta":
        this.text = (this.text + event.delta).slice(-longestText)
        return false
      case "MessageStarted":
        this.steps++
        this.text = ""
        return true
      case "TextCompleted":
        this.text = event.text.slice(-longestText)
        return false
      case "StepReset":
        this.text = ""
        return true
      case "ToolCallCompleted":
        return this.call(event.id, "called", event.name)
      case "ToolExecutionStarted":
        return this.call(event.id, "running", event.name)
      case "ToolResultEncoded":
        return this.call(event.id, event.isError === true ? "failed" : "done")
      case "ToolHalt":
        return this.call(event.toolCallId, event.isError === true ? "failed" : "done")
      case "AskUserRequested":
      case "ToolApprovalRequested":
      case "ToolSuspended":
        return this.call(event.toolCallId, "waiting", event.toolName)
      case "StepCompleted":
        return true
      case "ChatCompleted":
        this.state = event.outcome._tag === "Failed" ? "failed" : event.suspensions === undefined ? "done" : "waiting"
        return true
      default:
        return false
    }
  }

  private call(id: string, state: SubRun["calls"][number]["state"], name = this.calls.get(id)?.name): boolean {
    if (name === undefined) return false
    this.calls.set(id, { id, name, state })
    for (const first of this.calls.keys()) {
      if (this.calls.size <= mostCalls) break
      this.calls.delete(first)
    }
    return true
  }

  /** Ends a run whose own end was not seen. Returns whether it had not. */
  end(isError: boolean): boolean {
    if (this.state !== "running") return false
    this.state = isError ? "failed" : "done"
    return true
  }

  get run(): SubRun {
    return { state: this.state, steps: this.steps, text: this.text, calls: Array.from(this.calls.values()) }
  }
}

/** The sentence for a call that the run has left without an answer. */
const unanswered = "The run ended before this call was answered."

const waitOf = ({ behind, elsewhere, key, reason }: Of<"ToolQueued">): Wait => ({
  reason,
  ...(key === undefined ? {} : { key }),
  ...(behind === undefined ? {} : { behind }),
  ...(elsewhere === undefined ? {} : { elsewhere })
})

export class Machine<Out> {
  private written: Array<Out> = []
  private readonly words: Words<Out>
  private readonly calls = new Map<string, Call>()
  /** The calls of the step, in the order in which they were opened. */
  private readonly stepCalls = new Map<string, Call>()
  /** Fragments of calls whose names are still to come. */
  private readonly early = new Map<string, string>()
  private readonly nested = new Map<string, Nested>()
  /** The calls that were shown as waiting, by what each waits for. */
  private readonly asked = new Map<string, string>()
  private turn = 0
  private blocks = 0
  private isStepOpen = false
  /** `true` between a discarded reply and the next one, which goes into the same step. */
  private isReset = false
  private open: { readonly kind: "text" | "reasoning"; readonly id: string; readonly source: string | null } | undefined
  /** The text of the step. */
  private said = ""
  private isEnded = false

  constructor(words: Words<Out>) {
    this.words = words
  }

  /** Returns the words for an event. None follow the end of the run. */
  push(event: Event.PublicEvent): ReadonlyArray<Out> {
    if (!this.isEnded) this.take(event)
    return this.taken()
  }

  /** Returns the words for a run whose events ended without its own end. */
  end(): ReadonlyArray<Out> {
    if (!this.isEnded) {
      const error = { code: "internal", message: "The run broke off. Try again." }
      this.finish({ _tag: "Failed", error }, undefined, [])
    }
    return this.taken()
  }

  private taken(): ReadonlyArray<Out> {
    const { written } = this
    this.written = []
    return written
  }

  private add(move: Move): void {
    this.written.push(...this.words.moved(move) ?? [])
  }

  private write(words: Out | undefined): void {
    if (words !== undefined) this.written.push(words)
  }

  private take(event: Event.PublicEvent): void {
    switch (event._tag) {
      case "MessageStarted":
        return this.begin()
      case "TextDelta":
        return this.speak("text", event.id, event.delta)
      case "ReasoningDelta":
        return this.speak("reasoning", event.id, event.delta)
      case "TextCompleted":
        // The pieces may have been left out, or some of them.
        if (event.text.startsWith(this.said)) this.speak("text", event.id, event.text.slice(this.said.length))
        return this.close()
      case "ToolCallStarted":
        this.started(event.id, event.name)
        return
      case "ToolCallDelta":
        return this.argue(event)
      case "ToolCallCompleted":
        return this.completed(event)
      case "MessageCompleted":
        return this.close()
      case "ToolQueued":
      case "ToolExecutionStarted":
        return this.state(event)
      case "ToolProgress":
        return this.progress(event)
      case "ToolResultEncoded":
        this.ensureCall(event.id)
        return this.answer(event.id, event.content, event.isError === true, event.code, event.settled === true)
      case "ToolHalt":
        this.ensureCall(event.toolCallId)
        return this.answer(event.toolCallId, event.content, event.isError === true, event.code)
      case "ToolExecutionCompleted":
        return this.ensureCall(event.id, event.name)
      case "AskUserRequested":
      case "ToolApprovalRequested":
      case "ToolSuspended":
        for (const suspension of event.suspensions) {
          this.ensureCall(event.toolCallId, event.toolName)
          this.wait(event.toolCallId, event.toolName, suspension)
        }
        return
      case "StepReset":
        return this.reset()
      case "OutputPartial":
      case "OutputCompleted":
        return this.add({ kind: "output", value: event.value, isWhole: event._tag === "OutputCompleted" })
      case "MessageDelivered":
        return this.add({ kind: "messageDelivered", id: event.id, content: event.content })
      case "MessageRefused":
        return this.add({ kind: "messageRefused", id: event.id, reason: event.reason })
      case "ModelSwitched":
        return this.add({ kind: "modelSwitched", from: event.from, to: event.to, code: event.error.code })
      case "StepCompleted":
        return this.endStep(event.usage)
      case "ChatCompleted":
        return this.finish(event.outcome, event.totalUsage ?? event.usage, event.suspensions ?? [])
      default:
        return
    }
  }

  private begin(): void {
    if (this.isReset) this.isReset = false
    else {
      this.endStep(undefined)
      this.isStepOpen = true
      this.stepCalls.clear()
      this.early.clear()
      this.add({ kind: "stepStart", turn: ++this.turn })
    }
    this.said = ""
  }

  /** Opens a step where the events of its beginning are missing. */
  private ensureStep(): void {
    if (!this.isStepOpen || this.isReset) this.begin()
  }

  private close(): void {
    const { open } = this
    if (open === undefined) return
    this.open = undefined
    this.add({ kind: `${open.kind}End`, id: open.id })
  }

  private speak(kind: "text" | "reasoning", source: string | null, delta: string): void {
    if (delta === "") return
    this.ensureStep()
    if (this.open?.kind !== kind || this.open.source !== source) {
      this.close()
      this.open = { kind, source, id: `${kind}-${++this.blocks}` }
      this.add({ kind: `${kind}Start`, id: this.open.id })
    }
    if (kind === "text") this.said += delta
    this.write(this.words.said(kind, this.open.id, delta))
  }

  private opened(id: string, name: string): Call {
    this.ensureStep()
    this.close()
    const call: Call = { id, name, sent: 0, isReady: false, isProviders: false, isDone: false }
    this.calls.set(id, call)
    this.stepCalls.set(id, call)
    this.add({ kind: "callStart", id, name })
    this.append(call, this.early.get(id) ?? "")
    this.early.delete(id)
    return call
  }

  /** Shows a call whose first events are missing. One that no open step has is a call of an earlier turn. */
  private ensureCall(id: string, name = ""): void {
    if (!this.calls.has(id) && this.isStepOpen) this.opened(id, name)
  }

  /**
   * Returns the call of a header, which may be sent again. A thread from outside may have its id in an earlier turn.
   */
  private started(id: string, name: string): Call {
    return this.stepCalls.get(id) ?? this.opened(id, name)
  }

  private argue({ argumentsDelta, id }: Of<"ToolCallDelta">): void {
    const call = this.stepCalls.get(id)
    if (call === undefined) this.early.set(id, (this.early.get(id) ?? "") + argumentsDelta)
    else if (!call.isReady) this.append(call, argumentsDelta)
  }

  private append(call: Call, delta: string): void {
    if (delta === "") return
    call.sent += delta.length
    this.write(this.words.argued?.(call.id, delta, call.sent))
  }

  private completed(event: Of<"ToolCallCompleted">): void {
    const call = this.started(event.id, event.name)
    if (!call.isReady) this.ready(call, event)
  }

  private ready(
    call: Call,
    event: Partial<Pick<Of<"ToolCallCompleted">, "arguments" | "argumentsLost" | "providerExecuted">>
  ): void {
    call.isReady = true
    call.isProviders = event.providerExecuted === true
    this.add({
      kind: "callReady",
      id: call.id,
      name: call.name,
      arguments: event.arguments ?? {},
      ...(event.argumentsLost === undefined ? {} : { lost: event.argumentsLost }),
      isProviders: call.isProviders,
      sent: call.sent
    })
  }

  private state(event: Of<"ToolQueued"> | Of<"ToolExecutionStarted">): void {
    const { at, id, name } = event
    this.ensureCall(id, name)
    if (this.calls.get(id)?.isDone === true) return
    this.add({
      kind: "callState",
      id,
      name,
      ...(event._tag === "ToolQueued"
        ? { state: "queued" as const, waits: waitOf(event) }
        : { state: "running" as const }),
      ...(event._tag === "ToolQueued" || event.attempt === undefined ? {} : { attempt: event.attempt }),
      ...(at === undefined ? {} : { at })
    })
  }

  private progress({ id, name, nested, progress }: Of<"ToolProgress">): void {
    this.ensureCall(id, name)
    if (this.calls.get(id)?.isDone === true) return
    if (nested === undefined) return this.add({ kind: "callProgress", id, name, progress })
    // The events behind it replace those that the call has had.
    const run = (nested._tag === "RunStarted" ? undefined : this.nested.get(id)) ?? new Nested(name)
    this.nested.set(id, run)
    if (run.push(nested)) this.add({ kind: "callNested", id, name, run: run.run })
  }

  private answer(
    id: string,
    content: Content | undefined,
    isError: boolean,
    code?: string,
    isSettled = false
  ): void {
    const call = this.calls.get(id)
    if (call?.isDone === true && !isSettled) return
    if (call !== undefined) {
      // A reply that broke leaves calls that are not whole.
      if (!call.isReady) this.ready(call, {})
      call.isDone = true
    }
    this.endNested(id, isError)
    this.add({
      kind: "callAnswer",
      answer: {
        id,
        isError,
        isProviders: call?.isProviders === true,
        isKnown: call !== undefined,
        ...(content === undefined ? {} : { content }),
        ...(code === undefined ? {} : { code })
      }
    })
  }

  /** Ends the run inside a call. Progress may be dropped for a slow reader, and with it the end of the run. */
  private endNested(id: string, isError: boolean): void {
    const nested = this.nested.get(id)
    this.nested.delete(id)
    if (nested !== undefined && nested.end(isError)) {
      this.add({ kind: "callNested", id, name: nested.name, run: nested.run })
    }
  }

  private wait(callId: string, name: string, suspension: Event.PublicSuspension): void {
    if (this.asked.has(suspension.id)) return
    this.asked.set(suspension.id, callId)
    const call = this.calls.get(callId)
    // A call whose arguments were never said to be whole may wait, too.
    if (call?.isReady === false) this.ready(call, suspension.toolCall)
    this.add({ kind: "callWaits", callId, name, suspension })
  }

  private reset(): void {
    this.close()
    if (!this.isStepOpen) return
    const discarded = Array.from(this.stepCalls.values(), ({ id, isDone }) => ({ id, isDone }))
    for (const { id } of discarded) {
      this.calls.delete(id)
      // A page that cannot discard keeps what it has of the run, which runs no longer.
      this.endNested(id, true)
    }
    // A run that is resumed may ask again for what it had asked for in the discarded reply.
    for (const [waiting, id] of this.asked) if (this.stepCalls.has(id)) this.asked.delete(waiting)
    this.stepCalls.clear()
    this.early.clear()
    this.said = ""
    this.isReset = true
    this.add({ kind: "stepReset", discarded })
  }

  private endStep(usage: Event.PublicUsage | undefined): void {
    this.close()
    if (!this.isStepOpen) return
    this.isStepOpen = false
    this.isReset = false
    for (const call of this.stepCalls.values()) {
      if (call.isProviders && !call.isDone) this.answer(call.id, undefined, false)
    }
    this.add({ kind: "stepEnd", ...(usage === undefined ? {} : { usage }) })
  }

  private finish(
    outcome: Event.PublicOutcome,
    usage: Event.PublicUsage | undefined,
    suspensions: ReadonlyArray<Event.PublicSuspension>
  ): void {
    this.close()
    const waiting = suspensions.map((suspension) => ({ callId: outerOf(suspension), suspension }))
    const open = new Set(waiting.map(({ callId }) => callId))
    for (const { callId, suspension } of waiting) {
      this.wait(callId, this.calls.get(callId)?.name ?? suspension.toolCall.name, suspension)
    }
    for (const [id, call] of this.calls) {
      if (!call.isDone && !open.has(id)) {
        this.answer(id, call.isProviders ? undefined : unanswered, !call.isProviders)
      }
    }
    this.endStep(undefined)
    this.isEnded = true
    this.add({
      kind: "end",
      outcome,
      waiting,
      ...(usage === undefined ? {} : { usage })
    })
  }
}

/** Returns the id of the call of the run that waits: its own, or that around the run of the call. */
const outerOf = ({ id, toolCall }: Event.PublicSuspension): string => CallPaths.parse(id)?.path[0] ?? toolCall.id

/** Returns the content as the value that it stands for: its JSON where it is JSON, else the text; parts as they are. */
export const valueOf = (content: Content | undefined, parse: (text: string) => unknown): unknown =>
  content === undefined ? null : typeof content === "string" ? parse(content) : content

/** Returns the text of a content: that of its text parts, and a word for each other part. */
export const textOf = (content: Content | undefined): string =>
  content === undefined ?
    "" :
    typeof content === "string" ?
    content :
    content.map((part) => part["type"] === "text" ? String(part["text"]) : `[${String(part["type"])}]`).join("\n")
