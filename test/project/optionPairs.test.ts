/**
 * Two options of a run together. Options that choose when calls start, in which order results are shown and which events
 * are hidden change neither the result nor what the model is sent next, beside each other and with replies in which they
 * meet: metadata that comes behind a call which has started, calls without a name, errors that are cut.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { type Chat, Message, Policy, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as Gemini from "../support/gemini.ts"
import * as Responses from "../support/openAiResponses.ts"
import { sampleOf } from "../support/property.ts"
import * as Replies from "../support/replies.ts"
import { chatOf } from "../support/scenarios.ts"

type Options =
  & Pick<
    Chat.Options<[]>,
    "emitTextDeltas" | "emitToolDeltas" | "includeRawChunks" | "maxConcurrency"
  >
  & { readonly policy?: Partial<Policy.Policy> }

/** The options that change no result. */
const options: { readonly [name: string]: Options } = {
  "start afterTurn": { policy: { start: "afterTurn" } },
  "start onCallReady": { policy: { start: "onCallReady" } },
  "no deltas of texts": { emitTextDeltas: false },
  "no deltas of calls": { emitToolDeltas: false },
  "raw chunks": { includeRawChunks: true },
  "results in call order": { policy: { resultOrder: "request" } },
  "grouped events": { policy: { toolEvents: "grouped" } },
  "hidden facts": { policy: { callFacts: "hidden" } },
  "one at a time": { maxConcurrency: 1 }
}

const both = (left: Options, right: Options) => ({
  ...left,
  ...right,
  policy: { ...Policy.standard, ...left.policy, ...right.policy }
})

/** Every pair, each with itself too, whose halves do not choose the same field. */
const pairs = Object.keys(options).flatMap((left, index) =>
  Object.keys(options).slice(index).map((right) => [left, right] as const)
)
  .filter(([left, right]) => left === right || left.split(" ")[0] !== "start" || right.split(" ")[0] !== "start")

const { call: functionCall, chunk, finish: ended } = Gemini

/** Replies whose calls have metadata behind them, and what of it the next request has. */
const late: ReadonlyArray<readonly [name: string, protocol: Replies.Name, words: ReadonlyArray<string>, body: string]> =
  [
    [
      "Gemini, a signature behind its calls",
      "gemini",
      ["behind"],
      Gemini.body(
        Gemini.thought("hm"),
        chunk([functionCall("look", { a: 1 })]),
        chunk([functionCall("find", { a: 2 })]),
        chunk([{ thoughtSignature: "behind" }]),
        ended("STOP")
      )
    ],
    [
      "Gemini, signatures in the calls and in an empty text behind them",
      "gemini",
      ["first", "last"],
      Gemini.body(
        chunk([{ functionCall: { id: "w", name: "look", args: { a: 1 } }, thoughtSignature: "first" }]),
        chunk([{ functionCall: { id: "v", name: "find", args: { a: 2 } } }]),
        chunk([{ text: "", thoughtSignature: "last" }]),
        ended("STOP")
      )
    ],
    [
      "Gemini, a call that ends with its signature",
      "gemini",
      ["end"],
      Gemini.body(
        chunk([{ functionCall: { id: "w", name: "look", willContinue: true } }]),
        chunk([{ functionCall: { id: "w", args: { a: 1 } }, thoughtSignature: "end" }]),
        ended("STOP")
      )
    ],
    [
      "Responses, what an item adds behind its arguments",
      "responses",
      ["fc_0", "fc_1", "kept"],
      Responses.body(
        Responses.created,
        Responses.added(0, Responses.call("c0", "look", "", { id: undefined })),
        Responses.event("function_call_arguments.done", { output_index: 0, arguments: "{\"a\":1}" }),
        Responses.added(1, Responses.call("c1", "find", "", { id: undefined })),
        Responses.event("function_call_arguments.done", { output_index: 1, arguments: "{\"a\":2}" }),
        Responses.done(0, Responses.call("c0", "look", "{\"a\":1}", { id: "fc_0", namespace: "kept" })),
        Responses.done(1, Responses.call("c1", "find", "{\"a\":2}", { id: "fc_1" })),
        Responses.completed()
      )
    ]
  ]

describe("two options of a run with metadata behind a call", () => {
  for (const [name, protocol, words, body] of late) {
    it.live(`the next request is the same under every pair of options: ${name}`, () =>
      Effect.gen(function*() {
        const sent = (given: ReturnType<typeof both>) =>
          Effect.map(
            Replies.played(protocol, body, given as never).pipe(Gemini.steady),
            ({ outcome, ran, requests }) => ({
              outcome,
              ran: ran.toSorted((left, right) => left.index - right.index),
              next: requests[1]?.body ?? null
            })
          )
        const alone = yield* sent(both(options["start afterTurn"]!, {}))
        assert.strictEqual(alone.outcome._tag, "Completed")
        for (const word of words) assert.include(JSON.stringify(alone.next), `"${word}"`)
        for (const [left, right] of sampleOf(pairs, 12)) {
          assert.deepStrictEqual(yield* sent(both(options[left]!, options[right]!)), alone, `${left}, ${right}`)
        }
      }))
  }
})

const anything = { type: "object", properties: {} } as const

const tools = [
  Tool.make("echo", { parameters: anything, readOnly: true, handler: (args) => Effect.succeed(args) }),
  Tool.make("long", { parameters: anything, readOnly: true, handler: () => Effect.fail("é".repeat(20_000)) }),
  Tool.make("wide", { parameters: anything, readOnly: true, handler: () => Effect.succeed("w".repeat(50_000)) }),
  Tool.make("asks", { parameters: anything, approval: true, handler: () => Effect.succeed("done") })
] as const

const done = [Script.text("done"), Script.finish("stop")]

const scripts: { readonly [name: string]: Script.Input } = {
  "calls that have no name": [
    [
      Script.toolCallDelta("a", "{}"),
      Script.toolCall("b", "echo", { x: 1 }),
      Script.toolCallDelta("c", "{\"x\":2}"),
      Script.finish("tool_calls")
    ],
    done
  ],
  "a call whose name comes behind its arguments": [
    [
      Script.toolCallDelta("a", "{\"x\":1}"),
      Script.toolCallDelta("b", "{}"),
      Script.toolCall("b", "echo", { x: 2 }),
      Script.finish("tool_calls")
    ],
    done
  ],
  "errors, results and approvals": [
    [
      Script.toolCall("a", "long"),
      Script.toolCall("b", "wide"),
      Script.toolCall("c", "gone"),
      Script.toolCall("d", "asks"),
      Script.finish("tool_calls")
    ],
    done
  ]
}

const limits: ReadonlyArray<Partial<Policy.Policy>> = [
  {},
  { resultLimit: 0 },
  { resultLimit: 0, resultCut: "head" },
  { resultLimit: 40 },
  { resultLimit: Infinity }
]

/** The codes of answers are facts of their calls, which may be hidden. */
const withoutCodes = <A>(value: A): A => {
  if (Array.isArray(value)) return value.map(withoutCodes) as A
  if (typeof value !== "object" || value === null) return value
  const kept = Object.entries(value).filter(([name]) => name !== "code" || !("toolCallId" in value))
  return Object.fromEntries(kept.map(([name, member]) => [name, withoutCodes(member)])) as A
}

describe("two options of a run with hidden or cut content", () => {
  for (const [name, script] of Object.entries(scripts)) {
    it.effect(`the result is the same under every pair of options, at every limit: ${name}`, () =>
      Effect.gen(function*() {
        for (const limit of limits) {
          const resultOf = (given: ReturnType<typeof both>) =>
            Effect.gen(function*() {
              const { model, result } = yield* chatOf(script, {
                ...given,
                policy: { ...given.policy, ...limit },
                tools: tools as unknown as []
              })
              const sent = (yield* model.requests).map(({ messages }) => messages)
              return { thread: result.thread, outcome: result.outcome, pending: result.suspensions, sent }
            })
          const alone = yield* resultOf(both({}, {}))
          for (const [left, right] of sampleOf(pairs, 10)) {
            const given = both(options[left]!, options[right]!)
            const expected = given.policy.callFacts === "hidden" ? withoutCodes(alone) : alone
            assert.deepStrictEqual(yield* resultOf(given), expected, `${left}, ${right}, ${JSON.stringify(limit)}`)
          }
          const errors = alone.thread.messages.filter(({ isError }) => isError === true)
          for (const error of errors) {
            const longest = limit.resultCut === "head" ? Infinity : limit.resultLimit === 40 ? 40 : 8_192
            assert.isAtMost(Message.text(error).length, longest)
          }
        }
      }))
  }
})
