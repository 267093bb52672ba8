/**
 * The seam between a run's turns. A rule changes the request, hears the reply, asks again, or decides what follows a
 * step. Rules are asked in one order, each seeing the results of the rules before. The loop names no rule.
 *
 * A decision depends only on recorded steps and notes, so a resumed run asks the same rules and reaches the same end.
 * If no rule waits, asking takes no fiber step.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import type * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import type * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"
import * as Thread from "../../Thread.ts"
import type * as Settings from "../ask/options.ts"
import * as Requests from "../ask/request.ts"
import type * as Plan from "../decide/plan.ts"
import * as Json from "../json.ts"
import type { Running } from "../stop/ownedFibers.ts"

/**
 * A step's request, as changed by a rule.
 *
 * @category models
 */
export interface Ask extends Plan.Rules {
  /** The requested model. */
  readonly adapter: Adapter.Service
  /** System prompt, before the messages. `undefined` without a prompt. */
  readonly system: string | undefined
  /** Resolved run options. */
  readonly settings: Settings.Settings<any, any>
  /** The request without its messages. */
  readonly template: Requests.Template
  /** Messages sent instead of the thread, which stays unchanged. Left out by default. */
  readonly view?: ReadonlyArray<Message.Message>
  /** Span attributes of the request, by name. None by default. */
  readonly attributes?: Readonly<Record<string, string | number>>
}

/**
 * Rule notes on a step, by rule name. A note is JSON of at most 65,536 characters, and a step's notes together have at
 * most 262,144.
 *
 * @category models
 */
export type Notes = Readonly<Record<string, Schema.Json>>

export const noNotes: Notes = {}

/** Returns a request offering some of its tools. Public as `Rule.offer`. */
export const offering = (ask: Ask, isOffered: (name: string) => boolean): Ask => ({
  ...ask,
  tools: new Map(Array.from(ask.tools).filter(([name]) => isOffered(name))),
  template: { ...ask.template, tools: ask.template.tools.filter(({ name }) => isOffered(name)) }
})

/** Merges notes. Later notes replace those of the same rules. */
export const both = (before: Notes, later: Notes): Notes => later === noNotes ? before : { ...before, ...later }

/** Returns a rule's note. */
export const noteIn = (notes: Notes, rule: string): Schema.Json | undefined =>
  Object.hasOwn(notes, rule) ? notes[rule] : undefined

/** Returns a rule's latest note in a run. */
export const latest = ({ noted, notes }: Pick<At, "noted" | "notes">, rule: string): Schema.Json | undefined =>
  noteIn(noted, rule) ?? noteIn(notes.findLast((step) => Object.hasOwn(step, rule)) ?? noNotes, rule)

/** Note name marking a step as last, with the reason. No rule may use this name. */
const lastName = "last"

/** Returns the reason why a step with these notes is last. */
export const lastIn = (notes: Notes | undefined): string | undefined => {
  const last = notes?.[lastName]
  return typeof last === "string" ? last : undefined
}

/**
 * A run's place when a rule is asked.
 *
 * @category models
 */
export interface At {
  /** Id of the run. */
  readonly requestId: string
  /** The thread so far, including rule messages. */
  readonly thread: Thread.Thread
  /** Whole steps, in order. */
  readonly steps: ReadonlyArray<Event.StepResult>
  /** Index of the current step, from 0. After a step, the index of the next step. */
  readonly stepIndex: number
  /** Number of requests in the current step, including those before a crash. */
  readonly attempt: number
  /** Notes on the whole steps, in order. */
  readonly notes: ReadonlyArray<Notes>
  /** Notes on the current step so far. After a step, notes made by rules for the next step. */
  readonly noted: Notes
  /** Notes kept by rules for the session, as known at the run's start. */
  readonly kept: Notes
  /** Reason why the current step is last, if known; after a step, the reason for that step. */
  readonly last: string | undefined
  /** `true` if the step's reply is already recorded: no request follows. */
  readonly isRepeated: boolean
}

/**
 * A request with a rule's additions: a note, messages, an effect.
 *
 * @category models
 */
export interface Asked<out R = never> {
  readonly _tag: "Ask"
  /** The request. */
  readonly ask: Ask
  /** Note, recorded before the request. */
  readonly note?: Schema.Json
  /** Messages added to the thread before the request, recorded with the note. */
  readonly messages?: ReadonlyArray<Message.Message>
  /** Effect run before the request, once the note and the messages are recorded. */
  readonly recorded?: Effect.Effect<unknown, never, R>
  /** Inbox messages among these, which may still be withdrawn. None for a caller's rule. */
  readonly delivery?: Delivery | undefined
}

/**
 * Inbox messages on the way into a request.
 *
 * @category models
 */
export interface Delivery {
  /** Events shown before the request. */
  readonly events: ReadonlyArray<Event.Of<"MessageDelivered">>
  /** Ids of messages whose delivery the journal records. */
  readonly kept: ReadonlyArray<string>
  /** Takes the messages, settling their fate. Returns `false` if any was withdrawn: the rules are asked again. */
  readonly take: () => boolean
}

/**
 * Consequence of a step: another step, a last step for an answer, or the end.
 *
 * @category models
 */
export type Next = Go | Last | End

/**
 * Another step.
 *
 * @category models
 */
export interface Go {
  readonly _tag: "Go"
  /** Note for the next step. */
  readonly note?: Schema.Json
  /** Messages added to the thread before the next request. */
  readonly messages?: ReadonlyArray<Message.Message>
}

/**
 * A last step, without tools: the model has to answer.
 *
 * @category models
 */
export interface Last {
  readonly _tag: "Last"
  /** Reason, in the result as `finalized`. */
  readonly by: string
  /** Note for the step. */
  readonly note?: Schema.Json
  /** Messages added to the thread before the next request. */
  readonly messages?: ReadonlyArray<Message.Message>
}

/**
 * The end of the run. A `RuleEnded` without a rule name gets the deciding rule's name.
 *
 * @category models
 */
export interface End {
  readonly _tag: "End"
  /** The run's outcome. */
  readonly outcome: Event.Outcome
  /** Typed answer, encoded, if any. */
  readonly output?: Schema.Json
}

const go: Next = { _tag: "Go" }

export const end = (outcome: Event.Outcome): End => ({ _tag: "End", outcome })

export const last = (by: string, more: Omit<Last, "_tag" | "by"> = {}): Last => ({ _tag: "Last", by, ...more })

/**
 * A reply, whole or broken, as heard by a rule.
 *
 * @category models
 */
export interface Replied {
  /** Error that broke the reply. `undefined` for a whole reply. */
  readonly error: unknown
  /** `true` if the reply has any text, reasoning or call. */
  readonly hasSaid: boolean
  /** `true` if none of its calls has started and the run is not stopped: the model may be asked again. */
  readonly mayRepeat: boolean
  /** Reported usage, including the step's discarded replies. `null` if nothing was reported. */
  readonly usage: Response.Usage | null
}

/**
 * Consequence of a reply: it is kept, or the model is asked again.
 *
 * @category models
 */
export type Reply = Keep | AskAgain

/**
 * Keeps the reply.
 *
 * @category models
 */
export interface Keep {
  readonly _tag: "Keep"
  /** Note, recorded with the step. */
  readonly note?: Schema.Json
}

/**
 * Discards the reply and asks the model again.
 *
 * @category models
 */
export interface AskAgain {
  readonly _tag: "AskAgain"
  /** Pause before the request, in milliseconds. */
  readonly after: number
  /** Note, recorded before the next request. */
  readonly note?: Schema.Json
  /** Events shown after `StepReset`. */
  readonly events?: ReadonlyArray<Event.Of<"RawChunk" | "ModelSwitched">>
}

export const keep: Reply = { _tag: "Keep" }

/**
 * A value, or an effect producing the value.
 *
 * @category models
 */
export type Decision<A, E = never, R = never> = A | Effect.Effect<A, E, R>

/**
 * A rule's functions. They return directly, or return an effect a stop may interrupt. All are optional.
 *
 * @category models
 */
export interface Hooks<out E = never, out R = never> {
  /**
   * Changes the request, or ends the run. Called before each request of a step, including retries. A failure fails the
   * run in its first step, and later becomes the outcome `Failed`.
   */
  readonly ask?: (ask: Ask, at: At) => Decision<Ask | Asked<R> | Last | End, E, R>
  /**
   * Returns events to add after a reply event while reading: the rule's own data, without effect on the reply. Not
   * called for a recorded reply.
   */
  readonly hear?: (event: Event.Event, at: At) => ReadonlyArray<Event.Of<"RawChunk" | "OutputPartial">>
  /**
   * Hears each reply, whole or broken, before its calls start. Early calls may have started, and `mayRepeat` is then
   * `false`. The first rule asking again decides.
   */
  readonly reply?: (reply: Replied, at: At) => Decision<Reply, never, R>
  /** Decides after a whole step, given the decisions of earlier rules. */
  readonly next?: (next: Next, at: At) => Decision<Next, never, R>
  /**
   * Hears the run's outcome, within its grace period. Not called for a run failing at its start or left by its reader,
   * nor in a step: there the scope of `open` closes as well.
   */
  readonly end?: (outcome: Event.Outcome, at: At) => void | Effect.Effect<unknown, never, R>
  /** Services for the run's handlers, and so for runs they start. */
  readonly handlers?: Context.Context<never>
}

/**
 * The run a rule is opened with.
 *
 * @category models
 */
export interface Run {
  /** Id of the run. */
  readonly requestId: string
  /** Session id. `null` outside a session. */
  readonly sessionId: string | null
  /** Initial thread. */
  readonly thread: Thread.Thread
  /** Notes kept by rules for the session. */
  readonly kept: Notes
  /**
   * Returns the model's latest reply so far, with its own usage. `undefined` before it is known: in a classification
   * the reply is known only at its end.
   */
  readonly heard: () => Response.Response | undefined
  /**
   * Returns the steps of runs started by its calls, at any depth, from before it was resumed. Left out for a new run.
   */
  readonly inside?: Effect.Effect<ReadonlyArray<Inside>>
}

/**
 * A step of a run inside a call, as journaled.
 *
 * @category models
 */
export interface Inside {
  /** Rule notes on the step. */
  readonly notes: Notes
  /** Usage of its reply. `null` if the reply reported nothing. Left out while no reply is recorded. */
  readonly usage?: Response.Usage | null
}

/**
 * A rule of a run.
 *
 * @category models
 */
export interface Rule<out E = never, out R = never> extends Hooks<E, R> {
  /** Name under which its notes and ends are recorded. */
  readonly name: string
  /** Opens the rule with a run. The returned functions replace the rule's own. The scope closes with the run. */
  readonly open?: (run: Run) => Effect.Effect<Hooks<E, R>, E, R | Scope.Scope>
  /** Scope of its latest note: the run (default) or the session. */
  readonly keeps?: "run" | "session"
}

/**
 * Start of a run, for its typed answer rule.
 *
 * @category models
 */
export interface OutputStart {
  /** Limit of turns. */
  readonly maxTurns: number
  /** User message before a second pass. */
  readonly prompt: string
  /** Returns the time on the run's clock, in milliseconds since 1970. */
  readonly now: () => number
}

/**
 * Accounts around code, and its spending.
 *
 * @category models
 */
export interface Spender {
  /** Spending so far by the run around this code, including runs started by its handlers. */
  readonly spent: Event.Spent
  /** Returns the accounts for a run started by this code. */
  readonly within: () => Spender
  /** Returns the first and the last rule of the run. */
  readonly rules: (isStep: boolean) => readonly [first: Rule, last: Rule]
  /** Services placing runs within these accounts. */
  readonly services: Context.Context<never>
}

/** Accounts around the code running here. */
export const CurrentBudget: Context.Reference<Spender | undefined> = Context.Reference<Spender | undefined>(
  "heddle/internal/CurrentBudget",
  { defaultValue: () => undefined }
)

/** An inbox, as seen by the loop: a value of `Inbox.make`. */
export interface Receives {
  readonly letters: {
    /** Returns the first and the last rule of the run with the inbox. */
    readonly rules: (maxTurns: number, running: Running) => readonly [first: Rule, last: Rule]
    readonly close: (reason: string) => unknown
    /** Returns the inbox for a handler's run without its own inbox. */
    readonly within: () => Receives
  }
}

/** Inbox of the run around the code running here. */
export const CurrentInbox: Context.Reference<Receives | undefined> = Context.Reference<Receives | undefined>(
  "heddle/internal/CurrentInbox",
  { defaultValue: () => undefined }
)

export type Rules<E, R> = ReadonlyArray<Rule<E, R>>

/** Rules for all runs, steps and classifications here. Public as `Rule.Inherited`. */
export const Inherited: Context.Reference<Rules<never, never>> = Context.Reference<Rules<never, never>>(
  "heddle/Rule/Inherited",
  { defaultValue: () => [] }
)

/** Runs a rule's effect. Runs, steps and classifications inside ask only the other rules, so no rule asks itself. */
const within = <A, E, R>(rule: string, effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Exit.isExit(effect)
    ? effect
    : Effect.updateService(effect, Inherited, (rules) => rules.filter(({ name }) => name !== rule))

/** Takes a rule function's return value, directly or from its effect; `undefined` if a stop came first. */
const taking = <A, B, E, R>(
  rule: string,
  given: Decision<A, E, R>,
  wait: Wait<R>,
  taken: (given: A | undefined) => B
): Effect.Effect<B, E, R> =>
  Effect.isEffect(given) ? Effect.map(wait(rule, within(rule, given)), taken) : Effect.succeed(taken(given))

/** Opens rules in order. A rule kept from opening by a stop has no functions. */
export const opened = <E, R>(
  rules: Rules<E, R>,
  run: Run,
  wait: <A>(rule: string, effect: Effect.Effect<A, E, R | Scope.Scope>) => Effect.Effect<A | undefined, E, R>
): Effect.Effect<Rules<E, R>, E, R> =>
  Effect.forEach(rules, (rule): Effect.Effect<Rule<E, R>, E, R> => {
    const { keeps, name, open } = rule
    if (open === undefined) return Effect.succeed(rule)
    const kept = keeps === undefined ? {} : { keeps }
    return Effect.map(wait(name, within(name, open(run))), (hooks) => ({ ...hooks, name, ...kept }))
  })

// Notes and messages.

/** Largest notes, in characters of JSON: one rule's about a request, and all rules' about a step. */
const largestNote = 64 * 1024
const largestNotes = 256 * 1024

const misused = (rule: string, problem: string): Error => new Error(`rule ${JSON.stringify(rule)}: ${problem}`)

/** Converts a rule's data, such as its note, to JSON. */
const written = (rule: string, what: string, said: unknown): Schema.Json => {
  const json = Json.toJson(said)
  if (!Json.isSame(json, said)) throw misused(rule, `its ${what} is no JSON: ${Json.render(said)}`)
  const size = JSON.stringify(json).length
  if (size > largestNote) {
    throw misused(rule, `its ${what} has ${size} characters of JSON; give at most ${largestNote}, such as an id`)
  }
  return json
}

/** Adds a rule's note to notes, as JSON. `before` has the step's earlier notes. */
const noting = (before: Notes, notes: Notes, rule: string, note: Schema.Json | undefined): Notes => {
  if (note === undefined) return notes
  const all = { ...notes, [rule]: written(rule, "note", note) }
  if (JSON.stringify(both(before, all)).length > largestNotes) {
    throw misused(rule, `with its note, those of the step have more than ${largestNotes} characters of JSON`)
  }
  return all
}

/** Returns the problem with a list of messages. Runs also take a text or a thread, but a rule must give a list. */
const problemOf = (messages: unknown): string | undefined => {
  if (!Array.isArray(messages)) return `give a list of messages; got: ${Json.render(messages)}`
  const valid = Thread.validate(messages)
  return Result.isFailure(valid) ? valid.failure.message : undefined
}

/** Returns a rule's messages. No rule may break the law of valid threads. */
const saying = (
  rule: string,
  messages: ReadonlyArray<Message.Message> | undefined
): ReadonlyArray<Message.Message> => {
  if (messages === undefined) return []
  const problem = problemOf(messages)
  if (problem !== undefined) throw misused(rule, `its messages are none: ${problem}`)
  for (const { role, toolCalls } of messages) {
    if (role === "tool" || toolCalls !== undefined) {
      throw misused(rule, "its messages have calls, or answers to calls; add messages of a user, or of the assistant")
    }
  }
  return messages
}

// The request.

/** A request made by the rules. */
export interface Prepared<out R> {
  readonly _tag: "Ask"
  readonly ask: Ask
  /** Their notes on the request. */
  readonly notes: Notes
  readonly messages: ReadonlyArray<Message.Message>
  /** Effects to run once the messages are recorded, by rule name. */
  readonly recorded: ReadonlyArray<readonly [rule: string, effect: Effect.Effect<unknown, never, R>]>
  /** Inbox messages among these. */
  readonly delivery: Delivery | undefined
}

/** Runs a rule's effect by the rule's name. Succeeds with `undefined` if a stop came first. */
type Wait<R> = <A, E>(rule: string, effect: Effect.Effect<A, E, R>) => Effect.Effect<A | undefined, E, R>

const isTagged = (given: object): given is { readonly _tag: string } => "_tag" in given

/** A rule's additions to a request. */
interface Said<out R> {
  readonly rule: string
  readonly messages: ReadonlyArray<Message.Message>
  readonly recorded: Effect.Effect<unknown, never, R> | undefined
  readonly delivery: Delivery | undefined
}

/** A request being made by the rules, with additions by rule position. */
interface Draft<out R> {
  readonly _tag: "Ask" | "Last"
  readonly ask: Ask
  readonly notes: Notes
  readonly said: ReadonlyArray<Said<R> | undefined>
  /** Position of the rule setting the view. Additions by this and later rules follow the view. */
  readonly viewer: number
}

const nothingSaid: Draft<never>["said"] = []

/** Returns the rules' messages, inbox messages last. */
const messagesOf = (said: Draft<unknown>["said"]): ReadonlyArray<Message.Message> => {
  const delivered = said.find((one) => one?.delivery !== undefined)
  const own = said.flatMap((one) => one === delivered ? [] : one?.messages ?? [])
  return delivered === undefined ? own : [...own, ...delivered.messages]
}

/** Returns the place for a rule, including additions by earlier rules. */
const hereOf = (at: At, notes: Notes, messages: ReadonlyArray<Message.Message>): At =>
  notes === noNotes && messages.length === 0 ? at : {
    ...at,
    noted: both(at.noted, notes),
    last: at.last ?? lastIn(notes),
    thread: messages.length === 0 ? at.thread : Thread.append(at.thread, messages)
  }

/**
 * Returns a step's request, or the end replacing it; `undefined` if a stop came first. If a rule makes the step last,
 * all rules are asked again, with their notes so far. A rule's earlier additions stay unless it now adds something
 * else.
 */
export const asked = <E, R>(
  rules: Rules<E, R>,
  base: Ask,
  at: At,
  wait: Wait<R>
): Effect.Effect<Prepared<R> | End | undefined, E, R> => askedFrom(rules, base, at, wait, noNotes, nothingSaid)

type Given<R> = Ask | Asked<R> | Last | End | undefined

const askedFrom = <E, R>(
  rules: Rules<E, R>,
  base: Ask,
  at: At,
  wait: Wait<R>,
  notes: Notes,
  said: Draft<R>["said"]
): Effect.Effect<Prepared<R> | End | undefined, E, R> => {
  type Pass = Draft<R> | End | undefined
  let pass: Effect.Effect<Pass, E, R> = Effect.succeed({ _tag: "Ask", ask: base, notes, said, viewer: 0 })
  rules.forEach((rule, place) => {
    if (rule.ask === undefined) return
    const { ask: decide, name } = rule
    pass = Effect.flatMapEager(pass, (before): Effect.Effect<Pass, E, R> => {
      if (before?._tag !== "Ask") return Effect.succeed(before)
      const here = hereOf(at, before.notes, before.said === nothingSaid ? [] : messagesOf(before.said.slice(0, place)))
      const given = decide(before.ask, here)
      const taken = (given: Given<R>): Pass => {
        if (given === undefined) return undefined
        if (!isTagged(given)) return asking(name, place, before, given)
        if (given._tag === "End") return named(name, given)
        if (given._tag === "Last") {
          if (here.last !== undefined) return before
          const notes = { ...noting(at.noted, before.notes, name, given.note), [lastName]: given.by }
          return { ...adding(name, place, before, given), _tag: "Last", notes }
        }
        const asked = asking(name, place, before, given.ask)
        return { ...adding(name, place, asked, given), notes: noting(at.noted, before.notes, name, given.note) }
      }
      return given === before.ask ? Effect.succeed(before) : taking(name, given, wait, taken)
    })
  })
  return Effect.flatMapEager(pass, (draft): Effect.Effect<Prepared<R> | End | undefined, E, R> => {
    if (draft === undefined || draft._tag === "End") return Effect.succeed(draft)
    return draft._tag === "Last"
      ? askedFrom(rules, base, at, wait, draft.notes, draft.said)
      : Effect.succeed(preparedOf(draft))
  })
}

/** Returns a request as changed by a rule. */
const asking = <R>(rule: string, place: number, before: Draft<R>, ask: Ask): Draft<R> => {
  if (ask.view === before.ask.view) return { ...before, ask }
  return { ...before, ask: checked(rule, ask), viewer: place }
}

/** Returns a request with a rule's additions. */
const adding = <R>(
  rule: string,
  place: number,
  before: Draft<R>,
  { delivery, messages, recorded }: Pick<Asked<R>, "delivery" | "messages" | "recorded">
): Draft<R> => {
  if ((messages ?? recorded) === undefined) return before
  const said = before.said.slice()
  said[place] = { rule, messages: saying(rule, messages), recorded: recorded && within(rule, recorded), delivery }
  return { ...before, said }
}

const preparedOf = <R>({ ask, notes, said, viewer }: Draft<R>): Prepared<R> => {
  if (said === nothingSaid) return { _tag: "Ask", ask, notes, messages: [], recorded: [], delivery: undefined }
  const { view } = ask
  return {
    _tag: "Ask",
    ask: view === undefined ? ask : { ...ask, view: [...view, ...messagesOf(said.slice(viewer))] },
    notes,
    messages: messagesOf(said),
    recorded: said.flatMap((one) => one?.recorded === undefined ? [] : [[one.rule, one.recorded] as const]),
    delivery: said.find((one) => one?.delivery !== undefined)?.delivery
  }
}

/** Checks a rule's request. Its shown messages must be a valid thread. */
const checked = (rule: string, ask: Ask): Ask => {
  if (ask.view === undefined) return ask
  const problem = problemOf(ask.view)
  if (problem !== undefined) throw misused(rule, `its view is no valid thread: ${problem}`)
  const [issue] = Requests.pairingIssues(ask.view)
  if (issue !== undefined) throw misused(rule, `its view is no valid thread: ${JSON.stringify(issue)}`)
  return ask
}

/** Returns an end with the deciding rule's name. */
const named = (rule: string, given: End): End =>
  given.outcome._tag !== "RuleEnded" || given.outcome.rule !== "" ? given : end({
    ...given.outcome,
    rule,
    ...(given.outcome.detail === undefined ? {} : { detail: written(rule, "detail", given.outcome.detail) })
  })

// The reply.

/** The rules' answer to a reply. */
export interface Heard {
  /** The decision to ask again, if any. */
  readonly again: AskAgain | undefined
  readonly notes: Notes
}

/** Asks the rules about a reply. All hear the reply, and the first to ask again decides. */
export const replied = <E, R>(
  rules: Rules<E, R>,
  reply: Replied,
  at: At,
  wait: Wait<R>
): Effect.Effect<Heard, never, R> => {
  let heard: Effect.Effect<Heard, never, R> = Effect.succeed({ again: undefined, notes: noNotes })
  for (const rule of rules) {
    if (rule.reply === undefined) continue
    const { name, reply: decide } = rule
    heard = Effect.flatMapEager(heard, (before) => {
      const mayRepeat = reply.mayRepeat && before.again === undefined
      const given = decide(
        mayRepeat === reply.mayRepeat ? reply : { ...reply, mayRepeat },
        hereOf(at, before.notes, [])
      )
      const taken = (given: Reply | undefined): Heard =>
        given === undefined ? before : {
          again: given._tag === "AskAgain" && mayRepeat ? given : before.again,
          notes: noting(at.noted, before.notes, name, given.note)
        }
      return taking(name, given, wait, taken)
    })
  }
  return heard
}

// The step.

/** Ends no rule may undo: the run waits for an answer, was stopped, or failed. */
const fixed: ReadonlySet<Event.Outcome["_tag"]> = new Set<Event.Outcome["_tag"]>([
  "AskUser",
  "ManualToolCalls",
  "ApprovalRequested",
  "Cancelled",
  "Failed",
  "ToolFailed"
])

const isFixed = (next: Next): boolean => next._tag === "End" && fixed.has(next.outcome._tag)

/** Consequence of a step, with notes for the next step. */
export interface Decided {
  readonly next: Next
  readonly notes: Notes
}

/** Returns what follows a step, starting from the step's own end; `undefined` if a stop came first. */
export const decided = <E, R>(
  rules: Rules<E, R>,
  own: Event.Outcome | undefined,
  at: At,
  wait: Wait<R>
): Effect.Effect<Decided | undefined, never, R> => {
  const first: Decided = { next: own === undefined ? go : end(own), notes: noNotes }
  let decision: Effect.Effect<Decided | undefined, never, R> = Effect.succeed(first)
  for (const rule of rules) {
    if (rule.next === undefined) continue
    const { name, next } = rule
    decision = Effect.flatMapEager(decision, (before): Effect.Effect<Decided | undefined, never, R> => {
      if (before === undefined || isFixed(before.next)) return Effect.succeed(before)
      const given = next(before.next, before.notes === noNotes ? at : { ...at, noted: before.notes })
      const taken = (given: Next | undefined): Decided | undefined => {
        if (given === undefined || given === before.next) return given && before
        if (given._tag === "End") return { next: named(name, given), notes: before.notes }
        // An earlier rule's messages stay, unless a later rule has its own.
        const said = before.next._tag === "End" ? undefined : before.next.messages
        const messages = given.messages === undefined ? said : saying(name, given.messages)
        const { messages: _, note, ...next } = given
        return {
          next: messages === undefined ? next : { ...next, messages },
          notes: noting(noNotes, before.notes, name, note)
        }
      }
      return taking(name, given, wait, taken)
    })
  }
  return Effect.mapEager(decision, (decided) =>
    decided?.next._tag === "Last"
      ? { next: decided.next, notes: { ...decided.notes, [lastName]: decided.next.by } }
      : decided)
}

// The end.

/** Reports the run's outcome to the rules, in order. */
export const ended = <E, R>(
  rules: Rules<E, R>,
  outcome: Event.Outcome,
  at: At,
  wait: Wait<R>
): Effect.Effect<void, never, R> => {
  let told: Effect.Effect<unknown, never, R> = Effect.void
  for (const { end, name } of rules) {
    if (end === undefined) continue
    told = Effect.flatMapEager(told, () => {
      const given = end(outcome, at)
      return Effect.isEffect(given) ? wait(name, within(name, given)) : Effect.void
    })
  }
  return told as Effect.Effect<void, never, R>
}

/** A rule reporting what the end of its run leaves undone. */
export interface Closing {
  readonly closing: (result: Event.ChatResult) => ReadonlyArray<Event.Of<"MessageRefused">>
}

/** Closes the rules with the run's result. Returns events to show before the end of the run. */
export const closed = <E, R>(rules: Rules<E, R>, result: Event.ChatResult): ReadonlyArray<Event.Event> => {
  const closing = rules.find((rule) => "closing" in rule) as Closing | undefined
  return closing?.closing(result) ?? []
}

/** Functions of an accounting rule. */
export interface Accounting {
  /** Returns the run's spending, from its steps' notes. */
  readonly spent: (notes: ReadonlyArray<Notes>) => Event.Spent
  /** Returns the note for the session, which differs from the latest step's. */
  readonly keptNote: () => Schema.Json
}

/** Returns the functions of the rule with the run's account, if any. */
export const accountingOf = (rule: object): Accounting | undefined =>
  "keptNote" in rule ? rule as Accounting : undefined

/** Returns the latest notes of session-keeping rules, including notes by rules missing in this run. */
export const keptBy = <E, R>(rules: Rules<E, R>, at: At): Notes => {
  const { kept } = at
  const news = rules.flatMap((rule) => {
    const { keeps, name } = rule
    const note = keeps === "session" ? accountingOf(rule)?.keptNote() ?? latest(at, name) : undefined
    return note === undefined ? [] : [[name, note] as const]
  })
  return news.length === 0 ? kept : { ...kept, ...Object.fromEntries(news) }
}
