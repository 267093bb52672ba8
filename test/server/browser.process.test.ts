/** The page of the guide in a browser: a real Chromium, a real server, and a model that is held where the test wants it. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as HttpRouter from "effect/http/HttpRouter"
import * as HttpServer from "effect/http/HttpServer"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { Adapter, Session, Tool } from "heddle"
import { Agent, Server } from "heddle/server"
import { Script } from "heddle/testing"
import * as fs from "node:fs"
import * as net from "node:net"
import { chromium, type Page } from "playwright-core"
import { until } from "../support/until.ts"
import * as Guide from "./support/guide.ts"

const executablePath = "/usr/bin/chromium"
const isPassedOver = process.env["CI"] !== "true" && !fs.existsSync(executablePath)
if (isPassedOver) console.warn(`W-04 IS PASSED OVER: THERE IS NO ${executablePath} (apt-get install chromium)`)

/** A model whose reply is held in the middle, and which then calls two tools in turn. */
const modelOf = (more: Deferred.Deferred<void>) =>
  Layer.unwrap(Effect.map(
    Script.make([
      [Script.text("one "), Script.text("two "), Script.text("three "), Script.text("four"), Script.finish("stop")],
      [Script.toolCall("c1", "order", { title: "Emma" }), Script.finish("tool_calls")],
      [Script.text("Ordered."), Script.finish("stop")],
      [Script.toolCall("c2", "dig"), Script.finish("tool_calls")]
    ]),
    ({ stream }) =>
      Adapter.layer({
        stream: (request) =>
          Stream.tap(
            stream(request),
            (event) => event._tag === "TextDelta" && event.delta === "three " ? Deferred.await(more) : Effect.void
          )
      })
  ))

const html = `<!doctype html><meta charset="utf-8"><div id="chat"></div><script src="/page.js"></script>`

/** Serves the agent of the guide, and its page, on a free port. Succeeds with the port. */
const serve = (
  script: string,
  tools: ReadonlyArray<Tool.Any>,
  model: Layer.Layer<Adapter.Adapter>,
  options: Partial<Server.Options> = {}
) =>
  Effect.gen(function*() {
    const shop = Agent.make({ name: "shop", description: "Sells books", run: () => Effect.succeed({ tools }) })
    const routes = Layer.mergeAll(
      Server.layer({ agents: [shop], authorize: Server.allowLoopback, ...options }),
      HttpRouter.add("GET", "/", HttpServerResponse.html(html)),
      HttpRouter.add("GET", "/page.js", HttpServerResponse.text(script, { contentType: "text/javascript" }))
    )
    const app = routes.pipe(Layer.provide([model, Session.Store.layerMemory]), Server.layerNode({ port: 0 }))
    const services = yield* Layer.build(app)
    const { address } = yield* Effect.provide(HttpServer.HttpServer, services)
    return "port" in address ? address.port : 0
  })

/** Passes connections on to a port. Succeeds with the address, and with what breaks all connections. */
const between = (port: number) =>
  Effect.gen(function*() {
    const open = new Set<net.Socket>()
    const cut = (): void => {
      for (const socket of open) socket.destroy()
      open.clear()
    }
    const server = net.createServer((socket) => {
      const target = net.connect(port, "127.0.0.1")
      for (const end of [socket, target]) end.on("error", () => undefined)
      socket.on("close", () => target.destroy())
      target.on("close", () => socket.destroy())
      open.add(socket)
      socket.pipe(target).pipe(socket)
    })
    yield* Effect.acquireRelease(
      Effect.promise(() => new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))),
      () =>
        Effect.sync(() => {
          cut()
          server.close()
        })
    )
    return { url: `http://127.0.0.1:${(server.address() as net.AddressInfo).port}`, cut }
  })

const open = Effect.gen(function*() {
  const args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
  const browser = yield* Effect.acquireRelease(
    Effect.promise(() => chromium.launch({ executablePath, args })),
    (browser) => Effect.promise(() => browser.close())
  )
  const page = yield* Effect.promise(() => browser.newPage())
  page.setDefaultTimeout(120_000)
  return page
})

const say = async (page: Page, text: string): Promise<void> => {
  await page.getByLabel("Message").fill(text)
  await page.getByRole("button", { name: "Send" }).click()
}

/** Waits until the last reply has a text, which is all of a part of it. */
const shows = (page: Page, text: string): Promise<void> =>
  page.locator(".assistant").last().getByText(text, { exact: true }).waitFor()

/** Waits until nothing is under way, and returns all that the page shows of the chat. */
const ended = async (page: Page): Promise<ReadonlyArray<string>> => {
  await page.getByRole("button", { name: "Send" }).waitFor()
  return page.locator("section p, section code").allTextContents()
}

describe("the chat page of the guide", () => {
  it.live.skipIf(isPassedOver)(
    "W-04: the page streams, continues after a cut and a reload, approves by click, and stops by button",
    () =>
      Effect.gen(function*() {
        const more = yield* Deferred.make<void>()
        const finalized = yield* Deferred.make<void>()
        const ordered: Array<string> = []
        const order = Tool.make("order", {
          parameters: { title: Schema.String },
          approval: true,
          handler: ({ title }) => Effect.sync(() => `order ${ordered.push(title)}`)
        })
        const dig = Tool.make("dig", {
          parameters: {},
          timeout: "10 minutes",
          handler: () => Effect.ensuring(Effect.never, Deferred.succeed(finalized, undefined))
        })
        const example = Guide.exampleOf("docs/chat-in-the-browser.md", "useChat(")
        const script = yield* Effect.promise(() => Guide.bundle("browser", example))
        const { cut, url } = yield* between(yield* serve(script, [order, dig], modelOf(more)))
        const page = yield* open
        const errors: Array<string> = []
        page.on("pageerror", (error) => errors.push(String(error)))
        yield* Effect.promise(async () => {
          const resumed = page.waitForResponse((response) => response.url().endsWith("/stream"))
          await page.goto(url)
          assert.strictEqual((await resumed).status(), 204)
          await say(page, "Count")
          await shows(page, "one two")
          cut()
          await page.getByRole("alert").waitFor()
          await page.getByRole("button", { name: "Again" }).click()
          await page.getByRole("alert").waitFor({ state: "detached" })
          await shows(page, "one two")
          await page.reload()
          await shows(page, "one two")
        })
        yield* Deferred.succeed(more, undefined)
        const counted = ["Count", "one two three four"]
        const waiting = `order {"title":"Emma"}: approval-requested `
        const asked = yield* Effect.promise(async () => {
          await shows(page, "one two three four")
          assert.deepStrictEqual(await ended(page), counted)
          await say(page, "Order Emma")
          await page.getByRole("button", { name: "Allow" }).waitFor()
          await page.reload()
          await page.getByRole("button", { name: "Allow" }).waitFor()
          return ended(page)
        })
        assert.deepStrictEqual(asked, [...counted, "Order Emma", waiting])
        assert.deepStrictEqual(ordered, [])
        const bought = yield* Effect.promise(async () => {
          await page.getByRole("button", { name: "Allow" }).click()
          await shows(page, "Ordered.")
          return ended(page)
        })
        const done = [...counted, "Order Emma", `order {"title":"Emma"}: output-available "order 1"`, "Ordered."]
        assert.deepStrictEqual(bought, done)
        assert.deepStrictEqual(ordered, ["Emma"])
        yield* Effect.promise(async () => {
          await say(page, "Dig")
          await shows(page, "dig {}: input-available ")
          await page.getByRole("button", { name: "Stop" }).click()
        })
        yield* Deferred.await(finalized)
        const stopped = yield* Effect.promise(() => ended(page))
        assert.deepStrictEqual(stopped.slice(0, -1), [...done, "Dig"])
        assert.include(stopped.at(-1), "output-error")
        assert.include(stopped.at(-1), "the run was stopped")
        const reloaded = yield* Effect.promise(async () => {
          await page.reload()
          await page.locator(".assistant").last().waitFor()
          return ended(page)
        })
        assert.deepStrictEqual(reloaded, stopped)
        assert.deepStrictEqual(errors, [])
      }).pipe(Effect.scoped)
  )
})

const { finish, preflightError, streamError, text, toolCall } = Script

/** The page of the guide in a browser, what is said on it, and a server whose model has these replies. */
const visited = (
  replies: Parameters<typeof Script.layer>[0],
  tools: ReadonlyArray<Tool.Any> = [],
  options: Partial<Server.Options> = {}
) =>
  Effect.gen(function*() {
    const example = Guide.exampleOf("docs/chat-in-the-browser.md", "useChat(")
    const script = yield* Effect.promise(() => Guide.bundle("browser", example))
    const { cut, url } = yield* between(yield* serve(script, tools, Script.layer(replies), options))
    const page = yield* open
    const errors: Array<string> = []
    page.on("pageerror", (error) => errors.push(String(error)))
    yield* Effect.promise(() => page.goto(url))
    yield* Effect.promise(() => page.getByLabel("Message").waitFor())
    return { cut, errors, page, url }
  })

const again = (page: Page) => page.getByRole("button", { name: "Again" }).click()

/** Waits until the page shows an error with these words. */
const fails = (page: Page, words: string): Promise<void> => page.getByRole("alert").filter({ hasText: words }).waitFor()

/** Waits until the page shows no error, and all of a chat. */
const holds = async (page: Page, chat: ReadonlyArray<string>): Promise<void> => {
  await page.getByRole("alert").waitFor({ state: "detached" })
  const last = chat.at(-1) ?? ""
  await page.locator("section p, section code").last().getByText(last, { exact: true }).waitFor()
  assert.deepStrictEqual(await ended(page), chat)
}

/** Requires that the page shows the same after it was loaded again, and that another message is answered behind it. */
const holdsOn = async (page: Page, chat: ReadonlyArray<string>, answer: string): Promise<void> => {
  await holds(page, chat)
  await page.reload()
  await holds(page, chat)
  await say(page, "And now?")
  await holds(page, [...chat, "And now?", answer])
}

const reply = (said: string) => [text(said), finish("stop")]

const cause = <E>(name: string, effect: Effect.Effect<{ readonly errors: ReadonlyArray<string> }, E, Scope.Scope>) =>
  it.live.skipIf(isPassedOver)(
    `O-29: the button of the page continues after ${name}`,
    () => Effect.map(effect, ({ errors }) => assert.deepStrictEqual(errors, [])).pipe(Effect.scoped)
  )

describe("the button of the page", () => {
  cause(
    "a message that did not leave, also once the page was loaded again",
    Effect.gen(function*() {
      const site = yield* visited([reply("Hello."), reply("Well."), reply("Now.")])
      const { page } = site
      yield* Effect.promise(async () => {
        await page.context().setOffline(true)
        await say(page, "Hi")
        await fails(page, "fetch")
        assert.isTrue(await page.getByRole("button", { name: "Send" }).isDisabled())
        await again(page)
        await fails(page, "fetch")
        await page.context().setOffline(false)
        await again(page)
        await holds(page, ["Hi", "Hello."])
        await page.context().setOffline(true)
        await say(page, "Still there?")
        await fails(page, "fetch")
        await page.context().setOffline(false)
        await page.reload()
        await fails(page, "may not have arrived")
        assert.deepStrictEqual(await page.locator("section p").allTextContents(), ["Hi", "Hello.", "Still there?"])
        await again(page)
        await holdsOn(page, ["Hi", "Hello.", "Still there?", "Well."], "Now.")
      })
      return site
    })
  )

  cause(
    "a refusal without authorization, of a message and of an answer",
    Effect.gen(function*() {
      let isOut = false
      const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
      const site = yield* visited(
        [[toolCall("p1", "pay"), finish("tool_calls")], reply("Paid."), reply("Now.")],
        [pay],
        { authorize: () => isOut ? Effect.fail("expired") : Effect.succeed({ principal: "ann" }), hosts: ["127.0.0.1"] }
      )
      const { page } = site
      yield* Effect.promise(async () => {
        isOut = true
        await say(page, "Pay")
        await fails(page, "Authorization")
        await again(page)
        await fails(page, "Authorization")
        isOut = false
        await again(page)
        await page.getByRole("button", { name: "Allow" }).waitFor()
        isOut = true
        await page.getByRole("button", { name: "Allow" }).click()
        await fails(page, "Authorization")
        isOut = false
        await again(page)
        await holdsOn(page, ["Pay", "pay {}: output-available \"paid\"", "Paid."], "Now.")
      })
      return site
    })
  )

  cause(
    "a message that came while another page's run was under way",
    Effect.gen(function*() {
      const gate = yield* Deferred.make<void>()
      const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.as(Deferred.await(gate), "waited") })
      const site = yield* visited(
        [[toolCall("w1", "wait"), finish("tool_calls")], reply("Waited."), reply("Here."), reply("Now.")],
        [wait]
      )
      const { page } = site
      yield* Effect.promise(async () => {
        const other = await page.context().browser()!.newPage()
        await other.goto(page.url())
        await say(other, "Wait")
        await shows(other, "wait {}: input-available ")
        await say(page, "Here?")
        await fails(page, "under way")
        await again(page)
        await shows(page, "wait {}: input-available ")
        assert.strictEqual(await page.getByLabel("Message").inputValue(), "Here?")
      })
      yield* Deferred.succeed(gate, undefined)
      yield* Effect.promise(async () => {
        const waited = ["Wait", "wait {}: output-available \"waited\"", "Waited."]
        await holds(page, waited)
        await page.getByRole("button", { name: "Send" }).click()
        await holdsOn(page, [...waited, "Here?", "Here."], "Now.")
      })
      return site
    })
  )

  cause(
    "an approval that another page has denied",
    Effect.gen(function*() {
      const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
      const site = yield* visited(
        [[toolCall("p1", "pay"), finish("tool_calls")], reply("Not paid."), reply("Now.")],
        [pay]
      )
      const { page } = site
      yield* Effect.promise(async () => {
        await say(page, "Pay")
        await page.getByRole("button", { name: "Allow" }).waitFor()
        const other = await page.context().browser()!.newPage()
        await other.goto(page.url())
        await other.getByRole("button", { name: "Deny" }).click()
        await shows(other, "Not paid.")
        await page.getByRole("button", { name: "Allow" }).click()
        await page.getByRole("alert").waitFor()
        await again(page)
        await holdsOn(page, ["Pay", "pay {}: output-denied ", "Not paid."], "Now.")
      })
      return site
    })
  )

  cause(
    "a run that failed, twice, also once the page was loaded again",
    Effect.gen(function*() {
      const quick = Tool.make("quick", { parameters: {}, handler: () => Effect.succeed("ok") })
      const site = yield* visited([
        [preflightError("invalid_request")],
        [text("I look."), toolCall("q1", "quick"), finish("tool_calls")],
        [preflightError("rate_limited")],
        [text("Wro"), streamError("network_error")],
        reply("Looked."),
        reply("Now.")
      ], [quick])
      const { page } = site
      yield* Effect.promise(async () => {
        await say(page, "Look")
        await fails(page, "refused")
        await again(page)
        await fails(page, "too many requests")
        await page.reload()
        await fails(page, "failed")
        await again(page)
        await fails(page, "was lost")
        await again(page)
        await holdsOn(page, ["Look", "I look.", "quick {}: output-available \"ok\"", "Wro", "Looked."], "Now.")
      })
      return site
    })
  )

  cause(
    "a connection that broke, whether the run is under way or has ended since",
    Effect.gen(function*() {
      const gates = [yield* Deferred.make<void>(), yield* Deferred.make<void>()]
      let asked = 0
      const wait = Tool.make("wait", {
        parameters: {},
        handler: () => Effect.as(Effect.suspend(() => Deferred.await(gates[asked++]!)), "waited")
      })
      const waiting = (id: string) => [text("I wait."), toolCall(id, "wait"), finish("tool_calls")]
      const site = yield* visited(
        [waiting("w1"), reply("Waited."), waiting("w2"), reply("Again."), reply("Now.")],
        [wait]
      )
      const { cut, page, url } = site
      const waited = ["I wait.", "wait {}: output-available \"waited\""]
      yield* Effect.promise(async () => {
        await say(page, "Wait")
        await shows(page, "wait {}: input-available ")
        cut()
        await page.getByRole("alert").waitFor()
        await again(page)
        await page.getByRole("alert").waitFor({ state: "detached" })
        await shows(page, "wait {}: input-available ")
      })
      yield* Deferred.succeed(gates[0]!, undefined)
      yield* Effect.promise(async () => {
        await holds(page, ["Wait", ...waited, "Waited."])
        await say(page, "Once more")
        await shows(page, "wait {}: input-available ")
        cut()
        await page.getByRole("alert").waitFor()
      })
      yield* Deferred.succeed(gates[1]!, undefined)
      yield* until(
        "the end of the run",
        Effect.promise(async () => {
          const id = page.url().split("#")[1]
          return (await (await fetch(`${url}/agents/shop/sessions/${id}`)).json()).isRunning
        }),
        (isRunning) => isRunning === false
      )
      yield* Effect.promise(async () => {
        await again(page)
        await holdsOn(page, ["Wait", ...waited, "Waited.", "Once more", ...waited, "Again."], "Now.")
      })
      return site
    })
  )
})
