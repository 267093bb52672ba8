import { assert, describe, it, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import * as Option from "effect/Option"
import { Journal, Session } from "heddle"
import * as Failure from "../../scratchpad/agent/failure.ts"
import * as Sessions from "../../scratchpad/agent/session.ts"
import * as Settings from "../../scratchpad/agent/settings.ts"
import * as Agent from "../support/agent.ts"
import { agent } from "../support/process.ts"
import * as Server from "../support/server.ts"
import { limit } from "../support/until.ts"

describe("sessions of the agent", { timeout: limit }, () => {
  layer(Agent.services, { excludeTestServices: true })((it) => {
    it.effect("N-40: the agent creates a session folder for its owner only, and leaves the mode of an existing folder", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const existing = yield* Agent.folder({})
        yield* fs.chmod(existing, 0o755)
        const open = (folder: string) =>
          Effect.flatMap(Session.Store, (store) => store.version("s")).pipe(
            Effect.provide(Sessions.layer({ name: "s", folder }), { local: true })
          )
        const modeOf = (path: string) => Effect.map(fs.stat(path), ({ mode }) => (mode & 0o777).toString(8))
        yield* open(`${existing}/new/deep`)
        yield* open(existing)
        const paths = ["new", "new/deep", "new/deep/sessions.db", "."].map((path) => `${existing}/${path}`)
        assert.deepStrictEqual(yield* Effect.forEach(paths, modeOf), ["700", "700", "600", "755"])
      }))

    it.effect(
      "L-scenarios: a later start answers the question of the first start, and the history continues",
      () =>
        Effect.gen(function*() {
          const root = yield* Agent.folder(Agent.shop)
          const kept = ["--dir", root, "--session", "lamps", "--sessions", `${yield* Agent.folder({})}/own`]
          const first = yield* agent(["What is this?", ...kept])
          assert.deepStrictEqual([first.code, first.stderr], [0, ""])
          assert.include(first.stdout, "session lamps begins")
          const still = yield* agent(kept)
          assert.match(still.stdout, /after 4 messages\n\? Which word .*\n\nIt asks: Which word .*\n$/)
          const second = yield* agent(["tax", "rate", ...kept])
          assert.deepStrictEqual([second.code, second.stderr], [0, ""])
          assert.match(second.stdout, /The best match is src\/billing\.ts:3/)
          const third = yield* agent(["How many lines does src/stock.ts have?", ...kept])
          assert.match(third.stdout, /session lamps goes on after 1\d messages/)
        })
    )

    it.effect(
      "L-scenarios: the start after Ctrl-C continues the session, and the model receives the earlier messages",
      () =>
        Effect.gen(function*() {
          const root = yield* Agent.folder({})
          const bodies: Array<string> = []
          const server = yield* Server.serve((request, index) => {
            bodies.push(JSON.stringify(request))
            const text = `data: {"id":"x","choices":[{"index":0,"delta":{"content":"Let me\\nthink "}}]}\n\n`
            return index === 0 ? { pieces: [text], ending: "open" } : { pieces: [text, "data: [DONE]\n\n"] }
          })
          const environment = { OPENAI_BASE_URL: `${server.url}/v1` }
          const kept = ["--dir", root, "--session", "s", "--sessions", root]
          const stopped = yield* agent(["first words", ...kept], { environment, interruptAt: [/Let me/] })
          assert.strictEqual(stopped.code, 130)
          const next = yield* agent(["second words", ...kept], { environment })
          assert.match(next.stdout, /session s goes on after \d messages/)
          assert.match(bodies.at(-1) ?? "", /first words.*second words/)
        })
    )
  })

  it.effect("the agent refuses an invalid session name and a session folder without a name, and has a default folder per platform", () =>
    Effect.gen(function*() {
      const machine = { platform: "linux", home: "/h", xdgDataHome: Option.none(), localAppData: Option.none() }
      const choose = (session?: string, sessions?: string) =>
        Settings.choosePlace(machine, {
          session: Option.fromUndefinedOr(session),
          sessions: Option.fromUndefinedOr(sessions)
        })
      for (const name of ["", " ", "..", "../x", "a/b", "a\\b", ".x", "-x", "a\0b", "a b", "x".repeat(65)]) {
        assert.strictEqual((yield* Effect.flip(choose(name))).setting, "--session", name)
      }
      assert.strictEqual((yield* Effect.flip(choose(undefined, "/d"))).setting, "--sessions /d")
      assert.isUndefined(yield* choose())
      assert.deepStrictEqual(yield* choose("a.b-1", "/d"), { name: "a.b-1", folder: "/d" })
      assert.deepStrictEqual(yield* choose("é"), { name: "é", folder: "/h/.local/share/heddle-agent/sessions" })
      const own = (over: Partial<Settings.Machine>) => Settings.ownFolder({ ...machine, ...over })
      assert.strictEqual(own({ xdgDataHome: Option.some("/x") }), "/x/heddle-agent/sessions")
      assert.strictEqual(own({ xdgDataHome: Option.some("x") }), "/h/.local/share/heddle-agent/sessions")
      assert.strictEqual(own({ platform: "darwin" }), "/h/Library/Application Support/heddle-agent/sessions")
      assert.strictEqual(
        own({ platform: "win32", localAppData: Option.some("C:\\l") }),
        "C:\\l\\heddle-agent\\sessions"
      )
    }))

  it("a run that cannot be resumed is reported in one line with --give-up", () => {
    const error = new Session.ResumeError({ reason: "tool_missing", id: "s", detail: "there is no tool x" })
    assert.match(Failure.line(error, { _tag: "Embedded" }), /^session "s" cannot be resumed: .*--give-up/)
  })

  it("a start that loses a race reports the conflict in one line", () => {
    const line = Failure.line(new Journal.SessionConflict({ id: "s", expected: 1, actual: 2 }), { _tag: "Embedded" })
    assert.match(line, /^session s: another start has gone on with it meanwhile.*start again/)
  })
})
