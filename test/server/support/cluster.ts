/** Servers of one cluster in one process, each on a runner and with a connection of its own, over one store. */
import * as EntityId from "effect/cluster/EntityId"
import * as Sharding from "effect/cluster/Sharding"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as HttpServer from "effect/http/HttpServer"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Scope from "effect/Scope"
import { type Adapter, Session } from "heddle"
import { Cluster } from "heddle/cluster"
import { type Agent, Server } from "heddle/server"
import { SqliteClient } from "heddle/sql"
import { CurrentProcess } from "../../../src/internal/session/claim.ts"
import { freePort } from "../../cluster/support/processes.ts"
import { runnerAt } from "../../cluster/support/runners.ts"
import { find } from "../../support/until.ts"
import { type Site, siteAt } from "./site.ts"

/** A server of the cluster. */
export interface Member {
  readonly site: Site
  /** Tells whether it owns a session. */
  readonly owns: (id: string) => boolean
  /** Releases it, as a signal does. */
  readonly leave: Effect.Effect<void>
}

/** Returns a function that starts servers of one cluster, each by its name and with its model. */
export const cluster = (agent: Agent.Agent, options: Partial<Server.Options> = {}) =>
  Effect.gen(function*() {
    const shared = Layer.succeedContext(
      yield* Layer.build(Layer.merge(SqliteClient.layer({ filename: ":memory:" }), Session.Store.layerMemory))
    )
    return (name: string, model: Layer.Layer<Adapter.Adapter>): Effect.Effect<Member, never, Scope.Scope> =>
      Effect.gen(function*() {
        const scope = yield* Scope.fork(yield* Effect.scope)
        const app = Server.layer({ agents: [agent], authorize: Server.allowLoopback, drain: 100, ...options }).pipe(
          Layer.provide([model, Cluster.servers, Layer.succeed(CurrentProcess, name)]),
          Server.layerNode({ port: 0 }),
          Layer.provideMerge(runnerAt(yield* freePort)),
          Layer.provide([shared, Logger.layer([])])
        )
        const context = yield* Layer.buildWithScope(app, scope)
        const { address } = Context.get(context, HttpServer.HttpServer)
        const sharding = Context.get(context, Sharding.Sharding)
        return {
          site: siteAt(`http://127.0.0.1:${(address as { readonly port: number }).port}`),
          owns: (id: string) => sharding.hasShardId(sharding.getShardId(EntityId.make(`local:${id}`), "default")),
          leave: Scope.close(scope, Exit.void)
        }
      }).pipe(Effect.orDie)
  })

/** Waits until all shards have an owner, and returns the id of a session that a server owns. */
export const ownedBy = (owner: Member, ...others: ReadonlyArray<Member>): Effect.Effect<string> =>
  find(
    "a session of the owner",
    Effect.sync(() => {
      const ids = Array.from({ length: 200 }, (_, index) => `s${index}`)
      const isSettled = ids.every((id) => [owner, ...others].filter((member) => member.owns(id)).length === 1)
      return isSettled ? ids.find(owner.owns) : undefined
    })
  )
