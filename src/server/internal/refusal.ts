/**
 * Refusals of requests: a status, a code and a message for a person. A message quotes no value from the request.
 */
import * as Data from "effect/Data"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import type * as Journal from "../../Journal.ts"

/** A refused request. It changed nothing, except that a session keeps the receipt of a message no run takes. */
export class Refusal extends Data.TaggedError("Refusal")<{
  readonly status: number
  readonly code: string
  readonly message: string
  /** The refused call, and the faults in its arguments. Absent for any other refusal. */
  readonly about?: {
    readonly id: string
    readonly issues: ReadonlyArray<{ readonly path: string; readonly reason: string }>
  }
}> {}

const refusal = (status: number) => (code: string, message: string): Refusal => new Refusal({ status, code, message })

export const badRequest = refusal(400)
export const forbidden = refusal(403)
export const notFound = refusal(404)
export const conflict = refusal(409)
export const tooLarge = refusal(413)
export const tooMany = refusal(429)

/**
 * Returns the refusal for a session that does not exist, or that belongs to another principal or another agent: the
 * client cannot tell them apart.
 */
export const unknownSession = (): Refusal => notFound("unknown_session", "There is no such session.")

/** Returns the refusal for a store error during a request, in terms of its meaning for the client. */
export const ofStore = ({ bytes, maxBytes, reason }: Journal.StoreError): Refusal => {
  switch (reason) {
    case "unavailable":
      return unavailable
    case "too_large":
      return tooLarge(
        "record_too_large",
        bytes === undefined || maxBytes === undefined
          ? "The request is too large to be recorded. Send less."
          : `The record of the request has ${bytes} bytes, and may have at most ${maxBytes}. Send less.`
      )
    case "full":
      return new Refusal({ status: 507, code: "store_full", message: "The session store is full." })
    case "read_only":
      return new Refusal({ status: 503, code: "store_read_only", message: "The session store cannot be written to." })
    case "newer_version":
      return new Refusal({
        status: 500,
        code: "newer_version",
        message: "A later release wrote this session, and this release cannot read it. The session can be deleted."
      })
    case "unreadable":
      return new Refusal({
        status: 500,
        code: "unreadable",
        message: "The session's records cannot be read. The session can be deleted."
      })
  }
}

const unavailable = new Refusal({
  status: 503,
  code: "unavailable",
  message: "The session store cannot be reached. Try again."
})

/** Refusal for a request ending in a defect. */
export const broken = new Refusal({
  status: 500,
  code: "internal",
  message: "The request failed. It was logged."
})

/** Returns the response for a refused request. */
export const respond = ({ about, code, message, status }: Refusal): HttpServerResponse.HttpServerResponse =>
  HttpServerResponse.jsonUnsafe({ error: { code, message, ...about } }, {
    status,
    headers: {
      "cache-control": "no-store",
      "x-content-type-options": "nosniff",
      ...(status === 429 ? { "retry-after": "60" } : {}),
      ...(status === 401 ? { "www-authenticate": "Bearer" } : {})
    }
  })
