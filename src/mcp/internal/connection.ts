/**
 * Keeps the connection to a server for its layer's lifetime. The next call reopens a lost connection, once for all
 * waiting calls, with growing delays, and lists the tools again. The connection never repeats a running call: the tool
 * decides.
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

/** A server tool, and the hash its trust or approval applies to. */
export interface Known {
  readonly listed: Backend.Listed
  readonly hash: string
  /** Hash of server and tool name, whatever the tool's definition. */
  readonly nameHash: string
}

/** Tools of a server, from its latest list. */
export interface Snapshot {
  readonly tools: ReadonlyMap<string, Known>
  readonly leftOut: ReadonlyArray<Backend.LeftOut>
}

/** A running call, open to questions from the server. */
export interface Asked {
  /** Number of questions still allowed. */
  left: number
  readonly elicit: (elicitation: Backend.Elicitation) => Effect.Effect<Backend.Elicited>
  /** Notes a declined question, possibly about this call. */
  readonly declined: (elicitation: Backend.Elicitation) => void
}

/** The program's answers to server questions, where available. */
export interface Answers {
  readonly elicit: Asked["elicit"] | undefined
  readonly sample: Backend.Listener["sample"] | undefined
}

/** Number of attempts to reopen a lost connection before its waiting calls fail. */
const attempts = 5

const later = { schedule: Schedule.exponential("200 millis"), times: attempts - 1 }

/** Maximum number of lists in a row, each declared changed before it arrived. */
const mostLists = 5

/** Maximum number of remembered tool names. Tools beyond the limit are trusted only by a given hash. */
const mostNames = 10_000

/** Time limit for closing, in milliseconds. By then a process refusing to exit has been killed. */
const closingMillis = 3_000

/**
 * Returns the tool parts models and people read, or its trust depends on. They exclude its `_meta` and icons, which a
 * server may change at any time.
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
  /** Hash of each tool at first sight. */
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

  /** Tools from the latest list. */
  get current(): Snapshot {
    return this.known
  }

  /** Returns `true` if a tool is unchanged since first sight. */
  isFirst(name: string, hash: string): boolean {
    return this.first.get(name) === hash
  }

  /** Waits until a changed list is known. */
  readonly settled: Effect.Effect<void> = Effect.suspend(() =>
    this.listing === undefined ? Effect.void : Deferred.await(this.listing)
  )

  get facts(): Backend.Backend["facts"] {
    return this.backend?.facts ?? {}
  }

  /** Sends a call once `check` passes against the tools known by then. */
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
        // A connection over HTTP does not announce its end.
        Effect.tapError(({ reason }) =>
          Effect.sync(() => reason === "lost" || reason === "unsent" ? this.leave(backend) : undefined)
        ),
        Effect.ensuring(Effect.sync(() => this.underWay.delete(asked)))
      )
    })
  }

  /** The open connection. The first call to need it reopens a lost connection, in the layer's scope. */
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

  /** Charges a server question to a running call. If no running call has questions left, the question is declined. */
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
   * Lists the tools again. Calls wait for the list, so none reaches a tool that has changed meanwhile. If the server
   * fails to list them, the connection closes: the next call reopens it, and gets the tools or fails.
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
