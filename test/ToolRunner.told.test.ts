/** What the model reads of a call that failed, on every way to it, and what it never reads. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as HttpClientError from "effect/http/HttpClientError"
import * as HttpClientRequest from "effect/http/HttpClientRequest"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import * as SchemaGetter from "effect/SchemaGetter"
import * as Stream from "effect/Stream"
import { Chat, Encoder, Message, Policy, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import { elapsed } from "./support/runs.ts"

const secret = "sk-ANTIQUE-LOOM"

class NotFound extends Schema.TaggedError<NotFound>()("NotFound", { path: Schema.String }) {}

class Lost extends Data.TaggedError("Lost")<{ readonly path: string; readonly cause: unknown }> {}

/** What the only call of a tool is answered with, awaited. */
const contentOf = <E, R>(tool: Tool.Tool<string, any, any, E, R>, options: ToolRunner.Options = {}) =>
  Effect.map(
    ToolRunner.run([Message.toolCall("c0", tool.name)], [tool], options),
    ({ messages }) => String(messages[0]?.content)
  )

const failing = <E>(reason: E) => Tool.make("t", { parameters: {}, handler: () => Effect.fail(reason) })

const parsed = (content: string): unknown => JSON.parse(content)

describe("ToolRunner: what a handler reports", () => {
  it.effect("M-10: a tagged error's fields are told, awaited and streamed, whatever the error policy says", () =>
    Effect.gen(function*() {
      const expected = { error: "NotFound", details: { path: "/a" } }
      const tool = failing(new NotFound({ path: "/a" }))
      const decide = () => Effect.succeed(Tool.ErrorDecision.halt)
      for (const policy of [Policy.standard, Policy.allm, Policy.falai]) {
        for (const onToolError of ["continue", "halt", decide] as const) {
          assert.deepStrictEqual(parsed(yield* contentOf(tool, { onToolError, policy })), expected)
          const events = yield* Stream.runCollect(
            ToolRunner.stream([Message.toolCall("c0", "t")], [tool], { onToolError, policy })
          )
          const tail = events.at(-1)
          const content = tail?._tag === "ToolHalt" || tail?._tag === "ToolResultEncoded" ? tail.content : ""
          assert.deepStrictEqual(parsed(String(content)), expected)
        }
      }
    }))

  it.effect("M-10: a run and the executor of calls tell it alike", () =>
    Effect.gen(function*() {
      const tool = failing(new Lost({ path: "/a", cause: new Error(secret) }))
      const model = Script.layer([[Script.toolCall("c0", "t", {}), Script.finish("tool_calls")], [
        Script.text("sorry"),
        Script.finish("stop")
      ]])
      const { steps } = yield* Chat.run("Go", { tools: [tool] }).pipe(Effect.provide(model))
      const expected = { error: "Lost", details: { path: "/a" } }
      assert.deepStrictEqual(parsed(String(steps[0]?.toolResults[0]?.content)), expected)
      const updates = yield* Effect.scoped(Effect.gen(function*() {
        const executor = yield* StreamingToolExecutor.make()
        yield* executor.addTool(Message.toolCall("c0", "t"), tool)
        yield* executor.noMoreCalls
        return yield* Stream.runCollect(executor.remainingResults)
      }))
      assert.deepStrictEqual(parsed(String(updates[0]?.result?.content)), expected)
      assert.strictEqual(updates[0]?.result?.error, "Lost")
    }))

  it.effect("M-10: no way of failing tells a key", () =>
    Effect.gen(function*() {
      class Login extends Schema.TaggedError<Login>()("Login", {
        user: Schema.String,
        password: Schema.Redacted(Schema.String),
        cause: Schema.Defect()
      }) {}
      const http = new HttpClientError.HttpClientError({
        reason: new HttpClientError.TransportError({
          request: HttpClientRequest.get(`https://api.test/v1?key=${secret}`, { headers: { authorization: secret } }),
          cause: new Error(secret)
        })
      })
      const login = new Login({ user: "ada", password: Redacted.make(secret), cause: new Error(secret) })
      const reasons = [
        http,
        login,
        new Lost({ path: "/a", cause: secret }),
        Object.assign(new Error("no"), { config: { headers: { authorization: secret } }, response: secret }),
        new Error(`GET https://api.test/v1?api_key=${secret} failed`)
      ]
      const said = {
        json: Encoder.json,
        allm: Encoder.allm,
        falai: Encoder.falai,
        none: { encode: () => Effect.fail(0) }
      }
      for (const encoder of Object.values(said)) {
        for (const reason of reasons) {
          const thrown = Tool.make("t", {
            parameters: {},
            handler: () => Effect.tryPromise(() => Promise.reject(reason))
          })
          const declared = Tool.make("t", {
            parameters: {},
            failure: Login,
            handler: () => Effect.fail(reason as Login)
          })
          for (const tool of [failing(reason), thrown, declared]) {
            assert.notInclude(yield* contentOf(tool).pipe(Effect.provide(Encoder.layer(encoder))), secret)
          }
        }
      }
    }))

  it.effect("M-10: a tool's failure schema says how its failures are told, and what does not fit it is told all the same", () =>
    Effect.gen(function*() {
      class Names extends Context.Service<Names, { readonly of: (id: number) => string }>()("test/Names") {}
      const Missing = Schema.Struct({ _tag: Schema.Literal("Missing"), user: Schema.Finite }).pipe(
        Schema.encodeTo(Schema.Struct({ _tag: Schema.Literal("Missing"), who: Schema.String, nested: Schema.Json }), {
          decode: SchemaGetter.transform(() => ({ _tag: "Missing" as const, user: 0 })),
          encode: SchemaGetter.transformEffect(({ _tag, user }) =>
            Effect.map(Names, (names) => ({ _tag, who: names.of(user), nested: { ids: [user] } }))
          )
        })
      )
      const asked: Array<unknown> = []
      const onToolError = (_call: Message.ToolCall, error: unknown) =>
        Effect.sync(() => {
          asked.push(error)
          return Tool.ErrorDecision.halt
        })
      const tool = (user: unknown) =>
        Tool.make("t", {
          parameters: {},
          failure: Missing,
          handler: () => Effect.fail({ _tag: "Missing" as const, user: user as number })
        })
      const content = (user: unknown) =>
        contentOf(tool(user), { onToolError }).pipe(Effect.provideService(Names, { of: (id) => `user ${id}` }))
      assert.deepStrictEqual(parsed(yield* content(7)), {
        error: "Missing",
        details: { who: "user 7", nested: { ids: [7] } }
      })
      assert.deepStrictEqual(parsed(yield* content("seven")), { error: "Missing", details: { user: "seven" } })
      assert.deepStrictEqual(asked, [{ _tag: "Missing", user: 7 }, { _tag: "Missing", user: "seven" }])
    }))

  it.effect("M-10: an error with a message keeps it where the schema does not write it", () =>
    Effect.gen(function*() {
      class Busy extends Schema.TaggedError<Busy>()("Busy", { port: Schema.Finite }) {
        override get message() {
          return `port ${this.port} is taken`
        }
      }
      const expected = { error: "port 80 is taken", details: { _tag: "Busy", port: 80 } }
      const handler = () => Effect.fail(new Busy({ port: 80 }))
      assert.deepStrictEqual(parsed(yield* contentOf(Tool.make("t", { parameters: {}, handler }))), expected)
      assert.deepStrictEqual(
        parsed(yield* contentOf(Tool.make("t", { parameters: {}, failure: Busy, handler }))),
        expected
      )
    }))
})

describe("ToolRunner: what a model reads of the runtime's own errors", () => {
  it.effect("M-14: a timeout says how long the call had, by the tool's own limit or the run's", () =>
    Effect.gen(function*() {
      const never = (options: { readonly timeout?: Duration.Input }) =>
        Tool.make("t", { ...options, parameters: {}, handler: () => Effect.never })
      const rows = [
        [never({}), { toolTimeout: 50 }, "timed out after 50 ms"],
        [never({ timeout: "2 seconds" }), { toolTimeout: 50 }, "timed out after 2000 ms"],
        [never({}), {}, "timed out after 30000 ms"]
      ] as const
      for (const [tool, options, words] of rows) {
        const { value } = yield* elapsed(contentOf(tool, options))
        assert.deepStrictEqual(parsed(value), { error: `tool error (t): timeout: ${words}`, code: "timeout" })
      }
      const slow = { encode: () => Effect.never }
      const { value } = yield* elapsed(
        contentOf(Tool.make("t", { parameters: {}, handler: () => Effect.void }), { toolTimeout: 50 }).pipe(
          Effect.provide(Encoder.layer(slow))
        )
      )
      assert.deepStrictEqual(parsed(value), { error: "writing the result timed out after 50 ms" })
    }))

  it.effect("M-14: a cancelled answer has its code, whatever the stop cut off", () =>
    Effect.gen(function*() {
      const boom = Tool.make("t", { parameters: {}, handler: () => Effect.die("kaboom") })
      const never = Tool.make("t", { parameters: {}, handler: () => Effect.never })
      const deaf = Tool.make("t", { parameters: {}, handler: () => Effect.uninterruptible(Effect.never) })
      const undecoded: Tool.Any = { ...never, parameters: { jsonSchema: {}, decode: () => Effect.never } }
      const stuck = (_call: Message.ToolCall, _error: unknown) => Effect.never
      const unwritten = { encode: () => Effect.never }
      const rows = [
        [boom, stuck, Encoder.json],
        [boom, "continue", unwritten],
        [never, "halt", unwritten],
        [never, "continue", Encoder.json],
        [deaf, "continue", Encoder.json],
        [undecoded, "continue", Encoder.json]
      ] as const
      for (const [tool, onToolError, encoder] of rows) {
        const { value } = yield* elapsed(
          contentOf(tool, { onToolError, cancel: Effect.sleep(1), grace: 10 }).pipe(
            Effect.provide(Encoder.layer(encoder))
          )
        )
        const { code, error } = parsed(value) as { readonly code: string; readonly error: string }
        assert.strictEqual(code, "cancelled")
        assert.include(error, "cancelled")
      }
    }))

  it.effect("M-14: the name of an error stands in for a message it does not have", () =>
    Effect.gen(function*() {
      for (const policy of [Policy.standard, Policy.allm, Policy.falai]) {
        assert.deepStrictEqual(parsed(yield* contentOf(failing(new Error("")), { policy })), { error: "Error" })
        assert.deepStrictEqual(parsed(yield* contentOf(failing(new TypeError("")), { policy })), { error: "TypeError" })
      }
    }))
})
