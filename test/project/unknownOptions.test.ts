/**
 * Options that do not exist, which programs without types can write: each is a defect that names the option and the nearest
 * one that exists, whichever function or layer is given it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as TestRunner from "effect/cluster/TestRunner"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import {
  type Adapter,
  Chat,
  Limits,
  Message,
  Policy,
  Session,
  Step,
  StreamingToolExecutor,
  Tool,
  ToolRunner
} from "heddle"
import { Anthropic, Gemini, OpenAiChat, OpenAiResponses } from "heddle/adapters"
import { AiSdk, EffectAi } from "heddle/bridges"
import { Cluster, SessionClient } from "heddle/cluster"
import { Durable, Worker } from "heddle/durable"
import { SqliteClient } from "heddle/sql"
import { Script } from "heddle/testing"
import type * as Settings from "../../src/internal/ask/options.ts"
import { checkNames } from "../../src/internal/declare/schema.ts"
import * as Values from "../../src/internal/declare/values.ts"

type Options = never

/** Options as a program without types writes them. */
const untyped = (options: object): Options => options as Options

const model = Script.layer([[Script.text("done"), Script.finish("stop")]])

const messageOf = (exit: Exit.Exit<unknown, unknown>): string => {
  assert.isTrue(Exit.isFailure(exit) && Cause.hasDies(exit.cause), "it must be a defect")
  const error = Exit.isFailure(exit) ? Cause.squash(exit.cause) : undefined
  assert.instanceOf(error, TypeError)
  return (error as TypeError).message
}

/** The message of the defect that a program ends with, also where the program cannot be made. */
const defectOf = (make: () => Effect.Effect<unknown, unknown, Adapter.Adapter | Session.Store>) =>
  Effect.suspend(make).pipe(Effect.provide([model, Session.Store.layerMemory]), Effect.exit, Effect.map(messageOf))

/** The same for a layer. */
const layerDefectOf = (make: () => unknown) =>
  defectOf(() => Effect.scoped(Layer.build(Layer.provide(make() as Layer.Layer<never>, FetchHttpClient.layer))))

const session = Session.make()
const drained = <A, E, R>(stream: Stream.Stream<A, E, R>) => Stream.runDrain(stream)

const runs: Readonly<Record<string, (options: Options) => Effect.Effect<unknown, unknown, any>>> = {
  "Chat.run": (options) => Chat.run("go", options),
  "Chat.stream": (options) => drained(Chat.stream("go", options)),
  "Step.run": (options) => Step.run("go", options),
  "Step.stream": (options) => drained(Step.stream("go", options)),
  "ToolRunner.run": (options) => ToolRunner.run([], [], options),
  "ToolRunner.stream": (options) => drained(ToolRunner.stream([], [], options)),
  "Session.start": (options) => Session.start("go", options),
  "Session.streamStart": (options) => drained(Session.streamStart("go", options)),
  "Session.reply": (options) => Session.reply(session, "go", options),
  "Session.continue": (options) => Session.continue(session, Message.user("go"), options),
  "Session.step": (options) => Session.step(Session.appendUser(session, "go").pipe(Effect.runSync), options)
}

describe("N-30: an unknown option", () => {
  for (const [name, run] of Object.entries(runs)) {
    it.effect(`N-30: ${name} refuses unknown options, also in its policy and its deadline`, () =>
      Effect.gen(function*() {
        const of = (options: object) => defectOf(() => run(untyped(options)))
        assert.strictEqual(
          yield* of({ toolTimout: 5 }),
          "a run has no option \"toolTimout\"; did you mean \"toolTimeout\"?"
        )
        assert.match(
          yield* of({ toolExecutor: {} }),
          /^a run has no option "toolExecutor"; its options are onToolError, /
        )
        assert.strictEqual(
          yield* of({ onMaxTurns: "finalize" }),
          "a run has no option \"onMaxTurns\"; it is an option of \"policy\""
        )
        assert.match(yield* of({ allowance: 5 }), /^a run has no option "allowance"; its options are /)
        assert.strictEqual(
          yield* of({ policy: { ...Policy.standard, resultLimits: 5 } }),
          "policy of a run has no option \"resultLimits\"; did you mean \"resultLimit\"?"
        )
        const siblings = { ...Policy.standard.siblings, onError: "abortAll" }
        assert.match(
          yield* of({ policy: { ...Policy.standard, siblings } }),
          /^siblings of policy of a run has no option "onError"/
        )
        assert.strictEqual(
          yield* of({ deadline: { after: 5, reserved: 1 } }),
          "deadline of a run has no option \"reserved\"; did you mean \"reserve\"?"
        )
        assert.isTrue(Exit.isSuccess(
          yield* Effect.exit(Effect.provide(run(untyped({ allowance: undefined, maxTurns: 2, approved: [] })), model))
        ))
      }))
  }

  it.effect("N-30: Session.resume refuses an unknown option", () =>
    Effect.gen(function*() {
      const wait = Tool.make("wait", {
        parameters: {},
        handler: (_, call) => Effect.andThen(call.progress("waiting"), Effect.never)
      })
      const asking = Script.layer([[Script.toolCall("c0", "wait"), Script.finish("tool_calls")]])
      const resumed = (options: object) =>
        defectOf(() =>
          Effect.gen(function*() {
            const opened = yield* Session.open("s")
            yield* Session.keepStream(opened, (session) => Session.streamReply(session, "go", { tools: [wait] })).pipe(
              Stream.takeUntil(({ _tag }) => _tag === "ToolProgress"),
              Stream.runDrain,
              Effect.provide(asking)
            )
            return yield* Session.resume(yield* Session.claim("s"), untyped({ tools: [wait], ...options }))
          }).pipe(Effect.scoped)
        )
      assert.strictEqual(
        yield* resumed({ maxAttempt: 1 }),
        "a run has no option \"maxAttempt\"; did you mean \"maxAttempts\"?"
      )
    }))

  it.effect("N-30: a run accepts the options of other ways of running", () =>
    Effect.gen(function*() {
      const options = untyped({
        maxAge: 5,
        maxAttempts: 1,
        takeOver: true,
        replays: false,
        pending: "deny",
        stepIndex: 1
      })
      assert.isTrue(Exit.isSuccess(yield* Effect.exit(Effect.provide(Chat.run("go", options), model))))
    }))

  it.effect("N-30: StreamingToolExecutor.make refuses unknown options, also of a run", () =>
    Effect.gen(function*() {
      const of = (options: object) => defectOf(() => Effect.scoped(StreamingToolExecutor.make(untyped(options))))
      assert.strictEqual(
        yield* of({ maxParalel: 2 }),
        "StreamingToolExecutor.make has no option \"maxParalel\"; did you mean \"maxParallel\"?"
      )
      assert.match(yield* of({ allowance: 2 }), /has no option "allowance"; its options are maxParallel, signal, /)
      assert.match(
        yield* of({ policy: { ...Policy.falai, start_: "x", strat: 1 } }),
        /^policy of StreamingToolExecutor.make/
      )
    }))

  const refused: Readonly<Record<string, readonly [() => unknown, string]>> = {
    "Tool.make": [
      () => Tool.make("t", untyped({ parameters: {}, readonly: true })),
      "Tool.make(\"t\") has no option \"readonly\"; did you mean \"readOnly\"?"
    ],
    "Tool.make, with a limit": [
      () => Tool.make("t", untyped({ parameters: {}, limits: [{ key: "k", permits: 1, permit: 2 }] })),
      "limits of Tool.make(\"t\") has no option \"permit\"; did you mean \"permits\"?"
    ],
    "Tool.fromChat": [
      () => Tool.fromChat("t", untyped({ parameters: {}, chat: () => Stream.empty, results: () => Effect.void })),
      "Tool.fromChat(\"t\") has no option \"results\"; did you mean \"result\"?"
    ],
    "Tool.make, with what another tool has": [
      () => {
        const made = Tool.make("t", { parameters: {}, handler: () => Effect.succeed("done") })
        Tool.make("again", { ...made, parameters: {} })
        Tool.make("again", untyped({ ...made, parameters: {}, timeOuts: 5 }))
      },
      "Tool.make(\"again\") has no option \"timeOuts\"; did you mean \"timeout\"?"
    ],
    "Tool.askUser": [
      () => Tool.askUser("Which?", untyped({ options: ["a"] })),
      "Tool.askUser has no option \"options\"; its options are opts, answer, expiresIn, defaultAnswer"
    ],
    "Policy.layer": [
      () => Policy.layer(untyped({ max_turns: 5 })),
      "Policy.layer has no option \"max_turns\"; did you mean \"maxTurns\"?"
    ],
    "Limits.layer": [
      () => Limits.layer(untyped({ permits: 1, permit: 2 })),
      "Limits.layer has no option \"permit\"; did you mean \"permits\"?"
    ],
    "Session.make": [
      () => Session.make(untyped({ metaData: {} })),
      "Session.make has no option \"metaData\"; did you mean \"metadata\"?"
    ],
    "Cluster.transport": [
      () => Cluster.transport(untyped({ drained: 5 })),
      "Cluster.transport has no option \"drained\"; did you mean \"drain\"?"
    ]
  }
  for (const [name, [make, message]] of Object.entries(refused)) {
    it(`N-30: ${name} refuses an unknown option`, () => {
      assert.throws(make, TypeError, message)
    })
  }

  const failing = {
    open: [
      () => Session.open("s", untyped({ contexts: {} })),
      "Session.open has no option \"contexts\"; did you mean \"context\"?"
    ],
    claim: [
      () => Effect.scoped(Session.claim("s", untyped({ terms: 5 }))),
      "Session.claim has no option \"terms\"; did you mean \"term\"?"
    ],
    stop: [
      () => Session.stop("s", untyped({ from: "x" })),
      "Session.stop has no option \"from\"; its options are by, call"
    ],
    submit: [
      () => Session.submit("s", "go", untyped({ ids: "x" })),
      "Session.submit has no option \"ids\"; did you mean \"id\"?"
    ],
    list: [
      () => drained(Session.list(untyped({ prefixes: "x" }))),
      "Session.list has no option \"prefixes\"; did you mean \"prefix\"?"
    ],
    answer: [
      () => Session.answer(session, "c0", "yes", untyped({ comand: "x" })),
      "a verdict has no option \"comand\"; did you mean \"command\"?"
    ],
    approve: [
      () => Session.approve(session, "c0", untyped({ argument: {} })),
      "a verdict has no option \"argument\"; did you mean \"arguments\"?"
    ],
    deny: [
      () => Session.deny(session, "c0", "no", untyped({ comand: "x" })),
      "a verdict has no option \"comand\"; did you mean \"command\"?"
    ]
  } as const
  for (const [name, [make, message]] of Object.entries(failing)) {
    it.effect(`N-30: Session.${name} refuses an unknown option`, () =>
      Effect.gen(function*() {
        assert.strictEqual(yield* defectOf(make), message)
      }))
  }

  const layers: Readonly<Record<string, (options: Options) => unknown>> = {
    "OpenAiChat.layer": OpenAiChat.layer,
    "OpenAiResponses.layer": OpenAiResponses.layer,
    "Anthropic.layer": Anthropic.layer,
    "Gemini.layer": Gemini.layer,
    "AiSdk.layer": AiSdk.layer,
    "EffectAi.layer": EffectAi.layer,
    "Worker.layer": Worker.layer,
    "Durable.layer": Durable.layer,
    "Cluster.layer": Cluster.layer,
    SqliteClient: SqliteClient.layer
  }
  for (const [name, layer] of Object.entries(layers)) {
    it.effect(`N-30: ${name} refuses an unknown option, and lists its options`, () =>
      Effect.gen(function*() {
        const message = yield* layerDefectOf(() => layer(untyped({ allowance: 5 })))
        assert.include(message, `${name} has no option "allowance"; its options are `)
      }))
  }

  it.effect("N-30: the reasoning option of a layer refuses an unknown member", () =>
    Effect.gen(function*() {
      const options = { model: "m", reasoning: { efort: "low" } }
      for (
        const name of ["OpenAiChat.layer", "OpenAiResponses.layer", "Anthropic.layer", "Gemini.layer", "AiSdk.layer"]
      ) {
        const message = yield* layerDefectOf(() => layers[name]!(untyped(options)))
        assert.strictEqual(message, `reasoning of ${name} has no option "efort"; did you mean "effort"?`)
      }
    }))

  it.effect("N-30: a command of SessionClient refuses an unknown option", () =>
    Effect.gen(function*() {
      const cluster = Layer.merge(Cluster.layer({ run: () => ({}) }), SessionClient.layer).pipe(
        Layer.provide([model, Session.Store.layerMemory]),
        Layer.provide(TestRunner.layer)
      )
      const message = yield* defectOf(() =>
        SessionClient.SessionClient.use((client) => client.reply("s", "go", untyped({ afters: 1 }))).pipe(
          Effect.provide(cluster)
        )
      )
      assert.strictEqual(message, "a command has no option \"afters\"; did you mean \"after\"?")
    }))

  it("N-30: the suggested name is the known name with the fewest edits, if the edits are few", () => {
    const kind = Values.anything
    const known = { maxTurns: kind, maxTokens: kind, toolTimeout: kind, context: kind, by: kind }
    const remedy = (name: string): string => {
      try {
        checkNames("it", { [name]: 1 }, known)
      } catch (error) {
        return /did you mean "(\w+)"/.exec((error as TypeError).message)?.[1] ?? "none"
      }
      throw new Error("it must be refused")
    }
    assert.deepStrictEqual(
      ["maxTurn", "max_turns", "MAXTURNS", "maxToken", "tooltimeout", "contxt", "bye", "zz", "budget", "constructor"]
        .map(remedy),
      ["maxTurns", "maxTurns", "maxTurns", "maxTokens", "toolTimeout", "context", "by", "none", "none", "none"]
    )
    assert.strictEqual(remedy("x".repeat(100_000)), "none")
    for (const options of [undefined, null, "text", 5, {}, Object.create({ inherited: 1 }), { by: null }]) {
      checkNames("it", options, known)
    }
  })

  it("N-30: the list of run options matches the types", () => {
    type Listed = keyof typeof Settings.runOptions
    type Typed = keyof (Chat.Options & Step.Options & ToolRunner.Options & Session.ReplyOptions & Session.ResumeOptions)
    const listed = { has: true as Exclude<Typed, Listed> extends never ? true : Exclude<Typed, Listed> }
    const typed = { has: true as Exclude<Listed, Typed> extends never ? true : Exclude<Listed, Typed> }
    assert.deepStrictEqual([listed.has, typed.has], [true, true])
  })
})
