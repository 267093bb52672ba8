/**
 * Lays siege to owners of sessions: `npm run crash -- leave --help` prints the options, and `RESULTS.md` has figures.
 */
import * as NodeClusterHttp from "@effect/platform-node/NodeClusterHttp"
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Random from "effect/Random"
import * as Redacted from "effect/Redacted"
import { Session } from "heddle"
import { Cluster, SessionClient } from "heddle/cluster"
import { join } from "node:path"
import { parseArgs } from "node:util"
import { bundle } from "../bundle.ts"
import { withServer } from "../server.ts"
import { chosen, number } from "../settings.ts"
import * as Processes from "./processes.ts"
import { type Means, means, type Report, siege } from "./siege.ts"
import * as Work from "./work.ts"

const stores = {
  "sqlite": { kind: "worker", isServed: false },
  "postgres": { kind: "worker", isServed: true },
  "sqlite-claims": { kind: "claims", isServed: false },
  "postgres-claims": { kind: "claims", isServed: true },
  "cluster": { kind: "runner", isServed: true }
} as const

type Store = keyof typeof stores

const isMeant = (store: Store, means: Means): boolean =>
  store === "cluster"
    ? means === "SIGTERM" || means === "SIGKILL"
    : (stores[store].kind === "claims") === (means === "close" || means === "interrupt")

const usage = `npm run crash -- leave [options]

Has processes drive sessions whose calls charge a bank that takes two seconds, and makes the processes leave, one at a time and
at random moments. Prints a row for each store and means. The exit code is 1 if a charge happened twice or never, a session
did not end, or a call was reported as unknown whose end its process knew.

  --store NAMES   of ${Object.keys(stores).join(", ")}; all by default
  --means NAMES   of ${means.join(", ")}; all by default
  --times N       how often; 40 by default
  --width N       sessions that are under way at a time; 6 by default
  --bank N        milliseconds that a charge takes; 2000 by default
  --term N        milliseconds that a claim lasts; 4000 by default
  --seed TEXT     of the moments and the sessions; "heddle" by default
  --faketime FILE libfaketime.so.1: "clock" sets the clock of a process by it, with that of its SQLite
  --shared        with --faketime: "clock" sets the clock of all processes
  --help          prints this`

/** The middle and the last of some times, in seconds. */
const middleAndMost = (millis: ReadonlyArray<number>): string => {
  const sorted = millis.toSorted((a, b) => a - b)
  const seconds = (at: number) => (sorted[at]! / 1000).toFixed(2)
  return sorted.length === 0 ? "–" : `${seconds(Math.floor(sorted.length / 2))} / ${seconds(sorted.length - 1)}`
}

const columns: ReadonlyArray<readonly [name: string, cell: (report: Report) => string | number]> = [
  ["times", ({ times }) => times],
  ["sessions", ({ sessions }) => sessions],
  ["ended otherwise", ({ broken }) => broken.length],
  ["charges", ({ charges }) => charges],
  ["under way then", ({ underWay }) => underWay],
  ["twice", ({ twice }) => twice.length],
  ["twice, frozen within the handler", ({ frozen }) => frozen],
  ["never", ({ never }) => never.length],
  ["unknown", ({ unknown }) => unknown],
  ["of these known", ({ knew }) => knew.length],
  ["takeovers with nothing under way", ({ takeovers }) => takeovers.length],
  ["s (median / most)", ({ takeovers }) => middleAndMost(takeovers)],
  ["ends after SIGTERM, s (median / most)", ({ leaves }) => middleAndMost(leaves)]
]

const line = (cells: ReadonlyArray<string | number>): string => `| ${cells.join(" | ")} |`

/** Reads the command line of `leave`, and runs it. Succeeds with the exit code. */
export const leave = async (args: ReadonlyArray<string>): Promise<number> => {
  const { values } = parseArgs({
    args: [...args],
    options: {
      store: { type: "string" },
      means: { type: "string" },
      times: { type: "string", default: "40" },
      width: { type: "string", default: "6" },
      bank: { type: "string", default: "2000" },
      term: { type: "string", default: "4000" },
      seed: { type: "string", default: "heddle" },
      faketime: { type: "string" },
      shared: { type: "boolean", default: false },
      help: { type: "boolean", default: false }
    }
  })
  if (values.help) {
    console.log(usage)
    return 0
  }
  const names = chosen("store", values.store, Object.keys(stores) as ReadonlyArray<Store>)
  const wanted = chosen("means", values.means, means)
  const rows = names.flatMap((store) =>
    wanted.filter((means) => isMeant(store, means)).map((means) => ({ store, means }))
  )
  const numbers = {
    times: number("times", values.times),
    width: number("width", values.width),
    bankMillis: number("bank", values.bank),
    termMillis: number("term", values.term)
  }
  const program = await bundle(join(import.meta.dirname, "program.ts"))
  const one = ({ means, store }: typeof rows[number], database: string) => {
    const { kind } = stores[store]
    return Effect.gen(function*() {
      const folder = yield* Processes.folder
      const place = database === "" ? join(folder, "sessions.db") : database
      const kept = Work.stored(place)
      const options = {
        program,
        kind,
        store: place,
        means,
        ...numbers,
        isShared: values.shared,
        ...values.faketime === undefined ? {} : { faketime: values.faketime }
      }
      if (kind !== "runner") {
        return yield* Effect.provide(siege({ ...options, begin: (id, text) => Session.submit(id, text) }), kept)
      }
      const client = SessionClient.layer.pipe(
        Layer.provide(NodeClusterHttp.layer({ ...Cluster.transport(), clientOnly: true })),
        Layer.provide(Work.database(place)),
        Layer.provideMerge(kept),
        Layer.provide(Logger.layer([]))
      )
      return yield* Effect.gen(function*() {
        const { reply } = yield* SessionClient.SessionClient
        return yield* siege({ ...options, begin: (id, text) => Effect.forkScoped(Effect.ignore(reply(id, text))) })
      }).pipe(Effect.provide(client))
    }).pipe(Effect.scoped, Random.withSeed(`${values.seed} ${store} ${means}`))
  }

  const wrong: Array<string> = []
  const run = async (server: string): Promise<void> => {
    console.log(line(["store", "means", ...columns.map(([name]) => name)]))
    console.log(line(["---", "---", ...columns.map(() => "---")]))
    for (const [index, row] of rows.entries()) {
      const database = stores[row.store].isServed ? await made(server, index) : ""
      const report = await Effect.runPromise(one(row, database))
      console.log(line([row.store, row.means, ...columns.map(([, cell]) => cell(report))]))
      for (const found of ["broken", "twice", "never", "knew"] as const) {
        wrong.push(...report[found].map((what) => `${row.store} ${row.means} ${found}: ${what}`))
      }
    }
  }
  await (rows.some(({ store }) => stores[store].isServed) ? withServer(run) : run(""))
  for (const what of wrong) console.error(what)
  return wrong.length === 0 ? 0 : 1
}

/** Makes a database on a server, and gives its URL. */
const made = async (server: string, index: number): Promise<string> => {
  const name = `siege_${index}`
  await Effect.runPromise(
    PgClient.PgClient.pipe(
      Effect.flatMap((sql) => sql`CREATE DATABASE ${sql(name)} TEMPLATE template0`),
      Effect.provide(PgClient.layer({ url: Redacted.make(`${server}/postgres`), maxConnections: 1 }))
    )
  )
  return `${server}/${name}`
}
