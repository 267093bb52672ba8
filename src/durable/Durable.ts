/**
 * Runs that survive without a session: for programs that call `Chat.run` and `Chat.stream` themselves. Each of their runs is
 * kept in a journal, and where the program is started again after a crash, with the same id, its runs go on where they were.
 *
 * **Details**
 *
 * A run is known by what it is given: its input, and how many runs with the same input came before it. The program has to
 * come to the same runs when it is started again. One that was cut goes on with its ledger: a reply that was read is not asked
 * for again, and a call that has ended does not run again. One that has ended gives its recorded result. Runs that their
 * handlers start are kept in the same way, at any depth.
 *
 * @since 0.1.0
 */
import * as Deferred from "effect/Deferred"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import * as SubAgent from "../internal/answer/subAgent.ts"
import type * as Claims from "../internal/session/claim.ts"
import * as Recorders from "../internal/session/recorder.ts"
import * as SessionRun from "../internal/session/run.ts"
import type * as Stores from "../internal/session/store.ts"
import type * as Tool from "../Tool.ts"

/**
 * How the runs of a program are kept.
 *
 * @category options
 * @since 0.1.0
 */
export interface Options {
  /**
   * The id of this execution of the program: the same when it is started again after a crash, and another one for work that
   * is new. The ids of its journals begin with it, so that `Session.delete` of the id removes them.
   */
  readonly id: string
  /**
   * What becomes of a call that had started when the process ended, where the tool says nothing: neither `unknown` nor
   * `lookUp`, nor that it is `readOnly` or `idempotent`. `"report"` by default.
   */
  readonly unknown?: Tool.Unknown
  /** Who claims the id: two programs with one id at once would do everything twice. A random one by default. */
  readonly owner?: string
  /**
   * How long the claim lasts where it is not renewed: so long the id of a process that is gone stays taken. A number
   * is milliseconds. `"30 seconds"` by default.
   */
  readonly term?: Duration.Input
}

/**
 * Keeps the runs of the program that it is provided to.
 *
 * Fails with a `SessionClaimed` where another program has the id. After a kill that is so until the `term` of the dead
 * process is over. A run that cannot be recorded any more, because the store fails or the claim is lost, dies with that
 * error.
 *
 * What a run waits for is in its result, as without the layer. A manual call goes on with a run on the thread and
 * `Message.answer(id, value)`, a question with `Message.user(answer)` behind it. An approval needs a session.
 *
 * **Example** (A program that is started twice)
 *
 * ```ts import.meta.vitest
 * import * as Effect from "effect/Effect"
 * import { Chat, Session, Tool } from "heddle"
 * import { Durable } from "heddle/durable"
 * import { Script } from "heddle/testing"
 *
 * let paid = 0
 * const pay = Tool.make("pay", { parameters: {}, handler: () => Effect.sync(() => ++paid) })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "pay", {}), Script.finish("tool_calls")],
 *   [Script.text("Paid."), Script.finish("stop")]
 * ])
 * const program = Chat.run("Pay the invoice", { tools: [pay] }).pipe(
 *   Effect.provide(Durable.layer({ id: "invoice-7" })),
 *   Effect.map(({ finalResponse }) => finalResponse?.outputText)
 * )
 * const twice = Effect.all([program, program]).pipe(Effect.provide([model, Session.Store.layerMemory]))
 *
 * await Effect.runPromise(twice) // => ["Paid.", "Paid."]
 * paid // => 1
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const layer = (
  { id, owner, term, unknown }: Options
): Layer.Layer<never, Claims.SessionClaimed | Stores.StoreError, Stores.Store> =>
  Layer.effect(
    SubAgent.CurrentNesting,
    Effect.gen(function*() {
      const options = { ...(owner === undefined ? {} : { owner }), ...(term === undefined ? {} : { term }) }
      const around = yield* Recorders.around(id, options, unknown)
      const { canGoOn, stream } = SessionRun.nesting(around, undefined, [])
      const broken = Effect.orDie(Deferred.await(around.failed))
      return {
        canGoOn,
        stream: (input: unknown, options: unknown) => Stream.interruptWhen(stream(input, options), broken)
      }
    })
  )
