/**
 * The loops that are compared, by name and place. A sample loads no other than its own, so that none pays for the imports
 * of another.
 */
import { existsSync, readFileSync } from "node:fs"
import { join } from "node:path"
import type { Implementation } from "./loop.ts"

/** The floors and Heddle itself: nothing besides the project is needed for them. */
export const own: ReadonlyArray<string> = ["plain", "effect", "laws", "heddle", "heddleAfterTurn"]

/** The loops that others wrote. Their packages are installed in a folder of their own. */
export const peers: ReadonlyArray<string> = ["pi", "aiSdk", "effectAi", "openaiAgents", "tanstackAi", "langgraph"]

/** The one that ratios are to. */
export const floor = "plain"

/** Where a loop is written, seen from here. */
export const place = (name: string): string => own.includes(name) ? `./loops/${name}.ts` : `./peers/${name}.ts`

export const load = async (name: string): Promise<Implementation> => {
  const { implementation }: { readonly implementation: Implementation } = await import(place(name))
  return implementation
}

/** Where the packages of the peers are, and the bundler. */
export const peerFolder = join(import.meta.dirname, "peers")

/** How they get there, if they are not there yet. */
export const installCommand = "npm ci --prefix scratchpad/bench/peers"

/** Whether they are there. */
export const areInstalled = (): boolean => existsSync(join(peerFolder, "node_modules"))

/** The versions that were measured, as they are pinned. */
export const versions = (): string => {
  const { dependencies }: { readonly dependencies: Readonly<Record<string, string>> } = JSON.parse(
    readFileSync(join(peerFolder, "package.json"), "utf8")
  )
  return Object.entries(dependencies).map(([name, version]) => `${name} ${version}`).join(", ")
}
