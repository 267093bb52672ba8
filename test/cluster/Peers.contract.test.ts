/**
 * The contract of processes that share sessions, over the processes of `network.ts` and over a cluster with connections:
 * each operation with each outcome comes to the same. What is sent and answered is drawn from the schemas of the cluster,
 * so that a field that one end leaves out fails, whichever field that is.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as RpcSchema from "effect/rpc/RpcSchema"
import type * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { Cluster } from "heddle/cluster"
import { SqliteClient } from "heddle/sql"
import { afterAll, beforeAll } from "vitest"
import { ServerEntity } from "../../src/cluster/internal/serverEntity.ts"
import * as Peers from "../../src/durable/internal/peers.ts"
import * as Clocks from "../support/clock.ts"
import { shareOf } from "../support/property.ts"
import { find, until } from "../support/until.ts"
import { network } from "./support/network.ts"
import { freePort } from "./support/processes.ts"
import { runnerAt } from "./support/runners.ts"

/** A process: what it was asked for, and what it answers with. */
interface Process {
  readonly peers: Peers.Peers
  readonly calls: Array<ReadonlyArray<unknown>>
  readonly answers: { take: Effect.Effect<boolean>; read: Stream.Stream<Schema.Json> }
  readonly leave: Effect.Effect<void>
}

/** The processes, and the id of a session of one of them. */
interface Processes {
  readonly start: Effect.Effect<Process, never, Scope.Scope>
  readonly keyOf: (owner: Process, ...others: ReadonlyArray<Process>) => Effect.Effect<string>
}

const keys = Array.from({ length: 200 }, (_, index) => `local:s ${index} "é"`)

const serving = (peers: Peers.Peers, scope: Scope.Closeable) =>
  Effect.gen(function*() {
    const calls: Process["calls"] = []
    const answers: Process["answers"] = { take: Effect.succeed(true), read: Stream.empty }
    yield* peers.serve({
      take: (...call) => {
        calls.push(["take", ...call])
        return Effect.suspend(() => answers.take)
      },
      read: (...call) => {
        calls.push(["read", ...call])
        return Stream.suspend(() => answers.read)
      }
    }).pipe(Scope.provide(scope))
    return { peers, calls, answers, leave: Scope.close(scope, Exit.void) }
  })

const implementations: Readonly<Record<string, Effect.Effect<Processes, never, Scope.Scope>>> = {
  "processes of a test": Effect.sync(() => {
    const alive: Array<string> = []
    const { peers } = network((key) => alive[keys.indexOf(key) % alive.length] ?? "none")
    let count = 0
    return {
      start: Effect.gen(function*() {
        const scope = yield* Scope.fork(yield* Effect.scope)
        const name = `process ${count++}`
        const process = yield* serving(peers(name), scope)
        alive.push(name)
        yield* Scope.addFinalizer(scope, Effect.sync(() => void alive.splice(alive.indexOf(name), 1)))
        return process
      }),
      keyOf: (owner) => Effect.sync(() => keys.find(owner.peers.isHere)!)
    }
  }),
  "a cluster": Effect.gen(function*() {
    const shared = Layer.succeedContext(yield* Layer.build(Layer.orDie(SqliteClient.layer({ filename: ":memory:" }))))
    return {
      start: Effect.gen(function*() {
        const scope = yield* Scope.fork(yield* Effect.scope)
        const layer = Layer.provideMerge(Cluster.servers, runnerAt(yield* freePort)).pipe(
          Layer.provide([shared, Logger.layer([])])
        )
        const context = yield* Effect.orDie(Layer.buildWithScope(layer, scope))
        return yield* serving(Context.get(context as Context.Context<never>, Peers.Peers)!, scope)
      }),
      keyOf: (owner, ...others) =>
        find(
          "a session of the owner",
          Effect.sync(() => {
            const members = [owner, ...others]
            const isSettled = members.every(({ peers }) => keys.some(peers.isHere))
              && keys.every((key) => members.filter(({ peers }) => peers.isHere(key)).length === 1)
            return isSettled ? keys.find(owner.peers.isHere) : undefined
          })
        )
    }
  })
}

/** The operations by their schemas: what is sent behind the key, and what is answered, one element at a time. */
const operations = Array.from(ServerEntity.protocol.requests.values(), (rpc) => {
  const success: Schema.Top = rpc.successSchema
  const isStream = RpcSchema.isStreamSchema(success)
  return {
    name: rpc._tag.toLowerCase() as "take" | "read",
    errors: isStream ? success.error : rpc.errorSchema,
    fields: Object.values((rpc.payloadSchema as Schema.Struct<Record<string, Schema.Top>>).fields),
    answer: isStream ? success.success : success
  }
})

/** Half a surrogate pair is no text of a request, and JSON escapes one in what is answered. */
const isText = (value: unknown): boolean => !/\\ud[89a-f]/.test(JSON.stringify(value) ?? "")

const drawn = (schema: Schema.Top, count: number): Effect.Effect<ReadonlyArray<any>, unknown> =>
  Arbitrary.sampleEffect(Arbitrary.filter(Arbitrary.schema(schema as Schema.Codec<unknown>), isText), {
    seed: "peers",
    count
  })

/** A clock by which no time passes: an answer counts however long it takes. */
const unhurried = Clocks.by(Clocks.make(() => false))

const whole = { take: Effect.succeed(true), read: Stream.make("one", "two") as Stream.Stream<Schema.Json> }

for (const [what, processes] of Object.entries(implementations)) {
  describe(`peers: ${what}`, () => {
    const scope = Scope.makeUnsafe()
    let all: Processes
    let owner: Process
    let asked: Process
    let key: string

    beforeAll(() =>
      Effect.runPromise(
        Effect.gen(function*() {
          all = yield* processes
          ;[owner, asked] = [yield* all.start, yield* all.start]
          key = yield* all.keyOf(owner, asked)
        }).pipe(Scope.provide(scope))
      )
    )
    afterAll(() => Effect.runPromise(Scope.close(scope, Exit.void)))

    const fresh = Effect.sync(() => {
      owner.calls.length = 0
      asked.calls.length = 0
      for (const { answers } of [owner, asked]) Object.assign(answers, whole)
    })

    const read = (process: Process) => Stream.runCollect(process.peers.read(key, { a: [1] }))

    it.live("a session has one owner, and each process knows whether it is the owner", () =>
      Effect.sync(() => {
        for (const one of keys) assert.notStrictEqual(owner.peers.isHere(one), asked.peers.isHere(one), one)
      }))

    for (const { answer, errors, fields, name } of operations) {
      it.live(`${name}: arguments and answers are the same at both ends`, () =>
        Effect.gen(function*() {
          yield* fresh
          const count = Math.max(8, shareOf(100))
          const sent = yield* Effect.forEach(fields, (schema) => drawn(schema, count))
          const answers = yield* drawn(answer, count)
          // A field may be left out, and the last draws have each.
          for (const [index, answer] of answers.entries()) {
            const args = sent.map((values) => values[index])
            owner.calls.length = 0
            if (name === "take") {
              owner.answers.take = Effect.succeed(answer)
              assert.strictEqual(yield* unhurried(asked.peers.take(key, args[0])), answer)
            } else {
              owner.answers.read = Stream.make(answer, null, answer)
              const parts = yield* Stream.runCollect(asked.peers.read(key, args[0]))
              assert.deepStrictEqual(Array.from(parts), [answer, null, answer])
            }
            assert.deepStrictEqual(owner.calls, [[name, key, ...args]])
          }
          assert.deepStrictEqual(asked.calls, [])
          for (const values of sent) assert.isAbove(new Set(values.map((value) => JSON.stringify(value))).size, 2)
        }))

      it(`${name}: the operation has no typed error`, () => assert.strictEqual(errors.ast._tag, "Never"))
    }

    it.live("take: the answer is false if the owner says so, breaks, is interrupted, or does not answer within a second", () =>
      Effect.gen(function*() {
        yield* fresh
        const outcomes = {
          "true": Effect.succeed(true),
          "false": Effect.succeed(false),
          defect: Effect.die(new Error("broken")),
          interruption: Effect.interrupt,
          silence: Effect.never
        }
        const seen: Record<string, unknown> = {}
        for (const [outcome, take] of Object.entries(outcomes)) {
          owner.answers.take = take as Effect.Effect<boolean>
          // The second one finds what the first one left.
          const timed = outcome === "silence" ? (take: Effect.Effect<boolean>) => take : unhurried
          seen[outcome] = [yield* timed(asked.peers.take(key, undefined)), yield* timed(asked.peers.take(key, "run"))]
        }
        assert.deepStrictEqual(seen, {
          "true": [true, true],
          "false": [false, false],
          defect: [false, false],
          interruption: [false, false],
          silence: [false, false]
        })
        assert.deepStrictEqual(
          owner.calls.map(([, , failed]) => failed),
          Object.keys(outcomes).flatMap(() => [undefined, "run"])
        )
      }))

    it.live("take: the answer is false in the process that owns the session, and the owner is not asked", () =>
      Effect.gen(function*() {
        yield* fresh
        assert.isFalse(yield* owner.peers.take(key, undefined))
        assert.deepStrictEqual([owner.calls, asked.calls], [[], []])
      }))

    it.live("take and read: an operation waits for no other operation of the session", () =>
      Effect.gen(function*() {
        yield* fresh
        const gate = yield* Deferred.make<void>()
        owner.answers.read = Stream.concat(
          Stream.make("one"),
          Stream.fromEffect(Effect.as(Deferred.await(gate), "two"))
        )
        const readers = yield* Effect.forEach([0, 1], () => Effect.forkChild(read(asked)))
        yield* until("the readers", Effect.sync(() => owner.calls.length), (count) => count === 2)
        assert.isTrue(yield* unhurried(asked.peers.take(key, undefined)))
        owner.answers.take = Effect.as(Deferred.await(gate), true)
        const takers = yield* Effect.forEach(
          [0, 1],
          () => Effect.forkChild(unhurried(asked.peers.take(key, undefined)))
        )
        yield* until("all", Effect.sync(() => owner.calls.length), (count) => count === 5)
        yield* Deferred.succeed(gate, undefined)
        for (const taker of takers) assert.isTrue(yield* Fiber.join(taker))
        for (const reader of readers) assert.deepStrictEqual(Array.from(yield* Fiber.join(reader)), ["one", "two"])
      }))

    it.live("read: empty, large and batched parts arrive in order", () =>
      Effect.gen(function*() {
        yield* fresh
        const large = "x".repeat(40_000)
        const all: ReadonlyArray<ReadonlyArray<Schema.Json>> = [
          [],
          [large, large, large],
          Array.from({ length: 300 }, (_, index) => index)
        ]
        for (const parts of all) {
          owner.answers.read = Stream.fromIterable(parts)
          assert.deepStrictEqual(Array.from(yield* read(asked)), parts)
        }
      }))

    it.live("read: a reader breaks when the owner breaks, and can read again", () =>
      Effect.gen(function*() {
        yield* fresh
        owner.answers.read = Stream.concat(Stream.make("one"), Stream.die(new Error("broken")))
        assert.isTrue(Exit.hasDies(yield* Effect.exit(read(asked))))
        Object.assign(owner.answers, whole)
        assert.deepStrictEqual(Array.from(yield* read(asked)), ["one", "two"])
      }))

    it.live("read: a reader that leaves ends the owner's stream, each time", () =>
      Effect.gen(function*() {
        yield* fresh
        let [begun, ended] = [0, 0]
        owner.answers.read = Stream.unwrap(Effect.gen(function*() {
          begun++
          yield* Effect.addFinalizer(() => Effect.sync(() => ended++))
          return Stream.concat(Stream.make("one"), Stream.never)
        }))
        for (const times of [1, 2]) {
          const first = yield* Stream.runCollect(Stream.take(asked.peers.read(key, null), 1))
          assert.deepStrictEqual(Array.from(first), ["one"])
          yield* until("its end", Effect.sync(() => ended), (count) => count === times)
        }
        const interrupted = yield* Effect.forkChild(read(asked))
        yield* until("a reader", Effect.sync(() => begun), (count) => count === 3)
        yield* Fiber.interrupt(interrupted)
        yield* until("its end", Effect.sync(() => ended), (count) => count === 3)
      }))

    it.live("when the owner leaves, a reader breaks off or gets everything from the next owner, who then answers", () =>
      Effect.gen(function*() {
        yield* fresh
        const third = yield* all.start
        yield* all.keyOf(third, owner, asked)
        const moved = yield* all.keyOf(third, owner, asked)
        let ended = 0
        third.answers.read = Stream.concat(Stream.make("one"), Stream.never).pipe(
          Stream.ensuring(Effect.sync(() => void ended++))
        )
        const reading = (process: Process) =>
          Effect.gen(function*() {
            const seen: Array<unknown> = []
            const request = { a: "b" }
            const fiber = yield* process.peers.read(moved, request).pipe(
              Stream.runForEach((part) => Effect.sync(() => seen.push(part))),
              Effect.forkChild
            )
            yield* until("the first part", Effect.sync(() => seen.length), (count) => count > 0)
            return { fiber, seen }
          })
        const readers = [yield* reading(owner), yield* reading(asked)]
        yield* third.leave
        yield* until("the end of what it served", Effect.sync(() => ended), (count) => count === 2)
        yield* all.keyOf(owner, asked)
        const next = owner.peers.isHere(moved) ? owner : asked
        const other = next === owner ? asked : owner
        for (const { fiber, seen } of readers) {
          yield* Fiber.await(fiber)
          // It breaks off, or has all that the next owner gives behind it.
          assert.include([["one"], ["one", "one", "two"]].map(String), String(seen))
        }
        yield* until("the next owner", other.peers.take(moved, "run"), (isTaken) => isTaken)
        assert.deepStrictEqual(next.calls.at(-1), ["take", moved, "run"])
        const again = yield* Stream.runCollect(other.peers.read(moved, null))
        assert.deepStrictEqual(Array.from(again), ["one", "two"])
        assert.isEmpty(third.calls.filter(([name]) => name === "take"))
      }).pipe(Effect.scoped))
  })
}
