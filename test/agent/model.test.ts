import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import { Message } from "heddle"
import * as Conversation from "../../scratchpad/agent/model/conversation.ts"
import * as Reply from "../../scratchpad/agent/model/reply.ts"
import * as Tools from "../../scratchpad/agent/tools.ts"
import * as Agent from "../support/agent.ts"

const offered = Tools.all.map((tool) => tool.name)
const user = (content: string): Conversation.Message => ({ role: "user", content, calls: [], answers: undefined })

interface Told {
  readonly turns: ReadonlyArray<Conversation.Reply>
  readonly text: string
}

/** Lets the model talk with the real tools until it makes no more calls; nothing but its function is in between. */
const ask = (
  root: string,
  question: string,
  { notes, tools = offered }: { readonly notes?: string; readonly tools?: ReadonlyArray<string> } = {}
): Effect.Effect<Told, any, any> =>
  Effect.gen(function*() {
    const messages: Array<Conversation.Message> = [user(question)]
    const turns: Array<Conversation.Reply> = []
    while (turns.length < 6) {
      const reply = Reply.reply({ messages, tools })
      turns.push(reply)
      const text = Conversation.textOf(reply)
      if (Conversation.callsOf(reply).length === 0) return { turns, text }
      const calls = Conversation.callsOf(reply).map((call, index) =>
        Message.toolCall(`call_${turns.length}_${index}`, call.name, call.arguments)
      )
      const asked = calls.map((call) => ({ id: call.id, name: call.name, arguments: JSON.stringify(call.arguments) }))
      const { answers } = yield* Agent.run(root, calls, notes)
      messages.push({ role: "assistant", content: text, calls: asked, answers: undefined })
      messages.push(...calls.map((call, index) => ({
        role: "tool",
        content: JSON.stringify(answers[index]),
        calls: [],
        answers: call.id
      })))
    }
    return { turns, text: "" }
  })

const names = (reply: Conversation.Reply | undefined) =>
  reply === undefined ? [] : Conversation.callsOf(reply).map((call) => call.name)

const { shop } = Agent

describe("the embedded model", () => {
  layer(Agent.services)((it) => {
    it.effect("main job: the embedded model searches and lists at once, reads the best hits, and answers with quotes and path:line", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(shop)
        const { text, turns } = yield* ask(root, "Where is the tax rate defined?")
        assert.deepStrictEqual(turns.map(names), [["search_text", "list_files"], ["read_file", "write_note"], []])
        assert.match(Conversation.textOf(turns[0]!), /no language model.*"tax".*"rate"/)
        assert.match(text, /^The best match is src\/billing\.ts:3:/)
        assert.match(text, /^ {2}3 {2}export const taxRate = 0\.2$/m)
      }))

    it.effect("main job: a different question gets a different, correct answer", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(shop)
        const expected = [
          ["Who sends the welcome mail?", "src/mail.py:1"],
          ["Where are invoices sent?", "src/mail.py:5"],
          ["What happens when a lamp is sold out?", "src/stock.ts:2"],
          ["How is the gross price computed?", "src/billing.ts:5"],
          ["What does it sell to sailors?", "README.md:3"]
        ]
        for (const [question, place] of expected) {
          const { text } = yield* ask(root, question!)
          assert.strictEqual(/(?:match|closest) is (\S+:\d+)/.exec(text)?.[1], place, `${question}\n${text}`)
        }
      }))

    it.effect("main job: a different folder gets a different answer to the same question", () =>
      Effect.gen(function*() {
        const question = "Where is the tax rate defined?"
        const other = yield* Agent.folder({ "conf/rates.toml": "[vat]\n\nrate = 0.07 # the tax rate\n" })
        const { text } = yield* ask(other, question)
        assert.match(text, /^The best match is conf\/rates\.toml:3:/)
        assert.match(text, /rate = 0\.07/)
        assert.notInclude(text, "billing")
      }))

    it.effect("main job: every path:line in an answer contains the quoted text", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* Agent.folder(shop)
        const { text } = yield* ask(root, "Where is the address that mail is delivered to?")
        const places = [...text.matchAll(/- (\S+):(\d+) {2}(.*)$/gm)]
        const best = /is (\S+):\d+/.exec(text)?.[1] ?? ""
        const quoted = [...text.matchAll(/^ {2}(\d+) {2}(.*)$/gm)].map(([, line, quote]) =>
          [best, line, quote] as const
        )
        const all = [...places.map(([, path, line, quote]) => [path, line, quote] as const), ...quoted]
        assert.isAbove(all.length, 1)
        for (const [path, line, quote] of all) {
          const lines = (yield* fs.readFileString(`${root}/${path}`)).split("\n")
          assert.include(lines[Number(line) - 1], (quote ?? "").trim(), `${path}:${line}`)
        }
      }))

    it.effect("main job: an answer names the words that the files do not contain", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(shop)
        const nothing = yield* ask(root, "Where are submarines repaired?")
        assert.strictEqual(nothing.text, "I found nothing about \"submarines\" and \"repaired\" in 4 files.")
        const half = yield* ask(root, "Where is the submarine tax computed?")
        assert.match(half.text, /^No place has all of the words\. The closest is src\/billing\.ts:\d/)
        assert.match(half.text, /I did not find "submarine" and "computed" near it/)
        const none = yield* ask(yield* Agent.folder({}), "Where is the tax rate?")
        assert.strictEqual(none.text, "I found nothing about \"tax\" and \"rate\" in 0 files.")
      }))

    it.effect("main job: the embedded model looks up line counts, lists, files and overviews", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(shop)
        const said = (question: string) => Effect.map(ask(root, question), ({ text }) => text)
        assert.strictEqual(
          yield* said("How many lines does src/billing.ts have?"),
          "src/billing.ts has 6 lines: it ends at src/billing.ts:6."
        )
        assert.match(yield* said("How many lines of code are there?"), /^18 lines in 4 files\./)
        assert.match(yield* said("How many lines of Python are in src?"), /^src\/mail\.py has 6 lines/)
        assert.match(
          yield* said("Which TypeScript files are there?"),
          /^2 files .*\n- src\/billing\.ts\n- src\/stock\.ts$/
        )
        assert.match(
          yield* said("What does stock.ts do?"),
          /^src\/stock\.ts:1 begins:\n\n {2}1 {2}export function reserve/
        )
        assert.match(yield* said("What is this project about?"), /^README\.md:1 begins:[^]*Sells lamps[^]*4 files\.$/)
        assert.match(yield* said("What does missing.ts do?"), /^There is no file missing\.ts/)
        assert.match(yield* said("How many lines has missing.ts?"), /^There is no file missing\.ts/)
      }))

    it.effect("main job: the embedded model finds a file or folder by its usual name, and counts, opens or lists it", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({ ...shop, "docs/readme.txt": "deep\n", "Changelog.md": "one\ntwo\n" })
        const told = (question: string) =>
          Effect.map(ask(root, question), ({ text, turns }) => [turns.flatMap(names), text] as const)
        const [calls, text] = yield* told("How many lines has the README?")
        assert.deepStrictEqual(calls, ["list_files", "count_lines"])
        assert.strictEqual(text, "README.md has 3 lines: it ends at README.md:3.")
        assert.strictEqual(
          (yield* told("how long is the change log"))[1],
          "Changelog.md has 2 lines: it ends at Changelog.md:2."
        )
        assert.strictEqual(
          (yield* told("How many lines has BILLING.TS?"))[1],
          "src/billing.ts has 6 lines: it ends at src/billing.ts:6."
        )
        assert.match((yield* told("How many lines are in the src folder?"))[1], /^15 lines in 3 files\./)
        assert.deepStrictEqual(yield* told("How many lines do README.md and Changelog.md have?"), [
          ["count_lines", "count_lines"],
          "README.md has 3 lines: it ends at README.md:3.\nChangelog.md has 2 lines: it ends at Changelog.md:2."
        ])
        assert.match((yield* told("Show me the readme"))[1], /^README\.md:1 begins:/)
        assert.match((yield* told("What is in the src folder?"))[1], /^3 files \(src\):\n- src\/billing\.ts\n/)
      }))

    it.effect("main job: the embedded model searches for a name that no file has", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(shop)
        for (const question of ["How many lines have sailors?", "Show me the sailors"]) {
          const { text, turns } = yield* ask(root, question)
          assert.deepStrictEqual(turns.map(names).slice(0, 2), [["list_files"], ["search_text", "list_files"]])
          assert.match(text, /is README\.md:3:/, question)
        }
      }))

    it.effect("main job: the embedded model searches the tests beside its reads, and lists their hits apart", () =>
      Effect.gen(function*() {
        const tests = Object.fromEntries(
          ["a", "b", "c", "d", "e", "f"].map((name) => [`test/${name}.test.ts`, `expect(taxRate).toBe("${name}")\n`])
        )
        const root = yield* Agent.folder({ ...shop, ...tests })
        const { text, turns } = yield* ask(root, "Where is the tax rate defined?")
        const second = Conversation.callsOf(turns[1]!)
        assert.deepStrictEqual(second.slice(-2), [
          { name: "search_text", arguments: { query: "Where is the tax rate defined?", path: "test" } },
          {
            name: "write_note",
            arguments: {
              note: "\"Where is the tax rate defined?\": src/billing.ts:3, test/a.test.ts:1, test/b.test.ts:1"
            }
          }
        ])
        assert.match(text, /\n\nIn the tests\n- test\/e\.test\.ts:1 {2}expect\(taxRate\)\.toBe\("e"\)\n- test\/f/)
      }))

    it.effect("main job: the embedded model makes no note without write_note, and reports a failed note", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(shop)
        const tools = offered.filter((name) => name !== "write_note")
        const without = yield* ask(root, "Where is the tax rate defined?", { tools })
        assert.deepStrictEqual(without.turns.map(names), [["search_text", "list_files"], ["read_file"], []])
        assert.match(without.text, /^The best match is src\/billing\.ts:3:/)
        const failed = yield* ask(root, "Where is the tax rate defined?", { notes: "README.md/x" })
        assert.match(
          failed.text,
          /^The best match is .*\n\nI could not write the note: cannot write .*README\.md\/x: /s
        )
      }))

    it.effect("main job: an answer quotes a heading with the lines below the heading", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({ "a.md": "# Tides\n\nHigh at noon.\nLow at six.\n\nMore.\n" })
        const { text } = yield* ask(root, "When are the tides?")
        assert.match(
          text,
          /is a\.md:1:\n\n {2}1 {2}# Tides\n {2}2\s+\n? {2}3 {2}High at noon\.\n {2}4 {2}Low at six\.\n\n/
        )
      }))

    it.effect("main job: the embedded model writes a note only into a named folder, and finds the note again", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(shop)
        const asked = "Remember that the lighthouse keeper is called Ada"
        const said = () => Effect.map(ask(root, asked, { notes: "kept" }), ({ text }) => text)
        assert.strictEqual(yield* said(), `I wrote it down in ${root}/kept/notes.md.`)
        assert.strictEqual(yield* said(), `I wrote it down before, in ${root}/kept/notes.md.`)
        const { text } = yield* ask(root, "Who is the lighthouse keeper?")
        assert.match(text, /kept\/notes\.md:1:\n\n {2}1 {2}- the lighthouse keeper is called Ada/)
        const planned = yield* ask(root, asked)
        assert.match(
          planned.text,
          /^I did not write it down: .*\(--notes\)\..*\n\n {2}- the lighthouse keeper is called Ada$/
        )
      }))

    it.effect("main job: a note about an answer does not change the next answer to the same question", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* Agent.folder(shop)
        for (const question of ["Where is the tax rate defined?", "Who reserves?"]) {
          const first = yield* ask(root, question, { notes: "kept" })
          const second = yield* ask(root, question, { notes: "kept" })
          assert.strictEqual(second.text.split("\n")[0], first.text.split("\n")[0])
          assert.notInclude(second.text, "kept/notes.md")
        }
        assert.strictEqual(
          yield* fs.readFileString(`${root}/kept/notes.md`),
          "- \"Where is the tax rate defined?\": src/billing.ts:3\n- \"Who reserves?\": src/stock.ts:1\n"
        )
      }))

    it.effect("main job: the embedded model asks for a search word where a question has none, and searches for the reply", () =>
      Effect.gen(function*() {
        const first = Reply.reply({ messages: [user("What is this?")], tools: offered })
        assert.deepStrictEqual(names(first), ["ask_user"])
        const after = [
          user("What is this?"),
          {
            role: "assistant",
            content: Conversation.textOf(first),
            calls: [{ id: "c", name: "ask_user", arguments: "{}" }],
            answers: undefined
          },
          { role: "tool", content: "<awaiting user response>", calls: [], answers: "c" },
          { role: "assistant", content: "Which word?", calls: [], answers: undefined },
          user("lamps")
        ]
        const second = Reply.reply({ messages: after, tools: offered })
        assert.deepStrictEqual(names(second), ["search_text", "list_files"])
        assert.match(Conversation.textOf(second), /"lamps"/)
      }))

    it.effect("main job: an answer reports a failed call", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* Agent.folder(shop)
        yield* fs.symlink("loop.txt", `${root}/loop.txt`)
        const { text } = yield* ask(root, "How many lines does loop.txt have?")
        assert.strictEqual(text, "I could not count: cannot read loop.txt: too many symbolic links encountered.")
        const outside = yield* ask(root, "How many lines does ../x.ts have?")
        assert.match(outside.text, /cannot read \.\.\/x\.ts: it is outside of the folder/)
      }))

    it.effect("main job: the embedded model names a tool that it needs and lacks, and calls nothing", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(shop)
        const { text, turns } = yield* ask(root, "Where is the tax rate?", { tools: ["list_files"] })
        assert.strictEqual(turns.length, 1)
        assert.match(text, /I would need search_text to answer/)
      }))

    it.effect("main job: the embedded model replies also to tool answers that are not JSON or have another form", () =>
      Effect.sync(() => {
        for (
          const content of ["", "<cut>", "[]", "null", "{\"matches\":3}", "{\"matches\":[null,{}]}", "{\"error\":5}"]
        ) {
          const reply = Reply.reply({
            messages: [
              user("Where is the tax rate?"),
              {
                role: "assistant",
                content: "",
                calls: [{ id: "a", name: "search_text", arguments: "{" }],
                answers: undefined
              },
              { role: "tool", content, calls: [], answers: "a" }
            ],
            tools: offered
          })
          assert.isString(Conversation.textOf(reply), content)
        }
      }))
  })
})
