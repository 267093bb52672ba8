/**
 * What is measured of runs that are kept: what a call costs without a store and with it, how often a turn is committed, how
 * many bytes it takes, and how long a journal takes to load.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { type Journal, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { randomBytes } from "node:crypto"
import { median } from "../statistics.ts"
import { expect, type Figures, type Size, type Workload } from "../workload.ts"
import type { Measured } from "./stores.ts"

/** A workload, on a store that is new. */
export interface Kept extends Pick<Workload, "title" | "note" | "metrics"> {
  readonly run: (store: Measured, size: Size) => Effect.Effect<Figures, unknown>
}

const turns = 2

/** Of more characters than a database would compress. */
const text = (characters: number): string => randomBytes(Math.ceil(characters / 2)).toString("hex")

/** Two turns of so many calls, whose results have so many characters, and an answer. */
const workload = (calls: number, characters: number, turnsOfCalls = turns) => {
  const result = text(characters)
  const read = Tool.make("read", {
    parameters: { line: Schema.Finite },
    handler: () => Effect.succeed(result)
  })
  const reply = (turn: number) => [
    ...Array.from({ length: calls }, (_, line) => Script.toolCall(`call_${turn}_${line}`, "read", { line })),
    Script.finish("tool_calls")
  ]
  const replies = Array.from({ length: turnsOfCalls }, (_, turn) => reply(turn))
  const options = { tools: [read], maxTurns: turnsOfCalls + 1, maxConcurrency: calls }
  return {
    options,
    model: Script.layer([...replies, [Script.text("Done."), Script.finish("stop")]]),
    check: (session: Session.Session) =>
      expect("messages", session.thread.messages.length, turnsOfCalls * (calls + 1) + 2)
  }
}

const timed = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.suspend(() => {
    const start = performance.now()
    return Effect.map(effect, (value) => ({ value, millis: performance.now() - start }))
  })

/** A run that is kept under an id. */
const keep = (id: string, { check, model, options }: ReturnType<typeof workload>) =>
  Effect.gen(function*() {
    const opened = yield* Session.open(id)
    const { millis, value } = yield* timed(
      Session.keep(opened, (session) => Session.reply(session, "go", options))
    )
    check(value.session)
    return millis
  }).pipe(Effect.provide(model))

const alone = ({ check, model, options }: ReturnType<typeof workload>) =>
  Effect.gen(function*() {
    const { millis, value } = yield* timed(Session.reply(Session.make(), "go", options))
    check(value.session)
    return millis
  }).pipe(Effect.provide(model))

const rounds: Readonly<Record<Size, number>> = { full: 300, quick: 80, check: 1 }

/** Milliseconds a call, without a store and with it, taken in turn. The first half of the runs is for the compiler. */
const costOf = (calls: number, size: Size) =>
  Effect.gen(function*() {
    const without: Array<number> = []
    const within: Array<number> = []
    const store = yield* Session.Store
    for (let round = 0; round < rounds[size]; round++) {
      without.push(yield* alone(workload(calls, 10)))
      within.push(yield* keep("cost", workload(calls, 10)))
      yield* store.delete("cost")
    }
    const perCall = (times: ReadonlyArray<number>) => median(times.slice(times.length >> 1)) / (turns * calls)
    return { without: perCall(without), within: perCall(within) }
  })

/** How often a turn more is committed. */
const commitsOf = (calls: number) =>
  Effect.gen(function*() {
    let commits = 0
    const counting = Layer.effect(
      Session.Store,
      Effect.map(Session.Store, (store): Journal.Service => ({
        ...store,
        append: (id, expected, records) => {
          commits++
          return store.append(id, expected, records)
        }
      }))
    )
    const commitsIn = (turns: number) =>
      Effect.gen(function*() {
        commits = 0
        yield* Effect.provide(keep(`commits-${calls}-${turns}`, workload(calls, 10, turns)), counting)
        return commits
      })
    const few = yield* commitsIn(1)
    return ((yield* commitsIn(5)) - few) / 4
  })

/** K1 */
const cost: Kept = {
  title: "K1 a call of a run that is kept",
  note:
    "Two turns of 5 or 32 calls that start together, and an answer; ms per call over the whole run, without a store "
    + "and with it. Commits: how often a turn of 5, 32 and 64 such calls is written.",
  metrics: {
    without5: { label: "5: without" },
    within5: { label: "5: with" },
    without32: { label: "32: without" },
    within32: { label: "32: with" },
    commits5: { label: "commits: 5" },
    commits32: { label: "32" },
    commits64: { label: "64" }
  },
  run: (store, size) =>
    Effect.gen(function*() {
      const five = yield* costOf(5, size)
      const many = yield* costOf(32, size)
      return {
        within5: five.within,
        without5: five.without,
        within32: many.within,
        without32: many.without,
        commits5: yield* commitsOf(5),
        commits32: yield* commitsOf(32),
        commits64: yield* commitsOf(64)
      }
    }).pipe(Effect.provide(store.layer))
}

const stored: Readonly<Record<Size, number>> = { full: 200, quick: 60, check: 1 }

/** K2 */
const bytes: Kept = {
  title: "K2 bytes of a run that is kept",
  note:
    "What sessions of two turns take on the disk. Over results: 5 calls a turn with results of 100 kB, the bytes over "
    + "those of the results. A call: bytes a call besides, with results of 10 bytes.",
  metrics: { large: { label: "over results" }, small5: { label: "a call, 5" }, small32: { label: "a call, 32" } },
  run: (store, size) =>
    Effect.gen(function*() {
      const grown = (name: string, calls: number, characters: number, sessions: number) =>
        Effect.gen(function*() {
          const before = yield* store.bytes
          yield* Effect.provide(
            Effect.forEach(
              Array.from({ length: sessions }, (_, index) => `${name}-${index}`),
              (id) => keep(id, workload(calls, characters)),
              { discard: true }
            ),
            store.layer
          )
          return ((yield* store.bytes) - before) / (sessions * turns * calls)
        })
      // The tables are made before anything is counted.
      yield* Effect.provide(Session.open("first"), store.layer)
      const small5 = yield* grown("five", 5, 10, stored[size])
      const small32 = yield* grown("many", 32, 10, stored[size])
      const large = yield* grown("large", 5, 100_000, Math.ceil(stored[size] / 20))
      return { large: large / 100_000, small5: small5 - 10, small32: small32 - 10 }
    })
}

const journals: Readonly<Record<Size, readonly [few: number, many: number]>> = {
  full: [1_000, 10_000],
  quick: [1_000, 10_000],
  check: [50, 100]
}

/** A session of about so many records, which are written a hundred at a time. */
const journal = (id: string, records: number) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const calls = 5
    const turns = Math.round(records / (2 * calls + 2))
    const entries = yield* Effect.gen(function*() {
      yield* keep(id, workload(calls, 100, turns))
      const memory = yield* Session.Store
      return yield* Stream.runCollect(memory.read(id))
    }).pipe(Effect.provide(Layer.fresh(Session.Store.layerMemory)))
    for (let start = 0; start < entries.length; start += 100) {
      const [first, ...rest] = entries.slice(start, start + 100).map(({ record }) => record)
      if (first !== undefined) yield* store.append(id, start, [first, ...rest])
    }
    return { records: entries.length, messages: turns * (calls + 1) + 2 }
  })

const loadOf = (id: string, messages: number, size: Size) =>
  Effect.gen(function*() {
    const times: Array<number> = []
    for (let round = 0; round < (size === "check" ? 1 : 9); round++) {
      const { millis, value } = yield* timed(Session.load(id))
      expect("messages", value?.session.thread.messages.length, messages)
      times.push(millis)
    }
    return median(times)
  })

/** K3 */
const load: Kept = {
  title: "K3 loading a session",
  note:
    "A session of 1,000 and of 10,000 records from its whole journal, and from the snapshot that takes its place; ms. "
    + "Growth: ten times the records over ten times the time, 1 where it is linear.",
  metrics: {
    few: { label: "1,000" },
    many: { label: "10,000" },
    growth: { label: "growth" },
    snapshot: { label: "10,000, snapshot" }
  },
  run: (store, size) =>
    Effect.gen(function*() {
      const [fewRecords, manyRecords] = journals[size]
      const small = yield* journal("few", fewRecords)
      const large = yield* journal("many", manyRecords)
      const few = yield* loadOf("few", small.messages, size)
      const many = yield* loadOf("many", large.messages, size)
      const loaded = yield* Session.load("many")
      if (loaded !== undefined) yield* Session.snapshot(loaded)
      const snapshot = yield* loadOf("many", large.messages, size)
      return { few, many, growth: many / few / (large.records / small.records), snapshot }
    }).pipe(Effect.provide(store.layer))
}

export const workloads: Readonly<Record<string, Kept>> = { K1: cost, K2: bytes, K3: load }
