/** The errors and the options of the tools of servers. Public as members of `McpTools`. */
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { checkNames, type NamesOf } from "../../internal/declare/schema.ts"
import * as Values from "../../internal/declare/values.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"

/**
 * A tool of a server failed, as the server says. The model reads `text`.
 *
 * @category errors
 * @since 0.1.0
 */
export class McpToolFailed extends Schema.TaggedError<McpToolFailed>("heddle/mcp/McpToolFailed")("McpToolFailed", {
  /** The name of the server. */
  server: Schema.String,
  /** The name of the tool, as the server has it. */
  tool: Schema.String,
  /** The text of the result. */
  text: Schema.String
}) {
  override get message(): string {
    return `the tool "${this.tool}" of the MCP server "${this.server}" failed: ${this.text}`
  }
}

Json.addError("McpToolFailed", McpToolFailed)

/**
 * A server could not be started or reached, did not list its tools, or does not list one that `trust` names.
 *
 * @category errors
 * @since 0.1.0
 */
export class McpUnavailable extends Schema.TaggedError<McpUnavailable>("heddle/mcp/McpUnavailable")("McpUnavailable", {
  /** The name of the server. */
  server: Schema.String,
  /** The reason. Of a process, with the last of what it wrote. */
  detail: Schema.String
}) {
  override get message(): string {
    return `the MCP server "${this.server}" is not available: ${this.detail}`
  }
}

Json.addError("McpUnavailable", McpUnavailable)

/**
 * A server that is started as a process, and spoken to by its standard input and output.
 *
 * @category options
 * @since 0.1.0
 */
export interface StdioServer {
  /** The name of the server in errors, questions and approvals. */
  readonly name: string
  /** The program. It is run without a shell. */
  readonly command: string
  /** The arguments of the program. None by default. */
  readonly args?: ReadonlyArray<string>
  /**
   * Environment variables of the process. Of those of this one it has only `HOME`, `LOGNAME`, `PATH`, `SHELL`, `TERM`
   * and `USER` besides, so that keys have to be given. None by default.
   */
  readonly env?: Readonly<Record<string, string>>
  /** The working directory of the process. That of this one by default. */
  readonly cwd?: string
}

/**
 * A server at an address (Streamable HTTP).
 *
 * @category options
 * @since 0.1.0
 */
export interface HttpServer {
  /** The name of the server in errors, questions and approvals. The host of `url` by default. */
  readonly name?: string
  /** The address. Redirects to another origin are refused. */
  readonly url: string | URL
  /** Headers of each request, such as `authorization`. None by default. */
  readonly headers?: Readonly<Record<string, string>>
}

/**
 * The hints about a tool that count for Heddle.
 *
 * @category options
 * @since 0.1.0
 */
export interface Hints {
  /**
   * The `hash` that the tool must have, as `metadata.mcp.hash` of the tool says: SHA-256 of its name, its title, its
   * description, its schemas, its annotations and its `execution`. By default it must be what it was when this process
   * first saw it.
   */
  readonly hash?: string
  /** `true` if it changes nothing: it may start before the reply has ended. `false` by default. */
  readonly readOnly?: boolean
  /** `true` if it may destroy something. `true` by default. */
  readonly destructive?: boolean
  /**
   * `true` if a repeated call changes nothing more: it is sent again where the connection was lost, and after the user
   * has answered a question of an older server. `false` by default.
   */
  readonly idempotent?: boolean
  /** `true` if it deals with the world outside. `true` by default. */
  readonly openWorld?: boolean
}

/**
 * The facts by which a function decides about an approval.
 *
 * @category models
 * @since 0.1.0
 */
export interface Facts {
  /** The name of the server. */
  readonly server: string
  /** The name of the tool, as the server has it. */
  readonly name: string
  /** The hash of what models and people read of it, and of what its trust depends on. */
  readonly hash: string
  /** `true` if it is another tool than the one that this process first saw under its name. */
  readonly isChanged: boolean
  /** `true` if its hints are trusted. */
  readonly isTrusted: boolean
  /** `true` if it changes nothing, as far as it is trusted. */
  readonly readOnly: boolean
  /** `true` if it may destroy something, which holds for each tool that is not trusted. */
  readonly destructive: boolean
}

/**
 * A question of a server to its client.
 *
 * @category models
 * @since 0.1.0
 */
export interface Elicitation {
  /** The name of the server. */
  readonly server: string
  /** The question. */
  readonly message: string
  /** The JSON Schema of the form: an object of texts, numbers, booleans and choices. */
  readonly schema: Json.JsonObject
}

/**
 * The answer to a question of a server.
 *
 * @category models
 * @since 0.1.0
 */
export type Elicited =
  | {
    /** The user has filled in the form. */
    readonly action: "accept"
    /** The fields of the form. */
    readonly content: Json.JsonObject
  }
  | {
    /** The user has said no, or has not said anything. */
    readonly action: "decline" | "cancel"
  }

/**
 * A folder or a file that a server may look at.
 *
 * @category options
 * @since 0.1.0
 */
export interface Root {
  /** The address, which begins with `file://`. */
  readonly uri: string
  /** The name before people. None by default. */
  readonly name?: string
}

/**
 * A request of a server for the answer of a model. All of it is the server's.
 *
 * @category models
 * @since 0.1.0
 */
export interface Sampling {
  /** The name of the server. */
  readonly server: string
  /** The messages, of the roles `user` and `assistant`. */
  readonly messages: ReadonlyArray<Message.Message>
  /** The system prompt that the server would like. */
  readonly system?: string
  /** The most tokens of the answer. */
  readonly maxTokens: number
  /** The temperature that the server would like. */
  readonly temperature?: number
  /** The texts that end the answer. */
  readonly stopSequences?: ReadonlyArray<string>
}

/**
 * The answer of a model to a server.
 *
 * @category models
 * @since 0.1.0
 */
export interface Sampled {
  /** The text. */
  readonly text: string
  /** The name of the model, as the server is to know it. */
  readonly model: string
}

/**
 * Options of the tools of a server.
 *
 * @category options
 * @since 0.1.0
 */
export interface Options {
  /** The text before the name of each tool, such as `"github_"`. None by default. */
  readonly prefix?: string
  /**
   * The tools whose hints count: `"annotations"` believes all that the server says; a record names tools, each with
   * `"annotations"` or with your own hints. Trust holds for a tool as it was when this process first saw it, or for
   * the `hash` that is given. A name is that of the server, without `prefix`. One that the server does not list when it
   * is first connected is an {@link McpUnavailable}, unless it has a `hash`: give that for a tool that is listed later.
   * A tool that is listed no more, and comes back, is trusted as before. None by default.
   */
  readonly trust?: "annotations" | { readonly [tool: string]: "annotations" | Hints }
  /**
   * The calls that wait for an approval: those of tools that may destroy something (`"destructive"`), which is each
   * tool that is not trusted, or whose server says no more of it than that it destroys nothing: trusted annotations
   * have to say `readOnlyHint`, your own hints `readOnly: true` or `destructive: false`; `"all"`; `"none"`, but for
   * tools that have changed; or those for which a function returns `true`. `"destructive"` by default.
   */
  readonly approval?: "destructive" | "all" | "none" | ((tool: Facts, args: Json.JsonObject) => boolean)
  /**
   * Answers questions of the server. By default a question ends the run as one of `Tool.askUser`, and the call
   * continues with the answer; an older server, which holds the call open meanwhile, is declined unless the tool is
   * trusted as idempotent, and the model reads why.
   */
  readonly onElicit?: (elicitation: Elicitation) => Effect.Effect<Elicited>
  /**
   * The folders and files that the server reads of when it asks for its roots, each by a `file://` address. Without them
   * it may not ask. None by default.
   */
  readonly roots?: ReadonlyArray<Root>
  /**
   * Answers a server that asks for the answer of a model, which the program chooses and pays for. A failure declines.
   * The server may ask ten times in a call, with its other questions, and only then. Without it the server may not ask.
   */
  readonly onSample?: (sampling: Sampling) => Effect.Effect<Sampled, unknown>
  /**
   * `true` to send the trace context to the server, as `traceparent`: for a server of your own, whose spans then belong
   * to the trace. A third party learns its ids. `false` by default.
   */
  readonly propagate?: boolean
  /** The most bytes of a message of the server. A longer one ends the connection. 16 MiB by default. */
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
      `a text that begins with "file://"`,
      (value) => typeof value === "string" && value.startsWith("file://")
    ),
    name: Values.text
  } satisfies NamesOf<Root>,
  ["uri"]
)

/** The options of the tools of a server. */
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
  args: Values.listOf(Values.hidden(Values.text), "texts"),
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

/** Throws for a server or for options that no connection can be made of. */
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
 * A tool that is not offered.
 *
 * @category models
 * @since 0.1.0
 */
export interface LeftOut {
  /** The name of the server. */
  readonly server: string
  /** The name of the tool, as the server has it. */
  readonly name: string
  /** The reason. */
  readonly reason: string
}
