/**
 * The same program on LangGraph: its agent over its own checkpointers, with the same model, the same effects and the same
 * kinds of boundaries. Started again, it goes on from the last checkpoint, by `invoke(null)`, as its documentation says.
 */
import { BaseChatModel } from "@langchain/core/language_models/chat_models"
import { AIMessage, type BaseMessage, HumanMessage } from "@langchain/core/messages"
import { tool } from "@langchain/core/tools"
import type { BaseCheckpointSaver } from "@langchain/langgraph"
import { createReactAgent } from "@langchain/langgraph/prebuilt"
import * as Effect from "effect/Effect"
import { parseArgs } from "node:util"
import * as KillPoint from "../../../src/testing/KillPoint.ts"
import { payments as turns } from "../turns.ts"

const { values } = parseArgs({
  options: {
    store: { type: "string", default: "sqlite" },
    version: { type: "string", default: "v1" },
    durability: { type: "string", default: "async" },
    server: { type: "string", default: "" },
    thread: { type: "string", default: KillPoint.folder() }
  }
})

const at = (name: string) => Effect.runSync(KillPoint.at(name))

/** The model: what it replies follows from the messages alone. */
class Scripted extends BaseChatModel {
  constructor() {
    super({})
  }

  _llmType(): string {
    return "scripted"
  }

  override bindTools(): this {
    return this
  }

  async _generate(messages: Array<BaseMessage>) {
    Effect.runSync(KillPoint.asked)
    const turn = messages.filter((message) => message.type === "ai").length
    const calls = turns[turn] ?? []
    const content = calls.length === 0 ? "Both orders are paid." : "One moment."
    // As many boundaries as the events of the reply have.
    const events = ["MessageStarted", "TextDelta", ...calls.flatMap(() => ["ToolCallStarted", "ToolCallCompleted"])]
    for (const event of [...events, "TextCompleted", "MessageCompleted"]) {
      await Promise.resolve()
      at(`the model's ${event}`)
    }
    const message = new AIMessage({
      content,
      tool_calls: calls.map(([name, args], index) => ({ type: "tool_call", id: `call-${turn}-${index}`, name, args }))
    })
    return { generations: [{ message, text: content }] }
  }
}

const tools = ["lookup", "charge", "mail"].map((name) =>
  tool(
    async (args: Record<string, unknown>) => {
      const call = { attempt: 1, idempotencyKey: "", toolCall: { name, arguments: args } }
      await Effect.runPromise(KillPoint.act(call))
      Effect.runSync(KillPoint.returned(call))
      return `${name} is done`
    },
    { name, description: name, schema: { type: "object", properties: {}, additionalProperties: true } }
  )
)

/** A saver with a boundary before and after each of its writes. */
const watched = <A extends BaseCheckpointSaver>(saver: A): A => {
  for (const name of ["put", "putWrites"] as const) {
    const write = (saver[name] as (...args: ReadonlyArray<unknown>) => Promise<unknown>).bind(saver)
    Object.assign(saver, {
      [name]: async (...args: ReadonlyArray<unknown>) => {
        at(`before ${name}`)
        const written = await write(...args)
        at(`after ${name}`)
        return written
      }
    })
  }
  return saver
}

/** The saver, and what closes it. */
const open = async (): Promise<readonly [BaseCheckpointSaver, () => unknown]> => {
  if (values.store === "sqlite") {
    const { SqliteSaver } = await import("@langchain/langgraph-checkpoint-sqlite")
    const saver = SqliteSaver.fromConnString(`${KillPoint.folder()}/checkpoints.db`)
    return [saver, () => (saver as unknown as { readonly db: { readonly close: () => void } }).db.close()]
  }
  const { PostgresSaver } = await import("@langchain/langgraph-checkpoint-postgres")
  const saver = PostgresSaver.fromConnString(`${values.server}/postgres`)
  await saver.setup()
  return [saver, () => saver.end()]
}

const [saver, close] = await open()
const agent = createReactAgent({
  llm: new Scripted(),
  tools,
  version: values.version as "v1" | "v2",
  checkpointSaver: watched(saver)
})
const config = {
  configurable: { thread_id: values.thread },
  durability: values.durability as "async" | "sync" | "exit"
}

// `next` is empty as well where the writes of a task are kept and its checkpoint is not, so that it does not say that the run
// is over. Asked to go on, a run that is over gives its result.
const before = await agent.getState(config)
const isNew = before.next.length === 0 && before.values.messages === undefined
const state = await agent.invoke(isNew ? { messages: [new HumanMessage("Pay both orders")] } : null, config)
const messages: ReadonlyArray<BaseMessage> = state.messages
await Effect.runPromise(KillPoint.done(messages.map((message) => `${message.type}: ${message.text}`)))
await close()
