/** The provider that the environment has a key for, and a scripted model where it has none. */
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import { Chat } from "heddle"
import { Anthropic, Gemini, OpenAiChat, OpenAiResponses } from "heddle/adapters"
import { Script } from "heddle/testing"

const has = (name: string) => Config.map(Config.withDefault(Config.String(name), ""), (value) => value.trim() !== "")

const scripted = Script.layer([[Script.text("Hello from a script: no key is set."), Script.finish("stop")]])

const model = Layer.unwrap(Effect.gen(function*() {
  if (yield* has("OPENAI_BASE_URL")) {
    console.log("provider: a server that speaks Chat Completions")
    return OpenAiChat.layerConfig({ model: "default" })
  }
  if (yield* has("OPENAI_API_KEY")) {
    console.log("provider: OpenAI")
    return OpenAiResponses.layerConfig({ model: "gpt-5-mini" })
  }
  if (yield* has("ANTHROPIC_API_KEY")) {
    console.log("provider: Anthropic")
    return Anthropic.layerConfig({ model: "claude-sonnet-4-5" })
  }
  if (yield* has("GEMINI_API_KEY")) {
    console.log("provider: Gemini")
    return Gemini.layerConfig({ model: "gemini-2.5-flash" })
  }
  console.log("provider: none")
  return scripted
})).pipe(Layer.provide(FetchHttpClient.layer))

const program = Chat.run("Say hello").pipe(
  Effect.map((result) => result.finalResponse?.outputText),
  Effect.catchTag("AdapterError", (error) => Effect.succeed(`${error.reason}: ${error.detail ?? error.message}`))
)

console.log(await Effect.runPromise(program.pipe(Effect.provide(model))))
