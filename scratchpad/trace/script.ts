/** The same model as a script, in this process. */
import { Script } from "heddle/testing"

export const model = Script.layer([
  [Script.toolCall("call_1", "weather", { city: "Oslo" }), Script.finish("tool_calls")],
  [Script.text("Four "), Script.text("degrees."), Script.finish("stop")]
])
