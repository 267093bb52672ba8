/** `heddle serve --open`: the address is opened in the browser of this machine, and served where there is none. */
import { assert, describe, it } from "@effect/vitest"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fixture, start } from "../support/command.ts"

const folder = (): string => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-open-"))

describe.skipIf(process.platform !== "linux")("heddle serve --open", () => {
  it("W-19: heddle serve --open opens the address at which it listens", async () => {
    const commands = folder()
    const opened = path.join(commands, "opened")
    const script = `#!/bin/sh\nprintf '%s' "$*" > '${opened}.new'\n/bin/mv '${opened}.new' '${opened}'\n`
    fs.writeFileSync(path.join(commands, "xdg-open"), script, { mode: 0o755 })
    const written = new Promise<void>((resolve) => {
      const watcher = fs.watch(commands, () => {
        if (!fs.existsSync(opened)) return
        watcher.close()
        resolve()
      })
    })
    const command = start(["serve", fixture("servedWeather"), "--port", "0", "--open"], { PATH: commands })
    const [, address = ""] = await command.wrote(/at (http:\S+)/)
    await written
    assert.strictEqual(fs.readFileSync(opened, "utf8"), address)
    command.child.kill("SIGINT")
    assert.strictEqual((await command.ended).code, 0)
  })

  it("W-19: without a browser heddle serve --open says so in a sentence, and serves", async () => {
    const command = start(["serve", fixture("servedWeather"), "--port", "0", "--open"], { PATH: folder() })
    const [, address = ""] = await command.wrote(/at (http:\S+)/)
    const [sentence] = await command.wrote(/^heddle: xdg-open cannot open .*$/m)
    assert.include(sentence, `xdg-open cannot open ${address}: `)
    assert.strictEqual((await fetch(`${address}/health`)).status, 200)
    command.child.kill("SIGINT")
    assert.strictEqual((await command.ended).code, 0)
  })
})
