import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import { fileURLToPath } from "node:url"
import * as Agent from "../support/agent.ts"
import { agent, type Ended } from "../support/process.ts"
import * as Server from "../support/server.ts"
import { limit } from "../support/until.ts"

const stubborn = fileURLToPath(new URL("../support/stubborn.ts", import.meta.url))

const frame = (delta: object, finish: string | null = null) =>
  `data: ${JSON.stringify({ id: "x", choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`
const text = (content: string) => frame({ content })
const call = (index: number, name: string, args: object) =>
  frame({ tool_calls: [{ index, id: `c${index}`, function: { name, arguments: JSON.stringify(args) } }] })

/** A folder in which a search takes many seconds. */
const large = Effect.gen(function*() {
  const fs = yield* FileSystem.FileSystem
  const root = yield* Agent.folder({ "f.txt": "a line of nothing in particular\n".repeat(25_000) })
  yield* Effect.forEach(
    Array.from({ length: 3000 }, (_, index) => index),
    (index) => fs.link(`${root}/f.txt`, `${root}/f${index}.txt`),
    { concurrency: 16 }
  )
  return root
})

const assertStopped = (ended: Ended) => {
  assert.deepStrictEqual([ended.code, ended.signal, ended.stderr], [130, null, ""], ended.stdout)
  assert.isFalse(ended.isAnythingLeft)
  assert.notInclude(ended.stdout, "Completed")
}

describe("Ctrl-C", { concurrent: true, timeout: limit }, () => {
  layer(Agent.services, { excludeTestServices: true })((it) => {
    it.effect("main job, U-4, law 3: Ctrl-C stops early reads, closes the model request, and the note never starts", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* large
        const server = yield* Server.serve(() => ({
          pieces: [
            text("I search. "),
            call(0, "search_text", { query: "the particular lamp" }),
            call(1, "list_files", {}),
            call(2, "write_note", { note: "half a note" }),
            text("And I go on speaking.\n")
          ],
          ending: "open"
        }))
        const ended = yield* agent(["x", "--dir", root, "--notes", "kept"], {
          environment: { OPENAI_BASE_URL: `${server.url}/v1` },
          interruptAt: [/»✓ list_files/]
        })
        assertStopped(ended)
        assert.deepStrictEqual(yield* server.settled, { answered: 1, left: 1 })
        assert.isFalse(yield* fs.exists(`${root}/kept`))
        assert.match(ended.stdout, /^stopping what runs; Ctrl-C again stops at once$/m)
        assert.match(
          ended.stdout,
          /^ »■ search_text {2}the particular lamp - stopped( at \d+\/3001 files)? \(.+ m?s\)$/m
        )
        assert.match(ended.stdout, /^ {3}■ model +·*░+ +.+ m?s$/m)
        assert.match(ended.stdout, /^ {2}»■ search_text the particu… +▒+ +.+ m?s$/m)
        assert.match(ended.stdout, /^ {2}»✓ list_files +█+ +.+ m?s$/m)
        assert.match(ended.stdout, /\nStopped · 1 turn · 2 calls · /)
        assert.match(
          ended.stdout,
          /\nKept: what was said and the answer of list_files\.\nNot kept: search_text \(stopped after .+\)\.\n$/
        )
      }))

    it.effect("main job, U-4: Ctrl-C also stops a run of the embedded model", () =>
      Effect.gen(function*() {
        const root = yield* large
        const ended = yield* agent(["Where is the particular lamp?", "--dir", root], { interruptAt: [/▸ search_text/] })
        assertStopped(ended)
        assert.match(ended.stdout, /^ »■ search_text {2}Where is the particular lamp\? - stopped/m)
        // The other call of the reply may not have come up yet.
        assert.match(ended.stdout, /\nStopped · 1 turn · [12] calls? · /)
        assert.match(ended.stdout, /\nNot kept: search_text \(stopped after .+\)/)
      }))

    it.effect("main job, U-4: after Ctrl-C a note that waits at the barrier never starts", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* large
        const server = yield* Server.serve(() => ({
          pieces: [
            call(0, "search_text", { query: "the particular lamp" }),
            call(1, "write_note", { note: "half a note" }),
            frame({}, "tool_calls")
          ]
        }))
        const ended = yield* agent(["x", "--dir", root, "--notes", "kept"], {
          environment: { OPENAI_BASE_URL: `${server.url}/v1` },
          interruptAt: [/‖· write_note {2}half a note - waits for search_text/]
        })
        assertStopped(ended)
        assert.isFalse(yield* fs.exists(`${root}/kept`))
        assert.match(ended.stdout, /^ {2}‖■ write_note half a note +·*┄+$/m)
        assert.match(ended.stdout, /Not kept: search_text \(stopped after .+\) and write_note \(never started\)\.\n$/)
      }))

    it.effect("main job, U-4: after Ctrl-C a written note stays whole, and the text so far is kept", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* Agent.folder({})
        const server = yield* Server.serve((_, index) =>
          index === 0
            ? { pieces: [call(0, "write_note", { note: "a whole note" }), frame({}, "tool_calls")] }
            : { pieces: [text("Let me\nthink ")], ending: "open" }
        )
        const ended = yield* agent(["x", "--dir", root, "--notes", "kept"], {
          environment: { OPENAI_BASE_URL: `${server.url}/v1` },
          interruptAt: [/Let me/]
        })
        assertStopped(ended)
        assert.deepStrictEqual(yield* server.settled, { answered: 2, left: 1 })
        assert.strictEqual(yield* fs.readFileString(`${root}/kept/notes.md`), "- a whole note\n")
        assert.match(ended.stdout, /\nLet me\n(.*\n)*think\n/)
        assert.match(ended.stdout, /\nKept: what was said and the answer of write_note\.\n$/)
      }))

    it.effect("main job: Ctrl-C before the first reply ends the agent", () =>
      Effect.gen(function*() {
        const server = yield* Server.serve(() => ({ pieces: [], ending: "open" }))
        const root = yield* Agent.folder({})
        const ended = yield* agent(["x", "--dir", root], {
          environment: { OPENAI_BASE_URL: `${server.url}/v1` },
          interruptAt: [/> x/]
        })
        assertStopped(ended)
      }))

    it.effect("main job, W-24, law 11: the third Ctrl-C ends a program that refuses to stop", () =>
      Effect.gen(function*() {
        const ended = yield* agent([], { program: stubborn, interruptAt: [/begun/, /asked/, /interrupted/] })
        assert.deepStrictEqual([ended.code, ended.signal, ended.stdout], [130, null, "begun\nasked\ninterrupted\n"])
        assert.isFalse(ended.isAnythingLeft)
      }))
  })
})
