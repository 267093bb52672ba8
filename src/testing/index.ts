/**
 * The test kit: a scripted model, and suites that any implementation of a service can be held to.
 */
export * as Script from "./Script.ts"
