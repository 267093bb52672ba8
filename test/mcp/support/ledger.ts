/** Counts what tests of MCP take and give back: connections, and the listeners of this process. */
import { afterEach, assert, beforeEach } from "@effect/vitest"
import { Fake } from "./fake.ts"

const events = ["exit", "SIGINT", "SIGTERM", "uncaughtException", "unhandledRejection"] as const

/** Has each test of a file give back what it has taken. */
export const ledger = (): void => {
  const before = new Map<string, number>()

  beforeEach(() => {
    Fake.all.clear()
    for (const event of events) before.set(event, process.listenerCount(event))
  })

  afterEach(() => {
    for (const { closed, made } of Fake.all) assert.strictEqual(closed, made, "connections: made and closed")
    for (const event of events) {
      assert.strictEqual(process.listenerCount(event), before.get(event), `listeners of ${event}`)
    }
  })
}
