/**
 * Agents of a definition by name, and the options for an agent session's next run.
 */
import * as Effect from "effect/Effect"
import type * as Journal from "../../Journal.ts"
import * as Session from "../../Session.ts"
import * as Tool from "../../Tool.ts"
import type * as Agents from "../Agent.ts"
import * as Sessions from "./sessions.ts"

/** Agents by name. */
export type Named<R> = ReadonlyMap<string, Agents.Agent<R>>

/** Options for a session's next run, and the message taken by the run. */
export interface Next<R> {
  readonly options: Agents.Options<R>
  /** Message id. `undefined` if the run takes no message. */
  readonly takes: string | undefined
}

/** A client's tool as a run tool, whose calls wait for the client's results. */
const clientTool = ({ description, name, parameters }: Tool.Definition): Tool.Any =>
  Tool.make(name, { description, parameters, manual: true })

const toolsOf = (kept: Session.Kept, isReply: boolean): Journal.ClientTools =>
  isReply ? kept.submitted?.[0]?.clientTools ?? [] : Session.view(kept).clientTools

/** Returns the options for a session's next run, including its client's tools. Dies for another agent's session. */
export const nextOf = <R>(agents: Named<R>, kept: Session.Kept): Effect.Effect<Next<R>, never, R> =>
  Effect.gen(function*() {
    const { agent: name, metadata = {}, principal = "" } = kept.origin
    const agent = agents.get(name ?? "")
    if (agent === undefined) {
      return yield* Effect.die(new Error(`session ${JSON.stringify(kept.id)} belongs to no agent of this server`))
    }
    const isReply = Session.next(kept) === "reply"
    const clientTools = toolsOf(kept, isReply)
    const given = yield* agent.run({ principal, sessionId: Sessions.idOf(kept.id), kept, clientTools, metadata })
    const tools = [...(given.tools ?? []), ...clientTools.map(clientTool)]
    return {
      options: { ...given, tools } as Agents.Options<R>,
      takes: isReply ? kept.submitted?.[0]?.id : Session.view(kept).run?.takes?.id
    }
  })
