/** Questions and approvals that `heddle call` asks in a terminal, which is played by keys. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Session, Tool } from "heddle"
import { Agent, Server } from "heddle/server"
import { Script } from "heddle/testing"
import * as Conversations from "../../src/command/internal/conversation.ts"
import { Stop } from "../../src/command/internal/stop.ts"
import { typing } from "../support/terminal.ts"

const said: Array<unknown> = []
const notes: Array<string> = []

const pay = Tool.make("pay", {
  parameters: { amount: Schema.Finite },
  approval: true,
  handler: ({ amount }) => Effect.sync(() => said.push(amount))
})
const ask = Tool.make("ask", {
  parameters: {},
  handler: () => Effect.succeed(Tool.askUser("How many?", { answer: Schema.Struct({ count: Schema.Int }) }))
})
const pick = Tool.make("pick", {
  parameters: {},
  handler: () => Effect.succeed(Tool.askUser("Which?", { opts: ["red", "blue"] }))
})

/** Runs a call of a tool in a terminal with these keys, and returns the exit code and the messages of the session. */
const called = (tool: Tool.Any, args: object, keys: string) => {
  const agent = Agent.make({ name: "a", description: "A", run: () => Effect.succeed({ tools: [tool] as never }) })
  const layer = Script.layer([
    [Script.toolCall("c0", tool.name, args as never), Script.finish("tool_calls")],
    [Script.text("Done."), Script.finish("stop")]
  ])
  const definition = Server.define({ agents: [agent], layer })
  const named = { agent: "a", principal: "local", id: "s1", isStored: true }
  return Effect.gen(function*() {
    const code = yield* Conversations.run({ definition, agents: new Map([["a", agent]]) }, named, new Stop(), {
      text: "Go",
      outputs: { text: () => {}, note: (note) => void notes.push(note) }
    })
    const kept = yield* Session.open(Conversations.keyOf(named))
    return { code, texts: JSON.stringify(kept.session.thread.messages) }
  }).pipe(Effect.provide([layer, Session.Store.layerMemory, typing(keys)]))
}

describe("heddle call in a terminal", () => {
  it.live("W-19: a person allows a call, with its own or with other arguments, or denies it with a reason", () =>
    Effect.gen(function*() {
      said.length = 0
      assert.strictEqual((yield* called(pay, { amount: 3 }, "\n")).code, 0)
      assert.deepStrictEqual(said, [3])
      const denied = yield* called(pay, { amount: 3 }, ">\ntoo much\n")
      assert.strictEqual(denied.code, 0)
      assert.include(denied.texts, "denied: too much")
      assert.deepStrictEqual(said, [3])
      assert.strictEqual((yield* called(pay, { amount: 3 }, ">>\n^{\"amount\": 4}\n")).code, 0)
      assert.deepStrictEqual(said, [3, 4])
    }))

  it.live("W-19: a question takes a choice or JSON of its schema, and is asked again after any other answer", () =>
    Effect.gen(function*() {
      assert.include((yield* called(pick, {}, ">\n")).texts, "blue")
      const { code, texts } = yield* called(ask, {}, "many\n{\"count\": 2}\n")
      assert.strictEqual(code, 0)
      assert.include(notes, "! The answer does not have the requested form.\n")
      assert.match(texts, /count\\*": ?2/)
    }))
})
