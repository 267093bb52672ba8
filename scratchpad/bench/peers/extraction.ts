/** An order out of a letter with two tools, on the AI SDK. */
import { createOpenAICompatible } from "@ai-sdk/openai-compatible"
import { isStepCount, Output, streamText, tool } from "ai"
import { z } from "zod"
import type { Extraction } from "../sideBySide.ts"

/** Runs the program. Its lines between the marks are counted. */
export const extract = async (baseURL: string): Promise<Extraction> => {
  const partials: Array<unknown> = []
  try {
    // begin
    const order = Output.object({
      schema: z.object({ customer: z.string(), ids: z.array(z.string()), count: z.int() })
    })
    const find = tool({ inputSchema: z.object({ title: z.string() }), execute: async () => "b7" })
    const stock = tool({ inputSchema: z.object({ id: z.string() }), execute: async () => 3 })
    const provider = createOpenAICompatible({ name: "m", apiKey: "k", baseURL, supportsStructuredOutputs: true })
    const result = streamText({
      model: provider("m"),
      prompt: "Two of Emma. Ann",
      tools: { find, stock },
      output: order,
      stopWhen: isStepCount(10),
      onError: () => {}
    })
    for await (const partial of result.partialOutputStream) partials.push(partial)
    const value = await result.output
    // end
    return { partials, value }
  } catch (error) {
    return { partials, error: (error as Error).name }
  }
}
