/** Heddle's public events for browsers: the AI SDK's UI message stream, and AG-UI, in both directions. */
export * as AgUi from "./AgUi.ts"
export * as Body from "./Body.ts"
export * as UiStream from "./UiStream.ts"
