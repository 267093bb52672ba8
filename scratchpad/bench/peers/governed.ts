/**
 * One account for twenty agents, and words into a run, on the AI SDK, LangChain and pi. None of them has an account over
 * several runs: the cap is written by hand, in the hook that each documents for it. The AI SDK has no inbox either.
 */
import { createOpenAICompatible } from "@ai-sdk/openai-compatible"
import { Agent, type AgentTool, type StreamFn } from "@earendil-works/pi-agent-core"
import { type Model as PiModel, Type } from "@earendil-works/pi-ai"
import { streamSimple } from "@earendil-works/pi-ai/api/openai-completions"
import { ChatOpenAI } from "@langchain/openai"
import { generateText, isStepCount, type ModelMessage, tool } from "ai"
import { createAgent, createMiddleware, tool as langchainTool } from "langchain"
import { z } from "zod"
import type { Agents, Speaking } from "../governed.ts"

const aiModel = (baseURL: string) =>
  createOpenAICompatible({ name: "m", apiKey: "k", baseURL, includeUsage: true })("m")

const aiTools = (look: () => Promise<string>) => ({ look: tool({ inputSchema: z.object({}), execute: look }) })

const aiSdk: Agents = (url, limit, price) => {
  let spent = 0
  return async () => {
    const { text } = await generateText({
      model: aiModel(url),
      tools: aiTools(async () => "a loom"),
      prompt: "Hi",
      maxRetries: 0,
      onStepEnd: () => void (spent += price),
      stopWhen: [isStepCount(10), () => spent >= limit]
    })
    return text !== ""
  }
}

const langchain: Agents = (baseURL, limit, price) => {
  let spent = 0
  const capped = createMiddleware({
    name: "capped",
    beforeModel: { canJumpTo: ["end"], hook: () => spent >= limit ? { jumpTo: "end" as const } : undefined },
    afterModel: () => void (spent += price)
  })
  const model = new ChatOpenAI({ model: "m", apiKey: "k", maxRetries: 0, configuration: { baseURL } })
  const look = langchainTool(async () => "a loom", { name: "look", description: "", schema: z.object({}) })
  const agent = createAgent({ model, tools: [look], middleware: [capped] })
  return async () => {
    const { messages } = await agent.invoke({ messages: [{ role: "user", content: "Hi" }] })
    const last = messages.at(-1)
    return last?.type === "ai" && last.text !== ""
  }
}

const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 }

const piAgent = (baseUrl: string, look: () => Promise<string>, isOver = () => false): Agent => {
  const model: PiModel<"openai-completions"> = {
    id: "m",
    name: "m",
    api: "openai-completions",
    provider: "m",
    baseUrl,
    reasoning: false,
    input: ["text"],
    cost,
    contextWindow: 100_000,
    maxTokens: 10
  }
  const tool: AgentTool = {
    name: "look",
    label: "look",
    description: "",
    parameters: Type.Object({}),
    execute: async () => ({ content: [{ type: "text", text: await look() }], details: {} })
  }
  const streamFn: StreamFn = (_model, context, options) =>
    streamSimple(model, context, { ...options, apiKey: "k", maxRetries: 0 })
  return new Agent({
    initialState: { systemPrompt: "", model, tools: [tool] },
    streamFn,
    finishTurn: () => isOver() ? { action: "end" } : undefined
  })
}

const pi: Agents = (url, limit, price) => {
  let spent = 0
  return async () => {
    const agent = piAgent(url, async () => "a loom", () => (spent += price) >= limit)
    await agent.prompt("Hi")
    const last = agent.state.messages.at(-1)
    return last?.role === "assistant" && last.content.some((part) => part.type === "text" && part.text !== "")
  }
}

/** Its recipe: messages of the program's own are added in `prepareStep`. */
const speakingOfAiSdk: Speaking = (url, look) => {
  const said: Array<ModelMessage> = []
  const stopping = new AbortController()
  return {
    say: (content) => void said.push({ role: "user", content }),
    stop: () => stopping.abort(),
    run: () =>
      generateText({
        model: aiModel(url),
        tools: aiTools(look),
        prompt: "Hi",
        maxRetries: 0,
        abortSignal: stopping.signal,
        stopWhen: isStepCount(10),
        prepareStep: ({ messages, stepNumber }) =>
          stepNumber === 0 ? undefined : { messages: [...messages, ...said.splice(0)] }
      }),
    told: () => "nothing"
  }
}

const speakingOfPi: Speaking = (url, look) => {
  const agent = piAgent(url, look)
  let told = "nothing"
  agent.subscribe((event) => {
    if (event.type === "message_end" && JSON.stringify(event.message).includes("Not that")) {
      told = "delivered, by an event"
    }
  })
  return {
    say: (content) => agent.steer({ role: "user", content, timestamp: Date.now() }),
    stop: () => agent.abort(),
    run: () => agent.prompt("Hi"),
    told: () => agent.hasQueuedMessages() ? "that it is queued, if asked" : told
  }
}

export const agents: Readonly<Record<string, Agents>> = { "AI SDK": aiSdk, "LangChain": langchain, "pi": pi }
export const speaking: Readonly<Record<string, Speaking>> = { "AI SDK": speakingOfAiSdk, "pi": speakingOfPi }
