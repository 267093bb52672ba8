/** Rules that are wrong: each is a defect, or an error, that names the rule. A kept run loses nothing, and is resumed. */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, Journal, Message, Rule, Session } from "heddle"
import { check, Script } from "heddle/testing"
import { passing, recordsOf } from "../support/edges.ts"
import { look, modelOf, type Replies } from "../support/ruled.ts"

const { finish, text, toolCall } = Script

/** One turn with a call, and an answer. */
const replies: Replies = ({ messages }) =>
  messages.some(({ role }) => role === "tool")
    ? [text("done"), finish("stop")]
    : [toolCall("c", "look"), finish("tool_calls")]

const model = () => Adapter.layer(modelOf(replies, []))

/** The text of a defect, with those that caused it. */
const defectOf = (exit: Exit.Exit<unknown, unknown>): string => {
  assert.isTrue(Exit.isFailure(exit), "it has no defect")
  const defect = Exit.isFailure(exit) ? Cause.squash(exit.cause) : undefined
  return String(defect)
}

const options = (...rules: ReadonlyArray<unknown>) => ({ tools: [look], rules, grace: 50 }) as never as Chat.Options<[]>

const running = (...rules: ReadonlyArray<unknown>) =>
  Effect.exit(Effect.suspend(() => Chat.run("go", options(...rules)))).pipe(Effect.provide(model()))

/** A kept run with a wrong rule, and what becomes of it with the right one. */
const mended = (wrong: Rule.Rule, right: Rule.Rule = Rule.make("wrong", {})) =>
  Effect.gen(function*() {
    const opened = yield* Session.open("s")
    const exit = yield* Effect.exit(
      Session.keep(opened, (session) => Session.reply(session, "go", { ...options(wrong), requestId: "run" }))
    )
    const cut = (yield* Session.load("s"))!
    assert.strictEqual(Session.next(cut), "resume")
    const { session, value: { result } } = yield* Session.resume(cut, { ...options(right), takeOver: true })
    assert.strictEqual(result.outcome._tag, "Completed")
    assert.isEmpty(check.thread(session.thread))
    assert.isEmpty(Journal.check(yield* recordsOf("s")))
    assert.deepStrictEqual(
      session.thread.messages.map((message) => `${message.role}: ${Message.text(message)}`),
      ["user: go", "assistant: ", "tool: seen", "assistant: done"]
    )
    return exit
  }).pipe(Effect.provide([model(), Session.Store.layerMemory]))

const hooks = ["ask", "reply", "next", "end", "hear"] as const

const broken = new Error("secret")

/** A function that does something wrong, once it is called. */
const wrong: Readonly<Record<string, () => unknown>> = {
  throws: () => {
    throw broken
  },
  dies: () => Effect.die(broken),
  "returns a number": () => 7,
  "returns nothing": () => undefined,
  "returns another tag": () => ({ _tag: "Other" }),
  "returns an unreadable object": () => ({
    get _tag(): string {
      throw broken
    }
  }),
  "returns a promise": () => Promise.resolve({})
}

describe("a wrong rule", () => {
  for (const hook of hooks) {
    for (const [what, does] of Object.entries(wrong)) {
      // What `end` returns says nothing.
      if (hook === "end" && what.startsWith("returns") && what !== "returns a promise") continue
      it.effect(`R-504: a rule whose ${hook} ${what} is a defect that names the rule, and a kept run continues with the right rule`, () =>
        Effect.gen(function*() {
          const rule = Rule.make("wrong", { [hook]: does } as never)
          assert.include(defectOf(yield* running(rule)), `rule "wrong": ${hook}`)
          assert.include(defectOf(yield* mended(rule)), `rule "wrong": ${hook}`)
        }))
    }
  }

  it.effect("R-504: a rule that cannot be opened is a defect that names the rule", () =>
    Effect.gen(function*() {
      const opens: ReadonlyArray<() => unknown> = [
        () => {
          throw broken
        },
        () => Effect.die(broken),
        () => Effect.succeed(7),
        () => Effect.succeed({ asks: () => 1 }),
        () => Effect.succeed({ handlers: { count: 1 } }),
        () => 7
      ]
      for (const open of opens) {
        const rule = Rule.make("wrong", { open } as never)
        assert.include(defectOf(yield* mended(rule)), "\"wrong\"")
      }
    }))

  const said: Readonly<Record<string, (ask: Rule.Ask, at: Rule.At) => unknown>> = {
    "a note over its bound": (ask) => Rule.ask(ask, { note: "n".repeat(70_000) }),
    "a note that is no JSON": (ask) => Rule.ask(ask, { note: { at: new Date(0) } as never }),
    "a note of a function": (ask) => Rule.ask(ask, { note: (() => 1) as never }),
    "an answer to a call": (ask) => Rule.ask(ask, { messages: [Message.answer("gone", "x")] }),
    "a call": (ask) => Rule.ask(ask, { messages: [Message.assistant("", [Message.toolCall("x", "look", {})])] }),
    "strings for messages": (ask) => Rule.ask(ask, { messages: ["hello"] as never }),
    "a number for messages": (ask) => Rule.ask(ask, { messages: 7 as never }),
    "a text for messages": (ask) => Rule.ask(ask, { messages: "hello" as never }),
    "a thread for messages": (ask, at) => Rule.ask(ask, { messages: at.thread as never }),
    "a text for messages of a last step": () => Rule.last("enough", { messages: "hello" as never }),
    "a view that is a text": (ask) => ({ ...ask, view: "hello" }),
    "a view that is a thread": (ask, at) => ({ ...ask, view: at.thread }),
    "a view without an answer": (ask) => ({
      ...ask,
      view: [Message.assistant("", [Message.toolCall("x", "look", {})])]
    }),
    "a view that is a number": (ask) => ({ ...ask, view: 7 }),
    "an empty request": () => ({}),
    "a request that has no adapter": (ask) => ({ ...ask, adapter: undefined }),
    "a request with messages": (ask) => ({ ...ask, messages: [] }),
    "a request with an unknown mode": (ask) => ({ ...ask, mode: "auto " }),
    "a request with a numeric system prompt": (ask) => ({ ...ask, system: 7 }),
    "a request with an array for its tools": (ask) => ({ ...ask, runTools: [look] }),
    "a request with a field that the template has": (ask) => ({ ...ask, temperature: 1 }),
    "a template with a misspelt field": (ask) => ({ ...ask, template: { ...ask.template, temprature: 1 } }),
    "a template with a wrong temperature": (ask) => ({ ...ask, template: { ...ask.template, temperature: "warm" } }),
    "a template with a tool that the run lacks": (ask) => ({
      ...ask,
      template: { ...ask.template, toolChoice: { name: "gone" } }
    }),
    "settings with a misspelt field": (ask) => ({ ...ask, settings: { ...ask.settings, grace: 10 } }),
    "settings with a wrong value": (ask) => ({ ...ask, settings: { ...ask.settings, graceMillis: "10" } }),
    "a misspelt field beside a request": (ask) => Rule.ask(ask, { notes: "a" } as never),
    "a misspelt field of a last step": () => Rule.last("enough", { mesages: [] } as never),
    "a misspelt field of an end": () => ({ ...Rule.end(), detail: 1 }),
    "a number for an effect": (ask) => Rule.ask(ask, { recorded: 7 as never }),
    "an effect that dies": (ask) => Rule.ask(ask, { recorded: Effect.die(broken) }),
    "an effect that fails": (ask) => Rule.ask(ask, { recorded: Effect.fail(broken) as never }),
    "the name of another rule": () => ({ _tag: "End", outcome: { _tag: "RuleEnded", rule: "other", status: "error" } }),
    "an end that waits": () => ({ _tag: "End", outcome: { _tag: "AskUser", question: "?", pendingToolCallId: "c" } }),
    "an end with a detail over its bound": () => Rule.end({ detail: "n".repeat(70_000) }),
    "a reason of the library": () => ({ _tag: "Last", by: "structured" })
  }
  for (const [what, ask] of Object.entries(said)) {
    it.effect(`R-504: a rule that returns ${what} is a defect that names the rule, and a kept run continues with the right rule`, () =>
      Effect.gen(function*() {
        const exit = yield* mended(Rule.make("wrong", { ask } as never))
        assert.include(defectOf(exit), "rule \"wrong\"")
      }))
  }

  it.effect("R-504: a rule whose next returns a waiting outcome, a reason of the library or bad messages is a defect", () =>
    Effect.gen(function*() {
      const ends: ReadonlyArray<unknown> = [
        { _tag: "End", outcome: { _tag: "ApprovalRequested", suspensions: [] } },
        { _tag: "End", outcome: { _tag: "Completed", finishReason: "stop" } },
        { _tag: "End" },
        { _tag: "Last" },
        { _tag: "Last", by: "deadline" },
        { _tag: "Go", messages: [Message.answer("gone", "x")] },
        { _tag: "Go", messages: "hello" },
        { _tag: "Last", by: "enough", messages: "hello" },
        { _tag: "Go", note: Number.NaN },
        { _tag: "Go", mesages: [] },
        { _tag: "Last", by: "enough", notes: 1 }
      ]
      for (const end of ends) {
        assert.include(defectOf(yield* mended(Rule.make("wrong", { next: () => end as never }))), "rule \"wrong\"")
      }
    }))

  for (const hook of ["reply", "next", "end"] as const) {
    it.effect(`R-504: a rule whose ${hook} fails is a defect that names the rule`, () =>
      Effect.gen(function*() {
        const exit = yield* mended(Rule.make("wrong", { [hook]: () => Effect.fail(broken) } as never))
        assert.include(defectOf(exit), `rule "wrong": ${hook} died`)
      }))
  }

  it.effect("R-504: a rule whose hear returns a rejected promise is a defect, and no rejection stays unhandled", () =>
    Effect.gen(function*() {
      const left: Array<unknown> = []
      const seen = (reason: unknown) => void left.push(reason)
      process.on("unhandledRejection", seen)
      yield* Effect.addFinalizer(() => Effect.sync(() => process.off("unhandledRejection", seen)))
      const exit = yield* running(Rule.make("wrong", { hear: () => Promise.reject(broken) as never }))
      assert.include(defectOf(exit), "rule \"wrong\": hear")
      // Node reports rejections behind its microtasks.
      yield* Effect.promise(() => new Promise((resolve) => setImmediate(resolve)))
      assert.isEmpty(left)
    }))

  it.effect("R-504: a rule whose handlers are not a Context is a defect that names the rule", () =>
    Effect.gen(function*() {
      assert.throws(() => Rule.make("wrong", { handlers: { count: 1 } as never }), /rule "wrong": handlers/)
      const exit = yield* running(Rule.make("wrong", { open: () => Effect.succeed({ handlers: {} as never }) }))
      assert.include(defectOf(exit), "rule \"wrong\": handlers")
    }))

  it.effect("R-504: a rule that returns a misspelt field for a reply is a defect that names the right field", () =>
    Effect.gen(function*() {
      const keeping = Rule.make("wrong", { reply: () => Rule.keep({ note_: 1 } as never) })
      assert.include(defectOf(yield* mended(keeping)), "rule \"wrong\": reply")
      const asking = Rule.make("wrong", { reply: () => Rule.askAgain({ afer: 1 } as never) })
      assert.include(defectOf(yield* mended(asking)), "did you mean \"after\"?")
    }))

  it.effect("R-504: a rule that asks again after an invalid time is a defect", () =>
    Effect.gen(function*() {
      for (const after of [-1, Number.NaN, Infinity, "5 seconds"]) {
        const rule = Rule.make("wrong", { reply: () => Rule.askAgain({ after: after as never }) })
        assert.include(defectOf(yield* mended(rule)), "rule \"wrong\": reply")
      }
    }))

  it.effect("R-505: the notes of a step are bounded together, over all rules and hooks", () =>
    Effect.gen(function*() {
      const note = "n".repeat(60_000)
      const rules = ["a", "b", "c", "d", "wrong"].map((name, index) =>
        index < 3
          ? Rule.make(name, { ask: (ask) => Rule.ask(ask, { note }) })
          : Rule.make(name, { reply: () => Rule.keep({ note }) })
      )
      assert.include(defectOf(yield* running(...rules)), "rule \"wrong\": with its note")
    }))

  it("R-506: Rule.make refuses an invalid or a reserved name", () => {
    const reserved = ["budget", "output", "inbox", "fallback", "prepareStep", "loops", "guard", "compaction"]
    const taken = ["maxTurns", "last", "completed", "constructor", "toString", ...reserved]
    for (const name of ["", "7up", "a b", "a".repeat(65), 7, ...taken]) {
      assert.throws(() => Rule.make(name as never, {}), /Rule.make/, String(name))
    }
    for (const name of taken) assert.throws(() => Rule.last(name), /choose another one/, name)
  })

  it.effect("R-506: options refuse rules that are not a list, not made by Rule.make or not of distinct names", () =>
    Effect.gen(function*() {
      const one = Rule.make("one", {})
      const lists: ReadonlyArray<readonly [unknown, RegExp]> = [
        [one, /rules must be an array of rules/],
        [["one"], /rules/],
        [[{ name: "plain", ask: (ask: Rule.Ask) => ask }], /Rule.make/],
        [[one, Rule.make("one", {})], /a name of its own/],
        [[one, one], /a name of its own/]
      ]
      for (const [rules, problem] of lists) {
        const exit = yield* Effect.exit(
          Effect.suspend(() => Chat.run("go", { rules } as never)).pipe(Effect.provide(model()))
        )
        assert.match(defectOf(exit), problem)
        if (Array.isArray(rules)) assert.throws(() => Rule.layer(rules), problem)
        const opened = yield* Session.open("s")
        const kept = yield* Effect.exit(
          Session.keep(opened, (session) => Session.reply(session, "go", { rules } as never))
        )
        assert.match(defectOf(kept), problem)
        assert.strictEqual((yield* Session.load("s"))?.version, opened.version)
      }
      const twice = yield* running(one).pipe(Effect.provide(Rule.layer([Rule.make("one", {})])))
      assert.match(defectOf(twice), /a name of its own/)
    }).pipe(Effect.provide([model(), Session.Store.layerMemory])))

  it.effect("R-507: a resumption without a rule that has noted something fails and writes nothing", () =>
    Effect.gen(function*() {
      const noting = Rule.make("noting", { ask: (ask) => Rule.ask(ask, { note: 1 }) })
      const failing = Rule.make("failing", { reply: () => Effect.die(broken) })
      yield* Effect.exit(
        Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "go", options(noting, failing)))
      )
      const cut = (yield* Session.load("s"))!
      const error = yield* Effect.flip(Session.resume(cut, { ...options(failing), takeOver: true }))
      assert.deepInclude(error, { _tag: "ResumeError", reason: "rule_missing" })
      assert.include(String(error), "\"noting\"")
      assert.strictEqual((yield* Session.load("s"))?.version, cut.version)
      const { value: { result } } = yield* Session.resume(cut, { ...options(noting), takeOver: true })
      assert.strictEqual(result.outcome._tag, "Completed")
    }).pipe(Effect.provide([model(), Session.Store.layerMemory])))
})

it.effect("R-510: notes, messages and effects of the rules stay, once each, when a rule makes the step the last", () =>
  Effect.gen(function*() {
    const asked: Array<Adapter.Request> = []
    let [questions, told] = [0, 0]
    const first = Rule.make("first", {
      ask: (ask, { noted }) =>
        noted["first"] !== undefined ? ask : Effect.sync(() => Rule.ask(ask, { note: ++questions }))
    })
    const hint = Rule.make("hint", {
      ask: (ask, { attempt }) =>
        attempt > 0 ? ask : Rule.ask(ask, { messages: [Message.user("hint")], recorded: Effect.sync(() => ++told) })
    })
    const last = Rule.make("closing", { ask: () => Rule.last("enough", { messages: [Message.user("answer")] }) })
    const view = Rule.make("view", {
      ask: (ask, { thread }) => ({ ...ask, view: thread.messages.slice(-2) })
    })
    const behind = Rule.make("behind", {
      ask: (ask, { attempt }) => attempt > 0 ? ask : Rule.ask(ask, { messages: [Message.user("behind")] })
    })
    const result = yield* Chat.run("go", options(first, hint, last, view, behind)).pipe(
      Effect.provide(Adapter.layer(modelOf(replies, asked)))
    )
    const said = (messages: ReadonlyArray<Message.Message>) => messages.map((message) => Message.text(message))
    assert.deepStrictEqual([questions, told], [1, 1])
    assert.deepStrictEqual(said(result.thread.messages).slice(0, 4), ["go", "hint", "answer", "behind"])
    assert.deepStrictEqual(said(asked[0]?.messages ?? []), ["hint", "answer", "behind"])
    assert.strictEqual(result.finalized, "enough")
  }))

describe("a rule that never ends", () => {
  const never: Readonly<Record<string, Parameters<typeof Rule.make>[1]>> = {
    open: { open: () => Effect.never },
    ask: { ask: () => Effect.never },
    recorded: { ask: (ask) => Rule.ask(ask, { recorded: Effect.never }) },
    reply: { reply: () => Effect.never },
    next: { next: () => Effect.never },
    end: { end: () => Effect.never }
  }
  for (const [hook, hooks] of Object.entries(never)) {
    it.effect(`R-508: a deadline and a stop end a run whose rule hangs in ${hook}, and the thread stays valid`, () =>
      Effect.gen(function*() {
        const given = () => options(Rule.make("hangs", hooks as never))
        const timed = yield* passing(
          Chat.run("go", { ...given(), deadline: { after: 100, reserve: 0 } }).pipe(Effect.provide(model()))
        )
        assert.strictEqual(timed.outcome._tag, hook === "end" ? "Completed" : "Cancelled")
        assert.isEmpty(check.thread(timed.thread))
        const cancel = yield* Deferred.make<void>()
        const fiber = yield* Effect.forkChild(
          Chat.run("go", { ...given(), cancel: Deferred.await(cancel) }).pipe(Effect.provide(model()))
        )
        for (let yields = 0; yields < 100; yields++) yield* Effect.yieldNow
        assert.isUndefined(fiber.pollUnsafe())
        yield* Deferred.succeed(cancel, undefined)
        const stopped = yield* passing(Fiber.join(fiber))
        assert.strictEqual(stopped.outcome._tag, hook === "end" ? "Completed" : "Cancelled")
        assert.isUndefined(stopped.abandoned)
        assert.isEmpty(check.thread(stopped.thread))
      }))

    it.effect(`R-508: a rule that hangs uninterruptibly in ${hook} is abandoned by its name`, () =>
      Effect.gen(function*() {
        const stubborn = JSON.stringify(Object.keys(hooks))
        assert.include(stubborn, hook === "recorded" ? "ask" : hook)
        const deaf = Effect.uninterruptible(Effect.never)
        const made = hook === "recorded"
          ? Rule.make("hangs", { ask: (ask) => Rule.ask(ask, { recorded: deaf }) })
          : Rule.make("hangs", { [hook]: () => deaf } as never)
        const exit = yield* Effect.exit(passing(
          Chat.run("go", { ...options(made), deadline: { after: 100, reserve: 0 } }).pipe(Effect.provide(model()))
        ))
        const result = Option.getOrThrow(Exit.getSuccess(exit))
        assert.deepInclude(result.abandoned?.[0], { kind: "hook", name: "hangs" })
        assert.isEmpty(check.thread(result.thread))
      }))
  }

  it.effect("R-509: a rule that always asks again repeats the request until the deadline", () =>
    Effect.gen(function*() {
      const asked: Array<Adapter.Request> = []
      const again = Rule.make("again", { reply: () => Rule.askAgain({ after: 10 }) })
      const result = yield* passing(
        Chat.run("go", { ...options(again), maxTurns: 1, deadline: { after: 200, reserve: 0 } }).pipe(
          Effect.provide(Adapter.layer(modelOf(replies, asked)))
        )
      )
      assert.strictEqual(result.outcome._tag, "Cancelled")
      assert.isAbove(asked.length, 3)
      assert.isEmpty(check.thread(result.thread))
      yield* TestClock.adjust("1 hour")
    }))
})
