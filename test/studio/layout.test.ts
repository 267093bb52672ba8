/** The places of the picture: first fit, blocks of runs inside calls, and a layout that grows with its run. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Chat } from "heddle"
import * as Fold from "../../src/studio/data/fold.ts"
import * as Layouts from "../../src/studio/run/layout.ts"
import { manyCalls } from "./support/many.ts"
import * as Shop from "./support/shop.ts"
import { foldOf, tell } from "./support/told.ts"

const weaving = tell(Chat.stream("weave", { ...Shop.options, cancel: Effect.sleep(8800) }), Shop.model)
const ordering = tell(Chat.stream("order both", Shop.options), Shop.model)
const delegating = tell(Chat.stream("delegate", Shop.options), Shop.model)

/** The rows with the paths of their calls, and the blocks. */
const shape = (layout: Layouts.Layout) => ({
  rows: layout.rows.map((bars) => bars.map(({ call }) => call.path)),
  bands: layout.bands.map((bands) => bands.map(({ turn }) => `${turn.owner}:${turn.index}`)),
  blocks: layout.blocks.map(({ call, row, rows }) => [call.path, row, rows]),
  bars: Array.from(layout.bars, ([path, { depth, row }]) => [path, row, depth])
})

/** The overlaps of bars in a row, of which there are none. */
const overlaps = (layout: Layouts.Layout, now: number) =>
  layout.rows.flatMap((bars, row) =>
    bars.flatMap((bar, index) => {
      const next = bars[index + 1]
      return next !== undefined && Layouts.endOf(bar, now) > next.call.asked
        ? [[row, bar.call.path, next.call.path]]
        : []
    })
  )

/** Lays out a run by extension, after every so many events. */
const extended = (events: ReadonlyArray<Fold.Told>, every: number, folded?: ReadonlySet<string>) => {
  const run = Fold.make("r")
  let layout = Layouts.make(run, folded)
  events.forEach((event, index) => {
    Fold.take(run, event)
    if (index % every === every - 1) layout = Layouts.extend(layout, run)
  })
  return { run, layout: Layouts.extend(layout, run) }
}

describe("the layout of the picture", () => {
  it.effect("the layout gives each call the lowest free row, and an inner run a block of rows", () =>
    Effect.gen(function*() {
      const layout = Layouts.make(foldOf(yield* weaving))
      const { blocks, rows } = shape(layout)
      assert.deepStrictEqual(rows.slice(0, 4), [
        [],
        ["c01", "d01", "e01"],
        ["c02", "d02", "e02"],
        ["c03", "d03", "e03"]
      ])
      assert.deepStrictEqual(blocks, [["c09", 9, 5], ["c10", 14, 5]])
      assert.deepStrictEqual(rows.slice(9, 14), [
        ["c09"],
        [],
        ["c09/s0-looms"],
        ["c09/s1-looms"],
        ["c09/s2-looms"]
      ])
      assert.deepStrictEqual(shape(layout).bands[10], ["c09:0", "c09:1"])
    }))

  it.effect("a layout extended after any number of events is the same as a layout made at the end", () =>
    Effect.gen(function*() {
      for (const told of [weaving, ordering, delegating]) {
        const events = yield* told
        for (const every of [1, 2, 3, 7, 50]) {
          const { layout, run } = extended(events, every)
          assert.deepStrictEqual(shape(layout), shape(Layouts.make(run)), `every ${every}`)
          assert.deepStrictEqual(overlaps(layout, run.end ?? 0), [])
        }
      }
      const { layout, run } = extended(manyCalls(2_000), 10)
      assert.deepStrictEqual(shape(layout), shape(Layouts.make(run)))
      assert.deepStrictEqual(overlaps(layout, run.end ?? 0), [])
    }))

  it.effect("the layout has a place for each call of the run, except calls inside a folded call", () =>
    Effect.gen(function*() {
      const events = yield* weaving
      const run = foldOf(events)
      assert.deepStrictEqual(new Set(Layouts.make(run).bars.keys()), new Set(run.calls.keys()))
      const folded = new Set(["c09"])
      const { layout } = extended(events, 1, folded)
      assert.deepStrictEqual(shape(layout), shape(Layouts.make(run, folded)))
      assert.isFalse(layout.bars.has("c09/s0-looms"))
      assert.isTrue(layout.bars.has("c10/s0-heddles"))
      assert.deepStrictEqual(layout.blocks.map(({ isFolded, rows }) => [isFolded, rows]), [[true, 1], [false, 5]])
    }))

  it("the layout drops the calls of a discarded reply, and places the calls of the next reply", () => {
    const run = foldOf([
      { _tag: "RunStarted", runId: "r", at: 0 },
      { _tag: "MessageStarted", at: 0 },
      { _tag: "ToolCallCompleted", id: "a", name: "pay", at: 1 }
    ])
    const first = Layouts.make(run)
    assert.deepStrictEqual(Array.from(first.bars.keys()), ["a"])
    Fold.take(run, { _tag: "StepReset", error: { code: "network_error", message: "" }, at: 2 })
    Fold.take(run, { _tag: "MessageStarted", at: 3 })
    Fold.take(run, { _tag: "ToolCallCompleted", id: "b", name: "pay", at: 4 })
    assert.deepStrictEqual(Array.from(Layouts.extend(first, run).bars.keys()), ["b"])
  })

  it("the layout has the same rows for a live run and for its journal, which has a reply's calls at the reply's end", () => {
    const call = (id: string, asked: number, started: number, at: number): ReadonlyArray<Fold.Told> => [
      { _tag: "ToolCallStarted", id, name: "read", at },
      { _tag: "ToolCallCompleted", id, name: "read", at },
      { _tag: "ToolExecutionStarted", id, name: "read", asked, at: started }
    ]
    const live = [
      ...call("a", 10, 60, 10).slice(0, 2),
      ...call("b", 20, 20, 20),
      ...call("c", 30, 60, 30).slice(0, 2)
    ]
    const told = [...call("b", 20, 20, 20), ...call("a", 10, 60, 50).slice(0, 2), ...call("c", 30, 60, 50).slice(0, 2)]
    const events = (calls: ReadonlyArray<Fold.Told>): ReadonlyArray<Fold.Told> => [
      { _tag: "RunStarted", runId: "r", at: 0 },
      { _tag: "MessageStarted", at: 0 },
      ...calls,
      { _tag: "MessageCompleted", at: 50 },
      { _tag: "ToolExecutionStarted", id: "a", name: "read", asked: 10, at: 60 },
      { _tag: "ToolExecutionStarted", id: "c", name: "read", asked: 30, at: 60 }
    ]
    const rows = (events: ReadonlyArray<Fold.Told>) => shape(extended(events, 1).layout).rows
    assert.deepStrictEqual(rows(events(live)), [[], ["a"], ["b"], ["c"]])
    assert.deepStrictEqual(rows(events(told)), rows(events(live)))
  })

  it.effect("the layout finds the bar at a place, and the call whose end let another call start", () =>
    Effect.gen(function*() {
      const run = foldOf(yield* weaving)
      const layout = Layouts.make(run)
      const at = (row: number, time: number) => Layouts.barAt(layout, row, time, 20, run.now)?.call.path
      assert.deepStrictEqual([at(1, 700), at(1, 2_110), at(1, 3_000), at(1, 5_000)], ["c01", "c01", undefined, "d01"])
      const last = run.calls.get("c07")!
      assert.strictEqual(Layouts.releaser(run, layout, last, last.waits[0]!)?.path, "c05")
      const other = run.calls.get("c08")!
      assert.isUndefined(Layouts.releaser(run, layout, other, other.waits[0]!))
    }))

  it("V-04: the sixteen thousandth call costs about as much as the four thousandth", () => {
    const stepsOf = (number: number) => {
      const { layout } = extended(manyCalls(number), 100)
      return layout.steps / number
    }
    const [few, many] = [stepsOf(4_000), stepsOf(16_000)]
    assert.isAtMost(many, few * 1.3)
  })
})
