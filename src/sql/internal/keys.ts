/**
 * Converts ids to keys of a table, and has the expressions that differ between databases. Characters that a database
 * may refuse are escaped, and keys have the same order in every database.
 *
 * @since 0.1.0
 */
import type * as SqlClient from "effect/sql/SqlClient"
import type * as Statement from "effect/sql/Statement"
import * as Json from "../../internal/json.ts"

export { escaped as keyOf, unescaped as idOf } from "../../internal/json.ts"

/**
 * Returns the prefix of the keys of all ids with this prefix. A prefix that ends inside a surrogate pair is shortened
 * to the character before it.
 */
export const prefixOf = (prefix: string): string => Json.escaped(prefix.replace(/[\ud800-\udbff]$/, ""))

/** Returns the smallest key behind all keys with a prefix, or nothing where each later key has it. */
const behind = (prefix: string): string | undefined => {
  const points = Array.from(prefix, (character) => character.codePointAt(0) ?? 0)
  while (points.at(-1) === 0x10ffff) points.pop()
  const last = points.pop()
  // No key has a lone surrogate.
  return last === undefined ? undefined : String.fromCodePoint(...points, last === 0xd7ff ? 0xe000 : last + 1)
}

/** The condition of the keys with a prefix, in byte order, so that an index has them in a row. */
export const isPrefixed = (sql: SqlClient.SqlClient, column: string, prefix: string): Statement.Fragment => {
  const id = ordered(sql, column)
  const end = behind(prefix)
  return end === undefined ? sql`${id} >= ${prefix}` : sql`${id} >= ${prefix} AND ${id} < ${end}`
}

/**
 * A column of ids in byte order, as SQLite compares them. A Postgres database may order by a language, which
 * separates ids with the same prefix.
 */
export const ordered = (sql: SqlClient.SqlClient, column: string): Statement.Fragment =>
  sql.onDialectOrElse({ pg: () => sql.literal(`${column} COLLATE "C"`), orElse: () => sql.literal(column) })

/**
 * The time of the database, in milliseconds since 1970. In Postgres `now()` would be the start of the transaction.
 */
export const now = (sql: SqlClient.SqlClient): Statement.Fragment =>
  sql.onDialectOrElse({
    pg: () => sql.literal("FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000)"),
    orElse: () => sql.literal("CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)")
  })

/**
 * The condition of the journals with work left. It makes Postgres search the index: it does so only by a value that it
 * computes once, which a subquery is, and it expects few rows between two values.
 */
export const isDue = (sql: SqlClient.SqlClient): Statement.Fragment => sql`due BETWEEN 0 AND (SELECT ${now(sql)})`
