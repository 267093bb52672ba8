/**
 * The usage of runs whose model numbers its calls anew in each turn, as many servers do: each nested run counts once,
 * however its run is made.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Chat, type Event, Session, Tool } from "heddle"
import { Durable } from "heddle/durable"
import { Script } from "heddle/testing"
import { sampleOf } from "../support/property.ts"

const sub = Tool.fromChat("sub", { parameters: {}, chat: () => Chat.stream("sub") })

const note = Tool.make("note", { parameters: {}, handler: () => Effect.succeed("noted") })

const tools = [sub, note] as const

/** A turn: the tools that it calls, whose ids are `c0`, `c1` and so on in each turn. */
type Turn = ReadonlyArray<"note" | "sub">

/** A model for the turns, in which each reply uses another power of two: a sum says which replies it has. */
const modelOf = (turns: ReadonlyArray<Turn>) => {
  let replies = 0
  let own = 0
  let all = 0
  const used = (isOwn: boolean) => {
    const inputTokens = 2 ** replies++
    if (isOwn) own += inputTokens
    all += inputTokens
    return Script.usage({ inputTokens, outputTokens: 0 })
  }
  const script: Array<ReadonlyArray<Script.Entry>> = []
  for (const calls of turns) {
    script.push([
      ...calls.map((name, index) => Script.toolCall(`c${index}`, name, {})),
      used(true),
      Script.finish("tool_calls")
    ])
    for (const name of calls) if (name === "sub") script.push([Script.text("a"), used(false), Script.finish("stop")])
  }
  script.push([Script.text("end"), used(true), Script.finish("stop")])
  return { layer: Script.layer(script), own, all }
}

const usageOf = ({ totalUsage, usage }: Event.ChatResult) => [usage?.inputTokens, totalUsage?.inputTokens]

/** The ways to make the run. */
const ways = {
  "Chat.run": Chat.run("go", { tools }),
  "Session.start": Effect.map(Session.start("go", { tools }), ({ result }) => result),
  "Session.keep": Effect.gen(function*() {
    const opened = yield* Session.open("s")
    return (yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools }))).value.result
  }),
  "Durable.layer": Effect.provide(Chat.run("go", { tools }), Durable.layer({ id: "p" }))
}

const counted = (way: keyof typeof ways, turns: ReadonlyArray<Turn>) =>
  Effect.gen(function*() {
    const { all, layer, own } = modelOf(turns)
    const result = yield* Effect.provide(ways[way], layer)
    assert.deepStrictEqual(usageOf(result), [own, all], JSON.stringify(turns))
  }).pipe(Effect.provide(Session.Store.layerMemory, { local: true }))

const kinds: ReadonlyArray<Turn> = [["note"], ["sub"], ["note", "sub"], ["sub", "sub"]]

/** All programs of one to three turns, and those in which the calls of a sub-agent return in a later turn. */
const programs = kinds.flatMap((one) => [
  [one],
  ...kinds.flatMap((two) => [[one, two], ...kinds.map((three) => [one, two, three])])
])

const isReturning = (turns: ReadonlyArray<Turn>): boolean =>
  turns.some((calls, index) =>
    calls.some((name, place) => name === "sub" && turns.slice(index + 1).some((later) => place < later.length))
  )

describe("the usage of nested runs whose call ids return", () => {
  it.effect("O-03: Chat.run counts each nested run once", () =>
    Effect.forEach(sampleOf(programs, 20), (turns) => counted("Chat.run", turns), { discard: true }))

  for (const way of ["Session.start", "Session.keep", "Durable.layer"] as const) {
    it.effect(`O-03: ${way} counts each nested run once where no call id of a sub-agent returns`, () =>
      Effect.forEach(
        sampleOf(programs.filter((turns) => !isReturning(turns)), 12),
        (turns) => counted(way, turns),
        { discard: true }
      ))

    it.effect(
      `O-03: ${way} counts each nested run once where call c0 of a sub-agent returns in the next turn`,
      () => counted(way, [["sub"], ["sub"]])
    )

    it.effect(
      `O-03: ${way} counts each nested run once where call ids of a sub-agent return in any later turn`,
      () => Effect.forEach(programs.filter(isReturning), (turns) => counted(way, turns), { discard: true })
    )
  }
})
