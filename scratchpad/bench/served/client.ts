/** Clients of a server, in a process of their own: `client.ts URL SESSIONS`. Writes what they saw as one line of JSON. */
import { Agent, request } from "node:http"
import { deltas, read } from "./script.ts"

const [url = "", count = "1"] = process.argv.slice(2)
const agent = new Agent({ maxSockets: Infinity })
const lags: Array<number> = []
/** Deltas per second of each session. */
const rates: Array<number> = []
let [lost, twice] = [0, 0]

const body = (id: string) =>
  JSON.stringify({
    id,
    trigger: "submit-message",
    messages: [{ id: "u1", role: "user", parts: [{ type: "text", text: "Go" }] }]
  })

const talk = (id: string): Promise<void> =>
  new Promise((resolve, reject) => {
    const seen = new Set<number>()
    let [first, last] = [0, 0]
    const sent = request(
      url,
      { agent, method: "POST", headers: { "content-type": "application/json" } },
      (response) => {
        if (response.statusCode !== 200) reject(new Error(`status ${response.statusCode}`))
        let rest = ""
        response.setEncoding("utf8")
        response.on("data", (text: string) => {
          const now = Date.now()
          rest += text
          const end = rest.lastIndexOf("\n\n")
          if (end < 0) return
          for (const { at, index } of read(rest.slice(0, end))) {
            if (seen.size === 0) first = at
            last = at
            if (seen.has(index)) twice++
            seen.add(index)
            lags.push(now - at)
          }
          rest = rest.slice(end)
        })
        response.on("end", () => {
          lost += deltas - seen.size
          rates.push((1_000 * (deltas - 1)) / (last - first))
          resolve()
        })
        response.on("error", reject)
      }
    )
    sent.on("error", reject)
    sent.end(body(id))
  })

const ids = Array.from({ length: Number(count) }, (_, index) => `s${process.pid}-${index}`)
// Sessions begin over the time of half a second, as they do not all begin at once anywhere.
await Promise.all(ids.map(async (id, index) => {
  await new Promise((resolve) => setTimeout(resolve, (500 * index) / ids.length))
  await talk(id)
}))
lags.sort((left, right) => left - right)
console.log(JSON.stringify({
  p50: lags[Math.floor(lags.length * 0.5)],
  p99: lags[Math.floor(lags.length * 0.99)],
  rate: rates.reduce((sum, rate) => sum + rate, 0) / rates.length,
  lost,
  twice
}))
process.exit()
