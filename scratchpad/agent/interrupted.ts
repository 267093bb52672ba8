/**
 * Reports what a start finds of a run whose process ended before it did: what had happened by then, and what becomes of it now.
 * It is shown before the run goes on.
 */
import type { Message, Session } from "heddle"
import * as Tools from "./tools.ts"
import * as Run from "./view/run.ts"

/** The state of a call when its process ended. */
export type Standing = "finished" | "unknown" | "waiting" | "untouched"

/** A call of the turn that was interrupted. */
export interface Found {
  readonly toolCall: Message.ToolCall
  readonly standing: Standing
}

const standings: Readonly<Record<Session.Interrupted["calls"][number]["state"], Standing>> = {
  Asked: "untouched",
  Granted: "untouched",
  Started: "unknown",
  Waiting: "waiting",
  Answered: "finished"
}

/**
 * The calls of the turn that was interrupted, in the order of the reply. Where the reply itself was lost they are the
 * read-only ones that had started early, which the model may ask for again.
 */
export const calls = ({ calls }: Session.Interrupted): ReadonlyArray<Found> =>
  calls.map(({ state, toolCall }) => ({ toolCall, standing: standings[state] }))

const marks: Readonly<Record<Standing, string>> = { finished: "✓", unknown: "?", waiting: "?", untouched: "·" }

/** Returns what becomes of a call when the run goes on. */
const next = ({ standing, toolCall }: Found): string => {
  switch (standing) {
    case "finished":
      return "finished; it is not run again"
    case "untouched":
      return "untouched; it runs now"
    case "waiting":
      return "it waits for an answer"
    case "unknown":
      return `unknown; ${Tools.afterCrash(toolCall.name)}`
  }
}

const count = (amount: number, noun: string): string => `${amount} ${noun}${amount === 1 ? "" : "s"}`

/** The place in which the run was interrupted. */
const where = ({ calls, reply, steps }: Session.Interrupted): string => {
  const turn = `turn ${steps.length + 1}`
  if (reply !== undefined) return `in ${turn}, while its tools ran`
  return calls.length > 0
    ? `in ${turn}, while the model spoke and its first tools ran`
    : `in ${turn}, before the model had replied`
}

/** Returns how long ago something was, in the largest unit that says enough. */
export const ago = (millis: number): string => {
  const seconds = Math.max(0, Math.floor(millis / 1000))
  if (seconds < 60) return `${seconds} s ago`
  const minutes = Math.floor(seconds / 60)
  if (minutes < 60) return `${minutes} min ago`
  const hours = Math.floor(minutes / 60)
  return hours < 48 ? `${hours} h ago` : `${Math.floor(hours / 24)} days ago`
}

/** Returns what is said of a run that was interrupted, at a time. */
export const lines = (interrupted: Session.Interrupted, now: number): ReadonlyArray<string> => {
  const { reply, resumptions, startedAt, steps } = interrupted
  const begun = `, which began ${ago(now - startedAt)},`
  const again = resumptions === 0
    ? ""
    : `; it was resumed ${resumptions === 1 ? "once" : `${resumptions} times`} before`
  const found = calls(interrupted)
  return [
    `The last run${begun} was interrupted ${where(interrupted)}${again}.`,
    ` ${count(steps.length, "turn")} before it ${steps.length === 1 ? "is" : "are"} whole`,
    reply === undefined
      ? " the reply was not whole; the model is asked again"
      : ` the reply is whole, with ${count(found.length, "call")}; the model is not asked again`,
    ...found.map((call) => {
      const { toolCall } = call
      const subject = Run.harmless(Tools.subject(toolCall.name, toolCall.arguments)).replaceAll("\n", " ")
      const what = reply === undefined ? "it had started early, and is forgotten with the reply" : next(call)
      return `  ${reply === undefined ? " " : marks[call.standing]} ${toolCall.name} ${subject} - ${what}`
    })
  ]
}
