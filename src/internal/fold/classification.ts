/**
 * Whether a reply asks for tools or is the final answer, found without running anything. The same events come to the same
 * classification whether they are still on their way or already in hand.
 */
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"
import type * as Response from "../../Response.ts"
import * as CallArguments from "../hear/callArguments.ts"
import * as FinishReasons from "../hear/finishReason.ts"
import * as LostArguments from "../hear/lostArguments.ts"
import * as Calls from "../hear/toolCalls.ts"
import * as Payload from "./payload.ts"

/** What is odd about a reply. */
type Diagnostic =
  | { readonly _tag: "ArgumentsLost" } & LostArguments.LostArguments
  | { readonly _tag: "NoToolCalls" }

export interface Classification {
  readonly type: "tool_calls" | "final_answer"
  readonly text: string
  readonly thinking: string
  readonly toolCalls: ReadonlyArray<Message.ToolCall>
  readonly finishReason: Response.FinishReason | null
  readonly diagnostics: ReadonlyArray<Diagnostic>
}

/** The parts of a policy that a classification depends on. */
export type Rules = Pick<Policy.Policy, "toolTurn" | "badArguments" | "adapterErrors">

/** One-shot iterators that have been read. */
const read = new WeakSet<object>()

/** The events of an iterable. Throws for an iterator that has been read before and would seem to be empty. */
const once = (events: Iterable<Event.Event>): Iterable<Event.Event> => {
  const iterator = events[Symbol.iterator]()
  if (iterator as unknown !== events) return events
  if (read.has(iterator)) throw new Error("Collector.classify: these events have been read already")
  read.add(iterator)
  return events
}

export class Classifier {
  /** The value of the last error in the reply. */
  error: { readonly value: unknown } | undefined
  private readonly rules: Rules
  private calls = new Calls.Calls()
  private text = ""
  private thinking = ""
  private finishReason: Response.FinishReason | null = null
  private hasEnded = false

  constructor(rules: Rules) {
    this.rules = rules
  }

  add(event: Event.Event): void {
    if (!Payload.isFoldable(event)) return
    switch (event._tag) {
      case "TextDelta":
        this.text += event.delta
        return
      case "TextCompleted":
        this.text = event.text
        return
      case "ReasoningDelta":
        this.thinking += event.delta
        return
      case "Error":
        this.error = { value: event.error }
        this.finishReason = "error"
        return
      default:
        this.addRest(event)
    }
  }

  private addRest(event: Event.Event): void {
    switch (event._tag) {
      case "ToolCallStarted":
        this.calls.started(event.id, event.name)
        return
      case "ToolCallDelta":
        this.calls.delta(event.id, event.argumentsDelta)
        return
      case "ToolCallCompleted":
        return this.calls.completed(event)
      case "StepReset":
        return this.reset()
      case "MessageCompleted":
        this.hasEnded = true
        this.calls.describe(event.message.toolCalls)
        if (this.error !== undefined && this.rules.adapterErrors === "sticky") return
        this.finishReason = FinishReasons.normalised(event.finishReason) ?? this.finishReason
    }
  }

  /** The reply so far counts as not said. */
  private reset(): void {
    this.error = undefined
    this.calls = new Calls.Calls()
    this.text = ""
    this.thinking = ""
    this.finishReason = null
    this.hasEnded = false
  }

  get classification(): Classification {
    const { finishReason, rules } = this
    const ending = this.hasEnded ? CallArguments.endingOf(finishReason) : "broken"
    const reading = { parse: rules.badArguments === "answer", ending } as const
    const toolCalls = this.calls.toToolCalls(reading).filter(({ name }) => name !== "")
    const isAsked = toolCalls.some(({ providerExecuted }) => providerExecuted !== true)
    const isVague = finishReason === null || finishReason === "stop" || finishReason === "other"
    const isWhole = finishReason !== "error" && finishReason !== "content_filter"
    const isNamed = finishReason === "tool_calls"
    const isToolTurn = rules.toolTurn === "presence" ? isAsked && isWhole : isNamed
    const lost = LostArguments.of(toolCalls).map((call): Diagnostic => ({ _tag: "ArgumentsLost", ...call }))
    return {
      type: isToolTurn ? "tool_calls" : "final_answer",
      text: this.text,
      thinking: this.thinking,
      toolCalls,
      finishReason: rules.toolTurn === "presence" && isVague && isAsked ? "tool_calls" : finishReason,
      diagnostics: [...lost, ...(isNamed && !isAsked ? [{ _tag: "NoToolCalls" } as const] : [])]
    }
  }
}

/** The classification of events in hand. */
export const of = (events: Iterable<Event.Event>, rules: Rules): Classification => {
  const classifier = new Classifier(rules)
  for (const event of once(events)) classifier.add(event)
  return classifier.classification
}
