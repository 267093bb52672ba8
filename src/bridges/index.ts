/**
 * The bridges to other libraries: their models as adapters, their tools as tools. Each is an entry point of its own,
 * `heddle/bridges/ai-sdk` and `heddle/bridges/effect-ai`, and none needs the packages of the others.
 */
export * as AiSdk from "./AiSdk.ts"
export * as EffectAi from "./EffectAi.ts"
