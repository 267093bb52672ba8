/**
 * A run as it is shown: a pure fold from events, each with the time it arrived, to what has been said, which calls
 * there are and how each of them stands. Every other part of the view is a function of this state.
 */
import type { Event, Tool } from "heddle"
import * as Tools from "../tools.ts"

/** How a call stands. A call that waits has been asked for and has not started. */
export type Standing = "waiting" | "running" | "done" | "failed" | "asking" | "stopped"

/** A tool call, from the moment the model has finished asking for it. Times are milliseconds since the run began. */
export interface Call {
  readonly _tag: "Call"
  readonly id: string
  readonly name: string
  readonly subject: string
  readonly standing: Standing
  readonly startedAt: number | undefined
  readonly endedAt: number | undefined
  readonly progress: Tools.Progress | undefined
  /** What it came to, or why it failed. */
  readonly outcome: string | undefined
}

/** What the model said in one turn; it grows until the turn ends. */
export interface Said {
  readonly _tag: "Said"
  readonly text: string
  readonly isWhole: boolean
}

/** A model turn, from the request to the last word. */
export interface Turn {
  readonly startedAt: number
  readonly endedAt: number | undefined
}

/** The run so far. `items` are in the order in which they are shown. */
export interface Run {
  readonly items: ReadonlyArray<Said | Call>
  readonly turns: ReadonlyArray<Turn>
  /** The model is at work: it has been asked and has not finished. */
  readonly isThinking: boolean
  readonly unreadable: ReadonlyArray<Tools.Unreadable>
  readonly result: Event.ChatResult | undefined
}

/** A run that has just been started. */
export const begin = (at: number): Run => ({
  items: [],
  turns: [{ startedAt: at, endedAt: undefined }],
  isThinking: true,
  unreadable: [],
  result: undefined
})

/** The same run, going on after the user's reply. */
export const resume = (run: Run, at: number): Run => ({
  ...run,
  turns: [...run.turns, { startedAt: at, endedAt: undefined }],
  isThinking: true,
  result: undefined
})

const controls = /[^\P{Cc}\n]|\p{Bidi_Control}/gu

/** Text from outside as it may be written to a terminal: without control characters, tabs as spaces. */
export const harmless = (text: string): string =>
  text.replaceAll("\r\n", "\n").replaceAll("\t", "  ").replaceAll(controls, "")

const oneLine = (text: string): string => harmless(text.replaceAll(/\s+/g, " ")).trim()

const hasEnded = (call: Call): boolean => call.endedAt !== undefined

const say = (run: Run, delta: string): Run => {
  const last = run.items.at(-1)
  const text = harmless(delta)
  return last?._tag === "Said" && !last.isWhole
    ? { ...run, items: [...run.items.slice(0, -1), { ...last, text: last.text + text }] }
    : { ...run, items: [...run.items, { _tag: "Said", text, isWhole: false }] }
}

/** What was said last is whole once something else follows. */
const closeText = (run: Run): Run => {
  const last = run.items.at(-1)
  return last?._tag === "Said" && !last.isWhole
    ? { ...run, items: [...run.items.slice(0, -1), { ...last, isWhole: true }] }
    : run
}

const closeTurn = (run: Run, at: number): Run => ({
  ...closeText(run),
  turns: run.turns.map((turn, index) =>
    index === run.turns.length - 1 && turn.endedAt === undefined ? { ...turn, endedAt: at } : turn
  ),
  isThinking: false
})

const asked = (run: Run, id: string, name: string, args: Readonly<Record<string, unknown>>): Run => ({
  ...run,
  items: [...run.items, {
    _tag: "Call",
    id,
    name: oneLine(name),
    subject: oneLine(Tools.subject(name, args)),
    standing: "waiting",
    startedAt: undefined,
    endedAt: undefined,
    progress: undefined,
    outcome: undefined
  }]
})

/** Changes the last call of that id which has not ended: an id may come again in a later turn. */
const change = (run: Run, id: string, how: (call: Call) => Call): Run => {
  const index = run.items.findLastIndex((item) => item._tag === "Call" && item.id === id && !hasEnded(item))
  const call = run.items[index]
  return call?._tag === "Call" ? { ...run, items: run.items.with(index, how(call)) } : run
}

const messageOf = (error: unknown): string =>
  typeof error === "object" && error !== null && "message" in error ? String(error.message) : String(error)

const ending = (result: Tool.Outcome): Pick<Call, "standing" | "outcome"> => {
  switch (result._tag) {
    case "Ok":
      return { standing: "done", outcome: Tools.summary(result.value) }
    case "Halt":
      return { standing: "done", outcome: `ended the run: ${result.reason}` }
    case "AskUser":
      return { standing: "asking", outcome: undefined }
    case "Error":
      return { standing: "failed", outcome: messageOf(result.error) }
  }
}

const ended = (run: Run, id: string, at: number, result: Tool.Outcome): Run => ({
  ...change(run, id, (call) => {
    const { outcome, standing } = ending(result)
    return { ...call, standing, endedAt: at, outcome: outcome === undefined ? undefined : oneLine(outcome) }
  }),
  unreadable: [...run.unreadable, ...Tools.unreadableIn(result)]
})

/** A call that was answered without having been run: its name or its arguments could not be used. */
const refused = (run: Run, id: string, at: number, content: string): Run =>
  change(run, id, (call) => ({ ...call, standing: "failed", endedAt: at, outcome: oneLine(content) }))

/** The run after an event that arrived at a time. */
export const step = (run: Run, event: Event.Event, at: number): Run => {
  switch (event._tag) {
    case "TextDelta":
      return say(run, event.delta)
    case "ToolCallCompleted":
      return event.providerExecuted === true ? run : asked(closeText(run), event.id, event.name, event.arguments)
    case "MessageCompleted":
      return closeTurn(run, at)
    case "ToolExecutionStarted":
      return change(run, event.id, (call) => ({ ...call, standing: "running", startedAt: at }))
    case "ToolProgress":
      return change(run, event.id, (call) => ({ ...call, progress: Tools.progressOf(event.progress) ?? call.progress }))
    case "ToolExecutionCompleted":
      return ended(run, event.id, at, event.result)
    case "ToolResultEncoded":
      return event.isError === true ? refused(run, event.id, at, event.content) : run
    case "StepCompleted":
      return thinkAgain(run, event, at)
    case "ChatCompleted":
      return completed(run, event.result, at)
    default:
      return run
  }
}

/** After a step with answers the model is asked again, at once. */
const thinkAgain = (run: Run, event: Event.Of<"StepCompleted">, at: number): Run => {
  const isLast = event.done === true || event.halt !== undefined || event.manualToolCalls.length > 0
  const closed = closeTurn(run, at)
  return isLast
    ? closed
    : { ...closed, turns: [...closed.turns, { startedAt: at, endedAt: undefined }], isThinking: true }
}

/** A turn that was about to be asked for when the run ended never took place, unless it is what the run failed in. */
const completed = (run: Run, result: Event.ChatResult, at: number): Run => {
  const isTaken = (turn: Turn) => turn.endedAt !== undefined || result.outcome._tag === "Failed"
  return { ...closeTurn({ ...run, turns: run.turns.filter(isTaken) }, at), result }
}

/** The run as it stands when it was broken off: what had not ended was stopped. */
export const stop = (run: Run, at: number): Run => ({
  ...closeTurn(run, at),
  items: closeText(run).items.map((item) =>
    item._tag === "Call" && !hasEnded(item) ? { ...item, standing: "stopped", endedAt: at } : item
  )
})

/** The calls, in the order in which the model asked for them. */
export const calls = (run: Run): ReadonlyArray<Call> => run.items.filter((item) => item._tag === "Call")
