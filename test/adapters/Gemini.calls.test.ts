/**
 * The calls of a reply: those that come whole, those whose arguments are streamed, and those that ran at the provider.
 * The replies come from a server on the loopback interface, over the real HTTP client.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Collector, type Event } from "heddle"
import { body, call, calls, chunk, finish, of, offering, outcomeOf, said } from "../support/gemini.ts"
import * as Server from "../support/server.ts"

const tagsOf = (events: ReadonlyArray<Event.AdapterEvent>) => events.map((event) => event._tag)

const completed = (events: ReadonlyArray<Event.AdapterEvent>) => of(events, "MessageCompleted")[0]!

/** The completed calls without their ids, which are made up here unless the wire had one. */
const named = (events: ReadonlyArray<Event.AdapterEvent>) =>
  calls(events).map((item) => {
    const { id: _, ...rest } = item as { readonly id: string }
    return rest
  })

/** What the events fold into. */
const responseOf = (events: ReadonlyArray<Event.AdapterEvent>) =>
  Collector.toResponse(Collector.applyAll(Collector.initial(), events))

/** A part of a call whose arguments are streamed. */
const piece = (partialArgs: ReadonlyArray<object>, rest: object = {}) =>
  chunk([{ functionCall: { partialArgs, ...rest } }])

const stop = finish("STOP")

describe("the tool calls of a Gemini reply", () => {
  it.effect("R-335, R-349: the reply emits the calls of one chunk or several in order, each as started, delta and completed", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(
        body(chunk([call("a", { x: 1 }), call("a", { x: 2 })]), chunk([call("b")]), said("later"), stop),
        {},
        offering("a", "b")
      )
      assert.deepStrictEqual(named(events), [
        { name: "a", arguments: { x: 1 } },
        { name: "a", arguments: { x: 2 } },
        { name: "b", arguments: {} }
      ])
      const whole = ["ToolCallStarted", "ToolCallDelta", "ToolCallCompleted"]
      assert.deepStrictEqual(tagsOf(events).slice(1, -1), [...whole, ...whole, ...whole, "TextDelta", "TextCompleted"])
      assert.strictEqual(of(events, "ToolCallDelta")[0]!.argumentsDelta, "{\"x\":1}")
      assert.deepStrictEqual(completed(events).message.toolCalls?.map(({ name }) => name), ["a", "a", "b"])
    }))

  it.effect("R-336: a call without an id gets a new id, a call with an id keeps it, and a repeated id is replaced", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(
        body(chunk([call("a"), call("a"), call("a", {}, { id: "w" }), call("b", {}, { id: "w" }), call("")]), stop)
      )
      const ids = of(events, "ToolCallCompleted").map(({ id }) => id)
      assert.strictEqual(new Set(ids).size, 4)
      for (const id of ids.slice(0, 2)) assert.match(id, /^call_[0-9a-f]{32}$/)
      assert.deepStrictEqual(ids.slice(2), ["w", "w_2"])
      const server = "anywhere"
      assert.deepStrictEqual(Server.anywhere(of(events, "ToolCallCompleted").map(({ metadata }) => metadata)), [
        { gemini: { server } },
        { gemini: { server } },
        { gemini: { id: "w", server } },
        { duplicateOf: "w", gemini: { id: "w", server } }
      ])
    }))

  it.effect("R-339: arguments that are not an object are lost, null means no arguments, and a __proto__ key is dropped", () =>
    Effect.gen(function*() {
      const proto = "{\"functionCall\":{\"name\":\"p\",\"args\":{\"__proto__\":{\"x\":1},\"y\":2}}}"
      const text = body(chunk([call("a", [1]), call("b", "text"), call("c", null), call("p")]), stop)
        .replace("{\"functionCall\":{\"name\":\"p\"}}", proto)
      const { events } = yield* outcomeOf(text)
      const { toolCalls = [] } = completed(events).message
      assert.deepStrictEqual(toolCalls.map(({ arguments: args, argumentsLost, name }) => [name, args, argumentsLost]), [
        ["a", {}, "not_an_object"],
        ["b", {}, "not_an_object"],
        ["c", {}, undefined],
        ["p", { y: 2 }, undefined]
      ])
      assert.strictEqual(Object.getPrototypeOf(toolCalls[3]!.arguments), Object.prototype)
    }))

  it.effect("R-337: streamed arguments set values at JSON paths, and text pieces of one path join", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(
        body(
          chunk([call("a", undefined, { willContinue: true, id: "1" })]),
          piece([{ jsonPath: "$.city", stringValue: "Os", willContinue: true }], { willContinue: true }),
          piece([{ jsonPath: "$.city", stringValue: "lo" }, { jsonPath: "$.days[0]", numberValue: 3 }], {
            willContinue: true
          }),
          piece([{ jsonPath: "$.days[1]", nullValue: "NULL_VALUE" }, { jsonPath: "$['a b'].c", boolValue: false }], {
            willContinue: true
          }),
          chunk([{ functionCall: {} }]),
          chunk([call("b", undefined, { willContinue: true })]),
          piece([{ jsonPath: "$.x", numberValue: 0 }]),
          chunk([call("b", undefined, { willContinue: true })]),
          chunk([call("c", undefined, { partialArgs: [{ jsonPath: "$.y", stringValue: "" }] })]),
          stop
        ),
        {},
        offering("a", "b", "c")
      )
      assert.deepStrictEqual(named(events), [
        { name: "a", arguments: { city: "Oslo", days: [3, null], "a b": { c: false } } },
        { name: "b", arguments: { x: 0 } },
        { name: "b", arguments: {} },
        { name: "c", arguments: { y: "" } }
      ])
      assert.deepStrictEqual(tagsOf(events).slice(1, 5), [
        "ToolCallStarted",
        "ToolCallDelta",
        "ToolCallCompleted",
        "ToolCallStarted"
      ])
    }))

  it.effect("R-337: a quoted step of a JSON path is a name with each of its escapes undone", () =>
    Effect.gen(function*() {
      const steps = { "['it\\'s \\'so\\'']": "it's 'so'", "[\"a \\\"b\\\" c\"]": "a \"b\" c", "['\\\\\\\\']": "\\\\" }
      for (const [step, name] of Object.entries(steps)) {
        const { events } = yield* outcomeOf(
          body(
            chunk([call("a", undefined, { willContinue: true, id: "1" })]),
            piece([{ jsonPath: `$${step}`, numberValue: 1 }]),
            stop
          ),
          {},
          offering("a")
        )
        assert.deepStrictEqual(named(events), [{ name: "a", arguments: { [name]: 1 } }], step)
      }
    }))

  it.effect("R-343: a piece with the name and id of an open call continues that call; a piece with another id starts a new call", () =>
    Effect.gen(function*() {
      const repeating = (id: string, jsonPath: string) =>
        piece([{ jsonPath, stringValue: id }], { name: "a", id, willContinue: true })
      const { events } = yield* outcomeOf(
        body(repeating("1", "$.x"), repeating("1", "$.y"), repeating("2", "$.x"), chunk([{ functionCall: {} }]), stop)
      )
      assert.deepStrictEqual(calls(events), [
        { id: "1", name: "a", arguments: { x: "1", y: "1" } },
        { id: "2", name: "a", arguments: { x: "2" } }
      ])
    }))

  it.effect("R-340, R-345: a streamed call that never closes has lost its arguments, and so has a call with an impossible path", () =>
    Effect.gen(function*() {
      const open = chunk([call("a", undefined, { willContinue: true })])
      const filled = piece([{ jsonPath: "$.x", stringValue: "y" }], { willContinue: true })
      const ended = yield* outcomeOf(body(open, filled, stop), {}, offering("a"))
      assert.deepStrictEqual(named(ended.events), [{ name: "a", arguments: {}, argumentsLost: "missing_fragments" }])
      const cut = yield* outcomeOf(body(open, filled, finish("MAX_TOKENS")), {}, offering("a"))
      assert.deepStrictEqual(named(cut.events), [{ name: "a", arguments: {}, argumentsLost: "truncated" }])
      for (const jsonPath of ["$", "x", "$.x[7]", "$.x.y", "$..", "$[0]", 7, `$${".a".repeat(300)}`]) {
        const odd = piece([{ jsonPath: "$.x", stringValue: "y" }, { jsonPath, stringValue: "z" }])
        const { events } = yield* outcomeOf(body(open, odd, stop))
        assert.deepStrictEqual(
          named(events),
          [{ name: "a", arguments: {}, argumentsLost: "missing_fragments" }],
          `${jsonPath}`
        )
      }
    }))

  it.effect("R-339: a JSON path of streamed arguments never reaches a prototype", () =>
    Effect.gen(function*() {
      const paths = [
        "$.__proto__.polluted",
        "$.constructor.prototype.polluted",
        "$['__proto__']",
        "$.a.toString.polluted"
      ]
      const odd = piece(paths.map((jsonPath) => ({ jsonPath, stringValue: "x" })))
      const { events } = yield* outcomeOf(body(chunk([call("a", undefined, { willContinue: true })]), odd, stop))
      assert.deepStrictEqual(named(events), [{
        name: "a",
        arguments: { constructor: { prototype: { polluted: "x" } }, a: { toString: { polluted: "x" } } }
      }])
      assert.notProperty({}, "polluted")
    }))

  it.effect("R-338: a piece of arguments without a call is dropped", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOf(
        body(piece([{ jsonPath: "$.x", numberValue: 1 }]), chunk([{ functionCall: {} }]), stop)
      )
      assert.isUndefined(error)
      assert.deepStrictEqual(tagsOf(events), ["MessageStarted", "MessageCompleted"])
      assert.strictEqual(completed(events).finishReason, "stop")
    }))

  it.effect("R-357: a whole call is kept although the token limit ends the reply", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(chunk([call("a", { x: 1 })]), finish("MAX_TOKENS")))
      assert.deepStrictEqual(named(events), [{ name: "a", arguments: { x: 1 } }])
      assert.strictEqual(completed(events).finishReason, "length")
    }))
})

describe("calls executed by Gemini", () => {
  const executed = (events: ReadonlyArray<Event.AdapterEvent>) =>
    of(events, "ToolCallCompleted").filter((event) => event.providerExecuted === true)
      .map(({ arguments: args, name }) => ({ name, arguments: args }))

  it.effect("R-332: code, hosted tools and their results are listed as executed by the provider and finish the reply as stop", () =>
    Effect.gen(function*() {
      const code = { language: "PYTHON", code: "print(1)", id: "1" }
      const result = { outcome: "OUTCOME_OK", output: "1\n", id: "1" }
      const search = { toolType: "GOOGLE_SEARCH_WEB", args: { queries: ["x"] }, id: "2" }
      const found = { toolType: "GOOGLE_SEARCH_WEB", response: {}, id: "2" }
      const { events } = yield* outcomeOf(body(
        chunk([{ executableCode: code, thoughtSignature: "s" }, { codeExecutionResult: result }]),
        chunk([{ toolCall: search, thoughtSignature: "t" }, { toolResponse: found }]),
        said("done"),
        stop
      ))
      assert.deepStrictEqual(executed(events), [
        { name: "executableCode", arguments: code },
        { name: "codeExecutionResult", arguments: result },
        { name: "toolCall", arguments: search },
        { name: "toolResponse", arguments: found }
      ])
      assert.strictEqual(completed(events).finishReason, "stop")
      assert.strictEqual(responseOf(events).finishReason, "stop")
      assert.strictEqual(new Set(responseOf(events).toolCalls.map(({ id }) => id)).size, 4)
    }))

  it.effect("R-332: a call answered in its own reply ran at the provider; a call without an answer there is the caller's", () =>
    Effect.gen(function*() {
      const answer = { functionResponse: { name: "remote", response: { ok: true } } }
      const { events } = yield* outcomeOf(
        body(
          chunk([call("remote", { x: 1 })], { finishReason: "STOP" }),
          chunk([call("local", { y: 1 })]),
          chunk([answer]),
          chunk([call("remote", { x: 2 })]),
          said("done"),
          stop
        ),
        {},
        offering("local")
      )
      assert.deepStrictEqual(executed(events), [
        { name: "remote", arguments: { x: 1 } },
        { name: "functionResponse", arguments: answer.functionResponse }
      ])
      const own = of(events, "ToolCallCompleted").filter((event) => event.providerExecuted !== true)
      assert.deepStrictEqual(own.map(({ name, arguments: args }) => [name, args]), [
        ["local", { y: 1 }],
        ["remote", { x: 2 }]
      ])
      assert.deepStrictEqual(
        completed(events).message.toolCalls?.map(({ name }) => name),
        ["remote", "local", "functionResponse", "remote"]
      )
      assert.strictEqual(completed(events).finishReason, "tool_calls")
    }))

  it.effect("R-332: a search known only by its grounding metadata is listed as executed by the provider, and the metadata is kept", () =>
    Effect.gen(function*() {
      const groundingMetadata = { webSearchQueries: ["", "weather Oslo"], groundingChunks: [{ web: { uri: "u" } }] }
      const urlContextMetadata = { urlMetadata: [{ retrievedUrl: "https://a.test", urlRetrievalStatus: "OK" }] }
      const found = chunk([{ text: "Sunny" }], { groundingMetadata, urlContextMetadata })
      const { events } = yield* outcomeOf(body(found, stop))
      assert.deepStrictEqual(executed(events), [
        { name: "googleSearch", arguments: { queries: ["weather Oslo"] } },
        { name: "urlContext", arguments: { urls: ["https://a.test"] } }
      ])
      assert.deepStrictEqual(completed(events).metadata?.["gemini"], { groundingMetadata, urlContextMetadata })
      const told = chunk([{ toolCall: { toolType: "GOOGLE_SEARCH_WEB" } }], { groundingMetadata })
      const twice = yield* outcomeOf(body(told, stop))
      assert.deepStrictEqual(executed(twice.events).map(({ name }) => name), ["toolCall"])
    }))
})
