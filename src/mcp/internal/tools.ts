/**
 * Tools of a server as Heddle's own. Its hints count only where they are trusted, and as long as the tool is what it
 * was. A call is sent to the tool that its run began with or not at all.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Json from "../../internal/json.ts"
import * as Telemetry from "../../internal/telemetry.ts"
import * as Tool from "../../Tool.ts"
import * as Backend from "./backend.ts"
import type * as Connection from "./connection.ts"
import type * as Declared from "./declared.ts"
import { McpToolFailed } from "./declared.ts"
import * as Results from "./results.ts"

/**
 * A tool of a server. Its arguments are as the server describes them, and its `metadata.mcp` has the names of the
 * server and of the tool there, its `title`, and its `hash`.
 *
 * @category models
 * @since 0.1.0
 */
export type McpTool = Tool.Tool<string, Json.JsonObject, unknown, McpToolFailed, never>

/** The tools of a server under the names that a model reads, and those that are not offered. */
export interface Offered {
  readonly tools: ReadonlyArray<{ readonly own: string; readonly tool: McpTool }>
  readonly leftOut: ReadonlyArray<Backend.LeftOut>
}

interface Settings {
  readonly prefix: string
  readonly trust: Declared.Options["trust"]
  readonly approval: NonNullable<Declared.Options["approval"]>
  readonly elicit: Declared.Elicit | undefined
}

const longestName = 64

/** Returns the name of a tool for providers, which allow fewer characters than servers. */
const nameFor = (prefix: string, { hash, listed: { name } }: Connection.Known): string => {
  const safe = `${prefix}${name}`.replaceAll(/[^a-zA-Z0-9_-]/g, "_")
  return safe.length <= longestName ? safe : `${safe.slice(0, longestName - 9)}_${hash.slice(0, 8)}`
}

/** Returns the tools of a server as they are now. */
export const offered = (connection: Connection.Connection, settings: Settings): Offered => {
  const { leftOut, tools } = connection.current
  const missing: Array<Backend.LeftOut> = [...leftOut]
  const made: Array<Offered["tools"][number]> = []
  for (const known of tools.values()) {
    const { definition, name } = known.listed
    const { taskSupport } = Json.isObject(definition["execution"]) ? definition["execution"] : {} as Json.JsonObject
    if (taskSupport === "required") {
      missing.push({ name, reason: "it runs as a task only, which this client does not support" })
      continue
    }
    const tool = Result.try(() => make(connection, settings, known))
    if (Result.isSuccess(tool)) made.push({ own: name, tool: tool.success })
    else missing.push({ name, reason: tool.failure instanceof Error ? tool.failure.message : String(tool.failure) })
  }
  return { tools: made, leftOut: missing }
}

/** Returns the hints of a tool that count: the server's, or those of the program, for what it has trusted. */
const hintsOf = (
  connection: Connection.Connection,
  { trust }: Settings,
  { hash, listed: { annotations = {}, name } }: Connection.Known
): Declared.Hints | undefined => {
  const given = trust === "annotations"
    ? trust
    : trust !== undefined && Object.hasOwn(trust, name)
    ? trust[name]
    : undefined
  const isKnown = typeof given === "object" && given.hash !== undefined
    ? given.hash === hash
    : connection.isFirst(name, hash)
  if (given === undefined || !isKnown) return undefined
  if (given !== "annotations") return given
  const { destructiveHint, idempotentHint, openWorldHint, readOnlyHint } = annotations
  return {
    readOnly: readOnlyHint === true,
    destructive: readOnlyHint !== true && destructiveHint !== false,
    idempotent: idempotentHint === true || readOnlyHint === true,
    openWorld: openWorldHint !== false
  }
}

const make = (
  connection: Connection.Connection,
  settings: Settings,
  known: Connection.Known
): McpTool => {
  const { hash, listed } = known
  const { server } = connection
  const { $schema: _, ...parameters } = listed.inputSchema
  const hints = hintsOf(connection, settings, known)
  const { destructive = true, idempotent = false, openWorld = true, readOnly = false } = hints ?? {}
  const isChanged = !connection.isFirst(listed.name, hash)
  const facts = { server, name: listed.name, hash, isChanged, isTrusted: hints !== undefined, readOnly, destructive }
  const { approval } = settings
  const check = Effect.suspend(() => {
    const now = connection.current.tools.get(listed.name)
    if (now?.hash === hash) return Effect.void
    return Effect.fail(new Changed(now === undefined ? `the server has no tool "${listed.name}" any more` : changed))
  })
  const tool = Tool.make(nameFor(settings.prefix, known), {
    description: Results.cut(listed.description ?? listed.title ?? ""),
    parameters,
    readOnly,
    destructive: destructive && !readOnly,
    idempotent,
    openWorld,
    version: hash,
    approval: typeof approval === "function"
      ? (args: Json.JsonObject) => approval(facts, args)
      : approval === "all" || (approval === "none" ? isChanged : destructive && !readOnly),
    authorize: () =>
      Effect.match(Effect.andThen(connection.settled, check), {
        onSuccess: () => true,
        onFailure: ({ message }) => ({ allowed: false, reason: message })
      }),
    metadata: {
      mcp: { server, name: listed.name, hash, ...(listed.title === undefined ? {} : { title: listed.title }) }
    },
    handler: (args: Json.JsonObject, call: Tool.CallContext) =>
      run(new Call(connection, settings, known, idempotent, args, call), check)
  }) as unknown as McpTool
  // The model reads the words of a failure, and no more than those.
  return { ...tool, encodeFailure: ({ text }: McpToolFailed) => Effect.succeed(text) } as McpTool
}

const changed =
  "the tool is another one than the one that the run began with: its name is the same, and its description "
  + "or its parameters are not"

/** A tool changed, or is gone. */
class Changed extends Error {}

// A call.

/** The state of a call between two attempts: what the server asked, and what it was answered so far. */
interface Paused {
  /** The questions of a server that has ended its answer with them, by their keys. */
  readonly requests?: Readonly<Record<string, Backend.Elicitation>>
  readonly responses?: Readonly<Record<string, Backend.Elicited>>
  readonly state?: string
  /** The key of the question that was put to the user. */
  readonly key?: string
  /** The questions of a server that held its answer, in the order in which it asked, with the answers. */
  readonly given?: ReadonlyArray<{ readonly asked: Backend.Elicitation; readonly elicited: Backend.Elicited }>
  /** The one of them that was put to the user. */
  readonly asked?: Backend.Elicitation
}

const mostRounds = 10

/** The number of times that an idempotent call is sent again after its connection was lost. */
const mostRepeats = 2

class Call {
  readonly connection: Connection.Connection
  readonly settings: Settings
  readonly known: Connection.Known
  readonly isIdempotent: boolean
  readonly args: Json.JsonObject
  readonly call: Tool.CallContext
  /** The questions that were declined, each with the reason, which the model reads. */
  readonly notes: Array<string> = []

  constructor(
    connection: Connection.Connection,
    settings: Settings,
    known: Connection.Known,
    isIdempotent: boolean,
    args: Json.JsonObject,
    call: Tool.CallContext
  ) {
    this.connection = connection
    this.settings = settings
    this.known = known
    this.isIdempotent = isIdempotent
    this.args = args
    this.call = call
  }

  error(reason: Tool.ToolError["reason"], detail: string, code?: number) {
    const { id: toolCallId, name: toolName } = this.call
    const metadata = code === undefined ? {} : { metadata: { code } }
    return Tool.error(new Tool.ToolError({ reason, toolName, toolCallId, detail, ...metadata }))
  }

  decline({ message }: Backend.Elicitation, why: string): Backend.Elicited {
    this.notes.push(`[the server asked "${Results.cut(message)}", and was declined: ${why}]`)
    return { action: "decline" }
  }
}

/** Sends a call until it has its result, or its question is put to the user. */
const run = (it: Call, check: Effect.Effect<void, Changed>): Effect.Effect<unknown, McpToolFailed> =>
  Effect.gen(function*() {
    const { call, connection, known: { listed }, settings } = it
    const paused = call.resumed?.state as Paused | undefined
    yield* annotated(it)
    let { requests, responses, state } = paused ?? {}
    const given = [...paused?.given ?? []]
    if (paused?.asked !== undefined) {
      given.push({ asked: paused.asked, elicited: Results.elicitedOf(paused.asked, call.resumed?.answer) })
    }
    if (requests !== undefined && paused?.key !== undefined) {
      const asked = requests[paused.key]
      if (asked !== undefined) {
        responses = { ...responses, [paused.key]: Results.elicitedOf(asked, call.resumed?.answer) }
      }
    }
    for (let round = 0; round < mostRounds; round++) {
      for (const [key, asked] of Object.entries(requests ?? {})) {
        if (responses !== undefined && Object.hasOwn(responses, key)) continue
        if (settings.elicit !== undefined) {
          responses = { ...responses, [key]: yield* settings.elicit(connection.server, asked) }
          continue
        }
        const question = Results.questionOf(connection.server, asked, { requests, responses, state, key })
        if (question !== undefined) return question
        responses = { ...responses, [key]: it.decline(asked, "no answer to it could be checked") }
      }
      const request: Backend.Request = { tool: listed, arguments: it.args, meta: yield* trace, responses, state }
      const response = yield* sent(it, request, given, check)
      if (response._tag === "Outcome") return response.outcome
      if (response._tag === "Result") {
        if (!response.isError) return Results.valueOf(response, it.notes)
        yield* Telemetry.annotate({ "error.type": "tool_error" })
        const { server } = connection
        return yield* new McpToolFailed({ server, tool: listed.name, text: Results.wordsOf(response, it.notes) })
      }
      requests = {}
      responses = {}
      state = response.state
      for (const [key, asked] of Object.entries(response.requests)) {
        if (asked === undefined) {
          responses = { ...responses, [key]: it.decline({ message: key }, "only forms are answered") }
        } else requests = { ...requests, [key]: asked }
      }
    }
    const text = `the server asked more than ${mostRounds} times`
    return yield* new McpToolFailed({ server: connection.server, tool: listed.name, text })
  })

type Sent = Backend.Response | { readonly _tag: "Outcome"; readonly outcome: unknown }

/** Sends a call, and again where its connection is lost and it may be repeated. */
const sent = (
  it: Call,
  request: Backend.Request,
  given: ReadonlyArray<NonNullable<Paused["given"]>[number]>,
  check: Effect.Effect<void, Changed>
): Effect.Effect<Sent> =>
  Effect.gen(function*() {
    const { call, connection, isIdempotent, settings } = it
    const services = yield* Effect.context<never>()
    const held = Deferred.makeUnsafe<unknown>()
    const left = [...given]
    const asked: Connection.Asked = {
      declined: (elicitation) => void it.decline(elicitation, "several calls were under way, and it may be about any"),
      elicit: Effect.fnUntraced(function*(elicitation) {
        const known = left.findIndex((other) => Json.isSame(other.asked, elicitation))
        const [answer] = known < 0 ? [] : left.splice(known, 1)
        if (answer !== undefined) return answer.elicited
        if (settings.elicit !== undefined) return yield* settings.elicit(connection.server, elicitation)
        if (!isIdempotent) return it.decline(elicitation, "it holds the call open, which cannot wait for the user")
        const question = Results.questionOf(connection.server, elicitation, { given, asked: elicitation })
        if (question === undefined) return it.decline(elicitation, "no answer to it could be checked")
        Deferred.doneUnsafe(held, Exit.succeed(question))
        return { action: "cancel" }
      })
    }
    const progress = (value: unknown) => void Effect.runForkWith(services)(call.progress(value))
    let isSent = false
    let isInDoubt = false
    const checked = Effect.map(check, () => {
      isSent = true
    })
    const attempt = Effect.suspend(() => {
      isSent = false
      return Effect.raceFirst(
        connection.call(request, progress, asked, checked),
        Effect.map(Deferred.await(held), (outcome) => ({ _tag: "Outcome", outcome } as const))
      )
    })
    const judged = Effect.tapError(attempt, (error) =>
      Effect.sync(() => {
        if (isSent && error instanceof Backend.Failure && error.reason === "lost") isInDoubt = true
      }))
    const again = Effect.retry(judged, {
      times: mostRepeats,
      while: (error) =>
        error instanceof Backend.Failure && isSent &&
        (error.reason === "unsent" || error.reason === "lost" && isIdempotent)
    })
    return yield* Effect.catch(again, (error): Effect.Effect<Sent> => {
      const failed = (outcome: unknown) => Effect.succeed({ _tag: "Outcome", outcome } as const)
      const { message } = error
      if (isInDoubt) {
        return failed(it.error("unknown_effect", `the connection to the server ended while the call ran: ${message}`))
      }
      if (error instanceof Changed) return failed(it.error("denied", message))
      const { code } = error
      return failed(it.error("handler_raised", code === undefined ? message : `${message} (code ${code})`, code))
    })
  })

/** Adds the facts of the call to the span around it, if there is one. */
const annotated = ({ connection, known }: Call): Effect.Effect<void> =>
  Telemetry.annotate({
    "mcp.method.name": "tools/call",
    "mcp.tool.name": known.listed.name,
    "mcp.server.name": connection.server,
    ...connection.facts
  })

/** The trace that the call belongs to, as a server reads it. */
const trace: Effect.Effect<Json.JsonObject> = Effect.map(
  Effect.option(Effect.currentSpan),
  Option.match({
    onNone: () => Json.none,
    onSome: ({ sampled, spanId, traceId }) => ({ traceparent: `00-${traceId}-${spanId}-${sampled ? "01" : "00"}` })
  })
)
