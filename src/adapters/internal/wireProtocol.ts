/**
 * Makes an adapter out of a wire protocol. A protocol defines where a request goes, what it holds and how its answer is
 * read; the connection, the retries, the settings of the environment and the layer stand here once for all of them.
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

/** The amount that a model may think before it answers: as the provider's own level, or in tokens. */
export interface Reasoning {
  /** The provider's own level, such as `"low"` or `"high"`. The model's default when it is left out. */
  readonly effort?: string
  /** The amount in tokens. Not limited when it is left out. */
  readonly maxTokens?: number
}

/** The options that all protocols share. */
export interface Options extends Http.Options {
  /** The name of the model, for requests that name none. */
  readonly model: string
  /**
   * The key, in `Redacted`, so that no log of the options shows it: `Redacted.make(key)`. A plain string throws a
   * `TypeError` when the layer is made. Leave it out for a server that wants none. It is kept out of errors and traces.
   */
  readonly apiKey?: Redacted.Redacted<string>
  /** The amount that the model may think before it answers. The model's default when it is left out. */
  readonly reasoning?: Reasoning
  /**
   * The tokens that a request and its reply may have together, for `Adapter.fallback`. It is not sent. Not known by
   * default.
   */
  readonly contextWindow?: number
  /** `true` if the model may call several tools in one turn. The provider's choice by default. */
  readonly parallelToolCalls?: boolean
  /**
   * `true` if the provider holds the model to the schemas of tools, which are rewritten to what it accepts; one that
   * cannot be is sent as it is. `false` by default.
   */
  readonly strict?: boolean
  /**
   * Fields of the provider's own, which are sent with every request as they are; a request's own `options` win. None by
   * default.
   */
  readonly options?: Readonly<Record<string, unknown>>
}

export const knownReasoning = { effort: Values.name, maxTokens: Values.whole } satisfies NamesOf<Reasoning>

/** Options of a provider's cache of prompts. */
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

/** The names under which the environment holds an adapter's settings; the first key that is set counts. */
interface Environment {
  readonly model: string
  readonly apiKey: readonly [string, ...ReadonlyArray<string>]
  readonly baseUrl: string
}

/** The server that a request goes to, as the maker of what it made before, and the time. */
export interface Sending {
  readonly server: string
  readonly now: number
}

export interface Protocol<O extends Options> {
  /** The module's name, for the errors of callers. */
  readonly name: string
  readonly knownOptions: NamesOf<O>
  /** The name of the provider in errors, unless the options have one or the server has its own. */
  readonly provider: string
  /** Returns the name of the vendor whose server it is, where the protocol knows several. */
  readonly vendorOf?: (options: O) => string | undefined
  /** The things that go back to the server that made them. */
  readonly kept: Wire.Kept
  /** The names that tools may have, if the protocol refuses some that a tool may have. */
  readonly names?: RegExp
  /** Returns advice on an error of the server that an option of the layer would avoid. */
  readonly advice?: (options: O, error: Adapter.AdapterError) => string | undefined
  readonly baseUrl: string
  /** The names of the provider and of the operation in spans, where they are not the usual ones. */
  readonly spans?: (options: O) => Pick<Adapter.Service, "provider" | "operation">
  /** Returns the ways in which a typed answer can be asked for. */
  readonly output: (options: O) => Adapter.Service["output"] & {}
  readonly environment: Environment
  /** Returns the path of a request, under the base URL. */
  readonly path: (options: O, request: Adapter.Request) => string
  /** The headers of every request, the secret ones redacted. */
  readonly headers: (options: O) => Http.HeaderValues
  /** The body of a request that is sent to a server `now`, in milliseconds since 1970. */
  readonly body: (options: O, request: Adapter.Request, to: Sending) => Json.JsonObject
  /** Returns the reason why the protocol cannot express a request, if it cannot. */
  readonly unsupported: (request: Adapter.Request, options: O) => string | undefined
  /** The reasons of the protocol's own error codes. */
  readonly errors: Errors.Words
  /** Reads one answer. `makeId` makes ids for calls that come without one. */
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

/** A request of a program's own, whose tools are not those of a run: each is one object, or is left out. */
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

/** A setting of the environment; an empty one is none. */
const setting = (name: string): Config.Config<Option.Option<string>> =>
  Config.option(Config.String(name)).pipe(
    Config.map((value) => Option.filter(Option.map(value, (text) => text.trim()), (text) => text !== ""))
  )

/** Fails with the name of the setting if there is nothing to stand in for it. */
const required = (name: string, value: string | undefined): Config.Config<string> =>
  value === undefined || value === "" ? Config.NonEmptyString(name) : Config.succeed(value)

/** The provider's own servers want a key, unless headers stand in for it. */
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
