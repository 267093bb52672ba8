/**
 * Sessions in a database: the store over any SQL client of Effect, and a client over the SQLite of Node.
 */
export * as SessionStore from "./SessionStore.ts"
export * as SqliteClient from "./SqliteClient.ts"
