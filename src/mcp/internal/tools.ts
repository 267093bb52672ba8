/**
 * Makes Heddle tools from server tools. A server's hints count only while trusted, and while the tool is unchanged. A
 * call reaches the tool its run began with, or none at all.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import { traceparent } from "../../adapters/internal/propagation.ts"
import { nearest } from "../../internal/declare/schema.ts"
import * as Json from "../../internal/json.ts"
import { annotateCall, names } from "../../internal/telemetry.ts"
import * as Tool from "../../Tool.ts"
import * as Backend from "./backend.ts"
import type * as Connection from "./connection.ts"
import type * as McpDeclared from "./mcpDeclared.ts"
import { McpToolFailed } from "./mcpDeclared.ts"
import * as Results from "./results.ts"

/**
 * A server tool. The server describes its arguments. `metadata.mcp` contains the server name, the tool's name on the
 * server, its `title` and its `hash`.
 *
 * @category models
 */
export type McpTool = Tool.Tool<string, Json.JsonObject, unknown, McpToolFailed, never>

/** A server tool, and the names it may have for a model, the preferred name first. */
export interface Offer {
  readonly own: string
  readonly names: ReadonlyArray<string>
  /** `true` if the preferred name is its own, after the prefix. */
  readonly isExact: boolean
  readonly tool: McpTool
}

/** Offered tools, and tools not offered. */
export interface Offered {
  readonly tools: ReadonlyArray<Offer>
  readonly leftOut: ReadonlyArray<Backend.LeftOut>
}

interface Settings {
  readonly prefix: string
  readonly trust: McpDeclared.Options["trust"]
  readonly approval: NonNullable<McpDeclared.Options["approval"]>
  readonly elicit: Connection.Answers["elicit"]
  readonly sample: Connection.Answers["sample"]
  readonly propagate: boolean
}

const longestName = 64

/** Maximum length of a tool name in a span. */
const longestInSpan = 128

/**
 * Returns a tool's possible names, limited to the characters providers allow, fewer than servers do. The first is used
 * unless another tool took it before.
 */
const namesFor = (prefix: string, { listed: { name }, nameHash }: Connection.Known): ReadonlyArray<string> => {
  const safe = `${prefix}${name}`.replaceAll(/[^a-zA-Z0-9_-]/g, "_")
  const ends = [8, 16, 32].map((length) => `${safe.slice(0, longestName - length - 1)}_${nameHash.slice(0, length)}`)
  return safe.length <= longestName ? [safe, ...ends] : ends
}

/** Returns the server's current tools. */
export const offered = (connection: Connection.Connection, settings: Settings): Offered => {
  const { leftOut, tools } = connection.current
  const missing: Array<Backend.LeftOut> = [...leftOut]
  const made: Array<Offer> = []
  for (const known of tools.values()) {
    const { definition, name } = known.listed
    const { taskSupport } = Json.isObject(definition["execution"]) ? definition["execution"] : {} as Json.JsonObject
    if (taskSupport === "required") {
      missing.push({ name, reason: "it runs as a task only, which this client does not support" })
      continue
    }
    const tool = Result.try(() => make(connection, settings, known))
    if (Result.isSuccess(tool)) {
      const names = namesFor(settings.prefix, known)
      made.push({ own: name, names, isExact: names[0] === `${settings.prefix}${name}`, tool: tool.success })
    } else missing.push({ name, reason: tool.failure instanceof Error ? tool.failure.message : String(tool.failure) })
  }
  return { tools: made, leftOut: missing }
}

/** Returns a tool's effective hints: the server's or the program's, for trusted tools. */
const hintsOf = (
  connection: Connection.Connection,
  { trust }: Settings,
  { hash, listed: { annotations = {}, name } }: Connection.Known
): (McpDeclared.Hints & { readonly isServers: boolean }) | undefined => {
  const given = trust === "annotations"
    ? trust
    : trust !== undefined && Object.hasOwn(trust, name)
    ? trust[name]
    : undefined
  const isKnown = typeof given === "object" && given.hash !== undefined
    ? given.hash === hash
    : connection.isFirst(name, hash)
  if (given === undefined || !isKnown) return undefined
  if (given !== "annotations") return { ...given, isServers: false }
  const { destructiveHint, idempotentHint, openWorldHint, readOnlyHint } = annotations
  return {
    isServers: true,
    readOnly: readOnlyHint === true,
    destructive: readOnlyHint !== true && destructiveHint !== false,
    idempotent: idempotentHint === true || readOnlyHint === true,
    openWorld: openWorldHint !== false
  }
}

/** Number of tools named in an error. */
const mostNamed = 10

/** Returns the problem if `trust` names an unlisted tool without its hash. */
export const unlisted = (
  trust: McpDeclared.Options["trust"],
  { leftOut, tools }: Connection.Snapshot
): string | undefined => {
  const listed = [...tools.keys(), ...leftOut.map(({ name }) => name)]
  const unknown = Object.entries(typeof trust === "object" ? trust : Json.none).find(([name, given]) => {
    const isForLater = Json.isObject(given) && given["hash"] !== undefined
    return given !== undefined && !isForLater && !listed.includes(name)
  })
  if (unknown === undefined) return undefined
  const shown = (name: string) => JSON.stringify(Results.cut(name.slice(0, longestInSpan)))
  const [name] = unknown
  const near = nearest(name, listed)
  const more = listed.length > mostNamed ? ` and ${listed.length - mostNamed} more` : ""
  const remedy = near !== undefined
    ? `did you mean ${shown(near)}?`
    : listed.length === 0
    ? "it has no tools"
    : `its tools are ${listed.slice(0, mostNamed).map(shown).join(", ")}${more}`
  return `trust names the tool ${shown(name)}, which the server does not list; ${remedy}`
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
  const { idempotent = false, openWorld = true, readOnly = false } = hints ?? {}
  const destructive = !readOnly && (hints?.destructive ?? true)
  const isChanged = !connection.isFirst(listed.name, hash)
  const facts = { server, name: listed.name, hash, isChanged, isTrusted: hints !== undefined, readOnly, destructive }
  // A server that only denies destruction has not denied other harm.
  const mayDestroy = !readOnly && (destructive || hints?.isServers === true)
  const { approval } = settings
  const check = Effect.suspend(() => {
    const now = connection.current.tools.get(listed.name)
    if (now?.hash === hash) return Effect.void
    return Effect.fail(new Changed(now === undefined ? `the server has no tool "${listed.name}" any more` : changed))
  })
  const [name = ""] = namesFor(settings.prefix, known)
  const tool = Tool.make(name, {
    description: Results.cut(listed.description ?? listed.title ?? ""),
    parameters,
    readOnly,
    destructive,
    idempotent,
    openWorld,
    // An approval for this tool must not count for another server's tool that takes over the name later.
    version: `${server} ${listed.name} ${hash}`,
    approval: typeof approval === "function"
      ? (args: Json.JsonObject) => approval(facts, args)
      : approval === "all" || (approval === "none" ? isChanged : mayDestroy),
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
  // The model reads only the failure's text.
  return { ...tool, encodeFailure: ({ text }: McpToolFailed) => Effect.succeed(text) } as McpTool
}

const changed =
  "the tool has changed since the run began: it has the same name, but a different title, description, parameters or "
  + "hints"

/** A tool changed or disappeared. */
class Changed extends Error {}

// A call.

/** State of a call between two attempts: the server's questions, and the answers so far. */
interface Paused {
  /** Questions from a server that ended its answer with them, by key. */
  readonly requests?: Readonly<Record<string, Backend.Elicitation>>
  readonly responses?: Readonly<Record<string, unknown>>
  readonly state?: string
  /** Key of the question put to the user. */
  readonly key?: string
  /** Questions from a server holding its answer open, in order, with the answers. */
  readonly given?: ReadonlyArray<{ readonly asked: Backend.Elicitation; readonly elicited: Backend.Elicited }>
  /** The open question put to the user. */
  readonly asked?: Backend.Elicitation
}

const mostRounds = 10

/** Maximum number of questions from a server at once, and within a call it holds open. */
const mostQuestions = 10

/** Maximum number of declined questions reported to the model. */
const mostNotes = 10

/**
 * Maximum number of resends: of a call the server never received, and of an idempotent call without a readable answer.
 */
const mostRepeats = 2

class Call {
  readonly connection: Connection.Connection
  readonly settings: Settings
  readonly known: Connection.Known
  readonly isIdempotent: boolean
  readonly args: Json.JsonObject
  readonly call: Tool.CallContext
  /** Declined questions, each with its reason, for the model. */
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
    if (this.notes.length < mostNotes) {
      this.notes.push(`[the server asked "${Results.cut(message)}", and was declined: ${why}]`)
    }
    return { action: "decline" }
  }
}

/** Sends a call until it has a result or asks the user. */
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
          responses = { ...responses, [key]: yield* settings.elicit(asked) }
          continue
        }
        const question = Results.questionOf(connection.server, asked, { requests, responses, state, key })
        if (question !== undefined) return question
        responses = { ...responses, [key]: it.decline(asked, "no answer to it could be checked") }
      }
      const request: Backend.Request = { tool: listed, arguments: it.args, meta: yield* trace(it), responses, state }
      const response = yield* sent(it, request, given, check)
      if (response._tag === "Outcome") return response.outcome
      if (response._tag === "Result") {
        if (!response.isError) return Results.valueOf(response, it.notes)
        const { server } = connection
        return yield* new McpToolFailed({ server, tool: listed.name, text: Results.wordsOf(response, it.notes) })
      }
      requests = {}
      responses = {}
      state = response.state
      const wanted = Object.entries(response.requests)
      if (wanted.length > mostQuestions) {
        const text = `the server asked more than ${mostQuestions} questions at once`
        return yield* new McpToolFailed({ server: connection.server, tool: listed.name, text })
      }
      for (const [key, asked] of wanted) {
        if (asked?._tag === "Elicitation") {
          const { _tag, ...elicitation } = asked
          requests = { ...requests, [key]: elicitation }
          continue
        }
        const known = asked?._tag === "Sampling" ? yield* sampled(it, asked) : asked?.response
        responses = {
          ...responses,
          [key]: known ?? it.decline({ message: key }, "this client does not answer such requests")
        }
      }
    }
    const text = `the server asked more than ${mostRounds} times`
    return yield* new McpToolFailed({ server: connection.server, tool: listed.name, text })
  })

/** Returns a model's answer in the server's form, or `undefined` if declined. */
const sampled = (
  { settings: { sample } }: Call,
  sampling: Backend.Sampling
): Effect.Effect<Json.JsonObject | undefined> =>
  sample === undefined ? Effect.succeed(undefined) : Effect.map(sample(sampling), Results.sampledOf)

type Sent = Backend.Response | { readonly _tag: "Outcome"; readonly outcome: unknown }

/** Returns `true` if a failed call may have had its effect. */
const isUnknown = (error: Backend.Failure | Changed): boolean =>
  error instanceof Backend.Failure && (error.reason === "lost" || error.reason === "unanswered")

/** Sends a call, and repeats a failed call if repetition is safe. */
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
      left: mostQuestions,
      declined: (elicitation) =>
        void it.decline(elicitation, "several calls were running, and the question may concern any of them"),
      elicit: Effect.fnUntraced(function*(elicitation) {
        const known = left.findIndex((other) => Json.isSame(other.asked, elicitation))
        const [answer] = known < 0 ? [] : left.splice(known, 1)
        if (answer !== undefined) return answer.elicited
        if (settings.elicit !== undefined) return yield* settings.elicit(elicitation)
        if (!isIdempotent) {
          return it.decline(elicitation, "the server holds the call open, which cannot wait for the user")
        }
        const question = Results.questionOf(connection.server, elicitation, { given, asked: elicitation })
        if (question === undefined) {
          return it.decline(elicitation, "no answer to it could be checked")
        }
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
        if (isSent && isUnknown(error)) isInDoubt = true
      }))
    const again = Effect.retry(judged, {
      times: mostRepeats,
      while: (error) =>
        error instanceof Backend.Failure && isSent &&
        (error.reason === "unsent" || isUnknown(error) && isIdempotent)
    })
    return yield* Effect.catch(again, (error): Effect.Effect<Sent> => {
      const failed = (outcome: unknown) => Effect.succeed({ _tag: "Outcome", outcome } as const)
      const { message } = error
      if (isInDoubt) {
        return failed(
          it.error(
            "unknown_effect",
            `the server may have run the call, but gave no readable answer: ${message}`
          )
        )
      }
      if (error instanceof Changed) return failed(it.error("denied", message))
      const { code } = error
      return failed(it.error("handler_raised", code === undefined ? message : `${message} (code ${code})`, code))
    })
  })

/** Adds call facts to the call's span, if any. */
const annotated = ({ connection, known }: Call): Effect.Effect<void> =>
  annotateCall({
    [names.mcpMethod]: "tools/call",
    [names.mcpTool]: known.listed.name.slice(0, longestInSpan),
    [names.mcpServer]: connection.server,
    ...connection.facts
  })

/** Returns the call's trace context for the server, if enabled. */
const trace = ({ settings: { propagate } }: Call): Effect.Effect<Json.JsonObject> =>
  propagate
    ? Effect.map(traceparent, (header) => header === undefined ? Json.none : { traceparent: header })
    : Effect.succeed(Json.none)
