/** The command as a process: what it refuses, one question, and the sessions that it keeps. */
import { assert, describe, it } from "@effect/vitest"
import * as fs from "node:fs"
import * as http from "node:http"
import type { AddressInfo } from "node:net"
import * as os from "node:os"
import * as path from "node:path"
import { fixture, run, start } from "../support/command.ts"

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "heddle-command-"))

/** A module of these lines. */
const moduleOf = (name: string, ...lines: ReadonlyArray<string>): string => {
  const file = path.join(folder, name)
  fs.writeFileSync(file, lines.join("\n"))
  return file
}

const weather = fixture("servedWeather")

/** Arguments that are refused, with the sentence. */
const refused: ReadonlyArray<readonly [what: string, args: ReadonlyArray<string>, sentence: RegExp]> = [
  ["no command", [], /^heddle: name a command: serve, call or sessions$/],
  ["an unknown command", ["servee"], /^heddle: .*servee.*\(see --help\)$/],
  ["a module that does not exist", ["serve", "./nowhere.ts"], /^heddle: there is no file \.\/nowhere\.ts$/],
  ["a package that does not exist", ["serve", "nowhere-at-all"], /^heddle: nowhere-at-all cannot be loaded: .+$/],
  [
    "a module that throws",
    ["serve", moduleOf("throws.mjs", "throw new Error('no key')")],
    /^heddle: .*throws\.mjs cannot be loaded: no key$/
  ],
  [
    "a module without a default export",
    ["call", moduleOf("named.mjs", "export const agents = []"), "Hi"],
    /^heddle: .*named\.mjs has no default export; it needs: export default Server\.define\(.*$/
  ],
  [
    "a default export that is no definition",
    ["serve", moduleOf("other.mjs", "export default { agents: [] }")],
    /^heddle: the default export of .*other\.mjs is not a server definition; it needs: .*$/
  ],
  [
    "a port that is none",
    ["serve", weather, "--port", "70000"],
    /^heddle: .*a port must be a number from 0 to 65535.*$/
  ],
  [
    "an address that others reach without authorize",
    ["serve", weather, "--host", "0.0.0.0"],
    /^heddle: other machines may reach --host 0\.0\.0\.0, and the module has no authorize: .*$/
  ],
  ["a store that is no file", ["call", weather, "Hi", "--store", folder], /^heddle: --store .* cannot be used: .+$/],
  [
    "an agent that does not exist",
    ["call", weather, "Hi", "--agent", "x"],
    /^heddle: the module has no agent x; it has: weather$/
  ],
  [
    "a session id with a path",
    ["call", weather, "Hi", "--session", "../x"],
    /^heddle: A session id must have 1 to 128 .*$/
  ],
  ["no text", ["call", weather], /^heddle: there is no text; give a text after the module, .* or --session ID .*$/],
  ["sessions without a store", ["sessions", weather, "list"], /^heddle: .*--store FILE$/],
  [
    "an id that is missing",
    ["sessions", weather, "show", "--store", path.join(folder, "none.db")],
    /^heddle: there is no file .*none\.db; --store names the file of the sessions$/
  ],
  [
    "O-34: a store that does not exist",
    ["sessions", weather, "list", "--store", path.join(folder, "none.db")],
    /^heddle: there is no file .*none\.db; --store names the file of the sessions$/
  ],
  [
    "O-34: a status that no session has",
    ["sessions", weather, "list", "--status", "failed", "--store", path.join(folder, "none.db")],
    /^heddle: .*failed.*idle.*error.*$/
  ],
  [
    "O-34: a setting that is missing",
    ["call", fixture("servedUnset"), "Hi"],
    /^heddle: the module's layer cannot be built: NO_SUCH_KEY: Expected string$/
  ]
]

describe("heddle on the command line", { concurrent: true }, () => {
  it("W-19: heddle refuses an invalid invocation with one sentence, and exits with 1", async () => {
    // A few at once: each is a process.
    const left = [...refused]
    const work = async (): Promise<void> => {
      for (let next = left.shift(); next !== undefined; next = left.shift()) {
        const [what, args, sentence] = next
        const { code, stderr } = await run(...args)
        assert.strictEqual(code, 1, what)
        assert.match(stderr.trimEnd(), sentence, what)
      }
    }
    await Promise.all([work(), work(), work()])
  })

  it("W-19: a used port and a layer that cannot be built are reported in one sentence", async () => {
    const server = http.createServer()
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))
    const { port } = server.address() as AddressInfo
    const used = await run("serve", weather, "--port", String(port))
    server.close()
    assert.deepStrictEqual(
      [used.code, used.stderr],
      [1, `heddle: port ${port} is in use; give another port with --port\n`]
    )
    const here = (name: string) => JSON.stringify(path.resolve(import.meta.dirname, "../../src", name))
    const unbuilt = moduleOf(
      "unbuilt.ts",
      `import { Agent, Server } from ${here("server/index.ts")}`,
      `import { Adapter } from ${here("index.ts")}`,
      `import * as Effect from ${JSON.stringify(import.meta.resolve("effect/Effect"))}`,
      `import * as Layer from ${JSON.stringify(import.meta.resolve("effect/Layer"))}`,
      "const agent = Agent.make({ name: \"a\", description: \"A\", run: () => Effect.succeed({}) })",
      "const layer = Layer.effect(Adapter.Adapter, Effect.fail(new Error(\"no key\")))",
      "export default Server.define({ agents: [agent], layer })"
    )
    const { code, stderr } = await run("serve", unbuilt, "--port", "0")
    assert.deepStrictEqual([code, stderr], [1, "heddle: the module's layer cannot be built: no key\n"])
  })

  it("W-19: without @effect/platform-node heddle says what to install, and exits with 1", async () => {
    const hooks = "import { registerHooks } from 'node:module'; registerHooks({ resolve(name, context, next) {"
      + " if (name.startsWith('@effect/platform-node')) throw new Error('not installed'); return next(name, context) } })"
    const options = { NODE_OPTIONS: `--import="data:text/javascript,${encodeURIComponent(hooks)}"` }
    const { code, stderr, stdout } = await start(["serve", weather], options).ended
    const sentence = "heddle: the command needs the package @effect/platform-node, and Node 22.19 or later: "
      + "npm install @effect/platform-node\n"
    assert.deepStrictEqual([code, stderr, stdout], [1, sentence, ""])
  })

  it("W-19: in a clone without a built Studio heddle says how to build it, and exits with 1", async () => {
    const patch = "import fs from 'node:fs/promises'; import { syncBuiltinESMExports } from 'node:module';"
      + "const { readFile } = fs; fs.readFile = (name, ...rest) => String(name).includes('dist/studio/')"
      + "? Promise.reject(new Error('no such file')) : readFile(name, ...rest); syncBuiltinESMExports()"
    const options = { NODE_OPTIONS: `--import="data:text/javascript,${encodeURIComponent(patch)}"` }
    const { code, stderr, stdout } = await start(["serve", weather, "--port", "0"], options).ended
    const sentence = "heddle: Studio is not built; build it with: npm run build\n"
    assert.deepStrictEqual([code, stderr, stdout], [1, sentence, ""])
  })

  it("O-34: on a Node without node:sqlite heddle says which Node it needs, and exits with 1", async () => {
    const options = { NODE_OPTIONS: "--import=\"data:text/javascript,process.getBuiltinModule = () => undefined\"" }
    const { code, stderr } = await start(["version"], options).ended
    assert.strictEqual(code, 1)
    assert.match(stderr, /^heddle: the command needs .* Node 22\.19 or later: this is Node .*npm install node@24.*\n$/)
  })

  it("W-22: call keeps a session, which sessions lists, shows and deletes, and stop, revoke and recover say what it lacks", async () => {
    const store = ["--store", path.join(folder, "s.db")]
    const sessions = (...args: ReadonlyArray<string>) => run("sessions", weather, ...args, ...store)
    const called = await run("call", weather, "Hello", "--session", "s1", ...store)
    assert.deepStrictEqual([called.code, called.stdout], [2, "Hello. \n"])
    assert.match(
      called.stderr,
      /> ask\n(.*\n)*\? Which city\?\nheddle: session s1 waits for an answer, and there is no terminal/
    )
    const listed = await sessions("list")
    assert.match(listed.stdout, /^s1\tweather\twait\t\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ\tHello\n$/)
    const { stdout } = await sessions("show", "s1")
    assert.match(stdout, /^status {7}awaiting_user$/m)
    assert.match(stdout, /^next {9}wait$/m)
    assert.match(stdout, /^resumptions {2}0$/m)
    assert.match(stdout, /^claim {8}none$/m)
    assert.match(stdout, /^waits {8}question: Which city\?$/m)
    assert.match(stdout, /^user {9}Hello$/m)
    const others = await run("sessions", weather, "show", "s1", ...store, "--principal", "ann")
    assert.deepStrictEqual([others.code, others.stderr], [1, "heddle: there is no session s1 of ann\n"])
    assert.strictEqual((await sessions("stop", "s1")).stdout, "no run is open\n")
    assert.strictEqual((await sessions("revoke", "s1")).stdout, "the session has no claim\n")
    const whole = await sessions("recover", "s1")
    assert.deepStrictEqual(
      [whole.code, whole.stderr],
      [1, "heddle: session s1 has nothing to recover: its status is awaiting_user\n"]
    )
    assert.strictEqual((await sessions("delete", "s1")).stdout, "the session is deleted\n")
    assert.strictEqual((await sessions("list")).stderr, "there are no sessions of local\n")
  })

  it("W-22: recover resumes a session whose run failed, and a failed run exits with 1", async () => {
    const store = ["--store", path.join(folder, "failed.db")]
    const failing = fixture("servedFailing")
    const called = await run("call", failing, "Hello", "--session", "s1", ...store)
    assert.deepStrictEqual([called.code, called.stdout], [1, "Hel\n"])
    assert.match(
      called.stderr,
      /! The connection to the model was lost\. Try again\.\nheddle: the run failed; .*recover s1/
    )
    const recovered = await run("sessions", fixture("servedAnswering"), "recover", "s1", ...store)
    assert.deepStrictEqual([recovered.code, recovered.stdout], [0, "It works again.\n"])
  })
})
