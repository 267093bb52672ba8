/** The option `prepareStep`: a rule whose note is the change of a step. It is asked once a step. */
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
 * The place of a run before a step.
 *
 * @category models
 * @since 0.1.0
 */
export interface Place {
  /** The index of the step, from 0. */
  readonly stepIndex: number
  /** The thread so far. */
  readonly thread: Thread.Thread
  /** The whole steps, in order. */
  readonly steps: ReadonlyArray<Event.StepResult>
  /** The value that handlers read as `call.context`. */
  readonly context: Readonly<Record<string, unknown>>
  /** The usage of the whole steps together. `null` where none reported any. */
  readonly usage: Response.Usage | null
  /** The amount that the run has spent. Left out unless a budget is around it. */
  readonly spent?: Event.Spent
}

/**
 * The change of one step: JSON of at most 65,536 characters. A field that is left out stays as the run has it.
 *
 * @category models
 * @since 0.1.0
 */
export interface Change {
  /** The adapter, by its name in `Adapter.named`. A name that is not there is a defect. */
  readonly adapter?: string | undefined
  /** The name of the model. */
  readonly model?: string | undefined
  /**
   * The tools that the step offers, by their names. A call of another tool of the run is answered `unknown_tool`. The
   * tool of a typed answer is offered with them.
   */
  readonly tools?: ReadonlyArray<string> | undefined
  /** The tool that the model may, must or must not call. */
  readonly toolChoice?: Requests.ToolChoice | undefined
  /** The text in front of the messages. */
  readonly system?: string | undefined
  /** The sampling temperature, from 0 to 2. */
  readonly temperature?: number | undefined
  /** The number of tokens that the reply may have. */
  readonly maxTokens?: number | undefined
  /** Fields of the provider's own. They replace those of the same names. */
  readonly options?: Readonly<Record<string, unknown>> | undefined
}

/** Returns the change of a step. */
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

/** Returns the recorded adapter of a step that is not there any more, and the description of the problem. */
export const missingAdapter = (note: unknown, adapter: Adapter.Service | undefined) => {
  const wanted = (note as Change | undefined)?.adapter
  return wanted === undefined || adapter?.named?.has(wanted) === true
    ? undefined
    : unknownAdapter(wanted, adapter?.named)
}

/** Throws for a change that names what is not there. */
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

/**
 * Returns a request with a change. Tools and adapters that are not there do not count: a run may be resumed without.
 */
const changed = (ask: Ask, { adapter, options, system, tools: wanted, ...fields }: Change): Ask => {
  const names = wanted === undefined ? undefined : new Set(wanted)
  const offered = names === undefined ? ask : offering(ask, (name) => names.has(name))
  const template: Types.Mutable<Requests.Template> = {
    ...offered.template,
    ...fields as Partial<Requests.Template>
  }
  if (options !== undefined) template.options = { ...template.options, ...options }
  // A model without tools cannot be made to call one.
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

/** Returns the request of a step with a new change, which is its note. */
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
 * Changes each step as the caller says. A request that repeats a step, for a broken reply or after a kill, has the
 * recorded change.
 */
export const preparing = <E, R>(prepare: Prepare<E, R>, spender?: Spender): Rule<E, R> => ({
  name,
  ask: (ask, at) => {
    const noted = noteIn(at.noted, name)
    if (noted !== undefined) return changed(ask, noted as Change)
    if (at.isRepeated) return ask
    return Effect.mapEager(
      ToolOptions.toEffect<Change, E, R>(prepare(placeOf(ask, at, spender)), name, "return a change or an Effect"),
      (change) => noting(ask, at, change)
    )
  }
})
