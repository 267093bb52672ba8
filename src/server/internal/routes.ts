/**
 * The routes of a server. Each of them checks the address, the page and the id of the session, asks whether it is
 * allowed, and then reads or writes sessions.
 *
 * @since 0.1.0
 */
import * as Bytes from "effect/Bytes"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as HttpRouter from "effect/http/HttpRouter"
import type * as HttpServerRequest from "effect/http/HttpServerRequest"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Worker from "../../durable/Worker.ts"
import * as Event from "../../Event.ts"
import * as Json from "../../internal/json.ts"
import * as Journals from "../../internal/session/journal.ts"
import * as Keeping from "../../internal/session/kept.ts"
import * as States from "../../internal/session/state.ts"
import * as Message from "../../Message.ts"
import * as Thread from "../../Thread.ts"
import * as AgUi from "../../ui/AgUi.ts"
import * as Posted from "../../ui/internal/posted.ts"
import * as UiStream from "../../ui/UiStream.ts"
import * as Access from "./access.ts"
import type * as Bounds from "./bounds.ts"
import * as EventStream from "./eventStream.ts"
import * as Telling from "./journalEvents.ts"
import type * as Logs from "./log.ts"
import * as Reading from "./reading.ts"
import * as Refusals from "./refusal.ts"
import * as Sessions from "./sessions.ts"
import * as Writing from "./writing.ts"

type Request = HttpServerRequest.HttpServerRequest
type Response = HttpServerResponse.HttpServerResponse
type Failure = Refusals.Refusal | Journals.StoreError
/** The scope is that of the request: it closes once the response is sent, or the client has left. */
type Needs = Journals.Store | Worker.Worker | Scope.Scope

/** The parts of a server. */
export interface Site extends Reading.Site {
  readonly bounds: Required<Bounds.Bounds>
  readonly counters: Bounds.Counters
  readonly access: Access.Rules
  readonly authorize: Access.Authorize
  /** The agents by their names. */
  readonly agents: ReadonlyMap<string, { readonly name: string; readonly description: string }>
  readonly isAttached: boolean
  readonly isQueued: boolean
  readonly isRaw: boolean
  readonly allowUrl: ((url: string) => boolean) | undefined
  /** Refuses tools of a client that have the names of the agent's. */
  readonly checkTools: (
    named: Sessions.Named,
    clientTools: ReadonlyArray<Posted.ClientTool>
  ) => Effect.Effect<void, Refusals.Refusal>
  /** Waits until the server is released: what has not ended by then ends in another process. */
  readonly closing: Effect.Effect<void>
  /** The events of a run in this process as they are. */
  readonly raw: (key: string) => Stream.Stream<Event.Event>
}

/**
 * Routes beside those of the agents, which the same checks guard.
 *
 * @category models
 * @since 0.1.0
 */
export interface Mount<R = never> {
  /** Adds the routes to the router of a server. */
  readonly mount: (
    router: HttpRouter.HttpRouter,
    site: Site
  ) => Effect.Effect<void, never, Scope.Scope | Journals.Store | Worker.Worker | R>
}

const json = (body: unknown, status = 200): Response =>
  HttpServerResponse.jsonUnsafe(body, {
    status,
    headers: { "cache-control": "no-store", "x-content-type-options": "nosniff" }
  })

// Requests.

/** Returns the value of a parameter of the address, once. */
const query = (request: Request, name: string): string | undefined =>
  new URL(request.url, "http://localhost").searchParams.get(name) ?? undefined

const tooLarge = (bytes: number): Refusals.Refusal =>
  Refusals.tooLarge(
    "body_too_large",
    `A body may have ${bytes} bytes. Clients of the AI SDK can send less with prepareSendMessagesRequest.`
  )

/** Reads the bytes of a body up to a bound. */
const bytesOf = (request: Request, most: number): Effect.Effect<Uint8Array, Refusals.Refusal> =>
  Effect.gen(function*() {
    if (Number(request.headers["content-length"] ?? 0) > most) return yield* tooLarge(most)
    const chunks: Array<Uint8Array> = []
    let size = 0
    yield* Stream.runForEach(request.stream, (chunk) => {
      size += chunk.length
      if (size > most) return Effect.fail(tooLarge(most))
      chunks.push(chunk)
      return Effect.void
    })
    return Bytes.concat(chunks)
  }).pipe(
    Effect.catch((error) =>
      error._tag === "Refusal" ? Effect.fail(error) : Refusals.badRequest("invalid_body", "The body could not be read.")
    )
  )

/** Longest time for a body. One who sends slower would keep others from theirs. */
const slowest = "30 seconds"

const tooSlow = new Refusals.Refusal({
  status: 408,
  code: "body_too_slow",
  message: "The body did not come within 30 seconds."
})

/** Reads the text of a body within the bounds of the server. */
export const textOf = (
  { bounds, counters }: Pick<Site, "bounds" | "counters">,
  request: Request
): Effect.Effect<string, Refusals.Refusal> =>
  Effect.suspend(() => {
    if (!Access.isJson(request)) return Access.unsupported
    const bytes = counters.body(
      Effect.timeoutOrElse(bytesOf(request, bounds.body), { duration: slowest, orElse: () => tooSlow })
    )
    return Effect.map(bytes, (read) => new TextDecoder().decode(read))
  })

const bodyOf = (site: Site, request: Request): Effect.Effect<unknown, Refusals.Refusal> =>
  Effect.gen(function*() {
    const parsed = Json.parse(yield* textOf(site, request))
    return Result.isSuccess(parsed)
      ? parsed.success
      : yield* Refusals.badRequest("invalid_json", "The body is not valid JSON.")
  })

/** Refuses what a body says wrong. */
const taken = <A>(result: Result.Result<A, Posted.BodyError>): Effect.Effect<A, Refusals.Refusal> =>
  Result.isSuccess(result)
    ? Effect.succeed(result.success)
    : new Refusals.Refusal({
      status: result.failure.reason === "too_large" ? 413 : 400,
      code: result.failure.reason,
      message: result.failure.message
    })

const readOptions = ({ allowUrl, bounds }: Site): Posted.ReadOptions => ({
  ...(allowUrl === undefined ? {} : { allowUrl }),
  bounds: {
    files: bounds.files,
    fileBytes: bounds.file,
    textBytes: bounds.taken,
    clientTools: bounds.clientTools,
    clientToolBytes: bounds.clientTool
  }
})

/** Reads `{ content, id?, clientTools? }` or `{ answers }`. */
const plainBody = (site: Site, sessionId: string, body: unknown): Result.Result<Posted.Posted, Posted.BodyError> =>
  Posted.reading(() => {
    const reader = new Posted.Reader(readOptions(site))
    const { answers, clientTools, content, id } = reader.object(body, "the body")
    if ((answers === undefined) === (content === undefined)) reader.refuse("the body", "must have content or answers")
    const actions: ReadonlyArray<Posted.Action> = answers === undefined
      ? [{
        _tag: "Say",
        id: id === undefined ? globalThis.crypto.randomUUID() : reader.id(id, "id"),
        content: contentOf(reader, content)
      }]
      : reader.list(answers, "answers").map((answer, index) => answerOf(reader, answer, `answers[${index}]`))
    if (actions.length === 0) reader.refuse("answers", "must have an answer")
    return {
      sessionId,
      actions,
      clientTools: clientTools === undefined ? [] : reader.clientTools(clientTools, "clientTools")
    }
  })

const contentOf = (reader: Posted.Reader, content: unknown): Posted.Say["content"] => {
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

/** Reads `{ id, value }`, `{ id, error }`, `{ id, approve: true, arguments? }` or `{ id, approve: false, reason? }`. */
const answerOf = (reader: Posted.Reader, given: unknown, field: string): Posted.Action => {
  const answer = reader.object(given, field)
  const id = reader.id(answer["id"], `${field}.id`)
  if (answer["approve"] === true) {
    return answer["arguments"] === undefined
      ? { _tag: "Approve", id }
      : { _tag: "Approve", id, edits: reader.edits(answer["arguments"], `${field}.arguments`) }
  }
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

// Sessions of requests.

const named = (
  site: Site,
  request: Request,
  agent: string,
  id: string,
  actions: ReadonlyArray<Access.Question["action"]>
): Effect.Effect<Sessions.Named, Refusals.Refusal> =>
  Effect.gen(function*() {
    if (!site.agents.has(agent)) return yield* Refusals.notFound("unknown_agent", "There is no such agent.")
    yield* Sessions.checkId(id)
    const grants = yield* Effect.forEach(
      actions,
      (action) => Access.ask(site.authorize, request, { agent, session: id, action })
    )
    const [grant] = grants
    const [principal, by] = [grant?.of ?? grant?.principal ?? "", grant?.principal ?? ""]
    if (grants.some((other) => (other.of ?? other.principal) !== principal)) {
      return yield* Refusals.forbidden("forbidden", "This is not allowed.")
    }
    return { agent, id, key: Sessions.prefixOf(principal) + id, principal, by }
  })

/** Ends as soon as a request is no longer allowed, which is asked again and again. */
const whileAllowed = (
  site: Site,
  request: Request,
  session: Sessions.Named,
  actions: ReadonlyArray<Access.Question["action"]>
): Effect.Effect<void> => {
  const isAllowed = Effect.flatMap(
    named(site, request, session.agent, session.id, actions),
    ({ by, key }) => by === session.by && key === session.key ? Effect.void : Effect.fail("another principal")
  )
  return Effect.ignore(Effect.forever(Effect.delay(isAllowed, site.bounds.authorization)))
}

/** Returns a stream as lines for a client: an error of the store ends it, and is logged. */
const quietly = <A>(
  stream: Stream.Stream<A, unknown, Journals.Store>
): Effect.Effect<Stream.Stream<A>, never, Journals.Store> =>
  Effect.map(Effect.context<Journals.Store>(), (context) =>
    stream.pipe(
      Stream.provideContext(context),
      Stream.catchCause((cause) =>
        Stream.unwrap(Effect.as(
          Effect.logWarning("a stream of a session broke", Cause.map(cause, Json.nameOf)),
          Stream.empty
        ))
      )
    ))

// Writes.

/** A write that was taken, and the run that follows from it. */
interface Write {
  readonly named: Sessions.Named
  readonly actions: ReadonlyArray<Access.Question["action"]>
  readonly log: Logs.RunLog
  readonly wanted: Reading.Wanted
  /** The conversation before the write. */
  readonly before: Thread.Thread
}

/** Counts a write, and refuses one too many. Where it is `isStreamed`, so is its stream. */
const admit = (site: Site, { by, key, principal }: Sessions.Named, isStreamed: boolean) =>
  Effect.gen(function*() {
    yield* site.counters.write(by, yield* Clock.currentTimeMillis)
    const worker = yield* Worker.Worker
    const prefix = Sessions.prefixOf(principal)
    yield* site.counters.run(key, prefix, site.hub.running(prefix, (other) => worker.drives(other)))
    if (isStreamed) yield* site.counters.stream(by)
  })

/** Takes what a body asks for: all of it, or nothing. */
export const write = (
  site: Site,
  request: Request,
  agent: string,
  posted: Posted.Posted,
  isStreamed = true,
  actions = Sessions.actionsOf(posted.actions)
): Effect.Effect<Write, Failure, Needs> =>
  Effect.gen(function*() {
    const { clientTools } = posted
    const verdicts = posted.actions.filter((action) => action._tag !== "Say")
    const said = posted.actions.find((action) => action._tag === "Say")
    const session = yield* named(site, request, agent, posted.sessionId, actions)
    yield* admit(site, session, isStreamed)
    if (clientTools.length > 0) yield* site.checkTools(session, clientTools)
    const known = yield* Effect.catchTag(Sessions.read(session), "Refusal", () => Effect.succeed(undefined))
    const before = known?.kept.session.thread ?? Thread.empty
    const log = yield* site.hub.follow(session.key)
    const { isQueued } = site
    let wanted: Reading.Wanted = { next: true }
    if (verdicts.length > 0) {
      const mayApprove = named(site, request, agent, posted.sessionId, ["approve"])
      const { after, count } = yield* Sessions.answer(session, { verdicts, said: said?.id, isQueued, mayApprove })
      if (count === 0 && said === undefined) {
        return yield* Sessions.stale
      }
      if (after !== undefined) wanted = { next: true, after }
    }
    const isNew = said !== undefined && known?.kept.state.receipts.has(said.id) !== true
    if (site.hub.current(session.key) === undefined) site.hub.expect(session.key)
    // A client that answers may post the message again that it began with.
    if (said !== undefined && (isNew || verdicts.length === 0)) {
      const options = { isQueued, mostSessions: site.bounds.sessions, opening: site.counters.opening }
      wanted = { takes: yield* Sessions.say(session, said, clientTools, options) }
    }
    yield* Worker.take(session.key)
    return { named: session, actions, log, wanted, before }
  })

/** Returns the frames of the run that follows from a write. The end of an attached request stops the run. */
export const framesOf = (site: Site, request: Request, { actions, log, named, wanted }: Write) =>
  Effect.gen(function*() {
    const until = whileAllowed(site, request, named, actions)
    const frames = Reading.run(site, named.key, log, wanted, until)
    if (!site.isAttached) return frames
    const stopped = Effect.ignore(Sessions.stopRun(named, wanted))
    yield* Effect.addFinalizer(() => Effect.raceFirst(stopped, site.closing))
    return frames
  })

const isWaited = (request: Request): boolean => query(request, "wait") !== "false"

// Routes.

const postUi = (site: Site) => (request: Request, { agent }: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const body = yield* bodyOf(site, request)
    const posted = yield* taken(UiStream.read(body, readOptions(site)))
    const taking = yield* write(site, request, agent, posted)
    const continues = posted.messageId !== undefined
    const frames = yield* quietly(yield* framesOf(site, request, taking))
    const options = posted.messageId === undefined ? { continues } : { continues, messageId: posted.messageId }
    return Writing.ui(frames, options)
  })

const resumeUi = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["read"])
    const nothing = HttpServerResponse.empty({ status: 204 })
    // The page of a new chat asks before its first message, and shows a refusal as an error.
    const found = yield* Effect.catchTag(Sessions.read(session), "Refusal", () => Effect.undefined)
    if (found === undefined) return nothing
    const { kept: { state }, telling } = found
    const run = state.run?.requestId
    if (run === undefined && !Journals.isUnfinished(States.next(state))) return nothing
    yield* site.counters.stream(session.by)
    const log = yield* site.hub.follow(session.key)
    yield* Worker.take(session.key)
    const [first] = state.inbox
    const wanted: Reading.Wanted = run !== undefined
      ? { runId: run }
      : first === undefined
      ? { next: true }
      : { takes: first.id }
    const until = whileAllowed(site, request, session, ["read"])
    // The client reads a message from its beginning, which may be that of an earlier run. A new message is its run's.
    const isNew = run === undefined && first !== undefined
    const earlier = isNew ? [] : telling.chain.filter((runId) => runId !== run)
    const frames = yield* quietly(Reading.run(site, session.key, log, wanted, until, earlier))
    return Writing.ui(frames, isNew || telling.message === undefined ? {} : { messageId: telling.message })
  })

const postMessages = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const body = yield* bodyOf(site, request)
    yield* Sessions.checkId(params.id)
    const posted = yield* taken(plainBody(site, params.id, body))
    const taking = yield* write(site, request, params.agent, posted, isWaited(request))
    if (!isWaited(request)) return json("takes" in taking.wanted ? { id: taking.wanted.takes } : {}, 202)
    const frames = yield* quietly(yield* framesOf(site, request, taking))
    return Writing.plain(frames)
  })

const getEvents = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const isRaw = query(request, "raw") === "true"
    if (isRaw && !site.isRaw) return yield* Refusals.forbidden("forbidden", "Raw events are not served.")
    const actions = [isRaw ? "inspect" : "read"] as const
    const session = yield* named(site, request, params.agent, params.id, actions)
    const after = yield* Reading.offsetOf(request.headers["last-event-id"] ?? query(request, "after"))
    const { kept, telling } = yield* Sessions.read(session)
    if (after !== undefined && !telling.runs.includes(after.runId) && kept.version === telling.records) {
      return yield* Refusals.badRequest("invalid_offset", "The offset is of another session.")
    }
    yield* site.counters.stream(session.by)
    if (isRaw) {
      const events = Stream.interruptWhen(site.raw(session.key), whileAllowed(site, request, session, actions))
      const texts = Stream.map(events, (event) => EventStream.data(Event.toWire(event)))
      return EventStream.respond(Stream.concat(Stream.succeed(EventStream.comment), texts))
    }
    const until = whileAllowed(site, request, session, actions)
    const frames = yield* quietly(Reading.events(site, session.key, after, until))
    return Writing.plain(frames)
  })

const postStop = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["stop"])
    yield* Sessions.read(session)
    if (isWaited(request)) yield* site.counters.stream(session.by)
    const receipt = yield* Keeping.stop(session.key, { by: session.by })
    // The owner looks for the request at once, where it is this process.
    yield* Worker.take(session.key)
    const accepted = { accepted: receipt.accepted, ...(receipt.id === undefined ? {} : { id: receipt.id }) }
    if (!isWaited(request)) return json(accepted, 202)
    const ended = Stream.interruptWhen(Stream.fromEffect(receipt.ended), site.closing)
    const lines = yield* quietly(Stream.interruptWhen(
      Stream.concat(
        Stream.succeed(`event: accepted\n${EventStream.data(accepted)}`),
        Stream.map(ended, (report) => `event: ended\n${EventStream.data(report)}`)
      ),
      whileAllowed(site, request, session, ["stop"])
    ))
    return EventStream.respond(lines)
  })

const postRetry = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["write"])
    yield* admit(site, session, isWaited(request))
    const { kept } = yield* Sessions.read(session)
    if (kept.session.status !== "error" && !Journals.isUnfinished(Keeping.next(kept))) {
      return yield* Refusals.conflict("nothing_to_retry", "Nothing broke, and nothing is left to do.")
    }
    const log = yield* site.hub.follow(session.key)
    const worker = yield* Worker.Worker
    yield* worker.take(session.key, true)
    if (!isWaited(request)) return json({}, 202)
    const run = kept.state.run?.requestId
    const wanted: Reading.Wanted = run === undefined ? { next: true } : { runId: run }
    const taking = { named: session, actions: ["write"] as const, log, wanted, before: kept.session.thread }
    const frames = yield* quietly(yield* framesOf(site, request, taking))
    return Writing.plain(frames)
  })

/** Lists the agents whose sessions the request may list. */
const getAgents = (site: Site) => (request: Request): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const asked = yield* Effect.forEach(site.agents.values(), ({ description, name }) =>
      Effect.result(Effect.as(
        Access.ask(site.authorize, request, { agent: name, action: "list" }),
        { name, description }
      )))
    const [first] = asked
    const agents = asked.flatMap((each) => Result.isSuccess(each) ? [each.success] : [])
    return first !== undefined && Result.isFailure(first) && agents.length === 0
      ? yield* first.failure
      : json({ agents })
  })

const getList = (site: Site) => (request: Request, { agent }: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    if (!site.agents.has(agent)) return yield* Refusals.notFound("unknown_agent", "There is no such agent.")
    const { of, principal } = yield* Access.ask(site.authorize, request, { agent, action: "list" })
    const page = Number(query(request, "page") ?? 0)
    if (!Number.isInteger(page) || page < 0) {
      return yield* Refusals.badRequest("invalid_page", "The page is a number from 0.")
    }
    return json(yield* Sessions.list(of ?? principal, agent, page))
  })

/** Tells whether a message is no answer in advance to a call that is under way. */
const isKnown = ({ turn }: States.State) => ({ role, toolCallId = "" }: Message.Message): boolean => {
  const call = role === "tool" ? turn?.calls.get(toolCallId) : undefined
  return call?._tag !== "Started" && call?._tag !== "Granted"
}

const getSession = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["read"])
    const { kept, telling } = yield* Sessions.read(session)
    const { state } = kept
    const { publish = "all", publishReasoning = false } = site.publish
    const runs = Telling.askers(state)
    const shown = { ...site.publish, runs, calls: new Map(), runId: telling.runs.at(-1) ?? "" }
    const { suspensions, thread } = kept.session
    const messages = UiStream.messages({ ...thread, messages: thread.messages.filter(isKnown(state)) }, {
      publish,
      publishReasoning,
      suspensions,
      runId: shown.runId,
      messageId: (index) => telling.names.get(index) ?? `message-${index}`
    })
    const last = messages.at(-1)
    const open = state.run !== undefined && last?.role === "assistant" && last.id === telling.message ? last : undefined
    return json({
      id: session.id,
      agent: session.agent,
      status: kept.session.status,
      next: States.next(state),
      isRunning: state.run !== undefined,
      // The message under way comes from its beginning by the stream.
      messages: open === undefined ? messages : messages.slice(0, -1),
      ...(open === undefined ? {} : { open }),
      submitted: (kept.submitted ?? []).map(({ id, message }) => ({ id, content: message.content })),
      suspensions: Telling.suspensionsOf(suspensions, shown),
      ...(telling.runs.length === 0 ? {} : { lastRunId: telling.runs.at(-1) }),
      ...(state.run === undefined ? {} : { runId: state.run.requestId, wholeSteps: state.run.steps.length })
    })
  })

const deleteSession = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["delete"])
    const { kept } = yield* Sessions.read(session)
    if (kept.interrupted !== undefined) {
      return yield* Refusals.conflict("running", "The session has a run under way. Stop it first.")
    }
    yield* Keeping.remove(session.key)
    site.hub.remove(session.key)
    return HttpServerResponse.empty({ status: 204 })
  })

const postAgUi = (site: Site) => (request: Request, { agent }: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const body = yield* bodyOf(site, request)
    const posted = yield* taken(AgUi.read(body, readOptions(site)))
    const taking = yield* write(site, request, agent, posted)
    const frames = yield* quietly(yield* framesOf(site, request, taking))
    const said = posted.actions.flatMap((action): ReadonlyArray<AgUi.AgMessage> =>
      action._tag === "Say"
        ? [{ id: action.id, role: "user", content: Message.text(Message.user(action.content)) }]
        : []
    )
    const { publish = "all", publishReasoning = false } = site.publish
    const options = {
      threadId: posted.sessionId,
      runId: posted.runId ?? globalThis.crypto.randomUUID(),
      messages: [...AgUi.messages(taking.before, { publish, publishReasoning }), ...said]
    }
    return Writing.agUi(frames, options)
  })

interface Params {
  readonly agent: string
  readonly id: string
}

type Handler = (request: Request, params: Params) => Effect.Effect<Response, Failure, Needs>

/** The routes by method and path. */
const routes: ReadonlyArray<readonly ["GET" | "POST" | "DELETE", `/${string}`, (site: Site) => Handler]> = [
  ["GET", "/agents", getAgents],
  ["POST", "/agents/:agent/sessions", postUi],
  ["GET", "/agents/:agent/sessions", getList],
  ["GET", "/agents/:agent/sessions/:id", getSession],
  ["DELETE", "/agents/:agent/sessions/:id", deleteSession],
  ["GET", "/agents/:agent/sessions/:id/stream", resumeUi],
  ["GET", "/agents/:agent/sessions/:id/events", getEvents],
  ["POST", "/agents/:agent/sessions/:id/messages", postMessages],
  ["POST", "/agents/:agent/sessions/:id/answers", postMessages],
  ["POST", "/agents/:agent/sessions/:id/stop", postStop],
  ["POST", "/agents/:agent/sessions/:id/resume", postRetry],
  ["POST", "/agui/:agent", postAgUi]
]

const unavailable = new Refusals.Refusal({
  status: 503,
  code: "unavailable",
  message: "The sessions cannot be reached. Try again."
})

const broken = new Refusals.Refusal({ status: 500, code: "internal", message: "The request failed. It was logged." })

/** Answers a request whatever becomes of its handler, and tells nothing but the refusal. */
export const answered = <R>(effect: Effect.Effect<Response, Failure, R>): Effect.Effect<Response, never, R> =>
  effect.pipe(
    Effect.catchTags({
      Refusal: (refusal) => Effect.succeed(Refusals.respond(refusal)),
      StoreError: (error) =>
        Effect.logWarning("a request met an error of the store", Json.nameOf(error)).pipe(
          Effect.andThen(Effect.logDebug("a request met an error of the store", error)),
          Effect.as(Refusals.respond(unavailable))
        )
    }),
    Effect.catchDefect((defect) => Effect.as(Effect.logError("a request died", defect), Refusals.respond(broken)))
  )

/** Adds the routes to a router. */
export const add = (router: HttpRouter.HttpRouter, site: Site) =>
  Effect.gen(function*() {
    const health = yield* Worker.Worker
    const context = yield* Effect.context<Exclude<Needs, Scope.Scope>>()
    const plain = (status: number) => HttpServerResponse.empty({ status })
    yield* router.add("GET", "/health", plain(200))
    yield* router.add("GET", "/ready", Effect.map(health.health, ({ isReady }) => plain(isReady ? 200 : 503)))
    for (const [method, path, handler] of routes) {
      const handle = handler(site)
      yield* router.add(method, path, (request) =>
        Effect.gen(function*() {
          const { agent = "", id = "" } = yield* HttpRouter.params
          const checked = Effect.andThen(
            Access.check(request, site.access),
            Effect.suspend(() => handle(request, { agent, id }))
          )
          const services = Context.add(context, Scope.Scope, yield* Effect.scope)
          const response = yield* answered(Effect.provideContext(checked, services))
          return Access.allowing(request, site.access, response)
        }))
    }
    for (const path of new Set(routes.map(([, path]) => path))) {
      yield* router.add("OPTIONS", path, (request) =>
        Effect.map(
          answered(Access.preflight(request, site.access)),
          (response) => Access.allowing(request, site.access, response)
        ))
    }
  })
