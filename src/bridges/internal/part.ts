/**
 * Stream parts of bridged libraries, in one vocabulary. `options` are the provider's own data on a part, to be sent
 * back unchanged.
 */
import type * as Adapter from "../../Adapter.ts"
import type * as Json from "../../internal/json.ts"
import type * as Response from "../../Response.ts"

type Options = Json.JsonObject | undefined

/** A fragment of a text or reasoning block. Block beginnings and ends are fragments without text. */
export interface Said {
  readonly type: "text" | "reasoning"
  readonly id: string
  readonly delta: string
  readonly options: Options
}

/** An announced call, by name. JSON argument fragments may follow; others are ignored. */
export interface Input {
  readonly type: "input"
  readonly id: string
  readonly name: string | undefined
  readonly delta: string
  readonly isJson: boolean
}

/** A call with its final arguments. */
export interface Call {
  readonly type: "call"
  readonly id: string
  readonly name: string
  readonly text: string
  readonly isExecuted: boolean
  readonly options: Options
}

/** Result of a provider-executed call. */
export interface Result {
  readonly type: "result"
  readonly id: string
  readonly value: unknown
  readonly isError: boolean
  readonly options: Options
}

/** A generated file: base64 data or a URL. */
export interface File {
  readonly type: "file"
  readonly mediaType: string
  readonly data: string | undefined
  readonly url: string | undefined
  readonly isReasoning: boolean
  readonly options: Options
}

/** Content only its provider understands. */
interface Custom {
  readonly type: "custom"
  readonly kind: string
  readonly options: Options
}

export type Content = Said | Input | Call | Result | File | Custom

/** Facts about the reply. Lists with the same name are joined. */
export interface About {
  readonly type: "about"
  readonly id?: string | undefined
  readonly model?: string | undefined
  readonly notes?: Readonly<Record<string, ReadonlyArray<unknown>>>
}

interface Raw {
  readonly type: "raw"
  readonly chunk: unknown
}

/**
 * End of the reply. `isCut`: the library itself reports a reply cut short. `isPaused`: the reply continues once sent
 * back.
 */
export interface Finish {
  readonly type: "finish"
  readonly reason: Response.FinishReason | null
  readonly word: string | undefined
  readonly usage: Response.Usage
  readonly isCut: boolean
  readonly isPaused: boolean
  readonly options: Options
}

interface Failure {
  readonly type: "error"
  readonly error: Adapter.AdapterError
}

/** Converts an error among the parts. */
export type ReadError = (error: unknown) => Failure["error"]

export type Part = Content | About | Raw | Finish | Failure

const contentTypes: ReadonlyArray<string> = ["text", "reasoning", "input", "call", "result", "file", "custom"]

/** Returns `true` for content from the model, with which its message begins. */
export const isContent = (part: Part): part is Content => contentTypes.includes(part.type)
