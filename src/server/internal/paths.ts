/**
 * Routes by exact path: letter case, doubled and trailing slashes, semicolons and percent signs matter. The path rules
 * of a proxy in front of the server therefore hold, although an application's router may ignore such differences.
 */
import * as Effect from "effect/Effect"
import type * as HttpRouter from "effect/http/HttpRouter"
import type * as HttpServerRequest from "effect/http/HttpServerRequest"
import * as HttpServerResponse from "effect/http/HttpServerResponse"

type Request = HttpServerRequest.HttpServerRequest
type Response = HttpServerResponse.HttpServerResponse

/** Path parameters, as written in the address. */
export type Params = Readonly<Record<string, string>>

const none = HttpServerResponse.empty({ status: 404 })

/** Adds a route, only for addresses matching its path exactly. */
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
