import { assert, describe, it } from "@effect/vitest"
import * as Intent from "../../scratchpad/agent/model/intent.ts"

/** The kind of a question, and what it names. */
const told = (question: string): string => {
  const intent = Intent.of(Intent.question(question))
  switch (intent._tag) {
    case "CountLines":
      return ["count", intent.glob, ...intent.targets].filter(Boolean).join(" ")
    case "Look":
      return `look ${intent.target}`
    case "ListFiles":
      return ["list", intent.glob, intent.path].filter(Boolean).join(" ")
    case "Note":
      return `note ${intent.note}`
    case "Search":
      return `search ${intent.terms.map((term) => term.label).join(" ")}`
    default:
      return intent._tag
  }
}

const phrasings: Readonly<Record<string, Readonly<Record<string, ReadonlyArray<string>>>>> = {
  "counts lines, in many phrasings": {
    "count README": [
      "How many lines has the README?",
      "how many lines does the readme have",
      "How many lines are in the README?",
      "How many lines are there in the read me?",
      "How long is the README?",
      "What is the length of the readme?",
      "Count the lines of the README.",
      "What's the README's line count?",
      "number of lines in the README",
      "Lines in `README`?",
      "Please tell me how many lines the readme has"
    ],
    "count README.md": [
      "how many lines does README.md have",
      "How long is README.md?",
      "wc -l README.md",
      "How big is README.md?"
    ],
    "count src/Tool.ts": ["How many lines has src/Tool.ts?", "lines of code in src/Tool.ts"],
    "count LICENSE": ["How long is the licence?", "How many lines does the license have?"],
    "count README.md CHANGELOG.md": ["How many lines do README.md and CHANGELOG.md have?"],
    "count README CHANGELOG": ["How many lines have the readme and the change log?"],
    "count src": ["How many lines are in src?", "How many lines of code does the src folder have?"],
    "count *.py src": ["How many lines of Python are in src?"],
    "count": [
      "How many lines of code are there?",
      "How big is this project?",
      "How many lines does the repository have in total?"
    ]
  },
  "searches for other numbers, and for lines about a subject": {
    "search lines mention tax": ["How many lines mention a tax?"],
    "search grace period": ["How long is the grace period?"],
    "search timeout": ["How long is the timeout?"],
    "search big buffer": ["How big is the buffer?"],
    "search code counts lines": ["Which code counts lines?"],
    "search too many requests lines": ["How many lines say \"too many requests\"?"]
  },
  "opens or lists a named file or folder": {
    "look README": [
      "Show me the readme",
      "What does the README say?",
      "open the README",
      "What is in the README?",
      "readme",
      "Is there a readme?"
    ],
    "look stock.ts": [
      "What does stock.ts do?",
      "Read stock.ts",
      "explain stock.ts please",
      "What does stock.ts contain?"
    ],
    "look src": ["What is in the src folder?", "list src", "Which files are in src?", "List the files under src."],
    "look docs/": ["What is in docs/?"],
    "look package.json": ["Where is package.json?"],
    "list *.{ts,tsx,mts,cts}": ["Which TypeScript files are there?"],
    "list *.{ts,tsx,mts,cts} src": ["Which TypeScript files are in src?"],
    "list": ["Which files are there?", "How many files are there?"],
    "Overview": ["What is this project about?", "Give me an overview of the repository", "Summarize this project"]
  },
  "searches for a described thing": {
    "search tax rate defined": ["Where is the tax rate defined?"],
    "search files mention tax": ["Which files mention a tax?"],
    "search adapter": ["What does the adapter do?", "And the adapter?"],
    "search read settings": ["Where do we read the settings?"],
    "search readme timeouts": ["What does the README say about timeouts?"],
    "search src/main.ts docs/": ["What is in src/main.ts and docs/?"],
    "search license checked": ["Where is the license checked?"]
  },
  "keeps a note on request, and searches for a question about a note": {
    "note buy bread": [
      "note: buy bread",
      "Please note that buy bread",
      "Make a note: buy bread",
      "Jot down buy bread",
      "remember: buy bread"
    ],
    "note the keeper is called Ada": [
      "Remember that the keeper is called Ada",
      "Don't forget that the keeper is called Ada"
    ],
    "search remember tax rate": ["Do you remember the tax rate?"],
    "search tax rate defined": [
      "Where is the tax rate defined? Note it.",
      "Where is the tax rate defined, and note it",
      "Where is the tax rate defined? Please write that down."
    ]
  },
  "finds a question without a search word unclear": { "Unclear": ["", "What is this?", "?!"] }
}

describe("the intent of a question", () => {
  for (const [sentence, expected] of Object.entries(phrasings)) {
    it(`main job: the embedded model ${sentence}`, () => {
      for (const [intent, questions] of Object.entries(expected)) {
        for (const question of questions) assert.strictEqual(told(question), intent, question)
      }
    })
  }
})
