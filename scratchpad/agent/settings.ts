/**
 * What a run takes from outside: the command line and the environment. Decides which model answers; a setting that
 * cannot be used is a typed failure that names it, says what would be right, and quotes nothing of what may be a secret.
 */
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Record from "effect/Record"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import { Budget } from "heddle"
import { posix, win32 } from "node:path"
import * as Provider from "./provider.ts"

/** A setting that cannot be used. */
export class BadSetting extends Schema.TaggedError<BadSetting>("heddle-agent/Settings/BadSetting")("BadSetting", {
  setting: Schema.String,
  problem: Schema.String
}) {
  override get message(): string {
    return `${this.setting}: ${this.problem}`
  }
}

/** A key, and the variable that held it. */
export interface Key {
  readonly variable: string
  readonly secret: Redacted.Redacted<string>
}

/** A model behind a server. */
export interface Server {
  readonly _tag: "Server"
  readonly provider: Provider.Name
  readonly name: string
  readonly baseUrl: string
  readonly key: Option.Option<Key>
}

/** Who answers. */
export type Model = { readonly _tag: "Embedded" } | Server

/** What the environment says of one provider. */
export interface Given {
  readonly key: Option.Option<Key>
  readonly baseUrl: Option.Option<string>
  readonly model: Option.Option<string>
}

export type Environment = Readonly<Record<Provider.Name, Given>>

/** What the command line says of the model. */
export interface Flags {
  readonly provider: Option.Option<string>
  readonly model: Option.Option<string>
}

/** How many tokens an answer may take where nothing is said. */
export const budgetTokens = 400_000

/** The budget of an answer. The last of its requests is one without tools, which has to say what was found. */
export const budgetOf = (tokens: number): Budget.Budget => Budget.make({ calls: 24, tokens })

/** The name under which the embedded model can be asked for, as a provider and as a model. */
export const embedded = "embedded"

/** All that `--provider` can be. */
export const choices: ReadonlyArray<string> = [...Provider.names, embedded]

/** The address of a server as it may be shown: without a query string, where some want their key. */
export const address = ({ baseUrl }: Server): string => {
  const { origin, pathname } = new URL(baseUrl)
  return `${origin}${pathname}`.replace(/\/+$/, "")
}

// ---------------------------------------------------------------------------------------------------------------------
// the environment

/** What is set to nothing counts as not set. */
const filled = (value: Option.Option<string>): Option.Option<string> =>
  Option.filter(Option.map(value, (text) => text.trim()), (text) => text !== "")

const setting = (variable: string) => Config.map(Config.option(Config.String(variable)), filled)

const secret = (variable: string) =>
  Config.map(
    setting(variable),
    Option.map((text): Key => ({ variable, secret: Redacted.make(text, { label: variable }) }))
  )

const given = ({ baseUrl, keys, model }: Provider.Provider): Config.Config<Given> =>
  Config.all({
    key: Config.map(Config.all(keys.map(secret)), Option.firstSomeOf),
    baseUrl: setting(baseUrl),
    model: setting(model)
  })

/** Reads the environment. */
export const environment: Config.Config<Environment> = Config.all(Record.map(Provider.providers, given))

// ---------------------------------------------------------------------------------------------------------------------
// the choice

const bad = (setting: string, problem: string): Effect.Effect<never, BadSetting> =>
  Effect.fail(new BadSetting({ setting, problem }))

/**
 * The model to use. A key picks its provider, and so does an address, since servers at home want no key; of several the
 * first in the order of `Provider.names` answers, unless `--provider` names one. Without any of them it is the embedded
 * model. `--model` names a model of the provider, or `embedded`.
 */
export const chooseModel = (environment: Environment, flags: Flags): Effect.Effect<Model, BadSetting> => {
  const wanted = { provider: filled(flags.provider), model: filled(flags.model) }
  return Effect.flatMap(
    chooseProvider(environment, wanted),
    (name): Effect.Effect<Model, BadSetting> =>
      name === embedded ? Effect.succeed({ _tag: "Embedded" }) : server(name, environment[name], wanted.model)
  )
}

const isSet = ({ baseUrl, key }: Given): boolean => Option.isSome(key) || Option.isSome(baseUrl)

const chooseProvider = (
  environment: Environment,
  flags: Flags
): Effect.Effect<Provider.Name | typeof embedded, BadSetting> => {
  const provider = Option.getOrUndefined(flags.provider)
  const model = Option.getOrUndefined(flags.model)
  if (provider === undefined) {
    const first = model === embedded ? embedded : Provider.names.find((name) => isSet(environment[name]))
    if (first !== undefined) return Effect.succeed(first)
    return model === undefined
      ? Effect.succeed(embedded)
      : bad(`--model ${model}`, `it needs a server: set ${Provider.names.map(Provider.needs).join(", or ")}`)
  }
  if (provider === embedded) {
    return model === undefined || model === embedded
      ? Effect.succeed(embedded)
      : bad(`--model ${model}`, `--provider ${embedded} is one model only; leave one of the two out`)
  }
  if (!Provider.isName(provider)) return bad(`--provider ${provider}`, `it is none of ${choices.join(", ")}`)
  if (model === embedded) {
    return bad(`--model ${embedded}`, `it is no model of --provider ${provider}; leave one of the two out`)
  }
  return isSet(environment[provider])
    ? Effect.succeed(provider)
    : bad(`--provider ${provider}`, `it needs ${Provider.needs(provider)}`)
}

const server = (
  provider: Provider.Name,
  { baseUrl, key, model }: Given,
  flag: Option.Option<string>
): Effect.Effect<Server, BadSetting> => {
  const row = Provider.providers[provider]
  const url = Option.getOrElse(baseUrl, () => row.ownBaseUrl)
  const urlProblem = problemOfUrl(url)
  if (urlProblem !== undefined) return bad(row.baseUrl, urlProblem)
  if (Option.isSome(key) && !/^[\x21-\x7e]+$/.test(Redacted.value(key.value.secret))) {
    return bad(key.value.variable, "it holds characters that are in no key, such as a space or a line break")
  }
  const name = Option.getOrElse(Option.orElse(flag, () => model), () => row.defaultModel)
  return Effect.succeed({ _tag: "Server", provider, name, baseUrl: url, key })
}

/** What is wrong with an address; it is not quoted, because what was pasted there by mistake may be a key. */
const problemOfUrl = (text: string): string | undefined => {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (url === undefined || !/^https?:$/.test(url.protocol)) {
    return "it is no address that starts with http:// or https://"
  }
  return url.username === "" && url.password === "" ? undefined : "it must not hold a user or a password"
}

// ---------------------------------------------------------------------------------------------------------------------
// sessions

/** Where a conversation is kept, and under which name. */
export interface Place {
  readonly name: string
  readonly folder: string
}

/** What the command line says of the session. */
export interface SessionFlags {
  readonly session: Option.Option<string>
  readonly sessions: Option.Option<string>
}

/** What says where a system keeps a user's data. A folder that is not an absolute path counts as not set. */
export interface Machine {
  readonly platform: string
  readonly home: string
  readonly xdgDataHome: Option.Option<string>
  readonly localAppData: Option.Option<string>
}

/** The machine as the environment describes it. */
export const machine = (platform: string, home: string): Config.Config<Machine> =>
  Config.map(
    Config.all({ xdgDataHome: setting("XDG_DATA_HOME"), localAppData: setting("LOCALAPPDATA") }),
    (found) => ({ platform, home, ...found })
  )

/** The folder for sessions where the command line names none: the one the system has for a user's data. */
export const ownFolder = ({ home, localAppData, platform, xdgDataHome }: Machine): string => {
  const ours = ["heddle-agent", "sessions"]
  if (platform === "win32") {
    const data = Option.filter(localAppData, win32.isAbsolute)
    return win32.join(Option.getOrElse(data, () => win32.join(home, "AppData", "Local")), ...ours)
  }
  if (platform === "darwin") return posix.join(home, "Library", "Application Support", ...ours)
  const data = Option.filter(xdgDataHome, posix.isAbsolute)
  return posix.join(Option.getOrElse(data, () => posix.join(home, ".local", "share")), ...ours)
}

/** A name that is one in every place: no separators, nothing hidden, nothing that a command line takes for a flag. */
const sessionName = /^[\p{L}\p{N}][\p{L}\p{N}._-]{0,63}$/u

/** Where the conversation is kept; `undefined` if it is not. */
export const choosePlace = (machine: Machine, flags: SessionFlags): Effect.Effect<Place | undefined, BadSetting> => {
  const folder = filled(flags.sessions)
  if (Option.isNone(flags.session)) {
    return Option.isNone(folder)
      ? Effect.undefined
      : bad(`--sessions ${folder.value}`, "it is where named sessions are kept; name one with --session")
  }
  const name = flags.session.value
  return sessionName.test(name)
    ? Effect.succeed({ name, folder: Option.getOrElse(folder, () => ownFolder(machine)) })
    : bad(
      "--session",
      "a name has up to 64 letters, digits, dots, dashes and underscores, and begins with one of the first two"
    )
}
