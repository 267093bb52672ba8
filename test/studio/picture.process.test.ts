/** The picture, the strip and the table in Chromium: what they show is what the fold has, at its places and colors. */
import { assert, describe, it } from "@effect/vitest"
import * as fs from "node:fs"
import { createRequire } from "node:module"
import type { Browser, Page } from "playwright-core"
import { afterAll, beforeAll } from "vitest"
import * as Words from "../../src/studio/chat/words.ts"
import type * as Fold from "../../src/studio/data/fold.ts"
import * as Phrases from "../../src/studio/run/phrases.ts"
import { hasBrowser, launch } from "../support/browser.ts"
import * as Harness from "./support/harness.ts"
import type * as Pictures from "./support/pictures.ts"
import { delegating, onTestClock, ordering, weaving } from "./support/runs.ts"
import { foldOf } from "./support/told.ts"

const axe = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8")

const css =
  "html, body, main, #studio { height: 100%; margin: 0; font: 15px/1.5 system-ui, \"DejaVu Sans\", sans-serif }"
  + " #studio { display: flex } .run-strip { align-self: start } :root { color-scheme: light dark }"

/** The function of the page by this name, called there. */
const call = <Name extends keyof typeof Pictures.picture>(
  page: Page,
  name: Name,
  ...values: Parameters<(typeof Pictures.picture)[Name]>
): Promise<ReturnType<(typeof Pictures.picture)[Name]>> =>
  page.evaluate(
    ([name, values]) =>
      (globalThis as unknown as { picture: Record<string, (...values: ReadonlyArray<unknown>) => never> })
        .picture[name]!(...values),
    [name, values] as const
  )

/** Waits until the canvas is drawn: two frames behind the last change. */
const drawn = async (page: Page): Promise<void> => {
  await page.waitForFunction(() => {
    const canvas = document.querySelector("canvas")
    return canvas !== null && canvas.width > 1
  })
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))))
}

const names = (page: Page): Promise<ReadonlyArray<string>> =>
  page.evaluate(async () => {
    const found = await (globalThis as unknown as {
      axe: { run: () => Promise<{ violations: ReadonlyArray<{ id: string; nodes: ReadonlyArray<{ html: string }> }> }> }
    }).axe.run()
    return found.violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html}`))
  })

describe.skipIf(!hasBrowser())("the picture", () => {
  let browser: Browser
  let script: Harness.Bundle
  let runs: Readonly<Record<"weaving" | "ordering" | "delegating", ReadonlyArray<Fold.Told>>>

  beforeAll(async () => {
    browser = await launch()
    script = await Harness.bundle("pictures.ts")
    runs = {
      weaving: await onTestClock(weaving),
      ordering: await onTestClock(ordering),
      delegating: await onTestClock(delegating)
    }
  })

  afterAll(() => browser?.close())

  const opened = async (
    options: Parameters<typeof Harness.open>[2],
    use: (page: Page) => Promise<void>
  ): Promise<void> => {
    const { close, faults, page } = await Harness.open(browser, script, {
      css,
      viewport: { width: 1_000, height: 900 },
      ...options
    })
    await use(page)
    assert.deepStrictEqual(faults, [])
    await close()
  }

  for (const colorScheme of ["light", "dark"] as const) {
    it(`V-08: the picture has the colors of the states at the places of the calls, ${colorScheme}`, () =>
      opened({ colorScheme }, async (page) => {
        await call(page, "show", runs.weaving)
        await drawn(page)
        const run = foldOf(runs.weaving)
        const expected = Object.fromEntries(run.list.map((each) => {
          const color = each.state === "failed"
            ? "bad"
            : each.state === "cancelled"
            ? "grey"
            : each.isEarly
            ? "early"
            : "plain"
          return [each.path, color]
        }))
        // The lines of a call that runs alone lighten its color.
        const seenBars = await call(page, "bars", expected)
        assert.strictEqual(expected["d03"], "plain")
        assert.deepStrictEqual({ ...seenBars, d03: "plain" }, expected)
        const seen = (...place: Parameters<typeof Pictures.picture.seen>) => call(page, "seen", ...place)
        const places: ReadonlyArray<Parameters<typeof Pictures.picture.seen>> = [
          [200, 0, "model-wait"],
          [1_250, 0, "model", 0.35],
          [8_800, 12, "stop"],
          [3_700, 11, "ground", 0.85],
          [3_000, 20, "paper"],
          // The waits: for the reply, for a key with the stroke from its holder, for a place, and for a call alone.
          [900, 4, "wait-reply"],
          [2_150, 5, "wait-key"],
          [2_810, 6, "wait-key", 0.4],
          [1_800, 8, "wait-permit"],
          [6_500, 6, "wait-exclusive"]
        ]
        for (const place of places) assert.strictEqual(await seen(...place), place[2], place.join(" "))
        // The dashes of the call that was left running.
        const dashes = await Promise.all(
          [0, 1, 2, 3, 4, 5, 6, 7].map((right) => seen(10_300, 1, "stop", 0.5, 3 + right))
        )
        assert.deepStrictEqual(new Set(dashes), new Set(["stop", "paper"]))
      }))
  }

  it("V-08: the table has the rows of the fold, in words", () =>
    opened({}, async (page) => {
      for (const events of Object.values(runs)) {
        await call(page, "show", events)
        await page.getByRole("button", { name: "Table" }).click()
        const run = foldOf(events)
        const now = run.end ?? run.now
        const rows = await page.locator("tbody tr").evaluateAll((rows) =>
          rows.map((row) => Array.from(row.children, (cell) => (cell as HTMLElement).innerText.trim()))
        )
        const time = (millis: number | undefined) => millis === undefined ? "" : Words.seconds(millis)
        assert.deepStrictEqual(
          rows.map((cells) => [cells[0]?.split(/\n|in /)[0], cells[1], ...cells.slice(3)]),
          Phrases.ordered(run, "asked", now).map((each) => [
            `${each.name}${Phrases.wordsOf(each)}`,
            `${Words.signOf(each)}${Phrases.stateOf(each)}`,
            Words.seconds(Phrases.readyOf(each)),
            time(Phrases.waitedOf(each, now)),
            time(Words.ranOf(each, now)),
            Phrases.why(run, each)
          ])
        )
      }
    }))

  it("V-08: tool names appear as text in the picture, the table and the detail", () =>
    opened({}, async (page) => {
      const name = "<img src=x onerror=\"document.title='ran'\">"
      await call(page, "show", [
        { _tag: "RunStarted", runId: "r", at: 0 },
        { _tag: "MessageStarted", at: 0 },
        { _tag: "ToolCallCompleted", id: "__proto__", name, arguments: { html: name }, at: 10 },
        { _tag: "ToolExecutionStarted", id: "__proto__", name, at: 20 },
        { _tag: "ToolResultEncoded", id: "__proto__", content: name, at: 900 }
      ], { first: "__proto__" })
      await page.getByRole("button", { name: "Table" }).click()
      assert.strictEqual(await page.locator("tbody th button").innerText(), name)
      assert.include(await page.locator(".run-detail").innerText(), name)
      assert.strictEqual(await page.locator("img").count(), 0)
      assert.strictEqual(await page.title(), "Studio")
    }))

  it("V-08: the picture shows a live run correctly after each event", () =>
    opened({}, async (page) => {
      const [first, ...rest] = runs.weaving
      await call(page, "show", [first!])
      for (let at = 0; at < rest.length; at += 40) await call(page, "add", rest.slice(at, at + 40))
      await drawn(page)
      const bars = await call(page, "bars", {})
      await call(page, "show", runs.weaving)
      await drawn(page)
      assert.deepStrictEqual(await call(page, "bars", {}), bars)
    }))

  it("V-05: one sentence names the picture, arrow keys choose calls, and the detail names the chosen call", () =>
    opened({}, async (page) => {
      await call(page, "show", runs.weaving)
      await drawn(page)
      const picture = page.getByRole("application")
      const sentence =
        "Run of 10.3 s: 26 calls, 11 started before the reply ended, 2 failed, 3 stopped, at most 8 at once."
      assert.include(await picture.getAttribute("aria-label"), sentence)
      const status = page.getByRole("status")
      await picture.focus()
      const press = async (...keys: ReadonlyArray<string>) => {
        for (const key of keys) await page.keyboard.press(key)
        return status.innerText()
      }
      assert.match(
        await press("ArrowRight"),
        /^read "stock\.md": done, early, asked at 600 ms, ran 1\.5 s\. 1 of 26\.$/
      )
      assert.match(await press("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight"), /held by account "ann"/)
      assert.match(await press("ArrowLeft"), /^account "ann": done, asked at 870 ms/)
      assert.match(await press("End"), /^read "z\.md": stopped/)
      assert.match(await press("Home", "ArrowDown"), /^read "orders\.md": done, early, asked at 690 ms/)
      for (let index = 0; index < 8; index++) await press("ArrowRight")
      assert.match(await status.innerText(), /^research "heddles": done/)
      // Down goes through all calls as the table has them, those of the sub-agents too, and stays at the last one.
      const heard = new Set([await press("Home")])
      for (let index = 0; index < 26; index++) heard.add(await press("ArrowDown"))
      assert.strictEqual(heard.size, 26)
      assert.strictEqual(Array.from(heard).filter((text) => /in research "(?:looms|heddles)"\.$/.test(text)).length, 6)
      assert.match(Array.from(heard).at(-1)!, /26 of 26\.$/)
      await press("Home")
      for (let index = 0; index < 9; index++) await press("ArrowRight")
      const isOpen = () => page.locator(".run-detail [aria-expanded]").getAttribute("aria-expanded")
      assert.strictEqual(await isOpen(), "true")
      await press("Enter")
      assert.strictEqual(await isOpen(), "false")
      await press("+", "+", "-", "0", "PageDown")
      await page.getByRole("button", { name: "Table" }).click()
      await page.getByRole("button", { name: /^write / }).click()
      assert.match(await status.innerText(), /^write "plan\.md": done, alone/)
      const labels = await page.locator("tbody button").evaluateAll((all) => all.map((each) => each.ariaLabel))
      assert.strictEqual(new Set(labels).size, 26)
    }))

  it("V-05: a click chooses the bar under it, and a button the call that released the chosen call", () =>
    opened({}, async (page) => {
      await call(page, "show", runs.weaving, { first: "c07" })
      await drawn(page)
      await page.getByRole("button", { name: "Released by account \"ann\"" }).click()
      assert.match(await page.getByRole("status").innerText(), /^account "ann": done, asked at 960 ms/)
      const box = (await page.getByRole("application").boundingBox())!
      await page.mouse.click(box.x + 100, box.y + 26 + 1.5 * 19)
      assert.match(await page.getByRole("status").innerText(), /^read "stock\.md": done, early, asked at 600 ms/)
      await page.mouse.click(box.x + 400, box.y + box.height - 4)
      assert.strictEqual(await page.getByRole("status").innerText(), "")
    }))

  it("V-05: a sentence describes the bar or turn under the pointer, and the legend has only what the run has", () =>
    opened({}, async (page) => {
      await call(page, "show", runs.weaving)
      await drawn(page)
      const box = (await page.getByRole("application").boundingBox())!
      const tip = page.locator(".run-tip")
      await page.mouse.move(box.x + 100, box.y + 26 + 1.5 * 19)
      assert.match(await tip.innerText(), /^read "stock\.md": done, early/)
      await page.mouse.move(box.x + 100, box.y + 26 + 0.5 * 19)
      assert.match(await tip.innerText(), /^turn 1, .*1,800 tokens in, 220 out$/)
      await page.mouse.move(box.x + 100, box.y - 10)
      assert.strictEqual(await tip.count(), 0)
      const legend = () => page.locator(".run-legend").innerText()
      assert.match(
        await legend(),
        /waits for a key.*waits for a place.*a call runs alone.*end of the reply.*left running/s
      )
      assert.include(await page.locator(".run-detail").innerText(), "1,800 tokens in, 220 out")
      await call(page, "show", runs.ordering)
      await drawn(page)
      assert.notMatch(await legend(), /waits for a key|left running|stopped|to the chosen call/)
      await page.getByRole("application").press("ArrowRight")
      assert.include(await legend(), "from there to the chosen call")
    }))

  it("V-05: the rows of the table have the chosen order, and a phone shows the figures of each row", () =>
    opened({ viewport: { width: 390, height: 800 } }, async (page) => {
      await call(page, "show", runs.weaving)
      const run = foldOf(runs.weaving)
      const first = page.locator("tbody tr").first()
      assert.match(await first.innerText(), /asked at 600 ms, ran 1\.5 s/)
      const inner = run.list.find(({ owner }) => owner !== "")!
      const outer = Phrases.nameOf(run, run.calls.get(inner.owner)!)
      const figures = page.locator(`tr[data-path="${inner.path}"] .run-figures`)
      assert.isTrue((await figures.innerText()).startsWith(`in ${outer}, asked at`), await figures.innerText())
      assert.strictEqual(await page.locator("tbody .run-figures:visible").count(), run.list.length)
      const [wide, narrow] = await page.locator(".run-table").evaluate((box) => [box.scrollWidth, box.clientWidth])
      assert.strictEqual(wide, narrow)
      await page.getByRole("button", { name: "Longest run" }).click()
      const now = run.end ?? run.now
      const [longest] = Phrases.ordered(run, "ran", now)
      assert.strictEqual(await first.getAttribute("data-path"), longest!.path)
      await page.getByRole("button", { name: "Longest wait" }).click()
      assert.strictEqual(await first.getAttribute("data-path"), Phrases.ordered(run, "waited", now)[0]!.path)
    }))

  it("V-05: the strip is at most 46 px high, is named by the sentence, and opens the picture", () =>
    opened({}, async (page) => {
      await call(page, "show", runs.weaving, { form: "strip" })
      await drawn(page)
      const strip = page.getByRole("button")
      assert.match((await strip.getAttribute("aria-label"))!, /^Open the picture\. Run of 10\.3 s: 26 calls/)
      assert.isAtMost((await page.locator("canvas").boundingBox())!.height, 46)
      await strip.click()
      assert.isTrue(await page.evaluate(() => document.body.hasAttribute("data-opened")))
    }))

  for (const colorScheme of ["light", "dark"] as const) {
    for (const width of [1_440, 390, 320]) {
      it(`V-05: axe finds no problem, and nothing is wider than the window, ${colorScheme}, ${width}`, () =>
        opened({ colorScheme, bypassCSP: true, viewport: { width, height: 800 } }, async (page) => {
          await page.evaluate(axe)
          for (const events of Object.values(runs)) {
            for (const form of ["Picture", "Table"]) {
              await call(page, "show", events, { first: Array.from(foldOf(events).calls.keys())[0]! })
              await page.getByRole("button", { name: form, exact: true }).click()
              assert.deepStrictEqual(await names(page), [])
              assert.isFalse(await page.evaluate(() => document.documentElement.scrollWidth > innerWidth))
            }
          }
          await call(page, "show", runs.weaving, { form: "strip" })
          assert.deepStrictEqual(await names(page), [])
        }))
    }
  }

  for (const reducedMotion of ["no-preference", "reduce"] as const) {
    it(`V-05: a live run shows the time of the clock, or of its last event under reduced motion, ${reducedMotion}`, () =>
      opened({ reducedMotion }, async (page) => {
        await page.clock.install()
        const live = runs.weaving.filter(({ at = 0 }) => at <= (runs.weaving[0]?.at ?? 0) + 1_000)
        await call(page, "show", live, { isLive: true, first: "c01" })
        const spoken = await page.getByRole("status").innerText()
        await page.clock.runFor(3_000)
        const time = await page.locator(".run-head span").first().innerText()
        assert.match(time, reducedMotion === "reduce" ? /^9\d\d ms|1\.0 s$/ : /^[34]\.\d s$/)
        // The live region says nothing new while time passes.
        assert.strictEqual(await page.getByRole("status").innerText(), spoken)
        assert.match(spoken, /^read "stock\.md": runs, early, asked at 600 ms\. 1 of \d+\.$/)
      }))
  }

  it("V-04: the table of 10,000 calls has elements only for visible rows", () =>
    opened({}, async (page) => {
      await call(page, "showMany", 10_000)
      await page.getByRole("button", { name: "Table" }).click()
      const rows = page.locator("tbody tr[aria-rowindex]")
      assert.isBelow(await rows.count(), 100)
      assert.strictEqual(await page.getByRole("table").getAttribute("aria-rowcount"), "10001")
      await page.locator(".run-table").evaluate((box) => box.scrollTo(0, box.scrollHeight))
      await page.locator("tr[data-path=c9999]").waitFor()
      assert.isBelow(await rows.count(), 100)
    }))

  it("V-04: runs of 10,000 and of 100,000 calls are loaded and drawn", () =>
    opened({ viewport: { width: 1_440, height: 820 } }, async (page) => {
      for (const number of [10_000, 100_000]) {
        const figures = await call(page, "measure", number)
        process.stdout.write(`V-04 ${number} calls, ms: ${JSON.stringify(figures)}\n`)
        assert.strictEqual(figures.calls, number)
        // Five times what an idle machine may take. What grows faster than the run takes longer than that.
        assert.isBelow(figures.load, number === 10_000 ? 3_000 : 15_000)
      }
    }))
})
