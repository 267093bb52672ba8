/** The AI SDK: `streamText` over a language model of our own, and every part of its full stream read. */
import type { LanguageModelV4, LanguageModelV4StreamPart } from "@ai-sdk/provider"
import { isStepCount, streamText, tool } from "ai"
import { z } from "zod"
import type { Arguments, Implementation, ToolSpecification, Value } from "../loop.ts"
import type { Chunk, Model, Reply } from "../model.ts"

const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: undefined, cacheWrite: undefined },
  outputTokens: { total: 1, text: 1, reasoning: undefined }
}

/** One reply as the parts of a language model. */
class Reading {
  private readonly calls = new Map<string, { readonly toolName: string; input: string }>()
  private isTextOpen = false

  parts(chunk: Chunk): ReadonlyArray<LanguageModelV4StreamPart> {
    switch (chunk.type) {
      case "text": {
        const delta: LanguageModelV4StreamPart = { type: "text-delta", id: "text", delta: chunk.delta }
        if (this.isTextOpen) return [delta]
        this.isTextOpen = true
        return [{ type: "text-start", id: "text" }, delta]
      }
      case "callStarted":
        this.calls.set(chunk.id, { toolName: chunk.name, input: "" })
        return [{ type: "tool-input-start", id: chunk.id, toolName: chunk.name }]
      case "callArguments":
        this.calls.get(chunk.id)!.input += chunk.fragment
        return [{ type: "tool-input-delta", id: chunk.id, delta: chunk.fragment }]
      case "callCompleted": {
        const { input, toolName } = this.calls.get(chunk.id)!
        return [{ type: "tool-input-end", id: chunk.id }, { type: "tool-call", toolCallId: chunk.id, toolName, input }]
      }
    }
  }

  ended(): ReadonlyArray<LanguageModelV4StreamPart> {
    const unified = this.calls.size > 0 ? "tool-calls" : "stop"
    const finish: LanguageModelV4StreamPart = { type: "finish", usage, finishReason: { unified, raw: undefined } }
    return this.isTextOpen ? [{ type: "text-end", id: "text" }, finish] : [finish]
  }
}

const toStream = (reply: Reply): ReadableStream<LanguageModelV4StreamPart> => {
  const reading = new Reading()
  return new ReadableStream({
    start: (controller) => controller.enqueue({ type: "stream-start", warnings: [] }),
    pull: async (controller) => {
      const { value } = await reply.next()
      const parts = value === undefined ? reading.ended() : value.flatMap((chunk) => reading.parts(chunk))
      for (const part of parts) controller.enqueue(part)
      if (value === undefined) controller.close()
    },
    cancel: async () => {
      await reply.return?.()
    }
  })
}

const languageModel = (model: Model): LanguageModelV4 => ({
  specificationVersion: "v4",
  provider: "scripted",
  modelId: "scripted",
  supportedUrls: {},
  doGenerate: () => Promise.reject(new Error("this model only streams")),
  doStream: async ({ prompt }) => ({ stream: toStream(model.request(prompt.length)) })
})

const types = { number: z.number, string: z.string }

const toTool = ({ body, description, parameters }: ToolSpecification) =>
  tool({
    description,
    inputSchema: z.object(
      Object.fromEntries(Object.entries(parameters).map(([key, type]) => [key, types[type]()]))
    ),
    execute: async (args, { abortSignal }) =>
      body.type === "synchronous"
        ? body.call(args as Arguments)
        : body.call(args as Arguments, abortSignal)
  })

export const implementation: Implementation = {
  name: "AI SDK",
  kind: "peer",
  guarantees: [],
  make: (specifications, maxTurns) => {
    const tools = Object.fromEntries(specifications.map((specification) => [specification.name, toTool(specification)]))
    return {
      run: async (run) => {
        const { fullStream } = streamText({
          model: languageModel(run.model),
          tools,
          prompt: run.prompt,
          stopWhen: isStepCount(maxTurns),
          maxRetries: 0,
          onError: () => {},
          ...(run.signal === undefined ? {} : { abortSignal: run.signal })
        })
        for await (const part of fullStream) {
          if (part.type === "text-delta") {
            if (!run.onText(part.text)) break
          } else if (part.type === "tool-result") run.onResult(part.output as Value)
          else if (part.type === "error") throw part.error
          else run.onEvent()
        }
        return {}
      }
    }
  }
}
