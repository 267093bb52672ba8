/**
 * A process that writes to a store on request: once at a version, or on and on until it is killed. It says what
 * it is about to do before it does it, and which appends succeeded.
 */
import * as Effect from "effect/Effect"
import * as ManagedRuntime from "effect/ManagedRuntime"
import { type Journal, Message, Session } from "heddle"
import { SessionStore } from "heddle/sql"
import * as module from "node:module"
import { id, type Order, type Report, textAt } from "./writing.ts"

const said = (text: string): Journal.Record => ({ _tag: "MessagesAppended", messages: [Message.user(text)] })

const append = (version: number, [first, ...rest]: ReadonlyArray<string>) =>
  Effect.flatMap(Session.Store, (store) => store.append(id, version, [said(first!), ...rest.map(said)])).pipe(
    Effect.map((version): Report => ({ _tag: "Appended", version })),
    Effect.catchTag(
      "SessionConflict",
      ({ actual }): Effect.Effect<Report> => Effect.succeed({ _tag: "Conflict", actual })
    ),
    Effect.catchTag(
      "StoreError",
      (error): Effect.Effect<Report> =>
        Effect.succeed({ _tag: "Failed", message: `${error.message}: ${String(error.cause)}` })
    )
  )

const say = (report: Report) => process.send?.(report)

const runtime = ManagedRuntime.make(SessionStore.layerSqlite({ filename: process.argv[2]! }))

const goOn = (sizes: ReadonlyArray<number>) =>
  Effect.gen(function*() {
    let version = yield* Effect.flatMap(Session.Store, (store) => store.version(id))
    for (let turn = 0;; turn++) {
      const size = sizes[turn % sizes.length]!
      const from = version
      say({ _tag: "Begun", from, size })
      say(yield* append(from, Array.from({ length: size }, (_, index) => textAt(from, size, index))))
      version += size
      // Others of the process get their turn, as they would between two turns of a model.
      yield* Effect.callback<void>((resume) => void setImmediate(() => resume(Effect.void)))
    }
  })

process.on("message", (order: Order) => {
  const work = order._tag === "Append" ? Effect.map(append(order.version, [order.text]), say) : goOn(order.sizes)
  runtime.runPromise(work).catch((error: unknown) => say({ _tag: "Failed", message: String(error) }))
})
process.on("disconnect", () => process.exit(0))

// A process that is killed would leave nothing to the next, which then takes twice as long to start.
module.flushCompileCache()
say({ _tag: "Ready" })
