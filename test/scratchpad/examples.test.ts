/**
 * The programs of `scratchpad/examples`, each as a process of its own, as a reader would start it: what it prints, that it
 * ends well, that it says at its head what it shows, and that it is short.
 */
import { assert, describe, it } from "@effect/vitest"
import { type ChildProcess, execFile, spawn } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { readSources, root } from "../support/source.ts"
import { limit } from "../support/until.ts"

const folder = "scratchpad/examples"

/** The environment without keys and addresses of providers, which a program would use. */
const environment = Object.fromEntries(
  Object.entries(process.env).filter(([name]) => !/^(OPENAI|ANTHROPIC|GEMINI|GOOGLE)_/.test(name))
)

const start = (name: string, ...args: ReadonlyArray<string>): ChildProcess =>
  spawn(process.execPath, ["--conditions=source", path.join(root, folder, `${name}.ts`), ...args], { env: environment })

/** What a program prints until it ends, which it has to do well. */
const output = (name: string, ...args: ReadonlyArray<string>): Promise<string> =>
  new Promise((resolve, reject) =>
    execFile(
      process.execPath,
      ["--conditions=source", path.join(root, folder, `${name}.ts`), ...args],
      { env: environment, timeout: limit },
      (error, stdout, stderr) => error === null ? resolve(stdout) : reject(new Error(`${error.message}\n${stderr}`))
    )
  )

const inFolder = async (use: (folder: string) => Promise<void>): Promise<void> => {
  const made = fs.mkdtempSync(path.join(os.tmpdir(), "heddle-examples-"))
  try {
    await use(made)
  } finally {
    fs.rmSync(made, { recursive: true, force: true })
  }
}

/** What each program prints that ends by itself and needs no argument: these lines, in this order. */
const lines: Readonly<Record<string, ReadonlyArray<string>>> = {
  "approval": [
    "status: awaiting_tools",
    "waits: c1 approval { to: 'the landlord', amount: 900 }",
    "result: paid 5 to the baker",
    "result: paid 850 to the landlord",
    "status: completed"
  ],
  "ctrl-c": ["hello", "outcome: Completed"],
  "error-policy": [
    `continue: {"error":"NotFound","details":{"path":"/a"}} Completed`,
    "halt: ToolFailed tool_error",
    "fail: the disk is full"
  ],
  "limits": [
    "at once, three tenants: 4",
    "at once, one tenant: 2",
    "less than 200 ms are left for tools: true",
    "deadline -> I ran out of time, but here is what I know."
  ],
  "one-tool": [
    "user: How warm is it in Oslo?",
    `tool: {"city":"Oslo","celsius":7}`,
    "assistant: It is 7 °C in Oslo.",
    "{ _tag: 'Completed', finishReason: 'stop' }"
  ],
  "providers": ["provider: none", "Hello from a script: no key is set."],
  "question": [
    "asks: How many seats at The Loom? [ 2, 4, 6 ]",
    "refused: invalid_answer",
    "says: A table for four at The Loom."
  ],
  "stopping": [
    "slow: cleaned up",
    "timeout: It took too long.",
    "cancel: { _tag: 'Cancelled', reason: 'cancel' }",
    "abandoned: [ 'handler deaf' ]"
  ],
  "streaming": [
    `» search {"text":"heddle"}`,
    "  … a.ts",
    "  ✓ heddle is in b.ts",
    "It is in b.ts.",
    "[completed after 2 turns]"
  ],
  "sub-agent": ["c0 > All about heddles.", "A heddle is a part of a loom.", "tokens: 20 here, 220 in all"],
  "testing": ["an hour in no time: waited 50 minutes", "stopped at each of its points: 0 violations"],
  "typed-answer": ["Oslo: 7 °C, take a coat"],
  "workflow": ["reserved a heddle", "shipped order-7", "[ 'A heddle, from shelf 3.', 'A heddle, from shelf 3.' ]"]
}

/** Those that are started with arguments, or do not end by themselves. */
const others = ["crash", "page", "serve", "session", "two-processes", "workers"]

describe("scratchpad/examples", { timeout: limit }, () => {
  for (const [name, expected] of Object.entries(lines)) {
    it(name, async () => {
      const printed = (await output(name)).split("\n")
      const found = expected.map((line) => printed.indexOf(line))
      assert.deepStrictEqual(
        found.map((at, index) => at < 0 ? `not printed: ${expected[index]}` : ""),
        found.map(() => "")
      )
      assert.deepStrictEqual(found, found.toSorted((a, b) => a - b))
    })
  }

  it("two-processes: one asks and ends, another approves and goes on", () =>
    inFolder(async (made) => {
      const file = path.join(made, "sessions.db")
      const asked = await output("two-processes", "ask", file)
      assert.match(asked, /^process \d+: awaiting_tools\nwaits: c0 \{ version: '2' \}\n$/)
      const approved = await output("two-processes", "approve", file)
      const [, pid] = /^process (\d+): completed$/m.exec(approved) ?? []
      assert.notInclude(asked, `process ${pid}:`)
      assert.include(approved, `tool: deployed 2 from process ${pid}`)
      assert.include(approved, "assistant: Version 2 is live.")
      assert.include(await output("two-processes"), "usage:")
    }))

  it("N-18: crash: one is killed while it pays, another finds that it has paid and shows what is replayed as past", () =>
    inFolder(async (made) => {
      const file = path.join(made, "sessions.db")
      const killed = start("crash", "start", file)
      const [code, signal] = await new Promise<ReadonlyArray<unknown>>((resolve) =>
        killed.on("close", (...end) => resolve(end))
      )
      assert.deepStrictEqual([code, signal], [null, "SIGKILL"])
      const resumed = await output("crash", "resume", file)
      assert.match(
        resumed,
        /^reserve: Answered\ncharge: Started\nc0: null, before the crash\nc1: charged\n[^]*\ntool: charged\nassistant: It is paid\.\neffects: 2\n$/
      )
      assert.include(await output("crash", "resume", file), "no run was interrupted")
      assert.include(await output("crash"), "usage:")
    }))

  it("workers: two share the sessions, and each session is answered once", () =>
    inFolder(async (made) => {
      const file = path.join(made, "sessions.db")
      assert.strictEqual(await output("workers", "submit", file), "")
      const printed = await Promise.all([output("workers", "work", file), output("workers", "work", file)])
      const answers = printed.join("").trim().split("\n").map((line) => line.replace(/^process \d+, /, "")).toSorted()
      const customers = ["ann", "bob", "cem", "dee", "eve", "fay"]
      assert.deepStrictEqual(answers, customers.map((name) => `${name}: Hello, I am ${name}!`))
    }))

  it("session: each start goes on where the last one ended", () =>
    inFolder(async (made) => {
      const file = path.join(made, "sessions.db")
      assert.include(await output("session", "Hello", file), `That is the 1. thing you said. The first was "Hello".`)
      const second = await output("session", "Me again", file)
      assert.include(second, `That is the 2. thing you said. The first was "Hello".`)
      assert.include(second, "4 messages")
    }))

  it("page: serves a run as events, and ends it when the reader leaves", async () => {
    const server = start("page", "0")
    try {
      let printed = ""
      let heard = () => {}
      const until = (pattern: RegExp) =>
        new Promise<string>((resolve) => {
          heard = () => {
            const [match] = pattern.exec(printed) ?? []
            if (match !== undefined) resolve(match)
          }
          heard()
        })
      server.stdout!.setEncoding("utf8").on("data", (text: string) => {
        printed += text
        heard()
      })
      const url = await until(/http:\S+/)
      assert.include(await (await fetch(url)).text(), "new EventSource(\"/chat\")")
      const wires = (await (await fetch(new URL("chat", url))).text()).split("\n\n").filter((line) => line !== "")
      const tags = wires.map((line) => JSON.parse(line.slice("data: ".length))._tag)
      assert.deepStrictEqual(tags.filter((tag) => tag === "TextDelta" || tag === "ChatCompleted"), [
        "TextDelta",
        "TextDelta",
        "ChatCompleted"
      ])
      await until(/the run is over/)
      const leaving = new AbortController()
      const left = await fetch(new URL("chat", url), { signal: leaving.signal })
      await left.body!.getReader().read()
      leaving.abort()
      await until(/the run is over[^]*the run is over/)
    } finally {
      server.kill("SIGKILL")
    }
  })

  it("each is tried, says at its head what it shows, and has fewer than 60 lines", () => {
    const sources = readSources(folder)
    const names = sources.map(({ path: file }) => path.basename(file, ".ts"))
    assert.deepStrictEqual(names, [...Object.keys(lines), ...others].sort())
    for (const { path: file, text } of sources) {
      assert.match(text, /^\/\*\*[^]*?\.\s*\*\//, file)
      assert.isBelow(text.split("\n").length, 60, file)
    }
  })
})
