/**
 * What the processes that leave and those that watch them agree on: the model, the tools, and a log, which is a file that
 * every process adds a line to.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Message, Tool } from "heddle"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import * as fs from "node:fs"

/** A kind of process: a worker, a program of its own that claims sessions, or a runner of a cluster. */
export type Kind = "worker" | "claims" | "runner"

/** What a process has to know. */
export interface Place {
  readonly kind: Kind
  /** The file of SQLite, or the URL of the database. */
  readonly store: string
  /** The address of the bank. */
  readonly bank: string
  /** The file that is the log. */
  readonly log: string
  /** Duration of a claim, in milliseconds. */
  readonly term: number
  /** Longest time that calls have to end when the process leaves, in milliseconds. That of the library by default. */
  readonly drain?: number
  /** Time that the model takes to answer, in milliseconds. */
  readonly think: number
  /** The port of a runner. */
  readonly port?: number
}

/** What a process does: a line of the log. */
export interface Line {
  readonly pid: number
  /** Milliseconds since 1970, by a clock that nothing sets. */
  readonly at: number
  readonly what: "asks" | "hears" | "begins" | "ends" | "looks up" | "is frozen" | "wakes"
  readonly session?: string
  /** The tool of a call, its value and its id. */
  readonly tool?: string
  readonly value?: number
  readonly call?: string
}

/** Milliseconds since 1970, by a clock that nothing sets. */
export const now = (): number => performance.timeOrigin + performance.now()

/** Adds a line to the log. */
export const note = (log: string, line: Omit<Line, "at" | "pid">): void =>
  fs.appendFileSync(log, `${JSON.stringify({ pid: process.pid, at: now(), ...line })}\n`)

/** Reads the log. */
export const lines = (log: string): ReadonlyArray<Line> =>
  fs.readFileSync(log, "utf8").split("\n").filter((line) => line !== "").map((line) => JSON.parse(line) as Line)

/** The services that every process has: the database, and the store in it. */
export const stored = (store: string) =>
  store.startsWith("postgres:")
    ? SessionStore.layer.pipe(Layer.provide(database(store)), Layer.orDie)
    : Layer.orDie(SessionStore.layerSqlite({ filename: store }))

/** A client of a Postgres database. */
export const database = (url: string) => Layer.orDie(PgClient.layer({ url: Redacted.make(url), maxConnections: 5 }))

/** A call that a user asks for, such as `charge 5`. */
export type Call = readonly [tool: string, value: number]

/** The message that asks for turns of calls: `s1: charge 5, balance 100 then transfer 6`. */
export const message = (session: string, turns: ReadonlyArray<ReadonlyArray<Call>>): string =>
  `${session}: ${turns.map((calls) => calls.map((call) => call.join(" ")).join(", ")).join(" then ")}`

const wordsOf = (messages: ReadonlyArray<Message.Message>) =>
  Message.text(messages.find(({ role }) => role === "user")!).split(": ") as [session: string, turns: string]

const reply = (messages: ReadonlyArray<Message.Message>): Script.Input => {
  const turns = wordsOf(messages)[1].split(" then ")
  const turn = messages.filter(({ role }) => role === "assistant").length
  const next = turns[turn]
  if (next === undefined) return [[Script.text("done"), Script.finish("stop")]]
  const calls = next.split(", ").map((words, index) => {
    const [name = "", value] = words.split(" ")
    return Script.toolCall(`${name}-${turn}-${index}`, name, { value: Number(value) })
  })
  return [[...calls, Script.finish("tool_calls")]]
}

/** A model that is the same in every process, and takes its time. */
export const model = ({ log, think }: Pick<Place, "log" | "think">) =>
  Adapter.layer({
    stream: (request) => {
      const [session] = wordsOf(request.messages)
      const say = (what: Line["what"]) => Effect.sync(() => note(log, { what, session }))
      return Stream.unwrap(
        say("asks").pipe(
          Effect.andThen(Effect.sleep(think)),
          Effect.andThen(say("hears")),
          Effect.andThen(Script.make(reply(request.messages))),
          Effect.map(({ stream }) => stream(request))
        )
      )
    }
  })

/**
 * The tools of a process. Each charges a value, but `balance`, which only takes that many milliseconds.
 *
 * - `charge` stops waiting for the bank where it is interrupted, and can be looked up.
 * - `transfer` is not interrupted while it waits for the bank, and can be looked up.
 * - `wire` may finish where its run is stopped, and cannot be looked up: it is reported where its effect is not known.
 */
export const tools = ({ bank, log }: Pick<Place, "bank" | "log">) => {
  const parameters = { value: Schema.Finite }
  const say = (what: Line["what"], { value }: { readonly value: number }, call: Tool.CallContext) =>
    Effect.sync(() => note(log, { what, session: call.sessionId ?? "", tool: call.name, value, call: call.id }))
  const ask = (path: string, body: object) =>
    Effect.tryPromise(async (signal) => {
      // A connection that was idle while the process was frozen may be closed on the other side.
      const headers = { connection: "close" }
      const response = await fetch(`${bank}${path}`, { method: "POST", signal, headers, body: JSON.stringify(body) })
      return await response.json() as any
    })
  const charge = (args: { readonly value: number }, call: Tool.CallContext) =>
    say("begins", args, call).pipe(
      Effect.andThen(ask("/charge", { key: call.idempotencyKey, amount: args.value, pid: process.pid })),
      Effect.tap(() => say("ends", args, call)),
      Effect.map(({ receipt }) => String(receipt))
    )
  const lookUp = (args: { readonly value: number }, call: Tool.CallContext) =>
    say("looks up", args, call).pipe(
      Effect.andThen(ask("/lookUp", { key: call.idempotencyKey, pid: process.pid })),
      Effect.map(({ isFound }) => isFound === true ? Option.some(`charged ${args.value}`) : Option.none())
    )
  return [
    Tool.make("charge", { parameters, success: Schema.String, lookUp, handler: charge }),
    Tool.make("transfer", {
      parameters,
      success: Schema.String,
      lookUp,
      handler: (args, call) => Effect.uninterruptible(charge(args, call))
    }),
    Tool.make("wire", { parameters, interrupt: "block", handler: charge }),
    Tool.make("balance", {
      parameters,
      readOnly: true,
      handler: (args) => Effect.as(Effect.sleep(args.value), "enough")
    })
  ] as const
}
