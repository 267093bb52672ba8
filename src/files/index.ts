/**
 * Sessions in plain files: a store without a database, over the file system of any platform of Effect.
 */
export * as FileStore from "./FileStore.ts"
