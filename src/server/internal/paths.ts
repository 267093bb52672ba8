/**
 * Routes by the paths that are written: letter case, doubled and trailing slashes, path parameters and percent signs
 * matter, so that a rule of a proxy in front of the server holds. The router of an application may look past them.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import type * as HttpRouter from "effect/http/HttpRouter"
import type * as HttpServerRequest from "effect/http/HttpServerRequest"
import * as HttpServerResponse from "effect/http/HttpServerResponse"

type Request = HttpServerRequest.HttpServerRequest
type Response = HttpServerResponse.HttpServerResponse

/** The parameters of a path, as the address has them. */
export type Params = Readonly<Record<string, string>>

const none = HttpServerResponse.empty({ status: 404 })

/** Adds a route, for exactly the addresses that its path names. */
export const add = <E, R>(
  router: HttpRouter.HttpRouter,
  method: Parameters<HttpRouter.HttpRouter["add"]>[0],
  path: `/${string}`,
  handler: (request: Request, params: Params) => Effect.Effect<Response, E, R>
) => {
  const exact = new RegExp(`^${path.replaceAll(".", "\\.").replaceAll(/:(\w+)/g, "(?<$1>[^/;]*)")}$`)
  return router.add(method, path, (request) => {
    const found = exact.exec(request.url.replace(/[?#].*/s, ""))
    return found === null ? Effect.succeed(none) : handler(request, found.groups ?? {})
  })
}
