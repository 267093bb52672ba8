/**
 * Programs whose runs rules govern: turns of a model, tools of several kinds and a sub-agent, and rules that use every
 * function of theirs. What a rule learns from outside is a number that no two questions share, so that a question that
 * is asked again shows.
 */
import * as Arbitrary from "effect/Arbitrary"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Layer from "effect/Layer"
import * as References from "effect/References"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, type Event, Message, Policy, Response, Rule, Session, Tool } from "heddle"
import { recordsOf } from "./edges.ts"
import { anything } from "./tools.ts"

/** What a program does and learns, and what is done to it. */
export interface World {
  /** The number of questions that rules have asked outside. */
  asked: number
  /** The requests, and how many there were of each turn. */
  readonly requests: Array<Adapter.Request>
  readonly turns: Map<string, number>
  /** How many requests there were of each turn before the last one. */
  earlier: Map<string, number>
  /** The calls that ran. */
  readonly ran: Array<string>
  /** The outcomes that rules heard, by their names and runs. */
  readonly ends: Array<readonly [rule: string, requestId: string, outcome: Event.Outcome["_tag"]]>
  /** The rules that are open. */
  open: number
}

export const worldOf = ({ asked = 0, turns = new Map() }: Partial<Pick<World, "asked" | "turns">> = {}): World => ({
  asked,
  requests: [],
  turns: new Map(turns),
  earlier: new Map(turns),
  ran: [],
  ends: [],
  open: 0
})

const kinds = [
  "pin",
  "pin once",
  "hint",
  "hint at first",
  "view",
  "offer",
  "ask last",
  "ask end",
  "again if broken",
  "again if whole",
  "again if cheap",
  "usage",
  "go",
  "last",
  "always last",
  "always go",
  "end",
  "hear",
  "handlers",
  "tally",
  "silent",
  "goes on"
] as const

/** Ends of a run that no rule undoes. */
const fixed = ["AskUser", "ManualToolCalls", "ApprovalRequested", "Cancelled", "Failed", "ToolFailed"]

const literals = <const L extends ReadonlyArray<string | number | boolean>>(...values: L) => Schema.Literals(values)

const Drawn = Schema.Struct({
  kind: Schema.Literals(kinds),
  at: literals(0, 1, 2),
  waits: Schema.Boolean,
  opens: Schema.Boolean
})

type Drawn = typeof Drawn.Type

const names = ["value", "echo", "crash", "ask", "approved", "halt", "slow", "sub", "served"] as const

const Program = Schema.Struct({
  turns: Schema.Array(Schema.Struct({
    calls: Schema.Array(Schema.Literals(names)).check(Schema.isMaxLength(3)),
    broken: literals(0, 0, 1, 2)
  })).check(Schema.isMaxLength(4)),
  rules: Schema.Array(Drawn).check(Schema.isMaxLength(4)),
  nested: Schema.Array(Drawn).check(Schema.isMaxLength(2)),
  maxTurns: literals(1, 2, 5),
  onMaxTurns: literals("halt", "finalize"),
  special: literals("none", "none", "structured", "haltWhen", "retryReply"),
  offered: literals("offered tools", "any tools")
})

export type Program = typeof Program.Type

export const programs: Arbitrary.Arbitrary<Program> = Arbitrary.schema(Program) as never

/** The service that a rule gives to handlers. */
const Served = Context.Reference<string>("test/governed/Served", { defaultValue: () => "nothing" })

/** Returns the number of a question that is asked outside. */
const outside = (world: World, { waits }: Drawn) =>
  Effect.andThen(waits ? Effect.sleep(1) : Effect.void, Effect.sync(() => ++world.asked))

const ruleOf = (world: World, drawn: Drawn, index: number, place: string): Rule.Rule => {
  const { at, kind, opens, waits } = drawn
  const name = `${place}${index}`
  const given = <A>(value: A): A | Effect.Effect<A> => waits ? Effect.as(Effect.sleep(1), value) : value
  const asking = (ask: Rule.Ask, note: unknown): Rule.Ask => ({
    ...ask,
    template: { ...ask.template, model: `${ask.template.model ?? ""} ${name}:${JSON.stringify(note)}` }
  })
  const hint = Message.user(`hint of ${name}`)
  const hooks = (): Rule.Hooks => {
    switch (kind) {
      case "pin":
        return {
          ask: (ask, { noted }) =>
            noted[name] !== undefined
              ? asking(ask, noted[name])
              : Effect.map(outside(world, drawn), (note) => Rule.ask(asking(ask, note), { note }))
        }
      case "pin once":
        return {
          ask: (ask, { noted, notes }) => {
            const known = noted[name] ?? notes[0]?.[name]
            if (known !== undefined) return asking(ask, known)
            return Effect.map(
              outside(world, drawn),
              (note) => Rule.ask(asking(ask, note), { note, recorded: Effect.sync(() => void (note > 0)) })
            )
          }
        }
      case "hint":
        return {
          ask: (ask, { noted, stepIndex }) =>
            noted[name] !== undefined || stepIndex !== at ? ask : given(Rule.ask(ask, { note: 1, messages: [hint] }))
        }
      case "hint at first":
        return { ask: (ask, { attempt }) => attempt > 0 ? ask : given(Rule.ask(ask, { messages: [hint] })) }
      case "view":
        return {
          ask: (ask, { thread }) =>
            given({
              ...ask,
              view: thread.messages.filter((message) =>
                message.role !== "user" || Message.text(message) !== "hint of r0"
              )
            })
        }
      case "offer":
        return {
          ask: (ask, { stepIndex }) => given(stepIndex === at ? Rule.offer(ask, (tool) => tool !== "echo") : ask)
        }
      case "ask last":
        return {
          ask: (ask, { stepIndex }) =>
            stepIndex !== at ? ask : given(Rule.last(`by-${name}`, { note: name, messages: [hint] }))
        }
      case "ask end":
        return { ask: (ask, { stepIndex }) => stepIndex !== at + 1 ? ask : given(Rule.end({ detail: { at } })) }
      case "again if broken":
        return {
          reply: ({ error, mayRepeat }, { noted }) =>
            given(
              error === undefined || !mayRepeat || Number(noted[name] ?? 0) > at
                ? Rule.keep()
                : Rule.askAgain({ note: Number(noted[name] ?? 0) + 1, after: 1 })
            )
        }
      case "again if whole":
        return {
          reply: ({ error, mayRepeat }, { noted, stepIndex }) =>
            given(
              error !== undefined || !mayRepeat || stepIndex !== at || noted[name] !== undefined
                ? Rule.keep()
                : Rule.askAgain({ note: "again" })
            )
        }
      case "again if cheap":
        return {
          reply: ({ error, mayRepeat, usage }) =>
            given(
              error === undefined && mayRepeat && usage?.inputTokens === 1
                ? Rule.askAgain()
                : Rule.keep()
            )
        }
      case "usage":
        return { reply: ({ usage }) => given(Rule.keep({ note: usage?.inputTokens ?? 0 })) }
      case "go":
        return {
          next: (next, { steps }) =>
            next._tag !== "End" || steps.length !== at + 1
              ? next
              : Effect.map(outside(world, drawn), (note) => Rule.go({ note, messages: [hint] }))
        }
      case "last":
        return {
          next: (next, { steps }) =>
            next._tag !== "Go" || steps.length !== at + 1
              ? next
              : Effect.map(outside(world, drawn), (note) => Rule.last(`by-${name}`, { note, messages: [hint] }))
        }
      case "always last":
        return { next: () => given(Rule.last(`by-${name}`)) }
      case "always go":
        return { next: () => given(Rule.go()) }
      case "end":
        return {
          next: (next, { steps }) =>
            steps.length !== at + 1 ? next : given(Rule.end({ status: at === 0 ? "error" : "completed" }))
        }
      case "hear":
        return {
          hear: (event) => event._tag === "TextCompleted" ? [{ _tag: "RawChunk", chunk: { heard: name } }] : []
        }
      case "handlers":
        return { handlers: Context.make(Served, name) }
      case "tally":
        return {
          ask: (ask, { kept, noted, stepIndex }) =>
            stepIndex > 0 || noted[name] !== undefined
              ? ask
              : given(Rule.ask(ask, { note: Number(kept[name] ?? 0) + 1 }))
        }
      case "goes on":
        return {
          next: (next) =>
            next._tag === "End" && fixed.includes(next.outcome._tag) ? Rule.go({ note: 1, messages: [hint] }) : next
        }
      case "silent":
        return {
          ask: (ask) => given(ask),
          hear: () => [],
          reply: () => given(Rule.keep()),
          next: (next) => given(next)
        }
    }
  }
  const all = (): Rule.Hooks => ({
    ...hooks(),
    end: (outcome, { requestId }) => {
      world.ends.push([name, requestId, outcome._tag])
      return waits ? Effect.sleep(1) : undefined
    }
  })
  const keeps = kind === "tally" ? { keeps: "session" as const } : {}
  if (!opens) return Rule.make(name, { ...all(), ...keeps })
  const opening = Effect.acquireRelease(
    Effect.sync(() => void world.open++),
    () => Effect.sync(() => void world.open--)
  )
  return Rule.make(name, {
    ...keeps,
    open: () => Effect.as(waits ? Effect.andThen(Effect.sleep(1), opening) : opening, all())
  })
}

/** The rules of a program, in its runs or in the runs of its sub-agent. */
const rulesOf = (world: World, drawn: ReadonlyArray<Drawn>, place: "r" | "n" = "r"): ReadonlyArray<Rule.Rule> =>
  drawn.map((one, index) => ruleOf(world, one, index, place))

const toolsOf = (world: World, nested: ReadonlyArray<Rule.Rule>): ReadonlyArray<Tool.Any> => {
  const acting = (name: string, handler: () => Effect.Effect<unknown>, more: object = {}) =>
    Tool.make(name, {
      parameters: anything,
      afterCrash: "retry",
      handler: (_: unknown, call: Tool.CallContext) => Effect.suspend(() => (world.ran.push(call.id), handler())),
      ...more
    } as never) as unknown as Tool.Any
  return [
    acting("value", () => Effect.succeed("v"), { readOnly: true }),
    acting("echo", () => Effect.succeed("e")),
    acting("crash", () => Effect.die(new Error("broke"))),
    acting("ask", () => Effect.succeed(Tool.askUser("which?"))),
    acting("approved", () => Effect.succeed("allowed"), { approval: true }),
    acting("halt", () => Effect.succeed(Tool.halt("enough", {}))),
    acting("slow", () => Effect.as(Effect.sleep(20), "s"), { concurrency: "exclusive" }),
    acting("served", () =>
      Effect.gen(function*() {
        return yield* Served
      })),
    Tool.fromChat("sub", {
      parameters: {},
      chat: () =>
        Chat.stream("sub", {
          tools: [acting("echo", () => Effect.succeed("e")), acting("inner", () => Effect.succeed("i"))] as never,
          requestId: "nested",
          maxTurns: 3,
          rules: nested
        })
    }) as Tool.Any
  ]
}

type Turn = Program["turns"][number]

const nestedTurns: ReadonlyArray<Omit<Turn, "calls"> & { readonly calls: ReadonlyArray<string> }> = [
  { calls: ["inner", "echo"], broken: 0 },
  { calls: [], broken: 0 }
]

/** A sub-agent is alone in its turn: beside other calls it would ask in an order of its own. */
const callsOf = (calls: ReadonlyArray<string>): ReadonlyArray<string> => calls.includes("sub") ? ["sub"] : calls

/** A model that answers by the conversation, and by how often it was asked there. */
const modelOf = (world: World, { offered, turns }: Program): Layer.Layer<Adapter.Adapter> =>
  Adapter.layer({
    stream: (request) =>
      Stream.suspend(() => {
        const { messages, tools } = request
        const part = Message.text(messages[0] ?? Message.user(""))
        const index = messages.filter((message) =>
          message.role === "assistant" && Message.text(message).startsWith("turn")
        ).length
        const key = `${part} ${index}`
        const time = world.turns.get(key) ?? 0
        world.earlier = new Map(world.turns)
        world.turns.set(key, time + 1)
        world.requests.push(request)
        const turn = (part === "sub" ? nestedTurns : turns)[index] ?? { calls: [], broken: 0 }
        const said = `turn ${index} time ${time}`
        const isMute = tools.length === 0 && offered === "offered tools"
        const calls = isMute ?
          [] :
          callsOf(turn.calls).map((name, call) =>
            Message.toolCall(`${part}${index}_${time}_${call}`, name, { n: call })
          )
        const begun: ReadonlyArray<Event.AdapterEvent> = [
          { _tag: "MessageStarted", message: Message.assistant("") },
          { _tag: "TextCompleted", id: null, text: said }
        ]
        if (time < turn.broken) {
          return Stream.concat(
            Stream.fromIterable(begun),
            Stream.fail(new Adapter.AdapterError({ reason: "network_error" }))
          )
        }
        return Stream.fromIterable<Event.AdapterEvent>([
          ...begun,
          ...calls.flatMap((call): ReadonlyArray<Event.AdapterEvent> => [
            { _tag: "ToolCallStarted", id: call.id, name: call.name },
            { _tag: "ToolCallCompleted", ...call, rawArguments: JSON.stringify(call.arguments) }
          ]),
          {
            _tag: "MessageCompleted",
            message: Message.assistant(said, calls),
            finishReason: calls.length === 0 ? "stop" : "tool_calls",
            usage: Response.usage({ inputTokens: time + 1, outputTokens: index + 1 })
          }
        ])
      })
  })

export type Options = Chat.Options<ReadonlyArray<Tool.Any>>

/** The options of the runs of a program. */
const optionsOf = (
  program: Program,
  world: World,
  rules: ReadonlyArray<Rule.Rule> | undefined = rulesOf(world, program.rules)
): Options => ({
  tools: toolsOf(world, rulesOf(world, program.nested, "n")),
  policy: { ...Policy.standard, onMaxTurns: program.onMaxTurns } as Policy.Policy,
  maxTurns: program.maxTurns,
  grace: 10,
  ...(rules === undefined ? {} : { rules }),
  ...(program.special === "retryReply" ? { retryReply: Schedule.recurs(2) } : {}),
  ...(program.special === "haltWhen" ? { haltWhen: (step: Event.StepResult) => step.toolResults.length > 1 } : {}),
  ...(program.special === "structured"
    ? { structuredFinalize: true, responseFormat: { type: "json_object" } as const }
    : {})
})

/** Runs an effect with a clock that moves on until the effect has ended. */
export const inTime = <A, E>(effect: Effect.Effect<A, E>): Effect.Effect<A, E> =>
  Effect.gen(function*() {
    const fiber = yield* Effect.forkChild(effect)
    while (fiber.pollUnsafe() === undefined) yield* TestClock.adjust(Duration.millis(5))
    return yield* Fiber.join(fiber)
  }).pipe(Effect.provide(TestClock.layer()), Effect.provideService(References.MinimumLogLevel, "None"))

/** What the runs of a program have come to: each run by itself, and the session. */
export interface Driven {
  readonly kept: Session.Kept
  readonly results: ReadonlyArray<readonly [requestId: string, result: unknown]>
  readonly events: ReadonlyArray<Event.Event>
  /** The error of the run that failed, if one has. */
  readonly failure: unknown
}

const said = ["go", "more"]

/**
 * Drives a session to the end of its program, from wherever it is: each message of the user is replied to, approvals are
 * given, and a run that fails without a result ends the program.
 */
export const drive = (program: Program, world: World, options = optionsOf(program, world)) =>
  Effect.gen(function*() {
    const results: Array<readonly [string, unknown]> = []
    const events: Array<Event.Event> = []
    const observed = { ...options, onEvent: (event: Event.Event) => void events.push(event) }
    let kept: Session.Kept = (yield* Session.load("s")) ?? (yield* Session.open("s"))
    while (true) {
      const starts = (yield* recordsOf("s")).filter((record) => record._tag === "RunStarted" && record.resumes !== true)
      const own = { ...observed, requestId: `run${starts.length + 1}` }
      const next = Session.next(kept)
      const words = said.find((words) =>
        !kept.session.thread.messages.some((message) => Message.text(message) === words)
      )
      const approval = kept.session.suspensions.find(({ kind }) => kind === "approval")
      const ran = next === "resume"
        ? Session.resume(kept, { ...observed, takeOver: true })
        : next === "continue"
        ? Session.keep(kept, (session) => Session.continue(session, null, own))
        : approval !== undefined
        ? Session.keep(kept, (session) => Session.approve(session, approval.id))
        : words !== undefined && starts.length < 4
        ? Session.keep(kept, (session) => Session.reply(Session.recover(session), words, { ...own, pending: "deny" }))
        : undefined
      if (ran === undefined) return { kept, results, events, failure: undefined } satisfies Driven
      const exit = yield* Effect.result(ran as Effect.Effect<Session.Kept & { readonly value: unknown }, unknown>)
      if (exit._tag === "Failure") {
        return { kept: (yield* Session.load("s"))!, results, events, failure: exit.failure } satisfies Driven
      }
      kept = exit.success
      const { value } = exit.success
      if (typeof value === "object" && value !== null && "result" in value) {
        results.push([kept.state.ended?.requestId ?? "", value.result])
      }
    }
  }).pipe(Effect.provide(modelOf(world, program))) as Effect.Effect<Driven, unknown, Session.Store>
