/**
 * Stores for tests that look at one operation of a store alone.
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type { Session } from "heddle"

const never = (operation: string) => Effect.die(new Error(`the store was asked for ${operation}`))

/** A store that must not be asked for anything: take it, and add what the test is about. */
export const untouched: Session.StoreService = {
  append: () => never("append"),
  version: () => never("version"),
  read: () => Stream.fromEffect(never("read")),
  unfinished: Stream.fromEffect(never("unfinished")),
  list: () => Stream.fromEffect(never("list")),
  truncate: () => never("truncate"),
  delete: () => never("delete"),
  claim: () => never("claim"),
  release: () => never("release"),
  claimUnfinished: () => never("claimUnfinished")
}
