/** What the command line asks for. */
import { parseArgs } from "node:util"
import * as Implementations from "./implementations.ts"
import { workloads as kept } from "./kept/workloads.ts"
import type { Size } from "./workload.ts"
import { workloads } from "./workloads/index.ts"

export interface Settings {
  readonly workloads: ReadonlyArray<string>
  /** The workloads of kept runs. */
  readonly kept: ReadonlyArray<string>
  readonly implementations: ReadonlyArray<string>
  readonly isWithPeers: boolean
  /** Tells whether work is counted in place of being timed. */
  readonly isCounted: boolean
  /** Tells whether the sessions of a server are measured in place of runs. */
  readonly isServed: boolean
  readonly size: Size
  readonly samples: number
}

const samples: Readonly<Record<Size, number>> = { full: 5, quick: 3, check: 1 }

const known = (kind: string, names: ReadonlyArray<string>, all: ReadonlyArray<string>): ReadonlyArray<string> => {
  const stranger = names.find((name) => !all.includes(name))
  if (stranger !== undefined) throw new Error(`there is no ${kind} ${stranger}; there are ${all.join(", ")}`)
  return names
}

const positive = (text: string): number => {
  const value = Number(text)
  if (!Number.isInteger(value) || value < 1) throw new Error(`--samples has to be a positive integer, not ${text}`)
  return value
}

/** Throws what to tell the user if something is asked for that there is not. */
export const parse = (args: ReadonlyArray<string>): Settings => {
  const { positionals, values } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      quick: { type: "boolean", default: false },
      check: { type: "boolean", default: false },
      counts: { type: "boolean", default: false },
      peers: { type: "boolean", default: false },
      served: { type: "boolean", default: false },
      loops: { type: "string" },
      samples: { type: "string" }
    }
  })
  const all = [...Implementations.own, ...Implementations.peers]
  const usual = values.peers ? all : Implementations.own
  const implementations = values.loops === undefined ? usual : known("loop", values.loops.split(","), all)
  const isWithPeers = implementations.some((name) => Implementations.peers.includes(name))
  if (isWithPeers && !Implementations.areInstalled()) {
    throw new Error(`the packages of the peers are not installed: ${Implementations.installCommand}`)
  }
  const size = values.check ? "check" : values.quick ? "quick" : "full"
  const names = [...Object.keys(workloads), ...Object.keys(kept)]
  const wanted = positionals.length === 0 ? names : known("workload", positionals, names)
  return {
    workloads: wanted.filter((name) => name in workloads),
    kept: wanted.filter((name) => name in kept),
    implementations,
    isServed: values.served,
    isWithPeers,
    isCounted: values.counts,
    size,
    samples: values.samples === undefined ? samples[size] : positive(values.samples)
  }
}
