/** Call ids that come again, and pages that did not see all of a reply. */
import { HttpAgent } from "@ag-ui/client"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, type Event, Message, Session, Step, Tool } from "heddle"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { AgUi } from "heddle/ui"
import { serve } from "../server/support/site.ts"
import { published } from "../support/pages.ts"
import { chatOf } from "../support/scenarios.ts"
import { tools } from "../support/sessions.ts"
import { chunksOf, problemsOf, readMessage } from "./support/page.ts"

const { finish, text, toolCall, toolCallDelta } = Script

const pay = Tool.make("pay", {
  parameters: { amount: Schema.Finite },
  approval: true,
  handler: ({ amount }) => Effect.succeed(`paid ${amount}`)
})

/** A model that numbers its calls anew in each turn. */
const numbering = [1, 2].flatMap((amount) => [
  [toolCall("pay:0", "pay", { amount }), finish("tool_calls")],
  [text(`Paid ${amount}.`), finish("stop")]
])

describe("repeated call ids", () => {
  it.live("O-05: an AG-UI page shows the second payment as a card of its own, with its own arguments and answer", () =>
    Effect.gen(function*() {
      const agentOf = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [pay] }) })
      const site = yield* serve([agentOf], Script.layer(numbering))
      yield* Effect.promise(async () => {
        const agent = new HttpAgent({ url: `${site.url}/agui/helper`, threadId: "s1" })
        for (const amount of [1, 2]) {
          agent.addMessage({ id: `u${amount}`, role: "user", content: `Pay ${amount}` })
          await agent.runAgent()
          const resume = agent.pendingInterrupts.map(({ id: interruptId }) => ({
            interruptId,
            status: "resolved" as const,
            payload: { approved: true }
          }))
          await agent.runAgent({ resume })
        }
        const calls = agent.messages.flatMap((message) => message.role === "assistant" ? message.toolCalls ?? [] : [])
        assert.deepStrictEqual(calls.map((call) => call.function.arguments), ["{\"amount\":1}", "{\"amount\":2}"])
        assert.strictEqual(new Set(calls.map(({ id }) => id)).size, 2)
      })
    }))

  it.effect("O-05: a late verdict by call id does not approve the next call with that id", () =>
    Effect.gen(function*() {
      const options = { tools: [pay] }
      const first = yield* Session.reply(Session.make({ id: "s1" }), "Pay 1", options)
      const denied = yield* Session.deny(first.session, "pay:0", "No.")
      const second = yield* Session.continue(denied, null, options)
      const third = yield* Session.reply(second.session, "Pay 2", options)
      // The approval of the first payment, from a page that was slow.
      const late = yield* Effect.exit(Session.approve(third.session, "pay:0"))
      assert.strictEqual(late._tag, "Failure")
    }).pipe(Effect.provide(Script.layer(numbering))))

  it.effect("O-75: a page without call deltas shows each call's result on its own card", () =>
    Effect.gen(function*() {
      const { events, result } = yield* chatOf([
        [
          toolCall("d", "echo", { a: 1 }),
          toolCallDelta("d_2", "{}"),
          toolCall("d", "echo", { a: 2 }),
          finish("tool_calls")
        ],
        [text("Done."), finish("stop")]
      ], { tools, emitToolDeltas: false })
      const read = yield* Effect.promise(() => readMessage(chunksOf(published(events))))
      assert.deepStrictEqual(problemsOf(read, result, 1), [])
    }))

  it.effect("O-05: a page has the argument fragments that precede a call's name", () =>
    Effect.gen(function*() {
      const reply: ReadonlyArray<Event.AdapterEvent> = [
        { _tag: "MessageStarted", message: Message.assistant("") },
        { _tag: "ToolCallDelta", id: "c", argumentsDelta: "{\"a\":" },
        { _tag: "ToolCallStarted", id: "c", name: "echo" },
        { _tag: "ToolCallDelta", id: "c", argumentsDelta: "1}" },
        { _tag: "ToolCallCompleted", id: "c", name: "echo", arguments: { a: 1 }, rawArguments: "{\"a\":1}" },
        { _tag: "MessageCompleted", message: Message.assistant(""), finishReason: "tool_calls" }
      ]
      const events = yield* Stream.runCollect(Step.stream("go", { tools })).pipe(
        Effect.provide(Adapter.layer({ stream: () => Stream.fromIterable(reply) }))
      )
      const encoder = AgUi.make({ threadId: "s1", runId: "r1" })
      const told = published(events).flatMap(encoder.push)
      const fragments = told.flatMap(({ delta, type }) => type === "TOOL_CALL_ARGS" ? [delta] : [])
      assert.strictEqual(fragments.join(""), "{\"a\":1}")
    }))
})
