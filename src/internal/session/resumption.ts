/**
 * Resumes a run by working its open turn. The recorded reply is emitted again. An answered call keeps its answer, a
 * waiting call keeps waiting, and a requested or approved call runs. For a call that had only started, its tool
 * decides. The same code records each call's outcome, resumed or not.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as Adapter from "../../Adapter.ts"
import type * as Message from "../../Message.ts"
import * as Response from "../../Response.ts"
import type * as Tool from "../../Tool.ts"
import * as Answers from "../answer/answer.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import * as SubAgent from "../answer/subAgent.ts"
import { toolError } from "../declare/outcome.ts"
import type * as ToolOptions from "../declare/toolOptions.ts"
import * as Json from "../json.ts"
import * as PrepareStep from "../loop/prepareStep.ts"
import * as Accounts from "../permits/account.ts"
import * as RunJournal from "../run/runJournal.ts"
import * as Inherited from "../stop/inherited.ts"
import type { Running } from "../stop/ownedFibers.ts"
import * as Spendings from "../stop/spending.ts"
import type * as SessionData from "./data.ts"
import * as SessionEvents from "./events.ts"
import type * as Records from "./records.ts"
import * as States from "./state.ts"
import * as Writers from "./writer.ts"

/**
 * A run cannot be resumed, or settled calls cannot run. Nothing was written, and no handler has started.
 *
 * - `unclaimed`: the session was loaded without a claim; another process may be running it now
 * - `tool_missing`: a call was started or approved, and its tool is not among the given tools
 * - `arguments_changed`: such a call's arguments no longer fit its tool's parameters
 * - `rule_missing`: a rule with notes in the run is not among the given rules
 * - `adapter_missing`: the current step's adapter is missing in `Adapter.named`
 *
 * Two reasons belong to a run ended instead of resumed: they are the error of its outcome `Failed`.
 *
 * - `too_old`: the run started longer ago than `maxAge`
 * - `too_many_attempts`: it was resumed as often as `maxAttempts` allows
 *
 * @category errors
 */
export class ResumeError extends Schema.TaggedError<ResumeError>("heddle/Session/ResumeError")("ResumeError", {
  /** Kind of problem. */
  reason: Schema.Literals([
    "unclaimed",
    "tool_missing",
    "arguments_changed",
    "rule_missing",
    "adapter_missing",
    "too_old",
    "too_many_attempts"
  ]),
  /** Session id. Empty for a session without an id. */
  id: Schema.String,
  /** Description of the problem, with its resolution. */
  detail: Schema.String,
  /** Tool name, if the error is about a call. */
  toolName: Schema.optionalKey(Schema.String),
  /** Call id, if the error is about a call. */
  toolCallId: Schema.optionalKey(Schema.String)
}) {
  override get message(): string {
    const session = this.id === "" ? "the session" : `session ${JSON.stringify(this.id)}`
    return `${session} cannot be resumed: ${this.reason}: ${this.detail}`
  }
}

Json.addError("ResumeError", ResumeError)

/** Refuses tools unable to run a started or approved call. */
export const check = (
  state: States.State,
  id: string,
  tools: ToolOptions.Toolbox
): Effect.Effect<void, ResumeError, any> =>
  Effect.forEach(state.turn?.calls.values() ?? [], (call) => {
    const isToRun = call._tag === "Started" || call._tag === "Granted" || call._tag === "Asked" && call.attempt > 0
    return isToRun ? checkCall(call, id, tools) : Effect.void
  }, { discard: true })

/**
 * Refuses the given rules if a rule with notes in the run is missing, and the adapters if the current step's adapter is
 * missing.
 */
export const checkRules = (
  { run, turn }: States.State,
  id: string,
  known: ReadonlySet<string>,
  adapter: Adapter.Service | undefined
): Effect.Effect<void, ResumeError> => {
  if (run === undefined) return Effect.void
  const detail = turn === undefined ? PrepareStep.missingAdapter(run.noted[PrepareStep.name], adapter) : undefined
  if (detail !== undefined) return new ResumeError({ reason: "adapter_missing", id, detail })
  const missing = [run.noted, ...run.steps.map(({ notes }) => notes)]
    .flatMap(Object.keys)
    .find((name) => !known.has(name))
  return missing === undefined ? Effect.void : new ResumeError({
    reason: "rule_missing",
    id,
    detail: `the rule ${
      JSON.stringify(missing)
    } has notes in the run, and is not given; give the rules and options of the run`
  })
}

const checkCall = (
  { _tag, toolCall, version }: States.Call,
  id: string,
  tools: ToolOptions.Toolbox
): Effect.Effect<void, ResumeError, any> => {
  // A call whose tool has changed is answered instead.
  if (version !== undefined && tools.get(toolCall.name)?.version !== version) return Effect.void

  const { id: toolCallId, name: toolName } = toolCall
  const refused = (reason: "tool_missing" | "arguments_changed", detail: string) =>
    new ResumeError({ reason, id, detail, toolName, toolCallId })
  const call = `call ${JSON.stringify(toolCallId)} of the tool "${toolName}"`
  const tool = tools.get(toolName)
  if (tool === undefined) {
    const had = _tag === "Granted" ? "was approved" : "has started"
    return refused("tool_missing", `${call} ${had}, and there is no tool of that name; give the tools of the run`)
  }
  // The handler decides about arguments edited by a person.
  if (_tag === "Granted") return Effect.void
  return Effect.mapError(
    Effect.asVoid(Effect.sandbox(tool.parameters.decode(toolCall.arguments))),
    () =>
      refused("arguments_changed", `the arguments of ${call} no longer fit its parameters; give the tool of the run`)
  )
}

// Calls.

/** Answers for a call's nested run. */
export type NestedAnswers = SessionData.NestedAnswers["answers"]

/**
 * Records the runs started by a call or a program. With answers, the call was interrupted or suspended, and its runs
 * continue; without answers, they are new.
 */
export type NestingOf = (
  parent: Omit<Writers.Parent, "store"> & { readonly store: Writers.Parent["store"] },
  call: Pick<Tool.CallContext, "id" | "idempotencyKey"> | undefined,
  answers: NestedAnswers | undefined
) => SubAgent.Nesting

/** The recorder of an operation. */
export interface Recording extends Pick<RunJournal.Journal, "replied" | "step" | "ended"> {
  readonly writer: Writers.Writer
  readonly requestId: string
  readonly running: Running
  /** Reason for ending the run instead of resuming. */
  readonly ending: "Stop" | "Deadline" | "Failure" | undefined
  readonly nestingOf: NestingOf
}

/** Returns an operation's journal. */
export const journalOf = (recording: Recording): RunJournal.Journal => {
  const { ending, nestingOf, requestId, running, writer } = recording
  const { state } = writer
  const isKept = writer.store !== undefined
  /** Nested usage of running calls. */
  const spent = new Map<string, Spendings.Spending>()
  /** Returns an ending or waiting call's nested usage, and the cost of its unjournaled requests. */
  const usedBy = (id: string): SessionEvents.Used => {
    const { total: nestedUsage = null, unkept: nestedSpent = Accounts.nothing } = spent.get(id) ?? {}
    return {
      ...(nestedUsage === null ? {} : { nestedUsage }),
      ...(nestedSpent.calls === 0 ? {} : { nestedSpent })
    }
  }

  /** Times the step's calls were complete in its reply. */
  const asked = new Map<string, number>()
  /** Calls not started because the owner is leaving. */
  const parked = new Set<string>()
  const ended = ({ id }: Message.ToolCall, record: Records.Record): Effect.Effect<void> =>
    Effect.mapEager(writer.append([record], running), () => writer.handlerEnded(id))
  /** Ends of unstarted calls from before their reply is recorded, by call id. */
  const early = new Map<string, Records.Record>()
  /** Keeps the end of a call not yet in the journal. It is recorded after the reply. */
  const endedEarly = ({ id }: Message.ToolCall, record: Records.Record): Effect.Effect<void> =>
    Effect.sync(() => {
      early.set(id, record)
      if (isKept) writer.handlerEnded(id)
    })

  const end = (call: Message.ToolCall, record: Records.Record): Effect.Effect<void> =>
    isOfTurn(call, state, writer) ? ended(call, record) : endedEarly(call, record)

  /** Returns a wrapper for a handler: the next owner continues a sub-agent's nested runs. */
  const handlerOf = (
    call: Tool.CallContext,
    tool: Tool.Any,
    given: NestedAnswers | undefined,
    deadlineAt: number | undefined
  ) =>
  (handler: Effect.Effect<unknown, never, any>): Effect.Effect<unknown, never, any> =>
    Effect.gen(function*() {
      // A call's attempts share one spending.
      const spending = spent.get(call.id) ?? new Spendings.Spending(yield* Spendings.CurrentSpending, Accounts.nothing)
      spent.set(call.id, spending)
      const nesting = writer.store === undefined
        ? undefined
        : nestingOf({ ...parentOf(writer, tool), store: writer.store }, call, given)
      const services = Context.make(Spendings.CurrentSpending, spending).pipe(
        Context.add(SubAgent.CurrentNesting, nesting),
        Context.add(Writers.CurrentWriter, undefined)
      )
      const within = Effect.provide(
        handler,
        deadlineAt === undefined ? services : Context.add(services, Inherited.CurrentDeadline, deadlineAt)
      )
      // The next owner continues a sub-agent, even one blocking interruption of its run.
      const left = writer.claim !== undefined && writer.isLeft && SubAgent.isSubAgent(tool)
        ? Effect.raceFirst(within, Effect.flatMap(writer.claim.drained.await, () => park(call)))
        : within
      return yield* Effect.scopedWith((scope) => Effect.andThen(spending.enter(scope), left))
    })

  /** Leaves a call to the next owner. A blocking call asked to stop has nothing to finish. */
  const park = (call: Tool.CallContext): Effect.Effect<Tool.Outcome> => {
    parked.add(call.id)
    return Effect.flatMap(Inherited.ParentCancellation, (stop) => RunJournal.parked(call, stop))
  }

  /** The request an early call is recorded with: later early calls do not repeat the request. */
  let earlyOf: Writers.Writer["request"]
  const earlyRequest = (): Pick<Records.CallStarted, "request"> => {
    const { request, requested } = writer
    if (requested === undefined || earlyOf === request) return {}
    earlyOf = request
    return { request: requested }
  }

  /** Remembered approvals by which calls ran without asking, by call id. */
  const allowed = new Map<string, SessionData.Allowed>()
  const startOf = (
    { attempt, id, idempotencyKey, toolCall }: Tool.CallContext,
    tool: Tool.Any,
    waited?: Records.CallStarted["waited"]
  ): Records.CallStarted => {
    const isEarly = !isReplied(state, writer) && state.turn?.calls.has(id) !== true
    const askedAt = asked.get(id)
    // Further attempts do not repeat this.
    asked.delete(id)
    const by = allowed.get(id)
    return {
      _tag: "CallStarted",
      requestId,
      toolCallId: id,
      ...(isEarly ? { toolCall, ...earlyRequest() } : {}),
      attempt,
      idempotencyKey,
      ...(isKept && SubAgent.isSubAgent(tool) ? { isRun: true } : {}),
      ...(askedAt === undefined ? {} : { asked: writer.since(askedAt) }),
      ...(waited === undefined ? {} : { waited }),
      ...(by === undefined ? {} : { allowed: { id: by.id, ...(by.by === undefined ? {} : { by: by.by }) } })
    }
  }
  /** Returns `true` if a call's approval was forgotten before its start was durable. */
  const isDisallowed = ({ id }: Tool.CallContext): boolean => {
    const known = allowed.get(id)
    return known !== undefined && !state.allowed.some((other) => Json.isSame(other, known))
  }

  /** Records a call's start. `isAgain`: it started before, so its nested runs continue. */
  const started = (
    call: Tool.CallContext,
    tool: Tool.Any,
    isAgain: boolean,
    waited: Records.CallStarted["waited"],
    deadlineAt?: number
  ): Effect.Effect<RunJournal.Begun> =>
    Effect.gen(function*() {
      const known = state.turn?.calls.get(call.id)
      const isRecorded = yield* writer.start(startOf(call, tool, waited), running)
      if (isRecorded) yield* writer.confirmation
      // The run was stopped before the handler starts.
      if (!isRecorded || state.stop?.requestId === requestId) {
        return { _tag: "Answer", instead: notRun(call, known, "not run: the run was stopped") }
      }
      if (isDisallowed(call)) {
        return { _tag: "Answer", instead: notRun(call, known, "not run: its approval was withdrawn") }
      }
      const answers = known !== undefined && "answers" in known ? known.answers : []
      const given = answers.length > 0 || isAgain ? answers : undefined
      return { _tag: "Start", handler: handlerOf(call, tool, given, deadlineAt) }
    })

  return {
    replied: (response, stepIndex) =>
      Effect.suspend(() => {
        const ends = Writers.nonEmpty(Response.actionableCalls(response).flatMap(({ id }) => early.get(id) ?? []))
        const replied = recording.replied(response, stepIndex)
        return ends === undefined ? replied : Effect.flatMapEager(replied, () => writer.append(ends, running))
      }),
    step: (event, step) => {
      asked.clear()
      return recording.step(event, step)
    },
    ended: recording.ended,
    find: ({ id }) => {
      const call = state.turn?.calls.get(id)
      return call && foundOf(id, call)
    },
    admits: () => {
      // A broken reply's calls do not belong to the next reply.
      early.clear()
      return writer.claim === undefined ? Effect.void : writer.admission
    },
    // A nested run has the approvals of no session.
    ...(writer.isNested ? {} : {
      allows: (call: Message.ToolCall, tool: string) => {
        const known = States.allowedIn(state, call, tool)
        if (known !== undefined) allowed.set(call.id, known)
        return known !== undefined
      }
    }),
    prepares: (prepared) => writer.start(preparedOf(requestId, prepared), running),
    discarded: (prepared) => writer.append([preparedOf(requestId, prepared)], running),
    requested: isKept ? (request) => void (writer.request = request) : undefined,
    asked: isKept ? (id, millis) => void asked.set(id, millis) : undefined,
    starts: (call, tool, isResolved, waited) => {
      if (!isKept) return Effect.mapEager(writer.append([startOf(call, tool)], running), () => RunJournal.start)
      return Effect.suspend((): Effect.Effect<RunJournal.Begun> => {
        if (isResolved) return started(call, tool, true, waited)
        const known = state.turn?.calls.get(call.id)
        if (writer.isParked) {
          parked.add(call.id)
          return Effect.succeed({ _tag: "Park" })
        }
        if (SubAgent.isSubAgent(tool)) writer.runsSubAgent(call.id)
        else if (writer.isLeft) writer.handlerBegins(call.id)
        // A call already started was started by another process.
        const isUnknown = known?._tag === "Started"
        // A sub-agent's nested run ends at the deadline, unless it has already ended.
        if (isUnknown && ending === "Deadline" && SubAgent.isSubAgent(tool)) {
          return started(call, tool, true, waited, state.run?.deadlineAt)
        }
        return isUnknown
          ? Effect.as(writer.confirmation, { _tag: "Resolve" })
          : started(call, tool, known?._tag === "Granted" && States.hasStarted(known), waited)
      })
    },
    answered: (call, answer) => {
      // The next owner starts the call. An answer arriving here, such as from its timeout, does not count.
      if (parked.has(call.id)) return Effect.interrupt
      return end(call, SessionEvents.endOf(requestId, call, answer.tail, { ...answer, used: usedBy(call.id) }))
    },
    waits: (call, event) => end(call, SessionEvents.waitOf(requestId, call, event, usedBy(call.id))),
    failed: ({ id }) => writer.append([{ _tag: "AttemptFailed", requestId, toolCallId: id }], running),
    working: (waits) => writer.working(waits),
    afterCrash: writer.afterCrash
  }
}

const preparedOf = (
  requestId: string,
  { delivered, messages, notes, spent, ...request }: RunJournal.Prepared
): Records.StepPrepared => ({
  _tag: "StepPrepared",
  requestId,
  ...request,
  ...(Object.keys(notes).length === 0 ? {} : { notes }),
  ...(messages.length === 0 ? {} : { messages }),
  ...(delivered.length === 0 ? {} : { delivered }),
  ...(spent === null ? {} : { spent })
})

/** Returns `true` if these calls' reply is recorded, or about to be written first. */
const isReplied = ({ turn }: States.State, { hasReplied }: Writers.Writer): boolean =>
  hasReplied || turn?.isEarlier === false && turn.message !== undefined

/**
 * Returns `true` if the journal contains a call: its handler has started, or its reply is recorded. Any other call's
 * outcome is recorded after the reply, if that completes.
 */
const isOfTurn = ({ id }: Message.ToolCall, state: States.State, writer: Writers.Writer): boolean =>
  state.turn?.calls.has(id) === true || isReplied(state, writer)

/** Returns the parent for a call's nested runs. A leave does not wait for a sub-agent, whose runs are resumed. */
const parentOf = (recorder: Writers.Writer, tool: Tool.Any): Omit<Writers.Parent, "store"> => {
  const { afterCrash, claim, failed, id, isAnswerable, isLeft } = recorder
  return {
    id,
    failed,
    isAnswerable,
    afterCrash,
    claim,
    isLeft: isLeft && SubAgent.isSubAgent(tool),
    recorder
  }
}

/** Returns a call's recorded outcome, from before its run was resumed or from the turn that left the call open. */
const foundOf = (id: string, call: States.Call): RunJournal.Replayed | undefined => {
  const { attempt, idempotencyKey, resume, version } = call
  if (call._tag === "Asked" && attempt === 0 && version === undefined) return undefined
  const resumed = resume !== undefined && "answer" in resume
    ? { resumed: { answer: resume.answer, state: resume.state } }
    : {}
  const known = { attempt, version, ...(idempotencyKey === undefined ? {} : { idempotencyKey }), ...resumed }
  switch (call._tag) {
    case "Answered":
      return { ...known, hasStarted: true, answer: Answers.replayed(id, call) }
    case "Waiting":
      return { ...known, hasStarted: true, waits: waitingEvent(call) }
    case "Started":
      return { ...known, hasStarted: true, isUnknown: true, beside: call.beside }
    case "Granted":
      return { ...known, hasStarted: States.hasStarted(call) }
    case "Asked":
      return { ...known, hasStarted: attempt > 0 }
  }
}

const waitingEvent = (call: States.Waiting): NonNullable<RunJournal.Replayed["waits"]> => {
  const { suspensions, toolCall } = call
  const [first] = suspensions
  const { id: toolCallId, name: toolName } = toolCall
  if (first !== undefined && States.isOwnQuestion(call)(first)) return OpenCalls.askedAgain(first)
  if (first?.path !== undefined || first?.kind !== "approval") {
    return { _tag: "ToolSuspended", toolCallId, toolName, suspensions }
  }
  return OpenCalls.requestOf({ ...first, toolCall })
}

const cancelled = (call: Tool.CallContext, detail: string): Tool.Outcome => ({
  _tag: "Error",
  error: toolError("cancelled", call, { detail })
})

/** Returns the answer for a call that does not start: unknown if an earlier process may have run the call. */
const notRun = (call: Tool.CallContext, known: States.Call | undefined, detail: string): Tool.Outcome =>
  known !== undefined && States.isInDoubt(known) ? RunJournal.unknownEffect(call) : cancelled(call, detail)
