/**
 * Protocol between clients and session owners: the entity type, its requests, and their results.
 *
 * A command is persisted: it waits for an owner, and is handled at least once and answered once, because its id is its
 * primary key. A stop and the feed concern the current owner and are not persisted: anything outliving the owner is in
 * the journal.
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
 * Session after a carried-out command: its run has ended, or waits for an answer.
 *
 * @category models
 */
export class Report extends Schema.Opaque<Report>()(Schema.Struct({
  /** Session id. */
  session: Schema.String,
  /** Journal version at the time of the report. */
  version: Schema.Int,
  /** Session status. */
  status: Session.Status,
  /** Calls waiting for an answer from outside, in call order. */
  suspensions: Schema.Array(Event.Suspension),
  /** Text of the model's last reply, `""` without a reply. An open question is in `suspensions`. */
  outputText: Schema.String,
  /** Typed answer of the last run, encoded. Undefined without a typed answer. */
  output: Schema.optionalKey(Json.Opaque)
})) {}

/**
 * A command was refused, or its run could not begin. A repeat under the same id fails the same way.
 *
 * @category errors
 */
export class CommandError extends Schema.TaggedError<CommandError>("heddle/cluster/CommandError")("CommandError", {
  /** Session id. */
  session: Schema.String,
  /** Command id. */
  command: Schema.String,
  /**
   * Reason: a `SessionError`'s reason, such as `already_answered`; another error's name, such as `AdapterError`; or
   * `unknown` for an error without a name. For a command that was never sent: `invalid_id` if the session id does not
   * fit in the cluster tables, `invalid_input` for invalid content, and `too_large` beyond `Journal.MaxRecordBytes`.
   */
  reason: Schema.String,
  /** Message of that error. */
  detail: Schema.String
}) {
  override get message(): string {
    return `session ${JSON.stringify(this.session)} refused a command: ${this.reason}: ${this.detail}`
  }
}

const ofCall = { id: Schema.String }

const Arguments = Schema.Record(Schema.String, Json.Opaque)

/** A command's request. */
export const Input = Schema.Union([
  /** Adds a user message. */
  Schema.TaggedStruct("Say", {
    message: Message.Message,
    pending: Schema.optionalKey(Schema.Literal("deny")),
    /** Journal version the sender has seen. */
    after: Schema.optionalKey(Schema.Int)
  }),
  /** Answers a question, or supplies a manual call's result. */
  Schema.TaggedStruct("Answer", { ...ofCall, value: Json.Opaque }),
  /** Approves a call, with its own or other arguments. */
  Schema.TaggedStruct("Approve", { ...ofCall, arguments: Schema.optionalKey(Arguments) }),
  /** Denies a call. */
  Schema.TaggedStruct("Deny", { ...ofCall, reason: Schema.optionalKey(Schema.String) }),
  /** Does the remaining work, and adds nothing. */
  Schema.TaggedStruct("Resume", {})
])

export type Input = (typeof Input)["Type"]

const Command = Schema.Struct({ command: Schema.String, input: Input })

export type Command = (typeof Command)["Type"]

/** Accepts a command, and drives the session until no work remains. */
const Drive = Rpc.make("Drive", {
  payload: Command.fields,
  success: Report,
  error: CommandError,
  primaryKey: ({ command }) => command
})
  .annotate(ClusterSchema.Persisted, true)
  // A command outlives its sender: interrupting the sender does not stop the run.
  .annotate(ClusterSchema.Uninterruptible, "client")
  // An owner asked to leave hands the command over to the next owner.
  .annotate(ClusterSchema.InterruptOnTermination, true)

/** Makes the owner look for a stop in the journal. */
const Stop = Rpc.make("Stop")

/** Makes the owner look for submitted and withdrawn messages in the journal. */
const Look = Rpc.make("Look")

const pointFields = {
  /** Journal version at that time. */
  version: Schema.Int,
  /** The open run's id at that version. Undefined if no run is active. */
  requestId: Schema.optionalKey(Schema.String)
}

/**
 * A point in the feed: the journal contains everything before it, and live events follow. This element comes first,
 * after missed events (another owner has the session, the reader was too slow, or an event was too large), and after
 * each command.
 *
 * Without a `requestId`, no run is active: the journal contains the end of each run.
 *
 * @category models
 */
export class Connected extends Schema.Opaque<Connected>()(Schema.TaggedStruct("Connected", pointFields)) {}

/** A point in a feed. */
export type Point = Omit<Connected, "_tag">

/** A feed element: its start, a gap, a command's end, or an event in wire form. */
export const Fed = Schema.Union([
  Connected,
  Schema.TaggedStruct("Missed", pointFields),
  Schema.TaggedStruct("Settled", pointFields),
  Schema.TaggedStruct("Fed", { event: Schema.Json })
])

export type Fed = (typeof Fed)["Type"]

const Feed = Rpc.make("Feed", { success: Fed, stream: true })
  // The feed never ends by itself, and must not delay the owner's handover.
  .annotate(ClusterSchema.InterruptOnTermination, true)

/** An entity per session. */
export const SessionEntity = Entity.make("HeddleSession", [Drive, Stop, Look, Feed])
