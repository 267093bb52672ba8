/**
 * The agent killed with SIGKILL, at several places: the next start says what it finds, goes on with the run, and comes to
 * what a start that was not killed comes to.
 */
import { assert, describe, layer } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as FileSystem from "effect/FileSystem"
import * as Layer from "effect/Layer"
import { Session } from "heddle"
import { SessionStore } from "heddle/sql"
import * as Agent from "../support/agent.ts"
import { agent, type Options } from "../support/process.ts"
import * as Server from "../support/server.ts"
import { limit } from "../support/until.ts"

const frame = (delta: object, finish: string | null = null) =>
  `data: ${JSON.stringify({ id: "x", choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`
const text = (content: string) => frame({ content })
const call = (index: number, id: string, name: string, args: object) =>
  frame({ tool_calls: [{ index, id, function: { name, arguments: JSON.stringify(args) } }] })

/** A list of files, then a file and a note, then the answer. */
const replies: ReadonlyArray<Server.Answer> = [
  { pieces: [text("I look.\n"), call(0, "c0", "list_files", {}), frame({}, "tool_calls")] },
  {
    pieces: [
      text("I read, and note it.\n"),
      call(0, "c1", "read_file", { path: "src/billing.ts" }),
      call(1, "c2", "write_note", { note: "the tax rate is 0.2" }),
      frame({}, "tool_calls")
    ]
  },
  { pieces: [text("It is 0.2.\n"), frame({}, "stop")] }
]

/** What is asked for by the requests that follow one another: a reply of the list, or an answer of its own. */
type Plan = ReadonlyArray<number | Server.Answer>

const open = (...pieces: ReadonlyArray<string>): Server.Answer => ({ pieces, ending: "open" })

const note = "- the tax rate is 0.2\n"

const question = "What is the tax rate?"

/** A folder, a server that follows a plan, and the agent on both of them. The last start can be killed at a request. */
const setting = (plan: Plan, onRequest: (index: number, kill: () => void) => void = () => {}) =>
  Effect.gen(function*() {
    let kill = () => {}
    const root = yield* Agent.folder(Agent.shop)
    const sessions = yield* Agent.folder({})
    const server = yield* Server.serve((_, index) => {
      onRequest(index, kill)
      const next = plan[index] ?? { pieces: [], status: 500 }
      return typeof next === "number" ? replies[next]! : next
    })
    const start = (words: ReadonlyArray<string>, options: Options = {}) =>
      agent([...words, "--dir", root, "--notes", "kept", "--session", "s", "--sessions", sessions], {
        ...options,
        onStart: (own) => void (kill = own),
        environment: { OPENAI_BASE_URL: `${server.url}/v1` }
      })
    /** The conversation as the store has it, with the name of the folder and the port of the model left out. */
    const said = Session.load("s").pipe(
      Effect.map((kept) =>
        JSON.stringify(kept?.session.thread.messages).replaceAll(root, "ROOT").replaceAll(/127\.0\.0\.1:\d+/g, "MODEL")
      ),
      Effect.provide(SessionStore.layerSqlite({ filename: `${sessions}/sessions.db` }))
    )
    return { requests: server.requests, root, said, start }
  })

const killedAt = (request: number | undefined) => (index: number, kill: () => void): void => {
  if (index === request) kill()
}

const isKilled = ({ code, signal }: { readonly code: number | null; readonly signal: string | null }) =>
  assert.deepStrictEqual([code, signal], [null, "SIGKILL"])

/** What is said in the run that is not interrupted. */
class Uninterrupted extends Context.Service<Uninterrupted, string>()("test/Uninterrupted") {
  static readonly layer = Layer.effect(
    Uninterrupted,
    Effect.gen(function*() {
      const { requests, root, said, start } = yield* setting([0, 1, 2])
      const ended = yield* start([question])
      assert.deepStrictEqual([ended.code, ended.stderr], [0, ""])
      const fs = yield* FileSystem.FileSystem
      assert.strictEqual(yield* fs.readFileString(`${root}/kept/notes.md`), note)
      assert.strictEqual(requests.length, 3)
      return yield* said
    })
  )
}

interface Case {
  readonly plan: Plan
  readonly options?: Options
  /** The request at which the process is killed. */
  readonly killedAtRequest?: number
  /** What the next start says that it finds. */
  readonly found: ReadonlyArray<RegExp>
  /** What it finds where the reply was not whole by then, as may be on a busy machine: a tool that reads starts early. */
  readonly early?: ReadonlyArray<RegExp>
}

const cases: Readonly<Record<string, Case>> = {
  "while the model streams its first reply": {
    plan: [open(text("I look.\n")), 0, 1, 2],
    options: { killAt: /I look/ },
    found: [
      /^The last run, which began \d+ s ago, was interrupted in turn 1, before the model had replied\.$/m,
      /^ 0 turns before it are whole$/m
    ]
  },
  "while the model streams, and a tool has started early": {
    plan: [
      0,
      open(text("I read.\n"), call(0, "c1", "read_file", { path: "src/stock.ts" }), call(1, "c2", "list_files", {})),
      1,
      2
    ],
    options: { killAt: /✓ read_file/ },
    found: [
      /was interrupted in turn 2, while the model spoke/,
      /^ 1 turn before it is whole$/m,
      /read_file src\/stock\.ts - it had started early/
    ]
  },
  "while a tool reads": {
    plan: [0, 1, 2],
    options: { dieAt: "before readFile billing.ts" },
    found: [
      /^ the reply is whole, with 2 calls; the model is not asked again$/m,
      /^ {2}\? read_file src\/billing\.ts - unknown; it is tried again$/m,
      /^ {2}· write_note the tax rate is 0\.2 - untouched; it runs now$/m
    ],
    early: [/was interrupted in turn \d, while the model spoke/, /read_file src\/billing\.ts - it had started early/]
  },
  "before a note is written": {
    plan: [0, 1, 2],
    options: { dieAt: "before writeFile notes.md" },
    found: [
      /^ {2}✓ read_file src\/billing\.ts - finished; it is not run again$/m,
      /^ {2}\? write_note the tax rate is 0\.2 - unknown; it is looked up$/m
    ]
  },
  "after a note is written": {
    plan: [0, 1, 2],
    options: { dieAt: "after writeFile notes.md" },
    found: [/^ {2}\? write_note the tax rate is 0\.2 - unknown; it is looked up$/m]
  },
  "between two turns": {
    plan: [0, 1, open(), 2],
    killedAtRequest: 2,
    found: [/was interrupted in turn 3, before the model had replied\.$/m, /^ 2 turns before it are whole$/m]
  }
}

describe("the agent after SIGKILL", { concurrent: true, timeout: limit }, () => {
  layer(Layer.provideMerge(Uninterrupted.layer, Agent.services), { excludeTestServices: true })((it) => {
    for (const [where, { early, found, killedAtRequest, options, plan }] of Object.entries(cases)) {
      it.effect(
        `D-03: the start after a kill ${where} reports the cut run and ends like an uninterrupted run`,
        () =>
          Effect.gen(function*() {
            const { requests, root, said, start } = yield* setting(plan, killedAt(killedAtRequest))
            isKilled(yield* start([question], options))
            const next = yield* start([])
            assert.deepStrictEqual([next.code, next.stderr], [0, ""], next.stdout)
            const lines = early !== undefined && next.stdout.includes("while the model spoke") ? early : found
            for (const line of lines) assert.match(next.stdout, line)
            assert.include(next.stdout, "It is 0.2.")
            assert.strictEqual(yield* said, yield* Uninterrupted)
            const fs = yield* FileSystem.FileSystem
            assert.strictEqual(yield* fs.readFileString(`${root}/kept/notes.md`), note)
            assert.strictEqual(requests.length, plan.length)
          })
      )
    }

    it.effect(
      "the agent asks about an interrupted note where the notes file is too large, and the reply becomes the tool answer",
      () =>
        Effect.gen(function*() {
          const { requests, root, said, start } = yield* setting([0, 1, 2])
          const fs = yield* FileSystem.FileSystem
          const before = "- a lamp\n".repeat(120_000)
          yield* fs.makeDirectory(`${root}/kept`)
          yield* fs.writeFileString(`${root}/kept/notes.md`, before)
          isKilled(yield* start([question], { dieAt: "before writeFile notes.md" }))
          const asked = yield* start([])
          assert.deepStrictEqual([asked.code, asked.stderr], [0, ""], asked.stdout)
          assert.match(
            asked.stdout,
            /\nIt asks: The agent ended while it wrote a note, .* written\? the tax rate is 0\.2\n$/
          )
          assert.strictEqual(requests.length, 2)
          const done = yield* start(["It was not written"])
          assert.deepStrictEqual([done.code, done.stderr], [0, ""], done.stdout)
          assert.include(done.stdout, "It is 0.2.")
          assert.strictEqual(requests.length, 3)
          assert.include(yield* said, "It was not written")
          assert.strictEqual(yield* fs.readFileString(`${root}/kept/notes.md`), before)
        })
    )

    it.effect("D-03: the message of the next start follows the end of the interrupted run", () =>
      Effect.gen(function*() {
        const plan = [0, 1, open(), 2, { pieces: [text("You are welcome.\n"), frame({}, "stop")] }]
        const { requests, start } = yield* setting(plan, killedAt(2))
        isKilled(yield* start([question]))
        const next = yield* start(["Thank you"])
        assert.deepStrictEqual([next.code, next.stderr], [0, ""], next.stdout)
        assert.match(next.stdout, /The last run[^]*It is 0\.2\.[^]*You are welcome\./)
        assert.strictEqual(requests.at(-1)?.body.messages.at(-1).content, "Thank you")
      }))

    it.effect(
      "D-10: a start is refused while another process runs the session, and continues the session after a kill",
      () =>
        Effect.gen(function*() {
          const asked = yield* Deferred.make<() => void>()
          const { requests, said, start } = yield* setting([0, open(), 1, 2], (index, kill) => {
            if (index === 1) Deferred.doneUnsafe(asked, Exit.succeed(kill))
          })
          const first = yield* Effect.forkChild(start([question]))
          const kill = yield* Deferred.await(asked)
          const second = yield* start(["Hello"])
          assert.deepStrictEqual([second.code, second.signal], [1, null])
          assert.match(second.stderr, /^agent: session s: process \d+ on .* goes on with it now; wait until .*\n$/)
          kill()
          isKilled(yield* Fiber.join(first))
          const next = yield* start([])
          assert.deepStrictEqual([next.code, next.stderr], [0, ""], next.stdout)
          assert.strictEqual(yield* said, yield* Uninterrupted)
          assert.strictEqual(requests.length, 4)
        })
    )

    it.effect("--give-up abandons an interrupted run", () =>
      Effect.gen(function*() {
        const plan = [0, open(text("I read.\n")), { pieces: [text("Hello.\n"), frame({}, "stop")] }]
        const { requests, start } = yield* setting(plan)
        isKilled(yield* start([question], { killAt: /I read/ }))
        const next = yield* start(["Never mind", "--give-up"])
        assert.deepStrictEqual([next.code, next.stderr], [0, ""], next.stdout)
        assert.notInclude(next.stdout, "The last run")
        assert.strictEqual(requests.at(-1)?.body.messages.at(-1).content, "Never mind")
      }))
  })
})
