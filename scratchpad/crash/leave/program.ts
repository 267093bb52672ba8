/**
 * A process that owns sessions until it is asked to leave, by SIGTERM, or until it is killed. Its parent can freeze it at a
 * place, set its clock, and close the scopes of its claims.
 */
import * as NodeClusterHttp from "@effect/platform-node/NodeClusterHttp"
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Clock from "effect/Clock"
import * as ShardId from "effect/cluster/ShardId"
import * as Sharding from "effect/cluster/Sharding"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import { type Journal, Session } from "heddle"
import { Cluster } from "heddle/cluster"
import { Worker } from "heddle/durable"
import * as module from "node:module"
import * as Clocks from "./clocks.ts"
import * as Work from "./work.ts"

/** An order of the parent. */
export type Order =
  /** Sets the clock, so many milliseconds ahead of that of the machine. */
  | { readonly _tag: "Set"; readonly aheadMillis: number }
  /** Freezes the process where the start of a charge is recorded next: before it is, or after. Not, where `at` is left out. */
  | { readonly _tag: "Freeze"; readonly at?: "before" | "after" }
  /** Drives a session, in a program that claims it. */
  | { readonly _tag: "Drive"; readonly id: string; readonly text: string }
  /** Ends all claims of such a program: interrupts what runs under them, or closes their scopes alone. */
  | { readonly _tag: "Close"; readonly by: "interruption" | "scope" }

/** What the process says to its parent: that it is ready, how many shards it has, or that an order was carried out. */
export type Word = "ready" | "done" | number

const place = JSON.parse(process.argv[2]!) as Work.Place
const { drain, kind, log, port, store, term } = place

const say = (word: Word) => void process.send?.(word)

let freezeAt: "before" | "after" | undefined

/** Freezes this process. It goes on when its parent wakes it. */
const freeze = (session: string): void => {
  freezeAt = undefined
  Work.note(log, { what: "is frozen", session })
  process.kill(process.pid, "SIGSTOP")
  // The signal may come to another thread first.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200)
  Work.note(log, { what: "wakes", session })
}

/** Number of requests to the store that are under way. */
let requests = 0

/** A process that is frozen in a transaction holds the lock of a SQLite file: nothing is under way when this one is. */
const freezeAlone = (session: string) =>
  Effect.andThen(
    Effect.repeat(Effect.yieldNow, { until: () => requests === 0 }),
    Effect.sync(() => freeze(session))
  )

const isCharge = (record: Journal.Record): boolean =>
  record._tag === "CallStarted" && !record.toolCallId.startsWith("balance")

const counted = <A, E, R>(request: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.suspend(() => {
    requests++
    return Effect.ensuring(request, Effect.sync(() => requests--))
  })

/** A store that knows how many requests are under way, and freezes the process where it is to be frozen. */
const watched = Layer.effect(
  Session.Store,
  Effect.map(Session.Store, (store): Journal.Service => ({
    ...store,
    append: (id, expected, records, options) => {
      const append = counted(store.append(id, expected, records, options))
      if (!records.some(isCharge)) return append
      const frozen = (at: typeof freezeAt) => Effect.suspend(() => freezeAt === at ? freezeAlone(id) : Effect.void)
      return Effect.andThen(frozen("before"), Effect.tap(append, () => frozen("after")))
    },
    claim: (...args) => counted(store.claim(...args)),
    renew: (...args) => counted(store.renew(...args)),
    release: (...args) => counted(store.release(...args)),
    claimUnfinished: (...args) => counted(store.claimUnfinished(...args))
  }))
)

const options = { tools: Work.tools(place), maxAttempts: 1000 }

/** What closes the claims of a program that drives sessions by itself. */
const closers = new Set<(by: "interruption" | "scope") => Effect.Effect<unknown>>()

/** Does what is left to do in a session, under a claim that ends with its scope. */
const claimed = (id: string, text: string) =>
  Effect.gen(function*() {
    let kept = yield* Session.claim(id, { term })
    if (kept.session.thread.messages.length === 0 && kept.interrupted === undefined) {
      kept = yield* Session.keep(kept, (session) => Session.reply(session, text, options))
    } else if (kept.interrupted !== undefined) {
      kept = yield* Session.resume(kept, options)
    }
    return kept.session.status === "completed"
  })

/** Drives a session to its end: where its claim ends, or another process has it, it is tried again. */
const driven = (id: string, text: string) => {
  const once = Effect.acquireUseRelease(
    Scope.make(),
    (scope) =>
      Effect.gen(function*() {
        const fiber = yield* Effect.forkChild(Scope.provide(claimed(id, text), scope))
        const closed = Effect.andThen(Scope.close(scope, Exit.void), Fiber.await(fiber))
        const closer = (by: "interruption" | "scope") =>
          by === "scope" ? closed : Effect.andThen(Fiber.interrupt(fiber), closed)
        closers.add(closer)
        const exit = yield* Fiber.await(fiber)
        closers.delete(closer)
        return Exit.isSuccess(exit) && exit.value
      }),
    Scope.close
  )
  return Effect.repeat(once, { schedule: Schedule.spaced("100 millis"), until: (isOver) => isOver })
}

/** Carries out the orders of the parent. */
const obeying = Effect.gen(function*() {
  const context = yield* Effect.context<never>()
  const scope = yield* Effect.scope
  const run = Effect.runForkWith(context)
  const carryOut = (order: Order): Effect.Effect<unknown, never, any> => {
    switch (order._tag) {
      case "Set":
        return Effect.sync(() => Clocks.set(order.aheadMillis))
      case "Freeze":
        return Effect.sync(() => freezeAt = order.at)
      case "Drive":
        return Effect.forkIn(driven(order.id, order.text), scope)
      case "Close":
        return Effect.forEach([...closers], (close) => close(order.by), { concurrency: "unbounded" })
    }
  }
  process.on("message", (order: Order) => {
    run(Effect.andThen(carryOut(order), Effect.sync(() => say("done"))) as Effect.Effect<void>)
  })
})

/** Says how many shards this runner has. */
const shards = Effect.gen(function*() {
  const { hasShardId } = yield* Sharding.Sharding
  const all = Array.from({ length: 300 }, (_, index) => ShardId.make("default", index + 1))
  yield* Effect.repeat(Effect.sync(() => say(all.filter(hasShardId).length)), Schedule.spaced("50 millis"))
})

const owners = {
  worker: Worker.layer({
    run: () => options,
    term,
    concurrency: 20,
    ...(drain === undefined ? {} : { drain })
  }),
  claims: Layer.empty,
  runner: Layer.unwrap(
    Effect.sync(() =>
      Layer.merge(Cluster.layer({ run: () => options, term }), Layer.effectDiscard(Effect.forkScoped(shards))).pipe(
        Layer.provide(NodeClusterHttp.layer(Cluster.transport({ host: "127.0.0.1", port: port ?? 0 }))),
        Layer.provide(Work.database(store)),
        Layer.orDie
      )
    )
  )
}

const ready = Effect.andThen(Effect.sync(module.flushCompileCache), Effect.sync(() => say("ready")))

const program = Layer.merge(Layer.effectDiscard(obeying), Layer.effectDiscard(ready)).pipe(
  Layer.provideMerge(owners[kind]),
  Layer.provide([Layer.provide(watched, Work.stored(store)), Work.model(place)]),
  Layer.provide(Logger.layer([]))
)

process.on("disconnect", () => process.exit(0))
NodeRuntime.runMain(
  Effect.clockWith((clock) => Effect.provideService(Layer.launch(program), Clock.Clock, Clocks.settable(clock)))
)
