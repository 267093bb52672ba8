/** The command line of `npm run crash`: which rows of the table, and where the program is killed. */
import type { EveryKill } from "heddle/testing"
import { parseArgs } from "node:util"
import { policies } from "./tools.ts"

/** The stores that a program can have. */
export const stores: ReadonlyArray<string> = ["sqlite"]

/** A row of the table. */
export interface Row {
  readonly store: string
  readonly policy: string
}

/** What the command line says. */
export interface Settings {
  readonly rows: ReadonlyArray<Row>
  readonly options: EveryKill.Options
}

const chosen = (name: string, given: string | undefined, all: ReadonlyArray<string>): ReadonlyArray<string> => {
  if (given === undefined) return all
  if (!all.includes(given)) throw new Error(`--${name} is one of ${all.join(", ")}; got: ${given}`)
  return [given]
}

const number = (name: string, given: string): number => {
  const value = Number(given)
  if (!Number.isInteger(value) || value < 1) throw new Error(`--${name} is a number from 1 on; got: ${given}`)
  return value
}

/** Reads the command line. Throws for what it cannot be. */
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
      concurrency: { type: "string", default: "2" }
    }
  })
  const [ids] = chosen("ids", values.ids, ["same", "new"])
  const [again] = chosen("again", values.again, ["none", "random", "every"])
  return {
    rows: chosen("store", values.store, stores).flatMap((store) =>
      chosen("policy", values.policy, policies).map((policy) => ({ store, policy }))
    ),
    options: {
      args: ["--ids", String(ids)],
      again: again as NonNullable<EveryKill.Options["again"]>,
      concurrency: number("concurrency", values.concurrency),
      ...(values.limit === undefined ? {} : { limit: number("limit", values.limit) }),
      ...(values.kills === undefined
        ? {}
        : { random: { attempts: number("kills", values.kills), seed: values.seed } })
    }
  }
}
