/**
 * The program that is killed, on two processes that are workers of one store: one of them runs the session and is killed, and
 * the other takes over. Over Postgres, and over one SQLite file.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schedule from "effect/Schedule"
import { Session } from "heddle"
import { Worker } from "heddle/durable"
import { SessionStore } from "heddle/sql"
import { KillPoint } from "heddle/testing"
import { readFileSync, writeFileSync } from "node:fs"
import * as Database from "./database.ts"
import { resultOf } from "./result.ts"
import { options, services, settings } from "./session.ts"

const store = settings.server === ""
  ? SessionStore.layerSqlite({ filename: `${KillPoint.folder()}/sessions.db` })
  : Layer.unwrap(Effect.as(
    Database.made(settings.server),
    Layer.provide(SessionStore.layer, Database.client(settings.server))
  ))

const isAlive = (pid: number): boolean => {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

/** One of the processes says what is to be done. Where it died before that, the other one does. */
const mayBegin = (): boolean => {
  const file = `${KillPoint.folder()}/first`
  try {
    writeFileSync(file, `${process.pid}`, { flag: "wx" })
    return true
  } catch {
    const pid = Number(readFileSync(file, "utf8"))
    if (pid !== process.pid && isAlive(pid)) return false
    writeFileSync(file, `${process.pid}`)
    return true
  }
}

const session = Effect.gen(function*() {
  const kept = yield* Session.load("order")
  if (kept === undefined || (kept.session.thread.messages.length === 0 && kept.submitted === undefined)) {
    if (mayBegin()) yield* Session.submit("order", "Pay both orders")
    return undefined
  }
  const isOver = kept.interrupted === undefined && kept.submitted === undefined && kept.session.status !== "idle"
  return isOver ? kept.session : undefined
})

const program = Effect.gen(function*() {
  yield* Layer.build(Worker.layer({ run: () => options, term: "3 seconds", poll: "100 millis" }))
  const over = yield* Effect.repeat(session, {
    schedule: Schedule.spaced("50 millis"),
    until: (session) => session !== undefined
  })
  if (over !== undefined) yield* KillPoint.done(resultOf(over))
}).pipe(Effect.scoped, Effect.provide(Logger.layer([])))

await Effect.runPromise(Effect.provide(program, services(store)))
