/**
 * The sessions at fifty deltas a second that one process serves before the 99th percentile of their lag passes 100 ms,
 * or a model that waits for its reader says fewer than forty: `npm run bench -- --served`. The chat of the AI SDK is
 * measured beside it, and a stream of it without a model, on the same script, with clients in a process of their own.
 */
import { fork, spawn } from "node:child_process"
import { once } from "node:events"
import { join } from "node:path"

const bound = 100
/** Fewest deltas per second of a session: a timer of 20 ms alone gives about 47. */
const slowest = 40
const folder = import.meta.dirname

interface Seen {
  readonly p50: number
  readonly p99: number
  readonly rate: number
  readonly lost: number
  readonly twice: number
}

interface Load extends Seen {
  readonly sessions: number
  /** Processor time of the server, in milliseconds. */
  readonly cpu: number
  /** Resident memory of the server at the end, in MB, and for each session over that of an idle server, in KB. */
  readonly memory: number
  readonly each: number
}

const clients = async (url: string, sessions: number): Promise<Seen> => {
  const client = spawn(process.execPath, [join(folder, "client.ts"), url, String(sessions)], {
    stdio: ["ignore", "pipe", "inherit"]
  })
  let text = ""
  client.stdout.on("data", (piece) => (text += piece))
  await once(client, "close")
  return JSON.parse(text)
}

/** Measures a server with so many sessions, in a process of its own. */
const load = async (server: string, sessions: number): Promise<Load> => {
  const child = fork(join(folder, `${server}.ts`), { execArgv: [], stdio: ["ignore", "ignore", "inherit", "ipc"] })
  const [{ url }] = await once(child, "message")
  await clients(url, 2)
  const usage = async (): Promise<{ readonly cpu: number; readonly memory: number }> => {
    child.send("usage")
    const [figures] = await once(child, "message")
    return figures
  }
  const before = await usage()
  const seen = await clients(url, sessions)
  const after = await usage()
  child.kill("SIGKILL")
  return {
    ...seen,
    sessions,
    cpu: after.cpu - before.cpu,
    memory: after.memory / 1e6,
    each: (after.memory - before.memory) / sessions / 1e3
  }
}

/** Finds the most sessions within the bound, in steps of a quarter and then of an eighth. */
const most = async (server: string): Promise<ReadonlyArray<Load>> => {
  const loads: Array<Load> = []
  const holds = async (sessions: number) => {
    const seen = await load(server, sessions)
    loads.push(seen)
    return seen.p99 <= bound && seen.rate >= slowest
  }
  let [low, high] = [0, 100]
  while (await holds(high)) [low, high] = [high, high * 2]
  while (high - low > Math.max(10, low / 8)) {
    const middle = Math.round((low + high) / 20) * 10
    if (await holds(middle)) low = middle
    else high = middle
  }
  return loads.sort((left, right) => left.sessions - right.sessions)
}

const row = (cells: ReadonlyArray<unknown>): string => `| ${cells.join(" | ")} |`

const servers = [["Heddle", "heddle"], ["AI SDK", "aiSdk"], ["AI SDK, no model", "aiSdkStream"]] as const

/** Measures the servers and prints a table. */
export const measure = async (): Promise<void> => {
  console.log("### W-08 sessions of one server\n")
  console.log(row(["server", "sessions", "p50 ms", "p99 ms", "per s", "lost", "twice", "CPU ms", "MB", "KB a session"]))
  console.log(row(["---", ...Array.from({ length: 9 }, () => "--:")]))
  for (const [name, server] of servers) {
    for (const { cpu, each, lost, memory, p50, p99, rate, sessions, twice } of await most(server)) {
      console.log(
        row([
          name,
          sessions,
          p50,
          p99,
          rate.toFixed(0),
          lost,
          twice,
          cpu.toFixed(0),
          memory.toFixed(0),
          each.toFixed(1)
        ])
      )
    }
  }
}
