/**
 * A process that does not stop when it is asked: run like the agent, it says what it was asked and goes on for ever.
 */
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import { runMain, Stop } from "../../src/command/internal/stop.ts"

const stop = new Stop()
stop.enterSoft()

// A signal that follows at once is taken for an echo of the first one, so that the next is only invited after that.
const invite = (word: string) => Effect.andThen(Effect.sleep("200 millis"), Console.log(word))

const program = Effect.gen(function*() {
  yield* Console.log("begun")
  yield* stop.requested
  yield* invite("asked")
  yield* stop.interrupted
  yield* invite("interrupted")
  return yield* Effect.never
}).pipe(Effect.uninterruptible, Effect.as(0))

runMain(program, stop)
