/** One account for a parent and its twenty sub-agents, and words into a run, on Heddle. */
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as Stream from "effect/Stream"
import { Adapter, Budget, Chat, Inbox, Pricing, Session, Tool } from "heddle"
import { OpenAiChat } from "heddle/adapters"
import { SessionStore } from "heddle/sql"
import type { Agents, Speaking } from "../governed.ts"

const model = (baseUrl: string) =>
  OpenAiChat.layer({ model: "m", apiKey: Redacted.make("k"), baseUrl }).pipe(Layer.provide(FetchHttpClient.layer))

const toolOf = (look: () => Promise<string>) =>
  Tool.make("look", { parameters: {}, idempotent: true, handler: () => Effect.promise(look) })

export const agents: Agents = async ({ ended, errand, limit, url }) => {
  const named = Adapter.map((adapter) => ({ ...adapter, provider: "m" })).pipe(Layer.provide(model(url)))
  const prices = Pricing.layer({ m: { models: { m: { cost: { input: 50, output: 50 } } } } })
  const agent = Tool.fromChat("agent", {
    parameters: {},
    chat: () =>
      Chat.stream("Hi", { tools: [toolOf(async () => "a loom")], maxTokens: 10 }).pipe(
        Stream.tap((event) =>
          Effect.sync(() => {
            if (event._tag === "ChatCompleted") {
              ended(event.result.outcome._tag === "Completed" ? "answered" : "ended")
            }
          })
        )
      )
  })
  const { outcome } = await Effect.runPromise(
    Chat.run(errand, {
      tools: [agent],
      maxConcurrency: 20,
      maxTokens: 10,
      budget: Budget.make({ money: limit }, { estimate: () => 10 })
    }).pipe(Effect.provide([named, prices]))
  )
  return outcome._tag === "Completed"
}

export const speaking: Speaking = (url, look) => {
  const inbox = Inbox.make()
  const stopping = new AbortController()
  let told = "nothing"
  return {
    say: (content) => {
      const sent = Effect.runSync(inbox.steer(content))
      void Effect.runPromise(sent.fate).then((fate) => {
        told = fate._tag === "Refused" ? `refused: ${fate.reason}` : fate._tag.toLowerCase()
      })
    },
    stop: () => stopping.abort(),
    run: () =>
      Effect.runPromise(
        Effect.provide(Chat.run("Hi", { tools: [toolOf(look)], inbox, cancel: stopping.signal }), model(url))
      ),
    told: () => told
  }
}

/** A run of a kept session, which another start goes on with. */
export const kept = (url: string, filename: string, look: () => Promise<string>) => {
  const provided = <A, E>(effect: Effect.Effect<A, E, Adapter.Adapter | Session.Store>) =>
    Effect.runPromise(Effect.provide(effect, [model(url), SessionStore.layerSqlite({ filename })]))
  const options = { tools: [toolOf(look)], takeOver: true }
  return {
    say: (content: string) => provided(Session.submit("s", content, { id: "m", mode: "steer" })),
    run: () =>
      provided(Effect.gen(function*() {
        const opened = yield* Session.open("s")
        if (opened.interrupted !== undefined) yield* Session.resume(opened, options)
        else yield* Session.keep(opened, (session) => Session.reply(session, "Hi", options))
        return Session.receipt(yield* Session.open("s"), "m")?.became
      }))
  }
}
