/**
 * The program that is killed: a session with one run over a store. Started again, it goes on with what the store has, and
 * reports the result. `npm run crash` runs it in processes of its own.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Session } from "heddle"
import { SessionStore } from "heddle/sql"
import { KillPoint } from "heddle/testing"
import { parseArgs } from "node:util"
import * as Model from "./model.ts"
import { resultOf } from "./result.ts"
import { paid, type Policy, toolsOf } from "./tools.ts"

const { values } = parseArgs({
  options: {
    store: { type: "string", default: "sqlite" },
    policy: { type: "string", default: "report" },
    ids: { type: "string", default: "same" }
  }
})

const policy = values.policy as Policy
const tools = toolsOf(policy)
const store = SessionStore.layerSqlite({ filename: `${KillPoint.folder()}/sessions.db` })
const services = KillPoint.watch(Layer.merge(store, Model.layer(values.ids as Model.Ids)))

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

const program = Effect.gen(function*() {
  let kept: Session.Kept = yield* Session.open("order")
  let done: Session.Done | undefined
  for (let operation = next(kept); operation !== undefined; operation = next(kept)) {
    const outcome: Session.Outcome<Session.Done | Session.Session> = yield* operation
    kept = outcome
    if ("result" in outcome.value) done = outcome.value
  }
  yield* KillPoint.done(resultOf(kept.session, done?.result))
})

await Effect.runPromise(Effect.provide(program, services))
