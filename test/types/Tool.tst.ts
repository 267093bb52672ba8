/**
 * What the compiler knows of a tool: the arguments of its handler from any form of parameters, what it may produce, and
 * what it reports and needs.
 */
import { toStandardJsonSchema } from "@valibot/to-json-schema"
import { type } from "arktype"
import type * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { type Adapter, Chat, type Event, type Message, Session, type Step, Tool, ToolRunner } from "heddle"
import { describe, expect, test } from "tstyche"
import * as v from "valibot"
import * as z from "zod"

class Weather extends Context.Service<Weather, { readonly celsius: (city: string) => Effect.Effect<number> }>()(
  "test/Weather"
) {}

class NoSuchCity {
  readonly _tag = "NoSuchCity"
}

const weather = Tool.make("weather", {
  parameters: { city: Schema.NonEmptyString, days: Schema.optionalKey(Schema.FiniteFromString) },
  success: Schema.Struct({ celsius: Schema.FiniteFromString }),
  handler: ({ city }) =>
    Effect.gen(function*() {
      if (city === "?") return Tool.askUser("Which city?")
      if (city === "stop") return Tool.halt("done_early", { celsius: 0 })
      if (city === "Atlantis") return yield* Effect.fail(new NoSuchCity())
      return { celsius: yield* (yield* Weather).celsius(city) }
    })
})

type Args = { readonly city: string; readonly days?: number }

describe("Tool.make", () => {
  test("a tool's types are its name, parameters, success, failure and services", () => {
    expect(weather).type.toBe<Tool.Tool<"weather", Args, { readonly celsius: number }, NoSuchCity, Weather>>()
    expect<Tool.Params<typeof weather>>().type.toBe<Args>()
    expect<Tool.Success<typeof weather>>().type.toBe<{ readonly celsius: number }>()
    expect<Tool.Failure<typeof weather>>().type.toBe<NoSuchCity>()
    expect<Tool.Services<typeof weather>>().type.toBe<Weather>()
    expect<Tool.Outcome<typeof weather>>().type.toBe<
      Tool.Ok<{ readonly celsius: number }> | Tool.Error<NoSuchCity | Tool.ToolError> | Tool.AskUser | Tool.Halt
    >()
    expect(weather).type.toBeAssignableTo<Tool.Any>()
  })

  test("struct fields are the arguments", () => {
    Tool.make("t", {
      parameters: { city: Schema.String, days: Schema.optionalKey(Schema.Finite) },
      handler: (args) => {
        expect(args).type.toBe<Args>()
        return Effect.void
      }
    })
  })

  test("a schema is decoded: the handler has its type, not what the model sends", () => {
    Tool.make("t", {
      parameters: Schema.Struct({ at: Schema.FiniteFromString }),
      handler: (args) => {
        expect(args).type.toBe<{ readonly at: number }>()
        return Effect.void
      }
    })
    class Query extends Schema.Class<Query>("Query")({ text: Schema.String }) {}
    Tool.make("t", {
      parameters: Query,
      handler: (args) => {
        expect(args).type.toBe<Query>()
        return Effect.void
      }
    })
  })

  test("M-30: a schema of another library gives what it makes of the arguments", () => {
    const zod = Tool.make("t", {
      parameters: z.object({
        city: z.string(),
        days: z.number().default(3),
        at: z.string().transform((at) => at.length)
      }),
      handler: (args) => {
        expect(args).type.toBe<{ city: string; days: number; at: number }>()
        return Effect.void
      }
    })
    expect<Tool.Params<typeof zod>>().type.toBe<{ city: string; days: number; at: number }>()
    expect<Tool.Services<typeof zod>>().type.toBe<never>()
    Tool.make("t", {
      parameters: toStandardJsonSchema(v.object({ city: v.string(), days: v.optional(v.number(), 3) })),
      concurrency: ({ days }) => days > 1 ? "exclusive" : "shared",
      handler: (args) => {
        expect(args).type.toBe<{ city: string; days: number }>()
        return Effect.void
      }
    })
    Tool.make("t", {
      parameters: type({ city: "string", days: "number = 3", "unit?": "'C' | 'F'" }),
      handler: (args) => {
        expect(args).type.toBe<{ city: string; days: number; unit?: "C" | "F" }>()
        return Effect.void
      }
    })
    Tool.make("t", {
      parameters: z.object({ city: z.string() }),
      // @ts-expect-error Type 'string' is not assignable to type 'number'
      handler: (args: { readonly city: number }) => Effect.succeed(args)
    })
  })

  test("M-30: \"infinity\" is a duration", () => {
    Tool.make("t", { parameters: {}, timeout: "infinity", answerWithin: "infinity", handler: () => Effect.void })
    Tool.make("t", { parameters: {}, timeout: { idle: "infinity", total: 5 }, handler: () => Effect.void })
  })

  test("a JSON Schema gives a record of unchecked values", () => {
    Tool.make("t", {
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      handler: (args) => {
        expect(args).type.toBe<Readonly<Record<string, unknown>>>()
        return Effect.void
      }
    })
  })

  test("a tool without parameters has no arguments", () => {
    const none = Tool.make("none", { parameters: {}, handler: () => Effect.succeed(1) })
    expect<Tool.Params<typeof none>>().type.toBe<{}>()
    expect<Tool.Success<typeof none>>().type.toBe<number>()
    expect<Tool.Failure<typeof none>>().type.toBe<never>()
    expect<Tool.Services<typeof none>>().type.toBe<never>()
  })

  test("a handler whose arguments do not fit the schema does not compile", () => {
    Tool.make("t", {
      parameters: { city: Schema.String },
      // @ts-expect-error Type 'string' is not assignable to type 'number'
      handler: (args: { readonly city: number }) => Effect.succeed(args)
    })
    Tool.make("t", {
      parameters: { city: Schema.String },
      // @ts-expect-error Property 'town' does not exist
      handler: ({ town }) => Effect.succeed(town)
    })
    Tool.make("t", {
      parameters: Schema.Struct({ at: Schema.FiniteFromString }),
      // @ts-expect-error Type 'number' is not assignable to type 'string'
      handler: (args: { readonly at: string }) => Effect.succeed(args)
    })
  })

  test("a success schema holds the handler to its type", () => {
    Tool.make("t", {
      parameters: {},
      success: Schema.Struct({ celsius: Schema.Finite }),
      // @ts-expect-error Type 'string' is not assignable to type 'number'
      handler: () => Effect.succeed({ celsius: "7" })
    })
    Tool.make("t", {
      parameters: {},
      success: Schema.FiniteFromString,
      handler: () => Effect.succeed(7)
    })
  })

  test("a handler is an effect of its arguments and its call", () => {
    Tool.make("t", {
      parameters: {},
      // @ts-expect-error Type 'number' is not assignable to type 'Effect
      handler: () => 42
    })
    Tool.make("t", {
      parameters: {},
      // @ts-expect-error return an Effect: call.promise((signal) => …)
      handler: async () => 42
    })
    Tool.make("t", {
      parameters: {},
      success: Schema.Finite,
      // @ts-expect-error return an Effect: call.promise((signal) => …)
      handler: (_, call) => Promise.resolve(call.attempt)
    })
    Tool.make("t", {
      parameters: {},
      handler: (_, call) => {
        expect(call).type.toBe<Tool.CallContext>()
        expect(call.progress({ stage: "lookup" })).type.toBe<Effect.Effect<void>>()
        expect(call.promise((signal) => fetch("https://example.com", { signal }))).type.toBe<
          Effect.Effect<Response, Cause.UnknownError>
        >()
        return Effect.void
      }
    })
  })

  test("M-29: a callback and a promise are handlers, and their value is what the tool produces", () => {
    const called = Tool.make("t", {
      parameters: {},
      handler: () => Effect.callback<number, "late">((resume) => resume(Effect.succeed(1)))
    })
    expect<Tool.Success<typeof called>>().type.toBe<number>()
    expect<Tool.Failure<typeof called>>().type.toBe<"late">()
    expect<Tool.Services<typeof called>>().type.toBe<never>()
    const promised = Tool.make("t", {
      parameters: { city: Schema.String },
      handler: ({ city }, call) => call.promise(() => new Promise<string>((resolve) => resolve(city)))
    })
    expect<Tool.Success<typeof promised>>().type.toBe<string>()
    const asynchronous = Tool.make("t", { parameters: {}, handler: (_, call) => call.promise(async () => 1) })
    expect<Tool.Success<typeof asynchronous>>().type.toBe<number>()
  })

  test("M-29: an untyped callback or promise produces unknown, or the type of `success`", () => {
    const called = Tool.make("t", {
      parameters: {},
      handler: () => Effect.callback((resume) => resume(Effect.succeed(1)))
    })
    expect<Tool.Success<typeof called>>().type.toBe<unknown>()
    expect<Tool.Services<typeof called>>().type.toBe<never>()
    const promised = Tool.make("t", {
      parameters: {},
      handler: (_, call) => call.promise(() => new Promise((resolve) => resolve(1)))
    })
    expect<Tool.Success<typeof promised>>().type.toBe<unknown>()
    const held = Tool.make("t", {
      parameters: {},
      success: Schema.Finite,
      handler: () => Effect.callback((resume) => resume(Effect.succeed(1)))
    })
    expect<Tool.Success<typeof held>>().type.toBe<number>()
    const heldPromise = Tool.make("t", {
      parameters: {},
      success: Schema.Finite,
      handler: (_, call) => call.promise(() => new Promise((resolve) => resolve(1)))
    })
    expect<Tool.Success<typeof heldPromise>>().type.toBe<number>()
    Tool.make("t", {
      parameters: {},
      success: Schema.Finite,
      // @ts-expect-error Type 'string' is not assignable to type 'number
      handler: () => Effect.callback<string>((resume) => resume(Effect.succeed("7")))
    })
  })

  test("M-29: a question and a halt are not what a tool produces", () => {
    const asking = Tool.make("t", {
      parameters: { n: Schema.Finite },
      handler: ({ n }) =>
        Effect.gen(function*() {
          if (n === 0) return Tool.askUser("How many?")
          if (n < 0) return Tool.halt("negative", n)
          return n.toString()
        })
    })
    expect<Tool.Success<typeof asking>>().type.toBe<string>()
    const either = Tool.make("t", {
      parameters: { city: Schema.String },
      handler: ({ city }) =>
        city === "?" ? Effect.succeed(Tool.askUser("Which city?")) : Effect.succeed({ celsius: 21 })
    })
    expect<Tool.Success<typeof either>>().type.toBe<{ celsius: number }>()
    const declared: Tool.Options<{}, Schema.Finite, "late", Weather> = { parameters: {}, handler: () => Effect.never }
    expect(Tool.make("t", declared)).type.toBe<Tool.Tool<"t", {}, number, "late", Weather>>()
  })

  test("services of the schemas are services of the tool", () => {
    interface Lookup extends Schema.Codec<{ readonly id: string }, { readonly id: string }, Weather, NoSuchCity> {}
    const parameters = null as unknown as Lookup
    const tool = Tool.make("t", { parameters, handler: () => Effect.void })
    expect<Tool.Services<typeof tool>>().type.toBe<Weather>()
    const written = Tool.make("t", { parameters: {}, success: parameters, handler: () => Effect.succeed({ id: "1" }) })
    // A recorded result is read again when a run is taken up.
    expect<Tool.Services<typeof written>>().type.toBe<Weather | NoSuchCity>()
  })

  test("concurrency may look at the arguments", () => {
    Tool.make("t", {
      parameters: { path: Schema.String },
      concurrency: (args) => {
        expect(args).type.toBe<{ readonly path: string }>()
        return args.path === "/" ? "exclusive" : "shared"
      },
      handler: () => Effect.void
    })
    Tool.make("t", {
      parameters: {},
      // @ts-expect-error Type '"sometimes"' is not assignable
      concurrency: "sometimes",
      handler: () => Effect.void
    })
  })

  test("N-28: readOnly, destructive and interrupt may look at the decoded arguments", () => {
    const tool = Tool.make("t", {
      parameters: { at: Schema.FiniteFromString },
      readOnly: (args) => {
        expect(args).type.toBe<{ readonly at: number }>()
        return args.at > 0
      },
      destructive: (args) => {
        expect(args).type.toBe<{ readonly at: number }>()
        return args.at < 0
      },
      interrupt: (args) => {
        expect(args).type.toBe<{ readonly at: number }>()
        return args.at > 0 ? "cancel" : "block"
      },
      handler: () => Effect.void
    })
    expect<Tool.Params<typeof tool>>().type.toBe<{ readonly at: number }>()
    expect(Tool.isReadOnly).type.toBeCallableWith(tool, { at: 1 })
    expect(Tool.isReadOnly).type.not.toBeCallableWith(tool, { at: "1" })
    expect(Tool.isDestructive).type.not.toBeCallableWith(tool, {})
    expect(Tool.make).type.not.toBeCallableWith("t", {
      parameters: {},
      readOnly: () => "yes",
      handler: () => Effect.void
    })
    expect(Tool.make).type.not.toBeCallableWith("t", {
      parameters: {},
      interrupt: () => true,
      handler: () => Effect.void
    })
    Tool.fromChat("agent", {
      parameters: { topic: Schema.String },
      readOnly: ({ topic }) => {
        expect(topic).type.toBe<string>()
        return topic !== ""
      },
      chat: ({ topic }) => Chat.stream(topic)
    })
  })

  test("a handler's scope is the call's own, not the run's", () => {
    const scoped = Tool.make("t", { parameters: {}, handler: () => Effect.addFinalizer(() => Effect.void) })
    expect<Tool.Services<typeof scoped>>().type.toBe<never>()
  })

  test("what a run of several tools needs and reports is the union", () => {
    const other = Tool.make("other", { parameters: {}, handler: () => Effect.fail("other" as const) })
    type Tools = typeof weather | typeof other
    expect<Tool.Services<Tools>>().type.toBe<Weather>()
    expect<Tool.Failure<Tools>>().type.toBe<NoSuchCity | "other">()
  })
})

describe("Tool.make: gates and limits", () => {
  test("they see the arguments of the handler, and what a gate needs is what the tool needs", () => {
    const gated = Tool.make("t", {
      parameters: { city: Schema.String },
      validate: ({ city }) => {
        expect(city).type.toBe<string>()
        return city === "" ? { valid: false, error: "no city" } : true
      },
      authorize: (_, call) => Effect.map(Weather, () => call.context["admin"] === true),
      limits: [{ key: ({ city }) => city, permits: 1 }, { key: "weather", permits: 4 }],
      handler: () => Effect.void
    })
    expect<Tool.Services<typeof gated>>().type.toBe<Weather>()
  })

  test("a gate that decides nothing is refused", () => {
    Tool.make("t", {
      parameters: {},
      // @ts-expect-error Type 'Effect<void, never, never>' is not assignable
      authorize: () => Effect.void,
      handler: () => Effect.void
    })
  })
})

describe("Tool.fromChat", () => {
  test("its arguments, what its run needs, and what it reports are known", () => {
    const agent = Tool.fromChat("agent", {
      parameters: { topic: Schema.String },
      chat: ({ topic }) => Chat.stream(topic, { tools: [weather] })
    })
    expect<Tool.Params<typeof agent>>().type.toBe<{ readonly topic: string }>()
    expect<Tool.Success<typeof agent>>().type.toBe<string>()
    expect<Tool.Services<typeof agent>>().type.toBe<Adapter.Adapter | Weather>()
    expect<Tool.Failure<typeof agent>>().type.toBe<Chat.ChatError | Tool.ChatFailed>()
  })

  test("result decides what it produces", () => {
    const agent = Tool.fromChat("agent", {
      parameters: {},
      chat: () => Chat.stream("go"),
      result: (result: Event.ChatResult) => Effect.succeed(result.steps.length)
    })
    expect<Tool.Success<typeof agent>>().type.toBe<number>()
  })

  test("M-29: result may be a callback", () => {
    const agent = Tool.fromChat("agent", {
      parameters: {},
      chat: () => Chat.stream("go"),
      result: () => Effect.callback<number>((resume) => resume(Effect.succeed(1)))
    })
    expect<Tool.Success<typeof agent>>().type.toBe<number>()
    const asking = Tool.fromChat("agent", {
      parameters: {},
      chat: () => Chat.stream("go"),
      result: (result) => Effect.succeed(result.steps.length > 1 ? Tool.askUser("More?") : result.steps.length)
    })
    expect<Tool.Success<typeof asking>>().type.toBe<number>()
  })
})

describe("Tool.ErrorDecision", () => {
  test("only fail has an error", () => {
    expect(Tool.ErrorDecision.fail(new NoSuchCity())).type.toBe<Tool.ErrorDecision<NoSuchCity>>()
    expect(Tool.ErrorDecision.halt).type.toBe<Tool.ErrorDecision>()
    expect(Tool.ErrorDecision.continue({ any: "thing" })).type.toBe<Tool.ErrorDecision>()
    expect(Tool.ErrorDecision.halt).type.toBeAssignableTo<Tool.ErrorDecision<NoSuchCity>>()
  })
})

describe("error policies", () => {
  class NotFound extends Schema.TaggedError<NotFound>()("NotFound", { path: Schema.String }) {}
  class Busy extends Schema.TaggedError<Busy>()("Busy", { port: Schema.Finite }) {}
  class Fatal extends Schema.TaggedError<Fatal>()("Fatal", {}) {}

  const find = Tool.make("find", { parameters: {}, handler: () => Effect.fail(new NotFound({ path: "/a" })) })
  const listen = Tool.make("listen", {
    parameters: { port: Schema.Finite },
    handler: ({ port }) => Effect.fail(new Busy({ port }))
  })
  const quiet = Tool.make("quiet", { parameters: {}, handler: () => Effect.void })

  test("M-32: the function of a run gets the union of what its tools report and ToolError", () => {
    const run = Chat.run("go", {
      tools: [find, listen, quiet],
      onToolError: (_call, error) => {
        expect(error).type.toBe<NotFound | Busy | Tool.ToolError>()
        return Effect.succeed(Tool.ErrorDecision.fail(new Fatal()))
      }
    })
    expect(run).type.toBe<Effect.Effect<Event.ChatResult, Chat.ChatError | Fatal, Adapter.Adapter>>()
    ToolRunner.run([], [listen], {
      onToolError: (_call, error) => {
        expect(error).type.toBe<Busy | Tool.ToolError>()
        return Effect.succeed(Tool.ErrorDecision.halt)
      }
    })
    Chat.stream("go", {
      tools: [quiet],
      onToolError: (_call, error) => {
        expect(error).type.toBe<Tool.ToolError>()
        return Effect.succeed(Tool.ErrorDecision.halt)
      }
    })
    Session.reply(Session.make(), "go", {
      tools: [find],
      onToolError: (_call, error) => {
        expect(error).type.toBe<NotFound | Tool.ToolError>()
        return Effect.succeed(Tool.ErrorDecision.halt)
      }
    })
    const any = (_call: Message.ToolCall, _error: unknown) => Effect.succeed(Tool.ErrorDecision.halt)
    Chat.run("go", { tools: [find, listen], onToolError: any })
    const options: ToolRunner.Options = { onToolError: any }
    ToolRunner.run([], [find], options)
  })

  test("M-32: the function of a tool gets what its handler reports and ToolError, and what it fails with is the run's", () => {
    const own = Tool.make("own", {
      parameters: { port: Schema.Finite },
      handler: ({ port }) => Effect.fail(new Busy({ port })),
      onToolError: (call, error) => {
        expect(call).type.toBe<Message.ToolCall>()
        expect(error).type.toBe<Busy | Tool.ToolError>()
        return Effect.succeed(Tool.ErrorDecision.fail(new Fatal()))
      }
    })
    expect<Tool.Failure<typeof own>>().type.toBe<Busy>()
    expect<Tool.Fatal<typeof own>>().type.toBe<Fatal>()
    expect<Tool.Fatal<typeof find>>().type.toBe<never>()
    expect<Tool.Fatal<Tool.Any>>().type.toBe<never>()
    expect(own).type.toBeAssignableTo<Tool.Any>()
    expect(find).type.toBeAssignableTo<Tool.Any>()
    expect(Chat.run("go", { tools: [own, find] })).type.toBe<
      Effect.Effect<Event.ChatResult, Chat.ChatError | Fatal, Adapter.Adapter>
    >()
    expect(ToolRunner.run([], [own])).type.toBe<Effect.Effect<ToolRunner.Result, Step.EngineError | Fatal>>()
    expect(ToolRunner.run([], [find])).type.toBe<Effect.Effect<ToolRunner.Result, Step.EngineError>>()
  })

  test("M-32: the policy of a tool may need services", () => {
    class Log extends Context.Service<Log, { readonly note: (text: string) => Effect.Effect<void> }>()("test/Log") {}
    const own = Tool.make("own", {
      parameters: {},
      handler: () => Effect.fail(new NotFound({ path: "/a" })),
      onToolError: (_call, error) => Effect.as(Log.use((log) => log.note(error.message)), Tool.ErrorDecision.halt)
    })
    expect<Tool.Services<typeof own>>().type.toBe<Log>()
    expect<Tool.Failure<typeof own>>().type.toBe<NotFound>()
  })

  test("M-10: the failure schema holds the handler to its type", () => {
    const own = Tool.make("own", {
      parameters: {},
      failure: Schema.Union([NotFound, Busy]),
      handler: () => Effect.fail(new NotFound({ path: "/a" }))
    })
    expect<Tool.Failure<typeof own>>().type.toBe<NotFound | Busy>()
    Tool.make("own", {
      parameters: {},
      failure: NotFound,
      // @ts-expect-error Type '() => Effect.Effect<never, Busy, never>' is not assignable to type
      handler: () => Effect.fail(new Busy({ port: 1 }))
    })
  })

  test("what looks up a call needs services, which are the tool's, and gives what the tool produces", () => {
    class Bank extends Context.Service<Bank, { readonly find: (key: string) => Effect.Effect<number, "away"> }>()(
      "test/Bank"
    ) {}
    const own = Tool.make("own", {
      parameters: { amount: Schema.Finite },
      success: Schema.Struct({ paid: Schema.Finite }),
      lookUp: (args, call) => {
        expect(args).type.toBe<{ readonly amount: number }>()
        expect(call).type.toBe<Tool.CallContext>()
        return Effect.map(Bank.use((bank) => bank.find(call.idempotencyKey)), (paid) => Option.some({ paid }))
      },
      handler: () =>
        Effect.gen(function*() {
          yield* Weather
          if ((yield* Bank.use((bank) => bank.find("k"))) > 0) return { paid: 1 }
          return yield* new NotFound({ path: "/a" })
        })
    })
    expect<Tool.Services<typeof own>>().type.toBe<Bank | Weather>()
    expect<Tool.Failure<typeof own>>().type.toBe<"away" | NotFound>()
    expect(own).type.toBeAssignableTo<Tool.Any>()
    Tool.make("own", {
      parameters: {},
      success: Schema.Finite,
      // @ts-expect-error Type '() => Effect.Effect<Option.Option<string>, never, never>' is not assignable to type
      lookUp: () => Effect.succeedSome("7"),
      handler: () => Effect.succeed(7)
    })
    const agent = Tool.fromChat("agent", {
      parameters: {},
      chat: () => Stream.unwrap(Bank.use(() => Effect.succeed(Chat.stream("go")))),
      lookUp: () => Effect.as(Bank.use((bank) => bank.find("k")), Option.some("done"))
    })
    expect<Tool.Services<typeof agent>>().type.toBe<Adapter.Adapter | Bank>()
  })
})
