/**
 * The ledger of a claim: what its operations begin, end and leave, in any order, decides whether it goes back at once or
 * stays for its term. All sequences of three notes are gone through, over a session and its nested runs.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import { Session } from "heddle"
import { OwnClaim } from "../../src/internal/session/claim.ts"

const hash = "0123456789abcdef"

const [outer, inner, deep, beside] = ["s", `s/c0@${hash}`, `s/c0@${hash}/d0@${hash}.2`, `s/c1@${hash}`] as const

/** The runs that each journal is nested in, as the ids were made above. */
const around: Readonly<Record<string, ReadonlyArray<string>>> = {
  [outer]: [],
  [inner]: [outer],
  [deep]: [inner, outer],
  [beside]: [outer]
}

type Note =
  | { readonly does: "begin" | "end"; readonly journal: string; readonly call: string }
  | { readonly does: "left"; readonly journal: string; readonly calls: "started" | "nested" | "none" }

const notes: ReadonlyArray<Note> = Object.keys(around).flatMap((journal): ReadonlyArray<Note> => [
  { does: "begin", journal, call: "c" },
  { does: "begin", journal, call: "d" },
  { does: "end", journal, call: "c" },
  { does: "left", journal, calls: "started" },
  { does: "left", journal, calls: "nested" },
  { does: "left", journal, calls: "none" }
])

const sequences = notes.flatMap((first) => notes.flatMap((second) => notes.map((third) => [first, second, third])))

/** Tells whether anything is under way or in doubt: the last note about it says so. */
const isHeld = (sequence: ReadonlyArray<Note>): boolean =>
  Object.keys(around).some((journal) => {
    const about = (call: string) =>
      sequence.findLast((note) => note.journal === journal && (note.does === "left" || note.call === call))
    const left = sequence.findLast((note) =>
      note.does === "left"
      && (note.journal === journal || note.calls === "none" && around[journal]!.includes(note.journal))
    )
    const isInDoubt = left?.does === "left" && left.journal === journal && left.calls === "started"
    return isInDoubt || ["c", "d"].some((call) => about(call)?.does === "begin")
  })

const termMillis = 30_000

/** What a claim with these notes asks of its store when it is released, and when it rests. */
const asked = (sequence: ReadonlyArray<Note>) =>
  Effect.gen(function*() {
    const seen: Array<unknown> = []
    const base = yield* Session.Store
    const store = {
      ...base,
      renew: (_: string, __: string, millis: number) => Effect.sync(() => seen.push(millis) > 0),
      release: () => Effect.sync(() => void seen.push("released"))
    }
    for (const end of [(claim: OwnClaim) => claim.release, (claim: OwnClaim) => claim.rest(5)]) {
      const terms = { owner: "one", termMillis, pollMillis: 100 }
      const claim = new OwnClaim(outer, terms, store, Context.empty())
      for (const note of sequence) {
        if (note.does === "left") claim.left(note.journal, note.calls)
        else claim[note.does](note.journal, note.call)
      }
      yield* end(claim)
    }
    return seen
  })

describe("the ledger of a claim", () => {
  it.effect(
    "a claim goes back at once, or rests for the given time, unless a call is running or in doubt",
    () =>
      Effect.gen(function*() {
        for (const sequence of sequences) {
          const expected = isHeld(sequence) ? [termMillis, termMillis] : ["released", 5]
          assert.deepStrictEqual(yield* asked(sequence), expected, JSON.stringify(sequence))
        }
      }).pipe(Effect.provide(Session.Store.layerMemory)),
    60_000
  )

  for (const order of [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]) {
    it.effect(`a claim keeps its scope open until its last operation has ended: ${order.join()}`, () =>
      Effect.gen(function*() {
        const store = yield* Session.Store
        const claim = new OwnClaim(outer, { owner: "one", termMillis, pollMillis: 100 }, store, Context.empty())
        const scope = yield* Scope.make()
        yield* Scope.provide(claim.hold, scope)
        const operations = yield* Effect.forEach(order, () => Scope.make())
        for (const operation of operations) yield* Scope.provide(claim.enter, operation)
        const closing = yield* Effect.forkChild(Scope.close(scope, Exit.void), { startImmediately: true })
        for (const place of order) {
          for (let yields = 0; yields < 20; yields++) yield* Effect.yieldNow
          assert.isUndefined(closing.pollUnsafe(), `before the end of ${place}`)
          yield* Scope.close(operations[place]!, Exit.void)
        }
        // The clock of the test stands still: no grace period has passed.
        yield* Fiber.join(closing)
      }).pipe(Effect.provide(Session.Store.layerMemory)))
  }
})
