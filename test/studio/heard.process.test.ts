/** Studio for a person with a keyboard and a screen reader: where the focus is, and what is said. */
import { assert, describe, it } from "@effect/vitest"
import * as fs from "node:fs"
import * as path from "node:path"
import type { Page } from "playwright-core"
import { afterAll, beforeAll } from "vitest"
import { hasBrowser } from "../support/browser.ts"
import { addressOf, folder, rests, say, Stand } from "./support/served.ts"

const stand = new Stand()

/** Opens an address on a page that keeps what its live region says. */
const open = async (url: string, options: Parameters<Stand["open"]>[1] = {}) => {
  const opened = await stand.open(url, options)
  await opened.page.addInitScript(() => {
    const said: Array<string> = []
    let last = ""
    Object.assign(globalThis, { said })
    new MutationObserver(() => {
      const text = document.querySelector(".hidden[aria-live]")?.textContent.trim() ?? ""
      if (text !== "" && text !== last) said.push(text)
      last = text
    }).observe(document, { subtree: true, childList: true, characterData: true })
  })
  await opened.page.reload()
  return opened
}

/** Waits until something is said, and returns all that was said until then. */
const said = async (page: Page, part: string): Promise<ReadonlyArray<string>> => {
  await page.waitForFunction(
    (part) => (globalThis as unknown as { said: ReadonlyArray<string> }).said.some((text) => text.includes(part)),
    part
  )
  return page.evaluate(() => (globalThis as unknown as { said: Array<string> }).said.splice(0))
}

/** Waits until the element of a selector has the focus. */
const focus = async (page: Page, selector: string): Promise<void> => {
  const has = page.waitForFunction((selector) => document.activeElement?.matches(selector), selector)
  await has.catch(async () => {
    assert.fail(
      `${selector} has no focus, but ${await page.evaluate("document.activeElement.outerHTML.slice(0, 300)")}`
    )
  })
}

describe.skipIf(!hasBrowser())("Studio by keyboard", () => {
  beforeAll(() => stand.start())
  afterAll(() => stand.end())

  it("V-05: a part that closes, ends or disappears returns the focus to the button that opened it, or to the message", async () => {
    const { close, faults, page } = await open(await stand.serve("servedWeather"))
    await say(page, "Hello")
    await focus(page, ".ask textarea")
    await page.keyboard.type("Oslo")
    await page.keyboard.press("Enter")
    await focus(page, ".ask[data-kind=approval] h2")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await page.waitForSelector("text=It is paid.")
    await rests(page)
    await focus(page, "#message")
    await say(page, "Read")
    await page.waitForSelector(".call[data-state=running]")
    await page.focus("#stop")
    await page.keyboard.press("Enter")
    await page.waitForSelector(".call[data-state=cancelled]")
    await rests(page)
    await focus(page, "#message")
    for (
      const [opener, opened] of [["[aria-label='Keys']", "dialog.help"], [
        "[aria-label='Edit your message']",
        ".edit"
      ]] as const
    ) {
      await page.locator(opener).last().focus()
      await page.keyboard.press("Enter")
      await page.waitForSelector(opened)
      await page.keyboard.press("Escape")
      await focus(page, opener)
    }
    await page.waitForSelector("#sessions .menu")
    for (const task of ["Rename", "Delete"]) {
      await page.locator("#sessions .menu").focus()
      await page.keyboard.press("Enter")
      await page.locator(".popover:popover-open").getByText(task).press("Enter")
      await page.waitForSelector(".prompt")
      await page.keyboard.press("Escape")
      await focus(page, "#sessions .menu")
    }
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-05: the message field takes text while a question waits, and says why it does not send the text", async () => {
    const { close, faults, page } = await open(await stand.serve("servedWeather"))
    await say(page, "Hello")
    await page.waitForSelector(".ask")
    await said(page, "Which city?")
    await page.fill("#message", "typed meanwhile")
    await page.press("#message", "Enter")
    await said(page, "Answer above first. What is typed here is kept.")
    assert.strictEqual(await page.inputValue("#message"), "typed meanwhile")
    const state =
      "document.getElementById(document.getElementById('message').getAttribute('aria-describedby')).textContent"
    assert.include(String(await page.evaluate(state)), "Answer above first.")
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-05: a new question does not take the focus from a button", async () => {
    const { close, faults, page } = await open(await stand.serve("servedWeather"))
    await page.waitForSelector(".empty")
    await page.fill("#message", "Hello")
    await page.evaluate(() => {
      document.querySelector<HTMLFormElement>("form.composer")?.requestSubmit()
      document.querySelector<HTMLElement>("[aria-label='Keys']")?.focus()
    })
    await page.waitForSelector(".ask")
    await said(page, "Which city?")
    await focus(page, "[aria-label='Keys']")
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-05: a screen reader hears each event once and in order, and no earlier event", async () => {
    const { close, faults, page } = await open(await stand.serve("servedWeather"))
    await said(page, "New chat with weather.")
    await say(page, "Hello")
    assert.match((await said(page, "Which city?")).join(" "), /^(?:The agent works\. )?Which city\?$/)
    await page.fill(".ask textarea", "Oslo")
    await page.press(".ask textarea", "Enter")
    assert.match((await said(page, "Answered: ask.")).join(" "), /Answered: ask\./)
    assert.deepStrictEqual(faults, [])
    await close()
  })

  for (const width of [1200, 390]) {
    it(`V-05: the picture takes the focus, says that it is open, and returns the focus, ${width} pixels wide`, async () => {
      const { close, faults, page } = await open(await stand.serve("servedWeather"), {
        viewport: { width, height: 760 }
      })
      await say(page, "Hello")
      await page.fill(".ask textarea", "Oslo")
      await page.press(".ask textarea", "Enter")
      await page.click(".ask[data-kind=approval] .main")
      await page.waitForSelector(".answer >> text=It is paid.")
      await rests(page)
      for (const opener of [".bar [aria-label=Picture]", ".run-strip"]) {
        const button = page.locator(opener).last()
        await button.focus()
        assert.strictEqual(await button.getAttribute("aria-expanded"), "false")
        await page.keyboard.press("Enter")
        await focus(page, "aside canvas, aside .run-table")
        assert.strictEqual(await button.getAttribute("aria-expanded"), "true")
        assert.strictEqual(await page.locator("main").evaluate((main) => (main as HTMLElement).inert), width === 390)
        await page.keyboard.press("Escape")
        await page.waitForSelector("aside", { state: "detached" })
        await focus(page, opener)
        assert.isFalse(await page.locator("main").evaluate((main) => (main as HTMLElement).inert))
      }
      if (width > 899) {
        await page.keyboard.press("p")
        await focus(page, "aside canvas")
        await page.keyboard.press("f")
        await page.waitForSelector(".work[data-picture=wide]")
        assert.isTrue(await page.locator("main").evaluate((main) => (main as HTMLElement).inert))
        assert.isTrue(await page.locator("#side").evaluate((side) => (side as HTMLElement).inert))
        await page.keyboard.press("Escape")
        await page.waitForSelector(".work[data-picture=beside]")
        await page.keyboard.press("Escape")
        await page.waitForSelector("aside", { state: "detached" })
        await focus(page, ".run-strip")
      } else {
        await page.focus("#burger")
        await page.keyboard.press("Enter")
        await focus(page, "#sessions a[aria-current]")
        assert.isTrue(await page.locator(".work").evaluate((work) => (work as HTMLElement).inert))
        await page.keyboard.press("Escape")
        await focus(page, "#burger")
        assert.isTrue(await page.locator("#side").evaluate((side) => (side as HTMLElement).inert))
      }
      assert.deepStrictEqual(faults, [])
      await close()
    })
  }

  it("V-05: a screen reader hears names, pins, searches, deletions and a question of another chat", async () => {
    const { close, faults, page } = await open(await stand.serve("servedWeather"))
    await say(page, "Hello")
    await page.waitForSelector(".ask")
    await page.waitForSelector("#sessions .works, #sessions .asks")
    await page.locator("#side").getByRole("button", { name: "New chat" }).click()
    // The chat that was left needs an answer still.
    await page.waitForSelector("#sessions .asks")
    await page.waitForFunction(() => document.title.startsWith("● "))
    await page.fill("#search", "Hello")
    await said(page, "1 chat found.")
    await page.fill("#search", "nowhere")
    await said(page, "No chat has this in its title or last line.")
    await page.press("#search", "Escape")
    for (const [task, sentence] of [["Pin", "Pinned."], ["Rename", "Renamed."], ["Delete", "Deleted."]] as const) {
      await page.locator("#sessions .menu").focus()
      await page.keyboard.press("Enter")
      await page.locator(".popover:popover-open").getByRole("button", { name: task, exact: true }).press("Enter")
      if (task === "Pin") await page.waitForSelector("#sessions .name:has-text('Pinned:')")
      else await page.locator(".prompt .choices button").last().click()
      await said(page, sentence)
    }
    await page.waitForFunction(() => !document.title.startsWith("● "))
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-05: a chat in the background says once that it needs an answer", async () => {
    const { close, context, faults, page } = await open(await stand.serve("servedChats"))
    await say(page, "Hello")
    await page.waitForSelector(".answer:has-text('A line.')")
    await rests(page)
    const other = await context.newPage()
    await other.goto(await addressOf(page))
    await page.locator("#side").getByRole("button", { name: "New chat" }).click()
    await page.waitForSelector(".empty")
    await page.locator("#sessions .status", { hasText: "A line." }).waitFor()
    await page.evaluate(() => (globalThis as unknown as { said: Array<string> }).said.splice(0))
    await say(other, "sign")
    await other.waitForSelector(".ask")
    // A person comes back to the page, which reads its list again.
    for (let times = 0; times < 2; times++) {
      await page.evaluate(() => document.dispatchEvent(new Event("visibilitychange")))
      await page.waitForSelector("#sessions .asks")
    }
    const all = await said(page, "Hello needs you.")
    assert.strictEqual(all.join(" ").split("needs you.").length, 2)
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-14: the button of a call inside a sub-agent stops only this call, also after a reload", async () => {
    const held = path.join(folder(), "held")
    fs.writeFileSync(held, "")
    const { close, page } = await open(await stand.serve("servedClosed", { HELD: held }))
    const enter = async () => {
      await page.fill("#token", "key")
      await page.press("#token", "Enter")
    }
    await enter()
    await say(page, "Dig")
    const outer = page.locator(".rows .answer > .call", { hasText: "digger" })
    const inner = outer.locator(".call", { hasText: "dig" })
    await outer.locator("> details > summary").press("Enter")
    await inner.and(page.locator("[data-state=running]")).waitFor()
    await page.getByRole("button", { name: "Stop dig", exact: true }).press("Enter")
    await said(page, "Stopping dig.")
    for (const isAgain of [false, true]) {
      if (isAgain) {
        await page.reload()
        await enter()
        await outer.locator("> details > summary").press("Enter")
      }
      await inner.locator(".state", { hasText: "stopped by ann" }).waitFor()
      await outer.and(page.locator("[data-state=done]")).waitFor()
      assert.include(await outer.innerText(), "There is gold.")
    }
    await close()
  })

  it("V-14: the button in the detail of a chosen call stops this call, and moves the focus to the picture", async () => {
    const { close, faults, page } = await open(await stand.serve("servedChats"))
    await say(page, "wait")
    await page.waitForSelector(".call[data-state=running]")
    await page.getByRole("button", { name: "Picture", exact: true }).first().press("Enter")
    await focus(page, "aside canvas")
    await page.keyboard.press("ArrowRight")
    await page.getByRole("button", { name: "Stop this call" }).press("Enter")
    await said(page, "Stopping wait.")
    await page.waitForSelector(".call[data-state=cancelled] .state:has-text('stopped by a local user')")
    await page.waitForSelector(".answer:has-text('It is done')")
    assert.strictEqual(await page.getByRole("button", { name: "Stop this call" }).count(), 0)
    await focus(page, "aside canvas")
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-14: the button on a call's card stops the call, which says who stopped it, also after a reload", async () => {
    const { close, faults, page } = await open(await stand.serve("servedChats"))
    await say(page, "wait")
    await page.waitForSelector(".call[data-state=running]")
    await page.getByRole("button", { name: /^Stop wait/ }).press("Enter")
    for (const isAgain of [false, true]) {
      if (isAgain) await page.reload()
      await page.waitForSelector(".call[data-state=cancelled] .state:has-text('stopped by a local user')")
      // The run continued without it.
      await page.waitForSelector(".answer:has-text('It is done')")
      assert.notInclude(await page.locator(".thread").innerText(), "Stopped")
    }
    await rests(page)
    assert.deepStrictEqual(faults, [])
    await close()
  })
})
