import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Event, Executor, Message, Response, Thread } from "heddle"
import { OpenAiChat } from "heddle/adapters"
import * as Server from "../../scratchpad/agent/model/server.ts"
import * as Tools from "../../scratchpad/agent/tools.ts"
import * as Agent from "../support/agent.ts"

const { shop } = Agent

const adapter = Layer.unwrap(
  Effect.map(Server.Endpoint, ({ baseUrl }) => OpenAiChat.layer({ model: "embedded", baseUrl, retries: 0 }))
).pipe(Layer.provide(FetchHttpClient.layer), Layer.provideMerge(Server.layer({ pace: Effect.void })))

describe("the embedded model over HTTP", () => {
  layer(Layer.merge(adapter, Agent.services), { excludeTestServices: true })((it) => {
    it.effect("main job: a whole run through the OpenAI Chat adapter answers from the files", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(shop)
        const events = yield* Chat.stream("Where is the tax rate defined?", { tools: Tools.all, system: "Be brief." })
          .pipe(
            Stream.runCollect,
            Effect.provide(Agent.workspace(root))
          )
        const last = events.at(-1) as Event.Of<"ChatCompleted">
        const { finalResponse, outcome, steps, thread, usage } = last.result
        assert.deepStrictEqual(outcome, { _tag: "Completed", finishReason: "stop" })
        assert.include(finalResponse?.outputText, "src/billing.ts:3")
        assert.deepStrictEqual(
          steps.map((step) => Response.actionableCalls(step.response).map((call) => call.name)),
          [["search_text", "list_files"], ["read_file", "write_note"], []]
        )
        assert.strictEqual(Thread.validate(thread)._tag, "Success")
        assert.isAbove(usage?.inputTokens ?? 0, 50)
        assert.isAbove(usage?.outputTokens ?? 0, 20)
        assert.isAbove(events.filter((event) => event._tag === "TextDelta").length, 30, "it streams")
        const ids = steps.flatMap((step) => step.response.toolCalls.map((call) => call.id))
        assert.strictEqual(new Set(ids).size, ids.length)
      }))

    it.effect("main job: a question of ask_user ends the run, and the reply resumes it", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder(shop)
        const options = { tools: Tools.all }
        const first = yield* Effect.provide(Chat.run("What is this?", options), Agent.workspace(root))
        assert.strictEqual(first.outcome._tag, "AskUser")
        const thread = Thread.append(first.thread, [Message.user("sailors")])
        const second = yield* Effect.provide(Chat.run(thread, options), Agent.workspace(root))
        assert.include(second.finalResponse?.outputText, "README.md:3")
      }))

    it.effect("main job: an invalid request gets a 400 with the reason", () =>
      Effect.gen(function*() {
        const { baseUrl } = yield* Server.Endpoint
        const post = (body: string) =>
          Effect.promise(() =>
            fetch(`${baseUrl}/chat/completions`, { method: "POST", body }).then(async (response) => ({
              status: response.status,
              error: (await response.json() as { error: { message: string } }).error.message
            }))
          )
        assert.deepStrictEqual(yield* post("{"), { status: 400, error: "the request is no JSON" })
        assert.match((yield* post("{\"stream\":true,\"messages\":[]}")).error, /messages/)
        assert.match((yield* post("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}")).error, /only streams/)
        const elsewhere = yield* Effect.promise(() => fetch(`${baseUrl}/models`))
        assert.strictEqual(elsewhere.status, 404)
      }))

    it.effect("main job: the server listens on the loopback interface, and closes with its scope", () =>
      Effect.gen(function*() {
        const baseUrl = yield* Server.Endpoint.use(({ baseUrl }) => Effect.succeed(baseUrl)).pipe(
          Effect.provide(Layer.fresh(Server.layer({ pace: Effect.void })))
        )
        assert.match(baseUrl, /^http:\/\/127\.0\.0\.1:\d+\/v1$/)
        const model = OpenAiChat.layer({ model: "embedded", baseUrl, retries: 0 }).pipe(
          Layer.provide(FetchHttpClient.layer)
        )
        const error = yield* Effect.flip(Effect.provide(Chat.run("x", { tools: [] }), Layer.fresh(model)))
        assert.isTrue(error instanceof Adapter.AdapterError && error.reason === "network_error")
      }))
  })
})

/** A server that says its next piece when it is let, and the adapter that speaks to it. */
const paced = (pace: Effect.Effect<void>) => {
  const server = Server.layer({ pace })
  return Layer.unwrap(
    Effect.map(Server.Endpoint, ({ baseUrl }) => OpenAiChat.layer({ model: "embedded", baseUrl, retries: 0 }))
  ).pipe(Layer.provide([FetchHttpClient.layer, server]), Layer.fresh)
}

/** Lets the reading calls of the second turn end only when that many of them run at once, and returns which calls ran concurrently. */
const overlapping = (wanted: number) => {
  const met = Latch.makeUnsafe(false)
  const running = new Set<string>()
  const beside: Array<readonly [name: string, others: number]> = []
  const layer = Executor.layer({
    execute: (tool, args, call) =>
      Effect.gen(function*() {
        if (call.stepIndex !== 1) return yield* Executor.direct.execute(tool, args, call)
        beside.push([call.name, running.size])
        running.add(call.id)
        if (running.size === wanted) yield* met.open
        if (tool.readOnly) yield* met.await
        const outcome = yield* Executor.direct.execute(tool, args, call)
        running.delete(call.id)
        return outcome
      })
  })
  return { layer, beside }
}

/** Each piece of a streamed reply is first seen as one of these; the first one says nothing, and is known by the end. */
const isPiece = Event.Event.isAnyOf(["TextDelta", "ToolCallStarted", "ToolCallDelta", "MessageCompleted"])

/** Reads a run so that the model says a piece only when the one before it has been heard, and `holds` lets it. */
const readInStep = (
  events: (model: Layer.Layer<Adapter.Adapter, unknown>) => Stream.Stream<Event.Event, unknown>,
  isHeldAt: (event: Event.Event) => boolean,
  isFreedAt: (event: Event.Event) => boolean
) =>
  Effect.gen(function*() {
    const permits = yield* Semaphore.make(2)
    const heard: Array<Event.Event> = []
    let isHeld = false
    yield* Stream.runForEach(events(paced(Effect.asVoid(permits.take(1)))), (event) => {
      heard.push(event)
      isHeld ||= isHeldAt(event)
      const isFreed = isHeld && isFreedAt(event)
      if (isFreed) isHeld = false
      return isFreed || (isPiece(event) && !isHeld) ? permits.release(1) : Effect.void
    })
    return heard
  })

describe("the embedded model, piece by piece", () => {
  layer(Agent.services, { excludeTestServices: true })((it) => {
    it.effect("main job, J-28, R-384: reads run concurrently and end inside the reply, and the note runs alone after the reply", () =>
      Effect.gen(function*() {
        const fs = yield* FileSystem.FileSystem
        const root = yield* Agent.folder({ ...shop, "test/tax.test.ts": "expect(taxRate).toBe(0.2)\n" })
        const workspace = yield* Layer.build(Agent.workspace(root, "kept"))
        const { beside, layer } = overlapping(3)
        let ended = 0
        const heard = yield* readInStep(
          (model) =>
            Chat.stream("Where is the tax rate defined?", { tools: Tools.all }).pipe(
              Stream.provide(Layer.mergeAll(model, layer, Layer.succeedContext(workspace)))
            ),
          // The reply stands still in the middle of its last call, until all reads of the turn have ended.
          (event) => event._tag === "ToolCallStarted" && event.name === "write_note",
          (event) => event._tag === "ToolExecutionCompleted" && ++ended === 3
        )
        assert.deepStrictEqual(beside, [["read_file", 0], ["read_file", 1], ["search_text", 2], ["write_note", 0]])
        const steps = heard.flatMap((event, index) => event._tag === "StepCompleted" ? [index] : [])
        const told = heard.slice(steps[0], steps[1])
          .filter(Event.Event.isAnyOf(["ToolExecutionStarted", "ToolExecutionCompleted", "MessageCompleted"]))
          .map((event) => "name" in event ? `${event._tag} ${event.name}` : event._tag)
        assert.deepStrictEqual(told.slice(0, 6).toSorted(), [
          "ToolExecutionCompleted read_file",
          "ToolExecutionCompleted read_file",
          "ToolExecutionCompleted search_text",
          "ToolExecutionStarted read_file",
          "ToolExecutionStarted read_file",
          "ToolExecutionStarted search_text"
        ])
        assert.deepStrictEqual(told.slice(6), [
          "MessageCompleted",
          "ToolExecutionStarted write_note",
          "ToolExecutionCompleted write_note"
        ])
        assert.strictEqual(
          yield* fs.readFileString(`${root}/kept/notes.md`),
          "- \"Where is the tax rate defined?\": src/billing.ts:3, test/tax.test.ts:1\n"
        )
      }))
  })
})
