/**
 * Files of a test's own.
 */
import * as Effect from "effect/Effect"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"

/** The path of a database that is not there yet, in a folder that is gone with the scope. */
export const temporaryFile = Effect.map(
  Effect.acquireRelease(
    Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-sql-"))),
    (folder) => Effect.sync(() => fs.rmSync(folder, { recursive: true, force: true }))
  ),
  (folder) => path.join(folder, "store.db")
)
