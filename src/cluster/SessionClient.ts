/**
 * A client of sessions on a cluster: it sends commands to the owner of a session, in whichever process that is, and
 * reads the events of the session. A command waits for an owner, and its run continues without the process that sent
 * it.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import type * as ClusterError from "effect/cluster/ClusterError"
import * as EntityAddress from "effect/cluster/EntityAddress"
import * as EntityId from "effect/cluster/EntityId"
import * as MessageStorage from "effect/cluster/MessageStorage"
import * as Sharding from "effect/cluster/Sharding"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as Event from "../Event.ts"
import * as Settings from "../internal/ask/options.ts"
import * as ToolOutcomes from "../internal/declare/outcome.ts"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import * as Journal from "../Journal.ts"
import * as Message from "../Message.ts"
import * as Session from "../Session.ts"
import * as Ids from "./internal/ids.ts"
import * as Protocol from "./internal/protocol.ts"

export { CommandError, Connected, Report } from "./internal/protocol.ts"

/**
 * Errors of a command: a {@link CommandError} for a refused command, or an error of the cluster. After a
 * `PersistenceError` the command was not stored, and may be sent again under its id.
 *
 * @category errors
 * @since 0.1.0
 */
export type ClientError =
  | Protocol.CommandError
  | ClusterError.AlreadyProcessingMessage
  | ClusterError.EntityNotAssignedToRunner
  | ClusterError.MailboxFull
  | ClusterError.PersistenceError

/**
 * Options of a command.
 *
 * @category options
 * @since 0.1.0
 */
export interface CommandOptions {
  /**
   * The id of the command. A command that is sent again under its id, by any process, is carried out once and returns
   * the same answer. A new id by default.
   */
  readonly command?: string
}

/**
 * Options of a reply.
 *
 * @category options
 * @since 0.1.0
 */
export interface ReplyOptions extends CommandOptions {
  /**
   * Treatment of calls that still wait for an answer: `"deny"` answers them as denied, as with `Session.reply`. By
   * default the command is refused while an approval is pending.
   */
  readonly pending?: "deny"
  /**
   * The version of the journal that the user has seen, from a {@link Report} or from {@link Connected}. The message
   * answers the one open question if that version contains the question. Otherwise, and by default, it waits until
   * the question is answered.
   */
  readonly after?: number
}

/**
 * Options of an approval.
 *
 * @category options
 * @since 0.1.0
 */
export interface ApproveOptions extends CommandOptions, Pick<Session.ApproveOptions, "arguments"> {}

/**
 * Options of a denial.
 *
 * @category options
 * @since 0.1.0
 */
export interface DenyOptions extends CommandOptions {
  /** The reason, as the model reads it. */
  readonly reason?: string
}

/**
 * The receipt of a stop.
 *
 * @category models
 * @since 0.1.0
 */
export interface StopReceipt {
  /** The id of the request, for `Session.receipt`. Left out where no run was open. */
  readonly id?: string
  /**
   * The version of the journal that contains the request. From here on the stop is honoured, even if the owner dies.
   */
  readonly accepted: number
  /** Waits until the run has ended, and reports what became of its calls. */
  readonly ended: Effect.Effect<Session.StopReport, Journal.StoreError>
}

/**
 * The last element of {@link Service.follow}: the command has been carried out.
 *
 * @category models
 * @since 0.1.0
 */
export interface Reported {
  readonly _tag: "Reported"
  /** The session after the command. */
  readonly report: Protocol.Report
}

/**
 * Commands of a client. Each succeeds once the run that it leads to has ended or waits for an answer. The run
 * continues if the caller is interrupted before that.
 *
 * @category models
 * @since 0.1.0
 */
export interface Service {
  /**
   * Adds a message of the user. Creates the session if it does not exist, and continues a session whose last run
   * failed.
   */
  readonly reply: (
    id: string,
    content: Message.Content,
    options?: ReplyOptions
  ) => Effect.Effect<Protocol.Report, ClientError>
  /**
   * Answers a question by the id of its call, or gives the result of a manual call. The answer is sent as plain JSON.
   */
  readonly answer: (
    id: string,
    toolCallId: string,
    value: unknown,
    options?: CommandOptions
  ) => Effect.Effect<Protocol.Report, ClientError>
  /** Approves a call that waits for an approval. */
  readonly approve: (
    id: string,
    toolCallId: string,
    options?: ApproveOptions
  ) => Effect.Effect<Protocol.Report, ClientError>
  /** Denies a call that waits for an approval. */
  readonly deny: (id: string, toolCallId: string, options?: DenyOptions) => Effect.Effect<Protocol.Report, ClientError>
  /** Makes the owner do the work that is left in a session and that no command on the cluster waits for. */
  readonly resume: (id: string, options?: CommandOptions) => Effect.Effect<Protocol.Report, ClientError>
  /**
   * Asks the run of a session to stop. Succeeds when the request is in the journal; the owner, or the next one,
   * honours it. `ended` of the receipt waits for the end of the run, and names its calls. Without a run nothing is
   * stopped. With `call` that call alone is stopped, and the run continues, as `Session.stop` says.
   */
  readonly stop: (
    id: string,
    options?: Session.RunStopOptions
  ) => Effect.Effect<StopReceipt, Protocol.CommandError | Journal.StoreError>
  /**
   * Submits a message, as `Session.submit` does: its `mode` says which run gets it. Succeeds when the message is in the
   * journal. The owner looks for it at once, and replies to a message that no run under way gets. `Session.receipt`
   * returns its outcome.
   */
  readonly submit: <E = never>(
    id: string,
    content: Message.Content,
    options?: Session.SubmitOptions<E>
  ) => Effect.Effect<Session.SubmitReceipt, Protocol.CommandError | Session.SessionError | Journal.StoreError | E>
  /** Takes a submitted message back, as `Session.withdraw` does. The owner looks for the withdrawal at once. */
  readonly withdraw: (
    id: string,
    messageId: string,
    options?: Session.StopOptions
  ) => Effect.Effect<boolean, Protocol.CommandError | Journal.StoreError>
  /**
   * Sends a command of the session once its feed is connected, and returns the live events until the command has been
   * carried out: `Reported` is the last element. Fails as the command fails. The end comes in any case, also where
   * events are missed because the owner was killed.
   */
  readonly follow: (
    id: string,
    command: Effect.Effect<Protocol.Report, ClientError>
  ) => Stream.Stream<Event.WireEvent | Protocol.Connected | Reported, ClientError>
  /**
   * Returns the live events of a session, from its owner and from each later owner. The stream does not end by
   * itself. `Connected` comes first, after missed events, which the journal contains, and after each command: without
   * a `requestId` no run is under way. A slow reader does not block the run.
   */
  readonly events: (id: string) => Stream.Stream<Event.WireEvent | Protocol.Connected, ClientError>
  /**
   * Removes the commands of a session, including their messages, from the tables of the cluster, which otherwise keep
   * them forever. Their ids are forgotten: a command that is sent again is carried out again. The journal does not
   * change.
   */
  readonly forget: (id: string) => Effect.Effect<void, ClientError>
}

/** The options of a command of any kind. */
const knownOptions = {
  command: Values.name,
  pending: Values.oneOf("deny"),
  after: Values.checkedLater,
  arguments: Values.record,
  reason: Values.text
} satisfies NamesOf<ReplyOptions & ApproveOptions & DenyOptions>

const InputJson = Schema.toCodecJson(Protocol.Input)

const utf8 = new TextEncoder()

/**
 * Returns the input as plain JSON, as the owner reads it. Refuses an oversized input, which would keep the cluster
 * from reading anything else.
 */
const checked = (
  session: string,
  command: string,
  input: Protocol.Input
): Effect.Effect<Protocol.Input, Protocol.CommandError> =>
  Effect.gen(function*() {
    const refused = (reason: string, detail: string) => new Protocol.CommandError({ session, command, reason, detail })
    const json = yield* Schema.encodeEffect(InputJson)(input).pipe(
      Effect.mapError(({ message }) => refused("invalid_input", message))
    )
    const maxBytes = yield* Journal.MaxRecordBytes
    const bytes = utf8.encode(JSON.stringify(json)).length
    if (bytes > maxBytes) {
      return yield* refused("too_large", `the command has ${bytes} bytes, more than the ${maxBytes} of MaxRecordBytes`)
    }
    return yield* Effect.orDie(Schema.decodeEffect(InputJson)(json))
  })

const misdirected = (id: string, session: string): TypeError => {
  const [wanted, given] = [JSON.stringify(id), JSON.stringify(session)]
  return new TypeError(
    `SessionClient.follow: the command is one of session ${given}; give a command of session ${wanted}`
  )
}

const make = Effect.gen(function*() {
  const entity = yield* Protocol.SessionEntity.client
  const sharding = yield* Sharding.Sharding
  const storage = yield* MessageStorage.MessageStorage
  const store = yield* Session.Store
  const scope = yield* Effect.scope
  const context = yield* Effect.context<never>()

  const drive = (id: string, given: Protocol.Input, options: CommandOptions = {}) =>
    Effect.gen(function*() {
      checkNames("a command", options, knownOptions)
      const { command = Settings.mintRequestId(context) } = options
      const address = yield* Ids.entityOf(id, command)
      const input = yield* checked(id, command, given)
      return yield* entity(address).Drive({ command, input })
    })

  /**
   * Returns the feed of the current owner. If that owner hands the session over, its feed ends and the next one
   * begins.
   */
  const feed = (address: string): Stream.Stream<Protocol.Fed, ClientError> =>
    entity(address).Feed().pipe(
      Stream.catchCause((cause) => Cause.hasInterruptsOnly(cause) ? Stream.empty : Stream.failCause(cause)),
      Stream.repeat(Schedule.spaced("100 millis"))
    )

  /** Returns an element of the feed as its reader sees it. */
  const read = (fed: Protocol.Fed): Event.WireEvent | Protocol.Connected =>
    fed._tag === "Fed" ? Event.fromWire(fed.event) : { ...fed, _tag: "Connected" }

  const follow: Service["follow"] = (id, command) =>
    Stream.unwrap(Effect.gen(function*() {
      const address = yield* Ids.entityOf(id, "follow")
      const scope = yield* Effect.scope
      const answer = yield* Deferred.make<Protocol.Report, ClientError>()
      let isSent = false
      const send = Effect.suspend(() => {
        if (isSent) return Effect.void
        isSent = true
        const own = Effect.tap(command, ({ session }) =>
          session === id ? Effect.void : Effect.die(misdirected(id, session)))
        return Effect.forkIn(Deferred.into(own, answer), scope)
      })
      let report: Protocol.Report | undefined
      /** The version up to which all events have been read. */
      let version = -1
      const elementsOf = (element: Protocol.Fed | Protocol.Report) => {
        // A gap leaves the version as it is: the events behind it are still to come.
        if (!("_tag" in element)) {
          report = element
        } else if (element._tag === "Connected" || element._tag === "Settled") {
          version = element.version
        }
        const events = "_tag" in element && element._tag !== "Settled" ? [read(element)] : []
        const isOver = report !== undefined && version >= report.version
        return isOver ? [...events, { _tag: "Reported", report } as Reported] : events
      }
      return feed(address).pipe(
        Stream.tap(({ _tag }) =>
          _tag === "Connected" ? send : Effect.void
        ),
        Stream.merge(Stream.fromEffect(Deferred.await(answer))),
        Stream.map(elementsOf),
        Stream.flattenIterable,
        Stream.takeUntil(({ _tag }) => _tag === "Reported")
      )
    }))

  /**
   * Asks for a stop through the journal, and makes the owner look for it at once. If the owner does not answer, the
   * journal tells when the run has ended.
   */
  const stop = (
    id: string,
    options: Session.RunStopOptions = {}
  ): Effect.Effect<StopReceipt, Protocol.CommandError | Journal.StoreError> =>
    Effect.gen(function*() {
      const address = yield* Ids.entityOf(id, "stop")
      const { ended, ...receipt } = yield* Effect.provideService(Session.stop(id, options), Session.Store, store)
      const answer = entity(address).Stop().pipe(Effect.timeout("10 seconds"), Effect.ignore)
      const asked = yield* Effect.forkIn(answer, scope, { startImmediately: true })
      return {
        ...receipt,
        ended: Effect.andThen(Fiber.await(asked), Effect.provideService(ended, Session.Store, store))
      }
    })

  /** Makes the owner look at the journal, and does what the journal leaves to it. The sender waits for neither. */
  const looked = (address: string, then: Effect.Effect<unknown, unknown>) => {
    const look = entity(address).Look().pipe(Effect.timeout("10 seconds"), Effect.ignore)
    return Effect.forkIn(Effect.ignore(Effect.andThen(look, then)), scope, { startImmediately: true })
  }

  const submit: Service["submit"] = (id, content, options) =>
    Effect.gen(function*() {
      const address = yield* Ids.entityOf(id, "submit")
      const receipt = yield* Effect.provideService(Session.submit(id, content, options), Session.Store, store)
      yield* looked(address, drive(id, { _tag: "Resume" }))
      return receipt
    })

  const withdraw: Service["withdraw"] = (id, messageId, options) =>
    Effect.gen(function*() {
      const address = yield* Ids.entityOf(id, "withdraw")
      const isWithdrawn = yield* Effect.provideService(Session.withdraw(id, messageId, options), Session.Store, store)
      if (isWithdrawn) yield* looked(address, Effect.void)
      return isWithdrawn
    })

  const service: Service = {
    reply: (id, content, options = {}) =>
      drive(id, {
        _tag: "Say",
        message: Message.user(content),
        ...(options.pending === undefined ? {} : { pending: options.pending }),
        ...(options.after === undefined ? {} : { after: options.after })
      }, options),
    answer: (id, toolCallId, value, options) =>
      drive(id, { _tag: "Answer", id: toolCallId, value: ToolOutcomes.partsOf(value) ?? value }, options),
    approve: (id, toolCallId, options = {}) =>
      drive(id, {
        _tag: "Approve",
        id: toolCallId,
        ...(options.arguments === undefined ? {} : { arguments: options.arguments })
      }, options),
    deny: (id, toolCallId, options = {}) =>
      drive(id, {
        _tag: "Deny",
        id: toolCallId,
        ...(options.reason === undefined ? {} : { reason: options.reason })
      }, options),
    resume: (id, options) => drive(id, { _tag: "Resume" }, options),
    stop,
    submit,
    withdraw,
    follow,
    events: (id) => Stream.map(Stream.unwrap(Effect.map(Ids.entityOf(id, "events"), feed)), read),
    forget: (id) =>
      Effect.flatMap(Ids.entityOf(id, "forget"), (address) => {
        const entityId = EntityId.make(address)
        const shardId = sharding.getShardId(entityId, Protocol.SessionEntity.getShardGroup(entityId))
        const entityType = Protocol.SessionEntity.type
        return storage.clearAddress(EntityAddress.make({ entityType, entityId, shardId }))
      })
  }
  return service
})

/**
 * The client of sessions on a cluster.
 *
 * **Example** (An approval that is given from elsewhere)
 *
 * ```ts import.meta.vitest
 * import * as TestRunner from "effect/cluster/TestRunner"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import * as Schema from "effect/Schema"
 * import { Session, Tool } from "heddle"
 * import { Cluster, SessionClient } from "heddle/cluster"
 * import { Script } from "heddle/testing"
 *
 * const pay = Tool.make("pay", {
 *   parameters: { amount: Schema.Finite },
 *   approval: true,
 *   handler: ({ amount }) => Effect.succeed(`paid ${amount}`)
 * })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "pay", { amount: 50 }), Script.finish("tool_calls")],
 *   [Script.text("Done."), Script.finish("stop")]
 * ])
 * const cluster = Layer.mergeAll(Cluster.layer({ run: () => ({ tools: [pay] }) }), SessionClient.layer).pipe(
 *   Layer.provide([model, Session.Store.layerMemory]),
 *   Layer.provide(TestRunner.layer)
 * )
 *
 * const program = Effect.gen(function*() {
 *   const client = yield* SessionClient.SessionClient
 *   const asked = yield* client.reply("ann", "Pay the bill")
 *   const done = yield* client.approve("ann", asked.suspensions[0]!.id)
 *   return [asked.status, done.status, done.outputText]
 * })
 *
 * await Effect.runPromise(program.pipe(Effect.provide(cluster))) // => ["awaiting_tools", "completed", "Done."]
 * ```
 *
 * @category services
 * @since 0.1.0
 */
export class SessionClient extends Context.Service<SessionClient, Service>()("heddle/cluster/SessionClient") {}

/**
 * Provides the client over the cluster that this process is part of, as a runner or with `clientOnly: true`.
 *
 * **Example** (The live events of a command)
 *
 * ```ts import.meta.vitest
 * import * as TestRunner from "effect/cluster/TestRunner"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import * as Stream from "effect/Stream"
 * import { Session } from "heddle"
 * import { Cluster, SessionClient } from "heddle/cluster"
 * import { Script } from "heddle/testing"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const cluster = Layer.mergeAll(Cluster.layer({ run: () => ({}) }), SessionClient.layer).pipe(
 *   Layer.provide([model, Session.Store.layerMemory]),
 *   Layer.provide(TestRunner.layer)
 * )
 *
 * const program = Effect.gen(function*() {
 *   const client = yield* SessionClient.SessionClient
 *   return yield* client.follow("ann", client.reply("ann", "Hi")).pipe(
 *     Stream.map((event) => event._tag === "Reported" ? event.report.outputText : event._tag),
 *     Stream.runCollect
 *   )
 * })
 * const seen = await Effect.runPromise(program.pipe(Effect.provide(cluster)))
 *
 * seen.slice(-2) // => ["ChatCompleted", "Hello"]
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const layer: Layer.Layer<
  SessionClient,
  never,
  Sharding.Sharding | MessageStorage.MessageStorage | Session.Store
> = Layer.effect(SessionClient, make)
