/**
 * A cluster under siege: while runs go on, a runner that is chosen at random is killed again and again, and another one is
 * started in its place. Every run has to end, with its effect once, and so have the events of each.
 */
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Random from "effect/Random"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { Message, Session } from "heddle"
import { SessionClient } from "heddle/cluster"
import * as Processes from "./processes.ts"
import { acts } from "./work.ts"

/** How long a siege is, and how hard. */
export interface Options {
  readonly database: string
  readonly world: string
  /** How many runs there are. */
  readonly runs: number
  /** How many runners are killed, one after the other. */
  readonly kills: number
  /** Milliseconds between two kills. A runner is killed only after it has worked. */
  readonly every: number
  /** Milliseconds in which the runs begin, one after the other. */
  readonly over: number
  /** Milliseconds that each run waits. */
  readonly wait: number
}

/** What came of it. */
export interface Report {
  readonly kills: number
  /** Runs that ended as they should. */
  readonly completed: number
  /** Runs that did not, with what was seen. */
  readonly broken: ReadonlyArray<string>
  /** How many charges there were, of one a run. */
  readonly charges: number
  /** Runs that were charged more than once. */
  readonly twice: number
  /** How often a run was resumed, all together and at most. */
  readonly resumptions: { readonly all: number; readonly most: number }
  /** The runners that are left. */
  readonly runners: ReadonlyArray<Processes.Runner>
}

const texts = (kept: Session.Kept | undefined) => kept?.session.thread.messages.map(Message.text) ?? []

/** Lays siege to a cluster of these runners. */
export const siege = (
  { database, every, kills, over, runs, wait, world }: Options,
  first: ReadonlyArray<Processes.Runner>
): Effect.Effect<Report, never, SessionClient.SessionClient | Session.Store | Scope.Scope> =>
  Effect.gen(function*() {
    const { follow, reply } = yield* SessionClient.SessionClient
    const prefix = `siege-${process.pid}-${Date.now()}`
    const ids = Array.from({ length: runs }, (_, index) => `${prefix}-${index}`)
    const run = (id: string, index: number) =>
      Effect.delay(
        Effect.match(Stream.runLast(follow(id, reply(id, `charge ${index + 1}, wait ${wait}`))), {
          onSuccess: (last) => {
            const end = Option.getOrUndefined(last)
            const status = end?._tag === "Reported" ? end.report.status : "without an end"
            return status === "completed" ? undefined : `${id} is ${status}`
          },
          onFailure: ({ message }) => `${id}: ${message}`
        }),
        index * over / runs
      )
    const working = yield* Effect.forkChild(Effect.forEach(ids, run, { concurrency: "unbounded" }))
    let alive = [...first]
    for (let kill = 0; kill < kills; kill++) {
      yield* Effect.sleep(every)
      const worked = () => {
        const pids = new Set(ids.flatMap((id) => acts(world, id).map(({ pid }) => pid)))
        return working.pollUnsafe() === undefined ? alive.filter(({ pid }) => pids.has(pid)) : alive
      }
      const victims = yield* Effect.repeat(Effect.sync(worked), {
        schedule: Schedule.spaced("20 millis"),
        until: ({ length }) => length > 0
      })
      const victim = victims[yield* Random.nextIntBetween(0, victims.length - 1)]!
      victim.signal("SIGKILL")
      alive = alive.filter((runner) => runner !== victim)
      alive.push(yield* Processes.start({ database, world }))
    }
    const broken = (yield* Fiber.join(working)).flatMap((message) => message ?? [])
    const threads = yield* Effect.orDie(Effect.forEach(ids, (id) => Effect.map(Session.load(id), texts)))
    const charges = ids.map((id) => acts(world, id).filter(({ what }) => what.startsWith("charge")).length)
    const store = yield* Session.Store
    const resumptions = yield* Effect.orDie(Effect.forEach(ids, (id) =>
      Effect.map(
        Stream.runCollect(store.read(id)),
        (entries) => entries.filter(({ record }) => record._tag === "RunStarted" && record.resumes === true).length
      )))
    return {
      kills,
      completed: runs - broken.length,
      // What was said, the calls, their two answers, and what the model made of them.
      broken: [...broken, ...threads.flatMap((thread) => thread.length === 5 ? [] : [`a thread of ${thread.length}`])],
      charges: charges.reduce((sum, count) => sum + count, 0),
      twice: charges.filter((count) => count > 1).length,
      resumptions: {
        all: resumptions.reduce((sum, count) => sum + count, 0),
        most: Math.max(...resumptions)
      },
      runners: alive
    }
  })
