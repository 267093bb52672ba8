/** Checks that a thread can be sent to any provider unchanged. */
import * as Result from "effect/Result"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import * as Response from "../../Response.ts"
import * as Thread from "../../Thread.ts"
import * as AnswerLaws from "./answerLaws.ts"
import type { ThreadOptions, Violation } from "./violation.ts"

/** Tool names accepted by every provider. */
const namePattern = /^[A-Za-z0-9_-]{1,64}$/

const invalid = (thread: Thread.Thread): ReadonlyArray<string> => {
  const result = Thread.validate(thread)
  return Result.isSuccess(result) ? [] : result.failure.errors.map(({ path, reason }) => `${path}: ${reason}`)
}

const unusable = (calls: ReadonlyArray<Message.ToolCall>): ReadonlyArray<string> => {
  const ids = calls.map((call) => call.id)
  return [
    ...calls.filter((call) => !namePattern.test(call.name)).map((call) =>
      `call "${call.id}" has the name "${call.name}"`
    ),
    ...ids.flatMap((id) => id === "" ? ["a call has no id"] : []),
    ...ids.flatMap((id, index) => ids.indexOf(id) === index ? [] : [`two calls have the id "${id}"`])
  ]
}

/** Removes the first open call with an answer's id. Returns the fault of an answer without an open call. */
const misplaced = (open: Array<string>, message: Message.Message): ReadonlyArray<string> => {
  const id = message.toolCallId ?? ""
  const position = open.indexOf(id)
  if (position < 0) return [`the answer to "${id}" has no open call`]
  open.splice(position, 1)
  return []
}

const outOfOrder = (asked: ReadonlyArray<string>, answered: ReadonlyArray<string>): ReadonlyArray<string> => {
  const wanted = asked.filter((id) => answered.includes(id))
  return wanted.join("\n") === answered.join("\n") ? [] : [`the answers to ${wanted.join(", ")} are not in call order`]
}

/** Checks one turn: an assistant message with calls, and its following messages. */
class Turn {
  private readonly asked: ReadonlyArray<string>
  private readonly open: Array<string>
  private readonly answered: Array<string> = []

  constructor(message: Message.Message | undefined) {
    this.asked = Response.actionableCalls({ toolCalls: message?.toolCalls ?? [] }).map((call) => call.id)
    this.open = [...this.asked]
  }

  answer(message: Message.Message): ReadonlyArray<string> {
    const problems = misplaced(this.open, message)
    if (problems.length === 0) this.answered.push(message.toolCallId ?? "")
    return problems
  }

  end(pending: ReadonlyArray<string>): ReadonlyArray<string> {
    return [
      ...this.open.filter((id) => !pending.includes(id)).map((id) => `call "${id}" is not answered`),
      ...outOfOrder(this.asked, this.answered)
    ]
  }
}

export const history = (
  thread: Thread.Thread,
  { from = 0, pending = [] }: ThreadOptions = {}
): ReadonlyArray<Violation> => {
  const found: Array<Violation> = invalid(thread).map((message) => ({ law: "history", message }))
  const note = (problems: ReadonlyArray<string>, index: number): void => {
    for (const message of problems) found.push({ law: "history", message, index })
  }
  let turn = new Turn(undefined)
  thread.messages.forEach((message, index) => {
    if (index < from) return
    if (message.role === "tool") return note(turn.answer(message), index)
    note(turn.end([]), index)
    if (message.role === "assistant") note(unusable(message.toolCalls ?? []), index)
    turn = new Turn(message)
  })
  note(turn.end(pending), thread.messages.length)
  return found
}

/** Checks every thread in the events. Messages put before the first step belong to the caller and are skipped. */
export const histories = (events: ReadonlyArray<Event.Event>): ReadonlyArray<Violation> => {
  const steps = events.filter((event) => event._tag === "StepCompleted")
  const from = steps[0] === undefined ? Infinity : AnswerLaws.turnStart(steps[0].thread)
  const ofSteps = steps.flatMap((step) => history(step.thread, { from, pending: AnswerLaws.pendingOf(step) }))
  const last = steps.at(-1)
  const pending = last === undefined ? [] : AnswerLaws.pendingOf(last)
  const ofResults = events.flatMap((event) =>
    event._tag === "ChatCompleted" ? history(event.result.thread, { from, pending }) : []
  )
  return [...ofSteps, ...ofResults]
}
