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
