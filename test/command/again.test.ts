/**
 * The second of something on the command line: a run behind another one, a run inside another one, a signal behind a
 * run, and options that meet each end of a run.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { Adapter, type Event, Output, Session, Tool } from "heddle"
import { Agent, Server } from "heddle/server"
import { Script } from "heddle/testing"
import * as Conversations from "../../src/command/internal/conversation.ts"
import * as Operating from "../../src/command/internal/operating.ts"
import { Stop } from "../../src/command/internal/stop.ts"
import * as Terminal from "../../src/command/internal/terminal.ts"
import { notTerminal, typing } from "../support/terminal.ts"

// What a view shows.

/** Runs that a view may be told of, each with what a second one could be confused with: ids, names and texts. */
const runs: Readonly<Record<string, ReadonlyArray<Event.PublicEvent>>> = {
  said: [
    { _tag: "MessageStarted" },
    { _tag: "TextDelta", id: null, delta: "Hel" },
    { _tag: "TextDelta", id: null, delta: "lo" },
    { _tag: "TextCompleted", id: null, text: "Hello" },
    { _tag: "MessageCompleted" }
  ],
  whole: [
    { _tag: "MessageStarted" },
    { _tag: "TextCompleted", id: null, text: "Hello" },
    { _tag: "MessageCompleted" }
  ],
  called: [
    { _tag: "MessageStarted" },
    { _tag: "ToolCallCompleted", id: "c0", name: "look", arguments: { city: "Oslo" } },
    { _tag: "MessageCompleted" },
    { _tag: "ToolQueued", id: "c0", name: "look" },
    { _tag: "ToolExecutionStarted", id: "c0", name: "look" },
    { _tag: "ToolProgress", id: "c0", name: "look", progress: "asking" },
    { _tag: "ToolResultEncoded", id: "c0", content: "7" }
  ] as ReadonlyArray<Event.PublicEvent>,
  again: [
    { _tag: "ToolCallCompleted", id: "c0", name: "order", arguments: {} },
    { _tag: "ToolResultEncoded", id: "c0", content: "no", isError: true },
    { _tag: "Error", error: { code: "internal", message: "It broke." } }
  ]
}

const within = (events: ReadonlyArray<Event.PublicEvent>, id: string): ReadonlyArray<Event.PublicEvent> =>
  events.map((nested) => ({ _tag: "ToolProgress", id, name: "sub", nested }) as Event.PublicEvent)

/** What a view writes of these events, in a view that is kept where it is given. */
const shown = (events: ReadonlyArray<Event.PublicEvent>): { readonly text: string; readonly notes: Array<string> } => {
  const written = { text: "", notes: [] as Array<string> }
  const view = new Terminal.View({
    text: (text) => void (written.text += text),
    note: (text) => void written.notes.push(text)
  })
  for (const event of events) view.take(event)
  return written
}

/** How a part of a reply may come: in pieces, as the whole text of the reply so far, or in pieces and whole behind them. */
const deliveries: Readonly<Record<string, (text: string, before: string) => ReadonlyArray<Event.PublicEvent>>> = {
  pieces: (text) => Array.from(text, (delta) => ({ _tag: "TextDelta", id: null, delta })),
  whole: (text, before) => [{ _tag: "TextCompleted", id: null, text: before + text }],
  both: (text, before) => [...deliveries["pieces"]!(text, before), ...deliveries["whole"]!(text, before)]
}

/** Texts of which one may be the end or the beginning of another one by chance. */
const parts = ["No. ", "Yes.", "No. Yes.", "."]

describe("a view of runs", () => {
  it("a view shows each text of a reply once, however it arrives, also if one text ends like another", () => {
    const ways = Object.values(deliveries)
    const next: Event.PublicEvent = { _tag: "MessageStarted" }
    const reset: Event.PublicEvent = { _tag: "StepReset", error: { code: "network_error", message: "It broke." } }
    for (const first of ways) {
      for (const second of ways) {
        for (const one of parts) {
          for (const other of parts) {
            const together = [...first(one, ""), ...second(other, one), ...deliveries["both"]!("End.", one + other)]
            assert.strictEqual(shown(together).text, `${one}${other}End.`, JSON.stringify(together))
            // The text of another reply, or of the reply that begins again, is none of the reply before.
            for (const between of [[next], [reset], [reset, next]]) {
              const apart = [...first(one, ""), ...between, ...second(other, "")]
              const end = between[0] === reset ? "\n" : ""
              assert.strictEqual(shown(apart).text, `${one}${end}${other}`, JSON.stringify(apart))
            }
          }
        }
      }
    }
  })

  for (const [name, second] of Object.entries(runs)) {
    it(`a run after another run is shown like the only run: ${name}`, () => {
      const alone = shown(second)
      for (const first of Object.values(runs)) {
        const before = shown(first)
        assert.deepStrictEqual(shown([...first, ...second]), {
          text: before.text + alone.text,
          notes: [...before.notes, ...alone.notes]
        })
      }
    })

    it(`an inner run is shown like the only run, after its call's name and without its texts: ${name}`, () => {
      const prefixed = (events: ReadonlyArray<Event.PublicEvent>, prefix: string) =>
        shown(events).notes.map((note) => `${prefix}${note}`)
      assert.deepStrictEqual(shown(within(second, "s0")), { text: "", notes: prefixed(second, "  sub ") })
      const deep = within(within(second, "s1"), "s0")
      assert.deepStrictEqual(shown(deep), { text: "", notes: prefixed(second, "  sub   sub ") })
      for (const first of Object.values(runs)) {
        // Of another call of that name, whose runs have the same call ids.
        assert.deepStrictEqual(shown([...within(first, "s0"), ...within(second, "s1")]).notes, [
          ...prefixed(first, "  sub "),
          ...prefixed(second, "  sub ")
        ])
      }
    })
  }
})

// What a conversation takes and gives back, and what it prints.

/** Counts how many runs take a signal as a request to end softly. */
class Counted extends Stop {
  entered = 0
  override enterSoft(): () => void {
    const leave = super.enterSoft()
    this.entered++
    return () => {
      leave()
      this.entered--
    }
  }
}

const pay = (name: string) =>
  Tool.make(name, {
    parameters: { amount: Schema.Finite },
    approval: true,
    handler: ({ amount }) => Effect.succeed(amount)
  })

/** How a conversation may end, by what its model does. */
const ends = {
  completed: { model: [[Script.text("Done."), Script.finish("stop")]], status: "completed" },
  called: {
    model: [
      [Script.text("I look."), Script.toolCall("c0", "look", {}), Script.finish("tool_calls")],
      [Script.text("Seen."), Script.finish("stop")]
    ],
    status: "completed"
  },
  failed: { model: [[Script.preflightError("invalid_request")]], status: "error" },
  waits: {
    model: [[Script.toolCall("c0", "pay", { amount: 3 }), Script.finish("tool_calls")]],
    status: "awaiting_tools"
  },
  stopped: {
    model: [[Script.text("I wait."), Script.toolCall("c0", "stop", {}), Script.finish("tool_calls")]],
    status: "stopped"
  }
} as const

type End = keyof typeof ends

/** Has these conversations in one session, each with a process of its own, and returns what is seen of each. */
const conversed = (names: ReadonlyArray<End>, isJson: boolean) =>
  Effect.forEach(names, (name) =>
    Effect.gen(function*() {
      const stop = new Counted()
      const written = { text: "", note: "" }
      const tools = [
        pay("pay"),
        Tool.make("look", { parameters: {}, handler: () => Effect.succeed("seen") }),
        Tool.make("stop", {
          parameters: {},
          handler: () => Effect.andThen(Effect.sync(() => stop.receive("SIGINT", 0)), Effect.never)
        })
      ]
      const agent = Agent.make({ name: "a", description: "A", run: () => Effect.succeed({ tools: tools as never }) })
      const layer = Script.layer(ends[name].model)
      const loaded = { definition: Server.define({ agents: [agent], layer }), agents: new Map([["a", agent]]) }
      const named = { agent: "a", principal: "local", id: "s1", isStored: true }
      const exit = yield* Effect.exit(Effect.provide(
        Conversations.run(loaded, named, stop, {
          text: "Go",
          isJson,
          outputs: { text: (text) => void (written.text += text), note: (text) => void (written.note += text) }
        }),
        [layer, notTerminal]
      ))
      assert.strictEqual(stop.entered, 0, name)
      // Nothing is left that could end softly: the next signal interrupts.
      if (stop.code === undefined) assert.strictEqual(stop.receive("SIGINT", 1_000), "interrupt", name)
      const kept = yield* Session.load(Conversations.keyOf(named))
      const code = Exit.isSuccess(exit) ? exit.value : String(exit.cause)
      return { ...written, code, status: kept?.session.status }
    })).pipe(Effect.provide(Session.Store.layerMemory))

describe("a conversation", () => {
  it.effect("a conversation has each field of a suspension in --json, as the session has it", () =>
    Effect.gen(function*() {
      const ask = Tool.make("ask", {
        parameters: {},
        handler: () =>
          Effect.succeed(Tool.askUser("Which?", { opts: ["a", "b"], answer: Schema.String, expiresIn: "1 hour" }))
      })
      const model = Script.layer([[Script.toolCall("c0", "ask", {}), Script.finish("tool_calls")]])
      yield* Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "Go", { tools: [ask] })).pipe(
        Effect.provide(model)
      )
      const kept = (yield* Session.load("s"))!
      const [{ answerSchema, id } = assert.fail("no call waits")] = kept.session.suspensions
      assert.deepInclude(Conversations.jsonOf({ agent: "a", id: "s1" }, kept), {
        suspensions: [{
          id,
          kind: "question",
          question: "Which?",
          opts: ["a", "b"],
          answerSchema,
          expiresAt: "1970-01-01T01:00:00.000Z",
          call: { name: "ask", arguments: {} }
        }]
      })
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  for (const name of Object.keys(ends) as ReadonlyArray<End>) {
    it.live(`a conversation prints one JSON text with --json, and the model's text without, when it is ${name}`, () =>
      Effect.gen(function*() {
        const [plain] = yield* conversed([name], false)
        const [json] = yield* conversed([name], true)
        assert.deepStrictEqual(plain?.status, ends[name].status)
        assert.deepStrictEqual([json?.status, json?.code, json?.note], [plain?.status, plain?.code, plain?.note])
        assert.deepInclude(JSON.parse(json?.text ?? ""), { id: "s1", agent: "a", status: ends[name].status })
        assert.notInclude(plain?.text, "{")
      }))

    it.live(`a conversation after another conversation works like the only one: ${name}`, () =>
      Effect.gen(function*() {
        const [alone] = yield* conversed([name], false)
        for (const first of ["completed", "called"] as const) {
          assert.deepStrictEqual((yield* conversed([first, name], false)).at(-1), alone, `${name} behind ${first}`)
        }
      }))
  }

  it.live("a conversation says that its text was not sent if a signal stops an earlier message's run", () =>
    Effect.gen(function*() {
      const stop = new Counted()
      const notes: Array<string> = []
      const halt = Tool.make("halt", {
        parameters: {},
        handler: () => Effect.andThen(Effect.sync(() => stop.receive("SIGINT", 0)), Effect.never)
      })
      const agent = Agent.make({ name: "a", description: "A", run: () => Effect.succeed({ tools: [halt] as never }) })
      const layer = Script.layer([[Script.toolCall("c0", "halt", {}), Script.finish("tool_calls")]])
      const loaded = { definition: Server.define({ agents: [agent], layer }), agents: new Map([["a", agent]]) }
      const named = { agent: "a", principal: "local", id: "s1", isStored: true }
      const key = Conversations.keyOf(named)
      yield* Session.open(key, { origin: { principal: "local", agent: "a" } })
      yield* Session.submit(key, "Earlier", { by: "local" })
      const code = yield* Conversations.run(loaded, named, stop, {
        text: "Later",
        outputs: { text: () => {}, note: (text) => void notes.push(text) }
      }).pipe(Effect.provide([layer, notTerminal]))
      const messages = (yield* Session.load(key))!.session.thread.messages.filter(({ role }) => role === "user")
      assert.deepStrictEqual([code, messages.map(({ content }) => content)], [stop.code, ["Earlier"]])
      assert.include(notes.join(""), "the text was not sent")
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  const texts = { "the tool": "", "a text and the tool": "On Friday.", "a number and the tool": "2026" }
  for (const by of [...Object.keys(texts), "the text"] as ReadonlyArray<keyof typeof texts | "the text">) {
    it.live(`R-551: a conversation prints a typed answer by ${by} once as JSON, and --json has the answer as output`, () =>
      Effect.gen(function*() {
        const output = Output.make(Schema.Struct({ at: Schema.Date }))
        const agent = Agent.make({ name: "a", description: "A", run: () => Effect.succeed({ output }) })
        const given = { at: "2026-01-02T00:00:00.000Z" }
        const words = by === "the text" ? JSON.stringify(given) : texts[by]
        const said = words === "" ? [] : [Script.text(words)]
        const layer = Adapter.map((adapter) =>
          by === "the text" ? { ...adapter, output: { native: "always", forced: true } } : adapter
        ).pipe(Layer.provide(Script.layer([
          by === "the text"
            ? [...said, Script.finish("stop")]
            : [...said, Script.toolCall("c0", "final_answer", given), Script.finish("tool_calls")]
        ])))
        const loaded = { definition: Server.define({ agents: [agent], layer }), agents: new Map([["a", agent]]) }
        const named = { agent: "a", principal: "local", id: "s1", isStored: true }
        let text = ""
        const outputs = { text: (more: string) => void (text += more), note: () => {} }
        const code = yield* Conversations.run(loaded, named, new Counted(), { text: "When?", outputs }).pipe(
          Effect.provide([layer, notTerminal])
        )
        const lines = [...(by === "the text" || words === "" ? [] : [words]), JSON.stringify(given)]
        assert.deepStrictEqual([code, text.trimEnd().split("\n")], [0, lines])
        const kept = (yield* Session.load(Conversations.keyOf(named)))!
        assert.deepInclude(Conversations.jsonOf(named, kept), { output: given })
      }).pipe(Effect.provide(Session.Store.layerMemory)))
  }

  it.live("a signal ends softly only during a run, also after the first run", () =>
    Effect.gen(function*() {
      const stop = new Counted()
      const asked: Array<number> = []
      const running: Array<number> = []
      const look = Tool.make("look", {
        parameters: {},
        handler: () => Effect.sync(() => void running.push(stop.entered))
      })
      const agent = Agent.make({
        name: "a",
        description: "A",
        run: () => Effect.succeed({ tools: [look, pay("pay")] as never })
      })
      const turn = (id: string) => [Script.toolCall(`l${id}`, "look"), Script.toolCall(id, "pay", { amount: 3 })]
      const layer = Script.layer([
        [...turn("c0"), Script.finish("tool_calls")],
        [...turn("c1"), Script.finish("tool_calls")],
        [Script.text("Done."), Script.finish("stop")]
      ])
      const loaded = { definition: Server.define({ agents: [agent], layer }), agents: new Map([["a", agent]]) }
      const named = { agent: "a", principal: "local", id: "s1", isStored: true }
      const code = yield* Effect.provide(
        Conversations.run(loaded, named, stop, { text: "Go", outputs: { text: () => {}, note: () => {} } }),
        [layer, Session.Store.layerMemory, typing("\n\n", () => void asked.push(stop.entered))]
      )
      assert.deepStrictEqual([code, asked, running, stop.entered], [0, [0, 0], [1, 1], 0])
    }))
})

describe("a list of sessions", () => {
  it.effect("a list of sessions prints the same notes with and without --json, on each page", () =>
    Effect.gen(function*() {
      const count = 25
      const loaded = { definition: undefined as never, agents: new Map([["a", undefined as never]]) }
      for (let number = 0; number < count; number++) {
        const key = Conversations.keyOf({ id: `s${number}`, principal: "local" })
        yield* Session.open(key, { origin: { principal: "local", agent: "a" } })
      }
      const listed = (next: string | undefined, isJson: boolean) => {
        const out: Array<string> = []
        const err: Array<string> = []
        const written = { ...console, log: (line: string) => out.push(line), error: (line: string) => err.push(line) }
        const options = { next: Option.fromNullishOr(next), query: Option.none(), status: Option.none() }
        return Effect.flatMap(
          Operating.searchOf(options),
          (search) => Operating.list(loaded, { isJson, principal: "local", search })
        ).pipe(
          Effect.provideService(Console.Console, written as unknown as Console.Console),
          Effect.as({ out, err })
        )
      }
      const seen = new Set<string>()
      let next: string | undefined
      for (const lines of [20, 5]) {
        const plain = yield* listed(next, false)
        const json = yield* listed(next, true)
        assert.lengthOf(plain.out, lines)
        assert.deepStrictEqual(json.err, plain.err)
        assert.lengthOf(json.out, 1)
        const ids = (JSON.parse(json.out[0]!) as ReadonlyArray<{ readonly id: string }>).map(({ id }) => id)
        assert.deepStrictEqual(plain.out.map((line) => line.split("\t")[0]), ids)
        for (const id of ids) seen.add(id)
        next = /^a has more: --next (\S+)$/.exec(json.err[0] ?? "")?.[1]
        assert.strictEqual(next === undefined, lines === 5)
      }
      assert.strictEqual(seen.size, count)
      const wrong = { next: Option.some("40"), query: Option.none(), status: Option.none() }
      const refused = yield* Effect.flip(Operating.searchOf(wrong))
      assert.strictEqual(refused.message, "--next must be the next of an earlier page")
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})
