/** What a worker takes it gives back: claims, fibers, timers and listeners, after any number of messages. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Session } from "heddle"
import { Worker } from "heddle/durable"
import * as Writers from "../../src/internal/session/writer.ts"
import { heldNow } from "../support/ledger.ts"
import { casting } from "../support/nests.ts"
import { share } from "../support/property.ts"

const model = casting({})

describe("a worker of many messages", () => {
  it.live("O-50: a worker holds nothing of answered messages", () =>
    Effect.gen(function*() {
      let ended = Deferred.makeUnsafe<void>()
      const context = yield* Layer.build(Worker.layer({
        run: () => ({}),
        poll: "1 hour",
        onEnd: () => Deferred.succeed(ended, undefined)
      }))
      const isIdle = Effect.map(Effect.provideContext(Worker.ready, context), ({ driven }) => driven === 0)
      const answered = (id: string) =>
        Effect.gen(function*() {
          ended = Deferred.makeUnsafe()
          yield* Session.submit(id, "hi")
          yield* Effect.provideContext(Worker.take(id), context)
          yield* Deferred.await(ended)
          while (!(yield* isIdle)) yield* Effect.yieldNow
          yield* Session.delete(id)
        })
      const { by } = Writers.observed
      Writers.observed.by = undefined
      yield* Effect.addFinalizer(() => Effect.sync(() => void (Writers.observed.by = by)))
      const messages = share < 1 ? 60 : 10_000
      for (let message = 0; message < messages; message++) yield* answered(`s${message}`)
      // Those of the last messages may still stand on the stack.
      assert.deepStrictEqual(Object.entries(heldNow()).filter(([, count]) => count > 30), [])
    }).pipe(Effect.scoped, Effect.provide([model, Session.Store.layerMemory])), 300_000)
})
