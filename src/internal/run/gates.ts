/**
 * Gates a call must pass before its handler first starts: the tool's `validate`, then its `authorize`. All calls reach
 * a handler the same way, so no path skips the gates. They fail closed: a gate that fails, breaks, or does not clearly
 * allow the call denies it.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import type * as Message from "../../Message.ts"
import type * as Tool from "../../Tool.ts"
import * as Answers from "../answer/answer.ts"
import type * as Plan from "../decide/plan.ts"
import { toolError } from "../declare/outcome.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Json from "../json.ts"

type Gate = (args: unknown, call: Tool.CallContext) => unknown

/** Words for a gate: the fields of its verdict and explanation, and the denial texts. */
interface Kind {
  readonly name: "validate" | "authorize"
  readonly verdict: string
  readonly explanation: string
  readonly prefix: string
  readonly unexplained: string
}

const validate: Kind = {
  name: "validate",
  verdict: "valid",
  explanation: "error",
  prefix: "Validation failed",
  unexplained: "Invalid input"
}

const authorize: Kind = {
  name: "authorize",
  verdict: "allowed",
  explanation: "reason",
  prefix: "Permission denied",
  unexplained: "Not allowed"
}

export const isGated = (tool: Tool.Any): boolean =>
  tool.validate !== undefined || tool.authorize !== undefined || (tool.approval ?? false) !== false

const denied = (call: Message.ToolCall, kind: Kind, explanation: unknown, rest: Json.JsonObject, cause?: unknown) =>
  toolError("denied", call, {
    detail: `${kind.prefix}: ${typeof explanation === "string" && explanation !== "" ? explanation : kind.unexplained}`,
    ...(cause === undefined ? {} : { cause }),
    metadata: { gate: kind.name, ...rest }
  })

/**
 * Returns the explanation for a denial by a failed gate: its reported failure, or the mistake of a misused gate. Other
 * defects are not shown to the model.
 */
const reported = (cause: Cause.Cause<unknown>): unknown => {
  const defect = Result.getOrUndefined(Cause.findDefect(cause))
  if (defect instanceof ToolOptions.Misuse) return defect.message
  const failure = Option.getOrUndefined(Cause.findErrorOption(cause))
  return Json.isObject(failure) ? failure["message"] : failure
}

const judged = (call: Message.ToolCall, kind: Kind, exit: Exit.Exit<unknown, unknown>): Tool.ToolError | undefined => {
  if (Exit.isFailure(exit)) return denied(call, kind, reported(exit.cause), {}, Cause.squash(exit.cause))
  const verdict = Json.isObject(exit.value) ? exit.value : { [kind.verdict]: exit.value }
  const mistake = ToolOptions.promised(kind.name, exit.value) ?? ToolOptions.promised(kind.name, verdict[kind.verdict])
  if (mistake !== undefined) return denied(call, kind, mistake.message, {}, mistake)
  if (verdict[kind.verdict] === true) return undefined
  const { canOverride } = verdict
  return denied(call, kind, verdict[kind.explanation], typeof canOverride === "boolean" ? { canOverride } : {})
}

/** Returns a gate's denial, if any. A verdict that throws while being read is a denial. */
const judge = (call: Message.ToolCall, kind: Kind, exit: Exit.Exit<unknown, unknown>): Tool.ToolError | undefined =>
  Result.getOrElse(
    Result.try({ try: () => judged(call, kind, exit), catch: (cause) => cause }),
    (cause) => denied(call, kind, undefined, {}, cause)
  )

const ask = (
  gate: Gate | undefined,
  kind: Kind,
  { args, call }: Plan.Run,
  context: Tool.CallContext
): Effect.Effect<Tool.ToolError | undefined, never, any> =>
  gate === undefined
    ? Effect.succeed(undefined)
    : Effect.suspend(() => ToolOptions.toEffect(gate(args, context), kind.name)).pipe(
      Effect.tapCause((cause) => Answers.warnOfGate(kind.name, call, cause)),
      Effect.exit,
      Effect.map((exit) => judge(call, kind, exit))
    )

/** Returns the error of the first denying gate, if any. */
export const denial = (
  job: Plan.Run,
  context: Tool.CallContext
): Effect.Effect<Tool.ToolError | undefined, never, any> =>
  Effect.flatMap(
    ask(job.tool.validate, validate, job, context),
    (error) => error === undefined ? ask(job.tool.authorize, authorize, job, context) : Effect.succeed(error)
  )

/** Returns the denial for a gate that did not answer in time. */
export const late = (call: Message.ToolCall, millis: number): Tool.ToolError =>
  toolError("denied", call, { detail: `the call was not allowed within ${millis} ms`, metadata: { gate: "timeout" } })
