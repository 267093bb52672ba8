/**
 * The embedded model: a few rules in the place of a language model, and it says so. It takes the words of the question,
 * searches and lists at once, reads around the best hits, keeps a note of them, and answers with quotes and `path:line`.
 * Pure: the same conversation gets the same reply, and nothing is in a reply that was not in a tool's answer.
 */
import * as Search from "../search.ts"
import * as Words from "../words.ts"
import * as AnswerLaws from "./answers.ts"
import * as Conversation from "./conversation.ts"
import { answersOf, call, questionOf, say } from "./conversation.ts"
import * as Intent from "./intent.ts"
import * as Lookup from "./lookup.ts"

type Given = ReadonlyArray<Conversation.Answered>
type Of<Tag extends Intent.Intent["_tag"]> = Extract<Intent.Intent, { readonly _tag: Tag }>

const introduction = "I am the embedded model: a few rules, no language model."

/** How many of the best files are read, and how much of each around the hit. */
const filesToRead = 3
const linesAround = 12
const linesToOpen = 40
const longestQuestion = 300

const given = (value: string | undefined, name: string) => value === undefined ? {} : { [name]: value }
const introduced = (text: string, answers: Given): string => answers.length === 0 ? `${introduction} ${text}` : text

/** Search and list are asked for together: neither needs the other. */
const lookFor = ({ terms }: Of<"Search">, question: string, answers: Given): Conversation.Reply => {
  const words = AnswerLaws.enumerate(terms.map((term) => `"${term.label}"`))
  return say(
    introduced(`I look for ${words} in the files, and which files there are.`, answers),
    call("search_text", { query: question }),
    call("list_files")
  )
}

/** The folder at the top in which most of the tests are. */
const testFolder = (files: ReadonlyArray<string>): string | undefined => {
  const counts = new Map<string, number>()
  for (const file of files) {
    const [top, ...below] = file.split("/")
    if (below.length > 0 && Search.kindOf(file) === "test") {
      counts.set(top as string, (counts.get(top as string) ?? 0) + 1)
    }
  }
  return [...counts].toSorted(([, left], [, right]) => right - left)[0]?.[0]
}

/**
 * Between search and answer: the lines around the best hit of each of the best files, what the tests say, and a note of
 * the places. The reads start while this is still being said; the note comes last and waits for all of them.
 */
const readBest = (question: string, matches: ReadonlyArray<AnswerLaws.Match>, answers: Given): Conversation.Reply => {
  const best = AnswerLaws.bestPerFile(matches).slice(0, filesToRead)
  const places = best.map((match) => AnswerLaws.place(match))
  const tests = testFolder(AnswerLaws.filesOf(answers.filter((answer) => answer.arguments["glob"] === undefined)).files)
  const reads = best.map((match) =>
    call("read_file", { path: match.path, from: Math.max(1, match.line - linesAround), lines: 2 * linesAround + 1 })
  )
  const hits = best.length === 1
    ? `The best hit is ${places[0]}. I read around it.`
    : `The best hits are ${AnswerLaws.enumerate(places)}. I read around them.`
  return say(
    hits,
    ...reads,
    tests === undefined ? "I keep a note of the place." : "I look into the tests as well, and keep a note.",
    ...tests === undefined ? [] : [call("search_text", { query: question, path: tests })],
    call("write_note", { note: `"${question.slice(0, longestQuestion)}": ${places.join(", ")}` })
  )
}

const search = (intent: Of<"Search">, question: string, answers: Given): Conversation.Reply => {
  const has = (name: string) => answers.some((answer) => answer.name === name)
  if (!has("search_text")) return lookFor(intent, question, answers)
  const { matches } = AnswerLaws.searchOf(answers)
  return matches.length > 0 && !has("read_file")
    ? readBest(question, matches, answers)
    : say(AnswerLaws.found(answers, intent.terms))
}

/** A name that leads nowhere may be a word for something: what it says is looked for instead. */
const instead = (question: string, answers: Given): Conversation.Reply =>
  search({ _tag: "Search", terms: Words.terms(question) }, question, answers)

const count = ({ glob, targets }: Of<"CountLines">, question: string, answers: Given): Conversation.Reply => {
  const names = targets.length === 0 ? ["."] : targets
  const counts = names.map((name) => Lookup.count(name, glob, answers))
  const wanted = counts.flatMap((count) => count._tag === "Wanted" ? [count.call] : [])
  if (wanted.length > 0) {
    const isLookup = wanted.every((call) => call.name === "list_files")
    return say(introduced(isLookup ? "I look which file that is." : "I count.", answers), ...wanted)
  }
  const isNowhere = counts.every((count) => count._tag === "Nowhere" && count.error === undefined)
  if (isNowhere && !names.some(Intent.isPath)) return instead(question, answers)
  const told = counts.map((count, index) =>
    count._tag === "Counted"
      ? AnswerLaws.counted(count.answer)
      : AnswerLaws.nowhere(names[index] as string, count._tag === "Nowhere" ? count.error : undefined)
  )
  return say(told.join("\n"))
}

const readOpening = (path: string, answers: Given, totalFiles?: number): Conversation.Reply => {
  const read = answers.find((answer) => answer.name === "read_file")
  return read === undefined
    ? say(`I read ${path}.`, call("read_file", { path, lines: linesToOpen }))
    : say(AnswerLaws.opened(read, totalFiles))
}

const look = ({ target }: Of<"Look">, question: string, answers: Given): Conversation.Reply => {
  const place = Lookup.place(target, answers)
  switch (place._tag) {
    case "Unknown":
      return say(introduced(`I look for ${target}.`, answers), place.ask)
    case "File":
      return readOpening(place.path, answers)
    case "Folder":
      return say(AnswerLaws.inside(place.path, place.files))
    case "Nowhere":
      return Intent.isPath(target) || place.error !== undefined
        ? say(AnswerLaws.nowhere(target, place.error))
        : instead(question, answers)
  }
}

const descriptions = [/^readme\b/i, /(^|\/)readme\b/i, /^package\.json$|^pyproject\.toml$|^cargo\.toml$|^go\.mod$/i]

const overview = (answers: Given): Conversation.Reply => {
  if (answers.length === 0) return say(introduced("I look for a description.", answers), call("list_files"))
  const { files, total } = AnswerLaws.filesOf(answers)
  const path = descriptions.map((form) => AnswerLaws.shortest(files.filter((file) => form.test(file)))).find(Boolean)
  return path === undefined ? say(AnswerLaws.listed(answers, "all")) : readOpening(path, answers, total)
}

const next = (intent: Intent.Intent, question: string, answers: Given): Conversation.Reply => {
  const isFirst = answers.length === 0
  switch (intent._tag) {
    case "Search":
      return search(intent, question, answers)
    case "CountLines":
      return count(intent, question, answers)
    case "Look":
      return look(intent, question, answers)
    case "Overview":
      return overview(answers)
    case "ListFiles": {
      const { glob, path } = intent
      return isFirst
        ? say(
          introduced("I look which files there are.", answers),
          call("list_files", { ...given(path, "path"), ...given(glob, "glob") })
        )
        : say(AnswerLaws.listed(answers, glob ?? path ?? "all"))
    }
    case "Note":
      return isFirst
        ? say(introduced("I write it down.", answers), call("write_note", { note: intent.note }))
        : say(AnswerLaws.noted(answers))
    case "Unclear":
      return isFirst
        ? say(
          introduced("The question has no word that I could look for.", answers),
          call("ask_user", { question: "Which word or name should I look for in the files?" })
        )
        : say("I still have no word to look for.")
  }
}

/**
 * A question needs its tools: a model that has not been given them can say so and nothing else. It can do without
 * keeping a note that was not asked for.
 */
const within = (reply: Conversation.Reply, offered: ReadonlyArray<string>): Conversation.Reply => {
  const isOffered = (wanted: Conversation.Wanted) => offered.includes(wanted.name)
  const calls = Conversation.callsOf(reply)
  const missing = calls.filter((wanted) => !isOffered(wanted)).map((wanted) => wanted.name)
  if (missing.length === 0) return reply
  if (calls.length > 1 && missing.every((name) => name === "write_note")) {
    return say(...reply.parts.filter((part) => typeof part === "string" || isOffered(part)))
  }
  return say(
    `${introduction} I would need ${AnswerLaws.enumerate([...new Set(missing)])} to answer, and was not given it.`
  )
}

/** The reply to a conversation. */
export const reply = (request: Conversation.Request): Conversation.Reply => {
  const question = Intent.question(questionOf(request.messages))
  return within(next(Intent.of(question), question, answersOf(request.messages)), request.tools)
}
