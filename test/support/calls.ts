/**
 * Call contexts for tests that reach below the runner.
 */
import * as Effect from "effect/Effect"
import { Message, type Tool } from "heddle"

/** The context of a call of a tool, as the runner would hand it to a handler. */
export const callOf = (name: string, more: Partial<Tool.CallContext> = {}): Tool.CallContext => ({
  id: "c0",
  name,
  index: 0,
  stepIndex: 0,
  attempt: 1,
  idempotencyKey: "k0",
  requestId: null,
  sessionId: null,
  context: {},
  toolCall: Message.toolCall("c0", name),
  progress: () => Effect.void,
  updateContext: () => Effect.void,
  cancelCall: () => Effect.succeed(false),
  promise: (run) => Effect.promise((signal) => Promise.resolve(run(signal))),
  ...more
})
