/**
 * The floor: the cheapest loop in plain JavaScript that gives right results. One async generator, one event for each
 * chunk, tools started as soon as their arguments are whole, a type check for a schema. No bound, no timeout, and the
 * first tool that fails takes the turn with it: a measure of speed, not of behaviour.
 */
import type { Arguments, Implementation, Run, Signal, ToolSpecification, Value } from "../loop.ts"
import type { Chunk } from "../model.ts"

type Event =
  | { readonly type: "text"; readonly delta: string }
  | { readonly type: "call"; readonly id: string }
  | { readonly type: "result"; readonly id: string; readonly value: Value }

interface Call {
  readonly id: string
  readonly name: string
  json: string
}

/** The messages so far; what a provider would be sent. */
type History = Array<{ readonly role: string; readonly content: string; readonly calls?: ReadonlyArray<Call> }>

const decode = (tool: ToolSpecification, json: string): Arguments => {
  const args = JSON.parse(json) as Arguments
  for (const key in tool.parameters) {
    if (typeof args[key] !== tool.parameters[key]) {
      throw new TypeError(`${tool.name}: ${key} is no ${tool.parameters[key]}`)
    }
  }
  return args
}

const execute = async (tool: ToolSpecification, call: Call, signal: Signal): Promise<Event> => {
  const args = decode(tool, call.json)
  const value = tool.body.type === "synchronous" ? tool.body.call(args) : await tool.body.call(args, signal)
  return { type: "result", id: call.id, value }
}

/** One reply, while it is read. */
class Turn {
  private readonly tools: ReadonlyMap<string, ToolSpecification>
  private readonly signal: Signal
  private readonly calls = new Map<string, Call>()
  readonly results: Array<Promise<Event>> = []
  private text = ""

  constructor(tools: ReadonlyMap<string, ToolSpecification>, signal: Signal) {
    this.tools = tools
    this.signal = signal
  }

  event(chunk: Chunk): Event {
    if (chunk.type === "text") {
      this.text += chunk.delta
      return { type: "text", delta: chunk.delta }
    }
    if (chunk.type === "callStarted") this.calls.set(chunk.id, { id: chunk.id, name: chunk.name, json: "" })
    else if (chunk.type === "callArguments") this.calls.get(chunk.id)!.json += chunk.fragment
    else this.start(this.calls.get(chunk.id)!)
    return { type: "call", id: chunk.id }
  }

  private start(call: Call): void {
    this.results.push(execute(this.tools.get(call.name)!, call, this.signal))
  }

  message(): History[number] {
    return { role: "assistant", content: this.text, calls: [...this.calls.values()] }
  }
}

async function* events(
  { model, prompt, signal }: Run,
  tools: ReadonlyMap<string, ToolSpecification>,
  maxTurns: number
): AsyncGenerator<Event, void> {
  const history: History = [{ role: "user", content: prompt }]
  const isAborted = (): boolean => signal?.aborted === true
  for (let index = 0; index < maxTurns && !isAborted(); index++) {
    const turn = new Turn(tools, signal)
    for await (const read of model.request(history.length)) {
      if (isAborted()) return
      for (const chunk of read) yield turn.event(chunk)
    }
    history.push(turn.message())
    if (turn.results.length === 0) return
    for (const result of await Promise.all(turn.results)) {
      if (result.type === "result") history.push({ role: "tool", content: JSON.stringify(result.value) })
      yield result
    }
  }
}

export const implementation: Implementation = {
  name: "plain JavaScript",
  kind: "floor",
  guarantees: ["parallel", "closes"],
  make: (specifications, maxTurns) => {
    const tools = new Map(specifications.map((tool) => [tool.name, tool]))
    return {
      run: async (run) => {
        for await (const event of events(run, tools, maxTurns)) {
          if (event.type === "text") {
            if (!run.onText(event.delta)) break
          } else if (event.type === "result") run.onResult(event.value)
          else run.onEvent()
        }
        return {}
      }
    }
  }
}
