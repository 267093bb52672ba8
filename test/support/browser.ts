/**
 * Chromium for the tests of pages. Where it is missing these tests say so in one line and are passed over; in CI they
 * fail.
 */
import { existsSync } from "node:fs"
import { type Browser, chromium } from "playwright-core"

const executablePath = process.env["CHROMIUM"] ?? "/usr/bin/chromium"

/** Tells whether there is a browser, and says so where there is none. */
export const hasBrowser = (): boolean => {
  const has = existsSync(executablePath)
  if (!has && process.env["CI"] !== "true") {
    process.stderr.write(`\n!!! NO CHROMIUM at ${executablePath}: the tests of the page are passed over (CHROMIUM)\n\n`)
  }
  return has || process.env["CI"] === "true"
}

/** Starts a browser. */
export const launch = (): Promise<Browser> =>
  chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] })
