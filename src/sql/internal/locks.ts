/**
 * Waiting for a SQLite file's write lock.
 */
import * as Context from "effect/Context"

/**
 * `true` if a statement waits for another connection's lock. A caller that does not need the lock sets it to `false`,
 * retries after a failure, and leaves the client to others meanwhile.
 */
export const IsWaiting: Context.Reference<boolean> = Context.Reference("heddle/sql/IsWaiting", {
  defaultValue: () => true
})
