/**
 * The store of a command: a file, or the memory of the process.
 *
 * @since 0.1.0
 */
import * as Layer from "effect/Layer"
import * as Journals from "../../internal/session/journal.ts"
import * as SessionStore from "../../sql/SessionStore.ts"
import * as Problems from "./problem.ts"

/** Returns the store in a file, which is created, or one in memory. */
export const layer = (file: string | undefined): Layer.Layer<Journals.Store, Problems.Problem> =>
  file === undefined
    ? Journals.Store.layerMemory
    : Layer.catch(
      SessionStore.layerSqlite({ filename: file }),
      (error) =>
        Layer.effect(
          Journals.Store,
          Problems.problem(`--store ${file} cannot be used: ${Problems.detailOf(error)}`)
        )
    )
