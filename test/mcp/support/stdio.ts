/**
 * A server of MCP as a process of its own, over standard input and output: `node stdio.ts FILE`. It notes in the file
 * what becomes of its calls and of itself.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { Session, Tool } from "heddle"
import { McpServer } from "heddle/mcp"
import { Agent } from "heddle/server"
import * as fs from "node:fs"
import { obedient } from "../../server/support/hostile.ts"

const file = process.argv[2] ?? ""
const note = (text: string) => Effect.sync(() => fs.appendFileSync(file, `${text}\n`))

const loud = Tool.make("loud", {
  parameters: {},
  handler: (_, { progress }) =>
    Effect.gen(function*() {
      console.log("printed by the handler")
      console.info("and this")
      yield* Effect.logInfo("logged by the handler")
      yield* progress("half")
      return { said: "loud" }
    })
})

const pay = Tool.make("pay", {
  parameters: { amount: Schema.Finite },
  approval: true,
  handler: ({ amount }) => Effect.as(note(`paid ${amount}`), `paid ${amount}`)
})

const ask = Tool.make("ask", {
  parameters: {},
  handler: () => Effect.succeed(Tool.askUser("Which number?", { answer: Schema.Int }))
})

const endless = Tool.make("endless", {
  parameters: {},
  handler: () => Effect.ensuring(Effect.andThen(note("began"), Effect.never), note("stopped"))
})

const helper = Agent.make({ name: "helper", description: "Helps", run: () => ({ tools: [pay, endless] }) })

const server = McpServer.layerStdio({ tools: [loud, pay, ask, endless], agents: [helper] }).pipe(
  Layer.provide([obedient, Session.Store.layerMemory])
)

NodeRuntime.runMain(Effect.ensuring(Layer.launch(server), note("left")))
