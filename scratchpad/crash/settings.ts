/** The command line of `npm run crash`: which rows of the table, and where the program is killed. */
import type { EveryKill } from "heddle/testing"
import { join } from "node:path"
import { parseArgs } from "node:util"
import * as Comparison from "./comparison.ts"
import { payments } from "./turns.ts"

/** A kind of store, with the program that is killed over it. */
interface Store {
  readonly program: string
  /** The policies that it is run with. */
  readonly policies: ReadonlyArray<string>
  /** `true` where it needs a Postgres server. */
  readonly isServed: boolean
  readonly options: EveryKill.Options
}

const all = ["report", "lookUp", "ask", "retry", "fail"]

/** The policies where several processes share a session: none of them is the person who is asked. */
const shared = ["report", "lookUp", "retry", "fail"]

/** The stores, and how many processes share each. */
const stores: Readonly<Record<string, Store>> = {
  "sqlite": { program: "program.ts", policies: [...all, "continue"], isServed: false, options: {} },
  "postgres": { program: "postgres.ts", policies: all, isServed: true, options: {} },
  "sqlite-workers": {
    program: "workers.ts",
    policies: shared,
    isServed: false,
    options: { processes: 2, timeout: "60 seconds" }
  },
  "postgres-workers": {
    program: "workers.ts",
    policies: shared,
    isServed: true,
    options: { processes: 2, timeout: "60 seconds" }
  },
  "cluster": {
    program: "cluster.ts",
    policies: ["report", "lookUp"],
    isServed: true,
    options: { processes: 3, timeout: "90 seconds" }
  }
}

/** A row of the table. */
export interface Row {
  readonly store: string
  readonly policy: string
  readonly program: string
  /** `true` where it needs a Postgres server. */
  readonly isServed: boolean
  /** `true` where a law that it breaks is a failure. */
  readonly isHeld: boolean
  readonly options: EveryKill.Options
}

/** The text of `--help`. */
export const usage = `npm run crash -- [options]
npm run crash -- leave [options]

With "leave": see npm run crash -- leave --help. Without:

Kills a program at each of its boundaries, once in each run, for each store and each policy for calls whose effect is not
known, and prints a row for each. The exit code is 1 if a law was broken. The policy "continue" is not held to the laws: the
program abandons the run that was interrupted, and comes to another result.

  --store NAMES         of ${Object.keys(stores).join(", ")}; all by default
  --policy NAMES        of ${[...all, "continue"].join(", ")}; all by default
  --limit N             tries N boundaries, spread evenly
  --again random|every  kills the recovery as well, at one of its boundaries or at each
  --kills N             kills in N runs at one to three random boundaries, in place of each boundary
  --seed TEXT           of these boundaries; "heddle" by default
  --ids same|new        gives calls new ids each time that the model is asked; "same" by default
  --concurrency N       makes N runs at once; 2 by default
  --steers              sends messages into runs of two workers over Postgres, and into their sub-agents, and kills a worker
                        --kills times, 200 by default
  --stops               measures how long a stop from another process takes, and kills nothing
  --langgraph           compares with LangGraph JS, which npm ci --prefix scratchpad/crash/langgraph installs
  --node PATH           the Node that its SQLite is built for
  --help                prints this`

/** The command line. */
export interface Settings {
  /** `true` where only the options are printed. */
  readonly isHelp: boolean
  readonly rows: ReadonlyArray<Row>
  /** `true` where LangGraph is compared: what is asked for is what both know. */
  readonly isComparison: boolean
  /** `true` where stops are measured, and nothing is killed. */
  readonly isOfStops: boolean
  /** The number of kills while messages are sent into runs. `undefined` where none are sent. */
  readonly steerKills: number | undefined
}

/** An option that the command line cannot have. Its message is for the caller: no stack belongs to it. */
class UsageError extends Error {}

/** Returns the message of an error of the command line, and nothing for any other error. */
export const usageMessage = (error: unknown): string | undefined => {
  const isOfParseArgs = error instanceof TypeError && "code" in error && String(error.code).startsWith("ERR_PARSE_ARGS")
  return error instanceof UsageError || isOfParseArgs ? error.message : undefined
}

/** Returns the names that an option lists, or all that are known. Throws for one that is not. */
export const chosen = <A extends string>(
  name: string,
  given: string | undefined,
  known: ReadonlyArray<A>
): ReadonlyArray<A> => {
  if (given === undefined) return known
  const names = given.split(",")
  const wrong = names.find((name) => !known.some((one) => one === name))
  if (wrong !== undefined) throw new UsageError(`--${name} is one of ${known.join(", ")}; got: ${wrong}`)
  return names as ReadonlyArray<string> as ReadonlyArray<A>
}

/** Returns the number of an option. Throws for any text that is no whole number from 1 on. */
export const number = (name: string, given: string): number => {
  const value = Number(given)
  if (!Number.isInteger(value) || value < 1) throw new UsageError(`--${name} is a number from 1 on; got: ${given}`)
  return value
}

/** Reads the command line. Throws for options that it cannot have. */
export const settings = (args: ReadonlyArray<string>): Settings => {
  const { values } = parseArgs({
    args: [...args],
    options: {
      store: { type: "string" },
      policy: { type: "string" },
      ids: { type: "string", default: "same" },
      again: { type: "string", default: "none" },
      kills: { type: "string" },
      seed: { type: "string", default: "heddle" },
      limit: { type: "string" },
      concurrency: { type: "string" },
      steers: { type: "boolean", default: false },
      stops: { type: "boolean", default: false },
      node: { type: "string" },
      langgraph: { type: "boolean", default: false },
      help: { type: "boolean", default: false }
    }
  })
  const [ids] = chosen("ids", values.ids, ["same", "new"])
  const [again] = chosen("again", values.again, ["none", "random", "every"])
  const names = chosen("store", values.store, Object.keys(stores))
  const known = [...new Set(Object.values(stores).flatMap(({ policies }) => policies))]
  const wanted = chosen("policy", values.policy, known)
  const common: EveryKill.Options = {
    again: again as NonNullable<EveryKill.Options["again"]>,
    ...(values.concurrency === undefined ? {} : { concurrency: number("concurrency", values.concurrency) }),
    ...(values.limit === undefined ? {} : { limit: number("limit", values.limit) }),
    ...(values.kills === undefined ? {} : { random: { attempts: number("kills", values.kills), seed: values.seed } })
  }
  const isComparison = values.langgraph
  const turns = isComparison ? ["--turns", String(payments.length)] : []
  const rows = names.flatMap((store) => {
    const { isServed, options, policies, program } = stores[store] as Store
    return policies.filter((policy) => wanted.includes(policy)).map((policy) => ({
      store,
      policy,
      program: join(import.meta.dirname, program),
      isHeld: policy !== "continue",
      isServed,
      options: { ...options, ...common, args: ["--ids", String(ids), "--policy", policy, ...turns] }
    }))
  })
  return {
    rows: isComparison ? [...rows, ...Comparison.rows(common, values.node)] : rows,
    isHelp: values.help,
    isComparison,
    isOfStops: values.stops,
    steerKills: values.steers ? number("kills", values.kills ?? "200") : undefined
  }
}
