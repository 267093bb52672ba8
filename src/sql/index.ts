/** Keeps sessions in a database: a store over any Effect SQL client, and a client over Node's SQLite. */
export * as SessionStore from "./SessionStore.ts"
export * as SqliteClient from "./SqliteClient.ts"
