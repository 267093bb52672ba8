import { assert, describe, it } from "@effect/vitest"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import { Adapter, type Event, Message, Thread } from "heddle"
import * as Failure from "../../scratchpad/agent/failure.ts"
import * as Settings from "../../scratchpad/agent/settings.ts"

const choose = (environment: Readonly<Record<string, string>>, flag?: string) =>
  Effect.flatMap(Settings.environment, (found) => Settings.chooseModel(found, Option.fromUndefinedOr(flag))).pipe(
    Effect.provide(ConfigProvider.layer(ConfigProvider.fromUnknown(environment)))
  )

const embedded: Settings.Model = { _tag: "Embedded" }
const server: Settings.Model = { _tag: "Server", name: "m", baseUrl: "http://host/v1", key: Option.none() }

const step = (answers: ReadonlyArray<Message.Message>) =>
  ({ toolResults: answers }) as unknown as Event.ChatResult["steps"][number]
const good = Message.tool("a", "fine")
const bad = { ...Message.tool("b", "{\"error\":\"cannot read x: \\\"x\\\" is gone\"}"), isError: true }

describe("Settings", () => {
  it.effect("main job: without a key or an address it is the embedded model", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* choose({}), embedded)
      assert.deepStrictEqual(yield* choose({ OPENAI_API_KEY: " ", OPENAI_BASE_URL: "" }), embedded)
      assert.deepStrictEqual(yield* choose({ OPENAI_MODEL: "m" }), embedded)
      assert.deepStrictEqual(yield* choose({ OPENAI_API_KEY: "k" }, "embedded"), embedded)
    }))

  it.effect("main job: a key, or the address of a server that needs none, picks a real one", () =>
    Effect.gen(function*() {
      const own = yield* choose({ OPENAI_API_KEY: "k" })
      assert.isTrue(own._tag === "Server" && own.baseUrl === "https://api.openai.com/v1")
      assert.strictEqual(own._tag === "Server" && Redacted.value(Option.getOrThrow(own.key)), "k")
      const home = yield* choose({ OPENAI_BASE_URL: "http://localhost:11434/v1", OPENAI_MODEL: "qwen" })
      assert.deepStrictEqual(home, {
        _tag: "Server",
        name: "qwen",
        baseUrl: "http://localhost:11434/v1",
        key: Option.none()
      })
      const flagged = yield* choose({ OPENAI_API_KEY: "k", OPENAI_MODEL: "qwen" }, "llama")
      assert.strictEqual(flagged._tag === "Server" && flagged.name, "llama")
    }))

  it.effect("main job: a setting that cannot be used is named", () =>
    Effect.gen(function*() {
      const message = (environment: Readonly<Record<string, string>>, flag?: string) =>
        Effect.map(Effect.flip(choose(environment, flag)), (error) => error.message)
      assert.match(yield* message({ OPENAI_BASE_URL: "localhost" }), /^OPENAI_BASE_URL: localhost is no http address$/)
      assert.match(yield* message({}, "gpt"), /^--model gpt: it needs OPENAI_API_KEY/)
    }))
})

describe("Failure", () => {
  const result = (outcome: Event.Outcome, steps: ReadonlyArray<Event.ChatResult["steps"][number]> = []) => ({
    outcome,
    steps,
    thread: Thread.empty
  })

  it("main job: an answer, and a question to the user, are no failure", () => {
    const ask: Event.Outcome = { _tag: "AskUser", pendingQuestion: "?", pendingToolCallId: "a", askUserOpts: [] }
    assert.isUndefined(Failure.ofResult(result({ _tag: "Completed" }, [step([good, bad]), step([])]), [], embedded))
    assert.isUndefined(Failure.ofResult(result(ask), [], embedded))
  })

  it("main job: an answer that leaves out unreadable files is no whole answer", () => {
    const files = [{ path: "a", reason: "permission denied" }, { path: "a", reason: "again" }, {
      path: "b",
      reason: "x"
    }]
    assert.strictEqual(
      Failure.ofResult(result({ _tag: "Completed" }, [step([good])]), files, embedded),
      "cannot read a: permission denied (and 1 more)"
    )
  })

  it("main job: an answer after nothing but failed calls rests on nothing", () => {
    const completed = result({ _tag: "Completed" }, [step([good]), step([bad, bad]), step([])])
    assert.strictEqual(Failure.ofResult(completed, [], embedded), "cannot read x: \"x\" is gone")
  })

  it("main job: every other end is told in one line", () => {
    const error = new Adapter.AdapterError({ reason: "rate_limited", detail: "slow\ndown\u001b[2J" })
    const failed: ReadonlyArray<readonly [Event.Outcome, RegExp]> = [
      [
        { _tag: "Failed", error },
        /^the model server at http:\/\/host\/v1 wants fewer requests; try again later: slow down/
      ],
      [{ _tag: "MaxTurns", maxTurns: 12 }, /^there was no answer after 12 turns$/],
      [{ _tag: "Cancelled" }, /without an answer/],
      [{ _tag: "Failed", error: { odd: true } }, /^\{"odd":true\}$/],
      [{ _tag: "Failed", error: new Error("x".repeat(2000)) }, /^x{300} …$/]
    ]
    for (const [outcome, line] of failed) {
      const told = Failure.ofResult(result(outcome), [], server) ?? ""
      assert.match(told, line)
      assert.notMatch(told, /\p{Cc}/u)
    }
  })
})
