/** What the calls of a turn are run with: what a batch is given, and every handling of it uses. */
import type * as Clock from "effect/Clock"
import type * as Context from "effect/Context"
import type * as Encoder from "../../Encoder.ts"
import type * as Executor from "../../Executor.ts"
import type * as Policy from "../../Policy.ts"
import type * as Declared from "../declare/tool.ts"
import type { Ambient } from "../stop/inherited.ts"
import type { Running } from "../stop/ownedFibers.ts"

interface Settings<E> {
  readonly policy: Policy.Policy
  readonly onToolError: Declared.OnToolError<E, any>
  /** Milliseconds a handler may take where its tool says nothing else. */
  readonly timeoutMillis: number
  readonly context: Readonly<Record<string, unknown>>
  readonly requestId: string
  readonly sessionId: string | null
  /** The ids of calls that somebody has approved. */
  readonly approved?: ReadonlySet<string>
}

/** What a batch finds among the services of the step that opens it. */
export interface Found {
  /** Where it was found. */
  readonly context: Context.Context<any>
  readonly executor: Executor.Service
  readonly encoder: Encoder.Service
  /** What handlers are run with. */
  readonly services: Context.Context<any>
  readonly clock: Clock.Clock
  readonly isTraced: boolean
}

/** What a batch works with. */
export interface Workshop<E> {
  readonly found: Found
  readonly settings: Settings<E>
  /** How many handlers of the batch may run at once. */
  readonly bound: number
  readonly stepIndex: number
  readonly running: Running
  readonly ambient: Ambient
}
