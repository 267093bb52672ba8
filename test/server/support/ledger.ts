/** The ledger of a server: what it has taken for its clients, and not given back yet. */
import * as Effect from "effect/Effect"
import type { Site } from "../../../src/server/internal/routes.ts"
import { until } from "../../support/until.ts"

const sumOf = (held: ReadonlyMap<string, number>): number => Array.from(held.values()).reduce((a, b) => a + b, 0)

/**
 * Returns the count of each thing that a server holds. `logs` are those of runs, and the places of next ones. A run that
 * is expected is no thing that is given back: it is looked for with the next write of its principal.
 */
export const heldBy = ({ counters, hub }: Site): Readonly<Record<string, number>> => {
  const { addresses, begun, bodies, bytes, opening, readings, streams } = counters as any
  const { bytes: logBytes, ended, logs, readers } = hub as any
  return {
    addresses: sumOf(addresses.held),
    bodies: sumOf(bodies.held),
    bodyBytes: bytes,
    begun: begun.size,
    ended: ended.size,
    logBytes,
    logs: logs.size,
    opening: opening.size,
    readers: readers.size,
    readings: readings.size,
    streams: sumOf(streams.held)
  }
}

/** The worker of a server, as far as it tells whether it drives a session. */
export interface Driver {
  readonly drives: (key: string) => boolean
}

/** What a server holds, and the keys of the sessions whose runs are about to begin, and are under way. */
export interface Ledger {
  readonly held: Readonly<Record<string, number>>
  readonly expected: ReadonlySet<string>
  readonly begun: ReadonlySet<string>
}

export const ledgerOf = (site: Site): Ledger => {
  const { expected, logs } = site.hub as any
  const begun = Array.from(logs as Map<string, any>).flatMap(([key, log]) => log.begun === undefined ? [] : [key])
  return {
    held: heldBy(site),
    expected: new Set(expected as Set<string>),
    begun: new Set(begun)
  }
}

/** Requires that a request that was refused took nothing: no place, no run that is expected, and not those of others. */
export const requireAsBefore = (
  site: Site,
  worker: Driver,
  what: string,
  before: Ledger
): Effect.Effect<void> =>
  Effect.gen(function*() {
    const { begun, expected } = ledgerOf(site)
    // An expectation of a session that nothing drives is given up by the next write of its principal.
    const isLost = (key: string) => !expected.has(key) && !begun.has(key) && worker.drives(key)
    const lost = Array.from(before.expected).filter(isLost)
    const more = Array.from(expected).filter((key) => !before.expected.has(key) && !before.begun.has(key))
    if (lost.length > 0 || more.length > 0) {
      return yield* Effect.die(new Error(`${what}: no longer expected: ${lost}; expected: ${more}`))
    }
    yield* until(
      `${what}: what the server holds`,
      Effect.sync(() => Object.entries(heldBy(site)).filter(([name, count]) => count > (before.held[name] ?? 0))),
      (more) => more.length === 0
    )
  })

const isEmpty = (held: Readonly<Record<string, number>>): boolean => Object.values(held).every((count) => count === 0)

/** Waits until servers hold nothing for a client. */
export const nothingHeld = (sites: Iterable<Site>): Effect.Effect<void> =>
  Effect.asVoid(until(
    "what servers hold",
    Effect.sync(() => Array.from(sites, heldBy).filter((held) => !isEmpty(held))),
    (held) => held.length === 0
  ))

/** Requires that a server that was closed holds nothing. */
export const requireNothing = (site: Site): Effect.Effect<void> =>
  Effect.suspend(() => {
    const held = heldBy(site)
    return isEmpty(held)
      ? Effect.void
      : Effect.die(new Error(`a server that was closed holds: ${JSON.stringify(held)}`))
  })
