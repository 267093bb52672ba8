/** The page of `heddle serve` in a real browser: by keyboard, on a small screen, with hostile and with large texts. */
import { assert, describe, it } from "@effect/vitest"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import type { Page } from "playwright-core"
import { afterAll, beforeAll } from "vitest"
import { hasBrowser, launch } from "../support/browser.ts"
import { fixture, type Running, start } from "../support/command.ts"

const commands: Array<Running> = []

const serve = async (name: string, environment: Readonly<Record<string, string>> = {}): Promise<string> => {
  const command = start(["serve", fixture(name), "--port", "0"], environment)
  commands.push(command)
  return (await command.wrote(/at (http:\S+)/))[1] ?? ""
}

let browser: Awaited<ReturnType<typeof launch>>

/** A page with all that goes wrong in it. */
const opened = async (size = { width: 1000, height: 700 }) => {
  const context = await browser.newContext({ viewport: size })
  const page = await context.newPage()
  const faults: Array<string> = []
  page.on("pageerror", (error) => faults.push(String(error)))
  page.on("console", (message) => {
    if (message.type() === "error") faults.push(message.text())
  })
  page.on("dialog", (dialog) => {
    faults.push(`dialog: ${dialog.message()}`)
    void dialog.dismiss()
  })
  return { page, faults }
}

const say = async (page: Page, text: string): Promise<void> => {
  await page.fill("#text", text)
  await page.press("#text", "Enter")
}

const textOf = (page: Page, selector: string): Promise<string> => page.locator(selector).innerText()

/** The width by which the page is wider than the screen. */
const excess = (page: Page): Promise<number> =>
  page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

const thirty: ReadonlyArray<string> = [
  "<script>window.hit = 1</script>",
  "<img src=x onerror='window.hit = 2'>",
  "<svg onload='window.hit = 3'>",
  "<svg><script>window.hit = 4</script></svg>",
  "<iframe srcdoc='<script>parent.hit = 5</script>'></iframe>",
  "<iframe src='javascript:parent.hit = 6'></iframe>",
  "<a href='javascript:window.hit = 7' autofocus onfocus='window.hit = 7'>x</a>",
  "<body onload='window.hit = 8'>",
  "<details open ontoggle='window.hit = 9'>",
  "<input autofocus onfocus='window.hit = 10'>",
  "<style>@import 'http://leak.invalid/1'; * { background: url(http://leak.invalid/2) }</style>",
  "<link rel=stylesheet href='http://leak.invalid/3'>",
  "<meta http-equiv=refresh content='0;url=http://leak.invalid/4'>",
  "<form action='http://leak.invalid/5'><button autofocus>x</button></form>",
  "<base href='http://leak.invalid/6'>",
  "<object data='http://leak.invalid/7'></object>",
  "<embed src='http://leak.invalid/8'>",
  "<video src='http://leak.invalid/9' autoplay></video>",
  "<math><mtext></form><form><mglyph><style></math><img src onerror='window.hit = 19'>",
  "</textarea><script>window.hit = 20</script>",
  "</title></script><script>window.hit = 21</script>",
  "\"><img src=x onerror=window.hit=22>",
  "' onmouseover='window.hit = 23' x='",
  "javascript:window.hit=24",
  "${window.hit = 25}{{constructor.constructor('window.hit = 25')()}}",
  "__proto__",
  "constructor",
  "![x](http://leak.invalid/10) [x](javascript:window.hit=28)",
  "\u202e\u2066<img src=x onerror=window.hit=29>\u0000\u001b[31m",
  `data: {"_tag":"RunStarted"}\n\nevent: reset\ndata: {}\n\n<script>window.hit = 30</script>`
]

describe.skipIf(!hasBrowser())("the page of heddle serve", () => {
  beforeAll(async () => {
    browser = await launch()
  })
  afterAll(async () => {
    await browser?.close()
    for (const { child } of commands) child.kill("SIGKILL")
  })

  it("W-19: a module of twenty lines chats, asks, waits for a permission, shows calls as they run, and stops", async () => {
    const url = await serve("servedWeather")
    const { faults, page } = await opened()
    await page.goto(url)
    await say(page, "Hello")
    await page.waitForSelector(".ask")
    assert.include(await textOf(page, "#log"), "Hello. ")
    assert.include(await textOf(page, ".ask"), "Which city?")
    // The field of the answer has the focus.
    await page.keyboard.type("Oslo")
    await page.keyboard.press("Enter")
    await page.waitForSelector(".ask[data-kind=approval]")
    assert.include(await textOf(page, ".call >> nth=1"), "waits for an answer")
    // From the heading to the arguments, which are changed, past the reason, to Allow.
    await page.keyboard.press("Tab")
    await page.keyboard.press("Control+A")
    await page.keyboard.type("{\"amount\": 4}")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    assert.strictEqual(await page.evaluate("document.activeElement.textContent"), "Allow")
    await page.keyboard.press("Enter")
    await page.waitForSelector("#stop", { state: "hidden" })
    await page.waitForSelector(".call[data-state=done] >> nth=1")
    await page.locator(".call >> nth=1").locator("summary").press("Enter")
    assert.include(await textOf(page, ".call >> nth=1"), "paid 4")
    assert.include(await textOf(page, "#log"), "It is paid.")
    await say(page, "Read")
    await page.waitForSelector(".call[data-state=running]")
    await page.keyboard.press("Escape")
    await page.waitForSelector(".report")
    assert.strictEqual(await textOf(page, ".report"), "Stopped: read.")
    assert.include(await textOf(page, ".call >> nth=2"), "stopped")
    assert.deepStrictEqual(faults, [])
    await page.context().close()
  })

  it("W-19: a page that is loaded again in a run shows each text and each call once, and goes on", async () => {
    const url = await serve("servedWeather")
    const { faults, page } = await opened()
    await page.goto(url)
    await say(page, "Hello")
    await page.waitForSelector(".ask")
    await page.reload()
    await page.waitForSelector(".ask")
    const shown = await textOf(page, "#log")
    assert.strictEqual(shown.split("Hello.").length, 2, shown)
    assert.strictEqual(await page.locator(".call").count(), 1)
    await page.fill(".ask textarea", "Oslo")
    await page.keyboard.press("Enter")
    await page.click(".ask[data-kind=approval] .deny")
    await page.waitForSelector(".call[data-state=denied]")
    await page.waitForSelector("#stop", { state: "hidden" })
    await say(page, "Read")
    await page.waitForSelector(".call[data-state=running]")
    await page.reload()
    await page.waitForSelector(".call[data-state=running]")
    const again = await textOf(page, "#log")
    assert.strictEqual(again.split("I read.").length, 2, again)
    assert.strictEqual(again.split("It is paid.").length, 2, again)
    await page.click("#stop")
    await page.waitForSelector(".report")
    await page.click("#delete")
    await page.click("#delete")
    await page.waitForSelector(".empty")
    await page.waitForSelector("#sessions li", { state: "detached" })
    assert.deepStrictEqual(faults, [])
    await page.context().close()
  })

  it("W-19: an end by a rule is shown with the rule's name, also to a page that is loaded again", async () => {
    const url = await serve("servedGoverned")
    const { faults, page } = await opened()
    await page.goto(url)
    await say(page, "Hello")
    const ended = "The run was ended by the rule \"strict\"."
    await page.waitForSelector(`text=${ended}`)
    await page.reload()
    await page.waitForSelector(`text=${ended}`)
    const shown = await textOf(page, "#log")
    assert.strictEqual(shown.split(ended).length, 2, shown)
    assert.include(shown, "Hello.")
    assert.notInclude(shown, "failed")
    assert.notInclude(await page.content(), "a secret of the rule")
    assert.deepStrictEqual(faults, [])
    await page.context().close()
  })

  it("W-19: on a screen of 320 pixels nothing is cut off, and the sessions are behind a button", async () => {
    const url = await serve("servedWeather")
    const { faults, page } = await opened({ width: 320, height: 560 })
    await page.goto(url)
    assert.strictEqual(await excess(page), 0)
    await say(page, `Hello ${"long".repeat(60)}`)
    await page.waitForSelector(".ask")
    assert.strictEqual(await excess(page), 0)
    await page.fill(".ask textarea", "Oslo")
    await page.click(".ask .main")
    await page.waitForSelector(".ask[data-kind=approval]")
    assert.strictEqual(await excess(page), 0)
    const box = await page.locator(".ask .main").boundingBox()
    assert.isTrue(box !== null && box.x >= 0 && box.x + box.width <= 320 && box.y + box.height <= 560)
    assert.isFalse(await page.locator("#side").isVisible())
    await page.click("#menu")
    assert.isTrue(await page.locator("#side").isVisible())
    assert.strictEqual(await page.locator("#sessions li").count(), 1)
    await page.keyboard.press("Escape")
    assert.isFalse(await page.locator("#side").isVisible())
    assert.deepStrictEqual(faults, [])
    await page.context().close()
  })

  it("W-19: it asks for a token, shows the run of another agent inside its call, and tries again what broke", async () => {
    const held = path.join(fs.mkdtempSync(path.join(os.tmpdir(), "heddle-page-")), "held")
    fs.writeFileSync(held, "")
    const url = await serve("servedClosed", { HELD: held })
    const { page } = await opened()
    await page.goto(url)
    await page.waitForSelector("#login", { state: "visible" })
    await page.keyboard.type("wrong")
    await page.keyboard.press("Enter")
    await page.waitForSelector("text=The server did not accept the token.")
    await page.keyboard.type("key")
    await page.keyboard.press("Enter")
    await page.waitForSelector(".empty")
    assert.deepStrictEqual(await page.locator("#agents option").allInnerTexts(), ["chief", "digger"])
    await say(page, "Gold")
    await page.waitForSelector(".nested .call[data-state=running]")
    assert.include(await textOf(page, ".nested"), "I dig.")
    assert.include(await textOf(page, ".nested"), "deep")
    assert.match(await textOf(page, ".nested .call .state"), /^running [\d.]+ s$/)
    fs.rmSync(held)
    await page.waitForSelector(".mark.bad button")
    assert.strictEqual(await page.locator(".call[data-state=done]").count(), 2)
    await page.click(".mark.bad button")
    await page.waitForSelector("text=We have gold.")
    await page.waitForSelector("#stop", { state: "hidden" })
    assert.strictEqual(await page.locator(".mark.bad").count(), 0)
    // The token ends in the middle of things: the page keeps what it shows, and what was sent is sent again.
    fs.writeFileSync(`${held}.over`, "")
    await say(page, "More")
    await page.waitForSelector("text=The server does not accept the token any more.")
    assert.isTrue(await page.isVisible("text=We have gold."))
    await page.keyboard.type("key")
    await page.keyboard.press("Enter")
    await page.waitForSelector("text=The server did not accept the token.")
    assert.isTrue(await page.isVisible("text=We have gold."))
    await page.keyboard.type("next")
    await page.keyboard.press("Enter")
    await page.waitForSelector("text=There is more.")
    assert.strictEqual((await textOf(page, "#log")).split("More").length, 2)
    const stored = await page.evaluate(
      "JSON.stringify([localStorage.length, sessionStorage.length, document.cookie, location.href])"
    )
    assert.notInclude(String(stored), "key")
    assert.match(String(stored), /^\[0,0,"","http/)
    await page.context().close()
  })

  it("W-19: a connection that breaks is opened again, and each text is there once", async () => {
    const store = path.join(fs.mkdtempSync(path.join(os.tmpdir(), "heddle-page-")), "s.db")
    const first = start(["serve", fixture("servedWeather"), "--port", "0", "--store", store])
    const [, url = ""] = await first.wrote(/at (http:\S+)/)
    const { page } = await opened()
    await page.goto(url)
    await say(page, "Hello")
    await page.waitForSelector(".ask")
    first.child.kill("SIGKILL")
    await page.waitForSelector("text=The connection is broken")
    await page.fill(".ask textarea", "typed meanwhile")
    const second = start(["serve", fixture("servedWeather"), "--port", new URL(url).port, "--store", store])
    commands.push(second)
    await second.wrote(/at (http:\S+)/)
    await page.waitForSelector("#notice", { state: "hidden" })
    await page.waitForFunction("document.querySelectorAll('.call').length === 1")
    const shown = await textOf(page, "#log")
    assert.strictEqual(shown.split("Hello.").length, 2, shown)
    assert.strictEqual(await page.inputValue(".ask textarea"), "typed meanwhile")
    await page.context().close()
  })

  it("W-25: thirty hostile texts, names and arguments run no script, and no request leaves", async () => {
    assert.strictEqual(thirty.length, 30)
    const url = await serve("servedHostile", { HOSTILE: JSON.stringify(thirty) })
    const { faults, page } = await opened()
    const left: Array<string> = []
    page.on("request", (request) => {
      if (!request.url().startsWith(`${url}/`)) left.push(request.url())
    })
    const check = async () => {
      assert.isUndefined(await page.evaluate("window.hit"))
      assert.deepStrictEqual(left, [])
      assert.deepStrictEqual(faults, [])
      const elements = await page.evaluate(
        "[...document.querySelectorAll('main *, nav *')].map((e) => e.localName)"
          + ".filter((n) => !'a button code details div form h2 h3 input kbd label li nav option p pre section select span summary textarea ul'.split(' ').includes(n))"
      )
      assert.deepStrictEqual(elements, [])
      assert.deepStrictEqual(
        await page.evaluate(
          "[...document.querySelectorAll('main *')].flatMap((e) => [...e.attributes].map((a) => a.name)).filter((n) => n.startsWith('on') || n === 'style' || n === 'src' || n === 'href')"
        ),
        []
      )
    }
    await page.goto(url)
    await say(page, thirty.join("\n"))
    await page.waitForSelector(".ask >> nth=59")
    await check()
    for (const call of await page.locator(".call > summary, .think > summary").all()) await call.click()
    await page.locator(".ask input").first().fill(thirty[21] ?? "")
    await page.locator(".ask[data-kind=approval] .deny").first().click()
    await page.locator(".ask[data-kind=question] .row button").first().click()
    await page.waitForSelector(".ask >> nth=58", { state: "detached" })
    await check()
    await page.reload()
    await page.waitForSelector(".ask")
    await check()
    const shown = await textOf(page, "#log")
    for (const text of ["<script>window.hit = 1</script>", "<style>@import", "__proto__"]) assert.include(shown, text)
    await page.context().close()
  })

  it("W-10: ten megabytes of arguments and of an answer are shown in parts, with their length", async () => {
    const url = await serve("servedLarge")
    const { faults, page } = await opened()
    await page.goto(url)
    await say(page, "Give me all")
    await page.waitForSelector(".call[data-state=done]", { timeout: 60_000 })
    await page.waitForSelector("#stop", { state: "hidden" })
    await page.click(".call > summary")
    assert.include(await textOf(page, ".call pre >> nth=1"), "Show all 5,242,880 characters")
    await page.click(".call pre >> nth=1 >> .more")
    await page.waitForSelector(".call pre >> nth=1 >> .more", { state: "detached", timeout: 60_000 })
    const length = await page.evaluate("document.querySelectorAll('.call pre')[1].textContent.length")
    assert.strictEqual(length, 5_242_880)
    assert.deepStrictEqual(faults, [])
    await page.context().close()
  })
})
