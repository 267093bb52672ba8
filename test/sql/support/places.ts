/**
 * The stores that several processes share: a file of SQLite, or a folder of plain files.
 */
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Layer from "effect/Layer"
import type { Session } from "heddle"
import { FileStore } from "heddle/files"
import { SessionStore } from "heddle/sql"

/** The store at a path: in the file, if the path ends as one, otherwise in the folder. */
export const storeAt = (path: string): Layer.Layer<Session.Store, unknown> =>
  path.endsWith(".db")
    ? SessionStore.layerSqlite({ filename: path })
    : FileStore.layer({ folder: path }).pipe(Layer.provide(NodeServices.layer))
