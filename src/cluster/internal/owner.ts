/**
 * Owns a session: the only entity running the session, on the runner with its shard. Commands are carried out in order;
 * the feed and a stop do not wait for commands. The journal contains everything that happens, so the next owner needs
 * nothing from this owner.
 */
import * as Entity from "effect/cluster/Entity"
import * as ShardingConfig from "effect/cluster/ShardingConfig"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Json from "../../internal/json.ts"
import * as Journal from "../../Journal.ts"
import * as Session from "../../Session.ts"
import * as Commands from "./commands.ts"
import * as Drain from "./drain.ts"
import * as Feeds from "./feed.ts"
import * as Protocol from "./protocol.ts"

const reportOf = (kept: Session.Kept): Protocol.Report => {
  const { id, session, version } = kept
  const { output } = Session.view(kept)
  return {
    session: id,
    version,
    status: session.status,
    suspensions: session.suspensions,
    outputText: Session.outputText(session),
    ...(output === undefined ? {} : { output })
  }
}

const refusalOf = (error: unknown): Pick<Protocol.CommandError, "reason" | "detail"> =>
  error instanceof Commands.RepeatedFailure ? error.error : Journal.runErrorOf(error)

/** Creates a session's handlers. */
export const make = <R>(drive: Commands.Make<R>) =>
  Effect.gen(function*() {
    const { entityId } = yield* Entity.CurrentAddress
    const { host, port } = yield* Entity.CurrentRunnerAddress
    const config = yield* Effect.serviceOption(ShardingConfig.ShardingConfig)
    const drainMillis = Drain.within(Option.map(config, ({ entityTerminationTimeout }) => entityTerminationTimeout))
    const services = yield* Effect.context<R | Session.Store>()
    const id = Json.unescaped(entityId)
    const feed = yield* Feeds.make(id)
    const driver = drive({ id, owner: `${host}:${port}`, drainMillis }, feed)
    return Protocol.SessionEntity.of({
      Drive: ({ payload }) =>
        driver.carryOut(payload).pipe(
          Effect.map(reportOf),
          Effect.mapError((error) =>
            new Protocol.CommandError({ session: id, command: payload.command, ...refusalOf(error) })
          ),
          Effect.provideContext(services)
        ),
      // The journal already contains the stop, and its reader finds the run's end there too.
      Stop: () => Effect.provideContext(Effect.ignore(driver.stopped), services),
      Look: () => Effect.provideContext(Effect.ignore(driver.look), services),
      Feed: () => feed.events
    })
  })
