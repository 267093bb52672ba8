/**
 * The agents of a definition by their names, and the options of the next run of a session of one of them.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import type * as Journal from "../../Journal.ts"
import * as Session from "../../Session.ts"
import * as Tool from "../../Tool.ts"
import type * as Agents from "../Agent.ts"
import * as Sessions from "./sessions.ts"

/** The agents by their names. */
export type Named<R> = ReadonlyMap<string, Agents.Agent<R>>

/** The options of the next run of a session, and the message that the run takes. */
export interface Next<R> {
  readonly options: Agents.Options<R>
  /** The id of the message. `undefined` where the run takes none. */
  readonly takes: string | undefined
}

/** The tools of a client as tools of the run, whose calls wait for the client's results. */
const clientTool = ({ description, name, parameters }: Tool.Definition): Tool.Any =>
  Tool.make(name, { description, parameters, manual: true })

const toolsOf = (kept: Session.Kept, isReply: boolean): Journal.ClientTools =>
  isReply ? kept.submitted?.[0]?.clientTools ?? [] : Session.view(kept).clientTools

/** Returns the options of the next run of a session, with its client's tools. Dies for a session of another agent. */
export const nextOf = <R>(agents: Named<R>, kept: Session.Kept): Effect.Effect<Next<R>, never, R> =>
  Effect.gen(function*() {
    const { agent: name, metadata = {}, principal = "" } = kept.origin
    const agent = agents.get(name ?? "")
    if (agent === undefined) {
      return yield* Effect.die(new Error(`session ${JSON.stringify(kept.id)} is of no agent of this server`))
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
