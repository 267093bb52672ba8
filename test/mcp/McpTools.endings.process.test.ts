/** The processes of servers: none outlives its connection, wherever that is cut, nor this process. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as TestClock from "effect/testing/TestClock"
import { Message, ToolRunner } from "heddle"
import { McpTools } from "heddle/mcp"
import { execFileSync } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { limit, until } from "../support/until.ts"
import { ledger } from "./support/ledger.ts"

ledger()

const fixture = path.join(import.meta.dirname, "../fixtures/mcpHostile.ts")

type Era = "legacy" | "modern" | "silent" | "unready" | "unlisted"

/** A server, and the file in which each of its processes notes its start. */
const scene = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-endings-"))),
  (folder) => Effect.sync(() => fs.rmSync(folder, { recursive: true }))
).pipe(Effect.map((folder) => {
  const starts = path.join(folder, "starts")
  fs.writeFileSync(starts, "")
  return {
    layer: (era: Era, ...more: ReadonlyArray<string>) =>
      McpTools.layer({ name: "hostile", command: process.execPath, args: [fixture, era, starts, ...more] }, {
        approval: "none"
      }),
    started: Effect.sync(() => fs.readFileSync(starts, "utf8").split("\n").filter((line) => line !== "").length),
    /** The processes that are alive, also those that have noted nothing so far. */
    living: () =>
      execFileSync("ps", ["-eo", "pid,args"], { encoding: "utf8" }).split("\n").filter((line) => line.includes(starts))
  }
}))

/** Does as the end of a process does with what listens to it. */
const exiting = () => {
  for (const listener of process.listeners("exit")) {
    if (!before.has(listener)) (listener as (code: number) => void)(0)
  }
}

const before = new Set(process.listeners("exit"))

const listeners = () => process.listeners("exit").filter((listener) => !before.has(listener)).length

/** Lets this process do some of its work. */
const turn = Effect.promise(() => new Promise<void>((resolve) => setImmediate(resolve)))

describe("the process of a server", { timeout: limit }, () => {
  for (const era of ["silent", "unready", "unlisted"] as const) {
    for (const stays of [[], ["stays"]]) {
      it.live(`O-23: a server process has ended once its handshake is interrupted (${era} ${stays.join()})`, () =>
        Effect.gen(function*() {
          const { layer, living, started } = yield* scene
          const building = yield* Effect.forkChild(Effect.scoped(Layer.build(layer(era, ...stays))))
          yield* until("the process", started, (count) => count === 1)
          assert.strictEqual(listeners(), 1)
          yield* Fiber.interrupt(building)
          assert.deepStrictEqual(living(), [])
          assert.strictEqual(listeners(), 0)
        }).pipe(Effect.scoped))
    }

    it.effect(`O-23: a server process has ended once its handshake takes too long (${era})`, () =>
      Effect.gen(function*() {
        const { layer, living, started } = yield* scene
        const building = yield* Effect.forkChild(Effect.exit(Effect.scoped(Layer.build(layer(era, "stays")))))
        const real = <A, E>(effect: Effect.Effect<A, E>) => Effect.provideService(effect, Clock.Clock, realClock)
        yield* real(until("the process", started, (count) => count === 1))
        // The SDK takes its own time to find that a server says nothing of its protocol: no clock here moves that.
        yield* Effect.whileLoop({
          while: () => building.pollUnsafe() === undefined,
          body: () => Effect.andThen(TestClock.adjust("30 seconds"), turn),
          step: () => undefined
        })
        const exit = yield* Fiber.join(building)
        assert.isTrue(Exit.isFailure(exit))
        assert.include(String(exit), "took longer than 120000 ms")
        // The clock of the test leaves the end of a connection no time.
        yield* real(until("its end", Effect.sync(listeners), (count) => count === 0))
        assert.deepStrictEqual(living(), [])
      }).pipe(Effect.scoped))
  }

  it.live("O-23: a server process has ended wherever the opening of its connection is interrupted, again and again", () =>
    Effect.gen(function*() {
      const { layer, living } = yield* scene
      for (const era of ["legacy", "modern"] as const) {
        for (let turns = 0; turns < 400; turns = Math.ceil(turns * 1.7) + 1) {
          const building = yield* Effect.forkChild(Effect.scoped(Layer.build(layer(era))))
          for (let count = 0; count < turns; count++) yield* turn
          yield* Fiber.interrupt(building)
          assert.deepStrictEqual(living(), [], `${era} after ${turns} turns`)
          assert.strictEqual(listeners(), 0)
        }
      }
    }).pipe(Effect.scoped))

  for (const era of ["silent", "unready", "unlisted", "legacy"] as const) {
    it.live(`O-23: a server process ends with the client process (${era})`, () =>
      Effect.gen(function*() {
        const { layer, living, started } = yield* scene
        const building = yield* Effect.forkChild(
          Effect.scoped(Effect.andThen(Layer.build(layer(era, "stays")), Effect.never))
        )
        yield* until("the process", started, (count) => count === 1)
        assert.lengthOf(living(), 1)
        exiting()
        yield* until("its end", Effect.sync(living), (alive) => alive.length === 0)
        yield* Fiber.interrupt(building)
      }).pipe(Effect.scoped))
  }

  it.live("O-23: a call starts a server process again, and the second process has ended once its handshake is interrupted", () =>
    Effect.gen(function*() {
      const { layer, living, started } = yield* scene
      yield* Effect.gen(function*() {
        const tools = yield* McpTools.tools
        yield* ToolRunner.run([Message.toolCall("d", "dies")], tools)
        assert.deepStrictEqual(living(), [])
        const second = yield* Effect.forkChild(ToolRunner.run([Message.toolCall("s", "says")], tools))
        yield* until("the second process", started, (count) => count === 2)
        yield* Fiber.interrupt(second)
      }).pipe(Effect.provide(layer("legacy", "stays")))
      assert.deepStrictEqual(living(), [])
      assert.strictEqual(listeners(), 0)
    }).pipe(Effect.scoped))

  it.live("O-26: a busy server process gets its signal at once, without the delay of the SDK", () =>
    Effect.gen(function*() {
      const { layer, living } = yield* scene
      yield* Effect.gen(function*() {
        const tools = yield* McpTools.tools
        const held = yield* Effect.forkChild(ToolRunner.run([Message.toolCall("n", "busy")], tools))
        const seen = Effect.map(
          ToolRunner.run([Message.toolCall("s", "seen")], tools),
          ({ messages }) => String(messages[0]?.content)
        )
        yield* until("the call", seen, (content) => content.includes("busy"))
        yield* Fiber.interrupt(held)
        yield* withoutSeconds
      }).pipe(Effect.provide(layer("legacy")), Effect.scoped)
      assert.deepStrictEqual(living(), [])
    }).pipe(Effect.scoped))
})

/** Lets the time for which the SDK waits go on for ever, until the scope closes. */
const withoutSeconds = Effect.acquireRelease(
  Effect.sync(() => {
    const own = globalThis.setTimeout
    const held: typeof own = ((run: () => void, millis: number) =>
      own(millis === 2_000 ? () => undefined : run, millis)) as never
    globalThis.setTimeout = held
    return own
  }),
  (own) => Effect.sync(() => void (globalThis.setTimeout = own))
)

const realClock = Effect.runSync(Effect.clockWith(Effect.succeed))
