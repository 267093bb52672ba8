/**
 * The program that is killed, over a SQLite file. Started again, it goes on with what the store has, and reports the result.
 * `npm run crash` runs it in processes of its own.
 */
import * as Effect from "effect/Effect"
import { SessionStore } from "heddle/sql"
import { KillPoint } from "heddle/testing"
import { program, services } from "./session.ts"

const store = SessionStore.layerSqlite({ filename: `${KillPoint.folder()}/sessions.db` })

await Effect.runPromise(Effect.provide(program, services(store)))
