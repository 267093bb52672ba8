/**
 * A server that numbers its calls anew in each turn, as Kimi does. What it called a call goes back to it unchanged, as
 * often as it said it, and the conversation goes on with any other server, in the form that this one demands. Requests
 * are read off servers on the loopback interface.
 */
import { createOpenAICompatible } from "@ai-sdk/openai-compatible"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Message, Session, Tool } from "heddle"
import * as AiSdk from "heddle/bridges/ai-sdk"
import * as Sdk from "../support/aiSdk.ts"
import * as Anthropic from "../support/anthropic.ts"
import * as Bodies from "../support/bodies.ts"
import * as EffectAi from "../support/effectAi.ts"
import * as Gemini from "../support/gemini.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Responses from "../support/openAiResponses.ts"
import * as SdkTypes from "../support/sdkTypes.ts"
import * as SentIds from "../support/sentIds.ts"
import * as Server from "../support/server.ts"
import { journalOf, prefixed } from "../support/survivor.ts"

type Json = Bodies.Json

/** A call on the wire: its id, and the amount to pay. */
type Paid = readonly [id: string, amount: number]

const pay = Tool.make("pay", {
  description: "Pays",
  readOnly: true,
  parameters: { type: "object", properties: { amount: { type: "number" } }, required: ["amount"] },
  handler: ({ amount }: Json) => Effect.succeed(`paid ${amount}`)
})

interface Wire {
  readonly layer: (url: string) => Layer.Layer<Adapter.Adapter>
  readonly calls: (calls: ReadonlyArray<Paid>) => string
  readonly done: string
  /** The name of what the server demands. */
  readonly demands?: string
  /** The protocol of the official SDK's types, if it has some. */
  readonly typed?: Bodies.Protocol
  /** `true` if a call may go without an id: its place and its name tell it. */
  readonly isByPlace?: boolean
  /** `true` if a library between names the calls of one reply apart. */
  readonly isNamedApart?: boolean
}

const args = (amount: number) => JSON.stringify({ amount })

const chatWire: Omit<Wire, "layer"> = {
  calls: (calls) =>
    Chunks.body(
      ...calls.map(([id, amount], index) =>
        Chunks.call({ index, id, type: "function", name: "pay", arguments: args(amount) })
      ),
      Chunks.finish("tool_calls")
    ),
  done: Chunks.body(Chunks.said("Done."), Chunks.finish("stop"))
}

const chat = (vendor: Exclude<Bodies.Protocol, "OpenAiResponses" | "Anthropic" | "Gemini">): Wire => ({
  ...chatWire,
  layer: (url) => Chunks.layer(url, { vendor }),
  demands: vendor,
  typed: vendor
})

const anthropicWire: Omit<Wire, "layer"> = {
  calls: (calls) =>
    Anthropic.reply(
      calls.map(([id, amount], index) => Anthropic.called(index, id, "pay", args(amount))),
      "tool_use"
    ),
  done: Anthropic.reply([Anthropic.text(0, "Done.")], "end_turn"),
  demands: "Anthropic"
}

const bridged = (name: string) => (url: string) =>
  AiSdk.layer({
    model: createOpenAICompatible({ name, baseURL: `${url}/v1`, apiKey: "sk-secret" })("test-model"),
    retries: 0
  })

const wires: Readonly<Record<string, Wire>> = {
  "an unknown server": chat("generic"),
  OpenAI: chat("openai"),
  Azure: chat("azure"),
  OpenRouter: chat("openrouter"),
  Snowflake: chat("snowflake"),
  DeepSeek: chat("deepseek"),
  Kimi: chat("moonshot"),
  Xiaomi: chat("xiaomi"),
  "Z.ai": chat("zai"),
  Qwen: chat("qwen"),
  Mistral: chat("mistral"),
  Responses: {
    layer: Responses.layer,
    calls: (calls) =>
      Responses.body(
        Responses.created,
        ...calls.map(([id, amount], index) =>
          Responses.done(index, Responses.call(id, "pay", args(amount), { id: `fc_${index}` }))
        ),
        Responses.completed()
      ),
    done: Responses.body(Responses.created, Responses.said("Done."), Responses.completed()),
    demands: "OpenAiResponses",
    typed: "OpenAiResponses"
  },
  Anthropic: { ...anthropicWire, layer: Anthropic.layer, typed: "Anthropic" },
  Gemini: {
    layer: Gemini.layer,
    calls: (calls) =>
      Gemini.body(
        Gemini.chunk(calls.map(([id, amount]) => Gemini.call("pay", { amount }, { id }))),
        Gemini.finish("STOP")
      ),
    done: Gemini.body(Gemini.said("Done."), Gemini.finish("STOP")),
    typed: "Gemini",
    isByPlace: true
  },
  "the AI SDK": { ...chatWire, layer: bridged("acme"), isNamedApart: true },
  "the AI SDK's Mistral": { ...chatWire, layer: bridged("mistral"), demands: "mistral", isNamedApart: true },
  "the AI SDK's Anthropic": {
    ...anthropicWire,
    layer: (url) => AiSdk.layer({ model: Sdk.anthropic(url)("claude-sonnet-4-6"), retries: 0 })
  },
  "effect/ai": {
    layer: EffectAi.layer,
    calls: (calls) =>
      EffectAi.body(
        ...calls.map(([id, amount]) => EffectAi.call(id, "pay", { amount })),
        EffectAi.finish("tool-calls")
      ),
    done: EffectAi.body(EffectAi.text("Done."), EffectAi.finish("stop"))
  }
}

/** The ids of three turns, of which the third has one twice. */
const turns: ReadonlyArray<ReadonlyArray<Paid>> = [
  [["pay:0", 1], ["pay:1", 2]],
  [["pay:0", 3]],
  [["pay:0", 4], ["pay:0", 5]]
]
const wireIds = turns.map((calls) => calls.map(([id]) => id))
const paid = turns.map((calls) => calls.map(([, amount]) => `paid ${amount}`))

/** The thread of a run of several turns with a server, and the bodies that the server got. */
const looped = ({ calls, done, layer }: Wire, replies = turns) =>
  Effect.gen(function*() {
    const server = yield* Server.serve((_, index) => ({
      pieces: [replies[index] === undefined ? done : calls(replies[index])]
    }))
    const adapter = layer(server.url)
    const { outcome, thread } = yield* Chat.run("go", { tools: [pay] }).pipe(Effect.provide(adapter))
    assert.strictEqual(outcome._tag, "Completed")
    const bodies = () => server.requests.map(({ body }): Json => body)
    const ids = thread.messages.flatMap(({ toolCalls = [] }) => toolCalls.map(({ id }) => id))
    assert.strictEqual(new Set(ids).size, ids.length, "a run names its calls apart")
    return { adapter, bodies, thread }
  })

/** The body of a request with a thread. */
const sentTo = ({ done, layer }: Wire, messages: ReadonlyArray<Message.Message>) =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => ({ pieces: [done] }))
    yield* Chat.run({ messages }, { tools: [pay] }).pipe(Effect.provide(layer(server.url)))
    return server.requests[0]!.body as Json
  }))

const answersIn = (body: Json) => SentIds.turnsOf(body).map(({ answers }) => answers.map(({ text }) => text))

const problemsOf = ({ demands = "", isByPlace = false }: Wire, body: Json) =>
  SentIds.refusedIn(SentIds.turnsOf(body), SentIds.demandOf(demands), new Set(), !isByPlace)

describe("O-66: a server that repeats call ids", () => {
  for (const [name, wire] of Object.entries(wires)) {
    it.effect(`O-66: ${name} gets its own ids back unchanged and as often repeated, in every later request`, () =>
      Effect.scoped(Effect.gen(function*() {
        const all = wire.isNamedApart === true ? turns.slice(0, 2) : turns
        const { adapter, bodies, thread } = yield* looped(wire, all)
        const loop = bodies().length
        yield* Chat.run({ messages: [...thread.messages, Message.user("and?")] }, { tools: [pay] }).pipe(
          Effect.provide(adapter)
        )
        const last = bodies().at(-1)!
        assert.strictEqual(bodies().length, loop + 1)
        assert.deepStrictEqual(SentIds.idsOf(last), wireIds.slice(0, all.length))
        const answered = SentIds.turnsOf(last).map(({ answers }) => answers.map(({ id }) => id))
        assert.deepStrictEqual(answered, wireIds.slice(0, all.length))
        assert.deepStrictEqual(answersIn(last), paid.slice(0, all.length))
        assert.deepStrictEqual(Bodies.extended(bodies().map((body) => JSON.stringify(body))), [])
      })))
  }

  const others = Object.entries(wires).filter(([name]) => name !== "Kimi")

  it.live(
    "O-66, O-17: after three turns with Kimi every other server gets acceptable ids, and each answer names its call",
    () =>
      Effect.scoped(Effect.gen(function*() {
        const { thread } = yield* looped(wires["Kimi"]!)
        const typed: Array<SdkTypes.Body> = []
        for (const [name, wire] of others) {
          const body = yield* sentTo(wire, [...thread.messages, Message.user("and?")])
          assert.deepStrictEqual(problemsOf(wire, body), [], name)
          assert.deepStrictEqual(answersIn(body), paid, name)
          if (wire.typed !== undefined) typed.push({ protocol: wire.typed, body: JSON.stringify(body) })
        }
        assert.deepStrictEqual([...SdkTypes.misfits(typed).values()], [])
      })),
    120_000
  )

  it.effect("O-66: a server gets its own ids back although another server has continued the thread with the same ids", () =>
    Effect.scoped(Effect.gen(function*() {
      const kimi = yield* looped(wires["Kimi"]!)
      const { calls, done, layer } = wires["OpenRouter"]!
      const other = yield* Server.serve((_, index) => ({ pieces: [index === 0 ? calls([["pay:0", 6]]) : done] }))
      const messages = [...kimi.thread.messages, Message.user("and?")]
      const { thread } = yield* Chat.run({ messages }, { tools: [pay] }).pipe(Effect.provide(layer(other.url)))
      const both = [...thread.messages, Message.user("and?")]
      yield* Chat.run({ messages: both }, { tools: [pay] }).pipe(Effect.provide(layer(other.url)))
      yield* Chat.run({ messages: both }, { tools: [pay] }).pipe(Effect.provide(kimi.adapter))
      const toOther = SentIds.idsOf(other.requests.at(-1)!.body)
      assert.deepStrictEqual(toOther.at(-1), ["pay:0"])
      assert.strictEqual(new Set(toOther.slice(0, -1).flat()).size, 5)
      const toKimi = SentIds.idsOf(kimi.bodies().at(-1)!)
      assert.deepStrictEqual(toKimi.slice(0, -1), wireIds)
      assert.notInclude(wireIds.flat(), toKimi.at(-1)![0])
    })))
})

it.live(
  "O-66, O-17: vendors that take turns in one run and repeat ids get their own ids back",
  () =>
    Effect.scoped(Effect.gen(function*() {
      const names = ["Kimi", "Anthropic", "Mistral", "Responses", "Gemini", "OpenRouter"]
      const servers = yield* Effect.forEach(names, (name) => {
        const { calls, done } = wires[name]!
        return Server.serve((_, index) => ({ pieces: [index < 2 ? calls([["pay:0", index]]) : done] }))
      })
      const adapters = Object.fromEntries(names.map((name, index) => [name, wires[name]!.layer(servers[index]!.url)]))
      const { thread } = yield* Chat.run("go", {
        tools: [pay],
        maxTurns: 20,
        prepareStep: ({ stepIndex }) => ({ adapter: names[stepIndex % names.length]! })
      }).pipe(Effect.provide(Adapter.named(adapters)))
      const ids = thread.messages.flatMap(({ toolCalls = [] }) => toolCalls.map(({ id }) => id))
      assert.deepStrictEqual([ids.length, new Set(ids).size], [12, 12])
      const typed: Array<SdkTypes.Body> = []
      for (const [index, name] of names.entries()) {
        const wire = wires[name]!
        const bodies = servers[index]!.requests.map(({ body }): Json => body)
        for (const [turn, body] of bodies.entries()) {
          const turns = SentIds.turnsOf(body)
          const own = (place: number) => place % names.length === index
          const [before, others] = [turns.filter((_, place) => own(place)), turns.filter((_, place) => !own(place))]
          assert.deepStrictEqual(
            before.flatMap(({ calls }) => calls.map(({ id }) => id)),
            Array(turn).fill("pay:0"),
            name
          )
          assert.deepStrictEqual(
            SentIds.refusedIn(others, SentIds.demandOf(wire.demands ?? ""), new Set(), wire.isByPlace !== true),
            [],
            name
          )
          for (const { answers, calls } of turns) {
            assert.deepStrictEqual(
              answers.map(({ id }) => id),
              calls.map(({ id }) => id)
            )
          }
          if (wire.typed !== undefined) typed.push({ protocol: wire.typed, body: JSON.stringify(body) })
        }
        assert.deepStrictEqual(Bodies.extended(bodies.map((body) => JSON.stringify(body))), [], name)
      }
      assert.strictEqual(typed.length, 13)
      assert.deepStrictEqual([...SdkTypes.misfits(typed).values()], [])
    })),
  120_000
)

describe("O-66: a session with repeated ids, cut at any record", () => {
  for (const name of ["Kimi", "Mistral", "Responses", "Anthropic", "Gemini", "effect/ai"]) {
    it.live(`O-66: ${name}: a cut session resumes with the same requests as an uncut run, repeated ids included`, () =>
      Effect.scoped(Effect.gen(function*() {
        const { calls, done, layer } = wires[name]!
        const server = yield* Server.serve(({ body }) => {
          const reply = turns[SentIds.turnsOf(body as Json).length]
          return { pieces: [reply === undefined ? done : calls(reply)] }
        })
        const adapter = layer(server.url)
        const { kept, records } = yield* Effect.gen(function*() {
          const opened = yield* Session.open("s")
          const options = { tools: [pay], requestId: "run" }
          const kept = yield* Session.keep(opened, (session) => Session.reply(session, "go", options))
          return { kept, records: yield* journalOf("s") }
        }).pipe(Effect.provide([adapter, Session.Store.layerMemory]))
        const uncut = server.requests.map(({ body }): Json => body)
        assert.deepStrictEqual(SentIds.idsOf(uncut.at(-1)!), wireIds)
        for (let length = 2; length < records.length; length++) {
          const from = server.requests.length
          const resumed = yield* Effect.gen(function*() {
            const cut = (yield* Session.load("s"))!
            return yield* Session.resume(cut, { tools: [pay], takeOver: true })
          }).pipe(Effect.provide([adapter, prefixed("s", records.slice(0, length))]))
          const bodies = server.requests.slice(from).map(({ body }): Json => body)
          const where = `cut behind record ${length}, ${records[length - 1]?._tag}`
          assert.deepStrictEqual(bodies, uncut.slice(uncut.length - bodies.length), where)
          assert.deepStrictEqual(resumed.session, kept.session, where)
        }
      })))
  }
})

describe("O-66: the position of a call in its message", () => {
  const between: Readonly<Record<string, readonly [reply: string, partsOf: (message: Json) => ReadonlyArray<string>]>> =
    {
      Anthropic: [
        Anthropic.reply([
          Anthropic.called(0, "pay:0", "pay", args(1)),
          Anthropic.text(1, "then"),
          Anthropic.called(2, "pay:0", "pay", args(2)),
          Anthropic.text(3, "so")
        ], "tool_use"),
        ({ content }) => content.map(({ input, text }: Json) => text ?? input.amount)
      ],
      Gemini: [
        Gemini.body(
          Gemini.chunk([Gemini.call("pay", { amount: 1 }, { id: "pay:0" })]),
          Gemini.said("then"),
          Gemini.chunk([Gemini.call("pay", { amount: 2 }, { id: "pay:0" })]),
          Gemini.said("so"),
          Gemini.finish("STOP")
        ),
        ({ parts }) => parts.map(({ functionCall, text }: Json) => text ?? functionCall.args.amount)
      ]
    }

  for (const [name, [reply, partsOf]] of Object.entries(between)) {
    it.effect(`O-66: ${name}: a call keeps its position between texts although its id is renamed in the thread`, () =>
      Effect.scoped(Effect.gen(function*() {
        const { done, layer } = wires[name]!
        const server = yield* Server.serve((_, index) => ({ pieces: [index < 2 ? reply : done] }))
        const adapter = layer(server.url)
        const { thread } = yield* Chat.run("go", { tools: [pay] }).pipe(Effect.provide(adapter))
        const calls = thread.messages.flatMap(({ toolCalls = [] }) => toolCalls)
        assert.strictEqual(new Set(calls.map(({ id }) => id)).size, 4)
        const messages = [...thread.messages, Message.user("and?")]
        yield* Chat.run({ messages }, { tools: [pay] }).pipe(Effect.provide(adapter))
        const { contents, messages: sent = contents }: Json = server.requests.at(-1)!.body
        const turns = sent.filter(({ role }: Json) => role === "assistant" || role === "model")
        assert.deepStrictEqual(turns.slice(0, 2).map(partsOf), [[1, "then", 2, "so"], [1, "then", 2, "so"]])
      })))
  }
})

describe("O-17: a caller's thread with repeated ids", () => {
  const asked = (...ids: ReadonlyArray<string>) => Message.assistant("", ids.map((id) => Message.toolCall(id, "pay")))
  const thread = [
    Message.user("go"),
    asked("a", "a", "b"),
    Message.tool("b", "other"),
    Message.tool("a", "first"),
    Message.tool("a", "second"),
    asked("a"),
    Message.tool("a", "third"),
    Message.user("and?")
  ]

  for (const [name, wire] of Object.entries(wires)) {
    it.effect(`O-17: ${name}: repeated ids go out unchanged where the server accepts them, and answers stay with their calls`, () =>
      Effect.gen(function*() {
        const body = yield* sentTo(wire, thread)
        const turns = SentIds.turnsOf(body)
        assert.deepStrictEqual(problemsOf(wire, body), [])
        if (wire.isByPlace === true) {
          assert.deepStrictEqual(answersIn(body), [["first", "second", "other"], ["third"]])
          return
        }
        const { mayRepeat } = SentIds.demandOf(wire.demands ?? "")
        assert.deepStrictEqual(SentIds.idsOf(body).map((ids) => new Set(ids).size), mayRepeat ? [2, 1] : [3, 1])
        if (mayRepeat) assert.deepStrictEqual(SentIds.idsOf(body), [["a", "a", "b"], ["a"]])
        const textsOf = (turn: SentIds.Turn) =>
          turn.calls.map(({ id }) => turn.answers.filter((answer) => answer.id === id).map(({ text }) => text))
        assert.deepStrictEqual(
          turns.map(textsOf),
          mayRepeat
            ? [[["first", "second"], ["first", "second"], ["other"]], [["third"]]]
            : [[["first"], ["second"], ["other"]], [["third"]]]
        )
      }))
  }
})

describe("O-17: a turn that the caller puts into a thread twice", () => {
  for (const name of ["Anthropic", "Responses", "Mistral", "Kimi", "Gemini"]) {
    it.effect(`O-17: ${name}: a turn in a thread twice goes back with its own ids, or a second id where the server refuses repetition`, () =>
      Effect.scoped(Effect.gen(function*() {
        const wire = wires[name]!
        const { adapter, bodies, thread } = yield* looped(wire, [[["madebyit1", 1]]])
        const messages = [...thread.messages, ...thread.messages, Message.user("and?")]
        yield* Chat.run({ messages }, { tools: [pay] }).pipe(Effect.provide(adapter))
        const [[first] = [], [second] = []] = SentIds.idsOf(bodies().at(-1)!)
        assert.strictEqual(first, "madebyit1")
        const mayRepeat = wire.isByPlace === true || SentIds.demandOf(wire.demands ?? "").mayRepeat
        assert.strictEqual(second === first, mayRepeat)
        assert.deepStrictEqual(answersIn(bodies().at(-1)!), [["paid 1"], ["paid 1"]])
      })))
  }
})

it.effect("O-66: Gemini gets no id made by another server, not even by another Gemini", () =>
  Effect.scoped(Effect.gen(function*() {
    const { thread } = yield* looped(wires["Gemini"]!)
    const body = yield* sentTo(wires["Gemini"]!, [...thread.messages, Message.user("and?")])
    const sent = SentIds.turnsOf(body).flatMap(({ answers, calls }) => [...calls, ...answers])
    assert.strictEqual(sent.length, 10)
    assert.deepStrictEqual(sent.filter(({ id }) => id !== undefined), [])
  })))

describe("O-17: Mistral's ids of nine letters and digits", () => {
  const sent = (messages: ReadonlyArray<Message.Message>) =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [chatWire.done] }))
      const { stream } = yield* Effect.provide(Adapter.Adapter, Chunks.layer(server.url, { vendor: "mistral" }))
      yield* Stream.runDrain(stream({ messages, tools: [] }))
      return SentIds.turnsOf(server.requests[0]!.body)
    }))

  const hostile = [
    "",
    ":",
    "000000000",
    "0",
    "00",
    "call_0123456789",
    "call_x123456789",
    "123456789",
    "1234567892",
    "🌤".repeat(30),
    "\ud83d",
    "__proto__",
    "constructor",
    "x".repeat(10_000),
    "a'b\"c\n\u2028"
  ]
  const turn = (id: string, index: number) => [
    Message.assistant("", [Message.toolCall(id, "pay")]),
    Message.tool(id, `answer ${index}`)
  ]

  it.effect("O-17: any id goes to Mistral as distinct letters and digits, and stays the same while the thread grows", () =>
    Effect.gen(function*() {
      const messages = [Message.user("go"), ...[...hostile, ...hostile].flatMap(turn)]
      const all = yield* sent(messages)
      assert.deepStrictEqual(SentIds.refusedIn(all, SentIds.demandOf("mistral")), [])
      assert.deepStrictEqual(
        all.map(({ answers }) => answers.map(({ text }) => text)),
        [...hostile, ...hostile].map((_, index) => [
          `answer ${index}`
        ])
      )
      for (const length of [3, 11, 31, 45]) {
        const before = yield* sent(messages.slice(0, length))
        assert.deepStrictEqual(all.slice(0, before.length), before)
      }
    }))

  it.effect("O-17: 40,000 calls with repeated or similar ids go to Mistral with distinct ids", () =>
    Effect.gen(function*() {
      const ids = Array.from({ length: 20_000 }, (_, index) => [`${index}-123456789`, "same"]).flat()
      const found = yield* sent([Message.user("go"), ...ids.flatMap(turn)])
      assert.strictEqual(new Set(found.flatMap(({ calls }) => calls.map(({ id }) => id))).size, 40_000)
    }))

  it.effect("O-17: an id made by Mistral goes back unchanged", () =>
    Effect.scoped(Effect.gen(function*() {
      const { bodies } = yield* looped(wires["Mistral"]!, [[["D681PevKs", 1]], [["too_long_for_it", 2]]])
      assert.deepStrictEqual(SentIds.idsOf(bodies().at(-1)!), [["D681PevKs"], ["too_long_for_it"]])
    })))
})
