/**
 * Serves one tool call. It runs as in a Heddle run, with its tool's gates, timeouts and encoding. Its questions go to
 * the client's user.
 */
import * as McpSchema from "effect/ai/McpSchema"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Base64 from "effect/encoding/Base64"
import * as Result from "effect/Result"
import * as Stream from "effect/Stream"
import * as Event from "../../Event.ts"
import * as ToolOutcomes from "../../internal/declare/outcome.ts"
import * as Json from "../../internal/json.ts"
import * as Pulled from "../../internal/loop/scopedPull.ts"
import * as Batches from "../../internal/run/batch.ts"
import * as RunJournal from "../../internal/run/runJournal.ts"
import * as Telemetry from "../../internal/telemetry.ts"
import * as Message from "../../Message.ts"
import * as Policy from "../../Policy.ts"
import type * as Tool from "../../Tool.ts"
import * as Caller from "./caller.ts"
import * as Question from "./question.ts"
import type * as RequestState from "./requestState.ts"

type Content = McpSchema.CallToolResult["content"][number]

/** Returns a single-text result. */
export const textResult = (text: string, isError: boolean): McpSchema.CallToolResult =>
  McpSchema.CallToolResult.make({ content: [McpSchema.TextContent.make({ text })], isError })

const resourceName = (part: { readonly filename?: string }): string => part.filename ?? "file"

const partOf = (part: Message.Part): ReadonlyArray<Content> => {
  if (part.type === "text") return [McpSchema.TextContent.make({ text: part.text })]
  if (part.type === "reasoning") return []
  const { data, mediaType = "application/octet-stream", type, url } = part
  const uri = url ?? "heddle:file"
  if (data === undefined) {
    const name = resourceName(type === "file" ? part : {})
    return [McpSchema.ResourceLink.make({ type: "resource_link", uri, name, mimeType: mediaType })]
  }
  const bytes = Result.getOrElse(Base64.decode(data), () => new Uint8Array())
  if (type === "image") return [McpSchema.ImageContent.make({ data: bytes, mimeType: mediaType })]
  return [McpSchema.EmbeddedResource.make({ type: "resource", resource: { uri, mimeType: mediaType, blob: bytes } })]
}

/** Returns a call's answer in the protocol's form. A plain object also becomes structured content. */
const resultOf = (
  content: Message.Content,
  { isError, value }: { readonly isError: boolean; readonly value: unknown }
): McpSchema.CallToolResult => {
  if (typeof content !== "string") return McpSchema.CallToolResult.make({ content: content.flatMap(partOf), isError })
  const parsed = isError || !Json.isObject(value) ? undefined : Result.getOrUndefined(Json.parse(content))
  const text = textResult(content, isError)
  return Json.isObject(parsed) ? McpSchema.CallToolResult.make({ ...text, structuredContent: parsed }) : text
}

/** Returns the user's answer as the call's result. */
const answerResult = (value: unknown): McpSchema.CallToolResult =>
  resultOf(typeof value === "string" ? value : JSON.stringify(value) ?? "", { isError: false, value })

/** A waiting call's request to the user. */
interface Waiting {
  readonly kind: "approval" | "question"
  readonly form: Question.Form
  readonly answerSchema?: Json.JsonObject
  readonly expiresAt?: number
  readonly defaultAnswer?: unknown
  /** State to restart the handler with. Undefined if the answer is the call's own result. */
  readonly resume?: ToolOutcomes.Resume
}

/** An attempt to run the call: the first, or another after an answer. */
interface Attempt {
  readonly id: string
  readonly isApproved: boolean
  /** The previous attempt and its question, if the handler restarts with the answer. */
  readonly found?: RunJournal.Replayed
}

/** A waiting call, kept for its client. */
export interface Kept {
  readonly attempt: Attempt
  readonly waiting: Waiting
}

type End = { readonly _tag: "Result"; readonly result: McpSchema.CallToolResult } | {
  readonly _tag: "Waits"
  readonly waiting: Waiting
}

const ended = (result: McpSchema.CallToolResult): End => ({ _tag: "Result", result })

/** Reads a call's events, reports its progress, and keeps its end. */
class Sink {
  end: End = ended(textResult("The call has no answer.", true))
  private value: unknown
  private readonly progress: Caller.Progress

  constructor(progress: Caller.Progress) {
    this.progress = progress
  }

  take(event: Event.Event): Effect.Effect<void> {
    switch (event._tag) {
      case "ToolProgress":
        return this.tell(event)
      case "ToolExecutionCompleted":
        this.value = event.result._tag === "Ok" ? event.result.value : undefined
        break
      case "ToolResultEncoded":
        this.end = ended(resultOf(event.content, { isError: event.isError === true, value: this.value }))
        break
      case "ToolHalt": {
        const { content = "", reason, result } = event
        this.end = ended(resultOf(content, { isError: reason === "tool_error", value: result }))
        break
      }
      case "ToolApprovalRequested": {
        const { arguments: args, toolName, ...rest } = event
        this.wait({ kind: "approval", form: Question.approvalOf(toolName, args) }, rest)
        break
      }
      case "AskUserRequested":
        this.ask(event)
        break
      case "ToolSuspended": {
        const [first] = event.suspensions
        const resume = ToolOutcomes.resumeOf(first)
        if (first === undefined || resume === undefined) {
          this.end = ended(textResult("The run inside the tool waits for answers: serve it as an agent.", true))
        } else this.ask(first, resume)
        break
      }
    }
    return Effect.void
  }

  private ask(
    { answerSchema, defaultAnswer, opts, question = "", ...rest }: Event.Of<"AskUserRequested"> | Event.Suspension,
    resume?: ToolOutcomes.Resume
  ): void {
    this.wait({
      kind: "question",
      form: Question.formOf(question, opts, answerSchema),
      ...(answerSchema === undefined ? {} : { answerSchema }),
      ...(defaultAnswer === undefined ? {} : { defaultAnswer }),
      ...(resume === undefined ? {} : { resume })
    }, rest)
  }

  private wait(waiting: Waiting, { expiresAt }: { readonly expiresAt?: number }): void {
    this.end = { _tag: "Waits", waiting: expiresAt === undefined ? waiting : { ...waiting, expiresAt } }
  }

  /** Reports progress. For a nested run, it reports the text. */
  private tell(event: Event.Of<"ToolProgress">): Effect.Effect<void> {
    const told = Event.toPublic(event)
    if (told?._tag !== "ToolProgress") return Effect.void
    if (told.nested === undefined) return this.progress.report(told.progress)
    return told.nested._tag === "TextDelta" ? this.progress.report(told.nested.delta) : Effect.void
  }
}

/** Server parts needed by tool calls. */
export interface Calls {
  readonly signer: RequestState.Signer
  readonly memory: RequestState.Memory<Kept>
}

/** Validity of a waiting call's state text, in milliseconds. */
const patience = 600_000

export const invalidState = new McpSchema.InvalidParams({
  message:
    "requestState belongs to another call, was already used, or has expired. Repeat the call without requestState."
})

/** Serves a tool call to the requesting client. */
export const serve = (
  { memory, signer }: Calls,
  tool: Tool.Any,
  args: Json.JsonObject,
  progress: Caller.Progress
): Effect.Effect<McpSchema.CallToolResult | McpSchema.InputRequired, McpSchema.InvalidParams, any> =>
  Effect.gen(function*() {
    const caller = yield* Caller.Current
    const context = yield* McpSchema.McpRequestContext
    const defaults = yield* Policy.Defaults
    const { by, principal } = caller
    const { name } = tool
    const subject = { by, principal, name, arguments: args }

    const run = ({ found, id, isApproved }: Attempt): Effect.Effect<End, never, any> =>
      Effect.suspend(() => {
        const sink = new Sink(progress)
        const options = {
          requestId: id,
          context: { ...defaults.context, principal },
          ...(isApproved ? { approved: [id] } : {})
        }
        const journal = found && RunJournal.recalling(() => found)
        const calls = [{ ...Message.toolCall(id, name), arguments: args }]
        const events = Pulled.stream((scope) =>
          Effect.map(Batches.begin<never, any>(calls, [tool], options, scope, { journal }), ({ pull }) => () => pull)
        )
        return Effect.as(Stream.runForEach(events, (event) => sink.take(event)), sink).pipe(
          Effect.map(({ end }) => end),
          Effect.catchCause((cause) => failing(name, cause))
        )
      })

    /** Returns the consequence of an answered question. */
    const answered = (attempt: Attempt, { resume }: Waiting, answer: unknown): End | Attempt => {
      if (resume === undefined) return ended(answerResult(answer))
      const { state, ...rest } = resume
      return { ...attempt, found: { ...rest, hasStarted: true, resumed: { answer, state } } }
    }

    /** Takes an answer: the call gets its result, or runs on. */
    const settle = (attempt: Attempt, waiting: Waiting, reply: Question.Reply): Effect.Effect<End | Attempt> =>
      Effect.gen(function*() {
        const { answerSchema, defaultAnswer, expiresAt = Infinity, form, kind } = waiting
        if (expiresAt <= (yield* Clock.currentTimeMillis)) {
          return defaultAnswer === undefined
            ? ended(textResult("The time for an answer is up.", true))
            : answered(attempt, waiting, defaultAnswer)
        }
        if (reply.action === "cancel") return ended(textResult("cancelled", true))
        if (kind === "approval") {
          return Question.isApproval(reply)
            ? { ...attempt, isApproved: true }
            : ended(textResult("Permission denied: the user did not allow the call.", true))
        }
        if (reply.action !== "accept") return ended(textResult("declined", true))
        const value = Question.valueOf(form, reply.content)
        const answer = answerSchema === undefined
          ? Result.succeed(value)
          : yield* Effect.result(ToolOutcomes.decodeAnswer(answerSchema, value))
        return Result.isFailure(answer)
          ? ended(textResult(`The answer does not fit: ${answer.failure}`, true))
          : answered(attempt, waiting, answer.success)
      })

    const question = (kind: Waiting["kind"]) =>
      ({ agent: name, action: kind === "approval" ? "approve" : "answer" }) as const

    let attempt: Attempt = { id: globalThis.crypto.randomUUID(), isApproved: false }
    let end: End | undefined
    if (context.requestState !== undefined) {
      const id = yield* signer.open(context.requestState, subject)
      const kept = id === undefined ? undefined : memory.take(id)
      if (kept === undefined) return yield* invalidState
      const reply = Question.replyOf(context.inputResponses?.[kept.waiting.kind])
      const isAllowed = reply.action !== "accept"
        || (yield* Effect.isSuccess(caller.may(question(kept.waiting.kind))))
      if (!isAllowed) return textResult("Permission denied: this client may not answer.", true)
      const next = yield* settle(kept.attempt, kept.waiting, reply)
      if ("_tag" in next) end = next
      else attempt = next
    }
    while (true) {
      end ??= yield* run(attempt)
      if (end._tag === "Result") return end.result
      const { waiting } = end
      if (!Question.canAsk(context)) {
        return textResult(
          waiting.kind === "approval"
            ? "Permission denied: the call needs an approval, and the client cannot ask its user."
            : `The client cannot ask its user: ${waiting.form.message}`,
          true
        )
      }
      const { expiresAt, form, kind } = waiting
      const reply = yield* Caller.asking(caller, question(kind), Question.ask(form, expiresAt))
      if (reply === undefined) {
        const id = globalThis.crypto.randomUUID()
        const until = (yield* Clock.currentTimeMillis) + patience
        memory.put(id, by, { attempt, waiting })
        return new McpSchema.InputRequired({
          inputRequests: Question.requests(new Map([[waiting.kind, waiting.form]])),
          requestState: yield* signer.sign(id, until, subject)
        })
      }
      const next = yield* settle(attempt, waiting, reply)
      end = undefined
      if ("_tag" in next) end = next
      else attempt = next
    }
  })

/** Ends a call whose run broke. The error is logged and hidden from the client. */
const failing = (name: string, cause: Cause.Cause<unknown>): Effect.Effect<End> =>
  Cause.hasInterrupts(cause)
    ? Effect.failCause(cause as Cause.Cause<never>)
    : Effect.as(
      Telemetry.warned(`the call of tool "${name}" broke`, cause),
      ended(textResult("The call broke. It was logged.", true))
    )
