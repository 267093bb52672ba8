/**
 * Serves the Studio files, which contain no data: any browser naming the server may read the files.
 */
import * as Effect from "effect/Effect"
import type * as HttpServerRequest from "effect/http/HttpServerRequest"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import * as Access from "./access.ts"
import * as Paths from "./paths.ts"
import * as Refusals from "./refusal.ts"
import type * as Routes from "./routes.ts"

type Request = HttpServerRequest.HttpServerRequest

const policy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data: blob:",
  "connect-src 'self'",
  "worker-src 'self'",
  "frame-ancestors 'none'",
  "base-uri 'none'",
  "form-action 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types 'none'"
].join("; ")

const headers = {
  "content-security-policy": policy,
  "cross-origin-opener-policy": "same-origin",
  "referrer-policy": "no-referrer",
  "x-content-type-options": "nosniff"
}

/** Script and style names change with their content. */
const isHashed = (name: string): boolean => /\.(js|css)$/.test(name)

/** Files of a build. */
interface Manifest {
  readonly files: ReadonlyArray<{ readonly name: string; readonly type: string }>
}

/** Reads a build file. */
export type ReadFile = (name: string) => Effect.Effect<Uint8Array, unknown>

/** Studio was not built, or only in part. */
export class NotBuilt extends Error {
  override readonly name = "NotBuilt"
}

/** Reads the build files. Dies with {@link NotBuilt} without a build. */
const read = (readFile: ReadFile) =>
  Effect.gen(function*() {
    const manifest = yield* readFile("manifest.json")
    const { files } = JSON.parse(new TextDecoder().decode(manifest)) as Manifest
    return yield* Effect.forEach(files, (file) => Effect.map(readFile(file.name), (body) => ({ ...file, body })), {
      concurrency: "unbounded"
    })
  }).pipe(
    Effect.mapError((cause) => new NotBuilt("Server.studio: Studio is not built; run: npm run build", { cause })),
    Effect.orDie
  )

const page = (name: string, type: string, body: Uint8Array): HttpServerResponse.HttpServerResponse =>
  HttpServerResponse.uint8Array(body, {
    contentType: type,
    headers: { ...headers, "cache-control": isHashed(name) ? "public, max-age=31536000, immutable" : "no-cache" }
  })

/** Returns the document for a page with the server root at a relative address. */
const documentFor = (body: Uint8Array, root: string): Uint8Array => {
  const html = new TextDecoder().decode(body)
  return new TextEncoder().encode(html.replace("name=\"server\" content=\"./\"", `name="server" content="${root}"`))
}

/** Returns the routes of the build files under a path, `""` for the root. The document is at `PATH/`. */
export const mount = (readFile: ReadFile, path: "" | `/${string}`): Routes.Mount => ({
  mount: (router, { access }) =>
    Effect.gen(function*() {
      const guarded = (request: Request, response: HttpServerResponse.HttpServerResponse) =>
        Effect.match(Access.checkHost(request, access), { onFailure: Refusals.respond, onSuccess: () => response })
      for (const { body, name, type } of yield* read(readFile)) {
        if (name !== "index.html") {
          const file = page(name, type, body)
          yield* Paths.add(router, "GET", `${path}/${name}`, (request) => guarded(request, file))
          continue
        }
        // The agent routes are at the server root, which may itself be below a path.
        const root = path === "" ? "./" : "../".repeat(path.split("/").length - 1)
        const document = page(name, type, documentFor(body, root))
        // Addresses in the document are relative to its folder. A router ignores the last slash of a path.
        const location = `${path.slice(path.lastIndexOf("/") + 1)}/`
        const elsewhere = HttpServerResponse.empty({ status: 308, headers: { ...headers, location } })
        yield* router.add("GET", path === "" ? "/" : path, (request) => {
          const asked = request.url.replace(/[?#].*/s, "")
          if (asked === `${path}/`) return guarded(request, document)
          return asked === path
            ? guarded(request, elsewhere)
            : Effect.succeed(HttpServerResponse.empty({ status: 404 }))
        })
      }
    })
})
