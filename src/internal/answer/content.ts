/**
 * Writes what the model reads of an outcome: a value as its tool's schema and the run's encoder write it, a failure as
 * its tool describes it or as much of it as may be shown, and of both no more than the limits say. A value that fails
 * to be written is an error that is answered like any other; the text of an error can always be written.
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

/** The policy and the services that outcomes are written with. */
export interface Writing {
  readonly encoder: Encoder.Service
  /**
   * The limits of a result that the model reads, and whether it reads the defect of a handler and the answer has its
   * code.
   */
  readonly policy: Pick<Policy.Policy, "callFacts" | "crashes" | "resultLimit" | "resultCut">
  /** Milliseconds that writing may take where the tool says nothing else. */
  readonly timeoutMillis: number
  /** The fibers in which schemas and encoders run. */
  readonly fibers: HookFibers
}

/** The call an answer belongs to. A call of an unknown tool has none. */
export interface Subject {
  readonly call: Message.ToolCall
  readonly tool: Declared.Any | undefined
}

/** Work that has its end, or has no more time for it than its tool has. */
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

/** The failure of a result whose time to be written is up. */
export const late = (millis: number): Error => new Error(`writing the result timed out after ${millis} ms`)

const written = (writing: Writing, value: unknown): Effect.Effect<unknown, unknown> =>
  ToolOptions.attempt(() => given(writing.encoder.encode(value)))

/** Tells whether the model can read what was written: an encoder has to yield a text. */
export const isContent = (content: unknown): content is Message.Content =>
  typeof content === "string" || ToolOutcomes.isParts(content)

export const noText = (): Error => new TypeError("the encoder yielded no text")

/**
 * The text of a value without halves of surrogate pairs. In JSON, which any other value than a text is written as, they
 * are escapes.
 */
export const textOf = (content: string, value: unknown): string =>
  typeof value === "string" ? content : Json.wellFormedJson(content)

/** Refuses everything but a text: the model reads what an encoder yields. */
const write = (writing: Writing, subject: Subject, value: unknown): Effect.Effect<string, unknown> =>
  Effect.flatMapEager(
    inTime(writing, subject, written(writing, value)),
    (content) => typeof content === "string" ? Exit.succeed(textOf(content, value)) : Exit.fail(noText())
  )

/** Returns the Effect that the encoder returned; a promise in its place is a mistake. */
const given = (encoding: Effect.Effect<string, unknown>): Effect.Effect<string, unknown> => {
  const mistake = ToolOptions.promised("the encoder", encoding, "return an Effect")
  return mistake === undefined ? encoding : Exit.fail(mistake)
}

/** Writes a result. One that is made of parts is what the model reads already. */
export const writeResult = (
  writing: Writing,
  subject: Subject,
  value: unknown
): Effect.Effect<Message.Content, unknown> => {
  const parts = ToolOutcomes.partsOf(value)
  return parts === undefined ? write(writing, subject, value) : Exit.succeed(parts)
}

/**
 * Encodes a result, first by the tool's own schema. It takes the time that it takes, and what it yields is for
 * `isContent` to judge.
 */
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

/** The same, within the time that its tool has. */
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

/** The last resort, which cannot fail: a value may break even while it is being rendered. */
export const literalError = (reason: unknown): string => {
  if (reason instanceof ToolError) return literal({ error: shownText(reason.message), code: reason.reason })
  const { details, text } = described(reason)
  return literal(details === undefined ? { error: text } : { error: text, details })
}

export const literalValue = (value: unknown): string =>
  Result.getOrElse(Result.try(() => JSON.stringify(Json.toJson(value))), () => "\"the result cannot be shown\"")

/** A crash with what the handler died with in its text. */
const revealed = (error: ToolError): ToolError => {
  if (error.reason !== "handler_raised" || error.cause === undefined) return error
  const { cause, ...fields } = error
  const { details, text } = described(thrown(cause))
  const detail = details === undefined ? text : `${text} ${JSON.stringify(details)}`
  return new ToolError({ ...fields, detail, cause })
}

/**
 * Returns a reported failure as its tool's schema writes it. A failure that does not fit the schema is described like
 * any other reason.
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

/**
 * Writes what the model reads of a failure. An encoder that failed on the result is not asked to encode its failure.
 */
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

// Lengths of texts are UTF-16 code units, as JavaScript counts them, and a surrogate pair is never split.

/** The content that the model reads, and the length its text had if that was cut. */
export interface Shown {
  readonly content: Message.Content
  readonly originalLength?: number
}

interface Text extends Shown {
  readonly content: string
}

/** The part of a text that is left out, by its ends, and the text that stands in its place. */
interface Gap {
  readonly end: number
  readonly instead: string
  readonly start: number
}

/** The gap of a text that is longer than the limit. */
type Cut = (content: string, limit: number) => Gap

/** The most that the model reads of an error, where errors are cut. */
const longestError = 8_192

const notice = (length: number, shown: number): string => `[truncated: ${length} characters in all, ${shown} shown]`

const isHigh = (unit: number): boolean => unit >= 0xd800 && unit < 0xdc00

const isLow = (unit: number): boolean => unit >= 0xdc00 && unit < 0xe000

/** The end of what is kept of a text's beginning: at most `room`. */
const endWithin = (content: string, room: number): number => isHigh(content.charCodeAt(room - 1)) ? room - 1 : room

/** The same at the end of a line, unless too little would be left. */
const headEnd = (content: string, room: number): number => {
  const line = content.lastIndexOf("\n", room - 1) + 1
  return line * 2 >= room && line <= room ? line : endWithin(content, room)
}

/** The beginning of what is kept of a text's end, at the beginning of a line unless too little would be left. */
const tailStart = (content: string, room: number): number => {
  const start = content.length - room
  const line = content.indexOf("\n", start - 1) + 1
  if (line > 0 && (content.length - line) * 2 >= room) return line
  return isLow(content.charCodeAt(start)) ? start + 1 : start
}

/** The head and the tail of a text, with a line between them that says what is missing, all within the limit. */
const headAndTail: Cut = (content, limit) => {
  const { length } = content
  const room = limit - notice(length, length).length - 2
  if (room < 2) return { end: endWithin(content, limit - 1), instead: "…", start: length }
  const end = headEnd(content, Math.ceil(room / 2))
  const start = tailStart(content, Math.floor(room / 2))
  const told = notice(length, end + length - start)
  return { end, instead: `${content[end - 1] === "\n" ? "" : "\n"}${told}\n`, start }
}

/** The head of a text, cut to the limit, with a line behind it that says what is missing. */
const headOnly: Cut = (content, limit) => {
  const end = endWithin(content, limit)
  return { end, instead: `\n${notice(content.length, end)}`, start: content.length }
}

export type Knobs = Pick<Policy.Policy, "resultLimit" | "resultCut">

const cuts: { readonly [Kept in Knobs["resultCut"]]: Cut } = { headAndTail, head: headOnly }

/** Joins texts through an array: a text that is put together otherwise would keep the whole one alive. */
const joined = (...texts: ReadonlyArray<string>): string => texts.join("")

const within = (content: string, limit: number, cut: Cut): Text => {
  const most = Math.floor(limit)
  if (!(most > 0 && content.length > most)) return { content }
  const { end, instead, start } = cut(content, most)
  return { content: joined(content.slice(0, end), instead, content.slice(start)), originalLength: content.length }
}

/**
 * The texts among some parts, cut to the limit as one text. What stands in the gap goes to the part where that begins.
 */
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

/**
 * A result, cut to the limit of its tool or, where that has none, of the policy. A limit that is not above zero is
 * none.
 */
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

/** The limit of results that a caller submits later, if there is one. */
export const limitOf = (own: number | undefined, { resultCut, resultLimit }: Knobs): Partial<Knobs> => {
  const limit = Math.floor(own === undefined ? resultLimit : own)
  return limit > 0 && limit < Infinity ? { resultLimit: limit, resultCut } : {}
}

/** The text of an error, cut. Where only the head of a result is kept, errors stay whole. */
export const cutError = (content: string, { resultCut, resultLimit }: Knobs): Text =>
  resultCut === "head"
    ? { content: Json.wellFormed(content) }
    : within(
      Json.wellFormed(content),
      resultLimit > 0 ? Math.min(longestError, resultLimit) : longestError,
      headAndTail
    )
