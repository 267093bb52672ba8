/** The program that is killed, over a Postgres server: the same, one process after the other. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { SessionStore } from "heddle/sql"
import * as Database from "./database.ts"
import { program, services, settings } from "./session.ts"

const store = Layer.provide(SessionStore.layer, Database.client(settings.server))

await Effect.runPromise(Effect.andThen(Database.made(settings.server), Effect.provide(program, services(store))))
