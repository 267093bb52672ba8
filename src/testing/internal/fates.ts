/** Checks messages sent into a run: each has one fate, and the thread contains the delivered messages. */
import type * as Event from "../../Event.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import type { Violation } from "./violation.ts"

type Told = Event.Of<"MessageDelivered" | "MessageRefused">

const isTold = (event: Event.Event): event is Told =>
  event._tag === "MessageDelivered" || event._tag === "MessageRefused"

const textOf = ({ content, role }: Message.Message): string => JSON.stringify([role, Json.toJson(content)])

export const messages = (events: ReadonlyArray<Event.Event>): ReadonlyArray<Violation> => {
  const found: Array<Violation> = []
  const fates = new Map<string, Told["_tag"]>()
  let delivered: Array<Event.Of<"MessageDelivered">> = []
  events.forEach((event, index) => {
    const add = (message: string): number => found.push({ law: "messages", message, index })
    if (isTold(event)) {
      const before = fates.get(event.id)
      if (before !== undefined) add(`${event._tag} of message "${event.id}" follows its ${before}`)
      fates.set(event.id, event._tag)
      if (event._tag === "MessageDelivered") delivered.push(event)
    }
    if (event._tag !== "StepCompleted" && event._tag !== "ChatCompleted") return
    const texts = (event.messages ?? []).map(textOf)
    for (const { id, message } of delivered) {
      const place = texts.indexOf(textOf(message))
      if (place < 0) add(`message "${id}" was delivered, and is not in the thread`)
      else texts.splice(place, 1)
    }
    delivered = []
  })
  return found
}
