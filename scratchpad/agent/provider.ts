/**
 * Whose models can answer, in the order in which they are asked for when the environment has settings of several: under
 * which names it holds them, and what is used where it says nothing.
 */

export interface Provider {
  /** The variables that hold the key; the first that is set counts. */
  readonly keys: readonly [string, ...ReadonlyArray<string>]
  /** The variable that names another server, which speaks the same protocol. */
  readonly baseUrl: string
  /** The variable that names the model. */
  readonly model: string
  readonly ownBaseUrl: string
  readonly defaultModel: string
}

export const providers = {
  openai: {
    keys: ["OPENAI_API_KEY"],
    baseUrl: "OPENAI_BASE_URL",
    model: "OPENAI_MODEL",
    ownBaseUrl: "https://api.openai.com/v1",
    // It takes tools in both of OpenAI's protocols. Later ones do so over Chat Completions only if they may not reason.
    defaultModel: "gpt-5.4-mini"
  },
  anthropic: {
    keys: ["ANTHROPIC_API_KEY"],
    baseUrl: "ANTHROPIC_BASE_URL",
    model: "ANTHROPIC_MODEL",
    ownBaseUrl: "https://api.anthropic.com",
    defaultModel: "claude-sonnet-5-5"
  },
  gemini: {
    keys: ["GEMINI_API_KEY", "GOOGLE_API_KEY"],
    baseUrl: "GEMINI_BASE_URL",
    model: "GEMINI_MODEL",
    ownBaseUrl: "https://generativelanguage.googleapis.com/v1beta",
    defaultModel: "gemini-3.8-flash"
  }
} as const satisfies Readonly<Record<string, Provider>>

export type Name = keyof typeof providers

export const names = Object.keys(providers) as ReadonlyArray<Name>

export const isName = (text: string): text is Name => Object.hasOwn(providers, text)

/** The variables of a provider that pick it, as one lists them in a sentence. */
export const needs = (name: Name): string => {
  const { baseUrl, keys } = providers[name]
  return `${keys.join(", ")} or ${baseUrl}`
}

/** Whether an address is the provider's own, in whatever region. */
export const isOwn = (name: Name, baseUrl: string): boolean => {
  const own = new URL(providers[name].ownBaseUrl).hostname
  const { hostname } = new URL(baseUrl)
  return hostname === own || hostname.endsWith(`.${own}`)
}
