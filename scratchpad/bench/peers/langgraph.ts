/**
 * LangGraph: an agent of `createAgent` over a chat model of our own, its tokens and its results streamed. Callbacks are
 * awaited: in the background, which is usual, the tokens of a fast answer come after its stream has ended, and are lost.
 */
import { BaseChatModel } from "@langchain/core/language_models/chat_models"
import { AIMessageChunk, type BaseMessage } from "@langchain/core/messages"
import { ChatGenerationChunk } from "@langchain/core/outputs"
import { createAgent, tool } from "langchain"
import { z } from "zod"
import type { Arguments, Implementation, Run, ToolSpecification, Value } from "../loop.ts"
import type { Chunk, Model } from "../model.ts"

process.env["LANGCHAIN_CALLBACKS_BACKGROUND"] ??= "false"

/** A chunk as the library's own, which joins fragments by the index of their call; the end of a call is no chunk to it. */
const fieldsOf = (chunk: Chunk, indexes: Map<string, number>) => {
  const type = "tool_call_chunk" as const
  switch (chunk.type) {
    case "text":
      return { content: chunk.delta }
    case "callStarted": {
      const { id, name } = chunk
      indexes.set(id, indexes.size)
      return { content: "", tool_call_chunks: [{ type, id, name, args: "", index: indexes.get(id)! }] }
    }
    case "callArguments":
      return { content: "", tool_call_chunks: [{ type, args: chunk.fragment, index: indexes.get(chunk.id)! }] }
    case "callCompleted":
      return undefined
  }
}

/** The agent is shared, and its model with it: a run's own script is found by what it was asked. */
class Scripts extends BaseChatModel {
  readonly byPrompt = new Map<string, Model>()

  constructor() {
    super({})
  }

  _llmType(): string {
    return "scripted"
  }

  override bindTools(): this {
    return this
  }

  _generate(): Promise<never> {
    return Promise.reject(new Error("this model only streams"))
  }

  override async *_streamResponseChunks(
    messages: Array<BaseMessage>,
    _options: this["ParsedCallOptions"],
    manager?: Parameters<BaseChatModel["_streamResponseChunks"]>[2]
  ): AsyncGenerator<ChatGenerationChunk> {
    const prompt = messages.find((message) => message.type === "human")?.text ?? ""
    const indexes = new Map<string, number>()
    for await (const read of this.byPrompt.get(prompt)!.request(messages.length)) {
      for (const part of read) {
        const fields = fieldsOf(part, indexes)
        if (fields === undefined) continue
        const chunk = new ChatGenerationChunk({ message: new AIMessageChunk(fields), text: fields.content })
        yield chunk
        await manager?.handleLLMNewToken(fields.content, undefined, undefined, undefined, undefined, { chunk })
      }
    }
  }
}

const types = { number: z.number, string: z.string }

const toTool = ({ body, description, name, parameters }: ToolSpecification) =>
  tool(
    async (args, config?: { readonly signal?: AbortSignal }) =>
      body.type === "synchronous"
        ? body.call(args as Arguments)
        : body.call(args as Arguments, config?.signal),
    {
      name,
      description,
      schema: z.object(
        Object.fromEntries(Object.entries(parameters).map(([key, type]) => [key, types[type]()]))
      )
    }
  )

type Update = { readonly tools?: { readonly messages: ReadonlyArray<BaseMessage> } }

/** What one piece of the stream says; whether to read on. */
const tell = (run: Run, mode: string, data: unknown): boolean => {
  if (mode === "messages") {
    const [message] = data as ReadonlyArray<BaseMessage>
    if (message?.type === "ai" && message.text !== "") return run.onText(message.text)
    run.onEvent()
    return true
  }
  const results = (data as Update).tools?.messages
  if (results === undefined) run.onEvent()
  else for (const result of results) run.onResult(JSON.parse(result.text) as Value)
  return true
}

export const implementation: Implementation = {
  name: "LangGraph",
  kind: "peer",
  guarantees: [],
  make: (specifications, maxTurns) => {
    const scripts = new Scripts()
    const agent = createAgent({ model: scripts, tools: specifications.map(toTool) })
    return {
      run: async (run) => {
        scripts.byPrompt.set(run.prompt, run.model)
        try {
          const { signal } = run
          const stream = await agent.stream(
            { messages: [{ role: "user", content: run.prompt }] },
            // Each turn is two steps of the graph, and some lie around them.
            {
              streamMode: ["messages", "updates"],
              recursionLimit: maxTurns * 2 + 10,
              ...(signal === undefined ? {} : { signal })
            }
          )
          for await (const [mode, data] of stream) if (!tell(run, mode, data)) break
        } finally {
          scripts.byPrompt.delete(run.prompt)
        }
        return {}
      }
    }
  }
}
