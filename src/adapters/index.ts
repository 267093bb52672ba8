/** Adapters to model providers, one module per wire protocol. */
export * as Anthropic from "./Anthropic.ts"
export * as Gemini from "./Gemini.ts"
export * as OpenAiChat from "./OpenAiChat.ts"
export * as OpenAiResponses from "./OpenAiResponses.ts"
