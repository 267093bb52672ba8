/**
 * The processes that share the sessions of one store, where a cluster decides which of them drives a session. Claims
 * keep the sessions safe whatever it decides.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import type * as Stream from "effect/Stream"

/** The sessions of a process, as the others reach them. */
export interface Sessions {
  /**
   * Takes a session, and tells whether the process drives it now. One whose last run is the failed one that is named is
   * continued.
   */
  readonly take: (key: string, failed: string | undefined) => Effect.Effect<boolean>
  /** Reads a session: what a request asks for, and in which form it comes, is the matter of its reader. */
  readonly read: (key: string, request: Schema.Json) => Stream.Stream<Schema.Json>
}

/** The other processes. */
export interface Peers {
  /** Tells whether this process is the one that drives a session. */
  readonly isHere: (key: string) => boolean
  /** Has the owner take a session. Succeeds with `false` where it does not, or does not answer within a second. */
  readonly take: Sessions["take"]
  /** Reads a session from its owner. The stream breaks off where the owner changes, and waits for the next one. */
  readonly read: Sessions["read"]
  /** Serves the sessions of this process to the others until the scope closes. */
  readonly serve: (sessions: Sessions) => Effect.Effect<void, never, Scope.Scope>
}

/** The other processes, where there is a cluster. None by default. */
export const Peers: Context.Reference<Peers | undefined> = Context.Reference<Peers | undefined>(
  "heddle/durable/Peers",
  { defaultValue: () => undefined }
)
