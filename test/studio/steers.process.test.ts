/** Messages into a run under way in Studio: where they wait, what becomes of them, and who may take them back. */
import { assert, describe, it } from "@effect/vitest"
import axe from "axe-core"
import type { Page } from "playwright-core"
import { afterAll, beforeAll } from "vitest"
import { hasBrowser } from "../support/browser.ts"
import { addressOf, excess, rests, say, shownOn, Stand } from "./support/served.ts"

const stand = new Stand()

/** Begins a run whose call ends when it is stopped. */
const begin = async (page: Page): Promise<void> => {
  await say(page, "wait")
  await page.waitForSelector(".call[data-state=running]")
}

/** Ends the call, so that the run continues. */
const release = (page: Page): Promise<void> => page.getByRole("button", { name: /^Stop wait/ }).press("Enter")

/** Waits until the live region says a sentence. */
const said = async (page: Page, sentence: string): Promise<void> => {
  await page.locator(".hidden[aria-live]", { hasText: sentence }).waitFor({ state: "attached" })
}

const waits = ".row.waiting .fate"

describe.skipIf(!hasBrowser())("Studio during a run", () => {
  beforeAll(() => stand.start())
  afterAll(() => stand.end())

  it("V-13: Enter sends a message into the run, which has it at its next turn, also after a reload and in another tab", async () => {
    const { close, context, faults, page } = await stand.open(await stand.serve("servedChats"))
    await begin(page)
    const other = await context.newPage()
    await other.goto(await addressOf(page))
    await other.waitForSelector(".call[data-state=running]")
    await page.focus("#message")
    await page.keyboard.type("look instead")
    await page.keyboard.press("Enter")
    await said(page, "Message waits for the next turn.")
    for (const each of [page, other]) {
      await each.locator(waits, { hasText: "Waits for the next turn" }).waitFor()
      assert.strictEqual(await each.inputValue("#message"), "")
    }
    await page.reload()
    await page.locator(waits, { hasText: "Waits for the next turn" }).waitFor()
    await release(page)
    await said(page, "Message delivered at turn 2.")
    for (const each of [page, other]) {
      await each.locator(".answer .user", { hasText: "look instead" }).locator(".fate", {
        hasText: "Delivered at turn 2"
      }).waitFor()
      await each.locator(".answer .prose", { hasText: "It is done: look instead" }).waitFor()
      await rests(each)
      assert.strictEqual(await each.locator(".row.waiting").count(), 0)
    }
    await page.reload()
    await page.locator(".answer .user .fate", { hasText: "Delivered at turn 2" }).waitFor()
    const texts = await Promise.all(
      [page, other].map(async (each) => (await shownOn(each)).replaceAll(/[\d.]+ m?s/g, ""))
    )
    assert.strictEqual(texts[0], texts[1])
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-13: Alt+Enter keeps a message for the next run, and a stopped run leaves a message to the next run", async () => {
    const { close, faults, page } = await stand.open(await stand.serve("servedChats"))
    await begin(page)
    await page.fill("#message", "wait")
    await page.press("#message", "Alt+Enter")
    await page.locator(waits, { hasText: "Waits for the next run" }).waitFor()
    await release(page)
    await page.locator(waits).waitFor({ state: "detached" })
    await page.waitForSelector(".call[data-state=running]")
    await page.fill("#message", "second")
    await page.press("#message", "Enter")
    await page.locator(waits, { hasText: "Waits for the next turn" }).waitFor()
    await page.press("#message", "Escape")
    await said(page, "Message taken by the next run.")
    await page.locator(".row > .user", { hasText: "second" }).locator(".fate", { hasText: "Taken by this run" })
      .waitFor()
    await page.locator(".answer .prose", { hasText: "It is done: second" }).waitFor()
    await rests(page)
    for (const isAgain of [false, true]) {
      if (isAgain) await page.reload()
      await page.locator(".row > .user", { hasText: "second" }).waitFor()
      const users = await page.locator(".rows .user").evaluateAll((all) =>
        all.map((each) => [each.querySelector(".said")?.textContent, each.querySelector(".fate")?.textContent ?? ""])
      )
      assert.deepStrictEqual(users, [["wait", ""], ["wait", ""], [
        "second",
        "Taken by this run: the previous run had ended."
      ]])
    }
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-13: the keyboard withdraws a waiting message, and its text returns to the field", async () => {
    const { close, context, faults, page } = await stand.open(await stand.serve("servedChats"))
    await begin(page)
    const other = await context.newPage()
    await other.goto(await addressOf(page))
    await say(page, "not that")
    // A page that reads the session only after the withdrawal has nothing to show of the message.
    await other.locator(waits, { hasText: "Waits for the next turn" }).waitFor()
    await page.getByRole("button", { name: "Withdraw" }).press("Enter")
    await said(page, "Message withdrawn.")
    await page.waitForFunction(() => document.activeElement?.id === "message")
    assert.strictEqual(await page.inputValue("#message"), "not that")
    for (const each of [page, other]) {
      await each.locator(waits, { hasText: "Withdrawn" }).waitFor()
      assert.strictEqual(await each.getByRole("button", { name: "Withdraw" }).count(), 0)
    }
    await page.press("#message", "Enter")
    await page.locator(waits, { hasText: "Waits for the next turn" }).waitFor()
    assert.strictEqual(await page.locator(waits).count(), 1)
    await other.getByRole("button", { name: "Withdraw" }).press("Enter")
    await page.locator(waits, { hasText: "Withdrawn" }).waitFor()
    await release(page)
    await page.locator(".answer .prose", { hasText: "It is done: wait" }).waitFor()
    await rests(page)
    await page.reload()
    await page.locator(".answer .prose", { hasText: "It is done: wait" }).waitFor()
    assert.notInclude(await shownOn(page), "not that")
    assert.deepStrictEqual(faults, [])
    await close()
  })

  it("V-13: a reader without write permission sees the state of a message, and no button to withdraw it", async () => {
    const url = await stand.serve("servedChats", { TOKENS: "1" })
    const { close, page } = await stand.open(url)
    const enter = async (each: Page, token: string) => {
      await each.fill("#token", token)
      await each.press("#token", "Enter")
    }
    await enter(page, "ann")
    await begin(page)
    await say(page, "not that")
    await page.getByRole("button", { name: "Withdraw" }).waitFor()
    await page.reload()
    await enter(page, "ann")
    await page.getByRole("button", { name: "Withdraw" }).waitFor()
    const reader = await stand.open(url)
    await reader.page.goto(await addressOf(page))
    await enter(reader.page, "bob")
    await reader.page.locator(waits, { hasText: "Waits for the next turn" }).waitFor()
    assert.strictEqual(await reader.page.getByRole("button", { name: "Withdraw" }).count(), 0)
    await page.getByRole("button", { name: "Withdraw" }).press("Enter")
    await page.locator(waits, { hasText: "Withdrawn" }).waitFor()
    await reader.close()
    await close()
  })

  for (const colorScheme of ["light", "dark"] as const) {
    for (const width of [1_440, 320]) {
      it(`V-13: while a message waits, no accessibility rule is broken, ${colorScheme}, ${width} pixels wide`, async () => {
        const options = { colorScheme, viewport: { width, height: 800 } }
        const { close, faults, page } = await stand.open(await stand.serve("servedChats"), options)
        await begin(page)
        await say(page, "look instead")
        await page.getByRole("button", { name: "Withdraw" }).waitFor()
        await page.fill("#message", "And then rest")
        const queue = page.getByRole("button", { name: "Send to the next run" })
        assert.isTrue(await queue.isEnabled())
        await page.evaluate(axe.source)
        const violations = await page.evaluate(
          "axe.run().then(({ violations }) => violations.map(({ id, nodes }) => `${id}: ${nodes[0].target}`))"
        )
        assert.deepStrictEqual(violations, [])
        assert.strictEqual(await excess(page), 0)
        await queue.press("Enter")
        await page.locator(waits, { hasText: "Waits for the next run" }).waitFor()
        assert.deepStrictEqual(faults, [])
        await close()
      })
    }
  }
})
