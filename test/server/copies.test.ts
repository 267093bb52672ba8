/**
 * Copies of the fold that a process keeps of a journal: each request has one of its own, at the place where the last
 * request stopped. A copy tells what the fold of the same records tells, and no copy sees another one.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as SharedMessages from "../../src/internal/fold/sharedMessages.ts"
import type * as Records from "../../src/internal/session/records.ts"
import * as States from "../../src/internal/session/state.ts"
import * as JournalEvents from "../../src/server/internal/journalEvents.ts"
import { property } from "../support/property.ts"
import { journalOf, programs } from "./support/programs.ts"

/**
 * Everything that an object has, without the options that it was made with, and without the session that a fold has given
 * out: a field that is added is compared, too.
 */
const fieldsOf = (value: unknown): unknown => {
  if (value instanceof Map) return Array.from(value, ([key, item]) => [fieldsOf(key), fieldsOf(item)])
  if (value instanceof Set) return Array.from(value, fieldsOf)
  if (Array.isArray(value)) return value.map(fieldsOf)
  if (typeof value !== "object" || value === null) return value
  return Object.fromEntries(
    Object.entries(value).filter(([name]) => name !== "options" && name !== "given").map((
      [name, item]
    ) => [name, fieldsOf(item)])
  )
}

const viewOf = (telling: JournalEvents.Telling): string => JSON.stringify(fieldsOf(telling))

type Entries = ReadonlyArray<{ readonly version: number; readonly record: Records.Record }>

/** What each record tells, and the fold behind each of them. */
const folded = (entries: Entries) => {
  const telling = new JournalEvents.Telling("s", {})
  const told: Array<string> = []
  const views = [viewOf(telling)]
  for (const entry of entries) {
    told.push(JSON.stringify(telling.take(entry)))
    views.push(viewOf(telling))
  }
  return { told, views }
}

describe("the copy of a fold", () => {
  property(
    "O-58: a copy of a fold tells at each cut what the fold of the same records tells, and neither sees the other's changes",
    programs,
    (program) =>
      Effect.map(journalOf(program), (entries) => {
        const wrong: Array<string> = []
        const { told, views } = folded(entries)
        const compare = (telling: JournalEvents.Telling, at: number, name: string) => {
          if (viewOf(telling) !== views[at]) wrong.push(`${name} has ${viewOf(telling)} at ${at}, not ${views[at]}`)
        }
        const goOn = (telling: JournalEvents.Telling, cut: number, name: string) => {
          for (let at = cut; at < entries.length; at++) {
            const text = JSON.stringify(telling.take(entries[at]!))
            if (text !== told[at]) wrong.push(`${name}, cut at ${cut}, tells of record ${at} ${text}, not ${told[at]}`)
            compare(telling, at + 1, `${name}, cut at ${cut},`)
          }
        }
        for (let cut = 0; cut <= entries.length && wrong.length === 0; cut++) {
          const original = new JournalEvents.Telling("s", {})
          for (const entry of entries.slice(0, cut)) original.take(entry)
          const [first, second] = [original.copy({}), original.copy({})]
          goOn(first, cut, "the first copy")
          compare(original, cut, "the original")
          compare(second, cut, "the second copy")
          goOn(original, cut, "the original")
          compare(second, cut, "the second copy")
          goOn(second.copy({}), cut, "the copy of a copy")
        }
        return wrong.slice(0, 3)
      }),
    100
  )
})

/** Returns a value for a field of a fold that no fold has before its first record. */
const filled = (name: string, value: unknown): unknown => {
  if (value instanceof Map) return new Map([[`a key of ${name}`, `a value of ${name}`]])
  if (value instanceof Set || name === "reply") return new Set([`a member of ${name}`])
  if (Array.isArray(value)) return [`an item of ${name}`]
  return typeof value === "number" ? 7 : `a value of ${name}`
}

/** Changes a value in place, where it can be. */
const grown = (value: unknown): void => {
  if (value instanceof Map) value.set("later", "later")
  else if (value instanceof Set) value.add("later")
  else if (Array.isArray(value)) value.push("later")
}

describe("the fields of a fold", () => {
  // Programs do not come to all of them: rules that add messages, typed answers, processes that end within a reply.
  it("O-58: a copy of a fold has every field, and shares no mutable field with the fold", () => {
    const original = new JournalEvents.Telling("s", {}) as any
    const names = Object.keys(original).filter((name) => name !== "fold" && name !== "options")
    for (const name of names) original[name] = filled(name, original[name])
    const copy = original.copy({})
    for (const name of names) {
      assert.deepStrictEqual(fieldsOf(copy[name]), fieldsOf(original[name]), name)
      const before = JSON.stringify(fieldsOf(original[name]))
      // A list that is replaced and never changed is shared.
      if (name !== "settled") grown(copy[name])
      assert.strictEqual(JSON.stringify(fieldsOf(original[name])), before, name)
    }
    assert.isAbove(names.length, 20)
  })
})

/** The places of the turns, and the open run, as the state of the journal has them behind each record. */
const followed = (entries: Entries) => {
  const state = States.initial("s")
  const turns = new Map<number, string>()
  const name = (runId: string, behind: 0 | 1) => {
    const { run, thread, turn } = state
    if (run === undefined) return
    const place = turn === undefined
      ? SharedMessages.findLastIndex(thread, SharedMessages.isReply)
      : SharedMessages.length(thread)
    turns.set(place, `${runId}-${run.steps.length + behind}`)
  }
  return entries.map(({ record }) => {
    States.apply(state, record)
    if (record._tag === "ReplyReceived") name(record.requestId, 1)
    if (record._tag === "StepCompleted") name(record.requestId, 0)
    return JSON.stringify([Array.from(turns), state.run?.requestId, state.run?.processName])
  })
}

describe("a fold", () => {
  property(
    "O-58: a fold names turns by their places and has the open run, like the journal state after each record",
    programs,
    (program) =>
      Effect.map(journalOf(program), (entries) => {
        const telling = new JournalEvents.Telling("s", {})
        const own = entries.map((entry) => {
          telling.take(entry)
          return JSON.stringify([Array.from(telling.turns), telling.running, telling.driver])
        })
        return followed(entries).flatMap((text, at) =>
          text === own[at] ? [] : [`record ${at}: ${own[at]}, not ${text}`]
        )
      }),
    100
  )
})

/** What happens to the folds that a process keeps: each has so many bytes. */
const keepings = Arbitrary.schema(
  Schema.Array(Schema.Struct({
    does: Schema.Literals(["keep", "keep", "keep", "forget"]),
    key: Schema.Literals(["a", "b", "c", "d", "e"]),
    bytes: Schema.Literals([0, 10, 40, 60, 101])
  })).check(Schema.isMaxLength(30))
)

describe("the folds that a process keeps", () => {
  property(
    "O-58: a process keeps the last used folds, as many as a plain list has room for",
    keepings,
    (program) =>
      Effect.sync(() => {
        const [mostBytes, mostFolds] = [100, 3]
        const folds = new JournalEvents.Folds(mostBytes, mostFolds)
        let list: ReadonlyArray<{ readonly key: string; readonly bytes: number }> = []
        for (const { bytes, does, key } of program) {
          list = list.filter((each) => each.key !== key)
          if (does === "forget") folds.forget(key)
          else {
            const telling = new JournalEvents.Telling(key, {})
            folds.keep(key, { telling, bytes, last: { _tag: "MessagesAppended", messages: [] } })
            if (bytes <= mostBytes) list = [...list, { key, bytes }]
            while (list.length > mostFolds || list.reduce((sum, each) => sum + each.bytes, 0) > mostBytes) {
              list = list.slice(1)
            }
          }
          const kept = ["a", "b", "c", "d", "e"].filter((each) => folds.get(each) !== undefined)
          const listed = list.map((each) => each.key).sort()
          if (kept.join() !== listed.join()) {
            return [`${kept.join()} are kept, not ${listed.join()}, after ${JSON.stringify({ does, key, bytes })}`]
          }
        }
        return []
      }),
    2_000
  )
})
