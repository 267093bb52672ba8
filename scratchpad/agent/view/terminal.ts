/**
 * The view at work. On a terminal it redraws the lines that still change, everywhere else it appends plain lines; what
 * it shows is decided by pure functions, and only here is anything written. The cursor is given back whatever happens.
 */
import * as Clock from "effect/Clock"
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type * as PlatformError from "effect/PlatformError"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import * as Stdio from "effect/Stdio"
import * as Terminal from "effect/Terminal"
import type { Event, Response } from "heddle"
import * as Kept from "./kept.ts"
import * as Lines from "./lines.ts"
import * as Paint from "./paint.ts"
import * as Picture from "./picture.ts"
import * as Run from "./run.ts"

type Written = Effect.Effect<void, PlatformError.PlatformError>

/** What is shown of a conversation, from its question to its picture. */
export interface View {
  /** Says what is about to be done. */
  readonly headline: (text: string) => Written
  /** Starts the clock, or lets it go on after the user's reply. */
  readonly begin: Written
  readonly onEvent: (event: Event.Event) => Written
  /** Whether what is typed can be shown while the agent works. */
  readonly canType: boolean
  /** Shows the line that is being typed; `undefined` where nothing can be typed any more. */
  readonly typing: (draft: string | undefined) => Written
  /** Shows what the user said while the agent works. */
  readonly said: (id: string, text: string) => Written
  /** Shows what became of it. */
  readonly settled: (id: string, text: string, fate: string) => Written
  /** Says that the run has been asked to end. */
  readonly stopping: Written
  /** Leaves what has been shown as it is, so that something else can be written below it. */
  readonly pause: Written
  /** Draws the picture, and says what was kept of a run that was stopped. `unit` is what the usage counts. */
  readonly finish: (usage: Response.Usage | null, unit: string) => Written
  /** The same for a run that was broken off, of which nothing is kept; says which calls were stopped. */
  readonly interrupted: (unit: string) => Written
  /** The state of the run so far. */
  readonly run: Effect.Effect<Run.Run>
}

/** Where and how it is written. */
interface Sheet {
  readonly write: (text: string) => Written
  readonly isLive: boolean
  readonly columns: number
  readonly rows: number
  readonly paint: Paint.Paint
}

const tick = "80 millis"
const betweenDraws = 30
const clearBelow = "\r\u001b[J"
const hideCursor = "\u001b[?25l"
const showCursor = "\u001b[?25h"
const beginUpdate = "\u001b[?2026h"
const endUpdate = "\u001b[?2026l"

const joined = (lines: ReadonlyArray<string>): string => lines.map((line) => `${line}\n`).join("")

/** Whether there is a terminal that may be drawn on, and how large it is. */
const openSheet = Effect.gen(function*() {
  const terminal = yield* Terminal.Terminal
  const stdio = yield* Stdio.Stdio
  const environment = yield* Config.all({
    noColor: Config.option(Config.String("NO_COLOR")),
    term: Config.option(Config.String("TERM"))
  }).pipe(Effect.orDie)
  const isBare = Option.exists(environment.noColor, (value) => value !== "") ||
    Option.contains(environment.term, "dumb")
  const isLive = (yield* stdio.stdoutIsTerminal) && !isBare
  return {
    write: terminal.display,
    isLive,
    columns: Math.max(20, (yield* terminal.columns) || 80) - 1,
    rows: Math.max(4, (yield* terminal.rows) || 24),
    paint: isLive ? Paint.ansi : Paint.none
  } satisfies Sheet
})

/** Keeps the state of what is on the screen. One writer at a time: the semaphore holds the others back. */
class Screen {
  private readonly sheet: Sheet
  private readonly gate = Semaphore.makeUnsafe(1)
  state: Run.Run | undefined
  /** Time in which neither the model nor a tool worked, such as waiting for the user. */
  private pausedAt = 0
  private skipped = 0
  private settled = 0
  private drawn = 0
  private drawnAt = 0
  /** Where lines are appended: the last one is blank, and another would be one too many. */
  private hasGap = false
  isDrawing = false

  constructor(sheet: Sheet) {
    this.sheet = sheet
  }

  readonly now = Effect.map(Clock.currentTimeMillis, (millis) => millis - this.skipped)

  /** Brings the screen up to date: new settled lines once, then what still changes. */
  readonly draw = Effect.suspend(() =>
    Effect.flatMap(this.now, (now) => {
      if (this.state === undefined || !this.isDrawing) return Effect.void
      const { columns, paint, rows, write } = this.sheet
      const frame = Lines.frame(this.state, now, columns, paint)
      const fresh = frame.settled.slice(this.settled)
      const live = frame.live.slice(-(rows - 1))
      const up = this.drawn === 0 ? "" : `\u001b[${this.drawn}A`
      this.settled = frame.settled.length
      this.drawn = live.length
      this.drawnAt = now
      return write(`${beginUpdate}${up}${clearBelow}${joined(fresh)}${joined(live)}${endUpdate}`)
    })
  ).pipe(this.gate.withPermit)

  readonly begin = Effect.flatMap(Clock.currentTimeMillis, (millis) => {
    if (this.pausedAt !== 0) this.skipped += millis - this.pausedAt
    this.pausedAt = 0
    const now = millis - this.skipped
    this.state = this.state === undefined ? Run.begin(now) : Run.resume(this.state, now)
    this.isDrawing = this.sheet.isLive
    return this.sheet.isLive ? Effect.andThen(this.sheet.write(hideCursor), this.draw) : Effect.void
  })

  readonly onEvent = (event: Event.Event) =>
    Effect.flatMap(this.now, (now) => {
      const before = this.state ?? Run.begin(now)
      const after = Run.step(before, event, now)
      this.state = after
      if (this.sheet.isLive) return now - this.drawnAt >= betweenDraws ? this.draw : Effect.void
      return this.append(Lines.append(before, after, event, now))
    })

  private append(lines: ReadonlyArray<string>): Written {
    const kept = lines.filter((line, index) => line !== "" || (index === 0 ? !this.hasGap : lines[index - 1] !== ""))
    this.hasGap = lines.length === 0 ? this.hasGap : lines.at(-1) === ""
    return kept.length === 0 ? Effect.void : this.sheet.write(joined(kept))
  }

  readonly stopping = Effect.suspend(() => {
    if (this.state === undefined || this.state.isStopping || this.state.result !== undefined) return Effect.void
    this.state = Run.stopping(this.state)
    return this.sheet.isLive ? this.draw : this.append(["", Lines.stoppingText, ""])
  })

  /** Changes what is shown of what the user says. */
  readonly change = (how: (run: Run.Run) => Run.Run) =>
    Effect.suspend(() => {
      if (this.state !== undefined) this.state = how(this.state)
      return this.draw
    })

  /** Draws once more and lets go of the lines. */
  readonly settle = Effect.suspend(() =>
    Effect.flatMap(this.draw, () =>
      Effect.flatMap(Clock.currentTimeMillis, (millis) => {
        this.isDrawing = false
        this.settled += this.drawn
        this.drawn = 0
        this.pausedAt = millis
        return this.sheet.isLive ? this.sheet.write(showCursor) : Effect.void
      }))
  )
}

const pictureOf = (run: Run.Run, usage: Response.Usage | null, unit: string, sheet: Sheet): string => {
  const wrapped = (lines: ReadonlyArray<string>) => lines.flatMap((line) => Paint.wrap(line, sheet.columns))
  const timeline = Picture.timeline(run, sheet.columns, sheet.paint)
  const kept = wrapped(Kept.ofStopped(run))
  const spent = Picture.spent(run, unit)
  const planned = wrapped(Kept.ofPlanned(run))
  return joined([
    ...!sheet.isLive && run.items.at(-1)?._tag === "Said" ? [] : [""],
    ...timeline,
    ...timeline.length === 0 ? [] : [""],
    Picture.caption(run, usage, unit, sheet.paint),
    ...spent === undefined ? [] : [sheet.paint("dim", spent)],
    ...kept,
    ...planned.length === 0 ? [] : ["", ...planned]
  ])
}

const stoppedText = (run: Run.Run): string => {
  const names = Run.calls(run).filter((call) => call.standing === "stopped").map((call) => call.name)
  return names.length === 0 ? "Stopped; no call was running." : `Stopped while running: ${names.join(", ")}.`
}

/** The view of this process. It ends with its scope. */
export const make: Effect.Effect<View, never, Scope.Scope | Stdio.Stdio | Terminal.Terminal> = Effect.gen(function*() {
  const sheet = yield* openSheet
  const screen = new Screen(sheet)
  const now = yield* screen.now
  const state = (): Run.Run => screen.state ?? Run.begin(now)
  if (sheet.isLive) {
    yield* Effect.addFinalizer(() => Effect.ignore(sheet.write(showCursor)))
    yield* screen.draw.pipe(Effect.repeat(Schedule.spaced(tick)), Effect.ignore, Effect.forkScoped)
  }
  return {
    headline: (text) => sheet.write(`${sheet.paint("dim", text)}\n\n`),
    canType: sheet.isLive,
    typing: (draft) => screen.change((run) => Run.typing(run, draft)),
    said: (id, text) => screen.change((run) => Run.saying(run, id, text)),
    settled: (id, text, fate) => screen.change((run) => Run.settle(run, id, text, fate)),
    begin: screen.begin,
    onEvent: screen.onEvent,
    stopping: screen.stopping,
    pause: screen.settle,
    finish: (usage, unit) =>
      Effect.andThen(screen.settle, Effect.suspend(() => sheet.write(pictureOf(state(), usage, unit, sheet)))),
    interrupted: (unit) =>
      Effect.flatMap(screen.now, (now) => {
        const before = state()
        screen.state = Run.stop(before, now)
        const rest = sheet.isLive ? [] : [...Lines.remaining(before), ...Lines.stopped(state(), now)]
        const told = joined([...rest, "", stoppedText(state())])
        return Effect.andThen(screen.settle, sheet.write(`${told}${pictureOf(state(), null, unit, sheet)}`))
      }),
    run: Effect.sync(state)
  }
})
