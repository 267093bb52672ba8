/**
 * An approval from the browser to its end: a page posts what `useChat` posts once a call is approved, and reads the
 * stream of the run. Before the count begins the server runs, and the call waits.
 */
import * as Effect from "effect/Effect"
import * as HttpServer from "effect/http/HttpServer"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { Session } from "heddle"
import { Agent, Server } from "heddle/server"
import { model } from "./script.ts"
import { approvedWeather } from "./tools.ts"

const helper = Agent.make({
  name: "helper",
  description: "Knows the weather",
  run: () => Effect.succeed({ tools: [approvedWeather] })
})

const app = Server.layer({ agents: [helper], authorize: Server.allowLoopback }).pipe(
  Layer.provide([model, Session.Store.layerMemory]),
  Server.layerNode({ port: 0 })
)

const question = { id: "u1", role: "user", parts: [{ type: "text", text: "What is the weather in Oslo?" }] }

export const approval = async (): Promise<() => Promise<string | undefined>> => {
  const context = await Effect.runPromise(Layer.buildWithScope(app, Scope.makeUnsafe()))
  const url = await Effect.runPromise(Effect.provide(HttpServer.addressFormattedWith(Effect.succeed), context))
  const sessions = `${url}/agents/helper/sessions`
  const post = async (messages: ReadonlyArray<unknown>) => {
    const response = await fetch(sessions, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ id: "weather", trigger: "submit-message", messages })
    })
    return response.text()
  }
  await post([question])
  const { messages } = await (await fetch(`${sessions}/weather`)).json() as { messages: Array<any> }
  const call = messages.at(-1).parts.find(({ state }: any) => state === "approval-requested")
  Object.assign(call, { state: "approval-responded", approval: { id: call.approval.id, approved: true } })
  return async () => {
    const stream = await post(messages)
    return [...stream.matchAll(/"type":"text-delta".*?"delta":"(.*?)"/g)].map(([, delta]) => delta).join("")
  }
}
