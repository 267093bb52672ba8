/**
 * The protocol between clients and owners of sessions: the type of the entity, its requests, and their results.
 *
 * A command is persisted: it waits for an owner, is handled at least once and answered once, since its id is its
 * primary key. A stop and the feed concern the current owner and are not persisted: anything that must outlive the
 * owner is in the journal.
 *
 * @since 0.1.0
 */
import * as ClusterSchema from "effect/cluster/ClusterSchema"
import * as Entity from "effect/cluster/Entity"
import * as Rpc from "effect/rpc/Rpc"
import * as Schema from "effect/Schema"
import * as Event from "../../Event.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import * as Session from "../../Session.ts"

/**
 * The session after a command has been carried out: its run has ended, or waits for an answer.
 *
 * @category models
 * @since 0.1.0
 */
export class Report extends Schema.Opaque<Report>()(Schema.Struct({
  /** The id of the session. */
  session: Schema.String,
  /** The version of the journal at which the report was made. */
  version: Schema.Int,
  /** Status of the session. */
  status: Session.Status,
  /** The calls that wait for an answer from outside, in call order. */
  suspensions: Schema.Array(Event.Suspension),
  /** The text of the model's last reply, `""` without one. An open question is in `suspensions`. */
  outputText: Schema.String,
  /** The typed answer of the last run, encoded. Left out where it has none. */
  output: Schema.optionalKey(Json.Opaque)
})) {}

/**
 * A command was refused, or its run could not begin. A repeat under the same id fails the same way.
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
   * The reason: that of a `SessionError`, such as `already_answered`; the name of another error, such as
   * `AdapterError`; `unknown` for an error without a name; or, for a command that was not sent, `invalid_id` for a
   * session whose id does not fit in the tables of a cluster, `invalid_input` for invalid content, and `too_large` for
   * more than `Journal.MaxRecordBytes`.
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

/** The request of a command. */
export const Input = Schema.Union([
  /** Adds a message of the user. */
  Schema.TaggedStruct("Say", {
    message: Message.Message,
    pending: Schema.optionalKey(Schema.Literal("deny")),
    /** The version of the journal that the sender has seen. */
    after: Schema.optionalKey(Schema.Int)
  }),
  /** Answers a question, or gives the result of a manual call. */
  Schema.TaggedStruct("Answer", { ...ofCall, value: Json.Opaque }),
  /** Approves a call, with its own arguments or with others. */
  Schema.TaggedStruct("Approve", { ...ofCall, arguments: Schema.optionalKey(Arguments) }),
  /** Denies a call. */
  Schema.TaggedStruct("Deny", { ...ofCall, reason: Schema.optionalKey(Schema.String) }),
  /** Does the work that is left, and adds nothing. */
  Schema.TaggedStruct("Resume", {})
])

/** The request of a command. */
export type Input = (typeof Input)["Type"]

const Command = Schema.Struct({ command: Schema.String, input: Input })

/** A command, with its id. */
export type Command = (typeof Command)["Type"]

/** Accepts a command, and drives the session until no work is left. */
const Drive = Rpc.make("Drive", {
  payload: Command.fields,
  success: Report,
  error: CommandError,
  primaryKey: ({ command }) => command
})
  .annotate(ClusterSchema.Persisted, true)
  // A command outlives its sender: interrupting the sender does not stop the run.
  .annotate(ClusterSchema.Uninterruptible, "client")
  // An owner that is asked to leave hands the command over: the next one carries it out.
  .annotate(ClusterSchema.InterruptOnTermination, true)

/** Makes the owner look for a stop in the journal. */
const Stop = Rpc.make("Stop")

/** Makes the owner look for messages in the journal, and for those that were taken back. */
const Look = Rpc.make("Look")

const pointFields = {
  /** The version of the journal at that time. */
  version: Schema.Int,
  /** The run that the journal has begun and not ended at that version. Left out where no run is under way. */
  requestId: Schema.optionalKey(Schema.String)
}

/**
 * A point in the feed: the journal contains everything before it, and live events follow. It comes first, after missed
 * events (the session has another owner, or the reader was too slow), and after each command.
 *
 * Where it has no `requestId`, no run is under way: the journal has the end of each.
 *
 * @category models
 * @since 0.1.0
 */
export class Connected extends Schema.Opaque<Connected>()(Schema.TaggedStruct("Connected", pointFields)) {}

/** A point in a feed. */
export type Point = Omit<Connected, "_tag">

/** An element of a feed: its start, a gap, the end of a command, or an event in its wire form. */
export const Fed = Schema.Union([
  Connected,
  Schema.TaggedStruct("Missed", pointFields),
  Schema.TaggedStruct("Settled", pointFields),
  Schema.TaggedStruct("Fed", { event: Schema.Json })
])

/** An element of a feed. */
export type Fed = (typeof Fed)["Type"]

const Feed = Rpc.make("Feed", { success: Fed, stream: true })
  // The feed never ends by itself, and must not keep the owner from handing the session over.
  .annotate(ClusterSchema.InterruptOnTermination, true)

/** An entity for each session. */
export const SessionEntity = Entity.make("HeddleSession", [Drive, Stop, Look, Feed])
