/**
 * Routes of a server. Each checks the address, the page and the session id, requests permission, and then reads or
 * writes sessions.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as HttpRouter from "effect/http/HttpRouter"
import type * as HttpServerRequest from "effect/http/HttpServerRequest"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Worker from "../../durable/Worker.ts"
import * as Event from "../../Event.ts"
import * as CallPaths from "../../internal/answer/callPath.ts"
import * as Json from "../../internal/json.ts"
import type * as Journal from "../../Journal.ts"
import * as Message from "../../Message.ts"
import * as Session from "../../Session.ts"
import * as Thread from "../../Thread.ts"
import type * as Tool from "../../Tool.ts"
import * as AgUi from "../../ui/AgUi.ts"
import type * as Body from "../../ui/Body.ts"
import * as UiStream from "../../ui/UiStream.ts"
import * as Access from "./access.ts"
import * as Bodies from "./bodies.ts"
import * as EventStream from "./eventStream.ts"
import type * as Facts from "./facts.ts"
import * as JournalEvents from "./journalEvents.ts"
import * as Lists from "./lists.ts"
import * as Logs from "./log.ts"
import * as Paths from "./paths.ts"
import * as Reading from "./reading.ts"
import * as Refusals from "./refusal.ts"
import * as Relays from "./relay.ts"
import * as RunPages from "./runPages.ts"
import * as Sessions from "./sessions.ts"
import * as Writing from "./writing.ts"

type Request = HttpServerRequest.HttpServerRequest
type Response = HttpServerResponse.HttpServerResponse
type Failure = Refusals.Refusal | Journal.StoreError
/** The scope belongs to the request: it closes once the response is sent, or the client has left. */
type Needs = Session.Store | Worker.Worker | Scope.Scope

/** Parts of a server. */
export interface Site extends Relays.Site, Bodies.Site {
  readonly access: Access.Rules
  readonly authorize: Access.Authorize
  /** Agents by name. */
  readonly agents: ReadonlyMap<string, Parameters<Facts.FactsOf>[0]>
  /** Major version of the AI SDK on the pages. */
  readonly protocol: UiStream.Protocol
  readonly isAttached: boolean
  readonly isQueued: boolean
  /** Destination of messages without their own. Absent if such a message begins a run. */
  readonly into: Sessions.Into | undefined
  readonly isRaw: boolean
  /** Refuses client tools with the name of an agent tool. */
  readonly checkTools: (
    named: Sessions.Named,
    clientTools: ReadonlyArray<Body.ClientTool>
  ) => Effect.Effect<void, Refusals.Refusal>
  readonly factsOf: Facts.FactsOf
  /** Returns the tools for a run continuing the session now. Empty if they cannot be read. */
  readonly toolsOf: (kept: Session.Kept) => Effect.Effect<ReadonlyArray<Tool.Any>>
  /** Returns a session's calls that may change something, judged by its agent's current tools. */
  readonly changing: (
    session: Sessions.Named,
    calls: ReadonlyArray<Message.ToolCall>
  ) => Effect.Effect<ReadonlyArray<Message.ToolCall>>
  /** Waits until the server is released: unfinished work then ends in another process. */
  readonly closing: Effect.Effect<void>
  /** Emits the raw events of a run in this process. */
  readonly raw: (key: string) => Stream.Stream<Event.Event>
}

/**
 * Routes beside the agent routes. They check their own requests.
 *
 * @category models
 */
export interface Mount<R = never> {
  /** Adds the routes to a server's router. */
  readonly mount: (
    router: HttpRouter.HttpRouter,
    site: Site
  ) => Effect.Effect<void, never, Scope.Scope | Session.Store | Worker.Worker | R>
}

const json = (body: unknown, status = 200): Response =>
  HttpServerResponse.jsonUnsafe(body, {
    status,
    headers: { "cache-control": "no-store", "x-content-type-options": "nosniff" }
  })

const parametersOf = (request: Request): URLSearchParams => new URL(request.url, "http://localhost").searchParams

/** Returns the first value of a URL parameter. */
const query = (request: Request, name: string): string | undefined => parametersOf(request).get(name) ?? undefined

// Sessions of requests.

const checkAgent = (
  { agents }: Site,
  name: string
): Effect.Effect<Parameters<Facts.FactsOf>[0], Refusals.Refusal> => {
  const agent = agents.get(name)
  return agent === undefined ? Refusals.notFound("unknown_agent", "There is no such agent.") : Effect.succeed(agent)
}

/**
 * Reads a request body. Before reading its first byte, the request is admitted if it may write, or do anything else a
 * body may request. The body's actual requests are checked after reading.
 */
const bodyOf = (site: Site, request: Request, agent: string): Effect.Effect<unknown, Refusals.Refusal> =>
  Effect.gen(function*() {
    yield* checkAgent(site, agent)
    const others = [{ agent, action: "answer" }, { agent, action: "approve" }] as const
    return yield* Bodies.read(site, request, yield* Access.ask(site, request, { agent, action: "write" }, ...others))
  })

const named = (
  site: Site,
  request: Request,
  agent: string,
  id: string,
  actions: ReadonlyArray<Access.Question["action"]>
): Effect.Effect<Sessions.Named, Refusals.Refusal> =>
  Effect.gen(function*() {
    yield* checkAgent(site, agent)
    yield* Sessions.checkId(id)
    const grants = yield* Effect.forEach(
      actions,
      (action) => Access.ask(site, request, { agent, session: id, action })
    )
    const [grant] = grants
    const [principal, by] = [grant?.of ?? grant?.principal ?? "", grant?.principal ?? ""]
    if (grants.some((other) => (other.of ?? other.principal) !== principal)) {
      return yield* Refusals.forbidden("forbidden", "This is not allowed.")
    }
    return { agent, id, key: Sessions.prefixOf(principal) + id, principal, by }
  })

/** Ends as soon as a request loses its permission, which is checked repeatedly. */
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

// Writes.

/** An accepted write, and its following run. */
interface Write {
  readonly named: Sessions.Named
  readonly actions: ReadonlyArray<Access.Question["action"]>
  readonly log: Logs.RunLog
  readonly wanted: Reading.Wanted
  /** The session before the write, if it existed. */
  readonly known: Sessions.Read | undefined
  /** Message of a followed or retried reply: its earlier runs, and its id. */
  readonly reply?: Pick<LastReply, "earlier" | "message">
  /** `true` if the message goes into a run begun by another request. */
  readonly isSteering?: boolean
}

/** The last assistant message: its run under way or its last run, and the runs before that. */
interface LastReply {
  readonly wanted: Reading.Wanted
  readonly earlier: ReadonlyArray<string>
  /** Message id. Absent for a message about to begin. */
  readonly message: string | undefined
}

/** Returns the run under way or about to begin. */
const underWay = ({ kept: { interrupted, submitted: [first] = [] }, telling }: Sessions.Read): Reading.Wanted =>
  interrupted !== undefined
    ? { runId: interrupted.requestId }
    : first === undefined
    ? { known: telling.runs.length }
    : { takes: first.id }

/** Returns the run beginning after a session's failed last run. */
const nextRun = ({ kept, telling }: Sessions.Read): Reading.Wanted => {
  const { requestId: after } = Session.view(kept).lastRun ?? {}
  return { known: telling.runs.length, ...(after === undefined ? {} : { after }) }
}

const lastReply = (read: Sessions.Read): LastReply => {
  const { kept, telling: { chain, message } } = read
  const last = chain.at(-1)
  const wanted = last === undefined || Session.isUnfinished(kept) ? underWay(read) : { runId: last }
  // A new client message begins a new assistant message.
  if ("takes" in wanted) return { wanted, earlier: [], message: undefined }
  return { wanted, earlier: chain.filter((runId) => !("runId" in wanted) || runId !== wanted.runId), message }
}

/** Counts a write, and refuses it beyond the limit. If `isStreamed`, this includes its stream. */
const admit = (site: Site, { by, key, principal }: Sessions.Named, isStreamed: boolean) =>
  Effect.gen(function*() {
    yield* site.counters.write(by, yield* Clock.currentTimeMillis)
    const worker = yield* Worker.Worker
    const prefix = Sessions.prefixOf(principal)
    const { peers } = site
    const isAway = (other: string) => peers?.isHere(other) === false && !worker.drives(other)
    const isDriven = (other: string) => worker.drives(other) || isAway(other)
    const running = site.hub.running(prefix, isDriven)
    // Other processes do not report the end of a run.
    if (running.size >= site.bounds.runs) {
      yield* Effect.forEach(Array.from(running).filter(isAway), (other) =>
        Effect.map(Session.load(other), (kept) => {
          if (kept === undefined || !Session.isUnfinished(kept)) site.hub.forget(other)
        }), { discard: true })
    }
    yield* site.counters.run(key, prefix, site.hub.running(prefix, isDriven))
    if (isStreamed) yield* site.counters.stream(by)
  })

/** Expects the run begun by a write, and tells whether it was neither expected nor under way. */
const expectRun = ({ hub }: Site, key: string): boolean => hub.current(key) === undefined && hub.expect(key)

/** Expects a run during the write beginning it, and afterwards if the write was accepted. */
const expecting = <A, E, R>(site: Site, key: string, write: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.suspend(() => {
    const isExpected = expectRun(site, key)
    return Effect.onError(write, () => Effect.sync(() => isExpected ? site.hub.forget(key) : undefined))
  })

/** Carries out all of a body's requests, or no request. */
export const write = (
  site: Site,
  request: Request,
  agent: string,
  posted: Body.Posted,
  isStreamed = true,
  actions = Sessions.actionsOf(posted.actions),
  into = site.into
): Effect.Effect<Write, Failure, Needs> =>
  Effect.gen(function*() {
    const { clientTools } = posted
    const verdicts = posted.actions.filter((action) => action._tag !== "Say" && action._tag !== "Retry")
    const asked = posted.actions.find((action) => action._tag === "Retry")
    const session = yield* named(site, request, agent, posted.sessionId, actions)
    yield* admit(site, session, isStreamed)
    if (clientTools.length > 0) yield* site.checkTools(session, clientTools)
    const known = yield* Effect.catchTag(Sessions.read(session), "Refusal", () => Effect.succeed(undefined))
    const log = yield* site.hub.follow(session.key)
    const isQueued = site.isQueued || into !== undefined
    const again = asked && (yield* Sessions.again(known, asked, posted.messageId))
    const said = posted.actions.find((action) => action._tag === "Say") ??
      (again === "send" ? asked?.message : undefined)
    if (known !== undefined && again !== undefined && again !== "send") {
      const { message } = asked ?? {}
      const reply = lastReply(known)
      const isEarlier = message !== undefined && message.id !== known.telling.asked
      const write = { named: session, actions, log, known }
      if (again === "retry") {
        yield* expecting(site, session.key, Sessions.retry(session, known))
        const { chain: earlier, message } = known.telling
        return { ...write, wanted: nextRun(known), reply: { earlier, message } }
      }
      yield* Worker.take(session.key)
      if (isEarlier) return { ...write, wanted: { takes: message.id } }
      return { ...write, wanted: reply.wanted, reply }
    }
    let wanted: Reading.Wanted = { known: known?.telling.runs.length ?? 0 }
    if (verdicts.length > 0) {
      const mayApprove = named(site, request, agent, posted.sessionId, ["approve"])
      if (known === undefined) return yield* Refusals.unknownSession()
      const { after, count, ended } = yield* Sessions.answer(session, known, {
        verdicts,
        said,
        clientTools,
        isQueued,
        mayApprove,
        toolsOf: site.toolsOf,
        publish: site.publish,
        bounds: site.bounds
      })
      if (count === 0 && said === undefined) return yield* Sessions.unasked(known, site.publish)
      if (after !== undefined) wanted = { ...wanted, after }
      // Readers of an ended run get its end once its claim is released: the log is open until then.
      else if (ended !== undefined && ended === log.begun?.runId) wanted = { ...wanted, after: ended }
      // An answering client may repeat its original message.
      if (said !== undefined && Session.receipt(known.kept, said.id) === undefined) wanted = { takes: said.id }
    }
    if (said !== undefined && verdicts.length === 0) {
      const { opening } = site.counters
      const saying = { message: said, clientTools, into, isQueued, bounds: site.bounds, opening }
      const id = yield* expecting(site, session.key, Sessions.say(session, known, saying))
      wanted = into === undefined ? { takes: id } : yield* Sessions.runOf(session, id, into)
    } else expectRun(site, session.key)
    yield* Worker.take(session.key)
    const isSteering = into !== undefined && "runId" in wanted
    return { named: session, actions, log, wanted, known, isSteering }
  })

/** Returns the frames for a write's run. The end of an attached request stops the run. */
export const framesOf = (site: Site, request: Request, { actions, isSteering, log, named, reply, wanted }: Write) =>
  Effect.gen(function*() {
    const until = whileAllowed(site, request, named, actions)
    const earlier = reply?.earlier ?? []
    const frames = yield* Relays.frames(site, named.key, log, { _tag: "Run", wanted, earlier }, until)
    if (!site.isAttached || isSteering === true) return frames
    const stopped = Effect.ignore(Sessions.stopRun(named, wanted))
    yield* Effect.addFinalizer(() => Effect.raceFirst(stopped, site.closing))
    return frames
  })

const isWaited = (request: Request): boolean => query(request, "wait") !== "false"

// Routes.

const postUi = (site: Site) => (request: Request, { agent }: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const body = yield* bodyOf(site, request, agent)
    const posted = yield* Bodies.taken(UiStream.read(body, Bodies.optionsOf(site)))
    const taking = yield* write(site, request, agent, posted)
    // The page reads the run under way through the request that began it: a second stream would show the reply twice.
    if (taking.isSteering === true) return Writing.uiNothing
    const frames = yield* framesOf(site, request, taking)
    const { protocol } = site
    const messageId = posted.messageId ?? taking.reply?.message
    const asked = posted.actions.find((action) => action._tag === "Retry")
    const known = asked === undefined ? {} : { known: asked.steps }
    const continues = messageId !== undefined
    const calls = taking.known === undefined ? [] : JournalEvents.callsOf(taking.known.kept, site.publish)
    return Writing.ui(frames, { protocol, continues, calls, ...known, ...continues ? { messageId } : {} })
  })

const resumeUi = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["read"])
    const nothing = HttpServerResponse.empty({ status: 204 })
    // The page of a new chat sends this request before its first message, and shows a refusal as an error.
    const found = yield* Effect.catchTag(Sessions.read(session), "Refusal", () => Effect.undefined)
    if (found === undefined) return nothing
    if (!Session.isUnfinished(found.kept)) return nothing
    yield* site.counters.stream(session.by)
    const log = yield* site.hub.follow(session.key)
    yield* Worker.take(session.key)
    // The client reads a message from its beginning, possibly in an earlier run.
    const { earlier, message: messageId, wanted } = lastReply(found)
    const until = whileAllowed(site, request, session, ["read"])
    const wantedRun = { _tag: "Run" as const, wanted, earlier }
    const frames = yield* Relays.frames(site, session.key, log, wantedRun, until)
    const { protocol } = site
    return Writing.ui(frames, { protocol, ...messageId === undefined ? {} : { messageId } })
  })

const postMessages = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    yield* Sessions.checkId(params.id)
    const body = yield* bodyOf(site, request, params.agent)
    const { into = site.into, ...posted } = yield* Bodies.taken(Bodies.plain(site, params.id, body))
    const actions = Sessions.actionsOf(posted.actions)
    const taking = yield* write(site, request, params.agent, posted, isWaited(request), actions, into)
    if (!isWaited(request)) {
      const said = posted.actions.find((action) => action._tag === "Say")
      return json(said === undefined ? {} : { id: said.id }, 202)
    }
    const frames = yield* framesOf(site, request, taking)
    return Writing.plain(frames)
  })

/** Decodes the message id in an address, a single encoded segment. */
const messageOf = ({ message }: Params): Effect.Effect<string, Refusals.Refusal> =>
  Effect.try({ try: () => decodeURIComponent(message), catch: () => Sessions.noSuchMessage })

/** Answers with a message's outcome. */
const getMessage = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["read"])
    const read = yield* Sessions.read(session)
    return json(yield* Sessions.fate(read, yield* messageOf(params)))
  })

/** Withdraws a message not yet taken by a run, and answers with its outcome. */
const deleteMessage = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["write"])
    const id = yield* messageOf(params)
    yield* Sessions.fate(yield* Sessions.read(session), id)
    const withdrawn = yield* Session.withdraw(session.key, id, { by: session.by })
    if (withdrawn) yield* Worker.take(session.key)
    return json({ withdrawn, ...(yield* Sessions.fate(yield* Sessions.read(session), id)) })
  })

const getEvents = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const isRaw = query(request, "raw") === "true"
    if (isRaw && !site.isRaw) {
      return yield* Refusals.forbidden("forbidden", "This server does not serve raw events: its option raw is off.")
    }
    const actions = [isRaw ? "inspect" : "read"] as const
    const session = yield* named(site, request, params.agent, params.id, actions)
    const after = yield* Reading.offsetOf(request.headers["last-event-id"] ?? query(request, "after"))
    const { kept, telling } = yield* Sessions.read(session)
    if (after !== undefined && !telling.runs.includes(after.runId) && kept.version === telling.records) {
      return yield* Refusals.badRequest("invalid_offset", "The offset belongs to another session.")
    }
    yield* site.counters.stream(session.by)
    if (isRaw) {
      const events = Stream.interruptWhen(site.raw(session.key), whileAllowed(site, request, session, actions))
      const texts = Stream.map(events, (event) => EventStream.data(Event.toWire(event)))
      return EventStream.respond(Stream.concat(Stream.succeed(EventStream.comment), EventStream.telling(texts)))
    }
    const until = whileAllowed(site, request, session, actions)
    const endedRuns = telling.runs.length - (kept.interrupted === undefined ? 0 : 1)
    const wanted = { _tag: "Events" as const, endedRuns, ...(after === undefined ? {} : { after }) }
    const frames = yield* Relays.frames(site, session.key, undefined, wanted, until)
    return Writing.plain(frames)
  })

const postStop = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["stop"])
    yield* Sessions.read(session)
    if (isWaited(request)) yield* site.counters.stream(session.by)
    const receipt = yield* Session.stop(session.key, { by: session.by })
    // The owner looks for the request immediately if it is this process.
    yield* Worker.take(session.key)
    const accepted = { accepted: receipt.accepted, ...(receipt.id === undefined ? {} : { id: receipt.id }) }
    if (!isWaited(request)) return json(accepted, 202)
    const ended = Stream.interruptWhen(Stream.fromEffect(receipt.ended), site.closing)
    const lines = Stream.interruptWhen(
      Stream.concat(
        Stream.succeed(`event: accepted\n${EventStream.data(accepted)}`),
        Stream.map(ended, (report) => `event: ended\n${EventStream.data(report)}`)
      ),
      whileAllowed(site, request, session, ["stop"])
    )
    const context = yield* Effect.context<Session.Store>()
    return EventStream.respond(EventStream.telling(Stream.provideContext(lines, context)))
  })

/** Stops one call of the run under way. */
const postStopCall = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["stop"])
    yield* Sessions.read(session)
    const call = Result.try(() => decodeURIComponent(params.path))
    if (Result.isFailure(call)) return yield* Sessions.noSuchCall
    const { accepted, id } = yield* Session.stop(session.key, { by: session.by, call: call.success })
    if (id === undefined) return yield* Sessions.noSuchCall
    yield* Worker.take(session.key)
    return json({ accepted, id }, 202)
  })

const postRetry = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["write"])
    yield* admit(site, session, isWaited(request))
    const known = yield* Sessions.read(session)
    const isFailed = Sessions.isFailed(known)
    if (!isFailed && !Session.isUnfinished(known.kept)) return yield* Sessions.nothingToRetry
    const log = yield* site.hub.follow(session.key)
    if (isFailed) yield* Sessions.retry(session, known)
    else yield* Worker.take(session.key)
    if (!isWaited(request)) return json({}, 202)
    const wanted = isFailed ? nextRun(known) : underWay(known)
    const taking = { named: session, actions: ["write"] as const, log, wanted, known }
    const frames = yield* framesOf(site, request, taking)
    return Writing.plain(frames)
  })

/** Begins a session continuing another from before one of its messages. The other session does not change. */
const postFork = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    yield* Sessions.checkId(params.id)
    const body = yield* bodyOf(site, request, params.agent)
    const { id, ...asked } = yield* Bodies.taken(Bodies.forking(site, body))
    const session = yield* named(site, request, params.agent, params.id, ["write"])
    const branch = yield* named(site, request, params.agent, id, ["write"])
    if (branch.principal !== session.principal) return yield* Refusals.forbidden("forbidden", "This is not allowed.")
    yield* admit(site, branch, false)
    if (asked.clientTools.length > 0) yield* site.checkTools(branch, asked.clientTools)
    const known = yield* Sessions.read(session)
    const { bounds, counters: { opening } } = site
    const made = Sessions.fork(session, known, branch, { ...asked, bounds, opening })
    const { calls, kept } = yield* asked.content === undefined ? made : expecting(site, branch.key, made)
    if (Session.isUnfinished(kept)) yield* Worker.take(branch.key)
    const { forkedFrom } = kept.origin
    const changing = yield* site.changing(session, calls)
    return json({
      id,
      ...(forkedFrom === undefined
        ? {}
        : { forkedFrom: { ...forkedFrom, id: Sessions.idOf(forkedFrom.id) } }),
      calls: JournalEvents.published(changing, site.publish).map(({ id, name }) => ({ id, name }))
    }, 201)
  })

/** Lists the agents whose sessions the request may list. */
const getAgents = (site: Site) => (request: Request): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const asked = yield* Effect.forEach(site.agents.values(), ({ description, name }) =>
      Effect.result(Effect.as(
        Access.ask(site, request, { agent: name, action: "list" }),
        { name, description }
      )))
    const [first] = asked
    const agents = asked.flatMap((each) => Result.isSuccess(each) ? [each.success] : [])
    return first !== undefined && Result.isFailure(first) && agents.length === 0
      ? yield* first.failure
      : json({ agents })
  })

/** Returns facts about an agent whose sessions the request may list. */
const getAgent = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const agent = yield* checkAgent(site, params.agent)
    const { of, principal } = yield* Access.ask(site, request, { agent: agent.name, action: "list" })
    return json(yield* site.factsOf(agent, of ?? principal))
  })

const getList = (site: Site) => (request: Request, { agent }: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    yield* checkAgent(site, agent)
    const { of, principal } = yield* Access.ask(site, request, { agent, action: "list" })
    const search = yield* Effect.fromResult(Lists.searchOf(parametersOf(request)))
    yield* site.counters.list(principal, yield* Clock.currentTimeMillis)
    return json(yield* Lists.list(of ?? principal, agent, search))
  })

/** Returns a test for messages, failing for premature answers to running calls. */
const isKnown = ({ calls }: Session.View) => {
  const open = calls.filter(({ state }) => state === "Started" || state === "Granted")
  const ids = new Set(open.map(({ toolCall }) => toolCall.id))
  return ({ role, toolCallId = "" }: Message.Message): boolean => role !== "tool" || !ids.has(toolCallId)
}

/**
 * Returns messages as streams present them, each with its position in the thread. The thread stores an answered
 * question as assistant text followed by a user message; a page shows the answer at the call.
 */
const seen = (
  messages: ReadonlyArray<Message.Message>,
  { hidden, names }: Pick<JournalEvents.Telling, "hidden" | "names">
): ReadonlyArray<readonly [place: number, message: Message.Message]> => {
  const answers = new Map<number, Message.Content>()
  const left = new Set(hidden)
  const results = new Map<string, number>()
  messages.forEach(({ askUser, role, toolCallId = "" }, place) => {
    if (role === "tool") results.set(toolCallId, place)
    const next = messages[place + 1]
    const result = results.get(toolCallId)
    // A message sent by a client stays a message.
    if (askUser !== true || result === undefined || next?.role !== "user" || names.has(place + 1)) return
    answers.set(result, next.content)
    left.add(place).add(place + 1)
  })
  return messages.flatMap((message, place) => {
    const content = answers.get(place)
    return left.has(place) ? [] : [[place, content === undefined ? message : { ...message, content }] as const]
  })
}

const getSession = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["read"])
    const { kept, telling } = yield* Sessions.read(session)
    const view = Session.view(kept)
    const { lastRun, output, run } = view
    const { publish = "all", publishReasoning = false } = site.publish
    const { suspensions, thread } = kept.session
    const isWhole = isKnown(view)
    const shown = seen(thread.messages, telling).filter(([, message]) => isWhole(message))
    const shownOf = <A>(known: ReadonlyMap<number, A>): ReadonlyMap<number, A> =>
      new Map(shown.flatMap(([place], index) => known.has(place) ? [[index, known.get(place) as A] as const] : []))
    const messages = UiStream.messages({ ...thread, messages: shown.map(([, message]) => message) }, {
      publish,
      publishReasoning,
      suspensions,
      runId: view.waitingSince ?? "",
      protocol: site.protocol,
      outputs: shownOf(telling.outputs),
      delivered: shownOf(telling.inside),
      messageId: (index) => {
        const place = shown[index]?.[0] ?? index
        return telling.names.get(place) ?? `message-${place}`
      }
    })
    const last = messages.at(-1)
    const open = run !== undefined && last?.role === "assistant" && last.id === telling.message ? last : undefined
    return json({
      id: session.id,
      agent: session.agent,
      status: kept.session.status,
      next: Session.next(kept),
      isRunning: run !== undefined,
      // The stream sends the message under way from its beginning.
      messages: open === undefined ? messages : messages.slice(0, -1),
      ...(open === undefined ? {} : { open }),
      submitted: view.inbox.map(({ id, message }) => ({ id, content: message.content })),
      suspensions: JournalEvents.suspensionsOf(kept, site.publish),
      allowed: Sessions.allowedIn(kept, site.publish),
      ...(telling.runs.length === 0 ? {} : { lastRunId: telling.runs.at(-1) }),
      ...(lastRun?.rule === undefined ? {} : { endedBy: lastRun.rule.name }),
      ...(output === undefined ? {} : { output }),
      ...(run === undefined ? {} : { runId: run.requestId, wholeSteps: run.steps })
    })
  })

const getRuns = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["read"])
    const wanted = yield* RunPages.wantedOf(query(request, "before"), query(request, "limit"))
    const read = yield* Sessions.read(session)
    const page = yield* RunPages.page(session.key, read.telling, wanted, site.publish)
    const forks = yield* Sessions.forksOf(session)
    // Requests without permission to withdraw get no button for a waiting message.
    const canWithdraw = Session.view(read.kept).inbox.length > 0
      && Result.isSuccess(yield* Effect.result(named(site, request, params.agent, params.id, ["write"])))
    return json({ session: RunPages.sessionOf(read.kept, forks, site.publish, canWithdraw), ...page })
  })

const patchSession = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    yield* Sessions.checkId(params.id)
    const body = yield* bodyOf(site, request, params.agent)
    const change = yield* Bodies.taken(Bodies.labels(site, body))
    const session = yield* named(site, request, params.agent, params.id, ["write"])
    yield* site.counters.write(session.by, yield* Clock.currentTimeMillis)
    return json(yield* Sessions.label(session, change, site.bounds))
  })

const deleteSession = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["delete"])
    yield* Sessions.checkRemovable(session)
    yield* Sessions.remove(site.hub, session)
    return HttpServerResponse.empty({ status: 204 })
  })

const deleteAllowed = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["approve"])
    yield* site.counters.write(session.by, yield* Clock.currentTimeMillis)
    yield* Sessions.read(session)
    yield* Sessions.disallow(session, params.tool)
    return HttpServerResponse.empty({ status: 204 })
  })

/** Returns the conversation before a run as AG-UI messages, with the same ids as in streams. */
const agMessages = (
  { publish }: Site,
  known: Sessions.Read | undefined,
  next: Pick<Body.Say, "content" | "id"> | undefined
): ReadonlyArray<AgUi.AgMessage> => {
  const shown = { publish: publish.publish ?? "all", publishReasoning: publish.publishReasoning ?? false }
  const saidBy = ({ content, id }: Pick<Body.Say, "content" | "id">) =>
    AgUi.messages(Thread.fromMessages([Message.user(content)]), { messageId: () => id })
  const said = next === undefined ? [] : saidBy(next)
  if (known === undefined) return said
  const { kept, telling, telling: { names, turns } } = known
  const { run } = Session.view(kept)
  const { suspensions, thread: { messages } } = run?.before ?? kept.session
  // The run of a repeated message may have ended: its events come again.
  const [place] = Array.from(names).find(([, name]) => name === next?.id) ?? []
  const visible = seen(messages.slice(0, place), telling)
  const thread = Thread.fromMessages(visible.map(([, message]) => message))
  const messageId = (index: number, role: "user" | "assistant") => {
    const own = visible[index]?.[0] ?? index
    return (role === "user" ? names : turns).get(own) ?? `message-${own}`
  }
  const { id, message } = run?.takes ?? {}
  return [
    ...AgUi.messages(thread, { ...shown, messageId, suspensions }),
    ...id === undefined || id === next?.id || message === undefined
      ? []
      : saidBy({ id, content: message.content }),
    ...said
  ]
}

const postAgUi = (site: Site) => (request: Request, { agent }: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const body = yield* bodyOf(site, request, agent)
    const posted = yield* Bodies.taken(AgUi.read(body, Bodies.optionsOf(site)))
    const { messageIds, runId = globalThis.crypto.randomUUID(), sessionId: threadId } = posted
    const said = posted.actions.find((action) => action._tag === "Say")
    // An AG-UI client asks again through another run containing its messages.
    const actions: ReadonlyArray<Body.Action> = said === undefined || posted.actions.length > 1
      ? posted.actions
      : [{ _tag: "Retry", message: said, steps: 0, isRegeneration: false }]
    // Its replies have their run ids, plus their turn numbers.
    const { messageId: last } = posted
    const messageId = last === undefined ? {} : { messageId: CallPaths.runOfReply(last) }
    const { reply, ...taking } = yield* write(site, request, agent, { ...posted, ...messageId, actions })
    if (taking.isSteering === true) return Writing.agUiNothing({ threadId, runId })
    // Its messages cover the earlier runs: it gets only its message's run, or the retrying run.
    const isFollowed = reply !== undefined && said !== undefined && !("known" in taking.wanted)
    const wanted = isFollowed ? { takes: said.id } : taking.wanted
    const frames = yield* framesOf(site, request, { ...taking, wanted })
    const { known } = taking
    // The run under way says more before the next begins.
    const open = known && Session.view(known.kept).run
    const isBehind = open !== undefined
      && ("takes" in wanted ? open.takes?.id !== wanted.takes : "after" in wanted)
    if (isBehind) return Writing.agUi(frames, { threadId, runId })
    const messages = agMessages(site, known, "takes" in wanted ? said : undefined)
    const first = messages.findIndex(({ id, role }) =>
      (role === "user" || role === "assistant") && messageIds?.has(id) !== true
    )
    // A client with part of the current reply gets the whole reply.
    const has = reply !== undefined && !isFollowed && "runId" in wanted ? 0 : first
    return Writing.agUi(frames, { threadId, runId, messages, ...(has < 0 ? {} : { known: has }) })
  })

const joinAgUi = (site: Site) => (request: Request, params: Params): Effect.Effect<Response, Failure, Needs> =>
  Effect.gen(function*() {
    const session = yield* named(site, request, params.agent, params.id, ["read"])
    const options = { threadId: session.id, runId: query(request, "runId") ?? globalThis.crypto.randomUUID() }
    // The page of a new thread sends this request before its first message, and shows a refusal as an error.
    const known = yield* Effect.catchTag(Sessions.read(session), "Refusal", () => Effect.undefined)
    if (known === undefined) {
      const event = yield* JournalEvents.stillWaiting(undefined, site.publish)
      const frame: Reading.Frame = { _tag: "Event", offset: "", event, text: "" }
      return Writing.agUi(Stream.succeed(frame), options)
    }
    yield* site.counters.stream(session.by)
    const log = yield* site.hub.follow(session.key)
    yield* Worker.take(session.key)
    const wanted = underWay(known)
    const next = known.kept.submitted?.find(({ id }) => "takes" in wanted && id === wanted.takes)
    const said = next && { id: next.id, content: next.message.content }
    const until = whileAllowed(site, request, session, ["read"])
    const wantedRun = { _tag: "Run" as const, wanted, earlier: [] }
    const frames = yield* Relays.frames(site, session.key, log, wantedRun, until)
    const messages = agMessages(site, known, said)
    // AG-UI messages have no place for the typed answer.
    const { output } = Session.view(known.kept)
    const answered = output === undefined
      ? frames
      : Stream.concat(Stream.succeed(Logs.entry("", { _tag: "OutputCompleted", value: output })), frames)
    return Writing.agUi(answered, { ...options, messages, known: 0 })
  })

interface Params {
  readonly agent: string
  readonly id: string
  readonly message: string
  readonly tool: string
  readonly path: string
}

type Handler = (request: Request, params: Params) => Effect.Effect<Response, Failure, Needs>

/** Routes by method and path. */
const routes: ReadonlyArray<readonly ["GET" | "POST" | "PATCH" | "DELETE", `/${string}`, (site: Site) => Handler]> = [
  ["GET", "/agents", getAgents],
  ["GET", "/agents/:agent", getAgent],
  ["POST", "/agents/:agent/sessions", postUi],
  ["GET", "/agents/:agent/sessions", getList],
  ["GET", "/agents/:agent/sessions/:id", getSession],
  ["PATCH", "/agents/:agent/sessions/:id", patchSession],
  ["DELETE", "/agents/:agent/sessions/:id", deleteSession],
  ["GET", "/agents/:agent/sessions/:id/stream", resumeUi],
  ["GET", "/agents/:agent/sessions/:id/events", getEvents],
  ["GET", "/agents/:agent/sessions/:id/runs", getRuns],
  ["POST", "/agents/:agent/sessions/:id/messages", postMessages],
  ["GET", "/agents/:agent/sessions/:id/messages/:message", getMessage],
  ["DELETE", "/agents/:agent/sessions/:id/messages/:message", deleteMessage],
  ["POST", "/agents/:agent/sessions/:id/answers", postMessages],
  ["POST", "/agents/:agent/sessions/:id/fork", postFork],
  ["DELETE", "/agents/:agent/sessions/:id/allowed/:tool", deleteAllowed],
  ["POST", "/agents/:agent/sessions/:id/stop", postStop],
  ["POST", "/agents/:agent/sessions/:id/calls/:path/stop", postStopCall],
  ["POST", "/agents/:agent/sessions/:id/resume", postRetry],
  ["POST", "/agui/:agent", postAgUi],
  ["GET", "/agui/:agent/:id", joinAgUi]
]

/** Answers a request whatever happens in its handler. An error reveals only its refusal. */
export const answered = <R>(effect: Effect.Effect<Response, Failure, R>): Effect.Effect<Response, never, R> =>
  effect.pipe(
    Effect.catchTags({
      Refusal: (refusal) => Effect.succeed(Refusals.respond(refusal)),
      StoreError: (error) =>
        Effect.logWarning("a request met a store error", Json.nameOf(error)).pipe(
          Effect.andThen(Effect.logDebug("a request met a store error", error)),
          Effect.as(Refusals.respond(Refusals.ofStore(error)))
        )
    }),
    Effect.catchDefect((defect) =>
      Effect.as(Effect.logError("a request died", defect), Refusals.respond(Refusals.broken))
    )
  )

/** Adds the routes to a router. */
export const add = (router: HttpRouter.HttpRouter, site: Site) =>
  Effect.gen(function*() {
    const health = yield* Worker.Worker
    const context = yield* Effect.context<Exclude<Needs, Scope.Scope>>()
    const plain = (status: number) => HttpServerResponse.empty({ status })
    yield* Paths.add(router, "GET", "/health", () => Effect.succeed(plain(200)))
    yield* Paths.add(router, "GET", "/ready", () =>
      Effect.map(health.health, ({ isReady }) =>
        plain(isReady ? 200 : 503)))
    for (const [method, path, handler] of routes) {
      const handle = handler(site)
      yield* Paths.add(router, method, path, (request, { agent = "", id = "", message = "", path = "", tool = "" }) =>
        Effect.gen(function*() {
          const checked = Effect.andThen(
            Access.check(request, site.access),
            Effect.suspend(() =>
              handle(request, { agent, id, message, path, tool })
            )
          )
          const services = Context.add(context, Scope.Scope, yield* Effect.scope)
          const response = yield* answered(Effect.provideContext(checked, services))
          return Access.allowing(request, site.access, response)
        }))
    }
    for (
      const path of new Set(routes.map(([, path]) =>
        path
      ))
    ) {
      yield* Paths.add(router, "OPTIONS", path, (request) =>
        Effect.map(
          answered(Access.preflight(request, site.access)),
          (response) =>
            Access.allowing(request, site.access, response)
        ))
    }
  })
