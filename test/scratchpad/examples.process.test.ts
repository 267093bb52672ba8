/**
 * The programs of `scratchpad/examples` that take arguments, share a file with another process, read the environment, or do
 * not end by themselves: each as a process of its own, as a reader would start it.
 */
import { assert, describe, it } from "@effect/vitest"
import { type ChildProcess, execFile, spawn } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { root } from "../support/source.ts"
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

describe("scratchpad/examples, as processes", { timeout: limit }, () => {
  it("the example providers uses a script as its model without a key", async () => {
    assert.strictEqual(await output("providers"), "provider: none\nHello from a script: no key is set.\n")
  })

  it("one process of the example two-processes asks, and another process approves and continues", () =>
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

  it("N-18: a process of the example crash is killed while it pays, and another process finds the payment", () =>
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

  it("two processes of the example workers share the sessions, and answer each session once", () =>
    inFolder(async (made) => {
      const file = path.join(made, "sessions.db")
      assert.strictEqual(await output("workers", "submit", file), "")
      const printed = await Promise.all([output("workers", "work", file), output("workers", "work", file)])
      const answers = printed.join("").trim().split("\n").map((line) => line.replace(/^process \d+, /, "")).toSorted()
      const customers = ["ann", "bob", "cem", "dee", "eve", "fay"]
      assert.deepStrictEqual(answers, customers.map((name) => `${name}: Hello, I am ${name}!`))
    }))

  it("two processes of the example tenant never exceed one amount, beside a reservation left by a kill", () =>
    inFolder(async (made) => {
      const file = path.join(made, "account.db")
      const killed = start("tenant", "die", file)
      const end = await new Promise<ReadonlyArray<unknown>>((resolve) => killed.on("close", (...end) => resolve(end)))
      assert.deepStrictEqual(end, [null, "SIGKILL"])
      const printed = await Promise.all([output("tenant", "work", file), output("tenant", "work", file)])
      const answers = printed.join("").split("\n").filter((line) => line === "an answer for 605").length
      const [{ amount, reserved, spent }] = JSON.parse(/^\[.*\]$/m.exec(await output("tenant", "work", file))![0])
      assert.deepStrictEqual([amount, spent], [200_000, reserved + 605 * answers])
      assert.isAtMost(spent, amount)
      // One request is reserved, that of the killed process: another one, which reserves as much, has no place.
      assert.isAbove(spent + reserved, amount)
      assert.isBelow(reserved, 2 * 1_000)
    }))

  it("each start of the example session continues where the last start ended", () =>
    inFolder(async (made) => {
      const file = path.join(made, "sessions.db")
      assert.include(await output("session", "Hello", file), `That is the 1. thing you said. The first was "Hello".`)
      const second = await output("session", "Me again", file)
      assert.include(second, `That is the 2. thing you said. The first was "Hello".`)
      assert.include(second, "4 messages")
    }))

  it("the example page serves a run as events, and ends the run when the reader leaves", async () => {
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
})
