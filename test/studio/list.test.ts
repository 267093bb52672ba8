/** Studio's list of sessions over a client of the test: which pages a reading asks for. */
import { assert, describe, it } from "@effect/vitest"
import { vi } from "vitest"
import type * as Client from "../../src/studio/data/client.ts"
import { List } from "../../src/studio/data/list.ts"

const perPage = 2

/** A client of a server with many sessions for each query, which notes the pages that it was asked for. */
const clientOf = (asked: Array<string>) =>
  ({
    list: async (_agent: string, { next = "0", query }: { readonly query: string; readonly next?: string }) => {
      asked.push(`${query}:${next}`)
      const from = Number(next) * perPage
      const sessions = Array.from({ length: perPage }, (_, index) => ({ id: `${query}${from + index}` }))
      return { sessions, next: String(Number(next) + 1) }
    }
  }) as unknown as Client.Client

describe("a list of sessions", () => {
  it("a new search reads the first page alone, whatever was read before, and each further page on request", async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] })
    try {
      const asked: Array<string> = []
      const list = new List(clientOf(asked), "helper")
      const read = async (change: () => void) => {
        asked.length = 0
        change()
        await vi.advanceTimersByTimeAsync(1_000)
        return [asked.slice(), list.read().sessions.length] as const
      }
      assert.deepStrictEqual(await read(list.refresh), [[":0"], perPage])
      assert.deepStrictEqual(await read(list.more), [[":0", ":1"], 2 * perPage])
      assert.deepStrictEqual(await read(list.more), [[":0", ":1", ":2"], 3 * perPage])
      assert.deepStrictEqual(await read(() => list.search("tea")), [["tea:0"], perPage])
      assert.deepInclude(list.read(), { query: "tea", found: "tea", hasMore: true, isRead: true })
      assert.deepStrictEqual(await read(list.more), [["tea:0", "tea:1"], 2 * perPage])
    } finally {
      vi.useRealTimers()
    }
  })
})
