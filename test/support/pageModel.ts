/**
 * The model behind the examples that reach a provider by the environment: a server on the loopback interface that speaks
 * Chat Completions, calls the first tool it is offered once, and then answers in words.
 */
import * as http from "node:http"
import type { AddressInfo } from "node:net"

const settings = ["OPENAI_API_KEY", "OPENAI_MODEL", "OPENAI_BASE_URL"] as const

/** The chunks of a reply to a request. */
const chunksOf = (body: any): ReadonlyArray<object> => {
  const [tool] = body.tools ?? []
  const isAnswered = body.messages.some((message: any) => message.role === "tool")
  const end = (finish_reason: string) => ({ choices: [{ index: 0, delta: {}, finish_reason }] })
  if (tool === undefined || isAnswered) {
    const content = isAnswered ? "It is 7 °C in Oslo." : "Hello."
    return [{ choices: [{ index: 0, delta: { role: "assistant", content } }] }, end("stop")]
  }
  const call = { index: 0, id: "call_1", function: { name: tool.function.name, arguments: `{"city":"Oslo"}` } }
  return [{ choices: [{ index: 0, delta: { tool_calls: [call] } }] }, end("tool_calls")]
}

/** Starts the server and points the environment to it. The effect of the result is to undo both. */
export const start = async (): Promise<() => void> => {
  const server = http.createServer((request, response) => {
    let body = ""
    request.setEncoding("utf8").on("data", (text: string) => void (body += text)).on("end", () => {
      response.setHeader("content-type", "text/event-stream")
      for (const chunk of chunksOf(JSON.parse(body))) response.write(`data: ${JSON.stringify(chunk)}\n\n`)
      response.end("data: [DONE]\n\n")
    })
  })
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))
  const before = settings.map((name) => [name, process.env[name]] as const)
  process.env["OPENAI_API_KEY"] = "sk-test"
  process.env["OPENAI_BASE_URL"] = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
  delete process.env["OPENAI_MODEL"]
  return () => {
    for (const [name, value] of before) {
      if (value === undefined) delete process.env[name]
      else process.env[name] = value
    }
    server.closeAllConnections()
    server.close()
  }
}
