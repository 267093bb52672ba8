/** The agent as a process, once. `*.process.test.ts` of this folder have the rest of what it does as one. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import * as Agent from "../support/agent.ts"
import { agent } from "../support/process.ts"
import { limit } from "../support/until.ts"

describe("the agent as a process", { timeout: limit }, () => {
  layer(Agent.services, { excludeTestServices: true })((it) => {
    it.effect("main job: the agent answers a question about a folder with a correct path:line", () =>
      Effect.gen(function*() {
        const root = yield* Agent.folder({
          "docs/history.md": "The lighthouse was built long ago.\n",
          "lib/lamp.rb": "# frozen\n\ndef ignite(lamp)\n  lamp.wick.burn\nend\n"
        })
        const ended = yield* agent(["Who", "ignites the lamp?", "--dir", root])
        assert.deepStrictEqual([ended.code, ended.stderr], [0, ""])
        assert.match(ended.stdout, /^The best match is lib\/lamp\.rb:3:\n\n {2}3 {2}def ignite\(lamp\)$/m)
        assert.include(ended.stdout, "no language model")
        assert.match(ended.stdout, /^ [» ]✓ search_text {2}Who ignites the lamp\? - 1 match in 2 files \(.+ m?s\)$/m)
        assert.match(ended.stdout, /^ {2}[» ]✓ read_file lib\/lamp\.rb:1 +█+ *│? +.+ m?s$/m)
        assert.match(ended.stdout, /\nCompleted · 3 turns · 4 calls · .* · [\d,]+ words in, \d+ out\n/)
        assert.match(
          ended.stdout,
          /\nNot written, .*\(--notes FOLDER\):\n {2}- "Who ignites the lamp\?": lib\/lamp\.rb:3\n$/
        )
        const fs = yield* FileSystem.FileSystem
        assert.deepStrictEqual((yield* fs.readDirectory(root)).toSorted(), ["docs", "lib"])
        assert.notInclude(ended.stdout, "\u001b")
      }))
  })
})
