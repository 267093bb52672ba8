/**
 * Posted bodies from browsers, as returned by `UiStream.read` and `AgUi.read`: a new message, answers, approvals and
 * denials, the ids they answer, and the errors for invalid bodies.
 */
import * as Schema from "effect/Schema"
import type * as Json from "../internal/json.ts"
import type * as Message from "../Message.ts"

/**
 * A rejected body. The message is one sentence for people, without content from the body.
 *
 * - `invalid_body`: a field is missing or invalid
 * - `too_large`: the content exceeds a limit
 * - `unsupported`: the protocol allows it, but Heddle does not
 *
 * @category errors
 */
export class BodyError extends Schema.TaggedError<BodyError>("heddle/ui/BodyError")("BodyError", {
  /** Error kind. */
  reason: Schema.Literals(["invalid_body", "too_large", "unsupported"]),
  /** Field, such as `messages[2].parts[0].url`. */
  field: Schema.String,
  /** Description of a valid value. */
  detail: Schema.String
}) {
  override get message(): string {
    return `${this.field}: ${this.detail}`
  }
}

/**
 * A new user message.
 *
 * @category models
 */
export interface Say {
  readonly _tag: "Say"
  /** Message id chosen by the client. The same id means the same message, posted again. */
  readonly id: string
  /** Message content. */
  readonly content: Message.Content
}

/**
 * An answer to a question, or the result of a client-side call.
 *
 * @category models
 */
export interface Answer {
  readonly _tag: "Answer"
  /** Suspension id, or the call id if the client knows only the call. */
  readonly id: string
  /** Message id of the call, if `id` is a call id. */
  readonly messageId?: string
  /** Answer. Undefined if `error` is given. */
  readonly value?: Schema.Json
  /** Error reported by the client instead of an answer. */
  readonly error?: string
}

/**
 * An approval of a call.
 *
 * @category models
 */
export interface Approve {
  readonly _tag: "Approve"
  /** Suspension id. */
  readonly id: string
  /** Arguments replacing the call's own. Undefined to keep the original arguments. */
  readonly edits?: Json.JsonObject
  /**
   * Further calls this approval covers: all calls to the tool, or calls with the same arguments. Undefined for this
   * call only.
   */
  readonly remember?: "tool" | "arguments"
}

/**
 * A denial of a call.
 *
 * @category models
 */
export interface Deny {
  readonly _tag: "Deny"
  /** Suspension id. */
  readonly id: string
  /** Reason shown to the model. */
  readonly reason?: string
  /**
   * `true` if the client cancelled the suspension, whatever its kind: a cancelled question gets an answer saying so.
   */
  readonly isCancelled?: boolean
}

/**
 * A request for a reply the client lacks: in the AI SDK `sendMessage()` without a message and `regenerate()`, in AG-UI
 * a body with nothing new. The server sends a message that never arrived, follows a running reply, or retries a failed
 * or cut reply.
 *
 * @category models
 */
export interface Retry {
  readonly _tag: "Retry"
  /** Last user message. Undefined if the client has a part of its reply, identified by `messageId`. */
  readonly message?: Say
  /** Number of reply steps the client received. The last step may be incomplete. */
  readonly steps: number
  /** `true` for `regenerate()`: the client wants a whole reply replaced. */
  readonly isRegeneration: boolean
}

/**
 * A single request in a body.
 *
 * @category models
 */
export type Action = Say | Answer | Approve | Deny | Retry

/**
 * A client-side tool.
 *
 * @category models
 */
export interface ClientTool {
  /** Tool name. */
  readonly name: string
  /** Description for the model. */
  readonly description: string
  /** JSON Schema for the arguments. */
  readonly parameters: Json.JsonObject
}

/**
 * The accepted parts of a body.
 *
 * @category models
 */
export interface Posted {
  /** Session id: 1 to 128 characters from `A-Z a-z 0-9 _ -`. */
  readonly sessionId: string
  /** Id of the assistant message the response continues. Undefined for a separate response. */
  readonly messageId?: string
  /** Id the client chose for the run, in AG-UI. */
  readonly runId?: string
  /** Ids of the client's messages, in AG-UI. Undefined if the client need not list its messages. */
  readonly messageIds?: ReadonlySet<string>
  /** Requests, at least one, in the body's order. AG-UI's `resume` entries come first. */
  readonly actions: ReadonlyArray<Action>
  /** Client-side tools. Empty if the body brings none. */
  readonly clientTools: ReadonlyArray<ClientTool>
}

/**
 * Limits on accepted content.
 *
 * @category options
 */
export interface Bounds {
  /** Maximum number of files. 64 by default. */
  readonly files?: number
  /** Maximum file size in bytes, decoded. 8 MiB by default. */
  readonly fileBytes?: number
  /** Maximum bytes of text, answers and edits together. 1 MiB by default. */
  readonly textBytes?: number
  /** Maximum number of client-side tools. 32 by default. */
  readonly clientTools?: number
  /** Maximum size of a client-side tool in bytes, as JSON. 16 KiB by default. */
  readonly clientToolBytes?: number
}

/**
 * Options for reading a body.
 *
 * @category options
 */
export interface ReadOptions {
  /**
   * Returns `true` if a file may be given by this address, which the model's provider then fetches. By default no
   * address is allowed: files are `data:` URLs.
   */
  readonly allowUrl?: (url: string) => boolean
  /** Limits on content. */
  readonly bounds?: Bounds
}
