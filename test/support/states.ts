/** States of journals as plain data, for comparison. */
import type * as States from "../../src/internal/session/state.ts"

export const dataOf = (state: States.State): unknown => ({
  ...state,
  turn: state.turn && { ...state.turn, calls: Array.from(state.turn.calls) },
  run: state.run && {
    ...state.run,
    came: Array.from(state.run.came),
    before: { ...state.run.before, turn: state.run.before.turn && Array.from(state.run.before.turn.calls) }
  },
  receipts: Array.from(state.receipts.values())
})
