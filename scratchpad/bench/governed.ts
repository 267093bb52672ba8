/**
 * Budgets and steers side by side, over a model on the loopback interface that asks for a tool and then answers, 50 ms
 * after each request. Prints what twenty agents spend that have money for seven requests, and what becomes of words into
 * a run at each of its boundaries:
 *
 *     npm ci --prefix scratchpad/bench/peers
 *     npm run build && node scratchpad/bench/governed.ts
 */
import { spawn } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import * as http from "node:http"
import type { AddressInfo } from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { versions } from "./implementations.ts"

/** The price of a request in millionths, and the money that there is: for seven of them. */
const price = 1_000
const limit = 7 * price

/** Makes agents under one account. Each returns whether it came to an answer. */
export type Agents = (url: string, limit: number, price: number) => () => Promise<boolean>

/** Makes a run that can be spoken to. */
export type Speaking = (url: string, look: () => Promise<string>) => {
  readonly say: (text: string) => void
  readonly stop: () => void
  readonly run: () => Promise<unknown>
  /** What the library says of the words. */
  readonly told: () => string
}

const words = "Not that"
const pause = (millis: number) => new Promise((resolve) => setTimeout(resolve, millis))

const usage = { prompt_tokens: 10, completion_tokens: 10, total_tokens: 20 }
const call = { id: "c0", type: "function", function: { name: "look", arguments: "{}" } }

/** Serves the model. `heard` is called with each body before it is answered. */
const serve = async (heard: (body: string, index: number) => void = () => {}) => {
  const bodies: Array<string> = []
  const server = http.createServer((request, response) => {
    let text = ""
    request.setEncoding("utf8").on("data", (piece: string) => void (text += piece)).on("end", async () => {
      bodies.push(text)
      const head = { id: `r${bodies.length}`, created: 1, model: "m" }
      heard(text, bodies.length - 1)
      await pause(50)
      const { messages, stream } = JSON.parse(text)
      const isDone = messages.some((message: { readonly role: string }) => message.role === "tool")
      const message = isDone
        ? { role: "assistant", content: "Done." }
        : { role: "assistant", content: null, tool_calls: [call] }
      const finish_reason = isDone ? "stop" : "tool_calls"
      if (stream !== true) {
        response.writeHead(200, { "content-type": "application/json" })
        const choices = [{ index: 0, message, finish_reason }]
        return response.end(JSON.stringify({ ...head, object: "chat.completion", choices, usage }))
      }
      const delta = isDone ? message : { ...message, tool_calls: [{ index: 0, ...call }] }
      const chunk = (choices: ReadonlyArray<object>, more: object = {}) =>
        `data: ${JSON.stringify({ ...head, object: "chat.completion.chunk", choices, ...more })}\n\n`
      response.writeHead(200, { "content-type": "text/event-stream" })
      response.end(
        `${chunk([{ index: 0, delta, finish_reason: null }])}${chunk([{ index: 0, delta: {}, finish_reason }])}${
          chunk([], { usage })
        }data: [DONE]\n\n`
      )
    })
  })
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))
  const close = () => {
    server.closeAllConnections()
    server.close()
  }
  return { bodies, close, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1` }
}

const spend = async (agents: Agents) => {
  const server = await serve()
  const agent = agents(server.url, limit, price)
  const fate = () =>
    Promise.race([
      agent().then((isAnswered) => isAnswered ? "answered" : "ended", () => "failed"),
      pause(10_000).then(() => "hung")
    ])
  const fates = await Promise.all(Array.from({ length: 20 }, fate))
  server.close()
  const count = (fate: string) => fates.filter((other) => other === fate).length
  const requests = server.bodies.length
  return [requests, requests * price, ...["answered", "ended", "failed", "hung"].map(count)]
}

const boundaries = [
  "before the run",
  "while the first reply comes",
  "while the tool runs",
  "while the last reply comes",
  "after the end",
  "while the tool runs, then a stop"
] as const

const speak = async (speaking: Speaking, boundary: typeof boundaries[number]) => {
  let run: ReturnType<Speaking> | undefined
  const at = (here: typeof boundaries[number]) => {
    if (here === boundary) run?.say(words)
  }
  const server = await serve((_, index) => {
    if (index === 0) at("while the first reply comes")
    if (index === 1) at("while the last reply comes")
  })
  const look = async () => {
    at("while the tool runs")
    at("while the tool runs, then a stop")
    if (boundary === "while the tool runs, then a stop") run?.stop()
    await pause(20)
    return "a loom"
  }
  run = speaking(server.url, look)
  at("before the run")
  await run.run().catch(() => undefined)
  at("after the end")
  await pause(50)
  server.close()
  const times = server.bodies.filter((body) => body.includes(words)).length
  return `${times === 0 ? "not delivered" : "delivered"}; told ${run.told()}`
}

/** A process that is killed while its tool runs, behind the words, and the next one. */
const killed = async () => {
  const folder = mkdtempSync(join(tmpdir(), "heddle-governed-"))
  const server = await serve()
  const start = (command: string) =>
    new Promise<string>((resolve) => {
      const child = spawn(process.execPath, [import.meta.filename, command, server.url, join(folder, "s.db")], {
        stdio: ["ignore", "pipe", "inherit"]
      })
      let said = ""
      child.stdout.setEncoding("utf8").on("data", (text: string) => void (said += text))
      child.on("close", () => resolve(said.trim()))
    })
  await start("die")
  const told = await start("resume")
  server.close()
  rmSync(folder, { recursive: true })
  const times = server.bodies.filter((body) => body.split(words).length === 2).length
  return `${times === 0 ? "not delivered" : "delivered"}; told ${told}`
}

const table = (rows: ReadonlyArray<ReadonlyArray<unknown>>) =>
  console.log(`${rows.map((row) => `| ${row.join(" | ")} |`).join("\n")}\n`)

if (import.meta.main) {
  const heddle = await import("./loops/governed.ts")
  const [command, url = "", filename = ""] = process.argv.slice(2)
  if (command !== undefined) {
    const look = async () => {
      if (command !== "die") return "a loom"
      await run.say(words)
      process.kill(process.pid, "SIGKILL")
      return ""
    }
    const run = heddle.kept(url, filename, look)
    console.log(await run.run())
    process.exit(0)
  }
  console.log(`${versions()}\n`)
  const peers: {
    readonly agents: Readonly<Record<string, Agents>>
    readonly speaking: Readonly<Record<string, Speaking>>
  } = await import(`./${"peers/governed.ts"}`)
  const rows: Array<ReadonlyArray<unknown>> = [["", "requests", "money", "answered", "ended", "failed", "hung"]]
  for (const [name, agents] of Object.entries({ Heddle: heddle.agents, ...peers.agents })) {
    rows.push([name, ...await spend(agents)])
  }
  table(rows)
  const all = Object.entries({ Heddle: heddle.speaking, ...peers.speaking })
  const steers: Array<ReadonlyArray<unknown>> = [["words", ...all.map(([name]) => name)]]
  for (const boundary of boundaries) {
    const row: Array<string> = [boundary]
    for (const [, speaking] of all) row.push(await speak(speaking, boundary))
    steers.push(row)
  }
  steers.push(["while the tool runs, then `kill -9`, and a new start", await killed()])
  table(steers)
  process.exit(0)
}
