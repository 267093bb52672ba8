/** Pages and other clients that ask again: what never arrived is sent, what runs is followed, what failed is tried again. */
import { HttpAgent } from "@ag-ui/client"
import { assert, describe, it } from "@effect/vitest"
import type { UIMessage } from "ai"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import { Session, Tool } from "heddle"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { until } from "../support/until.ts"
import { chatWith, protocols, settled, stepTexts, toolParts, withoutDiscarded } from "../ui/support/page.ts"
import { codeOf } from "./support/hostile.ts"
import { eventsOf, serve, type Site } from "./support/site.ts"
import { told } from "./support/told.ts"

const { finish, preflightError, streamError, text, toolCall } = Script

const at = "/agents/helper/sessions"

const quick = Tool.make("quick", { parameters: {}, handler: () => Effect.succeed("ok") })

const helper = (tools: ReadonlyArray<Tool.Any> = [quick]) =>
  Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools }) })

/** What a page shows: the texts of the steps and the calls of each message, and the ids of these. */
const shown = (messages: ReadonlyArray<UIMessage>) =>
  messages.map((whole) => {
    const message = withoutDiscarded(whole)
    const calls = toolParts(message).map(({ state, toolCallId }) => `${toolCallId}: ${state}`)
    const texts = whole.role === "user"
      ? whole.parts.flatMap((part) => part.type === "text" ? [part.text] : [])
      : stepTexts(message)
    return [whole.role, ...texts.filter((said) => said !== ""), ...calls]
  })

const loaded = async (site: Site): Promise<ReadonlyArray<UIMessage>> =>
  JSON.parse((await site.ask("GET", `${at}/s1`)).text).messages

/** Requires that a page has what one has that is loaded now. */
const isWhole = async (site: Site, page: any) => {
  assert.isUndefined(page.error)
  assert.deepStrictEqual(shown(page.messages), shown(await loaded(site)))
}

/** Waits until something is so on a page. */
const seen = async (isSo: () => boolean): Promise<void> => {
  while (!isSo()) await new Promise((resolve) => setImmediate(resolve))
}

/** Answers whatever a page asks with a broken connection, as long as `isOffline`. */
const line = () => {
  const state = { isOffline: false, cutAfter: Infinity }
  const send: typeof fetch = async (...request) => {
    if (state.isOffline) throw new TypeError("fetch failed")
    const response = await fetch(...request)
    const { cutAfter } = state
    if (cutAfter === Infinity || response.body === null) return response
    let left = cutAfter
    const decoder = new TextDecoder()
    const cut = new TransformStream<Uint8Array, Uint8Array>({
      transform: (chunk, controller) => {
        for (const event of decoder.decode(chunk, { stream: true }).split(/(?<=\n\n)/)) {
          if (event.startsWith("data: ") && left-- === 0) return controller.error(new TypeError("network error"))
          controller.enqueue(new TextEncoder().encode(event))
        }
      }
    })
    return new Response(response.body.pipeThrough(cut), response)
  }
  return Object.assign(state, { send })
}

/** The two ways in which a page of the AI SDK asks again. */
const ways = {
  "sendMessage()": (page: any): Promise<void> => page.sendMessage(),
  "regenerate()": (page: any): Promise<void> => page.regenerate()
}

const failing = [
  [text("I look."), toolCall("c1", "quick"), finish("tool_calls")],
  [text("Wro"), streamError("network_error")],
  [text("Bad"), streamError("rate_limited")],
  [text("Right."), finish("stop")],
  [text("Bye."), finish("stop")]
]

describe("a page that asks again", () => {
  for (const protocol of protocols) {
    const page = (site: Site, send: typeof fetch, messages: ReadonlyArray<UIMessage> = []) =>
      chatWith(protocol, site.url + at, { fetch: send, messages })

    it.live(`O-29: ai ${protocol}: a reply whose first run could not start is one message for a page that resumes without its messages`, () =>
      Effect.gen(function*() {
        const [began, gate] = [yield* Deferred.make<void>(), yield* Deferred.make<void>()]
        const waiting = Effect.andThen(Deferred.succeed(began, undefined), Deferred.await(gate))
        const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.as(waiting, "waited") })
        const site = yield* serve(
          [helper([wait])],
          Script.layer([
            [preflightError("rate_limited")],
            [text("One."), toolCall("c1", "wait"), finish("tool_calls")],
            [text("Two."), finish("stop")],
            [text("Bye."), finish("stop")]
          ]),
          { joinMillis: 0, protocol }
        )
        yield* Effect.promise(async () => {
          const chat = page(site, fetch)
          void chat.sendMessage({ text: "Go" })
          await Effect.runPromise(Deferred.await(began))
          await seen(() => JSON.stringify(chat.messages).includes("One."))
          const ids = chat.messages.map(({ id }: UIMessage) => id)
          // The connection is lost without a word, and the page reads the stream again.
          const other = page(site, fetch, structuredClone(chat.messages))
          const resumed = other.resumeStream()
          await seen(() => other.status === "streaming")
          await Effect.runPromise(Deferred.succeed(gate, undefined))
          await resumed
          await settled(other)
          await settled(chat)
          for (const each of [other, chat]) {
            assert.deepStrictEqual(shown(each.messages), [["user", "Go"], [
              "assistant",
              "One.",
              "Two.",
              "c1: output-available"
            ]])
            assert.deepStrictEqual(each.messages.map(({ id }: UIMessage) => id), ids)
            await isWhole(site, each)
          }
          assert.deepStrictEqual((await loaded(site)).map(({ id }) => id), ids)
          await other.sendMessage({ text: "Thanks" })
          await settled(other)
          await isWhole(site, other)
          assert.deepStrictEqual(
            (await loaded(site)).map(({ id }) => id),
            other.messages.map(({ id }: UIMessage) => id)
          )
        })
      }))

    for (const [name, ask] of Object.entries(ways)) {
      it.live(`O-29, O-30: ai ${protocol}, ${name}: a message that never arrived is sent once`, () =>
        Effect.gen(function*() {
          const site = yield* serve(
            [helper()],
            Script.layer([[text("Hello."), finish("stop")], [text("Bye."), finish("stop")]]),
            { protocol }
          )
          yield* Effect.promise(async () => {
            const connection = line()
            const chat = page(site, connection.send)
            connection.isOffline = true
            await chat.sendMessage({ text: "Hi" })
            assert.strictEqual(chat.status, "error")
            await ask(chat)
            assert.strictEqual(chat.status, "error")
            connection.isOffline = false
            await ask(chat)
            await settled(chat)
            await isWhole(site, chat)
            assert.deepStrictEqual(shown(chat.messages), [["user", "Hi"], ["assistant", "Hello."]])
            // What is kept over a reload, too, is sent under its id.
            const kept = { id: "kept", role: "user", parts: [{ type: "text", text: "Still there?" }] } as UIMessage
            const again = page(site, fetch, [...await loaded(site), kept])
            await ask(again)
            await settled(again)
            await isWhole(site, again)
            assert.strictEqual(again.messages[2].id, "kept")
          })
        }))

      it.live(`O-29, O-31: ai ${protocol}, ${name}: a failed run is tried again, each try shows its error, and the next run works as usual`, () =>
        Effect.gen(function*() {
          const site = yield* serve([helper()], Script.layer(failing), { protocol })
          yield* Effect.promise(async () => {
            const chat = page(site, fetch)
            await chat.sendMessage({ text: "Look" })
            await settled(chat)
            assert.match(chat.error?.message, /^The connection to the model was lost/)
            await ask(chat)
            await settled(chat)
            assert.match(chat.error?.message, /too many requests/)
            await ask(chat)
            await settled(chat)
            const whole = [["user", "Look"], ["assistant", "I look.", "Wro", "Bad", "Right.", "c1: output-available"]]
            assert.deepStrictEqual(shown(chat.messages), whole)
            await isWhole(site, chat)
            await chat.sendMessage({ text: "Thanks" })
            await settled(chat)
            assert.deepStrictEqual(shown(chat.messages), [...whole, ["user", "Thanks"], ["assistant", "Bye."]])
            await isWhole(site, chat)
          })
        }))

      it.live(`O-29: ai ${protocol}, ${name}: a run that failed before its first text is tried again, also after a reload`, () =>
        Effect.gen(function*() {
          const refused = [preflightError("authentication_failed")]
          const site = yield* serve(
            [helper()],
            Script.layer([refused, refused, [text("Hello."), finish("stop")]]),
            { protocol }
          )
          yield* Effect.promise(async () => {
            const chat = page(site, fetch)
            await chat.sendMessage({ text: "Hi" })
            await settled(chat)
            assert.include(chat.error?.message, "refused")
            const again = page(site, fetch, await loaded(site))
            await ask(again)
            await settled(again)
            assert.strictEqual(again.error?.message, chat.error?.message)
            await ask(again)
            await settled(again)
            assert.deepStrictEqual(shown(again.messages), [["user", "Hi"], ["assistant", "Hello."]])
            await isWhole(site, again)
          })
        }))

      it.live(`O-29: ai ${protocol}, ${name}: a reply whose connection broke anywhere is complete after the page asks again`, () =>
        Effect.gen(function*() {
          const gate = yield* Deferred.make<void>()
          const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.as(Deferred.await(gate), "waited") })
          const site = yield* serve(
            [helper([wait, quick])],
            Script.layer([
              [text("One "), text("two."), toolCall("c1", "quick"), finish("tool_calls")],
              [text("Three "), toolCall("c2", "wait"), finish("tool_calls")],
              [text("four."), finish("stop")]
            ]),
            { joinMillis: 0, protocol }
          )
          yield* Effect.promise(async () => {
            const connection = line()
            const chat = page(site, connection.send)
            const whole = [["user", "Count"], [
              "assistant",
              "One two.",
              "Three ",
              "four.",
              "c1: output-available",
              "c2: output-available"
            ]]
            for (const cutAfter of [1, 6, 9, 12, 13]) {
              connection.cutAfter = cutAfter
              if (cutAfter === 1) await chat.sendMessage({ text: "Count" })
              else await ask(chat)
              await settled(chat)
              assert.strictEqual(chat.status, "error", `${cutAfter}`)
            }
            connection.cutAfter = Infinity
            const last = ask(chat)
            while (chat.status !== "streaming") await new Promise((resolve) => setImmediate(resolve))
            await Effect.runPromise(Deferred.succeed(gate, undefined))
            await last
            await settled(chat)
            assert.deepStrictEqual(shown(chat.messages), whole)
            await isWhole(site, chat)
          })
        }))
    }
  }

  const ui = (messages: ReadonlyArray<unknown>, more: object = {}) => ({
    id: "s1",
    trigger: "submit-message",
    messages,
    ...more
  })
  const user = (id: string, said: string) => ({ id, role: "user", parts: [{ type: "text", text: said }] })

  it.live("O-29: a complete reply is not tried again: another reply is unsupported, and the same message returns the reply", () =>
    Effect.gen(function*() {
      const site = yield* serve(
        [helper()],
        Script.layer([[text("Hello."), finish("stop")], [text("Bye."), finish("stop")]])
      )
      yield* Effect.promise(async () => {
        const post = (body: unknown) => site.ask("POST", at, body)
        assert.strictEqual((await post(ui([user("u1", "Hi")]))).status, 200)
        const records = async () => (await site.ask("GET", `${at}/s1`)).text
        const before = await records()
        const regenerate = { trigger: "regenerate-message" }
        const answered = await post(ui([user("u1", "Hi")], regenerate))
        assert.deepStrictEqual([answered.status, codeOf(answered)], [400, "unsupported"])
        assert.include(answered.text, "whole")
        const same = await post(ui([user("u1", "Hi")], { messageId: "u1" }))
        assert.deepStrictEqual([same.status, same.text.includes("Hello.")], [200, true])
        for (const edited of [ui([user("u1", "Ho")], { messageId: "u1" }), ui([user("u1", "Ho")], regenerate)]) {
          const refused = await post(edited)
          assert.deepStrictEqual([refused.status, codeOf(refused)], [400, "unsupported"])
          assert.include(refused.text, "edited")
        }
        const [, reply] = await loaded(site)
        const again = await post(ui([user("u1", "Hi"), reply], { messageId: reply!.id }))
        assert.deepStrictEqual([again.status, codeOf(again)], [409, "nothing_to_retry"])
        assert.strictEqual(await records(), before)
        // An earlier reply is not the one that failed.
        assert.include((await post(ui([user("u2", "Bye")]))).text, "Bye.")
        const failed = await post(ui([user("u3", "More")]))
        assert.include(failed.text, "\"type\":\"error\"")
        const earlier = await post(ui([user("u1", "Hi")], regenerate))
        assert.deepStrictEqual([earlier.status, codeOf(earlier)], [400, "unsupported"])
      })
    }))

  it.live("O-29: a run is not tried again while a call waits", () =>
    Effect.gen(function*() {
      const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
      const site = yield* serve([helper([pay])], Script.layer([[toolCall("p", "pay"), finish("tool_calls")]]))
      yield* Effect.promise(async () => {
        await site.ask("POST", at, ui([user("u1", "Pay")]))
        const [, reply] = await loaded(site)
        for (
          const body of [
            ui([user("u1", "Pay"), reply], { messageId: reply!.id }),
            ui([user("u1", "Pay")], { trigger: "regenerate-message" })
          ]
        ) {
          const refused = await site.ask("POST", at, body)
          assert.deepStrictEqual([refused.status, codeOf(refused)], [409, "waits_for_answers"])
        }
        const same = await site.ask("POST", at, ui([user("u1", "Pay")], { messageId: "u1" }))
        assert.include(same.text, "tool-approval-request")
      })
    }))
})

describe("a retry", () => {
  it.live("O-31: an accepted retry is in the journal, so that the process may end", () =>
    Effect.gen(function*() {
      const base = Context.get(yield* Layer.build(Session.Store.layerMemory), Session.Store)
      const [asked, gate] = [Deferred.makeUnsafe<void>(), Deferred.makeUnsafe<void>()]
      let [isSlow, reads] = [false, 0]
      const store = Layer.succeed(Session.Store, {
        ...base,
        read: (id, after) => (reads++, base.read(id, after)),
        append: (id, version, records, options) =>
          isSlow && records.some(({ _tag }) => _tag === "RunStarted")
            ? Effect.andThen(
              Effect.andThen(Deferred.succeed(asked, undefined), Deferred.await(gate)),
              base.append(id, version, records, options)
            )
            : base.append(id, version, records, options)
      })
      const script = [[preflightError("invalid_request")], [text("Hello."), finish("stop")]]
      const site = yield* serve([helper()], Script.layer(script), { store })
      yield* Effect.promise(() => site.ask("POST", `${at}/s1/messages`, { content: "Hi", id: "u1" }))
      isSlow = true
      const accepted = yield* Effect.forkChild(Effect.promise(() => site.ask("POST", `${at}/s1/resume?wait=false`)))
      yield* Deferred.await(asked)
      // The server looks at the journal for the request, again and again.
      const from = reads
      yield* until(
        "looks at the journal",
        Effect.sync(() => reads >= from + 5 || accepted.pollUnsafe() !== undefined),
        (isOver) => isOver
      )
      assert.isUndefined(accepted.pollUnsafe())
      yield* Deferred.succeed(gate, undefined)
      assert.strictEqual((yield* Fiber.join(accepted)).status, 202)
    }))

  it.live("O-31: a retry that fails again ends with its error, over each wire and however often", () =>
    Effect.gen(function*() {
      const reasons = [
        "authentication_failed",
        "invalid_request",
        "rate_limited",
        "network_error",
        "provider_unavailable"
      ] as const
      const site = yield* serve(
        [helper()],
        Script.layer([[preflightError("invalid_request")], ...reasons.map((reason) => [preflightError(reason)]), [
          text("Hello."),
          finish("stop")
        ]])
      )
      yield* Effect.promise(async () => {
        await site.ask("POST", `${at}/s1/messages`, { content: "Hi", id: "u1" })
        for (const reason of reasons) {
          const reader = await site.open("POST", `${at}/s1/resume`)
          const last = eventsOf(await reader.end()).at(-1)
          assert.strictEqual(last?._tag === "ChatCompleted" ? last.outcome.error?.code : last?._tag, reason)
          const { error, status } = JSON.parse((await site.ask("GET", `${at}/s1`)).text)
          assert.deepStrictEqual([status, error], ["error", undefined])
        }
        assert.include((await site.ask("POST", `${at}/s1/resume`)).text, "Hello.")
      })
    }))

  it.live("O-31: concurrent retries at two servers are one run", () =>
    Effect.gen(function*() {
      const store = Layer.succeedContext(yield* Layer.build(Session.Store.layerMemory))
      const { model, opened, say } = told()
      const bounds = { streams: 100, writes: 1_000 }
      const flaky = Script.layer([[preflightError("invalid_request")]])
      const first = yield* serve([helper()], flaky, { store, bounds })
      const [here, there] = [
        yield* serve([helper()], model, { store, bounds }),
        yield* serve([helper()], model, { store, bounds })
      ]
      // The response of the run that failed has not been read to its end: its worker may have the claim still.
      yield* Effect.promise(() => first.ask("POST", `${at}/s1/messages?wait=false`, { content: "Hi", id: "u1" }))
      yield* Effect.promise(async () => {
        while (JSON.parse((await first.ask("GET", `${at}/s1`)).text).status !== "error") {
          await new Promise((resolve) => setImmediate(resolve))
        }
      })
      const asked = yield* Effect.forkChild(Effect.all(
        [here, there, here, there].map((site, index) =>
          Effect.promise(() =>
            index < 2
              ? site.ask("POST", `${at}/s1/resume`)
              : site.ask("POST", at, {
                id: "s1",
                messageId: "u1",
                messages: [{ id: "u1", role: "user", parts: [{ type: "text", text: "Hi" }] }]
              })
          )
        ),
        { concurrency: "unbounded" }
      ))
      yield* say("Hello.", undefined)
      for (const { status, text: body } of yield* Fiber.join(asked)) {
        assert.include([200, 409], status, body)
        if (status === 200) assert.include(body, "Hello.")
      }
      assert.strictEqual(opened(), 1)
    }))

  it.live("O-31: a stream requested right after an accepted retry has the retried reply", () =>
    Effect.gen(function*() {
      const refused = [preflightError("invalid_request")]
      const site = yield* serve([helper()], Script.layer([refused, [text("Hello."), finish("stop")]]))
      yield* Effect.promise(async () => {
        await site.ask("POST", `${at}/s1/messages`, { content: "Hi", id: "u1" })
        const accepted = await site.ask("POST", `${at}/s1/resume?wait=false`)
        assert.strictEqual(accepted.status, 202)
        const stream = await site.ask("GET", `${at}/s1/stream`)
        const page = await loaded(site)
        assert.isTrue(stream.text.includes("Hello.") || JSON.stringify(page).includes("Hello."), stream.text)
      })
    }))

  it.live("O-29: an AG-UI client retries by a run with the same messages, and has each text once after failures and successes", () =>
    Effect.gen(function*() {
      const site = yield* serve([helper()], Script.layer(failing))
      yield* Effect.promise(async () => {
        const agent = new HttpAgent({ url: `${site.url}/agui/helper`, threadId: "s1" })
        agent.addMessage({ id: "u1", role: "user", content: "Look" })
        const errors: Array<string> = []
        const run = () => agent.runAgent({}, { onRunErrorEvent: ({ event }) => void errors.push(event.code ?? "") })
        await run()
        await run()
        await run()
        assert.deepStrictEqual(errors, ["network_error", "rate_limited"])
        const said = () =>
          agent.messages.flatMap(({ content, role }) => role === "assistant" || role === "user" ? [content] : [])
        assert.deepStrictEqual(said(), ["Look", "I look.", "Wro", "Bad", "Right."])
        agent.addMessage({ id: "u2", role: "user", content: "Thanks" })
        await run()
        assert.deepStrictEqual(said(), ["Look", "I look.", "Wro", "Bad", "Right.", "Thanks", "Bye."])
      })
    }))

  it.live("O-29: a live AG-UI page and a loaded AG-UI page have the same ids if the first run could not start", () =>
    Effect.gen(function*() {
      const site = yield* serve(
        [helper()],
        Script.layer([
          [preflightError("rate_limited")],
          [text("One."), toolCall("c1", "quick"), finish("tool_calls")],
          [text("Two."), finish("stop")],
          [text("Bye."), finish("stop")]
        ])
      )
      yield* Effect.promise(async () => {
        const agent = new HttpAgent({ url: `${site.url}/agui/helper`, threadId: "s1" })
        agent.addMessage({ id: "u1", role: "user", content: "Go" })
        await agent.runAgent()
        const ids = () => agent.messages.flatMap(({ id, role }) => role === "assistant" ? [id] : [])
        const first = ids()
        assert.lengthOf(first, 2)
        // A client that lacks the conversation gets all of it before its next run.
        const other = new HttpAgent({ url: `${site.url}/agui/helper`, threadId: "s1" })
        other.addMessage({ id: "u2", role: "user", content: "Thanks" })
        await other.runAgent()
        const loaded = other.messages.flatMap(({ id, role }) => role === "assistant" ? [id] : [])
        assert.lengthOf(loaded, 3)
        assert.deepStrictEqual(loaded.slice(0, 2), first)
      })
    }))
})
