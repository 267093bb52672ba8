/**
 * Replies a store did not take, kept for the run's next attempt, so that a model is not asked and paid twice for the
 * same reply.
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as Requests from "../../internal/ask/request.ts"
import * as Journal from "../../Journal.ts"

/** Number of sessions whose replies are kept. */
const mostSessions = 100

/** Number of runs per attempt whose replies are kept. */
const mostRuns = 100

/** Returns `true` if an attempt failed because the store refused an append it may accept next time. */
const isRefused = (error: unknown): boolean =>
  error instanceof Journal.StoreError && error.operation === "append"
  && error.reason !== "too_large" && error.reason !== "unreadable"

/** A reply so far. */
interface Reply {
  readonly stepIndex: number
  readonly events: Array<Event.AdapterEvent>
}

/** Latest replies in a session, by request id: from its run and nested runs. */
type Replies = Map<string, Reply>

const isWhole = ({ events }: Reply): boolean => events.at(-1)?._tag === "MessageCompleted"

/** Unrecorded replies by session id. */
export class Unrecorded {
  private readonly kept = new Map<string, Replies>()

  /**
   * Begins an attempt at a session's work with the previous attempt's replies. The returned adapter belongs to this
   * attempt; `keep` keeps its replies for the next.
   */
  begin(id: string, adapter: Adapter.Service): { readonly adapter: Adapter.Service; readonly keep: () => void } {
    const before = this.kept.get(id)
    this.kept.delete(id)
    const replies: Replies = new Map()
    return {
      adapter: Requests.changed(adapter, (adapter) => ({
        ...adapter,
        stream: (request) => repeating(adapter, request, before, replies)
      })),
      keep: () => this.keep(id, replies)
    }
  }

  /**
   * Does a session's work with the previous attempt's replies. Keeps its own replies if the store refuses an append.
   */
  during<A, E, R>(id: string, work: Effect.Effect<A, E, R>): Effect.Effect<A, E, R | Adapter.Adapter> {
    return Effect.flatMap(Adapter.Adapter, (given) => {
      const { adapter, keep } = this.begin(id, given)
      return Effect.tapError(
        Effect.provideService(work, Adapter.Adapter, adapter),
        (error) => isRefused(error) ? Effect.sync(keep) : Effect.void
      )
    })
  }

  private keep(id: string, replies: Replies): void {
    for (const [run, reply] of replies) if (!isWhole(reply)) replies.delete(run)
    this.kept.set(id, replies)
    const [oldest] = this.kept.keys()
    if (oldest !== undefined && this.kept.size > mostSessions) this.kept.delete(oldest)
  }
}

/** Returns the previous attempt's reply, if any, else asks the model. Records the reply. */
const repeating = (
  adapter: Adapter.Service,
  request: Adapter.Request,
  before: Replies | undefined,
  replies: Replies
): ReturnType<Adapter.Service["stream"]> => {
  const { run } = request
  if (run === undefined) return adapter.stream(request)
  const known = before?.get(run.requestId)
  // A second request in the same attempt is a new reply.
  before?.delete(run.requestId)
  const reply: Reply = { stepIndex: run.stepIndex, events: [] }
  // A finished run no longer needs its reply.
  const [oldest] = replies.size < mostRuns ? [] : replies.keys()
  if (oldest !== undefined) replies.delete(oldest)
  replies.set(run.requestId, reply)
  const events = known?.stepIndex === run.stepIndex ? Stream.fromIterable(known.events) : adapter.stream(request)
  return Stream.map(events, (event) => {
    reply.events.push(event)
    return event
  })
}
