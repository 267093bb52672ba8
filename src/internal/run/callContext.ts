/** What a handler is told about its call. */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import { described } from "../answer/errorFields.ts"
import type * as Plan from "../decide/plan.ts"
import type { CallContext } from "../declare/tool.ts"
import * as Json from "../json.ts"
import type { Workshop } from "./batchEnvironment.ts"

/** Whatever a promise was rejected with, as an error that says so in its message, too. */
const rejected = (cause: unknown): Effect.Effect<never, Cause.UnknownError> =>
  Effect.fail(
    new Cause.UnknownError(
      cause,
      cause === undefined || cause === null ? "the promise was rejected without a reason" : described(cause).text
    )
  )

/** The promise, whatever its API does: one that throws has rejected. */
const started = <A>(run: (signal: AbortSignal) => PromiseLike<A>, signal: AbortSignal): Promise<A> =>
  new Promise((resolve) => resolve(run(signal)))

/**
 * Runs a Promise API. Interruption fires the signal and then waits until the promise has settled, so that nothing of it
 * is alive when the call has ended.
 */
export const promise = <A>(run: (signal: AbortSignal) => PromiseLike<A>): Effect.Effect<A, Cause.UnknownError> =>
  Effect.callback<A, Cause.UnknownError>((resume) => {
    const controller = new AbortController()
    const settled = started(run, controller.signal).then(
      (value) => resume(Effect.succeed(value)),
      (cause: unknown) => resume(rejected(cause))
    )
    return Effect.suspend(() => {
      controller.abort()
      return Effect.promise(() => settled)
    })
  })

/** What a handler may tell while it runs. */
export interface Reports {
  readonly progress: (value: unknown) => void
  readonly updateContext: (values: Json.JsonObject) => void
}

const update = (reports: Reports, values: unknown): void => {
  if (!Json.isObject(values)) throw new TypeError("call.updateContext takes an object of context values")
  reports.updateContext(values)
}

export const callContext = (
  { call, index }: Plan.Run,
  { settings, stepIndex }: Pick<Workshop<unknown>, "settings" | "stepIndex">,
  reports: Reports
): CallContext => ({
  id: call.id,
  name: call.name,
  index,
  stepIndex,
  attempt: 1,
  // Joined, since a text that is put together keeps its pieces.
  idempotencyKey: [settings.requestId, stepIndex, index, call.id].join(":"),
  requestId: settings.requestId,
  sessionId: settings.sessionId,
  context: settings.context,
  // Not by a getter that copies when it is asked: V8 makes an object with one much slower than a copy.
  toolCall: Json.copy(call),
  progress: (value) => Effect.sync(() => reports.progress(value)),
  updateContext: (values) => Effect.sync(() => update(reports, values)),
  promise
})
