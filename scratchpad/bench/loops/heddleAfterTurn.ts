/** Heddle with tools that say nothing of themselves: they start when the model's reply has ended. */
import { heddle } from "./heddle.ts"

export default heddle("Heddle, tools after the turn", false, ["settlesLast", "reportsAbandoned", "closes"])
