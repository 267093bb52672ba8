/**
 * Declaring tools: every option that cannot be used is refused when the tool is made, and names itself.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import { Tool } from "heddle"
import { afterCrashOf } from "../../src/internal/decide/plan.ts"

/** What making a tool is refused with. */
const refusal = (name: unknown, options: unknown): string => {
  try {
    Tool.make(name as string, options as { readonly parameters: {} })
  } catch (error) {
    assert.instanceOf(error, TypeError)
    return (error as TypeError).message
  }
  throw new Error(`the tool must be refused: ${String(name)}`)
}

const made = (options: object) => Tool.make("tool", { parameters: {}, ...options })

describe("Tool.make", () => {
  it("a tool without options has no hints, and the policy decides whether it is shared and interruptible", () => {
    const tool = Tool.make("tool", { parameters: {} })
    assert.deepInclude(tool, {
      name: "tool",
      description: "",
      manual: false,
      compact: false,
      metadata: {}
    })
    for (
      const key of [
        "readOnly",
        "destructive",
        "idempotent",
        "openWorld",
        "concurrency",
        "interrupt",
        "validate",
        "authorize",
        "limits",
        "handler",
        "timeout",
        "encodeSuccess",
        "retry",
        "summary",
        "maxResultChars"
      ]
    ) {
      assert.notProperty(tool, key)
    }
  })

  it("a tool name has 1 to 64 letters, digits, underscores and dashes", () => {
    for (const name of ["", "a b", "a.b", "ä", "a".repeat(65), "a\n"]) {
      assert.include(refusal(name, { parameters: {} }), "the name must have 1 to 64", JSON.stringify(name))
    }
    for (const name of ["a", "A-b_9", "a".repeat(64)]) {
      assert.strictEqual(Tool.make(name, { parameters: {} }).name, name)
    }
  })

  it("the names of tool choices are reserved", () => {
    for (const name of ["auto", "none", "required"]) {
      assert.include(refusal(name, { parameters: {} }), "the name must not be auto, none or required")
    }
  })

  it("a flag is true or false, and not null", () => {
    for (const flag of ["readOnly", "destructive", "idempotent", "openWorld", "manual", "compact"]) {
      for (const value of [null, undefined, 1, "true"]) {
        assert.include(refusal("tool", { parameters: {}, [flag]: value }), `${flag} must be true or false`)
      }
      assert.isTrue(made({ [flag]: true })[flag as "manual"])
    }
    for (const flag of ["idempotent", "openWorld", "manual", "compact"]) {
      assert.include(refusal("tool", { parameters: {}, [flag]: () => true }), `${flag} must be true or false`)
    }
  })

  it("parameters are required, and have one of three forms", () => {
    for (const parameters of [undefined, null, 42, "string", []]) {
      assert.include(
        refusal("tool", { parameters }),
        "parameters must be struct fields, a Schema or a JSON Schema object"
      )
    }
  })

  it("concurrency is \"shared\", \"exclusive\" or a function, and interrupt is \"cancel\" or \"block\"", () => {
    assert.include(refusal("tool", { parameters: {}, concurrency: "serial" }), "concurrency must be")
    assert.include(refusal("tool", { parameters: {}, concurrency: null }), "concurrency must be")
    assert.include(refusal("tool", { parameters: {}, interrupt: "never" }), "interrupt must be")
    assert.strictEqual(made({ concurrency: "exclusive" }).concurrency, "exclusive")
    assert.isFunction(made({ concurrency: () => "shared" }).concurrency)
    assert.strictEqual(made({ interrupt: "block" }).interrupt, "block")
  })

  it("R-055: a timeout is a duration above zero", () => {
    for (const timeout of ["soon", Number.NaN, {}, 0, -1, "0 seconds"]) {
      assert.include(
        refusal("tool", { parameters: {}, timeout }),
        "timeout must be a duration above zero",
        String(timeout)
      )
    }
    assert.strictEqual(Duration.toMillis(made({ timeout: "5 seconds" }).timeout as Duration.Duration), 5000)
    assert.strictEqual(Duration.toMillis(made({ timeout: 250 }).timeout as Duration.Duration), 250)
    assert.isFalse(Duration.isFinite(made({ timeout: Duration.infinity }).timeout as Duration.Duration))
  })

  it("afterCrash takes four words, and excludes lookUp and manual", () => {
    for (const afterCrash of ["retry", "report", "ask", "fail"]) {
      assert.strictEqual(made({ afterCrash }).afterCrash, afterCrash)
    }
    assert.isUndefined(made({}).afterCrash)
    for (const afterCrash of ["again", "", null, true]) {
      assert.include(
        refusal("tool", { parameters: {}, afterCrash }),
        "afterCrash must be \"retry\", \"report\", \"ask\" or \"fail\""
      )
    }
    const lookUp = () => Effect.succeedNone
    assert.strictEqual(made({ lookUp }).lookUp, lookUp)
    assert.include(refusal("tool", { parameters: {}, lookUp: true }), "lookUp must be a function (args, call)")
    assert.include(refusal("tool", { parameters: {}, lookUp, afterCrash: "retry" }), "leave one out")
    assert.include(refusal("tool", { parameters: {}, lookUp, manual: true }), "lookUp needs a handler")
    assert.include(refusal("tool", { parameters: {}, afterCrash: "ask", manual: true }), "afterCrash needs a handler")
  })

  it("by default a call with an unknown effect is retried if read-only or idempotent, and otherwise reported", () => {
    const of = (options: object) => Effect.runSync(afterCrashOf(made(options), {}))
    assert.deepStrictEqual(
      [{}, { destructive: true }, { readOnly: true }, { idempotent: true }].map(of),
      ["report", "report", "retry", "retry"]
    )
    assert.deepStrictEqual([{ readOnly: true, afterCrash: "ask" }, { afterCrash: "retry" }].map(of), ["ask", "retry"])
  })

  it("J-23: maxResultChars is a whole number, where zero means no limit", () => {
    for (const maxResultChars of [-1, 1.5, Number.NaN, "10"]) {
      assert.include(refusal("tool", { parameters: {}, maxResultChars }), "maxResultChars must be a whole number")
    }
    assert.strictEqual(made({ maxResultChars: 0 }).maxResultChars, 0)
  })
})

describe("Tool.definition", () => {
  it("struct fields and a Schema give the same JSON Schema, and a raw JSON Schema is sent unchanged", () => {
    const fields = { city: Schema.String, days: Schema.optionalKey(Schema.Int) }
    const raw = { type: "object", properties: { city: { type: "string" } }, "x-mine": true } as const
    const schemaOf = (parameters: any) => Tool.definition(Tool.make("t", { parameters })).parameters
    assert.deepStrictEqual(schemaOf(fields), schemaOf(Schema.Struct(fields)))
    assert.deepInclude(schemaOf(fields), { type: "object", required: ["city"] })
    assert.strictEqual(schemaOf(raw), raw)
  })

  it("a recursive schema carries its definitions", () => {
    interface Tree {
      readonly children: ReadonlyArray<Tree>
    }
    const Tree = Schema.Struct({
      children: Schema.Array(Schema.suspend((): Schema.Codec<Tree> => Tree))
    }).annotate({ identifier: "Tree" })
    const { parameters } = Tool.definition(Tool.make("t", { parameters: { tree: Tree } }))
    assert.deepStrictEqual(Object.keys(parameters["$defs"] as object), ["Tree"])
  })

  it("a schema with an identifier is described at the root, without a reference", () => {
    const Named = Schema.Struct({ city: Schema.String }).annotate({ identifier: "City", description: "where" })
    const { parameters } = Tool.definition(Tool.make("t", { parameters: Named }))
    assert.deepInclude(parameters, { type: "object", required: ["city"] })
    assert.notProperty(parameters, "$ref")
  })

  it("a definition has name and description, and empty parameters are an object", () => {
    const definition = Tool.definition(Tool.make("t", { description: "what", parameters: {} }))
    assert.deepInclude(definition, { name: "t", description: "what" })
    assert.strictEqual(definition.parameters["type"], "object")
  })
})

describe("Tool parameters", () => {
  const decode = (parameters: any, input: unknown) =>
    Effect.runSyncExit(Tool.make("t", { parameters }).parameters.decode(input) as Effect.Effect<unknown>)

  it("valid arguments are decoded from JSON", () => {
    const exit = decode({ at: Schema.Date, n: Schema.Finite }, { at: "1970-01-01T00:00:00.000Z", n: 1 })
    assert.deepStrictEqual(exit, Exit.succeed({ at: new Date(0), n: 1 }))
  })

  it("invalid arguments are refused with the name of every wrong member", () => {
    const exit = decode({ a: Schema.String, b: Schema.Finite }, { a: 1, b: "x" })
    assert.isTrue(Exit.isFailure(exit))
    const text = String((exit as Exit.Failure<never, never>).cause)
    assert.include(text, "a")
    assert.include(text, "b")
  })

  it("M-13: a number is described to the model as a number, at every depth", () => {
    interface Tree {
      readonly weight: number
      readonly children: ReadonlyArray<Tree>
    }
    const Tree = Schema.Struct({
      weight: Schema.Number,
      children: Schema.Array(Schema.suspend((): Schema.Codec<Tree> => Tree))
    }).annotate({ identifier: "Tree" })
    class Point extends Schema.Class<Point>("Point")({ x: Schema.Number }) {}
    const parameters = {
      plain: Schema.Number,
      key: Schema.optionalKey(Schema.Number),
      optional: Schema.optional(Schema.Number),
      nullable: Schema.NullOr(Schema.Number),
      list: Schema.Array(Schema.Number),
      pair: Schema.Tuple([Schema.Number, Schema.String]),
      record: Schema.Record(Schema.String, Schema.Number),
      either: Schema.Union([Schema.Number, Schema.String]),
      bounded: Schema.Number.check(Schema.isGreaterThan(3)).annotate({ description: "how many" }),
      named: Schema.Number.annotate({ identifier: "Count" }),
      maybe: Schema.Option(Schema.Number),
      set: Schema.ReadonlySet(Schema.Number),
      defaulted: Schema.Number.pipe(Schema.withDecodingDefaultKey(Effect.succeed(1))),
      point: Point,
      tree: Tree
    }
    const definition = Tool.definition(Tool.make("t", { parameters })).parameters
    assert.notMatch(JSON.stringify(definition), /NaN|Infinity/)
    assert.deepStrictEqual((definition["properties"] as any).plain, { type: "number" })
    assert.deepInclude((definition["properties"] as any).bounded, {
      type: "number",
      exclusiveMinimum: 3,
      description: "how many"
    })
    const input = {
      plain: 1,
      nullable: null,
      list: [1, 2.5],
      pair: [1, "a"],
      record: { a: 1 },
      either: "a",
      bounded: 4,
      named: 1,
      maybe: { _tag: "Some", value: 1 },
      set: [1],
      point: { x: 1 },
      tree: { weight: 1, children: [{ weight: 2, children: [] }] }
    }
    const exit = decode(parameters, input)
    assert.isTrue(Exit.isSuccess(exit), String(exit))
    assert.deepInclude((exit as Exit.Success<any>).value, { list: [1, 2.5], defaulted: 1, point: new Point({ x: 1 }) })
    const weights = (weight: unknown) => ({ ...input, tree: { weight: 1, children: [{ weight, children: [] }] } })
    for (
      const wrong of [
        { ...input, plain: "NaN" },
        { ...input, list: ["Infinity"] },
        { ...input, record: { a: "-Infinity" } },
        { ...input, point: { x: "NaN" } },
        weights("NaN")
      ]
    ) {
      const refused = decode(parameters, wrong)
      assert.isTrue(Exit.isFailure(refused), JSON.stringify(wrong))
      assert.include(String(refused), "Expected a number")
      assert.notMatch(String(refused), /NaN|Infinity/)
    }
  })

  it("M-13: any value other than a number is refused with an error that asks for a number, for every kind of number", () => {
    const error = (schema: Schema.Constraint, n: unknown) =>
      String((decode({ n: schema }, { n }) as Exit.Failure<never, never>).cause)
    for (const schema of [Schema.Number, Schema.Finite, Schema.Int, Schema.Number.check(Schema.isGreaterThan(3))]) {
      for (const wrong of ["5", "NaN", null, true, [], {}]) {
        assert.match(error(schema, wrong), /Expected a number\n {2}at \["n"\]/, JSON.stringify(wrong))
      }
    }
    for (const endless of [JSON.parse("1e999"), JSON.parse("-1e999"), Number.NaN]) {
      assert.include(error(Schema.Number, endless), "Expected a finite number")
    }
    const own = Schema.Number.annotate({ message: "how many?" })
    assert.include(error(own, "5"), "how many?")
  })

  it("M-13: a number encoded as text is decoded by its own schema", () => {
    assert.deepStrictEqual(decode({ n: Schema.NumberFromString }, { n: "5" }), Exit.succeed({ n: 5 }))
    assert.deepStrictEqual(decode({ n: Schema.FiniteFromString }, { n: "5" }), Exit.succeed({ n: 5 }))
    const words = Schema.Literals(["NaN", "Infinity"])
    assert.deepStrictEqual(decode({ n: words }, { n: "NaN" }), Exit.succeed({ n: "NaN" }))
  })

  it("M-30: a raw JSON Schema may name its types in Gemini's capitals", () => {
    const parameters = { type: "OBJECT", properties: { city: { type: "STRING" } }, required: ["city"] }
    const tool = Tool.make("t", { parameters, handler: () => Effect.succeed("ok") })
    assert.deepStrictEqual(Tool.definition(tool).parameters, parameters)
    assert.throws(() => Tool.make("t", { parameters: { type: "STRING" } }), TypeError, "must describe an object")
  })

  it("a raw JSON Schema accepts any object, and nothing other than an object", () => {
    assert.deepStrictEqual(decode({ type: "object" }, { any: [1] }), Exit.succeed({ any: [1] }))
    assert.isTrue(Exit.isFailure(decode({ type: "object" }, [1])))
    assert.isTrue(Exit.isFailure(decode({ type: "object" }, "x")))
  })
})

describe("Tool outcomes", () => {
  it("R-009: an outcome constructor returns plain data with an invisible mark", () => {
    assert.deepStrictEqual({ ...Tool.askUser("Which?") }, { _tag: "AskUser", question: "Which?", opts: [] })
    assert.deepStrictEqual({ ...Tool.halt("done", 1) }, { _tag: "Halt", reason: "done", result: 1 })
    assert.deepStrictEqual({ ...Tool.ok(1) }, { _tag: "Ok", value: 1 })
    assert.deepStrictEqual({ ...Tool.error("no") }, { _tag: "Error", error: "no" })
    assert.deepStrictEqual(Object.keys(Tool.ok(1)), ["_tag", "value"])
    assert.strictEqual(JSON.stringify(Tool.halt("done", 1)), "{\"_tag\":\"Halt\",\"reason\":\"done\",\"result\":1}")
  })

  it("ErrorDecision has the decisions continue, halt and fail", () => {
    assert.deepStrictEqual(Tool.ErrorDecision.continue(1), { _tag: "Continue", replacement: 1 })
    assert.deepStrictEqual(Tool.ErrorDecision.halt, { _tag: "Halt" })
    assert.deepStrictEqual(Tool.ErrorDecision.fail("e"), { _tag: "Fail", error: "e" })
  })

  it("the message of a ToolError names tool, reason and detail", () => {
    assert.strictEqual(new Tool.ToolError({ reason: "timeout" }).message, "tool error: timeout")
    assert.strictEqual(new Tool.ToolError({ reason: "timeout", toolName: "t" }).message, "tool error (t): timeout")
    assert.strictEqual(
      new Tool.ToolError({ reason: "timeout", toolName: "t", detail: "late" }).message,
      "tool error (t): timeout: late"
    )
    assert.strictEqual(new Tool.ToolError({ reason: "unknown_effect" }).message, "tool error: unknown_effect")
    assert.throws(() => new Tool.ToolError({ reason: "eaten" as "timeout" }))
  })
})
