/**
 * Results in the form `{ success, data, error, contextUpdate }`, for tools that were written for it. An object with one
 * of the first three fields is read as such; an `error` without `success: true` is a failure, whatever else is there.
 */
import type * as Tool from "../../Tool.ts"
import * as Outcomes from "../declare/outcome.ts"
import * as Json from "../json.ts"

/** An outcome as it counts, and what the handler adds to the context. */
export interface Reading {
  readonly outcome: unknown
  readonly contextUpdate?: Json.JsonObject
}

const isResultObject = (value: unknown): value is Json.JsonObject =>
  Json.isObject(value) && ["success", "data", "error"].some((field) => Object.hasOwn(value, field))

const failure = ({ data, error }: Json.JsonObject): Tool.Outcome =>
  Outcomes.brand({ _tag: "Error", error: error ?? data ?? "the tool reported a failure" })

export const read = (outcome: unknown): Reading => {
  if (!Outcomes.isWellFormed(outcome) || outcome._tag !== "Ok" || !isResultObject(outcome.value)) return { outcome }
  const { value } = outcome
  const hasError = value["error"] !== undefined && value["error"] !== null
  if (value["success"] === false || (hasError && value["success"] !== true)) return { outcome: failure(value) }
  const { contextUpdate } = value
  const ok = { _tag: "Ok", value: value["data"] }
  return Json.isObject(contextUpdate) ? { outcome: ok, contextUpdate } : { outcome: ok }
}
