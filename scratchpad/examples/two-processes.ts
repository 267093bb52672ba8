/**
 * An approval over two processes: run it with `ask`, which ends while a call waits, and then with `approve`, which finds the
 * conversation in SQLite and goes on.
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Message, Session, Tool } from "heddle"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import { tmpdir } from "node:os"
import { join } from "node:path"

const [command, filename = join(tmpdir(), "heddle-two-processes.db")] = process.argv.slice(2)

const deploy = Tool.make("deploy", {
  parameters: { version: Schema.String },
  approval: true,
  handler: ({ version }) => Effect.succeed(`deployed ${version} from process ${process.pid}`)
})
const options = { tools: [deploy] }

const ask = Effect.gen(function*() {
  const opened = yield* Session.open("release")
  const asked = yield* Session.keep(opened, (session) => Session.reply(session, "Deploy version 2", options))
  console.log(`process ${process.pid}: ${asked.session.status}`)
  for (const { id, toolCall } of asked.session.suspensions) console.log("waits:", id, toolCall.arguments)
}).pipe(
  Effect.provide(Script.layer([[Script.toolCall("c0", "deploy", { version: "2" }), Script.finish("tool_calls")]]))
)

const approve = Effect.gen(function*() {
  const found = yield* Session.load("release")
  if (found === undefined) return console.log("nothing waits: run it with `ask` first")
  const allowed = yield* Session.keep(found, (session) => Session.approve(session, "c0"))
  const done = yield* Session.keep(allowed, (session) => Session.continue(session, null, options))
  console.log(`process ${process.pid}: ${done.session.status}`)
  for (const message of done.session.thread.messages) console.log(`${message.role}: ${Message.text(message)}`)
}).pipe(
  Effect.provide(Script.layer([[Script.text("Version 2 is live."), Script.finish("stop")]]))
)

const program = command === "ask" ? ask : command === "approve" ? approve : undefined
if (program === undefined) console.log("usage: two-processes.ts ask|approve [file]")
else await Effect.runPromise(program.pipe(Effect.provide(SessionStore.layerSqlite({ filename }))))
