/** Two models, the first of which is down, on LangChain. */
import { ChatOpenAI } from "@langchain/openai"
import type { Answered } from "../sideBySide.ts"

const asking =
  (options: { readonly maxRetries?: number }) => async (first: string, second: string): Promise<Answered> => {
    const at = (baseURL: string) =>
      new ChatOpenAI({ model: "m", apiKey: "k", timeout: 2000, configuration: { baseURL }, ...options })
    let said = ""
    let firstAt: number | undefined
    try {
      for await (const chunk of await at(first).withFallbacks([at(second)]).stream("Hi")) {
        if (chunk.text === "") continue
        firstAt ??= performance.now()
        said += chunk.text
      }
      return { said, firstAt }
    } catch (error) {
      return { said, firstAt, error: (error as Error).message.split("\n")[0]!.slice(0, 60) }
    }
  }

export const ask = asking({})
export const askOnce = asking({ maxRetries: 0 })
