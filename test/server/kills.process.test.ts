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
import { freePort } from "../cluster/support/processes.ts"
import * as Postgres from "../support/postgres.ts"
import { find, until } from "../support/until.ts"
import { eventsOf, type Reader, type Site, siteAt, textsIn } from "./support/site.ts"

const program = fileURLToPath(new URL("./support/serving.ts", import.meta.url))

const folder: Effect.Effect<string, never, Scope.Scope> = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-server-"))),
  (folder) => Effect.sync(() => fs.rmSync(folder, { recursive: true, force: true }))
)

interface Serving {
  readonly site: Site
  readonly pid: number
  readonly signal: (signal: NodeJS.Signals) => void
  readonly ended: Effect.Effect<number | null>
}

/** Starts a server, which is killed with the scope, and waits until it listens. */
const start = (place: string, ...cluster: ReadonlyArray<string>): Effect.Effect<Serving, never, Scope.Scope> =>
  Effect.gen(function*() {
    const child = yield* Effect.acquireRelease(
      Effect.sync(() =>
        spawn(process.execPath, ["--conditions=source", program, place, ...cluster], {
          stdio: ["ignore", "pipe", "inherit"]
        })
      ),
      (child) => Effect.sync(() => child.kill("SIGKILL"))
    )
    const ended = new Promise<number | null>((resolve) => child.on("exit", resolve))
    const url = yield* Effect.promise(() => new Promise<string>((resolve) => child.stdout.once("data", resolve)))
    return {
      site: siteAt(String(url).trim()),
      pid: child.pid ?? 0,
      signal: (signal) => void child.kill(signal),
      ended: Effect.promise(() => ended)
    }
  })

const at = "/agents/helper/sessions/s1"

const logOf = (place: string) => fs.readFileSync(path.join(place, "log"), "utf8").trim().split("\n")

/** Waits until a reader has the answer of the call that charges, and the one that waits for a file has begun. */
const held = (place: string, reader: Reader) =>
  Effect.andThen(
    Effect.promise(() => reader.until(({ data }) => data._tag === "ToolResultEncoded")),
    Effect.as(until("the call", Effect.sync(() => logOf(place)), (lines) => lines.includes("hold")), reader.sent)
  )

describe("killed servers", () => {
  for (const isReplaced of [true, false]) {
    it.live(
      `W-07: ${
        isReplaced ? "a new process" : "another running process"
      } resumes the run of a killed server, with each word once and no call twice`,
      () =>
        Effect.gen(function*() {
          const place = yield* folder
          const first = yield* start(place)
          const early = isReplaced ? undefined : yield* start(place)
          const reader = yield* Effect.promise(() => first.site.open("POST", `${at}/messages`, { content: "Go" }))
          const sent = yield* held(place, reader)
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

  for (const signal of ["SIGKILL", "SIGTERM"] as const) {
    it.live(
      `W-07: when a cluster owner gets a ${signal} in a run, readers elsewhere continue and have each word once`,
      () =>
        Effect.gen(function*() {
          const place = yield* folder
          const database = yield* Postgres.database
          const starting = Effect.flatMap(freePort, (port) => start(place, database, `${port}`))
          const [asked, ...others] = yield* Effect.all([starting, starting, starting], { concurrency: "unbounded" })
          const post = (at: string, content: string) =>
            Effect.promise(() => asked.site.open("POST", `${at}/messages`, { content }))
          let count = 0
          // The first sessions may come before each process has its shards. A minute has room for 60 of them.
          const elsewhere = Effect.gen(function*() {
            const at = `/agents/helper/sessions/s${count++}`
            const sent = yield* Effect.flatMap(post(at, "Who?"), (reader) => Effect.promise(reader.end))
            const pid = Number(textsIn(eventsOf(sent)).at(-1))
            const owner = others.find((other) => other.pid === pid)
            return owner && { owner, at }
          })
          const { at, owner } = yield* find("a session of another process", Effect.delay(elsewhere, 1_000))
          const writer = yield* post(at, "Go")
          yield* held(place, writer)
          const reader = yield* Effect.promise(() => asked.site.open("GET", `${at}/events`))
          yield* held(place, reader)
          const from = Date.now()
          owner.signal(signal)
          if (signal === "SIGKILL") yield* owner.ended
          fs.writeFileSync(path.join(place, "go"), "")
          for (const each of [writer, reader]) {
            const sent = yield* Effect.promise(() => each.until(({ data }) => data._tag === "ChatCompleted"))
            console.log(`${signal}: read on after ${Date.now() - from} ms`)
            const since = sent.findLastIndex(({ event }) => event === "reset")
            assert.deepStrictEqual(textsIn(eventsOf(sent.slice(since + 1))), ["one two ", "three four "])
            each.leave()
          }
          assert.deepStrictEqual(logOf(place).filter((line) => line === "charge"), ["charge"])
          yield* owner.ended
          console.log(`${signal}: gone after ${Date.now() - from} ms`)
        }),
      { timeout: 180_000 }
    )
  }

  it.live(
    "W-20: a server that is asked to leave in a run hands the run over and ends, and the session is complete",
    () =>
      Effect.gen(function*() {
        const place = yield* folder
        const first = yield* start(place)
        const second = yield* start(place)
        const reader = yield* Effect.promise(() => first.site.open("POST", `${at}/messages`, { content: "Go" }))
        yield* held(place, reader)
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
