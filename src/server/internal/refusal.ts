/**
 * Refusals of requests: a status, a code and one sentence for a person, which repeats nothing of the request.
 *
 * @since 0.1.0
 */
import * as Data from "effect/Data"
import * as HttpServerResponse from "effect/http/HttpServerResponse"

/** A request that is refused. Nothing was changed. */
export class Refusal extends Data.TaggedError("Refusal")<{
  readonly status: number
  readonly code: string
  readonly message: string
}> {}

const refusal = (status: number) => (code: string, message: string): Refusal => new Refusal({ status, code, message })

export const badRequest = refusal(400)
export const forbidden = refusal(403)
export const notFound = refusal(404)
export const conflict = refusal(409)
export const tooLarge = refusal(413)
export const tooMany = refusal(429)

/** Returns the refusal of a session that does not exist or belongs to another principal: the two do not differ. */
export const unknownSession = (): Refusal => notFound("unknown_session", "There is no such session.")

/** Returns the answer to a refused request. */
export const respond = ({ code, message, status }: Refusal): HttpServerResponse.HttpServerResponse =>
  HttpServerResponse.jsonUnsafe({ error: { code, message } }, {
    status,
    headers: {
      "cache-control": "no-store",
      "x-content-type-options": "nosniff",
      ...(status === 429 ? { "retry-after": "60" } : {}),
      ...(status === 401 ? { "www-authenticate": "Bearer" } : {})
    }
  })
