/** A worker as a real process over one SQLite file that is killed, once. `Worker.process.test.ts` has the rest. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Session } from "heddle"
import * as path from "node:path"
import { find, limit } from "../support/until.ts"
import * as Processes from "./support/processes.ts"
import { acts, letGo, type Place, stored } from "./support/work.ts"

const held = ({ world }: Place, { pid }: Processes.Worker) =>
  find(`hold 1 of ${pid}`, Effect.sync(() => acts(world, "s").find((act) => act.pid === pid && act.what === "hold 1")))

describe("a killed worker process", () => {
  it.live(
    "D-01, D-16: the session of a killed worker is taken over after its term, and each charge is made once",
    () =>
      Effect.gen(function*() {
        const store = path.join(yield* Processes.folder, "sessions.db")
        const place: Place = { store, world: yield* Processes.world, term: 3000 }
        yield* Effect.gen(function*() {
          const { claimOf } = yield* Session.Store
          const first = yield* Processes.start(place)
          yield* Session.submit("s", "charge 1, hold 1 then charge 2")
          yield* held(place, first)
          first.signal("SIGKILL")
          yield* first.ended
          const claim = yield* claimOf("s")
          const next = yield* Processes.start(place)
          const again = yield* held(place, next)
          assert.isAtLeast(again.at, claim!.until, "nothing acts while the claim holds")
          letGo(place.world, 1)
          yield* find(
            "the end of the run",
            Effect.map(Session.load("s"), (kept) => kept?.session.status === "completed" ? kept : undefined)
          )
          const charges = acts(place.world, "s").filter(({ what }) => what.startsWith("charge"))
          assert.deepStrictEqual(charges.map(({ pid, what }) => [pid, what]), [
            [first.pid, "charge 1"],
            [next.pid, "charge 2"]
          ])
        }).pipe(Effect.provide(stored(store)))
      }).pipe(Effect.scoped),
    limit
  )
})
