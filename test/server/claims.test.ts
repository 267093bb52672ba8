/** Claims of a served session: a reader that has the end of a run can go on at once, also after its server was killed. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, type Journal, Message, Session, Tool } from "heddle"
import { Agent, Server } from "heddle/server"
import { Script } from "heddle/testing"
import { obedient } from "./support/hostile.ts"
import { serve } from "./support/site.ts"

const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
const look = Tool.make("look", { parameters: {}, handler: () => Effect.succeed("seen") })

const script = {
  "a run that completes": [
    [Script.toolCall("c0", "look"), Script.finish("tool_calls")],
    [Script.text("Done"), Script.finish("stop")]
  ],
  "a run that waits for an approval": [[Script.toolCall("c0", "pay"), Script.finish("tool_calls")]]
}

/** What a client sends at once: the message before it, the request, and what the response has at last. */
type Next = readonly [
  content: string,
  request: (id: string, waiting: string) => readonly [method: string, path: string, body?: unknown],
  text: string
]

describe("the claim of a served session", () => {
  for (const [what, turns] of Object.entries(script)) {
    it.live(`O-25: the server releases the claim before a reader gets the end of its run: ${what}`, () =>
      Effect.gen(function*() {
        let store: Journal.Service | undefined
        // A store that takes its time to give a claim back.
        const slow = Layer.effect(
          Session.Store,
          Effect.map(Session.Store, (base) => {
            store = base
            return Session.Store.of({
              ...base,
              release: (...args) => Effect.delay(base.release(...args), "50 millis")
            })
          })
        ).pipe(Layer.provide(Session.Store.layerMemory))
        const shop = Agent.make({ name: "shop", description: "", run: () => Effect.succeed({ tools: [pay, look] }) })
        const app = Server.layer({ agents: [shop], authorize: Server.allowLoopback }).pipe(
          Layer.provide([Script.layer(turns), slow])
        )
        const { handler } = yield* Effect.acquireRelease(
          Effect.sync(() => Server.toWebHandler(app)),
          ({ dispose }) => Effect.promise(() => dispose())
        )
        const response = yield* Effect.promise(() =>
          handler(
            new Request("http://localhost/agents/shop/sessions/s/messages", {
              method: "POST",
              headers: { "content-type": "application/json" },
              body: JSON.stringify({ content: "go" })
            })
          )
        )
        const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader()
        let text = ""
        const held = new Map<string, boolean>()
        for (;;) {
          const { done, value } = yield* Effect.promise(() => reader.read())
          if (done) break
          text += value
          const isHeld = (yield* store!.claimOf("local:s")) !== undefined
          for (const tag of ["StepCompleted", "ChatCompleted"]) {
            if (!held.has(tag) && text.includes(`"_tag":"${tag}"`)) held.set(tag, isHeld)
          }
        }
        assert.deepStrictEqual(Array.from(held), [["StepCompleted", true], ["ChatCompleted", false]])
      }).pipe(Effect.scoped))
  }

  it.live(
    "O-25: a client that reads the end early, elsewhere or as raw events, is not refused when it writes at once",
    () =>
      Effect.gen(function*() {
        const base = Context.get(yield* Layer.build(Session.Store.layerMemory), Session.Store)
        let gate = Deferred.makeUnsafe<void>()
        const store = Layer.succeed(Session.Store, {
          ...base,
          release: (...args) => Effect.andThen(Deferred.await(gate), base.release(...args))
        })
        const agents = [
          Agent.make({ name: "helper", description: "", run: () => Effect.succeed({ tools: [pay] }) })
        ]
        const refused = { hold: true }
        const model = Layer.effect(
          Adapter.Adapter,
          Effect.map(Adapter.Adapter, (adapter) => ({
            ...adapter,
            stream: (request: Adapter.Request) =>
              refused.hold && Message.text(request.messages.at(-1)!) === "fail"
                ? Stream.fail(new Adapter.AdapterError({ reason: "invalid_request" }))
                : adapter.stream(request)
          }))
        ).pipe(Layer.provide(obedient))
        const here = yield* serve(agents, model, { store, raw: true, joinMillis: 0, bounds: { writes: 1_000 } })
        const elsewhere = yield* serve(agents, model, { store, raw: true, joinMillis: 0, bounds: { writes: 1_000 } })
        const at = "/agents/helper/sessions"
        const paid = JSON.stringify([{ id: "c0", name: "pay" }])
        const next = {
          "a message": ["Hi", (id: string) => ["POST", `${at}/${id}/messages`, { content: "Next" }], "Heard: Next"],
          "an answer": [
            paid,
            (
              id: string,
              waiting: string
            ) => ["POST", `${at}/${id}/answers`, { answers: [{ id: waiting, approve: true }] }],
            "paid"
          ],
          "a retry": ["fail", (id: string) => ["POST", `${at}/${id}/resume`], "Heard: fail"],
          "a stop": ["Hi", (id: string) => ["POST", `${at}/${id}/stop`], "accepted"],
          "a removal": ["Hi", (id: string) => ["DELETE", `${at}/${id}`], ""]
        } satisfies Readonly<Record<string, Next>>
        let count = 0
        for (const [name, [content, request, text]] of Object.entries<Next>(next)) {
          for (const [reads, asked] of [["raw", here], ["elsewhere", here], ["elsewhere", elsewhere]] as const) {
            const id = `s${count++}`
            const where = `${name} of one who reads ${reads}, ${asked === here ? "here" : "elsewhere"}`
            refused.hold = true
            gate = Deferred.makeUnsafe()
            // The session exists before it is read.
            Deferred.doneUnsafe(gate, Exit.void)
            yield* Effect.promise(() => here.ask("POST", `${at}/${id}/messages`, { content: "First" }))
            gate = Deferred.makeUnsafe()
            const reader = yield* Effect.promise(() =>
              (reads === "raw" ? here : elsewhere).open(
                "GET",
                `${at}/${id}/events${reads === "raw" ? "?raw=true" : ""}`
              )
            )
            const local = yield* Effect.promise(() => here.open("GET", `${at}/${id}/events`))
            yield* Effect.promise(() => here.ask("POST", `${at}/${id}/messages?wait=false`, { content }))
            yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ChatCompleted"))
            assert.isDefined(yield* base.claimOf(`local:${id}`), where)
            const { suspensions } = JSON.parse((yield* Effect.promise(() => asked.ask("GET", `${at}/${id}`))).text)
            const [method, path, body] = request(id, suspensions[0]?.id)
            refused.hold = false
            const answering = yield* Effect.forkChild(Effect.promise(() => asked.ask(method, path, body)))
            // The request may be answered before or behind the claim: it is under way while the claim is held.
            yield* Effect.sleep(50)
            yield* Deferred.succeed(gate, undefined)
            const answered = yield* Fiber.join(answering)
            assert.include([200, 204], answered.status, `${where}: ${answered.text}`)
            assert.include(answered.text, text, `${where}: ${answered.text}`)
            reader.leave()
            // A reader of the log has both ends, also where the session is removed before the claim is back.
            if (name === "a removal" && asked === here) {
              const sent = yield* Effect.promise(local.end)
              assert.strictEqual(sent.filter(({ data }) => data._tag === "ChatCompleted").length, 1, where)
            }
            local.leave()
          }
        }
      }),
    60_000
  )
})
