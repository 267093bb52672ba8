/**
 * What the compiler knows of a run: what its tools and its callbacks need, and how it can fail.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { type Adapter, Chat, type Event, Message, Policy, Step, type Thread, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import { describe, expect, test } from "tstyche"

class Weather extends Context.Service<Weather, { readonly celsius: Effect.Effect<number> }>()("test/Weather") {}
class Audit extends Context.Service<Audit, { readonly note: (text: string) => Effect.Effect<void> }>()("test/Audit") {}
class Rules extends Context.Service<Rules, { readonly enough: Effect.Effect<boolean> }>()("test/Rules") {}

class GiveUp {
  readonly _tag = "GiveUp"
}

const ping = Tool.make("ping", { parameters: {}, handler: () => Effect.succeed("pong") })
const weather = Tool.make("weather", {
  parameters: { city: Schema.String },
  handler: () => Effect.flatMap(Weather, (service) => service.celsius)
})
const broken = Tool.make("broken", { parameters: {}, handler: () => Effect.fail("no such city" as const) })

const calls = [Message.toolCall("c0", "ping")]
const model = Script.layer([Script.text("Hello"), Script.finish("stop")])

describe("what a run needs", () => {
  test("without tools, an adapter and nothing else", () => {
    expect(Chat.run("go")).type.toBe<Effect.Effect<Event.ChatResult, Chat.ChatError, Adapter.Adapter>>()
    expect(Chat.stream("go")).type.toBe<Stream.Stream<Event.Event, Chat.ChatError, Adapter.Adapter>>()
    expect(Step.run("go")).type.toBe<Effect.Effect<Event.StepResult, Step.StepError, Adapter.Adapter>>()
    expect(Step.stream("go")).type.toBe<Stream.Stream<Event.Event, Step.StepError, Adapter.Adapter>>()
    expect(Chat.run("go", { tools: [], policy: Policy.allm })).type.toBe<
      Effect.Effect<Event.ChatResult, Chat.ChatError, Adapter.Adapter>
    >()
  })

  test("stays known where a combinator of effects or streams expects any", () => {
    expect(Effect.all([Chat.run("a"), Chat.run("b", { tools: [weather] })])).type.toBe<
      Effect.Effect<[Event.ChatResult, Event.ChatResult], Chat.ChatError, Adapter.Adapter | Weather>
    >()
    expect(Effect.all([Step.run("a"), Step.run("b")])).type.toBe<
      Effect.Effect<[Event.StepResult, Event.StepResult], Step.StepError, Adapter.Adapter>
    >()
    expect(Effect.all([ToolRunner.run([], [ping])])).type.toBe<Effect.Effect<[ToolRunner.Result], Step.EngineError>>()
    expect(Stream.mergeAll([Chat.stream("a"), Chat.stream("b")], { concurrency: 2 })).type.toBe<
      Stream.Stream<Event.Event, Chat.ChatError, Adapter.Adapter>
    >()
  })

  test("what its tools need shows, once per service", () => {
    const tools = [ping, weather] as const
    expect<Effect.Services<ReturnType<typeof run>>>().type.toBe<Adapter.Adapter | Weather>()
    expect(Chat.stream("go", { tools })).type.toBe<
      Stream.Stream<Event.Event, Chat.ChatError, Adapter.Adapter | Weather>
    >()
    expect(Step.run("go", { tools })).type.toBe<
      Effect.Effect<Event.StepResult, Step.StepError, Adapter.Adapter | Weather>
    >()
    expect(Step.stream("go", { tools })).type.toBe<
      Stream.Stream<Event.Event, Step.StepError, Adapter.Adapter | Weather>
    >()
    const run = () => Chat.run("go", { tools: [weather, ping, weather] })
  })

  test("a batch needs what its tools need, and no adapter", () => {
    expect(ToolRunner.run(calls, [ping])).type.toBe<Effect.Effect<ToolRunner.Result, Step.EngineError>>()
    expect(ToolRunner.run(calls, [ping, weather])).type.toBe<
      Effect.Effect<ToolRunner.Result, Step.EngineError, Weather>
    >()
    expect(ToolRunner.stream(calls, [weather])).type.toBe<Stream.Stream<Event.Event, never, Weather>>()
  })

  test("what callbacks need shows as well", () => {
    const run = () =>
      Chat.run("go", {
        tools: [weather],
        onToolError: (call) =>
          Effect.as(Effect.flatMap(Audit, (audit) => audit.note(call.name)), Tool.ErrorDecision.halt),
        haltWhen: () => Effect.flatMap(Rules, (rules) => rules.enough)
      })
    expect<Effect.Services<ReturnType<typeof run>>>().type.toBe<Adapter.Adapter | Weather | Audit | Rules>()
    const observed = () =>
      Chat.run("go", { onEvent: (event) => Effect.flatMap(Audit, (audit) => audit.note(event._tag)) })
    expect<Effect.Services<ReturnType<typeof observed>>>().type.toBe<Adapter.Adapter | Audit>()
  })

  test("a provided adapter is no longer a requirement", () => {
    expect(model).type.toBe<Layer.Layer<Adapter.Adapter>>()
    expect(Chat.run("go", { tools: [ping] }).pipe(Effect.provide(model))).type.toBe<
      Effect.Effect<Event.ChatResult, Chat.ChatError>
    >()
  })

  test("a list of tools of a wider type requires the services of that type", () => {
    const listed: ReadonlyArray<Tool.Tool<string, any, unknown, unknown, Weather>> = [weather, broken, ping]
    const run = () => Chat.run("go", { tools: listed })
    expect<Effect.Services<ReturnType<typeof run>>>().type.toBe<Adapter.Adapter | Weather>()
  })
})

describe("how a run fails", () => {
  test("a failure that a handler reports is data, not an error of the run", () => {
    const run = () => Chat.run("go", { tools: [broken] })
    expect<Effect.Error<ReturnType<typeof run>>>().type.toBe<Chat.ChatError>()
    expect<Chat.ChatError>().type.toBe<Thread.ValidationError | Step.EngineError | Adapter.AdapterError>()
  })

  test("the error that onToolError decides to fail with shows in the run, the step and the batch", () => {
    const onToolError = (_call: Message.ToolCall, _error: unknown) =>
      Effect.succeed(Tool.ErrorDecision.fail(new GiveUp()))
    expect(Chat.run("go", { tools: [ping], onToolError })).type.toBe<
      Effect.Effect<Event.ChatResult, Chat.ChatError | GiveUp, Adapter.Adapter>
    >()
    expect(Chat.stream("go", { tools: [ping], onToolError })).type.toBe<
      Stream.Stream<Event.Event, Chat.ChatError | GiveUp, Adapter.Adapter>
    >()
    expect(Step.run("go", { tools: [ping], onToolError })).type.toBe<
      Effect.Effect<Event.StepResult, Step.StepError | GiveUp, Adapter.Adapter>
    >()
    expect(ToolRunner.run(calls, [ping], { onToolError })).type.toBe<
      Effect.Effect<ToolRunner.Result, Step.EngineError | GiveUp>
    >()
    expect(ToolRunner.stream(calls, [ping], { onToolError })).type.toBe<Stream.Stream<Event.Event, GiveUp>>()
  })

  test("an onToolError that may fail or continue", () => {
    const run = () =>
      Chat.run("go", {
        tools: [broken],
        onToolError: (call) =>
          Effect.succeed(
            call.name === "broken" ? Tool.ErrorDecision.fail(new GiveUp()) : Tool.ErrorDecision.continue("replaced")
          )
      })
    expect<Effect.Error<ReturnType<typeof run>>>().type.toBe<Chat.ChatError | GiveUp>()
  })

  test("decisions that never fail leave the errors as they are", () => {
    for (const onToolError of ["continue", "halt"] as const) {
      expect(Chat.run("go", { tools: [ping], onToolError })).type.toBe<
        Effect.Effect<Event.ChatResult, Chat.ChatError, Adapter.Adapter>
      >()
    }
    const halting = () => Chat.run("go", { tools: [ping], onToolError: () => Effect.succeed(Tool.ErrorDecision.halt) })
    expect<Effect.Error<ReturnType<typeof halting>>>().type.toBe<Chat.ChatError>()
  })

  test("onToolError decides by an ErrorDecision and cannot fail", () => {
    Chat.run("go", {
      // @ts-expect-error is not assignable to type
      onToolError: () => Effect.succeed("continue")
    })
    Chat.run("go", {
      // @ts-expect-error is not assignable to type
      onToolError: () => Effect.fail("oops")
    })
  })
})

describe("options", () => {
  test("an input is a prompt, messages or a thread", () => {
    expect(Chat.run).type.toBeCallableWith("go")
    expect(Chat.run).type.toBeCallableWith([Message.user("go"), { role: "user", content: "now" }])
    expect(Chat.run).type.toBeCallableWith({ messages: [Message.user("go")], metadata: {} })
    expect(Chat.run).type.not.toBeCallableWith(42)
    expect(Chat.run).type.not.toBeCallableWith([{ role: "robot", content: "go" }])
  })

  test("undefined means not given, and null is not accepted", () => {
    expect(Chat.run).type.toBeCallableWith("go", {
      onToolError: undefined,
      toolTimeout: undefined,
      maxConcurrency: undefined,
      maxTurns: undefined,
      haltWhen: undefined,
      retryReply: undefined,
      policy: undefined,
      context: undefined,
      cancel: undefined,
      deadline: undefined
    })
    expect(Chat.run).type.not.toBeCallableWith("go", { maxTurns: null })
    expect(Chat.run).type.not.toBeCallableWith("go", { cancel: null })
  })

  test("a policy has values that exist", () => {
    expect(Chat.run).type.toBeCallableWith("go", { policy: { ...Policy.standard, resultOrder: "request" } })
    expect(Chat.run).type.not.toBeCallableWith("go", { policy: { ...Policy.standard, resultOrder: "random" } })
    expect(Chat.run).type.not.toBeCallableWith("go", { policy: { resultOrder: "request" } })
    expect(Chat.run).type.not.toBeCallableWith("go", { policy: "allm" })
  })

  test("haltWhen answers true or false, at once or as an effect that cannot fail", () => {
    Chat.run("go", {
      haltWhen: (step) => {
        expect(step).type.toBe<Event.StepResult>()
        return step.toolResults.length > 2
      }
    })
    expect(Chat.run).type.toBeCallableWith("go", { haltWhen: () => Effect.succeed(true) })
    expect(Chat.run).type.not.toBeCallableWith("go", { haltWhen: () => "yes" })
    expect(Chat.run).type.not.toBeCallableWith("go", { haltWhen: () => Effect.fail("no") })
  })

  test("durations and numbers", () => {
    expect(Chat.run).type.toBeCallableWith("go", { toolTimeout: "30 seconds", grace: 100, maxConcurrency: 2 })
    expect(Chat.run).type.not.toBeCallableWith("go", { toolTimeout: "soon" })
    expect(Chat.run).type.toBeCallableWith("go", { toolTimeout: { idle: "10 seconds" } })
    expect(Chat.run).type.toBeCallableWith("go", { toolTimeout: { idle: 100, total: "infinity" } })
    expect(Chat.run).type.not.toBeCallableWith("go", { toolTimeout: { idle: "soon" } })
    expect(Chat.run).type.not.toBeCallableWith("go", { toolTimeout: { idel: 100 } })
    expect(Chat.run).type.not.toBeCallableWith("go", { maxConcurrency: "2" })
    expect(Chat.run).type.not.toBeCallableWith("go", { mode: "semi" })
    expect(Chat.run).type.not.toBeCallableWith("go", { tools: [{ name: "ping" }] })
  })
})

describe("results", () => {
  test("an outcome is matched by its tag", () => {
    const told = (outcome: Event.Outcome): string => {
      switch (outcome._tag) {
        case "AskUser":
          return outcome.pendingQuestion
        case "Halted":
          return outcome.reason
        case "MaxTurns":
          return `${outcome.maxTurns} turns`
        default:
          return outcome._tag
      }
    }
    expect(told).type.toBe<(outcome: Event.Outcome) => string>()
    expect<Event.Outcome["_tag"]>().type.toBe<
      | "Completed"
      | "MaxTurns"
      | "HaltWhen"
      | "AskUser"
      | "ToolFailed"
      | "Halted"
      | "ManualToolCalls"
      | "ApprovalRequested"
      | "Cancelled"
      | "RuleEnded"
      | "Failed"
    >()
  })
})

describe("events", () => {
  test("W-26: the code of an answer is a reason of a ToolError, and may be left out", () => {
    expect<Event.Of<"ToolResultEncoded">["code"]>().type.toBe<Tool.ToolError["reason"] | undefined>()
  })

  test("W-27: a call that waits has its reason, and a match asks for its case", () => {
    expect<Event.Of<"ToolQueued">>().type.toBe<Event.ToolQueued>()
    expect<Event.ToolQueued["reason"]>().type.toBe<"permit" | "key" | "exclusive">()
    expect<Event.WireEvent["_tag"]>().type.toBe<Event.Event["_tag"]>()
    expect<Parameters<typeof Event.guards.ToolQueued>>().type.toBe<[event: { readonly _tag: string }]>()
  })

  test("W-28: the number of an attempt may be left out", () => {
    expect<Event.Of<"ToolExecutionStarted">["attempt"]>().type.toBe<number | undefined>()
  })

  test("W-27: a policy tells the facts of calls, or hides them", () => {
    expect<Policy.Policy["callFacts"]>().type.toBe<"told" | "hidden">()
  })
})
