/**
 * Workloads on one loop, once each, in a process of its own: what came out is sent to the parent. A run that is stopped may
 * leave promises behind that reject without a listener, which ends no process.
 */
import { load } from "./implementations.ts"
import type { Figures, Size } from "./workload.ts"
import { workloads } from "./workloads/index.ts"

/** What a workload came to: its figures, or why it has none. */
export type Message =
  | { readonly type: "figures"; readonly loop: string; readonly figures: Figures }
  | { readonly type: "failure"; readonly error: string }

process.on("unhandledRejection", () => {})

const sample = async (name: string, workload: string, size: Size): Promise<Message> => {
  const implementation = await load(name)
  const figures = await workloads[workload]!.run(implementation, size)
  const memory = process.resourceUsage().maxRSS / 1_024
  return { type: "figures", loop: implementation.name, figures: { ...figures, memory } }
}

/** The message and where it comes from. */
const failure = (error: unknown): Message => ({
  type: "failure",
  error: error instanceof Error ? (error.stack ?? error.message).split("\n").slice(0, 3).join("\n") : String(error)
})

const told = (message: Message): Promise<void> => new Promise((resolve) => process.send?.(message, () => resolve()))

const [name = "", size = "full", ...wanted] = process.argv.slice(2)
for (const workload of wanted) await told(await sample(name, workload, size as Size).catch(failure))
process.exit(0)
