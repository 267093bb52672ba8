/** Studio as `heddle serve` serves it, in a browser: the command as a process, and pages with all that goes wrong. */
import { assert } from "@effect/vitest"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import type { Browser, BrowserContext, BrowserContextOptions, Page } from "playwright-core"
import { launch } from "../../support/browser.ts"
import { fixture, type Running, start } from "../../support/command.ts"
import { build } from "../../support/studioRun.ts"

/** A page, and what went wrong on it. */
export interface Opened {
  readonly page: Page
  readonly context: BrowserContext
  /** Errors, warnings, dialogs, violations of the policy, and requests to another server. */
  readonly faults: ReadonlyArray<string>
  readonly close: () => Promise<void>
}

/** A browser and the commands of a test file. */
export class Stand {
  private readonly commands: Array<Running> = []
  private browser: Browser | undefined
  /** Studio with the warnings of React, by file name. */
  private files: ReadonlyMap<string, string> = new Map()

  /** Starts the browser, and builds Studio with the warnings of React. */
  async start(): Promise<void> {
    const dir = fs.mkdtempSync(path.join(os.tmpdir(), "heddle-studio-"))
    await build({ dir, mode: "development" })
    this.files = new Map(fs.readdirSync(dir).map((name) => [name, fs.readFileSync(path.join(dir, name), "utf8")]))
    fs.rmSync(dir, { recursive: true })
    this.browser = await launch()
  }

  async end(): Promise<void> {
    await this.browser?.close()
    for (const { child } of this.commands) child.kill("SIGKILL")
  }

  /** Starts `heddle serve` of a fixture. */
  async command(name: string, args: ReadonlyArray<string> = [], environment: Readonly<Record<string, string>> = {}) {
    const command = start(
      ["serve", fixture(name), ...args.includes("--port") ? [] : ["--port", "0"], ...args],
      environment
    )
    this.commands.push(command)
    const [, url = ""] = await command.wrote(/at (http:\S+)/)
    return { ...command, url }
  }

  /** Returns the address of `heddle serve` of a fixture. */
  async serve(name: string, environment: Readonly<Record<string, string>> = {}): Promise<string> {
    return (await this.command(name, [], environment)).url
  }

  /** Opens an address, with the warnings of React unless they are not wanted. */
  async open(url: string, options: BrowserContextOptions & { readonly isBuilt?: boolean } = {}): Promise<Opened> {
    const { isBuilt = false, ...given } = options
    if (this.browser === undefined) throw new Error("The stand has no browser: call start first")
    const context = await this.browser.newContext({ viewport: { width: 1200, height: 760 }, ...given })
    // Tests wait for what they see. Their bound is for what never comes, on the busiest machine.
    context.setDefaultTimeout(120_000)
    const page = await context.newPage()
    const faults: Array<string> = []
    page.on("pageerror", (error) => faults.push(String(error)))
    page.on("console", (message) => {
      // A browser reports each refused and each broken request itself.
      if (message.text().startsWith("Failed to load resource")) return
      if (message.type() === "error" || message.type() === "warning") faults.push(message.text())
    })
    page.on("dialog", (dialog) => {
      faults.push(`dialog: ${dialog.message()}`)
      void dialog.dismiss()
    })
    page.on("request", (request) => {
      if (!request.url().startsWith(`${url}/`) && !request.url().startsWith("data:")) faults.push(request.url())
    })
    if (!isBuilt) {
      // The headers are those of the server, which a test may kill while the page loads a file.
      const policy = (await fetch(`${url}/`)).headers.get("content-security-policy") ?? ""
      await page.route(/\/(?:[\w-]+\.(?:js|css))?(?:#.*)?$/, async (route) => {
        const name = new URL(route.request().url()).pathname.slice(1)
        const body = this.files.get(name === "" ? "index.html" : name)
        if (body === undefined) return route.continue()
        const kinds = { js: "text/javascript", css: "text/css" }
        const contentType = kinds[name.split(".").at(-1) as keyof typeof kinds] ?? "text/html"
        await route.fulfill({ body, contentType, headers: { "content-security-policy": policy } })
      })
    }
    await page.goto(`${url}/`)
    return { page, context, faults, close: () => context.close() }
  }
}

/** Sends a message. */
export const say = async (page: Page, text: string): Promise<void> => {
  await page.fill("#message", text)
  await page.press("#message", "Enter")
}

/** Waits until the address names the session, which it does once its first message was accepted, and returns it. */
export const addressOf = async (page: Page): Promise<string> => {
  await page.waitForURL(/#[^/]+\/./)
  return page.url()
}

/** Waits until no run is under way: behind a sent message, only once something of its run is on the page. */
export const rests = async (page: Page): Promise<void> => {
  await page.waitForSelector("#send")
}

/** Waits until the page shows a text, and says what it shows if it never does. */
export const shows = async (page: Page, text: string): Promise<void> => {
  await page.waitForSelector(`text=${text}`).catch(async () => {
    assert.fail(`The page does not show "${text}", but:\n${await page.evaluate("document.body.innerText")}`)
  })
}

/** Returns what the conversation shows. */
export const shownOn = (page: Page): Promise<string> => page.locator(".thread").innerText()

/** The width by which the page is wider than the screen. */
export const excess = (page: Page): Promise<number> =>
  page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

/** Returns a folder for a store or another file of a test. */
export const folder = (): string => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-page-"))
