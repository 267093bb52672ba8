/** Compares the result of the program after kills with that of the uncut run. */
import type { EveryKill } from "heddle/testing"
import { isDeepStrictEqual } from "node:util"

interface Result {
  readonly session: Readonly<Record<string, unknown>>
  /** The result of the run, by the process that ended it. One that finds the run ended does not know it. */
  readonly run?: Readonly<Record<string, unknown>>
}

/** What differs, as `everyKill` asks for it. */
export const difference: NonNullable<EveryKill.Options["difference"]> = (uncut, value) => {
  const [expected, actual] = [uncut as Result, value as Result]
  return differing("session", expected.session, actual.session) ??
    differing("run", expected.run, actual.run ?? expected.run)
}

const differing = (name: string, expected: Result["run"] = {}, actual: Result["run"] = {}): string | undefined => {
  const part = Object.keys(expected).find((part) => !isDeepStrictEqual(expected[part], actual[part]))
  return part === undefined
    ? undefined
    : `${name}.${part} is ${JSON.stringify(actual[part])}, not ${JSON.stringify(expected[part])}`
}
