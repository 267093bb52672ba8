/**
 * Journals that are made of drawn records, without a run: each record fits its place, or belongs to a run that is not
 * open. They reach states that take several runs, failures and commands.
 */
import { type Journal, Message, Response, type Session } from "heddle"
import * as Records from "../../src/internal/session/records.ts"
import * as States from "../../src/internal/session/state.ts"
import { drawing, type Draws } from "./drawing.ts"

/** What may happen to a journal, and how often it does where it fits. */
const weights = {
  submit: 2,
  speak: 2,
  start: 6,
  resume: 1,
  fail: 1,
  failCall: 2,
  prepare: 4,
  reply: 6,
  call: 6,
  answer: 6,
  wait: 4,
  settle: 6,
  step: 9,
  text: 2,
  broken: 1,
  end: 3,
  stop: 1,
  disallow: 1,
  append: 1,
  label: 1,
  snapshot: 1,
  stale: 1
} as const

type Kind = keyof typeof weights

const weighted = Object.entries(weights).flatMap(([kind, weight]) => Array.from({ length: weight }, () => kind as Kind))

export { type Draws as Happenings, draws as happenings } from "./drawing.ts"

const usage = (inputTokens: number): Response.Usage => Response.usage({ inputTokens, outputTokens: 0 })

/** A reply with calls or, without any, with a text. */
export const replyOf = (text: string, calls: ReadonlyArray<Message.ToolCall> = []): Response.Response => ({
  id: null,
  requestId: null,
  model: null,
  outputText: text,
  reasoning: "",
  toolCalls: calls,
  message: Message.assistant(text, calls),
  finishReason: calls.length === 0 ? "stop" : "tool_calls",
  rawFinishReason: null,
  usage: usage(1),
  metadata: {}
})

/** The first record of a journal. */
export const opened = (session: Session.Session, more: Partial<Records.Opened> = {}): Records.Opened => ({
  _tag: "Opened",
  format: 1,
  session,
  ...more
})

export const started = (requestId: string, more: Partial<Records.RunStarted> = {}): Records.RunStarted => ({
  _tag: "RunStarted",
  requestId,
  operation: "reply",
  startedAt: 1,
  messages: [],
  ...more
})

export const submitted = (id: string): Records.MessageSubmitted => ({
  _tag: "MessageSubmitted",
  id,
  message: Message.user(`said ${id}`)
})

/** The ways in which a message is submitted. */
const modes: ReadonlyArray<Pick<Records.MessageSubmitted, "mode" | "otherwise">> = [
  {},
  {},
  { mode: "steer" },
  { mode: "follow", otherwise: "refuse" }
]

const hashes = (id: string) => ({ id, hash: Records.hashOf(`said ${id}`) })

export const taking = (id: string, requestId: string): Records.RunStarted =>
  started(requestId, { takes: hashes(id), messages: [Message.user(`said ${id}`)] })

/** Suspensions of a call, the later one of which may expire before the earlier one. */
const suspensionsOf = (toolCallId: string, form: number) => {
  const times = [undefined, 5000, 3000, 7000] as const
  const kind = (["question", "approval", "manual", "unknown"] as const)[form % 4] ?? "question"
  const timed = (expiresAt: number | undefined) => expiresAt === undefined ? {} : { expiresAt }
  if (form < 8) {
    const remember = kind === "approval" ? { remember: { scope: "tool", tool: "h" } as const } : {}
    return [{ id: toolCallId, kind, question: "which?", ...timed(times[form % 3]), ...remember }]
  }
  return [form % 4, 11 - form].map((time, index) => ({
    id: `${toolCallId}/n${index}`,
    path: [toolCallId, `n${index}`],
    kind,
    toolCall: Message.toolCall(`n${index}`, "inner"),
    ...timed(times[time])
  }))
}

/** The end of a run of this form. */
const endOf = (requestId: string, form: number): Records.RunEnded => {
  const error = { reason: "AdapterError", detail: `it broke in ${form}` }
  const forms: ReadonlyArray<Partial<Records.RunEnded>> = [
    { haltedReason: "completed", status: "completed" },
    { error },
    {},
    { haltedReason: "abandoned" },
    { haltedReason: "cancelled", status: "stopped" },
    { haltedReason: "tool_error", status: "error", metadata: { error: { message: `no ${form}` } } },
    { haltedReason: "max_turns", status: "completed", metadata: { seen: form }, kept: { tally: form } },
    { haltedReason: "" },
    { haltedReason: "ask_user", messages: [Message.user("wrapped up")] },
    {
      haltedReason: "stuck",
      status: "error",
      rule: { name: "stuck", detail: form },
      metadata: { error: { rule: "stuck" } }
    },
    { haltedReason: "done", status: "completed", rule: { name: "done" }, kept: { tally: -form, other: true } }
  ]
  return { _tag: "RunEnded", requestId, ...forms[form % forms.length] }
}

/** Where a journal is, as far as its next record has to fit. */
interface Place {
  readonly state: States.State
  runs: number
  replies: number
  commands: number
}

/** A record of a kind that fits the place, if there is one. */
const fitting = (place: Place, kind: Kind, form: number): Journal.Record | undefined => {
  const { state } = place
  const { run, turn } = state
  const requestId = run?.requestId ?? "gone"
  const isOpen = run !== undefined
  const calls = Array.from(turn?.calls.entries() ?? [])
  const among = (...tags: ReadonlyArray<States.Call["_tag"]>) => {
    const found = calls.filter(([, { _tag }]) => tags.includes(_tag))
    return found[form % Math.max(found.length, 1)]?.[0]
  }
  const more = form % 3 === 0 ? { nestedUsage: usage(form + 1) } : {}
  const cost = { calls: 1, inputTokens: form, outputTokens: form, money: form }
  const ofCall = form % 3 === 0 ? { ...more, nestedSpent: cost } : more
  const noted = form % 4 === 1 ? { notes: { step: form, both: "later" } } : {}
  const isReplied = isOpen && turn?.isEarlier === false
  switch (kind) {
    case "submit":
      if (form % 5 === 4) {
        const message = state.inbox[form % Math.max(state.inbox.length, 1)]
        return message === undefined ? undefined : { _tag: "MessageWithdrawn", id: message.id }
      }
      return { ...submitted(`m${place.commands++}`), ...modes[form % modes.length] }
    case "speak": {
      const [inner] = state.inside
      if (inner === undefined || form < 4) {
        const to = among("Started", "Asked", "Waiting") ?? "none"
        return form === 0 || to !== "none" ? { ...submitted(`m${place.commands++}`), mode: "steer", to } : undefined
      }
      const { message: { id }, session } = inner
      if (session === undefined && form < 8) return { _tag: "MessageForwarded", requestId, id, session: `s/${id}` }
      if (session === undefined && form === 8) return { _tag: "MessageWithdrawn", id }
      const fates: ReadonlyArray<Records.MessageSettled["fate"]> = [
        { became: "delivered", requestId: "inner", stepIndex: form },
        { became: "refused", reason: "stopped" },
        { became: "withdrawn" }
      ]
      return { _tag: "MessageSettled", id, fate: fates[form % 3] ?? { became: "withdrawn" } }
    }
    case "append":
      return isOpen ? undefined : { _tag: "MessagesAppended", messages: [Message.user(`added ${form}`)] }
    case "label": {
      const title = ["Trip", null, undefined, `title ${form}`][form % 4]
      const pinned = [true, undefined, false][form % 3]
      return {
        _tag: "Labelled",
        ...(title === undefined ? {} : { title }),
        ...(pinned === undefined ? {} : { pinned })
      }
    }
    case "start": {
      if (isOpen) return undefined
      const [waiting] = state.inbox
      const id = `r${place.runs++}`
      const processName = ["p0", "p1", undefined][form % 3]
      const given: Partial<Records.RunStarted> = {
        startedAt: place.runs,
        ...(processName === undefined ? {} : { processName }),
        ...(form % 4 === 0 ? { span: { traceId: "t", spanId: id } } : {}),
        ...(form % 5 === 0 ? { clientTools: [{ name: id, description: "", parameters: {} }] } : {}),
        ...(form % 5 === 1 ? { versions: { a: id } } : {}),
        ...(form % 7 === 0 ? { deadlineAt: 1000 + form } : {}),
        ...(form === 11 ? { parent: { id: "parent" } } : {})
      }
      if (form < 6 && waiting !== undefined) return { ...taking(waiting.id, id), ...given }
      if (form === 6) return { ...taking(`k${place.commands++}`, id), ...given }
      const open = States.suspensionsOf(state).find(({ kind, path }) => kind === "question" && path === undefined)
      if (open !== undefined && form !== 8) {
        return started(id, { ...given, answered: { id: open.id, answer: { _tag: "Value", value: "in its place" } } })
      }
      return started(id, { ...given, messages: form === 8 ? [] : [Message.user(`hello ${id}`)] })
    }
    case "resume": {
      if (!isOpen) return undefined
      const processName = ["p0", "p1", undefined][form % 3]
      return started(requestId, { resumes: true, ...(processName === undefined ? {} : { processName }) })
    }
    case "fail":
      return { _tag: "AttemptFailed", requestId }
    case "failCall": {
      const toolCallId = among("Started")
      return toolCallId === undefined ? undefined : { _tag: "AttemptFailed", requestId, toolCallId }
    }
    case "prepare": {
      const isBegun = isReplied && (turn.isStepped === true || calls.some(([, { _tag }]) => _tag !== "Asked"))
      if (!isOpen || isBegun || !isReplied && (turn?.open ?? 0) > 0) return undefined
      const steers = state.inbox.filter(({ mode }) => mode !== undefined)
      return {
        _tag: "StepPrepared",
        requestId,
        stepIndex: run.steps.length,
        attempt: Math.max(1, run.attempt + form % 2),
        ...(form % 3 === 0 ? {} : { notes: { [`rule${form % 2}`]: form, both: "earlier" } }),
        ...(form % 4 === 0 ? { messages: [Message.user(`hint ${form}`)] } : {}),
        ...(form % 4 === 1 && steers.length > 0
          ? { messages: steers.map(({ message }) => message), delivered: steers.map(({ id }) => id) }
          : {}),
        ...(form % 5 === 0 ? { spent: usage(form + 1) } : {})
      }
    }
    case "reply": {
      if (!isOpen || isReplied || (turn?.open ?? 0) > 0) return undefined
      const ids = ["a", "b", "c"].slice(0, 1 + form % 3).map((name) => `${name}${place.replies}`)
      place.replies++
      const response = replyOf("calling", ids.map((id) => Message.toolCall(id, id.slice(0, 1))))
      return { _tag: "ReplyReceived", requestId, stepIndex: run.steps.length, response }
    }
    case "call": {
      const id = isOpen ? among("Asked", "Granted") : undefined
      const call = id === undefined ? undefined : turn?.calls.get(id)
      if (call === undefined || id === undefined) return undefined
      const idempotencyKey = call.idempotencyKey ?? `${requestId}:${id}`
      return { _tag: "CallStarted", requestId, toolCallId: id, attempt: call.attempt + 1, idempotencyKey }
    }
    case "answer": {
      const id = isOpen ? among("Asked", "Started", "Granted") : undefined
      if (id === undefined) return undefined
      const reason = ([undefined, "unknown_effect", "cancelled", undefined] as const)[form % 4]
      return {
        _tag: "CallEnded",
        requestId,
        message: Message.answer(id, `answer ${form}`),
        ...(reason === undefined ? {} : { reason }),
        ...(form % 5 === 0 ? { contextUpdate: { [id]: form } } : {}),
        ...(form % 4 === 3 ? { halt: { haltedReason: "enough", haltToolCallId: id, haltResult: form } } : {}),
        ...ofCall
      }
    }
    case "wait": {
      const id = isOpen ? among("Asked", "Started") : undefined
      if (id === undefined) return undefined
      return { _tag: "CallWaits", requestId, toolCallId: id, suspensions: suspensionsOf(id, form), ...ofCall }
    }
    case "settle": {
      const open = States.suspensionsOf(state)
      const suspension = open[form % Math.max(open.length, 1)]
      if (suspension === undefined) return undefined
      const answers: ReadonlyArray<Session.Answer> = [
        { _tag: "Value", value: `verdict ${form}` },
        { _tag: "Approved" },
        { _tag: "Denied", reason: "no" },
        { _tag: "Expired" }
      ]
      const id = `v${place.commands}`
      if (form < 8) place.commands++
      return {
        _tag: "CallSettled",
        id: suspension.id,
        answer: answers[form % 4] ?? { _tag: "Expired" },
        ...(form < 8 ? { command: { id, hash: `h${id}` } } : {}),
        ...(form === 5 || form === 9 ? { remember: form === 5 ? "tool" : "arguments" } as const : {})
      }
    }
    case "step": {
      const isWhole = calls.every(([, { _tag }]) => _tag === "Answered" || _tag === "Waiting")
      if (!isReplied || !isWhole || turn.isStepped === true) return undefined
      return { _tag: "StepCompleted", requestId, stepIndex: run.steps.length, done: false, ...noted, ...more }
    }
    case "text": {
      if (!isOpen || (turn?.open ?? 0) > 0 || isReplied) return undefined
      const response = replyOf(`text of ${place.replies++}`)
      return { _tag: "StepCompleted", requestId, stepIndex: run.steps.length, done: true, response, ...noted, ...more }
    }
    case "broken": {
      if (!isReplied || turn.isStepped === true) return undefined
      const text = `broken ${place.replies++}`
      const [response, messages] = [replyOf(text), [Message.assistant(text)]]
      return { _tag: "StepCompleted", requestId, stepIndex: run.steps.length, done: false, response, messages }
    }
    case "end":
      // A run that fails by a call withdraws those that wait.
      if ((form === 5 || form === 9) && calls.some(([, { _tag }]) => _tag === "Waiting")) return undefined
      return isOpen ? endOf(requestId, form) : undefined
    case "stop": {
      if (!isOpen) return undefined
      const [call] = state.turn?.calls.keys() ?? []
      const isStopped = run?.callStops.some((other) => other.call === call) === true
      if (call !== undefined && form % 3 === 0 && !isStopped) {
        return { _tag: "StopRequested", id: `stop${place.commands++}`, requestId, call }
      }
      if (state.stop !== undefined) return undefined
      return { _tag: "StopRequested", id: `stop${place.commands++}`, requestId }
    }
    case "disallow":
      return { _tag: "ToolDisallowed", name: ["a", "b", "c"][form % 3] ?? "a" }
    case "snapshot": {
      if (isOpen) return undefined
      const record = States.openedBy(state, States.sessionOf(state))
      return form < 6 ? { ...record, receipts: Array.from(state.receipts.values()) } : record
    }
    case "stale": {
      const other = { requestId: "gone" }
      const stale: ReadonlyArray<Journal.Record> = [
        { _tag: "AttemptFailed", ...other },
        endOf("gone", 0),
        endOf("gone", 2),
        { _tag: "StepCompleted", ...other, stepIndex: 0, done: true, response: replyOf("stale") },
        { _tag: "StopRequested", id: "stale", ...other },
        { _tag: "CallEnded", ...other, message: Message.answer(calls[0]?.[0] ?? "a0", "stale") }
      ]
      return stale[form % stale.length]
    }
  }
}

/** The records of a run that have their times. */
const timed: ReadonlySet<string> = new Set([
  "AttemptFailed",
  "CallEnded",
  "CallStarted",
  "CallWaits",
  "ReplyReceived",
  "RunEnded",
  "StepCompleted"
])

/** Returns a record with its time, if it has one. That of a run that is not open is late. */
const atItsTime = (record: Journal.Record, { run }: States.State, form: number): Journal.Record => {
  if (!timed.has(record._tag) || !("requestId" in record)) return record
  return { ...record, at: run?.requestId === record.requestId ? run.at + form % 3 : 1_000 } as Journal.Record
}

const origins: ReadonlyArray<Records.Origin> = [
  {},
  { agent: "travel", principal: "ann", metadata: { plan: "free" } },
  { forkedFrom: { id: "first", version: 4, message: "m2" } }
]

/** A drawn journal. */
export const journalOf = ({ count, seed }: Draws, session: Session.Session): ReadonlyArray<Journal.Record> => {
  const below = drawing(seed)
  const place: Place = { state: States.initial(), runs: 0, replies: 0, commands: 0 }
  const records: Array<Journal.Record> = [opened(session, origins[below(3)])]
  const add = (record: Journal.Record) => {
    States.apply(place.state, record)
    if (records.at(-1) !== record) records.push(record)
  }
  records.forEach(add)
  for (let index = 0; index < count; index++) {
    const form = below(12)
    let left = weighted
    while (left.length > 0) {
      const kind = left[below(left.length)]
      const record = kind && fitting(place, kind, form)
      if (record !== undefined) {
        add(atItsTime(record, place.state, form))
        break
      }
      left = left.filter((other) => other !== kind)
    }
  }
  return records
}

/** The state that records fold to. */
export const foldedFrom = (records: Iterable<Journal.Record>): States.State => {
  const state = States.initial()
  for (const record of records) States.apply(state, record)
  return state
}
