/**
 * Rows about what a failed call, or one that halts, does to those beside it and to those that wait: which failures count,
 * which calls it stops, and which it does not.
 */
import * as Effect from "effect/Effect"
import { Tool } from "heddle"
import { cancelable, failsAfter, type Floor, safe, takes } from "./floor.ts"
import type { Row } from "./rows.ts"
import { cancelled, failed, ok } from "./seen.ts"

export const failures: ReadonlyArray<Row> = [
  {
    name: "J-07, R-391, R-396, R-397: a failing safe call cancels a cancelable sibling at once",
    works: (floor) => [floor.work("a", failsAfter(1), safe), floor.work("b", takes(200), cancelable)],
    results: [failed("a", 1, "kaboom"), cancelled("b", 1)],
    marks: [[0, "start", "a"], [0, "start", "b"], [1, "end", "a"], [1, "stop", "b"]]
  },
  {
    name: "J-08, R-391: a blocking sibling of a failed call runs to its end and succeeds",
    works: (floor) => [floor.work("a", failsAfter(1), safe), floor.work("b", takes(15), safe)],
    results: [failed("a", 1, "kaboom"), ok("b", 15, "after 15")]
  },
  {
    name: "J-09, R-391: a result with success: false is a failure like a throw",
    works: (floor) => [
      floor.work("a", takes(1, { success: false, error: "kaboom" }), safe),
      floor.work("b", takes(200), cancelable),
      floor.work("c", takes(15), safe)
    ],
    results: [failed("a", 1, "kaboom"), cancelled("b", 1), ok("c", 15, "after 15")]
  },
  {
    name: "J-09, R-391: a defect is a failure that cancels a cancelable sibling",
    works: (floor) => [
      floor.work("a", Effect.andThen(Effect.sleep(1), Effect.die("broken")), safe),
      floor.work("b", takes(200), cancelable)
    ],
    results: [failed("a", 1, "handler_raised"), cancelled("b", 1)]
  },
  {
    name: "R-055, R-391, R-410: a timed-out call cancels a cancelable sibling",
    works: (floor) => [
      floor.work("a", Effect.never, { ...safe, timeout: 7 }),
      floor.work("b", takes(200), cancelable)
    ],
    results: [failed("a", 7, "timeout"), cancelled("b", 7)],
    marks: [[0, "start", "a"], [0, "start", "b"], [7, "stop", "a"], [7, "stop", "b"]]
  },
  {
    name: "R-394: a call that takes the place of a timed-out call is not its sibling",
    works: (floor) => [
      floor.work("a", Effect.never, { ...safe, timeout: 7 }),
      floor.work("b", takes(5), cancelable)
    ],
    given: { maxParallel: 1 },
    results: [failed("a", 7, "timeout"), ok("b", 12, "after 5")]
  },
  {
    name: "R-393, R-394: an unsafe call waiting behind a timed-out call is not its sibling",
    works: (floor) => [
      floor.work("a", Effect.never, { ...safe, timeout: 7 }),
      floor.work("b", takes(5), { interrupt: "cancel" })
    ],
    results: [failed("a", 7, "timeout"), ok("b", 12, "after 5")]
  },
  {
    name: "CF-1: waiting calls are skipped after a timeout under queued: skip",
    works: (floor) => [
      floor.work("a", Effect.never, { ...safe, timeout: 7 }),
      floor.work("b", takes(5), cancelable),
      floor.work("c", takes(5))
    ],
    given: { maxParallel: 1, siblings: { queued: "skip" } },
    results: [failed("a", 7, "timeout"), cancelled("b", 7), cancelled("c", 7)],
    marks: [[0, "start", "a"], [7, "stop", "a"]]
  },
  {
    name: "R-394: a call waiting for a keyed permit runs after its neighbour's failure",
    works: (floor) => [
      floor.work("a", failsAfter(5), { ...safe, limits: [{ key: "R-394", permits: 1 }] }),
      floor.work("b", takes(5), { ...cancelable, limits: [{ key: "R-394", permits: 1 }] }),
      floor.work("c", takes(15), cancelable)
    ],
    results: [failed("a", 5, "kaboom"), ok("b", 10, "after 5"), cancelled("c", 10)],
    marks: [
      [0, "start", "a"],
      [0, "start", "c"],
      [5, "end", "a"],
      [5, "stop", "c"],
      [5, "start", "b"],
      [10, "end", "b"]
    ]
  },
  {
    name: "CF-1: a call waiting for a keyed permit is skipped under queued: skip",
    works: (floor) =>
      ["a", "b"].map((id) =>
        floor.work(id, id === "a" ? failsAfter(5) : takes(5), { ...safe, limits: [{ key: "R-394", permits: 1 }] })
      ),
    given: { siblings: { queued: "skip" } },
    results: [failed("a", 5, "kaboom"), cancelled("b", 5)],
    marks: [[0, "start", "a"], [5, "end", "a"]]
  },
  {
    name: "R-397: a cancelled call does not cancel further calls",
    works: (floor) => [
      floor.work("a", failsAfter(1), safe),
      floor.work("b", takes(200), cancelable),
      floor.work("c", takes(30), safe),
      floor.work("d", takes(10), cancelable)
    ],
    given: { maxParallel: 3 },
    results: [failed("a", 1, "kaboom"), cancelled("b", 1), ok("c", 30, "after 30"), ok("d", 30, "after 10")],
    marks: [
      [0, "start", "a"],
      [0, "start", "b"],
      [0, "start", "c"],
      [1, "end", "a"],
      [1, "stop", "b"],
      [1, "start", "d"],
      [11, "end", "d"],
      [30, "end", "c"]
    ]
  },
  {
    name: "J-14, R-394: a call waiting for a place at a failure runs later",
    works: (floor) => [
      floor.work("a", failsAfter(5), safe),
      floor.work("b", takes(60), cancelable),
      floor.work("c", takes(5), cancelable)
    ],
    given: { maxParallel: 2 },
    results: [failed("a", 5, "kaboom"), cancelled("b", 5), ok("c", 10, "after 5")]
  },
  {
    name: "J-14, CF-1: a call waiting for a place at a failure is cancelled under queued: skip",
    works: (floor) => [
      floor.work("a", failsAfter(5), safe),
      floor.work("b", takes(60), cancelable),
      floor.work("c", takes(5), cancelable)
    ],
    given: { maxParallel: 2, siblings: { queued: "skip" } },
    results: [failed("a", 5, "kaboom"), cancelled("b", 5), cancelled("c", 5)],
    marks: [[0, "start", "a"], [0, "start", "b"], [5, "end", "a"], [5, "stop", "b"]]
  },
  {
    name: "R-394: a call that had not started when its neighbour failed at once still runs",
    works: (floor) => [floor.work("a", Effect.fail("kaboom"), safe), floor.work("b", takes(5), cancelable)],
    results: [failed("a", 0, "kaboom"), ok("b", 5, "after 5")]
  },
  {
    name: "R-395, CF-1: a call about to start when its neighbour fails is skipped under queued: skip",
    works: (floor) => [
      floor.work("x", takes(3)),
      floor.work("a", Effect.fail("kaboom"), safe),
      floor.work("b", takes(5), cancelable),
      floor.work("c", takes(5))
    ],
    given: { siblings: { queued: "skip" } },
    results: [ok("x", 3, "after 3"), failed("a", 3, "kaboom"), cancelled("b", 3), cancelled("c", 3)],
    marks: [[0, "start", "x"], [3, "end", "x"], [3, "start", "a"], [3, "end", "a"]]
  },
  {
    name: "J-15, R-393: an unsafe call that fails has no siblings",
    works: (floor) => [floor.work("a", failsAfter(5)), floor.work("b", takes(5), { interrupt: "cancel" })],
    results: [failed("a", 5, "kaboom"), ok("b", 10, "after 5")]
  },
  {
    name: "R-393: an unsafe call that fails has no siblings under queued: skip",
    works: (floor) => [floor.work("a", failsAfter(5)), floor.work("b", takes(5), cancelable)],
    given: { siblings: { queued: "skip" } },
    results: [failed("a", 5, "kaboom"), ok("b", 10, "after 5")]
  },
  {
    name: "R-393: a failure under queued: skip cancels every call still waiting for a place",
    works: (floor) => [
      floor.work("a", failsAfter(5), safe),
      floor.work("b", takes(10)),
      floor.work("c", takes(5), cancelable)
    ],
    given: { siblings: { queued: "skip" }, maxParallel: 1 },
    results: [failed("a", 5, "kaboom"), cancelled("b", 5), cancelled("c", 5)]
  },
  {
    name: "CF-1: under abortAll a failure stops blocking calls as well",
    works: (floor) => [floor.work("a", failsAfter(1), safe), floor.work("b", takes(15), safe)],
    given: { siblings: { onToolError: "abortAll" } },
    results: [failed("a", 1, "kaboom"), cancelled("b", 1)]
  },
  {
    name: "CF-1: under drain a failure stops no other call",
    works: (floor) => [floor.work("a", failsAfter(1), safe), floor.work("b", takes(15), cancelable)],
    given: { siblings: { onToolError: "drain" } },
    results: [failed("a", 1, "kaboom"), ok("b", 15, "after 15")]
  },
  {
    name: "CF-8: where only crashes count, a reported failure stops no other call",
    works: (floor) => [floor.work("a", failsAfter(1), safe), floor.work("b", takes(15), cancelable)],
    given: { siblings: { trigger: "crashed" } },
    results: [failed("a", 1, "kaboom"), ok("b", 15, "after 15")]
  }
]

/** A call that halts at 5 ms, three beside it, and one that waits for a place. */
const halting = (floor: Floor) => [
  floor.work("a", takes(5, Tool.halt("enough", "halted")), safe),
  floor.work("b", takes(10), cancelable),
  floor.work("c", takes(10), safe),
  floor.work("d", takes(10), cancelable)
]

export const halts: ReadonlyArray<Row> = [
  {
    name: "R-059, CF-1: a halt lets every call finish",
    works: halting,
    given: { maxParallel: 3 },
    results: [ok("a", 5, "halted"), ok("b", 10, "after 10"), ok("c", 10, "after 10"), ok("d", 15, "after 10")]
  },
  {
    name: "CF-1: a halt under onHalt: abortCancelable stops interruptible calls and no waiting call",
    works: halting,
    given: { maxParallel: 3, siblings: { onHalt: "abortCancelable" } },
    results: [ok("a", 5, "halted"), cancelled("b", 5), ok("c", 10, "after 10"), ok("d", 15, "after 10")]
  },
  {
    name: "CF-1: a halt under onHalt: abortCancelable and queued: skip stops waiting calls as well",
    works: halting,
    given: { maxParallel: 3, siblings: { onHalt: "abortCancelable", queued: "skip" } },
    results: [
      ok("a", 5, "halted"),
      cancelled("b", 5, "interrupted: another call of the turn ended it"),
      ok("c", 10, "after 10"),
      cancelled("d", 10, "not run: another call of the turn ended it")
    ],
    marks: [
      [0, "start", "a"],
      [0, "start", "b"],
      [0, "start", "c"],
      [5, "end", "a"],
      [5, "stop", "b"],
      [10, "end", "c"]
    ]
  },
  {
    name: "CF-1: a halt under onHalt: abortAll stops every call",
    works: halting,
    given: { maxParallel: 3, siblings: { onHalt: "abortAll", queued: "skip" } },
    results: [ok("a", 5, "halted"), cancelled("b", 5), cancelled("c", 5), cancelled("d", 5)]
  },
  {
    name: "CF-1: a halt of an unsafe call cancels waiting calls under queued: skip",
    works: (floor) => [
      floor.work("a", takes(5, Tool.halt("enough", null))),
      floor.work("b", takes(10)),
      floor.work("c", takes(10), cancelable)
    ],
    given: { siblings: { onHalt: "abortCancelable", queued: "skip" } },
    results: [ok("a", 5, null), cancelled("b", 5), cancelled("c", 5)]
  },
  {
    name: "CF-1: a failure follows onToolError and not onHalt",
    works: (floor) => [
      floor.work("a", failsAfter(5), safe),
      floor.work("b", takes(10), cancelable),
      floor.work("c", takes(5, Tool.halt("enough", null)))
    ],
    given: { siblings: { onHalt: "abortAll", onToolError: "drain", queued: "skip" } },
    results: [failed("a", 5, "kaboom"), ok("b", 10, "after 10"), ok("c", 15, null)]
  }
]
