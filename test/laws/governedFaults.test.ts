/**
 * Laws of what governs runs: accounts, prices, typed answers, messages into a run and stops of one call. Each holds at every step at
 * which runs can be stopped, and each finds the faults that are planted for it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import {
  Adapter,
  Budget,
  Chat,
  type Event,
  Executor,
  Inbox,
  Journal,
  Limits,
  Output,
  Pricing,
  Response,
  Session,
  Tool
} from "heddle"
import { check as checkRun, type EveryStep, everyStep, Script } from "heddle/testing"
import type * as InboxRule from "../../src/internal/loop/inboxRule.ts"
import * as Accounts from "../../src/internal/permits/account.ts"
import { stores } from "../support/edges.ts"
import { check, property } from "../support/property.ts"
import { journalOf } from "../support/survivor.ts"

const { delay, finish, text, toolCall, usage } = Script

const lawsOf = ({ violations }: EveryStep.Report) => Array.from(new Set(violations.map(({ law }) => law)))

const says = (problems: Iterable<string>, pattern: RegExp): void => {
  const all = Array.from(problems)
  assert.isTrue(all.some((problem) => pattern.test(problem)), `${pattern} in ${JSON.stringify(all.slice(0, 9))}`)
}

/** Changes members of an object while a test runs. */
const replaced = <A extends object>(owner: A, change: (own: any) => object) => {
  const own = { ...Object.getOwnPropertyDescriptors(owner) }
  return <B, E, R>(effect: Effect.Effect<B, E, R>): Effect.Effect<B, E, R> =>
    Effect.acquireUseRelease(
      Effect.sync(() => Object.assign(owner, change(owner))),
      () => effect,
      () => Effect.sync(() => void Object.defineProperties(owner, own))
    )
}

const modelOf = (reply: (request: Adapter.Request) => ReadonlyArray<Script.Entry>) =>
  Adapter.layer({
    provider: "openai",
    model: "m",
    stream: (request) => Stream.unwrap(Effect.map(Script.make(reply(request)), (scripted) => scripted.stream(request)))
  })

const repliesIn = ({ messages }: Adapter.Request): number => messages.filter(({ role }) => role === "assistant").length

// Accounts.

/** Every account reserves the same for a request. */
const sizes = { estimate: () => 300, outputReserve: 300 }

const bounds = { calls: 40, inputTokens: 9_000, outputTokens: 9_000, tokens: 18_000, money: 90_000 }

/** Runs three runs at once on an account, stopped at each of their steps, and returns what is wrong with the account. */
const accounted = Effect.gen(function*() {
  const problems = new Set<string>()
  const price: typeof Pricing.Prices.Service = ({ usage }) => (usage.inputTokens ?? 0) + 3 * (usage.outputTokens ?? 0)
  const settled = Layer.unwrap(Effect.sync(() => {
    // An account of the caller's own counts what is settled.
    const open = new Map<string, Budget.Amount>()
    const sums = { calls: 0, inputTokens: 0, outputTokens: 0, money: 0 }
    const ledger = Budget.from({
      reserve: ({ amount, id }) =>
        Effect.sync(() => {
          if (open.has(id)) problems.add(`reservation ${id} was made twice`)
          open.set(id, amount)
          return true
        }),
      settle: ({ id }, spent) =>
        Effect.sync(() => {
          // A stop may come before the account has reserved: nothing is settled then.
          if (!open.delete(id) && spent.calls > 0) problems.add("a reservation was settled that is not open")
          for (const name of ["calls", "inputTokens", "outputTokens", "money"] as const) sums[name] += spent[name]
        })
    })
    const outer = Limits.layer({ budget: Budget.make(bounds, sizes) })
    const ended = Effect.map(Budget.spent, (spent) => {
      if (open.size > 0) problems.add("a reservation was never settled")
      for (const [name, bound] of Object.entries(bounds)) {
        const used = name === "tokens" ? sums.inputTokens + sums.outputTokens : sums[name as keyof typeof sums]
        const left = spent?.left[name as keyof typeof bounds] ?? 0
        if (left < bound - used) problems.add(`${name}: ${bound - used - left} stay reserved`)
        if (left > bound - used) problems.add(`${name}: more is left than was not spent`)
      }
    })
    const checking = Layer.effectDiscard(Effect.acquireRelease(Effect.void, () => ended))
    // The layer of the ledger stands around: `Budget.spent` reads the account with the bounds.
    return checking.pipe(Layer.provideMerge(outer), Layer.provideMerge(Limits.layer({ budget: ledger })))
  }))
  const look = Tool.make("look", { parameters: {}, handler: () => Effect.sleep(3) })
  const model = modelOf((request) =>
    repliesIn(request) === 0
      ? [delay(2), toolCall("c", "look", {}), usage({ inputTokens: 100, outputTokens: 20 }), finish("tool_calls")]
      : [text("Do"), delay(2), text("ne."), usage({ inputTokens: 150, outputTokens: 40 }), finish("stop")]
  )
  const report = yield* everyStep(
    ({ cancel }) =>
      Effect.all(
        [0, 1, 2].map((n) =>
          Chat.run(`Say ${n}`, {
            tools: [look],
            budget: Budget.make({ calls: 9 }, sizes),
            cancel,
            requestId: `run${n}`
          })
        ),
        { concurrency: "unbounded" }
      ),
    { layer: Layer.mergeAll(model, settled, Layer.succeed(Pricing.Prices, price)), maxOpsBeforeYield: 12, limit: 60 }
  )
  assert.isAbove(report.points, 40)
  return problems
})

describe("the accounts of stopped runs", () => {
  const { prototype } = Accounts.Reservation

  it.effect("G3, G88: spent and remaining amounts add up to the bounds, whenever the runs are stopped", () =>
    Effect.map(accounted, (problems) => assert.deepStrictEqual([...problems], [])))

  it.effect("G3, G88: the account law finds a planted reservation that stays open", () =>
    Effect.gen(function*() {
      const keeping = replaced(prototype, ({ settle }) => ({
        // A stop of the run forgets what it holds. A reply that has come returns it.
        settle(this: any, spentOf: (reserved: Accounts.Amount) => Accounts.Amount) {
          const spent = spentOf(Accounts.nothing)
          if (spent.calls > 0) settle.call(this, spentOf)
        }
      }))
      const problems = yield* keeping(accounted)
      says(problems, /^calls: \d+ stay reserved$/)
      says(problems, /^money: \d+ stay reserved$/)
    }))

  it.effect("G3, G88: the account law finds a planted reservation returned twice, and a planted reservation charged twice", () =>
    Effect.gen(function*() {
      const twice = replaced(prototype, ({ settle }) => ({
        settle(this: any) {
          settle.call(this, () => Accounts.nothing)
          this.isOpen = true
          settle.call(this, () => Accounts.nothing)
        }
      }))
      says(yield* twice(accounted), /^tokens: more is left than was not spent$/)
      const counting = replaced(prototype, ({ settle }) => ({
        settle(this: any, spentOf: (reserved: Accounts.Amount) => Accounts.Amount) {
          settle.call(this, (reserved: Accounts.Amount) => Accounts.plus(spentOf(reserved), spentOf(reserved)))
        }
      }))
      says(yield* counting(accounted), /^calls: \d+ stay reserved$/)
    }))
})

// Prices.

const upTo = (count: number) => Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: count - 1 }))

/** Prices in ten-thousandths for a million tokens, and counts of tokens. */
const priced = Arbitrary.schema(Schema.Struct({
  input: upTo(2_000_000),
  output: upTo(2_000_000),
  read: upTo(20_000),
  tokens: Schema.Struct({ input: upTo(300_000), output: upTo(100_000), read: upTo(200_000) })
}))

type Priced = typeof priced extends Arbitrary.Arbitrary<infer A> ? A : never

/** Compares a price with the exact one, rounded up to a whole millionth. */
const priceLaw = (change: (price: number, exact: number) => number = (price) => price) => (drawn: Priced) =>
  Effect.map(Pricing.Prices, (prices) => {
    const { input, output, read, tokens } = drawn
    const cached = Math.min(tokens.read, tokens.input)
    const counts = Response.usage({
      inputTokens: tokens.input,
      outputTokens: tokens.output,
      cachedInputTokens: cached
    })
    const exact = BigInt(tokens.input - cached) * BigInt(input) + BigInt(cached) * BigInt(read) +
      BigInt(tokens.output) * BigInt(output)
    const expected = Number((exact + 9_999n) / 10_000n)
    const found = change(prices({ provider: "openai", model: "m", usage: counts }) ?? -1, Number(exact) / 10_000)
    return found === expected ? [] : [`${found} in place of ${expected}`]
  }).pipe(Effect.provide(Pricing.layer({
    openai: {
      models: {
        m: { cost: { input: drawn.input / 10_000, output: drawn.output / 10_000, cache_read: drawn.read / 10_000 } }
      }
    }
  })))

describe("the price of a usage", () => {
  property("a price is the exact one, rounded up to a whole millionth", priced, priceLaw(), 1_000)

  it.effect("the price law finds planted prices rounded down, rounded to the nearest, and computed in binary fractions", () =>
    Effect.gen(function*() {
      const plants = {
        "rounded down": priceLaw((_, exact) => Math.floor(exact)),
        "rounded to the nearest": priceLaw((_, exact) => Math.round(exact))
      }
      for (const [name, law] of Object.entries(plants)) {
        assert.isDefined(yield* check(name, priced, law, { seed: "planted", runs: 100 }), name)
      }
      // 100 tokens at 0.07 a million are 7.000000000000001 in binary fractions.
      const seven = { input: 700, output: 0, read: 0, tokens: { input: 100, output: 0, read: 0 } }
      assert.deepStrictEqual(yield* priceLaw()(seven), [])
      assert.deepStrictEqual(yield* priceLaw(() => Math.ceil(100 * 0.07))(seven), ["8 in place of 7"])
    }))
})

// Typed answers.

type OutputRule = ReturnType<Output.Output<unknown>["rule"]>

/** Runs that repair two answers and accept a third, in pieces, stopped at each of their steps. */
const typed = (plant: (rule: OutputRule) => Partial<OutputRule> = () => ({})) => {
  const output = Output.make(Schema.Struct({ city: Schema.String, celsius: Schema.Finite }))
  const { rule } = output
  Object.assign(output, {
    rule: (start: Output.OutputStart) => {
      const own = rule(start)
      return { ...own, ...plant(own) }
    }
  })
  const pieces = (
    end: string
  ) => [text("{\"city\":\"Os"), delay(60), text("lo\","), delay(60), text(end), finish("stop")]
  const replies = [pieces("\"celsius\":\"warm\"}"), pieces("\"celsius\":[]}"), pieces("\"celsius\":7}")]
  const model = modelOf((request) => replies[repliesIn(request)] ?? [finish("stop")])
  const native = Adapter.map((adapter) => ({ ...adapter, output: { native: "always", forced: true } }))
  return everyStep(({ cancel }) => Chat.stream("Where?", { output, cancel }), {
    layer: native.pipe(Layer.provide(model)),
    maxOpsBeforeYield: 12,
    limit: 60
  })
}

/** What the law says about typed answers with a planted fault. */
const saidOfTyped = (plant: (rule: OutputRule) => Partial<OutputRule>) =>
  Effect.map(
    typed(plant),
    ({ violations }) => violations.flatMap(({ law, message }) => law === "output" ? [message] : [])
  )

describe("the typed answers of stopped runs", () => {
  it.effect("G60, G86: parts belong to their reply and each repair counts once, whenever the run is stopped", () =>
    Effect.gen(function*() {
      const report = yield* typed()
      assert.deepStrictEqual(report.violations, [])
      assert.isAbove(report.points, 20)
    }))

  it.effect("G60: the law of typed answers finds a planted part that the reply does not have, and one that shrinks", () =>
    Effect.gen(function*() {
      const hearing = (change: (value: unknown, count: number) => unknown) => ({ hear }: OutputRule) => {
        let count = 0
        return {
          hear: (...heard: Parameters<NonNullable<OutputRule["hear"]>>) =>
            (hear?.(...heard) ?? []).map((event) =>
              event._tag === "OutputPartial" ? { ...event, value: change(event.value, count++) } : event
            )
        }
      }
      says(yield* saidOfTyped(hearing(() => ({ city: "Bergen" }))), /^an answer's part is not in the reply's JSON$/)
      says(yield* saidOfTyped(hearing(() => ({ town: "Os" }))), /^an answer's part is not in the reply's JSON$/)
      says(
        yield* saidOfTyped(hearing((value, count) => count % 2 === 0 ? value : {})),
        /^an answer's part lost what it had$/
      )
    }))

  it.effect("G86: the law of typed answers finds a planted repair that counts twice, and one that does not count", () =>
    Effect.gen(function*() {
      const counting = (change: (repair: number) => number) => ({ next }: OutputRule) => {
        const counted = (after: any) =>
          after.note?.repair === undefined ? after : { ...after, note: { repair: change(after.note.repair) } }
        return {
          next: (...given: Parameters<NonNullable<OutputRule["next"]>>) => {
            const after = next?.(...given)
            return Effect.isEffect(after) ? Effect.map(after, counted) : counted(after)
          }
        }
      }
      says(yield* saidOfTyped(counting((repair) => repair + 1)), /^repair 2 follows repair 0$/)
      says(yield* saidOfTyped(counting(() => 1)), /^repair 1 follows repair 1$/)
    }))
})

// Messages into a run.

const contents = { m1: "not that", m2: "and then?", m3: "never mind" } as const

/** Runs into which a steer, a follow and a withdrawn steer come, and their fates. `plant` spoils an inbox. */
const told = (plant: (letters: InboxRule.Letters) => void = () => {}) =>
  Effect.gen(function*() {
    const problems: Array<string> = []
    let last: (() => void) | undefined
    const reply = (request: Adapter.Request) => {
      const turn = repliesIn(request)
      return turn < 2
        ? [toolCall(`c${turn}`, "look", {}), finish("tool_calls")]
        : [text("Done."), finish("stop")]
    }
    const report = yield* everyStep(({ cancel }) => {
      last?.()
      const inbox = Inbox.make()
      plant(inbox.letters)
      const withdrawn = new Set<string>()
      const accepted = new Set<keyof typeof contents>()
      let result: Event.ChatResult | undefined
      const send = (id: keyof typeof contents, mode: "follow" | "steer") =>
        Effect.map(inbox[mode](contents[id], { id }), () => void accepted.add(id))
      const look = Tool.make("look", {
        parameters: {},
        handler: (_, call) =>
          call.id === "c0"
            ? Effect.andThen(send("m1", "steer"), send("m2", "follow"))
            : send("m3", "steer").pipe(
              Effect.andThen(inbox.withdraw("m3")),
              Effect.map((isWithdrawn) => void (isWithdrawn && withdrawn.add("m3")))
            )
      })
      last = () => {
        for (const id of accepted) {
          const fate = Effect.runSync(inbox.fate(id))
          const texts = result?.thread.messages.flatMap(({ content, role }) => role === "user" ? [content] : []) ?? []
          const times = texts.filter((content) => content === contents[id]).length
          if (fate === undefined) problems.push(`${id} has no fate`)
          if (withdrawn.has(id) !== (fate?._tag === "Withdrawn")) {
            problems.push(`${id} was withdrawn, and ${fate?._tag}`)
          }
          if (result !== undefined && times !== (fate?._tag === "Delivered" ? 1 : 0)) {
            problems.push(`${id}, ${fate?._tag}, is in the thread ${times} times`)
          }
        }
      }
      return Chat.stream("go", { tools: [look], inbox, cancel, maxTurns: 6 }).pipe(
        Stream.tap((event) =>
          Effect.sync(() => {
            if (event._tag === "ChatCompleted") result = event.result
          })
        )
      )
    }, { layer: modelOf(reply), maxOpsBeforeYield: 6, limit: 60 })
    last?.()
    return { problems, report }
  })

/** Takes every message that waits, whatever its fate is. */
const taking = (letters: InboxRule.Letters, act: (id: string) => void): void => {
  Object.assign(letters, {
    take: (taken: ReadonlyArray<InboxRule.Open>) => {
      for (const { id } of taken) act(id)
      return true
    }
  })
}

describe("messages into a stopped run", () => {
  it.effect("G45, G46: each message has one fate, and the events report the fate once, whenever the run is stopped", () =>
    Effect.map(told(), ({ problems, report }) => {
      assert.deepStrictEqual(problems, [])
      assert.deepStrictEqual(report.violations, [])
    }))

  it.effect("G45: the message law finds two planted fates of one message", () =>
    Effect.gen(function*() {
      // The message stays open behind its delivery: the next step gets it again, and the end refuses it.
      const { problems, report } = yield* told((letters) => taking(letters, () => {}))
      assert.include(lawsOf(report), "messages")
      const messages = report.violations.map(({ message }) => message)
      says(messages, /^MessageDelivered of message "m1" follows its MessageDelivered$/)
      says(messages, /^MessageRefused of message "m1" follows its MessageDelivered$/)
      says(problems, /^m1, Refused, is in the thread \d times$/)
    }))

  it.effect("G45: the message law finds a planted delivery whose message is missing in the thread", () =>
    Effect.gen(function*() {
      const events: ReadonlyArray<Event.Event> = yield* Effect.provide(
        Effect.gen(function*() {
          const inbox = Inbox.make()
          yield* inbox.follow("and then?", { id: "m2" })
          return Array.from(yield* Stream.runCollect(Chat.stream("go", { inbox })))
        }),
        modelOf(() => [text("Done."), finish("stop")])
      )
      const spoilt = events.map((event): Event.Event =>
        event._tag === "MessageDelivered"
          ? { ...event, message: { ...event.message, content: "another" } }
          : event
      )
      assert.deepStrictEqual(checkRun(events), [])
      assert.deepStrictEqual(checkRun(spoilt).map(({ message }) => message), [
        "message \"m2\" was delivered, and is not in the thread"
      ])
    }))

  it.effect("G45: the message law finds a planted delivery of a withdrawn steer", () =>
    Effect.gen(function*() {
      const { problems } = yield* told((letters) => {
        // Every accepted message stays open, whatever its fate is, until a step gets it.
        const accept = letters.accept.bind(letters)
        let open: ReadonlyArray<InboxRule.Letter> = []
        Object.assign(letters, {
          accept: (letter: InboxRule.Letter) => {
            accept(letter)
            open = [...open, letter]
          },
          open: () => open
        })
        taking(letters, (id) => {
          letters.get(id)?.settle({ _tag: "Delivered", requestId: "run", stepIndex: 0 })
          open = open.filter((letter) => letter.id !== id)
        })
      })
      says(problems, /^m3, Withdrawn, is in the thread 1 times$/)
    }))
})

// Stops of one call.

/** Runs in which a handler stops its sibling twice, with what the stops returned. */
const stopping = (
  executor: Layer.Layer<never>,
  spoil: <E, R>(events: Stream.Stream<Event.Event, E, R>) => Stream.Stream<Event.Event, E, R> = (events) => events
) =>
  Effect.gen(function*() {
    const problems: Array<string> = []
    const stopper = Tool.make("stopper", {
      parameters: {},
      concurrency: "shared",
      handler: (_, call) =>
        Effect.gen(function*() {
          yield* Effect.sleep(5)
          const first = yield* call.cancelCall("c1", "not that one")
          const second = yield* call.cancelCall("c1", "not that one")
          if (first && second) problems.push("two stops of one call have returned true")
          return "told"
        })
    })
    const long = Tool.make("long", {
      parameters: {},
      concurrency: "shared",
      handler: () => Effect.sleep("1 second")
    })
    const model = modelOf((request) =>
      repliesIn(request) === 0
        ? [toolCall("c0", "stopper"), toolCall("c1", "long"), toolCall("c2", "long"), finish("tool_calls")]
        : [text("Done."), finish("stop")]
    )
    const report = yield* everyStep(
      ({ cancel }) => spoil(Chat.stream("go", { tools: [stopper, long], cancel })),
      { layer: Layer.merge(model, executor), maxOpsBeforeYield: 12, limit: 60 }
    )
    return { problems, report }
  })

const executing = (
  change: (execution: Effect.Effect<any, never, any>) => Effect.Effect<any, never, any>,
  context: (call: Tool.CallContext) => Tool.CallContext = (call) => call
): Layer.Layer<never> =>
  Executor.layer({
    execute: ((tool: Tool.Any, args: unknown, call: Tool.CallContext) =>
      change(Executor.direct.execute(tool, args, context(call)))) as Executor.Service["execute"]
  })

const correct = executing((execution) => execution)

describe("the stop of one tool call", () => {
  it.effect("G75, G76: a call stopped alone is answered once, and one of its stops returns true, whenever the run is stopped", () =>
    Effect.map(stopping(correct), ({ problems, report }) => {
      assert.deepStrictEqual(problems, [])
      assert.deepStrictEqual(report.violations, [])
      assert.isAbove(report.points, 20)
    }))

  it.effect("G75: the answer law finds a planted second answer of a stopped call", () =>
    Effect.gen(function*() {
      const { report } = yield* stopping(correct, (events) =>
        Stream.flatMap(events, (event) =>
          event._tag === "ToolResultEncoded" && event.id === "c1"
            ? Stream.make(event, event)
            : Stream.make(event)))
      assert.include(lawsOf(report), "answers")
      says(
        report.violations.map(({ message }) =>
          message
        ),
        /^call "c1" is answered twice$/
      )
    }))

  it.effect("G75: the start law finds a planted handler that starts again when its call is stopped", () =>
    Effect.gen(function*() {
      const { report } = yield* stopping(
        executing((execution) => Effect.onInterrupt(execution, () => Effect.forkDetach(execution)))
      )
      assert.includeMembers(lawsOf(report), ["starts", "lifetime"])
      says(report.violations.map(({ message }) => message), /^long \(call c1\) was started twice$/)
    }))

  it.effect("G76: the stop law finds planted stops of one call that all return true", () =>
    Effect.gen(function*() {
      const { problems } = yield* stopping(
        executing((execution) => execution, (call) => ({ ...call, cancelCall: () => Effect.succeed(true) }))
      )
      says(problems, /^two stops of one call have/)
    }))
})

// The journal.

/** The records of a run that a steer reaches, beside one that was withdrawn, and one of whose calls is stopped. */
const recorded = Effect.gen(function*() {
  const store = yield* Session.Store
  const apart = <A, E>(effect: Effect.Effect<A, E, Session.Store>) =>
    Effect.orDie(Effect.provideService(effect, Session.Store, store))
  const look = Tool.make("look", {
    parameters: {},
    concurrency: "shared",
    handler: () =>
      apart(Effect.gen(function*() {
        yield* Session.submit("s", "not that", { id: "m1", mode: "steer" })
        yield* Session.submit("s", "not that", { id: "m2", mode: "steer" })
        yield* Session.submit("s", "never mind", { id: "m3", mode: "steer" })
        yield* Session.submit("s", "if at all", { id: "m4", mode: "follow", otherwise: "refuse" })
        yield* Session.withdraw("s", "m3")
        yield* Session.stop("s", { call: "c1" })
        return "seen"
      }))
  })
  const long = Tool.make("long", { parameters: {}, concurrency: "shared", handler: () => Effect.never })
  const model = modelOf((request) =>
    repliesIn(request) === 0
      ? [toolCall("c0", "look", {}), toolCall("c1", "long", {}), finish("tool_calls")]
      : [text("Done."), finish("stop")]
  )
  yield* Session.keep(
    yield* Session.open("s"),
    (session) => Session.reply(session, "go", { tools: [look, long], requestId: "run", maxTurns: 2 } as {})
  ).pipe(Effect.provide(model))
  return yield* journalOf("s")
})

type Plant = (record: Journal.Record, all: ReadonlyArray<Journal.Record>) => ReadonlyArray<Journal.Record>

const isDelivering = (record: Journal.Record): record is Journal.StepPrepared =>
  record._tag === "StepPrepared" && record.delivered !== undefined

/** Faults of a journal, with what `Journal.check` says of each. */
const inJournals: Readonly<Record<string, readonly [plant: Plant, problem: RegExp]>> = {
  "two fates of one message, in one step": [
    (record) => isDelivering(record) ? [{ ...record, delivered: [...record.delivered!, "m1"] }] : [record],
    /delivers message "m1" twice/
  ],
  "two fates of one message, in two steps": [
    (record) => isDelivering(record) ? [record, { ...record, attempt: record.attempt + 1 }] : [record],
    /delivers message "m1", which is not open/
  ],
  "a delivery whose message is not in the thread": [
    (record) => isDelivering(record) ? [{ ...record, messages: record.messages!.slice(1) }] : [record],
    /delivers message "m2", which is not among its messages/
  ],
  "a steer that is delivered though it was withdrawn": [
    (record, all) => {
      const withdrawn = all.find((other) => other._tag === "MessageSubmitted" && other.id === "m3")
      return isDelivering(record) && withdrawn?._tag === "MessageSubmitted"
        ? [{
          ...record,
          delivered: [...record.delivered!, "m3"],
          messages: [...record.messages!, withdrawn.message]
        }]
        : [record]
    },
    /delivers message "m3", which is not open/
  ],
  "a message that is withdrawn twice": [
    (record) => record._tag === "MessageWithdrawn" ? [record, record] : [record],
    /withdraws message "m3", which is not open/
  ],
  "a message that is withdrawn behind its delivery": [
    (record) =>
      isDelivering(record) ? [record, { _tag: "MessageWithdrawn", id: "m1", time: 0 } as Journal.Record] : [record],
    /withdraws message "m1", which is not open/
  ],
  "a branch that is stopped twice": [
    (record) => record._tag === "StopRequested" ? [record, { ...record, id: "again" }] : [record],
    /stops call "c1" of run run again/
  ],
  "a branch that is stopped and answered twice": [
    (record) => record._tag === "CallEnded" && record.message.toolCallId === "c1" ? [record, record] : [record],
    /has call "c1", which has its answer/
  ],
  "a branch that is stopped, and never answered": [
    (record) => record._tag === "CallEnded" && record.message.toolCallId === "c1" ? [] : [record],
    /leaves call "c1" without an answer/
  ]
}

/** Records as they were before they were sealed: a seal finds every change. */
const unsealed = (records: ReadonlyArray<Journal.Record>): ReadonlyArray<Journal.Record> =>
  records.map((record) => {
    const { after: _, ...bare } = record as Journal.Record & { readonly after?: unknown }
    return bare as Journal.Record
  })

describe("Journal.check", () => {
  for (const [name, store] of Object.entries(stores)) {
    it.effect(`G49, G50, G76: Journal.check passes the records of a governed run and names each planted fault: ${name}`, () =>
      Effect.gen(function*() {
        const sealed = yield* recorded
        assert.deepStrictEqual(Journal.check(sealed), [])
        const records = unsealed(sealed)
        assert.deepStrictEqual(Journal.check(records), [])
        for (const [fault, [plant, problem]] of Object.entries(inJournals)) {
          const planted = records.flatMap((record) => plant(record, records))
          assert.notDeepEqual(planted, records, fault)
          const found = Journal.check(planted)
          assert.isTrue(found.some((text) => problem.test(text)), `${fault}: ${JSON.stringify(found)}`)
        }
      }).pipe(Effect.provide(Layer.fresh(store as Layer.Layer<Session.Store>))))
  }
})
