import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import { resolve } from "node:path"
import * as Agent from "../support/agent.ts"
import { agent, type Ended } from "../support/process.ts"
import * as Server from "../support/server.ts"
import { limit } from "../support/until.ts"

/** One line on stderr, and a code that says that it did not work. */
const assertRefused = (ended: Ended, line: RegExp) => {
  assert.strictEqual(ended.code, 1, ended.stdout + ended.stderr)
  assert.match(ended.stderr, line)
  assert.match(ended.stderr, /^agent: [^\n]+\n$/)
}

describe("the agent as a process", { concurrent: true, timeout: limit }, () => {
  layer(Agent.services, { excludeTestServices: true })((it) => {
    it.effect("main job: the agent takes this repository without --dir, and its own question without a question", () =>
      Effect.gen(function*() {
        const ended = yield* agent([])
        assert.deepStrictEqual([ended.code, ended.stderr], [0, ""])
        const [, path, line] = /The best match is (src\/\S+):(\d+)/.exec(ended.stdout) ?? []
        const fs = yield* FileSystem.FileSystem
        const text = yield* fs.readFileString(resolve(import.meta.dirname, "../..", path ?? ""))
        assert.match(text.split("\n")[Number(line) - 1] ?? "", /timeout/i)
      }))

    it.effect("main job: reads start before the reply has ended, and the picture marks these reads", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({ ...Agent.shop, "test/tax.test.ts": "expect(taxRate).toBe(0.2)\n" })
        const ended = yield* agent(["Where is the tax rate defined?", "--dir", root, "--notes", "kept"])
        assert.deepStrictEqual([ended.code, ended.stderr], [0, ""])
        const picture = ended.stdout.slice(ended.stdout.indexOf("\n  turn 2 "), ended.stdout.indexOf("\n  turn 3 "))
        assert.match(picture, /^ {5}model +·*░+ +.+ m?s$/m)
        assert.match(picture, /^ {2}»✓ read_file [^ ]*billing\.ts:1 +█+ *│ +.+ m?s$/m)
        assert.match(picture, /^ {2}[‖ ]✓ write_note "Where is th… +[·│┄ ]*█+ +.+ m?s$/m)
        assert.match(ended.stdout, /^ {2}» [2-5] started before the reply had ended/m)
        for (const line of ended.stdout.split("\n  turn 1 ")[1]?.split("\n") ?? []) assert.isAtMost(line.length, 80)
        const fs = yield* FileSystem.FileSystem
        assert.match(yield* fs.readFileString(`${root}/kept/notes.md`), /^- "Where is the tax rate defined\?": .*:1\n$/)
      }))

    it.effect("main job: the agent refuses unusable flags and settings in one line", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({ "a.txt": "a\n" })
        assertRefused(yield* agent(["x", "--dir", `${root}/none`]), /none: there is no such file or folder/)
        assertRefused(yield* agent(["x", "--dir", `${root}/a.txt`]), /a\.txt: it is no folder/)
        assertRefused(yield* agent(["x", "--bogus"]), /--bogus/)
        const other = yield* agent(["x", "--provider", "other"])
        assertRefused(other, /--provider other: it is none of openai, anthropic, gemini, embedded$/m)
        const wrong = yield* agent(["x"], { environment: { OPENAI_BASE_URL: "ftp://x" } })
        assertRefused(wrong, /OPENAI_BASE_URL: it is no address that starts with http/)
      }))

    it.effect("main job: the agent names an unreadable file in one line, and exits with code 1", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* Agent.folder({ "a.txt": "a\n" })
        yield* fs.symlink("loop.txt", `${root}/loop.txt`)
        const ended = yield* agent(["How many lines does loop.txt have?", "--dir", root])
        assertRefused(ended, /cannot read loop\.txt: too many symbolic links/)
        assert.include(ended.stdout, "I could not count")
      }))

    it.effect("main job: the agent reports an unreachable server and an unknown model in one line, without the key", () =>
      Effect.gen(function*() {
        const url = `${yield* Server.unreachable}/v1`
        const environment = { OPENAI_API_KEY: "sk-secret", OPENAI_BASE_URL: url }
        const unreachable = yield* agent(["x"], { environment })
        assertRefused(unreachable, new RegExp(`cannot reach the model server at ${url}: `))
        const strange = yield* Server.serve(() => ({
          status: 404,
          headers: { "content-type": "application/json" },
          pieces: [JSON.stringify({ error: { message: "model \"gpt-x\" not found" } })]
        }))
        const unknown = yield* agent(["x", "--model", "gpt-x"], {
          environment: { ...environment, OPENAI_BASE_URL: `${strange.url}/v1` }
        })
        assertRefused(
          unknown,
          /has no gpt-x; check --model or OPENAI_MODEL, and OPENAI_BASE_URL: HTTP 404: model "gpt-x"/
        )
        assert.notInclude(unknown.stderr + unknown.stdout, "sk-secret")
      }))

    it.effect("main job: without a terminal the agent shows a question to the user as the outcome", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({})
        const ended = yield* agent(["What is this?", "--dir", root])
        assert.deepStrictEqual([ended.code, ended.stderr], [0, ""])
        assert.match(ended.stdout, /Waits for the user · 1 turn · 1 call/)
        assert.match(ended.stdout, /\nIt asks: Which word or name should I look for in the files\?\n$/)
      }))
  })
})
