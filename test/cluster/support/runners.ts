/** Runners of one cluster in one process, each with connections of its own, over one database. */
import * as NodeHttpServer from "@effect/platform-node/NodeHttpServer"
import * as NodeSocket from "@effect/platform-node/NodeSocket"
import * as HttpRunner from "effect/cluster/HttpRunner"
import * as MessageStorage from "effect/cluster/MessageStorage"
import * as RunnerHealth from "effect/cluster/RunnerHealth"
import * as ShardingConfig from "effect/cluster/ShardingConfig"
import * as SqlRunnerStorage from "effect/cluster/SqlRunnerStorage"
import * as Layer from "effect/Layer"
import * as RpcSerialization from "effect/rpc/RpcSerialization"
import { Cluster } from "heddle/cluster"
import * as http from "node:http"

/** A runner whose connections close at once when it leaves. */
export const runnerAt = (port: number) => {
  const host = "127.0.0.1"
  const { shardingConfig } = Cluster.transport({ host, port, drain: 100 })
  return HttpRunner.layerWebsocket.pipe(
    Layer.provide([
      NodeHttpServer.layer(() => http.createServer(), { host, port, gracefulShutdownTimeout: 1 }),
      NodeSocket.layerWebSocketConstructor,
      RunnerHealth.layerNoop,
      SqlRunnerStorage.layer
    ]),
    Layer.provide([MessageStorage.layerNoop, RpcSerialization.layerSchemaBinary()]),
    Layer.provide(ShardingConfig.layer(shardingConfig))
  )
}
