/**
 * A run in a terminal: the model's text on standard output, everything else on standard error. It shows the public form
 * of events, so a terminal and a page show the same.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Event from "../../Event.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import * as Problems from "./problem.ts"

/** Writes to the two outputs. */
export interface Outputs {
  readonly text: (text: string) => void
  readonly note: (text: string) => void
}

const inLine = 120

const shorten = (value: unknown): string => {
  const text = Problems.oneLine(typeof value === "string" ? value : JSON.stringify(value) ?? "")
  return text.length <= inLine ? text : `${text.slice(0, inLine)} …`
}

const textOf = (content: unknown): string => {
  if (!Array.isArray(content)) return shorten(content)
  return shorten(
    content.map((part: { readonly type?: string; readonly text?: string }) =>
      part.type === "text" ? part.text ?? "" : `[${part.type ?? "part"}]`
    ).join(" ")
  )
}

const argumentsOf = (event: { readonly arguments?: object }): string =>
  event.arguments === undefined || Object.keys(event.arguments).length === 0 ? "" : shorten(event.arguments)

/** Shows runs' events, one after another. */
export class View {
  private readonly names = new Map<string, string>()
  private readonly nested = new Map<string, View>()
  private readonly outputs: Outputs
  /** Outputs of runs inside calls. */
  private readonly nestedOutputs: Outputs
  private readonly prefix: string
  /** Reply text so far. */
  private said = ""
  /** `true` while the text on standard output does not end with a line break. */
  private isInLine = false

  constructor(outputs: Outputs, prefix = "") {
    this.outputs = outputs
    this.nestedOutputs = {
      text: outputs.text,
      note: (text) => {
        this.endLine()
        outputs.note(text)
      }
    }
    this.prefix = prefix
  }

  private say(delta: string): void {
    this.said += delta
    const text = Problems.harmless(delta)
    // Text from a run inside a call is not the answer.
    if (this.prefix !== "" || text === "") return
    this.outputs.text(text)
    this.isInLine = !text.endsWith("\n")
  }

  /** Shows a typed answer, unless the reply's text is its JSON, an object. An answer by a tool has no such text. */
  private answer(value: unknown): void {
    if (Json.isObject(Result.getOrUndefined(Json.parse(this.said)))) return
    this.endLine()
    this.say(`${JSON.stringify(value)}\n`)
  }

  /** Ends the current text line, so that a note begins on a new line. */
  private endLine(): void {
    if (this.isInLine) this.outputs.text("\n")
    this.isInLine = false
  }

  /** Shows a note. */
  note(text: string): void {
    this.endLine()
    this.outputs.note(Problems.harmless(`${this.prefix}${text}\n`))
  }

  /** Records the names of calls from before this process. */
  know(calls: Iterable<{ readonly id: string; readonly name: string }>): void {
    for (const { id, name } of calls) this.named(id, name)
  }

  private nameOf(id: string): string {
    return this.names.get(id) ?? "call"
  }

  private named(id: string, name: string): string {
    const shown = Problems.oneLine(name)
    this.names.set(id, shown)
    return shown
  }

  /** Shows an event. */
  take(event: Event.PublicEvent): void {
    switch (event._tag) {
      case "MessageStarted":
        this.said = ""
        return
      case "StepReset":
        this.said = ""
        return this.note(`! ${event.error.message} The reply begins again.`)
      case "MessageDelivered":
        return this.note(`+ ${shorten(Message.text(event))}`)
      case "MessageRefused":
        return this.note(`! Not delivered (${event.reason}): ${shorten(Message.text(event))}`)
      case "ModelSwitched":
        return this.note(`! ${event.from} did not answer. Now asking ${event.to}.`)
      case "TextDelta":
        return this.say(event.delta)
      case "TextCompleted":
        // The whole text of the reply, whose deltas may have been left out in part or entirely.
        if (event.text.startsWith(this.said)) this.say(event.text.slice(this.said.length))
        return
      case "MessageCompleted":
        return this.endLine()
      case "OutputCompleted":
        return this.answer(event.value)
      case "ToolCallCompleted":
        // A later call may reuse an answered call's id.
        this.nested.delete(event.id)
        return this.note(`> ${this.named(event.id, event.name)} ${argumentsOf(event)}`.trimEnd())
      case "ToolQueued":
        return this.note(`  ${this.named(event.id, event.name)} waits`)
      case "ToolExecutionStarted":
        if (event.attempt !== undefined) this.note(`  ${this.named(event.id, event.name)}, attempt ${event.attempt}`)
        return
      case "ToolProgress": {
        const name = this.named(event.id, event.name)
        if (event.nested === undefined) return this.note(`  ${name}: ${shorten(event.progress)}`)
        const view = this.nested.get(event.id) ?? new View(this.nestedOutputs, `${this.prefix}  ${name} `)
        this.nested.set(event.id, view)
        return view.take(event.nested)
      }
      case "ToolResultEncoded":
      case "ToolHalt": {
        const id = event._tag === "ToolHalt" ? event.toolCallId : event.id
        const mark = event.isError === true ? "x" : "="
        const content = event.content === undefined ? "" : ` ${textOf(event.content)}`
        return this.note(`${mark} ${this.nameOf(id)}${content}`)
      }
      case "Error":
        return this.note(`! ${event.error.message}`)
      case "ChatCompleted": {
        const { outcome: { _tag, rule } } = event
        return _tag === "RuleEnded" ? this.note(`! The run was ended by the rule "${rule}".`) : this.endLine()
      }
      default:
        return
    }
  }
}

/** Shows an event of a run. */
export const show = (view: View, event: Event.PublicEvent): Effect.Effect<void> => Effect.sync(() => view.take(event))
