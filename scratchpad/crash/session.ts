/**
 * One run of a session that goes on with what its store has: what the program does that is killed, whatever its store is.
 */
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import { Policy, Session } from "heddle"
import { KillPoint } from "heddle/testing"
import { parseArgs } from "node:util"
import * as Model from "./model.ts"
import { resultOf } from "./result.ts"
import * as Tools from "./tools.ts"
import { turns } from "./turns.ts"

const { values } = parseArgs({
  options: {
    policy: { type: "string", default: "report" },
    ids: { type: "string", default: "same" },
    server: { type: "string", default: "" },
    turns: { type: "string", default: `${turns.length}` }
  }
})

/** The command line: the policy, the ids that the model gives its calls, and the database server. */
export const settings = { policy: values.policy as Tools.Policy, ids: values.ids as Model.Ids, server: values.server }

const { policy } = settings

/** The options of every run: its turns end in an answer, whatever the model would call then. */
export const options = {
  tools: Tools.toolsOf(policy),
  maxTurns: turns.length,
  policy: { ...Policy.standard, onMaxTurns: "finalize" }
} as const

/** The store and the model, with their boundaries. */
export const services = <E, R>(store: Layer.Layer<Session.Store, E, R>) =>
  KillPoint.watch(Model.layer(store, settings.ids, turns.slice(0, Number(values.turns))))

/** The next operation on a session, or `undefined` where nothing is left to do. */
const next = (kept: Session.Kept) => {
  const { session } = kept
  const [open] = session.suspensions
  if (kept.interrupted !== undefined && policy !== "continue") {
    return Session.resume(kept, { ...options, takeOver: true })
  }
  if (open !== undefined) return Session.keep(kept, (session) => settled(session, open))
  if (session.status !== "idle") return undefined
  return Session.keep(kept, (session) =>
    session.thread.messages.length === 0
      ? Session.reply(session, "Pay both orders", options)
      : Session.continue(session, null, options))
}

/**
 * The person who is asked whether an order was paid looks. What was paid has its receipt, and what was not is paid now.
 */
const settled = (session: Session.Session, { id, kind, toolCall }: Session.Session["suspensions"][number]) => {
  if (kind !== "unknown") throw new Error(`a call waits for ${kind}, not for a verdict about its effect`)
  const order = Number(toolCall.arguments?.["order"])
  return Tools.isPaid(order) ? Session.answer(session, id, Tools.paid(order)) : Session.approve(session, id)
}

/** Goes on with a session until nothing is left to do. */
export const goOn = (opened: Session.Kept) =>
  Effect.gen(function*() {
    let kept = opened
    let done: Session.Done | undefined
    for (let operation = next(kept); operation !== undefined; operation = next(kept)) {
      const outcome: Session.Outcome<Session.Done | Session.Session> = yield* operation
      kept = outcome
      if ("result" in outcome.value) done = outcome.value
    }
    return resultOf(kept.session, done?.result)
  })

/** The session from where its store has it to its end, with its result. */
export const program = Session.open("order").pipe(Effect.flatMap(goOn), Effect.flatMap(KillPoint.done))
