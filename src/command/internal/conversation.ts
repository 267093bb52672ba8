/**
 * One session in the terminal, driven under a claim until no work is left or it waits for a person. A person at the
 * terminal is asked. The first Ctrl-C stops a run with a command in its journal, like a stop from elsewhere.
 */
import * as Prompt from "effect/cli/Prompt"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Stdio from "effect/Stdio"
import * as Event from "../../Event.ts"
import * as Json from "../../internal/json.ts"
import * as Offered from "../../server/internal/agents.ts"
import * as Sessions from "../../server/internal/sessions.ts"
import * as Session from "../../Session.ts"
import type * as Definitions from "./definition.ts"
import * as Problems from "./problem.ts"
import type { Stop } from "./stop.ts"
import * as Terminal from "./terminal.ts"

/** Number of failures after which a run unable to start is ended: a person is waiting. */
const maxFailures = 1

/** Exit code of a command waiting for a person, without a terminal to ask in. */
const waits = 2

const standard: Terminal.Outputs = {
  text: (text) => void process.stdout.write(text),
  note: (text) => void process.stderr.write(text)
}

const isInteractive = Stdio.Stdio.use((stdio) =>
  Effect.zipWith(stdio.stdinIsTerminal, stdio.stdoutIsTerminal, (a, b) => a && b)
)

/** Returns the typed answer to a question: as text, or as JSON if the question requires another type. */
const answerOf = (suspension: Event.Suspension, typed: string): unknown => {
  const type = suspension.answerSchema?.["type"]
  const parsed = type === undefined || type === "string" ? undefined : Json.parse(typed)
  return parsed !== undefined && Result.isSuccess(parsed) ? parsed.success : typed
}

const describe = ({ answerSchema, kind, question, toolCall }: Event.Suspension): string => {
  const call = `${Problems.oneLine(toolCall.name)} ${Problems.oneLine(JSON.stringify(toolCall.arguments))}`
  if (kind === "approval") return `? ${Problems.harmless(question ?? "")} ${call}`.replace("?  ", "? ")
  const form = answerSchema === undefined ? "" : `\n  answer: ${Problems.oneLine(JSON.stringify(answerSchema))}`
  return `? ${Problems.harmless(question ?? call)}${form}`
}

/** Asks for a verdict about a call, and returns the settling function. */
const askAbout = (suspension: Event.Suspension, by: string) =>
  Effect.gen(function*() {
    const { id, kind, opts = [] } = suspension
    if (kind === "approval" || kind === "unknown") {
      const verdict = yield* Prompt.run(Prompt.Select({
        message: kind === "approval" ? "Allow this call?" : "The call's effect is unknown. Run the call again?",
        choices: [
          { title: "Allow", value: "allow" },
          { title: "Deny", value: "deny" },
          ...(kind === "approval" ? [{ title: "Allow with other arguments", value: "edit" }] : [])
        ]
      }))
      if (verdict === "deny") {
        const reason = yield* Prompt.run(Prompt.String({ message: "Reason" }))
        return (session: Session.Session) => Session.deny(session, id, reason === "" ? undefined : reason, { by })
      }
      if (verdict === "allow") return (session: Session.Session) => Session.approve(session, id, { by })
      const typed = yield* Prompt.run(Prompt.String({
        message: "Arguments",
        default: JSON.stringify(suspension.toolCall.arguments),
        validate: (typed) => {
          const parsed = Json.parse(typed)
          return Result.isSuccess(parsed) && Json.isObject(parsed.success)
            ? Effect.succeed(typed)
            : Effect.fail("must be a JSON object")
        }
      }))
      const edited = Json.parse(typed)
      const edits = Result.isSuccess(edited) && Json.isObject(edited.success) ? edited.success : {}
      return (session: Session.Session) => Session.approve(session, id, { by, arguments: edits })
    }
    const value = opts.length > 0
      ? yield* Prompt.run(Prompt.Select({
        message: "Answer",
        choices: opts.map((option) => ({
          title: Problems.oneLine(typeof option === "string" ? option : JSON.stringify(option)),
          value: option
        }))
      }))
      : answerOf(suspension, yield* Prompt.run(Prompt.String({ message: "Answer" })))
    return (session: Session.Session) => Session.answer(session, id, value, { by })
  })

/** Session for a command to act on. */
export interface Named {
  readonly agent: string
  readonly principal: string
  readonly id: string
  /** `true` if the session outlives the process. */
  readonly isStored: boolean
}

/** Returns a session's key in the store. */
export const keyOf = ({ id, principal }: Pick<Named, "id" | "principal">): string => Sessions.prefixOf(principal) + id

/** Refuses invalid session ids. */
export const checkId = (id: string): Effect.Effect<void, Problems.Problem> =>
  Effect.asVoid(Effect.mapError(Sessions.checkId(id), ({ message }) => Problems.problem(message)))

const inUse = (id: string) => (error: { readonly owner: string }) =>
  Problems.problem(`session ${id} is in use by another process (${Problems.oneLine(error.owner)})`)

/** Options of a conversation. */
export interface Options {
  /** Message to send. Absent to continue with the remaining work. */
  readonly text?: string
  /** `true` to continue a session whose last run failed. `false` by default. */
  readonly isRetry?: boolean
  /** Outputs. The process outputs by default. */
  readonly outputs?: Terminal.Outputs
  /** `true` to print the final state as JSON rather than the model's text. `false` by default. */
  readonly isJson?: boolean
}

/** Returns a session in the command's JSON form. */
export const jsonOf = ({ agent, id }: Pick<Named, "agent" | "id">, kept: Session.Kept): object => {
  const { metadata, status, suspensions } = kept.session
  const { lastRun, output } = Session.view(kept)
  return {
    id,
    agent,
    status,
    next: Session.next(kept),
    text: Session.outputText(kept.session),
    ...(output === undefined ? {} : { output }),
    suspensions: suspensions.map(({ answerSchema, expiresAt, id, kind, opts, question, toolCall }) => ({
      id,
      kind,
      question,
      opts,
      answerSchema,
      expiresAt: expiresAt === undefined ? undefined : new Date(expiresAt).toISOString(),
      call: { name: toolCall.name, arguments: toolCall.arguments }
    })),
    ...(lastRun?.error === undefined || metadata["error"] === undefined ? {} : { error: lastRun.error })
  }
}

/** Drives a session to its end, after sending a message if given. Succeeds with the exit code. */
export const run = (
  { agents, definition }: Definitions.Loaded,
  named: Named,
  stop: Stop,
  { isJson = false, isRetry = false, outputs: given = standard, text }: Options
) =>
  Effect.gen(function*() {
    const { agent, id, isStored, principal } = named
    const outputs = isJson ? { ...given, text: () => {} } : given
    const key = keyOf(named)
    const told = (kept: Session.Kept) =>
      Effect.sync(() => isJson ? given.text(`${JSON.stringify(jsonOf(named, kept), undefined, 2)}\n`) : undefined)
    const canAsk = yield* isInteractive
    const opened = yield* Session.open(key, { origin: { principal, agent } })
    if (opened.origin.agent !== agent) {
      const { agent: other } = opened.origin
      const of = other === undefined
        ? "was begun without an agent: only a worker can drive the session"
        : `belongs to the agent ${other}`
      return yield* Problems.problem(`session ${id} ${Problems.oneLine(of)}`)
    }
    const view = new Terminal.View(outputs)
    let kept = yield* Effect.catchTag(
      Session.claim(key, { owner: `heddle, process ${process.pid}` }),
      "SessionClaimed",
      inUse(id)
    )
    const { claim } = kept
    // A call begun by another process may be answered here: its answer shows the call's name.
    view.know(kept.session.thread.messages.flatMap(({ toolCalls = [] }) => toolCalls))
    view.know(kept.interrupted?.calls.map(({ toolCall }) => toolCall) ?? [])
    // The owner looks for the stop immediately.
    const softly = Effect.andThen(Session.stop(key, { by: principal }), claim.look)
    const driven = (isRetried: boolean) =>
      Effect.gen(function*() {
        yield* Effect.acquireRelease(Effect.sync(() => stop.enterSoft()), (leave) => Effect.sync(leave))
        yield* Effect.forkScoped(stop.requested.pipe(
          Effect.andThen(Effect.sync(() => view.note("stopping; Ctrl-C again interrupts"))),
          Effect.andThen(softly)
        ))
        const calls = new Map<string, Event.PublicCall>()
        return yield* Session.drive(kept, {
          run: (kept) => Effect.map(Offered.nextOf(agents, kept), ({ options }) => ({ ...options, replays: false })),
          maxFailures,
          retry: isRetried,
          onEvent: (event) => {
            const shown = Event.toPublic(event, { publish: definition.publish ?? "all", calls })
            return shown === undefined ? Effect.void : Terminal.show(view, shown)
          }
        })
      }).pipe(Effect.scoped)

    let isSaid = text === undefined
    let retries = isRetry
    while (true) {
      const [first] = kept.session.suspensions
      if (first !== undefined && !Session.isUnfinished(kept)) {
        for (const suspension of kept.session.suspensions) view.note(describe(suspension))
        if (!canAsk) {
          const how = isStored
            ? `heddle call MODULE --session ${id} with the same --store asks in a terminal`
            : "the session ends with this process, since no --store was given"
          yield* told(kept)
          const unsaid = isSaid ? "" : "; the text was not sent"
          return yield* Problems.problem(
            `session ${id} waits for an answer, and there is no terminal to ask in${unsaid}; ${how}`,
            waits
          )
        }
        const settling = yield* askAbout(first, principal)
        const settled = yield* Effect.result(Session.keep(kept, (session) => settling(session)))
        if (Result.isFailure(settled)) {
          if (settled.failure._tag !== "SessionError") return yield* settled.failure
          const { detail, reason } = settled.failure
          view.note(
            reason === "invalid_answer"
              ? "! The answer does not have the requested form."
              : `! ${detail ?? reason}`
          )
        }
        kept = yield* Session.reload(kept)
        continue
      }
      if (!isSaid && text !== undefined && !Session.isUnfinished(kept)) {
        yield* Session.submit(key, text, { by: principal })
        isSaid = true
      } else if (!retries && !Session.isUnfinished(kept)) break
      kept = yield* driven(retries)
      retries = false
      if (stop.code !== undefined) {
        if (!isSaid) view.note("the text was not sent")
        yield* told(kept)
        return stop.code
      }
    }
    yield* told(kept)
    return kept.session.status === "error"
      ? yield* Problems.problem(
        `the run failed${isStored ? `; heddle sessions ... recover ${id} tries again` : ""}`
      )
      : 0
  }).pipe(Effect.scoped)
