/** Processes that own sessions, and the bank that they charge: started, asked to leave, killed, frozen, and told the time. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import type { Ledger } from "./bank.ts"
import type { Order, Word } from "./program.ts"
import type { Place } from "./work.ts"

const cache = path.resolve(import.meta.dirname, "../../../node_modules/.cache/heddle-leave")

const released = <A>(make: () => A, kill: (made: A) => unknown) =>
  Effect.acquireRelease(Effect.sync(make), (made) => Effect.sync(() => kill(made)))

/** A folder that is gone with the scope. */
export const folder: Effect.Effect<string, never, Scope.Scope> = released(
  () => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-leave-")),
  (folder) => fs.rmSync(folder, { recursive: true, force: true, maxRetries: 5 })
)

/** A bank that is a process. */
export interface Bank {
  readonly address: string
  /** All that it was asked for. */
  readonly ledger: Effect.Effect<Ledger>
  /** Ends the charges that it holds. */
  readonly end: Effect.Effect<void>
}

/** Starts a bank whose charges take so many milliseconds, or until they are ended. It is killed with the scope. */
export const bank = (time: number | "held"): Effect.Effect<Bank, never, Scope.Scope> =>
  Effect.gen(function*() {
    const child = yield* released(
      () =>
        spawn(process.execPath, [path.join(import.meta.dirname, "bank.ts"), `${time}`], {
          stdio: ["pipe", "pipe", "inherit"]
        }),
      (child) => child.kill("SIGKILL")
    )
    const [port] = yield* Effect.promise(() => once(child.stdout.setEncoding("utf8"), "data"))
    const address = `http://127.0.0.1:${String(port).trim()}`
    const ask = (path: string) =>
      Effect.promise(async () => await (await fetch(`${address}${path}`, { method: "POST", body: "{}" })).json() as any)
    return { address, ledger: ask("/ledger"), end: Effect.asVoid(ask("/end")) }
  })

/** How a process ended. */
export interface Ended {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
}

/** A process that owns sessions. */
export interface Owner {
  readonly pid: number
  readonly signal: (signal: NodeJS.Signals) => void
  /** Gives it an order, and waits until it is carried out. */
  readonly order: (order: Order) => Effect.Effect<void>
  readonly ended: Effect.Effect<Ended>
  /** How many shards a runner has, as it said last. */
  readonly shards: () => number
}

const ownerOf = (child: ChildProcess): Owner & { readonly ready: Effect.Effect<void> } => {
  let shards = 0
  const done: Array<() => void> = []
  const ended = new Promise<Ended>((resolve) => {
    child.once("exit", (code, signal) => {
      shards = 0
      for (const resume of done.splice(0)) resume()
      resolve({ code, signal })
    })
  })
  const ready = new Promise<void>((resolve, reject) => {
    child.on("message", (word: Word) => {
      if (word === "ready") resolve()
      else if (word === "done") done.shift()?.()
      else shards = word
    })
    void ended.then((how) => reject(new Error(`the process ended before it was ready: ${JSON.stringify(how)}`)))
  })
  // A process may end long after it was ready.
  ready.catch(() => {})
  return {
    pid: child.pid!,
    signal: (signal) => void child.kill(signal),
    order: (order) =>
      Effect.callback((resume) => {
        if (!child.connected) return resume(Effect.void)
        done.push(() => resume(Effect.void))
        child.send(order, () => {})
      }),
    ended: Effect.promise(() => ended),
    shards: () => shards,
    ready: Effect.promise(() => ready)
  }
}

/** Starts a process, which is killed with the scope, and waits until it is ready. */
export const start = (
  program: string,
  place: Place,
  environment: Readonly<Record<string, string>> = {}
): Effect.Effect<Owner, never, Scope.Scope> =>
  Effect.gen(function*() {
    const child = yield* released(
      () =>
        spawn(process.execPath, ["--conditions=source", program, JSON.stringify(place)], {
          stdio: ["ignore", "inherit", "inherit", "ipc"],
          env: { ...process.env, NODE_COMPILE_CACHE: cache, ...environment }
        }),
      (child) => child.kill("SIGKILL")
    )
    const owner = ownerOf(child)
    yield* owner.ready
    return owner
  })
