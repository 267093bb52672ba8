/**
 * Session claims.
 *
 * **Details**
 *
 * A claim names the owner that may run a session, and until when. It ends by the store's own clock unless renewed, so a
 * dying process loses its sessions. A claim keeps two processes from starting the same handler. The journal itself is
 * protected by versions: an append based on an outdated version is refused. Public as `Session.claim`.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as DateTime from "effect/DateTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Latch from "effect/Latch"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Settings from "../ask/options.ts"
import { checkNames, type NamesOf } from "../declare/schema.ts"
import * as Values from "../declare/values.ts"
import * as Json from "../json.ts"
import { Running, Worker } from "../stop/ownedFibers.ts"
import * as Telemetry from "../telemetry.ts"
import * as Journals from "./journal.ts"
import * as Nested from "./nested.ts"

/**
 * The session is claimed by another owner, or this owner's claim has ended. The operation stops.
 *
 * @category errors
 */
export class SessionClaimed extends Schema.TaggedError<SessionClaimed>("heddle/Journal/SessionClaimed")(
  "SessionClaimed",
  {
    /**
     * `held`: another owner has claimed the session. `lost`: the claim was not renewed in time, was taken by another
     * owner, or was revoked.
     */
    reason: Schema.Literals(["held", "lost"]),
    /** Session id. */
    id: Schema.String,
    /** Owner holding the claim now or before. */
    owner: Schema.String,
    /** Claim end, in milliseconds since 1970. The clock belongs to the store or to the process losing its claim. */
    until: Schema.Finite
  }
) {
  override get message(): string {
    const [session, owner] = [JSON.stringify(this.id), JSON.stringify(this.owner)]
    const until = DateTime.formatIso(DateTime.makeUnsafe(this.until))
    return this.reason === "held"
      ? `session ${session} is claimed by ${owner} until ${until}; try again then`
      : `the claim of ${owner} on session ${session} is lost: it was revoked, or not renewed by ${until}; claim it again`
  }
}

Json.addError("SessionClaimed", SessionClaimed)

/**
 * Claim options.
 *
 * @category options
 */
export interface Options {
  /**
   * Term of the claim unless renewed: at least three times the longest pause of the process. A dead process's session
   * can be claimed again after this time. The claim is renewed every third of the term. Defaults to `"30 seconds"`.
   */
  readonly term?: Duration.Input
  /** Interval at which a running operation checks for commands from other processes. Defaults to `"200 millis"`. */
  readonly poll?: Duration.Input
  /**
   * Owner name. An owner claiming its own session again renews the claim, so two parts of one program need two names.
   * Defaults to a random name per claim.
   */
  readonly owner?: string
  /**
   * Callback for loss of the claim, with the milliseconds since the store last confirmed the claim, and the current
   * time in milliseconds since 1970. Does nothing by default.
   */
  readonly onLost?: (lateMillis: number, at: number) => void
}

/**
 * This process's name in journals, as `processName` in `RunStarted`. A run resumed by its own process was not
 * interrupted by a process end. Defaults to a random name per process start.
 *
 * **Example** (Two processes of a test)
 *
 * ```ts import.meta.vitest
 * import { Journal, Session } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const program = Effect.gen(function*() {
 *   const store = yield* Session.Store
 *   const opened = yield* Session.open("s1")
 *   yield* Session.keep(opened, (session) => Session.reply(session, "Hi")).pipe(
 *     Effect.provideService(Journal.CurrentProcess, "first")
 *   )
 *   const entries = yield* Stream.runCollect(store.read("s1"))
 *   return entries.flatMap(({ record }) => record._tag === "RunStarted" ? [record.processName] : [])
 * })
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 *
 * await Effect.runPromise(Effect.provide(program, [model, Session.Store.layerMemory])) // => ["first"]
 * ```
 *
 * @category services
 */
export const CurrentProcess: Context.Reference<string> = Context.Reference<string>("heddle/Journal/CurrentProcess", {
  defaultValue: () => globalThis.crypto.randomUUID()
})

/**
 * Effect that ends when a leaving owner must no longer wait for running calls, such as at the second Ctrl-C. The calls
 * are then interrupted, and the next owner treats their effects as unknown. Never ends by default.
 *
 * **Example** (An owner that does not wait)
 *
 * ```ts import.meta.vitest
 * import { Journal, Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   const { claim } = yield* Session.claim("s1")
 *   yield* claim.leave(60_000)
 *   return claim.isLeaving
 * })
 *
 * await Effect.runPromise(
 *   Effect.scoped(program).pipe(
 *     Effect.provideService(Journal.Hurry, Effect.void),
 *     Effect.provide(Session.Store.layerMemory)
 *   )
 * ) // => true
 * ```
 *
 * @category services
 */
export const Hurry: Context.Reference<Effect.Effect<void>> = Context.Reference<Effect.Effect<void>>(
  "heddle/Journal/Hurry",
  { defaultValue: () => Effect.never }
)

const knownOptions = {
  term: Values.finiteDuration,
  poll: Values.finiteDuration,
  owner: Values.name,
  onLost: Values.fn
} satisfies NamesOf<Options>

/** Returns the settings. Throws for invalid options. */
const termsOf = (operation: string, options: Options): Terms => {
  checkNames(operation, options, knownOptions)
  const { onLost, owner = globalThis.crypto.randomUUID(), poll = "200 millis", term = "30 seconds" } = options
  return {
    owner,
    termMillis: Duration.toMillis(Duration.fromInputUnsafe(term)),
    pollMillis: Duration.toMillis(Duration.fromInputUnsafe(poll)),
    ...(onLost === undefined ? {} : { onLost })
  }
}

/** Returns the requested claim, before taking it over. Dies for invalid options. */
export const make = (id: string, options: Options): Effect.Effect<OwnClaim, never, Journals.Store> =>
  Effect.flatMap(
    Journals.Store,
    (store) =>
      Effect.contextWith((context: Context.Context<never>) =>
        Effect.succeed(new OwnClaim(id, termsOf("Session.claim", options), store, context))
      )
  )

/**
 * Takes a session's claim. Renewal begins when `Session.claim` reads the session under the claim. The caller owns the
 * claim and must release it.
 */
export const take = (
  id: string,
  options: Options = {}
): Effect.Effect<OwnClaim, SessionClaimed | Journals.StoreError, Journals.Store> =>
  Effect.flatMap(make(id, options), (claim) =>
    // The claim may already be taken when this is interrupted.
    Effect.onInterrupt(Effect.as(claim.take, claim), () => claim.release))

/** Takes the claims of up to `limit` sessions with work left, like {@link take}. */
export const takeUnfinished = (
  limit: number,
  options: Options = {}
): Effect.Effect<ReadonlyArray<OwnClaim>, Journals.StoreError, Journals.Store> =>
  Effect.gen(function*() {
    Settings.positiveInteger("Journal.claimUnfinished: limit", limit)
    const terms = termsOf("Journal.claimUnfinished", options)
    const store = yield* Journals.Store
    const context = yield* Effect.context<never>()
    const began = momentOf(Context.get(context, Clock.Clock))
    const ids = yield* store.claimUnfinished(terms.owner, terms.termMillis, limit)
    return ids.map((id) => new OwnClaim(id, { ...terms, began }, store, context))
  })

/** A moment on the process's two clocks: the adjustable and the monotonic clock. */
interface Moment {
  /** Milliseconds since 1970, by the adjustable clock. */
  readonly wallMillis: number
  /** Milliseconds of the monotonic clock. */
  readonly monotonicMillis: number
}

/** Returns the current moment. */
const momentOf = (clock: Clock.Clock): Moment => ({
  wallMillis: clock.currentTimeMillisUnsafe(),
  monotonicMillis: Number(clock.monotonicTimeNanosUnsafe()) / 1_000_000
})

/** Claim settings. */
interface Terms {
  readonly owner: string
  /** Term of the claim unless renewed. */
  readonly termMillis: number
  /** Interval at which a running operation checks for commands. */
  readonly pollMillis: number
  /** Moment of the successful claim request. */
  readonly began?: Moment
  readonly onLost?: Options["onLost"]
}

/**
 * A claim held until released or lost.
 *
 * **Details**
 *
 * Only the store ends a claim. If either process clock shows that the store confirmed the claim longer than a third of
 * the term ago, the process may have been frozen, or its clock set: the store is then asked before a handler starts. A
 * claim the store has not confirmed for a whole term despite requests is lost.
 *
 * A claim left during a started call is not released: the call may still take effect, and the next owner handles the
 * call when the term is over.
 *
 * @category models
 */
export interface HeldClaim {
  /** Session id. */
  readonly id: string
  /** Claim owner. */
  readonly owner: string
  /** `true` once {@link leave} is called: no further call starts, and no model is asked. */
  readonly isLeaving: boolean
  /** Makes the operation under this claim check for commands from other processes at once. */
  readonly look: Effect.Effect<void>
  /**
   * Asks operations under the claim to leave, and waits until no call is running, at most for the given milliseconds.
   * Calls still running then are interrupted with their operation.
   */
  readonly leave: (drainMillis: number) => Effect.Effect<void>
  /**
   * Stops renewing the claim, which then ends after the given milliseconds: the pause before the next attempt. With a
   * started call it ends after its term, if longer.
   */
  readonly rest: (millis: number) => Effect.Effect<void, Journals.StoreError>
  /**
   * Ends the claim, so that another owner need not wait for the end of its term, unless a call is started. Does nothing
   * the second time.
   */
  readonly release: Effect.Effect<void>
}

/** Returns a claim with its internal members. Throws for any other object. */
export const own = (claim: HeldClaim): OwnClaim => {
  if (claim instanceof OwnClaim) return claim
  throw new TypeError("a claim is made by Journal.claim, Journal.claimUnfinished or Session.claim; got another object")
}

/** A claim, with everything needed by operations under it. */
export class OwnClaim implements HeldClaim {
  readonly id: string
  readonly owner: string
  /** Interval at which a running operation checks for commands, in milliseconds. */
  readonly pollMillis: number
  /** Fails when the claim is lost, or its scope closes. */
  readonly lost = Deferred.makeUnsafe<never, SessionClaimed>()
  /** Term of the claim unless renewed. */
  private readonly termMillis: number
  /** Store holding the claim. */
  private readonly store: Journals.Service
  /** Asks the store in a fiber the caller can leave, whatever the store does. */
  readonly request: <A, R>(
    name: string,
    request: Effect.Effect<A, Journals.StoreError, R>
  ) => Effect.Effect<A, Journals.StoreError, R>
  /** Gives pending requests the grace period to end. */
  private readonly close: Effect.Effect<unknown>
  /** Ends when a leave must no longer wait. */
  private readonly hurry: Effect.Effect<void>
  /** Clocks of the process. */
  private readonly clock: Clock.Clock
  /** Reports the loss of the claim. */
  private readonly onLost: NonNullable<Options["onLost"]>
  /** Start of the last request confirmed by the store. */
  private confirmed: Moment
  /** Open while a renewal is needed early. */
  private readonly due = Latch.makeUnsafe()
  /** Completes with the next confirmation. */
  private next = Deferred.makeUnsafe<void>()
  /** Open while a running operation must check for commands. */
  private readonly asked = Latch.makeUnsafe()
  /** `true` once the claim is no longer renewed and ends by itself. */
  private isResting = false
  /** `true` once the claim was given back, or is about to be. */
  private isReleased = false
  /** Open once the owner wants to leave. */
  private readonly leaving = Latch.makeUnsafe()
  /**
   * Fails when the claim's scope closes: operations under the claim are interrupted, and may still record their
   * results.
   */
  readonly closing = Deferred.makeUnsafe<never, SessionClaimed>()
  /** Open once running calls have had their time to end. */
  readonly drained = Latch.makeUnsafe()
  /** Number of operations under the claim. */
  private operations = 0
  /** Open while no operation runs. */
  private readonly unused = Latch.makeUnsafe(true)
  /** Calls with running handlers, and other work a leave waits for, by journal. */
  private readonly underWay = new Map<string, Set<string | symbol>>()
  /** Open while nothing is running. */
  private readonly idle = Latch.makeUnsafe(true)
  /** Journals where an operation left a call without an end. */
  private readonly started = new Set<string>()

  constructor(id: string, terms: Terms, store: Journals.Service, context: Context.Context<never>) {
    this.id = id
    this.owner = terms.owner
    this.termMillis = terms.termMillis
    this.pollMillis = terms.pollMillis
    this.onLost = terms.onLost ?? (() => {})
    this.store = store
    const requests = new Running(Settings.defaultGrace, context)
    // Each evaluation has its own fiber: a caller may ask again before its last request's fiber has ended.
    this.request = (name, request) =>
      Effect.suspend(() =>
        new Worker(requests, { kind: "store", id, name, onSoftStop: "unaffected", once: true })
          .do(request, Exit.interrupt())
      )
    this.close = Effect.suspend(() => requests.end(Exit.void))
    this.clock = Context.get(context, Clock.Clock)
    this.hurry = Context.get(context, Hurry)
    this.confirmed = terms.began ?? momentOf(this.clock)
  }

  readonly look: Effect.Effect<void> = Effect.suspend(() => Effect.asVoid(this.asked.open))

  /** Waits until a running operation must check for commands: at each interval, and on request. */
  readonly looks: Effect.Effect<void> = Effect.suspend(() =>
    Effect.andThen(Effect.raceFirst(Effect.sleep(this.pollMillis), this.asked.await), this.asked.close)
  )

  /**
   * Notes a confirmation by the store, for a request begun at this moment. A request begun later may have ended
   * earlier.
   */
  private confirm(began: Moment): void {
    if (began.monotonicMillis >= this.confirmed.monotonicMillis) this.confirmed = began
    Deferred.doneUnsafe(this.next, Exit.void)
    this.next = Deferred.makeUnsafe()
  }

  /** Claims the session for a term. */
  readonly take: Effect.Effect<void, SessionClaimed | Journals.StoreError> = Effect.suspend(() => {
    const began = momentOf(this.clock)
    const claim = this.store.claim(this.id, this.owner, this.termMillis)
    return Effect.flatMap(this.request("claim", claim), ({ owner, until }) => {
      if (owner !== this.owner) return new SessionClaimed({ reason: "held", id: this.id, owner, until })
      this.confirm(began)
      return Effect.void
    })
  })

  /**
   * Renews the claim every third of its term, more often while the store does not answer, and at once when a call waits
   * for renewal. Ends when the claim is lost or need not be renewed.
   */
  private readonly renew: Effect.Effect<void> = Effect.suspend(() => {
    const pause = this.termMillis / 3
    const asked = Effect.suspend(() => {
      this.due.closeUnsafe()
      const left = this.termMillis - this.elapsed.monotonicMillis
      // A process frozen for longer than the term asks once.
      return Effect.timeoutOption(this.renewal, left > 0 ? Math.min(pause, left) : pause)
    })
    const from = (wait: number): Effect.Effect<void> =>
      Effect.flatMap(
        Effect.raceFirst(Effect.sleep(wait), this.due.await),
        () =>
          this.isResting ? Effect.void : Effect.flatMap(asked, (answer) => {
            if (Option.isSome(answer) && answer.value === "renewed") return from(pause)
            if (Option.isSome(answer) && answer.value === "taken") return this.taken
            return this.elapsed.monotonicMillis >= this.termMillis ? this.lose() : from(pause / 4)
          })
      )
    return from(pause)
  })

  /** Loses the claim, which the store has given to another owner or removed. */
  private readonly taken: Effect.Effect<void> = Effect.suspend(() =>
    Effect.flatMap(Effect.orElseSucceed(this.current, () => undefined), (claim) => this.lose(claim))
  )

  /** Reads the session's claim from the store. */
  private get current(): Effect.Effect<Journals.Claim | undefined, Journals.StoreError> {
    return this.request("claimOf", this.store.claimOf(this.id))
  }

  /** Asks the store to renew the claim. */
  private readonly renewal: Effect.Effect<"renewed" | "taken" | "unanswered"> = Effect.suspend(() => {
    const began = momentOf(this.clock)
    // The store's answer counts even if nothing waits any more.
    const renewal = Effect.map(this.store.renew(this.id, this.owner, this.termMillis), (isHeld) => {
      if (isHeld) this.confirm(began)
      return isHeld
    })
    return Effect.match(this.request("renew", renewal), {
      onSuccess: (isHeld) => isHeld ? "renewed" : "taken",
      onFailure: () => "unanswered"
    })
  })

  /** Time since the last confirmation, by each clock. */
  private get elapsed(): Moment {
    const now = momentOf(this.clock)
    return {
      // A wall clock set back is as unreliable as one set forward.
      wallMillis: Math.abs(now.wallMillis - this.confirmed.wallMillis),
      monotonicMillis: now.monotonicMillis - this.confirmed.monotonicMillis
    }
  }

  /** `true` if the store has confirmed the claim within a third of the term, by both clocks. */
  get isFresh(): boolean {
    const { monotonicMillis, wallMillis } = this.elapsed
    return Math.max(monotonicMillis, wallMillis) <= this.termMillis / 3
  }

  /** Asks the store at once and waits for its next confirmation. Waits for ever if the claim is lost. */
  readonly confirmation: Effect.Effect<void> = Effect.suspend(() => {
    // A store may answer before `openUnsafe` returns.
    const { next } = this
    this.due.openUnsafe()
    return Deferred.await(next)
  })

  /** Loses the claim if the store has given it to another owner or removed the claim. */
  readonly check: Effect.Effect<void, Journals.StoreError> = Effect.suspend(() =>
    Effect.flatMap(this.current, (claim) => claim?.owner === this.owner ? Effect.void : this.lose(claim))
  )

  /** Error of a claim without another owner. */
  private get loss(): SessionClaimed {
    const until = this.confirmed.wallMillis + this.termMillis
    return new SessionClaimed({ reason: "lost", id: this.id, owner: this.owner, until })
  }

  /** Loses the claim, to the owner of `other` if given. Everything under the claim stops. */
  private lose(other?: Journals.Claim): Effect.Effect<void> {
    if (Deferred.isDoneUnsafe(this.lost)) return Effect.void
    const { monotonicMillis, wallMillis } = this.elapsed
    const lateMillis = Math.round(Math.max(monotonicMillis, wallMillis))
    const lost = other === undefined ? this.loss : new SessionClaimed({ reason: "held", id: this.id, ...other })
    Deferred.doneUnsafe(this.lost, Exit.fail(lost))
    this.onLost(lateMillis, this.clock.currentTimeMillisUnsafe())
    return Telemetry.logged(Effect.logWarning(
      `the claim on session ${JSON.stringify(this.id)} is lost: the store confirmed it ${lateMillis} ms ago, and its `
        + `term is ${this.termMillis} ms`
    ))
  }

  // Leaving.

  get isLeaving(): boolean {
    return this.leaving.isOpen()
  }

  /** Notes the start of a handler. */
  begin(journal: string, call: string | symbol): void {
    this.underWay.set(journal, (this.underWay.get(journal) ?? new Set()).add(call))
    this.idle.closeUnsafe()
  }

  /** Notes the recorded end of a handler. */
  end(journal: string, call: string | symbol): void {
    const calls = this.underWay.get(journal)
    if (calls?.delete(call) === true && calls.size === 0) this.noneUnderWay(journal)
  }

  /** Does work a leave waits for. */
  during<A, E, R>(work: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> {
    return Exit.isExit(work) ? work : Effect.suspend(() => {
      const name = Symbol()
      this.begin(this.id, name)
      return Effect.ensuring(work, Effect.sync(() => this.end(this.id, name)))
    })
  }

  /** Notes that nothing in a journal is running any more. */
  private noneUnderWay(journal: string): void {
    if (this.underWay.delete(journal) && this.underWay.size === 0) this.idle.openUnsafe()
  }

  /**
   * Notes that an operation is over and none of its handlers is running. `calls` describes what it leaves without an
   * end in that journal: a started call, only sub-agent runs, which have noted their own calls, or nothing, and then
   * nothing in its nested runs either.
   */
  left(journal: string, calls: "started" | "nested" | "none"): void {
    this.noneUnderWay(journal)
    if (calls === "started") return void this.started.add(journal)
    this.started.delete(journal)
    if (calls === "nested") return
    for (const other of this.started) {
      if (Nested.isWithin(journal, other)) this.started.delete(other)
    }
  }

  /** Notes the start of an operation, and its end when the scope closes. */
  readonly enter: Effect.Effect<void, never, Scope.Scope> = Effect.acquireRelease(
    Effect.sync(() => {
      this.operations++
      this.unused.closeUnsafe()
    }),
    () =>
      Effect.sync(() => {
        if (--this.operations === 0) this.unused.openUnsafe()
      })
  )

  leave(drainMillis: number): Effect.Effect<void> {
    return Effect.suspend(() => {
      this.leaving.openUnsafe()
      const over = Effect.raceFirst(Effect.sleep(drainMillis), this.hurry)
      return Effect.andThen(Effect.raceFirst(this.idle.await, over), this.drained.open)
    })
  }

  rest(millis: number): Effect.Effect<void, Journals.StoreError> {
    this.isResting = true
    const time = this.started.size + this.underWay.size > 0 ? Math.max(millis, this.termMillis) : millis
    return Effect.asVoid(this.request("renew", this.store.renew(this.id, this.owner, time)))
  }

  /**
   * Renews the claim until the scope closes. Operations under the claim in other fibers are then interrupted, and have
   * the grace period to record their results.
   */
  readonly hold: Effect.Effect<void, never, Scope.Scope> = Effect.suspend(() =>
    Effect.andThen(
      Effect.forkScoped(this.renew),
      Effect.addFinalizer(() => {
        Deferred.doneUnsafe(this.closing, Exit.fail(this.loss))
        return Effect.raceFirst(this.unused.await, Effect.sleep(Settings.defaultGrace))
      })
    )
  )

  readonly release: Effect.Effect<void> = Effect.suspend(() => {
    if (this.isReleased) return Effect.void
    this.isReleased = true
    if (this.isResting || Deferred.isDoneUnsafe(this.lost)) return this.ended
    const release = this.started.size + this.underWay.size > 0
      ? this.store.renew(this.id, this.owner, this.termMillis)
      : this.store.release(this.id, this.owner)
    return Effect.flatMap(
      Effect.timeoutOption(Effect.exit(this.request("release", release)), Settings.defaultGrace),
      // A request past its grace period is not waited for again.
      (answer) => Option.isSome(answer) ? this.ended : Effect.asVoid(Effect.forkDetach(this.ended))
    )
  })

  /** Ends the claim in this process: everything still running under the claim stops. */
  private readonly ended: Effect.Effect<void> = Effect.suspend(() => {
    Deferred.doneUnsafe(this.lost, Exit.fail(this.loss))
    return Effect.asVoid(this.close)
  })
}
