/** Pages of tests: a part of Studio, bundled with an entry of the test, under the policy of Studio. */
import * as fs from "node:fs"
import { resolve } from "node:path"
import type { Browser, BrowserContextOptions, Page } from "playwright-core"
import { rolldown } from "rolldown"

const styles = resolve(import.meta.dirname, "../../../src/studio/styles")

/** The policy of Studio. */
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
  + "connect-src 'self'; worker-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
  + "require-trusted-types-for 'script'; trusted-types 'none'"

const document = `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Studio</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/page.css"><script type="module" src="/page.js"></script></head>
<body><main><h1 class="hidden">Studio</h1><div id="studio"></div></main></body></html>`

/** The scripts of a page by their names. That of the entry is `page.js`. */
export type Bundle = Readonly<Record<string, string>>

/** Bundles an entry of the folder of this file. Modules that are imported later are scripts of their own. */
export const bundle = async (
  entry: string,
  mode: "development" | "production" = "development"
): Promise<Bundle> => {
  const made = await rolldown({
    input: { page: resolve(import.meta.dirname, entry) },
    platform: "browser",
    logLevel: "silent",
    transform: { define: { "process.env.NODE_ENV": JSON.stringify(mode) }, jsx: { runtime: "automatic" } }
  })
  const { output } = await made.generate({ format: "es", entryFileNames: "[name].js", chunkFileNames: "[name].js" })
  await made.close()
  return Object.fromEntries(output.flatMap((each) => each.type === "chunk" ? [[each.fileName, each.code]] : []))
}

/** A page, and what went wrong on it: violations of the policy, requests for anything else, errors and warnings. */
export interface Opened {
  readonly page: Page
  readonly faults: ReadonlyArray<string>
  readonly close: () => Promise<void>
}

/** Opens a page with the script and the styles of Studio. */
export const open = async (
  browser: Browser,
  bundle: Bundle,
  { css = "", ...options }: BrowserContextOptions & { readonly css?: string } = {}
): Promise<Opened> => {
  const context = await browser.newContext(options)
  context.setDefaultTimeout(120_000)
  const page = await context.newPage()
  const faults: Array<string> = []
  const sheet = fs.readdirSync(styles).filter((name) => name.endsWith(".css")).sort()
    .map((name) => fs.readFileSync(resolve(styles, name), "utf8")).join("\n")
  const bodies: Readonly<Record<string, readonly [type: string, body: string]>> = {
    "/": ["text/html", document],
    "/page.css": ["text/css", `${sheet}\n${css}`],
    ...Object.fromEntries(
      Object.entries(bundle).map(([name, code]) => [`/${name}`, ["text/javascript", code] as const])
    )
  }
  await page.route("**", async (route) => {
    const { origin, pathname } = new URL(route.request().url())
    const found = origin === "https://studio.test" ? bodies[pathname] : undefined
    if (found === undefined) {
      if (pathname !== "/favicon.ico") faults.push(`request for ${route.request().url()}`)
      return route.abort()
    }
    await route.fulfill({ contentType: found[0], body: found[1], headers: { "content-security-policy": policy } })
  })
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`))
  page.on("console", (message) => {
    // A test reads pixels of the canvas.
    if (message.text().includes("willReadFrequently")) return
    if (message.type() === "error" || message.type() === "warning") faults.push(`${message.type()}: ${message.text()}`)
  })
  await page.goto("https://studio.test/")
  return { page, faults, close: () => context.close() }
}
