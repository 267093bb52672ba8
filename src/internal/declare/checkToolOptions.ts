/** What a tool may be declared as. Anything else is the caller's mistake and throws, naming the tool and the option. */
import * as Duration from "effect/Duration"
import * as Json from "../json.ts"
import * as Durations from "./durations.ts"

const namePattern = /^[A-Za-z0-9_-]{1,64}$/
const reservedNames: ReadonlyArray<string> = ["auto", "none", "required"]
const flags = ["readOnly", "destructive", "idempotent", "openWorld", "manual", "compact"] as const

export const misuse = (name: string, problem: string): never => {
  throw new TypeError(`Tool.make(${JSON.stringify(name)}): ${problem}`)
}

/** Throws for options that no tool can be made of. */
export const check = (name: string, options: Readonly<Record<string, unknown>>): void => {
  if (!namePattern.test(name)) misuse(name, "a name has 1 to 64 letters, digits, _ or -")
  if (reservedNames.includes(name)) misuse(name, "auto, none and required are tool choices, not names")
  for (const flag of flags) {
    if (flag in options && typeof options[flag] !== "boolean") misuse(name, `${flag} must be true or false`)
  }
  const { concurrency = "shared", interrupt = "cancel", maxResultChars = 0 } = options
  if (concurrency !== "shared" && concurrency !== "exclusive" && typeof concurrency !== "function") {
    misuse(name, `concurrency must be "shared", "exclusive" or a function of the arguments`)
  }
  checkGates(name, options)
  checkOnToolError(name, options["onToolError"])
  checkApproval(name, options)
  checkLimits(name, options["limits"])
  if (interrupt !== "cancel" && interrupt !== "block") misuse(name, `interrupt must be "cancel" or "block"`)
  if (maxResultChars !== Infinity && !(Number.isInteger(maxResultChars) && Number(maxResultChars) >= 0)) {
    misuse(name, "maxResultChars must be a whole number, 0 or Infinity for no limit")
  }
}

/** A call that is handed over is not run here, so a gate on it would be one that nobody passes. */
const checkGates = (name: string, options: Readonly<Record<string, unknown>>): void => {
  for (const gate of ["validate", "authorize"]) {
    const value = options[gate]
    if (value === undefined) continue
    if (typeof value !== "function") misuse(name, `${gate} must be a function (args, call)`)
    if (options["manual"] === true) {
      misuse(name, `${gate} is asked before a handler runs, and a manual tool has none: ask where its calls are run`)
    }
  }
}

/** A function that declares no parameters cannot misread them. */
const checkOnToolError = (name: string, value: unknown): void => {
  if (value === undefined || value === null || value === "continue" || value === "halt") return
  if (typeof value !== "function" || (value.length !== 2 && value.length !== 0)) {
    misuse(name, `onToolError must be "continue", "halt" or a function (call, error)`)
  }
}

/** Nobody allows a call and runs it, too: whoever runs a manual call decides about it. */
const checkApproval = (name: string, { approval, manual }: Readonly<Record<string, unknown>>): void => {
  if (approval === undefined) return
  if (typeof approval !== "boolean" && typeof approval !== "function") {
    misuse(name, "approval must be true, false or a function (args, call)")
  }
  if (manual === true && approval !== false) {
    misuse(name, "a call is either manual or waits for approval: whoever runs a manual call decides about it")
  }
}

const checkLimits = (name: string, limits: unknown): void => {
  if (limits === undefined) return
  const isUsable = (limit: unknown): boolean =>
    Json.isObject(limit) && (typeof limit["key"] === "function" || typeof limit["key"] === "string") &&
    Number.isInteger(limit["permits"]) && Number(limit["permits"]) > 0
  if (!Array.isArray(limits) || !limits.every(isUsable)) {
    misuse(
      name,
      "limits must be a list of { key, permits }: a text or a function (args, call), and a whole number above 0"
    )
  }
}

export const duration = (name: string, option: string, input: Durations.Input): Duration.Duration => {
  const duration = Durations.read(input)
  return duration !== undefined && Duration.isPositive(duration)
    ? duration
    : misuse(name, `${option} must be a duration above zero or "infinity"; got: ${Json.render(input)}`)
}
