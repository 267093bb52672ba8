/** Claims of a served session: a reader that has the end of a run can go on at once, also after its server was killed. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { type Journal, Session, Tool } from "heddle"
import { Agent, Server } from "heddle/server"
import { Script } from "heddle/testing"

const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
const look = Tool.make("look", { parameters: {}, handler: () => Effect.succeed("seen") })

const script = {
  "a run that completes": [
    [Script.toolCall("c0", "look"), Script.finish("tool_calls")],
    [Script.text("Done"), Script.finish("stop")]
  ],
  "a run that waits for an approval": [[Script.toolCall("c0", "pay"), Script.finish("tool_calls")]]
}

describe("the claim of a served session", () => {
  for (const [what, turns] of Object.entries(script)) {
    it.live(`O-25: goes back before a reader gets the end of its run: ${what}`, () =>
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
})
