/**
 * The laws of the journal: what a session has come to is what its journal says, whatever the store does, whenever it is
 * stopped, and however often a process ends. Each title begins with the law.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import type * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { type Adapter, type Event, Journal, Policy, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import {
  type Append,
  driven,
  errands,
  holding,
  inOrder,
  isLoaded,
  isValid,
  linesOf,
  listing,
  passing,
  placesOf,
  recordsOf,
  stores,
  until,
  wrapped
} from "../support/edges.ts"
import { acting, agent, casting } from "../support/nests.ts"
import { sampleOf } from "../support/property.ts"
import type { Deed } from "../support/survivor.ts"

const turn = (...calls: ReadonlyArray<string>) =>
  calls.map((call) => {
    const [name = "", id = name] = call.split(":")
    return [id, name, {}] as const
  })

/** A run of two turns, with a call that charges, one that only reads, and a sub-agent of two calls. */
const parts = {
  go: [turn("charge", "look", "sub"), turn("charge:second"), "Done", "More", "Most"],
  sub: [turn("inner", "other"), "Sub"]
}

const model = casting(parts)

const toolsOf = (world: Array<Deed>, millis = 0) => {
  const timed = <T extends ReturnType<typeof acting>>(tool: T) =>
    millis === 0 ? tool : {
      ...tool,
      timeout: 25,
      handler: (...args: Parameters<NonNullable<T["handler"]>>) =>
        Effect.andThen(Effect.sleep(millis), tool.handler!(args[0], args[1]) as Effect.Effect<string>)
    } as T
  return [
    timed(acting(world, "charge")),
    { ...timed(acting(world, "look")), readOnly: true as const },
    agent("sub", [timed(acting(world, "inner")), { ...timed(acting(world, "other")), idempotent: true as const }])
  ] as unknown as []
}

/** Collects the appends of a program. */
const appendsOf = <A, E>(
  run: (tools: []) => Effect.Effect<A, E, Session.Store>,
  base?: Layer.Layer<Session.Store>
) =>
  Effect.gen(function*() {
    const appends: Array<Append> = []
    const value = yield* run(toolsOf([])).pipe(Effect.provide(listing(appends, base)))
    return { appends, value }
  })

const replying = (tools: [], options: { readonly cancel?: Effect.Effect<unknown>; readonly grace?: number } = {}) =>
  Effect.gen(function*() {
    const opened = yield* Session.open("s")
    return yield* Session.keep(
      opened,
      (session) => Session.reply(session, "go", { tools, requestId: "run", ...options })
    )
  }).pipe(Effect.provide(model))

const startedIn = (records: ReadonlyArray<Journal.Record>) =>
  records.flatMap((record) => record._tag === "CallStarted" ? [record.idempotencyKey] : [])

/** Fails where an effect that may not be repeated has been. */
const isOnce = (world: ReadonlyArray<Deed>, where: string) => {
  for (const tool of ["charge", "inner"]) {
    const keys = world.filter((deed) => deed.tool === tool).map(({ key }) => key)
    assert.strictEqual(new Set(keys).size, keys.length, `${where}: ${tool} twice: ${keys.join(" ")}`)
  }
}

/** Resumes what was interrupted, and then says one more thing. */
const finished = (world: Array<Deed>, where: string) =>
  Effect.gen(function*() {
    let kept = (yield* Session.load("s")) ?? (yield* Session.open("s"))
    const tools = toolsOf(world)
    if (kept.interrupted !== undefined) kept = yield* Session.resume(kept, { tools, takeOver: true })
    yield* isLoaded(kept, where)
    const said = yield* Session.keep(kept, (session) => Session.reply(Session.recover(session), "later", { tools: [] }))
    yield* isLoaded(said, where)
    isValid(said.session, where)
    for (const { id, next } of yield* Stream.runCollect(Session.list())) {
      assert.strictEqual(next, "nothing", `${where}: ${id}`)
    }
    return said
  }).pipe(Effect.provide(model))

/** Calls `act` at an append, which is counted from 1 and once for all of its attempts. */
const at = (
  place: number,
  act: (append: Effect.Effect<number, any>, attempt: number) => Effect.Effect<number, any, Session.Store>,
  base: Layer.Layer<Session.Store> = Session.Store.layerMemory
) => {
  const names = new Map<string, number>()
  let attempts = 0
  let count = 0
  return wrapped((store) => (id, expected, records, options) =>
    Effect.suspend(() => {
      const append = store.append(id, expected, records, options)
      const name = `${id} ${options?.name ?? `unnamed ${count}`}`
      if (!names.has(name)) names.set(name, ++count)
      if (names.get(name) !== place) return append
      return Effect.provideService(act(append, ++attempts), Session.Store, store)
    }), base as typeof Session.Store.layerMemory)
}

const away = (reason: "unavailable" | "full" = "unavailable") =>
  Effect.fail(new Journal.StoreError({ reason, operation: "append", id: "s" }))

describe("a withdrawn intent", () => {
  const ways = ["a timeout", "a cancellation", "a stop", "a failed append", "an interruption"] as const

  for (const way of ways) {
    it.effect(`Q-05: the live and the loaded session stay equal when ${way} withdraws an intent at any append`, () =>
      Effect.gen(function*() {
        const { appends } = yield* passing(appendsOf((tools) => replying(tools)))
        for (const place of placesOf(2, appends.length)) {
          for (const isWritten of [false, true]) {
            const where = `append ${place}, ${
              appends[place - 1]?.records.map(({ _tag }) => _tag).join(" ")
            }, ${isWritten}`
            const world: Array<Deed> = []
            const cancel = yield* Deferred.make<void>()
            const given: { fiber?: Fiber.Fiber<unknown, unknown> } = {}
            const act = (append: Effect.Effect<number, any>, attempt: number) =>
              Effect.gen(function*() {
                if (attempt > 1) return yield* append
                const before = isWritten ? yield* append : undefined
                if (way === "a cancellation") yield* Deferred.succeed(cancel, undefined)
                if (way === "a stop") yield* Session.stop("s")
                if (way === "a failed append") return yield* away("full")
                if (way === "an interruption") yield* Effect.forkDetach(Fiber.interrupt(given.fiber!))
                yield* Effect.sleep(60)
                return before ?? (yield* append)
              })
            yield* passing(
              Effect.gen(function*() {
                const tools = toolsOf(world, way === "a timeout" ? 10 : 0)
                const fiber = yield* Effect.forkChild(
                  replying(tools, { cancel: Deferred.await(cancel), grace: 200 }).pipe(
                    Effect.tap((kept) => isLoaded(kept, where))
                  )
                )
                given.fiber = fiber
                const exit = yield* Fiber.await(fiber)
                if (Exit.isFailure(exit) && !Cause.hasInterruptsOnly(exit.cause)) {
                  assert.include(["a failed append"], way, `${where}: ${Cause.pretty(exit.cause)}`)
                }
                yield* inOrder
                yield* finished(world, where)
                isOnce(world, where)
              }).pipe(Effect.provide(at(place, act)))
            )
          }
        }
      }))
  }
})

describe("an append", () => {
  const single = ["before", "after"] as const
  for (const [name, base] of Object.entries(stores)) {
    for (const fault of single) {
      it.effect(`Q-06: one retry decides an append that fails once, ${fault} it is written, at each append, ${name}`, () =>
        Effect.gen(function*() {
          const { appends, value } = yield* appendsOf((tools) => replying(tools), base as never)
          for (const place of placesOf(2, appends.length)) {
            const world: Array<Deed> = []
            const where = `append ${place}, ${appends[place - 1]?.records.map(({ _tag }) => _tag).join(" ")}`
            const act = (append: Effect.Effect<number, any>, attempt: number) =>
              attempt > 1 ? append : fault === "before" ? away() : Effect.andThen(append, away())
            yield* Effect.gen(function*() {
              const kept = yield* replying(toolsOf(world))
              yield* isLoaded(kept, where)
              assert.deepStrictEqual(kept.session, value.session, where)
              assert.deepStrictEqual(kept.value.result, value.value.result, where)
              assert.strictEqual(kept.version, value.version, where)
              isOnce(world, where)
            }).pipe(Effect.provide(at(place, act, base as never)))
          }
        }))
    }

    for (const fault of ["before", "after", "once each", "full", "hangs before", "hangs after"] as const) {
      it.effect(`Q-06: a failed append stops the operation, and a resume loses and repeats nothing, at each append: ${fault}, ${name}`, () =>
        Effect.gen(function*() {
          const { appends } = yield* appendsOf((tools) => replying(tools), base as never)
          for (const place of placesOf(2, appends.length)) {
            const world: Array<Deed> = []
            const where = `append ${place}, ${appends[place - 1]?.records.map(({ _tag }) => _tag).join(" ")}`
            const cancel = yield* Deferred.make<void>()
            let isOver = false
            const act = (append: Effect.Effect<number, any>, attempt: number) =>
              Effect.suspend((): Effect.Effect<number, any> => {
                if (isOver) return append
                switch (fault) {
                  case "full":
                    return away("full")
                  case "before":
                    return away()
                  case "after":
                    return Effect.andThen(append, away())
                  case "once each":
                    return attempt === 1 ? Effect.andThen(append, away()) : away()
                  case "hangs before":
                    return Effect.andThen(Deferred.succeed(cancel, undefined), Effect.never)
                  case "hangs after":
                    return Effect.andThen(append, Effect.andThen(Deferred.succeed(cancel, undefined), Effect.never))
                }
              })
            yield* passing(
              Effect.gen(function*() {
                const exit = yield* Effect.exit(
                  replying(toolsOf(world), { cancel: Deferred.await(cancel), grace: 200 })
                )
                isOver = true
                if (!fault.startsWith("hangs")) {
                  assert.isTrue(Exit.isFailure(exit), where)
                  const error = Exit.isFailure(exit) ? Cause.squash(exit.cause) : undefined
                  assert.instanceOf(error, Journal.StoreError, where)
                } else if (Exit.isSuccess(exit)) yield* isLoaded(exit.value, where)
                yield* inOrder
                const said = yield* finished(world, where)
                isOnce(world, where)
                const users = linesOf(said.session).filter((line) => line.startsWith("user"))
                const isStarted = (yield* recordsOf("s")).some(({ _tag }) => _tag === "CallStarted")
                if (isStarted) assert.deepStrictEqual(users, ["user: go", "user: later"], where)
              }).pipe(Effect.provide(at(place, act, base as never))),
              50
            )
          }
        }))
    }
  }

  it.effect("Q-06: a message submitted again after its append failed, before or after the write, is in the journal once", () =>
    Effect.gen(function*() {
      for (const fault of single) {
        let isAway = false
        const faulty = wrapped((store) => (...append) =>
          !isAway
            ? store.append(...append)
            : fault === "before"
            ? away()
            : Effect.andThen(store.append(...append), away())
        )
        yield* Effect.gen(function*() {
          yield* Session.open("s")
          isAway = true
          const error = yield* Effect.flip(Session.submit("s", "go", { id: "m1" }))
          assert.deepInclude(error, { _tag: "StoreError", reason: "unavailable" })
          isAway = false
          yield* Session.submit("s", "go", { id: "m1" })
          const kept = (yield* Session.load("s"))!
          assert.strictEqual(kept.submitted?.length, 1, fault)
          assert.strictEqual(Session.next(kept), "reply")
          assert.deepStrictEqual(yield* Stream.runCollect(Session.unfinished), ["s"])
        }).pipe(Effect.provide(faulty))
      }
    }))
})

describe("an ended sub-agent", () => {
  for (const depth of [1, 2]) {
    for (const [name, base] of Object.entries(stores)) {
      it.effect(`Q-12: a resumed run joins its ended sub-agent after the deadline has passed, ${depth} deep, ${name}`, () =>
        Effect.gen(function*() {
          const nested = {
            go: [turn("outer", "late"), "Done"],
            outer: [turn("middle"), "Outer"],
            middle: [turn("act"), "Middle"]
          }
          const tools = (world: Array<Deed>) => {
            const act = acting(world, "act")
            const outer = depth === 1 ? agent("outer", [{ ...act, name: "middle" }]) : agent("outer", [
              agent("middle", [act])
            ])
            const late = Tool.make("late", { parameters: {}, handler: () => Effect.never })
            return [outer, late]
          }
          const appends: Array<Append> = []
          yield* Effect.gen(function*() {
            const opened = yield* Session.open("s")
            const run = yield* Effect.forkChild(
              Session.keep(
                opened,
                (session) => Session.reply(session, "go", { tools: tools([]), deadline: { after: 10_000, reserve: 0 } })
              )
            )
            yield* until(Effect.map(recordsOf("s"), (records) => records.some(({ _tag }) => _tag === "CallEnded")))
            yield* Fiber.interrupt(run)
          }).pipe(Effect.provide([casting(nested), listing(appends)]))
          const end = appends.findIndex(({ id, records }) =>
            id.startsWith("s/outer") && !id.includes("/", 8) && records.some(({ _tag }) => _tag === "RunEnded")
          )
          const cuts = [end + 1, end + 2]
          assert.isAbove(end, 0)
          yield* TestClock.adjust("1 hour")
          for (const length of cuts) {
            const world: Array<Deed> = []
            yield* passing(
              Effect.gen(function*() {
                const cut = (yield* Session.load("s"))!
                const kept = yield* Session.resume(cut, { tools: tools(world), takeOver: true })
                yield* isLoaded(kept)
                assert.deepStrictEqual(kept.value.result.outcome, { _tag: "Cancelled", reason: "deadline" })
                const lines = linesOf(kept.session)
                assert.include(lines, "tool outer: Outer", lines.join("\n"))
                assert.isEmpty(world)
              }).pipe(Effect.provide([casting(nested), holding(appends.slice(0, length), [], base as never)]))
            )
          }
        }))
    }
  }
})

describe("a tool call that had started when its process ended", () => {
  const two = casting({ go: [turn("charge", "other"), "Done", "More"] })
  const given = (world: Array<Deed>) => [acting(world, "charge"), acting(world, "other")]
  const deadline = { after: 10_000, reserve: 2_000 }

  const ways: Readonly<Record<string, (kept: Session.Kept) => Effect.Effect<Session.Kept, unknown, any>>> = {
    "a stop, without its tools": () =>
      Effect.gen(function*() {
        yield* Session.stop("s")
        return yield* Session.resume((yield* Session.load("s"))!, { takeOver: true })
      }),
    "a stop, with its tools": () =>
      Effect.gen(function*() {
        yield* Session.stop("s")
        return yield* Session.resume((yield* Session.load("s"))!, { takeOver: true, tools: given([]) })
      }),
    "a run that is too old, without its tools": (kept) => Session.resume(kept, { takeOver: true, maxAge: 1 }),
    "a cancellation": (kept) => Session.resume(kept, { takeOver: true, cancel: Effect.void, tools: given([]) }),
    "a cancellation while it waits for a place": (kept) => {
      const [charge, other] = given([])
      const slow = { ...charge!, afterCrash: "retry" as const, handler: () => Effect.never }
      return Session.resume(kept, {
        takeOver: true,
        cancel: Effect.sleep(50),
        maxConcurrency: 1,
        tools: [slow, { ...other!, afterCrash: "retry" as const }]
      })
    },
    "a halt before it": (kept) => {
      const [charge, other] = given([])
      const halt = { ...charge!, afterCrash: "retry" as const, handler: () => Effect.succeed(Tool.halt("over", 1)) }
      return Session.resume(kept, {
        takeOver: true,
        maxConcurrency: 1,
        policy: { ...Policy.standard, siblings: { ...Policy.standard.siblings, onHalt: "abortAll", queued: "skip" } },
        tools: [halt as unknown as typeof charge & object, other!]
      })
    },
    "a deadline that leaves no time for tools": (kept) =>
      Effect.andThen(
        Effect.sleep(8_500),
        Session.resume(kept, { takeOver: true, deadline, tools: given([]) })
      ),
    "a deadline that has passed": (kept) =>
      Effect.andThen(Effect.sleep(20_000), Session.resume(kept, { takeOver: true, deadline, tools: given([]) })),
    "another operation": (kept) => Session.keep(kept, (session) => Session.reply(session, "later")),
    "nothing else": (kept) => Session.abandon(kept)
  }

  for (const [what, way] of Object.entries(ways)) {
    it.effect(`Q-15: a call that started before the kill is answered unknown_effect after ${what}`, () =>
      Effect.gen(function*() {
        const appends: Array<Append> = []
        yield* Effect.gen(function*() {
          const opened = yield* Session.open("s")
          yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: given([]), deadline }))
        }).pipe(Effect.provide([two, listing(appends)]))
        const start = appends.findIndex(({ records }) => records.some(({ _tag }) => _tag === "CallStarted"))
        yield* passing(
          Effect.gen(function*() {
            yield* Effect.sleep(10)
            const kept = yield* way((yield* Session.load("s"))!)
            yield* isLoaded(kept)
            const answer = linesOf(kept.session).find((line) => line.startsWith("tool other"))
            assert.include(answer, "unknown_effect")
          }).pipe(Effect.provide([two, holding(appends.slice(0, start + 1))])),
          100
        )
      }))
  }
})

describe("a command from another process", () => {
  for (const when of ["before", "after"] as const) {
    for (const isClaimed of [false, true]) {
      it.effect(`Q-13: a stop from another process ${when} each append is not lost, ${isClaimed ? "with" : "without"} a claim`, () =>
        Effect.gen(function*() {
          const { appends, value } = yield* appendsOf((tools) => replying(tools))
          const journal = appends.filter(({ id }) => id === "s")
          for (const place of placesOf(2, appends.length)) {
            const where = `${when} append ${place} of ${appends[place - 1]?.id}, ${
              appends[place - 1]?.records.map(({ _tag }) => _tag).join(" ")
            }`
            const world: Array<Deed> = []
            const ended = yield* Deferred.make<Session.StopReport>()
            const stopping = Effect.gen(function*() {
              const receipt = yield* Session.stop("s")
              yield* Effect.forkDetach(Effect.flatMap(receipt.ended, (report) => Deferred.succeed(ended, report)))
            })
            const act = (append: Effect.Effect<number, any>, attempt: number) =>
              attempt > 1
                ? append
                : when === "before"
                ? Effect.andThen(stopping, append)
                : Effect.flatMap(append, (version) => Effect.as(stopping, version))
            yield* passing(
              Effect.gen(function*() {
                const kept = yield* (isClaimed
                  ? Effect.gen(function*() {
                    const claimed = yield* Session.claim("s")
                    return yield* Session.keep(
                      claimed,
                      (session) => Session.reply(session, "go", { tools: toolsOf(world), requestId: "run" })
                    )
                  }).pipe(Effect.scoped, Effect.provide(model))
                  : replying(toolsOf(world)))
                yield* isLoaded(kept, where)
                const report = yield* Deferred.await(ended)
                const records = yield* recordsOf("s")
                const isAsked = records.some(({ _tag }) => _tag === "StopRequested")
                if (isAsked) {
                  const { outcome } = kept.value.result
                  const isCompleted = outcome._tag === "Completed"
                  // Nothing starts behind it. One that comes when the last reply is asked for finds a run that ends by itself.
                  const stop = records.findIndex(({ _tag }) => _tag === "StopRequested")
                  const late = startedIn(records.slice(stop))
                  assert.isEmpty(world.filter(({ key }) => late.includes(key)), where)
                  const wholes = records.filter(({ _tag }) => _tag === "StepCompleted").length
                  if (wholes < 3) assert.isFalse(isCompleted, where)
                  const started = records.flatMap((record) => record._tag === "CallStarted" ? [record.toolCallId] : [])
                  const told = [...report.stopped, ...report.ended, ...report.refused, ...report.unknown]
                  assert.includeMembers(told, started, where)
                  assert.strictEqual(new Set(told).size, told.length, where)
                } else assert.deepStrictEqual(report, { stopped: [], ended: [], refused: [], unknown: [] }, where)
                for (const receipt of kept.state.receipts.values()) {
                  assert.strictEqual(receipt.became, "completed", where)
                }
                yield* finished(world, where)
                isOnce(world, where)
              }).pipe(Effect.provide(at(place, act)))
            )
          }
          assert.isAbove(journal.length, 10)
          assert.strictEqual(value.session.status, "completed")
        }))
    }

    it.effect(`Q-13: a message from another process ${when} each append is not lost`, () =>
      Effect.gen(function*() {
        const { appends, value } = yield* appendsOf((tools) => replying(tools))
        for (const place of placesOf(2, appends.length)) {
          const where = `${when} append ${place}`
          const world: Array<Deed> = []
          const submitting = Effect.orDie(Session.submit("s", "also", { id: "m1" }))
          const act = (append: Effect.Effect<number, any>, attempt: number) =>
            attempt > 1
              ? append
              : when === "before"
              ? Effect.andThen(submitting, append)
              : Effect.flatMap(append, (version) => Effect.as(submitting, version))
          yield* Effect.gen(function*() {
            const kept = yield* replying(toolsOf(world))
            assert.deepStrictEqual(kept.session, value.session, where)
            assert.strictEqual(Session.receipt((yield* Session.load("s"))!, "m1")?.became, "queued", where)
            assert.deepStrictEqual(yield* Stream.runCollect(Session.unfinished), ["s"], where)
            const loaded = (yield* Session.load("s"))!
            assert.strictEqual(Session.next(loaded), "reply")
            const done = yield* Session.keep(loaded, (session) =>
              Effect.provide(Session.reply(session, "also", { takes: "m1" }), model))
            yield* isLoaded(done, where)
            assert.strictEqual(
              linesOf(done.session).filter((line) =>
                line === "user: also"
              ).length,
              1,
              where
            )
            assert.strictEqual(Session.receipt(done, "m1")?.became, "completed", where)
            yield* inOrder
          }).pipe(Effect.provide(at(place, act)))
        }
      }))
  }

  it.effect("Q-13: a stop that comes between load and resume is a conflict for this resume, and the next resume honours the stop", () =>
    Effect.gen(function*() {
      const { appends } = yield* appendsOf((tools) => replying(tools))
      for (const length of placesOf(2, appends.length - 1)) {
        const world: Array<Deed> = []
        yield* Effect.gen(function*() {
          const stale = (yield* Session.load("s"))!
          const { ended } = yield* Session.stop("s")
          const error = yield* Effect.flip(Session.resume(stale, { tools: toolsOf(world), takeOver: true }))
          assert.strictEqual(error._tag, "SessionConflict")
          assert.isEmpty(world)
          const cut = (yield* Session.load("s"))!
          const kept = yield* Session.resume(cut, { tools: toolsOf(world), takeOver: true })
          assert.isEmpty(world, `behind append ${length}`)
          yield* ended
          yield* isLoaded(kept)
        }).pipe(Effect.provide([model, holding(appends.slice(0, length))]))
      }
    }))

  it.effect("Q-13: a stop completes when another operation closes the interrupted run", () =>
    Effect.gen(function*() {
      const { appends } = yield* appendsOf((tools) => replying(tools))
      for (const length of placesOf(2, appends.length - 1)) {
        const where = `behind append ${length}`
        yield* passing(
          Effect.gen(function*() {
            const stale = (yield* Session.load("s"))!
            const { ended } = yield* Session.stop("s")
            const kept = yield* Session.keep(stale, (session) => Session.reply(session, "later", { tools: [] }))
            yield* isLoaded(kept, where)
            assert.strictEqual(linesOf(kept.session).filter((line) => line === "user: later").length, 1, where)
            yield* ended
            for (const { became } of kept.state.receipts.values()) assert.strictEqual(became, "completed", where)
          }).pipe(Effect.provide([model, holding(appends.slice(0, length))]))
        )
      }
    }))

  it.effect("Q-13: an approval at any append of a running run is kept, and the next operation continues with it", () =>
    Effect.gen(function*() {
      const mixed = casting({ go: [turn("gated", "charge", "sub"), "Done", "More"], sub: parts.sub })
      const given = (world: Array<Deed>) => {
        const [charge, , sub] = toolsOf(world) as unknown as ReadonlyArray<Tool.Any>
        return [{ ...acting(world, "gated"), approval: true as const }, charge!, sub!] as unknown as []
      }
      const running = (world: Array<Deed>) =>
        Effect.gen(function*() {
          const opened = yield* Session.open("s")
          return yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: given(world) }))
        }).pipe(Effect.provide(mixed))
      const appends: Array<Append> = []
      yield* running([]).pipe(Effect.provide(listing(appends)))
      const waits = appends.findIndex(({ records }) => records.some(({ _tag }) => _tag === "CallWaits"))
      for (let place = waits + 2; place <= appends.length; place++) {
        const where = `append ${place}`
        const world: Array<Deed> = []
        const act = (append: Effect.Effect<number, any>, attempt: number) =>
          attempt > 1 ? append : Effect.andThen(
            Effect.gen(function*() {
              const kept = (yield* Session.load("s"))!
              yield* Session.keep(kept, (session) => Session.approve(session, "gated", { command: "v1" }))
            }),
            append
          )
        yield* Effect.gen(function*() {
          const kept = yield* running(world)
          yield* isLoaded(kept, where)
          assert.strictEqual(Session.next(kept), "continue", where)
          assert.strictEqual(Session.receipt(kept, "v1")?.became, "completed")
          const done = yield* Session.keep(
            kept,
            (session) => Effect.provide(Session.continue(session, null, { tools: given(world) }), mixed)
          )
          yield* isLoaded(done, where)
          assert.strictEqual(world.filter(({ tool }) => tool === "gated").length, 1, where)
          isOnce(world, where)
        }).pipe(Effect.provide(at(place, act)))
      }
    }))
})

describe("attempts and lost replies after a kill", () => {
  it.effect("Q-15: a call killed between its attempts gets its second attempt, and a call killed within it gets unknown_effect", () =>
    Effect.gen(function*() {
      for (const isApproved of [false, true]) {
        const tools = (attempts: Array<number>, failures: number) => [
          Tool.make("flaky", {
            parameters: {},
            retry: Schedule.recurs(1),
            ...(isApproved ? { approval: true as const } : {}),
            handler: (_, call) =>
              Effect.suspend(() => {
                attempts.push(call.attempt)
                return call.attempt <= failures ? Effect.fail("not yet") : Effect.succeed(`at ${call.attempt}`)
              })
          })
        ]
        const flaky = casting({ go: [turn("flaky"), "Done"] })
        const appends: Array<Append> = []
        yield* Effect.gen(function*() {
          const opened = yield* Session.open("s")
          const kept = yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: tools([], 1) }))
          if (!isApproved) return
          const approved = yield* Session.keep(kept, (session) => Session.approve(session, "flaky"))
          yield* Session.keep(approved, (session) => Session.continue(session, null, { tools: tools([], 1) }))
        }).pipe(Effect.provide([flaky, listing(appends)]))
        const failed = appends.findIndex(({ records }) => records.some(({ _tag }) => _tag === "AttemptFailed"))
        assert.isAbove(failed, 0)
        for (const [length, expected] of [[failed + 1, [2]], [failed + 2, []]] as const) {
          const attempts: Array<number> = []
          yield* Effect.gen(function*() {
            const cut = (yield* Session.load("s"))!
            const kept = yield* Session.resume(cut, { tools: tools(attempts, 1), takeOver: true })
            yield* isLoaded(kept)
            assert.deepStrictEqual(attempts, [...expected], `behind append ${length}`)
            const answer = linesOf(kept.session).find((line) => line.startsWith("tool flaky"))
            if (expected.length > 0) assert.strictEqual(answer, "tool flaky: at 2")
            else assert.include(answer, "unknown_effect")
          }).pipe(Effect.provide([flaky, holding(appends.slice(0, length))]))
        }
      }
    }))

  it.effect("Q-15: an early read-only call of a lost reply does not count for the repeated reply", () =>
    Effect.gen(function*() {
      const asked: Array<unknown> = []
      const look = Tool.make("look", {
        parameters: { at: Schema.String },
        readOnly: true,
        handler: ({ at }) => Effect.sync(() => (asked.push(at), `seen ${at}`))
      })
      const script = (place: string, isWhole: boolean) =>
        Script.layer([
          [
            Script.toolCall("c0", "look", { at: place }),
            Script.delay(100),
            ...(isWhole ? [Script.finish("tool_calls")] : [Script.delay(1_000_000), Script.finish("tool_calls")])
          ],
          [Script.text("Done"), Script.finish("stop")]
        ])
      const appends: Array<Append> = []
      yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const run = yield* Effect.forkChild(
          Session.keep(opened, (session) => Session.reply(session, "go", { tools: [look], requestId: "run" }))
        )
        yield* until(Effect.map(recordsOf("s"), (records) => records.some(({ _tag }) => _tag === "CallEnded")))
        yield* Fiber.interrupt(run)
      }).pipe(Effect.provide([script("here", false), listing(appends)]))
      assert.deepStrictEqual(asked, ["here"])
      const first = appends.findIndex(({ records }) => records.some(({ _tag }) => _tag === "CallStarted"))
      for (let length = first + 1; length <= appends.length; length++) {
        asked.length = 0
        yield* passing(
          Effect.gen(function*() {
            const cut = (yield* Session.load("s"))!
            assert.notInclude(linesOf(cut.session).join("\n"), "seen")
            const kept = yield* Session.resume(cut, { tools: [look], takeOver: true })
            yield* isLoaded(kept)
            assert.deepStrictEqual(asked, ["there"], `behind append ${length}`)
            assert.include(linesOf(kept.session), "tool c0: seen there")
          }).pipe(Effect.provide([script("there", true), holding(appends.slice(0, length))]))
        )
        yield* passing(
          Effect.gen(function*() {
            const kept = yield* Session.keep(
              (yield* Session.load("s"))!,
              (session) => Session.reply(session, "later", { tools: [look] })
            )
            yield* isLoaded(kept)
            assert.deepStrictEqual(linesOf(kept.session).slice(0, 2), ["user: go", "user: later"])
          }).pipe(Effect.provide([script("there", true), holding(appends.slice(0, length))]))
        )
      }
    }))

  it.effect("Q-15: a resume within a run with onMaxTurns: \"finalize\" runs no handler for calls of the final step", () =>
    Effect.gen(function*() {
      const final = casting({ go: [turn("charge"), turn("charge:second", "look:third"), "Done"] })
      const run = (world: Array<Deed>) => ({
        tools: toolsOf(world),
        maxTurns: 1,
        policy: { ...Policy.standard, onMaxTurns: "finalize" as const },
        requestId: "run"
      })
      const appends: Array<Append> = []
      const whole: Array<Deed> = []
      const { value } = yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        return yield* Session.keep(opened, (session) => Session.reply(session, "go", run(whole)))
      }).pipe(Effect.provide([final, listing(appends)]))
      assert.strictEqual(whole.length, 1)
      assert.strictEqual(value.result.finalized, "max_turns")
      // A slower store has each record in an append of its own.
      const single = appends.flatMap(({ id, records }) =>
        records.map((record): Append => ({ id, records: [record], options: undefined }))
      )
      for (let length = 2; length < single.length; length++) {
        const world: Array<Deed> = []
        const before = single.slice(0, length).flatMap(({ records }) => records)
        yield* Effect.gen(function*() {
          const cut = (yield* Session.load("s"))!
          const kept = yield* Session.resume(cut, { ...run(world), takeOver: true })
          yield* isLoaded(kept, `behind append ${length}`)
          const isStarted = startedIn(before).length > 0
          assert.strictEqual(world.length, isStarted ? 0 : 1, `behind append ${length}`)
          assert.notInclude(world.map(({ tool }) => tool), "look")
          if (before.some(({ _tag }) => _tag === "StepCompleted")) {
            assert.deepStrictEqual(kept.session, value.session, `behind append ${length}`)
          }
        }).pipe(Effect.provide([final, holding(single.slice(0, length))]))
      }
    }))
})

describe("Session.next", () => {
  const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which?")) })
  const gated = Tool.make("gated", { parameters: {}, approval: true, handler: () => Effect.succeed("done") })
  const manual = Tool.make("manual", { parameters: {}, manual: true })
  const tools = [ask, gated, manual, agent("sub", [gated])]
  const states = casting({
    go: [turn("ask", "gated", "manual", "sub"), "Done", "More"],
    sub: [turn("gated"), "Sub"],
    plain: ["Done", "More", "Most"]
  })
  const broken = Script.layer([[Script.text("so"), Script.streamError("network_error")], [
    Script.text("Again"),
    Script.finish("stop")
  ]])
  const none = Script.layer([[Script.preflightError("network_error")]])

  /** Fails where the store, what is loaded and what is kept do not say the same. */
  const isLeft = (kept: Session.Kept, next: Journal.Next, where: string) =>
    Effect.gen(function*() {
      assert.strictEqual(Session.next(kept), next, where)
      const loaded = (yield* Session.load(kept.id))!
      assert.strictEqual(Session.next(loaded), next, where)
      assert.strictEqual((yield* Session.inspect(kept.id))?.next, next, where)
      const listed = Array.from(yield* Stream.runCollect(Session.list())).find(({ id }) => id === kept.id)
      assert.strictEqual(listed?.next, next, where)
      const unfinished = yield* Stream.runCollect(Session.unfinished)
      const isUnfinished = next === "resume" || next === "reply" || next === "continue"
      assert.deepStrictEqual(unfinished.filter((id) => id === kept.id).length, isUnfinished ? 1 : 0, where)
      return loaded
    })

  for (const [name, base] of Object.entries(stores)) {
    it.effect(`Q-07: next is the same in the live session, the loaded session and the list, in each state, ${name}`, () =>
      Effect.gen(function*() {
        let kept: Session.Kept = yield* Session.open("s")
        kept = yield* isLeft(kept, "nothing", "a session that was opened")
        kept = yield* Session.keep(kept, (session) => Session.reply(session, "go", { tools: tools as unknown as [] }))
        kept = yield* isLeft(kept, "wait", "four calls wait")
        yield* Session.submit("s", "beside", { id: "m1" })
        kept = yield* isLeft((yield* Session.load("s"))!, "wait", "and a message")
        yield* Session.submit("s", "without an id")
        kept = yield* isLeft((yield* Session.load("s"))!, "wait", "and another one")
        kept = yield* Session.keep(kept, (session) => Session.answer(session, "ask", "this"))
        kept = yield* isLeft(kept, "wait", "three calls wait")
        kept = yield* Session.keep(kept, (session) => Session.approve(session, "gated"))
        kept = yield* Session.keep(kept, (session) => Session.answer(session, "manual", "by hand"))
        kept = yield* isLeft(kept, "wait", "one call waits")
        kept = yield* Session.keep(kept, (session) => Session.deny(session, session.suspensions[0]!.id))
        kept = yield* isLeft(kept, "reply", "settled, and messages wait")
        for (const { message, id } of kept.submitted!) {
          kept = yield* Session.keep(
            kept,
            (session) => Session.reply(session, message.content, { takes: id, tools: tools as unknown as [] })
          )
        }
        kept = yield* isLeft(kept, "nothing", "all is done")
        for (const { id, next } of yield* Stream.runCollect(Session.list())) {
          assert.strictEqual(next, "nothing", id)
        }
        yield* isLoaded(kept)
      }).pipe(Effect.provide([states, base])))

    it.effect(`Q-07: next is "continue" once all calls are settled, also after a continue that could not begin, ${name}`, () =>
      Effect.gen(function*() {
        let kept: Session.Kept = yield* Session.open("s")
        kept = yield* Session.keep(kept, (session) => Session.reply(session, "go", { tools: tools as unknown as [] }))
        for (const id of ["ask", "manual"]) {
          kept = yield* Session.keep(kept, (session) => Session.answer(session, id, "this"))
        }
        kept = yield* Session.keep(kept, (session) => Session.approve(session, "gated"))
        kept = yield* Session.keep(kept, (session) => Session.approve(session, "sub/gated"))
        kept = yield* isLeft(kept, "continue", "all is settled")
        const snapshot = yield* Effect.flip(Session.snapshot(kept))
        assert.deepInclude(snapshot, { reason: "unfinished" })
        // Nothing has run: it is given back as it was.
        const error = yield* Effect.flip(Session.keep(kept, (session) => Session.continue(session, null)))
        assert.strictEqual(error._tag, "ResumeError")
        kept = yield* isLeft((yield* Session.load("s"))!, "continue", "its tools were not there")
        kept = yield* Session.keep(
          kept,
          (session) => Session.continue(session, null, { tools: tools as unknown as [] })
        )
        kept = yield* isLeft(kept, "nothing", "it has continued")
      }).pipe(Effect.provide([states, base])))

    it.effect(`Q-07: next of a failed session is "nothing" until a message waits, whose reply recovers the session, ${name}`, () =>
      Effect.gen(function*() {
        let kept: Session.Kept = yield* Session.open("s")
        kept = yield* Session.keep(kept, (session) => Session.reply(session, "go"))
        assert.strictEqual(kept.session.status, "error")
        kept = yield* isLeft(kept, "nothing", "the run broke")
        yield* Session.submit("s", "later", { id: "m1" })
        kept = yield* isLeft((yield* Session.load("s"))!, "reply", "the run broke, and a message waits")
        const error = yield* Effect.flip(
          Session.keep(
            kept,
            (session) => Effect.provide(Session.reply(Session.recover(session), "later", { takes: "m1" }), none)
          )
        )
        assert.strictEqual(error._tag, "AdapterError")
        kept = yield* isLeft((yield* Session.load("s"))!, "reply", "its run could not begin")
        assert.strictEqual(Session.receipt(kept, "m1")?.became, "queued")
        kept = yield* Session.keep(kept, (session) => Session.reply(Session.recover(session), "later", { takes: "m1" }))
        kept = yield* isLeft(kept, "nothing", "it has replied")
        assert.strictEqual(Session.receipt(kept, "m1")?.became, "completed")
        yield* isLoaded(kept)
      }).pipe(Effect.provide([broken, base])))
  }

  it.effect("Q-07: next is \"resume\" behind each append of a killed run, and \"reply\" once the run is abandoned", () =>
    Effect.gen(function*() {
      const appends: Array<Append> = []
      yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: tools as unknown as [] }))
      }).pipe(Effect.provide([states, listing(appends)]))
      for (const length of placesOf(2, appends.length - 1)) {
        yield* Effect.gen(function*() {
          let kept = yield* isLeft((yield* Session.load("s"))!, "resume", `behind append ${length}`)
          yield* Session.submit("s", "beside", { id: "m1" })
          kept = yield* isLeft((yield* Session.load("s"))!, "resume", `behind append ${length}, with a message`)
          for (const { id, next } of yield* Stream.runCollect(Session.list())) {
            if (id !== "s") assert.strictEqual(next, "nothing", id)
          }
          kept = yield* Session.abandon(kept)
          yield* isLeft(kept, "reply", `behind append ${length}, abandoned`)
        }).pipe(Effect.provide([states, holding(appends.slice(0, length))]))
      }
    }))

  it.effect("Q-07: next is \"wait\" for a call with unknown effect, and the verdict decides how the call continues", () =>
    Effect.gen(function*() {
      const appends: Array<Append> = []
      const charge = (world: Array<Deed>) => [{ ...acting(world, "charge"), afterCrash: "ask" as const }]
      const one = casting({ go: [turn("charge"), "Done"] })
      yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: charge([]) }))
      }).pipe(Effect.provide([one, listing(appends)]))
      const start = appends.findIndex(({ records }) => records.some(({ _tag }) => _tag === "CallStarted"))
      const verdicts = {
        value: (session: Session.Session) => Session.answer(session, "charge", "it was charged"),
        again: (session: Session.Session) => Session.approve(session, "charge"),
        failed: (session: Session.Session) => Session.deny(session, "charge", "it was not")
      }
      for (const [verdict, settle] of Object.entries(verdicts)) {
        const world: Array<Deed> = []
        yield* Effect.gen(function*() {
          const cut = (yield* Session.load("s"))!
          let kept: Session.Kept = yield* Session.resume(cut, { tools: charge(world), takeOver: true })
          yield* isLoaded(kept)
          kept = yield* isLeft(kept, "wait", verdict)
          assert.deepStrictEqual(kept.session.suspensions.map(({ kind }) => kind), ["unknown"])
          kept = yield* Session.keep(kept, settle)
          kept = yield* isLeft(kept, "continue", verdict)
          kept = yield* Session.keep(kept, (session) => Session.continue(session, null, { tools: charge(world) }))
          kept = yield* isLeft(kept, "nothing", verdict)
          assert.strictEqual(world.length, verdict === "again" ? 1 : 0)
          const answer = linesOf(kept.session).find((line) => line.startsWith("tool charge"))
          assert.include(answer, { value: "it was charged", again: "charge done", failed: "it was not" }[verdict])
        }).pipe(Effect.provide([one, holding(appends.slice(0, start + 1))]))
      }
    }))
})

describe("a session without a store", () => {
  const note = Tool.make("note", {
    parameters: {},
    handler: (_, call) => Effect.as(call.updateContext({ noted: call.id }), "noted")
  })
  const toolbox = [
    note,
    Tool.make("fail", { parameters: {}, handler: () => Effect.fail("no") }),
    Tool.make("boom", { parameters: {}, handler: () => Effect.die(new Error("boom")) }),
    Tool.make("halt", { parameters: {}, handler: () => Effect.succeed(Tool.halt("enough", undefined)) }),
    Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which?")) }),
    Tool.make("gated", {
      parameters: {},
      approval: true,
      handler: (_, call) => Effect.as(call.updateContext({ gated: true }), "gated")
    }),
    Tool.make("again", { parameters: {}, approval: true, handler: () => Effect.succeed(Tool.askUser("And?")) }),
    Tool.make("ends", { parameters: {}, approval: true, handler: () => Effect.succeed(Tool.halt("over", { at: 1 })) }),
    Tool.make("manual", { parameters: {}, manual: true }),
    Tool.make("slow", { parameters: {}, timeout: 50, handler: () => Effect.never }),
    Tool.make("long", { parameters: {}, maxResultChars: 20, handler: () => Effect.succeed("long ".repeat(30)) }),
    agent("sub", [note])
  ] as unknown as []

  const turns: Readonly<Record<string, ReadonlyArray<ReadonlyArray<string>>>> = {
    "no calls": [],
    "a call": [["note"]],
    "calls that fail": [["fail", "boom", "note"], ["slow", "long"]],
    "a halt": [["note", "halt"]],
    "a question": [["ask"]],
    "questions": [["ask:a", "note", "ask:b"]],
    "approvals": [["gated:a", "note", "gated:b"]],
    "an approval that asks": [["again", "gated"]],
    "an approval that ends the run": [["ends", "gated"]],
    "all that waits": [["gated", "manual", "ask", "note"]],
    "a manual call": [["manual"]],
    "a sub-agent": [["sub", "note"]],
    "an unknown tool": [["nothing"]],
    "three turns": [["note"], ["sub"], ["long"]]
  }

  const given: Readonly<Record<string, object>> = {
    plain: {},
    "one turn": { maxTurns: 1 },
    "a last turn without tools": { maxTurns: 1, policy: { ...Policy.standard, onMaxTurns: "finalize" } },
    "one at a time": { maxConcurrency: 1 },
    "halt on error": { onToolError: "halt" },
    "a cancellation": { cancel: Effect.sleep(20) },
    "a deadline": { deadline: { after: 30, reserve: 0 } },
    "a context": { context: { user: "ann" } }
  }

  /** One operation after the other, each on what the one before it has left. */
  const steps: ReadonlyArray<
    readonly [string, (session: Session.Session, options: object) => Effect.Effect<unknown, unknown, any>, boolean]
  > = [
    ["appendUser", (session) => Session.appendUser(session, "go"), false],
    ["start", (session, options) => Session.start(session, { ...options, tools: toolbox }), true],
    [
      "settle",
      (session) =>
        Effect.reduce(
          session.suspensions,
          () => session,
          (session, { id, kind }) =>
            kind === "approval" ? Session.approve(session, id) : Session.answer(session, id, "yes")
        ),
      false
    ],
    ["step", (session, options) => Session.step(session, { ...options, tools: toolbox }), true],
    ["continue", (session, options) => Session.continue(session, null, { ...options, tools: toolbox }), true],
    [
      "reply",
      (session, options) => Session.reply(session, "and?", { ...options, tools: toolbox, pending: "deny" }),
      true
    ]
  ]

  const modelOf = (what: string) =>
    casting({
      go: [...(turns[what] ?? []).map((calls) => turn(...calls)), "Done", "More", "Most", "Last"],
      sub: [turn("note"), "Sub"]
    })

  /** Collects the events of an operation, with its exit. */
  const shown = (
    session: Session.Session,
    step: (typeof steps)[number],
    options: object,
    keeping: (
      operation: (session: Session.Session) => Effect.Effect<unknown, unknown, any>
    ) => Effect.Effect<unknown, unknown, any>
  ) =>
    Effect.gen(function*() {
      const events: Array<Event.Event> = []
      const onEvent = (event: Event.Event) => Effect.sync(() => void events.push(event))
      const exit = yield* Effect.exit(keeping((session) => step[1](session, { ...options, requestId: "run", onEvent })))
      void session
      return { events, exit }
    })

  /**
   * Calls that run at the same time come in no order of their own, and each of them in its own. One that waits does so for
   * another that has not ended, which recording makes last longer.
   */
  const byCall = (events: ReadonlyArray<Event.Event>): ReadonlyArray<Event.Event> => {
    const idOf = (event: Event.Event): string =>
      event._tag.startsWith("Tool") && !event._tag.startsWith("ToolCall") || event._tag === "AskUserRequested"
        ? "toolCallId" in event ? event.toolCallId : "id" in event ? String(event.id) : ""
        : ""
    const groups: Array<Array<Event.Event>> = []
    for (const given of events.filter(({ _tag }) => _tag !== "ToolQueued")) {
      const event = given._tag === "ToolExecutionStarted" ? { ...given, waited: [] } : given
      const last = groups.at(-1)
      if (last !== undefined && idOf(event) !== "" && idOf(last[0]!) !== "") last.push(event)
      else groups.push([event])
    }
    return groups.flatMap((group) =>
      group.toSorted((left, right) => idOf(left) < idOf(right) ? -1 : idOf(left) > idOf(right) ? 1 : 0)
    )
  }

  const plainExit = (exit: Exit.Exit<unknown, unknown>) =>
    Exit.isSuccess(exit) ? exit.value : String(Cause.squash(exit.cause))

  for (const what of Object.keys(turns)) {
    it.effect(`Q-08: a session without a store has the events, results and sessions of a kept session: ${what}`, () =>
      Effect.gen(function*() {
        for (const [how, options] of sampleOf(Object.entries(given), 3)) {
          for (const isStepped of how === "plain" || how === "one at a time" ? [false, true] : [false]) {
            yield* passing(
              Effect.gen(function*() {
                let own = Session.make({ id: "s" })
                let kept: Session.Kept = yield* Session.open("s")
                for (const step of steps) {
                  if (isStepped ? step[0] === "start" : step[0] === "step") continue
                  const where = `${how}, ${step[0]}${isStepped ? ", by steps" : ""}`
                  const one = yield* shown(own, step, options, (operation) => operation(own))
                  const two = yield* shown(own, step, options, (operation) =>
                    Effect.gen(function*() {
                      const before = kept
                      const after = yield* Session.keep(before, operation)
                      kept = after
                      return after.value
                    }))
                  assert.deepStrictEqual(byCall(two.events), byCall(one.events), where)
                  assert.deepStrictEqual(plainExit(two.exit), plainExit(one.exit), where)
                  const loaded = (yield* Session.load("s"))!
                  if (Exit.isSuccess(one.exit)) {
                    const value = one.exit.value as Session.Session | Session.Done
                    const after = "thread" in value ? value : value.session
                    assert.deepStrictEqual(loaded.session, after, where)
                    if (step[2] && step[0] !== "reply") {
                      const mode = step[0] === "step" ? "step" : "chat"
                      let reducer = Session.reducer(own, mode)
                      for (const event of one.events) reducer = Session.applyEvent(reducer, event)
                      const folded = Session.finalize(reducer)
                      assert.deepStrictEqual(folded.session, after, `${where}: the fold`)
                      assert.deepStrictEqual(
                        folded.result,
                        (value as Session.Done).result as never,
                        `${where}: the fold`
                      )
                    }
                    own = after
                  } else {
                    kept = loaded
                    assert.deepStrictEqual(loaded.session, own, where)
                  }
                  yield* inOrder
                }
              }).pipe(Effect.provide([modelOf(what), Session.Store.layerMemory]))
            )
          }
        }
      }))
  }
})

describe("a message, a verdict and a stop", () => {
  const { model: talk, toolsOf: toolsFor } = errands
  const ids = ["m1", "m2", "m3", "v1"]

  /** Gives every command again, as clients do that had no answer. One that does not fit yet is given later. */
  const given = Effect.gen(function*() {
    yield* Session.submit("s", "go", { id: "m1" })
    const isTaken = (id: string) =>
      Effect.map(Session.load("s"), (kept) => Session.receipt(kept!, id)?.became === "completed")
    if (!(yield* isTaken("m1"))) return
    yield* Session.submit("s", "more", { id: "m2" })
    const kept = (yield* Session.load("s"))!
    if (kept.interrupted !== undefined) return
    const settled = yield* Effect.result(
      Session.keep(kept, (session) => Session.approve(session, "gated", { command: "v1" }))
    )
    if (settled._tag === "Failure") {
      assert.deepInclude(settled.failure, { _tag: "SessionError", reason: "unknown_tool_call_id" })
    } else yield* Session.submit("s", "and then", { id: "m3" })
  })

  const compacted = (isCompacting: boolean) =>
    Effect.gen(function*() {
      if (!isCompacting) return
      const kept = (yield* Session.load("s"))!
      const next = Session.next(kept)
      if (next === "wait" && kept.submitted === undefined || next === "nothing") yield* Session.snapshot(kept)
    })

  const ended = (world: Array<Deed>, isCompacting: boolean, where: string) =>
    Effect.gen(function*() {
      for (let time = 0; time < 4; time++) {
        yield* given
        yield* given
        yield* compacted(isCompacting)
        yield* driven("s", toolsFor(world))
        yield* compacted(isCompacting)
      }
      const kept = (yield* Session.load("s"))!
      yield* isLoaded(kept, where)
      assert.strictEqual(Session.next(kept), "nothing", where)
      const lines = linesOf(kept.session)
      for (const words of ["go", "more", "and then"]) {
        assert.strictEqual(lines.filter((line) => line === `user: ${words}`).length, 1, `${where}\n${lines.join("\n")}`)
      }
      for (const id of ids) assert.strictEqual(Session.receipt(kept, id)?.became, "completed", `${where}: ${id}`)
      const others: ReadonlyArray<Effect.Effect<unknown, object, Session.Store | Adapter.Adapter>> = [
        Session.submit("s", "something else", { id: "m1" }),
        Session.submit("s", "go", { id: "v1" }),
        Session.keep(kept, (session) => Session.deny(session, "gated", "no", { command: "v1" })),
        Session.keep(kept, (session) => Session.reply(session, "else", { takes: "m2" }))
      ]
      for (const other of others) {
        assert.deepInclude(yield* Effect.flip(other), { reason: "id_taken" }, where)
      }
      assert.strictEqual(yield* Effect.flatMap(Session.Store, (store) => store.version("s")), kept.version, where)
      const keys = world.filter(({ tool }) => tool === "gated").map(({ key }) => key)
      assert.isAtMost(new Set(keys).size, 1, where)
      return kept
    })

  for (const isCompacting of [false, true]) {
    const how = isCompacting ? "with snapshots" : "without snapshots"
    it.effect(`Q-14: each command has exactly one end, over a kill at each append and repeated deliveries, ${how}`, () =>
      Effect.gen(function*() {
        const appends: Array<Append> = []
        yield* ended([], isCompacting, "whole").pipe(Effect.provide([talk, listing(appends)]))
        for (const length of placesOf(0, appends.length)) {
          const where = `behind append ${length}, ${appends[length - 1]?.records.map(({ _tag }) => _tag).join(" ")}`
          const after: Array<Append> = []
          yield* ended([], isCompacting, where).pipe(
            Effect.provide([talk, holding(appends.slice(0, length), after)])
          )
          // Killed once more, at some appends of the next owner.
          for (let again = 1 + length % 13; again < after.length; again += 13) {
            const twice = [...appends.slice(0, length), ...after.slice(0, again)]
            yield* ended([], isCompacting, `${where}, and ${again} appends later`).pipe(
              Effect.provide([talk, holding(twice)])
            )
          }
        }
      }))
  }

  it.effect("Q-14: an overtaken owner fails, writes nothing and loses nothing", () =>
    Effect.gen(function*() {
      const appends = yield* errands.appends
      for (const length of placesOf(2, appends.length - 1)) {
        const where = `behind append ${length}`
        yield* Effect.gen(function*() {
          const stale = (yield* Session.load("s"))!
          const world: Array<Deed> = []
          const done = yield* ended(world, false, where)
          if (done.version === stale.version) return
          const { length: deeds } = world
          const options = { tools: toolsFor(world), takeOver: true }
          const operations: ReadonlyArray<Effect.Effect<unknown, unknown, Session.Store | Adapter.Adapter>> = [
            Session.keep(stale, (session) =>
              Session.reply(Session.recover(session), "stale", { ...options, pending: "deny" })),
            stale.interrupted === undefined
              ? Session.keep(stale, (session) =>
                Session.appendUser(session, "stale"))
              : Session.resume(stale, options),
            ...stale.interrupted === undefined ? [] : [Session.abandon(stale)]
          ]
          for (const operation of operations) {
            const exit = yield* Effect.exit(operation)
            assert.isTrue(Exit.isFailure(exit), where)
          }
          const loaded = (yield* Session.load("s"))!
          assert.deepStrictEqual([loaded.version, loaded.session], [done.version, done.session], where)
          assert.strictEqual(world.length, deeds, where)
        }).pipe(Effect.provide([talk, holding(appends.slice(0, length))]))
      }
    }))

  it.effect("Q-14: the receipt of a message says how its run ended: stopped, failed, abandoned, completed, or not begun", () =>
    Effect.gen(function*() {
      const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.never })
      const script = (...replies: ReadonlyArray<ReadonlyArray<Script.Entry>>) => Script.layer([...replies])
      const calls = [Script.toolCall("wait", "wait"), Script.finish("tool_calls")]
      const ends: Readonly<
        Record<
          string,
          readonly [
            ReturnType<typeof script>,
            Journal.Receipt["became"],
            (kept: Session.Claimed) => Effect.Effect<unknown, unknown, any>
          ]
        >
      > = {
        stopped: [script(calls), "stopped", (claimed) =>
          Effect.gen(function*() {
            const run = yield* Effect.forkChild(
              Session.keep(claimed, (session) => Session.reply(session, "go", { takes: "m1", tools: [wait] }))
            )
            yield* until(Effect.map(recordsOf("s"), (records) => startedIn(records).length > 0))
            yield* Effect.flatMap(Session.stop("s"), ({ ended }) => ended)
            yield* Fiber.join(run)
          })],
        failed: [
          script([Script.text("so"), Script.streamError("network_error")]),
          "failed",
          (claimed) => Session.keep(claimed, (session) => Session.reply(session, "go", { takes: "m1" }))
        ],
        withdrawn: [script(calls), "withdrawn", (claimed) =>
          Effect.gen(function*() {
            const run = yield* Effect.forkChild(
              Session.keep(claimed, (session) => Session.reply(session, "go", { takes: "m1", tools: [wait] }))
            )
            yield* until(Effect.map(recordsOf("s"), (records) => startedIn(records).length > 0))
            yield* Fiber.interrupt(run)
            yield* Session.abandon((yield* Session.load("s"))!)
          })],
        queued: [
          script([Script.preflightError("network_error")]),
          "queued",
          (claimed) => Effect.flip(Session.keep(claimed, (session) => Session.reply(session, "go", { takes: "m1" })))
        ],
        completed: [
          script([Script.text("Hi"), Script.finish("stop")]),
          "completed",
          (claimed) => Session.keep(claimed, (session) => Session.reply(session, "go", { takes: "m1" }))
        ]
      }
      for (const [end, [layer, became, run]] of Object.entries(ends)) {
        yield* passing(
          Effect.scoped(Effect.gen(function*() {
            yield* Session.submit("s", "go", { id: "m1", by: "ann" })
            yield* run(yield* Session.claim("s"))
            const kept = (yield* Session.load("s"))!
            assert.strictEqual(Session.receipt(kept, "m1")?.became, became, end)
            const isQueued = became === "queued"
            assert.strictEqual(kept.submitted?.length ?? 0, isQueued ? 1 : 0, end)
            assert.strictEqual(
              linesOf(kept.session).filter((line) => line === "user: go").length,
              isQueued ? 0 : 1,
              end
            )
            yield* Session.submit("s", "go", { id: "m1" })
            assert.strictEqual((yield* Session.load("s"))?.version, kept.version, end)
            yield* inOrder
          })).pipe(Effect.provide([layer, Session.Store.layerMemory]))
        )
      }
    }))
})
