/** The `Adapter.fallback` rule: switches to another candidate when one fails before it has said anything. */
import * as Adapter from "../../Adapter.ts"
import * as Json from "../json.ts"
import { keep, noteIn, type Notes, type Rule } from "./rules.ts"

const name = "fallback"

/** The note of a switch. The run stays with its candidate; the failures belong to the step. */
interface Note {
  readonly to: string
  readonly tried: ReadonlyArray<Adapter.Tried>
  /** Name in `Adapter.named` of the adapter with these candidates, if any. */
  readonly of?: string
}

/**
 * Sends each request to the run's latest candidate, which is the first until a switch. Each adapter of `Adapter.named`
 * has candidates of its own.
 */
export const switching = ({ named }: Adapter.Service): Rule => {
  let of: string | undefined
  let current: Adapter.Candidate | undefined
  /** Returns the note on a switch between the current candidates. */
  const own = (notes: Notes | undefined): Note | undefined => {
    const note = notes && noteIn(notes, name) as Note | undefined
    return note?.of === of ? note : undefined
  }
  return {
    name,
    ask: (ask, { noted, notes }) => {
      const { candidates } = ask.adapter
      // The default adapter is a copy of the first, with the same candidates.
      of = Array.from(named ?? []).find(([, one]) => one.candidates === candidates)?.[0]
      const switched = own(noted)
      const { to } = switched ?? own(notes.findLast((step) => own(step) !== undefined)) ?? {}
      current = candidates?.find((candidate) => candidate.name === to) ?? candidates?.[0]
      if (current === undefined) return ask
      const adapter = current.behind(current.adapter, switched?.tried ?? [])
      return { ...ask, adapter, template: current.template(ask.template) }
    },
    reply: ({ error, hasSaid, mayRepeat }, { noted }) => {
      if (error === undefined || hasSaid || !mayRepeat || current === undefined) return keep
      const failure = Adapter.AdapterError.from(error)
      const next = current.next(failure)
      if (next === undefined) return keep
      const tried = current.tried(failure, own(noted)?.tried ?? [])
      return {
        _tag: "AskAgain",
        after: 0,
        note: Json.toJson({ to: next.name, tried, ...(of === undefined ? {} : { of }) }),
        events: [{ _tag: "ModelSwitched", from: current.name, to: next.name, error: failure }]
      }
    }
  }
}
