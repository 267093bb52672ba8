/** Records and resumes a program's own calls to `Chat`. */
export * as Durable from "./Durable.ts"

/** Continues sessions after a crash, on any number of processes over one store. */
export * as Worker from "./Worker.ts"
