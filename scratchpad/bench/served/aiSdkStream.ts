/** A stream of the AI SDK that a handler writes itself, without a model and without steps. Writes its address. */
import { createUIMessageStream, pipeUIMessageStreamToResponse } from "ai"
import { createServer } from "node:http"
import { setTimeout } from "node:timers/promises"
import { delta, deltas, gap } from "./script.ts"

const server = createServer((request, response) => {
  request.resume()
  const stream = createUIMessageStream({
    execute: async ({ writer }) => {
      writer.write({ type: "start" })
      writer.write({ type: "start-step" })
      writer.write({ type: "text-start", id: "t" })
      for (let index = 0; index < deltas; index++) {
        await setTimeout(gap)
        writer.write({ type: "text-delta", id: "t", delta: delta(index) })
      }
      writer.write({ type: "text-end", id: "t" })
      writer.write({ type: "finish-step" })
      writer.write({ type: "finish" })
    }
  })
  pipeUIMessageStreamToResponse({ response, stream })
})

process.on("message", () => {
  const { system, user } = process.cpuUsage()
  process.send?.({ cpu: (system + user) / 1_000, memory: process.memoryUsage.rss() })
})

server.listen(0, "127.0.0.1", () => {
  const address = server.address()
  const port = typeof address === "object" && address !== null ? address.port : 0
  process.send?.({ url: `http://127.0.0.1:${port}/` })
})
