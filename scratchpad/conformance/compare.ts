/**
 * What was read, against what the recording says a correct adapter reads. A difference is one short text; a field that
 * the recording does not assert is not looked at.
 */
import { type Adapter, Collector, type Event, type Message, Response } from "heddle"
import { isDeepStrictEqual } from "node:util"
import type * as Fixtures from "./fixtures.ts"

/** What one turn came to. */
export interface Reading {
  readonly events: ReadonlyArray<Event.Event>
  readonly response: Response.Response
  readonly error: Adapter.AdapterError | undefined
}

/** What a turn came to that broke off: what was read until then, and the error. */
export const failed = (events: ReadonlyArray<Event.Event>, error: Adapter.AdapterError | undefined): Reading => {
  const all: ReadonlyArray<Event.Event> = [...events, { _tag: "Error", error }]
  return { events, response: Collector.toResponse(Collector.applyAll(Collector.initial(), all)), error }
}

type Differences = ReadonlyArray<string>

const show = (value: unknown): string => {
  const text = JSON.stringify(value) ?? "nothing"
  return text.length <= 120 ? text : `${text.slice(0, 117)}...`
}

const differs = (what: string, expected: unknown, found: unknown): Differences =>
  isDeepStrictEqual(expected, found) ? [] : [`${what}: expected ${show(expected)}, found ${show(found)}`]

/** Checks a field if the recording asserts it. */
const asserted = <A>(value: A | undefined, check: (value: A) => Differences): Differences =>
  value === undefined ? [] : check(value)

const usageNames: Readonly<Record<string, keyof Response.Usage>> = {
  inputTokens: "inputTokens",
  outputTokens: "outputTokens",
  totalTokens: "totalTokens",
  cachedInputTokens: "cachedInputTokens",
  cacheWriteTokens: "cacheWriteInputTokens",
  reasoningTokens: "reasoningTokens"
}

const usage = (expected: NonNullable<Fixtures.Expected["usage"]>, found: Response.Usage | null): Differences =>
  Object.entries(expected).flatMap(([name, count]) => {
    const own = usageNames[name]
    return own === undefined ? [`usage.${name} is unknown`] : differs(`usage.${name}`, count, found?.[own] ?? null)
  })

/**
 * Arguments that did not come as an object have to be marked as lost, so that nothing is run with them. Those of a call
 * that the token limit may have cut may be marked, too, although their text happens to be JSON.
 */
const callArguments = (expected: Fixtures.ExpectedCall, found: Message.ToolCall, isLimited: boolean): Differences => {
  if (isLimited && found.argumentsLost === "truncated") return []
  if (expected.arguments !== undefined) {
    return [
      ...differs("arguments", expected.arguments, found.arguments),
      ...differs("argumentsLost", undefined, found.argumentsLost)
    ]
  }
  const isNone = expected.argumentsJsonType === "null"
  return found.argumentsLost === undefined && !isNone ? ["arguments that were cut are not marked as lost"] : []
}

const call = (expected: Fixtures.ExpectedCall, found: Message.ToolCall, isLimited: boolean): Differences => [
  ...(expected.id === null || expected.id === ""
    ? []
    : differs("id", expected.id, found.metadata["duplicateOf"] ?? found.id)),
  ...(found.id === "" ? ["id: empty"] : []),
  ...differs("name", expected.name, found.name),
  ...callArguments(expected, found, isLimited),
  ...asserted(expected.argumentsRaw, (raw) => differs("rawArguments", raw, found.rawArguments ?? ""))
]

const toolCalls = (expected: ReadonlyArray<Fixtures.ExpectedCall>, response: Response.Response): Differences => {
  const found = Response.actionableCalls(response)
  const names = (calls: ReadonlyArray<{ readonly name: string }>) => calls.map(({ name }) => name)
  if (found.length !== expected.length) return differs("toolCalls", names(expected), names(found))
  const ids = new Set(found.map(({ id }) => id))
  return [
    ...(ids.size === found.length ? [] : ["toolCalls: an id is used twice"]),
    ...expected.flatMap((item, index) => {
      const isLimited = response.finishReason === "length" && index === expected.length - 1
      return call(item, found[index]!, isLimited).map((text) => `toolCalls[${index}].${text}`)
    })
  ]
}

const text = (value: unknown): string | undefined => value === null || value === undefined ? undefined : String(value)

/** Whether the reason says less than could be known: an error inside a reply may tell nothing but its message. */
const isVague = ({ reason, status }: Adapter.AdapterError): boolean =>
  reason === "malformed_response" || (reason === "unknown" && status !== undefined)

/** A status in words is a word of the error, a number its HTTP status. */
const error = (
  expected: NonNullable<Fixtures.Expected["error"]>,
  found: Adapter.AdapterError | undefined
): Differences => {
  if (found === undefined) return [`error: expected ${show(expected)}, found none`]
  const { code, message, status, type } = expected
  const metadata = found.metadata ?? {}
  return [
    ...(found.detail?.includes(String(message)) === true ? [] : differs("error.message", message, found.detail)),
    ...asserted(text(type), (word) => differs("error.type", word, text(metadata["type"]))),
    ...asserted(text(code), (word) => differs("error.code", word, text(metadata["code"]))),
    ...asserted(text(status), (word) => differs("error.status", word, text(metadata["status"] ?? found.status))),
    ...(isVague(found) ? [`error.reason: ${found.reason}`] : [])
  ]
}

/**
 * What runs at the provider is listed under the name of what was called; results are no calls. A recording may name the
 * result alone: then its call may go by any name.
 */
const serverTools = (expected: ReadonlyArray<string>, response: Response.Response): Differences => {
  const isResult = (name: string) => /(_result|_output|Result|Response)$/.test(name)
  const isCall = (name: string) => !isResult(name) && name !== "compaction"
  const found = response.toolCalls.filter((call) => call.providerExecuted === true).map((call) => call.name)
  const names = expected.filter(isCall)
  const results = expected.filter(isResult)
  const listed = found.filter(isCall)
  return names.length > 0 || results.length === 0
    ? differs("serverTools", names, listed)
    : differs("serverTools.length", results.length, listed.length)
}

/**
 * Recordings list among what runs at the provider also what it asks this side for, in a form that no tool of a run has.
 * Such a reply is refused by the name of the item, and has no end of its own.
 */
const isRefusedByName = ({ serverTools = [] }: Fixtures.Expected, failure: Adapter.AdapterError | undefined): boolean =>
  failure?.reason === "unsupported_feature" && serverTools.some((name) => failure.detail?.includes(` ${name}`) === true)

/** The provider's word for the end, which an error may hold; where it had none, a response repeats its own. */
const rawFinishReason = (expected: string | null, { error, response }: Reading): Differences => {
  const isRepeated = expected === null && response.rawFinishReason === response.finishReason
  const found = response.rawFinishReason ?? error?.metadata?.["finishReason"] ?? null
  return isRepeated ? [] : differs("rawFinishReason", expected, found)
}

/** The differences of one turn. */
export const differences = (expected: Fixtures.Expected, status: number, reading: Reading): Differences => {
  const { error: failure, response } = reading
  const isExpectedToFail = expected.error !== undefined
  const isAsserted = Object.keys(expected).length > 0
  if (isRefusedByName(expected, failure)) {
    const { finishReason: _, finishReasonRaw: _word, serverTools: _listed, ...rest } = expected
    return differences(rest, status, { ...reading, error: undefined })
  }
  return [
    ...(failure !== undefined && !isExpectedToFail && isAsserted ? [`failed: ${failure.message}`] : []),
    ...asserted(expected.error, (value) => error(value, failure)),
    ...(isExpectedToFail && status >= 400 ? differs("error.status", status, failure?.status) : []),
    ...asserted(
      expected.retryAfterSeconds,
      (seconds) => differs("error.retryAfterMillis", seconds * 1000, failure?.retryAfterMillis)
    ),
    ...asserted(expected.text, (value) => differs("text", value, response.outputText ?? "")),
    ...asserted(expected.reasoning, (value) => differs("reasoning", value, response.reasoning)),
    ...asserted(expected.refusal, (value) => differs("refusal", value, response.metadata["refusal"])),
    ...asserted(expected.toolCalls, (value) => toolCalls(value, response)),
    ...asserted(expected.serverTools, (value) => serverTools(value, response)),
    ...asserted(expected.finishReason, (value) => differs("finishReason", value, response.finishReason)),
    ...asserted(expected.finishReasonRaw, (value) => rawFinishReason(value, reading)),
    ...asserted(expected.stopSequence, (value) => differs("stopSequence", value, response.metadata["stopSequence"])),
    ...asserted(expected.blockReason, (value) => differs("blockReason", value, response.metadata["blockReason"])),
    ...asserted(expected.usage, (value) => usage(value, response.usage))
  ]
}
