/** A process that withdraws messages of a session on request, and says what became of each. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as ManagedRuntime from "effect/ManagedRuntime"
import { Session } from "heddle"
import { SessionStore } from "heddle/sql"
import * as module from "node:module"
import * as Postgres from "../../support/postgres.ts"

/** The place of the store: a file of SQLite, or the URL of a database of Postgres. */
export interface Place {
  readonly filename?: string
  readonly url?: string
}

/** What the process is asked to withdraw. */
export interface Order {
  readonly session: string
  readonly message: string
}

/** What the process says: that it is ready, or what it was told of a withdrawal and reads of the message behind it. */
export type Report =
  | { readonly _tag: "Ready" }
  | {
    readonly _tag: "Told"
    readonly message: string
    readonly isWithdrawn: boolean
    readonly became: string | undefined
  }
  | { readonly _tag: "Failed"; readonly message: string }

/** The store of a place. */
export const stored = ({ filename, url = "" }: Place): Layer.Layer<Session.Store> =>
  filename === undefined
    ? Layer.orDie(Layer.provide(SessionStore.layer, Postgres.client(url)))
    : Layer.orDie(SessionStore.layerSqlite({ filename }))

const say = (report: Report): void => void process.send?.(report)

if (process.send !== undefined && process.argv[2] !== undefined) {
  const runtime = ManagedRuntime.make(stored(JSON.parse(process.argv[2]) as Place))
  process.on("message", ({ message, session }: Order) => {
    const withdrawn = Effect.gen(function*() {
      const isWithdrawn = yield* Session.withdraw(session, message)
      const became = Session.receipt(yield* Session.open(session), message)?.became
      say({ _tag: "Told", message, isWithdrawn, became })
    })
    runtime.runPromise(withdrawn).catch((error: unknown) => say({ _tag: "Failed", message: String(error) }))
  })
  process.on("disconnect", () => process.exit(0))
  // The first withdrawal finds the store open.
  await runtime.runPromise(Session.withdraw("none", "none"))
  module.flushCompileCache()
  say({ _tag: "Ready" })
}
