/**
 * The page of `heddle serve`: three files without data, which any browser may read.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import * as HttpRouter from "effect/http/HttpRouter"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import type * as Layer from "effect/Layer"
import type { PlatformError } from "effect/PlatformError"
import { fileURLToPath } from "node:url"
import * as Access from "../../server/internal/access.ts"
import * as Paths from "../../server/internal/paths.ts"
import * as Refusals from "../../server/internal/refusal.ts"

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'; "
  + "base-uri 'none'; form-action 'none'"

const headers = {
  "cache-control": "no-cache",
  "content-security-policy": policy,
  "cross-origin-opener-policy": "same-origin",
  "referrer-policy": "no-referrer",
  "x-content-type-options": "nosniff"
}

const files = [
  ["/", "index.html", "text/html; charset=utf-8"],
  ["/page.js", "page.js", "text/javascript; charset=utf-8"],
  ["/page.css", "page.css", "text/css; charset=utf-8"]
] as const

/** Adds the page to the router, for requests to the names of the server. */
export const layer = (
  folder: URL,
  rules: Access.Rules
): Layer.Layer<never, PlatformError, HttpRouter.HttpRouter | FileSystem.FileSystem> =>
  HttpRouter.use((router) =>
    Effect.gen(function*() {
      const fs = yield* FileSystem.FileSystem
      for (const [path, name, contentType] of files) {
        const body = yield* fs.readFile(fileURLToPath(new URL(name, folder)))
        const page = HttpServerResponse.uint8Array(body, { contentType, headers })
        yield* Paths.add(router, "GET", path, (request) =>
          Effect.match(Access.checkHost(request, rules), {
            onFailure: Refusals.respond,
            onSuccess: () => page
          }))
      }
    })
  )
