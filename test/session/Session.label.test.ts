/**
 * The labels of a session, which a person gives it: in lists at once, also beside a run, kept by snapshots, and refused
 * where a title is none.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import * as Struct from "effect/Struct"
import { Chat, Journal, Message, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as States from "../../src/internal/session/state.ts"
import { stores } from "../support/edges.ts"
import { journalOf } from "../support/survivor.ts"
import { until } from "../support/until.ts"

const { finish, text, toolCall } = Script

const listed = (id: string) =>
  Effect.map(Stream.runCollect(Session.list()), (all) => {
    const { pinned, title } = all.find((one) => one.id === id) ?? {}
    return { title, pinned }
  })

/** Requires that the store lists what the fold of the journal says, and that the journal has no problem. */
const requireWhole = (id: string) =>
  Effect.gen(function*() {
    const loaded = yield* Session.load(id)
    const all = yield* Stream.runCollect(Session.list())
    const found = all.find((one) => one.id === id)
    assert.deepStrictEqual(
      found && Struct.omit(found, ["claim", "id", "since", "version"]),
      loaded && States.summaryOf(loaded.state)
    )
    assert.deepStrictEqual(Journal.check(yield* journalOf(id)), [])
  })

const said = (id: string, content: string, script: Script.Input = [[text("Hello"), finish("stop")]], options = {}) =>
  Effect.flatMap(
    Session.open(id),
    (kept) =>
      Session.keep(kept, (session) => Session.reply(Session.recover(session), content, options)).pipe(
        Effect.provide(Script.layer(script))
      )
  )

describe("the labels of a session", () => {
  for (const [name, layer] of Object.entries(stores)) {
    it.live(`W-33: labels are listed as soon as they are given, each by itself, ${name}`, () =>
      Effect.gen(function*() {
        yield* said("s", "Where does it rain?")
        const since = (yield* Stream.runCollect(Session.list()))[0]?.since
        const first = yield* Session.label("s", { title: "  Rain ", by: "ann" })
        assert.deepInclude(first, { title: "Rain", pinned: false })
        assert.deepStrictEqual(yield* listed("s"), { title: "Rain", pinned: undefined })
        assert.deepInclude(yield* Session.label("s", { pinned: true }), { title: "Rain", pinned: true })
        assert.deepStrictEqual(yield* listed("s"), { title: "Rain", pinned: true })
        yield* requireWhole("s")
        // A message does not change them, and neither does a label the time since which nothing is left to do.
        assert.strictEqual((yield* Stream.runCollect(Session.list()))[0]?.since, since)
        yield* Session.submit("s", "Now?")
        assert.deepStrictEqual(yield* listed("s"), { title: "Rain", pinned: true })
        yield* requireWhole("s")
        assert.deepInclude(yield* Session.label("s", { title: null, pinned: false }), {
          title: "Where does it rain?",
          pinned: false
        })
        assert.deepStrictEqual(yield* listed("s"), { title: "Where does it rain?", pinned: undefined })
        yield* requireWhole("s")
        const changes = (yield* journalOf("s")).filter(({ _tag }) => _tag === "Labelled")
        assert.deepStrictEqual(
          changes.map((change) => Struct.omit(change as Record<string, unknown>, ["time"])),
          [
            { _tag: "Labelled", title: "Rain", by: "ann" },
            { _tag: "Labelled", pinned: true },
            { _tag: "Labelled", title: null, pinned: false }
          ]
        )
      }).pipe(Effect.provide(layer)))

    it.live(`W-33: labels given after a session was read stay over its recovery and its snapshots, ${name}`, () =>
      Effect.gen(function*() {
        const bad = Tool.make("bad", { parameters: {}, onToolError: "halt", handler: () => Effect.die("no") })
        yield* said("s", "Hi", [[toolCall("c0", "bad"), finish("tool_calls")]], { tools: [bad] })
        yield* Session.label("s", { title: "Kept", pinned: true })
        const failed = yield* Session.open("s")
        // Another program labels it after it was read: the record in whose place the session is recovered has that.
        yield* Session.label("s", { title: "Changed" })
        const again = yield* Session.keep(
          failed,
          (session) => Session.reply(Session.recover(session), "Again")
        ).pipe(Effect.provide(Script.layer([[text("Done"), finish("stop")]])))
        assert.strictEqual(again.session.status, "completed")
        const opened = (yield* journalOf("s")).filter(({ _tag }) => _tag === "Opened")
        assert.lengthOf(opened, 2)
        assert.deepStrictEqual(yield* listed("s"), { title: "Changed", pinned: true })
        yield* requireWhole("s")
        const loaded = yield* Session.open("s")
        yield* Session.snapshot(loaded)
        assert.deepStrictEqual((yield* journalOf("s")).map(({ _tag }) => _tag), ["Opened"])
        assert.deepStrictEqual(yield* listed("s"), { title: "Changed", pinned: true })
        yield* requireWhole("s")
        yield* Session.label("s", { title: null })
        assert.deepStrictEqual(yield* listed("s"), { title: "Hi", pinned: true })
        yield* Session.snapshot(yield* Session.open("s"))
        assert.deepStrictEqual(yield* listed("s"), { title: "Hi", pinned: true })
        yield* requireWhole("s")
      }).pipe(Effect.provide(layer)))

    it.live(`W-33: labels change beside a run, which continues undisturbed, ${name}`, () =>
      Effect.gen(function*() {
        const began = Deferred.makeUnsafe<void>()
        const gate = Deferred.makeUnsafe<void>()
        const tool = Tool.make("wait", {
          parameters: {},
          handler: () => Effect.as(Effect.andThen(Deferred.succeed(began, undefined), Deferred.await(gate)), "waited")
        })
        const store = yield* Session.Store
        const looks: Array<number> = []
        const watched: Journal.Service = {
          ...store,
          // Another record is there each time: the owner reads what stands behind those that it knows.
          version: (id) => Effect.map(store.version(id), (version) => version + 1),
          read: (id, after = 0) => Stream.suspend(() => (looks.push(after), store.read(id, after)))
        }
        const claimed = yield* Session.claim("s", { poll: 10 })
        const running = yield* Effect.forkChild(
          Session.keep(claimed, (session) => Session.reply(session, "Go", { tools: [tool] })).pipe(
            Effect.provide(Script.layer([
              [toolCall("c0", "wait"), finish("tool_calls")],
              [text("Done"), finish("stop")]
            ])),
            Effect.provideService(Session.Store, watched)
          )
        )
        yield* Deferred.await(began)
        const { accepted, title } = (yield* Session.label("s", { title: "Under way", pinned: true }))!
        assert.strictEqual(title, "Under way")
        assert.deepStrictEqual(yield* listed("s"), { title: "Under way", pinned: true })
        // The owner finds the change while it writes nothing, and looks for more behind it.
        yield* until("the looks of the owner", Effect.sync(() => looks.at(-1)), (after = 0) => after >= accepted)
        yield* Session.label("s", { title: "Still under way" })
        yield* Deferred.succeed(gate, undefined)
        const ended = yield* Fiber.join(running)
        assert.strictEqual(ended.session.status, "completed")
        assert.deepStrictEqual(yield* listed("s"), { title: "Still under way", pinned: true })
        yield* requireWhole("s")
        const tags = (yield* journalOf("s")).map(({ _tag }) => _tag)
        assert.isBelow(tags.lastIndexOf("Labelled"), tags.indexOf("RunEnded"))
        assert.isAbove(tags.indexOf("Labelled"), tags.indexOf("CallStarted"))
      }).pipe(Effect.scoped, Effect.provide(layer)))

    it.live(`W-33: each label of many concurrent writers counts, ${name}`, () =>
      Effect.gen(function*() {
        yield* Session.open("s")
        const titles = Array.from({ length: 20 }, (_, index) => `Title ${index}`)
        yield* Effect.all([
          ...titles.map((title) => Session.label("s", { title })),
          Session.label("s", { pinned: true }),
          ...titles.map((title) => Session.submit("s", title, { check: () => Effect.void }))
        ], { concurrency: "unbounded" })
        const { pinned, title = "" } = yield* listed("s")
        assert.isTrue(pinned)
        assert.include(titles, title)
        const tags = (yield* journalOf("s")).map(({ _tag }) => _tag)
        assert.lengthOf(tags.filter((tag) => tag === "Labelled"), 21)
        yield* requireWhole("s")
      }).pipe(Effect.provide(layer)))
  }

  it.effect("W-33: labels that the session already has are not written again, and no label writes nothing", () =>
    Effect.gen(function*() {
      yield* Session.open("s")
      const first = yield* Session.label("s", { title: "Rain", pinned: true })
      const checked: Array<number> = []
      const check = ({ version }: Session.Kept) => Effect.sync(() => checked.push(version))
      for (const labels of [{ title: "Rain" }, { title: " Rain " }, { pinned: true }, {}]) {
        assert.deepStrictEqual(yield* Session.label("s", { ...labels, check }), first)
      }
      assert.deepStrictEqual(checked, [])
      yield* Session.label("s", { title: "Snow", check })
      assert.deepStrictEqual(checked, [first!.accepted])
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("W-33: a label is checked again after a faster writer, and may then be refused", () =>
    Effect.gen(function*() {
      const known = yield* Session.open("s")
      yield* Session.submit("s", "Hi", { check: () => Effect.void })
      const seen: Array<number> = []
      const check = ({ submitted, version }: Session.Kept) => {
        seen.push(version)
        return submitted === undefined ? Effect.void : Effect.fail("a message waits" as const)
      }
      assert.strictEqual(yield* Effect.flip(Session.label("s", { title: "Rain", known, check })), "a message waits")
      assert.deepStrictEqual(seen, [1, 2])
      assert.deepStrictEqual(yield* listed("s"), { title: "Hi", pinned: undefined })
      assert.deepInclude(yield* Session.label("s", { title: "Rain", known }), { accepted: 3, title: "Rain" })
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("W-33: a branch has its session's current title, and not the pin", () =>
    Effect.gen(function*() {
      yield* Session.submit("s", "Is it raining?", { id: "m1" })
      const kept = yield* Session.open("s")
      yield* Session.keep(kept, (session) => Session.reply(session, "Is it raining?", { takes: "m1" })).pipe(
        Effect.provide(Script.layer([[text("It rains."), finish("stop")]]))
      )
      const fork = (id: string) => Session.fork("s", { id, before: "m1", message: { content: "Is it windy?" } })
      yield* fork("plain")
      assert.deepStrictEqual(yield* listed("plain"), { title: "Is it windy?", pinned: undefined })
      yield* Session.label("s", { title: "Weather", pinned: true })
      yield* fork("named")
      assert.deepStrictEqual(yield* listed("named"), { title: "Weather", pinned: undefined })
      yield* requireWhole("named")
      yield* Session.label("named", { title: null })
      assert.deepStrictEqual(yield* listed("named"), { title: "Is it windy?", pinned: undefined })
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("W-33: labels of a missing or deleted session write nothing", () =>
    Effect.gen(function*() {
      assert.isUndefined(yield* Session.label("s", { title: "Rain" }))
      const known = yield* Session.open("s")
      yield* Session.delete("s")
      assert.isUndefined(yield* Session.label("s", { title: "Rain", known }))
      assert.deepStrictEqual(yield* journalOf("s"), [])
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("W-33: labels of a nested run are refused", () =>
    Effect.gen(function*() {
      const research = Tool.fromChat("research", { parameters: {}, chat: () => Chat.stream("Find out") })
      yield* said("s", "Go", [
        [toolCall("c0", "research"), finish("tool_calls")],
        [text("Found"), finish("stop")],
        [text("Done"), finish("stop")]
      ], { tools: [research] })
      const [nested] = (yield* Stream.runCollect(Session.list({ prefix: "s/" }))).map(({ id }) => id)
      const error = yield* Effect.flip(Session.label(nested!, { title: "Rain" }))
      assert.deepInclude(error, { _tag: "SessionError", reason: "nested" })
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})

/** Texts that are no title, by what is wrong with them. */
const wrong: Readonly<Record<string, string>> = {
  "no characters": "",
  "only white space": " \u00a0\u2003",
  "only invisible characters": "\u200b\u2060\ufeff\u3164",
  "121 characters": "x".repeat(121),
  "a million characters": "x".repeat(1_000_000),
  "two lines": "Rain\nand snow",
  "a line separator": "Rain\u2028and snow",
  "a tab": "Rain\tsnow",
  "an escape": "\u001b[31mRain",
  "a null": "Rain\u0000",
  "a C1 control": "Rain\u0085",
  "reversed text": "Rain\u202ewons",
  "an isolate": "\u2066Rain\u2069",
  "half a character": "Rain \ud83d",
  "the other half of a character": "\ude00 Rain"
}

describe("the titles of sessions", () => {
  it.effect.each(Object.entries(wrong))(
    "W-33: a title with %s is refused, and nothing is written",
    ([, title]) =>
      Effect.gen(function*() {
        yield* Session.open("s")
        const error = yield* Effect.flip(Session.label("s", { title, pinned: true }))
        assert.deepInclude(error, { _tag: "SessionError", reason: "invalid_title" })
        assert.match(error.message, /title must be one line of 1 to 120 characters/)
        assert.lengthOf(yield* journalOf("s"), 1)
      }).pipe(Effect.provide(Session.Store.layerMemory))
  )

  it.effect("W-33: a title in any language, also with characters of several code points, is accepted", () =>
    Effect.gen(function*() {
      yield* Session.open("s")
      const titles = [
        "x".repeat(120),
        "😀".repeat(60),
        "مطر في جدة",
        "👨‍👩‍👧 trip",
        "e\u0301te\u0301",
        "__proto__",
        "<b>&amp;"
      ]
      for (const title of titles) {
        assert.strictEqual((yield* Session.label("s", { title }))?.title, title)
        assert.deepStrictEqual(yield* listed("s"), { title, pinned: undefined })
      }
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it("O-11: an invalid option of Session.label is named", () => {
    const label = (options: object) => () =>
      Effect.runSync(Session.label("s", options as never) as Effect.Effect<never>)
    assert.throws(label({ title: 1 }), /title/)
    assert.throws(label({ pinned: "yes" }), /pinned/)
    assert.throws(label({ titel: "Rain" }), /titel/)
  })

  it.effect("W-33: a label survives the text of its record, and the fold has the label", () =>
    Effect.gen(function*() {
      const change: Journal.Record = { _tag: "Labelled", title: null, pinned: true, time: 5, by: "ann" }
      const [line = ""] = yield* Journal.toTexts("s", 1, [change])
      assert.deepStrictEqual(yield* Journal.fromText("s", line, 2), change)
      const opened: Journal.Record = {
        _tag: "Opened",
        format: 1,
        session: { ...Session.make({ id: "s" }), thread: { messages: [Message.user("Hi")], metadata: {} } },
        labels: { title: "Rain", pinned: true }
      }
      const fold = Journal.fold("s")
      fold.apply({ version: 1, record: opened })
      assert.deepInclude(Journal.summaryOf(fold.kept), { title: "Rain", pinned: true })
      fold.apply({ version: 2, record: change })
      assert.deepInclude(Journal.summaryOf(fold.kept), { title: "Hi", pinned: true })
    }))
})
