/**
 * Runs that survive a crash without a session, for programs that call `Chat.run` and `Chat.stream` themselves. Each
 * run is recorded in a journal, and is resumed when the program is started again with the same id.
 *
 * **Details**
 *
 * A run is identified by its input, and by the number of earlier runs with the same input. A restarted program has to
 * start the same runs again. An interrupted run is resumed from its journal: a recorded reply is not asked for again,
 * and a call that has ended does not run again. A finished run returns its recorded result. Nested runs of handlers
 * are recorded in the same way, at any depth.
 *
 * @since 0.1.0
 */
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import * as Journal from "../Journal.ts"
import * as Session from "../Session.ts"

/**
 * Options of recording the runs of a program.
 *
 * @category options
 * @since 0.1.0
 */
export interface Options extends Session.RunsOptions {
  /**
   * The id of this execution of the program: the same when it is started again after a crash, and another one for new
   * work. The ids of its journals begin with it, so `Session.delete` of the id removes them.
   */
  readonly id: string
  /**
   * Name of the owner that claims the id: two concurrent programs with one id would do everything twice. A random
   * name by default.
   */
  readonly owner?: string
  /**
   * Duration of the claim unless it is renewed: the id of a dead process stays claimed for this time. A number is
   * milliseconds. `"30 seconds"` by default.
   */
  readonly term?: Duration.Input
}

/**
 * Records the runs of the program that the layer is provided to.
 *
 * Fails with a `SessionClaimed` if another program holds the id. After a kill, the id stays claimed until the `term`
 * of the dead process is over. A run that can no longer be recorded, because the store fails or the claim is lost,
 * dies with that error.
 *
 * The suspensions of a run are in its result, as without the layer. A manual call continues in a run on the thread
 * and `Message.answer(id, value)`, a question in a run on the thread and `Message.user(answer)`. An approval needs a
 * session.
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
  given: Options
): Layer.Layer<never, Journal.SessionClaimed | Journal.StoreError, Session.Store> =>
  Layer.unwrap(
    Effect.suspend(() => {
      checkNames("Durable.layer", given, knownOptions)
      const { afterCrash, id, owner, term } = given
      const options = { ...(owner === undefined ? {} : { owner }), ...(term === undefined ? {} : { term }) }
      return Effect.map(
        Journal.claim(id, options),
        (claim) => Session.layerRuns(claim, afterCrash === undefined ? {} : { afterCrash })
      )
    })
  )

const knownOptions = {
  id: Values.name,
  afterCrash: Values.oneOf("retry", "report", "ask", "fail"),
  owner: Values.name,
  term: Values.finiteDuration
} satisfies NamesOf<Options>
