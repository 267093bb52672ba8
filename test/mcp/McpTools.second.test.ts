/**
 * The second of everything that a client keeps: names, lists, connections, questions, progress and pages. Each is as the
 * first, and nothing of the first is left.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Message, ToolRunner } from "heddle"
import { McpTools } from "heddle/mcp"
import * as Backend from "../../src/mcp/internal/backend.ts"
import * as Servers from "../../src/mcp/internal/servers.ts"
import { until } from "../support/until.ts"
import { byHand } from "./support/byHand.ts"
import { Fake, said } from "./support/fake.ts"
import { ledger } from "./support/ledger.ts"

ledger()

const layerOf = (fake: Fake, options: McpTools.Options = {}, name = "shop") =>
  Servers.layerOf(name, fake.connect, { approval: "none", ...options })

const call = (name: string, id = "c0") => Message.toolCall(id, name, {})

const run = (name: string) =>
  Effect.flatMap(McpTools.tools, (tools) => ToolRunner.run([call(name)], tools, { approved: ["c0"] }))

const contentOf = ({ messages }: ToolRunner.Result) => String(messages[0]?.content)

const namesNow = Effect.map(McpTools.tools, (tools) => tools.map(({ name }) => name))

const quiet = Logger.layer([])

/** Lets what a connection does by itself be done. */
const settle = Effect.andThen(
  Effect.promise(() => new Promise<void>((resolve) => setImmediate(resolve))),
  McpTools.tools
)

describe("a tool name that another tool had", () => {
  it.effect("O-52: a tool name is free for another server's tool once its own tool is gone, a second and a third time", () => {
    const [shop, zoo] = [new Fake([{ name: "pay" }]), new Fake([{ name: "look" }])]
    return Effect.gen(function*() {
      assert.deepStrictEqual(yield* namesNow, ["pay", "look"])
      for (let round = 0; round < 2; round++) {
        shop.change([])
        zoo.change([{ name: "look" }, { name: "pay" }])
        assert.deepStrictEqual(yield* namesNow, ["look", "pay"])
        yield* run("pay")
        assert.lengthOf(zoo.requests, round + 1)
        // Back, it gets a name of its own: the other one keeps what it has.
        shop.change([{ name: "pay" }])
        assert.match((yield* namesNow)[0]!, /^pay_[0-9a-f]{8}$/)
        zoo.change([{ name: "look" }])
        shop.change([])
        yield* namesNow
        shop.change([{ name: "pay" }])
        assert.deepStrictEqual(yield* namesNow, ["pay", "look"])
      }
      assert.lengthOf(shop.requests, 0)
    }).pipe(Effect.provide([Layer.merge(layerOf(shop), layerOf(zoo, {}, "zoo")), quiet]))
  })

  it.effect("O-52: a tool name is kept no longer than its tool, whatever a server lists", () => {
    const fake = new Fake([{ name: "a" }])
    return Effect.gen(function*() {
      const { named } = yield* McpTools.McpTools
      for (let round = 0; round < 20; round++) {
        fake.change([{ name: `a${round}` }, { name: `b${round}` }])
        assert.lengthOf(yield* namesNow, 2)
        assert.strictEqual(named.size, 2)
      }
    }).pipe(Effect.provide(layerOf(fake)))
  })

  it.effect("O-52: servers of one name keep their own tools of one name, each with its own calls", () => {
    const fakes = [new Fake([{ name: "pay" }]), new Fake([{ name: "pay" }]), new Fake([{ name: "pay" }])]
    const [first, second, third] = fakes.map((fake) => layerOf(fake))
    return Effect.gen(function*() {
      const names = yield* namesNow
      assert.lengthOf(new Set(names), 3)
      for (const name of names) yield* run(name)
      assert.deepStrictEqual(fakes.map(({ requests }) => requests.length), [1, 1, 1])
      assert.deepStrictEqual(yield* namesNow, names)
    }).pipe(Effect.provide([Layer.mergeAll(first!, second!, third!), quiet]))
  })
})

describe("a tool list", () => {
  const counting = (fake: Fake) => {
    let lists = 0
    fake.listing = () => Effect.sync(() => void lists++)
    return { taken: () => lists }
  }

  it.effect("W-14: a connection lists its tools once, and once more after each change", () => {
    const fake = new Fake([{ name: "look" }])
    const { taken } = counting(fake)
    return Effect.gen(function*() {
      assert.strictEqual(taken(), 1)
      for (let round = 1; round <= 3; round++) {
        yield* Effect.exit(fake.lose)
        yield* run("look")
        assert.strictEqual(taken(), 2 * round)
        fake.change([{ name: "look", description: String(round) }])
        yield* settle
        assert.strictEqual(taken(), 2 * round + 1)
      }
    }).pipe(Effect.provide(layerOf(fake)))
  })

  it.effect("W-14: a list that changes while a connection opens is listed again, at the second opening, too, and then no more", () => {
    const fake = new Fake([{ name: "look" }])
    let isChanging = true
    let lists = 0
    fake.listing = () =>
      Effect.sync(() => {
        lists++
        if (isChanging) fake.listener?.changed()
        isChanging = false
      })
    return Effect.gen(function*() {
      yield* settle
      assert.strictEqual(lists, 2)
      yield* Effect.exit(fake.lose)
      yield* run("look")
      yield* settle
      assert.strictEqual(lists, 3)
      yield* Effect.exit(fake.lose)
      isChanging = true
      yield* run("look")
      yield* settle
      assert.strictEqual(lists, 5)
    }).pipe(Effect.provide(layerOf(fake)))
  })

  it.effect("W-14: a list that changed while it failed is listed once by the next connection", () => {
    const fake = new Fake([{ name: "look" }])
    return Effect.gen(function*() {
      for (let round = 0; round < 2; round++) {
        fake.listing = () =>
          Effect.suspend(() => {
            fake.listener?.changed()
            return Effect.fail(new Backend.Failure({ reason: "other", message: "not now" }))
          })
        fake.change([{ name: "look" }])
        yield* settle
        const { taken } = counting(fake)
        yield* run("look")
        yield* settle
        assert.strictEqual(taken(), 1)
      }
    }).pipe(Effect.provide([layerOf(fake), quiet]))
  })

  it.live("W-13: a list has the tools of all pages, and the left out tools of each page, at the second listing, too", () =>
    Effect.gen(function*() {
      const plain = { type: "object" }
      const pages = [
        { tools: [{ name: "one", inputSchema: plain }, { name: "odd", inputSchema: "none" }], nextCursor: "2" },
        { tools: [{ name: "two", inputSchema: plain }, { name: "odder", inputSchema: 7 }], nextCursor: "3" },
        { tools: [{ name: "three", inputSchema: plain }] }
      ]
      let asked = 0
      let hasFailed = false
      const url = yield* byHand((method, _, response, id) => {
        if (method === "tools/call" && !hasFailed) {
          hasFailed = true
          return 404
        }
        if (method !== "tools/list") return undefined
        const result = { resultType: "complete", ttlMs: 0, cacheScope: "private", ...pages[asked++ % pages.length] }
        response.writeHead(200, { "content-type": "application/json" })
        response.end(JSON.stringify({ jsonrpc: "2.0", id, result }))
        return "held"
      })
      yield* Effect.gen(function*() {
        for (let list = 1; list <= 2; list++) {
          assert.deepStrictEqual(yield* namesNow, ["one", "two", "three"])
          assert.deepStrictEqual((yield* McpTools.leftOut).map(({ name }) => name), ["odd", "odder"])
          assert.strictEqual(asked, 3 * list)
          yield* run("three")
        }
      }).pipe(Effect.provide(McpTools.layer({ url }, { approval: "none" })))
    }).pipe(Effect.scoped))
})

describe("a connection", () => {
  it.effect("W-14: a replaced connection that reports another loss or change does not affect its successor", () => {
    const fake = new Fake([{ name: "look" }])
    let lists = 0
    fake.listing = () => Effect.sync(() => void lists++)
    return Effect.gen(function*() {
      const first = fake.listener!
      yield* Effect.exit(fake.lose)
      yield* run("look")
      assert.deepStrictEqual([fake.opened, fake.closed, lists], [2, 1, 2])
      first.lost(new Backend.Failure({ reason: "lost", message: "again" }))
      first.changed()
      yield* settle
      assert.strictEqual(contentOf(yield* run("look")), "look was called")
      assert.deepStrictEqual([fake.opened, fake.closed, lists], [2, 1, 2])
    }).pipe(Effect.provide(layerOf(fake)))
  })

  it.effect("W-14: a connection is tried five times for each burst of calls, the second burst like the first", () => {
    const fake = new Fake([{ name: "look" }])
    return Effect.gen(function*() {
      const tools = yield* McpTools.tools
      yield* Effect.exit(fake.lose)
      for (let burst = 1; burst <= 3; burst++) {
        fake.refusals = 5
        const calls = ["a", "b"].map((id) => call("look", id))
        const running = yield* Effect.forkChild(ToolRunner.run(calls, tools))
        yield* Effect.whileLoop({
          while: () => running.pollUnsafe() === undefined,
          body: () => Effect.andThen(TestClock.adjust("200 millis"), Effect.promise(() => new Promise(setImmediate))),
          step: () => undefined
        })
        const { messages } = yield* Fiber.join(running)
        for (const { content } of messages) assert.include(String(content), "not reached")
        assert.deepStrictEqual([fake.opened, fake.refusals], [1 + 5 * burst, 0])
      }
      assert.strictEqual(contentOf(yield* run("look")), "look was called")
    }).pipe(Effect.provide(layerOf(fake)))
  })
})

describe("a call of an MCP tool", () => {
  it.effect("W-14: each call has ten answers for its server's questions, and only its own declined questions in its result", () => {
    const fake = new Fake([{ name: "pay" }])
    let elicited = 0
    const onElicit = () => Effect.sync(() => (elicited++, { action: "cancel" } as const))
    fake.answering = () =>
      Effect.forEach(Array.from({ length: 20 }), () => fake.listener!.elicit({ message: "?", schema: {} })).pipe(
        Effect.as(said("done"))
      )
    return Effect.gen(function*() {
      for (let round = 1; round <= 3; round++) {
        yield* Effect.provide(run("pay"), layerOf(fake, { onElicit }))
        assert.strictEqual(elicited, 10 * round)
      }
      yield* Effect.gen(function*() {
        for (let round = 0; round < 2; round++) {
          fake.answering = () => Effect.as(fake.listener!.elicit({ message: `round ${round}` }), said("done"))
          const content = contentOf(yield* run("pay"))
          assert.strictEqual(content.split("was declined").length, 2, content)
          assert.include(content, `round ${round}`)
        }
      }).pipe(Effect.provide(layerOf(fake)))
    })
  })

  it.effect("W-13: each round of a call carries the answers of the previous round only", () => {
    const fake = new Fake([{ name: "pay" }])
    const schema = { type: "object", properties: { n: { type: "integer" } } }
    fake.answering = ({ responses }) => {
      const round = fake.requests.length
      return Effect.succeed(
        round > 3
          ? said(JSON.stringify(responses))
          : {
            _tag: "Input",
            requests: { [`q${round}`]: { _tag: "Elicitation", message: `Question ${round}`, schema } },
            state: `s${round}`
          }
      )
    }
    let asked = 0
    const onElicit = () => Effect.sync(() => ({ action: "accept" as const, content: { n: ++asked } }))
    return Effect.gen(function*() {
      const content = contentOf(yield* run("pay"))
      assert.deepStrictEqual(JSON.parse(content), { q3: { action: "accept", content: { n: 3 } } })
      assert.deepStrictEqual(fake.requests.map(({ responses, state }) => [Object.keys(responses ?? {}), state]), [
        [[], undefined],
        [["q1"], "s1"],
        [["q2"], "s2"],
        [["q3"], "s3"]
      ])
    }).pipe(Effect.provide(layerOf(fake, { onElicit })))
  })

  it.effect("W-13: a call shows its own progress, and no progress after its result", () => {
    const fake = new Fake([{ name: "look" }])
    const reports: Array<(value: unknown) => void> = []
    fake.answering = (_, progress) =>
      Effect.suspend(() => {
        reports.push(progress)
        for (const [index, report] of reports.entries()) report({ progress: index })
        return Effect.as(Effect.yieldNow, said("done"))
      })
    return Effect.gen(function*() {
      const tools = yield* McpTools.tools
      for (let round = 0; round < 3; round++) {
        const events = yield* Stream.runCollect(ToolRunner.stream([call("look", `c${round}`)], tools))
        const shown = events.flatMap((event) => event._tag === "ToolProgress" ? [[event.id, event.progress]] : [])
        assert.deepStrictEqual(shown, [[`c${round}`, { progress: round }]])
      }
    }).pipe(Effect.provide(layerOf(fake)))
  })

  it.live("W-13: a call has its own progress token, and progress under an earlier call's token shows nothing", () =>
    Effect.gen(function*() {
      const tokens: Array<unknown> = []
      const url = yield* byHand(
        (method, _, response, id) => {
          if (method !== "tools/call") return undefined
          const messages = tokens.map((progressToken, index) => ({
            jsonrpc: "2.0",
            method: "notifications/progress",
            params: { progressToken, progress: index }
          }))
          const result = { resultType: "complete", content: [{ type: "text", text: "done" }] }
          response.writeHead(200, { "content-type": "text/event-stream" })
          for (const message of messages) response.write(`data: ${JSON.stringify(message)}\n\n`)
          setImmediate(() => response.end(`data: ${JSON.stringify({ jsonrpc: "2.0", id, result })}\n\n`))
          return "held"
        },
        "application/json",
        [{ name: "look", inputSchema: { type: "object" } }],
        ({ method, params }) => {
          if (method === "tools/call") tokens.push(params._meta.progressToken)
        }
      )
      yield* Effect.gen(function*() {
        const tools = yield* McpTools.tools
        for (let round = 0; round < 3; round++) {
          const events = yield* Stream.runCollect(ToolRunner.stream([call("look")], tools))
          const shown = events.flatMap((event) => event._tag === "ToolProgress" ? [event.progress] : [])
          assert.deepStrictEqual(shown, [{ progress: round }])
        }
        assert.lengthOf(new Set(tokens), 3)
        yield* until("the calls", Effect.sync(() => tokens.length), (count) => count === 3)
      }).pipe(Effect.provide(McpTools.layer({ url }, { approval: "none" })))
    }).pipe(Effect.scoped))
})
