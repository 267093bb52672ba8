/**
 * Holds bodies to the types of the official SDKs: they are written into a program, each with `satisfies`, and compiled.
 * The fields that vendors of Chat Completions add are listed here, and nowhere else is one allowed.
 */
import * as childProcess from "node:child_process"
import * as fs from "node:fs"
import * as path from "node:path"
import type { Protocol } from "./bodies.ts"

const head = `
import type OpenAI from "openai"
import type * as Anthropic from "@anthropic-ai/sdk/resources/messages/messages"
import type * as Google from "@google/genai"

// Chat Completions, with what vendors add.

type Call = OpenAI.Chat.ChatCompletionMessageFunctionToolCall & {
  /** Gemini's layer for OpenAI's clients. */
  extra_content?: { google: { thought_signature: string } }
}

interface Assistant extends Omit<OpenAI.Chat.ChatCompletionAssistantMessageParam, "tool_calls" | "content"> {
  tool_calls?: Array<Call>
  content?: OpenAI.Chat.ChatCompletionAssistantMessageParam["content"] | Array<
    /** Mistral. */
    | { type: "thinking"; thinking: Array<{ type: "text"; text: string }> }
    | { type: "text"; text: string }
  >
  /** DeepSeek, Kimi, Xiaomi, Z.ai. */
  reasoning_content?: string
  /** OpenRouter, Snowflake. */
  reasoning?: string
  reasoning_details?: Array<{ type: "reasoning.encrypted"; data: string }>
  /** Gemini's layer for OpenAI's clients. */
  extra_content?: { google: { thought_signature: string } }
}

type Own = OpenAI.Chat.ChatCompletionCreateParamsStreaming

interface Chat extends Omit<Own, "messages" | "tool_choice"> {
  messages: Array<Exclude<Own["messages"][number], OpenAI.Chat.ChatCompletionAssistantMessageParam> | Assistant>
  /** Mistral's word for required. */
  tool_choice?: Own["tool_choice"] | "any"
  /** OpenRouter, Snowflake. */
  reasoning?: { effort?: string; max_tokens?: number; enabled?: boolean }
  /** DeepSeek, Kimi, Xiaomi, Z.ai. */
  thinking?: { type: "enabled" | "disabled" }
  /** Qwen. */
  enable_thinking?: boolean
  thinking_budget?: number
}

// Responses. A budget of reasoning is OpenRouter's. The detail of an image has a default, which its type does not say.

type User = {
  role: "user"
  content: Array<
    OpenAI.Responses.ResponseInputContent | Omit<OpenAI.Responses.ResponseInputImage, "detail"> & { detail?: "auto" }
  >
}

type Responses = Omit<OpenAI.Responses.ResponseCreateParamsStreaming, "reasoning" | "input"> & {
  reasoning?: OpenAI.Reasoning & { max_tokens?: number }
  input: Array<OpenAI.Responses.ResponseInputItem | User>
}

// Anthropic's models before Claude Opus 4.7 take a temperature, which the types leave out.

type Messages = Anthropic.MessageCreateParamsStreaming & { temperature?: number }

// Gemini's SDK has enums where the wire has their words, and other names for a request's outermost members.

type Words<T> = T extends string ? \`\${T}\`
  : T extends number | boolean | undefined | null ? T
  : T extends ReadonlyArray<infer U> ? Array<Words<U>>
  : unknown extends T ? T
  : { [K in keyof T]: Words<T[K]> }

type Contents = Words<{
  contents: Array<Google.Content>
  systemInstruction?: Google.Content
  tools?: Array<Google.Tool>
  toolConfig?: Google.ToolConfig
  generationConfig?: Omit<Google.GenerationConfig, "thinkingConfig"> & {
    // Google's guides write levels in small letters.
    thinkingConfig?: Omit<Google.ThinkingConfig, "thinkingLevel"> & { thinkingLevel?: "low" | "high" | "none" }
  }
}>
`

const typeOf = (protocol: Protocol): string => {
  switch (protocol) {
    case "OpenAiResponses":
      return "Responses"
    case "Anthropic":
      return "Messages"
    case "Gemini":
      return "Contents"
    default:
      return "Chat"
  }
}

export interface Body {
  readonly protocol: Protocol
  readonly body: string
}

const place = path.resolve("node_modules/.cache/heddle-bodies")

/** What the compiler says of bodies, by their positions. */
export const misfits = (bodies: ReadonlyArray<Body>): ReadonlyMap<number, string> => {
  const folder = path.join(place, String(process.pid))
  fs.mkdirSync(folder, { recursive: true })
  try {
    const first = head.split("\n").length
    // One line each, so that a line number is a position.
    const lines = bodies.map(({ body, protocol }, index) => {
      const text = JSON.stringify(JSON.parse(body)).replaceAll("\u2028", "\\u2028")
      return `export const b${index} = ${text} satisfies ${typeOf(protocol)}`
    })
    const program = path.join(folder, "bodies.ts")
    fs.writeFileSync(program, `${head}\n${lines.join("\n")}\n`)
    const { error, status, stdout } = childProcess.spawnSync(
      path.resolve("node_modules/.bin/tsc"),
      [
        "--ignoreConfig",
        "--noEmit",
        "--strict",
        "--skipLibCheck",
        "--target",
        "es2022",
        "--module",
        "nodenext",
        "--types",
        "node",
        "--pretty",
        "false",
        program
      ],
      { encoding: "utf8", maxBuffer: 1 << 28 }
    )
    if (error !== undefined) throw error
    const found = new Map<number, string>()
    const text = stdout.split("\n")
    for (const [at, line] of text.entries()) {
      const [, number, problem] = /^\S*bodies\.ts\((\d+),\d+\): (.*)$/.exec(line) ?? []
      if (number === undefined) continue
      const index = Number(number) - first - 1
      const rest = text.slice(at + 1)
      const end = rest.findIndex((next) => !next.startsWith(" "))
      const more = rest.slice(0, end).slice(-4).join("\n")
      if (!found.has(index)) found.set(index, `${problem}\n${more}`)
    }
    if (status !== 0 && found.size === 0) throw new Error(`the compiler failed: ${stdout.slice(0, 2000)}`)
    return found
  } finally {
    fs.rmSync(folder, { recursive: true, force: true })
  }
}
