/** Rules made from run options, and a run's result from its steps and outcome. They use only the seam. */
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Pull from "effect/Pull"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import * as Policy from "../../Policy.ts"
import type * as Response from "../../Response.ts"
import type * as Tool from "../../Tool.ts"
import * as Settings from "../ask/options.ts"
import * as Requests from "../ask/request.ts"
import { reservedHaltReasons } from "../declare/outcome.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Fold from "../fold/fold.ts"
import * as Outcomes from "../fold/runOutcome.ts"
import * as Json from "../json.ts"
import type * as Deadline from "../stop/deadline.ts"
import type { Running } from "../stop/ownedFibers.ts"
import * as Fallback from "./fallback.ts"
import * as PrepareStep from "./prepareStep.ts"
import {
  accountingOf,
  type Ask,
  asked,
  type At,
  both,
  CurrentBudget,
  end,
  Inherited,
  keep,
  last,
  lastIn,
  noNotes,
  type Notes,
  opened,
  type OutputStart,
  type Receives,
  replied,
  type Rule,
  type Rules,
  type Spender
} from "./rules.ts"

/** Forces a tool call only in the first turn, unless the policy forces every turn. */
const firstChoice = (hasBegun: boolean): Rule => ({
  name: "toolChoice",
  ask: (ask, { steps }) =>
    (hasBegun || steps.length > 0) && ask.settings.policy.toolChoice === "first" &&
      Requests.isForced(ask.template.toolChoice)
      ? { ...ask, template: { ...ask.template, toolChoice: "auto" } }
      : ask
})

const structuredName = "structuredFinalize"

/**
 * Makes a first pass with tools and without the answer format, and one more request with that format. The second pass's
 * note is the outcome of the first.
 */
const structured = (prompt: string): Rule => ({
  name: structuredName,
  ask: (ask, { last: closing }) => {
    if (closing === "structured") {
      const { toolChoice: _, ...template } = ask.template
      return { ...ask, tools: new Map(), template: { ...template, tools: [] } }
    }
    const { responseFormat: _, ...template } = ask.template
    return { ...ask, template }
  },
  next: (next, { last: closing }) => {
    if (next._tag !== "End" || closing === "structured" || !isAnswer(next.outcome)) return next
    return last("structured", {
      note: Json.toJson(next.outcome),
      messages: prompt === "" ? [] : [Message.user(prompt)]
    })
  }
})

/** Returns the first pass's outcome from the second pass's notes. */
const firstOutcome = (notes: Notes | undefined): Event.Outcome | undefined =>
  notes?.[structuredName] as Event.Outcome | undefined

const isAnswer = ({ _tag }: Event.Outcome): boolean =>
  _tag === "Completed" || _tag === "MaxTurns" || _tag === "HaltWhen"

/** Keeps time for an answer before the deadline: from then on, the model has no tools. */
const reserve = ({ toolsUntil }: Deadline.Deadline, now: () => number): Rule => ({
  name: "deadline",
  ask: (ask, { isRepeated }) => !isRepeated && ask.tools.size > 0 && now() >= toolsUntil ? last("deadline") : ask
})

/** Removes tools from the last turn. Calls the model makes anyway are answered, and never run. */
const withoutTools: Rule = {
  name: "lastTurn",
  ask: (ask, { last: closing }) =>
    closing === undefined || closing === "structured" ? ask : {
      ...ask,
      tools: new Map(),
      template: ask.template.tools.length === 0 ? ask.template : { ...ask.template, toolChoice: "none" }
    }
}

/** The caller's condition: returns `true` for a step that ends the run. */
type HaltWhen<R> = (step: Event.StepResult) => boolean | Effect.Effect<boolean, never, R>

const halting = <R>(condition: HaltWhen<R>): Rule<never, R> => ({
  name: "haltWhen",
  next: (next, { last: closing, steps }) => {
    const step = steps.at(-1)
    if (next._tag !== "Go" || closing === "structured" || step === undefined) return next
    return Effect.mapEager(
      ToolOptions.toEffect(condition(step), "haltWhen", "return a boolean or an Effect"),
      (isHalted) => isHalted ? end({ _tag: "HaltWhen", stepIndex: steps.length - 1 }) : next
    )
  }
})

/** Ends a run whose last step, in the deadline reserve, gave no answer. A typed answer's rule sees a misfit first. */
const late: Rule = {
  name: "deadline",
  next: (next, { last: closing }) =>
    next._tag === "Go" && closing === "deadline" ? end({ _tag: "Cancelled", reason: "deadline" }) : next
}

/**
 * Limits the turns. A model calling tools without any on offer gets no further turn. The deadline reserve is left to
 * `late`.
 */
const bounded = (maxTurns: number, isClosedByAnswer: boolean): Rule => ({
  name: "maxTurns",
  next: (next, { last: closing, steps }) => {
    const hasTurns = steps.length < maxTurns
    // A last step requested by a caller's rule is a turn, too.
    if (next._tag === "Last" && !hasTurns && !isClosedByAnswer) return end({ _tag: "MaxTurns", maxTurns })
    if (next._tag !== "Go" || closing === "deadline") return next
    if (closing === "structured") {
      const isPaused = steps.slice(-1).some(({ response }) => Fold.isPaused(response))
      return isPaused && hasTurns ? last("structured") : end({ _tag: "MaxTurns", maxTurns: 1 })
    }
    if (closing !== undefined && closing !== "max_turns") {
      return end({ _tag: "RuleEnded", rule: closing, status: "completed" })
    }
    if (hasTurns) return next
    return closing === undefined && isClosedByAnswer ? last("max_turns") : end({ _tag: "MaxTurns", maxTurns })
  }
})

/** Schedule for requesting broken replies again. */
type RetryReply = Schedule.Schedule<unknown, Adapter.AdapterError>

type Retry = Effect.Success<ReturnType<typeof Schedule.toStep<unknown, Adapter.AdapterError, never, never>>>

/**
 * Requests a broken reply again on the caller's schedule, restarted for each step, and not before the time set by the
 * provider. A malformed reply may be whole the next time.
 */
const retryReply = (schedule: RetryReply): Rule => {
  let retry: Retry | undefined
  let step: number | undefined
  return {
    name: "retryReply",
    reply: ({ error, mayRepeat }, { stepIndex }) => {
      if (!mayRepeat || !(error instanceof Adapter.AdapterError)) return keep
      if (!error.isRetryable && error.reason !== "malformed_response") return keep
      if (step !== stepIndex) retry = undefined
      step = stepIndex
      return Effect.gen(function*() {
        retry ??= yield* Schedule.toStep(schedule)
        const [, delay] = yield* retry(yield* Clock.currentTimeMillis, error)
        return { _tag: "AskAgain", after: Math.max(Duration.toMillis(delay), error.retryAfterMillis ?? 0) } as const
      }).pipe(Pull.catchDone(() => Effect.succeed(keep)))
    }
  }
}

/** Step options that become rules. */
export interface OfStep<E, R> {
  readonly rules?: Rules<E, R> | null | undefined
  readonly prepareStep?: PrepareStep.Prepare<E, R> | null | undefined
  readonly retryReply?: RetryReply | null | undefined
}

/** Options that become rules, in a run with several steps. */
export interface OfChat<E, R> extends OfStep<E, R> {
  readonly maxTurns?: number | undefined
  readonly haltWhen?: HaltWhen<R> | null | undefined
  readonly structuredFinalize?: boolean
  readonly finalizePrompt?: string
  readonly output?: Typed<R> | null | undefined
  readonly budget?: Opens | null | undefined
  readonly inbox?: Receives | null | undefined
}

/** A budget, as seen by the loop: a value of `Budget.make`. */
interface Opens {
  readonly open: (around: Spender | undefined) => Spender
}

/** A typed answer, as seen by the loop: a value of `Output.make`. */
interface Typed<R> {
  readonly tool: Tool.Any | undefined
  /** `true` if the model answers only by the tool. */
  readonly isByTool: boolean
  readonly rule: (start: OutputStart) => Rule<never, R>
}

/** Start of a run, with its deadline. */
interface Start {
  /** `true` if an earlier run asked for the turn this run begins in: its first turn is over. */
  readonly hasBegun: boolean
  readonly deadline: Deadline.Deadline | undefined
  readonly now: () => number
  /** Rules for all runs here. */
  readonly inherited: Rules<never, never>
  /** The run's accounts. */
  readonly spender: Spender | undefined
  /** The run's inbox. */
  readonly inbox: Receives | undefined
  /** The run's fibers. */
  readonly running: Running
}

const defaultMaxTurns = 8
const defaultFinalizePrompt = "Now provide your final structured response."

/** Returns rules for a single request, which any rule may make last. */
const closable = <E, R>(rules: Rules<E, R>): Rules<E, R> => rules.length === 0 ? rules : [...rules, withoutTools]

/** Returns the rules for all runs, followed by the caller's. */
const given = <E, R>(
  { prepareStep, rules }: OfStep<E, R>,
  { inherited, spender }: Pick<Start, "inherited" | "spender">
): Rules<E, R> => {
  const twice = rules?.find(({ name }) => inherited.some((rule) => rule.name === name))
  if (twice !== undefined) {
    throw new TypeError(
      `rules: Rule.layer gives another rule ${JSON.stringify(twice.name)}; give each a name of its own`
    )
  }
  const prepared = prepareStep === undefined || prepareStep === null
    ? []
    : [PrepareStep.preparing(prepareStep, spender)]
  return [...inherited, ...rules ?? [], ...prepared]
}

/** Returns the rules of a run with one step: those changing its requests. */
export const ofStep = <E, R>(
  options: OfStep<E, R>,
  { adapter }: Ask,
  start: Pick<Start, "hasBegun" | "inherited" | "spender">
): Rules<E, R> => {
  const all = given(options, start)
  const own = [...all, ...switching(adapter, all.length > 0)]
  const asked: Rules<E, R> = [firstChoice(start.hasBegun), ...closable(own)]
  return [...accounted(asked, start.spender, true), ...retrying(options.retryReply)]
}

/** Puts rules between the accounting rules: a reply is settled first, and reservation comes last. */
const accounted = <E, R>(rules: Rules<E, R>, spender: Spender | undefined, isStep: boolean): Rules<E, R> => {
  if (spender === undefined) return rules
  const [first, last] = spender.rules(isStep)
  return [first, ...rules, last]
}

/** The decoding part of a typed answer. */
export interface Decodes<A, R> {
  readonly decode: (encoded: unknown) => Effect.Effect<A, unknown, R>
}

/** Decodes a result's typed answer, already checked by the run. */
export const decoded = <Result extends object, A, R>(
  result: Result,
  output: Decodes<A, R> | null | undefined
): Effect.Effect<Result & { readonly output?: A }, never, R> =>
  output === undefined || output === null || !("output" in result)
    ? Effect.succeed(result)
    : Effect.map(Effect.orDie(output.decode(result.output)), (value) => ({ ...result, output: value }))

/** Throws for options incompatible with a typed answer. */
const checkBeside = (
  { isByTool }: Typed<any>,
  { mode, structuredFinalize }: { readonly mode?: unknown; readonly structuredFinalize?: boolean },
  { responseFormat }: Requests.Template
): void => {
  const other = responseFormat !== undefined
    ? "responseFormat"
    : structuredFinalize === true
    ? "structuredFinalize"
    : ""
  if (other !== "") {
    throw new TypeError(`output: leave ${other} out; the schema of the output is the form of the answer`)
  }
  if (isByTool && mode === "manual") {
    throw new TypeError(
      "output: an output with mode \"tool\" needs a run that runs tools; use \"native\", or leave mode out"
    )
  }
}

/** Returns the candidates rule, if the adapter has candidates or rules may switch to such an adapter. */
const switching = (adapter: Adapter.Service, mayChange: boolean): Rules<never, never> =>
  adapter.candidates === undefined && !mayChange ? [] : [Fallback.switching(adapter)]

/** Returns the rules of a run with several steps, in asking order. */
export const ofChat = <E, R>(
  options: OfChat<E, R>,
  defaults: Policy.Defaults,
  { adapter, settings: { policy }, template }: Ask,
  start: Start
): Rules<E, R> => {
  const { deadline, hasBegun, now, spender } = start
  const { finalizePrompt, haltWhen, maxTurns, retryReply: schedule } = options
  const usual = defaults.maxTurns ?? policy.maxTurns ?? defaultMaxTurns
  const most = Settings.positiveInteger("maxTurns", maxTurns ?? usual)
  const prompt = finalizePrompt ?? defaults.finalizePrompt ?? defaultFinalizePrompt
  const isStructured = options.structuredFinalize === true && template.responseFormat !== undefined
  const own: Array<Rule<E, R>> = [firstChoice(hasBegun)]
  if (haltWhen !== undefined && haltWhen !== null) own.push(halting(haltWhen))
  const others = given(options, start)
  own.push(...others, ...switching(adapter, others.length > 0))
  own.push(bounded(most, !isStructured && policy.onMaxTurns === "finalize"))
  if (isStructured) own.push(structured(prompt))
  own.push(withoutTools)
  if (deadline !== undefined) own.push(reserve(deadline, now))
  if (options.output !== undefined && options.output !== null) {
    checkBeside(options.output, options, template)
    own.push(options.output.rule({ maxTurns: most, prompt, now }))
  }
  own.push(late)
  // Messages come before all other rules see the request, and re-open the run after all of them.
  const [first, last] = start.inbox?.letters.rules(most, start.running) ?? []
  const all = first === undefined || last === undefined ? own : [first, ...own, last]
  return [...accounted(all, spender, false), ...retrying(schedule)]
}

const retrying = (schedule: RetryReply | null | undefined): Rules<never, never> =>
  schedule === undefined || schedule === null ? [] : [retryReply(schedule)]

/**
 * Returns a run's result from its steps and their notes, with the run's spending. The last notes may belong to an
 * incomplete step.
 */
export const resultOf = <E, R>(
  rules: Rules<E, R>,
  steps: ReadonlyArray<Event.StepResult>,
  notes: ReadonlyArray<Notes>,
  thread: Event.ChatResult["thread"],
  outcome: Event.Outcome
): Event.ChatResult => {
  const result = passed(rules, steps, notes, thread, outcome)
  const accounting = rules.map(accountingOf).find((found) => found !== undefined)
  return accounting === undefined ? result : { ...result, spent: accounting.spent(notes) }
}

/** Returns the result by passes: a structured run has two, the second possibly missing. */
const passed = <E, R>(
  rules: Rules<E, R>,
  steps: ReadonlyArray<Event.StepResult>,
  notes: ReadonlyArray<Notes>,
  thread: Event.ChatResult["thread"],
  outcome: Event.Outcome
): Event.ChatResult => {
  const closing = lastIn(notes.at(-1)) ?? lastIn(notes[steps.length - 1])
  const pass = (from: number) => {
    const own = steps.slice(from)
    return Outcomes.chatResult({
      thread: Outcomes.withQuestion(thread, own, outcome),
      steps: own,
      outcome,
      finalized: finalizedBy(closing)
    })
  }
  if (!rules.some(({ name }) => name === structuredName)) return pass(0)
  if (closing !== "structured") return Outcomes.merged(undefined, pass(0))
  const place = notes.findIndex((step) => lastIn(step) === "structured")
  const before = steps[place - 1]
  if (before === undefined) return pass(0)
  const first = Outcomes.chatResult({
    thread: before.thread,
    steps: steps.slice(0, place),
    outcome: firstOutcome(notes[place]) ?? { _tag: "Completed", finishReason: null },
    finalized: finalizedBy(lastIn(notes[place - 1]))
  })
  return Outcomes.merged(first, pass(place))
}

/** The second pass is not an early end. */
const finalizedBy = (closing: string | undefined): string | undefined =>
  closing === "structured" || closing === "output" ? undefined : closing

/** Names no other rule may have: those of the rules here, and words for run endings. */
export const names: ReadonlySet<string> = new Set([
  "toolChoice",
  structuredName,
  "deadline",
  "lastTurn",
  "haltWhen",
  "maxTurns",
  "retryReply",
  "last",
  "structured",
  "abandoned",
  ...reservedHaltReasons
])

/** Returns the rule names possible in a run with these options. */
export const namesIn = (
  { output, prepareStep, rules }: Pick<OfChat<any, any>, "output" | "prepareStep" | "rules">,
  inherited: Rules<never, never>
): Set<string> => {
  const all = new Set([...names, ...[...inherited, ...rules ?? []].map(({ name }) => name)])
  if (prepareStep === undefined || prepareStep === null) all.delete(PrepareStep.name)
  if (output === undefined || output === null) all.delete("output")
  return all
}

const notGoverned = { sessionId: null, kept: noNotes }

/** Makes a request outside runs, as changed by the rules for all runs: a step without work. */
export const governing: Requests.Governing = (single, read) =>
  Effect.scoped(
    Effect.gen(function*() {
      const context = yield* Effect.context<never>()
      const defaults = yield* Policy.Defaults
      const { messages, ...request } = single
      const thread = { messages, metadata: Json.none }
      const wait = <A, E>(_: string, effect: Effect.Effect<A, E, Scope.Scope>) => effect
      const around = closable<never, Scope.Scope>(yield* Inherited)
      const all = accounted(around, (yield* CurrentBudget)?.within(), true)
      const settings = Settings.resolve<never, never>({}, defaults, Policy.standard, context)
      let heard: Response.Response | undefined
      const run = { ...notGoverned, requestId: settings.requestId, thread }
      const rules = yield* opened<never, Scope.Scope>(all, { ...run, heard: () => heard }, wait)
      const base: Ask = {
        ...request,
        adapter: request.adapter as Adapter.Service,
        mode: "manual",
        runTools: request.tools,
        settings
      }
      let noted = noNotes
      for (let attempt = 0;; attempt++) {
        const at: At = { ...run, steps: [], stepIndex: 0, attempt, notes: [], noted, ...notLast }
        const prepared = yield* asked<never, Scope.Scope>(rules, base, at, wait)
        if (prepared === undefined) return
        if (prepared._tag === "End") {
          return yield* Effect.fail(prepared.outcome)
        }
        heard = undefined
        noted = both(noted, prepared.notes)
        for (const [, effect] of prepared.recorded) yield* effect
        const { ask, messages: more } = prepared
        const { error, hasSaid, response } = yield* read({ ...ask, messages: ask.view ?? [...messages, ...more] })
        heard = response
        const reply = { error, hasSaid, usage: response.usage, mayRepeat: true }
        const { again, notes } = yield* replied(rules, reply, { ...at, noted }, wait)
        if (again === undefined) return
        noted = both(noted, notes)
        yield* Effect.sleep(again.after)
      }
    })
  )

const notLast = { last: undefined, isRepeated: false } as const
