/**
 * What a call waits for: the name of the permit, the calls of its run that have it, and the runs elsewhere; in the event,
 * in what is published of it, on the pages' streams, and in `Session.inspect`.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { Chat, Event, Limits, Message, Policy, Session, Tool, ToolRunner } from "heddle"
import { check, Script } from "heddle/testing"
import { AgUi, UiStream } from "heddle/ui"

const { finish, text, toolCall } = Script

const done = [text("done"), finish("stop")]

const second = TestClock.adjust("1 second")

/** A tool whose handler takes so many seconds. */
const work = <const Name extends string>(name: Name, seconds = 10, options: object = {}) =>
  Tool.make(name, {
    parameters: {},
    timeout: "infinity",
    ...options,
    handler: () => Effect.as(Effect.sleep(`${seconds} seconds`), name)
  })

const call = (id: string, name = id) => Message.toolCall(id, name)

/** The waits of the calls, by their ids, once all calls have ended. */
const waitsOf = (
  calls: ReadonlyArray<Message.ToolCall>,
  tools: ReadonlyArray<Tool.Any>,
  options: ToolRunner.Options<any, any> = {}
) =>
  Effect.gen(function*() {
    const running = yield* Effect.forkChild(
      Stream.runCollect(ToolRunner.stream(calls, tools as unknown as [], options))
    )
    yield* TestClock.adjust("10 minutes")
    const events = yield* Fiber.join(running)
    assert.deepStrictEqual(check(events).filter(({ law }) => law !== "frame"), [])
    return waitsIn(events)
  })

const waitsIn = (events: ReadonlyArray<Event.Event>) =>
  Object.fromEntries(events.filter(Event.guards.ToolQueued).map(({ _tag, id, name: _name, ...wait }) => [id, wait]))

const account = { limits: [{ key: "account:ann", permits: 1 }] }

describe("ToolQueued", () => {
  it.effect("O-27: a call that waits for a place names at most three of the calls that hold the places", () =>
    Effect.gen(function*() {
      const calls = ["a", "b", "c", "d", "e"].map((id) => call(id, "work"))
      assert.deepStrictEqual(yield* waitsOf(calls, [work("work")], { maxConcurrency: 4 }), {
        e: { reason: "permit", behind: ["a", "b", "c"] }
      })
      assert.deepStrictEqual(yield* waitsOf(calls.slice(0, 3), [work("work")], { maxConcurrency: 1 }), {
        b: { reason: "permit", behind: ["a"] },
        c: { reason: "permit", behind: ["a"] }
      })
    }))

  it.effect("O-27: an exclusive call names the running calls, and a call behind it names the exclusive call", () =>
    Effect.gen(function*() {
      const tools = [work("work"), work("alone", 10, { concurrency: "exclusive" })]
      const calls = [call("a", "work"), call("x", "alone"), call("b", "work"), call("y", "alone"), call("c", "work")]
      assert.deepStrictEqual(yield* waitsOf(calls, tools, { maxConcurrency: 8 }), {
        x: { reason: "exclusive", behind: ["a"] },
        b: { reason: "exclusive", behind: ["x"] },
        y: { reason: "exclusive", behind: ["a", "x"] },
        c: { reason: "exclusive", behind: ["x", "y"] }
      })
      assert.deepStrictEqual(yield* waitsOf(calls.slice(1, 3), tools, { maxConcurrency: 8 }), {
        b: { reason: "exclusive", behind: ["x"] }
      })
    }))

  it.effect("O-27: a call that waits for a keyed permit names the key and the calls that hold its permits", () =>
    Effect.gen(function*() {
      const tools = [
        work("pay", 10, account),
        work("both", 10, { limits: [{ key: "account:bob", permits: 1 }, { key: "account:ann", permits: 1 }] }),
        work("bob", 30, { limits: [{ key: "account:bob", permits: 2 }] })
      ]
      const calls = [call("p", "pay"), call("q", "pay"), call("r", "bob"), call("s", "bob"), call("t", "bob")]
      assert.deepStrictEqual(yield* waitsOf(calls, tools, { maxConcurrency: 8 }), {
        q: { reason: "key", key: "account:ann", behind: ["p"] },
        t: { reason: "key", key: "account:bob", behind: ["r", "s"] }
      })
      // The names are taken in their order: the first one that is not free is the one that the call waits for.
      assert.deepStrictEqual(yield* waitsOf([call("r", "bob"), call("s", "both")], tools, {}), {
        s: { reason: "key", key: "account:bob", behind: ["r"] }
      })
    }))

  it.effect("O-27: a keyed permit held by another run is elsewhere, and the calls of that run are not named", () =>
    Effect.gen(function*() {
      const tools = [work("pay", 10, account)]
      const other = yield* Effect.forkChild(waitsOf([call("a", "pay")], tools))
      yield* second
      const waits = yield* waitsOf([call("b", "pay"), call("c", "pay")], tools)
      yield* Fiber.join(other)
      assert.deepStrictEqual(waits, {
        b: { reason: "key", key: "account:ann", elsewhere: true },
        c: { reason: "key", key: "account:ann", elsewhere: true }
      })
    }))

  it.effect("O-27: a call that waits for an application permit names holders of its own run, and other holders as elsewhere", () =>
    Effect.gen(function*() {
      const tools = [work("work")]
      const other = yield* Effect.forkChild(waitsOf([call("z", "work")], tools))
      yield* second
      const waits = yield* waitsOf([call("a", "work"), call("b", "work")], tools, { maxConcurrency: 4 })
      yield* Fiber.join(other)
      assert.deepStrictEqual(waits, { b: { reason: "permit", behind: ["a"], elsewhere: true } })
    }).pipe(Effect.provide(Limits.layer({ permits: 2 }))))

  it.effect("O-27: a permit held by code of the caller is elsewhere", () =>
    Effect.gen(function*() {
      const permits = Semaphore.makeUnsafe(1)
      const held = yield* Effect.forkChild(permits.withPermit(Effect.sleep("5 seconds")))
      yield* Effect.yieldNow
      const waits = yield* Effect.provideService(waitsOf([call("a", "work")], [work("work")]), Limits.Permits, permits)
      yield* Fiber.join(held)
      assert.deepStrictEqual(waits, { a: { reason: "permit", elsewhere: true } })
    }))

  it.effect("O-27: a place held by a nested run is elsewhere for the outer run, and the reverse", () =>
    Effect.gen(function*() {
      const waits = (pause: number) =>
        Effect.gen(function*() {
          const inner: Array<Event.Event> = []
          const outer = Tool.make("outer", {
            parameters: {},
            timeout: "infinity",
            handler: () =>
              ToolRunner.stream([call("n1", "work"), call("n2", "work")], [work("work")]).pipe(
                Stream.runForEach((event) => Effect.sync(() => inner.push(event))),
                Effect.delay(pause)
              )
          })
          const calls = [call("o", "outer"), call("p", "work"), call("q", "work")]
          const own = yield* waitsOf(calls, [outer, work("work")], { maxConcurrency: 8 })
          return [own, waitsIn(inner)]
        }).pipe(Effect.provide(Limits.layer({ permits: 2 })))
      const elsewhere = { reason: "permit", elsewhere: true } as const
      // The outer handler lends its permit at once: the run inside it takes both.
      assert.deepStrictEqual(yield* waits(0), [{ p: elsewhere, q: elsewhere }, {}])
      // It lends its permit to the run inside it while `q` waits, which was first.
      assert.deepStrictEqual(yield* waits(1_000), [
        { q: { reason: "permit", behind: ["o", "p"] } },
        { n1: elsewhere, n2: elsewhere }
      ])
    }))

  it.effect("O-27: a handler does not hold a lent keyed permit, and holds it again after its nested run", () =>
    Effect.gen(function*() {
      const lent = Latch.makeUnsafe(false)
      const outer = Tool.make("outer", {
        parameters: {},
        timeout: "infinity",
        ...account,
        handler: () =>
          Effect.gen(function*() {
            yield* ToolRunner.run([call("n", "inner")], [work("inner", 5)])
            yield* lent.open
            yield* Effect.sleep("20 seconds")
          })
      })
      const first = yield* Effect.forkChild(ToolRunner.run([call("o", "outer")], [outer]))
      yield* second
      // The key is free as long as the run inside the handler is alive.
      assert.deepStrictEqual(
        waitsIn(yield* Stream.runCollect(ToolRunner.stream([call("k", "k")], [work("k", 0, account)]))),
        {}
      )
      yield* TestClock.adjust("5 seconds")
      yield* lent.await
      assert.deepStrictEqual(yield* waitsOf([call("k", "k")], [work("k", 0, account)]), {
        k: { reason: "key", key: "account:ann", elsewhere: true }
      })
      yield* Fiber.join(first)
    }))
})

describe("a published wait", () => {
  const wait = {
    _tag: "ToolQueued",
    id: "c",
    name: "work",
    reason: "key",
    key: "account:ann",
    behind: ["a", "b"],
    elsewhere: true
  } as const

  it("O-27: a wait survives the wire, where each field has its type", () => {
    assert.deepStrictEqual(Event.fromWire(JSON.parse(JSON.stringify(Event.toWire(wait)))), wait)
    for (const wrong of [{ key: 1 }, { behind: "a" }, { behind: [1] }, { elsewhere: "yes" }]) {
      assert.throws(() => Event.fromWire({ ...wait, ...wrong }))
    }
  })

  it("O-27: a wait is published as far as its call: the key with the arguments, and no id of an unpublished call", () => {
    const { elsewhere, id, name, reason } = wait
    assert.deepStrictEqual(Event.toPublic(wait), wait)
    assert.deepStrictEqual(Event.toPublic(wait, { publish: "names" }), {
      _tag: "ToolQueued",
      id,
      name,
      reason,
      behind: ["a", "b"],
      elsewhere
    })
    assert.isUndefined(Event.toPublic(wait, { publish: "none" }))
    const publish = (tool: string) => tool === "secret" ? "none" : "all"
    const calls = new Map()
    for (const [id, name] of [["a", "secret"], ["b", "work"]] as const) {
      Event.toPublic({ _tag: "ToolCallStarted", id, name }, { publish, calls })
    }
    assert.deepStrictEqual(Event.toPublic(wait, { publish, calls }), { ...wait, behind: ["b"] })
    const progress: Event.Event = { _tag: "ToolProgress", id: "o", name: "outer", progress: wait }
    const nested = (extent: "all" | "names") => Event.toPublic(progress, { publish: extent, calls: new Map() })
    assert.deepStrictEqual((nested("all") as { nested: unknown }).nested, wait)
    assert.notProperty((nested("names") as { nested: object }).nested, "key")
    const hostile = { ...wait, key: { a: 1 }, behind: [1, "a", null], elsewhere: "x" } as unknown as Event.Event
    assert.deepStrictEqual(Event.toPublic(hostile), { _tag: "ToolQueued", id, name, reason, behind: ["a"] })
  })

  it("O-27: a wait reaches the pages of the UI stream and of AG-UI", () => {
    const shown = {
      name: "work",
      state: "queued",
      reason: "key",
      key: "account:ann",
      behind: ["a", "b"],
      elsewhere: true
    }
    const ui = UiStream.make({ messageId: "m" })
    const chunks = [{ _tag: "MessageStarted" } as const, wait].flatMap((event) => [...ui.push(event)])
    assert.deepStrictEqual(chunks.find(({ type }) => type === "data-heddle-call"), {
      type: "data-heddle-call",
      id: "c",
      data: { id: "c", ...shown },
      transient: true
    } as never)
    const agUi = AgUi.make({ threadId: "t", runId: "r" })
    const sent = [{ _tag: "MessageStarted" } as const, wait].flatMap((event) => [...agUi.push(event)])
    assert.include(JSON.stringify(sent), JSON.stringify(shown).slice(1, -1))
  })
})

/** An operation that sends a message. */
const reply = (content: string, options: Session.ReplyOptions<[]>) => (session: Session.Session) =>
  Session.reply(session, content, options)

describe("Session.inspect", () => {
  const pay = work("pay", 60, account)
  const asks = [toolCall("a", "pay"), toolCall("b", "pay"), finish("tool_calls")]

  it.effect("O-27: Session.inspect says what a call waits for and since when, until the call starts or ends", () =>
    Effect.gen(function*() {
      const waits = Effect.map(
        Session.inspect("s"),
        (found) => found?.calls.map(({ state, toolCall, waitsFor }) => [toolCall.id, state, waitsFor])
      )
      const running = yield* Effect.forkChild(
        Effect.flatMap(Session.open("s"), (kept) => Session.keep(kept, reply("go", { tools: [pay] as unknown as [] })))
      )
      yield* TestClock.adjust("1500 millis")
      const waiting: Session.WaitsFor = { reason: "key", key: "account:ann", behind: ["a"], since: 0 }
      assert.deepStrictEqual(yield* waits, [["a", "Started", undefined], ["b", "Asked", waiting]])
      yield* TestClock.adjust("1 minute")
      assert.deepStrictEqual((yield* waits)?.map(([id, state, waitsFor]) => [id, state, waitsFor]), [
        ["a", "Answered", undefined],
        ["b", "Started", undefined]
      ])
      yield* TestClock.adjust("1 minute")
      yield* Fiber.join(running)
      assert.deepStrictEqual(yield* waits, [])
    }).pipe(Effect.provide([Script.layer([asks, done]), Session.Store.layerMemory])))

  it.effect("O-27: Session.inspect names the current wait in each turn and each run of a session", () =>
    Effect.gen(function*() {
      const tools = [work("work", 60), pay]
      const asking = (ids: ReadonlyArray<string>) => [
        ...ids.map((id) => toolCall(id, id.startsWith("w") ? "work" : "pay")),
        finish("tool_calls")
      ]
      const waits = Effect.map(
        Session.inspect("s"),
        (found) =>
          found?.calls.flatMap(({ toolCall, waitsFor }) => waitsFor === undefined ? [] : [[toolCall.id, waitsFor]])
      )
      // The bound keeps `p2` out first, and then the key does.
      const policy = { ...Policy.standard, callFacts: "hidden" } as const
      const options = { tools: tools as unknown as [], maxConcurrency: 2, policy }
      let kept = yield* Session.open("s")
      let begins = 0
      const script = Script.layer([
        asking(["w1", "p1", "p2"]),
        asking(["w3", "p3", "p4"]),
        done,
        asking(["w5", "p5", "p6"]),
        done
      ])
      yield* Effect.gen(function*() {
        const turn = Effect.fnUntraced(function*(shared: string, first: string, second: string) {
          yield* TestClock.adjust(0)
          assert.deepStrictEqual(yield* waits, [[second, { reason: "permit", behind: [shared, first], since: begins }]])
          yield* TestClock.adjust("1 minute")
          begins += 60_000
          const left = yield* waits
          // Both of the first calls have ended: the last one runs.
          assert.deepStrictEqual(left, [])
          yield* TestClock.adjust("1 minute")
          begins += 60_000
        })
        const first = yield* Effect.forkChild(Session.keep(kept, reply("go", options)))
        yield* turn("w1", "p1", "p2")
        yield* turn("w3", "p3", "p4")
        kept = yield* Fiber.join(first)
        const again = yield* Effect.forkChild(Session.keep(kept, reply("more", options)))
        yield* turn("w5", "p5", "p6")
        yield* Fiber.join(again)
      }).pipe(Effect.provide(script))
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("O-27: Session.inspect through another store, as in another process, shows no waits", () =>
    Effect.gen(function*() {
      const running = yield* Effect.forkChild(
        Effect.flatMap(Session.open("s"), (kept) => Session.keep(kept, reply("go", { tools: [pay] as unknown as [] })))
      )
      yield* second
      const store = yield* Session.Store
      const found = yield* Effect.provideService(Session.inspect("s"), Session.Store, { ...store })
      assert.deepStrictEqual(found?.calls.map((call) => "waitsFor" in call), [false, false])
      yield* Fiber.interrupt(running)
      const left = yield* Session.inspect("s")
      assert.deepStrictEqual(left?.calls.map((call) => "waitsFor" in call), [false, false])
    }).pipe(Effect.provide([Script.layer([asks, done]), Session.Store.layerMemory])))

  it.effect("O-27: Session.inspect of a nested run shows the waits of that run", () =>
    Effect.gen(function*() {
      const agent = Tool.make("agent", {
        parameters: {},
        timeout: "infinity",
        handler: () => Effect.map(Chat.run("inner", { tools: [pay] }), ({ steps }) => steps.length)
      })
      const running = yield* Effect.forkChild(
        Effect.flatMap(
          Session.open("s"),
          (kept) => Session.keep(kept, reply("go", { tools: [agent] as unknown as [] }))
        )
      )
      yield* second
      const ids = yield* Effect.flatMap(Session.Store, (store) => Stream.runCollect(store.list({ prefix: "s/" })))
      const [nested] = ids
      const found = yield* Session.inspect(nested!.id)
      assert.deepStrictEqual(found?.calls.map(({ toolCall, waitsFor }) => [toolCall.id, waitsFor]), [
        ["a", undefined],
        ["b", { reason: "key", key: "account:ann", behind: ["a"], since: 0 }]
      ])
      yield* TestClock.adjust("5 minutes")
      yield* Fiber.join(running)
    }).pipe(Effect.provide([
      Script.layer([[toolCall("o", "agent"), finish("tool_calls")], asks, done, done]),
      Session.Store.layerMemory
    ])))
})
