/** Runs of a program that calls `Chat` itself, recorded and resumed. */
export * as Durable from "./Durable.ts"

/** Sessions that continue after a crash, on any number of processes over one store. */
export * as Worker from "./Worker.ts"
