/**
 * The rule of messages into a running run: it delivers them before a request, and re-opens a run that would complete.
 * It comes with the value of `Inbox.make`, so that runs without one do not load it.
 *
 * A run has two rules of this name. The first one delivers before any other rule sees the request, and the last one
 * decides behind all others whether the run ends.
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

/** The fate of a message. The first one counts. */
export type Fate =
  | {
    readonly _tag: "Delivered"
    /** The run that the message was delivered to. */
    readonly requestId: string
    /** The step before which it was delivered, from 0. */
    readonly stepIndex: number
  }
  | {
    readonly _tag: "Refused"
    /** The reason, as one word. */
    readonly reason: string
  }
  | { readonly _tag: "Withdrawn" }

/** The occasion at which a message is delivered. */
export type Mode = "steer" | "follow"

/** A message that was accepted. */
export class Letter {
  /** The id. */
  readonly id: string
  /** The occasion at which it is delivered. */
  readonly mode: Mode
  /** The message. */
  readonly message: Message.Message
  /** Completes with the fate. */
  readonly told: Deferred.Deferred<Fate> = Deferred.makeUnsafe()
  /** The fate, once it is known. */
  fate: Fate | undefined

  constructor(id: string, mode: Mode, message: Message.Message) {
    this.id = id
    this.mode = mode
    this.message = message
  }

  /** Settles the fate. The first one counts. Returns whether it is this one. */
  settle(fate: Fate): boolean {
    if (this.fate !== undefined) return false
    this.fate = fate
    Deferred.doneUnsafe(this.told, Exit.succeed(fate))
    return true
  }
}

/** Reasons of last steps that the run itself takes for its answer: a message comes before these. */
const answering: ReadonlySet<string> = new Set(["output", "structured"])

/** Tells whether the model has said all: the run completes, or gives its answer a form. */
const isAnswered = (next: End | Last): boolean =>
  next._tag === "End" ? next.outcome._tag === "Completed" : answering.has(next.by)

/** An open message. */
export interface Open {
  readonly id: string
  readonly mode: Mode
  readonly message: Message.Message
}

/** The messages for a run, as its rules take them. */
export interface Box {
  /** The open messages, in the order of acceptance. */
  readonly open: () => ReadonlyArray<Open>
  /** Takes messages for a step, whose request has them. `false` where one of them is not open any more. */
  readonly take: (taken: ReadonlyArray<Open>, requestId: string, stepIndex: number) => boolean
  /** Closes the box with the end of the run. Returns the refused messages. */
  readonly close: (reason: string) => ReadonlyArray<Event.Of<"MessageRefused">>
  /** Tells whether a journal has the fate of an open message. */
  readonly isKept: (message: Open) => boolean
}

/** Returns the rules of a run. `open` opens the first one. */
export const rulesOf = (
  box: Box,
  maxTurns: number,
  open: (hooks: Hooks) => Hooks | Pick<Rule, "open"> = (hooks) => hooks
): readonly [first: Rule, last: Rule] => {
  /** The end or the last step that would follow, while messages re-open the run in its place. */
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

/** Returns the messages of a journal and those of an inbox, as one run takes them. */
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

/** The messages of one inbox, in the order of acceptance, and the run that takes them. */
export class Letters implements Box {
  /** The messages by their ids, also those whose fate is known. */
  private readonly all = new Map<string, Letter>()
  /** The messages that wait, in the order of acceptance. */
  private waiting: Array<Letter> = []
  /** The run that takes the messages. */
  private taker: Pick<Running, "inboxAt"> | undefined
  /** The reason for which a message is refused, once a run has ended. */
  private refusal: string | undefined
  /** Returns the message of an id. */
  readonly get = (id: string): Letter | undefined => this.all.get(id)

  readonly open = (): ReadonlyArray<Letter> => this.waiting.filter(({ fate }) => fate === undefined)

  readonly isKept = (): boolean => false

  /** Returns the inbox of a run inside a handler, by the path of its call: of the run begun last. */
  inside(path: ReadonlyArray<string>): Letters | undefined {
    const found = this.taker?.inboxAt(path)
    return found instanceof Letters ? found : undefined
  }

  /** Takes a message, which is refused where the run has ended. */
  accept(letter: Letter): void {
    if (this.all.get(letter.id) === letter) return
    this.all.set(letter.id, letter)
    if (this.refusal === undefined) this.waiting.push(letter)
    else letter.settle({ _tag: "Refused", reason: this.refusal })
  }

  /** Passes a message on to the inbox of a run inside a handler. It is refused where no such run is under way. */
  forward(letter: Letter, inbox: Letters | undefined): void {
    this.all.set(letter.id, letter)
    if (inbox === undefined) letter.settle({ _tag: "Refused", reason: "finished" })
    else inbox.accept(letter)
  }

  /** Withdraws a message. `false` where its fate is known, or no message has the id. */
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

  /** Refuses the open messages and all later ones, until another run takes the inbox. */
  readonly close: Box["close"] = (reason) => {
    const { waiting } = this
    this.taker = undefined
    this.refusal = reason
    this.waiting = []
    return waiting.flatMap((letter) =>
      letter.settle({ _tag: "Refused", reason }) ? [{ _tag: "MessageRefused", id: letter.id, reason } as const] : []
    )
  }

  /** Takes the inbox for a run. One that another run has is a defect. */
  private enter(taker: Running): void {
    if (this.taker !== undefined) {
      throw new TypeError("inbox: another run has this inbox; give each run one of its own, made with Inbox.make")
    }
    this.taker = taker
    taker.inbox = this
    this.refusal = undefined
  }

  /** Returns what the code of a call gets: an inbox of its own. */
  readonly within = (): Receives => ({ letters: new Letters() })

  /** Returns the rules of the run that has the inbox, and with it `kept`: the first and the last one. */
  readonly rules = (maxTurns: number, running: Running, kept?: Box): readonly [first: Rule, last: Rule] => {
    // A run that a handler starts has an inbox of its own, which this one reaches.
    const handlers = Context.make(CurrentInbox, { letters: this })
    return rulesOf(kept === undefined ? this : bothOf(kept, this), maxTurns, (hooks) => ({
      open: () =>
        Effect.suspend(() => {
          this.enter(running)
          // A run that fails, or that its reader leaves, has no result.
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
