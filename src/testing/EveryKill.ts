/**
 * Kills a program at each of its boundaries, in real processes, and checks the recovery against the laws. The program
 * first runs to its end, and then once per boundary: killed there, and restarted until it has its result.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Random from "effect/Random"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import * as KillLaws from "./internal/killLaws.ts"
import * as Node from "./internal/node.ts"
import { spread } from "./internal/spread.ts"
import * as WorldLog from "./internal/worldLog.ts"

export type { Kill, Law, Repeat, Unknown, Violation } from "./internal/killLaws.ts"

/**
 * Random boundaries at which a program is killed.
 *
 * @category options
 */
export interface RandomKills {
  /** Number of program runs. */
  readonly attempts: number
  /** Maximum kills per run. 3 by default. */
  readonly most?: number
  /** Seed of the choice: the same seed kills at the same boundaries. `"heddle"` by default. */
  readonly seed?: string
}

/**
 * Options for running and killing a program.
 *
 * @category options
 */
export interface Options {
  /** Program arguments. None by default. */
  readonly args?: ReadonlyArray<string>
  /** Node arguments before the program, such as `--conditions=source`. None by default. */
  readonly nodeArgs?: ReadonlyArray<string>
  /** Path of the Node binary running the program. Defaults to this process's own. */
  readonly node?: string
  /** Environment variables for its processes, added to this process's own. None by default. */
  readonly environment?: Readonly<Record<string, string>>
  /**
   * Number of processes running the program concurrently, for a program shared between processes. Each process must
   * end. 1 by default.
   */
  readonly processes?: number
  /** Maximum number of boundaries to try, spread evenly. By default all are tried. */
  readonly limit?: number
  /**
   * Kills the recovery as well: for each boundary in the run, `"random"` kills at one boundary in the recovery,
   * `"every"` at each. `"none"` by default.
   */
  readonly again?: "none" | "random" | "every"
  /** Kills at random boundaries instead of every boundary. */
  readonly random?: RandomKills
  /** Maximum restarts before the program counts as hanging, besides one restart per planned kill. 5 by default. */
  readonly recoveries?: number
  /** Maximum process lifetime before it counts as hanging. A number is milliseconds. 30 seconds by default. */
  readonly timeout?: Duration.Input
  /** Number of concurrent attempts. 2 by default. */
  readonly concurrency?: number
  /**
   * Compares an attempt's result with the uninterrupted run's: returns the difference, or `undefined`. By default both
   * must be the same JSON. A program reporting unknown calls to its model must allow for their answers.
   */
  readonly difference?: (uninterrupted: unknown, value: unknown, attempt: Attempt) => string | undefined
}

const knownOptions = {
  args: Values.texts,
  nodeArgs: Values.texts,
  node: Values.name,
  environment: Values.hiddenTexts,
  processes: Values.count,
  limit: Values.countOrNone,
  again: Values.oneOf("none", "random", "every"),
  random: Values.described(
    Values.required(
      { attempts: Values.count, most: Values.count, seed: Values.text } satisfies NamesOf<RandomKills>,
      ["attempts"]
    ),
    "{ attempts, most, seed }"
  ),
  recoveries: Values.whole,
  timeout: Values.plainDuration,
  concurrency: Values.count,
  difference: Values.fn
} satisfies NamesOf<Options>

/**
 * One run of the program, with its kills.
 *
 * @category models
 */
export interface Attempt {
  /** Boundary at which each process was planned to die. */
  readonly plan: ReadonlyArray<number>
  /** Kills that happened. A boundary never reached kills nothing. */
  readonly kills: ReadonlyArray<KillLaws.Kill>
  /** Number of processes run. */
  readonly processes: number
  /** Number of boundaries in the last process. */
  readonly lastPoints: number
  /** `true` if the program reached a result. */
  readonly isDone: boolean
  /** Program result. */
  readonly value: unknown
  /** Effects that happened more often than in the uninterrupted run. */
  readonly repeats: ReadonlyArray<KillLaws.Repeat>
  /** Calls interrupted by a kill between their start and end. */
  readonly unknown: ReadonlyArray<KillLaws.Unknown>
  /** Names of calls whose effect is missing. */
  readonly missing: ReadonlyArray<string>
  /** Number of requests beyond the uninterrupted run's. */
  readonly extraAsked: number
  /** Number of final answers in the journals beyond the uninterrupted run's. */
  readonly extraAnswers: number
  /** Broken laws. */
  readonly violations: ReadonlyArray<KillLaws.Violation>
}

/**
 * A law broken by an attempt.
 *
 * @category models
 */
export interface Found extends KillLaws.Violation {
  /** Boundaries at which its processes were planned to die. Empty for the uninterrupted run. */
  readonly plan: ReadonlyArray<number>
}

/**
 * Result of all kills.
 *
 * @category models
 */
export interface Report {
  /** Boundary names of the uninterrupted run, in order. */
  readonly points: ReadonlyArray<string>
  /** Runs with kills. */
  readonly attempts: ReadonlyArray<Attempt>
  /** Number of killed processes. */
  readonly kills: number
  /** Broken laws from all attempts, each with its attempt's plan. Empty for a program that survives. */
  readonly violations: ReadonlyArray<Found>
}

/** End of a process. It ends well if it exits without a failure, or through its kill. */
interface Ended {
  readonly isWell: boolean
  readonly end: string
  readonly stderr: string
}

const stderrLimit = 2000

/** Runs one program process, killed once no longer awaited. */
const processOf = (
  program: string,
  { args = [], environment = {}, node, nodeArgs = [] }: Options,
  folder: string,
  plan: ReadonlyArray<number>
): Effect.Effect<Ended> =>
  Effect.callback((resume) => {
    const child = Node.spawn(node, [...nodeArgs, program, ...args], {
      env: {
        // A process spends most of its time compiling: the cache keeps compiled code from earlier processes.
        NODE_COMPILE_CACHE: `${Node.temporaryFolder()}/node-compile-cache`,
        ...Node.process?.env,
        ...environment,
        [WorldLog.variables.folder]: folder,
        [WorldLog.variables.plan]: plan.join(",")
      },
      stdio: ["ignore", "ignore", "pipe"]
    })
    let stderr = ""
    child.stderr.setEncoding("utf8")
    child.stderr.on("data", (text) => {
      stderr = (stderr + text).slice(-stderrLimit)
    })
    child.on("error", ({ message }) =>
      resume(Effect.succeed({ isWell: false, end: "could not be started", stderr: message })))
    child.on("close", (code, signal) => {
      const isWell = code === 0 || signal === "SIGKILL"
      resume(
        Effect.succeed({ isWell, end: signal === null ? `ended with code ${code}` : `ended by ${signal}`, stderr })
      )
    })
    return Effect.sync(() =>
      child.kill("SIGKILL")
    )
  })

interface Run {
  readonly lines: ReadonlyArray<WorldLog.Line>
  readonly processes: number
  readonly violations: ReadonlyArray<KillLaws.Violation>
}

const folderOf = Effect.acquireRelease(
  Effect.sync(() => Node.fileSystem().mkdtempSync(`${Node.temporaryFolder()}/heddle-kill-`)),
  (folder) => Effect.sync(() => Node.fileSystem().rmSync(folder, { recursive: true, force: true }))
)

const ending = ({ end, isWell, stderr }: Ended): ReadonlyArray<KillLaws.Violation> =>
  isWell ? [] : [{ law: "end", message: `a process ${end}${stderr === "" ? "" : `: ${stderr.trim()}`}` }]

const isDone = (lines: ReadonlyArray<WorldLog.Line>): boolean => lines.some(({ _tag }) => _tag === "Done")

/** Runs the program, killed as planned, and restarts it while no process is alive and no result exists. */
const run = (program: string, options: Options, plan: ReadonlyArray<number>): Effect.Effect<Run> =>
  Effect.scoped(Effect.gen(function*() {
    const { processes = 1, recoveries = 5, timeout = "30 seconds" } = options
    const folder = yield* folderOf
    const limit = Duration.format(Duration.fromInputUnsafe(timeout))
    const hung = { isWell: false, end: `did not end within ${limit}`, stderr: "" }
    const alive = processOf(program, options, folder, plan).pipe(
      Effect.timeoutOrElse({ duration: timeout, orElse: () => Effect.succeed(hung) })
    )
    const round = Effect.all(Array.from({ length: processes }, () => alive), { concurrency: "unbounded" })
    let count = 0
    for (let rounds = 0; rounds <= recoveries + plan.length; rounds++) {
      const violations = (yield* round).flatMap(ending)
      count += processes
      const lines = WorldLog.read(folder)
      if (violations.length > 0 || isDone(lines)) return { lines, processes: count, violations }
    }
    const message = `no result after ${count} processes`
    return { lines: WorldLog.read(folder), processes: count, violations: [{ law: "end", message }] }
  }))

const pointsOf = (lines: ReadonlyArray<WorldLog.Line>, pid?: number): ReadonlyArray<string> =>
  lines.flatMap((line) => line._tag === "Reached" && (pid === undefined || line.pid === pid) ? line.name : [])

/**
 * Returns the longest boundary list of any process: if several processes share a program, that process did the work.
 */
const longest = (lines: ReadonlyArray<WorldLog.Line>): ReadonlyArray<string> =>
  [...new Set(lines.map(({ pid }) => pid))].map((pid) => pointsOf(lines, pid))
    .reduce((most, points) => points.length > most.length ? points : most, [])

const valuesOf = (lines: ReadonlyArray<WorldLog.Line>): ReadonlyArray<unknown> =>
  lines.flatMap((line) => line._tag === "Done" ? [line.value] : [])

const attemptOf = (uninterrupted: Run, plan: ReadonlyArray<number>, { lines, processes, violations }: Run, {
  difference = (expected, actual) => KillLaws.difference(expected, actual)
}: Options): Attempt => {
  const values = valuesOf(lines)
  const [value] = values
  const found = KillLaws.findings(uninterrupted.lines, lines)
  const last = lines.at(-1)?.pid
  const attempt: Attempt = {
    ...found,
    plan,
    processes,
    lastPoints: pointsOf(lines, last).length,
    isDone: isDone(lines),
    value,
    violations: [...violations, ...found.violations]
  }
  const [expected] = valuesOf(uninterrupted.lines)
  const different = values.flatMap((value) => difference(expected, value, attempt) ?? [])
  const results = different.map((message) => ({ law: "result" as const, message }))
  return { ...attempt, violations: [...attempt.violations, ...results] }
}

const randomPlans = (points: number, { attempts, most = 3, seed = "heddle" }: RandomKills) =>
  Effect.forEach(Array.from({ length: attempts }), () =>
    Effect.gen(function*() {
      const kills = yield* Random.nextIntBetween(1, most)
      return yield* Effect.forEach(Array.from({ length: kills }), () => Random.nextIntBetween(1, points))
    })).pipe(Random.withSeed(seed))

/** Returns plans for killing a recovery: at each boundary in turn, or at a random boundary. */
const secondPlans = ({ lastPoints, plan }: Attempt, again: "random" | "every") =>
  lastPoints === 0
    ? Effect.succeed([])
    : again === "every"
    ? Effect.succeed(spread(lastPoints).map((index) => [...plan, index + 1]))
    : Effect.map(Random.nextIntBetween(1, lastPoints), (second) => [[...plan, second]])

/**
 * Kills a program at each of its boundaries in turn, restarts it until it has its result, and checks the laws.
 *
 * **Details**
 *
 * The program is a file run by Node. It marks its boundaries with `KillPoint`, keeps its database in
 * `KillPoint.folder()`, resumes from there when restarted, and reports its result with `KillPoint.done`. At its
 * boundary a process kills itself by SIGKILL: as after a crash, nothing is closed, flushed or released.
 *
 * The type `Law` lists the laws. They compare call effects (`KillPoint.act`) and journals (`KillPoint.watch`) with the
 * uninterrupted run; two calls are the same if their names and arguments match. A program that behaves identically in
 * each run, through a scripted model, can be checked against all laws.
 *
 * **Gotchas**
 *
 * Every attempt starts Node processes, at a fifth of a second each: `limit` reduces their number. A `Script` starts
 * over in each process, so it cannot serve as the model of a run with calls: choose each reply by the messages.
 *
 * **Example** (A program that is killed everywhere)
 *
 * ```ts import.meta.vitest
 * import { everyKill, KillPoint } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * // write.ts, the program. Its last line: await Effect.runPromise(program)
 * const call = { attempt: 1, idempotencyKey: "k", toolCall: { name: "write", arguments: {} } }
 * const program = Effect.andThen(KillPoint.act(call), KillPoint.done("written"))
 *
 * // The test: `(await Effect.runPromise(killed)).violations` must be empty.
 * const killed = everyKill("write.ts", { limit: 20 })
 *
 * await Effect.runPromise(program) // => undefined
 * Effect.isEffect(killed) // => true
 * ```
 *
 * @category running
 */
export const everyKill = (program: string, options: Options = {}): Effect.Effect<Report> =>
  Effect.gen(function*() {
    checkNames("everyKill", options, knownOptions)
    const { again = "none", concurrency = 2, limit = Infinity, random } = options
    const uninterrupted = yield* run(program, options, [])
    const points = longest(uninterrupted.lines)
    const broken = uninterrupted.violations.length > 0
      ? uninterrupted.violations
      : attemptOf(uninterrupted, [], yield* run(program, options, []), options).violations.map(({ law, message }) => ({
        law: "repeatable" as const,
        message: `${law}: ${message}`
      }))
    const attempts: Array<Attempt> = []
    const attemptAll = (plans: ReadonlyArray<ReadonlyArray<number>>) =>
      Effect.forEach(plans, (plan) =>
        Effect.map(run(program, options, plan), (after) => {
          const attempt = attemptOf(uninterrupted, plan, after, options)
          attempts.push(attempt)
          return attempt
        }), { concurrency })
    if (broken.length === 0) {
      if (random !== undefined) {
        yield* attemptAll(yield* randomPlans(points.length, random))
      } else {
        const first = yield* attemptAll(spread(points.length, limit).map((index) => [index + 1]))
        if (again !== "none") {
          const plans = yield* Effect.forEach(first, (attempt) => secondPlans(attempt, again))
          yield* attemptAll(plans.flat())
        }
      }
    }
    return {
      points,
      attempts,
      kills: attempts.reduce((sum, { kills }) => sum + kills.length, 0),
      violations: [
        ...broken.map((violation) => ({ ...violation, plan: [] })),
        ...attempts.flatMap(({ plan, violations }) => violations.map((violation) => ({ ...violation, plan })))
      ]
    }
  })
