/**
 * Every way in which a request to a server can end, over up to three attempts, for tools that may be called again and for
 * those that may not: what the run says of the call agrees with what the server had.
 */
import { assert, describe, expect, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as TestClock from "effect/testing/TestClock"
import { Message, ToolRunner } from "heddle"
import { McpTools } from "heddle/mcp"
import type { ServerResponse } from "node:http"
import * as Backend from "../../src/mcp/internal/backend.ts"
import * as Servers from "../../src/mcp/internal/servers.ts"
import { until } from "../support/until.ts"
import { byHand } from "./support/byHand.ts"
import { type Definition, Fake, said } from "./support/fake.ts"
import { ledger } from "./support/ledger.ts"

ledger()

const pay: Definition = { name: "pay" }

const calls = [Message.toolCall("c0", "pay", {})]

/** What a run says of a call. `unknown`: it may have had its effect. */
const saidOf = ({ messages: [message] }: ToolRunner.Result): string => {
  const content = String(message?.content)
  const found = ["unknown_effect", "denied", "cancelled", "timed out"].find((word) => content.includes(word))
  if (message?.isError !== true) return "result"
  return found === "unknown_effect" ? "unknown" : found ?? "failure"
}

/**
 * The ways in which an attempt ends. `has`: the server had the call; `repeats`: the attempt is followed by another one,
 * in any case or for idempotent tools; `says`: what the run says after it, unless an earlier attempt is in doubt.
 */
interface Way {
  readonly has: boolean
  readonly repeats?: "always" | "idempotent"
  readonly says: "result" | "failure" | "unknown" | "denied"
}

/** What a row of the table expects: what the run says, and the number of calls that the server had. */
const expectedOf = (ways: ReadonlyArray<Way>, isIdempotent: boolean) => {
  let had = 0
  let isInDoubt = false
  let said: string = ""
  for (const { has, repeats, says } of ways.slice(0, 3)) {
    if (has) had++
    isInDoubt ||= says === "unknown"
    // The answer of an attempt is that of the call. Anything else tells nothing of an attempt before it.
    said = has && (says === "result" || says === "failure") ? says : isInDoubt ? "unknown" : says
    if (repeats !== "always" && !(repeats === "idempotent" && isIdempotent)) break
  }
  return { said, had }
}

describe("attempts behind the backend", () => {
  const failure = (reason: Backend.Failure["reason"], code?: number) =>
    Effect.fail(new Backend.Failure({ reason, message: `was ${reason}`, code }))

  const ways = {
    answered: { has: true, says: "result" },
    "error answered": { has: true, says: "failure" },
    "refused by the protocol": { has: false, says: "failure" },
    "refused otherwise": { has: false, says: "failure" },
    "connection lost after sending": { has: true, repeats: "idempotent", says: "unknown" },
    unanswered: { has: true, repeats: "idempotent", says: "unknown" },
    "connection lost before sending": { has: false, repeats: "always", says: "failure" },
    "not reached": { has: false, says: "failure" },
    "another tool by then": { has: false, says: "denied" },
    "no tool by then": { has: false, says: "denied" }
  } satisfies Record<string, Way>
  type Name = keyof typeof ways
  const names = Object.keys(ways) as ReadonlyArray<Name>

  /** Runs a call whose attempts end in these ways, at a server that counts the calls that it had. */
  const played = (sequence: ReadonlyArray<Name>, isIdempotent: boolean) => {
    const fake = new Fake([pay])
    const had: Array<Name> = []
    let attempt = 0
    const failed: Effect.Effect<Backend.Response, Backend.Failure> = Effect.succeed(
      { ...said("no"), isError: true } as never
    )
    const answers: Record<Name, Effect.Effect<Backend.Response, Backend.Failure>> = {
      answered: Effect.succeed(said("paid")),
      "error answered": failed,
      "refused by the protocol": failure("rpc", -32602),
      "refused otherwise": failure("other"),
      "connection lost after sending": Effect.suspend(() => fake.lose),
      unanswered: failure("unanswered"),
      "connection lost before sending": failure("unsent"),
      "not reached": Effect.die("was sent"),
      "another tool by then": Effect.die("was sent"),
      "no tool by then": Effect.die("was sent")
    }
    /** Has the next attempt end in its way, which may begin before it is sent. */
    const prepare = Effect.suspend(() => {
      const way = sequence[attempt]
      if (way === "not reached") {
        fake.refusals = 5
        return Effect.exit(fake.lose)
      }
      if (way === "another tool by then" || way === "no tool by then") {
        fake.change(way === "no tool by then" ? [] : [{ ...pay, description: "Pays me" }])
      }
      return Effect.void
    })
    fake.answering = () =>
      Effect.suspend(() => {
        const way = sequence[attempt++]!
        if (ways[way].has) had.push(way)
        return Effect.ensuring(answers[way], prepare)
      })
    return Effect.gen(function*() {
      const tools = yield* McpTools.tools
      // The first attempt is past the check of its run, as each later one is.
      const [tool] = tools
      const authorize = () => Effect.as(prepare, true)
      const running = yield* Effect.forkChild(
        ToolRunner.run(calls, [{ ...tool!, authorize } as typeof tool & {}], {
          approved: ["c0"],
          toolTimeout: "infinity"
        })
      )
      yield* Effect.whileLoop({
        while: () => running.pollUnsafe() === undefined,
        body: () =>
          Effect.andThen(
            TestClock.adjust("1 second"),
            Effect.callback<void>((resume) => void setImmediate(() => resume(Effect.void)))
          ),
        step: () => undefined
      })
      return { said: saidOf(yield* Fiber.join(running)), had: had.length }
    }).pipe(Effect.provide(Servers.layerOf("shop", fake.connect, { trust: { pay: { idempotent: isIdempotent } } })))
  }

  const rows = [false, true].flatMap((isIdempotent) => {
    const of = (before: ReadonlyArray<Name>): ReadonlyArray<ReadonlyArray<Name>> => {
      const isOver = before.length === 3 || before.length > 0 && !mayRepeat(before.at(-1)!, isIdempotent)
      return isOver ? [before] : names.flatMap((name) => of([...before, name]))
    }
    return of([]).map((sequence) => ({ isIdempotent, sequence }))
  })

  function mayRepeat(name: Name, isIdempotent: boolean): boolean {
    const { repeats }: Way = ways[name]
    return repeats === "always" || repeats === "idempotent" && isIdempotent
  }

  for (const isIdempotent of [false, true]) {
    it.effect(`W-14: every sequence of up to three attempts ends as the attempts table says, ${isIdempotent ? "" : "not "}idempotent`, () =>
      Effect.gen(function*() {
        const lines: Array<string> = []
        for (const { sequence } of rows.filter((row) => row.isIdempotent === isIdempotent)) {
          const found = yield* played(sequence, isIdempotent)
          const what = sequence.join(", then ")
          lines.push(`${what}: ${found.said}, the server had ${found.had}`)
          assert.deepStrictEqual(found, expectedOf(sequence.map((name) => ways[name]), isIdempotent), what)
          // A call that the server has not had is never in doubt.
          if (found.had === 0) assert.notInclude(["unknown", "result"], found.said, what)
        }
        const file = `../fixtures/mcpAttempts${isIdempotent ? "Idempotent" : ""}.txt`
        yield* Effect.promise(() => expect(`${lines.join("\n")}\n`).toMatchFileSnapshot(file))
      }))
  }
})

describe("attempts over HTTP", () => {
  type Answer = (response: ServerResponse, id: unknown) => number | "held" | undefined
  const raw = (status: number, type: string, text: string): Answer => (response) => {
    response.writeHead(status, type === "" ? {} : { "content-type": type })
    response.end(text)
    return "held"
  }
  const json = (of: (id: unknown) => unknown, status = 200): Answer => (response, id) =>
    raw(status, "application/json", JSON.stringify(of(id)))(response, id)
  const stream = (text: string): Answer => raw(200, "text/event-stream", text)
  const cut = (head: number | undefined, type: string): Answer => (response) => {
    if (head !== undefined) {
      response.writeHead(head, { "content-type": type })
      response.write(type === "text/event-stream" ? ": here\n\n" : "{\"jsonrpc\":")
      response.flushHeaders()
    }
    setImmediate(() => response.destroy())
    return "held"
  }
  const rpc = (id: unknown) => ({ jsonrpc: "2.0", id, error: { code: -32602, message: "not so" } })

  const doubt = { has: true, repeats: "idempotent", says: "unknown" } as const
  const refused = { has: false, says: "failure" } as const
  const ways: Record<string, Way & { readonly answer: Answer }> = {
    answered: { has: true, says: "result", answer: () => undefined },
    "error answered": {
      has: true,
      says: "failure",
      answer: json((id) => ({
        jsonrpc: "2.0",
        id,
        result: { resultType: "complete", content: [{ type: "text", text: "no" }], isError: true }
      }))
    },
    "an error of the protocol": { ...refused, answer: json(rpc) },
    "an error of the protocol in a stream": {
      ...refused,
      answer: (response, id) => stream(`data: ${JSON.stringify(rpc(id))}\n\n`)(response, id)
    },
    "an error of the protocol, 400": { ...refused, answer: json(rpc, 400) },
    "400": { ...refused, answer: raw(400, "text/plain", "no") },
    "401": { ...refused, answer: raw(401, "text/plain", "no") },
    "403": { ...refused, answer: raw(403, "text/plain", "no") },
    "413": { ...refused, answer: raw(413, "text/plain", "no") },
    "429": { ...refused, answer: raw(429, "text/plain", "no") },
    "404, a session that is lost": { has: false, repeats: "always", says: "failure", answer: () => 404 },
    "500": { ...doubt, answer: raw(500, "text/plain", "oh") },
    "502 of a proxy": { ...doubt, answer: raw(502, "text/html", "<html>") },
    "503": { ...doubt, answer: raw(503, "text/plain", "oh") },
    "504 of a proxy": { ...doubt, answer: raw(504, "text/html", "<html>") },
    "bad JSON": { ...doubt, answer: raw(200, "application/json", "{\"jsonrpc\":") },
    "no JSON at all": { ...doubt, answer: raw(200, "application/json", "") },
    "JSON of nothing": { ...doubt, answer: json(() => ({})) },
    "a result that is none": { ...doubt, answer: json((id) => ({ jsonrpc: "2.0", id, result: 5 })) },
    "a result of another kind": {
      ...doubt,
      answer: json((id) => ({ jsonrpc: "2.0", id, result: { resultType: "odd" } }))
    },
    "the answer of another request": {
      ...doubt,
      answer: json((id) => ({
        jsonrpc: "2.0",
        id: Number(id) + 1_000,
        result: { resultType: "complete", content: [] }
      }))
    },
    "a page": { ...doubt, answer: raw(200, "text/html", "<html>") },
    "no type": { ...doubt, answer: raw(200, "", "") },
    "202 and nothing": { ...doubt, answer: raw(202, "", "") },
    "204 and nothing": { ...doubt, answer: raw(204, "", "") },
    "a stream without an answer": { ...doubt, answer: stream(": here\n\n") },
    "a stream of bad JSON": { ...doubt, answer: stream("data: {\"jsonrpc\":\n\n") },
    "connection lost before the answer": { ...doubt, answer: cut(undefined, "") },
    "connection lost within the answer": { ...doubt, answer: cut(200, "application/json") },
    "connection lost within the stream": { ...doubt, answer: cut(200, "text/event-stream") }
  }

  for (const era of ["modern", "legacy"] as const) {
    for (const [name, way] of Object.entries(ways)) {
      // The older protocol has one kind of result, all of whose members may be left out.
      if (era === "legacy" && name === "a result of another kind") continue
      it.live(`W-14: repeated attempts over HTTP end as the attempts table says: ${name} (${era})`, () =>
        Effect.gen(function*() {
          let left = 0
          let sent = 0
          const url = yield* byHand(
            (method, request, response, id) => {
              if (era === "legacy" && method === "server/discover") return 404
              if (request.method !== "POST" || method.startsWith("notifications/")) {
                return request.method === "POST"
                  ? 202
                  : 405
              }
              if (method !== "tools/call") return undefined
              sent++
              return left-- > 0 ? way.answer(response, id) : undefined
            },
            "application/json",
            [{ name: "pay", inputSchema: { type: "object" } }]
          )
          for (const isIdempotent of [false, true]) {
            const layer = McpTools.layer({ url }, { trust: { pay: { idempotent: isIdempotent } } })
            yield* Effect.gen(function*() {
              const tools = yield* McpTools.tools
              for (const count of [1, 2, 3]) {
                left = count
                sent = 0
                const sequence = [...Array.from({ length: count }, () => way), ways["answered"]!]
                const expected = expectedOf(sequence, isIdempotent)
                const tried = expectedOf(sequence.map((way) => ({ ...way, has: true })), isIdempotent).had
                const result = yield* ToolRunner.run(calls, tools, { approved: ["c0"], toolTimeout: "10 seconds" })
                const what = `${name} ${count} times, ${isIdempotent ? "" : "not "}idempotent`
                assert.deepStrictEqual(
                  [saidOf(result), sent],
                  [expected.said, tried],
                  `${what}: ${String(result.messages[0]?.content)}`
                )
                // A call behind it is as one alone.
                left = 0
                assert.strictEqual(saidOf(yield* ToolRunner.run(calls, tools, { approved: ["c0"] })), "result", what)
              }
            }).pipe(Effect.provide(layer))
          }
        }).pipe(Effect.scoped))
    }
  }

  it.live("W-14: a timeout and an interruption each stop a held call over HTTP, and the next call has its answer", () =>
    Effect.gen(function*() {
      const held: Array<ServerResponse> = []
      let isHeld = true
      const url = yield* byHand(
        (method, _, response) => {
          if (method !== "tools/call" || !isHeld) return undefined
          held.push(response)
          return "held"
        },
        "application/json",
        [{ name: "pay", inputSchema: { type: "object" } }]
      )
      yield* Effect.gen(function*() {
        const tools = yield* McpTools.tools
        const run = (toolTimeout: "50 millis" | "infinity") =>
          ToolRunner.run(calls, tools, { approved: ["c0"], toolTimeout })
        for (let round = 1; round <= 2; round++) {
          isHeld = true
          assert.strictEqual(saidOf(yield* run("50 millis")), "timed out")
          const running = yield* Effect.forkChild(run("infinity"))
          yield* until("the call", Effect.sync(() => held.length), (count) => count === 2 * round)
          yield* Fiber.interrupt(running)
          isHeld = false
          assert.strictEqual(saidOf(yield* run("infinity")), "result")
        }
        // The server sees each stop as the end of its response.
        yield* until(
          "the ends",
          Effect.sync(() => held.filter(({ destroyed }) => destroyed).length),
          (count) => count === 4
        )
      }).pipe(Effect.provide(McpTools.layer({ url }, { trust: { pay: { idempotent: true } } })))
    }).pipe(Effect.scoped))
})
