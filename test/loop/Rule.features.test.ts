/**
 * Features that are no part of the library, each built as a rule from the public modules: a budget, a typed answer,
 * messages into a running run, another model, and a summary in place of a long thread.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Message, Policy, Rule, Tool } from "heddle"
import { Script, Simulation } from "heddle/testing"
import { killedAtEach, look, modelOf, type Replies } from "../support/ruled.ts"

const { finish, text, toolCall, usage } = Script

/** The number of replies that a request has behind it. */
const turnOf = ({ messages }: Pick<Adapter.Request, "messages">): number =>
  messages.filter(({ role }) => role === "assistant").length

const textsOf = ({ messages }: Pick<Adapter.Request, "messages">) => messages.map(Message.text)

/** Calls `look` in the first turns of a conversation, and then answers. Each reply uses ten tokens. */
const looking = (turns: number): Replies => (request) => {
  const turn = turnOf(request)
  return turn < turns && request.toolChoice !== "none" && request.tools.length > 0
    ? [usage({ totalTokens: 10 }), toolCall(`c${turn}`, "look"), finish("tool_calls")]
    : [usage({ totalTokens: 10 }), text("done"), finish("stop")]
}

const run = (replies: Replies, options: Chat.Options<ReadonlyArray<Tool.Any>, never, never, never, never>) => {
  const asked: Array<Adapter.Request> = []
  return Effect.map(
    Effect.provideService(Chat.run("go", options), Adapter.Adapter, modelOf(replies, asked)),
    (result) => ({ result, asked })
  )
}

/** Stops a run at a moment of its rules: while they wait for `held`. */
const stoppedAt = (
  rulesOf: (held: Effect.Effect<void>) => ReadonlyArray<Rule.Rule>,
  replies: Replies,
  tools: ReadonlyArray<Tool.Any> = [look]
) =>
  Effect.gen(function*() {
    const reached = yield* Deferred.make<void>()
    const held = Effect.andThen(Deferred.succeed(reached, undefined), Effect.never)
    const rules = rulesOf(held)
    return yield* run(replies, { tools, rules, cancel: Deferred.await(reached) as Effect.Effect<never> })
  })

// A budget.

/** Tokens that several runs share. */
class Account {
  spent = 0
  reserved = 0
  readonly limit: number
  constructor(limit: number) {
    this.limit = limit
  }
  reserve(tokens: number): boolean {
    if (this.spent + this.reserved + tokens > this.limit) return false
    this.reserved += tokens
    return true
  }
}

/** The account around this code: runs that handlers start find that of the run around them. */
const Around = Context.Reference<Account | undefined>("test/Account", { defaultValue: () => undefined })

/** What the budget notes of a step: tokens that are settled, and those of a request without a reply. */
const BudgetNote = Schema.Struct({ settled: Schema.Finite, reserved: Schema.Finite })
const budgetNote = (notes: Rule.Notes) =>
  Schema.decodeUnknownSync(BudgetNote)(notes["purse"] ?? { settled: 0, reserved: 0 })

const budget = (limit: number, { estimate = 10, waiting = Effect.void, onExhausted = "last" as "last" | "end" } = {}) =>
  Rule.make("purse", {
    open: () =>
      Effect.gen(function*() {
        const outer = yield* Around
        const account = outer ?? new Account(limit)
        let held = 0
        let isBegun = false
        yield* Effect.addFinalizer(() => Effect.sync(() => void (account.reserved -= held)))
        return {
          handlers: Context.make(Around, account),
          ask: (ask, { last, noted, notes }) => {
            const before = budgetNote(noted)
            const settled = before.settled + (isBegun ? 0 : before.reserved)
            if (!isBegun) account.spent += notes.map(budgetNote).reduce((sum, { settled }) => sum + settled, settled)
            isBegun = true
            if (account.reserve(estimate)) {
              held = estimate
              return Effect.as(waiting, Rule.ask(ask, { note: { settled, reserved: estimate } }))
            }
            if (outer === undefined && onExhausted === "last") return last === undefined ? Rule.last("purse") : ask
            return Rule.end({ status: "error", detail: { limit: account.limit, spent: account.spent } })
          },
          reply: ({ usage }, { noted }) => {
            const used = usage?.totalTokens ?? held
            account.reserved -= held
            account.spent += used
            held = 0
            return Rule.keep({ note: { settled: budgetNote(noted).settled + used, reserved: 0 } })
          }
        }
      })
  })

describe("a budget as a rule", () => {
  it.effect("a budget rule ends with one last answer or ends the run", () =>
    Effect.gen(function*() {
      const last = yield* run(looking(9), { tools: [look], rules: [budget(25)] })
      assert.strictEqual(last.asked.length, 3)
      assert.deepStrictEqual(last.result.outcome, { _tag: "Completed", finishReason: "stop" })
      assert.strictEqual(last.result.finalized, "purse")
      const ended = yield* run(looking(9), { tools: [look], rules: [budget(25, { onExhausted: "end" })] })
      assert.strictEqual(ended.asked.length, 2)
      assert.deepStrictEqual(ended.result.outcome, {
        _tag: "RuleEnded",
        rule: "purse",
        status: "error",
        detail: { limit: 25, spent: 20 }
      })
    }))

  it.effect("a budget rule shares its account with the runs that handlers start", () =>
    Effect.gen(function*() {
      const rules = Rule.layer([budget(45)])
      const sub = Tool.fromChat("look", { parameters: {}, chat: () => Chat.stream("inner") })
      const replies: Replies = (request) =>
        textsOf(request)[0] === "inner" ? [usage({ totalTokens: 10 }), text("in"), finish("stop")] : looking(9)(request)
      const { asked, result } = yield* Effect.provide(run(replies, { tools: [sub] }), rules)
      // Outer, inner, outer, inner, and the last answer in place of a fifth granted request.
      assert.deepStrictEqual(asked.map((request) => textsOf(request)[0]), ["go", "inner", "go", "inner", "go"])
      assert.strictEqual(result.finalized, "purse")
    }))

  it.effect("a nested run refused by a budget rule answers its call with the name of the rule", () =>
    Effect.gen(function*() {
      const sub = Tool.fromChat("look", { parameters: {}, chat: () => Chat.stream("inner") })
      const { result } = yield* Effect.provide(run(looking(9), { tools: [sub] }), Rule.layer([budget(10)]))
      assert.include(String(result.steps[0]?.toolResults[0]?.content), "purse")
      assert.isTrue(result.steps[0]?.toolResults[0]?.isError === true)
    }))

  it.effect("a stop leaves nothing reserved in a budget rule", () =>
    Effect.gen(function*() {
      const account = new Account(100)
      const { asked, result } = yield* stoppedAt((held) => [budget(100, { waiting: held })], looking(1)).pipe(
        Effect.provideService(Around, account)
      )
      assert.strictEqual(result.outcome._tag, "Cancelled")
      assert.deepStrictEqual(asked, [])
      assert.deepStrictEqual([account.reserved, account.spent], [0, 0])
    }))

  it.effect("a run with a budget rule killed at each record makes the same requests and spends a lost reservation", () =>
    Effect.gen(function*() {
      const spent: Array<number> = []
      const given = () => ({ tools: [look], rules: [budget(1000)] })
      const whole = yield* killedAtEach(looking(2), given, ({ records }) => {
        const notes = records.flatMap((record) =>
          record._tag === "StepCompleted" ? [(record.notes ?? {}) as Rule.Notes] : []
        )
        spent.push(notes.map(budgetNote).reduce((sum, { settled }) => sum + settled, 0))
      })
      assert.strictEqual(whole.asked.length, 3)
      // A kill behind a request whose reply is not recorded costs the reservation of ten.
      assert.deepStrictEqual(new Set(spent), new Set([30, 40]))
    }))
})

// A typed answer.

const Weather = Schema.Struct({ city: Schema.String, celsius: Schema.Int })

/** The members that a cut JSON object has so far. */
const begun = (json: string): unknown => {
  for (const end of ["", "}", "\"}", ":0}", "0}"]) {
    const parsed = Result.try(() => JSON.parse(json + end) as unknown)
    if (Result.isSuccess(parsed)) return parsed.success
  }
  return undefined
}

const typed = <A>(schema: Schema.Codec<A, unknown>, { retries = 2 } = {}) => {
  const decode = Schema.decodeUnknownResult(Schema.fromJsonString(schema))
  const responseFormat = { type: "json_schema", name: "answer", schema: Schema.toJsonSchemaDocument(schema).schema }
  return Rule.make("typed", {
    open: () =>
      Effect.sync(() => {
        let said = ""
        return {
          ask: (ask) => ({ ...ask, template: { ...ask.template, responseFormat } as typeof ask.template }),
          hear: (event) => {
            if (event._tag === "MessageStarted") said = ""
            if (event._tag !== "TextDelta") return []
            said += event.delta
            const partial = begun(said)
            return partial === undefined ? [] : [{ _tag: "RawChunk", chunk: { partial } }]
          },
          next: (next, { notes, steps }) => {
            if (next._tag !== "End" || next.outcome._tag !== "Completed") return next
            const answer = decode(steps.at(-1)?.response.outputText)
            if (Result.isSuccess(answer)) return next
            const repairs = notes.filter((step) => "typed" in step).length
            const issues = answer.failure.message
            return repairs >= retries
              ? Rule.end({ status: "error", detail: { issues, repairs } })
              : Rule.go({ note: { repair: repairs + 1 }, messages: [Message.user(`Answer anew: ${issues}`)] })
          }
        }
      })
  })
}

/** Answers with these texts, one after the other. */
const saying = (...texts: ReadonlyArray<string>): Replies => (request) => [
  ...(texts[turnOf(request)] ?? "").split(/(?<=,)/).map(text),
  finish("stop")
]

describe("a typed answer as a rule", () => {
  const good = "{\"city\":\"Oslo\",\"celsius\":7}"

  it.effect("a typed-answer rule asks in its format and repairs with one message each", () =>
    Effect.gen(function*() {
      const { asked, result } = yield* run(saying("Cold.", "{\"city\":1}", good), { rules: [typed(Weather)] })
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.strictEqual(result.finalResponse?.outputText, good)
      assert.isTrue(asked.every(({ responseFormat }) => responseFormat !== undefined))
      assert.deepStrictEqual(asked.map(({ messages }) => messages.length), [1, 3, 5])
      assert.include(String(textsOf(asked[2]!).at(-1)), "Answer anew: ")
    }))

  it.effect("a typed-answer rule ends the run when its repairs are used up", () =>
    Effect.gen(function*() {
      const { asked, result } = yield* run(saying("a", "b", "c", good), { rules: [typed(Weather)] })
      assert.strictEqual(asked.length, 3)
      assert.deepInclude(result.outcome, { _tag: "RuleEnded", rule: "typed", status: "error" })
      assert.deepInclude((result.outcome as { readonly detail: object }).detail, { repairs: 2 })
    }))

  it.effect("a typed-answer rule keeps its repair when the next turn is the last", () =>
    Effect.gen(function*() {
      const rules = [typed(Weather)]
      const { asked, result } = yield* run(saying("a", good), {
        rules,
        maxTurns: 1,
        tools: [look],
        policy: { ...Policy.standard, onMaxTurns: "finalize" }
      })
      assert.strictEqual(asked.length, 2)
      assert.include(String(textsOf(asked[1]!).at(-1)), "Answer anew: ")
      assert.strictEqual(result.finalized, "max_turns")
    }))

  it.effect("a typed-answer rule shows the answer so far", () =>
    Effect.gen(function*() {
      const events = yield* Stream.runCollect(Chat.stream("go", { rules: [typed(Weather)], includeRawChunks: true }))
        .pipe(Effect.provideService(Adapter.Adapter, modelOf(saying(good), [])))
      const partials = Array.from(events).flatMap((event) => event._tag === "RawChunk" ? [event.chunk] : [])
      assert.deepStrictEqual(partials, [{ partial: { city: "Oslo", celsius: 7 } }])
    }))

  it.effect("a rule may not add an event that changes the reply, its calls, its usage or the journal", () =>
    Effect.gen(function*() {
      const added: ReadonlyArray<unknown> = [
        { _tag: "TextDelta", id: null, delta: "more" },
        { _tag: "ToolCallCompleted", id: "c0", name: "look", arguments: {}, rawArguments: "{}" },
        { _tag: "StepCompleted" },
        { _tag: "RawChunk", chunk: { usage: { totalTokens: 7 } } }
      ]
      for (const event of added) {
        const adding = Rule.make("adding", { hear: ({ _tag }) => _tag === "TextDelta" ? [event as never] : [] })
        const again = Rule.make("adding", {
          reply: (_, { attempt }) => attempt > 1 ? Rule.keep() : Rule.askAgain({ events: [event as never] })
        })
        for (const rule of [adding, again]) {
          const exit = yield* Effect.exit(run(saying("a"), { rules: [rule], tools: [look] }))
          assert.isTrue(Exit.isFailure(exit) && Cause.hasDies(exit.cause), JSON.stringify(event))
          assert.include(String(Exit.isFailure(exit) && Cause.squash(exit.cause)), "rule \"adding\"")
        }
      }
    }))

  it.effect("a stop during a repair ends the run with its steps so far", () =>
    Effect.gen(function*() {
      const slow = (held: Effect.Effect<void>) =>
        Rule.make("slow", { ask: (ask, { stepIndex }) => stepIndex === 0 ? ask : Effect.as(held, ask) })
      const { asked, result } = yield* stoppedAt((held) => [typed(Weather), slow(held)], saying("a", good), [])
      assert.strictEqual(asked.length, 1)
      assert.strictEqual(result.outcome._tag, "Cancelled")
      assert.strictEqual(result.steps.length, 1)
    }))

  it.effect("a run with a typed-answer rule killed at each record asks for each repair once", () =>
    Effect.gen(function*() {
      const whole = yield* killedAtEach(saying("a", "b", good), () => ({ rules: [typed(Weather)] }))
      assert.strictEqual(whole.asked.length, 3)
      const failed = yield* killedAtEach(saying("a", "b", "c"), () => ({ rules: [typed(Weather)] }))
      assert.strictEqual(failed.result.outcome._tag, "RuleEnded")
      assert.strictEqual(failed.session.status, "error")
    }))
})

// Messages into a running run.

/** Messages for a run, which stand in a store of the caller: each has an id, and is noted once as delivered. */
class Inbox {
  readonly waiting: Array<{ readonly id: string; readonly content: string }> = []
  readonly delivered: Array<string> = []
  send(id: string, content: string): void {
    this.waiting.push({ id, content })
  }
}

const inbox = (box: Inbox, waiting: Effect.Effect<void> = Effect.void) =>
  Rule.make("letterbox", {
    ask: (ask, { noted, notes }) => {
      const ids = (note: unknown) => Array.isArray(note) ? note.map(String) : []
      const own = ids(noted["letterbox"])
      const told = new Set([...box.delivered, ...notes.flatMap((step) => ids(step["letterbox"]))])
      const isNew = ({ id }: { readonly id: string }) => !told.has(id) && !own.includes(id)
      const news = box.waiting.filter(isNew)
      const all = [...own, ...news.map(({ id }) => id)]
      if (all.length === 0) return ask
      const recorded = Effect.sync(() => box.delivered.push(...all.filter((id) => !box.delivered.includes(id))))
      return Effect.as(
        waiting,
        news.length === 0
          ? Rule.ask(ask, { recorded })
          : Rule.ask(ask, { note: all, messages: news.map(({ content }) => Message.user(content)), recorded })
      )
    },
    next: (next, { notes }) => {
      if (next._tag !== "End" || next.outcome._tag !== "Completed") return next
      const told = new Set(notes.flatMap((step) => step["letterbox"] as ReadonlyArray<string> ?? []))
      return box.waiting.some(({ id }) => !told.has(id)) ? Rule.go() : next
    }
  })

describe("messages into a running run as a rule", () => {
  /** A tool that sends messages to the run that calls it. */
  const sending = (box: Inbox) =>
    Tool.make("look", {
      parameters: {},
      handler: () =>
        Effect.sync(() => {
          box.send("m1", "Hurry.")
          box.send("m2", "Please.")
          return "seen"
        })
    })

  it.effect("an inbox rule delivers messages between two steps, in order, and records each delivery once", () =>
    Effect.gen(function*() {
      const box = new Inbox()
      const { asked, result } = yield* run(looking(1), { tools: [sending(box)], rules: [inbox(box)] })
      assert.deepStrictEqual(textsOf(asked[1]!), ["go", "", "seen", "Hurry.", "Please."])
      assert.deepStrictEqual(box.delivered, ["m1", "m2"])
      assert.deepStrictEqual(textsOf(result.thread), ["go", "", "seen", "Hurry.", "Please.", "done"])
    }))

  it.effect("an inbox rule re-opens an ended run within its turns", () =>
    Effect.gen(function*() {
      const asks = (maxTurns: number) =>
        Effect.suspend(() => {
          const box = new Inbox()
          const late = Rule.make("late", {
            reply: (_, { stepIndex }) => {
              if (stepIndex === 0) box.send("m1", "And Oslo?")
              return Rule.keep()
            }
          })
          const rules = [late, inbox(box)]
          return Effect.map(run(saying("one", "two"), { rules, maxTurns }), (ran) => ({ ...ran, box }))
        })
      const open = yield* asks(2)
      assert.deepStrictEqual(textsOf(open.result.thread), ["go", "one", "And Oslo?", "two"])
      assert.deepStrictEqual(open.box.delivered, ["m1"])
    }))

  it.effect("a stop before the request leaves the message of an inbox rule undelivered", () =>
    Effect.gen(function*() {
      const box = new Inbox()
      box.send("m1", "Hurry.")
      const { asked, result } = yield* stoppedAt((held) => [inbox(box, held)], saying("one"))
      assert.deepStrictEqual(asked, [])
      assert.deepStrictEqual(textsOf(result.thread), ["go"])
      assert.deepStrictEqual(box.delivered, [])
    }))

  it.effect("a run with an inbox rule killed at each record has each message once in its thread and notes its delivery", () =>
    Effect.gen(function*() {
      let box = new Inbox()
      const given = () => {
        box = new Inbox()
        box.send("m0", "Now.")
        box.send("m1", "Hurry.")
        return { tools: [look], rules: [inbox(box)] }
      }
      const whole = yield* killedAtEach(looking(2), given, ({ records }, length) => {
        // Where the reply is recorded, the inbox was emptied before the kill.
        const isBefore = ["RunStarted", "StepPrepared"].includes(records[length - 1]?._tag ?? "")
        assert.deepStrictEqual(box.delivered, isBefore ? ["m0", "m1"] : [], `record ${length}`)
      })
      assert.deepStrictEqual(textsOf(whole.result.thread).slice(0, 3), ["go", "Now.", "Hurry."])
    }))
})

// Another model.

const fallback = (others: ReadonlyArray<Adapter.Service>) =>
  Rule.make("second", {
    ask: (ask, { noted, notes }) => {
      const note = noted["second"] ?? notes.findLast((step) => "second" in step)?.["second"]
      return typeof note === "number" ? { ...ask, adapter: others[note - 1] ?? ask.adapter } : ask
    },
    reply: ({ error, hasSaid, mayRepeat }, { noted, notes }) => {
      const note = noted["second"] ?? notes.findLast((step) => "second" in step)?.["second"] ?? 0
      const next = Number(note) + 1
      return error === undefined || hasSaid || !mayRepeat || next > others.length
        ? Rule.keep()
        : Rule.askAgain({ note: next })
    }
  })

describe("another model as a rule", () => {
  const down: Replies = () => [Script.preflightError("provider_unavailable")]
  const mute: Replies = () => [Script.streamError("provider_unavailable")]

  for (const [title, broken] of [["refuses", down], ["breaks before it says anything", mute]] as const) {
    it.effect(`a fallback rule asks the second model from the time on when the first ${title}`, () =>
      Effect.gen(function*() {
        const second: Array<Adapter.Request> = []
        const rules = [fallback([modelOf(looking(2), second)])]
        const { asked, result } = yield* run(broken, { tools: [look], rules })
        assert.strictEqual(result.outcome._tag, "Completed")
        assert.deepStrictEqual([asked.length, second.length], [1, 3])
      }))
  }

  it.effect("a fallback rule asks no second model after the reply has said something", () =>
    Effect.gen(function*() {
      const second: Array<Adapter.Request> = []
      const rules = [fallback([modelOf(saying("other"), second)])]
      const { result } = yield* run(() => [text("I am"), Script.streamError("provider_unavailable")], { rules })
      assert.strictEqual(result.finalResponse?.outputText, "I am")
      assert.deepStrictEqual(second, [])
    }))

  it.effect("a run whose models all fail under a fallback rule fails with the last error", () =>
    Effect.gen(function*() {
      const third = modelOf(() => [Script.preflightError("rate_limited")], [])
      const failed = yield* Effect.flip(run(down, { rules: [fallback([modelOf(down, []), third])] }))
      assert.strictEqual(failed._tag === "AdapterError" && failed.reason, "rate_limited")
    }))

  it.effect("a stop while a fallback rule switches causes no further request", () =>
    Effect.gen(function*() {
      const second: Array<Adapter.Request> = []
      const slow = (held: Effect.Effect<void>) =>
        Rule.make("slow", { ask: (ask, { attempt }) => attempt === 0 ? ask : Effect.as(held, ask) })
      const other = modelOf(saying("other"), second)
      const { asked, result } = yield* stoppedAt((held) => [slow(held), fallback([other])], down)
      assert.deepStrictEqual([asked.length, second.length], [1, 0])
      assert.strictEqual(result.outcome._tag, "Cancelled")
    }))

  it.effect("a run with a fallback rule killed at each record asks the model that its note names", () =>
    Effect.gen(function*() {
      let second: Array<Adapter.Request> = []
      const given = () => {
        second = []
        return { tools: [look], rules: [fallback([modelOf(looking(2), second)])] }
      }
      const first: Replies = (request) => turnOf(request) === 0 ? looking(2)(request) : down(request)
      const asked: Array<ReadonlyArray<number>> = []
      const whole = yield* killedAtEach(first, given, ({ asked: own }) => {
        asked.push([own.length, second.length])
      })
      assert.strictEqual(whole.result.outcome._tag, "Completed")
      // Once the switch is recorded, the first one is not asked any more.
      assert.deepStrictEqual(asked.at(-1), [0, 0])
      assert.isTrue(asked.some(([own, other]) => own === 0 && other === 2))
    }))
})

// A summary in place of a long thread.

const Summary = Schema.Struct({ text: Schema.String, upTo: Schema.Int })

const summary = (most: number) =>
  Rule.make("summary", {
    ask: (ask, { noted, notes, thread: { messages } }) => {
      const note = noted["summary"] ?? notes.findLast((step) => "summary" in step)?.["summary"]
      const known = note === undefined ? { text: "", upTo: 0 } : Schema.decodeUnknownSync(Summary)(note)
      const shown = ({ text, upTo }: typeof Summary.Type) =>
        upTo === 0 ? ask : { ...ask, view: [Message.user(`So far: ${text}`), ...messages.slice(upTo)] }
      if (messages.length - known.upTo <= most) return shown(known)
      const summarized = Chat.run([Message.user(`Summarize: ${messages.map(Message.text).join(" ")}`)], {
        requestId: "summary"
      }).pipe(
        Effect.provideService(Adapter.Adapter, ask.adapter),
        Effect.orDie
      )
      return Effect.map(summarized, ({ finalResponse }) => {
        const note = { text: finalResponse?.outputText ?? "", upTo: messages.length }
        return Rule.ask(shown(note), { note })
      })
    }
  })

describe("a summary as a rule", () => {
  const replies: Replies = (request) => {
    const [first = ""] = textsOf(request)
    if (first?.startsWith("Summarize: ") === true) return [text(`${first.length} letters`), finish("stop")]
    // A summary stands for two turns, and each further turn adds one.
    const turn = turnOf(request) + (first?.startsWith("So far: ") === true ? 2 : 0)
    return turn < 3 ? [toolCall(`c${turn}`, "look"), finish("tool_calls")] : [text("done"), finish("stop")]
  }

  it.effect("a summary rule shows the summary in place of the thread and leaves the thread whole", () =>
    Effect.gen(function*() {
      const { asked, result } = yield* run(replies, { tools: [look], rules: [summary(4)] })
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.strictEqual(result.thread.messages.length, 8)
      const shown = asked.map((request) => textsOf(request)[0]?.split(":")[0])
      assert.deepStrictEqual(shown, ["go", "go", "Summarize", "So far", "So far"])
    }))

  it.effect("a stop while a summary is made causes no further request", () =>
    Effect.gen(function*() {
      const reached = yield* Deferred.make<void>()
      const asked: Array<Adapter.Request> = []
      const model: Adapter.Service = {
        stream: (request) =>
          textsOf(request)[0]?.startsWith("Summarize") === true
            ? Stream.fromEffectDrain(Effect.andThen(Deferred.succeed(reached, undefined), Effect.never))
            : modelOf(replies, asked).stream(request)
      }
      const result = yield* Chat.run("go", {
        tools: [look],
        rules: [summary(4)],
        cancel: Deferred.await(reached) as Effect.Effect<never>
      }).pipe(Effect.provideService(Adapter.Adapter, model))
      assert.strictEqual(result.outcome._tag, "Cancelled")
      assert.strictEqual(asked.length, 2)
      assert.strictEqual(result.steps.length, 2)
    }))

  it.effect("a run with a summary rule killed at each record makes a summary unless one is noted", () =>
    Effect.gen(function*() {
      const summaries: Array<number> = []
      const whole = yield* killedAtEach(replies, () => ({ tools: [look], rules: [summary(4)] }), ({ asked }) => {
        summaries.push(asked.filter((request) => textsOf(request)[0]?.startsWith("Summarize") === true).length)
      })
      assert.strictEqual(whole.result.outcome._tag, "Completed")
      assert.include(summaries, 1)
      assert.strictEqual(summaries.at(-1), 0)
    }))

  it.effect("a summary rule may be a rule of all runs, including the run that makes the summary", () =>
    Effect.gen(function*() {
      const { asked, result } = yield* run(replies, { tools: [look] }).pipe(Effect.provide(Rule.layer([summary(4)])))
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.strictEqual(asked.length, 5)
    }))
})

it.effect("R-514: a rule's effect that waits and succeeds with nothing leaves no fiber behind the run", () =>
  Effect.gen(function*() {
    const wait = Effect.sleep("1 second")
    const rules: ReadonlyArray<Rule.Rule> = [
      Rule.make("delivers", { ask: (ask) => Rule.ask(ask, { recorded: wait }) }),
      Rule.make("closes", { end: () => wait })
    ]
    for (const rule of rules) {
      const { exit, fibers, millis } = yield* Effect.promise(() =>
        Effect.runPromise(Simulation.run(
          Effect.provide(Chat.run("Hi", { rules: [rule] }), Script.layer([[text("Hello"), finish("stop")]]))
        ))
      )
      assert.strictEqual(exit?._tag, "Success")
      assert.deepStrictEqual([millis, fibers], [1000, 0], rule.name)
    }
  }))

it.effect("R-515: resources opened by a rule are released after the handlers end, also when the reader leaves", () =>
  Effect.gen(function*() {
    const happened: Array<string> = []
    const noted = (what: string) => Effect.sync(() => void happened.push(what))
    const rule = Rule.make("opens", { open: () => Effect.as(Effect.addFinalizer(() => noted("released")), {}) })
    const begun = yield* Deferred.make<void>()
    const wait = Tool.make("wait", {
      parameters: {},
      handler: () =>
        Effect.onInterrupt(Effect.andThen(Deferred.succeed(begun, undefined), Effect.never), () => noted("stopped"))
    })
    const run = Chat.run("Hi", { tools: [wait], rules: [rule] }).pipe(
      Effect.provide(Script.layer([[toolCall("c", "wait"), finish("tool_calls")]]))
    )
    yield* Effect.raceFirst(run, Deferred.await(begun))
    assert.deepStrictEqual(happened, ["stopped", "released"])
  }))

it.effect("G83: a repeated request and the next step find the note of the previous request, also behind a kill", () =>
  Effect.gen(function*() {
    const replies: Replies = (request) =>
      turnOf(request) === 0 ? [toolCall("c0", "look"), finish("tool_calls")] : [text("done"), finish("stop")]
    const counting = () => {
      const seen: Array<unknown> = []
      const rule = Rule.make("counting", {
        ask: (ask, at) => {
          const before = Rule.latest(at, "counting")
          seen.push(before)
          const note = Number(before ?? 0) + 1
          return Rule.ask({ ...ask, template: { ...ask.template, model: `model ${note}` } }, { note })
        },
        reply: (_, { attempt }) => attempt === 1 ? Rule.askAgain() : Rule.keep()
      })
      return { rule, seen }
    }
    const uncut = counting()
    const { asked } = yield* run(replies, { tools: [look], rules: [uncut.rule] })
    assert.deepStrictEqual(uncut.seen, [undefined, 1, 2, 3])
    assert.deepStrictEqual(asked.map(({ model }) => model), ["model 1", "model 2", "model 3", "model 4"])
    // A request lost to a kill is made again, and its reply is counted once: each request is named by the replies before.
    const counted = () =>
      Rule.make("counted", {
        ask: (ask, at) =>
          Rule.ask({ ...ask, template: { ...ask.template, model: `model ${Rule.latest(at, "counted") ?? 0}` } }),
        reply: (_, at) => {
          const before = Number(Rule.latest(at, "counted") ?? 0)
          return before % 2 === 0 ? Rule.askAgain({ note: before + 1 }) : Rule.keep({ note: before + 1 })
        }
      })
    const requests = new Set<number>()
    const whole = yield* killedAtEach(replies, () => ({ tools: [look], rules: [counted()] }), ({ asked }) => {
      requests.add(asked.length)
    })
    assert.deepStrictEqual(whole.asked.map(({ model }) => model), ["model 0", "model 1", "model 2", "model 3"])
    assert.deepStrictEqual(requests, new Set([4, 3, 2, 1, 0]))
  }))

const waiting = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which?")) })
const approved = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
const crashing = Tool.make("crash", { parameters: {}, handler: () => Effect.die("no") })
const calls = (name: string): Replies => () => [toolCall("c0", name), finish("tool_calls")]

const fixedEnds: Readonly<
  Record<string, readonly [replies: Replies, options: () => Parameters<typeof run>[1], requests: number]>
> = {
  AskUser: [calls("ask"), () => ({ tools: [waiting] }), 1],
  ApprovalRequested: [calls("pay"), () => ({ tools: [approved] }), 1],
  ManualToolCalls: [calls("look"), () => ({ tools: [look], mode: "manual" }), 1],
  ToolFailed: [calls("crash"), () => ({ tools: [crashing], onToolError: "halt" }), 1],
  Failed: [() => [text("a"), Script.streamError("network_error")], () => ({}), 1],
  Cancelled: [looking(9), () => {
    const controller = new AbortController()
    const last = Tool.make("look", { parameters: {}, handler: () => Effect.sync(() => controller.abort("enough")) })
    return { tools: [last], cancel: controller.signal }
  }, 1]
}

for (const [outcome, [replies, optionsOf, requests]] of Object.entries(fixedEnds)) {
  it.effect(`G84: a rule that asks for another step, or ends the run otherwise, changes nothing of a run that ends as ${outcome}`, () =>
    Effect.gen(function*() {
      const plain = yield* run(replies, { ...optionsOf(), requestId: "r" })
      assert.deepStrictEqual([plain.result.outcome._tag, plain.asked.length], [outcome, requests])
      const onward = Rule.make("onward", { next: () => Rule.go({ messages: [Message.user("Go on.")], note: 1 }) })
      const final = Rule.make("final", { next: () => Rule.last("final") })
      const over = Rule.make("over", { next: () => Rule.end({ detail: 1 }) })
      for (const rule of [onward, final, over]) {
        const ruled = yield* run(replies, { ...optionsOf(), requestId: "r", rules: [rule] })
        assert.deepStrictEqual(ruled.result, plain.result, rule.name)
        assert.strictEqual(ruled.asked.length, requests, rule.name)
      }
    }))
}

it.effect("G84: a rule that asks for another step changes nothing of a run that was stopped before its first request", () =>
  Effect.gen(function*() {
    const onward = Rule.make("onward", { next: () => Rule.go() })
    const stopped = yield* run(looking(9), { tools: [look], rules: [onward], cancel: Effect.void })
    assert.deepStrictEqual([stopped.asked.length, stopped.result.outcome._tag], [0, "Cancelled"])
  }))
