/**
 * Makes an adapter from a wire protocol. A protocol defines a request's address and body and reads its answer. The
 * connection, retries, environment settings and the layer are implemented here once for all protocols.
 */
import * as Clock from "effect/Clock"
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import * as HttpClient from "effect/http/HttpClient"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Result from "effect/Result"
import * as Stream from "effect/Stream"
import * as Adapter from "../../Adapter.ts"
import { objectOf } from "../../internal/declare/jsonSchema.ts"
import { checkNames, type NamesOf } from "../../internal/declare/schema.ts"
import * as Values from "../../internal/declare/values.ts"
import type * as Json from "../../internal/json.ts"
import type * as Answer from "./answerBody.ts"
import type * as Errors from "./errors.ts"
import * as Http from "./http.ts"
import * as Wire from "./wire.ts"

/** Thinking allowance before the answer: as the provider's own level, or in tokens. */
export interface Reasoning {
  /** Provider's own level, such as `"low"` or `"high"`. Defaults to the model's own level. */
  readonly effort?: string
  /** Allowance in tokens. Defaults to the provider's choice. */
  readonly maxTokens?: number
}

/** Options common to all protocols. */
export interface Options extends Http.Options {
  /** Model name, for requests naming no model. */
  readonly model: string
  /**
   * Key, wrapped as `Redacted.make(key)` so that no log of the options shows the key. A plain string throws a
   * `TypeError` when the layer is made. Leave it out for a server without keys. Errors and traces omit the key.
   */
  readonly apiKey?: Redacted.Redacted<string>
  /** Thinking allowance before the answer. Defaults to the model's own setting. */
  readonly reasoning?: Reasoning
  /** Maximum tokens in request and reply together, for `Adapter.fallback`. Never sent. Unknown by default. */
  readonly contextWindow?: number
  /** `true` if the model may call several tools in one turn. Defaults to the provider's choice. */
  readonly parallelToolCalls?: boolean
  /**
   * `true` to make the provider enforce tool schemas, rewritten to the form it accepts; a schema without such a form
   * goes out unchanged. `false` by default.
   */
  readonly strict?: boolean
  /** Provider-specific fields, sent unchanged with every request; a request's own `options` win. None by default. */
  readonly options?: Readonly<Record<string, unknown>>
}

export const knownReasoning = { effort: Values.name, maxTokens: Values.whole } satisfies NamesOf<Reasoning>

/** Options for a provider's prompt cache. */
export const cache: Values.Kind = Values.options({ key: Values.name, retention: Values.name })

export const knownOptions = {
  ...Http.knownOptions,
  model: Values.described(Values.name, "the name of a model"),
  apiKey: Values.secret,
  reasoning: Values.options(knownReasoning),
  contextWindow: Values.count,
  parallelToolCalls: Values.flag,
  strict: Values.flag,
  options: Values.record
} satisfies NamesOf<Options>

/** Environment variable names for an adapter's settings; the first key set counts. */
interface Environment {
  readonly model: string
  readonly apiKey: readonly [string, ...ReadonlyArray<string>]
  readonly baseUrl: string
}

/** The server receiving a request, identified as a maker, and the current time. */
export interface Sending {
  readonly server: string
  readonly now: number
}

export interface Protocol<O extends Options> {
  /** Module name, for errors about misuse. */
  readonly name: string
  readonly knownOptions: NamesOf<O>
  /** Provider name in errors, unless the options or the server name another. */
  readonly provider: string
  /** Returns the vendor running the server, where the protocol knows several. */
  readonly vendorOf?: (options: O) => string | undefined
  /** Values to send back to the server they came from. */
  readonly kept: Wire.Kept
  /** Tool names the protocol accepts, if it refuses some valid names. */
  readonly names?: RegExp
  /** Returns advice on a server error avoidable by a layer option. */
  readonly advice?: (options: O, error: Adapter.AdapterError) => string | undefined
  readonly baseUrl: string
  /** Provider and operation names in spans, where they are unusual. */
  readonly spans?: (options: O) => Pick<Adapter.Service, "provider" | "operation">
  /** Returns the supported ways to request a typed answer. */
  readonly output: (options: O) => Adapter.Service["output"] & {}
  readonly environment: Environment
  /** Returns a request's path under the base URL. */
  readonly path: (options: O, request: Adapter.Request) => string
  /** Headers for every request, with secrets redacted. */
  readonly headers: (options: O) => Http.HeaderValues
  /** Request body, sent `now` (milliseconds since 1970). */
  readonly body: (options: O, request: Adapter.Request, to: Sending) => Json.JsonObject
  /** Returns the reason the protocol cannot express a request, if any. */
  readonly unsupported: (request: Adapter.Request, options: O) => string | undefined
  /** Error reasons for the protocol's own codes. */
  readonly errors: Errors.Words
  /** Reads one answer. `makeId` makes ids for calls without an id. */
  readonly reader: (
    origin: Errors.Origin,
    makeId: () => string,
    request: Adapter.Request,
    options: O
  ) => Answer.Reader
}

const make = <O extends Options>(
  protocol: Protocol<O>,
  options: O
): Effect.Effect<Adapter.Adapter["Service"], never, HttpClient.HttpClient> => {
  const name = `${protocol.name}.layer`
  checkNames(name, options, protocol.knownOptions)
  const settings = Http.settings(name, options)
  const { apiKey, baseUrl = protocol.baseUrl } = options
  const vendor = protocol.vendorOf?.(options)
  const provider = options.provider ?? vendor ?? protocol.provider
  const server = vendor ?? Wire.serverOf(baseUrl)
  return Effect.map(HttpClient.HttpClient, (client) => ({
    provider,
    ...protocol.spans?.(options),
    ...(options.provider === undefined ? {} : { provider }),
    model: options.model,
    output: protocol.output(options),
    ...(options.contextWindow === undefined ? {} : { contextWindow: options.contextWindow }),
    ...Http.serverOf(baseUrl),
    stream: (asked) =>
      Stream.unwrap(Effect.map(Clock.currentTimeMillis, (now) => {
        const wanted = offered(asked)
        const names = protocol.names && new Wire.SentNames(protocol.names, wanted)
        const request = names?.request(wanted) ?? wanted
        const detail = protocol.unsupported(request, options)
        if (detail !== undefined) {
          return Stream.fail(new Adapter.AdapterError({ reason: "unsupported_feature", detail, provider }))
        }
        return Http.stream({
          client,
          settings,
          provider,
          model: request.model ?? options.model,
          url: Http.endpoint(baseUrl, protocol.path(options, request)),
          headers: { ...protocol.headers(options), ...options.headers },
          secrets: apiKey === undefined ? [] : [apiKey],
          errorWords: protocol.errors,
          attempt: asked.attempt,
          body: () => protocol.body(options, request, { server, now }),
          makeReader: (origin) =>
            Effect.map(Wire.idMaker, (makeId) => protocol.reader(origin, makeId, request, options))
        }).pipe(
          Stream.map((event) => Wire.made(names?.event(event) ?? event, protocol.kept, server)),
          Stream.mapError((error) => advised(error, protocol.advice?.(options, error)))
        )
      }))
  }))
}

/**
 * Checks a request's tools, which a program may send outside any run: each schema must be a single object, or its tool
 * is left out.
 */
const offered = (request: Adapter.Request): Adapter.Request => {
  const tools = request.tools.flatMap((tool) => {
    const found = Result.getOrUndefined(objectOf(tool.parameters))
    return found === undefined ? [] : [found === tool.parameters ? tool : { ...tool, parameters: found }]
  })
  const isSame = tools.length === request.tools.length && tools.every((tool, index) => tool === request.tools[index])
  return isSame ? request : { ...request, tools }
}

const advised = (error: Adapter.AdapterError, advice: string | undefined): Adapter.AdapterError =>
  advice === undefined ? error : new Adapter.AdapterError({ ...error, detail: `${error.detail ?? ""}; ${advice}` })

export const layer = <O extends Options>(
  protocol: Protocol<O>,
  options: O
): Layer.Layer<Adapter.Adapter, never, HttpClient.HttpClient> => Layer.effect(Adapter.Adapter, make(protocol, options))

// ---------------------------------------------------------------------------------------------------------------------
// the environment

export const layerConfig = <O extends Options>(
  protocol: Protocol<O>,
  defaults: Partial<O>
): Layer.Layer<Adapter.Adapter, Config.ConfigError, HttpClient.HttpClient> =>
  Layer.unwrap(Effect.map(environment(protocol, defaults), (options) => layer(protocol, options)))

/** Reads an environment setting; an empty value counts as unset. */
const setting = (name: string): Config.Config<Option.Option<string>> =>
  Config.option(Config.String(name)).pipe(
    Config.map((value) => Option.filter(Option.map(value, (text) => text.trim()), (text) => text !== ""))
  )

/** Requires a setting, failing with its name if nothing replaces it. */
const required = (name: string, value: string | undefined): Config.Config<string> =>
  value === undefined || value === "" ? Config.NonEmptyString(name) : Config.succeed(value)

/** Reads the environment. The provider's own servers require a key, unless headers replace the key. */
const environment = <O extends Options>(protocol: Protocol<O>, defaults: Partial<O>): Config.Config<O> => {
  const names = protocol.environment
  return Config.all({
    model: setting(names.model),
    baseUrl: setting(names.baseUrl),
    key: Config.map(Config.all(names.apiKey.map(setting)), Option.firstSomeOf)
  }).pipe(Config.flatMap((found) => {
    const baseUrl = Option.getOrUndefined(found.baseUrl) ?? defaults.baseUrl ?? protocol.baseUrl
    const apiKey = Option.getOrUndefined(Option.map(found.key, (key) => Redacted.make(key))) ?? defaults.apiKey
    const hasAccess = baseUrl !== protocol.baseUrl || apiKey !== undefined || defaults.headers !== undefined
    return Config.all({
      model: required(names.model, Option.getOrUndefined(found.model) ?? defaults.model),
      access: required(names.apiKey[0], hasAccess ? "given" : undefined)
    }).pipe(
      Config.map(({ model }) => ({ ...defaults, model, baseUrl, ...(apiKey === undefined ? {} : { apiKey }) }) as O)
    )
  }))
}
