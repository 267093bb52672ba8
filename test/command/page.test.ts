/** The page of `heddle serve` as it is served: its headers, who may read it, and what it never does. */
import * as NodeServices from "@effect/platform-node/NodeServices"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Session } from "heddle"
import { Agent, Server } from "heddle/server"
import { Script } from "heddle/testing"
import * as fs from "node:fs"
import { afterAll } from "vitest"
import * as Pages from "../../src/command/internal/pages.ts"

const folder = new URL("../../src/command/page/", import.meta.url)

const agentOf = (name: string) => Agent.make({ name, description: `The ${name}`, run: () => Effect.succeed({}) })

const served = (authorize: Server.Authorize, rules: { readonly hosts: ReadonlyArray<string> }) => {
  const isLoopback = authorize === Server.allowLoopback
  const app = Layer.provideMerge(
    Pages.layer(folder, { ...rules, origins: [], isLoopback }),
    Server.layer({ agents: [agentOf("one"), agentOf("two")], authorize, ...rules })
  )
  return Server.toWebHandler(
    app.pipe(Layer.provide([Script.layer([]), Session.Store.layerMemory, NodeServices.layer]), Layer.orDie)
  )
}

const open = served(Server.allowLoopback, { hosts: [] })
/** A server whose only token is `key`, and whose agent `two` only the key `both` lists. */
const closed = served(
  (request, { agent }) => {
    const key = request.headers["authorization"]
    return key === "Bearer both" || key === "Bearer key" && agent === "one"
      ? Effect.succeed({ principal: "ann" })
      : Effect.fail("no")
  },
  { hosts: ["example.com", "[::1]"] }
)

const get = (server: typeof open, path: string, headers: Readonly<Record<string, string>> = {}) =>
  server.handler(new Request(`http://localhost${path}`, { headers: { host: "localhost:3000", ...headers } }))

afterAll(async () => {
  await open.dispose()
  await closed.dispose()
})

describe("the page as it is served", () => {
  it("W-19: it is three files with the policy of content, without sniffing and without authorization", async () => {
    const types = {
      "/": "text/html; charset=utf-8",
      "/page.js": "text/javascript; charset=utf-8",
      "/page.css": "text/css; charset=utf-8"
    }
    for (const [path, type] of Object.entries(types)) {
      const response = await get(closed, path, { host: "example.com" })
      assert.strictEqual(response.status, 200)
      assert.strictEqual(response.headers.get("content-type"), type)
      assert.strictEqual(response.headers.get("x-content-type-options"), "nosniff")
      assert.strictEqual(
        response.headers.get("content-security-policy"),
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'; "
          + "base-uri 'none'; form-action 'none'"
      )
      const file = new URL(path === "/" ? "index.html" : path.slice(1), folder)
      assert.strictEqual(await response.text(), fs.readFileSync(file, "utf8"))
    }
  })

  it("W-11: it answers to the names of the server only, and follows a link from another page", async () => {
    assert.strictEqual((await get(open, "/", { host: "evil.example" })).status, 421)
    assert.strictEqual((await get(closed, "/", { host: "localhost" })).status, 421)
    assert.strictEqual((await get(open, "/", { "sec-fetch-site": "cross-site" })).status, 200)
    assert.strictEqual((await get(open, "/agents", { "sec-fetch-site": "cross-site" })).status, 403)
  })

  it("W-11: an address in brackets is a host for any port", async () => {
    for (const host of ["[::1]", "[::1]:3000"]) assert.strictEqual((await get(closed, "/", { host })).status, 200, host)
  })

  it("W-19: GET /agents lists what a request may list, and asks for a token where that is nothing", async () => {
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

  it("W-25: no file of the page has a script or a style in a line of HTML, or reads a text as HTML", () => {
    const html = fs.readFileSync(new URL("index.html", folder), "utf8")
    assert.notMatch(html, /\son\w+=|\sstyle=|<style|javascript:|https?:/i)
    assert.notMatch(html, /<script(?! type="module" src="\/page\.js"><\/script>)/)
    const script = fs.readFileSync(new URL("page.js", folder), "utf8")
    assert.notMatch(
      script,
      /innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|localStorage|sessionStorage|cookie/
    )
  })
})
