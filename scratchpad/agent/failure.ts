/**
 * Failures as one line each, for the user of the agent rather than its developer.
 */
import * as CliError from "effect/cli/CliError"
import * as Formatter from "effect/Formatter"
import * as Option from "effect/Option"
import { isPlatformError } from "effect/PlatformError"
import * as Schema from "effect/Schema"
import { Adapter, type Event, Journal, Message, Session } from "heddle"
import * as Provider from "./provider.ts"
import * as Settings from "./settings.ts"
import type * as Tools from "./tools.ts"

const maxLength = 300

/** What the model reads of a failed call. */
const Envelope = Schema.fromJsonString(Schema.Struct({ error: Schema.String }))

/** A text on one line, without control characters, and not longer than one can take in. */
const oneLine = (text: string): string => {
  const line = text.replaceAll(/[\s\p{Cc}]+/gu, " ").trim()
  return line.length <= maxLength ? line : `${line.slice(0, maxLength)} …`
}

const messageOf = (error: unknown): string => {
  if (typeof error === "string") return error
  const isTold = typeof error === "object" && error !== null && "message" in error && error.message !== ""
  return isTold ? String(error.message) : Formatter.format(error)
}

/** What servers quote of a key when they refuse it: a few of its letters around a mask. */
const masked = /\S*(?:\*{3,}|\w(?:\.{3}|…)\w)\S*/gu

const detailOf = ({ detail, reason }: Adapter.AdapterError): string => {
  if (detail === undefined) return ""
  const clean = reason === "authentication_failed" ? detail.replaceAll(masked, "<redacted>") : detail
  return `: ${clean.replace(/^cannot reach \S+: /, "")}`
}

/** What only a server can say, and which settings may mend it. */
const ofServer = ({ metadata, reason, status }: Adapter.AdapterError, model: Settings.Server): string | undefined => {
  const { baseUrl, keys, model: modelVariable } = Provider.providers[model.provider]
  if (reason === "authentication_failed") {
    return Option.match(model.key, {
      onNone: () => `wants a key; set ${keys.join(" or ")}`,
      onSome: ({ variable }) => `refuses the key; check ${variable}`
    })
  }
  const isUnknown = reason === "invalid_request" && (status === 404 || metadata?.["code"] === "model_not_found")
  return isUnknown ? `has no ${model.name}; check --model or ${modelVariable}, and ${baseUrl}` : undefined
}

const ofAdapter = (error: Adapter.AdapterError, model: Settings.Model): string => {
  const isServer = model._tag === "Server"
  const server = isServer ? `the model server at ${Settings.address(model)}` : "the embedded model"
  const detail = detailOf(error)
  const said = isServer ? ofServer(error, model) : undefined
  if (said !== undefined) return `${server} ${said}${detail}`
  switch (error.reason) {
    case "network_error":
      return `cannot reach ${server}${detail}`
    case "rate_limited":
      return `${server} wants fewer requests; try again later${detail}`
    case "timeout":
      return `${server} did not answer in time${detail}`
    default:
      return `${server} cannot answer (${error.reason})${detail}`
  }
}

/** Two starts at once cannot both go on with a session; the later one gets this. */
const ofConflict = ({ id }: Journal.SessionConflict): string =>
  `session ${id}: another start has gone on with it meanwhile, so this one stopped; start again to go on from there`

/** A start that goes on with a session while another one does gets this, and so does one whose claim ended. */
const ofClaim = ({ id, owner, reason }: Journal.SessionClaimed): string =>
  reason === "held"
    ? `session ${id}: ${owner} goes on with it now; wait until that start has ended, or stop it`
    : `session ${id}: the claim on it could not be renewed, so this start stopped; start again to go on from there`

/** One line for whatever ended the agent. */
export const line = (error: unknown, model: Settings.Model): string => {
  if (error instanceof Journal.SessionConflict) return oneLine(ofConflict(error))
  if (error instanceof Journal.SessionClaimed) return oneLine(ofClaim(error))
  if (error instanceof Session.ResumeError) {
    return oneLine(`${error.message}; or start with --give-up to go on without it`)
  }
  if (error instanceof Journal.StoreError) return oneLine(`session ${error.id}: it cannot be kept: ${messageOf(error)}`)
  if (error instanceof Adapter.AdapterError) return oneLine(ofAdapter(error, model))
  if (CliError.isCliError(error) && error._tag === "ShowHelp") {
    return oneLine(`${error.errors.map(messageOf).join("; ")} (see --help)`)
  }
  if (isPlatformError(error) && error.reason.module === "Terminal") return "the output is not read any more"
  return oneLine(messageOf(error))
}

const ofOutcome = (outcome: Event.Outcome, model: Settings.Model): string | undefined => {
  switch (outcome._tag) {
    case "Completed":
    case "AskUser":
      return undefined
    case "Failed":
      return line(outcome.error, model)
    case "MaxTurns":
      return `there was no answer after ${outcome.maxTurns} turns`
    case "RuleEnded":
      return outcome.rule === "budget"
        ? "there was no answer within the budget; --budget gives it more"
        : `the run ended without an answer (${outcome.rule})`
    default:
      return `the run ended without an answer (${outcome._tag})`
  }
}

/** An answer that was given although every call before it had failed rests on nothing. */
const ofLastCalls = (steps: Event.ChatResult["steps"]): string | undefined => {
  const answers = steps.findLast((step) => step.toolResults.length > 0)?.toolResults ?? []
  const [first] = answers
  if (first === undefined || !answers.every((answer) => answer.isError === true)) return undefined
  const envelope = Schema.decodeUnknownOption(Envelope)(Message.text(first))
  return oneLine(Option.match(envelope, { onNone: () => Message.text(first), onSome: ({ error }) => error }))
}

/** The files that were left out because the system refuses them; an answer without them may be wrong. */
const ofUnreadable = (files: ReadonlyArray<Tools.Unreadable>): string | undefined => {
  const [first, ...others] = files.filter((file, index) => files.findIndex(({ path }) => path === file.path) === index)
  if (first === undefined) return undefined
  const more = others.length === 0 ? "" : ` (and ${others.length} more)`
  return oneLine(`cannot ${first.isForWriting ? "write" : "read"} ${first.path}: ${first.reason}${more}`)
}

/** What stands in the way of a whole answer in a run that ended, if anything does. A question to the user does not. */
export const ofResult = (
  { outcome, steps }: Pick<Event.ChatResult, "outcome" | "steps">,
  unreadable: ReadonlyArray<Tools.Unreadable>,
  model: Settings.Model
): string | undefined => ofOutcome(outcome, model) ?? ofUnreadable(unreadable) ?? ofLastCalls(steps)
