/**
 * What the processes of a cluster and the tests that start them agree on: the model, the tools, and the world, which is a
 * file that every effect adds a line to.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Message, Tool } from "heddle"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import * as fs from "node:fs"

/** What a runner has to know. */
export interface Place {
  /** The URL of the database. */
  readonly database: string
  /** The file that is the world. */
  readonly world: string
  /** The port of the runner. */
  readonly port: number
}

/** A line of the world: what a process did to it, and when. */
export interface Act {
  readonly pid: number
  readonly at: number
  /** The name of the tool and its argument. */
  readonly what: string
  readonly session: string
  readonly key: string
}

/** What has been done to the world so far. */
export const acts = (world: string, session: string): ReadonlyArray<Act> =>
  fs.readFileSync(world, "utf8").split("\n").filter((line) => line !== "")
    .map((line) => JSON.parse(line) as Act).filter((act) => act.session === session)

const gateOf = (world: string, value: number): string => `${world}.gate-${value}`

/** Lets the calls of the tool `gate` with this value end. */
export const openGate = (world: string, value: number): Effect.Effect<void> =>
  Effect.sync(() => fs.writeFileSync(gateOf(world, value), ""))

/** The services that every process has: the database, and the store in it. */
export const stored = (database: string) =>
  SessionStore.layer.pipe(
    Layer.orDie,
    Layer.provideMerge(PgClient.layer({ url: Redacted.make(database), maxConnections: 5 }))
  )

/** The calls that the user asks for in a message such as `charge 5, wait 1000`. */
const calls = (text: string) =>
  text.split(", ").map((words, index) => {
    const [name = "", value] = words.split(" ")
    return Script.toolCall(`${name}-${index}`, name, { value: Number(value) })
  })

/** The calls that the user's last message asks for, then their results. To anything else the model says `You said` it. */
const reply = (messages: ReadonlyArray<Message.Message>) => {
  const asked = messages.findLastIndex(({ role }) => role === "user")
  const text = Message.text(messages[asked]!)
  const answers = messages.slice(asked + 1).filter(({ role }) => role === "tool").map(Message.text)
  if (!/^(charge|wait|book|gate) /.test(text)) return [Script.text(`You said ${text}`), Script.finish("stop")]
  return answers.length > 0
    ? [Script.text(answers.join(", ")), Script.finish("stop")]
    : [...calls(text), Script.finish("tool_calls")]
}

/** A model that is the same in every process. */
export const model = Adapter.layer({
  stream: (request) =>
    Stream.unwrap(Effect.map(Script.make([reply(request.messages)]), ({ stream }) => stream(request)))
})

/** The tools of a runner. Each writes down what it does when it begins. */
export const tools = (world: string) => {
  const act = (what: string, { idempotencyKey, sessionId }: Tool.CallContext) =>
    Effect.sync(() => {
      const act: Act = { pid: process.pid, at: Date.now(), what, session: sessionId ?? "", key: idempotencyKey }
      fs.appendFileSync(world, `${JSON.stringify(act)}\n`)
    })
  const parameters = { value: Schema.Finite }
  return [
    Tool.make("charge", {
      parameters,
      // What an owner that was killed has done is in the world, or has not been done.
      lookUp: ({ value }, { idempotencyKey, sessionId }) =>
        Effect.sync(() => {
          const isDone = acts(world, sessionId ?? "").some(({ key }) => key === idempotencyKey)
          return isDone ? Option.some(`charged ${value}`) : Option.none()
        }),
      handler: ({ value }, call) => Effect.as(act(`charge ${value}`, call), `charged ${value}`)
    }),
    Tool.make("wait", {
      parameters,
      readOnly: true,
      handler: ({ value }, call) =>
        act(`wait ${value}`, call).pipe(Effect.andThen(Effect.sleep(value)), Effect.as(`waited ${value}`))
    }),
    Tool.make("gate", {
      parameters,
      readOnly: true,
      handler: ({ value }, call) =>
        act(`gate ${value}`, call).pipe(
          Effect.andThen(Effect.repeat(Effect.sync(() => fs.existsSync(gateOf(world, value))), {
            schedule: Schedule.spaced("10 millis"),
            until: (isOpen) => isOpen
          })),
          Effect.as(`passed ${value}`)
        )
    }),
    Tool.make("book", {
      parameters,
      handler: ({ value }, call) =>
        Effect.as(act(`book ${value}`, call), Tool.askUser("How many seats?", { answer: Schema.Int }))
    })
  ] as const
}
