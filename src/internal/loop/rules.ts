/**
 * The seam between the turns of a run. A rule changes what the model is asked, hears the reply, asks again for it, or
 * decides what follows a step. Rules are asked in one order, each over what those before it said. The loop names no
 * rule.
 *
 * A decision is a function of recorded steps and of notes, so that a resumed run asks the same rules and comes to the
 * same end. Where no rule waits, asking takes no step of a fiber.
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
 * The request of a step, as a rule changes it.
 *
 * @category models
 * @since 0.1.0
 */
export interface Ask extends Plan.Rules {
  /** The model that is asked. */
  readonly adapter: Adapter.Service
  /** The system prompt, which stands before the messages. `undefined` for none. */
  readonly system: string | undefined
  /** The options of the run, resolved. */
  readonly settings: Settings.Settings<any, any>
  /** The request without its messages. */
  readonly template: Requests.Template
  /** The messages that are sent in place of the thread, which stays as it is. Left out by default. */
  readonly view?: ReadonlyArray<Message.Message>
  /** Attributes of the request's span, by their names. None by default. */
  readonly attributes?: Readonly<Record<string, string | number>>
}

/**
 * Notes of rules about a step, by their names. A note is JSON of at most 65,536 characters, and the notes of a step
 * together have at most 262,144.
 *
 * @category models
 * @since 0.1.0
 */
export type Notes = Readonly<Record<string, Schema.Json>>

export const noNotes: Notes = {}

/** Returns a request that offers some of its tools. Public as `Rule.offer`. */
export const offering = (ask: Ask, isOffered: (name: string) => boolean): Ask => ({
  ...ask,
  tools: new Map(Array.from(ask.tools).filter(([name]) => isOffered(name))),
  template: { ...ask.template, tools: ask.template.tools.filter(({ name }) => isOffered(name)) }
})

/** Returns the notes of both. The later ones replace those of the same rules. */
export const both = (before: Notes, later: Notes): Notes => later === noNotes ? before : { ...before, ...later }

/** Returns the note of a rule. */
export const noteIn = (notes: Notes, rule: string): Schema.Json | undefined =>
  Object.hasOwn(notes, rule) ? notes[rule] : undefined

/** Returns the latest note of a rule in a run. */
export const latest = ({ noted, notes }: Pick<At, "noted" | "notes">, rule: string): Schema.Json | undefined =>
  noteIn(noted, rule) ?? noteIn(notes.findLast((step) => Object.hasOwn(step, rule)) ?? noNotes, rule)

/** The name under which the notes of a step say that it is the last one, and why. No rule has it. */
const lastName = "last"

/** Returns the reason for which a step with these notes is the last one. */
export const lastIn = (notes: Notes | undefined): string | undefined => {
  const last = notes?.[lastName]
  return typeof last === "string" ? last : undefined
}

/**
 * The place of a run when a rule is asked.
 *
 * @category models
 * @since 0.1.0
 */
export interface At {
  /** The id of the run. */
  readonly requestId: string
  /** The thread so far, with the messages of rules. */
  readonly thread: Thread.Thread
  /** The whole steps, in order. */
  readonly steps: ReadonlyArray<Event.StepResult>
  /** The index of the step in progress, from 0. Behind a step, the index of the next one. */
  readonly stepIndex: number
  /** The number of requests that the step in progress has made, also before a crash. */
  readonly attempt: number
  /** The notes of the whole steps, in order. */
  readonly notes: ReadonlyArray<Notes>
  /** The notes of the step in progress so far. Behind a step, those that rules have made for the next one. */
  readonly noted: Notes
  /** The notes of rules that keep theirs for the session, as the run began with them. */
  readonly kept: Notes
  /** The reason for which the step in progress is the last one, if one is known; behind a step, that of the step. */
  readonly last: string | undefined
  /** `true` where the reply of the step is already recorded: no request follows. */
  readonly isRepeated: boolean
}

/**
 * A request with what a rule adds to it: a note, messages, an effect.
 *
 * @category models
 * @since 0.1.0
 */
export interface Asked<out R = never> {
  readonly _tag: "Ask"
  /** The request. */
  readonly ask: Ask
  /** A note, which is recorded before the request. */
  readonly note?: Schema.Json
  /** Messages that are added to the thread before the request, and recorded with the note. */
  readonly messages?: ReadonlyArray<Message.Message>
  /** An effect that runs before the request, once the note and the messages are recorded. */
  readonly recorded?: Effect.Effect<unknown, never, R>
  /** The messages of an inbox among these, which may still be withdrawn. None for a rule of a caller. */
  readonly delivery?: Delivery | undefined
}

/**
 * Messages of an inbox, on the way into a request.
 *
 * @category models
 * @since 0.1.0
 */
export interface Delivery {
  /** The events that are shown before the request. */
  readonly events: ReadonlyArray<Event.Of<"MessageDelivered">>
  /** The ids of those whose delivery the journal records. */
  readonly kept: ReadonlyArray<string>
  /** Takes the messages, whose fate is then known. `false` where one was withdrawn: the rules are asked anew. */
  readonly take: () => boolean
}

/**
 * The consequence of a step: another one, a last one for an answer, or the end.
 *
 * @category models
 * @since 0.1.0
 */
export type Next = Go | Last | End

/**
 * Another step.
 *
 * @category models
 * @since 0.1.0
 */
export interface Go {
  readonly _tag: "Go"
  /** A note for the next step. */
  readonly note?: Schema.Json
  /** Messages that are added to the thread before the next request. */
  readonly messages?: ReadonlyArray<Message.Message>
}

/**
 * A last step, in which the model has no tools and has to answer.
 *
 * @category models
 * @since 0.1.0
 */
export interface Last {
  readonly _tag: "Last"
  /** The reason, which the result has as `finalized`. */
  readonly by: string
  /** A note for the step. */
  readonly note?: Schema.Json
  /** Messages that are added to the thread before the next request. */
  readonly messages?: ReadonlyArray<Message.Message>
}

/**
 * The end of the run. A `RuleEnded` that names no rule gets the deciding rule's name.
 *
 * @category models
 * @since 0.1.0
 */
export interface End {
  readonly _tag: "End"
  /** The outcome of the run. */
  readonly outcome: Event.Outcome
  /** The typed answer, encoded, where the end has one. */
  readonly output?: Schema.Json
}

const go: Next = { _tag: "Go" }

export const end = (outcome: Event.Outcome): End => ({ _tag: "End", outcome })

export const last = (by: string, more: Omit<Last, "_tag" | "by"> = {}): Last => ({ _tag: "Last", by, ...more })

/**
 * A reply, whole or broken, as a rule hears it.
 *
 * @category models
 * @since 0.1.0
 */
export interface Replied {
  /** The error that broke it. `undefined` for a whole reply. */
  readonly error: unknown
  /** `true` if it has said something: text, reasoning or a call. */
  readonly hasSaid: boolean
  /** `true` if no call of it has started, and the run is not stopped: the model may be asked again. */
  readonly mayRepeat: boolean
  /** The usage that it reported, with that of the discarded replies of its step. `null` for none. */
  readonly usage: Response.Usage | null
}

/**
 * The consequence of a reply: it stays as it is, or the model is asked again.
 *
 * @category models
 * @since 0.1.0
 */
export type Reply = Keep | AskAgain

/**
 * The reply stays as it is.
 *
 * @category models
 * @since 0.1.0
 */
export interface Keep {
  readonly _tag: "Keep"
  /** A note, which is recorded with the step. */
  readonly note?: Schema.Json
}

/**
 * The reply is discarded, and the model is asked again.
 *
 * @category models
 * @since 0.1.0
 */
export interface AskAgain {
  readonly _tag: "AskAgain"
  /** The wait before the request, in milliseconds. */
  readonly after: number
  /** A note, which is recorded before the next request. */
  readonly note?: Schema.Json
  /** Events that are shown behind `StepReset`. */
  readonly events?: ReadonlyArray<Event.Of<"RawChunk" | "ModelSwitched">>
}

export const keep: Reply = { _tag: "Keep" }

/**
 * A value, or an effect that succeeds with it.
 *
 * @category models
 * @since 0.1.0
 */
export type Decision<A, E = never, R = never> = A | Effect.Effect<A, E, R>

/**
 * The functions of a rule. They return at once, or an effect that a stop interrupts. All of them may be left out.
 *
 * @category models
 * @since 0.1.0
 */
export interface Hooks<out E = never, out R = never> {
  /**
   * Changes what the model is asked, or ends the run. Called before each request of a step, for a retry too. A failure
   * fails the run in its first step, and is the outcome `Failed` later.
   */
  readonly ask?: (ask: Ask, at: At) => Decision<Ask | Asked<R> | Last | End, E, R>
  /**
   * Returns the events that follow an event of the reply, while it is read: data of the rule, which changes nothing of
   * the reply. Not called for a recorded reply.
   */
  readonly hear?: (event: Event.Event, at: At) => ReadonlyArray<Event.Of<"RawChunk" | "OutputPartial">>
  /**
   * Hears each reply, whole or broken, before its calls start: but for those that start early, `mayRepeat` is then
   * `false`. The first rule that asks again decides.
   */
  readonly reply?: (reply: Replied, at: At) => Decision<Reply, never, R>
  /** Decides behind a whole step, over what the rules before it said. */
  readonly next?: (next: Next, at: At) => Decision<Next, never, R>
  /**
   * Hears the outcome of the run, within its grace period. Not called for a run that fails at its start, or that its
   * reader leaves, nor in a step: the scope of `open` closes there, too.
   */
  readonly end?: (outcome: Event.Outcome, at: At) => void | Effect.Effect<unknown, never, R>
  /** Services for the handlers of the run, and so for the runs that they start. */
  readonly handlers?: Context.Context<never>
}

/**
 * The run that a rule is opened with.
 *
 * @category models
 * @since 0.1.0
 */
export interface Run {
  /** The id of the run. */
  readonly requestId: string
  /** The id of its session. `null` outside of one. */
  readonly sessionId: string | null
  /** The thread that it begins with. */
  readonly thread: Thread.Thread
  /** The notes of rules that keep theirs for the session. */
  readonly kept: Notes
  /**
   * Returns the latest reply of the model, as far as it has come, with its own usage. `undefined` before it is known: a
   * classification has its reply at the end alone.
   */
  readonly heard: () => Response.Response | undefined
  /**
   * Returns the steps of the runs that its calls have started, at any depth, from before it was resumed. Left out for
   * a run that begins.
   */
  readonly inside?: Effect.Effect<ReadonlyArray<Inside>>
}

/**
 * A step of a run inside a call, as its journal has it.
 *
 * @category models
 * @since 0.1.0
 */
export interface Inside {
  /** The notes of rules about the step. */
  readonly notes: Notes
  /** The usage of its reply. `null` where the reply reported none. Left out while no reply is recorded. */
  readonly usage?: Response.Usage | null
}

/**
 * A rule of a run.
 *
 * @category models
 * @since 0.1.0
 */
export interface Rule<out E = never, out R = never> extends Hooks<E, R> {
  /** The name under which its notes and its ends are recorded. */
  readonly name: string
  /** Opens the rule with a run. Its functions replace those of the rule. The scope closes with the run. */
  readonly open?: (run: Run) => Effect.Effect<Hooks<E, R>, E, R | Scope.Scope>
  /** The extent of its latest note: the run, which is the default, or the session. */
  readonly keeps?: "run" | "session"
}

/**
 * The beginning of a run, for the rule of its typed answer.
 *
 * @category models
 * @since 0.1.0
 */
export interface OutputStart {
  /** The bound of turns. */
  readonly maxTurns: number
  /** The user message before a second pass. */
  readonly prompt: string
  /** Returns the time of the run's clock, in milliseconds since 1970. */
  readonly now: () => number
}

/**
 * The accounts around code, and what it has spent on them.
 *
 * @category models
 * @since 0.1.0
 */
export interface Spender {
  /** The amount that the run around this code has spent so far, with the runs that its handlers started. */
  readonly spent: Event.Spent
  /** Returns the accounts of a run that this code starts. */
  readonly within: () => Spender
  /** Returns the rules of the run: the first and the last one in its order. */
  readonly rules: (isStep: boolean) => readonly [first: Rule, last: Rule]
  /** The services by which runs are within these accounts. */
  readonly services: Context.Context<never>
}

/** The accounts around what runs here. */
export const CurrentBudget: Context.Reference<Spender | undefined> = Context.Reference<Spender | undefined>(
  "heddle/internal/CurrentBudget",
  { defaultValue: () => undefined }
)

/** An inbox, as the loop knows it: a value of `Inbox.make`. */
export interface Receives {
  readonly letters: {
    /** Returns the rules of the run that has the inbox: the first and the last one in its order. */
    readonly rules: (maxTurns: number, running: Running) => readonly [first: Rule, last: Rule]
    readonly close: (reason: string) => unknown
    /** Returns the inbox of a run that a handler starts without one. */
    readonly within: () => Receives
  }
}

/** The inbox of the run around what runs here. */
export const CurrentInbox: Context.Reference<Receives | undefined> = Context.Reference<Receives | undefined>(
  "heddle/internal/CurrentInbox",
  { defaultValue: () => undefined }
)

export type Rules<E, R> = ReadonlyArray<Rule<E, R>>

/** The rules of every run, step and classification here. Public as `Rule.Inherited`. */
export const Inherited: Context.Reference<Rules<never, never>> = Context.Reference<Rules<never, never>>(
  "heddle/Rule/Inherited",
  { defaultValue: () => [] }
)

/** An effect of a rule. Runs, steps and classifications in it ask the other rules, so that no rule asks itself. */
const within = <A, E, R>(rule: string, effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Exit.isExit(effect)
    ? effect
    : Effect.updateService(effect, Inherited, (rules) => rules.filter(({ name }) => name !== rule))

/** Takes what a function of a rule returns: at once, or behind its effect; `undefined` if a stop came first. */
const taking = <A, B, E, R>(
  rule: string,
  given: Decision<A, E, R>,
  wait: Wait<R>,
  taken: (given: A | undefined) => B
): Effect.Effect<B, E, R> =>
  Effect.isEffect(given) ? Effect.map(wait(rule, within(rule, given)), taken) : Effect.succeed(taken(given))

/** Opens rules in their order. One that a stop keeps from opening has no functions. */
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

/** The most that rules may note, in characters of JSON: one rule about a request, and all about a step. */
const largestNote = 64 * 1024
const largestNotes = 256 * 1024

const misused = (rule: string, problem: string): Error => new Error(`rule ${JSON.stringify(rule)}: ${problem}`)

/** Returns what a rule says as JSON, such as its note. */
const written = (rule: string, what: string, said: unknown): Schema.Json => {
  const json = Json.toJson(said)
  if (!Json.isSame(json, said)) throw misused(rule, `its ${what} is no JSON: ${Json.render(said)}`)
  const size = JSON.stringify(json).length
  if (size > largestNote) {
    throw misused(rule, `its ${what} has ${size} characters of JSON; give at most ${largestNote}, such as an id`)
  }
  return json
}

/** Returns notes with that of a rule, as JSON. `before` are the notes of the step from before those. */
const noting = (before: Notes, notes: Notes, rule: string, note: Schema.Json | undefined): Notes => {
  if (note === undefined) return notes
  const all = { ...notes, [rule]: written(rule, "note", note) }
  if (JSON.stringify(both(before, all)).length > largestNotes) {
    throw misused(rule, `with its note, those of the step have more than ${largestNotes} characters of JSON`)
  }
  return all
}

/** Returns the problem of a list of messages. Where a run takes a text or a thread as well, a rule gives a list. */
const problemOf = (messages: unknown): string | undefined => {
  if (!Array.isArray(messages)) return `give a list of messages; got: ${Json.render(messages)}`
  const valid = Thread.validate(messages)
  return Result.isFailure(valid) ? valid.failure.message : undefined
}

/** Returns messages of a rule. No rule breaks the law of valid threads. */
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

/** A request that the rules have made. */
export interface Prepared<out R> {
  readonly _tag: "Ask"
  readonly ask: Ask
  /** Their notes for it. */
  readonly notes: Notes
  readonly messages: ReadonlyArray<Message.Message>
  /** Effects to run once the messages are recorded, by rule name. */
  readonly recorded: ReadonlyArray<readonly [rule: string, effect: Effect.Effect<unknown, never, R>]>
  /** The messages of an inbox among these. */
  readonly delivery: Delivery | undefined
}

/** Runs a rule's effect by the rule's name. Succeeds with `undefined` if a stop came first. */
type Wait<R> = <A, E>(rule: string, effect: Effect.Effect<A, E, R>) => Effect.Effect<A | undefined, E, R>

const isTagged = (given: object): given is { readonly _tag: string } => "_tag" in given

/** The additions of a rule to a request. */
interface Said<out R> {
  readonly rule: string
  readonly messages: ReadonlyArray<Message.Message>
  readonly recorded: Effect.Effect<unknown, never, R> | undefined
  readonly delivery: Delivery | undefined
}

/** A request while the rules make it, with the additions of each, by its place. */
interface Draft<out R> {
  readonly _tag: "Ask" | "Last"
  readonly ask: Ask
  readonly notes: Notes
  readonly said: ReadonlyArray<Said<R> | undefined>
  /** The place of the rule that set the view. What it and later rules add follows the view. */
  readonly viewer: number
}

const nothingSaid: Draft<never>["said"] = []

/** Returns the messages of the rules, those of an inbox last. */
const messagesOf = (said: Draft<unknown>["said"]): ReadonlyArray<Message.Message> => {
  const delivered = said.find((one) => one?.delivery !== undefined)
  const own = said.flatMap((one) => one === delivered ? [] : one?.messages ?? [])
  return delivered === undefined ? own : [...own, ...delivered.messages]
}

/** Returns the place for a rule, with what those before it said. */
const hereOf = (at: At, notes: Notes, messages: ReadonlyArray<Message.Message>): At =>
  notes === noNotes && messages.length === 0 ? at : {
    ...at,
    noted: both(at.noted, notes),
    last: at.last ?? lastIn(notes),
    thread: messages.length === 0 ? at.thread : Thread.append(at.thread, messages)
  }

/**
 * Returns the request of a step, or the end that comes in its place; `undefined` if a stop came first. Where a rule
 * makes the step the last one, all rules are asked anew, with the notes that they have made. What a rule has added to
 * the request stays, unless it adds something else then.
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

/** Returns a request that a rule has changed. */
const asking = <R>(rule: string, place: number, before: Draft<R>, ask: Ask): Draft<R> => {
  if (ask.view === before.ask.view) return { ...before, ask }
  return { ...before, ask: checked(rule, ask), viewer: place }
}

/** Returns a request with what a rule adds to it. */
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

/** Returns the request of a rule. The messages that it shows are a valid thread. */
const checked = (rule: string, ask: Ask): Ask => {
  if (ask.view === undefined) return ask
  const problem = problemOf(ask.view)
  if (problem !== undefined) throw misused(rule, `its view is no valid thread: ${problem}`)
  const [issue] = Requests.pairingIssues(ask.view)
  if (issue !== undefined) throw misused(rule, `its view is no valid thread: ${JSON.stringify(issue)}`)
  return ask
}

/** Returns an end with the name of the rule that decides on it. */
const named = (rule: string, given: End): End =>
  given.outcome._tag !== "RuleEnded" || given.outcome.rule !== "" ? given : end({
    ...given.outcome,
    rule,
    ...(given.outcome.detail === undefined ? {} : { detail: written(rule, "detail", given.outcome.detail) })
  })

// The reply.

/** The answer of the rules to a reply. */
export interface Heard {
  /** The rule that asks again, if one does. */
  readonly again: AskAgain | undefined
  readonly notes: Notes
}

/** Asks the rules about a reply. All hear it, and the first that asks again decides. */
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

/** The consequence of a step, with the notes for the next one. */
export interface Decided {
  readonly next: Next
  readonly notes: Notes
}

/** Returns the consequence of a step, from the end that it brings by itself; `undefined` if a stop came first. */
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
        // Messages of an earlier rule stay, unless a later one has others.
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

/** Tells the rules how the run ends, in their order. */
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

/** A rule that tells what the end of its run leaves undone. */
export interface Closing {
  readonly closing: (result: Event.ChatResult) => ReadonlyArray<Event.Of<"MessageRefused">>
}

/** Closes the rules with the result of the run. Returns the events that are shown before the end of the run. */
export const closed = <E, R>(rules: Rules<E, R>, result: Event.ChatResult): ReadonlyArray<Event.Event> => {
  const closing = rules.find((rule) => "closing" in rule) as Closing | undefined
  return closing?.closing(result) ?? []
}

/** The functions of an accounting rule. */
export interface Accounting {
  /** Returns the amount that the run has spent, by the notes of its steps. */
  readonly spent: (notes: ReadonlyArray<Notes>) => Event.Spent
  /** Returns the note for the session, which is another one than that of the latest step. */
  readonly keptNote: () => Schema.Json
}

/** Returns the functions of the rule that has the account of a run, if one does. */
export const accountingOf = (rule: object): Accounting | undefined =>
  "keptNote" in rule ? rule as Accounting : undefined

/** Returns the latest notes of the rules that keep theirs for the session, with those of rules that the run lacks. */
export const keptBy = <E, R>(rules: Rules<E, R>, at: At): Notes => {
  const { kept } = at
  const news = rules.flatMap((rule) => {
    const { keeps, name } = rule
    const note = keeps === "session" ? accountingOf(rule)?.keptNote() ?? latest(at, name) : undefined
    return note === undefined ? [] : [[name, note] as const]
  })
  return news.length === 0 ? kept : { ...kept, ...Object.fromEntries(news) }
}
