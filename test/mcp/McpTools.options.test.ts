/** Options of the tools of a server, all of them together: each does what it does alone. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import { Message, Session, ToolRunner } from "heddle"
import { McpServer, McpTools } from "heddle/mcp"
import { Script } from "heddle/testing"
import type * as Backend from "../../src/mcp/internal/backend.ts"
import * as Servers from "../../src/mcp/internal/servers.ts"
import { type Definition, Fake, said } from "./support/fake.ts"
import { ledger } from "./support/ledger.ts"

ledger()

const definition: Definition = {
  name: "look.up",
  description: "Looks",
  annotations: { readOnlyHint: false, destructiveHint: false, idempotentHint: true, openWorldHint: false }
}

const other: Definition = { name: "other" }

const asks: Backend.Elicitation = {
  message: "Which?",
  schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] }
}

const prefixes = ["", "fs_"]
const trusts = {
  none: undefined,
  annotations: "annotations",
  "the annotations of it": { "look.up": "annotations" },
  "hints of it": { "look.up": { readOnly: true } },
  "hints of another": { other: { readOnly: true } }
} satisfies Record<string, McpTools.Options["trust"]>
const approvals = {
  destructive: "destructive",
  all: "all",
  none: "none",
  "by a function": ({ destructive }) => destructive
} satisfies Record<string, McpTools.Options["approval"]>

/** What the tool is under options, as the documentation has it. */
const expectedOf = (
  { approval, isChanged, prefix, trust }: {
    readonly prefix: string
    readonly trust: keyof typeof trusts
    readonly approval: keyof typeof approvals
    readonly isChanged: boolean
  }
) => {
  const isServers = !isChanged && (trust === "annotations" || trust === "the annotations of it")
  const isOwn = !isChanged && trust === "hints of it"
  const destructive = !isServers && !isOwn
  return {
    name: `${prefix}look_up`,
    readOnly: isOwn,
    destructive,
    idempotent: isServers,
    openWorld: !isServers,
    waits: { destructive: !isOwn, all: true, none: isChanged, "by a function": destructive }[approval]
  }
}

describe("a wrong value of an option", () => {
  const right = { name: "x", command: "x" }
  const wrongOptions: Record<string, ReadonlyArray<unknown>> = {
    prefix: [1, null, {}],
    trust: ["anotations", true, null, ["look"], { look: true }, { look: "all" }, { look: { readonly: true } }, {
      look: { readOnly: "yes" }
    }, { look: { hash: 1 } }],
    approval: ["al", true, null, {}, ["all"]],
    onElicit: ["decline", true, {}],
    onSample: [{}, "m"],
    roots: ["file:///a", {}, [{}], [null], [{ uri: 1 }], [{ uri: "https://a.example" }]],
    propagate: ["yes", 1, null],
    maxMessageBytes: [0, -1, 1.5, NaN, "9", null]
  }

  for (const [name, values] of Object.entries(wrongOptions)) {
    it(`O-11: a wrong ${name} is a defect that names the option`, () => {
      for (const value of values) {
        const make = () => McpTools.layer(right, { [name]: value } as McpTools.Options)
        assert.throws(
          make,
          new RegExp(`McpTools\\.layer: ${name}.* must be|${name} of McpTools\\.layer has no option`),
          JSON.stringify(value)
        )
      }
    })
  }

  it("O-11: a wrong option of an MCP server is a defect that names the option", () => {
    const servers: ReadonlyArray<readonly [server: object, name: string]> = [
      [{ name: "x", comand: "x" }, "command"],
      [{ name: "x" }, "command"],
      [{ command: "x" }, "name"],
      [{ ...right, args: "--all" }, "args"],
      [{ ...right, env: { KEY: 1 } }, "env"],
      [{ ...right, cwd: 1 }, "cwd"],
      [{ url: "no address" }, "url"],
      [{ url: "https://a.example", headers: ["a"] }, "headers"],
      [{ url: "https://a.example", header: {} }, "headers"]
    ]
    for (const [server, name] of servers) {
      assert.throws(() => McpTools.layer(server as McpTools.HttpServer), new RegExp(name), JSON.stringify(server))
    }
  })

  it("O-11: a wrong option of McpServer.routes is a defect that names the option", () => {
    const wrong = { tools: "add", name: 1, version: 1, instructions: {}, legacy: "yes" }
    for (const [name, value] of Object.entries(wrong)) {
      const make = () => McpServer.routes({ [name]: value } as never)
      assert.throws(make, new RegExp(`McpServer\\.routes: ${name} must be`))
    }
  })
})

describe("W-13: a tool that trust names, and that the server does not list", () => {
  const listed = (...names: ReadonlyArray<string>) => names.map((name) => ({ name, description: name }))
  const opening = (fake: Fake, trust: NonNullable<McpTools.Options["trust"]>, options: McpTools.Options = {}) =>
    Effect.result(Effect.provide(McpTools.tools, Servers.layerOf("shop", fake.connect, { ...options, trust })))
  const refusal = (fake: Fake, trust: NonNullable<McpTools.Options["trust"]>, options: McpTools.Options = {}) =>
    Effect.map(opening(fake, trust, options), (result) => Result.isFailure(result) ? result.failure.message : "offered")

  it.effect("W-13: an unlisted tool in trust is an McpUnavailable that names the nearest tool or all tools", () =>
    Effect.gen(function*() {
      const beginning = "the MCP server \"shop\" is not available: trust names the tool"
      const cases: ReadonlyArray<readonly [trust: Record<string, "annotations" | McpTools.Hints>, words: string]> = [
        [{ serch: { readOnly: true } }, `"serch", which the server does not list; did you mean "search"?`],
        [{ serch: "annotations" }, `"serch", which the server does not list; did you mean "search"?`],
        [{ "files_read": {} }, `"files_read", which the server does not list; did you mean "files/read"?`],
        [{ elsewhere: {} }, `"elsewhere", which the server does not list; its tools are "search", "pay", "files/read"`],
        [{ ["constructor"]: {} }, `"constructor", which the server does not list; its tools are`],
        // The second of several, and the first of two that are unknown.
        [{ search: {}, pay: {}, nothing: {} }, `"nothing", which`],
        [{ search: {}, nothing: {}, nowhere: {} }, `"nothing", which`]
      ]
      for (const [trust, words] of cases) {
        const fake = new Fake(listed("search", "pay", "files/read"))
        assert.include(yield* refusal(fake, trust, { prefix: "fs_" }), `${beginning} ${words}`)
        assert.deepStrictEqual([fake.made, fake.closed], [1, 1])
      }
      // The name before a model is not that of the server.
      const fake = new Fake(listed("search"))
      assert.include(
        yield* refusal(fake, { fs_search: {} }, { prefix: "fs_" }),
        "\"fs_search\", which the server does not list; did you mean \"search\"?"
      )
      assert.include(yield* refusal(new Fake([]), { search: {} }), "which the server does not list; it has no tools")
    }))

  it.effect("W-13: trust may name a listed tool, a left out tool, an unlisted tool with a hash, or no tool", () =>
    Effect.gen(function*() {
      const task = { name: "research", execution: { taskSupport: "required" } }
      const definitions = [...listed("search", "pay", "pay"), task]
      for (
        const trust of [
          "annotations",
          {},
          { search: {}, pay: {} },
          { research: { readOnly: true } },
          { later: { hash: "0".repeat(64), readOnly: true } },
          { later: undefined }
        ] as ReadonlyArray<NonNullable<McpTools.Options["trust"]>>
      ) {
        assert.isTrue(Result.isSuccess(yield* opening(new Fake(definitions), trust)), JSON.stringify(trust))
      }
    }))

  it.effect("W-13: a trusted tool may disappear later and comes back trusted, over a second and a third connection, too", () => {
    const fake = new Fake(listed("search", "pay"))
    const isAsking = Effect.map(McpTools.tools, (tools) => tools.map(({ approval, name }) => [name, approval]))
    return Effect.gen(function*() {
      for (let round = 0; round < 2; round++) {
        fake.change(listed("search"))
        assert.deepStrictEqual(yield* isAsking, [["search", true]])
        fake.tools = listed("pay")
        yield* Effect.exit(fake.lose)
        // The next call opens the connection again.
        const [search] = yield* McpTools.tools
        const { messages } = yield* ToolRunner.run([Message.toolCall("c0", "search")], [search!], { approved: ["c0"] })
        assert.include(String(messages[0]?.content), "any more")
        assert.deepStrictEqual(yield* isAsking, [["pay", false]])
        fake.change(listed("search", "pay"))
        assert.deepStrictEqual(yield* isAsking, [["search", true], ["pay", false]])
      }
      assert.deepStrictEqual([fake.opened, fake.closed], [3, 2])
    }).pipe(Effect.provide(Servers.layerOf("shop", fake.connect, { trust: { pay: { destructive: false } } })))
  })

  it.effect("W-13: trust for one server does not depend on another server's tools", () => {
    const [shop, zoo] = [new Fake(listed("pay")), new Fake(listed("look"))]
    const both = (trust: McpTools.Options["trust"]) =>
      Layer.merge(
        Servers.layerOf("shop", shop.connect, { trust: { pay: {} } }),
        Servers.layerOf("zoo", zoo.connect, { trust: trust! })
      )
    return Effect.gen(function*() {
      assert.lengthOf(yield* Effect.provide(McpTools.tools, both({ look: {} })), 2)
      const error = yield* Effect.flip(Effect.provide(McpTools.tools, both({ pay: {} })))
      assert.deepStrictEqual([error._tag, error.server], ["McpUnavailable", "zoo"])
    })
  })

  it.effect("W-13: the error for an unlisted tool is bounded in length, and has no invisible characters", () =>
    Effect.gen(function*() {
      const names = Array.from({ length: 1_000 }, (_, index) => `tool\u202e${index}${"x".repeat(1_000)}`)
      const message = yield* refusal(new Fake(listed(...names)), { [`${"y".repeat(1_000)}`]: {} })
      assert.isBelow(message.length, 3_000)
      assert.notInclude(message, "\u202e")
      assert.include(message, " and 990 more")
    }))
})

describe("options together", () => {
  for (const trust of Object.keys(trusts) as ReadonlyArray<keyof typeof trusts>) {
    for (const approval of Object.keys(approvals) as ReadonlyArray<keyof typeof approvals>) {
      it.effect(`trust ${trust}, approval ${approval}: tools and calls are as documented with each prefix, change and set of answers`, () =>
        Effect.gen(function*() {
          for (const prefix of prefixes) {
            for (const hasAnswers of [false, true]) {
              for (const propagate of [false, true]) {
                const fake = new Fake([definition, other])
                const elicited: Array<string> = []
                const options: McpTools.Options = {
                  prefix,
                  propagate,
                  approval: approvals[approval],
                  ...(trusts[trust] === undefined ? {} : { trust: trusts[trust]! }),
                  ...(hasAnswers
                    ? {
                      onElicit: ({ message, server }) =>
                        Effect.sync(() => (elicited.push(`${server}: ${message}`), { action: "decline" })),
                      onSample: () => Effect.succeed({ text: "an answer", model: "m" })
                    }
                    : {})
                }
                fake.answering = () =>
                  Effect.gen(function*() {
                    const answer = yield* fake.listener!.elicit(asks)
                    if (answer.action === "cancel") return yield* Effect.never
                    const sampled = yield* fake.listener!.sample({ messages: [], maxTokens: 1 })
                    return said(`${answer.action} ${sampled?.text}`)
                  })
                yield* Effect.gen(function*() {
                  // The second of everything: the tool once more, and the tool that it becomes.
                  for (const isChanged of [false, false, true, true]) {
                    if (isChanged) fake.change([{ ...definition, description: "Looks elsewhere" }, other])
                    const what = JSON.stringify({ prefix, hasAnswers, propagate, isChanged })
                    const expected = expectedOf({ prefix, trust, approval, isChanged })
                    const tools = yield* McpTools.tools
                    const [tool] = tools
                    const { waits, ...flags } = expected
                    assert.deepInclude(tool, flags, what)
                    const calls = [Message.toolCall("c0", expected.name, {})]
                    const before = fake.requests.length
                    const asked = yield* ToolRunner.run(calls, tools).pipe(Effect.withSpan("app"))
                    const isPut = (result: ToolRunner.Result) => result.suspensions?.[0]?.kind
                    if (waits) {
                      assert.strictEqual(isPut(asked), "approval", what)
                      assert.lengthOf(fake.requests, before, what)
                    }
                    const done = waits
                      ? yield* ToolRunner.run(calls, tools, { approved: ["c0"] }).pipe(Effect.withSpan("app"))
                      : asked
                    assert.lengthOf(fake.requests, before + 1, what)
                    assert.strictEqual(fake.requests.at(-1)?.meta["traceparent"] !== undefined, propagate, what)
                    if (!hasAnswers && expected.idempotent) assert.strictEqual(isPut(done), "question", what)
                    else if (hasAnswers) {
                      assert.strictEqual(done.messages[0]?.content, "decline an answer", what)
                      assert.strictEqual(elicited.pop(), "shop: Which?", what)
                    } else {
                      const content = String(done.messages[0]?.content)
                      assert.isTrue(content.startsWith("decline undefined\n[the server asked \"Which?\""), what)
                    }
                    assert.lengthOf(elicited, 0, what)
                  }
                }).pipe(Effect.provide(Servers.layerOf("shop", fake.connect, options)))
              }
            }
          }
        }))
    }
  }

  it.effect("a server's second question, second change and second connection work like the first", () => {
    const fake = new Fake([definition])
    return Effect.gen(function*() {
      fake.answering = () =>
        Effect.gen(function*() {
          const one = yield* fake.listener!.elicit(asks)
          const other = yield* fake.listener!.elicit(asks)
          return one.action === "cancel" || other.action === "cancel"
            ? yield* Effect.never
            : said(JSON.stringify([one, other]))
        })
      for (let round = 0; round < 2; round++) {
        yield* Effect.gen(function*() {
          const tools = yield* McpTools.tools
          let { session } = yield* Session.reply(Session.make(), "Look", { tools })
          assert.strictEqual(session.pendingQuestion, "shop: Which?")
          ;({ session } = yield* Session.reply(session, "Oslo", { tools }))
          // The same question again is another one.
          assert.strictEqual(session.pendingQuestion, "shop: Which?")
          ;({ session } = yield* Session.reply(session, "Bern", { tools }))
          assert.strictEqual(
            Message.text(session.thread.messages[2]!),
            "[{\"action\":\"accept\",\"content\":{\"city\":\"Oslo\"}},{\"action\":\"accept\",\"content\":{\"city\":\"Bern\"}}]"
          )
        }).pipe(Effect.provide(Script.layer([
          [Script.toolCall("c0", "look_up"), Script.finish("tool_calls")],
          [Script.text("Done."), Script.finish("stop")]
        ])))
        // A change and back, and a connection that is lost and opened again by the next call.
        fake.change([{ ...definition, description: `Looks ${round}` }])
        assert.isTrue((yield* McpTools.tools)[0]?.approval)
        fake.change([definition])
        yield* Effect.exit(fake.lose)
      }
      assert.deepStrictEqual([fake.opened, fake.closed], [2, 2])
    }).pipe(Effect.provide(Servers.layerOf("shop", fake.connect, {
      trust: { "look.up": { destructive: false, idempotent: true } }
    })))
  })
})
