/**
 * The same program on LangGraph JS, killed at the same kinds of boundaries by the same driver: `npm run crash --
 * --langgraph`. Its packages are installed first: `npm ci --prefix scratchpad/crash/langgraph`.
 */
import type { EveryKill } from "heddle/testing"
import { join } from "node:path"
import type { Row } from "./settings.ts"
import type { Column } from "./table.ts"

/** The folder of its packages. */
export const folder = join(import.meta.dirname, "langgraph")

const ways = [
  { version: "v1", durability: "async" },
  { version: "v1", durability: "sync" },
  { version: "v2", durability: "async" },
  { version: "v2", durability: "sync" }
]

/**
 * A row for each of its ways to run tools and to keep checkpoints, over each of its checkpointers. `node` is the Node that
 * their SQLite is built for, if it is another one than that of this process.
 */
export const rows = (options: EveryKill.Options, node = process.execPath): ReadonlyArray<Row> =>
  ["sqlite", "postgres"].flatMap((store) =>
    ways.map(({ durability, version }) => ({
      store: `LangGraph, ${store}`,
      policy: `agent ${version}, durability \`${durability}\``,
      program: join(folder, "program.ts"),
      isServed: store === "postgres",
      isHeld: false,
      options: { ...options, node, args: ["--store", store, "--version", version, "--durability", durability] }
    }))
  )

const runs = (name: string, has: (attempt: EveryKill.Attempt) => boolean): Column => [
  name,
  ({ attempts }) => attempts.filter(has).length
]

/** The columns that both have: LangGraph keeps no record of a call that starts. */
export const columns: ReadonlyArray<Column> = [
  ["kills", ({ kills }) => kills],
  runs("finished", ({ isDone }) => isDone),
  runs("`charge` twice", ({ repeats }) => repeats.some(({ name }) => name === "charge")),
  runs("a call repeated that had returned", ({ repeats }) => repeats.some(({ hadReturned }) => hadReturned)),
  ["calls repeated", ({ attempts }) => attempts.reduce((sum, { repeats }) => sum + repeats.length, 0)],
  [
    "of these with no record of the first start",
    ({ attempts }) =>
      attempts.reduce((sum, { repeats }) => sum + repeats.filter(({ why }) => why === "silent").length, 0)
  ],
  runs("a call never ran", ({ missing }) => missing.length > 0),
  runs("asked again", ({ extraAsked }) => extraAsked > 0)
]
