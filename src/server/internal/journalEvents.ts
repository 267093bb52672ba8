/**
 * The public events of a journal: the runs of a session as its records tell them, for readers whose process does not
 * drive the run, and for a run whose events are no longer in memory. A reply is whole; no text comes in pieces.
 *
 * @since 0.1.0
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

/** An event with the run to which it belongs. */
export interface Told {
  readonly runId: string
  readonly event: PublicEvent
  /** The sub-agent that has ended, or waits, with this event: its own events come before. */
  readonly agent?: Agent
}

/** An event as data: the public form is made by one function, whose allow list is the only one. */
type Payload = { readonly _tag: string; readonly [name: string]: unknown } | Event.Event

/** A call whose handler is a run with a journal of its own. */
interface Agent {
  readonly id: string
  readonly name: string
  /** The key of the call, which its runs name. A call of another turn may have the same id. */
  readonly key: string
  /** The number of its runs that ended since something waited within. */
  readonly waits: number
  /** `true` where its last run waits. */
  readonly isWaiting: boolean
}

/** The outcomes by the word that a journal has for them. */
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

/** Returns the event of a request to stop a run. `at` is the time where the record has none. */
export const stopOf = ({ by, call, time }: Journal.StopRequested, at: number): PublicEvent => ({
  _tag: "StopAccepted",
  ...(by === undefined ? {} : { by }),
  ...(call === undefined ? {} : { call }),
  at: time ?? at
})

const unused = { nestedUsage: null, usage: null }

/** A run, and the place in its journal from which it can be read. */
export interface Place {
  readonly runId: string
  /** The version behind which a fold without earlier records tells the run as a fold of the whole journal does. */
  readonly after: number
  /** The id of the message that began it. Left out where none did. */
  readonly messageId?: string
  /** The place for which that message was submitted. Left out where it was the next run. */
  readonly mode?: "steer" | "follow"
}

/** The request of a reply, as far as it is recorded. */
type Requested = Partial<Pick<Journal.ReplyReceived, "attempt" | "first" | "model" | "provider" | "requested">>

type Options = Omit<Event.PublicOptions, "runId" | "calls" | "at">

/** Number of verdicts that are kept for answers that come too late. */
const mostVerdicts = 1_000

/** Folds the records of a journal and tells what happened as public events. */
export class Telling {
  /** The runs that the records began, in order. */
  readonly runs: Array<string> = []
  /** The runs of the conversation that the journal begins with, and the recorded ones that could start, in order. */
  readonly places: Array<Place> = []
  /** The last run that began with a message, whose id names the message of the assistant that continued runs add to. */
  message: string | undefined
  /** The message of the client that the last run took which did not continue another one. */
  asked: string | undefined
  /** The runs that answered it, also those that could not start: a page may name its message by any of them. */
  attempts = new Set<string>()
  /** The runs that add to that message, in order. */
  chain: Array<string> = []
  /** The ids of the messages of clients and of the assistant, by their places in the thread. */
  readonly names = new Map<number, string>()
  /** The names of the assistant's turns, each by its run and its number in it, by their places in the thread. */
  readonly turns = new Map<number, string>()
  /** The places in the thread of the messages that rules added, which no stream gives. */
  readonly hidden = new Set<number>()
  /** The ids of the messages that runs under way got, by their places in the thread. */
  readonly inside = new Map<number, string>()
  /** The typed answers of runs, by the places in the thread of the replies that gave them. */
  readonly outputs = new Map<number, unknown>()
  /** Number of the records that were applied. */
  records = 0
  /** The run without a recorded end. */
  running: string | undefined
  /** The process that began or resumed it last. */
  driver: string | undefined
  /** Time of the last start or resumption, and of the last record, in milliseconds since 1970. */
  private begunAt = 0
  private at = 0
  /** Time of the last record of a process that ended within a reply. Left out where none did. */
  private lostAt: number | undefined
  /** The version of the last record at which nothing was open or waited. */
  private rest = 0
  private readonly fold: Journal.Fold
  private readonly options: Options
  private calls = new Map<string, Event.PublicCall>()
  /** The calls of the run, by their ids. */
  private toolCalls = new Map<string, Message.ToolCall>()
  /** Number of whole steps of the run. */
  private steps = 0
  /** The calls of the open reply that were announced, or nothing where no reply is open. */
  private reply: Set<string> | undefined
  private response: Response.Response | undefined
  private usages: Array<Response.Usage | null> = []
  /** The calls that were settled since the last run. */
  private settled: ReadonlyArray<Teller.Settled> = []
  /**
   * The verdicts about the last calls that waited, by their names: also where a run has continued behind them since.
   */
  private readonly verdicts = new Map<string, Teller.Standing>()
  /** The calls of sub-agents that have no answer yet. */
  private readonly agents = new Map<string, Agent>()

  constructor(id: string, options: Options, fold = Journal.fold(id)) {
    this.fold = fold
    this.options = options
  }

  /** The id of the session. */
  get id(): string {
    return this.fold.id
  }

  /** The calls of sub-agents that run. */
  get open(): ReadonlyArray<Agent> {
    return Array.from(this.agents.values()).filter(({ isWaiting }) => !isWaiting)
  }

  /** Returns a fold of the same records that shares nothing with this one, for a reader with these options. */
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

  /** The version of the last record. */
  get version(): number {
    return this.fold.version
  }

  /** Number of messages of the whole turns. */
  private get length(): number {
    return SharedMessages.length(this.fold.thread)
  }

  /** Number of messages of the conversation. */
  private get place(): number {
    return this.fold.calls.length === 0 ? this.length : this.kept.session.thread.messages.length
  }

  /** Returns the verdict about a call that waited, by its name. */
  verdictOf(name: string): Teller.Standing | undefined {
    return this.verdicts.get(name)
  }

  /** Keeps the verdict that a record gives, if it is the first one. The call waits until the record is applied. */
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

  /** Applies a record, and returns the events of what it tells. */
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
            // The time of the reply is not that of the call.
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
        // A reply that readers have seen does not count any more.
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
        // A turn that waits stands behind the whole ones.
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
        // A run that could not start has given back what it took, for the run that follows.
        const refused = this.refused(open)
        const isUnstarted = record.haltedReason === undefined && this.reply === undefined && this.usages.length === 0
        this.running = this.driver = undefined
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

  /** Notes that the runs behind this record can be told without those before it. */
  private atRest(): void {
    const isAtRest = this.fold.next === "nothing" && this.fold.calls.length === 0 && this.settled.length === 0
    if (isAtRest) this.rest = this.fold.version
  }

  /** Names the message that a run takes, and the one that it begins or adds to. */
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

  /** Notes the typed answer of a run at the last reply, and returns the event of the answer. */
  private answer(ended: Pick<Journal.RunEnded, "output"> = {}): ReadonlyArray<Payload> {
    if (!("output" in ended)) return []
    const { output: value } = ended
    this.outputs.set(SharedMessages.findLastIndex(this.fold.thread, SharedMessages.isReply), value)
    return [{ _tag: "OutputCompleted", value }]
  }

  /** Hides the last messages of the thread. The message of the assistant that begins there begins behind them. */
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

  /** Names the messages at the end of the thread that a person has sent into the run, and returns their events. */
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
    return waiting.flatMap(({ id }) => {
      const { became, reason } = receipts.get(id) ?? {}
      return became === "refused" ? [{ _tag: "MessageRefused", id, reason }] : []
    })
  }

  /** Returns the ends of the handlers of the open run, whose process has ended. */
  lost(): ReadonlyArray<Told> {
    return this.running === undefined ? [] : this.lose(this.running, this.at)
  }

  /**
   * Returns the ends of the handlers that ended with their process, at the last time at which it was known to run:
   * the time until the run is resumed is no time of theirs.
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

  /** Notes that the run of a sub-agent waits, and returns its call. */
  private suspendAgent({ suspensions, toolCallId }: Journal.CallWaits): Agent | undefined {
    const known = this.agents.get(toolCallId)
    if (known === undefined || !suspensions.some(({ path }) => path !== undefined)) return undefined
    const agent = { ...known, isWaiting: true }
    this.agents.set(toolCallId, { ...agent, waits: known.waits + 1 })
    return agent
  }

  /** Returns what is published of an event of a run inside the handler of a call. */
  within(runId: string, { id, name }: Agent, { event: progress }: Told): ReadonlyArray<Told> {
    return this.publish(runId, [{ _tag: "ToolProgress", id, name, progress }], progress.at ?? this.at)
  }

  private tell(runId: string, payloads: ReadonlyArray<Payload>): ReadonlyArray<Told> {
    return this.publish(runId, payloads, this.at)
  }

  /** Returns what is published of events. */
  protected publish(runId: string, payloads: ReadonlyArray<Payload>, at: number): ReadonlyArray<Told> {
    const options = { ...this.options, runId, calls: this.calls }
    return payloads.flatMap((payload) => {
      const own = "at" in payload ? payload.at as number : at
      const event = Event.toPublic(payload as unknown as Event.Event, { ...options, at: own })
      return event === undefined ? [] : [{ runId, event }]
    })
  }

  /** Returns the events of a call that started before its reply was whole. */
  private announce(call: Message.ToolCall, request: Requested = {}): ReadonlyArray<Payload> {
    const { reply } = this
    if (reply?.has(call.id) === true) return []
    this.reply = new Set(reply).add(call.id)
    this.toolCalls.set(call.id, call)
    return reply === undefined ? [...this.beginning(request), ...Teller.ofCall(call)] : Teller.ofCall(call)
  }

  /** Returns the events of a request and of the beginning of its reply, with their times. */
  private beginning({ first, requested, ...request }: Requested, reply?: Response.Response): ReadonlyArray<Payload> {
    const { attempt = 1, model = reply?.model, provider = reply?.provider } = request
    const started = { _tag: "MessageStarted", ...(first === undefined ? {} : { at: this.begunAt + first }) }
    if (requested === undefined) return [started]
    return [
      { _tag: "RequestStarted", stepIndex: this.steps, attempt, model, provider, at: this.begunAt + requested },
      started
    ]
  }

  /** Returns the events of a reply, but for those of the calls that have started before. */
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

  /** Returns the answers of the calls that were settled between the runs, and do not run again. */
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

/** Tells the run of a sub-agent as data: the run around it, whose rules hold, publishes its events. */
class Within extends Telling {
  /** Returns events with their own times, or with that of their record. */
  protected override publish(runId: string, payloads: ReadonlyArray<Payload>, at: number): ReadonlyArray<Told> {
    return payloads.map((payload) => ({ runId, event: { at, ...payload } as unknown as PublicEvent }))
  }
}

/** Puts the events of a sub-agent before those with which its call ends or waits. */
const behind = (agent: Agent | undefined, told: ReadonlyArray<Told>): ReadonlyArray<Told> => {
  const [first, ...rest] = told
  return agent === undefined || first === undefined ? told : [{ ...first, agent }, ...rest]
}

/** A run inside the handler of a call. */
interface Inner {
  readonly told: Array<Told>
  /** `true` where it ended with something that waits. */
  isWaiting: boolean
}

/** Reads the runs of a journal that the handler of a call with this key has started. */
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

/** Tells whether an event completes a call, at any depth. The events of a run inside are progress. */
const isCompleted = (event: PublicEvent): boolean =>
  event._tag === "ToolProgress"
    ? Json.isObject(event.progress) && isCompleted(event.progress as unknown as PublicEvent)
    : event._tag === "ToolCallCompleted"

/**
 * Reads the events of a sub-agent, as its call publishes them, since the call has waited last. The first one precedes
 * all of them, and says that they replace those that a reader has.
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
        // The calls of an earlier run have names that the events of a later one may lack.
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

/** Applies a record, and returns the events of what it tells, with those of the sub-agents that end or wait with it. */
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

/** Reads what the sub-agents of the open run have done so far. `isLost` tells that their process has ended. */
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

/** Returns what waits in a session as it is published. */
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

/** Returns the calls of the unfinished turn, as they are published. */
export const callsOf = (
  kept: Session.Kept,
  options: Event.PublicOptions
): ReadonlyArray<Extract<PublicEvent, { readonly _tag: "ToolCallCompleted" }>> =>
  published(Session.view(kept).calls.map(({ toolCall }) => toolCall), options)

/** Returns calls as they are published. */
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

/** Returns the end of a request after which no run begins, since other calls still wait. */
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

/** A fold that a process keeps, and its last record, by which a journal that began anew is known. */
interface Kept {
  readonly telling: Telling
  /** Bytes of its records. */
  readonly bytes: number
  readonly last: Journal.Record
}

/** Bounds of the folds that a process keeps of a store: bytes of their records, and their number. */
const mostBytes = 128 * 1_048_576
const mostFolds = 1_000

/** Keeps the folds that were used last. */
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

  /** Keeps a fold, and forgets those for which there is no room any more. */
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

/** Forgets what this process keeps of a journal, which was removed. */
export const forget = (key: string): Effect.Effect<void, never, Session.Store> =>
  Effect.map(Session.Store, (store) => foldsOf(store).forget(key))

const isSame = (record: Journal.Record, other: Journal.Record | undefined): boolean =>
  JSON.stringify(record) === JSON.stringify(other)

/**
 * Reads a journal: the records behind the fold that the process keeps, or all of them. The fold belongs to the caller.
 * The record at the version of the fold is read again: where it is another one, the journal began anew.
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
 * Reads a journal from its beginning, and returns the events of a run so far, and of the sub-agents that run. `isLost`
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

/** Reads what a run has so far of the sub-agent of a call. The first event replaces what a reader has of it. */
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
