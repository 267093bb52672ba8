/**
 * A pool of workers over one SQLite file: `submit` leaves messages to six sessions, and any number of processes with `work`
 * answer them, each once. Where a worker is killed, another one goes on with its sessions. A worker ends when nothing is left.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { Adapter, Message, Session } from "heddle"
import { Worker } from "heddle/durable"
import { SessionStore } from "heddle/sql"
import { tmpdir } from "node:os"
import { join } from "node:path"

const [command, filename = join(tmpdir(), "heddle-workers.db")] = process.argv.slice(2)
const customers = ["ann", "bob", "cem", "dee", "eve", "fay"]

/** A model that greets, after a moment. */
const greeting = Adapter.layer({
  stream: ({ messages }) => {
    const text = `Hello, ${Message.text(messages.at(-1)!)}!`
    return Stream.fromIterable(
      [
        { _tag: "MessageStarted", message: Message.assistant("") },
        { _tag: "TextDelta", id: null, delta: text },
        { _tag: "TextCompleted", id: null, text },
        { _tag: "MessageCompleted", message: Message.assistant(text), finishReason: "stop" }
      ] as const
    ).pipe(Stream.schedule(Schedule.spaced("20 millis")))
  }
})

const submit = Effect.forEach(customers, (name) => Session.submit(name, `I am ${name}`), { discard: true })

const worker = Worker.layer({
  run: () => ({}),
  concurrency: 2,
  term: "2 seconds",
  onEvent: (id, event) =>
    event._tag === "ChatCompleted"
      ? Effect.sync(() => console.log(`process ${process.pid}, ${id}: ${event.result.finalResponse?.outputText}`))
      : Effect.void
})

const left = Effect.map(Stream.runCollect(Session.unfinished), (ids) => ids.length)

const work = Effect.gen(function*() {
  yield* Layer.build(worker)
  yield* Effect.repeat(left, { schedule: Schedule.spaced("50 millis"), until: (count) => count === 0 })
}).pipe(Effect.scoped, Effect.provide(greeting))

const program = command === "submit" ? submit : command === "work" ? work : undefined
if (program === undefined) console.log("usage: workers.ts submit|work [file]")
else await Effect.runPromise(program.pipe(Effect.provide(SessionStore.layerSqlite({ filename }))))
