/**
 * The scripted model as an adapter of Heddle's: what it says, in events. It is the same for every loop that is asked in
 * this way, and needs nothing of Heddle to run.
 */
import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Channel from "effect/Channel"
import * as Effect from "effect/Effect"
import type * as Pull from "effect/Pull"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Event from "heddle/Event"
import type * as Message from "heddle/Message"
import type { Chunk, Model, Read, Reply } from "../model.ts"

type Events = Arr.NonEmptyReadonlyArray<Event.AdapterEvent>

const metadata = {}

const assistant = (content: string): Message.Message => ({ role: "assistant", content, metadata })

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
    const completed: Event.AdapterEvent = {
      _tag: "MessageCompleted",
      message: assistant(text),
      finishReason: calls.size === 0 ? "stop" : "tool_calls"
    }
    const last: Events = text === "" ? [completed] : [{ _tag: "TextCompleted", id: null, text }, completed]
    return isStarted ? last : [this.started(), ...last]
  }

  private started(): Event.AdapterEvent {
    this.isStarted = true
    return { _tag: "MessageStarted", message: assistant("") }
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

/** Asks the model. A connection is made for one reader, and closed with the scope in which it is read. */
export const stream = (model: Model, messageCount: number): Stream.Stream<Event.AdapterEvent> =>
  Stream.fromChannel(Channel.fromTransform((_upstream, scope) => {
    const connection = new Connection(model, messageCount)
    return Effect.as(Scope.addFinalizer(scope, connection.close), connection.pull)
  }))
