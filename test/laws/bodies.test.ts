/**
 * Every body that an adapter makes, over threads, tools, options and runs of several turns that are drawn: it is
 * well-formed UTF-16, it is what the official SDK of its protocol would let a program send, and it says again what the
 * body before it in the run said. Each law finds the mistakes that are planted for it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Bodies from "../support/bodies.ts"
import { property, shareOf } from "../support/property.ts"
import * as SdkTypes from "../support/sdkTypes.ts"

type Json = Bodies.Json

/** The bodies of values that are drawn, each with its value and the protocol that it is for. */
const sample = (
  runs: number,
  seed: string
): Effect.Effect<ReadonlyArray<ReadonlyArray<SdkTypes.Body & { readonly drawn: Bodies.Drawn }>>> =>
  Effect.gen(function*() {
    const all: Array<ReadonlyArray<SdkTypes.Body & { readonly drawn: Bodies.Drawn }>> = []
    const kept = (drawn: Bodies.Drawn) =>
      Effect.map(Bodies.bodiesOf(drawn), (bodies) => {
        all.push(bodies.map((body) => ({ protocol: drawn.protocol, body, drawn })))
        return true
      })
    const result = yield* Arbitrary.checkEffect(Bodies.drawn, kept, { runs, seed, size: 10 })
    assert.isUndefined(Arbitrary.formatCheckFailure(result))
    return all
  })

describe("every request body", () => {
  property(
    "O-12: every request body is well-formed UTF-16",
    Bodies.drawn,
    (drawn) => Effect.map(Bodies.bodiesOf(drawn), (bodies) => bodies.flatMap(Bodies.wellFormed)),
    600
  )

  property(
    "O-06, O-66: every request body repeats the messages of the previous body of its run",
    Bodies.drawn,
    (drawn) => Effect.map(Bodies.bodiesOf(drawn), Bodies.extended),
    600
  )

  property(
    "O-17, O-66: every request body keeps the call ids of its server, and writes other call ids in the required form",
    Bodies.drawn,
    (drawn) => Effect.map(Bodies.bodiesOf(drawn), (bodies) => bodies.flatMap((body) => Bodies.named(drawn, body))),
    600
  )

  it.live(
    "O-14, O-67: the official SDK of its protocol accepts every request body",
    () =>
      Effect.gen(function*() {
        const bodies = (yield* sample(shareOf(600), process.env["HEDDLE_SEED"] ?? "bodies")).flat()
        const found = Array.from(SdkTypes.misfits(bodies), ([index, problem]) => ({ problem, ...bodies[index] }))
        assert.deepStrictEqual(found.slice(0, 3), [])
      }),
    300_000
  )
})

// ---------------------------------------------------------------------------------------------------------------------

/** A body with a mistake, or nothing where the mistake has no place in it. `index` is its place in the run. */
type Mistake = (body: Json, index: number) => Json | undefined

const messagesIn = (body: Json): "messages" | "contents" | "input" =>
  "messages" in body ? "messages" : "contents" in body ? "contents" : "input"

const withMessages = (body: Json, change: (messages: ReadonlyArray<Json>) => ReadonlyArray<Json>): Json => {
  const key = messagesIn(body)
  return { ...body, [key]: change(body[key]) }
}

/** Changes the first object at any depth that a change applies to. */
const within = (value: unknown, change: (object: Json) => Json | undefined): unknown => {
  if (typeof value !== "object" || value === null) return undefined
  if (!Array.isArray(value)) {
    const changed = change(value as Json)
    if (changed !== undefined) return changed
  }
  for (const [key, member] of Object.entries(value)) {
    const changed = within(member, change)
    if (changed === undefined) continue
    return Array.isArray(value) ? value.with(Number(key), changed) : { ...value, [key]: changed }
  }
  return undefined
}

const halves: Readonly<Record<string, Mistake>> = {
  "half of a pair in a text": (body) =>
    within(
      body,
      (object) => typeof object["text"] === "string" ? { ...object, text: `${object["text"]}\ud83d` } : undefined
    ) as Json,
  "the other half in the words of an answer": (body) =>
    within(
      body,
      ({ content, role, ...rest }) =>
        role === "tool" && typeof content === "string" ? { ...rest, role, content: `\ude00${content}` } : undefined
    ) as Json,
  "half of a pair as the name of a member": (body) => ({ ...body, "\ud83d": 1 }),
  "an escaped half in the arguments of a call": (body) =>
    within(
      body,
      (object) => typeof object["arguments"] === "string" ? { ...object, arguments: "{\"q\":\"\\ud83d\"}" } : undefined
    ) as Json,
  "a pair in the wrong order in the description of a tool": (body) =>
    within(
      body,
      (object) => typeof object["description"] === "string" ? { ...object, description: "\ude00\ud83d" } : undefined
    ) as Json
}

const types: Readonly<Record<string, Mistake>> = {
  "a field of ours beside a call": (body) =>
    within(body, (object) => "function" in object && "id" in object ? { ...object, server: "x" } : undefined) as Json,
  "arguments as data": (body) =>
    within(
      body,
      (object) => typeof object["arguments"] === "string" ? { ...object, arguments: {} } : undefined
    ) as Json,
  "an answer without its call": (body) =>
    within(
      body,
      ({ tool_call_id, tool_use_id, ...rest }) => (tool_call_id ?? tool_use_id) === undefined ? undefined : rest
    ) as Json,
  "a role that is none": (body) =>
    withMessages(body, (messages) => messages.map((message) => "role" in message ? { ...message, role: 7 } : message)),
  "a budget that is a text": (body) => ({ ...body, temperature: "1", generationConfig: { temperature: "1" } })
}

const ends: Readonly<Record<string, Mistake>> = {
  "the first message is forgotten": (body, index) =>
    index === 0 ? body : withMessages(body, (messages) => messages.slice(1)),
  "the time is among the instructions": (body, index) => ({
    ...body,
    ...(messagesIn(body) === "input"
      ? { instructions: `turn ${index}` }
      : { system: [{ type: "text", text: `turn ${index}` }] })
  }),
  "the answers of a turn come in another order": (body, index) =>
    index < 2 ? body : withMessages(body, (messages) => messages.toReversed()),
  "an old answer is cut": (body, index) =>
    index < 2 ? body : within(body, (object) => {
      const key = ["content", "output", "response"].find((name) =>
        "tool_call_id" in object || "tool_use_id" in object || "call_id" in object || "functionResponse" in object
          ? name in object
          : false
      )
      return key === undefined ? undefined : { ...object, [key]: `cut at ${index}` }
    }) as Json | undefined,
  "calls are numbered anew": (body, index) =>
    index === 0 ?
      body :
      within(body, (object) =>
        "tool_calls" in object || object["type"] === "tool_use" || object["type"] === "function_call" ||
          "functionCall" in object
          ? { ...object, id: `n${index}` }
          : undefined) as Json | undefined
}

/** A body in which ids are others: everywhere, in calls alone, or in answers alone. */
const withIds = (body: Json, change: (id: string) => string, where: "every" | "call" | "answer" = "every"): Json => {
  const isAnswer = (value: object) => "output" in value || "response" in value || "content" in value
  const isCall = (value: object) => "function" in value || "input" in value || "arguments" in value || "args" in value
  const isMeant = (value: object) => (where !== "call" && isAnswer(value)) || (where !== "answer" && isCall(value))
  const changed = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(changed)
    if (typeof value !== "object" || value === null) return value
    const entries = Object.entries(value).map(([key, member]) => [
      key,
      isMeant(value) && typeof member === "string" && /^(id|call_id|tool_call_id|tool_use_id)$/.test(key)
        ? change(member)
        : changed(member)
    ])
    return Object.fromEntries(entries)
  }
  return changed(body) as Json
}

const madeIn = (drawn: Bodies.Drawn) =>
  drawn.thread.filter(({ kind }) => kind === "called").flatMap(({ calls }) => calls)

const isOwn = ({ id, maker }: { readonly id: string; readonly maker: string }): boolean =>
  (maker === "own" || maker === "renamed") && id.isWellFormed() && id !== ""

/** Mistakes in the ids of a body. */
const ids: Readonly<Record<string, (body: Json, drawn: Bodies.Drawn) => Json | undefined>> = {
  "an id of another server as it was": (body, drawn) => {
    const [first] = madeIn(drawn)
    return first === undefined || isOwn(first) ? undefined : withIds(body, (id) => `${id}${"/".repeat(70)}`)
  },
  "an id of the server with a number": (body, drawn) => {
    const own = madeIn(drawn).find(isOwn)?.id
    return own === undefined ? undefined : withIds(body, (id) => id === own ? `${id}_2` : id)
  },
  "one id for all calls": (body, drawn) =>
    ["Anthropic", "OpenAiResponses", "mistral"].includes(drawn.protocol) && madeIn(drawn).length > 1
      ? withIds(body, () => "callcall1")
      : undefined,
  "answers that name no call": (body, drawn) =>
    madeIn(drawn).length > 0 ? withIds(body, (id) => `${id}1`, "answer") : undefined,
  "calls without their answers": (body, drawn) =>
    madeIn(drawn).length > 0 ? withIds(body, (id) => `${id}1`, "call") : undefined
}

interface Score {
  readonly planted: number
  readonly found: number
}

type Run = ReadonlyArray<SdkTypes.Body>

const again = (body: string): string => JSON.stringify(JSON.parse(body))

const spoilt = (run: Run, mistake: Mistake): Run =>
  run.map(({ body, protocol }, index) => ({
    protocol,
    body: JSON.stringify(mistake(JSON.parse(body), index) ?? JSON.parse(body))
  }))

/** How many runs each mistake has a place in, and how many of these the law finds. */
const scores = (
  runs: ReadonlyArray<Run>,
  mistakes: Readonly<Record<string, Mistake>>,
  law: (runs: ReadonlyArray<Run>) => ReadonlyArray<boolean>
): Readonly<Record<string, Score>> => {
  const planted = Object.entries(mistakes).map(([name, mistake]) => {
    const all = runs.map((run) => spoilt(run, mistake)).filter((run, index) =>
      run.some(({ body }, at) => body !== again(runs[index]![at]!.body))
    )
    return { name, all }
  })
  const found = law(planted.flatMap(({ all }) => all))
  let start = 0
  return Object.fromEntries(planted.map(({ all, name }) => {
    const own = found.slice(start, start += all.length)
    return [name, { planted: all.length, found: own.filter((isFound) => isFound).length }]
  }))
}

describe("planted mistakes in request bodies", () => {
  const drawn = Effect.runSync(Effect.cached(sample(80, "planted")))

  const all = (found: Readonly<Record<string, Score>>): void => {
    for (const [name, { found: count, planted }] of Object.entries(found)) {
      assert.isAbove(planted, 3, `${name}: it has a place in too few runs`)
      assert.strictEqual(count, planted, name)
    }
  }

  it.live("O-12: the law of UTF-16 finds five planted kinds of half surrogate pairs, in every run with a place for them", () =>
    Effect.map(
      drawn,
      (runs) =>
        all(
          scores(runs, halves, (spoilt) =>
            spoilt.map((run) =>
              run.some(({ body }) => Bodies.wellFormed(body).length > 0)
            ))
        )
    ))

  it.live("O-06, O-66: the law of extension finds five planted changes of earlier messages, in every run of several turns", () =>
    Effect.map(
      drawn,
      (runs) =>
        all(scores(
          runs.filter((run) => run.length > 2),
          ends,
          (spoilt) => spoilt.map((run) => Bodies.extended(run.map(({ body }) => body)).length > 0)
        ))
    ))

  it.live("O-17, O-66: the law of names finds five planted wrong call ids, in every body with a place for them", () =>
    Effect.map(sample(400, "ids"), (runs) => {
      const first = runs.flatMap(([body]) => body === undefined ? [] : [body])
      all(Object.fromEntries(
        Object.entries(ids).map(([name, mistake]) => {
          const bodies = first.flatMap(({ body, drawn }) => {
            const wrong = mistake(JSON.parse(body), drawn)
            const text = JSON.stringify(wrong)
            return wrong === undefined || text === again(body) ? [] : [{ drawn, text }]
          })
          const found = bodies.filter(({ drawn, text }) => Bodies.named(drawn, text).length > 0)
          return [name, { planted: bodies.length, found: found.length }]
        })
      ))
    }))

  it.live(
    "O-14, O-67: the SDK types find five planted misfits, in every run with a place for them",
    () =>
      Effect.map(drawn, (runs) =>
        all(scores(runs, types, (spoilt) => {
          const found = SdkTypes.misfits(spoilt.flat())
          let start = 0
          return spoilt.map((run) => {
            const isFound = run.some((_, index) => found.has(start + index))
            start += run.length
            return isFound
          })
        }))),
    300_000
  )
})
