/**
 * What a run inside a call waits for, the session waits for: under a path of ids, answered in any order and by any process.
 * The call then runs again, and the inner run goes on where it was.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { type Event, Session, Tool } from "heddle"
import { placesOf } from "../support/edges.ts"
import { acting, agent, casting, holding, listing, type Turn, type Written } from "../support/nests.ts"
import { sampleOf } from "../support/property.ts"
import type { Deed } from "../support/survivor.ts"

const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which city?")) })

const guarded = (world: Array<Deed>) =>
  Tool.make("guarded", { ...acting(world, "guarded"), parameters: {}, approval: true })

/** Two sub-agents that each ask and want an approval in one turn, and a call beside them that waits for nothing. */
const parts: Readonly<Record<string, ReadonlyArray<Turn>>> = {
  go: [[["a", "first", {}], ["b", "second", {}], ["c", "pay", {}]], "done"],
  first: [[["q", "ask", {}], ["g", "guarded", {}], ["p", "pay", {}]], [["p2", "pay", {}]], "first is done"],
  second: [[["q", "ask", {}], ["g", "guarded", {}]], "second is done"]
}

const toolsOf = (world: Array<Deed>) => {
  const own = [ask, guarded(world), acting(world, "pay")]
  return [agent("first", own), agent("second", own), acting(world, "pay")]
}

type Tools = ReadonlyArray<Tool.Any>

/** Settles one suspension, in a process of its own. */
const settle = (id: string) =>
  Effect.gen(function*() {
    const kept = (yield* Session.load("s"))!
    const { kind } = kept.session.suspensions.find((suspension) => suspension.id === id)!
    yield* Session.keep(
      kept,
      (session) => kind === "approval" ? Session.approve(session, id) : Session.answer(session, id, `to ${id}`)
    )
  })

const goOn = (tools: Tools) =>
  Effect.gen(function*() {
    const kept = (yield* Session.load("s"))!
    return yield* Session.keep(kept, (session) => Session.continue(session, null, { tools }))
  })

const begin = (tools: Tools) =>
  Effect.gen(function*() {
    const opened = yield* Session.open("s")
    return yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools }))
  })

const orders = <A>(all: ReadonlyArray<A>): ReadonlyArray<ReadonlyArray<A>> =>
  all.length === 0
    ? [[]]
    : all.flatMap((one) => orders(all.filter((other) => other !== one)).map((rest) => [one, ...rest]))

const contents = (session: Session.Session): ReadonlyArray<unknown> =>
  session.thread.messages.flatMap(({ content, role, toolCallId }) => role === "tool" ? [[toolCallId, content]] : [])

const pathsOf = (suspensions: ReadonlyArray<Event.Suspension> = []) =>
  suspensions.map(({ id, kind, path }) => [id, kind, path])

/** A middle run that runs one of its own, both of which wait. */
const deep: Readonly<Record<string, ReadonlyArray<Turn>>> = {
  go: [[["a", "middle", {}], ["c", "pay", {}]], "done"],
  middle: [[["m", "inner", {}], ["p", "pay", {}], ["q", "ask", {}]], "middle is done"],
  inner: [[["q", "ask", {}], ["g", "guarded", {}]], "inner is done"]
}

const retried = (world: Array<Deed>) => Tool.make("pay", { ...acting(world, "pay"), parameters: {}, idempotent: true })

const deepTools = (world: Array<Deed>) => {
  const own = [ask, Tool.make("guarded", { ...guarded(world), parameters: {}, approval: true, idempotent: true })]
  return [agent("middle", [retried(world), ask, agent("inner", own)]), retried(world)]
}

/** Drives the session until nothing is left to do, whatever was done before. */
const driven = (tools: Tools): Effect.Effect<Session.Session, any, any> =>
  Effect.gen(function*() {
    const kept = yield* Session.load("s")
    if (kept === undefined || kept.version === 1) yield* begin(tools)
    else if (kept.interrupted !== undefined) yield* Session.resume(kept, { tools, takeOver: true })
    else if (kept.session.suspensions[0] !== undefined) yield* settle(kept.session.suspensions[0].id)
    else if (kept.session.status !== "completed") yield* goOn(tools)
    else return kept.session
    return yield* driven(tools)
  })

const settledIn = (written: ReadonlyArray<Written>): ReadonlyArray<string> =>
  written.flatMap(({ id, record }) => id === "s" && record._tag === "CallSettled" ? [record.id] : [])

/** With a model for one sub-agent that asks once. */
const provided = Effect.provide([
  casting({ go: [[["a", "only", {}]], "done"], only: [[["q", "ask", {}]], "only is done"] }),
  Session.Store.layerMemory
])

describe("a nested run that waits", () => {
  it.effect("D-23: waits of nested runs rise to the session and are answered in any order, and the nested runs continue", () =>
    Effect.gen(function*() {
      for (const order of sampleOf(orders(["a/q", "a/g", "b/q", "b/g"]))) {
        const where = order.join(", ")
        const world: Array<Deed> = []
        const asked: Array<string> = []
        const program = Effect.gen(function*() {
          const begun = yield* begin(toolsOf(world))
          const { result } = begun.value
          assert.deepStrictEqual(pathsOf(result.suspensions), [
            ["a/q", "question", ["a", "q"]],
            ["a/g", "approval", ["a", "g"]],
            ["b/q", "question", ["b", "q"]],
            ["b/g", "approval", ["b", "g"]]
          ])
          assert.deepInclude(result.outcome, {
            _tag: "AskUser",
            pendingQuestion: "Which city?",
            pendingToolCallId: "a/q"
          })
          assert.deepStrictEqual(begun.session.suspensions, result.suspensions)
          assert.deepStrictEqual(contents(begun.session), [["c", "pay done"]], "the sibling has its answer")
          assert.strictEqual(begun.session.status, "awaiting_user")
          for (const id of order) yield* settle(id)
          return yield* goOn(toolsOf(world))
        })
        const { session, value: { result } } = yield* Effect.provide(program, [
          casting(parts, asked),
          Session.Store.layerMemory
        ])
        assert.strictEqual(result.outcome._tag, "Completed", where)
        assert.deepStrictEqual(
          contents(session),
          [["a", "first is done"], ["b", "second is done"], ["c", "pay done"]],
          where
        )
        assert.deepStrictEqual(
          world.map(({ tool }) => tool).toSorted(),
          ["guarded", "guarded", "pay", "pay", "pay"],
          where
        )
        assert.sameMembers(asked, ["go 0", "first 0", "second 0", "first 1", "first 2", "second 1", "go 1"], where)
        assert.isUndefined(session.nested, where)
      }
    }))

  it.effect("D-23: waits rise through three levels, cut at every record of all journals", () =>
    Effect.gen(function*() {
      const world: Array<Deed> = []
      const written: Array<Written> = []
      const asked: Array<string> = []
      const uncut = yield* Effect.provide(driven(deepTools(world)), [casting(deep, asked), listing(written)])
      assert.deepStrictEqual(contents(uncut), [["a", "middle is done"], ["c", "pay done"]])
      assert.deepStrictEqual(world.map(({ tool }) => tool), ["pay", "pay", "guarded"])
      for (const length of placesOf(1, written.length - 1)) {
        const before = written.slice(0, length)
        const last = before.at(-1)
        const where = `cut behind record ${length}, ${last?.record._tag} of ${last?.id}`
        const again: Array<Deed> = []
        const askedAgain: Array<string> = []
        const after: Array<Written> = []
        const session = yield* Effect.provide(
          driven(deepTools(again)),
          [casting(deep, askedAgain), holding(before, after)]
        )
        const settled = settledIn(before)
        assert.deepStrictEqual(settledIn(after).filter((id) => settled.includes(id)), [], `${where}: settled again`)
        const ended = new Set(
          before.flatMap(({ record }) => record._tag === "CallEnded" ? [record.message.toolCallId] : [])
        )
        for (const { key } of again) assert.isFalse(ended.has(key.split(":").at(-1) ?? ""), `${where}: ${key} again`)
        const replies = before.filter(({ record }) => record._tag === "ReplyReceived").length
        assert.isAtMost(askedAgain.length, asked.length - replies, `${where}: a model was asked again`)
        assert.deepStrictEqual(contents(session), contents(uncut), where)
        assert.strictEqual(session.status, "completed", where)
      }
    }))

  it.effect("Q-14: the usage of a nested run counts once where the process ends after the call's second start", () =>
    Effect.gen(function*() {
      const only: Readonly<Record<string, ReadonlyArray<Turn>>> = {
        go: [[["a", "only", {}]], "done"],
        only: [[["q", "ask", {}]], "only is done"]
      }
      const tools = [agent("only", [ask])]
      const written: Array<Written> = []
      const program = Effect.gen(function*() {
        yield* begin(tools)
        yield* settle("a/q")
        return yield* goOn(tools)
      })
      const uncut = yield* Effect.provide(program, [casting(only), listing(written)])
      const at = written.findLastIndex(({ id, record }) => id === "s" && record._tag === "CallStarted")
      const resumed = Effect.gen(function*() {
        const kept = (yield* Session.load("s"))!
        return yield* Session.resume(kept, { tools, takeOver: true })
      })
      const { session, value } = yield* Effect.provide(resumed, [casting(only), holding(written.slice(0, at + 1))])
      assert.deepStrictEqual([session.status, contents(session)], ["completed", [["a", "only is done"]]])
      assert.deepStrictEqual(value.result.totalUsage, uncut.value.result.totalUsage)
    }))

  it.effect("a reply answers the only question of a nested run", () =>
    Effect.gen(function*() {
      const program = Effect.gen(function*() {
        yield* begin([agent("only", [ask])])
        const kept = (yield* Session.load("s"))!
        return yield* Session.keep(
          kept,
          (session) => Session.reply(session, "Paris", { tools: [agent("only", [ask])] })
        )
      })
      const { session, value: { result } } = yield* provided(program)
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.deepStrictEqual(contents(session), [["a", "only is done"]])
    }))

  it.effect("each answer counts once, and an answer to a call that does not wait is refused", () =>
    Effect.gen(function*() {
      const program = Effect.gen(function*() {
        const begun = yield* begin([agent("only", [ask])])
        const answered = yield* Session.answer(begun.session, "a/q", "Paris")
        const twice = yield* Effect.flip(Session.answer(answered, "a/q", "Rome"))
        const other = yield* Effect.flip(Session.answer(begun.session, "q", "Paris"))
        return [twice.reason, other.reason]
      })
      assert.deepStrictEqual(yield* provided(program), ["already_answered", "unknown_tool_call_id"])
    }))

  it.effect("a reply that denies the open calls continues the nested runs, and no denied call runs", () =>
    Effect.gen(function*() {
      const world: Array<Deed> = []
      const program = Effect.gen(function*() {
        yield* begin(toolsOf(world))
        const kept = (yield* Session.load("s"))!
        return yield* Session.keep(
          kept,
          (session) => Session.reply(session, "never mind", { pending: "deny", tools: toolsOf(world) })
        )
      })
      const model = casting(parts)
      const { session } = yield* Effect.provide(program, [model, Session.Store.layerMemory])
      assert.deepStrictEqual(contents(session), [["a", "first is done"], ["b", "second is done"], ["c", "pay done"]])
      assert.isFalse(world.some(({ tool }) => tool === "guarded"))
    }))

  it.effect("a run that ends by a halt answers its waiting call as withdrawn", () =>
    Effect.gen(function*() {
      const halt = Tool.make("halt", { parameters: {}, handler: () => Effect.succeed(Tool.halt("enough", 1)) })
      const model = casting({ ...parts, go: [[["a", "only", {}], ["h", "halt", {}]]], only: [[["q", "ask", {}]]] })
      const { session, value: { result } } = yield* Effect.provide(
        begin([agent("only", [ask]), halt]),
        [model, Session.Store.layerMemory]
      )
      assert.strictEqual(result.outcome._tag, "Halted")
      assert.deepStrictEqual(session.suspensions, [])
      assert.match(String(contents(session)[0]), /a,.*withdrawn/)
    }))

  it.effect("a nested run that waits fails its call where the session is not kept", () =>
    Effect.gen(function*() {
      const { result, session } = yield* Effect.provide(
        Session.start([{ role: "user", content: "go" }], { tools: [agent("only", [ask])] }),
        casting({ go: [[["a", "only", {}]], "done"], only: [[["q", "ask", {}]]] })
      )
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.match(String(contents(session)[0]), /ask_user: Which city/)
    }))

  it.effect("the events of a call have the waits of its nested run", () =>
    Effect.gen(function*() {
      const events: Array<Event.Event> = []
      const onEvent = (event: Event.Event) => void events.push(event)
      const opened = Session.open("s")
      const program = Effect.flatMap(opened, (opened) =>
        Session.keep(
          opened,
          (session) => Session.reply(session, "go", { onEvent, tools: [agent("only", [ask])] })
        ))
      const { session } = yield* provided(program)
      const own = events.filter((event) => event._tag.startsWith("ToolE") || event._tag === "ToolSuspended")
      assert.deepStrictEqual(own.map(({ _tag }) => _tag), ["ToolExecutionStarted", "ToolSuspended"])
      assert.deepInclude(own[1], { toolCallId: "a", toolName: "only", suspensions: session.suspensions })
    }))

  it.effect("a nested run may ask again, and the outer model is not asked meanwhile", () =>
    Effect.gen(function*() {
      const asked: Array<string> = []
      const tools = [agent("twice", [ask])]
      const twice = {
        go: [[["a", "twice", {}]], "done"],
        twice: [[["q1", "ask", {}]], [["q2", "ask", {}]], "both are known"]
      } as const
      const program = Effect.gen(function*() {
        const open: Array<unknown> = []
        let kept: Session.Kept = yield* begin(tools)
        while (kept.session.suspensions[0] !== undefined) {
          open.push([kept.session.suspensions[0].id, kept.session.status])
          yield* settle(kept.session.suspensions[0].id)
          kept = yield* goOn(tools)
        }
        return { open, session: kept.session }
      })
      const { open, session } = yield* Effect.provide(program, [casting(twice, asked), Session.Store.layerMemory])
      assert.deepStrictEqual(open, [["a/q1", "awaiting_user"], ["a/q2", "awaiting_user"]])
      assert.deepStrictEqual(contents(session), [["a", "both are known"]])
      assert.deepStrictEqual(asked, ["go 0", "twice 0", "twice 1", "twice 2", "go 1"])
    }))

  it.effect("a stop while a nested run continues cancels the waiting call and the nested run", () =>
    Effect.gen(function*() {
      const stop = yield* Deferred.make<void>()
      const world: Array<Deed> = []
      const stuck = Tool.make("stuck", {
        parameters: {},
        handler: () => Effect.andThen(Deferred.succeed(stop, undefined), Effect.never)
      })
      const tools = [agent("only", [ask]), agent("other", [stuck, acting(world, "pay")])]
      const model = casting({
        go: [[["a", "only", {}], ["b", "other", {}]], "done"],
        only: [[["q", "ask", {}]], "only is done"],
        other: [[["s", "stuck", {}]], [["p", "pay", {}]]]
      })
      const written: Array<Written> = []
      const program = Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const kept = yield* Session.keep(
          opened,
          (session) => Session.reply(session, "go", { tools, cancel: Deferred.await(stop) })
        )
        const reply = yield* Session.keep(kept, (session) => Session.reply(session, "and now?", { tools }))
        return { kept, reply, unfinished: yield* Stream.runCollect(Session.unfinished) }
      })
      const { kept, reply, unfinished } = yield* Effect.provide(program, [model, listing(written)])
      assert.strictEqual(kept.value.result.outcome._tag, "Cancelled")
      assert.deepStrictEqual(kept.session.suspensions, [])
      assert.match(String(contents(kept.session)[0]), /a,.*cancelled/)
      assert.match(String(contents(kept.session)[1]), /b,.*cancelled/)
      assert.strictEqual(reply.value.result.outcome._tag, "Completed")
      assert.deepStrictEqual(unfinished, [])
      assert.deepStrictEqual(world, [])
    }))

  it.effect("a nested run that cannot continue leaves no unfinished session", () =>
    Effect.gen(function*() {
      const tools = [agent("only", [ask])]
      const program = Effect.gen(function*() {
        yield* begin(tools)
        yield* settle("a/q")
        const { session } = yield* goOn(tools)
        return { session, unfinished: yield* Stream.runCollect(Session.unfinished) }
      })
      const model = casting({ go: [[["a", "only", {}]], "done"], only: [[["q", "ask", {}]], "done"] }, [], "only 1")
      const { session, unfinished } = yield* Effect.provide(program, [model, Session.Store.layerMemory])
      assert.match(String(contents(session)[0]), /a,.*network_error/)
      assert.deepStrictEqual(unfinished, [])
    }))
})
