/**
 * Journals that earlier releases have written always load: each is put into a database as its release left it, in the texts
 * of that release, and loads as it did there. `fixtures/writeJournals.ts` has written them.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Session } from "heddle"
import { SessionStore, SqliteClient } from "heddle/sql"
import * as fs from "node:fs"
import * as path from "node:path"
import { temporaryFile } from "./sql/support/files.ts"
import * as Release01 from "./sql/support/release01.ts"

const folder = path.join(import.meta.dirname, "fixtures", "journals")

const encode = Schema.encodeSync(Schema.toCodecJson(Session.Session))

interface Loaded {
  readonly version: number
  readonly session: {
    readonly id: string
    readonly thread: { readonly messages: ReadonlyArray<{ readonly toolCallId?: string }> }
  }
  readonly interrupted?: {
    readonly requestId: string
    readonly calls: ReadonlyArray<{ readonly id: string; readonly idempotencyKey: string; readonly outcome?: unknown }>
  }
}

/** The first release had the answers of a turn in the order in which they came. Since then they are in call order (M-28). */
const inCallOrder = (release: string, { session, ...rest }: Loaded): Loaded => {
  if (release !== "6190d42" || session.id !== "approved and paid") return { ...rest, session }
  const messages = session.thread.messages.slice()
  const at = messages.findIndex(({ toolCallId }) => toolCallId === "q")
  messages.splice(at, 2, ...messages.slice(at, at + 2).toReversed())
  return { ...rest, session: { ...session, thread: { ...session.thread, messages } } }
}

const journalsOf = (release: string) =>
  fs.readdirSync(path.join(folder, release)).filter((file) => file.endsWith(".ndjson")).map((file) => {
    const lines = fs.readFileSync(path.join(folder, release, file), "utf8").trimEnd().split("\n")
    const expected: Loaded = JSON.parse(
      fs.readFileSync(path.join(folder, release, file.replace(".ndjson", ".json")), "utf8")
    )
    return { id: expected.session.id, lines, expected: inCallOrder(release, expected) }
  })

for (const release of fs.readdirSync(folder)) {
  const journals = journalsOf(release)
  const written = Object.fromEntries(journals.map(({ id, lines }) => [id, lines]))

  /** A store over a database that the release has left. */
  const store = Layer.unwrap(Effect.gen(function*() {
    const client = SqliteClient.layer({ filename: yield* temporaryFile })
    yield* Effect.provide(Release01.make(written), client, { local: true })
    return SessionStore.layer.pipe(Layer.provide(client))
  }))

  describe(`journals of ${release}`, () => {
    for (const { expected, id } of journals) {
      it.effect(`"${id}" loads as it did`, () =>
        Effect.gen(function*() {
          const kept = yield* Session.load(id)
          assert.isDefined(kept)
          if (kept === undefined) return
          assert.strictEqual(kept.version, expected.version)
          assert.deepStrictEqual(encode(kept.session), expected.session)
          assert.strictEqual(kept.interrupted?.requestId, expected.interrupted?.requestId)
          assert.deepStrictEqual(
            kept.interrupted?.calls.map(({ idempotencyKey, outcome, toolCall: { id } }) =>
              outcome === undefined ? { id, idempotencyKey } : { id, idempotencyKey, outcome }
            ),
            expected.interrupted?.calls
          )
        }).pipe(Effect.provide(store)))
    }

    it.effect("those whose run was cut have work left, and the others have none and take a snapshot", () =>
      Effect.gen(function*() {
        const cut = journals.filter(({ expected }) => expected.interrupted !== undefined).map(({ id }) => id)
        assert.deepStrictEqual((yield* Stream.runCollect(Session.unfinished)).toSorted(), cut.toSorted())
        assert.strictEqual(cut.length, 3)
        for (const { expected, id } of journals) {
          const kept = (yield* Session.load(id))!
          if (expected.interrupted !== undefined) {
            const error = yield* Effect.flip(Session.snapshot(kept))
            assert.deepInclude(error, { _tag: "SessionError", reason: "unfinished" })
          } else {
            assert.deepStrictEqual((yield* Session.snapshot(kept)).session, kept.session)
            assert.deepStrictEqual(encode((yield* Session.load(id))!.session), expected.session)
          }
        }
      }).pipe(Effect.provide(store)))
  })
}
