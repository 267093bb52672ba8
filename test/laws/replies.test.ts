/**
 * What holds of every reply, however hostile: bytes of all four protocols, drawn, through the adapters and a run. Mistakes
 * that are planted into what an adapter emits are found.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type { Event } from "heddle"
import * as Hostile from "../support/hostile.ts"
import { check, property } from "../support/property.ts"
import type { Played } from "../support/replies.ts"

type Problems = (reply: Hostile.Reply, played: Played) => ReadonlyArray<string>

const holding = (problems: Problems, mistake?: Parameters<typeof Hostile.run>[1]) => (reply: Hostile.Reply) =>
  Effect.map(Hostile.run(reply, mistake), (played) => problems(reply, played))

const laws = {
  a: Hostile.argumentsOf,
  b: Hostile.completedOf,
  c: Hostile.textOf
}

describe("every hostile reply", () => {
  property(
    "O-07, O-19: no handler runs with arguments that the bytes do not have",
    Hostile.replies,
    holding(laws.a),
    1000,
    [
      // A call was closed with `{}`, and ran before its arguments came, which failed the reply.
      { id: "O-19", seed: "2102379827", at: 810, size: 8 },
      // `{}` stood between fragments that found no call, and was taken for all of the arguments.
      { id: "O-07", seed: "288983607", at: 4312, size: 5 },
      // Others came later to a call that was open when fragments found no call, and it ran with them.
      { id: "O-07", seed: "1689512596", at: 7895, size: 10 },
      { id: "O-07", seed: "719720257", at: 4920, size: 6 }
    ]
  )
  property("O-08, O-22: no reply with a call or an error is completed", Hostile.replies, holding(laws.b), 1000)
  property("R-334: no text that was received is lost without an error", Hostile.replies, holding(laws.c), 1000)
})

// ---------------------------------------------------------------------------------------------------------------------
// planted mistakes

type AdapterEvent = Event.AdapterEvent
type Call = Extract<AdapterEvent, { readonly _tag: "ToolCallCompleted" }>

const each = (change: (event: AdapterEvent) => ReadonlyArray<AdapterEvent>): Hostile.Fault => (events) =>
  events.flatMap(change)

const calls = (change: (call: Call) => Call): Hostile.Fault =>
  each((event) => event._tag === "ToolCallCompleted" ? [change(event)] : [event])

const whole = (call: Call): Call => {
  const { argumentsLost: _, ...rest } = call
  return rest
}

/** The text deltas, of which some are changed. */
const deltas = (change: (delta: string, index: number, count: number) => string): Hostile.Fault => (events) => {
  const count = events.filter(({ _tag }) => _tag === "TextDelta").length
  let index = 0
  return events
    .filter(({ _tag }) => _tag !== "TextCompleted")
    .map((event) => event._tag === "TextDelta" ? { ...event, delta: change(event.delta, index++, count) } : event)
}

const isOfCall = ({ _tag }: AdapterEvent): boolean => _tag.startsWith("ToolCall")

const withoutCalls = (event: AdapterEvent): ReadonlyArray<AdapterEvent> => {
  if (isOfCall(event)) return []
  if (event._tag !== "MessageCompleted") return [event]
  const { toolCalls: _, ...message } = event.message
  return [{ ...event, message, finishReason: "stop" }]
}

interface Mistake {
  readonly law: keyof typeof laws
  readonly name: string
  readonly changes: Hostile.Fault
  readonly hidesFailures?: boolean
}

const planted: ReadonlyArray<Mistake> = [
  { law: "a", name: "arguments that were lost are none", changes: calls((call) => whole(call)) },
  {
    law: "a",
    name: "arguments that were cut are mended",
    changes: calls((call) =>
      call.argumentsLost === undefined ? call : whole({ ...call, arguments: { v: call.rawArguments } })
    )
  },
  {
    law: "a",
    name: "a call is emitted again under another id",
    changes: each((event) =>
      event._tag === "ToolCallCompleted" ? [event, { ...event, id: `${event.id}_again` }] : [event]
    )
  },
  {
    law: "a",
    name: "a call has the arguments of the one before it",
    changes: (events) => {
      let before: Call["arguments"]
      return calls((call) => {
        const own = call.arguments
        const changed = before === undefined ? call : { ...call, arguments: before }
        before = own
        return changed
      })(events)
    }
  },
  {
    law: "a",
    name: "a nested member is dropped",
    changes: calls((call) => {
      const { list: _, ...args } = call.arguments ?? {}
      return { ...call, arguments: args }
    })
  },
  { law: "b", name: "calls are dropped", changes: each(withoutCalls) },
  {
    law: "b",
    name: "calls that lost their arguments are dropped",
    changes: (events) => {
      const lost = new Set(
        events.flatMap((event) =>
          event._tag === "ToolCallCompleted" && event.argumentsLost !== undefined ? [event.id] : []
        )
      )
      return events.flatMap((event): ReadonlyArray<AdapterEvent> => {
        if ("id" in event && lost.has(String(event.id)) && isOfCall(event)) return []
        if (event._tag !== "MessageCompleted") return [event]
        const toolCalls = event.message.toolCalls?.filter(({ id }) => !lost.has(id)) ?? []
        return [{ ...event, message: { ...event.message, toolCalls } }]
      })
    }
  },
  {
    law: "b",
    name: "calls are the provider's",
    changes: calls((call) => ({ ...call, providerExecuted: true }))
  },
  { law: "b", name: "a failure is hidden", changes: (events) => events, hidesFailures: true },
  {
    law: "b",
    name: "the finish reason of a reply without calls is stop",
    changes: each((event) => event._tag === "MessageCompleted" ? [{ ...event, finishReason: "stop" }] : [event])
  },
  {
    law: "c",
    name: "the last delta is dropped",
    changes: deltas((delta, index, count) => index < count - 1 ? delta : "")
  },
  {
    law: "c",
    name: "a text behind a call is dropped",
    changes: (events) => {
      const first = events.findIndex(isOfCall)
      return events.filter(({ _tag }, index) => first < 0 || index < first || !_tag.startsWith("Text"))
    }
  },
  {
    law: "c",
    name: "half of a surrogate pair is replaced",
    changes: deltas((delta) => delta.toWellFormed())
  },
  { law: "c", name: "a delta is said twice", changes: deltas((delta, index) => index === 0 ? delta + delta : delta) },
  {
    law: "c",
    name: "a failure is hidden, with the texts before it",
    changes: (events) => events.some(({ _tag }) => _tag === "MessageCompleted") ? events : events.slice(0, 1),
    hidesFailures: true
  }
]

describe("planted mistakes in hostile replies", () => {
  for (const { law, name, ...mistake } of planted) {
    it.live(`law ${law} of hostile replies finds a planted mistake: ${name}`, () =>
      Effect.map(
        check(name, Hostile.replies, holding(laws[law], mistake), { seed: "planted", runs: 400 }),
        (failure) => assert.isDefined(failure, name)
      ), 60_000)
  }
})
