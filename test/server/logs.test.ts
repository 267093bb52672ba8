/**
 * The logs of a process: in any order of runs, readers and removals, their bytes are those of the events they hold, and the
 * sessions that count as running are those whose run is under way or expected.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import type { Event } from "heddle"
import * as Bounds from "../../src/server/internal/bounds.ts"
import * as Logs from "../../src/server/internal/log.ts"
import { oneOf } from "../support/dimensions/dimension.ts"
import { property } from "../support/property.ts"

const actions = Arbitrary.array(
  Arbitrary.all({
    does: oneOf(
      "begin",
      "begin",
      "push",
      "push",
      "push",
      "end",
      "end",
      "follow",
      "follow",
      "leave",
      "remove",
      "expect"
    ),
    key: oneOf("a", "a", "b"),
    /** Number of characters of what a run says. A log has 300 bytes, and all of them have 700. */
    length: oneOf(1, 50, 200, 400),
    isWhole: oneOf(true, true, false)
  }),
  { minLength: 1, maxLength: 30 }
)

describe("logs", () => {
  property(
    "W-09: logs count the bytes of their events, and no bytes once their runs and readers are gone",
    actions,
    (actions) =>
      Effect.gen(function*() {
        const problems: Array<string> = []
        const bounds = { ...Bounds.standard, log: 300, logs: 700 }
        const hub = new Logs.Hub(bounds, 0, yield* Effect.scope, {}, yield* Clock.Clock)
        const readers: Array<readonly [key: string, scope: Scope.Closeable]> = []
        const { ended, logs } = hub as any
        let version = 0
        /** The sessions whose run is under way, and those whose run is about to begin. */
        const [begun, expected] = [new Set<string>(), new Set<string>()]
        const compare = (what: string) => {
          const held = new Set<Logs.RunLog>([...logs.values(), ...ended.values()])
          const sum = Array.from(held).reduce(
            (all, { entries }) => all + entries.reduce((bytes, entry) => bytes + (entry?.text.length ?? 0), 0),
            0
          )
          if ((hub as any).bytes !== sum) problems.push(`${what}: ${(hub as any).bytes} bytes in place of ${sum}`)
          for (const { entries, isFull } of held) {
            if (isFull && entries.length > 0) problems.push(`${what}: a full log holds`)
          }
          const running = Array.from(new Set([...begun, ...expected])).sort().join()
          const told = Array.from(hub.running("", () => true)).sort().join()
          if (told !== running) problems.push(`${what}: ${told} run in place of ${running}`)
          if (sum > bounds.logs) problems.push(`${what}: ${sum} bytes are held`)
        }
        const leave = (place: number) => {
          const [reader] = readers.splice(place, 1)
          return reader === undefined ? Effect.void : Scope.close(reader[1], Exit.void)
        }
        for (const [index, { does, isWhole, key, length }] of actions.entries()) {
          if (does === "begin") {
            begun.add(key)
            expected.delete(key)
            hub.begin(key, { runId: `r${index}`, version: ++version, takes: undefined, past: [] })
          } else if (does === "push") {
            yield* hub.push(key, { _tag: "TextDelta", id: null, delta: "x".repeat(length) } as unknown as Event.Event)
          } else if (does === "end") {
            if (isWhole) {
              const outcome = { _tag: "Completed", finishReason: "stop" }
              yield* hub.push(key, { _tag: "ChatCompleted", result: { outcome } } as unknown as Event.Event)
            }
            hub.end(key)
            begun.delete(key)
          } else if (does === "remove") {
            hub.remove(key)
            begun.delete(key)
            expected.delete(key)
          } else if (does === "expect") {
            hub.expect(key)
            expected.add(key)
          } else if (does === "follow") {
            const scope = yield* Scope.make()
            yield* Effect.provideService(hub.follow(key), Scope.Scope, scope)
            readers.push([key, scope])
          } else yield* leave(readers.findIndex((reader) => reader[0] === key))
          compare(`${index} ${does} ${key}`)
        }
        for (const key of ["a", "b"]) hub.end(key)
        begun.clear()
        while (readers.length > 0) yield* leave(0)
        compare("at the end")
        if (logs.size + ended.size > 0) problems.push(`${logs.size} logs, and ${ended.size} of ended runs, are left`)
        return problems
      }).pipe(Effect.scoped),
    20_000
  )
})
