/**
 * The table of what becomes of a call whose run was killed, and is resumed by a program that has changed: each state of a
 * call, each change of its tool, of the mode and of the policy, and each way of ending the run meanwhile.
 */
import { assert, describe, expect, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Equal from "effect/Equal"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as References from "effect/References"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, type Event, type Journal, Message, Policy, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { SessionStore } from "heddle/sql"
import { check } from "heddle/testing"
import { casting, holding, type Turn, type Written } from "../support/nests.ts"
import { sampleOf } from "../support/property.ts"

type AnyTool = Tool.Tool<string, any, any, any, never>
type Options = Chat.Options<any, any, any>
type Declared = Partial<Parameters<typeof Tool.make>[1]>

const depths = [0, 2] as const
type Depth = (typeof depths)[number]

/** The calls that lead to the run of the subject. */
const pathOf = (depth: Depth): ReadonlyArray<string> => depth === 0 ? [] : ["a", "b"]

const calls: Turn = [["c", "pay", { amount: 5 }], ["o", "other", {}]]

/** The model. Its replies with calls end as if they had none, so that a policy can decide by that. */
const modelOf = (depth: Depth): Layer.Layer<Adapter.Adapter> =>
  Layer.provide(
    Adapter.map((adapter) => ({
      ...adapter,
      stream: (request) =>
        Stream.map(
          adapter.stream(request),
          (event) =>
            event._tag === "MessageCompleted" && event.finishReason === "tool_calls"
              ? { ...event, finishReason: "length" as const }
              : event
        )
    })),
    casting(
      depth === 0
        ? { go: [calls, "done"], within: [[["q", "ask", {}]], "done"] }
        : {
          go: [[["a", "first", {}]], "done"],
          first: [[["b", "second", {}]], "done"],
          second: [calls, "done"],
          within: [[["q", "ask", {}]], "done"]
        }
    )
  )

/** A start of a handler. */
interface Deed {
  readonly id: string
  readonly amount: unknown
  readonly attempt: number
  readonly key: string
}

const parameters = { amount: Schema.Finite }

const ask = Tool.make("ask", {
  parameters: {},
  handler: () => Effect.succeed(Tool.askUser("Which?", { expiresIn: "3 days" }))
})

/** The states of a call when its process was killed, each with the declaration of its tool until then. */
const states = {
  Asked: {},
  Granted: { approval: true },
  Started: {},
  "Started, approved": { approval: true },
  "Waiting: question": { asks: true },
  "Waiting: approval": { approval: true },
  "Waiting: manual": { manual: true },
  "Waiting: manual, approved": { approval: true },
  "Waiting: unknown": { afterCrash: "ask" },
  "Waiting: sub-agent": { agent: true },
  "Granted: sub-agent": { agent: true },
  Answered: {},
  "Answered, approved": { approval: true }
} satisfies Record<string, Declared & { readonly asks?: boolean; readonly agent?: boolean }>

type State = keyof typeof states
const stateNames = Object.keys(states) as ReadonlyArray<State>

/** A tool as a program declares it. */
const payOf = (world: Array<Deed>, { agent, asks, ...declared }: Declared & { asks?: boolean; agent?: boolean }) => {
  if (declared.manual === true) {
    return Tool.make("pay", { parameters, answerWithin: "3 days", ...declared } as never) as AnyTool
  }
  const act = (args: { readonly amount?: unknown }, { attempt, id, idempotencyKey: key }: Tool.CallContext) =>
    Effect.sync(() => void world.push({ id, amount: args.amount, attempt, key }))
  const usual = { parameters, answerWithin: "3 days", ...declared }
  if (agent === true) {
    return Tool.fromChat("pay", {
      ...usual,
      chat: (args: {}, call: Tool.CallContext) =>
        Stream.unwrap(Effect.as(act(args, call), Chat.stream("within", { tools: [ask] })))
    } as never) as AnyTool
  }
  return Tool.make("pay", {
    ...usual,
    handler: (args: {}, call: Tool.CallContext) =>
      Effect.as(act(args, call), asks === true ? Tool.askUser("Which?", { expiresIn: "3 days" }) : "paid")
  } as never) as AnyTool
}

const other = Tool.make("other", { parameters: {}, idempotent: true, handler: () => Effect.succeed("done") })

/** The options of a program whose subject is called at this depth, and those of the run of the subject. */
const programOf = (depth: Depth, inner: Options, outer: Options = {}): Options => {
  if (depth === 0) return { ...inner, ...outer }
  const second = Tool.fromChat("second", { parameters: {}, chat: () => Chat.stream("second", inner) })
  const first = Tool.fromChat("first", { parameters: {}, chat: () => Chat.stream("first", { tools: [second] }) })
  return { tools: [first], ...outer }
}

/** Runs an effect in a time that begins so late, and is moved on until it has ended. */
const inTime = <A, E>(millis: number, effect: Effect.Effect<A, E>): Effect.Effect<A, E> =>
  Effect.gen(function*() {
    yield* TestClock.adjust(millis)
    const fiber = yield* Effect.forkChild(effect)
    while (fiber.pollUnsafe() === undefined) yield* TestClock.adjust(50)
    return yield* Fiber.join(fiber)
  }).pipe(Effect.provide(TestClock.layer()), Effect.provideService(References.MinimumLogLevel, "None"))

/** The part of what was written that ends with the last record of a call for which this holds. */
const behind = (
  written: ReadonlyArray<Written>,
  isLast: (record: Journal.Record) => boolean
): ReadonlyArray<Written> => {
  const last = written.findLastIndex(({ record }) => isLast(record))
  assert.isAtLeast(last, 0, "the run does not come to the state")
  return written.slice(0, last + 1)
}

const isOf = (tag: "CallStarted" | "CallWaits" | "CallEnded") => (record: Journal.Record): boolean =>
  record._tag === tag && (record._tag === "CallEnded" ? record.message.toolCallId : record.toolCallId) === "c"

const isReply = (record: Journal.Record): boolean =>
  record._tag === "ReplyReceived" && JSON.stringify(record).includes("\"pay\"")

const innerOf = (written: ReadonlyArray<Written>): string =>
  written.find(({ record }) => isReply(record))?.id ?? assert.fail("the subject was not called")

/** What was written until the process of a call in this state was killed. */
const killed = (state: State, depth: Depth, version: string | undefined) => {
  const limits = { maxConcurrency: 1, deadline: "1 day" } as const
  const versioned = version === undefined ? {} : { version }
  const tool = payOf([], { ...states[state], ...versioned })
  const options = programOf(depth, { tools: [tool, other], maxConcurrency: 1 }, limits)
  const play = <A, E>(
    before: ReadonlyArray<Written>,
    operation: Effect.Effect<A, E, Session.Store | Adapter.Adapter>
  ) => {
    const after: Array<Written> = []
    return Effect.as(
      inTime(0, Effect.provide(operation, [modelOf(depth), holding(before, after)])).pipe(Effect.orDie),
      after
    ).pipe(Effect.map((after) => [...before, ...after]))
  }
  const id = [...pathOf(depth), "c"].join("/")
  const first = play(
    [],
    Effect.flatMap(
      Session.open("s"),
      (kept) => Session.keep(kept, (session) => Session.reply(session, "go", { requestId: "r", ...options }))
    )
  )
  const resumed = (before: ReadonlyArray<Written>) =>
    play(before, Effect.flatMap(Session.load("s"), (kept) => Session.resume(kept!, { ...options, takeOver: true })))
  const settled = (
    settle: (session: Session.Session) => Effect.Effect<Session.Session, Session.SessionError>,
    next = options
  ) =>
    Effect.flatMap(first, (before) =>
      play(
        before,
        Effect.gen(function*() {
          const settled = yield* Session.keep(yield* Session.open("s"), settle)
          yield* Session.keep(settled, (session) => Session.continue(session, null, next))
        })
      ))
  const approvedBy = (next: Options) =>
    settled((session) => Session.approve(session, id, { arguments: { amount: 7 } }), next)
  const approved = approvedBy(options)
  const answered = settled((session) => Session.answer(session, `${id}/q`, "Oslo"))
  const byHand = programOf(
    depth,
    { tools: [payOf([], { manual: true, ...versioned }), other], maxConcurrency: 1 },
    limits
  )
  const atStart = (written: ReadonlyArray<Written>) => {
    const inner = innerOf(written)
    const last = written.findLastIndex(({ id, record }) => id === inner && record._tag === "RunStarted")
    return written.slice(0, last + 1)
  }
  switch (state) {
    case "Asked":
      return Effect.map(first, (written) => behind(written, isReply))
    case "Granted":
      return Effect.map(approved, atStart)
    case "Started":
      return Effect.map(first, (written) => behind(written, isOf("CallStarted")))
    case "Started, approved":
      return Effect.map(approved, (written) => behind(written, isOf("CallStarted")))
    case "Waiting: manual":
      return Effect.map(first, (written) => {
        const inner = innerOf(written)
        const last = written.findIndex(({ id, record }) => id === inner && record._tag === "StepCompleted")
        return written.slice(0, last + 1)
      })
    case "Waiting: unknown":
      return first.pipe(
        Effect.map((written) => behind(written, isOf("CallStarted"))),
        Effect.flatMap(resumed),
        Effect.map((written) => behind(written, isOf("CallWaits")))
      )
    case "Waiting: manual, approved":
      return Effect.map(approvedBy(byHand), (written) => behind(written, isOf("CallWaits")))
    case "Granted: sub-agent":
      return Effect.map(answered, atStart)
    case "Waiting: question":
    case "Waiting: approval":
    case "Waiting: sub-agent":
      return Effect.map(first, (written) => behind(written, isOf("CallWaits")))
    case "Answered":
      return Effect.map(first, (written) => behind(written, isOf("CallEnded")))
    case "Answered, approved":
      return Effect.map(approved, (written) => behind(written, isOf("CallEnded")))
  }
}

// The changes.

const lookUp = (found: Option.Option<string>) => () => Effect.succeed(found)

/** The tool by now: its declaration, in place of what it was, or none. */
const toolChanges = {
  "as it was": {},
  "manual by now": { manual: true, answerWithin: "1 hour" },
  gone: undefined,
  "the same version": { version: "1" },
  "another version": { version: "2" },
  "gone, with a version": undefined,
  "other parameters": { parameters: { to: Schema.String } },
  "approval: true": { approval: true },
  "approval: false": { approval: false },
  "readOnly: true": { readOnly: true },
  "idempotent: true": { idempotent: true },
  "afterCrash: retry": { afterCrash: "retry" },
  "afterCrash: report": { afterCrash: "report" },
  "afterCrash: ask": { afterCrash: "ask" },
  "afterCrash: fail": { afterCrash: "fail" },
  "lookUp finds": { lookUp: lookUp(Option.some("found")) },
  "lookUp finds nothing": { lookUp: lookUp(Option.none()) },
  "interrupt: block": { interrupt: "block" },
  "concurrency: exclusive": { concurrency: "exclusive" },
  "compact: true": { compact: true, summary: "Pays" },
  "answerWithin: 1 hour": { answerWithin: "1 hour" }
} satisfies Record<string, Declared | undefined>

type ToolChange = keyof typeof toolChanges
const toolNames = Object.keys(toolChanges) as ReadonlyArray<ToolChange>

const versioned: ReadonlySet<ToolChange> = new Set(["the same version", "another version", "gone, with a version"])
const gone: ReadonlySet<ToolChange> = new Set(["gone", "gone, with a version"])
const retried: ReadonlySet<ToolChange> = new Set([
  "readOnly: true",
  "idempotent: true",
  "afterCrash: retry",
  "lookUp finds nothing"
])

/** What else is different by now: options of the run of the subject, those of the outermost run, and what came before. */
interface RunChange {
  readonly inner?: Options
  readonly outer?: Options & { readonly maxAge?: "1 minute" }
  /** Tells whether nothing new may start. */
  readonly isOver?: boolean
  readonly stop?: boolean
  readonly afterMillis?: number
  readonly policy?: Partial<Policy.Policy>
}

const siblings = { onHalt: "abortAll", onToolError: "abortAll", queued: "skip", trigger: "crashed" } as const

const runChanges: Record<string, RunChange> = {
  "as it was": {},
  "mode: manual": { inner: { mode: "manual" } },
  "unknownTool: failTurn": { policy: { unknownTool: "failTurn", start: "afterTurn" } },
  "toolTurn: finishReason": { policy: { toolTurn: "finishReason" } },
  "start: afterTurn": { policy: { start: "afterTurn" } },
  "start: onCallReady": { policy: { start: "onCallReady" } },
  "badArguments: runWithHeaderArguments": { policy: { badArguments: "runWithHeaderArguments" } },
  "haltPrecedence: completion": { policy: { haltPrecedence: "completion" } },
  "resultOrder: request": { policy: { resultOrder: "request" } },
  "toolEvents: grouped": { policy: { toolEvents: "grouped", callFacts: "hidden" } },
  "siblings: abortAll": { policy: { siblings } },
  "concurrency: exclusive": { policy: { concurrency: "exclusive", interrupt: "block" } },
  "results: resultObject": { policy: { results: "resultObject" } },
  "toolChoice: every": { policy: { toolChoice: "every" }, inner: { toolChoice: "required" } },
  "onMaxTurns: finalize": { policy: { onMaxTurns: "finalize" }, inner: { maxTurns: 1 } },
  "a stop was requested": { stop: true, isOver: true },
  "cancelled at once": { outer: { cancel: Effect.void }, isOver: true },
  "the deadline has passed": { afterMillis: 25 * 3_600_000, isOver: true },
  "older than maxAge": { outer: { maxAge: "1 minute" }, isOver: true }
}

type Change = keyof typeof runChanges
const runNames = Object.keys(runChanges) as ReadonlyArray<Change>

// What the table says.

const isEarlier = (state: State): boolean => state.startsWith("Granted") || state.endsWith("approved")

/**
 * Tells whether the runs that lead to the call are not continued: their sub-agents have started, and are unknown with all
 * that is in them.
 */
const isLeftInside = (state: State, depth: Depth, run: Change): boolean =>
  depth > 0 && runChanges[run]!.isOver === true && (run !== "the deadline has passed" || isEarlier(state))

/** Expects what the table of a resumed turn says, from nothing but the state, the tool and the run. */
const expected = (state: State, depth: Depth, tool: ToolChange, run: Change): string => {
  const { isOver = false } = runChanges[run]!
  if (isLeftInside(state, depth, run)) return "unknown"
  const isToRun = state.startsWith("Granted") || state.startsWith("Started")
  const isChecked = !isOver || run === "cancelled at once" || run === "the deadline has passed"
  if (isToRun && isChecked) {
    if (tool === "gone") return "refused: tool_missing"
    if (tool === "other parameters" && !state.startsWith("Granted")) return "refused: arguments_changed"
  }
  const isOther = tool === "another version" || tool === "gone, with a version"
  const isManual = run === "mode: manual" || tool === "manual by now"
  const withdrawal = run === "unknownTool: failTurn" && !isEarlier(state) || isOver
  switch (state) {
    case "Answered":
    case "Answered, approved":
      return "its answer"
    case "Waiting: manual, approved":
      return isOver ? "not run" : "waits as recorded"
    case "Waiting: manual":
      // Its step is whole, and the run ends with it. That around it has an open turn.
      return depth > 0 && isOver ? "cancelled with its sub-agent" : "waits as recorded"
    case "Waiting: approval":
      return withdrawal ? "not run" : "waits as recorded"
    case "Waiting: question":
    case "Waiting: sub-agent":
      return withdrawal ? "withdrawn" : "waits as recorded"
    case "Waiting: unknown":
      return withdrawal ? "unknown" : "waits as recorded"
    case "Started":
    case "Started, approved": {
      const isDecidedOn = state === "Started" && (run === "toolTurn: finishReason" || withdrawal)
      if (isOver || isDecidedOn || isOther) return "unknown"
      if (tool === "afterCrash: ask") return "is asked"
      if (isManual) return "unknown"
      if (tool === "lookUp finds") return "found"
      return retried.has(tool) ? "runs again" : "unknown"
    }
    case "Granted":
    case "Granted: sub-agent":
      // A sub-agent has had its start.
      if (isOver && state !== "Granted") return "unknown"
      if (isOver) return "not run"
      if (isOther) return "denied"
      if (isManual) return state === "Granted" ? "is handed over as approved" : "is handed over"
      if (tool === "other parameters") return "invalid_arguments"
      return state === "Granted" ? "runs as approved" : "continues"
    case "Asked":
      if (isOver) return "not run"
      if (run === "unknownTool: failTurn") return "fails the turn"
      if (run === "toolTurn: finishReason") return "not run"
      if (isOther) return "denied"
      if (isManual) return "is handed over"
      if (gone.has(tool)) return "unknown_tool"
      if (tool === "other parameters") return "invalid_arguments"
      return tool === "approval: true" ? "waits for an approval" : "runs"
  }
}

// What happens.

const stores = {
  memory: (before: ReadonlyArray<Written>, after: Array<Written>) => holding(before, after),
  SQLite: (before: ReadonlyArray<Written>, after: Array<Written>) =>
    holding(before, after, SessionStore.layerSqlite({ filename: ":memory:" }))
}

interface Way {
  readonly by: "program" | "worker"
  readonly store: keyof typeof stores
}

const journals = new Map<string, ReadonlyArray<Written>>()

const killedOnce = (state: State, depth: Depth, version: string | undefined) =>
  Effect.suspend(() => {
    const name = `${state} ${depth} ${version}`
    const known = journals.get(name)
    if (known !== undefined) return Effect.succeed(known)
    return Effect.tap(killed(state, depth, version), (written) => Effect.sync(() => void journals.set(name, written)))
  })

type Resuming = Effect.Effect<unknown, unknown, Session.Store | Adapter.Adapter>

/** Resumes the run by a program, or a worker. Succeeds with the error that refused it, if one did. */
const resumed = (options: Options, { by }: Way) =>
  Effect.gen(function*() {
    if (by === "program") {
      const cut = (yield* Session.load("s"))!
      const resume = Session.resume(cut, { ...options, takeOver: true }) as Resuming
      const result = yield* Effect.result(resume)
      return result._tag === "Failure" ? result.failure : undefined
    }
    const left = yield* Effect.scoped(Effect.gen(function*() {
      yield* Layer.build(Worker.layer({ run: () => options as never }))
      for (let turn = 0; turn < 10; turn++) {
        yield* Effect.sleep(500)
        const kept = yield* Session.load("s")
        if (Session.next(kept!) !== "resume") return false
      }
      return true
    }))
    return left ? "left" : undefined
  })

const outcomeOf = (state: State, depth: Depth, tool: ToolChange, run: Change, way: Way) =>
  Effect.gen(function*() {
    const before = yield* killedOnce(state, depth, versioned.has(tool) ? "1" : undefined)
    const change = runChanges[run]!
    const world: Array<Deed> = []
    const after: Array<Written> = []
    const was = states[state]
    const declared = toolChanges[tool]
    const isSame = tool === "as it was" || tool === "the same version"
    const { afterCrash, manual: _, ...kept } = was as Declared & { readonly manual?: boolean }
    const base = isSame
      ? was
      : declared !== undefined && "lookUp" in declared
      ? kept
      : { ...kept, ...(afterCrash === undefined ? {} : { afterCrash }) }
    const isManual = declared !== undefined && "manual" in declared
    const now = isManual ? declared : { ...base, ...declared }
    const tools = [
      ...(gone.has(tool) ? [] : [payOf(world, now as Declared)]),
      ...(run === "unknownTool: failTurn" ? [] : [other])
    ]
    const policy = { ...Policy.standard, ...change.policy }
    const options = programOf(depth, { tools, policy, ...change.inner }, change.outer)
    const inner = innerOf(before)
    return yield* inTime(
      change.afterMillis ?? 600_000,
      Effect.gen(function*() {
        if (change.stop === true) yield* Session.stop("s")
        after.length = 0
        const refusal = yield* resumed(options, way)
        const length = after.filter(({ id, record }) => id === inner || record._tag === "CallEnded").length
        const { session } = (yield* Session.load("s"))!
        const { session: within } = (yield* Session.load(inner))!
        return { refusal, length, session, within, world }
      }).pipe(
        Effect.provide([modelOf(depth), stores[way.store](before, after)]),
        Effect.orDie
      )
    ).pipe(Effect.map((found) => ({ ...found, before })))
  })

type Outcome = Effect.Success<ReturnType<typeof outcomeOf>>

const answerIn = ({ thread }: Session.Session, id: string): string | undefined => {
  const answer = thread.messages.find(({ role, toolCallId }) => role === "tool" && toolCallId === id)
  return answer === undefined ? undefined : Message.text(answer)
}

/** Says in one word what became of the call. */
const wordOf = (state: State, depth: Depth, run: Change, found: Outcome): string => {
  const { length, refusal, session, within, world } = found
  if (refusal === "left") return length > 0 ? "refused, and written" : "refused"
  if (refusal instanceof Session.ResumeError) return `refused: ${refusal.reason}${length > 0 ? ", and written" : ""}`
  if (isLeftInside(state, depth, run)) {
    return /unknown_effect/.test(answerIn(session, "a") ?? "") ? "unknown" : `the sub-agent: ${answerIn(session, "a")}`
  }
  const first = found.before.find(({ record }) => isOf("CallStarted")(record))?.record
  const firstKey = first?._tag === "CallStarted" ? first.idempotencyKey : undefined
  const deeds = world.map(({ amount, attempt, key }) => {
    if (attempt > 1) return key === firstKey ? "runs again" : "runs again under another key"
    return amount === 7 ? "runs as approved" : "runs"
  })
  const open = within.suspensions.find(({ id }) => id === "c" || id.startsWith("c/"))
  const path = [...pathOf(depth), open?.id].join("/")
  if (open !== undefined && !session.suspensions.some(({ id }) => id === path)) {
    return `${wordIn(answerIn(session, "a") ?? "left open")} with its sub-agent`
  }
  if (open !== undefined) return [...deeds, waitOf(found, open)].join(", ")
  const answer = answerIn(within, "c")
  if (deeds.length === 1 && state === "Granted: sub-agent" && (answer === "done" || answer === "paid")) {
    return "continues"
  }
  if (deeds.length > 0 && answer === "paid") return deeds.join(", ")
  const recorded = found.before.findLast(({ record }) => isOf("CallEnded")(record))?.record
  const said = answer === undefined
    ? "fails the turn"
    : recorded?._tag === "CallEnded" && Message.text(recorded.message) === answer
    ? "its answer"
    : wordIn(answer)
  return [...deeds, said].join(", ")
}

const wordIn = (answer: string): string =>
  ["unknown_effect", "withdrawn", "not run", "invalid_arguments", "unknown_tool", "denied", "found", "cancelled"].find((
    word
  ) => answer.includes(word))?.replace("unknown_effect", "unknown") ?? answer

/** The suspensions that the records of a run have. */
const recordedIn = (value: unknown): ReadonlyArray<unknown> =>
  Array.isArray(value)
    ? value.flatMap(recordedIn)
    : typeof value === "object" && value !== null
    ? [value, ...Object.values(value).flatMap(recordedIn)]
    : []

const waitOf = ({ before }: Outcome, open: Event.Suspension): string => {
  // A record has the call itself once.
  const { toolCall: _, ...own } = open
  const isRecorded = recordedIn(before.map(({ record }) => record)).some((value) =>
    Equal.equals(value, open) || Equal.equals(value, own)
  )
  if (isRecorded) return "waits as recorded"
  if (open.kind === "manual") {
    return open.toolCall.arguments?.["amount"] === 7 ? "is handed over as approved" : "is handed over"
  }
  return open.kind === "approval"
    ? "waits for an approval"
    : open.kind === "unknown"
    ? "is asked"
    : `waits anew: ${JSON.stringify(open)}`
}

interface Cell {
  readonly state: State
  readonly depth: Depth
  readonly tool: ToolChange
  readonly run: Change
}

// The table.

/** The changes that decide about calls of whatever tool. */
const decisive: ReadonlyArray<Change> = [
  "as it was",
  "mode: manual",
  "unknownTool: failTurn",
  "toolTurn: finishReason",
  "a stop was requested",
  "cancelled at once",
  "the deadline has passed",
  "older than maxAge"
]

/** One change at a time. */
const singles = (depth: Depth): ReadonlyArray<Cell> =>
  stateNames.flatMap((state) => [
    ...toolNames.map((tool): Cell => ({ state, depth, tool, run: "as it was" })),
    ...runNames.slice(1).map((run): Cell => ({ state, depth, tool: "as it was", run }))
  ])

/** A change of the tool together with each that decides. */
const pairs = (depth: Depth): ReadonlyArray<Cell> =>
  stateNames.flatMap((state) =>
    toolNames.slice(1).flatMap((tool) => decisive.slice(1).map((run): Cell => ({ state, depth, tool, run })))
  )

const every = (step: number, cells: ReadonlyArray<Cell>) => cells.filter((_, index) => index % step === 0)

/** What became of each call, and what differs from the table. */
const played = (cells: ReadonlyArray<Cell>, way: Way) =>
  Effect.gen(function*() {
    const words: Array<string> = []
    const differences: Array<string> = []
    for (const { depth, run, state, tool } of cells) {
      const found = yield* outcomeOf(state, depth, tool, run, way)
      const where = `${state}, ${tool}, ${run}`
      const wanted = expected(state, depth, tool, run)
      const word = wordOf(state, depth, run, found)
      words.push(word)
      const isRight = word === wanted || word === "refused" && wanted.startsWith("refused: ")
      if (!isRight) differences.push(`${where}: ${word}, not ${wanted}`)
      if (found.refusal !== undefined) continue
      const pending = found.session.suspensions.map(({ id, path }) => path?.[0] ?? id)
      for (const problem of check.thread(found.session.thread, { pending })) {
        differences.push(`${where}: ${JSON.stringify(problem)}`)
      }
    }
    return { words, differences }
  })

/** The table as text: for each state what becomes of the call, and after which changes. */
const printed = (cells: ReadonlyArray<Cell>, words: ReadonlyArray<string>): string =>
  stateNames.map((state) => {
    const rows = new Map<string, Array<string>>()
    for (const [index, { run, state: own, tool }] of cells.entries()) {
      if (own !== state) continue
      const word = words[index] ?? ""
      rows.set(word, [...rows.get(word) ?? [], run === "as it was" ? tool : run])
    }
    const lines = Array.from(rows, ([word, changes]) => `  ${word}\n${changes.map((name) => `    ${name}\n`).join("")}`)
    return `${state}\n${lines.join("")}`
  }).join("\n")

const ids = "O-44, O-45, O-71 to O-74, W-30"

describe("a call of a killed run that a changed program resumes", () => {
  it.effect(`${ids}: each single change has the outcome of the table`, () =>
    Effect.gen(function*() {
      const cells = singles(0)
      const { differences, words } = yield* played(cells, { by: "program", store: "memory" })
      assert.deepStrictEqual(differences, [])
      const table = printed(cells, words)
      yield* Effect.promise(() => expect(table).toMatchFileSnapshot("../fixtures/changedPrograms.txt"))
    }))

  it.effect(`${ids}: a changed tool with each other deciding change has the outcome of the table`, () =>
    Effect.gen(function*() {
      const { differences } = yield* played(sampleOf(every(3, pairs(0))), { by: "program", store: "memory" })
      assert.deepStrictEqual(differences, [])
    }))

  it.effect(`${ids}: the table also applies two sub-agents deep, and a refusal writes nothing`, () =>
    Effect.gen(function*() {
      const cells = [...singles(2), ...every(11, pairs(2))]
      const { differences } = yield* played(sampleOf(cells), { by: "program", store: "memory" })
      assert.deepStrictEqual(differences, [])
    }))

  for (
    const way of [{ by: "worker", store: "memory" }, { by: "program", store: "SQLite" }, {
      by: "worker",
      store: "SQLite"
    }] as const
  ) {
    it.effect(`${ids}: the table also applies to a resume by a ${way.by} on ${way.store}`, () =>
      Effect.gen(function*() {
        const cells = [...every(5, singles(0)), ...every(13, singles(2)), ...every(49, pairs(0))]
        const { differences } = yield* played(sampleOf(cells), way)
        assert.deepStrictEqual(differences, [])
      }))
  }
})

// A stop whose grace period is over before the calls of the open turn are worked.

const asking = Tool.fromChat("wait", {
  parameters: {},
  chat: () => Chat.stream("within", { tools: [ask] })
}) as AnyTool

/** What waits beside the started call, with the tool that let it wait. */
const waits: Record<string, AnyTool> = {
  "an approval": Tool.make("wait", { parameters: {}, approval: true, handler: () => Effect.succeed("waited") }),
  "a question of a sub-agent": asking,
  "a manual call": Tool.make("wait", { parameters: {}, manual: true }),
  "a question": Tool.make("wait", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which?")) })
}

/** Stops of a run, each with a change of its program. An observer takes longer over the reply than the grace period. */
const lateStops: Record<string, Options> = {
  "cancelled at once": { cancel: Effect.void },
  "cancelled by a signal": { cancel: AbortSignal.abort() },
  "cancelled while its reply is repeated": { cancel: Effect.sleep(30) },
  "stopped by its deadline": { deadline: 30 },
  "stopped by another process": { onEvent: () => Effect.andThen(Effect.orDie(Session.stop("s")), Effect.sleep(20)) },
  "cancelled in mode manual": { cancel: Effect.void, mode: "manual" },
  "cancelled without the tool of its waiting call": { cancel: Effect.void, tools: [payOf([], {})] }
}

/** A turn of the session, or of its sub-agent, with a waiting call and a started one. */
const lateCalls: Turn = [["w", "wait", {}], ["c", "pay", { amount: 5 }]]

const lateModel = casting({
  go: [lateCalls, "done"],
  outer: [[["a", "first", {}]], "done"],
  first: [lateCalls, "done"],
  earlier: [[...lateCalls, ["d", "pay", { amount: 6 }]], "done"],
  within: [[["q", "ask", {}]], [["q2", "ask", {}]], "done"]
})

const lateProgram = (wait: AnyTool, isNested: boolean, changed: Options): Options => {
  const options: Options = { tools: [wait, payOf([], {})], maxConcurrency: 1, ...changed }
  if (!isNested) return options
  return { tools: [Tool.fromChat("first", { parameters: {}, chat: () => Chat.stream("first", options) })] }
}

/** Plays a part of a program over the journals of those before it, and lists what was written behind them. */
const playedOn = <A, E>(
  before: ReadonlyArray<Written>,
  part: Effect.Effect<A, E, Session.Store | Adapter.Adapter>
) => {
  const after: Array<Written> = []
  return inTime(0, Effect.orDie(Effect.provide(part, [lateModel, holding(before, after)]))).pipe(
    Effect.map((value) => ({ value, after }))
  )
}

const replying = (said: string, options: Options) =>
  Effect.flatMap(
    Session.open("s"),
    (kept) => Session.keep(kept, (session) => Session.reply(session, said, { requestId: "r", ...options }))
  )

/** Resumes the run under a stop. Returns what its observer saw beside the session. */
const resumedLate = (
  before: ReadonlyArray<Written>,
  program: (changed: Options) => Options,
  { onEvent = () => Effect.sleep(20), ...stop }: Options
) => {
  const seen: Array<Event.Event> = []
  const observed = (event: Event.Event) =>
    Effect.andThen(Effect.sync(() => seen.push(event)), onEvent(event) as Effect.Effect<void>)
  const options = program({ grace: 10, ...stop, onEvent: observed })
  return playedOn(
    before,
    Effect.scoped(Effect.gen(function*() {
      const claimed = yield* Session.claim("s", { poll: 10 })
      yield* Session.resume(claimed, options) as Resuming
      const { session } = (yield* Session.load("s"))!
      return { session, within: (yield* Session.load(innerOf(before)))!.session }
    }))
  ).pipe(Effect.map(({ after, value }) => ({ ...value, after, seen })))
}

const toolAnswers = ({ thread }: Session.Session) =>
  thread.messages.flatMap(({ role, toolCallId }) => role === "tool" ? [toolCallId] : [])

/** The number of times that an observer saw a call wait. */
const waitsIn = (seen: ReadonlyArray<Event.Event>): number =>
  seen.filter(({ _tag }) => _tag === "ToolApprovalRequested" || _tag === "ToolSuspended").length

const endsIn = (after: ReadonlyArray<Written>, inner: string) =>
  after.flatMap(({ id, record }) => id === inner && record._tag === "CallEnded" ? [record.message.toolCallId] : [])

describe("a resumed run whose grace period ends before its calls are worked", () => {
  for (const [name, stop] of Object.entries(lateStops)) {
    it.effect(`O-44: a resumed run ${name} reports each call once, and answers each call`, () =>
      Effect.gen(function*() {
        for (const isNested of [false, true]) {
          for (const [kind, wait] of Object.entries(waits)) {
            const where = `${kind}${isNested ? ", in a sub-agent" : ""}`
            const program = (changed: Options) => lateProgram(wait, isNested, changed)
            const written = (yield* playedOn([], replying(isNested ? "outer" : "go", program({})))).after
            const before = behind(written, isOf("CallStarted"))
            const { after, seen, session, within } = yield* resumedLate(before, program, stop)
            assert.deepStrictEqual(check.thread(session.thread), [], where)
            assert.isAtMost(waitsIn(seen), 1, where)
            // The stop of the outer run interrupts its sub-agent, which is unknown with all that is in it.
            if (isNested && name === "stopped by another process") {
              assert.deepStrictEqual(toolAnswers(session), ["a"], where)
              continue
            }
            assert.deepStrictEqual(toolAnswers(within), ["w", "c"], where)
            assert.match(answerIn(within, "c") ?? "", /unknown_effect/, where)
            assert.sameMembers(endsIn(after, innerOf(before)), ["w", "c"], where)
            const results = seen.flatMap((event) => event._tag === "ToolResultEncoded" ? [event.id] : [])
            assert.sameMembers(results, ["w", "c"], where)
          }
        }
      }))
  }

  it.effect("O-44: a resumed run in the turn of an earlier run reports each call once, and answers each call", () =>
    Effect.gen(function*() {
      const options: Options = { maxConcurrency: 1, tools: [asking, payOf([], { approval: true })] }
      const { after: first } = yield* playedOn([], replying("earlier", options))
      const settle = (session: Session.Session) =>
        Session.answer(session, "w/q", "Oslo").pipe(
          Effect.flatMap((answered) => Session.approve(answered, "c")),
          Effect.flatMap((approved) => Session.deny(approved, "d", "no"))
        )
      const { after: second } = yield* playedOn(
        first,
        Effect.gen(function*() {
          const settled = yield* Session.keep(yield* Session.open("s"), settle)
          yield* Session.keep(settled, (session) => Session.continue(session, null, options))
        })
      )
      const before = behind([...first, ...second], isOf("CallStarted"))
      const found = yield* resumedLate(before, (changed) => ({ ...options, ...changed }), { cancel: Effect.void })
      assert.deepStrictEqual(check.thread(found.session.thread), [])
      assert.isAtMost(waitsIn(found.seen), 1)
      assert.deepStrictEqual(toolAnswers(found.session), ["w", "c", "d"])
      assert.match(answerIn(found.session, "c") ?? "", /unknown_effect/)
    }))
})
