/**
 * Shows that a result does not depend on order. A program names the points at which it waits. The explorer runs it once
 * for every order in which these waits can end, each time in a simulation, and compares the results.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { checkNames } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import * as Json from "../internal/json.ts"
import * as Simulation from "./Simulation.ts"

/**
 * One result, and the orders leading to it.
 *
 * @category models
 */
export interface Finding {
  /** Result of the program. */
  readonly result: unknown
  /** Every order of the points leading to this result: `[2, 0, 1]` means point 2 first, then 0, then 1. */
  readonly orders: ReadonlyArray<ReadonlyArray<number>>
}

/**
 * Findings of an exploration.
 *
 * @category models
 */
export interface Report {
  /** Number of orders run. */
  readonly runs: number
  /** Distinct results. A single result means that the order does not matter. */
  readonly findings: ReadonlyArray<Finding>
}

/** Returns every order for `count` points, or at most `limit` orders, spread evenly. */
const orders = (count: number, limit: number): ReadonlyArray<ReadonlyArray<number>> => {
  const total = Array.from({ length: count }, (_, index) => index + 1).reduce((all, next) => all * next, 1)
  const stride = Math.max(1, Math.ceil(total / limit))
  return Array.from({ length: Math.ceil(total / stride) }, (_, index) => permutation(count, index * stride))
}

/** Returns the permutation with the given number, in lexicographic order. */
const permutation = (count: number, number: number): ReadonlyArray<number> => {
  const left = Array.from({ length: count }, (_, index) => index)
  const picked: Array<number> = []
  let rest = number
  for (let size = count; size > 0; size--) {
    const block = Array.from({ length: size - 1 }, (_, index) => index + 1).reduce((all, next) => all * next, 1)
    picked.push(...left.splice(Math.floor(rest / block), 1))
    rest %= block
  }
  return picked
}

const stepMillis = 10

/** Returns an exit as comparable data. */
const told = (exit: Exit.Exit<unknown, unknown> | undefined): unknown => {
  if (exit === undefined) return { _tag: "Stuck" }
  return Exit.isSuccess(exit) ? exit.value : { _tag: "Failure", cause: Cause.pretty(exit.cause) }
}

/**
 * Runs a program for every order of its points.
 *
 * **Details**
 *
 * `point(i)` waits for the turn of point `i`: whenever both are waiting, point 3 ends before point 1 in every order
 * listing it first. Up to 5,040 orders (seven points) are run; beyond `limit`, that many, spread evenly. The explorer
 * compares the program's result as JSON: leave out varying values, like times and ids.
 *
 * **Example** (A race is found)
 *
 * ```ts import.meta.vitest
 * import { Explorer } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const racy = Explorer.explore(2, (point) =>
 *   Effect.gen(function*() {
 *     const order: Array<string> = []
 *     yield* Effect.all(
 *       ["a", "b"].map((name, index) => Effect.andThen(point(index), Effect.sync(() => order.push(name)))),
 *       { concurrency: "unbounded" }
 *     )
 *     return order
 *   }))
 * const report = await Effect.runPromise(racy)
 *
 * report.runs // => 2
 * report.findings.map((finding) => finding.result) // => [["a", "b"], ["b", "a"]]
 * ```
 *
 * @category running
 */
export const explore = <A, E, R>(
  points: number,
  program: (point: (index: number) => Effect.Effect<void>) => Effect.Effect<A, E, R>,
  options: { readonly limit?: number } = {}
): Effect.Effect<Report, never, R> =>
  Effect.gen(function*() {
    checkNames("Explorer.explore", options, { limit: Values.count })
    const found = new Map<string, { readonly result: unknown; readonly orders: Array<ReadonlyArray<number>> }>()
    const all = orders(points, options.limit ?? 5040)
    for (const order of all) {
      const rank = new Map(order.map((point, index) => [point, index + 1]))
      const report = yield* Simulation.run(
        Effect.suspend(() => program((index) => Effect.sleep(stepMillis * (rank.get(index) ?? 0))))
      )
      const result = told(report.exit)
      const key = JSON.stringify(Json.toJson(result))
      const finding = found.get(key) ?? { result, orders: [] }
      finding.orders.push(order)
      found.set(key, finding)
    }
    return { runs: all.length, findings: Array.from(found.values()) }
  })
