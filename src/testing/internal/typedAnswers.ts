/** Checks typed answers: each part belongs to the JSON of its reply, and each repair counts once. */
import * as Result from "effect/Result"
import type * as Event from "../../Event.ts"
import * as Json from "../../internal/json.ts"
import type { Violation } from "./violation.ts"

/**
 * Returns `true` if a value is a part of another: a beginning of a text or list, or some members. A `null` may stand
 * for a missing member: adapters with a strict mode remove such nulls from a call's arguments.
 */
const isPart = (part: unknown, whole: unknown): boolean => {
  if (typeof part === "string") return typeof whole === "string" && whole.startsWith(part)
  if (Array.isArray(part)) {
    return Array.isArray(whole) && part.length <= whole.length && part.every((one, index) => isPart(one, whole[index]))
  }
  if (!Json.isObject(part)) return Object.is(part, whole)
  return Json.isObject(whole) &&
    Object.keys(part).every((name) =>
      Object.hasOwn(whole, name) ? isPart(part[name], whole[name]) : part[name] === null
    )
}

/** A reply so far: its parts, with their positions, and its text and answer calls. */
interface Reply {
  readonly parts: Array<readonly [index: number, value: unknown]>
  readonly calls: Array<unknown>
  text: string
}

const begun = (): Reply => ({ parts: [], calls: [], text: "" })

/** Returns the JSON given by a whole reply: its text, and its answer calls. */
const given = ({ calls, text }: Reply): ReadonlyArray<unknown> => {
  const said = Json.parse(text)
  return Result.isSuccess(said) ? [...calls, said.success] : calls
}

/** Returns the number of the repair made by a step, if any. */
const repairOf = ({ notes }: Event.Of<"StepCompleted">): number | undefined => {
  const note: unknown = notes?.["output"]
  return Json.isObject(note) && typeof note["repair"] === "number" ? note["repair"] : undefined
}

export const answers = (events: ReadonlyArray<Event.Event>): ReadonlyArray<Violation> => {
  const found: Array<Violation> = []
  const add = (index: number, message: string): number => found.push({ law: "output", message, index })
  const steps = events.filter(({ _tag }) => _tag === "StepCompleted").length
  const completed = events.find((event) => event._tag === "ChatCompleted")
  // A resumed run may show only its later steps.
  let repairs = completed?.result.steps.length === steps ? 0 : undefined
  let reply = begun()
  events.forEach((event, index) => {
    switch (event._tag) {
      case "MessageStarted":
        reply = begun()
        return
      case "TextCompleted":
        reply.text += event.text
        return
      case "ToolCallCompleted":
        if (event.metadata?.["output"] !== true) return
        if (event.argumentsLost === undefined) reply.calls.push(event.arguments)
        // Lost arguments are no JSON: nothing is known about their parts.
        else reply.parts.length = 0
        return
      case "OutputPartial": {
        const before = reply.parts.at(-1)
        if (before !== undefined && !isPart(before[1], event.value)) add(index, "an answer's part lost what it had")
        reply.parts.push([index, event.value])
        return
      }
      case "MessageCompleted": {
        const wholes = given(reply).flatMap((whole) => Json.isObject(whole) ? [whole, whole["value"]] : [whole])
        if (wholes.length === 0) return
        for (const [place, value] of reply.parts) {
          if (!wholes.some((whole) => isPart(value, whole))) add(place, "an answer's part is not in the reply's JSON")
        }
        return
      }
      case "StepCompleted": {
        const repair = repairOf(event)
        if (repair === undefined) return
        if (repairs !== undefined && repair !== repairs + 1) add(index, `repair ${repair} follows repair ${repairs}`)
        repairs = repair
        return
      }
      default:
        return
    }
  })
  return found
}
