/**
 * How much of a text the model reads. Lengths are UTF-16 code units, as JavaScript counts them, and a surrogate pair is
 * never split.
 */
import type * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"

/** What the model reads, and the length its text had if that was cut. */
export interface Shown {
  readonly content: Message.Content
  readonly originalLength?: number
}

interface Text extends Shown {
  readonly content: string
}

/** What of a text is left out: from where to where, and what stands there instead. */
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

type Knobs = Pick<Policy.Policy, "resultLimit" | "resultCut">

const cuts: { readonly [Kept in Knobs["resultCut"]]: Cut } = { headAndTail, head: headOnly }

/** Joined, since a text that is put together otherwise would keep the whole one alive. */
const joined = (...texts: ReadonlyArray<string>): string => texts.join("")

const within = (content: string, limit: number, cut: Cut): Text => {
  const most = Math.floor(limit)
  if (!(most > 0 && content.length > most)) return { content }
  const { end, instead, start } = cut(content, most)
  return { content: joined(content.slice(0, end), instead, content.slice(start)), originalLength: content.length }
}

/** The texts among some parts, cut to the limit as one text. What stands in the gap goes to the part where that begins. */
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

/** A result, cut to the limit of its tool or, where that has none, of the policy. A limit that is not above zero is none. */
export const result = (
  content: Message.Content,
  own: number | null | undefined,
  { resultCut, resultLimit }: Knobs
): Shown => {
  const limit = (own === undefined ? resultLimit : own) ?? 0
  const cut = cuts[resultCut]
  return typeof content === "string" ? within(content, limit, cut) : partsWithin(content, limit, cut)
}

/** The limit of results that a caller submits later, if there is one. */
export const later = (own: number | undefined, { resultCut, resultLimit }: Knobs): Partial<Knobs> => {
  const limit = Math.floor(own === undefined ? resultLimit : own)
  return limit > 0 && limit < Infinity ? { resultLimit: limit, resultCut } : {}
}

/** The text of an error. Where only the head of a result is kept, errors stay whole. */
export const error = (content: string, { resultCut, resultLimit }: Knobs): Text =>
  resultCut === "head"
    ? { content }
    : within(content, resultLimit > 0 ? Math.min(longestError, resultLimit) : longestError, headAndTail)
