/**
 * Programs for the same task on Heddle and on other libraries, against one server on the loopback interface that speaks
 * Chat Completions. Prints a table for typed answers and one for a first model that is down:
 *
 *     npm ci --prefix scratchpad/bench/peers
 *     npm run build && node scratchpad/bench/sideBySide.ts
 */
import { readFileSync } from "node:fs"
import * as http from "node:http"
import type { AddressInfo } from "node:net"
import { join } from "node:path"
import { versions } from "./implementations.ts"

/** What became of an extraction. */
export interface Extraction {
  readonly partials: ReadonlyArray<unknown>
  readonly value?: unknown
  readonly error?: string
}

/** What became of a question to two models. `firstAt` is the time of the first word. */
export interface Answered {
  readonly said: string
  readonly firstAt: number | undefined
  readonly error?: string
}

interface Asking {
  readonly ask: (first: string, second: string) => Promise<Answered>
}

type Respond = (body: any, response: http.ServerResponse, index: number) => unknown

/** Serves until `close`. Counts the requests. */
const serve = async (respond: Respond) => {
  let count = 0
  const server = http.createServer((request, response) => {
    let text = ""
    request.setEncoding("utf8").on("data", (piece: string) => void (text += piece)).on("end", () => {
      void respond(JSON.parse(text), response, count++)
    })
  })
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))
  const close = () => {
    server.closeAllConnections()
    server.close()
  }
  return { close, count: () => count, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1` }
}

const chunk = (delta: object, finish_reason: string | null = null) =>
  `data: ${
    JSON.stringify({
      id: "r",
      object: "chat.completion.chunk",
      created: 1,
      model: "m",
      choices: [{ index: 0, delta, finish_reason }]
    })
  }\n\n`

const end = "data: [DONE]\n\n"

const pause = (millis: number) => new Promise((resolve) => setTimeout(resolve, millis))

const begin = (response: http.ServerResponse) =>
  response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders()

const calling = (name: string, args: string, finish = true) => [
  chunk({
    role: "assistant",
    tool_calls: [{ index: 0, id: `c-${name}`, type: "function", function: { name, arguments: "" } }]
  }),
  ...(args.match(/[^]{1,4}/g) ?? []).map((piece) =>
    chunk({ tool_calls: [{ index: 0, function: { arguments: piece } }] })
  ),
  ...(finish ? [chunk({}, "tool_calls"), end] : [])
]

const saying = (text: string) => [
  chunk({ role: "assistant", content: "" }),
  ...(text.match(/[^]{1,4}/g) ?? []).map((content) => chunk({ content })),
  chunk({}, "stop"),
  end
]

const right = { customer: "Ann of the Hill", ids: ["b7", "b9"], count: 2 }

/** A model that calls two tools in turn and then answers. `cut` is the share of the answer after which it breaks off. */
const clerk = (cut: number, answers: ReadonlyArray<unknown>): Respond => {
  let asked = 0
  return async (body, response) => {
    const done =
      body.messages.filter((message: any) => message.role === "tool" && /^c-(find|stock)$/.test(message.tool_call_id))
        .length
    begin(response)
    if (done < 2) {
      return response.end((done === 0 ? calling("find", `{"title":"Emma"}`) : calling("stock", `{"id":"b7"}`)).join(""))
    }
    const answer = JSON.stringify(answers[Math.min(asked++, answers.length - 1)])
    const byTool = body.tools?.some((tool: any) => tool.function.name === "final_answer") === true
    const chunks = byTool ? calling("final_answer", answer) : saying(answer)
    for (const piece of chunks.slice(0, Math.ceil(chunks.length * cut))) {
      response.write(piece)
      await pause(60)
    }
    if (cut < 1) response.destroy()
    else response.end()
  }
}

const linesOf = (file: string): number => {
  const lines = readFileSync(join(import.meta.dirname, file), "utf8").split("\n").map((line) => line.trim())
  return lines.slice(lines.indexOf("// begin") + 1, lines.indexOf("// end")).length
}

const extractions = [["Heddle", "loops/extraction.ts"], ["AI SDK", "peers/extraction.ts"]] as const

const wholeOf = ({ error, value }: Extraction) =>
  error ?? (JSON.stringify(value) === JSON.stringify(right) ? "value" : `another value: ${JSON.stringify(value)}`)

const extracted = async (file: string) => {
  const { extract }: { readonly extract: (url: string) => Promise<Extraction> } = await import(`./${file}`)
  const run = async (cut: number, answers: ReadonlyArray<unknown> = [right]) => {
    const server = await serve(clerk(cut, answers))
    const result = await extract(server.url)
    server.close()
    return { result, count: server.count() }
  }
  const whole = await run(1)
  const wrong = await run(1, [{ ...right, count: "two" }, right])
  const cuts = await Promise.all([1, 2, 3, 4, 5, 6, 7, 8, 9].map((tenths) => run(tenths / 10)))
  const fates = cuts.map(({ result }) => `${wholeOf(result)} (${result.partials.length} parts)`)
  return [
    linesOf(file),
    whole.count,
    whole.result.partials.length,
    wholeOf(whole.result),
    `${wholeOf(wrong.result)} (${wrong.count} requests)`,
    ...fates
  ]
}

const second: Respond = async (_, response) => {
  begin(response)
  response.end(saying("Hello from the second.").join(""))
}

const refusing = (status: number, headers: http.OutgoingHttpHeaders, type: string): Respond => (_, response) =>
  response.writeHead(status, { "content-type": "application/json", ...headers }).end(
    JSON.stringify({ error: { message: type, type, code: type } })
  )

/** The ways in which the first model is down. */
const ways: ReadonlyArray<readonly [name: string, respond: Respond | undefined]> = [
  ["nothing listens", undefined],
  ["503", refusing(503, {}, "server_error")],
  ["429, `retry-after: 30`", refusing(429, { "retry-after": "30" }, "rate_limit_exceeded")],
  ["401", refusing(401, {}, "invalid_api_key")],
  ["it says nothing, ever", () => {}],
  ["it closes before the first word", async (_, response) => {
    begin(response)
    response.write(chunk({ role: "assistant", content: "" }))
    await pause(20)
    response.destroy()
  }],
  ["it closes after two words", async (_, response) => {
    begin(response)
    response.write(chunk({ role: "assistant", content: "Hello from " }))
    await pause(20)
    response.destroy()
  }]
]

const patience = 180_000

const asked = async (ask: Asking["ask"], respond: Respond | undefined) => {
  const [down, up] = await Promise.all([serve(respond ?? (() => {})), serve(second)])
  if (respond === undefined) down.close()
  const from = performance.now()
  const late = pause(patience).then((): Answered => ({ said: "", firstAt: undefined, error: "nothing for 3 minutes" }))
  const { error, firstAt, said } = await Promise.race([ask(down.url, up.url), late])
  const waited = ((firstAt ?? performance.now()) - from) / 1000
  if (respond !== undefined) down.close()
  up.close()
  const requests = respond === undefined ? "–" : down.count()
  return `${error === undefined ? "second" : `error: ${error}`}${
    error !== undefined && said !== "" ? ` after ${JSON.stringify(said)}` : ""
  }; ${requests} + ${up.count()}; ${waited.toFixed(1)} s`
}

const table = (rows: ReadonlyArray<ReadonlyArray<unknown>>) =>
  console.log(`${rows.map((row) => `| ${row.join(" | ")} |`).join("\n")}\n`)

if (import.meta.main) {
  console.log(`${versions()}\n`)
  const columns: Array<ReadonlyArray<unknown>> = []
  for (const [, file] of extractions) columns.push(await extracted(file))
  const names = ["lines", "requests", "parts", "the answer", "an answer that does not fit, then one that does"]
  const cuts = [1, 2, 3, 4, 5, 6, 7, 8, 9].map((tenths) => `cut at ${tenths}/10`)
  table([
    ["", ...extractions.map(([name]) => name)],
    ...[...names, ...cuts].map((name, index) => [name, ...columns.map((column) => column[index])])
  ])
  const heddle: Asking = await import("./loops/down.ts")
  const langchain: Asking & { readonly askOnce: Asking["ask"] } = await import(`./${"peers/down.ts"}`)
  const rows = await Promise.all(ways.map(async ([name, respond]) => [
    name,
    ...await Promise.all([heddle.ask, langchain.ask, langchain.askOnce].map((ask) => asked(ask, respond)))
  ]))
  table([["the first model", "Heddle", "LangChain", "LangChain, `maxRetries: 0`"], ...rows])
  process.exit(0)
}
