/**
 * Converts session ids to entity ids, escaped for cluster tables, which have room for 255 characters.
 */
import * as Effect from "effect/Effect"
import * as Json from "../../internal/json.ts"
import * as Protocol from "./protocol.ts"

/** Maximum id length in cluster tables. */
const longest = 255

/** Returns the id of a session's entity. Fails if the id does not fit. */
export const entityOf = (session: string, command: string): Effect.Effect<string, Protocol.CommandError> => {
  const id = Json.escaped(session)
  return id.length > 0 && id.length <= longest ? Effect.succeed(id) : Effect.fail(
    new Protocol.CommandError({
      session,
      command,
      reason: "invalid_id",
      detail: `a session id on a cluster must have 1 to ${longest} characters after escaping; this id has ${id.length}`
    })
  )
}
