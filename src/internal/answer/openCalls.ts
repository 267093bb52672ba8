/**
 * Derives from a call's last event (its tail) the answering message, the run's halt, or the suspension of a call
 * waiting for an outside answer: a question, an approval or a manual call. The run, its fold, the session's reducer and
 * the journal's fold all use these functions, so they agree on which calls are answered and which are open.
 *
 * A question stays open from being asked until it is answered or withdrawn, wherever its run or its journal ends. A run
 * ending for any reason except waiting withdraws its questions. `fold/sharedMessages` puts answers into threads.
 */
import * as Duration from "effect/Duration"
import type * as Types from "effect/Types"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as ToolOutcomes from "../declare/outcome.ts"
import type * as Declared from "../declare/tool.ts"
import * as Json from "../json.ts"
import * as CallPaths from "./callPath.ts"

/** Returns the suspension of a call waiting for an approval, or to be run by the caller. */
export const suspension = (
  kind: "approval" | "manual",
  toolCall: Message.ToolCall,
  tool: Declared.Any | undefined,
  now: number
): Event.Suspension => {
  const within = tool?.answerWithin
  return waiting(kind, toolCall, within === undefined ? undefined : now + Duration.toMillis(within))
}

/** Returns such a suspension with its end, in milliseconds since 1970. */
export const waiting = (
  kind: "approval" | "manual",
  toolCall: Message.ToolCall,
  expiresAt: number | undefined,
  remember?: Event.Rememberable
): Event.Suspension => {
  const id = CallPaths.format({ path: [toolCall.id] })
  const open: Types.Mutable<Event.Suspension> = { id, kind, toolCall }
  if (expiresAt !== undefined) open.expiresAt = expiresAt
  if (remember !== undefined) open.remember = remember
  return open
}

/** Returns the event of a call waiting for an approval. */
export const approvalRequested = (
  call: Message.ToolCall,
  tool: Declared.Any,
  now: number,
  remember: Event.Rememberable | undefined
): Event.Of<"ToolApprovalRequested"> => requestOf({ ...suspension("approval", call, tool, now), remember })

/** Returns the approval request for a waiting call again. */
export const requestOf = (
  { expiresAt, remember, toolCall }: Pick<Event.Suspension, "expiresAt" | "toolCall"> & {
    readonly remember?: Event.Rememberable | undefined
  }
): Event.Of<"ToolApprovalRequested"> => {
  const { arguments: args, id: toolCallId, name: toolName } = toolCall
  const event: Types.Mutable<Event.Of<"ToolApprovalRequested">> = {
    _tag: "ToolApprovalRequested",
    toolCallId,
    toolName,
    arguments: args ?? {}
  }
  if (expiresAt !== undefined) event.expiresAt = expiresAt
  if (remember !== undefined) event.remember = remember
  return event
}

/** Returns the calls leading to a suspended call, from the run's own call to the suspended one itself. */
const pathOf = ({ path, toolCall }: Pick<Event.Suspension, "path" | "toolCall">): ReadonlyArray<string> =>
  path ?? [toolCall.id]

/** Returns the run's own waiting call: for a call in a nested run, the call whose handler started that run. */
export const outerOf = (suspension: Pick<Event.Suspension, "path" | "toolCall">): string =>
  suspension.path?.[0] ?? suspension.toolCall.id

/** Returns a suspension's id within the nested run it comes from. */
export const innerOf = (suspension: Event.Suspension): string => CallPaths.format({ path: pathOf(suspension).slice(1) })

/** Returns a nested run's suspension as seen by the enclosing run: its approval is not remembered. */
export const risen = (toolCallId: string, suspension: Event.Suspension): Event.Suspension => {
  const path = [toolCallId, ...pathOf(suspension)]
  const { remember: _, ...open } = suspension
  return { ...open, id: CallPaths.format({ path }), path }
}

/** Returns the event of a call whose nested run waits. */
export const suspended = (
  { id: toolCallId, name: toolName }: Message.ToolCall,
  { suspensions }: ToolOutcomes.Suspended
): Event.Of<"ToolSuspended"> => ({
  _tag: "ToolSuspended",
  toolCallId,
  toolName,
  suspensions: suspensions as ReadonlyArray<Event.Suspension>
})

type Asked = Event.Of<"AskUserRequested">

/** Returns the event of a handler's question. */
export const asked = (
  { id: toolCallId, name: toolName }: Message.ToolCall,
  { answerSchema, defaultAnswer, opts, question, expiresInMillis }: ToolOutcomes.AskUser,
  now: number
): Asked => {
  const event: Types.Mutable<Asked> = { _tag: "AskUserRequested", toolCallId, toolName, question, opts }
  if (answerSchema !== undefined) event.answerSchema = answerSchema
  if (expiresInMillis !== undefined) event.expiresAt = now + expiresInMillis
  if (defaultAnswer !== undefined) event.defaultAnswer = defaultAnswer
  return event
}

/** Returns the suspension for an open question. */
export const question = (toolCall: Message.ToolCall, event: Asked): Event.Suspension => {
  const { _tag: _, replayed: __, toolCallId, toolName: ___, ...rest } = event
  return { id: CallPaths.format({ path: [toolCallId] }), kind: "question", toolCall, ...rest }
}

/** Returns an open question's event again. */
export const askedAgain = (suspension: Event.Suspension): Asked => {
  const { answerSchema, defaultAnswer, expiresAt, opts = [], question = "", toolCall } = suspension
  const event: Types.Mutable<Asked> = {
    _tag: "AskUserRequested",
    toolCallId: toolCall.id,
    toolName: toolCall.name,
    question,
    opts
  }
  if (answerSchema !== undefined) event.answerSchema = answerSchema
  if (expiresAt !== undefined) event.expiresAt = expiresAt
  if (defaultAnswer !== undefined) event.defaultAnswer = defaultAnswer
  return event
}

/** Repeats the event of a call ending the run. */
export const haltedAgain = (
  { code, content, toolCallId = "" }: Message.Message,
  halt: Event.Halt
): Event.Of<"ToolHalt"> => {
  const { haltResult: result = null, haltedReason: reason, ...rest } = { haltResult: undefined, ...halt }
  const exception = "onToolErrorException" in rest ? { onToolErrorException: rest.onToolErrorException } : {}
  const coded = code === undefined ? {} : { code }
  return { _tag: "ToolHalt", toolCallId, reason, result, content, ...coded, ...exception }
}

/** Builds the message answering a call. */
const message = (
  toolCallId: string,
  content: Message.Content,
  isError: boolean,
  code?: Message.Message["code"]
): Message.Message => {
  const answer: Types.Mutable<Message.Message> = { role: "tool", toolCallId, content, metadata: Json.none }
  if (isError) answer.isError = isError
  if (code !== undefined) answer.code = code
  return answer
}

const awaitingAnswer = "<awaiting user response>"

/** Returns the placeholder message for an open question's answer in the thread. */
export const unanswered = (toolCallId: string): Message.Message => message(toolCallId, awaitingAnswer, false)

/** An event ending a call. */
export type Tail = Event.Of<"ToolResultEncoded"> | Event.Of<"AskUserRequested"> | Event.Of<"ToolHalt">

/** Returns the id of the ended call. */
export const callOf = (event: Tail): string => event._tag === "ToolResultEncoded" ? event.id : event.toolCallId

/** Returns the message answering the ended call. */
export const messageOf = (event: Tail): Message.Message => {
  switch (event._tag) {
    case "ToolResultEncoded":
      return message(event.id, event.content, event.isError === true, event.code)
    case "AskUserRequested":
      return unanswered(event.toolCallId)
    case "ToolHalt":
      return message(
        event.toolCallId,
        event.content ?? Json.render(event.result),
        event.reason === "tool_error",
        event.code
      )
  }
}

/** Returns the run's halt reported by an event. An open question counts as a halt. */
export const haltOf = (event: Tail): Event.Halt | undefined => {
  switch (event._tag) {
    case "ToolResultEncoded":
      return undefined
    case "AskUserRequested": {
      const { opts, question, toolCallId } = event
      const askUserOpts = opts ?? []
      return { haltedReason: "ask_user", pendingQuestion: question, pendingToolCallId: toolCallId, askUserOpts }
    }
    case "ToolHalt": {
      const { reason: haltedReason, result: haltResult, toolCallId: haltToolCallId } = event
      if (haltedReason !== "tool_error") return { haltedReason, haltToolCallId, haltResult }
      return "onToolErrorException" in event
        ? { haltedReason, haltToolCallId, onToolErrorException: event.onToolErrorException }
        : { haltedReason, haltToolCallId }
    }
  }
}
