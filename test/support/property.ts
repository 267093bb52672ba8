/**
 * Laws as properties of generated values. However a property fails, by what it says, by a defect, by interrupting itself
 * or by never ending, its message names the seed and says how to play it again.
 *
 * `HEDDLE_SEED` is the seed of all properties. Without it each run chooses a new one, except where `CI` is set: there the
 * verdict is one about the change, and is the same each time. `HEDDLE_REPLAY` plays the one value again that a failure
 * names. Where `CI` is set each property is held to all its values and each enumeration is gone through, and elsewhere a
 * fiftieth of them; `HEDDLE_RUNS` is another share.
 */
import { it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Formatter from "effect/Formatter"

/** What is wrong with a value, or nothing. */
export type Law<A> = (value: A) => Effect.Effect<ReadonlyArray<string>, unknown>

export interface Options {
  readonly seed: string
  readonly runs: number
  readonly replay?: string
  /** How long all values together may take, in real time. */
  readonly patienceMillis?: number
}

/** Generated collections hold ten members at most. */
const size = 10

const isCI = process.env["CI"] !== undefined

const seedOfAll = process.env["HEDDLE_SEED"] ?? (isCI ? "heddle" : String(Math.floor(Math.random() * 2 ** 31)))

/** The share of the values of each property that is tried here. */
export const share = Number(process.env["HEDDLE_RUNS"] ?? (isCI ? 1 : 0.02))

/** How many values of so many a property is held to here. */
export const shareOf = (runs: number): number => Math.ceil(runs * share)

/** A place among `count` that the seed chooses. */
const placeOf = (count: number): number => {
  let hash = 0
  for (const letter of seedOfAll) hash = (hash * 31 + letter.charCodeAt(0)) % 1_000_003
  return hash % count
}

/**
 * The members of an enumeration that are gone through here, in their order: all of them where laws are held to all of
 * their values, and elsewhere a share, `least` of them or more. They are spread evenly, from a place that the seed chooses.
 */
export const sampleOf = <A>(all: ReadonlyArray<A>, least = 3): ReadonlyArray<A> => {
  const count = Math.min(all.length, Math.max(least, shareOf(all.length)))
  if (count === all.length) return all
  const first = placeOf(all.length)
  return all.filter((_, index) => ((index + first) * count) % all.length < count)
}

const hint = (name: string, seed: string): string =>
  `Seed: ${seed}\nAll of it again: HEDDLE_SEED=${seed} npx vitest run test/laws -t ${JSON.stringify(name)}`

const replaying = (replay: string): string => `The one value again: add HEDDLE_REPLAY='${replay}'`

/** A law that fails with what is wrong, whatever becomes of it. */
const checked = <A>(law: Law<A>) => (value: A): Effect.Effect<boolean, unknown> =>
  Effect.flatMap(Effect.exit(Effect.suspend(() => law(value))), (exit): Effect.Effect<boolean, unknown> => {
    if (Exit.isFailure(exit)) return Effect.fail(Cause.pretty(exit.cause))
    return exit.value.length === 0 ? Effect.succeed(true) : Effect.fail(exit.value)
  })

/** What is to be said of a property that does not hold, or nothing. */
export const check = <A>(
  name: string,
  values: Arbitrary.Arbitrary<A>,
  law: Law<A>,
  { patienceMillis = 1_200_000, replay, runs, seed }: Options
): Effect.Effect<string | undefined> =>
  Effect.suspend(() => {
    let count = 0
    let last: A | undefined
    const noted = (value: A): Effect.Effect<boolean, unknown> => {
      count++
      last = value
      return checked(law)(value)
    }
    const all = Arbitrary.checkEffect(values, noted, { seed: `${seed} ${name}`, runs, size, replay })
    return Effect.map(Effect.timeoutOption(all, patienceMillis), (result) => {
      if (result._tag === "None") {
        return `${name}: no end after ${patienceMillis} ms, at value ${count}\n` +
          `${Formatter.format(last, { space: 2 })}\n${hint(name, seed)}`
      }
      const failure = Arbitrary.formatCheckFailure(result.value)
      if (failure === undefined) return undefined
      const again = result.value._tag === "Falsified" ? `\n${replaying(result.value.replay)}` : ""
      return `${name}: ${failure}\n${hint(name, seed)}${again}`
    })
  })

/** A generated value that once falsified a law, by its place among the values of a seed: the replay of its failure has it. */
export interface Fallen {
  readonly id: string
  /** The title of the property at the time, where that has another one by now: the values of a seed depend on it. */
  readonly of?: string
  readonly seed: string
  readonly at: number
  readonly size: number
}

/** A test that holds generated values to a law. Each value that has `fallen` is a test of its own from then on. */
export const property = <A>(
  name: string,
  values: Arbitrary.Arbitrary<A>,
  law: Law<A>,
  runs: number,
  fallen: ReadonlyArray<Fallen> = []
): void => {
  for (const { at, id, of = name, seed, size } of fallen) {
    const replay = JSON.stringify([1, `${seed} ${of}`, at, size, [], "PropertyError"])
    it.live(`${id}: ${name} (value ${at} of the seed ${seed})`, () =>
      holds(
        Effect.map(check(name, values, law, { seed, runs: 1, replay }), (failure) =>
          failure?.includes("PropertyPassed") === true ? undefined : failure)
      ))
  }
  const replay = process.env["HEDDLE_REPLAY"]
  const options = { seed: seedOfAll, runs: shareOf(runs), ...(replay === undefined ? {} : { replay }) }
  it.live(name, () => holds(check(name, values, law, options)), 1_260_000)
}

const holds = (checked: Effect.Effect<string | undefined>): Effect.Effect<void> =>
  Effect.flatMap(checked, (failure) => failure === undefined ? Effect.void : Effect.die(new Error(failure)))
