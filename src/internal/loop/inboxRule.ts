/**
 * The rule for messages into a running run: delivers them before a request, and re-opens a run about to complete. It
 * comes with the value of `Inbox.make`, so runs without an inbox do not load it.
 *
 * A run has two rules of this name. The first delivers before any other rule sees the request; the last decides after
 * all others whether the run ends.
 */
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import * as Outcomes from "../fold/runOutcome.ts"
import type { Running } from "../stop/ownedFibers.ts"
import {
  type Closing,
  CurrentInbox,
  type Delivery,
  type End,
  type Hooks,
  type Last,
  type Receives,
  type Rule
} from "./rules.ts"

const name = "inbox"

/** The fate of a message. The first fate counts. */
export type Fate =
  | {
    readonly _tag: "Delivered"
    /** The receiving run. */
    readonly requestId: string
    /** Index of the step it was delivered before, from 0. */
    readonly stepIndex: number
  }
  | {
    readonly _tag: "Refused"
    /** Reason, as one word. */
    readonly reason: string
  }
  | { readonly _tag: "Withdrawn" }

/** Delivery time of a message. */
export type Mode = "steer" | "follow"

/** An accepted message. */
export class Letter {
  /** Message id. */
  readonly id: string
  /** Delivery time of the message. */
  readonly mode: Mode
  /** The message. */
  readonly message: Message.Message
  /** Completes with the fate. */
  readonly told: Deferred.Deferred<Fate> = Deferred.makeUnsafe()
  /** The fate, once known. */
  fate: Fate | undefined

  constructor(id: string, mode: Mode, message: Message.Message) {
    this.id = id
    this.mode = mode
    this.message = message
  }

  /** Settles the fate, unless already settled. Returns whether this fate counts. */
  settle(fate: Fate): boolean {
    if (this.fate !== undefined) return false
    this.fate = fate
    Deferred.doneUnsafe(this.told, Exit.succeed(fate))
    return true
  }
}

/** Reasons for last steps made by the run for its own answer: messages come before these. */
const answering: ReadonlySet<string> = new Set(["output", "structured"])

/** Returns `true` if the model is finished: the run completes, or formats its answer. */
const isAnswered = (next: End | Last): boolean =>
  next._tag === "End" ? next.outcome._tag === "Completed" : answering.has(next.by)

/** An open message. */
export interface Open {
  readonly id: string
  readonly mode: Mode
  readonly message: Message.Message
}

/** Messages for a run, as taken by its rules. */
export interface Box {
  /** Open messages, in order of acceptance. */
  readonly open: () => ReadonlyArray<Open>
  /** Takes messages for a step whose request includes these messages. Returns `false` if any is no longer open. */
  readonly take: (taken: ReadonlyArray<Open>, requestId: string, stepIndex: number) => boolean
  /** Closes the box at the end of the run. Returns the refused messages. */
  readonly close: (reason: string) => ReadonlyArray<Event.Of<"MessageRefused">>
  /** Returns `true` if a journal records the open message's fate. */
  readonly isKept: (message: Open) => boolean
}

/** Returns a run's rules. `open` opens the first. */
export const rulesOf = (
  box: Box,
  maxTurns: number,
  open: (hooks: Hooks) => Hooks | Pick<Rule, "open"> = (hooks) => hooks
): readonly [first: Rule, last: Rule] => {
  /** The end or last step to follow, while messages re-open the run instead. */
  let reopened: End | Last | undefined
  const delivered = (open: ReadonlyArray<Open>, requestId: string, stepIndex: number): Delivery => ({
    events: open.map(({ id, message }) => ({ _tag: "MessageDelivered", id, message, stepIndex })),
    kept: open.filter(box.isKept).map(({ id }) => id),
    take: () => {
      if (!box.take(open, requestId, stepIndex)) return false
      reopened = undefined
      return true
    }
  })
  const hooks: Hooks = {
    ask: (ask, { isRepeated, requestId, stepIndex, steps }) => {
      if (isRepeated || steps.length === 0) return ask
      const all = box.open()
      const open = reopened === undefined ? all.filter(({ mode }) => mode === "steer") : all
      if (open.length > 0) {
        const messages = open.map(({ message }) => message)
        return { _tag: "Ask", ask, messages, delivery: delivered(open, requestId, stepIndex) }
      }
      // All messages that re-opened the run were withdrawn.
      return reopened ?? ask
    }
  }
  const last: Rule & Closing = {
    name,
    next: (next, at) => {
      reopened = undefined
      if (next._tag === "Go" || at.last !== undefined || at.steps.length >= maxTurns) return next
      if (!isAnswered(next) || box.open().length === 0) return next
      reopened = next
      return { _tag: "Go", messages: [] }
    },
    closing: ({ finalized, haltedReason, outcome }) => {
      const rule = outcome._tag === "RuleEnded" ? outcome.rule : undefined
      return box.close(Outcomes.refusalOf({ haltedReason, finalized, rule }))
    }
  }
  return [{ name, ...open(hooks) }, last]
}

/** Combines a journal's messages with an inbox's, for one run. */
const bothOf = (kept: Box, letters: Letters): Box => {
  const isLetter = (open: Open): boolean => open instanceof Letter
  return {
    open: () => [...kept.open(), ...letters.open()],
    take: (taken, ...place) =>
      kept.take(taken.filter((open) => !isLetter(open)), ...place) && letters.take(taken.filter(isLetter), ...place),
    close: (reason) => [...kept.close(reason), ...letters.close(reason)],
    isKept: (open) => !isLetter(open)
  }
}

/** One inbox's messages, in order of acceptance, and the run taking its messages. */
export class Letters implements Box {
  /** Messages by id, including settled ones. */
  private readonly all = new Map<string, Letter>()
  /** Waiting messages, in order of acceptance. */
  private waiting: Array<Letter> = []
  /** The run taking the messages. */
  private taker: Pick<Running, "inboxAt"> | undefined
  /** Reason for refusing messages, once a run has ended. */
  private refusal: string | undefined
  /** Returns a message by id. */
  readonly get = (id: string): Letter | undefined => this.all.get(id)

  readonly open = (): ReadonlyArray<Letter> => this.waiting.filter(({ fate }) => fate === undefined)

  readonly isKept = (): boolean => false

  /** Returns the inbox of a run inside a handler, by its call path, preferring the latest run. */
  inside(path: ReadonlyArray<string>): Letters | undefined {
    const found = this.taker?.inboxAt(path)
    return found instanceof Letters ? found : undefined
  }

  /** Accepts a message, or refuses it after the run's end. */
  accept(letter: Letter): void {
    if (this.all.get(letter.id) === letter) return
    this.all.set(letter.id, letter)
    if (this.refusal === undefined) this.waiting.push(letter)
    else letter.settle({ _tag: "Refused", reason: this.refusal })
  }

  /** Forwards a message to the inbox of a run inside a handler. Refuses it if no such run is active. */
  forward(letter: Letter, inbox: Letters | undefined): void {
    this.all.set(letter.id, letter)
    if (inbox === undefined) letter.settle({ _tag: "Refused", reason: "finished" })
    else inbox.accept(letter)
  }

  /** Withdraws a message. Returns `false` for a settled or unknown message. */
  withdraw(id: string): boolean {
    return this.all.get(id)?.settle({ _tag: "Withdrawn" }) === true
  }

  readonly take: Box["take"] = (taken, requestId, stepIndex) => {
    const letters = new Set(taken.filter((open) => open instanceof Letter))
    for (const { fate } of letters) if (fate !== undefined) return false
    this.waiting = this.waiting.filter((letter) => letter.fate === undefined && !letters.has(letter))
    for (const letter of letters) letter.settle({ _tag: "Delivered", requestId, stepIndex })
    return true
  }

  /** Refuses open and later messages, until another run takes the inbox. */
  readonly close: Box["close"] = (reason) => {
    const { waiting } = this
    this.taker = undefined
    this.refusal = reason
    this.waiting = []
    return waiting.flatMap((letter) => {
      const { id, message } = letter
      return letter.settle({ _tag: "Refused", reason })
        ? [{ _tag: "MessageRefused", id, message, reason } as const]
        : []
    })
  }

  /** Takes the inbox for a run. An inbox in use by another run is a defect. */
  private enter(taker: Running): void {
    if (this.taker !== undefined) {
      throw new TypeError("inbox: another run has this inbox; give each run one of its own, made with Inbox.make")
    }
    this.taker = taker
    taker.inbox = this
    this.refusal = undefined
  }

  /** Returns the inbox for code inside a call: a separate one for its own runs. */
  readonly within = (): Receives => ({ letters: new Letters() })

  /** Returns the first and last rule for the run with this inbox and, if given, `kept`. */
  readonly rules = (maxTurns: number, running: Running, kept?: Box): readonly [first: Rule, last: Rule] => {
    // A run started by a handler has its own inbox, reachable through this inbox.
    const handlers = Context.make(CurrentInbox, { letters: this })
    return rulesOf(kept === undefined ? this : bothOf(kept, this), maxTurns, (hooks) => ({
      open: () =>
        Effect.suspend(() => {
          this.enter(running)
          // A run that fails, or is left by its reader, has no result.
          const left = Effect.addFinalizer((exit) =>
            Effect.sync(() => {
              const reason = Exit.isFailure(exit) && !Exit.hasInterrupts(exit) ? "failed" : "stopped"
              if (this.taker === running) this.close(reason)
            })
          )
          return Effect.as(left, { ...hooks, handlers })
        })
    }))
  }
}
