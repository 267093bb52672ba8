/**
 * Makes runs survive a crash without a session, for programs calling `Chat.run` and `Chat.stream` themselves. A journal
 * records each run. Started again with the same id, the program resumes its runs.
 *
 * **Details**
 *
 * A run is identified by its input, and by the number of earlier runs with the same input, so a restarted program must
 * start the same runs again. An interrupted run resumes from its journal: it repeats no recorded model request, and no
 * completed call runs again. A finished run returns its recorded result. Nested runs are recorded in the same way, at
 * any depth.
 */
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import * as Journal from "../Journal.ts"
import * as Session from "../Session.ts"

/**
 * Options for recording a program's runs.
 *
 * @category options
 */
export interface Options extends Session.RunsOptions {
  /**
   * Id of this program execution: the same after a crash, a new id for new work. Journal ids begin with it, so passing
   * it to `Session.delete` removes them all.
   */
  readonly id: string
  /**
   * Name of the owner claiming the id. Without a claim, two concurrent programs with the same id would do everything
   * twice. Defaults to a random name.
   */
  readonly owner?: string
  /**
   * Claim duration unless renewed. A dead process's id stays claimed for this time. A number is milliseconds.
   * `"30 seconds"` by default.
   */
  readonly term?: Duration.Input
}

/**
 * Records the runs of the program using the layer.
 *
 * The layer fails with `SessionClaimed` if another program holds the id. After a kill, the id stays claimed until the
 * dead process's `term` ends. If a run can no longer be recorded, because the store fails or the claim is lost, the run
 * dies with that error.
 *
 * A run's result contains its suspensions, as without the layer. To continue a manual call, run the thread with
 * `Message.answer(id, value)`; to continue a question, run it with `Message.user(answer)`. An approval needs a session.
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
