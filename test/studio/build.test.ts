/** The files of Studio: their sizes, what they name, and how a server serves them. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Session } from "heddle"
import { Agent, Server } from "heddle/server"
import { Script } from "heddle/testing"
import * as fs from "node:fs"
import { afterAll } from "vitest"
import type { Served } from "../../scratchpad/studio.config.ts"

const folder = new URL("../../dist/studio/", import.meta.url)

const read = (name: string): string => fs.readFileSync(new URL(name, folder), "utf8")

const { files } = JSON.parse(read("manifest.json")) as { readonly files: ReadonlyArray<Served> }

const agentOf = (name: string) => Agent.make({ name, description: `The ${name}`, run: () => Effect.succeed({}) })

const served = (options: Pick<Server.Options, "authorize" | "hosts" | "studio">) =>
  Server.toWebHandler(
    Server.layer({ agents: [agentOf("one"), agentOf("two")], ...options }).pipe(
      Layer.provide([Script.layer([]), Session.Store.layerMemory])
    )
  )

const open = served({ authorize: Server.allowLoopback, studio: Server.studio() })
/** A server whose only token is `key`, and whose agent `two` only the key `both` lists. */
const closed = served({
  authorize: (request, { agent }) => {
    const key = request.headers["authorization"]
    return key === "Bearer both" || key === "Bearer key" && agent === "one"
      ? Effect.succeed({ principal: "ann" })
      : Effect.fail("no")
  },
  hosts: ["example.com", "[::1]"],
  studio: Server.studio({ path: "/tools/studio" })
})

const get = (server: typeof open, path: string, headers: Readonly<Record<string, string>> = {}) =>
  server.handler(new Request(`http://localhost${path}`, { headers: { host: "localhost:3000", ...headers } }))

afterAll(async () => {
  await open.dispose()
  await closed.dispose()
})

const policy =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
  + "worker-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
  + "require-trusted-types-for 'script'; trusted-types 'none'"

describe("the built files of Studio", () => {
  it("V-01: the first load is at most 130 kB of scripts and 10 kB of styles, compressed", () => {
    const sum = (extension: string) =>
      files.filter(({ load, name }) => load === "page" && name.endsWith(extension)).reduce(
        (all, { gzip }) => all + gzip,
        0
      )
    assert.isAbove(sum(".js"), 10_000)
    assert.isAtMost(sum(".js"), 130_000)
    assert.isAbove(sum(".css"), 0)
    assert.isAtMost(sum(".css"), 10_000)
  })

  it("V-01: the manifest names every file, and the licenses every bundled library", () => {
    const names = fs.readdirSync(folder).filter((name) => name !== "manifest.json")
    assert.sameMembers(files.map(({ name }) => name), names)
    for (const { bytes, name } of files) assert.strictEqual(fs.statSync(new URL(name, folder)).size, bytes)
    const licenses = read("LICENSES.txt")
    for (const name of ["react", "react-dom", "scheduler"]) assert.match(licenses, new RegExp(`^${name} \\d`, "m"))
    assert.notInclude(licenses, "undefined")
  })

  it("V-06: the document has no inline script or style, and names only files of the build", () => {
    const html = read("index.html")
    assert.notMatch(html, /\son\w+=|\sstyle=|<style|javascript:|<script>/i)
    const named = [...html.matchAll(/(?:src|href)="(?!data:)([^"]*)"/g)].map(([, name]) => name)
    assert.isAtLeast(named.length, 2)
    for (const name of named) assert.include(files.map(({ name }) => name), name)
  })

  it("W-25: no source reads a text as HTML, as a script or as a style, and no source stores a token or a draft", () => {
    const sources = new URL("../../src/studio/", import.meta.url)
    const names = fs.readdirSync(sources, { encoding: "utf8", recursive: true }).filter((name) => /\.tsx?$/.test(name))
    assert.isAbove(names.length, 20)
    for (const name of names) {
      const text = fs.readFileSync(new URL(name, sources), "utf8")
      assert.notMatch(
        text,
        /innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|sessionStorage|indexedDB|\.cookie/i,
        name
      )
      if (name !== "data/preferences.ts") assert.notMatch(text, /localStorage/, name)
    }
  })

  it("V-05: only the styles know the widths at which a part changes its form", () => {
    const sources = new URL("../../src/studio/", import.meta.url)
    const names = fs.readdirSync(sources, { encoding: "utf8", recursive: true }).filter((name) => /\.tsx?$/.test(name))
    for (const name of names) {
      assert.notMatch(fs.readFileSync(new URL(name, sources), "utf8"), /max-width|innerWidth [<>]/)
    }
    const asked = /isNarrow|useNarrow/
    assert.isTrue(names.some((name) => asked.test(fs.readFileSync(new URL(name, sources), "utf8"))))
    for (const part of ["list", "picture", "run"]) {
      assert.match(read(files.find(({ name }) => name.endsWith(".css"))!.name), new RegExp(`--narrow-${part}:`))
    }
  })

  it("V-06: each file has the content security policy, and is served without sniffing and without authorization", async () => {
    for (const { load, name, type } of files) {
      const path = name === "index.html" ? "" : name
      const response = await get(closed, `/tools/studio/${path}`, { host: "example.com" })
      assert.strictEqual(response.status, 200, name)
      assert.strictEqual(response.headers.get("content-type"), type)
      assert.strictEqual(response.headers.get("x-content-type-options"), "nosniff")
      assert.strictEqual(response.headers.get("content-security-policy"), policy)
      const isKept = name !== "index.html" && name !== "LICENSES.txt"
      const kept = isKept ? "public, max-age=31536000, immutable" : "no-cache"
      assert.strictEqual(response.headers.get("cache-control"), kept, load)
      const body = await response.text()
      assert.strictEqual(body, name === "index.html" ? read(name).replace("\"./\"", "\"../../\"") : read(name))
    }
    assert.strictEqual((await get(open, "/manifest.json")).status, 404)
    assert.strictEqual(await (await get(open, "/")).text(), read("index.html"))
  })

  it("V-06: the path without its last slash leads to the document, also behind a proxy with a path prefix", async () => {
    const { headers, status } = await get(closed, "/tools/studio", { host: "example.com" })
    assert.strictEqual(status, 308)
    assert.strictEqual(headers.get("location"), "studio/")
  })

  it("V-06: an invalid path is refused with what would be right", () => {
    for (const path of ["studio", "/studio/", "/a b", "//", "/../x"]) {
      assert.throws(() => Server.studio({ path }), TypeError, "Server.studio: path is")
    }
  })

  it("W-11: Studio answers only to the server's host names, and follows a link from another page", async () => {
    assert.strictEqual((await get(open, "/", { host: "evil.example" })).status, 421)
    assert.strictEqual((await get(closed, "/tools/studio/", { host: "localhost" })).status, 421)
    assert.strictEqual((await get(open, "/", { "sec-fetch-site": "cross-site" })).status, 200)
    assert.strictEqual((await get(open, "/agents", { "sec-fetch-site": "cross-site" })).status, 403)
  })

  it("W-11: an address in brackets is a host for any port", async () => {
    for (const host of ["[::1]", "[::1]:3000"]) {
      assert.strictEqual((await get(closed, "/tools/studio/", { host })).status, 200, host)
    }
  })

  it("W-19: GET /agents lists what a request may list, and asks for a token if that is nothing", async () => {
    const host = "example.com"
    const list = async (key: string) => {
      const response = await get(closed, "/agents", { host, authorization: `Bearer ${key}` })
      return [response.status, ((await response.json()) as { agents?: ReadonlyArray<unknown> }).agents]
    }
    const [one, two] = [{ name: "one", description: "The one" }, { name: "two", description: "The two" }]
    assert.deepStrictEqual(await list("both"), [200, [one, two]])
    assert.deepStrictEqual(await list("key"), [200, [one]])
    assert.deepStrictEqual(await list("other"), [403, undefined])
    assert.strictEqual((await get(closed, "/agents", { host })).status, 401)
  })
})
