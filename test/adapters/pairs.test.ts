/**
 * Two options together: beside another option, each option of a layer or of a request changes what it changes alone.
 * Where two of them mean something else together, the table of the adapter says what.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, Message } from "heddle"
import { Anthropic, Gemini, OpenAiChat, OpenAiResponses } from "heddle/adapters"
import { sampleOf } from "../support/property.ts"

type Json = Readonly<Record<string, any>>

/** An option: of the layer, or of the request. */
interface Option {
  readonly layer?: Json
  readonly request?: Partial<Adapter.Request>
}

interface Table {
  readonly layer: (options: Json) => Layer.Layer<Adapter.Adapter, never, any>
  readonly options: Readonly<Record<string, Option>>
  /** What holds of a body where two options mean something else together than alone. */
  readonly together: Readonly<Record<string, (body: Json) => boolean>>
}

const answerFormat = {
  type: "json_schema",
  name: "answer",
  schema: { type: "object", properties: { a: { type: "string" } } }
} as const

const asked: Readonly<Record<string, Option>> = {
  "toolChoice required": { request: { toolChoice: "required" } },
  "toolChoice none": { request: { toolChoice: "none" } },
  "toolChoice by name": { request: { toolChoice: { name: "look" } } },
  temperature: { request: { temperature: 0.5 } },
  maxTokens: { request: { maxTokens: 77 } },
  "responseFormat json_schema": { request: { responseFormat: answerFormat } },
  "request model": { request: { model: "other-model" } },
  "request options": { request: { options: { user: "u" } } },
  cacheKey: { request: { cacheKey: "c" } }
}

const layered: Readonly<Record<string, Option>> = {
  strict: { layer: { strict: true } },
  "reasoning by effort": { layer: { reasoning: { effort: "low" } } },
  "reasoning by tokens": { layer: { reasoning: { maxTokens: 2048 } } },
  "reasoning off": { layer: { reasoning: { effort: "none" } } },
  options: { layer: { options: { seed: 7 } } }
}

const parallel = { parallelToolCalls: { layer: { parallelToolCalls: false } } }

const reasoning = ["reasoning by effort", "reasoning by tokens", "reasoning off"]
const choices = ["toolChoice required", "toolChoice none", "toolChoice by name"]
const forced = ["toolChoice required", "toolChoice by name"]

const product = (
  left: ReadonlyArray<string>,
  right: ReadonlyArray<string>,
  holds: (body: Json) => boolean
): Table["together"] => Object.fromEntries(left.flatMap((one) => right.map((other) => [`${one} × ${other}`, holds])))

const vendors = ["openrouter", "deepseek", "moonshot", "zai", "qwen", "mistral", "azure", "snowflake"]
const vendorNames = vendors.map((vendor) => `vendor ${vendor}`)
const named = (...names: ReadonlyArray<string>): ReadonlyArray<string> => names.map((name) => `vendor ${name}`)

const assistant = (body: Json): Json => body["messages"][2]

const tables: Readonly<Record<string, Table>> = {
  OpenAiChat: {
    layer: (options) => OpenAiChat.layer({ model: "m", ...options }),
    options: {
      ...asked,
      ...layered,
      ...parallel,
      "responseFormat json_object": { request: { responseFormat: { type: "json_object" } } },
      cache: { layer: { cache: {} } },
      "cache key": { layer: { cache: { key: "k" } } },
      "cache retention": { layer: { cache: { retention: "24h" } } },
      maxTokensField: { layer: { maxTokensField: "max_tokens" } },
      includeUsage: { layer: { includeUsage: false } },
      "sendReasoningAs none": { layer: { sendReasoningAs: "none" } },
      "sendReasoningAs reasoning_content": { layer: { sendReasoningAs: "reasoning_content" } },
      emptyContent: { layer: { emptyContent: null } },
      systemRole: { layer: { systemRole: "developer" } },
      ...Object.fromEntries(vendors.map((vendor) => [`vendor ${vendor}`, { layer: { vendor } }]))
    },
    together: {
      ...product(["cache"], ["cacheKey"], (body) => body["prompt_cache_key"] === "c"),
      ...product(["cache retention"], ["cacheKey"], (body) => body["prompt_cache_key"] === "c"),
      // The name of a limit is seen where there is one.
      ...product(["maxTokens"], ["maxTokensField"], (body) => body["max_tokens"] === 77),
      ...product(["maxTokens"], vendorNames, (body) => body["max_tokens"] === 77),
      // A vendor has its own words.
      ...product(
        reasoning,
        named("openrouter", "snowflake"),
        (body) => "reasoning" in body && !("reasoning_effort" in body)
      ),
      ...product(reasoning, named("deepseek", "moonshot", "zai"), (body) => "thinking" in body),
      ...product(reasoning, named("qwen"), (body) => "enable_thinking" in body),
      ...product(["toolChoice required"], named("mistral"), (body) => body["tool_choice"] === "any"),
      // A model that thinks is forced to nothing.
      ...product(forced, named("deepseek", "moonshot"), (body) => !("tool_choice" in body)),
      // What is said outright wins over the vendor.
      ...product(["sendReasoningAs none"], vendorNames, (body) => !("reasoning_content" in assistant(body))),
      ...product(
        ["sendReasoningAs reasoning_content"],
        vendorNames,
        (body) => assistant(body)["reasoning_content"] === "why"
      ),
      ...product(["emptyContent"], named("mistral"), (body) => Array.isArray(assistant(body)["content"]))
    }
  },
  OpenAiResponses: {
    layer: (options) => OpenAiResponses.layer({ model: "gpt-5", ...options }),
    options: {
      ...asked,
      ...layered,
      ...parallel,
      "responseFormat json_object": { request: { responseFormat: { type: "json_object" } } },
      "reasoning summary": { layer: { reasoning: { summary: "auto" } } },
      store: { layer: { store: true } },
      cache: { layer: { cache: {} } },
      "cache key": { layer: { cache: { key: "k" } } },
      "cache retention": { layer: { cache: { retention: "24h" } } },
      "hosted tools": { layer: { options: { tools: [{ type: "web_search" }] } } },
      include: { request: { options: { include: ["message.output_text.logprobs"] } } }
    },
    together: {
      ...product(["cache"], ["cacheKey"], (body) => body["prompt_cache_key"] === "c"),
      ...product(["cache retention"], ["cacheKey"], (body) => body["prompt_cache_key"] === "c"),
      ...product(["store"], ["include"], (body) => body["include"].length === 1)
    }
  },
  Anthropic: {
    layer: (options) => Anthropic.layer({ model: "claude-sonnet-4-6", ...options }),
    options: {
      ...asked,
      ...layered,
      ...parallel,
      "maxTokens of the layer": { layer: { maxTokens: 99 } },
      inlineSystem: { layer: { inlineSystem: true } },
      "reasoning shown": { layer: { reasoning: { display: "omitted" } } },
      cache: { layer: { cache: true } },
      "cache for an hour": { layer: { cache: { ttl: "1h" } } },
      vertex: { layer: { vertex: true } },
      "hosted tools": { layer: { options: { tools: [{ type: "web_search_20250305", name: "web_search" }] } } }
    },
    together: {
      // A model that thinks chooses its temperature, and is forced to nothing.
      ...product(["temperature"], ["reasoning by effort", "reasoning shown"], (body) => !("temperature" in body)),
      ...product(["temperature"], ["reasoning by tokens"], (body) => "temperature" in body === !("thinking" in body)),
      ...product(forced, [...reasoning, "reasoning shown"], (body) => !("thinking" in body) && "tool_choice" in body),
      // The choice of a tool and the one call at a time stand in one member.
      ...product(forced, ["parallelToolCalls"], (body) => body["tool_choice"].disable_parallel_tool_use === true),
      ...product(["toolChoice none"], ["parallelToolCalls"], (body) => body["tool_choice"].type === "none"),
      // The mark of the cache is at the end of the tools.
      ...product(["cache", "cache for an hour"], ["hosted tools"], (body) => "cache_control" in body["tools"].at(-1)),
      "maxTokens × maxTokens of the layer": (body) => body["max_tokens"] === 77,
      "request model × maxTokens": (body) => body["max_tokens"] === 77,
      "request model × maxTokens of the layer": (body) => body["max_tokens"] === 99,
      "request model × vertex": (body) => !("model" in body)
    }
  },
  Gemini: {
    layer: (options) => Gemini.layer({ model: "gemini-3-pro", ...options }),
    options: {
      ...asked,
      ...layered,
      "responseFormat json_object": { request: { responseFormat: { type: "json_object" } } },
      "thoughts left out": { layer: { reasoning: { includeThoughts: false } } },
      openApi: { layer: { schemas: "openApi" } },
      cache: { layer: { cache: "cachedContents/1" } },
      safetySettings: { layer: { safetySettings: [{ category: "HARM_CATEGORY_HARASSMENT", threshold: "BLOCK_NONE" }] } }
    },
    together: {
      // The choice of a tool and the strictness stand in one member; a forced one is strict enough.
      ...product(
        ["toolChoice required"],
        ["strict"],
        (body) => body["toolConfig"].functionCallingConfig.mode === "ANY"
      ),
      ...product(["toolChoice by name"], ["strict"], (body) => body["toolConfig"].functionCallingConfig.mode === "ANY"),
      ...product(["toolChoice none"], ["strict"], (body) => body["toolConfig"].functionCallingConfig.mode === "NONE"),
      // What the cache holds is not said again.
      ...product([...choices, "strict", "openApi"], ["cache"], (body) => !("tools" in body) && !("toolConfig" in body)),
      ...product(
        ["responseFormat json_schema"],
        ["openApi"],
        (body) => "responseSchema" in body["generationConfig"] && !("responseJsonSchema" in body["generationConfig"])
      ),
      // A model without signatures gets none, and takes levels as amounts.
      ...product(["request model"], reasoning, (body) => "thinkingConfig" in body["generationConfig"])
    }
  }
}

const thought: Message.Part = { type: "reasoning", text: "why" }

const request: Adapter.Request = {
  messages: [
    Message.system("Be brief."),
    Message.user("go"),
    { ...Message.assistant("", [Message.toolCall("a", "look", { q: "x" })]), reasoning: [thought] },
    Message.tool("a", "found"),
    Message.user("and?")
  ],
  tools: [{
    name: "look",
    description: "Looks.",
    parameters: { type: "object", properties: { q: { type: "string" }, n: { type: "integer" } }, required: ["q"] }
  }]
}

/** The body that goes out. What comes back does not matter. */
const bodyOf = (table: Table, options: ReadonlyArray<Option>): Effect.Effect<Json> =>
  Effect.suspend(() => {
    let body: Json = {}
    const layer: Json = Object.assign({ retries: 0 }, ...options.map((option) => option.layer))
    const wanted: Adapter.Request = Object.assign({}, request, ...options.map((option) => option.request))
    return Stream.unwrap(Adapter.Adapter.useSync((adapter) => adapter.stream(wanted))).pipe(
      Stream.runDrain,
      Effect.provide(Layer.provide(table.layer(layer), FetchHttpClient.layer)),
      Effect.provideService(FetchHttpClient.Fetch, (_, init) => {
        body = JSON.parse(new TextDecoder().decode(init?.body as Uint8Array))
        return Promise.resolve(new Response("{}"))
      }),
      Effect.exit,
      Effect.map(() => body)
    ) as Effect.Effect<Json>
  })

/** The leaves of a body, by their paths. */
const leaves = (value: unknown, path = ""): ReadonlyArray<readonly [path: string, leaf: string]> =>
  typeof value === "object" && value !== null && Object.keys(value).length > 0
    ? Object.entries(value).flatMap(([key, member]) => leaves(member, `${path}/${key}`))
    : [[path, JSON.stringify(value)]]

const isSameMember = (one: Option, other: Option): boolean =>
  [[one.layer, other.layer], [one.request, other.request]].some(([left = {}, right = {}]) =>
    Object.keys(left as Json).some((key) => key in (right as Json))
  )

/** The paths at which a body is not what two options make of the base, each as it does alone. */
const differing = (base: Json, one: Json, other: Json, both: Json): ReadonlyArray<string> => {
  const [from, left, right, found] = [base, one, other, both].map((body) => new Map(leaves(body))) as [
    Map<string, string>,
    Map<string, string>,
    Map<string, string>,
    Map<string, string>
  ]
  const paths = new Set([from, left, right, found].flatMap((body) => [...body.keys()]))
  return [...paths].filter((path) => {
    const wanted = left.get(path) === from.get(path) ? right.get(path) : left.get(path)
    return found.get(path) !== wanted
  })
}

describe("two options together", () => {
  for (const [name, table] of Object.entries(tables)) {
    it.live(`O-06: ${name}: each option of a pair has the same effect as alone, or the effect named in the table`, () =>
      Effect.gen(function*() {
        const alone = new Map<string, Json>()
        const base = yield* bodyOf(table, [])
        for (const [option, value] of Object.entries(table.options)) alone.set(option, yield* bodyOf(table, [value]))
        const options = Object.keys(table.options)
        const pairs = options.flatMap((one, index) =>
          options.slice(index + 1).filter((other) => !isSameMember(table.options[one]!, table.options[other]!)).map((
            other
          ) => [one, other] as const)
        )
        const wrong: Array<string> = []
        const used = new Set<string>()
        for (const [one, other] of sampleOf(pairs, pairs.length)) {
          const both = yield* bodyOf(table, [table.options[one]!, table.options[other]!])
          const key = [`${one} × ${other}`, `${other} × ${one}`].find((pair) => pair in table.together)
          const paths = differing(base, alone.get(one)!, alone.get(other)!, both)
          if (key !== undefined) {
            used.add(key)
            if (!table.together[key]!(both)) wrong.push(`${key}: ${JSON.stringify(both)}`)
          } else if (paths.length > 0) wrong.push(`${one} × ${other}: ${paths.join(", ")}`)
        }
        assert.deepStrictEqual(wrong, [])
        assert.deepStrictEqual(Object.keys(table.together).filter((key) => !used.has(key)), [], "rows of no pair")
        assert.isAbove(pairs.length, 90)
      }))
  }

  it.live("O-06: the comparison of bodies finds five planted mistakes in each of 21 pairs of options", () =>
    Effect.gen(function*() {
      const table = tables["OpenAiChat"]!
      const base = yield* bodyOf(table, [])
      const names = [
        "strict",
        "temperature",
        "maxTokens",
        "includeUsage",
        "systemRole",
        "emptyContent",
        "cache retention"
      ]
      const alone = yield* Effect.forEach(names, (name) => bodyOf(table, [table.options[name]!]))
      const both = (one: number, other: number) =>
        bodyOf(table, [table.options[names[one]!]!, table.options[names[other]!]!])
      type Mistake = (one: Json, other: Json, both: Json) => Json
      const mistakes: Readonly<Record<string, Mistake>> = {
        "the second is lost": (one) => one,
        "the first is lost": (_, other) => other,
        "both are lost": () => base,
        "a message is lost": (_, __, both) => ({ ...both, messages: both["messages"].slice(1) }),
        "a field is added": (_, __, both) => ({ ...both, top_p: 1 })
      }
      for (const [name, mistake] of Object.entries(mistakes)) {
        let planted = 0
        for (const one of names.keys()) {
          for (let other = one + 1; other < names.length; other++) {
            const [left, right] = [alone[one]!, alone[other]!]
            const found = differing(base, left, right, mistake(left, right, yield* both(one, other)))
            assert.isNotEmpty(found, `${name}: ${names[one]} × ${names[other]}`)
            assert.deepStrictEqual(differing(base, left, right, yield* both(one, other)), [])
            planted++
          }
        }
        assert.strictEqual(planted, 21)
      }
    }))
})
