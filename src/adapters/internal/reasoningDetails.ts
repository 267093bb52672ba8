/**
 * The reasoning details of a reply, put together from the pieces in which they are streamed, so that they can go back as
 * the provider signed them. Texts are only appended to, so that the work is linear in the pieces.
 */
import type * as Json from "../../internal/json.ts"

/** The members that come in pieces. */
const pieced = ["text", "summary"] as const

export class ReasoningDetails {
  private readonly details: Array<Record<string, unknown>> = []

  get list(): ReadonlyArray<Json.JsonObject> {
    return this.details
  }

  add(pieces: ReadonlyArray<Json.JsonObject>): void {
    for (const piece of pieces) {
      const last = this.details.at(-1)
      if (last === undefined || !isContinued(last, piece)) this.details.push(said(piece))
      else append(last, piece)
    }
  }
}

/** Whether a piece goes on with a detail. What is encrypted comes whole. */
const isContinued = (detail: Json.JsonObject, piece: Json.JsonObject): boolean =>
  detail["type"] === piece["type"] && detail["index"] === piece["index"] && isPieced(detail) && isPieced(piece)

/** A signature alone ends the text that it signs. */
const isPieced = (detail: Json.JsonObject): boolean =>
  pieced.some((name) => typeof detail[name] === "string") ||
  (detail["data"] === undefined && typeof detail["signature"] === "string")

const said = (piece: Json.JsonObject): Record<string, unknown> =>
  Object.fromEntries(Object.entries(piece).filter(([, value]) => value !== null && value !== undefined))

const append = (detail: Record<string, unknown>, piece: Json.JsonObject): void => {
  for (const [name, value] of Object.entries(said(piece))) {
    const isText = pieced.some((text) => text === name) && typeof value === "string"
    const before = isText ? detail[name] : undefined
    detail[name] = typeof before === "string" ? before + String(value) : value
  }
}
