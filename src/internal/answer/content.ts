/**
 * Writes outcomes for the model: values through the tool's schema and the run's encoder, failures as described by the
 * tool or by their public fields. Both are cut to the limits. A value that cannot be written becomes an error, answered
 * like any other; error text can always be written.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import type * as Encoder from "../../Encoder.ts"
import type * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"
import { timeoutOf } from "../ask/options.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import { ToolError } from "../declare/outcome.ts"
import type * as Declared from "../declare/tool.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Json from "../json.ts"
import type { HookFibers } from "../stop/ownedFibers.ts"
import { described, reportOf, shownText, thrown, unschemed } from "./errorFields.ts"

/** Policy and services for writing outcomes. */
export interface Writing {
  readonly encoder: Encoder.Service
  /** Result limits, and whether the model sees handler defects and the answer's code. */
  readonly policy: Pick<Policy.Policy, "callFacts" | "crashes" | "resultLimit" | "resultCut">
  /** Default time for writing, in milliseconds, for tools without their own timeout. */
  readonly timeoutMillis: number
  /** Fibers running schemas and encoders. */
  readonly fibers: HookFibers
}

/** The call being answered. `tool` is `undefined` for an unknown tool. */
export interface Subject {
  readonly call: Message.ToolCall
  readonly tool: Declared.Any | undefined
}

/** Runs work within the tool's timeout. Finished work passes through. */
const inTime = <S>(
  writing: Writing,
  subject: Subject,
  work: Effect.Effect<unknown, unknown, S>
): Effect.Effect<unknown, unknown, S> => {
  if (Exit.isExit(work)) return work
  return writing.fibers.limited<unknown, unknown, S>(
    subject.call,
    work,
    timeoutOf(subject.tool, writing.timeoutMillis),
    late,
    true
  )
}

/** Returns the failure for a result not written in time. */
export const late = (millis: number): Error => new Error(`writing the result timed out after ${millis} ms`)

const written = (writing: Writing, value: unknown): Effect.Effect<unknown, unknown> =>
  ToolOptions.attempt(() => given(writing.encoder.encode(value)))

/** Returns `true` if the model can read the written content: an encoder must yield text. */
export const isContent = (content: unknown): content is Message.Content =>
  typeof content === "string" || ToolOutcomes.isParts(content)

export const noText = (): Error => new TypeError("the encoder must succeed with a string")

/** Removes lone surrogates from a value's text. JSON, used for everything except strings, has them as escapes. */
export const textOf = (content: string, value: unknown): string =>
  typeof value === "string" ? content : Json.wellFormedJson(content)

/** Writes a value, refusing all encoder results except text. */
const write = (writing: Writing, subject: Subject, value: unknown): Effect.Effect<string, unknown> =>
  Effect.flatMapEager(
    inTime(writing, subject, written(writing, value)),
    (content) => typeof content === "string" ? Exit.succeed(textOf(content, value)) : Exit.fail(noText())
  )

/** Returns the encoder's Effect. A promise instead is a mistake. */
const given = (encoding: Effect.Effect<string, unknown>): Effect.Effect<string, unknown> => {
  const mistake = ToolOptions.promised("the encoder", encoding, "return an Effect")
  return mistake === undefined ? encoding : Exit.fail(mistake)
}

/** Writes a result. Parts are already readable by the model. */
export const writeResult = (
  writing: Writing,
  subject: Subject,
  value: unknown
): Effect.Effect<Message.Content, unknown> => {
  const parts = ToolOutcomes.partsOf(value)
  return parts === undefined ? write(writing, subject, value) : Exit.succeed(parts)
}

/** Encodes a result, starting with the tool's own schema. No timeout applies, and `isContent` judges the output. */
export const encode = (
  writing: Writing,
  { tool }: Subject,
  { value }: ToolOutcomes.Ok
): Effect.Effect<unknown, unknown, any> => {
  const parts = ToolOutcomes.partsOf(value)
  if (parts !== undefined) return Exit.succeed(parts)
  const encodeSuccess = tool?.encodeSuccess
  if (encodeSuccess === undefined) return written(writing, value)
  return Effect.flatMapEager(ToolOptions.attempt(() => encodeSuccess(value)), (plain) => {
    const parts = ToolOutcomes.partsOf(plain)
    return parts === undefined ? written(writing, plain) : Exit.succeed(parts)
  })
}

/** Encodes a result within the tool's timeout. */
export const encodeInTime = (
  writing: Writing,
  subject: Subject,
  outcome: ToolOutcomes.Ok
): Effect.Effect<unknown, unknown, any> => inTime(writing, subject, encode(writing, subject, outcome))

const literal = (fields: Json.JsonObject): string =>
  Result.getOrElse(
    Result.try(() => Json.wellFormedJson(JSON.stringify(fields))),
    () => "{\"error\":\"the error cannot be shown\"}"
  )

/** Renders an error as a last resort. Never throws: a value may break even while being rendered. */
export const literalError = (reason: unknown): string => {
  if (reason instanceof ToolError) return literal({ error: shownText(reason.message), code: reason.reason })
  const { details, text } = described(reason)
  return literal(details === undefined ? { error: text } : { error: text, details })
}

export const literalValue = (value: unknown): string =>
  Result.getOrElse(Result.try(() => JSON.stringify(Json.toJson(value))), () => "\"the result cannot be shown\"")

/** Returns a crash with the handler's defect in its text. */
const revealed = (error: ToolError): ToolError => {
  if (error.reason !== "handler_raised" || error.cause === undefined) return error
  const { cause, ...fields } = error
  const { details, text } = described(thrown(cause))
  const detail = details === undefined ? text : `${text} ${JSON.stringify(details)}`
  return new ToolError({ ...fields, detail, cause })
}

/**
 * Returns a reported failure as written by its tool's schema. A failure not matching the schema is described like any
 * other reason.
 */
const reported = (writing: Writing, subject: Subject, reason: unknown): Effect.Effect<unknown, never, any> => {
  if (reason instanceof ToolError) return Effect.succeed(writing.policy.crashes === "told" ? revealed(reason) : reason)
  const encodeFailure = subject.tool?.encodeFailure
  if (encodeFailure === undefined) return Effect.succeed(unschemed(reason))
  return inTime(writing, subject, ToolOptions.attempt(() => encodeFailure(reason))).pipe(
    Effect.map((fields) => reportOf(reason, fields).told),
    Effect.catchCause(() => reported(writing, { ...subject, tool: undefined }, reason))
  )
}

/** Writes a failure for the model. An encoder that failed on the result is not asked to encode its failure. */
export const errorContent = (
  writing: Writing,
  subject: Subject,
  reason: unknown
): Effect.Effect<Shown, never, any> =>
  Effect.suspend(() => {
    if (isEncodingFailure(reason)) return Effect.succeed(literal({ error: described(reason.cause).text }))
    return Effect.flatMap(
      reported(writing, subject, reason),
      (error) => write(writing, subject, ToolOutcomes.brand({ _tag: "Error", error }))
    )
  }).pipe(
    Effect.catchCause(() => Effect.succeed(literalError(reason))),
    Effect.map((content) => cutError(content, writing.policy))
  )

const isEncodingFailure = (reason: unknown): reason is ToolError =>
  Json.isObject(reason) && reason["_tag"] === "ToolError" && reason["reason"] === "encoding_failed"

// Text lengths are UTF-16 code units, as in JavaScript, and surrogate pairs are never split.

/** Content for the model, and the original text length if the text was cut. */
export interface Shown {
  readonly content: Message.Content
  readonly originalLength?: number
}

interface Text extends Shown {
  readonly content: string
}

/** The omitted part of a text, by its ends, and its replacement text. */
interface Gap {
  readonly end: number
  readonly instead: string
  readonly start: number
}

/** Returns the gap for a text above the limit. */
type Cut = (content: string, limit: number) => Gap

/** Longest error text for the model, where errors are cut. */
const longestError = 8_192

const notice = (length: number, shown: number): string => `[truncated: ${length} characters in all, ${shown} shown]`

const isHigh = (unit: number): boolean => unit >= 0xd800 && unit < 0xdc00

const isLow = (unit: number): boolean => unit >= 0xdc00 && unit < 0xe000

/** Returns the end of a kept head, at most `room`. */
const endWithin = (content: string, room: number): number => isHigh(content.charCodeAt(room - 1)) ? room - 1 : room

/** Returns the end of a kept head at a line end, unless too little would remain. */
const headEnd = (content: string, room: number): number => {
  const line = content.lastIndexOf("\n", room - 1) + 1
  return line * 2 >= room && line <= room ? line : endWithin(content, room)
}

/** Returns the start of a kept tail, at a line start unless too little would remain. */
const tailStart = (content: string, room: number): number => {
  const start = content.length - room
  const line = content.indexOf("\n", start - 1) + 1
  if (line > 0 && (content.length - line) * 2 >= room) return line
  return isLow(content.charCodeAt(start)) ? start + 1 : start
}

/** Keeps head and tail, with a line between them stating what is missing, all within the limit. */
const headAndTail: Cut = (content, limit) => {
  const { length } = content
  const room = limit - notice(length, length).length - 2
  if (room < 2) return { end: endWithin(content, limit - 1), instead: "…", start: length }
  const end = headEnd(content, Math.ceil(room / 2))
  const start = tailStart(content, Math.floor(room / 2))
  const told = notice(length, end + length - start)
  return { end, instead: `${content[end - 1] === "\n" ? "" : "\n"}${told}\n`, start }
}

/** Keeps the head up to the limit, followed by a line stating what is missing. */
const headOnly: Cut = (content, limit) => {
  const end = endWithin(content, limit)
  return { end, instead: `\n${notice(content.length, end)}`, start: content.length }
}

export type Knobs = Pick<Policy.Policy, "resultLimit" | "resultCut">

const cuts: { readonly [Kept in Knobs["resultCut"]]: Cut } = { headAndTail, head: headOnly }

/** Joins texts through an array: other concatenation would keep the whole text alive. */
const joined = (...texts: ReadonlyArray<string>): string => texts.join("")

const within = (content: string, limit: number, cut: Cut): Text => {
  const most = Math.floor(limit)
  if (!(most > 0 && content.length > most)) return { content }
  const { end, instead, start } = cut(content, most)
  return { content: joined(content.slice(0, end), instead, content.slice(start)), originalLength: content.length }
}

/** Cuts the texts among parts to the limit, as one text. The notice goes to the part where the gap begins. */
const partsWithin = (parts: ReadonlyArray<Message.Part>, limit: number, cut: Cut): Shown => {
  const whole = parts.map((part) => part.type === "text" ? part.text : "").join("")
  const most = Math.floor(limit)
  if (!(most > 0 && whole.length > most)) return { content: parts }
  const { end, instead, start } = cut(whole, most)
  let position = 0
  const content = parts.flatMap((part): ReadonlyArray<Message.Part> => {
    if (part.type !== "text" || part.text === "") return part.type === "text" ? [] : [part]
    const from = position
    position += part.text.length
    const isBefore = from < end || from === 0
    const text = joined(
      whole.slice(from, Math.min(end, position)),
      isBefore && end <= position ? instead : "",
      whole.slice(Math.max(start, from), position)
    )
    return text === "" ? [] : [{ ...part, text }]
  })
  return { content, originalLength: whole.length }
}

/** Cuts a result to its tool's limit, or else to the policy's. Limits not above zero do not apply. */
export const cutResult = (
  content: Message.Content,
  own: number | null | undefined,
  { resultCut, resultLimit }: Knobs
): Shown => {
  const limit = (own === undefined ? resultLimit : own) ?? 0
  const cut = cuts[resultCut]
  const whole = Json.wellFormed(content)
  return typeof whole === "string" ? within(whole, limit, cut) : partsWithin(whole, limit, cut)
}

/** Returns the limit for results submitted later by a caller, if any. */
export const limitOf = (own: number | undefined, { resultCut, resultLimit }: Knobs): Partial<Knobs> => {
  const limit = Math.floor(own === undefined ? resultLimit : own)
  return limit > 0 && limit < Infinity ? { resultLimit: limit, resultCut } : {}
}

/** Cuts an error text. Where only the head of a result is kept, errors stay whole. */
export const cutError = (content: string, { resultCut, resultLimit }: Knobs): Text =>
  resultCut === "head"
    ? { content: Json.wellFormed(content) }
    : within(
      Json.wellFormed(content),
      resultLimit > 0 ? Math.min(longestError, resultLimit) : longestError,
      headAndTail
    )
