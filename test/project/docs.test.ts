/**
 * The tables of the guides against the source: every outcome, every event and every reason of an error stands in its
 * table, with what it really leads to, and nothing else does; and docs/README lists every public module.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Event, Executor, Journal, Policy, Rule, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as fs from "node:fs"
import * as path from "node:path"
import * as RunJournal from "../../src/internal/run/runJournal.ts"
import { order, rooms } from "../support/architecture.ts"
import { readSource, root } from "../support/source.ts"

/** The rows of the table below a heading of a page whose head has these words, each cell without its markup. */
const table = (page: string, ...head: ReadonlyArray<string>): ReadonlyArray<ReadonlyArray<string>> => {
  const rows = readSource(page).text.split("\n").map((line) =>
    line.startsWith("|") ? line.slice(1, -1).split(/(?<!\\)\|/).map((cell) => cell.trim()) : []
  )
  const start = rows.findIndex((cells) => head.every((word, index) => cells[index] === word))
  assert.isAtLeast(start, 0, `${page} has no table that begins with ${head.join(", ")}`)
  const end = rows.findIndex((cells, index) => index > start && cells.length === 0)
  return rows.slice(start + 2, end)
}

const names = (cells: ReadonlyArray<string>): ReadonlyArray<string> =>
  cells.map((cell) => /^\[?`([^`]+)`/.exec(cell)?.[1] ?? cell)

const reasonsOf = (schema: { readonly fields: { readonly reason: { readonly literals: ReadonlyArray<string> } } }) =>
  [...schema.fields.reason.literals].sort()

/** A tool named `t` and options for each way in which a run ends: the compiler says which one is missing. */
const ends: Readonly<
  Record<Event.Outcome["_tag"], readonly [tool: Partial<Parameters<typeof Tool.make>[1]>, options?: Chat.Options]>
> = {
  Completed: [{ handler: () => Effect.succeed(1) }],
  MaxTurns: [{ handler: () => Effect.succeed(1) }, { maxTurns: 1 }],
  HaltWhen: [{ handler: () => Effect.succeed(1) }, { haltWhen: () => true }],
  Halted: [{ handler: () => Effect.succeed(Tool.halt("enough", 1)) }],
  Cancelled: [{ handler: () => Effect.never }, { cancel: Effect.sleep(20) as Effect.Effect<never> }],
  AskUser: [{ handler: () => Effect.succeed(Tool.askUser("Which?")) }],
  ApprovalRequested: [{ approval: true, handler: () => Effect.succeed(1) }],
  ManualToolCalls: [{ manual: true }],
  ToolFailed: [{ handler: () => Effect.fail("broken") }, { onToolError: "halt" }],
  RuleEnded: [{ handler: () => Effect.succeed(1) }, { rules: [Rule.make("short", { next: () => Rule.end() })] }],
  Failed: [{ handler: () => Effect.succeed(1) }]
}

interface Row {
  readonly tool?: object
  readonly args?: object
  readonly name?: string
  readonly entry?: object
  readonly options?: object
  readonly layer?: Layer.Layer<never>
}

const done = () => Effect.succeed(1)

/** An executor that knows of each call that its handler had started, and no more. */
const afterCrash = Executor.layer({
  execute: (tool, args, call) => RunJournal.resolveUnknown(tool, args, call, Effect.void, undefined) as never
})

/** A call for each row of the table of calls. */
const rows: Readonly<Record<string, Row>> = {
  "the handler succeeds": { tool: { handler: done } },
  "the handler fails (`Effect.fail`)": { tool: { handler: () => Effect.fail("broken") } },
  "a promise of `call.promise` is rejected": {
    tool: { handler: (_: unknown, call: Tool.CallContext) => call.promise(() => Promise.reject(new Error("no route"))) }
  },
  "the handler dies or throws": { tool: { handler: () => Effect.die("broken") } },
  "the handler interrupts itself": { tool: { handler: () => Effect.interrupt } },
  "it takes too long": { tool: { timeout: 10, handler: () => Effect.never } },
  "it returns no Effect (an `async` function)": { tool: { handler: async () => 1 } },
  "the tool has no handler": { tool: {} },
  "its result has no JSON form": { tool: { handler: () => Effect.succeed(() => 1) } },
  "no such tool": { tool: { handler: done }, name: "other" },
  "the arguments do not fit": { tool: { parameters: { n: Schema.Int }, handler: done }, args: { n: "x" } },
  "the arguments were cut off": { tool: { handler: done }, entry: { argumentsLost: "truncated" } },
  "a gate denies it": { tool: { validate: () => false, handler: done } },
  "it is stopped before its end": { tool: { handler: () => Effect.never }, options: { cancel: Effect.sleep(10) } },
  "it is stopped, or takes too long, and [does not end](stopping.md#the-grace-period)": {
    tool: { timeout: 10, handler: () => Effect.uninterruptible(Effect.never) },
    options: { grace: 10 }
  },
  "the process ended while it ran ([more](tools.md#calls-that-may-have-had-their-effect))": {
    tool: { handler: () => Effect.die("must not run") },
    layer: afterCrash
  },
  "the handler returns `Tool.halt(reason, result)`": {
    tool: { handler: () => Effect.succeed(Tool.halt("enough", 1)) }
  },
  "the handler returns `Tool.askUser(question)`": { tool: { handler: () => Effect.succeed(Tool.askUser("Which?")) } },
  "the call needs an approval": { tool: { approval: true, handler: done } },
  "the call is manual": { tool: { manual: true } }
}

/** The outcome of a raw result as the table writes it. */
const written = (result: Event.Of<"ToolExecutionCompleted">["result"] | undefined): string => {
  if (result?._tag !== "Error") return result === undefined ? "–" : `\`${result._tag}\``
  return result.error instanceof Tool.ToolError ? `\`ToolError\` \`${result.error.reason}\`` : "`Error`"
}

describe("the tables of the guides", () => {
  const outcomes = table("docs/results.md", "`outcome._tag`", "`haltedReason`")

  it("results.md lists every outcome", () => {
    assert.deepStrictEqual([...names(outcomes.map(([tag = ""]) => tag))].sort(), Object.keys(ends).sort())
  })

  for (const [tag = "", reason = "", , , status = ""] of outcomes.map(names)) {
    it.live(`results.md states the reason and the session status of ${tag}`, () =>
      Effect.gen(function*() {
        const [declared, options = {}] = ends[tag as Event.Outcome["_tag"]]
        const tool = Tool.make("t", { parameters: {}, ...declared } as never)
        const second = tag === "Failed" ? [Script.streamError("network_error")] : [Script.finish("stop")]
        const model = Script.layer([
          [Script.toolCall("c0", "t"), Script.finish("tool_calls")],
          [Script.text("Done."), ...second]
        ])
        const { result, session } = yield* Session.start("go", { ...options, tools: [tool] } as never).pipe(
          Effect.provide(model)
        )
        assert.strictEqual(result.outcome._tag, tag)
        const own: Readonly<Record<string, string>> = { Halted: "enough", RuleEnded: "short" }
        assert.strictEqual(result.haltedReason, own[tag] ?? reason)
        assert.strictEqual(session.status, status.startsWith("by its") ? "completed" : status)
      }))
  }

  it("results.md lists every field of a result", () => {
    const fields = Object.keys(Event.ChatResult.fields).filter((name) =>
      !["haltedReason", "pendingQuestion", "pendingToolCallId", "metadata"].includes(name)
    )
    assert.deepStrictEqual(
      [...names(table("docs/results.md", "Field", "What it is").map(([name = ""]) => name))].sort(),
      [
        ...fields
      ].sort()
    )
  })

  it("streaming.md lists every event", () => {
    const listed = names(table("docs/streaming.md", "Event", "Emitted by").map(([tag = ""]) => tag))
    assert.deepStrictEqual([...listed].sort(), [...Event.Event.discriminants].sort())
  })

  /** The events that a column of the drawing in streaming.md has, each with the call that it is of. */
  const drawn = (head: string): ReadonlyArray<string> => {
    const lines = readSource("docs/streaming.md").text.split("\n")
    const start = lines.findIndex((line) => line.includes("a turn with two calls") && line.includes("the last turn"))
    assert.isAtLeast(start, 0)
    const column = lines[start]!.indexOf(head)
    const end = lines.indexOf("```", start)
    const width = head === "the last turn" ? undefined : lines[start]!.indexOf("the last turn")
    return lines.slice(start + 1, end).flatMap((line) => {
      const [, tag, id = ""] = /([A-Z]\w+)(?: …)? *\b([ab])?\b/.exec(line.slice(column, width)) ?? []
      return tag === undefined ? [] : [`${tag} ${id}`.trim()]
    })
  }

  it.live("streaming.md draws the events of two turns in their order", () =>
    Effect.gen(function*() {
      const event = (_tag: string, fields: object) => Script.event({ _tag, ...fields } as never)
      const waits = Tool.make("waits", {
        parameters: {},
        handler: (_, call) => Effect.andThen(Effect.sleep(50), Effect.as(call.progress("half"), 1))
      })
      const answers = Tool.make("answers", { parameters: {}, handler: done })
      const model = Script.layer([
        [
          Script.text("I ask "),
          Script.text("two."),
          event("ToolCallStarted", { id: "a", name: "waits" }),
          event("ToolCallDelta", { id: "a", argumentsDelta: "{}" }),
          event("ToolCallCompleted", { id: "a", name: "waits", arguments: {}, rawArguments: "{}" }),
          Script.toolCall("b", "answers"),
          Script.finish("tool_calls")
        ],
        [Script.text("Done."), Script.finish("stop")]
      ])
      const events = yield* Chat.stream("go", { tools: [waits, answers] }).pipe(
        Stream.runCollect,
        Effect.provide(model)
      )
      const shown = events.map((event) => {
        const id = "id" in event && ["a", "b"].includes(event.id as string) ? ` ${event.id}` : ""
        return `${event._tag}${id}`
      }).filter((words, index, all) => words !== all[index - 1])
      assert.deepStrictEqual([...drawn("a turn with two calls"), ...drawn("the last turn")], shown)
    }))

  it("errors.md lists every reason of AdapterError, and whether the error is retryable", () => {
    const rows = table("docs/errors.md", "`reason`", "Meaning", "`isRetryable`")
    assert.deepStrictEqual(
      [...names(rows.map(([reason = ""]) => reason))].sort(),
      reasonsOf(Adapter.AdapterError as never)
    )
    for (const [reason = "", , passes] of rows.map(names)) {
      const error = new Adapter.AdapterError({ reason: reason as Adapter.AdapterError["reason"] })
      assert.strictEqual(passes === "yes", error.isRetryable, reason)
    }
  })

  for (const [label = "", result = "", last = "", , becomes = ""] of table("docs/errors.md", "What happens")) {
    it.live(`errors.md states result, event and ending of a call: ${label}`, () =>
      Effect.gen(function*() {
        const { args = {}, entry = {}, layer = Layer.empty, name = "t", options = {}, tool } = rows[label]!
        const run = (onToolError: "continue" | "halt") =>
          Chat.stream("go", {
            ...options,
            onToolError,
            tools: [Tool.make("t", { parameters: {}, ...tool } as never)]
          } as never).pipe(
            Stream.runCollect,
            Effect.provide(Script.layer([
              [
                { ...Script.toolCall("c0", name, args as never), ...entry } as Script.Entry,
                Script.finish("tool_calls")
              ],
              [Script.text("Done."), Script.finish("stop")]
            ])),
            Effect.provide(layer),
            Effect.provide(Logger.layer([]))
          )
        const events = yield* run("continue")
        const tail = events.findLast((event) => /^(Tool(Result|Halt|Approval)|AskUser)/.test(event._tag))
        const raw = events.find((event) => event._tag === "ToolExecutionCompleted")
        assert.isTrue(result.startsWith(written(raw?.result)), written(raw?.result))
        assert.strictEqual(tail === undefined ? "–" : `\`${tail._tag}\``, last.replace(", `isError`", ""))
        assert.strictEqual(tail?._tag === "ToolResultEncoded" && tail.isError === true, last.endsWith("`isError`"))
        const outcome = (all: ReadonlyArray<Event.Event>) => {
          const end = all.at(-1)
          return end?._tag === "ChatCompleted" ? end.result.outcome._tag : undefined
        }
        const [, ending] = /^ends as `(\w+)`$/.exec(becomes) ?? []
        const stopped = becomes === "what stopped it decides" ? "Cancelled" : undefined
        assert.strictEqual(outcome(events), ending ?? stopped ?? "Completed")
        if (becomes === "policy") assert.strictEqual(outcome(yield* run("halt")), "ToolFailed")
        if (becomes === "continues") assert.strictEqual(outcome(yield* run("halt")), "Completed")
      }))
  }

  it("errors.md lists every reason of ToolError", () => {
    const rows = table("docs/errors.md", "What happens")
    const told = rows.flatMap(([, result = ""]) => /`ToolError` `(\w+)`/.exec(result)?.[1] ?? [])
    assert.deepStrictEqual([...told].sort(), reasonsOf(Tool.ToolError as never))
  })

  it("sessions.md lists every reason of SessionError", () => {
    const rows = table("docs/sessions.md", "`reason`", "Meaning, and what to do")
    assert.deepStrictEqual(
      [...names(rows.map(([reason = ""]) => reason))].sort(),
      reasonsOf(Session.SessionError as never)
    )
  })

  it("sessions.md lists every reason of StoreError", () => {
    const rows = table("docs/sessions.md", "`StoreError`", "Meaning, and what to do")
    assert.deepStrictEqual(
      [...names(rows.map(([reason = ""]) => reason))].sort(),
      reasonsOf(Journal.StoreError as never)
    )
  })

  it("crashes.md lists every reason of ResumeError", () => {
    const rows = table("docs/crashes.md", "Error", "`reason`", "Meaning, and what to do").map(names)
    const reasons = rows.flatMap(([name, reason = ""]) => name === "ResumeError" ? [reason] : [])
    assert.deepStrictEqual(reasons.sort(), reasonsOf(Session.ResumeError as never))
  })

  it("promises.md lists every record written for a run", () => {
    const rows = table("docs/promises.md", "Record", "Is written").map(names)
    // What begins a session, and what is added between runs.
    const others = ["Opened", "MessagesAppended"]
    const listed = rows.map(([record = ""]) => record)
    assert.deepStrictEqual([...listed, ...others].sort(), Object.keys(Journal.Record.cases).sort())
  })

  /** A tool that waits for an approval, and the model that calls it and then speaks. */
  const pay = { tools: [Tool.make("pay", { parameters: {}, approval: true, handler: done })] }
  const payer = Script.layer([
    [Script.toolCall("c0", "pay"), Script.finish("tool_calls")],
    [Script.text("Paid."), Script.finish("stop")]
  ])
  const asked = Effect.gen(function*() {
    const opened = yield* Session.open("s")
    return yield* Session.keep(opened, (session) => Session.reply(session, "Pay", pay))
  })
  const reopened = Effect.asVoid(Session.open("s"))
  /** For each answer of `Session.next` a session that gives it. */
  const lefts: Readonly<Record<Journal.Next, Effect.Effect<void, unknown, Session.Store | Adapter.Adapter>>> = {
    resume: Effect.flatMap(
      Session.open("s"),
      (opened) =>
        Session.keepStream(opened, (session) => Session.streamReply(session, "Pay", pay)).pipe(
          Stream.takeUntil(({ _tag }) => _tag === "MessageStarted"),
          Stream.runDrain
        )
    ),
    wait: asked,
    reply: Session.submit("s", "Hello"),
    continue: Effect.flatMap(asked, (kept) => Session.keep(kept, (session) => Session.approve(session, "c0"))),
    nothing: reopened
  }
  const nexts = table("docs/sessions.md", "`Session.next`", "The session", "Call")

  it("sessions.md lists every answer of Session.next", () => {
    const words = names(nexts.map(([word = ""]) => word)).map((word): unknown => JSON.parse(word))
    assert.deepStrictEqual(words.toSorted(), Object.keys(lefts).toSorted())
  })

  for (const [cell = "", , calls = ""] of nexts) {
    const word = JSON.parse(names([cell])[0]!) as Journal.Next
    it.effect(`sessions.md and the errors name what to call where Session.next is ${word}`, () =>
      Effect.gen(function*() {
        yield* lefts[word]
        const kept = yield* Session.open("s")
        assert.strictEqual(Session.next(kept), word)
        assert.strictEqual((yield* Session.inspect("s"))?.next, word)
        const named = Array.from(calls.matchAll(/`(Session\.\w+)`/g), ([, name]) => name!)
        assert.isNotEmpty(named)
        for (const name of named) assert.property(Session, name.slice("Session.".length))
        const refused = yield* Effect.result(Session.snapshot(kept))
        const isLeft = word !== "wait" && word !== "nothing"
        assert.strictEqual(Result.isFailure(refused), isLeft)
        if (!Result.isFailure(refused)) return
        const wanted = named.filter((name) => name !== "Session.recover")
        for (const name of wanted) assert.include(refused.failure.message, name)
      }).pipe(Effect.provide(payer), Effect.provide(Session.Store.layerMemory)))
  }

  it("policies.md lists every decision with its standard setting", () => {
    const rows = table("docs/policies.md", "Decision", "`Policy.standard`")
    assert.deepStrictEqual([...names(rows.map(([name = ""]) => name))].sort(), Object.keys(Policy.standard).sort())
    for (const [name = "", setting = ""] of rows.map(names)) {
      const value = (Policy.standard as unknown as Readonly<Record<string, unknown>>)[name]
      if (typeof value === "string") assert.strictEqual(setting, JSON.stringify(value), name)
    }
  })

  it("README has at most 170 lines", () => {
    assert.isAtMost(readSource("README.md").text.split("\n").length, 170)
  })

  it("docs/README lists every public module in import order", () => {
    assert.deepStrictEqual(names(table("docs/README.md", "Module", "What it is for").map(([name = ""]) => name)), order)
    const modules = fs.readdirSync(path.join(root, "src")).filter((name) => name.endsWith(".ts") && name !== "index.ts")
    assert.deepStrictEqual(modules.sort(), order.map((name) => `${name}.ts`).sort())
  })

  it("CONTRIBUTING lists every folder of src/internal, and their import order", () => {
    const folders = rooms.filter((room) => room !== "json" && room !== "telemetry")
    const listed = names(table("CONTRIBUTING.md", "Folder").map(([name = ""]) => name))
    assert.deepStrictEqual([...listed].sort(), [...folders].sort())
    const [, list = ""] = /The import order is another list \(([^)]*)\)/.exec(readSource("CONTRIBUTING.md").text) ?? []
    assert.deepStrictEqual(Array.from(list.matchAll(/`(\w+)`/g), ([, name]) => name), [...rooms])
  })
})
