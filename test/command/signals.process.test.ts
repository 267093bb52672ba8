/** Ctrl-C in the command, as real processes that get real signals while a tool of theirs runs a process. */
import { assert, describe, it } from "@effect/vitest"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fixture, isAlive, type Running, start } from "../support/command.ts"

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
const serving = async (environment: Readonly<Record<string, string>>) => {
  const command = start(["serve", held, "--port", "0"], environment)
  const [, url] = await command.wrote(/at (http:\S+)/)
  await fetch(`${url}/agents/holder/sessions/s1/messages?wait=false`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ content: "Work" })
  })
  return { command, child: await childOf(command) }
}

describe("Ctrl-C in heddle", { concurrent: true }, () => {
  it("W-24: in call the first one stops softly, and nothing that a tool started is alive", async () => {
    const command = start(["call", held, "Work"], { HELD: holding() })
    const child = await childOf(command)
    assert.isTrue(isAlive(child))
    command.child.kill("SIGINT")
    const { code, stderr, stdout } = await command.ended
    assert.deepStrictEqual([code, stdout], [130, "I work. \n"])
    assert.include(stderr, "stopping")
    assert.isFalse(isAlive(child))
  })

  it("W-24: in call the second one interrupts and waits, the third one ends the process", async () => {
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

  it("W-24: in call the second one waits until what a tool started has ended", async () => {
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

  it("W-24: in serve the first one lets calls end, and exits with 0", async () => {
    const file = holding()
    const { child, command } = await serving({ HELD: file })
    command.child.kill("SIGINT")
    await command.wrote(/stopping/)
    assert.isTrue(isAlive(child))
    fs.rmSync(file)
    assert.strictEqual((await command.ended).code, 0)
    assert.isFalse(isAlive(child))
  })

  it("W-24: in serve the second one interrupts calls and waits for them", async () => {
    const { child, command } = await serving({ HELD: holding() })
    command.child.kill("SIGINT")
    await command.wrote(/stopping/)
    await apart()
    assert.isTrue(isAlive(child))
    command.child.kill("SIGINT")
    assert.strictEqual((await command.ended).code, 130)
    assert.isFalse(isAlive(child))
  })

  it("W-24: in serve the third one ends the process", async () => {
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
