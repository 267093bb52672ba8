/**
 * A run that is killed and resumed: run it with `start`, which kills itself while its second tool runs, and then with
 * `resume`, which finds in SQLite what had happened. The tools write what they do to a file.
 */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import { Message, Session, Tool } from "heddle"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import { appendFileSync, existsSync, readFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"

const [command, filename = join(tmpdir(), "heddle-crash.db")] = process.argv.slice(2)
const world = `${filename}.world`
const done = () => existsSync(world) ? readFileSync(world, "utf8").trim().split("\n") : []
const reserve = Tool.make("reserve", {
  parameters: {},
  handler: () => Effect.sync(() => appendFileSync(world, "reserved\n"))
})
const charge = Tool.make("charge", {
  parameters: {},
  // Its key tells if the call had its effect.
  lookUp: (_, { idempotencyKey }) =>
    Effect.sync(() => Option.liftPredicate("charged", () => done().includes(idempotencyKey))),
  handler: (_, { idempotencyKey }) =>
    Effect.sync(() => {
      appendFileSync(world, `${idempotencyKey}\n`)
      if (command === "start") process.kill(process.pid, "SIGKILL")
      return "charged"
    })
})
const options = { tools: [reserve, charge], maxConcurrency: 1 }
const calls = [Script.toolCall("c0", "reserve"), Script.toolCall("c1", "charge"), Script.finish("tool_calls")]

const start = Effect.gen(function*() {
  const opened = yield* Session.open("order")
  yield* Session.keep(opened, (session) => Session.reply(session, "One heddle, please", options))
}).pipe(Effect.provide(Script.layer([calls])))

const resume = Effect.gen(function*() {
  const kept = yield* Session.load("order")
  if (kept?.interrupted === undefined) return console.log("no run was interrupted: run it with `start` first")
  for (const { state, toolCall } of kept.interrupted.calls) console.log(`${toolCall.name}: ${state}`)
  // Events that repeat what was recorded are shown as past.
  yield* Stream.runForEach(Session.streamResume(kept, { ...options, takeOver: true }), (event) => {
    const when = "replayed" in event ? ", before the crash" : ""
    return Effect.sync(() => event._tag === "ToolResultEncoded" && console.log(`${event.id}: ${event.content}${when}`))
  })
  const { session } = yield* Session.open("order")
  for (const message of session.thread.messages) console.log(`${message.role}: ${Message.text(message)}`)
  console.log(`effects: ${done().length}`)
}).pipe(Effect.provide(Script.layer([[Script.text("It is paid."), Script.finish("stop")]])))

const program = command === "start" ? start : command === "resume" ? resume : undefined
if (program === undefined) console.log("usage: crash.ts start|resume [file]")
else await Effect.runPromise(program.pipe(Effect.provide(SessionStore.layerSqlite({ filename }))))
