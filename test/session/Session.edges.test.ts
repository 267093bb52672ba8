/**
 * Sessions at their edges: a store that is slow, answers that come in any order, programs that are killed while approved
 * calls and sub-agents run, and what is said meanwhile. Each title begins with the row of defects that it guards against.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { type Adapter, Chat, type Event, type Journal, Message, Policy, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as States from "../../src/internal/session/state.ts"
import {
  type Append,
  holding,
  inOrder,
  isLoaded,
  isValid,
  linesOf,
  listing,
  passing,
  placesOf,
  recordsOf,
  slow,
  stores,
  until
} from "../support/edges.ts"
import { acting, agent, casting } from "../support/nests.ts"
import { sampleOf } from "../support/property.ts"
import type { Deed } from "../support/survivor.ts"

const said = (words: string) => [Script.text(words), Script.finish("stop")]

const submitHi = (id: string) => Session.submit(id, "Hi")

/** The calls of a turn, each named for its tool: `"charge:c"`. */
const called = (...calls: ReadonlyArray<string>) => [
  ...calls.map((call) => {
    const [name = "", id = name] = call.split(":")
    return Script.toolCall(id, name)
  }),
  Script.finish("tool_calls")
]

const turn = (...calls: ReadonlyArray<string>) =>
  calls.map((call) => {
    const [name = "", id = name] = call.split(":")
    return [id, name, {}] as const
  })

/** A tool that takes so long. */
const taking = (
  name: string,
  millis: number,
  options: { readonly timeout?: number; readonly readOnly?: boolean } = {}
) => Tool.make(name, { parameters: {}, ...options, handler: () => Effect.as(Effect.sleep(millis), `${name} done`) })

const open = Effect.orDie(Session.open("s"))

const starts = (records: ReadonlyArray<Journal.Record>, id: string) =>
  records.filter((record) => record._tag === "CallStarted" && record.toolCallId === id).length

describe("a record that waits for its append", () => {
  for (const [where, base] of Object.entries(stores)) {
    it.effect(`N-01: a call answered while its start waits for the store is answered in the journal, ${where}`, () =>
      Effect.gen(function*() {
        for (const count of [1, 2, 3]) {
          for (const maxConcurrency of [1, undefined]) {
            for (const timeout of sampleOf([5, 20, 45, 55, 75, 105, 130], 2)) {
              const case_ = `${count} calls, ${maxConcurrency} at once, timeout ${timeout}`
              const names = ["a", "b", "c"].slice(0, count)
              const tools = names.map((name, index) => taking(name, index * 30, { timeout: timeout + index * 7 }))
              const kept = yield* passing(
                Effect.gen(function*() {
                  const opened = yield* open
                  const kept = yield* Session.keep(opened, (session) =>
                    Session.reply(session, "go", {
                      tools,
                      ...(maxConcurrency === undefined ? {} : { maxConcurrency })
                    }))
                  yield* isLoaded(kept, case_)
                  const next = yield* Session.keep(
                    (yield* Session.load("s"))!,
                    (session) => Session.reply(session, "and then?", { tools })
                  )
                  yield* isLoaded(next, case_)
                  return kept
                }).pipe(Effect.provide([slow(50, base), Script.layer([called(...names), said("Done"), said("Then")])]))
              )
              assert.strictEqual(
                kept.session.thread.messages.filter(({ role }) => role === "tool").length,
                count,
                case_
              )
            }
          }
        }
      }))
  }

  for (const kind of ["cancel", "stop", "timeout of a sub-agent's call"] as const) {
    it.effect(`N-01: a ${kind} at any time loses no record that waits for the store`, () =>
      Effect.gen(function*() {
        for (const at of sampleOf(Array.from({ length: 27 }, (_, index) => 5 + index * 15), 6)) {
          const inner = [taking("a", 20, { timeout: at }), taking("b", 60)]
          const tools = kind === "timeout of a sub-agent's call" ? [agent("outer", [agent("inner", inner)])] : inner
          const model = casting({
            go: [turn(...kind === "timeout of a sub-agent's call" ? ["outer"] : ["a", "b"]), "Done"],
            outer: [turn("inner"), "Outer"],
            inner: [turn("a", "b"), "Inner"]
          })
          yield* passing(
            Effect.gen(function*() {
              const opened = yield* open
              const cancel = kind === "cancel" ? { cancel: Effect.sleep(at) } : {}
              const run = yield* Effect.forkChild(
                Session.keep(opened, (session) => Session.reply(session, "go", { tools, ...cancel }))
              )
              if (kind === "stop") {
                yield* Effect.sleep(at)
                yield* Effect.flatMap(Session.stop("s"), ({ ended }) => ended)
              }
              const kept = yield* Fiber.join(run)
              yield* isLoaded(kept, `${kind} at ${at}`)
              const next = yield* Session.keep(
                (yield* Session.load("s"))!,
                (session) => Session.reply(session, "again", { tools: [] })
              )
              yield* isLoaded(next, `${kind} at ${at}`)
            }).pipe(Effect.provide([slow(50), model])),
            5
          )
        }
      }))
  }
})

describe("approved sub-agents that wait again", () => {
  const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which?")) })
  const gated = (world: Array<Deed>) => ({ ...acting(world, "gated"), approval: true as const })

  const model = casting({
    go: [turn("one", "two"), "Done"],
    one: [turn("ask:q"), "Asked"],
    two: [turn("gated:g"), "Gated"],
    deepOne: [turn("one"), "Asked below"],
    deepTwo: [turn("two"), "Gated below"]
  })

  const begun = {
    "continue with a message": (session: Session.Session, tools: ReadonlyArray<Tool.Any>) =>
      Session.continue(session, Message.user("and be quick"), { tools: tools as [] }),
    "reply": (session: Session.Session, tools: ReadonlyArray<Tool.Any>) =>
      Session.reply(session, "and be quick", { tools: tools as [] }),
    "reply with pending: \"deny\"": (session: Session.Session, tools: ReadonlyArray<Tool.Any>) =>
      Session.reply(session, "and be quick", { pending: "deny", tools: tools as [] }),
    "continue": (session: Session.Session, tools: ReadonlyArray<Tool.Any>) =>
      Session.continue(session, null, { tools: tools as [] })
  }

  for (const depth of [1, 2]) {
    for (const [how, operation] of Object.entries(begun)) {
      for (const first of ["question", "approval"] as const) {
        it.effect(`N-02: two approved sub-agents wait again and each is settled: ${how}, ${depth} deep, the ${first} first`, () =>
          Effect.gen(function*() {
            const world: Array<Deed> = []
            const [one, two] = [agent("one", [ask]), agent("two", [gated(world)])]
            const outer = depth === 1 ? [one, two] : [
              Tool.fromChat("one", { parameters: {}, chat: () => Chat.stream("deepOne", { tools: [one] }) }),
              Tool.fromChat("two", { parameters: {}, chat: () => Chat.stream("deepTwo", { tools: [two] }) })
            ]
            const tools = outer.map((tool) => ({ ...tool, approval: true as const }))
            const opened = yield* open
            const asked = yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools }))
            assert.deepStrictEqual(asked.session.suspensions.map(({ id }) => id), ["one", "two"])
            const half = yield* Session.keep(asked, (session) => Session.approve(session, "one"))
            const both = yield* Session.keep(half, (session) => Session.approve(session, "two"))
            let kept: Session.Kept = yield* Session.keep(both, (session) => operation(session, tools))
            yield* isLoaded(kept)
            assert.sameMembers(kept.session.suspensions.map(({ kind }) => kind), ["question", "approval"])
            const settle = {
              question: (session: Session.Session) =>
                Session.answer(session, session.suspensions.find(({ kind }) => kind === "question")!.id, "this one"),
              approval: (session: Session.Session) =>
                Session.approve(session, session.suspensions.find(({ kind }) => kind === "approval")!.id)
            }
            const order = first === "question" ? ["question", "approval"] as const : ["approval", "question"] as const
            for (const kind of order) {
              assert.strictEqual(Session.next(kept), "wait")
              kept = yield* Session.keep((yield* Session.load("s"))!, settle[kind])
              yield* isLoaded(kept)
            }
            assert.strictEqual(Session.next(kept), "continue")
            const done = yield* Session.keep(kept, (session) => Session.continue(session, null, { tools }))
            yield* isLoaded(done)
            assert.strictEqual(Session.next(done), "nothing")
            assert.strictEqual(world.length, 1)
            const lines = linesOf(done.session)
            for (const id of ["one", "two"]) {
              assert.strictEqual(lines.filter((line) => line.startsWith(`tool ${id}`)).length, 1, lines.join("\n"))
            }
            assert.strictEqual(
              lines.filter((line) => line.includes("and be quick")).length,
              how === "continue" ? 0 : 1,
              lines.join("\n")
            )
          }).pipe(Effect.provide([model, Session.Store.layerMemory])))
      }
    }
  }
})

describe("the user's message of an interrupted run", () => {
  const pay = (name: string, options: { readonly idempotent?: boolean } = {}) => {
    const world: Array<string> = []
    const tool = Tool.make(name, {
      parameters: {},
      approval: true,
      ...options,
      handler: (_, call) => Effect.sync(() => (world.push(call.idempotencyKey), "paid"))
    })
    return { tool, world }
  }
  const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which?")) })

  const modelOf = (isAsked: boolean) =>
    casting({
      go: [turn("pay", ...isAsked ? ["ask"] : [], "pay:other"), turn("pay:third"), "Done", "More", "Most"]
    })

  /** A session whose run was begun with these words and whose calls were approved, and all that was appended. */
  const whole = (operation: "reply" | "continue" | "deny", isAsked: boolean) =>
    Effect.gen(function*() {
      const appends: Array<Append> = []
      const { tool } = pay("pay")
      const tools = [tool, ask]
      yield* Effect.gen(function*() {
        let kept: Session.Kept = yield* open
        kept = yield* Session.keep(kept, (session) => Session.reply(session, "go", { tools }))
        if (operation !== "deny") kept = yield* Session.keep(kept, (session) => Session.approve(session, "other"))
        kept = yield* Session.keep(kept, (session) => Session.approve(session, "pay"))
        yield* Session.keep(kept, (session) =>
          operation === "continue"
            ? Session.continue(session, Message.user("these words"), { tools })
            : Session.reply(session, "these words", {
              tools,
              ...(operation === "deny" ? { pending: "deny" as const } : {})
            }))
      }).pipe(Effect.provide([modelOf(isAsked), listing(appends)]))
      // From the append on that has them they are said.
      const first = appends.findIndex(({ records }) => JSON.stringify(records).includes("these words"))
      return { appends, first: first + 1 }
    })

  const followed = {
    reply: (kept: Session.Kept, tools: ReadonlyArray<Tool.Any>) =>
      Session.keep(kept, (session) => Session.reply(session, "later words", { tools: tools as [], pending: "deny" })),
    continue: (kept: Session.Kept, tools: ReadonlyArray<Tool.Any>) =>
      Session.keep(
        kept,
        (session) =>
          session.suspensions.length > 0
            ? Effect.succeed(undefined)
            : Session.continue(session, null, { tools: tools as [] })
      ),
    append: (kept: Session.Kept) =>
      Session.keep(kept, (session) =>
        session.suspensions.length > 0 || session.approved.length > 0
          ? Effect.succeed(undefined)
          : Session.append(session, [Message.user("later words")])),
    resume: (kept: Session.Kept, tools: ReadonlyArray<Tool.Any>) =>
      Effect.gen(function*() {
        return kept.interrupted === undefined
          ? kept
          : yield* Session.resume(kept, { tools: tools as [], takeOver: true })
      }),
    abandon: (kept: Session.Kept) =>
      Effect.gen(function*() {
        return kept.interrupted === undefined ? kept : yield* Session.abandon(kept)
      })
  }

  for (const operation of ["reply", "continue", "deny"] as const) {
    for (const [how, follow] of Object.entries(followed)) {
      it.effect(`N-03: the message of a ${operation} is not lost where the run is killed at each append and followed by ${how}`, () =>
        Effect.gen(function*() {
          for (const isAsked of [false, true]) {
            const { appends, first } = yield* whole(operation, isAsked)
            for (let length = first; length <= appends.length; length++) {
              const where = `behind append ${length}, ${appends[length - 1]?.records.map(({ _tag }) => _tag).join(" ")}`
              const { tool, world } = pay("pay")
              const before = appends.slice(0, length).flatMap(({ records }) => records)
              const kept = yield* Effect.gen(function*() {
                const followed = yield* follow((yield* Session.load("s"))!, [tool, ask])
                // An operation that the session did not allow has changed nothing.
                const kept: Session.Kept = followed.interrupted === undefined
                  ? followed
                  : yield* Session.abandon(followed)
                const loaded = (yield* Session.load("s"))!
                if (kept.session.status !== "error") isValid(kept.session, where)
                assert.deepStrictEqual(loaded.session, kept.session, where)
                yield* inOrder
                return kept
              }).pipe(Effect.provide([modelOf(isAsked), holding(appends.slice(0, length))]))
              const lines = linesOf(kept.session)
              const text = `${where}\n${lines.join("\n")}`
              assert.strictEqual(lines.filter((line) => line.endsWith("these words")).length, 1, text)
              if (how === "reply") {
                assert.strictEqual(lines.filter((line) => line.endsWith("later words")).length, 1, text)
              }
              for (const id of ["pay", "other"]) {
                const started = starts(before, id)
                if (started > 0) assert.isEmpty(world.filter((key) => key.endsWith(`:${id}`)), text)
              }
            }
          }
        }))
    }
  }
})

describe("an approval whose tool is missing", () => {
  const pay = (world: Array<string>) =>
    Tool.make("pay", {
      parameters: {},
      approval: true,
      handler: (_, call) => Effect.sync(() => (world.push(call.idempotencyKey), "paid"))
    })

  const ways: Readonly<
    Record<string, (session: Session.Session) => Effect.Effect<unknown, Session.OperationError, Adapter.Adapter>>
  > = {
    "continue": (session: Session.Session) => Session.continue(session),
    "continue with a message": (session: Session.Session) => Session.continue(session, Message.user("well?")),
    "reply": (session: Session.Session) => Session.reply(session, "well?"),
    "reply with pending: \"deny\"": (session: Session.Session) => Session.reply(session, "well?", { pending: "deny" }),
    "start": (session: Session.Session) => Session.start(session),
    "step": (session: Session.Session) => Session.step(session),
    "streamContinue": (session: Session.Session) => Stream.runDrain(Session.streamContinue(session)),
    "streamStep": (session: Session.Session) => Stream.runDrain(Session.streamStep(session))
  }

  const script = () => Script.layer([called("pay"), said("Done"), said("More")])

  for (const [how, way] of Object.entries(ways)) {
    it.effect(`N-08: ${how} refuses an approved call whose tool is missing and changes nothing, and the call runs with the tool`, () =>
      Effect.gen(function*() {
        const world: Array<string> = []
        const tools = [pay(world)]
        const asked = yield* Session.keep(yield* open, (session) => Session.reply(session, "go", { tools }))
        const approved = yield* Session.keep(asked, (session) => Session.approve(session, "pay"))
        const error = yield* Effect.flip(Session.keep(approved, way))
        assert.instanceOf(error, Session.ResumeError)
        assert.deepInclude(error, { reason: "tool_missing", toolName: "pay", toolCallId: "pay" })
        const loaded = (yield* Session.load("s"))!
        assert.deepStrictEqual([loaded.version, loaded.session], [approved.version, approved.session])
        const data = yield* Effect.flip(way(approved.session))
        assert.deepInclude(data, { _tag: "ResumeError", reason: "tool_missing" })
        const { id: _id, ...anonymous } = approved.session
        const unnamed = yield* Effect.flip(way(anonymous))
        assert.match(unnamed.message, /^the session cannot be resumed: tool_missing: /)
        const done = yield* Session.keep(loaded, (session) => Session.continue(session, null, { tools }))
        yield* isLoaded(done)
        assert.deepStrictEqual([world.length, done.session.status], [1, "completed"])
      }).pipe(Effect.provide([script(), Session.Store.layerMemory])))
  }

  it.effect("N-08: resume refuses an approved call whose tool is missing, and changes nothing", () =>
    Effect.gen(function*() {
      const appends: Array<Append> = []
      const tools = [pay([])]
      yield* Effect.gen(function*() {
        const asked = yield* Session.keep(yield* open, (session) => Session.reply(session, "go", { tools }))
        const approved = yield* Session.keep(asked, (session) => Session.approve(session, "pay"))
        yield* Session.keep(approved, (session) => Session.continue(session, null, { tools }))
      }).pipe(Effect.provide([script(), listing(appends)]))
      const isStart = ({ records }: Append) => records.some(({ _tag }) => _tag === "RunStarted")
      const ended = appends.findIndex(({ records }) =>
        records.some((record) => record._tag === "CallEnded" && record.message.toolCallId === "pay")
      )
      const cuts = [appends.findLastIndex(isStart) + 1, ended]
      for (const length of cuts) {
        yield* Effect.gen(function*() {
          const cut = (yield* Session.load("s"))!
          const error = yield* Effect.flip(Session.resume(cut, { takeOver: true }))
          assert.deepInclude(error, { _tag: "ResumeError", reason: "tool_missing" })
          assert.deepStrictEqual(yield* Session.load("s"), cut)
        }).pipe(Effect.provide([script(), holding(appends.slice(0, length))]))
      }
    }))
})

describe("an empty session id", () => {
  for (const [name, operation] of Object.entries({ open: Session.open, claim: Session.claim, submit: submitHi })) {
    it.effect(`Session.${name} refuses an empty session id`, () =>
      Effect.gen(function*() {
        const exit = yield* Effect.exit(Effect.scoped(operation("") as Effect.Effect<unknown, unknown, Session.Store>))
        assert.include(String(exit), "the id of a session must not be empty")
      }).pipe(Effect.provide(Session.Store.layerMemory)))
  }
})

describe("a message for a nested run", () => {
  it.effect("Q-14: a message for a nested run is refused, and the error names the session around the run", () =>
    Effect.gen(function*() {
      const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which?")) })
      const tools = [agent("inner", [ask])]
      const opened = yield* Session.open("s")
      yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools }))
      const listed = yield* Stream.runCollect(Session.list({ prefix: "s/" }))
      for (const { id } of listed) {
        const refused = yield* Effect.flip(Session.submit(id, "Hello"))
        assert.deepInclude(refused, {
          reason: "nested",
          detail: "the session is a run inside \"s\": submit the message to that session"
        })
      }
      assert.lengthOf(listed, 1)
      assert.deepStrictEqual(yield* Stream.runCollect(Session.unfinished), [])
      yield* Session.submit("s/a@1", "A session of its own")
    }).pipe(Effect.provide([
      casting({ go: [[["a", "inner", {}]], "done"], inner: [[["q", "ask", {}]], "inner is done"] }),
      Session.Store.layerMemory
    ])))
})

describe("a call whose message is not in the thread", () => {
  it("Q-03: a resumed run keeps a call whose message is not in the thread", () => {
    const toolCall = Message.toolCall("c", "pay", {})
    const session = { ...Session.make({}), approved: [toolCall], answered: [{ id: "c", verdict: "approved" as const }] }
    const state = States.stateOf(session)
    const started: Journal.Record = {
      _tag: "RunStarted",
      requestId: "r",
      operation: "continue",
      startedAt: 0,
      messages: []
    }
    States.apply(state, started)
    States.apply(state, {
      _tag: "CallStarted",
      requestId: "r",
      toolCallId: "c",
      attempt: 1,
      idempotencyKey: "k"
    })
    for (const resumed of [true, false]) {
      const next = States.copyOf(state)
      States.apply(next, { ...started, ...(resumed ? { resumes: true } : { requestId: "r2" }) })
      assert.deepStrictEqual(Array.from(next.turn?.calls.keys() ?? []), resumed ? ["c"] : [])
      const messages = States.sessionOf(next).thread.messages
      if (!resumed) assert.include(String(messages.at(-1)?.content), "unknown_effect")
    }
  })
})

describe("the report of a stop", () => {
  const wait = (name: string, concurrency: "shared" | "exclusive" = "shared") =>
    Tool.make(name, { parameters: {}, concurrency, handler: () => Effect.never })
  const quick = Tool.make("quick", { parameters: {}, handler: () => Effect.succeed("quick") })
  const gated = Tool.make("gated", { parameters: {}, approval: true, handler: () => Effect.never })
  const reported = (options: { readonly tools: ReadonlyArray<Tool.Any>; readonly maxConcurrency?: number }) =>
    passing(Effect.scoped(Effect.gen(function*() {
      // Without a claim a run looks for its stop only when it writes.
      const claimed = yield* Session.claim("s")
      const run = yield* Effect.forkChild(
        Session.keep(claimed, (session) => Session.reply(session, "go", { ...options, tools: options.tools as [] }))
      )
      yield* until(Effect.map(recordsOf("s"), (records) => starts(records, "wait") > 0))
      const { ended } = yield* Session.stop("s")
      const report = yield* ended
      const kept = yield* Fiber.join(run)
      yield* isLoaded(kept)
      return report
    })))

  it.effect("N-09: the report of a stop names calls that wait for a permit, in call order", () =>
    Effect.gen(function*() {
      const report = yield* reported({ tools: [quick, wait("wait"), wait("later"), gated], maxConcurrency: 1 })
      assert.deepStrictEqual(report, {
        stopped: ["wait", "later", "gated"],
        ended: ["quick"],
        refused: [],
        unknown: []
      })
    }).pipe(Effect.provide([
      Script.layer([called("quick", "wait", "later", "gated"), said("Done")]),
      Session.Store.layerMemory
    ])))

  it.effect("N-09: the report of a stop names calls that a sibling ended before as ended, each time the report is awaited", () =>
    passing(
      Effect.scoped(Effect.gen(function*() {
        const failing = Tool.make("failing", { parameters: {}, handler: () => Effect.fail("broken") })
        const tools = [failing, wait("sibling"), wait("wait")] as const
        const policy: Policy.Policy = {
          ...Policy.falai,
          siblings: { ...Policy.falai.siblings, onToolError: "abortAll" }
        }
        const claimed = yield* Session.claim("s")
        const run = yield* Effect.forkChild(
          Session.keep(claimed, (session) => Session.reply(session, "go", { tools, policy }))
        )
        yield* until(Effect.map(recordsOf("s"), (records) => starts(records, "wait") > 0))
        const { ended } = yield* Session.stop("s")
        const report = { stopped: ["wait"], ended: ["failing", "sibling"], refused: [], unknown: [] }
        assert.deepStrictEqual(yield* Effect.all([ended, ended], { concurrency: "unbounded" }), [report, report])
        const kept = yield* Fiber.join(run)
        yield* Session.keep(kept, (session) => Session.reply(session, "Go on"))
        assert.deepStrictEqual(yield* ended, report, "after another run")
      })).pipe(
        Effect.provide([
          Script.layer([called("failing", "sibling"), called("wait"), said("Done")]),
          Session.Store.layerMemory
        ])
      )
    ))

  it.effect("N-09: the report of a stop names a call by its whole id, also an id with spaces", () =>
    Effect.gen(function*() {
      const report = yield* reported({ tools: [quick, wait("wait"), gated] })
      assert.deepStrictEqual(report, {
        stopped: ["wait", "a gated one"],
        ended: ["a quick one"],
        refused: [],
        unknown: []
      })
    }).pipe(Effect.provide([
      Script.layer([called("quick:a quick one", "wait", "gated:a gated one"), said("Done")]),
      Session.Store.layerMemory
    ])))

  it.effect("N-09: the report of a stop names calls that wait for an exclusive call", () =>
    Effect.gen(function*() {
      const report = yield* reported({ tools: [wait("wait", "exclusive"), wait("later"), quick] })
      assert.deepStrictEqual(report.stopped, ["wait", "later", "quick"])
    }).pipe(Effect.provide([
      Script.layer([called("wait", "later", "quick"), said("Done")]),
      Session.Store.layerMemory
    ])))

  it.effect("N-09: the report of a stop names approved calls of an earlier turn", () =>
    passing(
      Effect.scoped(Effect.gen(function*() {
        const tools = [{ ...wait("one"), approval: true as const }, { ...wait("two"), approval: true as const }]
        const asked = yield* Session.keep(
          yield* Session.claim("s"),
          (session) => Session.reply(session, "go", { tools })
        )
        const one = yield* Session.keep(asked, (session) => Session.approve(session, "one"))
        const both = yield* Session.keep(one, (session) => Session.approve(session, "two"))
        const run = yield* Effect.forkChild(
          Session.keep(both, (session) => Session.continue(session, null, { tools, maxConcurrency: 1 }))
        )
        yield* until(Effect.map(recordsOf("s"), (records) => starts(records, "one") > 0))
        const { ended } = yield* Session.stop("s")
        assert.deepStrictEqual((yield* ended).stopped, ["one", "two"])
        yield* isLoaded(yield* Fiber.join(run))
      })).pipe(Effect.provide([Script.layer([called("one", "two"), said("Done")]), Session.Store.layerMemory]))
    ))

  it.effect("N-09: the report of a stop names the calls of a run without an owner at each append, whatever ends the run", () =>
    Effect.gen(function*() {
      const appends: Array<Append> = []
      const names = ["a", "b", "c"]
      const tools = names.map((name) => Tool.make(name, { parameters: {}, handler: () => Effect.succeed(name) }))
      const script = () => Script.layer([called(...names), said("Done"), said("More")])
      yield* Effect.gen(function*() {
        yield* Session.keep(yield* open, (session) => Session.reply(session, "go", { tools, maxConcurrency: 1 }))
      }).pipe(Effect.provide([script(), listing(appends)]))
      const reply = appends.findIndex(({ records }) => records.some(({ _tag }) => _tag === "ReplyReceived"))
      for (const how of ["resume", "reply", "abandon"] as const) {
        for (let length = reply + 1; length < appends.length; length++) {
          const before = appends.slice(0, length).flatMap(({ records }) => records)
          if (before.some(({ _tag }) => _tag === "StepCompleted")) break
          const report = yield* passing(
            Effect.gen(function*() {
              const { ended } = yield* Session.stop("s")
              const cut = (yield* Session.load("s"))!
              if (how === "resume") yield* Session.resume(cut, { tools, takeOver: true })
              else if (how === "abandon") yield* Session.abandon(cut)
              else yield* Session.keep(cut, (session) => Session.reply(session, "later", { tools: [] }))
              yield* isLoaded((yield* Session.load("s"))!)
              return yield* ended
            }).pipe(Effect.provide([script(), holding(appends.slice(0, length))]))
          )
          const ended = names.filter((name) =>
            before.some((record) => record._tag === "CallEnded" && record.message.toolCallId === name)
          )
          const unknown = names.filter((name) => starts(before, name) > 0 && !ended.includes(name))
          const stopped = names.filter((name) => starts(before, name) === 0)
          assert.deepStrictEqual(report, { stopped, ended, refused: [], unknown }, `${how} behind append ${length}`)
        }
      }
    }))
})

describe("repeated commands after a snapshot", () => {
  for (const [where, base] of Object.entries(stores)) {
    it.effect(`N-13: a command repeated after a snapshot is known, and other content under its id is refused, ${where}`, () =>
      Effect.gen(function*() {
        const world: Array<Deed> = []
        const tools = [{ ...acting(world, "act"), approval: true as const }]
        yield* Session.submit("s", "go", { id: "m1" })
        let kept: Session.Kept = (yield* Session.load("s"))!
        kept = yield* Session.keep(kept, (session) => Session.reply(session, "go", { takes: "m1", tools }))
        kept = yield* Session.snapshot(kept)
        kept = yield* Session.keep(kept, (session) => Session.approve(session, "act", { command: "v1" }))
        kept = yield* Session.keep(kept, (session) => Session.continue(session, null, { tools }))
        kept = yield* Session.keep(kept, (session) => Session.reply(session, "more", { takes: "m2", tools }))
        for (let time = 0; time < 2; time++) {
          kept = yield* Session.snapshot((yield* Session.load("s"))!)
          assert.strictEqual((yield* recordsOf("s")).length, 1)
          const { version } = kept
          const again = yield* Session.submit("s", "go", { id: "m1" })
          assert.deepStrictEqual(again, { id: "m1", accepted: version })
          yield* Session.submit("s", "more", { id: "m2" })
          const verdict = yield* Session.keep(kept, (session) => Session.approve(session, "act", { command: "v1" }))
          assert.deepStrictEqual([verdict.version, verdict.session], [version, kept.session])
          for (const other of [Session.submit("s", "else", { id: "m1" }), Session.submit("s", "go", { id: "v1" })]) {
            assert.deepInclude(yield* Effect.flip(other), { _tag: "SessionError", reason: "id_taken" })
          }
          const taken = yield* Effect.flip(
            Session.keep(kept, (session) => Session.reply(session, "go", { takes: "m1", tools }))
          )
          assert.deepInclude(taken, { reason: "id_taken" })
          const denied = yield* Effect.flip(
            Session.keep(kept, (session) => Session.deny(session, "act", "no", { command: "v1" }))
          )
          assert.deepInclude(denied, { reason: "id_taken" })
          const loaded = (yield* Session.load("s"))!
          assert.strictEqual(loaded.version, version)
          for (const id of ["m1", "m2", "v1"]) {
            assert.strictEqual(Session.receipt(loaded, id)?.became, "completed", id)
          }
        }
        assert.strictEqual(world.length, 1)
        yield* inOrder
      }).pipe(Effect.provide([Script.layer([called("act"), said("Done"), said("More")]), base])))
  }
})

describe("a handler that has only asked", () => {
  const model = casting({ go: [turn("ask"), "Done"], outer: [turn("ask"), "Asked"], top: [turn("outer"), "Done"] })
  const flags = {
    readOnly: { readOnly: true },
    idempotent: { idempotent: true },
    "afterCrash: retry": { afterCrash: "retry" }
  } as const

  for (const [flag, options] of Object.entries(flags)) {
    for (const depth of [0, 1]) {
      it.effect(`N-14: a handler that only asked and is declared ${flag} asks again, killed at each append, ${depth} deep`, () =>
        Effect.gen(function*() {
          const asking = Tool.make("ask", {
            parameters: {},
            ...options,
            handler: () => Effect.succeed(Tool.askUser("Which?"))
          })
          const tools = depth === 0 ? [asking] : [agent("outer", [asking])]
          const words = depth === 0 ? "go" : "top"
          const appends: Array<Append> = []
          yield* Effect.gen(function*() {
            yield* Session.keep(yield* open, (session) => Session.reply(session, words, { tools }))
          }).pipe(Effect.provide([model, listing(appends)]))
          const first = appends.findIndex(({ records }) => records.some(({ _tag }) => _tag === "RunStarted"))
          for (let length = first + 1; length <= appends.length; length++) {
            yield* Effect.gen(function*() {
              const cut = (yield* Session.load("s"))!
              const kept = cut.interrupted === undefined ? cut : yield* Session.resume(cut, { takeOver: true, tools })
              assert.deepStrictEqual(kept.session.suspensions.map(({ question }) => question), ["Which?"])
              assert.strictEqual(Session.next(kept), "wait")
              const answered = yield* Session.keep(
                kept,
                (session) => Session.answer(session, session.suspensions[0]!.id, "this one")
              )
              const done = yield* Session.keep(answered, (session) => Session.continue(session, null, { tools }))
              yield* isLoaded(done)
              assert.strictEqual(done.session.status, "completed")
            }).pipe(Effect.provide([model, holding(appends.slice(0, length))]))
          }
        }))
    }
  }
})

describe("the session id of a call", () => {
  const seen: Array<readonly [string, string | null]> = []
  const look = Tool.make("look", {
    parameters: {},
    approval: true,
    handler: (_, call) => Effect.sync(() => (seen.push([call.name, call.sessionId]), "seen"))
  })
  const inner = Tool.fromChat("inner", {
    parameters: {},
    chat: (_, call) => {
      seen.push([call.name, call.sessionId])
      return Chat.stream("inner", { tools: [look] })
    }
  })
  const outer = Tool.fromChat("outer", {
    parameters: {},
    chat: (_, call) => {
      seen.push([call.name, call.sessionId])
      return Chat.stream("outer", { tools: [inner] })
    }
  })
  const model = casting({
    go: [turn("outer"), "Done"],
    outer: [turn("inner"), "Outer"],
    inner: [turn("look"), "Inner"]
  })

  it.effect("N-15: a call has the root's session id, two deep, also after an approval or a kill", () =>
    Effect.gen(function*() {
      const appends: Array<Append> = []
      seen.length = 0
      yield* Effect.gen(function*() {
        const asked = yield* Session.keep(yield* open, (session) => Session.reply(session, "go", { tools: [outer] }))
        const approved = yield* Session.keep(asked, (session) => Session.approve(session, session.suspensions[0]!.id))
        const done = yield* Session.keep(approved, (session) => Session.continue(session, null, { tools: [outer] }))
        assert.strictEqual(done.session.status, "completed")
      }).pipe(Effect.provide([model, listing(appends)]))
      assert.deepStrictEqual(new Set(seen.map(([, id]) => id)), new Set(["s"]))
      assert.deepStrictEqual(new Set(seen.map(([name]) => name)), new Set(["outer", "inner", "look"]))
      for (const length of placesOf(2, appends.length)) {
        yield* Effect.gen(function*() {
          const cut = (yield* Session.load("s"))!
          if (cut.interrupted !== undefined) yield* Session.resume(cut, { takeOver: true, tools: [outer] })
        }).pipe(Effect.provide([model, holding(appends.slice(0, length))]))
      }
      assert.deepStrictEqual(new Set(seen.map(([, id]) => id)), new Set(["s"]))
    }))

  it.effect("N-15: a call has the session id of a session outside any store", () =>
    Effect.gen(function*() {
      seen.length = 0
      const { session } = yield* Session.reply(Session.make({ id: "own" }), "go", {
        tools: [outer]
      })
      assert.include(["completed", "awaiting_tools"], session.status)
      assert.deepStrictEqual(new Set(seen.map(([, id]) => id)), new Set(["own"]))
    }).pipe(Effect.provide(model)))
})

describe("the events of a resumed run", () => {
  const isReplayed = (event: Event.Event) => "replayed" in event && event.replayed === true
  const idsOf = (events: ReadonlyArray<Event.Event>) =>
    events.flatMap((event) => event._tag === "ToolExecutionStarted" ? [event.id] : [])

  it.effect("N-18: with replays: false neither the observer nor the stream has replayed events, and the result is the same", () =>
    Effect.gen(function*() {
      const appends: Array<Append> = []
      const names = ["a", "b"]
      const tools = names.map((name) =>
        Tool.make(name, { parameters: {}, readOnly: true, handler: () => Effect.succeed(name) })
      )
      const model = casting({ go: [turn(...names), "Done"] })
      const run = { tools, maxConcurrency: 1, requestId: "run" }
      yield* Effect.gen(function*() {
        yield* Session.keep(yield* open, (session) => Session.reply(session, "go", run))
      }).pipe(Effect.provide([model, listing(appends)]))
      for (const length of placesOf(2, appends.length - 1)) {
        const before = appends.slice(0, length)
        const given = { ...run, takeOver: true }
        const resumed = (replays?: boolean) =>
          Effect.gen(function*() {
            const observed: Array<Event.Event> = []
            const cut = (yield* Session.load("s"))!
            const kept = yield* Session.resume(cut, {
              ...given,
              ...(replays === undefined ? {} : { replays }),
              onEvent: (event) => Effect.sync(() => void observed.push(event))
            })
            return { observed, kept }
          }).pipe(Effect.provide([model, holding(before)]))
        const all = yield* resumed()
        const some = yield* resumed(false)
        assert.deepStrictEqual(some.kept.value, all.kept.value)
        assert.deepStrictEqual(some.kept.session, all.kept.session)
        assert.deepStrictEqual(some.observed, all.observed.filter((event) => !isReplayed(event)))
        const streamed = yield* Effect.gen(function*() {
          const cut = (yield* Session.load("s"))!
          return Array.from(yield* Stream.runCollect(Session.streamResume(cut, { ...given, replays: false })))
        }).pipe(Effect.provide([model, holding(before)]))
        assert.deepStrictEqual(idsOf(streamed), idsOf(some.observed))
        assert.isFalse(streamed.some(isReplayed))
        const ended = before.flatMap(({ records }) => records).flatMap((record) =>
          record._tag === "CallEnded" ? [record.message.toolCallId] : []
        )
        for (const id of ended) assert.notInclude(idsOf(streamed), id, `behind append ${length}`)
        if (ended.length > 0 && !before.some(({ records }) => records.some(({ _tag }) => _tag === "StepCompleted"))) {
          assert.isTrue(all.observed.some(isReplayed), `behind append ${length}`)
        }
      }
    }))
})

describe("an abandoned run", () => {
  const depths = {
    "a turn of its own": { go: [turn("a", "b"), "Done", "More"] },
    "sub-agents": {
      go: [turn("outer"), "Done", "More"],
      outer: [turn("inner"), "Outer"],
      inner: [turn("a", "b"), "Inner"]
    }
  }

  for (const [what, parts] of Object.entries(depths)) {
    for (const [where, base] of Object.entries(stores)) {
      it.effect(`N-19: an abandoned run is closed at each append, and none of its started calls runs again: ${what}, ${where}`, () =>
        Effect.gen(function*() {
          const appends: Array<Append> = []
          const model = casting(parts)
          const toolsOf = (world: Array<Deed>) => {
            const acts = [acting(world, "a"), acting(world, "b")]
            return what === "sub-agents" ? [agent("outer", [agent("inner", acts)])] : acts
          }
          yield* Effect.gen(function*() {
            yield* Session.keep(yield* open, (session) => Session.reply(session, "go", { tools: toolsOf([]) as [] }))
          }).pipe(Effect.provide([model, listing(appends)]))
          for (const length of placesOf(2, appends.length - 1)) {
            const world: Array<Deed> = []
            const tools = toolsOf(world)
            yield* Effect.gen(function*() {
              const cut = (yield* Session.load("s"))!
              const { length: steps } = cut.interrupted!.steps
              const closed = yield* Session.abandon(cut)
              yield* isLoaded(closed, `behind append ${length}`)
              assert.deepStrictEqual(closed.value, closed.session)
              assert.strictEqual(Session.next(closed), "nothing")
              assert.isUndefined(closed.interrupted)
              assert.deepStrictEqual(yield* Stream.runCollect(Session.unfinished), [])
              assert.include(linesOf(closed.session), "user: go")
              assert.isAtLeast(linesOf(closed.session).length, 1 + steps)
              const exit = yield* Effect.exit(Session.abandon(closed))
              assert.include(String(exit), "there is nothing to abandon")
              const done = yield* Session.keep(
                closed,
                (session) => Session.reply(session, "later", { tools: tools as [] })
              )
              yield* isLoaded(done)
              assert.isEmpty(
                world.filter(({ key }) =>
                  appends.slice(0, length).flatMap(({ records }) => records).some((record) =>
                    record._tag === "CallStarted" && record.idempotencyKey === key
                  )
                ),
                `behind append ${length}`
              )
            }).pipe(Effect.provide([model, holding(appends.slice(0, length), [], base)]))
          }
        }))
    }
  }

  it.effect("N-19: an abandoned run under a claim stays claimed, and a run of another owner cannot be abandoned", () =>
    Effect.gen(function*() {
      const appends: Array<Append> = []
      const tools = [acting([], "a"), acting([], "b")]
      const model = casting({ go: [turn("a", "b"), "Done"] })
      yield* Effect.gen(function*() {
        yield* Session.keep(yield* open, (session) => Session.reply(session, "go", { tools }))
      }).pipe(Effect.provide([model, listing(appends)]))
      yield* Effect.scoped(Effect.gen(function*() {
        const stale = (yield* Session.load("s"))!
        const claimed = yield* Session.claim("s")
        const closed = yield* Session.abandon(claimed)
        assert.strictEqual(closed.claim, claimed.claim)
        const error = yield* Effect.flip(Session.abandon(stale))
        assert.strictEqual(error._tag, "SessionConflict")
      })).pipe(Effect.provide([model, holding(appends.slice(0, 4))]))
    }))
})

describe("the answer to a question", () => {
  const asks = (name: string) =>
    Tool.make(name, { parameters: {}, handler: () => Effect.succeed(Tool.askUser(`${name}?`)) })

  it.effect("N-33: an answer to a question in the thread's last message follows as the user's message, and the call keeps its placeholder", () =>
    Effect.gen(function*() {
      const kept = yield* Session.keep(yield* open, (session) => Session.reply(session, "go", { tools: [asks("one")] }))
      const answered = yield* Session.keep(kept, (session) => Session.answer(session, "one", "this"))
      assert.deepStrictEqual(linesOf(answered.session).slice(2), [
        "tool one: <awaiting user response>",
        "assistant one: one?",
        "user: this"
      ])
      const { result } = yield* Session.reply(kept.session, "this")
      assert.deepStrictEqual(linesOf({ ...kept.session, thread: result.thread }).slice(0, 5), linesOf(answered.session))
      const done = yield* Session.keep(answered, (session) => Session.continue(session))
      yield* isLoaded(done)
    }).pipe(Effect.provide([
      Script.layer([called("one"), said("Done"), said("Again")]),
      Session.Store.layerMemory
    ])))

  it.effect("N-33: an answer to one of several questions takes the place of its call's result, in any order", () =>
    Effect.gen(function*() {
      const kept = yield* Session.keep(
        yield* open,
        (session) => Session.reply(session, "go", { tools: [asks("one"), asks("two")] })
      )
      const first = yield* Session.keep(kept, (session) => Session.answer(session, "two", "that"))
      assert.deepStrictEqual(linesOf(first.session).slice(2), ["tool one: <awaiting user response>", "tool two: that"])
      const both = yield* Session.keep(first, (session) => Session.answer(session, "one", "this"))
      assert.deepStrictEqual(linesOf(both.session).slice(2), ["tool one: this", "tool two: that"])
      yield* isLoaded(yield* Session.keep(both, (session) => Session.continue(session)))
    }).pipe(Effect.provide([Script.layer([called("one", "two"), said("Done")]), Session.Store.layerMemory])))

  it.effect("N-33: an answer to a sub-agent's question lets the sub-agent give its call's result", () =>
    Effect.gen(function*() {
      const tools = [agent("outer", [asks("one")])]
      const kept = yield* Session.keep(yield* open, (session) => Session.reply(session, "go", { tools }))
      const answered = yield* Session.keep(kept, (session) => Session.answer(session, "outer/one", "this"))
      const done = yield* Session.keep(answered, (session) => Session.continue(session, null, { tools }))
      yield* isLoaded(done)
      assert.deepStrictEqual(linesOf(done.session), [
        "user: go",
        "assistant +outer: turn 0",
        "tool outer: Outer",
        "assistant: Done"
      ])
    }).pipe(Effect.provide([
      casting({ go: [turn("outer"), "Done"], outer: [turn("one"), "Outer"] }),
      Session.Store.layerMemory
    ])))
})

describe("a call with an effect in an unfinished reply", () => {
  const policies = {
    "Policy.falai": Policy.falai,
    "start: \"onCallReady\"": { ...Policy.standard, start: "onCallReady" as const },
    "Policy.standard": Policy.standard
  }
  for (const [name, policy] of Object.entries(policies)) {
    it.effect(`N-43: a call with an effect waits for its whole reply, and a kill at any append charges once: ${name}`, () =>
      Effect.gen(function*() {
        const appends: Array<Append> = []
        const world: Array<Deed> = []
        const look = { ...acting([], "look"), readOnly: true as const }
        const script = (isReplied = false) =>
          Script.layer([
            ...isReplied ? [] : [[
              Script.toolCall("look", "look"),
              Script.delay(100),
              Script.toolCall("charge", "charge"),
              Script.delay(100),
              Script.finish("tool_calls")
            ]],
            said("Done"),
            said("More")
          ])
        yield* passing(
          Effect.gen(function*() {
            const opened = yield* open
            yield* Session.keep(
              opened,
              (session) => Session.reply(session, "go", { tools: [look, acting(world, "charge")], policy })
            )
          }).pipe(Effect.provide([script(), listing(appends)]))
        )
        assert.strictEqual(world.length, 1)
        const indexOf = (tag: string, id?: string) =>
          appends.flatMap(({ records }) => records).findIndex((record) =>
            record._tag === tag && (id === undefined || record._tag === "CallStarted" && record.toolCallId === id)
          )
        assert.isBelow(indexOf("ReplyReceived"), indexOf("CallStarted", "charge"))
        if (name !== "Policy.standard") assert.isBelow(indexOf("CallStarted", "look"), indexOf("ReplyReceived"))
        for (const length of placesOf(2, appends.length - 1)) {
          const before = appends.slice(0, length).flatMap(({ records }) => records)
          const again: Array<Deed> = []
          yield* passing(
            Effect.gen(function*() {
              const cut = (yield* Session.load("s"))!
              const tools = [look, acting(again, "charge")]
              yield* Session.resume(cut, { takeOver: true, tools, policy })
              yield* isLoaded((yield* Session.load("s"))!)
            }).pipe(Effect.provide([
              script(before.some(({ _tag }) => _tag === "ReplyReceived")),
              holding(appends.slice(0, length))
            ]))
          )
          if (starts(before, "charge") > 0) assert.isEmpty(again, `behind append ${length}`)
        }
      }))
  }
})

describe("a run that fails after a call has charged", () => {
  class Refused extends Schema.TaggedError<Refused>("test/Refused")("Refused", {}) {}

  type Way = (session: Session.Session, options: Options) => Effect.Effect<unknown, unknown, Adapter.Adapter>
  type Options = Chat.Options<[], Refused, never, never, never>

  const ways: Readonly<Record<string, Way>> = {
    reply: (session: Session.Session, options: Options) => Session.reply(session, "the words", options),
    start: (session: Session.Session, options: Options) =>
      Effect.flatMap(Session.appendUser(session, "the words"), (session) => Session.start(session, options)),
    continue: (session: Session.Session, options: Options) =>
      Session.continue(session, Message.user("the words"), options),
    streamReply: (session: Session.Session, options: Options) =>
      Stream.runDrain(Session.streamReply(session, "the words", options))
  }
  for (const [where, base] of Object.entries(stores)) {
    for (const [how, way] of Object.entries(ways)) {
      it.effect(`N-44: a failed run leaves the user's message and an answer to each call: ${how}, ${where}`, () =>
        passing(
          Effect.gen(function*() {
            const world: Array<Deed> = []
            const fail = Tool.make("fail", {
              parameters: {},
              handler: () => Effect.andThen(Effect.sleep(10), Effect.fail("no"))
            })
            const slow = taking("slow", 1_000)
            const error = yield* Effect.flip(Session.keep(yield* open, (session) =>
              way(session, {
                tools: [acting(world, "charge"), fail, slow, taking("later", 10)] as unknown as [],
                maxConcurrency: 3,
                onToolError: () => Effect.succeed(Tool.ErrorDecision.fail(new Refused()))
              })))
            assert.instanceOf(error, Refused)
            assert.strictEqual(world.length, 1)
            const loaded = (yield* Session.load("s"))!
            isValid(loaded.session)
            yield* inOrder
            const lines = linesOf(loaded.session)
            assert.strictEqual(lines[0], "user: the words", lines.join("\n"))
            assert.include(lines, "tool charge: charge done")
            for (const id of ["charge", "fail", "slow", "later"]) {
              assert.strictEqual(lines.filter((line) => line.startsWith(`tool ${id}:`)).length, 1, lines.join("\n"))
            }
            const done = yield* Session.keep(loaded, (session) => Session.reply(session, "and now?", { tools: [] }))
            yield* isLoaded(done)
          }).pipe(Effect.provide([
            Script.layer([called("charge", "fail", "slow", "later"), said("Done")]),
            base
          ]))
        ))
    }
  }

  it.effect("N-44: a run that fails before a call has started takes the user's message back, also after an earlier turn", () =>
    Effect.gen(function*() {
      const before = yield* Session.keep(yield* open, (session) => Session.reply(session, "first"))
      const error = yield* Effect.flip(Session.keep(before, (session) => Session.reply(session, "second")))
      assert.strictEqual(error._tag, "AdapterError")
      const loaded = (yield* Session.load("s"))!
      assert.deepStrictEqual(linesOf(loaded.session), ["user: first", "assistant: Hello"])
      assert.deepStrictEqual(loaded.session, before.session)
      yield* inOrder
    }).pipe(
      Effect.provide([
        Script.layer([said("Hello"), [Script.preflightError("network_error")]]),
        Session.Store.layerMemory
      ])
    ))
})

describe("a manual call cancelled by another call's halt", () => {
  it.effect("Q-03: a manual call cancelled by a halt has one answer, and a run killed at any record ends by the same halt", () =>
    Effect.gen(function*() {
      const tools = [
        Tool.make("halt", {
          parameters: {},
          idempotent: true,
          handler: () => Effect.succeed(Tool.halt("enough", null))
        }),
        Tool.make("man", { parameters: {}, manual: true })
      ] as const
      const model = () => Script.layer([called("halt", "man")])
      const whole = yield* Effect.gen(function*() {
        yield* Session.keep(yield* open, (session) => Session.reply(session, "go", { tools }))
        return yield* recordsOf("s")
      }).pipe(Effect.provide([model(), Session.Store.layerMemory]))
      for (let length = 2; length < whole.length; length++) {
        yield* Effect.gen(function*() {
          const store = yield* Session.Store
          yield* store.append("s", 0, whole.slice(0, length) as [Journal.Record])
          const kept = yield* Session.resume(yield* open, { tools, takeOver: true })
          yield* inOrder
          assert.strictEqual(kept.value.result.haltedReason, "enough", `behind record ${length}`)
          isValid(kept.session)
        }).pipe(Effect.provide([model(), Session.Store.layerMemory]))
      }
    }))
})

describe("Session.start in a kept session", () => {
  it.effect("Session.start begins a new conversation with the kept session's id, context and metadata", () =>
    Effect.gen(function*() {
      const opened = yield* Session.open("s", { context: { user: "ann" }, metadata: { from: "test" } })
      const first = yield* Session.keep(opened, (session) => Session.reply(session, "before"))
      const { session } = yield* Session.keep(first, () => Session.start("anew"))
      assert.deepInclude(session, { id: "s", context: { user: "ann" }, metadata: { from: "test" } })
      assert.deepStrictEqual(linesOf(session), ["user: anew", "assistant: Hello"])
      assert.deepStrictEqual((yield* Session.load("s"))?.session, session)
    }).pipe(Effect.provide([Script.layer([said("Hi"), said("Hello")]), Session.Store.layerMemory])))

  it.effect("Session.start is a defect while a call waits, and leaves the session unchanged", () =>
    Effect.gen(function*() {
      const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
      const asked = yield* Session.keep(yield* open, (session) => Session.reply(session, "go", { tools: [pay] }))
      const exit = yield* Effect.exit(Session.keep(asked, () => Session.start("anew")))
      assert.include(String(exit), "call Session.approve or Session.deny")
      assert.deepStrictEqual((yield* Session.load("s"))?.session, asked.session)
    }).pipe(Effect.provide([Script.layer([called("pay")]), Session.Store.layerMemory])))
})

describe("calls started by an earlier process", () => {
  it.effect("Q-15: a started call runs again or is unknown where a stop comes before its second start is durable", () =>
    Effect.gen(function*() {
      const ran: Array<string> = []
      const tools = ["a", "b"].map((name) =>
        Tool.make(name, { parameters: {}, afterCrash: "retry", handler: () => Effect.sync(() => ran.push(name)) })
      )
      const started = Effect.gen(function*() {
        yield* Session.keep(yield* open, (session) => Session.reply(session, "go", { tools: tools as [] }))
        return (yield* recordsOf("s")).filter(({ _tag }, index) => index < 5 && _tag !== "CallEnded")
      }).pipe(Effect.provide([Script.layer([called("a", "b"), said("done")]), Session.Store.layerMemory]))
      const before = yield* started
      assert.deepStrictEqual([starts(before, "a"), starts(before, "b")], [1, 1])
      ran.length = 0
      yield* Effect.gen(function*() {
        const store = yield* Session.Store
        yield* store.append("s", 0, before as [Journal.Record], { summary: { next: "resume", status: "idle" } })
        // The stop is in the journal before the starts of the second attempts can be.
        const held: Journal.Service = {
          ...store,
          append: (id, expected, records, options) =>
            Effect.andThen(
              records.some(({ _tag }) => _tag === "CallStarted")
                ? Effect.ignore(Effect.provideService(Session.stop("s"), Session.Store, store))
                : Effect.void,
              store.append(id, expected, records, options)
            )
        }
        const kept = yield* Effect.provideService(
          Session.resume(yield* open, { tools: tools as [], takeOver: true }),
          Session.Store,
          held
        )
        assert.strictEqual(kept.session.status, "stopped")
        for (const name of ["a", "b"]) {
          const answer = linesOf(kept.session).find((line) => line.startsWith(`tool ${name}:`))
          assert.isTrue(ran.includes(name) || answer?.includes("unknown_effect"), answer)
        }
        yield* inOrder
      }).pipe(Effect.provide([Script.layer([said("done")]), Session.Store.layerMemory]))
    }))
})
