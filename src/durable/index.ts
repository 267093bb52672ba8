/**
 * Sessions that go on after a crash, on any number of processes over one store.
 */
export * as Worker from "./Worker.ts"
