/**
 * Sessions on a cluster of processes, over the cluster of Effect.
 */
export * as Cluster from "./Cluster.ts"
export * as SessionClient from "./SessionClient.ts"
