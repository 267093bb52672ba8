/**
 * What calls came to, in a journal: the run that takes them up answers the model with the text of the uncut run, and its
 * policies decide by the same errors.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as TestClock from "effect/testing/TestClock"
import { Encoder, Policy, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { journalOf, prefixed } from "../support/survivor.ts"

class Full extends Schema.TaggedError<Full>()("Full", { seats: Schema.BigInt, until: Schema.Date }) {}

class Ticket extends Schema.Class<Ticket>("Ticket")({ id: Schema.BigInt, at: Schema.Date }) {}

const ticket = new Ticket({ id: 12345678901234567890n, at: new Date(0) })

const tools: ReadonlyArray<Tool.Any> = [
  Tool.make("dated", {
    parameters: {},
    success: Schema.Struct({ at: Schema.Date, id: Schema.BigInt }),
    handler: () => Effect.succeed({ at: new Date(1e12), id: 7n })
  }),
  Tool.make("sold", { parameters: {}, success: Ticket, handler: () => Effect.succeed(ticket) }),
  Tool.make("bare", {
    parameters: {},
    handler: () => Effect.succeed({ at: new Date(0), list: [undefined, Number.NaN] })
  }),
  Tool.make("misfit", {
    parameters: {},
    success: Schema.Struct({ n: Schema.Finite }),
    handler: () => Effect.succeed({ n: "x" as never })
  }),
  Tool.make("full", {
    parameters: {},
    failure: Full,
    handler: () => Effect.fail(new Full({ seats: 3n, until: new Date(0) }))
  }),
  Tool.make("untyped", {
    parameters: {},
    handler: () => Effect.fail(Object.assign(new TypeError("no seat"), { row: 7 }))
  }),
  Tool.make("breaks", { parameters: {}, handler: () => Effect.die(new RangeError("out of rows")) }),
  Tool.make("shows", {
    parameters: {},
    handler: () => Effect.succeed(Tool.content([{ type: "image", mediaType: "image/png", data: "iVBORw0KGgo=" }]))
  }),
  Tool.make("long", { parameters: {}, handler: () => Effect.succeed("line of a text\n".repeat(200)) })
] as ReadonlyArray<Tool.Any>

const model = () =>
  Script.layer([
    [...tools.map(({ name }, index) => Script.toolCall(`c${index}`, name)), Script.finish("tool_calls")],
    [Script.text("Done."), Script.finish("stop")]
  ])

const terse: Encoder.Service = { encode: (value) => Effect.map(Encoder.json.encode(value), (text) => `<${text}>`) }

/** Decides by the class of an error, and tells a policy that was asked again what it was asked before. */
const decide = (_call: unknown, error: unknown) =>
  Effect.succeed(
    error instanceof Full
      ? Tool.ErrorDecision.continue(`full: ${error.seats} until ${error.until.getTime()}`)
      : Tool.ErrorDecision.continue(Tool.error(error))
  )

const settings = {
  "json": [Encoder.json, { policy: { ...Policy.standard, crashes: "told", resultLimit: 300 } }],
  "allm": [Encoder.allm, { policy: Policy.allm }],
  "falai": [Encoder.falai, { policy: Policy.falai }],
  "a custom encoder": [terse, {}],
  "a policy that looks at the error": [Encoder.json, { onToolError: decide }]
} as const

describe("the outcomes of a cut run", () => {
  for (const [name, [encoder, given]] of Object.entries(settings)) {
    it.effect(`D-04: a resumed run answers the model as the uncut run does, at every record: ${name}`, () =>
      Effect.gen(function*() {
        const options = { ...given, tools, requestId: "run", maxConcurrency: 1 } as Session.ResumeOptions<typeof tools>
        const whole = yield* Effect.gen(function*() {
          const kept = yield* Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "go", options))
          return { thread: kept.session.thread, records: yield* journalOf("s") }
        }).pipe(Effect.provide([model(), Encoder.layer(encoder), Session.Store.layerMemory]))
        const cuts = whole.records.flatMap(({ _tag }, index) => _tag === "CallEnded" ? [index + 1] : [])
        assert.lengthOf(cuts, tools.length)
        for (const length of cuts) {
          const taken = yield* Effect.gen(function*() {
            const cut = (yield* Session.load("s"))!
            return yield* Session.resume(cut, { ...options, takeOver: true })
          }).pipe(
            Effect.provide([
              Script.layer([[Script.text("Done."), Script.finish("stop")]]),
              Encoder.layer(encoder),
              prefixed("s", JSON.parse(JSON.stringify(whole.records.slice(0, length))))
            ])
          )
          assert.deepStrictEqual(taken.session.thread.messages, whole.thread.messages, `behind record ${length}`)
        }
      }) as Effect.Effect<void>)
  }

  it.effect("a question of a cut run keeps its original expiry time", () =>
    Effect.gen(function*() {
      const asks = Tool.make("asks", {
        parameters: {},
        handler: () => Effect.succeed(Tool.askUser("Which?", { expiresIn: "1 hour" }))
      })
      const asking = Script.layer([[Script.toolCall("c0", "asks"), Script.finish("tool_calls")]])
      const records = yield* Effect.gen(function*() {
        yield* Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "go", { tools: [asks] }))
        return yield* journalOf("s")
      }).pipe(Effect.provide([asking, Session.Store.layerMemory]))
      const ended = records.findIndex(({ _tag }) => _tag === "CallWaits") + 1
      yield* TestClock.adjust("20 minutes")
      const { session } = yield* Effect.gen(function*() {
        return yield* Session.resume((yield* Session.load("s"))!, { tools: [asks], takeOver: true })
      }).pipe(Effect.provide([Script.layer([]), prefixed("s", records.slice(0, ended))]))
      assert.deepStrictEqual(session.suspensions.map(({ expiresAt, question }) => [question, expiresAt]), [[
        "Which?",
        3_600_000
      ]])
    }))
})
