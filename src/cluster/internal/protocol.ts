/**
 * What a client and the owner of a session say to each other: the type of the entity, its requests, and what they come to.
 *
 * A command is persisted: it waits for an owner, is handled at least once and answered once, since its id is its primary
 * key. A stop and the feed are for the owner of the moment, and are not: what must outlive the owner is in the journal.
 *
 * @since 0.1.0
 */
import * as ClusterSchema from "effect/cluster/ClusterSchema"
import * as Entity from "effect/cluster/Entity"
import * as Rpc from "effect/rpc/Rpc"
import * as Schema from "effect/Schema"
import * as Event from "../../Event.ts"
import * as Json from "../../internal/json.ts"
import * as SessionState from "../../internal/session/state.ts"
import * as Message from "../../Message.ts"

/**
 * Where a session stands once a command has been carried out: its run has ended, or waits for an answer.
 *
 * @category models
 * @since 0.1.0
 */
export class Report extends Schema.Opaque<Report>()(Schema.Struct({
  /** The version of the journal that this was read at. */
  version: Schema.Int,
  /** Where the session stands. */
  status: SessionState.Status,
  /** The calls that wait for an answer from outside, in call order. */
  suspensions: Schema.Array(Event.Suspension),
  /** The text of the model's last message, `""` if there is none. The thread is in the store. */
  outputText: Schema.String
})) {}

/**
 * A command was refused, or its run could not begin. Sent again under the same id it fails the same way.
 *
 * @category errors
 * @since 0.1.0
 */
export class CommandError extends Schema.TaggedError<CommandError>("heddle/cluster/CommandError")("CommandError", {
  /** The id of the session. */
  session: Schema.String,
  /** The id of the command. */
  command: Schema.String,
  /**
   * What went wrong: the `reason` of a `SessionError`, such as `already_answered`; the name of another error, such as
   * `AdapterError`; or why the command was not sent: `invalid_id` for a session whose id the tables of a cluster have no room
   * for, `invalid_input` for a content that is none, `too_large` for more than `Session.MaxRecordBytes`.
   */
  reason: Schema.String,
  /** The message of that error. */
  detail: Schema.String
}) {
  override get message(): string {
    return `session ${JSON.stringify(this.session)} refused a command: ${this.reason}: ${this.detail}`
  }
}

const ofCall = { id: Schema.String }

const Arguments = Schema.Record(Schema.String, Json.Opaque)

/** What a command asks for. */
export const Input = Schema.Union([
  /** The user says something. */
  Schema.TaggedStruct("Say", { message: Message.Message, pending: Schema.optionalKey(Schema.Literal("deny")) }),
  /** A question has its answer, or a manual call its result. */
  Schema.TaggedStruct("Answer", { ...ofCall, value: Json.Opaque }),
  /** A call may run, with its own arguments or with others. */
  Schema.TaggedStruct("Approve", { ...ofCall, arguments: Schema.optionalKey(Arguments) }),
  /** A call must not run. */
  Schema.TaggedStruct("Deny", { ...ofCall, reason: Schema.optionalKey(Schema.String) }),
  /** Nothing new: what is unfinished is finished. */
  Schema.TaggedStruct("Resume", {})
])

/** What a command asks for. */
export type Input = (typeof Input)["Type"]

const Command = Schema.Struct({ command: Schema.String, input: Input })

/** A command, with its id. */
export type Command = (typeof Command)["Type"]

/** Takes the command in, and drives the session until nothing is left to do. */
const Drive = Rpc.make("Drive", {
  payload: Command.fields,
  success: Report,
  error: CommandError,
  primaryKey: ({ command }) => command
})
  .annotate(ClusterSchema.Persisted, true)
  // A command outlives its sender: leaving it does not stop the run.
  .annotate(ClusterSchema.Uninterruptible, "client")

/** Has the owner look for the stop that the journal has for it. */
const Stop = Rpc.make("Stop")

/**
 * The feed begins here: the journal has what led to this, and live events follow. It comes again where events were missed,
 * because the session has another owner now or the reader fell behind.
 *
 * @category models
 * @since 0.1.0
 */
export class Connected extends Schema.Opaque<Connected>()(Schema.TaggedStruct("Connected", {
  /** The version of the journal at that time. */
  version: Schema.Int
})) {}

/** What a feed has: where it begins, and events in their wire form. */
export const Fed = Schema.Union([Connected, Schema.TaggedStruct("Fed", { event: Schema.Json })])

/** What a feed has: where it begins, and events in their wire form. */
export type Fed = (typeof Fed)["Type"]

const Feed = Rpc.make("Feed", { success: Fed, stream: true })
  // It never ends by itself, and must not keep the owner from handing the session over.
  .annotate(ClusterSchema.InterruptOnTermination, true)

/** An entity for each session. */
export const SessionEntity = Entity.make("HeddleSession", [Drive, Stop, Feed])
