/** The end of a run by a rule, as each part shows it: it is no answer, and with status `error` it is one failure. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Event, Rule, Session, Tool } from "heddle"
import { McpServer } from "heddle/mcp"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { AgUi, UiStream } from "heddle/ui"
import * as Terminal from "../../src/command/internal/terminal.ts"
import { call, connect, textOf } from "../mcp/support/clients.ts"
import { eventsOf, serve } from "../server/support/site.ts"
import { holding, listing, type Written } from "../support/nests.ts"
import { modelOf, type Replies } from "../support/ruled.ts"
import { recording, statusOf } from "../support/spans.ts"

const { finish, text, toolCall } = Script

type Status = "completed" | "error"

const statuses: ReadonlyArray<Status> = ["completed", "error"]

/** A rule that ends a run behind its first step. */
const enough = (status: Status) => Rule.make("enough", { next: () => Rule.end({ status, detail: { price: 7 } }) })

/** A conversation that calls `sub` once; the run inside says something. */
const replies: Replies = ({ messages }) =>
  messages.at(-1)?.content === "outer"
    ? [toolCall("c", "sub"), finish("tool_calls")]
    : [text("done"), finish("stop")]

const model = Adapter.layer(modelOf(replies, []))

const sub = (status: Status) =>
  Tool.fromChat("sub", { parameters: {}, chat: () => Chat.stream("inner", { rules: [enough(status)] }) })

/** The public events of a run that a rule ends. */
const publicEvents = (status: Status) =>
  Chat.stream("Hi", { rules: [enough(status)], requestId: "run" }).pipe(
    Stream.runCollect,
    Effect.map((events) => events.flatMap((event) => Event.toPublic(event, { runId: "run" }) ?? [])),
    Effect.provide(model)
  )

describe("a run that a rule ends", () => {
  for (const status of statuses) {
    it.effect(`a sub-agent ended by a rule gives no answer and reports why (${status})`, () =>
      Effect.gen(function*() {
        const result = yield* Chat.run("outer", { tools: [sub(status)] }).pipe(Effect.provide(model))
        const [answer] = result.steps[0]?.toolResults ?? []
        assert.isTrue(answer?.isError)
        const { error } = JSON.parse(String(answer?.content))
        assert.strictEqual(error, "the run ended without an answer: enough: {\"price\":7}")
      }))

    it.effect(`a kept sub-agent ended by a rule and killed at a record gives the same result (${status})`, () =>
      Effect.gen(function*() {
        const written: Array<Written> = []
        const options = { tools: [sub(status)], requestId: "run" }
        const whole = yield* Effect.gen(function*() {
          const opened = yield* Session.open("s")
          return yield* Session.keep(opened, (session) => Session.reply(session, "outer", options))
        }).pipe(Effect.provide([model, listing(written)]))
        const nested = written.findIndex(({ id, record }) => id !== "s" && record._tag === "RunEnded")
        assert.isAbove(nested, 0)
        for (let length = 2; length < written.length; length++) {
          const { session, value } = yield* Effect.gen(function*() {
            return yield* Session.resume((yield* Session.load("s"))!, { ...options, takeOver: true } as {
              readonly takeOver: true
            })
          }).pipe(Effect.provide([model, holding(written.slice(0, length))]))
          const where = `killed behind record ${length} of ${written.length}`
          assert.deepStrictEqual(session, whole.session, where)
          assert.deepStrictEqual(value.result, whole.value.result, where)
        }
      }))

    it.effect(`a run ended by a rule has its status in a session, in its journal and over JSON (${status})`, () =>
      Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const options = { rules: [enough(status)] }
        const kept = yield* Session.keep(opened, (session) => Session.reply(session, "Hi", options))
        assert.strictEqual(kept.session.status, status)
        assert.deepStrictEqual((yield* Session.load("s"))?.session, kept.session)
        const detail = { price: 7 }
        assert.deepStrictEqual(kept.session.metadata, status === "error" ? { error: { rule: "enough", detail } } : {})
        const bare = yield* Session.reply(Session.make({ id: "t" }), "Hi", options)
        assert.deepStrictEqual([bare.session.status, bare.session.metadata], [status, kept.session.metadata])
        // The next message goes on, behind a recovery where the run has failed.
        const ready = status === "error" ? Session.recover(bare.session) : bare.session
        const { result } = yield* Session.reply(ready, "Again")
        assert.strictEqual(result.outcome._tag, "Completed")
      }).pipe(Effect.provide([model, Session.Store.layerMemory])))

    it.effect(`the span of a run ended by a rule has the status of the end (${status})`, () =>
      Effect.gen(function*() {
        const { spans, tracer } = recording()
        yield* Chat.run("Hi", { rules: [enough(status)], agent: { name: "helper" } }).pipe(
          Effect.provide(model),
          Effect.withTracer(tracer)
        )
        const run = spans.find(({ name }) => name === "invoke_agent helper")!
        assert.strictEqual(run.attributes.get("error.type"), status === "error" ? "enough" : undefined)
        assert.strictEqual(statusOf(run).startsWith("ERROR"), status === "error")
      }))

    it.effect(`a run ended by a rule gives one public event without its detail in each protocol (${status})`, () =>
      Effect.gen(function*() {
        const events = yield* publicEvents(status)
        const end = events.at(-1)
        assert.deepInclude(end, { _tag: "ChatCompleted", outcome: { _tag: "RuleEnded", rule: "enough", status } })
        const all = Stream.fromIterable(events)
        const chunks = yield* Stream.runCollect(UiStream.chunks(all, { protocol: 6 }))
        assert.deepInclude(chunks.at(-1), { type: "finish", finishReason: status === "error" ? "error" : "other" })
        const agUi = yield* Stream.runCollect(AgUi.events(all, { runId: "run", threadId: "t" }))
        assert.deepInclude(
          agUi.at(-1),
          status === "error"
            ? { type: "RUN_ERROR", code: "enough", message: "The rule \"enough\" ended the run." }
            : { type: "RUN_FINISHED", outcome: { type: "success" } }
        )
      }))

    it.effect(`a terminal notes the rule that ended a run (${status})`, () =>
      Effect.gen(function*() {
        let noted = ""
        const view = new Terminal.View({ text: () => {}, note: (text) => void (noted += text) })
        for (const event of yield* publicEvents(status)) view.take(event)
        assert.strictEqual(noted, "! The run was ended by the rule \"enough\".\n")
      }))

    it.live(`a run ended by a rule is an error of an agent over MCP and an event of its server (${status})`, () =>
      Effect.gen(function*() {
        const agent = Agent.make({ name: "helper", description: "Helps", run: () => ({ rules: [enough(status)] }) })
        const site = yield* serve([agent], model, { mcp: McpServer.routes({ tools: [] }) })
        const client = yield* connect(site.url, { era: "modern" })
        const result = yield* call(client, "helper", { task: "Hi" })
        assert.deepStrictEqual([textOf(result), result.isError], [
          "The agent did not finish: the rule \"enough\" ended the run.",
          true
        ])
        const reader = yield* Effect.promise(() =>
          site.open("POST", "/agents/helper/sessions/s/messages", { content: "Hi" })
        )
        const events = eventsOf(yield* Effect.promise(() => reader.end()))
        assert.deepInclude(events.at(-1), { outcome: { _tag: "RuleEnded", rule: "enough", status } })
        const { text } = yield* Effect.promise(() => site.ask("GET", "/agents/helper/sessions/s"))
        assert.deepInclude(JSON.parse(text), { endedBy: "enough", status })
        // A further message is taken, and its run is governed as well.
        const next = yield* Effect.promise(() =>
          site.open("POST", "/agents/helper/sessions/s/messages", { content: "Again" })
        )
        const more = eventsOf(yield* Effect.promise(() => next.end()))
        assert.deepInclude(more.at(-1), { outcome: { _tag: "RuleEnded", rule: "enough", status } })
        assert.isTrue(more.some(({ _tag }) => _tag === "MessageCompleted"))
      }))
  }
})
