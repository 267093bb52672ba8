/**
 * What the page shows behind something else is what it shows alone: of a reply behind one that was discarded, and of a
 * run behind another one. The ids of calls return.
 */
import { assert, describe, it } from "@effect/vitest"
import { openPage, type Shown } from "../support/pageDocument.ts"
import { sampleOf } from "../support/property.ts"

type Events = ReadonlyArray<{ readonly _tag: string; readonly [field: string]: unknown }>

const shownBy = async (events: Events): Promise<ReadonlyArray<Shown>> => {
  const page = openPage()
  for (const event of events) await page.take(event)
  return page.shown()
}

const call = (id: string, name: string, value: string): Events => [
  { _tag: "ToolCallStarted", id, name },
  { _tag: "ToolCallDelta", id, argumentsDelta: `{"at":"${value}"}` },
  { _tag: "ToolCallCompleted", id, name, arguments: { at: value } }
]

const text = (delta: string): Events => [{ _tag: "TextDelta", id: null, delta }]

const thought = (delta: string): Events => [{ _tag: "ReasoningDelta", id: null, delta }]

/** The pieces of replies. Each call has one of two ids. */
const pieces: Readonly<Record<string, Events>> = {
  text: text("said"),
  thought: thought("hm"),
  look: call("c0", "look", "Oslo"),
  find: call("c0", "find", "Rome"),
  pay: call("c1", "pay", "here")
}

const started = { _tag: "MessageStarted" }

/** The calls of a reply are carried out, and answered. */
const carriedOut = (reply: Events): Events =>
  reply.flatMap((event) => {
    if (event._tag !== "ToolCallCompleted") return []
    const { id, name } = event
    return [
      { _tag: "ToolExecutionStarted", id, name, at: 1_000 },
      { _tag: "ToolProgress", id, name, progress: `${name} asks` },
      { _tag: "ToolExecutionCompleted", id, name, at: 2_000 },
      { _tag: "ToolResultEncoded", id, content: `${name} did`, at: 2_000 }
    ]
  })

const whole = (reply: Events): Events => [started, ...reply, { _tag: "MessageCompleted" }, ...carriedOut(reply)]

const ended = { _tag: "ChatCompleted", result: {}, outcome: { _tag: "Completed" } }

const run = (runId: string, events: Events): Events => [
  { _tag: "RunStarted", runId },
  ...events,
  ended
]

/** Replies of one or two pieces, in which each call id is there once. */
const replies = Object.entries(pieces).flatMap(([name, piece]) => [
  { name, events: piece },
  ...Object.entries(pieces)
    .filter(([other]) => other !== name && ![name, other].every((each) => each === "look" || each === "find"))
    .map(([other, more]) => ({ name: `${name}, ${other}`, events: [...piece, ...more] }))
])

/** Where a reply is: in the run, or in the run of a sub-agent inside a call of it. */
const places: Readonly<Record<string, (events: Events) => Events>> = {
  "in a run": (events) => events,
  "in a nested run": (events) => [
    ...whole(call("outer", "digger", "deep")).slice(0, -3),
    ...events.map((nested) => ({ _tag: "ToolProgress", id: "outer", name: "digger", nested }))
  ]
}

/** What was shown before. */
const before: Readonly<Record<string, (events: Events) => Events>> = {
  nothing: (events) => run("r1", events),
  "a run": (events) => [...run("r0", whole(pieces["look"]!)), ...run("r1", events)],
  "a turn": (events) => run("r1", [...whole(pieces["look"]!), ...events])
}

/** Returns what the only run of a page shows. */
const inRun = ([shown]: ReadonlyArray<Shown>): ReadonlyArray<Shown> => {
  assert.isDefined(shown)
  return (shown as Exclude<Shown, string>)[3]
}

/** The steps of a loaded message, by the pieces of its reply. */
const steps: Readonly<Record<string, ReadonlyArray<object>>> = {
  text: [{ type: "text", text: "said" }],
  thought: [{ type: "reasoning", text: "hm" }],
  look: [tool("c0", "look", { state: "output-available", output: "looked" })],
  find: [tool("c0", "find", { state: "output-error", errorText: "no" })],
  pay: [tool("c1", "pay", { state: "output-denied", approval: { reason: "too much" } })],
  ask: [tool("c0", "ask", { state: "input-available" })]
}

function tool(toolCallId: string, toolName: string, state: object): object {
  return { type: "dynamic-tool", toolCallId, toolName, input: { by: toolName }, ...state }
}

const loadedBy = async (...names: ReadonlyArray<string>): Promise<ReadonlyArray<Shown>> => {
  const parts = names.flatMap((name) => [{ type: "step-start" }, ...steps[name]!])
  const session = { messages: [{ role: "assistant", parts }], submitted: [], suspensions: [], status: "idle" }
  const page = openPage((_, path) => path.endsWith("/s") ? Response.json(session) : undefined)
  await page.load()
  return inRun(page.shown())
}

describe("a page", () => {
  it("W-19: shows each turn of a run as alone", async () => {
    const turns = async (...names: ReadonlyArray<string>) =>
      inRun(await shownBy(run("r1", names.flatMap((name) => whole(pieces[name]!)))))
    for (const second of Object.keys(pieces)) {
      const alone = await turns(second)
      assert.isNotEmpty(alone)
      for (const first of Object.keys(pieces)) {
        const seen = await turns(first, second)
        assert.deepStrictEqual(seen, [...await turns(first), ...alone], `${second} behind ${first}`)
      }
    }
  })

  it("W-19: shows each step of a loaded session as alone", async () => {
    const names = Object.keys(steps)
    for (const second of names) {
      const alone = await loadedBy(second)
      assert.isNotEmpty(alone)
      for (const first of names) {
        // A call that waits is the last one by its id.
        if (first === "ask") continue
        assert.deepStrictEqual(
          await loadedBy(first, second),
          [...await loadedBy(first), ...alone],
          `${second} behind ${first}`
        )
      }
    }
  })

  for (const [where, inPlace] of Object.entries(places)) {
    for (const [what, behind] of Object.entries(before)) {
      it(`W-19: shows a repeated reply as one that did not break, behind ${what}, ${where}`, async () => {
        const reset = { _tag: "StepReset", error: { code: "resumed", message: "" } }
        for (const second of replies) {
          const alone = await shownBy(behind(inPlace(whole(second.events))))
          assert.isNotEmpty(alone)
          for (const first of sampleOf(replies, 4)) {
            // The reply breaks at each of its places.
            for (let length = 0; length <= first.events.length; length++) {
              const broken = [started, ...first.events.slice(0, length), reset]
              const seen = await shownBy(behind(inPlace([...broken, ...whole(second.events)])))
              assert.deepStrictEqual(seen, alone, `${second.name} behind ${length} events of ${first.name}`)
            }
          }
        }
      })
    }

    it(`W-19: shows a run behind another one as alone, ${where}`, async () => {
      for (const second of replies) {
        const alone = await shownBy(run("r1", inPlace(whole(second.events))))
        assert.isNotEmpty(alone)
        for (const first of replies) {
          const other = run("r0", inPlace(whole(first.events)))
          const seen = await shownBy([...other, ...run("r1", inPlace(whole(second.events)))])
          assert.deepStrictEqual(seen, [...await shownBy(other), ...alone], `${second.name} behind ${first.name}`)
        }
      }
    })
  }
})

/** Waits until the page has done what it can do without another answer. */
const settled = async (): Promise<void> => {
  for (let turn = 0; turn < 50; turn++) await new Promise((resolve) => setImmediate(resolve))
}

describe("a page that deletes its session", () => {
  const session = { messages: [], submitted: [], suspensions: [], status: "idle" }
  for (const isDeleted of [true, false]) {
    for (const isFirst of [true, false]) {
      for (const end of ["close", "error"] as const) {
        const what = `${end} of the stream ${isFirst ? "before" : "after"} the ${isDeleted ? "deletion" : "refusal"}`
        it(`W-19: asks for it again only where the server has it: ${what}`, async () => {
          const requests: Array<string> = []
          const streams: Array<ReadableStreamDefaultController> = []
          let answer: (response: Response) => void = () => {}
          const answered = new Promise<Response>((resolve) => {
            answer = resolve
          })
          const page = openPage((method, path) => {
            if (path === "/agents" || path.includes("?next=")) return undefined
            requests.push(`${method} ${path.slice(path.lastIndexOf("/"))}`)
            if (method === "DELETE") return answered
            if (!path.endsWith("/events")) return Response.json(session)
            return new Response(new ReadableStream({ start: (stream) => void streams.push(stream) }))
          })
          void page.follow()
          await settled()
          assert.deepStrictEqual(requests.splice(0), ["GET /events", "GET /s"])
          page.press("delete")
          page.press("delete")
          const steps = [
            () => end === "close" ? streams[0]!.close() : streams[0]!.error(new TypeError("network error")),
            () =>
              answer(
                isDeleted
                  ? new Response(null, { status: 204 })
                  : Response.json({ error: { message: "It runs." } }, { status: 409 })
              )
          ]
          for (const step of isFirst ? steps : steps.toReversed()) {
            step()
            await settled()
          }
          // A broken stream is opened again without a look at the session.
          const again = end === "close" ? ["GET /s", "GET /events"] : ["GET /events"]
          assert.deepStrictEqual(requests, ["DELETE /s", ...isDeleted ? [] : [...again, "GET /s"]])
          if (isDeleted) assert.strictEqual(page.textOf("notice"), "")
        })
      }
    }
  }

  it("W-19: says that another one has deleted it", async () => {
    const page = openPage((_, path) => path.endsWith("/events") ? new Response(null, { status: 404 }) : undefined)
    await page.follow()
    assert.strictEqual(page.textOf("notice"), "This session does not exist any more.")
  })
})
