/**
 * Processes sharing a store's sessions, where a cluster decides which process drives a session. Claims keep sessions
 * safe whatever the cluster decides.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import type * as Stream from "effect/Stream"

/** A process's sessions, reachable from other processes. */
export interface Sessions {
  /**
   * Takes a session, continuing after the named failed run if still its last. Returns whether the process now drives
   * the session.
   */
  readonly take: (key: string, failed: string | undefined) => Effect.Effect<boolean>
  /** Reads a session. The reader defines what a request contains and what form the result has. */
  readonly read: (key: string, request: Schema.Json) => Stream.Stream<Schema.Json>
}

/** Access to the other processes. */
export interface Peers {
  /** Returns `true` if the cluster has assigned a session to this process, whether or not it drives the session. */
  readonly isHere: (key: string) => boolean
  /**
   * Makes the owner take a session. Returns `false` if this process is the owner, or if the owner refuses or does not
   * answer within a second.
   */
  readonly take: Sessions["take"]
  /** Reads a session from its owner. If the owner changes, the stream ends, or begins again with the next owner. */
  readonly read: Sessions["read"]
  /** Serves this process's sessions to the others until the scope closes. */
  readonly serve: (sessions: Sessions) => Effect.Effect<void, never, Scope.Scope>
}

/** The other processes, in a cluster. None by default. */
export const Peers: Context.Reference<Peers | undefined> = Context.Reference<Peers | undefined>(
  "heddle/durable/Peers",
  { defaultValue: () => undefined }
)
