/**
 * The scenarios of the contract's group J that mean the same for an executor and for a run of `Chat`, as rows.
 */
import { assert } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { failures, halts } from "./falaiFailures.ts"
import { cancelable, type Declared, failsAfter, safe, takes } from "./floor.ts"
import type { Row } from "./rows.ts"
import { cancelled, denied, failed, ok, type Seen } from "./seen.ts"

const many = (count: number) => Array.from({ length: count }, (_, index) => index)

const stuck = { ...cancelable, authorize: () => Effect.never } satisfies Declared

/** Twenty calls of 10 ms in waves of so many. */
const waves = (size: number): ReadonlyArray<Seen> =>
  many(20).map((index) => ok(`c${index}`, 10 * (1 + Math.floor(index / size)), index))

const order: ReadonlyArray<Row> = [
  {
    name: "J-01, R-381, R-384: an unsafe call overlaps no other call, and a safe call behind it starts after its end",
    works: (floor) => [
      floor.work("a", takes(10), safe),
      floor.work("b", takes(10), safe),
      floor.work("c", takes(5)),
      floor.work("d", takes(5), safe)
    ],
    results: [ok("a", 10, "after 10"), ok("b", 10, "after 10"), ok("c", 15, "after 5"), ok("d", 20, "after 5")],
    marks: [
      [0, "start", "a"],
      [0, "start", "b"],
      [10, "end", "a"],
      [10, "end", "b"],
      [10, "start", "c"],
      [15, "end", "c"],
      [15, "start", "d"],
      [20, "end", "d"]
    ]
  },
  {
    name: "R-384: a safe, an unsafe and a safe call run strictly one after the other",
    works: (floor) => [floor.work("a", takes(10), safe), floor.work("b", takes(1)), floor.work("c", takes(1), safe)],
    results: [ok("a", 10, "after 10"), ok("b", 11, "after 1"), ok("c", 12, "after 1")]
  },
  {
    name: "J-03, R-383: calls of undeclared tools are unsafe and run one after the other",
    works: (floor) => ["a", "b", "c"].map((id) => floor.work(id, takes(5))),
    results: [ok("a", 5, "after 5"), ok("b", 10, "after 5"), ok("c", 15, "after 5")],
    marks: [
      [0, "start", "a"],
      [5, "end", "a"],
      [5, "start", "b"],
      [10, "end", "b"],
      [10, "start", "c"],
      [15, "end", "c"]
    ]
  },
  {
    name: "J-04, R-386: a later result is held back until every earlier result has been delivered",
    works: (floor) => [floor.work("slow", takes(20), safe), floor.work("fast", takes(1), safe)],
    results: [ok("slow", 20, "after 20"), ok("fast", 20, "after 1")],
    marks: [[0, "start", "slow"], [0, "start", "fast"], [1, "end", "fast"], [20, "end", "slow"]]
  },
  {
    name: "J-05, R-382: twenty safe calls with maxParallel 3 run three at a time",
    works: (floor) => many(20).map((index) => floor.work(`c${index}`, takes(10, index), safe)),
    given: { maxParallel: 3 },
    results: waves(3),
    also: (_scene, floor) => assert.strictEqual(floor.peak, 3)
  },
  {
    name: "J-05, R-382: twenty safe calls run ten at a time by default",
    works: (floor) => many(20).map((index) => floor.work(`c${index}`, takes(10, index), safe)),
    results: waves(10),
    also: (_scene, floor) => assert.strictEqual(floor.peak, 10)
  },
  {
    name: "J-21, R-387: progress of the second call arrives while the first call still runs",
    works: (floor) => [
      floor.work("slow", takes(20), safe),
      floor.work(
        "loud",
        (_args, call) =>
          Effect.gen(function*() {
            yield* Effect.sleep(5)
            yield* call.progress("half")
            yield* Effect.sleep(10)
            return "said"
          }),
        safe
      )
    ],
    results: [ok("slow", 20, "after 20"), ok("loud", 20, "said")],
    also: ({ progress }) => assert.deepStrictEqual(progress, [[5, "loud", "half"]])
  }
]

const gates: ReadonlyArray<Row> = [
  {
    name: "J-10, R-392, R-406, R-407: a denied call never runs, and its siblings continue",
    works: (floor) => [
      floor.work("a", takes(1), {
        ...safe,
        authorize: () => ({ allowed: false, reason: "not yours", canOverride: true })
      }),
      floor.work("b", takes(15), cancelable)
    ],
    results: [denied("a", 0, "authorize", "Permission denied: not yours"), ok("b", 15, "after 15")],
    marks: [[0, "start", "b"], [15, "end", "b"]]
  },
  {
    name: "R-406: a denial without a reason gets a default reason",
    works: (floor) => [
      floor.work("a", takes(1), { authorize: () => false }),
      floor.work("b", takes(1), { validate: () => ({ valid: false }) })
    ],
    results: [
      denied("a", 0, "authorize", "Permission denied: Not allowed"),
      denied("b", 0, "validate", "Validation failed: Invalid input")
    ],
    marks: []
  },
  {
    name: "J-11: the answer reports the denial of validation when both gates deny",
    works: (floor) => [
      floor.work("a", takes(1), {
        validate: () => ({ valid: false, error: "too long" }),
        authorize: () => ({ allowed: false, reason: "not yours" })
      })
    ],
    results: [denied("a", 0, "validate", "Validation failed: too long")],
    marks: []
  },
  {
    name: "J-12, R-409: a throwing gate denies its call, and the siblings continue",
    works: (floor) => [
      floor.work("a", takes(1), {
        ...safe,
        authorize: () => {
          throw new Error("secret")
        }
      }),
      floor.work("b", takes(15), cancelable)
    ],
    results: [denied("a", 0, "authorize", "Permission denied: Not allowed"), ok("b", 15, "after 15")],
    marks: [[0, "start", "b"], [15, "end", "b"]]
  },
  {
    name: "R-381: no call starts beside an unsafe call whose gate runs",
    works: (floor) => [
      floor.work("a", takes(5), { validate: () => Effect.as(Effect.sleep(10), true) }),
      floor.work("b", takes(5), { ...safe, validate: () => Effect.as(Effect.sleep(10), true) }),
      floor.work("c", takes(5), safe)
    ],
    results: [ok("a", 15, "after 5"), ok("b", 30, "after 5"), ok("c", 30, "after 5")],
    marks: [
      [10, "start", "a"],
      [15, "end", "a"],
      [15, "start", "c"],
      [20, "end", "c"],
      [25, "start", "b"],
      [30, "end", "b"]
    ]
  },
  {
    name: "J-20, R-395: a call whose gate is undecided when the run is aborted never starts",
    works: (floor) => [floor.work("a", takes(10), stuck)],
    given: { abortAt: 5 },
    results: [cancelled("a", 5)],
    marks: []
  },
  {
    name:
      "J-20, R-395, R-398: a blocking call with an undecided gate never starts after an abort, and a started blocking call finishes",
    works: (floor) => [
      floor.work("a", takes(10), { ...safe, validate: () => Effect.as(Effect.sleep(20), true) }),
      floor.work("b", takes(30), safe)
    ],
    given: { abortAt: 5 },
    results: [cancelled("a", 5), ok("b", 30, "after 30")],
    marks: [[0, "start", "b"], [30, "end", "b"]]
  },
  {
    name: "R-395: a failure cancels a sibling whose gate is undecided",
    works: (floor) => [floor.work("a", failsAfter(5), safe), floor.work("b", takes(10), stuck)],
    results: [failed("a", 5, "kaboom"), cancelled("b", 5)],
    marks: [[0, "start", "a"], [5, "end", "a"]]
  }
]

const aborts: ReadonlyArray<Row> = [
  {
    name: "J-16, R-398: an abort lets a blocking call finish, cancels a cancelable call, and starts no waiting call",
    works: (floor) => [
      floor.work("a", takes(30), cancelable),
      floor.work("b", takes(30), safe),
      floor.work("c", takes(1), safe)
    ],
    given: { abortAt: 5, maxParallel: 2 },
    results: [
      cancelled("a", 5, "interrupted: Execution cancelled by parent abort signal"),
      ok("b", 30, "after 30"),
      cancelled("c", 30, "not run: Execution cancelled by parent abort signal")
    ],
    marks: [[0, "start", "a"], [0, "start", "b"], [5, "stop", "a"], [30, "end", "b"]]
  },
  {
    name: "R-386, R-398: results stay in call order after an abort",
    works: (floor) => [floor.work("b", takes(30), safe), floor.work("a", takes(30), cancelable)],
    given: { abortAt: 5 },
    results: [ok("b", 30, "after 30"), cancelled("a", 30)],
    marks: [[0, "start", "b"], [0, "start", "a"], [5, "stop", "a"], [30, "end", "b"]]
  },
  {
    name: "law 11: a blocking call longer than the grace period is answered as cancelled",
    works: (floor) => [floor.work("a", takes(60_000), { ...safe, timeout: "1 hour" })],
    given: { abortAt: 5 },
    results: [cancelled("a", 5_005)]
  }
]

const results: ReadonlyArray<Row> = [
  {
    name: "J-22, R-402: context updates merge in call order, whichever call finishes last",
    works: (floor) => [
      floor.work("slow", takes(30, { data: 1, contextUpdate: { a: "slow", only: "slow" } }), safe),
      floor.work("fast", takes(5, { data: 2, contextUpdate: { a: "fast" } }), safe)
    ],
    given: { context: { a: "initial", kept: true } },
    results: [ok("slow", 30, 1), ok("fast", 30, 2)],
    also: ({ context }) => assert.deepStrictEqual(context, { a: "fast", only: "slow", kept: true })
  },
  {
    name: "R-397, R-402: a failed or cancelled call adds no context update",
    works: (floor) => [
      floor.work("a", takes(1, { success: false, error: "no", contextUpdate: { a: 1 } }), safe),
      floor.work(
        "b",
        (_args, call) => Effect.andThen(call.updateContext({ b: 1 }), Effect.sleep(50)),
        cancelable
      ),
      floor.work("c", (_args, call) => Effect.andThen(call.updateContext({ c: 1 }), Effect.fail("no")), safe),
      floor.work("d", (_args, call) => Effect.as(call.updateContext({ d: 1 }), "yes"), safe)
    ],
    given: { siblings: { trigger: "crashedOrReported" } },
    results: [failed("a", 1, "no"), cancelled("b", 1), failed("c", 1, "no"), ok("d", 1, "yes")],
    also: ({ context }) => assert.deepStrictEqual(context, { d: 1 })
  },
  {
    name: "R-403: handlers of one turn see the context from before the turn",
    works: (floor) => [
      floor.work("a", takes(1, { data: 1, contextUpdate: { a: "new" } })),
      floor.work("b", (_args, call) => Effect.succeed(call.context["a"]))
    ],
    given: { context: { a: "old" } },
    results: [ok("a", 1, 1), ok("b", 1, "old")]
  },
  {
    name:
      "J-23, R-039: a text longer than maxResultChars is cut with a notice, and a text of exactly that length stays whole",
    works: (floor) =>
      [5, 10, 0].map((limit) => floor.work(`limit${limit}`, Effect.succeed("0123456789"), { maxResultChars: limit })),
    results: ["limit5", "limit10", "limit0"].map((id) => ok(id, 0, "0123456789")),
    also: ({ contents }) => {
      assert.match(contents[0]?.[1] ?? "", /^01234\n.*\b10\b.*\b5\b/)
      assert.deepStrictEqual(contents.slice(1), [["limit10", "0123456789"], ["limit0", "0123456789"]])
    }
  },
  {
    name: "J-24, R-405: a result with error and without success is a failure",
    works: (floor) => [
      floor.work("a", Effect.succeed({ error: "x" })),
      floor.work("b", Effect.succeed({ error: "x", success: true, data: 1 }))
    ],
    results: [failed("a", 0, "x"), ok("b", 0, 1)]
  },
  {
    name: "J-25, R-404: null, undefined and objects without data are successful results",
    works: (floor) => [
      floor.work("a", Effect.succeed(null)),
      floor.work("b", Effect.void),
      floor.work("c", Effect.succeed({ success: true })),
      floor.work("d", Effect.succeed({ data: null })),
      floor.work("e", Effect.succeed({ other: 1 }))
    ],
    results: [
      ok("a", 0, null),
      ok("b", 0, undefined),
      ok("c", 0, undefined),
      ok("d", 0, null),
      ok("e", 0, { other: 1 })
    ]
  }
]

/** The rows, by what they are about. */
export const rows: Readonly<Record<string, ReadonlyArray<Row>>> = { order, failures, halts, gates, aborts, results }
