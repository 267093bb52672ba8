/**
 * Real processes that leave, stand still, or have a clock that is set, while a bank charges for them. The bank recognises no
 * charge: a second request charges again. `npm run crash -- leave` does this at random moments.
 */
import { assert, beforeAll, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { Session } from "heddle"
import * as fs from "node:fs"
import * as path from "node:path"
import { bundle } from "../../scratchpad/crash/bundle.ts"
import * as Processes from "../../scratchpad/crash/leave/processes.ts"
import { lines, type Place, stored } from "../../scratchpad/crash/leave/work.ts"
import * as Postgres from "../support/postgres.ts"
import { root } from "../support/source.ts"
import { find, limit, until } from "../support/until.ts"

let program: string

beforeAll(async () => {
  program = await bundle(path.join(root, "scratchpad/crash/leave/program.ts"))
}, limit)

const stores: Readonly<Record<string, (folder: string) => Effect.Effect<string>>> = {
  SQLite: (folder) => Effect.succeed(path.join(folder, "sessions.db")),
  Postgres: () => Postgres.database
}

/** Longer than a test waits for anything. */
const tenMinutes = 600_000

const hour = 3_600_000

/** A bank, a store, and processes over both. */
interface World {
  readonly bank: Processes.Bank
  /** The file in which the processes say what they do. */
  readonly log: string
  readonly start: (place?: Partial<Place>) => Effect.Effect<Processes.Owner, never, Scope.Scope>
  /** Waits until the log of the processes has a line. */
  readonly said: (what: string, pid: number) => Effect.Effect<unknown>
}

/** A test with a world of its own, whose charges take so many milliseconds, or until the test ends them. */
const test = (
  title: string,
  store: (folder: string) => Effect.Effect<string>,
  time: number | "held",
  body: (world: World) => Effect.Effect<void, unknown, Session.Store | Scope.Scope>
) =>
  it.live(title, () =>
    Effect.gen(function*() {
      const folder = yield* Processes.folder
      const log = path.join(folder, "log.jsonl")
      fs.writeFileSync(log, "")
      const bank = yield* Processes.bank(time)
      const place: Place = {
        kind: "worker",
        store: yield* store(folder),
        bank: bank.address,
        log,
        term: tenMinutes,
        drain: tenMinutes,
        think: 0
      }
      const world: World = {
        bank,
        log,
        start: (own = {}) => Processes.start(program, { ...place, ...own }),
        said: (what, pid) =>
          find(
            `${what} of ${pid}`,
            Effect.sync(() => lines(log).find((line) => line.what === what && line.pid === pid))
          )
      }
      yield* Effect.provide(body(world), stored(place.store))
    }).pipe(Effect.scoped), limit)

const charges = ({ bank }: World) =>
  Effect.map(bank.ledger, ({ charges }) => charges.map(({ amount, pid }) => [amount, pid]))

/** The handlers that have begun. */
const handlers = ({ log }: World) =>
  lines(log).filter(({ what }) => what === "begins").map(({ pid, value }) => [value, pid])

/** Waits until the bank has been asked for a charge. */
const begun = ({ bank }: World) => until("a charge", bank.ledger, ({ charges }) => charges.length > 0)

const completed = (id: string) =>
  until(
    `the end of ${id}`,
    Effect.map(Session.load(id), (kept) => kept?.session.status),
    (status) => status === "completed"
  )

/** The calls of a run that has no end, as the next owner finds them. */
const open = (id: string) => Effect.map(Session.load(id), (kept) => kept?.interrupted?.calls.map(({ state }) => state))

const claimOf = (id: string) => Effect.flatMap(Session.Store, (store) => store.claimOf(id))

/** Waits until a claim was renewed so many times, or has another owner. Succeeds with its owner. */
const renewed = (id: string, times: number) =>
  Effect.gen(function*() {
    let claim = yield* claimOf(id)
    const owner = claim?.owner
    for (let time = 0; time < times && claim?.owner === owner; time++) {
      const { until: before } = claim!
      claim = yield* until(`renewal of ${id}`, claimOf(id), (claim) => claim?.until !== before)
    }
    return claim?.owner
  })

for (const [name, store] of Object.entries(stores)) {
  describe(`processes that leave, over ${name}`, { concurrent: true }, () => {
    test(
      `N-05: a worker asked to leave lets its charge end, records the answer and hands over, ${name}`,
      store,
      "held",
      (world) =>
        Effect.gen(function*() {
          const first = yield* world.start()
          yield* Session.submit("s", "s: charge 1 then charge 2")
          yield* begun(world)
          const second = yield* world.start()
          first.signal("SIGTERM")
          // It has heard the signal when it answers an order that comes after it.
          yield* first.order({ _tag: "Freeze" })
          yield* world.bank.end
          assert.deepStrictEqual(yield* first.ended, { code: 130, signal: null })
          yield* until("the second charge", world.bank.ledger, ({ charges }) => charges.length === 2)
          yield* world.bank.end
          yield* completed("s")
          assert.deepStrictEqual(yield* charges(world), [[1, first.pid], [2, second.pid]])
          assert.isEmpty((yield* world.bank.ledger).lookUps)
        })
    )

    test(
      `N-05: the next worker continues at once when no call is running, ${name}`,
      store,
      0,
      (world) =>
        Effect.gen(function*() {
          const first = yield* world.start({ think: tenMinutes })
          yield* Session.submit("s", "s: charge 1")
          yield* world.said("asks", first.pid)
          const second = yield* world.start()
          first.signal("SIGTERM")
          // The term is longer than the test waits.
          yield* completed("s")
          assert.deepStrictEqual(yield* first.ended, { code: 130, signal: null })
          assert.deepStrictEqual(yield* charges(world), [[1, second.pid]])
        })
    )

    test(
      `N-05: a charge that outlives the drain stays started and is looked up after the term, ${name}`,
      store,
      "held",
      (world) =>
        Effect.gen(function*() {
          const first = yield* world.start({ drain: 500 })
          yield* Session.submit("s", "s: charge 1")
          yield* begun(world)
          const held = yield* claimOf("s")
          yield* world.start()
          first.signal("SIGTERM")
          yield* first.ended
          assert.deepStrictEqual(yield* open("s"), ["Started"])
          const left = yield* claimOf("s")
          assert.strictEqual(left?.owner, held?.owner)
          assert.isAtLeast(left!.until, held!.until)
          assert.isEmpty((yield* world.bank.ledger).lookUps)
          yield* world.bank.end
          // The end of the term.
          yield* Session.revoke("s")
          yield* completed("s")
          assert.deepStrictEqual(yield* charges(world), [[1, first.pid]])
          assert.deepStrictEqual((yield* world.bank.ledger).lookUps.map(({ isFound }) => isFound), [true])
        })
    )

    for (const by of ["interruption", "scope"] as const) {
      const title = by === "scope" ? "a closed scope of a claim" : "an interrupted fiber in the scope of a claim"
      test(
        `N-05: ${title} leaves the claim to its term while a charge is started, ${name}`,
        store,
        "held",
        (world) =>
          Effect.gen(function*() {
            const first = yield* world.start({ kind: "claims" })
            yield* first.order({ _tag: "Drive", id: "s", text: "s: charge 1" })
            yield* begun(world)
            const held = yield* claimOf("s")
            yield* first.order({ _tag: "Close", by })
            assert.strictEqual((yield* claimOf("s"))?.owner, held?.owner)
            assert.deepStrictEqual(yield* open("s"), ["Started"])
            yield* world.bank.end
            yield* Session.revoke("s")
            yield* completed("s")
            assert.deepStrictEqual(yield* charges(world), [[1, first.pid]])
          })
      )
    }

    test(
      `N-04: a worker frozen before its handler does not start the handler after a takeover, ${name}`,
      store,
      0,
      (world) =>
        Effect.gen(function*() {
          const first = yield* world.start({ term: 1500 })
          yield* first.order({ _tag: "Freeze", at: "after" })
          yield* Session.submit("s", "s: charge 1")
          yield* world.said("is frozen", first.pid)
          const second = yield* world.start({ term: 1500 })
          yield* completed("s")
          first.signal("SIGCONT")
          second.signal("SIGKILL")
          // It is a worker like any other, and has come to what it had begun.
          yield* Session.submit("t", "t: charge 2")
          yield* completed("t")
          assert.deepStrictEqual(handlers(world), [[1, second.pid], [2, first.pid]])
          assert.deepStrictEqual(yield* charges(world), [[1, second.pid], [2, first.pid]])
        })
    )

    test(
      `N-17: a worker whose clock is set by an hour keeps its claim and charges once, ${name}`,
      store,
      "held",
      (world) =>
        Effect.gen(function*() {
          const first = yield* world.start({ term: 9000 })
          yield* Session.submit("s", "s: charge 1")
          yield* begun(world)
          yield* world.start({ term: 9000 })
          const owner = yield* renewed("s", 2)
          for (const aheadMillis of [hour, -hour]) {
            yield* first.order({ _tag: "Set", aheadMillis })
            assert.strictEqual(yield* renewed("s", 2), owner)
          }
          yield* world.bank.end
          yield* completed("s")
          assert.deepStrictEqual(yield* charges(world), [[1, first.pid]])
          assert.isEmpty((yield* world.bank.ledger).lookUps)
        })
    )
  })
}
