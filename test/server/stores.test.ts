/** Stores that fail: each error is answered by its reason on every route, and a stream that breaks says so. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Journal, Session } from "heddle"
import { McpServer } from "heddle/mcp"
import { Agent } from "heddle/server"
import { SessionStore } from "heddle/sql"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { DatabaseSync } from "node:sqlite"
import { until } from "../support/until.ts"
import { bearer, byToken, codeOf, obedient, send } from "./support/hostile.ts"
import { addressOf, bodyOf, headersOf, isOpen, isPosted, type Route, table } from "./support/routes.ts"
import { serve } from "./support/site.ts"
import { told } from "./support/told.ts"

const agents = ["helper", "other"].map((name) =>
  Agent.make({ name, description: "Helps", run: () => Effect.succeed({}) })
)
const at = "/agents/helper/sessions"

/** A store in memory that fails where a test says so. */
const failing = Effect.map(Layer.build(Session.Store.layerMemory), (context) => {
  const store = Context.get(context, Session.Store)
  const fails: {
    error?: Journal.StoreError | undefined
    at?: ReadonlySet<string> | undefined
    /** The error that begins with the next append that was made. */
    next?: Journal.StoreError | undefined
  } = {}
  const appended = Effect.sync(() => {
    if (fails.next !== undefined) fails.error = fails.next
    fails.next = undefined
  })
  const isBroken = (name: string) => fails.error !== undefined && fails.at?.has(name) !== false
  const broken = new Proxy(store, {
    get: (target, name) => {
      const member = Reflect.get(target, name)
      if (typeof member !== "function" || typeof name !== "string") return member
      const isStream = ["read", "list", "unfinished"].includes(name)
      return (...given: ReadonlyArray<unknown>) => {
        const call = () => Reflect.apply(member, target, given) as any
        return isStream
          ? Stream.suspend(() => isBroken(name) ? Stream.fail(fails.error!) : call())
          : Effect.suspend(() => isBroken(name) ? Effect.fail(fails.error!) : call()).pipe(
            Effect.tap(() => name === "append" ? appended : Effect.void)
          )
      }
    }
  })
  return { fails, layer: Layer.succeed(Session.Store, broken), store }
})

const reasons = ["unavailable", "full", "read_only", "too_large", "unreadable", "newer_version"] as const

const errorOf = (reason: (typeof reasons)[number]): Journal.StoreError =>
  new Journal.StoreError({
    reason,
    operation: "append",
    id: "ann:s1",
    ...(reason === "too_large" ? { record: "MessageSubmitted", bytes: 9_000_001, maxBytes: 8_388_608 } : {}),
    cause: "CANARY-5f1c"
  })

const expected: Readonly<Record<(typeof reasons)[number], readonly [status: number, code: string, message: RegExp]>> = {
  unavailable: [503, "unavailable", /Try again/],
  full: [507, "store_full", /store is full/],
  read_only: [503, "store_read_only", /cannot be written/],
  too_large: [413, "record_too_large", /9000001 .* 8388608/],
  unreadable: [500, "unreadable", /cannot be read/],
  newer_version: [500, "newer_version", /later release/]
}

const hostile = { authorize: byToken(), hosts: ["127.0.0.1"], bounds: { writes: 10_000, lists: 10_000 }, joinMillis: 0 }

describe("store errors over HTTP", () => {
  it.live("O-43: a store error is answered with its reason on every route, without its cause", () =>
    Effect.gen(function*() {
      const { fails, layer } = yield* failing
      const mcp = McpServer.routes({ legacy: true })
      const { url } = yield* serve(agents, obedient, { ...hostile, mcp, store: layer })
      yield* send(url, { path: `${at}/s1/messages`, body: { content: "Hi", id: "m1" }, headers: bearer("ann") })
      // The agents are listed without the store.
      const routes = (yield* table).filter((route) =>
        !isOpen(route) && !/^\/agents(\/:agent)?$/.test(route.path) &&
        (route.path !== "/mcp" || route.method === "POST")
      )
      assert.isAbove(routes.length, 12)
      for (const reason of reasons) {
        const [status, code, message] = expected[reason]
        for (const route of routes) {
          fails.error = errorOf(reason)
          const headers = { ...headersOf(route), ...bearer("ann") }
          const body = isPosted(route) ? { body: bodyOf(route) } : {}
          const answered = yield* send(url, { method: route.method, path: addressOf(route), headers, ...body })
          fails.error = undefined
          const name = `${reason}: ${route.method} ${route.path}: ${answered.text}`
          assert.notInclude(answered.text, "CANARY", name)
          if (route.path === "/mcp") {
            assert.strictEqual(answered.status, 200, name)
            assert.match(answered.text, message, name)
            assert.include(answered.text, `"isError":true`, name)
            continue
          }
          // What cannot be read is removed nevertheless.
          const isRemoval = route.method === "DELETE" && (reason === "unreadable" || reason === "newer_version")
          assert.deepStrictEqual([answered.status, codeOf(answered)], [status, code], name)
          assert.match(JSON.parse(answered.text).error.message, message, name)
          assert.isFalse(isRemoval && answered.status === 204)
        }
      }
    }))

  it.live("O-43: a message within the bounds whose record is too large gets 413, and the session continues", () =>
    Effect.gen(function*() {
      const { url } = yield* serve(agents, obedient, hostile)
      const data = "A".repeat(6_000_000)
      const file = { type: "image", mediaType: "image/png", data }
      const part = { type: "file", mediaType: "image/png", url: `data:image/png;base64,${data}` }
      const ways = [
        [`${at}/s1/messages`, { content: [file, file] }],
        [at, { id: "s1", messages: [{ id: "m1", role: "user", parts: [part, part] }] }]
      ] as const
      const headers = bearer("ann")
      for (const isNew of [true, false]) {
        for (const [to, body] of ways) {
          const refused = yield* send(url, { path: to, body, headers })
          assert.deepStrictEqual([refused.status, codeOf(refused)], [413, "record_too_large"], `${isNew}: ${to}`)
          assert.include(refused.text, "8388608")
        }
        const said = yield* send(url, { path: `${at}/s1/messages`, body: { content: "Hi" }, headers })
        assert.include(said.text, "Heard: Hi")
      }
    }))
})

describe("broken streams", () => {
  const open = (site: Effect.Success<ReturnType<typeof serve>>, method: string, to: string, body?: unknown) =>
    Effect.promise(() => site.open(method, to, body, bearer("ann")))

  it.live("O-61: each kind of broken stream says so, and a complete stream does not", () =>
    Effect.gen(function*() {
      const { fails, layer } = yield* failing
      const { model, say } = told()
      const site = yield* serve(agents, model, { ...hostile, store: layer })
      yield* say("One", undefined)
      const whole = yield* open(site, "POST", `${at}/s1/messages`, { content: "Hi" })
      const sent = yield* Effect.promise(whole.end)
      assert.isFalse(sent.some(({ event }) => event === "error"))
      // A reader of a session in which nothing runs looks at its journal.
      const events = yield* open(site, "GET", `${at}/s1/events`)
      fails.at = new Set(["version", "read"])
      fails.error = errorOf("unavailable")
      const broken = yield* Effect.promise(events.end)
      fails.error = undefined
      const sentence = "The session store cannot be reached. Try again."
      const error = { event: "error", data: { error: { code: "unavailable", message: sentence } } }
      assert.deepStrictEqual(broken.at(-1), error)
      // A run that ends elsewhere is looked for in the journal: streams of one run, and of its stop.
      yield* Effect.promise(() => site.ask("POST", `${at}/s1/messages?wait=false`, { content: "Hi" }, bearer("ann")))
      yield* until(
        "the run",
        Effect.promise(() => site.ask("GET", `${at}/s1`, undefined, bearer("ann"))),
        ({ text }) => JSON.parse(text).isRunning
      )
      fails.next = errorOf("newer_version")
      const stop = yield* open(site, "POST", `${at}/s1/stop`)
      const stopped = yield* Effect.promise(stop.end)
      fails.error = undefined
      assert.deepStrictEqual(stopped.map(({ event }) => event), ["accepted", "error"])
      assert.strictEqual(stopped.at(-1)?.data.error.code, "newer_version")
    }))

  it.live("O-61: the stream of a run that breaks off says so in each protocol", () =>
    Effect.gen(function*() {
      const { fails, layer, store } = yield* failing
      const { model } = told()
      const site = yield* serve(agents, model, { ...hostile, store: layer })
      const ways = [
        [at, bodyOf({ method: "POST", path: "/agents/:agent/sessions" }, "s1")],
        ["/agui/helper", bodyOf({ method: "POST", path: "/agui/:agent" }, "s2")],
        [`${at}/s3/messages`, { content: "Hi" }]
      ] as const
      for (const [to, body] of ways) {
        // Another process has the session, and this one looks at its journal.
        for (const id of ["s1", "s2", "s3"]) yield* Effect.orDie(store.claim(`ann:${id}`, "other", 60_000))
        const reader = yield* open(site, "POST", to, body)
        assert.strictEqual(reader.status, 200, to)
        fails.at = new Set(["version", "read"])
        fails.error = errorOf("unavailable")
        const sent = yield* Effect.promise(reader.end)
        fails.error = undefined
        const last = sent.findLast(({ data }) => data !== "[DONE]")
        const text = JSON.stringify(last)
        assert.match(text, /"type":"error"|RUN_ERROR|"event":"error"/, `${to}: ${JSON.stringify(sent)}`)
      }
    }))
})

/** Ways in which a journal cannot be read. */
const damages: Readonly<Record<string, (db: DatabaseSync, key: string) => unknown>> = {
  "of a later release": (db, key) =>
    db.prepare("UPDATE heddle_records SET record = ? WHERE id = ? AND version = 2").run(
      JSON.stringify({ version: 99, _tag: "Later" }),
      key
    ),
  "of a later release from its start": (db, key) =>
    db.prepare("UPDATE heddle_records SET record = ? WHERE id = ?").run(JSON.stringify({ version: 99 }), key),
  "damaged": (db, key) => db.prepare("UPDATE heddle_records SET record = 'x' WHERE id = ? AND version = 2").run(key),
  "with a hole": (db, key) => db.prepare("DELETE FROM heddle_records WHERE id = ? AND version = 2").run(key),
  "without a summary": (db, key) => {
    db.prepare("UPDATE heddle_journals SET summary = '{' WHERE id = ?").run(key)
    return db.prepare("UPDATE heddle_records SET record = 'x' WHERE id = ?").run(key)
  }
}

describe("unreadable sessions", () => {
  it.live("O-54: an unreadable session is in the list beside the others, says why, and can be deleted", () =>
    Effect.gen(function*() {
      const folder = yield* Effect.acquireRelease(
        Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-"))),
        (folder) => Effect.sync(() => fs.rmSync(folder, { recursive: true, force: true }))
      )
      const filename = path.join(folder, "store")
      const { url } = yield* serve(agents, obedient, {
        ...hostile,
        store: Layer.orDie(SessionStore.layerSqlite({ filename }))
      })
      const db = yield* Effect.acquireRelease(
        Effect.sync(() => new DatabaseSync(filename)),
        (db) => Effect.sync(() => db.close())
      )
      const ask = (method: string, to: string, token = "ann") => send(url, { method, path: to, headers: bearer(token) })
      for (const id of ["a", "b", "c"]) {
        yield* send(url, { path: `${at}/${id}/messages`, body: { content: `Hi ${id}` }, headers: bearer("ann") })
      }
      const listed = Effect.map(ask("GET", at), ({ status, text }) => {
        assert.strictEqual(status, 200, text)
        return JSON.parse(text).sessions as ReadonlyArray<any>
      })
      assert.deepStrictEqual(
        (yield* listed).map(({ id, lastLine, status, title }) => [id, title, lastLine, status]).sort(),
        ["a", "b", "c"].map((id) => [id, `Hi ${id}`, `Heard: Hi ${id}`, "completed"])
      )
      for (const [name, damage] of Object.entries(damages)) {
        yield* send(url, { path: `${at}/bad/messages`, body: { content: "Hi", id: "m1" }, headers: bearer("ann") })
        damage(db, "ann:bad")
        const all = yield* listed
        assert.deepStrictEqual(all.map(({ id }) => id).sort(), ["a", "b", "bad", "c"], name)
        if (name === "without a summary") {
          assert.strictEqual(all.find(({ id }) => id === "bad")?.status, "unreadable")
        }
        const read = yield* ask("GET", `${at}/bad`)
        assert.include(["unreadable", "newer_version"], codeOf(read) as string, `${name}: ${read.text}`)
        assert.strictEqual(read.status, 500)
        assert.strictEqual((yield* ask("DELETE", `${at}/bad`, "bob")).status, 404, name)
        // The owner of its claim may be able to read it.
        const claims = db.prepare("INSERT INTO heddle_claims (id, owner, until) VALUES (?, ?, ?)")
        claims.run("ann:bad", "other", Date.now() + 60_000)
        const claimed = yield* ask("DELETE", `${at}/bad`)
        assert.deepStrictEqual([claimed.status, codeOf(claimed)], [409, "running"], name)
        db.prepare("DELETE FROM heddle_claims").run()
        const removed = yield* ask("DELETE", `${at}/bad`)
        assert.strictEqual(removed.status, 204, `${name}: ${removed.text}`)
        assert.deepStrictEqual((yield* listed).map(({ id }) => id).sort(), ["a", "b", "c"], name)
        assert.strictEqual((yield* ask("GET", `${at}/bad`)).status, 404, name)
      }
    }))
})

describe("a session with an unreadable record", () => {
  for (const isKept of [false, true]) {
    it.live(
      `O-54: an unreadable record is reported on every route, ${
        isKept ? "beside the fold that the process keeps" : "from its beginning"
      }`,
      () =>
        Effect.gen(function*() {
          const folder = yield* Effect.acquireRelease(
            Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-"))),
            (folder) => Effect.sync(() => fs.rmSync(folder, { recursive: true, force: true }))
          )
          const filename = path.join(folder, "store")
          const mcp = McpServer.routes({ legacy: true })
          const store = Layer.orDie(SessionStore.layerSqlite({ filename }))
          const first = yield* serve(agents, obedient, { ...hostile, mcp, raw: true, store })
          const db = yield* Effect.acquireRelease(
            Effect.sync(() => new DatabaseSync(filename)),
            (db) => Effect.sync(() => db.close())
          )
          const routes = (yield* table).filter((route) =>
            !isOpen(route) && route.path.includes(":agent") && route.path !== "/agents/:agent" &&
            !(route.method === "GET" && route.path.endsWith("/sessions")) && !(isKept && isPosted(route))
          )
          assert.isAbove(routes.length, isKept ? 4 : 9)
          let count = 0
          const sessions: Array<readonly [name: string, id: string, route: Route]> = []
          for (const [name, damage] of Object.entries(damages)) {
            for (const route of routes) {
              const id = `s${count++}`
              const sending = {
                path: `${at}/${id}/messages`,
                body: { content: "Hi", id: "m1" },
                headers: bearer("ann")
              }
              const said = yield* send(first.url, sending)
              assert.strictEqual(said.status, 200, said.text)
              if (isKept) yield* send(first.url, { path: `${at}/${id}`, headers: bearer("ann") })
              damage(db, `ann:${id}`)
              sessions.push([name, id, route])
            }
          }
          const { url } = isKept ? first : yield* serve(agents, obedient, { ...hostile, mcp, raw: true, store })
          for (const [name, id, route] of sessions) {
            const headers = { ...headersOf(route), ...bearer("ann") }
            const body = isPosted(route) ? { body: bodyOf(route, id) } : {}
            // A stream of events has no end.
            const method = isKept && route.path.endsWith("/events") ? "HEAD" : route.method
            const answered = yield* send(url, { method, path: addressOf(route, id), headers, ...body })
            const seen = `${name}: ${route.method} ${route.path}: ${answered.status} ${answered.text}`
            if (route.method === "DELETE" && route.path.endsWith("/:id")) {
              assert.strictEqual(answered.status, 204, seen)
              continue
            }
            // What the process keeps was read before the damage, and says what it said.
            if (isKept && answered.status < 300) {
              assert.notInclude(answered.text, "internal", seen)
              continue
            }
            assert.strictEqual(answered.status, 500, seen)
            if (method !== "HEAD") assert.include(["unreadable", "newer_version"], codeOf(answered) as string, seen)
          }
        }),
      120_000
    )
  }
})

describe("request paths", () => {
  it.live("O-62: letter case, doubled and trailing slashes, parameters and percent signs matter on every route", () =>
    Effect.gen(function*() {
      const { url } = yield* serve(agents, obedient, { ...hostile, mcp: McpServer.routes({ legacy: true }) })
      const routes = (yield* table).filter(({ method }) => method !== "OPTIONS")
      for (const route of routes) {
        const address = addressOf(route)
        const others = [
          address.toUpperCase(),
          `${address}/`,
          `${address};x`,
          `${address};x=1?y=2`,
          `/${address}`,
          address.replace(/^\/(\w)/, (_, first) => `/${first.toUpperCase()}`),
          address.replace(/^\/(\w)/, (_, first) => `/%${first.charCodeAt(0).toString(16)}`),
          address.replace("helper", "helpe%72"),
          address.replace("helper", "helper;x"),
          address.replace("/sessions", "//sessions"),
          address.replace("/sessions", "/sessions;x"),
          address.replace("s1", "s%31"),
          address.replace("/s1", "/./s1")
        ].filter((other) => other !== address)
        for (const other of others) {
          const body = isPosted(route) ? { body: bodyOf(route) } : {}
          const headers = { ...headersOf(route), ...bearer("ann") }
          const { status } = yield* send(url, { method: route.method, path: other, headers, ...body })
          assert.include([400, 404], status, `${route.method} ${other}`)
        }
        const headers = { ...headersOf(route), ...bearer("ann") }
        if (route.method === "GET") {
          const { status } = yield* send(url, { method: "HEAD", path: `${address}?x=/y;z`, headers })
          assert.notStrictEqual(status, 400, address)
        }
      }
    }))
})
