/** Calls that have the id of another call, in another turn, run or phase: each is a call of its own, also after a crash. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { type Adapter, Chat, type Journal, Message, Session, Tool } from "heddle"
import { Durable } from "heddle/durable"
import { check } from "heddle/testing"
import { agent, casting, holding, type Turn, type Written } from "../support/nests.ts"
import { overTime } from "../support/scenarios.ts"
import type { Deed } from "../support/survivor.ts"

type Given = Partial<Parameters<typeof Tool.make>[1]>

type Handler = (call: Tool.CallContext) => Effect.Effect<unknown>

/** A tool that notes that it ran. */
const acting = (world: Array<Deed>, name: string, given: Given = {}, handler: Handler = () => Effect.succeed(name)) =>
  Tool.make(name, {
    parameters: {},
    ...(given as object),
    handler: (_, call) =>
      Effect.suspend(() => {
        world.push({ tool: name, key: call.idempotencyKey, attempt: call.attempt })
        return handler(call)
      })
  })

/** Tools that need no services. */
type Tools = ReadonlyArray<ReturnType<typeof acting>>

const toolsOf = (...tools: ReadonlyArray<Tool.Any>) => tools as Tools

const slow = (world: Array<Deed> = [], given: Given = {}) =>
  acting(world, "slow", given, () => Effect.as(Effect.sleep(100), "slow"))

const asking = acting([], "ask", {}, () => Effect.succeed(Tool.askUser("Which?")))

/** A call without arguments. */
const call = (id: string, name: string) => [id, name, {}] as const

type Parts = Parameters<typeof casting>[0]

/** A program behind what was written before, with a model that says these turns. */
const behind = <A, E>(
  before: ReadonlyArray<Written>,
  turns: ReadonlyArray<Turn> | Parts,
  program: Effect.Effect<A, E, Adapter.Adapter | Session.Store>
) => {
  const asked: Array<string> = []
  const written: Array<Written> = []
  const model = casting(Array.isArray(turns) ? { go: turns } : turns as Parts, asked)
  return Effect.map(
    Effect.provide(program, [model, holding(before, written)]),
    (value) => ({ asked, value, written })
  )
}

interface Options {
  readonly tools: Tools
  readonly maxConcurrency?: number
  readonly deadline?: number
  readonly grace?: number
}

const replied = (options: Options, text = "go") =>
  Effect.flatMap(
    Session.open("s"),
    (opened) => Session.keep(opened, (session) => Session.reply(session, text, options))
  )

/** The run that was cut, taken up: it has an end, and what was kept is what is loaded. */
const resumed = ({ tools }: Options, given: { readonly maxAge?: "1 minute" } = {}) =>
  Effect.gen(function*() {
    const kept = yield* overTime(Session.resume((yield* Session.load("s"))!, { takeOver: true, tools, ...given }))
    const loaded = yield* Session.load("s")
    // An error is read as plain data.
    assert.deepStrictEqual({ ...loaded?.session, metadata: {} }, { ...kept.session, metadata: {} })
    assert.isUndefined(loaded?.interrupted, "the run has no end")
    return kept
  })

/** The session with these calls approved, behind a reply that waits for it. */
const approved = (options: Options, ...ids: ReadonlyArray<string>) =>
  Effect.gen(function*() {
    const { suspensions } = (yield* replied(options)).session
    assert.deepStrictEqual(suspensions.map(({ id }) => id), ids)
    for (const id of ids) yield* Session.keep((yield* Session.load("s"))!, (session) => Session.approve(session, id))
    return (yield* Session.load("s"))!
  })

const continued = (options: Options) =>
  Effect.flatMap(
    Session.load("s"),
    (loaded) => Session.keep(loaded!, (session) => Session.continue(session, null, options))
  )

const answersOf = ({ session }: { readonly session: Session.Session }) =>
  session.thread.messages.flatMap((message) => message.role === "tool" ? [Message.text(message)] : [])

const waitingIn = ({ session }: { readonly session: Session.Session }) =>
  session.suspensions.map(({ id, kind }) => `${kind} ${id}`)

const tagged = (written: ReadonlyArray<Written>, tag: Journal.Record["_tag"]) =>
  written.filter(({ record }) => record._tag === tag).length

/** The places in the last run of the session. Its last step may be written with its end, at once. */
const placesIn = (written: ReadonlyArray<Written>) => {
  const places = (tag: "RunStarted" | "RunEnded") =>
    written.findLastIndex(({ id, record }) => id === "s" && record._tag === tag)
  return written.flatMap((_, length) => length > places("RunStarted") && length < places("RunEnded") ? [length] : [])
}

const keysOf = (world: ReadonlyArray<Deed>) => world.map(({ key }) => key)

describe("a started call of a tool that retries", () => {
  const retry = Schedule.recurs(2)
  const policies: Readonly<Record<string, Given>> = {
    "no policy": {},
    "report": { afterCrash: "report" },
    "fail": { afterCrash: "fail" },
    "a lookUp that fails": { lookUp: () => Effect.fail("away") }
  }
  for (const [name, policy] of Object.entries(policies)) {
    it.effect(`D-01, D-09: a started call does not run again and is reported as unknown: ${name}`, () =>
      Effect.gen(function*() {
        const turns = [[call("c", "charge")], "done"]
        const options = (world: Array<Deed>) => ({ tools: toolsOf(acting(world, "charge", { retry, ...policy })) })
        const { written } = yield* behind([], turns, replied(options([])))
        const length = written.findIndex(({ record }) => record._tag === "CallStarted") + 1
        const world: Array<Deed> = []
        const { value } = yield* behind(written.slice(0, length), turns, resumed(options(world)))
        assert.isEmpty(world)
        assert.include(answersOf(value).join(), "unknown_effect")
      }))
  }
})

describe("a call with the id of an earlier call", () => {
  const nested = { sub: [[call("q", "ask")], "sub is done"] }

  for (const turn of [1, 2]) {
    const go = [[call("call_0", "sub")], ...turn === 1 ? [] : [[call("x", "echo")]], [call("call_0", "pay")], "done"]

    const after = (pay: Tool.Any, world: Array<Deed>) => {
      const options = { tools: toolsOf(agent("sub", [asking]), acting(world, "echo"), pay) }
      return behind(
        [],
        { go, ...nested },
        Effect.gen(function*() {
          const waiting = yield* replied(options)
          assert.deepStrictEqual(waitingIn(waiting), ["question call_0/q"])
          yield* Session.keep(
            (yield* Session.load("s"))!,
            (session) => Session.answer(session, "call_0/q", "blue")
          )
          return yield* continued(options)
        })
      )
    }

    it.effect(`a call with a repeated id needs its own approval, in turn ${turn} after a nested run that had waited`, () =>
      Effect.gen(function*() {
        const world: Array<Deed> = []
        const { value } = yield* after(acting(world, "pay", { approval: true }), world)
        assert.deepStrictEqual(waitingIn(value), ["approval call_0_2"])
        assert.isEmpty(world.filter(({ tool }) => tool === "pay"))
      }))

    it.effect(`a call with a repeated id needs its own authorization, in turn ${turn} after a nested run that had waited`, () =>
      Effect.gen(function*() {
        const world: Array<Deed> = []
        const pay = acting(world, "pay", { authorize: () => ({ allowed: false, reason: "not for you" }) })
        const { value } = yield* after(pay, world)
        assert.include(answersOf(value).at(-1), "not for you")
        assert.isEmpty(world.filter(({ tool }) => tool === "pay"))
      }))
  }

  for (const tag of ["CallStarted", "CallEnded"] as const) {
    it.effect(`a call with a repeated id needs its own approval, after an approved call cut after its ${tag}`, () =>
      Effect.gen(function*() {
        const turns = [[call("call_0", "pay")], [call("call_0", "pay")], "done"]
        const options = (world: Array<Deed>) => ({ tools: toolsOf(acting(world, "pay", { approval: true })) })
        const program = Effect.andThen(approved(options([]), "call_0"), continued(options([])))
        const uncut = yield* behind([], turns, program)
        assert.deepStrictEqual(waitingIn(uncut.value), ["approval call_0_2"])
        const length = uncut.written.findIndex(({ record }) => record._tag === tag) + 1
        const world: Array<Deed> = []
        const { value } = yield* behind(uncut.written.slice(0, length), turns, resumed(options(world)))
        assert.deepStrictEqual(waitingIn(value), ["approval call_0_2"])
        assert.isEmpty(world)
      }))
  }

  it.effect("a call with a repeated id has its own key, and an approved call keeps its key", () =>
    Effect.gen(function*() {
      const turns = [[call("call_0", "pay"), call("call_1", "pay")], [call("call_0", "echo")], "done"]
      const options = (world: Array<Deed>) => ({
        tools: toolsOf(
          acting(world, "pay", { approval: true, idempotent: true }),
          acting(world, "echo", { idempotent: true })
        ),
        maxConcurrency: 1
      })
      const whole: Array<Deed> = []
      const program = Effect.andThen(approved(options(whole), "call_0", "call_1"), continued(options(whole)))
      const { written } = yield* behind([], turns, program)
      assert.lengthOf(whole, 3)
      assert.strictEqual(new Set(keysOf(whole)).size, 3, keysOf(whole).join(" "))
      for (const length of placesIn(written)) {
        const before = written.slice(0, length)
        const world: Array<Deed> = []
        yield* behind(before, turns, resumed(options(world)))
        const where = `cut behind record ${length}, ${before.at(-1)?.record._tag}`
        assert.sameMembers(keysOf(world), keysOf(whole).slice(tagged(before, "CallEnded")), where)
      }
    }))

  it.effect("D-05: a call with the id of a call answered by its timeout runs in a resumed run", () =>
    Effect.gen(function*() {
      const turns = [[call("call_0", "fetch"), call("call_1", "slow")], [call("call_0", "fetch")], "done"]
      const options = (world: Array<Deed>) => ({
        tools: toolsOf(
          acting(
            world,
            "fetch",
            { timeout: 20 },
            ({ stepIndex }) => stepIndex === 0 ? Effect.never : Effect.succeed("fetched")
          ),
          slow(world, { idempotent: true })
        )
      })
      const uncut = yield* behind([], turns, overTime(replied(options([]))))
      assert.strictEqual(answersOf(uncut.value).at(-1), "fetched")
      const length = uncut.written.findIndex(({ record }) => record._tag === "CallEnded") + 1
      const world: Array<Deed> = []
      const { value } = yield* behind(uncut.written.slice(0, length), turns, resumed(options(world)))
      assert.deepStrictEqual(answersOf(value), answersOf(uncut.value))
      assert.deepStrictEqual(world.map(({ tool }) => tool), ["slow", "fetch"])
    }))

  it.effect("D-20: a call with a repeated id in another reply has its own nested run", () =>
    Effect.gen(function*() {
      let price = 0
      const parts = {
        go: [[call("call_0", "sub")], "it is", [call("call_0", "sub")], "it is"],
        get sub() {
          return [`price ${++price}`]
        }
      }
      const options = { tools: toolsOf(agent("sub", [])) }
      const uncut = yield* behind([], parts, Effect.andThen(replied(options), replied(options, "and tomorrow?")))
      assert.deepStrictEqual(answersOf(uncut.value), ["price 1", "price 2"])
      const length = uncut.written.findLastIndex(({ record }) => record._tag === "CallStarted") + 1
      price = 1
      const { value } = yield* behind(uncut.written.slice(0, length), parts, resumed(options))
      assert.deepStrictEqual(answersOf(value), ["price 1", "price 2"])
    }))
})

describe("a call that was not run, with the id of an approved call", () => {
  const turns = [[call("call_0", "pay")], [call("call_9", "slow"), call("call_0", "echo")], "done"]
  const options = {
    tools: toolsOf(acting([], "pay", { approval: true }), slow(), acting([], "echo")),
    maxConcurrency: 1
  }

  const assertKept = (kept: Session.Kept, loaded: Session.Kept | undefined) => {
    assert.lengthOf(answersOf(kept), 3)
    assert.isEmpty(check.thread(kept.session.thread))
    assert.deepStrictEqual(loaded?.session, kept.session)
  }

  it.effect("D-03: after a deadline the loaded session is the kept session", () =>
    Effect.gen(function*() {
      const program = Effect.gen(function*() {
        yield* approved(options, "call_0")
        const kept = yield* overTime(continued({ ...options, deadline: 50, grace: 10 }))
        assertKept(kept, yield* Session.load("s"))
      })
      yield* behind([], turns, program)
    }))

  it.effect("D-03: after a stop the loaded session is the kept session", () =>
    Effect.gen(function*() {
      const program = Effect.gen(function*() {
        yield* approved(options, "call_0")
        const claimed = yield* Session.claim("s", { poll: 5 })
        const continuing = Session.keep(claimed, (session) => Session.continue(session, null, options))
        const fiber = yield* Effect.forkChild(continuing, { startImmediately: true })
        yield* TestClock.adjust(30)
        yield* Session.stop("s")
        yield* TestClock.adjust("1 minute")
        assertKept(yield* Fiber.join(fiber), yield* Session.load("s"))
      })
      yield* behind([], turns, Effect.scoped(program))
    }))
})

describe("Durable.layer", () => {
  const conversations: Readonly<Record<string, ReadonlyArray<Turn>>> = {
    "the first run calls a tool": [[call("c", "order")], "ok", [call("c", "order")], "done"],
    "the first run says a text": ["hello", [call("c", "order")], "done"]
  }
  for (const [name, One] of Object.entries(conversations)) {
    it.effect(`D-20: runs that continue another run's thread are not run again: ${name}`, () =>
      Effect.gen(function*() {
        const world: Array<Deed> = []
        const tools = toolsOf(acting(world, "order"))
        const program = Effect.gen(function*() {
          const first = yield* Chat.run("One", { tools })
          const second = yield* Chat.run([...first.thread.messages, Message.user("Two")], { tools })
          return second.finalResponse?.outputText
        }).pipe(Effect.provide(Durable.layer({ id: "d" })))
        const { asked, value } = yield* behind([], { One }, Effect.all([program, program]))
        assert.deepStrictEqual(value, ["done", "done"])
        assert.deepStrictEqual(asked, One.map((_, turn) => `One ${turn}`))
        assert.lengthOf(world, One.filter((turn) => typeof turn !== "string").length)
      }))
  }
})

describe("a cut step of a session", () => {
  const stepped = (options: Options) =>
    Effect.flatMap(
      Session.load("s"),
      (loaded) => Session.keep(loaded!, (session) => Session.step(session, options))
    )

  it.effect("D-03: a resumed step runs its approved calls, and does not ask the model", () =>
    Effect.gen(function*() {
      const turns = [[call("c1", "pay")], [call("c2", "mail")], "done"]
      const options = (world: Array<Deed>) => ({
        tools: toolsOf(acting(world, "pay", { approval: true, idempotent: true }), acting(world, "mail"))
      })
      const program = Effect.andThen(approved(options([]), "c1"), stepped(options([])))
      const uncut = yield* behind([], turns, program)
      assert.strictEqual(uncut.value.session.status, "idle")
      for (const length of placesIn(uncut.written)) {
        const before = uncut.written.slice(0, length)
        const where = `cut behind record ${length}, ${before.at(-1)?.record._tag}`
        const world: Array<Deed> = []
        const { asked, value } = yield* behind(before, turns, resumed(options(world)))
        assert.isEmpty(asked, where)
        assert.deepStrictEqual(value.session, uncut.value.session, where)
        assert.deepStrictEqual(world.map(({ tool }) => tool), tagged(before, "CallEnded") === 0 ? ["pay"] : [], where)
      }
    }))

  it.effect("D-03: a resumed step asks the model once, and ends after its calls", () =>
    Effect.gen(function*() {
      const turns = [[call("c1", "mail")], [call("c1", "mail")], "done"]
      const options = (world: Array<Deed>) => ({ tools: toolsOf(acting(world, "mail", { idempotent: true })) })
      const program = Effect.gen(function*() {
        yield* Session.keep(yield* Session.open("s"), (session) => Session.appendUser(session, "go"))
        return yield* stepped(options([]))
      })
      const uncut = yield* behind([], turns, program)
      assert.strictEqual(uncut.value.session.status, "idle")
      for (const length of placesIn(uncut.written)) {
        const before = uncut.written.slice(0, length)
        const where = `cut behind record ${length}, ${before.at(-1)?.record._tag}`
        const { asked, value } = yield* behind(before, turns, resumed(options([])))
        assert.lengthOf(asked, 1 - tagged(before, "ReplyReceived"), where)
        assert.deepStrictEqual(value.session, uncut.value.session, where)
      }
    }))

  const approvedFirst = (options: Options) => Effect.andThen(approved(options, "c1"), stepped(options))
  const askedFirst = (options: Options) =>
    Effect.gen(function*() {
      yield* Session.keep(yield* Session.open("s"), (session) => Session.appendUser(session, "go"))
      return yield* stepped(options)
    })
  for (const [name, program] of [["approved calls", approvedFirst], ["the model", askedFirst]] as const) {
    const turns = [[call("c1", "mail")], [call("c1", "mail")], "done"]
    const options = (world: Array<Deed>) => ({
      tools: toolsOf(acting(world, "mail", { approval: program === approvedFirst, idempotent: true }))
    })
    const cut = Effect.gen(function*() {
      const { written } = yield* behind([], turns, program(options([])))
      return written.slice(0, placesIn(written)[0])
    })

    it.effect(`D-12: a stop requested meanwhile ends a cut step of ${name}`, () =>
      Effect.gen(function*() {
        const world: Array<Deed> = []
        const stopped = Effect.andThen(Session.stop("s"), resumed(options(world)))
        const { asked, value } = yield* behind(yield* cut, turns, stopped)
        assert.deepInclude(value.value.result.outcome, { _tag: "Cancelled", reason: "stop" })
        assert.strictEqual(value.session.status, "stopped")
        assert.isEmpty(asked)
        assert.isEmpty(world)
      }))

    it.effect(`D-24: a cut step of ${name} that is too old ends as failed and starts nothing`, () =>
      Effect.gen(function*() {
        const world: Array<Deed> = []
        const before = yield* cut
        yield* TestClock.adjust("2 minutes")
        const { asked, value } = yield* behind(before, turns, resumed(options(world), { maxAge: "1 minute" }))
        assert.strictEqual(value.value.result.outcome._tag, "Failed")
        assert.strictEqual(value.session.status, "error")
        assert.isEmpty(asked)
        assert.isEmpty(world)
      }))

    it.effect(`the stream of a resumed step of ${name} ends like that of a run`, () =>
      Effect.gen(function*() {
        const { tools } = options([])
        const events = Effect.flatMap(
          Session.load("s"),
          (loaded) => Stream.runCollect(Session.streamResume(loaded!, { takeOver: true, tools }))
        )
        const { value } = yield* behind(yield* cut, turns, events)
        assert.strictEqual(value.at(-1)?._tag, "ChatCompleted")
      }))
  }
})

describe("the calls of a cut run", () => {
  it.effect("D-12: a question asked before a stop is not open after the stop", () =>
    Effect.gen(function*() {
      const turns = [[call("call_0", "ask"), call("call_1", "slow")], "done"]
      const options = { tools: toolsOf(asking, slow()) }
      const { written } = yield* behind([], turns, overTime(replied(options)))
      const length = written.findIndex(({ record }) => record._tag === "CallEnded") + 1
      const program = Effect.andThen(Session.stop("s"), resumed(options))
      const { asked, value } = yield* behind(written.slice(0, length), turns, program)
      assert.deepInclude(value.value.result.outcome, { _tag: "Cancelled", reason: "stop" })
      assert.isEmpty(value.session.suspensions)
      assert.isEmpty(check.thread(value.session.thread))
      assert.isEmpty(asked)
    }))

  it.effect("a call whose id is not well-formed text runs as without a store", () =>
    Effect.gen(function*() {
      const turns = [[call("call\uD800", "echo")], "done"]
      const world: Array<Deed> = []
      const options = { tools: toolsOf(acting(world, "echo")) }
      const program = Effect.all([Chat.run("go", options), replied(options)])
      const { value: [chat, kept] } = yield* behind([], turns, program)
      assert.lengthOf(world, 2)
      assert.deepStrictEqual(answersOf(kept), ["echo"])
      assert.deepStrictEqual(answersOf(kept), answersOf({ session: Session.make({ thread: chat.thread }) }))
    }))
})
