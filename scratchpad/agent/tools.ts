/**
 * What the model may ask for: list, search, read and count files, write a note, ask the user. All of them work in one
 * {@link Workspace}; what they return is bounded, what they cannot read is reported as data, and the long ones say how
 * far they are. Reading tools overlap, the one that writes runs alone.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Glob from "effect/Glob"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { Tool } from "heddle"
import type * as Notes from "./notes.ts"
import { FileProblem } from "./problem.ts"
import * as Search from "./search.ts"
import * as Words from "./words.ts"
import { Workspace } from "./workspace.ts"

/** How far a long call is, as it reports it. */
export interface Progress {
  readonly done: number
  readonly total: number
  readonly unit: string
}

/** A file that was left out because it could not be read, or written where that was what was wanted. */
export interface Unreadable {
  readonly path: string
  readonly reason: string
  readonly isForWriting?: true
}

const batch = 16
/** A call that goes through many files returns what it has after this time, and says that it is not all. */
const budgetMillis = 20_000
const maxListed = 300
const maxMatches = 40
const maxReadLines = 200
const maxLineLength = 400

const text = (description: string) => Schema.String.annotate({ description })
const optionalText = (description: string) => Schema.optionalKey(text(description))
const optionalCount = (description: string) => Schema.optionalKey(Schema.Int.annotate({ description }))

const within = "a folder or file to stay in; the whole folder if left out"
const filter = "a glob that paths have to match, in any case, such as **/*.ts"

const clamp = (value: number | undefined, least: number, most: number, otherwise: number): number =>
  Math.min(most, Math.max(least, value ?? otherwise))

/** A glob without a slash means files of that name anywhere. Names match in either case. */
const matching = (paths: ReadonlyArray<string>, glob: string | undefined): ReadonlyArray<string> => {
  if (glob === undefined || glob === "") return paths
  const compiled = Glob.make((glob.includes("/") ? glob : `**/${glob}`).toLowerCase(), { dot: true })
  return paths.filter((path) => Glob.match(compiled, path.toLowerCase()))
}

const isUnreadable = (problem: FileProblem): boolean => problem.reason === "unreadable"
const toUnreadable = (problem: FileProblem): Unreadable => ({ path: problem.path, reason: problem.detail })

/** What the files come to one by one, in order, a batch at a time so that the call can be stopped and shows progress. */
const eachFile = Effect.fnUntraced(function*<A>(
  paths: ReadonlyArray<string>,
  call: Tool.CallContext,
  use: (path: string, content: string) => A
) {
  const workspace = yield* Workspace
  const values: Array<A> = []
  const unreadable: Array<Unreadable> = []
  const startedAt = yield* Clock.currentTimeMillis
  for (let start = 0; start < paths.length; start += batch) {
    const part = paths.slice(start, start + batch)
    const read = yield* Effect.forEach(part, (path) => Effect.result(workspace.read(path)), { concurrency: batch })
    for (const [index, content] of read.entries()) {
      if (Result.isSuccess(content)) values.push(use(part[index] as string, content.success))
      else if (isUnreadable(content.failure)) unreadable.push(toUnreadable(content.failure))
    }
    yield* call.progress({ done: start + part.length, total: paths.length, unit: "files" } satisfies Progress)
    yield* Effect.yieldNow
    if ((yield* Clock.currentTimeMillis) - startedAt > budgetMillis) return { values, unreadable, isCut: true }
  }
  return { values, unreadable, isCut: false }
})

/** Lists the files of the folder. */
export const listFiles = Tool.make("list_files", {
  description: "The files in the folder, or in a part of it, as paths relative to the folder.",
  parameters: { path: optionalText(within), glob: optionalText(filter) },
  readOnly: true,
  handler: ({ glob, path }) =>
    Effect.gen(function*() {
      const workspace = yield* Workspace
      const listing = yield* workspace.list(path ?? ".")
      const files = matching(listing.paths, glob)
      return {
        total: files.length,
        files: files.slice(0, maxListed),
        isCut: listing.isCut || files.length > maxListed,
        unreadable: listing.problems.filter(isUnreadable).map(toUnreadable)
      }
    })
})

/** Finds the lines that have the words of a query on or around them. */
export const searchText = Tool.make("search_text", {
  description: "The lines of the files that fit the query best, best first. The query is a list of words; endings do " +
    "not matter, words near each other count more, and \"a phrase in quotes\" is found letter by letter.",
  parameters: {
    query: text("the words to look for, or the question itself"),
    path: optionalText(within),
    glob: optionalText(filter),
    limit: optionalCount(`how many lines to return, 20 if left out, at most ${maxMatches}`)
  },
  readOnly: true,
  handler: ({ glob, limit, path, query }, call) =>
    Effect.gen(function*() {
      const workspace = yield* Workspace
      const terms = Words.terms(query)
      const listing = yield* workspace.list(path ?? ".")
      const paths = matching(listing.paths, glob)
      const scan = (path: string, content: string) => Search.scan(path, content, terms, query)
      const { isCut, unreadable, values } = yield* eachFile(paths, call, scan)
      const found = values.filter((hits) => hits !== undefined)
      return {
        words: terms.map((term) => term.label),
        searched: values.length,
        matches: Search.rank(found, values.length, terms, clamp(limit, 1, maxMatches, 20)),
        isCut: isCut || listing.isCut,
        unreadable: [...listing.problems.filter(isUnreadable).map(toUnreadable), ...unreadable]
      }
    })
})

/** Reads a part of a file, with line numbers. */
export const readFile = Tool.make("read_file", {
  description: `The lines of a text file, each with its number. At most ${maxReadLines} lines at once.`,
  parameters: {
    path: text("the file, relative to the folder"),
    from: optionalCount("the first line, from 1"),
    lines: optionalCount("how many lines, 60 if left out")
  },
  readOnly: true,
  handler: ({ from, lines, path }) =>
    Effect.gen(function*() {
      const workspace = yield* Workspace
      const all = Search.linesOf(yield* workspace.read(path))
      const first = clamp(from, 1, Math.max(1, all.length), 1)
      const part = all.slice(first - 1, first - 1 + clamp(lines, 1, maxReadLines, 60))
      return {
        path,
        totalLines: all.length,
        text: part.map((line, index) => `${first + index}: ${line.slice(0, maxLineLength)}`).join("\n")
      }
    })
})

/** Counts the lines of a file, or of all files under a folder. */
export const countLines = Tool.make("count_lines", {
  description: "How many lines a file has, or all text files in a folder together, and the longest of them.",
  parameters: { path: text("a file or folder; . for the whole folder"), glob: optionalText(filter) },
  readOnly: true,
  handler: ({ glob, path }, call) =>
    Effect.gen(function*() {
      const workspace = yield* Workspace
      const listing = yield* workspace.list(path)
      const isOneFile = listing.paths.length === 1 && listing.problems.length === 0
      if (isOneFile) yield* workspace.read(listing.paths[0] as string)
      const { isCut, unreadable, values } = yield* eachFile(matching(listing.paths, glob), call, (path, content) => ({
        path,
        lines: Search.linesOf(content).length
      }))
      return {
        path,
        files: values.length,
        lines: values.reduce((sum, file) => sum + file.lines, 0),
        longest: values.toSorted((left, right) => right.lines - left.lines).slice(0, 5),
        isCut: isCut || listing.isCut,
        unreadable: [...listing.problems.filter(isUnreadable).map(toUnreadable), ...unreadable]
      }
    })
})

/** What a note came to, as the model reads it and the view shows it. */
export interface NoteResult {
  readonly note: string
  readonly isWritten: boolean
  readonly path?: string
  readonly reason?: string
}

const noteResult = (noted: Notes.Noted): NoteResult => {
  if (noted._tag === "Planned") {
    return { note: noted.line, isWritten: false, reason: "the user has named no folder for notes (--notes)" }
  }
  return noted._tag === "Written"
    ? { note: noted.line, isWritten: true, path: noted.path }
    : { note: noted.line, isWritten: false, path: noted.path, reason: "it is there already" }
}

/** What a person says of a note that may have been written, where the notes are too many to look through. */
const unseen = (note: string) =>
  Tool.askUser(
    `The agent ended while it wrote a note, and there are too many notes to look for it. Was it written? ${note}`,
    [
      "It was written",
      "It was not written"
    ]
  )

/**
 * Keeps a note for later. Alone among the tools it changes something: it is a barrier, runs when all others are done and
 * nothing runs beside it, and once it has begun a stop lets it finish. After a kill the notes show whether it was written.
 */
export const writeNote = Tool.make("write_note", {
  description:
    "Keeps a short note for later runs, where the user has named a folder for notes; elsewhere it only shows " +
    "the user what it would write.",
  parameters: { note: Schema.NonEmptyString.check(Schema.isMaxLength(2000)).annotate({ description: "the note" }) },
  concurrency: "exclusive",
  interrupt: "block",
  lookUp: ({ note }) =>
    Effect.map(Workspace.use((workspace) => workspace.noted(note)), (found) => {
      if (found === "missing") return Option.none()
      return Option.some(found === "unseen" ? unseen(note) : noteResult(found))
    }),
  handler: ({ note }) => Effect.map(Workspace.use((workspace) => workspace.note(note)), noteResult)
})

/** Asks the person in front of the terminal. It does nothing that could not be done again. */
export const askUser = Tool.make("ask_user", {
  description: "Asks the user one question, when nothing in the folder can answer it.",
  parameters: { question: text("the question") },
  afterCrash: "retry",
  handler: ({ question }) => Effect.succeed(Tool.askUser(question))
})

/** All of them. */
export const all = [listFiles, searchText, readFile, countLines, writeNote, askUser] as const

const barriers = new Set<string>(all.filter((tool) => tool.concurrency === "exclusive").map((tool) => tool.name))

/** Whether calls of that name run alone. */
export const isBarrier = (name: string): boolean => barriers.has(name)

/** What becomes of a call of that name of which it is not known whether it had its effect. */
export const afterCrash = (name: string): string => {
  const tool: Tool.Any | undefined = all.find((tool) => tool.name === name)
  if (tool?.lookUp !== undefined) return "it is looked up"
  return tool?.readOnly === true || tool?.afterCrash === "retry"
    ? "it is tried again"
    : "the model reads that it is unknown"
}

/** The note in what a call came to, if it is one. */
export const noteIn = (value: unknown): NoteResult | undefined =>
  typeof value === "object" && value !== null && "isWritten" in value ? value as NoteResult : undefined

const reported = (value: unknown): ReadonlyArray<Unreadable> => {
  if (value instanceof FileProblem) {
    if (value.reason === "unwritable") return [{ ...toUnreadable(value), isForWriting: true }]
    return value.reason === "unreadable" ? [toUnreadable(value)] : []
  }
  if (typeof value !== "object" || value === null || !("unreadable" in value)) return []
  return Array.isArray(value.unreadable) ? value.unreadable : []
}

/** The files that a call had to leave out, or failed on, because the system refused. */
export const unreadableIn = (outcome: Tool.Outcome): ReadonlyArray<Unreadable> => {
  if (outcome._tag === "Ok") return reported(outcome.value)
  return outcome._tag === "Error" ? reported(outcome.error) : []
}

const isTold = (value: unknown): value is string => typeof value === "string" && value !== "" && value !== "."

/** The arguments that say most about a call: where, and what. */
export const subject = (name: string, args: Readonly<Record<string, unknown>>): string => {
  const { glob, note, path, query, question } = args
  const where = [path, glob].filter(isTold).join(" ")
  const from = name === "read_file" && typeof args["from"] === "number" ? `:${args["from"]}` : ""
  const what = [query ?? note ?? question].filter(isTold).join("")
  return where === "" || what === "" ? `${where}${from}${what}` : `${where}: ${what}`
}

const count = (amount: number, noun: string): string =>
  `${amount} ${amount === 1 ? noun : noun.endsWith("ch") ? `${noun}es` : `${noun}s`}`

/** What a call came to, in a few words; `undefined` for a result of another form. */
export const summary = (value: unknown): string | undefined => {
  if (typeof value !== "object" || value === null) return undefined
  if ("matches" in value && Array.isArray(value.matches) && "searched" in value) {
    return `${count(value.matches.length, "match")} in ${count(Number(value.searched), "file")}`
  }
  if ("lines" in value && "files" in value) {
    return `${count(Number(value.lines), "line")} in ${count(Number(value.files), "file")}`
  }
  const note = noteIn(value)
  if (note !== undefined) return note.isWritten ? `written to ${note.path}` : `not written: ${note.reason}`
  if ("total" in value) return count(Number(value.total), "file")
  return "text" in value && typeof value.text === "string" ? count(value.text.split("\n").length, "line") : undefined
}

/** How far a call is, if what it reported says so. */
export const progressOf = (value: unknown): Progress | undefined =>
  typeof value === "object" && value !== null && "done" in value && "total" in value && "unit" in value &&
    typeof value.done === "number" && typeof value.total === "number"
    ? { done: value.done, total: value.total, unit: String(value.unit) }
    : undefined
