/** The page of the guide to a server of one's own in a browser: a real Chromium, and the server of the guide. */
import * as NodeHttpServer from "@effect/platform-node/NodeHttpServer"
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as HttpRouter from "effect/http/HttpRouter"
import * as HttpServer from "effect/http/HttpServer"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter } from "heddle"
import { Script } from "heddle/testing"
import * as fs from "node:fs"
import { createServer } from "node:http"
import { chromium, type Page } from "playwright-core"
import * as Own from "./support/own.ts"

const executablePath = "/usr/bin/chromium"
const isPassedOver = process.env["CI"] !== "true" && !fs.existsSync(executablePath)
if (isPassedOver) console.warn(`THE PAGE IS PASSED OVER: THERE IS NO ${executablePath} (apt-get install chromium)`)

const { finish, text, toolCall } = Script

/** A model whose reply is held in the middle until the test, or a stop, ends it. */
const modelOf = (gate: Deferred.Deferred<void>) =>
  Layer.unwrap(Effect.map(
    Script.make([
      [text("one "), text("two "), text("three "), text("four"), finish("stop")],
      [toolCall("c1", "order"), finish("tool_calls")],
      [text("<b>Ordered</b>"), finish("stop")],
      [text("Never "), text("ending"), finish("stop")],
      [text("Well."), finish("stop")]
    ]),
    ({ stream }) =>
      Adapter.layer({
        stream: (request) =>
          Stream.tap(stream(request), (event) =>
            event._tag !== "TextDelta"
              ? Effect.void
              : event.delta === "three "
              ? Deferred.await(gate)
              : event.delta === "ending"
              ? Effect.never
              : Effect.void)
      })
  ))

const say = async (page: Page, words: string): Promise<void> => {
  await page.getByLabel("Message").fill(words)
  await page.getByRole("button", { name: "Send" }).click()
}

const shows = (page: Page, words: string): Promise<void> =>
  page.locator("main").getByText(words, { exact: true }).waitFor()

/** Waits for an entry in the list of sessions. */
const lists = (page: Page, words: string): Promise<void> =>
  page.getByRole("navigation").getByText(words, { exact: true }).waitFor()

const linesOf = (page: Page): Promise<ReadonlyArray<string>> => page.locator("main p").allTextContents()

describe("the page of the guide to your own server", () => {
  it.live.skipIf(isPassedOver)(
    "the page lists sessions, streams a run, approves, and stops",
    () =>
      Effect.gen(function*() {
        const gate = yield* Deferred.make<void>()
        const server = yield* Effect.promise(Own.server)
        const app = Layer.merge(server, HttpRouter.add("GET", "/", HttpServerResponse.html(Own.page())))
        const services = yield* Layer.build(
          HttpRouter.serve(app, { disableLogger: true }).pipe(
            Layer.provideMerge(NodeHttpServer.layer(createServer, { port: 0, host: "127.0.0.1" })),
            Layer.provide(modelOf(gate))
          )
        )
        const { address } = yield* Effect.provide(HttpServer.HttpServer, services)
        const url = `http://127.0.0.1:${"port" in address ? address.port : 0}/`
        const browser = yield* Effect.acquireRelease(
          Effect.promise(() =>
            chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] })
          ),
          (browser) => Effect.promise(() => browser.close())
        )
        const page = yield* Effect.promise(() => browser.newPage())
        page.setDefaultTimeout(120_000)
        const errors: Array<string> = []
        page.on("pageerror", (error) => errors.push(String(error)))
        yield* Effect.promise(async () => {
          await page.goto(url)
          await say(page, "Count")
          await shows(page, "one two")
          // A page that is loaded in the middle has what was said before, once.
          await page.reload()
          await shows(page, "one two")
          assert.deepStrictEqual(await linesOf(page), ["Count", "one two "])
          await lists(page, "Count (resume)")
        })
        yield* Deferred.succeed(gate, undefined)
        yield* Effect.promise(async () => {
          await lists(page, "Count (nothing)")
          assert.deepStrictEqual(await linesOf(page), ["Count", "one two three four"])
          await say(page, "Order")
          await page.getByRole("button", { name: "Allow" }).click()
          await page.locator("main p").last().getByText("<b>Ordered</b>", { exact: true }).waitFor()
          assert.strictEqual(await page.locator("main b").count(), 0, "the words of a model are no markup")
          await page.getByRole("button", { name: "Allow" }).waitFor({ state: "detached" })
          await say(page, "Go on")
          await shows(page, "Never")
          await page.getByRole("button", { name: "Stop" }).click()
          await lists(page, "Count (nothing)")
          const other = await browser.newPage()
          await other.goto(`${url}#other`)
          await lists(other, "Count (nothing)")
          assert.deepStrictEqual(await linesOf(other), [])
          await say(other, "Hello?")
          await shows(other, "Well.")
          await lists(other, "Hello? (nothing)")
          await other.getByRole("navigation").getByText("Count (nothing)", { exact: true }).click()
          await shows(other, "<b>Ordered</b>")
          assert.strictEqual(other.url(), page.url())
        })
        assert.deepStrictEqual(errors, [])
      }).pipe(Effect.scoped)
  )
})
