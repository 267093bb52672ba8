/** Studio for a test run: it is built where its sources are newer than the build, so that no test serves an older one. */
import { readdirSync, rmSync, statSync } from "node:fs"
import { join, resolve } from "node:path"
import { rolldown } from "rolldown"
import { type Building, configOf } from "../../scratchpad/studio.config.ts"

const root = resolve(import.meta.dirname, "../..")
const sources = resolve(root, "src/studio")

const changedAt = (path: string): number => statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0

const isOld = (): boolean => {
  const builtAt = changedAt(join(root, "dist/studio/manifest.json"))
  const files = readdirSync(sources, { encoding: "utf8", recursive: true }).map((path) => join(sources, path))
  return [...files, join(root, "scratchpad/studio.config.ts")].some((path) => changedAt(path) > builtAt)
}

/** Builds Studio. */
export const build = async (building: Building): Promise<void> => {
  const { output, ...input } = configOf({ isQuiet: true, ...building })
  await using bundle = await rolldown(input)
  await bundle.write(output)
}

export default async (): Promise<void> => {
  if (!isOld()) return
  try {
    await build({})
  } catch (error) {
    // Only the tests that serve Studio fail.
    rmSync(join(root, "dist/studio/manifest.json"), { force: true })
    process.stderr.write(`\n!!! STUDIO IS NOT BUILT: ${error instanceof Error ? error.message : error}\n\n`)
  }
}
