/**
 * Agents whose steps choose their adapter, and whose adapter has a second candidate: behind a server, in a cluster, and in
 * the next process behind a kill.
 */
import { HttpAgent } from "@ag-ui/client"
import { assert, describe, it } from "@effect/vitest"
import * as TestRunner from "effect/cluster/TestRunner"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, type Rule, Session } from "heddle"
import { Cluster, SessionClient } from "heddle/cluster"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { look, modelOf } from "../support/ruled.ts"
import { journalOf, prefixed } from "../support/survivor.ts"
import { find } from "../support/until.ts"
import { chatWith, protocols, settled } from "../ui/support/page.ts"
import { eventsOf, serve, textsIn } from "./support/site.ts"

const at = "/agents/guide/sessions"

/** Looks in the first step, which a small model takes, and answers in the second, by a model whose first provider is down. */
const options = {
  tools: [look],
  prepareStep: ({ stepIndex }: Rule.Place) => stepIndex === 0 ? {} : { adapter: "strong", model: "large", tools: [] }
}
const guide = Agent.make({ name: "guide", description: "Looks and answers", run: () => Effect.succeed(options) })

const secret = "the key sk-1 is over its limit"

/** The models, and the names of those that were asked, with what they were asked for. */
const models = () => {
  const asked: Array<string> = []
  const layerOf = (name: string, service: Adapter.Service) =>
    Adapter.layer({
      ...service,
      stream: (request) => {
        asked.push([name, request.model, request.tools.length].join())
        return service.stream(request)
      }
    })
  const good = modelOf(({ messages }) =>
    messages.some(({ role }) => role === "tool")
      ? [Script.text("It is here."), Script.finish("stop")]
      : [Script.toolCall("c0", "look"), Script.finish("tool_calls")], [])
  const down: Adapter.Service = {
    stream: () => Stream.fail(new Adapter.AdapterError({ reason: "rate_limited", detail: secret }))
  }
  const strong = Adapter.fallback([{ layer: layerOf("first", down), name: "first" }, {
    layer: layerOf("second", good),
    name: "second"
  }])
  return { asked, model: Adapter.named({ fast: layerOf("fast", good), strong }) }
}

const all = ["fast,,1", "first,large,0", "second,,0"]

const switched = { from: "first", to: "second", code: "rate_limited" }

describe("an agent whose steps choose among adapters", () => {
  it.live("R-516: behind a server, a run has the changes of its steps, and its readers get the switch without its detail", () =>
    Effect.gen(function*() {
      const { asked, model } = models()
      const site = yield* serve([guide], model)
      const reader = yield* Effect.promise(() => site.open("POST", `${at}/s1/messages`, { content: "Where?" }))
      const events = eventsOf(yield* Effect.promise(reader.end))
      assert.deepStrictEqual(asked, all)
      assert.deepStrictEqual(textsIn(events).filter((text) => text !== ""), ["It is here."])
      const seen = events.flatMap((event) =>
        event._tag === "ModelSwitched" ? [{ from: event.from, to: event.to, code: event.error.code }] : []
      )
      assert.deepStrictEqual(seen, [switched])
      assert.notInclude(JSON.stringify(events), "sk-1")
    }))

  for (const protocol of protocols) {
    it.live(`R-516: behind a server, a page of ai ${protocol} shows the answer of the second candidate once, and no switch`, () =>
      Effect.gen(function*() {
        const { asked, model } = models()
        const site = yield* serve([guide], model, { protocol })
        const page = chatWith(protocol, site.url + at)
        yield* Effect.promise(() => page.sendMessage({ text: "Where?" }))
        yield* Effect.promise(() => settled(page))
        const parts: ReadonlyArray<any> = page.messages.flatMap((message: any) => message.parts)
        assert.deepStrictEqual(parts.flatMap(({ text, type }) => type === "text" ? [text] : []), [
          "Where?",
          "It is here."
        ])
        assert.notInclude(JSON.stringify(page.messages), "heddle-model")
        assert.deepStrictEqual(asked, all)
      }))
  }

  it.live("R-516: behind a server, a client of AG-UI gets the switch as a custom event", () =>
    Effect.gen(function*() {
      const { asked, model } = models()
      const site = yield* serve([guide], model)
      const client = new HttpAgent({ url: `${site.url}/agui/guide`, threadId: "s1" })
      client.addMessage({ id: "u1", role: "user", content: "Where?" })
      const seen: Array<unknown> = []
      yield* Effect.promise(() =>
        client.runAgent({ runId: "r1" }, {
          onCustomEvent: ({ event }) => {
            if (event.name === "heddle.model") seen.push(event.value)
          }
        })
      )
      assert.deepStrictEqual([asked, seen], [all, [switched]])
    }))

  it.live("R-516: in a cluster, a run has the changes of its steps and the second candidate's answer", () =>
    Effect.gen(function*() {
      const { asked, model } = models()
      const elements = yield* Effect.gen(function*() {
        const client = yield* SessionClient.SessionClient
        return yield* Stream.runCollect(client.follow("ann", client.reply("ann", "Where?")))
      }).pipe(Effect.provide(
        Layer.mergeAll(Cluster.layer({ run: () => options }), SessionClient.layer).pipe(
          Layer.provide(model),
          Layer.provideMerge(Session.Store.layerMemory),
          Layer.provideMerge(TestRunner.layer)
        )
      ))
      const last = elements.at(-1)
      assert.strictEqual(last?._tag === "Reported" ? last.report.outputText : "no report", "It is here.")
      const seen = elements.flatMap((element) => element._tag === "ModelSwitched" ? [[element.from, element.to]] : [])
      assert.deepStrictEqual([asked, seen], [all, [["first", "second"]]])
    }))

  it.live("G56, G93: a server started behind a kill at any record asks as the uncut run would", () =>
    Effect.gen(function*() {
      const { asked, model } = models()
      const store = Layer.succeed(Session.Store, yield* Effect.provide(Session.Store, Session.Store.layerMemory))
      const first = yield* serve([guide], model, { store })
      const reader = yield* Effect.promise(() => first.open("POST", `${at}/s1/messages`, { content: "Where?" }))
      yield* Effect.promise(reader.end)
      const key = (yield* Effect.provide(Stream.runCollect(Session.list()), store))[0]!.id
      const records = yield* Effect.provide(journalOf(key), store)
      const begun = records.findIndex(({ _tag }) => _tag === "RunStarted") + 1
      const ended = records.findIndex(({ _tag }) => _tag === "RunEnded")
      assert.isAbove(begun, 0)
      for (let length = begun; length <= ended; length++) {
        asked.length = 0
        const cut = Layer.succeed(
          Session.Store,
          yield* Effect.provide(Session.Store, prefixed(key, records.slice(0, length)))
        )
        const next = yield* serve([guide], model, { store: cut })
        const whole = yield* find(
          `the end of the run cut behind record ${length}`,
          Effect.map(Effect.promise(() => next.ask("GET", `${at}/s1`)), ({ text }) => {
            const { messages, status } = JSON.parse(text)
            return status === "completed" ? JSON.stringify(messages) : undefined
          })
        )
        assert.include(whole, "It is here.")
        assert.deepStrictEqual(asked, asked.length === 0 ? [] : all.slice(-asked.length), `cut behind record ${length}`)
      }
    }))
})
