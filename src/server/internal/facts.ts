/**
 * The facts about an agent that a page shows before the first message: its description, its model and its tools. They
 * are read from the options of a run, which belong to a principal.
 *
 * @since 0.1.0
 */
import * as Cache from "effect/Cache"
import type * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import type * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as SubAgent from "../../internal/answer/subAgent.ts"
import * as ToolOptions from "../../internal/declare/toolOptions.ts"
import type * as Policy from "../../Policy.ts"
import type * as Tool from "../../Tool.ts"
import type * as Agents from "../Agent.ts"

/** A tool as a page names it. */
interface ToolFacts {
  readonly name: string
  /** The description, at most 1,000 characters of it. Empty where only the name of the tool is published. */
  readonly description: string
  /** `false` where it depends on the arguments. */
  readonly readOnly: boolean
  /** `true` where it depends on the arguments. */
  readonly destructive: boolean
  readonly openWorld: boolean
  /** `"sometimes"` where it depends on the arguments whether a call waits for an approval. */
  readonly approval: "always" | "sometimes" | "never"
  /** The name of the agent that the tool asks. Left out of a tool that is no sub-agent. */
  readonly agent?: string
}

/** The facts about an agent. Without tools `unavailable` has the reason. */
interface Facts {
  readonly name: string
  readonly description: string
  /** The model of its requests, unless a rule chooses another one. Left out where nothing names one. */
  readonly model?: string
  readonly provider?: string
  readonly examples?: ReadonlyArray<string>
  readonly tools?: ReadonlyArray<ToolFacts>
  /** `"failed"` where the options of a run could not be made, `"timeout"` where that took too long. */
  readonly unavailable?: "failed" | "timeout"
}

/** The parts of a server by which it knows the facts about its agents. */
export interface Source {
  /** Returns the options of a run of a new session. */
  readonly optionsOf: (agent: string, principal: string) => Effect.Effect<Agents.Options<any>>
  readonly adapter: Adapter.Service | undefined
  readonly defaults: Policy.Defaults
  readonly publish: Event.PublicOptions["publish"]
}

/** The facts that the options of a run tell. */
type Found = Omit<Facts, "description" | "examples" | "name">

/** Returns the facts about an agent before a principal. */
export type FactsOf = (
  agent: Pick<Agents.Agent, "name" | "description" | "examples">,
  principal: string
) => Effect.Effect<Facts>

/** Longest part of a description, in characters. */
const longestDescription = 1_000

/** Number of agents and principals whose facts are kept. */
const mostKept = 256

const approvalOf = ({ approval = false }: Tool.Any): ToolFacts["approval"] =>
  typeof approval === "function" ? "sometimes" : approval ? "always" : "never"

const toolFacts = (tool: Tool.Any, publish: Event.Publish): ToolFacts => {
  const { description, name, openWorld = false } = tool
  const agent = SubAgent.nameOf(tool)
  return {
    name,
    description: publish === "all" ? description.slice(0, longestDescription).replace(/[\uD800-\uDBFF]$/, "") : "",
    readOnly: ToolOptions.declared(tool, "readOnly") ?? false,
    destructive: ToolOptions.declared(tool, "destructive") ?? false,
    openWorld,
    approval: approvalOf(tool),
    ...(agent === undefined ? {} : { agent })
  }
}

/** Returns the facts that the options of a run have, with those of the application. */
const factsIn = (
  { model: own, tools: given = [] }: Agents.Options<any>,
  { adapter, defaults, publish = "all" }: Source
): Found => {
  const model = own ?? defaults.model ?? adapter?.model
  const offered = ToolOptions.offered(ToolOptions.toolbox(defaults.tools ?? [], given)).tools
  const tools = Array.from(offered.values(), (tool) => {
    const extent = typeof publish === "function" ? publish(tool.name) : publish
    return extent === "all" || extent === "names" ? [toolFacts(tool, extent)] : []
  })
  return {
    ...(model === undefined ? {} : { model }),
    ...(adapter?.provider === undefined ? {} : { provider: adapter.provider }),
    tools: tools.flat()
  }
}

/** Logs that the tools of an agent could not be read, and returns what counts in their place. */
export const unread = <A>(agent: string | undefined, cause: Cause.Cause<unknown>, otherwise: A): Effect.Effect<A> =>
  Effect.logWarning("the tools of an agent could not be read", agent).pipe(
    Effect.andThen(Effect.logDebug("the tools of an agent could not be read", cause)),
    Effect.as(otherwise)
  )

/**
 * Returns a function that reads the facts about an agent: ten seconds at most, and once a minute for each principal.
 * What fails or takes longer is asked again after ten seconds.
 */
export const make = (source: Source): Effect.Effect<FactsOf> =>
  Effect.gen(function*() {
    const cache = yield* Cache.makeWith((key: string): Effect.Effect<Found> => {
      const [agent, principal]: readonly [string, string] = JSON.parse(key)
      return Effect.map(source.optionsOf(agent, principal), (options): Found => factsIn(options, source)).pipe(
        Effect.timeoutOption("10 seconds"),
        Effect.map(Option.getOrElse((): Found => ({ unavailable: "timeout" }))),
        Effect.catchCause((cause) => unread<Found>(agent, cause, { unavailable: "failed" }))
      )
    }, {
      capacity: mostKept,
      timeToLive: (exit) => Exit.isSuccess(exit) && exit.value.unavailable === undefined ? "1 minute" : "10 seconds"
    })
    return ({ description, examples, name }, principal) =>
      Effect.map(
        Cache.get(cache, JSON.stringify([name, principal])),
        (found) => ({ name, description, ...(examples === undefined ? {} : { examples }), ...found })
      )
  })
