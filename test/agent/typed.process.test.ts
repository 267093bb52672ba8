/**
 * The agent in a terminal of its own, and what is typed while it works: delivered, left for the next turn, or refused.
 */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Agent from "../support/agent.ts"
import { agent, hasTerminals } from "../support/process.ts"
import * as Server from "../support/server.ts"
import { limit } from "../support/until.ts"

/** A chunk of a reply of Chat Completions. */
const chunk = (delta: object, finish: string | null = null) =>
  `data: ${JSON.stringify({ id: "x", choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`

const done = "data: [DONE]\n\n"
const says = (text: string) => ({ pieces: [chunk({ content: text }), chunk({}, "stop"), done] })

const lists = [
  chunk({ content: "I look" }),
  chunk({ tool_calls: [{ index: 0, id: "c0", function: { name: "list_files", arguments: "{}" } }] }),
  chunk({}, "tool_calls"),
  done
]

interface Said {
  readonly messages: ReadonlyArray<{ readonly role: string; readonly content: string }>
}

const usersOf = (body: unknown) =>
  (body as Said).messages.filter(({ role }) => role === "user").map(({ content }) => content)

describe.runIf(hasTerminals)("the agent in a terminal", { timeout: limit }, () => {
  layer(Agent.services, { excludeTestServices: true })((it) => {
    it.effect("main job: a line typed while the agent works is delivered in a later step, and the terminal shows its step", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(Agent.shop)
        const ended = yield* agent(["Where is the tax rate?", "--dir", root], {
          types: [[/> say something/, "Not t\u007fin src/billing.ts\r"]]
        })
        assert.strictEqual(ended.code, 0)
        assert.include(ended.stdout, "> Not in src/billing.t▏")
        assert.match(ended.stdout, /> Not in src\/billing\.ts · delivered in step [2-9]/)
        assert.match(ended.stdout, /src\/billing\.ts:3/)
        assert.match(ended.stdout, /Spent \d+ of 24 calls, [\d,]+ of 400,000 words/)
      }))

    it.effect("main job: the next start of a session delivers a line left by a stop, once", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(Agent.shop)
        const bodies: Array<unknown> = []
        const server = yield* Server.serve((request, index) => {
          bodies.push(request.body)
          return index === 0 ? { pieces: [chunk({ content: "I look\n" })], ending: "open" } : says("Done.")
        })
        const environment = { OPENAI_BASE_URL: `${server.url}/v1` }
        const kept = ["--dir", root, "--session", "s", "--sessions", root]
        const types = [[/I look/, "Not that\r"], [/waits for the next step/, "\u0003"]] as const
        const stopped = yield* agent(["first", ...kept], { environment, types })
        assert.strictEqual(stopped.code, 130)
        assert.include(stopped.stdout, "> Not that · left for the next turn")
        const next = yield* agent(kept, { environment })
        assert.deepStrictEqual([next.code, next.stderr], [0, ""])
        assert.deepStrictEqual(usersOf(bodies.at(-1)), ["first", "Not that"])
        yield* agent(["third", ...kept], { environment })
        assert.deepStrictEqual(usersOf(bodies.at(-1)), ["first", "Not that", "third"])
      }))

    it.effect("main job: without a session the agent refuses a line left by a stop", () =>
      Effect.gen(function*() {
        const server = yield* Server.serve(() => ({ pieces: [chunk({ content: "I look\n" })], ending: "open" }))
        const ended = yield* agent(["first", "--dir", yield* Agent.folder({})], {
          environment: { OPENAI_BASE_URL: `${server.url}/v1` },
          types: [[/I look/, "Not that\r"], [/waits for the next step/, "\u0003"]]
        })
        assert.strictEqual(ended.code, 130)
        assert.include(ended.stdout, "> Not that · refused: stopped")
      }))

    it.effect("main job: the next start delivers a line typed before a kill, once", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(Agent.shop)
        const bodies: Array<unknown> = []
        const server = yield* Server.serve((request, index) => {
          bodies.push(request.body)
          if (index === 0) return { pieces: [chunk({ content: "I look\n" })], ending: "open" }
          return index === 1 ? { pieces: lists } : says("Done.")
        })
        const environment = { OPENAI_BASE_URL: `${server.url}/v1` }
        const kept = ["--dir", root, "--session", "s", "--sessions", root]
        const types = [[/I look/, "Not that\r"]] as const
        yield* agent(["first", ...kept], { environment, types, killAt: /waits for the next step/ })
        const next = yield* agent(kept, { environment })
        assert.deepStrictEqual([next.code, next.stderr], [0, ""])
        assert.include(next.stdout, "> Not that · delivered in step 2")
        assert.deepStrictEqual(bodies.map(usersOf), [["first"], ["first"], ["first", "Not that"]])
      }))
  })
})
