/**
 * A ledger of what the library takes and has to give back. Objects of these classes live as long as what they stand for,
 * so that one which is alive after its work has ended was not given back.
 */
import * as v8 from "node:v8"
import { OwnClaim } from "../../src/internal/session/claim.ts"
import { Writer } from "../../src/internal/session/writer.ts"

const classes = { OwnClaim, Writer }

/** How many of each class are reachable. The heap is collected first. */
export const heldNow = (): Readonly<Record<string, number>> =>
  Object.fromEntries(Object.entries(classes).map(([name, one]) => [name, v8.queryObjects(one, { format: "count" })]))
