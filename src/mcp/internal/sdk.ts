/**
 * Wraps the official SDK's client, imported when the first connection opens. The SDK's timeout for calls is disabled,
 * since the run controls time. A message over the limit ends the connection: over stdio by the SDK's own buffer, over
 * HTTP by counting incoming bytes.
 */
import type * as Sdk from "@modelcontextprotocol/client"
import type * as SdkStdio from "@modelcontextprotocol/client/stdio"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Json from "../../internal/json.ts"
import { names } from "../../internal/telemetry.ts"
import * as Backend from "./backend.ts"
import type * as McpDeclared from "./mcpDeclared.ts"
import * as Results from "./results.ts"
import type * as Process from "./serverProcess.ts"

/** A server started as a process. */
export interface Stdio {
  readonly command: string
  readonly args?: ReadonlyArray<string> | undefined
  readonly env?: Readonly<Record<string, string>> | undefined
  readonly cwd?: string | undefined
}

/** A server at an address. */
export interface Http {
  readonly url: string | URL
  readonly headers?: Readonly<Record<string, string>> | undefined
}

/** Longest timer delay, in milliseconds. */
const never = 2 ** 31 - 1

/** Time limit for the server's handshake, and for listing its tools, in milliseconds. */
const openingMillis = 120_000

/** Time limit for the server to state its protocol, in milliseconds. A silent server gets the older protocol. */
const probeMillis = 20_000

/** Shortest and longest delay before reopening a stream, in milliseconds, whatever the server asks for. */
const leastReconnectMillis = 1_000
const mostReconnectMillis = 30_000

const lost = (message: string): Backend.Failure => new Backend.Failure({ reason: "lost", message })

const lostCodes: ReadonlySet<unknown> = new Set([
  "NOT_CONNECTED",
  "CONNECTION_CLOSED",
  "SEND_FAILED",
  "ERA_NEGOTIATION_FAILED"
])

/** Maximum length of a server text in an error. */
const longestText = 1_000

/** Returns a server text for an error, without apparent secrets. Known secrets are hidden before the text is cut. */
const shown = (text: string): string => Json.beginningWithoutSecrets(text, false, 2 * longestText)

/** Minimum length of a value to hide in errors, since shorter values occur too often. */
const shortestSecret = 6

/**
 * Returns a function hiding the server's headers or variables in a text, then cutting the text. `isEnd` marks the end
 * of a longer text. A secret cut off at either side is hidden too.
 */
const hiding = (server: Stdio | Http): (text: string, isEnd?: boolean) => string => {
  const given = "command" in server ? server.env : server.headers
  // A header may contain a scheme before its key.
  const secrets = Object.values(given ?? {}).flatMap((value) => [value, ...value.split(/\s+/)])
    .filter(({ length }) => length >= shortestSecret)
  return (text, isEnd = false) => {
    const parts = { start: isEnd, end: text.length > longestText }
    return Json.withoutKnown(text, secrets, "…", parts).slice(0, longestText)
  }
}

/** Error codes of connections never established. */
const unreached: ReadonlySet<unknown> = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN"])

/** Error codes of answers received but unreadable. */
const unreadableCodes: ReadonlySet<unknown> = new Set([
  "INVALID_RESULT",
  "UNSUPPORTED_RESULT_TYPE",
  "CLIENT_HTTP_UNEXPECTED_CONTENT"
])
const unreadableNames: ReadonlySet<unknown> = new Set(["SyntaxError", "ZodError", "$ZodError"])

/**
 * Returns the fate of a request, by its HTTP error. A server that forgot the session answers 404. After a server error,
 * possibly a proxy's, the server may have run the call.
 */
const overHttp = ({ cause, code, name, status }: Json.JsonObject): "lost" | "unsent" | "unanswered" | undefined => {
  if (status === 404) return "unsent"
  if (Number(status) >= 500 || unreadableCodes.has(code) || unreadableNames.has(name)) return "unanswered"
  if (name !== "TypeError" || cause === undefined) return undefined
  return Json.isObject(cause) && unreached.has(cause["code"]) ? "unsent" : "lost"
}

/** Converts an SDK error to a failure. */
const failureOf = (error: unknown): Backend.Failure => {
  if (error instanceof Backend.Failure) return error
  const { cause, code, data, message, name, status } = Json.isObject(error) || error instanceof Error
    ? error as unknown as Json.JsonObject
    : {} as Json.JsonObject
  if (data instanceof Backend.Failure) return data
  const text = shown(typeof message === "string" ? message : Json.render(error))
  const ended = lostCodes.has(code) || text === "Not connected" ? "lost" : overHttp({ cause, code, name, status })
  if (ended !== undefined) return new Backend.Failure({ reason: ended, message: text })
  return typeof code === "number"
    ? new Backend.Failure({ reason: "rpc", message: text, code })
    : new Backend.Failure({ reason: "other", message: text })
}

/** Fails if a server takes too long for an operation without an overall client timeout. */
const inTime = <A>(effect: Effect.Effect<A, Backend.Failure>, what: string): Effect.Effect<A, Backend.Failure> =>
  Effect.timeoutOrElse(effect, {
    duration: openingMillis,
    orElse: () => new Backend.Failure({ reason: "other", message: `${what} took longer than ${openingMillis} ms` })
  })

const attempt = <A>(run: (signal: AbortSignal) => Promise<A>): Effect.Effect<A, Backend.Failure> =>
  Effect.tryPromise({ try: run, catch: failureOf })

/** Passes a response on until a message exceeds the limit. */
const bounded = (response: Response, most: number): Response => {
  if (response.body === null) return response
  const isStream = response.headers.get("content-type")?.startsWith("text/event-stream") === true
  let size = 0
  let last = 0
  let longest = 0
  const counted = response.body.pipeThrough(
    new TransformStream<Uint8Array, Uint8Array>({
      transform: (chunk, controller) => {
        for (const byte of chunk) {
          longest = Math.max(longest, ++size)
          // An empty line ends an event.
          if (isStream && byte === 10 && last === 10) size = 0
          if (byte !== 13) last = byte
        }
        if (longest > most) controller.error(new Error(`a message exceeded maximum size of ${most} bytes`))
        else controller.enqueue(chunk)
      }
    })
  )
  return new Response(counted, response)
}

const isTooLong = (error: unknown): boolean => error instanceof Error && error.message.includes("exceeded maximum size")

const schemaOf = ({ mode, requestedSchema }: Json.JsonObject): Json.JsonObject | undefined =>
  (mode === undefined || mode === "form") && Json.isObject(requestedSchema) ? requestedSchema : undefined

const elicitationOf = (params: unknown): Backend.Elicitation | undefined =>
  Json.isObject(params) && typeof params["message"] === "string"
    ? { message: params["message"], schema: schemaOf(params) }
    : undefined

/** Number of characters kept from a process's output: they explain why it did not start. */
const mostWords = longestText

type Client = InstanceType<typeof Sdk.Client>

/** An open client, its transport, and the failure ending the connection. */
interface Opened {
  readonly client: Client
  readonly transport: Sdk.Transport
  readonly close: Effect.Effect<void>
  readonly over: Deferred.Deferred<never, Backend.Failure>
}

const ignored = <A>(run: () => Promise<A>): Effect.Effect<void> => Effect.ignore(attempt(run))

const missing = "McpTools needs the package @modelcontextprotocol/client: npm install @modelcontextprotocol/client"

/** Server options needed to make its client. */
interface Settings {
  readonly maxMessageBytes: number
  readonly roots: ReadonlyArray<McpDeclared.Root> | undefined
  readonly isSampling: boolean
}

/** Returns the function that opens connections to a server. */
export const connect = (server: Stdio | Http, settings: Settings): Backend.Connect => (listener) =>
  Effect.uninterruptible(
    Effect.gen(function*() {
      const isStdio = "command" in server
      const hide = hiding(server)
      const hidden = <A, R>(effect: Effect.Effect<A, Backend.Failure, R>) =>
        Effect.mapError(
          effect,
          ({ code, message, reason }) => new Backend.Failure({ reason, code, message: hide(message) })
        )
      const { maxMessageBytes } = settings
      const load = <A>(run: () => Promise<A>) =>
        Effect.orDie(Effect.tryPromise({ try: run, catch: (cause) => new Error(missing, { cause }) }))
      const sdk = yield* load(() => import("@modelcontextprotocol/client"))
      const stdio = isStdio
        ? yield* load(() => Promise.all([import("@modelcontextprotocol/client/stdio"), import("./serverProcess.ts")]))
        : undefined
      let words = ""
      const heard = (chunk: unknown) => {
        words = (words + String(chunk)).slice(-mostWords)
      }
      const run = Effect.runForkWith(yield* Effect.context<never>())
      const open = (mode: "auto" | "legacy") =>
        opened(sdk, mode, listener, settings, () =>
          stdio !== undefined && "command" in server
            ? stdioOf(stdio, server, maxMessageBytes, heard, run)
            : httpOf(sdk, server as Http, maxMessageBytes, run))
      // Some old servers exit on any request before their handshake.
      const { client, close, over, transport } = yield* open("auto").pipe(
        Effect.catch((failure) => isStdio && failure.reason === "lost" ? open("legacy") : Effect.fail(failure)),
        Effect.mapError(({ code, message, reason }) =>
          new Backend.Failure({
            reason,
            code,
            message: words === ""
              ? hide(message)
              : `${hide(message)}; it wrote: ${shown(hide(words.trim(), words.length >= mostWords))}`
          })
        )
      )
      const unreadable = sifted(sdk, transport)
      const version = client.getNegotiatedProtocolVersion()
      const whileOpen = <A>(effect: Effect.Effect<A, Backend.Failure>) =>
        hidden(Effect.raceFirst(effect, Deferred.await(over)))
      return {
        facts: {
          [names.transport]: isStdio ? "pipe" : "tcp",
          ...(version === undefined ? {} : { [names.mcpVersion]: version })
        },
        close,
        list: Effect.suspend(() => {
          if (client.getServerCapabilities()?.tools === undefined) return Effect.succeed({ tools: [], leftOut: [] })
          unreadable.clear()
          const listed = attempt((signal) =>
            client.listTools(undefined, { signal, timeout: openingMillis, cacheMode: "refresh" })
          )
          return Effect.map(whileOpen(inTime(listed, "the list of its tools")), ({ tools }) => {
            if (tools.length > mostTools) unreadable.set(tooMany.name, tooMany.reason)
            return {
              tools: tools.slice(0, mostTools).map(listedOf),
              leftOut: Array.from(unreadable, ([name, reason]) => ({ name, reason }))
            }
          })
        }),
        call: ({ arguments: args, meta, responses, state, tool }, progress) => {
          // The client would refuse, and lose, a result violating this schema.
          const { outputSchema, ...withoutOutput } = tool.definition
          const params = {
            name: tool.name,
            arguments: { ...args },
            ...(Object.keys(meta).length === 0 ? {} : { _meta: { ...meta } }),
            ...(responses === undefined ? {} : { inputResponses: responses }),
            ...(state === undefined ? {} : { requestState: state })
          } as Parameters<Client["callTool"]>[0]
          const called = attempt((signal) =>
            client.callTool(params, {
              signal,
              onprogress: progress,
              timeout: never,
              allowInputRequired: true,
              toolDefinition: withoutOutput as unknown as Sdk.Tool
            })
          )
          return Effect.flatMap(whileOpen(called), (result) => fitted(responseOf(result, settings), outputSchema))
        }
      }
    })
  )

const opened = (
  sdk: typeof Sdk,
  mode: "auto" | "legacy",
  listener: Backend.Listener,
  { isSampling, maxMessageBytes, roots }: Settings,
  transportOf: () => Sdk.Transport & { readonly terminateSession?: () => Promise<void> }
): Effect.Effect<Opened, Backend.Failure> =>
  Effect.gen(function*() {
    const services = yield* Effect.context<never>()
    const client = new sdk.Client({ name: "heddle", version: "0.1.0" }, {
      capabilities: {
        elicitation: { form: {} },
        ...(roots === undefined ? {} : { roots: {} }),
        ...(isSampling ? { sampling: {} } : {})
      },
      versionNegotiation: { mode, probe: { timeoutMs: probeMillis } },
      listChanged: { tools: { autoRefresh: false, debounceMs: 0, onChanged: () => listener.changed() } },
      inputRequired: { autoFulfill: false }
    })
    client.setRequestHandler("elicitation/create", ({ params }, { mcpReq: { signal } }) => {
      const elicitation = elicitationOf(params)
      const elicited = elicitation === undefined
        ? Effect.succeed<Backend.Elicited>({ action: "decline" })
        : listener.elicit(elicitation)
      return Effect.runPromiseWith(services)(elicited, { signal }) as Promise<Sdk.ElicitResult>
    })
    if (roots !== undefined) client.setRequestHandler("roots/list", () => rootsOf(roots))
    if (isSampling) {
      client.setRequestHandler("sampling/createMessage", ({ params }, { mcpReq: { signal } }) => {
        const sampling = Results.samplingOf(params)
        const sampled = sampling === undefined ? Effect.succeed(undefined) : listener.sample(sampling)
        return Effect.runPromiseWith(services)(
          Effect.flatMap(sampled, (answer) => answer === undefined ? Effect.fail(rejected) : Effect.succeed(answer)),
          { signal }
        ).then((answer) => Results.sampledOf(answer) as unknown as Sdk.CreateMessageResult)
      })
    }
    const transport = transportOf()
    const over = Deferred.makeUnsafe<never, Backend.Failure>()
    let isConnected = false
    const end = (failure: Backend.Failure) => {
      if (Deferred.doneUnsafe(over, Exit.fail(failure)) && isConnected) listener.lost(failure)
    }
    Object.assign(client, {
      onclose: () => end(lost("the connection was closed")),
      onerror: (error: unknown) => {
        if (isTooLong(error)) end(lost(`a message was longer than maxMessageBytes (${maxMessageBytes})`))
      }
    })
    const { terminateSession } = transport
    const close = Effect.andThen(
      terminateSession === undefined ? Effect.void : ignored(() => terminateSession.call(transport)),
      // A client has its transport only after the server stated its protocol.
      Effect.andThen(ignored(() => client.close()), ignored(() => transport.close()))
    )
    const connected = attempt((signal) => client.connect(transport, { signal, timeout: openingMillis }))
    yield* Effect.onError(Effect.interruptible(inTime(connected, "its handshake")), () => close)
    isConnected = true
    return { client, transport, close, over }
  })

const stdioOf = (
  [stdio, ServerProcess]: readonly [typeof SdkStdio, typeof Process],
  { args, command, cwd, env }: Stdio,
  maxBufferSize: number,
  heard: (chunk: unknown) => void,
  run: (effect: Effect.Effect<unknown>) => Fiber.Fiber<unknown>
): Sdk.Transport => {
  const transport = ServerProcess.make(stdio, {
    command,
    args: [...args ?? []],
    ...(env === undefined ? {} : { env: { ...env } }),
    ...(cwd === undefined ? {} : { cwd }),
    stderr: "pipe",
    maxBufferSize
  }, run)
  transport.stderr?.on("data", heard)
  return transport
}

const httpOf = (
  { StreamableHTTPClientTransport }: typeof Sdk,
  { headers, url }: Http,
  maxMessageBytes: number,
  run: (effect: Effect.Effect<void>) => Fiber.Fiber<void>
) => {
  const waiting = new Set<Fiber.Fiber<void>>()
  const transport = new StreamableHTTPClientTransport(new URL(url), {
    requestInit: { headers: { ...headers } },
    reconnectionScheduler: (reconnect, delay) => {
      const millis = Math.min(Math.max(delay, leastReconnectMillis), mostReconnectMillis)
      const fiber = run(Effect.delay(Effect.sync(reconnect), millis))
      waiting.add(fiber)
      fiber.addObserver(() => waiting.delete(fiber))
    },
    fetch: (input, init) => fetch(input, init).then((response) => bounded(response, maxMessageBytes))
  })
  answered(transport)
  const close = transport.close.bind(transport)
  return Object.assign(transport, {
    close: () => {
      for (const fiber of waiting) fiber.interruptUnsafe()
      return close()
    }
  })
}

/** Answers every request whose response ends without an answer: otherwise the client would wait forever. */
const answered = (transport: Sdk.Transport): void => {
  const send = transport.send.bind(transport)
  Object.assign(transport, {
    send: (message: Parameters<typeof send>[0], options: Parameters<typeof send>[1]) => {
      if (!("id" in message) || !("method" in message)) return send(message, options)
      const end = () => {
        const ended = new Backend.Failure({
          reason: "unanswered",
          message: "the server's answer ended without a result"
        })
        transport.onmessage?.({
          jsonrpc: "2.0",
          id: message.id,
          error: { code: -32000, message: ended.message, data: ended }
        })
      }
      let isStream = false
      const sent = send(message, {
        ...options,
        // The transport reads this member only if the response is a stream.
        get onRequestStreamEnd() {
          isStream = true
          return end
        }
      })
      // An earlier answer takes precedence.
      return sent.then(() => isStream ? undefined : end())
    }
  })
}

/** Member of `_meta` carrying a call's original result through the client. */
const asSent = "heddle/result"

/** Returns a call's result in a form the client accepts. The client would refuse, and lose, a nonconforming result. */
const passing = (result: Json.JsonObject): Json.JsonObject => {
  const { resultType } = result
  const isOfCall = resultType !== "input_required" &&
    ("content" in result || "structuredContent" in result || "isError" in result)
  return isOfCall
    ? { ...(resultType === undefined ? {} : { resultType }), content: [], _meta: { [asSent]: result } }
    : result
}

/**
 * Removes tools the client would refuse from lists, since a single such tool would make it refuse the whole list.
 * Returns the removed tools.
 */
const sifted = (sdk: typeof Sdk, transport: Sdk.Transport): Map<string, string> => {
  const unreadable = new Map<string, string>()
  const { onmessage } = transport
  const sift = (message: any) => {
    const result = Json.isObject(message) ? message["result"] : undefined
    if (Json.isObject(result) && Array.isArray(result["tools"])) {
      const tools = result["tools"].filter((tool: unknown) => {
        const problem = unreadable.size < mostTools ? unreadableOf(sdk, tool) : tooMany
        if (problem !== undefined) unreadable.set(problem.name, problem.reason)
        return problem === undefined
      })
      message["result"] = { ...result, tools }
    } else if (Json.isObject(result)) message["result"] = passing(result)
    onmessage?.(message)
  }
  Object.assign(transport, { onmessage: sift })
  return unreadable
}

/** Most tools per server, and most removed tools reported. */
const mostTools = 1_024

const tooMany: Backend.LeftOut = { name: "…", reason: `more than ${mostTools} tools` }

/** Longest and deepest tool definition. Every request includes the definitions. */
const longestDefinition = 65_536
const deepestDefinition = 64

/** Returns `true` if a value is nested too deeply for recursive functions. */
const isTooDeep = (value: unknown): boolean => {
  let level: ReadonlyArray<unknown> = [value]
  for (let depth = 0; depth <= deepestDefinition; depth++) {
    level = level.flatMap((each) => typeof each === "object" && each !== null ? Object.values(each) : [])
    if (level.length === 0) return false
  }
  return true
}

const unreadableOf = (sdk: typeof Sdk, tool: unknown): Backend.LeftOut | undefined => {
  const name = Json.isObject(tool) && typeof tool["name"] === "string" ? tool["name"].slice(0, longestText) : "?"
  if (isTooDeep(tool) || JSON.stringify(tool).length > longestDefinition) {
    const reason =
      `its definition has more than ${longestDefinition} characters, or is nested deeper than ${deepestDefinition}`
    return { name, reason }
  }
  return sdk.isSpecType.Tool(tool) ? undefined : { name, reason: "its definition is not a valid tool" }
}

const listedOf = (tool: Sdk.Tool): Backend.Listed => ({
  name: tool.name,
  title: tool.title ?? tool.annotations?.title,
  description: tool.description,
  inputSchema: tool.inputSchema,
  annotations: tool.annotations,
  definition: tool
})

/** Protocol error for a declined request for a model answer. */
const rejected = Object.assign(new Error("The request was declined"), { code: -1 })

const rootsOf = (roots: ReadonlyArray<McpDeclared.Root>) => ({
  roots: roots.map(({ name, uri }) => ({ uri, ...(name === undefined ? {} : { name }) }))
})

/** Returns the information a server wants, if the client can supply it. */
const wantedOf = (request: unknown, { isSampling, roots }: Settings): Backend.Wanted | undefined => {
  const { method, params } = Json.isObject(request) ? request : {} as Json.JsonObject
  switch (method) {
    case "elicitation/create": {
      const elicitation = elicitationOf(params)
      return elicitation && { _tag: "Elicitation", ...elicitation }
    }
    case "sampling/createMessage": {
      const sampling = isSampling ? Results.samplingOf(params) : undefined
      return sampling && { _tag: "Sampling", ...sampling }
    }
    case "roots/list":
      return roots && { _tag: "Known", response: rootsOf(roots) }
    default:
      return undefined
  }
}

/** Notes a result violating its schema. An unreadable schema is ignored. */
const fitted = (response: Backend.Response, schema: unknown): Effect.Effect<Backend.Response> =>
  Effect.suspend(() => {
    if (response._tag !== "Result" || response.isError || !Json.isObject(schema)) return Effect.succeed(response)
    if (response.structured === undefined) {
      return Effect.succeed({ ...response, misfit: "there is no structured content" })
    }
    const judged = Effect.map(
      Effect.tryPromise(() => import("@modelcontextprotocol/client/validators/ajv")),
      ({ AjvJsonSchemaValidator }) => new AjvJsonSchemaValidator().getValidator(schema)(response.structured)
    )
    return Effect.match(Effect.catchDefect(judged, Effect.fail), {
      onSuccess: ({ errorMessage, valid }) => valid ? response : { ...response, misfit: shown(errorMessage) },
      onFailure: () => response
    })
  })

/** Returns a content block. Plain text from a server becomes a text block. */
const blockOf = (block: unknown): ReadonlyArray<Json.JsonObject> => {
  if (Json.isObject(block)) return [block]
  return typeof block === "string" ? [{ type: "text", text: block }] : []
}

const responseOf = (answer: unknown, settings: Settings): Backend.Response => {
  const result = Json.isObject(answer) ? answer : Json.none
  const sent = Json.isObject(result["_meta"]) ? result["_meta"][asSent] : undefined
  const { content, inputRequests, isError, requestState, resultType, structuredContent } = Json.isObject(sent)
    ? sent
    : result
  if (resultType === "input_required") {
    const requests = Json.isObject(inputRequests) ? inputRequests : {}
    return {
      _tag: "Input",
      state: typeof requestState === "string" ? requestState : undefined,
      requests: Object.fromEntries(
        Object.entries(requests).map(([key, request]) => [key, wantedOf(request, settings)])
      )
    }
  }
  return {
    _tag: "Result",
    content: (Array.isArray(content) ? content : [content]).flatMap(blockOf),
    structured: structuredContent,
    isError: isError === true
  }
}
