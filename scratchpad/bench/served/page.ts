/** The tasks of the page of `heddle serve` while it shows ten megabytes of arguments and of an answer, in Chromium. */
import { spawn } from "node:child_process"
import { once } from "node:events"
import { join } from "node:path"
import { chromium } from "playwright-core"

const root = join(import.meta.dirname, "../../..")
const executablePath = process.env["CHROMIUM"] ?? "/usr/bin/chromium"
const command = ["src/command/main.ts", "serve", "test/fixtures/servedLarge.ts", "--port", "0"]

/** Measures the tasks that took 50 ms and more, and prints a table. */
export const measure = async (): Promise<void> => {
  const server = spawn(process.execPath, ["--conditions=source", ...command], { cwd: root, stdio: "pipe" })
  const [line] = await once(server.stdout, "data")
  const browser = await chromium.launch({
    executablePath,
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
  })
  try {
    const page = await browser.newPage()
    await page.addInitScript(`
      globalThis.tasks = []
      new PerformanceObserver((list) => tasks.push(...list.getEntries().map(({ duration }) => duration)))
        .observe({ type: "longtask", buffered: true })`)
    await page.goto(/at (http:\S+)/.exec(String(line))?.[1] ?? "")
    await page.fill("#text", "Give me all")
    await page.press("#text", "Enter")
    await page.waitForSelector(".call[data-state=done]", { timeout: 60_000 })
    await page.waitForSelector("#stop", { state: "hidden" })
    await page.click(".call > summary")
    await page.click(".call pre >> nth=1 >> .more")
    await page.waitForSelector(".call pre >> nth=1 >> .more", { state: "detached", timeout: 60_000 })
    const tasks: ReadonlyArray<number> = await page.evaluate("tasks")
    console.log("\n### W-10 tasks of the page over 50 ms, while it shows 10 MB of a call\n")
    console.log("| tasks | longest, ms |\n| --: | --: |")
    console.log(`| ${tasks.length} | ${Math.max(0, ...tasks).toFixed(0)} |`)
  } finally {
    await browser.close()
    server.kill("SIGKILL")
  }
}
