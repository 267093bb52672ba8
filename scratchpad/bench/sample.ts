/**
 * One workload on one loop, once, in a process of its own: what came out is sent to the parent. A run that is stopped may
 * leave promises behind that reject when nobody listens any more; that is counted and does not end the process.
 */
import { load } from "./implementations.ts"
import type { Figures, Size } from "./workload.ts"
import { workloads } from "./workloads/index.ts"

/** What a sample tells its parent. */
export type Message =
  | { readonly type: "figures"; readonly loop: string; readonly figures: Figures }
  | { readonly type: "failure"; readonly error: string }

const [implementationName = "", workloadName = "", size = "full"] = process.argv.slice(2)

process.on("unhandledRejection", () => {})

const sample = async (): Promise<Message> => {
  const implementation = await load(implementationName)
  const figures = await workloads[workloadName]!.run(implementation, size as Size)
  const memory = process.resourceUsage().maxRSS / 1_024
  return { type: "figures", loop: implementation.name, figures: { ...figures, memory } }
}

const told = await sample().catch((error: unknown): Message => ({
  type: "failure",
  error: error instanceof Error ? error.stack ?? error.message : String(error)
}))
process.send?.(told, () => process.exit(0))
