/**
 * What a run is told from outside: the command line and the environment. Decides which model answers; a setting that
 * cannot be used is a typed failure that names it.
 */
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"

/** A setting that cannot be used. */
export class BadSetting extends Schema.TaggedError<BadSetting>("heddle-agent/Settings/BadSetting")("BadSetting", {
  setting: Schema.String,
  problem: Schema.String
}) {
  override get message(): string {
    return `${this.setting}: ${this.problem}`
  }
}

/** Who answers. */
export type Model =
  | { readonly _tag: "Embedded" }
  | {
    readonly _tag: "Server"
    readonly name: string
    readonly baseUrl: string
    readonly key: Option.Option<Redacted.Redacted<string>>
  }

/** What the environment says of the model. */
export interface Environment {
  readonly key: Option.Option<Redacted.Redacted<string>>
  readonly baseUrl: Option.Option<string>
  readonly model: Option.Option<string>
}

const defaultBaseUrl = "https://api.openai.com/v1"
const defaultModel = "gpt-4.1-mini"

/** The name under which the embedded model can be asked for. */
export const embedded = "embedded"

const filled = (value: Option.Option<string>): Option.Option<string> =>
  Option.filter(Option.map(value, (text) => text.trim()), (text) => text !== "")

/** Reads the environment; what is set to nothing counts as not set. */
export const environment: Effect.Effect<Environment, Config.ConfigError> = Config.all({
  key: Config.option(Config.String("OPENAI_API_KEY")),
  baseUrl: Config.option(Config.String("OPENAI_BASE_URL")),
  model: Config.option(Config.String("OPENAI_MODEL"))
}).pipe(Effect.flatMap(({ baseUrl, key, model }) =>
  Option.isNone(filled(key))
    ? Effect.succeed({ key: Option.none(), baseUrl: filled(baseUrl), model: filled(model) })
    : Effect.map(Config.Redacted("OPENAI_API_KEY"), (secret) => ({
      key: Option.some(secret),
      baseUrl: filled(baseUrl),
      model: filled(model)
    }))
))

const isUsable = (url: string): boolean => URL.canParse(url) && /^https?:$/.test(new URL(url).protocol)

/**
 * The model to use. A key picks a server, and so does an address, since servers at home want no key; without either it
 * is the embedded model. `--model` names the model of the server, or `embedded`.
 */
export const chooseModel = (
  environment: Environment,
  flag: Option.Option<string>
): Effect.Effect<Model, BadSetting> => {
  if (Option.contains(flag, embedded)) return Effect.succeed({ _tag: "Embedded" })
  const { baseUrl, key } = environment
  if (Option.isNone(key) && Option.isNone(baseUrl)) {
    return Option.isNone(flag)
      ? Effect.succeed({ _tag: "Embedded" })
      : Effect.fail(
        new BadSetting({ setting: `--model ${flag.value}`, problem: "it needs OPENAI_API_KEY or OPENAI_BASE_URL" })
      )
  }
  const url = Option.getOrElse(baseUrl, () => defaultBaseUrl)
  if (!isUsable(url)) {
    return Effect.fail(new BadSetting({ setting: "OPENAI_BASE_URL", problem: `${url} is no http address` }))
  }
  const name = Option.getOrElse(Option.orElse(flag, () => environment.model), () => defaultModel)
  return Effect.succeed({ _tag: "Server", name, baseUrl: url, key })
}
