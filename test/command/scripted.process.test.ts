/**
 * The command in a script: JSON on the standard output, a message on the standard input, and nothing that is created or
 * dropped on the way.
 */
import { assert, describe, it } from "@effect/vitest"
import { spawn } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fixture, run } from "../support/command.ts"

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "heddle-scripted-"))
const weather = fixture("servedWeather")
const answering = fixture("servedAnswering")
const main = path.resolve(import.meta.dirname, "../../src/command/main.ts")

/** Runs the command with a text on its standard input. */
const fed = (input: string, ...args: ReadonlyArray<string>) =>
  new Promise<{ readonly code: number | null; readonly stdout: string; readonly stderr: string }>((resolve) => {
    const child = spawn(process.execPath, ["--conditions=source", main, ...args], { stdio: "pipe" })
    let [stdout, stderr] = ["", ""]
    child.stdout.setEncoding("utf8").on("data", (text: string) => void (stdout += text))
    child.stderr.setEncoding("utf8").on("data", (text: string) => void (stderr += text))
    child.on("close", (code) => resolve({ code, stdout, stderr }))
    child.stdin.end(input)
  })

describe("heddle in a script", () => {
  it("O-34: heddle prints the outcome of a session as JSON, and lists sessions by status", async () => {
    const store = ["--store", path.join(folder, "s.db")]
    const sessions = async (...args: ReadonlyArray<string>) => {
      const { code, stderr, stdout } = await run("sessions", weather, ...args, ...store, "--json")
      assert.strictEqual(code, 0, stderr)
      return JSON.parse(stdout)
    }
    const called = await run("call", weather, "Hello", "--session", "s1", ...store, "--json")
    assert.strictEqual(called.code, 2)
    const { next, status, suspensions, text } = JSON.parse(called.stdout)
    assert.deepStrictEqual([status, next, text, suspensions.length], ["awaiting_user", "wait", "Hello. ", 1])
    assert.deepInclude(suspensions[0], { kind: "question", question: "Which city?" })
    const failing = fixture("servedFailing")
    const failed = await run("call", failing, "Hello", "--session", "f1", ...store)
    assert.strictEqual(failed.code, 1)
    const all = await sessions("list")
    assert.deepStrictEqual(all.map(({ id }: { readonly id: string }) => id).toSorted(), ["s1"])
    assert.match(all[0].updatedAt, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
    const waiting = await sessions("list", "--status", "awaiting_user")
    assert.deepStrictEqual(waiting.map(({ id, status }: Record<string, string>) => [id, status]), [
      ["s1", "awaiting_user"]
    ])
    const error = await run("sessions", failing, "list", "--status", "error", "--json", ...store)
    const broken: ReadonlyArray<Record<string, string>> = JSON.parse(error.stdout)
    assert.deepStrictEqual(broken.map(({ agent, id, status }) => [id, agent, status]), [["f1", "agent", "error"]])
    assert.deepStrictEqual(await sessions("list", "--status", "stopped"), [])
    const lines = await run("sessions", failing, "list", "--status", "error", ...store)
    assert.match(lines.stdout, /^f1\tagent\tnothing\t\S+ \S+Z\tHello\n$/)
    const shown = await sessions("show", "s1")
    assert.deepInclude(shown, { id: "s1", status: "awaiting_user", next: "wait", resumptions: 0 })
    assert.deepStrictEqual(shown.messages[0].content, "Hello")
    assert.strictEqual(shown.calls[0].state, "Waiting")
    assert.deepStrictEqual(await sessions("stop", "s1"), { id: "s1", isStopping: false })
    assert.deepStrictEqual(await sessions("revoke", "s1"), { id: "s1", isRevoked: false })
    assert.deepStrictEqual(await sessions("delete", "s1"), { id: "s1", isDeleted: true })
  })

  it("O-34: heddle reads a message from the standard input, and says if the input is empty", async () => {
    const store = ["--store", path.join(folder, "in.db")]
    const said = await fed("Grüße 😀\nand more\n", "call", answering, "-", "--session", "s1", ...store)
    assert.deepStrictEqual([said.code, said.stdout], [0, "It works again.\n"])
    const shown = JSON.parse((await run("sessions", answering, "show", "s1", ...store, "--json")).stdout)
    assert.strictEqual(shown.messages[0].content, "Grüße 😀\nand more\n")
    const empty = await fed("  \n", "call", answering, "-")
    assert.deepStrictEqual([empty.code, empty.stderr], [1, "heddle: the standard input has no text\n"])
  })

  it("O-34: heddle says that a text was not sent if the session waits", async () => {
    const store = ["--store", path.join(folder, "waits.db")]
    await run("call", weather, "Hello", "--session", "s1", ...store)
    const again = await run("call", weather, "Something else", "--session", "s1", ...store)
    assert.strictEqual(again.code, 2)
    assert.match(again.stderr, /waits for an answer, and there is no terminal to ask in; the text was not sent; /)
    const without = await run("call", weather, "--session", "s1", ...store)
    assert.notInclude(without.stderr, "not sent")
  })

  it("O-34: heddle creates no file when it reads, and changes no file of another program", async () => {
    const typo = path.join(folder, "typo.db")
    const other = path.join(folder, "notes.txt")
    fs.writeFileSync(other, "notes")
    for (const action of ["list", "show", "recover", "stop", "revoke", "delete"]) {
      const missing = await run("sessions", weather, action, "s1", "--store", typo)
      assert.match(missing.stderr, /^heddle: there is no file .*typo\.db; --store names the file of the sessions\n$/)
      assert.strictEqual(missing.code, 1)
      if (action !== "list") continue
      const foreign = await run("sessions", weather, action, "--store", other)
      assert.match(foreign.stderr, /notes\.txt is not a session store/)
    }
    assert.isFalse(fs.existsSync(typo))
    assert.strictEqual(fs.readFileSync(other, "utf8"), "notes")
    assert.deepStrictEqual(fs.readdirSync(folder).filter((name) => /^(typo|notes)/.test(name)), ["notes.txt"])
  })

  it("O-34: heddle prints its help and its version", async () => {
    const [help, flag] = await Promise.all([run("help"), run("--help")])
    assert.deepStrictEqual([help.code, help.stdout], [0, flag.stdout])
    assert.include(help.stdout, "sessions")
    const [call, flags] = await Promise.all([run("help", "call"), run("call", "--help")])
    assert.strictEqual(call.stdout, flags.stdout)
    assert.include(call.stdout, "--session")
    const [version, long] = await Promise.all([run("version"), run("--version")])
    assert.deepStrictEqual([version.code, version.stdout], [0, long.stdout])
  })
})
