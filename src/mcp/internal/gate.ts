/**
 * Guards the endpoint of MCP: the checks that every route of a server has, and the sessions of clients of the legacy
 * era, each of which belongs to its principal.
 *
 * @since 0.1.0
 */
import * as Bytes from "effect/Bytes"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as HttpBody from "effect/http/HttpBody"
import * as HttpEffect from "effect/http/HttpEffect"
import type * as HttpRouter from "effect/http/HttpRouter"
import * as HttpServerRequest from "effect/http/HttpServerRequest"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Json from "../../internal/json.ts"
import * as Access from "../../server/internal/access.ts"
import * as Bodies from "../../server/internal/bodies.ts"
import * as Refusals from "../../server/internal/refusal.ts"
import * as Routes from "../../server/internal/routes.ts"
import * as Caller from "./caller.ts"

type Request = HttpServerRequest.HttpServerRequest
type Response = HttpServerResponse.HttpServerResponse

/** The parts of a server that its endpoint needs. */
export type Guard = Pick<Routes.Site, "access" | "authorize" | "bounds" | "counters">

/** The bounds of the sessions of the legacy era. */
export interface Legacy {
  readonly maxSessions: number
  readonly perPrincipal: number
  readonly idle: Duration.Duration
}

/** The names that are offered, and a function that finishes the text of a message that lists them. */
export interface Offer {
  readonly names: ReadonlySet<string>
  readonly listing: (text: string) => string
}

/** A session of a client of the legacy era. */
interface Session {
  readonly by: string
  readonly waiting: Caller.Caller["waiting"]
  usedAt: number
  /** Number of its requests that are under way. */
  open: number
}

const sessionHeader = "mcp-session-id"

const tooMany = Refusals.tooMany("too_many_sessions", "There are too many sessions. Try again later.")

const noBatches = Refusals.badRequest("no_batches", "Batches of messages are not supported.")

/** Returns a refusal for want of a token as one by which clients begin to ask for one. */
const asking = (refusal: Refusals.Refusal): Refusals.Refusal => {
  const { code, message } = refusal
  return code === "token_required" ? new Refusals.Refusal({ status: 401, code, message }) : refusal
}

const forbidden = Refusals.forbidden("forbidden", "This is not allowed.")

const notFound = HttpServerResponse.empty({ status: 404 })

/**
 * Answers a client of the legacy era where none is served, with the code by which clients know that a request lacks the
 * header of the revision.
 */
const modernOnly = (id: unknown): Response =>
  HttpServerResponse.jsonUnsafe({
    jsonrpc: "2.0",
    id: typeof id === "string" || typeof id === "number" ? id : null,
    error: {
      code: -32020,
      message: "This server has no sessions: it speaks the revision 2026-07-28 alone. Make the client of the SDK with "
        + `versionNegotiation: { mode: "auto" }, or the server with legacy: true.`
    }
  }, { status: 400 })

/** The session of an id that names none. It belongs to no principal. */
const unknown: Session = { by: "", waiting: new Set(), usedAt: 0, open: 0 }

/** The most characters of the id of a message in a span. */
const longestId = 128

const idOf = ({ id }: Json.JsonObject): string | undefined =>
  typeof id === "string" || typeof id === "number" ? String(id).slice(0, longestId) : undefined

/** Returns a request as the endpoint takes it: with the headers of the protocol, without those that were checked. */
const inner = (method: string, headers: Request["headers"], body?: string): Request =>
  HttpServerRequest.fromWeb(
    new globalThis.Request("http://localhost/mcp", {
      method,
      headers: Object.entries(headers).filter(([name]) => /^(accept|content-type|mcp-.*)$/.test(name)),
      ...(body === undefined ? {} : { body })
    })
  )

/** Returns a response whose body needs the request no longer. */
const whole = (response: Response): Effect.Effect<Response> =>
  response.body._tag === "Stream"
    ? Effect.map(Effect.orDie(Stream.runCollect(response.body.stream)), (chunks) =>
      HttpServerResponse.setBody(response, HttpBody.uint8Array(Bytes.concat(chunks), "application/json")))
    : Effect.succeed(response)

/** The endpoint behind its checks. */
export class Gate {
  private readonly sessions = new Map<string, Session>()
  /** The principals of the sessions that are being opened. */
  private readonly opening: Array<string> = []
  private readonly guard: Guard
  private readonly endpoint: HttpRouter.HttpRouter
  private readonly offer: Offer
  private readonly legacy: Legacy | undefined

  constructor(
    guard: Guard,
    endpoint: HttpRouter.HttpRouter,
    offer: Offer,
    legacy: Legacy | undefined
  ) {
    this.guard = guard
    this.endpoint = endpoint
    this.offer = offer
    this.legacy = legacy
  }

  /** Answers a request. */
  handle(request: Request): Effect.Effect<Response, never, Scope.Scope> {
    const { access } = this.guard
    const checked = request.method === "OPTIONS"
      ? Access.preflight(request, access)
      : Effect.andThen(
        Effect.mapError(Access.check(request, access), asking),
        Effect.suspend(() => request.method === "POST" ? this.post(request) : this.other(request))
      )
    return Effect.map(Routes.answered(checked), (response) => Access.allowing(request, access, response))
  }

  private post(request: Request): Effect.Effect<Response, Refusals.Refusal, Scope.Scope> {
    return Effect.gen({ self: this }, function*() {
      const text = yield* Bodies.textOf(this.guard, request, yield* this.entered(request))
      const parsed = Result.getOrUndefined(Json.parse(text))
      if (Array.isArray(parsed)) return yield* noBatches
      const message = Json.isObject(parsed) ? parsed : {}
      const session = yield* this.sessionOf(request)
      const grant = yield* this.grantOf(request, message, session)
      if (session !== undefined && session.by !== grant.principal) return notFound
      yield* this.use(session)
      const caller: Caller.Caller = {
        by: grant.principal,
        principal: grant.of ?? grant.principal,
        request,
        transport: "tcp",
        messageId: idOf(message),
        may: (question) => this.may(request, question, grant),
        waiting: session?.waiting ?? new Set()
      }
      const posted = inner("POST", request.headers, text)
      if (message["method"] === "tools/list") return yield* this.list(posted, caller)
      if (message["method"] !== "initialize") return yield* this.run(posted, caller)
      return this.legacy === undefined ? modernOnly(message["id"]) : yield* this.open(posted, caller, this.legacy)
    })
  }

  private other(request: Request): Effect.Effect<Response, Refusals.Refusal, Scope.Scope> {
    return Effect.gen({ self: this }, function*() {
      const session = yield* this.sessionOf(request)
      const { principal } = yield* this.grantOf(request, {}, undefined)
      if (session !== undefined && session.by !== principal) return notFound
      const response = yield* this.run(inner(request.method, request.headers), Caller.local)
      if (request.method === "DELETE" && response.status === 204) {
        this.sessions.delete(request.headers[sessionHeader] ?? "")
      }
      return response
    })
  }

  private list(request: Request, caller: Caller.Caller): Effect.Effect<Response, never, Scope.Scope> {
    return Effect.gen({ self: this }, function*() {
      const answer = yield* this.run(request, caller)
      const type = "contentType" in answer.body ? answer.body.contentType : undefined
      if (type?.startsWith("application/json") !== true) return answer
      const response = yield* whole(answer)
      const { body } = response
      if (body._tag !== "Uint8Array") return response
      const text = this.offer.listing(new TextDecoder().decode(body.body))
      return HttpServerResponse.setBody(response, HttpBody.text(text, "application/json"))
    })
  }

  private run(request: Request, caller: Caller.Caller): Effect.Effect<Response, never, Scope.Scope> {
    return this.endpoint.asHttpEffect().pipe(
      Effect.provideService(HttpServerRequest.HttpServerRequest, request),
      Effect.provideService(Caller.Current, caller),
      Effect.orDie
    )
  }

  /** Asks whether a request may do something, for the principals that it had. */
  private may(request: Request, question: Access.Question, before?: Access.Grant) {
    return Effect.flatMap(
      Access.ask(this.guard, request, question),
      (grant) =>
        before === undefined || grant.principal === before.principal && grant.of === before.of
          ? Effect.succeed(grant)
          : forbidden
    )
  }

  /** Asks whether a body may be read, which names the tool: by one who may call, or list something. */
  private entered(request: Request): Effect.Effect<Access.Grant, Refusals.Refusal> {
    const lists = Array.from(this.offer.names, (agent) => ({ agent, action: "list" as const }))
    return Access.ask(this.guard, request, { action: "write" }, ...lists)
  }

  /** Asks for what a message does: a call is a write, an answer what its call waits for, all else reads the list. */
  private grantOf(
    request: Request,
    { method, params, ...message }: Json.JsonObject,
    session: Session | undefined
  ): Effect.Effect<Access.Grant, Refusals.Refusal> {
    return Effect.gen({ self: this }, function*() {
      let granted: Access.Grant | undefined
      if (("result" in message || "error" in message) && session !== undefined) {
        for (const question of session.waiting) granted = yield* this.may(request, question)
      }
      const name = method === "tools/call" && Json.isObject(params) ? params["name"] : undefined
      if (typeof name === "string" && this.offer.names.has(name)) {
        granted = yield* this.may(request, { agent: name, action: "write" })
      }
      if (granted !== undefined) return granted
      let refusal: Refusals.Refusal | undefined
      for (const agent of this.offer.names) {
        const asked = yield* Effect.result(this.may(request, { agent, action: "list" }))
        if (Result.isSuccess(asked)) return asked.success
        refusal ??= asked.failure
      }
      return yield* refusal ?? forbidden
    })
  }

  // Sessions of the legacy era.

  /** Returns the session that a request names. */
  private sessionOf(request: Request): Effect.Effect<Session | undefined> {
    return Effect.gen({ self: this }, function*() {
      const id = request.headers[sessionHeader]
      if (id === undefined || this.legacy === undefined) return undefined
      yield* this.expire(this.legacy)
      return this.sessions.get(id) ?? unknown
    })
  }

  /** Counts the request of a session until it is answered. */
  private use(session: Session | undefined): Effect.Effect<void, never, Scope.Scope> {
    if (session === undefined) return Effect.void
    session.open++
    return Effect.addFinalizer(() =>
      Effect.map(Clock.currentTimeMillis, (now) => {
        session.open--
        session.usedAt = now
      })
    )
  }

  /**
   * Opens a session, whose id stands in the response. The endpoint may open it although the client has left meanwhile:
   * it is noted in any case, so that it is ended.
   */
  private open(request: Request, caller: Caller.Caller, legacy: Legacy): Effect.Effect<Response, Refusals.Refusal> {
    return Effect.uninterruptibleMask((restore) =>
      Effect.gen({ self: this }, function*() {
        yield* this.expire(legacy)
        const usedAt = yield* Clock.currentTimeMillis
        yield* this.guard.counters.write(caller.by, usedAt)
        const all = [...Array.from(this.sessions.values(), ({ by }) => by), ...this.opening]
        const own = all.filter((by) => by === caller.by)
        if (own.length >= legacy.perPrincipal || all.length >= legacy.maxSessions) return yield* tooMany
        this.opening.push(caller.by)
        let response = notFound
        const opened = HttpEffect.toHandled(
          this.endpoint.asHttpEffect(),
          (_, given) => Effect.map(whole(given), (answer) => (response = answer))
        ).pipe(
          Effect.provideService(HttpServerRequest.HttpServerRequest, request),
          Effect.provideService(Caller.Current, caller),
          Effect.ensuring(Effect.sync(() => {
            this.opening.splice(this.opening.indexOf(caller.by), 1)
            const id = response.headers[sessionHeader]
            if (id !== undefined) this.sessions.set(id, { by: caller.by, waiting: new Set(), usedAt, open: 0 })
          }))
        )
        const fiber = yield* Effect.forkDetach(opened)
        yield* restore(Fiber.join(fiber))
        return response
      })
    )
  }

  /** Ends the sessions that were not used for too long. */
  private expire({ idle }: Legacy): Effect.Effect<void> {
    return Effect.gen({ self: this }, function*() {
      const last = (yield* Clock.currentTimeMillis) - Duration.toMillis(idle)
      for (const [id, { open, usedAt }] of this.sessions) {
        if (open > 0 || usedAt > last) continue
        this.sessions.delete(id)
        const ending = inner("DELETE", { [sessionHeader]: id } as unknown as Request["headers"])
        yield* Effect.scoped(this.run(ending, Caller.local))
      }
    })
  }
}
