/** What the calls of one turn are run with: settings, services of the caller, and what their run shares. */
import type * as Clock from "effect/Clock"
import type * as Context from "effect/Context"
import type * as Executor from "../Executor.ts"
import type * as Policy from "../Policy.ts"
import type { Ambient } from "./ambient.ts"
import type * as Answer from "./answer.ts"
import type { Running } from "./running.ts"

export interface Settings {
  readonly policy: Policy.Policy
  /** Milliseconds a handler may take where its tool says nothing else. */
  readonly timeoutMillis: number
  readonly bound: number
  readonly context: Readonly<Record<string, unknown>>
  readonly requestId: string
  readonly sessionId: string | null
  readonly stepIndex: number
}

export interface Workshop<E> {
  readonly settings: Settings
  readonly executor: Executor.Service
  readonly desk: Omit<Answer.Desk<E, any>, "limit">
  readonly running: Running
  readonly ambient: Ambient
  readonly services: Context.Context<any>
  readonly clock: Clock.Clock
}
