/** Approvals that a session remembers: for a tool or for the same arguments, as long as the tool stays as it was. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Journal, Message, Session, Tool } from "heddle"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import { temporaryFile } from "../sql/support/files.ts"
import { replyOf } from "../support/keptRecords.ts"
import { throughJson } from "../support/sessions.ts"
import { journalOf } from "../support/survivor.ts"

const { finish, text, toolCall } = Script

const done = [text("done"), finish("stop")]

/** A tool that asks, and the arguments that it ran with. */
const payer = (options: Partial<Tool.Options<any, any, any, any>> = {}) => {
  const runs: Array<unknown> = []
  const pay = Tool.make("pay", {
    description: "Pays",
    parameters: { amount: Schema.Finite, to: Schema.optionalKey(Schema.String) },
    approval: true,
    remember: "tool",
    handler: (args: unknown) => Effect.sync(() => (runs.push(args), "paid")),
    ...options as object
  }) as unknown as Tool.Any
  return { pay, runs }
}

let calls = 0

/** A turn with calls of a tool, each with its arguments. */
const paying = (...args: ReadonlyArray<object>) => [
  ...args.map((each) => toolCall(`c${++calls}`, "pay", each as never)),
  finish("tool_calls")
]

type Turns = Parameters<typeof Script.layer>[0]

const reply = (id: string, turns: Turns, tools: ReadonlyArray<Tool.Any>) =>
  Effect.gen(function*() {
    const kept = yield* Session.open(id)
    return yield* Session.keep(kept, (session) => Session.reply(session, "Pay", { tools })).pipe(
      Effect.provide(Script.layer(turns))
    )
  })

const goOn = (id: string, turns: Turns, tools: ReadonlyArray<Tool.Any>) =>
  Effect.gen(function*() {
    const kept = yield* Session.open(id)
    return yield* Session.keep(kept, (session) => Session.continue(session, null, { tools })).pipe(
      Effect.provide(Script.layer(turns))
    )
  })

const approve = (id: string, options: Session.ApproveOptions) =>
  Effect.gen(function*() {
    const kept = yield* Session.open(id)
    const [open] = kept.session.suspensions
    return yield* Session.keep(kept, (session) => Session.approve(session, open!.id, options))
  })

/** Asks once, approves with these options, and has the call run. */
const remembered = (id: string, tool: Tool.Any, options: Session.ApproveOptions, args: object = { amount: 5 }) =>
  Effect.gen(function*() {
    const asked = yield* reply(id, [paying(args)], [tool])
    assert.strictEqual(asked.session.suspensions[0]?.remember?.scope, tool.remember)
    yield* approve(id, options)
    return yield* goOn(id, [done], [tool])
  })

const stores = {
  "in memory": Session.Store.layerMemory,
  "on SQLite": Layer.unwrap(Effect.map(temporaryFile, (filename) => SessionStore.layerSqlite({ filename })))
}

for (const [where, store] of Object.entries(stores)) {
  const provided = Effect.provide(store, { local: true })

  describe(`remembered approvals ${where}`, () => {
    it.effect("R-561: an approval for the tool covers its later calls, and the journal names the approver", () =>
      Effect.gen(function*() {
        const { pay, runs } = payer()
        const kept = yield* remembered("s", pay, { remember: "tool", by: "ann" })
        const [allowed] = kept.session.allowed ?? []
        assert.deepInclude(allowed, { name: "pay", remember: "tool", by: "ann" })
        assert.notProperty(allowed, "arguments")
        const later = yield* reply("s", [paying({ amount: 6 }, { amount: 7 }), done], [pay])
        assert.strictEqual(later.session.status, "completed")
        // The platform computes a hash for each call, and may end the second computation first.
        assert.sameDeepMembers(runs, [{ amount: 5 }, { amount: 6 }, { amount: 7 }])
        const records = yield* journalOf("s")
        const settled = records.filter((record) => record._tag === "CallSettled")
        assert.deepStrictEqual(settled.map(({ by, remember }) => [by, remember]), [["ann", "tool"]])
        const started = records.flatMap((record) => record._tag === "CallStarted" ? [record.allowed] : [])
        const by = { id: settled[0]!.id, by: "ann" }
        assert.deepStrictEqual(started, [undefined, by, by])
        assert.deepStrictEqual(Journal.check(records), [])
        assert.deepStrictEqual(throughJson(later.session).allowed, later.session.allowed)
      }).pipe(provided))

    it.effect("R-561: an approval for the arguments covers equal arguments in any order, and no others", () =>
      Effect.gen(function*() {
        for (const scope of ["arguments", "tool"] as const) {
          const { pay, runs } = payer({ remember: scope })
          yield* remembered(scope, pay, { remember: "arguments" }, { amount: 5, to: "bob" })
          const same = yield* reply(scope, [paying({ to: "bob", amount: 5 }), done], [pay])
          assert.deepStrictEqual([same.session.status, runs.length], ["completed", 2])
          const others = [{ amount: 6, to: "bob" }, { amount: 5 }, { amount: 5, to: "bob", more: 1 }]
          for (const other of others) {
            const asked = yield* reply(scope, [paying(other)], [pay])
            assert.strictEqual(asked.session.status, "awaiting_tools", JSON.stringify(other))
            yield* approve(scope, {})
            yield* goOn(scope, [done], [pay])
          }
        }
      }).pipe(provided))

    it.effect("R-561: remember is refused against the tool's declaration, for edited arguments, and for an answer other than an approval", () =>
      Effect.gen(function*() {
        const cases: ReadonlyArray<readonly [Tool.Remember | undefined, Session.ApproveOptions, RegExp | undefined]> = [
          [undefined, { remember: "tool" }, /^invalid_answer: remember: /],
          [undefined, { remember: "arguments" }, /^invalid_answer: remember: /],
          ["arguments", { remember: "tool" }, /^invalid_answer: remember: /],
          ["arguments", { remember: "arguments", arguments: { amount: 1 } }, /^invalid_answer: remember: /],
          ["tool", { remember: "arguments", arguments: { amount: 1 } }, /^invalid_answer: remember: /],
          ["tool", { remember: "tool", arguments: { amount: 1 } }, undefined],
          ["arguments", { remember: "arguments" }, undefined]
        ]
        for (const [index, [remember, options, refusal]] of cases.entries()) {
          const { pay } = payer()
          const { remember: _, ...plain } = pay
          const tool = remember === undefined ? plain as Tool.Any : { ...pay, remember }
          const id = `s${index}`
          const { session } = yield* reply(id, [paying({ amount: 5 })], [tool])
          const given = yield* Effect.result(Session.approve(session, session.suspensions[0]!.id, options))
          if (refusal === undefined) assert.strictEqual(given._tag, "Success", id)
          else assert.match(given._tag === "Failure" ? given.failure.message : "", refusal, id)
        }
        const { pay } = payer()
        const { session } = yield* reply("more", [paying({ amount: 5 })], [pay])
        const { id } = session.suspensions[0]!
        for (const answer of [{ _tag: "Denied" }, { _tag: "Value", value: 1 }] as const) {
          const error = yield* Effect.flip(Session.settle(session, [{ id, answer, remember: "tool" }]))
          assert.match(error.message, /^invalid_answer: remember: /)
        }
        const settled = yield* Session.settle(session, [{ id, answer: { _tag: "Approved" }, remember: "tool" }])
        assert.deepStrictEqual(settled.allowed?.map(({ name, remember }) => [name, remember]), [["pay", "tool"]])
        assert.throws(
          () => Tool.make("t", { parameters: {}, remember: "tool", handler: () => Effect.void }),
          /remember needs approval/
        )
      }).pipe(provided))

    it.effect("R-561: the same command is one approval, and another extent under its id is refused", () =>
      Effect.gen(function*() {
        const { pay } = payer()
        yield* reply("s", [paying({ amount: 5 })], [pay])
        const options = { command: "k", remember: "tool" } as const
        const kept = (yield* Session.load("s"))!
        const [{ id } = { id: "" }] = kept.session.suspensions
        const once = yield* Session.keep(kept, (session) => Session.approve(session, id, options))
        const twice = yield* Session.keep(once, (session) => Session.approve(session, id, options))
        assert.strictEqual(twice.version, once.version)
        const other = Session.keep(once, (session) => Session.approve(session, id, { command: "k" }))
        assert.include((yield* Effect.flip(other)).message, "id_taken")
      }).pipe(provided))

    it.effect("R-561: a tool whose declaration has changed is asked about again", () =>
      Effect.gen(function*() {
        const { pay } = payer()
        yield* remembered("s", pay, { remember: "tool" })
        const changes: Readonly<Record<string, Partial<Tool.Options<any, any, any, any>>>> = {
          description: { description: "Pays twice" },
          parameters: { parameters: { amount: Schema.Finite } },
          destructive: { destructive: true },
          readOnly: { readOnly: true },
          "readOnly as a function": { readOnly: () => true },
          idempotent: { idempotent: true },
          openWorld: { openWorld: true },
          approval: { approval: () => true },
          version: { version: "2" },
          summary: { summary: "pays" },
          compact: { compact: true },
          metadata: { metadata: { mcp: { hash: "other" } } },
          remember: { remember: "arguments" }
        }
        for (const [name, change] of Object.entries(changes)) {
          yield* Session.open(name, {})
          const changed = payer(change)
          const kept = (yield* Session.load("s"))!
          const waits = yield* Session.reply(kept.session, "Pay", { tools: [changed.pay] }).pipe(
            Effect.provide(Script.layer([paying({ amount: 5 })]))
          )
          assert.deepStrictEqual([waits.session.status, changed.runs], ["awaiting_tools", []], name)
        }
        // The same tool, made again, is the same one.
        const again = payer()
        const kept = (yield* Session.load("s"))!
        const { session } = yield* Session.reply(kept.session, "Pay", { tools: [again.pay] }).pipe(
          Effect.provide(Script.layer([paying({ amount: 5 }), done]))
        )
        assert.deepStrictEqual([session.status, again.runs.length], ["completed", 1])
        // A tool of another name with the same words is another one.
        const other = { ...again.pay, name: "repay" } as Tool.Any
        const asked = yield* Session.reply(session, "Pay", { tools: [other] }).pipe(
          Effect.provide(Script.layer([[toolCall("o1", "repay", { amount: 5 }), finish("tool_calls")]]))
        )
        assert.strictEqual(asked.session.status, "awaiting_tools")
      }).pipe(provided))

    it.effect("R-561: a remembered approval survives a snapshot, does not pass to a branch, and ends with Session.disallow", () =>
      Effect.gen(function*() {
        const { pay, runs } = payer()
        const kept = yield* remembered("s", pay, { remember: "tool", by: "ann" })
        const snapshot = yield* Session.snapshot(kept)
        assert.deepStrictEqual(snapshot.session.allowed, kept.session.allowed)
        yield* reply("s", [paying({ amount: 6 }), done], [pay])
        assert.strictEqual(runs.length, 2)
        const { kept: branch } = yield* Session.fork("s", { id: "b", before: 0 })
        const later = yield* Session.fork("s", {
          id: "l",
          before: (yield* Session.load("s"))!.session.thread.messages.length - 4
        })
        for (const { session } of [branch, later.kept]) assert.isUndefined(session.allowed)
        const asked = yield* Session.keep(branch, (session) => Session.reply(session, "Pay", { tools: [pay] })).pipe(
          Effect.provide(Script.layer([paying({ amount: 5 })]))
        )
        assert.strictEqual(asked.session.status, "awaiting_tools")
        const before = (yield* journalOf("s")).length
        assert.isFalse(yield* Session.disallow("s", "other"))
        assert.isTrue(yield* Session.disallow("s", "pay", { by: "bob" }))
        assert.isFalse(yield* Session.disallow("s", "pay"))
        const records = yield* journalOf("s")
        assert.deepStrictEqual(
          records.slice(before).map((record) => record._tag === "ToolDisallowed" && [record.name, record.by]),
          [
            ["pay", "bob"]
          ]
        )
        assert.deepStrictEqual(Journal.check(records), [])
        const again = yield* reply("s", [paying({ amount: 5 })], [pay])
        assert.deepStrictEqual([again.session.allowed, again.session.status], [undefined, "awaiting_tools"])
        assert.strictEqual(runs.length, 2)
      }).pipe(provided))

    it.effect("R-561: an approval given in a run and withdrawn before its end is not remembered", () =>
      Effect.gen(function*() {
        const { pay } = payer()
        const { session } = yield* reply("s", [paying({ amount: 5 })], [pay])
        const [{ id } = { id: "" }] = session.suspensions
        const store = yield* Session.Store
        const run: Journal.Record = {
          _tag: "RunStarted",
          requestId: "r",
          operation: "step",
          startedAt: 0,
          messages: []
        }
        const settled: Journal.Record = { _tag: "CallSettled", id, answer: { _tag: "Approved" }, remember: "tool" }
        yield* store.append("s", yield* store.version("s"), [run, settled])
        assert.isTrue(yield* Session.disallow("s", "pay"))
        const ended: Journal.Record = { _tag: "RunEnded", requestId: "r", haltedReason: "" }
        yield* store.append("s", yield* store.version("s"), [ended])
        const kept = (yield* Session.load("s"))!
        assert.deepStrictEqual([kept.session.allowed, kept.session.approved.map(({ id }) => id)], [undefined, [id]])
      }).pipe(provided))

    it.effect("R-561: a call whose remembered approval is withdrawn before its start is recorded does not run", () =>
      Effect.gen(function*() {
        const { pay, runs } = payer()
        yield* remembered("s", pay, { remember: "tool" })
        const store = yield* Session.Store
        let isForgotten = false
        const forgetting: Journal.Service = {
          ...store,
          append: (id, expected, records, options) => {
            const append = store.append(id, expected, records, options)
            if (isForgotten || !records.some((record) => record._tag === "CallStarted")) return append
            isForgotten = true
            const forgotten = Effect.provideService(Session.disallow("s", "pay"), Session.Store, store)
            return Effect.andThen(forgotten, append)
          }
        }
        yield* Effect.scoped(Effect.gen(function*() {
          const claimed = yield* Session.claim("s")
          const replied = (session: Session.Session) => Session.reply(session, "Pay", { tools: [pay] })
          const { session } = yield* Session.keep(claimed, replied).pipe(
            Effect.provide(Script.layer([paying({ amount: 6 }), done]))
          )
          const answers = session.thread.messages.filter(({ role }) => role === "tool")
          assert.strictEqual(answers.at(-1)?.code, "cancelled")
          assert.include(String(answers.at(-1)?.content), "its approval was withdrawn")
          assert.deepStrictEqual([isForgotten, session.allowed], [true, undefined])
        })).pipe(Effect.provideService(Session.Store, forgetting))
        assert.strictEqual(runs.length, 1)
      }).pipe(provided))

    it.effect("R-561: a remembered approval survives a run that could not start, and so does its withdrawal", () =>
      Effect.gen(function*() {
        const { pay, runs } = payer()
        yield* remembered("s", pay, { remember: "tool", by: "ann" })
        const failing = Effect.gen(function*() {
          const kept = yield* Session.open("s")
          // No reply comes: the run gives back its message.
          yield* Effect.flip(
            Session.keep(kept, (session) => Session.reply(session, "Pay", { tools: [pay] })).pipe(
              Effect.provide(Script.layer([[Script.preflightError("network_error")]]))
            )
          )
          return (yield* Session.open("s")).session
        })
        const back = yield* failing
        assert.strictEqual(back.thread.messages.filter(({ role }) => role === "user").length, 1)
        assert.deepStrictEqual(back.allowed?.map(({ by, name }) => [name, by]), [["pay", "ann"]])
        yield* reply("s", [paying({ amount: 6 }), done], [pay])
        assert.deepStrictEqual(runs, [{ amount: 5 }, { amount: 6 }])
        assert.isTrue(yield* Session.disallow("s", "pay"))
        assert.isUndefined((yield* failing).allowed)
      }).pipe(provided))

    it.effect("R-561: a nested run neither has a remembered approval of the session nor lets an approval be remembered", () =>
      Effect.gen(function*() {
        const { pay, runs } = payer()
        const sub = Tool.fromChat("sub", { parameters: {}, chat: () => Chat.stream("inner", { tools: [pay] }) })
        yield* remembered("s", pay, { remember: "tool" })
        const asked = yield* reply(
          "s",
          [[toolCall("n1", "sub", {}), finish("tool_calls")], paying({ amount: 6 })],
          [pay, sub as unknown as Tool.Any]
        )
        const [suspension] = asked.session.suspensions
        assert.deepStrictEqual([asked.session.status, suspension?.path?.[0], runs.length], ["awaiting_tools", "n1", 1])
        assert.isUndefined(suspension?.remember)
        const refused = yield* Effect.flip(Session.approve(asked.session, suspension!.id, { remember: "tool" }))
        assert.match(refused.message, /^invalid_answer: remember: /)
      }).pipe(provided))
  })
}

describe("remembered approvals", () => {
  it.effect("R-561: remembered approvals are in the data of a session that is not kept, and the reducer has the same approvals", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const first = yield* Session.start("Pay", { tools: [pay] }).pipe(
        Effect.provide(Script.layer([paying({ amount: 5 })]))
      )
      const approved = yield* Session.approve(first.session, first.session.suspensions[0]!.id, {
        remember: "arguments"
      })
      const events = yield* Stream.runCollect(Session.streamContinue(throughJson(approved), null, { tools: [pay] }))
        .pipe(
          Effect.provide(Script.layer([paying({ amount: 5 }), paying({ amount: 6 })]))
        )
      assert.strictEqual(runs.length, 2)
      const { session } = Session.finalize(
        events.reduce(Session.applyEvent, Session.reducer(throughJson(approved), "chat"))
      )
      assert.strictEqual(session.suspensions[0]?.remember?.scope, "tool")
      assert.deepStrictEqual(session.allowed, approved.allowed)
    }))

  it.effect("R-561: a session remembers at most the last 100 approvals, and equal calls once", () =>
    Effect.sync(() => {
      const fold = Journal.fold("s")
      let version = 0
      const add = (record: Journal.Record) => fold.apply({ version: ++version, record })
      add({ _tag: "Opened", format: 1, session: Session.make({ id: "s" }) })
      for (let index = 0; index < 103; index++) {
        const [requestId, id, amount] = [`r${index}`, `x${index}`, Math.min(index, 101)]
        add({ _tag: "RunStarted", requestId, operation: "reply", startedAt: 0, messages: [] })
        const response = replyOf("", [Message.toolCall(id, "pay", { amount })])
        add({ _tag: "ReplyReceived", requestId, stepIndex: 0, response })
        const open = { id, kind: "approval", remember: { scope: "tool", tool: "h" } } as const
        add({ _tag: "CallWaits", requestId, toolCallId: id, suspensions: [open] })
        add({ _tag: "StepCompleted", requestId, stepIndex: 0, done: false })
        add({ _tag: "RunEnded", requestId, haltedReason: "approval_requested" })
        add({ _tag: "CallSettled", id, answer: { _tag: "Approved" }, remember: "arguments", time: index })
      }
      const amounts = (fold.kept.session.allowed ?? []).map((allowed) => [allowed.arguments?.["amount"], allowed.time])
      assert.deepStrictEqual([amounts.length, amounts[0], amounts.at(-2), amounts.at(-1)], [100, [2, 2], [100, 100], [
        101,
        102
      ]])
    }))
})
