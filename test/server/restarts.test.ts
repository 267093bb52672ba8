/** A run that its next owner resumes: readers have the second start of a sub-agent live, as the journal has it. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Chat, type Event, Session, Tool } from "heddle"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { foldOf } from "../studio/support/told.ts"
import { until } from "../support/until.ts"
import { asking, eventsOf, serve, type Site } from "./support/site.ts"

const at = "/agents/helper/sessions"

/** The starts of calls in events, each with its attempt. */
const startsIn = (events: ReadonlyArray<Event.PublicEvent>, owner = ""): ReadonlyArray<unknown> =>
  events.flatMap((event) => {
    if (event._tag === "ToolProgress" && event.nested !== undefined) return startsIn([event.nested], `${event.id}/`)
    const isStart = event._tag === "ToolExecutionStarted" && event.replayed !== true
    return isStart ? [[owner + event.id, event.attempt ?? 1]] : []
  })

/** The number of attempts that Studio shows of each call. */
const attemptsIn = (events: ReadonlyArray<Event.PublicEvent>) =>
  Array.from(foldOf(events).calls, ([path, { attempts }]) => [path, attempts.length])

describe("a run that its next owner resumes", () => {
  it.live("V-07: a sub-agent and a repeated call start again in the live events as in the journal", () =>
    Effect.gen(function*() {
      const store = yield* Effect.map(
        Layer.build(Session.Store.layerMemory),
        (context) => Context.get(context, Session.Store)
      )
      const ready = yield* Deferred.make<void>()
      const wait = Tool.make("wait", {
        parameters: {},
        readOnly: true,
        handler: (_, { attempt }) => attempt === 1 ? Effect.never : Effect.as(Deferred.await(ready), "waited")
      })
      const digger = Tool.fromChat("digger", { parameters: {}, chat: () => Chat.stream("dig", { tools: [wait] }) })
      const agents = [
        Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [digger, wait] }) })
      ]
      const calls = (name: string, id: string) => [Script.toolCall(id, name), Script.finish("tool_calls")]
      const done = [Script.text("Done."), Script.finish("stop")]
      const toldBy = (site: Site) =>
        Effect.map(asking(site)("GET", `${at}/s1/runs`), ({ body }) => {
          const { runs = [] } = body as { runs?: ReadonlyArray<{ events: ReadonlyArray<Event.PublicEvent> }> }
          return runs.flatMap(({ events }) => events)
        })
      const given = { store: Layer.succeed(Session.Store, store) }
      yield* Effect.gen(function*() {
        const both = [Script.toolCall("d", "digger"), Script.toolCall("w", "wait"), Script.finish("tool_calls")]
        const site = yield* serve(agents, Script.layer([both, calls("wait", "i")]), given)
        yield* Effect.promise(() => site.ask("POST", `${at}/s1/messages?wait=false`, { content: "go" }))
        yield* until("the starts of all calls", toldBy(site), (events) => startsIn(events).length === 3)
      }).pipe(Effect.scoped)
      yield* Effect.provideService(Session.revoke("local:s1"), Session.Store, store)
      const site = yield* serve(agents, Script.layer([done, done]), given)
      const reader = yield* Effect.promise(() => site.open("GET", `${at}/s1/events`))
      yield* Deferred.succeed(ready, undefined)
      const live = eventsOf(yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ChatCompleted")))
      const told = yield* toldBy(site)
      const again = [["d", 1], ["w", 1], ["d/i", 1], ["d", 2], ["w", 2], ["d/i", 2]]
      assert.sameDeepMembers([...startsIn(live)], again)
      assert.sameDeepMembers([...startsIn(told)], again)
      assert.sameDeepMembers(attemptsIn(live), [["d", 2], ["w", 2], ["d/i", 2]])
      assert.sameDeepMembers(attemptsIn(told), attemptsIn(live))
    }).pipe(Effect.scoped))
})
