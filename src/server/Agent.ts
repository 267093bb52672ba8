/**
 * An agent: a name, a description, and the options of its runs. It is a value without a request, since a run that is
 * resumed after a crash has none. One agent serves HTTP, other agents and the command line alike.
 *
 * @since 0.1.0
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
 * The session that an agent is asked to run.
 *
 * @category models
 * @since 0.1.0
 */
export interface AgentSession {
  /** The principal whose session it is. */
  readonly principal: string
  /** The id of the session, without its principal. Empty where `kept` is `undefined` and no client names one. */
  readonly sessionId: string
  /**
   * The session as the store has it. `undefined` where the agent is the tool of another one, and where its tools are
   * read without a run: for a page, and for a client that brings tools.
   */
  readonly kept: Session.Kept | undefined
  /** The tools that the client brings. A client's tool is offered to the model, and answered by the client. */
  readonly clientTools: Journal.ClientTools
  /** The data that the server keeps with the session. */
  readonly metadata: Readonly<Record<string, unknown>>
}

/**
 * An agent.
 *
 * @category models
 * @since 0.1.0
 */
export interface Agent<R = never> {
  /** The name, as it stands in the address of its routes: 1 to 64 letters, digits, `_` and `-`. */
  readonly name: string
  /** The description, for people and for other agents. */
  readonly description: string
  /** Examples of a first message, which a page offers. Left out where there are none. */
  readonly examples?: ReadonlyArray<string>
  /**
   * Returns the options of the next run of a session. It is called before each run, when a run is resumed, and for what
   * a page shows of the agent.
   */
  readonly run: (session: AgentSession) => Effect.Effect<Options<R>, never, R>
}

/**
 * Options of an agent run, as `Session.resume` takes them.
 *
 * @category options
 * @since 0.1.0
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
  examples: Values.listOf(Values.name, "texts that are not empty"),
  run: Values.fn
} satisfies NamesOf<Agent>

const names = /^[A-Za-z0-9_-]{1,64}$/

/**
 * Makes an agent. `run` returns the options of the next run of a session, or an effect of them. Dies for a name that
 * cannot stand in an address.
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
 * @since 0.1.0
 */
export const make = <R = never>(
  agent: Omit<Agent<R>, "run"> & {
    /** Returns the options of the next run of a session, or an effect of them. */
    readonly run: (session: AgentSession) => Options<R> | Effect.Effect<Options<R>, never, R>
  }
): Agent<R> => {
  checkNames("Agent.make", agent, knownFields)
  const { description, examples, name, run } = agent
  if (!names.test(name)) {
    const given = JSON.stringify(name)
    throw new TypeError(`Agent.make: a name has 1 to 64 letters, digits, _ and -; got: ${given}`)
  }
  if (run === undefined) throw new TypeError("Agent.make: run must be a function; got: undefined")
  return {
    name,
    description,
    ...(examples === undefined ? {} : { examples }),
    run: (session) =>
      Effect.suspend(() => {
        const options = run(session)
        // The agent of the traces, unless its own options name another.
        return Effect.map(
          Effect.isEffect(options) ? options : Effect.succeed(options),
          (options): Options<R> => ({ agent: { name, description }, ...options })
        )
      })
  }
}

/**
 * Makes a tool of an agent, by which another one asks it. The run is a sub-agent's: it is owned by its call, and its
 * events are the progress of the call.
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
 * @since 0.1.0
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
