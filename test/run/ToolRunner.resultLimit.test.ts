/**
 * How much of a result the model reads: a bound for every tool, the head and the tail of what is longer, and the bounds
 * of errors.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Message, Policy, Session, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import { property } from "../support/property.ts"
import { defectOf, only } from "../support/runs.ts"
import { anything } from "../support/tools.ts"

const giving = (value: unknown, options: { readonly maxResultChars?: number; readonly readOnly?: boolean } = {}) =>
  Tool.make("give", { parameters: anything, handler: () => Effect.succeed(value), ...options })

const call = [Message.toolCall("c0", "give")]

const contentOf = (
  tool: Tool.Tool<string, any, any, any, never>,
  options: ToolRunner.Options<never, never> = {}
) => Effect.map(ToolRunner.run(call, [tool], options), ({ messages }) => String(messages[0]?.content))

const lines = (count: number, width = 80): string =>
  Array.from({ length: count }, (_, index) => String(index).padEnd(width, ".")).join("\n")

const notice = /\n?\[truncated: (\d+) characters in all, (\d+) shown\]\n/

const parts = (content: string) => {
  const found = notice.exec(content)
  assert.isNotNull(found, `there is no notice in ${content.slice(0, 100)}`)
  const [text, all, shown] = found!
  return {
    head: content.slice(0, found!.index),
    tail: content.slice(found!.index + text.length),
    all: Number(all),
    shown: Number(shown)
  }
}

/** Half of a surrogate pair. */
const lone = /[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/

const huge = "x".repeat(5_000_000)

describe("ToolRunner: the result limit", () => {
  it.effect("M-18: by default a model reads at most 32,768 characters of a result, its head and its tail", () =>
    Effect.gen(function*() {
      assert.strictEqual(Policy.standard.resultLimit, 32_768)
      const text = lines(60_000)
      const content = yield* contentOf(giving(text))
      assert.isAtMost(content.length, 32_768)
      assert.isAtLeast(content.length, 32_000)
      const { all, head, shown, tail } = parts(content)
      assert.strictEqual(all, text.length)
      assert.strictEqual(shown, head.length + 1 + tail.length)
      assert.isTrue(text.startsWith(`${head}\n`), "the head ends at the end of a line")
      assert.isTrue(text.endsWith(`\n${tail}`), "the tail begins at the beginning of a line")
      assert.closeTo(head.length, tail.length, 200)
    }))

  it.effect("M-18: one line of five million characters is cut, and the event has the original length", () =>
    Effect.gen(function*() {
      const events = yield* Stream.runCollect(ToolRunner.stream(call, [giving(huge)]))
      const { content, originalLength } = only(events, "ToolResultEncoded")
      assert.strictEqual(originalLength, 5_000_000)
      assert.isAtMost(content.length, 32_768)
      assert.isAtLeast(content.length, 32_700)
      assert.deepStrictEqual(only(events, "ToolExecutionCompleted").result, { _tag: "Ok", value: huge })
    }))

  it.effect("M-18: a result as long as the limit stays whole", () =>
    Effect.gen(function*() {
      const text = "y".repeat(32_768)
      assert.strictEqual(yield* contentOf(giving(text)), text)
      assert.isAtMost((yield* contentOf(giving(`${text}y`))).length, 32_768)
    }))

  it.effect("M-18: `maxResultChars` is the limit of a tool, where 0 and Infinity mean no limit", () =>
    Effect.gen(function*() {
      for (const maxResultChars of [0, Infinity]) {
        assert.strictEqual(yield* contentOf(giving(huge, { maxResultChars })), huge)
      }
      const content = yield* contentOf(giving(lines(100), { maxResultChars: 1000 }))
      assert.isAtMost(content.length, 1000)
      assert.isAtLeast(content.length, 800)
      const long = yield* contentOf(giving(huge, { maxResultChars: 100_000 }))
      assert.isAtMost(long.length, 100_000)
      assert.isAtLeast(long.length, 99_900)
    }))

  it.effect("M-18: Policy.resultLimit is the limit of tools without their own limit, where 0 and Infinity mean no limit", () =>
    Effect.gen(function*() {
      const limited = (resultLimit: number) => ({ policy: { ...Policy.standard, resultLimit } })
      assert.isAtMost((yield* contentOf(giving(lines(100)), limited(1000))).length, 1000)
      for (const none of [0, Infinity]) assert.strictEqual(yield* contentOf(giving(huge), limited(none)), huge)
      for (const wrong of [-1, 1.5, Number.NaN, "10" as never]) {
        const { message } = yield* defectOf(contentOf(giving(1), limited(wrong)))
        assert.include(message, "resultLimit must be a whole number, 0 or Infinity for no limit")
      }
    }))

  it.effect("M-18, R-039: Policy.allm and Policy.falai have no default limit, keep only the head, and leave errors whole", () =>
    Effect.gen(function*() {
      for (const policy of [Policy.allm, Policy.falai]) {
        assert.strictEqual(yield* contentOf(giving(huge), { policy }), huge)
        const cut = yield* contentOf(giving("0123456789", { maxResultChars: 4 }), { policy })
        assert.strictEqual(cut, "0123\n[truncated: 10 characters in all, 4 shown]")
        const failing = Tool.make("give", { parameters: anything, handler: () => Effect.fail("z".repeat(9000)) })
        assert.include(yield* contentOf(failing, { policy }), "z".repeat(9000))
      }
    }))

  it.effect("M-18: an error has at most 8,192 characters, whatever the tool's own limit", () =>
    Effect.gen(function*() {
      for (const maxResultChars of [undefined, 10, Infinity]) {
        const failing = Tool.make("give", {
          parameters: anything,
          handler: () => Effect.fail(lines(10_000)),
          ...(maxResultChars === undefined ? {} : { maxResultChars })
        })
        const content = yield* contentOf(failing)
        assert.isAtMost(content.length, 8192)
        assert.isAtLeast(content.length, 7000)
      }
      const halted = yield* ToolRunner.run(call, [
        Tool.make("give", { parameters: anything, handler: () => Effect.fail(lines(10_000)) })
      ], { onToolError: "halt" })
      assert.isAtMost(String(halted.messages[0]?.content).length, 8192)
      assert.strictEqual(halted.halt?.haltedReason, "tool_error")
    }))

  it.effect("M-18: the result of a halt and the replacement of an error are cut at the limit", () =>
    Effect.gen(function*() {
      const halting = Tool.make("give", {
        parameters: anything,
        handler: () => Effect.succeed(Tool.halt("done", huge))
      })
      assert.isAtMost((yield* contentOf(halting)).length, 32_768)
      const failing = Tool.make("give", { parameters: anything, handler: () => Effect.fail("no") })
      const replaced = yield* contentOf(failing, {
        onToolError: (_call, _error) => Effect.succeed(Tool.ErrorDecision.continue(huge))
      })
      assert.isAtMost(replaced.length, 32_768)
    }))

  it.effect("R-039: Policy.allm and Policy.falai leave the replacement of an error whole", () =>
    Effect.gen(function*() {
      const failing = Tool.make("give", { parameters: anything, maxResultChars: 100, handler: () => Effect.fail("no") })
      for (const policy of [Policy.allm, Policy.falai]) {
        const replaced = yield* contentOf(failing, {
          policy,
          onToolError: () => Effect.succeed(Tool.ErrorDecision.continue(lines(10)))
        })
        assert.strictEqual(replaced, lines(10))
      }
    }))

  it.effect("M-18: the limit applies in awaited and streamed runs, to early tools, and to an approved call of a session", () =>
    Effect.gen(function*() {
      const script = Script.layer([
        [Script.toolCall("c0", "give"), Script.finish("tool_calls")],
        [Script.text("done"), Script.finish("stop")]
      ])
      for (const readOnly of [false, true]) {
        const tools = [giving(huge, { readOnly })]
        const result = yield* Chat.run("go", { tools }).pipe(Effect.provide(script))
        const content = String(result.thread.messages[2]?.content)
        assert.isAtMost(content.length, 32_768)
        const events = yield* Stream.runCollect(Chat.stream("go", { tools })).pipe(Effect.provide(script))
        assert.strictEqual(only(events, "ToolResultEncoded").content, content)
      }
      const asking = Tool.make("give", { parameters: anything, approval: true, handler: () => Effect.succeed(huge) })
      const asked = yield* Session.start("go", { tools: [asking] }).pipe(
        Effect.provide(Script.layer([[Script.toolCall("c0", "give"), Script.finish("tool_calls")]]))
      )
      const allowed = yield* Session.approve(asked.session, "c0")
      const { session } = yield* Session.continue(allowed, null, { tools: [asking] }).pipe(
        Effect.provide(Script.layer([[Script.text("done"), Script.finish("stop")]]))
      )
      assert.isAtMost(String(session.thread.messages[2]?.content).length, 32_768)
    }))

  it.effect("M-18: a StreamingToolExecutor has no default limit", () =>
    Effect.gen(function*() {
      const executor = yield* StreamingToolExecutor.make()
      const tool = giving(huge)
      yield* executor.addTool(Message.toolCall("c0", "give"), tool)
      yield* executor.noMoreCalls
      const updates = yield* Stream.runCollect(executor.remainingResults)
      assert.strictEqual(updates.find((update) => update.result !== undefined)?.result?.content, huge)
    }).pipe(Effect.scoped))
})

describe("ToolRunner: where a result is cut", () => {
  const cut = (text: string, maxResultChars: number) => contentOf(giving(text, { maxResultChars }))

  it.effect("M-18: a line longer than half of the limit is cut where the room ends", () =>
    Effect.gen(function*() {
      const text = `a\n${"b".repeat(5000)}\nc`
      const { head, tail } = parts(yield* cut(text, 1000))
      assert.isAtLeast(head.length, 400)
      assert.isAtLeast(tail.length, 400)
      assert.isTrue(text.startsWith(head) && text.endsWith(tail))
    }))

  it.effect("M-18: a cut never splits CRLF, and keeps a line end at the end of the text", () =>
    Effect.gen(function*() {
      const text = `${lines(200, 40).replaceAll("\n", "\r\n")}\r\n`
      const { head, tail } = parts(yield* cut(text, 1000))
      assert.isTrue(head.endsWith("\r") && text.startsWith(`${head}\n`))
      assert.isTrue(tail.endsWith("\r\n") && text.endsWith(`\n${tail}`))
    }))

  it.effect("M-18: a limit without room for the notice leaves the head and an ellipsis", () =>
    Effect.gen(function*() {
      assert.strictEqual(yield* cut("0123456789", 4), "012…")
      assert.strictEqual(yield* cut("0123456789", 1), "…")
      assert.strictEqual(yield* cut("😀😀😀", 2), "…")
      assert.strictEqual(yield* cut("0123456789", 10), "0123456789")
    }))

  const piece = Schema.Literals(["a", "bb", "\n", "\r\n", "\n\n", "😀", "é", "x".repeat(40), `${"y".repeat(30)}\n`])

  const texts = Arbitrary.all({
    pieces: Arbitrary.array(Arbitrary.schema(piece), { minLength: 1, maxLength: 10 }),
    times: Arbitrary.schema(Schema.Literals([1, 2, 7, 30])),
    limit: Arbitrary.schema(Schema.Literals([1, 2, 40, 55, 60, 61, 62, 63, 100, 101, 250]))
  })

  property(
    "M-18: a cut of any text at any limit fits, keeps its head and tail, counts correctly and splits no pair",
    texts,
    ({ limit, pieces, times }) =>
      Effect.map(cut(pieces.join("").repeat(times), limit), (content) => {
        const text = pieces.join("").repeat(times)
        if (text.length <= limit) return content === text ? [] : ["what fits was changed"]
        const found = notice.exec(content)
        const wrong = (isWrong: boolean, what: string) => isWrong ? [`${what}: ${JSON.stringify(content)}`] : []
        const always = [
          ...wrong(content.length > limit, "it is longer than the limit"),
          ...wrong(lone.test(content), "a pair is split")
        ]
        if (found === null) {
          return [...always, ...wrong(!content.endsWith("…") || !text.startsWith(content.slice(0, -1)), "no head")]
        }
        const head = content.slice(0, found.index)
        const tail = content.slice(found.index + found[0].length)
        const shown = Number(found[2])
        return [
          ...always,
          ...wrong(!text.startsWith(head), "the head is not that of the text"),
          ...wrong(!text.endsWith(tail), "the tail is not that of the text"),
          ...wrong(Number(found[1]) !== text.length, "the length is not that of the text"),
          // The line end before the notice may be the text's own.
          ...wrong(shown !== head.length + tail.length && shown !== head.length + 1 + tail.length, "miscounted")
        ]
      }),
    500
  )
})

describe("the limit of a submitted result", () => {
  const handing = (maxResultChars?: number) =>
    Tool.make("give", {
      parameters: anything,
      manual: true,
      ...(maxResultChars === undefined ? {} : { maxResultChars })
    })

  const long = lines(1_000)

  /** The result as the model reads it, as the thread has it, and as the event of its settlement tells it. */
  const submitted = <E>(
    options: Chat.Options<[Tool.Any]>,
    submit: (session: Session.Session) => Effect.Effect<Session.Session, E>
  ) =>
    Effect.gen(function*() {
      const model = yield* Script.make([
        [Script.toolCall("c0", "give", {}), Script.finish("tool_calls")],
        [Script.text("done"), Script.finish("stop")]
      ])
      const opened = yield* Session.open("s")
      const kept = Session.keep(opened, (session) => Session.reply(session, "go", options))
      const waiting = yield* Effect.provide(kept, model.layer)
      const { session: settled } = yield* Session.keep(waiting, submit)
      const loaded = yield* Session.load("s")
      assert.deepStrictEqual(loaded?.session.thread, settled.thread)
      const events = yield* Effect.provide(
        Stream.runCollect(Session.streamContinue(settled, null, options)),
        model.layer
      )
      const contents = [
        (yield* model.requests)[1]?.messages[2],
        settled.thread.messages[2],
        only(events, "ChatCompleted").result.thread.messages[2],
        { content: only(events, "ToolResultEncoded").content }
      ].map((message) => message?.content)
      for (const content of contents) assert.deepStrictEqual(content, contents[0])
      assert.isTrue(only(events, "ToolResultEncoded").settled)
      return contents[0]
    }).pipe(Effect.provide(Session.Store.layerMemory))

  it.effect("M-18: a submitted result is cut at the limit of the tool or the policy, in thread, store, event and request", () =>
    Effect.gen(function*() {
      const ways = [
        (session: Session.Session) => Session.answer(session, "c0", long),
        (session: Session.Session) => Session.settle(session, [{ id: "c0", answer: { _tag: "Value", value: long } }])
      ]
      for (const submit of ways) {
        for (const mode of ["auto", "manual"] as const) {
          const given = (maxResultChars?: number, policy: Policy.Policy = Policy.standard) =>
            Effect.map(submitted({ tools: [handing(maxResultChars)], policy, mode }, submit), String)
          const standard = yield* given()
          assert.isAtMost(standard.length, 32_768)
          assert.strictEqual(parts(standard).all, long.length)
          assert.strictEqual((yield* given(1_000)).length <= 1_000, true)
          for (const none of [0, Infinity]) assert.strictEqual(yield* given(none), long)
          assert.strictEqual(yield* given(undefined, { ...Policy.standard, resultLimit: 0 }), long)
          for (const policy of [Policy.allm, Policy.falai]) {
            assert.strictEqual(yield* given(undefined, policy), long)
            const head = yield* given(100, policy)
            assert.isTrue(head.startsWith(long.slice(0, 100)), head)
            assert.include(head, `[truncated: ${long.length} characters in all, 100 shown]`)
          }
        }
      }
    }))

  it.effect("M-18, M-19: texts among submitted parts are cut together, and an answer to a question is not cut", () =>
    Effect.gen(function*() {
      const content = yield* submitted(
        { tools: [handing(1_000)] },
        (session) =>
          Session.answer(
            session,
            "c0",
            Tool.content([{ type: "text", text: long }, { type: "image", url: "https://a.test/b.png" }])
          )
      )
      const [text, image] = content as ReadonlyArray<Message.Part>
      assert.isAtMost(text?.type === "text" ? text.text.length : Infinity, 1_000)
      assert.deepStrictEqual(image, { type: "image", url: "https://a.test/b.png" })
      const asking = Tool.make("give", { parameters: anything, handler: () => Effect.succeed(Tool.askUser("What?")) })
      const model = Script.layer([[Script.toolCall("c0", "give", {}), Script.finish("tool_calls")]])
      const { session } = yield* Effect.provide(Session.start("go", { tools: [asking] }), model)
      const answered = yield* Session.answer(session, "c0", long)
      assert.include(answered.thread.messages.map(({ content }) => content), long)
    }))
})
