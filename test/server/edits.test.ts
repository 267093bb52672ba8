/** Approvals that change the arguments of calls, and decisions about one of several calls, as readers have them. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Event, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as JournalEvents from "../../src/server/internal/journalEvents.ts"
import * as RunPages from "../../src/server/internal/runPages.ts"

const { finish, text, toolCall } = Script

const pay = Tool.make("pay", {
  parameters: { amount: Schema.Number },
  approval: true,
  handler: ({ amount }) => Effect.succeed(`paid ${amount}`)
})

const careful = Tool.fromChat("careful", { parameters: {}, chat: () => Chat.stream("careful", { tools: [pay] }) })

const tools = [pay, careful]

/** The arguments that events tell of calls, by run, with those of calls inside others. */
const told = (event: Event.PublicEvent): ReadonlyArray<unknown> => {
  switch (event._tag) {
    case "ToolCallCompleted":
    case "ToolExecutionStarted":
      return [[event._tag, event.id, event.arguments]]
    case "ToolProgress":
      return event.nested === undefined ? [] : told(event.nested).map((inner) => [event.id, inner])
    default:
      return []
  }
}

/** Runs a session in which one call is approved with other arguments, and returns what readers have of it. */
const readers = (publish: Event.PublicOptions["publish"]) =>
  Effect.gen(function*() {
    const live: Array<ReadonlyArray<unknown>> = []
    const run = () => {
      const calls = new Map<string, Event.PublicCall>()
      const events: Array<unknown> = []
      live.push(events)
      return {
        tools,
        onEvent: (event: Event.Event) => {
          // A server leaves these out: its readers have them.
          if ("replayed" in event && event.replayed === true) return
          const shown = Event.toPublic(event, { calls, ...(publish === undefined ? {} : { publish }) })
          if (shown !== undefined) events.push(...told(shown))
        }
      }
    }
    const opened = yield* Session.open("s")
    let kept: Session.Kept = yield* Session.keep(opened, (session) => Session.reply(session, "go", run()))
    for (const { id } of kept.session.suspensions) {
      kept = yield* Session.keep(kept, (session) => Session.approve(session, id, { arguments: { amount: 4 } }))
    }
    yield* Session.keep(kept, (session) => Session.continue(session, null, run()))
    const page = yield* RunPages.page(
      "s",
      yield* JournalEvents.read("s", publish === undefined ? {} : { publish }),
      { before: undefined, limit: 20 },
      publish === undefined ? {} : { publish }
    )
    return { live, folded: page.runs.map(({ events }) => events.flatMap(told)) }
  })

const asking = [toolCall("c1", "pay", { amount: 3 }), toolCall("c2", "careful", {}), finish("tool_calls")]

const model = Script.layer([
  asking,
  [toolCall("c1", "pay", { amount: 2 }), finish("tool_calls")],
  [text("Paid."), finish("stop")],
  [text("Done."), finish("stop")]
])

const provided = <A, E>(effect: Effect.Effect<A, E, any>) =>
  effect.pipe(Effect.provide(Layer.merge(model, Layer.fresh(Session.Store.layerMemory)))) as Effect.Effect<A, E>

describe("an approval with edited arguments", () => {
  it.effect("V-07: an approval with edited arguments has them in the events of its run, live and from the journal", () =>
    Effect.gen(function*() {
      const { folded, live } = yield* readers(undefined)
      const [, continued = []] = live
      assert.deepInclude(continued, ["ToolExecutionStarted", "c1", { amount: 4 }])
      assert.deepInclude(continued, ["c2", ["ToolExecutionStarted", "c1", { amount: 4 }]])
      // The first run tells the arguments of its own calls once.
      assert.deepInclude(live[0]!, ["ToolCallCompleted", "c1", { amount: 3 }])
      assert.deepStrictEqual(folded, live)
    }).pipe(provided))

  it.effect("V-07: an approval has no arguments if the arguments are not published", () =>
    Effect.gen(function*() {
      const { folded, live } = yield* readers("names")
      assert.notInclude(JSON.stringify([folded, live]), "amount")
    }).pipe(provided))

  it.effect("V-09: an approval of one of two calls is in the session until the other is decided, if the tool is published", () =>
    Effect.gen(function*() {
      const opened = yield* Session.open("s")
      const asked = yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools }))
      const decided = (kept: Session.Kept, publish: Event.PublicOptions = {}) =>
        RunPages.sessionOf(kept, [], publish).decided
      assert.isUndefined(decided(asked))
      const [own, inner] = asked.session.suspensions.map(({ id }) => id)
      const allowed = yield* Session.keep(asked, (session) => Session.approve(session, own!))
      assert.deepStrictEqual(decided(allowed), [{ id: "c1", verdict: "approved" }])
      assert.deepStrictEqual(RunPages.sessionOf(allowed, [], {}).suspensions.length, 1)
      assert.isUndefined(decided(allowed, { publish: "none" }))
      assert.isUndefined(decided(allowed, { publish: (name) => name === "pay" ? "none" : "all" }))
      const denied = yield* Session.keep(asked, (session) => Session.deny(session, inner!)).pipe(Effect.option)
      assert.strictEqual(denied._tag, "None")
      const both = yield* Session.keep(allowed, (session) => Session.deny(session, inner!, "no"))
      assert.deepStrictEqual(decided(both), [
        { id: "c1", verdict: "approved" },
        { id: "c2/c1", verdict: "denied" }
      ])
      assert.deepStrictEqual(decided(both, { publish: () => "all" }), [{ id: "c1", verdict: "approved" }])
      const ended = yield* Session.keep(both, (session) => Session.continue(session, null, { tools }))
      assert.isUndefined(decided(ended))
      assert.strictEqual((yield* Stream.runCollect((yield* Session.Store).read("s"))).at(-1)?.record._tag, "RunEnded")
    }).pipe(provided))
})
