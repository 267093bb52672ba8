/** Converts a thread to its public events, so pages show it like the run. */
import type * as Event from "../../Event.ts"
import * as Teller from "../../internal/answer/teller.ts"
import type { NamesOf } from "../../internal/declare/schema.ts"
import * as Values from "../../internal/declare/values.ts"
import * as Public from "../../internal/fold/publicEvent.ts"
import type * as Message from "../../Message.ts"
import type * as Thread from "../../Thread.ts"

/** Publishing rules for a thread, as for events, and its waiting calls. */
export interface Rules extends Pick<Event.PublicOptions, "publish" | "publishReasoning" | "runId"> {
  readonly suspensions?: ReadonlyArray<Event.Suspension>
  readonly outputs?: ReadonlyMap<number, unknown>
  readonly delivered?: ReadonlyMap<number, string>
}

/**
 * Kinds of the rules, except the run id, the typed answers and the delivered messages, which only some protocols use.
 */
export const knownRules = {
  publish: Public.knownOptions.publish,
  publishReasoning: Public.knownOptions.publishReasoning,
  suspensions: Values.listOf(Values.record, "suspensions")
} satisfies Omit<NamesOf<Rules>, "runId" | "outputs" | "delivered">

/** A user message, or the assistant turns up to the next user message. */
export type Entry =
  & { readonly index: number }
  & (
    | { readonly role: "user"; readonly message: Message.Message }
    | {
      readonly role: "assistant"
      readonly events: ReadonlyArray<Event.PublicEvent>
      /** Thread indices of its turns. */
      readonly turns: ReadonlyArray<number>
    }
  )

/** Returns the thread as entries, oldest first, without system messages. */
export const entriesOf = (thread: Thread.Thread, rules: Rules): ReadonlyArray<Entry> => {
  const { delivered, outputs, suspensions = [], ...options } = rules
  const calls = new Map<string, Event.PublicCall>()
  const published = (event: Partial<Event.Event> & { readonly _tag: string }): ReadonlyArray<Event.PublicEvent> => {
    const found = Public.toPublic(event, { ...options, calls })
    return found === undefined ? [] : [found]
  }
  const outerOf = ({ path, toolCall }: Event.Suspension): string => path?.[0] ?? toolCall.id
  const waiting = new Map<string, Array<Event.Suspension>>()
  for (const suspension of suspensions) {
    waiting.set(outerOf(suspension), [...waiting.get(outerOf(suspension)) ?? [], suspension])
  }
  const last = thread.messages.findLastIndex((message) =>
    message.role === "assistant" && message.toolCalls?.some(({ id }) => waiting.has(id)) === true
  )

  const isBehind = (index: number): boolean => last >= 0 && index > last

  const entries: Array<Entry> = []
  let turns: Array<Event.PublicEvent> | undefined
  let places: Array<number> = []
  thread.messages.forEach((message, index) => {
    switch (message.role) {
      case "user": {
        const id = delivered?.get(index)
        if (turns !== undefined && id !== undefined) {
          turns.push(...published({ _tag: "MessageDelivered", id, message, stepIndex: places.length }))
          return
        }
        turns = undefined
        entries.push({ role: "user", index, message })
        return
      }
      case "assistant":
        // The suspension already shows a waiting question.
        if (message.askUser === true && isBehind(index)) return
        if (turns === undefined) {
          turns = []
          places = []
          entries.push({ role: "assistant", index, events: turns, turns: places })
        }
        places.push(index)
        turns.push(...Teller.ofReply(Teller.replyOf(message)).flatMap(published))
        if (outputs?.has(index)) turns.push(...published({ _tag: "OutputCompleted", value: outputs.get(index) }))
        if (index !== last) return
        for (const { id: toolCallId, name: toolName } of message.toolCalls ?? []) {
          const open = waiting.get(toolCallId)
          if (open === undefined) continue
          turns.push(...published({ _tag: "ToolSuspended", toolCallId, toolName, suspensions: open }))
        }
        return
      case "tool":
        // A waiting question has a placeholder answer in the thread.
        if (isBehind(index) && waiting.has(message.toolCallId ?? "")) return
        turns?.push(...published(Teller.ofAnswer(message)))
        return
      default:
        return
    }
  })
  return entries
}
