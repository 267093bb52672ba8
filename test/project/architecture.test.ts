/**
 * Holds the sources to the rules of `support/architecture.ts`, and each rule to its word: a rule counts only because a
 * module planted to break it is found.
 */
import { assert, describe, it } from "@effect/vitest"
import * as fs from "node:fs"
import {
  namesakes,
  order,
  type Rule,
  ruleNames,
  rules,
  sessionModules,
  stableModules,
  violations
} from "../support/architecture.ts"
import { readSource, readSources, root, type SourceText } from "../support/source.ts"

const stable = stableModules(readSources("node_modules/effect/src"))

const plant = (path: string, ...lines: ReadonlyArray<string>): SourceText => ({
  path,
  text: ["/** The module. */", ...lines, ""].join("\n")
})

/** The folders below a folder of the package. */
const foldersOf = (folder: string): ReadonlyArray<string> =>
  fs.readdirSync(`${root}/${folder}`, { withFileTypes: true }).filter((entry) => entry.isDirectory())
    .map(({ name }) => name)

/** The folders of `test`: the rooms of `src` and of `src/internal`, and these. */
const roomsOfTests = new Set([
  ...foldersOf("src").filter((name) => name !== "internal"),
  ...foldersOf("src/internal"),
  "agent",
  "bench",
  "conformance",
  "fixtures",
  "laws",
  "project",
  "scratchpad",
  "support",
  "types"
])

/** Returns the path of a file of `test` that lies in none of its folders. */
const misplacedIn = ({ path }: SourceText): ReadonlyArray<string> =>
  roomsOfTests.has(/^test\/([^/]+)\//.exec(path)?.[1] ?? "") ? [] : [path]

/** For each rule, modules that break it in one line each, with what is said about them. */
const faults: Record<Rule, ReadonlyArray<readonly [source: SourceText, message: string]>> = {
  listed: [[plant("src/Stray.ts"), "Stray has no place in the order"]],
  order: [
    [plant("src/Tool.ts", "import * as Event from \"./Event.ts\""), "imports Event, which does not stand before it"],
    [
      plant("src/Tool.ts", "import type * as Event from \"./Event.ts\""),
      "imports Event, which does not stand before it"
    ],
    [
      plant("src/Tool.ts", "import { type Event } from \"./Event.ts\""),
      "imports Event, which does not stand before it"
    ],
    [
      plant("src/Tool.ts", "type Event = import(\"./Event.ts\").Event"),
      "imports Event, which does not stand before it"
    ],
    [plant("src/Tool.ts", "export * as Event from \"./Event.ts\""), "imports Event, which does not stand before it"],
    [
      plant("src/Tool.ts", "export type { Event } from \"./Event.ts\""),
      "imports Event, which does not stand before it"
    ],
    [plant("src/Tool.ts", "import * as Self from \"./Tool.ts\""), "imports Tool, which does not stand before it"],
    [plant("src/Tool.ts", "import * as Stray from \"./Stray.ts\""), "imports Stray, which does not stand before it"]
  ],
  circles: [
    [plant("src/Tool.ts", "import * as Self from \"./Tool.ts\""), "imports src/Tool.ts, which leads back to it"],
    [plant("src/Tool.ts", "import type { Any } from \"./Tool.ts\""), "imports src/Tool.ts, which leads back to it"],
    [plant("src/Tool.ts", "type Any = import(\"./Tool.ts\").Any"), "imports src/Tool.ts, which leads back to it"],
    [plant("src/Tool.ts", "export type { Any } from \"./Tool.ts\""), "imports src/Tool.ts, which leads back to it"]
  ],
  names: [
    [
      plant(
        "src/internal/ask/request.ts",
        "import * as Json from \"../json.ts\"",
        "import type * as Data from \"../json.ts\""
      ),
      "calls src/internal/json.ts Data, which is Json elsewhere"
    ],
    [
      plant(
        "src/internal/ask/request.ts",
        "import * as Json from \"../json.ts\"",
        "import * as Json from \"../telemetry.ts\""
      ),
      "calls src/internal/telemetry.ts Json, as src/internal/json.ts is called"
    ]
  ],
  rooms: [
    [plant("src/internal/pipeline.ts"), "pipeline is no room"],
    [plant("src/internal/json/text.ts"), "json is no room"],
    [plant("src/internal/utilities/text.ts"), "utilities is no room"],
    [
      plant("src/internal/ask/request.ts", "import * as Loop from \"../loop/loop.ts\""),
      "imports src/internal/loop/loop.ts, which does not stand before it"
    ],
    [
      plant("src/internal/ask/request.ts", "import type * as Stray from \"../stray.ts\""),
      "imports src/internal/stray.ts, which does not stand before it"
    ],
    [
      plant("src/internal/json.ts", "export type Tool = import(\"./declare/tool.ts\").Any"),
      "imports src/internal/declare/tool.ts, which does not stand before it"
    ]
  ],
  sessions: [
    [plant("src/internal/session/ledger.ts"), "ledger has no place in the room"],
    [
      plant("src/internal/session/state.ts", "import type * as Journals from \"./journal.ts\""),
      "imports src/internal/session/journal.ts, which does not stand before it"
    ]
  ],
  surface: [
    [
      plant("src/server/Server.ts", "import type * as Keeping from \"../internal/session/kept.ts\""),
      "imports src/internal/session/kept.ts, in place of Session or Journal"
    ],
    [
      plant("src/sql/internal/changes.ts", "export type Record = import(\"../../internal/session/records.ts\").Record"),
      "imports src/internal/session/records.ts, in place of Session or Journal"
    ],
    [
      plant("src/durable/internal/drive.ts", "export { drive } from \"../../internal/session/drive.ts\""),
      "imports src/internal/session/drive.ts, in place of Session or Journal"
    ]
  ],
  outward: [
    [plant("src/Chat.ts", "import * as Script from \"./testing/Script.ts\""), "imports src/testing/Script.ts"],
    [
      plant("src/internal/pipeline.ts", "import type * as OpenAiChat from \"../adapters/OpenAiChat.ts\""),
      "imports src/adapters/OpenAiChat.ts"
    ],
    [
      plant("src/adapters/OpenAiChat.ts", "import * as Script from \"../testing/Script.ts\""),
      "imports src/testing/Script.ts"
    ],
    [plant("src/index.ts", "export * as Script from \"./testing/Script.ts\""), "imports src/testing/Script.ts"],
    [
      plant("src/bridges/AiSdk.ts", "import * as OpenAiChat from \"../adapters/OpenAiChat.ts\""),
      "imports src/adapters/OpenAiChat.ts"
    ],
    [plant("src/Chat.ts", "import * as AiSdk from \"./bridges/AiSdk.ts\""), "imports src/bridges/AiSdk.ts"],
    [plant("src/Session.ts", "import * as Worker from \"./durable/Worker.ts\""), "imports src/durable/Worker.ts"],
    [plant("src/Session.ts", "import * as Cluster from \"./cluster/Cluster.ts\""), "imports src/cluster/Cluster.ts"],
    [
      plant("src/Chat.ts", "import * as errors from \"./adapters/internal/errors.ts\""),
      "imports src/adapters/internal/errors.ts"
    ],
    [
      plant("src/Session.ts", "import * as SessionStore from \"./sql/SessionStore.ts\""),
      "imports src/sql/SessionStore.ts"
    ],
    [
      plant("src/internal/pipeline.ts", "import type * as NodeSqlite from \"../sql/internal/nodeSqlite.ts\""),
      "imports src/sql/internal/nodeSqlite.ts"
    ],
    [
      plant("src/sql/SessionStore.ts", "import * as Script from \"../testing/Script.ts\""),
      "imports src/testing/Script.ts"
    ],
    [plant("src/Session.ts", "import * as UiStream from \"./ui/UiStream.ts\""), "imports src/ui/UiStream.ts"],
    [
      plant("src/Chat.ts", "import * as Metrics from \"./telemetry/internal/metrics.ts\""),
      "imports src/telemetry/internal/metrics.ts"
    ]
  ],
  bundled: [
    [plant("src/studio/a.ts", "import * as Event from \"../Event.ts\""), "imports src/Event.ts"],
    [
      plant("src/studio/a.ts", "import type * as Folds from \"../internal/fold/fold.ts\""),
      "imports src/internal/fold/fold.ts"
    ],
    [plant("src/studio/a.ts", "import * as Effect from \"effect/Effect\""), "imports effect/Effect"]
  ],
  pages: [
    [
      plant("src/ui/UiStream.ts", "import * as Folds from \"../internal/fold/fold.ts\""),
      "imports src/internal/fold/fold.ts"
    ]
  ],
  barrel: [
    [plant("src/testing/Script.ts", "import { Tool } from \"../index.ts\""), "imports src/index.ts"],
    [plant("src/adapters/OpenAiChat.ts", "import type { Other } from \"./index.ts\""), "imports src/adapters/index.ts"]
  ],
  index: [
    [plant("src/index.ts", "export { make } from \"./Tool.ts\""), "not export * as Name from \"./Name.ts\""],
    [
      plant("src/testing/index.ts", "export { other } from \"./EveryStep.ts\""),
      "not export * as Name from \"./Name.ts\""
    ],
    [
      plant("src/testing/index.ts", "export { everyStep as other } from \"./EveryStep.ts\""),
      "not export * as Name from \"./Name.ts\""
    ],
    [
      plant("src/testing/index.ts", "export { everyStep, other } from \"./EveryStep.ts\""),
      "not export * as Name from \"./Name.ts\""
    ],
    [plant("src/index.ts", "export * from \"./Tool.ts\""), "not export * as Name from \"./Name.ts\""],
    [plant("src/index.ts", "export * as Tools from \"./Tool.ts\""), "not export * as Name from \"./Name.ts\""],
    [plant("src/testing/index.ts", "export const answer = 42"), "not export * as Name from \"./Name.ts\""]
  ],
  stable: [
    [plant("src/Tool.ts", "import * as AiTool from \"effect/ai/Tool\""), "imports effect/ai/Tool"],
    [plant("src/Tool.ts", "import type * as Graph from \"effect/Graph\""), "imports effect/Graph"],
    [plant("src/Tool.ts", "import { Effect } from \"effect\""), "imports effect"],
    [plant("src/Session.ts", "import * as SqlClient from \"effect/sql/SqlClient\""), "imports effect/sql/SqlClient"],
    [
      plant("src/ui/AgUi.ts", "import * as HttpClient from \"effect/http/HttpClient\""),
      "imports effect/http/HttpClient"
    ],
    [plant("src/internal/sse.ts", "import * as Sse from \"effect/encoding/Sse\""), "imports effect/encoding/Sse"]
  ],
  packages: [
    [plant("src/Chat.ts", "import * as fs from \"node:fs\""), "imports node:fs"],
    [plant("src/adapters/OpenAiChat.ts", "import * as http from \"node:http\""), "imports node:http"],
    [plant("src/Session.ts", "import * as sqlite from \"node:sqlite\""), "imports node:sqlite"],
    [plant("src/sql/SqliteClient.ts", "import * as fs from \"node:fs\""), "imports node:fs"],
    [
      plant("src/sql/SessionStore.ts", "import * as Pg from \"@effect/sql-pg/PgClient\""),
      "imports @effect/sql-pg/PgClient"
    ],
    [plant("src/testing/Script.ts", "import { it } from \"@effect/vitest\""), "imports @effect/vitest"],
    [plant("src/bridges/AiSdk.ts", "import type * as Provider from \"@ai-sdk/provider\""), "imports @ai-sdk/provider"],
    [plant("src/Chat.ts", "import * as effective from \"effective\""), "imports effective"]
  ],
  runtime: [
    [plant("src/Chat.ts", "const run = async () => 1"), "async function"],
    [plant("src/Chat.ts", "export async function* run() {}"), "async function"],
    [plant("src/Chat.ts", "const value = await run"), "await"],
    [plant("src/Chat.ts", "for await (const value of values) {}"), "await"],
    [plant("src/Chat.ts", "const now = Date.now()"), "Date"],
    [plant("src/Chat.ts", "const date = { Date }"), "Date"],
    [plant("src/Chat.ts", "const at = (date: Date) => date"), "Date"],
    [plant("src/Chat.ts", "const later = `${setTimeout(run, 1)}`"), "setTimeout"],
    [plant("src/Chat.ts", "globalThis.setTimeout(run, 1)"), "setTimeout"],
    [plant("src/internal/stop/timers.ts", "const now = Date.now()"), "Date"],
    [plant("src/internal/stop/timers.ts", "setInterval(run, 1)"), "setInterval"],
    [plant("src/Chat.ts", "const chance = Math\n  .random()"), "Math.random"],
    [plant("src/Chat.ts", "const chance = Math[\"random\"]"), "Math.random"]
  ],
  nodeless: [
    [plant("src/Session.ts", "const sqlite = process.getBuiltinModule(\"node:sqlite\")"), "process"],
    [plant("src/internal/pipeline.ts", "const version = (globalThis as { process?: object }).process"), "process"],
    [plant("src/adapters/OpenAiChat.ts", "const bytes = Buffer.from(\"\")"), "Buffer"]
  ],
  header: [
    [{ path: "src/Chat.ts", text: "export const answer = 42\n" }, "does not open with a comment"],
    [{ path: "src/internal/pipeline.ts", text: "" }, "does not open with a comment"]
  ]
}

/** The modules that the rows of a table name and link to. */
const modulesIn = (page: string): ReadonlyArray<string> =>
  [...page.matchAll(/^\| \[`(\w+)`\]\(\.\.\/src\/\1\.ts\)/gm)].map(([, name]) => name!)

describe("architecture", () => {
  const found = violations(readSources("src"), stable)

  for (const rule of ruleNames) {
    it(`rule ${rule}: ${rules[rule].demand}`, () => {
      const broken = found.filter((violation) => violation.rule === rule)
      assert.deepStrictEqual(broken.map(({ message, place }) => `${place} ${message}`), [])
    })
  }

  for (const rule of ruleNames) {
    it(`a module that breaks the rule ${rule} is found`, () => {
      assert.isNotEmpty(faults[rule])
      for (const [source, message] of faults[rule]) {
        const messages = violations([source], stable).filter((violation) => violation.rule === rule)
          .map((violation) => violation.message)
        assert.deepStrictEqual(messages, [message], source.text)
      }
    })
  }

  it("the top level has sources, tests, pages and the files that tools look for, and nothing else", () => {
    const ignored = new Set(["node_modules", "dist"])
    const names = fs.readdirSync(root).filter((name) => !name.startsWith(".") && !ignored.has(name)).sort()
    assert.deepStrictEqual(names, [
      "CHANGELOG.md",
      "CONTRIBUTING.md",
      "LICENSE",
      "README.md",
      "docs",
      "package-lock.json",
      "package.json",
      "scratchpad",
      "src",
      "test",
      "tsconfig.json",
      "vitest.config.ts"
    ])
  })

  it("no two files of src have one name, except index files", () => {
    assert.deepStrictEqual(namesakes(readSources("src")), [])
  })

  it("a file with the name of another file is found", () => {
    const paths = ["src/index.ts", "src/Tool.ts", "src/sql/index.ts", "src/internal/fold/state.ts"]
    assert.deepStrictEqual(namesakes(paths.map((path) => plant(path))), [])
    const planted = [...paths, "src/internal/session/state.ts"].map((path) => plant(path))
    assert.deepStrictEqual(namesakes(planted), [
      "src/internal/session/state.ts has the name of src/internal/fold/state.ts"
    ])
    const studio = ["src/studio/data/state.ts", "src/studio/run/state.ts"].map((path) => plant(path))
    assert.deepStrictEqual(namesakes([...planted.slice(0, 4), ...studio]), [
      "src/studio/run/state.ts has the name of src/studio/data/state.ts"
    ])
  })

  it("modules that break no rule are accepted, whatever their comments and strings say", () => {
    const sources = [
      plant("src/index.ts", "export * as Tool from \"./Tool.ts\""),
      plant(
        "src/Tool.ts",
        "import * as Schema from \"effect/Schema\"",
        "import * as TestClock from \"effect/testing/TestClock\"",
        "import * as Message from \"./Message.ts\"",
        "import * as pipeline from \"./internal/run/pipeline.ts\"",
        "// async Date setTimeout import(\"./Event.ts\") Math.random()",
        "export const text = \"async Date setTimeout(1) Math.random()\" + Schema.Date + pipeline.Date",
        "export const quoted = { Date: `setTimeout(${text}, ${Message.text})`, pattern: /Date/u }",
        "export interface Stamp { readonly Date: string; readonly setTimeout: () => void }"
      ),
      plant(
        "src/internal/run/pipeline.ts",
        "import type * as Message from \"../../Message.ts\"",
        "import * as admission from \"./admission.ts\"",
        "import * as plan from \"../decide/plan.ts\"",
        "export type Chat = import(\"../../Chat.ts\").Chat"
      ),
      plant("src/adapters/index.ts", "export * as OpenAiChat from \"./OpenAiChat.ts\""),
      plant(
        "src/adapters/OpenAiChat.ts",
        "import * as HttpClient from \"effect/http/HttpClient\"",
        "import * as Chat from \"../Chat.ts\"",
        "import * as sse from \"../internal/sse.ts\"",
        "import * as Other from \"./Other.ts\""
      ),
      plant(
        "src/bridges/EffectAi.ts",
        "import * as LanguageModel from \"effect/ai/LanguageModel\"",
        "import * as errors from \"../adapters/internal/errors.ts\"",
        "import * as reply from \"./internal/reply.ts\""
      ),
      plant(
        "src/sql/SqliteClient.ts",
        "import * as SqlClient from \"effect/sql/SqlClient\"",
        "import type { DatabaseSync } from \"node:sqlite\"",
        "import * as Session from \"../Session.ts\"",
        "import * as NodeSqlite from \"./internal/nodeSqlite.ts\"",
        "export const version = (globalThis as { process?: object }).process"
      ),
      plant("src/testing/Script.ts", "import * as fs from \"node:fs\"", "import * as Adapter from \"../Adapter.ts\"")
    ]
    assert.deepStrictEqual(violations(sources, stable), [])
  })

  it("each import of a ring is named, and no import that only leads to the ring", () => {
    const sources = [
      plant("src/Step.ts", "import * as Tool from \"./Tool.ts\""),
      plant("src/Tool.ts", "import * as tool from \"./internal/declare/tool.ts\""),
      plant("src/internal/declare/tool.ts", "import type * as Event from \"../../Event.ts\"", "import \"../json.ts\""),
      plant("src/Event.ts", "", "export type Any = import(\"./Tool.ts\").Any"),
      plant("src/internal/json.ts")
    ]
    const found = violations(sources, stable).filter(({ rule }) => rule === "circles")
    assert.deepStrictEqual(found.map(({ message, place }) => `${place} ${message}`), [
      "src/Tool.ts:2 imports src/internal/declare/tool.ts, which leads back to it",
      "src/internal/declare/tool.ts:2 imports src/Event.ts, which leads back to it",
      "src/Event.ts:3 imports src/Tool.ts, which leads back to it"
    ])
  })

  it("src/internal has at most 66 files", () => {
    assert.isAtMost(readSources("src/internal").length, 66)
  })

  it("each test lies in the folder of a room, and no test lies directly in test", () => {
    assert.deepStrictEqual(readSources("test").flatMap(misplacedIn), [])
  })

  it("a misplaced test and an unknown folder of test are found", () => {
    const places = ["test/Chat.test.ts", "test/internal/Timers.test.ts", "test/rooms/support/a.ts"]
    const housed = ["test/loop/Chat.test.ts", "test/adapters/internal/sse.test.ts", "test/support/until.ts"]
    assert.deepStrictEqual([...places, ...housed].map((path) => plant(path)).flatMap(misplacedIn), places)
  })

  it("a violation names its line", () => {
    const places = violations([plant("src/Chat.ts", "", "const now = Date.now()")], stable).map(({ place }) => place)
    assert.deepStrictEqual(places, ["src/Chat.ts:3"])
  })

  it("stable modules are read from the installed effect", () => {
    for (const name of ["Effect", "Stream", "Schema", "Scope", "ManagedRuntime", "testing/TestClock"]) {
      assert.isTrue(stable.has(`effect/${name}`), name)
    }
    for (const name of ["Graph", "TextDiff", "ai/Tool", "http/HttpClient", "index", "testing/index", "internal/core"]) {
      assert.isFalse(stable.has(`effect/${name}`), name)
    }
    assert.isAbove(stable.size, 100)
  })

  it("docs/README lists exactly the modules of src, in their order", () => {
    const modules = readSources("src").map(({ path }) => /^src\/(\w+)\.ts$/.exec(path)?.[1])
      .filter((name) => name !== undefined && name !== "index")
    const listed = modulesIn(readSource("docs/README.md").text)
    assert.deepStrictEqual(listed.toSorted(), modules.toSorted())
    assert.deepStrictEqual(listed, order.filter((name) => listed.includes(name)))
  })

  it("only a table row of docs/README that names a module and links to it counts as listed", () => {
    const list =
      "| [`Message`](../src/Message.ts) | messages |\n| [`Adapter`](../src/Adapter.ts) (service) | requests |"
    assert.deepStrictEqual(modulesIn(`${list}\n[\`Tool\`](../src/Tool.ts) in words`), ["Message", "Adapter"])
    assert.deepStrictEqual(modulesIn("| [`Message`](../src/Response.ts) | messages |"), [])
  })

  it("every file and part named in Where to look of architecture.md exists", () => {
    const { text } = readSource("docs/architecture.md")
    const rows = text.slice(text.indexOf("## Where to look"), text.indexOf("## Words")).split("\n").filter((line) =>
      line.startsWith("| ")
    )
    const named = rows.flatMap((row) =>
      Array.from(row.split(" | ")[1]!.matchAll(/`(\w+\/[\w/]+)`(?: \(([^)]*)\))?/g), ([, file, parts = ""]) => ({
        file: file!,
        parts: Array.from(parts.matchAll(/`(?:\w+\.)?(\w+)`/g), ([, part]) => part!)
      }))
    )
    assert.isAbove(named.length, 20)
    const sources = new Map(readSources("src").map(({ path, text }) => [path, text]))
    const missing = named.flatMap(({ file, parts }) => {
      const found = sources.get(`src/internal/${file}.ts`) ?? sources.get(`src/${file}.ts`)
      if (found === undefined) return file === "src/adapters/internal" ? [] : [file]
      return parts.filter((part) => !new RegExp(`\\b${part}\\b`).test(found)).map((part) => `${file} ${part}`)
    })
    assert.deepStrictEqual(missing, [])
  })

  it("architecture.md lists each module of the room session in its order", () => {
    const rows = readSource("docs/architecture.md").text.matchAll(/^\| `(\w+)` +\|/gm)
    const listed = Array.from(rows, ([, name]) => name!)
    const start = listed.indexOf("data")
    assert.deepStrictEqual(listed.slice(start, start + sessionModules.length), [...sessionModules])
  })

  it("the order lists each of its 22 modules once", () => {
    assert.strictEqual(new Set(order).size, order.length)
    assert.strictEqual(order.length, 22)
  })
})
