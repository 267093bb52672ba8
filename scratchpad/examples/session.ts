/** A conversation that is kept in a SQLite file: each start of the program goes on where the last one ended. */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Adapter, Message, Session } from "heddle"
import { SessionStore } from "heddle/sql"
import { tmpdir } from "node:os"
import { join } from "node:path"

const [words = "Hello", filename = join(tmpdir(), "heddle-session.db")] = process.argv.slice(2)

/** A model that only counts: an adapter is one function from a request to a stream of events. */
const counting = Adapter.layer({
  stream: ({ messages }) => {
    const said = messages.filter(({ role }) => role === "user").map(Message.text)
    const text = `That is the ${said.length}. thing you said. The first was "${said[0]}".`
    return Stream.make(
      { _tag: "MessageStarted", message: Message.assistant("") },
      { _tag: "TextDelta", id: null, delta: text },
      { _tag: "TextCompleted", id: null, text },
      { _tag: "MessageCompleted", message: Message.assistant(text), finishReason: "stop" }
    )
  }
})

const program = Effect.gen(function*() {
  const opened = yield* Session.open("notebook")
  if (opened.interrupted !== undefined) console.log("the last run was interrupted")
  const kept = yield* Session.keep(opened, (session) => Session.reply(session, words))
  console.log(kept.value.result.finalResponse?.outputText)
  console.log(`version ${kept.version}, ${kept.session.thread.messages.length} messages`)
})

await Effect.runPromise(program.pipe(Effect.provide([counting, SessionStore.layerSqlite({ filename })])))
