/** Heddle's tools and an agent in a process of their own, called by a real client of MCP over standard input and output. */
import { assert, describe, it } from "@effect/vitest"
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Scope from "effect/Scope"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { fixture, start as command } from "../support/command.ts"
import { until } from "../support/until.ts"
import { type Asked, call, clientOf, connect, eras, type Settings, textOf } from "./support/clients.ts"

const program = fileURLToPath(new URL("./support/stdio.ts", import.meta.url))

const folder: Effect.Effect<string, never, Scope.Scope> = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-mcp-"))),
  (folder) => Effect.sync(() => fs.rmSync(folder, { recursive: true, force: true }))
)

/** Starts the server and connects a client to it, until the scope closes. */
const start = (file: string, settings: Settings) =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const transport = new StdioClientTransport({
        command: process.execPath,
        args: ["--conditions=source", program, file],
        stderr: "pipe"
      })
      let errors = ""
      transport.stderr?.on("data", (data: Buffer) => void (errors += data.toString("utf8")))
      const client = clientOf(settings)
      const broken: Array<unknown> = []
      // oxlint-disable-next-line unicorn/prefer-add-event-listener -- the client has no other way
      client.onerror = (error) => {
        // The client forgets the token of a call before it has read the progress that came with the result.
        if (!error.message.includes("unknown token")) broken.push(error)
      }
      await client.connect(transport)
      return { client, errors: () => errors, broken }
    }),
    ({ client }) => Effect.promise(() => client.close())
  )

describe("heddle serve", () => {
  it.live("W-15: heddle serve serves MCP for a module with the MCP endpoint", () =>
    Effect.gen(function*() {
      const serving = yield* Effect.acquireRelease(
        Effect.sync(() => command(["serve", fixture("servedMcp"), "--port", "0"])),
        ({ child }) => Effect.sync(() => child.kill("SIGKILL"))
      )
      const [, url = ""] = yield* Effect.promise(() => serving.wrote(/clerk at (\S+)/))
      const client = yield* connect(url, { era: "modern" })
      assert.strictEqual(textOf(yield* call(client, "clerk", { task: "Book 5" })), "Booked.")
    }))
})

for (const era of eras) {
  describe(`an MCP process in the ${era} era`, () => {
    it.live(`W-15: ${era}: a process serves tools and an agent over standard input and output, and writes only MCP messages to its output`, () =>
      Effect.gen(function*() {
        const file = path.join(yield* folder, "log")
        fs.writeFileSync(file, "")
        const seen = Effect.sync(() => fs.readFileSync(file, "utf8").trim().split("\n"))
        const asked: Array<Asked> = []
        const answer: Settings["answer"] = (question) => {
          asked.push(question)
          return { action: "accept", content: question.message.includes("number") ? { answer: 42 } : { approve: true } }
        }
        const { broken, client, errors } = yield* start(file, { era, answer })
        const { tools } = yield* Effect.promise(() => client.listTools())
        assert.deepStrictEqual(tools.map(({ name }) => name), ["loud", "pay", "ask", "endless", "helper"])
        const progress: Array<unknown> = []
        const loud = yield* call(client, "loud", {}, { onprogress: (each) => void progress.push(each) })
        assert.deepStrictEqual(loud.structuredContent, { said: "loud" })
        yield* until("what was printed", Effect.sync(errors), (text) => text.includes("logged by the handler"))
        assert.include(errors(), "printed by the handler")
        assert.strictEqual(textOf(yield* call(client, "pay", { amount: 3 })), "paid 3")
        assert.strictEqual(textOf(yield* call(client, "ask")), "42")
        const task = JSON.stringify([{ id: "c0", name: "pay", args: { amount: 4 } }])
        assert.strictEqual(textOf(yield* call(client, "helper", { task })), "Heard: paid 4")
        assert.strictEqual(asked.length, 3)
        const controller = new AbortController()
        const under = yield* Effect.forkChild(Effect.exit(call(client, "endless", {}, { signal: controller.signal })))
        yield* until("the call", seen, (lines) => lines.includes("began"))
        controller.abort("enough")
        yield* until("the end of the call", seen, (lines) => lines.includes("stopped"))
        assert.strictEqual((yield* Fiber.join(under))._tag, "Failure")
        assert.isFalse((yield* call(client, "loud")).isError)
        yield* Effect.promise(() => client.close())
        yield* until("the end of the process", seen, (lines) => lines.includes("left"))
        assert.deepStrictEqual(broken, [])
      }))
  })
}
