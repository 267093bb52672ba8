/** Questions that are answered: a page that saw them shows what one shows that is loaded, of each protocol. */
import { HttpAgent } from "@ag-ui/client"
import { assert, describe, it } from "@effect/vitest"
import type { UIMessage } from "ai"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Chat, Tool } from "heddle"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { serve } from "../server/support/site.ts"
import { chatWith, protocols, settled } from "./support/page.ts"

const { finish, text, toolCall } = Script
const at = "/agents/helper/sessions"

const tools = [
  Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which city?")) }),
  Tool.make("count", {
    parameters: {},
    handler: () => Effect.succeed(Tool.askUser("How many?", { answer: Schema.Int }))
  }),
  Tool.make("look", { parameters: {}, handler: () => Effect.succeed("seen") })
]

const agent = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: tools as never }) })

/** A question beside another call, two questions at once, and one behind an answered one. */
const model = [
  [text("I ask."), toolCall("q1", "ask"), toolCall("l1", "look"), finish("tool_calls")],
  [text("Again."), toolCall("q2", "count"), finish("tool_calls")],
  [text("Both."), toolCall("q3", "ask"), toolCall("q4", "count"), finish("tool_calls")],
  [text("It rains."), finish("stop")],
  [text("Bye."), toolCall("q5", "ask"), finish("tool_calls")],
  [text("Gone."), finish("stop")]
]

const answers: { readonly [id: string]: unknown } = { q1: "Oslo", q2: 2, q3: "Rome", q4: 4, q5: "Bonn" }

/** What a page shows, without the questions, which are for what waits. */
const shown = (messages: ReadonlyArray<any>) =>
  messages.map(({ id, parts, role }) => [
    id,
    role,
    ...parts.flatMap(({ output, state, text, toolCallId, type }: any) =>
      type === "data-heddle-question" ? [] : [[type, text, toolCallId, state, output]]
    )
  ])

describe("an answered question", () => {
  for (const protocol of protocols) {
    it.live(`W-03: ai ${protocol}: a live page shows the same as a loaded page after each answer`, () =>
      Effect.gen(function*() {
        const site = yield* serve([agent], Script.layer(model), { protocol })
        yield* Effect.promise(async () => {
          const chat = chatWith(protocol, site.url + at)
          const compare = async () => {
            await settled(chat)
            assert.isUndefined(chat.error)
            const { messages } = JSON.parse((await site.ask("GET", `${at}/s1`)).text)
            assert.deepStrictEqual(
              shown(JSON.parse(JSON.stringify(messages))),
              shown(JSON.parse(JSON.stringify(chat.messages)))
            )
          }
          await chat.sendMessage({ text: "Go" })
          await compare()
          for (const id of ["q1", "q2", "q3", "q4"]) {
            await chat.addToolOutput({ tool: "any", toolCallId: id, output: answers[id] })
            if (id !== "q3") await compare()
          }
          assert.deepStrictEqual(chat.messages.map(({ role }: UIMessage) => role), ["user", "assistant"])
          await chat.sendMessage({ text: "Thanks" })
          await compare()
          await chat.addToolOutput({ tool: "ask", toolCallId: "q5", output: answers["q5"] })
          await compare()
          assert.deepStrictEqual(chat.messages.map(({ role }: UIMessage) => role), [
            "user",
            "assistant",
            "user",
            "assistant"
          ])
        })
      }))
  }

  it.live("W-02: an AG-UI client has the same messages as a client that lacked them", () =>
    Effect.gen(function*() {
      const site = yield* serve([agent], Script.layer([...model, [text("End."), finish("stop")]]))
      yield* Effect.promise(async () => {
        const agentOf = () => new HttpAgent({ url: `${site.url}/agui/helper`, threadId: "s1" })
        const client = agentOf()
        client.addMessage({ id: "u1", role: "user", content: "Go" })
        const resume = async () => {
          while (client.pendingInterrupts.length > 0) {
            const given = client.pendingInterrupts.map(({ id, toolCallId = "" }) => ({
              interruptId: id,
              status: "resolved" as const,
              payload: answers[toolCallId]
            }))
            await client.runAgent({ resume: given })
          }
        }
        await client.runAgent()
        await resume()
        client.addMessage({ id: "u2", role: "user", content: "Thanks" })
        await client.runAgent()
        await resume()
        const kept = (agent: HttpAgent) =>
          agent.messages.flatMap((message: any) =>
            message.role === "activity"
              ? []
              : [JSON.stringify([message.id, message.role, message.content, message.toolCallId, message.toolCalls])]
          )
        const other = agentOf()
        other.addMessage({ id: "u3", role: "user", content: "Still there?" })
        await other.runAgent()
        const before = kept(client).filter((message) => !message.includes("\"tool\""))
        assert.includeMembers(kept(other), before)
        // Answers of one turn come as they are given, and stand in call order in the thread.
        const said = (agent: HttpAgent) => {
          const blocks: Array<Array<string>> = []
          for (const { content, role } of agent.messages) {
            if (role !== "tool") blocks.push([])
            if (role !== "activity") blocks.at(-1)?.push(`${role}: ${String(content)}`)
          }
          return blocks.filter(({ length }) => length > 0).map((block) => block.sort())
        }
        assert.deepStrictEqual(said(other).slice(0, said(client).length), said(client))
      })
    }))
})

/** Calls of a run inside one call that wait together. */
const paying = () => {
  const paid: Array<number> = []
  const pay = Tool.make("pay", {
    parameters: { n: Schema.Int },
    approval: true,
    handler: ({ n }) => Effect.sync(() => paid.push(n))
  })
  const inside = Tool.fromChat("agent", {
    parameters: { why: Schema.String },
    chat: () => Chat.stream("Pay", { tools: [pay] })
  })
  const agent = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [inside] }) })
  return { paid, agent }
}

/** The part of the call around them. */
const card = (chat: any) => {
  const { input, state, toolName } = chat.messages.at(-1).parts.find((part: any) => part.toolCallId === "p")
  return [toolName, input, state]
}

describe("several questions of one call", () => {
  for (const protocol of protocols) {
    it.live(`W-03: ai ${protocol}: an output settles the question whose id it has, and an output without an id settles none`, () =>
      Effect.gen(function*() {
        const { agent, paid } = paying()
        const model = Script.layer([
          [toolCall("p", "agent", { why: "rent" }), finish("tool_calls")],
          [toolCall("p", "pay", { n: 1 }), toolCall("p", "pay", { n: 2 }), finish("tool_calls")],
          [text("Paid."), finish("stop")],
          [text("Done."), finish("stop")]
        ])
        const site = yield* serve([agent], model, { protocol })
        yield* Effect.promise(async () => {
          const chat = chatWith(protocol, site.url + at)
          const open = async (): Promise<Array<any>> =>
            JSON.parse((await site.ask("GET", `${at}/s1`)).text).suspensions ?? []
          const post = async (output: unknown) => {
            const [user, { parts, ...rest }] = JSON.parse(JSON.stringify(chat.messages))
            const answered = parts.map((part: any) =>
              part.toolCallId === "p" ? { ...part, state: "output-available", output } : part
            )
            return site.ask("POST", at, { id: "s1", messages: [user, { ...rest, parts: answered }] })
          }
          const refuse = async (output: unknown) => {
            const waiting = (await open()).map(({ id }) => id)
            const { status, text } = await post(output)
            assert.strictEqual(status, 409, text)
            const { code, message } = JSON.parse(text).error
            assert.strictEqual(code, "not_waiting")
            for (const id of waiting) assert.include(message, JSON.stringify(id))
            assert.deepStrictEqual((await open()).map(({ id }) => id), waiting)
          }
          await chat.sendMessage({ text: "Go" })
          await settled(chat)
          const [first, second] = await open()
          for (const approved of [true, false]) await refuse({ approved })
          await refuse("yes")
          await chat.addToolOutput({ tool: "agent", toolCallId: "p", output: { id: first.id, approved: true } })
          await settled(chat)
          assert.isUndefined(chat.error)
          assert.deepStrictEqual((await open()).map(({ id }) => id), [second.id])
          assert.deepStrictEqual(card(chat), ["agent", { why: "rent" }, "input-available"])
          // The page shows both: it may be another page that has answered the first.
          await refuse({ approved: true })
          await chat.addToolOutput({
            tool: "agent",
            toolCallId: "p",
            output: { id: second.id, approved: false, reason: "No." }
          })
          await settled(chat)
          assert.isUndefined(chat.error)
          assert.deepStrictEqual(paid, [1])
          assert.deepStrictEqual(await open(), [])
        })
      }))

    it.live(`W-03: ai ${protocol}: a call that waits again for an inner call keeps its name and its input`, () =>
      Effect.gen(function*() {
        const { agent, paid } = paying()
        const model = Script.layer([
          [toolCall("p", "agent", { why: "rent" }), finish("tool_calls")],
          [toolCall("p", "pay", { n: 1 }), finish("tool_calls")],
          [toolCall("p", "pay", { n: 2 }), finish("tool_calls")],
          [text("Paid."), finish("stop")],
          [text("Done."), finish("stop")]
        ])
        for (const publish of ["all", "names"] as const) {
          paid.length = 0
          const site = yield* serve([agent], model, { protocol, publish })
          yield* Effect.promise(async () => {
            const chat = chatWith(protocol, site.url + at)
            await chat.sendMessage({ text: "Go" })
            await settled(chat)
            // One run asks after the other, and an output needs no id.
            for (const n of [1, 2]) {
              assert.deepStrictEqual(
                card(chat),
                ["agent", publish === "all" ? { why: "rent" } : {}, "input-available"]
              )
              await chat.addToolOutput({ tool: "agent", toolCallId: "p", output: { approved: true } })
              await settled(chat)
              assert.strictEqual(paid.at(-1), n)
            }
            assert.isUndefined(chat.error)
          })
        }
      }))
  }
})
