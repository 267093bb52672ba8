import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as FileSystem from "effect/FileSystem"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as PlatformError from "effect/PlatformError"
import * as Stream from "effect/Stream"
import { Event, Executor, Message, type Tool, ToolRunner } from "heddle"
import { FileProblem } from "../../scratchpad/agent/problem.ts"
import * as Tools from "../../scratchpad/agent/tools.ts"
import * as Workspace from "../../scratchpad/agent/workspace.ts"
import * as Agent from "../support/agent.ts"

const call = (name: string, args: Message.ToolCall["arguments"] = {}, id = name): Message.ToolCall =>
  Message.toolCall(id, name, args)

/** The answer to a single call. */
const answer = (root: string, name: string, args: Message.ToolCall["arguments"] = {}) =>
  Effect.map(Agent.run(root, [call(name, args)]), ({ answers }) => answers[0])

/** This machine's file system, except that reading some files is refused. */
const refusing = (pattern: RegExp) =>
  Layer.effect(
    FileSystem.FileSystem,
    Effect.map(FileSystem.FileSystem, (fs) =>
      FileSystem.make({
        ...fs,
        readFile: (path) =>
          pattern.test(path)
            ? Effect.fail(PlatformError.systemError({
              _tag: "PermissionDenied",
              module: "FileSystem",
              method: "readFile",
              pathOrDescriptor: path
            }))
            : fs.readFile(path)
      }))
  )

const files = {
  "README.md": "# Harbour\n\nShips come and go.\n",
  "src/crane.ts": "export const crane = 1\nexport const load = (crates) => crane * crates\n",
  "src/deep/dock.py": "def dock():\n  return 1\n",
  "node_modules/x/index.js": "crane\n",
  ".git/HEAD": "crane\n",
  "dist/crane.js": "crane\n",
  "logo.png": "crane\n",
  "blob.dat": "crane\0\u0001\n"
}

describe("the tools of the agent", () => {
  layer(Agent.services)((it) => {
    it.effect("main job: list_files lists written files in order, in the whole folder, a part of it, or by a glob", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(files)
        const all = yield* answer(root, "list_files")
        assert.deepStrictEqual(all, {
          total: 4,
          files: ["README.md", "blob.dat", "src/crane.ts", "src/deep/dock.py"],
          isCut: false,
          unreadable: []
        })
        assert.deepStrictEqual((yield* answer(root, "list_files", { path: "src/deep" })).files, ["src/deep/dock.py"])
        assert.deepStrictEqual((yield* answer(root, "list_files", { glob: "*.py" })).files, ["src/deep/dock.py"])
        assert.deepStrictEqual((yield* answer(root, "list_files", { glob: "src/*" })).files, ["src/crane.ts"])
        assert.deepStrictEqual((yield* answer(root, "list_files", { glob: "readme*" })).files, ["README.md"])
        assert.strictEqual((yield* answer(root, "list_files", { glob: "*.rs" })).total, 0)
      }))

    it.effect("main job: search_text finds lines by words or phrases, in the given folder and up to a limit", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(files)
        const found = yield* answer(root, "search_text", { query: "Who loads the crates?" })
        assert.strictEqual(found.matches[0].path, "src/crane.ts")
        assert.strictEqual(found.matches[0].line, 2)
        assert.deepStrictEqual(found.words, ["loads", "crates"])
        assert.strictEqual(found.searched, 3, "the blob is no text")
        const phrase = yield* answer(root, "search_text", { query: "\"come and go\"" })
        assert.deepStrictEqual(phrase.matches.map((match: { line: number }) => match.line), [3])
        const elsewhere = yield* answer(root, "search_text", { query: "crates", path: "src/deep" })
        assert.deepStrictEqual(elsewhere.matches, [])
        const limited = yield* answer(root, "search_text", { query: "crane", limit: 1 })
        assert.strictEqual(limited.matches.length, 1)
      }))

    it.effect("main job: read_file returns numbered lines from a given line, at most 200, and the total line count", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({
          "a.txt": Array.from({ length: 500 }, (_, index) => `l${index + 1}`).join("\n")
        })
        const read = yield* answer(root, "read_file", { path: "a.txt", from: 498, lines: 60 })
        assert.deepStrictEqual(read, { path: "a.txt", totalLines: 500, text: "498: l498\n499: l499\n500: l500" })
        const most = yield* answer(root, "read_file", { path: "a.txt", lines: 10_000 })
        assert.strictEqual(most.text.split("\n").length, 200)
        const past = yield* answer(root, "read_file", { path: "a.txt", from: 9999 })
        assert.strictEqual(past.text, "500: l500")
        const before = yield* answer(root, "read_file", { path: "a.txt", from: -3, lines: 1 })
        assert.strictEqual(before.text, "1: l1")
      }))

    it.effect("main job: count_lines counts a file, a folder, or the files of a glob", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(files)
        const one = yield* answer(root, "count_lines", { path: "src/crane.ts" })
        assert.deepStrictEqual([one.lines, one.files], [2, 1])
        const all = yield* answer(root, "count_lines", { path: "." })
        assert.deepStrictEqual([all.lines, all.files], [7, 3])
        assert.deepStrictEqual(all.longest[0], { path: "README.md", lines: 3 })
        const python = yield* answer(root, "count_lines", { path: ".", glob: "*.py" })
        assert.deepStrictEqual([python.lines, python.files], [2, 1])
      }))

    it.effect("main job: no path leads a tool out of the folder, neither by dots nor by links", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const outside = yield* Agent.folder({ "secret.txt": "crane\n" })
        const root = yield* Agent.folder({ "in.txt": "crane\n" })
        yield* fs.symlink(`${outside}/secret.txt`, `${root}/link.txt`)
        yield* fs.symlink(outside, `${root}/door`)
        yield* fs.symlink(`${root}/in.txt`, `${root}/alias.txt`)
        const paths = ["../secret.txt", "/etc/passwd", "link.txt", "door/secret.txt", `${outside}/secret.txt`, "a\0b"]
        for (const path of paths) {
          const read = yield* answer(root, "read_file", { path })
          assert.match(read.error, /outside of the folder/, path)
          assert.match((yield* answer(root, "count_lines", { path })).error, /outside of the folder/, path)
        }
        for (const path of ["..", "door", "/"]) {
          assert.match((yield* answer(root, "list_files", { path })).error, /outside of the folder/, path)
          assert.match(
            (yield* answer(root, "search_text", { query: "crane", path })).error,
            /outside of the folder/,
            path
          )
        }
        assert.deepStrictEqual((yield* answer(root, "list_files")).files, ["in.txt"], "links are not walked")
        assert.deepStrictEqual((yield* answer(root, "search_text", { query: "crane" })).matches.length, 1)
        assert.strictEqual((yield* answer(root, "read_file", { path: "alias.txt" })).text, "1: crane")
        assert.strictEqual((yield* answer(root, "read_file", { path: `${root}/in.txt` })).text, "1: crane")
        assert.strictEqual((yield* answer(root, "read_file", { path: "x/../in.txt" })).text, "1: crane")
      }))

    it.effect("main job: an unreadable file is reported as data, with the reason", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* Agent.folder({ "big.txt": "x".repeat(1_000_001), "blob": "a\0b", "sub/a.txt": "a" })
        yield* fs.symlink("loop", `${root}/loop`)
        const errors = new Map([
          ["nope.txt", "cannot read nope.txt: there is no such file or folder"],
          ["sub", "cannot read sub: it is a folder"],
          ["blob", "cannot read blob: it holds no text"],
          ["big.txt", "cannot read big.txt: it is larger than 1000000 bytes"],
          ["loop", "cannot read loop: too many symbolic links encountered"]
        ])
        for (const [path, error] of errors) {
          const told = yield* answer(root, "read_file", { path })
          assert.strictEqual(told.error, error)
          assert.deepInclude(told.details, { _tag: "FileProblem", path })
        }
      }))

    it.effect("main job: a file that the system refuses to read is a typed failure, and search_text and count_lines name the file", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({ "a.txt": "crane\n", "b.txt": "crane\n", "c.txt": "crane\n" })
        const refused = refusing(/b\.txt$/)
        const calls = [
          call("read_file", { path: "b.txt" }),
          call("count_lines", { path: "b.txt" }, "one"),
          call("search_text", { query: "crane" }),
          call("count_lines", { path: "." }, "all")
        ]
        const { answers, events } = yield* Agent.run(root, calls).pipe(Effect.provide(refused))
        const [read, one, search, all] = answers
        for (const told of [read, one]) {
          assert.deepStrictEqual(told, {
            error: "cannot read b.txt: permission denied",
            details: { _tag: "FileProblem", path: "b.txt", reason: "unreadable", detail: "permission denied" }
          })
        }
        assert.deepStrictEqual([search.searched, all.files], [2, 2])
        const expected = { path: "b.txt", reason: "permission denied" }
        assert.deepStrictEqual([search.unreadable, all.unreadable], [[expected], [expected]])
        const outcomes = events.filter(Event.guards.ToolExecutionCompleted)
        assert.strictEqual(outcomes.length, 4)
        for (const { result } of outcomes) {
          assert.deepStrictEqual(Tools.unreadableIn(result as Tool.Outcome), [expected])
        }
        const failure = outcomes.find((event) => event.id === "read_file")?.result
        assert.isTrue(failure?._tag === "Error" && failure.error instanceof FileProblem)
      }))

    it.effect("main job: a missing or binary file does not count as unreadable", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({ "blob": "a\0b" })
        const { events } = yield* Agent.run(root, [
          call("read_file", { path: "x" }),
          call("read_file", { path: "blob" }, "b")
        ])
        for (const { result } of events.filter(Event.guards.ToolExecutionCompleted)) {
          assert.deepStrictEqual(Tools.unreadableIn(result as Tool.Outcome), [])
        }
      }))

    it.effect("main job: search_text reports its progress, and stops between two files when it is interrupted", () =>
      Effect.gen(function*() {
        const many = Object.fromEntries(Array.from({ length: 50 }, (_, index) => [`f${index}.txt`, "crane\n"]))
        const root = yield* Agent.folder(many)
        const { events } = yield* Agent.run(root, [call("search_text", { query: "crane" })])
        const progress = events.filter(Event.guards.ToolProgress).map((event) => Tools.progressOf(event.progress))
        assert.deepStrictEqual(progress.at(-1), { done: 50, total: 50, unit: "files" })
        assert.isTrue(progress.every((step, index) => (step?.done ?? 0) > (progress[index - 1]?.done ?? 0)))
        const begun = yield* Latch.make(false)
        let reads = 0
        const counting = Layer.effect(
          FileSystem.FileSystem,
          Effect.map(FileSystem.FileSystem, (fs) =>
            FileSystem.make({
              ...fs,
              readFile: (path) => Effect.suspend(() => reads++ < 20 ? fs.readFile(path) : Effect.never)
            }))
        )
        const fiber = yield* ToolRunner.stream([call("search_text", { query: "crane" })], Tools.all).pipe(
          Stream.filter((event) => event._tag === "ToolProgress"),
          Stream.runForEach(() => Effect.andThen(begun.open, Effect.never)),
          Effect.provide(Agent.workspace(root)),
          Effect.provide(counting),
          Effect.forkChild
        )
        yield* begun.await
        yield* Fiber.interrupt(fiber)
        assert.isTrue(Exit.hasInterrupts(yield* Fiber.await(fiber)))
        assert.isTrue(reads > 0 && reads < 50, `${reads} of 50 files were read`)
      }))

    it.effect("main job, U-3: write_note runs alone, and the reading tools overlap", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({ "a.txt": "a\n" })
        const bothRead = yield* Latch.make(false)
        const running = new Set<string>()
        const seen: Array<string> = []
        const watched = Executor.layer({
          execute: (tool, args, call) =>
            Effect.gen(function*() {
              running.add(call.id)
              seen.push([...running].join("+"))
              if (running.size === 2) yield* bothRead.open
              if (tool.readOnly) yield* bothRead.await
              const outcome = yield* Executor.direct.execute(tool, args, call)
              running.delete(call.id)
              return outcome
            })
        })
        const calls = [
          call("read_file", { path: "a.txt" }, "read"),
          call("list_files", {}, "list"),
          call("write_note", { note: "n" }, "note")
        ]
        const { answers } = yield* Agent.run(root, calls, "kept").pipe(Effect.provide(watched))
        assert.deepStrictEqual(seen, ["read", "read+list", "note"])
        assert.strictEqual(answers[2].path, `${root}/kept/notes.md`)
      }))

    it.effect("main job: ask_user ends the turn with the question", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({})
        const { halt } = yield* ToolRunner.run([call("ask_user", { question: "Which dock?" })], Tools.all).pipe(
          Effect.provide(Agent.workspace(root))
        )
        assert.deepStrictEqual(halt, {
          haltedReason: "ask_user",
          pendingQuestion: "Which dock?",
          pendingToolCallId: "ask_user",
          askUserOpts: []
        })
      }))

    it.effect("main job: a workspace refuses a missing folder and a file in place of a folder", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({ "a.txt": "" })
        const open = (folder: string) => Effect.flip(Effect.provide(Workspace.Workspace, Agent.workspace(folder)))
        assert.strictEqual(
          (yield* open(`${root}/none`)).message,
          `cannot read ${root}/none: there is no such file or folder`
        )
        assert.strictEqual((yield* open(`${root}/a.txt`)).message, `cannot read ${root}/a.txt: it is no folder`)
      }))
  })

  layer(Agent.services)((it) => {
    it.effect("main job: the subject and the summary of a call are one line", () =>
      Effect.gen(function*() {
        assert.strictEqual(Tools.subject("read_file", { path: "a.ts", from: 3 }), "a.ts:3")
        assert.strictEqual(Tools.subject("search_text", { query: "q", path: "src", glob: "*.ts" }), "src *.ts: q")
        assert.strictEqual(Tools.subject("write_note", { note: "n" }), "n")
        assert.strictEqual(Tools.subject("count_lines", { path: "." }), "")
        const root = yield* Agent.folder(files)
        const { events } = yield* Agent.run(root, [
          call("list_files"),
          call("search_text", { query: "crates" }),
          call("read_file", { path: "README.md" }),
          call("count_lines", { path: "src" }),
          call("write_note", { note: "n" })
        ], "kept")
        const summaries = events.filter(Event.guards.ToolExecutionCompleted).flatMap(({ id, result }) =>
          result._tag === "Ok" ? [[id, Tools.summary(result.value)]] : []
        )
        assert.deepStrictEqual(Object.fromEntries(summaries), {
          list_files: "4 files",
          search_text: "1 match in 3 files",
          read_file: "3 lines",
          count_lines: "4 lines in 2 files",
          write_note: `written to ${root}/kept/notes.md`
        })
      }))
  })
})
