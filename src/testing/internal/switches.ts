/** Checks that the run switches models only before the reply has said something. */
import type * as Event from "../../Event.ts"
import * as Fold from "../../internal/fold/fold.ts"
import * as Policy from "../../Policy.ts"
import type { Violation } from "./violation.ts"

export const switches = (events: ReadonlyArray<Event.Event>): ReadonlyArray<Violation> => {
  const found: Array<Violation> = []
  const state = Fold.initial(Policy.standard)
  /** `true` if the previous event discarded a reply after its first word. `undefined` if it discarded none. */
  let hadSaid: boolean | undefined
  events.forEach((event, index) => {
    const add = (message: string): number => found.push({ law: "switches", message, index })
    if (event._tag === "ModelSwitched") {
      const between = `from "${event.from}" to "${event.to}"`
      if (hadSaid === undefined) add(`the switch ${between} does not follow a StepReset`)
      if (hadSaid === true) add(`the switch ${between} discards a reply that had said something`)
    }
    hadSaid = event._tag === "StepReset" ? Fold.hasSaid(state) : undefined
    Fold.apply(state, [event])
  })
  return found
}
