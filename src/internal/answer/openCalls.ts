/**
 * The open calls of a conversation: which calls wait for an answer from outside the run, for what they wait, and how an
 * answer or a withdrawal enters the thread and the events. The run, its fold, the session's reducer and the journal's fold
 * all use these functions, so that they agree about what is open.
 *
 * - A question is open from the moment it is asked, wherever its run or its journal ends, until it is answered or
 *   withdrawn. A run that ends for another reason than to wait withdraws its questions.
 * - Answers stand in the order of the calls, in whatever order they came.
 */
import * as Duration from "effect/Duration"
import type * as Types from "effect/Types"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Thread from "../../Thread.ts"
import type * as Tool from "../../Tool.ts"
import type * as Plan from "../decide/plan.ts"
import * as Log from "../fold/sharedMessages.ts"
import * as Json from "../json.ts"
import * as Outcomes from "./outcome.ts"

/** A call that waits for an approval, or for the caller to run it. */
export const suspension = (
  kind: "approval" | "manual",
  toolCall: Message.ToolCall,
  tool: Tool.Any | undefined,
  now: number
): Event.Suspension =>
  tool?.answerWithin === undefined
    ? { id: toolCall.id, kind, toolCall }
    : { id: toolCall.id, kind, toolCall, expiresAt: now + Duration.toMillis(tool.answerWithin) }

/** The event of a call that waits for an approval. */
const approvalRequested = ({ expiresAt, toolCall }: Event.Suspension): Event.Event => ({
  _tag: "ToolApprovalRequested",
  toolCallId: toolCall.id,
  toolName: toolCall.name,
  arguments: toolCall.arguments ?? {},
  ...(expiresAt === undefined ? {} : { expiresAt })
})

type Asked = Event.Of<"AskUserRequested">

/** The event of a question that a handler asked. */
export const asked = (
  { id: toolCallId, name: toolName }: Message.ToolCall,
  { answerSchema, defaultAnswer, opts, question, withinMillis }: Tool.AskUser,
  now: number
): Asked => {
  const event: Types.Mutable<Asked> = { _tag: "AskUserRequested", toolCallId, toolName, question, opts }
  if (answerSchema !== undefined) event.answerSchema = answerSchema
  if (withinMillis !== undefined) event.expiresAt = now + withinMillis
  if (defaultAnswer !== undefined) event.defaultAnswer = defaultAnswer
  return event
}

/** The call that waits for the answer to a question. */
export const question = (toolCall: Message.ToolCall, event: Asked): Event.Suspension => {
  const { _tag: _, toolCallId: id, toolName: __, ...rest } = event
  return { id, kind: "question", toolCall, ...rest }
}

/** When the question of a call is settled without an answer, if that is what it came to. */
export const expiry = (outcome: unknown, now: number): { readonly expiresAt?: number } =>
  Outcomes.isWellFormed(outcome) && outcome._tag === "AskUser" && outcome.withinMillis !== undefined
    ? { expiresAt: now + outcome.withinMillis }
    : {}

/** The call that waits for the answer to a question, by what it came to, if that is a question. */
export const remembered = (
  toolCall: Message.ToolCall,
  { expiresAt, outcome }: { readonly outcome?: unknown; readonly expiresAt?: number }
): Event.Suspension | undefined => {
  if (!Outcomes.isWellFormed(outcome) || outcome._tag !== "AskUser") return undefined
  const { withinMillis: _, ...raw } = outcome
  const event = asked(toolCall, raw, 0)
  return question(toolCall, expiresAt === undefined ? event : { ...event, expiresAt })
}

/** What stands in the thread in the place of the answer to an open question. */
export const unanswered = (toolCallId: string): Message.Message => ({
  role: "tool",
  toolCallId,
  content: Outcomes.awaitingAnswer,
  metadata: Json.none
})

/** Whether a message is what stands in the place of the answer to an open question. */
export const isUnanswered = ({ content, isError }: Message.Message): boolean =>
  content === Outcomes.awaitingAnswer && isError !== true

/** The event of a call that was open and has its answer. */
export const settlement = ({ content, isError, toolCallId = "" }: Message.Message): Event.Of<"ToolResultEncoded"> => ({
  _tag: "ToolResultEncoded",
  id: toolCallId,
  content,
  ...(isError === true ? { isError } : {}),
  settled: true
})

/** The halt that a question is for as long as it is open. */
export const halt = ({ opts, question, toolCallId }: Asked): Event.Halt => ({
  haltedReason: "ask_user",
  pendingQuestion: question,
  pendingToolCallId: toolCallId,
  askUserOpts: opts ?? []
})

/** The calls of a batch that wait for an approval, by their position. */
export class Approvals {
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
    return approvalRequested(waiting)
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

/** The questions among the answers of a batch in which nothing waits for an approval. */
export const questions = (answers: ReadonlyArray<Answered | undefined>): ReadonlyArray<Event.Suspension> =>
  answers.flatMap((answer) => answer?.suspension ?? [])

/** An answer, which may be a question. */
interface Answered {
  readonly suspension?: Event.Suspension
}

type Messages = ReadonlyArray<Message.Message>

/** The latest turn that made a call with this id: ids may come again in later turns. */
const turnOf = (thread: Thread.Thread, id: string | undefined): number =>
  Log.findLastIndex(
    thread,
    ({ role, toolCalls }) => role === "assistant" && toolCalls?.some((call) => call.id === id) === true
  )

/** The position of each call in its turn. */
const positionsIn = (turn: Message.Message | undefined): ReadonlyMap<string | undefined, number> =>
  new Map(turn?.toolCalls?.map((call, index) => [call.id, index]))

/** The answers of one turn, with more of them: each in the place of the call's earlier answer, or in call order. */
const merged = (
  block: Messages,
  more: Messages,
  positions: ReadonlyMap<string | undefined, number>
): Messages => {
  const position = ({ toolCallId }: Message.Message): number => positions.get(toolCallId) ?? -1
  const replacements = new Map(more.map((answer) => [answer.toolCallId, answer]))
  const kept = block.map((answer) => {
    const replacement = replacements.get(answer.toolCallId)
    replacements.delete(answer.toolCallId)
    return replacement ?? answer
  })
  const added = Array.from(replacements.values()).toSorted((left, right) => position(left) - position(right))
  const result: Array<Message.Message> = []
  let next = 0
  for (const answer of kept) {
    for (let more = added[next]; more !== undefined && position(more) < position(answer); more = added[next]) {
      result.push(more)
      next++
    }
    result.push(answer)
  }
  return result.concat(added.slice(next))
}

/**
 * The thread with answers to calls of it: in call order behind the message that made the calls, and in the place of an
 * answer that the call has already. An answer without a call stands at the end.
 */
export const placed = (thread: Thread.Thread, answers: Messages): Thread.Thread => {
  let placed = thread
  let rest = answers
  for (let first = rest[0]; first !== undefined; first = rest[0]) {
    const turn = turnOf(placed, first.toolCallId)
    if (turn < 0) return Log.grown(placed, rest)
    const [calling, ...behind] = Log.since(placed, turn)
    const positions = positionsIn(calling)
    const isHere = ({ toolCallId }: Message.Message): boolean => positions.has(toolCallId)
    const next = behind.findIndex(({ role }) => role !== "tool")
    const end = next < 0 ? behind.length : next
    const answered = merged(behind.slice(0, end), rest.filter(isHere), positions)
    placed = Log.respoken(placed, turn + 1, answered.concat(behind.slice(end)))
    rest = rest.filter((answer) => !isHere(answer))
  }
  return placed
}

/** The thread with the answer to a call, if a turn of it made the call. */
export const answering = (thread: Thread.Thread, answer: Message.Message): Thread.Thread =>
  turnOf(thread, answer.toolCallId) < 0 ? thread : placed(thread, [answer])

/** Calls of a turn in the order in which it made them. */
export const inCallOrder = <A extends { readonly id: string }>(
  thread: Thread.Thread,
  calls: ReadonlyArray<A>
): ReadonlyArray<A> => {
  const [first] = calls
  if (first === undefined || calls.length === 1) return calls
  const turn = turnOf(thread, first.id)
  const positions = positionsIn(turn < 0 ? undefined : Log.since(thread, turn)[0])
  const position = ({ id }: A): number => positions.get(id) ?? positions.size
  return calls.toSorted((left, right) => position(left) - position(right))
}

/** Whether the last message asks the question of a call in words: what the user says next is its answer. */
export const isAskedAloud = (thread: Thread.Thread, id: string | undefined): boolean => {
  const [last] = Log.since(thread, Log.length(thread) - 1)
  return last?.askUser === true && last.toolCallId === id
}

/**
 * The thread with the answer to a question: in the place where the question waits, or, behind a question that was asked
 * in words, as what the user said.
 */
export const told = (thread: Thread.Thread, answer: Message.Message): Thread.Thread =>
  isAskedAloud(thread, answer.toolCallId)
    ? Log.grown(thread, [{ role: "user", content: answer.content, metadata: Json.none }])
    : placed(thread, [answer])

/**
 * The thread for a reader who learns that a call has been settled, and may know already. A question that was asked in
 * words keeps its place in the thread, and its answer is what the user said behind it.
 */
export const heard = (thread: Thread.Thread, answer: Message.Message): Thread.Thread => {
  const turn = turnOf(thread, answer.toolCallId)
  if (turn < 0) return thread
  const behind = Log.since(thread, turn + 1)
  const words = behind.findIndex((message) => message.askUser === true && message.toolCallId === answer.toolCallId)
  return words < 0 || words === behind.length - 1 ? told(thread, answer) : thread
}

/**
 * The events of calls that have been settled since the last run, in call order: each with the answer that stands in the
 * thread, or, where the question was asked in words, with what the user said.
 */
export const settlements = (
  thread: Thread.Thread,
  ids: ReadonlyArray<string>
): ReadonlyArray<Event.Of<"ToolResultEncoded">> => {
  if (ids.length === 0) return []
  const messages = Log.list(thread)
  const wanted = new Set(ids)
  const answers = new Map<string, Message.Message>()
  const turns: Array<ReadonlyArray<Message.Message>> = []
  for (let index = messages.length - 1; index >= 0 && wanted.size > 0; index--) {
    const { askUser, role, toolCallId, toolCalls = [] } = messages[index] as Message.Message
    if (toolCallId !== undefined && wanted.has(toolCallId) && !answers.has(toolCallId)) {
      const said = askUser === true ? messages[index + 1] : undefined
      if (role === "tool") answers.set(toolCallId, messages[index] as Message.Message)
      if (said?.role === "user") answers.set(toolCallId, { ...said, toolCallId })
    }
    turns.push(toolCalls.flatMap(({ id }) => wanted.delete(id) ? answers.get(id) ?? [] : []))
  }
  return turns.toReversed().flat().map(settlement)
}
