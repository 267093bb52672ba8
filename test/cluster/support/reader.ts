/**
 * A reader of the events of a session as a process of its own: it tells the test each element, and exits with the end of what
 * runs.
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Session } from "heddle"
import { SessionClient } from "heddle/cluster"
import { client } from "./processes.ts"

const { database, id } = JSON.parse(process.argv[2]!) as { readonly database: string; readonly id: string }

const reader = Effect.gen(function*() {
  const { events } = yield* SessionClient.SessionClient
  const { version } = yield* Session.open(id)
  yield* events(id).pipe(
    Stream.tap((event) => Effect.sync(() => process.send!(event._tag === "Connected" ? event : { _tag: event._tag }))),
    Stream.takeUntil((event) => event._tag === "Connected" && event.version > version && event.requestId === undefined),
    Stream.runDrain
  )
}).pipe(Effect.provide(client(database)))

process.on("disconnect", () => process.exit(0))
await Effect.runPromise(reader)
process.exit(0)
