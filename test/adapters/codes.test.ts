/** The code of an answer stands in a thread for programs and pages: no protocol and no bridge sends it. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Adapter, Message } from "heddle"
import { protocols } from "../support/replying.ts"
import * as Server from "../support/server.ts"

const threadOf = (answer: Partial<Message.Message>): ReadonlyArray<Message.Message> => [
  Message.user("Pay"),
  Message.assistant("", [Message.toolCall("c0", "pay", { amount: 1 })]),
  { ...Message.tool("c0", "no"), isError: true, ...answer }
]

describe("the code of an answer", () => {
  for (const [name, { answered, layer }] of Object.entries(protocols)) {
    it.live(`R-526: ${name} sends a thread with answer codes like a thread without codes`, () =>
      Effect.scoped(Effect.gen(function*() {
        const server = yield* Server.serve(() => ({ pieces: [answered] }))
        const { stream } = yield* Effect.provide(Adapter.Adapter, layer(server.url))
        for (const answer of [{}, { code: "denied" as const }]) {
          yield* Stream.runDrain(stream({ messages: threadOf(answer), tools: [] }))
        }
        const [without, coded] = server.requests
        assert.deepStrictEqual(coded!.body, without!.body)
      })))
  }
})
