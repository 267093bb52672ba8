/** Many chats in Studio: the list, what is typed and searched, branches, wrong addresses, and processes that end. */
import { assert, describe, it } from "@effect/vitest"
import axe from "axe-core"
import * as fs from "node:fs"
import * as path from "node:path"
import { DatabaseSync } from "node:sqlite"
import type { Page } from "playwright-core"
import { afterAll, beforeAll } from "vitest"
import { hasBrowser } from "../support/browser.ts"
import { addressOf, excess, folder, rests, say, Stand } from "./support/served.ts"

const stand = new Stand()

const done = "It is done"

/** Sends a message, and waits for the answer. */
const ask = async (page: Page, text: string): Promise<void> => {
  const answers = await page.locator(".answer").count()
  await say(page, text)
  await page.locator(".answer", { hasText: done }).nth(answers).waitFor()
  await rests(page)
}

/** Chooses something in the menu of the chat that is shown. */
const choose = async (page: Page, task: string): Promise<void> => {
  const item = page.locator("#sessions li", { has: page.locator("a[aria-current]") })
  await item.hover()
  await item.locator(".menu").click()
  await page.locator(".popover:popover-open").getByRole("button", { name: task }).click()
}

/** The violations of the rules of accessibility, by rule and element. */
const violations = async (page: Page): Promise<ReadonlyArray<string>> => {
  await page.evaluate(axe.source)
  return await page.evaluate(
    "axe.run().then(({ violations }) => violations.map(({ id, nodes }) => `${id}: ${nodes[0].target}`))"
  )
}

describe.skipIf(!hasBrowser())("Studio with many chats", () => {
  beforeAll(() => stand.start())
  afterAll(() => stand.end())

  it("V-05: Escape empties the search without stopping the run, and Escape in the message field stops the run", async () => {
    const { close, faults, page } = await stand.open(await stand.serve("servedChats"))
    await say(page, "wait")
    await page.waitForSelector(".call[data-state=running]")
    await page.waitForSelector("#sessions .works")
    await page.fill("#search", "nowhere")
    await page.waitForSelector("text=No chat has this in its title or last line.")
    await page.press("#search", "Escape")
    assert.strictEqual(await page.inputValue("#search"), "")
    await page.waitForSelector("#sessions a")
    await page.press("#search", "Escape")
    assert.strictEqual(await page.locator(".call[data-state=running]").count(), 1)
    assert.isFalse(await page.locator("#stop").isDisabled())
    await page.press("#message", "Escape")
    await page.waitForSelector(".call[data-state=cancelled]")
    await rests(page)
    // The list says how the chat has ended.
    await page.waitForSelector("#sessions .status:has-text('stopped')")
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-09: the list has plain text and marks drafts, and a new name becomes the heading at once", async () => {
    const { close, faults, page } = await stand.open(await stand.serve("servedChats"))
    await ask(page, "**one**")
    await page.waitForSelector("#sessions .status:has-text('A line.')")
    assert.notInclude(await page.innerText("#sessions"), "*")
    assert.strictEqual(await page.innerText("h1"), "one")
    const said = page.locator("[role=status][aria-live]")
    await page.waitForFunction(() => document.querySelector(".hidden[role=status]")?.textContent?.includes("done"))
    assert.notMatch(await said.innerText(), /[*`]/)
    assert.isAtMost((await said.innerText()).length, 210)
    await choose(page, "Rename")
    await page.fill(".prompt input", "Another name")
    await page.press(".prompt input", "Enter")
    await page.waitForSelector("h1:has-text('Another name')")
    await page.fill("#message", "a draft")
    assert.strictEqual(await page.locator("#sessions .draft").count(), 0)
    await page.locator("#side").getByRole("button", { name: "New chat" }).click()
    await page.waitForSelector("#sessions .draft")
    await page.click("#sessions a")
    await page.waitForSelector("#sessions .draft", { state: "detached" })
    assert.strictEqual(await page.inputValue("#message"), "a draft")
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-09: Studio asks before a branch if later calls may have changed something, and leaves the journal unchanged", async () => {
    const store = path.join(folder(), "s.db")
    const { url } = await stand.command("servedChats", ["--store", store])
    const { close, faults, page } = await stand.open(url)
    await ask(page, "first")
    await ask(page, "look")
    const first = await addressOf(page)
    const id = first.split("/").at(-1) ?? ""
    const recordsOf = (part: string) => {
      const database = new DatabaseSync(store, { readOnly: true })
      try {
        return database.prepare("SELECT * FROM heddle_records WHERE id LIKE ? ORDER BY version").all(`%${part}`)
      } finally {
        database.close()
      }
    }
    const before = recordsOf(id)
    assert.isAbove(before.length, 5)
    // What only looked is not asked about.
    await page.getByRole("button", { name: "Answer again" }).click()
    await page.waitForURL((each) => each.href !== first)
    await page.waitForSelector(".branches:has-text('2 / 2')")
    await rests(page)
    assert.deepStrictEqual(recordsOf(id), before)
    await ask(page, "pay")
    const second = page.url()
    const again = page.getByRole("button", { name: "Answer again" })
    await again.click()
    await page.waitForSelector("dialog.prompt:has-text('pay')")
    assert.notInclude(await page.innerText("dialog.prompt"), "look")
    await page.keyboard.press("Escape")
    await page.waitForSelector("dialog.prompt", { state: "detached" })
    assert.strictEqual(await page.locator("#notice").count(), 0)
    assert.strictEqual(page.url(), second)
    // An edit asks likewise, and what was written stays where it is not sent.
    await page.locator(".user").last().hover()
    await page.getByRole("button", { name: "Edit your message" }).last().click()
    await page.fill(".edit textarea", "edited")
    await page.getByRole("button", { name: "Send as a branch" }).click()
    await page.getByRole("button", { name: "Cancel" }).last().click()
    await page.waitForSelector("text=Nothing was sent.")
    assert.strictEqual(await page.inputValue(".edit textarea"), "edited")
    await page.getByRole("button", { name: "Send as a branch" }).click()
    await page.getByRole("button", { name: "Begin the branch" }).click()
    await page.waitForURL((each) => each.href !== second)
    await page.waitForSelector(".user:has-text('edited')")
    await rests(page)
    // Nothing more is said of what was accepted.
    assert.strictEqual(await page.locator(".warning").count(), 0)
    assert.deepStrictEqual(recordsOf(id), before)
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-09: a step to another branch stays at its message, and Studio says that an origin was deleted", async () => {
    const { close, faults, page } = await stand.open(await stand.serve("servedChats"))
    await ask(page, "first")
    await ask(page, "second")
    const origin = await addressOf(page)
    await page.getByRole("button", { name: "Answer again" }).click()
    await page.waitForURL((each) => each.href !== origin)
    await page.waitForSelector(".branches:has-text('2 / 2')")
    await rests(page)
    const branch = page.url()
    for (const text of ["third", "fourth", "fifth"]) await ask(page, text)
    await page.locator(".user:has-text('second')").scrollIntoViewIfNeeded()
    await page.getByRole("button", { name: "Previous branch" }).click()
    await page.waitForSelector(".branches:has-text('1 / 2')")
    await page.getByRole("button", { name: "Next branch" }).click()
    await page.waitForSelector(".branches:has-text('2 / 2')")
    assert.strictEqual(page.url(), branch)
    await page.waitForFunction(() => {
      const thread = document.querySelector(".thread")?.getBoundingClientRect()
      const box = document.querySelector(".branches")?.getBoundingClientRect()
      return thread !== undefined && box !== undefined && box.top >= thread.top && box.bottom <= thread.bottom
    })
    const isAtEnd = await page.locator(".thread").evaluate((thread) =>
      thread.scrollHeight - thread.scrollTop - thread.clientHeight < 60
    )
    assert.isFalse(isAtEnd)
    await page.goto(origin)
    await page.waitForSelector(".branches:has-text('1 / 2')")
    await choose(page, "Delete")
    await page.click(".prompt .danger")
    await page.waitForSelector(".empty")
    await page.goto(branch)
    await page.waitForSelector("text=The chat from which this chat branched was deleted.")
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-09: an address without a chat or an agent says so, and offers a new chat", async () => {
    const url = await stand.serve("servedChats")
    const { close, faults, page } = await stand.open(url)
    for (const id of ["nowhere", "no%2Fid", "x".repeat(600)]) {
      await page.goto(`${url}/#clerk/${id}`)
      await page.waitForSelector("text=There is no chat at this address.")
      assert.strictEqual(await page.locator("#message").count(), 0)
      await page.locator(".empty").getByRole("button", { name: "New chat" }).click()
      await page.waitForSelector("#message")
      assert.strictEqual(await page.locator("text=There is no chat").count(), 0)
    }
    await page.goto(`${url}/#nobody/nowhere`)
    await page.waitForSelector("text=The address names no agent that you may use.")
    await ask(page, "Hello")
    await page.locator("#side").getByRole("button", { name: "New chat" }).click()
    await page.waitForSelector("text=The address names no agent", { state: "detached" })
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-09: while a run waits for a new owner after kill -9, the page says what it may wait for", async () => {
    const store = path.join(folder(), "s.db")
    const first = await stand.command("servedChats", ["--store", store, "--term", "40 seconds"])
    const { close, faults, page } = await stand.open(first.url)
    await say(page, "wait")
    await page.waitForSelector(".call[data-state=running]")
    first.child.kill("SIGKILL")
    await page.waitForSelector("text=The connection is lost")
    await stand.command("servedChats", ["--store", store, "--port", new URL(first.url).port])
    const silent = "text=If that process has ended, the run waits until another process takes over."
    await page.waitForSelector(silent)
    await page.reload()
    await page.waitForSelector(silent)
    // The run is taken over, and is heard again.
    await page.waitForSelector(silent, { state: "detached" })
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-05: the first click on the color button changes the colors, in either system scheme", async () => {
    const url = await stand.serve("servedChats")
    for (const colorScheme of ["light", "dark"] as const) {
      const { close, page } = await stand.open(url, { colorScheme })
      const paper = () => page.evaluate("getComputedStyle(document.body).backgroundColor")
      await page.waitForSelector(".empty")
      const before = await paper()
      await page.getByRole("button", { name: /^Colors/ }).click()
      assert.notStrictEqual(await paper(), before, colorScheme)
      await page.getByRole("button", { name: /^Colors/ }).click()
      await page.getByRole("button", { name: /^Colors/ }).click()
      assert.strictEqual(await paper(), before)
      await close()
    }
  })

  for (const colorScheme of ["light", "dark"] as const) {
    for (const width of [1440, 390]) {
      it(`V-05: the token form, the picture and the table break no accessibility rule, ${colorScheme}, ${width} pixels wide`, async () => {
        const options = {
          colorScheme,
          bypassCSP: true,
          reducedMotion: "reduce",
          viewport: { width, height: 800 }
        } as const
        const check = async (page: Page, what: string) => {
          assert.deepStrictEqual(await violations(page), [], what)
          assert.strictEqual(await excess(page), 0, what)
        }
        const held = path.join(folder(), "held")
        fs.writeFileSync(held, "")
        const closed = await stand.open(await stand.serve("servedClosed", { HELD: held }), options)
        await closed.page.waitForSelector("#login")
        await check(closed.page, "login")
        await closed.page.fill("#token", "wrong")
        await closed.page.press("#token", "Enter")
        await closed.page.waitForSelector("text=The server did not accept the token.")
        await check(closed.page, "wrong token")
        await closed.close()
        const { close, page } = await stand.open(await stand.serve("servedChats"), options)
        await page.waitForSelector(".empty")
        await ask(page, "pay")
        await page.getByRole("button", { name: "Picture", exact: true }).click()
        const form = (name: string) => page.locator("aside").getByRole("button", { name, exact: true })
        await form("Picture").click()
        await page.waitForSelector("aside canvas")
        await check(page, "picture")
        if (width > 899) {
          await form("Whole window").click()
          await page.waitForSelector(".work[data-picture=wide]")
          await check(page, "picture in the whole window")
          await form("Whole window").click()
          await page.waitForSelector(".work[data-picture=beside]")
        }
        await form("Table").click()
        await page.waitForSelector("aside table")
        await check(page, "table")
        await form("Close").click()
        await page.getByRole("button", { name: "Answer again" }).click()
        await page.waitForSelector("dialog.prompt")
        await check(page, "branch")
        await page.keyboard.press("Escape")
        await page.goto(`${new URL(page.url()).origin}/#clerk/nowhere`)
        await page.waitForSelector("text=There is no chat at this address.")
        await check(page, "no chat")
        await close()
      })
    }
  }
})
