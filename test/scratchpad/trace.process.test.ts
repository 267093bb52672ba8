/** `npm run trace`, for each work that it counts: the work comes to its end, and passes the files that it has to pass. */
import { assert, describe, it } from "@effect/vitest"
import { execFile } from "node:child_process"
import * as path from "node:path"
import { root } from "../support/source.ts"
import { limit } from "../support/until.ts"

/** What the trace prints, line by line. */
const trace = (...args: ReadonlyArray<string>): Promise<ReadonlyArray<string>> =>
  new Promise((resolve, reject) =>
    execFile(
      process.execPath,
      ["--conditions=source", path.join(root, "scratchpad/trace/main.ts"), ...args],
      { timeout: limit },
      (error, stdout, stderr) =>
        error === null ? resolve(stdout.trimEnd().split("\n")) : reject(new Error(`${error.message}\n${stderr}`))
    )
  )

const works = [
  ["question", "adapters/OpenAiChat.ts", "server/internal/routes.ts"],
  ["session", "internal/session/writer.ts", "server/internal/routes.ts"],
  ["approval", "ui/UiStream.ts", "adapters/OpenAiChat.ts"]
] as const

describe("scratchpad/trace", { timeout: limit }, () => {
  for (const [work, passed, other] of works) {
    it(`npm run trace counts the files of ${work}, and names its functions`, async () => {
      const lines = await trace(work, "--functions")
      const [, files, functions, calls] = /: (\d+) files, (\d+) functions, (\d+) calls$/.exec(lines.at(-1) ?? "") ?? []
      const listed = lines.filter((line) => /^\S+\.ts: \d+ functions, \d+ calls$/.test(line))
      const named = lines.flatMap((line) => /^ {2}\d+:\d+ .+: (\d+)$/.exec(line)?.[1] ?? [])
      assert.strictEqual(listed.length, Number(files))
      assert.strictEqual(named.length, Number(functions))
      assert.strictEqual(named.reduce((sum, count) => sum + Number(count), 0), Number(calls))
      assert.isTrue(listed.some((line) => line.startsWith(`${passed}:`)), passed)
      assert.isFalse(listed.some((line) => line.startsWith(`${other}:`)), other)
    })
  }

  it("npm run trace refuses unknown work", async () => {
    const message = await trace("server").then(() => "", String)
    assert.include(message, "server cannot be traced; give one of question, session, approval")
  })
})
