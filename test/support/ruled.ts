/** Runs with rules, in a kept session that is killed at each of its records, against a model that the thread answers for. */
import { assert } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Adapter, type Chat, type Event, type Journal, type Rule, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { journalOf, prefixed } from "./survivor.ts"

/** Failures that pass a request on to the next candidate by default. */
export const passing: ReadonlyArray<Adapter.AdapterError["reason"]> = [
  "rate_limited",
  "quota_exceeded",
  "provider_unavailable",
  "timeout",
  "network_error"
]

/** A tool that a resumed run may call again. */
export const look = Tool.make("look", { parameters: {}, readOnly: true, handler: () => Effect.succeed("seen") })

/** Gives the reply to a request. */
export type Replies = (request: Adapter.Request) => ReadonlyArray<Script.Entry>

/** A request as it stands in comparisons: without functions. */
const shownOf = (request: Adapter.Request): unknown => JSON.parse(JSON.stringify(request))

/** A model that notes its requests. */
export const modelOf = (
  replies: Replies,
  asked: Array<Adapter.Request>,
  output?: Adapter.Service["output"]
): Adapter.Service => ({
  ...(output === undefined ? {} : { output }),
  stream: (request) =>
    Stream.unwrap(Effect.map(Script.make([replies(request)]), (scripted) => {
      asked.push(request)
      return scripted.stream(request)
    }))
})

/** What a process has: rules, tools and other options, made anew in each. */
export interface Given extends Chat.Options<ReadonlyArray<Tool.Any>, never, never, never, never> {
  readonly rules: ReadonlyArray<Rule.Rule>
}

/** A run as a test sees it. */
export interface Ran {
  readonly result: Event.ChatResult
  readonly session: Session.Session
  readonly asked: ReadonlyArray<Adapter.Request>
  readonly records: ReadonlyArray<Journal.Record>
}

/** The run in a session, from its beginning. */
export const kept = (
  replies: Replies,
  given: Given,
  input = "go",
  output?: Adapter.Service["output"]
): Effect.Effect<Ran, unknown> => {
  const asked: Array<Adapter.Request> = []
  return Effect.gen(function*() {
    const opened = yield* Session.open("s")
    const { session, value: { result } } = yield* Session.keep(
      opened,
      (session) => Session.reply(session, input, { ...given, requestId: "run" } as {})
    )
    return { result, session, asked, records: yield* journalOf("s") }
  }).pipe(Effect.provide([Adapter.layer(modelOf(replies, asked, output)), Session.Store.layerMemory])) as Effect.Effect<
    Ran,
    unknown
  >
}

/** The run behind the first records of its journal, in a process that was started after the kill. */
export const resumed = (
  replies: Replies,
  given: Given,
  before: ReadonlyArray<Journal.Record>,
  output?: Adapter.Service["output"]
): Effect.Effect<Ran, unknown> => {
  const asked: Array<Adapter.Request> = []
  return Effect.gen(function*() {
    const cut = (yield* Session.load("s"))!
    const { session, value: { result } } = yield* Session.resume(cut, { ...given, takeOver: true } as {})
    return { result, session, asked, records: yield* journalOf("s") }
  }).pipe(Effect.provide([Adapter.layer(modelOf(replies, asked, output)), prefixed("s", before)])) as Effect.Effect<
    Ran,
    unknown
  >
}

/**
 * Kills a run at each of its records, and resumes it. The model gets the requests that the uncut run made from there on,
 * and the run comes to the same end. Returns the uncut run.
 */
export const killedAtEach = (
  replies: Replies,
  given: () => Given,
  check?: (ran: Ran, before: number) => void,
  output?: Adapter.Service["output"]
) =>
  Effect.gen(function*() {
    const whole = yield* kept(replies, given(), undefined, output)
    const all = whole.asked.map(shownOf)
    for (let length = 2; length < whole.records.length; length++) {
      const before = whole.records.slice(0, length)
      const where = `killed behind record ${length}, ${before.at(-1)?._tag}`
      const ran = yield* resumed(replies, given(), before, output)
      const again = ran.asked.map(shownOf)
      assert.deepStrictEqual(again, again.length === 0 ? [] : all.slice(-again.length), where)
      assert.deepStrictEqual(ran.result, whole.result, where)
      assert.deepStrictEqual(ran.session, whole.session, where)
      check?.(ran, length)
    }
    return whole
  })
