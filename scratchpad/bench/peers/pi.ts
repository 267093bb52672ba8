/**
 * pi: `agentLoop` with a stream function of our own. As its providers do, that one keeps one partial message and changes
 * it; arguments are parsed once, when they are whole.
 */
import { agentLoop, type AgentTool, type StreamFn } from "@earendil-works/pi-agent-core"
import {
  type AssistantMessage,
  type AssistantMessageEventStream,
  createAssistantMessageEventStream,
  type Model as PiModel,
  type TextContent,
  type ToolCall,
  Type
} from "@earendil-works/pi-ai"
import type { Arguments, Implementation, Run, ToolSpecification, Value } from "../loop.ts"
import type { Chunk, Reply } from "../model.ts"

const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 }
const usage = { input: 1, output: 1, cacheRead: 0, cacheWrite: 0, totalTokens: 2, cost: { ...cost, total: 0 } }

const piModel: PiModel<"openai-completions"> = {
  id: "scripted",
  name: "scripted",
  api: "openai-completions",
  provider: "scripted",
  baseUrl: "",
  reasoning: false,
  input: ["text"],
  cost,
  contextWindow: 1_000_000_000,
  maxTokens: 1_000_000_000
}

interface Call {
  readonly block: ToolCall
  readonly contentIndex: number
  json: string
}

/** One reply as pi's events, each with the message as far as it has come. */
class Reading {
  private readonly stream: AssistantMessageEventStream
  private readonly calls = new Map<string, Call>()
  private text: { readonly block: TextContent; readonly contentIndex: number } | undefined
  private readonly partial: AssistantMessage = {
    role: "assistant",
    content: [],
    api: piModel.api,
    provider: piModel.provider,
    model: piModel.id,
    usage,
    stopReason: "stop",
    timestamp: Date.now()
  }

  constructor(stream: AssistantMessageEventStream) {
    this.stream = stream
  }

  async read(reply: Reply, signal: AbortSignal | undefined): Promise<void> {
    const { partial, stream } = this
    stream.push({ type: "start", partial })
    try {
      for await (const read of reply) {
        signal?.throwIfAborted()
        for (const chunk of read) this.push(chunk)
      }
      this.finish()
    } catch (error) {
      const reason = signal?.aborted === true ? "aborted" : "error"
      stream.push({ type: "error", reason, error: { ...partial, stopReason: reason, errorMessage: String(error) } })
    }
    stream.end()
  }

  private push(chunk: Chunk): void {
    if (chunk.type === "text") return this.pushText(chunk.delta)
    const { calls, partial, stream } = this
    if (chunk.type === "callStarted") {
      const block: ToolCall = { type: "toolCall", id: chunk.id, name: chunk.name, arguments: {} }
      const contentIndex = partial.content.push(block) - 1
      calls.set(chunk.id, { block, contentIndex, json: "" })
      stream.push({ type: "toolcall_start", contentIndex, partial })
      return
    }
    const call = calls.get(chunk.id)!
    const { block, contentIndex } = call
    if (chunk.type === "callArguments") {
      call.json += chunk.fragment
      stream.push({ type: "toolcall_delta", contentIndex, delta: chunk.fragment, partial })
    } else {
      block.arguments = JSON.parse(call.json)
      stream.push({ type: "toolcall_end", contentIndex, toolCall: block, partial })
    }
  }

  private pushText(delta: string): void {
    const { partial, stream } = this
    if (this.text === undefined) {
      const block: TextContent = { type: "text", text: "" }
      this.text = { block, contentIndex: partial.content.push(block) - 1 }
      stream.push({ type: "text_start", contentIndex: this.text.contentIndex, partial })
    }
    this.text.block.text += delta
    stream.push({ type: "text_delta", contentIndex: this.text.contentIndex, delta, partial })
  }

  private finish(): void {
    const { calls, partial, stream, text } = this
    if (text !== undefined) {
      stream.push({ type: "text_end", contentIndex: text.contentIndex, content: text.block.text, partial })
    }
    const reason = calls.size > 0 ? "toolUse" : "stop"
    partial.stopReason = reason
    stream.push({ type: "done", reason, message: partial })
  }
}

const types = { number: Type.Number, string: Type.String }

const toTool = ({ body, description, name, parameters }: ToolSpecification): AgentTool => ({
  name,
  label: name,
  description,
  parameters: Type.Object(
    Object.fromEntries(Object.entries(parameters).map(([key, type]) => [key, types[type]()]))
  ),
  execute: async (_id, params, signal) => {
    const args = params as Arguments
    const details = body.type === "synchronous"
      ? body.call(args)
      : await body.call(args, signal)
    return { content: [{ type: "text", text: JSON.stringify(details) }], details }
  }
})

const streamOf = ({ model }: Run): StreamFn => (_model, context, options) => {
  const stream = createAssistantMessageEventStream()
  void new Reading(stream).read(model.request(context.messages.length), options?.signal)
  return stream
}

export const implementation: Implementation = {
  name: "pi",
  kind: "peer",
  guarantees: [],
  make: (specifications) => {
    const tools = specifications.map(toTool)
    return {
      run: async (run) => {
        const events = agentLoop(
          [{ role: "user", content: run.prompt, timestamp: Date.now() }],
          { messages: [], tools },
          { model: piModel, convertToLlm: (messages) => messages as never },
          run.signal,
          streamOf(run)
        )
        for await (const event of events) {
          if (event.type === "message_update" && event.assistantMessageEvent.type === "text_delta") {
            if (!run.onText(event.assistantMessageEvent.delta)) break
          } else if (event.type === "tool_execution_end") run.onResult(event.result.details as Value)
          else run.onEvent()
        }
        return {}
      }
    }
  }
}
