/**
 * Bounds of what a server holds at once and takes in a minute, against a plain list of it: whatever is opened, refused
 * and closed before, and in whichever way, the next one is taken exactly where the list has room.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import type * as HttpServerRequest from "effect/http/HttpServerRequest"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { Tool } from "heddle"
import { Agent } from "heddle/server"
import * as Bounds from "../../src/server/internal/bounds.ts"
import type * as Refusals from "../../src/server/internal/refusal.ts"
import { property } from "../support/property.ts"
import { until } from "../support/until.ts"
import { bearer, byToken, obedient, send } from "./support/hostile.ts"
import { heldBy, nothingHeld } from "./support/ledger.ts"
import { partsOf, serve } from "./support/site.ts"
import { connected, type Connection, headOf } from "./support/sockets.ts"

const most = { streams: 2, runs: 2, bodies: 2, undecided: 2, bodyBytes: 10, writes: 2, lists: 3 }

const holders = ["ann", "bob"] as const

/** What a program does: it opens, closes, or counts bytes of a body. */
const programs = Arbitrary.schema(
  Schema.Array(Schema.Union([
    Schema.Struct({
      does: Schema.Literal("open"),
      kind: Schema.Literals(["stream", "run", "body", "undecided"]),
      holder: Schema.Literals(holders),
      /** The session of a run, and the request that is decided about. */
      of: Schema.Literals([0, 1, 2])
    }),
    Schema.Struct({
      does: Schema.Literal("close"),
      how: Schema.Literals(["succeeds", "fails", "is interrupted"]),
      which: Schema.Literals([0, 1, 2, 3, 4, 5])
    }),
    Schema.Struct({
      does: Schema.Literal("count"),
      which: Schema.Literals([0, 1, 2, 3, 4, 5]),
      bytes: Schema.Literals([1, 4, 7])
    })
  ])).check(Schema.isMinLength(20), Schema.isMaxLength(60))
)

/** Writes and lists, each some time after the one before. */
const minutes = Arbitrary.schema(
  Schema.Array(Schema.Struct({
    kind: Schema.Literals(["write", "list"]),
    holder: Schema.Literals(holders),
    after: Schema.Literals([0, 1_000, 15_000, 30_000])
  })).check(Schema.isMinLength(20), Schema.isMaxLength(60))
)

type Action = typeof programs extends Arbitrary.Arbitrary<ReadonlyArray<infer A>> ? A : never
type Opening = Extract<Action, { readonly does: "open" }>

/** Something that is open: the plain list has nothing else. */
interface Open extends Opening {
  readonly request: HttpServerRequest.HttpServerRequest
  readonly fiber: Fiber.Fiber<void, Refusals.Refusal | string>
  readonly gate: Deferred.Deferred<void, string>
  readonly count: (bytes: number) => void
  bytes: number
}

const counted = (program: ReadonlyArray<Action>) =>
  Effect.gen(function*() {
    const counters = new Bounds.Counters({ ...Bounds.standard, ...most })
    const wrong: Array<string> = []
    let open: ReadonlyArray<Open> = []
    /** Requests of each address, which may be decided about again. */
    const requests = new Map(holders.map((holder) =>
      [holder, [0, 1, 2].map(() => ({ remoteAddress: Option.some(`at ${holder}`) }) as any)] as const
    ))
    const letIn = new Set<unknown>()

    const opens = (opening: Opening): Effect.Effect<Open> =>
      Effect.gen(function*() {
        const { holder, kind, of } = opening
        const request = requests.get(holder)![of]
        const gate = Deferred.makeUnsafe<void, string>()
        let count: Open["count"] = () => {}
        const held = Effect.gen(function*() {
          switch (kind) {
            case "stream":
              return yield* Effect.scoped(Effect.andThen(counters.stream(holder), Deferred.await(gate)))
            case "run":
              return yield* Effect.scoped(
                Effect.andThen(counters.run(`${holder}:${of}`, `${holder}:`, new Set()), Deferred.await(gate))
              )
            case "body":
              return yield* counters.body(holder, (given) => {
                count = given
                return Deferred.await(gate)
              })
            case "undecided":
              return yield* counters.undecided(request, Deferred.await(gate))
          }
        })
        const fiber = yield* Effect.forkChild(held, { startImmediately: true })
        return {
          ...opening,
          request,
          fiber,
          gate,
          bytes: 0,
          count: (bytes) =>
            count(bytes)
        }
      })

    /** Tells whether the list has room for one more. */
    const hasRoom = ({ holder, kind, of }: Opening): boolean => {
      const own = open.filter((each) => each.kind === kind && each.holder === holder)
      switch (kind) {
        case "stream":
          return own.length < most.streams
        case "body":
          return own.length < most.bodies
        case "run": {
          const sessions = new Set(own.map((each) => each.of))
          return sessions.has(of) || sessions.size < most.runs
        }
        case "undecided":
          return letIn.has(requests.get(holder)![of])
            || own.filter(({ isFree }: any) => isFree !== true).length < most.undecided
      }
    }

    const bytesOf = (holder: string) =>
      open.reduce((sum, each) => each.kind === "body" && each.holder === holder ? sum + each.bytes : sum, 0)

    const act = (action: Action) =>
      Effect.gen(function*() {
        switch (action.does) {
          case "open": {
            const isTaken = hasRoom(action)
            const one = yield* opens(action)
            const isFree = action.kind === "undecided" && letIn.has(one.request)
            const isRefused = one.fiber.pollUnsafe() !== undefined
            if (isRefused === isTaken) {
              wrong.push(`${JSON.stringify(action)} is ${isTaken ? "refused" : "taken"} beside ${open.length}`)
            }
            if (!isRefused) open = [...open, Object.assign(one, { isFree })]
            return
          }
          case "close": {
            const one = open[action.which]
            if (one === undefined) return
            open = open.filter((other) => other !== one)
            if (action.how === "is interrupted") return yield* Fiber.interrupt(one.fiber)
            const exit = action.how === "fails" ? Exit.fail("failed") : Exit.void
            yield* Deferred.done(one.gate, exit)
            yield* Fiber.await(one.fiber)
            if (one.kind === "undecided" && action.how === "succeeds") letIn.add(one.request)
            return
          }
          case "count": {
            const one = open.filter(({ kind }) => kind === "body")[action.which]
            if (one === undefined) return
            one.bytes += action.bytes
            one.count(action.bytes)
            yield* Effect.yieldNow
            const sums = new Map(holders.map((holder) => [holder, bytesOf(holder)]))
            const isTooMuch = Array.from(sums.values()).reduce((a, b) => a + b) > most.bodyBytes
            const left = open.filter(({ fiber, kind }) => kind === "body" && fiber.pollUnsafe() !== undefined)
            if (left.length !== (isTooMuch ? 1 : 0)) {
              wrong.push(`${left.length} bodies are refused of ${JSON.stringify(Array.from(sums))}`)
            }
            for (const { bytes, holder } of left) {
              if (bytes === 0 || sums.get(holder) !== Math.max(...sums.values())) wrong.push(`${holder} is refused`)
            }
            open = open.filter((each) => !left.includes(each))
            return
          }
        }
      })

    const ofKind = (name: Opening["kind"]) => open.filter(({ kind }) => kind === name)
    /** Compares the ledger of the counters with the list. */
    const compare = (action: unknown) => {
      const held = heldBy({ counters, hub: { ended: new Map(), logs: new Map(), readers: new Map(), bytes: 0 } } as any)
      const listed = {
        addresses: ofKind("undecided").filter(({ isFree }: any) => isFree !== true).length,
        begun: new Set(ofKind("run").map(({ holder, of }) => `${holder}:${of}`)).size,
        bodies: ofKind("body").length,
        bodyBytes: ofKind("body").reduce((sum, { bytes }) => sum + bytes, 0),
        readings: ofKind("body").length,
        streams: ofKind("stream").length
      }
      for (const [name, count] of Object.entries(listed)) {
        if (held[name] !== count) wrong.push(`${name}: ${held[name]}, not ${count}, after ${JSON.stringify(action)}`)
      }
    }

    for (const action of program) {
      yield* act(action)
      compare(action)
      if (wrong.length > 0) break
    }
    for (const { fiber } of open) yield* Fiber.interrupt(fiber)
    open = []
    compare("the end")
    return wrong
  })

/** What is taken of a minute, beside so many other principals. */
const takenIn = (others: number) => (program: typeof minutes extends Arbitrary.Arbitrary<infer A> ? A : never) =>
  Effect.gen(function*() {
    const counters = new Bounds.Counters({ ...Bounds.standard, ...most })
    const wrong: Array<string> = []
    const taken: Array<{ readonly kind: string; readonly holder: string; readonly at: number }> = []
    let now = 1_000_000
    // Those whose minute is over are forgotten with the next one that takes.
    for (let other = 0; other < others; other++) yield* counters.write(`other${other}`, now + 600_000)
    for (const { after, holder, kind } of program) {
      now += after
      const bound = kind === "write" ? most.writes : most.lists
      const recent = taken.filter((each) => each.kind === kind && each.holder === holder && each.at > now - 60_000)
      const isTaken = Exit.isSuccess(yield* Effect.exit(counters[kind](holder, now)))
      if (isTaken !== recent.length < bound) {
        wrong.push(
          `a ${kind} of ${holder} beside ${recent.length} in the last minute is ${isTaken ? "taken" : "refused"}`
        )
      }
      if (isTaken) taken.push({ kind, holder, at: now })
    }
    yield* counters.write("last", now + 700_000)
    const { size } = (counters as any).writes.times
    if (size > 10_000) wrong.push(`${size} principals are remembered whose minute is over`)
    return wrong
  })

describe("the bounds of a server", () => {
  property("W-11: the server counts the writes of a minute like a plain list of times", minutes, takenIn(0), 3_000)

  property(
    "W-11: the server counts the writes of a minute alike beside ten thousand other principals",
    minutes,
    takenIn(10_001),
    1_000
  )

  property(
    "W-11: the server counts open items like a plain list, whatever was opened, refused and closed",
    programs,
    counted,
    3_000
  )

  it("W-11: every concurrency bound and every rate bound has a kind in this test", () => {
    const kinds = Object.keys(most).sort()
    // The others bound the size of one thing, or what a store or the logs have.
    const others =
      "authorization body clientTool clientTools file files log logs run sessionBytes sessionTurns sessions taken"
        .split(" ")
    assert.deepStrictEqual(Object.keys(Bounds.standard).sort(), [...kinds, ...others].sort())
  })
})

const at = "/agents/helper/sessions"

/** A server that holds two of everything, and ways to open and close one by a request. */
const holding = Effect.gen(function*() {
  const never = Tool.make("never", { parameters: {}, handler: () => Effect.never })
  const agents = [Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [never] }) })]
  const site = yield* serve(agents, obedient, {
    authorize: (request, question) =>
      request.headers["authorization"] === "Bearer waits" ? Effect.never : byToken()(request, question),
    hosts: ["127.0.0.1"],
    bounds: { streams: 2, runs: 2, bodies: 2, undecided: 2, writes: 1_000 },
    joinMillis: 0
  })
  const { url } = site
  const content = JSON.stringify([{ id: "c0", name: "never" }])
  const opened = (method: string, path: string, headers: Record<string, string>, begun = "") =>
    Effect.gen(function*() {
      const connection = yield* connected(url)
      yield* connection.write(headOf(method, path, headers) + begun)
      return connection
    })
  const slow = { "content-type": "application/json", "content-length": "1000" }
  let count = 0
  /** What is opened for a principal: its status, once there is one, and what ends it. */
  const kinds: Readonly<Record<string, (principal: string) => Effect.Effect<Held, never, Scope.Scope>>> = {
    streams: (principal) =>
      Effect.gen(function*() {
        const { leave, status } = yield* opened("GET", `${at}/s1/events`, bearer(principal))
        return { status: yield* status, close: leave }
      }),
    begun: (principal) =>
      Effect.gen(function*() {
        const path = `${at}/run${count++}`
        const headers = bearer(principal)
        const { status } = yield* send(url, { path: `${path}/messages?wait=false`, body: { content }, headers })
        return { status, close: send(url, { method: "POST", path: `${path}/stop`, headers }) }
      }),
    bodies: (principal) =>
      Effect.gen(function*() {
        const before = heldBy(partsOf(site))["bodies"]!
        const connection = yield* opened("POST", at, { ...slow, ...bearer(principal) }, "{")
        return {
          status: yield* statusOf(connection, () => heldBy(partsOf(site))["bodies"]! > before),
          close: connection.leave
        }
      }),
    addresses: () =>
      Effect.gen(function*() {
        const before = heldBy(partsOf(site))["addresses"]!
        const connection = yield* opened("POST", at, { ...slow, ...bearer("waits") }, "{")
        return {
          status: yield* statusOf(connection, () => heldBy(partsOf(site))["addresses"]! > before),
          close: connection.leave
        }
      })
  }
  for (const principal of holders) {
    const said = yield* send(url, { path: `${at}/s1/messages`, body: { content: "Hi" }, headers: bearer(principal) })
    assert.strictEqual(said.status, 200, said.text)
  }
  return { site, kinds }
})

interface Held {
  /** The status of the response, or 0 where it is held. */
  readonly status: number
  readonly close: Effect.Effect<unknown>
}

/** Waits until a request is refused, or is held. */
const statusOf = ({ status }: Connection, isHeld: () => boolean) =>
  Effect.raceFirst(status, Effect.as(until("the request", Effect.sync(isHeld), (is) => is), 0))

describe("a server with places for two", () => {
  for (const kind of ["streams", "begun", "bodies", "addresses"]) {
    it.live(`W-11: a server takes one new request for each closed request, and no more: ${kind}`, () =>
      Effect.gen(function*() {
        const { kinds, site } = yield* holding
        const open = kinds[kind]!
        const isTaken = ({ status }: Held) => status < 300
        const closed = (one: Held) =>
          Effect.gen(function*() {
            const before = kind === "begun" ? 0 : heldBy(partsOf(site))[kind]!
            yield* one.close
            if (kind === "begun") return
            yield* until("the place", Effect.sync(() => heldBy(partsOf(site))[kind]!), (now) => now < before)
          })
        let [first, second] = [yield* open("ann"), yield* open("ann")]
        assert.isTrue(isTaken(first) && isTaken(second))
        // Twice, since the first one closed may give back more than its own place.
        for (let time = 0; time < 3; time++) {
          assert.isFalse(isTaken(yield* open("ann")), `${time}: one too many`)
          yield* closed(time % 2 === 0 ? first : second)
          const third = kind === "begun"
            ? yield* until("the place of a run", open("ann"), isTaken)
            : yield* open("ann")
          assert.isTrue(isTaken(third), `${time}: one for one that was closed`)
          if (time % 2 === 0) first = third
          else second = third
        }
        assert.isFalse(isTaken(yield* open("ann")))
        if (kind !== "addresses") {
          const others = [yield* open("bob"), yield* open("bob")]
          assert.isTrue(others.every(isTaken))
          yield* closed(first)
          assert.isFalse(isTaken(yield* open("bob")), "the place of another principal")
          yield* Effect.forEach(others, closed)
        } else yield* closed(first)
        yield* closed(second)
        yield* nothingHeld([partsOf(site)])
      }))
  }

  it.live("W-11: a server expects no run for a refused message", () =>
    Effect.gen(function*() {
      const { site } = yield* holding
      const { url } = site
      const expected = () => Array.from((partsOf(site).hub as any).expected as Set<string>)
      const say = (id: string, body: object) =>
        send(url, { path: `${at}/${id}/messages?wait=false`, body, headers: bearer("ann") })
      // Under an id in use, and to a session whose run is under way.
      assert.strictEqual((yield* say("s1", { content: "Hi", id: "m1" })).status, 202)
      yield* until("the run", Effect.sync(expected), ({ length }) => length === 0)
      const same = yield* until("the end", say("s1", { content: "Other", id: "m1" }), ({ text }) =>
        text.includes("id_taken"))
      assert.strictEqual(same.status, 409)
      assert.deepStrictEqual(expected(), [])
      const content = JSON.stringify([{ id: "c0", name: "never" }])
      yield* say("s2", { content })
      yield* until("the call", Effect.sync(expected), ({ length }) =>
        length === 0)
      assert.strictEqual((yield* say("s2", { content: "More" })).status, 409)
      assert.deepStrictEqual(expected(), [])
      yield* send(url, { method: "POST", path: `${at}/s2/stop`, headers: bearer("ann") })
    }))
})
