/**
 * Heddle for a harness that brings its own models and tools: a folder with `lib/model.mjs` and `impl/`, where this file
 * goes. It is what a user writes: each tool with a schema, the model as an `Adapter`, one `Chat.stream` per run.
 *
 * A tool of that harness computes or waits, and changes nothing outside of itself. One that waits is declared `readOnly`,
 * and starts while the model still speaks; one that computes is done at once, whenever it starts, and gains nothing by it.
 * What waits is no work for a processor, so more of it may run at once than there are cores.
 */
import * as Cause from "effect/Cause"
import * as Channel from "effect/Channel"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Adapter from "heddle/Adapter"
import * as Chat from "heddle/Chat"
import * as Message from "heddle/Message"
import * as Tool from "heddle/Tool"
import { ARGS, CALL, END, TEXT } from "../lib/model.mjs"

const maxConcurrency = 64

const fields = { number: Schema.Finite, string: Schema.String }

const toTool = ({ async, description, name, params, sync }, isEarly) =>
  Tool.make(name, {
    description,
    parameters: Object.fromEntries(Object.entries(params).map(([key, type]) => [key, fields[type]])),
    readOnly: isEarly && sync === undefined,
    handler: sync === undefined
      ? (args, call) => call.promise((signal) => async(args, signal))
      : (args) => Effect.sync(() => sync(args))
  })

/** One reply, from the chunks of the wire to events. */
class Reading {
  #calls = new Map()
  #pieces = []
  #isStarted = false

  /** What one read of the wire brought stays one array. */
  events(burst) {
    const events = burst.map((chunk) => this.#event(chunk))
    return this.#isStarted ? events : [this.#started(), ...events]
  }

  ended() {
    const text = this.#pieces.join("")
    const events = this.#isStarted ? [] : [this.#started()]
    if (text !== "") events.push({ _tag: "TextCompleted", id: null, text })
    const finishReason = this.#calls.size === 0 ? "stop" : "tool_calls"
    events.push({ _tag: "MessageCompleted", message: Message.assistant(text), finishReason })
    return events
  }

  #started() {
    this.#isStarted = true
    return { _tag: "MessageStarted", message: Message.assistant("") }
  }

  #event(chunk) {
    switch (chunk.k) {
      case TEXT:
        this.#pieces.push(chunk.d)
        return { _tag: "TextDelta", id: null, delta: chunk.d }
      case CALL:
        this.#calls.set(chunk.id, { name: chunk.name, json: "" })
        return { _tag: "ToolCallStarted", id: chunk.id, name: chunk.name }
      case ARGS:
        this.#calls.get(chunk.id).json += chunk.d
        return { _tag: "ToolCallDelta", id: chunk.id, argumentsDelta: chunk.d }
      case END: {
        const { json, name } = this.#calls.get(chunk.id)
        return { _tag: "ToolCallCompleted", id: chunk.id, name, arguments: JSON.parse(json), rawArguments: json }
      }
    }
    throw new Error(`no such chunk: ${chunk.k}`)
  }
}

/** One request to the model. One pull is one read of the wire. */
class Connection {
  #controller = new AbortController()
  #reading = new Reading()
  #bursts
  #isOver = false

  constructor(model, messageCount) {
    this.#bursts = model.call(messageCount, this.#controller.signal)[Symbol.asyncIterator]()
  }

  pull = Effect.flatMap(Effect.promise(() => this.#bursts.next()), ({ done, value }) => {
    if (!done) return Effect.succeed(this.#reading.events(value))
    if (this.#isOver) return Cause.done()
    this.#isOver = true
    return Effect.succeed(this.#reading.ended())
  })

  close = Effect.sync(() => {
    if (this.#isOver) return
    this.#controller.abort("closed")
    void this.#bursts.return()
  })
}

/**
 * The harness's models as the application's one adapter: it takes of a request what it sends, and which model is to have
 * it, and keeps no more of it. A connection is made for one reader, and closed with the scope in which it is read.
 */
const adapter = {
  stream: ({ messages: { length: messageCount }, options: { model } }) =>
    Stream.fromChannel(Channel.fromTransform((_upstream, scope) => {
      const connection = new Connection(model, messageCount)
      return Effect.as(Scope.addFinalizer(scope, connection.close), connection.pull)
    }))
}

const runPromise = Effect.runPromiseWith(Context.make(Adapter.Adapter, adapter))

/** Tells the harness what was read, and answers whether to read on. */
const reader = ({ onEvent, onResult, onText }) => (event) => {
  if (event._tag === "TextDelta") return onText(event.delta) !== false
  if (event._tag === "ToolResultEncoded") onResult(event.id, event.content)
  else onEvent()
  return true
}

export const heddle = (name, isEarly) => ({
  name,
  kind: "ours",
  packages: ["heddle"],
  setup: ({ maxTurns, tools }) => {
    const own = tools.map((tool) => toTool(tool, isEarly))
    return {
      run: (job) => {
        const read = reader(job)
        const events = Chat.stream(job.prompt, {
          tools: own,
          maxTurns,
          maxConcurrency,
          options: { model: job.model }
        })
        const reading = job.earlyStop
          ? Stream.runForEachWhile(events, (event) => Effect.sync(() => read(event)))
          : Stream.runForEachArray(events, (some) => Effect.sync(() => some.forEach(read)))
        return runPromise(reading, { signal: job.signal })
      }
    }
  }
})

export default heddle("heddle", true)
