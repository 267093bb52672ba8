/**
 * Commands from other processes to a kept session: stopping its run or a call, ending remembered approvals, a message
 * for one of its runs, its labels, and a branch of its conversation. Public as `Session`.
 */
import * as Clock from "effect/Clock"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import * as Message from "../../Message.ts"
import * as CallPaths from "../answer/callPath.ts"
import { checkNames, type NamesOf } from "../declare/schema.ts"
import * as Values from "../declare/values.ts"
import * as SharedMessages from "../fold/sharedMessages.ts"
import * as Json from "../json.ts"
import * as SessionData from "./data.ts"
import * as Journals from "./journal.ts"
import * as Kept from "./kept.ts"
import * as Nested from "./nested.ts"
import * as Records from "./records.ts"
import * as States from "./state.ts"

/** Returns the version after an append, or nothing if another writer was faster. */
const appended = (
  id: string,
  expected: number,
  records: Records.Records,
  options?: Journals.AppendOptions
): Effect.Effect<Option.Option<number>, Journals.StoreError, Journals.Store> =>
  Effect.flatMap(Journals.Store, (store) =>
    store.append(id, expected, records, options).pipe(
      Effect.map(Option.some),
      Effect.catchTag("SessionConflict", () => Effect.succeed(Option.none()))
    ))

/**
 * The receipt of a stop.
 *
 * @category models
 */
export interface StopReceipt {
  /** Request id, for `Session.receipt`. Left out if no run, or no such call, was open. */
  readonly id?: string
  /** Journal version containing the request. From here on the stop is honored, even if the process dies. */
  readonly accepted: number
  /** Waits until the run has ended, and reports its calls' outcomes. */
  readonly ended: Effect.Effect<States.StopReport, Journals.StoreError, Journals.Store>
}

/**
 * Stop options.
 *
 * @category options
 */
export interface StopOptions {
  /** Sender of the request, recorded in the journal. Left out by default. */
  readonly by?: string
}

/**
 * Stop options.
 *
 * @category options
 */
export interface RunStopOptions extends StopOptions {
  /**
   * Single call to stop, by its id, or, in a run inside handlers, by its path, such as `"c0/c1"`; a suspension id works
   * as well. The run continues, and the model reads that the call was stopped. By default the whole run is stopped.
   */
  readonly call?: string
}

const nothing: States.StopReport = { stopped: [], ended: [], refused: [], unknown: [] }

/** Interval for checking whether a run has ended. */
const endPoll: Duration.Input = "25 millis"

const byOf = ({ by }: StopOptions): { readonly by?: string } => by === undefined ? {} : { by }

/** Returns `true` if a session has an unanswered call, possibly in an open run inside another call. */
const hasOpenCall = (
  id: string,
  { run, turn }: States.State,
  [call, ...inside]: ReadonlyArray<string>
): Effect.Effect<boolean, Journals.StoreError, Journals.Store> =>
  Effect.gen(function*() {
    if (run === undefined || !States.isOpenCall(turn, call)) return false
    if (inside.length === 0) return true
    const prefix = Nested.prefixOf(id, call)
    const store = yield* Journals.Store
    const runs = yield* Stream.runCollect(store.list({ prefix }))
    for (const { id: inner } of runs) {
      if (!Nested.isDirect(inner.slice(prefix.length))) continue
      if (yield* hasOpenCall(inner, (yield* Kept.read(inner)).state, inside)) return true
    }
    return false
  })

/**
 * Asks a session's run, or one of its calls, to stop, whichever process runs the session. If the owner is gone, the
 * next owner honors the request.
 */
export const stop = (
  id: string,
  options: RunStopOptions = {}
): Effect.Effect<StopReceipt, Journals.StoreError, Journals.Store> =>
  Effect.gen(function*() {
    checkNames("Session.stop", options, { by: Values.text, call: Values.text } satisfies NamesOf<RunStopOptions>)
    const wanted = options.call === undefined ? undefined : CallPaths.parse(options.call)
    const call = wanted && CallPaths.format({ path: wanted.path })
    let journal = yield* Kept.read(id)
    while (true) {
      const { state, version } = journal
      if (state.run === undefined) return { accepted: version, ended: Effect.succeed(nothing) }
      const { requestId } = state.run
      const ended = Effect.suspend(() => untilEnded(id, requestId, state, version))
      if (options.call !== undefined) {
        const isOfRun = wanted !== undefined && (wanted.run === undefined || wanted.run === requestId)
        const isOpen = isOfRun && (yield* hasOpenCall(id, state, wanted.path))
        if (!isOpen) return { accepted: version, ended: Effect.succeed(nothing) }
      }
      const before = call === undefined ? state.stop : state.run.callStops.find((other) => other.call === call)
      if (before !== undefined) return { id: before.id, accepted: version, ended }
      const time = yield* Clock.currentTimeMillis
      const stopId = globalThis.crypto.randomUUID()
      const request: Records.Record = {
        _tag: "StopRequested",
        id: stopId,
        ...(call === undefined ? {} : { call }),
        requestId,
        time,
        ...byOf(options)
      }
      const accepted = yield* appended(id, version, [request])
      if (Option.isSome(accepted)) return { id: stopId, accepted: accepted.value, ended }
      journal = yield* Kept.readOn(id, state, version)
      if ((yield* Kept.versionOf(id)) < version) return { accepted: version, ended: Effect.succeed(nothing) }
    }
  })

/** Ends a tool's remembered approvals, even while another process runs the session. Returns whether there were any. */
export const disallow = (
  id: string,
  name: string,
  options: StopOptions = {}
): Effect.Effect<boolean, Journals.StoreError, Journals.Store> =>
  Effect.gen(function*() {
    checkNames("Session.disallow", options, { by: Values.text } satisfies NamesOf<StopOptions>)
    let journal = yield* Kept.read(id)
    while (true) {
      const { state, version } = journal
      if (!States.isAllowing(state, name)) return false
      const time = yield* Clock.currentTimeMillis
      const record: Records.Record = { _tag: "ToolDisallowed", name, time, ...byOf(options) }
      if (Option.isSome(yield* appended(id, version, [record]))) return true
      journal = yield* Kept.read(id)
    }
  })

/** Reads on, record by record, until the run has ended or its journal is removed. */
const untilEnded = (
  id: string,
  requestId: string,
  known: States.State,
  version: number
): Effect.Effect<States.StopReport, Journals.StoreError, Journals.Store> =>
  Effect.gen(function*() {
    const store = yield* Journals.Store
    const state = States.copyOf(known)
    let at = version
    let report: States.StopReport | undefined
    while (true) {
      const now = yield* store.version(id)
      if (now < at) return States.reportSoFar(state)
      yield* Stream.runForEach(store.read(id, at), ({ record, version }) =>
        Effect.sync(() => {
          States.apply(state, record)
          at = version
          if (state.ended?.requestId === requestId) report ??= state.ended.report
        }))
      if (report !== undefined) return report
      if (state.run?.requestId !== requestId) return nothing
      yield* Effect.sleep(endPoll)
    }
  })

/**
 * The receipt of a message.
 *
 * @category models
 */
export interface SubmitReceipt {
  /** Submission id, recorded by the run that takes the message. */
  readonly id: string
  /** Journal version containing the message. */
  readonly accepted: number
}

/**
 * Submission options.
 *
 * @category options
 */
export interface SubmitOptions<E = never> {
  /**
   * Submission id. The same message under the same id is accepted once, among the session's last 1,000 commands.
   * Defaults to a new id.
   */
  readonly id?: string
  /**
   * The run to get the message. `"next"`: the next run begins with the message. `"steer"`: the active run gets the
   * message between two steps, and before its end if it would complete. `"follow"`: the active run gets the message
   * when it would complete, and makes another step. Defaults to `"next"`.
   */
  readonly mode?: "next" | "steer" | "follow"
  /**
   * Treatment of a message in mode `"steer"` or `"follow"` if the run ends without the message, or no run is active.
   * `"next"` leaves the message to the next run, `"refuse"` refuses the message. Defaults to `"next"`.
   */
  readonly otherwise?: "next" | "refuse"
  /**
   * Path of a call, such as `"c0"` or `"c0/c1"`, with an active nested run: that run gets the message, the latest if
   * there are several. Without an active run, and if that run ends without the message, it is refused. Requires mode
   * `"steer"` or `"follow"`. By default the session's own run gets the message.
   */
  readonly to?: string
  /** Sender of the message, recorded in the journal. Left out by default. */
  readonly by?: string
  /** Tools of the sending client. None by default. */
  readonly clientTools?: Records.ClientTools
  /** Origin of the session created by the message. None by default. */
  readonly origin?: Records.Origin
  /**
   * Refuses a message, given the session it would be added to, or `undefined` for a session it would create. Called
   * again if another writer was faster, and never for a repeated message. Accepts every message by default.
   */
  readonly check?: (kept: Kept.Kept | undefined) => Effect.Effect<unknown, E>
  /** Previously read session. By default, and if another writer was faster, it is read again. */
  readonly known?: Kept.Kept
}

/** Option kinds for submissions. */
export const submissionKinds = { id: Values.name, by: Values.text, clientTools: Values.clientTools }

const modes = {
  mode: Values.oneOf("next", "steer", "follow"),
  otherwise: Values.oneOf("next", "refuse"),
  to: CallPaths.kind
}

const knownSubmitOptions = {
  ...submissionKinds,
  ...modes,
  origin: Values.record,
  check: Values.fn,
  known: Values.record
} satisfies NamesOf<SubmitOptions>

export const idTaken = (id: string): SessionData.SessionError =>
  new SessionData.SessionError({
    reason: "id_taken",
    detail: `${JSON.stringify(id)} was used before; use another id`
  })

/** Returns the record of a submitted message. */
export const submission = (
  id: string,
  content: Message.Content,
  { by, clientTools = [], mode = "next", otherwise = "next", to }: Pick<
    SubmitOptions,
    "by" | "clientTools" | "mode" | "otherwise" | "to"
  >,
  time: number
): Records.MessageSubmitted => ({
  _tag: "MessageSubmitted",
  id,
  message: Message.user(content),
  ...(mode === "next" ? {} : { mode }),
  ...(mode === "next" || otherwise === "next" ? {} : { otherwise }),
  ...(to === undefined ? {} : { to }),
  ...(clientTools.length === 0 ? {} : { clientTools }),
  time,
  ...byOf(by === undefined ? {} : { by })
})

/** Describes an option incompatible with `to`, if any. */
const misplacedTo = (
  { mode = "next", otherwise, to }: Pick<SubmitOptions, "mode" | "otherwise" | "to">
): string | undefined => {
  if (to === undefined) return undefined
  if (mode === "next") return "mode must be \"steer\" or \"follow\" with to: the message goes to a run under way"
  return otherwise === "next" ? "otherwise must be \"refuse\" with to: no later run gets the message" : undefined
}

/**
 * Appends a message to a session, for the run given by `mode` and `to`. Creates a missing session in the same append.
 */
export const submit = <E = never>(
  id: string,
  content: Message.Content,
  options: SubmitOptions<E> = {}
): Effect.Effect<SubmitReceipt, SessionData.SessionError | Journals.StoreError | E, Journals.Store> =>
  Effect.gen(function*() {
    yield* Kept.checkId(id)
    checkNames("Session.submit", options, knownSubmitOptions)
    const { check, origin, to } = options
    const misplaced = misplacedTo(options)
    if (misplaced !== undefined) return yield* Effect.die(new TypeError(`Session.submit: ${misplaced}`))
    const time = yield* Clock.currentTimeMillis
    const submitted = submission(options.id ?? globalThis.crypto.randomUUID(), content, options, time)
    for (let known = options.known;; known = undefined) {
      let summary: States.Summary | undefined
      let version = known?.version ?? (yield* Kept.versionOf(id))
      // Otherwise the journal need not be read: a new id cannot have been used before. A message that may be refused
      // may leave no work, which only the state shows.
      const isToRead = (options.id ?? check ?? options.otherwise ?? to) !== undefined || Nested.mayBeNested(id)
      if (isToRead && version > 0) {
        const journal = known ?? (yield* Kept.read(id))
        const { parent, receipts } = journal.state
        if (parent !== undefined) return yield* Kept.nestedIn(parent, "submit the message to")
        const receipt = receipts.get(submitted.id)
        version = journal.version
        if (receipt !== undefined) {
          if (receipt.hash !== Records.hashOfContent(submitted.message.content)) return yield* idTaken(submitted.id)
          return { id: submitted.id, accepted: version }
        }
        if (check !== undefined && version > 0) yield* check(known ?? Kept.keptOf(id, journal.state, version))
        summary = States.summaryOf(States.after(journal.state, [submitted]))
      }
      if (check !== undefined && version === 0) yield* check(undefined)
      const records: Records.Records = version === 0
        ? [Kept.openedWith(SessionData.make({ id }), origin), submitted]
        : [submitted]
      if (version === 0) summary = States.summaryOf(States.after(States.initial(id), records))
      const accepted = yield* appended(id, version, records, summary === undefined ? {} : { summary })
      if (Option.isSome(accepted)) return { id: submitted.id, accepted: accepted.value }
    }
  })

/**
 * Takes a submitted message back. Returns `true` if this withdrawal did so, and `false` for an unknown message, or one
 * taken by a run.
 */
export const withdraw = (
  id: string,
  messageId: string,
  options: StopOptions = {}
): Effect.Effect<boolean, Journals.StoreError, Journals.Store> =>
  Effect.gen(function*() {
    checkNames("Session.withdraw", options, { by: Values.text } satisfies NamesOf<StopOptions>)
    const store = yield* Journals.Store
    let { state, version } = yield* Kept.read(id)
    let isOwn = false
    while (States.isUnsettled(state, messageId)) {
      const time = yield* Clock.currentTimeMillis
      const withdrawn: Records.MessageWithdrawn = { _tag: "MessageWithdrawn", id: messageId, time, ...byOf(options) }
      // The journal with the message decides.
      const passed = States.passedOn(state, messageId)
      const settled = passed && (yield* Nested.settledIn(store, passed, withdrawn))
      isOwn ||= settled?.isOwn === true && settled.fate.became === "withdrawn"
      const record: Records.Record = settled === undefined
        ? withdrawn
        : { _tag: "MessageSettled", id: messageId, fate: settled.fate }
      const summary = States.summaryOf(States.after(state, [record]))
      const accepted = yield* appended(id, version, [record], { summary })
      if (Option.isSome(accepted)) return settled === undefined || isOwn
      ;({ state, version } = yield* Kept.read(id))
    }
    return isOwn
  })

// Labels.

/** Longest session title, in characters. */
const longestTitle = 120

/**
 * Returns `true` if a text can be a title: one line of bounded length with visible content. Control and direction
 * characters, which change the surrounding text, and lone surrogates are not allowed.
 */
const isTitle = (text: string): boolean =>
  text.length <= longestTitle
  && /[^\s\p{Default_Ignorable_Code_Point}]/u.test(text)
  && !/[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\p{Bidi_Control}]/u.test(text)

/**
 * Session labels, as in lists.
 *
 * @category models
 */
export interface LabelReceipt {
  /** Journal version containing the labels. */
  readonly accepted: number
  /** Title: as given, otherwise the first user message. Left out if both are missing. */
  readonly title?: string
  /** `true` if the session is pinned. */
  readonly pinned: boolean
}

/**
 * Changes to session labels.
 *
 * @category options
 */
export interface LabelOptions<E = never> {
  /**
   * Title: one line of at most 120 characters, without control and direction characters. `null` restores the title from
   * the first message. Unchanged by default.
   */
  readonly title?: string | null
  /** `true` to pin the session, `false` to unpin. Unchanged by default. */
  readonly pinned?: boolean
  /** Sender of the change, recorded in the journal. Left out by default. */
  readonly by?: string
  /**
   * Refuses a change, given the session to be changed. Called again if another writer was faster, and never for
   * unchanged labels. Accepts every change by default.
   */
  readonly check?: (kept: Kept.Kept) => Effect.Effect<unknown, E>
  /** Previously read session. By default, and if another writer was faster, it is read again. */
  readonly known?: Kept.Kept
}

const knownLabelOptions = {
  title: Values.either(Values.text, Values.oneOf(null)),
  pinned: Values.flag,
  by: Values.text,
  check: Values.fn,
  known: Values.record
} satisfies NamesOf<LabelOptions>

/** Returns the record of a label change. */
const labelled = (
  { by, pinned, title }: LabelOptions<unknown>,
  time: number
): Effect.Effect<Records.Labelled, SessionData.SessionError> => {
  const own = typeof title === "string" ? title.trim() : title
  if (typeof own === "string" && !isTitle(own)) {
    return new SessionData.SessionError({
      reason: "invalid_title",
      detail: `title must be one line of 1 to ${longestTitle} characters, without control and direction characters`
    })
  }
  return Effect.succeed({
    _tag: "Labelled",
    ...(own === undefined ? {} : { title: own }),
    ...(pinned === undefined ? {} : { pinned }),
    time,
    ...byOf(by === undefined ? {} : { by })
  })
}

/** Changes session labels. Returns nothing if the session does not exist. */
export const label = <E = never>(
  id: string,
  options: LabelOptions<E>
): Effect.Effect<LabelReceipt | undefined, SessionData.SessionError | Journals.StoreError | E, Journals.Store> =>
  Effect.gen(function*() {
    checkNames("Session.label", options, knownLabelOptions)
    const { check, known } = options
    const record = yield* labelled(options, yield* Clock.currentTimeMillis)
    let journal: Pick<Kept.Kept, "state" | "version"> = known ?? (yield* Kept.read(id))
    while (true) {
      const { state, version } = journal
      if (version === 0) return undefined
      if (state.parent !== undefined) return yield* Kept.nestedIn(state.parent, "label")
      const isChanged = States.changesLabels(state, record)
      if (isChanged && check !== undefined) yield* check(Kept.keptOf(id, state, version))
      const after = isChanged ? States.after(state, [record]) : state
      const summary = States.summaryOf(after)
      const { pinned = false, title } = summary
      const labels = { pinned, ...(title === undefined ? {} : { title }) }
      if (!isChanged) return { accepted: version, ...labels }
      const accepted = yield* appended(id, version, [record], { summary })
      if (Option.isSome(accepted)) return { accepted: accepted.value, ...labels }
      const isRemoved = (yield* Kept.versionOf(id)) < version
      journal = yield* isRemoved ? Kept.read(id) : Kept.readOn(id, States.copyOf(state), version)
    }
  })

// Branches.

/**
 * Branch options.
 *
 * @category options
 */
export interface ForkOptions<E = never> {
  /** Id of the new session, unused by any other session. */
  readonly id: string
  /**
   * Message before which the new session begins: the id a run took it under or, for a message without an id, its
   * position in the conversation, from 0.
   */
  readonly before: string | number
  /**
   * Message the new session continues with, in the same append. Its id defaults to the new session's. None by default.
   */
  readonly message?: Pick<SubmitOptions, "by" | "clientTools" | "id"> & {
    /** Message content. */
    readonly content: Message.Content
  }
  /**
   * Refuses a new session before it is written, given its future stored form. Not called for a repeated branch. Accepts
   * every session by default.
   */
  readonly check?: (kept: Kept.Kept) => Effect.Effect<unknown, E>
}

/**
 * A branch of a session.
 *
 * @category models
 */
export interface Forked {
  /** The new session. */
  readonly kept: Kept.Kept
  /**
   * Calls after the branch point in the earlier session that may have had an effect, in order. The new session does not
   * undo these. Calls denied, or not accepted by any tool, are left out.
   */
  readonly calls: ReadonlyArray<Message.ToolCall>
}

const knownForkOptions = {
  id: Values.name,
  before: Values.either(Values.name, Values.amount),
  message: Values.described(
    Values.required({ content: Values.anything, ...submissionKinds }, ["content"]),
    "an object with content"
  ),
  check: Values.fn
} satisfies NamesOf<ForkOptions>

/** A branch point: the session it leaves, and the initial state of the new session. */
interface Branch {
  readonly from: NonNullable<Records.Origin["forkedFrom"]>
  readonly state: States.State
}

/** A journal at its end, with the place before a message. */
interface Searched {
  readonly state: States.State
  readonly version: number
  /** Branch point. `undefined` if the message is not in these records. */
  readonly branch: Branch | undefined
  /** `true` if the state is the journal's own at that place; otherwise the conversation is cut. */
  readonly isExact: boolean
}

const isResting = ({ run, turn }: States.State): boolean => run === undefined && turn === undefined

const placeName = (place: number): string => `message-${place}`

/** Returns a session ending before a message in its conversation. */
const cutBefore = (state: States.State, place: number): States.State => ({
  ...States.copyOf(state),
  thread: SharedMessages.replacedFrom(state.thread, place, []),
  lastRun: undefined
})

/** Folds a journal, and finds the last place where its session rested before a message. */
const search = (
  id: string,
  before: ForkOptions["before"]
): Effect.Effect<Searched, Journals.StoreError, Journals.Store> =>
  Effect.flatMap(Journals.Store, (store) =>
    Effect.suspend(() => {
      const state = States.initial(id)
      let [version, isExact] = [0, false]
      let branch: Branch | undefined
      return Effect.map(
        Stream.runForEach(store.read(id), (entry) =>
          Effect.sync(() => {
            const { record } = entry
            const place = SharedMessages.length(state.thread)
            const isFirst = record._tag === "RunStarted" && record.resumes !== true && record.messages.length > 0
            const isNamed = isFirst && record.takes?.id === before
            const isHere = isNamed || place === before && (isFirst || record._tag === "MessagesAppended")
            const wasResting = isResting(state)
            const message = isFirst ? record.takes?.id ?? placeName(place) : placeName(place)
            if (isHere) {
              branch = wasResting ? { from: { id, version, message }, state: States.copyOf(state) } : undefined
              isExact = wasResting
            }
            States.apply(state, record)
            version = entry.version
            const isAdded = record._tag === "Opened" || record._tag === "MessagesAppended"
            if (branch !== undefined || !isAdded || typeof before !== "number" || !isResting(state)) return
            if (SharedMessages.list(state.thread)[before]?.role !== "user") return
            branch = { from: { id, version, message: placeName(before) }, state: cutBefore(state, before) }
          })),
        () => ({ state, version, branch, isExact })
      )
    }))

/** Returns `true` if a session has these messages, followed by a message shared with another session. */
const hasSame = (state: States.State, { thread }: Pick<States.State, "thread">, more: States.State): boolean => {
  const length = SharedMessages.length(thread)
  const [own, others] = [States.threadOf(state), States.threadOf(more)].map(SharedMessages.list)
  return own !== undefined && others !== undefined && own.length > length
    && Json.isSame(own.slice(0, length), SharedMessages.list(thread))
    && Json.isSame(own[length], others[length])
}

/**
 * Finds the place before a session's message. A message inherited from the session it branched from is searched there:
 * the new session is a branch of that session.
 */
const branchIn = (
  searched: Searched,
  before: ForkOptions["before"]
): Effect.Effect<Branch | undefined, Journals.StoreError, Journals.Store> =>
  Effect.gen(function*() {
    const { state } = searched
    const visited = new Set<string>()
    let found = searched.branch
    let [current, isExact] = [searched, searched.isExact]
    while (!isExact) {
      const { forkedFrom } = current.state.origin
      if (forkedFrom === undefined || visited.has(forkedFrom.id)) break
      visited.add(forkedFrom.id)
      current = yield* search(forkedFrom.id, before)
      const { branch } = current
      // Another session may have the id by now.
      if (branch === undefined || !hasSame(state, branch.state, current.state)) continue
      found = branch
      isExact = current.isExact
    }
    return found !== undefined && hasSame(state, found.state, state) ? found : undefined
  })

/** Answer codes of calls whose handlers never began. */
const unbegun = new Set(["denied", "unknown_tool", "invalid_arguments", "truncated_arguments"])

/** Returns the calls after a place in a conversation that may have had an effect. */
const callsBehind = (state: States.State, place: number): ReadonlyArray<Message.ToolCall> => {
  const messages = SharedMessages.list(States.threadOf(state)).slice(place)
  const codes = new Map(messages.map(({ code, toolCallId }) => [toolCallId, code]))
  return messages.flatMap(({ toolCalls = [] }) => toolCalls.filter(({ id }) => !unbegun.has(codes.get(id) ?? "")))
}

/**
 * Returns the records of a branch. Settlements its next run would report belong to the earlier session, and so do
 * remembered approvals. The new session has this session's current title, and is not pinned.
 */
const recordsOf = (
  { from, state }: Branch,
  { labels: { title } }: States.State,
  { id, message }: ForkOptions<unknown>,
  time: number
): Records.Records => {
  const { allowed: _, ...own } = States.sessionOf(state)
  const session = SessionData.recover({ ...own, id, answered: [] })
  const labels = title === undefined ? {} : { title }
  const rested = { ...state, labels, origin: { ...state.origin, forkedFrom: from } }
  const opened = States.openedBy(rested, session)
  if (message === undefined) return [opened]
  return [opened, submission(message.id ?? id, message.content, message, time)]
}

/** Returns `true` if a session is the branch requested by a repeated command. */
const isRepeated = (
  { origin: { forkedFrom }, receipts }: States.State,
  { from }: Branch,
  { id, message }: ForkOptions<unknown>
): boolean => {
  const hash = receipts.get(message?.id ?? id)?.hash
  return forkedFrom?.id === from.id && forkedFrom.message === from.message
    && hash === (message === undefined ? undefined : Records.hashOfContent(message.content))
}

/** Begins a new session with the conversation before a message of another session, whose journal is only read. */
export const fork = <E = never>(
  from: string,
  options: ForkOptions<E>
): Effect.Effect<Forked, SessionData.SessionError | Journals.StoreError | E, Journals.Store> =>
  Effect.gen(function*() {
    checkNames("Session.fork", options, knownForkOptions)
    const { before, check, id } = options
    const refused = (reason: SessionData.SessionError["reason"], detail: string) =>
      new SessionData.SessionError({ reason, detail })
    const store = yield* Journals.Store
    const searched = yield* search(from, before)
    const { parent } = searched.state
    if (parent !== undefined) return yield* Kept.nestedIn(parent, "branch from")
    const branch = yield* branchIn(searched, before)
    if (branch === undefined) {
      const name = typeof before === "number" ? `at ${before}` : JSON.stringify(before)
      return yield* refused("unknown_message", `no run of the session began with a message ${name}`)
    }
    const calls = callsBehind(searched.state, SharedMessages.length(branch.state.thread))
    const repeated = (state: States.State, version: number) =>
      isRepeated(state, branch, options)
        ? Effect.succeed({ kept: Kept.keptOf(id, state, version), calls })
        : idTaken(id)
    const known = yield* Kept.read(id)
    if (known.version > 0) return yield* repeated(known.state, known.version)
    const left = States.next(searched.state)
    if (left !== "nothing") {
      return yield* refused("unfinished", `the session has work left (${left}): a branch begins between whole runs`)
    }
    const records = recordsOf(branch, searched.state, options, yield* Clock.currentTimeMillis)
    const state = States.after(States.initial(id), records)
    const kept = Kept.keptOf(id, state, records.length)
    if (check !== undefined) yield* check(kept)
    return yield* store.append(id, 0, records, { summary: States.summaryOf(state) }).pipe(
      Effect.as({ kept, calls }),
      Effect.catchTag(
        "SessionConflict",
        () => Effect.flatMap(Kept.read(id), ({ state, version }) => repeated(state, version))
      )
    )
  })
