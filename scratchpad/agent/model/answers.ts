/**
 * How the embedded model puts what its tools found into words. Every path, line and number in an answer comes from a
 * tool's answer of the same conversation; where there is nothing to report, the answer says that.
 */
import type * as Search from "../search.ts"
import type * as Words from "../words.ts"
import type * as Conversation from "./conversation.ts"

type JsonObject = Readonly<Record<string, unknown>>

/** A hit of `search_text`. */
export type Match = Search.Match

/** What the searches of a conversation came to. */
export interface Found {
  readonly matches: ReadonlyArray<Match>
  readonly searched: number
  /** Not all of the files were searched. */
  readonly isCut: boolean
  readonly unreadable: ReadonlyArray<string>
  readonly error: string | undefined
}

const textOf = (value: unknown): string => typeof value === "string" ? value : ""
const numberOf = (value: unknown): number => typeof value === "number" ? value : 0
const listOf = (value: unknown): ReadonlyArray<unknown> => Array.isArray(value) ? value : []
const objectsOf = (value: unknown): ReadonlyArray<JsonObject> =>
  listOf(value).filter((item) => typeof item === "object" && item !== null).map((item) => item as JsonObject)

/** `a`, `a and b`, `a, b and c`. */
export const enumerate = (items: ReadonlyArray<string>): string =>
  items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`

/** `path:line`. */
export const place = (match: Pick<Match, "path" | "line">): string => `${match.path}:${match.line}`

/** The path that is nearest to the top. */
export const shortest = (paths: ReadonlyArray<string>): string | undefined =>
  paths.toSorted((left, right) => left.split("/").length - right.split("/").length || left.length - right.length)[0]

/** The first, and so the best, match of each file. */
export const bestPerFile = (matches: ReadonlyArray<Match>): ReadonlyArray<Match> =>
  matches.filter((match, index) => matches.findIndex((other) => other.path === match.path) === index)

const plural = (count: number, noun: string): string => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`

const unreadableOf = (value: JsonObject): ReadonlyArray<string> =>
  objectsOf(value["unreadable"]).map((file) => `${textOf(file["path"])} (${textOf(file["reason"])})`)

const isSearch = (answer: Conversation.Answered): boolean => answer.name === "search_text"

const isElsewhere = (answer: Conversation.Answered): boolean => answer.arguments["path"] !== undefined

/** What the search of the whole folder found. */
export const searchOf = (answers: ReadonlyArray<Conversation.Answered>): Found =>
  foundBy(answers.find((answer) => isSearch(answer) && !isElsewhere(answer)))

const foundBy = (search: Conversation.Answered | undefined): Found => {
  const value = search?.value ?? {}
  return {
    matches: objectsOf(value["matches"]).map((match) => ({
      path: textOf(match["path"]),
      line: numberOf(match["line"]),
      text: textOf(match["text"]),
      words: listOf(match["words"]).map(textOf)
    })),
    searched: numberOf(value["searched"]),
    isCut: value["isCut"] === true,
    unreadable: unreadableOf(value),
    error: search === undefined ? "nothing was searched" : search.error
  }
}

/** The files that were listed. */
export const filesOf = (answers: ReadonlyArray<Conversation.Answered>) => {
  const value = answers.find((answer) => answer.name === "list_files")?.value ?? {}
  return { total: numberOf(value["total"]), files: listOf(value["files"]).map(textOf), unreadable: unreadableOf(value) }
}

interface Line {
  readonly number: number
  readonly text: string
}

/** The numbered lines that `read_file` returns. */
const linesOf = (read: Conversation.Answered): ReadonlyArray<Line> =>
  textOf(read.value["text"]).split("\n").flatMap((line) => {
    const [, number, text] = /^(\d+): ?(.*)$/.exec(line) ?? []
    return number === undefined ? [] : [{ number: Number(number), text: text ?? "" }]
  })

const isBlank = (line: Line | undefined): boolean => line === undefined || line.text.trim() === ""

/** The paragraph around a line, or the part of it that is nearest; a heading comes with what stands below it. */
const excerpt = (lines: ReadonlyArray<Line>, at: number): ReadonlyArray<Line> => {
  const middle = lines.findIndex((line) => line.number === at)
  if (middle < 0) return []
  let first = middle
  let last = middle
  while (first > middle - 2 && !isBlank(lines[first - 1])) first -= 1
  while (last < middle + 4 && !isBlank(lines[last + 1])) last += 1
  if (first === last && isBlank(lines[last + 1])) {
    last += 1
    while (last < middle + 5 && !isBlank(lines[last + 1])) last += 1
    if (last === middle + 1) last = middle
  }
  return lines.slice(first, last + 1)
}

const quote = (lines: ReadonlyArray<Line>): string => {
  const indent = Math.min(...lines.filter((line) => !isBlank(line)).map((line) => line.text.search(/\S/)))
  const width = String(lines.at(-1)?.number ?? 0).length
  return lines.map((line) => `  ${String(line.number).padStart(width)}  ${line.text.slice(indent).trimEnd()}`).join(
    "\n"
  )
}

const nameOf =
  /\b(?:const|let|var|function\*?|class|interface|type|enum|def|fn|func|struct|trait)\s+([\p{L}_$][\p{L}\p{N}_$]*)/u
const method =
  /^\s*(?:(?:private|public|protected|static|async|override|readonly)\s+)*([\p{L}_$][\p{L}\p{N}_$]*)\s*\([^;]*\{\s*$/u
const notMethods = new Set(["if", "for", "while", "switch", "catch", "with", "return"])

/** The declaration that a line stands in: the nearest one above it that is indented less. */
const enclosing = (lines: ReadonlyArray<Line>, at: number): string | undefined => {
  const index = lines.findIndex((line) => line.number === at)
  const own = lines[index]
  if (own === undefined || own.text.trim() === "") return undefined
  let indent = own.text.search(/\S/)
  for (const line of lines.slice(0, index).toReversed()) {
    const column = line.text.search(/\S/)
    if (column < 0 || column >= indent) continue
    indent = column
    const name = nameOf.exec(line.text)?.[1] ?? method.exec(line.text)?.[1]
    if (name !== undefined && !notMethods.has(name)) return name
  }
  return undefined
}

const inQuotes = (terms: ReadonlyArray<Words.Term>): string => enumerate(terms.map((term) => `"${term.label}"`))

const lead = (best: Match, missing: ReadonlyArray<Words.Term>, inside: string | undefined): string => {
  const where = `${place(best)}${inside === undefined ? "" : `, in \`${inside}\``}`
  return missing.some((term) => term.weight >= 1)
    ? `No place has all of the words. The closest is ${where}:`
    : `The best match is ${where}:`
}

const closing = (missing: ReadonlyArray<Words.Term>): string => {
  const absent = missing.length === 0 ? "" : ` I did not find ${inQuotes(missing)} near it.`
  return `I compared words and understood nothing, so read the lines before you rely on them.${absent}`
}

const notAll = (isCut: boolean): ReadonlyArray<string> =>
  isCut ? ["There are more files than I went through; name a part of the folder to be thorough."] : []

const shortened = (text: string): string => text.length <= 90 ? text : `${text.slice(0, 90).trimEnd()} …`

const references = (title: string, matches: ReadonlyArray<Match>): ReadonlyArray<string> => {
  const list = matches.map((match) => `- ${place(match)}  ${shortened(match.text.trim())}`)
  return list.length === 0 ? [] : [`${title}\n${list.join("\n")}`]
}

/** Where else to look: the best other files, and the best of the tests that are not among them. */
const others = (search: Found, best: Match, answers: ReadonlyArray<Conversation.Answered>): ReadonlyArray<string> => {
  const rest = bestPerFile(search.matches.filter((match) => match.path !== best.path)).slice(0, 4)
  const shown = new Set([best, ...rest].map((match) => match.path))
  const tests = bestPerFile(foundBy(answers.find((answer) => isSearch(answer) && isElsewhere(answer))).matches)
    .filter((match) => !shown.has(match.path))
  return [...references("See also", rest), ...references("In the tests", tests.slice(0, 3))]
}

const couldNotRead = (names: ReadonlyArray<string>): ReadonlyArray<string> =>
  names.length === 0 ? [] : [`I could not read ${enumerate(names)}.`]

/** A note that could not be written is reported here; the others are reported where notes are shown. */
const unwritten = (answers: ReadonlyArray<Conversation.Answered>): ReadonlyArray<string> => {
  const error = answers.find((answer) => answer.name === "write_note")?.error
  return error === undefined ? [] : [`I could not write the note: ${error}.`]
}

/** The answer to a search: the best place with its lines, further places, and what is missing from them. */
export const found = (
  answers: ReadonlyArray<Conversation.Answered>,
  terms: ReadonlyArray<Words.Term>
): string => {
  const search = searchOf(answers)
  const reads = answers.filter((answer) => answer.name === "read_file")
  if (search.error !== undefined) return `I could not search the files: ${search.error}.`
  const failed = reads.filter((read) => read.error !== undefined).map((read) => textOf(read.arguments["path"]))
  const unread = couldNotRead([...search.unreadable, ...failed])
  const best = search.matches.find((match) => !failed.includes(match.path)) ?? search.matches[0]
  if (best === undefined) {
    return [
      `I found nothing about ${inQuotes(terms)} in ${plural(search.searched, "file")}.`,
      ...unread,
      ...notAll(search.isCut)
    ].join("\n\n")
  }
  const read = reads.find((read) => read.error === undefined && read.arguments["path"] === best.path)
  const lines = read === undefined ? [] : linesOf(read)
  const around = excerpt(lines, best.line)
  const quoted = around.length === 0 ? quote([{ number: best.line, text: best.text }]) : quote(around)
  const missing = terms.filter((term) => !best.words.includes(term.label))
  return [
    lead(best, missing, enclosing(lines, best.line)),
    quoted,
    ...others(search, best, answers),
    ...unread,
    ...notAll(search.isCut),
    ...unwritten(answers),
    closing(missing)
  ].join("\n\n")
}

/** The opening of a file, up to its first long gap. */
export const opened = (read: Conversation.Answered | undefined, totalFiles: number | undefined): string => {
  if (read === undefined || read.error !== undefined) {
    return `I could not read it: ${read?.error ?? "nothing was read"}.`
  }
  const path = textOf(read.arguments["path"])
  const lines = linesOf(read)
  const start = lines.findIndex((line) => !isBlank(line))
  const opening = lines.slice(Math.max(0, start), Math.max(0, start) + 12)
  const size = `${path} has ${plural(numberOf(read.value["totalLines"]), "line")}.`
  if (start < 0) return `${path} is empty.`
  const folder = totalFiles === undefined ? "" : ` The folder has ${plural(totalFiles, "file")}.`
  return `${place({ path, line: opening[0]?.number ?? 1 })} begins:\n\n${quote(opening)}\n\n${size}${folder}`
}

/** There is no file or folder of that name. */
export const nowhere = (name: string, error: string | undefined): string =>
  error === undefined ? `There is no file ${name} in the folder.` : `I could not look for ${name}: ${error}.`

/** A count of the lines of one file or folder, with the longest files. */
export const counted = (count: Conversation.Answered): string => {
  if (count.error !== undefined) return `I could not count: ${count.error}.`
  const files = numberOf(count.value["files"])
  const longest = objectsOf(count.value["longest"])
  const lines = plural(numberOf(count.value["lines"]), "line")
  const unread = [...couldNotRead(unreadableOf(count.value)), ...notAll(count.value["isCut"] === true)]
    .map((text) => `\n\n${text}`).join("")
  if (files === 0) return `There is no such file to count.${unread}`
  const only = files === 1 ? textOf(longest[0]?.["path"]) : ""
  if (only !== "") return `${only} has ${lines}: it ends at ${only}:${numberOf(longest[0]?.["lines"])}.${unread}`
  const list = longest.map((file) => `- ${textOf(file["path"])}: ${numberOf(file["lines"])}`)
  return `${lines} in ${plural(files, "file")}. The longest are\n${list.join("\n")}${unread}`
}

const maxListed = 25

const listing = (files: ReadonlyArray<string>, total: number, what: string): string => {
  const shown = files.slice(0, maxListed)
  const more = total > shown.length ? `\n… and ${total - shown.length} more` : ""
  return `${plural(total, "file")}${what === "all" ? "" : ` (${what})`}:\n${
    shown.map((file) => `- ${file}`).join("\n")
  }${more}`
}

/** The files of a folder that was looked up. */
export const inside = (folder: string, files: ReadonlyArray<string>): string => listing(files, files.length, folder)

/** A list of files. */
export const listed = (answers: ReadonlyArray<Conversation.Answered>, what: string): string => {
  const error = answers.find((answer) => answer.error !== undefined)?.error
  if (error !== undefined) return `I could not list the files: ${error}.`
  const { files, total, unreadable } = filesOf(answers)
  const list = total === 0 ? "There are no such files." : listing(files, total, what)
  return [list, ...couldNotRead(unreadable)].join("\n\n")
}

/** What became of a note. */
export const noted = (answers: ReadonlyArray<Conversation.Answered>): string => {
  const note = answers.find((answer) => answer.name === "write_note")
  if (note === undefined || note.error !== undefined) {
    return `I could not write the note: ${note?.error ?? "nothing was written"}.`
  }
  const { isWritten, note: line, path, reason } = note.value
  if (isWritten === true) return `I wrote it down in ${textOf(path)}.`
  return path === undefined
    ? `I did not write it down: ${textOf(reason)}. It would be this line:\n\n  ${textOf(line)}`
    : `I wrote it down before, in ${textOf(path)}.`
}
