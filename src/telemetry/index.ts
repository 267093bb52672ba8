/** Metrics, message content and viewer dialects for run spans, by OpenTelemetry's conventions for generative AI. */
export * as Telemetry from "./Telemetry.ts"
