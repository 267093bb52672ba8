/**
 * The public modules of Heddle, each as a namespace.
 */
export * as Adapter from "./Adapter.ts"
export * as Chat from "./Chat.ts"
export * as Collector from "./Collector.ts"
export * as Encoder from "./Encoder.ts"
export * as Event from "./Event.ts"
export * as Executor from "./Executor.ts"
export * as Limits from "./Limits.ts"
export * as Message from "./Message.ts"
export * as Policy from "./Policy.ts"
export * as Response from "./Response.ts"
export * as Session from "./Session.ts"
export * as Step from "./Step.ts"
export * as StreamingToolExecutor from "./StreamingToolExecutor.ts"
export * as Thread from "./Thread.ts"
export * as Tool from "./Tool.ts"
export * as ToolRunner from "./ToolRunner.ts"
