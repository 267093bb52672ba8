/** Runs that use nothing of what governs runs: their records and their work are those of a run without any of it. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Budget, Chat, Inbox, Output, Pricing, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { watch } from "../../scratchpad/bench/counts.ts"
import { stores } from "../support/edges.ts"
import { journalOf } from "../support/survivor.ts"

const { finish, text, toolCall, usage } = Script

const used = usage({ inputTokens: 10, outputTokens: 5 })

const modelOf = () => {
  const service: Adapter.Service = {
    provider: "openai",
    model: "m",
    stream: ({ messages }) => {
      const turn = messages.filter(({ role }) => role === "assistant").length
      const reply = turn === 0
        ? [toolCall("c0", "look", {}), toolCall("c1", "look", {}), used, finish("tool_calls")]
        : [text("Done."), used, finish("stop")]
      return Stream.unwrap(Effect.map(Script.make([reply]), (scripted) => scripted.stream({} as never)))
    }
  }
  return Adapter.layer(service)
}

const toolOf = (more: object = {}): Tool.Any =>
  Tool.make("look", { parameters: {}, handler: () => Effect.succeed("seen"), ...more } as never) as unknown as Tool.Any

/** What a process may have of each feature, while its run uses nothing of it. */
interface Unused {
  readonly options?: object
  readonly tool?: object
  readonly layer?: Layer.Layer<never>
  /** What the process makes, and gives to no run. */
  readonly made?: unknown
}

const unused: Readonly<Record<string, Unused>> = {
  "prepareStep": { options: { prepareStep: undefined, rules: undefined } },
  "fallback": { options: { retryReply: undefined } },
  "output": { options: { output: undefined }, made: Output.make(Schema.Struct({ a: Schema.Finite })) },
  "idle time": { options: { toolTimeout: undefined }, tool: { timeout: undefined } },
  "budget": {
    options: { budget: undefined },
    layer: Pricing.layer({ openai: { models: { m: { cost: { input: 1, output: 1 } } } } }),
    made: Budget.make({ calls: 1 })
  },
  "inbox": { options: { inbox: undefined }, made: Inbox.make() }
}

/** A handler that stops a call which is not there. */
const stopsNothing = {
  handler: (_: unknown, call: Tool.CallContext) => Effect.as(call.cancelCall("c9"), "seen")
}

/** The records of a kept run. */
const kept = (options: object, tool: object, store: Layer.Layer<Session.Store>, layer: Layer.Layer<never>) =>
  Effect.gen(function*() {
    yield* Session.keep(
      yield* Session.open("s"),
      (session) => Session.reply(session, "go", { tools: [toolOf(tool)], requestId: "run", ...options } as {})
    )
    return yield* journalOf("s")
  }).pipe(Effect.provide([modelOf(), Layer.fresh(store), layer]), Effect.orDie)

const shape = (record: object) =>
  `${(record as { readonly _tag: string })._tag} ${
    Object.keys(record).filter((key) => key !== "_tag").sort().join(" ")
  }`

/** The records of a run of two calls and an answer, with the names of their fields. */
const shapes = [
  "Opened format session",
  "RunStarted after messages operation processName requestId startedAt",
  "ReplyReceived at first model provider requestId requested response stepIndex",
  "CallStarted asked at attempt idempotencyKey requestId toolCallId",
  "CallStarted asked at attempt idempotencyKey requestId toolCallId",
  "CallEnded at message requestId",
  "CallEnded at message requestId",
  "StepCompleted after at done requestId stepIndex",
  "StepCompleted after at done first model provider requestId requested response stepIndex",
  "RunEnded after at haltedReason requestId status"
]

describe("G82: unused features", () => {
  for (const [where, store] of Object.entries(stores)) {
    it.effect(`G82: a run that uses no feature writes exactly these records: ${where}`, () =>
      Effect.gen(function*() {
        const given = store as Layer.Layer<Session.Store>
        const plain = yield* kept({}, {}, given, Layer.empty)
        assert.deepStrictEqual(plain.map(shape), shapes)
        assert.deepStrictEqual(yield* kept({}, stopsNothing, given, Layer.empty), plain)
        for (const [name, { layer = Layer.empty, options = {}, tool = {} }] of Object.entries(unused)) {
          assert.deepStrictEqual(yield* kept(options, tool, given, layer), plain, name)
        }
      }))
  }

  it("G82: a run that uses no feature takes exactly the work of a plain run, and its result has no more fields", async () => {
    const taken = async (options: object, tool: object) => {
      const run = Chat.run("go", { tools: [toolOf(tool)], requestId: "run", ...options } as {}).pipe(
        Effect.provide(modelOf())
      )
      // What is made once in a process is made by then.
      await Effect.runPromise(run)
      const stop = watch()
      const result = await Effect.runPromise(run)
      return { work: stop(), result }
    }
    const plain = await taken({}, {})
    assert.doesNotHaveAnyKeys(plain.result, ["spent", "output"])
    for (const [name, { options = {}, tool = {} }] of Object.entries(unused)) {
      assert.deepStrictEqual(await taken(options, tool), plain, name)
    }
  })
})
