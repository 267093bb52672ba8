/**
 * How much of the library's own code one piece of work passes. V8 counts each call of each function, from the moment at
 * which everything is imported.
 *
 * `npm run trace` counts a question, with the OpenAI Chat adapter over real HTTP on this machine. `npm run trace -- session`
 * counts the same question in a kept run. `npm run trace -- approval` counts an approval from the browser to its end, with a
 * scripted model. `--files` prints the counts by file, and `--functions` names the functions as well.
 */
import { readFileSync } from "node:fs"
import { Session as Inspector } from "node:inspector/promises"
import { fileURLToPath } from "node:url"

/** What the model says last. */
const answer = "Four degrees."

type Work = () => Promise<string | null | undefined>

/** Each work is imported alone, and is ready to be counted once it is made. */
const works: Record<string, { readonly title: string; readonly make: () => Promise<Work> }> = {
  question: {
    title: "one question, two turns, one call",
    make: async () => (await import("./question.ts")).question
  },
  session: {
    title: "the same question, kept by a session",
    make: async () => (await import("./session.ts")).session
  },
  approval: {
    title: "an approval from the browser to its end",
    make: async () => (await import("./approval.ts")).approval()
  }
}

interface Passed {
  readonly file: string
  readonly functions: ReadonlyMap<string, number>
}

const root = new URL("../../src/", import.meta.url).href

const passed = async (work: Work): Promise<ReadonlyArray<Passed>> => {
  const inspector = new Inspector()
  inspector.connect()
  await inspector.post("Profiler.enable")
  await inspector.post("Profiler.startPreciseCoverage", { callCount: true, detailed: false })
  const text = await work()
  const { result } = await inspector.post("Profiler.takePreciseCoverage")
  inspector.disconnect()
  if (text !== answer) throw new Error(`the run came to ${JSON.stringify(text)}`)
  return result.filter(({ url }) => url.startsWith(root)).flatMap(({ functions, url }) => {
    const source = readFileSync(new URL(url), "utf8")
    const counts = new Map<string, number>()
    for (const { functionName, ranges: [range] } of functions) {
      // A module's own code has run before the count began, but V8 names it when it is the one range that it knows.
      if (range === undefined || range.count === 0 || range.startOffset === 0) continue
      // Types are stripped in place, so that an offset is that of the file.
      const lines = source.slice(0, range.startOffset).split("\n")
      const position = `${lines.length}:${lines.at(-1)!.length + 1}`
      counts.set(`${position} ${functionName === "" ? "(anonymous)" : functionName}`, range.count)
    }
    return counts.size === 0 ? [] : [{ file: fileURLToPath(url).slice(fileURLToPath(root).length), functions: counts }]
  })
}

const sum = (counts: Iterable<number>): number => [...counts].reduce((total, count) => total + count, 0)

const asked = process.argv.slice(2)
const name = asked.find((argument) => !argument.startsWith("--")) ?? "question"
const work = works[name]
if (work === undefined) throw new Error(`${name} cannot be traced; give one of ${Object.keys(works).join(", ")}`)
const files = await passed(await work.make())

const isDetailed = asked.includes("--functions")
const lines: Array<string> = []
if (isDetailed || asked.includes("--files")) {
  for (const { file, functions } of [...files].sort((one, other) => one.file < other.file ? -1 : 1)) {
    lines.push(`${file}: ${functions.size} functions, ${sum(functions.values())} calls`)
    if (isDetailed) { for (const [name, count] of functions) lines.push(`  ${name}: ${count}`) }
  }
}
const functions = sum(files.map((file) => file.functions.size))
const calls = sum(files.flatMap((file) => [...file.functions.values()]))
lines.push(`${work.title}: ${files.length} files, ${functions} functions, ${calls} calls`, "")
// A server and its clients keep the process alive.
process.stdout.write(lines.join("\n"), () => process.exit())
