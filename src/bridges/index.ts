/**
 * Bridges to other libraries: their models as adapters, their tools as tools. Each bridge has its own entry point,
 * `heddle/bridges/ai-sdk` and `heddle/bridges/effect-ai`, and needs only its own library's packages.
 */
export * as AiSdk from "./AiSdk.ts"
export * as EffectAi from "./EffectAi.ts"
