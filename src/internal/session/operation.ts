/**
 * One operation while it runs. Every event goes through the reducer, and what has to be recorded before something follows
 * from it is recorded where that starts: a run before its first event, a call before its handler, an outcome before its
 * answer. What the records of a turn contain already is not written again with the turn.
 */
import type * as Arr from "effect/Array"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Types from "effect/Types"
import type * as Event from "../../Event.ts"
import type * as Executor from "../../Executor.ts"
import type * as Message from "../../Message.ts"
import * as Policy from "../../Policy.ts"
import type * as Response from "../../Response.ts"
import type * as Tool from "../../Tool.ts"
import * as Answers from "../answer/answer.ts"
import * as Contents from "../answer/content.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import * as OutcomeJson from "../answer/outcomeJson.ts"
import * as SubAgent from "../answer/subAgent.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import { ToolError } from "../declare/outcome.ts"
import * as EventJson from "../fold/eventJson.ts"
import * as Json from "../json.ts"
import * as Inherited from "../stop/inherited.ts"
import { CurrentOperation, type Running } from "../stop/ownedFibers.ts"
import * as Ledgers from "./ledger.ts"
import * as Recorders from "./recorder.ts"
import type * as Records from "./records.ts"
import * as Reducer from "./reducer.ts"
import type * as SessionState from "./state.ts"

type RecordOf<Tag extends Records.Record["_tag"]> = Extract<Records.Record, { readonly _tag: Tag }>

/** What the journal has of a call of the turn that is under way. */
interface Recorded {
  readonly toolCall: Message.ToolCall
  readonly stepIndex: number
  /** What runs inside its handler have used. */
  readonly spending: Inherited.Spending | undefined
  /** The outcome as it was recorded, once it was. */
  outcome: { readonly json: unknown; readonly encoded: boolean; readonly raw: unknown } | undefined
}

/** What a run is begun with. */
export interface Beginning {
  readonly records: Records.Records
  /** The journal before it. */
  readonly state: Records.JournalState
}

export class OperationRun<M extends Reducer.Mode> {
  reducer: Reducer.Progress<M>
  readonly requestId: string
  readonly recorder: Recorders.Recorder | undefined
  /** Owns the appends of the operation, and the observer of what it reports beside its runs. */
  readonly running: Running
  /** Owns the effect that may ask the operation to stop. It is stopped when there is a result. */
  readonly stopping: Running
  /** Handlers of approved calls that did not stop. */
  readonly abandoned: Array<Event.Abandoned> = []
  private readonly limits: Pick<Policy.Policy, "resultLimit" | "resultCut">
  /** Whether an `onToolError` of the run decides what the model reads of a failure. */
  private readonly decidesErrors: boolean
  private readonly spending: Inherited.Spending
  /** The calls of the turn that have started, by their ids. */
  private calls = new Map<string, Recorded>()
  /** What the latest call that was answered came to. */
  private completed: Event.Of<"ToolExecutionCompleted"> | undefined
  /** The reply of the turn, if the journal has it. */
  private replied: Response.Response | undefined

  constructor(
    reducer: Reducer.Progress<M>,
    requestId: string,
    recorder: Recorders.Recorder | undefined,
    running: Running,
    stopping: Running,
    limits: Pick<Policy.Policy, "resultLimit" | "resultCut">,
    decidesErrors: boolean,
    spending: Inherited.Spending
  ) {
    this.reducer = reducer
    this.requestId = requestId
    this.recorder = recorder
    this.running = running
    this.stopping = stopping
    this.limits = limits
    this.decidesErrors = decidesErrors
    this.spending = spending
  }

  begin({ records, state }: Beginning): Effect.Effect<void> {
    for (const { encoded = false, outcome, toolCall } of state.interrupted?.calls ?? []) {
      const known = outcome === undefined ? undefined : { json: outcome, encoded, raw: undefined }
      const stepIndex = state.interrupted?.steps.length ?? 0
      this.calls.set(toolCall.id, { toolCall, stepIndex, spending: undefined, outcome: known })
    }
    this.replied = state.interrupted?.response
    return Effect.map(Recorders.recorded(state, records, this.recorder, this.running), (state) => {
      this.reducer = { ...this.reducer, state }
    })
  }

  /** Runs a call, with its start recorded before it and its outcome behind it. */
  recordedCall<T extends Tool.Any>(
    executor: Executor.Service,
    tool: T,
    args: unknown,
    call: Tool.CallContext
  ): Effect.Effect<Tool.Outcome<T>, never, Tool.Services<T>> {
    return Effect.gen({ self: this }, function*() {
      const { attempt, id, idempotencyKey, stepIndex, toolCall } = call
      const { requestId } = this
      const spending = new Inherited.Spending(yield* Inherited.CurrentSpending)
      const recorded: Recorded = { toolCall, stepIndex, spending, outcome: undefined }
      this.calls.set(id, recorded)
      yield* this.record({ _tag: "CallStarted", requestId, stepIndex, toolCall, attempt, idempotencyKey })
      let contextUpdate: Json.JsonObject | undefined
      const executed = executor.execute(tool, args, {
        ...call,
        updateContext: (values) =>
          Effect.map(call.updateContext(values), () => {
            contextUpdate = { ...contextUpdate, ...values }
          })
      })
      const outcome = yield* Effect.scopedWith((scope) =>
        Effect.andThen(spending.enter(scope), Effect.provideService(executed, Inherited.CurrentSpending, spending))
      )
      // Its schema has written it, and is not asked again for the answer.
      const { json, outcome: counted } = ToolOutcomes.isSuspended(outcome)
        ? { json: EventJson.toJson(outcome), outcome }
        : yield* OutcomeJson.record(tool, outcome)
      const ended: Types.Mutable<RecordOf<"CallEnded">> = {
        _tag: "CallEnded",
        requestId,
        stepIndex,
        toolCallId: id,
        outcome: json,
        encoded: true,
        ...this.answeredBy(tool, counted),
        ...OpenCalls.expiry(outcome, yield* Clock.currentTimeMillis),
        ...usedBy(spending)
      }
      if (contextUpdate !== undefined) ended.contextUpdate = contextUpdate
      recorded.outcome = { json, encoded: true, raw: counted }
      yield* this.record(ended)
      return counted as Tool.Outcome<T>
    })
  }

  /** How the model would read the outcome, where it is not as by default: a reader of the journal does not know the tool. */
  private answeredBy(tool: Tool.Any, outcome: Tool.Outcome): AnsweredBy {
    const isDecided = outcome._tag === "Error" && (this.decidesErrors || typeof tool.onToolError === "function")
    const { standard } = Policy
    const { resultCut = standard.resultCut, resultLimit = 0 } = Contents.limitOf(tool.maxResultChars, this.limits)
    return {
      ...(resultLimit === standard.resultLimit ? {} : { resultLimit }),
      ...(resultCut === standard.resultCut ? {} : { resultCut }),
      ...(isDecided ? { isErrorDecided: true } : {})
    }
  }

  /** Appends a record that the reducer does not need: those of a call, which stand between the events. */
  readonly record = (record: Records.Record): Effect.Effect<void> =>
    this.append([record], () => Reducer.apply(this.reducer.state, record).session)

  private append(records: ReadonlyArray<Records.Record>, after: () => SessionState.Session): Effect.Effect<void> {
    return Effect.suspend(() => {
      const [first, ...rest] = records
      return first === undefined || this.recorder === undefined
        ? Effect.void
        : this.recorder.append([first, ...rest], after(), this.running)
    })
  }

  /** Takes in events of the operation. What they are recorded as is written before they are seen. */
  readonly takeAll = (events: Arr.NonEmptyReadonlyArray<Event.Event>) =>
    Effect.forEach(
      events,
      (event) => event._tag === "ChatCompleted" ? this.complete(event) : Effect.as(this.take(event), event)
    )

  private take(event: Event.Event): Effect.Effect<void> {
    return Effect.suspend(() => {
      const [reducer, records] = Reducer.next(this.reducer, event)
      this.reducer = reducer
      if (this.recorder === undefined) return Effect.void
      const answered = this.answered(event)
      const own = records.map((record) => this.shortened(record))
      return own.length + answered.length === 0
        ? Effect.void
        : this.append([...answered, ...own], () => reducer.state.session)
    })
  }

  /**
   * The record of an answer that does not follow from what the handler came to: a timeout or a cancellation came before
   * the handler had ended.
   */
  private answered(event: Event.Event): ReadonlyArray<Records.Record> {
    if (event._tag === "ToolExecutionCompleted") this.completed = event
    if (event._tag !== "ToolResultEncoded" && event._tag !== "ToolHalt") return []
    const id = OpenCalls.callOf(event)
    const call = this.calls.get(id)
    const { completed } = this
    if (call === undefined || completed?.id !== id || !isOverruled(completed.result, call)) return []
    const outcome = EventJson.toJson(completed.result)
    call.outcome = { json: outcome, encoded: false, raw: completed.result }
    const { requestId } = this
    const { stepIndex } = call
    const ended = {
      _tag: "CallEnded",
      requestId,
      stepIndex,
      toolCallId: id,
      outcome,
      encoded: false,
      answer: event
    } as const
    return [{ ...ended, ...usedBy(call.spending) }]
  }

  /** A record without what the records before it contain. */
  private shortened(record: Records.Record): Records.Record {
    if (record._tag === "ReplyReceived") this.replied = record.response
    // A call of the turn that follows may have the id of one that was approved.
    if (record._tag === "ApprovedAnswered") {
      for (const { toolCallId = "" } of record.messages) this.calls.delete(toolCallId)
    }
    return record._tag === "StepCompleted" ? this.shortenedStep(record) : record
  }

  private shortenedStep(record: RecordOf<"StepCompleted">): Records.Record {
    const { calls, replied } = this
    const { response, ...rest } = record
    const said = response === undefined ? undefined : Reducer.messageOf(response)
    const messages = record.messages.map((message) => {
      if ("_tag" in message) return message
      if (message.role === "assistant" && Json.isSame(message, said)) return { _tag: "Reference" } as const
      return message.role === "tool" ? this.referenceTo(message, calls.get(message.toolCallId ?? "")) : message
    })
    this.calls = new Map()
    this.replied = undefined
    const { nested } = this.spending
    const whole: RecordOf<"StepCompleted"> = {
      ...(response === undefined || Json.isSame(response, replied) ? rest : record),
      messages,
      ...(nested === null ? {} : { nestedUsage: nested })
    }
    return whole
  }

  /** An answer that is written from the outcome of its call is not written twice. */
  private referenceTo(
    message: Message.Message,
    call: Recorded | undefined
  ): RecordOf<"StepCompleted">["messages"][number] {
    if (call?.outcome === undefined) return message
    const { encoded, json } = call.outcome
    const isWritten = (limits: { readonly resultLimit: number; readonly resultCut: "head" | "headAndTail" }) =>
      Json.isSame(Answers.recalled(call.toolCall, { outcome: json, encoded }, limits), message)
    const reference = { _tag: "Reference", toolCallId: call.toolCall.id } as const
    if (isWritten({ resultLimit: 0, resultCut: "headAndTail" })) return reference
    const { resultCut, resultLimit } = this.limits
    return Number.isFinite(resultLimit) && resultLimit > 0 && isWritten({ resultLimit, resultCut })
      ? { ...reference, resultLimit, resultCut }
      : message
  }

  /**
   * The result names what else was abandoned: handlers of approved calls, an append, and the effect that asks for the stop,
   * which may still do so while the end is recorded.
   */
  private complete(event: Event.Of<"ChatCompleted">): Effect.Effect<Event.Event> {
    return Effect.suspend(() => {
      const before = this.reducer
      const known = [...this.abandoned, ...this.running.givenUpTasks]
      return Effect.map(Effect.andThen(this.take(event), this.stopping.stop), (stopped) => {
        const others = [...known, ...stopped]
        if (others.length === 0) return event
        const abandoned = [...others, ...event.result.abandoned ?? []]
        const named = { ...event, result: { ...event.result, abandoned } }
        // The session is the one that was recorded: it does not have this.
        this.reducer = { ...Reducer.next(before, named)[0], state: this.reducer.state }
        return named
      })
    })
  }
}

type AnsweredBy = Pick<RecordOf<"CallEnded">, "resultLimit" | "resultCut" | "isErrorDecided">

const usedBy = (spending: Inherited.Spending | undefined): Pick<RecordOf<"CallEnded">, "nestedUsage"> => {
  const nestedUsage = spending?.total ?? null
  return nestedUsage === null ? {} : { nestedUsage }
}

const overruling: ReadonlySet<unknown> = new Set(["timeout", "cancelled"])

/** Whether a call was answered by its timeout or by a cancellation, and not by what its handler came to. */
const isOverruled = (result: Event.CallOutcome, { outcome }: Recorded): boolean => {
  if (result._tag !== "Error" || !(result.error instanceof ToolError)) return outcome === undefined
  if (outcome === undefined) return true
  const raw = Json.isObject(outcome.raw) ? outcome.raw["error"] : undefined
  return overruling.has(result.error.reason) && outcome.raw !== undefined && raw !== result.error
}

/** The answers for what runs inside a call. */
export type NestedAnswers = SessionState.NestedAnswers["answers"]

/**
 * What keeps the runs that a call starts, or a program. With answers the call was cut, or waited for them, and its runs go on; without,
 * they are new.
 */
export type NestingOf = (
  around: Recorders.Around,
  call: Pick<Tool.CallContext, "id" | "idempotencyKey"> | undefined,
  answers: NestedAnswers | undefined
) => SubAgent.Nesting

/**
 * The executor that records the start of each handler before it starts, and its outcome before anything follows from it. A
 * run that a handler starts is not a part of the operation: it is kept for itself.
 */
export const recording = <M extends Reducer.Mode>(
  executor: Executor.Service,
  run: OperationRun<M>,
  ledger: Ledgers.Ledger | undefined,
  nestingOf: NestingOf
): Executor.Service => {
  const plain: Executor.Service = {
    execute: (tool, args, call) =>
      executor.execute(tool, args, call).pipe(
        Effect.provideService(Recorders.CurrentRecorder, undefined),
        Effect.provideService(CurrentOperation, undefined)
      )
  }
  const { recorder } = run
  if (recorder === undefined) return plain
  const waited = new Map(run.reducer.session.nested?.map(({ answers, id }) => [id, answers]))
  // A further attempt of the call is a new one.
  const answersOf = ({ id }: Tool.CallContext): NestedAnswers | undefined => {
    const answers = waited.get(id)
    waited.delete(id)
    return answers
  }
  const nesting = (isAgain: boolean): Executor.Service => ({
    execute: (tool, args, call) =>
      Effect.suspend(() => {
        const answers = answersOf(call) ?? (isAgain ? [] : undefined)
        return Effect.provideService(
          plain.execute(tool, args, call),
          SubAgent.CurrentNesting,
          nestingOf(recorder, call, answers)
        )
      })
  })
  const recorded = (plain: Executor.Service): Executor.Service => ({
    execute: (tool, args, call) => run.recordedCall(plain, tool, args, call)
  })
  const first = recorded(nesting(false))
  const again = recorded(nesting(true))
  return {
    execute: (tool, args, call) => {
      if (call.requestId !== run.requestId) return plain.execute(tool, args, call)
      return ledger === undefined
        ? first.execute(tool, args, call)
        : Ledgers.execute(ledger, first, again, tool, args, call)
    }
  }
}
