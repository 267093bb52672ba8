/**
 * One account for a parent and its twenty sub-agents, and words into a run, on the AI SDK, LangChain and pi. None of them
 * has an account over several runs: the cap is written by hand, in the hook that each documents for it. The AI SDK has no
 * inbox either.
 */
import { createOpenAICompatible } from "@ai-sdk/openai-compatible"
import { Agent, type AgentTool, type StreamFn } from "@earendil-works/pi-agent-core"
import { type Model as PiModel, Type } from "@earendil-works/pi-ai"
import { streamSimple } from "@earendil-works/pi-ai/api/openai-completions"
import { ChatOpenAI } from "@langchain/openai"
import { generateText, isStepCount, type ModelMessage, tool } from "ai"
import { createAgent, createMiddleware, tool as langchainTool } from "langchain"
import { z } from "zod"
import type { Agents, Fate, Speaking } from "../governed.ts"

const aiModel = (baseURL: string) =>
  createOpenAICompatible({ name: "m", apiKey: "k", baseURL, includeUsage: true })("m")

const aiTools = (look: () => Promise<string>) => ({ look: tool({ inputSchema: z.object({}), execute: look }) })

/** Runs a sub-agent as a tool does, and says what became of it. */
const noted = async (ended: (fate: Fate) => void, run: () => Promise<string>): Promise<string> => {
  try {
    const text = await run()
    ended(text === "" ? "ended" : "answered")
    return text
  } catch (error) {
    ended("failed")
    throw error
  }
}

const aiSdk: Agents = async ({ ended, errand, limit, price, url }) => {
  let spent = 0
  const capped = {
    model: aiModel(url),
    maxRetries: 0,
    onStepEnd: () => void (spent += price),
    stopWhen: [isStepCount(10), () => spent >= limit]
  }
  const agent = tool({
    inputSchema: z.object({}),
    execute: () =>
      noted(
        ended,
        async () => (await generateText({ ...capped, tools: aiTools(async () => "a loom"), prompt: "Hi" })).text
      )
  })
  return (await generateText({ ...capped, tools: { agent }, prompt: errand })).text !== ""
}

const langchain: Agents = async ({ ended, errand, limit, price, url: baseURL }) => {
  let spent = 0
  const capped = createMiddleware({
    name: "capped",
    beforeModel: { canJumpTo: ["end"], hook: () => spent >= limit ? { jumpTo: "end" as const } : undefined },
    afterModel: () => void (spent += price)
  })
  const model = new ChatOpenAI({ model: "m", apiKey: "k", maxRetries: 0, configuration: { baseURL } })
  const ask = async (agent: { invoke: (input: any) => Promise<any> }, content: string): Promise<string> => {
    const { messages } = await agent.invoke({ messages: [{ role: "user", content }] })
    const last = messages.at(-1)
    return last?.type === "ai" ? last.text : ""
  }
  const look = langchainTool(async () => "a loom", { name: "look", description: "", schema: z.object({}) })
  const inner = createAgent({ model, tools: [look], middleware: [capped] })
  const agent = langchainTool(() => noted(ended, () => ask(inner, "Hi")), {
    name: "agent",
    description: "",
    schema: z.object({})
  })
  return await ask(createAgent({ model, tools: [agent], middleware: [capped] }), errand) !== ""
}

const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 }

const piAgent = (baseUrl: string, name: string, act: () => Promise<string>, isOver = () => false): Agent => {
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
    name,
    label: name,
    description: "",
    parameters: Type.Object({}),
    execute: async () => ({ content: [{ type: "text", text: await act() }], details: {} })
  }
  const streamFn: StreamFn = (_model, context, options) =>
    streamSimple(model, context, { ...options, apiKey: "k", maxRetries: 0 })
  return new Agent({
    initialState: { systemPrompt: "", model, tools: [tool] },
    streamFn,
    finishTurn: () => isOver() ? { action: "end" } : undefined
  })
}

const pi: Agents = async ({ ended, errand, limit, price, url }) => {
  let spent = 0
  const ask = async (name: string, act: () => Promise<string>, prompt: string): Promise<string> => {
    const agent = piAgent(url, name, act, () => (spent += price) >= limit)
    await agent.prompt(prompt)
    const last = agent.state.messages.at(-1)
    return last?.role === "assistant"
      ? last.content.map((part) => part.type === "text" ? part.text : "").join("")
      : ""
  }
  const inner = () => noted(ended, () => ask("look", async () => "a loom", "Hi"))
  return await ask("agent", inner, errand) !== ""
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
  const agent = piAgent(url, "look", look)
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
