/**
 * Store of a command: a file or the process memory.
 */
import * as Layer from "effect/Layer"
import { existsSync } from "node:fs"
import { DatabaseSync } from "node:sqlite"
import * as Session from "../../Session.ts"
import * as SessionStore from "../../sql/SessionStore.ts"
import * as Problems from "./problem.ts"

/** Tells whether a file is a SQLite database with a store's tables. */
const isStore = (file: string): boolean => {
  try {
    const database = new DatabaseSync(file, { readOnly: true })
    try {
      return database.prepare("SELECT 1 FROM sqlite_master WHERE name = 'heddle_journals'").all().length > 0
    } finally {
      database.close()
    }
  } catch {
    return false
  }
}

/** Opens the existing store in a file. A mistyped name creates nothing. */
export const existing = (file: string): Layer.Layer<Session.Store, Problems.Problem> => {
  const problem = !existsSync(file)
    ? `there is no file ${file}; --store names the file of the sessions`
    : isStore(file)
    ? undefined
    : `${file} is not a session store; --store names a file made by heddle serve or heddle call`
  return problem === undefined ? layer(file) : Layer.effect(Session.Store, Problems.problem(problem))
}

/** Opens the store in a file, creating the file if needed, or a store in memory. */
export const layer = (file: string | undefined): Layer.Layer<Session.Store, Problems.Problem> =>
  file === undefined
    ? Session.Store.layerMemory
    : Layer.catch(
      SessionStore.layerSqlite({ filename: file }),
      (error) =>
        Layer.effect(
          Session.Store,
          Problems.problem(`--store ${file} cannot be used: ${Problems.detailOf(error)}`)
        )
    )
