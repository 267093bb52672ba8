/** OpenAI's Agents SDK: one agent and one runner for all runs, over a model of our own. Tracing is off: it would be sent. */
import {
  Agent,
  type AgentInputItem,
  type Model as SdkModel,
  Runner,
  setTracingDisabled,
  type StreamEvent,
  tool
} from "@openai/agents"
import { z } from "zod"
import type { Arguments, Implementation, ToolSpecification, Value } from "../loop.ts"
import type { Model, Reply } from "../model.ts"

setTracingDisabled(true)

interface Call {
  readonly type: "function_call"
  readonly callId: string
  readonly name: string
  readonly status: "completed"
  arguments: string
}

let responses = 0

type Output = Extract<StreamEvent, { readonly type: "response_done" }>["response"]["output"]

const message = (text: string): Output => [
  { type: "message", role: "assistant", status: "completed", content: [{ type: "output_text", text }] }
]

/** One reply as events. To this SDK fragments of arguments are events of the provider; whole calls come at the end. */
async function* events(reply: Reply): AsyncGenerator<StreamEvent> {
  yield { type: "response_started" }
  const calls = new Map<string, Call>()
  let text = ""
  for await (const read of reply) {
    for (const chunk of read) {
      if (chunk.type === "text") {
        text += chunk.delta
        yield { type: "output_text_delta", delta: chunk.delta }
        continue
      }
      if (chunk.type === "callStarted") {
        const { id: callId, name } = chunk
        calls.set(callId, { type: "function_call", callId, name, status: "completed", arguments: "" })
      } else if (chunk.type === "callArguments") calls.get(chunk.id)!.arguments += chunk.fragment
      yield { type: "model", event: chunk }
    }
  }
  yield {
    type: "response_done",
    response: {
      id: `response_${responses++}`,
      usage: { inputTokens: 1, outputTokens: 1, totalTokens: 2 },
      output: [...(text === "" ? [] : message(text)), ...calls.values()]
    }
  }
}

/** The agent is shared, and its model with it: a run's own script is found by what it was asked. */
class Scripts implements SdkModel {
  readonly byPrompt = new Map<string, Model>()

  getResponse(): Promise<never> {
    return Promise.reject(new Error("this model only streams"))
  }

  getStreamedResponse({ input }: { readonly input: string | Array<AgentInputItem> }): AsyncIterable<StreamEvent> {
    const messages = typeof input === "string" ? 1 : input.length
    return events(this.byPrompt.get(promptOf(input))!.request(messages))
  }
}

const promptOf = (input: string | Array<AgentInputItem>): string => {
  if (typeof input === "string") return input
  const [first] = input
  if (first === undefined || !("content" in first)) return ""
  return typeof first.content === "string" ? first.content : JSON.stringify(first.content)
}

const types = { number: z.number, string: z.string }

const toTool = ({ body, description, name, parameters }: ToolSpecification) =>
  tool({
    name,
    description,
    parameters: z.object(
      Object.fromEntries(Object.entries(parameters).map(([key, type]) => [key, types[type]()]))
    ),
    errorFunction: null,
    execute: async (args, _context, details) =>
      body.type === "synchronous"
        ? body.call(args as Arguments)
        : body.call(args as Arguments, details?.signal)
  })

export const implementation: Implementation = {
  name: "OpenAI Agents",
  kind: "peer",
  guarantees: [],
  make: (specifications, maxTurns) => {
    const scripts = new Scripts()
    const agent = new Agent({
      name: "benchmark",
      instructions: "benchmark",
      model: scripts,
      tools: specifications.map(toTool)
    })
    const runner = new Runner({ tracingDisabled: true })
    return {
      run: async (run) => {
        scripts.byPrompt.set(run.prompt, run.model)
        try {
          const { signal } = run
          const stream = await runner.run(agent, run.prompt, {
            stream: true,
            maxTurns,
            ...(signal === undefined ? {} : { signal })
          })
          for await (const event of stream) {
            if (event.type === "raw_model_stream_event" && event.data.type === "output_text_delta") {
              if (!run.onText(event.data.delta)) break
            } else if (
              event.type === "run_item_stream_event" && event.item.type === "tool_call_output_item"
            ) run.onResult(event.item.output as unknown as Value)
            else run.onEvent()
          }
          if (!stream.cancelled) await stream.completed
        } finally {
          scripts.byPrompt.delete(run.prompt)
        }
        return {}
      }
    }
  }
}
