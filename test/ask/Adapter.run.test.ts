/**
 * The run that makes a request: the loop names it in every request, adapters can be wrapped by it, and no protocol and no
 * bridge sends it to a provider.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Session, Step, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as Protocols from "../support/adapters.ts"
import * as AiSdk from "../support/aiSdk.ts"
import * as EffectAi from "../support/effectAi.ts"
import * as Server from "../support/server.ts"

const run: Adapter.Asker = { requestId: "request-SENTINEL", stepIndex: 70_707, sessionId: "session-SENTINEL" }

const asked: Adapter.Request = {
  ...Protocols.request,
  toolChoice: "auto",
  temperature: 0.5,
  maxTokens: 64,
  cacheKey: "conversation-1",
  options: { user: "u" }
}

/** What a server receives of a request, but for what differs from one connection to the next. */
const received = (layer: (url: string) => Layer.Layer<Adapter.Adapter>, answer: string, request: Adapter.Request) =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => ({ pieces: [answer] }))
    yield* Stream.runDrain(
      Stream.unwrap(Adapter.Adapter.useSync((adapter) => adapter.stream(request))).pipe(
        Stream.provide(layer(server.url))
      )
    )
    const { headers: { b3: _, host: __, traceparent: ___, ...headers }, ...rest } = server.requests[0]!
    return { ...rest, headers }
  }))

const services = () => Context.make(EffectAi.Settings, {})

const providers: ReadonlyArray<readonly [name: string, (url: string) => Layer.Layer<Adapter.Adapter>, answer: string]> =
  [
    ...Protocols.all.map((protocol) => [protocol.name, protocol.layer, protocol.whole] as const),
    ...AiSdk.versions.map((version) =>
      [`AiSdk ${version}`, (url: string) => AiSdk.layer(url, version), Protocols.openAiChat.whole] as const
    ),
    [
      "EffectAi",
      (url) => EffectAi.layer(url, { services }),
      EffectAi.body(EffectAi.text("a"), EffectAi.finish("stop"))
    ]
  ]

describe("Adapter.Request.run", () => {
  for (const [name, layer, answer] of providers) {
    it.effect(`${name} sends the same request with and without the run`, () =>
      Effect.gen(function*() {
        const without = yield* received(layer, answer, asked)
        const named = yield* received(layer, answer, { ...asked, run })
        assert.deepStrictEqual(named, without)
        const whole = JSON.stringify(named)
        for (const word of ["SENTINEL", "70707", "stepIndex"]) assert.notInclude(whole, word)
      }))
  }

  const ping = Tool.make("ping", { parameters: {}, handler: () => Effect.succeed("pong") })
  const toolTurn = [Script.toolCall("c0", "ping"), Script.finish("tool_calls")]
  const answer = [Script.text("{\"a\":1}"), Script.finish("stop")]

  const runsOf = (model: Script.Scripted) => Effect.map(model.requests, (requests) => requests.map(({ run }) => run))

  it.effect("every request of a run carries the ids of the run and session and the step index", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([toolTurn, toolTurn, answer])
      yield* Chat.run("go", { tools: [ping], requestId: "r1", sessionId: "s1" }).pipe(Effect.provide(model.layer))
      assert.deepStrictEqual(
        yield* runsOf(model),
        [0, 1, 2].map((stepIndex) => ({
          requestId: "r1",
          stepIndex,
          sessionId: "s1"
        }))
      )
    }))

  it.effect("a run without a given id carries its made id and no session", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([answer, answer])
      const first = yield* Step.run("go", {}).pipe(Effect.provide(model.layer))
      const second = yield* Step.run("go", {}).pipe(Effect.provide(model.layer))
      assert.notStrictEqual(first.response.requestId, second.response.requestId)
      assert.deepStrictEqual(
        yield* runsOf(model),
        [first, second].map(({ response }) => ({
          requestId: response.requestId!,
          stepIndex: 0,
          sessionId: null
        }))
      )
    }))

  it.effect("a retried request carries the step index of the broken reply", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([[Script.text("Hal"), Script.streamError("network_error")], answer])
      yield* Chat.run("go", { requestId: "r1", retryReply: Schedule.recurs(1) }).pipe(Effect.provide(model.layer))
      assert.deepStrictEqual((yield* runsOf(model)).map((run) => run?.stepIndex), [0, 0])
    }))

  it.effect("the request for a structured answer has its own step index", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([toolTurn, answer, answer])
      yield* Chat.run("go", {
        tools: [ping],
        requestId: "r1",
        structuredFinalize: true,
        responseFormat: { type: "json_object" }
      }).pipe(Effect.provide(model.layer))
      assert.deepStrictEqual((yield* runsOf(model)).map((run) => run?.stepIndex), [0, 1, 2])
    }))

  it.effect("the request of a session carries the session id", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([answer])
      yield* Session.reply(Session.make({ id: "s7" }), "go").pipe(Effect.provide(model.layer))
      assert.deepStrictEqual((yield* runsOf(model)).map((run) => run?.sessionId), ["s7"])
    }))

  it.effect("requests of a run within a handler differ by request id from those of its outer run", () =>
    Effect.gen(function*() {
      const ask = Tool.fromChat("ask", {
        parameters: { q: Schema.String },
        chat: ({ q }, call) => Chat.stream(q, { requestId: `${call.requestId}/${call.id}` })
      })
      const model = yield* Script.make([
        [Script.toolCall("c0", "ask", { q: "?" }), Script.finish("tool_calls")],
        answer,
        answer
      ])
      yield* Chat.run("go", { tools: [ask], requestId: "r1" }).pipe(Effect.provide(model.layer))
      assert.deepStrictEqual(
        (yield* runsOf(model)).map((run) => [run?.requestId, run?.stepIndex]),
        [["r1", 0], ["r1/c0", 0], ["r1", 1]]
      )
    }))

  it.effect("the request of a classification carries no run", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([answer])
      yield* Adapter.classify("go").pipe(Effect.provide(model.layer))
      assert.notProperty((yield* model.requests)[0], "run")
    }))
})

describe("Adapter.map", () => {
  it.effect("Adapter.map wraps the adapter in the context, and the last wrapper is asked first", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([[Script.text("a"), Script.finish("stop")]])
      const order: Array<string> = []
      const named = (name: string) =>
        Adapter.map((adapter) => ({
          stream: (request) => {
            order.push(`${name} ${request.run?.requestId}`)
            return adapter.stream(request)
          }
        }))
      const layer = named("outer").pipe(Layer.provide(named("inner")), Layer.provide(model.layer))
      const result = yield* Chat.run("go", { requestId: "r1" }).pipe(Effect.provide(layer))
      assert.deepStrictEqual(order, ["outer r1", "inner r1"])
      assert.strictEqual(result.finalResponse?.outputText, "a")
    }))
})
