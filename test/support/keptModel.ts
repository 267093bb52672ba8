/**
 * What a journal keeps, computed plainly from the list of its records: each value by its definition, from the records
 * since the one that resets it.
 */
import { type Journal, Message, type Session } from "heddle"
import type * as Records from "../../src/internal/session/records.ts"
import * as States from "../../src/internal/session/state.ts"

type List = ReadonlyArray<Journal.Record>

/** The records behind the last one that fits, or all of them. */
const since = (records: List, isLast: (record: Journal.Record) => boolean): List =>
  records.slice(records.findLastIndex(isLast) + 1)

const isOpening = (record: Journal.Record): record is Records.RunStarted =>
  record._tag === "RunStarted" && record.resumes !== true

/** The records of a journal without those of runs that are not open. */
const fittingIn = (records: List): List =>
  records.filter((record) => !("requestId" in record && record.requestId === "gone"))

/** The last record that opened a run. */
const startIn = (records: List): Records.RunStarted | undefined => records.findLast(isOpening)

const clientToolsIn = (records: List): Records.ClientTools => {
  const last = records.findLast((record) => record._tag === "Opened" || isOpening(record))
  return last?._tag === "Opened" || last?._tag === "RunStarted" ? last.clientTools ?? [] : []
}

/** The records of the open run, its start first, or nothing. */
const openIn = (records: List): List => {
  const own = records.slice(records.findLastIndex(isOpening))
  const isOver = own.some(({ _tag }) => _tag === "RunEnded" || _tag === "Opened")
  return startIn(records) === undefined || isOver ? [] : own
}

const isFailure = (record: Journal.Record): boolean =>
  record._tag === "AttemptFailed" && record.toolCallId === undefined ||
  record._tag === "RunEnded" && record.haltedReason === undefined

/** Number of times in a row that a run failed, since the last whole step. */
const failuresIn = (records: List): number =>
  since(records, (record) =>
    record._tag === "StepCompleted" || record._tag === "Opened" ||
    record._tag === "RunEnded" && record.haltedReason !== undefined).filter(isFailure).length

/** Number of times that another process resumed the open run. */
const resumptionsIn = (open: List): number => {
  const names = open.flatMap((record) => record._tag === "RunStarted" ? [record.processName] : [])
  return names.filter((name, index) => index > 0 && (name === undefined || name !== names[index - 1])).length
}

const tokensOf = (records: List): number =>
  records.reduce((sum, record) => {
    const used = record._tag === "CallEnded" || record._tag === "CallWaits" ? record.nestedUsage : undefined
    return sum + (used?.inputTokens ?? 0)
  }, 0)

const spentIn = (records: List): number =>
  records.reduce((sum, record) => sum + ("nestedSpent" in record ? record.nestedSpent?.inputTokens ?? 0 : 0), 0)

const runIn = (open: List) => {
  const [start] = open
  if (start?._tag !== "RunStarted") return undefined
  const names = open.flatMap((record) => record._tag === "RunStarted" ? [record.processName] : [])
  return {
    requestId: start.requestId,
    startedAt: start.startedAt,
    deadlineAt: start.deadlineAt,
    versions: start.versions ?? {},
    taken: start.takes?.id,
    resumptions: resumptionsIn(open),
    processName: names.at(-1),
    hasStarted: open.some(({ _tag }) => _tag === "CallStarted"),
    steps: open.filter(({ _tag }) => _tag === "StepCompleted").length,
    nestedSpent: spentIn(open),
    nestedTokens: tokensOf(since(open, ({ _tag }) => _tag === "StepCompleted")),
    settlements: open.flatMap((record) => record._tag === "CallSettled" ? [record.id] : []),
    ...preparedIn(open)
  }
}

const isStep = ({ _tag }: Journal.Record): boolean => _tag === "StepCompleted"

const notesOf = (records: List): Records.StepPrepared["notes"] =>
  Object.assign(
    {},
    ...records.map((record) => record._tag === "StepPrepared" || record._tag === "StepCompleted" ? record.notes : {})
  ) as Records.StepPrepared["notes"]

/** What rules have said of the step in progress, and of the whole steps. */
const preparedIn = (open: List) => {
  const prepared = since(open, isStep).flatMap((record) => record._tag === "StepPrepared" ? [record] : [])
  return {
    noted: notesOf(prepared),
    notes: open.flatMap((record, index) =>
      isStep(record) ? [notesOf([...since(open.slice(0, index), isStep), record])] : []
    ),
    introduced: prepared.reduce((sum, { messages = [] }) => sum + messages.length, 0),
    attempt: prepared.at(-1)?.attempt ?? 0,
    spentTokens: prepared.findLast(({ spent }) => spent !== undefined)?.spent?.inputTokens ?? 0
  }
}

/** The notes that rules keep for the session. */
const notesKeptIn = (records: List): Records.RunEnded["kept"] => {
  const last = records.findLast((record) =>
    record._tag === "Opened" || record._tag === "RunEnded" && record.kept !== undefined
  )
  return last?._tag === "Opened" || last?._tag === "RunEnded" ? last.kept ?? {} : {}
}

/** The tools whose approvals are remembered: those that were given in an open run count at its end. */
const allowedIn = (records: List): ReadonlyArray<string> => {
  let [allowed, pending]: [ReadonlyArray<string>, ReadonlyMap<string, boolean>] = [[], new Map()]
  const count = () => {
    allowed = [...allowed, ...Array.from(pending).flatMap(([id, isRemembered]) => isRemembered ? [id.slice(0, 1)] : [])]
    pending = new Map()
  }
  for (const [index, record] of records.entries()) {
    if (record._tag === "Opened") allowed = (record.session.allowed ?? []).map(({ name }) => name)
    if (record._tag === "ToolDisallowed") {
      allowed = allowed.filter((name) => name !== record.name)
      pending = new Map(Array.from(pending, ([id, is]) => [id, is && id.slice(0, 1) !== record.name]))
    }
    if (record._tag === "CallSettled" && !pending.has(record.id)) {
      const waits = records.slice(0, index).findLast((other) =>
        other._tag === "CallWaits" && other.toolCallId === record.id
      )
      const isAsked = waits?._tag === "CallWaits" && waits.suspensions[0]?.remember !== undefined
      const isRemembered = isAsked && record.answer._tag === "Approved" && record.remember !== undefined
      pending = new Map(pending).set(record.id, isRemembered)
    }
    // A further reply of the run begins another turn, and a step with messages of its own replaces one: nothing of the
    // turn before waits any more.
    const isReplaced = record._tag === "ReplyReceived" ||
      record._tag === "StepCompleted" && record.messages !== undefined
    if (isReplaced) pending = new Map(Array.from(pending.keys(), (id) => [id, false]))
    // What waited in the turn of a run that is given back waits no more.
    const before = records.slice(0, index)
    if (isGivenBack(before, record)) {
      const waits = openIn(before).flatMap((other) => other._tag === "CallWaits" ? [other.toolCallId] : [])
      pending = new Map(Array.from(pending, ([id, is]) => [id, is && !waits.includes(id)]))
    }
    if (openIn(records.slice(0, index + 1)).length === 0) count()
  }
  return Array.from(new Set(allowed)).toSorted()
}

/** Tells whether the run that a record ends gives back what it took: no call has started, and no step is whole. */
const isGivenBack = (before: List, end: Journal.Record): boolean =>
  end._tag === "RunEnded" && end.haltedReason === undefined &&
  !openIn(before).some(({ _tag }) => _tag === "CallStarted" || _tag === "StepCompleted")

const becameOf = ({ haltedReason, status }: Records.RunEnded): string => {
  if (haltedReason === "abandoned") return "withdrawn"
  if (haltedReason === undefined || status === "error") return "failed"
  return status === "stopped" ? "stopped" : "completed"
}

/** Every command of the journal, with its outcome, by the time of its last change. Nothing is ever dropped. */
export const commandsIn = (given: List): ReadonlyMap<string, string> => {
  const records = fittingIn(given)
  const commands = new Map<string, string>()
  const note = (id: string, became: string) => {
    commands.delete(id)
    commands.set(id, became)
  }
  const inner = innerFatesIn(records)
  const settle = (record: Journal.Record, index: number) => {
    const before = records.slice(0, index)
    const refuse = (records: List) => {
      for (const id of openRefusable(records)) note(id, "refused")
    }
    if (record._tag === "MessageSubmitted") {
      note(record.id, "queued")
      if (record.otherwise === "refuse" && openIn(before).length === 0) note(record.id, "refused")
    }
    if (record._tag === "MessageWithdrawn" && inboxIn(before).includes(record.id)) note(record.id, "withdrawn")
    if (record._tag === "StepPrepared") {
      for (const id of record.delivered ?? []) if (inboxIn(before).includes(id)) note(id, "delivered")
    }
    if (record._tag === "StopRequested") note(record.id, "taken")
    if (record._tag === "CallSettled" && record.command !== undefined) note(record.command.id, "completed")
    if (isOpening(record) && record.takes !== undefined) note(record.takes.id, "taken")
    if (record._tag !== "RunEnded") return
    const open = openIn(before)
    const taken = startIn(open)?.takes?.id
    const stop = open.find((record) => record._tag === "StopRequested" && record.call === undefined)
    const isSubmitted = before.some((other) => other._tag === "MessageSubmitted" && other.id === taken)
    if (taken !== undefined && !isGivenBack(before, record)) note(taken, becameOf(record))
    else if (taken !== undefined && isSubmitted) note(taken, "queued")
    else if (taken !== undefined) commands.delete(taken)
    if (stop?._tag === "StopRequested") note(stop.id, "completed")
    for (const record of open) {
      if (record._tag === "StopRequested" && record.call !== undefined) note(record.id, "completed")
    }
    refuse(before)
  }
  for (const [index, record] of records.entries()) {
    settle(record, index)
    for (const { at, became, id } of inner) if (at === index) note(id, became ?? "queued")
  }
  return commands
}

/** A message for a run inside a call, with the place of the record that brings its outcome. */
interface InnerFate {
  readonly id: string
  readonly at: number
  readonly became: string | undefined
}

/**
 * The messages for runs inside calls, each with its outcome, and the place of the record that brings it. Such a message
 * is lost where the run has ended, or where its call is answered before another journal has it. The open calls are those
 * of the fold, which has laws of its own for them.
 */
const innerFatesIn = (records: List): ReadonlyArray<InnerFate> => {
  if (!records.some((record) => record._tag === "MessageSubmitted" && record.to !== undefined)) return []
  const state = States.initial()
  const openCalls = records.map((record) => {
    States.apply(state, record)
    return state.run === undefined
      ? undefined
      : new Set(Array.from(state.turn?.calls ?? []).flatMap(([id, { _tag }]) => _tag === "Answered" ? [] : [id]))
  })
  return records.flatMap((record, first): ReadonlyArray<InnerFate> => {
    if (record._tag !== "MessageSubmitted" || record.to === undefined) return []
    const { id, to } = record
    let isPassedOn = false
    for (let at = first; at < records.length; at++) {
      const next = records[at]!
      const isOwn = at > first && "id" in next && next.id === id
      if (isOwn && next._tag === "MessageSettled") return [{ id, at, became: next.fate.became }]
      if (isOwn && next._tag === "MessageWithdrawn" && !isPassedOn) return [{ id, at, became: "withdrawn" }]
      isPassedOn ||= isOwn && next._tag === "MessageForwarded"
      const open = openCalls[at]
      if (open === undefined || !isPassedOn && !open.has(to)) return [{ id, at, became: "refused" }]
    }
    return [{ id, at: -1, became: undefined }]
  })
}

/** The messages that the end of a run refuses. */
const openRefusable = (before: List): ReadonlyArray<string> => {
  if (!before.some((record) => record._tag === "MessageSubmitted" && record.otherwise === "refuse")) return []
  const open = new Set(inboxIn(before))
  return before.flatMap((record) =>
    record._tag === "MessageSubmitted" && record.otherwise === "refuse" && open.has(record.id) ? [record.id] : []
  )
}

/** The messages that no run takes any more: they were delivered or withdrawn, or the end of a run has refused them. */
const resolvedIn = (records: List): ReadonlySet<string> =>
  new Set(records.flatMap((record, index) => {
    if (record._tag === "MessageWithdrawn") return [record.id]
    if (record._tag === "StepPrepared") return record.delivered ?? []
    if (record._tag !== "MessageSubmitted" || record.otherwise !== "refuse") return []
    const isLate = openIn(records.slice(0, index)).length === 0
    return isLate || records.slice(index).some(({ _tag }) => _tag === "RunEnded") ? [record.id] : []
  }))

/** The ids of the submitted messages that no run has taken, oldest first. */
const inboxIn = (records: List): ReadonlyArray<string> => {
  const kept = records.filter((record, index) => {
    if (!isOpening(record)) return true
    const end = records.findIndex((other, at) => at > index && other._tag === "RunEnded")
    return end < 0 || !isGivenBack(records.slice(0, end), records[end]!)
  })
  const taken = new Set(kept.flatMap((record) => isOpening(record) ? [record.takes?.id] : []))
  const resolved = resolvedIn(records)
  return records.flatMap((record) =>
    record._tag === "MessageSubmitted" && record.to === undefined && !taken.has(record.id) && !resolved.has(record.id)
      ? [record.id]
      : []
  )
}

const bytesOf = (record: Journal.Record): number => {
  const { after: _, ...own } = { after: undefined, ...record }
  const isEmpty = (member: unknown) =>
    typeof member === "object" && member !== null && !Array.isArray(member) && Object.keys(member).length === 0
  return new TextEncoder().encode(JSON.stringify(own, (_, member: unknown) => isEmpty(member) ? undefined : member))
    .length
}

const sizeIn = (records: List) => {
  const own = records.slice(records.findLastIndex(({ _tag }) => _tag === "Opened"))
  const [first] = own
  const replies = first?._tag === "Opened"
    ? first.session.thread.messages.filter(({ askUser, role }) => role === "assistant" && askUser !== true).length
    : 0
  return {
    bytes: own.reduce((sum, record) => sum + bytesOf(record), 0),
    turns: replies + own.filter(({ _tag }) => _tag === "StepCompleted").length
  }
}

const lastRunIn = (records: List): Records.LastRun | undefined => {
  const last = records.findLast(({ _tag }) => _tag === "RunEnded" || _tag === "Opened")
  if (last?._tag === "Opened") return last.lastRun
  if (last?._tag !== "RunEnded" || last.haltedReason === "") return undefined
  const { error, haltedReason = "error", metadata, rule, status } = last
  if (rule !== undefined) return { outcome: haltedReason, rule }
  if (error !== undefined) return { outcome: haltedReason, error }
  if (status !== "error") return { outcome: haltedReason }
  // The message is the drawn one: an error without a `_tag` has the reason of the run.
  return {
    outcome: haltedReason,
    error: { reason: haltedReason, detail: (metadata?.["error"] as Error | undefined)?.message ?? "" }
  }
}

const originIn = (records: List): Records.Origin => {
  const last = records.findLast(({ _tag }) => _tag === "Opened")
  if (last?._tag !== "Opened") return {}
  const { agent, forkedFrom, metadata, principal } = last
  return JSON.parse(JSON.stringify({ principal, agent, metadata, forkedFrom })) as Records.Origin
}

/** The labels: what the last record that has one says of it, also before a snapshot. */
const labelsIn = (records: List): Records.Labels => {
  const changes = records.flatMap((record) => record._tag === "Labelled" ? [record] : [])
  const title = changes.findLast((change) => "title" in change)?.title ?? undefined
  const isPinned = changes.findLast((change) => "pinned" in change)?.pinned === true
  return { ...(title === undefined ? {} : { title }), ...(isPinned ? { pinned: true } : {}) }
}

/** Tells whether the last record ends a run that keeps what it has taken, and no verdict arrived during the run. */
export const endsUnsettled = (given: List): boolean => {
  const records = fittingIn(given)
  const last = records.at(-1)
  const before = records.slice(0, -1)
  return last?._tag === "RunEnded" && last === given.at(-1) && !isGivenBack(before, last) &&
    !openIn(before).some(({ _tag }) => _tag === "CallSettled")
}

/** What the records say of the session, each value by its definition. */
export const keptIn = (given: List) => {
  const records = fittingIn(given)
  const open = openIn(records)
  const sinceOpened = since(records, ({ _tag }) => _tag === "Opened")
  const last = sinceOpened.findLast(({ _tag }) => _tag === "RunStarted")
  const start = startIn(sinceOpened)
  const ended = open.length > 0 ? undefined : sinceOpened.findLast(({ _tag }) => _tag === "RunEnded")
  const stop = open.find((record) => record._tag === "StopRequested" && record.call === undefined)
  return {
    failures: failuresIn(records),
    run: runIn(open),
    ended: ended?._tag === "RunEnded" ? ended.requestId : undefined,
    lastRun: lastRunIn(records),
    notesKept: notesKeptIn(records),
    parent: start?.parent?.id,
    span: last?._tag === "RunStarted" ? last.span?.spanId : undefined,
    origin: originIn(records),
    labels: labelsIn(records),
    clientTools: clientToolsIn(records).map(({ name }) => name),
    inbox: inboxIn(records),
    inside: innerFatesIn(records).flatMap(({ became, id }) => became === undefined ? [id] : []),
    allowed: allowedIn(records),
    stop: stop?._tag === "StopRequested" ? stop.id : undefined,
    size: sizeIn(given)
  }
}

/** What the state of the library says of it. */
export const shownBy = (state: States.State): ReturnType<typeof keptIn> => ({
  failures: state.failures,
  run: state.run && {
    requestId: state.run.requestId,
    startedAt: state.run.startedAt,
    deadlineAt: state.run.deadlineAt,
    versions: state.run.versions,
    taken: state.run.taken?.id,
    resumptions: state.run.resumptions,
    processName: state.run.processName,
    hasStarted: state.run.hasStarted,
    steps: state.run.steps.length,
    nestedSpent: state.run.nestedSpent.inputTokens,
    nestedTokens: state.run.nestedUsage?.inputTokens ?? 0,
    settlements: state.run.settlements.map(({ id }) => id),
    noted: state.run.noted,
    notes: state.run.steps.map(({ notes }) => notes),
    introduced: state.run.introduced,
    attempt: state.run.attempt,
    spentTokens: state.run.spent?.inputTokens ?? 0
  },
  ended: state.ended?.requestId,
  lastRun: state.lastRun,
  notesKept: state.kept,
  parent: state.parent?.id,
  span: state.span?.spanId,
  allowed: Array.from(new Set(state.allowed.map(({ name }) => name))).toSorted(),
  origin: state.origin,
  labels: state.labels,
  clientTools: state.clientTools.map(({ name }) => name),
  inbox: state.inbox.map(({ id }) => id),
  inside: state.inside.map(({ message }) => message.id),
  stop: state.stop?.id,
  size: state.size
})

const lineOf = (message: Message.Message | undefined): string | undefined => {
  const line = message === undefined ? "" : Message.text(message).replaceAll(/\s+/g, " ").trim()
  return line.slice(0, 120) || undefined
}

/** The records of an open run without the replies that were discarded. */
const countedIn = (open: List): List =>
  open.filter((record, index) =>
    record._tag !== "ReplyReceived" ||
    open.slice(index).find((other) => other._tag === "StepPrepared" || isStep(other))?._tag !== "StepPrepared"
  )

/** The messages that start an open run, those of rules, and those of its replies. */
const saidIn = (open: List): ReadonlyArray<Message.Message> =>
  countedIn(open).flatMap((record) => {
    if (isOpening(record)) return record.messages
    if (record._tag === "StepPrepared") return record.messages ?? []
    const response = record._tag === "ReplyReceived" || record._tag === "StepCompleted" ? record.response : undefined
    return response?.message == null ? [] : [response.message]
  })

/** The summary of a session by its definition: from the session as programs see it, and from the records. */
export const summaryIn = (records: List, session: Session.Session, next: Journal.Next): Journal.Summary => {
  const { inbox, labels, lastRun, origin, run } = keptIn(records)
  const submitted = records.find((record) => record._tag === "MessageSubmitted" && record.id === inbox[0])
  const waiting = submitted?._tag === "MessageSubmitted" ? submitted.message : undefined
  // The session does not contain what an open run has said and read since its last whole step.
  const messages = [...session.thread.messages, ...saidIn(openIn(fittingIn(records)))]
  const said = messages.filter((message) => message.role !== "tool" && lineOf(message) !== undefined)
  const times = session.suspensions.flatMap(({ expiresAt }) => expiresAt === undefined ? [] : [expiresAt])
  const summary = {
    next,
    status: session.status,
    resumptions: run?.resumptions,
    expiresAt: next === "wait" && times.length > 0 ? Math.min(...times) : undefined,
    lastOutcome: lastRun?.outcome,
    error: lastRun?.error,
    title: labels.title ?? lineOf(messages.find(({ role }) => role === "user") ?? waiting),
    pinned: labels.pinned,
    lastLine: lineOf(said.at(-1) ?? waiting),
    agent: origin.agent,
    forkedFrom: origin.forkedFrom
  }
  return JSON.parse(JSON.stringify(summary)) as Journal.Summary
}
