/** Sessions on a cluster of processes, using Effect's cluster. */
export * as Cluster from "./Cluster.ts"
export * as SessionClient from "./SessionClient.ts"
