/**
 * Laws of hashes: each field of what is hashed changes the hash, alone, but for the fields that are listed with a reason.
 * Two commands under one id are the same one exactly where they say the same.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Journal, Message, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as Json from "../../src/internal/json.ts"
import * as Journals from "../../src/internal/session/journal.ts"
import * as Nested from "../../src/internal/session/nested.ts"
import * as Records from "../../src/internal/session/records.ts"
import { altered } from "../support/altered.ts"
import * as Drawn from "../support/keptRecords.ts"
import { unobserved } from "../support/observed.ts"
import { property } from "../support/property.ts"

const session = Session.make({ id: "s" })

const textOf = (value: unknown): string => JSON.stringify(Json.ordered(Json.toJson(value)))

/** The values that differ from this one in one place. A member without a value is left out of its JSON. */
const othersOf = (value: unknown) => {
  const json = Json.toJson(value)
  // Reading drops members that are named `__proto__`.
  return altered(json).filter(([path, other]) => !path.includes("__proto__") && textOf(other) !== textOf(json))
}

const json = Arbitrary.schema(
  Schema.Array(Schema.NullOr(Schema.Literals([true, 0, 1, "", "a", "approved", "denied"]))).check(Schema.isMaxLength(4))
)

/** A value of a few levels, whose members include the names that verdicts have. */
const valueOf = (leaves: ReadonlyArray<unknown>): unknown => {
  const [first, second, ...rest] = leaves
  if (second === undefined) return first ?? null
  return typeof first === "string" && first !== ""
    ? { [first]: valueOf([second, ...rest]) }
    : [first, valueOf([second, ...rest])]
}

type Verb = "answer" | "approve" | "deny"

interface Command {
  readonly verb: Verb
  readonly id: "a" | "b"
  readonly value: unknown
  readonly by: string
}

/** Two calls whose effect is unknown: any verdict fits them. */
const waiting = Effect.gen(function*() {
  const calls = ["a", "b"].map((id) => Message.toolCall(id, "pay"))
  const records: ReadonlyArray<Journal.Record> = [
    Drawn.opened(session),
    Drawn.started("r", { messages: [Message.user("go")] }),
    { _tag: "ReplyReceived", requestId: "r", stepIndex: 0, response: Drawn.replyOf("", calls) },
    ...calls.map(({ id }): Journal.Record => ({
      _tag: "CallWaits",
      requestId: "r",
      toolCallId: id,
      suspensions: [{ id, kind: "unknown" }]
    })),
    { _tag: "StepCompleted", requestId: "r", stepIndex: 0, done: false },
    { _tag: "RunEnded", requestId: "r", haltedReason: "approval_requested" }
  ]
  const store = yield* Session.Store
  const [first, ...rest] = records
  yield* store.append("s", 0, [first!, ...rest])
  return (yield* Session.load("s"))!
})

/** What a verdict says of its call. */
const saidBy = ({ value, verb }: Command): unknown => {
  if (verb === "answer") return { answer: value ?? null }
  if (verb === "approve") return { arguments: Json.isObject(value) ? value : undefined }
  return { reason: typeof value === "string" ? value : undefined }
}

const given = (kept: Session.Kept, command: Command) =>
  Session.keep(kept, (session) => {
    const { by, id, value, verb } = command
    const options = { command: "k", by }
    switch (verb) {
      case "answer":
        return Session.answer(session, id, value, options)
      case "approve":
        return Session.approve(session, id, Json.isObject(value) ? { ...options, arguments: value } : options)
      case "deny":
        return Session.deny(session, id, typeof value === "string" ? value : undefined, options)
    }
  })

const contentOf = ({ id, ...command }: Command): string => textOf([id, command.verb, saidBy({ id, ...command })])

/** What a second command under the same id comes to, where that is wrong. */
const differenceOf = (kept: Session.Kept, command: Command, again: Command) =>
  Effect.gen(function*() {
    const result = yield* Effect.result(given(kept, again))
    const isSame = contentOf(command) === contentOf(again)
    const pair = `${textOf(command)}, then ${textOf(again)}`
    if (Result.isSuccess(result)) {
      const isUnchanged = result.success.version === kept.version
      return isSame && isUnchanged ? [] : [`${pair} is ${isUnchanged ? "the same command" : "appended"}`]
    }
    const { failure } = result
    const isTaken = failure._tag === "SessionError" && failure.reason === "id_taken"
    return !isSame && isTaken ? [] : [`${pair} is refused: ${failure.message}`]
  })

/** Values that are written as others, or not at all. */
const odd = {
  date: new Date(0),
  nothing: undefined,
  function: () => 1,
  symbol: Symbol.iterator,
  bigint: 1n,
  nan: Number.NaN,
  map: new Map([["a", 1]]),
  error: new Error("no"),
  nested: { date: new Date(0), nothing: undefined, function: () => 1, list: [undefined, () => 1, Number.NaN] }
}

/** Content with fields that no part has. */
const extended = (values: object) =>
  [
    { type: "text", text: "a", cacheControl: "x", metadata: { ...values } },
    { type: "text", text: "b", ...values }
  ] as unknown as Message.Content

/** A store that keeps texts, as those of databases do. */
const written = Layer.effect(
  Session.Store,
  Effect.map(Session.Store, (store) =>
    Session.Store.of({
      ...store,
      append: (id, expected, [first, ...rest], options) =>
        Effect.gen(function*() {
          const again = (record: Journal.Record) =>
            Effect.flatMap(Journals.toText(id, record), (text) => Journals.fromText(id, text))
          const records = yield* Effect.forEach(rest, again)
          return yield* store.append(id, expected, [yield* again(first), ...records], options)
        })
    }))
).pipe(Layer.provide(Session.Store.layerMemory))

describe("values that JSON writes as other values", () => {
  const cases = [
    ...Object.entries(odd).map(([name, value]) => [name, { [name]: value }] as const),
    ["all", odd] as const
  ]

  for (const [name, values] of cases) {
    it.effect(`Journal.check passes a journal with values that JSON writes as other values: ${name}`, () =>
      Effect.gen(function*() {
        // The state keeps values as the program has given them, as long as the process lives.
        unobserved()
        const note = Tool.make("note", {
          parameters: {},
          handler: (_, call) => Effect.as(call.updateContext({ ...values }), Tool.content(extended(values) as []))
        })
        const model = yield* Script.make([
          [Script.toolCall("c", "note"), Script.finish("tool_calls")],
          [Script.text("done"), Script.finish("stop")],
          [Script.text("done"), Script.finish("stop")]
        ])
        const opened = yield* Session.open("s", { metadata: { ...values } } as {})
        const options = { tools: [note], context: { ...values } } as {}
        const kept = yield* Session.keep(opened, (session) => Session.reply(session, extended(values), options)).pipe(
          Effect.provide(model.layer)
        )
        yield* Session.keep(kept, (session) => Session.reply(session, "again", options)).pipe(
          Effect.provide(model.layer)
        )
        const store = yield* Session.Store
        const records = Array.from(yield* Stream.runCollect(store.read("s")), ({ record }) => record)
        assert.isAbove(records.length, 6)
        assert.deepStrictEqual(Journal.check(records), [])
      }).pipe(Effect.provide(written)))

    it.effect(`a message submitted again is the same message, with values that JSON writes as other values: ${name}`, () =>
      Effect.gen(function*() {
        const first = yield* Session.submit("s", extended(values), { id: "m" })
        assert.deepStrictEqual((yield* Session.submit("s", extended(values), { id: "m" })).id, first.id)
        const other = yield* Effect.flip(Session.submit("s", "another", { id: "m" }))
        assert.deepInclude(other, { _tag: "SessionError", reason: "id_taken" })
        const records = Array.from(yield* Stream.runCollect((yield* Session.Store).read("s")))
        assert.strictEqual(records.filter(({ record }) => record._tag === "MessageSubmitted").length, 1)
      }).pipe(Effect.provide(written)))
  }
})

describe("hashes", () => {
  const values = [
    null,
    {},
    [],
    "",
    "no",
    1,
    ...["answered", "approved", "denied"].flatMap((name) => [
      { [name]: null },
      { [name]: {} },
      { [name]: "no" }
    ])
  ]

  const commands = (["answer", "approve", "deny"] as const).flatMap((verb) =>
    (["a", "b"] as const).flatMap((id) => values.map((value): Command => ({ verb, id, value, by: "ann" })))
  )

  it.live("two verdicts under one command id are one verdict exactly where they say the same of the same call", () =>
    Effect.gen(function*() {
      for (const command of commands) {
        const problems = yield* Effect.gen(function*() {
          const kept = yield* given(yield* waiting, command)
          const problems = yield* Effect.forEach(commands, (again) => differenceOf(kept, command, again))
          return [...problems, yield* differenceOf(kept, command, { ...command, by: "ben" })].flat()
        }).pipe(Effect.provide(Session.Store.layerMemory, { local: true }))
        assert.deepStrictEqual(problems, [])
      }
    }))

  property(
    "two messages under one id are one exactly where they have the same content, from any sender",
    Arbitrary.schema(Message.Message),
    ({ content }) =>
      Effect.gen(function*() {
        const isRefused = (content: Message.Content, by: string) =>
          Effect.map(Effect.result(Session.submit("s", content, { id: "m", by })), Result.isFailure)
        yield* Session.submit("s", content, { id: "m", by: "ann" })
        const others = othersOf(content).filter(([, other]) =>
          Schema.is(Message.Message)({ ...Message.user(""), content: other })
        )
        const problems = yield* Effect.filter(others, ([, other]) =>
          Effect.map(isRefused(other as Message.Content, "ann"), (isRefused) => !isRefused))
        return [
          ...(yield* isRefused(content, "ben")) ? ["the same message of another sender is refused"] : [],
          ...problems.map(([path]) =>
            `another ${path} is the same message`
          )
        ]
      }).pipe(Effect.provide(Session.Store.layerMemory, { local: true })),
    300
  )

  property(
    "the id of a nested run has the session, the call and every field of its input",
    Arbitrary.schema(Message.Message),
    (message) =>
      Effect.sync(() => {
        const idOf = (message: unknown, id = "s", toolCallId: string | undefined = "c") =>
          new Nested.Ids(id, toolCallId).take({ messages: [message as Message.Message], metadata: {} }).id
        const id = idOf(message)
        const ids = [
          idOf(message, "t"),
          idOf(message, "s", "d"),
          idOf(message, "s/", "c"),
          new Nested.Ids("s", undefined).take({ messages: [message], metadata: {} }).id
        ]
        return [
          ...(ids.includes(id) ? ["another session or call has the same run"] : []),
          ...(Nested.isWithin("s", id) && Nested.mayBeNested(id) ? [] : [`${id} is no id of a nested run`]),
          ...othersOf(message).flatMap(([path, other]) => idOf(other) === id ? [`another ${path} is the same run`] : [])
        ]
      }),
    500
  )

  property(
    "the fingerprint of a journal has every field of a record, what is before it, and nothing of its own",
    Arbitrary.schema(Journal.Record),
    (record) =>
      Effect.sync(() => {
        const of = (record: unknown, before = "before") => Records.fingerprint(before, record as Journal.Record)
        const own = of(record)
        // The order of members does not count, and neither do members without anything in them, which reading adds, or
        // those that it drops.
        const isEmpty = (member: unknown) =>
          Json.isObject(member) && Object.keys(member).every((name) => name === "__proto__")
        const shown = (value: unknown) =>
          JSON.stringify(value, function(this: unknown, _, member: unknown) {
            return isEmpty(member) && !Array.isArray(this) ? undefined : member
          })
        const others = othersOf(record).filter(([path, other]) =>
          path !== "after" && path !== "_tag" && shown(other) !== shown(Json.toJson(record))
        )
        const isFirst = record._tag === "Opened"
        return [
          ...(of({ ...record, after: "other" }) === own ? [] : ["its own fingerprint counts"]),
          ...((of(record, "other") === own) === isFirst ? [] : ["what is before it does not count"]),
          ...others.flatMap(([path, other]) => of(other) === own ? [`another ${record._tag}.${path} is the same`] : [])
        ]
      }),
    200
  )

  property(
    "the fingerprint of a record is that of the record as it is read, also where a value has a member called __proto__",
    Arbitrary.schema(Journal.Record),
    (record) =>
      Effect.gen(function*() {
        const named = (value: unknown) => Object.defineProperty({ seen: 1 }, "__proto__", { value, enumerable: true })
        const within = {
          empty: named({}),
          only: Object.defineProperty({}, "__proto__", { value: 1, enumerable: true })
        }
        const ended: Journal.Record = {
          _tag: "RunEnded",
          requestId: "r",
          haltedReason: "completed",
          metadata: { ...within, list: [within] }
        }
        const problems = yield* Effect.forEach([record, ended], (one) =>
          Effect.gen(function*() {
            const read = yield* Journals.fromText("s", yield* Journals.toText("s", one))
            const [left, right] = [one, read].map((record) => Records.textOf(record))
            return left === right ? [] : [`${left}, and ${right} as it is read`]
          }))
        return problems.flat()
      }),
    300
  )

  it.effect("the idempotency key of a call depends on its run, its turn, its place and its id", () =>
    Effect.sync(() => {
      const keyOf = (requestId: string, stepIndex: number, calls: ReadonlyArray<string>, id: string) => {
        const steps = Array.from({ length: stepIndex }, (_, index): Journal.Record => ({
          _tag: "StepCompleted",
          requestId,
          stepIndex: index,
          done: false,
          response: Drawn.replyOf("")
        }))
        const response = Drawn.replyOf("", calls.map((id) => Message.toolCall(id, "pay")))
        const state = Drawn.foldedFrom([
          Drawn.opened(session),
          Drawn.started(requestId),
          ...steps,
          { _tag: "ReplyReceived", requestId, stepIndex, response }
        ])
        return state.turn?.calls.get(id)?.idempotencyKey
      }
      const keys = [
        keyOf("r", 0, ["a", "b"], "a"),
        keyOf("r2", 0, ["a", "b"], "a"),
        keyOf("r", 1, ["a", "b"], "a"),
        keyOf("r", 0, ["b", "a"], "a"),
        keyOf("r", 0, ["c", "b"], "c")
      ]
      assert.strictEqual(new Set(keys).size, keys.length, keys.join(" "))
      assert.notInclude(keys, undefined)
    }))

  property(
    "a hash has every field of its value, and not their order",
    json,
    (leaves) =>
      Effect.sync(() => {
        const value = { a: valueOf(leaves), b: { c: leaves, d: 1 } }
        const turned = { b: { d: 1, c: leaves }, a: valueOf(leaves) }
        return [
          ...(Records.hashOf(turned) === Records.hashOf(value) ? [] : ["the order counts"]),
          ...othersOf(value).flatMap(([path, other]) =>
            Records.hashOf(other) === Records.hashOf(value) ? [`another ${path} has the same hash`] : []
          )
        ]
      }),
    1000
  )
})
