/** Worker processes over one store: started, killed, frozen and woken. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { logOf, type Place } from "./work.ts"

const program = fileURLToPath(new URL("./worker.ts", import.meta.url))
const cache = path.resolve("node_modules/.cache/heddle-durable")

/** A process that has started. */
export interface Worker {
  readonly pid: number
  readonly signal: (signal: NodeJS.Signals) => void
  /** Tells it to begin. */
  readonly tell: () => void
  /** What it says next. */
  readonly said: Effect.Effect<string>
  /** Waits for its end. */
  readonly ended: Effect.Effect<unknown>
}

const workerOf = (child: ChildProcess): Worker => {
  const words: Array<string> = []
  const ended = once(child, "exit")
  let onWord: ((word: string) => void) | undefined
  child.on("message", (word) => {
    const listener = onWord
    onWord = undefined
    if (listener === undefined) words.push(String(word))
    else listener(String(word))
  })
  return {
    pid: child.pid!,
    ended: Effect.promise(() => ended),
    signal: (signal) => void child.kill(signal),
    tell: () => void child.send("go"),
    said: Effect.callback((resume) => {
      const word = words.shift()
      if (word === undefined) onWord = (word) => resume(Effect.succeed(word))
      else resume(Effect.succeed(word))
    })
  }
}

/** Starts a process, which is killed with the scope, and waits until it is ready. */
export const start = (place: Place): Effect.Effect<Worker, never, Scope.Scope> =>
  Effect.gen(function*() {
    const child = yield* Effect.acquireRelease(
      Effect.sync(() =>
        spawn(process.execPath, ["--conditions=source", program, JSON.stringify(place)], {
          stdio: ["ignore", "inherit", "inherit", "ipc"],
          env: { ...process.env, NODE_COMPILE_CACHE: cache }
        })
      ),
      (child) => Effect.sync(() => child.kill("SIGKILL"))
    )
    const worker = workerOf(child)
    yield* worker.said
    return worker
  })

/** A folder that is gone with the scope. */
export const folder: Effect.Effect<string, never, Scope.Scope> = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-durable-"))),
  (folder) => Effect.sync(() => fs.rmSync(folder, { recursive: true, force: true }))
)

/** A world without acts. */
export const world: Effect.Effect<string, never, Scope.Scope> = Effect.map(folder, (folder) => {
  const file = path.join(folder, "world.jsonl")
  fs.writeFileSync(file, "")
  fs.writeFileSync(logOf(file), "")
  return file
})
