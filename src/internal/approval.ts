/**
 * Whether a call waits for somebody to allow it: asked after its tool's gates, before its handler. It fails closed: what
 * does not clearly say that no approval is needed, asks for one. A call that waits is settled by its place among the
 * suspensions; an answer it gets from somebody outside the run.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Event from "../Event.ts"
import type * as Message from "../Message.ts"
import type * as Tool from "../Tool.ts"
import * as Now from "./now.ts"
import type * as Plan from "./plan.ts"

export const isNeeded = (
  { args, call, tool: { approval } }: Plan.Run,
  context: Tool.CallContext,
  approved: ReadonlySet<string> | undefined
): Effect.Effect<boolean, never, any> => {
  if (approval === undefined || approval === false || approved?.has(call.id) === true) return Effect.succeed(false)
  if (approval === true) return Effect.succeed(true)
  return Effect.suspend(() => Now.toEffect<unknown, unknown, any>(approval(args, context))).pipe(
    Effect.map((needed) => needed !== false),
    Effect.catchCause((cause) =>
      Effect.as(Effect.logWarning(`approval of tool "${call.name}" broke; the call waits for one`, cause), true)
    )
  )
}

const expiry = (tool: Tool.Any | undefined, now: number): { readonly expiresAt?: number } =>
  tool?.answerWithin === undefined ? {} : { expiresAt: now + Duration.toMillis(tool.answerWithin) }

/** A call that waits, as somebody is asked about it. */
export const suspension = (
  kind: "approval" | "manual",
  call: Message.ToolCall,
  tool: Tool.Any | undefined,
  now: number
): Event.Suspension => ({ id: call.id, kind, toolCall: call, ...expiry(tool, now) })

const requested = ({ expiresAt, toolCall }: Event.Suspension): Event.Event => ({
  _tag: "ToolApprovalRequested",
  toolCallId: toolCall.id,
  toolName: toolCall.name,
  arguments: toolCall.arguments ?? {},
  ...(expiresAt === undefined ? {} : { expiresAt })
})

/** The calls of a batch that wait for an approval, by their position. */
export class Waiting {
  private readonly suspensions = new Map<number, Event.Suspension>()

  get size(): number {
    return this.suspensions.size
  }

  has(job: { readonly index: number }): boolean {
    return this.suspensions.has(job.index)
  }

  /** Takes in a call, and gives the event that says so. */
  add({ call, index, tool }: Plan.Run, now: number): Event.Event {
    const waiting = suspension("approval", call, tool, now)
    this.suspensions.set(index, waiting)
    return requested(waiting)
  }

  /** All that waits in call order, with the questions among the answers, which stand by their position. */
  among(answers: ReadonlyArray<Answered | undefined>): ReadonlyArray<Event.Suspension> {
    const { suspensions } = this
    return Array.from(
      { length: Math.max(answers.length, ...Array.from(suspensions.keys(), (index) => index + 1)) },
      (_, index) => suspensions.get(index) ?? answers[index]?.suspension
    ).filter((waiting) => waiting !== undefined)
  }
}

/** The questions among the answers, where nothing else waits. */
export const questions = (answers: ReadonlyArray<Answered | undefined>): ReadonlyArray<Event.Suspension> =>
  answers.flatMap((answer) => answer?.suspension ?? [])

/** An answer, which may be a question. */
interface Answered {
  readonly suspension?: Event.Suspension
}
