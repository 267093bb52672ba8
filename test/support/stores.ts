/**
 * Stores for tests that look at one operation of a store alone.
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type { Journal } from "heddle"
import * as States from "../../src/internal/session/state.ts"

const never = (operation: string) => Effect.die(new Error(`the store was asked for ${operation}`))

/** A store that must not be asked for anything: take it, and add what the test is about. */
export const untouched: Journal.Service = {
  append: () => never("append"),
  version: () => never("version"),
  read: () => Stream.fromEffect(never("read")),
  unfinished: Stream.fromEffect(never("unfinished")),
  list: () => Stream.fromEffect(never("list")),
  count: () => never("count"),
  truncate: () => never("truncate"),
  delete: () => never("delete"),
  claim: () => never("claim"),
  renew: () => never("renew"),
  claimOf: () => never("claimOf"),
  release: () => never("release"),
  claimUnfinished: () => never("claimUnfinished")
}

/**
 * Appends records to a journal behind what it has, as an operation does: with the summary of the session, by which workers
 * find it. Succeeds with the new version.
 */
export const appendAll = (store: Journal.Service, id: string, records: ReadonlyArray<Journal.Record>) =>
  Effect.gen(function*() {
    const state = States.initial(id)
    yield* Stream.runForEach(store.read(id), ({ record }) => Effect.sync(() => States.apply(state, record)))
    const version = yield* store.version(id)
    const [first, ...rest] = records
    if (first === undefined) return version
    for (const record of records) States.apply(state, record)
    return yield* store.append(id, version, [first, ...rest], { summary: States.summaryOf(state) })
  })
