/** A shop whose agent makes runs of every kind: calls that wait, sub-agents, failures, questions, and a late stop. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Message, Tool } from "heddle"
import { Script } from "heddle/testing"

const say = (text: string, every = 18): ReadonlyArray<Script.Entry> =>
  Array.from(text.matchAll(/\S+\s*/g)).flatMap(([word]) => [Script.text(word), Script.delay(every)])

const call = (id: string, name: string, parameters: Record<string, string | number>): ReadonlyArray<Script.Entry> => [
  Script.delay(90),
  Script.toolCall(id, name, parameters)
]

const used = (inputTokens: number, outputTokens: number) => Script.usage({ inputTokens, outputTokens })

const calls = Script.finish("tool_calls")

const end = Script.finish("stop")

type Reply = ReadonlyArray<Script.Entry>

const weaving: ReadonlyArray<Reply> = [
  [
    Script.delay(420),
    ...say("I look into the shop, "),
    ...call("c01", "read", { path: "stock.md", ms: 1500 }),
    ...call("c02", "read", { path: "orders.md", ms: 700 }),
    ...call("c03", "search", { query: "loom", ms: 1900 }),
    ...call("c04", "account", { to: "ann", ms: 800 }),
    ...call("c05", "account", { to: "ann", ms: 600 }),
    ...call("c06", "account", { to: "bob", ms: 500 }),
    ...call("c07", "account", { to: "ann", ms: 400 }),
    ...call("c08", "fails", { ms: 300 }),
    ...call("c09", "research", { topic: "looms" }),
    ...call("c10", "research", { topic: "heddles" }),
    used(1800, 220),
    calls
  ],
  [
    Script.delay(350),
    ...say("now I write. "),
    ...call("d01", "read", { path: "a.md", ms: 900 }),
    ...call("d02", "read", { path: "b.md", ms: 1200 }),
    ...call("d03", "write", { path: "plan.md", ms: 900 }),
    ...call("d04", "read", { path: "c.md", ms: 600 }),
    ...call("d05", "read", { path: "d.md", ms: 500 }),
    ...call("d06", "fails", { ms: 300 }),
    ...call("d07", "search", { query: "warp", ms: 700 }),
    used(4200, 180),
    calls
  ],
  [
    Script.delay(300),
    ...say("and the last ones. "),
    ...call("e01", "deaf", { ms: 6000 }),
    ...call("e02", "block", { ms: 2500 }),
    ...call("e03", "read", { path: "z.md", ms: 9000 }),
    used(6100, 90),
    calls
  ],
  [...say("All is woven."), used(7000, 10), end]
]

const ordering: ReadonlyArray<Reply> = [
  [
    Script.delay(200),
    ...say("I order both. "),
    ...call("o1", "order", { title: "Emma", copies: 1 }),
    ...call("o2", "order", { title: "Persuasion", copies: 2 }),
    ...call("o3", "asks", {}),
    used(500, 60),
    calls
  ],
  [...say("Both are on their way."), used(800, 20), end]
]

const researching = (topic: string): ReadonlyArray<Reply> => [
  [
    Script.delay(250),
    ...call(`s0-${topic}`, "search", { query: topic, ms: 500 }),
    ...call(`s1-${topic}`, "read", { path: `${topic}.md`, ms: 900 }),
    ...call(`s2-${topic}`, "read", { path: `${topic}-2.md`, ms: 300 }),
    used(300, 40),
    calls
  ],
  [Script.delay(200), ...say(`What is known of ${topic}: a heddle lifts the warp.`), used(620, 25), end]
]

const asking = (topic: string): ReadonlyArray<Reply> => [
  [...call(`a-${topic}`, "order", { title: topic, copies: 1 }), used(30, 4), calls],
  [...say("Ordered."), used(40, 5), end]
]

const replies = (asked: string): ReadonlyArray<Reply> => {
  if (asked.startsWith("sub:")) return researching(asked.slice(4))
  if (asked.startsWith("ask:")) return asking(asked.slice(4))
  if (asked.startsWith("weave")) return weaving
  if (asked.startsWith("order")) return ordering
  if (asked.startsWith("delegate")) {
    return [[...call("p1", "delegate", { topic: "Emma" }), used(50, 6), calls], [...say("Done."), used(60, 7), end]]
  }
  return [[Script.delay(150), ...say(`You said: ${asked}`), used(120, 18), end]]
}

/** A model that replies by what it was asked, and by the number of the turn. */
export const model = Adapter.layer({
  stream: ({ messages }) => {
    const at = messages.findLastIndex(({ role }) => role === "user")
    const step = messages.slice(at).filter(({ role }) => role === "assistant").length
    const asked = messages[at]
    const reply = replies(asked === undefined ? "" : Message.text(asked))[step] ?? [end]
    return Stream.unwrap(
      Effect.map(Script.make([reply]), (scripted) => scripted.stream({ messages } as unknown as Adapter.Request))
    )
  }
})

const millis = { ms: Schema.optionalKey(Schema.Finite) }

const work = (ms = 300) => Effect.sleep(ms)

const read = Tool.make("read", {
  description: "Reads a file",
  readOnly: true,
  parameters: { path: Schema.String, ...millis },
  handler: ({ ms, path }) => Effect.as(work(ms), `${path}: 12 lines`)
})

const search = Tool.make("search", {
  description: "Searches the shop",
  readOnly: true,
  parameters: { query: Schema.String, ...millis },
  handler: ({ ms = 0, query }, { progress }) =>
    work(ms / 2).pipe(
      Effect.andThen(progress({ found: 3 })),
      Effect.andThen(work(ms / 2)),
      Effect.as({ query, hits: 7 })
    )
})

const account = Tool.make("account", {
  description: "Asks an account",
  parameters: { to: Schema.String, ...millis },
  limits: [{ key: ({ to }) => `account:${to}`, permits: 1 }],
  handler: ({ ms, to }) => Effect.as(work(ms), `${to} owes nothing`)
})

const write = Tool.make("write", {
  description: "Writes a file",
  concurrency: "exclusive",
  parameters: { path: Schema.String, ...millis },
  handler: ({ ms }) => Effect.as(work(ms), "written")
})

const fails = Tool.make("fails", {
  parameters: millis,
  handler: ({ ms }) => Effect.andThen(work(ms), Effect.fail("no such shelf"))
})

const deaf = Tool.make("deaf", {
  parameters: millis,
  handler: ({ ms }) => Effect.as(Effect.uninterruptible(work(ms)), "too late")
})

const block = Tool.make("block", {
  parameters: millis,
  interrupt: "block",
  handler: ({ ms }) => Effect.as(work(ms), "finished all the same")
})

const order = Tool.make("order", {
  description: "Orders a book",
  approval: true,
  destructive: true,
  parameters: { title: Schema.String, copies: Schema.Finite },
  handler: ({ title }) => Effect.as(work(600), `${title} is on its way`)
})

const asks = Tool.make("asks", {
  parameters: {},
  handler: () => Effect.succeed(Tool.askUser("Hardcover?", { opts: ["yes", "no"] }))
})

const research = Tool.fromChat("research", {
  description: "Finds out about a topic",
  parameters: { topic: Schema.String },
  chat: ({ topic }) => Chat.stream(`sub:${topic}`, { tools: [read, search], maxTurns: 4 })
})

const delegate = Tool.fromChat("delegate", {
  parameters: { topic: Schema.String },
  chat: ({ topic }) => Chat.stream(`ask:${topic}`, { tools: [order], maxTurns: 4 })
})

/** The options of a run. */
export const options = {
  tools: [read, search, account, write, fails, deaf, block, order, asks, research, delegate],
  maxTurns: 8,
  grace: 1500,
  maxConcurrency: 6
}
