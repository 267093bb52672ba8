/**
 * Request bodies: reading within limits, and decoding plain bodies. `UiStream` and `AgUi` decode those of the AI SDK
 * and AG-UI.
 */
import * as Bytes from "effect/Bytes"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as HttpServerRequest from "effect/http/HttpServerRequest"
import * as Result from "effect/Result"
import * as Stream from "effect/Stream"
import * as CallPaths from "../../internal/answer/callPath.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import type * as Body from "../../ui/Body.ts"
import * as Posted from "../../ui/internal/posted.ts"
import * as Access from "./access.ts"
import type * as Bounds from "./bounds.ts"
import * as Refusals from "./refusal.ts"
import type * as Sessions from "./sessions.ts"

/** Server parts needed for bodies. */
export interface Site {
  readonly bounds: Required<Bounds.Bounds>
  readonly counters: Bounds.Counters
  readonly allowUrl: ((url: string) => boolean) | undefined
}

const tooLarge = (bytes: number): Refusals.Refusal =>
  Refusals.tooLarge(
    "body_too_large",
    `A body may have at most ${bytes} bytes. Clients of the AI SDK can send less with prepareSendMessagesRequest.`
  )

/** Longest pause within a body, in milliseconds. */
const longestPause = 30_000

/** Base time for a body, in milliseconds, and the number of bytes earning another second. */
const [longest, perSecond] = [120_000, 16_384]

const tooSlow = new Refusals.Refusal({
  status: 408,
  code: "body_too_slow",
  message: "The body came too slowly. It may pause for 30 seconds, and take 2 minutes and 1 second per 16 KiB."
})

/** Reads a body's bytes up to a limit, as long as they keep arriving. */
const bytesOf = (
  request: HttpServerRequest.HttpServerRequest,
  most: number,
  count: (bytes: number) => void
): Effect.Effect<Uint8Array, Refusals.Refusal> =>
  Effect.gen(function*() {
    if (Number(request.headers["content-length"] ?? 0) > most) return yield* tooLarge(most)
    const clock = yield* Clock.Clock
    const chunks: Array<Uint8Array> = []
    const began = clock.currentTimeMillisUnsafe()
    let [size, last] = [0, began]
    const reading = Stream.runForEach(request.stream, (chunk) => {
      size += chunk.length
      last = clock.currentTimeMillisUnsafe()
      if (size > most) return Effect.fail(tooLarge(most))
      count(chunk.length)
      chunks.push(chunk)
      return Effect.void
    })
    const left = () => {
      const end = Math.min(last + longestPause, began + longest + size / perSecond * 1_000)
      return end - clock.currentTimeMillisUnsafe()
    }
    const late: Effect.Effect<never, Refusals.Refusal> = Effect.suspend(() =>
      left() > 0 ? Effect.andThen(Effect.sleep(Math.ceil(left())), late) : tooSlow
    )
    yield* Effect.raceFirst(reading, late)
    return Bytes.concat(chunks)
  }).pipe(
    Effect.catch((error) =>
      error._tag === "Refusal" ? Effect.fail(error) : Refusals.badRequest("invalid_body", "The body could not be read.")
    )
  )

/**
 * Reads a body's text within the server's limits. It is read only for a principal admitted by `authorize`, and counts
 * toward that principal.
 */
export const textOf = (
  { bounds, counters }: Pick<Site, "bounds" | "counters">,
  request: HttpServerRequest.HttpServerRequest,
  { principal }: Access.Grant
): Effect.Effect<string, Refusals.Refusal> =>
  Effect.suspend(() => {
    if (!Access.isJson(request)) return Access.unsupported
    const bytes = counters.body(principal, (count) => bytesOf(request, bounds.body, count))
    return Effect.map(bytes, (read) => new TextDecoder().decode(read))
  })

/** Reads a request's JSON body. */
export const read = (
  site: Site,
  request: HttpServerRequest.HttpServerRequest,
  grant: Access.Grant
): Effect.Effect<unknown, Refusals.Refusal> =>
  Effect.gen(function*() {
    const parsed = Json.parse(yield* textOf(site, request, grant))
    return Result.isSuccess(parsed)
      ? parsed.success
      : yield* Refusals.badRequest("invalid_json", "The body is not valid JSON.")
  })

/** Refuses a body with a mistake. */
export const taken = <A>(result: Result.Result<A, Body.BodyError>): Effect.Effect<A, Refusals.Refusal> =>
  Result.isSuccess(result)
    ? Effect.succeed(result.success)
    : new Refusals.Refusal({
      status: result.failure.reason === "too_large" ? 413 : 400,
      code: result.failure.reason,
      message: result.failure.message
    })

/** Returns the options for decoding a body. */
export const optionsOf = ({ allowUrl, bounds }: Site): Body.ReadOptions => ({
  ...(allowUrl === undefined ? {} : { allowUrl }),
  bounds: {
    files: bounds.files,
    fileBytes: bounds.file,
    textBytes: bounds.taken,
    clientTools: bounds.clientTools,
    clientToolBytes: bounds.clientTool
  }
})

/** Request in a plain body. `into` is the message destination, if named in the body. */
interface Plain extends Body.Posted {
  readonly into: Sessions.Into | undefined
}

/** Reads `{ content, id?, mode?, otherwise?, to?, clientTools? }` or `{ answers }`. */
export const plain = (site: Site, sessionId: string, body: unknown): Result.Result<Plain, Body.BodyError> =>
  Posted.reading(() => {
    const reader = new Posted.Reader("a body", optionsOf(site))
    const { answers, clientTools, content, id, ...place } = reader.object(body, "the body")
    if ((answers === undefined) === (content === undefined)) reader.refuse("the body", "must have content or answers")
    if (place["mode"] !== undefined && answers !== undefined) reader.refuse("mode", "must be left out with answers")
    const actions: ReadonlyArray<Body.Action> = answers === undefined
      ? [{
        _tag: "Say",
        id: id === undefined ? globalThis.crypto.randomUUID() : reader.messageId(id, "id"),
        content: contentOf(reader, content)
      }]
      : reader.list(answers, "answers").map((answer, index) => answerOf(reader, answer, `answers[${index}]`))
    if (actions.length === 0) reader.refuse("answers", "must have at least one answer")
    return {
      sessionId,
      actions,
      clientTools: clientTools === undefined ? [] : reader.clientTools(clientTools, "clientTools"),
      into: intoOf(reader, place)
    }
  })

/**
 * Returns a message's destination, from `{ mode?, otherwise?, to? }` in its body. Without `mode` there is no
 * destination.
 */
const intoOf = (
  reader: Posted.Reader,
  { mode, otherwise, to }: { readonly mode?: unknown; readonly otherwise?: unknown; readonly to?: unknown }
): Sessions.Into | undefined => {
  if (mode === undefined) {
    if (to !== undefined) return reader.refuse("to", "must be left out without mode")
    return otherwise === undefined ? undefined : reader.refuse("otherwise", "must be left out without mode")
  }
  if (mode !== "next" && mode !== "steer" && mode !== "follow") {
    return reader.refuse("mode", `must be "next", "steer" or "follow"`)
  }
  if (otherwise !== undefined && otherwise !== "next" && otherwise !== "refuse") {
    return reader.refuse("otherwise", `must be "next" or "refuse"`)
  }
  const into: Sessions.Into = { mode, ...(otherwise === undefined ? {} : { otherwise }) }
  if (to === undefined) return into
  if (!CallPaths.isPath(to)) return reader.refuse("to", `must be a call path, such as "c0" or "c0/c1"`)
  if (mode === "next") return reader.refuse("to", `must be left out with mode "next"`)
  if (otherwise === "next") return reader.refuse("otherwise", `must be "refuse", or left out, with to`)
  return { ...into, to }
}

/** Parts of a body requesting a session branch. */
interface Forking {
  /** Id of the new session. */
  readonly id: string
  /** The branch begins before the message with this id. */
  readonly before: string
  /** Message continuing the branch. Absent if the branch only begins. */
  readonly content?: Body.Say["content"]
  /** Client tools for that message. */
  readonly clientTools: ReadonlyArray<Body.ClientTool>
}

/** Reads `{ id, before, content?, clientTools? }`. */
export const forking = (site: Site, body: unknown): Result.Result<Forking, Body.BodyError> =>
  Posted.reading(() => {
    const reader = new Posted.Reader("a body", optionsOf(site))
    const { before, clientTools, content, id } = reader.object(body, "the body")
    return {
      id: reader.sessionId(id, "id"),
      before: reader.messageId(before, "before"),
      ...(content === undefined ? {} : { content: contentOf(reader, content) }),
      clientTools: reader.clientTools(clientTools, "clientTools")
    }
  })

/** Reads `{ title?, pinned? }`, with at least one of the two fields. */
export const labels = (site: Site, body: unknown): Result.Result<Sessions.Change, Body.BodyError> =>
  Posted.reading(() => {
    const reader = new Posted.Reader("a body", optionsOf(site))
    const { pinned, title } = reader.object(body, "the body")
    if (title === undefined && pinned === undefined) reader.refuse("the body", "must have title or pinned")
    if (pinned !== undefined && typeof pinned !== "boolean") reader.refuse("pinned", "must be true or false")
    if (title !== undefined && title !== null && typeof title !== "string") {
      reader.refuse("title", "must be a string or null")
    }
    return {
      ...(title === undefined ? {} : { title: title === null ? null : reader.text(title, "title") }),
      ...(typeof pinned === "boolean" ? { pinned } : {})
    }
  })

const contentOf = (reader: Posted.Reader, content: unknown): Body.Say["content"] => {
  if (typeof content === "string") {
    return reader.text(content, "content") === "" ? reader.refuse("content", "must have a text or a file") : content
  }
  const parts = reader.list(content, "content").map((given, index): Message.Part => {
    const field = `content[${index}]`
    const part = reader.object(given, field)
    if (part["type"] === "text") return { type: "text", text: reader.text(part["text"], `${field}.text`) }
    if (part["type"] !== "image" && part["type"] !== "file") {
      reader.refuse(`${field}.type`, "must be text, image or file")
    }
    return part["data"] === undefined
      ? reader.url(part["url"], part["mediaType"], `${field}.url`, part["filename"])
      : reader.data(part["data"], part["mediaType"], `${field}.data`, part["filename"])
  })
  return reader.content(parts.filter((part) => part.type !== "text" || part.text !== ""), "content")
}

/**
 * Reads `{ id, value }`, `{ id, error }`, `{ id, approve: true, arguments?, remember? }` or `{ id, approve: false,
 * reason? }`.
 */
const answerOf = (reader: Posted.Reader, given: unknown, field: string): Body.Action => {
  const answer = reader.object(given, field)
  const id = reader.callId(answer["id"], `${field}.id`)
  for (const other of ["answerId", "approvalId", "interruptId", "toolCallId"]) {
    if (other in answer) {
      reader.refuse(`${field}.${other}`, `must be left out: ${field}.id names the suspension`)
    }
  }
  const { arguments: edits, remember } = answer
  if (answer["approve"] === true) {
    if (remember !== undefined && remember !== "tool" && remember !== "arguments") {
      return reader.refuse(`${field}.remember`, `must be "tool" or "arguments"`)
    }
    if (remember === "arguments" && edits !== undefined) {
      return reader.refuse(`${field}.remember`, `must be "tool", or left out, with edited arguments`)
    }
    return {
      _tag: "Approve",
      id,
      ...(edits === undefined ? {} : { edits: reader.edits(edits, `${field}.arguments`) }),
      ...(remember === undefined ? {} : { remember })
    }
  }
  if (remember !== undefined) reader.refuse(`${field}.remember`, "must be left out: only an approval can be remembered")
  if (answer["approve"] === false) {
    const { reason } = answer
    return { _tag: "Deny", id, ...(reason === undefined ? {} : { reason: reader.text(reason, `${field}.reason`) }) }
  }
  if (typeof answer["error"] === "string") {
    return { _tag: "Answer", id, error: reader.text(answer["error"], `${field}.error`) }
  }
  if (!("value" in answer)) reader.refuse(field, "must have value, error or approve")
  return { _tag: "Answer", id, value: reader.json(answer["value"], `${field}.value`) }
}
