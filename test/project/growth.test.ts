/**
 * Work grows with what there is to do, and not with its square: the thousandth delta, fragment or call takes as much as
 * the hundredth did, and so does a turn. What is counted is work, never time, so that a slip shows on any machine, and
 * only ratios are held: how much one of them takes is for the benchmark to tell.
 */
import { assert, describe, it } from "@effect/vitest"
import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, Message, Policy, Session, Tool } from "heddle"
import { unobserved } from "../support/observed.ts"
import { counted, held, perUnit, type Work } from "../support/work.ts"

type Reads = Arr.NonEmptyReadonlyArray<Arr.NonEmptyReadonlyArray<Event.AdapterEvent>>

/** A model whose replies come in the given reads. */
const model = (replies: ReadonlyArray<Reads>): Adapter.Adapter["Service"] => {
  let turn = 0
  return {
    stream: () => {
      const reads = replies[turn++]?.values() ?? [].values()
      return Stream.fromPull(Effect.succeed(Effect.suspend(() => {
        const { done, value } = reads.next()
        return done === true || value === undefined ? Cause.done() : Effect.succeed(value)
      })))
    }
  }
}

const started: Event.AdapterEvent = { _tag: "MessageStarted", message: Message.assistant("") }

const ended = (finishReason: "stop" | "tool_calls"): Event.AdapterEvent => ({
  _tag: "MessageCompleted",
  message: Message.assistant(""),
  finishReason
})

const answer: Reads = [[started, { _tag: "TextDelta", id: null, delta: "done" }, ended("stop")]]

const list = <A>(length: number, make: (index: number) => A): ReadonlyArray<A> =>
  Array.from({ length }, (_, index) => make(index))

const callEvents = (id: string): ReadonlyArray<Event.AdapterEvent> => [
  { _tag: "ToolCallStarted", id, name: "echo" },
  { _tag: "ToolCallDelta", id, argumentsDelta: `{"x":1}` },
  { _tag: "ToolCallCompleted", id, name: "echo", arguments: { x: 1 }, rawArguments: `{"x":1}` }
]

const echo = Tool.make("echo", { parameters: { x: Schema.Finite }, handler: (args) => Effect.succeed(args) })

const texts = Tool.make("texts", {
  parameters: { text: Schema.String },
  handler: ({ text }) => Effect.succeed(text.length)
})

interface Options {
  readonly policy?: Policy.Policy
  readonly maxConcurrency?: number
}

/** Reads a whole run, and tells what was seen of it and what was done for it. */
const read = (replies: ReadonlyArray<Reads>, options: Options = {}, prompt: Message.Input = Message.user("go")) => {
  const seen: Array<Event.Event> = []
  let arrays = 0
  const reading = Stream.runForEachArray(
    Chat.stream([prompt], { tools: [echo, texts], maxTurns: replies.length + 1, ...options }),
    (events) =>
      Effect.sync(() => {
        arrays++
        for (const event of events) seen.push(event)
      })
  )
  return Effect.map(
    counted(Effect.provideService(reading, Adapter.Adapter, model(replies))),
    ({ work }) => ({ seen, arrays, work })
  )
}

/** Of two sizes, what each unit of the larger one takes more; the first run of all is not looked at. */
const growth = (
  sizes: readonly [number, number, number],
  run: (size: number) => Effect.Effect<{ work: Work }, unknown>
) =>
  Effect.gen(function*() {
    const works: Array<Work> = []
    for (const size of [sizes[0], ...sizes]) works.push((yield* run(size)).work)
    const [, small, middle, large] = works as [Work, Work, Work, Work]
    const [one, two, three] = sizes
    return { before: perUnit(small, middle, two - one), after: perUnit(middle, large, three - two) }
  })

interface Growth {
  readonly before: Work
  readonly after: Work
}

const isSteady = ({ after, before }: Growth): void => {
  for (const kind of ["steps", "elements", "parsed"] as const) {
    const text = `${kind}: ${before[kind].toFixed(2)}, then ${after[kind].toFixed(2)}`
    assert.isAtMost(after[kind], before[kind] * 1.1 + 0.5, `grows: ${text}`)
  }
}

const isLinear = (growth: Growth): void => {
  isSteady(growth)
  assert.strictEqual(growth.after.parsed, 0, "parses what it has parsed before")
}

const size = <A>(first: A, rest: ReadonlyArray<A>): Arr.NonEmptyReadonlyArray<A> => [first, ...rest]

describe("growth", () => {
  it.effect("a text delta takes as many steps as the delta before, and is emitted unchanged", () =>
    Effect.gen(function*() {
      const deltas = (count: number): Reads =>
        size([started], [
          ...list(count, (index) => [{ _tag: "TextDelta", id: null, delta: `${index} ` }] as const),
          [ended("stop")] as const
        ])
      isLinear(yield* growth([100, 200, 1000], (count) => read([deltas(count)])))
      const reads = deltas(100)
      const { arrays, seen } = yield* read([reads])
      assert.strictEqual(arrays, reads.length + 2)
      for (const event of reads.flat()) assert.include(seen, event)
    }))

  it.effect("a delta among many deltas of one read takes no step", () =>
    Effect.gen(function*() {
      const burst = (count: number): Reads => [
        size(started, [
          ...list(count, (index): Event.AdapterEvent => ({ _tag: "TextDelta", id: null, delta: `${index} ` })),
          ended("stop")
        ])
      ]
      const work = yield* growth([100, 200, 1000], (count) => read([burst(count)]))
      isLinear(work)
      assert.strictEqual(work.after.steps, 0)
    }))

  it.effect("arguments are parsed once, however many fragments deliver them", () =>
    Effect.gen(function*() {
      const json = JSON.stringify({ text: "abcdefghij".repeat(1000) })
      const fragments = (count: number): Reads => {
        const width = Math.ceil(json.length / count)
        const parts = list(Math.ceil(json.length / width), (index) => json.slice(index * width, (index + 1) * width))
        return size([started, { _tag: "ToolCallStarted", id: "c", name: "texts" }], [
          ...parts.map((argumentsDelta) => [{ _tag: "ToolCallDelta", id: "c", argumentsDelta }] as const),
          [ended("tool_calls")] as const
        ])
      }
      isLinear(yield* growth([100, 200, 1000], (count) => read([fragments(count), answer])))
      const { seen, work } = yield* read([fragments(100), answer])
      assert.isAtMost(work.parsed, json.length + 100)
      assert.deepInclude(seen.find(({ _tag }) => _tag === "ToolExecutionCompleted"), {
        result: { _tag: "Ok", value: 10_000 }
      })
    }))

  const batch = (count: number): Reads =>
    size([started], [...list(count, (index) => callEvents(`c${index}`)), [ended("tool_calls")]] as Array<Reads[number]>)

  for (
    const [how, options] of [
      ["after the turn", {}],
      ["while the model speaks", { policy: { ...Policy.standard, start: "onCallReady" } }],
      ["in the order of the calls", { policy: { ...Policy.standard, resultOrder: "request", toolEvents: "grouped" } }],
      ["one at a time", { maxConcurrency: 1 }]
    ] as ReadonlyArray<readonly [string, Options]>
  ) {
    it.effect(`each call of a turn takes as much work as the call before (${how})`, () =>
      Effect.gen(function*() {
        isLinear(yield* growth([100, 200, 1000], (count) => read([batch(count), answer], options)))
      }))
  }

  it.effect("a turn takes as many steps as the turn before, and reads no message of earlier turns", () =>
    Effect.gen(function*() {
      const turns = (count: number) => [
        ...list(
          count,
          (index): Reads => [[started], callEvents(`t${index}`) as unknown as Reads[number], [ended("tool_calls")]]
        ),
        answer
      ]
      isLinear(yield* growth([50, 100, 300], (count) => read(turns(count))))
      const looksAt = (count: number) =>
        Effect.gen(function*() {
          let looks = 0
          const prompt = {
            ...Message.user("go"),
            get content() {
              looks++
              return "go"
            }
          }
          yield* read(turns(count), {}, prompt)
          return looks
        })
      assert.strictEqual(yield* looksAt(40), yield* looksAt(10))
    }))

  it.effect("a result of many turns stores each message once, and each step has its thread", () =>
    Effect.gen(function*() {
      const result = (turns: number) => {
        const replies = [
          ...list(turns, (index): Reads => [[started], callEvents(`t${index}`) as unknown as Reads[number]]),
          answer
        ]
        const options = { tools: [echo], maxTurns: turns + 1 }
        return Effect.provideService(Chat.run("go", options), Adapter.Adapter, model(replies))
      }
      const [few, some, many] = [yield* result(80), yield* result(160), yield* result(320)]
      assert.isAtMost((held(many) - held(some)) / 160, (held(some) - held(few)) / 80 + 2)
      many.steps.forEach((step, index) => {
        const { length } = step.thread.messages
        assert.strictEqual(length, index < 320 ? 3 + 2 * index : 642)
        assert.deepStrictEqual(step.thread.messages, many.thread.messages.slice(0, length))
      })
    }))

  /** A run that is kept, and the session that is loaded from its journal. */
  const kept = (replies: ReadonlyArray<Reads>) =>
    Effect.gen(function*() {
      const store = yield* Layer.build(Session.Store.layerMemory)
      const services = Context.add(store, Adapter.Adapter, model(replies))
      const opened = yield* Effect.provideContext(Session.open("s"), services)
      const options = { tools: [echo], maxTurns: replies.length + 1, maxConcurrency: 5_000 }
      const reply = Session.keep(opened, (session) => Session.reply(session, "go", options))
      const run = yield* counted(Effect.provideContext(reply, services))
      return { run, load: yield* counted(Effect.provideContext(Session.load("s"), services)) }
    }).pipe(Effect.scoped)

  const turns = (count: number): ReadonlyArray<Reads> => [
    ...list(
      count,
      (index): Reads => [[started], callEvents(`t${index}`) as unknown as Reads[number], [ended("tool_calls")]]
    ),
    answer
  ]

  it.effect("Q-09: recording or loading a call of a kept turn takes as much work as the call before", () =>
    Effect.gen(function*() {
      unobserved()
      isLinear(yield* growth([100, 200, 1000], (count) => Effect.map(kept([batch(count), answer]), ({ run }) => run)))
      isSteady(yield* growth([100, 200, 1000], (count) => Effect.map(kept([batch(count), answer]), ({ load }) => load)))
    }))

  it.effect("Q-09: recording or loading a kept turn takes as much work as the turn before", () =>
    Effect.gen(function*() {
      unobserved()
      isLinear(yield* growth([50, 100, 300], (count) => Effect.map(kept(turns(count)), ({ run }) => run)))
      isSteady(yield* growth([50, 100, 300], (count) => Effect.map(kept(turns(count)), ({ load }) => load)))
    }))
})
