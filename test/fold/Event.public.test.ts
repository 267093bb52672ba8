/**
 * The public form of events: canaries in everything that a program may hold, of which none leaves a server but by the allow
 * list, and plain JSON whatever an event or the progress of a call is.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Event, Message, Response, type Thread, Tool } from "heddle"
import { Script } from "heddle/testing"
import { isDeepStrictEqual } from "node:util"
import { upToCallStarted } from "../support/publicRuns.ts"

const { finish, reasoning, text, toolCall } = Script

type Events = ReadonlyArray<Event.Event>
type Published = ReadonlyArray<Event.PublicEvent>

/** A text that stands nowhere else. */
const canary = (place: string): string => `canary-${place}-q7x`

const throughJson = (value: unknown): unknown => JSON.parse(JSON.stringify(value))

/** The places whose canaries are in the published events. */
const placesOf = (text: string): ReadonlyArray<string> =>
  Array.from(new Set(Array.from(text.matchAll(/canary-([\w ]+)-q7x/g), ([, place]) => place!))).toSorted()

const placesIn = (published: unknown): ReadonlyArray<string> => placesOf(JSON.stringify(published))

class Reported extends Data.TaggedError("Reported")<{ readonly note: string; readonly cause: unknown }> {}

const refused = new Adapter.AdapterError({
  reason: "rate_limited",
  provider: canary("provider"),
  detail: canary("detail"),
  requestId: canary("requestId"),
  metadata: { account: canary("metadata") },
  cause: new Error(canary("cause"))
})

const parameters = { of: Schema.String }

/** The tools of one run, each with canaries of its own. */
const toolsOf = (level: string): ReadonlyArray<Tool.Any> => {
  const at = (place: string) => canary(`${level} ${place}`)
  return [
    Tool.make("works", {
      parameters,
      handler: (_, call) =>
        Effect.gen(function*() {
          yield* call.progress({ seen: at("progress") })
          yield* call.updateContext({ user: at("update") })
          return { found: at("result"), url: `https://x.test/?token=${at("url")}` }
        })
    }),
    Tool.make("reports", {
      parameters,
      handler: () => Effect.fail(new Reported({ note: at("reported"), cause: at("inner cause") }))
    }),
    Tool.make("dies", { parameters, handler: () => Effect.die(new Error(at("defect"))) }),
    Tool.make("denies", { parameters, authorize: () => Effect.fail(at("gate")), handler: () => Effect.succeed(1) }),
    Tool.make("breaks", { parameters, handler: () => Effect.fail(refused) }),
    Tool.make("asks", {
      parameters,
      handler: () =>
        Effect.succeed(Tool.askUser(at("question"), { opts: [at("opts")], defaultAnswer: at("default answer") }))
    }),
    Tool.make("pays", { parameters, approval: true, handler: () => Effect.succeed(1) }),
    Tool.make("signs", { parameters, manual: true })
  ]
}

const callsOf = (level: string) =>
  toolsOf(level).map(({ name }) => toolCall(`${level}-${name}`, name, { of: canary(`${level} arguments`) }))

const spoken = (level: string) => [
  reasoning(canary(`${level} reasoning`)),
  text(canary(`${level} text`)),
  { _tag: "RawChunk", chunk: { usage: { inputTokens: 3 }, raw: canary("raw chunk") } } as const
]

/** Lets every event be read before the next one: of progress that is not read, the latest replaces the others. */
const paced = <E, R>(events: Stream.Stream<Event.Event, E, R>) =>
  events.pipe(Stream.rechunk(1), Stream.tap(() => Effect.repeat(Effect.yieldNow, { times: 8 })))

/** The events of a run whose tool is a run whose tool is a run, each with calls of every kind. */
const nested: Events = await Effect.runPromise(
  Chat.stream(
    [Message.system(canary("system prompt")), Message.user(canary("prompt"))] as unknown as Thread.Input,
    {
      tools: [
        ...toolsOf("outer"),
        Tool.fromChat("agent", {
          parameters,
          chat: () =>
            paced(Chat.stream(canary("middle prompt"), {
              includeRawChunks: true,
              tools: [
                ...toolsOf("middle"),
                Tool.fromChat("helper", {
                  parameters,
                  chat: () =>
                    paced(Chat.stream(canary("inner prompt"), {
                      includeRawChunks: true,
                      tools: toolsOf("inner") as unknown as []
                    }))
                })
              ] as unknown as []
            }))
        })
      ] as unknown as [],
      context: { secret: canary("context") },
      includeRawChunks: true
    }
  ).pipe(
    Stream.runCollect,
    Effect.provide(Script.layer([
      [
        ...spoken("outer"),
        ...callsOf("outer"),
        toolCall("outer-agent", "agent", { of: canary("outer arguments") }),
        finish("tool_calls")
      ],
      [
        ...spoken("middle"),
        ...callsOf("middle"),
        toolCall("middle-helper", "helper", { of: canary("middle arguments") }),
        finish("tool_calls")
      ],
      [...spoken("inner"), ...callsOf("inner"), finish("tool_calls")]
    ]))
  )
)

/** The events of a run that breaks. */
const broken: Events = await Effect.runPromise(
  Chat.stream(canary("prompt"), {}).pipe(
    Stream.runCollect,
    Effect.provide(Script.layer([[text("Hel"), { _tag: "Error", error: refused }]]))
  )
)

const all: Events = [...nested, ...broken, { _tag: "StepReset", error: refused }]

const wired: ReadonlyArray<Event.WireEvent> = all.map((event) => Event.fromWire(throughJson(Event.toWire(event))))

const publicOf = (events: ReadonlyArray<Event.Event | Event.WireEvent>, options: Event.PublicOptions): Published =>
  events.flatMap((event) => Event.toPublic(event, options) ?? [])

/** All events in a published event, from the outermost to the innermost. */
const within = (event: Event.PublicEvent): Published =>
  event._tag === "ToolProgress" && event.nested !== undefined ? [event, ...within(event.nested)] : [event]

const runs = [["as emitted", all], ["in wire form", wired]] as const

describe("Event.toPublic", () => {
  it("W-12: the events of the test contain the canaries", () => {
    const inside = placesIn(all.map(Event.toWire))
    for (const place of ["raw chunk", "detail", "metadata"]) assert.include(inside, place)
    for (const level of ["outer", "middle", "inner"]) {
      for (
        const place of ["arguments", "result", "progress", "update", "reported", "question", "default answer", "url"]
      ) {
        assert.include(inside, `${level} ${place}`)
      }
    }
    assert.isTrue(publicOf(nested, {}).some((event) => within(event).length === 3))
  })

  for (const [form, events] of runs) {
    for (const calls of [undefined, new Map<string, Event.PublicCall>()]) {
      const how = `${form}, ${calls === undefined ? "without" : "with"} calls`
      const given = calls === undefined ? {} : { calls }

      it(`W-12: under "names" only the outer text and the questions to the user are published, ${how}`, () => {
        const published = publicOf(events, { publish: "names", ...given })
        assert.deepStrictEqual(placesIn(published), [
          "inner opts",
          "inner question",
          "middle opts",
          "middle question",
          "outer opts",
          "outer question",
          "outer text"
        ])
        assert.isTrue(
          published.flatMap(within).some((event) => event._tag === "ToolResultEncoded" && event.id === "inner-works")
        )
      })

      it(`W-12: under "all" arguments, progress and the answers as the model reads them are published, ${how}`, () => {
        const places = placesIn(publicOf(events, { publish: "all", ...given }))
        const levels = ["inner", "middle", "outer"]
        const wanted = ["arguments", "gate", "opts", "progress", "question", "reported", "result", "text", "url"]
        assert.deepStrictEqual(
          places.filter((place) => levels.some((level) => place.startsWith(level))),
          levels.flatMap((level) => wanted.map((place) => `${level} ${place}`))
        )
        // The model reads the fields of an error that a handler reports: they are in its answer, and nowhere else.
        const unanswered = publicOf(events, { publish: "all", ...given }).flatMap(within).filter((event) =>
          event._tag !== "ToolResultEncoded" && event._tag !== "ToolProgress"
        )
        assert.deepStrictEqual(
          placesIn(unanswered).filter((place) => !levels.some((level) => place.startsWith(level))),
          []
        )
        assert.deepStrictEqual(places.filter((place) => !levels.some((level) => place.startsWith(level))), [
          "detail",
          "metadata",
          "provider",
          "requestId"
        ])
      })

      it(`W-12: under "none" no part of a call is published, not even its name, ${how}`, () => {
        const published = publicOf(events, { publish: "none", ...given })
        assert.deepStrictEqual(placesIn(published), ["outer text"])
        const written = JSON.stringify(published)
        for (
          const word of [
            "outer-",
            "middle-",
            "inner-",
            "agent",
            "helper",
            ...toolsOf("outer").map(({ name }) => name)
          ]
        ) {
          assert.notInclude(written, word)
        }
      })

      it(`W-12: a published event survives JSON unchanged, ${how}`, () => {
        for (const publish of ["all", "names", "none"] as const) {
          for (const event of publicOf(events, { publish, publishReasoning: true, at: 5, runId: "r", ...given })) {
            assert.deepStrictEqual(throughJson(event), event)
            assert.strictEqual(event.at, 5)
          }
        }
      })
    }

    it(`W-12: reasoning is published on demand, and a nested run's reasoning only with its whole call, ${form}`, () => {
      const reasoningIn = (options: Event.PublicOptions) =>
        placesIn(publicOf(events, options)).filter((place) => place.endsWith("reasoning"))
      assert.deepStrictEqual(reasoningIn({}), [])
      assert.deepStrictEqual(reasoningIn({ publishReasoning: true, publish: "names" }), ["outer reasoning"])
      assert.deepStrictEqual(reasoningIn({ publishReasoning: true }), [
        "inner reasoning",
        "middle reasoning",
        "outer reasoning"
      ])
    })
  }

  it("W-12: under a function a call is published as its tool says, and never more than the calls around it", () => {
    const publicBy = (extents: { readonly [tool: string]: Event.Publish }, fallback: Event.Publish = "none") =>
      publicOf(nested, { publish: (tool) => extents[tool] ?? fallback, calls: new Map() })
    const levelsIn = (published: Published) =>
      Array.from(
        new Set(placesIn(published).flatMap((place) => place.endsWith("arguments") ? [place.split(" ")[0]!] : []))
      )
    assert.deepStrictEqual(levelsIn(publicBy({}, "all")), ["inner", "middle", "outer"])
    assert.deepStrictEqual(levelsIn(publicBy({ helper: "names" }, "all")), ["middle", "outer"])
    assert.deepStrictEqual(levelsIn(publicBy({ agent: "names" }, "all")), ["outer"])
    const without = publicBy({ helper: "none" }, "all")
    assert.notInclude(JSON.stringify(without), "inner")
    assert.include(JSON.stringify(without), "middle-asks")
    assert.notInclude(JSON.stringify(publicBy({ agent: "none" }, "all")), "middle")
    const only = publicBy({ works: "all", agent: "all" })
    assert.deepStrictEqual(placesIn(only).filter((place) => place.startsWith("middle")), [
      "middle arguments",
      "middle progress",
      // The answer of the agent, which is published, is that its run waits for this.
      "middle question",
      "middle result",
      "middle text",
      "middle url"
    ])
    assert.notInclude(JSON.stringify(only), "dies")
  })

  it("W-12: under a function and without calls, an event that does not name its tool is not published", () => {
    const encoded: Event.Event = { _tag: "ToolResultEncoded", id: "c", content: canary("answer") }
    const publish = (): Event.Publish => "all"
    assert.isUndefined(Event.toPublic(encoded, { publish }))
    const calls = new Map([["c", { name: "works", calls: new Map() }]])
    assert.deepStrictEqual(Event.toPublic(encoded, { publish, calls }), encoded)
  })

  it("W-12: an unknown extent is a defect, and publishes nothing when a function returns such an extent", () => {
    const event: Event.Event = { _tag: "ToolExecutionStarted", id: "c", name: "works", arguments: {} }
    assert.throws(
      () => Event.toPublic(event, { publish: "some" as Event.Publish }),
      `Event.toPublic: publish must be "all", "names" or "none", or a function; got: "some"`
    )
    assert.isUndefined(Event.toPublic(event, { publish: () => undefined as unknown as Event.Publish }))
  })

  it("W-12: a waiting call is not published when any call on its path is unpublished", () => {
    const suspension: Event.Suspension = {
      id: "a/b/q",
      path: ["a", "b", "q"],
      kind: "question",
      toolCall: Message.toolCall("q", "asks", {}),
      question: "Which?"
    }
    const event: Event.Event = { _tag: "ToolSuspended", toolCallId: "a", toolName: "agent", suspensions: [suspension] }
    const inner = new Map([["b", { name: "helper", calls: new Map() }]])
    const calls = new Map([["a", { name: "agent", calls: inner }]])
    const publicBy = (hidden: string, known = calls) =>
      Event.toPublic(event, { publish: (tool) => tool === hidden ? "none" : "all", calls: known })
    assert.isDefined(publicBy("other"))
    for (const hidden of ["agent", "helper", "asks"]) assert.isUndefined(publicBy(hidden), hidden)
    assert.isUndefined(publicBy("other", new Map([["a", { name: "agent", calls: new Map() }]])))
  })

  it("W-12: a suspension's id names the run and the calls that lead to the suspension, at any depth", () => {
    const names = publicOf(nested, { runId: "run" }).flatMap(within).flatMap((event) =>
      event._tag === "AskUserRequested" ? event.suspensions.map(({ id }) => id) : []
    )
    assert.sameMembers(names, [
      "run~outer-asks",
      "run~outer-agent/middle-asks",
      "run~outer-agent/middle-helper/inner-asks"
    ])
  })

  it("W-12: the question about a call with an unknown effect quotes its arguments, and is published only with the arguments", () => {
    const suspension: Event.Suspension = {
      id: "c",
      kind: "unknown",
      toolCall: Message.toolCall("c", "pays", { card: canary("arguments") }),
      question: `The run was interrupted during the call pays({"card":"${canary("arguments")}"}).`,
      opts: ["It had its effect", "It had no effect"]
    }
    const event: Event.Event = { _tag: "ToolSuspended", toolCallId: "c", toolName: "pays", suspensions: [suspension] }
    assert.deepStrictEqual(Event.toPublic(event, { publish: "names" }), {
      _tag: "ToolSuspended",
      toolCallId: "c",
      toolName: "pays",
      suspensions: [{
        id: "c",
        kind: "unknown",
        opts: ["It had its effect", "It had no effect"],
        toolCall: { id: "c", name: "pays" }
      }]
    })
    assert.deepStrictEqual(placesIn(Event.toPublic(event, {})), ["arguments"])
  })

  it("W-12: the reason for lost arguments is published, and their text only with the whole call", () => {
    const event: Event.Event = {
      _tag: "ToolCallCompleted",
      id: "c",
      name: "works",
      arguments: {},
      rawArguments: `{"of":"${canary("raw arguments")}`,
      argumentsLost: "truncated",
      metadata: { signature: canary("signature") }
    }
    assert.deepStrictEqual(Event.toPublic(event, { publish: "names" }), {
      _tag: "ToolCallCompleted",
      id: "c",
      name: "works",
      argumentsLost: { reason: "truncated" }
    })
    assert.deepStrictEqual(Event.toPublic(event), {
      _tag: "ToolCallCompleted",
      id: "c",
      name: "works",
      arguments: {},
      argumentsLost: { reason: "truncated", text: event.rawArguments }
    })
  })

  it("W-12: facts about calls are published with the calls' names", () => {
    const facts: Events = [
      { _tag: "ToolQueued", id: "c", name: "works", reason: "key" },
      { _tag: "ToolExecutionStarted", id: "c", name: "works", arguments: {}, attempt: 2, replayed: true },
      { _tag: "ToolResultEncoded", id: "c", content: "no", isError: true, code: "denied", settled: true }
    ]
    assert.deepStrictEqual(publicOf(facts, { publish: "names" }), [
      { _tag: "ToolQueued", id: "c", name: "works", reason: "key" },
      { _tag: "ToolExecutionStarted", id: "c", name: "works", attempt: 2, replayed: true },
      { _tag: "ToolResultEncoded", id: "c", isError: true, code: "denied", settled: true }
    ])
  })

  it("W-12: a published error has a code, one sentence and the id for searching the log", () => {
    assert.deepStrictEqual(Event.toPublic({ _tag: "Error", error: refused }, { runId: "run" }), {
      _tag: "Error",
      error: {
        code: "rate_limited",
        message: "The model has too many requests at the moment. Try again later.",
        id: "run"
      }
    })
    for (
      const error of [new Error(canary("defect")), { _tag: "AdapterError", reason: canary("reason") }, null, "toString"]
    ) {
      const published = Event.toPublic({ _tag: "Error", error })
      assert.deepStrictEqual(placesIn(published), [])
      assert.strictEqual(published?._tag === "Error" && published.error.code, "internal")
    }
  })
})

const circular: Record<string, unknown> = { _tag: "ToolProgress", id: "c", name: "works" }
circular["progress"] = circular

const list: Array<unknown> = []
list.push(list)

const throwing = (fields: object, ...names: ReadonlyArray<string>) =>
  names.reduce(
    (object, name) =>
      Object.defineProperty(object, name, {
        enumerable: true,
        get: () => {
          throw new Error("unreadable")
        }
      }),
    { ...fields }
  )

const revoked = () => {
  const { proxy, revoke } = Proxy.revocable({}, {})
  revoke()
  return proxy
}

/** Lists of lists that share all of their items: written out they have no end. */
const shared = Array.from({ length: 60 }).reduce<unknown>((inner) => [inner, inner], "leaf")

const response: Response.Response = {
  id: null,
  requestId: "r",
  model: null,
  outputText: "",
  reasoning: "",
  toolCalls: [],
  message: Message.assistant(""),
  finishReason: "stop",
  rawFinishReason: canary("raw reason"),
  usage: Response.usage({ inputTokens: 1 }),
  metadata: {}
}

/** Progress that is no event of a run, or looks like one. */
const malformed: ReadonlyArray<readonly [what: string, progress: unknown]> = [
  ["no value", undefined],
  ["a BigInt", 12n],
  ["a symbol", Symbol("s")],
  ["a function", () => 1],
  ["numbers without a JSON form", [Number.NaN, Infinity, -0]],
  ["a list", [{ _tag: "TextDelta", id: null, delta: "x" }]],
  ["a cycle", circular],
  ["a list in itself", list],
  ["lists that share their items", shared],
  ["an event with a list of shared items", { _tag: "ToolCallCompleted", id: "c", name: "n", arguments: { shared } }],
  ["a revoked proxy", revoked()],
  ["an event with revoked fields", { _tag: "ToolSuspended", toolCallId: "c", toolName: "n", suspensions: revoked() }],
  ["a tag that throws", throwing({}, "_tag")],
  ["fields that throw", throwing({ _tag: "ToolResultEncoded" }, "id", "content", "isError", "replayed")],
  ["an error that throws", { _tag: "Error", error: throwing({}, "_tag", "reason") }],
  ["an outcome that throws", { _tag: "ChatCompleted", result: { outcome: throwing({}, "_tag") } }],
  ["a result that throws", { _tag: "ChatCompleted", result: throwing({}, "outcome", "usage", "suspensions") }],
  ["suspensions that throw", {
    _tag: "ToolSuspended",
    toolCallId: "c",
    toolName: "n",
    suspensions: [throwing({ kind: "question" }, "id", "toolCall", "path")]
  }],
  [
    "members of the prototype",
    JSON.parse("{\"_tag\":\"ToolCallCompleted\",\"id\":\"c\",\"name\":\"n\",\"arguments\":{\"__proto__\":{\"a\":1}}}")
  ],
  ["plain members of the prototype", JSON.parse("{\"__proto__\":{\"a\":1},\"constructor\":{\"prototype\":{\"a\":1}}}")],
  ["a tag of the prototype", { _tag: "constructor" }],
  ["text fields of another type", { _tag: "TextDelta", id: 1n, delta: 2n }],
  ["a name of another type", { _tag: "ToolExecutionStarted", id: "c", name: { text: canary("name") } }],
  ["an id of another type", { _tag: "ToolQueued", id: [canary("id")], name: "n", reason: canary("reason") }],
  ["an unknown reason", { _tag: "ToolQueued", id: "c", name: "n", reason: canary("reason") }],
  ["an attempt of NaN", { _tag: "ToolExecutionStarted", id: "c", name: "n", attempt: Number.NaN }],
  ["a negative zero", { _tag: "ToolExecutionStarted", id: "c", name: "n", attempt: -0 }],
  ["an unknown code", { _tag: "ToolResultEncoded", id: "c", code: canary("code"), isError: canary("flag") }],
  ["an unknown outcome", { _tag: "ChatCompleted", result: { outcome: { _tag: canary("outcome") } } }],
  ["an outcome with texts", {
    _tag: "ChatCompleted",
    result: { outcome: { _tag: "Halted", reason: canary("reason"), haltToolCallId: "c", haltResult: canary("result") } }
  }],
  ["a cancellation with a text", {
    _tag: "ChatCompleted",
    result: { outcome: { _tag: "Cancelled", reason: canary("reason") } }
  }],
  ["an unknown finish reason", { _tag: "MessageCompleted", message: {}, finishReason: canary("finish") }],
  ["a malformed usage", {
    _tag: "StepCompleted",
    response: { ...response, usage: { inputTokens: Infinity, outputTokens: canary("usage"), secret: canary("usage") } }
  }],
  ["an infinite time", {
    _tag: "ToolApprovalRequested",
    toolCallId: "c",
    toolName: "n",
    arguments: {},
    expiresAt: Infinity
  }],
  ["an unknown kind", {
    _tag: "ToolSuspended",
    toolCallId: "c",
    toolName: "n",
    suspensions: [{ id: "c", kind: canary("kind"), toolCall: { id: "c", name: "n" } }]
  }],
  ["a long text", "x".repeat(100_000)],
  ["a deep value", Array.from({ length: 5_000 }).reduce<unknown>((inner) => ({ inner }), 1)],
  ["an Error", Object.assign(new Error("no"), { request: { headers: { authorization: canary("header") } } })]
]

describe("Event.toPublic: malformed progress", () => {
  for (const [what, progress] of malformed) {
    for (const depth of [0, 1]) {
      const inner: Event.Event = { _tag: "ToolProgress", id: "i", name: "inner", progress }
      const event: Event.Event = depth === 0 ? inner : { _tag: "ToolProgress", id: "o", name: "outer", progress: inner }
      it(`W-12: progress with ${what}, ${depth === 0 ? "of a call" : "of a call inside another"}, becomes plain JSON without misplaced texts`, () => {
        for (const publish of ["all", "names", "none"] as const) {
          const published = Event.toPublic(event, { publish, ...(depth === 0 ? {} : { calls: new Map() }) })
          if (published === undefined) continue
          // A list that shares its items is written once, and compared by Node, since it has very many.
          const text = JSON.stringify(published)
          assert.isTrue(isDeepStrictEqual(JSON.parse(text), published))
          assert.deepStrictEqual(placesOf(text), [])
          assert.notInclude(text, "__proto__")
        }
        assert.isUndefined(Event.toPublic(event, { publish: "none" }))
        assert.isUndefined((Object.prototype as { readonly a?: unknown }).a)
      })
    }
  }

  it("W-12: a progress event inside itself is not published", () => {
    assert.isUndefined(Event.toPublic(circular as unknown as Event.Event))
  })
})

describe("Event.toPublic: a resumed run", () => {
  it.effect("W-12: a question about an unknown effect has its arguments only with the whole call", () =>
    Effect.gen(function*() {
      const events = yield* upToCallStarted(canary("arguments"))
      assert.isTrue(events.some(({ _tag }) => _tag === "ToolSuspended"))
      assert.deepStrictEqual(placesIn(publicOf(events, { publish: "names" })), [])
      assert.deepStrictEqual(placesIn(publicOf(events, {})), ["arguments"])
    }))
})
