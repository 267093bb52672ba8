/** A server that is killed, and one that is asked to leave: real processes, real signals, a real client. */
import { assert, describe, it } from "@effect/vitest"
import { readUIMessageStream } from "ai"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { spawn } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { eventsOf, type Site, siteAt, textsIn } from "./support/site.ts"

const program = fileURLToPath(new URL("./support/serving.ts", import.meta.url))

const folder: Effect.Effect<string, never, Scope.Scope> = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-server-"))),
  (folder) => Effect.sync(() => fs.rmSync(folder, { recursive: true, force: true }))
)

interface Serving {
  readonly site: Site
  readonly signal: (signal: NodeJS.Signals) => void
  readonly ended: Effect.Effect<number | null>
}

/** Starts a server, which is killed with the scope, and waits until it listens. */
const start = (place: string): Effect.Effect<Serving, never, Scope.Scope> =>
  Effect.gen(function*() {
    const child = yield* Effect.acquireRelease(
      Effect.sync(() =>
        spawn(process.execPath, ["--conditions=source", program, place], { stdio: ["ignore", "pipe", "inherit"] })
      ),
      (child) => Effect.sync(() => child.kill("SIGKILL"))
    )
    const ended = new Promise<number | null>((resolve) => child.on("exit", resolve))
    const url = yield* Effect.promise(() => new Promise<string>((resolve) => child.stdout.once("data", resolve)))
    return {
      site: siteAt(String(url).trim()),
      signal: (signal) => void child.kill(signal),
      ended: Effect.promise(() => ended)
    }
  })

const at = "/agents/helper/sessions/s1"

const logOf = (place: string) => fs.readFileSync(path.join(place, "log"), "utf8").trim().split("\n")

describe("kills", () => {
  for (const isReplaced of [true, false]) {
    it.live(
      `W-07: killed in a run, ${
        isReplaced ? "a new process" : "another process that runs already"
      } resumes it: each word once, no call twice`,
      () =>
        Effect.gen(function*() {
          const place = yield* folder
          const first = yield* start(place)
          const early = isReplaced ? undefined : yield* start(place)
          const reader = yield* Effect.promise(() => first.site.open("POST", `${at}/messages`, { content: "Go" }))
          // A call that is killed before its handler acts is unknown as well, and is not made again.
          yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ToolResultEncoded" && data.id === "c0"))
          const sent = yield* Effect.promise(() =>
            reader.until(({ data }) => data._tag === "ToolExecutionStarted" && data.name === "hold")
          )
          const last = sent.findLast(({ id }) => id !== undefined)?.id ?? ""
          first.signal("SIGKILL")
          yield* first.ended
          const second = early ?? (yield* start(place))
          const page = yield* Effect.promise(() =>
            second.site.open("GET", `${at}/events`, undefined, { "last-event-id": last })
          )
          const stream = yield* Effect.promise(() => fetch(`${second.site.url}${at}/stream`))
          fs.writeFileSync(path.join(place, "go"), "")
          const resumed = yield* Effect.promise(() => page.until(({ data }) => data._tag === "ChatCompleted"))
          page.leave()
          assert.strictEqual(resumed[0]?.event, "reset")
          const from = resumed.findLastIndex(({ event }) => event === "reset")
          const texts = textsIn(eventsOf(resumed.slice(from)))
          assert.deepStrictEqual(texts, ["one two ", "three four "])
          // The client of the AI SDK reads the rest of the run as one message.
          const chunks = stream.body!.pipeThrough(new TextDecoderStream()).pipeThrough(linesOf())
          const message: { readonly parts: ReadonlyArray<any> } | undefined = yield* Effect.promise(() =>
            lastOf(chunks)
          )
          const words = message?.parts.filter(({ type }) => type === "text").map(({ text }) => text)
          assert.deepStrictEqual(words, ["one two ", "three four "])
          assert.deepStrictEqual(logOf(place).filter((line) => line === "charge"), ["charge"])
        }),
      { timeout: 180_000 }
    )
  }

  it.live(
    "W-20: a server that is asked to leave in a run hands it over, ends, and the session is whole",
    () =>
      Effect.gen(function*() {
        const place = yield* folder
        const first = yield* start(place)
        const second = yield* start(place)
        const reader = yield* Effect.promise(() => first.site.open("POST", `${at}/messages`, { content: "Go" }))
        yield* Effect.promise(() =>
          reader.until(({ data }) => data._tag === "ToolExecutionStarted" && data.name === "hold")
        )
        const page = yield* Effect.promise(() => second.site.open("GET", `${at}/events`))
        first.signal("SIGTERM")
        fs.writeFileSync(path.join(place, "go"), "")
        const sent = yield* Effect.promise(() => page.until(({ data }) => data._tag === "ChatCompleted"))
        page.leave()
        assert.strictEqual(sent.at(-1)?.data.outcome._tag, "Completed")
        assert.include([0, 130, 143], yield* first.ended)
        const session = yield* Effect.promise(() => second.site.ask("GET", at))
        assert.strictEqual(JSON.parse(session.text).status, "completed")
        assert.deepStrictEqual(logOf(place), ["charge", "hold"])
      }),
    { timeout: 180_000 }
  )
})

/** Reads the chunks of a response of UI messages. */
const linesOf = () => {
  let rest = ""
  return new TransformStream<string, any>({
    transform: (text, controller) => {
      rest += text
      const pieces = rest.split("\n\n")
      rest = pieces.pop() ?? ""
      for (const piece of pieces) {
        const data = piece.startsWith("data: ") ? piece.slice(6) : "[DONE]"
        if (data !== "[DONE]") controller.enqueue(JSON.parse(data))
      }
    }
  })
}

const lastOf = async (chunks: ReadableStream<any>) => {
  let last
  for await (const message of readUIMessageStream({ stream: chunks, terminateOnError: true })) last = message
  return last
}
