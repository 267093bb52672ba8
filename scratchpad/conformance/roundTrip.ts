/**
 * What has to go back after a turn: the model's own words and calls, an answer to each of them, and what a provider
 * signed, unchanged. It is looked for in the request that follows.
 */
import { type Message, Response } from "heddle"
import { isDeepStrictEqual } from "node:util"
import * as Conversation from "./conversation.ts"
import type * as Fixtures from "./fixtures.ts"

/** Every object inside a value. */
const objectsIn = (value: unknown): ReadonlyArray<Conversation.Json> => {
  if (Array.isArray(value)) return value.flatMap(objectsIn)
  return Conversation.isObject(value) ? [value, ...Object.values(value).flatMap(objectsIn)] : []
}

const isWithin = (part: Conversation.Json, whole: Conversation.Json): boolean =>
  Object.entries(part).every(([key, value]) => isDeepStrictEqual(value, whole[key]))

/** A block as it stands on the wire, where a thought is no text. */
const wireBlock = (block: Conversation.Json): Conversation.Json => {
  if (block["type"] !== "thinking") return block
  const { text, ...rest } = block
  return { ...rest, thinking: text }
}

const blockProblems = (expected: Fixtures.Expected, sent: ReadonlyArray<Conversation.Json>): ReadonlyArray<string> =>
  (expected.reasoningBlocks ?? []).map(wireBlock).filter((block) => !sent.some((object) => isWithin(block, object)))
    .map((block) => `reasoning block does not go back: ${JSON.stringify(block).slice(0, 100)}`)

/**
 * An item is sent back with its encrypted content. An item without any is identified by its id alone: it is enough that
 * the message keeps it.
 */
const itemProblems = (
  expected: Fixtures.Expected,
  sent: ReadonlyArray<Conversation.Json>,
  kept: string
): ReadonlyArray<string> => {
  const items = sent.filter((object) => object["type"] === "reasoning")
  const isBack = (item: Conversation.Json) =>
    items.some((found) => {
      const isSame = found["id"] === undefined || item["id"] === undefined || found["id"] === item["id"]
      const summary = Conversation.textOf(found["summary"])
      const isSummary = item["summary"] === undefined || summary.replaceAll(/\s+/g, "") ===
          String(item["summary"]).replaceAll(/\s+/g, "")
      return isSame && isSummary &&
        (item["encrypted"] !== true || Conversation.string(found["encrypted_content"]) !== "")
    })
  const isKept = (item: Conversation.Json) => item["encrypted"] !== true && kept.includes(JSON.stringify(item["id"]))
  return (expected.reasoningItems ?? []).filter((item) => !isBack(item) && !isKept(item))
    .map((item) => `reasoning item does not go back: ${JSON.stringify(item).slice(0, 100)}`)
}

const signatureProblems = (expected: Fixtures.Expected, body: string): ReadonlyArray<string> =>
  (expected.toolCalls ?? []).flatMap(({ name, thoughtSignature }) =>
    thoughtSignature === undefined || body.includes(thoughtSignature)
      ? []
      : [`the thought signature of ${name} does not go back`]
  )

/** A call, and its answer, go back under the id that the recorded server gave the call. */
const idProblems = (
  recorded: ReadonlyArray<Fixtures.ExpectedCall>,
  calls: ReadonlyArray<Conversation.Call>,
  results: ReadonlyArray<Conversation.Item>
): ReadonlyArray<string> =>
  recorded.flatMap(({ id, name }, index) => {
    const result = results[index]
    const found = [calls[index]?.id, result?.kind === "result" ? result.id : undefined]
    return id === null || id === "" || found.every((one) => one === id)
      ? []
      : [`the call of ${name} goes back as ${JSON.stringify(found)}, and not as ${JSON.stringify(id)}`]
  })

/** The model's turn at the end of a conversation, with its answers. */
const turnProblems = (
  { toolCalls = [] }: Fixtures.Expected,
  response: Response.Response,
  sent: Conversation.Conversation
): ReadonlyArray<string> => {
  const calls = Response.actionableCalls(response)
  const results = sent.items.slice(sent.items.length - calls.length)
  const said = sent.items[sent.items.length - calls.length - 1]
  const text = (response.outputText ?? "").trim()
  if (text === "" && calls.length === 0) return []
  if (said?.kind !== "assistant") return ["the model's turn does not go back at its place"]
  const expected: Conversation.Assistant = {
    kind: "assistant",
    text,
    calls: calls.map(({ arguments: args, argumentsLost, name }) => ({
      id: null,
      name,
      arguments: argumentsLost === undefined ? args : undefined
    }))
  }
  const isPaired = results.every((item, index) =>
    item.kind === "result" && (item.id === null || item.id === said.calls[index]?.id)
  )
  return [
    ...Conversation.differences([expected], [said]).map((problem) => `going back: ${problem}`),
    ...(isPaired ? [] : ["the answers do not go back with the ids of their calls"]),
    ...(calls.length === toolCalls.length ? idProblems(toolCalls, said.calls, results) : [])
  ]
}

/** What is missing in the request after a turn, whose message is `kept`. */
export const differences = (
  expected: Fixtures.Expected,
  response: Response.Response,
  kept: Message.Message | undefined,
  body: string,
  sent: Conversation.Conversation
): ReadonlyArray<string> => {
  const objects = objectsIn(JSON.parse(body))
  return [
    ...turnProblems(expected, response, sent),
    ...blockProblems(expected, objects),
    ...itemProblems(expected, objects, JSON.stringify(kept ?? null)),
    ...signatureProblems(expected, body)
  ]
}
