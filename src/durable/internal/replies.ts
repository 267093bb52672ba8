/**
 * Replies that a store did not take, for the next attempt at their run: a model is not asked, and paid, again for what
 * it has said.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as Requests from "../../internal/ask/request.ts"
import * as Journal from "../../Journal.ts"

/** Number of sessions whose replies are kept. */
const mostSessions = 100

/** Number of runs of one attempt whose replies are kept. */
const mostRuns = 100

/** Tells whether an attempt failed since the store refused an append that it may take the next time. */
const isRefused = (error: unknown): boolean =>
  error instanceof Journal.StoreError && error.operation === "append"
  && error.reason !== "too_large" && error.reason !== "unreadable"

/** A reply, as far as it has come. */
interface Reply {
  readonly stepIndex: number
  readonly events: Array<Event.AdapterEvent>
}

/** The last replies of the runs of a session, by their request ids: those of its run and of the runs inside it. */
type Replies = Map<string, Reply>

const isWhole = ({ events }: Reply): boolean => events.at(-1)?._tag === "MessageCompleted"

/** The replies that were not recorded, by the ids of their sessions. */
export class Unrecorded {
  private readonly kept = new Map<string, Replies>()

  /**
   * Begins an attempt at the work of a session with the replies of the one before. The returned adapter is that of the
   * attempt, and `keep` keeps its replies for the next one.
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

  /** Does work on a session with the replies of the attempt before. Keeps its own if the store does not take them. */
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

/** Returns the reply of the attempt before if there is one, and else asks the model. Notes the reply. */
const repeating = (
  adapter: Adapter.Service,
  request: Adapter.Request,
  before: Replies | undefined,
  replies: Replies
): ReturnType<Adapter.Service["stream"]> => {
  const { run } = request
  if (run === undefined) return adapter.stream(request)
  const known = before?.get(run.requestId)
  // A reply that is asked for again in the same attempt is another one.
  before?.delete(run.requestId)
  const reply: Reply = { stepIndex: run.stepIndex, events: [] }
  // A run that has ended needs none any more.
  const [oldest] = replies.size < mostRuns ? [] : replies.keys()
  if (oldest !== undefined) replies.delete(oldest)
  replies.set(run.requestId, reply)
  const events = known?.stepIndex === run.stepIndex ? Stream.fromIterable(known.events) : adapter.stream(request)
  return Stream.map(events, (event) => {
    reply.events.push(event)
    return event
  })
}
