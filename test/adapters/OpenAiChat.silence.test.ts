/**
 * Servers that cannot be reached, do not answer, or fall silent in the middle: how long they are waited for, and what is
 * said of them.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Stream from "effect/Stream"
import type { OpenAiChat } from "heddle/adapters"
import * as WaitingClock from "../support/clock.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const { body, finish, of, said } = Chunks

describe("a silent server", () => {
  it.effect("R-122: the error for an unreachable server names its address in one line", () =>
    Effect.gen(function*() {
      const url = yield* Server.unreachable
      const { error, events } = yield* Chunks.outcome(Chunks.stream(url, { retries: 0 }))
      assert.deepStrictEqual([events, error?.reason, error?.isRetryable], [[], "network_error", true])
      assert.strictEqual(
        error?.message,
        `adapter error (openai): network_error: cannot reach ${url}/v1/chat/completions: ` +
          `connect ECONNREFUSED ${url.replace("http://", "")}`
      )
    }))

  it.effect("R-122: the adapter refuses an invalid base URL, and the error does not show a password", () =>
    Effect.gen(function*() {
      const messageFor = (baseUrl: string) =>
        Effect.map(Chunks.outcome(Chunks.stream("", { baseUrl })), ({ error }) => `${error?.reason}: ${error?.detail}`)
      assert.match(yield* messageFor("localhost:11434/v1"), /^invalid_request: .*http:\/\/ or https:\/\//)
      assert.match(yield* messageFor("no url"), /^invalid_request: .*not a valid URL: no url/)
      const withPassword = yield* messageFor("http://me:hunter2@localhost/v1")
      assert.match(withPassword, /^invalid_request: .*must not hold a user/)
      assert.notInclude(withPassword, "hunter2")
    }))

  it.effect("W-12: the error for an unusable base URL omits its user, password and query", () =>
    Effect.gen(function*() {
      const urls = ["localhost:80/v1?key=", "ftp://me:@host/v1#", "http://host:99999/v1?key=", "me:secret@host?k="]
      for (const url of urls) {
        const { error } = yield* Chunks.outcome(
          Chunks.stream("", { baseUrl: `${url.replace("me:@", "me:hunter2@").replace("secret", "hunter2")}hunter2` })
        )
        assert.strictEqual(error?.reason, "invalid_request")
        assert.include(error?.detail, "host")
        assert.notInclude(String(error?.detail), "hunter2")
      }
    }))

  it.effect("R-122: the adapter tries three times to reach a server that does not answer in time, and then fails", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [], ending: "open" }))
      const silent = Stream.provideService(FetchHttpClient.Fetch, (_, init) =>
        new Promise((_resolve, reject) => {
          init?.signal?.addEventListener("abort", () => reject(new Error("aborted")))
        }))
      const clock = WaitingClock.make(() => true)
      const { error } = yield* Chunks.outcome(silent(Chunks.stream(server.url, { idleTimeout: "7 seconds" }))).pipe(
        WaitingClock.by(clock)
      )
      assert.deepStrictEqual([error?.reason, error?.detail], ["timeout", "the server did not answer within 7s"])
      assert.strictEqual(clock.waits.filter((millis) => millis === 7000).length, 3)
    })))

  it.effect("R-122: the answer head, the first bytes and later bytes have separate time limits", () =>
    Effect.scoped(Effect.gen(function*() {
      const limits: Partial<OpenAiChat.Options> = {
        retries: 0,
        connectTimeout: "2 minutes",
        firstChunkTimeout: "3 minutes",
        idleTimeout: "4 minutes"
      }
      /** What a server comes to that answers these pieces and then nothing. */
      const silentAfter = (pieces: ReadonlyArray<string>, millis: number) =>
        Effect.gen(function*() {
          const server = yield* Server.serve(() => ({ pieces, ending: "open" }))
          const clock = WaitingClock.make((wait) => wait === millis)
          const found = yield* WaitingClock.by(clock)(Chunks.outcome(Chunks.stream(server.url, limits)))
          return [found.error?.reason, found.error?.detail, clock.waits.filter((wait) => wait >= 120_000)]
        })
      assert.deepStrictEqual(yield* silentAfter([], 180_000), [
        "timeout",
        "the server was silent for 3m",
        [120_000, 180_000]
      ])
      assert.deepStrictEqual(yield* silentAfter([": a comment\n\n"], 240_000), [
        "timeout",
        "the server was silent for 4m",
        [120_000, 180_000, 240_000]
      ])
    })))

  it.effect("R-122: a server that falls silent inside a reply fails the reply; a socket left open after the end does not", () =>
    Effect.scoped(Effect.gen(function*() {
      const whole = body(said("a"), finish("stop"))
      const cut = body(said("a")).replace("data: [DONE]\n\n", "")
      const listen = (text: string, patience: number) =>
        Effect.gen(function*() {
          const server = yield* Server.serve(() => ({ pieces: [text], ending: "open" }))
          let hasSpoken = false
          const spoken = Stream.tap(
            Chunks.stream(server.url, { idleTimeout: "7 minutes" }),
            (event) =>
              Effect.sync(() => {
                hasSpoken ||= event._tag === "TextDelta"
              })
          )
          const clock = WaitingClock.make((millis) => hasSpoken && millis === patience)
          const found = yield* WaitingClock.by(clock)(Chunks.outcome(spoken))
          const { left } = yield* server.settled
          return [found.error?.reason, found.error?.detail, of(found.events, "MessageCompleted").length, left]
        })
      assert.deepStrictEqual(yield* listen(cut, 420_000), ["timeout", "the server was silent for 7m", 0, 1])
      assert.deepStrictEqual(yield* listen(whole, 1000), [undefined, undefined, 1, 1])
      assert.deepStrictEqual(yield* listen(whole.replace("data: [DONE]\n\n", ""), 10_000), [undefined, undefined, 1, 1])
      const broken = `${cut}data: {"error":{"message":"no","code":503}}\n\n`
      assert.deepStrictEqual(yield* listen(broken, 1000), ["provider_unavailable", "no", 0, 1])
    })))
})
