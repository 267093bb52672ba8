/** `prepareStep` and `Adapter.named`: what each step is asked of, with what, and what a resumed run asks. */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Collector, Message, Policy, type Rule, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { Script } from "heddle/testing"
import { stores } from "../support/edges.ts"
import { kept, killedAtEach, look, modelOf, type Replies, resumed } from "../support/ruled.ts"
import { journalOf, prefixed } from "../support/survivor.ts"

const { finish, text, toolCall, usage } = Script

const send = Tool.make("send", { parameters: {}, handler: () => Effect.succeed("sent") })

/** Calls `look` in the first turns, and then answers. */
const looking = (turns: number): Replies => ({ messages, tools }) => {
  const turn = messages.filter(({ role }) => role === "assistant").length
  return turn < turns && tools.length > 0
    ? [usage({ totalTokens: 10 }), toolCall(`c${turn}`, "look"), finish("tool_calls")]
    : [usage({ totalTokens: 10 }), text("done"), finish("stop")]
}

type Prepare = (next: Rule.Place) => Rule.Change | Effect.Effect<Rule.Change>

type Options = Chat.Options<ReadonlyArray<Tool.Any>, never, never, never, never>

const run = (replies: Replies, options: Options) => {
  const asked: Array<Adapter.Request> = []
  return Effect.map(
    Effect.exit(Effect.provideService(Chat.run("go", options), Adapter.Adapter, modelOf(replies, asked))),
    (exit) => ({ exit, asked, result: Exit.isSuccess(exit) ? exit.value : undefined })
  )
}

const defectOf = (exit: Exit.Exit<unknown, unknown>): string =>
  Exit.isFailure(exit) ? String(Cause.squash(exit.cause)) : "no defect"

describe("prepareStep", () => {
  it.effect("G53: a call of a tool that the step leaves out is answered as not offered and does not run", () =>
    Effect.gen(function*() {
      let sent = 0
      const counted = Tool.make("send", { parameters: {}, handler: () => Effect.sync(() => ++sent) })
      const replies: Replies = ({ messages }) => {
        const turn = messages.filter(({ role }) => role === "assistant").length
        return turn < 2 ? [toolCall(`c${turn}`, "send"), finish("tool_calls")] : [text("done"), finish("stop")]
      }
      for (const unknownTool of ["answer", "failTurn"] as const) {
        sent = 0
        const { asked, result } = yield* run(replies, {
          tools: [look, counted],
          policy: { ...Policy.standard, unknownTool, start: "afterTurn" },
          prepareStep: ({ stepIndex }) => stepIndex === 1 ? { tools: ["look"] } : {}
        })
        assert.deepStrictEqual(asked.map(({ tools }) => tools.map(({ name }) => name)), [
          ["look", "send"],
          ["look"],
          ["look", "send"]
        ])
        assert.deepStrictEqual(
          result?.steps.map(({ toolResults }) => toolResults.map(({ isError }) => isError === true)),
          [[false], [true], []]
        )
        assert.match(result?.steps[1]?.toolResults[0]?.content as string, /not offered in this step/)
        assert.strictEqual(sent, 1)
      }
    }))

  it.effect("R-516: a change holds for its step, and every field of the change reaches the request", () =>
    Effect.gen(function*() {
      const change: Rule.Change = {
        model: "large",
        system: "Be exact.",
        temperature: 1,
        maxTokens: 5,
        toolChoice: { name: "send" },
        tools: ["send"],
        options: { effort: "high" }
      }
      const { asked } = yield* run(looking(2), {
        tools: [look, send],
        model: "small",
        system: "Be brief.",
        options: { effort: "low", tier: "flex" },
        prepareStep: ({ stepIndex }) => stepIndex === 1 ? change : {}
      })
      const shown = asked.map(({ maxTokens, messages, model, options, temperature, toolChoice, tools }) => ({
        model,
        system: Message.text(messages[0]!),
        temperature,
        maxTokens,
        toolChoice,
        tools: tools.map(({ name }) => name),
        options
      }))
      const usual = {
        model: "small",
        system: "Be brief.",
        temperature: undefined,
        maxTokens: undefined,
        toolChoice: undefined,
        tools: ["look", "send"],
        options: { effort: "low", tier: "flex" }
      }
      assert.deepStrictEqual(
        shown,
        [usual, { ...usual, ...change, options: { effort: "high", tier: "flex" } }, usual] as any
      )
    }))

  it.effect("R-516: prepareStep receives the steps, the thread, the context and the usage so far", () =>
    Effect.gen(function*() {
      const places: Array<unknown> = []
      yield* run(looking(2), {
        tools: [look],
        context: { tenant: "a" },
        prepareStep: ({ context, stepIndex, steps, thread, usage }) => {
          places.push([stepIndex, steps.length, thread.messages.length, context, usage?.totalTokens])
          return {}
        }
      })
      const context = { tenant: "a" }
      assert.deepStrictEqual(places, [[0, 0, 1, context, undefined], [1, 1, 3, context, 10], [2, 2, 5, context, 20]])
    }))

  it.effect("R-516: a step without tools forces no call", () =>
    Effect.gen(function*() {
      const { asked } = yield* run(looking(1), {
        tools: [look],
        toolChoice: "required",
        prepareStep: () => ({ tools: [] })
      })
      assert.deepStrictEqual(asked.map(({ toolChoice, tools }) => [toolChoice, tools]), [[undefined, []]])
    }))

  it.effect("G54: a failure of prepareStep fails the run in the first step, and later becomes the outcome with the steps kept", () =>
    Effect.gen(function*() {
      const failing = (at: number) => {
        const asked: Array<Adapter.Request> = []
        const given = {
          tools: [look],
          prepareStep: ({ stepIndex }: Rule.Place) => stepIndex < at ? Effect.succeed({}) : Effect.fail("no route")
        }
        return Effect.provideService(Chat.run("go", given), Adapter.Adapter, modelOf(looking(3), asked))
      }
      assert.strictEqual(yield* Effect.flip(failing(0)), "no route")
      const result = yield* failing(2)
      assert.deepStrictEqual(result.outcome, { _tag: "Failed", error: "no route" })
      assert.strictEqual(result.steps.length, 2)
    }))

  it.effect("G55: a stop while prepareStep waits ends the run, and no model is asked", () =>
    Effect.gen(function*() {
      for (const at of [0, 1]) {
        const reached = yield* Deferred.make<void>()
        const { asked, result } = yield* run(looking(3), {
          tools: [look],
          cancel: Deferred.await(reached),
          prepareStep: ({ stepIndex }) =>
            stepIndex < at ? {} : Effect.andThen(Deferred.succeed(reached, undefined), Effect.never)
        })
        assert.deepStrictEqual([asked.length, result?.outcome._tag], [at, "Cancelled"])
      }
    }))

  it.effect("G56: a resumed run uses the recorded change and does not call prepareStep again", () =>
    Effect.gen(function*() {
      let asked: Array<number> = []
      const given = () => ({
        tools: [look],
        rules: [],
        prepareStep: ({ stepIndex }: Rule.Place) =>
          Effect.sync(() => {
            asked.push(stepIndex)
            return { model: `model ${stepIndex}` }
          })
      })
      let isUncut = true
      const whole = yield* killedAtEach(looking(2), () => {
        if (!isUncut) asked = []
        isUncut = false
        return given()
      }, ({ records }, before) => {
        const recorded = records.slice(0, before).filter(({ _tag }) => _tag === "StepPrepared").length
        assert.deepStrictEqual(asked, [0, 1, 2].slice(recorded), `killed behind record ${before}`)
      })
      assert.deepStrictEqual(whole.asked.map(({ model }) => model), ["model 0", "model 1", "model 2"])
    }))

  it.effect("G56: a run resumed without the tool that a recorded change forces does not force its call", () =>
    Effect.gen(function*() {
      for (const toolChoice of [{ name: "send" }, "required"] as const) {
        const prepareStep = () => ({ tools: ["send"], toolChoice })
        const before = yield* kept(looking(0), { tools: [look, send], rules: [], prepareStep })
        const cut = before.records.findIndex(({ _tag }) => _tag === "StepPrepared") + 1
        for (const tools of [[look], [look, send]]) {
          const { asked } = yield* resumed(looking(0), { tools, rules: [], prepareStep }, before.records.slice(0, cut))
          const shown = asked.map((request) => [request.tools.length, request.toolChoice])
          assert.deepStrictEqual(shown, tools.length === 1 ? [[0, undefined]] : [[1, toolChoice]])
        }
      }
    }))

  for (const [where, store] of Object.entries(stores)) {
    it.effect(`G56: a run whose steps change each field, killed behind any record, makes the requests of the uncut run: ${where}`, () =>
      Effect.gen(function*() {
        const changes: ReadonlyArray<Rule.Change> = [
          { adapter: "strong", toolChoice: { name: "send" }, tools: ["send"], system: "Be exact." },
          { model: "large", temperature: 1, maxTokens: 5, tools: ["look"] },
          { adapter: "strong", tools: [], options: { effort: "high" } }
        ]
        const asked: Array<Adapter.Request & { readonly by: string }> = []
        // Each reply but the last calls both tools, of which a step offers one.
        const replies: Replies = ({ messages }) => {
          const turn = messages.filter(({ role }) => role === "assistant").length
          return turn < 2
            ? [toolCall(`a${turn}`, "look"), toolCall(`b${turn}`, "send"), finish("tool_calls")]
            : [text("done"), finish("stop")]
        }
        const layerOf = (by: string) => {
          const service = modelOf(replies, [])
          return Adapter.layer({
            stream: (request) => {
              asked.push({ ...JSON.parse(JSON.stringify(request)), by })
              return service.stream(request)
            }
          })
        }
        const model = Adapter.named({ fast: layerOf("fast"), strong: layerOf("strong") })
        let prepared: Array<number> = []
        const given = {
          tools: [look, Tool.make("send", { parameters: {}, readOnly: true, handler: () => Effect.succeed("sent") })],
          prepareStep: ({ stepIndex }: Rule.Place) =>
            Effect.sync(() => {
              prepared.push(stepIndex)
              return changes[stepIndex]!
            })
        }
        const whole = yield* Effect.gen(function*() {
          const { value } = yield* Session.keep(
            yield* Session.open("s"),
            (session) => Session.reply(session, "go", { ...given, requestId: "run" })
          )
          return { result: value.result, records: yield* journalOf("s") }
        }).pipe(Effect.provide([model, Layer.fresh(store)]))
        const all = asked.splice(0)
        assert.deepStrictEqual(all.map(({ by, tools }) => [by, ...tools.map(({ name }) => name)]), [
          ["strong", "send"],
          ["fast", "look"],
          ["strong"]
        ])
        for (let length = 2; length < whole.records.length; length++) {
          const before = whole.records.slice(0, length)
          prepared = []
          const result = yield* Effect.gen(function*() {
            yield* (yield* Session.Store).append("s", 0, before as never)
            const cut = (yield* Session.load("s"))!
            return (yield* Session.resume(cut, { ...given, takeOver: true })).value.result
          }).pipe(Effect.provide([model, Layer.fresh(store)]))
          const again = asked.splice(0)
          const recorded = before.filter(({ _tag }) => _tag === "StepPrepared").length
          assert.deepStrictEqual(prepared, [0, 1, 2].slice(recorded), `killed behind record ${length}`)
          assert.deepStrictEqual(again, again.length === 0 ? [] : all.slice(-again.length), `record ${length}`)
          assert.deepStrictEqual(result, whole.result, `killed behind record ${length}`)
        }
      }))
  }

  it.effect("G56: a run begun without prepareStep does not call prepareStep for a recorded reply", () =>
    Effect.gen(function*() {
      const replies = looking(1)
      const before = yield* kept(replies, { tools: [look], rules: [] })
      const cut = before.records.findIndex(({ _tag }) => _tag === "ReplyReceived") + 1
      const asked: Array<number> = []
      yield* resumed(replies, {
        tools: [look],
        rules: [],
        prepareStep: ({ stepIndex }) => {
          asked.push(stepIndex)
          return {}
        }
      }, before.records.slice(0, cut))
      assert.deepStrictEqual(asked, [1])
    }))

  it.effect("G56: prepareStep is not called again for a broken reply", () =>
    Effect.gen(function*() {
      let calls = 0
      const replies: Replies = ({ messages }) =>
        messages.length === 1 && calls++ === 0
          ? [text("I"), Script.error(new Adapter.AdapterError({ reason: "network_error" }))]
          : [text("done"), finish("stop")]
      let changes = 0
      const { asked, result } = yield* run(replies, {
        retryReply: Schedule.recurs(2),
        prepareStep: () => ({ model: `model ${changes++}` })
      })
      assert.deepStrictEqual(asked.map(({ model }) => model), ["model 0", "model 0"])
      assert.strictEqual(result?.outcome._tag, "Completed")
    }))

  it.effect("G57: the fold of the events of a prepared run equals its result", () =>
    Effect.gen(function*() {
      const given = {
        tools: [look, send],
        requestId: "r",
        prepareStep: ({ stepIndex }: Rule.Place) => ({ model: `m${stepIndex}`, tools: ["look"] })
      }
      const model = Adapter.layer(modelOf(looking(2), []))
      const events = yield* Stream.runCollect(Chat.stream("go", given)).pipe(Effect.provide(model))
      const result = yield* Chat.run("go", given).pipe(Effect.provide(model))
      assert.deepStrictEqual(Collector.toChatResult(Collector.applyAll(Collector.initial(), events)), result)
    }))

  const wrong: ReadonlyArray<readonly [what: string, change: unknown, problem: RegExp]> = [
    ["an unknown tool", { tools: ["loook"] }, /no tool "loook"; those of the run: "look", "send"/],
    ["an unknown adapter", { adapter: "strong" }, /no adapter "strong"; those of Adapter.named: none/],
    [
      "a temperature out of range",
      { temperature: 3 },
      /prepareStep: temperature: must be a number from 0 to 2; got: 3/
    ],
    ["a forced tool that the step leaves out", { tools: ["look"], toolChoice: { name: "send" } }, /no tool "send"/],
    ["a forced call without tools", { tools: [], toolChoice: "required" }, /a step without tools cannot force a call/],
    ["a misspelt field", { modell: "x" }, /prepareStep has no option "modell"; did you mean "model"\?/],
    ["a field of a wrong type", { tools: "look" }, /prepareStep: tools must be/],
    ["undefined", undefined, /prepareStep: it returned undefined; return an object/],
    ["a promise", Promise.resolve({}), /prepareStep.*Effect/],
    ["options that are no JSON", { options: { at: new Date(0) } }, /rule "prepareStep": its note is no JSON/]
  ]
  for (const [what, change, problem] of wrong) {
    it.effect(`R-516: ${what} from prepareStep is a defect that says what would be right, and no model is asked`, () =>
      Effect.gen(function*() {
        const { asked, exit } = yield* run(looking(1), { tools: [look, send], prepareStep: () => change as never })
        assert.match(defectOf(exit), problem)
        assert.deepStrictEqual(asked, [])
      }))
  }

  it.effect("R-516: an error thrown by prepareStep is a defect of the run", () =>
    Effect.gen(function*() {
      const { exit } = yield* run(looking(1), {
        prepareStep: () => {
          throw new Error("no route")
        }
      })
      assert.match(defectOf(exit), /no route/)
    }))

  it.effect("R-516: a null in a change leaves the run's value", () =>
    Effect.gen(function*() {
      const { asked } = yield* run(looking(0), {
        model: "small",
        prepareStep: () => ({ model: null, tools: null }) as never
      })
      assert.deepStrictEqual(asked.map(({ model }) => model), ["small"])
    }))
})

describe("Adapter.named", () => {
  const scripted = (asked: Array<string>, name: string, replies: Replies): Layer.Layer<Adapter.Adapter> => {
    const service = modelOf(replies, [])
    return Adapter.layer({
      ...service,
      provider: name,
      stream: (request) => {
        asked.push(`${name}:${request.model ?? ""}`)
        return service.stream(request)
      }
    })
  }
  const two = (asked: Array<string>) =>
    Adapter.named({ fast: scripted(asked, "fast", looking(3)), strong: scripted(asked, "strong", looking(3)) })
  const climbing: Prepare = ({ stepIndex }) => stepIndex < 2 ? {} : { adapter: "strong", model: "large" }

  it.effect("R-517: runs use the first named adapter, and a step may use another by its name", () =>
    Effect.gen(function*() {
      const asked: Array<string> = []
      yield* Chat.run("go", { tools: [look], prepareStep: climbing }).pipe(Effect.provide(two(asked)))
      assert.deepStrictEqual(asked, ["fast:", "fast:", "strong:large", "strong:large"])
      const plain: Array<string> = []
      yield* Chat.run("go", { tools: [look] }).pipe(Effect.provide(two(plain)))
      assert.deepStrictEqual(plain, ["fast:", "fast:", "fast:", "fast:"])
    }))

  it.effect("R-517: a handler's run begins with the first named adapter, and prepareStep of the run around it is not called", () =>
    Effect.gen(function*() {
      const asked: Array<string> = []
      const prepared: Array<number> = []
      const ask = Tool.make("look", {
        parameters: {},
        handler: () => Effect.as(Chat.run("inside"), "seen") as Effect.Effect<string>
      })
      const prepareStep: Prepare = ({ stepIndex }) => {
        prepared.push(stepIndex)
        return { adapter: "strong" }
      }
      const one = (name: string) => scripted(asked, name, looking(1))
      const models = Adapter.named({ fast: one("fast"), strong: one("strong") })
      yield* Chat.run("go", { tools: [ask], prepareStep }).pipe(Effect.provide(models))
      assert.deepStrictEqual([asked, prepared], [["strong:", "fast:", "strong:"], [0, 1]])
    }))

  it.effect("R-517: Adapter.map changes each named adapter", () =>
    Effect.gen(function*() {
      const counted: Array<string | undefined> = []
      const layer = Adapter.map((adapter) => ({
        ...adapter,
        stream: (request) => {
          counted.push(adapter.provider)
          return adapter.stream(request)
        }
      })).pipe(Layer.provide(two([])))
      yield* Chat.run("go", { tools: [look], prepareStep: climbing }).pipe(Effect.provide(layer))
      assert.deepStrictEqual(counted, ["fast", "fast", "strong", "strong"])
    }))

  it.effect("R-517: an unknown adapter name is a defect that lists the known names", () =>
    Effect.gen(function*() {
      const exit = yield* Effect.exit(
        Chat.run("go", { prepareStep: () => ({ adapter: "stronger" }) }).pipe(Effect.provide(two([])))
      )
      assert.match(defectOf(exit), /no adapter "stronger"; those of Adapter.named: "fast", "strong"/)
    }))

  it("R-517: Adapter.named refuses an empty record and a member that is not a layer", () => {
    assert.throws(() => Adapter.named({}), /at least one layer/)
    assert.throws(() => Adapter.named({ fast: 1 } as never), /layers.fast must be a Layer/)
  })

  it.effect("R-517: a failing named layer fails the program, and a shared layer is built once", () =>
    Effect.gen(function*() {
      const failing = Layer.effect(Adapter.Adapter, Effect.fail("no key" as const))
      const error = yield* Effect.flip(
        Chat.run("go").pipe(Effect.provide(Adapter.named({ fast: Script.layer([]), strong: failing })))
      )
      assert.strictEqual(error, "no key")
      let built = 0
      const shared = Layer.effect(
        Adapter.Adapter,
        Effect.sync(() => {
          built++
          return modelOf(looking(0), [])
        })
      )
      yield* Chat.run("go").pipe(Effect.provide(Adapter.named({ a: shared, b: shared })))
      assert.strictEqual(built, 1)
    }))

  it.effect("R-517: a worker asks the adapter that the step names", () =>
    Effect.gen(function*() {
      const asked: Array<string> = []
      const ended = yield* Deferred.make<string>()
      const worker = Worker.layer({
        run: () => ({ tools: [look], prepareStep: climbing }),
        onEnd: (id) => Deferred.succeed(ended, id)
      })
      yield* Effect.gen(function*() {
        yield* Session.submit("s", "go")
        yield* Worker.take("s")
        yield* Deferred.await(ended)
      }).pipe(Effect.provide(worker), Effect.provide([two(asked), Session.Store.layerMemory]))
      assert.deepStrictEqual(asked, ["fast:", "fast:", "strong:large", "strong:large"])
    }))

  it.effect("G56: resuming a run whose recorded adapter or rule is missing fails and writes nothing", () =>
    Effect.gen(function*() {
      const given: Options = { tools: [look], prepareStep: climbing, requestId: "run" }
      const records = yield* Effect.gen(function*() {
        yield* Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "go", given as {}))
        return yield* journalOf("s")
      }).pipe(Effect.provide([two([]), Session.Store.layerMemory]))
      const prepared = records.findLastIndex((record) => record._tag === "StepPrepared")
      const resume = (asked: Array<string>, layer: Layer.Layer<Adapter.Adapter>, options: Options) =>
        Effect.gen(function*() {
          const cut = (yield* Session.load("s"))!
          const exit = yield* Effect.exit(Session.resume(cut, { ...options, takeOver: true } as {}))
          return { exit, asked, isWritten: (yield* Session.load("s"))!.version !== cut.version }
        }).pipe(Effect.provide([layer, prefixed("s", records.slice(0, prepared + 1))]))
      const asked: Array<string> = []
      const gone = yield* resume(asked, scripted(asked, "fast", looking(3)), given)
      assert.match(defectOf(gone.exit), /adapter_missing: there is no adapter "strong"; those of Adapter.named: none/)
      const without = yield* resume(asked, two(asked), { tools: [look] })
      assert.match(defectOf(without.exit), /rule_missing.*"prepareStep"/)
      assert.deepStrictEqual([asked, gone.isWritten, without.isWritten], [[], false, false])
      const again = yield* resume(asked, two(asked), given)
      assert.isTrue(Exit.isSuccess(again.exit))
      assert.deepStrictEqual(asked, ["strong:large"])
    }))
})
