/** What the program reports, and how that of a killed run compares with that of the uncut one. */
import { Message, type Session } from "heddle"
import type { EveryKill } from "heddle/testing"
import { isDeepStrictEqual } from "node:util"

/** The ids of calls and of runs are left out: they may be new ones each time. */
export const resultOf = ({ context, status, thread }: Session.Session, run?: Session.Done["result"]) => ({
  status,
  context,
  messages: thread.messages.map((message) => ({
    role: message.role,
    text: Message.text(message),
    calls: (message.toolCalls ?? []).map(({ arguments: args, name }) => ({ name, args }))
  })),
  /** By the process that ended the run. One that finds it ended does not know. */
  run: run && { usage: run.totalUsage, outcome: run.outcome, steps: run.steps.length }
})

type Result = ReturnType<typeof resultOf>

type Messages = Result["messages"]

type Settled = EveryKill.Unknown["settled"]

const isReported = ({ text }: Messages[number]): boolean => text.includes("unknown_effect")

/** The calls that the model reads to be unknown. Answers stand behind their reply in the order of its calls. */
const reportedIn = (messages: Messages): Messages[number]["calls"] =>
  messages.flatMap((message, index) => {
    if (!isReported(message)) return []
    const reply = messages.findLastIndex(({ calls }, before) => before < index && calls.length > 0)
    return messages[reply]?.calls[index - reply - 1] ?? []
  })

/**
 * What differs, as `everyKill` asks for it. What a policy does about an unknown call may differ, and nothing else: a call
 * that is reported has another answer and nothing added to the context, a call that a person was asked about ends the run
 * there, and so does one that fails it.
 */
export const difference: NonNullable<EveryKill.Options["difference"]> = (uncut, value, { unknown }) => {
  const [expected, actual] = [uncut as Result, value as Result]
  const are = (settled: Settled) => unknown.filter((call) => call.settled === settled).length
  if (are("failed") > 0) {
    return actual.status === "error" ? undefined : `the session is ${actual.status} after a call that fails its run`
  }
  const reported = reportedIn(actual.messages)
  if (reported.length > are("reported")) {
    return `${reported.length} calls are reported as unknown, and ${are("reported")} were`
  }
  const asked = are("asked") > 0
  const isOut = ([name]: readonly [string, unknown]) =>
    (asked && actual.context[name] === undefined) || reported.some(({ args }) => name === `order ${args?.["order"]}`)
  const parts: ReadonlyArray<readonly [name: string, expected: unknown, actual: unknown]> = [
    ["status", expected.status, actual.status],
    ["context", Object.fromEntries(Object.entries(expected.context).filter((entry) => !isOut(entry))), actual.context],
    ["run", expected.run, asked || actual.run === undefined ? expected.run : actual.run],
    ["messages", expected.messages.length + (asked ? 2 * are("asked") : 0), actual.messages.length],
    ...withoutQuestions(actual.messages).map((message, index) =>
      [`message ${index}`, isReported(message) ? message : expected.messages[index], message] as const
    )
  ]
  const different = parts.find(([, expected, actual]) => !isDeepStrictEqual(expected, actual))
  if (different === undefined) return undefined
  const [name, before, after] = different
  return `${name} is ${JSON.stringify(after)}, not ${JSON.stringify(before)}`
}

/**
 * The messages as they are where no call had been asked about: the answer of a call that asked stands behind its turn, as
 * the message of a user, after the question.
 */
const withoutQuestions = (messages: Messages): Messages =>
  messages.flatMap((message, index) => {
    if (message.text === "<awaiting user response>") {
      const answer = messages.slice(index).find(({ role }) => role === "user")
      return answer === undefined ? message : { ...message, text: answer.text }
    }
    const isQuestion = message.role === "assistant" && messages[index + 1]?.role === "user"
    const isAnswer = message.role === "user" && messages[index - 1]?.role === "assistant"
    return isQuestion || isAnswer ? [] : message
  })
