/** A tool that times out, a run that is stopped softly with its result kept, and a handler that does not stop. */
import * as Effect from "effect/Effect"
import { Chat, Message, Tool } from "heddle"
import { Script } from "heddle/testing"

const slow = Tool.make("slow", {
  parameters: {},
  timeout: "50 millis",
  handler: () => Effect.never.pipe(Effect.onInterrupt(() => Effect.sync(() => console.log("slow: cleaned up"))))
})
const patient = Tool.make("patient", { parameters: {}, handler: () => Effect.never })
const deaf = Tool.make("deaf", { parameters: {}, handler: () => Effect.uninterruptible(Effect.sleep("2 seconds")) })

const ask = (name: string) =>
  Script.layer([
    [Script.toolCall("c0", name), Script.finish("tool_calls")],
    [Script.text("It took too long."), Script.finish("stop")]
  ])

// A timeout is an answer to the model, and the run goes on.
const timedOut = await Effect.runPromise(Chat.run("Go", { tools: [slow] }).pipe(Effect.provide(ask("slow"))))
console.log("timeout:", Message.text(timedOut.thread.messages[2]!))
console.log("timeout:", timedOut.finalResponse?.outputText)

// A soft stop ends the run with a result. An AbortSignal works as well as an effect.
const controller = new AbortController()
setTimeout(() => controller.abort(), 50)
const stopped = await Effect.runPromise(
  Chat.run("Go", { tools: [patient], cancel: controller.signal }).pipe(Effect.provide(ask("patient")))
)
console.log("cancel:", stopped.outcome)

// A handler that does not stop is left behind after the grace period, and named.
const left = await Effect.runPromise(
  Chat.run("Go", { tools: [deaf], cancel: Effect.sleep("50 millis"), grace: "100 millis" }).pipe(
    Effect.provide(ask("deaf"))
  )
)
console.log("abandoned:", left.abandoned?.map(({ kind, name }) => `${kind} ${name}`))
