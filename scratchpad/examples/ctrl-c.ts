/** Ctrl-C in a terminal: the first one stops a run softly, the second interrupts it and waits, the third ends the process. */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as ChildProcess from "effect/process/ChildProcess"
import { ChildProcessSpawner } from "effect/process/ChildProcessSpawner"
import * as Schema from "effect/Schema"
import { Chat, Tool } from "heddle"
import { Script } from "heddle/testing"

const withCtrlC = <A, E, R>(run: (softly: Effect.Effect<void>) => Effect.Effect<A, E, R>) =>
  Effect.gen(function*() {
    const softly = Latch.makeUnsafe(false)
    const fiber = yield* Effect.forkDetach(run(softly.await))
    let presses = 0
    const press = () => {
      process.exitCode = 130
      console.error(["stopping", "interrupting", "ending"][presses++])
      if (presses === 1) softly.openUnsafe()
      else if (presses === 2) fiber.interruptUnsafe()
      else process.exit()
    }
    process.prependListener("SIGINT", press)
    // NodeRuntime.runMain interrupts the outer fiber at the first Ctrl-C; the run is in the forked one, and continues.
    const left = Effect.suspend(() => presses === 0 ? Fiber.interrupt(fiber) : Fiber.await(fiber))
    return yield* Fiber.join(fiber).pipe(
      Effect.onInterrupt(() => left),
      Effect.ensuring(Effect.sync(() => process.off("SIGINT", press)))
    )
  })

const [runner, script = "echo hello"] = process.argv.slice(2)

const shell = Tool.make("shell", {
  parameters: { script: Schema.String },
  handler: ({ script }) =>
    ChildProcessSpawner.use((spawner) =>
      spawner.exitCode(ChildProcess.make("sh", ["-c", script], { stdout: "inherit" }))
    )
})
const model = Script.layer([
  [Script.toolCall("c0", "shell", { script }), Script.finish("tool_calls")],
  [Script.text("It has run."), Script.finish("stop")]
])

const program = withCtrlC((softly) =>
  Effect.map(
    Chat.run("Run it", { tools: [shell], cancel: softly, grace: "1 minute" }),
    ({ outcome }) => console.log("outcome:", outcome._tag)
  )
).pipe(Effect.provide([model, NodeServices.layer]))

if (runner === "main") NodeRuntime.runMain(program)
else await Effect.runPromiseExit(program)
