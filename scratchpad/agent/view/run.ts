/**
 * A run as it is shown: a pure fold from events, each with the time it arrived, to what has been said, which calls
 * there are and how each of them stands. Every other part of the view is a function of this state.
 */
import { type Event, Message, Tool } from "heddle"
import * as Tools from "../tools.ts"

/**
 * How a call stands. A call that waits has been asked for and has not started; one that was stopped may never have
 * started; one that was abandoned refused to stop and was left behind.
 */
export type Standing = "waiting" | "running" | "done" | "failed" | "asking" | "stopped" | "abandoned"

/** A tool call, from the moment the model has finished asking for it. Times are milliseconds of the clock of the run. */
export interface Call {
  readonly _tag: "Call"
  readonly id: string
  readonly name: string
  readonly subject: string
  /** The position of the turn that asked for it. */
  readonly turn: number
  readonly standing: Standing
  readonly askedAt: number
  /** It started while the model still spoke. */
  readonly isEarly: boolean
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

/** What the user said while the agent worked, and what became of it. */
export interface Word {
  readonly _tag: "Word"
  readonly id: string
  readonly text: string
  readonly fate: string
}

/** A model turn: when the model was asked, when its reply began, and when the reply ended. */
export interface Turn {
  readonly startedAt: number
  readonly spokeAt: number | undefined
  readonly endedAt: number | undefined
  /** The reply has come to its own end. One that was stopped has not. */
  readonly isWhole: boolean
}

/** The run so far. `items` are in the order in which they are shown. */
export interface Run {
  readonly items: ReadonlyArray<Said | Call | Word>
  /** What the user said meanwhile, and has no fate yet. */
  readonly words: ReadonlyArray<Pick<Word, "id" | "text">>
  /** What the user types; `undefined` where nothing can be typed. */
  readonly draft: string | undefined
  readonly turns: ReadonlyArray<Turn>
  /** The model is at work: it has been asked and has not finished. */
  readonly isThinking: boolean
  /** It has been asked to end softly. */
  readonly isStopping: boolean
  readonly unreadable: ReadonlyArray<Tools.Unreadable>
  readonly notes: ReadonlyArray<Tools.NoteResult>
  readonly result: Event.ChatResult | undefined
}

const turn = (at: number): Turn => ({ startedAt: at, spokeAt: undefined, endedAt: undefined, isWhole: false })

/** A run that has just been started. */
export const begin = (at: number): Run => ({
  items: [],
  words: [],
  draft: undefined,
  turns: [turn(at)],
  isThinking: true,
  isStopping: false,
  unreadable: [],
  notes: [],
  result: undefined
})

/** The same run, going on after the user's reply. */
export const resume = (run: Run, at: number): Run => ({
  ...run,
  turns: [...run.turns, turn(at)],
  isThinking: true,
  result: undefined
})

/** The run has been asked to end softly. */
export const stopping = (run: Run): Run => ({ ...run, isStopping: true })

/** The user types. */
export const typing = (run: Run, draft: string | undefined): Run => ({
  ...run,
  draft: draft === undefined ? undefined : harmless(draft)
})

/** The user has said something, which waits for its fate. One whose fate came first has it already. */
export const saying = (run: Run, id: string, text: string): Run =>
  run.items.some((item) => item._tag === "Word" && item.id === id)
    ? run
    : { ...run, words: [...run.words, { id, text: oneLine(text) }] }

/** What was said has its fate. */
export const settle = (run: Run, id: string, text: string, fate: string): Run => ({
  ...closeText(run),
  words: run.words.filter((word) => word.id !== id),
  items: [...closeText(run).items, { _tag: "Word", id, text: oneLine(text), fate: oneLine(fate) }]
})

const textOf = (run: Run, id: string): string => run.words.find((word) => word.id === id)?.text ?? ""

const controls = /[^\P{Cc}\n]|\p{Bidi_Control}/gu

/** Text from outside as it may be written to a terminal: without control characters, tabs as spaces. */
export const harmless = (text: string): string =>
  text.replaceAll("\r\n", "\n").replaceAll("\t", "  ").replaceAll(controls, "")

const oneLine = (text: string): string => harmless(text.replaceAll(/\s+/g, " ")).trim()

const hasEnded = (call: Call): boolean => call.endedAt !== undefined

/** What is said after a call begins anew. */
const say = (run: Run, delta: string): Run => {
  const last = run.items.at(-1)
  const text = harmless(delta)
  if (last?._tag === "Said" && !last.isWhole) {
    return { ...run, items: [...run.items.slice(0, -1), { ...last, text: last.text + text }] }
  }
  const first = text.trimStart()
  return first === "" ? run : { ...run, items: [...run.items, { _tag: "Said", text: first, isWhole: false }] }
}

/** The last turn, changed. */
const changeTurn = (run: Run, how: (turn: Turn) => Turn): Run => {
  const last = run.turns.at(-1)
  return last === undefined ? run : { ...run, turns: [...run.turns.slice(0, -1), how(last)] }
}

const speak = (run: Run, at: number): Run => changeTurn(run, (turn) => ({ ...turn, spokeAt: turn.spokeAt ?? at }))

/** What was said last is whole once something else follows. */
const closeText = (run: Run): Run => {
  const last = run.items.at(-1)
  return last?._tag === "Said" && !last.isWhole
    ? { ...run, items: [...run.items.slice(0, -1), { ...last, isWhole: true }] }
    : run
}

const closeTurn = (run: Run, at: number): Run => ({
  ...changeTurn(closeText(run), (turn) => ({ ...turn, endedAt: turn.endedAt ?? at })),
  isThinking: false
})

const asked = (run: Run, { arguments: args, id, name }: Event.Of<"ToolCallCompleted">, at: number): Run => ({
  ...run,
  items: [...run.items, {
    _tag: "Call",
    id,
    name: oneLine(name),
    subject: oneLine(Tools.subject(name, args)),
    turn: run.turns.length - 1,
    standing: "waiting",
    askedAt: at,
    isEarly: false,
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
    case "Error": {
      const { error } = result
      return error instanceof Tool.ToolError && error.reason === "cancelled"
        ? { standing: "stopped", outcome: undefined }
        : { standing: "failed", outcome: messageOf(error) }
    }
  }
}

const noteIn = (result: Tool.Outcome): ReadonlyArray<Tools.NoteResult> => {
  const note = result._tag === "Ok" ? Tools.noteIn(result.value) : undefined
  return note === undefined ? [] : [note]
}

const ended = (run: Run, id: string, at: number, result: Tool.Outcome): Run => ({
  ...change(run, id, (call) => {
    const { outcome, standing } = ending(result)
    return { ...call, standing, endedAt: at, outcome: outcome === undefined ? undefined : oneLine(outcome) }
  }),
  unreadable: [...run.unreadable, ...Tools.unreadableIn(result)],
  notes: [...run.notes, ...noteIn(result)]
})

const started = (run: Run, id: string, at: number): Run => {
  const isEarly = run.turns.at(-1)?.endedAt === undefined
  return change(run, id, (call) => ({ ...call, standing: "running", startedAt: at, isEarly }))
}

/** A call that was answered without having been run: its name or its arguments could not be used. */
const refused = (run: Run, id: string, at: number, content: string): Run =>
  change(run, id, (call) => ({ ...call, standing: "failed", endedAt: at, outcome: oneLine(content) }))

/** The run after an event that arrived at a time. */
export const step = (run: Run, event: Event.Event, at: number): Run => {
  switch (event._tag) {
    case "ReasoningDelta":
    case "ToolCallStarted":
      return speak(run, at)
    case "TextDelta":
      return say(speak(run, at), event.delta)
    case "ToolCallCompleted":
      return event.providerExecuted === true ? run : asked(closeText(speak(run, at)), event, at)
    case "MessageCompleted":
      return changeTurn(closeTurn(run, at), (turn) => ({ ...turn, isWhole: true }))
    case "ToolExecutionStarted":
      return started(run, event.id, at)
    case "ToolProgress":
      return change(run, event.id, (call) => ({ ...call, progress: Tools.progressOf(event.progress) ?? call.progress }))
    case "ToolExecutionCompleted":
      return ended(run, event.id, at, event.result)
    case "ToolResultEncoded":
      return event.isError === true ? refused(run, event.id, at, Message.text(event)) : run
    case "MessageDelivered":
      return settle(run, event.id, Message.text(event.message), `delivered in step ${event.stepIndex + 1}`)
    case "MessageRefused":
      return settle(run, event.id, textOf(run, event.id), `refused: ${event.reason}`)
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
    : { ...closed, turns: [...closed.turns, turn(at)], isThinking: true }
}

/** A turn that was about to be asked for when the run ended never took place, unless it is what the run failed in. */
const completed = (run: Run, result: Event.ChatResult, at: number): Run => {
  const isTaken = (turn: Turn) => turn.endedAt !== undefined || result.outcome._tag === "Failed"
  const taken = closeTurn({ ...run, turns: run.turns.filter(isTaken) }, at)
  return { ...abandoned(taken, result.abandoned ?? [], at), result }
}

/** Handlers that refused to stop: they were answered before, and ran on until the grace period was over. */
const abandoned = (run: Run, left: NonNullable<Event.ChatResult["abandoned"]>, at: number): Run => {
  const last = (id: string) => run.items.findLastIndex((item) => item._tag === "Call" && item.id === id)
  const indexes = new Set(left.map(({ id }) => last(id)))
  return {
    ...run,
    items: run.items.map((item, index) =>
      item._tag === "Call" && indexes.has(index) ? { ...item, standing: "abandoned", endedAt: at } : item
    )
  }
}

/** The run as it stands when it was broken off: what had not ended was stopped. */
export const stop = (run: Run, at: number): Run => ({
  ...closeTurn(run, at),
  isStopping: false,
  draft: undefined,
  words: [],
  items: [
    ...closeText(run).items.map((item): Run["items"][number] =>
      item._tag === "Call" && !hasEnded(item) ? { ...item, standing: "stopped", endedAt: at } : item
    ),
    ...run.words.map((word): Word => ({ ...word, _tag: "Word", fate: "not delivered" }))
  ]
})

/** The calls, in the order in which the model asked for them. */
export const calls = (run: Run): ReadonlyArray<Call> => run.items.filter((item) => item._tag === "Call")

/** What a call that has not started waits for: the reply's end, and then calls that it, or they, must not run beside. */
export const waitsFor = (run: Run, call: Call): ReadonlyArray<string> => {
  if (run.turns[call.turn]?.endedAt === undefined) return ["the reply"]
  const running = calls(run).filter((other) => other.turn === call.turn && other.standing === "running")
  const isBarrier = [call, ...running].some(({ name }) => Tools.isBarrier(name))
  return isBarrier ? running.map((other) => other.name) : []
}
