/** Sessions in the states that the contract's scenarios begin with. */
import { assert } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import { Message, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { appr } from "./scenarios.ts"
import { anything, ask, askO, boom, echo, stop1 } from "./tools.ts"

const { finish, text, toolCall } = Script

/** A tool that waits for an approval, and the arguments it ran with. */
export const payer = (options: { readonly answerWithin?: "1 minute" } = {}) => {
  const runs: Array<unknown> = []
  const pay = Tool.make("pay", {
    parameters: { amount: Schema.Finite },
    approval: true,
    handler: (args) => Effect.sync(() => runs.push(args)).pipe(Effect.as("paid")),
    ...options
  })
  return { pay, runs }
}

/** A tool whose question is for a whole number. */
const many = Tool.make("many", {
  parameters: anything,
  handler: () =>
    Effect.succeed(Tool.askUser("How many?", { answer: Schema.Int, expiresIn: "1 minute", defaultAnswer: 1 }))
})

export const tools = [appr, ask, askO, boom, echo, stop1, many, payer().pay]

export const done = [text("done"), finish("stop")]

/** A turn that makes the calls, each named for its tool: `"ask:q1"`. */
export const calling = (...calls: ReadonlyArray<string>) => [
  ...calls.map((call) => {
    const [name = "", id = ""] = call.split(":")
    return toolCall(id, name, name === "pay" ? { amount: 5 } : {})
  }),
  finish("tool_calls")
]

/** A session that a turn with these calls has left. */
export const after = (...calls: ReadonlyArray<string>) =>
  Session.start([Message.user("go")], { tools }).pipe(
    Effect.provide(Script.layer([calling(...calls)])),
    Effect.map(({ session }) => session),
    Effect.orDie
  )

/** The message of the defect that an effect dies with. */
export const defect = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.exit(effect), (exit) => {
    assert.isTrue(Exit.isFailure(exit) && Cause.hasDies(exit.cause), `it does not die: ${String(exit)}`)
    return Exit.isFailure(exit) ? (Cause.squash(exit.cause) as Error).message : ""
  })

const encode = Schema.encodeSync(Schema.toCodecJson(Session.Session))
const decode = Schema.decodeUnknownSync(Schema.toCodecJson(Session.Session))

/** The session as another process has it. */
export const throughJson = (session: Session.Session): Session.Session =>
  decode(JSON.parse(JSON.stringify(encode(session))))
