/**
 * A cluster of real processes over a real Postgres: runners that are started, killed, frozen and woken, and a client in the
 * process of the test.
 */
import * as NodeClusterHttp from "@effect/platform-node/NodeClusterHttp"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import { Cluster, SessionClient } from "heddle/cluster"
import { type ChildProcess, spawn } from "node:child_process"
import * as fs from "node:fs"
import * as net from "node:net"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { type Place, stored } from "./work.ts"

const runner = new URL("./runner.ts", import.meta.url)
const reader = new URL("./reader.ts", import.meta.url)
const cache = path.resolve("node_modules/.cache/heddle-cluster")

/** A port that nothing listens on. */
export const freePort: Effect.Effect<number> = Effect.callback((resume) => {
  const server = net.createServer().listen(0, "127.0.0.1", () => {
    const { port } = server.address() as net.AddressInfo
    server.close(() => resume(Effect.succeed(port)))
  })
})

/** A runner. */
export interface Runner {
  readonly pid: number
  readonly signal: (signal: NodeJS.Signals) => void
  /** How many shards it has, as it said last. */
  readonly shards: () => number
  /** How many claims it lost in the last five minutes, as it said last. */
  readonly lostClaims: () => number
  /** Waits until it exits. */
  readonly ended: Effect.Effect<void>
}

const runnerOf = (child: ChildProcess): Runner => {
  let shards = 0
  let lostClaims = 0
  child.on("message", (said) => {
    ;({ lostClaims, shards } = said as { readonly lostClaims: number; readonly shards: number })
  })
  const ended = Latch.makeUnsafe()
  child.once("exit", () => {
    shards = 0
    ended.openUnsafe()
  })
  return {
    pid: child.pid!,
    signal: (signal) => void child.kill(signal),
    shards: () => shards,
    lostClaims: () => lostClaims,
    ended: ended.await
  }
}

/** Waits until each runner has shards, and all shards are somewhere: from then on they do not move by themselves. */
export const settled = (runners: ReadonlyArray<Runner>): Effect.Effect<void> =>
  Effect.sync(() => runners.map(({ shards }) => shards())).pipe(
    Effect.repeat({
      schedule: Schedule.spaced("20 millis"),
      until: (counts) => counts.every((count) => count > 0) && counts.reduce((sum, count) => sum + count) === 300
    }),
    Effect.asVoid
  )

/** Starts a program as a process, which is killed with the scope. */
const spawned = (program: URL, given: object): Effect.Effect<ChildProcess, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() =>
      spawn(process.execPath, ["--conditions=source", fileURLToPath(program), JSON.stringify(given)], {
        stdio: ["ignore", "inherit", "inherit", "ipc"],
        env: { ...process.env, NODE_COMPILE_CACHE: cache }
      })
    ),
    (child) => Effect.sync(() => child.kill("SIGKILL"))
  )

/** Starts a runner. */
export const start = (place: Omit<Place, "port">): Effect.Effect<Runner, never, Scope.Scope> =>
  Effect.flatMap(freePort, (port) => Effect.map(spawned(runner, { ...place, port }), runnerOf))

/** A reader of the events of a session. */
export interface Reader {
  readonly signal: (signal: NodeJS.Signals) => void
  /** What it has read so far: the points in the feed, and the kinds of the events. */
  readonly read: ReadonlyArray<{ readonly _tag: string; readonly version?: number; readonly requestId?: string }>
  /** Waits until it has read an element of a kind, or has exited. */
  readonly until: (tag: string) => Effect.Effect<void>
  /** Waits until it exits. */
  readonly ended: Effect.Effect<void>
}

/** Starts a reader of the events of a session. */
export const read = (database: string, id: string): Effect.Effect<Reader, never, Scope.Scope> =>
  Effect.map(spawned(reader, { database, id }), (child) => {
    const read: Array<Reader["read"][number]> = []
    const ended = Latch.makeUnsafe()
    child.on("message", (element) => void read.push(element as Reader["read"][number]))
    // Its messages come before this.
    child.once("close", () => ended.openUnsafe())
    return {
      signal: (signal) => void child.kill(signal),
      read,
      until: (tag) =>
        Effect.sync(() => read.some(({ _tag }) => _tag === tag)).pipe(
          Effect.repeat({ schedule: Schedule.spaced("10 millis"), until: (isRead) => isRead }),
          Effect.asVoid,
          Effect.raceFirst(ended.await)
        ),
      ended: ended.await
    }
  })

/** A world without acts. */
export const world: Effect.Effect<string, never, Scope.Scope> = Effect.map(
  Effect.acquireRelease(
    Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-cluster-"))),
    (folder) => Effect.sync(() => fs.rmSync(folder, { recursive: true, force: true }))
  ),
  (folder) => {
    const file = path.join(folder, "world")
    fs.writeFileSync(file, "")
    return file
  }
)

/** A client in this process, with the store of the cluster. */
export const client = (database: string) =>
  SessionClient.layer.pipe(
    Layer.provide(NodeClusterHttp.layer({ ...Cluster.transport(), clientOnly: true })),
    Layer.provideMerge(stored(database)),
    Layer.provide(Logger.layer([])),
    Layer.orDie
  )
