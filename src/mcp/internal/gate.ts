/**
 * Guards the MCP endpoint: the checks common to all server routes, and the sessions of legacy clients, each owned by
 * its principal.
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

/** Server parts needed by the endpoint. */
export type Guard = Pick<Routes.Site, "access" | "authorize" | "bounds" | "counters">

/** Limits for legacy sessions. */
export interface Legacy {
  readonly maxSessions: number
  readonly perPrincipal: number
  readonly idle: Duration.Duration
}

/** Offered names, and a function to finish the text of a tool list. */
export interface Offer {
  readonly names: ReadonlySet<string>
  readonly listing: (text: string) => string
}

/** A legacy client's session. */
interface Session {
  readonly by: string
  readonly waiting: Caller.Caller["waiting"]
  usedAt: number
  /** Number of its running requests. */
  open: number
}

const sessionHeader = "mcp-session-id"

const tooMany = Refusals.tooMany("too_many_sessions", "There are too many sessions. Try again later.")

const noBatches = Refusals.badRequest("no_batches", "Batches of messages are not supported.")

/** Turns a missing-token refusal into a 401, which makes clients request a token. */
const asking = (refusal: Refusals.Refusal): Refusals.Refusal => {
  const { code, message } = refusal
  return code === "token_required" ? new Refusals.Refusal({ status: 401, code, message }) : refusal
}

const forbidden = Refusals.forbidden("forbidden", "This is not allowed.")

const notFound = HttpServerResponse.empty({ status: 404 })

/**
 * Answers a legacy client of a server without legacy sessions. Clients recognize the code, which stands for a missing
 * revision header.
 */
const modernOnly = (id: unknown): Response =>
  HttpServerResponse.jsonUnsafe({
    jsonrpc: "2.0",
    id: typeof id === "string" || typeof id === "number" ? id : null,
    error: {
      code: -32020,
      message: "This server has no sessions: it supports only protocol revision 2026-07-28. Make the SDK's client with "
        + `versionNegotiation: { mode: "auto" }, or the server with legacy: true.`
    }
  }, { status: 400 })

/** Session for an unknown id, owned by no principal. */
const unknown: Session = { by: "", waiting: new Set(), usedAt: 0, open: 0 }

/** Maximum length of a message id in a span. */
const longestId = 128

const idOf = ({ id }: Json.JsonObject): string | undefined =>
  typeof id === "string" || typeof id === "number" ? String(id).slice(0, longestId) : undefined

/** Returns a request in the endpoint's form: with protocol headers, without headers already checked. */
const inner = (method: string, headers: Request["headers"], body?: string): Request =>
  HttpServerRequest.fromWeb(
    new globalThis.Request("http://localhost/mcp", {
      method,
      headers: Object.entries(headers).filter(([name]) => /^(accept|content-type|mcp-.*)$/.test(name)),
      ...(body === undefined ? {} : { body })
    })
  )

/** Collects a response's body, so that it no longer needs the request. */
const whole = (response: Response): Effect.Effect<Response> =>
  response.body._tag === "Stream"
    ? Effect.map(Effect.orDie(Stream.runCollect(response.body.stream)), (chunks) =>
      HttpServerResponse.setBody(response, HttpBody.uint8Array(Bytes.concat(chunks), "application/json")))
    : Effect.succeed(response)

/** The endpoint behind its checks. */
export class Gate {
  private readonly sessions = new Map<string, Session>()
  /** Principals of sessions being opened. */
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

  /** Authorizes a request, requiring the same principals as before. */
  private may(request: Request, question: Access.Question, before?: Access.Grant) {
    return Effect.flatMap(
      Access.ask(this.guard, request, question),
      (grant) =>
        before === undefined || grant.principal === before.principal && grant.of === before.of
          ? Effect.succeed(grant)
          : forbidden
    )
  }

  /** Authorizes reading a body, which names the tool: allowed for principals who may call or list something. */
  private entered(request: Request): Effect.Effect<Access.Grant, Refusals.Refusal> {
    const lists = Array.from(this.offer.names, (agent) => ({ agent, action: "list" as const }))
    return Access.ask(this.guard, request, { action: "write" }, ...lists)
  }

  /**
   * Authorizes a message: a call is a write, an answer needs permission for every question waiting in its session, and
   * everything else reads the list.
   */
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

  // Legacy sessions.

  /** Returns the session named by a request. */
  private sessionOf(request: Request): Effect.Effect<Session | undefined> {
    return Effect.gen({ self: this }, function*() {
      const id = request.headers[sessionHeader]
      if (id === undefined || this.legacy === undefined) return undefined
      yield* this.expire(this.legacy)
      return this.sessions.get(id) ?? unknown
    })
  }

  /** Counts a session's request until it is answered. */
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
   * Opens a session, whose id stands in the response. The endpoint may open it even after the client has left. It is
   * recorded in any case, so that it can be ended.
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

  /** Ends sessions idle for too long. */
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
