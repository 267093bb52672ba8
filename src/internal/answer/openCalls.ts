/**
 * Derives from the last event of a call (its tail) the message that answers the call, the halt of the run, or the
 * suspension under which the call waits for an answer from outside: a question, an approval, or a manual call. The run,
 * its fold, the session's reducer and the journal's fold all use these functions, so that they agree about what is
 * answered and what is open.
 *
 * A question is open from the moment it is asked, wherever its run or its journal ends, until it is answered or
 * withdrawn. A run that ends for another reason than to wait withdraws its questions. `fold/sharedMessages` puts
 * answers into threads.
 */
import * as Duration from "effect/Duration"
import type * as Types from "effect/Types"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as ToolOutcomes from "../declare/outcome.ts"
import type * as Declared from "../declare/tool.ts"
import * as Json from "../json.ts"
import * as CallPaths from "./callPath.ts"

/** A call that waits for an approval, or for the caller to run it. */
export const suspension = (
  kind: "approval" | "manual",
  toolCall: Message.ToolCall,
  tool: Declared.Any | undefined,
  now: number
): Event.Suspension => {
  const within = tool?.answerWithin
  return waiting(kind, toolCall, within === undefined ? undefined : now + Duration.toMillis(within))
}

/** A call that waits for an approval, or for the caller to run it, until a time (in milliseconds since the epoch). */
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

/** The event of a call that waits for an approval. */
export const approvalRequested = (
  call: Message.ToolCall,
  tool: Declared.Any,
  now: number,
  remember: Event.Rememberable | undefined
): Event.Of<"ToolApprovalRequested"> => requestOf({ ...suspension("approval", call, tool, now), remember })

/** The event of a call that waits for an approval, once more. */
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

/** Returns the calls that lead to a suspended call, from the call of the run itself to the suspended one. */
const pathOf = ({ path, toolCall }: Pick<Event.Suspension, "path" | "toolCall">): ReadonlyArray<string> =>
  path ?? [toolCall.id]

/** The call of the run itself that waits: of a call of a nested run, the one whose handler has started that run. */
export const outerOf = (suspension: Pick<Event.Suspension, "path" | "toolCall">): string =>
  suspension.path?.[0] ?? suspension.toolCall.id

/** The id of a suspension in the nested run that it comes from. */
export const innerOf = (suspension: Event.Suspension): string => CallPaths.format({ path: pathOf(suspension).slice(1) })

/** Returns a suspension of a nested run as the run around it has it: its approval is not remembered. */
export const risen = (toolCallId: string, suspension: Event.Suspension): Event.Suspension => {
  const path = [toolCallId, ...pathOf(suspension)]
  const { remember: _, ...open } = suspension
  return { ...open, id: CallPaths.format({ path }), path }
}

/** The event of a call whose nested run waits. */
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

/** The event of a question that a handler asked. */
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

/** The call that waits for the answer to a question. */
export const question = (toolCall: Message.ToolCall, event: Asked): Event.Suspension => {
  const { _tag: _, replayed: __, toolCallId, toolName: ___, ...rest } = event
  return { id: CallPaths.format({ path: [toolCallId] }), kind: "question", toolCall, ...rest }
}

/** The event of a question that is open, once more. */
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

/** The event of a call that ended the run, once more. */
export const haltedAgain = (
  { code, content, toolCallId = "" }: Message.Message,
  halt: Event.Halt
): Event.Of<"ToolHalt"> => {
  const { haltResult: result = null, haltedReason: reason, ...rest } = { haltResult: undefined, ...halt }
  const exception = "onToolErrorException" in rest ? { onToolErrorException: rest.onToolErrorException } : {}
  const coded = code === undefined ? {} : { code }
  return { _tag: "ToolHalt", toolCallId, reason, result, content, ...coded, ...exception }
}

/** The message that answers a call. */
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

/** Returns the message that stands in the thread in the place of the answer to an open question. */
export const unanswered = (toolCallId: string): Message.Message => message(toolCallId, awaitingAnswer, false)

/** The event that ends a call. */
export type Tail = Event.Of<"ToolResultEncoded"> | Event.Of<"AskUserRequested"> | Event.Of<"ToolHalt">

/** The call that an event ends. */
export const callOf = (event: Tail): string => event._tag === "ToolResultEncoded" ? event.id : event.toolCallId

/** The message that answers the call which an event ends. */
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

/** The halt of the run that an event reports. An open question is one. */
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
