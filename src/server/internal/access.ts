/**
 * Decides who may request what: by the requested address, the originating page, and the principal.
 */
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as HttpServerRequest from "effect/http/HttpServerRequest"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import * as Option from "effect/Option"
import type * as Bounds from "./bounds.ts"
import * as Refusals from "./refusal.ts"

type Request = HttpServerRequest.HttpServerRequest

/**
 * Subject of a request.
 *
 * @category models
 */
export interface Question {
  /** Agent name, or tool name over MCP. Absent until an MCP message's body, which names the tool, has been read. */
  readonly agent?: string
  /** Session id, without its principal. Absent if the request names no session. */
  readonly session?: string
  /**
   * Requested action: `"write"` is a new message, a retry, a branch, a title or a pin; `"answer"` an answer to a
   * question or the result of a client's tool; `"approve"` an approval, a denial, an edit or the end of a remembered
   * approval; `"inspect"` the raw events.
   */
  readonly action: "list" | "read" | "write" | "answer" | "approve" | "stop" | "delete" | "inspect"
}

/**
 * A permission.
 *
 * @category models
 */
export interface Grant {
  /** Requesting principal, as named in the journal. */
  readonly principal: string
  /** Another principal, on whose session this one may act. Absent for its own session. */
  readonly of?: string
}

/**
 * Decides about a request. It succeeds with a permission. A failure, a defect and ten seconds without an answer all
 * refuse the request: with 403 if the request has an `authorization` header, else with 401.
 *
 * @category models
 */
export type Authorize<R = never> = (
  request: HttpServerRequest.HttpServerRequest,
  question: Question
) => Effect.Effect<Grant, unknown, R>

/** Headers added by proxies. */
const forwarding = /^(x-forwarded.*|forwarded|via|x-real-ip|(x-|true-|x-cluster-)?client-ip|cf-connecting-ip)$/

const loopbacks = /^(localhost|127(\.\d{1,3}){3}|\[?::1\]?|::ffff:127(\.\d{1,3}){3})$/i

/** Tells whether a host means this machine only. */
export const isLoopback = (host: string): boolean => loopbacks.test(host)

/**
 * Allows all requests from this machine, as the principal `local`. Refuses requests forwarded by a proxy, and requests
 * from another address; `Server.toWebHandler` requests have no address, and their `Host` decides.
 */
export const allowLoopback: Authorize = (request) =>
  Effect.suspend(() => {
    const isForwarded = Object.keys(request.headers).some((name) => forwarding.test(name))
    const address = Option.getOrUndefined(request.remoteAddress)
    return isForwarded || address !== undefined && !isLoopback(address)
      ? Effect.fail("the request does not come from this machine")
      : Effect.succeed({ principal: "local" })
  })

/** Settings for checking a request's address and page. */
export interface Rules {
  readonly hosts: ReadonlyArray<string>
  readonly origins: ReadonlyArray<string>
  readonly isLoopback: boolean
}

const hostname = (host: string): string => host.replace(/:\d+$/, "")

const isHost = (host: string, { hosts, isLoopback: isLocal }: Rules): boolean =>
  isLocal && isLoopback(hostname(host))
  || hosts.some((known) => known.toLowerCase() === (/:\d+$/.test(known) ? host : hostname(host)).toLowerCase())

const originHost = (origin: string): string | undefined => {
  try {
    return new URL(origin).host
  } catch {
    return undefined
  }
}

/** Tells whether a page from this origin may read answers: the server's own pages, and listed origins. */
const isOrigin = (origin: string, host: string, { origins }: Rules): boolean =>
  origins.includes(origin) || originHost(origin) === host

/** Tells whether a request's content type is JSON. */
export const isJson = (request: Request): boolean =>
  /^application\/json\s*(;|$)/i.test(request.headers["content-type"] ?? "")

export const unsupported = new Refusals.Refusal({
  status: 415,
  code: "unsupported_media_type",
  message: "The content-type of a body must be application/json."
})

/** Refuses a request to another host. */
export const checkHost = (request: Request, rules: Rules): Effect.Effect<void, Refusals.Refusal> =>
  isHost(request.headers["host"] ?? "", rules)
    ? Effect.void
    : new Refusals.Refusal({
      status: 421,
      code: "unknown_host",
      message: "The host of the request does not name this server."
    })

const checkPage = ({ headers: { host = "", origin, ...headers } }: Request, rules: Rules) => {
  if (origin !== undefined) {
    return isOrigin(origin, host, rules)
      ? Effect.void
      : Refusals.forbidden("unknown_origin", "Pages of this origin may not use the server.")
  }
  const site = headers["sec-fetch-site"]
  return site === undefined || site === "same-origin" || site === "none"
    ? Effect.void
    : Refusals.forbidden("unknown_origin", "Pages of other sites may not use the server.")
}

/** Refuses a request to another host, from an unlisted page or by a form, and a write without an origin or a token. */
export const check = (request: Request, rules: Rules): Effect.Effect<void, Refusals.Refusal> =>
  Effect.gen(function*() {
    const { authorization = "", origin } = request.headers
    yield* checkHost(request, rules)
    yield* checkPage(request, rules)
    if (request.method === "GET" || request.method === "HEAD") return
    if (origin === undefined && !rules.isLoopback && !/^bearer\s+\S/i.test(authorization)) {
      return yield* Refusals.forbidden("token_required", "A write without an Origin needs a bearer token.")
    }
    if (request.headers["content-type"] !== undefined && !isJson(request)) return yield* unsupported
  })

/** Returns the answer to a preflight, or refuses it like the announced request. */
export const preflight = (
  request: Request,
  rules: Rules
): Effect.Effect<HttpServerResponse.HttpServerResponse, Refusals.Refusal> =>
  Effect.as(
    Effect.andThen(checkHost(request, rules), Effect.suspend(() => checkPage(request, rules))),
    HttpServerResponse.empty({
      status: 204,
      headers: {
        "access-control-allow-methods": "GET, POST, PATCH, DELETE",
        "access-control-allow-headers": "authorization, content-type, last-event-id, mcp-method, mcp-name, "
          + "mcp-protocol-version, mcp-session-id",
        "access-control-max-age": "600"
      }
    })
  )

/** Makes a response readable for a listed page. */
export const allowing = (
  request: Request,
  rules: Rules,
  response: HttpServerResponse.HttpServerResponse
): HttpServerResponse.HttpServerResponse => {
  const { origin } = request.headers
  return origin !== undefined && rules.origins.includes(origin)
    ? HttpServerResponse.setHeaders(response, {
      "access-control-allow-origin": origin,
      "access-control-allow-credentials": "true",
      "access-control-expose-headers": "mcp-session-id",
      "vary": "origin"
    })
    : response
}

/** Runs an effect in a fiber, leaving the fiber behind if it ignores interruption. */
export const prompt = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.flatMap(
    Effect.forkDetach(effect),
    (fiber) => Effect.onInterrupt(Fiber.join(fiber), () => Effect.sync(() => fiber.interruptUnsafe()))
  )

/** Server parts needed for authorization. */
export interface Door<R = never> {
  readonly authorize: Authorize<R>
  readonly counters: Pick<Bounds.Counters, "undecided">
}

const granted = (grant: Grant): Effect.Effect<Grant, unknown> =>
  typeof grant?.principal === "string" && grant.principal !== "" ? Effect.succeed(grant) : Effect.fail("no principal")

/**
 * Asks whether a request may do one of several things: the first allowed thing determines the permission. All questions
 * share one time limit.
 */
export const ask = <R>(
  { authorize, counters }: Door<R>,
  request: Request,
  ...[first, ...others]: readonly [Question, ...ReadonlyArray<Question>]
): Effect.Effect<Grant, Refusals.Refusal, R> => {
  const asked = (question: Question) => Effect.flatMap(Effect.suspend(() => authorize(request, question)), granted)
  const decided = prompt(others.reduce(
    (before, question) => Effect.catchCause(before, () => asked(question)),
    asked(first)
  )).pipe(
    Effect.timeout("10 seconds"),
    Effect.catchCause((cause) =>
      Effect.andThen(
        Effect.logDebug("a request was refused", cause),
        request.headers["authorization"] === undefined
          ? new Refusals.Refusal({ status: 401, code: "unauthorized", message: "Authorization is required." })
          : Refusals.forbidden("forbidden", "This is not allowed.")
      )
    )
  )
  return counters.undecided(request, decided)
}
