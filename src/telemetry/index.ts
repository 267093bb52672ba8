/**
 * Metrics, message content and viewers' dialects for the spans of runs, by OpenTelemetry's conventions for generative
 * AI.
 */
export * as Telemetry from "./Telemetry.ts"
