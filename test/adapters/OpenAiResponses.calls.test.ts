/**
 * The calls of a streamed reply, out of fragments and repetitions: whole, cut, interleaved, sharing ids and indices, and
 * hostile. The replies come from a server on the loopback interface, over the real HTTP client.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Chat, type Event } from "heddle"
import type { OpenAiResponses } from "heddle/adapters"
import { calls, of } from "../support/openAiChat.ts"
import * as Replies from "../support/openAiResponses.ts"
import * as Server from "../support/server.ts"

const { added, args, body, call, completed, created, delta, done, event, eventsOf, incomplete, last, message } = Replies
const { outcomeOf, response, said, usage } = Replies

const tagsOf = (events: ReadonlyArray<Event.AdapterEvent>) => events.map((event) => event._tag)

const argsDone = (output_index: unknown, text: string) =>
  event("function_call_arguments.done", { output_index, arguments: text })

describe("the function calls of a Responses reply", () => {
  it.effect("R-335, R-337, R-356: two interleaved calls keep their fragments apart, and each emits its own deltas", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOf(Replies.interleaved)
      assert.isUndefined(error)
      assert.deepStrictEqual(calls(events), Replies.interleavedCalls)
      assert.deepStrictEqual(
        of(events, "ToolCallDelta").filter(({ id }) => id === "call_b").map((event) => event.argumentsDelta),
        ["{\"path\":\"a", ".txt\"}"]
      )
      assert.deepStrictEqual(last(events).message.toolCalls?.map(({ id }) => id), ["call_a", "call_b"])
      assert.deepStrictEqual(last(events).finishReason, "tool_calls")
    }))

  it.effect("R-339: a call is whole by whichever of its four forms the arguments arrive", () =>
    Effect.gen(function*() {
      const text = "{\"q\":1}"
      const tellings: ReadonlyArray<ReadonlyArray<Replies.Json>> = [
        [args(0, "{\"q\""), args(0, ":1}")],
        [argsDone(0, text)],
        [args(0, "{\"q"), argsDone(0, text), done(0, call("a", "search", text))],
        [done(0, call("a", "search", text))],
        [completed({ output: [call("a", "search", text)] })],
        [args(0, "{\"q"), completed({ output: [call("a", "search", text)] })],
        [args(0, "{\"p\":"), done(0, call("a", "search", text))],
        [done(0, call("a", "search", "", { arguments: { q: 1 } }))],
        [args(0, text), argsDone(0, ""), done(0, call("a", "search"))]
      ]
      for (const telling of tellings) {
        const events = yield* eventsOf(added(0, call("a", "search")), ...telling, completed())
        assert.deepStrictEqual(
          calls(events),
          [{ id: "a", name: "search", arguments: { q: 1 } }],
          JSON.stringify(telling)
        )
      }
      const seeded = yield* eventsOf(added(0, call("a", "search", text)), completed())
      assert.deepStrictEqual(calls(seeded), [{ id: "a", name: "search", arguments: { q: 1 } }])
      const bare = yield* eventsOf(completed({ output: [call("a", "search", text)] }))
      assert.deepStrictEqual(calls(bare), [{ id: "a", name: "search", arguments: { q: 1 } }])
    }))

  it.effect("R-349: a call completes when the wire completes the item, before the reply ends", () =>
    Effect.gen(function*() {
      const events = yield* eventsOf(
        added(0, call("a", "search")),
        args(0, "{}"),
        done(0, call("a", "search", "{}")),
        said("later", 1),
        completed()
      )
      assert.deepStrictEqual(tagsOf(events), [
        "MessageStarted",
        "ToolCallStarted",
        "ToolCallDelta",
        "ToolCallCompleted",
        "TextDelta",
        "TextCompleted",
        "MessageCompleted"
      ])
    }))

  it.effect("M-34, I-05, I-06: a call without parameters is whole, whether or not the wire closes the item", () =>
    Effect.gen(function*() {
      const events = yield* eventsOf(
        added(0, call("a", "now")),
        done(0, call("a", "now")),
        added(1, call("b", "now")),
        completed()
      )
      assert.deepStrictEqual(calls(events), [
        { id: "a", name: "now", arguments: {} },
        { id: "b", name: "now", arguments: {} }
      ])
    }))

  it.effect("I-04, I-17: arguments that are not a JSON object are marked as lost, and other calls stay whole", () =>
    Effect.gen(function*() {
      const events = yield* eventsOf(
        done(0, call("a", "search", "{\"a\":")),
        done(1, call("b", "search", "[1]")),
        done(2, call("c", "search", "{\"b\":2}")),
        completed()
      )
      assert.deepStrictEqual(calls(events), [
        { id: "a", name: "search", arguments: {}, argumentsLost: "json_decode_error" },
        { id: "b", name: "search", arguments: {}, argumentsLost: "not_an_object" },
        { id: "c", name: "search", arguments: { b: 2 } }
      ])
    }))

  it.effect("R-357, I-18: a call with status incomplete has lost its arguments, even if they parse", () =>
    Effect.gen(function*() {
      const cut = (text: string) => call("b", "search", text, { status: "incomplete" })
      for (const text of ["{\"x\":48151", "{\"x\":1}"]) {
        const events = yield* eventsOf(
          done(0, call("a", "search", "{}", { status: "completed" })),
          added(1, call("b", "search")),
          args(1, text),
          argsDone(1, text),
          done(1, cut(text)),
          incomplete("max_output_tokens")
        )
        assert.deepStrictEqual(calls(events), [
          { id: "a", name: "search", arguments: {} },
          { id: "b", name: "search", arguments: {}, argumentsLost: "truncated" }
        ])
        assert.deepStrictEqual(
          [last(events).finishReason, last(events).rawFinishReason],
          ["length", "incomplete:max_output_tokens"]
        )
        const document = yield* eventsOf(incomplete("max_output_tokens", { output: [cut(text)] }))
        assert.deepInclude(calls(document)[0] as object, { argumentsLost: "truncated" })
      }
    }))

  it.effect("R-357: the last call of a cut reply has lost its arguments unless the wire has completed the item", () =>
    Effect.gen(function*() {
      const open = [added(0, call("a", "search")), args(0, "{\"x\":1}")]
      const cut = yield* eventsOf(...open, incomplete("max_output_tokens"))
      assert.deepInclude(calls(cut)[0] as object, { argumentsLost: "truncated" })
      const repeated = yield* eventsOf(
        ...open,
        incomplete("max_output_tokens", { output: [call("a", "search", "{\"x\":1}")] })
      )
      assert.deepInclude(calls(repeated)[0] as object, { argumentsLost: "truncated" })
      const closed = yield* eventsOf(
        ...open,
        done(0, call("a", "search", "{\"x\":1}")),
        incomplete("max_output_tokens")
      )
      assert.deepStrictEqual(calls(closed), [{ id: "a", name: "search", arguments: { x: 1 } }])
    }))

  it.effect("R-343, I-12: calls that share an index or an id stay two calls", () =>
    Effect.gen(function*() {
      const sameIndex = yield* eventsOf(
        added(0, call("a", "search")),
        added(0, call("b", "search")),
        args(0, "{\"q\":2}", { item_id: "fc_b" }),
        args(0, "{\"q\":1}", { item_id: "fc_a" }),
        done(0, call("a", "search", "{\"q\":1}")),
        done(0, call("b", "search", "{\"q\":2}")),
        completed({ output: [call("a", "search", "{\"q\":1}"), call("b", "search", "{\"q\":2}")] })
      )
      assert.deepStrictEqual(calls(sameIndex), [
        { id: "a", name: "search", arguments: { q: 1 } },
        { id: "b", name: "search", arguments: { q: 2 } }
      ])
      const sameId = yield* eventsOf(
        done(0, call("a", "search", "{\"q\":1}")),
        done(1, call("a", "search", "{\"q\":2}", { id: "fc_other" })),
        completed()
      )
      assert.deepStrictEqual(calls(sameId), [
        { id: "a", name: "search", arguments: { q: 1 } },
        { id: "a_2", name: "search", arguments: { q: 2 } }
      ])
    }))

  it.effect("R-343: a repeated completion is the same call, and completions with one index and different call ids are separate calls", () =>
    Effect.gen(function*() {
      const same = yield* eventsOf(done(0, call("a", "now", "{}")), done(0, call("a", "now", "{}")), completed())
      assert.deepStrictEqual(calls(same), [{ id: "a", name: "now", arguments: {} }])
      const bare = (call_id: string) => ({ type: "function_call", call_id, name: "now", arguments: "{}" })
      const others = yield* eventsOf(done(0, bare("a")), done(0, bare("b")), completed())
      assert.deepStrictEqual(calls(others).length, 2)
    }))

  it.effect("R-336, I-03, I-14: a call without an id gets a new id, and a call without a name is dropped", () =>
    Effect.gen(function*() {
      const events = yield* eventsOf(
        done(0, { type: "function_call", name: "now", arguments: "{}" }),
        done(1, { type: "function_call", call_id: "b", name: "", arguments: "{}" }),
        args(7, "{\"lost\":1}"),
        completed()
      )
      assert.strictEqual(calls(events).length, 1)
      assert.match(of(events, "ToolCallCompleted")[0]!.id, /^call_[0-9a-f]{32}$/)
    }))

  it.effect("R-338, I-21: fragments before their item count", () =>
    Effect.gen(function*() {
      const events = yield* eventsOf(
        args(3, "{\"q\""),
        args(3, ":1"),
        added(3, call("a", "search")),
        args(3, "}"),
        completed()
      )
      assert.deepStrictEqual(calls(events), [{ id: "a", name: "search", arguments: { q: 1 } }])
    }))

  it.effect("R-342: the metadata keeps the other fields of a call", () =>
    Effect.gen(function*() {
      const item = call("a", "rate", "{}", {
        namespace: "money",
        caller: { type: "program" },
        status: "in_progress",
        note: null
      })
      const events = yield* eventsOf(done(0, item), completed())
      assert.deepStrictEqual(Server.anywhere(of(events, "ToolCallCompleted")[0]?.metadata), {
        openaiResponses: { index: 0, id: "fc_a", namespace: "money", caller: { type: "program" }, server: "anywhere" }
      })
    }))

  it.effect("R-122: new fragments of a completed call fail the reply", () =>
    Effect.gen(function*() {
      const { error } = yield* outcomeOf(body(
        created,
        added(0, call("a", "search")),
        args(0, "{}"),
        done(0, call("a", "search", "{}")),
        args(0, "{\"q\":1}"),
        completed()
      ))
      assert.strictEqual(error?.reason, "malformed_response")
    }))

  it.effect("R-122: names, ids and arguments never reach a prototype", () =>
    Effect.gen(function*() {
      const text = "{\"__proto__\":{\"polluted\":true},\"constructor\":{\"q\":1}}"
      const events = yield* eventsOf(
        done(0, call("__proto__", "__proto__", text)),
        done("__proto__", { type: "__proto__", id: "__proto__", arguments: { "__proto__": 1 } }),
        delta("constructor", 0, "x"),
        { type: "toString" },
        completed()
      )
      const [found, hosted] = of(events, "ToolCallCompleted")
      assert.deepStrictEqual([found?.id, found?.name, Object.keys(found?.arguments ?? {})], ["__proto__", "__proto__", [
        "constructor"
      ]])
      assert.strictEqual(hosted?.providerExecuted, true)
      assert.isUndefined(({} as Record<string, unknown>)["polluted"])
    }))
})

describe("the custom tool calls of a Responses reply", () => {
  const custom = (input: string, rest: Replies.Json = {}) => ({
    type: "custom_tool_call",
    id: "ctc_1",
    call_id: "c1",
    name: "run_sql",
    input,
    status: "completed",
    ...rest
  })
  const declared = { options: { tools: [{ type: "custom", name: "run_sql" }] } }
  const hosted = { options: { tools: [{ type: "x_search" }] } }

  const callsOf = (options: Partial<OpenAiResponses.Options>, ...parts: ReadonlyArray<Replies.Json>) =>
    Effect.map(
      outcomeOf(body(...parts, completed()), options),
      ({ events }) =>
        of(events, "ToolCallCompleted").map((event) => [
          event.id,
          event.name,
          event.arguments,
          event.argumentsLost ?? event.providerExecuted === true
        ])
    )

  it.effect("R-332, R-337: a declared custom tool call has its text as input, or is truncated when cut", () =>
    Effect.gen(function*() {
      const streamed = [
        added(0, custom("", { status: "in_progress" })),
        delta("custom_tool_call_input", 0, "select"),
        done(0, custom("select 1")),
        said("Running it.", 1)
      ]
      assert.deepStrictEqual(yield* callsOf(declared, ...streamed), [["c1", "run_sql", { input: "select 1" }, false]])
      const cut = yield* outcomeOf(
        body(done(0, custom("sel", { status: "incomplete" })), incomplete("max_output_tokens")),
        declared
      )
      assert.deepInclude(calls(cut.events)[0] as object, { id: "c1", argumentsLost: "truncated" })
      const open = yield* outcomeOf(body(added(0, custom("sel")), incomplete("max_output_tokens")), declared)
      assert.deepInclude(calls(open.events)[0] as object, { id: "c1", argumentsLost: "truncated" })
      assert.strictEqual(last(cut.events).finishReason, "length")
    }))

  it.effect("R-332: an undeclared custom tool call ran at the provider if the request declares hosted tools", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* callsOf(hosted, done(0, custom("{\"q\":1}"))), [[
        "ctc_1",
        "run_sql",
        { q: 1 },
        true
      ]])
      const { events } = yield* outcomeOf(body(done(0, custom("select 1")), completed()), hosted)
      assert.strictEqual(last(events).finishReason, "stop")
    }))

  it.effect("R-332: a custom tool call without any declaration ran at the provider only if text follows the call", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* callsOf({}, done(0, custom("{\"q\":1}")), said("So.", 1)), [
        ["ctc_1", "run_sql", { q: 1 }, true]
      ])
      assert.deepStrictEqual(yield* callsOf({}, said("So.", 0), done(1, custom("{\"q\":1}"))), [
        ["c1", "run_sql", { q: 1 }, false]
      ])
      assert.deepStrictEqual(yield* callsOf({}, done(0, custom("select 1"))), [
        ["c1", "run_sql", {}, "json_decode_error"]
      ])
    }))
})

describe("an item that no tool of a run can answer", () => {
  const shell = { type: "shell_call", id: "sh_1", call_id: "s1", status: "completed", action: { commands: ["ls"] } }
  const search = { type: "tool_search_call", id: "ts_1", call_id: "t1", execution: "client", arguments: {} }
  const items: ReadonlyArray<Replies.Json> = [
    {
      type: "local_shell_call",
      id: "ls_1",
      call_id: "l1",
      status: "completed",
      action: { type: "exec", command: ["ls"] }
    },
    shell,
    { ...shell, environment: { type: "local" } },
    {
      type: "apply_patch_call",
      id: "ap_1",
      call_id: "p1",
      status: "completed",
      operation: { type: "delete_file", path: "a" }
    },
    { type: "computer_call", id: "cu_1", call_id: "c1", status: "completed", action: { type: "screenshot" } },
    { type: "mcp_approval_request", id: "mcpr_1", name: "pay", server_label: "bank", arguments: "{}" },
    search
  ]

  it.effect("N-22: an unanswerable item fails the reply with an error that names its type, and emits no tool call event", () =>
    Effect.gen(function*() {
      for (const item of items) {
        const type = String(item["type"])
        const answers: ReadonlyArray<string | Server.Answer> = [
          body(
            created,
            said("Let me see."),
            added(1, { ...item, status: "in_progress" }),
            done(1, item),
            completed({ usage })
          ),
          body(created, said("Let me see."), added(1, item), completed({ usage })),
          body(created, said("Let me see."), completed({ usage, output: [message("Let me see."), item] })),
          {
            headers: { "content-type": "application/json" },
            pieces: [JSON.stringify(response({ usage, output: [message("Let me see."), item] }))]
          }
        ]
        for (const answer of answers) {
          const { error, events } = yield* outcomeOf(answer)
          assert.deepStrictEqual([error?.reason, error?.isRetryable], ["unsupported_feature", false], type)
          assert.include(error?.detail, `asks this side for ${type}, which no tool of a run can answer`)
          const tags = tagsOf(events)
          assert.deepStrictEqual(tags.filter((tag) => /ToolCall|Completed/.test(tag)), [], type)
          assert.deepStrictEqual(of(events, "TextDelta").map((event) => event.delta).join(""), "Let me see.")
          assert.isTrue(tags.includes("RawChunk"), "the cost of the reply is lost")
        }
      }
    }))

  it.effect("N-22: the error names each kind of item once, and says how to avoid an approval request", () =>
    Effect.gen(function*() {
      const errorOf = (...output: ReadonlyArray<Replies.Json>) =>
        Effect.map(outcomeOf(body(completed({ output }))), ({ error }) => error?.detail)
      assert.strictEqual(
        yield* errorOf(items[0]!, items[0]!, items[5]!),
        "the reply asks this side for local_shell_call and mcp_approval_request, which no tool of a run can answer: " +
          "offer a tool of your own instead of the provider's, or set require_approval to \"never\""
      )
      assert.notInclude(yield* errorOf(items[0]!), "require_approval")
    }))

  it.effect("N-22: a run with an unanswerable item fails without a further request", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({
        pieces: [body(created, said("Wait."), done(1, items[0]!), completed())]
      }))
      const result = yield* Chat.run("List the files", { options: { tools: [{ type: "local_shell" }] } }).pipe(
        Effect.provide(Replies.layer(server.url))
      )
      assert.strictEqual(result.outcome._tag, "Failed")
      assert.include(String((result.outcome as { error: unknown }).error), "local_shell_call")
      assert.strictEqual(server.requests.length, 1)
    })))

  it.effect("N-22: items executed or answered by the provider are listed as executed by the provider", () =>
    Effect.gen(function*() {
      const contained = { ...shell, environment: { type: "container_reference", container_id: "cntr_1" } }
      const output = { type: "shell_call_output", id: "so_1", call_id: "s1", output: [] }
      const replies: ReadonlyArray<ReadonlyArray<Replies.Json>> = [
        [contained],
        [contained, output],
        [shell, output],
        [{ ...search, execution: "server" }],
        [search, { type: "tool_search_output", id: "to_1", call_id: "t1", tools: [] }]
      ]
      for (const output of replies) {
        for (
          const parts of [[completed({ output })], [...output.map((item, index) => done(index, item)), completed()]]
        ) {
          const { error, events } = yield* outcomeOf(body(...parts))
          assert.isUndefined(error)
          assert.deepStrictEqual(
            of(events, "ToolCallCompleted").map(({ name, providerExecuted }) => [name, providerExecuted]),
            [[output[0]!["type"], true]]
          )
          assert.strictEqual(last(events).finishReason, "stop")
        }
      }
      const other = { ...output, call_id: "s2" }
      const { error } = yield* outcomeOf(body(completed({ output: [shell, other] })))
      assert.strictEqual(error?.reason, "unsupported_feature")
    }))
})
