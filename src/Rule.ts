/**
 * Governs a run between its turns. A rule changes a request, hears the reply, asks for it again, or decides what
 * follows a step. Run options such as `maxTurns` and `haltWhen` are rules too.
 *
 * **Details**
 *
 * Rules are asked in one order, each about the decision of those before it. A rule decides by recorded steps and by its
 * notes, so a resumed run asks the same rules and takes the same way.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import type * as Event from "./Event.ts"
import * as Settings from "./internal/ask/options.ts"
import * as Requests from "./internal/ask/request.ts"
import { checkNames, type NamesOf } from "./internal/declare/schema.ts"
import * as ToolOptions from "./internal/declare/toolOptions.ts"
import * as Values from "./internal/declare/values.ts"
import * as EventJson from "./internal/fold/eventJson.ts"
import * as Json from "./internal/json.ts"
import * as Rules from "./internal/loop/rules.ts"
import * as Turns from "./internal/loop/turns.ts"
import type * as Message from "./Message.ts"

export type {
  Ask,
  AskAgain,
  Asked,
  At,
  Decision,
  End,
  Go,
  Hooks,
  Inside,
  Keep,
  Last,
  Next,
  Notes,
  Replied,
  Reply,
  Rule,
  Run
} from "./internal/loop/rules.ts"

export type { Change, Place } from "./internal/loop/prepareStep.ts"

export type { DeadlineWish, Settings } from "./internal/ask/options.ts"

export type { Template } from "./internal/ask/request.ts"

/**
 * Functions of a rule, and an optional opening function.
 *
 * @category models
 */
export interface Options<out E = never, out R = never> extends Rules.Hooks<E, R> {
  /**
   * Opens the rule with each run, before its first request. Returns the rule's functions for that run, replacing the
   * others. The scope closes with the run, even if its reader leaves. A failure fails the run. None by default.
   */
  readonly open?: ((run: Rules.Run) => Effect.Effect<Rules.Hooks<E, R>, E, R | Scope.Scope>) | undefined
  /**
   * Lifetime of the rule's notes. With `"session"` a kept session's later runs also find the latest note. An abandoned
   * run's notes do not count. `"run"` by default.
   */
  readonly keeps?: "run" | "session" | undefined
}

const hookNames = {
  ask: Values.fn,
  hear: Values.fn,
  reply: Values.fn,
  next: Values.fn,
  end: Values.fn,
  handlers: Values.record
} satisfies NamesOf<Rules.Hooks>

const optionNames = Values.nullable(
  { ...hookNames, open: Values.fn, keeps: Values.oneOf("run", "session") } satisfies NamesOf<Options>
)

const nameForm = /^[a-zA-Z][\w.-]{0,63}$/

const isTaken = (name: string): boolean => Turns.names.has(name) || name in Object.prototype

const checkName = (where: string, what: "name" | "reason", name: unknown): void => {
  if (typeof name !== "string" || !nameForm.test(name)) {
    throw new TypeError(
      `${where}: a ${what} begins with a letter and has at most 64 letters, digits, ".", "-" and "_"; got: ${
        Json.render(name)
      }`
    )
  }
  if (isTaken(name)) {
    throw new TypeError(`${where}: the library itself uses the ${what} ${JSON.stringify(name)}; choose another one`)
  }
}

/**
 * Makes a rule.
 *
 * **Details**
 *
 * The name appears in journals, and in outcomes as `haltedReason`: letters, digits, `.`, `-` and `_`, at most 64,
 * starting with a letter. Reserved or malformed names, and return values of the wrong type, are defects naming the
 * rule. So are errors thrown by a function.
 *
 * **Example** (Ending a run after two steps)
 *
 * ```ts import.meta.vitest
 * import { Chat, Rule, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const clock = Tool.make("clock", { parameters: {}, handler: () => Effect.succeed("noon") })
 * const once = Rule.make("once", {
 *   next: (next, { steps }) => steps.length < 2 ? next : Rule.end({ detail: { steps: steps.length } })
 * })
 * const asks = [Script.toolCall("c0", "clock", {}), Script.finish("tool_calls")]
 * const run = Chat.run("What time is it?", { tools: [clock], rules: [once] })
 * const result = await Effect.runPromise(Effect.provide(run, Script.layer([asks, asks])))
 *
 * result.outcome // => { _tag: "RuleEnded", rule: "once", status: "completed", detail: { steps: 2 } }
 * ```
 *
 * @category constructors
 */
export const make = <E = never, R = never>(name: string, options: Options<E, R>): Rules.Rule<E, R> => {
  checkName("Rule.make", "name", name)
  checkNames(`Rule.make ${JSON.stringify(name)}`, options, optionNames)
  const { keeps, open, ...hooks } = options
  const opened = open ?? undefined
  const rule = {
    ...held(name, hooks),
    name,
    ...(opened === undefined ? {} : {
      open: (run: Rules.Run) =>
        Effect.map(
          named(name, "open", call(name, "open", opened, run), isObject("the functions of the rule")),
          (hooks) => {
            checkNames(`open of rule ${JSON.stringify(name)}`, hooks, Values.nullable(hookNames))
            return held(name, hooks)
          }
        )
    }),
    ...(keeps === undefined || keeps === null ? {} : { keeps })
  } as Rules.Rule<E, R>
  Settings.madeRules.add(rule)
  return rule
}

/**
 * Checks a rule function's return value, given the function's argument. Returns a description of a correct value if it
 * is wrong.
 */
type Check = (value: unknown, given: unknown, name: string) => string | undefined

const isObject = (wanted: string): Check => (value) => Json.isObject(value) ? undefined : wanted

const tagged = (wanted: string, ...tags: ReadonlyArray<string>) => (value: unknown): string | undefined =>
  Json.isObject(value) && tags.includes(String(value["_tag"])) ? undefined : wanted

/** Other events would change the reply, its calls or the journal. */
const isChunks = (value: unknown): string | undefined =>
  Array.isArray(value) && value.every((event) => event?._tag === "RawChunk" && !EventJson.isUsage(event))
    ? undefined
    : "an array of RawChunk events without usage"

const anything: Check = () => undefined

const templateNames = {
  tools: Values.list,
  model: Values.name,
  toolChoice: Values.checkedLater,
  temperature: Values.checkedLater,
  maxTokens: Values.checkedLater,
  responseFormat: Values.checkedLater,
  cacheKey: Values.text,
  options: Values.record,
  attempt: Values.options({ retries: Values.whole, patienceMillis: Values.amount } satisfies NamesOf<Requests.Attempt>)
} satisfies NamesOf<Requests.Template>

const settingsNames = {
  policy: Settings.policyKind,
  onToolError: Values.onToolError,
  timeoutMillis: Values.amount,
  idleMillis: Values.amount,
  graceMillis: Values.amount,
  maxConcurrency: Values.count,
  deadline: Values.record,
  context: Values.record,
  requestId: Values.text,
  sessionId: Values.checkedLater,
  approved: Values.checkedLater
} satisfies NamesOf<Settings.Settings<never, never>>

const requestNames = {
  adapter: Values.record,
  system: Values.text,
  mode: Values.oneOf("auto", "manual"),
  tools: Values.map,
  runTools: Values.map,
  settings: Values.options(settingsNames),
  template: Values.options(templateNames),
  view: Values.checkedLater,
  attributes: Values.record
} satisfies NamesOf<Rules.Ask>

/** Fields permitted in a rule function's return value, by the value's tag. Messages and notes are checked later. */
const fields: Readonly<Record<string, Values.OptionKinds>> = {
  Ask: {
    _tag: Values.text,
    ask: Values.checkedLater,
    note: Values.checkedLater,
    messages: Values.checkedLater,
    recorded: Values.checkedLater
  } satisfies NamesOf<Omit<Rules.Asked, "delivery">>,
  Last: {
    _tag: Values.text,
    by: Values.text,
    note: Values.checkedLater,
    messages: Values.checkedLater
  } satisfies NamesOf<Rules.Last>,
  End: { _tag: Values.text, outcome: Values.record, output: Values.checkedLater } satisfies NamesOf<Rules.End>,
  Keep: { _tag: Values.text, note: Values.checkedLater } satisfies NamesOf<Rules.Keep>,
  AskAgain: {
    _tag: Values.text,
    after: Values.amount,
    note: Values.checkedLater,
    events: Values.list
  } satisfies NamesOf<Rules.AskAgain>,
  Go: { _tag: Values.text, note: Values.checkedLater, messages: Values.checkedLater } satisfies NamesOf<Rules.Go>
}

/** Returns the problem with an unknown field or a wrong value. */
const misnamed = (what: string, value: object, kinds: Values.OptionKinds): string | undefined => {
  const checked = Result.try(() => checkNames(what, value, kinds))
  return Result.isFailure(checked) ? String((checked.failure as Error).message) : undefined
}

const unknownField = (value: unknown): string | undefined => {
  if (!Json.isObject(value)) return undefined
  const known = fields[String(value["_tag"])]
  return known && misnamed(`Rule.${String(value["_tag"])}`, value, known)
}

/** Returns the problem with a request. */
const requestProblem = (value: unknown): string | undefined => {
  if (!Json.isObject(value)) return "the request must be an object"
  const missing = ["adapter", "mode", "runTools", "settings", "template", "tools"].find((name) => value[name] == null)
  if (missing !== undefined) return `the request has no ${missing}`
  const problem = misnamed("the request", value, requestNames)
  if (problem !== undefined) return problem
  const { runTools, template } = value as unknown as Rules.Ask
  const [issue] = Requests.issues([{ role: "user", content: "" }], template, [], runTools)
  return issue && `template.${issue.path} ${issue.reason}`
}

const isReason = (by: unknown): boolean => typeof by === "string" && nameForm.test(by) && !isTaken(by)

/** Tells whether an end belongs to the rule, or equals the given end. */
const isEnd = (outcome: unknown, given: unknown, name: string): boolean =>
  Json.isObject(outcome) && (
    Json.isObject(given) && given["outcome"] === outcome ||
    outcome["_tag"] === "RuleEnded" && (outcome["rule"] === "" || outcome["rule"] === name) &&
      (outcome["status"] === "completed" || outcome["status"] === "error")
  )

/** Tells whether a value comes from `Rule.last` or `Rule.end`, or is the given end. */
const isClosing = (value: Json.JsonObject, given: unknown, name: string): boolean =>
  value["_tag"] === "Last" ? isReason(value["by"]) : value["_tag"] === "End" && isEnd(value["outcome"], given, name)

const checks = {
  ask: (value, given, name) => {
    const wanted = "a request, Rule.ask, Rule.last or Rule.end"
    if (!Json.isObject(value)) return wanted
    if ("_tag" in value && value["_tag"] !== "Ask") return isClosing(value, given, name) ? undefined : wanted
    const request = "_tag" in value ? value["ask"] : value
    const problem = request === given ? undefined : requestProblem(request)
    if (problem !== undefined) return `${wanted}: ${problem}`
    return value["recorded"] === undefined || Effect.isEffect(value["recorded"])
      ? undefined
      : `${wanted}: recorded must be an Effect`
  },
  reply: (value) => {
    const isOther = tagged("Rule.keep or Rule.askAgain", "Keep", "AskAgain")(value)
    if (isOther !== undefined) return isOther
    const { after = 0, events = [] } = value as Partial<Rules.AskAgain>
    if (!Number.isFinite(after) || after < 0) {
      return "Rule.askAgain with after: a finite number of milliseconds, 0 or more"
    }
    return isChunks(events) && "Rule.askAgain with RawChunk events without usage"
  },
  next: (value, given, name) =>
    Json.isObject(value) && (value === given || value["_tag"] === "Go" || isClosing(value, given, name))
      ? undefined
      : "the given value, Rule.go, Rule.last or Rule.end",
  end: anything
} satisfies Record<string, Check>

const problem = (name: string, hook: string, text: string, cause?: unknown): Error =>
  new Error(`rule ${JSON.stringify(name)}: ${hook} ${text}`, cause === undefined ? undefined : { cause })

const call = (name: string, hook: string, run: (...given: ReadonlyArray<any>) => unknown, ...given: Array<unknown>) => {
  try {
    return run(...given)
  } catch (cause) {
    throw problem(name, hook, "threw an error", cause)
  }
}

const checkedBy = (name: string, hook: string, check: Check, given?: unknown) => (value: unknown): any => {
  let wanted: string | undefined
  try {
    wanted = check(value, given, name) ?? (value === given ? undefined : unknownField(value))
  } catch (cause) {
    throw problem(name, hook, "returned a value that cannot be read", cause)
  }
  if (wanted === undefined) return value
  throw problem(name, hook, `returned ${Json.render(value)}; return ${wanted}`)
}

/** Functions permitted to fail. */
const mayFail: ReadonlySet<string> = new Set(["open", "ask"])

/**
 * Returns the effect of a rule function, with defects naming the rule. For functions not permitted to fail, failures
 * become such defects.
 */
const named = (
  name: string,
  hook: string,
  given: unknown,
  check: Check,
  from?: unknown
): Effect.Effect<any, any, any> => {
  const effect = ToolOptions.toEffect<any, any, any>(given, hook, "return a value or an Effect")
  return Effect.map(
    Effect.catchDefect(
      mayFail.has(hook) ? effect : Effect.orDie(effect),
      (cause) => Effect.die(problem(name, hook, "died", cause))
    ),
    checkedBy(name, hook, check, from)
  )
}

/** Returns a rule's decision after a step. A last step is followed by no other last step. */
const onceLast = (
  given: Rules.Next | Effect.Effect<Rules.Next, never, any>,
  before: Rules.Next,
  { last }: Rules.At
): Rules.Next | Effect.Effect<Rules.Next, never, any> => {
  const once = (next: Rules.Next) => next?._tag === "Last" && last !== undefined ? before : next
  return Effect.isEffect(given) ? Effect.map(given, once) : once(given)
}

/** Returns a rule's decision about a request. Defects of the effect after its record name the rule. */
const withRecorded = (name: string, given: ReturnType<NonNullable<Rules.Hooks<any, any>["ask"]>>): typeof given => {
  const hold = (asked: Rules.Ask | Rules.Asked<any> | Rules.Last | Rules.End) =>
    !("_tag" in asked) || asked._tag !== "Ask" || asked.recorded === undefined
      ? asked
      : { ...asked, recorded: named(name, "recorded", asked.recorded, anything) as Effect.Effect<unknown, never, any> }
  return Effect.isEffect(given) ? Effect.map(given, hold) : hold(given)
}

/** Returns functions held to their types. Thrown errors and values of the wrong type are defects. */
const held = (name: string, hooks: Rules.Hooks<any, any>): Rules.Hooks<any, any> => {
  const all: Record<string, unknown> = {}
  for (const hook of ["ask", "reply", "next", "end"] as const) {
    const own: ((...given: ReadonlyArray<any>) => unknown) | null | undefined = hooks[hook]
    if (own === undefined || own === null) continue
    all[hook] = (...given: Array<unknown>) => {
      const value = call(name, hook, own, ...given)
      return Effect.isEffect(value) || ToolOptions.isPromise(value)
        ? named(name, hook, value, checks[hook], given[0])
        : checkedBy(name, hook, checks[hook], given[0])(value)
    }
  }
  const { ask, next } = all as Rules.Hooks<any, any>
  if (ask !== undefined) all["ask"] = (request: Rules.Ask, at: Rules.At) => withRecorded(name, ask(request, at))
  if (next !== undefined) all["next"] = (before: Rules.Next, at: Rules.At) => onceLast(next(before, at), before, at)
  const { handlers, hear } = hooks
  if (hear !== undefined && hear !== null) {
    all["hear"] = (event: Event.Event, at: Rules.At) => {
      const value = call(name, "hear", hear, event, at)
      // A promise is refused, and its rejection ends no process.
      ToolOptions.isPromise(value)
      return checkedBy(name, "hear", isChunks)(value)
    }
  }
  if (handlers !== undefined && handlers !== null) {
    if (!Context.isContext(handlers)) throw problem(name, "handlers", "must be a Context of services: use Context.make")
    all["handlers"] = handlers
  }
  return all
}

/**
 * Returns a request with a note, messages or an effect. A session records note and messages before the request.
 *
 * **Details**
 *
 * `recorded` runs between the record and the request. After a kill in between, a resumed run asks the rule again. The
 * rule finds its note by {@link latest}, and must return the effect again. A resumed run also asks the rule for a
 * recorded reply (`isRepeated`), and then uses only the offered tools.
 *
 * **Example** (Asking another model, and noting it)
 *
 * ```ts import.meta.vitest
 * import { Rule } from "heddle"
 *
 * const larger = Rule.make("larger", {
 *   ask: (ask, { stepIndex }) =>
 *     stepIndex < 4 ? ask : Rule.ask({ ...ask, template: { ...ask.template, model: "large" } }, { note: "large" })
 * })
 *
 * larger.name // => "larger"
 * ```
 *
 * @category constructors
 */
export const ask = <R = never>(request: Rules.Ask, more: {
  /** The rule's note for this step. None by default. */
  readonly note?: Schema.Json
  /** Messages for the thread, before the request: without calls, and no answers to calls. None by default. */
  readonly messages?: ReadonlyArray<Message.Message>
  /** Runs before the request, once note and messages are recorded. None by default. */
  readonly recorded?: Effect.Effect<unknown, never, R>
} = {}): Rules.Asked<R> => ({ _tag: "Ask", ask: request, ...more })

/**
 * Narrows a request to some of its tools. Calls to the run's other tools are answered with `unknown_tool`, and do not
 * run.
 *
 * **Example** (Leaving a tool out of the first step)
 *
 * ```ts import.meta.vitest
 * import { Rule } from "heddle"
 *
 * const look = Rule.make("look", {
 *   ask: (ask, { stepIndex }) => stepIndex > 0 ? ask : Rule.offer(ask, (name) => name !== "send")
 * })
 *
 * look.name // => "look"
 * ```
 *
 * @category constructors
 */
export const offer = (request: Rules.Ask, isOffered: (name: string) => boolean): Rules.Ask =>
  Rules.offering(request, isOffered)

/**
 * Returns a rule's latest note: from the current step, else from a whole step, else from an earlier run in the session,
 * if the rule has `keeps: "session"`.
 *
 * **Example** (Counting over the runs of a session)
 *
 * ```ts import.meta.vitest
 * import { Rule } from "heddle"
 *
 * const meter = Rule.make("meter", {
 *   keeps: "session",
 *   reply: ({ usage }, at) => Rule.keep({ note: Number(Rule.latest(at, "meter") ?? 0) + (usage?.totalTokens ?? 0) })
 * })
 *
 * meter.keeps // => "session"
 * ```
 *
 * @category notes
 */
export const latest = (at: Pick<Rules.At, "kept" | "noted" | "notes">, name: string): Schema.Json | undefined =>
  Rules.latest(at, name) ?? Rules.noteIn(at.kept, name)

/**
 * Keeps a reply unchanged. The note is recorded with the whole step. A kill before that loses the note, and a resumed
 * run calls `reply` again with the recorded reply.
 *
 * **Example** (Noting the usage of each reply)
 *
 * ```ts import.meta.vitest
 * import { Rule } from "heddle"
 *
 * const meter = Rule.make("meter", { reply: ({ usage }) => Rule.keep({ note: usage?.totalTokens ?? 0 }) })
 *
 * meter.name // => "meter"
 * ```
 *
 * @category constructors
 */
export const keep = (more: {
  /** The rule's note for this step. None by default. */
  readonly note?: Schema.Json
} = {}): Rules.Reply => ({ _tag: "Keep", ...more })

/**
 * Discards a reply, and asks the model again. If `mayRepeat` is `false`, the reply stays.
 *
 * **Example** (Asking once more for a reply that was cut)
 *
 * ```ts import.meta.vitest
 * import { Rule } from "heddle"
 *
 * const again = Rule.make("again", {
 *   reply: ({ error }, { attempt }) => error !== undefined && attempt === 1 ? Rule.askAgain() : Rule.keep()
 * })
 *
 * again.name // => "again"
 * ```
 *
 * @category constructors
 */
export const askAgain = (more: {
  /** Milliseconds before the request. 0 by default. */
  readonly after?: number
  /** The rule's note for this step, recorded before the request. None by default. */
  readonly note?: Schema.Json
  /** Events to show after `StepReset`. None by default. */
  readonly events?: ReadonlyArray<Event.Of<"RawChunk">>
} = {}): Rules.Reply => ({ after: 0, ...more, _tag: "AskAgain" })

/**
 * Asks the model for another step, within the turn limit.
 *
 * **Example** (Asking for more where an answer is short)
 *
 * ```ts import.meta.vitest
 * import { Message, Rule } from "heddle"
 *
 * const longer = Rule.make("longer", {
 *   next: (next, { steps }) =>
 *     steps.length === 1 && next._tag === "End" ? Rule.go({ messages: [Message.user("Say more.")] }) : next
 * })
 *
 * longer.name // => "longer"
 * ```
 *
 * @category constructors
 */
export const go = (more: {
  /** The rule's note for the next step. None by default. */
  readonly note?: Schema.Json
  /** Messages for the thread, before the next request. None by default: those of earlier rules stay. */
  readonly messages?: ReadonlyArray<Message.Message>
} = {}): Rules.Next => ({ _tag: "Go", ...more })

/**
 * Asks the model for a last step without tools, forcing an answer. The result has the reason as `finalized`.
 *
 * **Details**
 *
 * If the model still calls a tool, the run ends: the outcome is `RuleEnded`, with the reason as its `rule`. In or after
 * a last step, `last` changes nothing. The reason has the form of a rule name, and must not be reserved by the library.
 *
 * **Example** (Asking for the answer after ten calls)
 *
 * ```ts import.meta.vitest
 * import { Rule } from "heddle"
 *
 * const answer = Rule.make("answer", {
 *   next: (next, { steps }) =>
 *     next._tag === "Go" && steps.flatMap(({ toolResults }) => toolResults).length > 10 ? Rule.last("calls") : next
 * })
 *
 * answer.name // => "answer"
 * ```
 *
 * @category constructors
 */
export const last = (by: string, more: {
  /** The rule's note for the step. None by default. */
  readonly note?: Schema.Json
  /** Messages for the thread, before the request. None by default. */
  readonly messages?: ReadonlyArray<Message.Message>
} = {}): Rules.Last => {
  checkName("Rule.last", "reason", by)
  return Rules.last(by, more)
}

/**
 * Ends the run (outcome `RuleEnded`). A `Tool.fromChat` call with such a run fails with a `Tool.ChatFailed`.
 *
 * **Example** (Ending a run whose thread is long)
 *
 * ```ts import.meta.vitest
 * import { Rule } from "heddle"
 *
 * const short = Rule.make("short", {
 *   ask: (ask, { thread }) => thread.messages.length > 200 ? Rule.end({ status: "error" }) : ask
 * })
 *
 * short.name // => "short"
 * ```
 *
 * @category constructors
 */
export const end = (more: {
  /** Data about the end, as JSON, for the outcome and the journal. None by default. */
  readonly detail?: Schema.Json
  /** `"error"` if the run failed its purpose. `"completed"` by default. */
  readonly status?: "completed" | "error"
} = {}): Rules.End =>
  Rules.end({
    _tag: "RuleEnded",
    rule: "",
    status: more.status ?? "completed",
    ...(more.detail === undefined ? {} : { detail: more.detail })
  })

/**
 * Rules for all runs, as a Context reference: empty without a {@link layer}. Classifications ask only a layer's rules.
 *
 * @category references
 */
export const Inherited: Context.Reference<ReadonlyArray<Rules.Rule>> = Rules.Inherited

/**
 * Gives rules to all runs below, at any depth: runs started by handlers, single steps, and classifications. They are
 * asked before a run's own rules. Steps and classifications use only their `ask` and `reply`; an end fails those with
 * an `AdapterError` with the reason `invalid_request`. A rule's own effects do not ask that rule.
 *
 * A layer inside another appends its rules to the outer ones, each once: no part of an application escapes the overall
 * budget. To run something without them, provide an empty list as {@link Inherited}.
 *
 * **Example** (A rule for a whole application)
 *
 * ```ts import.meta.vitest
 * import { Chat, Rule } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 *
 * const closed = Rule.make("closed", { ask: () => Rule.end({ detail: "maintenance" }) })
 * const app = Layer.merge(Script.layer([]), Rule.layer([closed]))
 * const result = await Effect.runPromise(Effect.provide(Chat.run("Hi"), app))
 *
 * result.haltedReason // => "closed"
 * ```
 *
 * @category layers
 */
export const layer = (rules: ReadonlyArray<Rules.Rule>): Layer.Layer<never> => {
  checkNames("Rule.layer", { rules }, { rules: Settings.rulesKind })
  return Layer.merge(
    Layer.effect(
      Inherited,
      Effect.map(Inherited, (around) => [...around, ...rules.filter((rule) => !around.includes(rule))])
    ),
    Layer.succeed(Requests.CurrentGoverning, Turns.governing)
  )
}
