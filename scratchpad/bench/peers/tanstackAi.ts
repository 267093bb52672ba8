/** TanStack AI: `chat` over a text adapter of our own, which speaks its events. */
import { chat, maxIterations, type StreamChunk, toolDefinition } from "@tanstack/ai"
import { z } from "zod"
import type { Arguments, Implementation, Run, ToolSpecification, Value } from "../loop.ts"
import type { Chunk, Reply } from "../model.ts"

let replies = 0

const event = (chunk: Chunk, messageId: string): object => {
  const timestamp = Date.now()
  switch (chunk.type) {
    case "text":
      return { type: "TEXT_MESSAGE_CONTENT", messageId, delta: chunk.delta, timestamp }
    case "callStarted":
      return {
        type: "TOOL_CALL_START",
        toolCallId: chunk.id,
        toolCallName: chunk.name,
        toolName: chunk.name,
        timestamp
      }
    case "callArguments":
      return { type: "TOOL_CALL_ARGS", toolCallId: chunk.id, delta: chunk.fragment, timestamp }
    case "callCompleted":
      return { type: "TOOL_CALL_END", toolCallId: chunk.id, timestamp }
  }
}

/** One reply as the events of an adapter. */
async function* events(reply: Reply): AsyncGenerator<object> {
  const runId = `reply_${replies++}`
  const messageId = `message_${runId}`
  const ids = { runId, threadId: "thread" }
  yield { type: "RUN_STARTED", ...ids, timestamp: Date.now() }
  let isTextOpen = false
  let finishReason = "stop"
  for await (const read of reply) {
    for (const chunk of read) {
      if (chunk.type === "callStarted") finishReason = "tool_calls"
      if (chunk.type === "text" && !isTextOpen) {
        isTextOpen = true
        yield { type: "TEXT_MESSAGE_START", messageId, role: "assistant", timestamp: Date.now() }
      }
      yield event(chunk, messageId)
    }
  }
  if (isTextOpen) yield { type: "TEXT_MESSAGE_END", messageId, timestamp: Date.now() }
  const usage = { promptTokens: 1, completionTokens: 1, totalTokens: 2 }
  yield { type: "RUN_FINISHED", ...ids, finishReason, usage, timestamp: Date.now() }
}

const types = { number: z.number, string: z.string }

const toTool = ({ body, description, name, parameters }: ToolSpecification) =>
  toolDefinition({
    name,
    description,
    inputSchema: z.object(
      Object.fromEntries(Object.entries(parameters).map(([key, type]) => [key, types[type]()]))
    )
  }).server(async (args, context) =>
    body.type === "synchronous"
      ? body.call(args as Arguments)
      : body.call(args as Arguments, context?.abortSignal)
  )

/** The library takes a controller and not a signal. */
const controllerOf = ({ signal }: Run): AbortController => {
  const controller = new AbortController()
  signal?.addEventListener("abort", () => controller.abort(signal.reason), { once: true })
  return controller
}

const adapter = ({ model }: Run) => ({
  kind: "text" as const,
  name: "scripted",
  model: "scripted",
  "~types": {} as never,
  chatStream: ({ messages }: { readonly messages: ReadonlyArray<unknown> }) =>
    events(model.request(messages.length)) as never,
  structuredOutput: () => Promise.reject(new Error("this model only streams"))
})

export const implementation: Implementation = {
  name: "TanStack AI",
  kind: "peer",
  guarantees: [],
  make: (specifications, maxTurns) => {
    const tools = specifications.map(toTool)
    return {
      run: async (run) => {
        const stream: AsyncIterable<StreamChunk> = chat({
          adapter: adapter(run),
          messages: [{ role: "user", content: run.prompt }],
          tools,
          agentLoopStrategy: maxIterations(maxTurns),
          abortController: controllerOf(run)
        })
        for await (const event of stream) {
          if (event.type === "TEXT_MESSAGE_CONTENT") {
            if (!run.onText(event.delta)) break
          } else if (event.type === "TOOL_CALL_RESULT") run.onResult(JSON.parse(String(event.content)) as Value)
          else if (event.type === "RUN_ERROR" && run.signal?.aborted !== true) throw new Error(event.message)
          else run.onEvent()
        }
        return {}
      }
    }
  }
}
