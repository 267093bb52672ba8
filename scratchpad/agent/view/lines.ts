/**
 * A run as lines of text. `frame` is for a terminal: lines that will not change any more, and below them the few that
 * still do. `append` is for everything else: what there is to say about one event, each line said once.
 */
import type { Event } from "heddle"
import * as Marks from "./marks.ts"
import * as Paint from "./paint.ts"
import * as Run from "./run.ts"
import * as Timeline from "./timeline.ts"

/** What a terminal shows: `settled` only ever grows, `live` is drawn anew. */
export interface Frame {
  readonly settled: ReadonlyArray<string>
  readonly live: ReadonlyArray<string>
}

const spinner = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
const spinnerMillis = 80

const spun = (now: number): string => spinner[Math.floor(now / spinnerMillis) % spinner.length] as string

const bar = (progress: { readonly done: number; readonly total: number }, cells: number): string => {
  const filled = progress.total === 0 ? cells : Math.min(cells, Math.round((progress.done / progress.total) * cells))
  return "━".repeat(filled) + "╌".repeat(cells - filled)
}

const standing = (run: Run.Run, call: Run.Call, isLive: boolean): string => {
  const { progress } = call
  const far = progress === undefined ? "" : `${progress.done}/${progress.total} ${progress.unit}`
  switch (call.standing) {
    case "waiting":
      return ["waits for", Run.waitsFor(run, call).join(", ") || "its turn"].join(" ")
    case "running":
      return isLive && progress !== undefined ? `${bar(progress, 12)} ${far}` : far
    case "stopped":
    case "abandoned":
      return call.startedAt === undefined ? "never started" : `${call.standing}${far === "" ? "" : ` at ${far}`}`
    case "asking":
      return "asks you"
    default:
      return call.outcome ?? ""
  }
}

const elapsed = (call: Run.Call, now: number): string =>
  call.startedAt === undefined ? "" : Paint.duration((call.endedAt ?? now) - call.startedAt)

/** How a call came to start and how it stands, in two characters. */
const marks = (run: Run.Run, call: Run.Call, now: number, paint: Paint.Paint, running?: string): string => {
  const [letter, style] = Marks.standing[call.standing]
  const [start, startStyle] = Marks.start(Timeline.lane(run, call, now))
  return `${paint(startStyle, start)}${paint(style, call.standing === "running" ? running ?? letter : letter)}`
}

/** The cells around name, subject and state: the mark, the gaps and the time. */
const fixedCells = 17

/** One line for a call: its state, its name, what it is about, how it stands and how long it took. */
const callLine = (run: Run.Run, call: Run.Call, now: number, columns: number, paint: Paint.Paint): string => {
  const room = Math.max(0, columns - fixedCells)
  const name = Paint.cut(call.name, Math.min(24, room))
  const state = Paint.cut(standing(run, call, true), Math.min(Math.floor(columns / 2), room - Paint.width(name)))
  const cells = room - Paint.width(name) - Paint.width(state)
  const subject = call.name === "read_file" ? Paint.cutLeft(call.subject, cells) : Paint.cut(call.subject, cells)
  return [
    ` ${marks(run, call, now, paint, spun(now))} ${paint("bold", name)}`,
    paint("dim", Paint.pad(subject, cells)),
    paint(call.standing === "failed" ? "bad" : "plain", state),
    paint("dim", Paint.cut(elapsed(call, now), 7).padStart(7))
  ].join("  ")
}

interface Block {
  readonly lines: ReadonlyArray<string>
  /** How many of the lines will not change any more. */
  readonly settled: number
}

const saidBlock = (said: Run.Said, columns: number): Block => {
  const text = said.isWhole ? said.text.trimEnd() : said.text
  const lines = text === "" ? [] : Paint.wrap(text, columns)
  return { lines, settled: said.isWhole ? lines.length : Math.max(0, lines.length - 1) }
}

const wordLine = ({ fate, text }: Pick<Run.Word, "fate" | "text">): string => `> ${text} · ${fate}`

const wordBlock = (word: Run.Word, columns: number, paint: Paint.Paint): Block => {
  const lines = Paint.wrap(wordLine(word), columns).map((line) => paint("accent", line))
  return { lines, settled: lines.length }
}

/** What waits for its fate, and the line that is being typed. */
const typedLines = ({ draft, words }: Run.Run, columns: number, paint: Paint.Paint): ReadonlyArray<string> => [
  ...words.map(({ text }) => paint("dim", Paint.cut(wordLine({ text, fate: "waits for the next step" }), columns))),
  ...draft === undefined
    ? []
    : draft === ""
    ? [paint("dim", Paint.cut("> say something while it works", columns))]
    : [`> ${Paint.cutLeft(draft, columns - 3)}▏`]
]

const isFinal = (call: Run.Call): boolean => call.standing !== "waiting" && call.standing !== "running"

/** Every item as lines. A gap stands between what was said and what was called. */
const blocks = (run: Run.Run, now: number, columns: number, paint: Paint.Paint): ReadonlyArray<Block> =>
  run.items.flatMap((item, index) => {
    const before = run.items[index - 1]
    const gap: ReadonlyArray<Block> = before !== undefined && before._tag !== item._tag
      ? [{ lines: [""], settled: 1 }]
      : []
    if (item._tag === "Word") return [...gap, wordBlock(item, columns, paint)]
    const block = item._tag === "Said"
      ? saidBlock(item, columns)
      : { lines: [callLine(run, item, now, columns, paint)], settled: isFinal(item) ? 1 : 0 }
    return [...gap, block]
  })

/** What a terminal of that width shows of the run at that time. */
export const frame = (run: Run.Run, now: number, columns: number, paint: Paint.Paint): Frame => {
  const settled: Array<string> = []
  const live: Array<string> = []
  for (const block of blocks(run, now, columns, paint)) {
    const isOpen = live.length > 0
    settled.push(...isOpen ? [] : block.lines.slice(0, block.settled))
    live.push(...isOpen ? block.lines : block.lines.slice(block.settled))
  }
  const said = run.isStopping ? stoppingText : "the model is thinking"
  if (run.result === undefined && (run.isStopping || (run.isThinking && run.items.at(-1)?._tag !== "Said"))) {
    live.push(
      ...run.items.length === 0 ? [] : [""],
      `${paint("accent", spun(now))} ${paint("dim", Paint.cut(said, columns - 2))}`
    )
  }
  const typed = run.result === undefined ? typedLines(run, columns, paint) : []
  live.push(...typed.length === 0 || live.at(-1) === "" ? [] : [""], ...typed)
  return { settled, live }
}

/** What is said while a run ends softly. */
export const stoppingText = "stopping what runs; Ctrl-C again stops at once"

const plainCall = (run: Run.Run, call: Run.Call, at: number): string => {
  const state = standing(run, call, false)
  const time = call.endedAt === undefined ? "" : elapsed(call, call.endedAt)
  const subject = call.subject === "" ? "" : `  ${call.subject}`
  const said = [...state === "" ? [] : [`- ${state}`], ...time === "" ? [] : [`(${time})`]]
  return [` ${marks(run, call, at, Paint.none)} ${call.name}${subject}`, ...said].join(" ")
}

/** How much a long call has to get on before it is worth another line. */
const progressSteps = 4

const quarter = (call: Run.Call | undefined): number =>
  call?.progress === undefined || call.progress.total === 0
    ? 0
    : Math.floor((call.progress.done / call.progress.total) * progressSteps)

const saidLines = (run: Run.Run): ReadonlyArray<string> =>
  run.items.flatMap((item, index) => {
    if (item._tag !== "Said") return []
    const lines = (item.isWhole ? item.text.trimEnd() : item.text).split("\n")
    const said = item.isWhole ? [...lines, ""] : lines.slice(0, -1)
    return index === 0 || said.length === 0 ? said : ["", ...said]
  })

const isSlow = (call: Run.Call, at: number): boolean => call.startedAt !== undefined && at - call.startedAt > 1000

/** What was being said when the run was broken off, as far as it has not been shown line by line. */
export const remaining = (run: Run.Run): ReadonlyArray<string> => {
  const last = run.items.at(-1)
  if (last?._tag !== "Said" || last.isWhole) return []
  const line = last.text.slice(last.text.lastIndexOf("\n") + 1).trimEnd()
  return line === "" ? [] : [line]
}

/** Whether a call has come to wait for other calls, now that the reply is no longer in its way. */
const hasToWait = (before: Run.Run, after: Run.Run, call: Run.Call): boolean =>
  call.standing === "waiting" && before.turns[call.turn]?.endedAt === undefined &&
  after.turns[call.turn]?.endedAt !== undefined && Run.waitsFor(after, call).length > 0

/** The lines that an event adds where nothing can be drawn twice. */
export const append = (before: Run.Run, after: Run.Run, event: Event.Event, at: number): ReadonlyArray<string> => {
  if (event._tag === "TextDelta" && !event.delta.includes("\n")) return []
  const said = saidLines(after).slice(saidLines(before).length)
  const words = after.items.filter((item) => item._tag === "Word" && !before.items.includes(item))
  const known = Run.calls(before)
  const changed = Run.calls(after).flatMap((call, index) => {
    const old = known[index]
    if (hasToWait(before, after, call)) return [plainCall(after, call, at)]
    if (old === call) return []
    const isStarted = call.standing === "running" && old?.standing !== "running"
    if (isFinal(call) || isStarted) return [plainCall(after, call, at)]
    const isFurther = event._tag === "ToolProgress" && quarter(call) > quarter(old) && quarter(call) < progressSteps
    return isFurther && isSlow(call, at) ? [plainCall(after, call, at)] : []
  })
  return [...said, ...changed, ...words.map((item) => wordLine(item as Run.Word))]
}

/** The lines of the calls that were stopped. */
export const stopped = (run: Run.Run, at: number): ReadonlyArray<string> =>
  Run.calls(run).filter((call) => call.standing === "stopped").map((call) => plainCall(run, call, at))
