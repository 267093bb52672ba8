/**
 * Holds each test of the core to the ledger: what a run has taken is given back at its end. Tests of the other rooms hold
 * themselves to it, in their files.
 */
import { ledger } from "../durable/support/ledger.ts"

/** The files of the core: those of its modules, of its inner parts, of the models and of the bridges. */
const files = /^test\/([A-Z]|internal\/|adapters\/|bridges\/)/

// Sockets close in a time of their own, and these rooms have none of the library's.
ledger({ holds: ({ task }) => files.test(task.file.name), leaves: ["sockets", "listeners of the process"] })
