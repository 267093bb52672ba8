/**
 * The memory layer of the session store, held to the suite that every store is held to, and the suite to stores that
 * break it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Message, Session } from "heddle"
import { Conformance, StoreSuite } from "heddle/testing"

const said = (text: string): Session.Record => ({ _tag: "MessagesAppended", messages: [Message.user(text)] })

describe("Session.Store: memory", () => {
  Conformance.register(StoreSuite.all, Session.Store.layerMemory, it)

  it.effect("appending to a long journal takes no longer than to a short one: nothing of it is touched", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      let touched = 0
      const record = (text: string) =>
        new Proxy(said(text), { get: (target, key) => (touched++, Reflect.get(target, key)) })
      const count = (version: number) =>
        Effect.gen(function*() {
          touched = 0
          yield* store.append("long", version, [record("x")])
          return touched
        })
      const first = yield* count(0)
      for (let version = 1; version < 500; version++) yield* store.append("long", version, [record("x")])
      assert.strictEqual(yield* count(500), first)
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})

const broken = (change: (store: Session.StoreService) => Partial<Session.StoreService>) =>
  Layer.effect(
    Session.Store,
    Effect.map(Session.Store, (store) => ({ ...store, ...change(store) }))
  ).pipe(Layer.provide(Session.Store.layerMemory))

describe("the suite", () => {
  const faults: Record<string, readonly [layer: Layer.Layer<Session.Store>, expected: string]> = {
    "last writer wins": [
      broken((store) => ({
        append: (id, _expected, records) =>
          Effect.flatMap(store.version(id), (version) => store.append(id, version, records))
      })),
      "SessionConflict"
    ],
    "a batch torn in two": [
      broken((store) => ({
        append: (id, expected, records) =>
          Effect.gen(function*() {
            let version = expected
            for (const record of records) {
              version = yield* store.append(id, version, [record])
              yield* Effect.yieldNow
            }
            return version
          })
      })),
      "all get in, whole"
    ],
    "one journal for all": [
      broken((store) => ({
        append: (_id, expected, records) => store.append("all", expected, records),
        read: (_id, after) => store.read("all", after)
      })),
      "sessions do not see each other"
    ],
    "a page too few": [
      broken((store) => ({ read: (id, after) => Stream.take(store.read(id, after), 128) })),
      "read whole"
    ],
    "reading from the start": [broken((store) => ({ read: (id) => store.read(id) })), "behind the version"]
  }

  for (const [fault, [layer, expected]] of Object.entries(faults)) {
    it.effect(`finds a store with ${fault}`, () =>
      Effect.gen(function*() {
        const failures = yield* Conformance.failures(StoreSuite.all, layer)
        assert.isTrue(failures.some((failure) => failure.message.includes(expected)), failures.map(String).join("\n"))
      }))
  }
})
