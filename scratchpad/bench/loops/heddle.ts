/**
 * Heddle, as an application uses it: tools with Effect Schema, the scripted model as an `Adapter`, one `Chat.stream` per
 * run. Timeouts are on, as they are by default, and so is the bound, which stands above the largest number of tools that
 * wait at once. The tools compute or wait, and change nothing outside of themselves. Those that wait are declared
 * `readOnly`, and start while the model still speaks; those that compute are done at once, whenever they start.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Adapter from "heddle/Adapter"
import * as Chat from "heddle/Chat"
import type * as Event from "heddle/Event"
import * as Tool from "heddle/Tool"
import type { Arguments, Ending, Implementation, Run, ToolSpecification, Value } from "../loop.ts"
import type { Model } from "../model.ts"
import * as Asked from "./adapter.ts"
import * as Reading from "./reading.ts"

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

/**
 * The models as the application's one adapter: it takes of a request what it sends, and which model is to have it, and
 * keeps no more of it.
 */
const adapter: Adapter.Adapter["Service"] = {
  stream: ({ messages: { length: messageCount }, options }) => Asked.stream(options!["model"] as Model, messageCount)
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
    if (event._tag === "ToolResultEncoded") this.run.onResult(JSON.parse(String(event.content)) as Value)
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
        const reading = Reading.read(events, run, (event) => reader.read(event))
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
