/**
 * Converts ids to table keys, and contains the expressions that differ between databases. Characters a database may
 * refuse are escaped, and keys have the same order in every database.
 */
import type * as SqlClient from "effect/sql/SqlClient"
import type * as Statement from "effect/sql/Statement"
import * as Json from "../../internal/json.ts"

export { escaped as keyOf, unescaped as idOf } from "../../internal/json.ts"

/** Returns the key prefix for all ids with this prefix. A prefix ending inside a surrogate pair loses the half pair. */
export const prefixOf = (prefix: string): string => Json.escaped(prefix.replace(/[\ud800-\udbff]$/, ""))

/** Returns the smallest key after all keys with a prefix, or `undefined` if every later key has the prefix. */
const behind = (prefix: string): string | undefined => {
  const points = Array.from(prefix, (character) => character.codePointAt(0) ?? 0)
  while (points.at(-1) === 0x10ffff) points.pop()
  const last = points.pop()
  // No key has a lone surrogate.
  return last === undefined ? undefined : String.fromCodePoint(...points, last === 0xd7ff ? 0xe000 : last + 1)
}

/** Condition for keys with a prefix, in byte order, so that an index has them in a row. */
export const isPrefixed = (sql: SqlClient.SqlClient, column: string, prefix: string): Statement.Fragment => {
  const id = ordered(sql, column)
  const end = behind(prefix)
  return end === undefined ? sql`${id} >= ${prefix}` : sql`${id} >= ${prefix} AND ${id} < ${end}`
}

/**
 * Returns an id column in byte order, as SQLite compares ids. A Postgres database may order by language, separating ids
 * with the same prefix.
 */
export const ordered = (sql: SqlClient.SqlClient, column: string): Statement.Fragment =>
  sql.onDialectOrElse({ pg: () => sql.literal(`${column} COLLATE "C"`), orElse: () => sql.literal(column) })

/** Database time, in milliseconds since 1970. In Postgres `now()` would return the transaction's start. */
export const now = (sql: SqlClient.SqlClient): Statement.Fragment =>
  sql.onDialectOrElse({
    pg: () => sql.literal("FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000)"),
    orElse: () => sql.literal("CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)")
  })

/**
 * Condition for journals with remaining work, written to make Postgres search the index. Postgres does so only by a
 * value computed once, such as a subquery, and expects few rows between two values.
 */
export const isDue = (sql: SqlClient.SqlClient): Statement.Fragment => sql`due BETWEEN 0 AND (SELECT ${now(sql)})`
