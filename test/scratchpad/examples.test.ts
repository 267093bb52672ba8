/**
 * The programs of `scratchpad/examples`: what each prints that ends by itself and needs no argument, that each says at its
 * head what it shows, and that it is short. They run in this process; those that need one of their own are tried in
 * `examples.process.test.ts` and `ctrlC.process.test.ts`.
 */
import { assert, describe, it } from "@effect/vitest"
import * as path from "node:path"
import { format } from "node:util"
import { afterEach, vi } from "vitest"
import { readSources, root } from "../support/source.ts"

const folder = "scratchpad/examples"

afterEach(() => {
  vi.restoreAllMocks()
})

/** The lines that a program prints until it ends. */
const output = async (name: string): Promise<ReadonlyArray<string>> => {
  let printed = ""
  vi.spyOn(console, "log").mockImplementation((...words) => void (printed += `${format(...words)}\n`))
  vi.spyOn(process.stdout, "write").mockImplementation((text) => {
    printed += text
    return true
  })
  await import(path.join(root, folder, `${name}.ts`))
  return printed.split("\n")
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
  "typed-answer": [
    `so far: {"city":"Os"}`,
    `so far: {"city":"Oslo","celsius":7}`,
    "Oslo: 7 °C, take a coat",
    "no answer: output, after 2 turns"
  ],
  "workflow": ["reserved a heddle", "shipped order-7", "[ 'A heddle, from shelf 3.', 'A heddle, from shelf 3.' ]"]
}

/** Those that are started with arguments, do not end by themselves, or read the environment. */
const others = ["crash", "ctrl-c", "page", "providers", "serve", "session", "tenant", "two-processes", "workers"]

describe("scratchpad/examples", () => {
  for (const [name, expected] of Object.entries(lines)) {
    it(`the example ${name} prints its lines in order`, async () => {
      const printed = await output(name)
      const found = expected.map((line) => printed.indexOf(line))
      assert.deepStrictEqual(
        found.map((at, index) => at < 0 ? `not printed: ${expected[index]}` : ""),
        found.map(() => "")
      )
      assert.deepStrictEqual(found, found.toSorted((a, b) => a - b))
    })
  }

  it("each example is tested, says in its first comment what it shows, and has fewer than 60 lines", () => {
    const sources = readSources(folder)
    const names = sources.map(({ path: file }) => path.basename(file, ".ts"))
    assert.deepStrictEqual(names, [...Object.keys(lines), ...others].sort())
    for (const { path: file, text } of sources) {
      assert.match(text, /^\/\*\*[^]*?\.\s*\*\//, file)
      assert.isBelow(text.split("\n").length, 60, file)
    }
  })
})
