/** A stream of the AI SDK that a handler writes itself, without a model and without steps. Writes its address. */
import { createUIMessageStream, pipeUIMessageStreamToResponse } from "ai"
import { createServer } from "node:http"
import { setTimeout } from "node:timers/promises"
import { listen } from "./listen.ts"
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

listen(server)
