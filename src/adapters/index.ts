/**
 * The adapters to model providers, one module per wire protocol.
 */
export * as OpenAiChat from "./OpenAiChat.ts"
export * as OpenAiResponses from "./OpenAiResponses.ts"
