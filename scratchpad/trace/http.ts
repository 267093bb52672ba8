/** A model over real HTTP on this machine: it asks for one tool call, then answers, in the protocol of OpenAI Chat. */
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import { OpenAiChat } from "heddle/adapters"
import { createServer } from "node:http"
import type { AddressInfo } from "node:net"

const chunk = (delta: object, finish_reason: string | null = null) =>
  `data: ${
    JSON.stringify({
      id: "chatcmpl-1",
      object: "chat.completion.chunk",
      model: "model",
      choices: [{ index: 0, delta, finish_reason }]
    })
  }\n\n`

const call = (fragment: object) => chunk({ tool_calls: [{ index: 0, ...fragment }] })

const turns = [
  [
    chunk({ role: "assistant", content: "" }),
    call({ id: "call_1", type: "function", function: { name: "weather", arguments: "" } }),
    call({ function: { arguments: "{\"city\":" } }),
    call({ function: { arguments: "\"Oslo\"}" } }),
    chunk({}, "tool_calls")
  ],
  [
    chunk({ role: "assistant", content: "" }),
    chunk({ content: "Four " }),
    chunk({ content: "degrees." }),
    chunk({}, "stop")
  ]
]

let turn = 0
const server = createServer((request, response) => {
  request.resume().on("end", () => {
    response.writeHead(200, { "content-type": "text/event-stream" })
    response.end(`${turns[turn++ % turns.length]!.join("")}data: [DONE]\n\n`)
  })
})
await new Promise<void>((listening) => void server.listen(0, "127.0.0.1", listening))
const { port } = server.address() as AddressInfo

export const model = OpenAiChat.layer({ baseUrl: `http://127.0.0.1:${port}`, model: "model" }).pipe(
  Layer.provide(FetchHttpClient.layer)
)
