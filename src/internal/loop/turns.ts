/**
 * The rules that the options of a run are made of, and the result of a run by its steps and its outcome. They use
 * nothing but the seam.
 */
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Pull from "effect/Pull"
import * as Schedule from "effect/Schedule"
import * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"
import * as Settings from "../ask/options.ts"
import * as Requests from "../ask/request.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Fold from "../fold/fold.ts"
import * as Outcomes from "../fold/runOutcome.ts"
import type * as Deadline from "../stop/deadline.ts"
import { type Ask, type Closing, end, keep, last, type Rule, type Rules } from "./rules.ts"

/** The first turn alone is forced to call a tool, unless the policy forces every turn. */
const firstChoice = <E, R>(hasBegun: boolean): Rule<E, R> => ({
  name: "toolChoice",
  ask: (ask, { steps }) =>
    (hasBegun || steps.length > 0) && ask.settings.policy.toolChoice === "first" &&
      Requests.isForced(ask.template.toolChoice)
      ? { ...ask, template: { ...ask.template, toolChoice: "auto" } }
      : ask
})

/** A first pass with the tools and without the format of the answer, and one more request with that format. */
const structured = <E, R>(prompt: string, first: FirstPass): Rule<E, R> => ({
  name: "structuredFinalize",
  ask: (ask, { closing }) => {
    if (closing === "structured") {
      const { toolChoice: _, ...template } = ask.template
      return { ...ask, tools: new Map(), template: { ...template, tools: [] } }
    }
    const { responseFormat: _, ...template } = ask.template
    return { ...ask, template }
  },
  next: (next, { closing }) => {
    if (next._tag !== "End" || closing === "structured" || !isAnswer(next.outcome)) return next
    first.outcome = next.outcome
    return last("structured", prompt === "" ? [] : [Message.user(prompt)])
  }
})

/** The outcome of the first pass of a structured run, once it has ended. */
interface FirstPass {
  outcome?: Event.Outcome
}

const isAnswer = ({ _tag }: Event.Outcome): boolean =>
  _tag === "Completed" || _tag === "MaxTurns" || _tag === "HaltWhen"

/** The deadline keeps time for an answer: behind it, the model has no tools. */
const reserve = <E, R>({ toolsUntil }: Deadline.Deadline, now: () => number): Rule<E, R> => ({
  name: "deadline",
  ask: (ask) => ask.tools.size > 0 && now() >= toolsUntil ? last("deadline") : ask
})

/** The last turn has no tools. The calls that the model makes all the same are answered, and never run. */
const withoutTools = <E, R>(): Rule<E, R> => ({
  name: "lastTurn",
  ask: (ask, { closing }) =>
    closing !== "deadline" && closing !== "max_turns" ? ask : {
      ...ask,
      tools: new Map(),
      template: ask.template.tools.length === 0 ? ask.template : { ...ask.template, toolChoice: "none" },
      settings: { ...ask.settings, policy: { ...ask.settings.policy, unknownTool: "answer" } }
    }
})

/** The caller's condition: returns `true` for a step that ends the run. */
export type HaltWhen<R> = (step: Event.StepResult) => boolean | Effect.Effect<boolean, never, R>

const halting = <E, R>(condition: HaltWhen<R>): Rule<E, R> => ({
  name: "haltWhen",
  next: (next, { closing, steps }) => {
    const step = steps.at(-1)
    if (next._tag !== "Go" || closing === "structured" || step === undefined) return next
    return Effect.mapEager(
      ToolOptions.toEffect(condition(step), "haltWhen", "return a boolean or an Effect"),
      (isHalted) => isHalted ? end({ _tag: "HaltWhen", stepIndex: steps.length - 1 }) : next
    )
  }
})

/** The bound of turns. A model that calls tools although it has none gets no further turn. */
const bounded = <E, R>(maxTurns: number, isClosedByAnswer: boolean): Rule<E, R> => ({
  name: "maxTurns",
  next: (next, { closing, steps }) => {
    if (next._tag !== "Go") return next
    if (closing === "deadline") return end({ _tag: "Cancelled", reason: "deadline" })
    const hasTurns = steps.length < maxTurns
    if (closing === "structured") {
      const isPaused = steps.slice(-1).some(({ response }) => Fold.isPaused(response))
      return isPaused && hasTurns ? last("structured") : end({ _tag: "MaxTurns", maxTurns: 1 })
    }
    if (hasTurns) return next
    return closing === undefined && isClosedByAnswer ? last("max_turns") : end({ _tag: "MaxTurns", maxTurns })
  }
})

/** The schedule on which broken replies are asked for again. */
export type RetryReply = Schedule.Schedule<unknown, Adapter.AdapterError>

type Retry = Effect.Success<ReturnType<typeof Schedule.toStep<unknown, Adapter.AdapterError, never, never>>>

/**
 * Asks for a broken reply again, on the caller's schedule, which begins anew with each step, and not before the time
 * that the provider asked for. A malformed reply may be whole the next time.
 */
const retryReply = <E, R>(schedule: RetryReply): Rule<E, R> => {
  let retry: Retry | undefined
  return {
    name: "retryReply",
    reply: ({ error, mayRepeat }, { attempt }) => {
      if (!mayRepeat || !(error instanceof Adapter.AdapterError)) return keep
      if (!error.isRetryable && error.reason !== "malformed_response") return keep
      if (attempt === 1) retry = undefined
      return Effect.gen(function*() {
        retry ??= yield* Schedule.toStep(schedule)
        const [, delay] = yield* retry(yield* Clock.currentTimeMillis, error)
        return { _tag: "AskAgain", after: Math.max(Duration.toMillis(delay), error.retryAfterMillis ?? 0) } as const
      }).pipe(Pull.catchDone(() => Effect.succeed(keep)))
    }
  }
}

/** The options that become rules. */
interface Options<R> {
  readonly maxTurns?: number | undefined
  readonly haltWhen?: HaltWhen<R> | null | undefined
  readonly structuredFinalize?: boolean
  readonly finalizePrompt?: string
  readonly retryReply?: RetryReply | null | undefined
}

/** The beginning of a run, and its deadline. */
interface Start {
  /** `true` if an earlier run asked for the turn that the run begins in: its first turn is over. */
  readonly hasBegun: boolean
  readonly deadline: Deadline.Deadline | undefined
  readonly now: () => number
}

/** The rules of a run of several steps, and the facts of its result. */
export interface Turns<E, R> {
  readonly rules: Rules<E, R>
  readonly maxTurns: number
  /** The first pass of a structured run. */
  readonly first: FirstPass | undefined
}

/** The result of a run of one step is made as that of one pass. */
export const single = { maxTurns: 1, first: undefined }

const defaultMaxTurns = 8
const defaultFinalizePrompt = "Now provide your final structured response."

/** Returns the rules of a run of one step. */
export const ofStep = <E, R>(options: Options<R>, { hasBegun }: Pick<Start, "hasBegun">): Rules<E, R> =>
  around(options, hasBegun, [])

/** Returns the rules of a run of several steps, in the order in which they are asked. */
export const ofChat = <E, R>(
  options: Options<R>,
  defaults: Policy.Defaults,
  { settings: { policy }, template }: Ask<E, R>,
  { deadline, hasBegun, now }: Start
): Turns<E, R> => {
  const { finalizePrompt, haltWhen, maxTurns } = options
  const usual = defaults.maxTurns ?? policy.maxTurns ?? defaultMaxTurns
  const most = Settings.positiveInteger("maxTurns", maxTurns ?? usual)
  const isStructured = options.structuredFinalize === true && template.responseFormat !== undefined
  const first: FirstPass | undefined = isStructured ? {} : undefined
  const own: Array<Rule<E, R>> = []
  if (haltWhen !== undefined && haltWhen !== null) own.push(halting(haltWhen))
  own.push(bounded(most, first === undefined && policy.onMaxTurns === "finalize"))
  if (first !== undefined) {
    own.push(structured(finalizePrompt ?? defaults.finalizePrompt ?? defaultFinalizePrompt, first))
  }
  own.push(withoutTools())
  if (deadline !== undefined) own.push(reserve(deadline, now))
  return { rules: around(options, hasBegun, own), maxTurns: most, first }
}

const around = <E, R>({ retryReply: schedule }: Options<R>, hasBegun: boolean, own: Rules<E, R>): Rules<E, R> => {
  const rules = [firstChoice<E, R>(hasBegun), ...own]
  return schedule === undefined || schedule === null ? rules : [...rules, retryReply(schedule)]
}

/**
 * Returns the result of a run by its steps, each with the reason for which it was the last one. A structured run has
 * two passes, of which the second one may be missing; `closing` is that of the step that the run ended in or before.
 */
export const resultOf = <E, R>(
  { first: known, maxTurns }: Pick<Turns<E, R>, "first" | "maxTurns">,
  steps: ReadonlyArray<Event.StepResult>,
  closings: ReadonlyArray<Closing | undefined>,
  closing: Closing | undefined,
  thread: Event.ChatResult["thread"],
  outcome: Event.Outcome
): Event.ChatResult => {
  const pass = (from: number) => {
    const own = steps.slice(from)
    return Outcomes.chatResult({
      thread: Outcomes.withQuestion(thread, own, outcome),
      steps: own,
      outcome,
      finalized: finalizedBy(closing)
    })
  }
  if (known === undefined) return pass(0)
  if (closing !== "structured") return Outcomes.merged(undefined, pass(0))
  const place = closings.indexOf("structured")
  const from = place < 0 ? steps.length : place
  const before = steps[from - 1]
  if (before === undefined) return pass(0)
  const bound: Event.Outcome = from < maxTurns
    ? { _tag: "HaltWhen", stepIndex: from - 1 }
    : { _tag: "MaxTurns", maxTurns }
  const first = Outcomes.chatResult({
    thread: before.thread,
    steps: steps.slice(0, from),
    outcome: known.outcome ?? Outcomes.ofStep(before, from - 1) ?? bound,
    finalized: finalizedBy(closings[from - 1])
  })
  return Outcomes.merged(first, pass(from))
}

const finalizedBy = (closing: Closing | undefined): Event.ChatResult["finalized"] =>
  closing === "structured" ? undefined : closing
