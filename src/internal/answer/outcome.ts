/**
 * Telling an outcome from data that merely looks like one. Outcomes that handlers return are marked by an invisible
 * property, so that a handler may return any object of its own; what an executor yields is checked by shape.
 */
import * as Json from "../json.ts"

/** The four outcomes of a call, by their fields. Public as `Tool.Outcome`, which knows the types of a tool as well. */
export type Outcome =
  | { readonly _tag: "Ok"; readonly value: unknown }
  | { readonly _tag: "Error"; readonly error: unknown }
  | {
    readonly _tag: "AskUser"
    readonly question: string
    readonly opts: ReadonlyArray<unknown>
    readonly answerSchema?: Record<string, unknown>
    readonly withinMillis?: number
    readonly defaultAnswer?: unknown
  }
  | { readonly _tag: "Halt"; readonly reason: string; readonly result: unknown }

const mark = Symbol.for("heddle/Tool/Outcome")

export const brand = <O extends object>(outcome: O): O => Object.defineProperty(outcome, mark, { value: true })

export const isBranded = (value: unknown): value is Outcome =>
  typeof value === "object" && value !== null && mark in value

/** Whether a value has one of the four legal shapes, with the fields a consumer relies on. */
export const isWellFormed = (value: unknown): value is Outcome => {
  if (!Json.isObject(value)) return false
  switch (value["_tag"]) {
    case "Ok":
      return "value" in value
    case "Error":
      return "error" in value
    case "AskUser":
      return typeof value["question"] === "string" && Array.isArray(value["opts"]) &&
        (value["answerSchema"] === undefined || Json.isObject(value["answerSchema"])) &&
        (value["withinMillis"] === undefined || typeof value["withinMillis"] === "number")
    case "Halt":
      return typeof value["reason"] === "string" && value["reason"] !== "" && "result" in value
    default:
      return false
  }
}

/** Reasons the runtime gives itself; a handler that could use one would forge an end of the run. */
export const reservedHaltReasons: ReadonlySet<string> = new Set([
  "ask_user",
  "max_turns",
  "halt_when",
  "tool_error",
  "cancelled",
  "completed",
  "error",
  "manual_tool_calls",
  "approval_requested"
])

export const awaitingAnswer = "<awaiting user response>"
