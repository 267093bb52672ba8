/**
 * The conversation: an immutable list of messages. Validation reports every fault in its messages at once, so a caller
 * can fix all of them together.
 *
 * **Details**
 *
 * A run takes and returns threads in which each call has one answer, right after the message making the call. One
 * exception: calls waiting for an approval or for a result from you (`suspensions` of the result) have no answer yet.
 * Answer these first, and do not {@link repair} such a thread: that would answer them as cancelled.
 */
import { dual } from "effect/Function"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Requests from "./internal/ask/request.ts"
import { checkNames, type NamesOf } from "./internal/declare/schema.ts"
import * as Values from "./internal/declare/values.ts"
import * as SharedMessages from "./internal/fold/sharedMessages.ts"
import * as ToolCalls from "./internal/hear/toolCalls.ts"
import * as Json from "./internal/json.ts"
import * as Message from "./Message.ts"

/**
 * A conversation.
 *
 * @category schemas
 */
export class Thread extends Schema.Opaque<Thread>()(Schema.Struct({
  /** Messages, oldest first. */
  messages: Schema.Array(Message.Message),
  /** Data attached to the conversation by you. It is not sent to the model. `{}` by default. */
  metadata: Json.Metadata
})) {}

/**
 * Input of a run: a prompt, messages, or a thread. Each tool call inside needs one answer, right after the message
 * making the call: otherwise the run fails before its first request, and {@link repair} fixes the thread.
 *
 * @category models
 */
export type Input = string | ReadonlyArray<Message.Input> | {
  /** Messages, oldest first. */
  readonly messages: ReadonlyArray<Message.Input>
  /** Data attached to the conversation by you. `{}` by default. */
  readonly metadata?: Thread["metadata"]
}

/**
 * One fault in an input.
 *
 * @category models
 */
export class Issue extends Schema.Opaque<Issue>()(Schema.Struct({
  /** Place of the fault, such as `messages[2].role`. */
  path: Schema.String,
  /** Description of a correct value. */
  reason: Schema.String
})) {}

/**
 * The input cannot be used. The message counts and lists the issues.
 *
 * - `invalid_thread`: the input is not a conversation, or a call lacks its single answer, or an answer its call;
 *   {@link repair} fixes the latter two
 * - `invalid_request`: an option of the request cannot be used
 * - `invalid_session_input`: the input is neither a session nor suitable for making a session
 *
 * @category errors
 */
export class ValidationError extends Schema.TaggedError<ValidationError>("heddle/Thread/ValidationError")(
  "ValidationError",
  {
    /** Kind of unusable input: the conversation, a request option, or a session's start. */
    reason: Schema.Literals(["invalid_thread", "invalid_request", "invalid_session_input"]),
    /** Every issue, not only the first. */
    errors: Schema.Array(Issue)
  }
) {
  override get message(): string {
    const issues = this.errors.map((issue) => `${issue.path}: ${issue.reason}`).join("; ")
    return `${this.reason}: ${this.errors.length} ${this.errors.length === 1 ? "error" : "errors"}: ${issues}`
  }
}

Json.addError("ValidationError", ValidationError)

/**
 * Makes a thread from messages.
 *
 * **Example** (A conversation)
 *
 * ```ts import.meta.vitest
 * import { Message, Thread } from "heddle"
 *
 * Thread.fromMessages([Message.user("Hi"), { role: "assistant", content: "Hello" }]).messages.length // => 2
 * ```
 *
 * @category constructors
 */
export const fromMessages = (messages: ReadonlyArray<Message.Input>): Thread => ({
  messages: messages.map((message) => {
    const content = Json.wellFormed(message.content)
    const isWhole = Boolean(message.metadata) && content === message.content
    return isWhole ? message as Message.Message : { ...message, content, metadata: message.metadata ?? Json.none }
  }),
  metadata: Json.none
})

/**
 * A thread without messages.
 *
 * **Example** (An empty conversation)
 *
 * ```ts import.meta.vitest
 * import { Thread } from "heddle"
 *
 * Thread.empty.messages // => []
 * ```
 *
 * @category constructors
 */
export const empty: Thread = fromMessages([])

/**
 * Returns the thread with messages appended. The given thread does not change.
 *
 * **Example** (Growing a conversation)
 *
 * ```ts import.meta.vitest
 * import { pipe } from "effect/Function"
 * import { Message, Thread } from "heddle"
 *
 * const asked = Thread.append(Thread.empty, [Message.user("Is it raining?")])
 *
 * Thread.append(asked, [Message.assistant("No.")]).messages.length // => 2
 * pipe(asked, Thread.append([Message.assistant("No.")])).messages.length // => 2
 * asked.messages.length // => 1
 * ```
 *
 * @category combinators
 */
export const append: {
  /** Takes the thread last, as in a pipe. */
  (messages: ReadonlyArray<Message.Message>): (thread: Thread) => Thread
  /** Returns the thread with messages appended. The given thread does not change. */
  (thread: Thread, messages: ReadonlyArray<Message.Message>): Thread
} = dual(
  2,
  (thread: Thread, messages: ReadonlyArray<Message.Message>): Thread => SharedMessages.appended(thread, messages)
)

/**
 * Returns the last message, if any.
 *
 * **Example** (The text of the last message)
 *
 * ```ts import.meta.vitest
 * import { Message, Thread } from "heddle"
 *
 * Thread.lastMessage(Thread.fromMessages([Message.user("Hi")]))?.content // => "Hi"
 * Thread.lastMessage(Thread.empty) // => undefined
 * ```
 *
 * @category getters
 */
export const lastMessage = (thread: Thread): Message.Message | undefined => thread.messages.at(-1)

/**
 * Returns the tool calls without an answer, in call order. An answer counts for the latest assistant message before it.
 *
 * **Example** (What a provider would still wait for)
 *
 * ```ts import.meta.vitest
 * import { Message, Thread } from "heddle"
 *
 * const calls = [Message.toolCall("a", "read"), Message.toolCall("b", "read")]
 * const thread = Thread.fromMessages([
 *   Message.user("go"),
 *   Message.assistant("", calls),
 *   Message.tool("a", "done")
 * ])
 *
 * Thread.unanswered(thread).map((call) => call.id) // => ["b"]
 * ```
 *
 * @category getters
 */
export const unanswered = (thread: Thread): ReadonlyArray<Message.ToolCall> => {
  const settled: Array<Message.ToolCall> = []
  let open: Array<Message.ToolCall> = []
  for (const message of thread.messages) {
    if (message.role === "assistant" && message.toolCalls !== undefined) {
      settled.push(...open)
      open = message.toolCalls.filter((call) => call.providerExecuted !== true)
    } else if (message.role === "tool") {
      const answered = open.findIndex((call) => call.id === message.toolCallId)
      if (answered >= 0) open.splice(answered, 1)
    }
  }
  return [...settled, ...open]
}

const isRole = Schema.is(Message.Role)
const isParts = Schema.is(Schema.Array(Message.Part))

const messageIssues = (message: unknown, path: string): ReadonlyArray<Issue> => {
  if (!Json.isObject(message)) return [{ path, reason: "must be a message object with a role and content" }]
  const issues: Array<Issue> = []
  if (!isRole(message["role"])) {
    issues.push({
      path: `${path}.role`,
      reason: `must be one of system, user, assistant, tool; got: ${Json.render(message["role"])}`
    })
  }
  if (typeof message["content"] !== "string" && !isParts(message["content"])) {
    issues.push({ path: `${path}.content`, reason: "must be a string or a list of parts" })
  }
  if (message["role"] === "tool" && (typeof message["toolCallId"] !== "string" || message["toolCallId"] === "")) {
    issues.push({ path: `${path}.toolCallId`, reason: "a tool message must name the call it answers" })
  }
  return issues
}

const rawMessages = (input: unknown): ReadonlyArray<unknown> | undefined => {
  if (Array.isArray(input)) return input
  if (Json.isObject(input) && Array.isArray(input["messages"])) return input["messages"]
  return undefined
}

/**
 * Converts an input to a thread, or returns all its issues: a role outside the closed set, content other than a string
 * or parts, a tool message without a call id. Calls and answers are compared only when a run begins:
 * `Thread.repair(input).repairs` is empty for a thread acceptable to a run.
 *
 * **Example** (All issues at once)
 *
 * ```ts import.meta.vitest
 * import { Thread } from "heddle"
 * import * as Result from "effect/Result"
 *
 * const result = Thread.validate([{ role: "robot", content: "hi" }, { role: "tool", content: "42" }])
 *
 * Result.isFailure(result) && result.failure.errors.map((issue) => issue.path)
 * // => ["messages[0].role", "messages[1].toolCallId"]
 * ```
 *
 * @category combinators
 */
export const validate = (input: unknown): Result.Result<Thread, ValidationError> => {
  if (typeof input === "string") return Result.succeed(fromMessages([Message.user(input)]))
  const messages = rawMessages(input)
  if (messages === undefined) {
    const errors = [{ path: "input", reason: "must be a string, a list of messages or a thread" }]
    return Result.fail(new ValidationError({ reason: "invalid_thread", errors }))
  }
  const errors = messages.flatMap((message, index) => messageIssues(message, `messages[${index}]`))
  if (errors.length > 0) return Result.fail(new ValidationError({ reason: "invalid_thread", errors }))
  const thread = fromMessages(messages as ReadonlyArray<Message.Input>)
  const metadata = Json.isObject(input) && Json.isObject(input["metadata"]) ? input["metadata"] : {}
  return Result.succeed({ messages: thread.messages, metadata })
}

/**
 * One change made by {@link repair}.
 *
 * @category models
 */
export interface Repair {
  /**
   * `"answered"`: a call was answered as cancelled. `"dropped"`: an answer without a call, or a second answer, was
   * removed. `"moved"`: an answer was moved to its call. `"renamed"`: a call got another id, and its answer got the
   * same id.
   */
  readonly kind: "answered" | "dropped" | "moved" | "renamed"
  /** Position of the call's or the answer's message in the input. */
  readonly index: number
  /** Call id; for a renamed call, the old id. */
  readonly toolCallId: string
  /** Description of the fault. */
  readonly reason: string
}

interface Named {
  readonly messages: ReadonlyArray<Message.Input>
  readonly repairs: ReadonlyArray<Repair>
}

const callsOf = ({ role, toolCalls }: Message.Input): ReadonlyArray<unknown> =>
  role === "assistant" && Array.isArray(toolCalls) ? toolCalls : []

const idOf = (call: unknown): ReadonlyArray<string> =>
  Json.isObject(call) && typeof call["id"] === "string" ? [call["id"]] : []

/** Renames calls. Each id stays with its first call, and answers to calls with equal ids are in call order. */
class Naming {
  private readonly unique = new ToolCalls.UniqueIds()
  /** Ids whose first call is still to come. */
  private readonly first: Set<string>
  /** New ids of the latest calls, by their original ids. */
  private open = new Map<string, Array<string>>()
  readonly repairs: Array<Repair> = []

  constructor(messages: ReadonlyArray<Message.Input>) {
    this.first = new Set(messages.flatMap(callsOf).flatMap(idOf).filter((id) => id !== ""))
    for (const id of this.first) this.unique.reserve(id)
  }

  message(message: Message.Input, index: number): Message.Input {
    const calls = callsOf(message)
    if (calls.length > 0) {
      this.open = new Map()
      const toolCalls = calls.map((call) => this.call(call, index)) as ReadonlyArray<Message.ToolCall>
      return { ...message, toolCalls }
    }
    const ids = message.role === "tool" ? this.open.get(message.toolCallId ?? "") : undefined
    const toolCallId = ids !== undefined && ids.length > 1 ? ids.shift() : ids?.[0]
    return toolCallId === undefined ? message : { ...message, toolCallId }
  }

  private call(call: unknown, index: number): unknown {
    const [given] = idOf(call)
    if (given === undefined || !Json.isObject(call)) return call
    const isFirst = this.first.delete(given)
    const id = isFirst ? given : this.other(given, index)
    if (call["providerExecuted"] !== true) {
      const ids = this.open.get(given) ?? []
      ids.push(id)
      this.open.set(given, ids)
    }
    if (isFirst) return call
    const cause = given === "" ? "the call had no id" : "an earlier call has this id"
    this.repairs.push({
      kind: "renamed",
      index,
      toolCallId: given,
      reason: `${cause}: it has ${JSON.stringify(id)} now`
    })
    const metadata = Json.isObject(call["metadata"]) ? call["metadata"] : Json.none
    return { ...call, id, metadata: given === "" ? metadata : { duplicateOf: given, ...metadata } }
  }

  private other(id: string, index: number): string {
    return id === "" ? this.unique.number(`call_${index}`, 1) : this.unique.number(id, 2)
  }
}

const named = (messages: ReadonlyArray<Message.Input>): Named => {
  const naming = new Naming(messages)
  const renamed = messages.map((message, index) => naming.message(message, index))
  const { repairs } = naming
  return { messages: repairs.length === 0 ? messages : renamed, repairs }
}

/**
 * Options of {@link repair}.
 *
 * @category models
 */
export interface RepairOptions {
  /**
   * `true` gives another id to each call repeating an earlier call's id: `ID_n`, with a free n from 2 on. The old id
   * goes into the call's `metadata.duplicateOf`, and the server of the call gets the old id back. A call without an
   * id gets a new id. `false` by default: a run accepts repeated ids, and servers allowing them get them unchanged.
   */
  readonly uniqueIds?: boolean
}

const knownOptions = { uniqueIds: Values.flag } satisfies NamesOf<RepairOptions>

/**
 * Returns the conversation with exactly one answer for each tool call, right after the message making the call, and the
 * changes needed. For a correct conversation `repairs` is empty and the messages are unchanged.
 *
 * **Details**
 *
 * For truncated, trimmed or hand-made conversations: providers and runs refuse a conversation with an open call, or
 * with an answer to no call. Open calls are answered as cancelled, answers without a call and second answers are
 * dropped, and an answer after other messages is moved. Texts stay. Do not repair a conversation waiting for an
 * approval, a result or an answer: give the answer instead (`Message.answer(id, result)` after the call, or the
 * session's `Session.answer` and `Session.approve`).
 *
 * **Example** (Continuing after a process that ended too early)
 *
 * ```ts import.meta.vitest
 * import { Message, Thread } from "heddle"
 *
 * const { repairs, thread } = Thread.repair([
 *   Message.user("go"),
 *   Message.assistant("", [Message.toolCall("a", "read")]),
 *   Message.user("Still there?"),
 *   Message.tool("b", "an answer to nothing")
 * ])
 *
 * thread.messages.map((message) => message.role) // => ["user", "assistant", "tool", "user"]
 * thread.messages[2]?.isError // => true
 * repairs.map(({ kind, toolCallId }) => [kind, toolCallId]) // => [["answered", "a"], ["dropped", "b"]]
 * ```
 *
 * **Example** (Ids that repeat)
 *
 * ```ts import.meta.vitest
 * import { Message, Thread } from "heddle"
 *
 * const turn = [Message.assistant("", [Message.toolCall("look:0", "look")]), Message.tool("look:0", "a")]
 * const { thread } = Thread.repair([Message.user("go"), ...turn, ...turn], { uniqueIds: true })
 *
 * thread.messages.flatMap(({ toolCallId }) => toolCallId ?? []) // => ["look:0", "look:0_2"]
 * ```
 *
 * @category combinators
 */
export const repair = (
  input: Exclude<Input, string>,
  options: RepairOptions = {}
): { readonly thread: Thread; readonly repairs: ReadonlyArray<Repair> } => {
  checkNames("Thread.repair", options, knownOptions)
  const given: { readonly messages: ReadonlyArray<Message.Input>; readonly metadata?: Thread["metadata"] } =
    "messages" in input ? input : { messages: input }
  const { messages: apart, repairs: names } = options.uniqueIds === true
    ? named(given.messages)
    : { messages: given.messages, repairs: [] }
  const { messages, repairs } = Requests.repaired(apart)
  return {
    thread: { messages: fromMessages(messages).messages, metadata: given.metadata ?? Json.none },
    repairs: [...names, ...repairs].toSorted((left, right) => left.index - right.index)
  }
}
