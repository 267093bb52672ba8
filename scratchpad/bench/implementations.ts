/**
 * The loops that are compared, by name and place. A sample loads no other than its own, so that none pays for the imports
 * of another.
 */
import { join } from "node:path"
import type { Implementation } from "./loop.ts"

/** The floors and Heddle itself: nothing besides the project is needed for them. */
export const own: ReadonlyArray<string> = ["plain", "effect", "heddle", "heddleAfterTurn"]

/** The loops that others wrote. Their packages are installed in a folder of their own. */
export const peers: ReadonlyArray<string> = []

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

/** How they get there. */
export const installCommand = "npm ci --prefix scratchpad/bench/peers"
