/** Workloads of kept runs on one store, once each, in a process of its own: what came out is sent to the parent. */
import * as Effect from "effect/Effect"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import type { Message } from "../sample.ts"
import type { Size } from "../workload.ts"
import { stores } from "./stores.ts"
import { workloads } from "./workloads.ts"

const [name = "", size = "full", ...wanted] = process.argv.slice(2)

const sample = async (workload: string): Promise<Message> => {
  const folder = mkdtempSync(join(tmpdir(), "heddle-bench-"))
  try {
    const store = stores[name]!(folder)
    const figures = await Effect.runPromise(workloads[workload]!.run(store, size as Size))
    return { type: "figures", loop: store.name, figures }
  } catch (error) {
    return { type: "failure", error: error instanceof Error ? error.stack ?? error.message : String(error) }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

const told = (message: Message): Promise<void> => new Promise((resolve) => process.send?.(message, () => resolve()))

for (const workload of wanted) await told(await sample(workload))
process.exit(0)
