/**
 * The parts of a bridged library's stream, in one vocabulary for all libraries. `options` are the provider's own words
 * on a part, which have to go back with it unchanged.
 */
import type * as Adapter from "../../Adapter.ts"
import type * as Json from "../../internal/json.ts"
import type * as Response from "../../Response.ts"

type Options = Json.JsonObject | undefined

/** A piece of a block of text or reasoning. Its beginning and its end are pieces without a text. */
export interface Said {
  readonly type: "text" | "reasoning"
  readonly id: string
  readonly delta: string
  readonly options: Options
}

/** A call is announced by its name. Its arguments may follow in fragments, which are ignored unless they are JSON. */
export interface Input {
  readonly type: "input"
  readonly id: string
  readonly name: string | undefined
  readonly delta: string
  readonly isJson: boolean
}

/** A call as the library makes it: the last word on its arguments. */
export interface Call {
  readonly type: "call"
  readonly id: string
  readonly name: string
  readonly text: string
  readonly isExecuted: boolean
  readonly options: Options
}

/** The result of a call that the provider ran itself. */
export interface Result {
  readonly type: "result"
  readonly id: string
  readonly value: unknown
  readonly isError: boolean
  readonly options: Options
}

/** A file that the model made: base64 data or a URL. */
export interface File {
  readonly type: "file"
  readonly mediaType: string
  readonly data: string | undefined
  readonly url: string | undefined
  readonly isReasoning: boolean
  readonly options: Options
}

/** Content that only its provider understands. */
interface Custom {
  readonly type: "custom"
  readonly kind: string
  readonly options: Options
}

export type Content = Said | Input | Call | Result | File | Custom

/** Facts about the reply. Lists of the same name are joined. */
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
 * `isCut`: the library itself says that the reply ended before its end. `isPaused`: the reply continues once it is sent
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

/** Returns `true` if the model itself speaks, so that its message has begun. */
export const isContent = (part: Part): part is Content => contentTypes.includes(part.type)
