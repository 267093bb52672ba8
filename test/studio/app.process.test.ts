/** Studio of `heddle serve` in a real browser: by keyboard, on small screens, over reloads, kills and other tabs. */
import { assert, describe, it } from "@effect/vitest"
import axe from "axe-core"
import * as fs from "node:fs"
import * as path from "node:path"
import type { Page } from "playwright-core"
import { afterAll, beforeAll } from "vitest"
import { hasBrowser } from "../support/browser.ts"
import { markupTexts } from "../support/studioTexts.ts"
import { addressOf, excess, folder, rests, say, shownOn, shows, Stand } from "./support/served.ts"

const stand = new Stand()

const times = (text: string, part: string): number => text.split(part).length - 1

/** The violations of the rules of accessibility, by rule and element. */
const violations = async (page: Page): Promise<ReadonlyArray<string>> => {
  await page.evaluate(axe.source)
  return await page.evaluate(
    "axe.run().then(({ violations }) => violations.map(({ id, nodes }) => `${id}: ${nodes[0].target}`))"
  )
}

/** Chooses something in the menu of the first session of the list. */
const choose = async (page: Page, task: string): Promise<void> => {
  await page.locator("#sessions li").first().hover()
  await page.locator("#sessions .menu").first().click()
  await page.locator(".popover:popover-open").getByRole("button", { name: task }).click()
}

/** The elements of which a conversation and a list consist. */
const plain =
  "a article button canvas code details div footer form h1 h2 h3 header input kbd label li nav option p path "
  + "pre section select small span strong summary svg textarea time ul"

describe.skipIf(!hasBrowser())("Studio", () => {
  beforeAll(() => stand.start())
  afterAll(() => stand.end())

  it("W-19: a module of twenty lines chats, asks, waits for approval, shows calls as they run, and stops", async () => {
    const { close, faults, page } = await stand.open(await stand.serve("servedWeather"))
    await say(page, "Hello")
    await page.waitForSelector(".ask")
    assert.include(await shownOn(page), "Hello.")
    assert.include(await page.locator(".ask").innerText(), "Which city?")
    assert.strictEqual(await page.getAttribute("#message", "placeholder"), "Answer above first")
    // The field of the answer has the focus.
    await page.waitForFunction(() => document.activeElement?.closest(".ask textarea") != null)
    await page.keyboard.type("Oslo")
    await page.keyboard.press("Enter")
    await page.waitForSelector(".ask[data-kind=approval]")
    // From the heading to the arguments, which are changed, to Allow.
    await page.waitForFunction(() => document.activeElement?.closest(".ask[data-kind=approval] h2") != null)
    await page.keyboard.press("Tab")
    await page.keyboard.press("Control+A")
    await page.keyboard.type("{\"amount\": 4}")
    await page.keyboard.press("Tab")
    assert.strictEqual(await page.evaluate("document.activeElement.textContent"), "Allow")
    await page.keyboard.press("Enter")
    await page.waitForSelector("text=It is paid.")
    await rests(page)
    await page.locator(".call", { hasText: "pay" }).locator("summary").press("Enter")
    await page.waitForSelector("text=paid 4")
    // The card says what was changed, also after a reload.
    for (const isAgain of [false, true]) {
      if (isAgain) {
        await page.reload()
        await page.locator(".call", { hasText: "pay" }).locator("summary").press("Enter")
      }
      await page.waitForSelector("text=Arguments, changed by the approval")
      assert.include(await page.locator(".call", { hasText: "pay" }).locator("summary code").innerText(), "4")
    }
    await say(page, "Read")
    await page.waitForSelector(".call[data-state=running]")
    await page.keyboard.press("Escape")
    await page.waitForSelector(".call[data-state=cancelled]")
    await rests(page)
    assert.include(await shownOn(page), "Stopped")
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("W-19: a page reloaded in a run shows each text and each call once, and continues", async () => {
    const { close, faults, page } = await stand.open(await stand.serve("servedWeather"))
    await say(page, "Hello")
    await page.waitForSelector(".ask")
    await page.reload()
    await page.waitForSelector(".ask")
    const shown = await shownOn(page)
    assert.strictEqual(times(shown, "Hello."), 1, shown)
    assert.strictEqual(await page.locator(".call").count(), 1)
    await page.fill(".ask textarea", "Oslo")
    await page.press(".ask textarea", "Enter")
    await page.click(".ask[data-kind=approval] .deny")
    await page.waitForSelector(".call[data-state=denied]")
    await rests(page)
    await say(page, "Read")
    await page.waitForSelector(".call[data-state=running]")
    await page.reload()
    await page.waitForSelector(".call[data-state=running]")
    const again = await shownOn(page)
    assert.strictEqual(times(again, "I read."), 1, again)
    assert.strictEqual(times(again, "It is paid."), 1, again)
    await page.click("#stop")
    await page.waitForSelector(".call[data-state=cancelled]")
    await rests(page)
    await choose(page, "Delete")
    await page.click(".prompt .danger")
    await page.waitForSelector(".empty")
    await page.waitForSelector("#sessions a", { state: "detached" })
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("W-19: Studio shows the rule that ended a run, also on a reloaded page", async () => {
    const { close, faults, page } = await stand.open(await stand.serve("servedGoverned"))
    await say(page, "Hello")
    const ended = "The run was ended by the rule \"strict\"."
    await page.waitForSelector(`text=${ended}`)
    await page.reload()
    await page.waitForSelector(`text=${ended}`)
    const shown = await shownOn(page)
    assert.strictEqual(times(shown, ended), 1, shown)
    assert.include(shown, "Hello.")
    assert.notInclude(await page.content(), "a secret of the rule")
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("W-19: a screen of 320 pixels cuts nothing off, and the sessions are behind a button", async () => {
    const { close, faults, page } = await stand.open(await stand.serve("servedWeather"), {
      viewport: { width: 320, height: 560 }
    })
    await page.waitForSelector(".empty")
    assert.strictEqual(await excess(page), 0)
    await say(page, `Hello ${"long".repeat(60)}`)
    await page.waitForSelector(".ask")
    assert.strictEqual(await excess(page), 0)
    await page.fill(".ask textarea", "Oslo")
    await page.click(".ask .main")
    await page.waitForSelector(".ask[data-kind=approval]")
    assert.strictEqual(await excess(page), 0)
    await page.locator(".ask .main").scrollIntoViewIfNeeded()
    const box = await page.locator(".ask .main").boundingBox()
    assert.isTrue(box !== null && box.x >= 0 && box.x + box.width <= 320 && box.y + box.height <= 560)
    assert.isFalse(await page.locator("#side").isVisible())
    await page.click("#burger")
    await page.waitForSelector("#side", { state: "visible" })
    assert.strictEqual(await page.locator("#sessions a").count(), 1)
    await page.keyboard.press("Escape")
    await page.waitForSelector("#side", { state: "hidden" })
    assert.strictEqual(await page.evaluate("document.activeElement.id"), "burger")
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("W-19: Studio asks for a token, keeps it in memory, shows a run inside a call, and retries broken runs", async () => {
    const held = path.join(folder(), "held")
    fs.writeFileSync(held, "")
    const { close, faults, page } = await stand.open(await stand.serve("servedClosed", { HELD: held }))
    await page.waitForSelector("#login")
    await page.waitForFunction(() => document.activeElement?.id === "token")
    await page.keyboard.type("wrong")
    await page.keyboard.press("Enter")
    await page.waitForSelector("text=The server did not accept the token.")
    await page.keyboard.type("key")
    await page.keyboard.press("Enter")
    await page.waitForSelector(".empty")
    assert.deepStrictEqual(await page.locator("#agents option").allInnerTexts(), ["chief", "digger"])
    await say(page, "Gold")
    await page.locator(".call[data-state=running] summary").first().click()
    await page.waitForSelector(".call .call[data-state=running]")
    assert.include(await shownOn(page), "I dig.")
    fs.rmSync(held)
    await page.waitForSelector(".failure button")
    await page.waitForSelector(".call[data-state=done] >> nth=1")
    assert.strictEqual(await page.locator(".call[data-state=done]").count(), 2)
    await page.click(".failure button")
    await shows(page, "We have gold.")
    await rests(page)
    assert.strictEqual(await page.locator(".failure").count(), 0)
    // The token ends in the middle of things: the page keeps what it shows, and what was sent is sent again.
    fs.writeFileSync(`${held}.over`, "")
    await say(page, "More")
    await page.waitForSelector("text=The server no longer accepts the token.")
    assert.isTrue(await page.isVisible("text=We have gold."))
    await page.fill("#token", "key")
    await page.press("#token", "Enter")
    await page.waitForSelector("text=The server did not accept the token.")
    assert.isTrue(await page.isVisible("text=We have gold."))
    await page.fill("#token", "next")
    await page.press("#token", "Enter")
    await shows(page, "There is more.")
    assert.strictEqual(times(await shownOn(page), "More"), 1)
    const stored = await page.evaluate(
      "JSON.stringify([localStorage.length, sessionStorage.length, document.cookie, location.href])"
    )
    assert.notInclude(String(stored), "key")
    assert.match(String(stored), /^\[0,0,"","http/)
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-09: after kill -9 the page returns without a reload, with each text once and with its draft", async () => {
    const store = path.join(folder(), "s.db")
    const first = await stand.command("servedWeather", ["--store", store])
    const { close, faults, page } = await stand.open(first.url)
    await say(page, "Hello")
    await page.waitForSelector(".ask")
    first.child.kill("SIGKILL")
    await page.waitForSelector("text=The connection is lost")
    await page.fill(".ask textarea", "typed meanwhile")
    await stand.command("servedWeather", ["--store", store, "--port", new URL(first.url).port])
    await page.waitForSelector("#notice", { state: "detached" })
    const shown = await shownOn(page)
    assert.strictEqual(times(shown, "Hello."), 1, shown)
    assert.strictEqual(await page.locator(".call").count(), 1)
    assert.strictEqual(await page.inputValue(".ask textarea"), "typed meanwhile")
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-09: two tabs show the same run, its questions and its end, and a stop in one tab ends the run in both", async () => {
    const url = await stand.serve("servedWeather")
    const { close, context, faults, page } = await stand.open(url, { isBuilt: true })
    await say(page, "Hello")
    await page.waitForSelector(".ask")
    const other = await context.newPage()
    await other.goto(await addressOf(page))
    await other.waitForSelector(".ask")
    assert.strictEqual(await shownOn(other), await shownOn(page))
    await other.fill(".ask textarea", "Oslo")
    await other.press(".ask textarea", "Enter")
    await page.waitForSelector(".ask[data-kind=approval]")
    await page.click(".ask[data-kind=approval] .main")
    await other.waitForSelector("text=It is paid.")
    await rests(other)
    await rests(page)
    // The message of the other tab is there, and so are its calls.
    await say(other, "Read it")
    await page.waitForSelector("text=Read it")
    await page.waitForSelector(".call[data-state=running]")
    await page.click("#stop")
    await other.waitForSelector(".call[data-state=cancelled]")
    await Promise.all([rests(page), rests(other)])
    await page.waitForSelector(".call[data-state=cancelled]")
    assert.strictEqual(await shownOn(other), await shownOn(page))
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-09: another answer is a branch with the whole earlier conversation, and a reader can step through the branches", async () => {
    const { close, faults, page } = await stand.open(await stand.serve("servedWeather"))
    await say(page, "Hello")
    await page.waitForSelector(".ask")
    await page.fill(".ask textarea", "Oslo")
    await page.press(".ask textarea", "Enter")
    await page.click(".ask[data-kind=approval] .main")
    await page.waitForSelector("text=It is paid.")
    await rests(page)
    await say(page, "Read")
    await page.waitForSelector(".call[data-state=running]")
    await page.keyboard.press("Escape")
    await page.waitForSelector(".call[data-state=cancelled]")
    await rests(page)
    const first = await addressOf(page)
    await page.getByRole("button", { name: "Answer again" }).click()
    await page.waitForURL((url) => url.href !== first)
    // The script of the model is over: the branch fails, and has all that was before it.
    await page.waitForSelector(".failure")
    const shown = await shownOn(page)
    for (const text of ["Hello.", "I pay.", "It is paid."]) {
      assert.strictEqual(times(shown, text), 1, `${text} in ${shown}`)
    }
    assert.notInclude(shown, "works")
    assert.strictEqual(await page.locator(".call[data-state=done]").count(), 2)
    await page.waitForFunction(() => document.querySelector(".branches")?.textContent?.includes("2 / 2"))
    await page.getByRole("button", { name: "Previous branch" }).click()
    await page.waitForFunction(() => document.querySelector(".branches")?.textContent?.includes("1 / 2"))
    assert.strictEqual(page.url(), first)
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-05: the keys reach every part of the page, and no key acts while a text is typed", async () => {
    const { close, faults, page } = await stand.open(await stand.serve("servedWeather"))
    await page.waitForSelector(".empty")
    await page.focus("#message")
    await page.keyboard.type("n/p?[]f")
    assert.strictEqual(await page.inputValue("#message"), "n/p?[]f")
    await page.fill("#message", "")
    await page.locator("#message").blur()
    await page.keyboard.press("/")
    await page.waitForFunction(() => document.activeElement?.id === "search")
    await page.locator("#search").blur()
    await page.keyboard.press("?")
    await page.waitForSelector("dialog.help[open]")
    await page.keyboard.press("Escape")
    await page.waitForSelector("dialog.help", { state: "detached" })
    await say(page, "Hello")
    await page.waitForSelector(".ask")
    await page.waitForSelector("#sessions a[aria-current]")
    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("p")
    await page.waitForSelector("aside")
    await page.keyboard.press("f")
    await page.waitForSelector(".work[data-picture=wide]")
    await page.keyboard.press("Escape")
    await page.waitForSelector(".work[data-picture=beside]")
    await page.keyboard.press("p")
    await page.waitForSelector("aside", { state: "detached" })
    // The picture gives the focus back to the question.
    await page.waitForFunction(() => document.activeElement?.matches(".ask textarea"))
    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("n")
    await page.waitForSelector(".empty")
    await page.locator("#message").blur()
    await page.keyboard.press("]")
    await page.waitForSelector(".ask")
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-09: a draft stays with its session, and a renamed chat is found by its name", async () => {
    const { close, faults, page } = await stand.open(await stand.serve("servedGoverned"))
    await say(page, "Hello")
    await page.waitForSelector("text=The run was ended by the rule")
    await page.fill("#message", "a draft")
    await page.locator("#side").getByRole("button", { name: "New chat" }).click()
    await page.waitForSelector(".empty")
    assert.strictEqual(await page.inputValue("#message"), "")
    await page.click("#sessions a")
    await page.waitForSelector("text=The run was ended by the rule")
    assert.strictEqual(await page.inputValue("#message"), "a draft")
    await page.reload()
    await page.waitForSelector("text=The run was ended by the rule")
    assert.strictEqual(await page.inputValue("#message"), "")
    await choose(page, "Rename")
    await page.fill(".prompt input", "A name")
    await page.press(".prompt input", "Enter")
    await page.waitForSelector("#sessions a:has-text('A name')")
    await choose(page, "Pin")
    await page.waitForSelector("#sessions .icon.pin")
    await page.fill("#search", "nowhere")
    await page.waitForSelector("text=No chat has this in its title or last line.")
    await page.fill("#search", "a nam")
    await page.waitForSelector("#sessions a")
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-11, V-06: the built files log nothing and keep the content security policy", async () => {
    const { close, faults, page } = await stand.open(await stand.serve("servedWeather"), { isBuilt: true })
    await say(page, "Hello")
    await page.waitForSelector(".ask")
    await page.reload()
    await page.waitForSelector(".ask")
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("W-25: thirty hostile texts, names and arguments run no script and send no request", async () => {
    assert.strictEqual(markupTexts.length, 30)
    const url = await stand.serve("servedHostile", { HOSTILE: JSON.stringify(markupTexts) })
    const { close, faults, page } = await stand.open(url)
    const check = async () => {
      assert.isUndefined(await page.evaluate(() => (globalThis as { hit?: unknown }).hit))
      assert.deepStrictEqual(faults, [])
      const found = await page.evaluate(() => {
        const elements = Array.from(document.querySelectorAll("main *, nav *"))
        return {
          names: Array.from(new Set(elements.map(({ localName }) => localName))),
          attributes: elements.flatMap(({ attributes, localName }) =>
            Array.from(attributes, ({ name }) => name).filter((name) => name.startsWith("on") || name === "src")
              .map((name) => `${localName} ${name}`)
          ),
          addresses: elements.flatMap((element) => element.getAttribute("href") ?? [])
        }
      })
      assert.deepStrictEqual(found.names.filter((name) => !plain.split(" ").includes(name)), [])
      assert.deepStrictEqual(found.attributes, [])
      // An image is a link, which a person follows.
      for (const address of found.addresses) assert.match(address, /^(#|https?:|LICENSES\.txt)/)
    }
    await say(page, markupTexts.join("\n"))
    // One card for the thirty permissions, and one for each question.
    await page.waitForSelector(".ask >> nth=30")
    await page.waitForSelector(".ask[data-kind=approval] .one >> nth=29")
    await check()
    for (const part of await page.locator(".calls > summary, .think > summary").all()) await part.click()
    await page.locator(".ask input[type=text]").first().fill(markupTexts[21] ?? "")
    await page.locator(".ask[data-kind=approval] .deny").first().click()
    await page.waitForSelector(".ask[data-kind=approval] .one >> nth=29", { state: "detached" })
    await check()
    await page.reload()
    await page.waitForSelector(".ask")
    await check()
    const shown = await page.locator(".thread").innerText()
    for (const text of ["<script>window.hit = 1</script>", "<style>@import", "__proto__"]) assert.include(shown, text)
    await close()
  })

  it("W-10: Studio shows ten megabytes of arguments and of an answer in parts, with their length", async () => {
    const { close, faults, page } = await stand.open(await stand.serve("servedLarge"))
    await say(page, "Give me all")
    await page.waitForSelector(".call[data-state=done]")
    await rests(page)
    await page.click(".call summary")
    const answer = page.locator(".call pre").last()
    await answer.locator(".more").waitFor()
    assert.include(await answer.innerText(), "Show all 5,242,880 characters")
    await answer.locator(".more").click()
    await answer.locator(".more").waitFor({ state: "detached" })
    assert.strictEqual(await answer.evaluate(({ textContent }) => textContent?.length), 5_242_880)
    assert.deepStrictEqual(faults, [])
    await close()
  })

  for (const colorScheme of ["light", "dark"] as const) {
    for (const width of [1440, 390]) {
      it(`V-05: no accessibility rule is broken, ${colorScheme}, ${width} pixels wide`, async () => {
        const url = await stand.serve("servedWeather")
        const { close, page } = await stand.open(url, {
          colorScheme,
          bypassCSP: true,
          reducedMotion: "reduce",
          viewport: { width, height: 800 }
        })
        const check = async (what: string) => {
          assert.deepStrictEqual(await violations(page), [], what)
          assert.strictEqual(await excess(page), 0, what)
        }
        await page.waitForSelector(".empty .tools")
        await check("empty")
        await say(page, "Hello")
        await page.waitForSelector(".ask")
        await check("question")
        await page.fill(".ask textarea", "Oslo")
        await page.press(".ask textarea", "Enter")
        await page.waitForSelector(".ask[data-kind=approval]")
        await check("asks")
        if (width < 1100) await page.click("#burger")
        await page.waitForSelector("#sessions a")
        await choose(page, "Rename")
        await check("rename")
        await page.keyboard.press("Escape")
        await page.locator("#sessions .menu").first().click()
        await check("menu")
        await page.keyboard.press("Escape")
        if (width < 1100) await page.keyboard.press("Escape")
        await page.click(".ask[data-kind=approval] .deny")
        await page.waitForSelector(".call[data-state=denied]")
        await rests(page)
        await check("answer")
        await page.evaluate("document.activeElement.blur()")
        await page.keyboard.press("?")
        await check("keys")
        await close()
      })
    }
  }
})
