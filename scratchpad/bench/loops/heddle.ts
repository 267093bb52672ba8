/**
 * Heddle, as an application uses it: tools with Effect Schema, the scripted model as an `Adapter`, one `Chat.stream` per
 * run. Timeouts are on, as they are by default, and so is the bound, which stands above the largest number of tools that
 * wait at once. The tools compute or wait, and change nothing outside of themselves. Those that wait are declared
 * `readOnly`, and start while the model still speaks; those that compute are done at once, whenever they start.
 */
import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Channel from "effect/Channel"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Pull from "effect/Pull"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Adapter from "heddle/Adapter"
import * as Chat from "heddle/Chat"
import type * as Event from "heddle/Event"
import * as Message from "heddle/Message"
import * as Tool from "heddle/Tool"
import type { Arguments, Ending, Implementation, Run, ToolSpecification, Value } from "../loop.ts"
import type { Chunk, Model, Read, Reply } from "../model.ts"

const maxConcurrency = 64

const fields = { number: Schema.Finite, string: Schema.String }

const toTool = ({ body, description, name, parameters }: ToolSpecification, isEarly: boolean) =>
  Tool.make(name, {
    description,
    parameters: Schema.Struct(
      Object.fromEntries(Object.entries(parameters).map(([key, type]) => [key, fields[type]]))
    ),
    readOnly: isEarly && body.type !== "synchronous",
    handler: body.type === "synchronous"
      ? (args: Arguments) => Effect.sync(() => body.call(args))
      : (args: Arguments, call) => call.promise((signal) => body.call(args, signal))
  })

type Events = Arr.NonEmptyReadonlyArray<Event.AdapterEvent>

/** One reply, from the chunks of the wire to events. */
class Reading {
  private readonly calls = new Map<string, { readonly name: string; json: string }>()
  private readonly pieces: Array<string> = []
  private isStarted = false

  events(read: Read): Events {
    const events = read.map((chunk) => this.event(chunk))
    return this.isStarted ? events as unknown as Events : [this.started(), ...events]
  }

  ended(): Events {
    const { calls, isStarted } = this
    const text = this.pieces.join("")
    const message = Message.assistant(text)
    const completed: Event.AdapterEvent = {
      _tag: "MessageCompleted",
      message,
      finishReason: calls.size === 0 ? "stop" : "tool_calls"
    }
    const last: Events = text === "" ? [completed] : [{ _tag: "TextCompleted", id: null, text }, completed]
    return isStarted ? last : [this.started(), ...last]
  }

  private started(): Event.AdapterEvent {
    this.isStarted = true
    return { _tag: "MessageStarted", message: Message.assistant("") }
  }

  private event(chunk: Chunk): Event.AdapterEvent {
    switch (chunk.type) {
      case "text":
        this.pieces.push(chunk.delta)
        return { _tag: "TextDelta", id: null, delta: chunk.delta }
      case "callStarted":
        this.calls.set(chunk.id, { name: chunk.name, json: "" })
        return { _tag: "ToolCallStarted", id: chunk.id, name: chunk.name }
      case "callArguments":
        this.calls.get(chunk.id)!.json += chunk.fragment
        return { _tag: "ToolCallDelta", id: chunk.id, argumentsDelta: chunk.fragment }
      case "callCompleted": {
        const { json, name } = this.calls.get(chunk.id)!
        return { _tag: "ToolCallCompleted", id: chunk.id, name, arguments: JSON.parse(json), rawArguments: json }
      }
    }
  }
}

/** One request to the model. One pull is one read of the wire, and one array of events. */
class Connection {
  private readonly reply: Reply
  private readonly reading = new Reading()
  private isOver = false

  constructor(model: Model, messageCount: number) {
    this.reply = model.request(messageCount)
  }

  readonly pull: Pull.Pull<Events> = Effect.flatMap(Effect.promise(() => this.reply.next()), ({ value }) => {
    if (value !== undefined) return Effect.succeed(this.reading.events(value))
    if (this.isOver) return Cause.done()
    this.isOver = true
    return Effect.succeed(this.reading.ended())
  })

  readonly close = Effect.sync(() => {
    void this.reply.return?.()
  })
}

/**
 * The models as the application's one adapter: it takes of a request what it sends, and which model is to have it, and
 * keeps no more of it. A connection is made for one reader, and closed with the scope in which it is read.
 */
const adapter: Adapter.Adapter["Service"] = {
  stream: ({ messages: { length: messageCount }, options }) =>
    Stream.fromChannel(Channel.fromTransform((_upstream, scope) => {
      const connection = new Connection(options!["model"] as Model, messageCount)
      return Effect.as(Scope.addFinalizer(scope, connection.close), connection.pull)
    }))
}

const runPromise = Effect.runPromiseWith(Context.make(Adapter.Adapter, adapter))

/** Tells the workload what was read, and gives what only Heddle's result says. */
class Reader {
  private readonly run: Run
  ending: Ending = {}

  constructor(run: Run) {
    this.run = run
  }

  read(event: Event.Event): boolean {
    if (event._tag === "TextDelta") return this.run.onText(event.delta)
    if (event._tag === "ToolResultEncoded") this.run.onResult(JSON.parse(event.content) as Value)
    else this.run.onEvent()
    if (event._tag === "ChatCompleted") this.ending = { abandoned: event.result.abandoned?.length ?? 0 }
    return true
  }
}

const options = ({ graceMillis, isCancelledSoftly, signal }: Run) => ({
  ...(graceMillis === undefined ? {} : { grace: graceMillis }),
  ...(isCancelledSoftly === true && signal !== undefined ? { cancel: signal } : {})
})

/** Heddle, with those tools that wait started early, or all of them after the turn. */
export const heddle = (name: string, isEarly: boolean, guarantees: Implementation["guarantees"]): Implementation => ({
  name,
  kind: "heddle",
  guarantees,
  make: (specifications, maxTurns) => {
    const tools = specifications.map((tool) => toTool(tool, isEarly))
    return {
      run: async (run) => {
        const reader = new Reader(run)
        const events = Chat.stream(run.prompt, {
          tools,
          maxTurns,
          maxConcurrency,
          options: { model: run.model },
          ...options(run)
        })
        const reading = run.isLeftEarly === true
          ? Stream.runForEachWhile(events, (event) => Effect.sync(() => reader.read(event)))
          : Stream.runForEachArray(events, (some) => Effect.sync(() => some.forEach((event) => reader.read(event))))
        const isStopped = run.signal !== undefined && run.isCancelledSoftly !== true
        await runPromise(reading, isStopped ? { signal: run.signal } : {})
        return reader.ending
      }
    }
  }
})

export const implementation: Implementation = heddle("Heddle", true, [
  "parallel",
  "settlesLast",
  "reportsAbandoned",
  "closes",
  "overlaps"
])
