import { assert, describe, layer } from "@effect/vitest"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Option from "effect/Option"
import { Chat } from "heddle"
import * as Adapter from "../../scratchpad/agent/adapter.ts"
import * as Provider from "../../scratchpad/agent/provider.ts"
import * as Settings from "../../scratchpad/agent/settings.ts"
import * as Tools from "../../scratchpad/agent/tools.ts"
import * as Agent from "../support/agent.ts"
import * as Anthropic from "../support/anthropic.ts"
import * as Gemini from "../support/gemini.ts"
import * as OpenAiChat from "../support/openAiChat.ts"
import * as OpenAiResponses from "../support/openAiResponses.ts"
import { agent } from "../support/process.ts"
import * as Server from "../support/server.ts"
import { limit } from "../support/until.ts"

const key = "sk-must-stay-secret"
const said = "It says alpha, see a.txt:1."
const read = "{\"path\":\"a.txt\",\"totalLines\":1,\"text\":\"1: alpha\"}"

/** A protocol: how its server answers, and what it has to be sent. */
interface Protocol {
  readonly provider: Provider.Name
  /** What comes after the server's address in the base URL. */
  readonly base: string
  readonly path: string
  readonly keyHeader: readonly [name: string, value: string]
  /** A turn with a call of `read_file`, and one with text. */
  readonly turns: readonly [call: string, text: string]
  readonly model: (request: Server.Received) => unknown
  readonly tools: (body: any) => ReadonlyArray<{ readonly name: string }>
  /** The answer of the call, as it stands in the request. */
  readonly answer: (body: any) => unknown
  readonly answered: unknown
  /** How it refuses a key. */
  readonly refusal: { readonly status: number; readonly body: object }
}

const chat: Protocol = {
  provider: "openai",
  base: "/v1",
  path: "/v1/chat/completions",
  keyHeader: ["authorization", `Bearer ${key}`],
  turns: [
    OpenAiChat.body(
      OpenAiChat.call({ index: 0, id: "c1", name: "read_file", arguments: "{\"path\":\"a.txt\"}" }),
      OpenAiChat.finish("tool_calls")
    ),
    OpenAiChat.body(OpenAiChat.said(said), OpenAiChat.finish("stop"))
  ],
  model: ({ body }) => body.model,
  tools: ({ tools }) => tools.map((tool: { readonly function: { readonly name: string } }) => tool.function),
  answer: ({ messages }) => messages.at(-1),
  answered: { role: "tool", tool_call_id: "c1", content: read },
  refusal: {
    status: 401,
    body: {
      error: { message: `Incorrect API key provided: ${key}`, type: "invalid_request_error", code: "invalid_api_key" }
    }
  }
}

const call = OpenAiResponses.call("c1", "read_file", "{\"path\":\"a.txt\"}")
const message = OpenAiResponses.message(said)

const responses: Protocol = {
  ...chat,
  path: "/v1/responses",
  turns: [
    OpenAiResponses.body(
      OpenAiResponses.added(0, { ...call, arguments: "" }),
      OpenAiResponses.args(0, "{\"path\":\"a.txt\"}"),
      OpenAiResponses.done(0, call),
      OpenAiResponses.completed({ output: [call] })
    ),
    OpenAiResponses.body(
      OpenAiResponses.added(0, OpenAiResponses.message("")),
      OpenAiResponses.said(said),
      OpenAiResponses.done(0, message),
      OpenAiResponses.completed({ output: [message] })
    )
  ],
  tools: ({ tools }) => tools,
  answer: ({ input }) => input.at(-1),
  answered: { type: "function_call_output", call_id: "c1", output: read }
}

const anthropic: Protocol = {
  provider: "anthropic",
  base: "",
  path: "/v1/messages",
  keyHeader: ["x-api-key", key],
  turns: [
    Anthropic.reply([Anthropic.called(0, "toolu_1", "read_file", "{\"path\":\"a.txt\"}")], "tool_use"),
    Anthropic.reply([Anthropic.text(0, said)], "end_turn")
  ],
  model: ({ body }) => body.model,
  tools: ({ tools }) => tools,
  answer: ({ messages }) => messages.at(-1),
  answered: { role: "user", content: [{ type: "tool_result", tool_use_id: "toolu_1", content: read }] },
  refusal: {
    status: 401,
    body: { type: "error", error: { type: "authentication_error", message: `invalid x-api-key: ${key}` } }
  }
}

const gemini: Protocol = {
  provider: "gemini",
  base: "/v1beta",
  path: "/v1beta/models/some-model:streamGenerateContent?alt=sse",
  keyHeader: ["x-goog-api-key", key],
  turns: [
    Gemini.body(Gemini.chunk([Gemini.call("read_file", { path: "a.txt" })]), Gemini.finish("STOP")),
    Gemini.body(Gemini.said(said), Gemini.finish("STOP"))
  ],
  model: ({ path }) => /models\/([^:]+):/.exec(path)?.[1],
  tools: ({ tools }) => tools[0].functionDeclarations,
  answer: ({ contents }) => contents.at(-1),
  answered: {
    role: "user",
    parts: [{ functionResponse: { name: "read_file", response: JSON.parse(read) } }]
  },
  refusal: {
    status: 400,
    body: {
      error: {
        code: 400,
        message: `API key not valid: ${key}`,
        status: "INVALID_ARGUMENT",
        details: [{ "@type": "type.googleapis.com/google.rpc.ErrorInfo", reason: "API_KEY_INVALID" }]
      }
    }
  }
}

/** How each provider is spoken to where the environment names its server. */
const named: ReadonlyArray<Protocol> = [chat, anthropic, gemini]

/** How each provider's own servers are spoken to. */
const own: Readonly<Record<Provider.Name, Protocol>> = { openai: responses, anthropic, gemini }

const serveTurns = ({ turns }: Protocol) => Server.serve((_, index) => ({ pieces: [turns[index] ?? turns[1]] }))

/** How the environment names a server. */
const settingsOf = ({ base, provider }: Protocol, { url }: Server.Server, keyVariable?: string) => {
  const { baseUrl, keys, model } = Provider.providers[provider]
  return { [keyVariable ?? keys[0]]: key, [baseUrl]: `${url}${base}`, [model]: "some-model" }
}

/** Both turns were asked for in the words of the protocol, with the key in its header, and the call was answered. */
const assertAsked = (protocol: Protocol, { requests }: Server.Server) => {
  assert.strictEqual(requests.length, 2)
  for (const request of requests) {
    assert.deepInclude(request, { method: "POST", path: protocol.path })
    const [name, value] = protocol.keyHeader
    assert.strictEqual(request.headers[name], value)
    assert.strictEqual(JSON.stringify(request).split(key).length, 2, "the key is sent once, in its header")
    assert.strictEqual(protocol.model(request), "some-model")
    assert.deepStrictEqual(protocol.tools(request.body).map(({ name }) => name), Tools.all.map(({ name }) => name))
  }
  assert.deepStrictEqual(protocol.answer(requests[1]?.body), protocol.answered)
}

describe("providers of the agent", { concurrent: true, timeout: limit }, () => {
  layer(Agent.services, { excludeTestServices: true })((it) => {
    for (const protocol of named) {
      const { provider } = protocol
      it.effect(`main job: the key of ${provider} selects its protocol, and the agent answers through it`, () =>
        Effect.gen(function*() {
          const root = yield* Agent.folder({ "a.txt": "alpha\n" })
          const server = yield* serveTurns(protocol)
          const environment = settingsOf(protocol, server)
          const ended = yield* agent(["What does it say?", "--dir", root], { environment })
          assert.deepStrictEqual([ended.code, ended.stderr], [0, ""], ended.stdout)
          assert.include(ended.stdout, ` · some-model at ${server.url}${protocol.base}\n`)
          assert.match(ended.stdout, /^ [» ]✓ read_file {2}a\.txt - 1 line/m)
          assert.include(ended.stdout, said)
          assert.notInclude(ended.stdout, key)
          assertAsked(protocol, server)
        }))

      it.effect(`main job: the agent names the variable of a key that ${provider} refuses, and does not show the key`, () =>
        Effect.gen(function*() {
          const root = yield* Agent.folder({})
          const { body, status } = protocol.refusal
          const server = yield* Server.serve(() => ({
            status,
            headers: { "content-type": "application/json" },
            pieces: [JSON.stringify(body)]
          }))
          const variable = Provider.providers[protocol.provider].keys.at(-1)
          const environment = settingsOf(protocol, server, variable)
          const ended = yield* agent(["x", "--dir", root], { environment })
          assert.strictEqual(ended.code, 1)
          const place = `the model server at ${server.url}${protocol.base}`
          assert.include(ended.stderr, `agent: ${place} refuses the key; check ${variable}: HTTP ${status}: `)
          assert.match(ended.stderr, /^[^\n]*<redacted>[^\n]*\n$/)
          assert.notInclude(ended.stdout + ended.stderr, key)
        }))
    }

    it.effect("main job: --provider and --model select the provider and its model among several providers with keys", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({ "a.txt": "alpha\n" })
        const servers = yield* Effect.forEach(named, serveTurns)
        const environment = Object.assign({}, ...named.map((protocol, index) => settingsOf(protocol, servers[index]!)))
        const flags = ["--provider", "anthropic", "--model", "other-model"]
        const ended = yield* agent(["What does it say?", "--dir", root, ...flags], { environment })
        assert.deepStrictEqual([ended.code, ended.stderr], [0, ""], ended.stdout)
        assert.deepStrictEqual(servers.map(({ requests }) => requests.length), [0, 2, 0])
        assert.strictEqual(servers[1]?.requests[0]?.body.model, "other-model")
      }))

    it.effect("main job: with --provider embedded the agent makes no request although a key is set", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({ "a.txt": "alpha\n" })
        const server = yield* serveTurns(chat)
        const environment = settingsOf(chat, server)
        const ended = yield* agent(["Where is alpha?", "--dir", root, "--provider", "embedded"], { environment })
        assert.deepStrictEqual([ended.code, ended.stderr], [0, ""], ended.stdout)
        assert.include(ended.stdout, "no language model")
        assert.strictEqual(server.requests.length, 0)
      }))

    for (const [provider, protocol] of Object.entries(own)) {
      it.effect(`main job: a key of ${provider} alone selects its own servers and their protocol`, () =>
        Effect.gen(function*() {
          const root = yield* Agent.folder({ "a.txt": "alpha\n" })
          const server = yield* serveTurns(protocol)
          const { keys, model: modelVariable, ownBaseUrl } = Provider.providers[protocol.provider]
          const model = yield* Effect.flatMap(
            Settings.environment,
            (environment) => Settings.chooseModel(environment, { provider: Option.none(), model: Option.none() })
          ).pipe(
            Effect.provide(
              ConfigProvider.layer(ConfigProvider.fromUnknown({ [keys[0]]: key, [modelVariable]: "some-model" }))
            )
          )
          const asked: Array<string> = []
          const result = yield* Chat.run("What does it say?", { tools: Tools.all }).pipe(
            Effect.provide([Adapter.layer(model), Agent.workspace(root)]),
            // The name of the host leads to the loopback interface; all else is as it will be.
            Effect.provideService(FetchHttpClient.Fetch, (input, init) => {
              const url = new URL(String(input))
              asked.push(url.origin)
              return fetch(`${server.url}${url.pathname}${url.search}`, init)
            })
          )
          assert.strictEqual(result.finalResponse?.outputText, said)
          const { origin } = new URL(ownBaseUrl)
          assert.deepStrictEqual(asked, [origin, origin])
          assertAsked(protocol, server)
        }))
    }
  })
})
