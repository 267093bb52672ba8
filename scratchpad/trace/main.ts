/**
 * Which of the library's own code one question passes: two turns with one tool call, over real HTTP on this machine, read
 * with the OpenAI Chat adapter. V8 counts each call of each function from the moment at which everything is imported.
 *
 * `npm run trace` prints how many files, functions and calls it was; `npm run trace -- --files` prints them by file, and
 * `npm run trace -- --functions` names the functions as well.
 */
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { Chat, Tool } from "heddle"
import { OpenAiChat } from "heddle/adapters"
import * as http from "node:http"
import { Session } from "node:inspector/promises"
import type { AddressInfo } from "node:net"
import { fileURLToPath } from "node:url"

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

const serve = async (): Promise<http.Server> => {
  let turn = 0
  const server = http.createServer((request, response) => {
    request.resume().on("end", () => {
      response.writeHead(200, { "content-type": "text/event-stream" })
      response.end(`${turns[turn++ % turns.length]!.join("")}data: [DONE]\n\n`)
    })
  })
  await new Promise<void>((listening) => void server.listen(0, "127.0.0.1", listening))
  return server
}

const weather = Tool.make("weather", {
  description: "The weather of a city",
  parameters: { city: Schema.String },
  handler: ({ city }) => Effect.succeed(`4 degrees in ${city}`)
})

interface Passed {
  readonly file: string
  readonly functions: ReadonlyMap<string, number>
}

const root = new URL("../../src/", import.meta.url).href

const passed = async (run: () => Promise<void>): Promise<ReadonlyArray<Passed>> => {
  const session = new Session()
  session.connect()
  await session.post("Profiler.enable")
  await session.post("Profiler.startPreciseCoverage", { callCount: true, detailed: false })
  await run()
  const { result } = await session.post("Profiler.takePreciseCoverage")
  session.disconnect()
  return result.filter(({ url }) => url.startsWith(root)).flatMap(({ functions, url }) => {
    const counts = new Map<string, number>()
    for (const { functionName, ranges: [range] } of functions) {
      // A module's own code has run before the count began, but V8 names it when it is the one range that it knows.
      if (range === undefined || range.count === 0 || range.startOffset === 0) continue
      counts.set(`${functionName === "" ? "(anonymous)" : functionName} at ${range.startOffset}`, range.count)
    }
    return counts.size === 0 ? [] : [{ file: fileURLToPath(url).slice(fileURLToPath(root).length), functions: counts }]
  })
}

const sum = (counts: Iterable<number>): number => [...counts].reduce((total, count) => total + count, 0)

const server = await serve()
const { port } = server.address() as AddressInfo
const layer = OpenAiChat.layer({ baseUrl: `http://127.0.0.1:${port}`, model: "model" }).pipe(
  Layer.provide(FetchHttpClient.layer)
)
let text: string | null = null
const files = await passed(() =>
  Effect.runPromise(
    Chat.run([{ role: "user", content: "What is the weather in Oslo?" }], { tools: [weather] }).pipe(
      Effect.map((result) => void (text = result.finalResponse?.outputText ?? null)),
      Effect.provide(layer)
    )
  )
)
server.close()

if (text !== "Four degrees.") throw new Error(`the run came to ${JSON.stringify(text)}`)

const isDetailed = process.argv.includes("--functions")
if (isDetailed || process.argv.includes("--files")) {
  for (const { file, functions } of [...files].sort((one, other) => one.file < other.file ? -1 : 1)) {
    console.log(`${file}: ${functions.size} functions, ${sum(functions.values())} calls`)
    if (isDetailed) { for (const [name, count] of functions) console.log(`  ${name}: ${count}`) }
  }
}
const functions = sum(files.map((file) => file.functions.size))
const calls = sum(files.flatMap((file) => [...file.functions.values()]))
console.log(`one question, two turns, one call: ${files.length} files, ${functions} functions, ${calls} calls`)
