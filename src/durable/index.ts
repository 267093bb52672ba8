/** Records and resumes runs of a program that calls `Chat` itself. */
export * as Durable from "./Durable.ts"

/** Continues sessions after a crash, on any number of processes over one store. */
export * as Worker from "./Worker.ts"
