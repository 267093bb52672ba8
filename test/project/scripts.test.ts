/** The commands of the README: what they say where they cannot run. */
import { assert, describe, it } from "@effect/vitest"
import { spawnSync } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"

const root = path.join(import.meta.dirname, "../..")
const needs = path.join(root, "scratchpad/needs.cjs")

/** Runs the check as a Node of another version would. */
const under = (version: string) => {
  const program = `Object.defineProperty(process, "versions", { value: { node: "${version}" } }); require(${
    JSON.stringify(needs)
  })`
  const { status, stderr } = spawnSync(process.execPath, ["--eval", program], { encoding: "utf8" })
  return { status, stderr }
}

describe("a script of the README", () => {
  it("O-36: a script names the missing Node version and the remedy on an older Node, and runs on a newer Node", () => {
    for (const version of ["18.20.0", "20.20.2", "22.17.1"]) {
      const { status, stderr } = under(version)
      assert.strictEqual(status, 1)
      assert.include(stderr, `runs on Node ${version}`)
      assert.match(stderr, /\n {2}npm rebuild node --ignore-scripts=false\n$/)
      assert.notMatch(stderr, /^ +at /m)
    }
    for (const version of ["22.18.0", "22.19.0", "24.0.0", "26.1.0"]) {
      assert.deepStrictEqual(under(version), { status: 0, stderr: "" })
    }
  })

  it("O-36: each documented one-line command checks the Node version first", () => {
    const { scripts } = JSON.parse(fs.readFileSync(path.join(root, "package.json"), "utf8"))
    const readme = fs.readFileSync(path.join(root, "README.md"), "utf8")
    const lines = [...readme.matchAll(/^npm ci && npm (?:run )?(\w+)/gm)].map(([, name]) => name!)
    assert.includeMembers(lines, ["serve", "start", "test"])
    for (const name of lines) {
      assert.match(scripts[name], /^node (--require )?(\.\/)?scratchpad\/needs\.cjs /, name)
    }
  })

  it("O-36: npm run example lists the examples without an existing file, and runs any existing file", () => {
    const example = (...args: ReadonlyArray<string>) => {
      const { status, stderr, stdout } = spawnSync("npm", ["run", "--silent", "example", ...args], {
        cwd: root,
        encoding: "utf8"
      })
      return { status, stderr, stdout }
    }
    const list = fs.readdirSync(path.join(root, "scratchpad/examples")).filter((name) => name.endsWith(".ts"))
    for (const args of [[], ["scratchpad/examples/nowhere.ts"]]) {
      const { status, stderr } = example(...args)
      assert.strictEqual(status, 1)
      assert.match(stderr, /Usage: npm run example <file>/)
      for (const name of list) assert.include(stderr, `  scratchpad/examples/${name}\n`)
      for (const name of args) assert.include(stderr, `There is no file ${name}. `)
    }
    const program = path.join(fs.mkdtempSync(path.join(os.tmpdir(), "heddle-example-")), "program.mjs")
    fs.writeFileSync(program, "console.log(JSON.stringify(process.argv.slice(1))); process.exitCode = 3")
    const ran = example(program, "--", "--one", "two")
    assert.deepStrictEqual([ran.status, JSON.parse(ran.stdout)], [3, [program, "--one", "two"]])
  })
})
