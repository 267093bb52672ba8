/**
 * Serves one agent call, in its own session, which runs like any server session. Its text becomes the call's progress;
 * its suspensions become questions. The session is removed once the call is answered.
 */
import * as McpSchema from "effect/ai/McpSchema"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Worker from "../../durable/Worker.ts"
import type * as Event from "../../Event.ts"
import type * as Json from "../../internal/json.ts"
import type * as Journal from "../../Journal.ts"
import * as Message from "../../Message.ts"
import * as JournalEvents from "../../server/internal/journalEvents.ts"
import * as Refusals from "../../server/internal/refusal.ts"
import * as Routes from "../../server/internal/routes.ts"
import * as Sessions from "../../server/internal/sessions.ts"
import * as Session from "../../Session.ts"
import type * as Body from "../../ui/Body.ts"
import * as Caller from "./caller.ts"
import * as Question from "./question.ts"
import type * as RequestState from "./requestState.ts"
import * as ToolCall from "./toolCall.ts"

/** Server parts needed by agent calls. */
export interface Calls {
  readonly signer: RequestState.Signer
  readonly site: Routes.Site
}

/** Validity of a waiting session's state text, in milliseconds. */
const patience = 86_400_000

type Needs = Session.Store | Worker.Worker

type Failure = Refusals.Refusal | Journal.StoreError

/** End of a run: its outcome, and the waiting calls. */
type Ended = Extract<Event.PublicEvent, { readonly _tag: "ChatCompleted" }>

const answering: ReadonlySet<string> = new Set(["Completed", "HaltWhen", "Halted", "MaxTurns"])

const formOf = (
  { answerSchema, kind, opts, question, toolCall }: Event.PublicSuspension
): Question.Form | undefined => {
  if (kind === "manual") return undefined
  return kind === "question"
    ? Question.formOf(question ?? toolCall.name, opts, answerSchema)
    : Question.approvalOf(toolCall.name, toolCall.arguments, question)
}

/** Returns the action for a waiting call, by the user's reply. A missing reply means that the client could not ask. */
const verdictOf = (
  { id, kind }: Event.PublicSuspension,
  form: Question.Form | undefined,
  reply: Question.Reply | undefined
): Exclude<Body.Action, Body.Say> => {
  const cannot = "the client cannot ask its user"
  if (kind === "question" || kind === "manual") {
    return form !== undefined && reply?.action === "accept"
      ? { _tag: "Answer", id, value: Question.valueOf(form, reply.content) as never }
      : { _tag: "Deny", id, isCancelled: true, reason: reply === undefined ? cannot : "declined" }
  }
  return reply !== undefined && Question.isApproval(reply)
    ? { _tag: "Approve", id }
    : { _tag: "Deny", id, reason: reply === undefined ? cannot : "the user did not allow it" }
}

const actionOf = ({ kind }: Event.PublicSuspension) =>
  kind === "question" || kind === "manual" ? "answer" as const : "approve" as const

/** Serves an agent call to the requesting client. */
export const serve = (
  { signer, site }: Calls,
  agent: string,
  args: Json.JsonObject,
  progress: Caller.Progress
): Effect.Effect<
  McpSchema.CallToolResult | McpSchema.InputRequired,
  McpSchema.InvalidParams | Failure,
  Needs | McpSchema.McpRequestContext
> =>
  Effect.gen(function*() {
    const caller = yield* Caller.Current
    const context = yield* McpSchema.McpRequestContext
    const { by, principal, request } = caller
    const subject = { by, principal, name: agent, arguments: args }
    const isNew = context.requestState === undefined
    const id = context.requestState === undefined
      ? globalThis.crypto.randomUUID()
      : yield* signer.open(context.requestState, subject)
    if (id === undefined) return yield* ToolCall.invalidState
    const named: Sessions.Named = { agent, id, key: Sessions.prefixOf(principal) + id, principal, by }
    // The client was authorized when it was first asked.
    const granted = { ...site, authorize: () => Effect.succeed({ principal: by, of: principal }) }

    /** Performs the actions and reports the run's end. The run ends with the scope. */
    const turn = (actions: Body.Posted["actions"]): Effect.Effect<Ended | undefined, Failure, Needs | Scope.Scope> =>
      Effect.gen(function*() {
        const posted = { sessionId: id, actions, clientTools: [] }
        const taking = yield* Routes.write(granted, request, agent, posted)
        const frames = yield* Routes.framesOf({ ...site, isAttached: true }, request, { ...taking, actions: ["write"] })
        let ended: Ended | undefined
        yield* Stream.runForEach(frames, (frame) => {
          if (frame._tag === "Broken") {
            const { code, message } = frame
            return Effect.fail(new Refusals.Refusal({ status: 503, code, message }))
          }
          if (frame._tag !== "Event") return Effect.void
          if (frame.event._tag === "ChatCompleted") ended = frame.event
          return frame.event._tag === "TextDelta" ? progress.report(frame.event.delta) : Effect.void
        })
        return ended
      })

    const result = (ended: Ended | undefined) =>
      Effect.gen(function*() {
        if (ended === undefined) return ToolCall.textResult("The run did not finish.", true)
        const { kept } = yield* Sessions.read(named)
        const last = kept.session.thread.messages.findLast(({ role }) => role === "assistant")
        const { output } = Session.view(kept)
        const said = last === undefined ? "" : Message.text(last) ?? ""
        const text = output === undefined ? said : JSON.stringify(output)
        const { _tag, error, rule } = ended.outcome
        const isAnswer = answering.has(_tag) && (_tag !== "MaxTurns" || text !== "")
        return isAnswer
          ? ToolCall.textResult(text, false)
          : ToolCall.textResult(
            error?.message ??
              `The agent did not finish: ${rule === undefined ? _tag : `the rule "${rule}" ended the run`}.`,
            true
          )
      })

    /** Takes the user's replies: the run continues unless a reply cancels the call. */
    const settle = (
      suspensions: ReadonlyArray<Event.PublicSuspension>,
      replies: ReadonlyMap<string, Question.Reply>
    ) =>
      Array.from(replies.values()).some(({ action }) => action === "cancel")
        ? undefined
        : suspensions.map((each) => verdictOf(each, formOf(each), replies.get(each.id)))

    /** Reads the answers sent with the client's call. Returns `undefined` if the user cancels the call. */
    const continued = Effect.gen(function*() {
      const found = yield* Effect.catchTag(Sessions.read(named), "Refusal", () => ToolCall.invalidState)
      const suspensions = JournalEvents.suspensionsOf(found.kept, site.publish)
      if (suspensions.length === 0) return yield* ToolCall.invalidState
      const replies = new Map<string, Question.Reply>()
      for (const suspension of suspensions) {
        if (formOf(suspension) === undefined) continue
        const reply = Question.replyOf(context.inputResponses?.[suspension.id])
        const question = { agent, session: id, action: actionOf(suspension) }
        const isAllowed = reply.action !== "accept" || (yield* Effect.isSuccess(caller.may(question)))
        replies.set(suspension.id, isAllowed ? reply : { action: "decline" })
      }
      return settle(suspensions, replies)
    })

    const first = isNew ? [{ _tag: "Say" as const, id, content: String(args["task"]) }] : yield* continued

    const work = Effect.gen(function*() {
      let actions: Body.Posted["actions"] | undefined = first
      while (true) {
        if (actions === undefined) return ToolCall.textResult("cancelled", true)
        const ended = yield* Effect.scoped(turn(actions))
        const { suspensions = [] } = ended ?? {}
        if (suspensions.length === 0) return yield* result(ended)
        const asked = Question.canAsk(context)
          ? suspensions.flatMap((suspension) => {
            const form = formOf(suspension)
            return form === undefined ? [] : [{ suspension, form }]
          })
          : []
        const replies = new Map<string, Question.Reply>()
        for (const { form, suspension } of asked) {
          const reply = yield* Caller.asking(
            caller,
            { agent, session: id, action: actionOf(suspension) },
            Question.ask(form, suspension.expiresAt)
          )
          if (reply === undefined) {
            const expiresAt = (yield* Clock.currentTimeMillis) + patience
            return new McpSchema.InputRequired({
              inputRequests: Question.requests(
                new Map(asked.map(({ form, suspension }) => [suspension.id, form]))
              ),
              requestState: yield* signer.sign(id, expiresAt, subject)
            })
          }
          replies.set(suspension.id, reply)
          if (reply.action === "cancel") break
        }
        actions = settle(suspensions, replies)
      }
    })

    /** Removes the session, unless its run continues elsewhere. */
    const remove = Effect.gen(function*() {
      const { kept } = yield* Sessions.read(named)
      if (kept.interrupted !== undefined) return
      yield* Sessions.remove(site.hub, named)
    }).pipe(Effect.ignore)

    // Waiting and busy sessions are still needed, so they stay. An invalid answer ends the call.
    return yield* work.pipe(
      Effect.tap((result) => result instanceof McpSchema.InputRequired ? Effect.void : remove),
      Effect.tapError((error) => error._tag === "Refusal" && error.status === 400 ? remove : Effect.void),
      Effect.onInterrupt(() => remove)
    )
  })
