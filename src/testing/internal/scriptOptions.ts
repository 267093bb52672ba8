/** Resolves script options: the calls `stream` and `generate` play, and the faults of meaningless options. */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Adapter from "../../Adapter.ts"
import * as Event from "../../Event.ts"
import { checkNames, type NamesOf } from "../../internal/declare/schema.ts"
import * as Values from "../../internal/declare/values.ts"
import * as Message from "../../Message.ts"
import * as Response from "../../Response.ts"
import type * as Script from "./entry.ts"

type Calls = ReadonlyArray<ReadonlyArray<Script.Entry>>

const isCalls = (list: ReadonlyArray<unknown>): list is Calls => list.length > 0 && list.every(Array.isArray)

/** Returns a list as calls. A flat list is a single call, and so is an empty list. */
const toCalls = (list: ReadonlyArray<Script.Entry> | Calls): Calls =>
  isCalls(list) ? list : [list as ReadonlyArray<Script.Entry>]

const isList = (input: Script.Input): input is Exclude<Script.Input, Script.Options> => Array.isArray(input)

/** Returns an input as options. */
export const options = (input: Script.Input): Script.Options => isList(input) ? { scripts: toCalls(input) } : input

/** Calls played by `stream`. */
export const streamCalls = (options: Script.Options): Calls =>
  options.streamScript === undefined ? awaitedCalls(options) : toCalls(options.streamScript)

/** Calls played by `generate`. */
export const awaitedCalls = ({ script, scripts }: Script.Options): Calls =>
  scripts ?? (script === undefined ? [] : [script])

const Data = Schema.Record(Schema.String, Schema.Unknown)

const usageNames = Object.keys(Response.Usage.fields)

const Usage = Data.check(
  Schema.makeFilter((usage) =>
    Object.keys(usage).every((name) => usageNames.includes(name)) || `only the names ${usageNames.join(", ")}`
  )
)

const { _tag: _, reason: Reason, ...details } = Adapter.AdapterError.fields

const Details = Schema.Struct(details)

const frame: ReadonlyArray<string> = ["MessageStarted", "TextCompleted", "MessageCompleted"]

const Inner = Schema.toType(Event.AdapterEvent).check(
  Schema.makeFilter((event) => !frame.includes(event._tag) || `none of ${frame.join(", ")}: the script writes these`)
)

const Entry = Schema.Union([
  Schema.TaggedStruct("Text", { text: Schema.String }),
  Schema.TaggedStruct("Reasoning", { text: Schema.String }),
  Schema.TaggedStruct("ToolCall", { ...Message.ToolCall.fields, metadata: Schema.optionalKey(Data) }),
  Schema.TaggedStruct("ToolCallDelta", { id: Schema.String, argumentsDelta: Schema.String }),
  Schema.TaggedStruct("Usage", { usage: Usage }),
  Schema.TaggedStruct("RawChunk", { chunk: Schema.Unknown }),
  Schema.TaggedStruct("Event", { event: Inner }),
  Schema.TaggedStruct("Delay", { millis: Schema.Number.check(Schema.isGreaterThanOrEqualTo(0)) }),
  Schema.TaggedStruct("Error", { error: Schema.Unknown, details: Schema.optionalKey(Details) }),
  Schema.TaggedStruct("ErrorThenContinue", { error: Schema.Unknown, details: Schema.optionalKey(Details) }),
  Schema.TaggedStruct("StreamError", { reason: Reason, details: Details }),
  Schema.TaggedStruct("PreflightError", { reason: Reason, details: Details }),
  Schema.TaggedStruct("Finish", {
    reason: Schema.NullOr(Response.FinishReason),
    rawFinishReason: Schema.optionalKey(Schema.String),
    paused: Schema.optionalKey(Schema.Boolean),
    metadata: Schema.optionalKey(Data)
  })
])

const decode = Schema.decodeUnknownResult(Schema.toType(Entry))

/** Returns the fault in a call's entries, naming the entry. */
const issueOfCall = (entries: unknown, call: number): string | undefined => {
  if (!Array.isArray(entries)) return `call ${call} must be a list of entries; got: ${typeof entries}`
  for (const [index, entry] of entries.entries()) {
    const result = decode(entry)
    if (Result.isFailure(result)) return `entry ${index} of call ${call}: ${result.failure.message}`
    if (result.success._tag === "PreflightError" && index > 0) {
      return `entry ${index} of call ${call}: a preflight error must be the first entry of its call`
    }
  }
  return undefined
}

const knownOptions = {
  script: Values.list,
  scripts: Values.list,
  streamScript: Values.list,
  usage: new Values.Kind("an object with names of Response.Usage", Schema.is(Usage)),
  requestId: Values.text,
  cursor: Values.record,
  retryUntilCall: Values.count,
  chunkSize: Values.count
} satisfies NamesOf<Script.Options>

const issueOf = (options: Script.Options): string | undefined => {
  checkNames("Script", options, knownOptions)
  if (options.script !== undefined && options.scripts !== undefined) {
    return "script and scripts cannot be given together"
  }
  return [...awaitedCalls(options), ...streamCalls(options)].map(issueOfCall).find((issue) => issue !== undefined)
}

/** Dies if the options cannot be played. */
export const check = (options: Script.Options): Effect.Effect<void> =>
  Effect.suspend(() => {
    const issue = issueOf(options)
    return issue === undefined ? Effect.void : Effect.die(new TypeError(`Script: ${issue}`))
  })
