/**
 * The tools of the program that is killed: one that only reads, one that must not happen twice, one that may, and one that
 * may and fails at first. What they do to the world is a line of the log that survives the process, and a payment is in a
 * file of its own as well, where it can be looked up.
 */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import { Tool } from "heddle"
import { KillPoint } from "heddle/testing"
import { appendFileSync, existsSync, readFileSync, writeFileSync } from "node:fs"

/**
 * The policies for a payment that was interrupted between its start and its end. `continue` is none: the program abandons the
 * run that was interrupted, with its turn closed.
 */
export const policies = ["report", "lookUp", "ask", "retry", "fail", "continue"] as const

/** One of them. */
export type Policy = typeof policies[number]

const payments = `${KillPoint.folder()}/payments`

const pay = (key: string, order: number) => Effect.sync(() => appendFileSync(payments, `${key}\n${paymentOf(order)}\n`))

const isIn = (line: string): boolean =>
  existsSync(payments) && readFileSync(payments, "utf8").split("\n").includes(line)

const paymentOf = (order: number): string => `order ${order} is paid`

/** Returns whether an order was paid, as a person finds out. */
export const isPaid = (order: number): boolean => isIn(paymentOf(order))

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

const busy = `${KillPoint.folder()}/busy`

/** Returns `true` to the first attempt, whichever process makes it. */
const isBusy = (): boolean => {
  try {
    writeFileSync(busy, "", { flag: "wx" })
    return true
  } catch {
    return false
  }
}

const book = Tool.make("book", {
  parameters: { order: Schema.Finite },
  idempotent: true,
  retry: Schedule.recurs(2),
  handler: ({ order }, call) =>
    Effect.gen(function*() {
      yield* KillPoint.at("before the book is open")
      if (isBusy()) return yield* Effect.fail("the book is in use")
      yield* KillPoint.act(call)
      return `order ${order} is booked`
    })
})

/** The result of a payment of an order, also for the person who is asked about it. */
export const paid = (order: number) => ({ order, charged: true })

const noted = (order: number, call: Tool.CallContext) =>
  Effect.as(call.updateContext({ [`order ${order}`]: "charged" }), paid(order))

const chargeOf = (policy: Policy) => {
  const charging = {
    parameters: { order: Schema.Finite },
    handler: ({ order }: { readonly order: number }, call: Tool.CallContext) =>
      Effect.andThen(KillPoint.act(call, pay(call.idempotencyKey, order)), noted(order, call))
  }
  if (policy === "continue") return Tool.make("charge", charging)
  return policy === "lookUp"
    ? Tool.make("charge", {
      ...charging,
      lookUp: ({ order }, call) =>
        isIn(call.idempotencyKey) ? Effect.map(noted(order, call), Option.some) : Effect.succeedNone
    })
    : Tool.make("charge", { ...charging, afterCrash: policy })
}

/** The tools. */
export const toolsOf = (policy: Policy) => [lookup, chargeOf(policy), mail, book] as const
