/** Errors and options for server tools, public as members of `McpTools`. */
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { checkNames, type NamesOf } from "../../internal/declare/schema.ts"
import * as Values from "../../internal/declare/values.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"

/**
 * A server tool failed, according to its server. The model reads `text`.
 *
 * @category errors
 */
export class McpToolFailed extends Schema.TaggedError<McpToolFailed>("heddle/mcp/McpToolFailed")("McpToolFailed", {
  /** Server name. */
  server: Schema.String,
  /** Tool name on the server. */
  tool: Schema.String,
  /** Result text. */
  text: Schema.String
}) {
  override get message(): string {
    return `the tool "${this.tool}" of the MCP server "${this.server}" failed: ${this.text}`
  }
}

Json.addError("McpToolFailed", McpToolFailed)

/**
 * A server could not be started or reached, failed to list its tools, or does not list a tool named by `trust`.
 *
 * @category errors
 */
export class McpUnavailable extends Schema.TaggedError<McpUnavailable>("heddle/mcp/McpUnavailable")("McpUnavailable", {
  /** Server name. */
  server: Schema.String,
  /** Reason. For a process, it includes the last output. */
  detail: Schema.String
}) {
  override get message(): string {
    return `the MCP server "${this.server}" is not available: ${this.detail}`
  }
}

Json.addError("McpUnavailable", McpUnavailable)

/**
 * A server started as a process, connected through standard input and output.
 *
 * @category options
 */
export interface StdioServer {
  /** Server name in errors, questions and approvals. */
  readonly name: string
  /** Program, run without a shell. */
  readonly command: string
  /** Program arguments. None by default. */
  readonly args?: ReadonlyArray<string>
  /**
   * Environment variables for the process. From this process it inherits only `HOME`, `LOGNAME`, `PATH`, `SHELL`,
   * `TERM` and `USER`, so keys must be given here. None by default.
   */
  readonly env?: Readonly<Record<string, string>>
  /** Working directory for the process. Defaults to this process's own. */
  readonly cwd?: string
}

/**
 * A server at an address (Streamable HTTP).
 *
 * @category options
 */
export interface HttpServer {
  /** Server name in errors, questions and approvals. Defaults to the host in `url`. */
  readonly name?: string
  /** Server address. Redirects to another origin are refused. */
  readonly url: string | URL
  /** Headers for every request, such as `authorization`. None by default. */
  readonly headers?: Readonly<Record<string, string>>
}

/**
 * Trusted hints about a tool.
 *
 * @category options
 */
export interface Hints {
  /**
   * Required `hash`, as given in the tool's `metadata.mcp.hash`: SHA-256 over name, title, description, schemas,
   * annotations and `execution`. By default the tool must be unchanged since the layer first saw it.
   */
  readonly hash?: string
  /** `true` if it changes nothing: it may start before the reply has ended. `false` by default. */
  readonly readOnly?: boolean
  /** `true` if it may destroy something. `true` by default. */
  readonly destructive?: boolean
  /**
   * `true` if repeating a call changes nothing more: Heddle sends the call again after a lost connection, and after the
   * user answered an older server's question. `false` by default.
   */
  readonly idempotent?: boolean
  /** `true` if it deals with the outside world. `true` by default. */
  readonly openWorld?: boolean
}

/**
 * Facts for an approval function.
 *
 * @category models
 */
export interface Facts {
  /** Server name. */
  readonly server: string
  /** Tool name on the server. */
  readonly name: string
  /** Hash over everything models and people read, and everything its trust depends on. */
  readonly hash: string
  /** `true` if it differs from the tool the layer first saw under the same name. */
  readonly isChanged: boolean
  /** `true` if its hints are trusted. */
  readonly isTrusted: boolean
  /** `true` if it changes nothing, according to trusted hints. */
  readonly readOnly: boolean
  /** `true` if it may destroy something, as every untrusted tool may. */
  readonly destructive: boolean
}

/**
 * A server's question to its client.
 *
 * @category models
 */
export interface Elicitation {
  /** Server name. */
  readonly server: string
  /** Question text. */
  readonly message: string
  /** Form as JSON Schema: an object of strings, numbers, booleans and choices. */
  readonly schema: Json.JsonObject
}

/**
 * Answer to a server's question.
 *
 * @category models
 */
export type Elicited =
  | {
    /** Marks a completed form. */
    readonly action: "accept"
    /** Form fields. */
    readonly content: Json.JsonObject
  }
  | {
    /** Marks a refusal (`"decline"`) or a missing answer (`"cancel"`). */
    readonly action: "decline" | "cancel"
  }

/**
 * A folder or file the server may access.
 *
 * @category options
 */
export interface Root {
  /** Address, beginning with `file://`. */
  readonly uri: string
  /** Display name. None by default. */
  readonly name?: string
}

/**
 * A server's request for a model answer. All its contents come from the server.
 *
 * @category models
 */
export interface Sampling {
  /** Server name. */
  readonly server: string
  /** Messages with the roles `user` and `assistant`. */
  readonly messages: ReadonlyArray<Message.Message>
  /** System prompt suggested by the server. */
  readonly system?: string
  /** Maximum answer length in tokens. */
  readonly maxTokens: number
  /** Temperature suggested by the server. */
  readonly temperature?: number
  /** Texts at which the answer ends. */
  readonly stopSequences?: ReadonlyArray<string>
}

/**
 * A model's answer for a server.
 *
 * @category models
 */
export interface Sampled {
  /** Answer text. */
  readonly text: string
  /** Model name to report to the server. */
  readonly model: string
}

/**
 * Options for a server's tools.
 *
 * @category options
 */
export interface Options {
  /** Prefix for every tool name, such as `"github_"`. None by default. */
  readonly prefix?: string
  /**
   * Tools with trusted hints. `"annotations"` trusts all the server's annotations; a record names tools, each with
   * `"annotations"` or your own hints. Names are the server's, without `prefix`. None by default.
   *
   * Trust applies to a tool as the layer first saw it, or to the given `hash`. A tool removed from the list and listed
   * again is trusted as before. If you name a tool the server does not list on its first connection, the layer fails
   * with {@link McpUnavailable}. A tool with a `hash` may be listed later.
   */
  readonly trust?: "annotations" | { readonly [tool: string]: "annotations" | Hints }
  /**
   * Calls waiting for approval. `"destructive"` by default.
   *
   * - `"destructive"`: calls to tools that may destroy something. This includes every untrusted tool. A call needs no
   *   approval if trusted annotations contain `readOnlyHint`, or if your own hints contain `readOnly: true` or
   *   `destructive: false`. The annotation `destructiveHint: false` alone is not enough.
   * - `"all"`: all calls.
   * - `"none"`: only calls to changed tools.
   * - A function: calls for which it returns `true`.
   */
  readonly approval?: "destructive" | "all" | "none" | ((tool: Facts, args: Json.JsonObject) => boolean)
  /**
   * Answers the server's questions. By default a question ends the run like `Tool.askUser`, and the call continues with
   * the answer. An older server holds the call open meanwhile: its question is declined unless the tool is trusted as
   * idempotent, and the model reads why.
   */
  readonly onElicit?: (elicitation: Elicitation) => Effect.Effect<Elicited>
  /**
   * Folders and files reported when the server asks for its roots, each with a `file://` address. Without this option
   * the server may not ask. None by default.
   */
  readonly roots?: ReadonlyArray<Root>
  /**
   * Answers the server's requests for a model answer; the program chooses and pays for the model. A failure declines.
   * The server may ask only during a call, at most ten times per call together with its other questions. Without this
   * option it may not ask.
   */
  readonly onSample?: (sampling: Sampling) => Effect.Effect<Sampled, unknown>
  /**
   * `true` to send the trace context to the server, as `traceparent`: for your own server, whose spans then join the
   * trace. To a third party it would reveal the trace ids. `false` by default.
   */
  readonly propagate?: boolean
  /** Maximum message length, in bytes. A longer message from the server ends the connection. 16 MiB by default. */
  readonly maxMessageBytes?: number
}

const knownHints = {
  hash: Values.text,
  readOnly: Values.flag,
  destructive: Values.flag,
  idempotent: Values.flag,
  openWorld: Values.flag
} satisfies NamesOf<Hints>

const annotations = Values.oneOf("annotations")

const hints = Values.described(Values.either(annotations, Values.options(knownHints)), `"annotations" or hints`)

const root = Values.required(
  {
    uri: new Values.Kind(
      `a string that begins with "file://"`,
      (value) => typeof value === "string" && value.startsWith("file://")
    ),
    name: Values.text
  } satisfies NamesOf<Root>,
  ["uri"]
)

const knownOptions = {
  prefix: Values.text,
  trust: Values.described(
    Values.either(annotations, Values.recordOf(hints, "tools")),
    `"annotations" or an object of tools`
  ),
  approval: Values.described(
    Values.either(Values.oneOf("destructive", "all", "none"), Values.fn),
    `"destructive", "all", "none" or a function (tool, args)`
  ),
  onElicit: Values.fn,
  roots: Values.listOf(Values.described(root, "{ uri, name }"), "{ uri, name }"),
  onSample: Values.fn,
  propagate: Values.flag,
  maxMessageBytes: Values.countOrNone
} satisfies NamesOf<Options>

const knownStdio = {
  name: Values.text,
  command: Values.text,
  args: Values.listOf(Values.hidden(Values.text), "strings"),
  env: Values.hiddenTexts,
  cwd: Values.text
} satisfies NamesOf<StdioServer>

const knownHttp = {
  name: Values.text,
  url: new Values.Kind(
    "an address",
    (value) => value instanceof URL || typeof value === "string" && URL.canParse(value),
    { isShown: false }
  ),
  headers: Values.hiddenTexts
} satisfies NamesOf<HttpServer>

/** Throws for an invalid server or invalid options. */
export const check = (subject: string, server: StdioServer | HttpServer, options: Options): void => {
  if ("url" in server) checkNames(subject, server, knownHttp)
  else {
    checkNames(subject, server, knownStdio)
    if (server.command === undefined) throw new TypeError(`${subject}: give the command or the url of a server`)
    if (server.name === undefined) throw new TypeError(`${subject}: give a name to the server "${server.command}"`)
  }
  checkNames(subject, options, knownOptions)
}

/**
 * A tool not offered.
 *
 * @category models
 */
export interface LeftOut {
  /** Server name. */
  readonly server: string
  /** Tool name on the server. */
  readonly name: string
  /** Reason it is not offered. */
  readonly reason: string
}
