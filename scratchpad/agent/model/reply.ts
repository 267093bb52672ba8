/**
 * The embedded model: a few rules in the place of a language model, and it says so. It takes the words of the question,
 * searches and lists at once, reads around the best hits, and answers with quotes and `path:line`. Pure: the same
 * conversation gets the same reply, and nothing is in a reply that was not in a tool's answer.
 */
import * as Answers from "./answers.ts"
import type * as Conversation from "./conversation.ts"
import { answersOf, questionOf } from "./conversation.ts"
import * as Intent from "./intent.ts"

const introduction = "I am the embedded model: a few rules, no language model."

/** How many of the best files are read, and how much of each around the hit. */
const filesToRead = 3
const linesAround = 12

const say = (text: string, ...calls: ReadonlyArray<Conversation.Wanted>): Conversation.Reply => ({ text, calls })
const call = (name: string, args: Conversation.Wanted["arguments"] = {}): Conversation.Wanted => ({
  name,
  arguments: args
})
const given = (value: string | undefined, name: string) => value === undefined ? {} : { [name]: value }

/** The first turn: what the question is after, and the calls that find it out. */
const open = (intent: Intent.Intent, question: string): Conversation.Reply => {
  switch (intent._tag) {
    case "Search": {
      const words = Answers.enumerate(intent.terms.map((term) => `"${term.label}"`))
      return say(
        `${introduction} I look for ${words} in the files.`,
        call("search_text", { query: question }),
        call("list_files")
      )
    }
    case "CountLines":
      return say(
        `${introduction} I count.`,
        call("count_lines", { path: intent.path, ...given(intent.glob, "glob") })
      )
    case "ListFiles":
      return say(
        `${introduction} I look which files there are.`,
        call("list_files", { ...given(intent.path, "path"), ...given(intent.glob, "glob") })
      )
    case "OpenFile":
      return say(`${introduction} I look for ${intent.path}.`, call("list_files", { glob: `**/${intent.path}` }))
    case "Overview":
      return say(`${introduction} I look for a description.`, call("list_files"))
    case "Note":
      return say(`${introduction} I write it down.`, call("write_note", { note: intent.note }))
    case "Unclear":
      return say(
        `${introduction} The question has no word that I could look for.`,
        call("ask_user", { question: "Which word or name should I look for in the files?" })
      )
  }
}

/** Between search and answer: the lines around the best hit of each of the best files. */
const readBest = (matches: ReadonlyArray<Answers.Match>): Conversation.Reply => {
  const best = Answers.bestPerFile(matches).slice(0, filesToRead)
  const places = Answers.enumerate(best.map((match) => Answers.place(match)))
  return say(
    best.length === 1
      ? `The best hit is ${places}. I read around it.`
      : `The best hits are ${places}. I read around them.`,
    ...best.map((match) =>
      call("read_file", { path: match.path, from: Math.max(1, match.line - linesAround), lines: 2 * linesAround + 1 })
    )
  )
}

/** Which file to open for a question that names one, or asks what all of this is. */
const fileToOpen = (intent: Intent.Intent, files: ReadonlyArray<string>): string | undefined => {
  if (intent._tag === "OpenFile") return Answers.shortest(files)
  const described = [/^readme\b/i, /(^|\/)readme\b/i, /^package\.json$|^pyproject\.toml$|^cargo\.toml$|^go\.mod$/i]
  return described.map((form) => Answers.shortest(files.filter((file) => form.test(file)))).find(Boolean)
}

const continueWith = (
  intent: Intent.Intent,
  answers: ReadonlyArray<Conversation.Answered>
): Conversation.Reply => {
  const reads = answers.filter((answer) => answer.name === "read_file")
  switch (intent._tag) {
    case "Search": {
      const search = Answers.searchOf(answers)
      return search.matches.length > 0 && reads.length === 0
        ? readBest(search.matches)
        : say(Answers.found(search, reads, intent.terms))
    }
    case "OpenFile":
    case "Overview": {
      const listed = Answers.filesOf(answers)
      const path = fileToOpen(intent, listed.files)
      if (reads.length > 0) return say(Answers.opened(reads, intent._tag === "Overview" ? listed.total : undefined))
      if (path !== undefined) return say(`I read ${path}.`, call("read_file", { path, lines: 40 }))
      return say(intent._tag === "OpenFile" ? Answers.noSuchFile(intent.path, answers) : Answers.listed(answers, "all"))
    }
    case "CountLines":
      return say(Answers.counted(answers))
    case "ListFiles":
      return say(Answers.listed(answers, intent.glob ?? intent.path ?? "all"))
    case "Note":
      return say(Answers.noted(answers))
    case "Unclear":
      return say("I still have no word to look for.")
  }
}

/** A question needs its tools: a model that has not been given them can say so and nothing else. */
const within = (reply: Conversation.Reply, offered: ReadonlyArray<string>): Conversation.Reply => {
  const missing = reply.calls.map((wanted) => wanted.name).filter((name) => !offered.includes(name))
  if (missing.length === 0) return reply
  return say(
    `${introduction} I would need ${Answers.enumerate([...new Set(missing)])} to answer, and was not given it.`
  )
}

/** The reply to a conversation. */
export const reply = (request: Conversation.Request): Conversation.Reply => {
  const question = questionOf(request.messages)
  const intent = Intent.of(question)
  const answers = answersOf(request.messages)
  return within(answers.length === 0 ? open(intent, question) : continueWith(intent, answers), request.tools)
}
