/** Typed answers: how a model is asked for one, what counts, what follows one that does not fit, and what is seen of it. */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Cause from "effect/Cause"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as SchemaGetter from "effect/SchemaGetter"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Budget, Chat, Collector, Event, Message, Output, Policy, Session, Thread, Tool } from "heddle"
import { Script } from "heddle/testing"
import { AgUi, UiStream } from "heddle/ui"
import { partOf } from "../../src/internal/loop/outputRule.ts"
import * as Anthropic from "../support/anthropic.ts"
import * as Gemini from "../support/gemini.ts"
import * as ChatBodies from "../support/openAiChat.ts"
import * as Responses from "../support/openAiResponses.ts"
import { kept, killedAtEach, type Replies, resumed } from "../support/ruled.ts"
import * as Server from "../support/server.ts"
import * as Spans from "../support/spans.ts"

const { finish, text, toolCall } = Script

const Weather = Schema.Struct({
  city: Schema.String,
  celsius: Schema.FiniteFromString,
  wind: Schema.optionalKey(Schema.Finite)
})

const weather = Output.make(Weather)

/** As the model writes it, and as the value that a program gets. */
const written = { city: "Oslo", celsius: "7" }
const value = { city: "Oslo", celsius: 7 }

const answer = (args: unknown = written, id = "c") => [toolCall(id, "final_answer", args as {}), finish("tool_calls")]
const say = (value: unknown) => [text(typeof value === "string" ? value : JSON.stringify(value)), finish("stop")]

const nativeFacts = { native: "always", forced: true } as const

const look = Tool.make("look", { parameters: {}, readOnly: true, handler: () => Effect.succeed("seen") })

/** A run over a script, by an adapter with facts. */
const run = <A>(
  script: Script.Input,
  options: Chat.Options<ReadonlyArray<Tool.Any>, never, never, never, never, A>,
  facts?: NonNullable<Adapter.Service["output"]>
) =>
  Effect.gen(function*() {
    const model = yield* Script.make(script)
    const layer = Adapter.map((adapter) => facts === undefined ? adapter : { ...adapter, output: facts }).pipe(
      Layer.provide(model.layer)
    )
    const exit = yield* Effect.exit(Chat.run("q", options).pipe(Effect.provide(layer)))
    return { exit, asked: yield* model.requests, result: Exit.isSuccess(exit) ? exit.value : undefined }
  })

const defectOf = (exit: Exit.Exit<unknown, unknown>): string =>
  Exit.isFailure(exit) ? String(Cause.squash(exit.cause)) : "no defect"

const problemsOf = (result: Event.ChatResult | undefined): unknown =>
  result?.outcome._tag === "RuleEnded"
    ? [result.outcome.rule, result.outcome.status, result.outcome.detail]
    : result?.outcome

describe("a typed answer", () => {
  for (const [mode, facts, reply] of [["tool", undefined, answer], ["native", nativeFacts, say]] as const) {
    it.effect(`G59: two misfits by ${mode} are asked for again, and an answer that fits becomes the output`, () =>
      Effect.gen(function*() {
        const script = [reply({ city: 1 }), reply({ city: 2 }), reply(written)]
        const { asked, result } = yield* run(script, { output: weather }, facts)
        assert.deepStrictEqual(result?.output, value)
        assert.deepStrictEqual(result?.outcome._tag, "Completed")
        assert.strictEqual(asked.length, 3)
        const last = Message.text(asked[2]!.messages.at(-1)!)
        assert.include(last, "celsius")
      }))

    it.effect(`G59: a third misfit by ${mode} ends the run with the issues of the answer`, () =>
      Effect.gen(function*() {
        const script = [reply({ city: 1 }), reply({ city: 2 }), reply({ city: 3 }), reply(written)]
        const { asked, result } = yield* run(script, { output: weather }, facts)
        const [rule, status, detail] = problemsOf(result) as [string, string, { issues: string }]
        assert.deepStrictEqual([rule, status, asked.length], ["output", "error", 3])
        assert.include(detail.issues, "celsius")
        assert.notProperty(result, "output")
        const error = yield* Effect.flip(Output.get(result!))
        assert.deepStrictEqual([error._tag, error.reason], ["Missing", "output"])
        assert.include(error.message, "celsius")
      }))
  }

  it.effect("G59: a text in place of the answer tool is followed by a message that names the tool", () =>
    Effect.gen(function*() {
      const { asked, result } = yield* run([say("7 in Oslo"), answer()], { output: weather })
      assert.deepStrictEqual(result?.output, value)
      assert.include(Message.text(asked[1]!.messages.at(-1)!), "final_answer")
    }))

  it.effect("R-519: finalize runs the tools without the schema and asks once more with the schema and without tools", () =>
    Effect.gen(function*() {
      const output = Output.make(Weather, { mode: "finalize" })
      const script = [[toolCall("a", "look"), finish("tool_calls")], say("warm"), say(written)]
      const { asked, result } = yield* run(script, { output, tools: [look] }, nativeFacts)
      assert.deepStrictEqual(result?.output, value)
      assert.deepStrictEqual(asked.map(({ responseFormat }) => responseFormat?.type), [
        undefined,
        undefined,
        "json_schema"
      ])
      assert.notProperty(result, "finalized")
    }))

  it.effect("R-519: a root that is not an object is wrapped in an object on the wire alone", () =>
    Effect.gen(function*() {
      const output = Output.make(Schema.Array(Schema.Finite))
      const byTool = yield* run([answer({ value: [1, 2] })], { output })
      const native = yield* run([say({ value: [3] })], { output }, nativeFacts)
      assert.deepStrictEqual([byTool.result?.output, native.result?.output], [[1, 2], [3]])
    }))

  const Found = Schema.Union([
    Schema.Struct({ kind: Schema.Literal("city"), name: Schema.String }),
    Schema.Struct({ kind: Schema.Literal("none") })
  ])
  const roots = {
    "a union of objects": [Found, { kind: "none" }],
    "an object or null": [Schema.NullOr(Weather), null],
    "any JSON": [Schema.Json, [1, "two"]]
  } as const
  it.effect("R-519: a root that is an object is sent as it is, also with members of any name and form", () =>
    Effect.gen(function*() {
      for (const schema of [Schema.Record(Schema.String, Schema.Json), Schema.Record(Schema.String, Schema.Finite)]) {
        const byTool = yield* run([answer({ any: 1 })], { output: Output.make(schema as Schema.Codec<unknown>) })
        assert.deepStrictEqual(byTool.result?.output, { any: 1 })
      }
    }))

  for (const [name, [schema, given]] of Object.entries(roots)) {
    it.effect(`R-519: a root of ${name} is wrapped in an object, and each of its values can be given`, () =>
      Effect.gen(function*() {
        const output = Output.make(schema as Schema.Codec<unknown>)
        const byTool = yield* run([answer({ value: given })], { output })
        const native = yield* run([say({ value: given })], { output }, nativeFacts)
        assert.deepStrictEqual([byTool.result?.output, native.result?.output], [given, given])
        const format = native.asked[0]?.responseFormat
        const schemas = [byTool.asked[0]?.tools[0]?.parameters, format?.type === "json_schema" && format.schema]
        for (const sent of schemas) assert.deepInclude(sent, { type: "object", required: ["value"] })
      }))
  }

  it.effect("R-519: an answer that the schema cannot encode ends the run with that reason", () =>
    Effect.gen(function*() {
      const decode = SchemaGetter.transform((text: string) => text.length)
      const encode = SchemaGetter.forbidden<string, number>(() => "no way back")
      const Length = Schema.String.pipe(Schema.decodeTo(Schema.Finite, { decode, encode }))
      const output = Output.make(Schema.Struct({ city: Length }), { retries: 0 })
      for (const [reply, facts] of [[answer, undefined], [say, nativeFacts]] as const) {
        const { result } = yield* run([reply({ city: "Oslo" })], { output }, facts)
        const [, , { issues }] = problemsOf(result) as [string, string, { issues: string }]
        assert.include(issues, "the schema cannot encode the answer: no way back")
      }
    }))

  it.effect("R-519: a null for an optional member decodes as a missing member", () =>
    Effect.gen(function*() {
      const nulled = { ...written, wind: null }
      const byTool = yield* run([answer(nulled)], { output: weather })
      const native = yield* run([say(nulled)], { output: weather }, nativeFacts)
      assert.deepStrictEqual([byTool.result?.output, native.result?.output], [value, value])
    }))

  it.effect("G61: a crashing sibling of a valid answer is answered, and the value stands", () =>
    Effect.gen(function*() {
      const broken = Tool.make("broken", { parameters: {}, handler: () => Effect.die("broken") })
      const script = [[toolCall("a", "broken"), toolCall("b", "final_answer", written), finish("tool_calls")]]
      const { result } = yield* run(script, { output: weather, tools: [broken] })
      assert.deepStrictEqual(result?.output, value)
      assert.deepStrictEqual(result?.steps[0]?.toolResults.map(({ isError }) => isError === true), [true, false])
    }))

  it.effect("G62: the first in call order of a halt and an answer in one turn counts", () =>
    Effect.gen(function*() {
      const stop = Tool.make("stop", { parameters: {}, handler: () => Effect.succeed(Tool.halt("stopped", 1)) })
      const calls = [toolCall("a", "stop"), toolCall("b", "final_answer", written)] as const
      const halted = yield* run([[...calls, finish("tool_calls")]], { output: weather, tools: [stop] })
      assert.deepStrictEqual([halted.result?.haltedReason, halted.result?.output], ["stopped", undefined])
      const answered = yield* run([[calls[1], calls[0], finish("tool_calls")]], { output: weather, tools: [stop] })
      assert.deepStrictEqual([answered.result?.haltedReason, answered.result?.output], ["completed", value])
    }))

  const calls = [toolCall("a", "look"), finish("tool_calls")]
  for (const onMaxTurns of ["halt", "finalize"] as const) {
    for (
      const [mode, facts, reply] of [["tool", undefined, answer], [
        "forced tool",
        { native: "never", forced: true },
        answer
      ], ["native", nativeFacts, say]] as const
    ) {
      it.effect(`G85: at maxTurns under "${onMaxTurns}" one closing call by ${mode} gives the answer`, () =>
        Effect.gen(function*() {
          const options = { output: weather, tools: [look], maxTurns: 1, policy: { ...Policy.standard, onMaxTurns } }
          const { asked, result } = yield* run([calls, reply(written)], options, facts)
          assert.deepStrictEqual([result?.output, result?.finalized, asked.length], [value, "max_turns", 2])
          if (mode === "forced tool") assert.deepStrictEqual(asked[1]?.toolChoice, { name: "final_answer" })
          const wrong = yield* run([calls, reply({})], options, facts)
          assert.deepStrictEqual([wrong.asked.length, wrong.result?.output], [2, undefined])
        }))
    }
  }

  for (const [mode, facts, reply] of [["tool", undefined, answer], ["native", nativeFacts, say]] as const) {
    it.effect(`G85: a closing misfit by ${mode} ends the run with the issues of the answer`, () =>
      Effect.gen(function*() {
        const options = { output: weather, tools: [look], maxTurns: 1 }
        const { asked, result } = yield* run([calls, reply({ city: "Oslo", celsius: 7 })], options, facts)
        const [rule, status, detail] = problemsOf(result) as [string, string, { issues: string }]
        assert.deepStrictEqual([rule, status, asked.length], ["output", "error", 2])
        assert.include(detail.issues, "celsius")
      }))

    it.effect(`G85: the reserve of a budget is one closing call by ${mode}, for the answer and without repair`, () =>
      Effect.gen(function*() {
        const options = { output: weather, tools: [look], budget: Budget.make({ calls: 2 }) }
        const { asked, result } = yield* run([calls, reply(written)], options, facts)
        const { outcome, output, finalized, spent } = result!
        assert.deepStrictEqual([outcome._tag, output, finalized, spent?.calls, asked.length], [
          "Completed",
          value,
          "budget",
          2,
          2
        ])
        const wrong = yield* run([calls, reply({ city: "Oslo", celsius: 7 })], options, facts)
        const [rule, status, detail] = problemsOf(wrong.result) as [string, string, { issues: string }]
        assert.deepStrictEqual([rule, status, wrong.asked.length], ["output", "error", 2])
        assert.include(detail.issues, "celsius")
      }))

    it.effect(`R-519: an answer by ${mode} whose decoding throws is a misfit`, () =>
      Effect.gen(function*() {
        const decode = SchemaGetter.transform((city: string) => {
          if (city === "Nowhere") throw new Error("no such city")
          return city
        })
        const City = Schema.String.pipe(Schema.decodeTo(Schema.String, { decode, encode: SchemaGetter.passthrough() }))
        const output = Output.make(Schema.Struct({ city: City }))
        const { asked, result } = yield* run([reply({ city: "Nowhere" }), reply({ city: "Oslo" })], { output }, facts)
        assert.deepStrictEqual(result?.output, { city: "Oslo" })
        assert.include(Message.text(asked[1]!.messages.at(-1)!), "no such city")
      }))
  }

  it.effect("G85: a text in the last turn is followed by one message that asks for the call", () =>
    Effect.gen(function*() {
      for (const facts of [undefined, { native: "never", forced: true }] as const) {
        const { asked, result } = yield* run([say("7 in Oslo"), answer()], { output: weather, maxTurns: 1 }, facts)
        assert.deepStrictEqual(result?.output, value)
        assert.deepStrictEqual(asked[1]!.messages.map(({ role }) => role), ["user", "assistant", "user"])
        assert.include(Message.text(asked[1]!.messages[2]!), "final_answer")
      }
    }))

  it.effect("R-519: a run whose toolChoice forbids calls asks for the answer alone", () =>
    Effect.gen(function*() {
      const options = { output: weather, tools: [look], toolChoice: "none" } as const
      const byTool = yield* run([answer()], options)
      const forced = yield* run([answer()], options, { native: "never", forced: true })
      const native = yield* run([say(written)], options, { native: "withoutTools", forced: true })
      const ways = [byTool, forced, native].flatMap(({ asked }) =>
        asked.map(({ responseFormat, toolChoice, tools }) => [
          responseFormat?.type,
          tools.map(({ name }) => name),
          toolChoice
        ])
      )
      assert.deepStrictEqual(ways, [
        [undefined, ["final_answer"], "auto"],
        [undefined, ["final_answer"], { name: "final_answer" }],
        ["json_schema", [], undefined]
      ])
      for (const { result } of [byTool, forced, native]) assert.deepStrictEqual(result?.output, value)
    }))

  it.effect("R-519: a step narrowed to other tools also offers the answer tool", () =>
    Effect.gen(function*() {
      for (const tools of [[], ["look"]]) {
        const given = { output: weather, tools: [look], prepareStep: () => ({ tools }) }
        const { asked, result } = yield* run([answer()], given)
        assert.deepStrictEqual(asked.map(({ tools }) => tools?.map(({ name }) => name)), [[...tools, "final_answer"]])
        assert.deepStrictEqual(result?.output, value)
      }
    }))

  it.effect("R-519: a step narrowed to no tools counts as a step without tools", () =>
    Effect.gen(function*() {
      const given = { output: weather, tools: [look], prepareStep: () => ({ tools: [] }) }
      const { asked, result } = yield* run([say(written)], given, { native: "withoutTools", forced: true })
      assert.deepStrictEqual(asked.map(({ responseFormat, tools }) => [responseFormat?.type, tools]), [
        ["json_schema", []]
      ])
      assert.deepStrictEqual(result?.output, value)
    }))

  it.effect("R-519: a step with one tool counts as a step with tools", () =>
    Effect.gen(function*() {
      const given = { output: weather, tools: [look], prepareStep: () => ({ tools: ["look"] }) }
      const { asked } = yield* run([answer()], given, { native: "withoutTools", forced: true })
      assert.deepStrictEqual(asked.map(({ responseFormat }) => responseFormat), [undefined])
    }))

  /** The way in which a request asks for the answer. */
  const wayOf = ({ responseFormat, tools }: Adapter.Request): string =>
    responseFormat?.type ?? tools?.map(({ name }) => name).join() ?? "none"

  const facts = { tool: undefined, forced: { native: "never", forced: true }, native: nativeFacts } as const
  const ways = { tool: "look,final_answer", forced: "look,final_answer", native: "json_schema" }
  const lastWays = { tool: "final_answer", forced: "final_answer", native: "json_schema" }
  const names = ["tool", "forced", "native"] as const

  for (const from of names) {
    for (const to of names.filter((to) => to !== from)) {
      it.effect(`R-519: a switch from ${from} to ${to} in a step asks for the answer in the way of the second model`, () =>
        Effect.gen(function*() {
          const down = [Script.preflightError("provider_unavailable")]
          for (const isClosing of [false, true]) {
            const models = yield* Effect.all([
              Script.make(isClosing ? [calls, down] : [down]),
              Script.make([to === "native" ? say(written) : answer()])
            ])
            const [first, second] = models.map(({ layer }, index) => {
              const output = facts[[from, to][index]!]
              const change = (adapter: Adapter.Service) => output === undefined ? adapter : { ...adapter, output }
              return Adapter.map(change).pipe(Layer.provide(layer))
            })
            const layer = Adapter.fallback([{ layer: first!, name: "first" }, { layer: second!, name: "second" }])
            const options = { output: weather, tools: [look], maxTurns: 1 }
            const result = yield* Chat.run("q", options).pipe(Effect.provide(layer))
            assert.deepStrictEqual(result.output, value)
            const asked = yield* Effect.map(Effect.all(models.map(({ requests }) => requests)), (all) => all.flat())
            const expected = isClosing ? [ways[from], lastWays[from], lastWays[to]] : [ways[from], ways[to]]
            assert.deepStrictEqual(asked.map(wayOf), expected)
            // One message at most asks for the call in words.
            const inWords = result.thread.messages.filter((message) =>
              message.role === "user" && Message.text(message).includes("final_answer")
            )
            assert.lengthOf(inWords, isClosing && (from === "tool" || to === "tool") ? 1 : 0)
          }
        }))
    }
  }

  for (
    const [mode, facts, reply] of [["tool", undefined, answer], ["forced tool", {
      native: "never",
      forced: true
    }, answer], ["native", nativeFacts, say]] as const
  ) {
    it.effect(`G85: in the reserve of a deadline one closing call by ${mode} gives the answer`, () =>
      Effect.gen(function*() {
        const slow = Tool.make("slow", { parameters: {}, handler: () => Effect.never })
        const script = [[toolCall("a", "slow"), finish("tool_calls")], reply(written)]
        const deadline = { after: "10 seconds", reserve: "4 seconds" } as const
        const fiber = yield* Effect.forkChild(run(script, { output: weather, tools: [slow], deadline }, facts))
        yield* TestClock.adjust("7 seconds")
        const { asked, result } = yield* Fiber.join(fiber)
        assert.deepStrictEqual([result?.outcome._tag, result?.output, result?.finalized, asked.length], [
          "Completed",
          value,
          "deadline",
          2
        ])
      }))
  }

  for (const [mode, facts, reply] of [["tool", undefined, answer], ["native", nativeFacts, say]] as const) {
    it.effect(`G85: a misfit by ${mode} in the reserve of a deadline ends the run with the issues of the answer`, () =>
      Effect.gen(function*() {
        const slow = Tool.make("slow", { parameters: {}, handler: () => Effect.never })
        const deadline = { after: "10 seconds", reserve: "4 seconds" } as const
        const ends = (closing: ReadonlyArray<Script.Entry>) =>
          Effect.gen(function*() {
            const script = [[toolCall("a", "slow"), finish("tool_calls")], closing]
            const fiber = yield* Effect.forkChild(run(script, { output: weather, tools: [slow], deadline }, facts))
            yield* TestClock.adjust("7 seconds")
            const { asked, result } = yield* Fiber.join(fiber)
            assert.strictEqual(asked.length, 2)
            return result
          })
        const [rule, status, detail] = problemsOf(yield* ends(reply({ city: "Oslo", celsius: 7 }))) as [
          string,
          string,
          { issues: string }
        ]
        assert.deepStrictEqual([rule, status], ["output", "error"])
        assert.include(detail.issues, "celsius")
        const other = yield* ends([toolCall("b", "slow"), finish("tool_calls")])
        assert.deepStrictEqual(other?.outcome, { _tag: "Cancelled", reason: "deadline" })
      }))
  }

  it.effect("G85: an answer by the only tool that arrives in the reserve of a deadline counts", () =>
    Effect.gen(function*() {
      const json = JSON.stringify(written)
      const late: Adapter.Service = {
        stream: () =>
          Stream.fromEffectDrain(Effect.sleep("8 seconds")).pipe(Stream.concat(Stream.fromIterable<Event.AdapterEvent>([
            { _tag: "MessageStarted", message: Message.assistant("") },
            { _tag: "ToolCallStarted", id: "c", name: "final_answer" },
            { _tag: "ToolCallCompleted", ...Message.toolCall("c", "final_answer", written), rawArguments: json },
            {
              _tag: "MessageCompleted",
              message: Message.assistant("", [Message.toolCall("c", "final_answer", written)]),
              finishReason: "tool_calls"
            }
          ])))
      }
      const deadline = { after: "10 seconds", reserve: "4 seconds" } as const
      const chat = Chat.run("q", { output: weather, deadline }).pipe(Effect.provide(Adapter.layer(late)))
      const fiber = yield* Effect.forkChild(chat)
      yield* TestClock.adjust("9 seconds")
      assert.deepStrictEqual((yield* Fiber.join(fiber)).output, value)
    }))

  it.effect("G86: a run killed at any record asks for each repair once and counts it once", () =>
    Effect.gen(function*() {
      for (const facts of [undefined, nativeFacts]) {
        const replies: Replies = ({ messages }) => {
          const turn = messages.filter(({ role }) => role === "assistant").length
          const wire = turn < 2 ? { city: turn } : written
          return facts === undefined ? answer(wire, `c${turn}`) : say(wire)
        }
        const output = Output.make(Weather)
        const whole = yield* killedAtEach(replies, () => ({ rules: [], output, requestId: "run" }), undefined, facts)
        assert.deepStrictEqual(whole.result.output, value)
        assert.strictEqual(whole.asked.length, 3)
      }
    }))

  it.effect("R-519: a sub-agent's call is answered with its encoded value", () =>
    Effect.gen(function*() {
      const inner = Tool.fromChat("ask", { parameters: {}, chat: () => Chat.stream("inner", { output: weather }) })
      const script = [[toolCall("a", "ask"), finish("tool_calls")], answer(), say("done")]
      const { result } = yield* run(script, { tools: [inner] })
      assert.deepStrictEqual(JSON.parse(Message.text(result!.steps[0]!.toolResults[0]!)), written)
    }))

  it.effect("G63: events and folds hold the encoded output, and Session.reply gives the decoded value", () =>
    Effect.gen(function*() {
      const events = yield* Stream.runCollect(Chat.stream("q", { output: weather })).pipe(
        Effect.provide(Script.layer([answer()]))
      )
      const accepted = events.flatMap((event) => event._tag === "OutputCompleted" ? [event.value] : [])
      const last = events.at(-1)
      assert.deepStrictEqual([accepted, last?._tag === "ChatCompleted" && last.result.output], [[written], written])
      const folded = Collector.toChatResult(Collector.applyAll(Collector.initial(), events))
      assert.deepStrictEqual(folded.output, written)
      const { result } = yield* Session.reply(Session.make(), "q", { output: weather }).pipe(
        Effect.provide(Script.layer([answer()]))
      )
      const { celsius }: { readonly celsius: number } = yield* Output.get(result)
      assert.strictEqual(celsius, 7)
    }))

  it.effect("R-519: Session.step asks for no typed answer and returns a plain reply", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([say("Hello")])
      const session = Session.make({ thread: Thread.fromMessages([Message.user("q")]) })
      const { result } = yield* Session.step(session, { tools: [look], output: weather }).pipe(
        Effect.provide(model.layer)
      )
      const [request] = yield* model.requests
      assert.deepStrictEqual([request?.tools.map(({ name }) => name), request?.responseFormat], [["look"], undefined])
      assert.deepStrictEqual([result.done, result.response.outputText], [true, "Hello"])
    }))
})

describe("typed answers of each adapter over loopback", () => {
  const json = JSON.stringify(written)
  const chat = {
    said: ChatBodies.body(ChatBodies.said(json), ChatBodies.finish("stop")),
    called: ChatBodies.body(
      ChatBodies.call({ index: 0, id: "a", name: "final_answer", arguments: json }),
      ChatBodies.finish("tool_calls")
    )
  }
  const adapters = {
    chat: {
      layer: (url: string) => ChatBodies.layer(url, { vendor: "openai" }),
      ...chat,
      modes: { plain: "native", withTools: "native" }
    },
    generic: {
      layer: (url: string) => ChatBodies.layer(url),
      ...chat,
      modes: { plain: "tool", withTools: "tool" }
    },
    responses: {
      layer: (url: string) => Responses.layer(url),
      said: Responses.body(Responses.created, Responses.said(json), Responses.completed()),
      called: Responses.body(
        Responses.added(0, Responses.call("a", "final_answer")),
        Responses.event("function_call_arguments.done", { output_index: 0, arguments: json }),
        Responses.done(0, Responses.call("a", "final_answer", json)),
        Responses.completed({ output: [Responses.call("a", "final_answer", json)] })
      ),
      modes: { plain: "native", withTools: "native" }
    },
    anthropic: {
      layer: (url: string) => Anthropic.layer(url),
      said: Anthropic.reply([Anthropic.text(0, json)], "end_turn"),
      called: Anthropic.reply([Anthropic.called(0, "a", "final_answer", json)], "tool_use"),
      modes: { plain: "native", withTools: "native" }
    },
    gemini: {
      layer: (url: string) => Gemini.layer(url),
      said: Gemini.body(Gemini.said(json), Gemini.finish("STOP")),
      called: Gemini.body(Gemini.chunk([Gemini.call("final_answer", written)]), Gemini.finish("STOP")),
      modes: { plain: "native", withTools: "tool" }
    }
  } as const
  /** How each protocol forces a call of the answer's tool. */
  const forced = {
    chat: { tool_choice: { type: "function", function: { name: "final_answer" } } },
    generic: { tool_choice: { type: "function", function: { name: "final_answer" } } },
    responses: { tool_choice: { type: "function", name: "final_answer" } },
    anthropic: { tool_choice: { type: "tool", name: "final_answer" } },
    gemini: { toolConfig: { functionCallingConfig: { mode: "ANY", allowedFunctionNames: ["final_answer"] } } }
  }
  for (const [name, { called, layer, said }] of Object.entries(adapters)) {
    it.effect(`G58, G85: ${name}: the closing call forces the tool of the answer, and offers no other`, () =>
      Effect.scoped(Effect.gen(function*() {
        const bodies: Array<object> = []
        const server = yield* Server.serve(({ body }) => {
          bodies.push(body as object)
          return { pieces: [bodies.length === 1 ? said : called] }
        })
        const options = { output: Output.make(Weather, { mode: "tool" }), tools: [look], maxTurns: 1 } as const
        const result = yield* Chat.run("q", options).pipe(Effect.provide(layer(server.url)))
        assert.deepStrictEqual([result.output, bodies.length], [value, 2])
        assert.deepInclude(bodies[1], forced[name as keyof typeof forced])
        assert.notInclude(JSON.stringify(bodies[1]), "\"look\"")
      })))
  }

  /** Members have any name: a schema that OpenAI and Anthropic refuse. */
  const Counts = Schema.Struct({ city: Schema.String, counts: Schema.Record(Schema.String, Schema.Finite) })

  it.effect("G58: the defect of a schema that a provider cannot hold names the members and definitions at fault", () =>
    Effect.gen(function*() {
      interface Tree {
        readonly marks: { readonly [name: string]: string }
        readonly below: ReadonlyArray<Tree>
      }
      const Tree = Schema.Struct({
        marks: Schema.Record(Schema.String, Schema.String),
        below: Schema.Array(Schema.suspend((): Schema.Codec<Tree> => Tree))
      }).annotate({ identifier: "Tree" })
      const Rest = Schema.StructWithRest(Schema.Struct({ city: Schema.String }), [
        Schema.Record(Schema.String, Schema.String)
      ])
      const places: ReadonlyArray<readonly [Schema.Codec<unknown>, RegExp]> = [
        [Schema.Struct({ city: Schema.String, tree: Tree }), /see "Tree";/],
        [Schema.Struct({ city: Schema.Json, tree: Tree }), /see "city", "Tree";/],
        [Schema.Array(Tree), /see its root;/],
        [Rest, /see its root;/]
      ]
      const layer = Responses.layer("http://model.test")
      for (const [schema, place] of places) {
        const native = Chat.run("q", { output: Output.make(schema, { mode: "native" }) })
        const defect = defectOf(yield* Effect.exit(Effect.provide(native, layer)))
        assert.match(defect, place)
        assert.match(defect, /, or use mode "tool"$/)
        // In a manual run no answer comes by a tool.
        const manual = Chat.run("q", { output: Output.make(schema), mode: "manual" })
        assert.match(defectOf(yield* Effect.exit(Effect.provide(manual, layer))), /each value a type$/)
      }
    }))

  for (const [name, { layer, modes }] of Object.entries(adapters)) {
    const refuses = modes.plain === "native" && name !== "gemini"
    it.effect(`G58: ${name} ${refuses ? "answers by the tool where the provider cannot hold the model to the schema" : "takes a schema with members of any name"}`, () =>
      Effect.scoped(Effect.gen(function*() {
        const bodies: Array<string> = []
        const server = yield* Server.serve(({ body }) => {
          bodies.push(JSON.stringify(body))
          return { status: 400, pieces: ["{}"] }
        })
        const ran = (mode: "auto" | "native" | "finalize") =>
          Effect.exit(Chat.run("q", { output: Output.make(Counts, { mode }) }).pipe(Effect.provide(layer(server.url))))
        yield* ran("auto")
        assert.strictEqual(bodies.length, 1)
        assert.strictEqual(bodies[0]!.includes("\"final_answer\""), refuses || modes.plain === "tool")
        for (const mode of ["native", "finalize"] as const) {
          const exit = yield* ran(mode)
          if (refuses) assert.match(defectOf(exit), /output: the provider cannot hold .* see "counts"; .* mode "tool"/)
          else assert.notMatch(defectOf(exit), /cannot hold/)
        }
        assert.strictEqual(bodies.length, refuses ? 1 : 3)
      })))
  }

  for (const [name, { called, layer, modes, said }] of Object.entries(adapters)) {
    for (const mode of ["auto", "native", "tool", "finalize"] as const) {
      for (const has of ["plain", "withTools"] as const) {
        it.effect(`G58: ${name}, ${mode}, ${has === "plain" ? "without tools" : "with tools"}: a run gives one typed value`, () =>
          Effect.scoped(Effect.gen(function*() {
            const bodies: Array<string> = []
            const server = yield* Server.serve(({ body }) => {
              const written = JSON.stringify(body)
              bodies.push(written)
              return { pieces: [written.includes("\"final_answer\"") ? called : said] }
            })
            const output = Output.make(Weather, { mode })
            const tools = has === "plain" ? [] : [look]
            const result = yield* Chat.run("q", { output, tools }).pipe(Effect.provide(layer(server.url)))
            assert.deepStrictEqual(result.output, value)
            const found = bodies.map((body) =>
              body.includes("\"final_answer\"") ? "tool" : body.includes("celsius") ? "native" : "none"
            )
            const expected = mode === "auto" ? [modes[has]] : mode === "finalize" ? ["none", "native"] : [mode]
            assert.deepStrictEqual(found, expected)
          })))
      }
    }
  }
})

describe("the streamed answer", () => {
  const pieces = (whole: string, size: number) => whole.match(new RegExp(`[^]{1,${size}}`, "g"))!

  /** A model that says a text, or the arguments of the tool, in pieces, with a wait before each. */
  const slowly = (
    all: ReadonlyArray<string>,
    by: "text" | "call",
    isWhole = true,
    wait: Duration.Input = "60 millis"
  ): Adapter.Service => ({
    ...(by === "text" ? { output: nativeFacts } : {}),
    stream: () => {
      const id = "c"
      const before: ReadonlyArray<Event.AdapterEvent> = [
        { _tag: "MessageStarted", message: Message.assistant("") },
        ...(by === "call" ? [{ _tag: "ToolCallStarted", id, name: "final_answer" } as const] : [])
      ]
      const whole = all.join("")
      const call = {
        ...Message.toolCall(id, "final_answer", by === "call" ? JSON.parse(isWhole ? whole : "{}") : {}),
        rawArguments: whole
      }
      const behind: ReadonlyArray<Event.AdapterEvent> = by === "text"
        ? [
          { _tag: "TextCompleted", id: null, text: whole },
          { _tag: "MessageCompleted", message: Message.assistant(whole), finishReason: "stop" }
        ]
        : [
          { _tag: "ToolCallCompleted", ...call },
          { _tag: "MessageCompleted", message: Message.assistant("", [call]), finishReason: "tool_calls" }
        ]
      const deltas = Stream.fromIterable(all).pipe(
        Stream.mapEffect((delta) =>
          Effect.as(
            Effect.sleep(wait),
            by === "text"
              ? { _tag: "TextDelta", id: null, delta } as const
              : { _tag: "ToolCallDelta", id, argumentsDelta: delta } as const
          )
        )
      )
      const end = isWhole
        ? Stream.fromIterable(behind)
        : Stream.fail(new Adapter.AdapterError({ reason: "network_error" }))
      return Stream.concat(Stream.concat(Stream.fromIterable(before), deltas), end)
    }
  })

  const seen = <A>(service: Adapter.Service, output: Output.Output<A>) =>
    Effect.gen(function*() {
      const events: Array<Event.Event> = []
      const read = Stream.runForEach(
        Chat.stream("q", { output }),
        (event) => Effect.sync(() => void events.push(event))
      )
      const fiber = yield* Effect.forkChild(Effect.exit(read.pipe(Effect.provide(Adapter.layer(service)))))
      while (fiber.pollUnsafe() === undefined) yield* TestClock.adjust("60 millis")
      return events
    })

  for (const by of ["text", "call"] as const) {
    it.effect(`G60: parts of an answer by ${by} grow, a number comes after its end, and the whole value comes once`, () =>
      Effect.gen(function*() {
        const output = Output.make(Schema.Struct({ city: Schema.String, days: Schema.Array(Schema.Finite) }))
        const whole = { city: "Oslo", days: [10, 20] }
        const events = yield* seen(slowly(pieces(JSON.stringify(whole), 3), by), output)
        const parts = events.flatMap((event) => event._tag === "OutputPartial" ? [JSON.stringify(event.value)] : [])
        assert.includeMembers(parts, ["{\"city\":\"Osl\"}", "{\"city\":\"Oslo\",\"days\":[10]}"])
        assert.notInclude(parts.join(), "[1]")
        assert.strictEqual(new Set(parts).size, parts.length)
        const completed = events.flatMap((event) => event._tag === "OutputCompleted" ? [event.value] : [])
        assert.deepStrictEqual(completed, [whole])
      }))

    it.effect(`G60: an answer by ${by} cut at any piece gives parts and no output`, () =>
      Effect.gen(function*() {
        const output = Output.make(Schema.Struct({ city: Schema.String }))
        const all = pieces(JSON.stringify({ city: "Oslo" }), 2)
        // Behind the last piece the text is whole, and the reply is not.
        for (let length = 0; length <= all.length; length++) {
          const events = yield* seen(slowly(all.slice(0, length), by, false), output)
          const parts = events.flatMap((event) => event._tag === "OutputPartial" ? [event.value] : [])
          const begun = all.slice(0, length).join("").replace(/^.*:"|"}?$/g, "")
          assert.deepStrictEqual(parts.at(-1), length === 0 ? undefined : length < 5 ? {} : { city: begun })
          assert.isFalse(events.some(({ _tag }) => _tag === "OutputCompleted"))
          const last = events.at(-1)
          assert.strictEqual(last?._tag, "ChatCompleted")
          assert.notProperty(last?._tag === "ChatCompleted" && last.result, "output")
        }
      }))

    it.effect(`G60: parts of an answer by ${by} come at most every 50 ms`, () =>
      Effect.gen(function*() {
        const output = Output.make(Schema.Struct({ city: Schema.String }))
        const service = slowly(pieces(JSON.stringify({ city: "O".repeat(40) }), 1), by, true, "10 millis")
        const times: Array<number> = []
        const read = Stream.runForEach(Chat.stream("q", { output }), (event) =>
          Effect.clockWith((clock) =>
            Effect.sync(() => {
              if (event._tag === "OutputPartial") {
                times.push(clock.currentTimeMillisUnsafe())
              }
            })
          ))
        const fiber = yield* Effect.forkChild(read.pipe(Effect.provide(Adapter.layer(service))))
        while (fiber.pollUnsafe() === undefined) {
          yield* TestClock.adjust("10 millis")
        }
        assert.isAbove(times.length, 5)
        const gaps = times.slice(1).map((time, index) =>
          time - times[index]!
        )
        assert.strictEqual(Math.min(...gaps), 50)
      }))
  }

  it.effect("G60: a call of the answer's tool in a reply that is cut later gives no output, and the reply may be repeated", () =>
    Effect.gen(function*() {
      const output = Output.make(Schema.Struct({ city: Schema.String }))
      const reply = (end: Script.Entry) => [
        toolCall("c", "final_answer", { city: "Oslo" }),
        Script.delay(10),
        text("That is all."),
        end
      ]
      const cut = reply(Script.streamError("network_error"))
      const policy = { ...Policy.standard, start: "onCallReady" } as const
      const ran = (script: Script.Input, options: object) =>
        Effect.gen(function*() {
          const program = Chat.run("q", { output, policy, ...options }).pipe(Effect.provide(Script.layer(script)))
          const fiber = yield* Effect.forkChild(program)
          yield* TestClock.adjust("1 second")
          return yield* Fiber.join(fiber)
        })
      const lost = yield* ran([cut], {})
      assert.deepStrictEqual([lost.outcome._tag, "output" in lost], ["Failed", false])
      const repeated = yield* ran([cut, reply(finish("tool_calls"))], { retryReply: Schedule.recurs(1) })
      assert.deepStrictEqual([repeated.outcome._tag, repeated.output], ["Completed", { city: "Oslo" }])
    }))

  it.effect("G60: the first pass of finalize has no parts, whatever its text is", () =>
    Effect.gen(function*() {
      const output = Output.make(Schema.Struct({ city: Schema.String }), { mode: "finalize" })
      const model = Script.layer([say({ city: "Bergen" }), say({ city: "Oslo" })])
      const events = yield* Stream.runCollect(Chat.stream("q", { output })).pipe(Effect.provide(model))
      const parts = events.flatMap((event) => event._tag === "OutputPartial" ? [event.value] : [])
      assert.deepStrictEqual(parts, [{ city: "Oslo" }])
    }))

  it.effect("G60: no part comes past 64 KiB of text", () =>
    Effect.gen(function*() {
      const output = Output.make(Schema.Struct({ text: Schema.String }))
      const whole = JSON.stringify({ text: "x".repeat(1_000_000) })
      const events = yield* seen(slowly(pieces(whole, 16 * 1024), "text"), output)
      const parts = events.flatMap((event) =>
        event._tag === "OutputPartial" ? [JSON.stringify(event.value).length] : []
      )
      assert.isAbove(parts.length, 1)
      assert.isAtMost(Math.max(...parts), 64 * 1024 + "\"}".length)
      const last = events.at(-1)
      assert.isTrue(last?._tag === "ChatCompleted" && last.result.output !== undefined)
    }))

  /** Tells whether one value is a part of another. */
  const isPart = (part: unknown, whole: unknown): boolean => {
    if (typeof part === "string" && typeof whole === "string") return whole.startsWith(part)
    if (Array.isArray(part)) {
      return Array.isArray(whole) && part.length <= whole.length &&
        part.every((one, index) => isPart(one, whole[index]))
    }
    if (typeof part === "object" && part !== null) {
      return typeof whole === "object" && whole !== null &&
        Object.keys(part).every((key) =>
          Object.hasOwn(whole, key) && isPart(Reflect.get(part, key), Reflect.get(whole, key))
        )
    }
    return Object.is(part, whole)
  }

  it.effect("G87: every prefix of a JSON text gives a part of the whole value and never throws", () =>
    Effect.gen(function*() {
      const drawn = Arbitrary.schema(Schema.Record(Schema.String, Schema.Json))
      const result = yield* Arbitrary.checkEffect(drawn, (whole) =>
        Effect.sync(() => {
          const text = JSON.stringify(whole)
          const plain = JSON.parse(text)
          let before: unknown
          for (let length = 0; length <= text.length; length++) {
            const part = partOf(text.slice(0, length))
            if (part !== undefined && !isPart(part, plain)) return false
            if (before !== undefined && !isPart(before, part)) return false
            before = part
          }
          return true
        }), { runs: 200, seed: "parts", size: 8 })
      assert.isUndefined(Arbitrary.formatCheckFailure(result))
    }))

  it.effect("G60: a text before calls has no parts, although it begins like JSON", () =>
    Effect.gen(function*() {
      const native = Adapter.map((adapter) => ({ ...adapter, output: nativeFacts }))
      for (const said of ["\"Look\", she said.", "[1] says so.", "true", "null"]) {
        const model = native.pipe(Layer.provide(Script.layer([
          [text(said), toolCall("c", "look"), finish("tool_calls")],
          say({ city: "Oslo" })
        ])))
        const output = Output.make(Schema.Struct({ city: Schema.String }))
        const events = yield* Stream.runCollect(Chat.stream("q", { output, tools: [look] })).pipe(Effect.provide(model))
        const parts = events.flatMap((event) => event._tag === "OutputPartial" ? [event.value] : [])
        assert.deepStrictEqual(parts, [{ city: "Oslo" }])
      }
    }))

  it("G87: a part never ends with half of a character, written as it is or escaped, and grows", () => {
    const texts = [
      "x😀y",
      "x\\ud83d\\ude00y",
      "\\\\ud83d",
      "z\\\\ud83d\\ude00",
      "z\\\\\\ud83d\\ude00",
      "z \\ud83d\\ude00"
    ]
    for (const text of texts.map((text) => `{"a":["${text}"]}`)) {
      const whole = JSON.parse(text)
      let before: unknown = {}
      for (let length = 1; length <= text.length; length++) {
        const part = partOf(text.slice(0, length))
        assert.isTrue(isPart(part, whole), text.slice(0, length))
        assert.isTrue(isPart(before, part), text.slice(0, length))
        before = part
        assert.notMatch(JSON.stringify(part) ?? "", /x\\ud83d/)
      }
      assert.deepStrictEqual(partOf(text), whole)
    }
  })

  it("G87: a part has no member __proto__ and no other prototype, like the accepted answer", () => {
    const text = "{\"a\":1,\"__proto__\":{\"polluted\":true},\"b\":{\"__proto__\":[1]}}"
    for (let length = 1; length <= text.length; length++) {
      const part = partOf(text.slice(0, length)) as { readonly b?: object }
      assert.deepStrictEqual(Object.keys(part), ["a", "b"].filter((name) => name in part))
      for (const each of [part, part.b ?? {}]) assert.strictEqual(Object.getPrototypeOf(each), Object.prototype)
    }
    assert.notProperty({}, "polluted")
  })

  it.effect("G87: the last part of a native answer with a member __proto__ equals the accepted answer", () =>
    Effect.gen(function*() {
      const text = "{\"notes\":{\"__proto__\":{\"polluted\":true},\"kept\":1}}"
      const notes = Output.make(Schema.Struct({ notes: Schema.Record(Schema.String, Schema.Json) }), { mode: "native" })
      const model = Script.layer([[Script.text(text), Script.finish("stop")]])
      const events = yield* Stream.runCollect(Chat.stream("Which notes?", { output: notes })).pipe(
        Effect.provide(model)
      )
      const valueOf = (tag: string) =>
        events.flatMap((event) => event._tag === tag && "value" in event ? [event.value] : [])
      assert.deepStrictEqual(valueOf("OutputCompleted"), [{ notes: { kept: 1 } }])
      assert.deepStrictEqual(valueOf("OutputPartial").at(-1), { notes: { kept: 1 } })
    }))
})

it.effect("R-519: the span of each request carries the output mode and the number of the repair", () =>
  Effect.gen(function*() {
    const { spans, tracer } = Spans.recording()
    yield* run([answer({ city: 1 }), answer()], { output: weather }).pipe(Effect.withTracer(tracer))
    const shown = spans.filter(({ kind }) => kind === "client").map(({ attributes }) => [
      attributes.get("heddle.output.mode"),
      attributes.get("heddle.output.repairs")
    ])
    assert.deepStrictEqual(shown, [["tool", undefined], ["tool", 1]])
  }))

describe("readers of a typed answer", () => {
  it.effect("R-519: clients see the answer and not the call that gives the answer", () =>
    Effect.gen(function*() {
      const events = yield* Stream.runCollect(Chat.stream("q", { output: weather, tools: [look] })).pipe(
        Effect.provide(Script.layer([[toolCall("a", "look"), finish("tool_calls")], answer()]))
      )
      const calls = new Map()
      const shown = events.flatMap((event) => Event.toPublic(event, { calls, runId: "r" }) ?? [])
      assert.notInclude(JSON.stringify(shown), "final_answer")
      const encoder = UiStream.make({ messageId: "m", protocol: 6 })
      const chunks = shown.flatMap((event) => encoder.push(event))
      assert.deepStrictEqual(chunks.filter(({ type }) => type === "data-heddle-output"), [
        { type: "data-heddle-output", id: "output", data: { value: written, isWhole: true } }
      ] as never)
      assert.deepStrictEqual(chunks.filter(({ type }) => type === "tool-input-start").length, 1)
      const agUi = AgUi.make({ threadId: "t", runId: "r" })
      const custom = shown.flatMap((event) => agUi.push(event)).filter((event) =>
        "name" in event && event["name"] === "heddle.output"
      )
      assert.deepStrictEqual(custom, [
        { type: "CUSTOM", name: "heddle.output", value: { value: written, isWhole: true } }
      ] as never)
    }))
})

it.effect("R-507: resuming a run with a typed answer without the output option fails and writes nothing", () =>
  Effect.gen(function*() {
    const output = Output.make(Weather)
    const whole = yield* kept(() => answer(), { rules: [], output })
    const cut = whole.records.findIndex(({ _tag }) => _tag === "StepPrepared") + 1
    const exit = yield* Effect.exit(resumed(() => answer(), { rules: [] }, whole.records.slice(0, cut)))
    assert.match(defectOf(exit), /rule_missing.*"output"/)
    const again = yield* resumed(() => answer(), { rules: [], output }, whole.records.slice(0, cut))
    assert.deepStrictEqual(again.result.output, value)
  }))

describe("bad input to an output", () => {
  it("R-519: Output.make refuses wrong options by their names", () => {
    assert.throws(() => Output.make(Weather, { mode: "xml" as never }), /mode must be/)
    assert.throws(() => Output.make(Weather, { retries: -1 }), /retries must be/)
    assert.throws(() => Output.make(Weather, { retrys: 1 } as never), /did you mean "retries"/)
    assert.throws(() => Output.make({ city: Schema.String } as never), /schema must be a Schema/)
    assert.throws(() => Output.make(undefined as never), /schema must be a Schema/)
    for (const options of [null, 3, "tool"]) {
      assert.throws(() => Output.make(Weather, options as never), /the options must be an object/)
    }
    for (const name of ["name", "toolName"] as const) {
      for (const given of ["", "my answer", "a".repeat(65)]) {
        assert.throws(
          () => Output.make(Weather, { [name]: given }),
          `Output.make: ${name} must be 1 to 64 letters, digits, _ or -`
        )
      }
    }
  })

  it.effect("R-519: options that conflict with output are defects that name the option to leave out", () =>
    Effect.gen(function*() {
      const beside = yield* run([say("x")], { output: weather, responseFormat: { type: "json_object" } })
      assert.match(defectOf(beside.exit), /output: leave responseFormat out/)
      const named = Tool.make("final_answer", { parameters: {}, handler: () => Effect.void })
      const twice = yield* run([say("x")], { output: weather, tools: [named] })
      assert.match(defectOf(twice.exit), /"final_answer", too; give the output another toolName/)
      const manual = yield* run([say("x")], { output: Output.make(Weather, { mode: "tool" }), mode: "manual" })
      assert.match(defectOf(manual.exit), /output with mode "tool"/)
      const none = yield* run([say("x")], { output: Weather as never })
      assert.match(defectOf(none.exit), /output must be an output made with Output.make/)
      assert.deepStrictEqual([beside.asked, twice.asked, manual.asked, none.asked], [[], [], [], []])
    }))
})
