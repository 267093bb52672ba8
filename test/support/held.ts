/**
 * Holds each test of the core to the ledger: what a run has taken is given back at its end. Tests of the other rooms hold
 * themselves to it, in their files.
 */
import { readdirSync } from "node:fs"
import { ledger } from "../durable/support/ledger.ts"

/** The rooms whose tests are held: those of the core, the adapters and the bridges. */
const rooms: ReadonlyArray<string> = [
  ...readdirSync("src/internal", { withFileTypes: true }).filter((each) => each.isDirectory()).map(({ name }) => name),
  "adapters",
  "bridges"
]

const isHeld = (file: string): boolean => rooms.some((room) => file.startsWith(`test/${room}/`))

// Sockets close in a time of their own, and these rooms have none of the library's.
ledger({ holds: ({ task }) => isHeld(task.file.name), leaves: ["sockets", "listeners of the process"] })
