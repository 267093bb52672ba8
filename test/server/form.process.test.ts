/** The form of the guide in a browser: a real Chromium, a real server, and a model that gives an answer in pieces. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as HttpRouter from "effect/http/HttpRouter"
import * as HttpServer from "effect/http/HttpServer"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import * as Layer from "effect/Layer"
import { Session } from "heddle"
import { type Agent, Server } from "heddle/server"
import type { Page } from "playwright-core"
import * as Browser from "../support/browser.ts"
import { answering, type By } from "./support/answering.ts"
import * as Guide from "./support/guide.ts"

const guide = "docs/typed-answers.md"
const html = `<!doctype html><meta charset="utf-8"><div id="chat"></div><script src="/page.js"></script>`

/** Serves an agent and a page on a free port. Succeeds with the address. */
const serve = (script: string, agent: Agent.Agent<any>, model: ReturnType<typeof answering>["model"]) =>
  Effect.gen(function*() {
    const routes = Layer.mergeAll(
      Server.layer({ agents: [agent], authorize: Server.allowLoopback }),
      HttpRouter.add("GET", "/", HttpServerResponse.html(html)),
      HttpRouter.add("GET", "/page.js", HttpServerResponse.text(script, { contentType: "text/javascript" }))
    )
    const app = routes.pipe(Layer.provide([model, Session.Store.layerMemory]), Server.layerNode({ port: 0 }))
    const { address } = yield* Effect.provide(
      HttpServer.HttpServer,
      yield* Layer.build(app as Layer.Layer<HttpServer.HttpServer>)
    )
    return `http://127.0.0.1:${"port" in address ? address.port : 0}`
  })

/** Waits until the page has this many fields, and the last ones of each have these values. */
const fills = async (page: Page, values: Readonly<Record<string, string>>, isWhole = false): Promise<void> => {
  await page.waitForFunction(
    ([values, isWhole]) => {
      const busy = document.querySelector("fieldset")?.getAttribute("aria-busy")
      const fields = Array.from(document.querySelectorAll("fieldset label"))
      return busy === String(!isWhole) &&
        Object.entries(values).every(([label, value]) =>
          fields.findLast(({ textContent }) => textContent.trim() === label)?.querySelector("input")?.value === value
        )
    },
    [values, isWhole] as const
  )
}

/** The state of the session that a page shows, as its server has it. */
const sessionOf = (page: Page) =>
  page.evaluate(async () => (await fetch(`/agents/clerk/sessions/${location.hash.slice(1)}`)).json())

/** The page of the guide in a browser, with a letter on its way to the agent of the guide. */
const sent = (by: By) =>
  Effect.gen(function*() {
    const { clerk } = (yield* Effect.promise(() =>
      import(Guide.write("form-agent.ts", {
        ...Guide.exampleOf(guide, "Agent.make("),
        code: `${Guide.exampleOf(guide, "Agent.make(").code}\nexport { clerk }`
      }))
    )) as { readonly clerk: Agent.Agent<any> }
    const script = yield* Effect.promise(() => Guide.bundle("form", Guide.exampleOf(guide, "useChat<")))
    const { give, model } = answering(by)
    const url = yield* serve(script, clerk, model)
    const browser = yield* Effect.acquireRelease(
      Effect.promise(Browser.launch),
      (browser) => Effect.promise(() => browser.close())
    )
    const page = yield* Effect.promise(() => browser.newPage())
    page.setDefaultTimeout(120_000)
    const errors: Array<string> = []
    page.on("pageerror", (error) => errors.push(String(error)))
    yield* Effect.promise(async () => {
      await page.goto(url)
      await page.getByLabel("Letter").fill("Two of Emma, please. Ann")
      await page.getByRole("button", { name: "Read" }).click()
    })
    return { errors, give, page }
  })

describe("the form of the guide", () => {
  for (const by of ["text", "call"] satisfies ReadonlyArray<By>) {
    it.live.skipIf(!Browser.hasBrowser())(
      `R-553: by ${by}: the form grows before the run ends, also after a reload, and has the accepted value at its end`,
      () =>
        Effect.gen(function*() {
          const { errors, give, page } = yield* sent(by)
          const grows = (piece: string, values: Readonly<Record<string, string>>) =>
            Effect.andThen(give(piece), Effect.promise(() => fills(page, values)))
          yield* grows("{\"customer\":\"An", { Customer: "An", Note: "" })
          yield* grows("n\",\"items\":[{\"title\":\"Emma\",\"count\":2", { Customer: "Ann", Title: "Emma", Count: "" })
          yield* grows("},{\"title\":\"Per", { Title: "Per" })
          yield* Effect.promise(async () => {
            assert.strictEqual(await page.locator(".item").count(), 2)
            assert.isTrue((await sessionOf(page)).isRunning)
            assert.notInclude(await page.locator("form").innerText(), "customer")
            await page.reload()
            await fills(page, { Customer: "Ann", Title: "Per" })
          })
          yield* grows("suasion\",\"count\":1}", { Title: "Persuasion", Count: "1" })
          yield* give("]}", undefined)
          const whole = {
            customer: "Ann",
            items: [{ title: "Emma", count: 2 }, { title: "Persuasion", count: 1 }]
          }
          yield* Effect.promise(async () => {
            await fills(page, { Customer: "Ann", Title: "Persuasion", Count: "1", Note: "" }, true)
            await page.getByLabel("Note").fill("Wrapped")
            assert.strictEqual(await page.getByRole("alert").count(), 0)
            await page.reload()
            await fills(page, { Customer: "Ann", Title: "Persuasion", Count: "1", Note: "" }, true)
            const { isRunning, output } = await sessionOf(page)
            assert.deepStrictEqual([isRunning, output], [false, whole])
          })
          assert.deepStrictEqual(errors, [])
        }).pipe(Effect.scoped)
    )
  }

  it.live.skipIf(!Browser.hasBrowser())(
    "R-553: the form says that the order is incomplete if no answer fits",
    () =>
      Effect.gen(function*() {
        const { errors, give, page } = yield* sent("text")
        for (const customer of ["Ann", "Bob", "Cid"]) {
          yield* give(`{"customer":"${customer}`)
          yield* Effect.promise(() => fills(page, { Customer: customer }))
          yield* give("\"}", undefined)
        }
        yield* Effect.promise(async () => {
          await page.getByRole("alert").filter({ hasText: "not whole" }).waitFor()
          assert.isFalse((await sessionOf(page)).isRunning)
          await page.reload()
          await page.getByLabel("Letter").waitFor()
          assert.strictEqual(await page.locator("fieldset").count(), 0)
        })
        assert.deepStrictEqual(errors, [])
      }).pipe(Effect.scoped)
  )
})
