/**
 * The program that is killed: one run of a session over a store. Started again, it goes on with what the store has, and
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
import { tools } from "./tools.ts"

const { values } = parseArgs({
  options: {
    store: { type: "string", default: "sqlite" },
    policy: { type: "string", default: "continue" },
    ids: { type: "string", default: "same" }
  }
})

const store = SessionStore.layerSqlite({ filename: `${KillPoint.folder()}/sessions.db` })

const services = KillPoint.watch(Layer.merge(store, Model.layer(values.ids as Model.Ids)))

const program = Effect.gen(function*() {
  const opened = yield* Session.open("order")
  if (opened.session.status === "completed") return yield* KillPoint.done(resultOf(opened))
  const kept = yield* Session.keep(opened, (session) =>
    session.thread.messages.length === 0
      ? Session.reply(session, "Pay both orders", { tools })
      : Session.continue(session, null, { tools }))
  yield* KillPoint.done(resultOf(kept, kept.value.result))
})

await Effect.runPromise(Effect.provide(program, services))
