/**
 * The benchmark judges results before it tells times: a run of all workloads in their smallest size comes to the right
 * ones, and a loop that is wrong or breaks its promises is found.
 */
import { assert, describe, it } from "@effect/vitest"
import { execFile } from "node:child_process"
import { promisify } from "node:util"
import * as Implementations from "../../scratchpad/bench/implementations.ts"
import * as Stores from "../../scratchpad/bench/kept/stores.ts"
import { workloads as kept } from "../../scratchpad/bench/kept/workloads.ts"
import type { Implementation, Run } from "../../scratchpad/bench/loop.ts"
import { implementation as heddle } from "../../scratchpad/bench/loops/heddle.ts"
import { implementation as plain } from "../../scratchpad/bench/loops/plain.ts"
import { workloads } from "../../scratchpad/bench/workloads/index.ts"
import { limit } from "../support/until.ts"

const bench = (...args: ReadonlyArray<string>) =>
  promisify(execFile)(process.execPath, ["--conditions=source", "scratchpad/bench/main.ts", ...args])

/** A loop that tells something else than what it read. */
const altered = (implementation: Implementation, alter: (run: Run) => Run): Implementation => ({
  ...implementation,
  make: (tools, maxTurns) => {
    const loop = implementation.make(tools, maxTurns)
    return { run: (run) => loop.run(alter(run)) }
  }
})

const failureOf = (workload: string, implementation: Implementation): Promise<string> =>
  workloads[workload]!.run(implementation, "check").then(
    () => "no failure",
    (error: unknown) => String(error)
  )

describe("the benchmark", () => {
  it("every workload is right on every loop of the project", async () => {
    const { stderr, stdout } = await bench("--check")
    const lines = stdout.trim().split("\n")
    assert.strictEqual(stderr, "")
    assert.deepStrictEqual(lines.filter((line) => !line.startsWith("right: ")), [])
    const loops = Object.keys(workloads).length * Implementations.own.length
    assert.strictEqual(lines.length, loops + Object.keys(kept).length * Stores.alone.length)
  }, limit)

  it("a loop that answers a wrong result fails", async () => {
    const wrong = altered(plain, (run) => ({ ...run, onResult: ({ value }) => run.onResult({ value: value + 1 }) }))
    assert.include(await failureOf("W2", wrong), "wrong result: sum of the results")
  })

  it("a loop that loses a result fails", async () => {
    const wrong = altered(plain, (run) => ({ ...run, onResult: () => {} }))
    assert.include(await failureOf("W3", wrong), "wrong result: tool results")
  })

  it("a loop that breaks its guarantees fails", async () => {
    const unstructured: Implementation = { ...plain, guarantees: heddle.guarantees }
    assert.include(await failureOf("W6", unstructured), "settlesLast")
    assert.include(await failureOf("W6d", unstructured), "reportsAbandoned")
    assert.include(await failureOf("W8", unstructured), "overlaps")
  })

  it("an unknown workload is refused with the known workloads", async () => {
    const ended = await bench("W0").then(
      () => undefined,
      (error: { readonly code: number; readonly stderr: string }) => error
    )
    assert.strictEqual(ended?.code, 2)
    assert.include(ended?.stderr, "there is no workload W0; there are W1, W2,")
  })
})
