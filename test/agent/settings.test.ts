import { assert, describe, it } from "@effect/vitest"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import { Adapter, type Event, Message, Thread } from "heddle"
import * as Failure from "../../scratchpad/agent/failure.ts"
import * as Provider from "../../scratchpad/agent/provider.ts"
import * as Settings from "../../scratchpad/agent/settings.ts"
import { assertUnseen, watch } from "../support/secrets.ts"

type Environment = Readonly<Record<string, string>>
type Flags = { readonly provider?: string; readonly model?: string }

const choose = (environment: Environment, { model, provider }: Flags = {}) =>
  Effect.flatMap(Settings.environment, (found) =>
    Settings.chooseModel(found, {
      provider: Option.fromUndefinedOr(provider),
      model: Option.fromUndefinedOr(model)
    })).pipe(Effect.provide(ConfigProvider.layer(ConfigProvider.fromUnknown(environment))))

const embedded: Settings.Model = { _tag: "Embedded" }
const server: Settings.Server = {
  _tag: "Server",
  provider: "openai",
  name: "m",
  baseUrl: "http://host/v1/?key=hidden",
  key: Option.some({ variable: "OPENAI_API_KEY", secret: Redacted.make("k") })
}

/** A choice in one line: provider, model, address, and the key with the variable that held it. */
const told = (model: Settings.Model): string => {
  if (model._tag === "Embedded") return "embedded"
  const key = Option.match(model.key, {
    onNone: () => "no key",
    onSome: ({ secret, variable }) => `${variable} ${Redacted.value(secret)}`
  })
  return `${model.provider} ${model.name} ${model.baseUrl} ${key}`
}

const openai = "https://api.openai.com/v1"
const anthropic = "https://api.anthropic.com"
const gemini = "https://generativelanguage.googleapis.com/v1beta"
const home = "http://localhost:11434/v1"

const all: Environment = {
  OPENAI_API_KEY: "o",
  ANTHROPIC_API_KEY: "a",
  GEMINI_API_KEY: "g",
  GOOGLE_API_KEY: "G",
  ANTHROPIC_MODEL: "own-claude"
}
const { OPENAI_API_KEY: _, ...withoutOpenAi } = all

/** Environments and flags, and what they choose. */
const chosen: ReadonlyArray<readonly [environment: Environment, flags: Flags, choice: string]> = [
  [{}, {}, "embedded"],
  [{ OPENAI_API_KEY: " ", OPENAI_BASE_URL: "", GEMINI_API_KEY: "" }, {}, "embedded"],
  [{ OPENAI_MODEL: "m", ANTHROPIC_MODEL: "m", GEMINI_MODEL: "m" }, {}, "embedded"],
  [{}, { provider: " ", model: "" }, "embedded"],
  [{}, { provider: "embedded" }, "embedded"],
  [all, { provider: "embedded" }, "embedded"],
  [all, { model: "embedded" }, "embedded"],
  [all, { provider: "embedded", model: "embedded" }, "embedded"],
  // A key, or an address.
  [{ OPENAI_API_KEY: "o" }, {}, `openai gpt-5.4-mini ${openai} OPENAI_API_KEY o`],
  [{ OPENAI_BASE_URL: home, OPENAI_MODEL: "qwen" }, {}, `openai qwen ${home} no key`],
  [{ OPENAI_BASE_URL: home, OPENAI_API_KEY: " o\n" }, {}, `openai gpt-5.4-mini ${home} OPENAI_API_KEY o`],
  [{ ANTHROPIC_API_KEY: "a" }, {}, `anthropic claude-sonnet-5-5 ${anthropic} ANTHROPIC_API_KEY a`],
  [{ ANTHROPIC_BASE_URL: "http://proxy" }, {}, "anthropic claude-sonnet-5-5 http://proxy no key"],
  [{ GEMINI_API_KEY: "g" }, {}, `gemini gemini-3.8-flash ${gemini} GEMINI_API_KEY g`],
  [{ GOOGLE_API_KEY: "G" }, {}, `gemini gemini-3.8-flash ${gemini} GOOGLE_API_KEY G`],
  [{ GEMINI_API_KEY: "", GOOGLE_API_KEY: "G" }, {}, `gemini gemini-3.8-flash ${gemini} GOOGLE_API_KEY G`],
  [{ GEMINI_API_KEY: "g", GOOGLE_API_KEY: "G" }, {}, `gemini gemini-3.8-flash ${gemini} GEMINI_API_KEY g`],
  [{ GEMINI_BASE_URL: "http://proxy/v1beta" }, {}, "gemini gemini-3.8-flash http://proxy/v1beta no key"],
  // Of several, the first in the order, or the one that is named.
  [all, {}, `openai gpt-5.4-mini ${openai} OPENAI_API_KEY o`],
  [{ OPENAI_BASE_URL: home, ANTHROPIC_API_KEY: "a" }, {}, `openai gpt-5.4-mini ${home} no key`],
  [withoutOpenAi, {}, `anthropic own-claude ${anthropic} ANTHROPIC_API_KEY a`],
  [all, { provider: "anthropic" }, `anthropic own-claude ${anthropic} ANTHROPIC_API_KEY a`],
  [all, { provider: "gemini" }, `gemini gemini-3.8-flash ${gemini} GEMINI_API_KEY g`],
  [withoutOpenAi, { provider: " gemini " }, `gemini gemini-3.8-flash ${gemini} GEMINI_API_KEY g`],
  // The model: the flag, else the variable of the provider, else the default.
  [all, { model: "m" }, `openai m ${openai} OPENAI_API_KEY o`],
  [all, { provider: "anthropic", model: "m" }, `anthropic m ${anthropic} ANTHROPIC_API_KEY a`],
  [{ ...all, OPENAI_MODEL: "qwen" }, { model: "llama" }, `openai llama ${openai} OPENAI_API_KEY o`],
  // What the other providers have wrong does not concern the chosen one.
  [
    { ...all, OPENAI_BASE_URL: "nonsense", OPENAI_API_KEY: "two words" },
    { provider: "gemini" },
    `gemini gemini-3.8-flash ${gemini} GEMINI_API_KEY g`
  ]
]

const everyNeed = "OPENAI_API_KEY or OPENAI_BASE_URL, or ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL, or " +
  "GEMINI_API_KEY, GOOGLE_API_KEY or GEMINI_BASE_URL"
const noUrl = "it is no address that starts with http:// or https://"
const noKey = "it holds characters that are in no key, such as a space or a line break"

/** Environments and flags that cannot be used, and what is said of them. */
const refused: ReadonlyArray<readonly [environment: Environment, flags: Flags, message: string]> = [
  [{}, { model: "gpt" }, `--model gpt: it needs a server: set ${everyNeed}`],
  [all, { provider: "openia" }, "--provider openia: it is none of openai, anthropic, gemini, embedded"],
  [all, { provider: "toString" }, "--provider toString: it is none of openai, anthropic, gemini, embedded"],
  [{}, { provider: "openai" }, "--provider openai: it needs OPENAI_API_KEY or OPENAI_BASE_URL"],
  [
    { OPENAI_API_KEY: "o" },
    { provider: "anthropic" },
    "--provider anthropic: it needs ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL"
  ],
  [
    { GEMINI_MODEL: "m" },
    { provider: "gemini" },
    "--provider gemini: it needs GEMINI_API_KEY, GOOGLE_API_KEY or GEMINI_BASE_URL"
  ],
  [
    all,
    { provider: "gemini", model: "embedded" },
    "--model embedded: it is no model of --provider gemini; leave one of the two out"
  ],
  [
    all,
    { provider: "embedded", model: "m" },
    "--model m: --provider embedded is one model only; leave one of the two out"
  ],
  [{ OPENAI_BASE_URL: "localhost" }, {}, `OPENAI_BASE_URL: ${noUrl}`],
  [{ OPENAI_BASE_URL: "sk-pasted-into-the-wrong-one" }, {}, `OPENAI_BASE_URL: ${noUrl}`],
  [{ ANTHROPIC_API_KEY: "a", ANTHROPIC_BASE_URL: "ftp://x" }, {}, `ANTHROPIC_BASE_URL: ${noUrl}`],
  [{ GEMINI_BASE_URL: "http://me:secret@host" }, {}, "GEMINI_BASE_URL: it must not hold a user or a password"],
  [{ OPENAI_API_KEY: "sk-one\nsk-two" }, {}, `OPENAI_API_KEY: ${noKey}`],
  [{ GOOGLE_API_KEY: "AIza…" }, {}, `GOOGLE_API_KEY: ${noKey}`]
]

const step = (answers: ReadonlyArray<Message.Message>) =>
  ({ toolResults: answers }) as unknown as Event.ChatResult["steps"][number]
const good = Message.tool("a", "fine")
const bad = { ...Message.tool("b", "{\"error\":\"cannot read x: \\\"x\\\" is gone\"}"), isError: true }

const shown = (environment: Environment, flags: Flags) => JSON.stringify([environment, flags])

describe("the settings of the agent", () => {
  for (const [environment, flags, choice] of chosen) {
    it.effect(`main job: the agent with ${shown(environment, flags)} chooses ${choice}`, () =>
      Effect.gen(function*() {
        assert.strictEqual(told(yield* choose(environment, flags)), choice)
      }))
  }

  for (const [environment, flags, message] of refused) {
    it.effect(`main job: the agent refuses ${shown(environment, flags)}: ${message}`, () =>
      Effect.gen(function*() {
        const error = yield* Effect.flip(choose(environment, flags))
        assert.instanceOf(error, Settings.BadSetting)
        assert.strictEqual(error.message, message)
        assert.strictEqual(Failure.line(error, embedded), message)
      }))
  }

  it.effect("main job: the settings and the chosen model do not show a key", () =>
    Effect.gen(function*() {
      const environment = Object.fromEntries(Object.keys(all).map((name) => [name, "sk-secret"]))
      const provider = ConfigProvider.layer(ConfigProvider.fromUnknown(environment))
      const read = yield* Settings.environment.pipe(Effect.provide(provider))
      assertUnseen(["sk-secret"], watch(), ...Object.values(read).map(({ key }) => key), yield* choose(environment))
    }))

  it("main job: the agent shows a server address without its query", () => {
    assert.strictEqual(Settings.address(server), "http://host/v1")
  })

  it("main job: the agent recognizes the own addresses of a provider, also of a region, and no lookalikes", () => {
    for (const [name, { ownBaseUrl }] of Object.entries(Provider.providers)) {
      assert.isTrue(Provider.isName(name) && Provider.isOwn(name, ownBaseUrl))
    }
    assert.isTrue(Provider.isOwn("openai", "https://eu.api.openai.com/v1"))
    for (const url of ["https://api.openai.com.evil.test/v1", "https://evilapi.openai.com/v1", "http://localhost/v1"]) {
      assert.isFalse(Provider.isOwn("openai", url), url)
    }
  })
})

describe("failures of the agent", () => {
  const result = (outcome: Event.Outcome, steps: ReadonlyArray<Event.ChatResult["steps"][number]> = []) => ({
    outcome,
    steps,
    thread: Thread.empty
  })

  it("main job: a completed run and a question to the user are not failures", () => {
    const ask: Event.Outcome = { _tag: "AskUser", pendingQuestion: "?", pendingToolCallId: "a", askUserOpts: [] }
    assert.isUndefined(
      Failure.ofResult(result({ _tag: "Completed", finishReason: "stop" }, [step([good, bad]), step([])]), [], embedded)
    )
    assert.isUndefined(Failure.ofResult(result(ask), [], embedded))
  })

  it("main job: a completed run with unreadable files is a failure that names the first file", () => {
    const files = [{ path: "a", reason: "permission denied" }, { path: "a", reason: "again" }, {
      path: "b",
      reason: "x"
    }]
    assert.strictEqual(
      Failure.ofResult(result({ _tag: "Completed", finishReason: "stop" }, [step([good])]), files, embedded),
      "cannot read a: permission denied (and 1 more)"
    )
  })

  it("main job: a completed run whose last calls all failed is a failure", () => {
    const completed = result({ _tag: "Completed", finishReason: "stop" }, [step([good]), step([bad, bad]), step([])])
    assert.strictEqual(Failure.ofResult(completed, [], embedded), "cannot read x: \"x\" is gone")
  })

  it("main job: every other outcome is reported in one line without control characters", () => {
    const error = new Adapter.AdapterError({ reason: "rate_limited", detail: "slow\ndown\u001b[2J" })
    const failed: ReadonlyArray<readonly [Event.Outcome, RegExp]> = [
      [
        { _tag: "Failed", error },
        /^the model server at http:\/\/host\/v1 wants fewer requests; try again later: slow down/
      ],
      [{ _tag: "MaxTurns", maxTurns: 12 }, /^there was no answer after 12 turns$/],
      [{ _tag: "Cancelled", reason: "cancel" }, /without an answer/],
      [{ _tag: "Failed", error: { odd: true } }, /^\{"odd":true\}$/],
      [{ _tag: "Failed", error: new Error("x".repeat(2000)) }, /^x{300} …$/]
    ]
    for (const [outcome, line] of failed) {
      const told = Failure.ofResult(result(outcome), [], server) ?? ""
      assert.match(told, line)
      assert.notMatch(told, /\p{Cc}/u)
    }
  })

  const adapterError = (
    reason: Adapter.AdapterError["reason"],
    rest: { readonly detail?: string; readonly status?: number; readonly metadata?: Record<string, unknown> } = {}
  ) => new Adapter.AdapterError({ reason, ...rest })

  it("main job: the report of a refused or missing key names its variable", () => {
    const google: Settings.Server = {
      ...server,
      provider: "gemini",
      key: Option.some({ variable: "GOOGLE_API_KEY", secret: Redacted.make("k") })
    }
    const error = adapterError("authentication_failed")
    const place = "the model server at http://host/v1"
    assert.strictEqual(Failure.line(error, server), `${place} refuses the key; check OPENAI_API_KEY`)
    assert.strictEqual(Failure.line(error, google), `${place} refuses the key; check GOOGLE_API_KEY`)
    assert.strictEqual(
      Failure.line(error, { ...google, key: Option.none() }),
      `${place} wants a key; set GEMINI_API_KEY or GOOGLE_API_KEY`
    )
    assert.strictEqual(
      Failure.line(error, { ...server, provider: "anthropic", key: Option.none() }),
      `${place} wants a key; set ANTHROPIC_API_KEY`
    )
  })

  it("main job: a report redacts a masked key quoted by a server", () => {
    for (const quoted of ["sk-ab*****wxyz", "(sk-ab***)", "'sk-ab...wxyz'.", "sk-ab…wxyz"]) {
      const error = adapterError("authentication_failed", { detail: `HTTP 401: no such key ${quoted} here` })
      assert.match(Failure.line(error, server), /check OPENAI_API_KEY: HTTP 401: no such key <redacted> here$/)
    }
  })

  it("main job: the report of an unknown model names the model and the settings to check", () => {
    const line = Failure.line(adapterError("invalid_request", { status: 404 }), { ...server, provider: "anthropic" })
    assert.match(line, /has no m; check --model or ANTHROPIC_MODEL, and ANTHROPIC_BASE_URL$/)
    const coded = adapterError("invalid_request", { status: 400, metadata: { code: "model_not_found" } })
    assert.match(Failure.line(coded, server), /has no m; check --model or OPENAI_MODEL, and OPENAI_BASE_URL$/)
    const other = Failure.line(adapterError("invalid_request", { status: 400 }), server)
    assert.match(other, /http:\/\/host\/v1 cannot answer \(invalid_request\)$/)
  })
})
