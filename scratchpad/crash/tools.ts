/**
 * The tools of the program that is killed: one that only reads, one that must not happen twice, and one that may. What they
 * do to the world is a line of the log that survives the process, and a payment is in a file of its own as well, where it
 * can be looked up.
 */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { Tool } from "heddle"
import { KillPoint } from "heddle/testing"
import { appendFileSync, existsSync, readFileSync } from "node:fs"

/**
 * What becomes of a payment that was cut between its start and its end. `continue` is none: the program leaves the run that
 * was cut, with its turn closed.
 */
export const policies = ["report", "lookUp", "ask", "retry", "fail", "continue"] as const

/** One of them. */
export type Policy = typeof policies[number]

const payments = `${KillPoint.folder()}/payments`

const pay = (key: string) => Effect.sync(() => appendFileSync(payments, `${key}\n`))

const isPaid = (key: string): boolean =>
  existsSync(payments) && readFileSync(payments, "utf8").split("\n").includes(key)

const lookup = Tool.make("lookup", {
  parameters: { word: Schema.String },
  readOnly: true,
  handler: ({ word }, call) => Effect.as(KillPoint.act(call), `${word} was found`)
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

/** What a payment of an order comes to, also for the person who is asked about it. */
export const paid = (order: number) => ({ order, charged: true })

const noted = (order: number, call: Tool.CallContext) =>
  Effect.as(call.updateContext({ [`order ${order}`]: "charged" }), paid(order))

const chargeOf = (policy: Policy) => {
  const charging = {
    parameters: { order: Schema.Finite },
    handler: ({ order }: { readonly order: number }, call: Tool.CallContext) =>
      Effect.andThen(KillPoint.act(call, pay(call.idempotencyKey)), noted(order, call))
  }
  if (policy === "continue") return Tool.make("charge", charging)
  return policy === "lookUp"
    ? Tool.make("charge", {
      ...charging,
      lookUp: ({ order }, call) =>
        isPaid(call.idempotencyKey) ? Effect.map(noted(order, call), Option.some) : Effect.succeedNone
    })
    : Tool.make("charge", { ...charging, unknown: policy })
}

/** The tools. */
export const toolsOf = (policy: Policy) => [lookup, chargeOf(policy), mail] as const
