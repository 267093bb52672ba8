/** Tools of real MCP servers in runs: the server of all features, and a hostile one, each a process of its own. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Stream from "effect/Stream"
import { Message, Session, type Tool, ToolRunner } from "heddle"
import { McpTools } from "heddle/mcp"
import { Script } from "heddle/testing"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { limit, until } from "../support/until.ts"
import { ledger } from "./support/ledger.ts"

ledger()

const root = path.join(import.meta.dirname, "../..")

const everything = (options: McpTools.Options = {}) =>
  McpTools.layer({
    name: "everything",
    command: process.execPath,
    args: [path.join(root, "node_modules/@modelcontextprotocol/server-everything/dist/index.js")]
  }, { approval: "none", ...options })

const hostile = (options: McpTools.Options = {}, ...args: ReadonlyArray<string>) =>
  McpTools.layer({
    name: "hostile",
    command: process.execPath,
    args: [path.join(import.meta.dirname, "../fixtures/mcpHostile.ts"), ...args]
  }, { approval: "none", ...options })

const run = (
  name: string,
  args: Record<string, unknown> = {},
  options: Partial<ToolRunner.Options<any, never, never>> = {}
) =>
  Effect.flatMap(
    McpTools.tools,
    (tools) => ToolRunner.run([Message.toolCall("c0", name, args)], tools as ReadonlyArray<Tool.Any>, options as {})
  )

const answer = (
  name: string,
  args?: Record<string, unknown>,
  options?: Partial<ToolRunner.Options<any, never, never>>
) => Effect.map(run(name, args, options), ({ messages }) => messages[0]?.content)

const text = (name: string, args?: Record<string, unknown>) => Effect.map(answer(name, args), String)

/** Waits until a tool is listed: a server may list some of them only after its handshake. */
const listed = (name: string) =>
  until(
    `the tool ${name}`,
    Effect.map(McpTools.tools, (tools) => tools.some((tool) => tool.name === name)),
    (isListed) => isListed
  )

describe("the reference server", { timeout: limit }, () => {
  it.live("W-13: the reference server lists fourteen tools by default, and the tool that runs as a task is left out with its reason", () =>
    Effect.gen(function*() {
      yield* listed("trigger-elicitation-request")
      const tools = yield* McpTools.tools
      const leftOut = yield* until("a tool that is left out", McpTools.leftOut, (left) => left.length > 0)
      assert.deepStrictEqual(leftOut, [{
        server: "everything",
        name: "simulate-research-query",
        reason: "it runs as a task only, which this client does not support"
      }])
      assert.strictEqual(tools.length + leftOut.length, 14)
      assert.isTrue(tools.every(({ destructive, readOnly }) => destructive && !readOnly))
    }).pipe(Effect.provide(everything())))

  it.live("W-13: the reference server lists sixteen tools with roots and sampling, and its tools read the roots and a model's answer", () =>
    Effect.gen(function*() {
      yield* listed("trigger-sampling-request")
      yield* listed("get-roots-list")
      const leftOut = yield* until("a tool that is left out", McpTools.leftOut, (left) => left.length > 0)
      assert.deepStrictEqual(leftOut.map(({ name }) => name), ["simulate-research-query"])
      assert.strictEqual((yield* McpTools.tools).length + leftOut.length, 16)
      const roots = yield* text("get-roots-list")
      assert.include(roots, "file:///srv/books")
      assert.include(roots, "the books")
      const sampled = yield* text("trigger-sampling-request", { prompt: "What is new?", maxTokens: 7 })
      assert.include(
        sampled,
        "7: You are a helpful test server. Resource trigger-sampling-request context: What is new?"
      )
      assert.include(sampled, "m-1")
    }).pipe(Effect.provide(everything({
      roots: [{ uri: "file:///srv/books", name: "the books" }],
      onSample: ({ maxTokens, messages, system = "" }) =>
        Effect.succeed({ text: `${maxTokens}: ${system} ${messages.map(Message.text).join()}`, model: "m-1" })
    }))))

  it.live("W-13: a sampling request is declined if onSample fails, and the server reads nothing of the error", () =>
    Effect.gen(function*() {
      yield* listed("trigger-sampling-request")
      const declined = yield* text("trigger-sampling-request", { prompt: "What is new?" })
      assert.include(declined, "declined")
      assert.notInclude(declined, "canary-8843")
    }).pipe(Effect.provide(everything({ onSample: () => Effect.fail(new Error("canary-8843")) }))))

  it.live("W-13: the reference server's texts, images, structured content, failures, progress and environment arrive", () =>
    Effect.gen(function*() {
      assert.strictEqual(yield* answer("echo", { message: "hi" }), "Echo: hi")
      const image = yield* answer("get-tiny-image")
      assert.deepStrictEqual(Array.isArray(image) && image.map(({ type }) => type), ["text", "image", "text"])
      const weather = JSON.parse(yield* text("get-structured-content", { location: "Chicago" }))
      assert.containsAllKeys(weather, ["temperature", "conditions", "humidity"])
      const { messages: [failed] } = yield* run("echo", {})
      assert.isTrue(failed?.isError)
      assert.include(String(failed?.content), "Invalid arguments for tool echo")
      // A key is in the environment of the server only where it was given.
      const environment = JSON.parse(yield* text("get-env"))
      assert.property(environment, "PATH")
      assert.notProperty(environment, "VITEST")
      const call = Message.toolCall("c0", "trigger-long-running-operation", { duration: 0.2, steps: 4 })
      const events = yield* Stream.runCollect(ToolRunner.stream([call], yield* McpTools.tools))
      const progress = events.flatMap((event) => event._tag === "ToolProgress" ? [event.progress] : [])
      assert.include(progress[0] as {}, { total: 4 })
    }).pipe(Effect.provide(everything())))

  it.live("W-13: onElicit answers a question of the reference server, and the model reads why a question was declined", () =>
    Effect.gen(function*() {
      const asked: Array<McpTools.Elicitation> = []
      const onElicit: McpTools.Options["onElicit"] = (elicitation) =>
        Effect.sync(() => {
          asked.push(elicitation)
          return { action: "accept", content: { name: "Ada", check: true, color: "green" } } as const
        })
      const ask = Effect.andThen(listed("trigger-elicitation-request"), text("trigger-elicitation-request"))
      const answered = yield* Effect.provide(ask, everything({ onElicit }))
      assert.include(answered, "Ada")
      assert.deepStrictEqual(asked.map(({ server }) => server), ["everything"])
      const declined = yield* Effect.provide(ask, everything())
      assert.include(declined, "declined")
      assert.include(declined, "the server holds the call open")
    }))

  it.live("W-13: a call of an untrusted tool waits for approval, and runs once approved", () =>
    Effect.gen(function*() {
      const tools = yield* McpTools.tools
      const asked = yield* Session.reply(Session.make(), "Echo", { tools })
      assert.deepStrictEqual(asked.session.suspensions.map(({ kind }) => kind), ["approval"])
      const { session } = yield* Session.continue(yield* Session.approve(asked.session, "c0"), null, { tools })
      assert.strictEqual(Message.text(session.thread.messages[2]!), "Echo: hi")
    }).pipe(Effect.provide([
      everything({ approval: "destructive" }),
      Script.layer([
        [Script.toolCall("c0", "echo", { message: "hi" }), Script.finish("tool_calls")],
        [Script.text("Done."), Script.finish("stop")]
      ])
    ])))
})

/** The messages that the hostile server has received. */
const seen = Effect.map(
  text("seen"),
  (words) => JSON.parse(words).seen as ReadonlyArray<{ readonly method: string; readonly params: any }>
)

/** A file to which each start of a server adds a line. */
const counting = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-mcp-"))),
  (folder) => Effect.sync(() => fs.rmSync(folder, { recursive: true }))
).pipe(Effect.map((folder) => path.join(folder, "starts")))

const pidsIn = (file: string): ReadonlyArray<number> => fs.readFileSync(file, "utf8").trim().split("\n").map(Number)

const isAlive = (pid: number): boolean => Result.isSuccess(Result.try(() => process.kill(pid, 0)))

describe("a hostile server", { timeout: limit }, () => {
  for (const era of ["legacy", "modern"] as const) {
    it.live(`W-14: a call of a hostile server is answered once, whatever the server does (${era})`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(yield* Effect.map(McpTools.leftOut, (left) => left.map(({ name }) => name)), [
          "malformed"
        ])
        assert.strictEqual(yield* text("odd_name"), "odd/name was called")
        assert.strictEqual(yield* text("twice"), "first")
        assert.strictEqual(yield* text("late"), "done")
        assert.strictEqual(yield* text("noise"), "after the noise")
        assert.match(
          yield* text("invalid"),
          /^\{\}\n\{"n":"no number"\}\n\[the result violates the tool's output schema: /
        )
        assert.include(yield* text("fails"), "out of seats")
        assert.include(yield* text("refuses"), "handler_raised")
        // It never answers: the call ends by its timeout, and the server hears of it.
        assert.include(yield* Effect.map(answer("never", {}, { toolTimeout: "50 millis" }), String), "timed out")
        assert.include((yield* seen).map(({ method }) => method), "notifications/cancelled")
        assert.strictEqual(yield* text("twice"), "first")
      }).pipe(Effect.provide(hostile({}, era))))

    it.live(`O-10: ${era}: a hostile server's answer to a call reaches the model, whatever its form`, () => {
      const usable = { type: "text", text: "usable" }
      const misfit = "\n[the result violates the tool's output schema: "
      const cases: ReadonlyArray<readonly [tool: string, result: unknown, told: string | RegExp, isError?: boolean]> = [
        [
          "says",
          { isError: true, content: [usable], structuredContent: { line: 3 } },
          /usable\\n\{\\"line\\":3\}/,
          true
        ],
        ["says", { isError: true, content: [], structuredContent: { line: 3 } }, /"\{\\"line\\":3\}"/, true],
        ["says", { isError: true, structuredContent: { line: 3 } }, /"\{\\"line\\":3\}"/, true],
        [
          "says",
          { isError: true, content: [{ type: "text", text: `{"line": 3}` }], structuredContent: { line: 3 } },
          /^\{"error":"\{\\"line\\": 3\}"\}$/,
          true
        ],
        ["says", { isError: true, content: [] }, /did not say why/, true],
        [
          "says_n",
          { isError: true, content: [usable], structuredContent: { n: "x" } },
          /^\{"error":"usable\\n\{\\"n\\":\\"x\\"\}"\}$/,
          true
        ],
        ["says_n", { isError: true, content: [usable] }, /^\{"error":"usable"\}$/, true],
        ["says_n", { content: [], structuredContent: { n: 1 } }, `{"n":1}`],
        ["says_n", { content: [usable] }, `usable${misfit}there is no structured content]`],
        [
          "says_n",
          { content: [usable], structuredContent: { n: "x" } },
          new RegExp(`^usable\\n\\{"n":"x"\\}${misfit.replace("[", "\\[")}`)
        ],
        [
          "says_n",
          { content: [{ type: "text", text: `{"n":"x"}` }], structuredContent: { n: "x" } },
          new RegExp(`^\\{"n":"x"\\}${misfit.replace("[", "\\[")}`)
        ],
        ["says_by_nothing", { content: [usable], structuredContent: { n: 1 } }, `{"n":1}`],
        ["says", { content: [{ type: "new kind" }, usable] }, "[new kind content]\nusable"],
        ["says", { content: [{ type: "text", text: 5 }] }, "5"],
        ["says", { content: "usable" }, "usable"],
        ["says", { content: null, structuredContent: { n: 2 } }, `{"n":2}`],
        ["says", { content: [{ type: "image", data: 5 }, usable] }, "[no data]\nusable"],
        ["says", { content: [usable], structuredContent: [1, 2] }, "[1,2]"],
        ["says", { content: [{ ...usable, annotations: { priority: 7 } }] }, "usable"]
      ]
      return Effect.gen(function*() {
        for (const [tool, result, told, isError] of cases) {
          const { messages: [message] } = yield* run(tool, { result })
          const what = `${tool} ${JSON.stringify(result)}`
          if (typeof told === "string") assert.strictEqual(message?.content, told, what)
          else assert.match(String(message?.content), told, what)
          assert.strictEqual(message?.isError, isError, what)
        }
      }).pipe(Effect.provide(hostile({}, era)))
    })
  }

  it.live("W-14: a burst of calls starts a dead server once, and the running calls have an unknown effect", () =>
    Effect.gen(function*() {
      const starts = yield* counting
      yield* Effect.gen(function*() {
        const tools = yield* McpTools.tools
        const held = yield* Effect.forkChild(ToolRunner.run([Message.toolCall("n", "never")], tools))
        yield* until("the call", seen, (messages) => messages.some(({ params }) => params.name === "never"))
        assert.include(contentOf(yield* ToolRunner.run([Message.toolCall("d", "dies")], tools)), "unknown_effect")
        assert.include(contentOf(yield* Fiber.join(held)), "unknown_effect")
        const burst = Array.from({ length: 8 }, (_, index) => Message.toolCall(`c${index}`, "odd_name"))
        const again = yield* ToolRunner.run(burst, tools)
        assert.deepStrictEqual(new Set(again.messages.map(Message.text)), new Set(["odd/name was called"]))
        assert.lengthOf(pidsIn(starts), 2)
      }).pipe(Effect.provide(hostile({}, "legacy", starts)))
      assert.deepStrictEqual(pidsIn(starts).filter(isAlive), [])
    }).pipe(Effect.scoped))

  it.live("W-14: a call of an idempotent tool is sent three times at most if the server dies in each call", () =>
    Effect.gen(function*() {
      const starts = yield* counting
      const content = yield* Effect.provide(text("dies"), hostile({ trust: "annotations" }, "modern", starts))
      assert.include(content, "unknown_effect")
      assert.lengthOf(pidsIn(starts), 3)
    }).pipe(Effect.scoped))

  it.live("W-14: a message past maxMessageBytes ends the connection, and the next call has another connection", () =>
    Effect.gen(function*() {
      const content = yield* text("huge", { length: 200_000 })
      assert.include(content, "unknown_effect")
      assert.strictEqual((yield* text("huge", { length: 20_000 })).length, 20_000)
    }).pipe(Effect.provide(hostile({ maxMessageBytes: 100_000 }))))

  it.live("W-14: an unreadable tool is offered once a later list makes it readable", () =>
    Effect.gen(function*() {
      const leftOut = Effect.map(McpTools.leftOut, (left) => left.map(({ name }) => name))
      assert.deepStrictEqual(yield* leftOut, ["malformed"])
      yield* text("mends")
      yield* until("the second list", McpTools.tools, (tools) => tools.some(({ name }) => name === "malformed"))
      assert.deepStrictEqual(yield* leftOut, [])
    }).pipe(Effect.provide(hostile())))

  it.live("W-14: a tool that its server changes in a call is denied to the run, and untrusted in the next run", () =>
    Effect.gen(function*() {
      const tools = yield* McpTools.tools
      assert.strictEqual(contentOf(yield* ToolRunner.run([Message.toolCall("c", "changes")], tools)), "changed")
      const changed = yield* until(
        "the changed tool",
        McpTools.tools,
        (now) => now.some(({ description, name }) => name === "changes" && description.includes("another"))
      )
      assert.include(contentOf(yield* ToolRunner.run([Message.toolCall("c", "changes")], tools)), "denied")
      assert.isTrue(changed.find(({ name }) => name === "changes")?.approval)
      assert.isFalse(changed.find(({ name }) => name === "never")?.approval)
    }).pipe(Effect.provide(hostile())))

  for (const era of ["legacy", "modern"] as const) {
    it.live(`W-13: the user answers a server's question within a call, and the call continues with the answer (${era})`, () =>
      Effect.gen(function*() {
        const tools = yield* McpTools.tools
        const asked = yield* Session.reply(Session.make(), "Book", { tools })
        assert.strictEqual(asked.session.pendingQuestion, "hostile: How many?")
        const { session } = yield* Session.reply(asked.session, "3", { tools })
        const content = Message.text(session.thread.messages[2]!)
        assert.include(content, "{\"action\":\"accept\",\"content\":{\"seats\":3}}")
        assert.strictEqual(content.startsWith("signed: "), era === "modern")
      }).pipe(Effect.provide([
        hostile({ trust: { asks: { destructive: false, idempotent: era === "legacy" } } }, era),
        Script.layer([
          [Script.toolCall("c0", "asks"), Script.finish("tool_calls")],
          [Script.text("Booked."), Script.finish("stop")]
        ])
      ])))
  }

  it.live("W-13: an interrupted run sends a cancellation, and the server process ends with its layer", () =>
    Effect.gen(function*() {
      const starts = yield* counting
      yield* Effect.gen(function*() {
        const tools = yield* McpTools.tools
        const calls = yield* Effect.forkChild(ToolRunner.run([Message.toolCall("n", "never")], tools))
        yield* until("the call", seen, (messages) => messages.some(({ params }) => params.name === "never"))
        yield* Fiber.interrupt(calls)
        yield* until(
          "the notice",
          seen,
          (messages) => messages.some(({ method }) => method === "notifications/cancelled")
        )
      }).pipe(Effect.provide(hostile({}, "legacy", starts)))
      assert.deepStrictEqual(pidsIn(starts).filter(isAlive), [])
    }).pipe(Effect.scoped))

  it.live("W-14: a server that ends before its handshake is taken for an older server, and is started again", () =>
    Effect.gen(function*() {
      const starts = yield* counting
      const content = yield* Effect.provide(text("odd_name"), hostile({}, "fragile", starts))
      assert.strictEqual(content, "odd/name was called")
      assert.lengthOf(pidsIn(starts), 2)
    }).pipe(Effect.scoped))

  it.live("W-14: a server that does not exit is killed with its layer", () =>
    Effect.gen(function*() {
      const starts = yield* counting
      assert.strictEqual(
        yield* Effect.provide(text("odd_name"), hostile({}, "stubborn", starts)),
        "odd/name was called"
      )
      yield* until("the end", Effect.sync(() => pidsIn(starts).filter(isAlive)), (alive) => alive.length === 0)
    }).pipe(Effect.scoped))

  it.live("W-14: a missing program, or a program that ends with a reason, is McpUnavailable with that reason", () =>
    Effect.gen(function*() {
      const none = McpTools.layer({ name: "none", command: "no-such-program-of-heddle" })
      assert.include((yield* Effect.flip(Effect.provide(McpTools.tools, none))).message, "no-such-program-of-heddle")
      const args = ["-e", "console.error('no token given'); process.exit(3)"]
      const ends = McpTools.layer({ name: "ends", command: process.execPath, args })
      assert.include((yield* Effect.flip(Effect.provide(McpTools.tools, ends))).message, "no token given")
    }))
})

const contentOf = ({ messages }: ToolRunner.Result): string => String(messages[0]?.content)
