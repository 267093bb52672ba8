/** The thread in Chromium: its speed, what stays in view, hostile texts, questions, and accessibility. */
import { assert, describe, it } from "@effect/vitest"
import * as fs from "node:fs"
import { createRequire } from "node:module"
import type { Browser, Page } from "playwright-core"
import { afterAll, beforeAll } from "vitest"
import { hasBrowser, launch } from "../support/browser.ts"
import { hostileTexts, markupTexts } from "../support/studioTexts.ts"
import type { Chat } from "./support/chat.tsx"
import * as Harness from "./support/harness.ts"

declare const chat: Chat

let browser: Browser
let bundle: Harness.Bundle
let production: Harness.Bundle

const desk = { width: 1_000, height: 760 }

/** The room of the thread in the application. */
const css = "#studio { display: flex; flex-direction: column } main { height: 100% }"

/** Runs a test on a page of its own, on which nothing may go wrong. */
const onPage = async (
  test: (page: Page, opened: Harness.Opened) => Promise<void>,
  options: Parameters<typeof Harness.open>[2] = {},
  scripts = bundle
): Promise<void> => {
  const opened = await Harness.open(browser, scripts, { viewport: desk, css, ...options })
  await test(opened.page, opened)
  assert.deepStrictEqual(opened.faults, [])
  await opened.close()
}

const print = (name: string, figures: object): void =>
  void process.stderr.write(
    `${name}: ${
      Object.entries(figures).map(([key, value]) => `${key} ${typeof value === "number" ? +value.toFixed(1) : value}`)
        .join(", ")
    }\n`
  )

/** Rounds in which a machine has to be quiet once. What costs too much does so in each. */
const most = 40

/** The best of five figures. */
const best = async (measure: () => Promise<number>): Promise<number> => {
  let least = Infinity
  for (let round = 0; round < 5; round++) least = Math.min(least, await measure())
  return least
}

/** The elements that the thread makes, whatever a text is. */
const elements = new Set(
  ("a article blockquote br button code dd del details div em figcaption figure footer form h1 h2 h3 h4 h5 h6 hr input "
    + "label li ol option p pre section select span strong summary sup table tbody td textarea th thead tr ul").split(
      " "
    )
)

const reply = [
  "## A heading\n\nSome **bold** text with `code`, a [link](https://example.com/a) and more words to fill the line.\n",
  "- one item\n- another *item*\n  - inside of it\n",
  "```ts\nconst answer = await ask(\"question\") // forty-two\nreturn answer\n```\n",
  "| a | b |\n|---|---|\n| one | two |\n| three | four |\n",
  "> A quote, and a paragraph behind it that has about the length that paragraphs of replies have.\n\nThe end.\n"
].join("\n")

describe.skipIf(!hasBrowser())("the chat of Studio", () => {
  beforeAll(async () => {
    browser = await launch()
    bundle = await Harness.bundle("chat.tsx")
    production = await Harness.bundle("chat.tsx", "production")
  })
  afterAll(() => browser?.close())

  it("V-02: a delta costs only its last piece, however long the reply is", () =>
    onPage(
      async (page) => {
        const text = reply.repeat(Math.ceil(50_000 / reply.length)).slice(0, 50_000)
        const whole = await best(() => page.evaluate((text) => chat.parsing(text), text))
        let figures = { median: Infinity, worst: Infinity, end: Infinity }
        let short = Infinity
        const holds = () => figures.median * 5 < whole && figures.median < 8 * short + 1
        for (let round = 0; round < most && !holds(); round++) {
          short = Math.min(
            short,
            (await page.evaluate((text) => chat.grow(text, 1_000, 20), text.slice(0, 7_000))).median
          )
          const grown = await page.evaluate((text) => chat.grow(text, 44_000, 20), text)
          if (grown.median < figures.median) figures = grown
        }
        print("V-02 50 kB by 20 bytes, ms", { ...figures, "in 7 kB": short, "parse at once": whole })
        assert.isBelow(figures.median * 5, whole)
        assert.isBelow(figures.median, 8 * short + 1)
      },
      {},
      production
    ))

  it("V-02: the chat shows 100 deltas a second for ten seconds", () =>
    onPage(
      async (page) => {
        const session = await page.context().newCDPSession(page)
        await session.send("Performance.enable")
        const metric = async (name: string) =>
          (await session.send("Performance.getMetrics")).metrics.find((each) => each.name === name)?.value ?? NaN
        const before = [await metric("TaskDuration"), await metric("Timestamp")] as const
        const figures = await page.evaluate((text) => chat.stream(text, 100), reply.repeat(40).slice(0, 20_000))
        const share = (await metric("TaskDuration") - before[0]) / (await metric("Timestamp") - before[1])
        print("V-02 100 a second", { ...figures, "main thread %": share * 100 })
        assert.include(await page.innerText(".answer >> nth=0"), "The end.")
      },
      {},
      production
    ))

  it("V-03: 2,000 messages have few elements, and cost as much as few messages", () =>
    onPage(
      async (page) => {
        const few = await best(async () => (await page.evaluate(() => chat.many(20, 1_000))).all)
        let figures = { drawn: Infinity, all: Infinity, elements: Infinity }
        for (let round = 0; round < most && !(figures.all < 4 * few + 100); round++) {
          const many = await page.evaluate(() => chat.many(1_000, 1_000))
          assert.isAtMost(many.elements, 1_000)
          if (many.all < figures.all) figures = many
        }
        print("V-03 2,000 messages, ms", { ...figures, "40 messages": few })
        assert.isBelow(figures.all, 4 * few + 100)
      },
      {},
      production
    ))

  it("V-03: the chat shows 10 MB of messages in pages", () =>
    onPage(
      async (page) => {
        const session = await page.context().newCDPSession(page)
        await session.send("HeapProfiler.enable")
        const time = await best(() => page.evaluate(() => chat.pages(50, 10, 20_000)))
        await session.send("HeapProfiler.collectGarbage")
        const { usedSize } = await session.send("Runtime.getHeapUsage")
        print("V-03 10 MB in 50 pages", { ms: time, "MB of heap": usedSize / 1e6 })
        assert.isBelow(usedSize, 150e6)
      },
      {},
      production
    ))

  it("V-03: the end stays in view while rows change height, until the reader scrolls up", () =>
    onPage(async (page) => {
      const distance = async () => {
        await page.evaluate(() => chat.frame())
        await page.evaluate(() => chat.frame())
        return page.evaluate(() => chat.distance())
      }
      const list = Array.from(
        { length: 60 },
        (_, index) => ({ id: `m${index}`, text: `${index}\n\n${reply}`, said: "Q" })
      )
      await page.evaluate((list) => chat.say(list), list)
      assert.isAtMost(await distance(), 1)
      // The last row grows by a text, a wider answer, and a row in it that opens.
      await page.evaluate(() => chat.push("m59", chat.saying("More.\n\n".repeat(30))))
      assert.isAtMost(await distance(), 1)
      await page.evaluate(() =>
        document.querySelectorAll<HTMLElement>(".row pre").forEach((pre) => pre.style.height = "300px")
      )
      assert.isAtMost(await distance(), 1)
      // A row grows before the browser reports the scroll to the end.
      await page.evaluate(() => {
        document.querySelectorAll<HTMLElement>(".row pre").forEach((pre) => pre.style.height = "600px")
        document.querySelector(".thread")!.dispatchEvent(new Event("scroll"))
      })
      assert.isAtMost(await distance(), 1)
      await page.setViewportSize({ width: 400, height: 500 })
      assert.isAtMost(await distance(), 1)
      await page.setViewportSize(desk)
      assert.isAtMost(await distance(), 1)
      await page.evaluate(() => chat.ask([{ id: "r~c", kind: "question", toolCall: { id: "c", name: "ask" } }]))
      assert.isAtMost(await distance(), 1)
      await page.evaluate(() => chat.ask([]))
      assert.isAtMost(await distance(), 1)
      // A reader moves up: nothing moves the rows from then on.
      await page.mouse.move(400, 300)
      await page.mouse.wheel(0, -900)
      await page.waitForFunction(() => chat.distance() > 500)
      await page.evaluate(() => chat.frame())
      const place = () => page.evaluate(() => document.querySelector("[data-index='58']")!.getBoundingClientRect().top)
      const [top, far] = [await place(), await page.evaluate(() => chat.distance())]
      await page.evaluate(() => chat.push("m59", chat.saying("And more.\n\n".repeat(40))))
      assert.isAbove(await distance(), far + 500)
      assert.approximately(await place(), top, 1)
      // Moved to the end again, it stays there again.
      await page.locator(".thread").press("End")
      await page.waitForFunction(() => chat.distance() < 2)
      // The browser reports the scroll with the next frame.
      await page.evaluate(() => chat.frame())
      await page.evaluate(() => chat.push("m59", chat.saying("The last.\n\n".repeat(40))))
      assert.isAtMost(await distance(), 1)
    }))

  it("V-03: older runs appear above the visible runs, which do not move", () =>
    onPage(async (page) => {
      const list = Array.from(
        { length: 20 },
        (_, index) => ({ id: `m${index}`, text: reply, said: `Question ${index}` })
      )
      await page.evaluate((list) => chat.say(list), list)
      await page.evaluate(() => chat.older(3, 10))
      await page.evaluate(() => chat.frame())
      assert.isAtMost(await page.evaluate(() => chat.distance()), 1)
      const place = () =>
        page.evaluate(() => {
          const said = Array.from(document.querySelectorAll(".said")).find(({ textContent }) =>
            textContent === "Question 1"
          )
          return said?.getBoundingClientRect().top
        })
      // The rows above the place are measured first.
      await page.evaluate(() => document.querySelector(".thread")!.scrollTop = 900)
      await page.evaluate(() => chat.frame())
      await page.evaluate(() => document.querySelector(".thread")!.scrollTop = 700)
      const before = await place()
      await page.waitForFunction(() => document.querySelector(".thread")!.scrollTop > 1_500)
      await page.evaluate(() => chat.frame())
      assert.approximately(await place() ?? NaN, before ?? NaN, 2)
      for (const older of ["Older 2-0.", "Older 1-0.", "Older 0-0."]) {
        await page.waitForFunction((text) => {
          document.querySelector(".thread")!.scrollTop = 0
          return document.querySelector(".thread")!.textContent.includes(text)
        }, older)
      }
    }))

  it("V-06: hostile texts in every place make no element, no address and no script", () =>
    onPage(async (page) => {
      for (const [index, text] of markupTexts.entries()) {
        await page.evaluate(({ index, text }) => {
          chat.clear()
          chat.show([{ id: `h${index}`, said: text, events: chat.everywhere(text) }])
          chat.wait([{ id: "w", content: text }])
          chat.ask(chat.asking(text))
        }, { index, text })
        for (const summary of await page.locator("summary").all()) await summary.dispatchEvent("click")
        await page.evaluate(() => chat.frame())
        const found = await page.evaluate(() => ({
          hit: (globalThis as { hit?: unknown }).hit,
          names: Array.from(document.querySelectorAll("#studio *"), ({ localName }) => localName),
          attributes: Array.from(document.querySelectorAll("#studio *")).flatMap((each) =>
            Array.from(each.attributes, ({ name }) => name)
          ),
          addresses: Array.from(document.querySelectorAll("a"), ({ href }) => href)
        }))
        assert.isUndefined(found.hit)
        assert.deepStrictEqual(found.names.filter((name) => !elements.has(name)), [], text)
        assert.deepStrictEqual(found.attributes.filter((name) => /^on|^src|^srcdoc|^action|^formaction/.test(name)), [])
        for (const address of found.addresses) assert.match(address, /^(?:https?|mailto):/)
      }
    }))

  it("V-06: the chat shows texts that take a parser seconds at once, in every place", () =>
    onPage(
      async (page) => {
        const longest = async (text: string) => Math.max(...await page.evaluate((text) => chat.placing(text), text))
        const usual = await best(() => longest(reply.repeat(20)))
        // A machine with other work misses 200 ms. A text that is not bounded takes seconds.
        const limit = Math.max(200, 30 * usual)
        const times: Array<readonly [name: string, time: number]> = []
        for (const [name, text] of Object.entries(hostileTexts)) {
          let time = await longest(text)
          for (let round = 1; round < 5 && time > limit; round++) time = Math.min(time, await longest(text))
          times.push([name, time])
        }
        const slowest = times.toSorted(([, a], [, b]) => b - a)
        print("V-06 longest task, ms", { "a usual reply": usual, ...Object.fromEntries(slowest.slice(0, 6)) })
        assert.deepStrictEqual(slowest.filter(([, time]) => time > limit), [])
      },
      {},
      production
    ))

  it("V-06: one card has all approvals: its arguments can be edited as JSON, and its calls denied with a reason", () =>
    onPage(async (page) => {
      const of = (id: string, more: object = {}) => ({
        id: `r~${id}`,
        kind: "approval" as const,
        toolCall: { id, name: `pay\u202e${id}`, arguments: { to: "ann\u202e\u0007", amount: 3 } },
        ...more
      })
      await page.evaluate((list) => {
        chat.say([{ id: "m", text: "I pay.", said: "Pay" }])
        chat.ask(list)
      }, [of("a"), of("b", { remember: "tool" }), of("c", { kind: "unknown" })])
      const card = page.locator(".ask")
      assert.strictEqual(await card.count(), 1)
      // The heading has the focus, and not what decides.
      assert.strictEqual(await page.evaluate(() => document.activeElement?.textContent), "Allow these 3 calls?")
      assert.include(await card.innerText(), "pay⟨U+202E⟩a")
      const fields = card.locator("textarea")
      assert.strictEqual(await fields.count(), 2)
      assert.include(await fields.first().inputValue(), "ann\\u202e\\u0007")
      // An edit that is no JSON is not sent, by one button or by the other.
      await fields.first().fill("{ \"to\": ")
      await card.locator(".one >> nth=0 >> text=Allow").click()
      assert.include(await card.locator(".wrong").innerText(), "The arguments are not JSON")
      await card.locator("text=Allow all 3").click()
      assert.deepStrictEqual(await page.evaluate(() => chat.answers), [])
      await fields.first().fill("[1]")
      await card.locator(".one >> nth=0 >> text=Allow").click()
      assert.include(await card.locator(".wrong").innerText(), "The arguments must be a JSON object.")
      await fields.first().fill("{ \"to\": \"bob\", \"amount\": 4 }")
      // A refusal is said, and the draft stays.
      await page.evaluate(() => chat.refuse("This answer came too late."))
      await card.locator(".one >> nth=0 >> text=Allow").click()
      await page.waitForSelector("text=This answer came too late.")
      assert.strictEqual(await fields.first().inputValue(), "{ \"to\": \"bob\", \"amount\": 4 }")
      // One that is about a call is said at its field.
      const misfit = "arguments.amount: Expected a number. Nothing was recorded, and the call still waits."
      await page.evaluate((sentence) => chat.refuse({ id: "r~a", sentence }), misfit)
      await card.locator("text=Allow all 3").click()
      await page.waitForSelector(`text=${misfit}`)
      assert.strictEqual(await card.locator(".wrong").count(), 1)
      assert.strictEqual(await card.locator(".one >> nth=0 >> .wrong").innerText(), misfit)
      assert.strictEqual(await fields.first().inputValue(), "{ \"to\": \"bob\", \"amount\": 4 }")
      assert.strictEqual(await fields.first().getAttribute("aria-invalid"), "true")
      await page.evaluate(() => {
        chat.refuse(undefined)
        chat.answers.length = 0
      })
      await card.locator(".one >> nth=0 >> text=Allow").click()
      await page.waitForFunction(() => document.querySelectorAll(".ask .one").length === 2)
      await card.locator("input[type=checkbox]").check()
      await card.locator(".one >> nth=0 >> button.main").click()
      await page.waitForFunction(() => document.querySelectorAll(".ask .one").length === 1)
      await card.locator("input[type=text]").fill(" too much ")
      await card.locator("text=Deny").click()
      await page.waitForSelector(".ask", { state: "detached" })
      assert.deepStrictEqual(await page.evaluate(() => chat.answers), [
        { id: "r~a", approve: true, arguments: { to: "bob", amount: 4 } },
        { id: "r~b", approve: true, remember: "tool" },
        { id: "r~c", approve: false, reason: "too much" }
      ])
      // All at once, and not edited: the arguments are those that the call was made with.
      await page.evaluate((list) => {
        chat.answers.length = 0
        chat.ask(list)
      }, [of("a"), of("b")])
      await card.locator("text=Allow all 2").click()
      await page.waitForSelector(".ask", { state: "detached" })
      await page.evaluate((list) => chat.ask(list), [of("a"), of("b")])
      await card.locator("text=Deny all").click()
      await page.waitForSelector(".ask", { state: "detached" })
      assert.deepStrictEqual(await page.evaluate(() => chat.answers), [
        { id: "r~a", approve: true },
        { id: "r~b", approve: true },
        { id: "r~a", approve: false },
        { id: "r~b", approve: false }
      ])
    }))

  it("V-06: Enter in the reason field denies and does not allow", () =>
    onPage(async (page) => {
      await page.evaluate(() => {
        chat.say([{ id: "m", text: "I pay.", said: "Pay" }])
        chat.ask(
          [{ id: "r~a", kind: "approval", toolCall: { id: "a", name: "pay", arguments: { amount: 3 } } }],
          [{ name: "pay", description: "Pays a bill.", destructive: true }]
        )
      })
      const card = await page.locator(".ask").innerText()
      for (const text of ["Pays a bill.", "may destroy"]) assert.include(card, text)
      const reason = page.getByLabel("Reason, if pay is denied")
      await reason.press("Enter")
      assert.deepStrictEqual(await page.evaluate(() => chat.answers), [])
      await reason.fill("too much")
      await reason.press("Enter")
      await page.waitForSelector(".ask", { state: "detached" })
      assert.deepStrictEqual(await page.evaluate(() => chat.answers), [{
        id: "r~a",
        approve: false,
        reason: "too much"
      }])
    }))

  it("V-06: the card warns about edited arguments of another form before the answer is sent", () =>
    onPage(async (page) => {
      await page.evaluate(() => {
        chat.say([{ id: "m", text: "I order.", said: "Order" }])
        const given = { title: "Dune", copies: 2, to: { city: "Oslo" }, tags: ["a"] }
        chat.ask([{ id: "r~a", kind: "approval", toolCall: { id: "a", name: "order", arguments: given } }])
      })
      const field = page.locator(".ask textarea")
      const allow = page.locator(".ask button.main")
      const warned = async (edited: object, sentence: string) => {
        await field.fill(JSON.stringify(edited))
        await allow.click()
        const said = await page.locator(".wrong").innerText()
        assert.include(said, sentence)
        assert.deepStrictEqual(await page.evaluate(() => chat.answers), [])
      }
      await warned(
        { title: "Dune", copies: "many", to: { city: "Oslo" }, tags: [] },
        "copies was a number and is a text"
      )
      await warned({ title: "Dune", copies: 2, to: {}, tags: ["a"] }, "to.city is missing")
      await warned(
        { title: "Dune", copies: 2, to: { city: "Oslo" }, tags: ["a", 1] },
        "tags[1] was a text and is a number"
      )
      await warned({ title: "Dune", copies: 2, to: { city: "Oslo" }, tags: [], cpies: 3 }, "cpies is new")
      // The same form is allowed at once, and another one at the second time.
      await warned({ copies: 3 }, "title is missing; to is missing; tags is missing")
      await allow.click()
      await page.waitForSelector(".ask", { state: "detached" })
      assert.deepStrictEqual(await page.evaluate(() => chat.answers), [
        { id: "r~a", approve: true, arguments: { copies: 3 } }
      ])
    }))

  it("V-05: a line of many calls shows their states in words and color, complete on a narrow screen", () =>
    onPage(async (page) => {
      const call = (id: string, name: string, isError: boolean) => [
        { _tag: "ToolCallStarted", id, name },
        { _tag: "ToolCallCompleted", id, name, arguments: {} },
        { _tag: "ToolExecutionStarted", id, name },
        {
          _tag: "ToolResultEncoded",
          id,
          content: isError ? "tool error (search): invalid_arguments: no text" : "x",
          isError
        }
      ]
      const calls = Array.from(
        { length: 10 },
        (_, index) => call(`c${index}`, ["read_the_account", "search_the_catalogue", "send"][index % 3]!, index > 7)
      ).flat()
      await page.setViewportSize({ width: 390, height: 760 })
      await page.evaluate((calls) => {
        const [first, start, ...rest] = chat.saying("Done.")
        chat.show([{ id: "m", said: "Go", events: [first!, start!, ...calls as [], ...rest] }])
      }, calls)
      const line = page.locator(".calls > summary")
      assert.match((await line.innerText()).replaceAll("\n", " "), /^10 calls: .*2 failed/)
      const fits = await line.evaluate((element) =>
        Array.from(element.querySelectorAll("strong, .state")).every((each) => each.scrollWidth <= each.clientWidth)
        && element.scrollWidth <= element.clientWidth
      )
      assert.isTrue(fits)
      const color = (selector: string) =>
        page.locator(selector).first().evaluate((element) => getComputedStyle(element).backgroundColor)
      await line.click()
      assert.strictEqual(await color(".calls > summary > .dot"), await color(".call[data-state=failed] .dot"))
      assert.include(
        await page.locator(".call[data-state=failed] .note").first().innerText(),
        "The arguments do not fit: no text"
      )
    }))

  it("V-05: questions take choices, text, fields and JSON by keyboard", () =>
    onPage(async (page) => {
      const answersTo = async (suspension: object, act: () => Promise<void>) => {
        await page.evaluate((suspension) => {
          chat.clear()
          chat.ask([{ id: "r~q", kind: "question", toolCall: { id: "q", name: "ask" }, ...suspension }])
        }, suspension)
        await act()
        await page.waitForSelector(".ask", { state: "detached" })
        return (await page.evaluate(() => chat.answers)).map(({ value }) => value)
      }
      const type = (...lines: ReadonlyArray<string>) => async () => {
        for (const line of lines) {
          await page.keyboard.type(line)
          await page.keyboard.press("Enter")
        }
      }
      const enter = () => page.keyboard.press("Enter")
      // The focus is where the answer begins.
      assert.deepStrictEqual(await answersTo({ question: "Which city?" }, type("Oslo")), ["Oslo"])
      assert.deepStrictEqual(await answersTo({ question: "Which?", opts: ["one", { two: 2 }] }, enter), ["one"])
      const second = async () => {
        await page.keyboard.press("Tab")
        await enter()
      }
      assert.deepStrictEqual(await answersTo({ opts: ["one", { two: 2 }] }, second), [{ two: 2 }])
      assert.deepStrictEqual(await answersTo({ answerSchema: { type: "boolean" } }, second), [false])
      assert.deepStrictEqual(await answersTo({ answerSchema: { enum: ["a", 2] } }, second), [2])
      assert.deepStrictEqual(await answersTo({ answerSchema: { type: "string" } }, type("42")), ["42"])
      const number = { answerSchema: { type: "integer", description: "how many" } }
      assert.deepStrictEqual(
        await answersTo(number, async () => {
          assert.include(await page.innerText(".expected"), "Expected: a number: how many")
          await type("many")()
          assert.include(await page.innerText(".wrong"), "The answer is not JSON")
          await page.keyboard.press("Control+A")
          await type("42")()
        }),
        [42]
      )
      assert.deepStrictEqual(await answersTo({ kind: "manual" }, type("no JSON")), ["no JSON"])
      assert.deepStrictEqual(await answersTo({ kind: "manual" }, type("", "{\"a\": 1}")), [{ a: 1 }])
      const person = {
        answerSchema: {
          type: "object",
          required: ["name"],
          properties: {
            name: { type: "string" },
            age: { type: "number" },
            member: { type: "boolean" },
            plan: { enum: ["free", "paid"] },
            note: { type: "string" }
          }
        }
      }
      assert.deepStrictEqual(
        await answersTo(person, async () => {
          for (const text of ["Ann", "41.5"]) {
            await page.keyboard.type(text)
            await page.keyboard.press("Tab")
          }
          await page.keyboard.press("Space")
          await page.selectOption("select", "1")
          await page.locator(".ask button").click()
        }),
        [{ name: "Ann", age: 41.5, member: true, plan: "paid" }]
      )
      const nested = { answerSchema: { type: "object", properties: { at: { type: "array" } } } }
      assert.deepStrictEqual(await answersTo(nested, type("{\"at\": [1]}")), [{ at: [1] }])
      // A person who types is not taken away from the text.
      await page.evaluate(() => chat.say([{ id: "m", text: "Hm.", said: "Hello" }]))
      await page.locator(".user").hover()
      await page.locator("text=Edit").click()
      await page.evaluate((suspension) => chat.ask([suspension]), {
        id: "r~q",
        kind: "question" as const,
        toolCall: { id: "q", name: "ask" }
      })
      assert.strictEqual(await page.evaluate(() => (document.activeElement as HTMLTextAreaElement).value), "Hello")
    }))

  it("V-05: a message says what it used and how it ended, and offers its actions", () =>
    onPage(async (page) => {
      await page.evaluate(() => {
        const events = chat.everywhere("text").filter(({ _tag }) => _tag !== "Error")
        chat.show([
          { id: "branched", events: chat.saying("An **answer**."), said: "A question" },
          { id: "last", events, said: "Another one" }
        ])
      })
      const [first, last] = [page.locator(".row >> nth=0"), page.locator(".row >> nth=1")]
      assert.include(await first.innerText(), "400 ms · 12 tokens in, 34 out")
      assert.include(await first.innerText(), "2 / 3")
      assert.include(await last.innerText(), "6 calls")
      assert.include(await last.innerText(), "Stopped by text: text.")
      assert.include(await last.innerText(), "Left running, and may still have an effect: text (for 5 ms).")
      await last.locator(".calls > summary").click()
      await last.locator("text=denied by text").waitFor()
      await first.getByLabel("Next branch").click()
      await first.hover()
      await first.locator("text=Edit").click()
      await page.keyboard.press("Control+A")
      await page.keyboard.type("Other words")
      await first.locator("text=Send as a branch").click()
      assert.strictEqual(await first.getByLabel("Answer again").count(), 0)
      await last.getByLabel("Answer again").click()
      assert.deepStrictEqual(await page.evaluate(() => chat.done), [
        "step 1",
        "edit branched Other words",
        "again last"
      ])
      await first.getByLabel("Copy the answer").click()
      await page.waitForFunction(() =>
        /^(?:Copied|The browser did not)/.test(document.querySelector("[role=status]")!.textContent)
      )
    }))

  it("V-05: the columns of a table are aligned as its second line says", () =>
    onPage(async (page) => {
      await page.evaluate(() => {
        const events = chat.saying("| a | b | c |\n| --- | ---: | :-: |\n| 1 | 2 | 3 |")
        chat.show([{ id: "table", events, said: "A question" }])
      })
      const sides = (name: string) =>
        page.locator(name).evaluateAll((cells) => cells.map((cell) => getComputedStyle(cell).textAlign))
      assert.deepStrictEqual((await sides("th")).slice(1), ["right", "center"])
      assert.deepStrictEqual((await sides("td")).slice(1), ["right", "center"])
    }))

  it("V-05: many calls are one line within their card, with the states of the failed calls", () =>
    onPage(async (page) => {
      const name = `${"long_name_".repeat(8)}last`
      await page.evaluate((name) => {
        const events = chat.everywhere(name).filter(({ _tag }) => _tag !== "Error")
        chat.show([{ id: "many", events, said: "A question" }])
      }, name)
      const summary = page.locator(".calls > summary")
      assert.match(await summary.innerText(), /^6 calls: long_name_/)
      const [line, state] = [await summary.boundingBox(), await summary.locator(".state").boundingBox()]
      assert.isAbove(state!.width, 20)
      assert.isAtMost(state!.x + state!.width, line!.x + line!.width)
    }, { viewport: { width: 390, height: 760 } }))

  it("V-06: a message that cannot be shown appears as its text, and the other messages stay", async () => {
    const { close, page } = await Harness.open(browser, bundle, { viewport: desk, css })
    await page.evaluate(() => {
      const broken = chat.everywhere("x").map((event) =>
        event._tag === "ToolCallStarted" ? { ...event, name: 5 } : event
      )
      const events = [...chat.saying("The text of it.").slice(0, 3), ...broken.slice(2)]
      chat.show([
        { id: "broken", said: "One", events: events as unknown as ReturnType<Chat["saying"]> },
        { id: "whole", said: "Two", events: chat.saying("Another answer.") }
      ])
    })
    await page.waitForSelector("text=This message cannot be shown as usual.")
    assert.include(await page.innerText(".broken"), "The text of it.")
    assert.include(await page.innerText(".thread"), "Another answer.")
    await close()
  })

  it("V-05: a link shows its whole address, and only the address decides what a link is", () =>
    onPage(async (page) => {
      await page.evaluate(() =>
        chat.say([{
          id: "m",
          text: "[a](https://exаmple.com/x?y=1) [b](/local) [c](javascript:alert(1)) [d](data:text/html,x) "
            + "![e](https://example.com/e.png) <mailto:a@b.c> [f](HTTPS://example.com) [g](//example.com)"
        }])
      )
      const links = await page.locator(".prose a").evaluateAll((all) =>
        all.map((link) => [link.textContent, link.getAttribute("href"), link.getAttribute("rel")])
      )
      const rel = "noreferrer noopener"
      assert.deepStrictEqual(links, [
        ["a", "https://xn--exmple-4nf.com/x?y=1", rel],
        ["Image: e", "https://example.com/e.png", rel],
        ["mailto:a@b.c", "mailto:a@b.c", rel],
        ["f", "https://example.com/", rel]
      ])
      const shown = () => page.evaluate(() => getComputedStyle(document.querySelector(".prose a")!, "::after").content)
      assert.strictEqual(await shown(), "none")
      await page.locator(".prose a").first().focus()
      await page.keyboard.press("Shift+Tab")
      await page.keyboard.press("Tab")
      assert.include(await shown(), "https://xn--exmple-4nf.com/x?y=1")
      await page.evaluate(() => (document.activeElement as HTMLElement).blur())
      await page.locator(".prose a").first().hover()
      assert.include(await shown(), "https://xn--exmple-4nf.com/x?y=1")
    }))

  const axe = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8")

  for (const colorScheme of ["light", "dark"] as const) {
    for (const width of [1_440, 390, 320]) {
      it(`V-05: axe finds no problem, and nothing is wider than the window, ${colorScheme}, ${width}`, () =>
        onPage(async (page) => {
          await page.evaluate(axe)
          const check = async (state: string) => {
            await page.evaluate(() => chat.frame())
            const found = await page.evaluate(() =>
              (globalThis as unknown as {
                axe: {
                  run: () => Promise<
                    { violations: ReadonlyArray<{ id: string; nodes: ReadonlyArray<{ html: string }> }> }
                  >
                }
              }).axe.run().then(({ violations }) =>
                violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 160)).join(" ")}`)
              )
            )
            assert.deepStrictEqual(found, [], state)
            const excess = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
            assert.isAtMost(excess, 0, state)
          }
          const long = "word".repeat(80)
          const text =
            `${reply}\n\n1. one\n2. two\n\n- [x] done\n- [ ] open\n\n${long}\n\n| ${long} | b |\n|---|---|\n| c | ${long} |`
          await page.evaluate((text) => chat.say([{ id: "branched", text, said: text.slice(0, 300) }]), text)
          await page.waitForSelector(".hljs-keyword")
          await check("markdown")
          await page.evaluate((long) => chat.show([{ id: "m", said: "Do it", events: chat.everywhere(long) }]), long)
          await check("calls")
          for (const summary of await page.locator("summary").all()) await summary.dispatchEvent("click")
          for (const summary of await page.locator(".calls .call summary").all()) await summary.dispatchEvent("click")
          await check("open calls")
          await page.evaluate((long) => {
            chat.say([{ id: "m", text: "I ask.", said: "Do it" }])
            chat.wait([{ id: "w", content: "And more" }])
            chat.ask(chat.asking(`pay ${long}`))
          }, long)
          await check("asks")
        }, { colorScheme, viewport: { width, height: 800 } }))
    }
  }
})
