/**
 * Runs an operation, from its first event to the session after it, in four steps: it begins, settled calls are reported
 * and run, the model is asked as in every run, and the run ends. Every event becomes records. A record that must
 * precede its effects is written where those start. Public as `Session`.
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Adapter from "../../Adapter.ts"
import type * as Chat from "../../Chat.ts"
import * as Collector from "../../Collector.ts"
import type * as Event from "../../Event.ts"
import * as Policy from "../../Policy.ts"
import * as Step from "../../Step.ts"
import * as Thread from "../../Thread.ts"
import type * as Tool from "../../Tool.ts"
import * as CallPaths from "../answer/callPath.ts"
import * as SubAgent from "../answer/subAgent.ts"
import * as Teller from "../answer/teller.ts"
import * as Settings from "../ask/options.ts"
import type * as Plan from "../decide/plan.ts"
import { checkNames, type NamesOf } from "../declare/schema.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Values from "../declare/values.ts"
import * as SharedMessages from "../fold/sharedMessages.ts"
import * as InboxRule from "../loop/inboxRule.ts"
import * as Loop from "../loop/loop.ts"
import * as Rules from "../loop/rules.ts"
import * as Pulled from "../loop/scopedPull.ts"
import * as Turns from "../loop/turns.ts"
import type * as RunJournal from "../run/runJournal.ts"
import * as Cancellation from "../stop/cancellation.ts"
import * as Deadline from "../stop/deadline.ts"
import * as Inherited from "../stop/inherited.ts"
import { Running, Worker } from "../stop/ownedFibers.ts"
import * as Spendings from "../stop/spending.ts"
import * as Telemetry from "../telemetry.ts"
import * as Claims from "./claim.ts"
import * as SessionData from "./data.ts"
import * as SessionEvents from "./events.ts"
import type * as Journals from "./journal.ts"
import * as Kept from "./kept.ts"
import * as Nested from "./nested.ts"
import * as Operations from "./operations.ts"
import * as Records from "./records.ts"
import * as Resumptions from "./resumption.ts"
import * as States from "./state.ts"
import * as Writers from "./writer.ts"

type Tools = ReadonlyArray<Tool.Any>

const none: Tools = []

type Errors<T extends Tools, E> = Operations.OperationError | E | Tool.Fatal<T[number]>

type Services<T extends Tools, R> = R | Adapter.Adapter | Tool.Services<T[number]>

const noneAbandoned: Effect.Effect<ReadonlyArray<Event.Abandoned>> = Effect.succeed([])

/** A running operation. */
class OperationRun<M extends SessionEvents.Mode> {
  readonly operation: Operations.Operation<M>
  readonly requestId: string
  readonly writer: Writers.Writer
  readonly state: States.State
  /** Result, once the run has ended. */
  private result: Event.StepResult | Event.ChatResult | undefined
  /** Owns the operation's appends, and the event observer outside its run. */
  readonly running: Running
  /**
   * Owns the effect that may stop the operation, interrupted once there is a result. `undefined` if the run itself owns
   * the effect.
   */
  readonly stopping: Running | undefined
  readonly spending: Spendings.Spending
  /** Fibers of the run, once entered, and call stops requested before. */
  private entered: Running | undefined
  private readonly callStops: Array<ReadonlyArray<string>> = []
  /** `true` if an earlier turn's calls run before the model is asked. */
  readonly hasOpening: boolean
  /** Span, if the run is observed. */
  readonly span: Telemetry.Run | undefined

  constructor(
    operation: Operations.Operation<M>,
    { isStopped, settings: { graceMillis, requestId } }: Wanted<AnyOptions>,
    context: Context.Context<never>,
    span: Telemetry.Run | undefined
  ) {
    const spending = new Spendings.Spending(Context.get(context, Spendings.CurrentSpending))
    const used = operation.resumed === undefined ? null : States.nestedUsageOf(operation.resumed.run)
    if (used !== null) spending.takeUp(used)
    this.operation = operation
    this.requestId = requestId
    this.writer = operation.base.writer
    this.state = this.writer.state
    this.hasOpening = SessionEvents.hasEarlierCalls(operation.base.state)
    this.running = new Running(graceMillis, context)
    this.stopping = isStopped ? new Running(graceMillis, context) : undefined
    this.spending = spending
    this.span = span
    if (span !== undefined) span.usage = () => spending.total
  }

  /** Takes in the run's fibers. */
  readonly enter = (running: Running): void => {
    this.entered = running
    for (const path of this.callStops.splice(0)) running.stopCallSoon(path, Cancellation.callStopCause)
  }

  /** Stops one call, by its path. */
  stopCall(path: ReadonlyArray<string>): void {
    if (this.entered === undefined) this.callStops.push(path)
    else this.entered.stopCallSoon(path, Cancellation.callStopCause)
  }

  append(records: ReadonlyArray<Records.Record>): Effect.Effect<void> {
    const some = Writers.nonEmpty(records)
    return some === undefined ? Effect.void : this.writer.append(some, this.running)
  }

  /** Records the start, with the records leading to that point. */
  begin(
    deadlineAt: number | undefined,
    toolbox: ToolOptions.Toolbox,
    context: Context.Context<never>
  ): Effect.Effect<void> {
    const { operation: { answered, base, messages, name, parent, resumed, takes }, span } = this
    const { clientTools, inbox } = this.state
    const served = takes === undefined
      ? name === "continue" ? clientTools : []
      : inbox.find(({ id }) => id === takes.id)?.clientTools ?? []
    const versions = Array.from(toolbox).flatMap(([name, { version }]) =>
      version === undefined ? [] : [[name, version]]
    )
    const started: Records.RunStarted = {
      _tag: "RunStarted",
      requestId: this.requestId,
      operation: name,
      messages,
      startedAt: Context.get(context, Clock.Clock).currentTimeMillisUnsafe(),
      processName: Context.get(context, Claims.CurrentProcess),
      ...(answered === undefined ? {} : { answered }),
      ...(parent === undefined ? {} : { parent }),
      ...(span?.ids === undefined ? {} : { span: span.ids }),
      ...(resumed === undefined ? {} : { resumes: true }),
      ...(deadlineAt === undefined ? {} : { deadlineAt }),
      ...(this.writer.owner === undefined ? {} : { owner: this.writer.owner }),
      ...(takes === undefined ? {} : { takes }),
      ...(served.length === 0 ? {} : { clientTools: served }),
      ...(versions.length === 0 || resumed !== undefined ? {} : { versions: Object.fromEntries(versions) })
    }
    return this.append([...base.before, started])
  }

  /**
   * Records that the run failed. A run that could not start ends, and its messages are given back. A run that broke off
   * can be resumed, and so can one whose resumption failed.
   */
  fail(cause: Cause.Cause<unknown>): Effect.Effect<void> {
    if (Cause.hasInterruptsOnly(cause)) return Effect.void
    const { requestId } = this
    const error = this.operation.resumed === undefined ? Cause.findErrorOption(cause) : Option.none()
    return this.append([
      Option.isNone(error)
        ? { _tag: "AttemptFailed", requestId }
        : { _tag: "RunEnded", requestId, error: Records.runErrorOf(error.value) }
    ])
  }

  /** Records a reply. Its calls do not wait for the record. */
  readonly replied: RunJournal.Journal["replied"] = (response, stepIndex) =>
    Effect.suspend(() => this.append(this.timed(SessionEvents.replyOf(this.state, response, stepIndex))))

  /** Records a step, once its calls' answers are in the state. */
  readonly step: RunJournal.Journal["step"] = (event, step) =>
    Effect.flatMapEager(this.writer.flush(this.running), () => {
      const { mode } = this.operation
      if (mode === "step") this.result = step.result
      return this.append(this.timed(SessionEvents.stepOf(this.state, mode, event, step)))
    })

  /** Adds the request times to the record of its reply, if any. */
  private timed(records: ReadonlyArray<Records.Record>): ReadonlyArray<Records.Record> {
    return records.map((record) =>
      (record._tag === "ReplyReceived" || record._tag === "StepCompleted") && record.response !== undefined
        ? { ...record, ...this.writer.requestedFor(record.response) }
        : record
    )
  }

  /**
   * Records the end of the run. Adds code abandoned later to the result: an append, and the stopping effect, which may
   * still act while the end is recorded. The recorded session lacks these additions.
   */
  readonly ended: RunJournal.Journal["ended"] = (event) =>
    Effect.suspend(() => {
      const known = this.running.givenUpTasks
      const recorded = Effect.flatMapEager(this.writer.flush(this.running), () =>
        this.append(SessionEvents.runOf(this.state, event)))
      const stopped = Effect.flatMapEager(recorded, () =>
        this.stopping?.beginStop() ?? noneAbandoned)
      return Effect.mapEager(stopped, (stopped) => {
        const others = [...known, ...stopped]
        const abandoned = [...others, ...event.result.abandoned ?? []]
        const result = others.length === 0 ? event.result : { ...event.result, abandoned }
        this.result = result
        return { ...event, result }
      })
    })

  /** Result of the operation, once its events have ended. */
  get done(): SessionEvents.Done<M> {
    return { session: States.sessionOf(this.state), result: this.result } as SessionEvents.Done<M>
  }
}

type Stops = NonNullable<Inherited.Given["stops"]>

/** Returns an operation's stops, with the deadline counted from its start. Other runs have their own. */
const stopsOf = <M extends SessionEvents.Mode, R>(
  run: OperationRun<M>,
  cancel: Settings.CancelSource<R> | undefined,
  ownDeadline: Settings.Settings<unknown, unknown>["deadline"]
): Effect.Effect<Stops | undefined, never, R | Scope.Scope> =>
  Effect.gen(function*() {
    const { operation: { resumed }, requestId, running, stopping, writer } = run
    const parent = yield* Inherited.ParentCancellation
    const around = yield* Inherited.CurrentDeadline
    const begun = resumed?.run.deadlineAt
    const latest = around === undefined ? begun : Math.min(around, begun ?? Infinity)
    // A passed deadline stops the run after its open turn.
    const deadline = resumed?.ending?._tag === "Deadline"
      ? undefined
      : Deadline.resolve(ownDeadline, latest, yield* Clock.currentTimeMillis)
    if ((parent ?? deadline ?? cancel ?? writer.store ?? resumed?.ending) === undefined) return undefined
    const cancellation = new Cancellation.Cancellation()
    yield* Cancellation.watch(cancellation, { parent, deadline, cancel }, yield* Effect.scope)
    // A run ended instead of resumed gets no stop requests: it answers its recorded calls, and ends.
    if (writer.store !== undefined && resumed?.ending === undefined) {
      const context = yield* Effect.context<R | Scope.Scope>()
      const hook = Context.get(context, Writers.CurrentStopHook)
      const told = new Set<string>()
      const stop = (request: Records.StopRequested) => {
        if (told.has(request.id)) return
        told.add(request.id)
        // The hook is a task of the operation. It begins before the request stops anything.
        if (hook?.id === writer.id) {
          new Worker(running, { kind: "hook", id: requestId, name: "onStop", onSoftStop: "grace", once: true })
            .start(hook.onStop(request), context, () => {})
        }
        const path = CallPaths.parse(request.call)?.path
        if (path === undefined) cancellation.request("stop", Cancellation.stopCause)
        else run.stopCall(path)
      }
      const unsubscribe = writer.onStop(requestId, stop)
      yield* Effect.addFinalizer(() => Effect.sync(unsubscribe))
    }
    yield* Effect.sync(() => {
      Inherited.listen(running, { cancellation }, undefined, requestId)
      if (stopping !== undefined) Inherited.listen(stopping, { cancellation }, cancel, requestId)
    })
    return { cancellation, deadline }
  })

// Calls of an earlier turn.

/**
 * Returns the events of calls settled since the last run. Calls that may run now, or are open again, have no answer.
 */
const settlements = (state: States.State, policy: Policy.Policy): ReadonlyArray<Event.Event> => {
  if (state.answered.length === 0) return []
  const waiting = States.suspensionsOf(state).map(({ toolCall: { id } }) => id)
  const open = new Set([...States.approvedIn(state).map(({ id }) => id), ...waiting])
  const settled = state.answered.flatMap(({ id }) => CallPaths.ownCall(id) ?? []).filter((id) => !open.has(id))
  return SharedMessages.answersTo(States.threadOf(state), settled).map((message) => {
    const { code: _, ...untold } = message
    return policy.callFacts === "told"
      ? Teller.ofSettled(message, state.answered)
      : Teller.ofAnswer(untold, { settled: true })
  })
}

// Resumed runs.

/**
 * Returns the open turn where the run begins, if its reply is recorded. `isJoined` returns whether a started call has
 * its nested run's answer, even in a run that ends.
 */
const turnOf = (
  { turn }: States.State,
  isJoined: (name: string) => boolean
): RunJournal.Turn | undefined =>
  turn?.isEarlier !== false || turn.isStepped === true || turn.message === undefined || turn.response === undefined
    ? undefined
    : { events: Teller.ofReply(turn.response, { replayed: true }), calls: recordedIn(turn, () => true, isJoined) }

/** Returns a snapshot of the calls: the table changes while they run. */
const recordedIn = (
  turn: States.Turn | undefined,
  isIncluded: (id: string, call: States.Call) => boolean,
  isJoined: (name: string) => boolean = () => false
): Plan.RecordedCalls => {
  const recorded = new Map<string, Plan.RecordedCall>()
  for (const [id, call] of turn?.calls ?? []) {
    if (!isIncluded(id, call)) continue
    const { toolCall, version } = call
    const [suspension] = call._tag === "Waiting" ? call.suspensions : []
    const isHanded = suspension?.kind === "manual" && suspension.path === undefined
    const as = call._tag === "Started" && isJoined(toolCall.name) ? "settled" : recordedAs[call._tag]
    const known = { toolCall, version, isInDoubt: States.isInDoubt(call) }
    recorded.set(id, isHanded ? { _tag: "handed", ...known, suspension } : { _tag: as, ...known })
  }
  return recorded
}

const recordedAs = {
  Asked: "asked",
  Granted: "granted",
  Started: "started",
  Waiting: "settled",
  Answered: "settled"
} as const

// All operations.

/** A running operation, with its events. */
interface Opened<M extends SessionEvents.Mode, out E, out R> {
  readonly run: OperationRun<M>
  readonly events: Stream.Stream<Event.Event, E, R>
}

/** Returns `true` if the run's turn is open: its reply is recorded, and its calls must be worked. */
const isOpen = ({ turn }: States.State): boolean =>
  turn?.isEarlier === false && turn.isStepped !== true && turn.message !== undefined

const isEmpty = (context: SessionData.Session["context"]): boolean => Object.keys(context).length === 0

/**
 * Returns a policy that starts only read-only calls early. A call with an effect, started before its complete reply,
 * would be lost with an interrupted reply and run again.
 */
const carefully = (policy: Policy.Policy): Policy.Policy =>
  policy.start === "onCallReady" ? { ...policy, start: "readOnly" } : policy

/** Returns tools without error policies. */
const withoutPolicies = (tools: unknown): Tools =>
  (Array.isArray(tools) ? tools as Tools : none).map((tool) => {
    const { onToolError: _, ...own } = tool
    return own
  })

/** Returns whether a run's failure to start ends the run. `failures` counts consecutive failures. */
export type IsFinal = (error: unknown, failures: number) => boolean

/**
 * Returns a kept session's submitted messages, as taken by its run, combined with the run's own inbox. The journal
 * records the fates of submitted messages.
 */
const inboxOf = (
  { state }: Writers.Writer,
  inbox: Rules.Receives | undefined
): { readonly letters: InboxRule.Letters } => {
  const box: InboxRule.Box = {
    open: () => state.inbox.flatMap(({ id, message, mode }) => mode === undefined ? [] : [{ id, message, mode }]),
    take: (taken) => taken.every(({ id }) => States.isOpenMessage(state, id)),
    close: (reason) =>
      state.inbox.flatMap(({ id, message, otherwise }) =>
        otherwise === "refuse" ? [{ _tag: "MessageRefused", id, message, reason } as const] : []
      ),
    isKept: () => true
  }
  const letters = inbox?.letters as InboxRule.Letters | undefined
  const rules: InboxRule.Letters["rules"] = (maxTurns, running) =>
    letters?.rules(maxTurns, running, box) ?? InboxRule.rulesOf(box, maxTurns)
  return { letters: { ...box, rules } as unknown as InboxRule.Letters }
}

/** Operation options, resolved once for all parts. */
interface Wanted<O> {
  /** Options for the loop. */
  readonly options: O
  readonly settings: Settings.Settings<unknown, unknown>
  readonly toolbox: ToolOptions.Toolbox
  /** Request of the run, checked before anything is recorded. */
  readonly asked: NonNullable<Loop.Recorded["checked"]>["asked"]
  readonly defaults: Policy.Defaults
  readonly cancel: Settings.CancelSource<any> | undefined
  /**
   * `true` if the run gets its stops from the operation: the session is kept, or the run may begin with an earlier
   * turn's calls.
   */
  readonly isStopped: boolean
}

type AnyOptions = Chat.Options<any, any, any, any, any>

/** Resolves operation options. An unusable option throws. */
const resolved = <O extends AnyOptions>(
  { base: { state, writer }, messages, mode, parent, resumed }: Operations.Operation<SessionEvents.Mode>,
  given: O,
  isContinued: boolean,
  defaults: Policy.Defaults,
  context: Context.Context<never>
): Wanted<O> => {
  const settings = Settings.resolve<unknown, unknown>(given, defaults, Policy.standard, context)
  const { context: kept, id } = state
  const own = given.context ?? (isEmpty(kept) ? undefined : kept)
  const update = States.contextUpdateOf(state)
  if (writer.store !== undefined && given.inbox !== undefined && given.inbox !== null && parent === undefined) {
    throw new TypeError(
      "inbox: a kept session has its own; leave it out, and send messages by Session.submit with a mode"
    )
  }
  const inbox = given.inbox ?? Context.get(context, Rules.CurrentInbox)?.letters.within()
  const isStopped = isContinued || state.turn?.isEarlier === true || writer.store !== undefined
  const options = {
    ...given,
    ...(isOneStep(mode, resumed) ? oneStep : {}),
    ...(writer.store === undefined || mode === "step" ? {} : { inbox: inboxOf(writer, inbox) }),
    ...(id === undefined ? {} : { cacheKey: given.cacheKey ?? id }),
    ...(isStopped ? { cancel: null } : {})
  }
  const toolbox = Loop.toolboxOf(options, defaults)
  const said = States.threadOf(state).messages.concat(messages)
  return {
    options,
    settings: {
      ...settings,
      policy: carefully(settings.policy),
      context: update === undefined ? own ?? settings.context : { ...own, ...update },
      requestId: resumed?.run.requestId ?? settings.requestId,
      sessionId: given.sessionId ?? id ?? settings.sessionId
    },
    toolbox,
    asked: Loop.asked(said, options, toolbox, defaults, context),
    defaults,
    cancel: given.cancel ?? undefined,
    isStopped
  }
}

/** Begins the run: opens its span, and records its start. The scope stops everything belonging to the run. */
const begin = <M extends SessionEvents.Mode>(
  operation: Operations.Operation<M>,
  wanted: Wanted<AnyOptions>,
  context: Context.Context<Scope.Scope>
) =>
  Effect.gen(function*() {
    const { base: { state: begun }, resumed } = operation
    const { cancel, defaults, isStopped, options, settings: { deadline, requestId, sessionId }, toolbox } = wanted
    const scope = Context.get(context, Scope.Scope)
    const span = yield* Telemetry.openRun(Telemetry.tracing(context), scope, () => ({
      requestId,
      sessionId,
      agent: options.agent ?? Loop.agentWithin(context),
      adapter: Context.getOrUndefined(context as Context.Context<any>, Adapter.Adapter),
      sampling: { ...options, model: options.model ?? defaults.model },
      facts: {
        system: options.system,
        input: States.threadOf(begun).messages.concat(operation.messages),
        tools: ToolOptions.definitions(toolbox, undefined)
      },
      previous: resumed === undefined && operation.name !== "continue" ? undefined : begun.span
    }))
    const run = new OperationRun(operation, wanted, context, span)
    const { running, stopping } = run
    // Both share one grace period.
    yield* Scope.addFinalizerExit(scope, (exit) => {
      const ended = running.end(exit)
      return stopping === undefined
        ? ended
        : Effect.all([ended, stopping.end(exit)], { concurrency: "unbounded", discard: true })
    })
    const stops = isStopped ? yield* stopsOf(run, cancel, deadline) : undefined
    yield* run.begin(stops?.deadline?.at, toolbox, context)
    return { run, stops }
  })

/** Returns the initial data of a run. */
const startOf = (
  { hasOpening, operation: { mode, resumed }, state, writer: { store } }: OperationRun<SessionEvents.Mode>,
  { settings: { policy }, toolbox }: Wanted<AnyOptions>,
  isContinued: boolean
): RunJournal.Start => {
  // A sub-agent's nested run ends at the deadline by itself.
  const isJoined = (name: string) => {
    const tool = toolbox.get(name)
    return resumed?.ending?._tag === "Deadline" && tool !== undefined && SubAgent.isSubAgent(tool)
  }
  const steps = resumed?.run.steps ?? []
  const { attempt = 0, introduced = 0, noted = {}, spent = null } = resumed === undefined ? {} : state.run ?? {}
  const turn = resumed === undefined ? undefined : turnOf(state, isJoined)
  return {
    steps,
    attempt,
    introduced,
    noted,
    spent: turn === undefined ? spent : null,
    kept: state.kept,
    settled: steps.length > 0 ? [] : settlements(state, policy),
    turn,
    earlier: !hasOpening && !States.isOpening(state) ? undefined : {
      // Calls that may run now, and calls that did so before the interruption.
      calls: recordedIn(
        state.turn,
        (id, call) =>
          call._tag === "Granted" || call._tag === "Started" || resumed?.run.came.has(id) === true ||
          // A call handed over has not started.
          call._tag === "Waiting" && call.requestId === resumed?.run.requestId
      ),
      halt: States.decidingHalt(state, policy),
      isLast: isOneStep(mode, resumed)
    },
    inside: resumed === undefined || store === undefined ? undefined : Kept.insideOf(store, state),
    hasBegun: isContinued,
    ends: resumed?.ending
  }
}

/** Options for a run with one step, without a typed answer. */
const oneStep = { maxTurns: 1, output: null }

/** Returns `true` for a step: an interrupted step resumes as a run with one step. */
const isOneStep = (mode: SessionEvents.Mode, resumed: Operations.Resumed | undefined): boolean =>
  mode === "step" || resumed?.run.operation === "step"

/** Returns the run's events, reported by the loop to the operation's journal. */
const eventsOf = <E, R>(
  run: OperationRun<SessionEvents.Mode>,
  { asked, options, settings }: Wanted<AnyOptions>,
  start: RunJournal.Start,
  stops: Stops | undefined
): Stream.Stream<Event.Event, Step.StepError | E, R> => {
  const { operation: { mode, resumed }, requestId, running, spending, state, writer } = run
  const recorded: Loop.Recorded = {
    checked: { settings, asked },
    start,
    journal: Resumptions.journalOf({
      writer,
      requestId,
      running,
      ending: resumed?.ending?._tag,
      nestingOf: nesting,
      replied: run.replied,
      step: run.step,
      ended: run.ended
    }),
    appends: running,
    given: { spending, stops },
    onEntered: run.enter
  }
  const thread = SharedMessages.plain(isOpen(state) ? state.thread : States.threadOf(state))
  return Pulled.stream((scope, services: Context.Context<R>) =>
    Loop.enter<E, R>(thread, options, mode === "chat", scope, services, recorded)
  )
}

/**
 * Returns the events of a driven run. A run that would be retried ends with its failure once no attempt is left, and so
 * do its calls.
 */
const endingBy = <A extends AnyOptions, E, R>(
  events: Stream.Stream<Event.Event, E, R>,
  run: OperationRun<SessionEvents.Mode>,
  options: A,
  isFinal: IsFinal
): Stream.Stream<Event.Event, E, R> =>
  Stream.catch(events, (error) => {
    const { requestId, running, spending, state } = run
    const isTried = state.run !== undefined && States.isUnstarted(state.run)
    if (!isTried || !isFinal(error, state.failures + 1)) return Stream.fail(error)
    return Stream.unwrap(Effect.gen(function*() {
      yield* run.append(States.failing(state))
      const thread = SharedMessages.plain(States.threadOf(state))
      const outcome = { _tag: "Failed", error } as const
      const { nested: nestedUsage, total: totalUsage } = spending
      const result = Collector.chatResult({ thread, steps: [], outcome, totalUsage, nestedUsage })
      const failed = [{ _tag: "Error", error }, { _tag: "ChatCompleted", result }] as const
      yield* Loop.observed<R>(options, running, requestId, failed)
      run.span?.came(outcome, null)
      return Stream.make<ReadonlyArray<Event.Event>>(failed[0], yield* run.ended(failed[1]))
    }))
  })

const open = <M extends SessionEvents.Mode, F, RF, T extends Tools, E, R, RHalt, REvent>(
  checked: Effect.Effect<Operations.Operation<M>, F, RF>,
  given: Chat.Options<T, E, R, RHalt, REvent>,
  isFinal?: IsFinal
): Effect.Effect<
  Opened<M, Errors<T, E>, Services<T, R | RHalt | REvent>>,
  F | Resumptions.ResumeError | Step.StepError,
  RF | Services<T, R | RHalt | REvent> | Scope.Scope
> =>
  Effect.gen(function*() {
    const operation = yield* checked
    const { base: { state: begun, writer }, resumed } = operation
    const context = yield* Effect.context<Scope.Scope>()
    const defaults = Context.get(context, Policy.Defaults)
    const isContinued = begun.answered.length > 0 || begun.turn !== undefined && resumed === undefined
    const resolve = (options: typeof given) => resolved(operation, options, isContinued, defaults, context)
    // Caller code may have caused the failures of a run ended after many attempts, so its tools lose their error
    // policies.
    const own = resumed?.isBroken === true ? { tools: withoutPolicies(given.tools) } as unknown as typeof given : given
    // A driven run begins without unusable options, which count as a failure.
    const known = isFinal === undefined ? Result.succeed(resolve(own)) : Result.try(() => resolve(own))
    const wanted = Result.isSuccess(known) ? known.success : resolve({})
    const { asked, options, toolbox } = wanted
    const isToCheck = Result.isSuccess(known) && (resumed?.ending === undefined || resumed.ending._tag === "Deadline")
    if (isToCheck) {
      yield* Resumptions.check(begun, writer.id, toolbox)
      const adapter = Context.getOrUndefined(context as Context.Context<any>, Adapter.Adapter)
      const names = Turns.namesIn(options, Context.get(context, Rules.Inherited))
      if (resumed !== undefined) yield* Resumptions.checkRules(begun, writer.id, names, adapter)
    }
    if (isFinal === undefined && Result.isFailure(asked)) return yield* Effect.fail(asked.failure)
    const { run, stops } = yield* begin(operation, wanted, context)
    const worked = Result.isFailure(known)
      ? Stream.die(known.failure)
      : eventsOf<E, R | RHalt | REvent>(run, wanted, startOf(run, wanted, isContinued), stops)
    const ended = isFinal === undefined ? worked : endingBy(worked, run, options, isFinal)
    // Runs of an unkept session are in no journal, even if their handler's run is.
    const isNested = Context.get(context, SubAgent.CurrentNesting) !== undefined
    const events = writer.store !== undefined
      ? Stream.tapCause(ended, (cause) => run.fail(cause))
      : isNested
      ? unkept(ended)
      : ended
    return { run, events: run.span === undefined ? events : run.span.reading(events) }
  })

/** Returns an operation's events. The operation is checked when it begins. */
export const stream = <M extends SessionEvents.Mode, F, RF, T extends Tools, E, R, RHalt, REvent>(
  operation: Effect.Effect<Operations.Operation<M>, F, RF>,
  options: Chat.Options<T, E, R, RHalt, REvent>,
  isFinal?: IsFinal
): Stream.Stream<Event.Event, F | Errors<T, E>, RF | Services<T, R | RHalt | REvent>> =>
  Stream.unwrap(Effect.map(open(operation, options, isFinal), ({ events }) => events))

/** Returns an operation's result: the fold of its events. */
export const awaited = <M extends SessionEvents.Mode, F, RF, T extends Tools, E, R, RHalt, REvent, A>(
  operation: Effect.Effect<Operations.Operation<M>, F, RF>,
  options: Chat.Options<T, E, R, RHalt, REvent, A>
): Effect.Effect<SessionEvents.Done<M, A>, F | Errors<T, E>, RF | Services<T, R | RHalt | REvent>> =>
  // The scope belongs to the operation: the events are read in the caller's scope.
  Effect.scopedWith((scope) =>
    Effect.flatMap(Scope.provide(open(operation, options), scope), ({ events, run }) =>
      Effect.flatMap(Stream.runDrain(events), () => doneOf(run, options.output)))
  )

/** Returns an operation's result. Fails if the engine could not run it as asked, unless an earlier turn's calls ran. */
const doneOf = <M extends SessionEvents.Mode, A, R>(
  { done, hasOpening }: OperationRun<M>,
  output: Turns.Decodes<A, R> | null | undefined
): Effect.Effect<SessionEvents.Done<M, A>, Step.EngineError, R> => {
  const { response } = "steps" in done.result ? done.result.steps[0] ?? {} : done.result
  return response?.error instanceof Step.EngineError && !hasOpening
    ? Effect.fail(response.error)
    : Effect.map(Turns.decoded(done.result, output), (result) => ({ ...done, result }) as SessionEvents.Done<M, A>)
}

type ResumeFailure = Operations.OperationError | Writers.KeepError

type ResumeOptions<T extends Tools, E, R, RHalt, REvent, A = unknown> =
  & Chat.Options<T, E, R, RHalt, REvent, A>
  & Operations.ResumeOptions

const isReplayed = (event: Event.Event): boolean => "replayed" in event && event.replayed === true

/** Returns the run options. An observer without replays does not receive them. */
const observedBy = <T extends Tools, E, R, RHalt, REvent, A>(
  { onEvent, replays, ...options }: ResumeOptions<T, E, R, RHalt, REvent, A>
): Chat.Options<T, E, R, RHalt, REvent, A> => {
  if (onEvent === undefined) return options
  return { ...options, onEvent: (event) => replays === false && isReplayed(event) ? undefined : onEvent(event) }
}

/** Resumes a run for an operation recording its events. */
export const resumption = <T extends Tools, E, R, RHalt, REvent>(
  options: ResumeOptions<T, E, R, RHalt, REvent>,
  { isFinal, ...limits }: { readonly isFinal?: IsFinal } & Operations.Limits = {}
): Stream.Stream<
  Event.Event,
  ResumeFailure | E | Tool.Fatal<T[number]>,
  Journals.Store | Services<T, R | RHalt | REvent>
> => {
  const events = stream(Operations.resuming(options, limits), observedBy(options), isFinal)
  return options.replays === false ? Stream.filter(events, (event) => !isReplayed(event)) : events
}

/** Returns the events of a resumed run. */
export const streamResumed = <T extends Tools, E, R, RHalt, REvent>(
  kept: Kept.Kept,
  options: ResumeOptions<T, E, R, RHalt, REvent>
): Stream.Stream<
  Event.Event,
  ResumeFailure | E | Tool.Fatal<T[number]>,
  Journals.Store | Services<T, R | RHalt | REvent>
> => Kept.keepStream(kept, () => resumption(options))

/** Returns the result of a resumed run. */
export const resumed = <K extends Kept.Kept, T extends Tools, E, R, RHalt, REvent, A>(
  kept: K,
  options: ResumeOptions<T, E, R, RHalt, REvent, A>
): Effect.Effect<
  Kept.Outcome<SessionEvents.Done<"chat", A>, K>,
  ResumeFailure | E | Tool.Fatal<T[number]>,
  Journals.Store | Services<T, R | RHalt | REvent>
> => Kept.keep(kept, () => awaited(Operations.resuming(options), observedBy(options)))

/** Abandons an interrupted run. */
export const abandoned = <K extends Kept.Kept>(
  kept: K
): Effect.Effect<Kept.Outcome<SessionData.Session, K>, Writers.KeepError, Journals.Store> =>
  Kept.keep(kept, () => Operations.abandoning)

// Nested runs, started by a recorded operation's handlers with `Chat.stream` and `Chat.run`.

/** A nested run has its parent's limits. */
const unbounded = { maxAge: Duration.infinity, maxAttempts: Number.MAX_SAFE_INTEGER, takeOver: true }

/**
 * Continues a known nested run: an interrupted run is resumed, a suspended run continues with its answers, and a
 * finished run returns its result. Returns `undefined` for an unknown run.
 */
const continued = (
  kept: Kept.Kept,
  around: Writers.Parent,
  call: object | undefined,
  parent: Records.Parent,
  answers: Resumptions.NestedAnswers,
  options: Chat.Options
): Stream.Stream<Event.Event, any, any> | undefined => {
  const { session, state: { ended, parent: last, run } } = kept
  // A model may reuse a call id in another turn; that call has another run.
  if (answers.length === 0 && last !== undefined && last.idempotencyKey !== parent.idempotencyKey) return undefined
  const within = (events: Stream.Stream<Event.Event, any, any>) =>
    Kept.keepWithin(kept, around, call === undefined ? events : refusing(kept.id, around, events))
  if (run !== undefined) return within(stream(Operations.resuming(unbounded), options))
  const ids = new Set(answers.map(({ id }) => id))
  const isAnswered = session.suspensions.every(({ id }) => ids.has(id))
  const hasAnswers = session.suspensions.length + session.answered.length + session.approved.length > 0
  if (isAnswered && hasAnswers) {
    return within(stream(Operations.continuingNested(answers, parent), options))
  }
  const result = ended?.result
  if (ended === undefined || result === undefined) return undefined
  return Stream.fromEffect(Effect.map(Spendings.CurrentSpending, (spending) => {
    if (result.totalUsage !== null) spending?.takeUp(result.totalUsage)
    return Nested.completed(result, ended.steps, session.thread)
  }))
}

/**
 * Stops the parent of a refused nested run: its call has no answer, and the parent can be resumed again with the
 * missing parts.
 */
const refusing = <A, E, R>(
  id: string,
  { failed }: Writers.Parent,
  events: Stream.Stream<A, E, R>
): Stream.Stream<A, E, R> =>
  Stream.catch(events, (error) => {
    if (!(error instanceof Resumptions.ResumeError) || error.id !== id) return Stream.fail(error)
    // An operation continuing a nested run can fail with this error itself.
    Deferred.doneUnsafe(failed, Exit.fail(error as never))
    return Stream.never
  })

/** Starts a nested run recorded for the first time, or again, from its input. */
const begun = (
  id: string,
  parent: Records.Parent,
  thread: Thread.Thread,
  around: Writers.Parent,
  options: Chat.Options
): Stream.Stream<Event.Event, any, any> =>
  Stream.unwrap(Effect.map(Kept.stored(around, Kept.load(id)), (known) => {
    const kept = known ?? Kept.keptOf(id, States.initial(id), 0)
    const operation = Operations.beginningNested(SessionData.make({ thread }), parent)
    return Kept.keepWithin(kept, around, stream(operation, options))
  }))

/**
 * Records the runs started by a call's handler or a program, each in its own journal. If the handler is restarted after
 * its process ended, they continue where they were interrupted.
 */
const nesting: Resumptions.NestingOf = (around, call, answers) => {
  const parent: Records.Parent = call === undefined
    ? { id: around.id }
    : { id: around.id, toolCallId: call.id, idempotencyKey: call.idempotencyKey }
  const ids = new Nested.Ids(around.id, call?.id)
  const waiting = new WeakSet<Event.ChatResult>()
  const noted = (event: Event.Event): Event.Event => {
    if (event._tag === "ChatCompleted" && event.result.suspensions !== undefined) waiting.add(event.result)
    return event
  }
  return {
    canGoOn: (result) => around.isAnswerable && waiting.has(result),
    stream: <E, R>(input: Thread.Input, options: Chat.Options, unrecorded: Stream.Stream<Event.Event, E, R>) =>
      Stream.unwrap(Effect.gen(function*(): Effect.fn.Return<Stream.Stream<Event.Event, E, R>> {
        const valid = Thread.validate(input)
        if (Result.isFailure(valid)) return unrecorded
        const { giveBack, id } = ids.take(valid.success)
        const kept = answers !== undefined ? yield* Kept.stored(around, Kept.load(id)) : undefined
        const known = kept === undefined ? undefined : continued(kept, around, call, parent, answers ?? [], options)
        const events = unkept(known ?? begun(id, parent, valid.success, around, options))
        return events.pipe(Stream.map(noted), Stream.tapError(() => Effect.sync(giveBack)))
      }))
  }
}

/**
 * Options for recording a program's runs.
 *
 * @category options
 */
export interface RunsOptions {
  /**
   * Policy for a call already started when the process died, if its tool does not decide: it has neither `afterCrash`
   * nor `lookUp`, and is neither `readOnly` nor `idempotent`. Defaults to `"report"`.
   */
  readonly afterCrash?: Tool.AfterCrash
}

const knownRunsOptions = { afterCrash: Values.oneOf("retry", "report", "ask", "fail") } satisfies NamesOf<RunsOptions>

/** Records a program's runs under a claim. */
export const layerRuns = (
  claim: Claims.HeldClaim,
  options: RunsOptions = {}
): Layer.Layer<never, never, Journals.Store> =>
  Layer.effect(
    SubAgent.CurrentNesting,
    Effect.gen(function*() {
      checkNames("Session.layerRuns", options, knownRunsOptions)
      const program = yield* Kept.program(claim, options.afterCrash)
      const { canGoOn, stream } = nesting(program, undefined, [])
      const broken = Effect.orDie(Kept.overOf(program))
      return { canGoOn, stream: (...run) => Stream.interruptWhen(stream(...run), broken) }
    })
  )

/** Returns events without recording their turns as nested runs. */
const unkept = <A, E, R>(events: Stream.Stream<A, E, R>): Stream.Stream<A, E, R> =>
  Stream.provideService(events, SubAgent.CurrentNesting, undefined)
