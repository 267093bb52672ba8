/** The tools that the model of a workload calls. They compute and wait, and change nothing outside of themselves. */
import type { Signal, ToolSpecification } from "./loop.ts"

/** Adds one to its argument. */
export const increment: ToolSpecification = {
  name: "increment",
  description: "Adds one to a number.",
  parameters: { number: "number" },
  body: { type: "synchronous", call: ({ number }) => ({ value: Number(number) + 1 }) }
}

/** Counts the characters of its argument. */
export const count: ToolSpecification = {
  name: "count",
  description: "Counts the characters of a text.",
  parameters: { text: "string" },
  body: { type: "synchronous", call: ({ text }) => ({ value: String(text).length }) }
}

/** Adds one to its argument, and takes as long as `body` does. */
export const slow = (body: (signal: Signal) => Promise<void>): ToolSpecification => ({
  name: "slow",
  description: "Adds one to a number, and takes its time.",
  parameters: { number: "number" },
  body: {
    type: "asynchronous",
    call: async ({ number }, signal) => {
      await body(signal)
      return { value: Number(number) + 1 }
    }
  }
})

/** Waits, or rejects as soon as its signal is aborted. */
export const pause = (millis: number) => (signal: Signal): Promise<void> =>
  new Promise((resolve, reject) => {
    if (signal?.aborted === true) return reject(signal.reason)
    const stop = (): void => {
      clearTimeout(timer)
      reject(signal?.reason)
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop)
      resolve()
    }, millis)
    signal?.addEventListener("abort", stop, { once: true })
  })
