/**
 * What a client of a cluster keeps between two owners and two elements of a feed: a command is sent once, whatever its
 * feed does, and its events end behind the last of them. The owner here answers as the test says.
 */
import { assert, describe, it } from "@effect/vitest"
import * as MessageStorage from "effect/cluster/MessageStorage"
import * as TestRunner from "effect/cluster/TestRunner"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Session } from "heddle"
import { SessionClient } from "heddle/cluster"
import * as Protocol from "../../src/cluster/internal/protocol.ts"
import { ledger } from "../durable/support/ledger.ts"

ledger()

const report = (version: number): SessionClient.Report => ({
  session: "s",
  version,
  status: "completed",
  suspensions: [],
  outputText: "said"
})

const delta = (text: string): Protocol.Fed => ({ _tag: "Fed", event: { _tag: "TextDelta", id: null, delta: text } })

/** An owner with these feeds, one after the other, and its commands, each of which is answered once a feed says so. */
const owner = (
  feeds: (answered: Effect.Effect<void>) => ReadonlyArray<Stream.Stream<Protocol.Fed>>,
  version: number
) => {
  const commands: Array<Protocol.Command> = []
  const answered = Deferred.makeUnsafe<void>()
  const all = [...feeds(Effect.asVoid(Deferred.succeed(answered, undefined)))]
  const layer = Protocol.SessionEntity.toLayer(
    Protocol.SessionEntity.of({
      Drive: ({ payload }) => {
        commands.push(payload)
        return Effect.as(Deferred.await(answered), report(version))
      },
      Stop: () => Effect.void,
      Look: () => Effect.void,
      Feed: () => all.shift() ?? Stream.never
    }),
    { concurrency: "unbounded" }
  )
  const services = Layer.mergeAll(layer, SessionClient.layer).pipe(
    Layer.provideMerge(Session.Store.layerMemory),
    Layer.provideMerge(TestRunner.layer)
  )
  return { commands, services }
}

const shown = (event: { readonly _tag: string }): string => "delta" in event ? String(event.delta) : event._tag

const handedOver = Stream.fromEffect(Effect.interrupt)

const settled = (version: number): Protocol.Fed => ({ _tag: "Settled", version })

describe("the events of a command", () => {
  for (const owners of [1, 2, 3]) {
    it.live(`a command is sent once while its session has ${owners} owners in turn`, () => {
      const { commands, services } = owner((answered) => [
        ...Array.from(
          { length: owners - 1 },
          (_, index) =>
            Stream.concat(Stream.make({ _tag: "Connected", version: index } as const, delta(`${index}`)), handedOver)
        ),
        Stream.make({ _tag: "Connected", version: owners } as const, delta("last")).pipe(
          Stream.concat(Stream.fromEffect(Effect.as(answered, settled(9)))),
          Stream.concat(Stream.never)
        )
      ], 9)
      return Effect.gen(function*() {
        const { follow, reply } = yield* SessionClient.SessionClient
        const seen = yield* Stream.runCollect(follow("s", reply("s", "go")))
        assert.deepStrictEqual(Array.from(seen, shown), [
          ...Array.from({ length: owners - 1 }, (_, index) => ["Connected", `${index}`]).flat(),
          "Connected",
          "last",
          "Reported"
        ])
        assert.lengthOf(commands, 1)
        assert.strictEqual((yield* MessageStorage.MemoryDriver).requests.size, 1)
      }).pipe(Effect.provide(services))
    })
  }

  it.live("the events of a command do not end at a gap, even if its version is the report's: later events follow", () => {
    const { services } = owner((answered) => [
      Stream.make({ _tag: "Connected", version: 1 } as const).pipe(
        // The report is there before the gap.
        Stream.concat(Stream.fromEffect(Effect.as(Effect.delay(answered, "1 millis"), delta("first")))),
        Stream.concat(Stream.fromEffect(Effect.delay(
          Effect.succeed({ _tag: "Missed", version: 9 } as const),
          "100 millis"
        ))),
        Stream.concat(Stream.make(delta("second"), delta("third"), settled(9))),
        Stream.concat(Stream.never)
      )
    ], 9)
    return Effect.gen(function*() {
      const { follow, reply } = yield* SessionClient.SessionClient
      const seen = yield* Stream.runCollect(follow("s", reply("s", "go")))
      assert.deepStrictEqual(Array.from(seen, shown), [
        "Connected",
        "first",
        "Connected",
        "second",
        "third",
        "Reported"
      ])
    }).pipe(Effect.provide(services))
  })

  it.live("the events of a command end at a connection with the report's version, and not at an earlier connection", () => {
    const { services } = owner((answered) => [
      Stream.concat(Stream.fromEffect(Effect.as(answered, { _tag: "Connected", version: 1 } as const)), handedOver),
      Stream.concat(Stream.make({ _tag: "Connected", version: 8 } as const, settled(8)), handedOver),
      Stream.make({ _tag: "Connected", version: 9 } as const, delta("behind"))
    ], 9)
    return Effect.gen(function*() {
      const { follow, reply } = yield* SessionClient.SessionClient
      const seen = yield* Stream.runCollect(follow("s", reply("s", "go")))
      assert.deepStrictEqual(Array.from(seen, shown), ["Connected", "Connected", "Connected", "Reported"])
    }).pipe(Effect.provide(services))
  })
})

describe("the commands of a client", () => {
  it.live("the owner receives each option of each command, alone and with the others", () => {
    const { commands, services } = owner((answered) => [Stream.fromEffect(Effect.as(answered, settled(1)))], 1)
    return Effect.gen(function*() {
      const client = yield* SessionClient.SessionClient
      // The first feed lets all commands be answered.
      yield* Stream.runDrain(Stream.take(client.events("s"), 1))
      const sent: ReadonlyArray<readonly [Effect.Effect<unknown, unknown>, object]> = [
        [client.reply("s", "hi", { command: "c0" }), { _tag: "Say" }],
        [client.reply("s", "hi", { command: "c1", after: 7 }), { _tag: "Say", after: 7 }],
        [client.reply("s", "hi", { command: "c2", pending: "deny" }), { _tag: "Say", pending: "deny" }],
        [client.reply("s", "hi", { command: "c3", after: 0, pending: "deny" }), {
          _tag: "Say",
          after: 0,
          pending: "deny"
        }],
        [client.answer("s", "a", { deep: [1, null] }, { command: "c4" }), {
          _tag: "Answer",
          id: "a",
          value: { deep: [1, null] }
        }],
        [client.approve("s", "a", { command: "c5" }), { _tag: "Approve", id: "a" }],
        [client.approve("s", "a", { command: "c6", arguments: { x: 1 } }), {
          _tag: "Approve",
          id: "a",
          arguments: { x: 1 }
        }],
        [client.deny("s", "a", { command: "c7" }), { _tag: "Deny", id: "a" }],
        [client.deny("s", "a", { command: "c8", reason: "no" }), { _tag: "Deny", id: "a", reason: "no" }],
        [client.resume("s", { command: "c9" }), { _tag: "Resume" }]
      ]
      for (const [index, [send, input]] of sent.entries()) {
        yield* send
        const { command, input: { message, ...rest } } = commands.at(-1) as unknown as {
          command: string
          input: { message?: { content: unknown } }
        }
        assert.deepStrictEqual([command, rest], [`c${index}`, input])
        if ("_tag" in rest && rest._tag === "Say") assert.strictEqual(message?.content, "hi")
      }
    }).pipe(Effect.provide(services))
  })
})
