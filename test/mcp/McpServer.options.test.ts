/** Options of a server of tools, all of them together: each does what it does alone, in both eras. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import { Tool } from "heddle"
import { bearer, byToken } from "../server/support/hostile.ts"
import { call, connect, eras, sendRaw, textOf } from "./support/clients.ts"
import { paying, serve } from "./support/serving.ts"

const plain = Tool.make("plain", { parameters: {}, readOnly: true, handler: () => Effect.succeed("done") })

const names = [undefined, "shop"]
const instructions = [undefined, "Sells books"]
const legacies = [undefined, true, { maxSessions: 1 }, { perPrincipal: 1 }] as const
const secrets = [undefined, "key"]

describe("options together", () => {
  for (const legacy of legacies) {
    it.live(`legacy ${JSON.stringify(legacy)}: a server works with each combination of name, instructions, secret and authorization`, () =>
      Effect.forEach(
        names,
        (name) =>
          Effect.forEach(instructions, (words) =>
            Effect.forEach(secrets, (secret) =>
              Effect.gen(function*() {
                const { paid, tool } = paying()
                const what = JSON.stringify({ name, words, secret })
                const options = {
                  authorize: byToken(),
                  hosts: ["127.0.0.1"],
                  legacy: legacy as never,
                  ...(name === undefined ? {} : { name, version: "2" }),
                  ...(words === undefined ? {} : { instructions: words }),
                  ...(secret === undefined ? {} : { secret: Redacted.make(secret) })
                }
                const url = yield* serve([plain, tool], options)
                const other = yield* serve([plain, tool], options)
                for (const era of legacy === undefined ? ["modern"] as const : eras) {
                  const client = yield* connect(url, { era, headers: bearer("ann") })
                  const { name: shown, version } = client.getServerVersion() ?? {}
                  assert.deepStrictEqual([shown, version], name === undefined ? ["heddle", "0"] : ["shop", "2"], what)
                  assert.strictEqual(client.getInstructions(), words, what)
                  // The second call, and the second list, are as the first.
                  for (const _ of [1, 2]) {
                    const { tools } = yield* Effect.promise(() => client.listTools(undefined, { cacheMode: "refresh" }))
                    assert.deepStrictEqual(tools.map(({ annotations }) => annotations), [
                      { readOnlyHint: true },
                      undefined
                    ])
                    assert.strictEqual(textOf(yield* call(client, "plain")), "done", what)
                  }
                  if (era === "modern") continue
                  const second = yield* Effect.exit(connect(url, { era, headers: bearer("ann") }))
                  assert.strictEqual(second._tag, legacy === true ? "Success" : "Failure", what)
                  const theirs = yield* Effect.exit(connect(url, { era, headers: bearer("bob") }))
                  assert.strictEqual(
                    theirs._tag,
                    JSON.stringify(legacy)?.includes("maxSessions") ? "Failure" : "Success",
                    what
                  )
                }
                const params = { name: "pay", arguments: { amount: 5 } }
                const { message } = yield* sendRaw(url, { params, headers: bearer("ann") })
                const { requestState } = message.result
                const inputResponses = { approval: { action: "accept", content: { approve: true } } }
                const answering = (at: string) =>
                  sendRaw(at, { params: { ...params, requestState, inputResponses }, headers: bearer("ann") })
                // The state itself is in the process that asked, whatever the secret.
                assert.strictEqual((yield* answering(other)).message.error?.code, -32602, what)
                assert.strictEqual((yield* answering(url)).message.result?.content[0].text, "paid 5", what)
                assert.deepStrictEqual(paid, [5], what)
              }).pipe(Effect.scoped)))
      ))
  }
})
