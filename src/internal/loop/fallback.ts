/** The `Adapter.fallback` rule: switches to another candidate when one fails before it has said anything. */
import * as Adapter from "../../Adapter.ts"
import * as Json from "../json.ts"
import { keep, latest, noteIn, type Rule } from "./rules.ts"

export const name = "fallback"

/** The note of a switch. The run stays with its candidate; the failures belong to the step. */
interface Note {
  readonly to: string
  readonly tried: ReadonlyArray<Adapter.Tried>
}

/** Sends each request to the run's latest candidate, which is the first until a switch. */
export const switching = (): Rule => {
  let current: Adapter.Candidate | undefined
  return {
    name,
    ask: (ask, at) => {
      const { candidates } = ask.adapter
      const to = (latest(at, name) as Note | undefined)?.to
      current = candidates?.find((candidate) => candidate.name === to) ?? candidates?.[0]
      if (current === undefined) return ask
      const { tried = [] } = (noteIn(at.noted, name) as Note | undefined) ?? {}
      return { ...ask, adapter: current.behind(current.adapter, tried), template: current.template(ask.template) }
    },
    reply: ({ error, hasSaid, mayRepeat }, { noted }) => {
      if (error === undefined || hasSaid || !mayRepeat || current === undefined) return keep
      const failure = Adapter.AdapterError.from(error)
      const next = current.next(failure)
      if (next === undefined) return keep
      const { tried = [] } = (noteIn(noted, name) as Note | undefined) ?? {}
      const note = { to: next.name, tried: current.tried(failure, tried) }
      return {
        _tag: "AskAgain",
        after: 0,
        note: Json.toJson(note),
        events: [{ _tag: "ModelSwitched", from: current.name, to: next.name, error: failure }]
      }
    }
  }
}
