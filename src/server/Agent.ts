/**
 * An agent: a name, a description, and options for its runs. An agent is a value independent of any request, because a
 * run resumed after a crash has no request. One agent serves HTTP, other agents and the command line alike.
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type * as Adapter from "../Adapter.ts"
import * as Chat from "../Chat.ts"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import type * as Journal from "../Journal.ts"
import type * as Session from "../Session.ts"
import * as Tool from "../Tool.ts"

/**
 * Session for an agent to run.
 *
 * @category models
 */
export interface AgentSession {
  /** Principal owning the session. */
  readonly principal: string
  /** Session id, without its principal. Empty if `kept` is `undefined` and no client names a session. */
  readonly sessionId: string
  /**
   * The session as stored. `undefined` if the agent is another agent's tool, and when its tools are read without a run:
   * for a page, for a client bringing tools, or for a branch.
   */
  readonly kept: Session.Kept | undefined
  /** Tools brought by the client. They are offered to the model, and the client answers their calls. */
  readonly clientTools: Journal.ClientTools
  /** Data kept by the server with the session. */
  readonly metadata: Readonly<Record<string, unknown>>
}

/**
 * An agent.
 *
 * @category models
 */
export interface Agent<R = never> {
  /** Name, as used in its route addresses: 1 to 64 letters, digits, `_` and `-`. */
  readonly name: string
  /** Description, for people and for other agents. */
  readonly description: string
  /** Examples of a first message, for a page to offer. Absent without examples. */
  readonly examples?: ReadonlyArray<string>
  /**
   * Returns the options for a session's next run. Called before each run, when a run is resumed, and whenever a
   * page or a check needs the agent's tools without a run.
   */
  readonly run: (session: AgentSession) => Effect.Effect<Options<R>, never, R>
}

/**
 * Options of an agent run, as for `Session.resume`.
 *
 * @category options
 */
export type Options<R = never> = Session.ResumeOptions<
  ReadonlyArray<Tool.Tool<string, any, any, any, R>>,
  never,
  R,
  R,
  R
>

const knownFields = {
  name: Values.text,
  description: Values.text,
  examples: Values.listOf(Values.name, "non-empty strings"),
  run: Values.fn
} satisfies NamesOf<Agent>

const names = /^[A-Za-z0-9_-]{1,64}$/

/**
 * Makes an agent. `run` returns the options for a session's next run, or an effect with the options. Throws for a name
 * unfit for an address, and for an unknown or invalid field.
 *
 * **Example** (An agent with a tool)
 *
 * ```ts import.meta.vitest
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 * import { Tool } from "heddle"
 * import { Agent } from "heddle/server"
 *
 * const weather = Tool.make("weather", {
 *   parameters: { city: Schema.String },
 *   readOnly: true,
 *   handler: ({ city }) => Effect.succeed(`It is raining in ${city}.`)
 * })
 * const agent = Agent.make({
 *   name: "weather",
 *   description: "Knows the weather",
 *   run: () => ({ system: "Be brief.", tools: [weather] })
 * })
 *
 * agent.name // => "weather"
 * ```
 *
 * @category constructors
 */
export const make = <R = never>(
  agent: Omit<Agent<R>, "run"> & {
    /** Returns the options for a session's next run, or an effect with the options. */
    readonly run: (session: AgentSession) => Options<R> | Effect.Effect<Options<R>, never, R>
  }
): Agent<R> => {
  checkNames("Agent.make", agent, knownFields)
  const { description, examples, name, run } = agent
  if (!names.test(name)) {
    const given = JSON.stringify(name)
    throw new TypeError(`Agent.make: name must have 1 to 64 letters, digits, _ and -; got: ${given}`)
  }
  if (run === undefined) throw new TypeError("Agent.make: run must be a function; got: undefined")
  return {
    name,
    description,
    ...(examples === undefined ? {} : { examples }),
    run: (session) =>
      Effect.suspend(() => {
        const options = run(session)
        // Names the agent in traces, unless its own options name another agent.
        return Effect.map(
          Effect.isEffect(options) ? options : Effect.succeed(options),
          (options): Options<R> => ({ agent: { name, description }, ...options })
        )
      })
  }
}

/**
 * Makes a tool from an agent, for other agents to call. Its run is a sub-agent: it is owned by its call, and its events
 * are the call's progress.
 *
 * **Example** (An agent that asks another one)
 *
 * ```ts import.meta.vitest
 * import * as Effect from "effect/Effect"
 * import { Agent } from "heddle/server"
 *
 * const search = Agent.make({ name: "search", description: "Searches", run: () => Effect.succeed({}) })
 * const writer = Agent.make({
 *   name: "writer",
 *   description: "Writes",
 *   run: () => Effect.succeed({ tools: [Agent.toTool(search)] })
 * })
 *
 * writer.name // => "writer"
 * ```
 *
 * @category conversions
 */
export const toTool = <R>(
  agent: Agent<R>
): Tool.Tool<string, any, string, Tool.ChatFailed, R | Adapter.Adapter> =>
  Tool.fromChat(agent.name, {
    description: agent.description,
    parameters: {
      type: "object",
      properties: { task: { type: "string", description: "The task, with everything that is needed to do it." } },
      required: ["task"],
      additionalProperties: false
    },
    chat: ({ task }) =>
      Stream.unwrap(Effect.map(
        agent.run({ principal: "", sessionId: "", kept: undefined, clientTools: [], metadata: {} }),
        (options) => Chat.stream(String(task), options)
      ))
  }) as unknown as Tool.Tool<string, any, string, Tool.ChatFailed, R | Adapter.Adapter>
