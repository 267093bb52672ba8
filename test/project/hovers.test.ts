/**
 * Holds what a user sees when the mouse rests on the most used expressions: one name each, and not what is below it.
 */
import { afterAll, assert, describe, it } from "@effect/vitest"
import { hoversOf, linesOf, plain } from "../support/hovers.ts"
import { readSource } from "../support/source.ts"
import { forget } from "../support/typescript.ts"

const longest = 3

const expected: ReadonlyArray<string> = [
  "const ping: Tool<\"ping\", {}, string, never, never, never>",
  "const weather: Tool<\"weather\", {\n    readonly city: string;\n}, number, NoSuchCity, Weather, never>",
  "const chat: Effect<ChatResult, StepError, Adapter>",
  "const chatWithTools: Effect<ChatResult, StepError, Adapter>",
  "const chatWithServices: Effect<ChatResult, StepError, Adapter | Weather>",
  "const events: Stream<Event, StepError, Adapter | Weather>",
  "const step: Effect<StepResult, StepError, Adapter | Weather>",
  "const session: Session",
  "const reply: Effect<Done<\"chat\", never>, OperationError, Adapter | Weather>",
  "const batch: Effect<Result, EngineError, Weather>",
  "const adapter: Layer<Adapter, never, HttpClient>",
  "const store: Layer<Store, MigrationError | SqlError, never>",
  "(parameter) asked: AskUserRequested",
  "(parameter) completed: ChatCompleted",
  "(property) outcome: Outcome"
]

afterAll(forget)

describe("hovers", () => {
  const file = "test/fixtures/hovers.ts"
  const hovers = hoversOf(file, readSource(file).text)

  it("an editor shows one type name for each of the most used expressions", () => {
    assert.deepStrictEqual(hovers.map(({ type }) => plain(type)), expected)
  })

  it("no shown type is longer than three lines", () => {
    assert.deepStrictEqual(hovers.filter(({ type }) => linesOf(type) > longest), [])
  })

  it("a type longer than three lines is found", () => {
    const anonymous = "export const /* hover */ result = { thread: [], steps: [], outcome: { _tag: \"Completed\" } }"
    const wide = `export const /* hover */ names = [${Array.from({ length: 60 }, (_, i) => `"name${i}"`)}] as const`
    const found = hoversOf("test/fixtures/long.ts", `${anonymous}\n${wide}\nexport const /* hover */ short = 1`)
    assert.deepStrictEqual(found.filter(({ type }) => linesOf(type) > longest).map(({ name }) => name), [
      "result",
      "names"
    ])
  })
})
