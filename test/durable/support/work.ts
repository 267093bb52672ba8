/**
 * What worker processes and the tests that start them agree on: the model, the tools, and the world, which is a file that
 * every effect adds a line to.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Message, type Session, Tool } from "heddle"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import * as fs from "node:fs"

/** What a process has to know. */
export interface Place {
  /** The file of SQLite, or the URL of the database. */
  readonly store: string
  /** The file that is the world. */
  readonly world: string
  /** How long a claim lasts, in milliseconds. */
  readonly term: number
  /** The session that it resumes at a word of its parent. A worker drives all that have work left. */
  readonly resumes?: string
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
export const acts = (world: string, session?: string): ReadonlyArray<Act> =>
  fs.readFileSync(world, "utf8").split("\n").filter((line) => line !== "")
    .map((line) => JSON.parse(line) as Act).filter((act) => session === undefined || act.session === session)

/** Lets the calls of `hold` with this value end, in all processes. */
export const letGo = (world: string, value: number): void => {
  const act: Act = { pid: process.pid, at: Date.now(), what: `let go ${value}`, session: "", key: "" }
  fs.appendFileSync(world, `${JSON.stringify(act)}\n`)
}

/** The file of what the processes log. */
export const logOf = (world: string): string => `${world}.log`

/** The store that every process has. */
export const stored = (store: string): Layer.Layer<Session.Store> =>
  (store.startsWith("postgres:")
    ? SessionStore.layer.pipe(Layer.provide(PgClient.layer({ url: Redacted.make(store), maxConnections: 5 })))
    : SessionStore.layerSqlite({ filename: store })).pipe(Layer.orDie)

/** The calls of a turn that the user asks for, such as `charge 5, wait 1000`. */
const calls = (text: string, turn: number) =>
  text.split(", ").map((words, index) => {
    const [name = "", value] = words.split(" ")
    return Script.toolCall(`${name}-${turn}-${index}`, name, { value: Number(value) })
  })

/** The turns that the user's last message asks for, such as `charge 5, wait 1000 then charge 6`, and a last word. */
const reply = (messages: ReadonlyArray<Message.Message>) => {
  const asked = messages.findLastIndex(({ role }) => role === "user")
  const turns = Message.text(messages[asked]!).split(" then ")
  const turn = messages.slice(asked).filter(({ role }) => role === "assistant").length
  const next = turns[turn]
  return next === undefined
    ? [Script.text("done"), Script.finish("stop")]
    : [...calls(next, turn), Script.finish("tool_calls")]
}

/** A model that is the same in every process. */
export const model = Adapter.layer({
  stream: (request) =>
    Stream.unwrap(Effect.map(Script.make([reply(request.messages)]), ({ stream }) => stream(request)))
})

/** The tools of a process. A charge whose process ended is looked up in the world by its key. */
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
      success: Schema.String,
      lookUp: ({ value }, { idempotencyKey }) =>
        Effect.sync(() =>
          acts(world).some(({ key, what }) => key === idempotencyKey && what === `charge ${value}`)
            ? Option.some(`charged ${value}`)
            : Option.none()
        ),
      handler: ({ value }, call) => Effect.as(act(`charge ${value}`, call), `charged ${value}`)
    }),
    Tool.make("wait", {
      parameters,
      readOnly: true,
      handler: ({ value }, call) =>
        act(`wait ${value}`, call).pipe(
          Effect.andThen(Effect.sleep(value)),
          Effect.andThen(act(`waited ${value}`, call)),
          Effect.as(`waited ${value}`)
        )
    }),
    // Goes on until the test lets it go.
    Tool.make("hold", {
      parameters,
      readOnly: true,
      handler: ({ value }, call) =>
        act(`hold ${value}`, call).pipe(
          Effect.andThen(Effect.repeat(Effect.sync(() => acts(world).some(({ what }) => what === `let go ${value}`)), {
            schedule: Schedule.spaced("20 millis"),
            until: (isLetGo) => isLetGo
          })),
          Effect.as(`held ${value}`)
        )
    })
  ] as const
}
