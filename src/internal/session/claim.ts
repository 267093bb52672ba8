/**
 * Claims of sessions.
 *
 * **Details**
 *
 * A claim says which owner may run the session, and until when. It ends by the store's own clock unless it is
 * renewed, so a process that dies loses its sessions. A claim is advice that keeps two processes from starting the
 * same handler. The journal itself is protected by its versions: an append that follows an outdated version is
 * refused. Public as `Session.claim`.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as DateTime from "effect/DateTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import * as Schema from "effect/Schema"
import * as Json from "../json.ts"
import type * as Journals from "./journal.ts"

/**
 * The session is claimed by another owner, or this owner's claim has ended. The operation stops.
 *
 * @category errors
 * @since 0.1.0
 */
export class SessionClaimed extends Schema.TaggedError<SessionClaimed>("heddle/Journal/SessionClaimed")(
  "SessionClaimed",
  {
    /** `held`: another owner has claimed the session. `lost`: the claim could not be renewed in time. */
    reason: Schema.Literals(["held", "lost"]),
    /** The id of the session. */
    id: Schema.String,
    /** The owner that holds the claim, or held it. */
    owner: Schema.String,
    /** End of that claim, in milliseconds since 1970, by the clock of the store or of the process that lost it. */
    until: Schema.Finite
  }
) {
  override get message(): string {
    const [session, owner] = [JSON.stringify(this.id), JSON.stringify(this.owner)]
    const until = DateTime.formatIso(DateTime.makeUnsafe(this.until))
    return this.reason === "held"
      ? `session ${session} is claimed by ${owner} until ${until}; try again then`
      : `the claim of ${owner} on session ${session} could not be renewed and ended at ${until}; claim it again`
  }
}

/**
 * Options of a claim.
 *
 * @category options
 * @since 0.1.0
 */
export interface Options {
  /**
   * Duration of the claim unless it is renewed: at least three times the longest pause of the process. The session of
   * a dead process can be claimed again after this time. The claim is renewed every third of it. `"30 seconds"` by
   * default.
   */
  readonly term?: Duration.Input
  /** Interval at which a running operation looks for commands of other processes. `"200 millis"` by default. */
  readonly poll?: Duration.Input
  /**
   * Name of the owner. An owner that claims its own session again renews the claim, so two parts of one program need
   * two names. A random name for each claim by default.
   */
  readonly owner?: string
}

/** Converts a duration to milliseconds. Throws for an invalid one. */
export const millisOf = (name: string, input: Duration.Input): number => {
  const millis = Duration.toMillis(Duration.fromInputUnsafe(input))
  if (Number.isFinite(millis) && millis > 0) return millis
  throw new TypeError(`${name} must be longer than 0 and finite; got: ${Json.render(input)}`)
}

/** Creates the claim that the options ask for. Dies for invalid options. */
export const make = (
  id: string,
  { owner = globalThis.crypto.randomUUID(), poll = "200 millis", term = "30 seconds" }: Options,
  store: Journals.Service
): HeldClaim =>
  new HeldClaim(id, owner, millisOf("Session.claim: term", term), millisOf("Session.claim: poll", poll), store)

/**
 * A claim that is held until its scope closes or it is lost.
 *
 * @category models
 * @since 0.1.0
 */
export class HeldClaim {
  /** The id of the session. */
  readonly id: string
  /** The owner of the claim. */
  readonly owner: string
  /** Interval at which a running operation looks for commands, in milliseconds. */
  readonly pollMillis: number
  /** Fails when the claim is lost. */
  readonly lost = Deferred.makeUnsafe<never, SessionClaimed>()
  /** The store that holds the claim. */
  private readonly store: Journals.Service
  /** Duration of the claim unless it is renewed. */
  private readonly termMillis: number
  /** End of the claim by the clock of this process, which starts counting before the store does. */
  private until = 0
  /** Open while a running operation has to look for commands. */
  private readonly asked = Latch.makeUnsafe()
  /** True where the claim is no longer renewed and ends by itself. */
  private isResting = false

  constructor(id: string, owner: string, termMillis: number, pollMillis: number, store: Journals.Service) {
    this.id = id
    this.owner = owner
    this.termMillis = termMillis
    this.pollMillis = pollMillis
    this.store = store
  }

  /** Makes the operation that runs under the claim look for commands now. */
  readonly look: Effect.Effect<void> = Effect.suspend(() => Effect.asVoid(this.asked.open))

  /** Waits until a running operation has to look for commands: at each interval, and on request. */
  readonly looks: Effect.Effect<void> = Effect.suspend(() =>
    Effect.andThen(Effect.raceFirst(Effect.sleep(this.pollMillis), this.asked.await), this.asked.close)
  )

  /** Marks the claim as taken elsewhere, at `began` or later by the clock of this process. */
  taken(began: number): this {
    this.until = began + this.termMillis
    return this
  }

  /** Claims the session for another term. */
  readonly take: Effect.Effect<void, SessionClaimed | Journals.StoreError> = Effect.suspend(() =>
    Effect.flatMap(
      Clock.currentTimeMillis,
      (began) =>
        Effect.flatMap(this.store.claim(this.id, this.owner, this.termMillis), ({ owner, until }) => {
          if (owner !== this.owner) return new SessionClaimed({ reason: "held", id: this.id, owner, until })
          this.until = began + this.termMillis
          return Effect.void
        })
    )
  )

  /**
   * Renews the claim every third of its term, and more often while the store does not answer. Ends when another owner
   * takes it.
   */
  readonly renew: Effect.Effect<void> = Effect.suspend(() => {
    const pause = this.termMillis / 3
    const once = Effect.matchEffect(this.take, {
      onSuccess: () => Effect.succeed(pause),
      onFailure: (error) =>
        error._tag === "SessionClaimed"
          ? Effect.as(Deferred.fail(this.lost, error), Infinity)
          : Effect.succeed(pause / 4)
    })
    const from = (wait: number): Effect.Effect<void> =>
      Number.isFinite(wait) ? Effect.flatMap(Effect.delay(once, wait), from) : Effect.void
    return from(pause)
  })

  /** Waits until the term is over: the store stopped answering, or the process stood still. */
  readonly expire: Effect.Effect<void> = Effect.suspend(() =>
    Effect.flatMap(Clock.currentTimeMillis, (now) =>
      now < this.until
        ? Effect.andThen(Effect.sleep(this.until - now), this.expire)
        : Deferred.fail(
          this.lost,
          new SessionClaimed({ reason: "lost", id: this.id, owner: this.owner, until: this.until })
        ))
  )

  /** Stops renewing the claim, which then ends after the given time and is not released earlier. */
  rest(millis: number): Effect.Effect<void, Journals.StoreError> {
    this.isResting = true
    return Effect.asVoid(this.store.claim(this.id, this.owner, millis))
  }

  /** Ends the claim, so that another owner need not wait for the end of its term. */
  readonly release: Effect.Effect<void> = Effect.suspend(() =>
    this.isResting ? Effect.void : this.store.release(this.id, this.owner).pipe(
      Effect.timeoutOption(this.termMillis),
      Effect.ignore
    )
  )
}
