/**
 * Questions of tools to the user of a client: each pair of their options, under each reply, in both eras. What comes of
 * a question is what comes of it in a session of the same tool.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as TestClock from "effect/testing/TestClock"
import { Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { sampleOf } from "../support/property.ts"
import { call, connect, eras, type Given, textOf } from "./support/clients.ts"
import { serve } from "./support/serving.ts"

const flags = [false, true]

/** The options of a question, each given or left out. */
const questions = flags.flatMap((answer) =>
  flags.flatMap((opts) =>
    flags.flatMap((expiresIn) =>
      flags.flatMap((defaultAnswer) => flags.map((resume) => ({ answer, opts, expiresIn, defaultAnswer, resume })))
    )
  )
)

type Question = typeof questions[number]

const replies = ["fits", "does not fit", "decline", "cancel", "late"] as const

type Reply = typeof replies[number]

const cases = questions.flatMap((question) => replies.map((reply) => ({ question, reply })))

const nameOf = (question: Question): string =>
  ["ask", ...Object.entries(question).flatMap(([option, isGiven]) => isGiven ? [option] : [])].join("_")

/** A tool that asks with these options, and notes what its handler is started with. */
const toolOf = (question: Question, started: Array<unknown>) =>
  Tool.make(nameOf(question), {
    parameters: {},
    handler: (_, { attempt, resumed }) =>
      Effect.sync((): unknown => {
        started.push([attempt, resumed])
        if (resumed !== undefined) return `started again with ${JSON.stringify(resumed)}`
        return Tool.askUser<any>("How many?", {
          ...(question.answer ? { answer: Schema.Int } : {}),
          ...(question.opts ? { opts: question.answer ? [1, 2] : ["one", "two"] } : {}),
          ...(question.expiresIn ? { expiresIn: "1 minute" as const } : {}),
          ...(question.defaultAnswer ? { defaultAnswer: question.answer ? 7 : "seven" } : {}),
          ...(question.resume ? { resume: { at: "the question" } } : {})
        })
      })
  })

const valueOf = ({ answer }: Question, reply: Reply): string | number =>
  reply === "does not fit" ? "no number" : answer ? 2 : "two"

const givenOf = (question: Question, reply: Reply): Given =>
  reply === "decline" || reply === "cancel"
    ? { action: reply }
    : { action: "accept", content: { answer: valueOf(question, reply) } }

interface End {
  readonly isError: boolean
  readonly text: string
}

/** A user who did not answer: a session has the word of another user in its place. */
const unanswered: Partial<Record<Reply, End>> = {
  decline: { isError: true, text: "declined" },
  cancel: { isError: true, text: "cancelled" }
}

const textsOf = {
  invalid_answer: "The answer does not fit: ",
  expired: "The time for an answer is up."
}

/** Returns what comes of the question in a session. */
const inSession = (question: Question, reply: Reply, started: Array<unknown>) =>
  Effect.gen(function*() {
    const options = { tools: [toolOf(question, started)] }
    const { session } = yield* Session.reply(Session.make({ id: "s1" }), "Go", options)
    const other = unanswered[reply]
    if (other !== undefined) return other
    if (reply === "late") yield* TestClock.adjust("1 minute")
    const isExpired = reply === "late" && question.expiresIn
    const settled = yield* Effect.result(
      isExpired ? Session.expire(session) : Session.answer(session, "c0", valueOf(question, reply))
    )
    if (Result.isFailure(settled)) {
      assert.strictEqual(settled.failure.reason, "invalid_answer")
      return { isError: true, text: textsOf.invalid_answer }
    }
    const { session: after } = yield* Session.continue(settled.success, null, options)
    const messages = after.thread.messages
    const place = messages.findIndex(({ role }) => role === "tool")
    const { content } = messages[place]!
    // A handler that is not started again has its question and the answer in the thread.
    const answer = messages[place + 1]?.askUser === true ? messages[place + 2]!.content : content
    const text = typeof answer === "string" ? answer : JSON.stringify(answer)
    return text.includes("within the time there was")
      ? { isError: true, text: textsOf.expired }
      : { isError: false, text }
  }).pipe(
    Effect.provide(Script.layer([
      [Script.toolCall("c0", nameOf(question), {}), Script.finish("tool_calls")],
      [Script.text("Done."), Script.finish("stop")]
    ]))
  )

describe("questions", () => {
  for (const era of eras) {
    it.effect(`W-15: ${era}: a question with each pair of options ends under each reply as in a session`, () =>
      Effect.gen(function*() {
        const started = new Map(questions.map((question) => [nameOf(question), [] as Array<unknown>]))
        const url = yield* serve(questions.map((question) => toolOf(question, started.get(nameOf(question))!)))
        let [asked, answer] = [Deferred.makeUnsafe<void>(), Deferred.makeUnsafe<Given>()]
        const client = yield* connect(url, {
          era,
          answer: () => {
            Deferred.doneUnsafe(asked, Effect.void)
            return Effect.runPromise(Deferred.await(answer))
          }
        })
        for (const { question, reply } of sampleOf(cases, 40)) {
          const own: Array<unknown> = []
          const expected = yield* inSession(question, reply, own)
          const name = nameOf(question)
          started.get(name)!.length = 0
          asked = Deferred.makeUnsafe()
          answer = Deferred.makeUnsafe()
          const running = yield* Effect.forkChild(call(client, name))
          yield* Deferred.await(asked)
          if (reply === "late") yield* TestClock.adjust("1 minute")
          yield* Deferred.succeed(answer, givenOf(question, reply))
          const result = yield* Fiber.join(running)
          const [isError, text] = [result.isError === true, textOf(result)]
          const what = `${name}, ${reply}`
          assert.strictEqual(isError, expected.isError, `${what}: ${text}`)
          if (isError) assert.isTrue(text.startsWith(expected.text), `${what}: ${text}`)
          else assert.strictEqual(text, expected.text, what)
          assert.deepStrictEqual(started.get(name), own, `the attempts of ${what}`)
        }
      }))
  }
})
