/**
 * A database as release 0.1 left it: its tables, and journals in the texts of that release.
 */
import * as Effect from "effect/Effect"
import * as Migrator from "effect/sql/Migrator"
import * as SqlClient from "effect/sql/SqlClient"

const tables = Effect.gen(function*() {
  const sql = yield* SqlClient.SqlClient
  yield* sql`CREATE TABLE heddle_journals (id TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL)`
  yield* sql`CREATE TABLE heddle_records (
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (id, version)
  )`
})

/** Makes the tables in the database of the client, with these journals. */
export const make = (journals: Readonly<Record<string, ReadonlyArray<string>>>) =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    yield* Migrator.make({})({ loader: Migrator.fromRecord({ "1_journals": tables }), table: "heddle_migrations" })
    for (const [id, texts] of Object.entries(journals)) {
      yield* sql`INSERT INTO heddle_journals ${sql.insert({ id, version: texts.length })}`
      for (const [index, record] of texts.entries()) {
        yield* sql`INSERT INTO heddle_records ${sql.insert({ id, version: index + 1, record })}`
      }
    }
  })
