/**
 * Trees of runs: runs whose tools are runs, down to a tool that works, and how many of those there are at a time.
 */
import { assert } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { type Adapter, Chat, type Event, Tool } from "heddle"
import { Script } from "heddle/testing"

/** Counts the running handlers. */
export class Gauge {
  now = 0
  most = 0
  total = 0

  readonly during = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.suspend(() => {
      this.now++
      this.total++
      this.most = Math.max(this.most, this.now)
      return Effect.ensuring(effect, Effect.sync(() => this.now--))
    })
}

const callsOf = (name: string, count: number) =>
  Array.from({ length: count }, (_, index) => Script.toolCall(`${name}${index}`, name))

/** A model that calls a tool some times, and then says that it is done. */
export const caller = (name: string, count: number) =>
  Script.layer([[...callsOf(name, count), Script.finish("tool_calls")], [Script.text("done"), Script.finish("stop")]])

/** A tree of runs: at the bottom a tool that works, above it runs as tools. */
export const tree = (
  depth: number,
  width: number,
  leaf: Tool.Tool<string, any, any, any, never>,
  options: Chat.Options = {}
): Stream.Stream<Event.Event, Chat.ChatError> => {
  const tool = depth === 1
    ? leaf
    : Tool.fromChat("agent", { parameters: {}, chat: () => tree(depth - 1, width, leaf) })
  const run: Stream.Stream<Event.Event, Chat.ChatError, Adapter.Adapter> = Chat.stream("go", {
    ...options,
    tools: [tool]
  })
  return Stream.provide(run, caller(tool.name, width))
}

/** A tool that works for a while and is counted meanwhile. */
export const leafOf = (gauge: Gauge, millis = 10) =>
  Tool.make("leaf", { parameters: {}, handler: () => gauge.during(Effect.as(Effect.sleep(millis), "leaf")) })

/** The result that a run ended with. */
export const lastOf = (events: ReadonlyArray<Event.Event>): Event.ChatResult => {
  const last = events.at(-1)
  return last?._tag === "ChatCompleted" ? last.result : assert.fail("the stream did not complete")
}
