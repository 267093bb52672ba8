/**
 * Holds the pages, the changelog and the packed files to what is there: every name that a page gives exists, and every link
 * leads somewhere where the package is installed.
 */
import { assert, beforeAll, describe, expect, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { Chat, type Event, Step, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import { execFileSync, spawnSync } from "node:child_process"
import * as fs from "node:fs"
import * as path from "node:path"
import { parseSync } from "oxc-parser"
import { settings, usageMessage } from "../../scratchpad/crash/settings.ts"
import { linksIn, repository, targetOf } from "../support/links.ts"
import { appr, chatOf, type ChatOptions, echo, start, type StepOptions } from "../support/scenarios.ts"
import { lineAt, readSource, readSources, root, type SourceText } from "../support/source.ts"

const sources = readSources("src")
const guides = fs.readdirSync(path.join(root, "docs")).filter((name) => name.endsWith(".md"))
const pages = ["README.md", "CHANGELOG.md", ...guides.map((name) => `docs/${name}`)].map(readSource)

const { version } = JSON.parse(readSource("package.json").text) as { readonly version: string }

/** The exports of each public module, types included. */
const exported: ReadonlyMap<string, ReadonlySet<string>> = new Map(
  sources.flatMap(({ path, text }) => {
    const name = /^src\/(?:\w+\/)?([A-Z]\w*)\.ts$/.exec(path)?.[1]
    if (name === undefined) return []
    const { staticExports } = parseSync(path, text, { sourceType: "module" }).module
    const names = staticExports.flatMap(({ entries }) => entries.flatMap(({ exportName }) => exportName.name ?? []))
    return [[name, new Set(names)] as const]
  })
)

/** The options in the tables of `options.md`, which `fields.test.ts` compares with the types. */
const optionsOf = (page: string): ReadonlySet<string> =>
  new Set(Array.from(page.matchAll(/\| `(\w+(?:\.\w+)+)`\s*\|$/gm), ([, name]) => name!))

const options = optionsOf(readSource("docs/options.md").text)

/** The methods of the one module whose functions belong to a service. */
const clientMethods = new Set(
  Array.from(readSource("src/cluster/SessionClient.ts").text.matchAll(/^ {2}readonly (\w+):/gm), ([, name]) => name!)
)

const isFunction = (module: string, name: string): boolean =>
  exported.get(module)?.has(name) === true || (module === "SessionClient" && clientMethods.has(name))

/** The names of a page in the form `Module.name` that are no export, no option, and no option of a function. */
const unknownIn = ({ path, text }: SourceText): ReadonlyArray<string> =>
  Array.from(text.matchAll(/`([A-Z]\w*)\.(\w+)((?:\.\w+)*)/g)).flatMap(
    ({ 0: whole, 1: module, 2: name, 3: rest, index }) => {
      if (!exported.has(module!)) return []
      const full = `${module}.${name}${rest}`
      const isKnown = options.has(full)
        ? rest === "" || options.has(`${module}.${name}`) || isFunction(module!, name!)
        : isFunction(module!, name!)
      return isKnown ? [] : [`${path}:${lineAt(text, index)} ${whole.slice(1)}`]
    }
  )

const numbers = ["sixteen", "seventeen", "eighteen", "nineteen", "twenty"]

describe("pages", () => {
  it("N-34: every `Module.name` on a page is an export or an option", () => {
    assert.isAbove(options.size, 100)
    assert.deepStrictEqual(pages.flatMap(unknownIn), [])
  })

  it("N-34: a name that does not exist is found", () => {
    const names = ["Limits.after", "Session.term", "Tool.opts", "Chat.run", "Session.claim.term", "Effect.runPromise"]
    const text = names.map((name) => `\`${name}\``).join("\n")
    assert.deepStrictEqual(unknownIn({ path: "docs/page.md", text }), [
      "docs/page.md:1 Limits.after",
      "docs/page.md:2 Session.term",
      "docs/page.md:3 Tool.opts"
    ])
  })

  it("N-34: the changelog has one version, the package's version, in at most 55 lines", () => {
    const { text } = readSource("CHANGELOG.md")
    assert.deepStrictEqual(Array.from(text.matchAll(/^## (.*)$/gm), ([, title]) => title), [
      `${version}, first release`
    ])
    assert.isAtMost(text.split("\n").length, 55)
  })

  it("N-34: the changelog counts the existing examples, and docs/README lists the examples", () => {
    const programs = fs.readdirSync(path.join(root, "scratchpad/examples")).map((name) => name.replace(/\.ts$/, ""))
    assert.include(readSource("CHANGELOG.md").text, `has ${numbers[programs.length - 16]}\n[programs]`)
    const { text } = readSource("docs/README.md")
    const listed = Array.from(text.slice(text.indexOf("## Examples")).matchAll(/^\| `([\w-]+)`/gm), ([, name]) => name!)
    assert.deepStrictEqual(listed.toSorted(), programs.toSorted())
  })
})

/** The guides to sessions that outlive their processes, with the report on kills. */
const surviving = ["sessions", "crashes", "promises", "workers", "running", "cluster", "durable"].map((name) =>
  `docs/${name}.md`
)

/** The sentences of eight words and more of a page, outside of code and tables. */
const sentencesOf = ({ text }: SourceText): ReadonlyArray<string> =>
  text.replaceAll(/```[^]*?```|^\|.*$|^#.*$/gm, "\n\n").split(/\n\s*- |\n\s*\n/).flatMap((paragraph) =>
    paragraph.replaceAll(/\[([^\]]*)\]\([^)]*\)/g, "$1").replaceAll(/[*_`]+/g, "").replaceAll(/\s+/g, " ").split(
      /(?<=[.;:?]) /
    )
  ).map((sentence) => sentence.trim().toLowerCase()).filter((sentence) =>
    sentence.split(" ").length >= 8 && !sentence.startsWith("the examples on this page share")
  )

const repeatedIn = (texts: ReadonlyArray<SourceText>): ReadonlyArray<string> => {
  const all = texts.flatMap(sentencesOf)
  return all.filter((sentence, index) => all.indexOf(sentence) !== index)
}

describe("guides", () => {
  it("the guides to sessions never say a sentence twice", () => {
    const texts = [...surviving, "scratchpad/crash/RESULTS.md"].map(readSource)
    assert.isAbove(texts.flatMap(sentencesOf).length, 200)
    assert.deepStrictEqual(repeatedIn(texts), [])
    const [once, twice] = [
      "A claim is kept until its term is over.",
      "A claim is [kept](a.md)\nuntil its term is _over_."
    ]
    assert.strictEqual(repeatedIn([{ path: "a.md", text: `${once}\n\n- ${twice}` }]).length, 1)
  })

  it("only workers.md explains a frozen owner, and elsewhere the word is a link", () => {
    const places = surviving.map(readSource).flatMap(({ path, text }) =>
      Array.from(
        text.replaceAll(/\[[^\]]*\]\([^)]*#an-owner-that-was-frozen\)/g, "").matchAll(/^.*\b(?:frozen|freez).*$/gm),
        ([line]) => `${path} ${line}`
      )
    )
    assert.deepStrictEqual(places.filter((place) => !/^docs\/workers\.md|^docs\/cluster\.md \|/.test(place)), [])
  })

  it("crashes.md has at most 170 lines", () => {
    assert.isAtMost(readSource("docs/crashes.md").text.split("\n").length, 170)
  })

  it("benchmarks.md names the measured versions", () => {
    const { dependencies } = JSON.parse(readSource("scratchpad/bench/peers/package.json").text) as {
      readonly dependencies: Readonly<Record<string, string>>
    }
    const { text } = readSource("docs/benchmarks.md")
    const named = Array.from(
      text.replaceAll("\n", " ").matchAll(/ (\d+\.\d+\.\d+) \(`([^`]+)`\)/g),
      ([, version, name]) => [name!, version!]
    )
    assert.isAtLeast(named.length, 5)
    assert.deepStrictEqual(named.map(([name]) => [name, dependencies[name!]]), named)
  })
})

describe("the rows of the contract", () => {
  const { finish, text, toolCall } = Script
  const callEcho = [toolCall("c0", "echo", { x: 1 }), finish("tool_calls")]
  const done = [text("done"), finish("stop")]
  const mixed = [toolCall("a", "echo", { x: 1 }), toolCall("m", "appr", { y: 2 }), finish("tool_calls")]

  const defectOf = (effect: Effect.Effect<unknown, unknown>) =>
    Effect.map(
      Effect.exit(effect),
      (exit) => `the defect \`${Exit.isFailure(exit) ? (Cause.squash(exit.cause) as Error).message : ""}\``
    )

  const ended = ({ outcome }: Event.ChatResult) => {
    const { stepIndex, ...others } = outcome as { readonly _tag: string; readonly stepIndex: number }
    const isAlone = Object.keys(others).length === 1
    return `\`${outcome._tag}\` with \`stepIndex: ${stepIndex}\`${isAlone ? "" : " and more"}`
  }

  /** A run for each row, and the words in which the row has to state what came of it. */
  const rows: Readonly<Record<string, Effect.Effect<ReadonlyArray<string>, unknown>>> = {
    "B-01": Effect.map(
      defectOf(ToolRunner.run([], [], { onToolError: ((one: unknown) => Effect.succeed(one)) as never })),
      (defect) => [defect]
    ),
    "C-03": Effect.gen(function*() {
      const model = yield* Script.make([done])
      const defect = yield* defectOf(Effect.provide(Chat.run(start, { maxTurns: 0 } as ChatOptions), model.layer))
      return [defect, (yield* model.opens) === 0 ? "no model is asked" : "a model is asked"]
    }),
    "C-05": Effect.gen(function*() {
      const { result } = yield* chatOf([callEcho, done], { tools: [echo], haltWhen: () => true, maxTurns: 1 })
      return [ended(result), `\`haltedReason\` is \`${result.haltedReason}\``]
    }),
    "C-15": Effect.gen(function*() {
      const { events, result } = yield* chatOf([callEcho, done], { tools: [echo], mode: "manual" })
      assert.isFalse(events.some(({ _tag }) => _tag === "ToolExecutionStarted"))
      assert.strictEqual(result.finalResponse?.toolCalls.length, 1)
      return [`${ended(result)} alone`, "the call is in `finalResponse`", "nothing runs"]
    }),
    "C-19": Effect.gen(function*() {
      const { events, result } = yield* chatOf([mixed], { tools: [echo, appr], mode: "manual" })
      assert.isFalse(events.some(({ _tag }) => _tag === "ToolExecutionStarted"))
      assert.strictEqual(result.finalResponse?.toolCalls.length, 2)
      return [`${ended(result)} alone`, "both calls are in `finalResponse`", "nothing runs"]
    }),
    "P-22": Effect.gen(function*() {
      const model = yield* Script.make([done])
      const options = { requestId: "r", sessionId: "s", maxTurns: 3, toolTimeout: 10, temperature: 0.5 } as StepOptions
      yield* Effect.provide(Step.run("go", options), model.layer)
      const [request] = yield* model.requests
      assert.deepStrictEqual(Object.keys(request!).toSorted(), ["messages", "run", "temperature", "tools"])
      assert.deepStrictEqual(Object.keys(request!.run!).toSorted(), ["requestId", "sessionId", "stepIndex"])
      return ["the ids alone, in `run` beside `stepIndex`", "sampling parameters are in it"]
    })
  }

  for (const [id, run] of Object.entries(rows)) {
    it.effect(`N-34: the row of ${id} agrees with the code`, () =>
      Effect.gen(function*() {
        const row = readSource("docs/contract.md").text.split("\n").find((line) => line.startsWith(`| ${id} |`))
        for (const words of yield* run) assert.include(row, words)
      }))
  }
})

describe("the package", () => {
  let packed: ReadonlySet<string>

  beforeAll(() => {
    const printed = execFileSync("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], {
      cwd: root,
      encoding: "utf8"
    })
    const [report] = JSON.parse(printed) as ReadonlyArray<{ readonly files: ReadonlyArray<{ readonly path: string }> }>
    packed = new Set(report!.files.map(({ path }) => path))
  })

  /** The links of a page that lead to a file that is not packed. */
  const deadIn = (page: SourceText): ReadonlyArray<string> =>
    linksIn(page).filter(({ target }) => !target.startsWith(repository) && !packed.has(targetOf(page.path, target)[0]))
      .map(({ place, target }) => `${place} ${target}`)

  it("N-35: the package has every page and the index of pages", () => {
    const missing = ["README.md", "CHANGELOG.md", "docs/llms.txt", ...guides.map((name) => `docs/${name}`)]
      .filter((file) => !packed.has(file))
    assert.deepStrictEqual(missing, [])
  })

  it("N-35: links of packed pages lead to packed files, or to the repository by address", () => {
    assert.deepStrictEqual(pages.flatMap(deadIn), [])
    const text = "[a](tools.md) [b](../CONTRIBUTING.md) [c](../src/Tool.ts#L1) [d](#a)"
    assert.deepStrictEqual(deadIn({ path: "docs/page.md", text }), [
      "docs/page.md:1 ../CONTRIBUTING.md",
      "docs/page.md:1 #a"
    ])
  })

  it("N-35: llms.txt lists each page with its question from docs/README, and -u updates the file", async () => {
    const { text } = readSource("docs/README.md")
    const rows = Array.from(text.matchAll(/^\| \[([^\]`]+)\]\((\w[\w-]*\.md)\)\s*\| (.*?)\s*\|$/gm))
    assert.deepStrictEqual(rows.map(([, , file]) => file!).toSorted(), guides.filter((name) => name !== "README.md"))
    const [, summary = ""] = /^# Heddle\n\n([^]*?)\n\n/.exec(readSource("README.md").text) ?? []
    const links = (isWanted: (index: number) => boolean) =>
      rows.filter(({ index }) => isWanted(index)).map(([, name, file, says]) => `- [${name}](${file}): ${says}`).join(
        "\n"
      )
    const reference = text.indexOf("| Reference")
    const wanted = [
      "# Heddle",
      summary.replaceAll("\n", " ").replaceAll(/\[([^\]]+)\]\([^)]*\)/g, "$1").replace(/^/, "> "),
      "The pages are Markdown, beside this file. Their TypeScript examples are run and type-checked by a test.",
      `## Guides\n\n${links((index) => index < reference)}`,
      `## Reference\n\n${
        links((index) => index > reference)
      }\n- [Modules and examples](README.md): what each module is for`,
      "## Optional\n\n- [Changelog](../CHANGELOG.md): what changed for users"
    ].join("\n\n")
    await expect(`${wanted}\n`).toMatchFileSnapshot("../../docs/llms.txt")
  })

  it("N-36: README and quickstart.md say that nothing is published yet, and how to use a clone", () => {
    const [, install = ""] = /npm install heddle effect\n```\n\n([^]*?)\n\n```ts/.exec(readSource("README.md").text) ??
      []
    assert.strictEqual(
      install.replaceAll("\n", " "),
      "Nothing is published yet: until the first release, run `npm ci && npm pack` in a clone of the repository, and "
        + `\`npm install <clone>/heddle-${version}.tgz effect@4\` in your package.`
    )
    assert.include(readSource("docs/quickstart.md").text, "Until the first release this installs nothing")
  })

  it("N-37: testing.md tests a tool with approval, and providers.md uses the tools of an MCP server", () => {
    const testing = readSource("docs/testing.md").text
    assert.include(testing, "## A tool that asks for an approval")
    for (const part of ["Session.start", "suspensions", "Session.approve", "Session.deny", "Session.continue"]) {
      assert.include(
        testing.slice(testing.indexOf("## A tool that asks for an approval"), testing.indexOf("## Time")),
        part
      )
    }
    const providers = readSource("docs/providers.md").text
    assert.include(providers, "The tools of an MCP server work like any others.")
    for (const part of ["McpClient.layerHttp", "McpClient.layerStdio", "McpClient.toolkit", "EffectAi.tools"]) {
      assert.include(providers.slice(providers.indexOf("### MCP")), part)
    }
  })
})

describe("npm run crash", () => {
  const main = path.join(root, "scratchpad/crash/main.ts")
  const run = (...command: ReadonlyArray<string>) =>
    spawnSync(process.execPath, ["--conditions=source", main, ...command], { encoding: "utf8" })

  it("N-34: a wrong option of npm run crash prints one line that says what would be right", () => {
    const { status, stderr } = run("leave", "--times", "0")
    assert.deepStrictEqual([status, stderr], [2, "--times is a number from 1 on; got: 0\n"])
    const messageOf = (...args: ReadonlyArray<string>): string | undefined => {
      try {
        settings(args)
        return undefined
      } catch (error) {
        return usageMessage(error)
      }
    }
    const stores = "sqlite, postgres, sqlite-workers, postgres-workers, cluster"
    assert.strictEqual(messageOf("--store", "paper"), `--store is one of ${stores}; got: paper`)
    assert.strictEqual(messageOf("--limit", "no"), "--limit is a number from 1 on; got: no")
    assert.include(messageOf("--nothing"), "Unknown option '--nothing'")
    assert.isUndefined(usageMessage(new TypeError("a defect")))
  })
})
