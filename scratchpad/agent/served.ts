/**
 * The folder agent as `heddle serve` takes it: `npm run serve`. It looks in the folder in which it is started, or in the
 * one that HEDDLE_FOLDER names, and takes its model from the environment as `npm start` does.
 */
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import { Agent, Server } from "heddle/server"
import * as Adapter from "./adapter.ts"
import { system } from "./prompt.ts"
import * as Settings from "./settings.ts"
import * as Tools from "./tools.ts"
import * as Workspace from "./workspace.ts"

// Each answer has one of its own.
const budget = Settings.budgetOf(Settings.budgetTokens)

const folder = process.env["HEDDLE_FOLDER"] ?? process.cwd()

const model = Layer.unwrap(Effect.gen(function*() {
  const environment = yield* Settings.environment
  const none = Option.none<string>()
  return Adapter.layer(yield* Settings.chooseModel(environment, { provider: none, model: none }))
}))

const workspace = Layer.provide(Workspace.layer({ folder, notes: Option.none() }), NodeServices.layer)

const agent = Agent.make<Workspace.Workspace>({
  name: "folder",
  description: `Answers questions about the files in ${folder}`,
  run: () => Effect.succeed({ tools: Tools.all, system, maxTurns: 12, grace: "2 seconds", budget })
})

export default Server.define({ agents: [agent], publishCost: true, layer: Layer.merge(model, workspace) })
