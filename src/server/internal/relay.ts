/**
 * Reads sessions owned by another process of a cluster. The owner reads them from its log, and this process passes the
 * frames on. If the owner changes, the next owner sends the run again, after a reset: no owner can continue from
 * another owner's offset.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Peers from "../../durable/internal/peers.ts"
import * as Worker from "../../durable/Worker.ts"
import type * as Event from "../../Event.ts"
import * as Json from "../../internal/json.ts"
import * as Journal from "../../Journal.ts"
import type * as Session from "../../Session.ts"
import * as EventStream from "./eventStream.ts"
import type * as Logs from "./log.ts"
import * as Reading from "./reading.ts"

/** Server parts needed for reading elsewhere. */
export interface Site extends Reading.Site {
  readonly peers: Peers.Peers | undefined
}

/** Frames for a reader. */
type Frames = Stream.Stream<Reading.Frame, Journal.StoreError, Session.Store>

/**
 * A frame between processes. `Begin` comes first: a cluster may silently repeat a request to the next owner, whose
 * frames would then follow the last owner's. `End` ends the requested events: without it the owner has gone. `Large`
 * replaces an event too large for a connection: the journal contains the event.
 */
type Part =
  | Exclude<Reading.Frame, { readonly _tag: "Event" }>
  | Omit<Extract<Reading.Frame, { readonly _tag: "Event" }>, "event">
  | { readonly _tag: "Begin" }
  | { readonly _tag: "End" }
  | { readonly _tag: "Large" }

/** Serves this process's sessions to other processes, until the scope closes. */
export const serve = (
  site: Site,
  peers: Peers.Peers,
  worker: Effect.Effect<Worker.Worker["Service"]>
): Effect.Effect<void, never, Session.Store | Scope.Scope> =>
  Effect.gen(function*() {
    const context = yield* Effect.context<Session.Store>()
    // A connection has the size limit of a record. A character has at most three bytes.
    const maxLength = (yield* Journal.MaxRecordBytes) / 3
    const partOf = (frame: Reading.Frame): Part => {
      if (frame._tag !== "Event") return frame
      const { offset, text } = frame
      return text.length > maxLength ? { _tag: "Large" } : { _tag: "Event", offset, text }
    }
    const read = (key: string, request: Reading.Request): Stream.Stream<Part> =>
      Reading.frames(site, key, request, Effect.never).pipe(
        Stream.provideContext(context),
        EventStream.quietly,
        Stream.map(partOf),
        (parts) => Stream.concat(Stream.succeed<Part>({ _tag: "Begin" }), parts),
        Stream.concat(Stream.succeed<Part>({ _tag: "End" }))
      )
    yield* peers.serve({
      take: (key, failed) =>
        Effect.catch(Effect.flatMap(worker, ({ take }) => take(key, failed)), () => Effect.succeed(false)),
      read: (key, request) => read(key, request as unknown as Reading.Request)
    })
  })

/** A reader's progress through its request. */
class Place {
  request: Reading.Request
  isOver = false
  isAnswered = false
  /** The run of the reader's latest events. */
  private shown: string | undefined

  constructor(request: Reading.Request) {
    this.request = request
  }

  /** Returns the frames in a part for the reader. */
  take(part: Part): ReadonlyArray<Reading.Frame> {
    this.isAnswered = true
    switch (part._tag) {
      case "Begin":
        return []
      case "Large":
        this.isAnswered = false
        return []
      case "End":
        this.isOver = true
        return []
      case "Quiet":
      case "Reset":
      case "Broken":
        return [part]
    }
    const event = Result.getOrThrow(Json.parse(part.text)) as Event.PublicEvent
    if (event._tag === "RunStarted") this.shown = event.runId
    const after = Reading.parsed(part.offset)
    if (this.request._tag === "Events" && after !== undefined) this.request = { ...this.request, after }
    return [{ ...part, event }]
  }

  /** Begins again. Returns the frames for the reader beforehand: it discards a partly sent run. */
  restart(): ReadonlyArray<Reading.Frame> {
    const { request, shown } = this
    this.isAnswered = false
    if (request._tag === "Events" || shown === undefined) return []
    const at = request.earlier.indexOf(shown)
    this.request = { ...request, earlier: at < 0 ? [] : request.earlier.slice(at) }
    return [{ _tag: "Reset", runId: shown }]
  }
}

/** Maximum silence of an owner, whose keep-alives come more often. */
const patience = "20 seconds"

/** Pause before asking the next owner. */
const pause = "100 millis"

const relayed = (
  site: Site,
  peers: Peers.Peers,
  key: string,
  log: Logs.RunLog | undefined,
  place: Place
): Frames =>
  Stream.suspend(() => {
    let begins = 0
    const request = place.request as unknown as Schema.Json
    const parts = Stream.suspend(() => peers.read(key, request)) as unknown as Stream.Stream<Part>
    const frames: Frames = parts.pipe(
      Stream.timeoutOrElse({ duration: patience, orElse: () => Stream.empty }),
      Stream.catchCause(() => Stream.empty),
      Stream.takeWhile(({ _tag }) => _tag !== "Begin" || ++begins === 1),
      Stream.takeUntil(({ _tag }) => _tag === "Large"),
      Stream.map((part) => place.take(part)),
      Stream.flattenIterable
    )
    return Stream.concat(
      frames,
      Stream.suspend((): Frames => {
        if (place.isOver) return Stream.empty
        const { isAnswered } = place
        const before = Stream.fromIterable(place.restart())
        const next = isAnswered
          ? Stream.unwrap(Effect.as(Effect.sleep(pause), relayed(site, peers, key, log, place)))
          : Reading.frames(site, key, place.request, Effect.never, log)
        return Stream.concat(before, next)
      })
    )
  })

/**
 * Returns the requested part of a session, until `until` ends: from this process if it drives or owns the session, else
 * from its owner. If the owner does not answer, this process reads the journal. `log` is the log place from before the
 * request, for a run. An error ends the frames with a notice.
 */
export const frames = (
  site: Site,
  key: string,
  log: Logs.RunLog | undefined,
  request: Reading.Request,
  until: Effect.Effect<void>
): Effect.Effect<Stream.Stream<Reading.Frame>, never, Worker.Worker | Session.Store> =>
  Effect.contextWith((context: Context.Context<Worker.Worker | Session.Store>) => {
    const { peers } = site
    const isHere = peers === undefined || peers.isHere(key) || Context.get(context, Worker.Worker).drives(key)
    const frames = isHere
      ? Reading.frames(site, key, request, until, log)
      : Stream.interruptWhen(Stream.suspend(() => relayed(site, peers, key, log, new Place(request))), until)
    return Effect.succeed(EventStream.quietly(Stream.provideContext(frames, context)))
  })
