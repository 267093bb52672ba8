/**
 * Each pair of what governs a run: a change of each step, another model, a typed answer, an idle time, a budget, messages
 * into it. A run with both is stopped at each of its steps, and killed behind each of its records. The table is printed.
 */
import { afterAll, assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Budget, Chat, type Event, Inbox, type Journal, Output, Session, Tool } from "heddle"
import { everyStep, Script, Simulation } from "heddle/testing"
import { placesOf } from "../support/edges.ts"
import { shareOf } from "../support/property.ts"
import { modelOf, type Replies } from "../support/ruled.ts"
import { succeeded } from "../support/runs.ts"
import { journalOf, prefixed } from "../support/survivor.ts"

const { finish, text, toolCall } = Script

type Options = Chat.Options<ReadonlyArray<Tool.Any>, never, never, never, never>

const turnOf = ({ messages }: Adapter.Request): number => messages.filter(({ role }) => role === "assistant").length

const submitted = [["m1", "not that"], ["m2", "and then?"], ["m3", "never mind"]] as const

const textsIn = ({ thread }: Event.ChatResult): ReadonlyArray<unknown> =>
  thread.messages.flatMap(({ content, role }) => role === "user" ? [content] : [])

/** Sends a steer, a follow, and a steer that is withdrawn in the next turn. */
const sent = (inbox: Inbox.Inbox, turn: string): Effect.Effect<unknown> =>
  turn === "c0"
    ? Effect.all([inbox.steer("not that", { id: "m1" }), inbox.follow("and then?", { id: "m2" })])
    : Effect.andThen(inbox.steer("never mind", { id: "m3" }), inbox.withdraw("m3"))

/** Does the same through the journal, as another process does. */
const submittedIn = (store: Journal.Service, turn: string): Effect.Effect<unknown> =>
  Effect.gen(function*() {
    if (turn === "c0") {
      yield* Session.submit("s", "not that", { id: "m1", mode: "steer" })
      yield* Session.submit("s", "and then?", { id: "m2", mode: "follow" })
    } else {
      yield* Session.submit("s", "never mind", { id: "m3", mode: "steer" })
      yield* Session.withdraw("s", "m3")
    }
  }).pipe(Effect.provideService(Session.Store, store), Effect.orDie)

const Weather = Schema.Struct({ celsius: Schema.Finite })

/** Looks twice, the second time beside a call that hangs; then answers, with an answer of a type at the second try. */
const replies: Replies = (request) => {
  const turn = turnOf(request)
  const has = (tool: string) => request.tools.some(({ name }) => name === tool)
  const isTyped = has("final_answer")
  const hanging = turn === 1 && has("hang") ? [toolCall("h1", "hang")] : []
  if (turn < 2) return [toolCall(`c${turn}`, "look"), ...hanging, finish("tool_calls")]
  if (!isTyped) return [text("It is 7 °C."), finish("stop")]
  return [toolCall(`c${turn}`, "final_answer", turn === 2 ? { celsius: "warm" } : { celsius: 7 }), finish("tool_calls")]
}

const broken: Adapter.Service = {
  stream: () => Stream.fail(new Adapter.AdapterError({ reason: "provider_unavailable" }))
}

const lookWith = (act: (id: string) => Effect.Effect<unknown>) =>
  Tool.make("look", {
    parameters: {},
    readOnly: true,
    handler: (_, call) =>
      Effect.as(Effect.andThen(Effect.andThen(call.progress("looking"), act(call.id)), Effect.yieldNow), "seen")
  })

const look = lookWith(() => Effect.void)

/** Moves once, and is then silent. */
const hang = Tool.make("hang", {
  parameters: {},
  readOnly: true,
  handler: (_, call) => Effect.andThen(Effect.andThen(Effect.sleep("1 second"), call.progress("hanging")), Effect.never)
})

interface Feature {
  readonly options?: Options
  readonly tools?: ReadonlyArray<Tool.Any>
  readonly adapter?: (good: Adapter.Service) => Adapter.Service
  /** Whether messages come while it runs: a steer, a follow, and one that is withdrawn. */
  readonly isTold?: boolean
}

const madeBy = (layer: Layer.Layer<Adapter.Adapter>): Adapter.Service =>
  Effect.runSync(Adapter.Adapter.useSync((adapter) => adapter).pipe(Effect.provide(layer)))

/** Two candidates, of which the first is down. */
const withFallback = (good: Adapter.Service) =>
  madeBy(Adapter.fallback([{ layer: Adapter.layer(broken), name: "first" }, {
    layer: Adapter.layer(good),
    name: "second"
  }]))

/** Two adapters, of which a step may choose the second. */
const withNames = (good: Adapter.Service) =>
  madeBy(Adapter.named({ small: Adapter.layer(good), large: Adapter.layer({ ...good }) }))

const features: Readonly<Record<string, Feature>> = {
  prepareStep: {
    adapter: withNames,
    options: {
      prepareStep: ({ stepIndex }) =>
        Effect.sync(() => ({ temperature: stepIndex / 10, ...(stepIndex % 2 === 0 ? {} : { adapter: "large" }) }))
    }
  },
  fallback: { adapter: withFallback },
  output: { options: { output: Output.make(Weather) } },
  "idle time": { tools: [hang], options: { toolTimeout: { idle: "2 seconds" } } },
  budget: { options: { budget: Budget.make({ calls: 100, tokens: 1_000_000 }) } },
  inbox: { isTold: true }
}

const names = Object.keys(features)
const pairs = names.flatMap((one, index) => names.slice(index).map((other) => [one, other] as const))

const given = (one: string, other: string) => {
  const both = [features[one]!, features[other]!]
  return {
    isTold: both.some(({ isTold }) => isTold === true),
    more: [...new Set(both.flatMap(({ tools = [] }) => tools))],
    options: { requestId: "run", ...both[0]!.options, ...both[1]!.options } as Options,
    // Names stand around candidates.
    adapterOf: (good: Adapter.Service) =>
      [...new Set(both)].reduceRight((adapter, { adapter: change }) => change?.(adapter) ?? adapter, good)
  }
}

const shown = (request: Adapter.Request): unknown => JSON.parse(JSON.stringify(request))

/** A result without what the run has spent: a kill may take a request. */
const unspent = (result: Event.ChatResult) => ({ ...result, spent: undefined })

/** The result of the run behind the first records of its journal, in a process that was started after the kill. */
const resumed = (options: Options, layer: Layer.Layer<Adapter.Adapter>, before: ReadonlyArray<Journal.Record>) =>
  Effect.gen(function*() {
    const cut = (yield* Session.load("s"))!
    return (yield* Session.resume(cut, { ...options, takeOver: true } as {})).value.result
  }).pipe(Effect.provide([layer, prefixed("s", before)]))

const rows: Array<ReadonlyArray<string | number>> = []

/** Steps of a run that it is stopped at: each where laws are held to all of their values, and else some, spread evenly. */
const limit = Math.max(10, shareOf(1000))

describe("G81: each pair of features", () => {
  for (const [one, other] of pairs) {
    it.effect(`G81: a run with ${one} and ${other} holds when stopped at every step and when killed behind every record`, () =>
      Effect.gen(function*() {
        const { adapterOf, isTold, more, options: own } = given(one, other)
        const options = { ...own, tools: [look, ...more] }
        let last: { readonly inbox: Inbox.Inbox; result: Event.ChatResult | undefined } | undefined
        const fatesOf = ({ inbox, result }: NonNullable<typeof last>) => {
          for (const [id, content] of submitted) {
            const fate = Effect.runSync(inbox.fate(id))
            const times = result === undefined ? 0 : textsIn(result).filter((text) => text === content).length
            if (result !== undefined) {
              assert.strictEqual(times, fate?._tag === "Delivered" ? 1 : 0, `${id} ${fate?._tag}`)
            }
          }
        }
        const report = yield* everyStep(({ cancel }) => {
          if (last !== undefined) fatesOf(last)
          const attempt: NonNullable<typeof last> = { inbox: Inbox.make(), result: undefined }
          last = attempt
          const { inbox } = attempt
          const told = isTold ? { inbox, tools: [lookWith((id) => sent(inbox, id)), ...more] } : {}
          return Chat.stream("go", { ...options, ...told, cancel } as Options).pipe(
            Stream.tap((event) =>
              Effect.sync(() => {
                if (event._tag === "ChatCompleted") attempt.result = event.result
              })
            )
          )
        }, { layer: Adapter.layer(adapterOf(modelOf(replies, []))), maxOpsBeforeYield: 6, limit })
        assert.deepStrictEqual(report.violations, [])
        // Twice whole, and stopped softly and hard at each of the steps that are tried.
        const stops = (report.attempts - 2) / 2
        assert.strictEqual(stops, Math.min(limit, report.points))

        const asked: Array<Adapter.Request> = []
        const layer = Adapter.layer(adapterOf(modelOf(replies, asked)))
        const whole = succeeded(
          yield* Simulation.run(
            Effect.gen(function*() {
              const store = yield* Session.Store
              const told = isTold ? { tools: [lookWith((id) => submittedIn(store, id)), ...more] } : {}
              const { value } = yield* Session.keep(
                yield* Session.open("s"),
                (session) => Session.reply(session, "go", { ...options, ...told } as {})
              )
              return { result: value.result, records: yield* journalOf("s") }
            }).pipe(Effect.provide([layer, Session.Store.layerMemory]))
          )
        )
        const all = asked.map(shown)
        if (isTold) {
          assert.includeMembers([...textsIn(whole.result)], ["go", "not that", "and then?"])
          assert.notInclude(textsIn(whole.result), "never mind")
        }
        // What is tried has to happen.
        const said = JSON.stringify(whole.result.thread)
        assert.strictEqual(said.includes("of idle time, without progress"), more.length > 0)
        assert.strictEqual(asked[1]?.temperature, "prepareStep" === one ? 0.1 : undefined)
        let kills = 0
        for (const length of placesOf(2, whole.records.length - 1)) {
          asked.length = 0
          const ran = succeeded(yield* Simulation.run(resumed(options, layer, whole.records.slice(0, length))))
          const again = asked.map(shown)
          const where = `killed behind record ${length}, ${whole.records[length - 1]?._tag}`
          // The messages come in the turns of the uncut run: those that the records lack do not come any more.
          const records = whole.records.slice(0, length)
          const accepted = records.flatMap((record) => record._tag === "MessageSubmitted" ? [record.id] : [])
          const isWithdrawn = records.some(({ _tag }) => _tag === "MessageWithdrawn")
          const isSame = !isTold || accepted.length === submitted.length && isWithdrawn
          if (isSame) {
            assert.deepStrictEqual(again, again.length === 0 ? [] : all.slice(-again.length), where)
            assert.deepStrictEqual(unspent(ran), unspent(whole.result), where)
          } else {
            // Each accepted message is there once, steers before the follow.
            const wanted = ["m1", "m3", "m2"].filter((id) => accepted.includes(id))
            const texts = wanted.map((id) => submitted.find(([other]) => other === id)?.[1])
            const said = textsIn(ran).filter((text) => submitted.some(([, content]) => content === text))
            assert.deepStrictEqual(said, texts, where)
          }
          if (isSame) assert.isAtLeast(ran.spent?.calls ?? 0, whole.result.spent?.calls ?? 0, where)
          kills++
        }
        const { outcome, output } = whole.result
        rows.push([one, other, report.points, stops, kills, all.length, outcome._tag, JSON.stringify(output) ?? "–"])
      }))
  }

  afterAll(() => {
    const head = ["", "and", "steps", "stopped at", "kills", "requests", "outcome", "output"]
    const lines = [head, head.map(() => "-"), ...rows].map((row) => `| ${row.join(" | ")} |`)
    console.log(lines.join("\n"))
  })
})
