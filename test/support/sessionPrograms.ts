/**
 * Programs for the model of sessions: tools of every kind, a model that replies by what it has read, processes that end at
 * any append, and what they leave, as the model has it.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as References from "effect/References"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import {
  Adapter,
  Budget,
  Chat,
  Encoder,
  type Event,
  type Journal,
  Limits as RunLimits,
  Message,
  Policy,
  Response,
  Session,
  Tool
} from "heddle"
import { Worker } from "heddle/durable"
import { check } from "heddle/testing"
import * as Model from "./sessionModel.ts"
import * as Rules from "./sessionRules.ts"

/** A turn of a model: the tools that it calls, and whether its next turn follows at once. */
export interface Turn {
  readonly calls: ReadonlyArray<string>
  readonly isFollowed: boolean
}

/** What runs: the turns of the session, and those of the agents, by their names. */
export interface Program {
  readonly turns: ReadonlyArray<Turn>
  readonly agents: Readonly<Record<string, ReadonlyArray<Turn>>>
  readonly isFinalizing: boolean
  /** The budgets: of the runs of the session, of each run of `agentA`, and of all runs of a process. */
  readonly budgets?: Budgets
  /** Whether the store is a database: its claims end by a real clock, and a loaded machine delays their owners. */
  readonly isSqlite?: boolean
}

export interface Bounds {
  readonly limits: Budget.Limits
  readonly onExhausted: "finalize" | "halt"
  readonly scope: "run" | "session"
}

export interface Budgets {
  readonly own: Bounds | undefined
  readonly agent: Bounds | undefined
  readonly around: Bounds | undefined
}

/** Commands of another process. One that loses a stop is killed before the store has it. */
export type Command =
  | "follow"
  | "lostStop"
  | "refuse"
  | "settle"
  | "steer"
  | "stop"
  | "stopCall"
  | "submit"
  | "withdraw"

/**
 * The end of a process at its append of a number: before the store has it, after, when it has the reply alone that is
 * written together with what its calls do, or while the append hangs and all else goes on. Or a command of another process just before it.
 */
export interface Fault {
  readonly at: number
  readonly how: "after" | "before" | "hang" | "interrupt" | "within" | Command
}

export type Operation = Rules.Operation | readonly ["worker"]

const root = "s"

const kindOf = (tool: string): Model.Kind => tool.startsWith("agent") ? "agent" : tool as Model.Kind

const contentOf = (content: Message.Content): string => {
  const text = Message.text(Message.user(content))
  return /"code":"(denied|cancelled|unknown_effect|unknown_tool)"/.exec(text)?.[1]?.replace(
    "unknown_effect",
    "unknown"
  ) ?? text
}

const lineOf = (message: Message.Message): string => {
  const { content, role, toolCallId, toolCalls = [] } = message
  if (message.askUser === true) return `asked ${toolCallId}`
  if (role === "tool") return `tool ${toolCallId}: ${contentOf(content)}`
  return toolCalls.length > 0
    ? `${role} calls ${toolCalls.map(({ id }) => id).join(" ")}`
    : `${role} ${Message.text(message)}`
}

const linesOf = (messages: ReadonlyArray<Message.Message>) => messages.map(lineOf)

const openOf = ({ id, kind, path }: Pick<Event.Suspension, "id" | "kind" | "path">): Model.Open => ({
  id,
  waits: kind,
  isNested: path !== undefined
})

const verdictOf = (answer: Session.Answer): Model.Verdict => {
  if (answer._tag === "Value") return ["value", contentOf(answer.value as string)]
  return answer._tag === "Approved" ? ["again"] : ["no"]
}

const submittedOf = ({ id, message, mode, otherwise }: Journal.MessageSubmitted): Model.Submitted => [
  id,
  Message.text(message),
  mode ?? "next",
  otherwise ?? "next"
]

const closingOf = (notes: unknown): string | undefined => (notes as { readonly last?: string } | undefined)?.last

/** The fate of a message, or what became of another command, in a word. */
const fateOf = (receipt: Journal.Receipt | undefined): string | undefined => {
  if (receipt?.became === "delivered") return `delivered ${receipt.requestId} ${receipt.stepIndex}`
  if (receipt?.became === "refused") return `refused ${receipt.reason}`
  return receipt?.became === "withdrawn" && receipt.requestId === undefined ? "taken back" : receipt?.became
}

/** A record as the model has it. */
const happeningOf = (
  record: Journal.Record,
  by: number,
  forbidden: ReadonlySet<string>
): Model.Happening | undefined => {
  switch (record._tag) {
    case "Opened":
      return { by, what: "opened", thread: linesOf(record.session.thread.messages), status: record.session.status }
    case "MessageSubmitted":
      return { by, what: "submitted", message: submittedOf(record) }
    case "MessageWithdrawn":
      return { by, what: "withdrawn", message: record.id }
    case "StopRequested":
      return { by, what: "stop", stop: record.id, run: record.requestId, path: record.call }
    case "StepPrepared":
      return {
        by,
        what: "prepared",
        step: record.stepIndex,
        delivered: record.delivered ?? [],
        says: linesOf(record.messages ?? []),
        closing: closingOf(record.notes)
      }
    case "RunStarted":
      return {
        by,
        what: "run",
        run: record.requestId,
        isResumed: record.resumes === true,
        isStep: record.operation === "step",
        isNested: record.parent !== undefined,
        says: linesOf(record.messages),
        takes: record.takes?.id,
        answers: record.answered && [record.answered.id, verdictOf(record.answered.answer)]
      }
    case "ReplyReceived": {
      const isForbidden = forbidden.has(`${record.requestId}:${record.stepIndex}`)
      const calls = record.response.toolCalls.map(({ id, name }) => [id, isForbidden ? "none" : kindOf(name)] as const)
      return { by, what: "reply", says: record.response.outputText ?? "", calls }
    }
    case "CallStarted": {
      const early = record.toolCall && kindOf(record.toolCall.name)
      return { by, what: "start", id: record.toolCallId, attempt: record.attempt, early }
    }
    case "AttemptFailed":
      return { by, what: "again", id: record.toolCallId ?? "" }
    case "CallEnded":
      return { by, what: "end", id: record.message.toolCallId ?? "", content: contentOf(record.message.content) }
    case "CallWaits":
      return { by, what: "wait", id: record.toolCallId, open: record.suspensions.map(openOf) }
    case "CallSettled":
      return { by, what: "settle", id: record.id, verdict: verdictOf(record.answer) }
    case "StepCompleted": {
      return {
        by,
        what: "step",
        says: record.response?.outputText ?? "",
        broken: record.messages && linesOf(record.messages),
        introduced: linesOf(record.introduced ?? []),
        closing: closingOf(record.notes)
      }
    }
    case "RunEnded":
      return {
        by,
        what: "ended",
        reason: record.haltedReason,
        status: record.status ?? "idle",
        says: linesOf(record.messages ?? []),
        rule: record.rule?.name
      }
    default:
      return undefined
  }
}

/** A call that began, in a process. */
interface Deed {
  /** The step that asked for it. */
  readonly step: string
  readonly id: string
  readonly attempt: number
  readonly by: number
}

/** A journal as the model has it. */
interface Followed {
  readonly states: Array<Model.State>
  readonly happenings: Array<Model.Happening>
}

/** A process: what it appends is counted, and where its fault is, it does nothing any more. */
interface Process {
  readonly number: number
  isAlive: boolean
  isInterrupted: boolean
  appends: number
  /** The run of the session that it drives. */
  run: string
  /** The requests that it has made. */
  sent: number
}

const processOf = (number: number): Process => ({
  number,
  isAlive: true,
  isInterrupted: false,
  appends: 0,
  run: "",
  sent: 0
})

/** What processes share. */
export class Shared {
  readonly program: Program
  readonly store: Journal.Service
  deeds: ReadonlyArray<Deed> = []
  /** The keys of the calls that have had their effect. */
  effects: ReadonlySet<string> = new Set()
  /** The processes that have appended the records of each journal. */
  readonly writers = new Map<string, ReadonlyArray<number>>()
  readonly followed = new Map<string, Followed>()
  /** The steps in which the model had no tools. */
  forbidden: ReadonlySet<string> = new Set()
  /** The stops that were asked for. */
  stops: ReadonlyArray<Session.StopReceipt> = []
  processes = 0
  encoded = 0
  problems: Array<string> = []
  commands = 0
  /** The requests that were made, by the runs of the session that they were made in or below. */
  readonly sent = new Map<string, number>()
  /** The requests of each run of an agent. */
  readonly sentInside = new Map<string, number>()
  /** The processes that have driven each run of the session. */
  readonly drivers = new Map<string, ReadonlySet<number>>()
  /** What the withdrawals of messages have returned. */
  withdrawals: ReadonlyArray<readonly [id: string, isDone: boolean]> = []

  constructor(program: Program, store: Journal.Service) {
    this.program = program
    this.store = store
  }
}

const agentOf = (thread: ReadonlyArray<Message.Message>): string =>
  /^(agent\w+) of/.exec(Message.text(thread[0] ?? Message.user("")))?.[1] ?? ""

const count = (counts: Map<string, number>, key: string): void => void counts.set(key, (counts.get(key) ?? 0) + 1)

/** The events of a reply. A call that may start early does before the rest of the reply has come. */
const replyOf = (
  shared: Shared,
  process: Process,
  { messages, run, toolChoice, tools }: Adapter.Request
): Stream.Stream<Event.AdapterEvent> => {
  const agent = agentOf(messages)
  process.sent++
  count(shared.sent, process.run)
  if (agent === "agentA") count(shared.sentInside, run?.requestId ?? "")
  const turns = shared.program.agents[agent] ?? shared.program.turns
  const asked = messages.filter(({ role, toolCalls = [] }) => role === "assistant" && toolCalls.length > 0).length
  const isNext = messages.at(-1)?.role !== "tool" || turns[asked - 1]?.isFollowed === true
  const names = isNext ? turns[asked]?.calls ?? [] : []
  const prefix = agent === "" ? "c" : agent.slice(-1).toLowerCase()
  const calls = names.map((name, index) => Message.toolCall(`${prefix}${asked}_${index}`, name, { n: index }))
  const isForbidden = tools.length === 0 || toolChoice === "none"
  if (isForbidden) shared.forbidden = new Set([...shared.forbidden, `${run?.requestId}:${run?.stepIndex}`])
  const said = `said ${asked}`
  const events: ReadonlyArray<Event.AdapterEvent> = [
    { _tag: "MessageStarted", message: Message.assistant("") },
    { _tag: "TextDelta", id: null, delta: said },
    { _tag: "TextCompleted", id: null, text: said },
    ...calls.map(({ id, name, arguments: args }): Event.AdapterEvent => ({
      _tag: "ToolCallCompleted",
      id,
      name,
      arguments: args,
      rawArguments: JSON.stringify(args)
    }))
  ]
  const last: Event.AdapterEvent = {
    _tag: "MessageCompleted",
    message: Message.assistant(said, calls),
    finishReason: calls.length === 0 ? "stop" : "tool_calls",
    usage: Response.usage({ inputTokens: 1, outputTokens: 1 })
  }
  const rest = Stream.fromEffect(Effect.as(Effect.sleep(1), last))
  return Stream.concat(Stream.fromIterable(events), rest)
}

const budgetOf = (bounds: Bounds | undefined): { readonly budget?: Budget.Budget } =>
  bounds === undefined
    ? {}
    : { budget: Budget.make(bounds.limits, { onExhausted: bounds.onExhausted, scope: bounds.scope }) }

/** The tools of the program in a process. Those of a call do nothing in a process that is gone. */
const toolsOf = (shared: Shared, process: Process, names: ReadonlyArray<string>): ReadonlyArray<Tool.Any> => {
  const living = <A>(act: () => A) => Effect.suspend(() => process.isAlive ? Effect.sync(act) : Effect.never)
  const begin = (call: Tool.CallContext) =>
    living(() => {
      const { attempt, id, idempotencyKey } = call
      const step = idempotencyKey.split(":").slice(0, 2).join(":")
      shared.deeds = [...shared.deeds, { step, id, attempt, by: process.number }]
    })
  const act = (call: Tool.CallContext) =>
    begin(call).pipe(
      Effect.andThen(Effect.sleep(2)),
      Effect.andThen(living(() => {
        shared.effects = new Set([...shared.effects, call.idempotencyKey])
        return `did ${call.id}`
      }))
    )
  const parameters = { type: "object" } as const
  const toolOf = (name: string): Tool.Any => {
    const kind = kindOf(name)
    const plain = { parameters, handler: (_: unknown, call: Tool.CallContext) => act(call) }
    switch (kind) {
      case "agent":
        return Tool.fromChat(name, {
          parameters,
          chat: (_, call) => {
            const own = shared.program.agents[name] ?? []
            const tools = toolsOf(shared, process, [...new Set(own.flatMap(({ calls }) => calls))])
            const thread = Stream.unwrap(
              Effect.as(
                begin(call),
                Chat.stream(`${name} of ${call.id}`, {
                  tools,
                  grace: 5,
                  ...budgetOf(name === "agentA" ? shared.program.budgets?.agent : undefined)
                })
              )
            )
            return thread
          }
        })
      case "approval":
        return Tool.make(name, { ...plain, approval: true })
      case "ask":
      case "fail":
      case "retry":
        return Tool.make(name, { ...plain, afterCrash: kind })
      case "flaky":
        return Tool.make(name, {
          parameters,
          retry: Schedule.recurs(1),
          handler: (_: unknown, call: Tool.CallContext) =>
            Effect.flatMap(act(call), (done) => call.attempt === 1 ? Effect.fail("once more") : Effect.succeed(done))
        })
      case "idempotent":
        return Tool.make(name, { ...plain, idempotent: true })
      case "lookUp":
        return Tool.make(name, {
          ...plain,
          lookUp: (_: unknown, call: Tool.CallContext) =>
            living(() => shared.effects.has(call.idempotencyKey) ? Option.some(`did ${call.id}`) : Option.none())
        })
      case "manual":
        return Tool.make(name, { parameters, manual: true })
      case "question":
        return Tool.make(name, {
          parameters,
          handler: (_: unknown, call: Tool.CallContext) => Effect.as(act(call), Tool.askUser(`which ${call.id}?`))
        })
      case "readOnly":
        return Tool.make(name, { ...plain, readOnly: true })
      default:
        return Tool.make(name, plain)
    }
  }
  return names.map(toolOf)
}

// What has happened, as the model has it.

const journalsOf = (store: Journal.Service) =>
  Effect.map(Stream.runCollect(store.list()), (listed) => listed.map(({ id }) => id))

/** More turns than a program has. */
const mostTurns = 40

/** Follows the journals: what was appended has to be what the model allows. */
const follow = (shared: Shared) =>
  Effect.gen(function*() {
    for (const id of (yield* journalsOf(shared.store)).toSorted()) {
      const { happenings, states } = shared.followed.get(id) ?? { states: [Model.initial], happenings: [] }
      shared.followed.set(id, { happenings, states })
      for (const { record, version } of yield* Stream.runCollect(shared.store.read(id, states.length - 1))) {
        const state = states.at(-1) ?? Model.initial
        const happening = happeningOf(record, shared.writers.get(id)?.[version] ?? 0, shared.forbidden)
        const problem = happening && Rules.problem(state, happening, shared.program.isFinalizing ? 2 : mostTurns)
        if (problem !== undefined) shared.problems.push(`${id} at version ${version}, ${record._tag}: ${problem}`)
        states.push(happening === undefined ? state : Model.after(state, happening))
        happenings.push(happening ?? { by: 0, what: "again", id: "" })
      }
    }
  })

const stateOf = (shared: Shared, id = root, version?: number): Model.State => {
  const { states } = shared.followed.get(id) ?? { states: [Model.initial] }
  return states[version ?? states.length - 1] ?? Model.initial
}

const same = (what: string, actual: unknown, expected: unknown): ReadonlyArray<string> => {
  const [left, right] = [JSON.stringify(actual), JSON.stringify(expected)]
  return left === right ? [] : [`${what} is ${left}, and ${right} in the model`]
}

/** Compares the library and the model in all that can be seen of a session. */
const compared = (state: Model.State, kept: Session.Kept): ReadonlyArray<string> => {
  const { interrupted, session, submitted = [] } = kept
  const settling = (state.run?.settlements ?? []).map(([id]) => id)
  const isShown = state.run === undefined || state.turn?.isReplied === true
  const waiting = isShown ? Rules.waitingIn(state).filter(({ id }) => !settling.includes(id)) : []
  const commands = Object.keys(state.receipts).toSorted()
  const receipts = commands.map((id) => [id, fateOf(Session.receipt(kept, id))])
  return [
    ...same("next", Session.next(kept), Rules.next(state)),
    ...same("suspensions", session.suspensions.map(openOf), waiting),
    ...same("submitted", submitted.map(submittedOf), state.inbox),
    ...same("receipts", receipts, commands.map((id) => [id, state.receipts[id]])),
    ...same("run", interrupted?.requestId, state.run?.id),
    ...interrupted === undefined
      ? same("thread", linesOf(session.thread.messages), Model.threadOf(state))
      : same(
        "calls",
        interrupted.calls.map(({ attempt, state, toolCall }) => [toolCall.id, state.toLowerCase(), attempt]),
        Object.entries(state.turn?.calls ?? {}).map(([id, { attempt, state }]) => [id, state, attempt])
      )
  ]
}

/** Each handler started as often as its journal says, and at most so often in a process that was killed. */
const countsOf = (shared: Shared, process: number, isWhole: boolean): ReadonlyArray<string> => {
  const starts = new Map<string, number>()
  const count = (key: string, by: number) => starts.set(key, (starts.get(key) ?? 0) + by)
  for (const { happenings } of shared.followed.values()) {
    for (const happening of happenings) {
      if (happening.what === "start" && happening.by === process) {
        count(`${happening.id} attempt ${happening.attempt}`, 1)
      }
    }
  }
  for (const { attempt, by, id } of shared.deeds) if (by === process) count(`${id} attempt ${attempt}`, -1)
  return Array.from(starts).flatMap(([key, left]) =>
    left < 0 ? [`${key} ran, and no record says so`] : left > 0 && isWhole ? [`${key} is recorded, and never ran`] : []
  )
}

/** A call that waits for a run inside it waits for what that run does, and one that has its result has that of the run. */
const nestedOf = (shared: Shared): ReadonlyArray<string> =>
  Array.from(shared.followed, ([id, { happenings, states }]): ReadonlyArray<string> => {
    const [, parent = "", call = ""] = /^(.*)\/([^/]*)@[^/@]*$/.exec(id) ?? []
    const state = states.at(-1) ?? Model.initial
    const around = shared.followed.get(parent)
    const outer = around?.states.at(-1)?.turn?.calls[call]
    if (outer?.kind === "agent" && outer.state === "waiting") {
      const open = Rules.waitingIn(state).map((inner) => `${call}/${inner.id}`)
      const unknown = outer.open.filter((risen) => !open.includes(risen.id))
      return [
        ...unknown.map((risen) => `${parent} waits for ${risen.id}, and ${id} does not`),
        ...state.run === undefined ? [] : [`${parent} waits for ${id}, which has not ended`]
      ]
    }
    const end = around?.happenings.find((happening) => happening.what === "end" && happening.id === call)
    const content = end?.what === "end" ? end.content : ""
    if (!content.startsWith("said")) return []
    const last = happenings.findLast(({ what }) => what === "step")
    const said = last?.what === "step" ? last.says : ""
    return happenings.at(-1)?.what === "ended" && content.startsWith(said)
      ? []
      : [`${parent} has the result ${content} of ${id}, which has come to ${JSON.stringify(happenings.at(-1))}`]
  }).flat()

// Operations.

const optionsOf = (shared: Shared, process: Process) => {
  const { budgets, isFinalizing, turns } = shared.program
  const names = [...new Set(turns.flatMap(({ calls }) => calls))]
  return {
    tools: toolsOf(shared, process, names),
    grace: 5,
    ...budgetOf(budgets?.own),
    ...(budgets === undefined ? {} : { maxTurns: mostTurns }),
    ...(isFinalizing ? { maxTurns: 2, policy: { ...Policy.standard, onMaxTurns: "finalize" as const } } : {})
  }
}

type End = Exclude<Fault["how"], Command>

const isEnd = (how: Fault["how"]): how is End =>
  how === "after" || how === "before" || how === "hang" || how === "interrupt" || how === "within"

/** The store as a process has it. */
const storeOf = (shared: Shared, process: Process, faults: ReadonlyArray<Fault>): Journal.Service => {
  const { store } = shared
  const alive = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
    Effect.suspend(() => process.isAlive ? effect : Effect.never)
  const killed = Effect.suspend(() => {
    process.isAlive = false
    return Effect.never
  })
  const append: Journal.Service["append"] = (id, expected, records, options) =>
    Effect.suspend(() => {
      const wrote = (records: Parameters<Journal.Service["append"]>[2]) =>
        Effect.tap(store.append(id, expected, records, options), (version) =>
          Effect.sync(() => {
            const known = [...shared.writers.get(id) ?? []]
            for (let at = expected + 1; at <= version; at++) known[at] = process.number
            shared.writers.set(id, known)
          }))
      for (const record of records) {
        if (id !== root || record._tag !== "RunStarted") continue
        process.run = record.requestId
        shared.drivers.set(process.run, new Set([...shared.drivers.get(process.run) ?? [], process.number]))
      }
      const due = faults.filter(({ at }) => at === process.appends + 1)
      process.appends++
      const commands = due.flatMap(({ how }) => isEnd(how) ? [] : [how])
      const told = Effect.forEach(commands, (how) => Effect.ignore(commanded(shared, how)), { discard: true })
      const written = commands.length === 0 ? wrote(records) : Effect.andThen(told, wrote(records))
      switch (due.find(({ how }) => isEnd(how))?.how) {
        case "before":
          return Effect.andThen(told, killed)
        case "after":
          return Effect.andThen(written, killed)
        case "hang":
          return Effect.andThen(Effect.andThen(told, Effect.sleep(40)), killed)
        case "within": {
          const [reply] = records
          if (records.length === 1 || reply._tag !== "ReplyReceived") return Effect.andThen(told, killed)
          return Effect.andThen(Effect.andThen(told, wrote([reply])), killed)
        }
        case "interrupt":
          process.isInterrupted = true
          return written
        default:
          return written
      }
    })
  return {
    ...store,
    append: (...args) => alive(append(...args)),
    version: (id) => alive(store.version(id)),
    read: (id, after) => Stream.unwrap(alive(Effect.sync(() => store.read(id, after)))),
    claim: (...args) => alive(store.claim(...args)),
    renew: (...args) => alive(store.renew(...args)),
    claimOf: (id) => alive(store.claimOf(id)),
    release: (...args) => alive(store.release(...args)),
    claimUnfinished: (...args) => alive(store.claimUnfinished(...args))
  }
}

/** The path of an open call of the run, or of a run inside it. */
const pathIn = (shared: Shared): Effect.Effect<string, unknown> =>
  Effect.gen(function*() {
    const stored = (id: string) =>
      Effect.provideService(Session.load(id), Session.Store, shared.store) as Effect.Effect<Session.Kept | undefined>
    const calls = (yield* stored(root))?.interrupted?.calls.filter(({ state }) => state !== "Answered") ?? []
    const call = calls[shared.commands % Math.max(1, calls.length)]?.toolCall.id ?? "nothing"
    const inside = (yield* journalsOf(shared.store)).filter((id) =>
      id.startsWith(`${root}/${call}@`) && !id.slice(root.length + 1).includes("/")
    )
    const inner = inside.length === 0 || shared.commands % 2 === 0 ? undefined : yield* stored(inside.at(-1) ?? "")
    const open = inner?.interrupted?.calls.find(({ state }) => state !== "Answered")
    return open === undefined ? call : `${call}/${open.toolCall.id}`
  })

/** Another process gives a command. */
const commanded = (shared: Shared, how: Command) =>
  Effect.gen(function*() {
    if (how === "lostStop") {
      const store: Journal.Service = { ...shared.store, append: () => Effect.never }
      const asking = Effect.provideService(Session.stop(root), Session.Store, store)
      return yield* Effect.asVoid(Effect.forkDetach(asking, { startImmediately: true }))
    }
    if (how === "stop") {
      shared.stops = [...shared.stops, yield* Session.stop(root)]
      return
    }
    if (how === "stopCall") {
      shared.commands++
      shared.stops = [...shared.stops, yield* Session.stop(root, { call: yield* pathIn(shared) })]
      return
    }
    if (how === "withdraw") {
      const id = `m${shared.commands}`
      shared.withdrawals = [...shared.withdrawals, [id, yield* Session.withdraw(root, id)]]
      return
    }
    if (how !== "settle") {
      const id = `m${++shared.commands}`
      const mode = how === "submit" ? "next" : how === "refuse" ? "steer" : how
      const otherwise = how === "refuse" ? how : "next"
      return yield* Effect.asVoid(Session.submit(root, `submitted ${id}`, { id, mode, otherwise }))
    }
    const kept = yield* Session.load(root)
    const [open] = kept?.session.suspensions ?? []
    if (kept !== undefined && open !== undefined) yield* settle(kept, open, "value")
  }).pipe(Effect.provideService(Session.Store, shared.store))

const settle = (kept: Session.Kept, { id, kind }: Event.Suspension, how: string) =>
  Session.keep(kept, (session) =>
    kind === "approval" || how !== "value" && kind === "unknown"
      ? how === "no" ? Session.deny(session, id) : Session.approve(session, id)
      : Session.answer(session, id, `answer to ${id}`))

const verdict = (session: Session.Session, id: string, verdict: Model.Verdict) => {
  if (verdict[0] === "value") return Session.answer(session, id, verdict[1])
  return verdict[0] === "again" ? Session.approve(session, id) : Session.deny(session, id)
}

const operated = (shared: Shared, process: Process, kept: Session.Kept, operation: Operation) => {
  const options = optionsOf(shared, process)
  switch (operation[0]) {
    case "abandon":
      return Session.abandon(kept)
    case "continue":
      return Session.keep(kept, (session) => Session.continue(session, null, options))
    case "reply":
      return Session.keep(kept, (session) => Session.reply(session, operation[1], options))
    case "resume":
      return Session.resume(kept, { ...options, takeOver: true })
    case "settle":
      return Session.keep(kept, (session) => verdict(session, operation[1], operation[2]))
    case "worker":
      return Effect.scoped(Effect.gen(function*() {
        // No claim ends by itself in a database. The one that is left there is of a process that is gone.
        const term = shared.program.isSqlite === true ? "1 hour" : 60
        if (term !== 60) yield* Session.revoke(root)
        yield* Layer.build(Worker.layer({ run: () => options, term, poll: 10 }))
        const isDone = (next: string | undefined) => next === "wait" || next === "nothing"
        while (!isDone((yield* Session.inspect(root))?.next)) yield* Effect.sleep(5)
      }))
  }
}

const quiet = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.provideService(effect, References.MinimumLogLevel, "None")

/** Runs an effect until it has ended or its process is gone. `undefined` where it did not end. */
const driven = <A, E>(process: Process, effect: Effect.Effect<A, E>) =>
  Effect.gen(function*() {
    const fiber = yield* Effect.forkDetach(effect)
    let isLeaving = false
    for (let step = 0; step < 30_000; step++) {
      const exit = fiber.pollUnsafe()
      if (exit !== undefined) return exit
      if (!process.isAlive) return undefined
      if (process.isInterrupted && !isLeaving) {
        isLeaving = true
        yield* Effect.forkDetach(Fiber.interrupt(fiber))
      }
      yield* TestClock.adjust(1)
    }
    return yield* Effect.die(new Error("the operation never ends"))
  })

const encoderOf = (shared: Shared): Encoder.Service => ({
  encode: (value) => Effect.map(Encoder.json.encode(value), (text) => `${text} #${++shared.encoded}`)
})

/** The session as the store has it. */
export const loaded = (shared: Shared) =>
  Effect.orDie(Effect.provideService(Session.open(root), Session.Store, shared.store))

const openedIn = (program: Program) =>
  Effect.gen(function*() {
    const shared = new Shared(program, yield* Session.Store)
    yield* Session.open(root)
    yield* follow(shared)
    return shared
  })

export const opened = (program: Program, store?: Journal.Service) =>
  (store === undefined
    ? Effect.provide(openedIn(program), Session.Store.layerMemory, { local: true })
    : Effect.provideService(openedIn(program), Session.Store, store)).pipe(Effect.orDie)

/** The records that are behind a version stop an operation that has not read them, but for messages of others. */
const isConflict = (shared: Shared, version: number, [operation]: Operation): boolean => {
  const { happenings } = shared.followed.get(root) ?? { happenings: [] }
  return happenings.slice(version).some(({ what }) =>
    what !== "submitted" && what !== "withdrawn" && !(what === "stop" && operation !== "resume")
  )
}

/** What an operation has come to: what its run has spent, and what all runs of its process have. */
interface Done {
  readonly spent: Budget.Spent | undefined
  readonly all: Budget.Spent | undefined
}

const withinBudget = <E, R>(bounds: Bounds | undefined, process: Process, effect: Effect.Effect<unknown, E, R>) => {
  const spentOf = (value: unknown) => {
    const { result } = (value as { readonly value?: { readonly result?: Event.ChatResult } } | undefined)?.value ?? {}
    return result?.spent
  }
  const all = Effect.flatMap(
    effect,
    (value) =>
      Effect.map(Budget.spent, (all): Done => ({ spent: spentOf(value), all: process.isAlive ? all : undefined }))
  )
  return bounds === undefined
    ? all
    : Effect.provide(all, RunLimits.layer(budgetOf(bounds)), { local: true })
}

/** The requests of the session, also those of runs that were given up. */
const sentInSession = (shared: Shared): number =>
  Array.from(shared.sent.values()).reduce((left, right) => left + right, 0)

/** What runs have spent: never more requests than their budgets have, each one counted, and nothing left reserved. */
const spendingOf = (shared: Shared, process: Process, done: Done | undefined): ReadonlyArray<string> => {
  const { agent, around, own } = shared.program.budgets ?? {}
  const problems: Array<string> = []
  const bounded = (what: string, sent: number, bounds: Bounds | undefined) => {
    const { calls = Infinity } = bounds?.limits ?? {}
    if (sent > calls) problems.push(`${what} made ${sent} requests, and may make ${calls}`)
  }
  for (const [id, sent] of shared.sent) bounded(`run ${id}`, sent, own)
  for (const [id, sent] of shared.sentInside) bounded(`run ${id} of an agent`, sent, agent)
  if (own?.scope === "session") bounded("the session", sentInSession(shared), own)
  bounded("the process", process.sent, around)
  const whole = (what: string, { calls, left }: Budget.Spent, sent: number, isExact: boolean, bounds?: Bounds) => {
    if (calls < sent || isExact && calls > sent) problems.push(`${what} has spent ${calls} calls, and made ${sent}`)
    const limit = bounds?.limits.calls
    if (limit !== undefined && left["calls"] !== undefined && left["calls"] > Math.max(0, limit - calls)) {
      problems.push(`${what} has ${left["calls"]} calls left of ${limit}, and spent ${calls}`)
    }
    if (isExact && limit !== undefined && around === bounds && left["calls"] !== limit - calls) {
      problems.push(`${what} keeps a reservation: ${left["calls"]} of ${limit} are left, and ${calls} are spent`)
    }
  }
  const { all, spent } = done ?? {}
  if (spent !== undefined && own !== undefined) {
    const isOfRun = own.scope === "run"
    const sent = isOfRun ? shared.sent.get(process.run) ?? 0 : sentInSession(shared)
    whole(`run ${process.run}`, spent, sent, isOfRun && shared.drivers.get(process.run)?.size === 1, own)
  }
  if (all !== undefined) whole(`process ${process.number}`, all, process.sent, true, around)
  return problems
}

/** Runs an operation in a process of its own, and compares what comes of it. Succeeds with how many appends it made. */
export const run = (
  shared: Shared,
  operation: Operation,
  fault?: Fault | ReadonlyArray<Fault>,
  given?: Session.Kept
) =>
  Effect.gen(function*() {
    const faults = fault === undefined ? [] : [fault].flat()
    const process = processOf(++shared.processes)
    const kept = given ?? (yield* loaded(shared))
    const { version } = kept
    const stops = shared.stops.length
    const before = stateOf(shared, root, version)
    const refused = operation[0] === "worker" ? undefined : Rules.refusal(before, operation)
    const isOvertaken = operation[0] !== "worker" && isConflict(shared, version, operation)
    const adapter = Adapter.layer({
      stream: (request) => Stream.suspend(() => process.isAlive ? replyOf(shared, process, request) : Stream.never)
    })
    const around = shared.program.budgets?.around
    const living = withinBudget(around, process, operated(shared, process, kept, operation)).pipe(
      Effect.provideService(Session.Store, storeOf(shared, process, faults)),
      Effect.provide(adapter, { local: true }),
      Effect.provideService(Encoder.Encoder, encoderOf(shared))
    )
    const exit = yield* driven(process, living as Effect.Effect<Done, unknown>)
    const isWhole = exit !== undefined && !process.isInterrupted
    process.isAlive = false
    yield* follow(shared)
    const state = stateOf(shared)
    const say = (text: string) => shared.problems.push(`${JSON.stringify(operation)} ${JSON.stringify(fault)}: ${text}`)
    const appended = (shared.writers.get(root) ?? []).includes(process.number)
    if (refused !== undefined) {
      if (exit !== undefined && Exit.isSuccess(exit)) say(`was done, although ${refused}`)
      if (appended) say(`appended, although ${refused}`)
    } else if (isOvertaken && (appended || exit !== undefined && Exit.isSuccess(exit))) {
      say("went on behind another owner")
    } else if (isWhole && !isOvertaken) {
      if (Exit.isFailure(exit) && faults.length === 0) say(`failed: ${String(exit.cause)}`)
      // A run that is being stopped ends in time, also where its last append hangs.
      const isHung = faults.some(({ how }) => how === "hang") && shared.stops.length > 0
      const isLeft = Exit.isSuccess(exit) && operation[0] !== "settle" && state.run !== undefined
      if (isLeft && !isHung) say("left its run open")
    }
    // A stop may come between the record of a start and the handler.
    const isStopped = stops < shared.stops.length
    for (const text of countsOf(shared, process.number, isWhole && !isStopped && Exit.isSuccess(exit))) say(text)
    for (const text of compared(state, yield* loaded(shared))) say(text)
    for (const text of nestedOf(shared)) say(text)
    const done = exit !== undefined && Exit.isSuccess(exit) ? exit.value : undefined
    for (const text of spendingOf(shared, process, done)) say(text)
    for (const { id, step } of shared.deeds) {
      if (shared.forbidden.has(step)) say(`${id} ran, and the model had no tools`)
    }
    return process.appends
  }).pipe(quiet)

/** A process gives a command. */
export const command = (shared: Shared, how: Command) =>
  Effect.gen(function*() {
    yield* Effect.ignore(commanded(shared, how))
    yield* follow(shared)
    for (const text of compared(stateOf(shared), yield* loaded(shared))) shared.problems.push(`${how}: ${text}`)
  })

/** Does what is left to do until nothing is, and holds the whole session to the laws. */
export const finish = (shared: Shared) =>
  Effect.gen(function*() {
    for (let round = 0; round < 40; round++) {
      const kept = yield* loaded(shared)
      const [open] = kept.session.suspensions
      const next = Session.next(kept)
      if (next === "nothing" && open === undefined) break
      if (next === "wait" && open !== undefined) {
        yield* run(shared, [
          "settle",
          open.id,
          open.kind === "approval" ? ["again"] : ["value", `answer to ${open.id}`]
        ])
      } else if (next === "continue" || next === "resume") yield* run(shared, [next])
      else if (next === "reply") yield* run(shared, ["worker"])
      else shared.problems.push(`${next}, and ${JSON.stringify(open)} waits`)
      if (round === 39) shared.problems.push("there is always something left to do")
    }
    const { session, submitted = [] } = yield* loaded(shared)
    const messages = session.thread.messages
    for (const problem of check.thread(session.thread)) shared.problems.push(`history: ${JSON.stringify(problem)}`)
    const said = new Set(messages.flatMap((message) => message.role === "user" ? [Message.text(message)] : []))
    const { happenings } = shared.followed.get(root) ?? { happenings: [] }
    const wanted = happenings.flatMap((happening) => happening.what === "run" ? happening.says : [])
    const { receipts } = stateOf(shared)
    for (const happening of happenings) {
      if (happening.what !== "submitted") continue
      const [id, text] = happening.message
      const fate = receipts[id] ?? ""
      const times = messages.filter((message) => message.role === "user" && Message.text(message) === text).length
      const isIn = fate !== "taken back" && !fate.startsWith("refused")
      if (times !== (isIn ? 1 : 0)) shared.problems.push(`message ${id}, which is ${fate}, is there ${times} times`)
      const done = shared.withdrawals.filter(([other, isDone]) => other === id && isDone).length
      if (done !== (fate === "taken back" ? 1 : 0)) shared.problems.push(`${id} is ${fate}, withdrawn ${done} times`)
    }
    for (const text of wanted) {
      if (!said.has(text.replace(/^user /, ""))) shared.problems.push(`the message ${text} is lost`)
    }
    if (submitted.length > 0) shared.problems.push("a message was never taken")
    const reader = processOf(0)
    for (const { ended } of shared.stops) {
      yield* driven(reader, Effect.provideService(ended, Session.Store, shared.store))
    }
    return shared.problems
  })

/** Copies what processes share, as it is now: what is done to one of the two does not show in the other. */
const copyOf = (shared: Shared) =>
  Effect.gen(function*() {
    const copy = new Shared(shared.program, yield* Session.Store)
    for (const id of yield* journalsOf(shared.store)) {
      const entries = yield* Stream.runCollect(shared.store.read(id))
      const [first, ...rest] = entries.map(({ record }) => record)
      const next = Rules.next(stateOf(shared, id)) as never
      if (first !== undefined) yield* copy.store.append(id, 0, [first, ...rest], { summary: { next, status: "idle" } })
    }
    for (const [id, { happenings, states }] of shared.followed) {
      copy.followed.set(id, { happenings: happenings.slice(), states: states.slice() })
    }
    for (const [id, writers] of shared.writers) copy.writers.set(id, writers)
    const { commands, deeds, effects, encoded, forbidden, processes } = shared
    // The receipts of stops are of the other store.
    return Object.assign(copy, { commands, deeds, effects, encoded, forbidden, processes })
  }).pipe(Effect.provide(Session.Store.layerMemory, { local: true }), Effect.orDie)

// All states.

/** A state that was found: what is shared, what the second owner has read, and what may still happen. */
interface Found {
  readonly shared: Shared
  readonly stale: Session.Kept | undefined
  readonly messages: number
  readonly faults: number
  readonly stops: number
}

/** What differs between states from which the same follows, where all messages are for the next run. */
const unseen = new Set(["before", "by", "callStops", "closing", "due", "refusal", "stoppedCalls"])

const canonical = (state: Model.State) =>
  JSON.stringify(state, (key, member: unknown) => {
    if (unseen.has(key)) return undefined
    if (key === "run" && typeof member === "object" && member !== null) return { ...member, id: "" }
    if (key === "receipts") {
      return Object.entries(member as object).map(([id, became]) => [id.length > 9 ? "" : id, became])
    }
    return key === "stop" ? member !== undefined : typeof member === "string" ? member.replace(/ #\d+$/, "") : member
  })

/**
 * What of a state the rest depends on. An owner behind whom another one has gone on can do nothing, whatever it has read.
 */
const keyOf = ({ faults, messages, shared, stale, stops }: Found): string => {
  const { happenings, states } = shared.followed.get(root) ?? { happenings: [], states: [] }
  const isBehind = stale !== undefined &&
    happenings.slice(stale.version).some(({ what }) => what !== "submitted" && what !== "withdrawn" && what !== "stop")
  const read = stale &&
    (isBehind || [canonical(states[stale.version] ?? Model.initial), happenings.length - stale.version])
  return JSON.stringify([canonical(stateOf(shared)), read, shared.effects.size, messages, faults, stops])
}

const verdictsFor = ({ waits }: Model.Open): ReadonlyArray<Model.Verdict> => {
  if (waits === "approval") return [["again"], ["no"]]
  return waits === "unknown" ? [["value", "it had"], ["again"], ["no"]] : [["value", "so"]]
}

const operationsOf = (state: Model.State, messages: number): ReadonlyArray<Rules.Operation> => {
  const settling = Rules.waitingIn(state).flatMap((open) =>
    verdictsFor(open).map((verdict): Rules.Operation => ["settle", open.id, verdict])
  )
  return [
    ...messages > 0 ? [["reply", `hello ${messages}`] as const] : [],
    // At rest the model could be asked for ever.
    ...Rules.next(state) === "nothing" || Rules.next(state) === "reply" ? [] : [["continue"] as const],
    ["resume"],
    ["abandon"],
    ...settling
  ]
}

/** The bounds of a search: how many messages, interruptions and stops there are, and whether a second owner may have read the session before. */
export interface Limits {
  readonly messages: number
  readonly faults: number
  readonly stops: number
  readonly owners: number
}

interface Searched {
  readonly states: number
  readonly edges: number
  readonly problems: ReadonlyArray<string>
}

/** Searches all states of a program with two owners, two messages and two interruptions, breadth first. */
export const search = (program: Program, limits: Limits) =>
  Effect.gen(function*() {
    const first: Found = { shared: yield* opened(program), stale: undefined, ...limits }
    const hasEffects = program.turns.some(({ calls }) => calls.includes("lookUp"))
    const known = new Set([keyOf(first)])
    const queue = [first]
    let edges = 0
    let problems: ReadonlyArray<string> = []
    const found = (next: Found) => {
      edges++
      if (next.shared.problems.length > 0) problems = next.shared.problems
      const key = keyOf(next)
      if (known.has(key)) return
      known.add(key)
      queue.push(next)
    }
    for (
      let node = queue.shift();
      node !== undefined && problems.length === 0;
      node = queue.shift()
    ) {
      const { faults, messages, shared, stale, stops } = node
      const fresh = yield* loaded(shared)
      const operate = (kept: Session.Kept, isStale: boolean) =>
        Effect.forEach(operationsOf(stateOf(shared, root, kept.version), messages), (operation) =>
          Effect.gen(function*() {
            const left = operation[0] === "reply" ? messages - 1 : messages
            const rest = isStale ? undefined : stale
            const whole = yield* copyOf(shared)
            const appends = yield* run(whole, operation, { at: Infinity, how: "after" }, kept)
            found({ shared: whole, stale: rest, messages: appends > 0 ? left : messages, faults, stops })
            if (faults === 0) {
              return
            }
            for (let at = 1; at <= appends; at++) {
              // What is killed behind an append, and what before the next one, differ in the effects of handlers alone.
              for (const how of at === appends || hasEffects ? ["before", "after"] as const : ["before"] as const) {
                const cut = yield* copyOf(shared)
                yield* run(cut, operation, { at, how }, kept)
                found({ shared: cut, stale: rest, messages: left, faults: faults - 1, stops })
              }
            }
          }), { discard: true })
      yield* operate(fresh, false)
      if (stale !== undefined && stale.version !== fresh.version) {
        yield* operate(stale, true)
      }
      if (limits.owners > 1 && stale?.version !== fresh.version) {
        found({ ...node, stale: fresh })
      }
      if (messages > 0) {
        const told = yield* copyOf(shared)
        yield* command(told, "submit")
        found({ ...node, shared: told, messages: messages - 1 })
      }
      if (stops > 0 && fresh.interrupted !== undefined) {
        const stopped = yield* copyOf(shared)
        yield* command(stopped, "stop")
        found({ ...node, shared: stopped, stops: 0 })
      }
    }
    return { states: known.size, edges, problems } satisfies Searched
  }).pipe(Effect.provide(TestClock.layer()))
