/**
 * How much of a text the model reads. Lengths are UTF-16 code units, as JavaScript counts them, and a surrogate pair is
 * never split.
 */
import type * as Message from "../Message.ts"
import type * as Policy from "../Policy.ts"

/** What the model reads, and the length its text had if that was cut. */
export interface Shown {
  readonly content: Message.Content
  readonly originalLength?: number
}

interface Text extends Shown {
  readonly content: string
}

type Cut = (content: string, limit: number) => string

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
  if (room < 2) return `${content.slice(0, endWithin(content, limit - 1))}…`
  const end = headEnd(content, Math.ceil(room / 2))
  const start = tailStart(content, Math.floor(room / 2))
  const head = content.slice(0, end)
  const tail = content.slice(start)
  // Joined, since a text that is put together otherwise would keep the whole one alive.
  return [head, head.endsWith("\n") ? "" : "\n", notice(length, head.length + tail.length), "\n", tail].join("")
}

/** The head of a text, cut to the limit, with a line behind it that says what is missing. */
const headOnly: Cut = (content, limit) => {
  const end = endWithin(content, limit)
  return [content.slice(0, end), "\n", notice(content.length, end)].join("")
}

type Knobs = Pick<Policy.Policy, "resultLimit" | "resultCut">

const cuts: { readonly [Kept in Knobs["resultCut"]]: Cut } = { headAndTail, head: headOnly }

const within = (content: string, limit: number, cut: Cut): Text => {
  const most = Math.floor(limit)
  return most > 0 && content.length > most
    ? { content: cut(content, most), originalLength: content.length }
    : { content }
}

/** The texts among some parts, cut to the limit together: each to its share. */
const partsWithin = (parts: ReadonlyArray<Message.Part>, limit: number, cut: Cut): Shown => {
  const length = parts.reduce((sum, part) => sum + (part.type === "text" ? part.text.length : 0), 0)
  const most = Math.floor(limit)
  if (!(most > 0 && length > most)) return { content: parts }
  const content = parts.flatMap((part): ReadonlyArray<Message.Part> => {
    if (part.type !== "text") return [part]
    const share = Math.floor(most * (part.text.length / length))
    return share === 0 ? [] : [{ ...part, text: within(part.text, share, cut).content }]
  })
  return { content, originalLength: length }
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

/** The text of an error. Where only the head of a result is kept, errors stay whole. */
export const error = (content: string, { resultCut, resultLimit }: Knobs): Text =>
  resultCut === "head"
    ? { content }
    : within(content, resultLimit > 0 ? Math.min(longestError, resultLimit) : longestError, headAndTail)
