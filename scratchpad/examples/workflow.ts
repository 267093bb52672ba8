/**
 * A session as a step of a workflow: an order has a model work on it, and is shipped once that is done. Over a real cluster,
 * with `NodeClusterHttp.layer(Cluster.transport({ host, port }))` for the `TestRunner` here, both outlive their process.
 */
import * as ClusterWorkflowEngine from "effect/cluster/ClusterWorkflowEngine"
import * as TestRunner from "effect/cluster/TestRunner"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Activity from "effect/workflow/Activity"
import * as Workflow from "effect/workflow/Workflow"
import { Session, Tool } from "heddle"
import { Cluster, SessionClient } from "heddle/cluster"
import { Script } from "heddle/testing"

const payload = { id: Schema.String, item: Schema.String }
const Order = Workflow.make("Order", { payload, success: Schema.String, idempotencyKey: ({ id }) => id })

/** The session has the id of the order, the command the one of the step: a step that begins twice says it once. */
const reserve = (id: string, item: string) =>
  Activity.make({
    name: "reserve",
    success: SessionClient.Report,
    execute: Effect.gen(function*() {
      const client = yield* SessionClient.SessionClient
      const options = { command: yield* Activity.idempotencyKey("reserve") }
      return yield* Effect.orDie(client.reply(id, `Reserve ${item}`, options))
    })
  })

const ship = (id: string) => Activity.make({ name: "ship", execute: Effect.sync(() => console.log(`shipped ${id}`)) })

const orders = Order.toLayer(Effect.fnUntraced(function*({ id, item }) {
  const { outputText, status } = yield* reserve(id, item)
  if (status === "completed") yield* ship(id)
  return outputText
}))

const stock = Tool.make("stock", {
  parameters: { item: Schema.String },
  handler: ({ item }) => Effect.sync(() => console.log(`reserved ${item}`)).pipe(Effect.as({ item, shelf: 3 }))
})
const model = Script.layer([
  [Script.toolCall("c0", "stock", { item: "a heddle" }), Script.finish("tool_calls")],
  [Script.text("A heddle, from shelf 3."), Script.finish("stop")]
])

const cluster = orders.pipe(
  Layer.provideMerge(ClusterWorkflowEngine.layer),
  Layer.provide([SessionClient.layer, Cluster.layer({ run: () => ({ tools: [stock] }) })]),
  Layer.provide([model, Session.Store.layerMemory]),
  Layer.provide(TestRunner.layer)
)
const order = Order.execute({ id: "order-7", item: "a heddle" })
await Effect.runPromise(
  Effect.all([order, order]).pipe(Effect.map((said) => console.log(said)), Effect.provide(cluster))
)
