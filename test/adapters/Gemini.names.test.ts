/** Names of tools that Gemini refuses: a name begins with a letter or an underscore there. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Chat, type Event, Message, Tool } from "heddle"
import { body, call, chunk, finish, layer, said } from "../support/gemini.ts"
import * as Server from "../support/server.ts"

type Json = Readonly<Record<string, any>>

describe("O-69: tool names that Gemini refuses", () => {
  it.effect("O-69: a tool name with a forbidden first character goes out changed, and is the tool's own name everywhere else", () =>
    Effect.scoped(Effect.gen(function*() {
      const ran: Array<string> = []
      const tools = ["3d_render", "_3d_render", "-x", "plain"].map((name) =>
        Tool.make(name, { parameters: {}, handler: () => Effect.sync(() => ran.push(name)) })
      )
      const server = yield* Server.serve((_, index) => ({
        pieces: [
          index === 0
            ? body(
              ...["__3d_render", "_3d_render", "_-x", "plain"].map((name) => chunk([call(name, {})])),
              finish("STOP")
            )
            : body(said("ok"), finish("STOP"))
        ]
      }))
      const events: Array<Event.Event> = []
      const result = yield* Chat.run("go", {
        tools,
        toolChoice: { name: "3d_render" },
        onEvent: (event) => Effect.sync(() => events.push(event))
      }).pipe(Effect.provide(layer(server.url)))
      const [first, second] = server.requests.map(({ body }) => body as Json)
      const declared = first!["tools"][0].functionDeclarations.map(({ name }: Json) => name)
      assert.deepStrictEqual(declared, ["__3d_render", "_3d_render", "_-x", "plain"])
      assert.deepStrictEqual(first!["toolConfig"].functionCallingConfig.allowedFunctionNames, ["__3d_render"])
      assert.deepStrictEqual(ran, tools.map(({ name }) => name))
      const told = events.flatMap((event) =>
        event._tag === "ToolCallStarted" || event._tag === "ToolCallCompleted" ? [event.name] : []
      )
      assert.deepStrictEqual([...new Set(told)], ran)
      assert.deepStrictEqual(result.steps[0]?.response.toolCalls.map(({ name }) => name), ran)
      assert.deepStrictEqual(result.steps[0]?.response.message?.toolCalls?.map(({ name }) => name), ran)
      const [, turn, answers] = second!["contents"]
      assert.deepStrictEqual(turn.parts.map(({ functionCall }: Json) => functionCall.name), declared)
      assert.deepStrictEqual(answers.parts.map(({ functionResponse }: Json) => functionResponse.name), declared)
    })))

  it.effect("O-69: the calls and answers of a thread use the changed tool name, and a user's name is ignored", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [body(said("ok"), finish("STOP"))] }))
      const long = `9${"a".repeat(63)}`
      yield* Chat.run([
        { ...Message.user("go"), name: "1st" },
        Message.assistant("", [Message.toolCall("a", long), Message.toolCall("b", "read")]),
        { ...Message.tool("a", "1"), name: long },
        Message.tool("b", "2"),
        Message.user("on")
      ]).pipe(Effect.provide(layer(server.url)))
      const { contents } = server.requests[0]!.body as Json
      const names = contents[1].parts.map(({ functionCall }: Json) => functionCall.name)
      assert.deepStrictEqual(names, [`_9${"a".repeat(62)}`, "read"])
      assert.deepStrictEqual(contents[2].parts.map(({ functionResponse }: Json) => functionResponse.name), names)
    })))
})
