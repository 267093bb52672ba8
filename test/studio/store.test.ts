/** The session that Studio shows, over a server of the test: what is read when, and what of it stays. */
import { assert, describe, it } from "@effect/vitest"
import * as Words from "../../src/studio/chat/words.ts"
import * as Client from "../../src/studio/data/client.ts"
import type { State, Told } from "../../src/studio/data/fold.ts"
import * as Store from "../../src/studio/data/store.ts"

/** Waits until the session has done what it can do without another answer. */
const settled = async (): Promise<void> => {
  for (let turn = 0; turn < 50; turn++) await new Promise((resolve) => setImmediate(resolve))
}

/** Frames come at once, and a pause is one turn of the process. */
const timing: Store.Timing = {
  frame: (change) => change(),
  pause: () => new Promise((resolve) => void setImmediate(resolve))
}

/** The events of a stream that the test tells. */
class Events {
  private readonly stream = new TransformStream<Uint8Array, Uint8Array>()
  private readonly writer = this.stream.writable.getWriter()
  readonly response = new Response(this.stream.readable)

  tell(event: object, { id, kind }: { readonly id?: string; readonly kind?: string } = {}): void {
    const lines = [...kind === undefined ? [] : [`event: ${kind}`], ...id === undefined ? [] : [`id: ${id}`]]
    const text = [...lines, `data: ${JSON.stringify(event)}`, "", ""].join("\n")
    void this.writer.write(new TextEncoder().encode(text)).catch(() => {})
  }

  end(): void {
    void this.writer.close().catch(() => {})
  }

  cut(): void {
    void this.writer.abort(new TypeError("network error")).catch(() => {})
  }
}

const facts: Client.KeptSession = {
  title: "T",
  next: "nothing",
  status: "idle",
  forks: [],
  allowed: [],
  suspensions: []
}

const ended = { _tag: "ChatCompleted", outcome: { _tag: "Completed" }, result: {} }

/** The events of a run that says a text, at times from a start. */
const saying = (runId: string, text: string, startedAt?: number): ReadonlyArray<any> =>
  [
    { _tag: "RunStarted", runId },
    { _tag: "MessageStarted" },
    { _tag: "TextDelta", id: null, delta: text },
    { _tag: "MessageCompleted" },
    { _tag: "StepCompleted", stepIndex: 0 },
    ended
  ].map((event, index) => startedAt === undefined ? event : { ...event, at: startedAt + index * 10 })

const keptRun = (runId: string, text: string, startedAt = 1_000): Client.KeptRun => ({
  runId,
  message: { id: `m-${runId}`, content: `ask ${runId}` },
  startedAt,
  events: saying(runId, text, startedAt) as ReadonlyArray<Told>
})

const refusal = (status: number, message: string) => Response.json({ error: { code: "no", message } }, { status })

/** A session of a server that has these runs, and the requests that were made. */
const opened = ({ isNew = false } = {}) => {
  const requests: Array<string> = []
  const streams: Array<Events> = []
  const server = {
    runs: [] as ReadonlyArray<Client.KeptRun>,
    facts,
    before: undefined as string | undefined,
    /** The answer to a request for events, where it is no stream. */
    events: undefined as (() => Response) | undefined,
    /** The answer to another request than one for runs and events. */
    answer: (_method: string, _path: string): Response | Promise<Response> => new Response(null, { status: 204 })
  }
  const client = new Client.Client("/", async (address, { headers, method = "GET" }) => {
    const path = address.replace(/^.*\/sessions\/?/, "")
    const after = (headers as Record<string, string>)["last-event-id"]
    requests.push(`${method} ${path.replace(/^[0-9a-f]{32}/, "new")}${after === undefined ? "" : ` after ${after}`}`)
    if (path.endsWith("/events")) {
      if (server.events !== undefined) return server.events()
      const events = new Events()
      streams.push(events)
      return events.response
    }
    if (/\/runs(\?|$)/.test(path)) {
      const { before, facts: session, runs } = server
      return Response.json({ session, runs, ...(before === undefined ? {} : { before }) })
    }
    return await server.answer(method, path)
  })
  let changes = 0
  const session = new Store.Session(client, "agent", isNew ? undefined : "s", () => void changes++, timing)
  session.open()
  const texts = () =>
    session.read().shown.map((
      { message, run }
    ) => [message?.content ?? "", run.turns.map(({ text }) => text).join("|")])
  return { changes: () => changes, requests, server, session, streams, texts }
}

describe("a session on a page", () => {
  it("V-07: a page opens the stream before it reads the runs, so that it misses no run that ended in between", async () => {
    const page = opened()
    page.server.runs = [keptRun("r1", "one"), keptRun("r2", "two")]
    await settled()
    assert.deepStrictEqual(page.requests, ["GET s/events", "GET s/runs?limit=20"])
    assert.deepStrictEqual(page.texts(), [["ask r1", "one"], ["ask r2", "two"]])
    assert.strictEqual(page.session.read().state, "ready")
    assert.isUndefined(page.session.read().running)
  })

  it("V-07: a page shows an active run once, although the journal and the stream both tell it from its beginning", async () => {
    const page = opened()
    page.server.runs = [keptRun("r1", "one"), {
      ...keptRun("r2", "two"),
      events: saying("r2", "two", 1_000).slice(0, 3)
    }]
    await settled()
    assert.strictEqual(page.session.read().running?.id, "r2")
    const live = saying("r2", "two", 1_000)
    page.streams[0]?.tell(live[0])
    page.streams[0]?.tell(live[1])
    await settled()
    // The stream is behind what the journal told.
    assert.deepStrictEqual(page.texts()[1], ["ask r2", "two"])
    for (const event of live.slice(2)) page.streams[0]?.tell(event)
    await settled()
    assert.deepStrictEqual(page.texts(), [["ask r1", "one"], ["ask r2", "two"]])
    assert.isUndefined(page.session.read().running)
  })

  it("V-07: a reset removes nothing that the run had, and keeps its times if the new events have none", async () => {
    const page = opened()
    await settled()
    const live = saying("r1", "one", 1_000)
    for (const event of live.slice(0, 4)) page.streams[0]?.tell(event, { id: "r1.1.0" })
    await settled()
    page.streams[0]?.tell({ runId: "r1" }, { kind: "reset" })
    page.streams[0]?.tell({ _tag: "RunStarted", runId: "r1" })
    page.streams[0]?.tell({ _tag: "MessageStarted" })
    await settled()
    assert.deepStrictEqual(page.texts(), [["", "one"]])
    assert.strictEqual(page.session.read().shown[0]?.run.startedAt, 1_000)
    // As far as it was before, with times of its own.
    for (const event of live.slice(2)) page.streams[0]?.tell(event)
    await settled()
    assert.deepStrictEqual(page.texts(), [["", "one"]])
    assert.isDefined(page.session.read().shown[0]?.run.outcome)
  })

  it("V-07: a run resumed by its process continues in the same stream", async () => {
    const page = opened()
    await settled()
    const live = saying("r1", "one", 1_000)
    for (const event of live.slice(0, 5)) page.streams[0]?.tell(event)
    page.streams[0]?.tell({ _tag: "RunStarted", runId: "r1", at: 2_000 })
    await settled()
    assert.deepStrictEqual(page.texts(), [["", "one"]])
    assert.deepStrictEqual(page.session.read().shown[0]?.run.resumed, [1_000])
  })

  it("V-09: a page shows another page's message, which the stream does not have", async () => {
    const page = opened()
    await settled()
    page.server.runs = [{ ...keptRun("r1", ""), events: [] }]
    page.streams[0]?.tell({ _tag: "RunStarted", runId: "r1" })
    await settled()
    assert.deepStrictEqual(page.texts(), [["ask r1", ""]])
    assert.strictEqual(page.session.read().running?.id, "r1")
  })

  it("V-09: a sent message appears at once, and belongs to the run that it begins", async () => {
    const page = opened({ isNew: true })
    page.server.answer = () => {
      page.server.facts = {
        ...facts,
        submitted: page.session.read().waiting.map(({ content, id }) => ({ id, content }))
      }
      return Response.json({}, { status: 202 })
    }
    assert.deepStrictEqual(page.requests, [])
    const sent = page.session.send("Hello")
    assert.deepStrictEqual(page.session.read().waiting.map(({ content }) => content), ["Hello"])
    assert.isUndefined(await sent)
    await settled()
    assert.deepStrictEqual(page.requests, ["POST new/messages?wait=false", "GET new/events", "GET new/runs?limit=20"])
    page.streams[0]?.tell({ _tag: "RunStarted", runId: "r1" })
    await settled()
    assert.deepStrictEqual(page.texts(), [["Hello", ""]])
    assert.deepStrictEqual(page.session.read().waiting, [])
  })

  it("V-09: a refused message disappears, and the server's sentence appears", async () => {
    const page = opened({ isNew: true })
    page.server.answer = () => refusal(409, "It runs.")
    assert.strictEqual(await page.session.send("Hello"), "It runs.")
    assert.deepStrictEqual(page.session.read().waiting, [])
    assert.strictEqual(page.session.read().notice, "It runs.")
    assert.strictEqual(page.session.read().state, "new")
  })

  describe("a message sent into a run", () => {
    /** A session with a run under way, into which a message was sent, and the message. */
    const steered = async (mode: Client.Mode = "steer") => {
      const page = opened()
      page.server.runs = [{ ...keptRun("r1", "one"), events: saying("r1", "one", 1_000).slice(0, 3) }]
      page.server.answer = () => {
        const submitted = page.session.read().waiting.map(({ content, id }) => ({ id, content, mode }))
        page.server.facts = { ...facts, submitted }
        return Response.json({}, { status: 202 })
      }
      await settled()
      assert.isUndefined(await page.session.send("Not that", mode))
      await settled()
      const [letter] = page.session.read().waiting
      assert.isDefined(letter)
      return { ...page, id: letter.id }
    }

    /** What the session shows of messages: those that wait, and those of its runs. */
    const fates = ({ session }: Pick<Awaited<ReturnType<typeof steered>>, "session">) => {
      const { shown, waiting } = session.read()
      return {
        waiting: waiting.map(({ content, fate, mode, reason }) => [content, mode, fate, reason]),
        sent: shown.flatMap(({ run }) => run.sent.map(({ content, reason, turn }) => [run.id, content, turn, reason])),
        begun: shown.map(({ message }) => [message?.content, message?.mode])
      }
    }

    it("V-13: a message waits, and is delivered with its turn, live once and the same after a reload", async () => {
      const page = await steered()
      assert.deepStrictEqual(fates(page).waiting, [["Not that", "steer", "waiting", undefined]])
      const delivered = { _tag: "MessageDelivered", id: page.id, content: "Not that", stepIndex: 1 }
      page.streams[0]?.tell({ ...delivered, at: 1_050 })
      page.streams[0]?.tell({ ...delivered, at: 1_050 })
      await settled()
      assert.deepStrictEqual(fates(page), {
        waiting: [],
        sent: [["r1", "Not that", 1, undefined]],
        begun: [["ask r1", undefined]]
      })
      // What was read before the delivery comes behind it.
      await page.session.look()
      await settled()
      assert.deepStrictEqual(fates(page).waiting, [])
      const again = opened()
      const events = [...saying("r1", "one", 1_000).slice(0, 3), { ...delivered, at: 1_050 }]
      again.server.runs = [{ ...keptRun("r1", "one"), events: events as ReadonlyArray<Told> }]
      await settled()
      assert.deepStrictEqual(fates(again), fates(page))
    })

    it("V-13: another page and a reloaded page show a waiting message, and whether it may be withdrawn", async () => {
      const page = opened()
      page.server.runs = [{ ...keptRun("r1", "one"), events: saying("r1", "one", 1_000).slice(0, 3) }]
      page.server.facts = { ...facts, submitted: [{ id: "m9", content: "Wait", mode: "steer" }], canWithdraw: true }
      await settled()
      const { session, waiting } = page.session.read()
      assert.deepStrictEqual(waiting, [{ id: "m9", content: "Wait", mode: "steer", fate: "waiting" }])
      assert.isTrue(session?.canWithdraw)
    })

    it("V-13: the next run takes a message, also if several wait and the page expected another one first", async () => {
      const page = await steered()
      assert.isUndefined(await page.session.send("And this", "next"))
      const [first, second] = page.session.read().waiting
      assert.isDefined(first)
      assert.isDefined(second)
      page.server.facts = { ...facts, submitted: [{ id: first.id, content: "Not that", mode: "steer" }] }
      page.server.runs = [keptRun("r1", "one"), {
        ...keptRun("r2", ""),
        message: { id: second.id, content: "And this" },
        events: saying("r2", "", 2_000).slice(0, 1) as ReadonlyArray<Told>
      }]
      for (const event of saying("r1", "one", 1_000).slice(3)) page.streams[0]?.tell(event)
      page.streams[0]?.tell({ _tag: "RunStarted", runId: "r2", at: 2_000 })
      await settled()
      assert.deepStrictEqual(fates(page), {
        waiting: [["Not that", "steer", "waiting", undefined]],
        sent: [],
        begun: [["ask r1", undefined], ["And this", undefined]]
      })
      page.server.facts = facts
      page.server.runs = [...page.server.runs, {
        ...keptRun("r3", ""),
        message: { id: first.id, content: "Not that", mode: "steer" },
        events: saying("r3", "", 3_000).slice(0, 1) as ReadonlyArray<Told>
      }]
      for (const event of saying("r2", "", 2_000).slice(1)) page.streams[0]?.tell(event)
      page.streams[0]?.tell({ _tag: "RunStarted", runId: "r3", at: 3_000 })
      await settled()
      assert.deepStrictEqual(fates(page).waiting, [])
      assert.deepStrictEqual(fates(page).begun.at(-1), ["Not that", "steer"])
    })

    it("V-13: the end of the run refuses a message, with its reason and its text", async () => {
      const page = await steered()
      page.server.facts = facts
      page.streams[0]?.tell({ _tag: "MessageRefused", id: page.id, content: "Not that", reason: "stopped", at: 1_040 })
      await settled()
      assert.deepStrictEqual(fates(page).waiting, [])
      assert.deepStrictEqual(fates(page).sent, [["r1", "Not that", undefined, "stopped"]])
    })

    it("V-13: a withdrawn message stays until the next message is sent, and begins no run", async () => {
      const page = await steered()
      page.server.facts = facts
      page.server.answer = () => Response.json({ withdrawn: true, id: page.id, became: "withdrawn" })
      assert.isUndefined(await page.session.withdraw(page.id))
      await settled()
      assert.deepStrictEqual(page.requests.at(-1), `DELETE s/messages/${page.id}`)
      assert.deepStrictEqual(fates(page).waiting, [["Not that", "steer", "withdrawn", undefined]])
      page.streams[0]?.tell({ _tag: "RunStarted", runId: "r2" })
      await settled()
      assert.deepStrictEqual(fates(page).begun.at(-1), [undefined, undefined])
      page.server.answer = () => Response.json({}, { status: 202 })
      assert.isUndefined(await page.session.send("Go on"))
      assert.deepStrictEqual(fates(page).waiting.map(([content]) => content), ["Go on"])
    })

    it("V-13: a late or refused withdrawal says so, and the message keeps its state", async () => {
      const page = await steered()
      page.server.answer = () => Response.json({ withdrawn: false, id: page.id, became: "delivered", stepIndex: 1 })
      assert.match(await page.session.withdraw(page.id) ?? "", /not withdrawn/)
      page.server.answer = () => refusal(403, "This is not allowed.")
      assert.strictEqual(await page.session.withdraw(page.id), "This is not allowed.")
      await settled()
      assert.strictEqual(page.session.read().notice, "This is not allowed.")
      assert.deepStrictEqual(fates(page).waiting, [["Not that", "steer", "waiting", undefined]])
    })

    it("V-13: a page finds out that another page withdrew a message, or that its run refused it, when it looks", async () => {
      for (const [became, reason] of [["withdrawn", undefined], ["refused", "budget"]] as const) {
        const page = await steered()
        page.server.facts = facts
        page.server.answer = (_, path) => {
          assert.strictEqual(path, `s/messages/${page.id}`)
          return Response.json({ id: page.id, became, ...(reason === undefined ? {} : { reason }) })
        }
        await page.session.look()
        await settled()
        assert.deepStrictEqual(fates(page).waiting, [["Not that", "steer", became, reason]])
      }
    })
  })

  it("V-09: an answered question disappears, and a refused answer keeps it", async () => {
    const page = opened()
    const suspension = { id: "r1~c", kind: "question", question: "Which?", toolCall: { id: "c", name: "ask" } } as any
    page.server.facts = { ...facts, suspensions: [suspension] }
    page.server.runs = [keptRun("r1", "one")]
    await settled()
    assert.deepStrictEqual(page.session.read().suspensions.map(({ id }) => id), ["r1~c"])
    page.server.answer = () => refusal(409, "It has an answer.")
    assert.strictEqual(await page.session.answer([{ id: "r1~c", value: "a" }]), "It has an answer.")
    assert.strictEqual(page.session.read().suspensions.length, 1)
    const misfit = { error: { code: "invalid_arguments", message: "arguments.n: Expected a number.", id: "r1~c" } }
    page.server.answer = () => Response.json(misfit, { status: 400 })
    assert.deepStrictEqual(await page.session.answer([{ id: "r1~c", approve: true, arguments: { n: "a" } }]), {
      id: "r1~c",
      sentence: "arguments.n: Expected a number."
    })
    page.server.answer = () => Response.json({}, { status: 202 })
    assert.isUndefined(await page.session.answer([{ id: "r1~c", value: "a" }]))
    assert.deepStrictEqual(page.session.read().suspensions, [])
  })

  const two = ["a", "b"].map((id) => ({
    id: `r1~${id}`,
    kind: "approval" as const,
    toolCall: { id, name: "order", arguments: { copies: 2 } }
  }))
  /** The events of a run that asks for two calls. */
  const askingTwo = [
    { _tag: "RunStarted", runId: "r1", at: 1 },
    { _tag: "MessageStarted", at: 2 },
    ...two.map(({ toolCall }) => ({ _tag: "ToolCallCompleted", ...toolCall, at: 3 })),
    { _tag: "MessageCompleted", at: 4 },
    { _tag: "ChatCompleted", outcome: { _tag: "ApprovalRequested" }, suspensions: two, at: 6 }
  ] as unknown as ReadonlyArray<Told>

  /** A session whose run asks for two calls. */
  const askedTwo = async () => {
    const page = opened()
    page.server.facts = { ...facts, suspensions: two }
    page.server.runs = [{ runId: "r1", startedAt: 1, events: askingTwo }]
    await settled()
    const call = (id: string) => page.session.read().shown[0]?.run.calls.get(id) ?? assert.fail(id)
    const open = () => page.session.read().suspensions.map(({ id }) => id)
    return { ...page, call, open }
  }

  it("V-09: a decision about one of two calls is on its card, also after a reload", async () => {
    const page = await askedTwo()
    assert.strictEqual(Words.stateOf(page.call("a")), "needs an answer")
    page.server.answer = () => Response.json({}, { status: 202 })
    await page.session.answer([{ id: "r1~a", approve: true }])
    assert.deepStrictEqual(page.open(), ["r1~b"])
    assert.strictEqual(Words.stateOf(page.call("a")), "allowed, waits for the others")
    assert.strictEqual(Words.signOf(page.call("a")), "")
    assert.strictEqual(Words.stateOf(page.call("b")), "needs an answer")
    const again = opened()
    again.server.facts = { ...facts, suspensions: two.slice(1), decided: [{ id: "a", verdict: "denied" }] }
    again.server.runs = page.server.runs
    await settled()
    const call = again.session.read().shown[0]?.run.calls.get("a")
    assert.strictEqual(call && Words.stateOf(call), "denied, waits for the others")
  })

  it("V-09: a page no longer offers a decision made on another page, once it looks or is refused", async () => {
    const looked = await askedTwo()
    looked.server.facts = { ...facts, suspensions: two.slice(1), decided: [{ id: "a", verdict: "approved" }] }
    await looked.session.look()
    assert.deepStrictEqual(looked.open(), ["r1~b"])
    assert.strictEqual(Words.stateOf(looked.call("a")), "allowed, waits for the others")
    const refused = await askedTwo()
    refused.server.facts = { ...facts, suspensions: [], decided: [] }
    refused.server.answer = () => refusal(409, "That stands.")
    assert.isUndefined(await refused.session.answer([{ id: "r1~a", approve: true }]))
    assert.deepStrictEqual(refused.open(), [])
    assert.strictEqual(refused.session.read().notice, "That stands.")
  })

  it("V-09: a page says that an answer did not reach the server until it reaches the server again", async () => {
    const page = await askedTwo()
    page.server.answer = () => Promise.reject(new TypeError("network error"))
    assert.isUndefined(await page.session.answer([{ id: "r1~a", approve: true }]))
    assert.notStrictEqual(page.session.read().notice, "")
    assert.deepStrictEqual(page.open(), ["r1~a", "r1~b"])
    await page.session.look()
    assert.strictEqual(page.session.read().notice, "")
  })

  it("V-07: the run that asked for a call has the arguments edited by its approval, live and after a reload", async () => {
    const carrying = [
      { _tag: "RunStarted", runId: "r2", at: 10 },
      { _tag: "ToolExecutionStarted", id: "a", name: "order", arguments: { copies: 1 }, at: 11 },
      { _tag: "ToolExecutionStarted", id: "b", name: "order", arguments: { copies: 2 }, at: 11 },
      { _tag: "ToolResultEncoded", id: "a", content: "ordered", at: 12 },
      { ...ended, at: 13 }
    ] as unknown as ReadonlyArray<Told>
    const live = await askedTwo()
    for (const event of carrying) live.streams[0]?.tell(event)
    await settled()
    const kept = opened()
    kept.server.runs = [
      { runId: "r1", startedAt: 1, events: askingTwo },
      { runId: "r2", startedAt: 10, events: carrying }
    ]
    await settled()
    for (const { session } of [live, kept]) {
      const [first, second] = session.read().shown.map(({ run }) => run)
      for (const call of [first?.calls.get("a"), second?.calls.get("a")]) {
        assert.deepStrictEqual(call?.arguments, { copies: 1 })
      }
      assert.deepStrictEqual(first?.calls.get("a")?.original, { copies: 2 })
      assert.isUndefined(first?.calls.get("b")?.original)
    }
  })

  it("V-08: a run that continues after answers has the picture of its whole reply, live and after a reload", async () => {
    const carrying = [
      { _tag: "RunStarted", runId: "r2", at: 1_000 },
      { _tag: "ToolExecutionStarted", id: "a", name: "order", arguments: { copies: 2 }, at: 1_001 },
      { _tag: "ToolResultEncoded", id: "a", content: "ordered", at: 1_005 },
      { _tag: "ToolResultEncoded", id: "b", isError: true, code: "denied", at: 1_005 },
      { _tag: "MessageStarted", at: 1_010 },
      { _tag: "MessageCompleted", at: 1_020 },
      { _tag: "StepCompleted", usage: { inputTokens: 5 }, at: 1_020 },
      { ...ended, usage: { inputTokens: 5 }, totalUsage: { inputTokens: 5 }, at: 1_020 }
    ] as unknown as ReadonlyArray<Told>
    const asking = askingTwo.map((event) =>
      event._tag === "ChatCompleted" ? { ...event, usage: { inputTokens: 3 }, totalUsage: { inputTokens: 3 } } : event
    )
    const live = opened()
    await settled()
    for (const event of [...asking, ...carrying]) live.streams[0]?.tell(event)
    await settled()
    const kept = opened()
    kept.server.runs = [
      { runId: "r1", startedAt: 1, events: asking },
      { runId: "r2", startedAt: 1_000, events: carrying },
      keptRun("r3", "three", 2_000)
    ]
    await settled()
    for (const { session } of [live, kept]) {
      const [first, second, third] = session.read().shown
      assert.deepStrictEqual([first?.isContinued, second?.isContinued, first?.whole], [true, false, undefined])
      const { calls, end, resumed, startedAt, total, turns } = second?.whole ?? assert.fail("it has no picture")
      assert.deepStrictEqual(Array.from(calls.values(), ({ id, state }) => [id, state]), [["a", "done"], [
        "b",
        "denied"
      ]])
      assert.deepStrictEqual([startedAt, end, turns.length, resumed], [1, 1_019, 2, []])
      assert.deepStrictEqual(total, { inputTokens: 8 })
      assert.isUndefined(third?.whole)
      // The runs alone are as they were.
      assert.deepStrictEqual(second?.run.total, { inputTokens: 5 })
    }
  })

  const results = {
    "its result": { content: "paid" },
    "its cut result": { content: "paid…", originalLength: 70_000 },
    "its error": { isError: true, code: "handler_raised", content: "no money" },
    "the person who stopped it": { isError: true, code: "cancelled", by: "ann", content: "stopped" },
    "the denial with its reason": { isError: true, code: "denied", by: "ann", detail: "too dear", content: "denied" }
  }
  for (const [what, result] of Object.entries(results)) {
    it(`V-07: a call continued by a later run has ${what} in the run that asked for it, live and after a reload`, async () => {
      const suspension = { id: "r1~c", kind: "approval", toolCall: { id: "c", name: "pay" } }
      const asking = [
        { _tag: "RunStarted", runId: "r1", at: 1 },
        { _tag: "MessageStarted", at: 2 },
        { _tag: "ToolCallCompleted", id: "c", name: "pay", arguments: {}, at: 3 },
        { _tag: "MessageCompleted", at: 4 },
        { _tag: "ToolApprovalRequested", toolCallId: "c", toolName: "pay", suspensions: [suspension], at: 5 },
        { _tag: "ChatCompleted", outcome: { _tag: "Suspended" }, suspensions: [suspension], at: 6 }
      ]
      const carrying = [
        { _tag: "RunStarted", runId: "r2", at: 10 },
        { _tag: "ToolExecutionStarted", id: "c", name: "pay", at: 11 },
        { _tag: "ToolResultEncoded", id: "c", ...result, at: 12 },
        { ...ended, at: 13 }
      ]
      const calls = (page: ReturnType<typeof opened>) => {
        const call = page.session.read().shown[0]?.run.calls.get("c")
        const { by, code, content, detail, originalLength, state } = call ?? assert.fail("no call")
        return { by, code, content, detail, originalLength, state }
      }
      const none = { by: undefined, code: undefined, content: undefined, detail: undefined, originalLength: undefined }
      const { isError: _, ...told } = { isError: false, ...result }
      const states: Readonly<Record<string, State>> = { cancelled: "cancelled", denied: "denied" }
      const state = "code" in told ? states[told.code] ?? "failed" : "done"
      const live = opened()
      await settled()
      for (const event of asking) live.streams[0]?.tell(event)
      await settled()
      assert.deepStrictEqual(calls(live), { ...none, state: "asks" })
      for (const event of carrying.slice(0, 2)) live.streams[0]?.tell(event)
      await settled()
      assert.deepStrictEqual(calls(live), { ...none, state: "running" })
      for (const event of carrying.slice(2)) live.streams[0]?.tell(event)
      await settled()
      assert.deepStrictEqual(calls(live), { ...none, ...told, state })
      const kept = opened()
      kept.server.runs = [
        { runId: "r1", startedAt: 1, events: asking as unknown as ReadonlyArray<Told> },
        { runId: "r2", startedAt: 10, events: carrying as unknown as ReadonlyArray<Told> }
      ]
      await settled()
      assert.deepStrictEqual(calls(kept), { ...none, ...told, state })
    })
  }

  it("V-09: a broken stream continues at its last offset, and the sentence about it disappears", async () => {
    const page = opened()
    await settled()
    page.streams[0]?.tell({ _tag: "RunStarted", runId: "r1" }, { id: "r1.3.0" })
    await settled()
    const notices: Array<string> = []
    page.session.subscribe(() => {
      if (notices.at(-1) !== page.session.read().notice) notices.push(page.session.read().notice)
    })
    page.streams[0]?.cut()
    await settled()
    assert.strictEqual(notices.at(-2), "The connection is lost. Trying again…")
    assert.strictEqual(page.session.read().notice, "")
    assert.deepStrictEqual(page.requests.slice(-2), ["GET s/events after r1.3.0", "GET s/runs?limit=20"])
    page.session.close()
  })

  it("V-09: earlier runs are read and placed before the current runs", async () => {
    const page = opened()
    page.server.runs = [keptRun("r3", "three")]
    page.server.before = "r3"
    await settled()
    assert.isTrue(page.session.read().hasOlder)
    page.server.runs = [keptRun("r1", "one"), keptRun("r2", "two")]
    page.server.before = undefined
    await page.session.readOlder()
    assert.deepStrictEqual(page.texts().map(([, text]) => text), ["one", "two", "three"])
    assert.strictEqual(page.requests.at(-1), "GET s/runs?before=r3&limit=20")
    assert.isFalse(page.session.read().hasOlder)
  })

  for (const status of [400, 404]) {
    it(`V-09: a page says that there is no chat at its address, and asks no further: ${status}`, async () => {
      let asked = 0
      const client = new Client.Client("/", async () => {
        asked++
        return refusal(status, "There is no such session.")
      })
      const session = new Store.Session(client, "agent", "s", () => {}, timing)
      session.open()
      await settled()
      assert.strictEqual(session.read().notice, "There is no chat at this address.")
      assert.strictEqual(session.read().state, "gone")
      assert.strictEqual(asked, 1)
    })
  }

  it("V-09: a page says that another page has deleted its session, and keeps what it shows", async () => {
    const page = opened()
    page.server.runs = [keptRun("r1", "one")]
    await settled()
    page.server.events = () => refusal(404, "There is no such session.")
    page.streams[0]?.end()
    await settled()
    assert.strictEqual(page.session.read().notice, "This chat was deleted.")
    assert.deepStrictEqual(page.texts(), [["ask r1", "one"]])
  })

  it("V-09: a page says that it hears nothing of a run known from the journal only, until the run's process answers", async () => {
    const page = opened()
    const live = saying("r1", "one", 1_000)
    page.server.runs = [{ ...keptRun("r1", "one"), events: live.slice(0, 3) }]
    await settled()
    assert.isFalse(page.session.read().isSilent)
    for (const [index, event] of live.slice(0, 3).entries()) page.streams[0]?.tell(event, { id: `r1.0.${index}` })
    await settled()
    assert.strictEqual(page.session.read().running?.id, "r1")
    assert.isTrue(page.session.read().isSilent)
    // It is taken over, and is quiet for longer.
    page.streams[0]?.tell({ runId: "r1" }, { kind: "reset" })
    for (const event of live.slice(0, 3)) page.streams[0]?.tell(event, { id: "r1.1.0" })
    await settled()
    assert.isFalse(page.session.read().isSilent)
    page.session.close()
  })

  it("V-09: a quiet run after a broken connection is not reported as silent, nor is an ended run", async () => {
    const page = opened()
    const live = saying("r1", "one", 1_000)
    await settled()
    page.streams[0]?.tell(live[0], { id: "r1.1.0" })
    await settled()
    page.streams[0]?.cut()
    await settled()
    assert.strictEqual(page.session.read().running?.id, "r1")
    assert.isFalse(page.session.read().isSilent)
    for (const event of live.slice(1)) page.streams.at(-1)?.tell(event, { id: "r1.0.9" })
    await settled()
    assert.isUndefined(page.session.read().running)
    assert.isFalse(page.session.read().isSilent)
    page.session.close()
  })

  it("V-09: a page reads a new title at once", async () => {
    const page = opened()
    await settled()
    page.server.facts = { ...facts, title: "Another" }
    await page.session.learn()
    assert.strictEqual(page.session.read().session?.title, "Another")
  })
})

describe("a page that deletes its session", () => {
  for (const isDeleted of [true, false]) {
    for (const isFirst of [true, false]) {
      for (const end of ["end", "cut"] as const) {
        const what = `${end} of the stream ${isFirst ? "before" : "after"} the ${isDeleted ? "deletion" : "refusal"}`
        it(`V-09: a page does not report its own deletion, and reads the session again only if the server kept it: ${what}`, async () => {
          const page = opened()
          await settled()
          let answer: (response: Response) => void = () => {}
          page.server.answer = () => new Promise((resolve) => void (answer = resolve))
          const removed = page.session.remove()
          page.requests.length = 0
          const steps = [
            () => page.streams[0]?.[end](),
            () => answer(isDeleted ? new Response(null, { status: 204 }) : refusal(409, "It runs."))
          ]
          for (const step of isFirst ? steps : steps.toReversed()) {
            step()
            await settled()
          }
          assert.strictEqual(await removed, isDeleted ? undefined : "It runs.")
          const again = ["GET s/events", "GET s/runs?limit=20"]
          assert.deepStrictEqual(page.requests, isDeleted ? [] : again)
          if (isDeleted) assert.strictEqual(page.session.read().notice, "")
          page.session.close()
        })
      }
    }
  }
})

describe("the frames of a stream", () => {
  it("V-07: the frames are the same wherever the network cuts them", async () => {
    const text = "id: a.1.0\ndata: {\"x\":1}\n\n: quiet\n\nevent: reset\ndata: {}\n\ndata: a\ndata: b\n\n"
    const read = async (...pieces: ReadonlyArray<string>) => {
      const stream = new ReadableStream({
        start: (controller) => {
          for (const piece of pieces) controller.enqueue(new TextEncoder().encode(piece))
          controller.close()
        }
      })
      const frames: Array<Client.Frame> = []
      for await (const frame of Client.frames(new Response(stream))) frames.push(frame)
      return frames
    }
    const whole = await read(text)
    assert.deepStrictEqual(whole, [
      { event: "message", id: "a.1.0", data: "{\"x\":1}" },
      { event: "reset", id: undefined, data: "{}" },
      { event: "message", id: undefined, data: "a\nb" }
    ])
    for (let at = 1; at < text.length; at++) {
      assert.deepStrictEqual(await read(text.slice(0, at), text.slice(at)), whole)
    }
    assert.deepStrictEqual(await read(...text), whole)
  })
})
