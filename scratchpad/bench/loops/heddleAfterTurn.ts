/** Heddle with tools that say nothing of themselves: they start when the model's reply has ended. */
import { heddle } from "./heddle.ts"

export const implementation = heddle("Heddle, tools after the turn", false, [
  "parallel",
  "settlesLast",
  "reportsAbandoned",
  "closes"
])
