/**
 * Journals and sessions that heddle 0.1.0 wrote. Each still loads, after each of its records, as the session that was
 * written; each session can be sent on; and a journal can be written to further.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Message, Session } from "heddle"
import { SessionStore } from "heddle/sql"
import { Laws, Script } from "heddle/testing"
import { copyFileSync, readdirSync, readFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import * as Stores from "../src/internal/session/store.ts"
import { temporaryFile } from "./sql/support/files.ts"
import { done } from "./support/sessions.ts"

const folder = fileURLToPath(new URL("fixtures/sessions", import.meta.url))

interface Stored {
  readonly records: ReadonlyArray<unknown>
  readonly loaded: ReadonlyArray<{
    readonly version: number
    readonly session: unknown
    readonly interrupted?: string
    readonly calls?: ReadonlyArray<{ readonly id: string; readonly ended: boolean }>
  }>
}

const journals = readdirSync(folder).filter((name) => name.endsWith(".json")).map((name) => ({
  id: name.replace(/\.json$/, ""),
  stored: JSON.parse(readFileSync(`${folder}/${name}`, "utf8")) as Stored
}))

const encode = Schema.encodeSync(Schema.toCodecJson(Session.Session))
const decode = Schema.decodeUnknownEffect(Schema.toCodecJson(Session.Session))

/**
 * What is read in another way than 0.1.0 read it: by journal and version, the fields of the session that differ.
 */
const changed: Record<string, Record<string, unknown>> = {}

/**
 * M-44: where 0.1.0 lost the question of an approved call until its run had ended, it waits from the end of the call on,
 * as it does in the session after the run. By journal: from which version on, and the version after the run.
 */
const asked: Record<string, { readonly from: number; readonly ended: number }> = {
  "approved-asks": { from: 9, ended: 11 }
}

/**
 * M-28: where 0.1.0 gave the answers of a turn in the order in which they came, they are given in call order. By journal:
 * from which version on this differs, and the calls whose answers change places.
 */
const reordered: Record<string, { readonly from: number; readonly calls: readonly [string, string] }> = {
  "approval-denied-first": { from: 9, calls: ["p1", "p2"] },
  "manual-submitted": { from: 7, calls: ["m1", "m2"] }
}

interface Encoded {
  readonly thread: { readonly messages: ReadonlyArray<{ readonly toolCallId?: string }> }
}

const inCallOrder = (session: Encoded, [first, second]: readonly [string, string]): Encoded => {
  const messages = session.thread.messages.slice()
  const [one, two] = [first, second].map((id) => messages.findIndex(({ toolCallId }) => toolCallId === id))
  assert.isTrue(one !== undefined && two !== undefined && two >= 0 && two < one, "0.1.0 gave the second answer first")
  const [answer] = messages.splice(one!, 1)
  messages.splice(two!, 0, answer!)
  return { ...session, thread: { ...session.thread, messages } }
}

/** What the session after the run says of the question, which is all that differs. */
const waiting = (id: string, version: number, loaded: Stored["loaded"]): object => {
  const { ended, from } = asked[id] ?? { ended: 0, from: Infinity }
  if (version < from) return {}
  const after = loaded.find((state) => state.version === ended)?.session as Session.Session
  assert.strictEqual(after.status, "awaiting_user")
  const { pendingQuestion, pendingToolCallId, status, suspensions, thread } = after
  return { pendingQuestion, pendingToolCallId, status, suspensions, thread }
}

const expected = (id: string, { session, version }: Stored["loaded"][number], loaded: Stored["loaded"]): unknown => {
  const { calls, from } = reordered[id] ?? { from: Infinity }
  const ordered = version >= from && calls !== undefined ? inCallOrder(session as Encoded, calls) : session
  return { ...ordered as object, ...waiting(id, version, loaded), ...changed[`${id}@${version}`] }
}

/** The journal as far as a version, in a store of its own. */
const loadedAt = (id: string, records: ReadonlyArray<unknown>) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const [first, ...rest] = yield* Effect.forEach(
      records,
      (record) => Stores.fromText(id, JSON.stringify(record))
    )
    assert.isDefined(first)
    if (first !== undefined) yield* store.append(id, 0, [first, ...rest])
    return yield* Session.load(id)
  }).pipe(Effect.provide(Session.Store.layerMemory))

describe("what 0.1.0 wrote", () => {
  for (const { id, stored: { loaded, records } } of journals) {
    it.effect(`the journal "${id}" loads after each of its records`, () =>
      Effect.gen(function*() {
        assert.strictEqual(loaded.length, records.length)
        for (const state of loaded) {
          const kept = yield* loadedAt(id, records.slice(0, state.version))
          assert.isDefined(kept)
          if (kept === undefined) return
          assert.deepStrictEqual(encode(kept.session), expected(id, state, loaded), `after record ${state.version}`)
          assert.strictEqual(kept.interrupted?.requestId, state.interrupted)
          const calls = kept.interrupted?.calls.map((call) => ({
            id: call.toolCall.id,
            ended: call.outcome !== undefined
          }))
          assert.deepStrictEqual(calls, state.calls)
        }
      }))

    it.effect(`each session of "${id}" decodes by itself, with a thread that can be sent`, () =>
      Effect.gen(function*() {
        for (const { session: json } of loaded) {
          const session = yield* decode(json)
          assert.deepStrictEqual(encode(session), json)
          const pending = [...session.pendingToolCalls, ...session.approved].map((call) => call.id)
          const wrong = Laws.history(session.thread, { pending }).map(({ message }) => message)
          assert.isEmpty(wrong.filter((message) => !message.includes("not in call order")))
        }
      }))
  }

  it.effect("the database opens, and holds the same journals", () =>
    Effect.gen(function*() {
      const filename = yield* temporaryFile
      copyFileSync(`${folder}/sessions.sqlite`, filename)
      yield* Effect.gen(function*() {
        for (const { id, stored: { loaded } } of journals) {
          const kept = yield* Session.load(id)
          const last = loaded[loaded.length - 1]
          assert.isDefined(kept)
          if (kept === undefined || last === undefined) return
          assert.strictEqual(kept.version, last.version)
          assert.deepStrictEqual(encode(kept.session), expected(id, last, loaded))
        }
        const kept = yield* Session.open("completed")
        const next = yield* Session.keep(
          kept,
          (session) => Effect.provide(Session.reply(session, "and then?"), Script.layer([done]))
        )
        assert.strictEqual(Message.text(Session.messages(next.session).at(-1)!), "done")
        assert.deepStrictEqual((yield* Session.load("completed"))?.session, next.session)
      }).pipe(Effect.provide(SessionStore.layerSqlite({ filename })))
    }))
})
