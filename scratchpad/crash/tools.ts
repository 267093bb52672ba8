/**
 * The tools of the program that is killed: one that only reads, one that must not happen twice, and one that may. What they
 * do to the world is a line of the log that survives the process.
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Tool } from "heddle"
import { KillPoint } from "heddle/testing"

const lookup = Tool.make("lookup", {
  parameters: { word: Schema.String },
  readOnly: true,
  handler: ({ word }, call) => Effect.as(KillPoint.act(call), `${word} was found`)
})

const charge = Tool.make("charge", {
  parameters: { order: Schema.Finite },
  handler: ({ order }, call) =>
    Effect.gen(function*() {
      yield* KillPoint.act(call)
      yield* call.updateContext({ [`order ${order}`]: "charged" })
      return { order, charged: true }
    })
})

const mail = Tool.make("mail", {
  parameters: { to: Schema.String },
  idempotent: true,
  concurrency: "exclusive",
  handler: ({ to }, call) =>
    Effect.gen(function*() {
      yield* KillPoint.act(call)
      yield* call.updateContext({ mailed: to })
      return `mail to ${to}`
    })
})

/** The tools. */
export const tools = [lookup, charge, mail] as const
