/**
 * What a page shows of a stop and of a denial: what was left running, who denied a call and why. The journal tells the
 * same as the run did while it lived, and to the same readers.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as Stream from "effect/Stream"
import { Chat, Event, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { passing } from "../support/edges.ts"
import { living, toldOf } from "../support/journalEvents.ts"

type Publish = NonNullable<Event.PublicOptions["publish"]>

const grace = 400

const runId = "r1"

const endsOf = (events: ReadonlyArray<Event.PublicEvent>) =>
  events.flatMap((event) =>
    event._tag === "ChatCompleted" ? [{ outcome: event.outcome._tag, abandoned: event.abandoned }] : []
  )

const script = (...names: ReadonlyArray<string>) =>
  Script.layer([
    [...names.map((name, index) => Script.toolCall(`${name}${index}`, name, {})), Script.finish("tool_calls")],
    [Script.text("done"), Script.finish("stop")]
  ])

const deaf = Tool.make("deaf", {
  parameters: {},
  handler: () => Effect.uninterruptible(Effect.sleep(2_000))
})

const block = Tool.make("block", { parameters: {}, interrupt: "block", handler: () => Effect.sleep(2_000) })

const sub = Tool.fromChat("sub", {
  parameters: {},
  interrupt: "block",
  chat: () => Stream.provide(Chat.stream("sub", { tools: [deaf, block], grace }), script("deaf", "block"))
})

/** Stops a run with calls at work, and returns the public ends that it told and that its journal tells. */
const stopped = (publish: Publish, ...names: ReadonlyArray<string>) =>
  Effect.gen(function*() {
    const { events, onEvent } = living({ publish, runId })
    const kept = yield* Session.open("s")
    const tools = [deaf, block, sub]
    yield* passing(Effect.provide(
      Session.keep(kept, (session) =>
        Session.reply(session, "go", { tools, grace, onEvent, requestId: runId, cancel: Effect.sleep(100) })),
      script(...names)
    ))
    return { live: endsOf(events), told: endsOf(yield* toldOf("s", { publish })) }
  }).pipe(Effect.provide([Session.Store.layerMemory, Logger.layer([])]))

const named = (ends: ReadonlyArray<{ readonly abandoned?: ReadonlyArray<Event.PublicAbandoned> | undefined }>) =>
  ends.map(({ abandoned }) => abandoned?.map(({ id, kind, name, path }) => ({ id, kind, name, path })))

describe("abandoned work", () => {
  const deaf0 = { id: "deaf0", kind: "handler", name: "deaf", path: undefined } as const
  const nested = { id: "deaf0", kind: "handler", name: "deaf", path: ["sub0", "deaf0"] } as const

  const extents: ReadonlyArray<readonly [what: string, publish: Publish, own: boolean, inner: boolean]> = [
    ["all", "all", true, true],
    ["names", "names", true, true],
    ["none", "none", false, false],
    ["not the tool that was left", (tool) => tool === "deaf" ? "none" : "all", false, false],
    ["not the sub-agent around it", (tool) => tool === "sub" ? "none" : "all", true, false]
  ]
  for (const [what, publish, own, inner] of extents) {
    it.effect(`V-07: the end of a run names abandoned work, live and from the journal, as far as its calls are published: ${what}`, () =>
      Effect.gen(function*() {
        const alone = yield* stopped(publish, "deaf", "block")
        assert.deepStrictEqual(named(alone.live), [own ? [deaf0] : undefined])
        assert.deepStrictEqual(alone.told, alone.live)
        const within = yield* stopped(publish, "sub", "block")
        assert.deepStrictEqual(named(within.live), [inner ? [nested] : undefined])
        assert.deepStrictEqual(within.told, within.live)
      }))
  }

  it.effect("V-07: the end of a run without abandoned work has no such field", () =>
    Effect.gen(function*() {
      const { live, told } = yield* stopped("all", "block")
      assert.deepStrictEqual(live, [{ outcome: "Cancelled", abandoned: undefined }])
      assert.deepStrictEqual(told, live)
    }))

  const shownOf = (abandoned: ReadonlyArray<unknown>, options: Event.PublicOptions = {}) => {
    const result = { outcome: { _tag: "Cancelled", reason: "stop" }, abandoned }
    const shown = Event.toPublic({ _tag: "ChatCompleted", result } as unknown as Event.Event, options)
    return shown?._tag === "ChatCompleted" ? shown.abandoned : undefined
  }

  it("V-07: the end of a run names no store, whose id has the principal's name, and drops malformed entries", () => {
    const whole = { kind: "handler", id: "c", name: "deaf", ageMillis: 1 }
    assert.deepStrictEqual(shownOf([{ ...whole, secret: "x" }]), [whole] as unknown)
    const refused = [
      { ...whole, kind: "store", id: "ann:s1" },
      { ...whole, kind: "cancel" },
      { ...whole, kind: "other" },
      { ...whole, id: 1 },
      { ...whole, ageMillis: "1" },
      { ...whole, path: [1] },
      { ...whole, path: Array.from({ length: 65 }, () => "c") },
      null,
      "deaf"
    ]
    for (const entry of refused) assert.isUndefined(shownOf([entry]), JSON.stringify(entry))
  })

  it("V-07: the end of a run names a hook and the run's adapter even without published calls, but not those of inner runs", () => {
    const hook = { kind: "hook", id: runId, name: "onEvent", ageMillis: 1 }
    const adapter = { kind: "adapter", id: runId, name: "stream", ageMillis: 1 }
    const options = { publish: "none", runId } as const
    assert.deepStrictEqual(shownOf([hook, adapter], options), [hook, adapter] as unknown)
    const inner = [{ ...hook, path: ["c", runId] }, { ...adapter, path: ["c", "other"] }]
    assert.isUndefined(shownOf(inner, options))
    assert.lengthOf(shownOf(inner, { publish: "names", runId }) ?? [], 2)
  })
})

const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })

const careful = Tool.fromChat("careful", {
  parameters: {},
  chat: () => Stream.provide(Chat.stream("careful", { tools: [pay] }), script("pay"))
})

const answersIn = (events: ReadonlyArray<Event.PublicEvent>) =>
  events.flatMap((event) => event._tag === "ToolResultEncoded" ? [event] : [])

const untimed = (events: ReturnType<typeof answersIn>) => events.map((event) => ({ ...event, at: undefined }))

/** Lets a run wait, settles its suspensions, and returns the answers that the run behind told, and its journal. */
const settled = (
  publish: Publish,
  names: ReadonlyArray<string>,
  settle: (session: Session.Session) => Effect.Effect<Session.Session, Session.SessionError>
) =>
  Effect.gen(function*() {
    const tools = [pay, careful]
    const model = script(...names)
    const { events, onEvent } = living({ publish, runId })
    const opened = yield* Session.open("s")
    const run = { tools, requestId: runId, onEvent }
    const asked = yield* Effect.provide(Session.keep(opened, (session) => Session.reply(session, "go", run)), model)
    const given = yield* Session.keep(asked, settle)
    const done = Script.layer([[Script.text("done"), Script.finish("stop")]])
    yield* Effect.provide(Session.keep(given, (session) => Session.continue(session, null, run)), done)
    return { live: untimed(answersIn(events)), told: untimed(answersIn(yield* toldOf("s", { publish }))) }
  }).pipe(Effect.provide(Session.Store.layerMemory))

const denied = (by?: string, reason?: string) => (session: Session.Session) =>
  Session.settle(
    session,
    session.suspensions.map(({ id }): Session.Verdict => ({
      id,
      ...(by === undefined ? {} : { by }),
      answer: { _tag: "Denied", ...(reason === undefined ? {} : { reason }) }
    }))
  )

describe("a denial", () => {
  for (const publish of ["all", "names", "none"] as const) {
    for (const [by, reason] of [["ann", "too dear"], ["ann"], [undefined, "too dear"], []] as const) {
      it.effect(`V-07: a denial says who (${by}) and why (${reason}), live and from the journal, with publish ${publish}`, () =>
        Effect.gen(function*() {
          const { live, told } = yield* settled(publish, ["pay"], denied(by, reason))
          assert.deepStrictEqual(told, live)
          const facts = live.map((event) => "by" in event || "detail" in event ? [event.by, event.detail] : [])
          const isSaid = by !== undefined || reason !== undefined && publish === "all"
          const expected = isSaid ? [by, publish === "all" ? reason : undefined] : []
          assert.deepStrictEqual(facts, publish === "none" ? [] : [expected])
        }))
    }
  }

  it.effect("V-07: a denial survives a snapshot taken while another call waited", () =>
    Effect.gen(function*() {
      const { events, onEvent } = living({ runId })
      const run = { tools: [pay], requestId: runId, onEvent }
      const opened = yield* Session.open("s")
      const asked = yield* Session.keep(opened, (session) => Session.reply(session, "go", run))
      const given = yield* Session.keep(
        asked,
        (session) =>
          Session.settle(session, [{ id: "pay0", by: "ann", answer: { _tag: "Denied", reason: "too dear" } }])
      )
      const cut = yield* Session.snapshot(given)
      const whole = yield* Session.keep(cut, denied())
      yield* Session.keep(whole, (session) => Session.continue(session, null, run))
      const live = untimed(answersIn(events))
      assert.deepStrictEqual(live.map(({ by, detail }) => [by, detail]), [["ann", "too dear"], [undefined, undefined]])
      assert.deepStrictEqual(untimed(answersIn(yield* toldOf("s"))), live)
    }).pipe(Effect.provide([
      Script.layer([
        [Script.toolCall("pay0", "pay", {}), Script.toolCall("pay1", "pay", {}), Script.finish("tool_calls")],
        [Script.text("done"), Script.finish("stop")]
      ]),
      Session.Store.layerMemory
    ])))

  it.effect("V-07: a denial of one of two calls is in the events for that call only", () =>
    Effect.gen(function*() {
      const settle = (session: Session.Session) =>
        Session.settle(session, [
          { id: "pay0", by: "ann", answer: { _tag: "Denied", reason: "too dear" } },
          { id: "pay1", by: "bob", answer: { _tag: "Approved" } }
        ])
      const { live, told } = yield* settled("all", ["pay", "pay"], settle)
      const facts = (events: typeof live) =>
        events.map((event) => "id" in event ? [event.id, "by" in event ? event.by : undefined] : [])
      assert.sameDeepMembers(facts(live), [["pay0", "ann"], ["pay1", undefined]])
      assert.sameDeepMembers(told, live)
    }))

  it.effect("V-07: a denial of a sub-agent's call is in the events of the sub-agent's run", () =>
    Effect.gen(function*() {
      const inner: Array<Event.Event> = []
      const tools = [Tool.fromChat("careful", {
        parameters: {},
        chat: () =>
          Stream.provide(
            Stream.tap(Chat.stream("careful", { tools: [pay] }), (event) => Effect.sync(() => void inner.push(event))),
            script("pay")
          )
      })]
      const opened = yield* Session.open("s")
      const asked = yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools }))
      const given = yield* Session.keep(asked, denied("ann", "too dear"))
      yield* Session.keep(given, (session) => Session.continue(session, null, { tools }))
      const answers = inner.flatMap((event) => event._tag === "ToolResultEncoded" ? [[event.by, event.detail]] : [])
      assert.deepStrictEqual(answers, [["ann", "too dear"]])
    }).pipe(Effect.provide([script("careful"), Session.Store.layerMemory])))
})
