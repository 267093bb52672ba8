/** Arguments that a person edits are read by the tool before the approval is recorded. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as SchemaGetter from "effect/SchemaGetter"
import * as TestClock from "effect/testing/TestClock"
import { Chat, Policy, Session, Tool } from "heddle"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { z } from "zod"
import { until } from "../support/until.ts"
import { serve, type Site } from "./support/site.ts"

const { finish, text, toolCall } = Script
const at = "/agents/helper/sessions"

/** The rate of a currency, which decoding asks for. */
class Rate extends Context.Service<Rate, number>()("test/Rate") {}

const Converted = Schema.Finite.pipe(
  Schema.decodeTo(Schema.Finite, {
    decode: SchemaGetter.transformEffect((amount: number) => Effect.map(Rate, (rate) => amount * rate)),
    encode: SchemaGetter.passthrough()
  })
)

const parametersOf = {
  "struct fields": {
    amount: Schema.Finite,
    notes: Schema.optionalKey(Schema.Array(Schema.Struct({ to: Schema.String })))
  },
  "another library": z.object({ amount: z.number(), notes: z.array(z.object({ to: z.string() })).optional() }),
  "a decoder with a service": {
    amount: Converted,
    notes: Schema.optionalKey(Schema.Array(Schema.Struct({ to: Schema.String })))
  }
}

const paying = (parameters: object = parametersOf["struct fields"]) => {
  const paid: Array<number> = []
  const pay = Tool.make("pay", {
    parameters: parameters as (typeof parametersOf)["struct fields"],
    approval: true,
    handler: ({ amount }) => Effect.sync(() => (paid.push(amount), `paid ${amount}`))
  })
  return { paid, pay }
}

/** A reply that asks for calls of `pay`. */
const asking = (calls: number) => [
  ...Array.from({ length: calls }, (_, index) => toolCall(`c${index}`, "pay", { amount: index + 1 })),
  finish("tool_calls")
]

const done = [[text("Done"), finish("stop")]]

/** Serves an agent with these tools, which a test may change, with a model. */
const serving = (tools: { given: ReadonlyArray<Tool.Any> }, replies = [asking(1), ...done]) =>
  Effect.gen(function*() {
    const store = yield* Effect.provide(Session.Store, Session.Store.layerMemory)
    const model = Script.layer(replies)
    const agent = Agent.make({
      name: "helper",
      description: "Helps",
      run: () => Effect.sync(() => ({ tools: tools.given }))
    })
    const site = yield* serve([agent], Layer.merge(model, Layer.succeed(Rate, 2)), {
      store: Layer.succeed(Session.Store, store)
    })
    yield* post(site, `${at}/s1/messages`, { content: "Pay" })
    const version = store.version(`local:s1`)
    const suspensions = Effect.map(
      Effect.promise(() => site.ask("GET", `${at}/s1`)),
      ({ text }) => JSON.parse(text).suspensions as ReadonlyArray<{ readonly id: string }>
    )
    return { site, suspensions, version }
  })

const post = (site: Site, path: string, body: unknown) =>
  Effect.map(Effect.promise(() => site.ask("POST", path, body)), ({ status, text }) => ({
    status,
    text,
    error: status < 400 ? undefined : JSON.parse(text).error
  }))

/** Ways in which clients approve a call with other arguments. */
const ways: Readonly<Record<string, (id: string, edits: object) => readonly [path: string, body: object]>> = {
  "answers": (id, edits) => [`${at}/s1/answers`, { answers: [{ id, approve: true, arguments: edits }] }],
  "messages": (id, edits) => [`${at}/s1/messages`, { answers: [{ id, approve: true, arguments: edits }] }],
  "the AI SDK": (id, edits) => [at, {
    id: "s1",
    trigger: "submit-message",
    messages: [{
      id: "m1",
      role: "assistant",
      parts: [{
        type: "tool-pay",
        toolCallId: "c0",
        state: "approval-responded",
        input: { amount: 1 },
        approval: { id, approved: true }
      }]
    }],
    edits: { c0: edits }
  }],
  "AG-UI": (id, edits) => ["/agui/helper", {
    threadId: "s1",
    runId: "r1",
    messages: [],
    tools: [],
    resume: [{ interruptId: id, status: "resolved", payload: { approved: true, arguments: edits } }]
  }]
}

describe("R-590: edited arguments that the tool cannot read are refused before the approval is recorded", () => {
  for (const [form, parameters] of Object.entries(parametersOf)) {
    for (const [way, request] of Object.entries(ways)) {
      it.live(`unreadable arguments sent by ${way} to a tool declared with ${form} are refused, and readable arguments are accepted`, () =>
        Effect.gen(function*() {
          const { paid, pay } = paying(parameters)
          const { site, suspensions, version } = yield* serving({ given: [pay] })
          const [open] = yield* suspensions
          const before = yield* version
          const cases: ReadonlyArray<readonly [edits: object, ...paths: ReadonlyArray<string>]> = [
            [{ amount: "many" }, "amount"],
            [{}, "amount"],
            [{ amount: 1, notes: [{ to: "ann" }, { to: 5 }] }, "notes[1].to"],
            [{ amount: [], notes: {} }, "amount", "notes"]
          ]
          for (const [edits, ...paths] of cases) {
            const refused = yield* post(site, ...request(open!.id, edits))
            assert.deepStrictEqual([refused.status, refused.error?.code], [400, "invalid_arguments"], refused.text)
            assert.strictEqual(refused.error.id, open!.id)
            assert.deepStrictEqual(refused.error.issues.map(({ path }: { readonly path: string }) => path), paths)
            for (const path of paths) assert.include(refused.error.message, `arguments.${path}: `)
          }
          assert.strictEqual(yield* version, before)
          assert.deepStrictEqual(yield* suspensions, [open!])
          const taken = yield* post(site, ...request(open!.id, { amount: 7, notes: [{ to: "ann" }], other: 1 }))
          assert.strictEqual(taken.status, 200, taken.text)
          assert.deepStrictEqual(paid, [form === "a decoder with a service" ? 14 : 7])
        }))
    }
  }

  it.live("a body with one invalid answer of several records no answer and no message", () =>
    Effect.gen(function*() {
      const { paid, pay } = paying()
      const { site, suspensions, version } = yield* serving({ given: [pay] }, [asking(3), ...done])
      const open = yield* suspensions
      const [first, second, third] = open.map(({ id }) => id)
      const before = yield* version
      const answers = [
        { id: first, approve: true, arguments: { amount: 5 } },
        { id: second, approve: true, arguments: { amount: null } },
        { id: third, approve: false }
      ]
      const refused = yield* post(site, `${at}/s1/answers`, { answers })
      assert.deepStrictEqual([refused.status, refused.error.code, refused.error.id], [400, "invalid_arguments", second])
      assert.strictEqual(yield* version, before)
      assert.deepStrictEqual(yield* suspensions, open)
      const right = answers.map((answer) => answer.id === second ? { id: second, approve: true } : answer)
      assert.strictEqual((yield* post(site, `${at}/s1/answers`, { answers: right })).status, 200)
      assert.deepStrictEqual(paid.toSorted(), [2, 5])
    }))

  it.live("a repeated answer is accepted, whatever the tool has become", () =>
    Effect.gen(function*() {
      const { paid, pay } = paying()
      const tools = { given: [pay] as ReadonlyArray<Tool.Any> }
      const { site, suspensions } = yield* serving(tools)
      const [open] = yield* suspensions
      const request = ways["answers"]!(open!.id, { amount: 7 })
      assert.strictEqual((yield* post(site, ...request)).status, 200)
      tools.given = [paying({ ...parametersOf["struct fields"], amount: Schema.String }).pay]
      assert.strictEqual((yield* post(site, ...request)).status, 200)
      assert.deepStrictEqual(paid, [7])
    }))

  it.live("the current tool decodes edited arguments, and without the tool the run decodes them once the tool is back", () =>
    Effect.gen(function*() {
      const { paid, pay } = paying()
      const renamed = paying({ sum: Schema.Finite }).pay
      const tools = { given: [pay] as ReadonlyArray<Tool.Any> }
      const { site, suspensions } = yield* serving(tools)
      const [open] = yield* suspensions
      tools.given = [renamed]
      const refused = yield* post(site, ...ways["answers"]!(open!.id, { amount: 7 }))
      assert.deepStrictEqual(refused.error?.issues, [{ path: "sum", reason: "Expected a value" }], refused.text)
      tools.given = []
      const [, body] = ways["answers"]!(open!.id, { amount: "many" })
      const gone = yield* post(site, `${at}/s1/answers?wait=false`, body)
      assert.strictEqual(gone.status, 202, gone.text)
      tools.given = [pay]
      const ended = yield* until(
        "the end of the run",
        Effect.promise(() => site.ask("GET", `${at}/s1/runs`)),
        ({ text }) => JSON.parse(text).session.next === "nothing"
      )
      assert.include(ended.text, "invalid_arguments")
      assert.deepStrictEqual(paid, [])
    }))

  it.live("a sub-agent's call decodes edited arguments when it runs, and the sub-agent's model has the error", () =>
    Effect.gen(function*() {
      const { paid, pay } = paying()
      const team = Tool.fromChat("team", { parameters: {}, chat: () => Chat.stream("Pay", { tools: [pay] }) })
      const asks = [[toolCall("c0", "team"), finish("tool_calls")], [
        toolCall("i0", "pay", { amount: 1 }),
        finish("tool_calls")
      ]]
      const { site, suspensions } = yield* serving({ given: [team] }, [...asks, ...done, ...done])
      const [open] = yield* suspensions
      const taken = yield* post(site, ...ways["answers"]!(open!.id, { amount: "many" }))
      assert.strictEqual(taken.status, 200, taken.text)
      assert.include(taken.text, "invalid_arguments")
      assert.deepStrictEqual(paid, [])
    }))
})

describe("R-591: a program that gives the tools has the same refusal", () => {
  const waiting = (pay: Tool.Any) =>
    Session.start("Pay", { tools: [pay] }).pipe(
      Effect.provide(Script.layer([asking(2)])),
      Effect.map(({ session }) => session)
    )

  it.effect("Session.approve and Session.settle refuse unreadable arguments with the run's tools or the application's default tools", () =>
    Effect.gen(function*() {
      const { pay } = paying()
      const session = yield* waiting(pay)
      const edits = { amount: 1, notes: [{ to: 5 }] }
      const approved = { _tag: "Approved", arguments: edits } as const
      const verdicts = [{ id: "c0", answer: { _tag: "Approved" } as const }, {
        id: "c1",
        answer: approved,
        tools: [pay]
      }]
      const byDefaults = Session.approve(session, "c1", { arguments: edits, tools: [] })
      for (
        const refused of [
          Session.approve(session, "c1", { arguments: edits, tools: [pay] }),
          Session.settle(session, verdicts),
          Effect.provideService(byDefaults, Policy.Defaults, { tools: [pay as Tool.Tool<"pay", any, any, any, never>] })
        ]
      ) {
        const error = yield* Effect.flip(refused)
        assert.deepStrictEqual([error.reason, error.metadata], [
          "invalid_arguments",
          { toolCallId: "c1", issues: [{ path: "notes[0].to", reason: "Expected string" }] }
        ])
        assert.strictEqual(error.detail, "arguments.notes[0].to: Expected string; call \"c1\" keeps waiting")
      }
      const unchecked = yield* Session.approve(session, "c1", { arguments: edits })
      assert.deepStrictEqual(unchecked.approved.map(({ id }) => id), ["c1"])
      const taken = yield* Session.approve(session, "c1", { arguments: { amount: 3 }, tools: [pay] })
      assert.deepStrictEqual(taken.approved.map(({ id }) => id), ["c1"])
    }))

  it.effect("a decoder that breaks or takes too long is left to the run", () =>
    Effect.gen(function*() {
      const session = yield* waiting(paying().pay)
      const breaking = paying(
        Schema.Struct({ amount: Schema.Finite }).check(Schema.makeFilter(() => {
          throw new Error("broken")
        }))
      ).pay
      const slow = paying(z.object({ amount: z.number().refine(() => new Promise(() => {})) })).pay
      const taken = yield* Session.approve(session, "c0", { arguments: { amount: 2 }, tools: [breaking] })
      assert.deepStrictEqual(taken.approved.map(({ id }) => id), ["c0"])
      const fiber = yield* Effect.forkChild(Session.approve(session, "c0", { arguments: { amount: 2 }, tools: [slow] }))
      yield* TestClock.adjust("10 seconds")
      assert.deepStrictEqual((yield* Fiber.join(fiber)).approved.map(({ id }) => id), ["c0"])
    }))
})
