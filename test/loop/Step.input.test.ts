/**
 * What is checked before a model is asked, in which order, and what the request holds: the options that concern the
 * model, and none of how the step is run.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { type Adapter, Message, Step, Thread, Tool } from "heddle"
import { Script } from "heddle/testing"
import { appr, echo, type StepOptions } from "../support/scenarios.ts"

const reply = [Script.text("x"), Script.finish("stop")]

/** What awaited and streamed steps fail with, and that neither touched the adapter. */
const refused = (input: unknown, options: unknown = {}) =>
  Effect.gen(function*() {
    const model = yield* Script.make([reply, reply])
    const awaited = yield* Step.run(input as Thread.Input, options as StepOptions).pipe(
      Effect.provide(model.layer),
      Effect.flip
    )
    const streamed = yield* Step.stream(input as Thread.Input, options as StepOptions).pipe(
      Stream.runDrain,
      Effect.provide(model.layer),
      Effect.flip
    )
    assert.deepStrictEqual(String(streamed), String(awaited))
    assert.strictEqual(yield* model.opens, 0)
    if (!(awaited instanceof Thread.ValidationError)) throw new Error(`expected a ValidationError, got ${awaited}`)
    return awaited
  })

const requestOf = (options: StepOptions, input: Thread.Input = "go") =>
  Effect.gen(function*() {
    const model = yield* Script.make(reply)
    yield* Effect.provide(Step.run(input, options), model.layer)
    const [request] = yield* model.requests
    return request!
  })

describe("Step: input", () => {
  it.effect("P-13, R-120: an input that is not a string, a list of messages or a thread is an invalid thread", () =>
    Effect.gen(function*() {
      for (const input of [42, null, {}, undefined]) {
        assert.strictEqual((yield* refused(input)).reason, "invalid_thread")
      }
    }))

  it.effect("P-13, R-121: the error names every invalid message before the adapter is called", () =>
    Effect.gen(function*() {
      const error = yield* refused([{ role: "tool", content: "42" }, { role: "robot", content: "x" }])
      assert.strictEqual(error.reason, "invalid_thread")
      assert.deepStrictEqual(error.errors.map((issue) => issue.path), ["messages[0].toolCallId", "messages[1].role"])
    }))

  it.effect("P-13, R-122: an input without messages is an invalid request", () =>
    Effect.gen(function*() {
      for (const input of [[], Thread.empty]) {
        const error = yield* refused(input)
        assert.strictEqual(error.reason, "invalid_request")
        assert.deepStrictEqual(error.errors.map((issue) => issue.path), ["messages"])
      }
    }))

  it.effect("R-120: a string, messages and a thread reach the model unchanged", () =>
    Effect.gen(function*() {
      const messages = [Message.user("a"), Message.assistant("b"), Message.user("c")]
      assert.deepStrictEqual((yield* requestOf({}, "go")).messages, [Message.user("go")])
      assert.deepStrictEqual((yield* requestOf({}, messages)).messages, messages)
      assert.deepStrictEqual((yield* requestOf({}, Thread.fromMessages(messages))).messages, messages)
    }))
})

describe("Step: checks before the request", () => {
  it.effect("R-122: a missing adapter is reported before an invalid input", () =>
    Effect.gen(function*() {
      const missing = (effect: Effect.Effect<unknown, unknown, unknown>) =>
        Effect.flip(effect as Effect.Effect<unknown, unknown>)
      const awaited = yield* missing(Step.run(42 as unknown as string))
      const streamed = yield* missing(Stream.runDrain(Step.stream("go")))
      for (const error of [awaited, streamed]) {
        assert.instanceOf(error, Step.EngineError)
        assert.strictEqual((error as Step.EngineError).reason, "missing_adapter")
        assert.include((error as Step.EngineError).message, "Adapter")
      }
    }))

  it.effect("R-122: one error names everything that is wrong with a request", () =>
    Effect.gen(function*() {
      const error = yield* refused([], {
        tools: [echo, appr, echo],
        temperature: 2.5,
        maxTokens: 0,
        responseFormat: { type: "yaml" },
        toolChoice: { name: "ghost" }
      })
      assert.strictEqual(error.reason, "invalid_request")
      assert.deepStrictEqual(error.errors.map((issue) => issue.path), [
        "messages",
        "tools",
        "temperature",
        "maxTokens",
        "responseFormat",
        "toolChoice.name"
      ])
      assert.include(error.message, "two tools are named \"echo\"")
      assert.include(error.message, "there is no tool \"ghost\"")
    }))

  it.effect("R-122: sampling parameters out of their range are refused by name", () =>
    Effect.gen(function*() {
      const wrong: ReadonlyArray<readonly [string, unknown]> = [
        ["temperature", -0.1],
        ["temperature", Number.NaN],
        ["temperature", "1"],
        ["maxTokens", -1],
        ["maxTokens", 1.5],
        ["maxTokens", "10"]
      ]
      for (const [name, value] of wrong) {
        const error = yield* refused("go", { [name]: value })
        assert.deepStrictEqual(error.errors.map((issue) => issue.path), [name], `${name}: ${String(value)}`)
      }
      for (const temperature of [0, 2]) assert.strictEqual((yield* requestOf({ temperature })).temperature, temperature)
    }))

  it.effect("R-122: response formats and tool choices of a wrong shape are refused by path", () =>
    Effect.gen(function*() {
      const wrong: ReadonlyArray<readonly [string, unknown, string]> = [
        ["responseFormat", "json", "responseFormat"],
        ["responseFormat", { type: "json_schema", schema: {} }, "responseFormat.name"],
        ["responseFormat", { type: "json_schema", name: "", schema: {} }, "responseFormat.name"],
        ["responseFormat", { type: "json_schema", name: "a", schema: [] }, "responseFormat.schema"],
        ["toolChoice", "any", "toolChoice"],
        ["toolChoice", { tool: "echo" }, "toolChoice"]
      ]
      for (const [name, value, path] of wrong) {
        assert.deepStrictEqual((yield* refused("go", { [name]: value })).errors.map((issue) => issue.path), [path])
      }
      const responseFormat: Adapter.ResponseFormat = { type: "json_schema", name: "a", schema: { type: "object" } }
      for (const toolChoice of ["auto", "none", "required", { name: "echo" }] as const) {
        const request = yield* requestOf({ tools: [echo], toolChoice, responseFormat })
        assert.deepStrictEqual(request.toolChoice, toolChoice)
        assert.deepStrictEqual(request.responseFormat, responseFormat)
      }
    }))

  const inSchema = (schema: object): Adapter.ResponseFormat => ({
    type: "json_schema",
    name: "a",
    schema: { ...schema }
  })

  it.effect("N-27: an unresolvable reference in the schema of an answer is refused with its path", () =>
    Effect.gen(function*() {
      const nowhere = (schema: object) =>
        Effect.map(refused("go", { responseFormat: inSchema(schema) }), ({ errors }) => errors)
      const document = Schema.toJsonSchemaDocument(
        Schema.Struct({ owner: Schema.Struct({ name: Schema.String }).annotate({ identifier: "Owner" }) })
      )
      assert.deepStrictEqual(yield* nowhere(document.schema), [{
        path: "responseFormat.schema.properties.owner.$ref",
        reason: "must point at a part of the schema; there is no \"#/$defs/Owner\""
      }])
      const wrong: ReadonlyArray<readonly [schema: object, path: string]> = [
        [{ $ref: "#/$defs/A" }, "$ref"],
        [{ $ref: "#/$defs/A", definitions: { A: {} } }, "$ref"],
        [
          { properties: { default: { items: { $ref: "#/$defs/A" } } }, $defs: { B: {} } },
          "properties.default.items.$ref"
        ],
        [{ anyOf: [{ type: "null" }, { $ref: "#/$defs/A" }] }, "anyOf.1.$ref"],
        [
          { $ref: "#/$defs/A", $defs: { A: { properties: { next: { $ref: "#/$defs/a" } } } } },
          "$defs.A.properties.next.$ref"
        ],
        [{ $ref: "#A" }, "$ref"],
        [{ $ref: "A" }, "$ref"],
        [{ $ref: "#/$defs/toString", $defs: {} }, "$ref"],
        [{ $ref: "#/type", type: "object" }, "$ref"],
        [{ $ref: "#/%E0%A4%A/x" }, "$ref"]
      ]
      for (const [schema, path] of wrong) {
        const paths = (yield* nowhere(schema)).map((issue) => issue.path)
        assert.deepStrictEqual(paths, [`responseFormat.schema.${path}`], JSON.stringify(schema))
      }
      const two = yield* nowhere({ allOf: [{ $ref: "#/$defs/A" }, { $ref: "#/$defs/B" }] })
      assert.deepStrictEqual(
        two.map((issue) => issue.path.slice(-11)),
        ["allOf.0.$ref", "allOf.1.$ref"].map((path) => path.slice(-11))
      )
    }))

  it.effect("N-27: a resolvable reference and a look-alike of a reference are sent unchanged", () =>
    Effect.gen(function*() {
      const { definitions, schema } = Schema.toJsonSchemaDocument(
        Schema.Struct({ owner: Schema.Struct({ name: Schema.String }).annotate({ identifier: "Owner" }) })
      )
      const good: ReadonlyArray<object> = [
        { ...schema, $defs: definitions },
        { properties: { next: { $ref: "#" } } },
        { $ref: "#/definitions/A", definitions: { A: { type: "object" } } },
        { $ref: "#/$defs/a~1b~0c", $defs: { "a/b~c": true } },
        { $ref: "#/$defs/a~01b", $defs: { "a~1b": {} } },
        { $ref: "#/$defs/a%20b", $defs: { "a b": {} } },
        { properties: { a: { type: "string" }, b: { $ref: "#/properties/a" } } },
        { anyOf: [{ $ref: "#/anyOf/1" }, { type: "object" }] },
        { $ref: "#here", $defs: { A: { $anchor: "here" } } },
        { $ref: "a.json", $defs: { A: { $id: "a.json", $ref: "#/$defs/B", $defs: { B: {} } } } },
        { $ref: "https://example.com/schema.json" },
        { properties: { $ref: { type: "string" } } },
        { const: { $ref: "#/x" }, default: { $ref: "#/x" }, enum: [{ $ref: "#/x" }], examples: [{ $ref: "#/x" }] }
      ]
      for (const one of good) {
        const responseFormat = inSchema(one)
        assert.deepStrictEqual((yield* requestOf({ responseFormat })).responseFormat, responseFormat)
      }
    }))

  it.effect("R-122: an adapter failure before the first event fails the step, awaited and streamed", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([
        [Script.preflightError("rate_limited")],
        [Script.preflightError("rate_limited")],
        [Script.streamError("network_error")]
      ])
      const failures = [
        yield* Effect.flip(Effect.provide(Step.run("go"), model.layer)),
        yield* Effect.flip(Effect.provide(Stream.runDrain(Step.stream("go")), model.layer))
      ]
      assert.deepStrictEqual(failures.map((error) => (error as Adapter.AdapterError).reason), [
        "rate_limited",
        "rate_limited"
      ])
      assert.strictEqual(yield* model.cleanups, 0)
    }))

  it.effect("an unusable option is a defect before the adapter is called", () =>
    Effect.gen(function*() {
      const wrong: ReadonlyArray<object> = [
        { maxConcurrency: 0 },
        { toolTimeout: "soon" },
        { onToolError: "stop" },
        { onToolError: (error: unknown) => error },
        { tools: [{ ...echo, handler: "not a function" }] }
      ]
      for (const options of wrong) {
        const model = yield* Script.make(reply)
        const exit = yield* Effect.exit(Effect.provide(Step.run("go", options as StepOptions), model.layer))
        assert.isTrue(Exit.hasDies(exit), Object.keys(options)[0])
        assert.strictEqual(yield* model.opens, 0)
      }
    }))
})

describe("Step: the request", () => {
  it.effect("P-22, R-123: a request holds sampling parameters and run ids, and no other option of the run", () =>
    Effect.gen(function*() {
      const options = {
        mode: "auto",
        maxTurns: 3,
        haltWhen: () => true,
        onToolError: "halt",
        toolTimeout: 10,
        maxConcurrency: 2,
        context: { secret: 1 },
        requestId: "r",
        sessionId: "s",
        grace: 10,
        emitTextDeltas: false,
        structuredFinalize: true,
        temperature: 0.5,
        maxTokens: 10,
        model: "m",
        options: { seed: 7 }
      } as const
      const request = yield* requestOf(options)
      assert.deepStrictEqual(request, {
        messages: [Message.user("go")],
        tools: [],
        temperature: 0.5,
        maxTokens: 10,
        model: "m",
        options: { seed: 7 },
        run: { requestId: "r", stepIndex: 0, sessionId: "s" }
      })
    }))

  it.effect("R-123: the request omits parameters that are null or missing", () =>
    Effect.gen(function*() {
      const given = { temperature: null, maxTokens: null, toolChoice: null, responseFormat: null }
      const request = yield* requestOf(given as never)
      assert.deepStrictEqual(Object.keys(request).toSorted(), ["messages", "run", "tools"])
    }))

  it.effect("R-123: the system text leads the request and stays out of the thread", () =>
    Effect.gen(function*() {
      const model = yield* Script.make(reply)
      const step = yield* Effect.provide(Step.run("go", { system: "be brief" }), model.layer)
      const [request] = yield* model.requests
      assert.deepStrictEqual(request?.messages, [Message.system("be brief"), Message.user("go")])
      assert.deepStrictEqual(step.thread.messages.map((message) => message.role), ["user", "assistant"])
    }))

  it.effect("R-124: the request lists the tools in the given order", () =>
    Effect.gen(function*() {
      const typed = Tool.make("typed", { description: "d", parameters: { x: Schema.Finite } })
      const request = yield* requestOf({ tools: [typed, echo] })
      assert.deepStrictEqual(request.tools, [Tool.definition(typed), Tool.definition(echo)])
    }))
})
