/**
 * The test kit: a scripted model, a recorder, and suites that any implementation of a service can be held to.
 */
export * as AdapterSuite from "./AdapterSuite.ts"
export { check } from "./Check.ts"
export type * as Check from "./Check.ts"
export * as Conformance from "./Conformance.ts"
export * as EncoderSuite from "./EncoderSuite.ts"
export { everyKill } from "./EveryKill.ts"
export type * as EveryKill from "./EveryKill.ts"
export { everyStep } from "./EveryStep.ts"
export type * as EveryStep from "./EveryStep.ts"
export * as ExecutorSuite from "./ExecutorSuite.ts"
export * as Explorer from "./Explorer.ts"
export * as KillPoint from "./KillPoint.ts"
export * as Recorder from "./Recorder.ts"
export * as Script from "./Script.ts"
export * as Simulation from "./Simulation.ts"
export * as StoreSuite from "./StoreSuite.ts"
