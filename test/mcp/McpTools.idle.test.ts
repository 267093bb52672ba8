/** The time without progress of calls of an MCP server's tools, over loopback: the server's progress begins it anew. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { type Event, Message, Tool, ToolRunner } from "heddle"
import { McpTools } from "heddle/mcp"
import { find } from "../support/until.ts"
import { ledger } from "./support/ledger.ts"
import { serve } from "./support/serving.ts"

ledger()

const idle = "10 seconds"

describe("calls of a silent server", () => {
  for (const moves of [0, 3]) {
    it.live(`G79, G80: over HTTP, after ${moves} pieces of progress and then silence, the call times out and the server's handler is interrupted`, () =>
      Effect.gen(function*() {
        const isStarted = yield* Deferred.make<void>()
        const isStopped = yield* Deferred.make<void>()
        const steps = yield* Queue.unbounded<number>()
        const url = yield* serve([
          Tool.make("digs", {
            parameters: {},
            readOnly: true,
            timeout: "infinity",
            handler: (_, { progress }) =>
              Deferred.succeed(isStarted, undefined).pipe(
                Effect.andThen(Effect.forever(Effect.flatMap(Queue.take(steps), (at) => progress({ progress: at })))),
                Effect.onInterrupt(() => Deferred.succeed(isStopped, undefined))
              )
          })
        ])
        yield* Effect.gen(function*() {
          const tools = yield* McpTools.tools
          const clock = yield* TestClock.make()
          const seen: Array<Event.Event> = []
          const run = ToolRunner.stream([Message.toolCall("c0", "digs")], tools, { toolTimeout: { idle } }).pipe(
            Stream.runForEach((event) => Effect.sync(() => void seen.push(event))),
            Effect.andThen(Clock.currentTimeMillis)
          )
          const running = yield* Effect.forkChild(Effect.provideService(run, Clock.Clock, clock))
          yield* Deferred.await(isStarted)
          for (let at = 1; at <= moves; at++) {
            yield* clock.adjust("9 seconds")
            yield* Queue.offer(steps, at)
            yield* find(`progress ${at}`, Effect.sync(() => seen.filter(({ _tag }) => _tag === "ToolProgress")[at - 1]))
          }
          yield* clock.adjust(9_999)
          assert.isUndefined(running.pollUnsafe())
          yield* clock.adjust(1)
          yield* Deferred.await(isStopped)
          assert.strictEqual(yield* Fiber.join(running), moves * 9_000 + 10_000)
          const ends = seen.flatMap((event) => event._tag === "ToolResultEncoded" ? [event.content] : [])
          assert.lengthOf(ends, 1)
          assert.include(ends[0], "timed out after 10000 ms of idle time, without progress")
        }).pipe(Effect.provide(McpTools.layer({ url: `${url}/mcp` }, { trust: "annotations" })))
      }).pipe(Effect.scoped))
  }
})
