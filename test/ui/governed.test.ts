/** Runs that rules govern, on pages: a discarded reply and an end by a rule are for a loaded page as for one that saw them. */
import { HttpAgent } from "@ag-ui/client"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Message, Rule, Tool } from "heddle"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { serve } from "../server/support/site.ts"
import { chatWith, protocols, settled, withoutDiscarded } from "./support/page.ts"

const { finish, text, toolCall } = Script
const at = "/agents/helper/sessions"

const look = Tool.make("look", { parameters: {}, handler: () => Effect.succeed("seen") })

/** Discards the first reply, which is recorded with its call, and adds a message before the next request. */
const again = Rule.make("again", {
  ask: (ask, { noted }) => noted["again"] === 1 ? Rule.ask(ask, { note: 2, messages: [Message.user("hint")] }) : ask,
  reply: (_, { noted, stepIndex }) =>
    stepIndex === 0 && noted["again"] === undefined ? Rule.askAgain({ note: 1 }) : Rule.keep()
})

const ending = (status: "completed" | "error") =>
  Rule.make("enough", { next: (next, { steps }) => steps.length < 2 ? next : Rule.end({ status, detail: "secret" }) })

const agentOf = (status: "completed" | "error") =>
  Agent.make({
    name: "helper",
    description: "Helps",
    run: () => Effect.succeed({ tools: [look], rules: [again, ending(status)] })
  })

const model = Script.layer([
  [text("Wrong."), toolCall("c1", "look"), finish("tool_calls")],
  [text("I look."), toolCall("c2", "look"), finish("tool_calls")],
  [text("It rains."), finish("stop")]
])

/** The texts and the calls of messages. */
const shown = (messages: ReadonlyArray<any>) =>
  messages.map(({ id, parts, role }) => [
    id,
    role,
    ...parts.flatMap(({ output, state, text, toolCallId, type }: any) => [[type, text, toolCallId, state, output]])
  ])

describe("a run with rules", () => {
  for (const status of ["completed", "error"] as const) {
    for (const protocol of protocols) {
      it.live(`R-511: ai ${protocol}: a live page shows the same as a loaded page (${status})`, () =>
        Effect.gen(function*() {
          const site = yield* serve([agentOf(status)], model, { protocol })
          yield* Effect.promise(async () => {
            const chat = chatWith(protocol, site.url + at)
            await chat.sendMessage({ text: "Go" })
            await settled(chat)
            const loaded = (await site.ask("GET", `${at}/s1`)).text
            assert.deepStrictEqual(
              shown(JSON.parse(loaded).messages),
              shown(JSON.parse(JSON.stringify(chat.messages.map(withoutDiscarded))))
            )
            assert.notInclude(loaded, "Wrong.")
            assert.notInclude(JSON.stringify(chat.messages), "secret")
          })
        }))
    }

    it.live(`R-511: an AG-UI client has the same messages as a client that lacked them (${status})`, () =>
      Effect.gen(function*() {
        const site = yield* serve([agentOf(status)], model)
        yield* Effect.promise(async () => {
          const client = new HttpAgent({ url: `${site.url}/agui/helper`, threadId: "s1" })
          client.addMessage({ id: "u1", role: "user", content: "Go" })
          await client.runAgent().catch(() => undefined)
          const other = new HttpAgent({ url: `${site.url}/agui/helper`, threadId: "s1" })
          other.addMessage({ id: "u2", role: "user", content: "Go on" })
          await other.runAgent().catch(() => undefined)
          // A stream gives what follows a discarded reply an id of its own.
          const kept = ({ messages }: HttpAgent) =>
            messages.flatMap(({ content, role }) => role === "activity" ? [] : [[role, content]])
          assert.deepStrictEqual(kept(other).slice(0, kept(client).length), kept(client))
          assert.isAtLeast(kept(client).length, 4)
          assert.notInclude(JSON.stringify(kept(client)), "Wrong.")
        })
      }))
  }
})
