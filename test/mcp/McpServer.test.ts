/** Heddle's tools and agents, called by a real client of MCP over HTTP, in both eras of the protocol. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import * as Schema from "effect/Schema"
import { Tool } from "heddle"
import { type Asked, call, connect, eras, type Given, textOf } from "./support/clients.ts"
import { paying, serve } from "./support/serving.ts"

const add = Tool.make("add", {
  description: "Adds two numbers",
  parameters: { one: Schema.Finite, two: Schema.Finite },
  readOnly: true,
  idempotent: true,
  handler: ({ one, two }) => Effect.succeed(String(one + two))
})

const place = Tool.make("place", {
  parameters: {},
  handler: () => Effect.succeed({ city: "Bern", at: [46.9, 7.4] })
})

const broken = Tool.make("broken", { parameters: {}, handler: () => Effect.fail("no connection") })
const dies = Tool.make("dies", { parameters: {}, handler: () => Effect.die(new Error("canary-7301")) })
const slow = Tool.make("slow", { parameters: {}, timeout: 5, handler: () => Effect.never })
const handed = Tool.make("handed", { parameters: {}, manual: true })
const closed = Tool.make("closed", {
  parameters: {},
  authorize: () => Effect.succeed({ allowed: false, reason: "not on Sundays" }),
  handler: () => Effect.succeed("open")
})
const Seats = Schema.Struct({ seats: Schema.Int, aisle: Schema.Boolean })

const asking = [
  Tool.make("seats", {
    parameters: {},
    handler: () => Effect.succeed(Tool.askUser("How many seats?", { answer: Seats }))
  }),
  Tool.make("number", {
    parameters: {},
    handler: () => Effect.succeed(Tool.askUser("Which number?", { answer: Schema.Int }))
  }),
  Tool.make("choice", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which?", ["tea", "coffee"])) }),
  Tool.make("deep", {
    parameters: {},
    handler: () => Effect.succeed(Tool.askUser("Where?", { answer: Schema.Struct({ at: Schema.Array(Schema.Int) }) }))
  })
]

const accept = (content: Record<string, string | number | boolean>): Given => ({ action: "accept", content })

describe("the hints of a tool", () => {
  const hints = {
    readOnly: "readOnlyHint",
    destructive: "destructiveHint",
    idempotent: "idempotentHint",
    openWorld: "openWorldHint"
  } as const
  const careful: Record<string, boolean> = { readOnly: false, destructive: true }

  for (const era of eras) {
    it.live(`O-24: ${era}: a listed tool has exactly its declared hints, and a tool without hints has no annotations`, () =>
      Effect.gen(function*() {
        const cases = Object.entries(hints).flatMap(([hint, theirs]) => [
          { name: `${hint}-true`, declared: { [hint]: true }, expected: { [theirs]: true } },
          { name: `${hint}-false`, declared: { [hint]: false }, expected: { [theirs]: false } },
          ...(hint in careful
            ? [{
              name: `${hint}-by-arguments`,
              declared: { [hint]: () => !careful[hint] },
              expected: { [theirs]: careful[hint] }
            }]
            : [])
        ])
        const all = [{ name: "plain", declared: {}, expected: undefined }, ...cases]
        const tools = all.map(({ declared, name }) =>
          Tool.make(name, { parameters: {}, handler: () => Effect.succeed("done"), ...declared })
        )
        const client = yield* connect(yield* serve(tools), { era })
        const listed = yield* Effect.promise(() => client.listTools())
        assert.deepStrictEqual(
          Object.fromEntries(listed.tools.map(({ annotations, name }) => [name, annotations])),
          Object.fromEntries(all.map(({ expected, name }) => [name, expected]))
        )
      }))
  }

  it("O-24: a tool has no hints that were not declared, and a copy of a tool has no more", () => {
    const plain = Tool.make("plain", { parameters: {}, handler: () => Effect.succeed("done") })
    for (const tool of [plain, { ...plain, name: "again" }]) {
      for (const hint of Object.keys(hints)) assert.notProperty(tool, hint)
      assert.isFalse(Tool.isReadOnly(tool, {}))
      assert.isFalse(Tool.isDestructive(tool, {}))
    }
  })
})

for (const era of eras) {
  describe(`calls in the ${era} era`, () => {
    it.live(`W-15: ${era}: a client lists and calls tools over HTTP, and reads refusals`, () =>
      Effect.gen(function*() {
        const url = yield* serve([add, place, broken, dies, slow, handed, closed])
        const client = yield* connect(url, { era })
        const { tools } = yield* Effect.promise(() => client.listTools())
        assert.deepStrictEqual(tools.map(({ name }) => name).sort(), [
          "add",
          "broken",
          "closed",
          "dies",
          "place",
          "slow"
        ])
        const listed = tools.find(({ name }) => name === "add")
        assert.strictEqual(listed?.description, "Adds two numbers")
        assert.deepStrictEqual(listed?.annotations, { readOnlyHint: true, idempotentHint: true })
        assert.deepStrictEqual(listed?.inputSchema.required, ["one", "two"])
        const sum = yield* call(client, "add", { one: 1, two: 2 })
        assert.deepStrictEqual([textOf(sum), sum.isError, sum.structuredContent], ["3", false, undefined])
        const found = yield* call(client, "place")
        assert.deepStrictEqual(found.structuredContent, { city: "Bern", at: [46.9, 7.4] })
        assert.deepStrictEqual(JSON.parse(textOf(found)), found.structuredContent)
        const errors: ReadonlyArray<readonly [name: string, args: Record<string, unknown>, text: string]> = [
          ["add", { one: 1, two: "two" }, "two"],
          ["broken", {}, "no connection"],
          ["slow", {}, "timed out after 5 ms"],
          ["closed", {}, "not on Sundays"]
        ]
        for (const [name, args, text] of errors) {
          const result = yield* call(client, name, args)
          assert.deepStrictEqual([result.isError, result.structuredContent], [true, undefined])
          assert.include(textOf(result), text)
        }
        assert.isTrue((yield* call(client, "dies")).isError)
        for (const name of ["handed", "nothing"]) {
          const unknown = yield* Effect.flip(call(client, name))
          assert.strictEqual((unknown as { readonly code?: number }).code, -32602)
        }
      }))

    it.live(`W-15: ${era}: numeric progress passes, other progress becomes a text, and a call without a token has no progress`, () =>
      Effect.gen(function*() {
        const seen = yield* Queue.unbounded<unknown>()
        const counting = (isSeen: Effect.Effect<unknown>) =>
          Tool.make(isSeen === Effect.void ? "quiet" : "counting", {
            parameters: {},
            handler: (_, { progress }) =>
              Effect.gen(function*() {
                const all: Array<unknown> = []
                for (const value of [{ progress: 1, total: 3, message: "one" }, "half way", 3, { left: 1 }]) {
                  yield* progress(value)
                  all.push(yield* isSeen)
                }
                return all
              })
          })
        const client = yield* connect(yield* serve([counting(Queue.take(seen)), counting(Effect.void)]), { era })
        const onprogress = (progress: unknown) => void Queue.offerUnsafe(seen, progress)
        const result = yield* call(client, "counting", {}, { onprogress })
        assert.deepStrictEqual(JSON.parse(textOf(result)), [
          { progress: 1, total: 3, message: "one" },
          { progress: 1, message: "half way" },
          { progress: 3 },
          { progress: 2, message: `{"left":1}` }
        ])
        assert.isFalse((yield* call(client, "quiet")).isError)
      }))

    it.live(`W-15: ${era}: the user is asked for an approval, and accepts, declines or cancels`, () =>
      Effect.gen(function*() {
        const { paid, tool } = paying()
        const url = yield* serve([tool])
        const answers: ReadonlyArray<readonly [given: Given, isError: boolean, text: string]> = [
          [accept({ approve: true }), false, "paid 7"],
          [accept({ approve: false }), true, "did not allow"],
          [{ action: "decline" }, true, "did not allow"],
          [{ action: "cancel" }, true, "cancelled"]
        ]
        const asked: Array<Asked> = []
        let given = answers[0]![0]
        const client = yield* connect(url, { era, answer: (question) => (asked.push(question), given) })
        for (const [next, isError, text] of answers) {
          asked.length = 0
          given = next
          const result = yield* call(client, "pay", { amount: 7 })
          assert.include(textOf(result), text)
          assert.strictEqual(result.isError, isError)
          assert.strictEqual(asked.length, 1)
          assert.include(asked[0]?.message, "7")
          assert.deepStrictEqual(Object.keys(asked[0]?.requestedSchema.properties ?? {}), ["approve"])
        }
        assert.deepStrictEqual(paid, [7])
      }))

    it.live(`W-15: ${era}: a call that needs an approval or an answer fails if the client cannot ask its user, and shows why`, () =>
      Effect.gen(function*() {
        const { paid, tool } = paying()
        const client = yield* connect(yield* serve([tool, ...asking]), { era })
        const denied = yield* call(client, "pay", { amount: 7 })
        assert.deepStrictEqual([denied.isError, paid], [true, []])
        assert.include(textOf(denied), "Permission denied")
        const unasked = yield* call(client, "seats")
        assert.isTrue(unasked.isError)
        assert.include(textOf(unasked), "How many seats?")
      }))

    it.live(`W-15: ${era}: a question with a flat schema is a form, any other is a text, and an answer must fit`, () =>
      Effect.gen(function*() {
        const url = yield* serve(asking)
        const rows: ReadonlyArray<readonly [name: string, given: Given, isError: boolean, text: string]> = [
          ["seats", accept({ seats: 2, aisle: true }), false, `{"seats":2,"aisle":true}`],
          ["seats", accept({ seats: 2 }), true, "does not fit"],
          ["number", accept({ answer: 5 }), false, "5"],
          ["choice", accept({ answer: "tea" }), false, "tea"],
          ["deep", accept({ answer: `{"at":[1,2]}` }), false, `{"at":[1,2]}`],
          ["deep", accept({ answer: "nowhere" }), true, "does not fit"],
          ["choice", { action: "decline" }, true, "declined"],
          ["choice", { action: "cancel" }, true, "cancelled"]
        ]
        const fields = { seats: ["seats", "aisle"], number: ["answer"], choice: ["answer"], deep: ["answer"] }
        const asked: Array<Asked> = []
        let given = rows[0]![1]
        const client = yield* connect(url, { era, answer: (question) => (asked.push(question), given) })
        for (const [name, next, isError, text] of rows) {
          asked.length = 0
          given = next
          const result = yield* call(client, name)
          assert.include(textOf(result), text)
          assert.strictEqual(result.isError, isError, `${name} ${JSON.stringify(given)}`)
          assert.deepStrictEqual(
            Object.keys(asked[0]?.requestedSchema.properties ?? {}),
            fields[name as keyof typeof fields]
          )
        }
      }))

    it.live(`W-15: ${era}: a handler that asked starts again with the answer and its state, and may ask again`, () =>
      Effect.gen(function*() {
        const attempts: Array<unknown> = []
        const book = Tool.make("book", {
          parameters: { show: Schema.String },
          approval: true,
          handler: ({ show }, { attempt, idempotencyKey, resumed }) =>
            Effect.sync((): unknown => {
              attempts.push([attempt, idempotencyKey, resumed])
              if (resumed === undefined) return Tool.askUser("Seats?", { answer: Schema.Int, resume: { show } })
              const state = resumed.state as { readonly show: string; readonly seats?: unknown }
              return state.seats === undefined
                ? Tool.askUser("Sure?", { resume: { ...state, seats: resumed.answer } })
                : `${JSON.stringify(state)} ${String(resumed.answer)}`
            })
        })
        const given = [accept({ approve: true }), accept({ answer: 3 }), accept({ answer: "yes" })]
        const client = yield* connect(yield* serve([book]), { era, answer: () => given.shift()! })
        const result = yield* call(client, "book", { show: "s7" })
        assert.strictEqual(textOf(result), `{"show":"s7","seats":3} yes`)
        assert.deepStrictEqual(given, [])
        const keys = new Set(attempts.map((each) => (each as ReadonlyArray<unknown>)[1]))
        assert.deepStrictEqual([attempts.map((each) => (each as ReadonlyArray<unknown>)[0]), keys.size], [[1, 2, 3], 1])
      }))
  })
}
