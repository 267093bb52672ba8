/**
 * One run of a session that goes on with what its store has: what the program does that is killed, whatever its store is.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Session } from "heddle"
import { KillPoint } from "heddle/testing"
import { parseArgs } from "node:util"
import * as Model from "./model.ts"
import { resultOf } from "./result.ts"
import { paid, type Policy, toolsOf } from "./tools.ts"

const { values } = parseArgs({
  options: {
    policy: { type: "string", default: "report" },
    ids: { type: "string", default: "same" },
    server: { type: "string", default: "" }
  }
})

/** What the command line says: the policy, the ids that the model gives its calls, and the database server. */
export const settings = { policy: values.policy as Policy, ids: values.ids as Model.Ids, server: values.server }

const { policy } = settings

/** The tools. */
export const tools = toolsOf(policy)

/** The store and the model, with their boundaries. */
export const services = <E, R>(store: Layer.Layer<Session.Store, E, R>) =>
  KillPoint.watch(Layer.merge(store, Model.layer(settings.ids)))

/** The next operation on a session, or `undefined` where nothing is left to do. */
const next = (kept: Session.Kept) => {
  const { interrupted, session } = kept
  const [question] = session.suspensions
  if (interrupted !== undefined && policy !== "continue") return Session.resume(kept, { tools, takeOver: true })
  if (question !== undefined) return Session.keep(kept, (session) => answered(session, question))
  if (session.status !== "idle") return undefined
  return Session.keep(kept, (session) =>
    session.thread.messages.length === 0
      ? Session.reply(session, "Pay both orders", { tools })
      : Session.continue(session, null, { tools }))
}

/** The person who is asked whether an order was paid has looked, and says that it was. */
const answered = (session: Session.Session, { id, toolCall }: Session.Session["suspensions"][number]) =>
  Session.answer(session, id, paid(Number(toolCall.arguments?.["order"])))

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
