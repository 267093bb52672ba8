/**
 * Sessions in a database: the store over any SQL client of Effect, and the client for SQLite that comes with Node.
 */
export * as SessionStore from "./SessionStore.ts"
export * as SqliteClient from "./SqliteClient.ts"
