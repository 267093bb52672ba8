/** Agents of a server, called by a real client of MCP: each call is a session of the server. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Message, Output, Tool } from "heddle"
import { McpServer } from "heddle/mcp"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { type Asked as Called, bearer, byToken, hearing, memory, obedient } from "../server/support/hostile.ts"
import { serve } from "../server/support/site.ts"
import { until } from "../support/until.ts"
import { type Asked, call, connect, eras, type Given, sendRaw, textOf } from "./support/clients.ts"

/** The tools of the agent, and what they did. */
const toolsOf = () => {
  const paid: Array<number> = []
  const began = Effect.runSync(Queue.unbounded<boolean>())
  const ended = Effect.runSync(Queue.unbounded<boolean>())
  const pay = Tool.make("pay", {
    parameters: { amount: Schema.Finite },
    approval: true,
    handler: ({ amount }) => Effect.sync(() => (paid.push(amount), `paid ${amount}`))
  })
  const ask = Tool.make("ask", {
    parameters: {},
    handler: () => Effect.succeed(Tool.askUser("Which number?", { answer: Schema.Int }))
  })
  const endless = Tool.make("endless", {
    parameters: {},
    handler: () =>
      Effect.ensuring(
        Effect.andThen(Queue.offer(began, true), Effect.never),
        Queue.offer(ended, true)
      )
  })
  const handed = Tool.make("handed", { parameters: {}, manual: true })
  const tools = [pay, ask, endless, handed]
  const agent = Agent.make({ name: "helper", description: "Helps", run: () => ({ tools }) })
  return { paid, began, ended, endless, agent }
}

const extra = Tool.make("extra", { parameters: {}, handler: () => Effect.succeed("more") })

const mcp = McpServer.routes({ tools: [extra], legacy: true })

/** The task of an agent whose model makes these calls. */
const calls = (...asked: ReadonlyArray<Called>) => ({ task: JSON.stringify(asked) })

const paying = (amount: number, id = "c0"): Called => ({ id, name: "pay", args: { amount } })

const allow: Given = { action: "accept", content: { approve: true } }

for (const era of eras) {
  describe(`agents in the ${era} era`, () => {
    it.live(`W-15: ${era}: an agent is a tool: its result is the agent's last text, and its session is deleted`, () =>
      Effect.gen(function*() {
        const { agent } = toolsOf()
        const store = yield* memory
        const { url } = yield* serve([agent], obedient, { mcp, store: store.layer })
        const client = yield* connect(url, { era })
        const { tools } = yield* Effect.promise(() => client.listTools())
        assert.deepStrictEqual(tools.map(({ name }) => name), ["extra", "helper"])
        assert.deepStrictEqual(tools[1]?.inputSchema.required, ["task"])
        const result = yield* call(client, "helper", { task: "good morning" })
        assert.deepStrictEqual([textOf(result), result.isError], ["Heard: good morning", false])
        assert.strictEqual(textOf(yield* call(client, "extra")), "more")
        assert.isTrue((yield* call(client, "helper", { task: 1 })).isError)
        assert.deepStrictEqual(yield* store.contents, [])
      }))

    it.live(`R-551: ${era}: the result of an agent with a typed answer is the answer's JSON, also by a tool`, () =>
      Effect.gen(function*() {
        const output = Output.make(Schema.Array(Schema.FiniteFromString))
        const clerk = Agent.make({ name: "clerk", description: "Counts", run: () => ({ output }) })
        const model = Script.layer([
          [
            Script.text("Counted."),
            Script.toolCall("c0", "final_answer", { value: ["1", "2"] }),
            Script.finish("tool_calls")
          ]
        ])
        const { url } = yield* serve([clerk], model, { mcp })
        const result = yield* call(yield* connect(url, { era }), "clerk", { task: "Count" })
        assert.deepStrictEqual([textOf(result), result.isError], ["[\"1\",\"2\"]", false])
      }))

    it.live(`W-15: ${era}: an agent's text is the progress of its call`, () =>
      Effect.gen(function*() {
        const { agent } = toolsOf()
        const seen = yield* Deferred.make<string>()
        const model = Adapter.layer({
          stream: () =>
            Stream.concat(
              Stream.make(
                { _tag: "MessageStarted" as const, message: Message.assistant("") },
                { _tag: "TextDelta" as const, id: null, delta: "Good " }
              ),
              // The reply ends once the client has its beginning.
              Stream.unwrap(Effect.map(Deferred.await(seen), (begun) =>
                Stream.make(
                  { _tag: "TextDelta" as const, id: null, delta: `and ${begun}` },
                  {
                    _tag: "MessageCompleted" as const,
                    message: Message.assistant(`Good and ${begun}`),
                    finishReason: "stop" as const
                  }
                )))
            )
        })
        const { url } = yield* serve([agent], model, { mcp })
        const client = yield* connect(url, { era })
        const onprogress = ({ message = "" }: { readonly message?: string | undefined }) =>
          void Deferred.doneUnsafe(seen, Effect.succeed(message))
        const result = yield* call(client, "helper", { task: "Hi" }, { onprogress })
        assert.strictEqual(textOf(result), "Good and Good ")
      }))

    it.live(`W-15: ${era}: the user is asked for an agent's approvals and questions, one or two at once`, () =>
      Effect.gen(function*() {
        const { agent, paid } = toolsOf()
        const store = yield* memory
        const heard: Array<string> = []
        const { url } = yield* serve([agent], hearing(heard), { mcp, store: store.layer })
        const question: Called = { id: "c1", name: "ask" }
        const rows: ReadonlyArray<readonly [args: { readonly task: string }, given: Given, text: string]> = [
          [calls(paying(1)), allow, "Heard: paid 1"],
          [calls(paying(2)), { action: "accept", content: { approve: false } }, "did not allow"],
          [calls(paying(3)), { action: "decline" }, "did not allow"],
          [calls(paying(4)), { action: "cancel" }, "cancelled"],
          [calls(question), { action: "accept", content: { answer: 42 } }, "Heard: 42"],
          [calls(question), { action: "decline" }, "declined"],
          [calls(question), { action: "accept", content: { answer: 4.5 } }, "does not have the requested form"],
          [calls(paying(5), paying(6, "c2")), allow, "Heard: paid 6"],
          [calls({ id: "c0", name: "handed" }), allow, "Heard: "]
        ]
        const asked: Array<Asked> = []
        let given: Given = allow
        const client = yield* connect(url, { era, answer: (each) => (asked.push(each), given) })
        for (const [args, next, text] of rows) {
          asked.length = 0
          given = next
          const result = yield* call(client, "helper", args)
          assert.include(`${textOf(result)} ${heard.at(-1)}`, text)
          assert.strictEqual(asked.length, args.task.includes("handed") ? 0 : args.task.includes("c2") ? 2 : 1)
        }
        assert.deepStrictEqual(paid, [1, 5, 6])
        assert.deepStrictEqual(yield* store.contents, [])
      }))

    it.live(`W-15: ${era}: an agent whose client cannot ask the user reads that its call was not allowed`, () =>
      Effect.gen(function*() {
        const { agent, paid } = toolsOf()
        const heard: Array<string> = []
        const { url } = yield* serve([agent], hearing(heard), { mcp })
        const client = yield* connect(url, { era })
        for (const asked of [paying(1), { id: "c0", name: "ask" }]) {
          assert.isFalse((yield* call(client, "helper", calls(asked))).isError)
          assert.include(heard.at(-1), "the client cannot ask its user")
        }
        assert.deepStrictEqual(paid, [])
      }))
  })
}

describe("cancellations", () => {
  it.live("W-15: in both eras a cancelled call of a tool or an agent is interrupted, and its finalizer runs", () =>
    Effect.gen(function*() {
      const { agent, began, ended, endless } = toolsOf()
      const store = yield* memory
      const { url } = yield* serve([agent], obedient, {
        mcp: McpServer.routes({ tools: [endless, extra], legacy: true }),
        store: store.layer,
        bounds: { streams: 1 }
      })
      const rows = eras.flatMap((era) => [
        { era, name: "endless", args: {} },
        { era, name: "helper", args: calls({ id: "c0", name: "endless" }) }
      ])
      for (const { args, era, name } of rows) {
        const client = yield* connect(url, { era })
        const controller = new AbortController()
        const { signal } = controller
        const under = yield* Effect.forkChild(Effect.exit(call(client, name, args, { signal })))
        yield* Queue.take(began)
        assert.isTrue((yield* call(client, "extra")).isError)
        controller.abort("enough")
        yield* Queue.take(ended)
        assert.strictEqual((yield* Fiber.join(under))._tag, "Failure")
        // The place of the call is free once all of it has ended.
        yield* until("a free place", call(client, "extra"), ({ isError }) => isError === false)
        assert.deepStrictEqual(yield* store.contents, [])
      }
    }))
})

describe("request states of agents", () => {
  const waiting = (url: string, args: unknown, headers: Record<string, string> = {}) =>
    Effect.map(sendRaw(url, { params: { name: "helper", arguments: args }, headers }), ({ message }) => ({
      requestState: String(message.result.requestState),
      keys: Object.keys(message.result.inputRequests)
    }))

  const answering = (
    url: string,
    { keys, requestState }: { readonly keys: ReadonlyArray<string>; readonly requestState: string },
    args: unknown,
    headers: Record<string, string> = {}
  ) => {
    const inputResponses = Object.fromEntries(keys.map((key) => [key, allow]))
    return sendRaw(url, { params: { name: "helper", arguments: args, requestState, inputResponses }, headers })
  }

  it.live("W-15: another process with the same secret takes an agent's answer, and a process with another secret refuses the answer", () =>
    Effect.gen(function*() {
      const { agent, paid } = toolsOf()
      const store = yield* memory
      const at = (secret: string) =>
        serve([agent], obedient, { mcp: McpServer.routes({ secret: Redacted.make(secret) }), store: store.layer })
      const one = yield* at("the first secret")
      const two = yield* at("the first secret")
      const three = yield* at("another secret")
      const args = calls(paying(7))
      const state = yield* waiting(one.url, args)
      assert.strictEqual((yield* answering(three.url, state, args)).message.error?.code, -32602)
      const { message } = yield* answering(two.url, state, args)
      assert.strictEqual(message.result.content[0].text, "Heard: paid 7")
      assert.strictEqual((yield* answering(two.url, state, args)).message.error?.code, -32602)
      assert.deepStrictEqual(paid, [7])
    }))

  it.live("W-15: an agent's request state holds for its task and principal only, and a principal with the action write approves nothing", () =>
    Effect.gen(function*() {
      const { agent, paid } = toolsOf()
      const { url } = yield* serve([agent], obedient, { mcp, authorize: byToken(), hosts: ["127.0.0.1"] })
      const args = calls(paying(7))
      const state = yield* waiting(url, args, bearer("ann"))
      assert.strictEqual((yield* answering(url, state, calls(paying(8)), bearer("ann"))).message.error?.code, -32602)
      assert.strictEqual((yield* answering(url, state, args, bearer("bob"))).message.error?.code, -32602)
      const { message } = yield* answering(url, state, args, bearer("ann:list,write"))
      assert.include(message.result.content[0].text, "did not allow")
      assert.deepStrictEqual(paid, [])
      assert.strictEqual((yield* sendRaw(url, { params: { name: "helper", arguments: args } })).status, 401)
    }))
})
