/**
 * The program that is killed, on two processes over one store: each of them goes on with the session as soon as it can claim
 * it, so that one takes over from the other. `npm run crash -- --store workers` runs it over Postgres, `--store file` over
 * one SQLite file.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import { Session } from "heddle"
import { SessionStore } from "heddle/sql"
import { KillPoint } from "heddle/testing"
import * as Database from "./database.ts"
import { goOn, services, settings } from "./session.ts"

const store = settings.server === ""
  ? SessionStore.layerSqlite({ filename: `${KillPoint.folder()}/sessions.db` })
  : Layer.unwrap(Effect.as(
    Database.made(settings.server),
    Layer.provide(SessionStore.layer, Database.client(settings.server))
  ))

/** An owner that was too slow to renew its claim has lost the session to the other process, and waits for it as well. */
const isTaken = ({ _tag }: { readonly _tag: string }): boolean =>
  _tag === "SessionClaimed" || _tag === "SessionConflict"

const program = Session.claim("order", { term: "1 second", poll: "100 millis" }).pipe(
  Effect.flatMap(goOn),
  Effect.scoped,
  Effect.retry({ while: isTaken, schedule: Schedule.spaced("50 millis") }),
  Effect.flatMap(KillPoint.done)
)

await Effect.runPromise(Effect.provide(program, services(store)))
