/**
 * Loaded before a program, kills its process with SIGKILL at one place: before or after it reads or writes a file. The
 * environment says which, such as `before writeFile notes.md` or `after readFile a.txt`.
 */
import fs from "node:fs"
import { syncBuiltinESMExports } from "node:module"

const [when, operation, name = ""] = (process.env["DIE_AT"] ?? "").split(" ")

type Call = (path: unknown, ...rest: ReadonlyArray<unknown>) => unknown

const operations = fs as unknown as Record<string, Call>

if (operation === "readFile" || operation === "writeFile") {
  const own = operations[operation] as Call
  const die = () => process.kill(process.pid, "SIGKILL")
  operations[operation] = (path, ...rest) => {
    if (!String(path).endsWith(name)) return own(path, ...rest)
    if (when === "before") die()
    return own(path, ...rest.slice(0, -1), die)
  }
  syncBuiltinESMExports()
}
