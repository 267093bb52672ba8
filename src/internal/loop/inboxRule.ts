/**
 * The rule of messages into a running run: it delivers them before a request, and re-opens a run that would complete.
 * It comes with the value of `Inbox.make`, so that runs without one do not load it.
 *
 * A run has two rules of this name. The first one delivers before any other rule sees the request, and the last one
 * decides behind all others whether the run ends.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type { Closing, Delivery, End, Last, Rule } from "./rules.ts"

const name = "inbox"

/** The fate of a message. The first one counts. */
export type Fate =
  | { readonly _tag: "Delivered"; readonly requestId: string; readonly stepIndex: number }
  | { readonly _tag: "Refused"; readonly reason: string }
  | { readonly _tag: "Withdrawn" }

/** The occasion at which a message is delivered. */
export type Mode = "steer" | "follow"

/** A message that was accepted. */
export class Letter {
  readonly id: string
  readonly mode: Mode
  readonly message: Message.Message
  readonly told: Deferred.Deferred<Fate> = Deferred.makeUnsafe()
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

const reasons: Partial<Readonly<Record<Event.Outcome["_tag"], string>>> = {
  Completed: "finished",
  AskUser: "waiting",
  ManualToolCalls: "waiting",
  ApprovalRequested: "waiting",
  Cancelled: "stopped",
  MaxTurns: "max_turns",
  Halted: "halted",
  HaltWhen: "halted"
}

/** Returns the reason for which a run takes no more messages: the rule that ended it, or the kind of its end. */
const reasonOf = ({ finalized, outcome }: Pick<Event.ChatResult, "finalized" | "outcome">): string => {
  if (outcome._tag === "RuleEnded") return outcome.rule
  return outcome._tag === "Completed" && finalized !== undefined ? finalized : reasons[outcome._tag] ?? "failed"
}

/** Reasons of last steps that the run itself takes for its answer: a message comes before these. */
const answering: ReadonlySet<string> = new Set(["output", "structured"])

/** Tells whether the model has said all: the run completes, or gives its answer a form. */
const isAnswered = (next: End | Last): boolean =>
  next._tag === "End" ? next.outcome._tag === "Completed" : answering.has(next.by)

/** The messages of one inbox, in the order of acceptance, and the run that takes them. */
export class Letters {
  private readonly all = new Map<string, Letter>()
  private waiting: ReadonlyArray<Letter> = []
  /** The run that takes the messages. */
  private taker: object | undefined
  /** The reason for which a message is refused, once a run has ended. */
  private refusal: string | undefined

  get(id: string): Letter | undefined {
    return this.all.get(id)
  }

  accept(letter: Letter): void {
    this.all.set(letter.id, letter)
    if (this.refusal === undefined) this.waiting = [...this.waiting, letter]
    else letter.settle({ _tag: "Refused", reason: this.refusal })
  }

  withdraw(id: string): boolean {
    const letter = this.all.get(id)
    if (letter?.settle({ _tag: "Withdrawn" }) !== true) return false
    this.waiting = this.waiting.filter((one) => one !== letter)
    return true
  }

  /** Refuses the open messages and all later ones, until another run takes the inbox. */
  refuse(reason: string): ReadonlyArray<Event.Of<"MessageRefused">> {
    const { waiting } = this
    this.taker = undefined
    this.refusal = reason
    this.waiting = []
    return waiting.flatMap((letter) =>
      letter.settle({ _tag: "Refused", reason }) ? [{ _tag: "MessageRefused", id: letter.id, reason } as const] : []
    )
  }

  private open(taker: object): void {
    if (this.taker !== undefined) {
      throw new TypeError("inbox: another run has this inbox; give each run one of its own, made with Inbox.make")
    }
    this.taker = taker
    this.refusal = undefined
  }

  /** Returns the rules of a run. */
  rules(maxTurns: number): readonly [first: Rule, last: Rule] {
    /** The end or the last step that would follow, while messages re-open the run in its place. */
    let reopened: End | Last | undefined
    const delivered = (letters: ReadonlyArray<Letter>, requestId: string, stepIndex: number): Delivery => ({
      events: letters.map(({ id, message }) => ({ _tag: "MessageDelivered", id, message, stepIndex })),
      take: () => {
        if (letters.some(({ fate }) => fate !== undefined)) return false
        this.waiting = this.waiting.filter((letter) => !letters.includes(letter))
        for (const letter of letters) letter.settle({ _tag: "Delivered", requestId, stepIndex })
        reopened = undefined
        return true
      }
    })
    const first: Rule = {
      name,
      open: ({ requestId }) =>
        Effect.gen({ self: this }, function*() {
          const taker = {}
          this.open(taker)
          // A run that fails, or that its reader leaves, has no result.
          yield* Effect.addFinalizer((exit) =>
            Effect.sync(() => {
              const reason = Exit.isFailure(exit) && !Exit.hasInterrupts(exit) ? "failed" : "stopped"
              if (this.taker === taker) this.refuse(reason)
            })
          )
          return {
            ask: (ask, { isRepeated, steps, stepIndex }) => {
              if (isRepeated || steps.length === 0) return ask
              const letters = reopened === undefined
                ? this.waiting.filter(({ mode }) => mode === "steer")
                : this.waiting
              if (letters.length > 0) {
                const messages = letters.map(({ message }) => message)
                return { _tag: "Ask", ask, messages, delivery: delivered(letters, requestId, stepIndex) }
              }
              // All messages that re-opened the run were withdrawn.
              return reopened ?? ask
            }
          }
        })
    }
    const last: Rule & Closing = {
      name,
      next: (next, at) => {
        reopened = undefined
        const mayGo = this.waiting.length > 0 && at.last === undefined && at.steps.length < maxTurns
        if (!mayGo || next._tag === "Go" || !isAnswered(next)) return next
        reopened = next
        return { _tag: "Go", messages: [] }
      },
      closing: (result) => this.refuse(reasonOf(result))
    }
    return [first, last]
  }
}
