/** What the model reads of a failed call, whichever way it failed, and what it never reads. */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as HttpClientError from "effect/http/HttpClientError"
import * as HttpClientRequest from "effect/http/HttpClientRequest"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as SchemaGetter from "effect/SchemaGetter"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Chat, Encoder, Event, Executor, Message, Policy, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import { elapsed } from "../support/runs.ts"

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

describe("ToolRunner: a reported failure", () => {
  it.effect("M-10: the model reads the fields of a tagged error, awaited and streamed, whatever the error policy decides", () =>
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

  it.effect("M-10: a run of Chat and a StreamingToolExecutor report the same failure", () =>
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

  it.effect("M-10: no failure reveals a key", () =>
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

  it.effect("M-10: no failure or crash reveals a key in a list or in data, at any depth, in a text or in an event", () =>
    Effect.gen(function*() {
      const url = `https://me:${secret}@h.test/x?api_key=${secret}`
      class Http extends Error {
        readonly request = { url, headers: { authorization: `Bearer ${secret}` } }
      }
      class Held extends Schema.TaggedError<Held>()("Held", {
        inner: Schema.Defect(),
        all: Schema.Array(Schema.Defect())
      }) {}
      const err = new Http(`GET ${url} failed`)
      const real = new HttpClientError.HttpClientError({
        reason: new HttpClientError.TransportError({
          request: HttpClientRequest.get(`https://h.test/x?q=${secret}`, { headers: { authorization: secret } }),
          cause: err
        })
      })
      let deep: unknown = err
      for (let depth = 0; depth < 50_000; depth++) deep = depth % 2 === 0 ? [deep] : { deep, err }
      const cyclic: Record<string, unknown> = { err }
      cyclic["self"] = [cyclic]
      const hostile = [
        new Proxy({}, {
          ownKeys: () => {
            throw err
          }
        }),
        err
      ]
      const around = (e: unknown): ReadonlyArray<unknown> => [
        [e],
        { step: 1, error: e },
        { _tag: "O", e },
        { message: "no", inner: e },
        { a: [{ b: { c: e } }] },
        [Result.fail(e), Exit.fail(e), Cause.fail(e), Cause.die(e), Option.some(e)],
        Result.fail(e),
        Cause.fail(e),
        new Map([["e", e]]),
        new AggregateError([e], "all failed"),
        new Held({ inner: e, all: [e, [e]] }),
        [new Held({ inner: { e }, all: [] })],
        new Cause.UnknownError([e]),
        { toJSON: () => ({ e }) }
      ]
      const reasons = [
        ...around(err),
        ...around(real),
        deep,
        cyclic,
        hostile,
        Array.from({ length: 5_000 }, () => err),
        [real.reason.request],
        { _tag: "O", config: { headers: { Authorization: secret, "x-api-key": secret } } },
        `GET ${url} failed`,
        { [url]: url }
      ]
      const encoders = [Encoder.json, Encoder.allm, Encoder.falai, { encode: () => Effect.fail(0) }]
      for (const reason of reasons) {
        const tools = [
          failing(reason),
          Tool.make("t", { parameters: {}, handler: (_args, call) => call.promise(() => Promise.reject(reason)) }),
          Tool.make("t", { parameters: {}, failure: Schema.Defect(), handler: () => Effect.fail(reason) }),
          Tool.make("t", { parameters: {}, handler: () => Effect.die(reason) })
        ]
        for (const tool of tools) {
          for (const encoder of encoders) {
            const policy = { ...Policy.standard, crashes: "told" as const }
            const content = yield* contentOf(tool, { policy }).pipe(Effect.provide(Encoder.layer(encoder)))
            assert.notInclude(content, secret)
            assert.isAtMost(content.length, 8_192 * 2)
          }
        }
        const events = yield* Stream.runCollect(ToolRunner.stream([Message.toolCall("c0", "t")], tools.slice(3)))
        const completed = events.find((event) => event._tag === "ToolExecutionCompleted")
        assert.isDefined(completed?.cause)
        assert.notInclude(JSON.stringify(Event.toWire(completed as Event.Event)), secret)
      }
    }))

  it.effect("M-10: errors in a list or in data are written by their fields, and a successful result stays data", () =>
    Effect.gen(function*() {
      const err = Object.assign(new RangeError("too far", { cause: secret }), { code: 7 })
      const told = { name: "RangeError", message: "too far", code: 7 }
      assert.deepStrictEqual(parsed(yield* contentOf(failing({ _tag: "O", at: [1, { err }] }))), {
        error: "O",
        details: { at: [1, { err: told }] }
      })
      const { error } = parsed(yield* contentOf(failing([err, new NotFound({ path: "/a" })]))) as { error: string }
      assert.deepStrictEqual(parsed(error), [told, { _tag: "NotFound", name: "NotFound", message: "", path: "/a" }])
      assert.deepStrictEqual(parsed(yield* contentOf(failing(Result.fail(err)))), {
        error: "Failure",
        details: { failure: told }
      })
      const data = { request: { url: "https://h.test?api_key=1", headers: { authorization: "x" } }, stack: [1] }
      const succeeding = Tool.make("t", { parameters: {}, handler: () => Effect.succeed(data) })
      assert.deepStrictEqual(parsed(yield* contentOf(succeeding)), data)
    }))

  it.effect("M-10: a failure schema encodes the failures of its tool, and any other failure is written without the schema", () =>
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

  it.effect("M-10: an error keeps its message where the failure schema leaves the message out", () =>
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

describe("ToolRunner: an error of the runtime", () => {
  it.effect("M-14: a timeout names its time limit, from the tool, the run or the default", () =>
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

  it.effect("M-14, O-09: a stopped call has the code cancelled or abandoned, whatever the stop cut off", () =>
    Effect.gen(function*() {
      const boom = Tool.make("t", { parameters: {}, handler: () => Effect.die("kaboom") })
      const never = Tool.make("t", { parameters: {}, handler: () => Effect.never })
      const deaf = Tool.make("t", { parameters: {}, handler: () => Effect.uninterruptible(Effect.never) })
      const undecoded: Tool.Any = { ...never, parameters: { jsonSchema: {}, decode: () => Effect.never } }
      const stuck = (_call: Message.ToolCall, _error: unknown) => Effect.never
      const unwritten = { encode: () => Effect.never }
      const rows = [
        [boom, stuck, Encoder.json, "cancelled"],
        [boom, "continue", unwritten, "cancelled"],
        [never, "halt", unwritten, "cancelled"],
        [never, "continue", Encoder.json, "cancelled"],
        [deaf, "continue", Encoder.json, "abandoned"],
        [deaf, "continue", unwritten, "abandoned"],
        [undecoded, "continue", Encoder.json, "cancelled"]
      ] as const
      for (const [tool, onToolError, encoder, expected] of rows) {
        const { value } = yield* elapsed(
          contentOf(tool, { onToolError, cancel: Effect.sleep(1), grace: 10 }).pipe(
            Effect.provide(Encoder.layer(encoder))
          )
        )
        const { code, error } = parsed(value) as { readonly code: string; readonly error: string }
        assert.strictEqual(code, expected)
        assert.include(error, expected)
      }
    }))

  it.effect("M-14: the name of an error replaces a missing message", () =>
    Effect.gen(function*() {
      for (const policy of [Policy.standard, Policy.allm, Policy.falai]) {
        assert.deepStrictEqual(parsed(yield* contentOf(failing(new Error("")), { policy })), { error: "Error" })
        assert.deepStrictEqual(parsed(yield* contentOf(failing(new TypeError("")), { policy })), { error: "TypeError" })
      }
    }))
})

describe("ToolRunner: the promise of a handler", () => {
  const refused = Object.assign(new RangeError("refused"), { code: "E1" })

  it.effect("M-11: rejections of call.promise and Effect.tryPromise are written with name and message", () =>
    Effect.gen(function*() {
      const expected = { error: "refused", details: { name: "RangeError", code: "E1" } }
      const handlers: ReadonlyArray<(args: unknown, call: Tool.CallContext) => Effect.Effect<unknown, unknown>> = [
        (_args, call) => call.promise(() => Promise.reject(refused)),
        (_args, call) =>
          call.promise(async () => {
            throw refused
          }),
        (_args, call) =>
          call.promise(() => {
            throw refused
          }),
        () => Effect.tryPromise(() => Promise.reject(refused)),
        () =>
          Effect.try(() => {
            throw refused
          })
      ]
      for (const handler of handlers) {
        const tool = Tool.make("t", { parameters: {}, handler })
        for (const policy of [Policy.standard, Policy.allm, Policy.falai]) {
          assert.deepStrictEqual(parsed(yield* contentOf(tool, { policy })), expected)
        }
        const asked: Array<unknown> = []
        yield* contentOf(tool, {
          onToolError: (_call, error) =>
            Effect.sync(() => {
              asked.push(error)
              return Tool.ErrorDecision.halt
            })
        })
        assert.isTrue(Cause.isUnknownError(asked[0]) && asked[0].cause === refused)
      }
      for (const [reason, error] of [["no line", "no line"], [{ code: 7 }, "{\"code\":7}"]]) {
        const tool = Tool.make("t", {
          parameters: {},
          handler: (_args, call) => call.promise(() => Promise.reject(reason))
        })
        assert.deepStrictEqual(parsed(yield* contentOf(tool)), { error })
      }
    }))

  it.effect("M-11: a rejection is a reported failure, and stops no sibling under a policy that counts only crashes", () =>
    Effect.gen(function*() {
      const siblings = { ...Policy.standard.siblings, onToolError: "abortAll", trigger: "crashed" } as const
      const rejecting = Tool.make("t", {
        parameters: {},
        handler: (_args, call) => call.promise(() => Promise.reject(refused))
      })
      const slow = Tool.make("slow", { parameters: {}, handler: () => Effect.as(Effect.sleep(50), "done") })
      const fiber = yield* Effect.forkChild(ToolRunner.run(
        [Message.toolCall("c0", "t"), Message.toolCall("c1", "slow")],
        [rejecting, slow],
        { policy: { ...Policy.standard, siblings } }
      ))
      yield* Effect.promise(() => new Promise((resolve) => setTimeout(resolve, 0)))
      yield* TestClock.adjust(50)
      assert.strictEqual((yield* Fiber.join(fiber)).messages[1]?.content, "done")
    }))

  it.effect("M-11: a handler's defect is hidden under every preset, and shown where the policy shows crashes", () =>
    Effect.gen(function*() {
      const dying: ReadonlyArray<readonly [() => Effect.Effect<unknown>, string]> = [
        [() => Effect.die(refused), "refused {\"name\":\"RangeError\",\"code\":\"E1\"}"],
        [() => {
          throw new Error("kaboom")
        }, "kaboom"],
        [() => Effect.die("thrown"), "thrown"],
        [() => Effect.promise(() => Promise.reject(new Error("kaboom"))), "kaboom"],
        [() => Effect.die(new Lost({ path: "/a", cause: new Error(secret) })), "Lost {\"path\":\"/a\"}"]
      ]
      const traced = Executor.layer({ execute: Executor.direct.execute })
      for (const [handler, words] of dying) {
        const tool = Tool.make("t", { parameters: {}, handler })
        for (const policy of [Policy.standard, Policy.allm, Policy.falai]) {
          for (const onToolError of ["continue", "halt"] as const) {
            assert.deepStrictEqual(parsed(yield* contentOf(tool, { policy, onToolError })), {
              error: "tool error (t): handler_raised",
              code: "handler_raised"
            })
            const told = { policy: { ...policy, crashes: "told" as const }, onToolError }
            const expected = { error: `tool error (t): handler_raised: ${words}`, code: "handler_raised" }
            assert.deepStrictEqual(parsed(yield* contentOf(tool, told)), expected)
            assert.deepStrictEqual(parsed(yield* Effect.provide(contentOf(tool, told), traced)), expected)
          }
        }
      }
    }))
})

describe("ToolRunner: an async function instead of an Effect", () => {
  /** Runs an effect, and returns the unhandled rejections that occurred meanwhile. */
  const unhandledIn = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
    Effect.gen(function*() {
      const unhandled: Array<unknown> = []
      const note = (reason: unknown) => void unhandled.push(reason)
      process.on("unhandledRejection", note)
      const value = yield* effect
      // Node tells of them once its microtasks are done.
      yield* Effect.promise(() => new Promise((resolve) => setImmediate(() => setImmediate(resolve))))
      process.off("unhandledRejection", note)
      return { unhandled, value }
    })

  const rejecting = (async () => {
    throw new Error("rejected")
  }) as () => never

  const handler = () => Effect.succeed("ran")

  it.effect("M-31: the answer to an async handler or gate names the misuse, and no rejection is left unhandled", () =>
    Effect.gen(function*() {
      const word = "an Effect: call.promise(…)"
      const rows: ReadonlyArray<readonly [Partial<Tool.Any>, string]> = [
        [{ handler: rejecting }, `invalid_return: the handler returned a Promise; return ${word}`],
        [{ handler: (async () => "ran") as never }, `the handler returned a Promise; return ${word}`],
        [{ handler: () => Effect.sync(rejecting) }, `the handler returned a Promise; return ${word}`],
        [{ handler, validate: rejecting }, `Validation failed: validate returned a Promise; return ${word}`],
        [{ handler, validate: (async () => true) as never }, `validate returned a Promise; return ${word}`],
        [{ handler, validate: () => ({ valid: rejecting() }) }, `validate returned a Promise; return ${word}`],
        [{ handler, authorize: rejecting }, `Permission denied: authorize returned a Promise; return ${word}`],
        [{ handler, authorize: () => Effect.sync(rejecting) }, `authorize returned a Promise; return ${word}`]
      ]
      for (const [options, words] of rows) {
        const tool = { ...Tool.make("t", { parameters: {} }), ...options }
        for (const policy of [Policy.standard, Policy.allm, Policy.falai]) {
          const { unhandled, value } = yield* unhandledIn(contentOf(tool, { policy }))
          assert.include(value, words)
          assert.deepStrictEqual(unhandled, [])
        }
      }
    }))

  it.effect("M-31: no rejection of another async function of a tool or of a run is left unhandled", () =>
    Effect.gen(function*() {
      const tool = (options: object) => ({ ...Tool.make("t", { parameters: {}, handler }), ...options })
      const model = Script.layer([[Script.toolCall("c0", "t", {}), Script.finish("tool_calls")], [
        Script.text("done"),
        Script.finish("stop")
      ]])
      const chat = (options: Chat.Options<[Tool.Any]>) =>
        Effect.provide(Effect.exit(Chat.run("Go", { tools: [tool({})], ...options })), model)
      const runs: ReadonlyArray<readonly [Effect.Effect<unknown, unknown, any>, string]> = [
        [contentOf(tool({ approval: rejecting })), "undefined"],
        [contentOf(tool({ concurrency: rejecting })), "ran"],
        [contentOf(tool({ limits: [{ key: rejecting, permits: 1 }] })), "handler_raised"],
        [
          contentOf(tool({ handler: () => Effect.fail("no") }), { onToolError: rejecting }),
          "onToolError returned a Promise"
        ],
        [
          contentOf(tool({})).pipe(Effect.provide(Executor.layer({ execute: rejecting }))),
          "the executor returned a Promise"
        ],
        [
          contentOf(tool({})).pipe(Effect.provide(Encoder.layer({ encode: rejecting }))),
          "the encoder returned a Promise"
        ],
        [
          contentOf(Tool.fromChat("t", { parameters: {}, chat: () => Chat.stream("Go"), result: rejecting })).pipe(
            Effect.provide(model)
          ),
          "handler_raised"
        ],
        [chat({ haltWhen: rejecting }), "haltWhen returned a Promise"],
        [chat({ onEvent: rejecting }), "onEvent returned a Promise"]
      ]
      for (const [run, words] of runs) {
        const { unhandled, value } = yield* unhandledIn(run as Effect.Effect<unknown, unknown>)
        assert.include(String(value), words)
        assert.deepStrictEqual(unhandled, [])
      }
    }))

  it.effect("M-31: the then method of a returned value is never called", () =>
    Effect.gen(function*() {
      let asked = 0
      // oxlint-disable-next-line unicorn/no-thenable -- the value is to look like a promise
      const lazy = { then: () => asked++ }
      const tool = Tool.make("t", { parameters: {}, handler: (() => lazy) as never })
      assert.include(yield* contentOf(tool), "the handler returned a Promise")
      assert.strictEqual(asked, 0)
    }))
})
