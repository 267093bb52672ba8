/**
 * The commands of other processes to a session of a store: a stop of its run, and a message for its next run. Public as
 * `Session`.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import * as Message from "../../Message.ts"
import { checkNames, type NamesOf } from "../declare/schema.ts"
import * as Values from "../declare/values.ts"
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
 * @since 0.1.0
 */
export interface StopReceipt {
  /** The id of the request, for `Session.receipt`. Left out where no run was open. */
  readonly id?: string
  /**
   * The version of the journal that contains the request. From here on the stop is honoured, even if the process
   * dies.
   */
  readonly accepted: number
  /** Waits until the run has ended, and reports what became of its calls. */
  readonly ended: Effect.Effect<States.StopReport, Journals.StoreError, Journals.Store>
}

/**
 * Options of a stop.
 *
 * @category options
 * @since 0.1.0
 */
export interface StopOptions {
  /** The sender of the request, as recorded in the journal. Left out by default. */
  readonly by?: string
}

const nothing: States.StopReport = { stopped: [], ended: [], refused: [], unknown: [] }

/** Interval at which the end of a run is looked for. */
const endPoll: Duration.Input = "25 millis"

const byOf = ({ by }: StopOptions): { readonly by?: string } => by === undefined ? {} : { by }

/**
 * Asks the run of a session to stop, in whichever process it runs. If the owner is gone, the next owner honours the
 * request.
 */
export const stop = (
  id: string,
  options: StopOptions = {}
): Effect.Effect<StopReceipt, Journals.StoreError, Journals.Store> =>
  Effect.gen(function*() {
    checkNames("Session.stop", options, { by: Values.text } satisfies NamesOf<StopOptions>)
    let journal = yield* Kept.read(id)
    while (true) {
      const { state, version } = journal
      if (state.run === undefined) return { accepted: version, ended: Effect.succeed(nothing) }
      const { requestId } = state.run
      const ended = Effect.suspend(() => untilEnded(id, requestId, state, version))
      if (state.stop !== undefined) return { id: state.stop.id, accepted: version, ended }
      const time = yield* Clock.currentTimeMillis
      const stopId = globalThis.crypto.randomUUID()
      const request: Records.Record = { _tag: "StopRequested", id: stopId, requestId, time, ...byOf(options) }
      const accepted = yield* appended(id, version, [request])
      if (Option.isSome(accepted)) return { id: stopId, accepted: accepted.value, ended }
      journal = yield* Kept.readOn(id, state, version)
      if ((yield* Kept.versionOf(id)) < version) return { accepted: version, ended: Effect.succeed(nothing) }
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
 * @since 0.1.0
 */
export interface SubmitReceipt {
  /** The id of the submission, which the run that takes the message records. */
  readonly id: string
  /** The version of the journal that contains the message. */
  readonly accepted: number
}

/**
 * Options of a submission.
 *
 * @category options
 * @since 0.1.0
 */
export interface SubmitOptions<E = never> {
  /**
   * The id of the submission. The same message under the same id is accepted once, among the last 1,000 commands of the
   * session. A new id by default.
   */
  readonly id?: string
  /** The sender of the message, as recorded in the journal. Left out by default. */
  readonly by?: string
  /** The tools of the client that sends the message. None by default. */
  readonly clientTools?: Records.ClientTools
  /** The origin of the session that the message creates. None by default. */
  readonly origin?: Records.Origin
  /**
   * Refuses a message, by the session that it would be added to, or `undefined` for one that it would create. Called
   * again where another writer was faster, and not for a repeated message. Accepts every message by default.
   */
  readonly check?: (kept: Kept.Kept | undefined) => Effect.Effect<unknown, E>
  /** The session as it was read before. It is read anew by default, and where another writer was faster. */
  readonly known?: Kept.Kept
}

/** The kinds of what a message is submitted with. */
export const submissionKinds = { id: Values.name, by: Values.text, clientTools: Values.clientTools }

const knownSubmitOptions = {
  ...submissionKinds,
  origin: Values.record,
  check: Values.fn,
  known: Values.record
} satisfies NamesOf<SubmitOptions>

export const idTaken = (id: string): SessionData.SessionError =>
  new SessionData.SessionError({
    reason: "id_taken",
    detail: `${JSON.stringify(id)} was used before; use another id`
  })

/** Returns the record of a message for the next run. */
export const submission = (
  id: string,
  content: Message.Content,
  { by, clientTools = [] }: Pick<SubmitOptions, "by" | "clientTools">,
  time: number
): Records.MessageSubmitted => ({
  _tag: "MessageSubmitted",
  id,
  message: Message.user(content),
  ...(clientTools.length === 0 ? {} : { clientTools }),
  time,
  ...byOf(by === undefined ? {} : { by })
})

/**
 * Appends a message to a session, for the next run to take. Creates the session if it does not exist, in the same
 * append.
 */
export const submit = <E = never>(
  id: string,
  content: Message.Content,
  options: SubmitOptions<E> = {}
): Effect.Effect<SubmitReceipt, SessionData.SessionError | Journals.StoreError | E, Journals.Store> =>
  Effect.gen(function*() {
    yield* Kept.checkId(id)
    checkNames("Session.submit", options, knownSubmitOptions)
    const { check, origin } = options
    const time = yield* Clock.currentTimeMillis
    const submitted = submission(options.id ?? globalThis.crypto.randomUUID(), content, options, time)
    for (let known = options.known;; known = undefined) {
      let summary: States.Summary | undefined
      let version = known?.version ?? (yield* Kept.versionOf(id))
      // A new id cannot have been used before.
      if ((options.id !== undefined || check !== undefined || Nested.mayBeNested(id)) && version > 0) {
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
