/**
 * Tool options, and the tools of a run. An invalid option is misuse and throws before anything runs, naming the tool
 * and the option. A function returning a promise instead of an Effect fails with such a message when called.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import type * as Message from "../../Message.ts"
import * as Json from "../json.ts"
import { objectOf } from "./jsonSchema.ts"
import * as ToolOutcomes from "./outcome.ts"
import { checkNames, type NamesOf } from "./schema.ts"
import type * as Declared from "./tool.ts"
import * as Values from "./values.ts"

const reservedNames: ReadonlyArray<string> = ["auto", "none", "required"]

export const refuse = (name: string, problem: string): never => {
  throw new TypeError(`Tool.make(${JSON.stringify(name)}): ${problem}`)
}

const limit = Values.described(
  Values.required(
    {
      key: Values.either(Values.text, Values.fn),
      permits: Values.count
    } satisfies NamesOf<Declared.Limit<any>>
  ),
  "{ key, permits }: a string or a function (args, call), and a positive integer"
)

/** Makes an option's kind: a value, or a function from the call's arguments. */
const byArguments = (kind: Values.Kind): Values.Kind =>
  Values.described(Values.either(kind, Values.fn), `${kind.right}, or a function of the arguments`)

/** Options for every tool, besides its handler. */
export const declarations = {
  description: Values.text,
  parameters: Values.checkedLater,
  validate: Values.gate,
  authorize: Values.gate,
  approval: Values.described(
    Values.either(Values.flag, Values.fn),
    "true, false or a function (args, call)"
  ),
  remember: Values.oneOf("tool", "arguments"),
  answerWithin: Values.duration,
  readOnly: byArguments(Values.flag),
  destructive: byArguments(Values.flag),
  idempotent: Values.flag,
  openWorld: Values.flag,
  afterCrash: Values.oneOf("retry", "report", "ask", "fail"),
  lookUp: Values.described(Values.fn, "a function (args, call) that returns an Effect of an Option"),
  concurrency: byArguments(Values.oneOf("shared", "exclusive")),
  interrupt: byArguments(Values.oneOf("cancel", "block")),
  timeout: Values.timeout,
  retry: Values.schedule,
  onToolError: Values.onToolError,
  limits: Values.listOf(limit, limit.right),
  maxResultChars: Values.limit,
  summary: Values.text,
  compact: Values.flag,
  version: Values.text,
  metadata: Values.record
} satisfies NamesOf<Declared.Declarations<any, any, any, any> & Declared.Findable<any, any, any>>

const knownOptions = {
  ...declarations,
  success: Values.checkedLater,
  failure: Values.checkedLater,
  handler: Values.checkedLater,
  manual: Values.flag
} satisfies NamesOf<Declared.Options<any, any, any, any>>

const flags = ["readOnly", "destructive", "idempotent", "openWorld", "manual", "compact"] as const

/** Fields of a finished tool besides its options: a program may spread a tool into the options of another. */
const knownOfTools = {
  name: Values.anything,
  encodeSuccess: Values.anything,
  encodeFailure: Values.anything,
  "~heddle/Fatal": Values.anything,
  "~heddle/Output": Values.anything
} satisfies NamesOf<Omit<Declared.Any, keyof typeof knownOptions>>

/** Throws for options no tool can be made from. */
export const check = (name: string, options: Readonly<Record<string, unknown>>): void => {
  const given = Object.entries(options).filter(([option]) => !Object.hasOwn(knownOfTools, option))
  checkNames(`Tool.make(${JSON.stringify(name)})`, Object.fromEntries(given), knownOptions)
  // A flag computed as `undefined` is a mistake in the program.
  for (const flag of flags) {
    if (flag in options && options[flag] === undefined) refuse(name, `${flag} must be ${knownOptions[flag].right}`)
  }
  if (!Values.namePattern.test(name)) refuse(name, "the name must have 1 to 64 characters: letters, digits, _ or -")
  if (reservedNames.includes(name)) refuse(name, "the name must not be auto, none or required, which are tool choices")
  checkGates(name, options)
  checkOnToolError(name, options["onToolError"])
  checkApproval(name, options)
  checkAfterCrash(name, options)
}

/** Refuses gates on manual tools: their calls do not run here, so the gates would never be asked. */
const checkGates = (name: string, options: Readonly<Record<string, unknown>>): void => {
  for (const gate of ["validate", "authorize"]) {
    const value = options[gate]
    if (value === undefined) continue
    if (options["manual"] === true) {
      refuse(name, `${gate} needs a handler, and a manual tool has no handler: check the call where you run it`)
    }
  }
}

/** Checks the error policy. A function without declared parameters cannot misread them. */
const checkOnToolError = (name: string, value: unknown): void => {
  if (value === undefined || value === null || value === "continue" || value === "halt") return
  if (typeof value !== "function" || (value.length !== 2 && value.length !== 0)) {
    refuse(name, `onToolError must be "continue", "halt" or a function (call, error)`)
  }
}

/** Checks approvals. A manual call is decided by the caller running it. */
const checkApproval = (name: string, { approval, manual, remember }: Readonly<Record<string, unknown>>): void => {
  if (remember !== undefined && (approval ?? false) === false) {
    refuse(name, "remember needs approval: set approval to true or to a function, or leave remember out")
  }
  if (approval === undefined) return
  if (manual === true && approval !== false) {
    refuse(name, "manual and approval exclude each other: leave approval out, and decide where you run the call")
  }
}

/** Checks crash policies. A manual call has no handler with an unknown effect. */
const checkAfterCrash = (name: string, { afterCrash, lookUp, manual }: Readonly<Record<string, unknown>>): void => {
  if (afterCrash !== undefined && lookUp !== undefined) {
    refuse(name, "lookUp and afterCrash exclude each other: leave one out")
  }
  if (manual === true && (afterCrash ?? lookUp) !== undefined) {
    refuse(
      name,
      `${
        afterCrash === undefined ? "lookUp" : "afterCrash"
      } needs a handler, and a manual tool has no handler: leave it out`
    )
  }
}

// Options a tool may decide from a call's arguments. Each has two answers: a careful one, and one a function must
// return explicitly. They are evaluated only here.

/** Answers a tool must give explicitly, and the careful ones. */
const free = { readOnly: true, destructive: false, concurrency: "shared", interrupt: "cancel" } as const
const careful = { readOnly: false, destructive: true, concurrency: "exclusive", interrupt: "block" } as const

export type ByArguments = keyof typeof careful
export type Answer<Option extends ByArguments> = (typeof careful)[Option] | (typeof free)[Option]

const consequences: { readonly [Option in ByArguments]: string } = {
  readOnly: "the call counts as one that changes something",
  destructive: "the call counts as destructive",
  concurrency: "the call runs alone",
  interrupt: "the call may finish when it is stopped"
}

/**
 * Returns an option's answer for a call: `usual` if the tool declares nothing. Fails with an error thrown by the tool's
 * function, or with the error for a returned promise.
 */
export const asked = <Option extends ByArguments>(
  tool: Declared.Any,
  option: Option,
  args: unknown,
  usual: Answer<Option>
): Result.Result<Answer<Option>, unknown> => {
  const declared = tool[option] ?? usual
  if (typeof declared !== "function") return Result.succeed(declared as Answer<Option>)
  try {
    const answer: unknown = declared(args)
    const mistake = promised(option, answer, "return a value")
    if (mistake !== undefined) return Result.fail(mistake)
    return Result.succeed(answer === free[option] ? free[option] : careful[option])
  } catch (cause) {
    return Result.fail(cause)
  }
}

/** Returns the careful answer and a warning, after an option's function threw or returned a promise. */
export const broken = <Option extends ByArguments>(
  tool: Declared.Any,
  option: Option
): { readonly answer: Answer<Option>; readonly message: string } => ({
  answer: careful[option],
  message: `${option} of tool "${tool.name}" failed; ${consequences[option]}`
})

/** Returns a tool's flag for all of its calls: the careful answer if it depends on the arguments. */
export const declared = (tool: Declared.Any, option: "readOnly" | "destructive"): boolean | undefined =>
  typeof tool[option] === "function" ? careful[option] : tool[option]

/**
 * Returns a hash of everything people and models read about a tool, and of its own declarations. For a function only
 * its presence counts, since its answers depend on the arguments. A tool with changed code needs another `version`.
 */
export const hashOf = (tool: Declared.Any): Effect.Effect<string> => {
  const { approval, compact, description, destructive, idempotent, metadata, name, openWorld, parameters } = tool
  const { readOnly, remember, summary, version } = tool
  const said = { approval, compact, description, destructive, idempotent, name, openWorld, readOnly, remember }
  const known = Object.entries({ ...said, summary, version })
    .map(([option, value]) => [option, typeof value === "function" ? "function" : value ?? null])
  return Json.digest([Object.fromEntries(known), Json.toJson(parameters.jsonSchema), Json.toJson(metadata)])
}

/** Returns whether a call is read-only, without a warning. */
export const isReadOnly = (tool: Declared.Any, args: unknown): boolean =>
  Result.getOrElse(asked(tool, "readOnly", args, false), () => false)

/** Returns whether a call is destructive, without a warning. */
export const isDestructive = (tool: Declared.Any, args: unknown): boolean =>
  Result.getOrElse(asked(tool, "destructive", args, false), () => true)

export const duration = (name: string, option: string, input: unknown): Duration.Duration => {
  const duration = Values.readDuration(input)
  return duration !== undefined && Duration.isPositive(duration)
    ? duration
    : refuse(name, `${option} must be a duration above zero or "infinity"; got: ${Json.render(input)}`)
}

export const timeout = (name: string, input: Declared.TimeoutInput): Declared.Timeout => {
  if (!Values.isTimeLimits(input)) return duration(name, "timeout", input)
  const { idle, total } = input
  return {
    ...(total === undefined ? {} : { total: duration(name, "timeout.total", total) }),
    ...(idle === undefined ? {} : { idle: duration(name, "timeout.idle", idle) })
  }
}

export type Handler = (args: unknown, call: Declared.CallContext) => Effect.Effect<unknown, unknown, any>

/** Returns the error for a misused handler, stating how to fix the tool. */
export const handlerMistake = (name: string, handler: unknown): Error | undefined => {
  if (handler === undefined) return undefined
  if (typeof handler !== "function") {
    return new TypeError(
      `the handler of tool "${name}" must be a function (args, call) => Effect; got: ${typeof handler}`
    )
  }
  if (handler.length > 2) {
    return new RangeError(
      `the handler of tool "${name}" takes ${handler.length} arguments; it is called with two: (args, call)`
    )
  }
  return undefined
}

/** A run's tools by name, in the order the model reads them. */
export type Toolbox = ReadonlyMap<string, Declared.Any>

/**
 * Combines the application's tools, each replaced in place by the caller's tool of the same name, with the caller's
 * other tools. Throws for a handler that cannot be called.
 */
export const toolbox = (defaults: ReadonlyArray<Declared.Any>, given: ReadonlyArray<Declared.Any>): Toolbox => {
  const tools = new Map<string, Declared.Any>()
  if (!Array.isArray(given)) throw new TypeError("tools must be an array of tools made with Tool.make")
  for (const tool of defaults.concat(given)) {
    if (!Values.tool.accepts(tool)) {
      throw new TypeError("tools must be an array of tools made with Tool.make; an element is not such a tool")
    }
    const mistake = handlerMistake(tool.name, tool.handler)
    if (mistake !== undefined) throw mistake
    tools.set(tool.name, tool)
  }
  return tools
}

/** A tool not offered to the model, with the reason. Public as part of `Event.ChatResult`. */
export interface LeftOut {
  readonly name: string
  readonly reason: string
}

/**
 * Splits tools into those a model can be offered and those it cannot: arguments are one object for every provider,
 * which refuses a whole request because of one tool with other parameters.
 */
export const offered = (tools: Toolbox): { readonly tools: Toolbox; readonly leftOut: ReadonlyArray<LeftOut> } => {
  const leftOut = Array.from(tools.values()).flatMap((tool): ReadonlyArray<LeftOut> => {
    const found = objectOf(tool.parameters.jsonSchema)
    return Result.isFailure(found)
      ? [{ name: tool.name, reason: `its parameters cannot be written as one object: ${found.failure}` }]
      : []
  })
  if (leftOut.length === 0) return { tools, leftOut }
  const names = new Set(leftOut.map(({ name }) => name))
  return { tools: new Map(Array.from(tools).filter(([name]) => !names.has(name))), leftOut }
}

/** Returns a tool's parameters as read by the model: one object. */
export const parametersOf = ({ parameters: { jsonSchema } }: Declared.Any): Declared.Definition["parameters"] =>
  Result.getOrElse(objectOf(jsonSchema), () => jsonSchema)

// Compact tools: the model is offered one line per tool instead of a schema, and a `tool_help` tool returning the
// schema. Help is answered from the run's tools. A compact tool called without a required argument answers with its
// usage, so the model learns the schema from its mistake.

const helpName = "tool_help"

const requiredOf = (tool: Declared.Any): ReadonlyArray<string> => {
  const { required } = parametersOf(tool)
  return Array.isArray(required) ? required : []
}

const argumentNames = (tool: Declared.Any): ReadonlyArray<string> => Object.keys(parametersOf(tool)["properties"] ?? {})

const usage = (tool: Declared.Any): string =>
  `usage of ${tool.name}: ${tool.description}\n${JSON.stringify(parametersOf(tool))}`

const stub = (tool: Declared.Any): Declared.Definition => ({
  name: tool.name,
  description: `${tool.summary ?? tool.description} (${argumentNames(tool).join(", ") || "no arguments"})`,
  parameters: { type: "object", properties: {} }
})

const full = (tool: Declared.Any): Declared.Definition => ({
  name: tool.name,
  description: tool.description,
  parameters: parametersOf(tool)
})

const helpTool: Declared.Definition = {
  name: helpName,
  description: "The full description and parameters of the named tools",
  parameters: {
    type: "object",
    properties: { names: { type: "array", items: { type: "string" } } },
    required: ["names"]
  }
}

/**
 * Returns the tools as read by the model. A compact tool the model must call is described in full. A caller's tool
 * named `tool_help` replaces ours.
 */
export const definitions = (
  tools: Toolbox,
  forced: string | undefined
): ReadonlyArray<Declared.Definition> => {
  const list = Array.from(tools.values())
  const told = list.map((tool) => tool.compact && tool.name !== forced ? stub(tool) : full(tool))
  const needsHelp = list.some((tool) => tool.compact) && !list.some((tool) => tool.name === helpName)
  return needsHelp ? [...told, helpTool] : told
}

/** Answers a `tool_help` call, if any tool is compact. */
export const help = (call: Message.ToolCall, tools: Toolbox): Declared.Outcome | undefined => {
  const compact = Array.from(tools.values()).filter((tool) => tool.compact)
  if (call.name !== helpName || compact.length === 0) return undefined
  const { names } = call.arguments
  const wanted = Array.isArray(names) ? compact.filter((tool) => names.includes(tool.name)) : compact
  return wanted.length === 0
    ? {
      _tag: "Error",
      error: `no compact tool has such a name; ask for ${compact.map((tool) => tool.name).join(", ")}`
    }
    : { _tag: "Ok", value: wanted.map(full) }
}

/** Returns the usage of a compact tool called without a required argument. */
export const missingArguments = (call: Message.ToolCall, tool: Declared.Any): string | undefined => {
  if (!tool.compact) return undefined
  return requiredOf(tool).some((name) => !Object.hasOwn(call.arguments ?? {}, name)) ? usage(tool) : undefined
}

// Caller functions that are `async` where an Effect or a value is expected. The types forbid it, but untyped programs
// do it. The promise is observed, so its rejection ends no process, and the error states the fix.

/**
 * Returns `true` for a promise whose `then` may be called here. Other promises may begin their work in `then`, and stay
 * lazy.
 */
const isNative = (value: object): value is Promise<unknown> =>
  value instanceof Promise || Object.prototype.toString.call(value) === "[object Promise]"

/** Returns `true` for a promise, and observes the promise: its rejection ends no process. */
export const isPromise = (value: unknown): boolean => {
  try {
    if (typeof value !== "object" || value === null || !("then" in value)) return false
    if (isNative(value)) Promise.prototype.then.call(value, ignore, ignore)
    return typeof value.then === "function"
  } catch {
    return false
  }
}

const ignore = (): void => {}

/** Misuse of a caller's function: names what was returned instead of the expected value, and the fix. */
export class Misuse extends TypeError {}

/** Returns the error for a `subject` that returned a promise, if any, and handles the promise's rejection. */
export const promised = (subject: string, value: unknown, wanted = "return an Effect: call.promise(…)") =>
  isPromise(value) ? new Misuse(`${subject} returned a Promise; ${wanted}`) : undefined

/** Returns the error for a promise returned as a call's outcome, as `promised` does. */
export const promisedOutcome = (
  subject: string,
  value: unknown,
  call: Pick<Message.ToolCall, "id" | "name">
): ToolOutcomes.ToolError | undefined => {
  const cause = promised(subject, value)
  return cause === undefined
    ? undefined
    : ToolOutcomes.toolError("invalid_return", call, { detail: cause.message, cause: value })
}

/** Evaluates `evaluate` at once and returns its effect. Exceptions become defects. */
export const attempt = <A, E, R>(evaluate: () => Effect.Effect<A, E, R>): Effect.Effect<A, E, R> => {
  try {
    return evaluate()
  } catch (defect) {
    return Exit.die(defect)
  }
}

/**
 * Converts a caller function's return value, a value or an Effect, to an Effect. A promise is a defect naming
 * `subject`.
 */
export const toEffect = <A, E, R>(
  given: A | Effect.Effect<A, E, R>,
  subject: string,
  wanted?: string
): Effect.Effect<A, E, R> => {
  if (Effect.isEffect(given)) return given as Effect.Effect<A, E, R>
  const mistake = promised(subject, given, wanted)
  return mistake === undefined ? Exit.succeed(given as A) : Exit.die(mistake)
}
