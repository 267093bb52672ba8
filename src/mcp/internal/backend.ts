/**
 * The seam to a client of the protocol: to list the tools of a server, to call one, and to close. What a server tells
 * in between goes to a listener. Another client than the SDK's is another function of the type `Connect`.
 */
import * as Data from "effect/Data"
import type * as Effect from "effect/Effect"
import type * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"

/** A tool as the server describes it. Nothing of it is to be believed. */
export interface Listed {
  readonly name: string
  readonly title?: string | undefined
  readonly description?: string | undefined
  readonly inputSchema: Json.JsonObject
  readonly annotations?: Json.JsonObject | undefined
  /** The whole definition, which the client reads again when the tool is called. */
  readonly definition: Json.JsonObject
}

/** A tool that is not offered, and the reason. */
export interface LeftOut {
  readonly name: string
  readonly reason: string
}

/** The tools of a server. */
interface Tools {
  readonly tools: ReadonlyArray<Listed>
  readonly leftOut: ReadonlyArray<LeftOut>
}

/** A question of a server to its client, as `elicitation/create` has it. */
export interface Elicitation {
  readonly message: string
  /** The schema of the form: an object of texts, numbers, booleans and choices. Left out of any other mode. */
  readonly schema?: Json.JsonObject | undefined
}

/** The answer to it. */
export type Elicited =
  | { readonly action: "accept"; readonly content: Json.JsonObject }
  | { readonly action: "decline" | "cancel" }

/** A request of a server for the answer of a model, as `sampling/createMessage` has it. */
export interface Sampling {
  readonly messages: ReadonlyArray<Message.Message>
  readonly system?: string | undefined
  readonly maxTokens: number
  readonly temperature?: number | undefined
  readonly stopSequences?: ReadonlyArray<string> | undefined
}

/** The answer to it. */
export interface Sampled {
  readonly text: string
  readonly model: string
}

/** A thing that a server wants to know before it answers a call: from the user, from a model, or known already. */
export type Wanted =
  | ({ readonly _tag: "Elicitation" } & Elicitation)
  | ({ readonly _tag: "Sampling" } & Sampling)
  | { readonly _tag: "Known"; readonly response: Json.JsonObject }

/** A call. The repeat of a call that asked for input has the answers, and the state as it was given. */
export interface Request {
  readonly tool: Listed
  readonly arguments: Json.JsonObject
  readonly meta: Json.JsonObject
  readonly responses?: Readonly<Record<string, unknown>> | undefined
  readonly state?: string | undefined
}

/** The answer to a call: its result, or what the server wants to know first. */
export type Response =
  | {
    readonly _tag: "Result"
    readonly content: ReadonlyArray<Json.JsonObject>
    readonly structured: unknown
    readonly isError: boolean
    /** The reason for which the result is not as the `outputSchema` of its tool has it. Left out where it is. */
    readonly misfit?: string | undefined
  }
  | {
    readonly _tag: "Input"
    /** The questions by their keys. `undefined` stands for one that is not answered. */
    readonly requests: Readonly<Record<string, Wanted | undefined>>
    readonly state: string | undefined
  }

/**
 * A failure of the client. `lost`: the connection ended, so that a request that was sent may have had its effect.
 * `unanswered`: the answer to this request alone ended, or cannot be read, so that it may, too. `unsent`: the
 * connection had ended before, so that the server has not had the request. `rpc`: the server refused the request, with
 * a code.
 */
export class Failure extends Data.TaggedError("McpFailure")<{
  readonly reason: "lost" | "unanswered" | "unsent" | "rpc" | "other"
  readonly message: string
  readonly code?: number | undefined
}> {}

/** A connection. */
export interface Backend {
  readonly list: Effect.Effect<Tools, Failure>
  /** Interruption tells the server that the call is cancelled. */
  readonly call: (request: Request, progress: (value: unknown) => void) => Effect.Effect<Response, Failure>
  /** Closes the connection. It may take seconds where a process does not leave. */
  readonly close: Effect.Effect<void>
  /** Facts for spans. */
  readonly facts: Readonly<Record<string, string>>
}

/** Takes what happens between calls. */
export interface Listener {
  /** The list of tools has changed. */
  readonly changed: () => void
  /** The connection has ended. */
  readonly lost: (failure: Failure) => void
  /** The server asks within a call, which it holds open. It is interrupted when the server asks no more. */
  readonly elicit: (elicitation: Elicitation) => Effect.Effect<Elicited>
  /** The server asks for the answer of a model. There is none where it is declined. */
  readonly sample: (sampling: Sampling) => Effect.Effect<Sampled | undefined>
}

/**
 * Opens a connection. Nothing but its attempts is interrupted, so that each connection is either closed or returned: it
 * is run without interruption, and allows it where it waits.
 */
export type Connect = (listener: Listener) => Effect.Effect<Backend, Failure>
