/**
 * The test kit: a scripted model, a recorder, and suites that any implementation of a service can be held to.
 */
export * as Recorder from "./Recorder.ts"
export * as Script from "./Script.ts"
