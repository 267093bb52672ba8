/** The chat of the AI SDK as its guide has it: `streamText` over a model, piped to the response. Writes its address. */
import { convertToModelMessages, streamText } from "ai"
import { MockLanguageModelV4 } from "ai/test"
import { createServer } from "node:http"
import { setTimeout } from "node:timers/promises"
import { listen } from "./listen.ts"
import { delta, deltas, gap } from "./script.ts"

const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: undefined, cacheWrite: undefined },
  outputTokens: { total: 1, text: 1, reasoning: undefined }
}

const model = new MockLanguageModelV4({
  doStream: async () => ({
    stream: new ReadableStream({
      async start(controller) {
        controller.enqueue({ type: "stream-start", warnings: [] })
        controller.enqueue({ type: "text-start", id: "t" })
        for (let index = 0; index < deltas; index++) {
          await setTimeout(gap)
          controller.enqueue({ type: "text-delta", id: "t", delta: delta(index) })
        }
        controller.enqueue({ type: "text-end", id: "t" })
        controller.enqueue({ type: "finish", finishReason: { unified: "stop", raw: undefined }, usage })
        controller.close()
      }
    })
  })
})

const server = createServer(async (request, response) => {
  let body = ""
  request.setEncoding("utf8")
  for await (const piece of request) body += piece
  const { messages } = JSON.parse(body)
  const result = streamText({ model, messages: await convertToModelMessages(messages) })
  result.pipeUIMessageStreamToResponse(response)
})

listen(server)
