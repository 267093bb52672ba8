import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as FileSystem from "effect/FileSystem"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import { Event, Message, type Tool, ToolRunner } from "heddle"
import * as Tools from "../../scratchpad/agent/tools.ts"
import * as Workspace from "../../scratchpad/agent/workspace.ts"
import * as Agent from "../support/agent.ts"

const note = (text: string, id = "note"): Message.ToolCall => Message.toolCall(id, "write_note", { note: text })

/** What the model reads of a note. */
const keep = (root: string, text: string, notes?: string) =>
  Effect.map(Agent.run(root, [note(text)], notes), ({ answers }) => answers[0])

/** Every file of a folder, the hidden ones too. */
const filesIn = (root: string) => FileSystem.FileSystem.use((fs) => fs.readDirectory(root, { recursive: true }))

/** This machine's file system, except that a write waits between its two halves. */
const halting = (begun: Latch.Latch, goOn: Latch.Latch) =>
  Layer.effect(
    FileSystem.FileSystem,
    Effect.map(FileSystem.FileSystem, (fs) =>
      FileSystem.make({
        ...fs,
        writeFile: (path, data, options) =>
          fs.writeFile(path, data.subarray(0, 3), options).pipe(
            Effect.andThen(begun.open),
            Effect.andThen(goOn.await),
            Effect.andThen(fs.writeFile(path, data.subarray(3), options))
          )
      }))
  )

describe("the notes of the agent", () => {
  layer(Agent.services)((it) => {
    it.effect("main job: write_note writes nothing without a folder named by the user, and returns the planned note", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({ "a.txt": "a\n" })
        for (const notes of [undefined, "", "  "]) {
          assert.deepStrictEqual(yield* keep(root, "buy\n lamps", notes), {
            note: "- buy lamps",
            isWritten: false,
            reason: "the user has named no folder for notes (--notes)"
          })
        }
        assert.deepStrictEqual(yield* filesIn(root), ["a.txt"])
      }))

    it.effect("main job: write_note writes each note once, as one line of notes.md in the named folder, and nothing else", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* Agent.folder({ "a.txt": "a\n" })
        const path = `${root}/kept/notes.md`
        assert.deepStrictEqual(yield* keep(root, "first", "kept"), { note: "- first", isWritten: true, path })
        yield* keep(root, "second\n- third", "kept")
        assert.strictEqual(yield* fs.readFileString(path), "- first\n- second - third\n")
        assert.deepStrictEqual(yield* keep(root, " first ", "kept"), {
          note: "- first",
          isWritten: false,
          path,
          reason: "it is there already"
        })
        assert.strictEqual(yield* fs.readFileString(path), "- first\n- second - third\n")
        assert.deepStrictEqual((yield* filesIn(root)).toSorted(), ["a.txt", "kept", "kept/notes.md"])
        assert.match((yield* keep(root, "", "kept")).error, /invalid_arguments/)
      }))

    it.effect("main job: a note starts a new line after an unterminated one", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* Agent.folder({ "notes.md": "# Mine\nopen" })
        yield* keep(root, "first", ".")
        assert.strictEqual(yield* fs.readFileString(`${root}/notes.md`), "# Mine\nopen\n- first\n")
        assert.deepStrictEqual(yield* filesIn(root), ["notes.md"])
      }))

    it.effect("main job: write_note writes into a folder outside the workspace when the user names it", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* Agent.folder({})
        const elsewhere = yield* Agent.folder({})
        yield* keep(root, "there", `${elsewhere}/deep/kept`)
        assert.strictEqual(yield* fs.readFileString(`${elsewhere}/deep/kept/notes.md`), "- there\n")
        assert.deepStrictEqual(yield* filesIn(root), [])
      }))

    it.effect("main job: no link leads a note out of the folder or into another file", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const outside = yield* Agent.folder({ "notes.md": "mine\n" })
        const root = yield* Agent.folder({ "a/notes.md/x": "", "real/x": "" })
        yield* fs.symlink(outside, `${root}/door`)
        yield* fs.symlink(`${root}/real`, `${root}/inside`)
        yield* fs.symlink(`${outside}/notes.md`, `${root}/real/notes.md`)
        yield* fs.makeDirectory(`${root}/dangling`)
        yield* fs.symlink(`${outside}/new.md`, `${root}/dangling/notes.md`)
        const problems = [
          ["door", "a link leads out of the folder"],
          ["door/deep/er", "a link leads out of the folder"],
          ["real", "it is a link"],
          ["inside", "it is a link"],
          ["dangling", "it is a link"],
          ["a", "it is no file"]
        ] as const
        for (const [folder, detail] of problems) {
          const path = `${root}/${folder}`
          assert.deepStrictEqual(yield* keep(root, "x", folder), {
            error: `cannot write ${path}: ${detail}`,
            details: { _tag: "FileProblem", path, reason: "unwritable", detail }
          })
        }
        assert.deepStrictEqual(yield* filesIn(outside), ["notes.md"])
        assert.strictEqual(yield* fs.readFileString(`${outside}/notes.md`), "mine\n")
      }))

    it.effect("main job: a note that the system refuses to write is reported as an unwritable file", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({ "a.txt": "a\n" })
        const { answers, events } = yield* Agent.run(root, [note("x")], "a.txt/kept")
        assert.match(answers[0].error, /^cannot write .*a\.txt\/kept: not a directory$/)
        const outcome = events.find(Event.guards.ToolExecutionCompleted)?.result as Tool.Outcome
        assert.deepStrictEqual(Tools.unreadableIn(outcome), [
          { path: `${root}/a.txt/kept`, reason: "not a directory", isForWriting: true }
        ])
      }))

    it.effect("main job: an interruption waits until a started note is written whole", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* Agent.folder({})
        const [begun, goOn] = [yield* Latch.make(false), yield* Latch.make(false)]
        const fiber = yield* Workspace.Workspace.use((workspace) => workspace.note("a whole line")).pipe(
          Effect.provide(Agent.workspace(root, "kept")),
          Effect.provide(halting(begun, goOn)),
          Effect.forkChild
        )
        yield* begun.await
        fiber.interruptUnsafe()
        yield* Effect.yieldNow
        assert.isUndefined(fiber.pollUnsafe())
        assert.strictEqual(yield* fs.readFileString(`${root}/kept/notes.md`), "- a")
        yield* goOn.open
        yield* Fiber.await(fiber)
        assert.strictEqual(yield* fs.readFileString(`${root}/kept/notes.md`), "- a whole line\n")
      }))

    it.effect("R-398: a soft stop lets a started note finish, and starts no other note", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* Agent.folder({})
        const [begun, goOn, stop] = [yield* Latch.make(false), yield* Latch.make(false), yield* Latch.make(false)]
        const calls = [note("one", "a"), note("two", "b")]
        const fiber = yield* ToolRunner.run(calls, Tools.all, { cancel: stop.await }).pipe(
          Effect.provide(Agent.workspace(root, "kept")),
          Effect.provide(halting(begun, goOn)),
          Effect.forkChild
        )
        yield* begun.await
        yield* stop.open
        yield* Effect.yieldNow
        yield* goOn.open
        const { messages } = yield* Fiber.join(fiber)
        assert.deepStrictEqual(messages.map((message) => message.isError === true), [false, true])
        assert.match(Message.text(messages[1]!), /not run: /)
        assert.strictEqual(yield* fs.readFileString(`${root}/kept/notes.md`), "- one\n")
      }))
  })
})
