/** Turns of a journal, as runs write them. */
import { type Journal, Message } from "heddle"

/** A reply, which makes the call if there is one. */
const replyOf = (
  requestId: string,
  outputText: string | null,
  toolCalls: ReadonlyArray<Message.ToolCall> = []
) => ({
  id: null,
  requestId,
  model: null,
  outputText,
  reasoning: "",
  toolCalls,
  message: Message.assistant(outputText ?? "", toolCalls),
  finishReason: toolCalls.length === 0 ? "stop" as const : "tool_calls" as const,
  rawFinishReason: null,
  usage: null,
  metadata: {}
})

/** The last step of a run, and its end. */
const answered = (n: number, stepIndex: number): ReadonlyArray<Journal.Record> => {
  const requestId = `r${n}`
  return [
    { _tag: "StepCompleted", requestId, stepIndex, response: replyOf(requestId, `answer ${n}`), done: true },
    { _tag: "RunEnded", requestId, haltedReason: "completed", status: "completed" }
  ]
}

/** One turn with a tool call, as a run writes it: seven records, four messages. */
export const turn = (n: number): ReadonlyArray<Journal.Record> => {
  const [id, requestId, toolCall] = [`c${n}`, `r${n}`, Message.toolCall(`c${n}`, "read", { path: "a.ts" })]
  const idempotencyKey = `r${n}:0:0:${id}`
  return [
    { _tag: "RunStarted", requestId, operation: "reply", startedAt: n, messages: [Message.user(`question ${n}`)] },
    { _tag: "ReplyReceived", requestId, stepIndex: 0, response: replyOf(requestId, null, [toolCall]) },
    { _tag: "CallStarted", requestId, toolCallId: id, attempt: 1, idempotencyKey },
    { _tag: "CallEnded", requestId, message: Message.tool(id, "text") },
    { _tag: "StepCompleted", requestId, stepIndex: 0, done: false },
    ...answered(n, 1)
  ]
}

/** One turn whose call was denied before the session went on. */
export const deniedTurn = (n: number): ReadonlyArray<Journal.Record> => {
  const [id, requestId, toolCall] = [`c${n}`, `r${n}`, Message.toolCall(`c${n}`, "pay", { amount: 5 })]
  return [
    { _tag: "RunStarted", requestId, operation: "reply", startedAt: n, messages: [Message.user(`question ${n}`)] },
    { _tag: "ReplyReceived", requestId, stepIndex: 0, response: replyOf(requestId, null, [toolCall]) },
    { _tag: "CallWaits", requestId, toolCallId: id, suspensions: [{ id, kind: "approval" }] },
    { _tag: "StepCompleted", requestId, stepIndex: 0, done: false },
    { _tag: "RunEnded", requestId, haltedReason: "approval_requested", status: "completed" },
    { _tag: "CallSettled", id, answer: { _tag: "Denied" } },
    { _tag: "RunStarted", requestId, operation: "continue", startedAt: n, messages: [] },
    ...answered(n, 0)
  ]
}

/** One turn whose call was approved, and ran when the session went on. */
export const approvedTurn = (n: number): ReadonlyArray<Journal.Record> => {
  const [id, requestId] = [`c${n}`, `r${n}`]
  const idempotencyKey = `r${n}:0:0:${id}`
  return [
    ...deniedTurn(n).slice(0, 5),
    { _tag: "CallSettled", id, answer: { _tag: "Approved" } },
    { _tag: "RunStarted", requestId, operation: "continue", startedAt: n, messages: [] },
    { _tag: "CallStarted", requestId, toolCallId: id, attempt: 1, idempotencyKey },
    { _tag: "CallEnded", requestId, message: Message.tool(id, "paid") },
    ...answered(n, 0)
  ]
}
