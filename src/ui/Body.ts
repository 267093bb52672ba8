/**
 * Bodies that browsers post, as `UiStream.read` and `AgUi.read` return them: a new message, answers, approvals and
 * denials, the names of what they answer, and the errors of a body that cannot be taken.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import type * as Json from "../internal/json.ts"
import type * as Message from "../Message.ts"

/**
 * A body that cannot be taken. The message is one sentence for a person, and has nothing of the body.
 *
 * - `invalid_body`: a field is missing or is not what it has to be
 * - `too_large`: what would be taken over is beyond a bound
 * - `unsupported`: the protocol has it, and Heddle has not
 *
 * @category errors
 * @since 0.1.0
 */
export class BodyError extends Schema.TaggedError<BodyError>("heddle/ui/BodyError")("BodyError", {
  /** The kind of the error. */
  reason: Schema.Literals(["invalid_body", "too_large", "unsupported"]),
  /** The field, such as `messages[2].parts[0].url`. */
  field: Schema.String,
  /** A description of what would be right. */
  detail: Schema.String
}) {
  override get message(): string {
    return `${this.field}: ${this.detail}`
  }
}

/**
 * A new message of the user.
 *
 * @category models
 * @since 0.1.0
 */
export interface Say {
  readonly _tag: "Say"
  /** The id that the client has given the message. The same id is the same message, posted again. */
  readonly id: string
  /** The content of the message. */
  readonly content: Message.Content
}

/**
 * An answer to a question, or the result of a call that the client runs.
 *
 * @category models
 * @since 0.1.0
 */
export interface Answer {
  readonly _tag: "Answer"
  /** The suspension id, or the call id where the client knows only the call. */
  readonly id: string
  /** The message id of the call, where `id` is a call id. */
  readonly messageId?: string
  /** The answer. Left out where `error` is given. */
  readonly value?: Schema.Json
  /** The error that the client answers with. */
  readonly error?: string
}

/**
 * A permission for a call.
 *
 * @category models
 * @since 0.1.0
 */
export interface Approve {
  readonly _tag: "Approve"
  /** The id of the suspension. */
  readonly id: string
  /** The arguments that the call is to have instead of its own. Left out for its own. */
  readonly edits?: Json.JsonObject
  /**
   * The calls for which the approval is remembered: all of the tool, or those with the same arguments. Left out for
   * this one alone.
   */
  readonly remember?: "tool" | "arguments"
}

/**
 * The refusal of a call.
 *
 * @category models
 * @since 0.1.0
 */
export interface Deny {
  readonly _tag: "Deny"
  /** The id of the suspension. */
  readonly id: string
  /** The reason, which the model reads. */
  readonly reason?: string
  /** `true` where the client gave up what waits, of any kind: a question then has an answer that says so. */
  readonly isCancelled?: boolean
}

/**
 * A request for a reply that the client lacks, in the AI SDK: `sendMessage()` without a message, and `regenerate()`.
 * The server tells the cases apart. A message that never arrived is sent, a reply under way is followed, and one that
 * failed or was cut is tried again.
 *
 * @category models
 * @since 0.1.0
 */
export interface Retry {
  readonly _tag: "Retry"
  /** The last message of the user. Left out where the client has a part of its reply, whose id is the `messageId`. */
  readonly message?: Say
  /** Number of reply steps that the client has. The last one may be incomplete. */
  readonly steps: number
  /** `true` for `regenerate()`, which asks for another reply where there is a whole one. */
  readonly isRegeneration: boolean
}

/**
 * One thing that a body asks for.
 *
 * @category models
 * @since 0.1.0
 */
export type Action = Say | Answer | Approve | Deny | Retry

/**
 * A tool that runs in the client.
 *
 * @category models
 * @since 0.1.0
 */
export interface ClientTool {
  /** The name of the tool. */
  readonly name: string
  /** The description that the model reads. */
  readonly description: string
  /** The JSON Schema of the arguments. */
  readonly parameters: Json.JsonObject
}

/**
 * A body, as far as it is taken over.
 *
 * @category models
 * @since 0.1.0
 */
export interface Posted {
  /** The id of the session: `A-Z a-z 0-9 _ -`, 1 to 128 of them. */
  readonly sessionId: string
  /** The id of the assistant's message that the response continues. Left out for a response of its own. */
  readonly messageId?: string
  /** The id that the client gives the run, in AG-UI. */
  readonly runId?: string
  /** The ids of the messages that the client has, in AG-UI. Left out where the client need not say. */
  readonly messageIds?: ReadonlySet<string>
  /** The things that the body asks for, in its order. At least one. */
  readonly actions: ReadonlyArray<Action>
  /** The tools that run in the client. `[]` by default. */
  readonly clientTools: ReadonlyArray<ClientTool>
}

/**
 * Bounds of what a body may have taken over.
 *
 * @category options
 * @since 0.1.0
 */
export interface Bounds {
  /** The number of parts that are files. 64 by default. */
  readonly files?: number
  /** Bytes of a file, decoded. 8 MiB by default. */
  readonly fileBytes?: number
  /** Bytes of text, answers and edits together. 1 MiB by default. */
  readonly textBytes?: number
  /** The number of tools that run in the client. 32 by default. */
  readonly clientTools?: number
  /** Bytes of such a tool as JSON. 16 KiB by default. */
  readonly clientToolBytes?: number
}

/**
 * Options for reading a body.
 *
 * @category options
 * @since 0.1.0
 */
export interface ReadOptions {
  /**
   * Tells whether a file may be given by this address, which the model's provider then fetches. None may by default:
   * files are `data:` URLs.
   */
  readonly allowUrl?: (url: string) => boolean
  /** The bounds. */
  readonly bounds?: Bounds
}
