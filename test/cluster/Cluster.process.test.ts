/**
 * A cluster of real processes over a real Postgres: owners that are killed, frozen and asked to leave, and what becomes of
 * the sessions that they had. `npm run crash` kills owners at every boundary; here each kind of end happens once.
 */
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { Message, Session } from "heddle"
import { SessionClient } from "heddle/cluster"
import * as Postgres from "../support/postgres.ts"
import * as Processes from "./support/processes.ts"
import { type Act, acts as actsIn } from "./support/work.ts"

type Services = SessionClient.SessionClient | Session.Store

let services: Context.Context<Services>
let runners: ReadonlyArray<Processes.Runner>
let world: string

const scope = Scope.makeUnsafe()

/** Starts a runner beside those that there are. */
let startRunner: Effect.Effect<Processes.Runner>

beforeAll(async () => {
  const started = Effect.gen(function*() {
    const database = yield* Postgres.database
    world = yield* Processes.world
    startRunner = Scope.provide(Processes.start({ database, world }), scope)
    // One after the other: of those that start together each takes shards from the one before it.
    runners = yield* Effect.forEach([1, 2, 3], () => startRunner, { concurrency: "unbounded" })
    services = yield* Layer.build(Processes.client(database))
  })
  await Effect.runPromise(Scope.provide(started, scope))
}, 60_000)

afterAll(() => Effect.runPromise(Scope.close(scope, Exit.void)))

const acts = (session: string): ReadonlyArray<Act> => actsIn(world, session)

/** Waits until the world has this many acts of a session. */
const until = (session: string, count: number) =>
  Effect.sync(() => acts(session)).pipe(
    Effect.repeat({ schedule: Schedule.spaced("10 millis"), until: (acts) => acts.length >= count }),
    Effect.map((acts) => acts[count - 1]!)
  )

let sessions = 0

/** Sessions whose owner is the same runner, each with one act. */
const together = (count: number) =>
  Effect.gen(function*() {
    const { reply } = yield* SessionClient.SessionClient
    const owned = new Map<number, ReadonlyArray<string>>()
    while (true) {
      const id = `session-${++sessions}`
      yield* reply(id, "charge 0")
      const { pid } = acts(id).at(-1)!
      const ids = [...owned.get(pid) ?? [], id]
      if (ids.length === count) return { ids, owner: runners.find((runner) => runner.pid === pid)! }
      owned.set(pid, ids)
    }
  })
