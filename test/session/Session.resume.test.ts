/**
 * Runs that were cut and are taken up: at every record of a journal the run comes to what it would have come to, no
 * finished call is repeated, and of a call that may have had its effect its tool decides.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Encoder, type Journal, Message, Session, Tool } from "heddle"
import { check } from "heddle/testing"
import { placesOf } from "../support/edges.ts"
import { endedIn, startedIn, unknownIn } from "../support/journals.ts"
import { type Deed, journalOf, modelOf, prefixed, toolsOf } from "../support/survivor.ts"

type Records = ReadonlyArray<Journal.Record>

/** Tools that need no services. */
type Tools = ReturnType<typeof toolsOf>

const options = { context: { user: "ann" }, requestId: "run" } as const

/** The uncut run: its journal and what it came to. */
const uncut = Effect.gen(function*() {
  const world: Array<Deed> = []
  const program = Effect.gen(function*() {
    const opened = yield* Session.open("s")
    const kept = yield* Session.keep(
      opened,
      (session) => Session.reply(session, "go", { ...options, tools: toolsOf(world) })
    )
    return { kept, records: yield* journalOf("s") }
  })
  return yield* program.pipe(Effect.provide([modelOf([]), Session.Store.layerMemory]))
})

type Given = Omit<Session.ResumeOptions<[]>, "tools"> & { readonly tools?: ReadonlyArray<Tool.Any> }

/** Takes a run up behind these records. */
const resumed = (
  records: Records,
  { tools, ...given }: Given = {},
  world: Array<Deed> = []
) => {
  const asked: Array<number> = []
  return Effect.gen(function*() {
    const cut = (yield* Session.load("s"))!
    const own = { context: { user: "ann" }, takeOver: true, ...given }
    const kept = yield* Session.resume(cut, { ...own, tools: (tools ?? toolsOf(world)) as Tools })
    return { asked, cut, kept, loaded: yield* Session.load("s"), records: yield* journalOf("s"), world }
  }).pipe(Effect.provide([modelOf(asked), prefixed("s", records)]))
}

const idOf = ({ key }: Deed): string => key.split(":").at(-1) ?? ""

const answerOf = (kept: { readonly session: Session.Session }, id: string): string =>
  String(kept.session.thread.messages.find(({ toolCallId }) => toolCallId === id)?.content)

const isValid = ({ session }: { readonly session: Session.Session }) =>
  assert.isEmpty(check.thread(session.thread, { pending: session.suspensions.map(({ id }) => id) }))

describe("a run cut at a record", () => {
  it.effect("D-03: a resumed run has the uncut run's result, and repeats no finished call", () =>
    Effect.gen(function*() {
      const whole = yield* uncut
      for (const length of placesOf(2, whole.records.length - 1)) {
        const before = whole.records.slice(0, length)
        const where = `cut behind record ${length}, ${before.at(-1)?._tag}`
        const { kept, loaded, records, world } = yield* resumed(before)
        const ended = endedIn(before)
        for (const deed of world) assert.isFalse(ended.has(idOf(deed)), `${where}: ${deed.key} again`)
        for (const { attempt, idempotencyKey, toolCall } of startedIn(before)) {
          const again = world.find(({ key }) => key.endsWith(`:${toolCall.id}`))
          if (again !== undefined) assert.deepInclude(again, { key: idempotencyKey, attempt: attempt + 1 }, where)
        }
        if (!unknownIn(before).some(({ toolCall }) => toolCall.name === "charge")) {
          assert.deepStrictEqual(kept.value.result, whole.kept.value.result, where)
          assert.deepStrictEqual(kept.session, whole.kept.session, where)
        }
        assert.deepStrictEqual(loaded?.session, kept.session, where)
        assert.strictEqual(records.filter(({ _tag }) => _tag === "RunEnded").length, 1, where)
      }
    }))

  for (const policy of ["report", "retry", "ask", "fail"] as const) {
    it.effect(`D-01: under afterCrash ${policy} a started call follows the policy of its tool, at every record`, () =>
      Effect.gen(function*() {
        const { records } = yield* uncut
        for (const length of placesOf(2, records.length - 1)) {
          const before = records.slice(0, length)
          const unknown = unknownIn(before).filter(({ toolCall }) => toolCall.name === "charge")
          const world: Array<Deed> = []
          const { kept } = yield* resumed(before, { tools: toolsOf(world, policy) }, world)
          const where = `cut behind record ${length}, ${before.at(-1)?._tag}`
          isValid(kept)
          const charges = world.filter(({ tool }) => tool === "charge")
          for (const { idempotencyKey, toolCall: { id } } of unknown) {
            const again = charges.filter(({ key }) => key === idempotencyKey)
            assert.strictEqual(again.length, policy === "retry" ? 1 : 0, where)
            if (policy === "report") assert.include(answerOf(kept, id), "unknown_effect", where)
            if (policy === "ask") assert.deepInclude(kept.session.suspensions.map((waiting) => waiting.id), id, where)
            if (policy === "fail") assert.strictEqual(kept.value.result.outcome._tag, "ToolFailed", where)
          }
          if (unknown.length === 0) assert.strictEqual(kept.value.result.outcome._tag, "Completed", where)
        }
      }))
  }

  it.effect("D-01, D-09: a call takes the outcome that lookUp finds, runs where lookUp finds nothing, and is unknown where lookUp fails", () =>
    Effect.gen(function*() {
      const { records } = yield* uncut
      const length = records.findIndex((record) => record._tag === "CallStarted" && record.toolCallId === "c0")
      const before = records.slice(0, length + 1)
      const [lookup, , mail] = toolsOf([])
      const finding = (found: Effect.Effect<Option.Option<string>, string>) => {
        const runs: Array<string> = []
        const charge = Tool.make("charge", {
          parameters: { amount: Schema.Finite },
          lookUp: () => found,
          handler: ({ amount }, call) => Effect.sync(() => (runs.push(call.idempotencyKey), `paid ${amount}`))
        })
        return Effect.map(resumed(before, { tools: [lookup, charge, mail] }), ({ kept }) => ({
          answer: answerOf(kept, "c0"),
          runs: runs.filter((key) => key.endsWith("c0")).length
        }))
      }
      assert.deepStrictEqual(yield* finding(Effect.succeed(Option.some("paid before"))), {
        answer: "paid before",
        runs: 0
      })
      assert.deepStrictEqual(yield* finding(Effect.succeed(Option.none())), { answer: "paid 1", runs: 1 })
      const failed = yield* finding(Effect.fail("away"))
      assert.strictEqual(failed.runs, 0)
      assert.include(failed.answer, "unknown_effect")
    }))

  it.effect("D-02: a run cut again at every record of its recovery has the same result and keeps its keys", () =>
    Effect.gen(function*() {
      const whole = yield* uncut
      for (const first of placesOf(2, whole.records.length - 1)) {
        const once = yield* resumed(whole.records.slice(0, first))
        for (const second of placesOf(first + 1, once.records.length - 1)) {
          const before = once.records.slice(0, second)
          const where = `cut behind record ${first}, then behind ${second}`
          const { kept, world } = yield* resumed(before)
          const ended = endedIn(before)
          for (const deed of world) assert.isFalse(ended.has(idOf(deed)), `${where}: ${deed.key} again`)
          const keys = new Map(startedIn(before).map(({ idempotencyKey, toolCall }) => [toolCall.id, idempotencyKey]))
          for (const deed of world) assert.strictEqual(keys.get(idOf(deed)) ?? deed.key, deed.key, where)
          assert.deepStrictEqual(kept.value.result.usage, whole.kept.value.result.usage, where)
          if (!unknownIn(before).some(({ toolCall }) => toolCall.name === "charge")) {
            assert.deepStrictEqual(kept.value.result, once.kept.value.result, where)
          }
        }
      }
    }))

  it.effect("D-03: handlers of a resumed run read the context updates of its earlier steps, at every record", () =>
    Effect.gen(function*() {
      const { records } = yield* uncut
      const contextsBehind = (length: number) => {
        const contexts = new Map<string, unknown>()
        const tools = toolsOf([], "retry").map((tool: Tool.Any): Tool.Any => ({
          ...tool,
          handler: (args, call) => {
            contexts.set(call.id, call.context)
            return tool.handler!(args, call)
          }
        }))
        return Effect.as(resumed(records.slice(0, length), { tools }), contexts)
      }
      const whole = yield* contextsBehind(2)
      assert.deepStrictEqual(whole.get("c1"), { user: "ann", a: "seen", paid1: true })
      for (let length = 3; length < records.length; length++) {
        for (const [id, context] of yield* contextsBehind(length)) {
          assert.deepStrictEqual(context, whole.get(id), `${id}, cut behind record ${length}`)
        }
      }
    }))

  it.effect("a resumed run asks again for its cut reply, and for no other reply", () =>
    Effect.gen(function*() {
      const { records } = yield* uncut
      for (let length = 2; length < records.length; length++) {
        const before = records.slice(0, length)
        const { asked } = yield* resumed(before)
        const replies = before.filter(({ _tag }) => _tag === "ReplyReceived").length
        const isAnswered = before.filter(({ _tag }) => _tag === "StepCompleted").length === 3
        assert.deepStrictEqual(asked, isAnswered ? [] : [0, 1, 2].slice(replies), `cut behind record ${length}`)
      }
    }))

  it.effect("repeated events are marked as replayed, and new events have no mark", () =>
    Effect.gen(function*() {
      const { records } = yield* uncut
      const length = records.findIndex(({ _tag }) => _tag === "CallEnded")
      const events = yield* Effect.gen(function*() {
        const cut = (yield* Session.load("s"))!
        return yield* Stream.runCollect(Session.streamResume(cut, { takeOver: true, tools: toolsOf([]) }))
      }).pipe(Effect.provide([modelOf([]), prefixed("s", records.slice(0, length + 1))]))
      const marked = events.flatMap((event) => "replayed" in event ? [event._tag] : [])
      assert.deepStrictEqual(
        new Set(marked.slice(0, 3)),
        new Set(["MessageStarted", "ReasoningDelta", "TextCompleted"])
      )
      assert.include(marked, "ToolResultEncoded")
      const ends = events.findIndex(({ _tag }) => _tag === "StepCompleted")
      assert.isTrue(events.slice(ends).every((event) => !("replayed" in event)))
    }))
})

describe("the state in which a cut run is resumed", () => {
  it.effect("D-06: an early call of a lost reply is no part of the repeated reply, whose call runs", () =>
    Effect.gen(function*() {
      const { records } = yield* uncut
      const [opened, started] = records
      // The model was asked again, and made the call with another amount.
      const toolCall = Message.toolCall("c0", "charge", { amount: 7 })
      const early = { requestId: "run", toolCallId: "c0" } as const
      const before: Records = [
        opened!,
        started!,
        { _tag: "CallStarted", ...early, toolCall, attempt: 1, idempotencyKey: "run:0:1:c0" },
        { _tag: "CallEnded", requestId: "run", message: Message.tool("c0", "paid 7") }
      ]
      const { kept, world } = yield* resumed(before)
      assert.lengthOf(world.filter((deed) => idOf(deed) === "c0"), 1)
      assert.strictEqual(answerOf(kept, "c0"), "paid 1")
    }))

  it.effect("D-24: a run that is too old, or was resumed too often, ends as failed and starts nothing", () =>
    Effect.gen(function*() {
      const { records } = yield* uncut
      for (let length = 2; length < records.length - 1; length++) {
        const before = records.slice(0, length)
        const often = Array.from({ length: 3 }, (): Journal.Record => ({
          _tag: "RunStarted",
          requestId: "run",
          operation: "reply",
          messages: [],
          resumes: true,
          startedAt: 0
        }))
        const { asked, kept, world } = yield* resumed([...before, ...often], { maxAttempts: 3 })
        const where = `cut behind record ${length}`
        const { outcome } = kept.value.result
        assert.strictEqual(
          outcome._tag === "Failed" && (outcome.error as Session.ResumeError).reason,
          "too_many_attempts",
          where
        )
        assert.deepStrictEqual([asked, world], [[], []], where)
        assert.strictEqual(kept.session.status, "error", where)
        isValid(kept)
        for (const { toolCall } of unknownIn(before)) {
          assert.include(answerOf(kept, toolCall.id), "unknown_effect", where)
        }
      }
      yield* TestClock.adjust("2 hours")
      const { kept } = yield* resumed(records.slice(0, 4), { maxAge: "1 hour" })
      const { outcome } = kept.value.result
      assert.strictEqual(outcome._tag === "Failed" && (outcome.error as Session.ResumeError).reason, "too_old")
    }))

  it.effect("D-12: a stop requested without a living owner ends the run, answers its ended calls and starts nothing", () =>
    Effect.gen(function*() {
      const { records } = yield* uncut
      for (let length = 2; length < records.length - 1; length++) {
        const before = records.slice(0, length)
        const stop: Journal.Record = { _tag: "StopRequested", id: "stop", requestId: "run" }
        const { asked, kept, world } = yield* resumed([...before, stop])
        const where = `cut behind record ${length}, ${before.at(-1)?._tag}`
        const isDone = before.filter(({ _tag }) => _tag === "StepCompleted").length === 3
        assert.deepStrictEqual(
          kept.value.result.outcome,
          isDone ? { _tag: "Completed", finishReason: "stop" } : { _tag: "Cancelled", reason: "stop" },
          where
        )
        assert.deepStrictEqual([asked, world], [[], []], where)
        isValid(kept)
      }
    }))

  it.effect("D-22: turns used before a kill count after the kill", () =>
    Effect.gen(function*() {
      const { records } = yield* uncut
      const isStep = ({ _tag }: Journal.Record) => _tag === "StepCompleted"
      const first = records.findIndex(isStep)
      for (let length = 2; length < records.length - 3; length++) {
        const { kept } = yield* resumed(records.slice(0, length), { maxTurns: 2 })
        const { outcome, steps, usage } = kept.value.result
        assert.deepStrictEqual([outcome, steps.length], [{ _tag: "MaxTurns", maxTurns: 2 }, 2], `behind ${length}`)
        assert.strictEqual(usage?.inputTokens, 20)
      }
      const { kept } = yield* resumed(records.slice(0, first + 1), { maxTurns: 1 })
      assert.deepStrictEqual(kept.value.result.outcome, { _tag: "MaxTurns", maxTurns: 1 })
    }))

  it.effect("D-21: the deadline counts from the first start, also where the resume options name the deadline again", () =>
    Effect.gen(function*() {
      const wait = Tool.make("charge", {
        parameters: { amount: Schema.Finite },
        timeout: "infinity",
        handler: () => Effect.as(Effect.sleep("1 hour"), "late")
      })
      const [lookup, , mail] = toolsOf([])
      const tools = [lookup, wait, mail]
      const started = Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const reply = Session.keep(
          opened,
          (session) => Session.reply(session, "go", { ...options, deadline: { after: 10_000, reserve: 0 }, tools })
        )
        const fiber = yield* Effect.forkChild(reply)
        yield* TestClock.adjust(9_000)
        const records = yield* journalOf("s")
        yield* Fiber.interrupt(fiber)
        return records
      })
      const records = yield* started.pipe(Effect.provide([modelOf([]), Session.Store.layerMemory]))
      const again = yield* Effect.forkChild(
        resumed(records, {
          deadline: { after: 10_000, reserve: 0 },
          tools: [lookup, { ...wait, afterCrash: "retry" }, mail]
        })
      )
      yield* TestClock.adjust(999)
      assert.isUndefined(again.pollUnsafe())
      yield* TestClock.adjust(1)
      const { kept } = yield* Fiber.join(again)
      assert.deepStrictEqual(kept.value.result.outcome, { _tag: "Cancelled", reason: "deadline" })
    }))

  it.effect("D-05: a call answered by its timeout keeps that answer", () =>
    Effect.gen(function*() {
      const deaf = Tool.make("charge", {
        parameters: { amount: Schema.Finite },
        timeout: 100,
        handler: () => Effect.never
      })
      const slow = Tool.make("lookup", {
        parameters: { of: Schema.String },
        handler: () => Effect.as(Effect.sleep(1_000), "found")
      })
      const [, , mail] = toolsOf([])
      const started = Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const reply = Session.keep(opened, (session) =>
          Session.reply(session, "go", { ...options, tools: [slow, deaf, mail] }))
        const fiber = yield* Effect.forkChild(reply)
        yield* TestClock.adjust(500)
        const records = yield* journalOf("s")
        yield* Fiber.interrupt(fiber)
        return records
      })
      const records = yield* started.pipe(Effect.provide([modelOf([]), Session.Store.layerMemory]))
      assert.include([...endedIn(records)], "c0")
      const world: Array<Deed> = []
      const { kept } = yield* resumed(records, {}, world)
      assert.include(answerOf(kept, "c0"), "timed out after 100 ms")
      assert.isEmpty(world.filter((deed) =>
        idOf(deed) === "c0"
      ))
    }))
})

describe("a run of approved calls", () => {
  const long = "long ".repeat(20)
  /** A turn of two calls that wait for approvals and one that asks, over a model that counts the turns. */
  const payments = (world: Array<string>) => {
    const pay = Tool.make("charge", {
      parameters: { amount: Schema.Finite },
      approval: true,
      idempotent: true,
      maxResultChars: 33,
      handler: ({ amount }, call) =>
        Effect.sync(() => (world.push(`${call.id}:${call.attempt}`), { amount, note: long }))
    })
    const lookup = Tool.make("lookup", {
      parameters: { of: Schema.String },
      approval: true,
      handler: ({ of }, call) =>
        Effect.sync(() => (world.push(`${call.id}:${call.attempt}`), Tool.askUser(`which ${of}?`)))
    })
    const mail = Tool.make("mail", { parameters: { to: Schema.String }, handler: () => Effect.succeed("sent") })
    return [pay, lookup, mail] as const
  }
  const shouting = Encoder.layer({ encode: (value) => Effect.sync(() => JSON.stringify(value).toUpperCase()) })

  it.effect("D-07: approved calls of a run cut at each record have the uncut result, through the encoder and within the limit", () =>
    Effect.gen(function*() {
      const going = (world: Array<string>) =>
        Effect.gen(function*() {
          const tools = payments(world)
          const opened = yield* Session.open("s")
          const asked = yield* Session.keep(opened, (session) =>
            Session.reply(session, "go", { tools, requestId: "one" }))
          const first = yield* Session.keep(asked, (session) =>
            Session.approve(session, "c0"))
          const both = yield* Session.keep(
            first,
            (session) => Session.approve(session, "l0", { arguments: { of: "z" } })
          )
          const { version } = both
          const kept = yield* Session.keep(
            both,
            (session) => Session.continue(session, null, { tools, requestId: "two" })
          )
          return { kept, records: yield* journalOf("s"), version }
        }).pipe(Effect.provide([modelOf([]), shouting, Session.Store.layerMemory]))
      const whole = yield* going([])
      assert.include(answerOf(whole.kept, "c0"), "AMOUNT")
      assert.include(answerOf(whole.kept, "c0"), "LO…")
      for (let length = whole.version + 1; length < whole.records.length; length++) {
        const before = whole.records.slice(0, length)
        const where = `cut behind record ${length}, ${before.at(-1)?._tag}`
        const world: Array<string> = []
        const { kept, loaded } = yield* resumed(before, { tools: payments(world) }).pipe(Effect.provide(shouting))
        const ended = endedIn(before.slice(whole.version))
        for (const deed of world) assert.isFalse(ended.has(deed.split(":")[0] ?? ""), `${where}: ${deed} again`)
        const isUnknown = unknownIn(before).some(({ toolCall }) => toolCall.name === "lookup")
        if (!isUnknown) {
          assert.deepStrictEqual(kept.session, whole.kept.session, where)
          assert.deepStrictEqual(kept.value.result, whole.kept.value.result, where)
        }
        assert.deepStrictEqual(loaded?.session, kept.session, where)
      }
    }))
})

describe("the refusals of Session.resume", () => {
  const refused = (records: Records, given: Given) =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(resumed(records, given))
      assert.instanceOf(error, Session.ResumeError)
      return error as Session.ResumeError
    })

  it.effect("D-10: a resume without a claim is refused with a pointer to Session.claim", () =>
    Effect.gen(function*() {
      const { records } = yield* uncut
      const error = yield* refused(records.slice(0, 5), { takeOver: false })
      assert.strictEqual(error.reason, "unclaimed")
      assert.include(error.message, "Session.claim")
    }))

  it.effect("a missing tool and a tool with changed parameters are typed errors that name the tool", () =>
    Effect.gen(function*() {
      const { records } = yield* uncut
      const length = records.findIndex((record) => record._tag === "CallEnded" && record.message.toolCallId === "l0")
      const before = records.slice(0, length + 1)
      const [lookup, charge, mail] = toolsOf([])
      const missing = yield* refused(before, { tools: [lookup, mail] })
      assert.deepInclude(missing, { reason: "tool_missing", toolName: "charge", toolCallId: "c0" })
      const handler = () => Effect.succeed("x")
      const other = yield* refused(before, {
        tools: [lookup, Tool.make("charge", { parameters: { city: Schema.String }, handler }), mail]
      })
      assert.deepInclude(other, { reason: "arguments_changed", toolName: "charge" })
      // A call that has its answer needs no tool.
      const { kept } = yield* resumed(before, { tools: [charge, mail] })
      assert.include(answerOf(kept, "l0"), "1970")
    }))

  it.effect("a resume of a session without an interrupted run is a misuse that names the right call", () =>
    Effect.gen(function*() {
      const { records } = yield* uncut
      const exit = yield* Effect.exit(resumed(records))
      assert.include(String(exit), "no run of the session was interrupted; call Session.reply or Session.continue")
    }))
})
