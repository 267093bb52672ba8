/**
 * Commands and feeds of sessions on a cluster, in one process and in memory: what a command comes to, that it is carried out
 * once, and what a reader of the feed sees. On the live clock, since the loops of the cluster sleep between their looks.
 */
import { assert, describe, it } from "@effect/vitest"
import * as MessageStorage from "effect/cluster/MessageStorage"
import * as TestRunner from "effect/cluster/TestRunner"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { type Chat, Journal, Message, Session, Tool } from "heddle"
import { Cluster, SessionClient } from "heddle/cluster"
import { Script } from "heddle/testing"
import { ledger } from "../durable/support/ledger.ts"
import { until } from "../support/until.ts"

ledger()

const { finish, text, toolCall } = Script

const said = (words: string) => [text(words), finish("stop")]
const called = (name: string, args: Message.ToolCall["arguments"] = {}) => [
  toolCall("c0", name, args),
  finish("tool_calls")
]

/** A cluster of one process. Its store and its messages can be read beside it. */
const cluster = <const T extends ReadonlyArray<Tool.Any> = []>(
  script: ReadonlyArray<ReadonlyArray<Script.Entry>>,
  run: Chat.Options<T, never, never, never, never> = {}
) =>
  Layer.mergeAll(Cluster.layer({ run: () => run }), SessionClient.layer).pipe(
    Layer.provide(Script.layer({ scripts: script })),
    Layer.provideMerge(Session.Store.layerMemory),
    Layer.provideMerge(TestRunner.layer)
  )

const client = SessionClient.SessionClient

const messages = (id: string) =>
  Effect.map(Session.load(id), (loaded) => loaded?.session.thread.messages.map(Message.text))

/** A tool that counts its starts and waits for a latch. */
const gated = () => {
  const state = { starts: 0 }
  const started = Latch.makeUnsafe()
  const gate = Latch.makeUnsafe()
  const tool = Tool.make("work", {
    parameters: {},
    handler: () =>
      Effect.suspend(() => {
        state.starts++
        return Effect.as(Effect.andThen(started.open, gate.await), "worked")
      })
  })
  return { state, started, gate, tool }
}

describe("commands of a session client", () => {
  it.live("a reply begins the session and reports its state", () =>
    Effect.gen(function*() {
      const { reply } = yield* client
      const report = yield* reply("ann", "Hi")
      const loaded = yield* Session.load("ann")
      assert.deepStrictEqual(report, {
        session: "ann",
        version: loaded!.version,
        status: "completed",
        suspensions: [],
        outputText: "Hello"
      })
      assert.deepStrictEqual(yield* messages("ann"), ["Hi", "Hello"])
    }).pipe(Effect.provide(cluster([said("Hello")]))))

  it.live("a command sent again, at once or later, is carried out once and has one answer", () => {
    const { gate, started, state, tool } = gated()
    return Effect.gen(function*() {
      const { reply } = yield* client
      const options = { command: "order-7" }
      const first = yield* Effect.forkChild(reply("ann", "Work", options))
      yield* started.await
      const second = yield* Effect.forkChild(reply("ann", "Work", options))
      yield* gate.open
      const reports = [yield* Fiber.join(first), yield* Fiber.join(second), yield* reply("ann", "Work", options)]
      assert.deepStrictEqual(reports.map(({ outputText }) => outputText), ["Done", "Done", "Done"])
      assert.strictEqual(state.starts, 1)
      assert.strictEqual((yield* MessageStorage.MemoryDriver).requests.size, 1)
      assert.deepStrictEqual(yield* messages("ann"), ["Work", "", "worked", "Done"])
    }).pipe(Effect.provide(cluster([called("work"), said("Done")], { tools: [tool] })))
  })

  it.live("commands of one session are carried out in order, and commands of two sessions concurrently", () => {
    const { gate, started, tool } = gated()
    const script = [called("work"), said("Other"), said("First"), said("Second")]
    return Effect.gen(function*() {
      const { reply } = yield* client
      const first = yield* Effect.forkChild(reply("ann", "Work"))
      yield* started.await
      const second = yield* Effect.forkChild(reply("ann", "And then"))
      assert.strictEqual((yield* reply("bob", "Hi")).outputText, "Other")
      yield* gate.open
      assert.strictEqual((yield* Fiber.join(first)).outputText, "First")
      assert.strictEqual((yield* Fiber.join(second)).outputText, "Second")
      assert.deepStrictEqual(yield* messages("ann"), ["Work", "", "worked", "First", "And then", "Second"])
    }).pipe(Effect.provide(cluster(script, { tools: [tool] })))
  })

  it.live("a caller that leaves does not stop the run", () => {
    const { gate, started, tool } = gated()
    return Effect.gen(function*() {
      const { reply } = yield* client
      const left = yield* Effect.forkChild(reply("ann", "Work", { command: "left" }))
      yield* started.await
      yield* Fiber.interrupt(left)
      yield* gate.open
      assert.strictEqual((yield* reply("ann", "Work", { command: "left" })).outputText, "Done")
    }).pipe(Effect.provide(cluster([called("work"), said("Done")], { tools: [tool] })))
  })

  it.live("D-25: a stop is in the journal at once, and reports the calls' outcomes at the end of the run", () => {
    const { started, tool } = gated()
    return Effect.gen(function*() {
      const { reply, stop } = yield* client
      const report = yield* Effect.forkChild(reply("ann", "Work"))
      yield* started.await
      const { accepted, ended } = yield* stop("ann")
      const records = yield* Stream.runCollect(Stream.unwrap(Effect.map(Session.Store, (store) => store.read("ann"))))
      assert.strictEqual(records[accepted - 1]?.record._tag, "StopRequested")
      assert.deepStrictEqual(yield* ended, { stopped: ["c0"], ended: [], refused: [], unknown: [] })
      assert.strictEqual((yield* Fiber.join(report)).status, "stopped")
      const idle = yield* stop("ann")
      assert.deepStrictEqual(yield* idle.ended, { stopped: [], ended: [], refused: [], unknown: [] })
      assert.strictEqual((yield* reply("ann", "Hi")).outputText, "Hello")
    }).pipe(Effect.provide(cluster([called("work"), said("Hello")], { tools: [tool] })))
  })

  it.live("G75, G77, G98: stopping one call lets the run continue, and stopping an unknown call returns no request id", () => {
    const { started, tool } = gated()
    return Effect.gen(function*() {
      const { reply, stop } = yield* client
      const report = yield* Effect.forkChild(reply("ann", "Work"))
      yield* started.await
      const { id: unknown } = yield* stop("ann", { call: "c9" })
      assert.isUndefined(unknown)
      const { accepted, ended } = yield* stop("ann", { call: "c0", by: "bob" })
      const records = yield* Stream.runCollect(Stream.unwrap(Effect.map(Session.Store, (store) => store.read("ann"))))
      assert.deepInclude(records[accepted - 1]?.record, { _tag: "StopRequested", call: "c0", by: "bob" })
      assert.deepStrictEqual(yield* ended, { stopped: ["c0"], ended: [], refused: [], unknown: [] })
      assert.strictEqual((yield* Fiber.join(report)).outputText, "Hello")
    }).pipe(Effect.provide(cluster([called("work"), said("Hello")], { tools: [tool] })))
  })

  it.live("G45, G49: a submitted message goes into the active run or begins a run, and another message is withdrawn", () => {
    const { gate, started, tool } = gated()
    return Effect.gen(function*() {
      const { reply, submit, withdraw } = yield* client
      const running = yield* Effect.forkChild(reply("ann", "Hi"))
      yield* started.await
      const { id } = yield* submit("ann", "not that", { id: "m1", mode: "steer" })
      assert.strictEqual(id, "m1")
      yield* submit("ann", "nor that", { id: "m2", mode: "follow" })
      assert.isTrue(yield* withdraw("ann", "m2"))
      assert.isFalse(yield* withdraw("ann", "m2"))
      yield* gate.open
      assert.strictEqual((yield* Fiber.join(running)).outputText, "Done")
      assert.deepStrictEqual(yield* messages("ann"), ["Hi", "", "worked", "not that", "Done"])
      const kept = yield* Session.load("ann")
      assert.strictEqual(Session.receipt(kept!, "m1")?.became, "delivered")
      assert.strictEqual(Session.receipt(kept!, "m2")?.became, "withdrawn")
      yield* submit("ann", "And now?", { id: "m3", mode: "steer" })
      const became = Effect.map(Session.load("ann"), (kept) => Session.receipt(kept!, "m3")?.became)
      yield* until("the third message", became, (became) => became === "completed")
      assert.deepStrictEqual((yield* messages("ann"))?.slice(-2), ["And now?", "Now"])
    }).pipe(Effect.provide(cluster([called("work"), said("Done"), said("Now")], { tools: [tool] })))
  })

  it.live("questions are answered, and approvals given and denied, by call id", () => {
    const tools = [
      Tool.make("book", {
        parameters: {},
        handler: () => Effect.succeed(Tool.askUser("How many seats?", { answer: Schema.Int }))
      }),
      Tool.make("pay", {
        parameters: { amount: Schema.Finite },
        approval: true,
        handler: ({ amount }) => Effect.succeed(`paid ${amount}`)
      })
    ]
    const script = [
      called("book"),
      said("Booked"),
      called("pay", { amount: 5 }),
      said("Paid"),
      called("pay", { amount: 7 }),
      said("Not")
    ]
    return Effect.gen(function*() {
      const { answer, approve, deny, reply } = yield* client
      const asked = yield* reply("ann", "Book")
      assert.deepStrictEqual([asked.status, asked.suspensions[0]?.question], ["awaiting_user", "How many seats?"])
      // The question is the text of the tool, and not of the model.
      assert.strictEqual(asked.outputText, "")
      assert.strictEqual((yield* answer("ann", "c0", 4)).outputText, "Booked")

      const waiting = yield* reply("bob", "Pay")
      assert.strictEqual(waiting.status, "awaiting_tools")
      const refused = yield* Effect.flip(approve("bob", "c0", { arguments: { amount: "six" } }))
      assert.strictEqual(refused._tag === "CommandError" && refused.reason, "invalid_arguments")
      assert.include(refused.message, "arguments.amount: Expected a number")
      assert.strictEqual((yield* Session.load("bob"))?.session.status, "awaiting_tools")
      assert.strictEqual((yield* approve("bob", "c0", { arguments: { amount: 6 } })).outputText, "Paid")
      assert.include((yield* messages("bob"))!, "paid 6")

      yield* reply("cid", "Pay")
      assert.strictEqual((yield* deny("cid", "c0", { reason: "too much" })).outputText, "Not")
      assert.include((yield* messages("cid"))![2], "too much")
    }).pipe(Effect.provide(cluster(script, { tools })))
  })

  it.live("a refused command fails with the reason, and with the same reason when sent again", () =>
    Effect.gen(function*() {
      const { answer } = yield* client
      const once = yield* Effect.flip(answer("ann", "c9", 1, { command: "wrong" }))
      const again = yield* Effect.flip(answer("ann", "c9", 1, { command: "wrong" }))
      assert.instanceOf(once, SessionClient.CommandError)
      assert.deepStrictEqual(again, once)
      assert.deepInclude(once, { session: "ann", command: "wrong", reason: "unknown_tool_call_id" })
      assert.include(once.message, `no call "c9" waits for an answer`)
    }).pipe(Effect.provide(cluster([]))))

  it.live("R-527: an id that names no suspension is refused with the waiting ids, and a server's suspension id is accepted", () => {
    const tools = [Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })]
    return Effect.gen(function*() {
      const { approve, deny, reply } = yield* client
      yield* reply("ann", "Pay")
      yield* approve("ann", "c0")
      const { suspensions: [open] } = yield* reply("ann", "Pay again")
      const waits = open!.id
      const { waitingSince } = Session.view((yield* Session.load("ann"))!)
      for (const id of ["nosuch", "c0", `${waits}/c0`, `nosuch~${waits}`, `${waits}~${waits}`, "", "__proto__"]) {
        const error = yield* Effect.flip(deny("ann", id))
        assert.deepInclude(error, { _tag: "CommandError", reason: "unknown_tool_call_id" }, id)
        assert.include(error.message, `these wait: ${JSON.stringify(waits)}`, id)
      }
      assert.strictEqual((yield* deny("ann", `${waitingSince}~${waits}`)).outputText, "Not paid")
    }).pipe(Effect.provide(cluster([called("pay"), said("Paid"), called("pay"), said("Not paid")], { tools })))
  })

  it.live("a model that cannot be reached fails the command, and the next command continues", () =>
    Effect.gen(function*() {
      const { reply } = yield* client
      const error = yield* Effect.flip(reply("ann", "Hi"))
      assert.deepInclude(error, { _tag: "CommandError", reason: "AdapterError" })
      assert.strictEqual((yield* reply("ann", "Hi")).outputText, "Hello")
    }).pipe(Effect.provide(cluster([[Script.preflightError("provider_unavailable")], said("Hello")]))))

  it.live("a defect of a run is the answer to its command, and the command is not started again", () => {
    let asked = 0
    const run = {
      haltWhen: () => {
        asked++
        throw new Error("a mistake")
      }
    }
    return Effect.gen(function*() {
      const { reply } = yield* client
      const exit = yield* Effect.exit(reply("ann", "Hi"))
      assert.isTrue(Exit.hasDies(exit))
      assert.isTrue(Exit.hasDies(yield* Effect.exit(reply("ann", "Again"))))
      assert.strictEqual(asked, 2)
    }).pipe(Effect.provide(cluster([called("none"), called("none")], run)))
  })

  it.live("a session id may hold any text that fits the tables, and any other id is refused with its name", () =>
    Effect.gen(function*() {
      const { events, forget, reply } = yield* client
      for (const id of ["a\u0000b", "\ud800", "a\"b\\c", "é".repeat(255)]) {
        assert.strictEqual((yield* reply(id, "Hi")).outputText, "Hello")
        assert.deepStrictEqual(yield* messages(id), ["Hi", "Hello"])
      }
      for (const id of ["", "x".repeat(256), "\u0000".repeat(50)]) {
        for (const refused of [reply(id, "Hi"), forget(id), Stream.runDrain(events(id))]) {
          const error = yield* Effect.flip(refused as Effect.Effect<unknown, SessionClient.ClientError>)
          assert.deepInclude(error, { _tag: "CommandError", session: id, reason: "invalid_id" })
        }
      }
    }).pipe(Effect.provide(cluster(Array.from({ length: 4 }, () => said("Hello"))))))

  it.live("a too large or invalid command is refused before it is sent", () =>
    Effect.gen(function*() {
      const { answer, reply } = yield* client
      const driver = yield* MessageStorage.MemoryDriver
      const large = Effect.provideService(reply("ann", "é".repeat(600)), Journal.MaxRecordBytes, 1200)
      assert.deepInclude(yield* Effect.flip(large), { _tag: "CommandError", reason: "too_large" })
      const none = reply("ann", 5 as unknown as string)
      assert.deepInclude(yield* Effect.flip(none), { _tag: "CommandError", reason: "invalid_input" })
      const cyclic: Array<unknown> = []
      cyclic.push(cyclic, 1n, new Date(0))
      const unknown = yield* Effect.flip(answer("ann", "c0", cyclic))
      assert.deepInclude(unknown, { _tag: "CommandError", reason: "unknown_tool_call_id" })
      assert.strictEqual(driver.requests.size, 1)
    }).pipe(Effect.provide(cluster([]))))

  it.live("a session continues after a broken run, and past waiting calls if the client says so", () => {
    const tools = [Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })]
    const script = [[text("Half"), Script.streamError("network_error")], called("pay"), said("Not paid")]
    return Effect.gen(function*() {
      const { reply } = yield* client
      assert.strictEqual((yield* reply("ann", "Pay")).status, "error")
      assert.strictEqual((yield* reply("ann", "Again")).status, "awaiting_tools")
      const refused = yield* Effect.flip(reply("ann", "Never mind"))
      assert.deepInclude(refused, { _tag: "CommandError", reason: "approval_pending" })
      assert.strictEqual((yield* reply("ann", "Never mind", { pending: "deny" })).outputText, "Not paid")
    }).pipe(Effect.provide(cluster(script, { tools })))
  })

  it.live("forgotten commands are in no table, and the journal stays", () =>
    Effect.gen(function*() {
      const { forget, reply } = yield* client
      const driver = yield* MessageStorage.MemoryDriver
      const stored = () => driver.requests.size
      yield* reply("ann", "My secret")
      yield* reply("bob", "Hi")
      assert.strictEqual(stored(), 2)
      yield* forget("ann")
      assert.strictEqual(stored(), 1)
      assert.deepStrictEqual(yield* messages("ann"), ["My secret", "Hello"])
    }).pipe(Effect.provide(cluster([said("Hello"), said("Hello")]))))
})

describe("feeds of a session client", () => {
  it.live("every reader sees all events from its start on", () =>
    Effect.gen(function*() {
      const { events, reply } = yield* client
      yield* reply("ann", "Before")
      const readers = yield* Effect.forEach([0, 1], () =>
        Effect.gen(function*() {
          const connected = yield* Deferred.make<number>()
          const fiber = yield* events("ann").pipe(
            Stream.tap((event) =>
              event._tag === "Connected" ? Deferred.succeed(connected, event.version) : Effect.void
            ),
            Stream.takeUntil(({ _tag }) => _tag === "ChatCompleted"),
            Stream.runCollect,
            Effect.forkChild
          )
          assert.strictEqual(yield* Deferred.await(connected), (yield* Session.load("ann"))!.version)
          return fiber
        }))
      yield* reply("ann", "Hi")
      for (const reader of readers) {
        const seen = yield* Fiber.join(reader)
        assert.deepStrictEqual(seen.map(({ _tag }) => _tag), [
          "Connected",
          "MessageStarted",
          "TextDelta",
          "TextCompleted",
          "MessageCompleted",
          "StepCompleted",
          "ChatCompleted"
        ])
        assert.deepInclude(seen[2], { _tag: "TextDelta", delta: "Hello" })
      }
    }).pipe(Effect.provide(cluster([said("Earlier"), said("Hello")]))))

  it.live("N-06: a reader learns which run is active, and a late reader learns that no run is active", () => {
    const { gate, started, tool } = gated()
    return Effect.gen(function*() {
      const { events, reply } = yield* client
      const work = yield* Effect.forkChild(reply("ann", "Work"))
      yield* started.await
      const { interrupted } = (yield* Session.load("ann"))!
      const connected = yield* Latch.make()
      const reader = yield* events("ann").pipe(
        Stream.tap(({ _tag }) => _tag === "Connected" ? connected.open : Effect.void),
        Stream.takeUntil((event) => event._tag === "Connected" && event.requestId === undefined),
        Stream.runCollect,
        Effect.forkChild
      )
      yield* connected.await
      yield* gate.open
      const { version } = yield* Fiber.join(work)
      const seen = yield* Fiber.join(reader)
      assert.deepInclude(seen[0], { _tag: "Connected", requestId: interrupted!.requestId })
      assert.deepStrictEqual(seen.slice(-2).map(({ _tag }) => _tag), ["ChatCompleted", "Connected"])
      assert.deepStrictEqual(seen.at(-1), { _tag: "Connected", version })
      const late = yield* Stream.runCollect(Stream.take(events("ann"), 1))
      assert.deepStrictEqual(late, [{ _tag: "Connected", version }])
    }).pipe(Effect.provide(cluster([called("work"), said("Done")], { tools: [tool] })))
  })

  it.live("N-06: a reader learns that a run could not start", () =>
    Effect.gen(function*() {
      const { events, reply } = yield* client
      const seen = yield* events("ann").pipe(
        Stream.tap((event) =>
          event._tag === "Connected" && event.version === 0 ? Effect.forkChild(reply("ann", "Hi")) : Effect.void
        ),
        Stream.takeUntil((event) => event._tag === "Connected" && event.version > 0),
        Stream.runCollect
      )
      const { version } = (yield* Session.load("ann"))!
      assert.deepStrictEqual(seen, [{ _tag: "Connected", version: 0 }, { _tag: "Connected", version }])
    }).pipe(Effect.provide(cluster([[Script.preflightError("provider_unavailable")]]))))

  it.live("N-06: the events of a command end with its report, also if it was carried out before", () =>
    Effect.gen(function*() {
      const { follow, reply } = yield* client
      const said = follow("ann", reply("ann", "Hi", { command: "m1" }))
      const [first, again] = [yield* Stream.runCollect(said), yield* Stream.runCollect(said)]
      assert.deepStrictEqual(first.map(({ _tag }) => _tag), [
        "Connected",
        "MessageStarted",
        "TextDelta",
        "TextCompleted",
        "MessageCompleted",
        "StepCompleted",
        "ChatCompleted",
        "Reported"
      ])
      const { version } = (yield* Session.load("ann"))!
      const report: SessionClient.Report = {
        session: "ann",
        version,
        status: "completed",
        suspensions: [],
        outputText: "Hello"
      }
      assert.deepStrictEqual(first.at(-1), { _tag: "Reported", report })
      assert.deepStrictEqual(again, [{ _tag: "Connected", version }, { _tag: "Reported", report }])
    }).pipe(Effect.provide(cluster([said("Hello")]))))

  it.live("N-06: a command of another session is refused with both session names", () =>
    Effect.gen(function*() {
      const { follow, reply } = yield* client
      const exit = yield* Effect.exit(Stream.runDrain(follow("zed", reply("ann", "Hi"))))
      assert.include(String(exit), `the command belongs to session "ann"; give a command of session "zed"`)
    }).pipe(Effect.provide(cluster([said("Hello")]))))

  it.live("N-06: the events of a failing command fail like the command", () =>
    Effect.gen(function*() {
      const { follow, reply } = yield* client
      const error = yield* Effect.flip(Stream.runDrain(follow("ann", reply("ann", "Hi"))))
      assert.deepInclude(error, { _tag: "CommandError", reason: "AdapterError" })
      const refused = yield* Effect.flip(Stream.runDrain(follow("", reply("", "Hi"))))
      assert.deepInclude(refused, { _tag: "CommandError", reason: "invalid_id" })
    }).pipe(Effect.provide(cluster([[Script.preflightError("provider_unavailable")]]))))

  it.live("N-06: a command has all events from its connection to its report", () => {
    const { gate, started, tool } = gated()
    return Effect.gen(function*() {
      const { follow, reply } = yield* client
      const work = yield* Effect.forkChild(reply("ann", "Work"))
      yield* started.await
      const connected = yield* Latch.make()
      const reader = yield* follow("ann", reply("ann", "And then")).pipe(
        Stream.tap(({ _tag }) => _tag === "Connected" ? connected.open : Effect.void),
        Stream.runCollect,
        Effect.forkChild
      )
      yield* connected.await
      yield* gate.open
      assert.strictEqual((yield* Fiber.join(work)).outputText, "First")
      const seen = yield* Fiber.join(reader)
      const texts = seen.flatMap((event) => event._tag === "TextDelta" ? [event.delta] : [])
      assert.deepStrictEqual(texts, ["First", "Second"])
      assert.deepInclude(seen.at(-1), { _tag: "Reported" })
    }).pipe(Effect.provide(cluster([called("work"), said("First"), said("Second")], { tools: [tool] })))
  })

  it.live("a slow reader delays nothing, and learns that it missed events", () => {
    const pieces = Array.from({ length: 20_000 }, (_, index) => text(`${index} `))
    return Effect.gen(function*() {
      const { events, reply } = yield* client
      const connected = yield* Latch.make()
      const goOn = yield* Latch.make()
      const reader = yield* events("ann").pipe(
        Stream.tap((event) => event._tag === "Connected" ? connected.open : Effect.void),
        Stream.tap(() => goOn.await),
        Stream.takeUntil(({ _tag }) => _tag === "ChatCompleted"),
        Stream.runCollect,
        Effect.forkChild
      )
      yield* connected.await
      yield* reply("ann", "Talk")
      yield* goOn.open
      const seen = yield* Fiber.join(reader)
      const deltas = seen.flatMap((event) => event._tag === "TextDelta" ? [Number.parseInt(event.delta)] : [])
      const gap = seen.findIndex(({ _tag }, index) => index > 0 && _tag === "Connected")
      assert.isAbove(gap, 0)
      assert.isBelow(deltas.length, 20_000)
      assert.strictEqual(deltas.at(-1), 19_999)
      // Before the gap and behind it nothing is missing.
      const breaks = deltas.filter((delta, index) => index > 0 && delta !== deltas[index - 1]! + 1)
      assert.strictEqual(breaks.length, seen.filter(({ _tag }) => _tag === "Connected").length - 1)
    }).pipe(Effect.provide(cluster([[...pieces, finish("stop")]])))
  })

  it.live("an event too large to send is a gap", () =>
    Effect.gen(function*() {
      const { events, reply } = yield* client
      const seen = yield* events("ann").pipe(
        Stream.tap((event) =>
          event._tag === "Connected" && event.version === 0
            ? Effect.forkChild(reply("ann", "Talk"))
            : Effect.void
        ),
        Stream.map(({ _tag }) => _tag),
        Stream.takeUntil((tag) => tag === "ChatCompleted"),
        Stream.runCollect
      )
      assert.deepStrictEqual(seen, [
        "Connected",
        "MessageStarted",
        "Connected",
        "Connected",
        "Connected",
        "Connected",
        "ChatCompleted"
      ])
    }).pipe(
      Effect.provide(cluster([said("x".repeat(2000))])),
      Effect.provideService(Journal.MaxRecordBytes, 5000)
    ))
})
