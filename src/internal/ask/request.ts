/**
 * The request of a model call: what the options say of the model, and nothing of how the run is driven. Everything
 * that is wrong with it is found before the adapter is touched.
 */
import type * as Types from "effect/Types"
import type * as Adapter from "../../Adapter.ts"
import type * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"
import type * as Thread from "../../Thread.ts"
import type * as Tool from "../../Tool.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Json from "../json.ts"
import * as Lists from "../lists.ts"

/** The options that concern the model. */
export interface ModelOptions {
  /** Put in front of the messages of each request, and kept out of the thread. */
  readonly system?: string
  /** The name of the model: by default that of `Policy.Defaults`, else the adapter's. */
  readonly model?: string
  /** How freely the model chooses its words. The provider's by default. */
  readonly temperature?: number | null
  /** How many tokens a reply may have. The adapter's by default, else the provider's. */
  readonly maxTokens?: number | null
  /** Whether and which tools the model may call. The model decides by default. */
  readonly toolChoice?: Adapter.ToolChoice | null
  /** The form that the answer has to have. Free text by default. */
  readonly responseFormat?: Adapter.ResponseFormat | null
  /** What requests of one conversation have in common, for the provider's cache. A session gives its id. */
  readonly cacheKey?: string
  /** Fields of the provider's own, as the adapter takes them. */
  readonly options?: Readonly<Record<string, unknown>>
}

/** The part of a request that is the same for every turn of a run. */
export type Template = Omit<Adapter.Request, "messages">

const forcedTool = (choice: ModelOptions["toolChoice"]): string | undefined =>
  typeof choice === "object" && choice !== null ? choice.name : undefined

/** Whether the model has to call a tool. */
export const isForced = (choice: ModelOptions["toolChoice"]): boolean =>
  choice === "required" || forcedTool(choice) !== undefined

export const template = (
  options: ModelOptions,
  defaults: Policy.Defaults,
  tools: ToolOptions.Toolbox
): Template => {
  const template: Types.Mutable<Template> = {
    tools: ToolOptions.definitions(tools, forcedTool(options.toolChoice))
  }
  const { cacheKey, options: own, responseFormat, toolChoice } = options
  const model = options.model ?? defaults.model
  const temperature = options.temperature ?? defaults.temperature
  const maxTokens = options.maxTokens ?? defaults.maxTokens
  if (isGiven(model)) template.model = model
  if (isGiven(temperature)) template.temperature = temperature
  if (isGiven(maxTokens)) template.maxTokens = maxTokens
  if (isGiven(toolChoice)) template.toolChoice = toolChoice
  if (isGiven(responseFormat)) template.responseFormat = responseFormat
  if (isGiven(cacheKey)) template.cacheKey = cacheKey
  if (isGiven(own)) template.options = own
  return template
}

const isGiven = <V>(value: V | null | undefined): value is V => value !== null && value !== undefined

export const messages = (
  system: string | undefined,
  thread: ReadonlyArray<Message.Message>
): ReadonlyArray<Message.Message> =>
  system === undefined ? thread : [{ role: "system", content: system, metadata: Json.none }, ...thread]

type Issues = ReadonlyArray<Thread.Issue>

const when = (isWrong: boolean, path: string, reason: string): Issues => isWrong ? [{ path, reason }] : Lists.none

const isNumber = (value: unknown): value is number => typeof value === "number"

const temperatureIssues = (temperature: unknown): Issues =>
  temperature === undefined || (isNumber(temperature) && temperature >= 0 && temperature <= 2)
    ? Lists.none
    : [{ path: "temperature", reason: `must be a number from 0 to 2; got: ${Json.render(temperature)}` }]

const maxTokensIssues = (maxTokens: unknown): Issues =>
  maxTokens === undefined || (isNumber(maxTokens) && Number.isInteger(maxTokens) && maxTokens > 0)
    ? Lists.none
    : [{ path: "maxTokens", reason: `must be a positive integer; got: ${Json.render(maxTokens)}` }]

const formatTypes: ReadonlyArray<unknown> = ["text", "json_object", "json_schema"]

const formatIssues = (format: unknown): Issues => {
  if (format === undefined) return Lists.none
  if (!Json.isObject(format) || !formatTypes.includes(format["type"])) {
    return [{ path: "responseFormat", reason: "must have type text, json_object or json_schema" }]
  }
  if (format["type"] !== "json_schema") return Lists.none
  return [
    ...when(typeof format["name"] !== "string" || format["name"] === "", "responseFormat.name", "must name the schema"),
    ...when(!Json.isObject(format["schema"]), "responseFormat.schema", "must be a JSON Schema object")
  ]
}

const choiceIssues = (choice: unknown, tools: ToolOptions.Toolbox): Issues => {
  if (choice === undefined || choice === "auto" || choice === "none" || choice === "required") {
    return Lists.none
  }
  if (!Json.isObject(choice) || typeof choice["name"] !== "string") {
    return [{ path: "toolChoice", reason: `must be "auto", "none", "required" or { name }` }]
  }
  return when(
    tools.get(choice["name"]) === undefined,
    "toolChoice.name",
    `there is no tool "${choice["name"]}"`
  )
}

const duplicateNames = (tools: ReadonlyArray<Tool.Any>): Issues => {
  if (tools.length < 2) return Lists.none
  const names = tools.map((tool) => tool.name)
  if (new Set(names).size === names.length) return Lists.none
  const repeated = new Set(names.filter((name, index) => names.indexOf(name) !== index))
  return Array.from(repeated, (name) => ({ path: "tools", reason: `two tools are named "${name}"` }))
}

/** Everything that is wrong with a request. */
export const issues = (
  thread: Thread.Thread,
  request: Template,
  given: ReadonlyArray<Tool.Any>,
  tools: ToolOptions.Toolbox
): Issues => [
  ...when(thread.messages.length === 0, "messages", "must not be empty"),
  ...duplicateNames(given),
  ...temperatureIssues(request.temperature),
  ...maxTokensIssues(request.maxTokens),
  ...formatIssues(request.responseFormat),
  ...choiceIssues(request.toolChoice, tools)
]
