/**
 * The plain data of a conversation that is kept: its thread, what it waits for, and how each thing that happens to it
 * changes it. Everything here is a pure function of the data, so that the same history always gives the same
 * conversation, in whatever process it is read. Public as `Session`.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import * as Event from "./Event.ts"
import * as Json from "./internal/json.ts"
import * as Message from "./Message.ts"
import * as Thread from "./Thread.ts"

/**
 * Where a session stands: `awaiting_user` while a question is open, `awaiting_tools` while approvals or manual calls
 * are, `error` after a run that broke, `completed` after one that ended, and `idle` otherwise.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Status = Schema.Literals(["idle", "awaiting_user", "awaiting_tools", "completed", "error"])

/**
 * @see {@link Status}
 *
 * @category models
 * @since 0.1.0
 */
export type Status = (typeof Status)["Type"]

/**
 * A session: serialisable data and nothing else. `suspensions` are the calls it waits for, each under its own id;
 * `approved` the calls that may run when it goes on, `answered` the ids that have had their answer since the last run.
 * `pendingToolCalls`, `pendingQuestion` and `pendingToolCallId` say the same in fewer words: the calls that somebody has
 * to run or allow, and the first question.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Session = Schema.Struct({
  id: Schema.optionalKey(Schema.String),
  thread: Thread.Thread,
  status: Status,
  suspensions: Schema.Array(Event.Suspension),
  approved: Schema.Array(Message.ToolCall),
  answered: Schema.Array(Schema.String),
  pendingToolCalls: Schema.Array(Message.ToolCall),
  pendingQuestion: Schema.optionalKey(Schema.String),
  pendingToolCallId: Schema.optionalKey(Schema.String),
  context: Schema.Record(Schema.String, Json.Opaque),
  metadata: Json.Metadata
})

/**
 * @see {@link Session}
 *
 * @category models
 * @since 0.1.0
 */
export type Session = (typeof Session)["Type"]

/**
 * How a suspension was settled: with a value (the answer to a question, the result of a manual call), or with a decision
 * on an approval. `arguments` are what the approved call runs with instead of its own.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Answer = Schema.Union([
  Schema.TaggedStruct("Value", { value: Json.Opaque }),
  Schema.TaggedStruct("Approved", { arguments: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)) }),
  Schema.TaggedStruct("Denied", { reason: Schema.optionalKey(Schema.String) })
])

/**
 * @see {@link Answer}
 *
 * @category models
 * @since 0.1.0
 */
export type Answer = (typeof Answer)["Type"]

/**
 * What a session can be made of.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly id?: string
  readonly thread?: Thread.Thread
  readonly context?: Session["context"]
  readonly metadata?: Session["metadata"]
}

/**
 * A session at rest.
 *
 * @category constructors
 * @since 0.1.0
 */
export const make = (options: Options = {}): Session => ({
  ...(options.id === undefined ? {} : { id: options.id }),
  thread: options.thread ?? Thread.empty,
  status: "idle",
  suspensions: [],
  approved: [],
  answered: [],
  pendingToolCalls: [],
  context: options.context ?? {},
  metadata: options.metadata ?? {}
})
