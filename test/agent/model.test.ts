import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, Message, Response, Thread } from "heddle"
import { OpenAiChat } from "heddle/adapters"
import * as Conversation from "../../scratchpad/agent/model/conversation.ts"
import * as Intent from "../../scratchpad/agent/model/intent.ts"
import * as Reply from "../../scratchpad/agent/model/reply.ts"
import * as Server from "../../scratchpad/agent/model/server.ts"
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

const shop = {
  "README.md": "# Shop\n\nSells lamps to sailors.\n",
  "src/billing.ts":
    "import { net } from \"./net.ts\"\n\nexport const taxRate = 0.2\n\nexport const gross = (item) =>\n" +
    "  net(item) * (1 + taxRate)\n",
  "src/mail.py": "def send_welcome(user):\n    smtp.deliver(user.address, WELCOME)\n\n\ndef send_invoice(user):\n" +
    "    smtp.deliver(user.address, INVOICE)\n",
  "src/stock.ts": "export function reserve(lamp) {\n  if (lamp.count === 0) throw new Error(\"sold out\")\n}\n"
}

describe("Embedded model", () => {
  layer(Agent.services)((it) => {
    it.effect("main job: it searches and lists at once, reads the best hits, and answers with quotes and path:line", () =>
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

    it.effect("main job: every path:line that it names says what it quotes", () =>
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

    it.effect("main job: what is not there is said not to be there", () =>
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

    it.effect("main job: numbers, lists, files and overviews are looked up, not searched", () =>
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
      }))

    it.effect("main job: a heading is quoted with what stands below it", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({ "a.md": "# Tides\n\nHigh at noon.\nLow at six.\n\nMore.\n" })
        const { text } = yield* ask(root, "When are the tides?")
        assert.match(
          text,
          /is a\.md:1:\n\n {2}1 {2}# Tides\n {2}2\s+\n? {2}3 {2}High at noon\.\n {2}4 {2}Low at six\.\n\n/
        )
      }))

    it.effect("main job: it keeps a note where the user has a place for it, and finds it again", () =>
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

    it.effect("main job: a note of what was found does not answer the question that it was made for", () =>
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

    it.effect("main job: a question without a word to look for is asked back, and the reply answers it", () =>
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

    it.effect("main job: a failed call is told, not hidden", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* Agent.folder(shop)
        yield* fs.symlink("loop.txt", `${root}/loop.txt`)
        const { text } = yield* ask(root, "How many lines does loop.txt have?")
        assert.strictEqual(text, "I could not count: cannot read loop.txt: too many symbolic links encountered.")
        const outside = yield* ask(root, "How many lines does ../x.ts have?")
        assert.match(outside.text, /cannot read \.\.\/x\.ts: it is outside of the folder/)
      }))

    it.effect("main job: without the tools it needs it says so and calls nothing", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(shop)
        const { text, turns } = yield* ask(root, "Where is the tax rate?", { tools: ["list_files"] })
        assert.strictEqual(turns.length, 1)
        assert.match(text, /I would need search_text to answer/)
      }))

    it.effect("main job: answers that are no JSON, or of another form, break nothing", () =>
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

    it.effect("main job: what a question is after is told by how it is put", () =>
      Effect.sync(() => {
        const tag = (question: string) => Intent.of(question)._tag
        assert.strictEqual(tag("How many lines mention a tax?"), "Search")
        assert.strictEqual(tag("Which files mention a tax?"), "Search")
        assert.strictEqual(tag("Do you remember the tax rate?"), "Search")
        assert.strictEqual(tag("note: buy bread"), "Note")
        assert.strictEqual(tag("How long is README.md?"), "CountLines")
        assert.strictEqual(tag("What is in the src folder?"), "Look")
        assert.strictEqual(tag("Give me an overview of the repository"), "Overview")
        assert.strictEqual(tag("hm?"), "Search")
        assert.strictEqual(tag(""), "Unclear")
      }))
  })
})

const adapter = Layer.unwrap(
  Effect.map(Server.Endpoint, ({ baseUrl }) => OpenAiChat.layer({ model: "embedded", baseUrl, retries: 0 }))
).pipe(Layer.provide(FetchHttpClient.layer), Layer.provideMerge(Server.layer({ pace: Effect.void })))

describe("Embedded model over HTTP", () => {
  layer(Layer.merge(adapter, Agent.services), { excludeTestServices: true })((it) => {
    it.effect("main job: a whole run through the real adapter answers from the files", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(shop)
        const events = yield* Chat.stream("Where is the tax rate defined?", { tools: Tools.all, system: "Be brief." })
          .pipe(
            Stream.runCollect,
            Effect.provide(Agent.workspace(root))
          )
        const last = events.at(-1) as Event.Of<"ChatCompleted">
        const { finalResponse, outcome, steps, thread, usage } = last.result
        assert.deepStrictEqual(outcome, { _tag: "Completed" })
        assert.include(finalResponse?.outputText, "src/billing.ts:3")
        assert.deepStrictEqual(
          steps.map((step) => Response.actionableCalls(step.response).map((call) => call.name)),
          [["search_text", "list_files"], ["read_file", "write_note"], []]
        )
        assert.strictEqual(Thread.validate(thread)._tag, "Success")
        assert.isAbove(usage?.inputTokens ?? 0, 50)
        assert.isAbove(usage?.outputTokens ?? 0, 20)
        assert.isAbove(events.filter((event) => event._tag === "TextDelta").length, 30, "it streams")
        const ids = steps.flatMap((step) => step.response.toolCalls.map((call) => call.id))
        assert.strictEqual(new Set(ids).size, ids.length)
      }))

    it.effect("main job: what ask_user asks ends the run, and the reply goes on with it", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(shop)
        const options = { tools: Tools.all }
        const first = yield* Effect.provide(Chat.run("What is this?", options), Agent.workspace(root))
        assert.strictEqual(first.outcome._tag, "AskUser")
        const thread = Thread.append(first.thread, [Message.user("sailors")])
        const second = yield* Effect.provide(Chat.run(thread, options), Agent.workspace(root))
        assert.include(second.finalResponse?.outputText, "README.md:3")
      }))

    it.effect("main job: a request that is none gets a 400 that says why", () =>
      Effect.gen(function*() {
        const { baseUrl } = yield* Server.Endpoint
        const post = (body: string) =>
          Effect.promise(() =>
            fetch(`${baseUrl}/chat/completions`, { method: "POST", body }).then(async (response) => ({
              status: response.status,
              error: (await response.json() as { error: { message: string } }).error.message
            }))
          )
        assert.deepStrictEqual(yield* post("{"), { status: 400, error: "the request is no JSON" })
        assert.match((yield* post("{\"stream\":true,\"messages\":[]}")).error, /messages/)
        assert.match((yield* post("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}")).error, /only streams/)
        const elsewhere = yield* Effect.promise(() => fetch(`${baseUrl}/models`))
        assert.strictEqual(elsewhere.status, 404)
      }))

    it.effect("main job: the server is on the loopback interface, and gone with its scope", () =>
      Effect.gen(function*() {
        const baseUrl = yield* Server.Endpoint.use(({ baseUrl }) => Effect.succeed(baseUrl)).pipe(
          Effect.provide(Layer.fresh(Server.layer({ pace: Effect.void })))
        )
        assert.match(baseUrl, /^http:\/\/127\.0\.0\.1:\d+\/v1$/)
        const model = OpenAiChat.layer({ model: "embedded", baseUrl, retries: 0 }).pipe(
          Layer.provide(FetchHttpClient.layer)
        )
        const error = yield* Effect.flip(Effect.provide(Chat.run("x", { tools: [] }), Layer.fresh(model)))
        assert.isTrue(error instanceof Adapter.AdapterError && error.reason === "network_error")
      }))
  })
})
