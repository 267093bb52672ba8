/** What is typed on the command line and at its questions, against what the journal holds afterwards, field by field. */
import * as NodeServices from "@effect/platform-node/NodeServices"
import { assert, describe, it } from "@effect/vitest"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { Chat, type Journal, Session, Tool } from "heddle"
import { Agent, Server } from "heddle/server"
import { Script } from "heddle/testing"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { afterAll, afterEach, beforeEach, vi } from "vitest"
import * as Cli from "../../src/command/internal/cli.ts"
import * as Conversations from "../../src/command/internal/conversation.ts"
import * as Stores from "../../src/command/internal/keeping.ts"
import { Stop } from "../../src/command/internal/stop.ts"
import * as States from "../../src/internal/session/state.ts"
import { journalOf } from "../support/survivor.ts"
import { notTerminal, typing } from "../support/terminal.ts"

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "heddle-typed-"))
/** What the command writes to the outputs of this process, beside its lines. */
const outputs: Array<string> = []
beforeEach(() => {
  for (const output of [process.stdout, process.stderr]) {
    vi.spyOn(output, "write").mockImplementation((text) => outputs.push(String(text)) > 0)
  }
})
afterEach(() => void vi.restoreAllMocks())
afterAll(() => fs.rmSync(folder, { recursive: true, force: true }))

let count = 0

/** The path of a module with this definition. A module is loaded once, so that each has a name of its own. */
const moduleOf = (definition: Server.Definition): string => {
  const name = `typed-${++count}`
  const all = (globalThis as any).heddleTyped ??= new Map<string, Server.Definition>()
  all.set(name, definition)
  const file = path.join(folder, `${name}.mjs`)
  fs.writeFileSync(file, `export default globalThis.heddleTyped.get("${name}")`)
  return file
}

interface Ran {
  readonly code: number
  readonly out: string
  readonly err: string
}

/** Runs a command line. With keys there is a terminal. */
const command = (args: ReadonlyArray<string>, keys?: string): Effect.Effect<Ran> =>
  Effect.gen(function*() {
    const written = { out: "", err: "" }
    const lines = {
      ...console,
      log: (...words: ReadonlyArray<unknown>) => void (written.out += `${words.join(" ")}\n`),
      error: (...words: ReadonlyArray<unknown>) => void (written.err += `${words.join(" ")}\n`)
    }
    const code = yield* Cli.run(args, new Stop()).pipe(
      Effect.provide(Layer.merge(NodeServices.layer, keys === undefined ? notTerminal : typing(keys))),
      Effect.provideService(Console.Console, lines as unknown as Console.Console),
      Effect.orDie
    )
    return { code, ...written }
  })

/** What a store has of a session. */
const recordsIn = (file: string, id: string, principal: string): Effect.Effect<ReadonlyArray<Journal.Record>> =>
  journalOf(Conversations.keyOf({ id, principal })).pipe(Effect.provide(Stores.layer(file)), Effect.orDie)

const of = <Tag extends Journal.Record["_tag"]>(records: ReadonlyArray<Journal.Record>, tag: Tag) =>
  records.filter((record): record is Extract<Journal.Record, { readonly _tag: Tag }> => record._tag === tag)

const pay = Tool.make("pay", {
  parameters: { amount: Schema.Finite },
  approval: true,
  afterCrash: "ask",
  handler: ({ amount }) => Effect.succeed(`paid ${amount}`)
})
const asking = (name: string, options: object = {}) =>
  Tool.make(name, { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Well?", options)) })
const tools = [
  pay,
  asking("free"),
  asking("counts", { answer: Schema.Struct({ count: Schema.Int }) }),
  asking("number", { answer: Schema.Int }),
  asking("picks", { opts: ["red", "blue"] }),
  asking("weighs", { opts: [{ kilo: 1 }, { kilo: 2 }] }),
  Tool.make("hand", { parameters: {}, manual: true }),
  Tool.fromChat("inside", { parameters: {}, chat: () => Chat.stream("Pay", { tools: [pay] }) })
] as unknown as ReadonlyArray<Tool.Any>

/** A definition whose model makes these calls first, and says that it is done. */
const definitionOf = (calls: ReadonlyArray<readonly [tool: string, args: object]>): Server.Definition => {
  const inner = calls.some(([name]) => name === "inside")
    ? [[Script.toolCall("i0", "pay", { amount: 3 }), Script.finish("tool_calls")]] as const
    : []
  return Server.define({
    agents: ["a", "b"].map((name) =>
      Agent.make({ name, description: name, run: () => Effect.succeed({ tools: tools as never }) })
    ),
    layer: Script.layer([
      [
        ...calls.map(([name, args], index) => Script.toolCall(`c${index}`, name, args as never)),
        Script.finish("tool_calls")
      ],
      ...inner,
      [Script.text("Done."), Script.finish("stop")],
      [Script.text("Done."), Script.finish("stop")]
    ])
  })
}

/** Each kind of question with each verdict that it takes: what is typed, and what is recorded of it. */
const verdicts: ReadonlyArray<readonly [what: string, tool: string, keys: string, answer: object]> = [
  ["an approval that is allowed", "pay", "\n", { _tag: "Approved" }],
  ["one that is denied without a reason", "pay", ">\n\n", { _tag: "Denied" }],
  ["one that is denied with a reason", "pay", ">\ntoo much\n", { _tag: "Denied", reason: "too much" }],
  ["one with other arguments", "pay", ">>\n^{\"amount\":4}\n", { _tag: "Approved", arguments: { amount: 4 } }],
  ["one with the arguments as they are", "pay", ">>\n\n", { _tag: "Approved", arguments: { amount: 3 } }],
  ["a text", "free", "to Oslo\n", { _tag: "Value", value: "to Oslo" }],
  ["a text that could be JSON", "free", "42\n", { _tag: "Value", value: "42" }],
  ["JSON of a schema", "counts", "{\"count\":2}\n", { _tag: "Value", value: { count: 2 } }],
  ["JSON of a schema, behind an answer that is refused", "counts", "x\n{\"count\":2}\n", {
    _tag: "Value",
    value: { count: 2 }
  }],
  ["a number of a schema", "number", "7\n", { _tag: "Value", value: 7 }],
  ["a choice", "picks", ">\n", { _tag: "Value", value: "blue" }],
  ["a choice that is no text", "weighs", ">\n", { _tag: "Value", value: { kilo: 2 } }],
  ["the result of a manual call", "hand", "by hand\n", { _tag: "Value", value: "by hand" }],
  ["an approval of a run inside that is allowed", "inside", "\n", { _tag: "Approved" }],
  ["one of a run inside that is denied", "inside", ">\nno\n", { _tag: "Denied", reason: "no" }],
  ["one of a run inside with other arguments", "inside", ">>\n^{\"amount\":4}\n", {
    _tag: "Approved",
    arguments: { amount: 4 }
  }]
]

const argsOf = (tool: string): object => tool === "pay" ? { amount: 3 } : {}

/** The options of a call, each value beside each of another option at least once. */
const options = [
  { principal: undefined, agent: "a", isJson: false },
  { principal: undefined, agent: "b", isJson: true },
  { principal: "ann", agent: "a", isJson: true },
  { principal: "ann", agent: "b", isJson: false }
]

/** The settlements of a journal, as far as a person gave them. */
const settledIn = (records: ReadonlyArray<Journal.Record>) =>
  of(records, "CallSettled").map(({ answer, by, id }) => ({ id, answer: { ...answer }, by }))

describe("typed answers in the journal", () => {
  for (const [row, [what, tool, keys, answer]] of verdicts.entries()) {
    it.live(`W-19, W-22: the journal holds what a person typed: ${what}, under each option`, () =>
      Effect.gen(function*() {
        // Two for each row, so that each is tried with each kind of question.
        for (const { agent, isJson, principal } of options.filter((_, place) => (row + place) % 2 === 0)) {
          const file = path.join(folder, `${++count}.db`)
          const module = moduleOf(definitionOf([[tool, argsOf(tool)]]))
          const ran = yield* command(
            [
              "call",
              module,
              "Go on",
              "--store",
              file,
              "--session",
              "s1",
              "--agent",
              agent,
              ...(principal === undefined ? [] : ["--principal", principal]),
              ...(isJson ? ["--json"] : [])
            ],
            keys
          )
          assert.deepStrictEqual([ran.code, ran.err], [0, ""])
          const by = principal ?? "local"
          const records = yield* recordsIn(file, "s1", by)
          const id = tool === "inside" ? "c0/i0" : "c0"
          assert.deepStrictEqual(settledIn(records), [{ id, answer: answer as never, by }])
          const [opened] = of(records, "Opened")
          assert.deepStrictEqual([opened?.principal, opened?.agent], [by, agent])
          const [submitted] = of(records, "MessageSubmitted")
          assert.deepStrictEqual([submitted?.message.content, submitted?.by], ["Go on", by])
          assert.strictEqual(of(records, "RunEnded").at(-1)?.error, undefined)
        }
      }))
  }

  it.live("W-19: the journal holds the typed answer to each of several questions, in the order of asking", () =>
    Effect.gen(function*() {
      const file = path.join(folder, `${++count}.db`)
      const module = moduleOf(
        definitionOf([["pay", { amount: 1 }], ["free", {}], ["pay", { amount: 2 }], ["picks", {}]])
      )
      const keys = ">>\n^{\"amount\":9}\nto Oslo\n>\nno\n>\n"
      const { code } = yield* command(["call", module, "Go", "--store", file, "--session", "s1", "--agent", "a"], keys)
      assert.strictEqual(code, 0)
      assert.deepStrictEqual(settledIn(yield* recordsIn(file, "s1", "local")) as ReadonlyArray<unknown>, [
        { id: "c0", answer: { _tag: "Approved", arguments: { amount: 9 } }, by: "local" },
        { id: "c1", answer: { _tag: "Value", value: "to Oslo" }, by: "local" },
        { id: "c2", answer: { _tag: "Denied", reason: "no" }, by: "local" },
        { id: "c3", answer: { _tag: "Value", value: "blue" }, by: "local" }
      ])
    }))

  const unknown: ReadonlyArray<readonly [keys: string, answer: object]> = [
    ["\n", { _tag: "Approved" }],
    [">\n\n", { _tag: "Denied" }],
    [">\nit was paid\n", { _tag: "Denied", reason: "it was paid" }]
  ]
  for (const [keys, answer] of unknown) {
    it.live(`W-22: the journal holds the typed answer about a call with unknown effect: ${JSON.stringify(answer)}`, () =>
      Effect.gen(function*() {
        const file = path.join(folder, `${++count}.db`)
        const definition = definitionOf([["pay", { amount: 3 }]])
        const module = moduleOf(definition)
        const call = ["call", module, "Go", "--store", file, "--session", "s1", "--agent", "a"]
        assert.strictEqual((yield* command(call, "\n")).code, 0)
        const whole = yield* recordsIn(file, "s1", "local")
        const cut = path.join(folder, `${++count}.db`)
        const [first, ...rest] = whole.slice(0, whole.findIndex(({ _tag }) => _tag === "CallStarted") + 1)
        const key = Conversations.keyOf({ id: "s1", principal: "local" })
        yield* Effect.gen(function*() {
          const state = States.initial(key)
          for (const record of [first!, ...rest]) States.apply(state, record)
          const store = yield* Session.Store
          yield* store.append(key, 0, [first!, ...rest], { summary: States.summaryOf(state) })
        }).pipe(Effect.provide(Stores.layer(cut)))
        // The run that was cut is continued by the command, without a text.
        const done = moduleOf(
          Server.define({ ...definition, layer: Script.layer([[Script.text("Done."), Script.finish("stop")]]) })
        )
        const ran = yield* command(["call", done, "--store", cut, "--session", "s1", "--agent", "a"], keys)
        assert.deepStrictEqual([ran.code, ran.err], [0, ""])
        const settled = settledIn(yield* recordsIn(cut, "s1", "local"))
        assert.deepStrictEqual(settled.at(-1) as unknown, { id: "c0", answer, by: "local" })
        assert.strictEqual(settled.length, 2)
      }))
  }
})

describe("heddle sessions", () => {
  /** A store with a session of each of two principals, which wait for an approval. */
  const stored = Effect.gen(function*() {
    const file = path.join(folder, `${++count}.db`)
    const module = moduleOf(definitionOf([["pay", { amount: 3 }]]))
    for (const principal of ["local", "ann"]) {
      const { code } = yield* command([
        "call",
        module,
        "Go",
        "--store",
        file,
        "--session",
        "s1",
        "--agent",
        "a",
        "--principal",
        principal
      ])
      assert.strictEqual(code, 2)
    }
    return { file, module }
  })

  /** Each action with each option: a session of another principal is as it was. */
  const actions = ["list", "show", "recover", "stop", "revoke", "delete"]

  for (const action of actions) {
    it.live(`W-22: ${action} acts only on the session of the named principal, and takes or refuses each option`, () =>
      Effect.gen(function*() {
        for (const principal of [undefined, "ann"]) {
          for (const isJson of [false, true]) {
            const { file, module } = yield* stored
            const by = principal ?? "local"
            const other = principal === undefined ? "ann" : "local"
            const before = { own: yield* recordsIn(file, "s1", by), other: yield* recordsIn(file, "s1", other) }
            const options = [
              "--store",
              file,
              ...(principal === undefined ? [] : ["--principal", principal]),
              ...(isJson ? ["--json"] : [])
            ]
            const id = action === "list" ? [] : ["s1"]
            const { code, err, out } = yield* command(["sessions", module, action, ...id, ...options])
            const right = action === "recover"
              ? [1, "heddle: session s1 has nothing to recover: its status is awaiting_tools\n"]
              : [0, ""]
            assert.deepStrictEqual([code, err], right)
            if (isJson && code === 0) assert.doesNotThrow(() => JSON.parse(out), out)
            assert.deepStrictEqual(yield* recordsIn(file, "s1", other), before.other)
            const after = yield* recordsIn(file, "s1", by)
            assert.deepStrictEqual(after, action === "delete" ? [] : before.own)
            // What does not belong to the action is refused, and nothing is done.
            const wrong = action === "list" ? [["s1"]] : [["--status", "idle"], ["--next", ""], ["--query", "Hi"]]
            for (const more of wrong) {
              const refused = yield* command(["sessions", module, action, ...id, ...more, ...options])
              assert.strictEqual(refused.code, 1, more.join(" "))
              assert.match(refused.err, /^heddle: (list takes no id; .*|--(status|next|query) is .*)\n$/)
              assert.strictEqual(refused.out, "")
            }
          }
        }
      }))
  }

  it.live("W-22: recover retries the run of the named principal's session, with its agent, under each option", () =>
    Effect.gen(function*() {
      for (const { agent, isJson, principal } of options) {
        const file = path.join(folder, `${++count}.db`)
        const definition = definitionOf([])
        const failing = moduleOf(
          Server.define({ ...definition, layer: Script.layer([[Script.preflightError("invalid_request")]]) })
        )
        const done = moduleOf(
          Server.define({ ...definition, layer: Script.layer([[Script.text("It works."), Script.finish("stop")]]) })
        )
        const more = ["--store", file, ...(principal === undefined ? [] : ["--principal", principal])]
        const failed = yield* command(["call", failing, "Go", "--session", "s1", "--agent", agent, ...more])
        assert.deepStrictEqual(failed.code, 1)
        outputs.length = 0
        const ran = yield* command(["sessions", done, "recover", "s1", ...more, ...(isJson ? ["--json"] : [])])
        assert.deepStrictEqual([ran.code, ran.err], [0, ""])
        const text = outputs.join("")
        if (isJson) assert.deepInclude(JSON.parse(text), { id: "s1", agent, status: "completed", text: "It works." })
        else assert.strictEqual(text, "It works.\n")
        const records = yield* recordsIn(file, "s1", principal ?? "local")
        assert.strictEqual(of(records, "RunEnded").at(-1)?.error, undefined)
      }
    }))

  it.live("W-22: the stop of an open run says who requested it", () =>
    Effect.gen(function*() {
      for (const principal of ["local", "ann"]) {
        for (const isJson of [false, true]) {
          const { file, module } = yield* stored
          const key = Conversations.keyOf({ id: "s1", principal })
          // The run has no end: its process was killed.
          const cut = path.join(folder, `${++count}.db`)
          const whole = yield* recordsIn(file, "s1", principal)
          const records = whole.slice(0, whole.findIndex(({ _tag }) => _tag === "RunStarted") + 1)
          yield* Effect.gen(function*() {
            const state = States.initial(key)
            for (const record of records) States.apply(state, record)
            const store = yield* Session.Store
            yield* store.append(key, 0, records as never, { summary: States.summaryOf(state) })
          }).pipe(Effect.provide(Stores.layer(cut)))
          const options = ["--store", cut, "--principal", principal, ...(isJson ? ["--json"] : [])]
          const ran = yield* command(["sessions", module, "stop", "s1", ...options])
          assert.deepStrictEqual([ran.code, ran.err], [0, ""])
          const requested = of(yield* recordsIn(cut, "s1", principal), "StopRequested")
          assert.deepStrictEqual(requested.map(({ by }) => by), [principal])
        }
      }
    }))
})

describe("an invocation without its module", () => {
  const missing: ReadonlyArray<readonly [args: ReadonlyArray<string>, usage: string]> = [
    [["serve"], "heddle serve MODULE"],
    [["call"], "heddle call MODULE TEXT"],
    [["sessions"], "heddle sessions MODULE ACTION --store FILE"],
    [["sessions", "list"], "heddle sessions MODULE ACTION --store FILE"],
    [["sessions", "list", "--store", "x.db"], "heddle sessions MODULE ACTION --store FILE"],
    [["sessions", "--store", "x.db", "list"], "heddle sessions MODULE ACTION --store FILE"],
    [["sessions", "show", "s1"], "heddle sessions MODULE ACTION --store FILE"],
    [["sessions", "delete", "--json", "s1"], "heddle sessions MODULE ACTION --store FILE"]
  ]

  it.live("W-22: heddle says that the module is missing, what a module is and where it belongs", () =>
    Effect.gen(function*() {
      for (const [args, usage] of missing) {
        const { code, err } = yield* command(args)
        const is = "where MODULE is a file or package whose default export is Server.define({ agents, layer })"
        assert.deepStrictEqual([code, err], [1, `heddle: the module is missing: ${usage}, ${is} (see --help)\n`])
      }
      const action = yield* command(["sessions", "m.ts", "--store", "x.db"])
      assert.match(action.err, /^heddle: the action is missing; give one of: list, show, .*\n$/)
      const wrong = yield* command(["sessions", "m.ts", "lst", "--store", "x.db"])
      assert.match(wrong.err, /^heddle: .*"lst".*"list" \| "show".*\n$/)
    }))

  it.live("W-22: the help of sessions says that the store must exist, and the help of call and serve that it is created", () =>
    Effect.gen(function*() {
      const store = /--store string +(.*)/
      assert.match(
        store.exec((yield* command(["help", "sessions"])).out)?.[1] ?? "",
        /made by heddle serve or heddle call; required$/
      )
      for (const name of ["call", "serve"]) {
        assert.match(
          store.exec((yield* command(["help", name])).out)?.[1] ?? "",
          /created if missing; in memory by default$/
        )
      }
    }))
})
