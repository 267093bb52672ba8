/**
 * Seam to a protocol client: list a server's tools, call a tool, close. A listener takes the messages a server sends by
 * itself. To use a client other than the SDK's, implement `Connect`.
 */
import * as Data from "effect/Data"
import type * as Effect from "effect/Effect"
import type * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"

/** A tool as described by its server. None of the description is trusted. */
export interface Listed {
  readonly name: string
  readonly title?: string | undefined
  readonly description?: string | undefined
  readonly inputSchema: Json.JsonObject
  readonly annotations?: Json.JsonObject | undefined
  /** Whole definition, which the client reads again for each call. */
  readonly definition: Json.JsonObject
}

/** A tool not offered, and the reason. */
export interface LeftOut {
  readonly name: string
  readonly reason: string
}

/** Tools of a server. */
interface Tools {
  readonly tools: ReadonlyArray<Listed>
  readonly leftOut: ReadonlyArray<LeftOut>
}

/** A server's question to its client (`elicitation/create`). */
export interface Elicitation {
  readonly message: string
  /** Form schema: an object of strings, numbers, booleans and choices. Undefined in any other mode. */
  readonly schema?: Json.JsonObject | undefined
}

/** Answer to an elicitation. */
export type Elicited =
  | { readonly action: "accept"; readonly content: Json.JsonObject }
  | { readonly action: "decline" | "cancel" }

/** A server's request for a model answer (`sampling/createMessage`). */
export interface Sampling {
  readonly messages: ReadonlyArray<Message.Message>
  readonly system?: string | undefined
  readonly maxTokens: number
  readonly temperature?: number | undefined
  readonly stopSequences?: ReadonlyArray<string> | undefined
}

/** Answer to a sampling request. */
export interface Sampled {
  readonly text: string
  readonly model: string
}

/** Information a server wants before it answers a call: from the user, from a model, or already known. */
export type Wanted =
  | ({ readonly _tag: "Elicitation" } & Elicitation)
  | ({ readonly _tag: "Sampling" } & Sampling)
  | { readonly _tag: "Known"; readonly response: Json.JsonObject }

/** A call. Repeating a call that asked for input includes the answers, and the state as received. */
export interface Request {
  readonly tool: Listed
  readonly arguments: Json.JsonObject
  readonly meta: Json.JsonObject
  readonly responses?: Readonly<Record<string, unknown>> | undefined
  readonly state?: string | undefined
}

/** Response to a call: its result, or the input the server wants first. */
export type Response =
  | {
    readonly _tag: "Result"
    readonly content: ReadonlyArray<Json.JsonObject>
    readonly structured: unknown
    readonly isError: boolean
    /** Reason the result violates its tool's `outputSchema`. Undefined for a valid result. */
    readonly misfit?: string | undefined
  }
  | {
    readonly _tag: "Input"
    /** Questions by key. `undefined` marks an unanswerable question. */
    readonly requests: Readonly<Record<string, Wanted | undefined>>
    readonly state: string | undefined
  }

/**
 * A client failure, with its reason:
 *
 * - `lost`: the connection ended, so a sent request may have had its effect.
 * - `unanswered`: only this request's answer ended or is unreadable, so the request may have had its effect.
 * - `unsent`: the connection had already ended, so the server never received the request.
 * - `rpc`: the server refused the request, with a code.
 * - `other`: anything else.
 */
export class Failure extends Data.TaggedError("McpFailure")<{
  readonly reason: "lost" | "unanswered" | "unsent" | "rpc" | "other"
  readonly message: string
  readonly code?: number | undefined
}> {}

/** A connection. */
export interface Backend {
  readonly list: Effect.Effect<Tools, Failure>
  /** Calls a tool. Interruption sends the server a cancellation. */
  readonly call: (request: Request, progress: (value: unknown) => void) => Effect.Effect<Response, Failure>
  /** Closes the connection. This may take seconds if a process refuses to exit. */
  readonly close: Effect.Effect<void>
  /** Facts for spans. */
  readonly facts: Readonly<Record<string, string>>
}

/** Takes the server's notifications and questions. */
export interface Listener {
  /** Reports a changed tool list. */
  readonly changed: () => void
  /** Reports the connection's end. */
  readonly lost: (failure: Failure) => void
  /** Asks on behalf of the server, within a call it holds open. Interrupted once the server withdraws the question. */
  readonly elicit: (elicitation: Elicitation) => Effect.Effect<Elicited>
  /** Requests a model answer for the server. Returns `undefined` if declined. */
  readonly sample: (sampling: Sampling) => Effect.Effect<Sampled | undefined>
}

/**
 * Opens a connection. Only its attempts are interruptible, so every connection is either closed or returned. It runs
 * uninterruptibly, and allows interruption while it waits.
 */
export type Connect = (listener: Listener) => Effect.Effect<Backend, Failure>
