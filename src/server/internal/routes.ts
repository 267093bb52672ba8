/**
 * The routes of a server. Each of them checks the address, the page and the id of the session, asks whether it is
 * allowed, and then reads or writes sessions.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as HttpRouter from "effect/http/HttpRouter"
import type * as HttpServerRequest from "effect/http/HttpServerRequest"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Worker from "../../durable/Worker.ts"
import type * as Event from "../../Event.ts"
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
type Needs = Journals.Store | Worker.Worker

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
    const bytes = new Uint8Array(size)
    let at = 0
    for (const chunk of chunks) {
      bytes.set(chunk, at)
      at += chunk.length
    }
    return bytes
  }).pipe(
    Effect.catch((error) =>
      error._tag === "Refusal" ? Effect.fail(error) : Refusals.badRequest("invalid_body", "The body could not be read.")
    )
  )

const bodyOf = ({ bounds, counters }: Site, request: Request): Effect.Effect<unknown, Refusals.Refusal> =>
  Effect.gen(function*() {
    const type = request.headers["content-type"] ?? ""
    if (!/^application\/json\s*(;|$)/i.test(type)) {
      return yield* new Refusals.Refusal({
        status: 415,
        code: "unsupported_media_type",
        message: "A body is application/json."
      })
    }
    const bytes = yield* counters.body(bytesOf(request, bounds.body))
    const parsed = Json.parse(new TextDecoder().decode(bytes))
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
  if (typeof content === "string") return reader.text(content, "content")
  return reader.list(content, "content").map((given, index) => {
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

/** Ends where the principal may no longer read a session, which is asked again and again. */
const whileAllowed = (site: Site, request: Request, { agent, id }: Sessions.Named): Effect.Effect<void> =>
  Effect.ignore(Effect.forever(Effect.delay(
    Access.ask(site.authorize, request, { agent, session: id, action: "read" }),
    site.bounds.authorization
  )))

/** Counts an open stream for as long as it is read. */
const counted = <E, R>(site: Site, { by }: Sessions.Named, frames: Stream.Stream<Reading.Frame, E, R>) =>
  Stream.unwrap(Effect.as(site.counters.stream(by), frames))

/** Refuses a stream that is one too many before the response begins. */
const openStream = (site: Site, { by }: Sessions.Named): Effect.Effect<void, Refusals.Refusal> =>
  Effect.scoped(site.counters.stream(by))

/** Returns a stream as lines for a client: an error of the store ends it, and is logged. */
const quietly = <A>(
  stream: Stream.Stream<A, unknown, Journals.Store>
): Effect.Effect<Stream.Stream<A>, never, Journals.Store> =>
  Effect.map(Effect.context<Journals.Store>(), (context) =>
    stream.pipe(
      Stream.provideContext(context),
      Stream.catchCause((cause) =>
        Stream.unwrap(Effect.as(Effect.logWarning("a stream of a session broke", cause), Stream.empty))
      )
    ))

// Writes.

/** A write that was taken, and the run that follows from it. */
interface Write {
  readonly named: Sessions.Named
  readonly posted: Posted.Posted
  readonly log: Logs.RunLog
  readonly wanted: Reading.Wanted
  readonly scope: Scope.Closeable
  /** The conversation before the write. */
  readonly before: Thread.Thread
}

/** Takes what a body asks for: all of it, or nothing. */
const write = (
  site: Site,
  request: Request,
  agent: string,
  posted: Posted.Posted
): Effect.Effect<Write, Failure, Needs> =>
  Effect.gen(function*() {
    const { actions, clientTools } = posted
    const verdicts = actions.filter((action) => action._tag !== "Say")
    const said = actions.find((action) => action._tag === "Say")
    const session = yield* named(site, request, agent, posted.sessionId, Sessions.actionsOf(actions))
    yield* site.counters.write(session.by, yield* Clock.currentTimeMillis)
    if (isWaited(request)) yield* openStream(site, session)
    if (
      site.hub.current(session.key) === undefined &&
      site.hub.running(Sessions.prefixOf(session.principal)) >= site.bounds.runs
    ) {
      return yield* Refusals.tooMany(
        "too_many_runs",
        `There are ${site.bounds.runs} runs under way. Wait for one to end.`
      )
    }
    if (clientTools.length > 0) yield* site.checkTools(session, clientTools)
    const known = yield* Effect.catchTag(Sessions.read(session), "Refusal", () => Effect.succeed(undefined))
    const before = known?.kept.session.thread ?? Thread.empty
    const scope = yield* Scope.make()
    return yield* Effect.gen(function*() {
      const log = yield* Scope.provide(site.hub.follow(session.key), scope)
      let wanted: Reading.Wanted = { next: true }
      if (verdicts.length > 0) {
        const count = yield* Sessions.answer(session, verdicts)
        if (count === 0 && said === undefined) {
          return yield* Refusals.conflict("not_waiting", "Nothing waits for this answer. Read the session again.")
        }
      }
      if (said !== undefined) {
        const options = { isQueued: site.isQueued, mostSessions: site.bounds.sessions }
        wanted = { takes: (yield* Sessions.say(session, said, clientTools, options)).id }
      }
      yield* Worker.take(session.key)
      return { named: session, posted, log, wanted, scope, before }
    }).pipe(Effect.onExit((exit) => Exit.isFailure(exit) ? Scope.close(scope, Exit.void) : Effect.void))
  })

/** Returns the frames of the run that follows from a write. The end of an attached request stops the run. */
const framesOf = (site: Site, request: Request, { log, named, scope, wanted }: Write) => {
  const until = whileAllowed(site, request, named)
  const frames = counted(site, named, Reading.run(site, named.key, log, wanted, until))
  const closed = Stream.ensuring(frames, Scope.close(scope, Exit.void))
  if (!site.isAttached) return closed
  const stopped = Effect.flatMap(Keeping.stop(named.key, { by: named.by }), ({ ended }) => ended)
  const bounded = Effect.raceFirst(Effect.ignore(stopped), site.closing)
  return Stream.onExit(closed, (exit) => Exit.isFailure(exit) ? bounded : Effect.void)
}

const isWaited = (request: Request): boolean => query(request, "wait") !== "false"

// Routes.

const postUi = (site: Site) => (request: Request, { agent }: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const body = yield* bodyOf(site, request)
    const posted = yield* taken(UiStream.read(body, readOptions(site)))
    const taking = yield* write(site, request, agent, posted)
    const continues = posted.messageId !== undefined
    const frames = yield* quietly(framesOf(site, request, taking))
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
    yield* openStream(site, session)
    const scope = yield* Scope.make()
    const log = yield* Scope.provide(site.hub.follow(session.key), scope)
    yield* Worker.take(session.key)
    const [first] = state.inbox
    const wanted: Reading.Wanted = run !== undefined
      ? { runId: run }
      : first === undefined
      ? { next: true }
      : { takes: first.id }
    const frames = Stream.ensuring(
      counted(site, session, Reading.run(site, session.key, log, wanted, whileAllowed(site, request, session))),
      Scope.close(scope, Exit.void)
    )
    const messageId = telling.message
    return Writing.ui(yield* quietly(frames), messageId === undefined ? {} : { messageId })
  })

const postMessages = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const body = yield* bodyOf(site, request)
    yield* Sessions.checkId(params.id)
    const posted = yield* taken(plainBody(site, params.id, body))
    const taking = yield* write(site, request, params.agent, posted)
    if (!isWaited(request)) {
      yield* Scope.close(taking.scope, Exit.void)
      return json("takes" in taking.wanted ? { id: taking.wanted.takes } : {}, 202)
    }
    const frames = yield* quietly(framesOf(site, request, taking))
    return Writing.plain(frames)
  })

const getEvents = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const isRaw = query(request, "raw") === "true"
    if (isRaw && !site.isRaw) return yield* Refusals.forbidden("forbidden", "Raw events are not served.")
    const session = yield* named(site, request, params.agent, params.id, [isRaw ? "inspect" : "read"])
    const after = yield* Reading.offsetOf(request.headers["last-event-id"] ?? query(request, "after"))
    const { kept, telling } = yield* Sessions.read(session)
    if (after !== undefined && !telling.runs.includes(after.runId) && kept.version === telling.records) {
      return yield* Refusals.badRequest("invalid_offset", "The offset is of another session.")
    }
    yield* openStream(site, session)
    if (isRaw) {
      const lines = Stream.map(site.raw(session.key), (event) => `data: ${JSON.stringify(event)}\n\n`)
      return EventStream.respond(lines)
    }
    const until = whileAllowed(site, request, session)
    const frames = counted(site, session, Reading.events(site, session.key, after, until))
    return Writing.plain(yield* quietly(frames))
  })

const postStop = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["stop"])
    yield* Sessions.read(session)
    const receipt = yield* Keeping.stop(session.key, { by: session.by })
    // The owner looks for the request at once, where it is this process.
    yield* Worker.take(session.key)
    const accepted = { accepted: receipt.accepted, ...(receipt.id === undefined ? {} : { id: receipt.id }) }
    if (!isWaited(request)) return json(accepted, 202)
    const ended = Stream.interruptWhen(Stream.fromEffect(receipt.ended), site.closing)
    const lines = yield* quietly(Stream.concat(
      Stream.succeed(`event: accepted\ndata: ${JSON.stringify(accepted)}\n\n`),
      Stream.map(ended, (report) => `event: ended\ndata: ${JSON.stringify(report)}\n\n`)
    ))
    return EventStream.respond(lines)
  })

const postRetry = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["write"])
    yield* site.counters.write(session.by, yield* Clock.currentTimeMillis)
    if (isWaited(request)) yield* openStream(site, session)
    const { kept } = yield* Sessions.read(session)
    if (kept.session.status !== "error" && !Journals.isUnfinished(Keeping.next(kept))) {
      return yield* Refusals.conflict("nothing_to_retry", "Nothing broke, and nothing is left to do.")
    }
    const scope = yield* Scope.make()
    const log = yield* Scope.provide(site.hub.follow(session.key), scope)
    const worker = yield* Worker.Worker
    yield* worker.take(session.key, true)
    const run = kept.state.run?.requestId
    const wanted: Reading.Wanted = run === undefined ? { next: true } : { runId: run }
    const taking = {
      named: session,
      posted: { sessionId: params.id, actions: [], clientTools: [] },
      log,
      wanted,
      scope,
      before: kept.session.thread
    }
    if (!isWaited(request)) {
      yield* Scope.close(scope, Exit.void)
      return json({}, 202)
    }
    const frames = yield* quietly(framesOf(site, request, taking))
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

const getSession = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["read"])
    const { kept, telling } = yield* Sessions.read(session)
    const { state } = kept
    const { publish = "all", publishReasoning = false } = site.publish
    const runs = Telling.askers(state)
    const shown = { ...site.publish, runs, calls: new Map(), runId: telling.runs.at(-1) ?? "" }
    const { suspensions } = kept.session
    return json({
      id: session.id,
      agent: session.agent,
      status: kept.session.status,
      next: States.next(state),
      isRunning: state.run !== undefined,
      messages: UiStream.messages(kept.session.thread, {
        publish,
        publishReasoning,
        suspensions,
        runId: shown.runId
      }),
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
    return HttpServerResponse.empty({ status: 204 })
  })

const postAgUi = (site: Site) => (request: Request, { agent }: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const body = yield* bodyOf(site, request)
    const posted = yield* taken(AgUi.read(body, readOptions(site)))
    const taking = yield* write(site, request, agent, posted)
    const frames = yield* quietly(framesOf(site, request, taking))
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
const answered = <R>(effect: Effect.Effect<Response, Failure, R>): Effect.Effect<Response, never, R> =>
  effect.pipe(
    Effect.catchTags({
      Refusal: (refusal) => Effect.succeed(Refusals.respond(refusal)),
      StoreError: (error) =>
        Effect.as(Effect.logWarning("a request met an error of the store", error), Refusals.respond(unavailable))
    }),
    Effect.catchDefect((defect) => Effect.as(Effect.logError("a request died", defect), Refusals.respond(broken)))
  )

/** Adds the routes to a router. */
export const add = (router: HttpRouter.HttpRouter, site: Site) =>
  Effect.gen(function*() {
    const health = yield* Worker.Worker
    const context = yield* Effect.context<Needs>()
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
          const response = yield* answered(Effect.provideContext(checked, context))
          return Access.allowing(request, site.access, response)
        }))
    }
    for (const path of new Set(routes.map(([, path]) => path))) {
      yield* router.add("OPTIONS", path, (request) => Effect.succeed(Access.preflight(request, site.access)))
    }
  })
