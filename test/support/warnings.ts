/** Collects what is written to the console as a warning or an error, anew for each test of a file. */
import { afterEach, beforeEach, vi } from "vitest"

export const warningsOfTests = (): Array<string> => {
  const warnings: Array<string> = []

  beforeEach(() => {
    warnings.length = 0
    for (const level of ["warn", "error"] as const) {
      vi.spyOn(console, level).mockImplementation((...words) => void warnings.push(words.join(" ")))
    }
  })

  afterEach(() => void vi.restoreAllMocks())
  return warnings
}
