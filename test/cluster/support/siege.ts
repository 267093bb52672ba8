/**
 * A cluster under siege: while runs go on, a runner that is chosen at random is killed again and again, and another one is
 * started in its place. Every run has to end, with its effect once.
 */
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Random from "effect/Random"
import type * as Scope from "effect/Scope"
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
  /** Milliseconds between two kills. */
  readonly every: number
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
  /** The runners that are left. */
  readonly runners: ReadonlyArray<Processes.Runner>
}

const texts = (kept: Session.Kept | undefined) => kept?.session.thread.messages.map(Message.text) ?? []

/** Lays siege to a cluster of these runners. */
export const siege = (
  { database, every, kills, runs, world }: Options,
  first: ReadonlyArray<Processes.Runner>
): Effect.Effect<Report, never, SessionClient.SessionClient | Session.Store | Scope.Scope> =>
  Effect.gen(function*() {
    const { reply } = yield* SessionClient.SessionClient
    const duration = kills * every
    const prefix = `siege-${process.pid}-${Date.now()}`
    const ids = Array.from({ length: runs }, (_, index) => `${prefix}-${index}`)
    const run = (id: string, index: number) =>
      Effect.delay(
        Effect.match(reply(id, `charge ${index + 1}, wait ${Math.round(every / 2)}`), {
          onSuccess: ({ status }) => status === "completed" ? undefined : `${id} is ${status}`,
          onFailure: ({ message }) => `${id}: ${message}`
        }),
        index * duration / runs
      )
    const working = yield* Effect.forkChild(Effect.forEach(ids, run, { concurrency: "unbounded" }))
    let alive = [...first]
    for (let kill = 0; kill < kills; kill++) {
      yield* Effect.sleep(every)
      const victim = alive[yield* Random.nextIntBetween(0, alive.length - 1)]!
      victim.signal("SIGKILL")
      alive = alive.filter((runner) => runner !== victim)
      alive.push(yield* Processes.start({ database, world }))
    }
    const broken = (yield* Fiber.join(working)).flatMap((message) => message ?? [])
    const threads = yield* Effect.orDie(Effect.forEach(ids, (id) => Effect.map(Session.load(id), texts)))
    const charges = ids.map((id) => acts(world, id).filter(({ what }) => what.startsWith("charge")).length)
    return {
      kills,
      completed: runs - broken.length,
      // What was said, the calls, their two answers, and what the model made of them.
      broken: [...broken, ...threads.flatMap((thread) => thread.length === 5 ? [] : [`a thread of ${thread.length}`])],
      charges: charges.reduce((sum, count) => sum + count, 0),
      twice: charges.filter((count) => count > 1).length,
      runners: alive
    }
  })
