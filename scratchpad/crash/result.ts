/** The result that the program reports, and the comparison of that of a killed run with that of the uninterrupted one. */
import { Message, type Session } from "heddle"
import type { EveryKill } from "heddle/testing"
import { isDeepStrictEqual } from "node:util"
import { answers } from "./model.ts"

/** The ids of calls and of runs are left out: they may be new ones each time. */
export const resultOf = ({ context, status, thread }: Session.Session, run?: Session.Done["result"]) => ({
  status,
  context,
  messages: thread.messages.map((message) => ({
    role: message.role,
    text: Message.text(message),
    calls: (message.toolCalls ?? []).map(({ arguments: args, name }) => ({ name, args }))
  })),
  /** Known to the process that ended the run. One that finds it ended does not know. */
  run: run && { usage: run.totalUsage, outcome: run.outcome, finalized: run.finalized, steps: run.steps.length }
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
 * Returns what differs, as `everyKill` asks for it. The effect of a policy on an unknown call may differ, and nothing else: a call
 * that is reported has another answer and nothing added to the context, and one that fails its run ends it there. A call that
 * a person is asked about has the answer of the uninterrupted run, and so has every other. If the person gives that answer,
 * nothing is added to the context. The run that follows begins its turns anew, so that it may end without being closed.
 */
export const difference: NonNullable<EveryKill.Options["difference"]> = (uninterrupted, value, { unknown }) => {
  const [expected, actual] = [uninterrupted as Result, value as Result]
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
    (asked && name.startsWith("order ") && actual.context[name] === undefined)
    || reported.some(({ args }) => name === `order ${args?.["order"]}`)
  const isAnswer = ({ text }: Messages[number]) => asked && answers.some((answer) => answer === text)
  const parts: ReadonlyArray<readonly [name: string, expected: unknown, actual: unknown]> = [
    ["status", expected.status, actual.status],
    ["context", Object.fromEntries(Object.entries(expected.context).filter((entry) => !isOut(entry))), actual.context],
    ["run", expected.run, asked || actual.run === undefined ? expected.run : actual.run],
    ["messages", expected.messages.length, actual.messages.length],
    ...actual.messages.map((message, index) =>
      [
        `message ${index}`,
        isReported(message) || isAnswer(message) ? message : expected.messages[index],
        message
      ] as const
    )
  ]
  const different = parts.find(([, expected, actual]) => !isDeepStrictEqual(expected, actual))
  if (different === undefined) return undefined
  const [name, before, after] = different
  return `${name} is ${JSON.stringify(after)}, not ${JSON.stringify(before)}`
}
