/** The real client of AG-UI, with its verifier, against sessions that it did not begin. */
import { HttpAgent, type Message as AgMessage } from "@ag-ui/client"
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import { Tool } from "heddle"
import { Agent } from "heddle/server"
import { warningsOfTests } from "../support/warnings.ts"
import { memory, obedient } from "./support/hostile.ts"
import { serve } from "./support/site.ts"

const warnings = warningsOfTests()

/** The client, with the one method that it leaves to others: it joins a thread by a GET. */
class ThreadAgent extends HttpAgent {
  protected override connect(input: Parameters<HttpAgent["run"]>[0]): ReturnType<HttpAgent["run"]> {
    const reader = new HttpAgent({
      url: `${this.url}/${input.threadId}?runId=${input.runId}`,
      fetch: (url, { signal }) => fetch(url, signal == null ? {} : { signal })
    })
    return reader.run(input)
  }
}

const clientOf = (url: string) => {
  const agent = new ThreadAgent({ url: `${url}/agui/helper`, threadId: "s1" })
  const problems: Array<string> = []
  const seen: Array<string> = []
  const watching = {
    onRunFailed: ({ error }: { readonly error: Error }) => void problems.push(String(error)),
    onRunErrorEvent: ({ event }: { readonly event: { readonly message: string } }) => void problems.push(event.message),
    onEvent: ({ event }: { readonly event: { readonly type: string } }) => void seen.push(event.type)
  }
  let said = 0
  const say = (content: string) =>
    Effect.promise(() => {
      agent.addMessage({ id: `m${said++}-${content.slice(0, 4)}`, role: "user", content })
      return agent.runAgent({}, watching)
    })
  const join = Effect.promise(() => agent.connectAgent({}, watching))
  const approve = Effect.promise(() =>
    agent.runAgent({
      resume: agent.pendingInterrupts.map(({ id }) => ({
        interruptId: id,
        status: "resolved" as const,
        payload: { approved: true }
      }))
    }, watching)
  )
  return { agent, approve, join, problems, say, seen }
}

/** The messages but for those that no one else has. */
const shownIn = (messages: ReadonlyArray<AgMessage>) =>
  messages.filter(({ role }) => role !== "activity" && role !== "reasoning")

const textsIn = (messages: ReadonlyArray<AgMessage>) =>
  messages.filter(({ role }) => role === "user" || role === "assistant").map(({ content = "" }) => content)

const calling = (...names: ReadonlyArray<string>) =>
  JSON.stringify(names.map((name, index) => ({ id: `c${index}`, name })))

const site = Effect.gen(function*() {
  const began = Deferred.makeUnsafe<void>()
  const gate = Deferred.makeUnsafe<void>()
  const tools = [
    Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") }),
    Tool.make("look", { parameters: {}, handler: () => Effect.succeed("seen") }),
    Tool.make("count", {
      parameters: {},
      handler: () => Effect.succeed(Tool.askUser("How many?", { answer: Schema.Int }))
    }),
    Tool.make("wait", {
      parameters: {},
      handler: () => Effect.as(Effect.andThen(Deferred.succeed(began, undefined), Deferred.await(gate)), "waited")
    })
  ]
  const agents = [Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools }) })]
  const store = yield* memory
  const start = Effect.map(serve(agents, obedient, { store: store.layer, joinMillis: 0 }), ({ url }) => url)
  return { began, gate, start }
})

const noProblems = (...clients: ReadonlyArray<{ readonly problems: ReadonlyArray<string> }>) =>
  assert.deepStrictEqual([...clients.flatMap(({ problems }) => problems), ...warnings], [])

describe("AG-UI", () => {
  it.live("W-02: a client that lacks turns of its thread receives them with its next run, under the ids of their streams", () =>
    Effect.gen(function*() {
      const url = yield* (yield* site).start
      const first = clientOf(url)
      yield* first.say(calling("look", "pay"))
      yield* first.approve
      assert.deepStrictEqual(first.seen.filter((type) => type === "MESSAGES_SNAPSHOT"), [])
      const second = clientOf(url)
      yield* second.say("And now?")
      assert.strictEqual(second.seen[1], "MESSAGES_SNAPSHOT", second.seen.join())
      assert.deepStrictEqual(textsIn(second.agent.messages), [
        ...textsIn(first.agent.messages),
        "And now?",
        "Heard: And now?"
      ])
      const named = (messages: ReadonlyArray<AgMessage>) =>
        messages.flatMap(({ id, role }) => role === "user" || role === "assistant" ? [id] : [])
      assert.deepStrictEqual(named(second.agent.messages).slice(0, 3), named(first.agent.messages))
      // The first client has nothing of the turn of the second one, which has all of its own.
      yield* first.say("And then?")
      assert.deepStrictEqual(textsIn(first.agent.messages).slice(3), [
        "And now?",
        "Heard: And now?",
        "And then?",
        "Heard: And then?"
      ])
      const count = () => first.seen.filter((type) => type === "MESSAGES_SNAPSHOT").length
      assert.strictEqual(count(), 2)
      yield* first.say("Thanks")
      assert.strictEqual(count(), 2)
      noProblems(first, second)
    }))

  it.live("W-07: a client that joins a run in the middle has the same messages as the client that began the run", () =>
    Effect.gen(function*() {
      const { began, gate, start } = yield* site
      const url = yield* start
      const first = clientOf(url)
      yield* first.say("Hello")
      const running = yield* Effect.forkChild(first.say(calling("look", "wait")))
      yield* Deferred.await(began)
      const second = clientOf(url)
      const joining = yield* Effect.forkChild(second.join)
      yield* Effect.promise(async () => {
        while (!second.seen.includes("TOOL_CALL_START")) await new Promise((resolve) => setImmediate(resolve))
      })
      yield* Deferred.succeed(gate, undefined)
      yield* Fiber.join(running)
      yield* Fiber.join(joining)
      assert.deepStrictEqual(shownIn(second.agent.messages), shownIn(first.agent.messages))
      noProblems(first, second)
    }))

  it.live("W-07: a client that joins a waiting thread has its interrupts, also in the next process", () =>
    Effect.gen(function*() {
      const { start } = yield* site
      const before = yield* Effect.scoped(Effect.gen(function*() {
        const first = clientOf(yield* start)
        yield* first.say(calling("pay", "count"))
        noProblems(first)
        return first.agent
      }))
      const url = yield* start
      const second = clientOf(url)
      yield* second.join
      assert.deepStrictEqual(shownIn(second.agent.messages), shownIn(before.messages))
      assert.deepStrictEqual(second.agent.pendingInterrupts, before.pendingInterrupts)
      const [pay, count] = second.agent.pendingInterrupts
      yield* Effect.promise(() =>
        second.agent.runAgent({
          resume: [
            { interruptId: pay!.id, status: "resolved", payload: { approved: true } },
            { interruptId: count!.id, status: "resolved", payload: 3 }
          ]
        })
      )
      const answers = second.agent.messages.flatMap((message) => message.role === "tool" ? [message.content] : [])
      assert.sameMembers(answers, ["paid", "3"])
      const third = clientOf(url)
      yield* third.join
      assert.deepStrictEqual(textsIn(third.agent.messages), textsIn(second.agent.messages))
      assert.deepStrictEqual(third.agent.pendingInterrupts, [])
      const none = clientOf(url)
      none.agent.threadId = "s2"
      yield* none.join
      assert.deepStrictEqual(none.agent.messages, [])
      noProblems(second, third, none)
    }))
})
