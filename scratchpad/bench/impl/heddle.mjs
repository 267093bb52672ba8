// Heddle in the harness: the scripted model as an Adapter, the tools with Effect Schema, one Chat.stream per run. Imports
// the modules it uses and no more, as an application that minds its start would.
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Message, Tool } from "heddle"
import { ARGS, CALL, END, TEXT } from "../lib/model.mjs"

const fields = { number: Schema.Finite, string: Schema.String }

const toTool = ({ async, description, name, params, sync }) =>
  Tool.make(name, {
    description,
    parameters: Object.fromEntries(Object.entries(params).map(([key, type]) => [key, fields[type]])),
    handler: sync === undefined
      ? (args, call) => call.promise((signal) => async(args, signal))
      : (args) => Effect.sync(() => sync(args))
  })

/** One reply as events: a burst of the wire is an array of events. */
const reply = (model, request) => {
  const started = { _tag: "MessageStarted", message: Message.assistant("") }
  const calls = new Map()
  let text = ""
  const event = (chunk) => {
    switch (chunk.k) {
      case TEXT:
        text += chunk.d
        return { _tag: "TextDelta", id: null, delta: chunk.d }
      case CALL:
        calls.set(chunk.id, { name: chunk.name, raw: "" })
        return { _tag: "ToolCallStarted", id: chunk.id, name: chunk.name }
      case ARGS:
        calls.get(chunk.id).raw += chunk.d
        return { _tag: "ToolCallDelta", id: chunk.id, argumentsDelta: chunk.d }
      case END: {
        const { name, raw } = calls.get(chunk.id)
        return { _tag: "ToolCallCompleted", id: chunk.id, name, arguments: JSON.parse(raw), rawArguments: raw }
      }
    }
  }
  const completed = () => {
    const finishReason = calls.size === 0 ? "stop" : "tool_calls"
    return { _tag: "MessageCompleted", message: Message.assistant(text), finishReason }
  }
  return Stream.unwrap(Effect.gen(function*() {
    const controller = new AbortController()
    const bursts = model.call(request.messages.length, controller.signal)[Symbol.asyncIterator]()
    let phase = "start"
    yield* Effect.addFinalizer(() =>
      Effect.sync(() => {
        if (phase === "end") return
        controller.abort()
        bursts.return?.()?.catch(() => {})
      })
    )
    return Stream.fromPull(Effect.succeed(Effect.suspend(() => {
      if (phase === "end") return Cause.done()
      return Effect.map(Effect.promise(() => bursts.next()), (next) => {
        const first = phase === "start" ? [started] : []
        phase = next.done ? "end" : "open"
        if (next.done) return [...first, completed()]
        return first.length === 0 ? next.value.map(event) : [...first, ...next.value.map(event)]
      })
    })))
  }))
}

export default {
  name: "heddle",
  kind: "ours",
  packages: ["heddle"],
  setup({ maxTurns, tools }) {
    const own = tools.map(toTool)
    return {
      run({ earlyStop, model, onEvent, onResult, onText, prompt, signal }) {
        const one = (event) => {
          if (event._tag === "TextDelta") return onText(event.delta)
          if (event._tag === "ToolResultEncoded") onResult(event.id, event.content)
          else onEvent()
          return true
        }
        const events = Chat.stream(prompt, { tools: own, maxTurns })
        const reading = earlyStop
          ? Stream.runForEachWhile(events, (event) => Effect.sync(() => one(event) !== false))
          : Stream.runForEachArray(events, (some) => Effect.sync(() => some.forEach(one)))
        const adapter = Adapter.layer({ stream: (request) => reply(model, request) })
        return Effect.runPromise(Effect.provide(reading, adapter), { signal })
      }
    }
  }
}
