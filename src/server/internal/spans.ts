/**
 * Request spans. They contain only the path of an address: the query is the client's own, and may contain a token sent
 * there by mistake.
 */
import * as Effect from "effect/Effect"
import * as HttpMiddleware from "effect/http/HttpMiddleware"
import * as HttpServerRequest from "effect/http/HttpServerRequest"
import type * as HttpServerResponse from "effect/http/HttpServerResponse"

/** Traces requests by path, replacing the server's own span, which `TracerDisabledWhen` switches off. */
export const byPath = (isDisabled: (request: HttpServerRequest.HttpServerRequest) => boolean) =>
<E, R>(
  app: Effect.Effect<HttpServerResponse.HttpServerResponse, E, R>
): Effect.Effect<HttpServerResponse.HttpServerResponse, E, R | HttpServerRequest.HttpServerRequest> =>
  Effect.flatMap(
    HttpServerRequest.HttpServerRequest,
    (request) =>
      HttpMiddleware.tracer(Effect.provideService(app, HttpServerRequest.HttpServerRequest, request)).pipe(
        Effect.provideService(
          HttpServerRequest.HttpServerRequest,
          request.modify({ url: request.url.replace(/\?.*/s, "") })
        ),
        Effect.provideService(HttpMiddleware.TracerDisabledWhen, isDisabled)
      )
  ) as Effect.Effect<HttpServerResponse.HttpServerResponse, E, R | HttpServerRequest.HttpServerRequest>
