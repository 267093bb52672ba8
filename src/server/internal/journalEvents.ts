/**
 * Public events of a journal: session runs as told by the records, for readers whose process does not drive the run,
 * and for runs whose events are no longer in memory. Replies are complete; no text comes in pieces.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import * as Event from "../../Event.ts"
import * as CallPaths from "../../internal/answer/callPath.ts"
import * as Teller from "../../internal/answer/teller.ts"
import * as Outcomes from "../../internal/fold/runOutcome.ts"
import * as SharedMessages from "../../internal/fold/sharedMessages.ts"
import * as Json from "../../internal/json.ts"
import * as Journal from "../../Journal.ts"
import type * as Message from "../../Message.ts"
import * as Response from "../../Response.ts"
import * as Session from "../../Session.ts"
import * as ThreadRuns from "./threadRuns.ts"

type PublicEvent = Event.PublicEvent

/** An event and its run. */
export interface Told {
  readonly runId: string
  readonly event: PublicEvent
  /** The sub-agent ending or waiting with this event: its own events come first. */
  readonly agent?: Agent
}

/** An event as data. `Event.toPublic`, the only allow list, makes its public form. */
type Payload = { readonly _tag: string; readonly [name: string]: unknown } | Event.Event

/** A call whose handler is a run with its own journal. */
interface Agent {
  readonly id: string
  readonly name: string
  /** Key of the call, named by its runs. A call in another turn may have the same id. */
  readonly key: string
  /** Number of its runs ending with something waiting inside. */
  readonly waits: number
  /** `true` if its last run waits. */
  readonly isWaiting: boolean
}

/** Outcomes by their word in journals. */
const outcomes: Readonly<Record<string, string>> = {
  ...Object.fromEntries(Object.entries(Outcomes.words).map(([tag, word]) => [word, tag])),
  abandoned: "Cancelled"
}

const outcomeOf = (ended: Journal.RunEnded, finishReason: unknown): Payload => {
  const { error, haltedReason, metadata, rule, status } = ended
  if (rule !== undefined) return { _tag: "RuleEnded", rule: rule.name, status: status ?? "completed" }
  if (haltedReason === undefined || status === "error") return { _tag: "Failed", error: metadata?.["error"] ?? error }
  if (status === "stopped") return { _tag: "Cancelled", reason: "stop" }
  const _tag = Object.hasOwn(outcomes, haltedReason) ? outcomes[haltedReason] ?? "Halted" : "Halted"
  return { _tag, ...(_tag === "Completed" ? { finishReason } : {}) }
}

/** Returns the event for a request to stop a run. `at` stands for a time missing in the record. */
export const stopOf = ({ by, call, time }: Journal.StopRequested, at: number): PublicEvent => ({
  _tag: "StopAccepted",
  ...(by === undefined ? {} : { by }),
  ...(call === undefined ? {} : { call }),
  at: time ?? at
})

const unused = { nestedUsage: null, usage: null }

/** A run, with its starting position in the journal. */
export interface Place {
  readonly runId: string
  /** Version after which a fold without earlier records tells the run like a fold of the whole journal. */
  readonly after: number
  /** Id of the message beginning the run. Absent for a run without new messages. */
  readonly messageId?: string
  /** Destination named when that message was submitted. Absent for a message to the next run. */
  readonly mode?: "steer" | "follow"
}

/** Request of a reply, as far as recorded. */
type Requested = Partial<Pick<Journal.ReplyReceived, "attempt" | "first" | "model" | "provider" | "requested">>

type Options = Omit<Event.PublicOptions, "runId" | "calls" | "at">

/** Maximum number of verdicts kept for late answers. */
const mostVerdicts = 1_000

/** Folds a journal's records, and tells what happened as public events. */
export class Telling {
  /** Runs begun by the records, in order. */
  readonly runs: Array<string> = []
  /** Runs of the journal's initial conversation, and recorded runs able to start, in order. */
  readonly places: Array<Place> = []
  /** The last run not continuing another. Its id names the assistant message, to which continuing runs add. */
  message: string | undefined
  /** Client message taken by the last run not continuing another. */
  asked: string | undefined
  /** Runs answering the message, including those unable to start: a page may name its message by any of their ids. */
  attempts = new Set<string>()
  /** Runs adding to the assistant message, in order. */
  chain: Array<string> = []
  /** Ids of client and assistant messages, by position in the thread. */
  readonly names = new Map<number, string>()
  /** Names of assistant turns, made from run and turn number, by position in the thread. */
  readonly turns = new Map<number, string>()
  /** Thread positions of messages added by rules, which no stream contains. */
  readonly hidden = new Set<number>()
  /** Ids of messages delivered into current runs, by position in the thread. */
  readonly inside = new Map<number, string>()
  /** Typed answers of runs, by the thread position of their reply. */
  readonly outputs = new Map<number, unknown>()
  /** Number of applied records. */
  records = 0
  /** The run without a recorded end. */
  running: string | undefined
  /** Process responsible for its last beginning or resumption. */
  driver: string | undefined
  /** Time of the last start or resumption, in milliseconds since 1970. */
  private begunAt = 0
  /** Time of the last record, in milliseconds since 1970. */
  private at = 0
  /** Time of the last record from a process ending within a reply. Absent without such an end. */
  private lostAt: number | undefined
  /** Version of the last record leaving nothing open or waiting. */
  private rest = 0
  private readonly fold: Journal.Fold
  private readonly options: Options
  private calls = new Map<string, Event.PublicCall>()
  /** Calls of the run, by id. */
  private toolCalls = new Map<string, Message.ToolCall>()
  /** Number of the run's whole steps. */
  private steps = 0
  /** Announced calls of the open reply, `undefined` without an open reply. */
  private reply: Set<string> | undefined
  private response: Response.Response | undefined
  private usages: Array<Response.Usage | null> = []
  /** Calls settled since the last run. */
  private settled: ReadonlyArray<Teller.Settled> = []
  /** Verdicts about the last waiting calls, by name: also after a run has continued. */
  private readonly verdicts = new Map<string, Teller.Standing>()
  /** Sub-agent calls without an answer. */
  private readonly agents = new Map<string, Agent>()

  constructor(id: string, options: Options, fold = Journal.fold(id)) {
    this.fold = fold
    this.options = options
  }

  /** Session id. */
  get id(): string {
    return this.fold.id
  }

  /** Running sub-agent calls. */
  get open(): ReadonlyArray<Agent> {
    return Array.from(this.agents.values()).filter(({ isWaiting }) => !isWaiting)
  }

  /** Returns an independent copy of this fold, for a reader with these options. */
  copy(options: Options): Telling {
    const copy = new Telling(this.fold.id, options, this.fold.copy())
    for (const runId of this.runs) copy.runs.push(runId)
    for (const place of this.places) copy.places.push(place)
    copy.rest = this.rest
    for (const [place, name] of this.names) copy.names.set(place, name)
    for (const [place, name] of this.turns) copy.turns.set(place, name)
    for (const place of this.hidden) copy.hidden.add(place)
    for (const [place, id] of this.inside) copy.inside.set(place, id)
    for (const [place, output] of this.outputs) copy.outputs.set(place, output)
    copy.message = this.message
    copy.asked = this.asked
    copy.attempts = new Set(this.attempts)
    copy.chain = this.chain.slice()
    copy.records = this.records
    copy.running = this.running
    copy.driver = this.driver
    copy.begunAt = this.begunAt
    copy.at = this.at
    copy.lostAt = this.lostAt
    copy.calls = new Map(this.calls)
    copy.toolCalls = new Map(this.toolCalls)
    copy.steps = this.steps
    copy.reply = this.reply && new Set(this.reply)
    copy.response = this.response
    copy.usages = this.usages.slice()
    copy.settled = this.settled
    for (const [name, verdict] of this.verdicts) copy.verdicts.set(name, verdict)
    for (const [id, agent] of this.agents) copy.agents.set(id, agent)
    return copy
  }

  /** The session at the last record. */
  get kept(): Session.Kept {
    return this.fold.kept
  }

  /** Version of the last record. */
  get version(): number {
    return this.fold.version
  }

  /** Number of messages in whole turns. */
  private get length(): number {
    return SharedMessages.length(this.fold.thread)
  }

  /** Number of messages in the conversation. */
  private get place(): number {
    return this.fold.calls.length === 0 ? this.length : this.kept.session.thread.messages.length
  }

  /** Returns the verdict about a call that waited, by name. */
  verdictOf(name: string): Teller.Standing | undefined {
    return this.verdicts.get(name)
  }

  /** Keeps a record's verdict, if it is the call's first. Must precede the record: applied, it ends the call's wait. */
  private judge(record: Journal.Entry["record"]): void {
    const given = record._tag === "CallSettled"
      ? record
      : record._tag === "RunStarted" && record.answered !== undefined
      ? { ...record.answered, time: record.startedAt }
      : undefined
    if (given === undefined) return
    const { waiting, waitingSince: run } = Session.view(this.kept)
    const path = CallPaths.parse(given.id)?.path
    if (run === undefined || path === undefined || !waiting.some(({ id }) => id === given.id)) return
    const name = CallPaths.format({ run, path })
    if (this.verdicts.has(name)) return
    this.verdicts.set(name, Teller.verdictOf(given.answer, given.time))
    if (this.verdicts.size <= mostVerdicts) return
    for (const [oldest] of this.verdicts) return void this.verdicts.delete(oldest)
  }

  /** Applies a record, and returns its events. */
  take(entry: Journal.Entry): ReadonlyArray<Told> {
    const { record } = entry
    const { length } = this
    const { nestedUsage, usage: totalUsage } = record._tag === "RunEnded" ? this.fold : unused
    const open = record._tag === "RunEnded" || record._tag === "RunStarted" ? this.kept.submitted : undefined
    this.judge(record)
    this.fold.apply(entry)
    this.records++
    if ("at" in record && record.at !== undefined) this.at = this.begunAt + record.at
    switch (record._tag) {
      case "Opened":
        this.running = this.driver = undefined
        this.answer(record.lastRun)
        this.settled = record.session.answered
        if (this.records === 1) {
          const after = entry.version - 1
          for (const place of ThreadRuns.beginningsOf(record.session.thread)) {
            this.places.push({ runId: ThreadRuns.nameOf(place), after })
          }
        }
        this.atRest()
        return []
      case "StopRequested":
        return [{ runId: record.requestId, event: stopOf(record, this.at) }]
      case "CallSettled":
        this.settled = [...this.settled, { id: record.id, ...Teller.denialOf(record) }]
        return []
      case "RunStarted": {
        const lostAt = this.at
        this.begunAt = this.at = record.startedAt
        this.running = record.requestId
        this.driver = record.processName
        if (record.resumes === true) return this.lose(record.requestId, lostAt)
        this.runs.push(record.requestId)
        this.begin(record, open?.find(({ id }) => id === record.takes?.id)?.mode)
        this.steps = 0
        this.toolCalls = new Map(this.fold.calls.map(({ toolCall }) => [toolCall.id, toolCall]))
        for (const id of this.agents.keys()) if (!this.toolCalls.has(id)) this.agents.delete(id)
        this.reply = undefined
        this.response = undefined
        this.usages = []
        this.calls = new Map()
        return [
          { runId: record.requestId, event: { _tag: "RunStarted", runId: record.requestId, at: this.at } },
          ...this.tell(record.requestId, this.settlements())
        ]
      }
      case "ReplyReceived":
        this.turns.set(this.length, CallPaths.replyId(record.requestId, this.steps + 1))
        return this.tell(record.requestId, this.replied(record.response, record))
      case "CallStarted": {
        const early = record.toolCall === undefined ? [] : this.announce(record.toolCall, record.request)
        const { asked, attempt, toolCall = this.toolCalls.get(record.toolCallId), waited } = record
        if (record.isRun === true) this.startAgent(record, toolCall?.name ?? "")
        return this.tell(record.requestId, [
          ...early,
          {
            _tag: "ToolExecutionStarted",
            id: record.toolCallId,
            name: toolCall?.name ?? "",
            arguments: toolCall?.arguments ?? {},
            ...(attempt > 1 ? { attempt } : {}),
            // A call without a recorded time does not take the reply's time.
            asked: asked === undefined ? null : this.begunAt + asked,
            ...(waited === undefined ? {} : { waited })
          }
        ])
      }
      case "CallEnded": {
        const { halt, message, originalLength } = record
        const id = message.toolCallId ?? ""
        const agent = this.agents.get(id)
        this.agents.delete(id)
        return behind(
          agent?.isWaiting === true ? undefined : agent,
          this.tell(record.requestId, [
            { _tag: "ToolExecutionCompleted", id, name: this.toolCalls.get(id)?.name ?? "" },
            Teller.ofAnswer(message, { halt, originalLength })
          ])
        )
      }
      case "CallWaits": {
        const call = this.toolCalls.get(record.toolCallId)
        const suspensions = record.suspensions.map((open) => ({ ...open, toolCall: open.toolCall ?? call }))
        return behind(
          this.suspendAgent(record),
          this.tell(record.requestId, [
            { _tag: "ToolSuspended", toolCallId: record.toolCallId, toolName: call?.name ?? "", suspensions }
          ])
        )
      }
      case "StepPrepared": {
        // A reply already shown to readers no longer counts.
        const isReset = this.reply !== undefined
        this.reply = undefined
        const { delivered = [], messages = [], stepIndex } = record
        this.hide(messages.length, delivered.length)
        const at = this.lostAt ?? this.at
        this.lostAt = undefined
        const reset = isReset ? this.publish(record.requestId, [{ _tag: "StepReset" }], at) : []
        const own = messages.slice(messages.length - delivered.length)
        return [...reset, ...this.tell(record.requestId, this.delivered(delivered, own, stepIndex))]
      }
      case "StepCompleted": {
        const whole = record.response === undefined ? [] : this.replied(record.response, record)
        const response = record.response ?? this.response
        this.steps++
        // A waiting turn follows the whole turns.
        const place = this.length > length
          ? SharedMessages.findLastIndex(this.fold.thread, SharedMessages.isReply)
          : length
        this.turns.set(place, CallPaths.replyId(record.requestId, this.steps))
        this.reply = undefined
        this.usages.push(response?.usage ?? null)
        return this.tell(record.requestId, [
          ...whole,
          { _tag: "StepCompleted", response, ...(record.done ? { done: true } : {}) }
        ])
      }
      case "RunEnded": {
        const refused = this.refused(open)
        const isUnstarted = record.haltedReason === undefined && this.reply === undefined && this.usages.length === 0
        this.running = this.driver = undefined
        // A run unable to start has returned its message, for the following run.
        if (isUnstarted && Session.isUnfinished(this.kept)) {
          this.places.pop()
          return []
        }
        this.atRest()
        const suspensions = this.fold.calls.length === 0 ? [] : this.kept.session.suspensions
        const output = this.answer(record)
        const result = {
          outcome: outcomeOf(record, this.response?.finishReason),
          usage: Response.sumUsage(this.usages),
          totalUsage,
          nestedUsage,
          suspensions,
          abandoned: record.abandoned,
          spent: record.spent
        }
        return this.tell(record.requestId, [...refused, ...output, { _tag: "ChatCompleted", result }])
      }
      default:
        return []
    }
  }

  /** Notes that runs after this record can be told without earlier records. */
  private atRest(): void {
    const isAtRest = this.fold.next === "nothing" && this.fold.calls.length === 0 && this.settled.length === 0
    if (isAtRest) this.rest = this.fold.version
  }

  /** Names the message taken by a run, and the message it begins or extends. */
  private begin({ messages, operation, requestId, takes }: Journal.RunStarted, mode: Place["mode"]): void {
    const { place } = this
    this.places.push({
      runId: requestId,
      after: this.rest,
      ...(messages.length === 0 ? {} : { messageId: takes?.id ?? ThreadRuns.nameOf(place - 1) }),
      ...(mode === undefined ? {} : { mode })
    })
    if (operation === "continue") {
      this.chain.push(requestId)
      this.attempts.add(requestId)
      return
    }
    if (takes === undefined || takes.id !== this.asked) this.attempts = new Set()
    this.asked = takes?.id
    this.attempts.add(requestId)
    if (takes !== undefined) this.names.set(place - 1, takes.id)
    this.names.set(place, requestId)
    this.message = requestId
    this.chain = [requestId]
  }

  /** Notes a run's typed answer at the last reply, and returns the answer's event. */
  private answer(ended: Pick<Journal.RunEnded, "output"> = {}): ReadonlyArray<Payload> {
    if (!("output" in ended)) return []
    const { output: value } = ended
    this.outputs.set(SharedMessages.findLastIndex(this.fold.thread, SharedMessages.isReply), value)
    return [{ _tag: "OutputCompleted", value }]
  }

  /**
   * Hides the thread's last `count` messages, except the last `shown`. An assistant message beginning there now begins
   * after all `count` messages.
   */
  private hide(count: number, shown = 0): void {
    if (count === 0) return
    const length = this.place
    const name = this.names.get(length - count)
    if (name !== undefined) {
      this.names.delete(length - count)
      this.names.set(length, name)
    }
    for (let place = length - count; place < length - shown; place++) this.hidden.add(place)
  }

  /** Names messages sent into the run by a person, at the end of the thread, and returns their events. */
  private delivered(
    ids: ReadonlyArray<string>,
    messages: ReadonlyArray<Message.Message>,
    stepIndex: number
  ): ReadonlyArray<Payload> {
    const first = this.place - ids.length
    return ids.map((id, index) => {
      this.names.set(first + index, id)
      this.inside.set(first + index, id)
      return { _tag: "MessageDelivered", id, message: messages[index], stepIndex }
    })
  }

  /** Returns an event for each open message refused by the run's end. */
  private refused(open: Session.Kept["submitted"] = []): ReadonlyArray<Payload> {
    const waiting = open.filter(({ otherwise }) => otherwise === "refuse")
    if (waiting.length === 0) return []
    const { receipts } = Session.view(this.kept)
    return waiting.flatMap(({ id, message }) => {
      const { became, reason } = receipts.get(id) ?? {}
      return became === "refused" ? [{ _tag: "MessageRefused", id, message, reason }] : []
    })
  }

  /** Returns the handler ends of an open run whose process has ended. */
  lost(): ReadonlyArray<Told> {
    return this.running === undefined ? [] : this.lose(this.running, this.at)
  }

  /**
   * Returns the ends of handlers lost with their process, at its last known running time: the time until resumption is
   * not counted.
   */
  private lose(runId: string, at: number): ReadonlyArray<Told> {
    if (this.reply !== undefined) this.lostAt = at
    return this.publish(
      runId,
      this.fold.calls.flatMap(({ state, toolCall: { id, name } }): ReadonlyArray<Payload> =>
        state === "Started" ? [{ _tag: "ToolExecutionCompleted", id, name }] : []
      ),
      at
    )
  }

  private startAgent({ idempotencyKey: key, toolCallId: id }: Journal.CallStarted, name: string): void {
    const known = this.agents.get(id)
    const waits = known?.key === key ? known.waits : 0
    this.agents.set(id, { id, name, key, waits, isWaiting: false })
  }

  /** Notes that a sub-agent's run waits, and returns its call. */
  private suspendAgent({ suspensions, toolCallId }: Journal.CallWaits): Agent | undefined {
    const known = this.agents.get(toolCallId)
    if (known === undefined || !suspensions.some(({ path }) => path !== undefined)) return undefined
    const agent = { ...known, isWaiting: true }
    this.agents.set(toolCallId, { ...agent, waits: known.waits + 1 })
    return agent
  }

  /** Returns the published part of an event from a run inside a call's handler. */
  within(runId: string, { id, name }: Agent, { event: progress }: Told): ReadonlyArray<Told> {
    return this.publish(runId, [{ _tag: "ToolProgress", id, name, progress }], progress.at ?? this.at)
  }

  private tell(runId: string, payloads: ReadonlyArray<Payload>): ReadonlyArray<Told> {
    return this.publish(runId, payloads, this.at)
  }

  /** Returns the published part of events. */
  protected publish(runId: string, payloads: ReadonlyArray<Payload>, at: number): ReadonlyArray<Told> {
    const options = { ...this.options, runId, calls: this.calls }
    return payloads.flatMap((payload) => {
      const own = "at" in payload ? payload.at as number : at
      const event = Event.toPublic(payload as unknown as Event.Event, { ...options, at: own })
      return event === undefined ? [] : [{ runId, event }]
    })
  }

  /** Returns the events of a call started before its reply was complete. */
  private announce(call: Message.ToolCall, request: Requested = {}): ReadonlyArray<Payload> {
    const { reply } = this
    if (reply?.has(call.id) === true) return []
    this.reply = new Set(reply).add(call.id)
    this.toolCalls.set(call.id, call)
    return reply === undefined ? [...this.beginning(request), ...Teller.ofCall(call)] : Teller.ofCall(call)
  }

  /** Returns the events for a request and its reply's beginning, with their times. */
  private beginning({ first, requested, ...request }: Requested, reply?: Response.Response): ReadonlyArray<Payload> {
    const { attempt = 1, model = reply?.model, provider = reply?.provider } = request
    const started = { _tag: "MessageStarted", ...(first === undefined ? {} : { at: this.begunAt + first }) }
    if (requested === undefined) return [started]
    return [
      { _tag: "RequestStarted", stepIndex: this.steps, attempt, model, provider, at: this.begunAt + requested },
      started
    ]
  }

  /** Returns a reply's events, except those of calls already started. */
  private replied(response: Response.Response, request: Requested): ReadonlyArray<Payload> {
    const { reply } = this
    this.response = response
    for (const call of response.toolCalls) this.toolCalls.set(call.id, call)
    this.reply = new Set([...reply ?? [], ...response.toolCalls.map(({ id }) => id)])
    const text = Response.text(response)
    return Teller.ofReply({ ...response, outputText: text === "" ? null : text }).flatMap(
      (event): ReadonlyArray<Payload> => {
        if (event._tag === "MessageStarted") return reply === undefined ? this.beginning(request, response) : []
        const isCall = event._tag === "ToolCallStarted" || event._tag === "ToolCallCompleted"
        return isCall && reply?.has(event.id) === true ? [] : [event]
      }
    )
  }

  /** Returns the answers to calls settled between the runs, which do not run again. */
  private settlements(): ReadonlyArray<Payload> {
    const { kept, settled } = this
    if (settled.length === 0) return []
    const open = new Set(
      this.fold.calls.flatMap((call) => call.message === undefined ? [call.toolCall.id] : [])
    )
    const ids = settled.flatMap(({ id }) => CallPaths.ownCall(id) ?? []).filter((id) => !open.has(id))
    this.settled = []
    return SharedMessages.answersTo(kept.session.thread, ids).map((message) => Teller.ofSettled(message, settled))
  }
}

/** Tells a sub-agent's run as data: the outer run publishes the events, to its own extent. */
class Within extends Telling {
  /** Returns events with their own times, or with their record's. */
  protected override publish(runId: string, payloads: ReadonlyArray<Payload>, at: number): ReadonlyArray<Told> {
    return payloads.map((payload) => ({ runId, event: { at, ...payload } as unknown as PublicEvent }))
  }
}

/** Marks the event with which a sub-agent's call ends or waits: the sub-agent's own events come before the event. */
const behind = (agent: Agent | undefined, told: ReadonlyArray<Told>): ReadonlyArray<Told> => {
  const [first, ...rest] = told
  return agent === undefined || first === undefined ? told : [{ ...first, agent }, ...rest]
}

/** A run inside a call's handler. */
interface Inner {
  readonly told: Array<Told>
  /** `true` if it ended with something waiting. */
  isWaiting: boolean
}

/** Reads a journal's runs started by the handler of the call with this key. */
const innersOf = (
  id: string,
  key: string,
  isLost: boolean
): Effect.Effect<ReadonlyArray<Inner>, Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const telling = new Within(id, {})
    const inners: Array<Inner> = []
    let inner: Inner | undefined
    yield* Stream.runForEach(store.read(id), (entry) => {
      const { record } = entry
      return Effect.map(toldOf(telling, entry), (told) => {
        if (record._tag === "RunStarted" && record.resumes !== true) {
          inner = record.parent?.idempotencyKey === key ? { told: [], isWaiting: false } : undefined
          if (inner !== undefined) inners.push(inner)
        }
        inner?.told.push(...told)
        if (inner !== undefined && record._tag === "RunEnded") {
          inner.isWaiting = telling.kept.session.suspensions.length > 0
        }
      })
    })
    if (telling.running !== undefined) {
      const last = isLost ? telling.lost() : []
      inner?.told.push(...yield* underWayIn(telling, isLost), ...last)
    }
    return inners
  })

/** Tells whether an event is a model's complete call, at any depth. Events of nested runs are progress. */
const isCompleted = (event: PublicEvent): boolean =>
  event._tag === "ToolProgress"
    ? Json.isObject(event.progress) && isCompleted(event.progress as unknown as PublicEvent)
    : event._tag === "ToolCallCompleted"

/**
 * Reads a sub-agent's events since its call last waited, as published by the call. They begin with the start of a run,
 * which replaces the sub-agent's earlier events for a reader.
 */
const readAgent = (
  telling: Telling,
  runId: string,
  agent: Agent,
  isLost = false
): Effect.Effect<ReadonlyArray<Told>, Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    const ids = yield* Stream.runCollect(Journal.nestedIn(telling.id, agent.id))
    const found = yield* Effect.forEach(ids, (id) => innersOf(id, agent.key, isLost))
    const wanted: Array<Inner> = []
    for (const inners of found) {
      let waits = 0
      for (const inner of inners) {
        // Earlier events only supply the names of calls: a later run's events may lack these names.
        if (waits < agent.waits) {
          for (const told of inner.told) if (!isCompleted(told.event)) telling.within(runId, agent, told)
        } else if (waits === agent.waits || !agent.isWaiting) wanted.push(inner)
        if (inner.isWaiting) waits++
      }
    }
    const startOf = ({ told: [first] }: Inner): number => first?.event.at ?? 0
    return wanted.sort((left, right) => startOf(left) - startOf(right))
      .flatMap(({ told }, index) => told.filter(({ event }) => event._tag !== "RunStarted" || index === 0))
      .flatMap((told) => telling.within(runId, agent, told))
  })

/** Applies a record, and returns its events, including events of sub-agents that end or wait at this record. */
export const toldOf = (
  telling: Telling,
  entry: Journal.Entry
): Effect.Effect<ReadonlyArray<Told>, Journal.StoreError, Session.Store> =>
  Effect.suspend(() => {
    const told = telling.take(entry)
    if (!told.some(({ agent }) => agent !== undefined)) return Effect.succeed(told)
    return Effect.map(
      Effect.forEach(told, (each) =>
        each.agent === undefined
          ? Effect.succeed([each])
          : Effect.map(readAgent(telling, each.runId, each.agent), (inner) => [...inner, each])),
      (all) => all.flat()
    )
  })

/** Reads the open run's sub-agent progress. `isLost` tells that their process has ended. */
export const underWayIn = (
  telling: Telling,
  isLost = false
): Effect.Effect<ReadonlyArray<Told>, Journal.StoreError, Session.Store> =>
  Effect.map(
    Effect.forEach(telling.running === undefined ? [] : telling.open, (agent) =>
      readAgent(telling, telling.running ?? "", agent, isLost)),
    (all) =>
      all.flat()
  )

/** Returns a session's waiting calls in public form. */
export const suspensionsOf = (
  kept: Session.Kept,
  options: Event.PublicOptions
): ReadonlyArray<Event.PublicSuspension> => {
  const { suspensions } = kept.session
  const payload: Payload = { _tag: "ChatCompleted", result: { outcome: { _tag: "Completed" }, suspensions } }
  const event = Event.toPublic(payload as unknown as Event.Event, {
    ...options,
    runId: Session.view(kept).waitingSince ?? "",
    calls: new Map()
  })
  return event?._tag === "ChatCompleted" ? event.suspensions ?? [] : []
}

/** Returns the unfinished turn's calls in public form. */
export const callsOf = (
  kept: Session.Kept,
  options: Event.PublicOptions
): ReadonlyArray<Extract<PublicEvent, { readonly _tag: "ToolCallCompleted" }>> =>
  published(Session.view(kept).calls.map(({ toolCall }) => toolCall), options)

/** Returns calls in public form. */
export const published = (
  calls: ReadonlyArray<Message.ToolCall>,
  options: Event.PublicOptions
): ReadonlyArray<Extract<PublicEvent, { readonly _tag: "ToolCallCompleted" }>> =>
  calls.flatMap(({ arguments: given, id, name }) => {
    const payload: Payload = { _tag: "ToolCallCompleted", id, name, arguments: given }
    const event = Event.toPublic(payload as unknown as Event.Event, { ...options, calls: new Map() })
    return event?._tag === "ToolCallCompleted" ? [event] : []
  })

const waiting: Readonly<Record<Event.Suspension["kind"], string>> = {
  question: "AskUser",
  manual: "ManualToolCalls",
  approval: "ApprovalRequested",
  unknown: "ApprovalRequested"
}

/** Returns the event ending the stream of a request without a following run, with the calls still waiting. */
export const stillWaiting = (
  kept: Session.Kept | undefined,
  options: Event.PublicOptions
): Effect.Effect<PublicEvent> =>
  Effect.map(Clock.currentTimeMillis, (at) => {
    const suspensions = kept === undefined ? [] : suspensionsOf(kept, options)
    const [first] = suspensions
    return {
      _tag: "ChatCompleted",
      outcome: { _tag: first === undefined ? "Completed" : waiting[first.kind] },
      suspensions,
      at
    }
  })

/** A fold kept by a process, and its last record, which reveals a restarted journal. */
interface Kept {
  readonly telling: Telling
  /** Bytes in its records. */
  readonly bytes: number
  readonly last: Journal.Record
}

/** Limits on the folds a process keeps per store: bytes in their records, and their number. */
const mostBytes = 128 * 1_048_576
const mostFolds = 1_000

/** Keeps the most recently used folds. */
export class Folds {
  private readonly folds = new Map<string, Kept>()
  private bytes = 0
  private readonly mostBytes: number
  private readonly mostFolds: number

  constructor(mostBytes: number, mostFolds: number) {
    this.mostBytes = mostBytes
    this.mostFolds = mostFolds
  }

  get(key: string): Kept | undefined {
    return this.folds.get(key)
  }

  /** Forgets a fold. */
  forget(key: string): void {
    this.bytes -= this.folds.get(key)?.bytes ?? 0
    this.folds.delete(key)
  }

  /** Keeps a fold, and forgets others if there is no more room. */
  keep(key: string, kept: Kept): void {
    this.forget(key)
    const { bytes } = kept
    if (bytes > this.mostBytes) return
    this.folds.set(key, kept)
    this.bytes += bytes
    for (const other of this.folds.keys()) {
      if (this.bytes <= this.mostBytes && this.folds.size <= this.mostFolds) return
      this.forget(other)
    }
  }
}

const folds = new WeakMap<Journal.Service, Folds>()

const foldsOf = (store: Journal.Service): Folds => {
  const known = folds.get(store) ?? new Folds(mostBytes, mostFolds)
  folds.set(store, known)
  return known
}

/** Forgets this process's data about a removed journal. */
export const forget = (key: string): Effect.Effect<void, never, Session.Store> =>
  Effect.map(Session.Store, (store) => foldsOf(store).forget(key))

const isSame = (record: Journal.Record, other: Journal.Record | undefined): boolean =>
  JSON.stringify(record) === JSON.stringify(other)

/**
 * Reads a journal: the records after the process's fold, or all of them. The returned fold belongs to the caller. The
 * record at the fold's version is read again: if it differs, the journal was restarted.
 */
export const read = (
  key: string,
  options: Options
): Effect.Effect<Telling, Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const kept = foldsOf(store)
    const readOn = (known: Kept | undefined) =>
      Effect.gen(function*() {
        const telling = known?.telling.copy(options) ?? new Telling(key, options)
        let last: Journal.Record | undefined
        let isKnown = known === undefined
        yield* Stream.runForEachWhile(store.read(key, Math.max(0, telling.version - 1)), (entry) =>
          Effect.sync(() => {
            if (!isKnown) {
              isKnown = entry.version === telling.version && isSame(entry.record, known?.last)
              return isKnown
            }
            last = entry.record
            telling.take(entry)
            return true
          }))
        if (!isKnown) return undefined
        const { bytes } = Session.view(telling.kept).size
        if (last !== undefined) kept.keep(key, { telling: telling.copy(options), bytes, last })
        else if (known !== undefined) kept.keep(key, known)
        return telling
      })
    const known = kept.get(key)
    const found = known === undefined ? undefined : yield* readOn(known)
    if (found !== undefined) return found
    kept.forget(key)
    return (yield* readOn(undefined)) ?? new Telling(key, options)
  })

/**
 * Reads a journal from its beginning, and returns the events of a run so far, including running sub-agents. `isLost`
 * tells that their process has ended: the run is about to be resumed.
 */
export const eventsOf = (
  key: string,
  runId: string,
  options: Options,
  isLost = false
): Effect.Effect<ReadonlyArray<PublicEvent>, Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const telling = new Telling(key, options)
    const events: Array<PublicEvent> = []
    yield* Stream.runForEach(store.read(key), (entry) =>
      Effect.map(toldOf(telling, entry), (all) => {
        for (const told of all) if (told.runId === runId) events.push(told.event)
      }))
    if (telling.running !== runId) return events
    const underWay = yield* underWayIn(telling, isLost)
    return [...events, ...[...underWay, ...isLost ? telling.lost() : []].map(({ event }) => event)]
  })

/** Reads a run's events so far about a call's sub-agent. The first event replaces the reader's earlier events. */
export const agentOf = (
  key: string,
  runId: string,
  id: string,
  options: Options
): Effect.Effect<ReadonlyArray<PublicEvent>, Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const telling = new Telling(key, options)
    const events: Array<PublicEvent> = []
    const add = (all: ReadonlyArray<Told>): void => {
      for (const { event, runId: other } of all) {
        if (other === runId && event._tag === "ToolProgress" && event.id === id) events.push(event)
      }
    }
    yield* Stream.runForEach(store.read(key), (entry) => Effect.map(toldOf(telling, entry), add))
    // The end of the call may not be recorded yet.
    if (events.length === 0) add(yield* underWayIn(telling))
    return events
  })
