/** Lines that a server over standard input and output must answer, whatever is in them. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Sink from "effect/Sink"
import * as Stdio from "effect/Stdio"
import * as Stream from "effect/Stream"
import { spawn } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import * as StdioLines from "../../src/mcp/internal/stdioLines.ts"
import { limit, until } from "../support/until.ts"

const program = fileURLToPath(new URL("./support/stdio.ts", import.meta.url))

const mebibyte = 1_048_576

/** A process that serves, and what it writes. */
const serving = Effect.acquireRelease(
  Effect.sync(() => {
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), "heddle-wire-"))
    const child = spawn(process.execPath, ["--conditions=source", program, path.join(folder, "log")])
    let out = ""
    child.stdout.on("data", (data) => void (out += data))
    child.stderr.resume()
    const messages = () => out.split("\n").filter((line) => line !== "").map((line) => JSON.parse(line))
    return {
      child,
      folder,
      send: (text: string) => void child.stdin.write(`${text}\n`),
      messages,
      /** Waits for the answers under an id. */
      answers: (id: unknown, count = 1) =>
        Effect.map(
          until(
            "an answer",
            Effect.sync(messages),
            (all) => all.filter((message) => message.id === id).length >= count
          ),
          (all) => all.filter((message) => message.id === id)
        ),
      notes: Effect.sync(() =>
        fs.existsSync(path.join(folder, "log")) ? fs.readFileSync(path.join(folder, "log"), "utf8") : ""
      )
    }
  }),
  ({ child, folder }) =>
    Effect.sync(() => {
      child.kill("SIGKILL")
      fs.rmSync(folder, { recursive: true, force: true })
    })
)

const meta = {
  "io.modelcontextprotocol/protocolVersion": "2026-07-28",
  "io.modelcontextprotocol/clientInfo": { name: "raw", version: "1" },
  "io.modelcontextprotocol/clientCapabilities": {}
}

const request = (id: unknown, method: string, params: Record<string, unknown> = {}) => ({
  method,
  params: { _meta: meta, ...params },
  jsonrpc: "2.0",
  id
})

const calling = (id: unknown, name: string, args: unknown = {}) => request(id, "tools/call", { name, arguments: args })

const deep = (levels: number) => `${"[".repeat(levels)}${"]".repeat(levels)}`

/** A call that is as deep as this, with its id behind its arguments, as the SDK's client writes it. */
const nested = (id: unknown, levels: number) =>
  JSON.stringify(calling(id, "loud", { deep: 0 })).replace(`{"deep":0}`, `{"deep":${deep(levels - 3)}}`)

describe("a server over standard input and output", { timeout: limit }, () => {
  it.live("O-60: a server answers each wrong line under the id that it can read, and then the next line as usual", () =>
    Effect.gen(function*() {
      const { answers, messages, send } = yield* serving
      const long = "x".repeat(20 * mebibyte)
      const wrong: ReadonlyArray<readonly [text: string, id: unknown, code: number, words: RegExp]> = [
        [JSON.stringify(calling(11, "loud", { long })), 11, -32600, /16777216 bytes/],
        [`{"id":"twelve","method":"tools/call","params":"${long}"}`, "twelve", -32600, /16777216 bytes/],
        [nested(13, 513), 13, -32600, /512 levels/],
        [nested(14, 100_000), 14, -32600, /512 levels/],
        [`{"jsonrpc":"2.0","id":15,"method":"tools/list",}`, 15, -32700, /JSON/],
        [`{"jsonrpc":"2.0","id":16,"method":`, 16, -32700, /JSON/],
        // Its id may go on.
        [`{"jsonrpc":"2.0","id":1`, null, -32700, /JSON/],
        [`not json`, null, -32700, /JSON/],
        [`"a text"`, null, -32600, /object/]
      ]
      let nulls = 0
      for (const [index, [text, id, code, words]] of wrong.entries()) {
        send(text)
        const all = yield* answers(id, id === null ? ++nulls : 1)
        assert.strictEqual(all.at(-1).error.code, code, text.slice(0, 80))
        assert.match(all.at(-1).error.message, words)
        // The second of something: the line behind it is one as always.
        send(JSON.stringify(calling(100 + index, "loud")))
        const [next] = yield* answers(100 + index)
        assert.deepStrictEqual(next.result.structuredContent, { said: "loud" })
      }
      send(nested(17, 500))
      assert.notProperty((yield* answers(17))[0], "error")
      assert.lengthOf(messages(), 2 * wrong.length + 1)
    }).pipe(Effect.scoped))

  it.live("O-60: a server refuses a request under an id in use, leaves the first request running, and frees the id afterwards", () =>
    Effect.gen(function*() {
      const { answers, messages, notes, send } = yield* serving
      for (const id of [1, "1"]) {
        send(JSON.stringify(calling(id, "endless")))
        send(JSON.stringify(calling(id, "loud")))
        const [twice] = yield* answers(id)
        assert.strictEqual(twice.error.code, -32600)
        assert.include(twice.error.message, "a running request")
      }
      yield* until("both calls", notes, (text) => text.split("began").length === 3)
      assert.notInclude(yield* notes, "stopped")
      for (const id of [1, "1"]) {
        send(JSON.stringify({ jsonrpc: "2.0", method: "notifications/cancelled", params: { requestId: id } }))
      }
      yield* until("their ends", notes, (text) => text.split("stopped").length === 3)
      for (const id of [1, "1"]) {
        send(JSON.stringify(calling(id, "loud")))
        const [, answer] = yield* answers(id, 2)
        assert.deepStrictEqual(answer.result.structuredContent, { said: "loud" })
        // An answered id is free.
        send(JSON.stringify(calling(id, "loud")))
        assert.lengthOf(yield* answers(id, 3), 3)
      }
      assert.lengthOf(messages().filter(({ error }) => error !== undefined), 2)
      // So is one that was answered with an error.
      for (const count of [1, 2]) {
        send(JSON.stringify(request(7, "tools/none")))
        const all = yield* answers(7, count)
        assert.strictEqual(all.at(-1).error.code, -32601)
      }
    }).pipe(Effect.scoped))

  it.live("O-24: a server lists tools without declared hints without annotations", () =>
    Effect.gen(function*() {
      const { answers, send } = yield* serving
      for (const id of [1, 2]) {
        send(JSON.stringify(request(id, "tools/list")))
        const [{ result }] = yield* answers(id)
        assert.lengthOf(result.tools, 5)
        for (const tool of result.tools) assert.notProperty(tool, "annotations")
      }
    }).pipe(Effect.scoped))
})

describe("the input lines of a server", () => {
  /** What passes, and what is answered, where the input comes in these pieces. */
  const through = (pieces: ReadonlyArray<Uint8Array>) =>
    Effect.gen(function*() {
      const written: Array<string> = []
      const stdio = Stdio.make({
        args: Effect.succeed([]),
        stdin: Stream.fromIterable(pieces),
        stdout: () => Sink.forEach((text) => Effect.sync(() => void written.push(String(text)))),
        stderr: () => Sink.drain
      })
      const passed = yield* Stream.runCollect(StdioLines.guarded(stdio, (text) => text).stdin)
      return { written, passed: passed.map((line) => new TextDecoder().decode(line)) }
    })

  it.effect("O-60: input lines are the same however the input is cut into pieces", () =>
    Effect.gen(function*() {
      const lines = [
        JSON.stringify(calling(1, "loud", { text: "}\\\"],:{ \u{1F600} \"id\": 7" })),
        nested("zwölf", 600),
        "",
        `{"id": 3 , "id":4,"params":{"id":5},"x":[{"id":6}], "method":"m",}`,
        `{"params":{"a":"\\"id\\":9"},"method":"m","id":"a\\"b",`,
        JSON.stringify(calling(1, "loud"))
      ]
      const bytes = new TextEncoder().encode(`${lines.join("\n")}\n`)
      const whole = yield* through([bytes])
      assert.deepStrictEqual(whole.passed, [`${lines[0]}\n`])
      assert.deepStrictEqual(whole.written.map((text) => JSON.parse(text).id), ["zwölf", 4, "a\"b", 1])
      for (let cut = 1; cut < bytes.length; cut++) {
        assert.deepStrictEqual(yield* through([bytes.subarray(0, cut), bytes.subarray(cut)]), whole, `cut at ${cut}`)
      }
      assert.deepStrictEqual(yield* through(Array.from(bytes, (byte) => Uint8Array.of(byte))), whole)
    }))

  it.effect("O-60: only the answer frees a request id, once, and a server question under that id does not", () =>
    Effect.gen(function*() {
      const written: Array<string> = []
      const input: Array<Uint8Array> = []
      const stdio = Stdio.make({
        args: Effect.succeed([]),
        stdin: Stream.suspend(() => Stream.fromIterable(input.splice(0))),
        stdout: () => Sink.forEach((text) => Effect.sync(() => void written.push(String(text)))),
        stderr: () => Sink.drain
      })
      const guarded = StdioLines.guarded(stdio, (text) => `listed ${text}`)
      const encoder = new TextEncoder()
      const passes = (message: object) =>
        Effect.suspend(() => {
          input.push(encoder.encode(`${JSON.stringify(message)}\n`))
          return Effect.map(Stream.runCollect(guarded.stdin), (lines) => lines.length === 1)
        })
      const says = (message: object) => Stream.run(Stream.make(JSON.stringify(message)), guarded.stdout())
      for (const method of ["tools/list", "tools/call", "tools/list"]) {
        assert.isTrue(yield* passes({ id: 1, method }))
        assert.isFalse(yield* passes({ id: 1, method }))
        yield* says({ id: 1, method: "elicitation/create" })
        yield* says({ method: "notifications/progress" })
        assert.isFalse(yield* passes({ id: 1, method }))
        // The answer to the server's question frees nothing either.
        assert.isTrue(yield* passes({ id: 1, result: {} }))
        assert.isFalse(yield* passes({ id: 1, method }))
        yield* says({ id: 1, result: {} })
        assert.strictEqual(written.at(-1)?.startsWith("listed"), method === "tools/list")
        yield* says({ id: 1, result: {} })
        assert.isFalse(written.at(-1)?.startsWith("listed"))
      }
    }))

  it.effect("O-60: an input line of 16 MiB passes, and a line with one byte more is refused", () =>
    Effect.gen(function*() {
      for (const [more, isPassed] of [[0, true], [1, false]] as const) {
        const line = `{"id":1,"method":"m","params":"${"x".repeat(16 * mebibyte - 33 + more)}"}`
        assert.strictEqual(line.length, 16 * mebibyte + more)
        const bytes = new TextEncoder().encode(`${line}\n`)
        const pieces = Array.from(
          { length: 17 },
          (_, index) => bytes.subarray(index * mebibyte, (index + 1) * mebibyte)
        )
        const { passed, written } = yield* through(pieces)
        assert.lengthOf(passed, isPassed ? 1 : 0)
        assert.lengthOf(written, isPassed ? 0 : 1)
      }
    }))
})
