/**
 * The errors of a run that was resumed: as they are in the run that was not interrupted, with their tags, reasons and
 * messages, and as instances of their classes.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, type Journal, Message, Session, Step, Tool } from "heddle"
import { SessionStore } from "heddle/sql"
import * as States from "../../src/internal/session/state.ts"

const stores = {
  "in memory": Session.Store.layerMemory,
  "on SQLite": SessionStore.layerSqlite({ filename: ":memory:" })
} as const

/** A model that calls a tool, and whose second reply breaks. */
const breaking = (tool: string, error?: Adapter.AdapterError) =>
  Adapter.layer({
    stream: ({ messages }) => {
      const isFirst = !messages.some(({ role }) => role === "tool") &&
        !messages.some((message) => Message.text(message) === "inner")
      const started = { _tag: "MessageStarted" as const, message: Message.assistant("") }
      const text = { _tag: "TextDelta" as const, id: null, delta: "so f" }
      if (!isFirst && error !== undefined) return Stream.concat(Stream.make(started, text), Stream.fail(error))
      const call = Message.toolCall("c0", tool, {})
      return Stream.make(
        started,
        { _tag: "ToolCallStarted" as const, id: "c0", name: tool },
        { _tag: "ToolCallCompleted" as const, id: "c0", name: tool, arguments: {}, rawArguments: "{}", metadata: {} },
        {
          _tag: "MessageCompleted" as const,
          message: Message.assistant("", [call]),
          finishReason: "tool_calls" as const
        }
      )
    }
  })

const factsOf = (error: unknown) => {
  const { _tag, detail, message, reason, status } = error as Record<string, unknown>
  const metadata = (error as { readonly metadata?: unknown }).metadata
  return {
    _tag,
    detail,
    message,
    reason,
    status,
    metadata,
    isError: error instanceof Error,
    kind: (error as object).constructor.name
  }
}

/** The results of a run that is whole, and of the same run resumed behind each of its records. */
const resultsOf = (
  store: (typeof stores)[keyof typeof stores],
  tools: ReadonlyArray<Tool.Any>,
  model: ReturnType<typeof breaking>
) =>
  Effect.gen(function*() {
    const given = { tools: tools as [], requestId: "run" }
    const records: Array<Journal.Record> = []
    const children = new Map<string, ReadonlyArray<Journal.Record>>()
    const whole = yield* Effect.gen(function*() {
      const opened = yield* Session.open("s")
      const done = yield* Session.keep(opened, (session) => Session.reply(session, "go", given))
      const { list, read } = yield* Session.Store
      for (const { id } of yield* Stream.runCollect(list())) {
        const found = (yield* Stream.runCollect(read(id))).map(({ record }) => record)
        if (id === "s") records.push(...found)
        else children.set(id, found)
      }
      const loaded = yield* Session.load("s")
      return { result: done.value.result, error: loaded!.session.metadata["error"] }
    }).pipe(Effect.provide(store, { local: true }))
    const cut: Array<{ readonly result: Event.ChatResult; readonly error: unknown }> = []
    for (let count = 2; count < records.length; count++) {
      yield* Effect.gen(function*() {
        const { append } = yield* Session.Store
        const write = (id: string, some: ReadonlyArray<Journal.Record>) => {
          const state = States.initial(id)
          for (const record of some) States.apply(state, record)
          return append(id, 0, some as Journal.Records, { summary: States.summaryOf(state) })
        }
        yield* write("s", records.slice(0, count))
        for (const [id, found] of children) yield* write(id, found)
        const kept = (yield* Session.load("s"))!
        const done = yield* Session.resume(kept, { ...given, takeOver: true })
        cut.push({ result: done.value.result, error: (yield* Session.load("s"))!.session.metadata["error"] })
      }).pipe(Effect.provide(store, { local: true }))
    }
    return { whole, cut }
  }).pipe(Effect.provide(model))

const broken = new Adapter.AdapterError({
  reason: "invalid_request",
  detail: "messages.1: no",
  provider: "openai",
  status: 400,
  metadata: { field: "messages" }
})

for (const [where, store] of Object.entries(stores)) {
  describe(`the error of a resumed run, ${where}`, () => {
    it.effect("O-02: a resumed run with a broken reply has the adapter's error, at each record", () =>
      Effect.gen(function*() {
        const note = Tool.make("note", { parameters: {}, readOnly: true, handler: () => Effect.succeed("noted") })
        const { cut, whole } = yield* resultsOf(store, [note], breaking("note", broken))
        assert.instanceOf((whole.result.outcome as { readonly error?: unknown }).error, Adapter.AdapterError)
        assert.isAbove(cut.length, 3)
        for (const { error, result } of [whole, ...cut]) {
          const { outcome } = result
          assert(outcome._tag === "Failed")
          assert.instanceOf(outcome.error, Adapter.AdapterError)
          assert.deepStrictEqual(factsOf(outcome.error), factsOf(broken))
          assert.deepStrictEqual(factsOf(result.steps.at(-1)?.response.error), factsOf(broken))
          assert.instanceOf(error, Adapter.AdapterError)
          assert.deepStrictEqual(factsOf(error), factsOf(broken))
          assert.isFalse((error as Adapter.AdapterError).isRetryable)
        }
      }))

    it.effect("O-02: a sub-agent's error reaches its parent unchanged, also where the sub-agent had ended", () =>
      Effect.gen(function*() {
        const seen: Array<unknown> = []
        const sub = Tool.fromChat("sub", {
          parameters: {},
          chat: () => Chat.stream("inner"),
          result: ({ outcome }) => {
            seen.push(outcome._tag === "Failed" ? outcome.error : outcome)
            return Effect.succeed("failed")
          }
        })
        yield* resultsOf(store, [sub], breaking("sub", broken))
        assert.isAbove(seen.length, 1)
        for (const error of seen) assert.deepStrictEqual(factsOf(error), factsOf(broken))
      }))

    it.effect("O-02: an exception of onToolError has the same tag and message in a resumed run", () =>
      Effect.gen(function*() {
        class OutOfPaper extends Schema.TaggedError<OutOfPaper>("test/OutOfPaper")("OutOfPaper", { tray: Schema.Int }) {
          override get message(): string {
            return `tray ${this.tray} is empty`
          }
        }
        const print = Tool.make("print", {
          parameters: {},
          failure: OutOfPaper,
          onToolError: () => {
            throw new OutOfPaper({ tray: 2 })
          },
          handler: () => Effect.fail(new OutOfPaper({ tray: 1 }))
        })
        const { cut, whole } = yield* resultsOf(store, [print], breaking("print"))
        const exceptionOf = ({ outcome }: Event.ChatResult) =>
          outcome._tag === "ToolFailed" ? outcome.onToolErrorException : outcome
        const { _tag, message } = factsOf(exceptionOf(whole.result))
        for (const { result } of cut) {
          const facts = factsOf(exceptionOf(result))
          assert.deepStrictEqual([facts._tag, facts.message], [_tag, message])
        }
        // A class that is not the package's own is data that says what it was.
        assert.deepStrictEqual([_tag, message], ["OutOfPaper", "tray 2 is empty"])
      }))
  })
}

describe("an error in a journal", () => {
  it.effect("O-02: a recorded error is loaded as an instance of its class, and other data stay data", () =>
    Effect.gen(function*() {
      const errors: ReadonlyArray<unknown> = [
        broken,
        new Adapter.AdapterError({
          reason: "unknown",
          cause: new Tool.ToolError({ reason: "timeout", toolName: "x" })
        }),
        new Tool.ToolError({
          reason: "denied",
          toolName: "pay",
          toolCallId: "c0",
          detail: "no",
          metadata: { gate: "a" }
        }),
        new Step.EngineError({ reason: "missing_adapter", detail: "none" }),
        new Tool.ChatFailed({ reason: "max_turns" }),
        new Session.SessionError({ reason: "expired", detail: "late" }),
        new Session.ResumeError({ reason: "too_old", id: "s", detail: "old" })
      ]
      const store = yield* Session.Store
      const opened: Journal.Record = { _tag: "Opened", format: 1, session: Session.make() }
      const started = (requestId: string): Journal.Record => ({
        _tag: "RunStarted",
        requestId,
        operation: "reply",
        startedAt: 0,
        messages: [Message.user("go")]
      })
      const data = [{ _tag: "AdapterError", reason: "unknown" }, { _tag: "Other", message: "x" }, "text", null, 7]
      for (const [index, error] of [...errors, ...data].entries()) {
        const id = `s${index}`
        const ended: Journal.Record = {
          _tag: "RunEnded",
          requestId: "r",
          haltedReason: "error",
          status: "error",
          metadata: { error }
        }
        yield* store.append(id, 0, [opened, started("r"), ended])
        const loaded = (yield* Session.load(id))!.session.metadata["error"]
        if (index >= errors.length) {
          assert.deepStrictEqual(loaded, error)
          continue
        }
        assert.deepStrictEqual(factsOf(loaded), factsOf(error))
        const { cause } = error as { readonly cause?: unknown }
        if (cause !== undefined) assert.deepStrictEqual(factsOf((loaded as Error).cause), factsOf(cause))
        const snapshot = yield* Session.snapshot((yield* Session.load(id))!)
        assert.deepStrictEqual(factsOf(snapshot.session.metadata["error"]), factsOf(error))
        assert.deepStrictEqual(factsOf((yield* Session.load(id))!.session.metadata["error"]), factsOf(error))
      }
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})
