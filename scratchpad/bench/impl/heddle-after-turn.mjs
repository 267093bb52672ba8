/** The same with tools that say nothing of themselves: they start when the model's reply has ended. */
import { heddle } from "./heddle.mjs"

export default { ...heddle("heddle-after-turn", false), kind: "ours" }
