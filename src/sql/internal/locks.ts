/**
 * Waiting for the write lock of a SQLite file.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"

/**
 * Tells whether a statement waits for a lock that another connection holds. A caller that need not have the lock
 * sets it to `false`, looks again after a failure, and leaves the client to others meanwhile.
 */
export const IsWaiting: Context.Reference<boolean> = Context.Reference("heddle/sql/IsWaiting", {
  defaultValue: () => true
})
