/**
 * G49: messages into a run that a second process, a real one, withdraws while the owner delivers them, over one file of
 * SQLite and over one database of Postgres.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Adapter, type Event, Journal, type Message, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { type ChildProcess, fork } from "node:child_process"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import * as Postgres from "../support/postgres.ts"
import { journalOf } from "../support/survivor.ts"
import { find, limit } from "../support/until.ts"
import { temporaryFile } from "./support/files.ts"
import { type Order, type Place, type Report, stored } from "./support/withdrawer.ts"

const program = fileURLToPath(new URL("./support/withdrawer.ts", import.meta.url))

/** The process that withdraws, with what it has said. */
const withdrawer = (place: Place) =>
  Effect.gen(function*() {
    const reports: Array<Report> = []
    const child: ChildProcess = yield* Effect.acquireRelease(
      Effect.sync(() =>
        fork(program, [JSON.stringify(place)], {
          execArgv: ["--conditions=source"],
          env: { ...process.env, NODE_COMPILE_CACHE: path.join(os.tmpdir(), "heddle-sql-compiled") }
        })
      ),
      (child) => Effect.sync(() => child.kill("SIGKILL"))
    )
    child.on("message", (report: Report) => void reports.push(report))
    const told = (message: string) =>
      find(
        `the withdrawal of ${message}`,
        Effect.sync(() => reports.find((report) => report._tag !== "Ready" && report.message === message))
      )
    yield* find("a second process", Effect.sync(() => reports.find(({ _tag }) => _tag === "Ready")))
    return { tell: (order: Order) => Effect.sync(() => void child.send(order)), told }
  })

/** How many messages there are. Of each three the first is withdrawn, the second is delivered, and the third is raced for. */
const rounds = 36

const userTexts = (messages: ReadonlyArray<Message.Message>): ReadonlyArray<unknown> =>
  messages.flatMap(({ content, role }) => role === "user" ? [content] : [])

const places: Readonly<Record<string, Effect.Effect<Place, never, any>>> = {
  "one file of SQLite": Effect.map(temporaryFile, (filename) => ({ filename })),
  "one database of Postgres": Effect.map(Postgres.database, (url) => ({ url }))
}

describe("a withdrawal and a delivery at once, by two processes", () => {
  for (const [name, where] of Object.entries(places)) {
    it.live(
      `G49: either the withdrawal or the delivery of a message counts, and both processes see the same result: ${name}`,
      () =>
        Effect.gen(function*() {
          const place = yield* where as Effect.Effect<Place>
          const { tell, told } = yield* withdrawer(place)
          yield* Effect.gen(function*() {
            const store = yield* Session.Store
            const look = Tool.make("look", {
              parameters: {},
              handler: (_, call) =>
                Effect.gen(function*() {
                  const round = Number(call.id.slice(1))
                  // The delivery of the round before has been made.
                  if (round % 3 === 2) yield* tell({ session: "s", message: `m${round - 1}` })
                  yield* Session.submit("s", `words ${round}`, { id: `m${round}`, mode: "steer" })
                  if (round % 3 !== 1) yield* tell({ session: "s", message: `m${round}` })
                  if (round % 3 === 0) yield* told(`m${round}`)
                  return "seen"
                }).pipe(Effect.provideService(Session.Store, store), Effect.orDie)
            })
            const asked: Array<ReadonlyArray<unknown>> = []
            const model = Adapter.layer({
              stream: (request) => {
                asked.push(userTexts(request.messages))
                const turn = request.messages.filter(({ role }) => role === "assistant").length
                const reply = turn < rounds
                  ? [Script.toolCall(`c${turn}`, "look", {}), Script.finish("tool_calls")]
                  : [Script.text("Done."), Script.finish("stop")]
                return Stream.unwrap(Effect.map(Script.make([reply]), (scripted) => scripted.stream(request)))
              }
            })
            const events: Array<Event.Event> = []
            const { session } = yield* Session.keep(yield* Session.open("s"), (session) =>
              Session.reply(session, "go", {
                tools: [look],
                maxTurns: 2 * rounds,
                onEvent: (event: Event.Event) => void events.push(event)
              } as {})).pipe(Effect.provide(model))
            const kept = yield* Session.open("s")
            assert.deepStrictEqual(Journal.check(yield* journalOf("s")), [])
            const became: Array<string | undefined> = []
            for (let round = 0; round < rounds; round++) {
              const [id, text] = [`m${round}`, `words ${round}`]
              const report = yield* told(id)
              const fate = Session.receipt(kept, id)?.became
              became.push(fate)
              // Both processes know the same, and the withdrawal returned it.
              assert.deepStrictEqual(report, {
                _tag: "Told",
                message: id,
                isWithdrawn: fate === "withdrawn",
                became: fate
              })
              const times = fate === "delivered" ? 1 : 0
              assert.lengthOf(userTexts(session.thread.messages).filter((content) => content === text), times, id)
              assert.lengthOf(events.filter((event) => event._tag === "MessageDelivered" && event.id === id), times, id)
              assert.strictEqual(asked.some((texts) => texts.includes(text)), times === 1, id)
            }
            const others = became.filter((_, round) => round % 3 !== 2)
            assert.deepStrictEqual(others, others.map((_, index) => index % 2 === 0 ? "withdrawn" : "delivered"))
            console.log(
              `${name}: ${became.filter((fate, round) => round % 3 === 2 && fate === "withdrawn").length} won`
            )
          }).pipe(Effect.provide(stored(place), { local: true }))
        }),
      limit
    )
  }
})
