/**
 * Agent facts for a page to show before the first message: description, model and tools. They come from a run's
 * options, and therefore depend on the principal.
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

/** A tool as described on a page. */
interface ToolFacts {
  readonly name: string
  /** Description, cut to 1,000 characters. Empty if only the tool's name is published. */
  readonly description: string
  /** `false` if it depends on the arguments. */
  readonly readOnly: boolean
  /** `true` if it depends on the arguments. */
  readonly destructive: boolean
  readonly openWorld: boolean
  /** `"sometimes"` if the need for approval depends on the arguments. */
  readonly approval: "always" | "sometimes" | "never"
  /** Name of the agent behind the tool. Absent unless the tool is a sub-agent. */
  readonly agent?: string
}

/** Facts about an agent. Without tools `unavailable` gives the reason. */
interface Facts {
  readonly name: string
  readonly description: string
  /** Model of its requests, unless a rule chooses another. Absent if nothing names a model. */
  readonly model?: string
  readonly provider?: string
  readonly examples?: ReadonlyArray<string>
  readonly tools?: ReadonlyArray<ToolFacts>
  /** `"failed"` if making a run's options failed, `"timeout"` if it took too long. */
  readonly unavailable?: "failed" | "timeout"
}

/** Server parts needed to describe agents. */
export interface Source {
  /** Returns the options for a new session's run. */
  readonly optionsOf: (agent: string, principal: string) => Effect.Effect<Agents.Options<any>>
  readonly adapter: Adapter.Service | undefined
  readonly defaults: Policy.Defaults
  readonly publish: Event.PublicOptions["publish"]
}

/** Facts derived from a run's options. */
type Found = Omit<Facts, "description" | "examples" | "name">

/** Returns an agent's facts for a principal. */
export type FactsOf = (
  agent: Pick<Agents.Agent, "name" | "description" | "examples">,
  principal: string
) => Effect.Effect<Facts>

/** Maximum description length, in characters. */
const longestDescription = 1_000

/** Maximum number of cached facts: one entry is the facts about one agent for one principal. */
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

/** Returns the facts in a run's options, combined with the application's. */
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

/** Logs that an agent's tools could not be read, and returns the given replacement. */
export const unread = <A>(agent: string | undefined, cause: Cause.Cause<unknown>, otherwise: A): Effect.Effect<A> =>
  Effect.logWarning("an agent's tools could not be read", agent).pipe(
    Effect.andThen(Effect.logDebug("an agent's tools could not be read", cause)),
    Effect.as(otherwise)
  )

/**
 * Returns a function reading an agent's facts: for at most ten seconds, and once a minute per principal. A failed or
 * late answer is requested again after ten seconds.
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
