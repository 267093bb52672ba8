/**
 * The connection to a server, for as long as its layer lives. One that is lost is opened again by the next call, once
 * for all calls that wait, later each time, and its tools are listed anew. A call under way is not repeated here: its
 * tool decides.
 */
import * as Cause from "effect/Cause"
import type * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import * as Json from "../../internal/json.ts"
import * as Telemetry from "../../internal/telemetry.ts"
import * as Backend from "./backend.ts"

/** A tool of the server, and the hash of what a trust or an approval was given for. */
export interface Known {
  readonly listed: Backend.Listed
  readonly hash: string
  /** A hash of the names of the server and of the tool, which stays the same whatever the tool becomes. */
  readonly nameHash: string
}

/** The tools of a server, as it listed them last. */
export interface Snapshot {
  readonly tools: ReadonlyMap<string, Known>
  readonly leftOut: ReadonlyArray<Backend.LeftOut>
}

/** A call under way, which the server may ask something. */
export interface Asked {
  /** The number of questions that are still answered. */
  left: number
  readonly elicit: (elicitation: Backend.Elicitation) => Effect.Effect<Backend.Elicited>
  /** Notes that a question was declined which may have been about this call. */
  readonly declined: (elicitation: Backend.Elicitation) => void
}

/** The answers of the program to questions of the server, where it gives any. */
export interface Answers {
  readonly elicit: Asked["elicit"] | undefined
  readonly sample: Backend.Listener["sample"] | undefined
}

/** The number of times that a lost connection is opened again before the calls that wait for it fail. */
const attempts = 5

const later = { schedule: Schedule.exponential("200 millis"), times: attempts - 1 }

/** The number of lists in a row that a server may say has changed while it was listed. */
const mostLists = 5

/** The number of names of tools that are remembered. Tools beyond are never trusted. */
const mostNames = 10_000

/** The time that closing may take, in milliseconds. A process that does not leave is killed by then. */
const closingMillis = 3_000

/**
 * Returns the parts of a tool that models and people read, or that its trust depends on. Its `_meta` and its icons are
 * none of them, and a server may change them at any time.
 */
const trustedOf = (
  { definition: { annotations, description, execution, inputSchema, name, outputSchema, title } }: Backend.Listed
) => ({
  name,
  title,
  description,
  inputSchema,
  outputSchema,
  annotations,
  execution
})

export class Connection {
  readonly server: string
  private readonly connect: Backend.Connect
  private readonly scope: Scope.Scope
  private readonly answers: Answers
  private readonly run: <A>(effect: Effect.Effect<A>) => Fiber.Fiber<A>
  private backend: Backend.Backend | undefined
  private opening: Deferred.Deferred<Backend.Backend, Backend.Failure> | undefined
  private listing: Deferred.Deferred<void> | undefined
  private isStale = false
  private isEnded = false
  private known: Snapshot = { tools: new Map(), leftOut: [] }
  /** The hash of each tool when it was first seen. */
  private readonly first = new Map<string, string>()
  private readonly closing = new Set<Fiber.Fiber<void>>()
  private readonly underWay = new Set<Asked>()

  constructor(
    server: string,
    connect: Backend.Connect,
    scope: Scope.Scope,
    services: Context.Context<never>,
    answers: Answers
  ) {
    this.server = server
    this.connect = connect
    this.scope = scope
    this.answers = answers
    this.run = Effect.runForkWith(services)
  }

  /** Opens the connection, and closes it with the scope. */
  readonly open: Effect.Effect<void, Backend.Failure> = Effect.suspend(() =>
    Effect.andThen(
      Scope.addFinalizer(this.scope, Effect.suspend(() => this.end)),
      Effect.asVoid(this.opened)
    )
  )

  /** The tools as they were listed last. */
  get current(): Snapshot {
    return this.known
  }

  /** Tells whether a tool is what it was when it was first seen. */
  isFirst(name: string, hash: string): boolean {
    return this.first.get(name) === hash
  }

  /** Waits until a list that has changed is known. */
  readonly settled: Effect.Effect<void> = Effect.suspend(() =>
    this.listing === undefined ? Effect.void : Deferred.await(this.listing)
  )

  /** Facts about the connection, for spans. */
  get facts(): Backend.Backend["facts"] {
    return this.backend?.facts ?? {}
  }

  /** Sends a call, once `check` has passed by the tools that are known then. */
  call<E>(
    request: Backend.Request,
    progress: (value: unknown) => void,
    asked: Asked,
    check: Effect.Effect<void, E>
  ): Effect.Effect<Backend.Response, Backend.Failure | E> {
    return Effect.gen({ self: this }, function*() {
      yield* this.settled
      const backend = yield* this.ready
      yield* check
      this.underWay.add(asked)
      return yield* backend.call(request, progress).pipe(
        // A connection over HTTP does not say that it has ended.
        Effect.tapError(({ reason }) =>
          Effect.sync(() => reason === "lost" || reason === "unsent" ? this.leave(backend) : undefined)
        ),
        Effect.ensuring(Effect.sync(() => this.underWay.delete(asked)))
      )
    })
  }

  /** The open connection. One that was lost is opened again in the scope of the layer, whichever call asks first. */
  private readonly ready: Effect.Effect<Backend.Backend, Backend.Failure> = Effect.suspend(() => {
    if (this.backend !== undefined) return Effect.succeed(this.backend)
    if (this.isEnded) return new Backend.Failure({ reason: "other", message: "the layer of the server is closed" })
    if (this.opening !== undefined) return Deferred.await(this.opening)
    const opening = Deferred.makeUnsafe<Backend.Backend, Backend.Failure>()
    this.opening = opening
    const opened = Effect.onExit(Effect.retry(this.opened, later), (exit) =>
      Effect.sync(() => {
        this.opening = undefined
        Deferred.doneUnsafe(opening, exit)
      }))
    return Effect.andThen(Effect.forkIn(opened, this.scope), Deferred.await(opening))
  })

  /** Opens a connection and lists its tools. */
  private readonly opened: Effect.Effect<Backend.Backend, Backend.Failure> = Effect.suspend(() => {
    let backend: Backend.Backend | undefined
    let failure: Backend.Failure | undefined
    const listener: Backend.Listener = {
      changed: () => {
        if (backend !== undefined && backend === this.backend) this.relist(backend)
        else this.isStale = true
      },
      lost: (lost) => {
        failure ??= lost
        if (backend !== undefined) this.leave(backend)
      },
      elicit: (elicitation) => {
        const asked = this.takeQuestion()
        if (asked === undefined) return Effect.succeed({ action: "decline" })
        if (this.underWay.size === 1) return asked.elicit(elicitation)
        if (this.answers.elicit !== undefined) return this.answers.elicit(elicitation)
        for (const each of this.underWay) each.declined(elicitation)
        return Effect.succeed({ action: "decline" })
      },
      sample: (sampling) =>
        this.answers.sample === undefined || this.takeQuestion() === undefined
          ? Effect.succeed(undefined)
          : this.answers.sample(sampling)
    }
    return Effect.uninterruptibleMask((restore) =>
      Effect.gen({ self: this }, function*() {
        this.isStale = false
        const made = yield* this.connect(listener)
        backend = made
        yield* Effect.onError(restore(this.list(made)), () => Effect.sync(() => this.close(made)))
        if (failure !== undefined) {
          this.close(made)
          return yield* failure
        }
        this.backend = made
        if (this.isStale) this.relist(made)
        return made
      })
    )
  })

  /** Counts a question against a call under way. A server is answered nothing without one. */
  private takeQuestion(): Asked | undefined {
    for (const asked of this.underWay) {
      if (asked.left <= 0) continue
      asked.left--
      return asked
    }
    return undefined
  }

  private list(backend: Backend.Backend): Effect.Effect<void, Backend.Failure> {
    return Effect.map(
      Effect.flatMap(backend.list, ({ leftOut, tools }) =>
        Effect.map(
          Effect.forEach(tools, (listed) =>
            Effect.all({
              listed: Effect.succeed(listed),
              hash: Json.digest(trustedOf(listed)),
              nameHash: Json.digest([this.server, listed.name])
            })),
          (known) => ({ known, leftOut })
        )),
      ({ known, leftOut }) => {
        const tools = new Map<string, Known>()
        const again: Array<Backend.LeftOut> = []
        for (const tool of known) {
          const { hash, listed: { name } } = tool
          if (tools.has(name)) {
            again.push({ name, reason: "the server lists it more than once; the first is offered" })
            continue
          }
          tools.set(name, tool)
          if (!this.first.has(name) && this.first.size < mostNames) this.first.set(name, hash)
        }
        this.known = { tools, leftOut: [...leftOut, ...again] }
      }
    )
  }

  /**
   * Lists the tools again. Calls wait for it, so that none is sent to a tool that is another one by now. A server that
   * does not list them is left: the next call opens it again, and has its tools or fails.
   */
  private relist(backend: Backend.Backend): void {
    this.isStale = true
    if (this.listing !== undefined) return
    const listing = Deferred.makeUnsafe<void>()
    this.listing = listing
    const again = (left: number): Effect.Effect<void, Backend.Failure> =>
      Effect.suspend(() => {
        this.isStale = false
        return Effect.flatMap(this.list(backend), () => this.isStale && left > 1 ? again(left - 1) : Effect.void)
      })
    const listed = Effect.catchCause(again(mostLists), (cause) => {
      this.leave(backend)
      return Cause.hasInterruptsOnly(cause)
        ? Effect.void
        : Telemetry.warned(`the tools of the MCP server "${this.server}" could not be listed again`, cause)
    })
    this.run(Effect.forkIn(
      Effect.ensuring(
        listed,
        Effect.sync(() => {
          this.listing = undefined
          Deferred.doneUnsafe(listing, Exit.void)
        })
      ),
      this.scope
    ))
  }

  private leave(backend: Backend.Backend): void {
    if (this.backend !== backend) return
    this.backend = undefined
    this.close(backend)
  }

  private close(backend: Backend.Backend): void {
    const closed = this.run(backend.close)
    this.closing.add(closed)
    closed.addObserver(() => this.closing.delete(closed))
  }

  private get end(): Effect.Effect<void> {
    const { backend } = this
    this.isEnded = true
    this.backend = undefined
    if (backend !== undefined) this.close(backend)
    return Effect.asVoid(Effect.timeoutOption(Fiber.awaitAll(this.closing), closingMillis))
  }
}
