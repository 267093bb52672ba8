/**
 * A server's sessions as changed by its clients. A body takes effect as a whole or not at all: all its requests are
 * checked before anything is written, and repeated writes count once.
 */
import * as Clock from "effect/Clock"
import * as DateTime from "effect/DateTime"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import * as Worker from "../../durable/Worker.ts"
import type * as Event from "../../Event.ts"
import * as CallPaths from "../../internal/answer/callPath.ts"
import { describeMisfits } from "../../internal/declare/schema.ts"
import * as Journal from "../../Journal.ts"
import type * as Message from "../../Message.ts"
import * as Session from "../../Session.ts"
import type * as Tool from "../../Tool.ts"
import type * as Body from "../../ui/Body.ts"
import * as Posted from "../../ui/internal/posted.ts"
import type * as Bounds from "./bounds.ts"
import * as JournalEvents from "./journalEvents.ts"
import type * as Logs from "./log.ts"
import type * as Reading from "./reading.ts"
import * as Refusals from "./refusal.ts"

/** A session named by a request. */
export interface Named {
  /** Agent name. */
  readonly agent: string
  /** Session id, without its principal. */
  readonly id: string
  /** Id in the store. */
  readonly key: string
  /** Principal owning the session. */
  readonly principal: string
  /** Requesting principal. */
  readonly by: string
}

/** Returns the key prefix of a principal's sessions. */
export const prefixOf = (principal: string): string => `${encodeURIComponent(principal)}:`

/** Returns the session id in a key. */
export const idOf = (key: string): string => key.slice(key.indexOf(":") + 1)

const idPattern = /^[A-Za-z0-9_-]{1,128}$/

/** Tells whether a text is a valid session id. */
export const isId = (id: string): boolean => idPattern.test(id)

/** Refuses invalid session ids. */
export const checkId = (id: string): Effect.Effect<string, Refusals.Refusal> =>
  isId(id)
    ? Effect.succeed(id)
    : Refusals.badRequest("invalid_session_id", "A session id must have 1 to 128 letters, digits, _ and -.")

/** A session as read from its journal. */
export interface Read {
  readonly kept: Session.Kept
  readonly telling: JournalEvents.Telling
}

/** Reads a session. Refuses a session not existing or belonging to another agent. */
export const read = (
  { agent, key }: Pick<Named, "agent" | "key">,
  publish: Event.PublicOptions = {}
): Effect.Effect<Read, Refusals.Refusal | Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    const telling = yield* JournalEvents.read(key, publish)
    const { kept } = telling
    if (kept.version === 0 || kept.origin.agent !== agent) return yield* Refusals.unknownSession()
    return { kept, telling }
  })

// Messages.

/** Parts of a body with a message. */
interface Saying {
  readonly message: Pick<Body.Say, "content" | "id">
  readonly clientTools: Journal.ClientTools
  readonly isQueued: boolean
  readonly bounds: Pick<Required<Bounds.Bounds>, "sessionBytes" | "sessionTurns" | "sessions">
  /** Keys of sessions being created by this process. */
  readonly opening: Set<string>
  /** Message destination, if named by its body or the server. */
  readonly into?: Into | undefined
}

/** Destination of a message, as for `Session.submit`. */
export type Into = Pick<Session.SubmitOptions, "mode" | "otherwise" | "to">

const idTaken = Refusals.conflict("id_taken", "Something else was sent under this id. Send this under a new id.")
const running = Refusals.conflict(
  "running",
  "The session has a run under way. Wait for the end of the run, or stop the run."
)
const waits = Refusals.conflict("waits_for_answers", "The session's calls wait for answers. Answer them first.")

/** Returns the refusal for a message no run takes. */
const noRun = (reason: string | undefined): Refusals.Refusal =>
  Refusals.conflict("refused", `No run takes the message: ${reason}.`)

/** Returns the refusal for a message to a session at its limits. */
const fullOf = (
  { size: { bytes, turns } }: Session.View,
  { sessionBytes, sessionTurns }: Pick<Required<Bounds.Bounds>, "sessionBytes" | "sessionTurns">
): Refusals.Refusal | undefined => {
  const left = "Begin a new session. This one can be read, answered and deleted."
  if (turns >= sessionTurns) {
    return Refusals.tooLarge("session_full", `The session is full: it may have ${sessionTurns} turns. ${left}`)
  }
  return bytes >= sessionBytes
    ? Refusals.tooLarge("session_full", `The session is full: it may have ${sessionBytes} bytes. ${left}`)
    : undefined
}

/** Appends a message for a run, creating the session for its first message, and returns the message id. */
export const say = (
  { agent, by, key, principal }: Named,
  known: Read | undefined,
  { clientTools, into = {}, isQueued, message: { content, id }, bounds, opening }: Saying
): Effect.Effect<string, Refusals.Refusal | Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    // Takes the first of several simultaneous messages: the others find it when they are written.
    const check = (kept: Session.Kept | undefined) => {
      if (kept === undefined) {
        if (known !== undefined) return Refusals.unknownSession()
        // A message only for a current run creates no session.
        return into.otherwise === "refuse" || into.to !== undefined ? noRun("finished") : Effect.void
      }
      if (kept.origin.agent !== agent) return Refusals.unknownSession()
      const isSteering = kept.interrupted !== undefined && (into.mode ?? "next") !== "next"
      if (kept.session.suspensions.length > 0 && !isSteering) return waits
      const full = fullOf(Session.view(kept), bounds)
      if (full !== undefined) return full
      return isQueued || !Session.isUnfinished(kept) ? Effect.void : running
    }
    const submitted = Effect.catchTag(
      Session.submit(key, content, {
        by,
        id,
        clientTools,
        check,
        ...into,
        ...(known === undefined ? { origin: { principal, agent } } : { known: known.kept })
      }),
      "SessionError",
      () => idTaken
    )
    if (known !== undefined) return (yield* submitted).id
    return (yield* creating({ key, principal }, { bounds, opening }, submitted)).id
  })

/**
 * Returns the run of a message that may join a current run: by its id a run begun by another message, or else the run
 * begun by the message. For a message to a run inside a call, returns the outer run. Refuses if the message was
 * refused.
 */
export const runOf = (
  { key }: Named,
  id: string,
  { mode = "next", to }: Into
): Effect.Effect<
  { readonly runId: string } | { readonly takes: string },
  Refusals.Refusal | Journal.StoreError,
  Session.Store
> =>
  Effect.gen(function*() {
    const kept = yield* Session.load(key)
    const receipt = kept && Session.receipt(kept, id)
    if (receipt?.became === "refused") {
      return yield* noRun(receipt.reason)
    }
    const around = kept?.interrupted?.requestId ?? (kept && Session.view(kept).lastRun?.requestId)
    if (to !== undefined && around !== undefined) return { runId: around }
    const underWay = receipt?.became === "queued" && mode !== "next" ? kept?.interrupted?.requestId : undefined
    const runId = receipt?.became === "delivered" ? receipt.requestId : underWay
    return runId === undefined ? { takes: id } : { runId }
  })

export const noSuchMessage = Refusals.notFound("unknown_message", "The session has no message with this id.")

/** Message outcome for clients: without the run's failure, which its events report. */
type Fate = Pick<Journal.Receipt, "became" | "id" | "reason" | "stepIndex"> & { readonly runId?: string }

/** Returns the outcome of a message. Refuses an id unknown among the session's messages. */
export const fate = (
  { kept }: Read,
  id: string
): Effect.Effect<Fate, Refusals.Refusal> => {
  const receipt = Session.receipt(kept, id)
  const isOther = receipt?.verdict !== undefined || receipt?.isStop === true
  if (receipt === undefined || isOther) return Effect.fail(noSuchMessage)
  const { became, reason, requestId: runId, stepIndex } = receipt
  return Effect.succeed({
    id,
    became,
    ...(runId === undefined ? {} : { runId }),
    ...(stepIndex === undefined ? {} : { stepIndex }),
    ...(reason === undefined ? {} : { reason })
  })
}

/** Creates a session, unless its principal has reached the limit. */
const creating = <A, E>(
  { key, principal }: Pick<Named, "key" | "principal">,
  { bounds, opening }: Pick<Saying, "bounds" | "opening">,
  create: Effect.Effect<A, E, Session.Store>
): Effect.Effect<A, E | Refusals.Refusal | Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const prefix = prefixOf(principal)
    opening.add(key)
    const opened = Effect.gen(function*() {
      const listed = yield* Stream.runCollect(Stream.take(store.list({ prefix }), bounds.sessions))
      const keys = new Set(listed.map((each) => each.id))
      for (const other of opening) if (other !== key && other.startsWith(prefix)) keys.add(other)
      if (keys.size < bounds.sessions || keys.has(key)) return yield* create
      return yield* Refusals.tooMany(
        "too_many_sessions",
        `There are ${bounds.sessions} sessions. Delete a session first.`
      )
    })
    return yield* Effect.ensuring(opened, Effect.sync(() => opening.delete(key)))
  })

// Branches.

/** Parts of a body requesting a branch. */
export interface Forking extends Pick<Saying, "bounds" | "clientTools" | "opening"> {
  /** The new session begins before the message with this id. */
  readonly before: string
  /** Content of the message continuing the branch. Absent if the branch only begins. */
  readonly content?: Body.Say["content"]
}

const noMessage = Refusals.notFound(
  "unknown_message",
  "before: The session has no user message with this id that began a run."
)
const forkTaken = Refusals.conflict(
  "id_taken",
  "id: Another session or another branch has this id. Give a new id."
)

const tooLargeToCopy = Refusals.tooLarge(
  "fork_too_large",
  "before: The conversation before this message is too large to be copied."
)

const forkFailures: Readonly<Record<string, Refusals.Refusal>> = {
  unknown_message: noMessage,
  id_taken: forkTaken,
  nested: noMessage
}

/** Decodes the ids of messages without a client's id: their positions in the conversation. */
const placeOf = (id: string): number | undefined => {
  const [, place] = /^message-(\d{1,9})$/.exec(id) ?? []
  return place === undefined ? undefined : Number(place)
}

/** Begins a session with another session's conversation before one of its messages. */
export const fork = (
  { key: from }: Named,
  known: Read,
  named: Named,
  { before, bounds, clientTools, content, opening }: Forking
): Effect.Effect<Session.Forked, Refusals.Refusal | Journal.StoreError, Session.Store> => {
  const forked = (before: string | number) =>
    Session.fork(from, {
      id: named.key,
      before,
      ...(content === undefined ? {} : { message: { id: named.id, content, by: named.by, clientTools } }),
      check: (kept) => fullOf(Session.view(kept), bounds) ?? Effect.void
    })
  const place = placeOf(before)
  const branched = Effect.catchTag(
    forked(before),
    "SessionError",
    (error) => error.reason === "unknown_message" && place !== undefined ? forked(place) : Effect.fail(error)
  )
  return creating(named, { bounds, opening }, branched).pipe(
    Effect.catchTags({
      SessionError: ({ reason }) =>
        forkFailures[reason] ?? (known.kept.session.suspensions.length > 0 ? waits : running),
      StoreError: (error): Effect.Effect<never, Refusals.Refusal | Journal.StoreError> =>
        error.reason === "too_large" && error.record === "Opened" ? tooLargeToCopy : Effect.fail(error)
    })
  )
}

/** A session branched from another. */
export interface Fork {
  readonly id: string
  /** The session branched before the message with this id. */
  readonly message: string
}

/** Lists the branches of a session, from the store's data beside the journals. */
export const forksOf = (
  { key, principal }: Pick<Named, "key" | "principal">
): Effect.Effect<ReadonlyArray<Fork>, Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const listed = yield* Stream.runCollect(store.list({ prefix: prefixOf(principal) }))
    return listed.flatMap(({ forkedFrom, id }) =>
      forkedFrom?.id === key ? [{ id: idOf(id), message: forkedFrom.message }] : []
    )
  })

// Retries.

/** Action for a client lacking a reply. */
export type Again = "send" | "follow" | "retry"

const unsupported = (message: string) => Refusals.badRequest("unsupported", message)

/** Refusal of a retry without a failure. */
export const nothingToRetry = Refusals.conflict(
  "nothing_to_retry",
  "The session's last run did not fail, and no run is open."
)

/** Tells whether a session's last run failed, so that a client may retry. */
export const isFailed = ({ kept }: Read): boolean => kept.session.status === "error" && !Session.isUnfinished(kept)

/**
 * Chooses the action for a client asking again. A message that never arrived is sent. The last reply is followed, or
 * retried if its run failed. `messageId` is the client's assistant message.
 */
export const again = (
  known: Read | undefined,
  { isRegeneration, message }: Body.Retry,
  messageId: string | undefined
): Effect.Effect<Again, Refusals.Refusal> =>
  Effect.suspend((): Effect.Effect<Again, Refusals.Refusal> => {
    const receipt = message && known && Session.receipt(known.kept, message.id)
    if (message !== undefined && receipt === undefined) return Effect.succeed("send")
    if (known === undefined) return Refusals.unknownSession()
    if (message !== undefined && receipt?.hash !== Journal.hashOfContent(message.content)) {
      return unsupported("A sent message cannot be edited: send a new message.")
    }
    const { kept, telling } = known
    const isLast = message === undefined ? telling.attempts.has(messageId ?? "") : telling.asked === message.id
    if (isLast && isFailed(known)) return Effect.succeed("retry")
    const isUnderWay = kept.submitted?.some(({ id }) => id === message?.id) === true
      || isLast && Session.isUnfinished(kept)
    // A client with only a message may have lost all of its reply: the reply comes again, whatever its outcome.
    if (isUnderWay || message !== undefined && !isRegeneration) return Effect.succeed("follow")
    if (kept.session.suspensions.length > 0) return waits
    return isRegeneration
      ? unsupported("A whole reply cannot be generated again: send a new message.")
      : nothingToRetry
  })

/** Retries a session's failed last run, and waits until the new run has begun. */
export const retry = (
  { key }: Named,
  { kept }: Read
): Effect.Effect<void, Refusals.Refusal | Journal.StoreError, Session.Store | Worker.Worker> =>
  Effect.gen(function*() {
    const worker = yield* Worker.Worker
    const { lastRun } = Session.view(kept)
    // The failed run's claim may not be released yet, here or in another process.
    for (let pause = 0; pause < mostPauses; pause++) {
      yield* worker.take(key, lastRun?.requestId ?? "")
      const now = yield* Session.load(key)
      if (now === undefined) return yield* Refusals.unknownSession()
      // An answered retry is in the journal: it survives this process.
      if (now.interrupted !== undefined || Session.view(now).lastRun?.requestId !== lastRun?.requestId) return
      yield* Effect.sleep(pauseMillis)
    }
    return yield* new Refusals.Refusal({
      status: 503,
      code: "busy",
      message: "The session is still held by its last run. Try again."
    })
  })

const pauseMillis = 25
const mostPauses = 400

// Answers.

type Verdict = Exclude<Body.Action, Body.Say | Body.Retry>

/** A verdict from a body, and its waiting call. */
interface Settled {
  readonly verdict: Verdict
  readonly id: string
  /** Command naming the wait: if the call waits again, its answer has another command. */
  readonly command: string
  /** The waiting call, or the refusal of an answer not given before. */
  readonly waiting: Event.Suspension | Refusals.Refusal
}

/** Maximum id length in a refusal, and maximum number of ids. */
const [longestShown, mostShown] = [200, 10]

/** Names the published waiting calls. */
const openIn = ({ kept }: Read, publish: Event.PublicOptions): string => {
  const open = JournalEvents.suspensionsOf(kept, publish)
  const ids = open.slice(0, mostShown).map(({ id }) =>
    JSON.stringify(id.length > longestShown ? `${id.slice(0, longestShown)}…` : id)
  )
  if (ids.length === 0) return "No call waits."
  return `These wait: ${ids.join(", ")}${open.length > mostShown ? ", …" : ""}.`
}

const timeOf = (at: number | undefined): string =>
  Option.match(at === undefined ? Option.none() : DateTime.make(at), {
    onNone: () => "before",
    onSome: (time) => `at ${DateTime.formatIso(time)}`
  })

/** Returns the refusals of answers to a session, each stating the existing verdict and the waiting calls. */
const refusalsOf = (current: Read, publish: Event.PublicOptions) => {
  const open = openIn(current, publish)
  return {
    stale: Refusals.conflict("not_waiting", `Nothing waits for this answer. ${open}`),
    answered: ({ at, verdict = "answered" }: Standing): Refusals.Refusal =>
      verdict === "expired"
        ? Refusals.conflict("expired", `The time for this answer is up: the call expired ${timeOf(at)}. ${open}`)
        : Refusals.conflict("already_answered", `The call was ${verdict} ${timeOf(at)}, and that stands. ${open}`),
    expired: ({ expiresAt }: Event.Suspension): Refusals.Refusal =>
      Refusals.conflict("expired", `The time for this answer is up: the call expired ${timeOf(expiresAt)}. ${open}`),
    wrongKind: (suspension: Event.Suspension): Refusals.Refusal =>
      Refusals.conflict(
        "wrong_kind",
        `The call waits for ${isPermission(suspension) ? "an approval or a denial" : "a value or an error"}. ${open}`
      )
  }
}

type Refused = ReturnType<typeof refusalsOf>

/** The existing verdict, and its time. */
type Standing = Partial<Omit<Session.Settled, "id">>

/** Returns the refusal of results without a waiting call: the server may have answered these calls itself. */
export const unasked = (current: Read, publish: Event.PublicOptions): Refusals.Refusal =>
  Refusals.conflict("not_waiting", `Nothing waits for these answers. ${openIn(current, publish)}`)

/**
 * Finds the subject of a verdict. Returns `undefined` for the result of a call answered by the server itself: clients
 * post all calls' results again.
 */
const find = (
  { telling }: Read,
  { calls, receipts, waiting: suspensions, waitingSince }: Session.View,
  verdict: Verdict,
  refused: Refused,
  now: number
): Effect.Effect<Settled | undefined, Refusals.Refusal> =>
  Effect.suspend((): Effect.Effect<Settled | undefined, Refusals.Refusal> => {
    const { stale } = refused
    const { messageId } = verdict as Body.Answer
    const given = CallPaths.parse(verdict.id)
    // AG-UI clients post a result under the call id. If a client keeps a discarded call, its id also names a message.
    const isOwn = calls.some(({ toolCall }) => toolCall.id === verdict.id) || given?.run === undefined
    const named = messageId === undefined
      ? given
      : { run: CallPaths.runOfReply(messageId), path: isOwn ? [verdict.id] : given.path }
    if (named?.run === undefined) return stale
    const id = CallPaths.format({ path: named.path })
    const suspension = named.run === (waitingSince ?? "") ? suspensions.find((open) => open.id === id) : undefined
    const command = `${Posted.ownIds}answer:${CallPaths.format(named)}`
    const before = receipts.get(command)
    if (messageId !== undefined && suspension?.kind !== "manual" && before === undefined) {
      return Effect.succeed(undefined)
    }
    // An answer from elsewhere, such as the command line, has no such command.
    const standing = before ?? telling.verdictOf(CallPaths.format(named))
    const refusal = before !== undefined || suspension === undefined
      ? standing && refused.answered(standing)
      : refusalIn(suspension, verdict, refused, now)
    return Effect.succeed({ verdict, id, command, waiting: refusal ?? suspension ?? stale })
  })

/** Returns the refusal for a late answer or one of the wrong kind. */
const refusalIn = (
  suspension: Event.Suspension,
  verdict: Verdict,
  refused: Refused,
  now: number
): Refusals.Refusal | undefined => {
  const { expiresAt = Infinity, kind } = suspension
  const isFitting = verdict._tag === "Answer"
    ? kind !== "approval"
    : isPermission(suspension) || verdict._tag === "Deny" && verdict.isCancelled === true
  if (expiresAt <= now) return refused.expired(suspension)
  if (!isFitting) return refused.wrongKind(suspension)
  return verdict._tag === "Approve" && !isRememberable(suspension, verdict) ? notRememberable : undefined
}

/** Tells whether an approval may be remembered to the requested extent, if any. */
const isRememberable = ({ path, remember }: Event.Suspension, { remember: wanted }: Body.Approve): boolean =>
  wanted === undefined || path === undefined && (remember?.scope === "tool" || remember?.scope === wanted)

const notRememberable = Refusals.conflict(
  "not_rememberable",
  "remember: The call's tool does not allow this approval to be remembered. Approve only the call."
)

/** Tells whether a call waits for permission: to run, or to run again if its effect is unknown. */
const isPermission = ({ kind }: Event.Suspension): boolean => kind === "approval" || kind === "unknown"

/** Tells whether a verdict looks like an answer to a question, or to a client's call. */
const isAnswer = (action: Body.Action): boolean => action._tag === "Answer" || "isCancelled" in action

const isWrite = ({ _tag }: Body.Action): boolean => _tag === "Say" || _tag === "Retry"

/** Returns the actions the verdicts amount to: the caller requests permission for each. */
export const actionsOf = (actions: ReadonlyArray<Body.Action>): ReadonlyArray<"write" | "answer" | "approve"> =>
  Array.from(
    new Set(
      actions.map((action) => isWrite(action) ? "write" : isAnswer(action) ? "answer" : "approve")
    )
  )

const verdictOf = (
  by: string,
  { command, id, verdict }: Settled,
  tools: ReadonlyArray<Tool.Any>
): Session.Verdict => {
  const given = { id, command, by, tools }
  switch (verdict._tag) {
    case "Answer": {
      const value = verdict.error === undefined ? verdict.value : { error: verdict.error }
      return { ...given, answer: { _tag: "Value", value } }
    }
    case "Approve":
      return {
        ...given,
        ...(verdict.remember === undefined ? {} : { remember: verdict.remember }),
        answer: { _tag: "Approved", ...(verdict.edits === undefined ? {} : { arguments: verdict.edits }) }
      }
    case "Deny": {
      const reason = verdict.reason ?? (verdict.isCancelled === true ? "the user gave no answer" : undefined)
      return { ...given, answer: { _tag: "Denied", ...(reason === undefined ? {} : { reason }) } }
    }
  }
}

/** Parts of a body with answers. */
interface Answering {
  readonly verdicts: ReadonlyArray<Verdict>
  /** The body's message, if any. */
  readonly said: Body.Say | undefined
  readonly bounds: Saying["bounds"]
  readonly clientTools: Journal.ClientTools
  readonly isQueued: boolean
  /** Extent to which refusals name waiting calls. */
  readonly publish: Event.PublicOptions
  /** Requests the approval permission, if a body proves to need that permission. */
  readonly mayApprove: Effect.Effect<unknown, Refusals.Refusal>
  /** Returns a session's current tools, for decoding edited arguments. */
  readonly toolsOf: (kept: Session.Kept) => Effect.Effect<ReadonlyArray<Tool.Any>>
}

/** Answers given by a body. */
interface Answers {
  /** Number of answers counted now or before. */
  readonly count: number
  /** The run under way, whose end makes them count. Absent if the answers go to the next run. */
  readonly after?: string
  /** The last run, if it ended before the answers were given. */
  readonly ended?: string
}

/**
 * Gives a body's answers and message in one append, all or nothing. Repeating earlier answers in the same words changes
 * nothing, and neither does repeating an earlier message.
 */
export const answer = (
  named: Named,
  known: Read,
  { bounds, clientTools, isQueued, mayApprove, publish, said, toolsOf, verdicts }: Answering
): Effect.Effect<Answers, Refusals.Refusal | Journal.StoreError, Session.Store> => {
  let tools: ReadonlyArray<Tool.Any> | undefined
  const give = (current: Read) =>
    Effect.gen(function*() {
      const now = yield* Clock.currentTimeMillis
      const { kept } = current
      const view = Session.view(kept)
      const refused = refusalsOf(current, publish)
      const found = yield* Effect.forEach(verdicts, (verdict) => find(current, view, verdict, refused, now))
      const settled = unique(found.filter((each) => each !== undefined))
      // Repeating an answer in the same words writes nothing; in other words it is refused.
      const fresh = settled.filter(({ command }) => !view.receipts.has(command))
      for (const { waiting } of fresh) if (waiting instanceof Refusals.Refusal) return yield* waiting
      // Giving up an approval denies the call, and a result may belong to one of the server's own calls: both need the
      // approval permission.
      const needsMore = ({ verdict, waiting }: Settled) =>
        isAnswer(verdict) && "kind" in waiting && isPermission(waiting)
      if (fresh.some(needsMore)) yield* mayApprove
      const isEdited = fresh.some(({ verdict }) => verdict._tag === "Approve" && verdict.edits !== undefined)
      const known = isEdited ? tools ??= yield* toolsOf(kept) : []
      const settle = (message?: Session.Submission) =>
        Effect.catchTag(
          Session.settle(kept.session, settled.map((each) => verdictOf(named.by, each, known)), message),
          "SessionError",
          (error) => refusalOf(error, refused, settled, view)
        )
      const sent = said && view.receipts.get(said.id)
      if (
        said !== undefined && sent !== undefined && sent.hash !== Journal.hashOfContent(said.content)
      ) return yield* idTaken
      const isNew = said !== undefined && sent === undefined
      if (isNew && !isQueued) return yield* running
      const full = isNew ? fullOf(view, bounds) : undefined
      if (full !== undefined) return yield* full
      if (isNew && (yield* settle()).suspensions.length > 0) return yield* waits
      const message = isNew
        ? { id: said.id, content: said.content, by: named.by, clientTools }
        : undefined
      const { run } = Session.view(yield* Session.keep(kept, () => settle(message)))
      const isLate = run?.settled.some((id) => settled.some((each) => each.id === id)) === true
      const last = run === undefined ? current.telling.runs.at(-1) : undefined
      return {
        count: settled.length,
        ...(run === undefined || !isLate ? {} : { after: run.requestId }),
        ...(last === undefined ? {} : { ended: last })
      }
    })
  return give(known).pipe(
    // Another writer was faster: everything is checked again, and earlier writes count once.
    Effect.catchTag("SessionConflict", () =>
      Effect.retry(Effect.flatMap(read(named), give), {
        while: (error) => error._tag === "SessionConflict",
        times: 50
      })),
    Effect.catchTags({
      SessionConflict: () => overtaken,
      SessionClaimed: () => overtaken
    })
  )
}

/** Removes verdicts repeated in the same words. */
const unique = (settled: ReadonlyArray<Settled>): ReadonlyArray<Settled> => {
  const texts = new Set<string>()
  return settled.filter(({ verdict }) => {
    const text = JSON.stringify(verdict)
    if (texts.has(text)) return false
    texts.add(text)
    return true
  })
}

const overtaken = Refusals.conflict("not_waiting", "Others were faster to answer. Read the session again.")

const twice = Refusals.conflict(
  "already_answered",
  "The body answers a call twice, with different answers. None of its answers was taken."
)

const refusalOf = (
  { metadata, reason }: Session.SessionError,
  refused: Refused,
  settled: ReadonlyArray<Settled>,
  { receipts }: Session.View
): Refusals.Refusal => {
  const [standing] = settled.flatMap(({ command }): Standing | [] => receipts.get(command) ?? [])
  switch (reason) {
    case "invalid_arguments":
      return misfit(settled.find(({ id }) => id === metadata?.["toolCallId"]), metadata?.["issues"] as Issues)
    case "invalid_answer":
      return Refusals.badRequest("invalid_answer", "The answer does not have the requested form.")
    case "expired":
      return refused.answered({ verdict: "expired" })
    case "id_taken":
    case "already_answered":
      return standing === undefined ? twice : refused.answered(standing)
    default:
      return refused.stale
  }
}

type Issues = NonNullable<Refusals.Refusal["about"]>["issues"]

/** Returns the refusal of edited arguments unreadable for the tool. */
const misfit = (settled: Settled | undefined, issues: Issues): Refusals.Refusal =>
  new Refusals.Refusal({
    status: 400,
    code: "invalid_arguments",
    message: `${describeMisfits("arguments", issues)}. Nothing was recorded, and the call still waits.`,
    ...(settled === undefined ? {} : { about: { id: settled.verdict.id, issues } })
  })

// Remembered approvals.

/** A remembered approval, in public form. */
export interface Allowed {
  /** Tool name. */
  readonly name: string
  /** Covered calls: all calls of the tool, or those with the same arguments. */
  readonly remember: "tool" | "arguments"
  /** Covered arguments. Absent if all arguments are covered, or if arguments are not published. */
  readonly arguments?: unknown
  /** Person giving the approval. Absent if not named in the journal. */
  readonly by?: string
  /** Time of the approval, in milliseconds since 1970. Absent if unknown. */
  readonly at?: number
}

/** Returns a session's remembered approvals for published tools. */
export const allowedIn = ({ session }: Session.Kept, publish: Event.PublicOptions): ReadonlyArray<Allowed> =>
  (session.allowed ?? []).flatMap(({ arguments: args, by, id, name, remember, time }) =>
    JournalEvents.published([{ id, name, arguments: args ?? {} } as Message.ToolCall], publish).map((call) => ({
      name,
      remember,
      ...(remember === "arguments" && call.arguments !== undefined ? { arguments: call.arguments } : {}),
      ...(by === undefined ? {} : { by }),
      ...(time === undefined ? {} : { at: time })
    }))
  )

/** Ends a tool's remembered approvals. */
export const disallow = (
  { by, key }: Named,
  tool: string
): Effect.Effect<void, Refusals.Refusal | Journal.StoreError, Session.Store> =>
  Effect.flatMap(Session.disallow(key, tool, { by }), (isEnded) => isEnded ? Effect.void : notAllowed)

const notAllowed = Refusals.notFound("not_allowed", "The session remembers no approval for a tool of this name.")

// Stops.

export const noSuchCall = Refusals.notFound("no_such_call", "The run under way has no unanswered call at this path.")

/** Stops a request's run, and waits for its end: the run taking a message, or the run under way or about to begin. */
export const stopRun = (
  { by, key }: Named,
  wanted: Reading.Wanted
): Effect.Effect<void, Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    for (let pause = 50;; pause = Math.min(2 * pause, 1_000)) {
      const kept = yield* Session.load(key)
      if (kept === undefined) return
      const open = kept.interrupted?.requestId
      if ("after" in wanted && wanted.after === open) return
      const own = "takes" in wanted ? Session.receipt(kept, wanted.takes)?.requestId : open
      if (own !== undefined && own !== open) return
      if (own !== undefined) {
        return yield* Effect.asVoid(Effect.flatMap(Session.stop(key, { by }), ({ ended }) => ended))
      }
      if (!Session.isUnfinished(kept)) return
      yield* Effect.sleep(pause)
    }
  })

// Labels.

/** A change to session labels. */
export type Change = Pick<Session.LabelOptions, "pinned" | "title">

/** Changes a session's labels, and returns them in list form. */
export const label = (
  { agent, by, key }: Named,
  change: Change,
  bounds: Parameters<typeof fullOf>[1]
): Effect.Effect<
  { readonly title: string; readonly pinned: boolean },
  Refusals.Refusal | Journal.StoreError,
  Session.Store
> =>
  Effect.gen(function*() {
    const { kept: known } = yield* read({ agent, key })
    const check = (kept: Session.Kept) =>
      kept.origin.agent === agent ? fullOf(Session.view(kept), bounds) ?? Effect.void : Refusals.unknownSession()
    const labeled = yield* Effect.catchTag(
      Session.label(key, { ...change, by, check, known }),
      "SessionError",
      ({ detail = "", reason }) =>
        reason === "invalid_title"
          ? Refusals.badRequest("invalid_title", `a body: ${detail}`)
          : Refusals.unknownSession()
    )
    if (labeled === undefined) return yield* Refusals.unknownSession()
    return { title: labeled.title ?? "", pinned: labeled.pinned }
  })

// Removal.

const runs = Refusals.conflict("running", "The session has a run under way. Stop the run first.")

/** Tells whether an error means that this release cannot read a journal. */
const isUnreadable = ({ reason }: Journal.StoreError): boolean => reason === "unreadable" || reason === "newer_version"

/**
 * Refuses to remove a session not existing, belonging to another agent, or with a run under way. An unreadable session
 * can be removed as long as it has no claim.
 */
export const checkRemovable = (
  named: Named
): Effect.Effect<void, Refusals.Refusal | Journal.StoreError, Session.Store> =>
  Effect.catchTag(
    Effect.flatMap(read(named), ({ kept }) => kept.interrupted === undefined ? Effect.void : runs),
    "StoreError",
    (error) =>
      Effect.gen(function*() {
        if (!isUnreadable(error)) return yield* error
        const agent = yield* agentOf(named.key)
        if (agent !== undefined && agent !== named.agent) return yield* Refusals.unknownSession()
        const claim = yield* (yield* Session.Store).claimOf(named.key)
        if (claim !== undefined && claim.until > (yield* Clock.currentTimeMillis)) return yield* runs
      })
  )

/** Removes a session, and this process's data about it. */
export const remove = (
  hub: Logs.Hub,
  { key }: Named
): Effect.Effect<void, Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    yield* Session.delete(key)
    yield* JournalEvents.forget(key)
    hub.remove(key)
  })

/**
 * Returns the name of a session's agent from its first record: `""` if the record names none, `undefined` if the record
 * is unreadable.
 */
export const agentOf = (key: string): Effect.Effect<string | undefined, Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    const first = yield* Stream.runHead((yield* Session.Store).read(key))
    return Option.isSome(first) && first.value.record._tag === "Opened" ? first.value.record.agent : ""
  }).pipe(
    Effect.catchTag("StoreError", (error) => isUnreadable(error) ? Effect.undefined : error)
  )
