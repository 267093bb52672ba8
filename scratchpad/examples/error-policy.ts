/** What a failed call does to a run: the model reads it, the run halts, or the run fails with an error of yours. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Chat, Message, Tool } from "heddle"
import { Script } from "heddle/testing"

class NotFound extends Schema.TaggedError<NotFound>()("NotFound", { path: Schema.String }) {}
class DiskFull extends Schema.TaggedError<DiskFull>()("DiskFull", { free: Schema.Int }) {}
class Stopped extends Schema.TaggedError<Stopped>()("Stopped", { why: Schema.String }) {}

const read = Tool.make("read", {
  parameters: { path: Schema.String },
  handler: ({ path }) => Effect.fail(new NotFound({ path }))
})
const save = Tool.make("save", { parameters: {}, handler: () => Effect.fail(new DiskFull({ free: 0 })) })
const tools = [read, save] as const

const script = (name: string, args = {}) =>
  Script.layer([
    [Script.toolCall("c0", name, args), Script.finish("tool_calls")],
    [Script.text("I see."), Script.finish("stop")]
  ])

// 1. By default the model reads the error with its fields, and goes on.
const told = await Effect.runPromise(
  Chat.run("Go", { tools }).pipe(Effect.provide(script("read", { path: "/a" })))
)
console.log("continue:", Message.text(told.thread.messages[2]!), told.outcome._tag)

// 2. "halt" ends the run.
const halted = await Effect.runPromise(
  Chat.run("Go", { tools, onToolError: "halt" }).pipe(Effect.provide(script("save")))
)
console.log("halt:", halted.outcome._tag, halted.haltedReason)

// 3. A function decides by the type of the error; what it fails with is in the type of the run.
const policy = (_call: Message.ToolCall, error: NotFound | DiskFull | Tool.ToolError) =>
  Effect.succeed(
    error._tag === "DiskFull"
      ? Tool.ErrorDecision.fail(new Stopped({ why: "the disk is full" }))
      : Tool.ErrorDecision.continue("there is nothing")
  )
const failed = await Effect.runPromise(
  Chat.run("Go", { tools, onToolError: policy }).pipe(
    Effect.as("no failure"),
    Effect.catchTag("Stopped", ({ why }) => Effect.succeed(why)),
    Effect.provide(script("save"))
  )
)
console.log("fail:", failed)
