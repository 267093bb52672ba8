/**
 * Ids as keys of a table: what a database may not hold of an id is escaped, and keys have one order in every database.
 *
 * @since 0.1.0
 */
import type * as SqlClient from "effect/sql/SqlClient"
import type * as Statement from "effect/sql/Statement"

/** The id as a key. Databases refuse text with a zero or a lone surrogate; JSON escapes both. */
export const keyOf = (id: string): string => JSON.stringify(id).slice(1, -1)

/** The id that a key stands for. */
export const idOf = (key: string): string => String(JSON.parse(`"${key}"`))

/** What the keys of all ids with this prefix begin with. One that ends within a pair of surrogates is cut before it. */
export const prefixOf = (prefix: string): string => keyOf(prefix.replace(/[\ud800-\udbff]$/, ""))

/**
 * The column of ids in the order of their bytes, as SQLite compares them. The order of a Postgres database may be that of
 * a language, in which ids with one prefix do not stand together.
 */
export const ordered = (sql: SqlClient.SqlClient): Statement.Fragment =>
  sql.onDialectOrElse({ pg: () => sql.literal("id COLLATE \"C\""), orElse: () => sql.literal("id") })
