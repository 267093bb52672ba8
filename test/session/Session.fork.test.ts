/** Branches: a session that begins with the conversation before a message of another one, which stays as it is. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Journal, Message, Session, Thread, Tool } from "heddle"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import { temporaryFile } from "../sql/support/files.ts"
import { calling, defect, done, payer } from "../support/sessions.ts"

const { finish, text, toolCall } = Script

const counted = () => {
  const runs: Array<string> = []
  const note = Tool.make("note", {
    parameters: {},
    handler: (_, { id }) =>
      Effect.sync(() => {
        runs.push(id)
        return Tool.ok("noted")
      })
  })
  return { note, runs }
}

const said = (words: string) => [text(words), finish("stop")]

/** Submits a message and has it answered, under the id of the message. */
const say = (
  id: string,
  message: string,
  turns: Parameters<typeof Script.layer>[0],
  tools: ReadonlyArray<Tool.Any> = []
) =>
  Effect.gen(function*() {
    yield* Session.submit(id, message, { id: message })
    const kept = (yield* Session.load(id))!
    return yield* Session.keep(kept, (session) =>
      Session.reply(Session.recover(session), message, { takes: message, tools })).pipe(
        Effect.provide(Script.layer(turns))
      )
  })

const messagesOf = ({ session }: Session.Kept): ReadonlyArray<string> =>
  session.thread.messages.map((message) => `${message.role}: ${Message.text(message)}`)

/** The journal of a session, as its store has it. */
const journalOf = (id: string) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    return JSON.stringify([yield* store.version(id), yield* Stream.runCollect(store.read(id))])
  })

const reasonOf = <R>(effect: Effect.Effect<unknown, { readonly _tag: string; readonly reason?: string }, R>) =>
  Effect.map(Effect.flip(effect), ({ _tag, reason }) => `${_tag} ${reason}`)

const stores = {
  "in memory": Session.Store.layerMemory,
  "on SQLite": Layer.unwrap(Effect.map(temporaryFile, (filename) => SessionStore.layerSqlite({ filename })))
}

for (const [where, store] of Object.entries(stores)) {
  const provided = Effect.provide(store, { local: true })

  describe(`Session.fork ${where}`, () => {
    it.effect("R-560: a branch begins with the conversation, context and data before a message, and continues with the new message", () =>
      Effect.gen(function*() {
        const { note, runs } = counted()
        yield* Session.open("a", { context: { user: "ann" }, origin: { agent: "helper", principal: "ann" } })
        yield* say("a", "m1", [said("one")])
        yield* say("a", "m2", [[toolCall("c1", "note"), finish("tool_calls")], said("two")], [note])
        yield* say("a", "m3", [said("three")])
        const before = yield* journalOf("a")
        const { calls, kept } = yield* Session.fork("a", { id: "b", before: "m2", message: { content: "other" } })
        assert.deepStrictEqual(messagesOf(kept), ["user: m1", "assistant: one"])
        assert.deepStrictEqual(kept, yield* Session.load("b"))
        assert.deepStrictEqual(kept.submitted?.map(({ id, message }) => [id, message.content]), [["b", "other"]])
        assert.deepStrictEqual(calls.map(({ id, name }) => [id, name]), [["c1", "note"]])
        assert.deepStrictEqual([kept.session.id, kept.session.context], ["b", { user: "ann" }])
        const { forkedFrom, ...origin } = kept.origin
        assert.deepStrictEqual(origin, { agent: "helper", principal: "ann" })
        assert.deepInclude(forkedFrom, { id: "a", message: "m2" })
        // The version is that of the session with which the branch begins.
        const fold = Journal.fold("a")
        yield* Stream.runForEach(
          (yield* Session.Store).read("a"),
          (entry) => Effect.sync(() => entry.version > (forkedFrom?.version ?? 0) ? undefined : fold.apply(entry))
        )
        assert.deepStrictEqual(messagesOf(fold.kept), messagesOf(kept))
        const { session } = yield* Session.keep(
          kept,
          (session) => Session.reply(session, "other", { takes: "b", tools: [note] })
        ).pipe(
          Effect.provide(Script.layer([said("new")]))
        )
        assert.deepStrictEqual(messagesOf({ ...kept, session }), [
          "user: m1",
          "assistant: one",
          "user: other",
          "assistant: new"
        ])
        assert.deepStrictEqual([yield* journalOf("a"), runs], [before, ["c1"]])
        assert.deepStrictEqual(
          (yield* Stream.runCollect(Session.list())).flatMap(({ forkedFrom, id }) =>
            forkedFrom ? [[id, forkedFrom.message]] : []
          ),
          [["b", "m2"]]
        )
        assert.deepStrictEqual(
          Journal.check((yield* Stream.runCollect((yield* Session.Store).read("b"))).map(({ record }) => record)),
          []
        )
      }).pipe(provided))

    it.effect("R-560: a branch without a message only begins, and has no work left", () =>
      Effect.gen(function*() {
        yield* say("a", "m1", [said("one")])
        const { calls, kept } = yield* Session.fork("a", { id: "b", before: "m1" })
        assert.deepStrictEqual([messagesOf(kept), Session.next(kept), calls, kept.version], [[], "nothing", [], 1])
        assert.deepStrictEqual(yield* Stream.runCollect(Session.unfinished), [])
      }).pipe(provided))

    it.effect("R-560: the same fork command makes one branch, and another command under its id is refused", () =>
      Effect.gen(function*() {
        yield* say("a", "m1", [said("one")])
        yield* say("a", "m2", [said("two")])
        yield* Session.submit("c", "own")
        const asked = { id: "b", before: "m2", message: { content: "other" } }
        const first = yield* Session.fork("a", asked)
        const again = yield* Effect.all(
          [Session.fork("a", asked), Session.fork("a", asked)],
          { concurrency: "unbounded" }
        )
        for (const each of again) assert.deepStrictEqual(each, first)
        const journal = yield* journalOf("b")
        const others: ReadonlyArray<Session.ForkOptions> = [
          { ...asked, message: { content: "third" } },
          { id: "b", before: "m2" },
          { ...asked, before: "m1" },
          { ...asked, id: "a" },
          { ...asked, id: "c" }
        ]
        for (const other of others) {
          assert.strictEqual(yield* reasonOf(Session.fork("a", other)), "SessionError id_taken", JSON.stringify(other))
        }
        assert.strictEqual(yield* journalOf("b"), journal)
        // The branch has its id also where the earlier session has a run by then, and where its own run has ended.
        yield* Session.submit("a", "m3")
        yield* Session.keep((yield* Session.load("b"))!, (session) => Session.reply(session, "other", { takes: "b" }))
          .pipe(
            Effect.provide(Script.layer([said("new")]))
          )
        const late = yield* Session.fork("a", asked)
        assert.deepStrictEqual(messagesOf(late.kept).at(-1), "assistant: new")
        // One that only began is another command than one with a message.
        yield* Session.fork("a", { id: "d", before: "m1" }).pipe(Effect.flip)
      }).pipe(provided))

    it.effect("R-560: concurrent fork commands make one branch, and a command with other content is refused", () =>
      Effect.gen(function*() {
        yield* say("a", "m1", [said("one")])
        const contents = ["x", "x", "y"]
        const made = yield* Effect.forEach(
          contents,
          (content) => Effect.result(Session.fork("a", { id: "b", before: "m1", message: { content } })),
          { concurrency: "unbounded" }
        )
        const kept = (yield* Session.load("b"))!
        const winner = kept.submitted?.[0]?.message.content
        assert.deepStrictEqual(
          made.map(({ _tag }) => _tag === "Success"),
          contents.map((content) => content === winner)
        )
        assert.strictEqual(kept.version, 2)
      }).pipe(provided))

    it.effect("R-560: a fork is refused in a run, in an unfinished turn, and before an unknown message", () =>
      Effect.gen(function*() {
        const { pay } = payer()
        yield* say("a", "m1", [said("one")])
        assert.strictEqual(
          yield* reasonOf(Session.fork("a", { id: "b", before: "m9" })),
          "SessionError unknown_message"
        )
        assert.strictEqual(
          yield* reasonOf(Session.fork("no", { id: "b", before: "m1" })),
          "SessionError unknown_message"
        )
        for (const before of [1, 2, 9]) {
          assert.strictEqual(yield* reasonOf(Session.fork("a", { id: "b", before })), "SessionError unknown_message")
        }
        yield* say("a", "m2", [calling("pay:p")], [pay])
        const waiting = yield* Effect.flip(Session.fork("a", { id: "b", before: "m1" }))
        assert.strictEqual(
          waiting.message,
          "unfinished: the session has work left (wait): a branch begins between whole runs"
        )
        const settled = yield* Session.keep((yield* Session.load("a"))!, (session) => Session.approve(session, "p"))
        assert.strictEqual(yield* reasonOf(Session.fork("a", { id: "b", before: "m1" })), "SessionError unfinished")
        yield* Session.keep(settled, (session) => Session.continue(session, null, { tools: [pay] })).pipe(
          Effect.provide(Script.layer([done]))
        )
        const { calls, kept } = yield* Session.fork("a", { id: "b", before: "m2" })
        assert.deepStrictEqual([messagesOf(kept), calls.map(({ id }) => id)], [["user: m1", "assistant: one"], ["p"]])
        const store = yield* Session.Store
        const run: Journal.Record = {
          _tag: "RunStarted",
          requestId: "r",
          operation: "reply",
          startedAt: 0,
          messages: [Message.user("m3")]
        }
        yield* store.append("a", yield* store.version("a"), [run])
        assert.strictEqual(yield* reasonOf(Session.fork("a", { id: "c", before: "m1" })), "SessionError unfinished")
        assert.isUndefined(yield* Session.load("c"))
      }).pipe(provided))

    it.effect("R-560: a fork before a message that its run gave back begins where the last run took the message", () =>
      Effect.gen(function*() {
        yield* say("a", "m1", [said("one")])
        yield* Session.submit("a", "m2", { id: "m2" })
        const failed = yield* Session.keep(
          (yield* Session.load("a"))!,
          (session) => Session.reply(session, "m2", { takes: "m2" })
        ).pipe(
          Effect.provide(Script.layer([[Script.preflightError("rate_limited")]])),
          Effect.exit
        )
        assert.strictEqual(failed._tag, "Failure")
        assert.strictEqual(yield* reasonOf(Session.fork("a", { id: "b", before: "m1" })), "SessionError unfinished")
        yield* Session.keep((yield* Session.load("a"))!, (session) => Session.reply(session, "m2", { takes: "m2" }))
          .pipe(
            Effect.provide(Script.layer([said("two")]))
          )
        const forked = yield* Session.fork("a", { id: "b", before: "m2" })
        assert.deepStrictEqual([messagesOf(forked.kept), forked.kept.session.status], [
          ["user: m1", "assistant: one"],
          "completed"
        ])
      }).pipe(provided))

    it.effect("R-560: after a snapshot a fork names a message by its place and leaves the journal unchanged", () =>
      Effect.gen(function*() {
        yield* say("a", "m1", [said("one")])
        const kept = yield* say("a", "m2", [said("two")])
        yield* Session.snapshot(kept)
        const before = yield* journalOf("a")
        assert.strictEqual(
          yield* reasonOf(Session.fork("a", { id: "b", before: "m2" })),
          "SessionError unknown_message"
        )
        assert.strictEqual(yield* reasonOf(Session.fork("a", { id: "b", before: 1 })), "SessionError unknown_message")
        const forked = yield* Session.fork("a", { id: "b", before: 2, message: { content: "other" } })
        assert.deepStrictEqual(messagesOf(forked.kept), ["user: m1", "assistant: one"])
        assert.deepInclude(forked.kept.origin.forkedFrom, { id: "a", message: "message-2" })
        assert.strictEqual(yield* journalOf("a"), before)
      }).pipe(provided))

    it.effect("R-560: a fork before a message of the earlier session makes a branch of the earlier session", () =>
      Effect.gen(function*() {
        yield* say("a", "m1", [said("one")])
        yield* say("a", "m2", [said("two")])
        yield* Session.fork("a", { id: "b", before: "m2", message: { content: "other" } })
        yield* Session.keep((yield* Session.load("b"))!, (session) => Session.reply(session, "other", { takes: "b" }))
          .pipe(
            Effect.provide(Script.layer([said("new")]))
          )
        const own = yield* Session.fork("b", { id: "c", before: "b" })
        assert.deepInclude(own.kept.origin.forkedFrom, { id: "b", message: "b" })
        for (const [id, before] of [["d", "m1"], ["e", 0]] as const) {
          const { kept } = yield* Session.fork("b", { id, before, message: { content: "first" } })
          assert.deepInclude(kept.origin.forkedFrom, { id: "a", message: "m1" }, id)
          assert.deepStrictEqual(messagesOf(kept), [])
        }
        // The same id in another conversation is another session.
        yield* Session.delete("a")
        yield* say("a", "m0", [said("zero")])
        yield* say("a", "m1", [said("one")])
        const cut = yield* Session.fork("b", { id: "f", before: 0 })
        assert.deepInclude(cut.kept.origin.forkedFrom, { id: "b", message: "message-0" })
        assert.strictEqual(
          yield* reasonOf(Session.fork("b", { id: "g", before: "m1" })),
          "SessionError unknown_message"
        )
        yield* Session.delete("a")
        yield* Session.open("a", { origin: { forkedFrom: { id: "b", version: 1, message: "b" } } })
        assert.strictEqual(
          yield* reasonOf(Session.fork("b", { id: "g", before: "m1" })),
          "SessionError unknown_message"
        )
      }).pipe(provided))

    it.effect("R-560: a fork may begin at a message that a program appended, also within a list of messages", () =>
      Effect.gen(function*() {
        yield* say("a", "m1", [said("one")])
        const more = [Message.user("two"), Message.assistant("2"), Message.user("three"), Message.assistant("3")]
        yield* Session.keep((yield* Session.load("a"))!, (session) => Session.append(session, more))
        yield* say("a", "m4", [said("four")])
        for (const [id, before, length] of [["b", 2, 2], ["c", 4, 4]] as const) {
          const { kept } = yield* Session.fork("a", { id, before })
          assert.strictEqual(kept.session.thread.messages.length, length)
          assert.isTrue(Thread.validate(kept.session.thread)._tag === "Success")
        }
      }).pipe(provided))

    it.effect("R-560: a fork returns the later calls that may have had an effect, by the codes of their answers", () =>
      Effect.gen(function*() {
        const codes = Tool.ToolError.fields.reason.literals
        const calls = codes.map((code) => Message.toolCall(code, "pay"))
        yield* say("a", "m1", [said("one")])
        yield* Session.keep((yield* Session.load("a"))!, (session) =>
          Session.append(session, [
            Message.user("two"),
            Message.assistant("", calls),
            ...codes.map((code) => ({ ...Message.tool(code, "no"), isError: true, code })),
            Message.assistant("2")
          ]))
        const { calls: found } = yield* Session.fork("a", { id: "b", before: "m1" })
        // What no handler was asked to do has no effect.
        const without = new Set<string>(["denied", "unknown_tool", "invalid_arguments", "truncated_arguments"])
        assert.deepStrictEqual(found.map(({ id }) => id), codes.filter((code) => !without.has(code)))
      }).pipe(provided))

    it.effect("R-560: a check sees the branch before the fork writes the branch, and may refuse the fork", () =>
      Effect.gen(function*() {
        yield* say("a", "m1", [said("one")])
        const seen: Array<unknown> = []
        const check = (kept: Session.Kept) => {
          seen.push(kept.origin.forkedFrom?.message, Session.view(kept).size.turns)
          return Effect.fail("too many" as const)
        }
        assert.strictEqual(yield* Effect.flip(Session.fork("a", { id: "b", before: "m1", check })), "too many")
        assert.deepStrictEqual([seen, yield* Session.load("b")], [["m1", 0], undefined])
        assert.include(
          yield* defect(Session.fork("a", { id: "b", before: "m1", content: "x" } as never)),
          "Session.fork has no option \"content\""
        )
      }).pipe(provided))
  })
}
