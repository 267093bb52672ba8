/**
 * The model of the program that is killed: two turns with calls, and an answer. What it replies follows from the messages
 * alone, so that it says the same to every process.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter } from "heddle"
import { Script } from "heddle/testing"
import { turns } from "./turns.ts"

const { finish, text, toolCall, usage } = Script

/** The reply to a thread with this many replies in it. The ids of calls are the same at each asking, or new ones. */
const reply = (turn: number, prefix: string): Script.Input => {
  const calls = turns[turn]
  return [
    calls === undefined
      ? [text("Both orders "), text("are paid."), usage({ inputTokens: 30, outputTokens: 5 }), finish("stop")]
      : [
        text("One moment."),
        ...calls.map(([name, args], index) => toolCall(`${prefix}${turn}-${index}`, name, args)),
        usage({ inputTokens: 10 * (turn + 1), outputTokens: 3 }),
        finish("tool_calls")
      ]
  ]
}

/** How the model makes the ids of its calls. */
export type Ids = "same" | "new"

let asked = 0

/** The model. */
export const layer = (ids: Ids): Layer.Layer<Adapter.Adapter> =>
  Layer.succeed(Adapter.Adapter, {
    stream: (request) =>
      Stream.unwrap(Effect.suspend(() => {
        // A question to the user is a message without calls.
        const turn = request.messages.filter(({ toolCalls = [] }) => toolCalls.length > 0).length
        const prefix = ids === "same" ? "call-" : `call-${process.pid}-${asked++}-`
        return Effect.map(Script.make(reply(turn, prefix)), (script) => script.stream(request))
      }))
  })
