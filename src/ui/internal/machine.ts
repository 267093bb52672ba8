/**
 * State machine behind both protocols. It turns public events into moves and deltas, closing everything it opens. A
 * protocol writes each in its own form and keeps no state about order.
 */
import type * as Event from "../../Event.ts"
import * as CallPaths from "../../internal/answer/callPath.ts"
import type * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"

/** Nested run in a call's handler, as shown on a page. */
export interface SubRun {
  /** State: `"running"`, `"waiting"` for answers, `"done"`, or `"failed"`. */
  readonly state: "running" | "waiting" | "done" | "failed"
  /** Number of steps begun. */
  readonly steps: number
  /** End of the last step's text, at most 4,000 characters. */
  readonly text: string
  /** Last 32 calls. */
  readonly calls: ReadonlyArray<{
    /** Call id. */
    readonly id: string
    /** Tool name. */
    readonly name: string
    /** Call state. */
    readonly state: "called" | "running" | "waiting" | "done" | "failed"
  }>
}

/** Answer content: a text, or parts. */
export type Content = string | ReadonlyArray<Json.JsonObject>

/** An answer to a call. */
export interface Answer {
  readonly id: string
  readonly content?: Content
  readonly isError: boolean
  readonly code?: string
  /** `true` for a provider-executed call. */
  readonly isProviders: boolean
  /** `true` if the machine has seen the call. Otherwise it belongs to an earlier response. */
  readonly isKnown: boolean
}

export type Move =
  | { readonly kind: "stepStart"; readonly turn: number }
  | { readonly kind: "stepEnd"; readonly usage?: Event.PublicUsage }
  | {
    readonly kind: "stepReset"
    /** Calls in the discarded reply. */
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
    /** Number of characters in the earlier deltas. */
    readonly sent: number
  }
  | {
    readonly kind: "callState"
    readonly id: string
    readonly name: string
    readonly state: "queued" | "running"
    /** Details about a queued call's wait. */
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
 * Protocol form of moves and deltas. Most events of a run are deltas, so each is written on arrival: as a protocol
 * message, or as nothing.
 */
export interface Words<out Out> {
  /** Writes a delta of the open text or reasoning. */
  readonly said: (kind: "text" | "reasoning", id: string, delta: string) => Out | undefined
  /** Writes an argument delta. `sent` counts the characters sent so far, including this delta. */
  readonly argued?: (id: string, delta: string, sent: number) => Out | undefined
  /** Writes any move. */
  readonly moved: (move: Move) => ReadonlyArray<Out> | undefined
}

/** A suspension, with the call id known to the page: the waiting call's own, or its outer call's. */
export interface Waiting {
  readonly callId: string
  readonly suspension: Event.PublicSuspension
}

/** Queueing details: the fields of `ToolQueued`, passed to pages unchanged. */
type Wait = Pick<Of<"ToolQueued">, "reason" | "key" | "behind" | "elsewhere">

type Of<Tag extends Event.PublicEvent["_tag"]> = Extract<Event.PublicEvent, { readonly _tag: Tag }>

/** A call in this run. */
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

/** Folds the events of a nested run. Each event takes constant time. */
class Nested {
  /** Name of the tool around the run. */
  readonly name: string
  private state: SubRun["state"] = "running"
  private steps = 0
  private text = ""
  private readonly calls = new Map<string, SubRun["calls"][number]>()

  constructor(name: string) {
    this.name = name
  }

  /** Takes an event. Returns `true` if pages show it at once. */
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

  /** Ends a run whose own end was never seen. Returns `true` if it was still running. */
  end(isError: boolean): boolean {
    if (this.state !== "running") return false
    this.state = isError ? "failed" : "done"
    return true
  }

  get run(): SubRun {
    return { state: this.state, steps: this.steps, text: this.text, calls: Array.from(this.calls.values()) }
  }
}

/** Sentence for a call the run left unanswered. */
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
  /** Calls in the step, in the order they were opened. */
  private readonly stepCalls = new Map<string, Call>()
  /** Argument fragments of calls whose names are still to come. */
  private readonly early = new Map<string, string>()
  private readonly nested = new Map<string, Nested>()
  /** Calls shown as waiting, by suspension. */
  private readonly asked = new Map<string, string>()
  private turn = 0
  private blocks = 0
  private isStepOpen = false
  /** `true` between a discarded reply and the next, which continues the same step. */
  private isReset = false
  private open: { readonly kind: "text" | "reasoning"; readonly id: string; readonly source: string | null } | undefined
  /** Text of the step. */
  private said = ""
  private isEnded = false

  constructor(words: Words<Out>) {
    this.words = words
  }

  /** Returns an event's protocol messages. None follow the run's end. */
  push(event: Event.PublicEvent): ReadonlyArray<Out> {
    if (!this.isEnded) this.take(event)
    return this.taken()
  }

  /** Returns the protocol messages for a run whose events broke off. */
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
        // Some or all deltas may have been left out.
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

  /** Opens a step if its first events are missing. */
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

  /** Shows a call whose first events are missing. Outside an open step, the call belongs to an earlier turn. */
  private ensureCall(id: string, name = ""): void {
    if (!this.calls.has(id) && this.isStepOpen) this.opened(id, name)
  }

  /**
   * Returns the call for a header, which may be repeated. In a thread from outside, an earlier turn may use the same
   * id.
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
    // A new nested run replaces the call's earlier events.
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
      // A broken reply leaves incomplete calls.
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

  /** Ends the run nested in a call. A slow reader's progress may have been dropped, including the run's end. */
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
    // A call may wait even if its arguments were never reported as whole.
    if (call?.isReady === false) this.ready(call, suspension.toolCall)
    this.add({ kind: "callWaits", callId, name, suspension })
  }

  private reset(): void {
    this.close()
    if (!this.isStepOpen) return
    const discarded = Array.from(this.stepCalls.values(), ({ id, isDone }) => ({ id, isDone }))
    for (const { id } of discarded) {
      this.calls.delete(id)
      // A page unable to discard keeps showing the nested run, which is no longer running.
      this.endNested(id, true)
    }
    // A resumed run may ask again for anything asked in the discarded reply.
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

/** Returns the id of the run's waiting call: its own id, or its outer call's. */
const outerOf = ({ id, toolCall }: Event.PublicSuspension): string => CallPaths.parse(id)?.path[0] ?? toolCall.id

/** Returns content as a value: parsed JSON if valid, otherwise the text; parts unchanged. */
export const valueOf = (content: Content | undefined, parse: (text: string) => unknown): unknown =>
  content === undefined ? null : typeof content === "string" ? parse(content) : content

/** Returns content as text: its text parts, and the type of every other part in brackets. */
export const textOf = (content: Content | undefined): string =>
  content === undefined ?
    "" :
    typeof content === "string" ?
    content :
    content.map((part) => part["type"] === "text" ? String(part["text"]) : `[${String(part["type"])}]`).join("\n")
