/**
 * What a program comes to with a budget of operations: the scheduler makes a fiber yield after so many of them
 * (`MaxOpsBeforeYield`), which decides where an answer comes while its reader is still under way.
 */
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Scheduler from "effect/Scheduler"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Message, Session } from "heddle"
import { linesOf, recordsOf } from "./edges.ts"

export const between = (minimum: number, maximum: number) =>
  Arbitrary.schema(Schema.Int.check(Schema.isBetween({ minimum, maximum })))

/** A model that calls a tool where the user says its name, and else answers at once. */
export const calling = (...tools: ReadonlyArray<string>) =>
  Adapter.layer({
    stream: ({ messages }) => {
      const last = messages.at(-1)!
      const said = last.role === "user" ? Message.text(last) : ""
      const calls = tools.includes(said) ? [Message.toolCall(`c${messages.length}`, said, {})] : []
      return Stream.fromIterable([
        { _tag: "MessageStarted", message: Message.assistant("") },
        { _tag: "TextCompleted", id: null, text: `answer ${messages.length}` },
        ...calls.flatMap(({ id, name }) => [
          { _tag: "ToolCallStarted", id, name } as const,
          { _tag: "ToolCallCompleted", id, name, arguments: {}, rawArguments: "{}" } as const
        ]),
        {
          _tag: "MessageCompleted",
          message: Message.assistant(`answer ${messages.length}`, calls),
          finishReason: calls.length === 0 ? "stop" : "tool_calls",
          metadata: {}
        }
      ])
    }
  })

/** What a session has come to: its messages, its records, and what is left to do. */
export const summaryOf = (id: string) =>
  Effect.gen(function*() {
    const kept = yield* Session.load(id)
    if (kept === undefined) return { lines: [], next: "none", tags: [] }
    const records = yield* recordsOf(id)
    return {
      lines: linesOf(kept.session),
      next: Session.next(kept),
      // Concurrent calls may be recorded in another order.
      tags: records.map(({ _tag }) => _tag).sort()
    }
  })

/** Budgets, mostly small ones. Effect itself makes no progress with fewer than three operations. */
export const budgets = Arbitrary.flatMap(between(0, 2), (size) => between(3, [2_048, 300, 40][size]!))

/** A budget that no program of a law reaches: its fibers yield where they say so, and nowhere else. */
export const boundless = 2 ** 30

/** Lets the process take a turn. */
export const turn = Effect.callback<void>((resume) => void setImmediate(() => resume(Effect.void)))

/** What a program comes to with a budget of operations, in so many turns of the process, while the clock stands still. */
export const outcomeOf = (
  program: Effect.Effect<unknown, unknown>,
  budget: number,
  patience: number
): Effect.Effect<string> =>
  Effect.gen(function*() {
    const fiber = Effect.runForkWith(yield* Effect.context<never>())(
      program.pipe(
        Effect.provide(TestClock.layer()),
        Effect.provideService(Scheduler.MaxOpsBeforeYield, budget)
      )
    )
    for (let turns = 0; turns < patience && fiber.pollUnsafe() === undefined; turns++) yield* turn
    const exit = Option.fromUndefinedOr(fiber.pollUnsafe())
    if (Option.isNone(exit)) {
      fiber.interruptUnsafe()
      return "it waits for time"
    }
    return Exit.isSuccess(exit.value) ? JSON.stringify(exit.value.value) : `it fails: ${String(exit.value.cause)}`
  })
