/**
 * A client for sessions on a cluster. It sends commands to a session's owner, in whichever process, and reads the
 * session's events. A command waits for an owner, and its run continues without the sending process.
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
 * Errors of a command: a {@link CommandError} for a refused command, or a cluster error. After a `PersistenceError` the
 * command was not stored; it may be sent again under the same id.
 *
 * @category errors
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
 */
export interface CommandOptions {
  /**
   * Command id. A command sent again under the same id, by any process, is carried out once and returns the same
   * answer. By default the client makes a new id.
   */
  readonly command?: string
}

/**
 * Options of a reply.
 *
 * @category options
 */
export interface ReplyOptions extends CommandOptions {
  /**
   * Treatment of calls still waiting for an answer: `"deny"` answers them as denied, as in `Session.reply`. By default
   * the command is refused while an approval is pending.
   */
  readonly pending?: "deny"
  /**
   * Journal version the user has seen, from a {@link Report} or from {@link Connected}. The message answers the open
   * question if that version contains the question. Otherwise, and by default, it waits until the question is answered.
   */
  readonly after?: number
}

/**
 * Options of an approval.
 *
 * @category options
 */
export interface ApproveOptions extends CommandOptions, Pick<Session.ApproveOptions, "arguments"> {}

/**
 * Options of a denial.
 *
 * @category options
 */
export interface DenyOptions extends CommandOptions {
  /** Reason shown to the model. */
  readonly reason?: string
}

/**
 * Receipt of a stop.
 *
 * @category models
 */
export interface StopReceipt {
  /** Request id, for `Session.receipt`. Undefined if no run was open. */
  readonly id?: string
  /** Journal version containing the request. From this version on the run will stop, even if the owner dies. */
  readonly accepted: number
  /** Waits until the run has ended, and reports what became of its calls. */
  readonly ended: Effect.Effect<Session.StopReport, Journal.StoreError>
}

/**
 * The last element of {@link Service.follow}: the command has been carried out.
 *
 * @category models
 */
export interface Reported {
  readonly _tag: "Reported"
  /** Session after the command. */
  readonly report: Protocol.Report
}

/**
 * Commands of a client. `reply`, `answer`, `approve`, `deny` and `resume` succeed once the session's run has ended or
 * waits for an answer. If the caller is interrupted earlier, the run continues.
 *
 * @category models
 */
export interface Service {
  /** Adds a user message. Creates a missing session, and continues a session whose last run failed. */
  readonly reply: (
    id: string,
    content: Message.Content,
    options?: ReplyOptions
  ) => Effect.Effect<Protocol.Report, ClientError>
  /** Answers a question by call id, or supplies a manual call's result. The answer is sent as plain JSON. */
  readonly answer: (
    id: string,
    toolCallId: string,
    value: unknown,
    options?: CommandOptions
  ) => Effect.Effect<Protocol.Report, ClientError>
  /** Approves a call waiting for approval. */
  readonly approve: (
    id: string,
    toolCallId: string,
    options?: ApproveOptions
  ) => Effect.Effect<Protocol.Report, ClientError>
  /** Denies a call waiting for approval. */
  readonly deny: (id: string, toolCallId: string, options?: DenyOptions) => Effect.Effect<Protocol.Report, ClientError>
  /** Makes the owner do a session's remaining work, such as a message submitted without this client. */
  readonly resume: (id: string, options?: CommandOptions) => Effect.Effect<Protocol.Report, ClientError>
  /**
   * Asks a session's run to stop. Succeeds once the journal contains the request; the current or next owner carries the
   * stop out. The receipt's `ended` waits for the run's end and names its calls. Without a run it stops nothing. With
   * `call` it stops only that call, and the run continues, as in `Session.stop`.
   */
  readonly stop: (
    id: string,
    options?: Session.RunStopOptions
  ) => Effect.Effect<StopReceipt, Protocol.CommandError | Journal.StoreError>
  /**
   * Submits a message, as `Session.submit` does; `mode` chooses the run that gets the message. Succeeds once the
   * journal contains the message. The owner looks for the message at once, and replies if no current run takes the
   * message. `Session.receipt` returns its outcome.
   */
  readonly submit: <E = never>(
    id: string,
    content: Message.Content,
    options?: Session.SubmitOptions<E>
  ) => Effect.Effect<Session.SubmitReceipt, Protocol.CommandError | Session.SessionError | Journal.StoreError | E>
  /** Withdraws a submitted message, as `Session.withdraw` does. The owner looks for the withdrawal at once. */
  readonly withdraw: (
    id: string,
    messageId: string,
    options?: Session.StopOptions
  ) => Effect.Effect<boolean, Protocol.CommandError | Journal.StoreError>
  /**
   * Sends a session command once its feed is connected, and returns live events until the command has been carried out:
   * `Reported` is the last element. Fails as the command fails. The end arrives in any case, even if a killed owner
   * loses events.
   */
  readonly follow: (
    id: string,
    command: Effect.Effect<Protocol.Report, ClientError>
  ) => Stream.Stream<Event.WireEvent | Protocol.Connected | Reported, ClientError>
  /**
   * Returns a session's live events, from its current and each later owner. The stream does not end by itself.
   * `Connected` comes first, after missed events (contained in the journal), and after each command; without a
   * `requestId` no run is active. A slow reader does not block the run.
   */
  readonly events: (id: string) => Stream.Stream<Event.WireEvent | Protocol.Connected, ClientError>
  /**
   * Removes a session's commands and their messages from the cluster tables, which otherwise keep them forever. Their
   * ids are forgotten: a command sent again is carried out again. The journal does not change.
   */
  readonly forget: (id: string) => Effect.Effect<void, ClientError>
}

/** Options of any command. */
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
 * Returns the input as plain JSON, as the owner reads it. Refuses an oversized input, which would prevent the cluster
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
    `SessionClient.follow: the command belongs to session ${given}; give a command of session ${wanted}`
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
   * Returns the current owner's feed. When the owner hands the session over, its feed ends and the next feed begins.
   */
  const feed = (address: string): Stream.Stream<Protocol.Fed, ClientError> =>
    entity(address).Feed().pipe(
      Stream.catchCause((cause) => Cause.hasInterruptsOnly(cause) ? Stream.empty : Stream.failCause(cause)),
      Stream.repeat(Schedule.spaced("100 millis"))
    )

  /** Converts a feed element for its reader. */
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
      /** Version up to which all events have been read. */
      let version = -1
      const elementsOf = (element: Protocol.Fed | Protocol.Report) => {
        // A gap leaves the version unchanged, since its following events are still to come.
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
   * Requests a stop through the journal, and makes the owner look for the request at once. If the owner does not
   * answer, the journal shows when the run has ended.
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

  /** Makes the owner look at the journal, then does any work the journal leaves. The sender waits for neither. */
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
 * Client for sessions on a cluster.
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
 */
export class SessionClient extends Context.Service<SessionClient, Service>()("heddle/cluster/SessionClient") {}

/**
 * Provides the client over this process's cluster, as a runner or with `clientOnly: true`.
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
 */
export const layer: Layer.Layer<
  SessionClient,
  never,
  Sharding.Sharding | MessageStorage.MessageStorage | Session.Store
> = Layer.effect(SessionClient, make)
