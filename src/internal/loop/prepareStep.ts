/** The `prepareStep` option: a rule whose note is a step's change. It is asked once per step. */
import * as Effect from "effect/Effect"
import type * as Schema from "effect/Schema"
import type * as Types from "effect/Types"
import type * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as Response from "../../Response.ts"
import type * as Thread from "../../Thread.ts"
import * as Requests from "../ask/request.ts"
import { checkNames, type NamesOf } from "../declare/schema.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Values from "../declare/values.ts"
import * as Json from "../json.ts"
import { type Ask, type Asked, type At, noteIn, offering, type Rule, type Spender } from "./rules.ts"

/**
 * A run's place before a step.
 *
 * @category models
 */
export interface Place {
  /** Step index, from 0. */
  readonly stepIndex: number
  /** The thread so far. */
  readonly thread: Thread.Thread
  /** Whole steps, in order. */
  readonly steps: ReadonlyArray<Event.StepResult>
  /** Value of `call.context` for handlers. */
  readonly context: Readonly<Record<string, unknown>>
  /** Total usage of the whole steps. `null` if not reported. */
  readonly usage: Response.Usage | null
  /** The run's spending. Left out without a budget around the run. */
  readonly spent?: Event.Spent
}

/**
 * The change for one step: JSON of at most 65,536 characters. Omitted fields stay unchanged.
 *
 * @category models
 */
export interface Change {
  /** Adapter, by name in `Adapter.named`. An unknown name is a defect. */
  readonly adapter?: string | undefined
  /** Model name. */
  readonly model?: string | undefined
  /**
   * Tools offered in the step, by name. A call to another tool of the run is answered `unknown_tool`. A typed answer's
   * tool is offered as well.
   */
  readonly tools?: ReadonlyArray<string> | undefined
  /** Tool choice for the model. */
  readonly toolChoice?: Requests.ToolChoice | undefined
  /** System prompt. */
  readonly system?: string | undefined
  /** Sampling temperature, from 0 to 2. */
  readonly temperature?: number | undefined
  /** Longest reply, in tokens. */
  readonly maxTokens?: number | undefined
  /** The provider's own fields, replacing fields with the same names. */
  readonly options?: Readonly<Record<string, unknown>> | undefined
}

/** Returns the change for a step. */
export type Prepare<E, R> = (next: Place) => Change | Effect.Effect<Change, E, R>

export const name = "prepareStep"

const changeNames = Values.nullable(
  {
    adapter: Values.text,
    model: Values.name,
    tools: Values.listOf(Values.text, "names of tools"),
    toolChoice: Values.checkedLater,
    system: Values.text,
    temperature: Values.checkedLater,
    maxTokens: Values.checkedLater,
    options: Values.record
  } satisfies NamesOf<Change>
)

const placeOf = (
  { settings: { context } }: Ask,
  { stepIndex, steps, thread }: At,
  spender: Spender | undefined
): Place => ({
  stepIndex,
  thread,
  steps,
  context,
  usage: Response.sumUsage(steps.map(({ response }) => response.usage)),
  ...(spender === undefined ? {} : { spent: spender.spent })
})

const listed = (names: Iterable<string>): string => {
  const all = Array.from(names, (name) => JSON.stringify(name))
  return all.length === 0 ? "none" : all.join(", ")
}

const misused = (problem: string): Error => new Error(`${name}: ${problem}`)

const unknownAdapter = (wanted: string, known: Adapter.Service["named"]): string =>
  `there is no adapter ${JSON.stringify(wanted)}; those of Adapter.named: ${listed(known?.keys() ?? [])}`

/** Returns a description of a step's recorded adapter if it no longer exists. */
export const missingAdapter = (note: unknown, adapter: Adapter.Service | undefined) => {
  const wanted = (note as Change | undefined)?.adapter
  return wanted === undefined || adapter?.named?.has(wanted) === true
    ? undefined
    : unknownAdapter(wanted, adapter?.named)
}

/** Throws for a change naming unknown items. */
const check = (change: Change, { adapter, runTools: tools }: Ask): void => {
  const given: unknown = change
  if (!Json.isObject(given)) throw misused(`it returned ${Json.render(given)}; return an object, {} for no change`)
  checkNames(`the change of ${name}`, change, changeNames)
  if (typeof change.adapter === "string" && adapter.named?.has(change.adapter) !== true) {
    throw misused(unknownAdapter(change.adapter, adapter.named))
  }
  const unknown = change.tools?.find((tool) => !tools.has(tool))
  if (unknown !== undefined) {
    throw misused(`there is no tool ${JSON.stringify(unknown)}; those of the run: ${listed(tools.keys())}`)
  }
}

/** Applies a change to a request. Unknown tools and adapters are ignored: a run may be resumed without them. */
const changed = (ask: Ask, { adapter, options, system, tools: wanted, ...fields }: Change): Ask => {
  const names = wanted === undefined ? undefined : new Set(wanted)
  const offered = names === undefined ? ask : offering(ask, (name) => names.has(name))
  const template: Types.Mutable<Requests.Template> = {
    ...offered.template,
    ...fields as Partial<Requests.Template>
  }
  if (options !== undefined) template.options = { ...template.options, ...options }
  // A model without tools cannot be forced to call a tool.
  if (template.tools.length === 0 && Requests.isForced(template.toolChoice) && fields.toolChoice === undefined) {
    delete template.toolChoice
  }
  return {
    ...offered,
    adapter: adapter === undefined ? ask.adapter : ask.adapter.named?.get(adapter) ?? ask.adapter,
    system: system ?? ask.system,
    template
  }
}

/** Applies a recorded change. A run resumed without a tool cannot force its call. */
const repeated = (ask: Ask, change: Change): Ask => {
  const next = changed(ask, change)
  const { toolChoice, ...template } = next.template
  return Requests.canForce(toolChoice, next.tools) ? next : { ...next, template }
}

/** Returns a step's request with a new change, noted for the step. */
const noting = (ask: Ask, at: At, given: Change): Asked => {
  check(given, ask)
  const change = Values.given(given)
  const next = changed(ask, change)
  if (next.template.tools.length === 0 && Requests.isForced(next.template.toolChoice)) {
    throw misused("toolChoice: a step without tools cannot force a call; leave it out, or offer a tool")
  }
  const [issue] = Requests.issues(at.thread.messages, next.template, [], next.tools)
  if (issue !== undefined) throw misused(`${issue.path}: ${issue.reason}`)
  return { _tag: "Ask", ask: next, note: change as Schema.Json }
}

/**
 * Changes each step as the caller decides. A request repeating a step, after a broken reply or a kill, has the recorded
 * change.
 */
export const preparing = <E, R>(prepare: Prepare<E, R>, spender?: Spender): Rule<E, R> => ({
  name,
  ask: (ask, at) => {
    const noted = noteIn(at.noted, name)
    if (noted !== undefined) return repeated(ask, noted as Change)
    if (at.isRepeated) return ask
    return Effect.mapEager(
      ToolOptions.toEffect<Change, E, R>(prepare(placeOf(ask, at, spender)), name, "return a change or an Effect"),
      (change) => noting(ask, at, change)
    )
  }
})
