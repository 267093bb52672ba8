/**
 * The ids of calls in a body as a server of each protocol reads it, turn by turn, and what servers demand of ids that
 * they did not make.
 */
import type { Json } from "./bodies.ts"

/** A call, or an answer with its text. `id` is undefined where the protocol sends none. */
export interface Sent {
  readonly kind: "call" | "answer"
  readonly id: string | undefined
  readonly name: string | undefined
  readonly text: string
}

export interface Turn {
  readonly calls: ReadonlyArray<Sent>
  readonly answers: ReadonlyArray<Sent>
}

const textOf = (content: unknown): string => {
  if (typeof content === "string") return content
  if (Array.isArray(content)) return content.map((part) => String((part as Json)["text"] ?? "")).join("")
  const { error, result, value } = content as Json
  return String(result ?? error ?? value ?? "")
}

const called = (id: unknown, name: unknown): Sent => ({
  kind: "call",
  id: id as string | undefined,
  name: name as string | undefined,
  text: ""
})

const answered = (id: unknown, name: unknown, content: unknown): Sent => ({
  kind: "answer",
  id: id as string | undefined,
  name: name as string | undefined,
  text: textOf(content ?? "")
})

const inBlock = (block: Json): ReadonlyArray<Sent> => {
  switch (block["type"]) {
    case "tool_use":
      return [called(block["id"], block["name"])]
    case "tool_result":
      return [answered(block["tool_use_id"], undefined, block["content"])]
    case "tool-call":
      return [called(block["id"] ?? block["toolCallId"], block["name"])]
    case "tool-result":
      return [answered(block["id"] ?? block["toolCallId"], block["name"], block["result"] ?? block["output"])]
    case "function_call":
      return [called(block["call_id"], block["name"])]
    case "function_call_output":
      return [answered(block["call_id"], undefined, block["output"])]
    default: {
      const { functionCall, functionResponse } = block
      if (functionCall !== undefined) return [called(functionCall.id, functionCall.name)]
      return functionResponse === undefined
        ? []
        : [answered(functionResponse.id, functionResponse.name, functionResponse.response)]
    }
  }
}

const inMessage = (message: Json): ReadonlyArray<Sent> => {
  const { content, parts, role, tool_call_id, tool_calls } = message
  if (role === "tool" && tool_call_id !== undefined) return [answered(tool_call_id, undefined, content)]
  if (tool_calls !== undefined) return tool_calls.map((call: Json) => called(call["id"], call["function"].name))
  const blocks = parts ?? content
  return Array.isArray(blocks) ? blocks.flatMap(inBlock) : inBlock(message)
}

/** The turns of a body that have calls. */
export const turnsOf = (body: Json): ReadonlyArray<Turn> => {
  const turns: Array<{ readonly calls: Array<Sent>; readonly answers: Array<Sent> }> = []
  const { contents, input, messages, prompt } = body
  for (const sent of (messages ?? contents ?? input ?? prompt).flatMap(inMessage) as ReadonlyArray<Sent>) {
    const last = turns.at(-1)
    if (sent.kind === "answer") last?.answers.push(sent)
    else if (last === undefined || last.answers.length > 0) turns.push({ calls: [sent], answers: [] })
    else last.calls.push(sent)
  }
  return turns
}

/** The ids of the calls in a body, turn by turn. */
export const idsOf = (body: Json): ReadonlyArray<ReadonlyArray<string | undefined>> =>
  turnsOf(body).map(({ calls }) => calls.map(({ id }) => id))

/** The form that a server demands of the ids that it did not make. */
export interface Demand {
  readonly form: RegExp
  readonly mayRepeat: boolean
}

const short: Demand = { form: /^[^]{1,40}$/u, mayRepeat: true }

/** Demands by the names of protocols, vendors and providers. A name that is not here takes what most servers take. */
const demands: Readonly<Record<string, Demand>> = {
  mistral: { form: /^[A-Za-z0-9]{9}$/, mayRepeat: false },
  Anthropic: { form: /^[A-Za-z0-9_-]{1,40}$/, mayRepeat: false },
  OpenAiResponses: { form: /^[^]{1,64}$/u, mayRepeat: false }
}

export const demandOf = (name: string): Demand => demands[name] ?? short

/**
 * What a server refuses in turns: an id of another form, an id that stands for two calls, an answer without a call. `own`
 * are the ids that it made, which have any form and may repeat. A call of Gemini has an id, or its place.
 */
export const refusedIn = (
  turns: ReadonlyArray<Turn>,
  { form, mayRepeat }: Demand,
  own: ReadonlySet<string | undefined> = new Set(),
  isById = true
): ReadonlyArray<string> => {
  const seen = new Set<string>()
  return turns.flatMap(({ answers, calls }, index) => {
    const where = `turn ${index}`
    const idsOf = (sent: ReadonlyArray<Sent>) => sent.map(({ id, name }) => isById ? id : `${name} ${id}`)
    const foreign = calls.flatMap(({ id }) => id === undefined || own.has(id) ? [] : [id])
    const repeated = foreign.filter((id) => seen.has(id) || !seen.add(id))
    return [
      ...(isById ? calls.filter(({ id }) => typeof id !== "string").map(() => `${where}: a call without an id`) : []),
      ...foreign.filter((id) => !form.test(id)).map((id) => `${where}: ${JSON.stringify(id)} has another form`),
      ...(mayRepeat ? [] : repeated.map((id) => `${where}: ${JSON.stringify(id)} is the id of two calls`)),
      ...(JSON.stringify(idsOf(calls).toSorted()) === JSON.stringify(idsOf(answers).toSorted())
        ? []
        : [
          `${where}: the answers are to ${JSON.stringify(idsOf(answers))}, and not to ${JSON.stringify(idsOf(calls))}`
        ])
    ]
  })
}
