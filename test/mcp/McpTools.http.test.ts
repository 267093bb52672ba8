/** Tools of MCP servers over HTTP: Heddle's own server of the current revision, and one by hand that answers too much. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Message, Session, Tool, ToolRunner } from "heddle"
import { McpTools } from "heddle/mcp"
import { Script } from "heddle/testing"
import type { ServerResponse } from "node:http"
import { until } from "../support/until.ts"
import { byHand } from "./support/byHand.ts"
import { ledger } from "./support/ledger.ts"
import { serve } from "./support/serving.ts"

ledger()

const contentOf = ({ messages }: ToolRunner.Result): string => String(messages[0]?.content)

const call = (name: string, args: Record<string, unknown> = {}) => Message.toolCall("c0", name, args)

describe("tools of a server over HTTP", () => {
  it.live("W-13: values, failures and progress of Heddle's own server arrive, and an interrupted handler runs its finalizer", () =>
    Effect.gen(function*() {
      const isStarted = yield* Deferred.make<void>()
      const isStopped = yield* Deferred.make<void>()
      const url = yield* serve([
        Tool.make("sum", {
          parameters: { one: Schema.Finite, two: Schema.Finite },
          readOnly: true,
          handler: ({ one, two }) => Effect.succeed({ sum: one + two })
        }),
        Tool.make("fail", { parameters: {}, handler: () => Effect.fail("out of numbers") }),
        Tool.make("count", {
          parameters: {},
          handler: (_, { progress }) =>
            Effect.as(Effect.forEach([1, 2, 3], (at) => progress({ progress: at })), "counted")
        }),
        Tool.make("hang", {
          parameters: {},
          handler: () =>
            Effect.andThen(
              Deferred.succeed(isStarted, undefined),
              Effect.onInterrupt(Effect.never, () => Deferred.succeed(isStopped, undefined))
            )
        })
      ])
      yield* Effect.gen(function*() {
        const tools = yield* McpTools.tools
        const flags = tools.map(({ approval, name, readOnly }) => [name, readOnly, approval])
        assert.deepStrictEqual(flags[0], ["own_sum", true, false])
        assert.strictEqual(
          contentOf(yield* ToolRunner.run([call("own_sum", { one: 1, two: 2 })], tools)),
          "{\"sum\":3}"
        )
        const failed = yield* ToolRunner.run([call("own_fail")], tools, { approved: ["c0"] })
        assert.isTrue(failed.messages[0]?.isError)
        assert.include(contentOf(failed), "out of numbers")
        const counted = yield* Stream.runCollect(ToolRunner.stream([call("own_count")], tools, { approved: ["c0"] }))
        assert.include(counted.map(({ _tag }) => _tag), "ToolProgress")
        const hanging = yield* Effect.forkChild(ToolRunner.run([call("own_hang")], tools, { approved: ["c0"] }))
        yield* Deferred.await(isStarted)
        yield* Fiber.interrupt(hanging)
        yield* Deferred.await(isStopped)
      }).pipe(Effect.provide(McpTools.layer({ url: `${url}/mcp` }, { prefix: "own_", trust: "annotations" })))
    }).pipe(Effect.scoped))

  it.live("W-13: the user is asked for an approval and then for an answer by Heddle's own server", () =>
    Effect.gen(function*() {
      const url = yield* serve([
        Tool.make("book", {
          parameters: {},
          approval: true,
          handler: (_, { resumed }) =>
            Effect.succeed(
              resumed === undefined
                ? Tool.askUser("How many seats?", { answer: Schema.Int, resume: {} })
                : `${resumed.answer} seats`
            )
        })
      ])
      yield* Effect.gen(function*() {
        const tools = yield* McpTools.tools
        let { session } = yield* Session.reply(Session.make(), "Book", { tools })
        assert.deepStrictEqual(session.suspensions.map(({ answerSchema, kind }) => [kind, answerSchema?.["type"]]), [
          ["question", "boolean"]
        ])
        session = yield* Session.answer(session, "c0", true)
        ;({ session } = yield* Session.continue(session, null, { tools }))
        assert.include(session.pendingQuestion, "How many seats?")
        ;({ session } = yield* Session.reply(session, "3", { tools }))
        assert.strictEqual(Message.text(session.thread.messages[2]!), "3 seats")
      }).pipe(Effect.provide([
        McpTools.layer({ url: `${url}/mcp` }, { approval: "none" }),
        Script.layer([
          [Script.toolCall("c0", "book"), Script.finish("tool_calls")],
          [Script.text("Booked."), Script.finish("stop")]
        ])
      ]))
    }).pipe(Effect.scoped))

  it.live("W-14: a server that has forgotten the connection gets the call once, over the next connection", () =>
    Effect.gen(function*() {
      let isForgotten = false
      const methods: Array<string> = []
      const url = yield* byHand((method) => {
        methods.push(method)
        if (method !== "tools/call" || !isForgotten) return undefined
        isForgotten = false
        return 404
      })
      yield* Effect.gen(function*() {
        const tools = yield* McpTools.tools
        isForgotten = true
        assert.strictEqual(contentOf(yield* ToolRunner.run([call("say", { length: 3 })], tools)), "xxx")
        assert.deepStrictEqual(methods.filter((method) => method !== "tools/list"), [
          "server/discover",
          "tools/call",
          "server/discover",
          "tools/call"
        ])
      }).pipe(Effect.provide(McpTools.layer({ url }, { approval: "none" })))
    }).pipe(Effect.scoped))

  it.live("W-14: a call whose stream ends without an answer has an unknown effect, and concurrent calls have their answers", () =>
    Effect.gen(function*() {
      const held: Array<ServerResponse> = []
      const methods: Array<string> = []
      const url = yield* byHand((method, _, response) => {
        methods.push(method)
        if (method !== "tools/call" || held.length >= 2) return undefined
        held.push(response)
        response.writeHead(200, { "content-type": "text/event-stream" })
        response.write(": here\n\n")
        if (held.length < 2) return "held"
        response.end()
        return "held"
      })
      yield* Effect.gen(function*() {
        const tools = yield* McpTools.tools
        const beside = yield* Effect.forkChild(ToolRunner.run([call("say")], tools, { toolTimeout: "infinity" }))
        yield* until("the call", Effect.sync(() => held.length), (count) => count === 1)
        const content = contentOf(yield* ToolRunner.run([call("say")], tools, { toolTimeout: "infinity" }))
        assert.include(content, "unknown_effect")
        assert.isUndefined(beside.pollUnsafe())
        assert.strictEqual(contentOf(yield* ToolRunner.run([call("say", { length: 2 })], tools)), "xx")
        assert.strictEqual(methods.filter((method) => method === "server/discover").length, 1)
        yield* Fiber.interrupt(beside)
      }).pipe(Effect.provide(McpTools.layer({ url }, { approval: "none" })))
    }).pipe(Effect.scoped))

  it.live("W-14: a notification stream that ends at once opens again at most once a second, whatever the server says", () =>
    Effect.gen(function*() {
      const opened: Array<number> = []
      const url = yield* byHand((method, request, response) => {
        if (method === "server/discover") return 404
        if (request.method !== "GET") return method.startsWith("notifications/") ? 202 : undefined
        opened.push(performance.now())
        response.writeHead(200, { "content-type": "text/event-stream" })
        response.end("retry: 1\nid: 1\n\n")
        return "held"
      })
      const again = until("the second stream", Effect.sync(() => opened.length), (count) => count > 1)
      yield* Effect.provide(again, McpTools.layer({ url }, { approval: "none" }))
      assert.isAbove(opened[1]! - opened[0]!, 900)
    }).pipe(Effect.scoped))

  it.live("W-14: nothing waits once a layer is closed, a second and a third time, although its notification stream was to open again", () =>
    Effect.gen(function*() {
      let opened = 0
      const url = yield* byHand((method, request, response) => {
        if (method === "server/discover") return 404
        if (request.method !== "GET") return method.startsWith("notifications/") ? 202 : undefined
        opened++
        response.writeHead(200, { "content-type": "text/event-stream" })
        response.end("retry: 1\nid: 1\n\n")
        return "held"
      })
      const real = yield* Clock.Clock
      let sleeping = 0
      const counting: Clock.Clock = Object.create(real, {
        sleep: {
          value: () =>
            Effect.suspend(() => {
              sleeping++
              return Effect.ensuring(Effect.never, Effect.sync(() => void sleeping--))
            })
        }
      })
      for (let round = 1; round <= 3; round++) {
        const waiting = until("its next opening", Effect.sync(() => sleeping), (count) => opened === round && count > 0)
        yield* Effect.provide(
          Effect.provideService(waiting, Clock.Clock, real),
          McpTools.layer({ url }, { approval: "none" })
        ).pipe(Effect.provideService(Clock.Clock, counting))
        yield* until("its end", Effect.sync(() => sleeping), (count) => count === 0)
      }
    }).pipe(Effect.scoped))

  it.live("W-14: a server that repeats the request headers shows the model no key", () =>
    Effect.gen(function*() {
      const url = yield* byHand((method, { headers }, response) => {
        if (method !== "tools/call") return undefined
        response.writeHead(500, { "content-type": "text/plain" })
        response.end(`${"x".repeat(900)} refused ${headers["authorization"]} and ${headers["x-key"]}`)
        return "held"
      })
      yield* Effect.gen(function*() {
        const content = contentOf(yield* ToolRunner.run([call("say")], yield* McpTools.tools))
        assert.include(content, "refused")
        for (const secret of ["canary-one", "canary-two"]) assert.notInclude(content, secret)
      }).pipe(Effect.provide(McpTools.layer(
        { url, headers: { authorization: "Bearer canary-one", "x-key": "canary-two" } },
        { approval: "none" }
      )))
    }).pipe(Effect.scoped))

  it.live("W-14: tools leaves out too large, too deep and too many definitions, and strips hidden characters from the others", () =>
    Effect.gen(function*() {
      const deep: any = { type: "object" }
      for (let depth = 0, at = deep; depth < 500; depth++) at = at.properties = { type: "object" }
      const plain = { type: "object" }
      const url = yield* byHand(() => undefined, "application/json", [
        { name: "large", description: "x".repeat(70_000), inputSchema: plain },
        { name: "deep", inputSchema: deep },
        { name: "sly", description: "Says\u001b[31m \u202eit\u{e0041}.", inputSchema: plain },
        ...Array.from({ length: 1_100 }, (_, index) => ({ name: `t${index}`, inputSchema: plain }))
      ])
      yield* Effect.gen(function*() {
        const tools = yield* McpTools.tools
        assert.strictEqual(tools.length, 1_024)
        assert.strictEqual(tools[0]?.description, "Says[31m it.")
        assert.deepStrictEqual((yield* McpTools.leftOut).map(({ name }) => name), ["large", "deep", "…"])
      }).pipe(Effect.provide(McpTools.layer({ url }, { approval: "none" })))
    }).pipe(Effect.scoped))

  for (const type of ["application/json", "text/event-stream"] as const) {
    it.live(`W-14: an answer past maxMessageBytes ends the connection, as ${type}, and each request has the headers`, () =>
      Effect.gen(function*() {
        const keys: Array<string | undefined> = []
        const url = yield* byHand((_, request) => void keys.push(request.headers["x-key"] as string | undefined), type)
        yield* Effect.gen(function*() {
          const tools = yield* McpTools.tools
          const say = (length: number) => Effect.map(ToolRunner.run([call("say", { length })], tools), contentOf)
          assert.strictEqual((yield* say(100)).length, 100)
          assert.include((yield* say(20_000)).slice(0, 100), "unknown_effect")
          assert.strictEqual((yield* say(200)).length, 200)
        }).pipe(Effect.provide(
          McpTools.layer({ url, headers: { "x-key": "k" } }, { approval: "none", maxMessageBytes: 10_000 })
        ))
        assert.isTrue(keys.every((key) => key === "k"))
      }).pipe(Effect.scoped))
  }
})
