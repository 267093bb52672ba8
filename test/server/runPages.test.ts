/**
 * The history of a session by pages: all pages together are its runs, each as a reader of all events has it, and read
 * each record once.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { type Event, type Journal, Message, Session, Thread, Tool } from "heddle"
import { Agent, type Server } from "heddle/server"
import { Script } from "heddle/testing"
import * as JournalEvents from "../../src/server/internal/journalEvents.ts"
import * as RunPages from "../../src/server/internal/runPages.ts"
import { appendAll } from "../support/stores.ts"
import { until } from "../support/until.ts"
import { bearer, byToken } from "./support/hostile.ts"
import { serve } from "./support/site.ts"

const { finish, streamError, text, toolCall } = Script

const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
const add = Tool.make("add", { parameters: {}, handler: () => Effect.succeed(3) })
const options = { tools: [pay, add] }

/** The records of a session: answers, calls, two that wait, the run behind what was settled, a failure, and one behind that. */
const records = Effect.gen(function*() {
  const opened = yield* Session.open("s")
  let kept: Session.Kept = opened
  for (const content of ["one", "two"]) {
    kept = yield* Session.keep(kept, (session) => Session.reply(session, content, options))
  }
  yield* Session.submit("s", "Pay", { id: "m3" })
  kept = (yield* Session.load("s"))!
  const taken = { ...options, takes: "m3" }
  const asked = yield* Session.keep(kept, (session) => Session.reply(session, "Pay", taken))
  const allowed = yield* Session.keep(asked, (session) => Session.approve(session, "c1"))
  const denied = yield* Session.keep(allowed, (session) => Session.deny(session, "c2", "too much"))
  const paid = yield* Session.keep(denied, (session) => Session.continue(session, null, options))
  const failed = yield* Session.keep(paid, (session) => Session.reply(session, "More", options))
  yield* Session.keep(failed, (session) => Session.reply(Session.recover(session), "Last", options))
  return yield* Stream.runCollect((yield* Session.Store).read("s"))
}).pipe(
  Effect.provide(Script.layer([
    [text("Hel"), text("lo."), finish("stop")],
    [toolCall("a0", "add"), finish("tool_calls")],
    [text("Three."), finish("stop")],
    [text("One moment."), toolCall("c0", "add"), toolCall("c1", "pay"), toolCall("c2", "pay"), finish("tool_calls")],
    [text("Paid."), finish("stop")],
    [text("I am"), streamError("network_error")],
    [text("Bye."), finish("stop")]
  ])),
  Effect.provide(Layer.fresh(Session.Store.layerMemory))
)

/** A store that has the records of a session, and counts those that are read. */
const counting = (entries: ReadonlyArray<Journal.Record>) =>
  Effect.gen(function*() {
    const store = Context.get(yield* Layer.build(Layer.fresh(Session.Store.layerMemory)), Session.Store)
    yield* appendAll(store, "s", entries)
    const read = { records: 0 }
    const counted: Journal.Service = {
      ...store,
      read: (id, after) => Stream.tap(store.read(id, after), () => Effect.sync(() => read.records++))
    }
    return { read, store, layer: Layer.succeed(Session.Store, counted) }
  })

const pageOf = (before: string | undefined, limit: number, publish: Event.PublicOptions = {}) =>
  Effect.gen(function*() {
    const telling = yield* JournalEvents.read("s", publish)
    return yield* RunPages.page("s", telling, { before, limit }, publish)
  })

/** All pages, oldest first. */
const pagesOf = (limit: number) =>
  Effect.gen(function*() {
    const pages: Array<RunPages.Page> = []
    let before: string | undefined
    do {
      const page: RunPages.Page = yield* pageOf(before, limit)
      pages.unshift(page)
      before = page.before
    } while (before !== undefined)
    return pages
  })

/** The runs as a fold of the whole journal tells them. */
const toldBy = (entries: ReadonlyArray<Journal.Entry>) => {
  const telling = new JournalEvents.Telling("s", {})
  const runs = new Map<string, Array<Event.PublicEvent>>()
  for (const entry of entries) {
    for (const { event, runId } of telling.take(entry)) runs.set(runId, [...runs.get(runId) ?? [], event])
  }
  return Array.from(runs)
}

describe("the history of a session", () => {
  it.effect("R-580: pages of any size have the runs of the session as a fold of the whole journal tells them", () =>
    Effect.gen(function*() {
      const whole = yield* records
      for (let cut = 1; cut <= whole.length; cut++) {
        const entries = whole.slice(0, cut)
        const { layer } = yield* counting(entries.map(({ record }) => record))
        const expected = toldBy(entries)
        for (const limit of [1, 2, 3, 100]) {
          const pages = yield* Effect.provide(pagesOf(limit), layer)
          const runs = pages.flatMap((page) => page.runs)
          assert.deepStrictEqual(runs.map(({ events, runId }) => [runId, events]), expected, `${cut}, ${limit}`)
          assert.isTrue(pages.slice(1).every((page) => page.runs.length === limit))
          const said = runs.flatMap(({ message }) => message === undefined ? [] : [message.content])
          assert.deepStrictEqual(said, ["one", "two", "Pay", "More", "Last"].slice(0, said.length))
        }
      }
    }).pipe(Effect.scoped))

  it.effect("R-580: a page names a client's message by its id, any other message by its place, and no message for answers", () =>
    Effect.gen(function*() {
      const { layer } = yield* counting((yield* records).map(({ record }) => record))
      const { runs } = yield* Effect.provide(pageOf(undefined, 100), layer)
      assert.deepStrictEqual(runs.map(({ message }) => message), [
        { id: "message-0", content: "one" },
        { id: "message-2", content: "two" },
        { id: "m3", content: "Pay" },
        undefined,
        { id: "message-12", content: "More" },
        { id: "message-14", content: "Last" }
      ])
      assert.isTrue(runs.every(({ startedAt }) => typeof startedAt === "number"))
    }).pipe(Effect.scoped))

  it.effect("R-581: all pages together read each record once after the journal's fold", () =>
    Effect.gen(function*() {
      const run = (index: number): ReadonlyArray<Journal.Record> => [
        {
          _tag: "RunStarted",
          requestId: `r${index}`,
          operation: "reply",
          startedAt: index,
          messages: [Message.user("Hi")]
        },
        { _tag: "RunEnded", requestId: `r${index}`, haltedReason: "completed" }
      ]
      const opened: Journal.Record = { _tag: "Opened", format: 1, session: Session.make({ id: "s" }) }
      const all = [opened, ...Array.from({ length: 200 }, (_, index) => run(index)).flat()]
      const { layer, read } = yield* counting(all)
      const pages = yield* Effect.provide(
        Effect.andThen(pageOf(undefined, 1), () => {
          read.records = 0
          return pagesOf(10)
        }),
        layer
      )
      assert.strictEqual(pages.length, 20)
      assert.deepStrictEqual(
        pages.flatMap(({ runs }) => runs.map(({ runId }) => runId)),
        Array.from({ length: 200 }, (_, index) => `r${index}`)
      )
      // Each page reads the record behind it, too, and the last record is compared with that of the fold.
      assert.isAtMost(read.records, all.length + 3 * pages.length)
    }).pipe(Effect.scoped))

  it.effect("R-580: a page shows a run that could not start once, as the run that took its message again", () =>
    Effect.gen(function*() {
      const message = Message.user("Hi")
      const start = (requestId: string): Journal.Record => ({
        _tag: "RunStarted",
        requestId,
        operation: "reply",
        startedAt: 1,
        takes: { id: "m1", hash: "h" },
        messages: [message]
      })
      const { layer } = yield* counting([
        { _tag: "Opened", format: 1, session: Session.make({ id: "s" }) },
        { _tag: "MessageSubmitted", id: "m1", message },
        start("r1"),
        { _tag: "RunEnded", requestId: "r1", error: { reason: "x", detail: "y" } },
        start("r2"),
        { _tag: "RunEnded", requestId: "r2", haltedReason: "completed" }
      ])
      for (const limit of [1, 2]) {
        const { before, runs } = yield* Effect.provide(pageOf(undefined, limit), layer)
        assert.deepStrictEqual([runs.map(({ runId }) => runId), before], [["r2"], undefined])
      }
    }).pipe(Effect.scoped))

  it.effect("R-582: a page shows a journal's initial conversation as runs, each after a user message", () =>
    Effect.gen(function*() {
      const thread = Thread.fromMessages([
        Message.user("a"),
        Message.assistant("", [Message.toolCall("c", "add", {})]),
        Message.tool("c", "3"),
        Message.assistant("b"),
        Message.user("c"),
        Message.assistant("d")
      ])
      const { layer, store } = yield* counting([
        { _tag: "Opened", format: 1, session: { ...Session.make({ id: "s" }), thread } },
        { _tag: "RunStarted", requestId: "r1", operation: "reply", startedAt: 1, messages: [Message.user("e")] },
        { _tag: "RunEnded", requestId: "r1", haltedReason: "completed" }
      ])
      const shown = ({ events, message, runId, startedAt }: RunPages.Run) => [
        runId,
        message?.content,
        startedAt,
        events.flatMap((event) =>
          event._tag === "TextCompleted" ? [event.text] : event._tag === "ToolResultEncoded" ? [event.content] : []
        )
      ]
      const all = [
        ["message-0", "a", undefined, ["3", "b"]],
        ["message-4", "c", undefined, ["d"]],
        ["r1", "e", 1, []]
      ]
      for (const limit of [1, 2, 3]) {
        const pages = yield* Effect.provide(pagesOf(limit), layer)
        assert.deepStrictEqual(pages.flatMap(({ runs }) => runs.map(shown)), all)
      }
      // A snapshot by another process, while this one keeps its fold.
      yield* Effect.gen(function*() {
        yield* Session.snapshot((yield* Session.load("s"))!)
        yield* store.truncate("s", yield* store.version("s"))
        const after = yield* pagesOf(1)
        assert.deepStrictEqual(after.flatMap(({ runs }) => runs.map(({ runId }) => runId)), [
          "message-0",
          "message-4",
          "message-6"
        ])
      }).pipe(Effect.provide(layer))
    }).pipe(Effect.scoped))
})

const agents = [Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })]
const at = "/agents/helper/sessions/s1/runs"
const model = Script.layer([[text("Hello"), finish("stop")], [text("Hello"), finish("stop")]])

describe("GET …/runs", () => {
  const asked = (options: Partial<Server.Options> & { readonly store?: Layer.Layer<Session.Store> } = {}) =>
    Effect.map(
      serve(agents, model, { authorize: byToken(), hosts: ["127.0.0.1"], ...options }),
      (site) => (method: string, path: string, body?: unknown, token = "ann") =>
        Effect.map(Effect.promise(() => site.ask(method, path, body, bearer(token))), ({ status, text }) => ({
          status,
          body: JSON.parse(text)
        }))
    )

  it.live("R-583: the response has the session and its runs, with each message under its id", () =>
    Effect.gen(function*() {
      const ask = yield* asked()
      yield* ask("POST", "/agents/helper/sessions/s1/messages?wait=false", { id: "m1", content: "Hi" })
      const isEnded = ({ body }: { readonly body: any }) => body.session?.status === "completed"
      yield* until("the run ends", ask("GET", at), isEnded)
      const { body, status } = yield* ask("GET", at)
      assert.strictEqual(status, 200)
      const { runs, session } = body
      assert.deepStrictEqual(session, {
        title: "Hi",
        next: "nothing",
        status: "completed",
        forks: [],
        allowed: [],
        submitted: [],
        suspensions: []
      })
      assert.deepStrictEqual(runs.map(({ message }: RunPages.Run) => message), [{ id: "m1", content: "Hi" }])
      assert.deepStrictEqual([runs[0].events[0]._tag, runs[0].events.at(-1)._tag], ["RunStarted", "ChatCompleted"])
      assert.notProperty(body, "before")
    }))

  it.live("R-583: the server refuses an unreadable parameter with its name, and creates nothing", () =>
    Effect.gen(function*() {
      const store = Context.get(yield* Layer.build(Layer.fresh(Session.Store.layerMemory)), Session.Store)
      const ask = yield* asked({ store: Layer.succeed(Session.Store, store) })
      const codeOf = (path: string, token?: string) =>
        Effect.map(
          ask("GET", path, undefined, token),
          ({ body, status }) => [status, body.error?.code, body.error?.message]
        )
      assert.deepStrictEqual((yield* codeOf(at)).slice(0, 2), [404, "unknown_session"])
      assert.deepStrictEqual(yield* Stream.runCollect(store.list()), [])
      assert.isUndefined(yield* store.claimOf("ann:s1"))
      yield* ask("POST", "/agents/helper/sessions/s1/messages", { id: "m1", content: "Hi" }).pipe(Effect.ignoreCause)
      const version = yield* store.version("ann:s1")
      for (const limit of ["0", "101", "-1", "1.5", "x", "", "1e2", "9".repeat(400)]) {
        const [status, code, message] = yield* codeOf(`${at}?limit=${limit}`)
        assert.deepStrictEqual([status, code], [400, "invalid_limit"], limit)
        assert.include(message, "1 to 100")
      }
      for (const before of ["x", "", "message-0", "9".repeat(400)]) {
        assert.deepStrictEqual(yield* codeOf(`${at}?before=${before}`), [
          400,
          "invalid_before",
          "before must be the id of a run in this session."
        ])
      }
      assert.deepStrictEqual((yield* codeOf(at, "bob")).slice(0, 2), [404, "unknown_session"])
      assert.strictEqual(yield* store.version("ann:s1"), version)
    }).pipe(Effect.scoped))
})
