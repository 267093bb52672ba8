/**
 * The runs of a program that calls `Chat` itself, kept and gone on with.
 */
export * as Durable from "./Durable.ts"

/**
 * Sessions that go on after a crash, on any number of processes over one store.
 */
export * as Worker from "./Worker.ts"
