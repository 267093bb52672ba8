/** Ctrl-C in the command, as real processes that get real signals while a tool of theirs runs a process. */
import { assert, describe, it } from "@effect/vitest"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fixture, isAlive, run, type Running, start } from "../support/command.ts"

const held = fixture("servedHeld")

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "heddle-signals-"))
let files = 0
/** A file that is there: while it is, the calls of the fixture go on. */
const holding = (): string => {
  const file = path.join(folder, `held-${files++}`)
  fs.writeFileSync(file, "")
  return file
}

const childOf = async (command: Running): Promise<number> => Number((await command.wrote(/child (\d+)/))[1])

/** A second signal within the time of an echo is none, so that it follows what the first one was answered by. */
const apart = () => new Promise((resolve) => setTimeout(resolve, 200))

/** Starts `heddle serve` and a run of it. */
const serving = async (environment: Readonly<Record<string, string>>, ...args: ReadonlyArray<string>) => {
  const command = start(["serve", held, "--port", "0", ...args], environment)
  const [, url] = await command.wrote(/at (http:\S+)/)
  await fetch(`${url}/agents/holder/sessions/s1/messages?wait=false`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ content: "Work" })
  })
  return { command, child: await childOf(command) }
}

describe("heddle sessions, while heddle serve runs a session", () => {
  it("W-22: heddle sessions shows the call and the claim, and stops the run from another process with a report", async () => {
    const store = ["--store", path.join(folder, "s.db")]
    const { child, command } = await serving({ HELD: holding() }, ...store)
    const shown = await run("sessions", held, "show", "s1", ...store)
    assert.match(shown.stdout, /^next {9}resume$/m)
    assert.match(shown.stdout, /^claim {8}\S+ until .*$/m)
    assert.match(shown.stdout, /^call {9}Started, attempt 1: hold \{\}$/m)
    const called = await run("call", held, "Hi", "--session", "s1", ...store)
    assert.strictEqual(called.code, 1)
    assert.match(called.stderr, /^heddle: session s1 is in use by another process \(.+\)\n$/)
    const open = await run("sessions", held, "delete", "s1", ...store)
    assert.deepStrictEqual([open.code, open.stderr], [1, "heddle: session s1 has an open run; stop the run first\n"])
    assert.isTrue(isAlive(child))
    const stopped = await run("sessions", held, "stop", "s1", ...store)
    assert.deepStrictEqual(
      [stopped.code, stopped.stdout],
      [0, "the stop is recorded\nthe run has ended\nstopped: c0\n"]
    )
    assert.isFalse(isAlive(child))
    command.child.kill("SIGINT")
    assert.strictEqual((await command.ended).code, 0)
  })

  it("W-22: heddle sessions revokes a process's claim, and the process stops its run", async () => {
    const store = ["--store", path.join(folder, "revoked.db")]
    const { child, command } = await serving({ HELD: holding() }, ...store)
    assert.strictEqual((await run("sessions", held, "revoke", "s1", ...store)).stdout, "the claim is revoked\n")
    // The process learns it at the next renewal, and stops what it runs.
    await command.wrote(/lost/)
    command.child.kill("SIGINT")
    await command.ended
    assert.isFalse(isAlive(child))
  })
})

describe("Ctrl-C in heddle", { concurrent: true }, () => {
  it("W-24: in call the first Ctrl-C stops softly, and no process started by a tool stays alive", async () => {
    const command = start(["call", held, "Work"], { HELD: holding() })
    const child = await childOf(command)
    assert.isTrue(isAlive(child))
    command.child.kill("SIGINT")
    const { code, stderr, stdout } = await command.ended
    assert.deepStrictEqual([code, stdout], [130, "I work. \n"])
    assert.include(stderr, "stopping")
    assert.isFalse(isAlive(child))
  })

  it("W-24: in call the second Ctrl-C interrupts and waits, and the third ends the process", async () => {
    const file = holding()
    const command = start(["call", held, "Work"], { HELD: file, STUBBORN: "1" })
    const child = await childOf(command)
    command.child.kill("SIGINT")
    await command.wrote(/stopping/)
    await apart()
    command.child.kill("SIGINT")
    await apart()
    assert.isNull(command.child.exitCode)
    assert.isTrue(isAlive(child))
    command.child.kill("SIGINT")
    assert.strictEqual((await command.ended).code, 130)
    process.kill(child, "SIGKILL")
  })

  it("W-24: in call the second Ctrl-C waits until a tool's work has ended", async () => {
    const file = holding()
    const command = start(["call", held, "Work"], { HELD: file, STUBBORN: "1" })
    const child = await childOf(command)
    command.child.kill("SIGINT")
    await command.wrote(/stopping/)
    await apart()
    command.child.kill("SIGINT")
    await apart()
    fs.rmSync(file)
    assert.strictEqual((await command.ended).code, 130)
    assert.isFalse(isAlive(child))
  })

  it("W-24: in serve the first Ctrl-C lets calls end, and exits with 0", async () => {
    const file = holding()
    const { child, command } = await serving({ HELD: file })
    command.child.kill("SIGINT")
    await command.wrote(/stopping/)
    assert.isTrue(isAlive(child))
    fs.rmSync(file)
    assert.strictEqual((await command.ended).code, 0)
    assert.isFalse(isAlive(child))
  })

  it("W-24: in serve the second Ctrl-C interrupts calls and waits for them", async () => {
    const { child, command } = await serving({ HELD: holding() })
    command.child.kill("SIGINT")
    await command.wrote(/stopping/)
    await apart()
    assert.isTrue(isAlive(child))
    command.child.kill("SIGINT")
    assert.strictEqual((await command.ended).code, 130)
    assert.isFalse(isAlive(child))
  })

  it("W-24: in serve the third Ctrl-C ends the process", async () => {
    const { child, command } = await serving({ HELD: holding(), STUBBORN: "1" })
    command.child.kill("SIGINT")
    await command.wrote(/stopping/)
    await apart()
    command.child.kill("SIGINT")
    await apart()
    assert.isNull(command.child.exitCode)
    command.child.kill("SIGINT")
    assert.strictEqual((await command.ended).code, 130)
    process.kill(child, "SIGKILL")
  })
})
