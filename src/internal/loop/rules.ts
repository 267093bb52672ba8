/**
 * The seam between the turns of a run. A rule changes what the model is asked, asks again for a broken reply, or
 * decides what follows a step. Rules are asked in one order, each over what those before it said. The loop names no
 * rule.
 *
 * A decision is a function of recorded steps, so that a resumed run asks the same rules and comes to the same end.
 * Where no rule waits, asking takes no step of a fiber.
 */
import * as Effect from "effect/Effect"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Settings from "../ask/options.ts"
import type * as Requests from "../ask/request.ts"
import type * as Plan from "../decide/plan.ts"

/** The request of a step, and the declarations that decide about the calls of its reply. */
export interface Ask<E, R> extends Plan.Rules {
  readonly settings: Settings.Settings<E, R>
  readonly template: Requests.Template
}

/** The reason for which a step is the last one, in which the model has to answer. */
export type Closing = NonNullable<Event.Of<"StepCompleted">["closing"]>

/** The place of a run when its rules are asked. */
export interface At {
  /** The whole steps. */
  readonly steps: ReadonlyArray<Event.StepResult>
  /** The reason for which the step in progress is the last one, if it is; behind a step, that of the step. */
  readonly closing: Closing | undefined
  /** The number of requests that the step in progress has made. */
  readonly attempt: number
}

/** The consequence of a step: another one, a last one, or the end. */
export type Next =
  | { readonly _tag: "Go" }
  | Last
  | { readonly _tag: "End"; readonly outcome: Event.Outcome }

/** A last step, for an answer. `messages` are added to the thread before its request. */
export interface Last {
  readonly _tag: "Last"
  readonly by: Closing
  readonly messages: ReadonlyArray<Message.Message>
}

const go: Next = { _tag: "Go" }

export const end = (outcome: Event.Outcome): Next => ({ _tag: "End", outcome })

export const last = (by: Closing, messages: ReadonlyArray<Message.Message> = []): Last => ({
  _tag: "Last",
  by,
  messages
})

/** A broken reply. */
export interface Broken {
  readonly error: unknown
  /** `true` if no call of it has started, and the run is not stopped: the model may be asked again. */
  readonly mayRepeat: boolean
}

/** The consequence of a broken reply: it stays as it is, or the model is asked again after some milliseconds. */
export type Reply = { readonly _tag: "Keep" } | { readonly _tag: "AskAgain"; readonly after: number }

export const keep: Reply = { _tag: "Keep" }

/** A rule of a run. Its functions return at once, or an effect that a stop interrupts. */
export interface Rule<E, R> {
  readonly name: string
  /** Changes what the model is asked, before each request of a step; `Last` makes the step the last one instead. */
  readonly ask?: (ask: Ask<E, R>, at: At) => Ask<E, R> | Last
  /** Decides about a broken reply. The first rule that asks again decides. */
  readonly reply?: (reply: Broken, at: At) => Reply | Effect.Effect<Reply, never, R>
  /** Decides behind a whole step, over what the rules before it said. */
  readonly next?: (next: Next, at: At) => Next | Effect.Effect<Next, never, R>
}

export type Rules<E, R> = ReadonlyArray<Rule<E, R>>

const isLast = <E, R>(asked: Ask<E, R> | Last): asked is Last => "_tag" in asked

/** Returns the request of a step. Where a rule makes the step the last one, all rules are asked anew. */
export const asked = <E, R>(
  rules: Rules<E, R>,
  base: Ask<E, R>,
  at: At
): { readonly ask: Ask<E, R>; readonly closing: Closing | undefined } => {
  let ask = base
  for (const rule of rules) {
    const given = rule.ask?.(ask, at) ?? ask
    if (isLast(given)) return asked(rules, base, { ...at, closing: at.closing ?? given.by })
    ask = given
  }
  return { ask, closing: at.closing }
}

/** Runs a rule's effect by the rule's name. Succeeds with `undefined` if a stop came first. */
type Run<R> = <A>(rule: string, effect: Effect.Effect<A, never, R>) => Effect.Effect<A | undefined, never, R>

/** Asks the rules about a broken reply. Returns `undefined` if a stop came first. */
export const replied = <E, R>(
  rules: Rules<E, R>,
  reply: Broken,
  at: At,
  run: Run<R>
): Effect.Effect<Reply | undefined, never, R> => {
  let decision: Effect.Effect<Reply | undefined, never, R> = Effect.succeed(keep)
  for (const rule of rules) {
    if (rule.reply === undefined) continue
    const { name, reply: decide } = rule
    decision = Effect.flatMapEager(decision, (before) => {
      if (before?._tag !== "Keep") return Effect.succeed(before)
      const given = decide(reply, at)
      return Effect.isEffect(given) ? run(name, given) : Effect.succeed(given)
    })
  }
  return decision
}

/** Ends that no rule undoes: the run waits for an answer, was stopped, or failed. */
const fixed: ReadonlySet<Event.Outcome["_tag"]> = new Set<Event.Outcome["_tag"]>([
  "AskUser",
  "ManualToolCalls",
  "ApprovalRequested",
  "Cancelled",
  "Failed",
  "ToolFailed"
])

const isFixed = (next: Next): boolean => next._tag === "End" && fixed.has(next.outcome._tag)

/** Returns the consequence of a step, from the end that it brings by itself; `undefined` if a stop came first. */
export const decided = <E, R>(
  rules: Rules<E, R>,
  own: Event.Outcome | undefined,
  at: At,
  run: Run<R>
): Effect.Effect<Next | undefined, never, R> => {
  let decision: Effect.Effect<Next | undefined, never, R> = Effect.succeed(own === undefined ? go : end(own))
  for (const rule of rules) {
    if (rule.next === undefined) continue
    const { name, next } = rule
    decision = Effect.flatMapEager(decision, (before) => {
      if (before === undefined || isFixed(before)) return Effect.succeed(before)
      const given = next(before, at)
      return Effect.isEffect(given) ? run(name, given) : Effect.succeed(given)
    })
  }
  return decision
}
