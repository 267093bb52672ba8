/**
 * Measures worker processes on one store: `npm run example scratchpad/bench/workers.ts -- --help`.
 *
 * A program submits short sessions, one after the other, while the workers wait for them: each asks the model twice,
 * with one call in between. The model is scripted. The figures are the sessions a second, from the first submission to
 * the last session without work left, the median time of a submission, and what an idle worker does in a second.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Redacted from "effect/Redacted"
import * as SqlClient from "effect/sql/SqlClient"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import { Adapter, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import { type ChildProcess, fork } from "node:child_process"
import { once } from "node:events"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { setTimeout as sleep } from "node:timers/promises"
import { fileURLToPath } from "node:url"
import { parseArgs } from "node:util"
import { withServer } from "../crash/server.ts"

const help = `Usage: npm run example scratchpad/bench/workers.ts -- [options]

  --stores=sqlite,postgres  the stores; each pass has a new database
  --workers=1,20            the numbers of worker processes
  --sessions=40             the number of sessions that are submitted
  --passes=3                how often each is measured; the figures are medians
  --idle=5                  how many seconds an idle worker is watched

Postgres runs on this machine and does not wait for the disk. SQLite does.`

const storeOf = (store: string) =>
  (store.startsWith("postgres:")
    ? SessionStore.layer.pipe(Layer.provide(PgClient.layer({ url: Redacted.make(store), maxConnections: 5 })))
    : SessionStore.layerSqlite({ filename: store })).pipe(Layer.orDie)

// The worker.

const add = Tool.make("add", { parameters: {}, handler: () => Effect.succeed(2) })

const model = Adapter.layer({
  stream: (request) =>
    Stream.unwrap(Effect.map(
      Script.make([
        request.messages.at(-1)?.role === "tool"
          ? [Script.text("Two."), Script.finish("stop")]
          : [Script.toolCall("c0", "add"), Script.finish("tool_calls")]
      ]),
      ({ stream }) => stream(request)
    ))
})

/** Counts the statements of the clients of Effect. */
const counting = () => {
  let statements = 0
  const tracer = Tracer.make({
    span: (options) => {
      if (options.kind === "client") statements++
      // A transaction begins and ends with a statement of its own.
      if (options.name === "sql.transaction") statements += 2
      return new Tracer.NativeSpan(options)
    }
  })
  return { tracer, statements: () => statements }
}

/** Says what it has done so far, when it is asked. */
const work = (store: string) => {
  const { statements, tracer } = counting()
  process.on("message", () => {
    const { system, user } = process.cpuUsage()
    process.send?.({ statements: statements(), millis: (system + user) / 1000 })
  })
  process.on("disconnect", () => process.exit(0))
  Layer.launch(Layer.merge(
    Worker.layer({ run: () => ({ tools: [add] }) }),
    Layer.effectDiscard(Effect.sync(() => process.send?.("ready")))
  )).pipe(
    Effect.provide(model),
    Effect.provide(storeOf(store)),
    Effect.provide(Logger.layer([])),
    Effect.provideService(Tracer.Tracer, tracer),
    NodeRuntime.runMain
  )
}

// The measurement.

interface Figures {
  readonly rate: number
  readonly submit: number
  readonly statements: number
  readonly millis: number
}

const median = (values: ReadonlyArray<number>): number =>
  values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? Number.NaN

const startWorker = async (store: string): Promise<ChildProcess> => {
  const child = fork(fileURLToPath(import.meta.url), [], {
    execArgv: ["--conditions=source"],
    env: { ...process.env, HEDDLE_BENCH_STORE: store }
  })
  await once(child, "message")
  return child
}

const done = async (child: ChildProcess): Promise<{ readonly statements: number; readonly millis: number }> => {
  const answer = once(child, "message")
  child.send("how much")
  return (await answer)[0]
}

/** What a worker does in a second. */
const watch = async (child: ChildProcess, seconds: number) => {
  const before = await done(child)
  await sleep(seconds * 1000)
  const after = await done(child)
  return {
    statements: (after.statements - before.statements) / seconds,
    millis: (after.millis - before.millis) / seconds
  }
}

/** Submits the sessions, and waits until none has work left. */
const drive = (sessions: number) =>
  Effect.gen(function*() {
    const began = performance.now()
    const times: Array<number> = []
    for (let index = 0; index < sessions; index++) {
      const before = performance.now()
      yield* Session.submit(`s${index}`, "What is one and one?")
      times.push(performance.now() - before)
    }
    let left: ReadonlyArray<unknown>
    do {
      yield* Effect.sleep(20)
      left = yield* Stream.runCollect(Session.unfinished)
    } while (left.length > 0)
    return { rate: sessions / (performance.now() - began) * 1000, submit: median(times) }
  })

const measure = async (store: string, workers: number, sessions: number, idle: number): Promise<Figures> => {
  const children: Array<ChildProcess> = []
  try {
    for (let index = 0; index < workers; index++) children.push(await startWorker(store))
    const idling = await watch(children[0]!, idle)
    return { ...await Effect.runPromise(Effect.provide(drive(sessions), storeOf(store))), ...idling }
  } finally {
    for (const child of children) child.kill("SIGKILL")
  }
}

const inFile = async (run: (store: string) => Promise<Figures>): Promise<Figures> => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "heddle-workers-"))
  try {
    return await run(path.join(folder, "sessions.db"))
  } finally {
    fs.rmSync(folder, { recursive: true, force: true })
  }
}

const inDatabase = async (server: string, run: (store: string) => Promise<Figures>): Promise<Figures> => {
  const name = `workers_${crypto.randomUUID().replaceAll("-", "")}`
  const client = PgClient.layer({ url: Redacted.make(`${server}/postgres`), maxConnections: 1 })
  const create = SqlClient.SqlClient.use((sql) => sql`CREATE DATABASE ${sql(name)} TEMPLATE template0`)
  await Effect.runPromise(Effect.provide(create, client))
  return run(`${server}/${name}`)
}

const main = async () => {
  const { values } = parseArgs({
    options: {
      help: { type: "boolean", default: false },
      stores: { type: "string", default: "sqlite,postgres" },
      workers: { type: "string", default: "1,20" },
      sessions: { type: "string", default: "40" },
      passes: { type: "string", default: "3" },
      idle: { type: "string", default: "5" }
    }
  })
  if (values.help) return console.log(help)
  console.log("store     workers  sessions/s  ms a submit  statements/s idle  ms/s idle")
  for (const store of values.stores.split(",")) {
    for (const workers of values.workers.split(",")) {
      const run = (place: string) => measure(place, Number(workers), Number(values.sessions), Number(values.idle))
      const passes: Array<Figures> = []
      for (let pass = 0; pass < Number(values.passes); pass++) {
        if (store === "sqlite") passes.push(await inFile(run))
        else await withServer(async (server) => void passes.push(await inDatabase(server, run)))
      }
      const of = (name: keyof Figures) => median(passes.map((figures) => figures[name])).toFixed(1)
      console.log(
        store.padEnd(10) + workers.padStart(7) + of("rate").padStart(12) + of("submit").padStart(13)
          + of("statements").padStart(19) + of("millis").padStart(11)
      )
    }
  }
}

const store = process.env["HEDDLE_BENCH_STORE"]
if (store === undefined) await main()
else work(store)
