/**
 * Budgets and steers side by side, over a model on the loopback interface that asks for a tool and then answers, 50 ms
 * after each request. Prints what twenty sub-agents of one parent spend that have money for seven requests, and what becomes
 * of words into a run at each of its boundaries:
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

/** The price of a request in millionths, and the money that there is: for two of the parent, and seven below it. */
const price = 1_000
const limit = 9 * price

/** What became of a sub-agent. */
export type Fate = "answered" | "ended" | "failed"

/** What the parent is asked. */
const errand = "Ask twenty"

/** A parent and its twenty sub-agents. */
interface Tree {
  readonly url: string
  readonly errand: string
  readonly limit: number
  readonly price: number
  readonly ended: (fate: Fate) => void
}

/** Runs a parent and its sub-agents under one account, and returns whether the parent came to an answer. */
export type Agents = (tree: Tree) => Promise<boolean>

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
const callOf = (name: string, index: number) => ({
  id: `c${index}`,
  type: "function",
  function: { name, arguments: "{}" }
})
const look = [callOf("look", 0)]
const twenty = Array.from({ length: 20 }, (_, index) => callOf("agent", index))

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
      const calls = text.includes(errand) ? twenty : look
      const message = isDone
        ? { role: "assistant", content: "Done." }
        : { role: "assistant", content: null, tool_calls: calls }
      const finish_reason = isDone ? "stop" : "tool_calls"
      if (stream !== true) {
        response.writeHead(200, { "content-type": "application/json" })
        const choices = [{ index: 0, message, finish_reason }]
        return response.end(JSON.stringify({ ...head, object: "chat.completion", choices, usage }))
      }
      const delta = isDone
        ? message
        : { ...message, tool_calls: calls.map((call, index) => ({ index, ...call })) }
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
  const fates: Array<Fate> = []
  const parent = await Promise.race([
    agents({ url: server.url, errand, limit, price, ended: (fate) => void fates.push(fate) }).then(
      (isAnswered) => isAnswered ? "answers" : "ends without an answer",
      () => "fails"
    ),
    pause(20_000).then(() => "hangs")
  ])
  server.close()
  const count = (fate: Fate) => fates.filter((other) => other === fate).length
  const requests = server.bodies.length
  const counts = (["answered", "ended", "failed"] as const).map(count)
  // What was begun and has no fate, or was never begun.
  return [requests, requests * price, ...counts, 20 - fates.length, parent]
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
const killed = async (name: string) => {
  const folder = mkdtempSync(join(tmpdir(), "heddle-governed-"))
  const server = await serve()
  const start = (command: string) =>
    new Promise<string>((resolve) => {
      const args = [...process.execArgv, import.meta.filename, command, name, server.url, join(folder, "s.db")]
      const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] })
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

/** A run that another start goes on with, as far as the library can. One in memory begins anew. */
const keptOf = (speaking: Speaking) => (url: string, _: string, look: () => Promise<string>) => {
  const run = speaking(url, look)
  return { say: async (text: string) => run.say(text), run: () => run.run().then(() => run.told()) }
}

if (import.meta.main) {
  const heddle = await import("./loops/governed.ts")
  const peers: {
    readonly agents: Readonly<Record<string, Agents>>
    readonly speaking: Readonly<Record<string, Speaking>>
  } = await import(`./${"peers/governed.ts"}`)
  const [command, name = "", url = "", filename = ""] = process.argv.slice(2)
  if (command !== undefined) {
    const look = async () => {
      if (command !== "die") return "a loom"
      await run.say(words)
      process.kill(process.pid, "SIGKILL")
      return ""
    }
    const speaking = peers.speaking[name]
    const run = (speaking === undefined ? heddle.kept : keptOf(speaking))(url, filename, look)
    console.log(await run.run())
    process.exit(0)
  }
  console.log(`${versions()}\n`)
  const rows: Array<ReadonlyArray<unknown>> = [
    ["", "requests", "money", "answered", "ended", "failed", "hung", "the parent"]
  ]
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
  const last = ["while the tool runs, then `kill -9`, and a new start"]
  for (const [name] of all) last.push(await killed(name))
  steers.push(last)
  table(steers)
  process.exit(0)
}
